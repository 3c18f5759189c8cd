"""Google's predefined roles as far as the embedded cloud has methods for them, and which
permissions there are.

A role is a list of patterns of permissions, of which the last that fits decides; `!` takes away.
They follow https://cloud.google.com/iam/docs/roles-permissions of 2026-11, without permissions of
what is not served.
"""

import re
from fnmatch import fnmatchcase
from functools import lru_cache

from localcloud import schema

# Of a permission's first word: the API that has such permissions.
SERVED = {
    "compute": "compute",
    "storage": "storage",
    "secretmanager": "secretmanager",
    "iam": "iam",
    "resourcemanager": "cloudresourcemanager",
    "serviceusage": "serviceusage",
    "container": "container",
    "monitoring": "monitoring",
    "artifactregistry": "artifactregistry",
    "cloudbuild": "cloudbuild",
}
PROJECT = "resourcemanager.projects.get"
ARTIFACTS = (
    "artifactregistry.*.get artifactregistry.*.list artifactregistry.repositories.downloadArtifacts"
)
USES = "compute.subnetworks.use compute.subnetworks.useExternalIp compute.networks.use compute.networks.useExternalIp"
LOOK = "compute.*.get compute.*.list compute.*.getIamPolicy compute.*.getEffectiveFirewalls"
CONSOLE = "compute.instances.getSerialPortOutput compute.instances.getGuestAttributes compute.images.getFromFamily"
# Basic roles reach objects only through the convenience members of a bucket's policy
# (projectEditor:...).
BUCKETS = "!storage.* storage.buckets.create storage.buckets.delete storage.buckets.list"
IN_PARTS = "storage.multipartUploads.*"
FOLDERS = "storage.managedFolders.get storage.managedFolders.list"
PREDEFINED = {
    "roles/owner": f"* !orgpolicy.policy.set {BUCKETS}",
    "roles/editor": "* !orgpolicy.policy.set !*.setIamPolicy !iam.roles.create !iam.roles.update !iam.roles.delete "
    f"!secretmanager.versions.access {BUCKETS}",
    "roles/viewer": f"*.get *.list *.getIamPolicy {CONSOLE} !storage.* storage.buckets.list",
    "roles/compute.admin": f"compute.* {PROJECT}",
    "roles/compute.viewer": f"{LOOK} {CONSOLE} {PROJECT}",
    "roles/compute.instanceAdmin.v1": "compute.instances.* compute.disks.* compute.images.* compute.instanceGroups.* compute.snapshots.* "
    "compute.addresses.use compute.addresses.useInternal "
    "compute.instanceGroupManagers.* compute.instanceTemplates.* compute.resourcePolicies.* compute.autoscalers.* "
    f"compute.projects.setCommonInstanceMetadata {USES} {LOOK} {PROJECT} serviceusage.services.get "
    "serviceusage.services.list",
    "roles/container.admin": f"container.* {PROJECT}",
    "roles/container.clusterAdmin": f"container.clusters.* container.operations.* {PROJECT}",
    "roles/container.clusterViewer": f"container.clusters.get container.clusters.list {PROJECT}",
    "roles/container.developer": "container.* !container.clusters.create !container.clusters.delete "
    f"!container.clusters.update !container.*ole* {PROJECT}",
    "roles/container.viewer": f"container.*.get container.*.list container.*.getStatus {PROJECT}",
    "roles/container.defaultNodeServiceAccount": PROJECT,
    "roles/artifactregistry.admin": f"artifactregistry.* {PROJECT}",
    "roles/artifactregistry.reader": f"{ARTIFACTS} {PROJECT}",
    "roles/artifactregistry.repoAdmin": f"{ARTIFACTS} artifactregistry.repositories.uploadArtifacts "
    f"artifactregistry.repositories.deleteArtifacts artifactregistry.tags.* {PROJECT}",
    "roles/artifactregistry.writer": f"{ARTIFACTS} artifactregistry.repositories.uploadArtifacts "
    f"artifactregistry.tags.create artifactregistry.tags.update {PROJECT}",
    "roles/iap.tunnelResourceAccessor": "iap.tunnelInstances.accessViaIAP",
    "roles/iam.roleViewer": f"iam.roles.get iam.roles.list {PROJECT} resourcemanager.projects.getIamPolicy",
    "roles/iam.workloadIdentityUser": "iam.serviceAccounts.get iam.serviceAccounts.list "
    "iam.serviceAccounts.getAccessToken iam.serviceAccounts.getOpenIdToken",
    "roles/iam.serviceAccountUser": "iam.serviceAccounts.actAs iam.serviceAccounts.get iam.serviceAccounts.list "
    f"{PROJECT}",
    "roles/monitoring.admin": f"monitoring.* {PROJECT}",
    "roles/monitoring.editor": f"monitoring.* {PROJECT}",
    "roles/monitoring.viewer": f"monitoring.*.get monitoring.*.list {PROJECT}",
    "roles/monitoring.dashboardEditor": "monitoring.dashboards.*",
    "roles/monitoring.dashboardViewer": "monitoring.dashboards.get monitoring.dashboards.list",
    "roles/monitoring.metricWriter": "monitoring.timeSeries.create monitoring.metricDescriptors.create "
    "monitoring.metricDescriptors.get monitoring.metricDescriptors.list",
    "roles/secretmanager.admin": f"secretmanager.* {PROJECT}",
    "roles/secretmanager.secretAccessor": f"secretmanager.versions.access {PROJECT}",
    "roles/secretmanager.secretVersionAdder": f"secretmanager.versions.add {PROJECT}",
    "roles/secretmanager.secretVersionManager": f"secretmanager.versions.* !secretmanager.versions.access {PROJECT}",
    "roles/secretmanager.viewer": "secretmanager.*.get secretmanager.*.list secretmanager.secrets.getIamPolicy "
    f"{PROJECT}",
    "roles/compute.networkUser": f"{USES} compute.networks.get compute.networks.list "
    f"compute.subnetworks.get compute.subnetworks.list {PROJECT}",
    "roles/serviceusage.serviceUsageAdmin": f"serviceusage.services.* {PROJECT}",
    "roles/storage.admin": f"storage.* {PROJECT}",
    "roles/storage.objectAdmin": f"storage.objects.* storage.managedFolders.* {IN_PARTS} {PROJECT}",
    "roles/storage.objectUser": f"{IN_PARTS} storage.objects.* !storage.objects.getIamPolicy !storage.objects.setIamPolicy "
    f"{FOLDERS} storage.managedFolders.create storage.managedFolders.delete {PROJECT}",
    "roles/storage.objectViewer": f"storage.objects.get storage.objects.list {FOLDERS} {PROJECT}",
    "roles/storage.objectCreator": f"storage.objects.create {IN_PARTS} {PROJECT}",
    "roles/storage.legacyBucketReader": f"storage.buckets.get storage.objects.list {FOLDERS}",
    "roles/storage.legacyBucketWriter": f"{IN_PARTS} storage.buckets.get storage.objects.list storage.objects.create "
    f"storage.objects.delete {FOLDERS}",
    "roles/storage.legacyBucketOwner": f"{IN_PARTS} storage.buckets.get storage.buckets.update storage.buckets.getIamPolicy "
    "storage.buckets.setIamPolicy storage.objects.list storage.objects.create storage.objects.delete "
    "storage.managedFolders.*",
    "roles/storage.legacyObjectReader": "storage.objects.get",
    "roles/storage.legacyObjectOwner": "storage.objects.get storage.objects.update storage.objects.getIamPolicy "
    "storage.objects.setIamPolicy",
}
ON_BUCKETS = tuple(role for role in PREDEFINED if "storage.legacy" in role)  # and there only
# Google's roles for services that are served here, which cannot be granted here yet.
UNKNOWN = {
    "compute": "imageUser instanceAdmin instanceGroupManagerServiceAgent loadBalancerAdmin loadBalancerServiceUser "
    "networkAdmin networkViewer orgFirewallPolicyAdmin osAdminLogin osLogin osLoginExternalUser "
    "packetMirroringAdmin publicIpAdmin securityAdmin serviceAgent soleTenantViewer storageAdmin xpnAdmin",
    "storage": "bucketViewer expressModeServiceInput expressModeUserAccess folderAdmin hmacKeyAdmin "
    "insightsCollectorService",
    "secretmanager": "parameterAccessor secretVersionDestroyer",
    "iam": "oidcTokenCreator organizationRoleAdmin organizationRoleViewer roleAdmin roleViewer securityAdmin "
    "securityReviewer serviceAccountAdmin serviceAccountCreator serviceAccountDeleter serviceAccountKeyAdmin "
    "serviceAccountOpenIdTokenCreator serviceAccountTokenCreator serviceAccountViewer",
    "resourcemanager": "projectIamAdmin projectMover tagAdmin tagUser tagViewer",
    "serviceusage": "apiKeysAdmin apiKeysViewer serviceUsageConsumer serviceUsageViewer",
    "": "browser",
}
# Roles for what is not served, which projects may give: they give nothing here.
ELSEWHERE = {
    "aiplatform": "admin user viewer",
    "bigquery": "admin dataEditor dataOwner dataViewer jobUser user",
    "cloudtrace": "admin agent user",
    "errorreporting": "admin user viewer writer",
    "iap": "admin httpsResourceAccessor",
    "logging": "admin bucketWriter configWriter logWriter privateLogViewer viewer",
    "pubsub": "admin editor publisher subscriber viewer",
    "run": "admin developer invoker viewer",
    "source": "admin reader writer",
    "stackdriver": "resourceMetadata.writer",
    "tpu": "admin viewer",
}
# First words of permissions that are the name of no API.
WITHOUT_API = (
    "actions",
    "automl",
    "autoscaling",
    "billing",
    "bigtable",
    "clientauthconfig",
    "cloudaicompanion",
    "cloudconfig",
    "clouddebugger",
    "cloudmigration",
    "cloudnotifications",
    "cloudsql",
    "consumerprocurement",
    "errorreporting",
    "firebaseabt",
    "firebaseauth",
    "firebasecrash",
    "firebasecrashlytics",
    "firebaseextensions",
    "firebaseinappmessaging",
    "firebasenotifications",
    "firebaseperformance",
    "observability",
    "opsconfigmonitoring",
    "resourcesettings",
    "servicebroker",
    "stackdriver",
    "telemetry",
    "trafficdirector",
)
# What a resource below a project is called in names, and whose roles its policy takes.
FITTING = {
    "buckets": "storage",
    "secrets": "secretmanager",
    "serviceAccounts": "iam",
    "locations": "artifactregistry",
}
# Verbs of permissions that no method is called by.
VERBS = {
    "create",
    "update",
    "use",
    "useReadOnly",
    "useExternalIp",
    "add",
    "access",
    "actAs",
    "getAccessToken",
    "getOpenIdToken",
    "updatePolicy",
}
VERBS |= {"downloadArtifacts", "uploadArtifacts", "deleteArtifacts"}


def includes(role: str, permission: str) -> bool:
    """Whether a predefined role holds a permission; one that is not known holds none."""
    held = False
    for pattern in PREDEFINED.get(role, "").split():
        if fnmatchcase(permission, pattern.removeprefix("!")):
            held = not pattern.startswith("!")
    return held


def trouble(role: str, resource: str) -> tuple[int, str] | None:
    """What is wrong with a predefined role in the policy of a resource: a status, and a sentence."""
    service, dot, name = role.removeprefix("roles/").partition(".")
    service, name = (service, name) if dot else ("", service)
    _, _, *kind = resource.split("/")[:3]
    is_known = role in PREDEFINED or name in ELSEWHERE.get(service, "").split()
    fits = service == FITTING[kind[0]] if kind else role not in ON_BUCKETS
    if (
        not role.startswith("roles/")
        or not fits
        or not (is_known or name in UNKNOWN.get(service, "").split())
    ):
        return 400, f"Role {role} is not supported for this resource."
    return None if is_known else (501, f"The embedded cloud does not know the role {role}")


def exists(permission: str) -> bool:
    """Whether a custom role of a project may hold a permission. Of services that are not served the
    form counts, and that Google has such a service.
    """
    if not re.fullmatch(r"[a-z][a-zA-Z0-9]*(\.[a-zA-Z0-9]+){2,}", permission):
        return False
    if permission == "resourcemanager.projects.list":
        return False  # of organizations only
    service, *_, collection, verb = permission.split(".")
    # whose permissions are those of Kubernetes' kinds, too
    if service not in SERVED or service == "container":
        return service in services()
    collections, verbs = words(SERVED[service])
    return collection in collections and verb in verbs


@lru_cache
def services() -> set[str]:
    """The words that permissions begin with: mostly those of Google's APIs."""
    apis = schema.names()
    return {*apis, *SERVED, *ELSEWHERE, *UNKNOWN, *WITHOUT_API}


@lru_cache
def words(service: str) -> tuple[set[str], set[str]]:
    """The collections and the verbs of an API's methods."""
    ids = [method.split(".") for method in schema.load(service).methods]
    # What is regional has the permissions of what is zonal.
    collections = {id[-2] for id in ids if not id[-2].startswith("regionInstance")} | {
        "multipartUploads"
    }
    return collections, (
        {id[-1] for id in ids} - {"insert", "aggregatedList", "patch", "wait"}
    ) | VERBS

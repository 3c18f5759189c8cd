"""Google's predefined roles as far as the embedded cloud has methods for them, and which permissions there are.

A role is a list of patterns of permissions, of which the last that fits decides; `!` takes away. They follow
https://cloud.google.com/iam/docs/roles-permissions of 2026-11, without permissions of what is not served.
"""

import re
from fnmatch import fnmatchcase
from functools import lru_cache

from berg.local import schema

# Of a permission's first word: the API that has such permissions.
SERVED = {
    "compute": "compute",
    "storage": "storage",
    "secretmanager": "secretmanager",
    "iam": "iam",
    "resourcemanager": "cloudresourcemanager",
    "serviceusage": "serviceusage",
}
PROJECT = "resourcemanager.projects.get"
USES = "compute.subnetworks.use compute.subnetworks.useExternalIp compute.networks.use compute.networks.useExternalIp"
LOOK = "compute.*.get compute.*.list compute.*.getIamPolicy"
CONSOLE = "compute.instances.getSerialPortOutput compute.images.getFromFamily"
# Basic roles reach objects only through the convenience members of a bucket's policy (projectEditor:...).
BUCKETS = "!storage.* storage.buckets.create storage.buckets.delete storage.buckets.list"
FOLDERS = "storage.managedFolders.get storage.managedFolders.list"
PREDEFINED = {
    "roles/owner": f"* {BUCKETS}",
    "roles/editor": "* !*.setIamPolicy !iam.roles.create !iam.roles.update !iam.roles.delete "
    f"!secretmanager.versions.access {BUCKETS}",
    "roles/viewer": f"*.get *.list *.getIamPolicy {CONSOLE} !storage.* storage.buckets.list",
    "roles/compute.admin": f"compute.* {PROJECT}",
    "roles/compute.viewer": f"{LOOK} {CONSOLE} {PROJECT}",
    "roles/compute.instanceAdmin.v1": "compute.instances.* compute.disks.* compute.images.* compute.instanceGroups.* "
    "compute.instanceGroupManagers.* compute.instanceTemplates.* compute.resourcePolicies.* compute.autoscalers.* "
    f"compute.projects.setCommonInstanceMetadata {USES} {LOOK} {PROJECT} serviceusage.services.get "
    "serviceusage.services.list",
    "roles/iam.serviceAccountUser": "iam.serviceAccounts.actAs iam.serviceAccounts.get iam.serviceAccounts.list "
    f"{PROJECT}",
    "roles/secretmanager.admin": f"secretmanager.* {PROJECT}",
    "roles/secretmanager.secretAccessor": f"secretmanager.versions.access {PROJECT}",
    "roles/secretmanager.secretVersionAdder": f"secretmanager.versions.add {PROJECT}",
    "roles/secretmanager.secretVersionManager": f"secretmanager.versions.* !secretmanager.versions.access {PROJECT}",
    "roles/secretmanager.viewer": "secretmanager.*.get secretmanager.*.list secretmanager.secrets.getIamPolicy "
    f"{PROJECT}",
    "roles/serviceusage.serviceUsageAdmin": f"serviceusage.services.* {PROJECT}",
    "roles/storage.admin": f"storage.* {PROJECT}",
    "roles/storage.objectAdmin": f"storage.objects.* storage.managedFolders.* {PROJECT}",
    "roles/storage.objectUser": "storage.objects.* !storage.objects.getIamPolicy !storage.objects.setIamPolicy "
    f"{FOLDERS} storage.managedFolders.create storage.managedFolders.delete {PROJECT}",
    "roles/storage.objectViewer": f"storage.objects.get storage.objects.list {FOLDERS} {PROJECT}",
    "roles/storage.objectCreator": f"storage.objects.create {PROJECT}",
    "roles/storage.legacyBucketReader": f"storage.buckets.get storage.objects.list {FOLDERS}",
    "roles/storage.legacyBucketWriter": "storage.buckets.get storage.objects.list storage.objects.create "
    f"storage.objects.delete {FOLDERS}",
    "roles/storage.legacyBucketOwner": "storage.buckets.get storage.buckets.update storage.buckets.getIamPolicy "
    "storage.buckets.setIamPolicy storage.objects.list storage.objects.create storage.objects.delete "
    "storage.managedFolders.*",
    "roles/storage.legacyObjectReader": "storage.objects.get",
    "roles/storage.legacyObjectOwner": "storage.objects.get storage.objects.update storage.objects.getIamPolicy "
    "storage.objects.setIamPolicy",
}
BASIC = ("roles/owner", "roles/editor", "roles/viewer")  # of projects only
ON_BUCKETS = tuple(role for role in PREDEFINED if "storage.legacy" in role)  # and there only
# Verbs of permissions that no method is called by.
VERBS = {"create", "update", "use", "useReadOnly", "useExternalIp", "add", "access", "actAs", "updatePolicy"}


def includes(role: str, permission: str) -> bool:
    """Whether a predefined role holds a permission; one that is not known holds none."""
    held = False
    for pattern in PREDEFINED.get(role, "").split():
        if fnmatchcase(permission, pattern.removeprefix("!")):
            held = not pattern.startswith("!")
    return held


def exists(permission: str) -> bool:
    """Whether a custom role of a project may hold a permission. Of services that are not served the form counts."""
    if not re.fullmatch(r"[a-z][a-zA-Z0-9]*(\.[a-zA-Z0-9]+){2,}", permission):
        return False
    if permission == "resourcemanager.projects.list":
        return False  # of organizations only
    service, *_, collection, verb = permission.split(".")
    if service not in SERVED:
        return True
    collections, verbs = words(SERVED[service])
    return collection in collections and verb in verbs


def names() -> list[str]:
    """The permissions of the served APIs that methods are called by."""
    ids = [(word, id.split(".")) for word, api in SERVED.items() for id in schema.load(api).methods]
    return sorted(filter(exists, {f"{word}.{id[-2]}.{id[-1]}" for word, id in ids}))


@lru_cache
def words(service: str) -> tuple[set[str], set[str]]:
    """The collections and the verbs of an API's methods."""
    ids = [method.split(".") for method in schema.load(service).methods]
    # What is regional has the permissions of what is zonal.
    collections = {id[-2] for id in ids if not id[-2].startswith("regionInstance")} | {"multipartUploads"}
    return collections, ({id[-1] for id in ids} - {"insert", "aggregatedList", "patch", "wait"}) | VERBS

"""Which permissions a request needs, and whether its principal holds them; Google's answer if it
does not.

Only service accounts that were made through IAM are held to this. The laptop's user and the
projects' default service accounts may do everything, as owners and editors of small projects may.

Permissions of methods follow Google's reference:
https://cloud.google.com/compute/docs/reference/rest/v1,
https://cloud.google.com/storage/docs/access-control/iam-json and
https://cloud.google.com/secret-manager/docs/access-control.

Not covered: permissions on single machines, disks and images, access lists of objects, what creating an instance
group needs in addition to the group's own permission.
"""

from localcloud.call import Call, Cloud
from localcloud.errors import ApiError, error_info
from localcloud.identity import services
from localcloud.identity.roles import includes
from localcloud.secrets import api as secrets_api
from localcloud.storage.checks import policy_of

# permission, and the resource it is needed on: "projects/p" or something in it
Needs = list[tuple[str, str]]
FREE = "testIamPermissions"  # a verb that anyone may call
STORAGE = {
    "buckets.insert": "buckets.create",
    "buckets.patch": "buckets.update",
    "buckets.getStorageLayout": "buckets.get",
    "objects.insert": "objects.create",
    "objects.compose": "objects.get",
    "objects.rewrite": "objects.get",
    "objects.patch": "objects.update",
}
COMPUTE_VERBS = {
    "insert": "create",
    "bulkInsert": "create",
    "aggregatedList": "list",
    "wait": "get",
    "patch": "update",
}
CHANGES = ("create", "delete")  # verbs of subnetworks that change the network
# Verbs of groups' managers that have a permission of their own; all others change the group.
MANAGERS = {"create", "delete", "get", "list", "update", "use"}


def is_held(principal: str) -> bool:
    """Whether a principal needs permissions: it is an account that was created through IAM."""
    return principal.endswith(".iam.gserviceaccount.com")


def check(cloud: Cloud, call: Call) -> None:
    """Raise Google's refusal unless the caller holds what a request needs."""
    if not is_held(call.principal) or call.method.endswith(FREE):
        return
    for permission, resource in needs(cloud, call):
        require(cloud, call, permission, resource)


def require(cloud: Cloud, call: Call, permission: str, resource: str) -> None:
    if not allowed(cloud, call.principal, permission, resource):
        raise denied(call, permission, resource)


def allowed(cloud: Cloud, principal: str, permission: str, resource: str) -> bool:
    """Whether a binding on the resource or on its project gives a principal the permission."""
    if not is_held(principal):
        return True
    if resource.split("/")[1] not in cloud.projects:
        return False
    resource = resource.partition("/objects/")[0]
    project = "/".join(resource.split("/")[:2])
    found = cloud.iam.effective(project, cloud.iam.bindings(project))
    if "/buckets/" in resource:
        found = [*found, *cloud.iam.effective(resource, bucket_bindings(cloud, resource))]
    elif resource != project:
        found = [*found, *cloud.iam.effective(resource, cloud.iam.bindings(resource))]
    return any(
        is_member(cloud, principal, binding["members"])
        and grants(cloud, binding["role"], permission)
        for binding in found
    )


def bucket_bindings(cloud: Cloud, resource: str) -> list[dict]:
    bucket = cloud.storage.bucket(resource.rpartition("/")[2])
    if bucket is None:
        return []
    return policy_of(cloud, bucket)["bindings"]


def is_member(cloud: Cloud, principal: str, members: list[str]) -> bool:
    """Whether an account is a member, itself or by its basic role in a project."""
    account = f"serviceAccount:{principal}"
    for member in members:
        kind, _, project = member.partition(":")
        if kind in ("projectOwner", "projectEditor", "projectViewer"):
            role = f"roles/{kind.removeprefix('project').lower()}"
            for binding in cloud.iam.bindings(f"projects/{project}"):
                if binding["role"] == role and account in binding["members"]:
                    return True
    return account in members


def grants(cloud: Cloud, role: str, permission: str) -> bool:
    if role.startswith("projects/"):
        return permission in cloud.iam.roles.get(role, {}).get("includedPermissions", [])
    return includes(role, permission)


# --- what a method needs


def needs(cloud: Cloud, call: Call) -> Needs:
    """The permissions for a request; none if what it is about is not there: its handler says so."""
    service, _, rest = call.method.partition(".")
    if service == "cloudbilling":
        return []  # the price list is public
    if service == "compute":
        return compute_needs(cloud, call)
    if service == "storage":
        return storage_needs(cloud, call, rest)
    if service == "secretmanager":
        return [
            (secrets_api.permission(call.method), resource_of(cloud, secrets_api.resource_of(call)))
        ]
    if service == "cloudresourcemanager":
        project = resource_of(cloud, f"projects/{services.project_in(call)}")
        return [(f"resourcemanager.{rest}", project)]
    collection, verb = rest.split(".")[-2:]
    if collection in ("operations", "permissions", "locations"):
        return []
    if service == "container":
        path = call.params.get("name") or call.params.get("parent", "")
        verb = "update" if collection == "nodePools" else verb
        return [(f"container.clusters.{verb}", resource_of(cloud, path))]
    name = secrets_api.resource_of(call)
    if service == "serviceusage":
        verb = {"batchEnable": "enable", "batchGet": "get"}.get(verb, verb)
    verb = "update" if verb == "patch" else verb
    if collection == "keys":
        collection = "serviceAccountKeys"
    if service == "monitoring":  # whose resources have no policies of their own
        name = "/".join(name.split("/")[:2])
    return [(f"{service}.{collection}.{verb}", resource_of(cloud, name))]


def resource_of(cloud: Cloud, name: str) -> str:
    """A name with its project by id, without version and what has no policy of its own."""
    _, project, *rest = name.split("/")
    account = (
        cloud.iam.account(rest[1]) if rest[:1] == ["serviceAccounts"] and len(rest) > 1 else None
    )
    if account:
        return account["name"]
    kept = (
        rest[:2] if rest[:1] == ["secrets"] else rest[:4] if rest[2:3] == ["repositories"] else []
    )
    return "/".join(["projects", cloud.project_named(project) or project, *kept])


def storage_needs(cloud: Cloud, call: Call, method: str) -> Needs:
    params, body = call.params, call.body or {}
    if method == "objects.insert":
        return []  # its handler knows the name, and checks when a session begins
    permission = f"storage.{STORAGE.get(method, method)}"
    if "project" in params:
        return [(permission, resource_of(cloud, f"projects/{params['project']}"))]
    result: Needs = []

    def on(name: str, key: str, *permissions: str) -> None:
        """Need permissions on an object, or on the bucket where no object is named."""
        bucket = cloud.storage.bucket(name)
        if bucket:
            resource = f"projects/{bucket['project']}/buckets/{name}"
            resource += f"/objects/{key}" if key else ""
            result.extend((each, resource) for each in permissions)

    source = (
        params.get("sourceBucket") or params.get("destinationBucket") or params.get("bucket", "")
    )
    key = params.get("sourceObject") or params.get("object") or ""
    if method == "objects.compose":
        for each in body.get("sourceObjects") or []:
            on(source, each.get("name", ""), "storage.objects.get")
    else:
        on(source, key, permission)
    if method == "objects.patch":
        on(source, key, "storage.objects.get")
    if "destinationObject" in params:
        target, name = params.get("destinationBucket") or source, params["destinationObject"]
        on(target, name, "storage.objects.create")
        if cloud.storage.find(target, name):
            on(target, name, "storage.objects.delete")
    return result


def compute_needs(cloud: Cloud, call: Call) -> Needs:
    _, collection, verb = call.method.split(".")
    project = f"projects/{call.params['project']}"
    if call.params["project"] not in cloud.projects:
        return []  # images of public projects
    verb = COMPUTE_VERBS.get(verb, verb)
    if collection.endswith("nstanceGroupManagerResizeRequests"):
        collection, verb = "instanceGroupManagers", verb if verb in ("get", "list") else "update"
    if collection.endswith(("nstanceGroupManagers", "nstanceGroups")):
        collection = (
            "instanceGroupManagers" if collection.endswith("Managers") else "instanceGroups"
        )
        verb = "list" if verb.startswith("list") else verb if verb in MANAGERS else "update"
    result = [(f"compute.{collection}.{verb}", project)]
    if collection == "instances" and "instance" in call.params and "zone" in call.params:
        one = f"{project}/zones/{call.params['zone']}/instances/{call.params['instance']}"
        result = [(f"compute.{collection}.{verb}", one)]
    body = call.body or {}
    changes = verb not in ("get", "list") if collection == "firewalls" else verb in CHANGES
    if collection in ("firewalls", "subnetworks") and changes:
        result.append(("compute.networks.updatePolicy", project))
    if call.method.endswith("nstanceGroupManagers.delete"):
        # The group of instances that belongs to the manager is checked separately.
        result.append(("compute.instanceGroups.delete", project))
    if call.method == "compute.disks.createSnapshot":
        result.append(("compute.snapshots.create", project))
    if collection == "instances" and verb == "create":
        result += instance_needs(cloud, project, body.get("instanceProperties") or body)
    if call.method == "compute.instances.setMetadata":
        key = (call.params["project"], call.params["zone"], call.params["instance"])
        instance = cloud.compute.instances.get(key)
        accounts = instance.resource.get("serviceAccounts", []) if instance else []
        result += [
            ("iam.serviceAccounts.actAs", account_resource(cloud, project, row)) for row in accounts
        ]
    return result


def instance_needs(cloud: Cloud, project: str, body: dict) -> Needs:
    """What an instance needs in addition to compute.instances.create."""
    interfaces, accounts = body.get("networkInterfaces") or [], body.get("serviceAccounts") or []
    wanted = {
        "disks.create": any("initializeParams" in disk for disk in body.get("disks") or []),
        "instances.setMetadata": (body.get("metadata") or {}).get("items"),
        "instances.setTags": (body.get("tags") or {}).get("items"),
        "instances.setLabels": body.get("labels"),
        "instances.setServiceAccount": accounts,
    }
    result = [(f"compute.{permission}", project) for permission, needed in wanted.items() if needed]
    for interface in interfaces:
        result.append(("compute.subnetworks.use", project))
        if interface.get("accessConfigs"):
            result.append(("compute.subnetworks.useExternalIp", project))
    return result + [
        ("iam.serviceAccounts.actAs", account_resource(cloud, project, row)) for row in accounts
    ]


def account_resource(cloud: Cloud, project: str, row: dict) -> str:
    email = row.get("email", "default")
    default = cloud.iam.default_account(project.removeprefix("projects/"))
    found = default if email == "default" else cloud.iam.account(email)
    return found["name"] if found else project


# --- refusals


def denied(call: Call, permission: str, resource: str) -> ApiError:
    service, details = call.method.partition(".")[0], None
    if permission == "iam.serviceAccounts.actAs":
        return ApiError(
            400,
            "serviceAccountAccessDenied",
            f"The user does not have access to service account '{resource.rpartition('/')[2]}'.  User: "
            f"'{call.principal}'.  Ask a project owner to grant you the iam.serviceAccountUser role on the service "
            "account",
        )
    if service == "compute":
        message = f"Required '{permission}' permission for '{resource}'"
    elif service == "storage":
        project_wide = permission in ("storage.buckets.create", "storage.buckets.list")
        of_bucket = (
            permission.startswith("storage.buckets.") or permission == "storage.objects.list"
        )
        what = "project" if project_wide else "bucket" if of_bucket else "object"
        message = (
            f"{call.principal} does not have {permission} access to the Google Cloud Storage {what}. "
            f"Permission '{permission}' denied on resource (or it may not exist)."
        )
    else:
        name = secrets_api.resource_of(call)
        on = f"for resource '{name}'" if service == "secretmanager" else "on resource"
        message = f"Permission '{permission}' denied {on} (or it may not exist)."
        about = {"permission": permission, "resource": name}
        details = [error_info("IAM_PERMISSION_DENIED", "iam.googleapis.com", **about)]
    return ApiError(403, "forbidden", message, details=details)

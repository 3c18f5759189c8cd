"""Handlers of IAM, of policies in Resource Manager and of secrets' policies.

Not covered: predefined roles' definitions (roles.get, roles.list), tokens and signatures of
accounts, disabling and undeleting them, undeleting roles, creating and deleting projects, and what
iam.py leaves out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from localcloud.call import Call, Cloud, Handler
from localcloud.errors import ApiError
from localcloud.identity.iam import aborted, is_stale, refused, shown, tag, without
from localcloud.identity.permissions import allowed
from localcloud.identity.roles import exists
from localcloud.secrets import api as secrets_api

MOST_TESTED = 100  # permissions in one request
# What only roles of organizations may hold.
ABOVE = ("resourcemanager.organizations.", "resourcemanager.folders.")
ROLE_FIELDS = ("title", "description", "includedPermissions", "stage")


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the handler of every method that is served, by method id."""
    accounts, roles = "iam.projects.serviceAccounts.", "iam.projects.roles."
    projects, secrets = "cloudresourcemanager.projects.", "secretmanager.projects.secrets."
    table: dict[str, Callable] = {
        f"{accounts}create": create_account,
        f"{accounts}delete": delete_account,
        f"{roles}create": create_role,
        f"{roles}get": get_role,
        f"{roles}patch": patch_role,
        f"{projects}get": get_project,
    }
    resource_of = {
        accounts: account_name,
        projects: project_name,
        secrets: secret_name,
    }
    for prefix, find in resource_of.items():
        table[f"{prefix}getIamPolicy"] = functools.partial(get_policy, find=find)
        table[f"{prefix}setIamPolicy"] = functools.partial(set_policy, find=find)
        table[f"{prefix}testIamPermissions"] = functools.partial(test_permissions, find=find)
    return {method: functools.partial(handler, cloud) for method, handler in table.items()}


def project_of(cloud: Cloud, call: Call, name: str) -> str:
    """The id of the project in a name; without access to it, Google says no more than this."""
    project = cloud.project_named(name.split("/")[1])
    if project is None:
        raise ApiError(403, "forbidden", "The caller does not have permission")
    return project


# --- policies


def account_name(cloud: Cloud, call: Call) -> str:
    return find_account(cloud, call, call.params["resource"])["name"]


def project_name(cloud: Cloud, call: Call) -> str:
    return "projects/" + project_of(
        cloud, call, f"projects/{call.params['resource'].removeprefix('projects/')}"
    )


def secret_name(cloud: Cloud, call: Call) -> str:
    return secrets_api.find(cloud, cloud.by_id(call.params["resource"])).name


async def get_policy(cloud: Cloud, call: Call, find: Callable) -> dict:
    options = (call.body or {}).get("options") or {}
    requested = call.params.get("options.requestedPolicyVersion") or options.get(
        "requestedPolicyVersion", 1
    )
    return shown(cloud.iam.policy(find(cloud, call)), int(requested))


async def set_policy(cloud: Cloud, call: Call, find: Callable) -> dict:
    body = call.body or {}
    if not isinstance(body.get("policy"), dict):
        raise refused("Missing policy in the request.")
    if body.get("updateMask"):
        raise ApiError(501, "notImplemented", "The embedded cloud has no updateMask of policies")
    return cloud.iam.set_policy(find(cloud, call), body["policy"])


async def test_permissions(cloud: Cloud, call: Call, find: Callable) -> dict:
    resource = find(cloud, call)
    asked = (call.body or {}).get("permissions") or []
    check_asked(asked)
    held = [
        permission for permission in asked if allowed(cloud, call.principal, permission, resource)
    ]
    return {"permissions": held} if held else {}


def check_asked(permissions: list[str]) -> None:
    """Refuse to test what is no permission, such as one with a wildcard, and more than 100."""
    if len(permissions) > MOST_TESTED:
        raise refused(f"At most {MOST_TESTED} permissions can be tested at once.")
    for permission in permissions:
        if not exists(permission) and permission != "resourcemanager.projects.list":
            raise refused(f"Permission {permission} is not valid for this resource.")


async def get_project(cloud: Cloud, call: Call) -> dict:
    project = project_of(cloud, call, f"projects/{call.params['projectId']}")
    number = {"projectNumber": cloud.projects[project]["number"], "lifecycleState": "ACTIVE"}
    return {
        "projectId": project,
        "name": project,
        "createTime": "2026-01-05T09:02:03.000Z",
        **number,
    }


# --- service accounts


def find_account(cloud: Cloud, call: Call, name: str) -> dict:
    """The account of `projects/{project or -}/serviceAccounts/{email or unique id}`."""
    _, project, _, id = name.split("/")
    found = cloud.iam.account(id)
    project = found["projectId"] if found and project == "-" else project_of(cloud, call, name)
    if found is None or found["projectId"] != project:
        raise ApiError(404, "notFound", "Unknown service account")
    return found


async def create_account(cloud: Cloud, call: Call) -> dict:
    project, body = project_of(cloud, call, call.params["name"]), call.body or {}
    id, fields = body.get("accountId") or "", body.get("serviceAccount") or {}
    if not re.fullmatch(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])", id):
        raise refused(
            f"Service account ID '{id}' must be 6 to 30 characters of [a-z]([-a-z0-9]*[a-z0-9])."
        )
    if cloud.iam.account(f"{id}@{project}.iam.gserviceaccount.com"):
        message = f"Service account {id} already exists within project projects/{project}."
        raise ApiError(409, "alreadyExists", message)
    kept = {key: fields[key] for key in ("displayName", "description") if fields.get(key)}
    return cloud.iam.add_account(project, id, kept)


async def delete_account(cloud: Cloud, call: Call) -> dict:
    account = find_account(cloud, call, call.params["name"])
    if account["email"] not in cloud.iam.accounts:
        raise ApiError(
            501, "notImplemented", "The embedded cloud keeps a project's default service account"
        )
    cloud.iam.delete_account(account)
    for bucket, policy in cloud.storage.policies().items():
        cloud.storage.set_policy(
            bucket, {**policy, "bindings": without(policy["bindings"], account)}
        )
    return {}


# --- roles


def find_role(cloud: Cloud, call: Call) -> dict:
    name = call.params["name"]
    name = f"projects/{project_of(cloud, call, name)}/roles/{name.split('/')[3]}"
    if name not in cloud.iam.roles:
        raise ApiError(404, "notFound", f"The role named {name} was not found.")
    return cloud.iam.roles[name]


def check_permissions(role: dict) -> None:
    for permission in role.get("includedPermissions") or []:
        if not exists(permission) or permission.startswith(ABOVE):
            raise refused(f"Permission {permission} is not valid.")


def keep_role(cloud: Cloud, name: str, role: dict) -> dict:
    check_permissions(role)
    kept = {"name": name, **{key: role[key] for key in ROLE_FIELDS if role.get(key)}}
    if "includedPermissions" in kept:
        kept["includedPermissions"] = sorted(set(kept["includedPermissions"]))
    kept["etag"] = tag(kept)
    cloud.iam.roles[name] = kept
    cloud.iam.save()
    return kept


async def create_role(cloud: Cloud, call: Call) -> dict:
    project, body = project_of(cloud, call, call.params["parent"]), call.body or {}
    id = body.get("roleId") or ""
    if not re.fullmatch(r"[a-zA-Z0-9_.]{3,64}", id):
        raise refused(
            f'The role_id "{id}" is invalid. It doesn\'t match pattern "[a-zA-Z0-9_\\.]{{3,64}}". The role_id must be '
            "3 to 64 characters long and can be a mix of uppercase and lowercase English letters, digits, underscores "
            "and periods."
        )
    name = f"projects/{project}/roles/{id}"
    if name in cloud.iam.roles:
        raise ApiError(
            409, "alreadyExists", f"A role named {id} in projects/{project} already exists."
        )
    role = body.get("role") or {}
    if role.get("name"):
        raise refused("The role name must not be set in a request that creates a role.")
    return keep_role(cloud, name, role)


async def get_role(cloud: Cloud, call: Call) -> dict:
    return find_role(cloud, call)


async def patch_role(cloud: Cloud, call: Call) -> dict:
    role, body = find_role(cloud, call), call.body or {}
    if role.get("deleted"):
        message = f"You can't update role {role['name']} because it is in a deleted state."
        raise ApiError(400, "failedPrecondition", message, code="FAILED_PRECONDITION")
    if is_stale(body.get("etag"), role["etag"]):
        raise aborted("There were concurrent changes to the role.")
    asked = call.params.get("updateMask", "")
    mask = [
        re.sub(r"_(.)", lambda found: found[1].upper(), field)
        for field in asked.split(",")
        if field
    ]
    unknown = sorted(set(mask) - {*ROLE_FIELDS, "etag"})
    if unknown:
        raise refused(f"Invalid update mask: {unknown[0]}")
    changed = {key: body.get(key) for key in mask or body if key in ROLE_FIELDS}
    return keep_role(cloud, role["name"], {**role, **changed})

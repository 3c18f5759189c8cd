"""Handlers of IAM, of policies in Resource Manager and of secrets' policies.

Not covered: predefined roles' definitions, deletion of accounts and roles, policies of accounts, tokens and
signatures of accounts, projects themselves, and what iam.py leaves out.
"""

import functools
import re
from collections.abc import Callable

from localcloud.call import Call, Cloud
from localcloud.errors import ApiError, unserved
from localcloud.identity.iam import refused, tag
from localcloud.identity.permissions import allowed
from localcloud.identity.roles import exists
from localcloud.secrets import api as secrets_api

# What only roles of organizations may hold.
ABOVE = ("resourcemanager.organizations.", "resourcemanager.folders.")
ROLE_FIELDS = ("title", "description", "includedPermissions", "stage")


# --- policies


def account_name(cloud: Cloud, call: Call) -> str:
    return find_account(cloud, call, call.params["resource"])["name"]


def project_name(cloud: Cloud, call: Call) -> str:
    return cloud.by_id(f"projects/{call.params['resource'].removeprefix('projects/')}")


def secret_name(cloud: Cloud, call: Call) -> str:
    return secrets_api.find(cloud, cloud.by_id(call.params["resource"])).name


async def get_policy(cloud: Cloud, call: Call) -> dict:
    return cloud.iam.policy(project_name(cloud, call))


async def set_policy(cloud: Cloud, call: Call, find: Callable) -> dict:
    body = call.body or {}
    unserved(body.get("updateMask"), "updateMask of policies")
    return cloud.iam.set_policy(find(cloud, call), body.get("policy") or {})


async def test_permissions(cloud: Cloud, call: Call, find: Callable) -> dict:
    resource = find(cloud, call)
    asked = (call.body or {}).get("permissions") or []
    if wrong := [each for each in asked if not exists(each)]:
        raise refused(f"Permission {wrong[0]} is not valid for this resource.")
    held = [
        permission for permission in asked if allowed(cloud, call.principal, permission, resource)
    ]
    return {"permissions": held} if held else {}


# --- service accounts


def find_account(cloud: Cloud, call: Call, name: str) -> dict:
    """The account of `projects/{project or -}/serviceAccounts/{email or unique id}`."""
    _, project, _, id = name.split("/")
    found = cloud.iam.account(id)
    if project != "-":
        project = cloud.by_id(f"projects/{project}").partition("/")[2]
    if found is None or project not in ("-", found["projectId"]):
        raise ApiError(404, "notFound", "Unknown service account")
    return found


async def create_account(cloud: Cloud, call: Call) -> dict:
    project, body = cloud.by_id(call.params["name"]).partition("/")[2], call.body or {}
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


# --- roles


async def get_role(cloud: Cloud, call: Call) -> dict:
    name = cloud.by_id(call.params["name"])
    if name not in cloud.iam.roles:
        raise ApiError(404, "notFound", f"The role named {name} was not found.")
    return cloud.iam.roles[name]


def keep_role(cloud: Cloud, name: str, role: dict) -> dict:
    for permission in role.get("includedPermissions") or []:
        if not exists(permission) or permission.startswith(ABOVE):
            raise refused(f"Permission {permission} is not valid.")
    kept = {"name": name, **{key: role[key] for key in ROLE_FIELDS if role.get(key)}}
    if "includedPermissions" in kept:
        kept["includedPermissions"] = sorted(set(kept["includedPermissions"]))
    kept["etag"] = tag(kept)
    cloud.iam.roles[name] = kept
    cloud.iam.save()
    return kept


async def create_role(cloud: Cloud, call: Call) -> dict:
    parent, body = cloud.by_id(call.params["parent"]), call.body or {}
    id = body.get("roleId") or ""
    if not re.fullmatch(r"[a-zA-Z0-9_.]{3,64}", id):
        raise refused(
            f'The role_id "{id}" is invalid. It doesn\'t match pattern "[a-zA-Z0-9_\\.]{{3,64}}". The role_id must be '
            "3 to 64 characters long and can be a mix of uppercase and lowercase English letters, digits, underscores "
            "and periods."
        )
    name = f"{parent}/roles/{id}"
    if name in cloud.iam.roles:
        raise ApiError(409, "alreadyExists", f"A role named {id} in {parent} already exists.")
    return keep_role(cloud, name, body.get("role") or {})


async def patch_role(cloud: Cloud, call: Call) -> dict:
    role, body = await get_role(cloud, call), call.body or {}
    unserved("updateMask" in call.params or body.get("etag"), "updateMask and etags of roles")
    changed = {key: body[key] for key in body if key in ROLE_FIELDS}
    return keep_role(cloud, role["name"], {**role, **changed})


PROJECTS, ACCOUNTS = "cloudresourcemanager.projects.", "iam.projects.serviceAccounts."
HANDLERS: dict[str, Callable] = {
    f"{ACCOUNTS}create": create_account,
    f"{ACCOUNTS}testIamPermissions": functools.partial(test_permissions, find=account_name),
    f"{PROJECTS}getIamPolicy": get_policy,
    f"{PROJECTS}setIamPolicy": functools.partial(set_policy, find=project_name),
    f"{PROJECTS}testIamPermissions": functools.partial(test_permissions, find=project_name),
    "secretmanager.projects.secrets.setIamPolicy": functools.partial(set_policy, find=secret_name),
    "iam.projects.roles.create": create_role,
    "iam.projects.roles.get": get_role,
    "iam.projects.roles.patch": patch_role,
}

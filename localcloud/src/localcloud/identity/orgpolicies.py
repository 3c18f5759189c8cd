"""Organisation policies of projects, in Resource Manager's first API; what they forbid,
constraints.py refuses.

Not covered: organisations and folders, constraints other than those below, values but single
instances, conditions, and the newer orgpolicy API.
"""

from __future__ import annotations

import functools

from localcloud.call import Call, Cloud, Handler
from localcloud.errors import ApiError
from localcloud.identity.api import project_name
from localcloud.identity.iam import aborted, is_stale, refused, tag

# Constraint -> the field of a policy that it takes, and its value where none is set.
KNOWN = {
    "constraints/compute.vmExternalIpAccess": ("listPolicy", {"allValues": "ALLOW"}),
    "constraints/compute.requireOsLogin": ("booleanPolicy", {}),
    "constraints/compute.requireShieldedVm": ("booleanPolicy", {}),
    "constraints/gcp.resourceLocations": ("listPolicy", {"allValues": "ALLOW"}),
    "constraints/storage.softDeletePolicySeconds": ("listPolicy", {"allValues": "ALLOW"}),
}


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the handler of every method that is served, by method id."""
    table = {
        "getEffectiveOrgPolicy": get,
        "getOrgPolicy": get,
        "setOrgPolicy": change,
        "clearOrgPolicy": change,
    }
    return {
        f"cloudresourcemanager.projects.{verb}": functools.partial(table[verb], cloud)
        for verb in table
    }


def policies(cloud: Cloud, call: Call) -> dict[str, dict]:
    """What was set on the project of a request, by constraint; changes are kept once the projects
    are saved.
    """
    project = project_name(cloud, call).removeprefix("projects/")
    return cloud.projects[project].setdefault("org_policies", {})


def known(name: str) -> str:
    constraint = name if name.startswith("constraints/") else f"constraints/{name}"
    if constraint not in KNOWN:
        raise ApiError(
            501, "notImplemented", f"The embedded cloud does not know the constraint {name!r}"
        )
    return constraint


def shown(constraint: str, found: dict | None) -> dict:
    return {"constraint": constraint, **({"etag": tag(found), **found} if found else {})}


async def get(cloud: Cloud, call: Call) -> dict:
    """What was set on the project, or, as the effective one, what is in force."""
    constraint = known((call.body or {}).get("constraint") or "")
    found = policies(cloud, call).get(constraint)
    if not call.method.endswith("getEffectiveOrgPolicy"):
        return shown(constraint, found)
    field, default = KNOWN[constraint]
    return {"constraint": constraint, **(found or {field: default})}


async def change(cloud: Cloud, call: Call) -> dict:
    """Set a policy on the project, or clear it."""
    body = call.body or {}
    policy = body.get("policy") or {} if call.method.endswith("setOrgPolicy") else None
    constraint = known((body if policy is None else policy).get("constraint") or "")
    there = policies(cloud, call)
    old = there.get(constraint)
    if is_stale((body if policy is None else policy).get("etag"), tag(old) if old else ""):
        raise aborted()
    there.pop(constraint, None)
    if policy is not None:
        field = KNOWN[constraint][0]
        if field not in policy:
            raise refused(f"Policy for {constraint} must have a {field}.")
        there[constraint] = {field: policy[field]}
    cloud.save_projects()
    return shown(constraint, there.get(constraint)) if policy is not None else {}

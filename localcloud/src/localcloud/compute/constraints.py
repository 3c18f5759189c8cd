"""What a project's organisation policies forbid of machines: external addresses, doing without OS
Login, and places.

Google's words for the first and the last are known from reports; those for the second are ours.
All public images here can be Shielded VMs, so that nothing is refused for lack of that.
"""

from __future__ import annotations

from collections.abc import Iterable

from localcloud.compute.state import Compute
from localcloud.errors import ApiError

EXTERNAL, OS_LOGIN = "constraints/compute.vmExternalIpAccess", "constraints/compute.requireOsLogin"


LOCATIONS = "constraints/gcp.resourceLocations"


def in_force(compute: Compute, project: str, constraint: str) -> dict:
    return compute.projects[project].get("org_policies", {}).get(constraint, {})


def check_instance(compute: Compute, project: str, zone: str, body: dict) -> None:
    """Refuse a machine that the project may not have."""
    check_place(compute, project, zone, body["name"])
    has_address = any(
        interface.get("accessConfigs") for interface in body.get("networkInterfaces") or []
    )
    if has_address:
        check_address(compute, project, f"projects/{project}/zones/{zone}/instances/{body['name']}")
    check_metadata(compute, project, (body.get("metadata") or {}).get("items") or [])


def check_place(compute: Compute, project: str, zone: str, name: str) -> None:
    """Refuse a zone that is in none of the places that the project may use."""
    allowed = in_force(compute, project, LOCATIONS).get("listPolicy", {}).get("allowedValues")
    region, continent = zone.rpartition("-")[0], zone.partition("-")[0]
    groups = [f"in:{each}-locations" for each in (zone, region, continent)]
    if allowed and not {zone, region, *groups} & {*allowed}:
        path = f"projects/{project}/zones/{zone}/instances/{name}"
        message = f"Location ZONE:{zone} violates constraint {LOCATIONS} on the resource {path}."
        raise ApiError(412, "conditionNotMet", message)


def check_address(compute: Compute, project: str, path: str) -> None:
    """Refuse a machine an external address that the project gives none."""
    number = compute.projects[project]["number"]
    policy = in_force(compute, project, EXTERNAL).get("listPolicy", {})
    if not may_have_address(policy, path):
        message = f"Constraint {EXTERNAL} violated for project {number}. Add instance {path} to the constraint to use"
        raise ApiError(412, "conditionNotMet", f"{message} external IP with it.")


def may_have_address(policy: dict, path: str) -> bool:
    if allowed := policy.get("allowedValues"):
        return path in allowed
    return policy.get("allValues") != "DENY" and path not in policy.get("deniedValues", [])


def check_metadata(compute: Compute, project: str, items: Iterable[dict]) -> None:
    """Refuse metadata of a machine or a project that turns OS Login off where it is required."""
    if not in_force(compute, project, OS_LOGIN).get("booleanPolicy", {}).get("enforced"):
        return
    if any(
        item.get("key") == "enable-oslogin"
        and item.get("value", "").lower() in ("false", "n", "no", "0")
        for item in items
    ):
        number = compute.projects[project]["number"]
        message = f"Constraint {OS_LOGIN} violated for project {number}. The metadata key enable-oslogin must not be"
        raise ApiError(412, "conditionNotMet", f"{message} set to FALSE.")

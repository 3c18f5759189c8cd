"""Resource policies: those for workloads, which say what topology of TPUs the machines of a group
form, and those for placement close together, which are kept and shown, and place nothing.

Not covered: snapshot schedules, maintenance policies, machines apart, distances; all of them are refused with 501.
"""

from __future__ import annotations

import re

from localcloud.call import Call
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_description,
    check_name,
    invalid,
    not_found,
    served,
    written,
)
from localcloud.compute.fields import honoured
from localcloud.compute.listing import listed
from localcloud.compute.state import Compute
from localcloud.compute.templates import change
from localcloud.errors import ApiError

TOPOLOGY = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*){1,2}")  # two or three sides, none of them 0
WORKLOAD = ("type", "acceleratorTopology", "acceleratorTopologyMode")


async def insert_policy(compute: Compute, call: Call) -> dict:
    project, region = call.params["project"], call.params["region"]
    body = written({"$ref": "ResourcePolicy"}, call.body)
    check_name("resource.name", body.get("name", ""))
    check_description(body)
    honoured("resource", body, ("name", "description", *KINDS))
    given = [kind for kind in KINDS if body.get(kind)]
    if len(given) != 1:
        why = f"Resource policy must have one of [{', '.join(KINDS)}]."
        raise invalid("resource", "", why)
    (kind,) = given
    about = KINDS[kind](body[kind])
    path = f"projects/{project}/regions/{region}/resourcePolicies/{body['name']}"
    if (project, region, body["name"]) in compute.policies:
        raise already_exists(path)
    row = {
        "kind": "compute#resourcePolicy",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "name": body["name"],
        "description": body.get("description", ""),
        "region": f"{LINK}projects/{project}/regions/{region}",
        "status": "READY",
        kind: about,
        "selfLink": LINK + path,
    }

    def keep() -> None:
        compute.policies[project, region, row["name"]] = row
        compute.write("policies", row["id"], row)

    return change(compute, call, "insert", path, row["id"], keep)


def check_workload(workload: dict) -> dict:
    field, topology = "resource.workloadPolicy", workload.get("acceleratorTopology", "")
    honoured(field, workload, WORKLOAD)
    served(f"{field}.type", workload.get("type"), "HIGH_THROUGHPUT")
    if not TOPOLOGY.fullmatch(topology):
        why = "Must be sizes joined by x, such as 4x4."
        raise invalid(f"{field}.acceleratorTopology", topology, why)
    return {"acceleratorTopologyMode": "AUTO_CONNECT", **workload}


def check_placement(placement: dict) -> dict:
    """Machines close together."""
    served("resource.groupPlacementPolicy", placement, {"collocation": "COLLOCATED"})
    return placement


KINDS = {"workloadPolicy": check_workload, "groupPlacementPolicy": check_placement}


def find(compute: Compute, project: str, region: str, name: str) -> dict:
    if (project, region, name) not in compute.policies:
        raise not_found(f"projects/{project}/regions/{region}/resourcePolicies/{name}")
    return compute.policies[project, region, name]


async def get_policy(compute: Compute, call: Call) -> dict:
    params = call.params
    return find(compute, params["project"], params["region"], params["resourcePolicy"])


async def list_policies(compute: Compute, call: Call) -> dict:
    rows = [
        (key[1], row) for key, row in compute.policies.items() if key[0] == call.params["project"]
    ]
    return listed(call, "resourcePolicy", "regions", rows, "resourcePolicies")


async def delete_policy(compute: Compute, call: Call) -> dict:
    row = await get_policy(compute, call)
    path = row["selfLink"].removeprefix(LINK)
    users = [each.path for each in compute.groups.values() if each.policy == row["selfLink"]]
    machines = compute.instances.values()
    users += [
        each.path
        for each in machines
        if row["selfLink"] in each.resource.get("resourcePolicies", [])
    ]
    if users:
        message = f"The resource_policy resource '{path}' is already being used by '{users[0]}'"
        raise ApiError(400, "resourceInUseByAnotherResource", message)

    def forget() -> None:
        del compute.policies[call.params["project"], call.params["region"], row["name"]]
        compute.drop("policies", row["id"])

    return change(compute, call, "delete", path, row["id"], forget)


HANDLERS = {
    "resourcePolicies.insert": insert_policy,
    "resourcePolicies.get": get_policy,
    "resourcePolicies.aggregatedList": list_policies,
    "resourcePolicies.delete": delete_policy,
}

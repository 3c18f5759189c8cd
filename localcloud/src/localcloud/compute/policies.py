"""Resource policies: those for workloads, which say what topology of TPUs the machines of a group
form, and those for placement close together, which are kept and shown, and place nothing.

Not covered: snapshot schedules, maintenance policies, machines apart, distances; all of them are refused with 501.
"""

import re

from localcloud.call import Call
from localcloud.compute.checks import (
    LINK,
    check_description,
    check_name,
    in_use,
    invalid,
    served,
    written,
)
from localcloud.compute.fields import honoured
from localcloud.compute.operations import delete, insert
from localcloud.compute.state import Compute

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
    row = {
        "kind": "compute#resourcePolicy",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "name": body["name"],
        "description": body.get("description", ""),
        "region": f"{LINK}projects/{project}/regions/{region}",
        "status": "READY",
        kind: about,
        "selfLink": f"{LINK}projects/{project}/regions/{region}/resourcePolicies/{body['name']}",
    }
    return insert(compute, call, "policies", row)


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


async def delete_policy(compute: Compute, call: Call) -> dict:
    project, region, name = (call.params[key] for key in ("project", "region", "resourcePolicy"))
    row = compute.row("policies", f"projects/{project}/regions/{region}/resourcePolicies/{name}")
    users = [each.path for each in compute.groups.values() if each.policy == row["selfLink"]]
    machines = compute.instances.values()
    users += [
        each.path
        for each in machines
        if row["selfLink"] in each.resource.get("resourcePolicies", [])
    ]
    if users:
        raise in_use("resource_policy", row, users[0])
    return delete(compute, call, "policies", row)


HANDLERS = {
    "resourcePolicies.insert": insert_policy,
    "resourcePolicies.delete": delete_policy,
}

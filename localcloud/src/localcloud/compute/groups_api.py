"""The methods of managed instance groups; groups.py does what they say and lists what is
not covered.

A field of a group that is not honoured here is refused with 501, not ignored.
"""

import random
import re
import string
from collections import Counter
from typing import Any

from localcloud import schema
from localcloud.call import Call
from localcloud.compute import catalog, checks, slices, templates
from localcloud.compute import groups as compute_groups
from localcloud.compute.checks import LINK
from localcloud.compute.fields import honoured
from localcloud.compute.listing import listed
from localcloud.compute.operations import begin_operation, change
from localcloud.compute.state import Compute, Group
from localcloud.errors import ApiError

MOST = 2000  # members of a group
HONOURED = (
    "name",
    "description",
    "baseInstanceName",
    "targetSize",
    "instanceTemplate",
    "updatePolicy",
    "allInstancesConfig",
    "instanceLifecyclePolicy",
)
UPDATES = ("type", "instanceRedistributionType")

# --- from the body of an insert to a group


async def insert_group(compute: Compute, call: Call) -> dict:
    project, zone = call.params["project"], call.params.get("zone", "")
    region = call.params.get("region") or catalog.ZONES[zone]
    body = checks.written({"$ref": "InstanceGroupManager"}, call.body)
    checks.check_description(body)
    honoured("resource", body, (*HONOURED, *(slices.OWN if zone else ("distributionPolicy",))))
    honoured("resource.updatePolicy", body.get("updatePolicy") or {}, UPDATES)
    template = template_of(compute, project, body)
    group = Group(project, region, {"name": body["name"]}, {}, zone=zone)
    if group.key in compute.groups:
        raise checks.already_exists(group.path)
    size = check_size("resource.targetSize", body["targetSize"])
    made_from = compute.row("templates", template)
    if zone:
        own: dict[str, Any] = {"zone": f"{LINK}projects/{project}/zones/{zone}"}
        own |= slices.check(compute, project, region, body, made_from)
    else:
        own = {"region": f"{LINK}projects/{project}/regions/{region}"}
        own["distributionPolicy"] = check_distribution(project, region, body)
    group.resource = {
        "kind": "compute#instanceGroupManager",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "name": group.name,
        "description": body.get("description", ""),
        **own,
        "instanceTemplate": template,
        "versions": [{"instanceTemplate": template}],
        "instanceGroup": f"{LINK}projects/{project}/{group.place}/instanceGroups/{group.name}",
        "baseInstanceName": check_base_name(body.get("baseInstanceName", group.name[:58])),
        "fingerprint": checks.fingerprint(body),
        "targetSize": 0,
        "selfLink": LINK + group.path,
        "updatePolicy": update_policy(body),
        "instanceLifecyclePolicy": check_lifecycle(body),
        "listManagedInstancesResults": "PAGELESS",
        **(
            {"allInstancesConfig": check_all_instances(body)}
            if body.get("allInstancesConfig")
            else {}
        ),
    }

    names = new_names(group, size)
    if group.is_slice:
        slices.check_size(compute, group, size)

    def begin() -> None:
        compute.groups[group.key] = group
        compute_groups.add(compute, group, names)

    return change(compute, call, "insert", group.path, group.resource["id"], begin)


def template_of(compute: Compute, project: str, body: dict) -> str:
    """The link of the template that a group shall use."""
    link = body.get("instanceTemplate", "")
    match = re.fullmatch(r"(?:.*projects/([^/]+)/)?global/instanceTemplates/([^/]+)", link)
    if not match:
        raise checks.invalid("resource.instanceTemplate", link, "The URL is malformed.")
    path = f"projects/{match[1] or project}/global/instanceTemplates/{match[2]}"
    return compute.row("templates", path)["selfLink"]


def check_size(field: str, size: int) -> int:
    if not 0 <= size <= MOST:
        raise checks.invalid(field, size, f"Must be between 0 and {MOST}.")
    return size


def check_base_name(name: str) -> str:
    if not re.fullmatch("[a-z][-a-z0-9]{0,57}", name):
        raise checks.invalid(
            "resource.baseInstanceName", name, "Must be a match of regex '[a-z][-a-z0-9]{0,57}'"
        )
    return name


def check_distribution(project: str, region: str, body: dict) -> dict:
    """Where the machines of a group may be."""
    given, field = body.get("distributionPolicy") or {}, "resource.distributionPolicy"
    shape = given.get("targetShape")
    checks.served(f"{field}.targetShape", shape, "ANY", "ANY_SINGLE_ZONE")
    zones = [checks.last(row["zone"]) for row in given.get("zones") or []]
    for zone in zones:
        if catalog.ZONES.get(zone) != region:
            raise checks.invalid(f"{field}.zones", zone, f"Zone must be in region '{region}'.")
        if zones.count(zone) > 1:
            raise checks.invalid(f"{field}.zones", zone, "Zones must be distinct.")
    if update_policy(body)["instanceRedistributionType"] != "NONE":
        why = "Must be EVEN unless updatePolicy.instanceRedistributionType is NONE."
        raise checks.invalid(f"{field}.targetShape", shape, why)
    links = [{"zone": f"{LINK}projects/{project}/zones/{zone}"} for zone in zones]
    return {"zones": links, "targetShape": shape}


def update_policy(body: dict) -> dict:
    default = {
        "type": "OPPORTUNISTIC",
        "instanceRedistributionType": "PROACTIVE",
        "minimalAction": "REPLACE",
    }
    return {**default, **body.get("updatePolicy", {})}


def check_lifecycle(body: dict) -> dict:
    policy = {
        "defaultActionOnFailure": "REPAIR",
        "forceUpdateOnRepair": "NO",
        **body.get("instanceLifecyclePolicy", {}),
    }
    if policy.get("onRepair", {}).get("allowChangingZone") == "YES":
        shape = body.get("distributionPolicy", {}).get("targetShape")
        if policy["forceUpdateOnRepair"] != "YES" or shape != "ANY":
            why = "Needs forceUpdateOnRepair YES, and a distributionPolicy.targetShape of ANY or BALANCED."
            raise checks.invalid(
                "resource.instanceLifecyclePolicy.onRepair.allowChangingZone", "YES", why
            )
    return policy


def check_all_instances(body: dict) -> dict:
    properties = body["allInstancesConfig"].get("properties", {})
    honoured("resource.allInstancesConfig.properties", properties, ("labels", "metadata"))
    checks.check_labels(properties.get("labels", {}))
    checks.check_metadata(
        {"items": [{"key": k, "value": v} for k, v in properties.get("metadata", {}).items()]}
    )
    return body["allInstancesConfig"]


def new_names(group: Group, count: int) -> list[str]:
    """Names as Google makes them: the base name and four random characters."""
    names: set[str] = set()
    while len(names) < count:
        end = "".join(random.choices(string.ascii_lowercase + string.digits, k=4))
        names |= {f"{group.resource['baseInstanceName']}-{end}"} - group.members.keys()
    return sorted(names)


# --- groups that there are


def group_of(compute: Compute, call: Call) -> Group:
    project, name = call.params["project"], call.params["instanceGroupManager"]
    kind = "zone" if "zone" in call.params else "region"
    where = call.params[kind]
    if (project, where, name) not in compute.groups:
        raise checks.not_found(f"projects/{project}/{kind}s/{where}/instanceGroupManagers/{name}")
    return compute.groups[project, where, name]


def open_group(compute: Compute, call: Call) -> Group:
    """A group that can still be changed."""
    group = group_of(compute, call)
    if group.deletion:
        raise ApiError(400, "resourceNotReady", f"The resource '{group.path}' is not ready")
    return group


def shown(compute: Compute, group: Group) -> dict:
    """A group with what its members do."""
    actions = schema.load("compute").schemas["InstanceGroupManagerActionsSummary"]["properties"]
    counts = Counter(member["action"].lower() for member in group.members.values())
    version, size = group.resource["versions"][0], group.resource["targetSize"]
    return {
        **group.resource,
        "versions": [{**version, "targetSize": {"calculated": size}}],
        "currentActions": {action: counts[action] for action in actions},
        "status": {
            "isStable": counts["none"] == len(group.members) and not group.deletion,
            "versionTarget": {"isReached": True},
            "stateful": {"hasStatefulConfig": False, "perInstanceConfigs": {"allEffective": True}},
            **(slices.status(compute, group) if group.is_slice else {}),
        },
    }


async def get_group(compute: Compute, call: Call) -> dict:
    return shown(compute, group_of(compute, call))


async def list_groups(compute: Compute, call: Call) -> dict:
    groups = [group for group in compute.groups.values() if group.project == call.params["project"]]
    rows = [(group.place, shown(compute, group)) for group in groups]
    return listed(call, "instanceGroupManager", "everywhere", rows)


async def delete_group(compute: Compute, call: Call) -> dict:
    """The operation ends when all members are gone."""
    group = open_group(compute, call)
    operation = begin_operation(compute, call, "delete", group.path, group.resource["id"])
    error = compute.faults.take_operation_error(call.method)
    if error:
        return compute.finish(operation, error)
    group.deletion = operation["name"]
    compute_groups.remove(compute, group, compute_groups.wanted(group))
    compute.in_background(compute_groups.delete(compute, group))
    return operation


# --- members


def change_members(
    compute: Compute, call: Call, group: Group, more: list[str], fewer: list[str]
) -> dict:
    if group.is_slice:
        slices.check_size(compute, group, group.resource["targetSize"] + len(more) - len(fewer))

    def work() -> None:
        compute_groups.add(compute, group, more)
        compute_groups.remove(compute, group, fewer)

    verb = call.method.rpartition(".")[2]
    return change(
        compute,
        call,
        f"compute.instanceGroupManagers.{verb}",
        group.path,
        group.resource["id"],
        work,
    )


async def create_instances(compute: Compute, call: Call) -> dict:
    group, rows = open_group(compute, call), (call.body or {}).get("instances") or []
    names = [row.get("name", "") for row in rows]
    if (
        group.resource["instanceLifecyclePolicy"].get("onRepair", {}).get("allowChangingZone")
        == "YES"
    ):
        why = "Not supported with per-instance configurations while onRepair.allowChangingZone is YES."
        raise checks.invalid("instances.name", names[0] if names else "", why)
    for row in rows:
        honoured("instances[]", row, ("name",))
    check_new_names(group, names, "instances.name")
    return change_members(compute, call, group, names, [])


async def delete_instances(compute: Compute, call: Call) -> dict:
    """Members go, and the group wants as many fewer; so none is made in their place."""
    group, body = open_group(compute, call), call.body or {}
    honoured("resource", body, ("instances", "skipInstancesOnValidationError"))
    names = []
    for link in body.get("instances") or []:
        name = checks.last(link)
        is_there = name in compute_groups.wanted(group)
        zonal = "/".join(link_of(compute, group, name).split("/")[-4:]) if is_there else None
        if zonal and link.endswith(zonal):
            names.append(name)
        elif not body.get("skipInstancesOnValidationError"):
            raise checks.invalid("instances", link, f"It is not a member of {group.path}.")
    return change_members(compute, call, group, [], names)


def check_new_names(group: Group, names: list[str], field: str) -> None:
    """Raise Google's error for what no new member of a group can be called."""
    for name in names:
        checks.check_name(field, name)
        if name in group.members or names.count(name) > 1:
            raise checks.already_exists(f"{group.path}/{name}")
    check_size("resource.targetSize", group.resource["targetSize"] + len(names))


def link_of(compute: Compute, group: Group, name: str) -> str:
    instance = compute_groups.found(compute, group, name)
    zone = instance.zone if instance else group.members[name]["zone"]
    return f"{LINK}projects/{group.project}/zones/{zone}/instances/{name}"


async def list_managed_instances(compute: Compute, call: Call) -> dict:
    group = group_of(compute, call)
    rows = [managed(compute, group, name) for name in sorted(group.members)]
    return {"managedInstances": rows}


def managed(compute: Compute, group: Group, name: str) -> dict:
    """A member as Google's ManagedInstance."""
    member, instance = group.members[name], compute_groups.found(compute, group, name)
    leaving = member["action"] == "DELETING"
    errors = member["errors"]
    row: dict[str, Any] = {
        "name": name,
        "instance": link_of(compute, group, name),
        "currentAction": member["action"],
        "targetStatus": "DELETED" if leaving else "RUNNING",
        "lastAttempt": {"errors": {"errors": errors}} if errors else {},
    }
    if not leaving:
        row["version"] = group.resource["versions"][0]
    if instance:
        row.update(id=instance.id, instanceStatus=instance.resource["status"])
    return row


MANAGER = {
    "insert": insert_group,
    "get": get_group,
    "delete": delete_group,
    "createInstances": create_instances,
    "deleteInstances": delete_instances,
    "listManagedInstances": list_managed_instances,
}
HANDLERS = {
    "instanceTemplates.insert": templates.insert_template,
    "instanceTemplates.delete": templates.delete_template,
    "instanceGroupManagers.aggregatedList": list_groups,
    **{f"regionInstanceGroupManagers.{verb}": handler for verb, handler in MANAGER.items()},
    **{f"instanceGroupManagers.{verb}": handler for verb, handler in MANAGER.items()},
}

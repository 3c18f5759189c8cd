"""Regional groups in BULK mode: one machine with TPUs that comes by flex-start once there is room.

Only `status.bulkInstanceOperation` of the group shows why there are none yet. The rules are those of
Google's page on this mode, the words are ours. Resize requests take no TPUs, so that this is how one
machine with TPUs waits for longer than its insert may.

Not covered: several machines that come together and are no slice (slices.py has those), machines
without TPUs, reservations.
"""

from __future__ import annotations

from localcloud.compute import checks, tpus
from localcloud.compute.checks import invalid, last
from localcloud.compute.state import Compute, Group


def check(body: dict, template: dict) -> dict:
    """What the resource of a regional group has of its mode."""
    mode = (body.get("targetSizePolicy") or {}).get("mode", "")
    if mode != "BULK":
        return {"targetSizePolicy": {"mode": mode}} if mode else {}
    properties = template["properties"]
    model = properties.get("scheduling", {}).get("provisioningModel", "STANDARD")
    if model == "RESERVATION_BOUND":
        raise checks.missing("resource.targetSizePolicy.mode BULK with a reservation")
    if model != "FLEX_START":
        why = f"It needs the provisioning model RESERVATION_BOUND or FLEX_START, not {model}."
        raise invalid("resource.targetSizePolicy.mode", mode, why)
    if last(properties["machineType"]) not in tpus.MACHINE_TYPES:
        raise checks.missing("resource.targetSizePolicy.mode BULK for machines without TPUs")
    shape = (body.get("distributionPolicy") or {}).get("targetShape", "EVEN")
    if shape != "ANY_SINGLE_ZONE":
        why = "It must be ANY_SINGLE_ZONE in BULK mode."
        raise invalid("resource.distributionPolicy.targetShape", shape, why)
    action = (body.get("instanceLifecyclePolicy") or {}).get("defaultActionOnFailure", "REPAIR")
    if action != "DO_NOTHING":
        why = "Repairs must be turned off (DO_NOTHING) for flex-start in BULK mode."
        raise invalid("resource.instanceLifecyclePolicy.defaultActionOnFailure", action, why)
    return {"targetSizePolicy": {"mode": mode}}


def applies(group: Group) -> bool:
    """Whether a group that is no slice is in BULK mode."""
    return not group.is_slice and group.resource.get("targetSizePolicy") == {"mode": "BULK"}


def check_change(group: Group, more: list[str]) -> None:
    """Raise an error for members that a group in BULK mode cannot get now."""
    size = group.resource["targetSize"]
    if more and size:
        why = "In BULK mode instances are added only to a group that has none."
        raise invalid("targetSize", size + len(more), why)
    if len(more) > 1:
        raise checks.missing("targetSize above 1 in BULK mode without a workload policy")


def status(compute: Compute, group: Group) -> dict:
    """How the machine comes."""
    coming = [each for each in group.members.values() if not each["created"]]
    errors = [error for each in coming for error in each["errors"]]
    check: dict[str, object] = {"timestamp": compute.timestamp()}
    if errors:
        check["error"] = {"errors": errors}
    is_coming = bool(coming) and not group.deletion
    return {"bulkInstanceOperation": {"inProgress": is_coming, "lastProgressCheck": check}}

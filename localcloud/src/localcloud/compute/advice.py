"""Advice on capacity: how likely Spot machines are to be had in zones, and how long they last.

What is answered is the stockouts' opposite: a zone without room is unlikely, all others are likely,
and of its machines more were preempted. Of history Google has the last 30 days, of machine types
alone: not of N1 with GPUs, nor of custom ones and TPUs.

Not covered: other provisioning models, several kinds of machines at once, the history of prices,
calendars.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from localcloud.call import Call
from localcloud.compute import catalog
from localcloud.compute.checks import LINK, invalid, last, missing
from localcloud.compute.fields import honoured
from localcloud.compute.state import Compute

LIKELY = {"obtainability": 0.8, "estimatedUptime": "14400s"}
UNLIKELY = {"obtainability": 0.2, "estimatedUptime": "600s"}
PREEMPTED, OFTEN_PREEMPTED = 0.12, 0.6
DAYS = 30  # of history
SHAPES = ("ANY", "ANY_SINGLE_ZONE", "BALANCED")


async def capacity(compute: Compute, call: Call) -> dict:
    region, body = call.params["region"], call.body or {}
    honoured(
        "", body, ("instanceProperties", "instanceFlexibilityPolicy", "size", "distributionPolicy")
    )
    model = check_model(body)
    if int(body.get("size", 0)) < 1:
        raise invalid("size", body.get("size", 0), "Must be positive.")
    policy = body.get("distributionPolicy") or {}
    if policy.get("targetShape") not in SHAPES:
        raise invalid(
            "distributionPolicy.targetShape", policy.get("targetShape", ""), "Must be given."
        )
    zones = [last(each.get("zone", "")) for each in policy.get("zones", [])]
    zones = zones or [zone for zone, its in catalog.ZONES.items() if its == region]
    for zone in zones:
        if catalog.ZONES.get(zone) != region:
            raise invalid("distributionPolicy.zones", zone, f"Must be zones of {region}.")
    kind = machine_type(zones[0], body)
    best = max(zones, key=lambda zone: compute.stockouts.get(zone, 1))
    scores = LIKELY if compute.stockouts.get(best, 1) > 0 else UNLIKELY
    shard = {"zone": best, "machineType": kind, "instanceCount": int(body["size"])}
    return {
        "recommendations": [{"scores": scores, "shards": [{**shard, "provisioningModel": model}]}]
    }


def machine_type(zone: str, body: dict) -> str:
    """The one machine type that is asked about."""
    selections = (body.get("instanceFlexibilityPolicy") or {}).get("instanceSelections") or {}
    kinds = [kind for each in selections.values() for kind in each.get("machineTypes", [])]
    if len(kinds) != 1:
        raise missing("instanceFlexibilityPolicy.instanceSelections but one machine type")
    found = catalog.machine_type(zone, kinds[0])
    if found is None or found.is_tpu:
        raise invalid("instanceFlexibilityPolicy.instanceSelections", kinds[0], "Not supported.")
    return kinds[0]


def check_model(body: dict) -> str:
    """Return the provisioning model that is asked about: there is one alone."""
    model = body.get("instanceProperties", {}).get("scheduling", {}).get("provisioningModel", "")
    if model != "SPOT":
        raise invalid("instanceProperties.scheduling.provisioningModel", model, "Must be SPOT.")
    return str(model)


async def history(compute: Compute, call: Call) -> dict:
    project, region, body = call.params["project"], call.params["region"], call.body or {}
    honoured("", body, ("instanceProperties", "locationPolicy", "types"))
    check_model(body)
    types = body.get("types") or []
    if "PRICE" in types:
        raise missing("types PRICE")
    if types != ["PREEMPTION"]:
        raise invalid("types", types, "Must be given.")
    where = last(body.get("locationPolicy", {}).get("location", region))
    zones = [zone for zone, its in catalog.ZONES.items() if where in (zone, its)]
    if not zones or catalog.ZONES[zones[0]] != region:
        raise invalid("locationPolicy.location", where, f"Must be {region} or a zone of it.")
    properties = body["instanceProperties"]
    kind = properties.get("machineType", "")
    found = catalog.machine_type(zones[0], kind) if "custom" not in kind else None
    if found is None or found.is_tpu or properties.get("guestAccelerators"):
        raise invalid("instanceProperties.machineType", kind, "Not supported.")
    is_rare = all(compute.stockouts.get(zone, 1) <= 0 for zone in zones)
    today = datetime.fromtimestamp(compute.now(), timezone.utc).replace(hour=0, minute=0, second=0)
    begins = [today - timedelta(days=day) for day in range(DAYS, 0, -1)]
    return {
        "machineType": kind,
        "location": f"{LINK}projects/{project}/{'zones' if where in zones else 'regions'}/{where}",
        "preemptionHistory": [
            {
                "interval": {
                    "startTime": day.isoformat(timespec="seconds"),
                    "endTime": (day + timedelta(days=1)).isoformat(timespec="seconds"),
                },
                "preemptionRate": OFTEN_PREEMPTED if is_rare else PREEMPTED,
            }
            for day in begins
        ],
    }


HANDLERS = {"advice.capacity": capacity, "advice.capacityHistory": history}

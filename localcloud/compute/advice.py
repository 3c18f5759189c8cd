"""Advice on capacity: how likely Spot machines are to be had in zones, and how long they last.

What is answered is the stockouts' opposite: a zone without room is unlikely, all others are likely.

Not covered: other provisioning models, several kinds of machines at once, history, calendars.
"""

from __future__ import annotations

from localcloud.call import Call
from localcloud.compute import catalog
from localcloud.compute.checks import invalid, last, missing
from localcloud.compute.fields import honoured
from localcloud.compute.state import Compute

LIKELY = {"obtainability": 0.8, "estimatedUptime": "14400s"}
UNLIKELY = {"obtainability": 0.2, "estimatedUptime": "600s"}
SHAPES = ("ANY", "ANY_SINGLE_ZONE", "BALANCED")


async def capacity(compute: Compute, call: Call) -> dict:
    region, body = call.params["region"], call.body or {}
    honoured(
        "", body, ("instanceProperties", "instanceFlexibilityPolicy", "size", "distributionPolicy")
    )
    model = body.get("instanceProperties", {}).get("scheduling", {}).get("provisioningModel", "")
    if model != "SPOT":
        raise invalid("instanceProperties.scheduling.provisioningModel", model, "Must be SPOT.")
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


HANDLERS = {"advice.capacity": capacity}

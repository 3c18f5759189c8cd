"""Flex-start: a machine that waits for room, and for quota, for as long as its insert says.

While it waits the instance is PENDING and its operation runs. When the wait runs out the instance is
gone, and only the operation shows why. Deleting the instance gives up its place.

Not covered: the order in which Google serves who waits. Several machines at once are
resize_requests.py's.
"""

import asyncio

from localcloud.compute import quotas
from localcloud.compute.checks import invalid
from localcloud.compute.state import Compute, Instance
from localcloud.errors import unserved

SHORTEST, LONGEST = 90, 7200  # seconds of requestValidForDuration
LOOK = 0.05  # seconds between two looks whether there is room
ROOM = ("QUOTA_EXCEEDED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")
FIELD = "resource.params.requestValidForDuration"


def valid_seconds(params: dict, model: str) -> float:
    """Return how long an insert waits for room; 0 for not at all. Raise Google's error for what no
    insert may say.
    """
    for key, value in params.items():
        unserved(key != "requestValidForDuration" and value, f"resource.params.{key}")
    if "requestValidForDuration" not in params:
        return 0.0
    seconds = int(params["requestValidForDuration"].get("seconds", 0))
    if model != "FLEX_START":
        raise invalid(FIELD, seconds, "It is for instances with flex-start.")
    if not SHORTEST <= seconds <= LONGEST:
        why = f"It must be between {SHORTEST} seconds and {LONGEST} seconds."
        raise invalid(FIELD, seconds, why)
    return float(seconds)


async def room(compute: Compute, instance: Instance) -> dict | None:
    """Wait until there is room for an instance; return why there was none in time.

    The instance may have been deleted meanwhile.
    """
    ends = compute.now() + instance.valid_seconds / compute.settings.hurry
    error = quotas.shortage(compute, instance)
    while error and compute.is_there(instance) and compute.now() < ends:
        await asyncio.sleep(LOOK)
        error = quotas.shortage(compute, instance)
    return error

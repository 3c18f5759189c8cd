"""The pods that controllers make for what owns them: a refused pod becomes an event of the
owner and is retried with increasing delays.
"""

from __future__ import annotations

import time

from localcloud.kubernetes.kinds import Refusal
from localcloud.kubernetes.plane import Plane

FIRST, LONGEST = 1.0, 60.0  # seconds between two tries


def make(plane: Plane, owner: dict, body: dict, by: str) -> dict | None:
    """Make a pod for its owner; None if the cluster refuses it, or has just refused one."""
    meta = owner["metadata"]
    key = f"refused {meta['uid']}"
    memory = plane.memory.get(key, {"until": 0.0, "pause": FIRST})
    if time.monotonic() < memory["until"]:
        return None
    try:
        made = plane.create("pods", meta["namespace"], body)
    except Refusal as refusal:
        pause = memory["pause"]
        plane.memory[key] = {"until": time.monotonic() + pause, "pause": min(2 * pause, LONGEST)}
        plane.event(owner, "FailedCreate", f"Error creating: {refusal}", "Warning", by)
        return None
    plane.memory.pop(key, None)
    plane.event(owner, "SuccessfulCreate", f"Created pod: {made['metadata']['name']}", by=by)
    return made

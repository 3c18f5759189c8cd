"""Machines by flex-start that may wait for long: Google's queue holds the request for all of them,
and makes them all at once.

A job's group is a regional managed instance group of its name, which Google repairs nothing in; its
one resize request, of the same name, waits in the queue without end and at no cost until one of the
group's zones has room for all machines, and quota for them. Who deletes the group takes the request
back. One machine that need not wait longer than two hours does so by itself (instances.py), slices
of TPUs in BULK mode (places/tpu.py).
"""

import time
from collections.abc import Callable
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api, groups
from berg.words import plural

SHORTEST = 600  # seconds that Google lets machines run at least
NOT_REPAIRED = {"defaultActionOnFailure": "DO_NOTHING"}


def requests(
    config: Config, zones: list[str], body: dict[str, Any], names: list[str]
) -> dict[str, dict[str, Any]]:
    """Return the bodies of the requests for machines of these names, from the body of an insert."""
    found = groups.requests(config, zones, body, names)
    found.pop("members", None)
    found["group"]["targetSize"] = 0
    found["group"]["instanceLifecyclePolicy"] = NOT_REPAIRED
    found["group"]["distributionPolicy"]["targetShape"] = "ANY_SINGLE_ZONE"
    seconds = int(body["scheduling"]["maxRunDuration"]["seconds"])
    found["request"] = {
        "name": groups.job_of(names),
        "requestedRunDuration": {"seconds": str(max(seconds, SHORTEST))},
        "instances": [{"name": each} for each in names],
    }
    return found


def create(
    config: Config,
    zones: list[str],
    body: dict[str, Any],
    names: list[str],
    say: Callable[[str], None],
) -> str:
    """Ask for a job's machines; return their zone, or "" while the request is in Google's queue.

    Raises BergError for what waiting does not mend.
    """
    region, job = zones[0].rpartition("-")[0], groups.job_of(names)
    bodies = requests(config, zones, body, names)
    say(f"Asking Google for {plural(len(names), 'machine')} together in {', '.join(zones)}")
    groups.make(config, region, bodies, "resizeRequests", bodies["request"])
    end = time.monotonic() + groups.PATIENCE
    while time.monotonic() < end:
        asked = find(config, region, job)
        if asked["state"] == "SUCCEEDED":
            return groups.member(config, region, job)[0]
        if asked["state"] == "FAILED":
            raise BergError(f"Google made no machine, and none was left behind.\n  {why(asked)}")
        if "lastAttempt" in asked.get("status", {}):
            break
        time.sleep(0.5)
    return ""


def find(config: Config, region: str, job: str) -> dict[str, Any]:
    """Return the request of a job's group; raises NotFound if there is none."""
    return api.call(config, "GET", f"{groups.path_of(region, job)}/resizeRequests/{job}")


def why(asked: dict[str, Any]) -> str:
    """Return why a request failed, in Google's words; "" if it did not."""
    errors = asked.get("status", {}).get("error", {}).get("errors", [])
    return "; ".join(each.get("message", each.get("code", "")) for each in errors)


def why_failed(config: Config, region: str, job: str) -> str:
    """Return why a job's request failed, in Google's words; "" if there is no such request."""
    from google.api_core import exceptions

    try:
        return why(find(config, region, job))
    except exceptions.NotFound:
        return ""

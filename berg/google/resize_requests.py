"""Machines by flex-start that may wait for long: Google's queue holds the request for all of them,
and makes them all at once.

A job's group is a regional managed instance group of its name, which Google repairs nothing in; its
one resize request, of the same name, waits in the queue without end and at no cost until one of the
group's zones has room for all machines, and quota for them. Who deletes the group takes the request
back. Resize requests are not for TPUs: one machine with them waits so in a group in BULK mode. One
machine that need not wait longer than two hours does so by itself (instances.py), slices
of TPUs are groups of their own (places/tpu.py).
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api, grants, groups, tpus
from berg.words import plural

SHORTEST = 600  # seconds that Google lets machines run at least
NOT_REPAIRED = {"defaultActionOnFailure": "DO_NOTHING"}


def requests(
    config: Config, zones: list[str], body: dict[str, Any], names: list[str]
) -> dict[str, dict[str, Any]]:
    """Return the bodies of the requests for machines of these names, from the body of an insert."""
    # Google does not apply what a group sets for all to the machines of a resize request.
    is_bulk = api.last_part(body["machineType"]) in tpus.MACHINE_TYPES
    found = groups.requests(config, zones, body, names, has_own_template=not is_bulk)
    members = [{"name": each} for each in names]
    found.pop("members", None)
    found["group"]["targetSize"] = 0
    found["group"]["instanceLifecyclePolicy"] = NOT_REPAIRED
    found["group"]["distributionPolicy"]["targetShape"] = "ANY_SINGLE_ZONE"
    if is_bulk:
        found["group"]["targetSizePolicy"] = {"mode": "BULK"}
        found["members"] = {"instances": members}
        return found
    seconds = int(body["scheduling"]["maxRunDuration"]["seconds"])
    found["request"] = {
        "name": groups.job_of(names),
        "requestedRunDuration": {"seconds": str(max(seconds, SHORTEST))},
        "instances": members,
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

    Raises BergError for what waiting does not fix.
    """
    from google.api_core import exceptions

    region, job = zones[0].rpartition("-")[0], groups.job_of(names)
    bodies = requests(config, zones, body, names)
    say(f"Asking Google for {plural(len(names), 'machine')} together in {', '.join(zones)}")
    if "members" in bodies:
        groups.make(config, region, bodies, "createInstances", bodies["members"])
        answer = answer_of_bulk
    else:
        with contextlib.suppress(exceptions.GoogleAPICallError, BergError):
            groups.delete_old_templates(config)
        groups.make(config, region, bodies, "resizeRequests", bodies["request"])
        answer = answer_of_request
    end = time.monotonic() + groups.PATIENCE
    while time.monotonic() < end:
        zone = answer(config, region, job)
        if zone is not None:
            return zone
        time.sleep(0.5)
    return ""


def answer_of_request(config: Config, region: str, job: str) -> str | None:
    """Return the zone in which a job's machines are made, "" if they wait for room, None if Google
    has not said so yet. Raise BergError if it gave up.
    """
    asked = find(config, region, job)
    if asked["state"] == "SUCCEEDED":
        return groups.member(config, region, job)[0]
    if asked["state"] == "FAILED":
        raise nothing_made(why(asked))
    return "" if "lastAttempt" in asked.get("status", {}) else None


def answer_of_bulk(config: Config, region: str, job: str) -> str | None:
    """Return the same of a group in BULK mode, which goes on whatever Google says: raise BergError
    for what no waiting fixes.
    """
    zone, _ = groups.member(config, region, job)
    if zone:
        return zone
    path = groups.path_of(region, job)
    status = api.call(config, "GET", path, fields="status").get("status", {})
    for failed in groups.bulk_errors(status):
        if failed.blocks:
            return ""
        if not grants.is_settling(config, failed):
            raise nothing_made(failed.explain(region))
    return None


def nothing_made(why: str) -> BergError:
    return BergError(f"Google made no machine, and none was left behind.\n  {why}")


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

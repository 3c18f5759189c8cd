"""How many requests a project may make in a minute: of those that Google calls heavy-weight reads.

Those are the aggregated lists, counted for the project, and the waits for operations, counted for
each region. A project that made too many is refused until the next full minute begins.
https://docs.cloud.google.com/compute/docs/api-rate-limits

Not covered: the other groups, which have some 1,500 requests a minute and more.
"""

from __future__ import annotations

import time
from collections import Counter

from localcloud.call import Call
from localcloud.compute import catalog
from localcloud.compute.state import Compute
from localcloud.errors import ApiError

METRIC, LIMIT = "heavy_weight_read_requests", "HeavyWeightReadRequestsPerMinute"


class Rates:
    """What was asked in this minute, by project and region."""

    def __init__(self) -> None:
        self.minute = 0.0
        self.counts: Counter[tuple[str, str]] = Counter()


def check(compute: Compute, rates: Rates, call: Call) -> None:
    """Count a request; raise Google's 403 for one too many."""
    verb = call.method.rpartition(".")[2]
    if verb not in ("aggregatedList", "wait") or call.method == "compute.globalOperations.wait":
        return
    zone = call.params.get("zone", "")
    region = call.params.get("region") or catalog.ZONES.get(zone, "")
    minute = time.time() // compute.settings.minute
    if minute != rates.minute:
        rates.minute, rates.counts = minute, Counter()
    project = call.params["project"]
    rates.counts[project, region] += 1
    if rates.counts[project, region] <= compute.settings.heavy_reads:
        return
    number = compute.projects[project]["number"]
    where, ending = (" per region", "PerRegion") if region else ("", "PerProject")
    metric = METRIC + ("_per_region" if region else "")
    message = (
        f"Quota exceeded for quota metric 'Heavy-weight read requests' and limit 'Heavy-weight read requests per "
        f"minute{where}' of service 'compute.googleapis.com' for consumer 'project_number:{number}'."
    )
    values = {
        "consumer": f"projects/{number}",
        "quota_limit": LIMIT + ending,
        "quota_limit_value": f"{compute.settings.heavy_reads:.0f}",
        "quota_location": region or "global",
        "quota_metric": f"compute.googleapis.com/{metric}",
        "service": "compute.googleapis.com",
    }
    reason = {"reason": "RATE_LIMIT_EXCEEDED", "domain": "googleapis.com", "metadata": values}
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", **reason}]
    raise ApiError(403, "rateLimitExceeded", message, domain="usageLimits", details=details)

"""What jobs cost by Google's list prices: an hour of them, so far, and in sum.

A job's record says what an hour of one of its machines costs, disk included, as the price list said
when it was submitted; a job counts from the moment its worker began until its end. What has no
price is unknown, and is counted apart, never as nothing.

Not covered: the minute in which a machine boots, traffic, addresses, what the bucket stores,
discounts, and what Google's bill says in the end.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import pairwise

from berg import job
from berg.config import Config
from berg.google import prices
from berg.google.prices import region_of
from berg.plan import Offer

PAID = ("STARTING", "INSTALLING", "RUNNING", "UPLOADING")


def rates(config: Config, offer: Offer, model: str) -> dict[str, float]:
    """Return USD for an hour of one of the machines of an offer, by the regions that it may be in.

    A region in which a part of it has no price is not among them. Asks Google once a day.
    """
    if offer.priced is None:
        return {}
    found = {}
    for region, listed in prices.latest(config, map(region_of, offer.zones)).items():
        hourly = rate(listed, offer, model)
        if hourly is not None:
            found[region] = hourly
    return found


def rate(listed: prices.Prices, offer: Offer, model: str) -> float | None:
    """Return USD for an hour of one machine of an offer, or of a pod: its share of its node."""
    if offer.priced is None:
        return None
    parts = [(listed.per_hour(offer.priced, model, offer.disk_gb), 1.0)]
    disk_type, gigabytes = offer.priced.node_disk
    if gigabytes:
        parts.append((listed.disk_per_hour(disk_type, gigabytes), 1.0))
    found = prices.total(parts)
    if found is None or not offer.is_shared:
        return found
    return found * offer.shape.num_gpus / offer.priced.num_gpus


def dearest(hourly: dict[str, float], zones: list[str]) -> float | None:
    """Return the highest rate of those zones' regions; None if one of them has none."""
    regions = set(map(region_of, zones))
    if not regions or regions - hourly.keys():
        return None
    return max(map(hourly.__getitem__, regions))


def rate_of(summary: job.Summary, zone: str) -> float | None:
    """Return USD for an hour of one of a job's machines in a zone; None if that is unknown."""
    if zone:
        return summary.rates.get(region_of(zone))
    return max(summary.rates.values(), default=None)


def so_far(state: job.State, running: int, begin: str = "") -> float | None:
    """Return USD that a job's machines have cost since a moment; None if their price is unknown.

    `running` is how many machines it has at the moment that are not off.
    """
    hourly = rate_of(state.job, state.zone)
    if hourly is None:
        return None
    return hourly * machine_hours(state, running, begin)


def total(costs: Iterable[float | None]) -> float | None:
    """Return the sum of what jobs cost; None if one of them is unknown."""
    found = 0.0
    for each in costs:
        if each is None:
            return None
        found += each
    return found


def machine_hours(state: job.State, running: int, begin: str = "") -> float:
    """Return the hours that all machines of a job had it, or stayed after it, since a moment."""
    changes = [(name, max(since, begin)) for name, since in state.history]
    end = max([state.synced_until, *(since for _, since in changes)])
    if running:
        end = job.now()
    spans = pairwise([*changes, ("", end)])
    seconds = sum(between(since, later) for (name, since), (_, later) in spans if name in PAID)
    seconds *= state.job.machines
    if changes and changes[-1][0] in job.FINAL:
        # Machines that stay after the job: kept, or ones that could not delete themselves.
        over = changes[-1][1]
        gone_at = [min(each, job.now()) for each in state.undeleted.values()][: state.job.machines]
        seconds += sum(between(over, each) for each in [job.now()] * running or gone_at)
    return seconds / 3600


def between(since: str, later: str) -> float:
    """Return the seconds between two moments as berg writes them; 0 for what is no moment."""
    try:
        return max(0.0, (moment(later) - moment(since)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


@dataclass
class Sum:
    """What the jobs of a user cost that were submitted in a week, or on a day."""

    begins: str  # the week's Monday, or the day
    user: str
    jobs: int = 0
    hours: float = 0.0  # of machines
    usd: float = 0.0  # of those whose price is known
    unknown: int = 0  # jobs whose price is not

    def add(self, state: job.State, running: int) -> None:
        """Count one more job."""
        cost = so_far(state, running)
        self.jobs += 1
        self.hours += machine_hours(state, running)
        self.usd += cost or 0.0
        self.unknown += cost is None


def on_day(told: list[tuple[job.State, int]], day: str) -> Sum:
    """Return what jobs cost on the day in UTC that is not over, whenever they were submitted."""
    found = Sum(day, "")
    for state, running in told:
        hours = machine_hours(state, running, f"{day}T00:00:00Z")
        cost = so_far(state, running, f"{day}T00:00:00Z")
        found.jobs += hours > 0
        found.hours += hours
        found.usd += cost or 0.0
        found.unknown += (hours > 0) * (cost is None)
    return found


def until_midnight(told: list[tuple[job.State, int]], now: datetime) -> float:
    """Return USD that jobs which are not over may still cost on the day of a moment, in UTC.

    That is what their machines may run by then; a job that has none yet counts as one that gets
    them now, but in a sweep, whose machines go on from job to job. Those of unknown price are not
    in it.
    """
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    left_today = (midnight - now).total_seconds() / 3600
    found = 0.0
    for state, running in told:
        hours, summary = left_today, state.job
        if state.state == job.STOPPED or (not running and (state.final or summary.sweep)):
            continue
        if summary.max_run_seconds and not summary.sweep:
            ran = machine_hours(state, running) / max(summary.machines, 1)
            hours = min(hours, max(summary.max_run_seconds / 3600 - ran, 0))
        found += (rate_of(summary, state.zone) or 0.0) * summary.machines * hours
    return found


def week_of(created_at: str) -> str:
    """Return the Monday of a moment's week, in UTC; "" for what is no moment."""
    try:
        then = moment(created_at).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return ""
    monday = then.toordinal() - then.weekday()
    return datetime.fromordinal(monday).strftime("%Y-%m-%d")


def weeks(told: list[tuple[job.State, int]]) -> list[Sum]:
    """Return sums by week and user, the newest first, of states and their running machines."""
    found: dict[tuple[str, str], Sum] = {}
    for state, running in told:
        key = (week_of(state.job.created_at), state.job.user)
        found.setdefault(key, Sum(*key)).add(state, running)
    return sorted(found.values(), key=lambda each: (each.begins, each.usd), reverse=True)

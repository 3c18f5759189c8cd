"""What jobs may cost: a ceiling for each, a budget for a day, and what a plan costs at most.

A ceiling becomes the time that a job's machines may live, which Google enforces, and which counts
all attempts of a job together. The budget is a question of manners: it is looked at when something
is submitted, with what runs already and may cost until the day ends, and stops nothing that runs.

Not covered: traffic, the bucket, and what others spend in the project; Google's own cap is for that
(`berg costs --spend-cap`).
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone

from berg import BergError, job, states
from berg.config import Config
from berg.google.storage import Bucket
from berg.laptop import jobs, spending
from berg.laptop.jobs import Entry
from berg.plan import Plan

THREADS = 16
LEAST = 300  # seconds; below that a machine would be paid for that hardly boots


def ceiling(plan: Plan, num_jobs: int) -> tuple[float, str]:
    """Return USD that a job may cost, or each of a sweep, and what says so; 0 for no limit.

    Only --max-cost raises or lifts the limit of the user's settings.
    """
    spec, of_all = plan.spec, max(num_jobs, 1)
    if spec.max_cost is not None:
        return spec.max_cost / of_all, "--max-cost"
    own, lower = plan.config.max_cost, spec.lower_cost / of_all
    if lower and not 0 < own <= lower:
        whose = "the repo" if plan.job.spec.defaults else "its first run"
        return lower, f"max-cost = {spec.lower_cost:g} of {whose}"
    return own, f"max_cost = {own} of your settings"


def limited(plan: Plan, num_jobs: int = 0) -> Plan:
    """Return a plan whose jobs end before they cost more than they may: a job, or so many of a
    sweep.

    Raise BergError where a price is unknown, or hardly any time is left.
    """
    usd, source = ceiling(plan, num_jobs)
    if not usd:
        return plan
    hourly = spending.dearest(plan.job.rates, plan.offer.zones)
    if plan.offer.reservation:
        raise BergError(
            "what is reserved costs the same whether it is used or not, so that nothing can keep "
            f"it below ${usd:,.2f}. Limit the time: --max-hours. Without a limit: --max-cost 0"
        )
    if hourly is None:
        raise BergError(
            f"what an hour costs in {', '.join(plan.offer.zones)} is unknown, so that nothing can "
            f"keep it below ${usd:,.2f}. See why: berg prices. Without a limit: --max-cost 0"
        )
    seconds = int(3600 * usd / (hourly * plan.job.num_machines))
    if seconds < LEAST:
        raise BergError(
            f"${usd:g} for a job is spent after {seconds} seconds, at ${hourly:,.2f} an hour "
            "for each machine: give more (--max-cost), or cheaper machines (berg prices)"
        )
    if seconds >= plan.job.max_run_seconds:
        return plan
    return replace(plan, job=replace(plan.job, max_run_seconds=seconds), limit=source)


def worst(plan: Plan, num_jobs: int = 0) -> float | None:
    """Return USD that a job or so many of a sweep cost at most; None if that is unknown."""
    hourly = spending.dearest(plan.job.rates, plan.offer.zones)
    if hourly is None:
        return None
    return hourly * (num_jobs or plan.job.num_machines) * plan.job.max_run_seconds / 3600


def question(plan: Plan, num_jobs: int = 0) -> str:
    """Return what to ask before a plan is carried out; "" if it costs too little for that, or
    nothing has a price of its own: what is reserved, and pods that any node may hold.
    """
    usd, bound = worst(plan, num_jobs), plan.config.ask_above
    if not bound or plan.offer.priced is None:
        return ""
    if usd is None:
        return (
            f"What this may cost is unknown, so that nobody can say whether it is over ${bound:,} "
            "(ask_above). Start it?"
        )
    if usd <= bound:
        return ""
    return f"This may cost ${usd:,.0f}. Start it?"


def vouched(config: Config, entries: list[Entry], today: str) -> list[tuple[job.State, int]]:
    """Return the states of my jobs that cost something on a day or may yet, and how many of their
    machines run.

    Any job may write another one's state. So what an hour costs, of how many machines and of whose
    comes from the job's metadata, which no machine can write, and no time is before the job was
    submitted or after now.
    """
    midnight, now, bucket = f"{today}T00:00:00Z", job.now(), Bucket(config)

    def check(each: Entry) -> tuple[job.State, int] | None:
        assert each.state
        try:
            this = states.read_job(bucket, each.name)
        except BergError:  # it is damaged, and no machine runs it
            return None
        if this is None or this.created_by != config.user:
            return None
        history = [[name, min(max(at, this.created_at), now)] for name, at in each.state.history]
        synced = min(each.state.synced_until, now)
        state = replace(each.state, job=this.summary(), history=history, synced_until=synced)
        return state, each.running

    counting = [
        each
        for each in entries
        if each.state
        and (
            not each.state.final
            or each.machines
            or spending.machine_hours(each.state, 0, midnight) > 0
        )
    ]
    with ThreadPoolExecutor(THREADS) as pool:
        return [told for told in pool.map(check, counting) if told]


def check_budget(config: Config) -> None:
    """Raise BergError if my jobs have cost as much today as they may, or those that run may yet."""
    if not config.budget:
        return
    today = job.now()[:10]
    told = vouched(config, jobs.overview(config, config.user), today)
    found = spending.on_day(told, today)
    coming = spending.until_midnight(told, datetime.now(timezone.utc))
    if found.usd + coming < config.budget:
        return
    unknown = f", beside {found.unknown} of unknown price" if found.unknown else ""
    more = f", and those that are not over may cost ${coming:,.2f} more by midnight" * (coming > 0)
    raise BergError(
        f"your jobs have cost ${found.usd:,.2f} today ({today}, UTC){unknown}{more}; your budget "
        f"for a day is ${config.budget:,}. Wait for tomorrow, limit jobs (--max-hours), or: berg "
        "config set budget DOLLARS"
    )

"""What a job may cost: a limit, and what a plan costs at most.

A limit becomes the time that a job's machines may live in all attempts, which Google enforces.
Purses and the budget for a day are in purse.py. Traffic, the bucket and other users are not
covered; Google's own cap is for them (`berg costs --spend-cap`).
"""

from dataclasses import replace

from berg import BergError
from berg.laptop import spending
from berg.plan import Plan

LEAST = 300  # seconds; a machine with less would hardly boot


def ceiling(plan: Plan, num_jobs: int) -> tuple[float, str]:
    """Return USD that each job may cost and the source of the limit; 0 for no limit.

    Only --max-cost can raise the limit of the user's settings.
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
    """Return a plan whose job, or each of the sweep's jobs, ends before it costs too much.

    Raise BergError if a price is unknown, or if hardly any time is left.
    """
    usd, source = ceiling(plan, num_jobs)
    if not usd:
        return plan
    hourly = spending.dearest(plan.job.rates, plan.offer.zones)
    if plan.offer.reservation:
        raise BergError(
            "a reservation costs the same if it is not used, so its cost cannot be kept below "
            f"${usd:,.2f}. Limit the time: --max-hours. Without a limit: --max-cost 0"
        )
    if hourly is None:
        raise BergError(
            f"the price of an hour in {', '.join(plan.offer.zones)} is unknown, so the cost cannot "
            f"be kept below ${usd:,.2f}. See why: berg prices. Without a limit: --max-cost 0"
        )
    seconds = int(3600 * usd / (hourly * plan.job.num_machines) - plan.job.spec.keep_warm)
    if seconds < LEAST:
        raise BergError(
            f"${usd:g} for a job is spent after {seconds} seconds, at ${hourly:,.2f} an hour "
            "for each machine: give more (--max-cost), or cheaper machines (berg prices)"
        )
    if seconds >= plan.job.max_run_seconds:
        return plan
    return replace(plan, job=replace(plan.job, max_run_seconds=seconds), limit=source)


def worst(plan: Plan, num_jobs: int = 0) -> float | None:
    """Return USD that a job or the jobs of a sweep cost at most; None if that is unknown."""
    hourly = spending.dearest(plan.job.rates, plan.offer.zones)
    if hourly is None:
        return None
    machines = num_jobs or plan.job.num_machines
    return hourly * machines * (plan.job.max_run_seconds + plan.job.spec.keep_warm) / 3600


def question(plan: Plan, num_jobs: int = 0) -> str:
    """Return the question before an expensive plan; "" for others, and for reservations and pods
    that have no price of their own.
    """
    usd, bound = worst(plan, num_jobs), plan.config.ask_above
    if not bound or plan.offer.priced is None:
        return ""
    if usd is None:
        return f"The cost of this is unknown; it may be over ${bound:,} (ask_above). Start it?"
    if usd <= bound:
        return ""
    return f"This may cost ${usd:,.0f}. Start it?"

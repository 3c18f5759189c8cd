"""GPUs and TPUs to choose from, and what machines cost, as text.

Not covered: what was spent; that is Google's billing.
"""

import sys
from typing import Any

from berg import columns
from berg.commands.terminal import table
from berg.google import prices
from berg.plan import Plan


def gpus(found: list[Any], region: str, everywhere: bool) -> str:
    """GPU types as a table."""
    rows = [
        [
            "TYPE",
            "PER MACHINE",
            "QUOTA, SPOT",
            "$/H, SPOT",
            f"ZONES{'' if everywhere else f' OF {region}-'}",
        ]
    ]
    for each in found:
        zones = [zone for zone in each.zones if everywhere or zone.startswith(f"{region}-")]
        zones = zones if everywhere else [zone.removeprefix(f"{region}-") for zone in zones]
        quota = [
            f"{count:g}" if count is not None else "?"
            for count in (each.quota_left, each.spot_quota_left)
        ]
        about = [", ".join(map(str, each.per_machine)), ", ".join(quota)]
        rows.append([each.type, *about, dollars(each.usd_per_hour, each.spot_usd_per_hour)])
        rows[-1].append(", ".join(zones) or elsewhere(each))
    return table(rows, sys.stdout)


def dollars(*amounts: float | None) -> str:
    return ", ".join("?" if amount is None else f"{amount:,.2f}" for amount in amounts)


def about_prices(listed: Any, why: str) -> str:
    """Where prices come from and what is not in them, or why they are unknown."""
    if listed is None:
        return f"Prices: unknown: {why}"
    return f"List prices in {listed.region} of {listed.date}, without disks and traffic."


def per_chip(found: Any) -> str:
    """Prices of each family of TPUs, of which every chip costs the same."""
    first = {each["family"]: each for each in reversed(found)}
    costs = {
        name: (each["usd_per_hour"], each["spot_usd_per_hour"], each["chips"])
        for name, each in first.items()
    }
    shown = [
        f"{name} {dollars(*(each and each / chips for each in two))}"
        for name, (*two, chips) in costs.items()
    ]
    return f" $/h a chip, on demand and Spot: {'; '.join(reversed(shown))}."


def price(plan: Plan, jobs: int, at_once: int) -> str:
    """What the machines of a plan cost, as far as it was looked up before; of pods, what a node
    does that they share.

    "" for pods without GPUs, which any node may hold.
    """
    shape, region = plan.offer.priced, plan.offer.zones[0].rpartition("-")[0]
    if shape is None:
        return ""
    listed = prices.known(plan.config, region)
    if listed is None:
        return "unknown; berg gpus looks for prices"
    hourly = listed.per_hour(shape, plan.spot)
    if hourly is None:
        return f"unknown in {region}"
    count = machines_paid_for(plan, at_once)
    kinds = ("as Spot", "on demand") if plan.spot else ("on demand", "as Spot")
    costs = zip((hourly, listed.per_hour(shape, not plan.spot)), kinds, strict=True)
    each = [f"${dollars(cost * count)} an hour {kind}" for cost, kind in costs if cost]
    if plan.offer.is_shared:
        what = f" for each node, {shape}, which pods share"
    else:
        what = at_most(plan, hourly, jobs, count)
    source = f"list price in {region} of {listed.date}, without disks and traffic"
    return f"{', '.join(each)}{what} ({source})"


def machines_paid_for(plan: Plan, at_once: int) -> int:
    """Return how many machines a plan pays for at a time; of nodes that pods share, one."""
    if plan.offer.is_shared:
        return 1
    return at_once or plan.job.num_machines


def at_most(plan: Plan, hourly: float, jobs: int, count: int) -> str:
    """What a job costs at most, or a sweep of so many jobs."""
    hours = plan.job.max_run_seconds / 3600
    limit = f"{jobs * hours:,g} machine-hours" if jobs else f"{hours:g} h"
    return f"; at most ${hourly * (jobs or count) * hours:,.0f} in {limit}"


def tpus(found: list[Any]) -> str:
    """What there is of TPUs, as a table."""
    rows, before = [["TPU", "HOSTS", "CHIPS", "MACHINE TYPE", "ZONES"]], None
    for each in found:
        about = [each["tpu"], str(each["hosts"]), str(each["chips"]), each["machine_type"]]
        same = columns(sys.stdout) and each["zones"] == before
        rows.append([*about, "as above" if same else ", ".join(each["zones"]) or "none"])
        before = each["zones"]
    return table(rows, sys.stdout)


def elsewhere(gpu: Any) -> str:
    regions = sorted({zone.rpartition("-")[0] for zone in gpu.zones})
    return (
        f"none; in {', '.join(regions[:3])}{', …' if len(regions) > 3 else ''}"
        if regions
        else "none"
    )

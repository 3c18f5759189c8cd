"""GPUs and TPUs to choose from, and what machines cost, as text.

Not covered: what Google billed; spending.py says what is not in the sums.
"""

import json
import shlex
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from berg import columns, words
from berg.commands.terminal import table
from berg.config import Config
from berg.google import container, prices
from berg.google.accelerators import Shape
from berg.laptop import limits, spending
from berg.plan import Plan

if TYPE_CHECKING:
    from berg.google.offers import Priced
    from berg.laptop.clusters import Status
    from berg.laptop.spending import Sum
    from berg.laptop.standing import Standing


ABOUT_ODDS = (
    "Spot odds, as Google tells them of the best zone: obtainability (0.7 good, 0.3 poor), hours "
    "that one machine lasts, and how many of those that ended were preempted."
)


def gpus(found: list[Any], region: str, everywhere: bool) -> str:
    """GPU types as a table; zones of everywhere take the room of the odds."""
    start, last = f"{region}-", ["SPOT ODDS", f"ZONES OF {region}-"]
    if everywhere:
        start, last = "", ["ZONES"]
    rows = [["TYPE", "PER MACHINE", "QUOTA, SPOT", "$/H, SPOT", *last]]
    for each in found:
        zones = [zone.removeprefix(start) for zone in each.zones if zone.startswith(start)]
        quota = map(number, (each.quota_left, each.spot_quota_left))
        about = [", ".join(map(str, each.per_machine)), ", ".join(quota)]
        costs = dollars(each.usd_per_hour, each.spot_usd_per_hour)
        places = ", ".join(zones) or elsewhere(each)
        odds = [] if everywhere else [spot_odds(each.spot_odds)]
        rows.append([each.type, *about, costs, *odds, places])
    return table(rows, sys.stdout)


def spot_odds(there: Any) -> str:
    """Return what Google says of its room for Spot machines; "?" if it says nothing."""
    if there is None:
        return "?"
    return f"{there.obtainability:g}, {there.hours}h, {there.share.replace(' ', '')}"


def number(count: float | None) -> str:
    """Return a number as people write it; "?" for one that is unknown."""
    return "?" if count is None else f"{count:g}"


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
    """What the machines of a plan cost, and what else they could be had for; of pods, their share
    of a node.

    "" for pods without GPUs, which any node may hold.
    """
    if plan.offer.reservation:
        return "that of the reservation, which is paid for whether it is used or not"
    if plan.offer.priced is None:
        return ""
    region = prices.region_of(plan.offer.zones[0])
    listed = prices.known(plan.config, region)
    if listed is None:
        return "unknown; berg prices says why"
    count = machines_paid_for(plan, at_once)
    hourly = spending.rate(listed, plan.offer, plan.model)
    if hourly is None:
        return f"unknown in {region}"
    models = [plan.model, *(each for each in prices.MODELS if each != plan.model)]
    each = [(model, spending.rate(listed, plan.offer, model)) for model in models]
    shown = [
        f"${dollars(rate * count)} an hour {prices.MODELS[model]}" for model, rate in each if rate
    ]
    where = f"list price in {region} of {listed.date}, with disks, without traffic"
    if plan.offer.is_shared:
        where = f"its share of {plan.offer.priced}; {where}"
    return f"{', '.join(shown)}; {at_most(plan, jobs)} ({where})"


def machines_paid_for(plan: Plan, at_once: int) -> int:
    """Return how many machines a plan pays for at a time."""
    return at_once or plan.job.num_machines


def at_most(plan: Plan, jobs: int) -> str:
    """What a job costs at most, or a sweep of so many jobs, wherever there is room for it."""
    usd = limits.worst(plan, jobs)
    hours = plan.job.max_run_seconds / 3600
    limit = f"{tidy(jobs * hours)} machine-hours" if jobs else f"{tidy(hours)} h"
    if usd is None:
        unpriced = set(map(prices.region_of, plan.offer.zones)) - plan.job.rates.keys()
        return f"at most unknown: no price in {', '.join(sorted(unpriced))}"
    amount = f"{usd:,.0f}" if usd >= 10 else dollars(usd)
    return f"at most ${amount} in {limit}"


def tidy(number: float) -> str:
    """Return a number with one digit behind the point, if there is one."""
    return f"{number:,.1f}".removesuffix(".0")


def cluster(config: Config, found: "Status") -> str:
    """What a cluster costs an hour, with those nodes for jobs that are up."""
    from berg.laptop import clusters

    up = Counter(node["pool"] for node in found.nodes if node["pool"] != container.SYSTEM)
    pools = [pool for pool in found.pools if up[pool["pool"]]]
    if not pools:
        return clusters.IDLE_PRICE
    nodes = words.plural(sum(up[pool["pool"]] for pool in pools), "node")
    listed = prices.known(config, found.location.rpartition("-")[0])
    hourly = [(node_price(listed, pool), float(up[pool["pool"]])) for pool in pools]
    in_all = prices.total(hourly)
    if in_all is None:
        return f"{clusters.IDLE_PRICE}, and more for {nodes} up (berg gpus looks for prices)"
    return f"{clusters.IDLE_PRICE}, and ${dollars(in_all)} an hour for {nodes} up"


def node_price(listed: prices.Prices | None, pool: dict[str, Any]) -> float | None:
    """Return USD for an hour of one node of a pool; None where that is not known."""
    if listed is None:
        return None
    count, _, kind = pool["gpus"].partition(" x ")
    model = prices.STANDARD
    if pool["spot"]:
        model = prices.SPOT
    return listed.per_hour(Shape(pool["machine_type"], int(count or 0), kind), model)


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


def priced(found: "list[Priced]", region: str) -> str:
    """Machines with what an hour of them costs, as a table."""
    zones = f"ZONES OF {region}-"
    rows = [["TYPE", "GPUS", "MACHINE TYPE", "ON DEMAND", "SPOT", "FLEX-START", zones]]
    for each in found:
        costs = (each.usd_per_hour, each.spot_usd_per_hour, each.flex_usd_per_hour)
        ends = ", ".join(zone.removeprefix(f"{region}-") for zone in each.zones)
        about = [each.type, str(each.gpus), each.machine_type]
        rows.append([*about, *map(words.dollars, costs), ends])
    return table(rows, sys.stdout)


def sums(weeks: "list[Sum]") -> str:
    """What jobs cost by week and user, as a table."""
    rows = [["WEEK OF", "USER", "JOBS", "MACHINE-HOURS", "COST", "PRICE UNKNOWN"]]
    for each in weeks:
        about = [each.begins, each.user, f"{each.jobs:,}", f"{each.hours:,.1f}"]
        rows.append([*about, words.dollars(each.usd), words.plural(each.unknown, "job")])
    return table(rows, sys.stdout)


def standing_table(there: "list[Standing]") -> str:
    """What costs money now, as a table, and an hour of all of it."""
    rows = [["NOW", "NAME", "WHERE", "AGE", "$/H", "WHAT"]]
    for each in there:
        age = words.age(each.created_at)
        rows.append([each.kind, each.name, each.where, age, dollars(each.usd_per_hour), each.about])
    known = sum(each.usd_per_hour or 0 for each in there)
    unknown = sum(each.usd_per_hour is None for each in there)
    rest = f", and {unknown} of unknown price" if unknown else ""
    return f"{table(rows, sys.stdout)}\n\nNow: {words.dollars(known)} an hour{rest}"


def cap_command(project: str, usd: int) -> str:
    """Return the command that makes a spend cap: what may be spent on Compute Engine in a month."""
    body = {
        "displayName": f"berg: {project}",
        "budgetFilter": {
            "projects": [f"projects/{project}"],
            "services": [prices.SERVICE],
            "calendarPeriod": "MONTH",
            "creditTypesTreatment": "EXCLUDE_ALL_CREDITS",
        },
        "amount": {"specifiedAmount": {"currencyCode": "USD", "units": str(usd)}},
        "thresholdRules": [{"thresholdPercent": each} for each in (0.5, 0.8, 1.0)],
        "notificationsRule": {"enableProjectLevelRecipients": True},
        "spendCap": {"inputState": "CONFIGURED"},
    }
    account = f"gcloud billing projects describe {project} --format='value(billingAccountName)'"
    return " \\\n    ".join(
        [
            "curl --fail-with-body -X POST",
            '-H "Authorization: Bearer $(gcloud auth print-access-token)"',
            f'-H "x-goog-user-project: {project}" -H "Content-Type: application/json"',
            f"-d {shlex.quote(json.dumps(body))}",
            f'"https://billingbudgets.googleapis.com/v1/$({account})/budgets"',
        ]
    )

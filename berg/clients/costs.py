"""`berg costs`: what jobs have cost, by week and user, and what costs money now.

A job counts in the week of its submit, at the list price of then. Not covered: jobs that `berg rm`
deleted, the disks of devboxes that were off, traffic, addresses, discounts and the bucket.
"""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import click

from berg import gce, google, jobs, prices, terminal
from berg import job as records
from berg.config import Config
from berg.google import last_part
from berg.job import State
from berg.place import Machine


@dataclass
class Week:
    """The jobs of a user that were submitted in a week."""

    begins: str  # its Monday, UTC
    user: str
    jobs: int = 0
    hours: float = 0.0  # of machines
    usd: float = 0.0  # of jobs of known price
    unknown: int = 0  # jobs of unknown price


@dataclass
class Running:
    """A machine or disk that costs money, whatever its job does."""

    kind: str
    name: str
    where: str
    created_at: str
    usd_per_hour: float | None  # None: unknown
    about: str


def weeks(states: list[State]) -> list[Week]:
    """The sums of each week and user, the newest first."""
    found: dict[tuple[str, str], Week] = {}
    for state in states:
        then = records.datetime_of(state.created_at)
        key = f"{then - timedelta(days=then.weekday()):%Y-%m-%d}", state.user
        week = found.setdefault(key, Week(*key))
        week.jobs += 1
        week.hours += state.seconds * state.machines / 3600
        week.usd += state.usd or 0.0
        week.unknown += state.usd is None
    for week in found.values():
        week.hours, week.usd = round(week.hours, 4), round(week.usd, 4)
    return sorted(found.values(), key=lambda week: (week.begins, week.usd), reverse=True)


def running(
    config: Config, states: list[State], machines: list[Machine], user: str | None
) -> list[Running]:
    """The machines that are on, and the disks of no such machine; of a user, or of all (None)."""
    rates = {state.name: state.rate for state in states}
    found, on = [], set()
    for machine in machines:
        if machine.is_on:
            on.add((machine.zone, machine.name))
            if user in (None, machine.user):
                # One that waits for room costs nothing.
                is_waiting = machine.status in ("PENDING", "PROVISIONING")
                rate = 0.0 if is_waiting else rates.get(machine.job)
                about = machine.name, machine.zone, machine.created_at, rate
                found.append(Running("machine", *about, machine.machine_type))
    for row in disks(config):
        zone = last_part(row["zone"])
        users = {(zone, last_part(instance)) for instance in row.get("users", [])}
        if users & on or user not in (None, row["labels"].get("berg-user", user)):
            continue
        usd = prices.disk(config, zone, last_part(row["type"]), float(row["sizeGb"]))
        text = f"{row['sizeGb']} GB" + (" of a machine that is off" if users else "")
        found.append(Running("disk", row["name"], zone, row["creationTimestamp"], usd, text))
    return found


def disks(config: Config) -> list[dict[str, Any]]:
    """The disks of Berg's machines, also of those that are gone."""
    query = {
        "filter": f'(labels.berg="1") AND (labels.berg-bucket="{gce.bucket_label(config)}")',
        "fields": "items/*/disks(name,zone,type,labels,creationTimestamp,sizeGb,users),nextPageToken",
        "maxResults": "500",
    }
    return [*google.items(config, "/aggregated/disks", **query)]


@click.command()
@click.option("-a", "--all", "everyone", is_flag=True, help="Also what other users have.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def costs(everyone: bool, as_json: bool) -> None:
    """Show what jobs have cost by week and user, and what costs money now.

    These are Google's list prices. Its bill has also traffic, addresses, discounts and the bucket.

    \b
    berg costs
    berg costs -a --json
    """
    config = Config.load()
    user = None if everyone else config.user
    with terminal.waiting("Asking Google"):
        states, machines = jobs.observed(config)
        now = running(config, states, machines, user)
    sums = weeks([state for state in states if user in (None, state.user)])
    if as_json:
        return terminal.show_json({"weeks": [*map(asdict, sums)], "now": [*map(asdict, now)]})
    rows = [
        [week.begins, week.user, str(week.jobs), f"{week.hours:,.1f}", terminal.dollars(week.usd),
         str(week.unknown or "")]
        for week in sums
    ]  # fmt: skip
    terminal.show_table(["WEEK OF", "USER", "JOBS", "MACHINE-HOURS", "COST", "PRICE UNKNOWN"], rows)
    if now:
        terminal.show("")
        rows = [
            [row.kind, row.name, row.where, terminal.duration(records.age(row.created_at)),
             price(row.usd_per_hour), row.about]
            for row in now
        ]  # fmt: skip
        terminal.show_table(["NOW", "NAME", "WHERE", "AGE", "$/H", "WHAT"], rows)
    unknown = sum(row.usd_per_hour is None for row in now)
    rest = f", and {unknown} of unknown price" if unknown else ""
    return terminal.say(f"Now: {price(sum(row.usd_per_hour or 0 for row in now))} an hour{rest}")


def price(usd: float | None) -> str:
    """Dollars an hour; what costs less than a cent, as a disk does, with four digits."""
    return f"${usd:.4f}" if usd and usd < 0.1 else terminal.dollars(usd)

"""Ledgers: what ended jobs have cost, and what is reserved for those that may cost more.

A ledger is one object in the bucket: that of a purse (purse.py), or that of a user's budget for a
day. Before a machine is created, its submit enters there what it costs at most until Google ends it
(maxRunDuration), at the generation that was read: two submits cannot both take the last dollar.
Later submits enter what ended jobs have really cost. A submit that died before it had a machine
gives its money back after a while.
"""

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import TypeVar

from berg import BergError, job, places, states, validation
from berg.config import Config
from berg.google import api
from berg.google.storage import Bucket, Changed
from berg.laptop import jobs, spending

SETTLED = 300  # seconds after which a submit without a machine and a job has died
Kind = TypeVar("Kind")
TRIES, PAUSE = 40, 0.5  # of a change; seconds between two at first: an object takes one a second


@dataclass
class Reservation:
    """What an attempt of a job or sweep may cost until its machines end."""

    name: str
    usd: float
    at: str  # when it was made
    machines: int
    hourly: float = 0  # USD for all of its machines
    has_begun: bool = False  # its machines were created
    since: dict[str, str] = field(default_factory=dict)  # job -> end of its attempt before


@dataclass
class Ledger:
    """What is spent and reserved, in USD."""

    spent: float = 0  # by jobs that have ended
    held: list[Reservation] = field(default_factory=list)
    day: str = ""  # in UTC, of which alone it has the costs; "": of all days

    def validate(self) -> None:
        """Raise ValueError for what Berg does not write."""
        amounts = [
            self.spent,
            *(number for each in self.held for number in (each.usd, each.hourly)),
        ]
        if min(amounts) < 0:
            raise ValueError("its amounts are odd")
        for text in (self.midnight, *(each.at for each in self.held)):
            validation.check_time(text)

    @property
    def midnight(self) -> str:
        """Return when its day began; "" for all days."""
        return f"{self.day}T00:00:00Z" if self.day else ""

    @property
    def reserved(self) -> float:
        return sum(map(self.amount, self.held))

    @property
    def machines(self) -> int:
        return sum(each.machines for each in self.held)

    def amount(self, held: Reservation) -> float:
        """Return what a reservation may cost, of a day until its end."""
        if not self.day:
            return held.usd
        begin = max(api.time_of(self.midnight), api.time_of(held.at))
        left = api.time_of(self.midnight) + timedelta(days=1) - begin
        return min(held.usd, held.hourly * left.total_seconds() / 3600)

    def without(self, name: str) -> "Ledger":
        """Return the ledger without what a job reserved for machines that were not created."""
        kept = [each for each in self.held if each.has_begun or each.name != name]
        return replace(self, held=kept)

    def on(self, day: str) -> "Ledger":
        """Return the ledger on a day, on which what still lives may cost more."""
        return self if day == self.day else replace(self, day=day, spent=0)


def read(bucket: Bucket, path: str, day: str) -> tuple[Ledger, int]:
    """Return a ledger on a day ("": of all days) and its generation, 0 if there is none; raise
    BergError if it is damaged.
    """
    found, generation = read_as(Ledger, bucket, path)
    return (found or Ledger()).on(day), generation


def read_as(kind: type[Kind], bucket: Bucket, path: str) -> tuple[Kind | None, int]:
    """Return what an object holds and its generation, (None, 0) if there is none; raise BergError
    if it is damaged.
    """
    # in this order: a change between the two is noticed when the object is written
    there = bucket.get(path)
    data = bucket.read(path) if there else None
    if there is None or data is None:
        return None, 0
    try:
        return validation.from_dict(kind, validation.parse(data)), there.generation
    except (ValueError, BergError) as error:
        raise BergError(f"gs://{bucket.name}/{path} is damaged: {error}") from None


def change(config: Config, path: str, day: str, how: Callable[[Ledger], Ledger]) -> Ledger:
    """Replace a ledger by what a function makes of it, again if another one changes it; the
    function raises BergError for what is not allowed.
    """
    bucket = Bucket(config)
    for number in range(TRIES):
        before, generation = read(bucket, path, day)
        after = how(before)
        if after == before:
            return after
        try:
            bucket.write(path, json.dumps(asdict(after)), generation)
            return after
        except Changed:
            time.sleep(random.uniform(0, PAUSE * min(1 + number / 4, 8)))
    raise BergError(f"gs://{bucket.name}/{path} changes all the time. Try again")


def settle(config: Config, path: str, day: str) -> Ledger:
    """Return a ledger after entering what ended jobs have cost."""
    ledger, _ = read(Bucket(config), path, day)
    names = {each.name for each in ledger.held}

    def look(name: str) -> float | None:
        return cost(config, ledger, name)

    with ThreadPoolExecutor(16) as pool:
        costs = zip(names, pool.map(look, names), strict=True)
        ended = {name: usd for name, usd in costs if usd is not None}
    if not ended:
        return ledger

    def enter(now: Ledger) -> Ledger:
        gone = [each for each in ledger.held if each.name in ended and each in now.held]
        spent = sum(ended[name] for name in {each.name for each in gone})
        held = [each for each in now.held if each not in gone]
        return replace(now, spent=round(now.spent + spent, 6), held=held)

    return change(config, path, day, enter)


def cost(config: Config, ledger: Ledger, name: str) -> float | None:
    """Return what a job or sweep has cost since its first reservation; None while it may cost more.
    What was removed costs what was reserved, if its machines were created.
    """
    mine = [each for each in ledger.held if each.name == name]
    there = [each for each in records(config, name) if each.stored and not each.stored.is_damaged]
    if may_cost_more(config, mine, there):
        return None
    if not there:
        return sum(ledger.amount(each) for each in mine if each.has_begun)
    bucket, since = Bucket(config), mine[0].since
    begins = [max(since.get(each.name, ""), ledger.midnight) for each in there]
    costs = [cost_of(bucket, *each) for each in zip(there, begins, strict=True)]
    return min(sum(costs), sum(map(ledger.amount, mine)))


def may_cost_more(config: Config, held: list[Reservation], found: list[jobs.Entry]) -> bool:
    """Return whether a job or sweep has not ended, has machines, or has no state yet."""
    if any(each.state and (not each.state.final or each.state.kept_seconds) for each in found):
        return True
    if not found and job.age_seconds(max(each.at for each in held)) < SETTLED:
        return True
    names = [each.name for each in held]
    return bool(places.machines(config, jobs=names, sweeps=names))


def records(config: Config, name: str) -> list[jobs.Entry]:
    """Return a job, or the jobs of a sweep, as readers see them: lost ones, too."""
    found = jobs.overview(config, None, name)
    return [each for each in found if name in (each.name, each.sweep) and each.state]


def cost_of(bucket: Bucket, ended: jobs.Entry, begin: str) -> float:
    """Return what a job has cost since a moment. Its price and its number of machines are those of
    its metadata, which no other job can change unnoticed. A lost one counts until now: when its
    machine went is not known.
    """
    assert ended.stored and ended.state
    this = states.read_job(bucket, ended.name)
    state = replace(ended.state, job=this.summary()) if this else ended.state
    has_machines = 0 if ended.stored.state.final else max(state.job.machines, 1)
    return spending.so_far(state, has_machines, begin) or 0.0


def ends(config: Config, name: str) -> dict[str, str]:
    """Return when the last attempt of a job, or of each job of a sweep, ended; by their records,
    whose clock the costs are counted by.
    """
    found = {}
    for each in records(config, name):
        assert each.state
        over = [at for what, at in each.state.history if what in job.FINAL]
        if over:
            found[each.name] = over[-1]
    return found

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
from collections.abc import Callable, Collection
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
    claim: str = ""  # of the submit that made it


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

    def without(self, claim: str) -> "Ledger":
        """Return the ledger without what a submit reserved."""
        return replace(self, held=[each for each in self.held if each.claim != claim])

    def on(self, day: str) -> "Ledger":
        """Return the ledger on a day, on which what still lives may cost more. It never goes back:
        another laptop may be past midnight already.
        """
        return self if day <= self.day else replace(self, day=day, spent=0)


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
    held: dict[str, list[Reservation]] = {}
    for each in ledger.held:
        held.setdefault(each.name, []).append(each)
    there = found(config, held)

    def look(name: str) -> float | None:
        return cost(config, ledger, held[name], there[name])

    with ThreadPoolExecutor(16) as pool:
        costs = zip(held, pool.map(look, held), strict=True)
        ended = {name: usd for name, usd in costs if usd is not None}
    if not ended:
        return ledger

    def enter(now: Ledger) -> Ledger:
        gone = [each for each in ledger.held if each.name in ended and each in now.held]
        spent = sum(ended[name] for name in {each.name for each in gone})
        held = [each for each in now.held if each not in gone]
        return replace(now, spent=round(now.spent + spent, 6), held=held)

    return change(config, path, day, enter)


@dataclass
class Found:
    """What there is of a job or sweep."""

    jobs: list[jobs.Entry]  # as readers see them: lost ones, too
    machines: list[job.Machine]  # that are not on their way out
    is_damaged: bool = False  # the state of one of its jobs


def found(config: Config, names: Collection[str]) -> dict[str, Found]:
    """Return what there is of jobs and sweeps, whose machines are listed at once."""
    if not names:
        return {}
    bucket = Bucket(config)
    with ThreadPoolExecutor(16) as pool:
        listed = pool.submit(places.machines, config)
        stored = {each.name: [each] for each in states.several(bucket, names)}
        rest = [name for name in names if name not in stored]
        of_sweeps = pool.map(lambda name: list(states.of_sweep(bucket, name)), rest)
        stored |= dict(zip(rest, of_sweeps, strict=True))
        owned = jobs.by_owner(listed.result())

    def of(name: str) -> Found:
        whole = [each for each in stored[name] if not each.is_damaged]
        machines = [*owned.get(name, []), *owned.get(f"{name}/", [])]
        lives = [each for each in machines if each.status not in jobs.GOING]
        entries = jobs.entries_of(config, whole, owned, False)
        return Found(entries, lives, len(whole) < len(stored[name]))

    return {name: of(name) for name in names}


def cost(config: Config, ledger: Ledger, held: list[Reservation], there: Found) -> float | None:
    """Return what a job or sweep has cost since its first reservation; None while it may cost more.
    What was removed or is damaged costs what was reserved, if its machines were created.
    """
    if may_cost_more(held, there):
        return None
    begun = [each for each in held if each.has_begun]
    try:
        with ThreadPoolExecutor(16) as pool:
            names = [each.name for each in there.jobs]
            described = list(pool.map(lambda name: states.read_job(Bucket(config), name), names))
    except BergError:
        there.is_damaged = True
    if there.is_damaged or not there.jobs:
        return sum(map(ledger.amount, begun))
    costs = 0.0
    for each, this in zip(there.jobs, described, strict=True):
        since = min(every.since.get(each.name, "") for every in held)
        costs += cost_of(each, this, max(since, ledger.midnight))
    costs = costs or without_worker(ledger, begun, there.jobs, described[0])
    return min(costs, sum(map(ledger.amount, held)))


def may_cost_more(held: list[Reservation], there: Found) -> bool:
    """Return whether a job or sweep has not ended, has machines, or has no state yet."""
    if any(not each.state.final or each.state.kept_seconds for each in there.jobs if each.state):
        return True
    is_new = job.age_seconds(max(each.at for each in held)) < SETTLED
    return bool(there.machines) or (is_new and not there.jobs)


def cost_of(ended: jobs.Entry, this: job.Job | None, begin: str) -> float:
    """Return what a job has cost since a moment. Its price and its number of machines are those of
    its metadata, which no other job can change unnoticed. A lost one counts until now: when its
    machine went is not known.
    """
    assert ended.stored and ended.state
    state = replace(ended.state, job=this.summary()) if this else ended.state
    has_machines = 0 if ended.stored.state.final else max(state.job.machines, 1)
    return spending.so_far(state, has_machines, begin) or 0.0


def without_worker(
    ledger: Ledger, begun: list[Reservation], ended: list[jobs.Entry], this: job.Job | None
) -> float:
    """Return what machines have cost on which no job began, such as those of a broken image: all
    the time until the end. Machines that Google may have created later count as nothing.
    """
    if this is None or this.place != "gce" or this.group or this.spec.flex:
        return 0.0
    end = max((each.state and each.state.finished_at) or job.now() for each in ended)
    amounts = [each.hourly * spending.between(each.at, end) / 3600 for each in begun]
    return sum(map(min, amounts, map(ledger.amount, begun)))


def ends(config: Config, name: str) -> dict[str, str]:
    """Return when the last attempt of a job, or of each job of a sweep, ended; by their records,
    whose clock the costs are counted by.
    """
    over = {}
    for each in found(config, [name])[name].jobs:
        assert each.state
        if times := [at for what, at in each.state.history if what in job.FINAL]:
            over[each.name] = times[-1]
    return over

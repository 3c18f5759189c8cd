"""Purses: what several jobs may cost together (--purse, BERG_PURSE), and the budget for a day.

A purse is two objects in the bucket: its terms, which only its owner changes, and its ledger. A
user's budget for a day is a ledger whose terms are in the settings. A ledger has what ended jobs
have cost, and what is reserved for those that may cost more. Jobs of unknown price are not in it.

Before a machine is created, its submit enters in the ledger what it costs at most until Google ends
it (maxRunDuration), at the generation that was read: two submits cannot both take the last dollar.
Later submits enter what ended jobs have really cost. A submit that died before it had a machine
gives its money back after a while.

With the credentials of the purse's owner it is a guard, not a wall: a program that may create
machines can do so without Berg. For a service account, IAM keeps the terms (`berg purse create
--for`).
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
from berg.google import iam
from berg.google.storage import Bucket, Changed
from berg.laptop import jobs, spending
from berg.plain import dollars, span
from berg.plan import Plan

SETTLED = 300  # seconds after which a submit without a machine and a job has died
Kind = TypeVar("Kind")
TRIES, PAUSE = 40, 0.5  # of a change; seconds between two at first: an object takes one a second
DAYS = ".berg/days/"
TERMS = "/purse.json"
SMALLEST = 1e-6  # USD: what sums are rounded to


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
        begin = max(job.time_of(self.midnight), job.time_of(held.at))
        left = job.time_of(self.midnight) + timedelta(days=1) - begin
        return min(held.usd, held.hourly * left.total_seconds() / 3600)

    def without(self, claim: str) -> "Ledger":
        """Return the ledger without what a submit reserved."""
        return replace(self, held=[each for each in self.held if each.claim != claim])

    def on(self, day: str) -> "Ledger":
        """Return the ledger on a day, on which what still lives may cost more. It never goes back:
        another laptop may be past midnight already.
        """
        return self if day <= self.day else replace(self, day=day, spent=0)


def read_ledger(bucket: Bucket, path: str, day: str) -> tuple[Ledger, int]:
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


def change_ledger(config: Config, path: str, day: str, how: Callable[[Ledger], Ledger]) -> Ledger:
    """Replace a ledger by what a function makes of it, again if another one changes it; the
    function raises BergError for what is not allowed.
    """
    bucket = Bucket(config)
    for number in range(TRIES):
        before, generation = read_ledger(bucket, path, day)
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
    ledger, _ = read_ledger(Bucket(config), path, day)
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

    return change_ledger(config, path, day, enter)


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


# --- purses


@dataclass
class Purse:
    """A purse's terms. Amounts are USD."""

    name: str
    usd: float
    owner: str
    created_at: str
    types: list[str] = field(default_factory=list)  # of GPUs; []: any
    hours: float = 0  # of a job at most; 0: any
    machines: int = 0  # at one time; 0: any
    until: str = ""  # time at which all its machines have ended
    is_closed: bool = False
    account: str = ""  # service account that draws on it and cannot change these terms

    def validate(self) -> None:
        """Raise ValueError for what Berg does not write."""
        job.check_name(self.name)
        if min(self.usd, self.hours) < 0:
            raise ValueError("its amounts are odd")
        for text in (self.created_at, self.until):
            validation.check_time(text)

    def in_words(self) -> str:
        """Return what it pays for."""
        hours = f"{span(self.hours * 3600)} a job" if self.hours else ""
        machines = f"{self.machines} machines" if self.machines else ""
        end = f"until {self.until}" if self.until else ""
        closed = "closed" if self.is_closed else ""
        parts = [closed, ", ".join(self.types), hours, machines, end, self.account]
        return "; ".join(filter(None, parts))


@dataclass
class Filled:
    """A purse and what it has."""

    purse: Purse
    ledger: Ledger

    @property
    def left(self) -> float:
        return self.purse.usd - self.ledger.spent - self.ledger.reserved

    def to_dict(self) -> dict[str, object]:
        """Return the purse for --json."""
        about = {**asdict(self.purse), **asdict(self.ledger)}
        del about["day"]
        return {**about, "reserved": self.ledger.reserved, "left": self.left}


def path(name: str) -> str:
    """Return the object of a purse's terms."""
    return f"{iam.PURSES}{name}{TERMS}"


def read(bucket: Bucket, name: str) -> tuple[Purse, int]:
    """Return a purse and its generation; raise BergError if there is none, or it is damaged."""
    job.check_name(name)
    found, generation = read_as(Purse, bucket, path(name))
    if found is None:
        raise BergError(
            f"there is no purse {name!r}. See them: berg purse. To create it: berg purse create "
            f"{name} --usd 40"
        )
    if not bucket.exists(iam.ledger_of(name)):
        raise BergError(
            f"gs://{bucket.name}/{iam.ledger_of(name)} was deleted, so what the purse {name} has "
            "spent is unknown. Use another one: berg purse create"
        )
    return found, generation


def create(config: Config, purse: Purse) -> None:
    """Create a purse; raise BergError if there is one of its name."""
    config.refuse_in_purse("create a purse")
    try:
        purse.validate()
    except ValueError as error:
        raise BergError(f"a purse cannot be like that: {error}") from None
    bucket = Bucket(config)
    try:
        bucket.write(iam.ledger_of(purse.name), json.dumps(asdict(Ledger())), 0)
        bucket.write(path(purse.name), json.dumps(asdict(purse)), 0)
    except Changed:
        raise BergError(
            f"there is a purse {purse.name!r}. Add to it: berg purse top-up {purse.name} --usd "
            f"{purse.usd:g}"
        ) from None


def change(config: Config, name: str, how: Callable[[Purse], Purse]) -> Filled:
    """Replace a purse's terms by what a function makes of them."""
    bucket = Bucket(config)
    found, generation = read(bucket, name)
    changed = how(found)
    try:
        bucket.write(path(name), json.dumps(asdict(changed)), generation)
    except Changed:
        raise BergError(f"the purse {name} changed meanwhile. Try again") from None
    return filled(config, changed)


def top_up(config: Config, name: str, usd: float) -> Filled:
    """Add to a purse, and open one that was closed."""
    config.refuse_in_purse("top up a purse")
    return change(config, name, lambda found: replace(found, usd=found.usd + usd, is_closed=False))


def close(config: Config, name: str) -> Filled:
    """Let a purse pay for no other job; those that run continue."""
    config.refuse_in_purse("close a purse")
    return change(config, name, lambda found: replace(found, is_closed=True))


def filled(config: Config, purse: Purse) -> Filled:
    """Return a purse with its ledger after what has ended."""
    return Filled(purse, settle(config, iam.ledger_of(purse.name), ""))


def all_of(config: Config) -> list[Filled]:
    """Return the purses of the bucket as they are after what has ended."""
    bucket = Bucket(config)
    listed = [each.name for each in bucket.list(iam.PURSES, "name") if each.name.endswith(TERMS)]
    names = [each.removeprefix(iam.PURSES).removesuffix(TERMS) for each in listed]
    return [filled(config, read(bucket, name)[0]) for name in sorted(names)]


# --- what a job takes


def limited(plan: Plan, machines: int = 0) -> Plan:
    """Return a plan whose job ends before its purse and the day's budget are empty; raise BergError
    if they have too little, or do not pay for such a job. `machines` is the number of a sweep's.
    """
    count = machines or plan.job.num_machines
    for bounded in (within_purse, within_budget):
        plan = bounded(plan, count)
    return plan


def within_purse(plan: Plan, machines: int) -> Plan:
    """Return a plan whose job ends before its purse is empty."""
    if not (name := plan.config.purse):
        return plan
    purse, _ = read(Bucket(plan.config), name)
    there = filled(plan.config, purse)
    check(there, plan, machines)
    bounds = [(plan.job.max_run_seconds, plan.limit)]
    bounds.append((affordable(there.left, plan, machines), f"what the purse {name} has left"))
    if purse.hours:
        bounds.append((round(purse.hours * 3600), f"the purse {name}, for a job"))
    if purse.until:
        left = round(-job.age_seconds(purse.until) - plan.job.spec.keep_warm)
        bounds.append((left // plan.rounds, f"the purse {name}, until {purse.until}"))
    seconds, limit = min(bounds)
    if seconds < spending.LEAST:
        raise BergError(
            f"{limit} is too little for a job: of {dollars(purse.usd)} it has "
            f"{dollars(there.left)} left; {dollars(there.ledger.spent)} are spent, and "
            f"{dollars(there.ledger.reserved)} may be spent by what runs. End some of that (berg "
            "kill), or ask its owner for more: berg purse top-up"
        )
    return replace(plan, job=replace(plan.job, max_run_seconds=seconds), limit=limit)


def within_budget(plan: Plan, machines: int) -> Plan:
    """Return a plan whose job ends, or reaches midnight, before the day's budget is spent."""
    if not (budget := plan.config.budget):
        return plan
    found = settle(plan.config, day_path(plan.config), today())
    left = budget - found.spent - found.reserved
    seconds, wanted = affordable(left, plan, machines), reservation(plan, machines)
    if left > 0 and found.amount(wanted) <= left + SMALLEST:
        return plan
    if seconds < spending.LEAST:
        raise BergError(
            f"your jobs have cost ${found.spent:,.2f} today ({found.day}, UTC), and those that run "
            f"may cost ${found.reserved:,.2f} more by midnight; your budget for a day is "
            f"${budget:,}. Wait for tomorrow, end some of them (berg kill), or: berg config set "
            "budget DOLLARS"
        )
    return replace(plan, job=replace(plan.job, max_run_seconds=seconds), limit="the day's budget")


def check(there: Filled, plan: Plan, machines: int) -> None:
    """Raise BergError if a purse does not pay for such a job at all."""
    purse, busy = there.purse, there.ledger.machines
    kind = plan.job.gpu_type or plan.job.tpu.partition("-")[0]
    why = ""
    if purse.is_closed:
        why = "is closed. Its owner opens it: berg purse top-up"
    elif purse.until and purse.until <= job.now():
        why = f"paid until {purse.until}"
    elif purse.types and kind and kind not in purse.types:
        why = f"pays for {', '.join(purse.types)}, not for {kind}: choose another type, -t"
    elif purse.machines and busy + machines > purse.machines:
        why = (
            f"pays for {purse.machines} machines at one time, and {busy} are reserved: wait for "
            "one (berg wait), or end one (berg kill)"
        )
    elif hourly(plan) is None:
        why = "pays only for what has a known price. See: berg prices"
    if why:
        raise BergError(f"the purse {purse.name} {why}")


def hourly(plan: Plan) -> float | None:
    """Return USD for an hour of one of a plan's machines; None if it is not known."""
    if plan.offer.priced is None:
        return None
    return spending.dearest(plan.job.rates, plan.offer.zones)


def affordable(usd: float, plan: Plan, machines: int) -> int:
    """Return for how many seconds an amount pays for each job of a plan."""
    rate = (hourly(plan) or 0) * machines
    if not rate:
        return plan.job.max_run_seconds if usd > 0 else 0
    return int((3600 * usd / rate - plan.job.spec.keep_warm) / plan.rounds)


def reservation(plan: Plan, machines: int) -> Reservation:
    """Return what the machines of a plan may cost from now on; of warm ones until Google ends them,
    which may be long after the job's own limit.
    """
    rate, name = (hourly(plan) or 0) * machines, plan.job.job_name
    seconds = plan.machine_seconds
    if plan.warm:
        seconds = max(seconds, plan.warm.seconds + states.LAST_SECONDS)
    return Reservation(name, rate * seconds / 3600, job.now(), machines, rate)


def reserve(plan: Plan, claim: str, machines: int = 0) -> Reservation | None:
    """Enter what a plan may cost into its ledgers, and return it, None without a ledger; raise
    BergError if less is left by now.
    """
    config, count = plan.config, machines or plan.job.num_machines
    if not config.purse and not config.budget:
        return None
    wanted = reservation(plan, count)
    wanted.claim, wanted.since = claim, ends(config, wanted.name)

    def take(found: Ledger) -> Ledger:
        rest, usd, what = found.without(claim), float(config.budget), "your budget for a day"
        if not found.day:
            purse, _ = read(Bucket(config), config.purse)
            usd, what = purse.usd, f"the purse {purse.name}"
            check(Filled(purse, rest), plan, count)
        left = usd - rest.spent - rest.reserved
        if rest.amount(wanted) > left + SMALLEST:
            raise BergError(
                f"{what} has {dollars(left)} left, and this may cost "
                f"{dollars(rest.amount(wanted))}: another job took the money meanwhile. Try again"
            )
        return replace(rest, held=[*rest.held, wanted])

    for where in ledgers(config):
        change_ledger(config, *where, take)
    return wanted


def note_begun(config: Config, reserved: Reservation | None) -> None:
    """Enter that the machines of a reservation were created: from now on they are paid for,
    whatever the bucket says of the job, and even if the reservation was taken for a dead one.
    """
    if reserved is None:
        return
    begun = replace(reserved, has_begun=True)

    def note(found: Ledger) -> Ledger:
        return replace(found, held=[*found.without(begun.claim).held, begun])

    for where in ledgers(config):
        change_ledger(config, *where, note)


def release(config: Config, claim: str) -> None:
    """Give back what a submit reserved of which nothing is left."""
    for where in ledgers(config):
        change_ledger(config, *where, lambda found: found.without(claim))


def settle_all(config: Config) -> None:
    """Enter in all ledgers what ended jobs have cost, before their records are removed."""
    all_of(config)
    for each in Bucket(config).list(DAYS, "name"):
        settle(config, each.name, today())


def ledgers(config: Config) -> list[tuple[str, str]]:
    """Return the objects and the days of the ledgers that jobs draw on."""
    found = [(iam.ledger_of(config.purse), "")] if config.purse else []
    return [*found, (day_path(config), today())] if config.budget else found


def day_path(config: Config) -> str:
    """Return the ledger of the user's budget for a day."""
    return f"{DAYS}{config.user}.json"


def today() -> str:
    return job.now()[:10]

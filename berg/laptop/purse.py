"""Purses: what several jobs may cost together (--purse, BERG_PURSE).

A purse is one object in the bucket. Before a machine is created, its submit enters there what it
costs at most until Google ends it (maxRunDuration), at the generation that was read: two submits
cannot both take the last dollar. Later submits enter what ended jobs have really cost. A submit
that died before it had a machine gives its money back after a while.

With the credentials of the purse's owner it is a guard, not a wall: a program that may create
machines can do so without Berg.
"""

import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone

from berg import BergError, job, places, states, validation
from berg.config import Config
from berg.google.storage import Bucket, Changed
from berg.laptop import limits, spending
from berg.plain import dollars, span
from berg.plan import Plan

PREFIX = ".berg/purses/"
SETTLED = 300  # seconds after which a submit without a machine and a job has died
TRIES, PAUSE = 40, 0.5  # of a change; seconds between two at first: an object takes one a second
SMALLEST = 0.005  # USD


@dataclass
class Reservation:
    """What a job or sweep may cost until its machines end."""

    name: str
    usd: float
    at: str  # when it was made
    machines: int
    has_begun: bool = False  # its machines were created


@dataclass
class Purse:
    """A purse's limits and what it holds. Amounts are USD."""

    name: str
    usd: float
    owner: str
    created_at: str
    types: list[str] = field(default_factory=list)  # of GPUs; []: any
    hours: float = 0  # of a job at most; 0: any
    machines: int = 0  # at one time; 0: any
    until: str = ""  # time at which all its machines have ended
    is_closed: bool = False
    spent: float = 0  # by jobs that have ended
    held: list[Reservation] = field(default_factory=list)

    def validate(self) -> None:
        """Raise ValueError for what Berg does not write."""
        job.check_name(self.name)
        amounts = [self.usd, self.spent, self.hours, *(each.usd for each in self.held)]
        if min(amounts) < 0 or len({each.name for each in self.held}) < len(self.held):
            raise ValueError("its amounts are odd")
        for text in (self.created_at, self.until, *(each.at for each in self.held)):
            validation.check_time(text)

    @property
    def reserved(self) -> float:
        return sum(each.usd for each in self.held)

    @property
    def left(self) -> float:
        return self.usd - self.spent - self.reserved

    def without(self, name: str) -> "Purse":
        """Return the purse as if a job had no reservation."""
        return replace(self, held=[each for each in self.held if each.name != name])

    def in_words(self) -> str:
        """Return what it pays for."""
        hours = f"{span(self.hours * 3600)} a job" if self.hours else ""
        machines = f"{self.machines} machines" if self.machines else ""
        end = f"until {self.until}" if self.until else ""
        closed = "closed" if self.is_closed else ""
        return "; ".join(filter(None, [closed, ", ".join(self.types), hours, machines, end]))

    def to_dict(self) -> dict[str, object]:
        """Return the purse for --json."""
        return {**asdict(self), "reserved": self.reserved, "left": self.left}


def path(name: str) -> str:
    return f"{PREFIX}{name}"


def read(bucket: Bucket, name: str) -> tuple[Purse, int]:
    """Return a purse and its generation; raise BergError if there is none, or it is damaged."""
    job.check_name(name)
    # in this order: a change between the two is noticed when the purse is written
    there = bucket.get(path(name))
    data = bucket.read(path(name)) if there else None
    if there is None or data is None:
        raise BergError(
            f"there is no purse {name!r}. See them: berg purse. To create it: berg purse create "
            f"{name} --usd 40"
        )
    try:
        return validation.from_dict(Purse, validation.parse(data)), there.generation
    except (ValueError, BergError) as error:
        raise BergError(f"gs://{bucket.name}/{path(name)} is damaged: {error}") from None


def change(config: Config, name: str, how: Callable[[Purse], Purse]) -> Purse:
    """Replace a purse by what a function makes of it, again if another one changes it; the function
    raises BergError for what the purse does not allow.
    """
    bucket = Bucket(config)
    for number in range(TRIES):
        before, generation = read(bucket, name)
        after = how(before)
        if after == before:
            return after
        try:
            bucket.write(path(name), json.dumps(asdict(after)), generation)
            return after
        except Changed:
            time.sleep(random.uniform(0, PAUSE * min(1 + number / 4, 8)))
    raise BergError(f"the purse {name} changes all the time. Try again")


def create(config: Config, purse: Purse) -> None:
    """Create a purse; raise BergError if there is one of its name."""
    config.refuse_in_purse("create a purse")
    try:
        purse.validate()
    except ValueError as error:
        raise BergError(f"a purse cannot be like that: {error}") from None
    try:
        Bucket(config).write(path(purse.name), json.dumps(asdict(purse)), 0)
    except Changed:
        raise BergError(
            f"there is a purse {purse.name!r}. Add to it: berg purse top-up {purse.name} --usd "
            f"{purse.usd:g}"
        ) from None


def top_up(config: Config, name: str, usd: float) -> Purse:
    """Add to a purse, and open one that was closed."""
    config.refuse_in_purse("top up a purse")
    return change(config, name, lambda found: replace(found, usd=found.usd + usd, is_closed=False))


def close(config: Config, name: str) -> Purse:
    """Let a purse pay for no other job; those that run continue."""
    config.refuse_in_purse("close a purse")
    return change(config, name, lambda found: replace(found, is_closed=True))


def all_of(config: Config) -> list[Purse]:
    """Return the purses of the bucket as they are after what has ended."""
    bucket = Bucket(config)
    names = [each.name.removeprefix(PREFIX) for each in bucket.list(PREFIX, "name")]
    return [settle(config, name) for name in sorted(names)]


# --- what a job takes


def limited(plan: Plan, machines: int = 0) -> Plan:
    """Return a plan whose job ends before its purse is empty; raise BergError if that has too
    little, or does not pay for such a job. `machines` is the number of a sweep's.
    """
    if not plan.config.purse:
        return plan
    name, count = plan.config.purse, machines or plan.job.num_machines
    purse = settle(plan.config, name).without(plan.job.job_name)
    check(purse, plan, count)
    bounds = [(plan.job.max_run_seconds, plan.limit)]
    bounds.append((affordable(purse, plan, count), f"what the purse {name} has left"))
    if purse.hours:
        bounds.append((round(purse.hours * 3600), f"the purse {name}, for a job"))
    if purse.until:
        left = round(-job.age_seconds(purse.until) - plan.job.spec.keep_warm)
        bounds.append((left // plan.rounds, f"the purse {name}, until {purse.until}"))
    seconds, limit = min(bounds)
    if seconds < limits.LEAST:
        raise BergError(
            f"{limit} is too little for a job: of {dollars(purse.usd)} it has "
            f"{dollars(purse.left)} left; {dollars(purse.spent)} are spent, and "
            f"{dollars(purse.reserved)} may be spent by what runs. End some of that (berg kill), "
            "or ask its owner for more: berg purse top-up"
        )
    return replace(plan, job=replace(plan.job, max_run_seconds=seconds), limit=limit)


def check(purse: Purse, plan: Plan, machines: int) -> None:
    """Raise BergError if a purse does not pay for such a job at all."""
    kind = plan.job.gpu_type or plan.job.tpu.partition("-")[0]
    busy = sum(each.machines for each in purse.held)
    why = ""
    if purse.is_closed:
        why = "is closed. Its owner opens it: berg purse top-up"
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


def affordable(purse: Purse, plan: Plan, machines: int) -> int:
    """Return for how many seconds a purse pays for each job of a plan."""
    rate = (hourly(plan) or 0) * machines
    seconds = 3600 * (purse.left + SMALLEST) / rate if rate else float(plan.job.max_run_seconds)
    return int((seconds - plan.job.spec.keep_warm) / plan.rounds)


def reserve(plan: Plan, machines: int = 0) -> None:
    """Enter what a plan may cost into its purse; raise BergError if it has less left by now."""
    if not plan.config.purse:
        return
    count, rate = machines or plan.job.num_machines, hourly(plan) or 0
    usd = rate * count * plan.machine_seconds / 3600
    wanted = Reservation(plan.job.job_name, usd, job.now(), count)

    def take(purse: Purse) -> Purse:
        rest = purse.without(wanted.name)
        check(rest, plan, count)
        earlier = purse.reserved - rest.reserved  # of an attempt before, which may continue
        if usd > rest.left + 2 * SMALLEST:
            raise BergError(
                f"the purse {purse.name} has {dollars(rest.left)} left, and this may cost "
                f"{dollars(usd)}: another job took the money meanwhile. Try again"
            )
        kept = replace(wanted, usd=max(usd, earlier))
        return replace(rest, held=[*rest.held, kept])

    change(plan.config, plan.config.purse, take)


def note_begun(plan: Plan) -> None:
    """Enter that a plan's machines were created: from now on they are paid for, whatever the
    bucket says of the job.
    """
    if not plan.config.purse:
        return
    name = plan.job.job_name

    def note(purse: Purse) -> Purse:
        held = [replace(each, has_begun=each.has_begun or each.name == name) for each in purse.held]
        return replace(purse, held=held)

    change(plan.config, plan.config.purse, note)


def release(config: Config, name: str) -> None:
    """Give back what a job reserved of which nothing was created, or all was deleted again."""
    if config.purse:
        change(config, config.purse, lambda purse: purse.without(name))


def settle(config: Config, name: str) -> Purse:
    """Return a purse after entering what ended jobs have cost."""
    purse, _ = read(Bucket(config), name)
    ended = {each.name: found for each in purse.held if (found := cost(config, each)) is not None}
    if not ended:
        return purse

    def enter(now: Purse) -> Purse:
        gone = [each for each in now.held if each in purse.held and each.name in ended]
        spent = sum(ended[each.name] for each in gone)
        held = [each for each in now.held if each not in gone]
        return replace(now, spent=round(now.spent + spent, 6), held=held)

    return change(config, name, enter)


def cost(config: Config, held: Reservation) -> float | None:
    """Return what a job or sweep has cost; None while it may cost more. What was removed costs what
    was reserved, if its machines were created.
    """
    bucket = Bucket(config)
    found = [each for each in states.of_sweep(bucket, held.name) if not each.is_damaged]
    if not found and (single := states.read(bucket, held.name)):
        found = [single]
    if may_cost_more(config, held, found):
        return None
    if not found:
        return held.usd if held.has_begun else 0.0
    return min(sum(cost_of(bucket, each) for each in found), held.usd)


def may_cost_more(config: Config, held: Reservation, found: list[states.Stored]) -> bool:
    """Return whether a job or sweep has not ended, has machines, or has no state yet."""
    if any(not each.state.final or each.state.kept_seconds for each in found):
        return True
    if not found and job.age_seconds(held.at) < SETTLED:
        return True
    return bool(places.machines(config, jobs=[held.name], sweeps=[held.name]))


def cost_of(bucket: Bucket, ended: states.Stored) -> float:
    """Return what a job has cost. Its price and its number of machines are those of its metadata,
    which no other job can change unnoticed.
    """
    this = states.read_job(bucket, ended.name)
    state = replace(ended.state, job=this.summary()) if this else ended.state
    return spending.so_far(state, 0) or 0.0


def after(seconds: float) -> str:
    """Return the time in so many seconds."""
    return job.timestamp(datetime.now(timezone.utc) + timedelta(seconds=seconds))

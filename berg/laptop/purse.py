"""Purses: what several jobs may cost together (--purse, BERG_PURSE), and the budget for a day.

A purse is two objects in the bucket: its terms, which only its owner changes, and its ledger, in
which submits reserve what they may cost (ledger.py). A user's budget for a day is a ledger whose
terms are in the settings. Jobs of unknown price are not in it.

With the credentials of the purse's owner it is a guard, not a wall: a program that may create
machines can do so without Berg. For a service account, IAM keeps the terms (`berg purse create
--for`).
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone

from berg import BergError, job, states, validation
from berg.config import Config
from berg.google import iam
from berg.google.storage import Bucket, Changed
from berg.laptop import ledger, spending
from berg.laptop.ledger import Ledger, Reservation
from berg.plain import dollars, span
from berg.plan import Plan

DAYS = ".berg/days/"
TERMS = "/purse.json"
SMALLEST = 1e-6  # USD: what sums are rounded to


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
    found, generation = ledger.read_as(Purse, bucket, path(name))
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
    return Filled(purse, ledger.settle(config, iam.ledger_of(purse.name), ""))


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
    found = ledger.settle(plan.config, day_path(plan.config), today())
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
    wanted.claim, wanted.since = claim, ledger.ends(config, wanted.name)

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
        ledger.change(config, *where, take)
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
        ledger.change(config, *where, note)


def release(config: Config, claim: str) -> None:
    """Give back what a submit reserved of which nothing is left."""
    for where in ledgers(config):
        ledger.change(config, *where, lambda found: found.without(claim))


def settle_all(config: Config) -> None:
    """Enter in all ledgers what ended jobs have cost, before their records are removed."""
    all_of(config)
    for each in Bucket(config).list(DAYS, "name"):
        ledger.settle(config, each.name, today())


def ledgers(config: Config) -> list[tuple[str, str]]:
    """Return the objects and the days of the ledgers that jobs draw on."""
    found = [(iam.ledger_of(config.purse), "")] if config.purse else []
    return [*found, (day_path(config), today())] if config.budget else found


def day_path(config: Config) -> str:
    """Return the ledger of the user's budget for a day."""
    return f"{DAYS}{config.user}.json"


def today() -> str:
    return job.now()[:10]


def after(seconds: float) -> str:
    """Return the time in so many seconds."""
    return job.timestamp(datetime.fromtimestamp(job.clock() + seconds, timezone.utc))

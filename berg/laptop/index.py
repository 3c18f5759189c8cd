"""An index of jobs, so that a list looks at what lives and what is new, and not at all there was.

.berg/index/living/NAME
    a job that may not be over; NAME.sweep for a sweep
.berg/index/living/.complete
    says that all jobs are in the index; without it nothing of it counts
.berg/index/recent/USER/TIME-NAME
    a person's job or sweep; TIME counts backwards, so that the newest comes first
.berg/index/recent/USER/more
    says that there are older ones without an entry

The objects are empty, and only laptops may write them. The state alone says what a job is: an entry
without one counts for nothing. An entry is written after the state that it leads to, and deleted
only as it was before that state was read, so that a job which begins meanwhile keeps its own. A
state may be another job's lie of the moment: an entry goes only if records that machines cannot
write agree (recent.py).

Not covered: a job whose submit broke off before its entry was written, until a list sees its
machine or looks at all jobs.

A look at the jobs that live and at the newest others, which the index leads to (index.py).

Machines are listed anyway, so that a job which has one is found without an entry, too. Where there
is no index, or it has too little, the look is at all jobs, and makes the index anew.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from berg import BergError, job, places, states
from berg.config import Config
from berg.google import api
from berg.google.storage import Bucket, Listed
from berg.laptop import jobs as names
from berg.laptop.jobs import (
    Entry,
    by_owner,
    entries_of,
    living,
    overview,
    silent,
    sorted_of,
)
from berg.states import Stored

TOP = ".berg/index/"

LIVING, RECENT = f"{TOP}living/", f"{TOP}recent/"

COMPLETE = f"{LIVING}.complete"

MORE = "more"

SWEEP = ".sweep"  # ends the entry of a sweep

KEPT = 50  # jobs of a person that are entered, the newest, where there was no index

FIELDS = "name,generation"

LATEST = 9_999_999_999  # seconds since 1970 from which entries count backwards

USER = re.compile("[-a-z0-9_]{1,63}")

SPARE = 20  # entries that are looked at beside those asked for: of some the job may be gone

THREADS = 16

# Returns those of some entries that go: see recent.py.
MayGo = Callable[[list[Listed]], list[Listed]]


@dataclass
class Index:
    """What the index has for one list. Jobs are by their names, sweeps by theirs with a `/`."""

    living: dict[str, Listed] = field(default_factory=dict)
    recent: dict[str, Listed] = field(default_factory=dict)
    is_complete: bool = False


def of_state(name: str, summary: job.Summary) -> str:
    """Return what a job is entered as: the sweep that it belongs to, or itself."""
    return f"{summary.sweep}/" if summary.sweep else name


def living_path(entry: str) -> str:
    return LIVING + entry.replace("/", SWEEP)


def recent_path(entry: str, summary: job.Summary) -> str:
    """Return the object that brings a job or a sweep into its person's list."""
    user = summary.user if USER.fullmatch(summary.user) else "-"
    seconds = LATEST - min(LATEST, max(0, seconds_of(summary.created_at)))
    return f"{RECENT}{user}/{seconds:010}-{entry.replace('/', SWEEP)}"


def seconds_of(created_at: str) -> int:
    """Return a time in seconds since 1970, 0 for what is none."""
    try:
        return int(api.time_of(created_at).timestamp())
    except (ValueError, OverflowError):
        return 0


def entry_of(path: str) -> str:
    """Return what an object of the index is the entry of; "" if of nothing."""
    last = path.rpartition("/")[2]
    if path.startswith(RECENT):
        last = last.partition("-")[2]
    name = last.removesuffix(SWEEP)
    if not job.NAME.fullmatch(name):
        return ""
    return name if name == last else f"{name}/"


def note(bucket: Bucket, name: str, summary: job.Summary) -> None:
    """Enter a job or its sweep, which has a state by now."""
    entry = of_state(name, summary)
    write(bucket, [living_path(entry), recent_path(entry, summary)])


def write(bucket: Bucket, paths: Iterable[str]) -> None:
    """Write entries; who may not write them does without."""
    with contextlib.suppress(api.Forbidden), ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda path: bucket.write(path, b""), paths))


def read(bucket: Bucket, user: str | None, limit: int) -> Index:
    """Return what may live, of anybody, and at least `limit` of a person's newest others (None:
    everybody's) if there are as many.

    It is not complete where the index was never made, or has not as many.
    """
    with ThreadPoolExecutor(2) as pool:
        people = pool.submit(newest, bucket, user)
        found = Index()
        for listed in bucket.list(LIVING, FIELDS):
            found.is_complete |= listed.name == COMPLETE
            if entry := entry_of(listed.name):
                found.living[entry] = listed
        if not found.is_complete:
            return found
        for mine in people.result():
            found.is_complete &= take(found, mine, limit)
    return found


def newest(bucket: Bucket, user: str | None) -> list[Iterator[Listed]]:
    """Return each person's entries, the newest first; the first of them has come by then."""
    folders = [f"{RECENT}{user}/"] if user else bucket.folders(RECENT)
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda folder: begun(bucket, folder), folders))


def begun(bucket: Bucket, folder: str) -> Iterator[Listed]:
    """Return what lies in a folder; its first page has come by then."""
    rest = bucket.list(folder, FIELDS)
    first = next(rest, None)
    return iter(()) if first is None else chained(first, rest)


def chained(first: Listed, rest: Iterator[Listed]) -> Iterator[Listed]:
    yield first
    yield from rest


def take(found: Index, mine: Iterator[Listed], limit: int) -> bool:
    """Put `limit` of a person's entries and some more into the index beside what lives; return
    False if there may be as many and they have no entries.
    """
    taken = 0
    for listed in mine:
        if listed.name.endswith(f"/{MORE}"):
            return False
        entry = entry_of(listed.name)
        if not entry or entry in found.living:
            continue
        if taken == limit + SPARE:
            break
        taken += 1
        found.recent[entry] = listed
    return True


def everything(bucket: Bucket) -> list[Listed]:
    """Return all objects of the index."""
    return list(bucket.list(TOP, FIELDS))


def has(names: set[str], name: str, state: job.State) -> bool:
    """Return whether an index of objects of these names has a job, as its state wants it."""
    entry = of_state(name, state.job)
    recent = recent_path(entry, state.job)
    if not state.final and living_path(entry) not in names:
        return False
    return recent in names or f"{recent.rpartition('/')[0]}/{MORE}" in names


def build(
    bucket: Bucket,
    there: list[Listed],
    jobs: list[tuple[str, job.Summary]],
    living: set[str],
    may_go: MayGo,
) -> None:
    """Make the index what all jobs say, whose names, summaries and entries that live are given.

    `there` is what it had before they were read.
    """
    wanted = {living_path(entry) for entry in living} | set(recent_of(jobs))
    entered = {of_state(*each) for each in jobs}
    names = {listed.name for listed in there}
    wrong = [
        listed
        for listed in there
        if (entry := entry_of(listed.name))
        and entry not in (living if listed.name.startswith(LIVING) else entered)
    ]
    write(bucket, sorted(wanted - names))
    write(bucket, {COMPLETE} - names)
    delete(bucket, may_go(wrong))


def recent_of(jobs: list[tuple[str, job.Summary]]) -> Iterator[str]:
    """Yield the paths of each person's newest jobs and sweeps, and of what says there are more."""
    people: dict[str, dict[str, str]] = {}
    for name, summary in jobs:
        entry = of_state(name, summary)
        if entry_of(living_path(entry)):
            path = recent_path(entry, summary)
            people.setdefault(path[: path.rindex("/")], {}).setdefault(entry, path)
    for folder, paths in people.items():
        yield from sorted(paths.values())[:KEPT]
        if len(paths) > KEPT:
            yield f"{folder}/{MORE}"


def delete(bucket: Bucket, entries: Collection[Listed]) -> None:
    """Delete entries as they were when they were listed; who may not does without."""
    with contextlib.suppress(api.Forbidden):
        bucket.delete_all_at([(each.name, each.generation) for each in entries])


def listed_jobs(bucket: Bucket, jobs: list[tuple[str, job.Summary]]) -> list[Listed]:
    """Return the objects that are the entries of jobs with these names and summaries."""
    paths = set()
    for name, summary in jobs:
        entry = of_state(name, summary)
        paths |= {living_path(entry), recent_path(entry, summary)}
    return [listed for listed in bucket.gets(sorted(paths), FIELDS) if listed]


def tidy_index(
    bucket: Bucket, found: Index, known: set[str], living: set[str], may_go: MayGo
) -> None:
    """Delete what the states of a list showed to be over or gone.

    `known` are the entries that have a state, `living` those that are not over.
    """
    over = [listed for entry, listed in found.living.items() if entry not in living]
    delete(bucket, may_go(over + gone(found, known)))


def gone(found: Index, known: set[str]) -> list[Listed]:
    """Return the entries of jobs that are not there any more, as `known` are those that are."""
    return [listed for entry, listed in found.recent.items() if entry not in known]


Say = Callable[[str], None]


@dataclass
class Look:
    """What a look found, and what brings the index up to date with it: that can wait."""

    entries: list[Entry]  # the newest first
    tidy: Callable[[], None]


def look(config: Config, user: str | None, limit: int, say: Say = silent) -> Look:
    """Return the jobs and machines of a user (None: everybody's) that live, and at least the
    `limit` newest others, if there are as many.
    """
    _ = config.credentials
    bucket = Bucket(config)
    with ThreadPoolExecutor() as pool:
        listed = pool.submit(places.machines, config)
        try:
            found = read(bucket, user, limit)
        except api.NotFound:
            found = Index()
        if not found.is_complete:
            return look_at_all(config, user, say)
        stored = read_states(bucket, [*found.living, *found.recent])
        owned = by_owner(listed.result())
    stored |= read_states(bucket, set(owned) - set(found.living) - set(found.recent))
    known = {of_state(each.name, each.state.job) for each in stored.values()} | set(stored)
    if len(gone(found, known)) > SPARE:
        return look_at_all(config, user, say)
    entries = entries_of(config, list(stored.values()), owned, others=True)
    entries = sorted_of(entries, None)
    named = [(each.name, each.sweep) for each in entries]
    names.remember(named, living(entries), is_all=False)

    def tidy() -> None:
        alive = entered(entries)
        may_go = partial(over, config, bucket, entries)
        tidy_index(bucket, found, known, set(alive), may_go)
        for entry in set(alive) - set(found.living):
            note(bucket, alive[entry].name, alive[entry].summary)

    return Look(sorted_of(entries, user), quietly(tidy))


def look_at_all(config: Config, user: str | None, say: Say = silent) -> Look:
    """Return all jobs and machines of a user (None: everybody's)."""
    bucket = Bucket(config)
    try:
        there = everything(bucket)
    except api.NotFound:  # without a bucket there are machines alone
        return Look(overview(config, user, say=say), lambda: None)
    entries = overview(config, None, say=say)

    def tidy() -> None:
        jobs = [(each.name, each.summary) for each in entries if each.stored]
        may_go = partial(over, config, bucket, entries)
        build(bucket, there, jobs, set(entered(entries)), may_go)

    return Look(sorted_of(entries, user), quietly(tidy))


def read_states(bucket: Bucket, entries: Collection[str]) -> dict[str, Stored]:
    """Return the states of jobs and of all jobs of sweeps, by the jobs' names."""
    alone = [entry for entry in entries if not entry.endswith("/")]
    sweeps = [entry.rstrip("/") for entry in entries if entry.endswith("/")]
    with ThreadPoolExecutor() as pool:
        of_sweeps = pool.map(lambda name: list(states.of_sweep(bucket, name)), sweeps)
        single = list(states.several(bucket, alone))
        return {each.name: each for each in chain(single, *of_sweeps)}


def entered(entries: list[Entry]) -> dict[str, Entry]:
    """Return one of the jobs of each entry of the index that may live, by what it is entered as.

    A job that is lost is one: nobody wrote that it is over.
    """
    return {
        of_state(each.name, each.summary): each
        for each in entries
        if each.stored and (each.machines or each.workers or not each.stored.state.final)
    }


def over(
    config: Config, bucket: Bucket, entries: list[Entry], candidates: list[Listed]
) -> list[Listed]:
    """Return those of some entries of the index whose jobs are over or gone, also by what machines
    cannot write: the jobs' metadata, the sweeps' records, the lists of machines and of what waits
    for some.

    A job may write another one's state for a moment. What the state says of a job's end is believed
    then only if it has no machine and none is to come.
    """
    waiting = functools.cache(lambda place: places.of(place).waiting(config))
    stored = {each.name: each.stored for each in entries if each.stored}
    owners = {each.name for each in entries if each.machines}
    owners |= {f"{each.sweep}/" for each in entries if each.workers}

    def is_over(listed: Listed) -> bool:
        entry = entry_of(listed.name)
        try:
            names, this = recorded(bucket, entry)
            if not names:
                return True
            if entry in owners or not listed.name.startswith(LIVING):
                return False
            said = {name: stored[name] for name in names if name in stored}
            for each in states.several(bucket, set(names) - set(said)):
                said[each.name] = each
            ended = [each for each in said.values() if each.state.final and not each.is_damaged]
            return len(ended) == len(names) and not (this and is_to_come(this, waiting))
        except BergError:  # a record is damaged, or nobody may look
            return False

    with ThreadPoolExecutor(THREADS) as pool:
        each_over = pool.map(is_over, candidates)
        return [listed for listed, goes in zip(candidates, each_over, strict=True) if goes]


def recorded(bucket: Bucket, entry: str) -> tuple[list[str], job.Job | None]:
    """Return the names of the jobs that an entry is for, and the first of them; no names for what
    is not there, and for a job whose sweep has the entry.
    """
    if entry.endswith("/"):
        sweep = states.read_sweep(bucket, entry.rstrip("/"))
        names = sweep.jobs if sweep else []
        return names, states.read_job(bucket, names[0]) if names else None
    this = states.read_job(bucket, entry)
    return [] if this is None or this.sweep else [entry], this


def is_to_come(this: job.Job, waiting: Callable[[str], set[str]]) -> bool:
    """Return whether a place makes machines for a job."""
    if this.place == "gce" and not this.group:
        return False
    return not waiting(this.place).isdisjoint((this.job_name, this.sweep, str(this.group)))


def quietly(tidy: Callable[[], None]) -> Callable[[], None]:
    """Return what tidies the index and is silent where that fails: the next list does it."""

    def attempt() -> None:
        with contextlib.suppress(api.GoogleError, api.RetryError, OSError):
            tidy()

    return attempt

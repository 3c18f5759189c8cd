"""An index of jobs, so that a list reads the states of those that live and of the newest others.

.berg/index/living/NAME                a job that may not have ended; NAME.sweep for a sweep
.berg/index/living/.complete           all jobs are indexed; without it the index does not count
.berg/index/recent/USER/TIME-NAME      a user's job or sweep; TIME counts backwards, newest first
.berg/index/recent/USER/more           older jobs have no entry

The objects are empty, and only laptops may write them. An entry is written before its state, so
that a submit that is cut off is found; an entry without one does not count. A job may damage
another one's state for a moment, so an entry is deleted only if records agree that machines cannot
write (`ended`), and only as it was listed.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

from berg import BergError, job, places, states
from berg.config import Config
from berg.google import api
from berg.google.storage import Bucket, Listed
from berg.laptop import jobs
from berg.laptop.jobs import Entry, Say
from berg.states import Stored

TOP = ".berg/index/"
LIVING, RECENT = f"{TOP}living/", f"{TOP}recent/"
COMPLETE = f"{LIVING}.complete"
MORE = "more"
SWEEP = ".sweep"  # ends the entry of a sweep
KEPT = 50  # newest jobs of a user that are entered when the index is made
FIELDS = "name,updated,generation"
SETTLED = 300  # seconds after which an entry without a job has none to come
LATEST = 9_999_999_999  # seconds since 1970 from which entries count backwards
USER = re.compile("[-a-z0-9_]{1,63}")
SPARE = 20  # more entries than asked for are read: the jobs of some may be gone
THREADS = 16


@dataclass
class Index:
    """What the index has for one list. Jobs are by their names, sweeps by theirs with a `/`."""

    living: dict[str, Listed] = field(default_factory=dict)
    recent: dict[str, Listed] = field(default_factory=dict)
    is_complete: bool = False


@dataclass
class Look:
    """The jobs and machines found, newest first, and a step for later that updates the index."""

    entries: list[Entry]
    update: Callable[[], None]

    def tidy(self) -> None:
        """Update the index; if that fails, the next list does."""
        with contextlib.suppress(api.GoogleError, api.RetryError, OSError):
            self.update()


# --- entries


def of_state(name: str, summary: job.Summary) -> str:
    """Return what a job is entered as: the sweep that it belongs to, or itself."""
    return f"{summary.sweep}/" if summary.sweep else name


def living_path(entry: str) -> str:
    return LIVING + entry.replace("/", SWEEP)


def recent_path(entry: str, summary: job.Summary) -> str:
    """Return the object that lists a job or a sweep under its user."""
    user = summary.user if USER.fullmatch(summary.user) else "-"
    try:
        created = int(job.time_of(summary.created_at).timestamp())
    except (ValueError, OverflowError):
        created = 0
    seconds = LATEST - min(LATEST, max(0, created))
    return f"{RECENT}{user}/{seconds:010}-{entry.replace('/', SWEEP)}"


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
    """Enter a job or its sweep, before its state is written."""
    entry = of_state(name, summary)
    write(bucket, [living_path(entry), recent_path(entry, summary)])


def write(bucket: Bucket, paths: Iterable[str]) -> None:
    """Write entries; users without the right have no index."""
    with contextlib.suppress(api.Forbidden), ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda path: bucket.write(path, b""), paths))


def delete(bucket: Bucket, entries: Collection[Listed]) -> None:
    """Delete entries as they were listed, if the user has the right."""
    with contextlib.suppress(api.Forbidden):
        bucket.delete_all_at([(each.name, each.generation) for each in entries])


def listed_jobs(bucket: Bucket, named: list[tuple[str, job.Summary]]) -> list[Listed]:
    """Return the objects that are the entries of jobs with these names and summaries."""
    paths = set()
    for name, summary in named:
        entry = of_state(name, summary)
        paths |= {living_path(entry), recent_path(entry, summary)}
    return [listed for listed in bucket.gets(sorted(paths), FIELDS) if listed]


def has(paths: set[str], name: str, state: job.State) -> bool:
    """Return whether an index with these objects has a job, as its state requires."""
    entry = of_state(name, state.job)
    recent = recent_path(entry, state.job)
    if not state.final and living_path(entry) not in paths:
        return False
    return recent in paths or f"{recent.rpartition('/')[0]}/{MORE}" in paths


# --- a look by the index


def look(config: Config, user: str | None, limit: int, say: Say = jobs.silent) -> Look:
    """Return a user's jobs and machines (None: all users') that live, and at least the `limit`
    newest others, if there are as many.

    Machines are listed anyway, so jobs with machines need no entry. Without a complete index this
    looks at all jobs, and makes the index.
    """
    _ = config.credentials
    bucket = Bucket(config)
    with ThreadPoolExecutor() as pool:
        machines = pool.submit(places.machines, config)
        try:
            found = read(bucket, user, limit)
        except api.NotFound:
            found = Index()
        if not found.is_complete:
            return look_at_all(config, user, say)
        stored = read_states(bucket, [*found.living, *found.recent])
        owned = jobs.by_owner(machines.result())
    stored |= read_states(bucket, owned.keys() - found.living.keys() - found.recent.keys())
    known = {of_state(each.name, each.state.job) for each in stored.values()} | set(stored)
    gone = [listed for entry, listed in found.recent.items() if entry not in known]
    if len(gone) > SPARE:
        return look_at_all(config, user, say)
    entries = jobs.entries_of(config, list(stored.values()), owned, others=True)
    entries = jobs.sorted_of(entries, None)
    named = [(each.name, each.sweep) for each in entries]
    jobs.remember(named, jobs.living(entries), is_all=False)

    def update() -> None:
        alive = entered(entries)
        over = [listed for entry, listed in found.living.items() if entry not in alive]
        delete(bucket, ended(config, bucket, entries, over + gone))
        for entry in alive.keys() - found.living.keys():
            note(bucket, alive[entry].name, alive[entry].summary)

    return Look(jobs.sorted_of(entries, user), update)


def read(bucket: Bucket, user: str | None, limit: int) -> Index:
    """Return what may live, of all users, and at least `limit` of a user's newest others (None: of
    each user's). The index is not complete if it was never made, or has fewer.
    """
    with ThreadPoolExecutor(2) as pool:
        newest = pool.submit(begin_lists, bucket, user)
        found = Index()
        for listed in bucket.list(LIVING, FIELDS):
            found.is_complete |= listed.name == COMPLETE
            if entry := entry_of(listed.name):
                found.living[entry] = listed
        if not found.is_complete:
            return found
        for entries in newest.result():
            found.is_complete &= take(found, entries, limit)
    return found


def begin_lists(bucket: Bucket, user: str | None) -> list[Iterator[Listed]]:
    """Return each user's entries, the newest first; the first page of each has come."""

    def begin(folder: str) -> Iterator[Listed]:
        listed = bucket.list(folder, FIELDS)
        first = next(listed, None)
        return chain([first], listed) if first else iter(())

    folders = [f"{RECENT}{user}/"] if user else bucket.folders(RECENT)
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, folders))


def take(found: Index, entries: Iterator[Listed], limit: int) -> bool:
    """Add `limit` and some more of a user's entries that do not live; return False if there may be
    as many, but without entries.
    """
    taken = 0
    for listed in entries:
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


def read_states(bucket: Bucket, entries: Collection[str]) -> dict[str, Stored]:
    """Return the states of jobs and of all jobs of sweeps, by the jobs' names."""
    alone = [entry for entry in entries if not entry.endswith("/")]
    sweeps = [entry.rstrip("/") for entry in entries if entry.endswith("/")]
    with ThreadPoolExecutor() as pool:
        of_sweeps = pool.map(lambda name: list(states.of_sweep(bucket, name)), sweeps)
        single = list(states.several(bucket, alone))
        return {each.name: each for each in chain(single, *of_sweeps)}


def entered(entries: list[Entry]) -> dict[str, Entry]:
    """Return the jobs that may live, one for each entry of the index.

    A lost job is one: no worker wrote that it ended.
    """
    return {
        of_state(each.name, each.summary): each
        for each in entries
        if each.stored and (each.machines or each.workers or not each.stored.state.final)
    }


# --- a look at all jobs


def look_at_all(config: Config, user: str | None, say: Say = jobs.silent) -> Look:
    """Return all jobs and machines of a user (None: all users'); `tidy` makes the index."""
    bucket = Bucket(config)
    try:
        there = list(bucket.list(TOP, FIELDS))
    except api.NotFound:  # without a bucket there are only machines
        return Look(jobs.overview(config, user, say=say), lambda: None)
    entries = jobs.overview(config, None, say=say)

    def update() -> None:
        living = entered(entries)
        named = [(each.name, each.summary) for each in entries if each.stored]
        all_entries = {of_state(*each) for each in named}
        wanted = {living_path(entry) for entry in living} | set(recent_paths(named))
        paths = {listed.name for listed in there}
        write(bucket, sorted(wanted - paths))
        write(bucket, {COMPLETE} - paths)
        wrong = []
        for listed in there:
            allowed = living if listed.name.startswith(LIVING) else all_entries
            if (entry := entry_of(listed.name)) and entry not in allowed:
                wrong.append(listed)
        delete(bucket, ended(config, bucket, entries, wrong))

    return Look(jobs.sorted_of(entries, user), update)


def recent_paths(named: list[tuple[str, job.Summary]]) -> Iterator[str]:
    """Yield the paths of each user's newest jobs and sweeps, and the mark that there are more."""
    users: dict[str, dict[str, str]] = {}
    for name, summary in named:
        entry = of_state(name, summary)
        if entry_of(living_path(entry)):
            path = recent_path(entry, summary)
            users.setdefault(path[: path.rindex("/")], {}).setdefault(entry, path)
    for folder, paths in users.items():
        yield from sorted(paths.values())[:KEPT]
        if len(paths) > KEPT:
            yield f"{folder}/{MORE}"


# --- which entries may go


def ended(
    config: Config, bucket: Bucket, entries: list[Entry], candidates: list[Listed]
) -> list[Listed]:
    """Return those entries of the index whose jobs have ended or are gone.

    Machines can write states, so records that they cannot write must agree: the jobs' metadata, the
    sweeps' records, and that no machine is there or to come.
    """
    waiting = functools.cache(lambda place: places.of(place).waiting(config))
    stored = {each.name: each.stored for each in entries if each.stored}
    known = {of_state(each.name, each.summary) for each in entries} | {*stored}
    owners = {each.name for each in entries if each.machines}
    owners |= {f"{each.sweep}/" for each in entries if each.workers}

    def has_ended(listed: Listed) -> bool:
        entry = entry_of(listed.name)
        try:
            names, this = recorded(bucket, entry)
            if not names:
                age = job.clock() - (listed.updated.timestamp() if listed.updated else 0)
                return entry in known or age > SETTLED
            if entry in owners or not listed.name.startswith(LIVING):
                return False
            seen = {name: stored[name] for name in names if name in stored}
            seen |= {each.name: each for each in states.several(bucket, set(names) - set(seen))}
            over = [each for each in seen.values() if each.state.final and not each.is_damaged]
            is_to_come = this and jobs.is_to_come(this.job_name, this, waiting)
            return len(over) == len(names) and not is_to_come
        except BergError:  # a record is damaged, or may not be read
            return False

    with ThreadPoolExecutor(THREADS) as pool:
        results = pool.map(has_ended, candidates)
        return [listed for listed, goes in zip(candidates, results, strict=True) if goes]


def recorded(bucket: Bucket, entry: str) -> tuple[list[str], job.Job | None]:
    """Return the names of an entry's jobs, and the first job; no names for jobs that are not there
    or belong to the entry of a sweep.
    """
    if entry.endswith("/"):
        sweep = states.read_sweep(bucket, entry.rstrip("/"))
        names = sweep.jobs if sweep else []
        return names, states.read_job(bucket, names[0]) if names else None
    this = states.read_job(bucket, entry)
    return [] if this is None or this.sweep else [entry], this

"""A look at the jobs that live and at the newest others, which the index leads to (index.py).

Machines are listed anyway, so that a job which has one is found without an entry, too. Where there
is no index, or it has too little, the look is at all jobs, and makes the index anew.
"""

import contextlib
import functools
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain

from berg import BergError, job, places, states
from berg.config import Config
from berg.google import http
from berg.google.storage import Bucket, Listed
from berg.laptop import index, names
from berg.laptop.index import Index
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
    _ = config.session
    bucket = Bucket(config)
    with ThreadPoolExecutor() as pool:
        listed = pool.submit(places.machines, config)
        try:
            found = index.read(bucket, user, limit)
        except http.NotFound:
            found = Index()
        if not found.is_complete:
            return look_at_all(config, user, say)
        stored = read(bucket, [*found.living, *found.recent])
        owned = by_owner(listed.result())
    stored |= read(bucket, set(owned) - set(found.living) - set(found.recent))
    known = {index.of_state(each.name, each.state.job) for each in stored.values()} | set(stored)
    if len(index.gone(found, known)) > index.SPARE:
        return look_at_all(config, user, say)
    entries = entries_of(config, list(stored.values()), owned, others=True)
    entries = sorted_of(entries, None)
    named = [(each.name, each.sweep) for each in entries]
    names.remember(named, living(entries), is_all=False)

    def tidy() -> None:
        alive = entered(entries)
        may_go = partial(over, config, bucket, entries)
        index.tidy(bucket, found, known, set(alive), may_go)
        for entry in set(alive) - set(found.living):
            index.note(bucket, alive[entry].name, alive[entry].summary)

    return Look(sorted_of(entries, user), quietly(tidy))


def look_at_all(config: Config, user: str | None, say: Say = silent) -> Look:
    """Return all jobs and machines of a user (None: everybody's)."""
    bucket = Bucket(config)
    try:
        there = index.everything(bucket)
    except http.NotFound:  # without a bucket there are machines alone
        return Look(overview(config, user, say=say), lambda: None)
    entries = overview(config, None, say=say)

    def tidy() -> None:
        jobs = [(each.name, each.summary) for each in entries if each.stored]
        may_go = partial(over, config, bucket, entries)
        index.build(bucket, there, jobs, set(entered(entries)), may_go)

    return Look(sorted_of(entries, user), quietly(tidy))


def read(bucket: Bucket, entries: Collection[str]) -> dict[str, Stored]:
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
        index.of_state(each.name, each.summary): each
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
        entry = index.entry_of(listed.name)
        try:
            names, this = recorded(bucket, entry)
            if not names:
                return True
            if entry in owners or not listed.name.startswith(index.LIVING):
                return False
            said = {name: stored[name] for name in names if name in stored}
            for each in states.several(bucket, set(names) - set(said)):
                said[each.name] = each
            ended = [each for each in said.values() if each.state.final and not each.is_damaged]
            return len(ended) == len(names) and not (this and is_to_come(this, waiting))
        except BergError:  # a record is damaged, or nobody may look
            return False

    with ThreadPoolExecutor(index.THREADS) as pool:
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
        with contextlib.suppress(http.GoogleError, http.RetryError, OSError):
            tidy()

    return attempt

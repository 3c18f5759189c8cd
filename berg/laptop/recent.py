"""A look at the jobs that live and at the newest others, which the index leads to (index.py).

Machines are listed anyway, so that a job which has one is found without an entry, too. Where there
is no index, or it has too little, the look is at all jobs, and makes the index anew.
"""

import contextlib
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

from berg import places, states
from berg.config import Config
from berg.google.storage import Bucket
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
    from google.api_core import exceptions

    _ = config.session
    bucket = Bucket(config)
    with ThreadPoolExecutor() as pool:
        listed = pool.submit(places.machines, config)
        try:
            found = index.read(bucket, user, limit)
        except exceptions.NotFound:
            found = Index()
        if not found.is_complete:
            return look_at_all(config, user, say)
        stored = read(bucket, [*found.living, *found.recent])
        owned = by_owner(listed.result())
    stored |= read(bucket, set(owned) - set(found.living) - set(found.recent))
    known = {index.of_state(each.name, each.state.job) for each in stored.values()}
    if len(index.gone(found, known)) > index.SPARE:
        return look_at_all(config, user, say)
    entries = entries_of(config, list(stored.values()), owned, others=True)
    entries = sorted_of(entries, None)
    named = [(each.name, each.sweep) for each in entries]
    names.remember(named, living(entries), is_all=False)

    def tidy() -> None:
        alive = entered(entries)
        index.tidy(bucket, found, known, set(alive))
        for entry in set(alive) - set(found.living):
            index.note(bucket, alive[entry].name, alive[entry].summary)

    return Look(sorted_of(entries, user), quietly(tidy))


def look_at_all(config: Config, user: str | None, say: Say = silent) -> Look:
    """Return all jobs and machines of a user (None: everybody's)."""
    from google.api_core import exceptions

    bucket = Bucket(config)
    try:
        there = index.everything(bucket)
    except exceptions.NotFound:  # without a bucket there are machines alone
        return Look(overview(config, user, say=say), lambda: None)
    entries = overview(config, None, say=say)

    def tidy() -> None:
        jobs = [(each.name, each.summary) for each in entries if each.stored]
        index.build(bucket, there, jobs, set(entered(entries)))

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


def quietly(tidy: Callable[[], None]) -> Callable[[], None]:
    """Return what tidies the index and is silent where that fails: the next list does it."""

    def attempt() -> None:
        from google.api_core import exceptions

        with contextlib.suppress(exceptions.GoogleAPIError, OSError):
            tidy()

    return attempt

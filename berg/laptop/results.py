"""Where results lie in the bucket: those of a job, or a folder of them.

It imports no place for jobs: whoever brings the results of a job that is over needs none.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from berg import BergError, job, states, validation
from berg.config import Config
from berg.google import api
from berg.google.storage import Bucket, Listed
from berg.job import State
from berg.states import Stored

SETTLED = 10  # seconds after a job's end at which a list that was begun before has all


@dataclass
class Found:
    """What a name stands for."""

    name: str
    is_sweep: bool
    prefix: str = ""  # of the objects
    stored: Stored | None = None  # the state, if it is a job
    begun: Iterator[Listed] | None = None  # what is there, if that was asked for already


def look_up(config: Config, name: str, is_once: bool) -> Found:
    """Return what a name stands for. All that may be needed of it is asked for at the same time,
    and if the results are brought but once, the list of the folder of that name, too.
    """
    bucket = Bucket(config)
    with ThreadPoolExecutor(2) as pool:
        sweep = pool.submit(states.sweep_exists, bucket, name)
        found = pool.submit(find, config, name)
        guess, begun = "", None
        with contextlib.suppress(BergError):
            guess = prefix_of(config, name)
            begun = bucket.begin_list(guess) if is_once else None
        if sweep.result():
            return Found(name, True)
        prefix, stored = found.result()
    is_of_use = prefix == guess and not ended_now(config, stored)
    return Found(name, False, prefix, stored, begun if is_of_use else None)


def ended_now(config: Config, stored: Stored | None) -> bool:
    """Return whether a job may have ended after a list was begun that has not its last files."""
    if not stored or not stored.state.final:
        return False
    return api.now(config) < stored.written_at + SETTLED


def find(config: Config, name: str) -> tuple[str, Stored | None]:
    """Return the bucket's prefix for a job or a results folder, and the state if it is a job."""
    stored = states.read(Bucket(config), name)
    if stored and not stored.state.job.results_dir:
        raise BergError(
            f"{job.state_path(name)} is damaged. "
            "Fetch the folder of the results by its name: berg fetch FOLDER"
        )
    if stored:
        return f"berg_results/{stored.state.job.results_dir}/", stored
    return prefix_of(config, name), None


def prefix_of(config: Config, folder: str) -> str:
    """Return the bucket's prefix for a folder of results; raise BergError for what is none."""
    path = (
        folder.removeprefix(f"gs://{config.bucket}/")
        .removeprefix("/root/")
        .removeprefix("berg_results/")
    )
    return f"berg_results/{validation.check_results_dir(path.strip('/'))}/"


def state_of(config: Config, stored: Stored) -> State | None:
    """Return a job's state as a reader must see it; its machines are looked at until it is over."""
    if stored.state.final:
        return stored.state
    from berg.laptop import jobs

    return jobs.find(config, stored.name).state


def of_others(bucket: Bucket, folders: set[str], user: str) -> set[str]:
    """Return those of some folders of results that are in the results folder of another user's job.

    It mostly has the job's name: the jobs are looked up whose names are parts of the paths.
    """
    parts = {part for folder in folders for part in folder.split("/")}
    jobs = [stored.state.job for stored in states.several(bucket, sorted(parts))]
    theirs = tuple(f"{each.results_dir}/" for each in jobs if each.user not in ("", user))
    return {folder for folder in folders if f"{folder}/".startswith(theirs)}

"""What a name means: `@` and `-`, and where the results of a job or a folder are in the bucket.

It imports no place for jobs: commands with other names, and those that fetch, need none.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from berg import BergError, job, states, validation
from berg.config import Config
from berg.google.storage import Bucket, Listed
from berg.job import State
from berg.states import Stored

LATEST = ("@", "-")
SETTLED = 10  # seconds after a job's end from which a list has all of its files


def resolve(config: Config, name: str) -> str:
    """Return a name as it is; for `@` or `-` that of my latest job, or its sweep's, and for `@/0`
    that of a job of that sweep.
    """
    latest, slash, index = name.partition("/")
    if latest not in LATEST:
        return name
    listed = states.listed(Bucket(config))
    mine = [each for each in listed if not each.is_damaged and each.state.job.user == config.user]
    if not mine:
        raise BergError(
            f"{name} is your latest job, and you have none yet. "
            'Start with: berg run "python train.py"'
        )
    last = max(mine, key=lambda each: each.state.job.created_at)
    return f"{last.state.job.sweep or last.name}{slash}{index}"


@dataclass
class Found:
    """What a name means."""

    name: str
    is_sweep: bool
    prefix: str = ""  # of the results in the bucket
    stored: Stored | None = None  # the state, if it is a job
    begun: Iterator[Listed] | None = None  # the results, if they were asked for already


def look_up(config: Config, name: str, is_once: bool) -> Found:
    """Return what a name means, by requests in parallel; with `is_once` the results are listed,
    too, in case the folder has the same name.
    """
    bucket = Bucket(config)
    with ThreadPoolExecutor(2) as pool:
        sweep = pool.submit(states.sweep_exists, bucket, name)
        found = pool.submit(results_of, config, name)
        guess, begun = "", None
        with contextlib.suppress(BergError):
            guess = prefix_of(config, name)
            begun = bucket.begin_list(guess) if is_once else None
        if sweep.result():
            return Found(name, True)
        prefix, stored = found.result()
    # A job that ended after the list began may have more files.
    is_final = stored is not None and stored.state.final
    is_recent = stored is not None and job.clock() < stored.written_at + SETTLED
    is_of_use = prefix == guess and not (is_final and is_recent)
    return Found(name, False, prefix, stored, begun if is_of_use else None)


def results_of(config: Config, name: str) -> tuple[str, Stored | None]:
    """Return the bucket's prefix for a job or a results folder, and the state if it is a job."""
    stored = states.read(Bucket(config), name)
    if stored is None:
        return prefix_of(config, name), None
    if not stored.state.job.results_dir:
        raise BergError(
            f"{job.state_path(name)} is damaged. "
            "Fetch the results by the name of their folder: berg fetch FOLDER"
        )
    return f"berg_results/{stored.state.job.results_dir}/", stored


def prefix_of(config: Config, folder: str) -> str:
    """Return the bucket's prefix for a results folder; raise BergError for an invalid one."""
    path = (
        folder.removeprefix(f"gs://{config.bucket}/")
        .removeprefix("/root/")
        .removeprefix("berg_results/")
    )
    return f"berg_results/{validation.check_results_dir(path.strip('/'))}/"


def state_of(config: Config, stored: Stored) -> State | None:
    """Return a job's state as a reader must see it, by its machines if it is not final."""
    if stored.state.final:
        return stored.state
    from berg.laptop import jobs

    return jobs.find(config, stored.name).state


def of_others(bucket: Bucket, folders: set[str], user: str) -> set[str]:
    """Return those of some results folders that belong to another user's job.

    A folder mostly has its job's name, so jobs are looked up by the parts of the paths.
    """
    parts = {part for folder in folders for part in folder.split("/")}
    jobs = [stored.state.job for stored in states.several(bucket, sorted(parts))]
    theirs = tuple(f"{each.results_dir}/" for each in jobs if each.user not in ("", user))
    return {folder for folder in folders if f"{folder}/".startswith(theirs)}

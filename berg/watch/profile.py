"""Profiles of a running command: asked for on all its machines at once, waited for, and brought
here.
"""

import json
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from berg import BergError, job
from berg.config import Config
from berg.google.fetch import fetch
from berg.google.storage import Bucket
from berg.inventory import Machine
from berg.laptop import jobs

PATIENCE = 180  # seconds beside those of the profile: the first one may install py-spy
LOOK, POLL = 5, 1  # seconds between two looks at the machines, and for answers
UPLOAD = (
    45  # seconds for the files to be in the bucket; what came after a job's last upload never is
)
Answers = dict[str, dict[str, Any]]  # by machine: `kind` and `files`, or `error`


def take(config: Config, name: str, seconds: float, machine: str | None) -> Answers:
    """Profile what runs, on every machine or one; raises BergError where nothing does."""
    found = jobs.find(config, name)
    check(found, machine)
    machines = [
        each
        for each in found.machines
        if machine in (None, each.name) and each.status not in jobs.GOING
    ]
    if not machines:
        raise BergError(f"{machine or name} has no machine any more. See: berg show {found.name}")
    # two may ask in one second
    when = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    bucket = Bucket(config)
    answers = ask(config, found, machines, when, seconds)
    names = {each.name for each in machines}
    end, looked = time.monotonic() + seconds + PATIENCE, time.monotonic()
    while waiting := names - answers.keys():
        read_answers(bucket, found.name, when, waiting, answers)
        if time.monotonic() > end:
            answers |= {
                key: {"error": "it did not answer; is berg on it older?"}
                for key in names - answers.keys()
            }
        elif time.monotonic() - looked > LOOK:
            looked, found = time.monotonic(), jobs.find(config, name)
            there = {each.name for each in found.machines if each.status not in jobs.GOING}
            over = bool(found.state and found.state.final)
            if over or waiting - there:
                read_answers(bucket, found.name, when, waiting, answers)  # its last word
                why = "the job ended before its profile was taken" if over else "it is gone"
                gone = waiting - answers.keys() if over else waiting - there - answers.keys()
                answers |= {key: {"error": why} for key in gone}
        time.sleep(POLL)
    return answers


def check(found: jobs.Entry, machine: str | None) -> None:
    if found.state is None:
        raise BergError(f"{found.name} is a machine without a job: there is no command to profile")
    if found.state.final:
        raise BergError(
            f"{found.name} is over ({found.state.state}); a profile is of a command that runs"
        )
    if found.state.state != "RUNNING":
        raise BergError(
            f"{found.name} is {found.state.state}; a profile is of a command that runs. Try again later"
        )
    if machine and machine not in [each.name for each in found.machines]:
        names = ", ".join(each.name for each in found.machines) or "none"
        raise BergError(f"{found.name} has no machine {machine!r}. It has: {names}")


def ask(
    config: Config, found: jobs.Entry, machines: list[Machine], when: str, seconds: float
) -> Answers:
    """Tell machines to take a profile; returns those that cannot be told, with why."""

    def tell(machine: Machine) -> tuple[str, str]:
        try:
            found.place.tell(config, machine, f"berg-profile-{when}", f"{found.name} {seconds:g}")
        except Exception as error:
            return machine.name, f"it cannot be told: {getattr(error, 'message', error)}"
        return machine.name, ""

    with ThreadPoolExecutor(16) as pool:
        return {name: {"error": why} for name, why in pool.map(tell, machines) if why}


def read_answers(bucket: Bucket, name: str, when: str, waiting: set[str], answers: Answers) -> None:
    for blob in bucket.list(job.log_prefix(name), "name", f"**.{when}.profile.json"):
        machine = jobs.machine_of(blob.name)
        if machine in waiting and machine not in answers:
            answers[machine] = json.loads(bucket.read(blob.name) or b"{}")


def bring(config: Config, answers: Answers, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Bring the files of profiles to `folder`, which stands for berg_results, once they are in the
    bucket.
    """
    bucket, end = Bucket(config), time.monotonic() + UPLOAD
    wanted = [f"berg_results/{path}" for each in answers.values() for path in each.get("files", [])]
    blobs: dict[str, Any] = {}
    while (missing := [name for name in wanted if name not in blobs]) and time.monotonic() < end:
        blobs |= {name: blob for name in missing if (blob := bucket.get(name))}
        time.sleep(POLL if len(blobs) < len(wanted) else 0)
    _, _, left = fetch(bucket, "berg_results/", folder, listed=list(blobs.values()))
    for name in [*missing, *left]:
        say(f"gs://{bucket.name}/{name} could not be brought yet. Try: berg fetch")
    return [folder / name.removeprefix("berg_results/") for name in blobs if name not in left]

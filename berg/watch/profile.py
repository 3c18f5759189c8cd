"""Profiles of a running command: requested on all its machines at once, and downloaded here."""

import contextlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from berg import BergError, job, states, validation
from berg.config import Config
from berg.google import api
from berg.google.fetch import fetch
from berg.google.storage import Bucket, Listed
from berg.job import Machine
from berg.laptop import ending, jobs

TIMEOUT = 180  # seconds after those of the profile: the first one may install py-spy
LOOK, POLL = 5, 1  # seconds between two looks at the machines, and for answers
UPLOAD = 45  # seconds until the files are in the bucket; those after a job's last upload never are

Answers = dict[str, dict[str, Any]]  # machine -> `kind` and `files`, or `error`


@dataclass
class Answer:
    """What a machine reports about its profile."""

    kind: str = ""
    files: list[str] = field(default_factory=list)  # paths below berg_results
    error: str = ""


def find(config: Config, name: str, machine: str | None) -> tuple[jobs.Entry, list[Machine]]:
    """Return a running job, and its machines or the named one; raises BergError."""
    found = jobs.find(config, name)
    check(found, machine)
    machines = [each for each in running(found) if machine in (None, each.name)]
    if not machines:
        silent = "; ".join(ending.silences(found))
        why = f": {silent}" if silent else " has no machine any more"
        raise BergError(f"{machine or name}{why}. See: berg show {found.name}")
    return found, machines


def check(found: jobs.Entry, machine: str | None) -> None:
    """Raise BergError for a job that does not run, or a machine that it does not have."""
    only = "Only a running command can be profiled"
    if found.state is None:
        raise BergError(f"{found.name} is a machine without a job: there is no command to profile")
    if found.state.final:
        raise BergError(f"{found.name} is finished ({found.state.state}). {only}")
    if found.state.state != "RUNNING":
        raise BergError(f"{found.name} is {found.state.state}. {only}. Try again later")
    if machine and machine not in [each.name for each in found.machines]:
        names = ", ".join(each.name for each in found.machines) or "none"
        raise BergError(f"{found.name} has no machine {machine!r}. It has: {names}")


def running(found: jobs.Entry) -> list[Machine]:
    """Return the machines of a job that are not being deleted or stopped."""
    return [each for each in found.machines if each.status not in jobs.GOING]


def take(config: Config, found: jobs.Entry, machines: list[Machine], seconds: float) -> Answers:
    """Profile what runs on machines of a job, for 0 seconds its stacks; a machine without a profile
    has the reason.
    """
    # two users may ask within the same second
    when = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    answers = ask(config, found, machines, when, seconds)
    bucket, names = Bucket(config), {each.name for each in machines}
    looked = time.monotonic()

    def all_answered() -> bool:
        nonlocal found, looked
        read_answers(bucket, found.name, when, names, answers)
        if names - answers.keys() and time.monotonic() - looked > LOOK:
            looked, found = time.monotonic(), jobs.find(config, found.name)
            gone = gone_machines(found, names)
            if gone:
                read_answers(bucket, found.name, when, names, answers)  # the last ones
            for name, why in gone.items():
                answers.setdefault(name, {"error": why})
        return not names - answers.keys()

    api.wait_for(all_answered, POLL, seconds + TIMEOUT)
    for name in names - answers.keys():
        answers[name] = {"error": "it did not answer; is berg on it older?"}
    return answers


def ask(
    config: Config, found: jobs.Entry, machines: list[Machine], when: str, seconds: float
) -> Answers:
    """Request a profile from machines; return those where that failed, with the reason."""
    key, length = f"berg-profile-{when}", f"{seconds:g}" if seconds else "stacks"
    value = f"{found.name} {length}"

    def ask_one(machine: Machine) -> tuple[str, str]:
        try:
            found.place.set_metadata(config, machine, key, value)
        except Exception as error:
            why = getattr(error, "message", error)
            return machine.name, f"it could not be asked for a profile: {why}"
        return machine.name, ""

    with ThreadPoolExecutor(16) as pool:
        return {name: {"error": why} for name, why in pool.map(ask_one, machines) if why}


def read_answers(bucket: Bucket, name: str, when: str, names: set[str], answers: Answers) -> None:
    """Add the answers of those machines that are in the bucket by now."""
    for blob in bucket.list(job.log_prefix(name), "name", f"**.{when}.profile.json"):
        machine = jobs.machine_of(blob.name)
        if machine in names and machine not in answers:
            data = bucket.read_from(blob.name, 0, validation.MOST_BYTES + 1) or b"{}"
            try:
                answer = validation.from_dict(Answer, validation.parse(data))
                found = asdict(validation.cleaned(answer))
                answers[machine] = {key: value for key, value in found.items() if value}
            except ValueError as error:
                answers[machine] = {"error": f"its answer is damaged ({error})"}


def gone_machines(found: jobs.Entry, names: set[str]) -> dict[str, str]:
    """Return the machines that will not take a profile any more, with the reason."""
    if found.state and found.state.final:
        return dict.fromkeys(names, "the job ended before its profile was taken")
    return dict.fromkeys(names - {each.name for each in running(found)}, "it is gone")


def hottest(file: Path, count: int = 10) -> list[str]:
    """Return the lines of code that used the most time by py-spy; [] for any other file."""
    if not file.name.endswith(".speedscope.json"):
        return []
    try:
        profile = json.loads(file.read_text())
        frames, spent = profile["shared"]["frames"], Counter[int]()
        for each in profile["profiles"]:
            for stack, weight in zip(each["samples"], each["weights"], strict=True):
                spent[stack[-1] if stack else -1] += weight
        total = sum(spent.values()) or 1
        spent.pop(-1, None)  # nothing ran
        lines = []
        for index, weight in spent.most_common(count):
            frame = frames[index]
            where = f"{Path(frame.get('file') or '?').name}:{frame.get('line') or '?'}"
            lines.append(f"{100 * weight / total:5.1f} %  {frame['name']} ({where})")
        return lines
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return []  # it is not a profile of py-spy's


def odd(files: list[Path]) -> str:
    """Return what the ranks do of which these files have the stacks; "" for other files."""
    found = []
    for file in files:
        with contextlib.suppress(ValueError, BergError, OSError):
            found.append(states.read_autopsy(file.read_bytes()))
    return states.odd_one_out(found)


def bring(config: Config, answers: Answers, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Download profiles to `folder`, the local berg_results, once they are in the bucket."""
    bucket = Bucket(config)
    paths = [path for answer in answers.values() for path in answer.get("files", [])]
    names = [f"berg_results/{path}" for path in paths]
    blobs: dict[str, Listed] = {}

    def are_there() -> bool:
        for name in names:
            if name not in blobs and (blob := bucket.get(name)):
                blobs[name] = blob
        return len(blobs) == len(names)

    api.wait_for(are_there, POLL, UPLOAD)
    _, _, left = fetch(bucket, "berg_results/", folder, listed=list(blobs.values()))
    for name in names:
        if name not in blobs or name in left:
            say(f"gs://{bucket.name}/{name} could not be downloaded yet. Try: berg fetch")
    return [folder / name.removeprefix("berg_results/") for name in blobs if name not in left]

"""Profiles of a running command: asked for on all its machines at once, waited for, and brought
here.
"""

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from berg import BergError, gate, job
from berg.config import Config
from berg.google import api
from berg.google.fetch import fetch
from berg.google.storage import Bucket, Listed
from berg.job import Machine
from berg.laptop import ending, jobs

PATIENCE = 180  # seconds beside those of the profile: the first one may install py-spy
LOOK, POLL = 5, 1  # seconds between two looks at the machines, and for answers
# seconds for the files to be in the bucket; what came after a job's last upload never is
UPLOAD = 45
Answers = dict[str, dict[str, Any]]  # by machine: `kind` and `files`, or `error`


def find(config: Config, name: str, machine: str | None) -> tuple[jobs.Entry, list[Machine]]:
    """Return a job that runs, and its machines or one of them; raise BergError where none does."""
    found = jobs.find(config, name)
    check(found, machine)
    machines = [each for each in running(found) if machine in (None, each.name)]
    if not machines:
        why = ": " + "; ".join(ending.silences(found))
        if why == ": ":
            why = " has no machine any more"
        raise BergError(f"{machine or name}{why}. See: berg show {found.name}")
    return found, machines


def take(config: Config, found: jobs.Entry, machines: list[Machine], seconds: float) -> Answers:
    """Profile what runs on machines of a job."""
    # two may ask in one second
    when = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    answers = ask(config, found, machines, when, seconds)
    wait_for_answers(config, found, {each.name for each in machines}, when, seconds, answers)
    return answers


def running(found: jobs.Entry) -> list[Machine]:
    """Return the machines of a job that are not on their way out."""
    return [each for each in found.machines if each.status not in jobs.GOING]


def wait_for_answers(
    config: Config,
    found: jobs.Entry,
    names: set[str],
    when: str,
    seconds: float,
    answers: Answers,
) -> None:
    """Add the answers of those machines, and for each that will not answer the reason."""
    bucket = Bucket(config)
    end, looked = time.monotonic() + seconds + PATIENCE, time.monotonic()
    while waiting := names - answers.keys():
        read_answers(bucket, found.name, when, waiting, answers)
        if time.monotonic() > end:
            for name in names - answers.keys():
                answers[name] = {"error": "it did not answer; is berg on it older?"}
        elif time.monotonic() - looked > LOOK:
            looked, found = time.monotonic(), jobs.find(config, found.name)
            gone = gone_machines(found, waiting)
            if gone:
                read_answers(bucket, found.name, when, waiting, answers)  # its last word
            for name, why in gone.items():
                answers.setdefault(name, {"error": why})
        time.sleep(POLL)


def gone_machines(found: jobs.Entry, names: set[str]) -> dict[str, str]:
    """Return those of the machines that will not take a profile any more, with the reason."""
    if found.state and found.state.final:
        return dict.fromkeys(names, "the job ended before its profile was taken")
    there = {each.name for each in running(found)}
    return dict.fromkeys(names - there, "it is gone")


def check(found: jobs.Entry, machine: str | None) -> None:
    if found.state is None:
        raise BergError(f"{found.name} is a machine without a job: there is no command to profile")
    if found.state.final:
        raise BergError(
            f"{found.name} is over ({found.state.state}); a profile is of a command that runs"
        )
    if found.state.state != "RUNNING":
        raise BergError(
            f"{found.name} is {found.state.state}; a profile is of a command that runs. "
            "Try again later"
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
            found.place.set_metadata(
                config, machine, f"berg-profile-{when}", f"{found.name} {seconds:g}"
            )
        except Exception as error:
            return machine.name, f"it cannot be told: {getattr(error, 'message', error)}"
        return machine.name, ""

    with ThreadPoolExecutor(16) as pool:
        return {name: {"error": why} for name, why in pool.map(tell, machines) if why}


def read_answers(bucket: Bucket, name: str, when: str, waiting: set[str], answers: Answers) -> None:
    for blob in bucket.list(job.log_prefix(name), "name", f"**.{when}.profile.json"):
        machine = jobs.machine_of(blob.name)
        if machine in waiting and machine not in answers:
            data = bucket.read_from(blob.name, 0, gate.MOST_BYTES + 1)
            answers[machine] = answer_in(data or b"{}")


@dataclass
class Answer:
    """What a machine says of the profile that it took."""

    kind: str = ""
    files: list[str] = field(default_factory=list)  # paths below berg_results
    error: str = ""


def answer_in(data: bytes) -> dict[str, Any]:
    """Return what a machine answered; its error for what is none."""
    try:
        answer = asdict(gate.cleaned(gate.build(Answer, gate.values(data))))
        return {key: value for key, value in answer.items() if value}
    except ValueError as error:
        return {"error": f"its answer is damaged ({error})"}


def hottest(file: Path, count: int = 10) -> list[str]:
    """Return the lines of code in which the time of a profile of py-spy's went, the hottest first;
    [] for any other file.
    """
    if not file.name.endswith(".speedscope.json"):
        return []
    try:
        return hottest_in(json.loads(file.read_text()), count)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return []  # whoever wrote it, it is no profile of py-spy's


def hottest_in(profile: dict[str, Any], count: int) -> list[str]:
    """Return the same of a profile; it may raise anything if it is none."""
    frames, spent = profile["shared"]["frames"], Counter[int]()
    for each in profile["profiles"]:
        for stack, weight in zip(each["samples"], each["weights"], strict=True):
            spent[stack[-1] if stack else -1] += weight
    in_all = sum(spent.values()) or 1
    spent.pop(-1, None)  # nothing ran
    lines = []
    for index, weight in spent.most_common(count):
        frame = frames[index]
        where = f"{Path(frame.get('file') or '?').name}:{frame.get('line') or '?'}"
        lines.append(f"{100 * weight / in_all:5.1f} %  {frame['name']} ({where})")
    return lines


def bring(config: Config, answers: Answers, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Bring the files of profiles to `folder`, which stands for berg_results, once they are in the
    bucket.
    """
    bucket = Bucket(config)
    paths = [path for answer in answers.values() for path in answer.get("files", [])]
    blobs, missing = wait_for_files(bucket, [f"berg_results/{path}" for path in paths])
    _, _, left = fetch(bucket, "berg_results/", folder, listed=list(blobs.values()))
    for name in [*missing, *left]:
        say(f"gs://{bucket.name}/{name} could not be brought yet. Try: berg fetch")
    return [folder / name.removeprefix("berg_results/") for name in blobs if name not in left]


def wait_for_files(bucket: Bucket, names: list[str]) -> tuple[dict[str, Listed], list[str]]:
    """Return those objects once all are in the bucket, and after a while the names of those that
    are not.
    """
    blobs: dict[str, Listed] = {}

    def are_there() -> bool:
        for name in names:
            if name not in blobs and (blob := bucket.get(name)):
                blobs[name] = blob
        return len(blobs) == len(names)

    api.wait_for(are_there, POLL, UPLOAD)
    return blobs, [name for name in names if name not in blobs]

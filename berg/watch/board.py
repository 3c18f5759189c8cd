"""TensorBoard over a local folder that follows the bucket, and profiles of a running command.

    <folder>/<job or folder of results>/…   event files, profiles and embeddings of the bucket
    <folder>/…/events.out.tfevents.…made-by-berg   the numbers of the metrics.jsonl next to it
    <folder>/<job>/usage/<machine>/…        how busy its machines were

Only what changed is downloaded, every half a minute. TensorBoard keeps files open, so a file that
grew gets its new end in place.

A profile is requested on all machines of a job at once, and downloaded when it is in the bucket.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from berg import BergError, computer, job, states, validation
from berg.config import Config
from berg.google import api, events
from berg.google.events import Series
from berg.google.fetch import NO_PLACE, NoPlace, below, fetch, side_by_side
from berg.google.storage import Bucket, Listed, file_crc32c
from berg.google.walk import shorten
from berg.job import Machine
from berg.laptop import ending, jobs, lookup, ssh
from berg.laptop.jobs import Say
from berg.watch import collect

# Files that TensorBoard shows; the last ones are those of its projector.
SHOWN = re.compile(
    r"tfevents|(^|/)plugins/profile/|(^|/)metrics\.jsonl$"
    r"|(^|/)(tensors|metadata)\.tsv$|(^|/)sprite\.png$|(^|/)projector_config\.pbtxt$"
)
MADE = "events.out.tfevents.{}.made-by-berg"
BLOCK = 8 << 20
# What TensorBoard prints once it has its port.
UP = re.compile(
    r"^TensorBoard (?P<version>[\w.+-]+) at (?P<address>http://127\.0\.0\.1:\d+/) \(Press", re.M
)
CONFINED = (2, 21)  # first version whose projector opens no file outside of its folder
START = 60  # seconds for TensorBoard to start

CONFIG = "projector_config.pbtxt"
LARGEST = 1 << 20  # bytes of a projector's configuration
# Letters without escapes and quotes; no part of a path begins with a dot.
PATH = r"\w[\w:.=+ -]*(/\w[\w:.=+ -]*)*"
CONFIG_LINE = re.compile(
    rf'embeddings {{|sprite {{|}}|tensor_name: "[\w:./=+ -]*"|single_image_dim: \d+|'
    rf'(tensor|metadata|image)_path: "{PATH}"|'
)

# source -> the event file made of it, and how many points of each tag it has
Made = dict[Path, tuple[Path, dict[str, int]]]
PROFILE_TIMEOUT = 180  # seconds after those of the profile: the first one may install py-spy
LOOK, POLL = 5, 1  # seconds between two looks at the machines, and for answers
UPLOAD = 45  # seconds until the files are in the bucket; those after a job's last upload never are

Answers = dict[str, dict[str, Any]]  # machine -> `kind` and `files`, or `error`


def follow(config: Config, name: str, folder: Path, made: Made) -> int:
    """Download what changed in a job's or a folder's results; return how many files changed."""
    bucket = Bucket(config)
    prefix, stored = lookup.results_of(config, name)
    target = folder / (name if stored else prefix.removeprefix("berg_results/").strip("/"))
    wanted = (blob for blob in bucket.list(prefix) if is_shown(blob.name[len(prefix) :]))
    downloads = side_by_side(lambda blob: bring(bucket, blob, prefix, target), wanted)
    changed = [path for path in downloads if path]
    for path in sorted(target.rglob("metrics.jsonl")):
        # one that was downloaded before something else failed is not among the changed ones
        if path.is_file() and (path in changed or path not in made):
            convert(path, with_times(events.metrics(path), path.stat().st_mtime), made)
    if stored:
        changed += follow_usage(bucket, name, target / "usage", made)
    return len(changed)


def is_shown(name: str) -> bool:
    # TensorBoard's log contains file names, none of which may look like another line
    return bool(SHOWN.search(name)) and name.isprintable()


def with_times(series: Series, when: float) -> Series:
    """Return series with a time for the points that have none."""
    return {
        tag: [(step, value, time or when) for step, value, time in points]
        for tag, points in series.items()
    }


def follow_usage(bucket: Bucket, name: str, folder: Path, made: Made) -> list[Path]:
    """Download new samples of a job's machines; return the files that are new or changed."""
    changed: list[Path] = []
    for machine, blobs in collect.sample_objects(bucket, name).items():
        place = folder / machine
        folders = [f"{blob.name.rpartition('/')[0]}/" for blob in blobs]
        downloads = [bring(bucket, *each, place) for each in zip(blobs, folders, strict=True)]
        new = [path for path in downloads if path]
        files = sorted(place.glob(f"*{job.USAGE}"))
        if new or (files and place / "usage" not in made):
            samples = [
                sample
                for file in files
                for sample in collect.parse_samples(events.last_lines(file))
            ]
            convert(place / "usage", collect.series_of(samples), made)
        changed += new
    return changed


def bring(bucket: Bucket, blob: Listed, prefix: str, folder: Path) -> Path | None:
    """Download an object; return its path, or None if it is unchanged or not possible here."""
    if validation.names_repo(blob.name):
        return None
    try:
        return bring_to(bucket, blob, folder / below(blob.name, prefix))
    except NoPlace:
        return None
    except OSError as error:
        if error.errno not in NO_PLACE:
            raise
        tell_left_out(blob.name, error.strerror)
        return None


def bring_to(bucket: Bucket, blob: Listed, path: Path) -> Path | None:
    """Download an object to a file, only the new end of one that grew."""
    is_config = path.name == CONFIG  # whose copy differs
    updated = blob.updated.timestamp() if blob.updated else 0.0
    size = 0
    if path.exists():
        here = path.stat()
        if (is_config or here.st_size == blob.size) and abs(here.st_mtime - updated) < 1e-3:
            return None
        size = here.st_size if here.st_size < blob.size else 0
    path.parent.mkdir(parents=True, exist_ok=True)
    if not is_config:
        read_end(bucket, blob, path, size)
        if size and file_crc32c(path) != blob.crc32c:  # its beginning changed
            read_end(bucket, blob, path, 0)
    elif not write_config(bucket, blob, path):
        return None
    os.utime(path, (updated, updated))
    return path


@functools.cache
def tell_left_out(name: str, why: str) -> None:
    """Print that an object is left out, once."""
    api.notify(f"{validation.clean(shorten(name, 80))} is left out: {why}")


def write_config(bucket: Bucket, blob: Listed, path: Path) -> bool:
    """Write a configuration of TensorBoard's projector; remove it if it is not `checked`."""
    config = checked(bucket.read(blob.name, LARGEST) or b"")
    if config is None:
        path.unlink(missing_ok=True)
        tell_left_out(blob.name, "it may name files of this computer")
        return False
    path.write_text(config)
    return True


def checked(config: bytes) -> str | None:
    """Return a projector's configuration as it was understood; None if it has an unknown line or
    names a file outside of its own folder: TensorBoard opens every file that it names.
    """
    if len(config) > LARGEST:
        return None
    lines = [line.strip() for line in config.decode(errors="replace").splitlines()]
    if not all(map(CONFIG_LINE.fullmatch, lines)):
        return None
    return "".join(f"{line}\n" for line in lines)


def read_end(bucket: Bucket, blob: Listed, path: Path, start: int) -> None:
    """Write an object to a file from byte `start` on; what is before it stays."""
    path.touch()
    with path.open("r+b") as file:
        file.truncate(start)
        file.seek(start)
        while file.tell() < blob.size:
            data = bucket.read_from(blob.name, file.tell(), min(blob.size, file.tell() + BLOCK))
            if not data:
                break  # it was deleted or replaced; the next pass sees that
            file.write(data)


def convert(source: Path, series: Series, made: Made) -> None:
    """Append new points to the event file next to a source; begin again if points are gone."""
    file, there = made.get(source, (None, {}))
    if file is None or any(len(series.get(tag, ())) < count for tag, count in there.items()):
        for old in source.parent.glob(MADE.format("*")):
            old.unlink()
        file, there = source.parent / MADE.format(time.time_ns()), {}
    new = {tag: points[there.get(tag, 0) :] for tag, points in series.items()}
    new = {tag: points for tag, points in new.items() if points}
    if new:
        events.write(file, new)
    made[source] = file, {tag: len(points) for tag, points in series.items()}


def start(folder: Path, port: int) -> tuple[subprocess.Popen[bytes], str]:
    """Start TensorBoard over a folder on loopback; return its process and address.

    TensorBoard chooses the port if it is 0, and its log has the address: what answers at a port
    may belong to another user. Raises BergError if it is missing, does not start, or is too old.
    """
    program = find_program(folder)
    if port:
        free_port(port)
    log = folder.with_name(f"{folder.name}.log")
    words = [*program, "--logdir", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output)

    def is_up() -> "re.Match[str] | None":
        return UP.search(log.read_text(errors="replace"))

    api.wait_for(lambda: is_up() or process.poll() is not None, 0.2, START)
    up = is_up()
    if up and tuple(map(int, re.findall(r"\d+", up["version"])[:2])) >= CONFINED:
        return process, up["address"]
    process.kill()
    process.wait()
    if up:
        raise BergError(
            f"TensorBoard {up['version']} may show other users any file that results name. Update "
            f"it: pip install 'tensorboard>={'.'.join(map(str, CONFINED))}'"
        )
    raise BergError(f"TensorBoard did not start: {last_line(folder)}")


def find_program(folder: Path) -> list[str]:
    """Return the command that starts TensorBoard; raises BergError where it is not installed."""
    if find_spec("tensorboard"):
        return computer.python("tensorboard.main")
    if program := shutil.which("tensorboard"):
        return [program]
    raise BergError(
        "TensorBoard is not installed. Install it: pip install '/path/to/berg[tensorboard]' (or, "
        "for --on NAME: berg ssh NAME -- pip install tensorboard). Or show it elsewhere: "
        f"{folder}"
    )


def start_on(
    config: Config, machine: str, names: list[str], port: int, say: Say
) -> tuple[subprocess.Popen[str], str]:
    """Start TensorBoard over those results on a machine; return the ssh process that leads to it,
    and the local address.

    ssh prints an address once TensorBoard has started there. Both end together.
    """
    target = ssh.find_target(config, machine, say)
    port, there = free_port(port), computer.free_port()
    options = ["-tt", "-L", f"127.0.0.1:{port}:127.0.0.1:{there}", "-o", "ExitOnForwardFailure=yes"]
    # berg on a machine, with its settings
    words = ["/root/berg/berg", "tensorboard", "--port", str(there), "--", *names]
    command = ssh.command(config, target, options, [shlex.join(words)])
    program, none, pipe = ssh.require("ssh"), subprocess.DEVNULL, subprocess.PIPE
    process = subprocess.Popen([program, *command[1:]], stdin=none, stdout=pipe, text=True)
    return process, f"http://127.0.0.1:{port}/"


def last_line(folder: Path) -> str:
    """Return the last line of TensorBoard's log."""
    log = folder.with_name(f"{folder.name}.log")
    lines = log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"]
    return f"{lines[-1]} (its whole output: {log})"


def free_port(port: int) -> int:
    """Return this port, or for 0 a free one; raises BergError if another program has it."""
    try:
        return computer.free_port(port)
    except OSError as error:
        raise BergError(
            f"port {port} cannot be used: {error.strerror}. Leave --port out to use a free one"
        ) from None


def key(names: tuple[str, ...]) -> str:
    """Return the name of the folder for results that are shown together."""
    first = re.sub(r"[^a-z0-9-]+", "-", names[0].lower())[:40]
    return f"{first}-{hashlib.sha256(' '.join(sorted(names)).encode()).hexdigest()[:8]}"


# --- profiles


@dataclass
class Answer:
    """What a machine reports about its profile."""

    kind: str = ""
    files: list[str] = field(default_factory=list)  # paths below berg_results
    error: str = ""


def find_running(
    config: Config, name: str, machine: str | None
) -> tuple[jobs.Entry, list[Machine]]:
    """Return a running job, and its machines or the named one; raises BergError."""
    found = jobs.find(config, name)
    check_running(found, machine)
    machines = [each for each in running_machines(found) if machine in (None, each.name)]
    if not machines:
        silent = "; ".join(ending.silences(found))
        why = f": {silent}" if silent else " has no machine any more"
        raise BergError(f"{machine or name}{why}. See: berg show {found.name}")
    return found, machines


def check_running(found: jobs.Entry, machine: str | None) -> None:
    """Raise BergError for a job that does not run, or a machine that it does not have."""
    only = "Only a running command can be profiled"
    state = found.job_state
    if state.final:
        raise BergError(f"{found.name} is finished ({state.state}). {only}")
    if state.state != "RUNNING":
        raise BergError(f"{found.name} is {state.state}. {only}. Try again later")
    if machine and machine not in [each.name for each in found.machines]:
        names = ", ".join(each.name for each in found.machines) or "none"
        raise BergError(f"{found.name} has no machine {machine!r}. It has: {names}")


def running_machines(found: jobs.Entry) -> list[Machine]:
    """Return the machines of a job that are not being deleted or stopped."""
    return [each for each in found.machines if each.status not in jobs.GOING]


def take_profiles(
    config: Config, found: jobs.Entry, machines: list[Machine], seconds: float
) -> Answers:
    """Profile what runs on machines of a job, for 0 seconds its stacks; a machine without a profile
    has the reason.
    """
    # two users may ask within the same second
    when = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    answers = ask_for_profiles(config, found, machines, when, seconds)
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

    api.wait_for(all_answered, POLL, seconds + PROFILE_TIMEOUT)
    for name in names - answers.keys():
        answers[name] = {"error": "it did not answer; is berg on it older?"}
    return answers


def ask_for_profiles(
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
    return dict.fromkeys(names - {each.name for each in running_machines(found)}, "it is gone")


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


def odd_rank(files: list[Path]) -> str:
    """Return what the ranks do of which these files have the stacks; "" for other files."""
    found = []
    for file in files:
        with contextlib.suppress(ValueError, BergError, OSError):
            found.append(states.read_autopsy(file.read_bytes()))
    return states.odd_one_out(found)


def bring_profiles(
    config: Config, answers: Answers, folder: Path, say: Callable[[str], None]
) -> list[Path]:
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

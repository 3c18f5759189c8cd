"""`berg tensorboard`: TensorBoard over a folder here that follows the results of jobs in the bucket.

    <folder>/<job>/…                     event files and profiles
    <folder>/<job>/events.out.tfevents.… the numbers of the metrics.jsonl beside it

Only what changed is downloaded. TensorBoard keeps files open, so one that grew gets its new end in
place. Not covered: the projector, whose configuration names files that TensorBoard would open.
"""

import contextlib
import hashlib
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import click
import google_crc32c

from berg import BergError, google, jobs, metrics, terminal
from berg import job as records
from berg.bucket import THREADS, Bucket, Changed, Object, checksum
from berg.clients import how_to_install
from berg.config import Config, home
from berg.fetch import NO_PLACE
from berg.job import OBEYED
from berg.moments import is_plain
from berg.options import complete_names

SHOWN = re.compile(r"tfevents|(^|/)plugins/profile/|(^|/)metrics\.jsonl$")
MADE = "events.out.tfevents.{}.of-metrics-jsonl"
PAUSE = 30  # seconds between two downloads
START = 60  # seconds for TensorBoard to start
# What it prints once it has its port. At that port another user's program could answer.
UP = re.compile(r"^TensorBoard \S+ at (http://127\.0\.0\.1:\d+/) ", re.M)

# metrics.jsonl -> the event file made of it, and how many points of each metric that has
Made = dict[Path, tuple[Path, dict[str, int]]]


def sources(config: Config, name: str) -> dict[str, str]:
    """Folders to be, and the prefixes in the bucket that they follow: of a job, of each row of a sweep
    that has begun, or of a folder of results.
    """
    bucket = Bucket(config)
    try:
        state = jobs.find(config, name)
    except BergError:
        with contextlib.suppress(BergError):
            prefix = records.results_prefix(records.check_results(name))
            if any(True for _ in bucket.list(prefix)):
                return {records.check_results(name): prefix}
        raise
    begun = records.row_states(bucket, state.name) if "/" not in state.name else {}
    states = [row for _, (row, _) in sorted(begun.items())] or [state]
    return {each.name: records.results_prefix(each.results) for each in states}


def follow(config: Config, names: tuple[str, ...], folder: Path, made: Made) -> int:
    """Download what changed of jobs and folders of results; how many files that were."""
    bucket, changed = Bucket(config), 0
    for name in names:
        for label, prefix in sources(config, name).items():
            target = folder / label
            items = [item for item in bucket.list(prefix) if is_shown(item.name[len(prefix) :])]
            with ThreadPoolExecutor(THREADS) as pool:
                paths = [target / item.name[len(prefix) :] for item in items]
                brought = [*pool.map(lambda item, path: bring(bucket, item, path), items, paths)]
            for path, is_new in zip(paths, brought):
                if path.name == "metrics.jsonl" and path.is_file() and (is_new or path not in made):
                    convert(path, made)
            changed += sum(brought)
    return changed


def is_shown(path: str) -> bool:
    """Whether TensorBoard shows such a file, and it can be here. Its log has the names, each in a line."""
    parts = {part.lower() for part in path.split("/")}
    return bool(SHOWN.search(path)) and path.isprintable() and is_plain(path) and not OBEYED & parts


def bring(bucket: Bucket, item: Object, path: Path) -> bool:
    """Make a file what its object is; whether it had to change."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        here = path.stat() if path.exists() else None
        if here and here.st_size == item.size and abs(here.st_mtime_ns - item.updated_ns) < 1e6:
            return False
        if not (here and grow(bucket, item, path, here.st_size)):
            bucket.download(item.name, path, item.size, item.crc)
        os.utime(path, ns=(item.updated_ns, item.updated_ns))
        return True
    except (Changed, FileNotFoundError):
        return False  # it is replaced just now: the next time
    except OSError as error:
        if error.errno not in NO_PLACE:
            raise
        terminal.warn(f"{item.name} is left out: {error.strerror}")
        return False


def grow(bucket: Bucket, item: Object, path: Path, size: int) -> bool:
    """Add the new end of an object to a file that had `size` bytes of it; False if that is not enough."""
    if size > item.size:
        return False
    end = bucket.find(item.name, size) or b""
    with path.open("r+b") as file:
        file.seek(size)
        file.write(end[: item.size - size])
        file.flush()
        try:
            return checksum(file, 0, item.size) == item.crc
        except Changed:
            return False


def convert(source: Path, made: Made) -> None:
    """Add the new points of a metrics.jsonl to the event file beside it; begin anew if some are gone."""
    with source.open("rb") as file:
        start = max(0, source.stat().st_size - metrics.MOST)
        file.seek(start)
        content = file.read()
    found = metrics.parse(content.partition(b"\n")[2] if start else content)
    series, (target, counts) = found.series(), made.get(source, (None, {}))
    if not target or any(len(series.get(key, ())) < count for key, count in counts.items()):
        for old in source.parent.glob(MADE.format("*")):
            old.unlink()
        target, counts = source.parent / MADE.format(time.time_ns()), {}
    with target.open("ab") as file:
        if not file.tell():
            file.write(record(fixed(1, "<d", time.time()) + embedded(3, b"brain.Event:2")))
        for key, points in series.items():
            tag = embedded(1, key.encode(errors="replace"))
            for step, value, when in points[counts.get(key, 0) :]:
                about = fixed(1, "<d", when or source.stat().st_mtime)
                about += varint(2 << 3) + varint(min(max(0, int(step)), 2**63 - 1))
                shown = tag + fixed(2, "<f", max(-3e38, min(3e38, value)))
                file.write(record(about + embedded(5, embedded(1, shown))))
    made[source] = target, {key: len(points) for key, points in series.items()}


# --- records of event files: messages of protobuf, as far as scalars need them. Fields: of an Event 1
# wall time, 2 step, 3 version of the file, 5 summary; of a Summary 1 value; of a value 1 tag, 2 number
# https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def fixed(field: int, form: str, value: float) -> bytes:
    return bytes([field << 3 | (1 if form == "<d" else 5)]) + struct.pack(form, value)


def embedded(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + varint(len(content)) + content


def record(content: bytes) -> bytes:
    """A record: its length and its content, each with its masked CRC32C."""

    def masked(data: bytes) -> bytes:
        value = google_crc32c.value(data)
        return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    head = struct.pack("<Q", len(content))
    return head + masked(head) + content + masked(content)


# --- TensorBoard


def program(folder: Path) -> list[str]:
    """The words that start TensorBoard; raises BergError with the command that installs it."""
    if find_spec("tensorboard"):
        return [sys.executable, "-I", "-m", "tensorboard.main"]
    if found := shutil.which("tensorboard"):
        return [found]
    raise BergError(
        f"TensorBoard is not installed. Install it: {how_to_install('tensorboard>=2.21')}\n"
        f"Or show this folder elsewhere: {folder}"
    )


def start(folder: Path, port: int) -> tuple["subprocess.Popen[bytes]", str]:
    """Start TensorBoard over a folder, for this computer alone; its process and its address."""
    log = folder.with_name(f"{folder.name}.log")
    words = [*program(folder), "--logdir", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, cwd=folder.parent)
    end = time.monotonic() + START
    while not (up := UP.search(log.read_text(errors="replace"))):
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise BergError(f"TensorBoard did not start: {last_line(log)}")
        time.sleep(0.2)
    return process, up[1]


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"]
    return f"{lines[-1]} (all that it printed: {log})"


def folder_name(names: tuple[str, ...]) -> str:
    """The name of the folder for what is shown together."""
    first = re.sub(r"[^a-z0-9-]+", "-", names[0].lower())[:40]
    return f"{first}-{hashlib.sha256(' '.join(sorted(names)).encode()).hexdigest()[:8]}"


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Show it at this port. [default: any]"
)
@click.option("--once", is_flag=True, help="Download what there is, print the folder, and stop.")
def tensorboard(names: tuple[str, ...], port: int, once: bool) -> None:
    """Show metrics, event files and profiles of jobs in TensorBoard, until Ctrl-C.

    NAME is a job, also one that has ended, a sweep or a folder of results. What changed is downloaded
    every 30 seconds; numbers of metrics.jsonl become scalars.

    \b
    berg tensorboard lr-sweep baselines/resnet
    """
    config, made = Config.load(), Made()
    names = tuple(jobs.choose(config, names))
    folder = home() / "tensorboard" / folder_name(names)
    folder.mkdir(parents=True, exist_ok=True)
    with terminal.waiting(f"Downloading to {folder}"):
        count = follow(config, names, folder, made)
    if not any(path.is_file() for path in folder.rglob("*")):
        raise BergError(
            f"{', '.join(names)} has nothing to show yet: no event file, profile or metrics.jsonl in "
            f"the results. See: berg show {names[0]}"
        )
    terminal.say(f"{count} files new or changed in {folder}")
    if once:
        return terminal.show(str(folder))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # TensorBoard ends with this command
    process, address = start(folder, port)
    try:
        terminal.show(address)
        terminal.say("Ctrl-C ends it")
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PAUSE)
                log = folder.with_name(f"{folder.name}.log")
                raise BergError(f"TensorBoard ended: {last_line(log)}")
            try:
                follow(config, names, folder, made)
            except Exception as error:  # such as a network that fails for a while
                terminal.warn(f"{google.sentence(error, config) or error}; trying again")
    finally:
        process.terminate()
        process.wait()

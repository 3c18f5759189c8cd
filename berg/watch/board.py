"""What TensorBoard shows of jobs: a folder on this computer that follows the bucket, and the
program over it.

    <folder>/<job or folder of results>/…   event files, profiles and embeddings as they lie in the
                                            bucket
    <folder>/…/events.out.tfevents.…made-by-berg   beside a metrics.jsonl: its numbers
    <folder>/<job>/usage/<machine>/…        how busy its machines were

TensorBoard itself is not asked to read the bucket: what changed is brought every half a minute, and
nothing else. It keeps files open, so that one that grew gets its new end in place. On a machine
berg does the same as here.

What TensorBoard's projector reads beside event files, as torch.utils.tensorboard writes it.

    projector_config.pbtxt       which embeddings there are, and the files of each
    STEP/TAG/tensors.tsv, metadata.tsv, sprite.png

TensorBoard opens every file that such a configuration names. It comes out of the bucket, where
machines write, so that one is brought only if it names files of its own folder and says nothing
that is not known here. Not covered: checkpoints of TensorFlow's as embeddings.
"""

import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

from berg import BergError, computer, gate
from berg.config import Config
from berg.gate import names_repo
from berg.google import api, events
from berg.google.events import Series
from berg.google.fetch import NO_PLACE, NoPlace, below, side_by_side
from berg.google.media import file_crc32c
from berg.google.storage import Bucket, Listed
from berg.google.walk import shorten
from berg.laptop import results, ssh
from berg.watch import usage

FILES = r"(^|/)(tensors|metadata)\.tsv$|(^|/)sprite\.png$|(^|/)projector_config\.pbtxt$"

SHOWN = re.compile(rf"tfevents|(^|/)plugins/profile/|(^|/)metrics\.jsonl$|{FILES}")

MADE = "events.out.tfevents.{}.made-by-berg"

BLOCK = 8 << 20

# What TensorBoard says once it has its port.
UP = re.compile(
    r"^TensorBoard (?P<version>[\w.+-]+) at (?P<address>http://127\.0\.0\.1:\d+/) \(Press", re.M
)

# The first version whose projector opens no file outside of the folder of its configuration.
CONFINED = (2, 21)

START = 60  # seconds for TensorBoard to come up

THERE = "/root/berg/berg"  # berg on a machine, with its settings

# source -> the event file made of it, and how much of each tag it has
Made = dict[Path, tuple[Path, dict[str, int]]]


def follow(config: Config, name: str, folder: Path, made: Made) -> int:
    """Bring what changed of a job's or a folder's results; return how many files are new or
    changed.
    """
    bucket = Bucket(config)
    prefix, stored = results.find(config, name)
    target = folder / (name if stored else prefix.removeprefix("berg_results/").strip("/"))
    wanted = (blob for blob in bucket.list(prefix) if is_shown(blob.name[len(prefix) :]))
    brought = side_by_side(lambda blob: bring(bucket, blob, prefix, target), wanted)
    changed = [path for path in brought if path]
    for path in sorted(target.rglob("metrics.jsonl")):
        # one that came before something else failed is not new any more
        if path.is_file() and (path in changed or path not in made):
            convert(path, with_times(events.metrics(path), path.stat().st_mtime), made)
    if stored:
        changed += follow_usage(bucket, name, target / "usage", made)
    return len(changed)


def is_shown(name: str) -> bool:
    """Return whether TensorBoard shows an object. Its log has the names of files: none of those may
    look like a line of it.
    """
    return bool(SHOWN.search(name)) and name.isprintable()


def with_times(series: Series, when: float) -> Series:
    """Return series with a time for the points that have none."""
    return {
        tag: [(step, value, time or when) for step, value, time in points]
        for tag, points in series.items()
    }


def follow_usage(bucket: Bucket, name: str, folder: Path, made: Made) -> list[Path]:
    """Bring what is new of how busy a job's machines are; return the files that are new or
    changed.
    """
    changed: list[Path] = []
    for machine, blobs in usage.objects(bucket, name).items():
        place = folder / machine
        new: list[Path] = []
        for blob in blobs:
            path = bring(bucket, blob, f"{blob.name.rpartition('/')[0]}/", place)
            if path:
                new.append(path)
        files = sorted(place.glob(f"*{usage.SUFFIX}"))
        if new or (files and place / "usage" not in made):
            samples = [sample for file in files for sample in usage.parse(events.last_lines(file))]
            convert(place / "usage", usage.series(samples), made)
        changed += new
    return changed


def bring(bucket: Bucket, blob: Listed, prefix: str, folder: Path) -> Path | None:
    """Bring an object to a folder, of a file that grew only the end; return its path, or None if it
    is there already, or this disk has no place for its name.
    """
    if names_repo(blob.name):
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


@functools.cache
def tell_left_out(name: str, why: str) -> None:
    """Say that an object is left out, once."""
    api.notify(f"{gate.clean(shorten(name, 80))} is left out: {why}")


def bring_to(bucket: Bucket, blob: Listed, path: Path) -> Path | None:
    """Bring an object to a file, as `bring` does."""
    if path.name == CONFIG:
        return bring_projector(bucket, blob, path)
    updated = 0.0
    if blob.updated:
        updated = blob.updated.timestamp()
    size = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        here = path.stat()
        if here.st_size == blob.size and abs(here.st_mtime - updated) < 1e-3:
            return None
        size = here.st_size
    if size >= blob.size:
        size = 0
    read_end(bucket, blob, path, size)
    if size and file_crc32c(path) != blob.crc32c:  # it did not merely grow
        read_end(bucket, blob, path, 0)
    os.utime(path, (updated, updated))
    return path


def bring_projector(bucket: Bucket, blob: Listed, path: Path) -> Path | None:
    """Write a configuration of TensorBoard's projector as berg understands it, or remove it where
    it names other files than those of its own folder. It is read once.
    """
    updated = blob.updated.timestamp() if blob.updated else 0.0
    if path.exists() and abs(path.stat().st_mtime - updated) < 1e-3:
        return None
    found = checked(bucket.read(blob.name, LARGEST) or b"")
    if found is None:
        path.unlink(missing_ok=True)
        tell_left_out(blob.name, "it may name files of this computer")
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(found)
    os.utime(path, (updated, updated))
    return path


def read_end(bucket: Bucket, blob: Listed, path: Path, start: int) -> None:
    """Write an object to a file from a place on; what is there before it stays."""
    path.touch()
    with path.open("r+b") as file:
        file.truncate(start)
        file.seek(start)
        while file.tell() < blob.size:
            data = bucket.read_from(blob.name, file.tell(), min(blob.size, file.tell() + BLOCK))
            if not data:
                break  # deleted or written anew meanwhile; the next pass tells
            file.write(data)


def convert(source: Path, series: Series, made: Made) -> None:
    """Append to an event file beside a source what is new of it; in another one if what was there
    is there no more.
    """
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
    """Start TensorBoard over a folder, on loopback; return its process and address.

    TensorBoard chooses the port if it is 0, and says in its log which one it has: whoever answers
    at a port may be another user of this computer. Raises BergError where it is not installed, does
    not come up, or is too old.
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
    if up and version_of(up["version"]) >= CONFINED:
        return process, up["address"]
    process.kill()
    process.wait()
    if up:
        least = ".".join(map(str, CONFINED))
        raise BergError(
            f"TensorBoard {up['version']} may show other users any file that results name. Update "
            f"it: pip install 'tensorboard>={least}'"
        )
    raise BergError(f"TensorBoard did not start: {last_line(folder)}")


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with."""
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


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
    config: Config, machine: str, names: list[str], port: int, say: ssh.Say
) -> tuple[subprocess.Popen[str], str]:
    """Let a machine bring those and start TensorBoard; returns the ssh that leads to it, and the
    address here.

    ssh prints what is said there, with an address once it is up. It ends there when ssh ends, as
    its terminal goes.
    """
    target = ssh.find_target(config, machine, say)
    port, there = free_port(port), computer.free_port()
    options = ["-tt", "-L", f"127.0.0.1:{port}:127.0.0.1:{there}", "-o", "ExitOnForwardFailure=yes"]
    words = [THERE, "tensorboard", "--port", str(there), "--", *names]
    command = ssh.command(config, target, options, [shlex.join(words)])
    program, none, pipe = ssh.require("ssh"), subprocess.DEVNULL, subprocess.PIPE
    process = subprocess.Popen([program, *command[1:]], stdin=none, stdout=pipe, text=True)
    return process, f"http://127.0.0.1:{port}/"


def last_line(folder: Path) -> str:
    """The last that TensorBoard said."""
    log = folder.with_name(f"{folder.name}.log")
    lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    return f"{lines[-1]} (all it said: {log})"


def free_port(port: int) -> int:
    """Return this port, or for 0 a free one; raise BergError if another program has it."""
    try:
        return computer.free_port(port)
    except OSError as error:
        raise BergError(
            f"port {port} cannot be used: {error.strerror}. Leave --port out to use a free one"
        ) from None


def key(names: tuple[str, ...]) -> str:
    """Name of a folder that stands for what is shown together."""
    first = re.sub(r"[^a-z0-9-]+", "-", names[0].lower())[:40]
    return f"{first}-{hashlib.sha256(' '.join(sorted(names)).encode()).hexdigest()[:8]}"


CONFIG = "projector_config.pbtxt"

LARGEST = 1 << 20  # bytes of a configuration

# Letters that no escape or quote is made of; a part of a path begins with no dot.
PATH = r"\w[\w:.=+ -]*(/\w[\w:.=+ -]*)*"

LINES = re.compile(
    rf'embeddings {{|sprite {{|}}|tensor_name: "[\w:./=+ -]*"|single_image_dim: \d+|'
    rf'(tensor|metadata|image)_path: "{PATH}"|'
)


def checked(config: bytes) -> str | None:
    """Return a configuration line by line as it was understood; None if it names anything but files
    below its own folder.
    """
    if len(config) > LARGEST:
        return None
    lines = [line.strip() for line in config.decode(errors="replace").splitlines()]
    if not all(map(LINES.fullmatch, lines)):
        return None
    return "".join(f"{line}\n" for line in lines)

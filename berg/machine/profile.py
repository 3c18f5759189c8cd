"""A profile of the command while it runs, asked for by this machine's metadata:
`berg-profile-TIME`, `JOB SECONDS`.

What can be had, the best first: JAX's profiler server (torch_tpu's is the same), if the command
started one on BERG_PROFILER_PORT; PyTorch's own profiles, if the job was started with --profile
(kineto.py); else py-spy, which reads the memory of python processes from outside and never stops
them. The answer is an object beside the log; the files lie among the results. Not covered: programs
that are not python.

PyTorch's own profiles (Kineto's) of a job that was started with --profile, without a line in its
code.

Each of its processes that imports torch asks a socket every five seconds whether a profile is
wanted, as it would ask Meta's dynolog. One that ends while its profile is taken crashes, which
guard/sitecustomize.py keeps it from; a process without that guard is never profiled. Not covered:
programs that are not python, and containers of the command's own.
"""

import contextlib
import gzip
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from berg import BergError, job
from berg.google import events
from berg.machine import boot, keeper, usage
from berg.machine.process import RESULTS, start_thread

TOOLS = boot.BERG / "tools"

METHOD = "/tensorflow.ProfilerService/Profile"

SLACK = 60  # seconds beside those of the profile

PROCESSES = 8  # that py-spy looks at

RATE = 100  # samples a second

# Fields of the request:
# https://github.com/openxla/xprof/blob/master/plugin/xprof/protobuf/profiler_service.proto
MILLISECONDS, MAX_EVENTS, TOOL, OPTIONS, ROOT, SESSION, HOST = 1, 2, 3, 4, 5, 6, 7

VERSION, HOST_LEVEL, DEVICE_LEVEL, PYTHON_LEVEL, HLO, DURATION = 5, 2, 3, 4, 7, 9  # of its options

WHEN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")

taking = threading.Lock()


def asked(name: str, attributes: dict[str, str]) -> dict[str, str]:
    """The profiles of a job that a machine's metadata asks for: their times, and how many seconds
    each takes.

    Each has a key of its own: of two that are written quickly to one key the machine might see the
    second alone.
    """
    found = {
        key.removeprefix("berg-profile-"): value.partition(" ") for key, value in attributes.items()
    }
    return {
        when: seconds
        for when, (whose, _, seconds) in found.items()
        if WHEN.fullmatch(when) and whose == name
    }


def answer(attempt: Any, when: str, seconds: str) -> None:
    """Take a profile, and leave the answer in the bucket."""
    try:
        if not taking.acquire(blocking=False):
            raise BergError("another profile is being taken just now")
        try:
            kind, files = take(attempt, when, float(seconds))
        finally:
            taking.release()
        said = {"kind": kind, "files": [str(file.relative_to(RESULTS)) for file in files]}
        attempt.say(f"Took a profile of {seconds} s: {', '.join(said['files'])}")
        attempt.mirrors.hurry.set()
    except Exception as error:  # it never troubles the job
        said = {"error": getattr(error, "message", "") or f"{type(error).__name__}: {error}"}
    path = f"{job.log_prefix(attempt.name)}{attempt.machine.name}.{when}.profile.json"
    attempt.insist(lambda: attempt.bucket.write(path, json.dumps(said)), SLACK)


def take(attempt: Any, when: str, seconds: float) -> tuple[str, list[Path]]:
    """Take a profile of what runs; returns its kind and files. Raises BergError if there is none to
    be had.
    """
    process = attempt.runner.process
    if process is None or process.poll() is not None:
        raise BergError("no command runs on this machine")
    folder = RESULTS / attempt.job.results_dir
    if listens(attempt.profiler_port):
        return "jax", ask_server(
            attempt.profiler_port, seconds, folder / "plugins/profile", when, attempt.machine.name
        )
    if clients(attempt.kineto):
        return "kineto", take_from_torch(
            attempt.kineto, seconds, folder / "profiles" / when, attempt.machine.name
        )
    pids = pythons(process.pid)
    if not pids:
        raise BergError(
            "there is nothing to profile: no python runs, and nobody listens on BERG_PROFILER_PORT"
        )
    return "py-spy", watch_pythons(pids, seconds, folder / "profiles" / when, attempt.machine.name)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
        return True
    except OSError:
        return False


def ask_server(port: int, seconds: float, root: Path, when: str, host: str) -> list[Path]:
    """Let a profiler server write its trace below `root`, in the layout that TensorBoard wants."""
    milliseconds = round(seconds * 1000)
    levels = {
        VERSION: 1,
        HOST_LEVEL: 2,
        DEVICE_LEVEL: 1,
        PYTHON_LEVEL: 1,
        HLO: 1,
        DURATION: milliseconds,
    }
    options = b"".join(events.number(field, value) for field, value in levels.items())
    request = events.number(MILLISECONDS, milliseconds) + events.number(MAX_EVENTS, 1_000_000)
    request += events.embedded(TOOL, b"xplane") + events.embedded(OPTIONS, options)
    for number, text in ((ROOT, str(root)), (SESSION, when), (HOST, host)):
        request += events.embedded(number, text.encode())
    try:
        usage.ask(port, [request], METHOD, seconds + SLACK)
    except (OSError, ValueError):
        raise BergError(
            "the command ended before its profile was taken, or its profiler server broke off"
        ) from None
    files = sorted((root / when).glob(f"{host}*"))
    if not files:
        raise BergError(
            "the command's profiler server refused: it takes another profile, or cannot write"
        )
    return files


def pythons(ancestor: int) -> list[int]:
    """Python processes below one, those that have used most CPU first."""
    found = []
    for process in keeper.below(ancestor):
        folder = Path("/proc", str(process))
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            program = (folder / "exe").readlink().name
        except OSError:  # it has ended, or is another user's
            continue
        if program.startswith("python"):
            found.append((int(fields[11]) + int(fields[12]), process))
    return [pid for _, pid in sorted(found, reverse=True)][:PROCESSES]


def watch_pythons(pids: list[int], seconds: float, folder: Path, host: str) -> list[Path]:
    """Let py-spy look at processes at once; returns a file for each that was still there."""
    program = py_spy()
    folder.mkdir(parents=True, exist_ok=True)
    scratch = boot.BERG / "profiles"  # what is not whole yet is no result
    scratch.mkdir(exist_ok=True)
    running = {}
    for pid in pids:
        file = scratch / (
            f"{host}.speedscope.json" if len(pids) == 1 else f"{host}.{pid}.speedscope.json"
        )
        command = [program, "record", "--pid", str(pid), "--duration", str(max(1, round(seconds)))]
        command += [
            "--rate",
            str(RATE),
            "--format",
            "speedscope",
            "--output",
            str(file),
            "--nonblocking",
        ]
        running[file] = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    files, words = [], ""
    for file, process in running.items():
        try:
            said, _ = process.communicate(timeout=seconds + SLACK)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
        if file.exists():
            files.append(file.replace(folder / file.name))
        else:
            words = next(
                (line for line in said.splitlines()[::-1] if line.strip()), "it said nothing"
            )
    if not files:
        raise BergError(
            f"the command ended before its profile was taken, or py-spy could not read it: {words}"
        )
    return files


def py_spy() -> str:
    """The program, which is brought with the first profile: berg's own packages come without it."""
    program = TOOLS / "bin/py-spy"
    if not program.exists():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-input",
            "--target",
            str(TOOLS),
            "py-spy",
        ]
        clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(command, capture_output=True, text=True, env=clean, timeout=300)
        if done.returncode:
            words = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise BergError(f"py-spy, which profiles python, could not be installed: {words}")
    return str(program)


FOLDER = boot.BERG / "kineto"

GUARD = Path(__file__).parent / "guard"

# https://github.com/pytorch/kineto/blob/main/libkineto/src/IpcFabricConfigClient.cpp
HEADER = struct.Struct("<Q32s")  # size of a message, and its type

# which configurations are wanted, number of process ids behind this, job
REQUEST = struct.Struct("<iiq")

ONCE = 2  # among those: one of a single profile, which who takes one at the moment does not want

POLL = 5  # seconds between two requests of a process

WARM_UP = 2  # seconds in which it gets ready, and then some

TRIES = 2  # times that processes are waited for: who is busy, or still writes a profile, asks late

KINETO_SLACK = 120  # seconds beside those of the profile, in which it is written

# seconds of a profile: it lies in the memory of the process, and grows by megabytes a second
MOST = 60

CONFIG = """PROFILE_START_TIME={begins}
ACTIVITIES_WARMUP_PERIOD_SECS={warm_up}
ACTIVITIES_DURATION_MSECS={milliseconds}
ACTIVITIES_LOG_FILE={file}
PROFILE_REPORT_INPUT_SHAPES=true
"""


@dataclass
class Desk:
    """Where processes ask for profiles, and what they are told. Times are seconds since 1970."""

    listener: socket.socket
    asked_at: dict[int, float] = field(default_factory=dict)  # by process
    begins: float = 0.0  # of the profile that is wanted: the same for all processes
    seconds: float = 0.0
    files: dict[int, Path] = field(default_factory=dict)  # by process that was told of it


def listen(attempt: Any) -> None:
    """Be there for the processes of a job's command until it is over, if it was started with
    --profile.
    """
    if not attempt.job.spec.profile:
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        FOLDER.mkdir()
        listener.bind(str(FOLDER / "dynolog"))
    except OSError as error:  # a full disk, a path that is too long
        attempt.say(f"PyTorch's profiles cannot be had (--profile): {error}")
        return
    listener.settimeout(0.5)
    attempt.kineto = Desk(listener)
    start_thread(serve, attempt.kineto, attempt.mirrors.done.is_set)


def variables(attempt: Any, values: dict[str, str]) -> dict[str, str]:
    """The environment of a command, with what lets its processes ask."""
    if not attempt.kineto:
        return values
    path = os.pathsep.join(filter(None, [str(GUARD), values.get("PYTHONPATH")]))
    ours = {"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": str(FOLDER), "PYTHONPATH": path}
    return {"KINETO_LOG_LEVEL": "3", **values, **ours}


def serve(desk: Desk, is_over: Callable[[], bool]) -> None:
    with desk.listener as listener:
        while not is_over():
            # nobody asks, or nobody that we understand
            with contextlib.suppress(OSError, struct.error, ValueError):
                message, sender = listener.recvfrom(1 << 16)
                kind, body = HEADER.unpack_from(message)[1].rstrip(b"\0"), message[HEADER.size :]
                if kind == b"ctxt":
                    listener.sendto(frame(kind, struct.pack("<i", 1)), sender)
                elif kind == b"req":
                    listener.sendto(frame(kind, configuration_for(desk, body).encode()), sender)


def frame(kind: bytes, body: bytes) -> bytes:
    return HEADER.pack(len(body), kind) + body


def configuration_for(desk: Desk, body: bytes) -> str:
    """The configuration for a process that asks; "" where nothing is wanted of it."""
    wanted, _, _ = REQUEST.unpack_from(body)
    pid = struct.unpack_from("<i", body, REQUEST.size)[0]  # the others are those of its parents
    now, taken = time.time(), mark("taken", pid)
    desk.asked_at[pid] = now
    if wanted & ONCE and now > desk.begins + 1:
        taken.unlink(missing_ok=True)  # it has taken its own, or could not
    is_new = wanted & ONCE and pid not in desk.files and mark("guarded", pid).exists()
    if not is_new or now > desk.begins - WARM_UP - 1:
        return ""
    taken.write_text(str(desk.begins + desk.seconds + KINETO_SLACK))
    if mark("ends", pid).exists():
        taken.unlink()
        return ""
    desk.files[pid] = FOLDER / f"trace_{pid}.json"
    return CONFIG.format(
        begins=round(desk.begins * 1000),
        warm_up=WARM_UP,
        milliseconds=round(desk.seconds * 1000),
        file=FOLDER / "trace.json",  # to which the process adds its number
    )


def mark(what: str, pid: int) -> Path:
    """A file by which a process and this one tell each other of it: it is guarded, ends, or its
    profile is taken.
    """
    return FOLDER / f"{what}-{pid}"


def clients(desk: Desk | None) -> list[int]:
    """The processes that can be profiled."""
    asked = (
        [pid for pid, at in dict(desk.asked_at).items() if time.time() - at < 3 * POLL]
        if desk
        else []
    )
    return [pid for pid in asked if lives(pid) and mark("guarded", pid).exists()]


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def is_underway(pid: int, file: Path) -> bool:
    return lives(pid) and mark("taken", pid).exists() and not file.exists()


def take_from_torch(desk: Desk, seconds: float, folder: Path, host: str) -> list[Path]:
    """Let all processes take a profile at the same time; returns a file for each that wrote one."""
    if seconds > MOST:
        raise BergError(
            "PyTorch's profiler keeps what it sees in the command's memory: "
            f"give it {MOST} s at most (-s)"
        )
    begin(desk, seconds)
    # A process that ends now writes a trace in which there is nothing left to see.
    late = [pid for pid in desk.files if mark("ends", pid).exists()]
    wait_for_traces(desk)

    written = {pid: file for pid, file in desk.files.items() if file.exists() and pid not in late}
    if not written:
        raise BergError(
            "the command ended before its profile was taken, or PyTorch takes another one in it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    alone = len(desk.files) == 1
    return [
        pack(file, folder / trace_name(host, None if alone else pid))
        for pid, file in written.items()
    ]


def begin(desk: Desk, seconds: float) -> None:
    """Ask the processes for a profile, and wait until they take it; a busy one is asked again."""
    for _ in range(TRIES):
        desk.files, desk.seconds, desk.begins = {}, seconds, time.time() + POLL + WARM_UP + 2
        time.sleep(max(0, desk.begins - time.time()))
        if desk.files or not clients(desk):
            return


def wait_for_traces(desk: Desk) -> None:
    """Wait until no process is still at its profile, for the profile's time and some slack."""
    end = desk.begins + desk.seconds + KINETO_SLACK
    while time.time() < end and any(is_underway(pid, file) for pid, file in desk.files.items()):
        time.sleep(0.2)


def trace_name(host: str, pid: int | None) -> str:
    process = f".{pid}" if pid else ""
    return f"{host}{process}.pt.trace.json.gz"


def pack(trace: Path, target: Path) -> Path:
    """Replace a trace by its compressed form at `target`; returns that."""
    packed = trace.with_suffix(".gz")
    with trace.open("rb") as plain, gzip.open(packed, "wb", compresslevel=3) as out:
        shutil.copyfileobj(plain, out, 1 << 20)
    trace.unlink()
    return packed.replace(target)

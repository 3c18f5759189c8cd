"""A profile of the command while it runs, requested by this machine's metadata: the key
`berg-profile-TIME` with the value `JOB SECONDS`.

It is the first that the command offers of: JAX's profiler server (torch_tpu's is the same) on
BERG_PROFILER_PORT; PyTorch's profiler (Kineto) in a job with --profile; py-spy, which reads the
memory of python processes without stopping them. The answer is an object next to the log, and the
files are among the results. Not covered: programs that are not python.
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
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from berg import BergError, computer, job
from berg.google import api, events
from berg.machine import autopsy, boot, keeper, usage
from berg.machine.process import RESULTS, start_thread

STACKS = "stacks"  # in place of seconds: an autopsy, as of a job that hangs
SLACK = 60  # seconds after those of the profile
PROCESSES = 8  # that py-spy profiles
RATE = 100  # samples a second
ENDED = "the command ended before its profile was taken"

METHOD = "/tensorflow.ProfilerService/Profile"
# Fields of the request:
# https://github.com/openxla/xprof/blob/master/plugin/xprof/protobuf/profiler_service.proto
MILLISECONDS, MAX_EVENTS, TOOL, OPTIONS, ROOT, SESSION, HOST = 1, 2, 3, 4, 5, 6, 7
VERSION, HOST_LEVEL, DEVICE_LEVEL, PYTHON_LEVEL, HLO, DURATION = 5, 2, 3, 4, 7, 9  # of its options

taking = threading.Lock()


def asked(name: str, attributes: dict[str, str]) -> dict[str, str]:
    """Return the profiles of a job that a machine's metadata requests: time -> seconds.

    Each has its own key: of two quick writes to one key the machine might see only the second.
    """
    found = {}
    for key, value in attributes.items():
        when, (owner, _, seconds) = key.removeprefix("berg-profile-"), value.partition(" ")
        if re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", when) and owner == name:
            found[when] = seconds
    return found


def answer(attempt: Any, when: str, seconds: str) -> None:
    """Take a profile, and write the answer into the bucket."""
    found: dict[str, Any]
    try:
        if not taking.acquire(blocking=False):
            raise BergError("another profile is being taken just now")
        try:
            if seconds == STACKS:
                kind, files = STACKS, [autopsy.take(attempt, when)]
            else:
                kind, files = take(attempt, when, float(seconds))
        finally:
            taking.release()
        found = {"kind": kind, "files": [str(file.relative_to(RESULTS)) for file in files]}
        what = "the stacks" if seconds == STACKS else f"a profile of {seconds} s"
        attempt.say(f"Took {what}: {', '.join(found['files'])}")
        attempt.mirrors.hurry.set()
    except Exception as error:  # it never disturbs the job
        found = {"error": getattr(error, "message", "") or f"{type(error).__name__}: {error}"}
    path = f"{job.log_prefix(attempt.name)}{attempt.machine.name}.{when}.profile.json"
    attempt.insist(lambda: attempt.bucket.write(path, json.dumps(found)), SLACK)


def take(attempt: Any, when: str, seconds: float) -> tuple[str, list[Path]]:
    """Profile what runs; return the kind of profile and its files, or raise BergError."""
    process, port, host = attempt.runner.process, attempt.profiler_port, attempt.machine.name
    if process is None or process.poll() is not None:
        raise BergError("no command runs on this machine")
    folder = RESULTS / attempt.job.results_dir
    if computer.listens("127.0.0.1", port, 2):
        return "jax", ask_server(port, seconds, folder / "plugins/profile", when, host)
    if clients(attempt.kineto):
        return "kineto", take_from_torch(attempt.kineto, seconds, folder / "profiles" / when, host)
    if pids := pythons(process.pid):
        program = autopsy.provide_py_spy(attempt.machine)
        return "py-spy", watch_pythons(program, pids, seconds, folder / "profiles" / when, host)
    raise BergError(
        "there is nothing to profile: no python runs, and no program listens on BERG_PROFILER_PORT"
    )


def ask_server(port: int, seconds: float, root: Path, when: str, host: str) -> list[Path]:
    """Let a profiler server write its trace below `root`, in TensorBoard's layout."""
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
        raise BergError(f"{ENDED}, or its profiler server closed the connection") from None
    files = sorted((root / when).glob(f"{host}*"))
    if not files:
        raise BergError(
            "the command's profiler server refused: it takes another profile, or cannot write"
        )
    return files


def pythons(ancestor: int) -> list[int]:
    """Return the python processes below one, those that used the most CPU first."""
    found = []
    for process in keeper.below(ancestor):
        folder = Path("/proc", str(process))
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            program = (folder / "exe").readlink().name
        except OSError:  # it has ended, or belongs to another user
            continue
        if program.startswith("python"):
            found.append((int(fields[11]) + int(fields[12]), process))
    return [pid for _, pid in sorted(found, reverse=True)][:PROCESSES]


def watch_pythons(
    program: str, pids: list[int], seconds: float, folder: Path, host: str
) -> list[Path]:
    """Let py-spy profile processes at the same time; return a file for each that still ran."""
    folder.mkdir(parents=True, exist_ok=True)
    scratch = boot.BERG / "profiles"  # a file that is still being written is no result
    scratch.mkdir(exist_ok=True)
    options = ["--duration", str(max(1, round(seconds))), "--rate", str(RATE), "--nonblocking"]
    running = {}
    for pid in pids:
        name = host if len(pids) == 1 else f"{host}.{pid}"
        file = scratch / f"{name}.speedscope.json"
        command = [program, "record", "--pid", str(pid), *options]
        command += ["--format", "speedscope", "--output", str(file)]
        running[file] = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    files, why = [], ""
    for file, process in running.items():
        try:
            output, _ = process.communicate(timeout=seconds + SLACK)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        if file.exists():
            files.append(file.replace(folder / file.name))
        else:
            why = (output.strip().splitlines() or ["it printed nothing"])[-1]
    if not files:
        raise BergError(f"{ENDED}, or py-spy could not read it: {why}")
    return files


# PyTorch's profiler (Kineto) in a job with --profile, without a line in its code. Each process that
# imports torch asks a socket every five seconds whether a profile is wanted, as it would ask Meta's
# dynolog. One that ended during its profile would crash: guard/sitecustomize.py lets it wait, and
# processes without that guard are not profiled. Not covered: containers of the command's own.
FOLDER = boot.BERG / "kineto"
GUARD = Path(__file__).parent / "guard"
# https://github.com/pytorch/kineto/blob/main/libkineto/src/IpcFabricConfigClient.cpp
HEADER = struct.Struct("<Q32s")  # size and type of a message
REQUEST = struct.Struct("<iiq")  # wanted configurations, count of the process ids after it, job
ONCE = 2  # bit of a configuration for one profile; a process that takes one does not want it
POLL = 5  # seconds between two requests of a process
WARM_UP = 2  # seconds in which it prepares, and a little more
TRIES = 2  # to reach the processes: one that is busy or writes a profile asks late
KINETO_SLACK = 120  # seconds after those of the profile, in which it is written
MOST = 60  # seconds of a profile, which grows in the process's memory by megabytes a second
CONFIG = """PROFILE_START_TIME={begins}
ACTIVITIES_WARMUP_PERIOD_SECS={warm_up}
ACTIVITIES_DURATION_MSECS={milliseconds}
ACTIVITIES_LOG_FILE={file}
PROFILE_REPORT_INPUT_SHAPES=true
"""


@dataclass
class Desk:
    """Where processes ask for profiles, and the profile that is wanted. Times are Unix times."""

    listener: socket.socket
    asked_at: dict[int, float] = field(default_factory=dict)  # by process
    begins: float = 0.0  # the same for all processes
    seconds: float = 0.0
    files: dict[int, Path] = field(default_factory=dict)  # by process that got the configuration


def listen(attempt: Any) -> None:
    """Answer the processes of a job's command until it ends, if it was started with --profile."""
    if not attempt.job.spec.profile:
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        FOLDER.mkdir()
        listener.bind(str(FOLDER / "dynolog"))
    except OSError as error:  # a full disk, a path that is too long
        attempt.say(f"PyTorch cannot be profiled (--profile): {error}")
        return
    listener.settimeout(0.5)
    attempt.kineto = Desk(listener)
    start_thread(serve, attempt.kineto, attempt.mirrors.done.is_set)


def variables(attempt: Any, values: dict[str, str]) -> dict[str, str]:
    """Return the variables of a command, with which its processes can ask."""
    if not attempt.kineto:
        return values
    path = os.pathsep.join(filter(None, [str(GUARD), values.get("PYTHONPATH")]))
    ours = {"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": str(FOLDER), "PYTHONPATH": path}
    return {"KINETO_LOG_LEVEL": "3", **values, **ours}


def serve(desk: Desk, is_done: Callable[[], bool]) -> None:
    with desk.listener as listener:
        while not is_done():
            # no request for a while, or an unknown one
            with contextlib.suppress(OSError, struct.error, ValueError):
                message, sender = listener.recvfrom(1 << 16)
                kind, body = HEADER.unpack_from(message)[1].rstrip(b"\0"), message[HEADER.size :]
                if kind == b"ctxt":
                    reply = struct.pack("<i", 1)
                elif kind == b"req":
                    reply = configuration_for(desk, body).encode()
                else:
                    continue
                listener.sendto(HEADER.pack(len(reply), kind) + reply, sender)


def configuration_for(desk: Desk, body: bytes) -> str:
    """Return the configuration for a process that asks; "" if nothing is wanted of it."""
    wanted, _, _ = REQUEST.unpack_from(body)
    pid = struct.unpack_from("<i", body, REQUEST.size)[0]  # those of its parents follow
    now, taken = time.time(), mark("taken", pid)
    desk.asked_at[pid] = now
    if wanted & ONCE and now > desk.begins + 1:
        taken.unlink(missing_ok=True)  # it has taken its profile, or could not
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
    """Return a file shared with the guard: a process is `guarded`, `taken`, or it `ends`."""
    return FOLDER / f"{what}-{pid}"


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def is_underway(pid: int, file: Path) -> bool:
    return is_alive(pid) and mark("taken", pid).exists() and not file.exists()


def clients(desk: Desk | None) -> list[int]:
    """Return the processes that can be profiled."""
    asked_at = dict(desk.asked_at) if desk else {}
    asked = [pid for pid, at in asked_at.items() if time.time() - at < 3 * POLL]
    return [pid for pid in asked if is_alive(pid) and mark("guarded", pid).exists()]


def take_from_torch(desk: Desk, seconds: float, folder: Path, host: str) -> list[Path]:
    """Let all processes take a profile at the same time; return a file for each that wrote one."""
    if seconds > MOST:
        raise BergError(
            "PyTorch's profiler keeps its data in the command's memory: "
            f"give it {MOST} s at most (-s)"
        )
    begin(desk, seconds)
    # a process that ends now writes a trace with nothing in it
    late = [pid for pid in desk.files if mark("ends", pid).exists()]

    def are_done() -> bool:
        return not any(is_underway(*each) for each in desk.files.items())

    api.wait_for(are_done, 0.2, desk.begins + desk.seconds + KINETO_SLACK - time.time())
    written = {pid: file for pid, file in desk.files.items() if file.exists() and pid not in late}
    if not written:
        raise BergError(f"{ENDED}, or PyTorch takes another one in it")
    folder.mkdir(parents=True, exist_ok=True)
    is_alone = len(desk.files) == 1
    names = {pid: host if is_alone else f"{host}.{pid}" for pid in written}
    return [pack(file, folder / f"{names[pid]}.pt.trace.json.gz") for pid, file in written.items()]


def begin(desk: Desk, seconds: float) -> None:
    """Ask the processes for a profile, and wait until they take it."""
    for _ in range(TRIES):
        desk.files, desk.seconds, desk.begins = {}, seconds, time.time() + POLL + WARM_UP + 2
        time.sleep(max(0, desk.begins - time.time()))
        if desk.files or not clients(desk):
            return


def pack(trace: Path, target: Path) -> Path:
    """Replace a trace by a compressed one at `target`; return that."""
    packed = trace.with_suffix(".gz")
    with trace.open("rb") as plain, gzip.open(packed, "wb", compresslevel=3) as out:
        shutil.copyfileobj(plain, out, 1 << 20)
    trace.unlink()
    return packed.replace(target)

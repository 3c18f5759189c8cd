"""A profile of the command while it runs, requested by this machine's metadata: the key
`berg-profile-TIME` with the value `JOB SECONDS`.

It is the first that the command offers of: JAX's profiler server (torch_tpu's is the same) on
BERG_PROFILER_PORT; PyTorch's profiler (Kineto) in a job with --profile; py-spy, which reads the
memory of python processes without stopping them. The answer is an object next to the log, and the
files are among the results. Not covered: programs that are not python.

Also autopsies, which are for a job that hangs, or requested as a profile without seconds.
"""

import contextlib
import gzip
import io
import json
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from berg import BergError, computer, job, states
from berg.code import dist
from berg.google import api, events
from berg.machine import boot, keeper, usage
from berg.machine.process import CONTAINER, FLIGHT, RESULTS, start_thread

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
                kind, files = STACKS, [take_autopsy(attempt, when)]
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
        program = provide_py_spy(attempt.machine)
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


# --- autopsies: what is recorded of a job that hangs, before anything is ended
#
# A file of each machine in the results, `autopsy/TIME/MACHINE.json`, and what PyTorch's flight
# recorder wrote. Each part has 30 seconds, and a part that fails is recorded as failed. Quick and
# harmless ones come first. Not covered: native frames; NCCL without its RAS (before 2.24); gloo has
# no flight recorder.

PART_SECONDS = 30
RAS_PORT = 28028  # of NCCL, on loopback
LARGEST = 1 << 20  # characters of a text that are kept
# Folders of Python's own modules and of packages: what is in others is the user's code.
LIBRARIES = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3|^<")
WRAPPERS = re.compile(r"wrap|inner|decorat|<lambda>|__call__|_call_impl|_fn$")

Frames = list[dict[str, Any]]  # as py-spy prints them, the innermost first
TOOLS = boot.BERG / "tools"

installing = threading.Lock()


def take_autopsy(attempt: Any, when: str) -> Path:
    """Record what this machine's part of a job does; return the file among its results."""
    found = states.Autopsy(attempt.machine.name, job.now())
    folder: Path = RESULTS / attempt.job.results_dir / states.AUTOPSIES / when
    folder.mkdir(parents=True, exist_ok=True)
    root = attempt.runner.process.pid if attempt.runner.process else 0
    pids = ranks(root, attempt.member.node.rank, bool(attempt.job.docker))
    parts: dict[str, Callable[[], str]] = {
        "memory and disks": space,
        "stacks": lambda: stacks(provide_py_spy(attempt.machine), pids, found.processes),
        "nccl": ask_nccl,
        "nvidia-smi": lambda: printed("nvidia-smi", "-q"),
        "kernel": lambda: errors_in(printed("dmesg")),
        "flight recorder": lambda: fly(pids, folder / attempt.machine.name),
    }
    if not attempt.job.gpus_per_machine:
        for name in ("nccl", "nvidia-smi", "kernel", "flight recorder"):
            del parts[name]
    for name, step in parts.items():
        record(found, name, step)
    file = folder / f"{attempt.machine.name}.json"
    file.with_suffix(".new").write_text(json.dumps(asdict(found), indent=1))
    file.with_suffix(".new").rename(file)
    return file


def record(found: states.Autopsy, name: str, step: Callable[[], str]) -> None:
    """Record what a part returns, or why it failed, within its time."""
    done: list[str] = []

    def work() -> None:
        try:
            text = step()[:LARGEST]
        except Exception as error:
            why = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
            done.append(why)
            found.failed[name] = why
        else:
            done.append(text)
            found.texts[name] = text

    start_thread(work).join(PART_SECONDS)
    if not done:
        found.failed[name] = f"it did not answer within {PART_SECONDS} s"


def printed(*command: str) -> str:
    """Return what a program prints; raise BergError if it is missing, hangs or fails."""
    if not shutil.which(command[0]):
        raise BergError(f"there is no {command[0]} here")
    if command[0] == "nvidia-smi" and usage.stuck:
        raise BergError("an nvidia-smi of before still hangs in its driver")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=PART_SECONDS - 5)
    except subprocess.TimeoutExpired:
        process.kill()
        raise BergError(f"{command[0]} did not answer") from None
    if process.returncode:
        last = (output.strip().splitlines() or ["it printed nothing"])[-1]
        raise BergError(f"{command[0]} failed: {last}")
    return output


def space() -> str:
    """Return how full memory and disks are."""
    lines = Path("/proc/meminfo").read_text().splitlines()[:5]
    for folder in (RESULTS, Path("/tmp"), Path("/dev/shm")):
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(folder).free
            lines.append(f"{folder}: {free / 1e9:.1f} GB free")
    return "\n".join(lines)


def errors_in(log: str) -> str:
    """Return the lines of the kernel's log about GPUs (XIDs) and memory that ran out."""
    return "\n".join(re.findall(r".*(?:NVRM: Xid|Out of memory|oom-kill).*", log))


# --- processes


def ranks(root: int, node: int, in_container: bool) -> dict[int, str]:
    """Return the rank of each Python process of a job's command that has one of its own; without
    any, the machine's rank for all that no other Python started. Loader workers have the rank of
    their parent. On a machine without a command (root is 0), such as one on which mpirun starts
    processes through ssh, all processes with a rank count.
    """
    parents = {process: parent for process, parent, _ in keeper.living()}
    below = keeper.below(root) if root else [*parents]
    named = {
        pid: rank_of(pid) for pid in [*below, *in_its_container(in_container)] if is_python(pid)
    }
    found = {
        pid: rank for pid, rank in named.items() if rank and named.get(parents.get(pid, 0)) != rank
    }
    if found or not root:
        return found
    return {pid: str(node) for pid in named if parents.get(pid) not in named}


def in_its_container(has_one: bool) -> list[int]:
    """Return the processes of the command's container, which are below docker's daemon."""
    first = 0  # also what docker says of one that does not run
    with contextlib.suppress(BergError, ValueError):
        if has_one:
            first = int(printed("docker", "inspect", "-f", "{{.State.Pid}}", CONTAINER))
    return [first, *keeper.below(first)] if first else []


def is_python(pid: int) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        return Path(f"/proc/{pid}/exe").readlink().name.startswith("python")
    return False


def rank_of(pid: int) -> str:
    """Return the rank in a process's environment; "" without one."""
    with contextlib.suppress(OSError):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        for key in (b"RANK=", b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=", b"SLURM_PROCID="):
            for each in variables:
                if each.startswith(key) and each[len(key) :].isdigit():
                    return each[len(key) :].decode()
    return ""


def stacks(py_spy: str, pids: dict[int, str], processes: list[list[str]]) -> str:
    """Return the Python stacks of processes as text, and add what each does to `processes`.

    Each is asked by itself: py-spy's JSON has no children.
    """
    texts = []
    for pid, rank in pids.items():
        try:
            output = printed(py_spy, "dump", "--json", "--nonblocking", "--pid", str(pid))
            threads = json.loads(output)
        except (BergError, ValueError) as error:
            texts.append(f"rank {rank}, process {pid}: {getattr(error, 'message', error)}")
            continue
        frames: dict[str, Frames] = {}
        frames |= {
            each["thread_name"] or str(each["thread_id"]): each["frames"] for each in threads
        }
        main = frames.get("MainThread") or next(iter(frames.values()), [])
        processes.append([rank, str(pid), place(main)])
        texts.append(f"rank {rank}, process {pid}, {in_kernel(pid)}")
        for name, each in frames.items():
            texts += [f"  {name}", *(f"    {frame['name']} ({where(frame)})" for frame in each)]
    if pids and not processes:
        raise BergError("\n".join(texts))
    return "\n".join(texts) or "no Python runs"


def in_kernel(pid: int) -> str:
    """Return the state of a process, and the function of the kernel that it waits in."""
    words = []
    with contextlib.suppress(OSError):
        state = re.search(r"^State:\s*(.*)$", Path(f"/proc/{pid}/status").read_text(), re.M)
        words = [state[1] if state else "", Path(f"/proc/{pid}/wchan").read_text()]
    return " ".join(word for word in words if word not in ("", "0"))


def place(frames: Frames) -> str:
    """Return what a stack does: the innermost line of the user's code, and what that calls."""
    depth = next(
        (n for n, each in enumerate(frames) if not LIBRARIES.search(each["filename"])), None
    )
    if depth is None:
        return f"{frames[0]['name']} ({where(frames[0])})" if frames else ""
    called = [each["name"] for each in frames[:depth] if not WRAPPERS.search(each["name"])]
    name = called[-1] if called else frames[depth]["name"]
    return f"{name} ({where(frames[depth])})"


def where(frame: dict[str, Any]) -> str:
    return f"{Path(frame['filename']).name}:{frame['line']}"


# --- NCCL


def ask_nccl() -> str:
    """Return what NCCL's RAS says of all ranks; any machine knows it."""
    end, answer = time.monotonic() + PART_SECONDS - 5, b""
    try:
        connection = socket.create_connection(("127.0.0.1", RAS_PORT), 5)
    except ConnectionRefusedError:
        raise BergError("no process has NCCL's RAS: it comes with NCCL 2.24") from None
    with connection:
        connection.sendall(b"VERBOSE STATUS\n")
        while len(answer) < LARGEST:
            connection.settimeout(max(end - time.monotonic(), 0.1))
            if not (piece := connection.recv(1 << 16)):
                break
            answer += piece
    return answer.decode(errors="replace")


def fly(pids: dict[int, str], target: Path) -> str:
    """Let PyTorch's flight recorders write what they have, and copy that next to `target`; return
    which ranks did.
    """
    began, waiting, done = time.time(), dict[Path, str](), []
    for pid, rank in pids.items():
        base = Path(f"/proc/{pid}/root{FLIGHT}{rank}")
        with contextlib.suppress(OSError):  # no pipe, or no process that reads it
            pipe = os.open(f"{base}.pipe", os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, b"1\n")
            os.close(pipe)
            waiting[base] = rank
    while waiting and time.time() < began + PART_SECONDS - 5:
        for base, rank in list(waiting.items()):
            if base.exists() and began - 1 < base.stat().st_mtime < time.time() - 1:
                shutil.copyfile(base, f"{target}.flight_{rank}")
                done.append(waiting.pop(base))
        time.sleep(0.2)
    if waiting:
        raise BergError(f"nothing came of ranks {', '.join(waiting.values())}")
    if not done:
        raise BergError("no process has a flight recorder: it comes with PyTorch's NCCL")
    return f"of ranks {', '.join(done)}"


# --- py-spy, which reads the memory of Python processes without stopping them


def provide_py_spy(machine: boot.Machine) -> str:
    """Return the program, which comes from Berg's packages, or else from the package index."""
    there = TOOLS / "bin/py-spy"
    with installing:
        if there.exists() or py_spy_from_packages(machine, there):
            return str(there)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", dist.PY_SPY]
        command += ["--target", str(TOOLS)]
        clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(command, capture_output=True, text=True, env=clean, timeout=300)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["pip printed nothing"])[-1]
            raise BergError(f"py-spy, which profiles python, could not be installed: {why}")
        return str(there)


def py_spy_from_packages(machine: boot.Machine, target: Path) -> bool:
    """Unpack py-spy from Berg's packages, on this disk or in the bucket; return whether it is there
    for this kind of processor.
    """
    if not machine.packages or platform.machine() != "x86_64":
        return False
    archive = boot.BERG / machine.packages.rpartition("/")[2]
    try:
        content = archive.read_bytes() if archive.exists() else machine.read(machine.packages)[0]
        boot.check(content, machine.packages_sha256, f"gs://{machine.bucket}/{machine.packages}")
        with zipfile.ZipFile(io.BytesIO(content)) as packages:
            wheel = io.BytesIO(packages.read(dist.PY_SPY_WHEEL))
        with zipfile.ZipFile(wheel) as zipped:
            (name,) = [name for name in zipped.namelist() if name.endswith("/scripts/py-spy")]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.with_suffix(".new").write_bytes(zipped.read(name))
    except (OSError, KeyError) as error:  # KeyError: the laptop could not download it
        boot.console(f"py-spy is not in Berg's packages: {error}")
        return False
    target.with_suffix(".new").chmod(0o755)
    target.with_suffix(".new").rename(target)
    return True

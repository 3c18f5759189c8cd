"""What is recorded of a job that hangs, before anything is ended: a file of each machine in the
results, `autopsy/TIME/MACHINE.json`, and what PyTorch's flight recorder wrote.

Each part has 30 seconds, and a part that fails is recorded as failed. Quick and harmless ones come
first. Not covered: native frames; NCCL without its RAS (before 2.24); gloo has no flight recorder.
"""

import contextlib
import io
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from berg import BergError, job, states
from berg.code import dist
from berg.machine import boot, keeper, usage
from berg.machine.process import CONTAINER, FLIGHT, RESULTS, start_thread

PART_SECONDS = 30
RAS_PORT = 28028  # of NCCL, on loopback
LARGEST = 1 << 20  # characters of a text that are kept
# Folders of Python's own modules and of packages: what is in others is the user's code.
LIBRARIES = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3|^<")
WRAPPERS = re.compile(r"wrap|inner|decorat|<lambda>|__call__|_call_impl|_fn$")

Frames = list[dict[str, Any]]  # as py-spy prints them, the innermost first
TOOLS = boot.BERG / "tools"

installing = threading.Lock()


def take(attempt: Any, when: str) -> Path:
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

    thread = start_thread(work)
    thread.join(PART_SECONDS)
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
    parents = dict(keeper.living())
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
    depth = next((n for n, each in enumerate(frames) if not is_library(each)), None)
    if depth is None:
        return f"{frames[0]['name']} ({where(frames[0])})" if frames else ""
    called = [each["name"] for each in frames[:depth] if not WRAPPERS.search(each["name"])]
    name = called[-1] if called else frames[depth]["name"]
    return f"{name} ({where(frames[depth])})"


def is_library(frame: dict[str, Any]) -> bool:
    return bool(LIBRARIES.search(frame["filename"]))


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

"""A profile of the command while it runs, asked for by this machine's metadata:
`berg-profile-TIME`, `JOB SECONDS`.

What can be had, the best first: JAX's profiler server (torch_tpu's is the same), if the command
started one on BERG_PROFILER_PORT; PyTorch's own profiles, if the job was started with --profile
(kineto.py); else py-spy, which reads the memory of python processes from outside and never stops
them. The answer is an object beside the log; the files lie among the results. Not covered: programs
that are not python.
"""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from berg import BergError, job
from berg.google import wire
from berg.machine import boot, keeper, kineto, tpus
from berg.machine.process import RESULTS

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
    if kineto.clients(attempt.kineto):
        return "kineto", kineto.take(
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
    options = b"".join(wire.number(field, value) for field, value in levels.items())
    request = wire.number(MILLISECONDS, milliseconds) + wire.number(MAX_EVENTS, 1_000_000)
    request += wire.embedded(TOOL, b"xplane") + wire.embedded(OPTIONS, options)
    for field, text in ((ROOT, str(root)), (SESSION, when), (HOST, host)):
        request += wire.embedded(field, text.encode())
    try:
        tpus.ask(port, [request], METHOD, seconds + SLACK)
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

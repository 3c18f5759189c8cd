"""The command line in processes that are forked from one which has imported berg already.

Imports are most of the CPU time of a call, and the tests make hundreds. Each is a process all the
same, with its own environment, folder and standard streams.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from types import ModuleType
from typing import Any

import forked_call
import pytest

SECONDS = 240
starting = threading.Lock()  # of one thread at a time, as it patches what is everybody's
server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(["forked_imports"])


def start_server() -> None:
    """Start the server of this process, unless it runs.

    It finds what it preloads by PYTHONPATH alone: it knows nothing of this process's sys.path, and
    goes on in silence where a module is missing.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()


def start(target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """Start a process that calls a function of forked_call.

    It would import this process's main module anew, which is pytest, and need nothing of it.
    """
    process = server.Process(target=target, args=arguments)
    with starting, pytest.MonkeyPatch.context() as patch:
        start_server()
        patch.setitem(sys.modules, "__main__", ModuleType("__main__"))
        process.start()
    return process


def run(
    arguments: list[str], cwd: Path, env: dict[str, str], stdin: str | None
) -> CompletedProcess[str]:
    """What `python -m berg` does and prints with those arguments."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(stdin or "")
        process = start(forked_call.call, arguments, cwd, env, streams)
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            raise TimeoutExpired(arguments, SECONDS)
        output = [path.read_text() if path.exists() else "" for path in streams[1:]]
    return CompletedProcess(arguments, process.exitcode, *output)


class Running:
    """A command line that runs: what the tests need of subprocess.Popen."""

    def __init__(self, arguments: list[str], cwd: Path, env: dict[str, str], fields: dict) -> None:
        pipes = [server.Pipe(duplex=False) for _ in range(2)]
        writers = [writer for _, writer in pipes]
        self.args = arguments
        self.process = start(forked_call.call_in_pipes, arguments, cwd, env, writers, fields)
        self.pid: int = self.process.pid or 0
        self.stdout, self.stderr = (os.fdopen(os.dup(reader.fileno())) for reader, _ in pipes)
        for reader, writer in pipes:
            reader.close()
            writer.close()

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        code = self.process.exitcode
        if code is None:
            raise TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return the rest of its output, once it has ended."""
        with ThreadPoolExecutor(2) as readers:
            reading = [readers.submit(stream.read) for stream in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except TimeoutExpired:
                self.kill()  # ends the reading, too
                raise
            return reading[0].result(), reading[1].result()


def modules() -> set[str]:
    """Return the names of the modules that a process has imported when its command begins."""
    theirs, ours = server.Pipe(duplex=False)
    process = start(forked_call.send_modules, ours)
    found: set[str] = theirs.recv()
    process.join()
    return found

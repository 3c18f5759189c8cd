"""The command line in processes that are forked from one which has imported berg already.

Imports are most of the CPU time of a call, and the tests make hundreds. Each is a process all the
same, with its own environment, folder and standard streams.
"""

import multiprocessing
import os
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

import pytest

SECONDS = 240
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


def run(
    arguments: list[str], cwd: Path, env: dict[str, str], stdin: str | None
) -> CompletedProcess[str]:
    """What `python -m berg` does and prints with those arguments."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(stdin or "")
        start_server()
        process = server.Process(target=call, args=(arguments, cwd, env, streams))
        process.start()
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            raise TimeoutExpired(arguments, SECONDS)
        output = [path.read_text() if path.exists() else "" for path in streams[1:]]
    return CompletedProcess(arguments, process.exitcode, *output)


def call(arguments: list[str], cwd: Path, env: dict[str, str], streams: list[Path]) -> None:
    for descriptor, path in enumerate(streams):
        os.dup2(
            os.open(path, os.O_CREAT | (os.O_WRONLY if descriptor else os.O_RDONLY)), descriptor
        )
    sys.stdin = os.fdopen(0)  # multiprocessing has closed it
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["berg", *arguments]
    from berg import cli

    cli.main()


def modules() -> set[str]:
    """Return the names of the modules that a process has imported when its command begins."""
    start_server()
    theirs, ours = server.Pipe(duplex=False)
    process = server.Process(target=send_modules, args=(ours,))
    process.start()
    found: set[str] = theirs.recv()
    process.join()
    return found


def send_modules(connection) -> None:
    connection.send({name for name, module in sys.modules.items() if module})

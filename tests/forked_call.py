"""What runs in the processes of forked.py. They import this module and all that it imports anew if
the server has not, so it imports little.
"""

import http.client
import itertools
import os
import signal
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def call(arguments: list[str], cwd: Path, env: dict[str, str], streams: list[Path]) -> None:
    for descriptor, path in enumerate(streams):
        os.dup2(
            os.open(path, os.O_CREAT | (os.O_WRONLY if descriptor else os.O_RDONLY)), descriptor
        )
    sys.stdin = os.fdopen(0)  # multiprocessing has closed it
    run_berg(arguments, cwd, env)


def call_in_pipes(
    arguments: list[str],
    cwd: Path,
    env: dict[str, str],
    writers: list[Connection],
    fields: dict[str, Any],
) -> None:
    """As `call`, of a command line whose output is read meanwhile; what jobs it makes have these
    fields, which no option sets.
    """
    for descriptor, writer in enumerate(writers, start=1):
        os.dup2(writer.fileno(), descriptor)
        writer.close()
    die_at_write(fields.pop("dies_at", 0))
    if fields:
        from berg.laptop import launch

        make = launch.job_of

        def changed(*given: Any) -> Any:
            made = make(*given)
            own = {key: value for key, value in fields.items() if key in vars(made)}
            options = {key: value for key, value in fields.items() if key not in own}
            return replace(made, **own, spec=replace(made.spec, **options))

        launch.job_of = changed
    run_berg(arguments, cwd, env)


def die_at_write(number: int) -> None:
    """Let this process be killed when it is about to send its request of this number that may
    change something; 0: never.
    """
    sent, send = itertools.count(1), http.client.HTTPConnection.putrequest

    def count(self: http.client.HTTPConnection, method: str, *more: Any, **options: Any) -> None:
        if method != "GET" and next(sent) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        send(self, method, *more, **options)

    if number:
        http.client.HTTPConnection.putrequest = count  # type: ignore[method-assign]


def run_berg(arguments: list[str], cwd: Path, env: dict[str, str]) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["berg", *arguments]
    from berg import cli
    from berg.google import api

    api.SOON = float(env.get("TESTS_SOON", 3600))  # what a slow computer waits for is in no output
    cli.main()


def send_modules(connection) -> None:
    connection.send({name for name, module in sys.modules.items() if module})

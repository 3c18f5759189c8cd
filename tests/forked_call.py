"""What runs in the processes of forked.py. They import this module and all that it imports anew if
the server has not, so it imports little.
"""

import os
import sys
from pathlib import Path


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


def send_modules(connection) -> None:
    connection.send({name for name, module in sys.modules.items() if module})

"""berg's command line in processes that are forked from one that has imported it: each spares a second of CPU."""

import multiprocessing
import os
import sys
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
# The server finds it from the folder it is started in: this one, or the repository's.
FORKS.set_forkserver_preload(["imported", "tests.imported"])


def berg(words: list[str], cwd: Path, env: dict[str, str], out: Path, err: Path) -> int:
    """Run `berg WORDS`, with nothing to read, until it ends; return its exit code."""
    process = FORKS.Process(target=become, args=(words, cwd, env, out, err))
    process.start()
    process.join(200)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"berg {' '.join(words)}")
    return process.exitcode


def become(words: list[str], cwd: Path, env: dict[str, str], out: Path, err: Path) -> None:
    """What the forked process does."""
    assert "berg.cli" in sys.modules  # else it spares nothing
    from berg.cli import main

    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for number, path, flags in (
        (0, Path(os.devnull), os.O_RDONLY),
        (1, out, os.O_WRONLY),
        (2, err, os.O_WRONLY),
    ):
        os.dup2(os.open(path, flags | os.O_CREAT, 0o600), number)
    sys.stdin = open(0)
    sys.stdout = open(1, "w")
    sys.stderr = open(2, "w", buffering=1)
    sys.argv = ["berg", *words]
    main()

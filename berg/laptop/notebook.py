"""Jupyter on a machine, in the browser of this computer: behind ssh's tunnel, with its token.

The token is in no command line and in no log: the browser gets a file that only its owner may read,
which leads to the server, and goes with the tunnel.

A browser sends the cookies of a host to all of its ports. So each tunnel has an address of its own
in 127.0.0.0/8: what listens at 127.0.0.1, perhaps another user of this computer, gets no cookie of
Jupyter's. macOS has 127.0.0.1 alone.
"""

import contextlib
import functools
import html
import re
import secrets
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from berg import BergError, computer, validation
from berg.config import Config
from berg.laptop import ssh
from berg.laptop.ssh import Say, Target

SCRIPT = Path(__file__).parents[1] / "machine/notebook.py"
PATIENCE = 30  # seconds for the tunnel to open
MOST = 100_000  # characters that a machine may say of its server, or in a line
READY = "berg-tunnel"
# What runs there: ssh runs it once it has the port here, and it ends with its input.
OPEN = ["echo", READY, "&&", "exec", "cat"]


@dataclass
class Server:
    """Where a machine's Jupyter server listens, as the machine says."""

    port: int
    token: str
    path: str


@contextlib.contextmanager
def opened(config: Config, name: str, say: Say) -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    """Open a tunnel to the Jupyter server of a machine, which is started if there is none.

    Yields a file for the browser, and the process of the tunnel; both go in the end. Raises
    BergError for a machine that cannot be logged in to, or has no Jupyter.
    """
    target = ssh.find_target(config, name, say)
    say(f"Looking for Jupyter on {target.machine}")
    server = find_server(config, target)
    host, port = free_address()
    forward = ["-L", f"{host}:{port}:127.0.0.1:{server.port}"]
    forward += ["-o", "ExitOnForwardFailure=yes"]
    words = ssh.command(config, target, forward, OPEN)
    program, pipe = [ssh.require("ssh"), *words[1:]], subprocess.PIPE
    with (
        tempfile.TemporaryDirectory(prefix="berg-") as folder,
        subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, errors="replace") as tunnel,
    ):
        try:
            wait_for_tunnel(tunnel, target)
            yield write_page(Path(folder), server, f"{host}:{port}"), tunnel
        finally:
            tunnel.terminate()


def find_server(config: Config, target: Target) -> Server:
    """Return the Jupyter server of a machine; raise BergError with why there is none."""
    words = ssh.command(config, target, ["-o", "BatchMode=yes"], ["python3", "-"])
    done = run([ssh.require("ssh"), *words[1:]], SCRIPT)
    if "there is no Jupyter in " in done.stderr:
        raise BergError(
            f"{target.machine} has no Jupyter in the environment of the repo, only in the image's "
            f"python. Install it: uv add --dev jupyterlab, then berg sync {target.machine}"
        )
    if "there is no Jupyter" in done.stderr:
        raise BergError(
            f"{target.machine} has no Jupyter. Install it: "
            f"berg ssh {target.machine} -- python -m pip install jupyterlab"
        )
    if done.returncode:
        why = validation.clean(done.stderr.strip().rpartition("\n")[2])
        raise BergError(f"Jupyter cannot be reached on {target.machine}: {why}")
    try:
        return server_from(done.stdout.rstrip().rpartition("\n")[2].encode())
    except ValueError as error:
        raise BergError(f"{target.machine} says something odd of its Jupyter: {error}") from None


def run(program: list[str], script: Path) -> "subprocess.CompletedProcess[str]":
    """Run a program with a file as its input, and end it if it says more than MOST: a machine may
    say what it likes for as long as it likes.
    """
    pipe = subprocess.PIPE
    with (
        script.open() as given,
        subprocess.Popen(
            program, stdin=given, stdout=pipe, stderr=pipe, text=True, errors="replace"
        ) as process,
        ThreadPoolExecutor() as pool,
    ):

        def read(stream: IO[str]) -> str:
            text = stream.read(MOST + 1)
            if len(text) > MOST:
                process.kill()
            return text

        said = list(pool.map(read, filter(None, (process.stdout, process.stderr))))
        code = process.wait()
    if max(map(len, said)) > MOST:
        said[1] += "\nit says too much"
    return subprocess.CompletedProcess(program, code, *said)


def server_from(data: bytes) -> Server:
    """Return what a machine says of its server; raise ValueError for what no server is like."""
    server = validation.from_dict(Server, validation.parse(data))
    if not 1 <= server.port <= 65535:
        raise ValueError(f"its port is {server.port}")
    if not re.fullmatch(r"[\w.~-]+", server.token, re.ASCII):
        raise ValueError("its token has other characters than a token")
    if not re.fullmatch(r"/[\w./~-]*", server.path, re.ASCII):
        raise ValueError("its path is none")
    return server


def free_address() -> tuple[str, int]:
    """Return a random address of this computer's loopback, and a port that is free there now."""
    host = ".".join(["127", *(str(1 + secrets.randbelow(254)) for _ in range(3))])
    try:
        return host, computer.free_port(host=host)
    except OSError:  # macOS has 127.0.0.1 alone
        return "127.0.0.1", computer.free_port()


def wait_for_tunnel(tunnel: "subprocess.Popen[str]", target: Target) -> None:
    """Wait until ssh has the port, and the machine's word that it is logged in; raise BergError if
    it does not come.

    Whoever listens at the port is not asked: another user of this computer may see it in ssh's
    arguments and be quicker.
    """
    assert tunnel.stdout
    timer = threading.Timer(PATIENCE, tunnel.terminate)
    timer.start()
    try:
        lines = iter(functools.partial(tunnel.stdout.readline, MOST), "")
        is_open = any(line.strip() == READY for line in lines)
    finally:
        timer.cancel()
    if not is_open:
        raise BergError(f"no tunnel to {target.machine} opened. See: berg ssh {target.machine}")


def write_page(folder: Path, server: Server, host: str) -> Path:
    """Write the file that leads a browser to a server, for its owner alone."""
    address = f"http://{host}{server.path}?token={server.token}"
    page = folder / "jupyter.html"
    page.touch(mode=0o600)
    link = html.escape(address)
    page.write_text(f'<meta http-equiv="refresh" content="0; url={link}">\n')
    return page

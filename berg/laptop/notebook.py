"""Jupyter of a machine in the browser of this computer, through ssh's tunnel.

Its token is in no command line and no log: the browser gets a file that only its owner may read,
and that is deleted with the tunnel. A browser sends the cookies of a host to all of its ports, so
each tunnel has an address of its own in 127.0.0.0/8: other users' servers at 127.0.0.1 get none of
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
from berg.laptop.jobs import Say
from berg.laptop.ssh import Target

SCRIPT = Path(__file__).parents[1] / "machine/notebook.py"
TIMEOUT = 30  # seconds for the tunnel to open
MOST = 100_000  # characters read from a machine about its server, or in a line
READY = "berg-tunnel"


@dataclass
class Server:
    """Where a machine's Jupyter server listens, as the machine reports it."""

    port: int
    token: str
    path: str


@contextlib.contextmanager
def opened(config: Config, name: str, say: Say) -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    """Open a tunnel to the Jupyter server of a machine, which is started if there is none.

    Yields a file for the browser, and the process of the tunnel; both end with the context. Raises
    BergError for a machine that cannot be logged in to, or has no Jupyter.
    """
    target = ssh.find_target(config, name, say)
    say(f"Looking for Jupyter on {target.machine}")
    server = find_server(config, target)
    host, port = free_address()
    options = ["-L", f"{host}:{port}:127.0.0.1:{server.port}", "-o", "ExitOnForwardFailure=yes"]
    # ssh runs this command when it has the port here; it ends with its input.
    words = ssh.command(config, target, options, ["echo", READY, "&&", "exec", "cat"])
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
    code, output, errors = run([ssh.require("ssh"), *words[1:]], SCRIPT)
    if "there is no Jupyter in " in errors:
        raise BergError(
            f"{target.machine} has no Jupyter in the environment of the repo, only in the image's "
            f"python. Install it: uv add --dev jupyterlab, then berg sync {target.machine}"
        )
    if "there is no Jupyter" in errors:
        raise BergError(
            f"{target.machine} has no Jupyter. Install it: "
            f"berg ssh {target.machine} -- python -m pip install jupyterlab"
        )
    if code:
        why = validation.clean(errors.strip().rpartition("\n")[2])
        raise BergError(f"Jupyter cannot be reached on {target.machine}: {why}")
    try:
        return server_from(output.rstrip().rpartition("\n")[2].encode())
    except ValueError as error:
        raise BergError(f"{target.machine} reports an invalid Jupyter server: {error}") from None


def run(program: list[str], script: Path) -> tuple[int, str, str]:
    """Run a program with a file as its input; return its exit code, output and errors.

    It is ended at MOST characters of one of them: a machine may print without end.
    """
    pipe = subprocess.PIPE
    with (
        script.open() as given,
        subprocess.Popen(
            program, stdin=given, stdout=pipe, stderr=pipe, text=True, errors="replace"
        ) as process,
        ThreadPoolExecutor() as pool,
    ):

        def read(stream: IO[str] | None) -> str:
            text = stream.read(MOST + 1) if stream else ""
            if len(text) > MOST:
                process.kill()
            return text

        output, errors = pool.map(read, (process.stdout, process.stderr))
        code = process.wait()
    if max(len(output), len(errors)) > MOST:
        errors += "\nit prints too much"
    return code, output, errors


def server_from(data: bytes) -> Server:
    """Return what a machine reports about its server; raise ValueError if it is invalid."""
    server = validation.from_dict(Server, validation.parse(data))
    if not 1 <= server.port <= 65535:
        raise ValueError(f"its port is {server.port}")
    if not re.fullmatch(r"[\w.~-]+", server.token, re.ASCII):
        raise ValueError("its token has characters that no token has")
    if not re.fullmatch(r"/[\w./~-]*", server.path, re.ASCII):
        raise ValueError("its path is not valid")
    return server


def free_address() -> tuple[str, int]:
    """Return a random address of this computer's loopback, and a port that is free there now."""
    host = ".".join(["127", *(str(1 + secrets.randbelow(254)) for _ in range(3))])
    try:
        return host, computer.free_port(host=host)
    except OSError:  # macOS has 127.0.0.1 alone
        return "127.0.0.1", computer.free_port()


def wait_for_tunnel(tunnel: "subprocess.Popen[str]", target: Target) -> None:
    """Wait until the machine confirms the login, when ssh has the port; raise BergError if it does
    not.

    The port itself proves nothing: another user of this computer may see it in ssh's arguments and
    be quicker.
    """
    assert tunnel.stdout
    timer = threading.Timer(TIMEOUT, tunnel.terminate)
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
    address = html.escape(f"http://{host}{server.path}?token={server.token}")
    page = folder / "jupyter.html"
    page.touch(mode=0o600)
    page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">\n')
    return page

"""Start, stop and look at the embedded cloud's process, from outside. Light: the CLI imports it.

    <folder>/server.lock   locked as long as the server runs
    <folder>/server.json   its process id and port; the port is kept for the next start
    <folder>/server.log    what it logs
    <folder>/credentials.json   what GOOGLE_APPLICATION_CREDENTIALS should point to

Not covered: a server on another host, and more than one server per folder.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

START_SECONDS, STOP_SECONDS = 60.0, 60.0  # the first start compiles hundreds of modules


class LocalCloudError(Exception):
    """The embedded cloud cannot do what was asked; the message is a sentence for people."""


def start(
    folder: Path, port: int = 0, wait: float = START_SECONDS, options: tuple[str, ...] = ()
) -> int:
    """Start the server unless it runs, and return its port once it answers.

    Port 0 means the port it had before, or any free one. `options` go to `python -m localcloud`.
    """
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    with locked(folder / "start.lock"):
        saved = read_json(folder / "server.json").get("port", 0)
        if is_running(folder):
            return wait_until_ready(folder, None, wait)
        port = port or saved
        if port:
            check_free(port)
        (folder / "server.json").unlink(missing_ok=True)
        with (folder / "server.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "localcloud",
                    str(folder),
                    "--quiet",
                    f"--port={port}",
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # The folder where the caller stands may hold a `berg` of another version.
                cwd=Path(__file__).parent.parent,
            )
        return wait_until_ready(folder, process, wait)


def wait_until_ready(folder: Path, process: subprocess.Popen[bytes] | None, wait: float) -> int:
    deadline = time.monotonic() + wait
    while time.monotonic() < deadline:
        port = read_json(folder / "server.json").get("port")
        if port and answers(port):
            return port
        if process is not None and process.poll() is not None:
            reason = (folder / "server.log").read_text(errors="replace").strip().rpartition("\n")[2]
            raise LocalCloudError(f"the embedded cloud ended at once: {reason}")
        time.sleep(0.02)
    raise LocalCloudError(
        f"the embedded cloud did not answer within {wait:g} s; see {folder / 'server.log'}"
    )


def stop(folder: Path, wait: float = STOP_SECONDS) -> bool:
    """End the machines and the server; False if nothing ran."""
    folder = Path(folder).absolute()
    if not is_running(folder):
        return end_orphans(folder)
    pid = read_json(folder / "server.json").get("pid")
    deadline = time.monotonic() + wait
    while is_running(folder):
        # not there yet while the server starts
        pid = read_json(folder / "server.json").get("pid") or pid
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        if time.monotonic() > deadline:
            raise LocalCloudError(
                f"the embedded cloud (process {pid}) does not stop; see {folder / 'server.log'}"
            )
        time.sleep(0.05)
    return True


def end_orphans(folder: Path) -> bool:
    """End machines that a killed server left running."""
    from localcloud.machines import processes

    if not any(processes.first_process(path) for path in (folder / "machines").glob("*")):
        return False
    command = [sys.executable, "-m", "localcloud", str(folder), "--end-machines"]
    home = Path(__file__).parent.parent  # as in `start`
    with (folder / "server.log").open("ab") as log:
        subprocess.run(
            command, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
        )
    return True


def reset(folder: Path) -> None:
    """Stop everything and delete the whole state."""
    from localcloud.machines import sandbox

    folder = Path(folder).absolute()
    if not folder.exists():
        return
    if (
        any(folder.iterdir())
        and not (folder / "server.lock").exists()
        and not (folder / "start.lock").exists()
    ):
        raise LocalCloudError(
            f"{folder} does not look like the state of an embedded cloud; nothing was deleted"
        )
    stop(folder)
    sandbox.remove(folder)


def status(folder: Path) -> dict[str, Any]:
    """What there is: whether it runs, its port and process, how many machines are in which state."""
    folder = Path(folder).absolute()
    running = is_running(folder)
    saved = read_json(folder / "server.json")
    states: dict[str, int] = {}
    for path in (folder / "compute/instances").glob("*.json"):
        state = read_json(path).get("resource", {}).get("status", "UNKNOWN")
        states[state] = states.get(state, 0) + 1
    return {
        "running": running,
        "port": saved.get("port"),
        "pid": saved.get("pid") if running else None,
        "machines": states,
    }


def is_running(folder: Path) -> bool:
    """Whether a server holds the folder's lock: its process id may be reused by another process."""
    try:
        file = (folder / "server.lock").open()
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def answers(port: int) -> bool:
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            f"http://127.0.0.1:{port}/", timeout=2
        )
    except urllib.error.HTTPError:
        return True  # an error from the server is an answer
    except OSError:
        return False
    return True


def check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise LocalCloudError(
                f"Port {port}, which this embedded cloud uses, is taken by another program. "
                "Stop that program, or start on another port."
            ) from None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}

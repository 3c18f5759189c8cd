"""Requests that stay open: logs that are followed, and commands in containers (exec).

Not covered: attach, SPDY, parts of logs by time.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import termios
from typing import Any

from aiohttp import WSMsgType, web

from localcloud.kubernetes import kubelet, queries
from localcloud.kubernetes.kinds import Refusal
from localcloud.kubernetes.plane import Plane
from localcloud.kubernetes.running import Running
from localcloud.machines import processes

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
CHUNK = 32 << 10
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
TRUE = ("true", "1")


def container_of(pod: dict, request: web.Request) -> dict:
    """The container that a request means: the first, unless it names one."""
    meta, spec = pod["metadata"], pod["spec"]
    rows = spec["containers"]
    name = request.query.get("container") or rows[0]["name"]
    if not request.query.get("container") and len(spec["containers"]) > 1:
        names = " ".join(row["name"] for row in spec["containers"])
        message = (
            f"a container name must be specified for pod {meta['name']}, choose one of: [{names}]"
        )
        raise Refusal(400, "BadRequest", message)
    found = next((row for row in rows if row["name"] == name), None)
    if found is None:
        raise Refusal(400, "BadRequest", f"container {name} is not valid for pod {meta['name']}")
    return found


# --- logs


async def logs(plane: Plane, request: web.Request, pod: dict) -> web.StreamResponse:
    query, container = request.query, container_of(pod, request)
    key = (pod["metadata"]["uid"], container["name"])
    path = kubelet.folder_of(plane, pod) / container["name"] / "log"
    state = state_of(pod, container["name"])
    # its log is there before it is
    starts = "waiting" in state and not path.with_name("exit").exists()
    if not path.exists() or starts:
        raise no_log(pod, container["name"])
    last = queries.number(request, "tailLines")
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    with path.open("rb") as file:
        data = file.read()
        if last is not None:
            data = b"".join(data.splitlines(keepends=True)[-last:] if last else [])
        await response.write(data)
        while query.get("follow") in TRUE:
            over = key not in plane.running
            if data := file.read(1 << 16):
                await response.write(data)
            elif over or plane.closing:
                break
            else:
                await asyncio.sleep(0.05)
    return response


def state_of(pod: dict, container: str) -> dict:
    rows = pod["status"].get("containerStatuses") or []
    return next((row["state"] for row in rows if row["name"] == container), {})


def no_log(pod: dict, container: str) -> Refusal:
    name = pod["metadata"]["name"]
    if not pod["spec"].get("nodeName"):
        return Refusal(400, "BadRequest", f"pod {name} does not have a host assigned")
    reason = state_of(pod, container).get("waiting", {}).get("reason", "ContainerCreating")
    message = f'container "{container}" in pod "{name}" is waiting to start: {reason}'
    return Refusal(400, "BadRequest", message)


# --- exec


async def execute(plane: Plane, request: web.Request, pod: dict) -> web.StreamResponse:
    query, container = request.query, container_of(pod, request)
    running = plane.running.get((pod["metadata"]["uid"], container["name"]))
    first = processes.first_process(running.folder) if running else None
    if running is None or not first:
        phase = pod["status"]["phase"]
        if phase in ("Succeeded", "Failed"):
            message = f"cannot exec into a container in a completed pod; current phase is {phase}"
            raise Refusal(400, "BadRequest", message)
        if not pod["spec"].get("nodeName"):
            raise Refusal(
                400, "BadRequest", f"pod {pod['metadata']['name']} does not have a host assigned"
            )
        raise Refusal(
            500,
            "InternalError",
            f'unable to upgrade connection: container not found ("{container["name"]}")',
        )
    words = query.getall("command", [])
    if not words:
        raise Refusal(400, "BadRequest", "you must specify at least one command for the container")
    if not any(query.get(name) in TRUE for name in ("stdin", "stdout", "stderr")):
        raise Refusal(400, "BadRequest", "you must specify at least 1 of stdin, stdout, stderr")
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise Refusal(400, "BadRequest", "Upgrade request required")
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=0)
    await socket.prepare(request)
    command = command_in(plane, running, first, words, query.get("tty") in TRUE)
    await attach(socket, command, query)
    return socket


def command_in(
    plane: Plane, running: Running, first: int, words: list[str], tty: bool
) -> list[str]:
    """How this host runs a command in a container."""
    env = {**running.env, **({"TERM": "xterm"} if tty else {})}
    user = ["-U", "--preserve-credentials"] if plane.compute.sandbox.user else []
    # Not -r: the root is the one that this mount namespace was pivoted to.
    enter = ["nsenter", "-t", str(first), *user, "-m", "-u", "-i", "-p", "--"]
    # The session begins inside: a shell must know the group that has the terminal.
    enter += ["setsid", "--ctty"] if tty else []
    enter += ["setpriv", "--bounding-set", running.capabilities, "--inh-caps", "-all"]
    return [
        *enter,
        "env",
        "-i",
        "-C",
        running.workdir,
        *(f"{key}={value}" for key, value in env.items()),
        *words,
    ]


async def attach(socket: web.WebSocketResponse, command: list[str], query: Any) -> None:
    """Run a command with a WebSocket as its input and output; its exit code goes through the status
    channel.
    """
    tty, wants_input = query.get("tty") in TRUE, query.get("stdin") in TRUE
    ours = theirs = None
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    if tty:
        ours, theirs = pty.openpty()
        os.set_blocking(ours, False)
        options: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    else:
        options = {"stdin": pipe if wants_input else none, "stdout": pipe, "stderr": pipe}
    process = await asyncio.create_subprocess_exec(
        *command, start_new_session=True, umask=0o022, limit=1 << 20, **options
    )
    if theirs is not None:
        os.close(theirs)
    feeding = asyncio.ensure_future(feed(socket, process, ours))
    try:
        if ours is not None:
            await pump_terminal(socket, ours)
        else:
            assert process.stdout and process.stderr
            await asyncio.gather(
                pump(socket, process.stdout, STDOUT), pump(socket, process.stderr, STDERR)
            )
        code = await process.wait()
        if not socket.closed:
            await socket.send_bytes(
                bytes([STATUS]) + json.dumps(status_of(code if code >= 0 else 128 - code)).encode()
            )
            await socket.close()
    except ConnectionError:
        pass
    finally:
        feeding.cancel()
        if process.returncode is None:
            process.send_signal(signal.SIGHUP if tty else signal.SIGTERM)
        if ours is not None:
            os.close(ours)


def status_of(code: int) -> dict:
    if not code:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    message = f"command terminated with non-zero exit code: exit status {code}"
    return {
        **{"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": message},
        "details": {"causes": causes},
    }


async def feed(
    socket: web.WebSocketResponse, process: asyncio.subprocess.Process, terminal: int | None
) -> None:
    """What comes through the WebSocket, to the command."""
    closed = False
    async for message in socket:
        if message.type != WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == RESIZE and terminal is not None:
            resize(terminal, data)
        elif channel == STDIN and terminal is not None:
            await write_all(terminal, data)
        elif channel == STDIN and process.stdin and not closed:
            try:
                process.stdin.write(data)
                await process.stdin.drain()
            except ConnectionError:
                closed = True  # it reads no more; what it prints still counts
        elif channel == CLOSE and data[:1] == bytes([STDIN]) and process.stdin:
            process.stdin.close()
            closed = True
    if process.stdin and not closed:
        process.stdin.close()
    if process.returncode is None and terminal is not None:
        os.killpg(process.pid, signal.SIGHUP)


async def write_all(terminal: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(terminal, data) :]
        except BlockingIOError:
            await asyncio.sleep(0.01)
        except OSError:
            return


async def pump(socket: web.WebSocketResponse, stream: asyncio.StreamReader, channel: int) -> None:
    while data := await stream.read(CHUNK):
        await socket.send_bytes(bytes([channel]) + data)


async def pump_terminal(socket: web.WebSocketResponse, terminal: int) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(terminal, readable.set)
    try:
        while True:
            await readable.wait()
            readable.clear()
            try:
                data = os.read(terminal, CHUNK)
            except BlockingIOError:
                continue
            except OSError:  # the last of those who had it open has gone
                return
            if not data:
                return
            await socket.send_bytes(bytes([STDOUT]) + data)
    finally:
        loop.remove_reader(terminal)


def resize(terminal: int, data: bytes) -> None:
    size = json.loads(data)
    fcntl.ioctl(
        terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
    )

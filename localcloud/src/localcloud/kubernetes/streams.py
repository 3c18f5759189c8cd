"""Requests that stay open: logs that are followed, and commands in containers (exec).

Not covered: attach, terminals, SPDY, parts of logs by time.
"""

import asyncio
import json
import signal

from aiohttp import WSMsgType, web

from localcloud.kubernetes import kubelet
from localcloud.kubernetes.containers import Running
from localcloud.kubernetes.kinds import Refusal
from localcloud.kubernetes.plane import Plane
from localcloud.machines import processes

STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255
CHUNK = 32 << 10
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
TRUE = ("true", "1")


def container_of(pod: dict, request: web.Request) -> dict:
    """The container that a request means: the first, unless it names one."""
    rows = pod["spec"]["containers"]
    name = request.query.get("container") or rows[0]["name"]
    found = next((row for row in rows if row["name"] == name), None)
    if found is None:
        pod_name = pod["metadata"]["name"]
        raise Refusal(400, "BadRequest", f"container {name} is not valid for pod {pod_name}")
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
    last = query.get("tailLines", "")
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    with path.open("rb") as file:
        data = file.read()
        if last.isdigit():
            lines = data.splitlines(keepends=True)
            data = b"".join(lines[max(0, len(lines) - int(last)) :])
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
            raise no_log(pod, container["name"])
        raise Refusal(
            500,
            "InternalError",
            f'unable to upgrade connection: container not found ("{container["name"]}")',
        )
    words = query.getall("command", [])
    if query.get("tty") in TRUE:
        raise Refusal(501, "NotImplemented", "the embedded cloud's exec has no terminals")
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=0)
    await socket.prepare(request)
    command = command_in(plane, running, first, words)
    await attach(socket, command, query.get("stdin") in TRUE)
    return socket


def command_in(plane: Plane, running: Running, first: int, words: list[str]) -> list[str]:
    """How this host runs a command in a container."""
    user = ["-U", "--preserve-credentials"] if plane.compute.sandbox.user else []
    # Not -r: the root is the one that this mount namespace was pivoted to.
    enter = ["nsenter", "-t", str(first), *user, "-m", "-u", "-i", "-p", "--"]
    enter += ["setpriv", "--bounding-set", running.capabilities, "--inh-caps", "-all"]
    env = [f"{key}={value}" for key, value in running.env.items()]
    return [*enter, "env", "-i", "-C", running.workdir, *env, *words]


async def attach(socket: web.WebSocketResponse, command: list[str], wants_input: bool) -> None:
    """Run a command with a WebSocket as its input and output; its exit code goes through the status
    channel.
    """
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command,
        start_new_session=True,
        umask=0o022,
        limit=1 << 20,
        stdin=pipe if wants_input else none,
        stdout=pipe,
        stderr=pipe,
    )
    feeding = asyncio.ensure_future(feed(socket, process))
    try:
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
            process.send_signal(signal.SIGTERM)


def status_of(code: int) -> dict:
    if not code:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    message = f"command terminated with non-zero exit code: exit status {code}"
    return {
        **{"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": message},
        "details": {"causes": causes},
    }


async def feed(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    """What comes through the WebSocket, to the command."""
    closed = False
    async for message in socket:
        if message.type != WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == STDIN and process.stdin and not closed:
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


async def pump(socket: web.WebSocketResponse, stream: asyncio.StreamReader, channel: int) -> None:
    while data := await stream.read(CHUNK):
        await socket.send_bytes(bytes([channel]) + data)

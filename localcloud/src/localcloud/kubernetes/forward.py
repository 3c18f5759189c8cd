"""Ports of pods, forwarded through the API server, as kubectl does: SPDY inside of a WebSocket.

Each connection is two streams, one for errors and one for data. In the older protocol, which the
official client for Python speaks, a port has two channels of the WebSocket instead, for one
connection. Pods share the host's network: a port is reached only if a process of the pod listens on
it.

Not covered: the older protocol in base64, UDP.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import WSMsgType, web

from localcloud.kubernetes import spdy, trouble
from localcloud.kubernetes.kinds import Refusal
from localcloud.kubernetes.plane import Plane
from localcloud.kubernetes.streams import CHUNK, connection, received

PROTOCOL = "SPDY/3.1+portforward.k8s.io"
CHANNELS = "v4.channel.k8s.io"
LISTENS = "0A"  # state of a socket in /proc/net/tcp


@dataclass
class Tunnel:
    """One client's connection, and what goes through it."""

    plane: Plane
    pod: dict
    socket: web.WebSocketResponse
    framer: spdy.Framer = field(default_factory=spdy.Framer)
    errors: dict[str, int] = field(default_factory=dict)  # request -> its stream for errors
    writers: dict[int, asyncio.StreamWriter] = field(default_factory=dict)
    # data that came before its connection stands
    early: dict[int, list[spdy.Frame]] = field(default_factory=dict)
    tasks: set[asyncio.Task] = field(default_factory=set)

    async def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            await self.socket.send_bytes(data)


async def forward(plane: Plane, request: web.Request, pod: dict) -> web.StreamResponse:
    wanted = request.headers.get("Sec-WebSocket-Protocol", "")
    if PROTOCOL not in wanted and CHANNELS not in wanted:
        raise Refusal(
            400,
            "BadRequest",
            f"the embedded cloud forwards ports over WebSockets with {PROTOCOL} or {CHANNELS}",
        )
    if pod["status"].get("phase") != "Running":
        detail = f"unable to forward port because pod is not running. Current status={pod['status'].get('phase')}"
        raise Refusal(400, "BadRequest", detail)
    if PROTOCOL not in wanted:
        return await forward_channels(plane, request, pod)
    socket = web.WebSocketResponse(protocols=(PROTOCOL,), max_msg_size=0)
    await socket.prepare(request)
    tunnel = Tunnel(plane, pod, socket)
    with connection(plane, "portforward", request):
        try:
            async for message in socket:
                if message.type == WSMsgType.BINARY:
                    for frame in tunnel.framer.feed(message.data):
                        await receive(tunnel, frame)
        finally:
            for writer in tunnel.writers.values():
                writer.close()
            for task in tunnel.tasks:
                task.cancel()
    return socket


def ports_of(request: web.Request) -> list[int]:
    """The ports that a request names; raise the kubelet's refusal of none or wrong ones."""
    words = [word for text in request.query.getall("ports", []) for word in text.split(",")]
    if not words:
        raise Refusal(400, "BadRequest", 'query parameter "port" is required')
    for word in words:
        if not word.isdigit() or not 1 <= int(word) <= 65535:
            message = f'query parameter "port" should be a number from 1 to 65535: {word!r}'
            raise Refusal(400, "BadRequest", message)
    return [int(word) for word in words]


async def forward_channels(plane: Plane, request: web.Request, pod: dict) -> web.StreamResponse:
    """Forward ports in channels: for each one for data and one for errors, which begin with it."""
    ports = ports_of(request)
    socket = web.WebSocketResponse(protocols=(CHANNELS,), max_msg_size=0)
    await socket.prepare(request)
    writers: dict[int, asyncio.StreamWriter] = {}
    tasks = []
    with connection(plane, "portforward", request):
        try:
            for number, port in enumerate(ports):
                for channel in (2 * number, 2 * number + 1):
                    await socket.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
                reader = await reach(plane, socket, pod, port, 2 * number, writers)
                if reader:
                    task = asyncio.ensure_future(bring(socket, reader, 2 * number))
                    tasks.append(task)
            async for channel, data in received(socket):
                if channel in writers:
                    with contextlib.suppress(ConnectionError):
                        writers[channel].write(data)
                        await writers[channel].drain()
        finally:
            for writer in writers.values():
                writer.close()
            for task in tasks:
                task.cancel()
    return socket


async def reach(
    plane: Plane,
    socket: web.WebSocketResponse,
    pod: dict,
    port: int,
    channel: int,
    writers: dict[int, asyncio.StreamWriter],
) -> asyncio.StreamReader | None:
    """Connect to a port of the pod for a channel; None, and an error is sent, if none listens."""
    try:
        address = await asyncio.to_thread(listening, plane, pod, port)
        if not address:
            raise ConnectionRefusedError("connect: connection refused")
        reader, writers[channel] = await asyncio.open_connection(address, port)
    except OSError as error:
        name = f"{pod['metadata']['name']}, uid : {pod['metadata']['uid']}"
        message = f"error forwarding port {port} to pod {name}: failed to connect to localhost:{port}: {error}"
        await socket.send_bytes(bytes([channel + 1]) + message.encode())
        return None
    return reader


async def bring(socket: web.WebSocketResponse, reader: asyncio.StreamReader, channel: int) -> None:
    """Bring what comes from a port, and close the connection at its end."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(CHUNK):
            await socket.send_bytes(bytes([channel]) + data)
        await socket.close()


async def receive(tunnel: Tunnel, frame: spdy.Frame) -> None:
    if frame.kind == spdy.SYN_STREAM:
        headers = tunnel.framer.headers(frame)
        await tunnel.send(tunnel.framer.reply(frame.stream))
        if headers.get("streamtype") == "error":
            tunnel.errors[headers["requestid"]] = frame.stream
        else:
            tunnel.early[frame.stream] = []
            task = asyncio.ensure_future(connect(tunnel, frame.stream, headers))
            tunnel.tasks.add(task)
            task.add_done_callback(tunnel.tasks.discard)
    elif frame.kind == spdy.PING:
        await tunnel.send(spdy.control(spdy.PING, frame.data))
    elif frame.kind == spdy.RST_STREAM and frame.stream in tunnel.writers:
        tunnel.writers.pop(frame.stream).close()
    elif frame.kind == 0 and frame.stream in tunnel.early:
        tunnel.early[frame.stream].append(frame)
    elif frame.kind == 0 and frame.stream in tunnel.writers:
        await write(tunnel.writers[frame.stream], frame)


async def write(writer: asyncio.StreamWriter, frame: spdy.Frame) -> None:
    with contextlib.suppress(ConnectionError):
        writer.write(frame.data)
        await writer.drain()
        if frame.fin and writer.can_write_eof():
            writer.write_eof()


async def connect(tunnel: Tunnel, stream: int, headers: dict[str, str]) -> None:
    """Connect to a port of the pod, and bring what comes from there; close both streams at the end."""
    port, errors = int(headers["port"]), tunnel.errors.pop(headers["requestid"], None)
    name = f"{tunnel.pod['metadata']['name']}, uid : {tunnel.pod['metadata']['uid']}"
    try:
        address = await asyncio.to_thread(listening, tunnel.plane, tunnel.pod, port)
        if not address:
            raise ConnectionRefusedError("connect: connection refused")
        reader, writer = await asyncio.open_connection(address, port)
    except OSError as error:
        message = f"error forwarding port {port} to pod {name}: failed to connect to localhost:{port}: {error}"
        tunnel.early.pop(stream, None)
        if errors is not None:
            await tunnel.send(spdy.data_frame(errors, message.encode(), fin=True))
        await tunnel.send(spdy.data_frame(stream, b"", fin=True))
        return
    for frame in tunnel.early.pop(stream):
        await write(writer, frame)
    tunnel.writers[stream] = writer
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(CHUNK):
            await tunnel.send(spdy.data_frame(stream, data))
    await tunnel.send(spdy.data_frame(stream, b"", fin=True))
    if errors is not None:
        await tunnel.send(spdy.data_frame(errors, b"", fin=True))
    if stream in tunnel.writers:
        tunnel.writers.pop(stream).close()


def listening(plane: Plane, pod: dict, port: int) -> str:
    """The address at which a process of the pod listens on a port; "" if none does."""
    uid = pod["metadata"]["uid"]
    held = set()
    for key, running in list(plane.running.items()):
        for pid in trouble.processes(running) if key[0] == uid else []:
            for link in Path(f"/proc/{pid}/fd").glob("*"):
                with contextlib.suppress(OSError):
                    held.add(str(link.readlink()))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            address, _, number = local.rpartition(":")
            if state == LISTENS and int(number, 16) == port and f"socket:[{rest[5]}]" in held:
                if table == "tcp" and int(address, 16):
                    return ".".join(str(byte) for byte in reversed(bytes.fromhex(address)))
                return pod["status"]["podIP"]
    return ""

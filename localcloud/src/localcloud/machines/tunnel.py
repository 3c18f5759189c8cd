"""Identity-Aware Proxy's relay of TCP over WebSocket, as `gcloud compute start-iap-tunnel` speaks
it (version 4).

Frames are binary: a tag of two bytes, then a length of four bytes and data, or a count of eight
bytes that arrived. A firewall rule must let the relay's addresses in to the port, as on Google.
Codes of refusals are those of https://cloud.google.com/iap/docs/faq.

gcloud insists on TLS. The server's certificate is self-signed, to be trusted on loopback
only.

Not covered: resuming a broken connection (reconnect), hosts by address, destination
groups.
"""

import asyncio
import secrets
import ssl
import struct
from pathlib import Path

from aiohttp import WSMsgType, web

from localcloud import certificates
from localcloud.call import CLOUD, Cloud
from localcloud.compute.firewalls import admits
from localcloud.compute.state import Instance
from localcloud.identity.permissions import allowed

ADDRESS = "127.0.0.2"
PROTOCOL, ORIGIN = "relay.tunnel.cloudproxy.app", "bot:iap-tunneler"
SOURCE = "35.235.240.0/20"  # where the relay's connections come from
CONNECTED, DATA, ACK = 1, 4, 7
MOST = 16384  # bytes of data in a frame
WINDOW = 4 * MOST  # bytes on their way to a client that it did not acknowledge
NOT_REACHED, NOT_ALLOWED, NOT_FOUND, MALFORMED = 4003, 4033, 4047, 4000
PERMISSION = "iap.tunnelInstances.accessViaIAP"


def context(file: Path) -> ssl.SSLContext:
    """TLS with the certificate and the key in a file, which is made unless it is there."""
    if not file.exists():
        write_certificate(file)
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(file)
    return found


def write_certificate(file: Path) -> None:
    key = certificates.new_key()
    new = file.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_bytes(certificates.private(key) + certificates.sign(ADDRESS, key, key, None))
    new.replace(file)


class Refused(Exception):
    def __init__(self, code: int, reason: str):
        super().__init__(reason)
        self.code, self.reason = code, reason


async def connect(request: web.Request, principal: str) -> web.StreamResponse:
    """Relay between a WebSocket and the port of a machine that the query names."""
    socket = web.WebSocketResponse(protocols=[PROTOCOL])
    if request.headers.get("Origin") != ORIGIN or PROTOCOL not in request.headers.get(
        "Sec-WebSocket-Protocol", ""
    ):
        raise web.HTTPBadRequest(text="not the relay's protocol")
    await socket.prepare(request)
    try:
        reader, writer = await reach(request.app[CLOUD], principal, dict(request.query))
    except Refused as error:
        await socket.close(code=error.code, message=error.reason.encode())
        return socket
    name = secrets.token_urlsafe(24).encode()
    await socket.send_bytes(struct.pack(">HI", CONNECTED, len(name)) + name)
    flow = Flow()
    work = send_back(socket, reader, flow), acknowledge(socket, flow)
    others = [asyncio.ensure_future(each) for each in work]
    try:
        await send_on(socket, writer, flow)
    except ConnectionError:
        pass
    finally:
        writer.close()
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    return socket


async def reach(
    cloud: Cloud, principal: str, query: dict[str, str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to what a query names; raises Refused."""
    project, port = query.get("project", ""), query.get("port", "")
    if not port.isdigit() or query.get("interface") != "nic0":
        raise Refused(MALFORMED, "invalid request")
    is_known = project in cloud.projects
    if not is_known or not allowed(cloud, principal, PERMISSION, f"projects/{project}"):
        raise Refused(NOT_ALLOWED, "not authorized")
    found: Instance | None = cloud.compute.instances.get(
        (project, query.get("zone", ""), query.get("instance", ""))
    )
    if found is None or found.resource["status"] != "RUNNING":
        raise Refused(NOT_FOUND, "Failed to lookup instance")
    network = found.resource["networkInterfaces"][0]["network"]
    if found.cut or found.network_down or not admits(cloud.compute, network, SOURCE, int(port)):
        raise Refused(NOT_REACHED, "failed to connect to backend")
    try:
        return await asyncio.open_connection(found.address, int(port))
    except OSError:
        raise Refused(NOT_REACHED, "failed to connect to backend") from None


class Flow:
    """Bytes that came from the client, and bytes that it confirmed."""

    def __init__(self) -> None:
        self.received = self.acknowledged = 0
        self.changed = asyncio.Condition()


async def send_on(socket: web.WebSocketResponse, writer: asyncio.StreamWriter, flow: Flow) -> None:
    """What comes from the client goes to the machine. It waits for nothing else: a client may do so
    before it reads.
    """
    async for message in socket:
        if message.type is not WSMsgType.BINARY or len(message.data) < 2:
            return
        tag = struct.unpack_from(">H", message.data)[0]
        if tag == DATA:
            data = message.data[6 : 6 + struct.unpack_from(">I", message.data, 2)[0]]
            writer.write(data)
            await writer.drain()
            flow.received += len(data)
        elif tag == ACK:
            flow.acknowledged = struct.unpack_from(">Q", message.data, 2)[0]
        async with flow.changed:
            flow.changed.notify_all()


async def acknowledge(socket: web.WebSocketResponse, flow: Flow) -> None:
    message = 0
    while True:
        async with flow.changed:
            while flow.received == message:
                await flow.changed.wait()
        message = flow.received
        await socket.send_bytes(struct.pack(">HQ", ACK, message))


async def send_back(
    socket: web.WebSocketResponse, reader: asyncio.StreamReader, flow: Flow
) -> None:
    sent = 0
    while data := await reader.read(MOST):
        async with flow.changed:
            while sent - flow.acknowledged >= WINDOW:
                await flow.changed.wait()
        await socket.send_bytes(struct.pack(">HI", DATA, len(data)) + data)
        sent += len(data)
    await socket.close()

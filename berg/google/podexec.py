"""Run a program in a pod with this process's standard input and outputs: `exec` of the Kubernetes
API.

It speaks v5.channel.k8s.io over a WebSocket (RFC 6455): the first byte of a message says which
stream it is of, and the last message is the exit code. Older servers cannot be told that standard
input has ended.

Not covered: proxies; resuming a connection that was cut, which ends the program there as well.
"""

import base64
import contextlib
import json
import os
import select
import signal
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from berg import BergError
from berg.config import Config
from berg.google import api
from berg.google.kubernetes import Server, path_to, refusal

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
CHUNK = 32 << 10
CUT_OFF = 255  # exit code of a program of which nobody knows how it ended, as ssh's


@dataclass(frozen=True)
class Streams:
    """File descriptors of this process that a program in a pod reads and writes."""

    stdin: int | None = 0  # None: it reads nothing
    stdout: int = 1
    stderr: int = 2


OURS = Streams()


def run(
    config: Config,
    server: Server,
    pod: str,
    command: list[str],
    terminal: bool = False,
    streams: Streams = OURS,
) -> int:
    """Run a command in a pod's container, and return its exit code."""
    stdin = streams.stdin
    query = [("command", word) for word in command] + [("container", "main"), ("stdout", "true")]
    if stdin is not None:
        query.append(("stdin", "true"))
    query.append(("tty" if terminal else "stderr", "true"))  # a terminal has one output
    link = Link(config, server, f"{path_to('pods', pod)}/exec?{urlencode(query)}")
    with contextlib.ExitStack() as stack:
        stack.callback(link.socket.close)
        if stdin is not None:
            if terminal and os.isatty(stdin):
                stack.callback(raw_terminal(link, stdin))
            over = threading.Event()
            stack.callback(over.set)
            threading.Thread(target=feed, args=(link, stdin, over), daemon=True).start()
        status = relay(link, streams)
    return exit_code(status or {"message": f"the connection to the pod {pod} was cut"})


def relay(link: "Link", streams: Streams) -> dict[str, Any]:
    """Write what a program says until its end; return its status, {} if it was cut off."""
    try:
        for message in link.messages():
            channel, data = message[:1], memoryview(message)[1:]
            if channel == b"\1":
                write(streams.stdout, data)
            elif channel == b"\2":
                write(streams.stderr, data)
            elif channel == b"\3":
                return dict(json.loads(bytes(data)))
    except (OSError, ValueError):
        pass  # it was cut
    return {}


def exit_code(status: dict[str, Any]) -> int:
    """The exit code in the last message of an exec."""
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes", []):
        if cause.get("reason") == "ExitCode" and str(cause.get("message", "")).isdigit():
            return int(cause["message"])
    api.notify(f"berg: {status.get('message', 'no reason given')}")
    return CUT_OFF


def write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def raw_terminal(link: "Link", stdin: int) -> Callable[[], None]:
    """Hand the terminal's keys and size to the program there; returns what undoes it."""
    import termios
    import tty

    before, handler = termios.tcgetattr(stdin), signal.getsignal(signal.SIGWINCH)

    def resize(*_: Any) -> None:
        size = os.get_terminal_size(stdin)
        link.send(
            bytes([RESIZE]) + json.dumps({"Width": size.columns, "Height": size.lines}).encode()
        )

    tty.setraw(stdin)
    signal.signal(signal.SIGWINCH, resize)
    resize()

    def restore() -> None:
        signal.signal(signal.SIGWINCH, handler)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)

    return restore


def feed(link: "Link", stdin: int, over: threading.Event) -> None:
    """Send what comes from standard input, and its end."""
    try:
        while not over.is_set():
            if not select.select([stdin], [], [], 0.5)[0]:
                continue
            data = os.read(stdin, CHUNK)
            if not data:
                if link.protocol.startswith("v5"):
                    link.send(bytes([CLOSE, STDIN]))
                return
            link.send(bytes([STDIN]) + data)
    except (OSError, ValueError):
        pass  # the connection ended; who reads it says so


class Link:
    """The client's half of a WebSocket, for binary messages."""

    def __init__(self, config: Config, server: Server, path: str):
        from google.auth.transport.requests import Request

        if not config.credentials.valid:
            config.credentials.refresh(Request())
        self.buffer, self.lock = b"", threading.Lock()
        self.socket = dial(server)
        headers: dict[str, str] = {}
        config.credentials.apply(headers)
        headers |= {
            "Host": urlsplit(server.url).netloc,
            "Connection": "Upgrade",
            "Upgrade": "websocket",
        }
        headers |= {
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": "v5.channel.k8s.io, v4.channel.k8s.io",
        }
        headers |= {"Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode()}
        lines = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
        try:
            self.socket.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
            self.protocol = self.shake_hands(server)
        except OSError as error:
            raise BergError(f"the cluster {server.place} does not answer ({error})") from None
        self.socket.settimeout(None)

    def shake_hands(self, server: Server) -> str:
        """Read the answer to the first request: the protocol that was agreed upon."""
        while b"\r\n\r\n" not in self.buffer:
            self.fill()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        first, *rest = head.decode(errors="replace").split("\r\n")
        told = {
            key.strip().lower(): value.strip()
            for key, _, value in (line.partition(":") for line in rest)
        }
        code = int(first.split()[1])
        if code != 101:
            while len(self.buffer) < int(told.get("content-length", 0)):
                self.fill()
            raise refusal(server, code, self.buffer)
        return told.get("sec-websocket-protocol", "")

    def fill(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the API server closed the connection")
        self.buffer += data

    def take(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self.fill()
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def send(self, data: bytes, opcode: int = 2) -> None:
        mask, size = os.urandom(4), len(data)
        length = bytes([0x80 | min(size, 126)])
        if size > 125:
            length = (
                b"\xfe" + struct.pack(">H", size)
                if size < 65536
                else b"\xff" + struct.pack(">Q", size)
            )
        key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        masked = (int.from_bytes(data, "big") ^ key).to_bytes(size, "big")
        with self.lock:
            self.socket.sendall(bytes([0x80 | opcode]) + length + mask + masked)

    def messages(self) -> Iterator[bytes]:
        """Whole messages until the server ends it."""
        message = b""
        while True:
            first, second = self.take(2)
            size = second & 127
            if size > 125:
                size = struct.unpack(
                    *((">H", self.take(2)) if size == 126 else (">Q", self.take(8)))
                )[0]
            data, opcode = self.take(size), first & 15
            if opcode == 8:
                return
            if opcode == 9:
                self.send(data, 10)
            elif opcode in (0, 1, 2):
                message += data
                if first & 0x80:
                    yield message
                    message = b""


def trusting(authority: str) -> ssl.SSLContext:
    """Return what believes the authority in a file, or those of this computer if it is "".

    A python of python.org's for macOS knows none by itself.
    """
    context = ssl.create_default_context(cafile=authority or None)
    if not authority and not context.cert_store_stats()["x509_ca"]:
        import certifi  # comes with requests

        context.load_verify_locations(certifi.where())
    return context


def dial(server: Server) -> socket.socket:
    address = urlsplit(server.url)
    secure = address.scheme == "https"
    try:
        raw = socket.create_connection(
            (address.hostname or "", address.port or (443 if secure else 80)), 15
        )
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = trusting(server.ca) if secure else None
        return context.wrap_socket(raw, server_hostname=address.hostname) if context else raw
    except OSError as error:
        raise BergError(
            f"the cluster {server.place} does not answer ({error}). See: berg cluster list"
        ) from None

"""Run a program in a pod with this process's standard input and outputs: `exec` of the Kubernetes
API.

It uses v5.channel.k8s.io over a WebSocket: the first byte of a message is the number of its stream,
and the last message has the exit code. Older servers cannot be told that standard input has ended.

Not covered: resuming a connection that was cut, which ends the program there as well.
"""

import contextlib
import json
import os
import select
import signal
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from berg import BergError
from berg.config import Config
from berg.google import http
from berg.google.kubernetes import Server, path_to, refusal

if TYPE_CHECKING:
    from websocket import WebSocket

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
CHUNK = 32 << 10
CUT_OFF = 255  # exit code when the connection was cut, as of ssh


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
    link = connect(config, server, f"{path_to('pods', pod)}/exec?{urlencode(query)}")
    with contextlib.ExitStack() as stack:
        stack.callback(link.shutdown)
        if stdin is not None:
            if terminal and os.isatty(stdin):
                stack.callback(raw_terminal(link, stdin))
            over = threading.Event()
            stack.callback(over.set)
            threading.Thread(target=feed, args=(link, stdin, over), daemon=True).start()
        status = relay(link, streams)
    return exit_code(status or {"message": f"the connection to the pod {pod} was cut"})


def connect(config: Config, server: Server, path: str) -> "WebSocket":
    """Open a WebSocket to the API server; raise BergError if it does not answer or refuses."""
    import websocket
    from google.auth.transport.requests import Request

    if not config.credentials.valid:
        config.credentials.refresh(Request())
    headers: dict[str, str] = {}
    config.credentials.apply(headers)
    try:
        link = websocket.create_connection(
            f"ws{server.url.removeprefix('http')}{path}",
            timeout=15,
            header=headers,
            subprotocols=["v5.channel.k8s.io", "v4.channel.k8s.io"],
            suppress_origin=True,
            skip_utf8_validation=True,
            sslopt={"context": trusting(server.ca)},
        )
    except websocket.WebSocketBadStatusException as error:
        raise refusal(server, error.status_code, error.resp_body or b"") from None
    except (OSError, websocket.WebSocketException) as error:
        raise BergError(
            f"the cluster {server.place} does not answer ({error}). See: berg cluster list"
        ) from None
    link.settimeout(None)
    return link


def relay(link: "WebSocket", streams: Streams) -> dict[str, Any]:
    """Write what a program says until its end; return its status, {} if it was cut off."""
    from websocket import ABNF, WebSocketException

    try:
        while True:
            opcode, message = link.recv_data()
            channel, data = message[:1], memoryview(message)[1:]
            if opcode == ABNF.OPCODE_CLOSE:
                return {}
            if channel == b"\1":
                write(streams.stdout, data)
            elif channel == b"\2":
                write(streams.stderr, data)
            elif channel == b"\3":
                return dict(json.loads(bytes(data)))
    except (OSError, ValueError, WebSocketException):
        return {}


def exit_code(status: dict[str, Any]) -> int:
    """The exit code in the last message of an exec."""
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes", []):
        if cause.get("reason") == "ExitCode" and str(cause.get("message", "")).isdigit():
            return int(cause["message"])
    http.notify(f"berg: {status.get('message', 'no reason given')}")
    return CUT_OFF


def write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def raw_terminal(link: "WebSocket", stdin: int) -> Callable[[], None]:
    """Hand the terminal's keys and size to the program there; returns what undoes it."""
    import termios
    import tty

    before, handler = termios.tcgetattr(stdin), signal.getsignal(signal.SIGWINCH)

    def resize(*_: Any) -> None:
        size = os.get_terminal_size(stdin)
        about = json.dumps({"Width": size.columns, "Height": size.lines})
        link.send_binary(bytes([RESIZE]) + about.encode())

    tty.setraw(stdin)
    signal.signal(signal.SIGWINCH, resize)
    resize()

    def restore() -> None:
        signal.signal(signal.SIGWINCH, handler)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)

    return restore


def feed(link: "WebSocket", stdin: int, over: threading.Event) -> None:
    """Send what comes from standard input, and its end."""
    from websocket import WebSocketException

    try:
        while not over.is_set():
            if not select.select([stdin], [], [], 0.5)[0]:
                continue
            data = os.read(stdin, CHUNK)
            if not data:
                if str(link.subprotocol).startswith("v5"):
                    link.send_binary(bytes([CLOSE, STDIN]))
                return
            link.send_binary(bytes([STDIN]) + data)
    except (OSError, ValueError, WebSocketException):
        pass  # the connection ended; the reader reports it


def trusting(authority: str) -> ssl.SSLContext:
    """Return what believes the authority in a file, or those of this computer if it is "".

    A python of python.org's for macOS knows none by itself.
    """
    context = ssl.create_default_context(cafile=authority or None)
    if not authority and not context.cert_store_stats()["x509_ca"]:
        import certifi  # comes with requests

        context.load_verify_locations(certifi.where())
    return context

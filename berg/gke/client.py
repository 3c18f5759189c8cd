"""The Kubernetes API of a cluster in single requests: no package of Kubernetes' takes part.

A request is repeated while that may help, as http.py says: after as long as the server asks for,
and after a change that met another one.

Not covered: watches; who waits asks again every second or so.

Run a program in a pod with this process's standard input and outputs: `exec` of the Kubernetes
API.

It uses v5.channel.k8s.io over a WebSocket: the first byte of a message is the number of its stream,
and the last message has the exit code. Older servers cannot be told that standard input has ended.

Not covered: resuming a connection that was cut, which ends the program there as well.
"""

import base64
import contextlib
import json
import os
import re
import select
import signal
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from berg import BergError, computer
from berg import config as settings
from berg.config import Config
from berg.gke import container
from berg.google import api

if TYPE_CHECKING:
    from websocket import WebSocket

TIMEOUT = 60  # seconds for an answer

SHARED = "default"  # the namespace of what all have in common

CORE = f"/api/v1/namespaces/{SHARED}"

NAMESPACES = "/api/v1/namespaces"

RIGHTS = "/apis/rbac.authorization.k8s.io/v1"

GROUPS = {"jobs": "/apis/batch/v1", "roles": RIGHTS, "rolebindings": RIGHTS}  # else the core's

MERGE = "application/merge-patch+json"

PUBLIC = ".gke.goog"  # names that have a public certificate

NODES = "/api/v1/nodes"

RIGHT = re.compile(r'cannot (\w+) resource "([^"]+)"')  # RBAC's words

WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')

BACKSLASH = "\\"

warned: set[str] = set()  # what this process has said already

MOST_LOG = 1 << 20  # bytes

LOG_TIMEOUT = 5  # seconds for a node to hand a log on


@dataclass(frozen=True)
class Server:
    """Where a cluster's API is."""

    place: str  # LOCATION/NAME of the cluster
    url: str
    ca: str = ""  # file with the certificate that its own must be signed by; "": a public one
    has_identity: bool = False  # Workload Identity: each person has a namespace there
    token: str = ""  # in place of the user's credentials


class Refused(BergError):
    """What a cluster's API does not do, and why."""

    def __init__(self, code: int, reason: str, message: str):
        super().__init__(message)
        self.code, self.reason = code, reason
        self.retry_after = 0.0  # seconds


class Silent(BergError):
    """A cluster's API that does not answer, as while Google upgrades it."""


def server_of(config: Config, cluster: dict[str, Any]) -> Server:
    """The API of a cluster; raises BergError for one that has none yet."""
    place, has_identity = container.where(cluster), bool(container.workload_pool(cluster))
    dns = cluster.get("controlPlaneEndpointsConfig", {}).get("dnsEndpointConfig", {})
    if dns.get("allowExternalTraffic") and dns.get("endpoint", "").endswith(PUBLIC):
        return Server(place, f"https://{dns['endpoint']}", has_identity=has_identity)
    certificate = cluster.get("masterAuth", {}).get("clusterCaCertificate")
    if not cluster.get("endpoint") or not certificate:
        raise BergError(
            f"the cluster {cluster['name']} is {cluster.get('status')}: see berg cluster status"
        )
    file = ca_file(config, place)
    data = base64.b64decode(certificate)
    if not file.exists() or file.read_bytes() != data:
        computer.write(file, data)
    return Server(place, f"https://{cluster['endpoint']}", str(file), has_identity)


def ca_file(config: Config, place: str) -> Path:
    """Where the certificate of the cluster LOCATION/NAME is kept."""
    return settings.home() / "clusters" / f"{config.project}_{place.replace('/', '_')}.pem"


def connect(config: Config, place: str) -> Server:
    """The API of the cluster LOCATION/NAME."""
    return server_of(config, container.get(config, place))


def request(
    config: Config, server: Server, method: str, path: str, body: Any = None, **options: Any
) -> Any:
    """Return an answer of the API; raise Refused with its message, or Silent.

    `options` are those of `send_once`: the query, `timeout` and `kind`.
    """

    def passes(error: Exception) -> bool:
        if isinstance(error, Refused):  # a change that met another one may be sent again
            return error.code in api.RETRIED or error.reason == "Conflict"
        return isinstance(error, api.NoAnswer) and api.is_transient(error)

    seconds = options.pop("timeout", TIMEOUT)
    try:
        return api.retry(
            lambda: send_once(config, server, method, path, body, seconds, **options),
            passes,
            seconds,
            what="",
            forbidden=False,
            maximum=10,
        )
    except api.NoAnswer as error:
        raise silent(server, error) from None
    except api.RetryError as error:
        raise silent(server, error.cause) from None


def send_once(
    config: Config,
    server: Server,
    method: str,
    path: str,
    body: Any,
    timeout: float,
    kind: str = "application/json",
    **query: Any,
) -> Any:
    """Return an answer of the API; raise Refused or NoAnswer. `kind` is the body's content type."""
    headers = {"Content-Type": kind, "Accept": "application/json"}
    if server.token:
        headers["Authorization"] = f"Bearer {server.token}"
    url, seconds = api.with_query(server.url + path, query), (min(10, timeout), timeout)
    data = None if body is None else json.dumps(body).encode()
    answer = api.open_answer(config, method, url, seconds, headers, data, server.ca)
    content = api.content_of(answer)
    pass_on_warnings(answer.headers.get("Warning", ""))
    if answer.status < 400:
        return api.Answer(answer.headers, content)
    refused = refusal(server, answer.status, content)
    asked = answer.headers.get("Retry-After", "")
    if asked.isdigit():
        refused.retry_after = float(asked)
    raise refused


def pass_on_warnings(header: str) -> None:
    """Say what the header of an answer warns of, each once: fields that are to go, a policy that
    pods would violate.
    """
    for each in WARNING.findall(header):
        if each not in warned:
            warned.add(each)
            api.notify(f"Kubernetes warns: {each.replace(BACKSLASH, '')}")


def silent(server: Server, error: Exception) -> Silent:
    why = getattr(error, "kind", type(error).__name__)
    if isinstance(error, Refused):
        why = f"{error.code}: {error.message}"
    return Silent(f"the cluster {server.place} does not answer ({why}). See: berg cluster list")


def refusal(server: Server, code: int, content: bytes) -> Refused:
    """What an answer with an error says, in a sentence."""
    try:
        status = json.loads(content)
        reason, message = status.get("reason", ""), status.get("message", "")
    except (ValueError, AttributeError):
        reason, message = "", content[:300].decode(errors="replace")
    if code == 401:
        message = (
            f"the cluster {server.place} does not take your token ({message}). Sign in anew: "
            "gcloud auth application-default login"
        )
    elif code == 403:
        message = forbidden(server.place, message)
    return Refused(code, reason, message)


def forbidden(place: str, message: str) -> str:
    """Return whose matter it is that a cluster forbids something, and the right that is missing.

    Not every 403 is a matter of rights: quotas and policies of a namespace answer so, too.
    """
    asked = RIGHT.search(message)
    if not asked and "container." not in message and "grant" not in message:
        return f"the cluster {place} forbids it: {message}"
    verb, resource = asked.groups() if asked else ("do", "that")
    is_of_rights = "role" in resource or not asked
    role = "admin" if is_of_rights and "container.clusters" not in message else "developer"
    return (
        f"the cluster {place} does not let you {verb} {resource}: {message.rstrip('.')}. Who may "
        "give roles in the project (roles/owner, roles/resourcemanager.projectIamAdmin) can give "
        f"you one with that right, such as roles/container.{role}"
    )


def call(
    config: Config, server: Server, method: str, path: str, body: Any = None, **options: Any
) -> dict[str, Any]:
    answer: dict[str, Any] = request(config, server, method, path, body, **options).json()
    return answer


def create(config: Config, server: Server, path: str, body: dict[str, Any]) -> bool:
    """Make an object; whether it was not there before."""
    try:
        call(config, server, "POST", path, body, fieldManager="berg", fieldValidation="Strict")
    except Refused as error:
        if error.code != 409 or error.reason != "AlreadyExists":
            raise
        return False
    return True


def find(config: Config, server: Server, path: str, **query: Any) -> dict[str, Any] | None:
    """An object, None if there is none."""
    try:
        return call(config, server, "GET", path, **query)
    except Refused as error:
        if error.code != 404:
            raise
        return None


def items(config: Config, server: Server, path: str, **query: Any) -> list[dict[str, Any]]:
    """All objects of a list, page by page."""
    found: list[dict[str, Any]] = []
    token = ""
    while True:
        page = call(
            config,
            server,
            "GET",
            path,
            limit=500,
            **query,
            **({"continue": token} if token else {}),
        )
        found += page.get("items", [])
        token = page.get("metadata", {}).get("continue", "")
        if not token:
            return found


def delete(config: Config, server: Server, path: str, **query: Any) -> None:
    """Delete an object and what it made; what is gone already is fine."""
    try:
        # Without saying how, what a job made would stay and run on.
        call(config, server, "DELETE", path, propagationPolicy="Background", **query)
    except Refused as error:
        if error.code != 404:
            raise


def below(namespace: str, plural: str) -> str:
    """The path of a namespace's objects of a kind, such as jobs."""
    return f"{GROUPS.get(plural, '/api/v1')}/namespaces/{namespace}/{plural}"


def everywhere(server: Server, plural: str) -> str:
    """The path of all that may be berg's of a kind, whoever's namespace it is in."""
    if server.has_identity:
        return f"{GROUPS.get(plural, '/api/v1')}/{plural}"
    return below(SHARED, plural)


def called(thing: dict[str, Any]) -> str:
    """NAMESPACE/NAME of an object, or its name alone in the shared namespace."""
    about = thing["metadata"]
    namespace, name = about.get("namespace", SHARED), str(about["name"])
    return name if namespace == SHARED else f"{namespace}/{name}"


def path_to(plural: str, name: str) -> str:
    """The path of an object by what it is `called`."""
    namespace, _, own = name.rpartition("/")
    return f"{below(namespace or SHARED, plural)}/{own}"


def log(config: Config, server: Server, pod: str) -> str:
    """The last megabyte that a pod wrote; "" while it has written nothing, or if it is gone.

    It comes from the pod's node, which may be gone or hung, so this is one short attempt. Raise
    Refused or Silent if nothing comes.
    """
    path = f"{path_to('pods', pod)}/log"
    try:  # with limitBytes it would be the first megabyte of these lines
        answer = send_once(config, server, "GET", path, None, LOG_TIMEOUT, tailLines=10_000)
    except api.NoAnswer as error:
        raise silent(server, error) from None
    except Refused as error:
        if error.code not in (400, 404):  # 400: its container waits to start
            raise
        return ""
    text: str = answer.content[-MOST_LOG:].decode(errors="replace")
    return text


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
    link = connect_exec(config, server, f"{path_to('pods', pod)}/exec?{urlencode(query)}")
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


def connect_exec(config: Config, server: Server, path: str) -> "WebSocket":
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
    api.notify(f"berg: {status.get('message', 'no reason given')}")
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

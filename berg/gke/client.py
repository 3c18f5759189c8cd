"""The two APIs of a cluster: Google's, for clusters, pools of nodes, and operations on them; and
Kubernetes', with single requests and programs that run in pods.

GKE does one thing at a time to a cluster, and refuses everything else meanwhile, deletion too.
Pools start without nodes and grow when pods need them: an operation that finds no room takes half
an hour, and nothing can cancel it.

`run` uses v5.channel.k8s.io over a WebSocket: the first byte of a message is the number of its
stream, and the last message has the exit code.

Not covered: Autopilot, regional clusters, flex-start; watches (callers ask every second or so), and
continuing an exec whose connection was cut.
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
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from berg import BergError, computer
from berg import config as settings
from berg.config import SCOPES, Config
from berg.google import api, iam, offers
from berg.google.shapes import ALIASES, ATTACHED, Shape, driver_version

if TYPE_CHECKING:
    from websocket import WebSocket

TIMEOUT = 60  # seconds for an answer
LISTING = 10  # seconds for a list; while Google upgrades the API server nothing answers
LOG_TIMEOUT = 5  # seconds for a log, which comes from the pod's node
MOST_LOG = 1 << 20  # bytes
SHARED = "default"  # the namespace that all users share
CORE = f"/api/v1/namespaces/{SHARED}"
NODES = "/api/v1/nodes"
RBAC = "rbac.authorization.k8s.io"
VERSIONS = {"Job": "batch/v1", "Deployment": "apps/v1"}  # of kinds; the others: v1
VERSIONS |= {"Role": f"{RBAC}/v1", "RoleBinding": f"{RBAC}/v1"}
# paths of the APIs of plurals; the others: core
GROUPS = {"jobs": "/apis/batch/v1"} | dict.fromkeys(("roles", "rolebindings"), f"/apis/{RBAC}/v1")
MERGE = "application/merge-patch+json"
PUBLIC = ".gke.goog"  # domain of endpoints that have a public certificate
WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255  # streams of an exec
CHUNK = 32 << 10
CUT_OFF = 255  # exit code when the connection was cut, like that of ssh

warned: set[str] = set()  # warnings that this process has printed
servers: dict[tuple[int, str], "Server"] = {}  # by the settings' id and LOCATION/NAME

CLUSTER_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # of clusters and pools
OPERATION_TIMEOUT = 3000  # seconds; a cluster takes 10 minutes, one without room 40
LABEL = "cloud.google.com/"
SYSTEM, CACHE = "system", "cache"  # pools that are not for jobs
FOR_PODS = {"mode": "GKE_METADATA"}  # the metadata server that pods see: it has their own tokens
FOR_JOBS = "berg"  # key of the taint of pools for jobs without GPUs
MANAGED = {"autoUpgrade": True, "autoRepair": True}
# Google's names of the GPUs of machines whose type includes them.
ACCELERATORS = {name: alias for alias, name in ALIASES.items() if alias.startswith("nvidia-")}
ACCELERATORS |= {name: accelerator for name, (accelerator, _) in ATTACHED.items()}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Server:
    """The API server of a cluster."""

    place: str  # LOCATION/NAME of the cluster
    url: str
    config: Config
    ca: str = ""  # file with the authority that signed its certificate; "": a public one
    has_identity: bool = False  # Workload Identity: each user has a namespace
    token: str = ""  # instead of the user's credentials


class Refused(BergError):
    """A request that a cluster's API refused."""

    def __init__(self, code: int, reason: str, message: str):
        super().__init__(message)
        self.code, self.reason = code, reason
        self.retry_after = 0.0  # seconds


class Missing(Refused):
    """An object that does not exist."""


def connect(config: Config, place: str) -> Server:
    """Return the API of the cluster LOCATION/NAME, which is looked up once; raise Gone."""
    key = id(config), place
    if key not in servers:
        servers[key] = server_of(config, get_cluster(config, place))
    return servers[key]


def server_of(config: Config, cluster: dict[str, Any]) -> Server:
    """Return the API of a cluster; raise BergError if it has none yet."""
    place, has_identity = where(cluster), bool(workload_pool(cluster))
    dns = cluster.get("controlPlaneEndpointsConfig", {}).get("dnsEndpointConfig", {})
    if dns.get("allowExternalTraffic") and dns.get("endpoint", "").endswith(PUBLIC):
        return Server(place, f"https://{dns['endpoint']}", config, "", has_identity)
    certificate = cluster.get("masterAuth", {}).get("clusterCaCertificate")
    if not cluster.get("endpoint") or not certificate:
        raise BergError(
            f"the cluster {cluster['name']} is {cluster.get('status')}. See: berg cluster status "
            f"{cluster['name']}"
        )
    file = ca_file(config, place)
    data = base64.b64decode(certificate)
    if not file.exists() or file.read_bytes() != data:
        computer.write(file, data)
    return Server(place, f"https://{cluster['endpoint']}", config, str(file), has_identity)


def ca_file(config: Config, place: str) -> Path:
    """Return the file with the certificate of the cluster LOCATION/NAME."""
    return settings.home() / "clusters" / f"{config.project}_{place.replace('/', '_')}.pem"


def send(
    server: Server,
    method: str,
    path: str,
    body: Any = None,
    *,
    timeout: float = 0,
    is_repeated: bool = True,
    kind: str = "application/json",
    **query: Any,
) -> api.Answer:
    """Return the answer to a request, which is repeated for up to `timeout` seconds.

    `kind` is the body's content type. Raise Refused, or BergError if the cluster does not answer.
    """
    headers = {"Content-Type": kind, "Accept": "application/json"}
    if server.token:
        headers["Authorization"] = f"Bearer {server.token}"
    url = api.with_query(server.url + path, query)
    data = None if body is None else json.dumps(body).encode()
    seconds = timeout or TIMEOUT
    limits = min(10, seconds), seconds

    def once() -> api.Answer:
        answer = api.open_answer(server.config, method, url, limits, headers, data, server.ca)
        content = api.content_of(answer)
        pass_on_warnings(answer.headers.get("Warning", ""))
        if answer.status < 400:
            return api.Answer(answer.headers, content)
        refused = refusal(server, answer.status, content)
        pause = answer.headers.get("Retry-After", "")
        refused.retry_after = float(pause) if pause.isdigit() else 0.0
        raise refused

    limit = seconds if is_repeated else 0
    try:
        return api.retry(once, is_transient, limit, what="", forbidden=False, maximum=10)
    except (api.NoAnswer, api.RetryError) as error:
        raise silent(server, getattr(error, "cause", error)) from None


def is_transient(error: Exception) -> bool:
    """Return whether a request that ended with this error may succeed if it is repeated."""
    if isinstance(error, Refused):  # after a conflict the same change may succeed
        return error.code in api.RETRIED or error.reason == "Conflict"
    return isinstance(error, api.NoAnswer) and api.is_transient(error)


def silent(server: Server, error: Exception) -> BergError:
    why = getattr(error, "kind", str(error))
    if isinstance(error, Refused):
        why = f"{error.code}: {error.message}"
    return BergError(f"the cluster {server.place} does not answer ({why}). See: berg cluster list")


def pass_on_warnings(header: str) -> None:
    """Print each warning in a response's header once, such as fields that are deprecated."""
    for each in WARNING.findall(header):
        if each not in warned:
            warned.add(each)
            api.notify("Kubernetes warns: " + each.replace("\\", ""))


def refusal(server: Server, code: int, content: bytes) -> Refused:
    """Return the error that a response means; of a 403 with the role that would allow it.

    Not every 403 is about rights: quotas and policies of a namespace answer so, too.
    """
    try:
        status = json.loads(content)
        reason, message = status.get("reason", ""), status.get("message", "")
    except (ValueError, AttributeError):
        reason, message = "", content[:300].decode(errors="replace")
    if code == 401:
        message = (
            f"the cluster {server.place} does not take your token ({message}). Sign in again: "
            "gcloud auth application-default login"
        )
    # RBAC's words
    right = re.search(r'cannot (\w+) resource "([^"]+)"', message)
    if code == 403 and not right and "container." not in message and "grant" not in message:
        message = f"the cluster {server.place} forbids it: {message}"
    elif code == 403:
        verb, resource = right.groups() if right else ("do", "that")
        is_about_roles = "role" in resource or not right
        role = "admin" if is_about_roles and "container.clusters" not in message else "developer"
        message = (
            f"the cluster {server.place} does not let you {verb} {resource}: {message.rstrip('.')}."
            " A user who can grant roles in the project (roles/owner, "
            "roles/resourcemanager.projectIamAdmin) can give you one with that right, such as "
            f"roles/container.{role}"
        )
    return {404: Missing}.get(code, Refused)(code, reason, message)


def call(server: Server, method: str, path: str, body: Any = None, **options: Any) -> Any:
    """Return the object in the answer to a request; `options` are those of `send`."""
    return send(server, method, path, body, **options).json()


def create(server: Server, path: str, body: dict[str, Any]) -> bool:
    """Create an object; return False if one of its name exists."""
    try:
        call(server, "POST", path, body, fieldManager="berg", fieldValidation="Strict")
    except Refused as error:
        if error.code != 409 or error.reason != "AlreadyExists":
            raise
        return False
    return True


def find(server: Server, path: str, **options: Any) -> dict[str, Any] | None:
    """Return an object, None if it does not exist."""
    try:
        return dict(call(server, "GET", path, **options))
    except Missing:
        return None


def items(server: Server, path: str, **options: Any) -> list[dict[str, Any]]:
    """Return all objects of a list, page by page."""
    found: list[dict[str, Any]] = []
    options["limit"] = 500
    while True:
        page = call(server, "GET", path, **options)
        found += page.get("items", [])
        options["continue"] = page.get("metadata", {}).get("continue", "")
        if not options["continue"]:
            return found


def delete(server: Server, path: str, **query: Any) -> None:
    """Delete an object and what it created, if it exists."""
    with contextlib.suppress(Missing):
        # by default the pods of a job would stay and run
        call(server, "DELETE", path, propagationPolicy="Background", **query)


def thing(kind: str, name: str, labels: dict[str, str], **content: Any) -> dict[str, Any]:
    """Return an object to create, of the API that its kind belongs to."""
    about = {"name": name, "labels": labels}
    return {"apiVersion": VERSIONS.get(kind, "v1"), "kind": kind, "metadata": about, **content}


def below(namespace: str, plural: str) -> str:
    """Return the path of a namespace's objects of a kind, such as jobs."""
    return f"{GROUPS.get(plural, '/api/v1')}/namespaces/{namespace}/{plural}"


def everywhere(server: Server, plural: str) -> str:
    """Return the path of the objects of a kind in all namespaces that berg uses."""
    if server.has_identity:
        return f"{GROUPS.get(plural, '/api/v1')}/{plural}"
    return below(SHARED, plural)


def called(thing: dict[str, Any]) -> str:
    """Return NAMESPACE/NAME of an object, or its name alone in the shared namespace."""
    about = thing["metadata"]
    namespace, name = about.get("namespace", SHARED), str(about["name"])
    return name if namespace == SHARED else f"{namespace}/{name}"


def path_to(plural: str, name: str) -> str:
    """Return the path of an object from the name that `called` gives it."""
    namespace, _, own = name.rpartition("/")
    return f"{below(namespace or SHARED, plural)}/{own}"


def log(server: Server, pod: str) -> str:
    """Return the last megabyte that a pod wrote; "" if there is none, or no pod.

    Raise BergError if its node does not answer to one short attempt.
    """
    path = f"{path_to('pods', pod)}/log"
    seconds = LOG_TIMEOUT
    try:  # with limitBytes it would be the first megabyte of these lines
        answer = send(server, "GET", path, timeout=seconds, is_repeated=False, tailLines=10_000)
    except Refused as error:
        if error.code not in (400, 404):  # 400: its container has not started
            raise
        return ""
    return str(answer.content[-MOST_LOG:].decode(errors="replace"))


# --- programs in pods


def run(
    server: Server,
    pod: str,
    command: list[str],
    terminal: bool = False,
    *,
    stdin: int | None = 0,
    stdout: int = 1,
    stderr: int = 2,
) -> int:
    """Run a command in a pod's container, connected to file descriptors; return its exit code."""
    query = [("command", word) for word in command] + [("container", "main"), ("stdout", "true")]
    if stdin is not None:
        query.append(("stdin", "true"))
    query.append(("tty" if terminal else "stderr", "true"))  # a terminal has one output
    link = connect_exec(server, f"{path_to('pods', pod)}/exec?{urlencode(query)}")
    with contextlib.ExitStack() as stack:
        stack.callback(link.shutdown)
        if stdin is not None:
            if terminal and os.isatty(stdin):
                stack.enter_context(raw_terminal(link, stdin))
            finished = threading.Event()
            stack.callback(finished.set)
            threading.Thread(target=feed, args=(link, stdin, finished), daemon=True).start()
        status = relay(link, stdout, stderr)
    return exit_code(status or {"message": f"the connection to the pod {pod} was cut"})


def exit_code(status: dict[str, Any]) -> int:
    """Return the exit code in the last message of an exec; without one print the message."""
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes", []):
        if cause.get("reason") == "ExitCode" and str(cause.get("message", "")).isdigit():
            return int(cause["message"])
    api.notify(f"berg: {status.get('message', 'no reason given')}")
    return CUT_OFF


def connect_exec(server: Server, path: str) -> "WebSocket":
    """Open a WebSocket to the API server; raise BergError if it does not answer or refuses."""
    import websocket

    url = server.url + path
    try:
        link = websocket.create_connection(
            f"ws{url.removeprefix('http')}",
            timeout=15,
            header=api.signed(server.config, "GET", url, {}),
            subprotocols=["v5.channel.k8s.io", "v4.channel.k8s.io"],
            suppress_origin=True,
            skip_utf8_validation=True,
            sslopt={"context": trusting(server.ca)},
        )
    except websocket.WebSocketBadStatusException as error:
        raise refusal(server, error.status_code, error.resp_body or b"") from None
    except (OSError, websocket.WebSocketException) as error:
        raise silent(server, error) from None
    link.settimeout(None)
    return link


def trusting(authority: str) -> ssl.SSLContext:
    """Return a context that trusts the authority in a file; for "" those of this computer.

    The python of python.org for macOS knows none itself.
    """
    context = ssl.create_default_context(cafile=authority or None)
    if not authority and not context.cert_store_stats()["x509_ca"]:
        import certifi  # a dependency of requests

        context.load_verify_locations(certifi.where())
    return context


def relay(link: "WebSocket", stdout: int, stderr: int) -> dict[str, Any]:
    """Write a program's output until it ends; return its status, {} if the connection was cut."""
    from websocket import ABNF, WebSocketException

    outputs = {STDOUT: stdout, STDERR: stderr}
    try:
        while True:
            opcode, message = link.recv_data()
            if opcode == ABNF.OPCODE_CLOSE:
                return {}
            channel, data = message[:1], memoryview(message)[1:]
            if channel == bytes([STATUS]):
                return dict(json.loads(bytes(data)))
            while data and channel[0] in outputs:
                data = data[os.write(outputs[channel[0]], data) :]
    except (OSError, ValueError, WebSocketException):
        return {}


@contextlib.contextmanager
def raw_terminal(link: "WebSocket", stdin: int) -> Iterator[None]:
    """Pass the terminal's keys and size to the program in the pod."""
    import termios
    import tty

    before, handler = termios.tcgetattr(stdin), signal.getsignal(signal.SIGWINCH)

    def resize(*_: Any) -> None:
        size = os.get_terminal_size(stdin)
        about = json.dumps({"Width": size.columns, "Height": size.lines})
        link.send_binary(bytes([RESIZE]) + about.encode())

    tty.setraw(stdin)
    try:
        signal.signal(signal.SIGWINCH, resize)
        resize()
        yield
    finally:
        signal.signal(signal.SIGWINCH, handler)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def feed(link: "WebSocket", stdin: int, finished: threading.Event) -> None:
    """Send what comes from standard input, and its end, which only v5 can express."""
    from websocket import WebSocketException

    try:
        while not finished.is_set():
            if not select.select([stdin], [], [], 0.5)[0]:
                continue
            data = os.read(stdin, CHUNK)
            if not data:
                if str(link.subprotocol).startswith("v5"):
                    link.send_binary(bytes([CLOSE, STDIN]))
                return
            link.send_binary(bytes([STDIN]) + data)
    except (OSError, ValueError, WebSocketException):
        pass  # the connection ended; `relay` reports it


# --- Google Kubernetes Engine


class Gone(BergError):
    """A cluster that no longer exists."""


def ask_gke(
    config: Config, method: str, path: str, body: dict[str, Any] | None = None, **query: Any
) -> dict[str, Any]:
    """Send a request below the project's locations; raise Denied where rights are missing."""
    base = f"{config.service_url('container')}/v1/projects/{config.project}/locations"
    try:
        return api.call(config, method, f"{base}/{path}", body, **query)
    except api.Forbidden as error:
        if api.is_off(error):
            raise
        if api.lacks_quota_project(error):
            raise api.Denied(api.name_quota_project(config)) from None
        role = "developer" if method == "GET" else "admin"
        raise api.Denied(
            f"Google does not let you manage clusters: {api.words(error)}. An administrator of "
            f"the project {config.project} can give you roles/container.{role}"
        ) from None


def clusters(config: Config) -> list[dict[str, Any]]:
    """Return all clusters of the project, in the API's words."""
    return list(ask_gke(config, "GET", "-/clusters").get("clusters", []))


def seen_clusters(config: Config) -> list[dict[str, Any]]:
    """Return all clusters of the project; [] without permission, or with the API off."""
    try:
        return clusters(config)
    except (api.Denied, api.Forbidden, api.NotFound):
        return []


def running_clusters(clusters: list[dict[str, Any]]) -> list[str]:
    """Return LOCATION/NAME of those clusters that are berg's and have an API."""
    states = ("RUNNING", "RECONCILING", "DEGRADED", "RUNNING_WITH_ERROR")
    return [where(each) for each in clusters if is_ours(each) and each.get("status") in states]


def is_ours(cluster: dict[str, Any]) -> bool:
    return bool(cluster.get("resourceLabels", {}).get("berg", "") == "1")


def where(cluster: dict[str, Any]) -> str:
    """Return LOCATION/NAME, which names a cluster in the project."""
    return f"{cluster['location']}/{cluster['name']}"


def path_of(cluster: dict[str, Any], pool: str = "") -> str:
    """Return the path for `ask` of a cluster, or of one of its pools."""
    path = f"{cluster['location']}/clusters/{cluster['name']}"
    return f"{path}/nodePools/{pool}" if pool else path


def get_cluster(config: Config, place: str) -> dict[str, Any]:
    """Return the cluster LOCATION/NAME; raise Gone."""
    location, _, name = place.partition("/")
    try:
        return ask_gke(config, "GET", f"{location}/clusters/{name}")
    except api.NotFound:
        raise Gone(
            f"there is no cluster {name!r} in {location} any more. See: berg cluster list"
        ) from None


def find_cluster(config: Config, name: str) -> dict[str, Any]:
    """Return berg's cluster NAME or LOCATION/NAME; raise BergError for any other."""
    named = [each for each in clusters(config) if name in (each["name"], where(each))]
    if not named:
        location, _, own = name.rpartition("/")
        there = f" --zone {location}" if location else ""
        raise BergError(
            f"there is no cluster {name!r} in project {config.project}. Make it: berg cluster "
            f"create {own}{there}; or see what there is: berg cluster list"
        )
    if len(named) > 1:
        names = ", ".join(sorted(map(where, named)))
        raise BergError(f"there are several clusters {name!r}; give the location as well: {names}")
    if not is_ours(named[0]):
        raise BergError(
            f"the cluster {name} is not berg's: it has no label berg=1. If berg may use, resize "
            f"and delete it: gcloud container clusters update {named[0]['name']} --location "
            f"{named[0]['location']} --update-labels berg=1"
        )
    return named[0]


def node_config(config: Config, **more: Any) -> dict[str, Any]:
    account = {"serviceAccount": config.service_account} if config.service_account else {}
    labels = {"labels": {"berg": "1"}, "resourceLabels": {"berg": "1"}}
    return {**account, "oauthScopes": SCOPES, **labels, **more}


def cluster_body(config: Config, name: str, user: str) -> dict[str, Any]:
    """Return a zonal cluster with the one small node that a cluster needs for itself."""
    network = offers.network_of(config)
    if network.project != config.project:
        raise BergError(
            "berg makes no clusters on a network of another project, where GKE needs ranges that "
            "an administrator prepared. Name a network of your own: BERG_NETWORK=NAME"
        )
    small = {"machineType": "e2-medium", "diskSizeGb": 30, "diskType": "pd-standard"}
    system = {
        "name": SYSTEM,
        "initialNodeCount": 1,
        "config": node_config(config, **small),
        "management": MANAGED,
    }
    identity: dict[str, Any] = {}
    addons = {"httpLoadBalancing": {"disabled": True}}
    if "@" in config.service_account:  # without an account no pod could read a bucket as its user
        identity = {"workloadIdentityConfig": {"workloadPool": f"{config.project}.svc.id.goog"}}
        addons["gcsFuseCsiDriverConfig"] = {"enabled": True}
    return {
        "name": name,
        "network": network.name,
        **({"subnetwork": api.last_part(config.subnetwork)} if config.subnetwork else {}),
        **identity,
        "releaseChannel": {"channel": "REGULAR"},
        "ipAllocationPolicy": {"useIpAliases": True},
        "resourceLabels": {"berg": "1", "berg-user": user},
        "controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"allowExternalTraffic": True}},
        "addonsConfig": addons,
        "autoscaling": {"autoscalingProfile": "OPTIMIZE_UTILIZATION"},
        "nodePools": [like_its_cluster(system, identity)],
        **({"networkConfig": {"defaultEnablePrivateNodes": True}} if config.no_external_ip else {}),
    }


def scaling(low: int, most: int) -> dict[str, Any]:
    """Return the autoscaling of a pool."""
    return {"enabled": True, "locationPolicy": "ANY", "minNodeCount": low, "maxNodeCount": most}


# --- operations


def change_cluster(
    config: Config,
    place: str,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    what: str,
    say: Say,
) -> None:
    """Change the cluster LOCATION/NAME, after the operations on it that are running, and wait.

    Raise BergError with Google's message if the change fails.
    """
    began = time.monotonic()
    while True:
        settle(config, place, say)
        try:
            operation = ask_gke(config, method, path, body)
            break
        except api.NotFound:  # deleted meanwhile, or by a request whose answer was lost
            if method != "DELETE":
                raise
            return
        except api.Conflict:  # created by a request whose answer was lost, or by another user
            settle(config, place, say)
            return
        except api.BadRequest as error:
            limit = OPERATION_TIMEOUT if "incompatible operation" in error.message else 0
            limit = iam.SETTLING if iam.is_settling(config, error) else limit
            if time.monotonic() > began + limit:
                raise
            time.sleep(2)
    wait_for_operation(config, place.partition("/")[0], operation, what, say)


def settle(config: Config, place: str, say: Say) -> None:
    """Wait for running operations on the cluster LOCATION/NAME, whether they succeed or not."""
    location, _, name = place.partition("/")
    for operation in ask_gke(config, "GET", f"{location}/operations").get("operations", []):
        target = operation.get("targetLink", "")
        if operation["status"] != "DONE" and f"/clusters/{name}/" in f"{target}/":
            kind = operation.get("operationType", "an operation")
            try:
                wait_for_operation(
                    config, location, operation, f"{kind} of {name}, which was running", say
                )
            except api.OperationFailed as error:
                say(f"{kind} of {name} failed: {error.message}")


def wait_for_operation(
    config: Config, location: str, operation: dict[str, Any], what: str, say: Say
) -> None:
    """Wait for an operation and report its progress; raise OperationFailed with its error."""
    began = reported = time.monotonic()
    while operation["status"] != "DONE":
        now = time.monotonic()
        if now > began + OPERATION_TIMEOUT:
            raise BergError(
                f"{what} took more than {OPERATION_TIMEOUT // 60} minutes. See: berg cluster list"
            )
        if now > reported + 20:  # seconds between two lines
            reported = now
            progress = ""
            for each in operation.get("progress", {}).get("metrics", []):
                name = each.get("name", "").lower().replace("_", " ")
                progress += f"{name} {each.get('intValue', each.get('stringValue', ''))}, "
            say(f"{what}: {progress}after {now - began:.0f} s")
        time.sleep(min(0.3 + (now - began) / 30, 5))
        operation = ask_gke(config, "GET", f"{location}/operations/{operation['name']}")
    if error := operation.get("error"):
        message = f"{what} failed: {error.get('message', 'no reason given')}"
        raise api.OperationFailed(str(error.get("code", "")), message)


# --- what a cluster has


def pools(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    return list(cluster.get("nodePools", []))


def pool_of(cluster: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the pool of that name; None if there is none."""
    return next((each for each in pools(cluster) if each["name"] == name), None)


def accounts(cluster: dict[str, Any]) -> tuple[str, ...]:
    """Return the accounts of the nodes for jobs, and so of their pods; "default" is a name."""
    for_jobs = [pool.get("config", {}) for pool in pools(cluster) if pool["name"] != CACHE]
    return tuple(sorted({config.get("serviceAccount", "default") for config in for_jobs}))


def workload_pool(cluster: dict[str, Any]) -> str:
    """Return the pool of a cluster's Kubernetes accounts; "" without Workload Identity."""
    return str(cluster.get("workloadIdentityConfig", {}).get("workloadPool", ""))


def without_identity(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pools whose nodes pass their own account on to pods."""

    def mode(pool: dict[str, Any]) -> Any:
        return pool.get("config", {}).get("workloadMetadataConfig", {}).get("mode")

    return [each for each in pools(cluster) if mode(each) != FOR_PODS["mode"]]


def like_its_cluster(pool: dict[str, Any], cluster: dict[str, Any]) -> dict[str, Any]:
    """Return a new pool whose pods see no token of their node if the cluster can do that."""
    if not workload_pool(cluster):
        return pool
    return {**pool, "config": {**pool["config"], "workloadMetadataConfig": FOR_PODS}}


def disk_of(pool: dict[str, Any]) -> tuple[str, int]:
    """Return type and GB of the disk of each of a pool's nodes, with Google's defaults."""
    node = pool.get("config", {})
    return node.get("diskType", "pd-balanced"), int(node.get("diskSizeGb", 100))


def gpus_for(shape: Shape) -> dict[str, Any]:
    """Return the GPUs of the nodes of a pool to be made."""
    return {
        "acceleratorType": ACCELERATORS[shape.gpu_type],
        "acceleratorCount": str(shape.num_gpus),
        "gpuDriverInstallationConfig": {"gpuDriverVersion": driver_version(shape.gpu_type)},
    }


def gpus_of(pool: dict[str, Any]) -> tuple[str, int]:
    """Return type and number of the GPUs of a pool's nodes; "" and 0 without any."""
    found = pool.get("config", {}).get("accelerators", [])
    if not found:
        return "", 0
    kind = found[0]["acceleratorType"]
    return ALIASES.get(kind, kind), int(found[0]["acceleratorCount"])


def max_seconds(pool: dict[str, Any]) -> int:
    """Return how long a node of a pool may exist; 0: without a limit."""
    return int(pool["config"].get("maxRunDuration", "0s").rstrip("s"))


def most_nodes(pool: dict[str, Any]) -> int:
    autoscaling = pool.get("autoscaling", {})
    if autoscaling.get("enabled"):
        return int(autoscaling.get("maxNodeCount") or autoscaling.get("totalMaxNodeCount") or 0)
    return int(pool.get("initialNodeCount", 0))

"""The two APIs of a cluster: Google's, for clusters and their pools of nodes, and Kubernetes', for pods.

Pods act as the account of their nodes, all in one namespace: a project is one team. What runs a
program in a pod is kubectl, with a configuration of ours.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from berg import BergError, google, terminal
from berg.config import Config, home
from berg.google import GoogleError

Row = dict[str, Any]
NAMESPACE = "default"
PODS, JOBS = f"/api/v1/namespaces/{NAMESPACE}/pods", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
LABEL = "cloud.google.com/gke-"
NO_API = ("PROVISIONING", "STOPPING", "ERROR")  # what clusters are before and after
ROLE = "roles/container.developer"
SYSTEM = "system"  # the pool of one small node, for Kubernetes itself
MERGE = "application/merge-patch+json"
TIMEOUT = (10, 60)  # seconds to connect and to answer
SOON = 10  # seconds for which a list is asked for again, so that no cluster holds up the others
SETTLING = 3000  # seconds for an operation: a cluster takes ten minutes, one without room 40
EXEC = "client.authentication.k8s.io/v1beta1"


@dataclass(frozen=True)
class Server:
    """The API of a cluster."""

    place: str  # LOCATION/NAME
    url: str
    ca: str = ""  # file with the authority that signed its certificate; "": a public one


# --- Google's


def gke(
    config: Config, method: str, path: str, body: Any = None, seconds: float = google.SECONDS
) -> Row:
    """Ask Google about clusters, below the project's locations."""
    base = f"{config.endpoint}/container" if config.endpoint else "https://container.googleapis.com"
    url = f"{base}/v1/projects/{config.project}/locations/{path}"
    return google.retry(lambda: google.send(config, method, url, body, {}), seconds)


def clusters(config: Config) -> list[Row]:
    """Berg's clusters that have an API; none where the user may not see them, or Google's is off."""
    try:
        rows = gke(config, "GET", "-/clusters", seconds=SOON).get("clusters", [])
        return [row for row in rows if is_ours(row) and row.get("status") not in NO_API]
    except GoogleError as error:
        if error.status not in (403, 404):
            raise
        return []


def is_ours(cluster: Row) -> bool:
    return bool(cluster.get("resourceLabels", {}).get("berg") == "1")


def place(cluster: Row) -> str:
    """LOCATION/NAME, which names a cluster in the project."""
    return f"{cluster['location']}/{cluster['name']}"


def find(config: Config, name: str) -> Row:
    """Berg's cluster of a name, or LOCATION/NAME; raise BergError for any other."""
    rows = gke(config, "GET", "-/clusters").get("clusters", [])
    named = [row for row in rows if name in (row["name"], place(row))]
    if not named:
        raise BergError(
            f"there is no cluster {name!r} in project {config.project}. Make it: berg cluster create "
            f"{name}; or see what there is: berg cluster list"
        )
    if len(named) > 1:
        several = ", ".join(map(place, named))
        raise BergError(f"there are several clusters {name!r}. Name the location, too: {several}")
    (found,) = named
    if not is_ours(found):
        raise BergError(
            f"the cluster {name} is not berg's: it has no label berg=1. If berg may use and delete "
            f"it: gcloud container clusters update {found['name']} --location {found['location']} "
            "--update-labels berg=1"
        )
    return dict(found)


def change(config: Config, place: str, method: str, path: str, body: Any, what: str) -> None:
    """Change a cluster, after what Google does to it already, and wait until it is done.

    Google does one thing at a time to a cluster, and nothing can cancel it. It may not know an account
    yet that `berg init` has just made.
    """
    began = time.monotonic()
    while True:
        settle(config, place)
        try:
            operation = gke(config, method, path, body)
            break
        except GoogleError as error:
            if error.status == 404 and method == "DELETE":
                return
            is_busy = "incompatible operation" in error.message
            is_unknown = "Service account" in error.message and "does not exist" in error.message
            patience = SETTLING if is_busy else google.NEW_ACCOUNT if is_unknown else 0
            if time.monotonic() - began > patience:
                raise
            time.sleep(2)
    wait(config, place, operation, what)


def settle(config: Config, place: str) -> None:
    """Wait until Google does nothing to a cluster, whether that succeeds or not."""
    location, _, name = place.partition("/")
    for row in gke(config, "GET", f"{location}/operations").get("operations", []):
        if row["status"] != "DONE" and f"/clusters/{name}/" in f"{row.get('targetLink', '')}/":
            try:
                wait(config, place, row, row.get("operationType", "an operation"))
            except BergError as error:
                terminal.say(str(error))


def wait(config: Config, place: str, operation: Row, what: str) -> None:
    """Wait for an operation, and say every 20 seconds that it goes on."""
    began = said = time.monotonic()
    while operation["status"] != "DONE":
        now = time.monotonic()
        if now > began + SETTLING:
            raise BergError(f"{what} took {SETTLING // 60} minutes. See: berg cluster list")
        if now > said + 20:
            said = now
            terminal.say(f"{what}: {terminal.duration(now - began)} by now")
        time.sleep(min(0.3 + (now - began) / 30, 5))
        path = f"{place.partition('/')[0]}/operations/{operation['name']}"
        operation = gke(config, "GET", path)
    if error := operation.get("error"):
        raise BergError(f"{what} failed: {error.get('message', 'no reason given')}")


def gpus_of(pool: Row) -> tuple[str, int]:
    """Google's name and the number of the GPUs of a pool's nodes."""
    first: Row = next(iter(pool.get("config", {}).get("accelerators", [])), {})
    return first.get("acceleratorType", ""), int(first.get("acceleratorCount", 0))


def most_nodes(pool: Row) -> int:
    scaling = pool.get("autoscaling", {})
    return int(scaling["maxNodeCount"] if scaling.get("enabled") else pool["initialNodeCount"])


# --- Kubernetes'


def connect(config: Config, cluster: Row) -> Server:
    """The API of a cluster; raise BergError if it has none yet."""
    dns = cluster.get("controlPlaneEndpointsConfig", {}).get("dnsEndpointConfig", {})
    if dns.get("allowExternalTraffic") and dns.get("endpoint", "").endswith(".gke.goog"):
        return Server(place(cluster), f"https://{dns['endpoint']}")
    authority = cluster.get("masterAuth", {}).get("clusterCaCertificate")
    if not (cluster.get("endpoint") and authority):
        raise BergError(
            f"the cluster {cluster['name']} is {cluster.get('status')}. See: berg cluster status "
            f"{cluster['name']}"
        )
    file = keep(config, place(cluster), "pem", base64.b64decode(authority))
    return Server(place(cluster), f"https://{cluster['endpoint']}", str(file))


def server(config: Config, place: str) -> Server:
    """The API of the cluster LOCATION/NAME."""
    location, _, name = place.partition("/")
    return connect(config, gke(config, "GET", f"{location}/clusters/{name}"))


def keep(config: Config, place: str, ending: str, content: bytes) -> Path:
    """A file about a cluster, whole at any time for other programs."""
    file = home() / "clusters" / f"{config.project}_{place.replace('/', '_')}.{ending}"
    if not file.exists() or file.read_bytes() != content:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_bytes(content)
        new.replace(file)
    return file


def ask(
    config: Config,
    server: Server,
    method: str,
    path: str,
    body: Any = None,
    kind: str = "application/json",
    seconds: float = google.SECONDS,
    **query: Any,
) -> Row:
    """Ask a cluster; raise GoogleError for what it refuses, or if it does not answer for so long."""

    def once() -> Row:
        answer = google.session(config.endpoint, config.credentials).request(
            method, server.url + path, params=query, timeout=TIMEOUT, verify=server.ca or True,
            data=None if body is None else json.dumps(body), headers={"Content-Type": kind},
        )  # fmt: skip
        if answer.status_code < 400:
            return dict(answer.json())
        try:
            status = answer.json()
            reason, message = status.get("reason", ""), str(status["message"])
        except (ValueError, KeyError, TypeError, AttributeError):
            reason, message = "", answer.text[:300]
        if answer.status_code == 403 and '"container.' in message:  # rights of Google's
            message += f" {ROLE} has them"
        raise GoogleError(answer.status_code, reason, f"the cluster {server.place}: {message}")

    return google.retry(once, seconds)


def look(config: Config, server: Server, path: str, **query: Any) -> Row | None:
    """An object of a cluster; None if there is none."""
    try:
        return ask(config, server, "GET", path, **query)
    except GoogleError as error:
        if error.status != 404:
            raise
        return None


def items(config: Config, server: Server, path: str, **query: Any) -> list[Row]:
    """All objects of a list, page by page."""
    found: list[Row] = []
    while True:
        page = ask(config, server, "GET", path, seconds=SOON, limit="500", **query)
        found += page.get("items", [])
        query["continue"] = page.get("metadata", {}).get("continue", "")
        if not query["continue"]:
            return found


def remove(config: Config, server: Server, path: str, uid: str) -> None:
    """Delete this very object with what it made, if it is there."""
    body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
    try:
        ask(config, server, "DELETE", path, body)
    except GoogleError as error:
        if error.status not in (404, 409):  # it is gone; another one has its name
            raise


def wait_until(is_so: Callable[[], bool], seconds: float, otherwise: str) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise BergError(otherwise)
        time.sleep(0.5)


# --- kubectl


def kubectl() -> str:
    if not (program := shutil.which("kubectl")):
        raise BergError("kubectl is not installed. Install it: gcloud components install kubectl")
    return program


def program() -> list[str]:
    """The words that print the user's token for kubectl."""
    without = "import sys; sys.path[:] = filter(None, sys.path)"  # modules of the current folder
    words = f"{without}; from berg.cli import main; main()"
    return [sys.executable, "-c", words, "cluster", "token"]


def reaching(config: Config, place: str) -> list[str]:
    """kubectl with a configuration of ours for a cluster."""
    about = server(config, place)
    authority = {"certificate-authority": about.ca} if about.ca else {}
    command, *words = program()
    user = {"exec": {"apiVersion": EXEC, "command": command, "args": words}}
    row = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": about.url, **authority}}],
        "users": [{"name": "us", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "us"}}],
        "current-context": "it",
    }
    file = keep(config, place, "json", json.dumps(row).encode())
    return [kubectl(), f"--kubeconfig={file}"]


def token(config: Config) -> str:
    """The user's token, as kubectl reads it from a program."""
    from google.auth.transport.requests import Request

    config.credentials.refresh(Request())
    status = {"token": config.credentials.token}
    return json.dumps({"apiVersion": EXEC, "kind": "ExecCredential", "status": status})

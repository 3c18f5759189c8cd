"""The dataset cache of a cluster: NGINX on a node of its own, between the pods and the bucket.

It keeps slices of objects on its node's disk, under the object's generation, so that what changed
is never served stale. Who may read decides Cloud Storage alone: it is asked with the reader's own
token at every request, also for what is kept. Without a cache, or when it is gone, readers take the
bucket itself: the path is the same.

Not covered: several nodes for one cache, sources but Cloud Storage.
"""

import hashlib
import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from berg import BergError
from berg.config import Config
from berg.gke import client, container, podstatus
from berg.gke import client as k8s
from berg.gke import place as gke
from berg.gke.manifest import CACHE, CACHE_PORT, CACHE_URL
from berg.google import api, prices
from berg.google.prices import region_of
from berg.google.shapes import Shape

POOL = container.CACHE  # of the one node, with a taint that keeps jobs away
IMAGE = (  # of Debian, by the makers of NGINX
    "nginx:1.28.0@sha256:eaa7e36decc3421fc04478c586dfea0d931cebe47d5bc0b15d758a32ba51126f"
)
MACHINE_TYPE, DISK_TYPE = "e2-standard-4", "pd-balanced"
SPARE = 8  # GB beside the slices: NGINX looks every 10 seconds whether they are too many
LARGEST = 50_000
PATIENCE = 900  # seconds for a new node to pull the image and start it
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
SERVICE = f"{k8s.CORE}/services/{CACHE}"
LABELS = {"app": CACHE}
NO_ROOM = "the cache does not fit the disk of its node"
CONFIGURATION = Path(__file__).with_name("nginx.conf")
# Once an hour NGINX looks up again where Cloud Storage is. The log of what was read begins anew
# before it gets large.
START = f"""
printf 'listen %s:{CACHE_PORT} backlog=1024;' "$POD_IP" >/cache/listen.conf
while sleep 3600; do
    [ "$(stat -c %s /cache/log)" -lt 1000000000 ] || : >/cache/log
    kill -HUP 1
done &
exec nginx -c /etc/berg/nginx.conf
"""
COUNT = r"""
awk 'NR == 1 { printf "since %s 0\n", $1 } { count[$2]++; bytes[$2] += $3 }
     END { for (how in count) printf "%s %.0f %.0f\n", how, count[how], bytes[how] }' /cache/log
find /cache/slices -type f -printf '%s\n' | awk '{ sum += $1 } END { printf "kept %.0f 0\n", sum }'
"""

Say = Callable[[str], None]


def deploy(config: Config, name: str, size: int, say: Say) -> None:
    """Make the cache of a cluster, or change its size; returns when it answers.

    If that fails or is interrupted, what there is then is named.
    """
    if not 1 <= size <= LARGEST:
        raise BergError(f"--size {size} is not possible: give 1 to {LARGEST} GB")
    found = container.find(config, name)
    place = container.where(found)
    pool = next((each for each in container.pools(found) if each["name"] == POOL), None)
    if pool and size > (most := room(pool["config"]["diskSizeGb"])):
        raise BergError(
            f"--size {size} does not fit the cache's node: its disk has "
            f"{pool['config']['diskSizeGb']} GB, which leave "
            f"{most} GB to the cache. Give --size {most}, or begin anew: "
            f"berg cluster cache {name} --delete"
        )
    try:
        if not pool:
            disk = next(each for each in itertools.count(30) if room(each) >= size)
            say(
                f"Making a node for the cache: {MACHINE_TYPE} with a disk of {disk} GB, "
                f"for {price(config, place, disk)} from now on"
            )
            path = f"{found['location']}/clusters/{found['name']}/nodePools"
            body = {"nodePool": container.like_its_cluster(pool_body(config, disk), found)}
            container.change(config, place, "POST", path, body, f"the pool {POOL}", say)
        server = gke.connect(config, place)
        put(config, server, size)
        wait(config, server, name, say)
    except BaseException as error:
        say(f"\nThe dataset cache of {name} is not complete, and what there is of it costs money.")
        say(
            f"Go on:      berg cluster cache {name} --size {size}\n"
            f"Delete it:  berg cluster cache {name} --delete"
        )
        if isinstance(error, api.OperationFailed):
            raise BergError(error.message) from None
        raise


def room(disk: int) -> int:
    """GB for slices on a node's disk: GKE keeps a part of it for itself (cloud.google.com, "Node
    sizing").
    """
    # that the kubelet counts: Container-Optimized OS and the file system take the rest
    there = disk * 0.984 - 4.2
    return int(there * 0.9 - min(disk * 0.5, 6 + disk * 0.35, 100)) - SPARE


def price(config: Config, place: str, disk: int) -> str:
    """Say what an hour of the cache's node costs in a cluster's location, by Google's list."""
    listed = prices.latest(config, [region := region_of(place.partition("/")[0])]).get(region)
    shape = Shape(MACHINE_TYPE, 0, "")
    hourly = listed.per_hour(shape, prices.STANDARD, disk) if listed else None
    return "an unknown price" if hourly is None else f"${hourly:,.2f} an hour"


def pool_body(config: Config, disk: int) -> dict[str, Any]:
    taint = {"key": CACHE, "value": "true", "effect": "NO_SCHEDULE"}
    node = container.node_config(
        config, machineType=MACHINE_TYPE, diskSizeGb=disk, diskType=DISK_TYPE, taints=[taint]
    )
    keep = {"autoUpgrade": True, "autoRepair": True}
    return {"name": POOL, "initialNodeCount": 1, "config": node, "management": keep}


def configuration(config: Config, megabytes: int) -> str:
    """NGINX's configuration for slices of so many megabytes."""
    origin = urlsplit(api.storage_url(config))
    host = origin.netloc if origin.port or origin.scheme == "http" else f"{origin.netloc}:443"
    words = {"HOST": host, "NAME": origin.netloc, "SCHEME": origin.scheme, "SIZE": str(megabytes)}
    text = CONFIGURATION.read_text()
    for key, value in words.items():
        text = text.replace(f"@{key}@", value)
    return text


def bodies(config: Config, size: int) -> dict[str, dict[str, Any]]:
    """What the cache is in Kubernetes' words, by the path of each kind, in the order in which they
    are made.
    """
    text = configuration(config, size << 10)
    named = {"name": f"{CACHE}-{hashlib.sha256(text.encode()).hexdigest()[:10]}", "labels": LABELS}
    about = {"name": CACHE, "labels": LABELS}
    main = {
        "name": "main",
        "image": IMAGE,
        "command": ["sh", "-c", START],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"containerPort": CACHE_PORT}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": CACHE_PORT}, "periodSeconds": 2},
        "resources": {"requests": {"ephemeral-storage": f"{size + SPARE}Gi"}},
        "volumeMounts": [
            {"name": "conf", "mountPath": "/etc/berg"},
            {"name": "cache", "mountPath": "/cache"},
        ],
    }
    pod = {
        "automountServiceAccountToken": False,  # it acts as its readers
        "enableServiceLinks": False,
        "nodeSelector": {f"{container.LABEL}gke-nodepool": POOL},
        "tolerations": [{"key": CACHE, "operator": "Exists"}],
        "containers": [main],
        "volumes": [
            {"name": "conf", "configMap": {"name": named["name"]}},
            {"name": "cache", "emptyDir": {}},
        ],
    }
    template = {"metadata": {"labels": LABELS}, "spec": pod}
    # Two would not fit the disk.
    deployment = {
        "replicas": 1,
        "selector": {"matchLabels": LABELS},
        "strategy": {"type": "Recreate"},
    }
    service = {"selector": LABELS, "ports": [{"port": CACHE_PORT, "targetPort": CACHE_PORT}]}
    deployed = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": about}
    return {
        f"{k8s.CORE}/configmaps": {
            **{"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "immutable": True},
            "data": {"nginx.conf": text},
        },
        DEPLOYMENTS: {**deployed, "spec": {**deployment, "template": template}},
        f"{k8s.CORE}/services": {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": about,
            "spec": service,
        },
    }


def put(config: Config, server: k8s.Server, size: int) -> None:
    """Make what the cache consists of, or change what is there; a configuration of before goes."""
    made = bodies(config, size)
    for path, body in made.items():
        name = body["metadata"]["name"]
        if not k8s.create(config, server, path, body) and not body.get("immutable"):
            k8s.call(config, server, "PATCH", f"{path}/{name}", body, kind=k8s.MERGE)
    clear(config, server, keep=made[f"{k8s.CORE}/configmaps"]["metadata"]["name"])


def clear(config: Config, server: k8s.Server, keep: str = "") -> None:
    """Delete the cache's configurations but one."""
    path = f"{k8s.CORE}/configmaps"
    for each in k8s.items(config, server, path, labelSelector=f"app={CACHE}"):
        if each["metadata"]["name"] != keep:
            k8s.delete(config, server, f"{path}/{each['metadata']['name']}")


def pods(config: Config, server: k8s.Server) -> list[dict[str, Any]]:
    """The cache's pods that are not about to go."""
    found = k8s.items(config, server, f"{k8s.CORE}/pods", labelSelector=f"app={CACHE}")
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


def ready(deployment: dict[str, Any]) -> bool:
    """Return whether the pod that a deployment describes now is there and answers."""
    status = deployment.get("status", {})
    current = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    counts = [status.get(key, 0) for key in ("updatedReplicas", "readyReplicas", "replicas")]
    return bool(current and counts == [1, 1, 1])


def why_not(config: Config, server: k8s.Server) -> str:
    """Why the cache does not answer, in words."""
    for pod in pods(config, server):
        rows = pod["status"].get("containerStatuses", [])
        if any(each.get("restartCount") for each in rows):
            last = k8s.log(config, server, pod["metadata"]["name"]).strip().rpartition("\n")[2]
            return f"NGINX ended, and is begun again: {last}"
        if pod["status"].get("phase") == "Running":
            return "NGINX does not answer yet"
        conditions = [each.get("message", "") for each in pod["status"].get("conditions", [])]
        if full := next(
            (text for text in conditions if "Insufficient ephemeral-storage" in text), ""
        ):
            return f"{NO_ROOM}: {full}"
        return podstatus.why_pending(pod, k8s.items(config, server, f"{k8s.CORE}/events"))
    return "it is to be given a pod"


def wait(config: Config, server: k8s.Server, name: str, say: Say) -> None:
    """Wait until the cache answers; what it waits for is told."""
    end, told = time.monotonic() + PATIENCE, ""
    while True:
        deployment = k8s.find(config, server, f"{DEPLOYMENTS}/{CACHE}")
        if deployment is None:
            raise BergError(f"somebody has deleted the dataset cache of {name} meanwhile")
        if ready(deployment):
            return
        why = why_not(config, server)
        if why.startswith(NO_ROOM):
            raise BergError(
                f"{why}. Give a smaller --size, or begin anew: berg cluster cache {name} --delete"
            )
        if time.monotonic() > end:
            raise BergError(
                f"the dataset cache of {name} does not answer after {PATIENCE // 60} minutes: {why}"
            )
        if why != told:
            say(why[0].upper() + why[1:])
            told = why
        time.sleep(0.5)


def delete(config: Config, name: str, say: Say) -> None:
    """Delete a cluster's cache with its node, and wait until they are gone."""
    found = container.find(config, name)
    place, server = container.where(found), gke.connect(config, container.where(found))
    pool = [each for each in container.pools(found) if each["name"] == POOL]
    if (
        not pool
        and not k8s.find(config, server, SERVICE)
        and not k8s.find(config, server, f"{DEPLOYMENTS}/{CACHE}")
    ):
        raise missing(name)
    k8s.delete(config, server, SERVICE)  # first: jobs that begin now do without
    k8s.delete(config, server, f"{DEPLOYMENTS}/{CACHE}")
    clear(config, server)
    if pool:
        path = f"{found['location']}/clusters/{found['name']}/nodePools/{POOL}"
        container.change(config, place, "DELETE", path, None, "deleting the cache's node", say)


def missing(name: str) -> BergError:
    return BergError(
        f"the cluster {name} has no dataset cache. Make it: berg cluster cache {name} --size 200"
    )


@dataclass
class Status:
    """A cluster's cache, and what was read through it; bytes and slices since its log began."""

    cluster: str
    url: str
    state: str  # READY, or why it is not
    node: str
    size_gb: int
    kept_bytes: int = 0
    since: float = 0.0  # 0: nothing was read yet
    slices: int = 0
    hits: int = 0
    hit_bytes: int = 0
    fetched_bytes: int = 0

    @property
    def hit_rate(self) -> float | None:
        return self.hits / self.slices if self.slices else None


def status(config: Config, name: str) -> Status:
    found = container.find(config, name)
    server = gke.connect(config, container.where(found))
    deployment = k8s.find(config, server, f"{DEPLOYMENTS}/{CACHE}")
    if deployment is None:
        raise missing(name)
    there = next(iter(pods(config, server)), {"spec": {}, "metadata": {"name": ""}})
    asked = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"][
        "ephemeral-storage"
    ]
    state = "READY" if ready(deployment) else why_not(config, server)
    now = Status(
        cluster=name,
        url=CACHE_URL,
        state=state,
        node=there["spec"].get("nodeName", ""),
        size_gb=int(asked.removesuffix("Gi")) - SPARE,
    )
    if state == "READY":
        count(now, said(config, server, there["metadata"]["name"]))
    return now


def said(config: Config, server: k8s.Server, pod: str) -> str:
    """What the cache has counted, a line for each kind of slice."""
    with tempfile.TemporaryFile() as file:
        client.run(
            config, server, pod, ["sh", "-c", COUNT], streams=client.Streams(None, file.fileno())
        )
        file.seek(0)
        return file.read().decode()


def count(now: Status, text: str) -> None:
    """Add to a status what the cache has counted."""
    for line in text.splitlines():
        kind, number, size = line.split()
        if kind == "kept":
            now.kept_bytes = int(number)
        elif kind == "since":
            now.since = float(number)
        else:
            now.slices += int(number)
            if kind == "HIT":
                now.hits, now.hit_bytes = int(number), int(size)
            else:
                now.fetched_bytes += int(size)

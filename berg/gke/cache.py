"""The dataset cache of a cluster: NGINX on its own node, between the pods and the bucket.

It keeps slices of objects on its node's disk, by the object's generation, so that an old version is
never served. Cloud Storage alone decides who can read: each request, also for what is kept, asks it
with the reader's own token. Without a cache readers use the bucket under the same path. Not
covered: several nodes for one cache, sources other than Cloud Storage.
"""

import hashlib
import itertools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from berg import BergError
from berg.config import Config
from berg.gke import client
from berg.gke.client import CORE, Say, Server, connect
from berg.gke.pods import CACHE, CACHE_PORT, CACHE_URL
from berg.gke.status import why_pending
from berg.google import api, prices
from berg.google.prices import region_of
from berg.google.shapes import Shape

POOL = client.CACHE  # of the one node, with a taint that keeps jobs away
IMAGE = (  # of Debian, by the makers of NGINX
    "nginx:1.28.0@sha256:eaa7e36decc3421fc04478c586dfea0d931cebe47d5bc0b15d758a32ba51126f"
)
MACHINE_TYPE, DISK_TYPE = "e2-standard-4", "pd-balanced"
SPARE = 8  # GB in addition to the slices: NGINX looks every 10 seconds whether they are too many
LARGEST = 50_000
TIMEOUT = 900  # seconds for a new node to pull the image and start it
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
DEPLOYMENT, SERVICE = f"{DEPLOYMENTS}/{CACHE}", f"{CORE}/services/{CACHE}"
CONFIGS = f"{CORE}/configmaps"
LABELS = {"app": CACHE}
NO_ROOM = "the cache does not fit the disk of its node"
# Once an hour NGINX resolves Cloud Storage's name again. The log of reads is emptied before it gets
# large.
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


def deploy(config: Config, name: str, size: int, say: Say) -> None:
    """Create the cache of a cluster, or change its size in GB; return when it answers.

    If that fails or is interrupted, `say` names what may exist.
    """
    if not 1 <= size <= LARGEST:
        raise BergError(f"--size {size} is not possible: give 1 to {LARGEST} GB")
    config.refuse_in_purse("create a dataset cache")
    found = client.find_cluster(config, name)
    place, pool = client.where(found), client.pool_of(found, POOL)
    if pool and size > (most := room(disk := pool["config"]["diskSizeGb"])):
        raise BergError(
            f"--size {size} does not fit the cache's node: its disk has {disk} GB, which leave "
            f"{most} GB to the cache. Give --size {most}, or start again: "
            f"berg cluster cache {name} --delete"
        )
    try:
        if not pool:
            make_node(config, found, size, say)
        server = connect(config, place)
        made = bodies(config, size)
        for path, body in made.items():
            target = f"{path}/{body['metadata']['name']}"
            if not client.create(server, path, body) and not body.get("immutable"):
                client.call(server, "PATCH", target, body, kind=client.MERGE)
        delete_configs(server, keep=made[CONFIGS]["metadata"]["name"])
        wait(server, name, say)
    except BaseException as error:
        say(f"\nThe dataset cache of {name} is not complete, and what there is of it costs money.")
        say(f"Continue:   berg cluster cache {name} --size {size}")
        say(f"Delete it:  berg cluster cache {name} --delete")
        if isinstance(error, api.OperationFailed):
            raise BergError(error.message) from None
        raise


def make_node(config: Config, cluster: dict[str, Any], size: int, say: Say) -> None:
    """Create a pool with a node whose disk has room for so many GB of slices."""
    disk = next(each for each in itertools.count(30) if room(each) >= size)
    region = region_of(cluster["location"])
    listed = prices.latest(config, [region]).get(region)
    shape = Shape(MACHINE_TYPE, 0, "")
    hourly = listed.per_hour(shape, prices.STANDARD, disk) if listed else None
    price = "an unknown price" if hourly is None else f"${hourly:,.2f} an hour"
    say(
        f"Making a node for the cache: {MACHINE_TYPE} with a disk of {disk} GB, "
        f"for {price} from now on"
    )
    taint = {"key": CACHE, "value": "true", "effect": "NO_SCHEDULE"}
    node = client.node_config(
        config, machineType=MACHINE_TYPE, diskSizeGb=disk, diskType=DISK_TYPE, taints=[taint]
    )
    pool = {
        "name": POOL,
        "initialNodeCount": 1,
        "config": node,
        "management": client.MANAGED,
    }
    body = {"nodePool": client.like_its_cluster(pool, cluster)}
    place, path = client.where(cluster), f"{client.path_of(cluster)}/nodePools"
    client.change_cluster(config, place, "POST", path, body, f"the pool {POOL}", say)


def room(disk: int) -> int:
    """Return the GB for slices on a node's disk, without the part that GKE keeps for itself.

    Source: cloud.google.com, "Node sizing".
    """
    # what the kubelet counts: Container-Optimized OS and the file system take the rest
    there = disk * 0.984 - 4.2
    return int(there * 0.9 - min(disk * 0.5, 6 + disk * 0.35, 100)) - SPARE


def configuration(config: Config, megabytes: int) -> str:
    """Return NGINX's configuration for slices of so many megabytes."""
    origin = urlsplit(api.storage_url(config))
    host = origin.netloc if origin.port or origin.scheme == "http" else f"{origin.netloc}:443"
    words = {"HOST": host, "NAME": origin.netloc, "SCHEME": origin.scheme, "SIZE": str(megabytes)}
    text = Path(__file__).with_name("nginx.conf").read_text()
    for key, value in words.items():
        text = text.replace(f"@{key}@", value)
    return text


def bodies(config: Config, size: int) -> dict[str, dict[str, Any]]:
    """Return the objects of the cache by the paths of their kinds, in the order of creation."""
    text = configuration(config, size << 10)
    named = f"{CACHE}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    mounts = {"conf": "/etc/berg", "cache": "/cache"}
    main = {
        "name": "main",
        "image": IMAGE,
        "command": ["sh", "-c", START],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"containerPort": CACHE_PORT}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": CACHE_PORT}, "periodSeconds": 2},
        "resources": {"requests": {"ephemeral-storage": f"{size + SPARE}Gi"}},
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
    }
    pod = {
        "automountServiceAccountToken": False,  # it acts as its readers
        "enableServiceLinks": False,
        "nodeSelector": {f"{client.LABEL}gke-nodepool": POOL},
        "tolerations": [{"key": CACHE, "operator": "Exists"}],
        "containers": [main],
        "volumes": [
            {"name": "conf", "configMap": {"name": named}},
            {"name": "cache", "emptyDir": {}},
        ],
    }
    deployment = {
        "replicas": 1,
        "selector": {"matchLabels": LABELS},
        "strategy": {"type": "Recreate"},  # two would not fit the disk
        "template": {"metadata": {"labels": LABELS}, "spec": pod},
    }
    service = {"selector": LABELS, "ports": [{"port": CACHE_PORT, "targetPort": CACHE_PORT}]}
    return {
        CONFIGS: client.thing(
            "ConfigMap", named, LABELS, immutable=True, data={"nginx.conf": text}
        ),
        DEPLOYMENTS: client.thing("Deployment", CACHE, LABELS, spec=deployment),
        f"{CORE}/services": client.thing("Service", CACHE, LABELS, spec=service),
    }


def delete_configs(server: Server, keep: str = "") -> None:
    """Delete the cache's configurations but one."""
    for each in client.items(server, CONFIGS, labelSelector=f"app={CACHE}"):
        if each["metadata"]["name"] != keep:
            client.delete(server, f"{CONFIGS}/{each['metadata']['name']}")


def pods(server: Server) -> list[dict[str, Any]]:
    """Return the cache's pods that are not being deleted."""
    found = client.items(server, f"{CORE}/pods", labelSelector=f"app={CACHE}")
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


def ready(deployment: dict[str, Any]) -> bool:
    """Return whether the pod of the current version of a deployment answers."""
    status = deployment.get("status", {})
    current = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    counts = [status.get(key, 0) for key in ("updatedReplicas", "readyReplicas", "replicas")]
    return bool(current and counts == [1, 1, 1])


def why_not(server: Server) -> str:
    """Return why the cache does not answer, in words."""
    for pod in pods(server):
        rows = pod["status"].get("containerStatuses", [])
        if any(each.get("restartCount") for each in rows):
            last = client.log(server, pod["metadata"]["name"]).strip().rpartition("\n")[2]
            return f"NGINX ended, and is restarted: {last}"
        if pod["status"].get("phase") == "Running":
            return "NGINX does not answer yet"
        for condition in pod["status"].get("conditions", []):
            if "Insufficient ephemeral-storage" in condition.get("message", ""):
                return f"{NO_ROOM}: {condition['message']}"
        return why_pending(pod, client.items(server, f"{CORE}/events"))
    return "it waits for a pod"


def wait(server: Server, name: str, say: Say) -> None:
    """Wait until the cache answers; `say` hears what it waits for."""
    end, last = time.monotonic() + TIMEOUT, ""
    while True:
        deployment = client.find(server, DEPLOYMENT)
        if deployment is None:
            raise BergError(f"the dataset cache of {name} was deleted in the meantime")
        if ready(deployment):
            return
        why = why_not(server)
        if why.startswith(NO_ROOM):
            raise BergError(
                f"{why}. Give a smaller --size, or start again: berg cluster cache {name} --delete"
            )
        if time.monotonic() > end:
            raise BergError(
                f"the dataset cache of {name} does not answer after {TIMEOUT // 60} minutes: {why}"
            )
        if why != last:
            say(why[0].upper() + why[1:])
            last = why
        time.sleep(0.5)


def delete(config: Config, name: str, say: Say) -> None:
    """Delete a cluster's cache with its node, and wait until they are gone."""
    found = client.find_cluster(config, name)
    place = client.where(found)
    server, pool = connect(config, place), client.pool_of(found, POOL)
    if not pool and not client.find(server, SERVICE) and not client.find(server, DEPLOYMENT):
        raise missing(name)
    client.delete(server, SERVICE)  # first: new jobs read the bucket itself
    client.delete(server, DEPLOYMENT)
    delete_configs(server)
    if pool:
        path, what = client.path_of(found, POOL), "deleting the cache's node"
        with api.waiting("Waiting until Google has deleted the cache's node", say):
            client.change_cluster(config, place, "DELETE", path, None, what, say)


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


def look(config: Config, name: str) -> Status:
    """Return the state of a cluster's cache, with its own counts if it answers."""
    server = connect(config, client.where(client.find_cluster(config, name)))
    deployment = client.find(server, DEPLOYMENT)
    if deployment is None:
        raise missing(name)
    there = next(iter(pods(server)), {"spec": {}, "metadata": {"name": ""}})
    main = deployment["spec"]["template"]["spec"]["containers"][0]
    size = int(main["resources"]["requests"]["ephemeral-storage"].removesuffix("Gi")) - SPARE
    state = "READY" if ready(deployment) else why_not(server)
    now = Status(name, CACHE_URL, state, there["spec"].get("nodeName", ""), size)
    if state == "READY":
        command = ["sh", "-c", COUNT]
        with tempfile.TemporaryFile() as file:
            pod = there["metadata"]["name"]
            client.run(server, pod, command, stdin=None, stdout=file.fileno())
            file.seek(0)
            count(now, file.read().decode())
    return now


def count(now: Status, text: str) -> None:
    """Add to a status the lines of COUNT, one for each kind of slice."""
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

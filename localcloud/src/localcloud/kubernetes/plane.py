"""A cluster's control plane: its objects, and how they are created, deleted and spoken of. Knows no
HTTP.

Deleting follows Kubernetes: what an object owns goes after it; a pod goes when its kubelet has ended it, and
its job has counted it.

Not covered: other propagation policies than Background, finalizers of users.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localcloud.compute.state import Compute
from localcloud.kubernetes import checks
from localcloud.kubernetes.defaults import fill
from localcloud.kubernetes.kinds import KINDS, Refusal, is_leaving, is_over, owned_by, stamp
from localcloud.kubernetes.store import Store
from localcloud.schema import without_nulls

log = logging.getLogger("localcloud")

NAMESPACE = "default"  # the only one
# What clusters say that they are, and whose rules they have.
VERSION = "v1.36.2-gke.1104000"
MINOR = VERSION.split(".")[1]
LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of generated names


@dataclass
class Settings:
    """How fast things go; on Google each takes longer."""

    operation: float = 1.0  # seconds that an operation on a cluster or pool takes
    backoff: float = 10.0  # seconds before the first pod after a failed one, doubled with each
    scale_retry: float = 300.0  # seconds before the autoscaler tries again where there was no room
    give_up: float = 3.0  # seconds after which an operation gives up on nodes that do not come


@dataclass
class Plane:
    """One cluster's control plane."""

    project: str
    location: str
    name: str
    folder: Path
    compute: Compute
    settings: Settings
    pools: list[dict]  # Google's NodePool resources, shared with the cluster's
    port: int = 0
    tasks: set[asyncio.Task] = field(default_factory=set)
    end_pod: Callable[..., Awaitable[None]] = None  # type: ignore[assignment]  # the kubelet's, see kubelet.py
    # what controllers remember of jobs, pools and nodes
    memory: dict[str, dict] = field(default_factory=dict)
    closing: bool = False
    images: dict[str, str] = field(
        default_factory=dict
    )  # part of a name -> why it cannot be pulled

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store = Store()
        self.running: dict[
            tuple[str, str], Any
        ] = {}  # (pod's uid, container) -> what kubelet.py runs
        self.kept: dict[str, asyncio.Task] = {}  # a pod's uid -> the task that runs it

    def in_background(self, work: Any) -> asyncio.Task:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception():
            log.error("cluster %s: a task failed inside", self.name, exc_info=task.exception())

    # --- making

    def create(
        self, plural: str, namespace: str, body: dict, strict: bool = False, dry: bool = False
    ) -> dict:
        """Make an object of a body; raise Kubernetes' refusal if it may not be."""
        kind = KINDS[plural]
        checks.check_form(kind, body, strict)
        body = without_nulls(body)  # which means "not set"
        meta = body.setdefault("metadata", {})
        if not namespace == meta.setdefault("namespace", namespace) == NAMESPACE:
            message = f'namespaces "{namespace}" not found'
            raise Refusal(404, "NotFound", message, name=namespace, kind="namespaces")
        meta.pop("resourceVersion", None)
        meta.pop("generation", None)
        meta.update(uid=str(uuid.uuid4()), creationTimestamp=stamp())
        if kind.counted:
            meta["generation"] = 1
        checks.check_meaning(plural, body)
        body = {"kind": kind.name, "apiVersion": kind.api, **body}
        fill(plural, body)
        if self.store.get(plural, namespace, meta["name"]):
            message = f'{kind.resource} "{meta["name"]}" already exists'
            about = {"name": meta["name"], "group": kind.group, "kind": plural}
            raise Refusal(409, "AlreadyExists", message, **about)
        if not dry:
            self.store.put(plural, body, "ADDED")
        return body

    # --- deleting

    def delete(self, plural: str, thing: dict, grace: int | None = None) -> None:
        """Delete an object, and then what it owns."""
        if plural == "pods":
            self.delete_pod(thing, grace)
            return
        self.store.put(plural, thing, "DELETED")
        for kind, each in self.owned(thing):
            if not is_leaving(each):
                self.delete(kind, each)

    def owned(self, owner: dict) -> list[tuple[str, dict]]:
        """Return what an object owns, and of what kind each is."""
        return [
            (kind, each) for kind in KINDS for each in self.store.all(kind) if owned_by(each, owner)
        ]

    def delete_pod(self, pod: dict, grace: int | None) -> None:
        """End a pod; one that does not run is deleted at once. A second delete can only shorten the
        grace period.
        """
        meta = pod["metadata"]
        seconds = pod["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace
        if not pod["spec"].get("nodeName") or is_over(pod):
            seconds = 0
        # as the garbage collector of pods that were never scheduled
        if not pod["spec"].get("nodeName"):
            pod["status"]["phase"] = "Failed"
        if is_leaving(pod) and seconds >= meta["deletionGracePeriodSeconds"] and seconds:
            return
        meta["deletionTimestamp"] = stamp(time.time() + seconds)
        meta["deletionGracePeriodSeconds"] = seconds
        self.store.put("pods", pod)
        if meta["uid"] in self.kept:
            self.in_background(self.end_pod(self, pod, seconds))
        self.finish_pod(pod)

    def finish_pod(self, pod: dict) -> None:
        """Forget a pod that has ended and is to go, once no finalizer holds it."""
        meta = pod["metadata"]
        is_held = meta["uid"] in self.kept or meta.get("finalizers")
        if is_leaving(pod) and not is_held:
            self.store.put("pods", pod, "DELETED")

    def collect(self) -> None:
        """Garbage: what lost its owners."""
        living = {each["metadata"]["uid"] for kind in KINDS for each in self.store.all(kind)}
        for kind in KINDS:
            for each in self.store.all(kind):
                meta = each["metadata"]
                owners = meta.get("ownerReferences") or []
                if (
                    owners
                    and not is_leaving(each)
                    and not any(row["uid"] in living for row in owners)
                ):
                    self.delete(kind, each)

    # --- events

    def event(
        self, thing: dict, reason: str, message: str, kind: str = "Normal", by: str = ""
    ) -> None:
        """Say what happened to a thing; the same again is counted."""
        meta, now = thing["metadata"], stamp()
        about = {
            "kind": thing["kind"],
            "name": meta["name"],
            "uid": meta["uid"],
            "apiVersion": thing["apiVersion"],
        }
        namespace = meta.get("namespace", "default")
        about |= {"namespace": meta["namespace"]} if "namespace" in meta else {}
        for old in self.store.all("events"):
            if (old["involvedObject"], old["reason"], old["message"]) == (about, reason, message):
                old.update(count=old["count"] + 1, lastTimestamp=now)
                self.store.put("events", old)
                return
        # as client-go names them: lists are in the order of time
        name = f"{meta['name']}.{time.time_ns():x}"
        body = {
            **{
                "apiVersion": "v1",
                "kind": "Event",
                "involvedObject": about,
                "reason": reason,
                "message": message,
            },
            **{
                "type": kind,
                "count": 1,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "eventTime": None,
            },
            **{"source": {"component": by}, "reportingComponent": by, "reportingInstance": ""},
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": str(uuid.uuid4()),
                "creationTimestamp": now,
            },
        }
        self.store.put("events", body, "ADDED")

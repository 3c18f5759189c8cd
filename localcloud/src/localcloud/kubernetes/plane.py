"""A cluster's control plane: its objects, and how they are created, deleted and spoken of. Knows no
HTTP.

Deleting follows Kubernetes: an object with finalizers only begins to go; what an object owns goes
with it, unless it is orphaned; a pod goes when its kubelet has ended it.

Not covered: removing finalizers of users, which are kept.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localcloud.compute.state import Compute
from localcloud.kubernetes import checks
from localcloud.kubernetes.defaults import fill
from localcloud.kubernetes.kinds import KINDS, Kind, Refusal, is_leaving, is_over, owned_by, stamp
from localcloud.kubernetes.store import Store

log = logging.getLogger("localcloud")

NAMESPACES = ("default", "kube-system", "kube-public")
# What clusters say that they are, and whose rules they have.
VERSION = "v1.36.2-gke.1104000"
MINOR = VERSION.split(".")[1]
OF_POLICIES = ("foregroundDeletion",)  # finalizers that the propagation policies set
LONGEST_START = 58  # of names that are generated: five letters come behind
LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of generated names


@dataclass
class Settings:
    """How fast things go; on Google each takes longer."""

    operation: float = 1.0  # seconds that an operation on a cluster or pool takes
    driver_delay: float = 0.0  # seconds until the drivers of a node's GPUs are there
    backoff: float = 10.0  # seconds before the first pod after a failed one, doubled with each
    restart: float = 10.0  # seconds before the second restart of a container, doubled with each
    pull_delay: float = 0.0  # seconds that an image takes to come
    scale_retry: float = 300.0  # seconds before the autoscaler tries again where there was no room
    scale_down: float = 600.0  # seconds that a node may be idle
    give_up: float = 3.0  # seconds after which an operation gives up on nodes that do not come


def without_nulls(value: Any) -> Any:
    """A copy without what is null, which means "not set"."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


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
    # image, or a part of its name -> why it cannot be pulled
    images: dict[str, str] = field(default_factory=dict)
    save_pools: Callable[[], None] = lambda: None  # their sizes, which the autoscaler changes
    end_pod: Callable[..., Awaitable[None]] = None  # type: ignore[assignment]  # the kubelet's, see kubelet.py
    # what controllers remember of jobs, pools and nodes
    memory: dict[str, dict] = field(default_factory=dict)
    closing: bool = False

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store = Store(self.folder / "objects")
        self.running: dict[
            tuple[str, str], Any
        ] = {}  # (pod's uid, container) -> what kubelet.py runs
        self.kept: dict[str, asyncio.Task] = {}  # a pod's uid -> the task that runs it
        for name in NAMESPACES:
            if not self.store.get("namespaces", "", name):
                self.create("namespaces", "", {"metadata": {"name": name}})

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
        body = without_nulls(body)
        meta = body.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"][:LONGEST_START] + "".join(
                secrets.choice(LETTERS) for _ in range(5)
            )
        if kind.namespaced:
            self.check_namespace(kind, meta, namespace)
        asked = meta.pop("resourceVersion", None)
        meta.pop("generation", None)
        meta.update(uid=str(uuid.uuid4()), creationTimestamp=stamp())
        if kind.counted:
            meta["generation"] = 1
        if not kind.namespaced:
            meta.pop("namespace", None)
        checks.check_meaning(plural, body)
        body = {"kind": kind.name, "apiVersion": kind.api, **body}
        fill(plural, body)
        if asked and not dry:
            raise Refusal(500, "", "resourceVersion should not be set on objects to be created")
        if self.store.get(plural, meta.get("namespace", ""), meta["name"]):
            message = f'{kind.resource} "{meta["name"]}" already exists'
            about = {"name": meta["name"], "group": kind.group, "kind": plural}
            raise Refusal(409, "AlreadyExists", message, **about)
        if not dry:
            self.store.put(plural, body, "ADDED")
        return body

    def check_namespace(self, kind: Kind, meta: dict, namespace: str) -> None:
        if meta.setdefault("namespace", namespace) != namespace:
            message = "the namespace of the provided object does not match the namespace sent on the request"
            raise Refusal(400, "BadRequest", message)
        found = self.store.get("namespaces", "", namespace)
        if not found:
            message = f'namespaces "{namespace}" not found'
            raise Refusal(404, "NotFound", message, name=namespace, kind="namespaces")
        if is_leaving(found):
            name, detail = meta.get("name", ""), f"namespace {namespace}"
            why = f"unable to create new content in {detail} because it is being terminated"
            cause = {"reason": "NamespaceTerminating", "message": f"{detail} is being terminated"}
            about = {"name": name, "group": kind.group, "kind": kind.plural}
            about["causes"] = [{**cause, "field": "metadata.namespace"}]
            message = f'{kind.resource} "{name}" is forbidden: {why}'
            raise Refusal(403, "Forbidden", message, **about)

    # --- deleting

    def delete(self, plural: str, thing: dict, policy: str = "", grace: int | None = None) -> None:
        """Begin to delete an object, by one of Kubernetes' propagation policies."""
        if plural == "pods":
            self.delete_pod(thing, grace)
            return
        policy = policy or "Background"
        waits_for = [
            each for each in thing["metadata"].get("finalizers") or [] if each not in OF_POLICIES
        ]
        owned = self.owned(plural, thing)
        rows = [row for _, each in owned for row in each["metadata"].get("ownerReferences") or []]
        blocked = policy == "Foreground" and any(row.get("blockOwnerDeletion") for row in rows)
        if blocked or (plural == "namespaces" and owned):
            waits_for.append("foregroundDeletion")
        if waits_for:
            self.begin_to_go(plural, thing, waits_for)
        else:
            self.store.put(plural, thing, "DELETED")
        for kind, each in owned:
            if not is_leaving(each):
                self.delete(kind, each, "Foreground" if policy == "Foreground" else "Background")

    def owned(self, plural: str, owner: dict) -> list[tuple[str, dict]]:
        """Return what an object owns, and of what kind each is; a namespace owns what is in it."""
        return [
            (kind, each)
            for kind in KINDS
            for each in self.store.all(kind)
            if self.belongs(each, owner, plural)
        ]

    def begin_to_go(self, plural: str, thing: dict, finalizers: list[str]) -> None:
        meta = thing["metadata"]
        meta.setdefault("deletionTimestamp", stamp())
        meta.setdefault("deletionGracePeriodSeconds", 0)
        meta["finalizers"] = finalizers
        if plural == "namespaces":
            thing["status"]["phase"] = "Terminating"
        self.store.put(plural, thing)

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
        if is_leaving(pod) and not self.is_held(pod) and not meta.get("finalizers"):
            self.store.put("pods", pod, "DELETED")

    def is_held(self, pod: dict) -> bool:
        """Whether a pod that is to go waits for its kubelet."""
        return pod["metadata"]["uid"] in self.kept

    def collect(self) -> None:
        """Garbage: what lost its owners, and owners that waited for what they own."""
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
                    self.delete(kind, each, "Background")
                if "foregroundDeletion" in (meta.get("finalizers") or []):
                    self.finish_foreground(kind, each)

    def finish_foreground(self, plural: str, owner: dict) -> None:
        """Let an owner go that waited for what it owns, once all of that is gone."""
        left = self.owned(plural, owner)
        for kind, each in left if plural == "namespaces" else []:
            if not is_leaving(each):  # it came after the deletion had begun
                self.delete(kind, each, "Background")
        if left:
            return
        meta = owner["metadata"]
        meta["finalizers"].remove("foregroundDeletion")
        if not meta["finalizers"]:
            self.store.put(plural, owner, "DELETED")

    @staticmethod
    def belongs(thing: dict, owner: dict, plural: str) -> bool:
        if plural == "namespaces":
            return thing["metadata"].get("namespace") == owner["metadata"]["name"]
        return owned_by(thing, owner)

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

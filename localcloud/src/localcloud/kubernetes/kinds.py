"""Which kinds of objects a cluster has, and the refusals of its API in Kubernetes' own form."""

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Kind:
    plural: str
    api: str  # group and version
    name: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = field(default=())
    counted: bool = False  # its metadata tell how often what it is to be was changed

    @property
    def group(self) -> str:
        return self.api.rpartition("/")[0]

    @property
    def resource(self) -> str:
        """Its plural as messages write it: jobs.batch."""
        return f"{self.plural}.{self.group}".rstrip(".")


ALL = (
    Kind("pods", "v1", "Pod", True, ("po",), ("log", "exec"), counted=True),
    Kind("secrets", "v1", "Secret"),
    Kind("configmaps", "v1", "ConfigMap", True, ("cm",)),
    Kind("nodes", "v1", "Node", False, ("no",)),
    Kind("events", "v1", "Event", True, ("ev",)),
    Kind("jobs", "batch/v1", "Job", counted=True),
)
KINDS = {kind.plural: kind for kind in ALL}
FINAL = ("Succeeded", "Failed")


class Refusal(Exception):
    """An answer other than success, with the Status object that Kubernetes writes."""

    def __init__(self, code: int, reason: str, message: str, **details: Any):
        super().__init__(message)
        self.code = code
        detail: dict[str, Any] = {"reason": reason} if reason else {}
        about = {key: value for key, value in details.items() if value}
        if about or (code, message) in GENERIC:
            detail["details"] = about
        self.body = {
            **{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"},
            **{"message": message, "code": code},
            **detail,
        }


NO_ROUTE = 404, "the server could not find the requested resource"
NO_METHOD = 405, "the server does not allow this method on the requested resource"
GENERIC = (NO_ROUTE, NO_METHOD)  # which a server's frame answers, with details of nothing


def no_method() -> Refusal:
    return Refusal(NO_METHOD[0], "MethodNotAllowed", NO_METHOD[1])


def not_found(kind: Kind, name: str) -> Refusal:
    message = f'{kind.resource} "{name}" not found'
    return Refusal(404, "NotFound", message, name=name, group=kind.group, kind=kind.plural)


def stamp(at: float | None = None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def key_of(thing: dict) -> tuple[str, str]:
    return thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


def owned_by(thing: dict, owner: dict) -> bool:
    references = thing["metadata"].get("ownerReferences") or []
    return any(row["uid"] == owner["metadata"]["uid"] for row in references)


def reference(owner: dict) -> list[dict]:
    """Return the ownerReferences of what a controller makes for `owner`."""
    meta = owner["metadata"]
    row = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
    }
    return [{**row, "controller": True, "blockOwnerDeletion": True}]


def is_leaving(thing: dict) -> bool:
    """Whether its deletion has begun."""
    return "deletionTimestamp" in thing["metadata"]


def is_over(pod: dict) -> bool:
    return pod["status"].get("phase") in FINAL


def set_condition(status: dict, kind: str, value: str, reason: str = "", message: str = "") -> bool:
    """Set one of a status's conditions; whether that changed it."""
    rows = status.setdefault("conditions", [])
    old = next((row for row in rows if row["type"] == kind), None)
    new = {"type": kind, "status": value, **({"reason": reason} if reason else {})}
    if message:
        new["message"] = message
    if old is not None and {key: old.get(key) for key in new} == new:
        return False
    changed = old is None or old["status"] != value
    new["lastTransitionTime"] = (
        stamp() if changed or old is None else old.get("lastTransitionTime", stamp())
    )
    rows[:] = [row for row in rows if row["type"] != kind] + [new]
    return True


def condition(thing: dict, kind: str) -> dict:
    """A condition of a thing's that is true; {} if it is not."""
    rows = thing.get("status", {}).get("conditions") or []
    return next((row for row in rows if row["type"] == kind and row["status"] == "True"), {})

"""Changing pods and deleting objects of a cluster: what a client asks for as a condition, and what may
not change.
"""

from localcloud.kubernetes import checks
from localcloud.kubernetes.kinds import KINDS, Kind, Refusal
from localcloud.kubernetes.plane import Plane

KEPT: tuple[str, ...] = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "generation",
    "resourceVersion",
)
KEPT += ("deletionTimestamp", "deletionGracePeriodSeconds")


def replace(plane: Plane, thing: dict, new: dict, strict: bool) -> dict:
    """Put a changed pod in the place of an old one, if that may be."""
    kind = KINDS["pods"]
    checks.check_form(kind, new, strict)
    old, meta = thing["metadata"], new["metadata"]
    for key in ("uid", "resourceVersion"):  # a condition of the client's
        if meta.get(key) != old[key]:
            message = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(kind, thing, message)
    meta.update({key: old[key] for key in KEPT if key in old})
    checks.check_meaning("pods", new)
    if new["spec"] != thing["spec"]:
        message = "pod updates of the embedded cloud may change its metadata alone"
        checks.refuse(kind, old["name"], [f"spec: Forbidden: {message}"])
    thing["metadata"] = meta  # in place: its controllers hold the pod
    plane.store.put("pods", thing)
    plane.finish_pod(thing)
    return thing


def conflict(kind: Kind, thing: dict, detail: str) -> Refusal:
    name = thing["metadata"]["name"]
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {detail}'
    return Refusal(409, "Conflict", message, name=name, group=kind.group, kind=kind.plural)


def delete(plane: Plane, kind: Kind, thing: dict, options: dict) -> None:
    uid = thing["metadata"]["uid"]
    asked = (options.get("preconditions") or {}).get("uid", uid)
    if asked != uid:
        message = f"Precondition failed: UID in precondition: {asked}, UID in object meta: {uid}"
        raise conflict(kind, thing, message)
    if options.keys() - {"kind", "apiVersion", "preconditions", "propagationPolicy"}:
        raise Refusal(501, "NotImplemented", "the embedded cloud deletes with preconditions alone")
    if options.get("propagationPolicy", "Background") != "Background":
        raise Refusal(501, "NotImplemented", "the embedded cloud deletes in the Background alone")
    plane.delete(kind.plural, thing)

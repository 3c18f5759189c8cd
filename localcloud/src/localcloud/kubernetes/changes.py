"""Changing and deleting objects of a cluster: what a client asks for as a condition, and what may
not change.
"""

from typing import Any

from localcloud.kubernetes import checks, defaults, job_checks
from localcloud.kubernetes.kinds import Kind, Refusal, is_leaving
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
# Of a pod's spec; of images, which Kubernetes lets change, Berg's pods do not make use.
MAY_CHANGE = ("activeDeadlineSeconds", "tolerations")


def replace(plane: Plane, kind: Kind, thing: dict, new: Any, strict: bool, dry: bool) -> dict:
    """Put a changed object in the place of an old one, if that may be."""
    checks.check_form(kind, new, strict)
    old, meta = thing["metadata"], new.setdefault("metadata", {})
    for key in ("uid", "resourceVersion"):  # a condition of the client's
        if meta.get(key, old[key]) != old[key]:
            message = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(kind, thing, message)
    meta.update({key: old[key] for key in KEPT if key in old})
    if "status" in thing:
        new["status"] = thing["status"]
    new.update(kind=kind.name, apiVersion=kind.api)
    checks.check_meaning(kind.plural, new)
    defaults.complete(kind.plural, new)
    check_unchanged(kind, thing, new)
    if kind.counted and new.get("spec") != thing.get("spec"):
        meta["generation"] = old.get("generation", 1) + 1
    if dry:
        return new
    if kind.plural == "pods":
        new["spec"]["containers"] = thing["spec"]["containers"]  # the kubelet holds them
    thing.clear()  # in place: its controllers hold it
    thing.update(new)
    plane.store.put(kind.plural, thing)
    if is_leaving(thing) and not meta.get("finalizers") and kind.plural != "pods":
        plane.store.put(kind.plural, thing, "DELETED")
    elif kind.plural == "pods":
        plane.finish_pod(thing)
    return thing


def conflict(kind: Kind, thing: dict, detail: str) -> Refusal:
    name = thing["metadata"]["name"]
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {detail}'
    return Refusal(409, "Conflict", message, name=name, group=kind.group, kind=kind.plural)


def check_unchanged(kind: Kind, old: dict, new: dict) -> None:
    """What of an object may not change."""
    name, before, after = old["metadata"]["name"], old.get("spec") or {}, new.get("spec") or {}
    if kind.plural == "jobs" and (bad := job_checks.change_errors(old, new)):
        checks.refuse(kind, name, bad)
    if kind.plural == "pods":
        differing = {key for key in {*before, *after} if before.get(key) != after.get(key)}
        if differing - {*MAY_CHANGE}:
            message = "pod updates may not change fields other than "
            message += ",".join(f"`spec.{key}`" for key in MAY_CHANGE)
            checks.refuse(kind, name, [f"spec: Forbidden: {message}"])


def delete(plane: Plane, kind: Kind, thing: dict, options: dict) -> None:
    uid = thing["metadata"]["uid"]
    asked = (options.get("preconditions") or {}).get("uid", uid)
    if asked != uid:
        message = f"Precondition failed: UID in precondition: {asked}, UID in object meta: {uid}"
        raise conflict(kind, thing, message)
    grace = options.get("gracePeriodSeconds")
    policy = options.get("propagationPolicy") or ""
    if not options.get("dryRun"):
        plane.delete(kind.plural, thing, policy, None if grace is None else int(grace))

"""Changing and deleting objects of a cluster: what a client asks for as a condition, and what may
not change.
"""

from typing import Any

from localcloud.kubernetes import checks, defaults, job_checks
from localcloud.kubernetes.kinds import Kind, Refusal, is_leaving
from localcloud.kubernetes.plane import NAMESPACES, Plane
from localcloud.kubernetes.words import invalid

# Of a pod's spec; of images, which Kubernetes lets change, Berg's pods do not make use.
MAY_CHANGE = ("activeDeadlineSeconds", "tolerations")


def replace(
    plane: Plane, kind: Kind, thing: dict, new: Any, sub: str, strict: bool, dry: bool
) -> dict:
    """Put a changed object in the place of an old one, if that may be."""
    checks.check_form(kind, new, strict)
    old, meta = thing["metadata"], new.setdefault("metadata", {})
    name = old["name"]
    check_names(old, meta)
    asked = meta.get("resourceVersion") or old["resourceVersion"]
    if not asked.isdecimal():
        why = f'strconv.ParseUint: parsing "{asked}": invalid syntax'
        checks.refuse(kind, name, [f'metadata.resourceVersion: Invalid value: "{asked}": {why}'])
    if asked != old["resourceVersion"]:
        message = "the object has been modified; please apply your changes to the latest version and try again"
        raise conflict(kind, thing, message)
    kept = (
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    )
    meta.update(
        {key: old[key] for key in kept if key in old}, resourceVersion=old["resourceVersion"]
    )
    if sub == "status":
        new = {**thing, "status": new.get("status", {})}
        meta = new["metadata"]
    elif "status" in thing:
        new["status"] = thing["status"]
    new.update(kind=kind.name, apiVersion=kind.api)
    keep_address(kind, thing, new)
    checks.check_meaning(kind.plural, new)
    defaults.complete(kind.plural, new)
    check_unchanged(kind, thing, new)
    if kind.plural == "jobs" and plane.has_kueue:
        job_checks.check_queue(new, thing)
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


def check_names(old: dict, meta: dict) -> None:
    """Raise the refusal of an object that is not the one of its request's path."""
    name, own = old["name"], meta.get("name")
    if not own:
        message = f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
    elif own != name:
        message = f"the name of the object ({own}) does not match the name on the URL ({name})"
    elif (meta.get("namespace") or old.get("namespace")) != old.get("namespace"):
        message = (
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    else:
        return
    raise Refusal(400, "BadRequest", message)


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
    check_kept(kind, name, old, new)


def keep_address(kind: Kind, old: dict, new: dict) -> None:
    """Give a service the address that it has, where a change says nothing of it."""
    if kind.plural == "services" and isinstance(new.get("spec"), dict):
        for key in ("clusterIP", "clusterIPs"):
            if not new["spec"].get(key) and key in old["spec"]:
                new["spec"][key] = old["spec"][key]


def check_kept(kind: Kind, name: str, old: dict, new: dict) -> None:
    """What of objects other than jobs and pods may not change."""
    bad: list[str] = []
    before, after = old.get("spec") or {}, new.get("spec") or {}
    is_set = kind.plural in ("deployments", "replicasets")
    if is_set and before.get("selector") != after.get("selector"):
        bad.append(invalid("spec.selector", after.get("selector"), "field is immutable"))
    own = before.get("clusterIP")
    if kind.plural == "services" and own and after.get("clusterIP") != own:
        message = "may not change once set"
        bad.append(invalid("spec.clusterIPs[0]", after.get("clusterIPs"), message))
    if kind.plural == "localqueues" and before.get("clusterQueue") != after.get("clusterQueue"):
        bad.append(invalid("spec.clusterQueue", after.get("clusterQueue"), "field is immutable"))
    if bad:
        checks.refuse(kind, name, bad)


def policy_of(options: dict) -> str:
    """Return the propagation policy that a deletion asks for; "" if it asks for none."""
    policy, orphan = options.get("propagationPolicy") or "", options.get("orphanDependents")
    bad = []
    if policy and orphan is not None:
        message = "orphanDependents and deletionPropagation cannot be both set"
        bad.append(f'propagationPolicy: Invalid value: "{policy}": {message}')
    if policy not in ("", "Orphan", "Background", "Foreground"):
        supported = '"Foreground", "Background", "Orphan", "nil"'
        message = f'Unsupported value: "{policy}": supported values: {supported}'
        bad.append(f"propagationPolicy: {message}")
    if bad:
        checks.refuse_as("DeleteOptions", "meta.k8s.io", "", bad)
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    return str(policy)


def delete(plane: Plane, kind: Kind, thing: dict, options: dict) -> None:
    policy = policy_of(options)
    if kind.plural == "namespaces" and thing["metadata"]["name"] in NAMESPACES:
        name = thing["metadata"]["name"]
        message = f'namespaces "{name}" is forbidden: this namespace may not be deleted'
        raise Refusal(403, "Forbidden", message, name=name, kind=kind.plural)
    grace = options.get("gracePeriodSeconds")
    if not options.get("dryRun"):
        plane.delete(kind.plural, thing, policy, None if grace is None else int(grace))

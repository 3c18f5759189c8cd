"""Changing and deleting objects of a cluster: what a client asks for as a condition, and what may
not change.
"""

import json
from typing import Any

from localcloud.kubernetes import checks, defaults, job_checks, kueue_checks
from localcloud.kubernetes.kinds import Kind, Refusal, is_leaving
from localcloud.kubernetes.plane import NAMESPACES, Plane
from localcloud.kubernetes.words import in_go, invalid

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
    check_uid(kind, thing, meta.get("uid"))
    asked = meta.get("resourceVersion") or old["resourceVersion"]
    if not asked.isdecimal():
        why = f'strconv.ParseUint: parsing "{asked}": invalid syntax'
        checks.refuse(kind, name, [f'metadata.resourceVersion: Invalid value: "{asked}": {why}'])
    if asked != old["resourceVersion"]:
        told = "the object has been modified; please apply your changes to the latest version and try again"
        raise conflict(kind, thing, told)
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
    check_finalizers(kind, old, meta)
    checks.check_meaning(kind.plural, new)
    defaults.complete(kind.plural, new)
    check_unchanged(kind, thing, new)
    if kind.plural == "jobs" and plane.has_kueue:
        kueue_checks.check_job(new, thing)
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
        told = f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
    elif own != name:
        told = f"the name of the object ({own}) does not match the name on the URL ({name})"
    elif (meta.get("namespace") or old.get("namespace")) != old.get("namespace"):
        told = (
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    else:
        return
    raise Refusal(400, "BadRequest", told)


def check_finalizers(kind: Kind, old: dict, meta: dict) -> None:
    """Raise the refusal of more finalizers for what is being deleted."""
    more = sorted({*(meta.get("finalizers") or [])} - {*(old.get("finalizers") or [])})
    if more and old.get("deletionTimestamp"):
        told = "no new finalizers can be added if the object is being deleted, found new "
        told += "finalizers []string{" + ", ".join(map(json.dumps, more)) + "}"
        checks.refuse(kind, old["name"], [f"metadata.finalizers: Forbidden: {told}"])


def conflict(kind: Kind, thing: dict, told: str) -> Refusal:
    name = thing["metadata"]["name"]
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {told}'
    return Refusal(409, "Conflict", message, name=name, group=kind.group, kind=kind.plural)


# Kind -> where etcd has its objects, if under another name.
KEPT_UNDER = {
    **{"services": "services/specs", "endpoints": "services/endpoints", "nodes": "minions"},
    **{"events": "events", "endpointslices": "endpointslices"},
}


def check_uid(kind: Kind, thing: dict, wanted: str | None) -> None:
    """Raise the refusal of a change that is meant for an object of the same name before this one."""
    meta = thing["metadata"]
    if not wanted or wanted == meta["uid"]:
        return
    folder = KEPT_UNDER.get(kind.plural, kind.plural)
    key = "/".join(["/registry", folder, *filter(None, [meta.get("namespace")]), meta["name"]])
    told = f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, "
    told += "AdditionalErrorMsg: Precondition failed: "
    told += f"UID in precondition: {wanted}, UID in object meta: {meta['uid']}"
    raise conflict(kind, thing, told)


def check_preconditions(kind: Kind, thing: dict, wanted: dict) -> None:
    """Raise the refusal of a deletion that is meant for another object, or for it as it was."""
    meta, name = thing["metadata"], thing["metadata"]["name"]
    told = ""
    if (uid := wanted.get("uid")) is not None and uid != meta["uid"]:
        told = f"the UID in the precondition ({uid}) does not match the UID in record "
        told += f"({meta['uid']}). The object might have been deleted and then recreated"
    version, there = wanted.get("resourceVersion"), meta["resourceVersion"]
    if not told and version is not None and version != there:
        told = f"the ResourceVersion in the precondition ({version}) does not match the "
        told += f"ResourceVersion in record ({there}). The object might have been modified"
    if told:
        shown = f"{kind.name}.{kind.group}".rstrip(".")
        message = f'Operation cannot be fulfilled on {shown} "{name}": {told}'
        raise Refusal(409, "Conflict", message, name=name, group=kind.group, kind=kind.name)


def check_unchanged(kind: Kind, old: dict, new: dict) -> None:
    """What of an object may not change."""
    name, before, after = old["metadata"]["name"], old.get("spec") or {}, new.get("spec") or {}
    if kind.plural == "jobs" and (bad := job_checks.change_errors(old, new)):
        checks.refuse(kind, name, bad)
    if kind.plural == "pods":
        differing = {key for key in {*before, *after} if before.get(key) != after.get(key)}
        if differing - {*MAY_CHANGE}:
            told = "pod updates may not change fields other than "
            told += ",".join(f"`spec.{key}`" for key in MAY_CHANGE)
            checks.refuse(kind, name, [f"spec: Forbidden: {told}"])
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
    if kind.plural in ("configmaps", "secrets") and old.get("immutable"):
        told = "Forbidden: field is immutable when `immutable` is set"
        keys = [key for key in ("data", "binaryData") if old.get(key) != new.get(key)]
        bad += [
            f"{key}: {told}" for key in (*keys, *([] if new.get("immutable") else ["immutable"]))
        ]
    types = [each.get("type") or "Opaque" for each in (old, new)]
    if kind.plural == "secrets" and types[0] != types[1]:
        bad.append(invalid("type", types[1], "field is immutable"))
    if kind.plural.endswith("rolebindings") and reference_of(old) != reference_of(new):
        shown = in_go(("APIGroup", "Kind", "Name"), new.get("roleRef") or {})
        shown["APIGroup"] = (new.get("roleRef") or {}).get("apiGroup") or kind.group
        bad.append(invalid("roleRef", shown, "cannot change roleRef"))
    is_set = kind.plural in ("deployments", "replicasets")
    if is_set and before.get("selector") != after.get("selector"):
        bad.append(invalid("spec.selector", after.get("selector"), "field is immutable"))
    own = before.get("clusterIP")
    if kind.plural == "services" and own and after.get("clusterIP") != own:
        told = "may not change once set"
        bad.append(invalid("spec.clusterIPs[0]", after.get("clusterIPs"), told))
    if kind.plural == "localqueues" and before.get("clusterQueue") != after.get("clusterQueue"):
        bad.append(invalid("spec.clusterQueue", after.get("clusterQueue"), "field is immutable"))
    if bad:
        checks.refuse(kind, name, bad)


def reference_of(binding: dict) -> tuple:
    role = binding.get("roleRef") or {}
    return role.get("kind"), role.get("name")


def policy_of(options: dict) -> str:
    """Return the propagation policy that a deletion asks for; "" if it asks for none."""
    policy, orphan = options.get("propagationPolicy") or "", options.get("orphanDependents")
    bad = []
    if policy and orphan is not None:
        told = "orphanDependents and deletionPropagation cannot be both set"
        bad.append(f'propagationPolicy: Invalid value: "{policy}": {told}')
    if policy not in ("", "Orphan", "Background", "Foreground"):
        supported = '"Foreground", "Background", "Orphan", "nil"'
        told = f'Unsupported value: "{policy}": supported values: {supported}'
        bad.append(f"propagationPolicy: {told}")
    if bad:
        checks.refuse_as("DeleteOptions", "meta.k8s.io", "", bad)
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    return str(policy)


def warnings(kind: Kind, options: dict) -> list[str]:
    """What a deletion that does not say what becomes of pods is warned of."""
    if (
        kind.plural != "jobs"
        or "propagationPolicy" in options
        or options.get("orphanDependents") is not None
    ):
        return []
    return [
        "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background "
        "to remove them or set propagationPolicy=Orphan to suppress this warning"
    ]


def delete(plane: Plane, kind: Kind, thing: dict, options: dict) -> None:
    policy = policy_of(options)
    if kind.plural == "namespaces" and thing["metadata"]["name"] in NAMESPACES:
        name = thing["metadata"]["name"]
        told = f'namespaces "{name}" is forbidden: this namespace may not be deleted'
        raise Refusal(403, "Forbidden", told, name=name, kind=kind.plural)
    check_preconditions(kind, thing, options.get("preconditions") or {})
    grace = options.get("gracePeriodSeconds")
    if not options.get("dryRun"):
        plane.delete(kind.plural, thing, policy, None if grace is None else int(grace))

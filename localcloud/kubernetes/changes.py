"""Changing and deleting objects of a cluster: what a client asks for as a condition, and what may
not change.
"""

import json
from typing import Any

from localcloud.kubernetes import checks, defaults, kueue_checks
from localcloud.kubernetes.kinds import Kind, Refusal, is_leaving
from localcloud.kubernetes.plane import NAMESPACES, Plane
from localcloud.kubernetes.policy_checks import PRIORITIES
from localcloud.kubernetes.words import in_go, invalid

# Of a pod in a job that has not begun: what may change.
CONDITIONAL = ("leases", "poddisruptionbudgets")  # which are changed as of a version alone
PLACING = ("nodeSelector", "affinity", "tolerations", "schedulingGates")


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
    if not meta.get("resourceVersion") and kind.plural in CONDITIONAL:
        told = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        checks.refuse_as(kind.plural, kind.group, name, [told])
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


def add_containers(plane: Plane, kind: Kind, pod: dict, new: dict, dry: bool) -> dict:
    """Let a pod have more ephemeral containers, which is all that this method changes."""
    checks.check_form(kind, new, False)
    defaults.complete(kind.plural, new)
    old = pod["spec"].get("ephemeralContainers") or []
    rows = (new.get("spec") or {}).get("ephemeralContainers") or []
    more = [row for row in rows if row not in old]
    path, names = "spec.ephemeralContainers", [row["name"] for row in pod["spec"]["containers"]]
    bad = []
    if any(row not in rows for row in old):
        bad.append(f"{path}: Forbidden: existing ephemeral containers may not be changed")
    for at, row in enumerate(more, len(old)):
        if row["name"] in names:
            bad.append(f'{path}[{at}].name: Duplicate value: "{row["name"]}"')
        if not row.get("image"):
            bad.append(f"{path}[{at}].image: Required value")
    if bad:
        checks.refuse(kind, pod["metadata"]["name"], bad)
    if not dry:
        pod["spec"]["ephemeralContainers"] = [*old, *more]
        plane.store.put(kind.plural, pod)
    return pod


def conflict(kind: Kind, thing: dict, told: str) -> Refusal:
    name = thing["metadata"]["name"]
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {told}'
    return Refusal(409, "Conflict", message, name=name, group=kind.group, kind=kind.plural)


# Kind -> where etcd has its objects, if under another name.
KEPT_UNDER = {
    **{"services": "services/specs", "endpoints": "services/endpoints", "nodes": "minions"},
    **{"events": "events", "endpointslices": "endpointslices", "leases": "leases"},
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
    if kind.plural == "jobs":
        for key in (
            "template",
            "completions",
            "selector",
            "podFailurePolicy",
            "successPolicy",
            "completionMode",
            "managedBy",
            "backoffLimitPerIndex",
        ):
            elastic = key == "completions" and after.get(key) == after.get("parallelism")
            waits = before.get("suspend") and not old["status"].get("startTime")
            scheduled = key == "template" and waits and differ_in_placing(before, after)
            if before.get(key) != after.get(key) and not elastic and not scheduled:
                value = (
                    "null"
                    if key not in after
                    else json.dumps(after[key], separators=(",", ":"))[:200]
                )
                checks.refuse(
                    kind, name, [f"spec.{key}: Invalid value: {value}: field is immutable"]
                )
    if kind.plural == "pods" and (bad := pod_errors(before, after)):
        checks.refuse(kind, name, bad)
    check_kept(kind, name, old, new)


def pod_errors(before: dict, after: dict) -> list[str]:
    """What of a pod's change may not be."""
    key, bad = "activeDeadlineSeconds", []
    was, deadline = before.get(key), after.get(key)
    if was is not None and deadline is None:
        told = "must not update from a positive integer to nil value"
        return [f"spec.{key}: Invalid value: null: {told}"]
    if was is not None and was < deadline:
        return [invalid(f"spec.{key}", deadline, "must be less than or equal to previous value")]
    lasting = [timeless(each) for each in after.get("tolerations") or []]
    if any(timeless(each) not in lasting for each in before.get("tolerations") or []):
        told = "existing toleration can not be modified except its tolerationSeconds"
        bad.append(f"spec.tolerations: Forbidden: {told}")
    changed = {each for each in {*before, *after} if before.get(each) != after.get(each)}
    grace = [spec.get("terminationGracePeriodSeconds") for spec in (before, after)]
    if changed - {key, "tolerations", *mended_grace(grace[0], grace[1])}:
        told = "pod updates may not change fields other than `spec.containers[*].image`,"
        told += "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
        told += "`spec.tolerations` (only additions to existing tolerations),"
        told += "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
        bad.append(f"spec: Forbidden: {told}")
    return bad


def timeless(toleration: dict) -> dict:
    """A toleration without how long it holds, which may change."""
    return {key: each for key, each in toleration.items() if key != "tolerationSeconds"}


def differ_in_placing(before: dict, after: dict) -> bool:
    """Whether two specs of a job differ at most in where their pods may be placed, and what these
    ask for: all that may change before a job begins.
    """
    return unplaced(before["template"]) == unplaced(after.get("template") or {})


def unplaced(template: dict) -> dict:
    """A pod's template without its labels, and without what decides where it goes."""
    pod = {key: each for key, each in (template.get("spec") or {}).items() if key not in PLACING}
    for kind in ("containers", "initContainers"):
        rows = pod.get(kind) or []
        pod[kind] = [{k: v for k, v in row.items() if k != "resources"} for row in rows]
    return pod


def mended_grace(before: int | None, after: int | None) -> set[str]:
    """A negative grace may become 1, and no other may change."""
    mended = before is not None and before < 0 and after == 1
    return {"terminationGracePeriodSeconds"} if mended else set()


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
    if kind.plural == "priorityclasses":
        if old.get("value", 0) != new.get("value", 0):
            bad.append("value: Forbidden: may not be changed in an update.")
        usual = "PreemptLowerPriority"
        policies = [each.get("preemptionPolicy") or usual for each in (old, new)]
        if policies[0] != policies[1]:
            bad.append(invalid("preemptionPolicy", policies[1], "field is immutable"))
    if kind.plural == "nodes" and before.get("providerID") not in (None, after.get("providerID")):
        told = 'node updates may not change providerID except from "" to valid'
        bad.append(f"spec.providerID: Forbidden: {told}")
    if kind.plural == "resourcequotas":
        scopes = [each.get("scopes") or [] for each in (before, after)]
        if {*scopes[0]} != {*scopes[1]}:
            bad.append(invalid("spec.scopes", after.get("scopes"), "field is immutable"))
    if kind.plural == "persistentvolumeclaims" and may_not_become(old, before, after):
        told = "spec is immutable after creation except resources.requests and "
        told += "volumeAttributesClassName for bound claims"
        bad.append(f"spec: Forbidden: {told}")
    if bad:
        checks.refuse(kind, name, bad)


def reference_of(binding: dict) -> tuple:
    role = binding.get("roleRef") or {}
    return role.get("kind"), role.get("name")


def may_not_become(claim: dict, before: dict, after: dict) -> bool:
    """Whether a claim of a disk is changed in more than its volume's name, which it gets once, and
    the size of a disk that it has.
    """
    free = {"volumeName"} if not before.get("volumeName") else set()
    if (claim.get("status") or {}).get("phase") == "Bound":
        free |= {"resources", "volumeAttributesClassName"}
    kept = {*before, *after} - free
    return any(before.get(key) != after.get(key) for key in kept)


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
    if kind.plural == "priorityclasses" and thing["metadata"]["name"] in PRIORITIES:
        name = thing["metadata"]["name"]
        told = f'{kind.resource} "{name}" is forbidden: this is a system priority class and cannot be deleted'
        about = {"name": name, "group": kind.group, "kind": kind.plural}
        raise Refusal(403, "Forbidden", told, **about)
    check_preconditions(kind, thing, options.get("preconditions") or {})
    grace = options.get("gracePeriodSeconds")
    if not options.get("dryRun"):
        plane.delete(kind.plural, thing, policy, None if grace is None else int(grace))

"""What of a pod may change, and to what: its spec, its ephemeral containers, its status.

The rules and words are those of pkg/apis/core/validation. What differs is shown as Kubernetes shows
it, as a difference of two texts; how Go prints the rest of a pod is not followed.
"""

from __future__ import annotations

import difflib
import json

from localcloud.kubernetes.container_checks import more_errors
from localcloud.kubernetes.pod_checks import container_errors
from localcloud.kubernetes.words import check_key, check_subdomain, invalid

MAY_CHANGE = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
IMAGES = ("containers", "initContainers")
NOT_VISITORS = (
    *("ports", "resources", "resizePolicy", "restartPolicy", "livenessProbe", "readinessProbe"),
    *("startupProbe", "lifecycle"),
)
OF_SYSTEM = ("PodScheduled", "Ready", "Initialized")


def difference(before: object, after: object) -> str:
    old, new = (json.dumps(each, indent=1, sort_keys=True).splitlines() for each in (before, after))
    found = list(difflib.unified_diff(old, new, lineterm="", n=3))
    return "".join(f"{line}\n" for line in found[2:])


def spec_errors(before: dict, after: dict) -> list[str]:
    """What of a pod's change may not be."""
    for kind in IMAGES:
        if len(before.get(kind) or []) != len(after.get(kind) or []):
            return [f"spec.{kind}: Forbidden: pod updates may not add or remove containers"]
    bad, key = list[str](), "activeDeadlineSeconds"
    was, deadline = before.get(key), after.get(key)
    if was is not None and deadline is None:
        told = "must not update from a positive integer to nil value"
        bad.append(f"spec.{key}: Invalid value: null: {told}")
    elif was is not None and was < deadline:
        return [invalid(f"spec.{key}", deadline, "must be less than or equal to previous value")]
    lasting = [timeless(each) for each in after.get("tolerations") or []]
    if any(timeless(each) not in lasting for each in before.get("tolerations") or []):
        told = "existing toleration can not be modified except its tolerationSeconds"
        bad.append(f"spec.tolerations: Forbidden: {told}")
    bad += gate_errors(before, after)
    kept = with_what_may_change(before, after)
    if before.get("schedulingGates"):
        bad += placing_errors(before, after)
        kept = unplaced(before, kept)
    if kept != before:
        bad.append(f"spec: Forbidden: {MAY_CHANGE}\n{difference(before, kept)}")
    return bad


def gate_errors(before: dict, after: dict) -> list[str]:
    old = [each["name"] for each in before.get("schedulingGates") or []]
    told = "only deletion is allowed, but found new scheduling gate"
    return [
        f"spec.schedulingGates[{number}].name: Forbidden: {told} '{each['name']}'"
        for number, each in enumerate(after.get("schedulingGates") or [])
        if each["name"] not in old
    ]


def with_what_may_change(before: dict, after: dict) -> dict:
    """A pod's new spec with all as it was that may change."""
    kept = dict(after)
    for kind in IMAGES:
        pairs = zip(before.get(kind) or [], after.get(kind) or [], strict=True)
        rows = [{**new, "image": old["image"]} for old, new in pairs]
        pulls = [each.get("imagePullPolicy") for each in before.get(kind) or []]
        for row, pull in zip(rows, pulls, strict=True):
            row.setdefault("imagePullPolicy", pull)
        kept |= {kind: rows} if kind in after else {}
    graces = [each.get("terminationGracePeriodSeconds") for each in (before, after)]
    mended = graces[0] is not None and graces[0] < 0 and graces[1] == 1
    free = ("activeDeadlineSeconds", "tolerations", "schedulingGates")
    for key in (*free, *(["terminationGracePeriodSeconds"] if mended else [])):
        kept.pop(key, None)
        kept |= {key: before[key]} if key in before else {}
    return kept


def placing_errors(before: dict, after: dict) -> list[str]:
    """Of where a pod may be that waits for its gates: that may only become narrower."""
    bad, old, new = [], before.get("nodeSelector") or {}, after.get("nodeSelector") or {}
    if any(new.get(key) != value for key, value in old.items()):
        told = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        bad.append(invalid("spec.nodeSelector", new, told))
    rows, path = [terms(before), terms(after)], f"spec.affinity.nodeAffinity.{REQUIRED}"
    if rows[0] and len(rows[0]) != len(rows[1]):
        told = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        return [*bad, invalid(f"{path}.nodeSelectorTerms", rows[1], told)]
    for number, (first, second) in enumerate(zip(*rows, strict=False)):
        if not adds(first, second):
            told = "only additions are allowed (no mutations or deletions)"
            bad.append(invalid(f"{path}.nodeSelectorTerms[{number}]", second, told))
    return bad


def terms(spec: dict) -> list[dict]:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED) or {}
    return required.get("nodeSelectorTerms") or []


def adds(first: dict, second: dict) -> bool:
    """Whether one term of a selector is the other, or begins with it."""
    if not first and second:
        return False
    for key in ("matchExpressions", "matchFields"):
        old, new = first.get(key) or [], second.get(key) or []
        if new[: len(old)] != old:
            return False
    return True


def unplaced(before: dict, kept: dict) -> dict:
    """A new spec with the old selector of nodes and the old affinity to nodes."""
    found = {key: each for key, each in kept.items() if key != "nodeSelector"}
    found |= {"nodeSelector": before["nodeSelector"]} if "nodeSelector" in before else {}
    old, new = before.get("affinity") or {}, dict(found.pop("affinity", None) or {})
    new.pop("nodeAffinity", None)
    new |= {"nodeAffinity": old["nodeAffinity"]} if "nodeAffinity" in old else {}
    return {**found, **({"affinity": new} if new or "affinity" in before else {})}


def timeless(toleration: dict) -> dict:
    """A toleration without how long it holds, which may change."""
    return {key: each for key, each in toleration.items() if key != "tolerationSeconds"}


def keep_containers(before: dict, after: dict) -> None:
    """Let containers stay the objects that they were, with their new images: who runs them holds
    them.
    """
    for kind in IMAGES:
        for old, new in zip(before.get(kind) or [], after.get(kind) or [], strict=True):
            old["image"] = new["image"]
        if kind in after and kind in before:
            after[kind] = before[kind]


# --- ephemeral containers


def visitor_errors(pod: dict, rows: list[dict]) -> list[str]:
    """Of ephemeral containers that a pod is to have."""
    spec, path, bad = pod["spec"], "spec.ephemeralContainers", list[str]()
    others = {each["name"] for kind in IMAGES for each in spec.get(kind) or []}
    volumes, seen = {each["name"] for each in spec.get("volumes") or []}, set(others)
    told = "cannot be set for an Ephemeral Container"
    for number, row in enumerate(rows):
        at, target = f"{path}[{number}]", row.get("targetContainerName")
        container_errors(row, at, volumes, bad)
        more_errors(spec, row, at, bad)
        image, name = row.get("image") or "", row.get("name", "")
        if image.strip() != image:
            words = "must not have leading or trailing whitespace"
            bad.append(invalid(f"{at}.image", image, words))
        if name in seen:
            bad.append(f'{at}.name: Duplicate value: "{name}"')
        seen.add(name)
        if target and target not in others:
            bad.append(f'{at}.targetContainerName: Not found: "{target}"')
        bad += [f"{at}.{key}: Forbidden: {told}" for key in NOT_VISITORS if row.get(key)]
        for place, mount in enumerate(row.get("volumeMounts") or []):
            for key in ("subPath", "subPathExpr"):
                if mount.get(key):
                    bad.append(f"{at}.volumeMounts[{place}].{key}: Forbidden: {told}")
    return bad


def lasting_errors(old: list[dict], rows: list[dict]) -> list[str]:
    """Of ephemeral containers that were there, and must stay as they are."""
    bad, there = [], {each["name"]: each for each in rows}
    for each in old:
        told = (
            f'spec.ephemeralContainers: Forbidden: existing ephemeral containers "{each["name"]}"'
        )
        if each["name"] not in there:
            bad.append(f"{told} may not be removed\n")
        elif there[each["name"]] != each:
            bad.append(f"{told} may not be changed\n{difference(each, there[each['name']])}")
    return bad


# --- status


def status_errors(before: dict, after: dict) -> list[str]:
    bad = list[str]()
    for number, row in enumerate(after.get("conditions") or []):
        if row.get("type") not in OF_SYSTEM:
            check_key(row.get("type") or "", f"status.conditions[{number}].Type", bad)
    node = after.get("nominatedNodeName")
    if node and node != before.get("nominatedNodeName"):
        check_subdomain(node, "status.nominatedNodeName", bad)
    if before.get("qosClass") != after.get("qosClass"):
        bad.append(invalid("status.qosClass", after.get("qosClass", ""), "field is immutable"))
    return bad

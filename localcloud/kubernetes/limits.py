"""Ranges of limits: what a namespace's pods get that ask for nothing, and how much they may ask for,
in Kubernetes' words.

Not covered: ranges of images and other kinds of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from localcloud.kubernetes.quantity import amount, canonical
from localcloud.kubernetes.store import Store

SET = "kubernetes.io/limit-ranger"  # annotation of a pod with what it got
Amounts = dict[str, object]


def apply(store: Store, plural: str, namespace: str, body: dict) -> str:
    """Give a new pod what it lacks; return what a pod or a claim of a disk asks for that it may
    not, "" for nothing.
    """
    ranges = [
        each
        for each in store.all("limitranges")
        if each["metadata"]["namespace"] == namespace
        and plural in ("pods", "persistentvolumeclaims")
    ]
    for each in sorted(ranges, key=lambda thing: thing["metadata"]["name"]):
        rows = each["spec"].get("limits") or []
        if plural == "pods":
            fill(body, rows)
        told = [*dict.fromkeys(why for row in rows for why in refusals(plural, row, body))]
        if told:
            return told[0] if len(told) == 1 else f"[{', '.join(told)}]"
    return ""


def fill(pod: dict, rows: list[dict]) -> None:
    """Give containers the usual limits and requests, and note that."""
    notes = []
    for container in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]:
        resources = container.setdefault("resources", {})
        for field, source in (("requests", "defaultRequest"), ("limits", "default")):
            usual: Amounts = {}
            for row in rows:
                usual |= (row.get(source) or {}) if row.get("type") == "Container" else {}
            missing = usual.keys() - (resources.get(field) or {}).keys()
            if missing:
                resources[field] = {**usual, **(resources.get(field) or {})}
                names = ", ".join(sorted(missing))
                notes.append(f"{names} {field[:-1]} for container {container['name']}")
    if notes:
        told = f"LimitRanger plugin set: {'; '.join(notes)}"
        pod["metadata"].setdefault("annotations", {})[SET] = told


def refusals(plural: str, row: dict, body: dict) -> Iterator[str]:
    """Yield what of a body one range does not allow."""
    kind = row.get("type", "")
    if plural == "persistentvolumeclaims" and kind == "PersistentVolumeClaim":
        yield from of_claim(row, body["spec"]["resources"]["requests"])
    if plural != "pods":
        return
    parts = [each.get("resources") or {} for each in body["spec"]["containers"]]
    if kind == "Pod":
        parts = [{field: total(parts, field) for field in ("requests", "limits")}]
    for part in parts if kind in ("Container", "Pod") else ():
        wanted, limits = part.get("requests") or {}, part.get("limits") or {}
        for field, check in CHECKS.items():
            for name, bound in (row.get(field) or {}).items():
                yield from check(kind, name, bound, wanted.get(name), limits.get(name))


def total(parts: list[dict], field: str) -> Amounts:
    """What several containers ask for together, of what each asks for."""
    rows = [part.get(field) or {} for part in parts]
    names = set.intersection(*(set(row) for row in rows)) if rows else set()
    return {name: sum(amount(row[name]) for row in rows) for name in names}


def of_claim(row: dict, wanted: Amounts) -> Iterator[str]:
    asked, about = wanted["storage"], "storage usage per PersistentVolumeClaim is"
    for field, word in (("min", "minimum"), ("max", "maximum")):
        bound = (row.get(field) or {}).get("storage")
        sign = 1 if field == "max" else -1
        if bound is not None and sign * amount(asked) > sign * amount(bound):
            yield f"{word} {about} {canonical(bound)}, but request is {canonical(asked)}"


def least(kind: str, name: str, bound: object, asked: object, limit: object) -> Iterator[str]:
    told = f"minimum {name} usage per {kind} is {canonical(bound)}"
    if asked is None:
        yield f"{told}.  No request is specified"
    elif amount(asked) < amount(bound):
        yield f"{told}, but request is {canonical(asked)}"
    elif limit is not None and amount(limit) < amount(bound):
        yield f"{told}, but limit is {canonical(limit)}"


def most(kind: str, name: str, bound: object, asked: object, limit: object) -> Iterator[str]:
    told = f"maximum {name} usage per {kind} is {canonical(bound)}"
    if limit is None:
        yield f"{told}.  No limit is specified"
    elif amount(limit) > amount(bound):
        yield f"{told}, but limit is {canonical(limit)}"
    elif asked is not None and amount(asked) > amount(bound):
        yield f"{told}, but request is {canonical(asked)}"


def ratio(kind: str, name: str, bound: object, asked: object, limit: object) -> Iterator[str]:
    told = f"{name} max limit to request ratio per {kind} is {canonical(bound)}, but"
    if not amount(asked or 0):
        yield f"{told} no request is specified or request is 0"
    elif not amount(limit or 0):
        yield f"{told} no limit is specified or limit is 0"
    elif amount(limit) / amount(asked) > amount(bound):
        yield f"{told} provided ratio is {amount(limit) / amount(asked):f}"


CHECKS: dict[str, Callable[..., Iterator[str]]] = {
    "min": least,
    "max": most,
    "maxLimitRequestRatio": ratio,
}

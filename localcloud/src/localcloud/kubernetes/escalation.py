"""Privilege escalation is refused: a caller cannot write roles and bindings that grant rights which it
lacks, as in pkg/registry/rbac. Google's permissions `escalate` and `bind` allow it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from localcloud.call import Cloud
from localcloud.identity.tokens import Owner
from localcloud.kubernetes import rbac
from localcloud.kubernetes.kinds import KINDS, Kind, Refusal, not_found
from localcloud.kubernetes.plane import Plane

GROUP = "rbac.authorization.k8s.io"
SHOWN = {
    "apiGroups": "APIGroups",
    "resources": "Resources",
    "resourceNames": "ResourceNames",
    "verbs": "Verbs",
}
OF_OWNERS = ("ownerReferences", "finalizers", "resourceVersion", "managedFields", "generation")


def check(cloud: Cloud, plane: Plane, owner: Owner, kind: Kind, namespace: str, body: dict) -> None:
    """Raise the refusal of a role or a binding that gives more than its writer has."""
    if kind.group != GROUP:
        return
    name = (body.get("metadata") or {}).get("name", "")
    if kind.plural in ("roles", "clusterroles"):
        if not rbac.may(cloud, plane, owner, "escalate", GROUP, kind.plural, namespace, name):
            refuse_more(plane, owner, kind, namespace, name, body.get("rules") or [])
        return
    reference = body.get("roleRef") or {}
    is_everywhere = reference.get("kind") == "ClusterRole"
    plural, wanted = "clusterroles" if is_everywhere else "roles", reference.get("name", "")
    if not rbac.may(cloud, plane, owner, "bind", GROUP, plural, namespace, wanted):
        role = plane.store.get(plural, "" if is_everywhere else namespace, wanted)
        usual = rbac.ROLES.get(wanted) if is_everywhere else None
        if role is None and usual is None:
            raise not_found(KINDS[plural], wanted)
        rules = role.get("rules") if role is not None else usual
        refuse_more(plane, owner, kind, namespace, name, rules or [])


def stripped(thing: dict) -> dict:
    """Return an object without what the collection of garbage writes."""
    meta = {key: each for key, each in thing["metadata"].items() if key not in OF_OWNERS}
    return {**thing, "metadata": meta}


def refuse_more(
    plane: Plane, owner: Owner, kind: Kind, namespace: str, name: str, rules: list[dict]
) -> None:
    lacking = compact(missing([*rbac.rules_of(plane, owner, namespace)], rules))
    if lacking:
        groups = " ".join(json.dumps(each) for each in rbac.groups_of(plane, owner))
        message = (
            f'user "{owner.email}" (groups=[{groups}]) is attempting to grant RBAC permissions '
        )
        rows = "\n".join(sorted({*map(shown, lacking)}))
        raise forbidden(kind, name, f"{message}not currently held:\n{rows}")


def forbidden(kind: Kind, name: str, why: str) -> Refusal:
    message = f'{kind.resource} "{name}" is forbidden: {why}'
    return Refusal(403, "Forbidden", message, name=name, group=kind.group, kind=kind.plural)


def missing(own: list[dict], rules: list[dict]) -> Iterator[dict]:
    """The smallest parts of rules that no rule of one's own covers."""
    for rule in rules:
        for part in parts(rule):
            if not any(covers(each, part) for each in own):
                yield part


def parts(rule: dict) -> Iterator[dict]:
    """A rule as rules of one verb, one resource and one name."""
    verbs = rule.get("verbs") or []
    for group in rule.get("apiGroups") or []:
        for resource in rule.get("resources") or []:
            for verb in verbs:
                part = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
                names = rule.get("resourceNames") or []
                yield from ({**part, "resourceNames": [name]} for name in names)
                if not names:
                    yield part


def covers(own: dict, part: dict) -> bool:
    """Whether a rule gives all that a part of another gives."""
    for key in ("verbs", "apiGroups"):
        has = own.get(key) or []
        if "*" not in has and not {*part.get(key, [])} <= {*has}:
            return False
    names = own.get("resourceNames") or []
    if names and not ({*part.get("resourceNames", [])} & {*names}):
        return False
    for wanted in part.get("resources", []):
        _, slash, sub = wanted.partition("/")
        if not {wanted, "*", *([f"*/{sub}"] if slash else [])} & {*(own.get("resources") or [])}:
            return False
    return True


def compact(rules: Iterator[dict]) -> list[dict]:
    """Join the verbs of rules for one resource."""
    joined: dict[tuple, dict] = {}
    for rule in rules:
        key = (*rule.get("apiGroups", []), *rule.get("resources", []))
        key += tuple(rule.get("resourceNames", []))
        if key in joined:
            joined[key]["verbs"] = [*joined[key]["verbs"], *rule["verbs"]]
        else:
            joined[key] = dict(rule)
    return [*joined.values()]


def shown(rule: dict) -> str:
    rows = [
        f"{name}:[{' '.join(json.dumps(each) for each in rule[key])}]"
        for key, name in SHOWN.items()
        if rule.get(key)
    ]
    return f"{{{', '.join(rows)}}}"

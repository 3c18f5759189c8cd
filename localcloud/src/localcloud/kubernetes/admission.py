"""Admission: what a cluster asks of new objects beyond that they are well formed.

Pods need their service account, and room in the resource quotas of their namespace; other objects
count in quotas, too.
The rules of Kubernetes Engine for pods with TPUs are in tpus.py.

Not covered: scopes of quotas, webhooks, PodSecurity.
"""

from __future__ import annotations

from localcloud.kubernetes import tpus
from localcloud.kubernetes.kinds import KINDS, Refusal, is_over
from localcloud.kubernetes.quantity import amount
from localcloud.kubernetes.store import Store

COMPUTE = ("cpu", "memory", "ephemeral-storage")


def check(store: Store, plural: str, namespace: str, body: dict) -> None:
    """Raise Kubernetes' refusal if a new object is not admitted; tell workers of TPUs who they are."""
    tpus.check(plural, body)
    if plural == "pods":
        tpus.tell(body)
        check_account(store, namespace, body)
    for quota in store.all("resourcequotas"):
        if quota["metadata"]["namespace"] == namespace and plural != "resourcequotas":
            check_quota(store, quota, plural, body)


def forbidden(plural: str, body: dict, why: str) -> Refusal:
    name = body["metadata"].get("name", "")
    message = f'{KINDS[plural].resource} "{name}" is forbidden: {why}'
    return Refusal(403, "Forbidden", message, name=name, group=KINDS[plural].group, kind=plural)


def check_account(store: Store, namespace: str, pod: dict) -> None:
    name = pod["spec"]["serviceAccountName"]
    if store.get("serviceaccounts", namespace, name) is None:
        message = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
        raise forbidden("pods", pod, message)


def check_quota(store: Store, quota: dict, plural: str, body: dict) -> None:
    """Raise the refusal of an object for which a quota has no room."""
    hard, name = quota["spec"].get("hard") or {}, quota["metadata"]["name"]
    wanted = {key: value for key, value in usage(plural, body).items() if key in hard}
    if plural == "pods":
        check_said(hard, name, body)
    used = in_use(store, quota)
    over = [
        key for key in sorted(wanted) if wanted[key] and used[key] + wanted[key] > amount(hard[key])
    ]
    if over:
        parts = [
            f"{what}: {','.join(f'{key}={text(key, rows[key])}' for key in over)}"
            for what, rows in (("requested", wanted), ("used", used))
        ]
        limited = ",".join(f"{key}={hard[key]}" for key in over)
        message = f"exceeded quota: {name}, {', '.join(parts)}, limited: {limited}"
        raise forbidden(plural, body, message)


def check_said(hard: dict, name: str, pod: dict) -> None:
    """Raise the refusal of a pod that does not say how much it takes of what a quota limits."""
    missing = []
    for key in sorted(hard):
        kind, _, what = key.rpartition(".")
        if what not in COMPUTE or kind not in ("", "requests", "limits"):
            continue
        rows = pod["spec"]["containers"]
        silent = [
            row["name"]
            for row in rows
            if what not in ((row.get("resources") or {}).get(kind or "requests") or {})
        ]
        if silent:
            missing.append(f"{key} for: {','.join(silent)}")
    if missing:
        raise forbidden("pods", pod, f"failed quota: {name}: must specify {'; '.join(missing)}")


def usage(plural: str, body: dict) -> dict[str, float]:
    """How much an object takes of everything that a quota may limit."""
    found: dict[str, float] = {plural: 1, f"count/{KINDS[plural].resource}": 1}
    if plural != "pods":
        return found
    for row in body["spec"]["containers"]:
        for kind in ("requests", "limits"):
            for name, quantity in ((row.get("resources") or {}).get(kind) or {}).items():
                key = f"{kind}.{name}"
                found[key] = found.get(key, 0) + amount(quantity)
    for name in COMPUTE:
        found[name] = found.get(f"requests.{name}", 0)
    return found


def in_use(store: Store, quota: dict) -> dict[str, float]:
    """How much of what a quota limits its namespace uses; pods that are over use nothing."""
    hard, namespace = quota["spec"].get("hard") or {}, quota["metadata"]["namespace"]
    total = dict.fromkeys(hard, 0.0)
    for plural in KINDS:
        for each in store.all(plural):
            if each["metadata"].get("namespace") != namespace or (
                plural == "pods" and is_over(each)
            ):
                continue
            for key, number in usage(plural, each).items():
                if key in total:
                    total[key] += number
    return total


def text(key: str, number: float) -> str:
    """An amount as Kubernetes writes it: processors in thousandths where they are no whole ones."""
    return str(int(number)) if number == int(number) else f"{number * 1000:.0f}m"


def count(store: Store) -> None:
    """Write into quotas how much of them is used."""
    for quota in store.all("resourcequotas"):
        hard = quota["spec"].get("hard") or {}
        used = {key: text(key, number) for key, number in in_use(store, quota).items()}
        quota["status"] = {"hard": hard, "used": used}
        store.put("resourcequotas", quota)

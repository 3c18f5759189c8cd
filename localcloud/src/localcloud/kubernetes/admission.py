"""Admission: what a cluster asks of new objects beyond that they are well formed.

Pods need their service account, what the namespace's label `pod-security.kubernetes.io/enforce` demands, and room in the resource quotas of their namespace; other objects count in quotas, too.
The rules of Kubernetes Engine for pods with TPUs are in tpus.py.

Not covered: scopes of quotas, webhooks, defaults and exemptions of PodSecurity.
"""

from __future__ import annotations

from collections.abc import Iterator

from localcloud.kubernetes import tpus
from localcloud.kubernetes.defaults import quality_of
from localcloud.kubernetes.kinds import KINDS, Refusal, is_over
from localcloud.kubernetes.quantity import amount
from localcloud.kubernetes.store import Store

LABEL = "pod-security.kubernetes.io/"
RESTRICTED, BASELINE = "restricted", "baseline"
# Capabilities that the level baseline lets containers add.
USUAL = {
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
}
COMPUTE = ("cpu", "memory", "ephemeral-storage")


def check(store: Store, plural: str, namespace: str, body: dict) -> None:
    """Raise Kubernetes' refusal if a new object is not admitted; tell workers of TPUs who they are."""
    tpus.check(plural, body)
    if plural == "pods":
        tpus.tell(body)
        check_account(store, namespace, body)
        body["status"]["qosClass"] = quality_of(body["spec"])
        check_security(store, namespace, body)
    check_quotas(store, plural, namespace, body)


def forbidden(plural: str, body: dict, why: str) -> Refusal:
    name = body["metadata"].get("name", "")
    message = f'{KINDS[plural].resource} "{name}" is forbidden: {why}'
    return Refusal(403, "Forbidden", message, name=name, group=KINDS[plural].group, kind=plural)


def check_account(store: Store, namespace: str, pod: dict) -> None:
    name = pod["spec"]["serviceAccountName"]
    if store.get("serviceaccounts", namespace, name) is None:
        message = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
        raise forbidden("pods", pod, message)


# --- PodSecurity


def level_of(store: Store, namespace: str, mode: str) -> tuple[str, str]:
    """The level that a namespace has for a mode, such as enforce, and its version."""
    found = store.get("namespaces", "", namespace) or {"metadata": {}}
    labels = found["metadata"].get("labels") or {}
    version = labels.get(f"{LABEL}{mode}-version", "latest")
    return labels.get(f"{LABEL}{mode}", "privileged"), version


def check_security(store: Store, namespace: str, pod: dict) -> None:
    level, version = level_of(store, namespace, "enforce")
    if bad := violations(level, pod["spec"]):
        raise forbidden("pods", pod, f'violates PodSecurity "{level}:{version}": {", ".join(bad)}')


def violations(level: str, spec: dict) -> list[str]:
    """What a pod's spec has that a level forbids, in Kubernetes' words."""
    if level not in (BASELINE, RESTRICTED):
        return []
    is_strict = level == RESTRICTED
    rows = [
        *(escalation(spec) if is_strict else []),
        *capabilities(spec, is_strict),
        *host(spec),
        *(not_root(spec) if is_strict else []),
        *(seccomp(spec) if is_strict else []),
    ]
    return list(rows)


def containers(spec: dict) -> list[tuple[str, dict]]:
    """Names and security contexts of a pod's containers."""
    rows = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    return [(row.get("name", ""), row.get("securityContext") or {}) for row in rows]


def several(names: list[str]) -> str:
    """Containers as PodSecurity names them."""
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"container {quoted}" if len(names) == 1 else f"containers {quoted}"


def escalation(spec: dict) -> Iterator[str]:
    bad = [n for n, has in containers(spec) if has.get("allowPrivilegeEscalation") is not False]
    if bad:
        must = "must set securityContext.allowPrivilegeEscalation=false"
        yield f"allowPrivilegeEscalation != false ({several(bad)} {must})"


def capabilities(spec: dict, is_strict: bool) -> Iterator[str]:
    allowed = {"NET_BIND_SERVICE"} if is_strict else USUAL
    undropped, added, extra = [], [], set()
    for name, context in containers(spec):
        wishes = context.get("capabilities") or {}
        if "ALL" not in (wishes.get("drop") or []):
            undropped.append(name)
        if more := set(wishes.get("add") or []) - allowed:
            added.append(name)
            extra |= more
    message = []
    if is_strict and undropped:
        message.append(f'{several(undropped)} must set securityContext.capabilities.drop=["ALL"]')
    if added:
        quoted = ", ".join(f'"{each}"' for each in sorted(extra))
        message.append(
            f"{several(added)} must not include {quoted} in securityContext.capabilities.add"
        )
    what = "unrestricted capabilities" if is_strict else "non-default capabilities"
    if message:
        yield f"{what} ({'; '.join(message)})"


def host(spec: dict) -> Iterator[str]:
    """What of its node a pod asks for."""
    shared = [f"{key}=true" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    if shared:
        yield f"host namespaces ({', '.join(shared)})"
    paths = [row["name"] for row in spec.get("volumes") or [] if row.get("hostPath")]
    if paths:
        quoted = ", ".join(f'"{name}"' for name in paths)
        volumes = "volumes" if len(paths) > 1 else "volume"
        yield f"hostPath volumes ({volumes} {quoted})"
    if bad := [name for name, context in containers(spec) if context.get("privileged")]:
        yield f"privileged ({several(bad)} must not set securityContext.privileged=true)"


def not_root(spec: dict) -> Iterator[str]:
    of_pod = (spec.get("securityContext") or {}).get("runAsNonRoot")
    bad = [n for n, has in containers(spec) if has.get("runAsNonRoot", of_pod) is not True]
    if bad:
        must = "must set securityContext.runAsNonRoot=true"
        yield f"runAsNonRoot != true (pod or {several(bad)} {must})"


def seccomp(spec: dict) -> Iterator[str]:
    of_pod = (spec.get("securityContext") or {}).get("seccompProfile") or {}
    good = ("RuntimeDefault", "Localhost")
    bad = [
        n
        for n, has in containers(spec)
        if (has.get("seccompProfile") or of_pod).get("type") not in good
    ]
    if bad:
        must = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
        yield f"seccompProfile (pod or {several(bad)} {must})"


# --- quotas


def check_quotas(store: Store, plural: str, namespace: str, body: dict) -> None:
    for quota in store.all("resourcequotas"):
        if quota["metadata"]["namespace"] == namespace and plural != "resourcequotas":
            check_quota(store, quota, plural, body)


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

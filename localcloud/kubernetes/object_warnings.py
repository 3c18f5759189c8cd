"""What a cluster warns of as it takes an object that may be and is hardly meant so, in Kubernetes'
words (pkg/api/pod/warnings.go and its like).

Not covered: addresses that are written in an unusual way, annotations of AppArmor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from localcloud.kubernetes.kinds import KINDS
from localcloud.kubernetes.quantity import amount
from localcloud.kubernetes.words import LABEL, LABEL_RULE

OLD_LABELS = {
    "beta.kubernetes.io/arch": 'deprecated since v1.14; use "kubernetes.io/arch" instead',
    "beta.kubernetes.io/os": 'deprecated since v1.14; use "kubernetes.io/os" instead',
    "failure-domain.beta.kubernetes.io/region": (
        'deprecated since v1.17; use "topology.kubernetes.io/region" instead'
    ),
    "failure-domain.beta.kubernetes.io/zone": (
        'deprecated since v1.17; use "topology.kubernetes.io/zone" instead'
    ),
    "beta.kubernetes.io/instance-type": (
        'deprecated since v1.17; use "node.kubernetes.io/instance-type" instead'
    ),
    "app.kubernetes.io/created-by": "deprecated since v1.9",
    "scheduler.alpha.kubernetes.io/preferAvoidPods": (
        "deprecated since v1.22; use Taints and Tolerations instead"
    ),
    "node-role.kubernetes.io/master": 'use "node-role.kubernetes.io/control-plane" instead',
}
OLD_NOTES = {
    "scheduler.alpha.kubernetes.io/critical-pod": (
        'non-functional in v1.16+; use the "priorityClassName" field instead'
    ),
    "security.alpha.kubernetes.io/sysctls": (
        'non-functional in v1.11+; use the "sysctls" field instead'
    ),
    "security.alpha.kubernetes.io/unsafe-sysctls": (
        'non-functional in v1.11+; use the "sysctls" field instead'
    ),
}
OLD_VOLUMES = {
    "photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
    "gitRepo": "deprecated in v1.11, and disabled by default in v1.33+",
    "scaleIO": "deprecated in v1.16, non-functional in v1.22+",
    "flocker": "deprecated in v1.22, non-functional in v1.25+",
    "storageos": "deprecated in v1.22, non-functional in v1.25+",
    "quobyte": "deprecated in v1.22, non-functional in v1.25+",
    "glusterfs": "deprecated in v1.25, non-functional in v1.26+",
    "cephfs": "deprecated in v1.28, non-functional in v1.31+",
    "rbd": "deprecated in v1.28, non-functional in v1.31+",
}
TWINS = (
    ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in "
    "1.20+, and may reject such requests as early as 1.24; please fix your requests"
)
SECCOMP = "seccomp.security.alpha.kubernetes.io/pod"
OF_CONTAINERS = "container.seccomp.security.alpha.kubernetes.io/"
NO_SECCOMP = 'non-functional in v1.27+; use the "seccompProfile" field instead'
NO_SELECTOR = "labelSelector: a null labelSelector results in matching no pod"
DURING = "DuringSchedulingIgnoredDuringExecution"
KINDS_OF_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
IN_BYTES = ("memory", "ephemeral-storage")


def found_in(plural: str, body: dict, is_new: bool) -> list[str]:
    """What a new or changed object is to be warned of."""
    spec, name = body.get("spec") or {}, body["metadata"].get("name", "")
    of_pod = "the Pod's hostname" if plural == "pods" else "Pod names and hostnames"
    rows: list[str] = []
    if plural in ("pods", "jobs", "deployments", "replicasets"):
        rows += of_name(name, of_pod) if is_new else []
    if plural == "pods":
        rows += of_template(spec, body["metadata"], "")
    elif plural in ("jobs", "deployments", "replicasets"):
        rows += of_job(spec) if plural == "jobs" else []
        template = spec.get("template") or {}
        meta = template.get("metadata") or {}
        rows += of_template(template.get("spec") or {}, meta, "spec.template.")
    elif plural == "services":
        rows += of_service(spec)
    elif plural == "persistentvolumeclaims":
        asked = spec.get("resources") or {}
        rows += of_amounts(asked, "spec.resources", ("requests", "limits"), ("storage",))
    assert plural in KINDS
    return rows


def without_twins(body: Any) -> list[str]:
    """Take out of an object the owners that it names twice; what that is to be warned of."""
    meta = (body.get("metadata") or {}) if isinstance(body, dict) else {}
    rows = meta.get("ownerReferences") if isinstance(meta, dict) else None
    if not isinstance(rows, list):
        return []
    twins = [each for at, each in enumerate(rows) if each in rows[:at]]
    if not twins:
        return []
    meta["ownerReferences"] = [each for at, each in enumerate(rows) if each not in rows[:at]]
    names = ", ".join(str(each.get("uid", "")) for each in twins if isinstance(each, dict))
    return [f"{TWINS}; duplicate UID(s) observed: {names}"]


def of_name(name: str, what: str) -> Iterator[str]:
    """Of a name that is no label in DNS, though it becomes one."""
    if LABEL.fullmatch(name):
        return
    why = ["must be no more than 63 bytes"] if len(name) > 63 else []
    if "." in name:
        why.append("must not contain dots")
    elif not LABEL.fullmatch(name[:63]):
        why.append(LABEL_RULE)
    told = f"metadata.name: this is used in {what}, which can result in surprising behavior; "
    yield f"{told}a DNS label is recommended: [{' '.join(why)}]"


def of_job(spec: dict) -> Iterator[str]:
    is_large = (spec.get("completions") or 0) > 100_000 and (spec.get("parallelism") or 0) > 10_000
    if spec.get("completionMode") == "Indexed" and is_large:
        told = "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism "
        told += "higher than 10^4, Kubernetes might not be able to track completedIndexes when a "
        yield f"spec: {told}big number of indexes fail"


def of_template(spec: dict, meta: dict, at: str) -> Iterator[str]:
    """Of a pod, or of a template of pods that stands at `at`, in the order of Kubernetes."""
    notes = meta.get("annotations") or {}
    yield from of_places(spec, f"{at}spec")
    for key, told in OLD_NOTES.items():
        if key in notes:
            yield f"{at}metadata.annotations[{key}]: {told}"
    for number, volume in enumerate(spec.get("volumes") or []):
        for kind in OLD_VOLUMES.keys() & volume.keys():
            yield f"{at}spec.volumes[{number}].{kind}: {OLD_VOLUMES[kind]}"
    yield from of_paths(spec.get("volumes") or [])
    yield from twice(spec.get("hostAliases") or [], f"{at}spec.hostAliases", "ip")
    yield from twice(spec.get("imagePullSecrets") or [], f"{at}spec.imagePullSecrets", "name")
    for number, row in enumerate(spec.get("imagePullSecrets") or []):
        if not row.get("name"):
            yield f'{at}spec.imagePullSecrets[{number}].name: invalid empty name ""'
    if SECCOMP in notes and not (spec.get("securityContext") or {}).get("seccompProfile"):
        yield f"{at}metadata.annotations[{SECCOMP}]: {NO_SECCOMP}"
    rows = containers(spec, f"{at}spec")
    for path, container in rows:
        yield from of_container(container, path, notes, at)
    yield from of_ports(rows)
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        told = "must be >= 0; negative values are invalid and will be treated as 1"
        yield f"{at}spec.terminationGracePeriodSeconds: {told}"
    yield from of_neighbours(spec.get("affinity") or {}, f"{at}spec.affinity")


def of_places(spec: dict, at: str) -> Iterator[str]:
    """Of labels of nodes that have another name by now."""
    for key in spec.get("nodeSelector") or {}:
        if key in OLD_LABELS:
            yield f"{at}.nodeSelector[{key}]: {OLD_LABELS[key]}"
    of_nodes = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    path = f"{at}.affinity.nodeAffinity.required{DURING}.nodeSelectorTerms"
    for number, term in enumerate(
        (of_nodes.get(f"required{DURING}") or {}).get("nodeSelectorTerms") or []
    ):
        yield from of_term(term, f"{path}[{number}]")
    path = f"{at}.affinity.nodeAffinity.preferred{DURING}"
    for number, row in enumerate(of_nodes.get(f"preferred{DURING}") or []):
        yield from of_term(row.get("preference") or {}, f"{path}[{number}].preference")
    for number, row in enumerate(spec.get("topologySpreadConstraints") or []):
        path, key = f"{at}.topologySpreadConstraints[{number}]", row.get("topologyKey")
        if key in OLD_LABELS:
            yield f"{path}.topologyKey: {key} is {OLD_LABELS[key]}"
        if row.get("labelSelector") is None:
            yield f"{path}.{NO_SELECTOR}"


def of_term(term: dict, path: str) -> Iterator[str]:
    for number, row in enumerate(term.get("matchExpressions") or []):
        if row.get("key") in OLD_LABELS:
            told = f"{row['key']} is {OLD_LABELS[row['key']]}"
            yield f"{path}.matchExpressions[{number}].key: {told}"


def of_neighbours(affinity: dict, at: str) -> Iterator[str]:
    """Of what is to be near to, or far from, pods that nothing chooses."""
    for kind in ("podAffinity", "podAntiAffinity"):
        rows = affinity.get(kind) or {}
        for number, term in enumerate(rows.get(f"required{DURING}") or []):
            if term.get("labelSelector") is None:
                yield f"{at}.{kind}.required{DURING}[{number}].{NO_SELECTOR}"
        for number, row in enumerate(rows.get(f"preferred{DURING}") or []):
            if (row.get("podAffinityTerm") or {}).get("labelSelector") is None:
                yield f"{at}.{kind}.preferred{DURING}[{number}].podAffinityTerm.{NO_SELECTOR}"


def twice(rows: list[dict], at: str, key: str) -> Iterator[str]:
    for number, row in enumerate(rows):
        if row.get(key, "") in [each.get(key, "") for each in rows[:number]]:
            yield f'{at}[{number}].{key}: duplicate {key} "{row.get(key, "")}"'


def containers(spec: dict, at: str) -> list[tuple[str, dict]]:
    """A pod's containers with their paths, in the order in which Kubernetes visits them."""
    return [
        (f"{at}.{kind}[{number}]", row)
        for kind in KINDS_OF_CONTAINERS
        for number, row in enumerate(spec.get(kind) or [])
    ]


def of_container(container: dict, path: str, notes: dict, at: str) -> Iterator[str]:
    key = f"{OF_CONTAINERS}{container.get('name', '')}"
    if key in notes and not (container.get("securityContext") or {}).get("seccompProfile"):
        yield f"{at}metadata.annotations[{key}]: {NO_SECCOMP}"
    asked = container.get("resources") or {}
    for name in IN_BYTES:
        yield from of_amounts(asked, f"{path}.resources", ("limits", "requests"), (name,))
    rows = container.get("env") or []
    for number, row in enumerate(rows):
        name, reference = row.get("name", ""), f"$({row.get('name', '')})"
        if name not in [each.get("name", "") for each in rows[:number]]:
            continue
        value = row.get("value") or ""
        if row.get("valueFrom") or value == reference or reference not in value:
            told = f'hides previous definition of "{name}", which may be dropped when using apply'
            yield f"{path}.env[{number}]: {told}"


def of_amounts(
    asked: dict, path: str, kinds: tuple[str, ...], names: tuple[str, ...]
) -> Iterator[str]:
    """Of parts of a byte."""
    for kind in kinds:
        for name in names:
            quantity = (asked.get(kind) or {}).get(name)
            if quantity is not None and round(amount(quantity) * 1000) % 1000:
                told = f'fractional byte value "{quantity}" is invalid, must be an integer'
                yield f"{path}.{kind}[{name}]: {told}"


def of_ports(rows: list[tuple[str, dict]]) -> Iterator[str]:
    """Of ports of a pod's containers that are in each other's way."""
    ports = [
        (f"{path}.ports[{number}]", row)
        for path, container in rows
        for number, row in enumerate(container.get("ports") or [])
    ]
    for at, (path, port) in enumerate(ports):
        if port.get("hostIP") and not port.get("hostPort"):
            yield f"{path}: hostIP set without hostPort: {in_go(port)}"
        for other_path, other in ports[:at]:
            if key_of(port) == key_of(other) and (told := overlap(port, other)):
                yield f"{path}: {told} port definition with {other_path}"
    names: dict[str, str] = {}
    for path, port in ports:
        name = port.get("name")
        if name and name in names:
            first = names[name]
            told = f'duplicate port name "{name}" with {first}'
            yield f"{path}: {told}, services and probes that select ports by name will use {first}"
        elif name:
            names[name] = path


def key_of(port: dict) -> tuple:
    return port.get("containerPort"), port.get("protocol") or "TCP"


def overlap(port: dict, other: dict) -> str:
    """How two definitions of one port of a container's differ, if that matters."""
    addresses = [each.get("hostIP") or "" for each in (port, other)]
    hosts = [each.get("hostPort") or 0 for each in (port, other)]
    if addresses[0] == addresses[1] and hosts[0] == hosts[1]:
        return "duplicate"
    if not all(hosts):
        return "overlapping"
    is_open = bool(addresses[0]) != bool(addresses[1])
    return "dangerously ambiguous" if hosts[0] == hosts[1] and is_open else ""


def in_go(port: dict) -> str:
    host, own = port.get("hostPort") or 0, port.get("containerPort") or 0
    told = f"Name:{port.get('name') or ''} HostPort:{host} ContainerPort:{own}"
    return f"{{{told} Protocol:{port.get('protocol') or 'TCP'} HostIP:{port.get('hostIP') or ''}}}"


def of_paths(volumes: list[dict]) -> Iterator[str]:
    """Of files of a volume that take each other's place."""
    for volume in volumes:
        name = volume.get("name", "")
        for source, key in (("configMap", "name"), ("secret", "secretName"), ("downwardAPI", "")):
            items = (volume.get(source) or {}).get("items") or []
            kind = f"{source[0].upper()}{source[1:]}"
            about = f'{kind} "{volume[source].get(key) or ""}"' if key and items else kind
            files = [(row.get("path", "").rstrip("/"), "") for row in items]
            yield from collisions(name, about, files)
        files = []
        for row in (volume.get("projected") or {}).get("sources") or []:
            if not row:
                yield f'volume "{name}" (Projected) has no sources provided'
            files += files_of(row)
        yield from collisions(name, "Projected", files)


def files_of(source: dict) -> list[tuple[str, str]]:
    """Paths of what one source gives to a projected volume, and what that source is called."""
    if token := source.get("serviceAccountToken"):
        return [(token.get("path", "").rstrip("/"), "ServiceAccountToken")]
    for kind, shown in (("configMap", "ConfigMap"), ("secret", "Secret")):
        if rows := (source.get(kind) or {}).get("items"):
            about = f'{shown} "{source[kind].get("name", "")}"'
            return [(row.get("path", "").rstrip("/"), about) for row in rows]
    rows = (source.get("downwardAPI") or {}).get("items") or []
    return [(row.get("path", "").rstrip("/"), "DownwardAPI") for row in rows]


def collisions(volume: str, about: str, files: list[tuple[str, str]]) -> Iterator[str]:
    for at, (path, source) in enumerate(files):
        for other, its in files[:at]:
            first, second = f"{path}/", f"{other}/"
            if path and other and (first.startswith(second) or second.startswith(first)):
                pair = f"{called(path, source)} with {called(other, its)}"
                yield f'volume "{volume}" ({about}): overlapping paths: {pair}'


def called(path: str, source: str) -> str:
    return f'"{path}" ({source})' if source else f'"{path}"'


def of_service(spec: dict) -> Iterator[str]:
    kind = spec.get("type") or "ClusterIP"
    if kind == "ClusterIP" and spec.get("clusterIP") == "None":
        for key, shown in (
            ("loadBalancerIP", "loadBalancerIP"),
            ("externalIPs", "externalIPs"),
            ("sessionAffinity", "SessionAffinity"),
        ):
            if spec.get(key):
                yield f"spec.{shown} is ignored for headless services"
    if kind == "ExternalName" and spec.get("externalIPs"):
        yield 'spec.externalIPs is ignored when spec.type is "ExternalName"'
    if kind != "ExternalName" and spec.get("externalName"):
        yield 'spec.externalName is ignored when spec.type is not "ExternalName"'

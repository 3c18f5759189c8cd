"""Bodies in protobuf, in which kubectl sends what it makes without a file: `create configmap`,
`expose`, `drain`.

A field is a number there: the place of its name below. Its type is the schema's.

Not covered: messages that are not below, which are refused; answers, which are JSON.
"""

from __future__ import annotations

import ast
import base64
import time
from collections.abc import Iterator
from typing import Any

from localcloud.kubernetes import schema
from localcloud.kubernetes.kinds import Refusal

TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\0"
WHOLE = "metadata spec status"
FIELDS = {
    "ObjectMeta": "name generateName namespace selfLink uid resourceVersion generation creationTimestamp "
    "deletionTimestamp deletionGracePeriodSeconds labels annotations ownerReferences finalizers",
    "OwnerReference": "kind - name uid apiVersion controller blockOwnerDeletion",
    "LabelSelector": "matchLabels matchExpressions",
    "LabelSelectorRequirement": "key operator values",
    "DeleteOptions": "gracePeriodSeconds preconditions orphanDependents propagationPolicy dryRun",
    "Preconditions": "uid resourceVersion",
    "ConfigMap": "metadata data binaryData immutable",
    "Secret": "metadata data type stringData immutable",
    "Namespace": WHOLE,
    "NamespaceSpec": "finalizers",
    "ServiceAccount": "metadata secrets imagePullSecrets automountServiceAccountToken",
    "Pod": WHOLE,
    "PodTemplateSpec": "metadata spec",
    "PodSpec": "volumes containers restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy "
    "nodeSelector serviceAccountName serviceAccount nodeName hostNetwork hostPID hostIPC securityContext",
    "Container": "name image command args workingDir ports env resources - - - - terminationMessagePath "
    "imagePullPolicy - stdin stdinOnce tty - terminationMessagePolicy",
    "ContainerPort": "name hostPort containerPort protocol hostIP",
    "EnvVar": "name value",
    "ResourceRequirements": "limits requests",
    "Service": WHOLE,
    "ServiceSpec": "ports selector clusterIP type externalIPs - sessionAffinity loadBalancerIP "
    "loadBalancerSourceRanges externalName externalTrafficPolicy healthCheckNodePort publishNotReadyAddresses",
    "ServicePort": "name protocol port targetPort nodePort",
    "ResourceQuota": WHOLE,
    "ResourceQuotaSpec": "hard scopes",
    "Job": WHOLE,
    "JobSpec": "parallelism completions activeDeadlineSeconds selector manualSelector template backoffLimit "
    "ttlSecondsAfterFinished completionMode suspend",
    "Deployment": WHOLE,
    "DeploymentSpec": "replicas selector template strategy minReadySeconds revisionHistoryLimit paused - "
    "progressDeadlineSeconds",
    "DeploymentStrategy": "type",
    "Role": "metadata rules",
    "ClusterRole": "metadata rules",
    "RoleBinding": "metadata subjects roleRef",
    "ClusterRoleBinding": "metadata subjects roleRef",
    "PolicyRule": "verbs apiGroups resources resourceNames nonResourceURLs",
    "Subject": "kind apiGroup name namespace",
    "RoleRef": "apiGroup kind name",
    "PriorityClass": "metadata value globalDefault description preemptionPolicy",
    "Eviction": "metadata deleteOptions",
    "SelfSubjectReview": "metadata status",
    "SelfSubjectRulesReview": WHOLE,
    "SelfSubjectRulesReviewSpec": "namespace",
    "TokenRequest": WHOLE,
    "TokenRequestSpec": "audiences - boundObjectRef expirationSeconds",
    "PodDisruptionBudget": WHOLE,
    "PodDisruptionBudgetSpec": "minAvailable selector maxUnavailable",
    "SelfSubjectAccessReview": WHOLE,
    "SelfSubjectAccessReviewSpec": "resourceAttributes nonResourceAttributes",
    "ResourceAttributes": "namespace verb group version resource subresource name",
    "NonResourceAttributes": "path verb",
}
# Fields in which 0 and false are not the same as nothing.
MEANT = {
    "replicas",
    "parallelism",
    "completions",
    "backoffLimit",
    "automountServiceAccountToken",
    "orphanDependents",
}
MEANT |= {"terminationGracePeriodSeconds", "gracePeriodSeconds"}


def read(data: bytes) -> dict:
    """The object that a body holds."""
    if not data.startswith(MAGIC):
        raise refusal("it does not begin as protobuf of Kubernetes does")
    try:
        parts = dict(fields(data[len(MAGIC) :]))
        api, kind = (value.decode() for _, value in fields(parts[1]))
        where = "meta_v1" if kind == "DeleteOptions" else schema.MODULES[api]
        return {"apiVersion": api, "kind": kind, **message(where, kind, parts.get(2, b""))}
    except (IndexError, KeyError, ValueError, AttributeError, TypeError) as error:
        raise refusal(f"{type(error).__name__}: {error}") from None


def refusal(why: str) -> Refusal:
    detail = "accepted media types include: application/json, application/yaml"
    return Refusal(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format - {detail} ({why})",
    )


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers of a message's fields with what they hold: a number or bytes."""
    at = 0

    def number() -> int:
        nonlocal at
        found = shift = 0
        while True:
            byte, at = data[at], at + 1
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return found

    while at < len(data):
        key = number()
        if key & 7 == 0:
            value = number()
            yield key >> 3, value - (1 << 64) if value >> 63 else value
        elif key & 7 == 2:
            size = number()
            yield key >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {key & 7}")


def message(where: str, name: str, data: bytes) -> dict:
    """A message as JSON has it, which leaves out what is empty."""
    made: dict[str, Any] = {}
    names, types = FIELDS.get(name, "").split(), schema.module(where).get(name, {})
    for number, raw in fields(data):
        field = names[number - 1] if number <= len(names) else "-"
        if field == "status":
            continue
        if field not in types:
            if raw:
                raise ValueError(f"field {number} of {name} is not part of the embedded cloud")
            continue
        kind, repeated = plain(types[field])
        if kind == "dict":
            entry = dict(fields(raw))
            made.setdefault(field, {})[entry.get(1, b"").decode()] = of_map(
                name, field, entry.get(2, b"")
            )
        elif repeated:
            made.setdefault(field, []).append(value_of(where, kind, raw))
        elif (value := value_of(where, kind, raw)) or field in MEANT:
            made[field] = value
    return made


def plain(kind: ast.expr) -> tuple[str, bool]:
    """A field's type without Optional and List, and whether it is a list."""
    repeated = False
    while isinstance(kind, ast.Subscript):
        repeated = repeated or ast.unparse(kind.value) == "List"
        kind = kind.slice
    return ast.unparse(kind), repeated


def of_map(name: str, field: str, raw: bytes) -> str:
    if field in schema.OF_QUANTITIES or field == "hard":
        return dict(fields(raw))[1].decode()
    binary = (name, field) in (("Secret", "data"), ("ConfigMap", "binaryData"))
    return base64.b64encode(raw).decode() if binary else raw.decode()


def value_of(where: str, kind: str, raw: Any) -> Any:
    if kind in ("int", "bool"):
        return bool(raw) if kind == "bool" else raw
    if kind == "str":
        return raw.decode()
    inner = dict(fields(raw)) if kind.endswith(("Time", "IntOrString", "Quantity")) else {}
    if kind.endswith("Time"):
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(inner[1])) if inner.get(1) else None
    if kind.endswith("IntOrString"):
        return inner.get(3, b"").decode() if inner.get(1) else inner.get(2, 0)
    if kind.endswith("Quantity"):
        return inner[1].decode()
    module, _, name = kind.rpartition(".")
    if name not in FIELDS and raw:
        raise ValueError(f"{name} is not part of the embedded cloud")
    return message(module or where, name, raw)

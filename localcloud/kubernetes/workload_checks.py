"""What Kubernetes checks of deployments, sets of replicas and services beside their schema, in its
words.

Not covered: named ports, load balancers and external names, steps of a rolling update.
"""

from __future__ import annotations

from localcloud.kubernetes.words import (
    check_label_name,
    compact,
    invalid,
    not_negative,
    one_of,
    required,
)

STRATEGIES = ("Recreate", "RollingUpdate")


def replica_errors(plural: str, spec: dict) -> list[str]:
    """Of a deployment or a set of replicas."""
    bad: list[str] = []
    not_negative(spec.get("replicas"), "spec.replicas", bad)
    kind, template = plural.removesuffix("s"), spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    selector = spec.get("selector")
    if selector is None:
        bad.append(required("spec.selector"))
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        bad.append(invalid("spec.selector", selector, f"empty selector is invalid for {kind}"))
    elif not selector.get("matchLabels", {}).items() <= labels.items():
        told = "`selector` does not match template `labels`"
        bad.append(f"spec.template.metadata.labels: Invalid value: {compact(labels)}: {told}")
    pod = template.get("spec") or {}
    one_of(pod.get("restartPolicy"), ("Always",), "spec.template.spec.restartPolicy", bad)
    if pod.get("activeDeadlineSeconds") is not None:
        told = "activeDeadlineSeconds in ReplicaSet is not Supported"
        bad.append(f"spec.template.spec.activeDeadlineSeconds: Forbidden: {told}")
    strategy = spec.get("strategy") or {}
    one_of(strategy.get("type"), STRATEGIES, "spec.strategy.type", bad)
    if strategy.get("type") == "Recreate" and "rollingUpdate" in strategy:
        told = "may not be specified when strategy `type` is 'Recreate'"
        bad.append(f"spec.strategy.rollingUpdate: Forbidden: {told}")
    return bad


def service_errors(spec: dict) -> list[str]:
    bad: list[str] = []
    ports = spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        bad.append(required("spec.ports"))
    for number, port in enumerate(ports):
        path = f"spec.ports[{number}]"
        if len(ports) > 1 and not port.get("name"):
            bad.append(required(f"{path}.name"))
        elif port.get("name"):
            check_label_name(port["name"], f"{path}.name", bad)
        for key in ("port", "targetPort"):
            value = port.get(key, port.get("port", 0))
            if isinstance(value, int) and not 1 <= value <= 65535:
                bad.append(
                    invalid(f"{path}.{key}", value, "must be between 1 and 65535, inclusive")
                )
        one_of(port.get("protocol"), ("SCTP", "TCP", "UDP"), f"{path}.protocol", bad)
    return bad

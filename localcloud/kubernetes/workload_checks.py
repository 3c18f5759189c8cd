"""What Kubernetes checks of deployments, sets of replicas and services beside their schema, in its
words.

Not covered: load balancers, steps of a rolling update.
"""

from __future__ import annotations

import ipaddress

from localcloud.kubernetes.container_checks import port_name_errors
from localcloud.kubernetes.placing_checks import (
    IP_RULE,
    is_address,
    selector_errors,
    selects,
    special,
)
from localcloud.kubernetes.policy_checks import count_errors
from localcloud.kubernetes.words import (
    check_key,
    check_label_name,
    check_labels,
    check_subdomain,
    compact,
    invalid,
    not_negative,
    one_of,
    required,
    supported,
)

STRATEGIES = ("Recreate", "RollingUpdate")
NEAR = ("PreferClose", "PreferSameZone", "PreferSameNode")
CHOICES = {
    "sessionAffinity": ("ClientIP", "None"),
    "ipFamilyPolicy": ("PreferDualStack", "RequireDualStack", "SingleStack"),
    "type": ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"),
    "internalTrafficPolicy": ("Cluster", "Local"),
}


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
    elif not fits(selector, labels):
        told = "`selector` does not match template `labels`"
        bad.append(f"spec.template.metadata.labels: Invalid value: {compact(labels)}: {told}")
    pod = template.get("spec") or {}
    one_of(pod.get("restartPolicy"), ("Always",), "spec.template.spec.restartPolicy", bad)
    if pod.get("activeDeadlineSeconds") is not None:
        told = "activeDeadlineSeconds in ReplicaSet is not Supported"
        bad.append(f"spec.template.spec.activeDeadlineSeconds: Forbidden: {told}")
    strategy = spec.get("strategy") or {}
    if strategy.get("type") not in (None, *STRATEGIES):
        shown = {"Type": strategy["type"], "RollingUpdate": strategy.get("rollingUpdate")}
        told = f"Unsupported value: {compact(shown)}: supported values: {supported(STRATEGIES)}"
        bad.append(f"spec.strategy: {told}")
    if strategy.get("type") == "Recreate" and "rollingUpdate" in strategy:
        told = "may not be specified when strategy `type` is 'Recreate'"
        bad.append(f"spec.strategy.rollingUpdate: Forbidden: {told}")
    selector_errors(selector, "spec.selector", bad)
    pace_errors(spec, strategy.get("rollingUpdate") or {}, bad)
    return bad


def fits(selector: dict, labels: dict) -> bool:
    """Whether a selector matches labels; one with errors says those alone."""
    bad: list[str] = []
    selector_errors(selector, "", bad)
    return bool(bad) or selects(selector, labels)


def pace_errors(spec: dict, rolling: dict, bad: list[str]) -> None:
    """Of how fast a deployment changes its pods, and how long that may take."""
    for key in ("minReadySeconds", "revisionHistoryLimit"):
        not_negative(spec.get(key), f"spec.{key}", bad)
    path = "spec.strategy.rollingUpdate"
    count_errors(rolling.get("maxUnavailable"), f"{path}.maxUnavailable", bad)
    count_errors(rolling.get("maxSurge"), f"{path}.maxSurge", bad, most=False)
    least, surge = rolling.get("maxUnavailable"), rolling.get("maxSurge")
    if least in (0, "0%") and surge in (0, "0%"):
        told = "may not be 0 when `maxSurge` is 0"
        bad.append(invalid(f"{path}.maxUnavailable", least, told))
    seconds, ready = spec.get("progressDeadlineSeconds", 600), spec.get("minReadySeconds") or 0
    not_negative(seconds, "spec.progressDeadlineSeconds", bad)
    if seconds <= ready:
        told = "must be greater than minReadySeconds"
        bad.append(invalid("spec.progressDeadlineSeconds", seconds, told))


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
        if isinstance(port.get("targetPort"), str):
            port_name_errors(port["targetPort"], f"{path}.targetPort", bad)
        one_of(port.get("protocol"), ("SCTP", "TCP", "UDP"), f"{path}.protocol", bad)
        node_port_errors(spec, port, path, bad)
    twice_errors(ports, bad)
    check_labels(spec.get("selector"), "spec.selector", bad)
    for key, allowed in CHOICES.items():
        one_of(spec.get(key), allowed, f"spec.{key}", bad)
    families = spec.get("ipFamilies") or []
    for number, each in enumerate(families):
        one_of(each, ("IPv4", "IPv6"), f"spec.ipFamilies[{number}]", bad)
        if each in families[:number]:
            bad.append(f'spec.ipFamilies[{number}]: Duplicate value: "{each}"')
    if len(families) > 2:
        bad.append(invalid("spec.ipFamilies", families, "may only hold up to 2 values"))
    address_errors(spec, bad)
    return bad


def node_port_errors(spec: dict, port: dict, path: str, bad: list[str]) -> None:
    """Of the port that each node has for one of a service's."""
    number, kind = port.get("nodePort"), spec.get("type") or "ClusterIP"
    if not number:
        return
    if kind == "ClusterIP":
        told = "may not be used when `type` is 'ClusterIP'"
        bad.append(f"{path}.nodePort: Forbidden: {told}")
    elif not 30000 <= number <= 32767:
        told = "provided port is not in the valid range. The range of valid ports is 30000-32767"
        bad.append(invalid(f"{path}.nodePort", number, told))


def twice_errors(ports: list[dict], bad: list[str]) -> None:
    names: set[str] = set()
    numbers: set[tuple] = set()
    of_nodes: set[tuple] = set()
    for number, port in enumerate(ports):
        name, key = port.get("name"), (port.get("protocol") or "TCP", port.get("port"))
        if name and name in names:
            bad.append(f'spec.ports[{number}].name: Duplicate value: "{name}"')
        if key in numbers:
            # As Go shows its own type, of which only these two are compared.
            shown = {"Name": "", "Protocol": key[0], "AppProtocol": None, "Port": key[1]}
            shown |= {"TargetPort": 0, "NodePort": 0}
            bad.append(f"spec.ports[{number}]: Duplicate value: {compact(shown)}")
        node = (key[0], port.get("nodePort"))
        if node[1] and node in of_nodes:
            bad.append(f"spec.ports[{number}].nodePort: Duplicate value: {node[1]}")
        of_nodes.add(node)
        names.add(name or "")
        numbers.add(key)


def is_range(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return "/" in text


def address_errors(spec: dict, bad: list[str]) -> None:
    """Of the names and addresses under which a service is found."""
    kind, own = spec.get("type") or "ClusterIP", spec.get("clusterIP")
    if own == "None" and kind in ("LoadBalancer", "NodePort"):
        told = f"may not be set to 'None' for {kind} services"
        bad.append(invalid("spec.clusterIPs[0]", own, told))
    elif own and own != "None" and not is_address(own):
        bad.append(invalid("spec.clusterIPs[0]", own, IP_RULE))
    for number, each in enumerate(spec.get("externalIPs") or []):
        if not is_address(each):
            bad.append(invalid(f"spec.externalIPs[{number}]", each, IP_RULE))
        elif told := special(each):
            bad.append(invalid(f"spec.externalIPs[{number}]", each, told))
    if spec.get("clusterIPs") and not own:
        told = "must be empty when `clusterIP` is not specified"
        bad.append(invalid("spec.clusterIPs", spec["clusterIPs"], told))
    elif spec.get("clusterIPs") and spec["clusterIPs"][0] != own:
        told = "first value must match `clusterIP`"
        bad.append(invalid("spec.clusterIPs", spec["clusterIPs"], told))
    if len(spec.get("clusterIPs") or []) > 2:
        told = "may only hold up to 2 values"
        bad.append(invalid("spec.clusterIPs", spec["clusterIPs"], told))
    if own and kind == "ExternalName":
        bad.append("spec.clusterIPs: Forbidden: may not be set for ExternalName services")
    for key in ("ipFamilies", "ipFamilyPolicy"):
        if kind == "ExternalName" and spec.get(key):
            bad.append(f"spec.{key}: Forbidden: may not be set for ExternalName services")
    if kind == "ExternalName" and not spec.get("externalName"):
        bad.append(required("spec.externalName"))
    elif kind == "ExternalName":
        check_subdomain(spec["externalName"].removesuffix("."), "spec.externalName", bad)
    outside = kind in ("LoadBalancer", "NodePort") or spec.get("externalIPs")
    if spec.get("externalTrafficPolicy") and not outside:
        told = "may only be set for externally-accessible services"
        bad.append(invalid("spec.externalTrafficPolicy", spec["externalTrafficPolicy"], told))
    else:
        policies = ("Cluster", "Local")
        one_of(spec.get("externalTrafficPolicy"), policies, "spec.externalTrafficPolicy", bad)
    if spec.get("loadBalancerClass") and kind != "LoadBalancer":
        told = "may only be used when `type` is 'LoadBalancer'"
        bad.append(f"spec.loadBalancerClass: Forbidden: {told}")
    elif spec.get("loadBalancerClass"):
        check_key(spec["loadBalancerClass"], "spec.loadBalancerClass", bad)
    if spec.get("loadBalancerSourceRanges") and kind != "LoadBalancer":
        told = "may only be used when `type` is 'LoadBalancer'"
        bad.append(f"spec.LoadBalancerSourceRanges: Forbidden: {told}")
    for number, each in enumerate(spec.get("loadBalancerSourceRanges") or []):
        if kind == "LoadBalancer" and not is_range(each.strip()):
            told = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            bad.append(invalid(f"spec.LoadBalancerSourceRanges[{number}]", each, told))
    if spec.get("allocateLoadBalancerNodePorts") is not None and kind != "LoadBalancer":
        told = "may only be used when `type` is 'LoadBalancer'"
        bad.append(f"spec.allocateLoadBalancerNodePorts: Forbidden: {told}")
    is_local = kind == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"
    if spec.get("healthCheckNodePort") and not is_local:
        told = (
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        )
        bad.append(invalid("spec.healthCheckNodePort", spec["healthCheckNodePort"], told))
    affinity = spec.get("sessionAffinity") or "None"
    if affinity == "None" and spec.get("sessionAffinityConfig") is not None:
        told = "must not be set when session affinity is None"
        bad.append(f"spec.sessionAffinityConfig: Forbidden: {told}")
    seconds = ((spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}).get(
        "timeoutSeconds"
    )
    if affinity == "ClientIP" and seconds is not None and not 0 < seconds <= 86400:
        path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        bad.append(invalid(path, seconds, "must be greater than 0 and less than 86400"))
    one_of(spec.get("trafficDistribution"), NEAR, "spec.trafficDistribution", bad)
    for number, port in enumerate(spec.get("ports") or []):
        if port.get("appProtocol") is not None:
            check_key(port["appProtocol"], f"spec.ports[{number}].appProtocol", bad)

"""What Kubernetes checks of config maps, secrets, roles and their bindings beside their schema, and
of the metadata of every object, in its words.

Not covered: the contents of certificates and of docker's configuration.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from localcloud.kubernetes import gojson
from localcloud.kubernetes.placing_checks import IP_RULE, is_address, selector_errors, special
from localcloud.kubernetes.words import (
    check_data_key,
    check_key,
    check_label_name,
    check_label_value,
    check_segment,
    check_subdomain,
    compact,
    in_go,
    invalid,
    one_of,
    required,
)

SECURITY = "pod-security.kubernetes.io"
LEVELS = ("privileged", "baseline", "restricted")
VERSION = re.compile(r"latest|v1\.(0|[1-9][0-9]*)")
MOST_DATA = 1 << 20  # bytes of a config map or a secret
MOST_ANNOTATIONS = 256 << 10
RBAC = "rbac.authorization.k8s.io"
PAIR = ("username", "password")
FINALIZERS = ("foregroundDeletion", "kubernetes", "orphan")  # that have no domain
# Type of a secret -> the keys that it must have.
NEEDED = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
}
MOST_WORD, MOST_MESSAGE = 128, 1024  # bytes of what an event says
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
OF_OWNERS = ("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
OF_ACCOUNT = "kubernetes.io/service-account.name"  # annotation of a secret with its token


def object_errors(plural: str, body: dict) -> list[str]:
    """Of an object of one of the kinds that this module knows."""
    if plural == "configmaps":
        return config_map_errors(body)
    if plural == "secrets":
        return secret_errors(body)
    if plural in ("roles", "clusterroles"):
        return role_errors(body, plural == "roles")
    if plural in ("rolebindings", "clusterrolebindings"):
        return binding_errors(body, plural == "rolebindings")
    if plural == "namespaces":
        bad = level_errors(body["metadata"].get("labels") or {})
        for each in (body.get("spec") or {}).get("finalizers") or []:
            check_key(each, "spec.finalizers", bad)
            bad += standing_errors(each, "spec.finalizers")
        return bad
    if plural == "nodes":
        bad = []
        taint_errors((body.get("spec") or {}).get("taints") or [], bad)
        return bad
    if plural == "events":
        return event_errors(body)
    if plural == "endpoints":
        return endpoint_errors(body)
    if plural == "endpointslices":
        return slice_errors(body)
    return []


def level_errors(labels: dict[str, str]) -> list[str]:
    """Of the levels of Pod Security that a namespace's labels name, and their versions."""
    bad: list[str] = []
    for mode in ("enforce", "audit", "warn"):
        level, version = f"{SECURITY}/{mode}", f"{SECURITY}/{mode}-version"
        if labels.get(level, LEVELS[0]) not in LEVELS:
            told = f"must be one of {', '.join(LEVELS)}"
            bad.append(invalid(f"metadata.labels[{level}]", labels[level], told))
        if not VERSION.fullmatch(labels.get(version, "latest")):
            told = 'must be "latest" or "v1.x"'
            bad.append(invalid(f"metadata.labels[{version}]", labels[version], told))
    return bad


def event_errors(body: dict) -> list[str]:
    """Of an event: what a new one must say, and that an old one is about something in its own
    namespace.
    """
    own, about = body["metadata"].get("namespace", ""), body.get("involvedObject") or {}
    there, is_new, bad = about.get("namespace", ""), bool(body.get("eventTime")), list[str]()
    fits = own in ("default", "kube-system")[: 1 + is_new] if not there else is_new or there == own
    if not fits:
        bad.append(invalid("involvedObject.namespace", there, "does not match event.namespace"))
    if not is_new:
        return bad
    if not body.get("reportingComponent"):
        bad.append(required("reportingComponent"))
    check_key(body.get("reportingComponent") or "", "reportingComponent", bad)
    for key in ("reportingInstance", "action", "reason", "message"):
        text, most = body.get(key) or "", MOST_MESSAGE if key == "message" else MOST_WORD
        if not text and key != "message":
            bad.append(required(key))
        if len(text.encode()) > most:
            bad.append(invalid(key, "", f"can have at most {most} characters"))
    return bad


def endpoint_errors(body: dict) -> list[str]:
    bad: list[str] = []
    for number, row in enumerate(body.get("subsets") or []):
        path = f"subsets[{number}]"
        if not row.get("addresses") and not row.get("notReadyAddresses"):
            bad.append(required(path, "must specify `addresses` or `notReadyAddresses`"))
        for kind in ("addresses", "notReadyAddresses"):
            for at, each in enumerate(row.get(kind) or []):
                address_errors(each, f"{path}.{kind}[{at}]", bad)
        ports = row.get("ports") or []
        for at, port in enumerate(ports):
            port_errors(port, len(ports) > 1, f"{path}.ports[{at}]", bad)
    return bad


def address_errors(address: dict, path: str, bad: list[str]) -> None:
    """Of where a service is served."""
    text = address.get("ip", "")
    if not is_address(text):
        bad.append(invalid(f"{path}.ip", text, IP_RULE))
    if address.get("hostname"):
        check_label_name(address["hostname"], f"{path}.hostname", bad)
    if address.get("nodeName") is not None:
        check_subdomain(address["nodeName"], f"{path}.nodeName", bad)
    told = special(text) if is_address(text) else "must be a valid IP address"
    if told:
        bad.append(invalid(f"{path}.ip", text, told))


def port_errors(port: dict, is_one_of_several: bool, path: str, bad: list[str]) -> None:
    if port.get("name"):
        check_label_name(port["name"], f"{path}.name", bad)
    elif is_one_of_several:
        bad.append(required(f"{path}.name"))
    if not 1 <= port.get("port", 0) <= 65535:
        told = "must be between 1 and 65535, inclusive"
        bad.append(invalid(f"{path}.port", port.get("port", 0), told))
    one_of(port.get("protocol"), ("SCTP", "TCP", "UDP"), f"{path}.protocol", bad)
    if port.get("appProtocol") is not None:
        check_key(port["appProtocol"], f"{path}.appProtocol", bad)


def slice_errors(body: dict) -> list[str]:
    """Of a slice of endpoints."""
    bad: list[str] = []
    kind, names = body.get("addressType"), set[str]()
    if not kind:
        bad.append(required("addressType"))
    else:
        one_of(kind, ("FQDN", "IPv4", "IPv6"), "addressType", bad)
    for number, row in enumerate(body.get("endpoints") or []):
        path, addresses = f"endpoints[{number}]", row.get("addresses") or []
        if not addresses:
            bad.append(required(f"{path}.addresses", "must contain at least 1 address"))
        for at, each in enumerate(addresses if kind in ("IPv4", "IPv6") else []):
            told = special(each) if is_address(each) else ""
            if told:
                bad.append(invalid(f"{path}.addresses[{at}]", each, told))
        if row.get("hostname") is not None:
            check_label_name(row["hostname"], f"{path}.hostname", bad)
    for number, port in enumerate(body.get("ports") or []):
        path, name = f"ports[{number}]", port.get("name") or ""
        if name:
            check_label_name(name, f"{path}.name", bad)
        if name in names:
            bad.append(f'{path}.name: Duplicate value: "{name}"')
        names.add(name)
        one_of(port.get("protocol"), ("SCTP", "TCP", "UDP"), f"{path}.protocol", bad)
        if port.get("appProtocol") is not None:
            check_key(port["appProtocol"], f"{path}.appProtocol", bad)
    return bad


def config_map_errors(body: dict) -> list[str]:
    data, binary = body.get("data") or {}, body.get("binaryData") or {}
    bad: list[str] = []
    for key in data:
        check_data_key(key, f"data[{key}]", bad)
    for key in data.keys() & binary.keys():
        bad.append(invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
    for key in binary:
        check_data_key(key, f"binaryData[{key}]", bad)
    size = sum(len(text.encode()) for text in data.values()) + sum(map(decoded, binary.values()))
    if size > MOST_DATA:
        bad.append(f"[]: Too long: may not be more than {MOST_DATA} bytes")
    return bad


def secret_errors(body: dict) -> list[str]:
    given = {key: len(text.encode()) for key, text in (body.get("stringData") or {}).items()}
    sizes = {key: decoded(text) for key, text in (body.get("data") or {}).items()} | given
    bad: list[str] = []
    for key in sizes:
        check_data_key(key, f"data[{key}]", bad)
    if sum(sizes.values()) > MOST_DATA:
        bad.append(f"data: Too long: may not be more than {MOST_DATA} bytes")
    if body.get("type") == "kubernetes.io/ssh-auth" and not sizes.get("ssh-privatekey"):
        bad.append(required("data[ssh-privatekey]"))
    for key in NEEDED.get(body.get("type", ""), ()):
        if key not in sizes:
            bad.append(required(f"data[{key}]"))
    docker_errors(body, bad)
    if body.get("type") == "kubernetes.io/basic-auth" and not sizes.keys() & {*PAIR}:
        bad += [required(f"data[{key}]") for key in PAIR]
    annotations = body["metadata"].get("annotations") or {}
    if body.get("type") == "kubernetes.io/service-account-token" and not annotations.get(
        OF_ACCOUNT
    ):
        bad.append(required(f"metadata.annotations[{OF_ACCOUNT}]"))
    return bad


def docker_errors(body: dict, bad: list[str]) -> None:
    """Of the logins of a registry, which are an object of JSON."""
    key = NEEDED.get(body.get("type", ""), ("",))[0]
    data, given = (body.get("data") or {}).get(key), (body.get("stringData") or {}).get(key)
    if not key.startswith(".docker") or (data is None and given is None):
        return
    text = given if given is not None else base64.b64decode(data or "").decode(errors="replace")
    told = ""
    try:
        found = gojson.loads(text)
        if found is not None and not isinstance(found, dict):
            told = f"json: cannot unmarshal {gojson.KINDS[type(found)]} "
            told += "into Go value of type map[string]interface {}"
    except gojson.Broken as error:
        told = str(error)
    if told:
        bad.append(f'data[{key}]: Invalid value: "<secret contents redacted>": {told}')


@dataclass(frozen=True)
class Illegal:
    """Where a text is no base64."""

    byte: int


def not_in_base64(plural: str, body: dict) -> Illegal | None:
    """Where the first value that is to be base64 is none, as Go's decoder counts."""
    field = {"secrets": "data", "configmaps": "binaryData"}.get(plural, "")
    for text in (body.get(field) or {}).values():
        kept = re.sub(r"[\r\n]", "", text or "")
        odd = re.search(r"[^A-Za-z0-9+/=]", kept)
        if odd:
            return Illegal(odd.start())
        if len(kept) % 4:
            return Illegal(len(kept) // 4 * 4)
    return None


def decoded(text: str) -> int:
    """Return how many bytes a text in base64 stands for."""
    try:
        return len(base64.b64decode(text))
    except (binascii.Error, ValueError):
        return len(text)


def role_errors(body: dict, namespaced: bool) -> list[str]:
    bad: list[str] = []
    for number, rule in enumerate(body.get("rules") or []):
        rule_errors(rule, namespaced, f"rules[{number}]", bad)
    if body.get("aggregationRule") is None:
        return bad
    path = "aggregationRule.clusterRoleSelectors"
    selectors = body["aggregationRule"].get("clusterRoleSelectors") or []
    if not selectors:
        told = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        bad.append(required(path, told))
    for number, selector in enumerate(selectors):
        selector_errors(selector, f"{path}[{number}]", bad)
    return bad


def rule_errors(rule: dict, namespaced: bool, path: str, bad: list[str]) -> None:
    urls, of_resources = rule.get("nonResourceURLs"), ("apiGroups", "resources", "resourceNames")
    if not rule.get("verbs"):
        bad.append(required(f"{path}.verbs", "verbs must contain at least one value"))
    if urls and namespaced:
        told = "namespaced rules cannot apply to non-resource URLs"
        bad.append(invalid(f"{path}.nonResourceURLs", urls, told))
    if urls and any(rule.get(key) for key in of_resources):
        told = "rules cannot apply to both regular resources and non-resource URLs"
        bad.append(invalid(f"{path}.nonResourceURLs", urls, told))
    for key, what in (("apiGroups", "api group"), ("resources", "resource")):
        if not urls and not rule.get(key):
            told = f"resource rules must supply at least one {what}"
            bad.append(required(f"{path}.{key}", told))


def binding_errors(body: dict, namespaced: bool) -> list[str]:
    reference = body.get("roleRef") or {}
    bad: list[str] = []
    one_of(reference.get("apiGroup") or RBAC, (RBAC,), "roleRef.apiGroup", bad)
    roles = ("Role", "ClusterRole") if namespaced else ("ClusterRole",)
    one_of(reference.get("kind", ""), roles, "roleRef.kind", bad)
    if not reference.get("name"):
        bad.append(required("roleRef.name"))
    check_segment(reference.get("name") or "", "roleRef.name", bad)
    for number, subject in enumerate(body.get("subjects") or []):
        subject_errors(subject, namespaced, f"subjects[{number}]", bad)
    return bad


def subject_errors(subject: dict, namespaced: bool, path: str, bad: list[str]) -> None:
    """Of whom a binding gives a role to."""
    kind, name = subject.get("kind", ""), subject.get("name", "")
    if not name:
        bad.append(required(f"{path}.name"))
    if kind == "ServiceAccount":
        if name:
            check_subdomain(name, f"{path}.name", bad)
        one_of(subject.get("apiGroup") or "", ("",), f"{path}.apiGroup", bad)
        if not namespaced and not subject.get("namespace"):
            bad.append(required(f"{path}.namespace"))
    elif kind in ("User", "Group"):
        one_of(subject.get("apiGroup") or RBAC, (RBAC,), f"{path}.apiGroup", bad)
    else:
        one_of(kind, ("ServiceAccount", "User", "Group"), f"{path}.kind", bad)


def taint_errors(taints: list[dict], bad: list[str]) -> None:
    """Of what keeps pods away from a node."""
    seen: set[tuple] = set()
    for number, taint in enumerate(taints):
        path, effect = f"metadata.taints[{number}]", taint.get("effect", "")
        check_key(taint.get("key", ""), f"{path}.key", bad)
        check_label_value(taint.get("value") or "", f"{path}.value", bad)
        if not effect:
            bad.append(required(f"{path}.effect"))
        else:
            one_of(effect, EFFECTS, f"{path}.effect", bad)
        if (taint.get("key"), effect) in seen:
            shown = in_go(("Key", "Value", "Effect", "TimeAdded"), {"value": "", **taint})
            told = "taints must be unique by key and effect pair"
            bad.append(f"{path}: Duplicate value: {compact(shown)}: {told}")
        seen.add((taint.get("key"), effect))


def owner_errors(owners: list[dict]) -> list[str]:
    """Of whose an object is: at most one of them controls it."""
    path, bad, first = "metadata.ownerReferences", list[str](), ""
    shown = [{key: row[key] for key in OF_OWNERS if key in row} for row in owners]
    for row, owner in zip(shown, owners, strict=True):
        api, kind = owner.get("apiVersion", ""), owner.get("kind", "")
        if api.count("/") > 1 or not api.rpartition("/")[2]:
            bad.append(invalid(f"{path}.apiVersion", api, "version must not be empty"))
        for key in ("kind", "name", "uid"):
            if not owner.get(key):
                bad.append(invalid(f"{path}.{key}", "", "must not be empty"))
        if (api, kind) == ("v1", "Event"):
            told = "/v1, Kind=Event is disallowed from being an owner"
            bad.append(invalid(path, row, told))
        called = f"{kind}/{owner.get('name', '')}"
        if owner.get("controller") and first:
            told = 'Only one reference can have Controller set to true. Found "true" in references'
            bad.append(invalid(path, shown, f"{told} for {first} and {called}"))
        first = first or (called if owner.get("controller") else "")
    return bad


def annotation_errors(annotations: dict | None, path: str) -> list[str]:
    rows = annotations or {}
    size = sum(len(key.encode()) + len((text or "").encode()) for key, text in rows.items())
    if size > MOST_ANNOTATIONS:
        return [f"{path}: Too long: may not be more than {MOST_ANNOTATIONS} bytes"]
    return []


def finalizer_errors(finalizers: list[str] | None) -> list[str]:
    bad: list[str] = []
    for each in finalizers or []:
        check_key(each, "metadata.finalizers", bad)
    if {"orphan", "foregroundDeletion"} <= {*(finalizers or [])}:
        told = "finalizer orphan and foregroundDeletion cannot be both set"
        bad.append(invalid("metadata.finalizers", finalizers, told))
    for number, each in enumerate(finalizers or []):
        bad += standing_errors(each, f"metadata.finalizers[{number}]")
    return bad


def standing_errors(finalizer: str, path: str) -> list[str]:
    """Of a finalizer that has no domain and is none of Kubernetes' own."""
    if "/" in finalizer or finalizer in FINALIZERS:
        return []
    told = "name is neither a standard finalizer name nor is it fully qualified"
    return [invalid(path, finalizer, told)]

"""What Kubernetes checks of config maps, secrets, roles and their bindings beside their schema, and
of the metadata of every object, in its words.

Not covered: the contents of certificates and of docker's configuration.
"""

from __future__ import annotations

import base64
import binascii
import re

from localcloud.kubernetes.words import check_key, invalid, one_of, required

MOST_DATA = 1 << 20  # bytes of a config map or a secret
MOST_ANNOTATIONS = 256 << 10
RBAC = "rbac.authorization.k8s.io"
KEY_RULE = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  "
    "or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
FINALIZERS = ("foregroundDeletion", "kubernetes", "orphan")  # that have no domain
# Type of a secret -> the keys that it must have.
NEEDED = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
}


def object_errors(plural: str, body: dict) -> list[str]:
    """Of an object of one of the kinds that this module knows."""
    if plural == "configmaps":
        return config_map_errors(body)
    if plural == "secrets":
        return secret_errors(body)
    if plural in ("roles", "clusterroles"):
        return role_errors(body, plural == "roles")
    if plural in ("rolebindings", "clusterrolebindings"):
        return binding_errors(body)
    return []


def config_map_errors(body: dict) -> list[str]:
    data, binary = body.get("data") or {}, body.get("binaryData") or {}
    bad: list[str] = []
    for key in data:
        data_key(key, f"data[{key}]", bad)
    for key in data.keys() & binary.keys():
        bad.append(invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
    for key in binary:
        data_key(key, f"binaryData[{key}]", bad)
    size = sum(len(text.encode()) for text in data.values()) + sum(map(decoded, binary.values()))
    if size > MOST_DATA:
        bad.append(f"[]: Too long: may not be more than {MOST_DATA} bytes")
    return bad


def secret_errors(body: dict) -> list[str]:
    given = {key: len(text.encode()) for key, text in (body.get("stringData") or {}).items()}
    sizes = {key: decoded(text) for key, text in (body.get("data") or {}).items()} | given
    bad: list[str] = []
    for key in sizes:
        data_key(key, f"data[{key}]", bad)
    if sum(sizes.values()) > MOST_DATA:
        bad.append(f"data: Too long: may not be more than {MOST_DATA} bytes")
    for key in NEEDED.get(body.get("type", ""), ()):
        if key not in sizes:
            bad.append(required(f"data[{key}]"))
    return bad


def decoded(text: str) -> int:
    """Return how many bytes a text in base64 stands for."""
    try:
        return len(base64.b64decode(text))
    except (binascii.Error, ValueError):
        return len(text)


def data_key(key: str, path: str, bad: list[str]) -> None:
    if len(key) > 253:
        bad.append(invalid(path, key, "must be no more than 253 bytes"))
    if not re.fullmatch(r"[-._a-zA-Z0-9]+", key):
        bad.append(invalid(path, key, KEY_RULE))
    elif key in (".", ".."):
        bad.append(invalid(path, key, f"must not be '{key}'"))
    elif key.startswith(".."):
        bad.append(invalid(path, key, "must not start with '..'"))


def role_errors(body: dict, namespaced: bool) -> list[str]:
    bad: list[str] = []
    for number, rule in enumerate(body.get("rules") or []):
        path, urls = f"rules[{number}]", rule.get("nonResourceURLs")
        if not rule.get("verbs"):
            bad.append(required(f"{path}.verbs", "verbs must contain at least one value"))
        if urls and namespaced:
            told = "namespaced rules cannot apply to non-resource URLs"
            bad.append(invalid(f"{path}.nonResourceURLs", urls, told))
        elif urls and any(rule.get(key) for key in ("apiGroups", "resources", "resourceNames")):
            told = "rules cannot apply to both regular resources and non-resource URLs"
            bad.append(invalid(f"{path}.nonResourceURLs", urls, told))
        elif not urls:
            for key, what in (("apiGroups", "api group"), ("resources", "resource")):
                if not rule.get(key):
                    told = f"resource rules must supply at least one {what}"
                    bad.append(required(f"{path}.{key}", told))
    return bad


def binding_errors(body: dict) -> list[str]:
    reference = body.get("roleRef") or {}
    bad: list[str] = []
    one_of(reference.get("apiGroup") or RBAC, (RBAC,), "roleRef.apiGroup", bad)
    one_of(reference.get("kind", ""), ("Role", "ClusterRole"), "roleRef.kind", bad)
    if not reference.get("name"):
        bad.append(required("roleRef.name"))
    for number, subject in enumerate(body.get("subjects") or []):
        path = f"subjects[{number}]"
        if not subject.get("name"):
            bad.append(required(f"{path}.name"))
        kinds = ("ServiceAccount", "User", "Group")
        one_of(subject.get("kind", ""), kinds, f"{path}.kind", bad)
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
        if "/" not in each and each not in FINALIZERS:
            told = "name is neither a standard finalizer name nor is it fully qualified"
            bad.append(invalid("metadata.finalizers", each, told))
    return bad

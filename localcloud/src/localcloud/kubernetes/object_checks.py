"""Kubernetes' rules for metadata, and for the data of config maps and secrets."""

from __future__ import annotations

import base64
import binascii
import re

from localcloud.kubernetes.words import (
    check_data_key,
    check_key,
    check_label_name,
    check_labels,
    check_subdomain,
    invalid,
    required,
)

MOST_DATA = 1 << 20  # bytes of a config map or a secret
MOST_ANNOTATIONS = 256 << 10


def object_errors(plural: str, body: dict) -> list[str]:
    """Of an object of one of the kinds that this module knows."""
    bad: list[str] = []
    if plural in ("configmaps", "secrets"):
        data_errors(plural, body, bad)
    return bad


def data_errors(plural: str, body: dict, bad: list[str]) -> None:
    """Of keys, and of the bytes of all values together."""
    plain = "data" if plural == "configmaps" else "stringData"
    encoded = "binaryData" if plural == "configmaps" else "data"
    sizes = {key: decoded(text) for key, text in (body.get(encoded) or {}).items()}
    for key, text in (body.get(plain) or {}).items():
        if plural == "configmaps" and key in sizes:
            message = "duplicate of key present in binaryData"
            bad.append(invalid(f"data[{key}]", key, message))
        sizes[key] = len(text.encode())
    for key in sizes:
        check_data_key(key, f"data[{key}]", bad)
    if sum(sizes.values()) > MOST_DATA:
        where = "[]" if plural == "configmaps" else "data"
        bad.append(f"{where}: Too long: may not be more than {MOST_DATA} bytes")


def decoded(text: str) -> int:
    """Return how many bytes a text in base64 has when it is decoded."""
    try:
        return len(base64.b64decode(text))
    except (binascii.Error, ValueError):
        return len(text)


def not_in_base64(plural: str, body: dict) -> int | None:
    """At which byte the first value that is to be base64 is none, as Go's decoder counts."""
    field = {"secrets": "data", "configmaps": "binaryData"}.get(plural, "")
    for text in (body.get(field) or {}).values():
        kept = re.sub(r"[\r\n]", "", text or "")
        odd = re.search(r"[^A-Za-z0-9+/=]", kept)
        if odd or len(kept) % 4:
            return odd.start() if odd else len(kept) // 4 * 4
    return None


# --- metadata


def metadata_errors(plural: str, meta: dict) -> list[str]:
    """Of the metadata of any object."""
    bad: list[str] = []
    name = meta.get("name", "")
    check = check_subdomain
    if plural == "namespaces":
        check = check_label_name
    if name:
        check(name, "metadata.name", bad)
    else:
        bad.append(required("metadata.name", "name or generateName is required"))
    check_labels(meta.get("labels"), "metadata.labels", bad)
    notes = meta.get("annotations") or {}
    for key in notes:
        check_key(key.lower(), "metadata.annotations", bad)
    if sum(len(key) + len((text or "").encode()) for key, text in notes.items()) > MOST_ANNOTATIONS:
        message = f"Too long: may not be more than {MOST_ANNOTATIONS} bytes"
        bad.append(f"metadata.annotations: {message}")
    return bad

"""Kubernetes' words for what is wrong with a value, and its rules for names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
DATA_KEY_RULE = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  "
    "or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
KEY_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


def compact(value: Any) -> str:
    """A value as a refusal shows it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def invalid(path: str, value: Any, why: str) -> str:
    return f"{path}: Invalid value: {compact(value)}: {why}"


def required(path: str, why: str = "") -> str:
    return f"{path}: Required value{': ' if why else ''}{why}"


def supported(allowed: Iterable[str]) -> str:
    return ", ".join(f'"{each}"' for each in allowed)


def one_of(value: Any, allowed: tuple[str, ...], path: str, bad: list[str]) -> None:
    if value is not None and value not in allowed:
        bad.append(f'{path}: Unsupported value: "{value}": supported values: {supported(allowed)}')


def not_negative(value: int | None, path: str, bad: list[str]) -> None:
    if value is not None and value < 0:
        bad.append(invalid(path, value, "must be greater than or equal to 0"))


def check_label_name(name: str, path: str, bad: list[str]) -> None:
    """A name that is one part of a name in DNS."""
    if len(name) > 63:
        bad.append(invalid(path, name, "must be no more than 63 bytes"))
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name):
        bad.append(invalid(path, name, LABEL_RULE))


def check_subdomain(name: str, path: str, bad: list[str]) -> None:
    if len(name) > 253:
        bad.append(invalid(path, name, "must be no more than 253 bytes"))
    if not SUBDOMAIN.fullmatch(name):
        bad.append(invalid(path, name, SUBDOMAIN_RULE))


def check_key(key: str, path: str, bad: list[str]) -> None:
    """A key of labels and their like: a name, maybe with a domain before it."""
    prefix, slash, name = key.partition("/")
    if "/" in name:
        message = f"a valid label key {KEY_RULE.removeprefix('name part ')} with an optional DNS subdomain "
        bad.append(invalid(path, key, f"{message}prefix and '/' (e.g. 'example.com/MyName')"))
        return
    if not slash:
        prefix, name = "", key
    if slash and not prefix:
        bad.append(invalid(path, key, "prefix part must be non-empty"))
    if len(prefix) > 253:
        bad.append(invalid(path, key, "prefix part must be no more than 253 bytes"))
    if prefix and not SUBDOMAIN.fullmatch(prefix):
        bad.append(invalid(path, key, f"prefix part {SUBDOMAIN_RULE}"))
    if not name:
        bad.append(invalid(path, key, "name part must be non-empty"))
    elif len(name) > 63:
        bad.append(invalid(path, key, "name part must be no more than 63 bytes"))
    if not re.fullmatch(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", name):
        bad.append(invalid(path, key, KEY_RULE))


def check_labels(labels: dict | None, path: str, bad: list[str]) -> None:
    for key, text in (labels or {}).items():
        check_key(key, path, bad)
        check_label_value(text, path, bad)


def check_label_value(text: str, path: str, bad: list[str]) -> None:
    if len(text) > 63:
        bad.append(invalid(path, text, "must be no more than 63 bytes"))
    if not re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", text):
        bad.append(invalid(path, text, VALUE_RULE))


def check_data_key(key: str, path: str, bad: list[str]) -> None:
    """A key of what config maps and secrets hold, which is the name of a file, too."""
    if len(key) > 253:
        bad.append(invalid(path, key, "must be no more than 253 bytes"))
    if not re.fullmatch(r"[-._a-zA-Z0-9]+", key):
        bad.append(invalid(path, key, DATA_KEY_RULE))
    if key in (".", ".."):
        bad.append(invalid(path, key, f"must not be '{key}'"))
    elif key.startswith(".."):
        bad.append(invalid(path, key, "must not start with '..'"))

"""Whether an object may be: its form, and what no schema says. The texts are those of a real
server of the version that clusters claim (plane.py).

Covered is what the objects that Berg makes could get wrong: names, labels, sizes, mounts, amounts of GPUs.
Kubernetes checks much more.
"""

import json
import re
from typing import Any, NoReturn

from localcloud.kubernetes import schema
from localcloud.kubernetes.kinds import KINDS, Kind, Refusal
from localcloud.kubernetes.quantity import amount

MOST_DATA = 1 << 20  # bytes of a config map or a secret
MOST_ANNOTATIONS = 256 << 10
DNS, WORD = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
# What a text is -> its pattern, the most bytes of it, what it must be.
TEXTS = {
    "label name": (
        DNS,
        63,
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
        f"and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{DNS}')",
    ),
    "subdomain": (
        rf"{DNS}(\.{DNS})*",
        253,
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
        f"and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{DNS}(\\.{DNS})*')",
    ),
    "key": (
        rf"({DNS}(\.{DNS})*/)?{WORD}",
        317,
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
        f"character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{WORD}')",
    ),
    "value": (
        f"({WORD})?",
        63,
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
        f"end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '({WORD})?')",
    ),
    "data key": (
        r"(?!\.\.)[-._a-zA-Z0-9]+",
        253,
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  "
        "or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
    ),
}


def check_form(kind: Kind, body: dict, strict: bool) -> None:
    """Raise the decoder's 400 for a body of another kind, with wrong types or, if `strict`, with
    unknown fields.
    """
    name, api = body.get("kind") or kind.name, body.get("apiVersion") or kind.api
    prefix = f'{name} in version "{api.rpartition("/")[2]}" cannot be handled as a {kind.name}: '
    if (name, api) != (kind.name, kind.api):
        raise Refusal(
            400, "BadRequest", prefix + f'no kind "{name}" is registered for version "{api}" here'
        )
    found = schema.errors(kind.api, kind.name, body)
    types = [each for each in found if not each.startswith("unknown field")]
    if types:  # Go's decoder stops at the first wrong type
        raise Refusal(400, "BadRequest", prefix + types[0])
    if found and strict:
        raise Refusal(400, "BadRequest", prefix + f"strict decoding error: {', '.join(found)}")


def refuse(kind: Kind, name: str, causes: list[str]) -> NoReturn:
    """Raise the 422 of an object of a kind."""
    shown = f"{kind.name}.{kind.group}".rstrip(".")
    different = [*dict.fromkeys(causes)]
    text = different[0] if len(different) == 1 else f"[{', '.join(different)}]"
    message = f'{shown} "{name}" is invalid: {text}'
    about = {"name": name, "group": kind.group, "kind": kind.name}
    raise Refusal(422, "Invalid", message, **about)


def invalid(path: str, value: Any, why: str) -> str:
    return f"{path}: Invalid value: {json.dumps(value, ensure_ascii=False)}: {why}"


def check_text(what: str, text: str, path: str, bad: list[str]) -> None:
    """Note what is wrong with a text that is to be a name, a key, …"""
    pattern, most, rule = TEXTS[what]
    if len(text) > most:
        bad.append(invalid(path, text, f"must be no more than {most} bytes"))
    if not re.fullmatch(pattern, text):
        bad.append(invalid(path, text, rule))


def check_labels(labels: dict | None, path: str, bad: list[str]) -> None:
    for key, text in (labels or {}).items():
        check_text("key", key, path, bad)
        check_text("value", text, path, bad)


def check_meaning(plural: str, body: dict) -> None:
    """Raise the 422 for a body that fits its schema and still may not be."""
    meta, spec = body["metadata"], body.get("spec") or {}
    bad: list[str] = []
    if plural != "events":
        check_text("subdomain", meta.get("name", ""), "metadata.name", bad)
    check_metadata(meta, "metadata", bad)
    if plural in ("configmaps", "secrets"):
        check_data(body, bad)
    if plural == "pods":
        check_pod(spec, "spec", bad)
    if plural == "jobs":
        check_job(spec, meta, bad)
    if bad:
        refuse(KINDS[plural], meta.get("name", ""), bad)


def check_metadata(meta: dict, path: str, bad: list[str]) -> None:
    check_labels(meta.get("labels"), f"{path}.labels", bad)
    notes = meta.get("annotations") or {}
    for key in notes:
        check_text("key", key, f"{path}.annotations", bad)
    if sum(len(key) + len((text or "").encode()) for key, text in notes.items()) > MOST_ANNOTATIONS:
        bad.append(f"{path}.annotations: Too long: may not be more than {MOST_ANNOTATIONS} bytes")


def check_data(body: dict, bad: list[str]) -> None:
    """Of the keys of config maps and secrets, which name files, and of the bytes of all values."""
    rows = {**(body.get("data") or {}), **(body.get("stringData") or {})}
    for key in rows:
        check_text("data key", key, f"data[{key}]", bad)
    if sum(len(text.encode()) for text in rows.values()) > MOST_DATA:
        bad.append(f"data: Too long: may not be more than {MOST_DATA} bytes")


def check_job(spec: dict, meta: dict, bad: list[str]) -> None:
    name, template, path = meta.get("name", ""), spec.get("template") or {}, "spec.template"
    check_metadata(template.get("metadata") or {}, path, bad)
    check_text("value", name, f"{path}.labels", bad)  # a label of its pods
    last = f"{name}-{(spec.get('completions') or 1) - 1}"
    if len(last) > 63:
        message = f"will not able to create pod with invalid DNS label: {last}"
        bad.append(invalid("metadata.name", name, message))
    pod = template.get("spec") or {}
    is_served = pod.get("restartPolicy") == "Never" and pod.get("shareProcessNamespace")
    is_indexed = spec.get("completionMode") == "Indexed" and spec.get("completions")
    if not is_served or not is_indexed or spec.get("podReplacementPolicy") != "Failed":
        message = "jobs of the embedded cloud have completionMode Indexed, completions, podReplacementPolicy "
        message += "Failed, and pods with restartPolicy Never and shareProcessNamespace"
        raise Refusal(501, "NotImplemented", message)
    check_pod(template["spec"], f"{path}.spec", bad)


def check_pod(pod: dict, at: str, bad: list[str]) -> None:
    """Of a pod's spec, which is at `at`."""
    volumes = unique_names(pod.get("volumes") or [], f"{at}.volumes", bad)
    if not pod.get("containers"):
        bad.append(f"{at}.containers: Required value")
    unique_names(pod.get("containers") or [], f"{at}.containers", bad)
    check_labels(pod.get("nodeSelector"), f"{at}.nodeSelector", bad)
    for number, container in enumerate(pod.get("containers") or []):
        path = f"{at}.containers[{number}]"
        if not container.get("image"):
            bad.append(f"{path}.image: Required value")
        seen: set[str] = set()
        for index, mount in enumerate(container.get("volumeMounts") or []):
            where, target = f"{path}.volumeMounts[{index}]", mount.get("mountPath", "")
            if mount.get("name", "") not in volumes:
                bad.append(f'{where}.name: Not found: "{mount.get("name", "")}"')
            if target in seen:
                bad.append(invalid(f"{where}.mountPath", target, "must be unique"))
            seen.add(target)
        check_resources(container.get("resources") or {}, f"{path}.resources", bad)


def unique_names(rows: list[dict], at: str, bad: list[str]) -> set[str]:
    """Return the names of volumes or containers; each needs one of its own."""
    names: set[str] = set()
    for number, row in enumerate(rows):
        path, name = f"{at}[{number}].name", row.get("name", "")
        check_text("label name", name, path, bad)
        if name in names:
            bad.append(f'{path}: Duplicate value: "{name}"')
        names.add(name)
    return names


def check_resources(resources: dict, path: str, bad: list[str]) -> None:
    """Of amounts: no more is requested than is the limit, and of GPUs exactly that."""
    limits, wanted = resources.get("limits") or {}, resources.get("requests") or {}
    for name, quantity in wanted.items():
        limit, is_extended = limits.get(name), "/" in name
        if limit is None and is_extended:
            message = "Limit must be set for non overcommitable resources"
            bad.append(f"{path}.limits: Required value: {message}")
        elif limit is not None and is_extended and amount(quantity) != amount(limit):
            message = f"must be equal to {name} limit of {limit}"
            bad.append(invalid(f"{path}.requests", quantity, message))
        elif limit is not None and amount(quantity) > amount(limit):
            message = f"must be less than or equal to {name} limit of {limit}"
            bad.append(invalid(f"{path}.requests", quantity, message))

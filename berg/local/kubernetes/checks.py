"""What no schema says of an object: names, labels, jobs, pods. The texts are those of a real 1.36.

Not covered: most of what Kubernetes checks of objects that are none of jobs, pods or what they mount.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from berg.local.kubernetes import schema
from berg.local.kubernetes.kinds import KINDS, Kind, Refusal

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
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
WITH_PODS = {"pods": "spec", "jobs": "spec.template.spec", "deployments": "spec.template.spec"}
WITH_PODS["replicasets"] = "spec.template.spec"


def check_form(kind: Kind, body: Any, strict: bool) -> None:
    """Raise the decoder's 400 for a body of another kind, with wrong types or, if `strict`, with unknown fields."""
    version = kind.api.rpartition("/")[2]
    prefix = f'{kind.name} in version "{version}" cannot be handled as a {kind.name}: '
    if not isinstance(body, dict):
        raise Refusal(400, "BadRequest", "couldn't get version/kind; json parse error: not an object")
    if body.get("kind", kind.name) != kind.name or body.get("apiVersion", kind.api) != kind.api:
        told = f'no kind "{body.get("kind")}" is registered for version "{body.get("apiVersion")}" in scheme '
        told += '"k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30"'
        raise Refusal(
            400, "BadRequest", f'{body.get("kind")} in version "{version}" cannot be handled as a {kind.name}: {told}'
        )
    found = schema.errors(kind.api, kind.name, body)
    types = [each for each in found if not each.startswith("unknown field")]
    if types:  # Go's decoder stops at the first wrong type
        raise Refusal(400, "BadRequest", prefix + types[0])
    if found and strict:
        raise Refusal(400, "BadRequest", f"{prefix}strict decoding error: {', '.join(found)}")


def refuse(kind: Kind, name: str, causes: list[str]) -> NoReturn:
    shown = f"{kind.name}.{kind.group}".rstrip(".")
    text = causes[0] if len(causes) == 1 else f"[{', '.join(causes)}]"
    message = f'{shown} "{name}" is invalid: {text}'
    raise Refusal(422, "Invalid", message, name=name, group=kind.group, kind=kind.name)


def check_meaning(plural: str, body: dict) -> None:
    """Raise the 422 for a body that fits its schema and still may not be."""
    meta, spec, bad = body["metadata"], body.get("spec") or {}, []  # type: dict, dict, list[str]
    name = meta.get("name", "")
    check_metadata(plural, meta, bad)
    path = WITH_PODS.get(plural, "")
    pod = spec if plural == "pods" else (spec.get("template") or {}).get("spec") or {}
    if plural == "jobs":
        check_job(spec, pod, name, bad)
    if path:
        check_pod(pod, path, bad)
    if plural == "jobs" and pod.get("restartPolicy") not in ("Never", "OnFailure"):
        bad.append(f'{path}.restartPolicy: Required value: valid values: "OnFailure", "Never"')
    if bad:
        refuse(KINDS[plural], name, bad)


def check_metadata(plural: str, meta: dict, bad: list[str]) -> None:
    name = meta.get("name", "")
    pattern, rule = (LABEL, LABEL_RULE) if plural in ("services", "namespaces") else (SUBDOMAIN, SUBDOMAIN_RULE)
    free = plural in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")  # names such as system:node
    if not free and not pattern.fullmatch(name):
        bad.append(f'metadata.name: Invalid value: "{name}": {rule}')
    for owner in meta.get("ownerReferences") or []:
        if not owner.get("uid"):
            bad.append('metadata.ownerReferences.uid: Invalid value: "": must not be empty')
    for text in (meta.get("labels") or {}).values():
        if len(text) > 63:
            bad.append(f'metadata.labels: Invalid value: "{text}": must be no more than 63 bytes')
        elif not re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", text):
            bad.append(f'metadata.labels: Invalid value: "{text}": {VALUE_RULE}')


def one_of(value: Any, allowed: tuple[str, ...], path: str, bad: list[str]) -> None:
    if value is not None and value not in allowed:
        supported = ", ".join(f'"{each}"' for each in allowed)
        bad.append(f'{path}: Unsupported value: "{value}": supported values: {supported}')


def check_job(spec: dict, pod: dict, name: str, bad: list[str]) -> None:
    indexed = spec.get("completionMode") == "Indexed"
    rules = (spec.get("podFailurePolicy") or {}).get("rules") or []
    if spec.get("selector") and not spec.get("manualSelector"):
        bad.append(f"spec.selector: Invalid value: {json.dumps(spec['selector'])}: `selector` not auto-generated")
    one_of(spec.get("completionMode"), ("NonIndexed", "Indexed"), "spec.completionMode", bad)
    if indexed and spec.get("completions") is None:
        bad.append("spec.completions: Required value: when completion mode is Indexed")
    last = f"{name}-{(spec.get('completions') or 1) - 1}"
    if indexed and len(last) > 63:
        told = f"will not able to create pod with invalid DNS label: {last}"
        bad.append(f'metadata.name: Invalid value: "{name}": {told}')
    if spec.get("backoffLimitPerIndex") is not None and not indexed:
        told = "requires indexed completion mode"
        bad.append(f"spec.backoffLimitPerIndex: Invalid value: {spec['backoffLimitPerIndex']}: {told}")
    replacements = ("Failed",) if rules else ("Failed", "TerminatingOrFailed")
    one_of(spec.get("podReplacementPolicy"), replacements, "spec.podReplacementPolicy", bad)
    if rules and pod.get("restartPolicy") == "OnFailure":
        told = 'only "Never" is supported when podFailurePolicy is specified'
        bad.append(f'spec.template.spec.restartPolicy: Invalid value: "OnFailure": {told}')
    names = {container.get("name") for container in pod.get("containers") or []}
    for number, rule in enumerate(rules):
        check_failure_rule(rule, f"spec.podFailurePolicy.rules[{number}]", spec, names, bad)
    if spec.get("successPolicy") is not None:
        check_success_policy(spec, indexed, bad)


def check_failure_rule(rule: dict, path: str, spec: dict, names: set, bad: list[str]) -> None:
    codes = rule.get("onExitCodes") or {}
    values = codes.get("values", [])
    one_of(rule.get("action"), ("Count", "FailIndex", "FailJob", "Ignore"), f"{path}.action", bad)
    if rule.get("action") == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
        bad.append(f'{path}.action: Invalid value: "FailIndex": requires the backoffLimitPerIndex to be set')
    if bool(codes) == bool(rule.get("onPodConditions")):
        bad.append(f"{path}: Invalid value: specifying one of OnExitCodes and OnPodConditions is required")
    if 0 in values and codes.get("operator") == "In":
        bad.append(f"{path}.onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator")
    if values != sorted(values):
        shown = json.dumps(values, separators=(",", ":"))
        bad.append(f"{path}.onExitCodes.values: Invalid value: {shown}: must be ordered")
    container = codes.get("containerName")
    if container and container not in names:
        told = "must be one of the container or initContainer names in the pod template"
        bad.append(f'{path}.onExitCodes.containerName: Invalid value: "{container}": {told}')


def check_success_policy(spec: dict, indexed: bool, bad: list[str]) -> None:
    rules = spec["successPolicy"].get("rules") or []
    path = "spec.successPolicy"
    if not indexed:
        bad.append(f"{path}: Invalid value: {json.dumps(spec['successPolicy'])}: requires indexed completion mode")
        return
    if not rules:
        told = "at least one rules must be specified when the successPolicy is specified"
        bad.append(f"{path}.rules: Required value: {told}")
    for number, rule in enumerate(rules):
        at, indexes, count = f"{path}.rules[{number}]", rule.get("succeededIndexes"), rule.get("succeededCount")
        if indexes is None and count is None:
            bad.append(f"{at}: Required value: at least one of succeededCount or succeededIndexes must be specified")
        total = 0
        if indexes is not None:
            try:
                total = len(indexes_in(indexes, spec.get("completions") or 0))
            except ValueError as error:
                told = f"error parsing succeededIndexes: {error}"
                bad.append(f'{at}.succeededIndexes: Invalid value: "{indexes}": {told}')
        if count is not None and (total or 0) and count > total:
            told = (
                f"must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
            )
            bad.append(f"{at}.succeededCount: Invalid value: {count}: {told}")


def indexes_in(text: str, completions: int) -> set[int]:
    """The numbers that `1,3-5` stands for; ValueError with Kubernetes' words for what is none."""
    found: set[int] = set()
    last = -1
    for part in filter(None, text.split(",")):
        ends = part.split("-")
        for end in ends:
            if not end.isdigit():
                raise ValueError(f'cannot convert string to integer for index: "{end}"')
            if int(end) >= completions:
                raise ValueError(f'too large index: "{end}"')
        if len(ends) > 2:
            told = "violates the requirement that an index interval can have at most two parts separated by '-'"
            raise ValueError(f'the fragment "{part}" {told}')
        first, until = int(ends[0]), int(ends[-1])
        if len(ends) == 2 and first >= until:
            raise ValueError(f"non-increasing order, previous: {first}, current: {until}")
        if first <= last:
            raise ValueError(f"non-increasing order, previous: {last}, current: {first}")
        found |= set(range(first, until + 1))
        last = until
    return found


def check_pod(pod: dict, at: str, bad: list[str]) -> None:
    volumes = set()
    for number, volume in enumerate(pod.get("volumes") or []):
        sources = [key for key in volume if key != "name"]
        if not volume.get("name"):
            bad.append(f"{at}.volumes[{number}].name: Required value")
        if len(sources) > 1:
            bad.append(f"{at}.volumes[{number}].{sources[1]}: Forbidden: may not specify more than 1 volume type")
        volumes.add(volume.get("name"))
    if not pod.get("containers"):
        bad.append(f"{at}.containers: Required value")
    for kind in ("containers", "initContainers"):
        for number, container in enumerate(pod.get(kind) or []):
            check_container(container, f"{at}.{kind}[{number}]", volumes, bad)
    for number, toleration in enumerate(pod.get("tolerations") or []):
        if toleration.get("operator") == "Exists" and toleration.get("value"):
            told = "value must be empty when `operator` is 'Exists'"
            bad.append(f'{at}.tolerations[{number}].operator: Invalid value: "{toleration["value"]}": {told}')
    if pod.get("subdomain") and not LABEL.fullmatch(pod["subdomain"]):
        bad.append(f'{at}.subdomain: Invalid value: "{pod["subdomain"]}": {LABEL_RULE}')


def check_container(container: dict, path: str, volumes: set, bad: list[str]) -> None:
    if not container.get("image"):
        bad.append(f"{path}.image: Required value")
    one_of(container.get("imagePullPolicy"), ("Always", "IfNotPresent", "Never"), f"{path}.imagePullPolicy", bad)
    for number, item in enumerate(container.get("env") or []):
        if not re.fullmatch(r"[ -<>-~]+", item.get("name", "")):
            told = "a valid environment variable name must consist only of printable ASCII characters other than '='"
            bad.append(f'{path}.env[{number}].name: Invalid value: "{item.get("name")}": {told}')
    seen = set()
    for number, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") not in volumes:
            bad.append(f'{path}.volumeMounts[{number}].name: Not found: "{mount.get("name")}"')
        if mount.get("mountPath") in seen:
            told = f'Invalid value: "{mount["mountPath"]}": must be unique'
            bad.append(f"{path}.volumeMounts[{number}].mountPath: {told}")
        seen.add(mount.get("mountPath"))
    limits, requests = ((container.get("resources") or {}).get(key) or {} for key in ("limits", "requests"))
    for name in sorted(name for name in {*limits, *requests} if "/" in name):
        if not str(limits.get(name, 0)).isdigit():
            shown = f"{float(limits[name]) * 1000:.0f}m"
            bad.append(f'{path}.resources.limits[{name}]: Invalid value: "{shown}": must be an integer')
        elif str(limits.get(name)) != str(requests.get(name, limits.get(name))):
            told = f"must be equal to {name} limit of {limits.get(name)}"
            bad.append(f'{path}.resources.requests: Invalid value: "{requests.get(name)}": {told}')

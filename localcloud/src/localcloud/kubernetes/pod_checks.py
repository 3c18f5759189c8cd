"""What Kubernetes refuses of a pod besides what its schema says, in its words.

Covered are the fields that Berg's own pods, kubectl's and lightkube's have: names, images, ports,
variables, mounts, amounts of resources, tolerations and labels.
"""

from __future__ import annotations

from localcloud.kubernetes.quantity import amount, canonical
from localcloud.kubernetes.words import (
    check_key,
    check_label_name,
    check_labels,
    check_subdomain,
    invalid,
    one_of,
    required,
)

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef")
MOST_INT = 2**31 - 1


def template_errors(template: dict, path: str) -> list[str]:
    """Of a pod's template: `path` is that of the template."""
    bad: list[str] = []
    meta = template.get("metadata") or {}
    check_labels(meta.get("labels"), f"{path}.labels", bad)
    for key in meta.get("annotations") or {}:
        check_key(key.lower(), f"{path}.annotations", bad)
    return bad + pod_errors(template.get("spec") or {}, f"{path}.spec")


def pod_errors(pod: dict, at: str) -> list[str]:
    """Of a pod's spec, which is at `at`."""
    bad: list[str] = []
    volumes = unique_names(pod.get("volumes") or [], f"{at}.volumes", bad)
    if not pod.get("containers"):
        bad.append(required(f"{at}.containers"))
    unique_names(pod.get("containers") or [], f"{at}.containers", bad)
    unique_names(pod.get("initContainers") or [], f"{at}.initContainers", bad)
    for kind in ("containers", "initContainers"):
        for number, container in enumerate(pod.get(kind) or []):
            container_errors(container, f"{at}.{kind}[{number}]", volumes, bad)
    one_of(pod.get("restartPolicy"), ("Always", "OnFailure", "Never"), f"{at}.restartPolicy", bad)
    check_labels(pod.get("nodeSelector"), f"{at}.nodeSelector", bad)
    if pod.get("serviceAccountName"):
        check_subdomain(pod["serviceAccountName"], f"{at}.serviceAccountName", bad)
    seconds = pod.get("activeDeadlineSeconds")
    if seconds is not None and not 1 <= seconds <= MOST_INT:
        message = f"must be between 1 and {MOST_INT}, inclusive"
        bad.append(invalid(f"{at}.activeDeadlineSeconds", seconds, message))
    for key in ("hostname", "subdomain"):
        if pod.get(key):
            check_label_name(pod[key], f"{at}.{key}", bad)
    for number, toleration in enumerate(pod.get("tolerations") or []):
        toleration_errors(toleration, f"{at}.tolerations[{number}]", bad)
    return bad


def unique_names(rows: list[dict], at: str, bad: list[str]) -> set[str]:
    """Return the names of volumes or containers; each needs one of its own."""
    names: set[str] = set()
    for number, row in enumerate(rows):
        path, name = f"{at}[{number}].name", row.get("name", "")
        if not name:
            bad.append(required(path))
        else:
            check_label_name(name, path, bad)
        if name in names:
            bad.append(f'{path}: Duplicate value: "{name}"')
        names.add(name)
    return names


def container_errors(container: dict, path: str, volumes: set[str], bad: list[str]) -> None:
    image = container.get("image") or ""
    if not image:
        bad.append(required(f"{path}.image"))
    elif image.strip() != image:
        message = "must not have leading or trailing whitespace"
        bad.append(invalid(f"{path}.image", image, message))
    for number, port in enumerate(container.get("ports") or []):
        if not 1 <= port.get("containerPort", 0) <= 65535:
            message = "must be between 1 and 65535, inclusive"
            at = f"{path}.ports[{number}].containerPort"
            bad.append(invalid(at, port.get("containerPort", 0), message))
    for number, item in enumerate(container.get("env") or []):
        env_errors(item, f"{path}.env[{number}]", bad)
    seen: set[str] = set()
    for number, mount in enumerate(container.get("volumeMounts") or []):
        at, target = f"{path}.volumeMounts[{number}]", mount.get("mountPath", "")
        if mount.get("name", "") not in volumes:
            bad.append(f'{at}.name: Not found: "{mount.get("name", "")}"')
        if not target:
            bad.append(required(f"{at}.mountPath"))
        if target in seen:
            bad.append(invalid(f"{at}.mountPath", target, "must be unique"))
        seen.add(target)
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(kind) is not None:
            probe_errors(container[kind], f"{path}.{kind}", bad)
    pulls = ("Always", "IfNotPresent", "Never")
    one_of(container.get("imagePullPolicy"), pulls, f"{path}.imagePullPolicy", bad)
    resource_errors(container.get("resources") or {}, f"{path}.resources", bad)


def probe_errors(probe: dict, path: str, bad: list[str]) -> None:
    kinds = [key for key in ("exec", "httpGet", "tcpSocket", "grpc") if key in probe]
    if not kinds:
        bad.append(required(path, "must specify a handler type"))
    for kind in kinds:
        port = probe[kind].get("port", 1)
        if isinstance(port, int) and not 1 <= port <= 65535:
            message = "must be between 1 and 65535, inclusive"
            bad.append(invalid(f"{path}.{kind}.port", port, message))


def env_errors(item: dict, path: str, bad: list[str]) -> None:
    if not item.get("name"):
        bad.append(required(f"{path}.name"))
    source = item.get("valueFrom")
    if source is None:
        return
    kinds = [key for key in SOURCES if source.get(key) is not None]
    message = ""
    if not kinds:
        message = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, "
        message += "`secretKeyRef` or `fileKeyRef`"
    elif item.get("value"):
        message = "may not be specified when `value` is not empty"
    elif len(kinds) > 1:
        message = "may not have more than one field specified at a time"
    if message:
        bad.append(invalid(f"{path}.valueFrom", "", message))


def resource_errors(resources: dict, path: str, bad: list[str]) -> None:
    """Of amounts: those of GPUs and TPUs are whole, and the same as request and as limit."""
    limits, wanted = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, rows in (("limits", limits), ("requests", wanted)):
        for name, quantity in rows.items():
            at, number = f"{path}.{kind}[{name}]", amount(quantity)
            check_key(name, at, bad)
            if number < 0:
                message = "must be greater than or equal to 0"
                bad.append(invalid(at, canonical(quantity), message))
            if "/" in name and number != int(number):
                bad.append(invalid(at, canonical(quantity), "must be an integer"))
    for name, quantity in wanted.items():
        limit, at = limits.get(name), f"{path}.requests"
        if limit is None and "/" in name:
            message = "Limit must be set for non overcommitable resources"
            bad.append(required(f"{path}.limits", message))
        elif limit is not None and "/" in name and amount(quantity) != amount(limit):
            message = f"must be equal to {name} limit of {canonical(limit)}"
            bad.append(invalid(at, canonical(quantity), message))
        elif limit is not None and amount(quantity) > amount(limit):
            message = f"must be less than or equal to {name} limit of {canonical(limit)}"
            bad.append(invalid(at, canonical(quantity), message))


def toleration_errors(row: dict, path: str, bad: list[str]) -> None:
    key, operator, effect = row.get("key"), row.get("operator"), row.get("effect")
    if key:
        check_key(key, f"{path}.key", bad)
    elif operator != "Exists":
        message = "operator must be Exists when `key` is empty, which means "
        message += '"match all values and all keys"'
        bad.append(invalid(f"{path}.operator", operator or "", message))
    if operator == "Exists" and row.get("value"):
        message = "value must be empty when `operator` is 'Exists'"
        bad.append(invalid(f"{path}.operator", row["value"], message))
    if operator:
        one_of(operator, ("Equal", "Exists"), f"{path}.operator", bad)
    if effect:
        one_of(effect, EFFECTS, f"{path}.effect", bad)

"""What Kubernetes checks of a pod, alone or in a template, beside its schema, in its words and
order.

What else there is to check of containers, volumes and placement stands in container_checks.py,
volume_checks.py and placing_checks.py.

Not covered: most of security contexts, volumes that the embedded cloud cannot mount.
"""

from __future__ import annotations

import re

from localcloud.kubernetes.container_checks import (
    context_in_go,
    host_port_errors,
    more_errors,
    port_name_errors,
)
from localcloud.kubernetes.object_checks import annotation_errors
from localcloud.kubernetes.placing_checks import placing_errors
from localcloud.kubernetes.quantity import amount, canonical
from localcloud.kubernetes.resource_checks import amount_errors, container_name_errors, is_fixed
from localcloud.kubernetes.volume_checks import (
    OF_VARIABLES,
    device_errors,
    env_from_errors,
    field_errors,
    key_source_errors,
    mount_errors,
    resource_source_errors,
    volume_errors,
)
from localcloud.kubernetes.words import (
    check_key,
    check_label_name,
    check_label_value,
    check_labels,
    check_subdomain,
    invalid,
    not_negative,
    one_of,
    required,
    supported,
)

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
# In which order Kubernetes checks a pod's fields, and a container's.
ORDER = (
    *("volumes", "resourceClaims", "containers", "initContainers", "ephemeralContainers"),
    *("resources", "restartPolicy", "dnsPolicy", "nodeSelector", "securityContext"),
    *("shareProcessNamespace", "imagePullSecrets", "affinity", "dnsConfig", "readinessGates"),
    *("schedulingGates", "topologySpreadConstraints", "hostNetwork", "HostPID", "HostIPC"),
    *(
        "hostnameOverride",
        "serviceAccountName",
        "nodeName",
        "activeDeadlineSeconds",
        "hostname",
        "subdomain",
    ),
    *("tolerations", "hostAliases", "os"),
)
INNER = tuple(
    f"{name}{late}"
    for name, late in (
        *(("name", False), ("image", False), ("terminationMessagePolicy", False)),
        *(("ports", False), ("env", False), ("envFrom", False), ("volumeMounts", False)),
        *(("volumeDevices", False), ("imagePullPolicy", False), ("resources", False)),
        *(("resizePolicy", False), ("securityContext", False), ("name", True)),
        *(("lifecycle", False), ("livenessProbe", False), ("readinessProbe", False)),
        *(("startupProbe", False), ("restartPolicy", False)),
    )
)
ENV_RULE = "a valid environment variable name must consist only of printable ASCII characters other than '='"
SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
MOST_INT = 2**31 - 1


def template_errors(template: dict, path: str) -> list[str]:
    """Of a pod's template: `path` is that of the template."""
    bad: list[str] = []
    meta = template.get("metadata") or {}
    check_labels(meta.get("labels"), f"{path}.labels", bad)
    for key in meta.get("annotations") or {}:
        check_key(key.lower(), f"{path}.annotations", bad)
    bad += annotation_errors(meta.get("annotations"), f"{path}.annotations")
    if (template.get("spec") or {}).get("ephemeralContainers"):
        told = "ephemeral containers not allowed in pod template"
        bad.append(f"{path}.spec.ephemeralContainers: Forbidden: {told}")
    return bad + pod_errors(template.get("spec") or {}, f"{path}.spec")


def pod_errors(pod: dict, at: str) -> list[str]:
    bad: list[str] = []
    volumes = volume_names(pod.get("volumes") or [], f"{at}.volumes", bad)
    if not pod.get("containers"):
        bad.append(required(f"{at}.containers"))
    names: set[str] = set()
    for kind in ("containers", "initContainers"):
        for number, container in enumerate(pod.get(kind) or []):
            path = f"{at}.{kind}[{number}]"
            container_errors(container, path, volumes, bad)
            more_errors(pod, container, path, bad)
            if container.get("name") in names:
                bad.append(f'{path}.name: Duplicate value: "{container["name"]}"')
            names.add(container.get("name", ""))
    one_of(pod.get("restartPolicy"), ("Always", "OnFailure", "Never"), f"{at}.restartPolicy", bad)
    user_errors(pod.get("securityContext") or {}, f"{at}.securityContext", bad)
    policies = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
    one_of(pod.get("dnsPolicy"), policies, f"{at}.dnsPolicy", bad)
    check_labels(pod.get("nodeSelector"), f"{at}.nodeSelector", bad)
    if pod.get("serviceAccountName"):
        check_subdomain(pod["serviceAccountName"], f"{at}.serviceAccountName", bad)
    seconds = pod.get("activeDeadlineSeconds")
    if seconds is not None and not 1 <= seconds <= MOST_INT:
        bad.append(
            invalid(
                f"{at}.activeDeadlineSeconds",
                seconds,
                f"must be between 1 and {MOST_INT}, inclusive",
            )
        )
    for key in ("hostname", "subdomain"):
        if pod.get(key):
            check_label_name(pod[key], f"{at}.{key}", bad)
    for number, claim in enumerate(pod.get("resourceClaims") or []):
        path, name = f"{at}.resourceClaims[{number}]", claim.get("name", "")
        if not name:
            bad.append(required(f"{path}.name"))
        elif name in [each.get("name") for each in pod["resourceClaims"][:number]]:
            bad.append(f'{path}.name: Duplicate value: "{name}"')
        else:
            check_label_name(name, f"{path}.name", bad)
        claim_errors(claim, path, bad)
    shared_errors(pod.get("resources") or {}, f"{at}.resources", bad)
    sum_errors(pod, f"{at}.resources.requests", bad)
    for number, toleration in enumerate(pod.get("tolerations") or []):
        toleration_errors(toleration, f"{at}.tolerations[{number}]", bad)
    host_port_errors(pod, at, bad)
    found = sorted(bad + placing_errors(pod, at), key=lambda each: rank(each, at))
    file_volume_errors(pod, at, found)
    return found


def rank(error: str, at: str) -> tuple[int, ...]:
    """Where an error of a pod's stands among others: Kubernetes looks at one field after another."""
    path, _, told = error.removeprefix(f"{at}.").partition(": ")
    found = re.fullmatch(r"(\w+)(?:\[(\d+)\])?(?:\.(\w+))?.*", path)
    assert found is not None
    field, number, inner = found[1], int(found[2] or 0), found[3]
    is_last = path.endswith("hostPort") and told.startswith("Duplicate")
    if not field.endswith("ontainers"):
        return place(field, ORDER), 0, 0
    late = told.startswith("Duplicate") and inner == "name"
    return place(field, ORDER), 9999 if is_last else number, place(f"{inner}{late}", INNER)


def place(field: str, order: tuple[str, ...]) -> int:
    return order.index(field) if field in order else len(order)


def image_errors(pod: dict) -> list[str]:
    """Of images as pods have them; in templates they may be anything."""
    rows = [
        (f"spec.{kind}[{number}].image", container.get("image") or "")
        for kind in ("containers", "initContainers")
        for number, container in enumerate(pod.get(kind) or [])
    ]
    told = "must not have leading or trailing whitespace"
    return [invalid(path, image, told) for path, image in rows if image.strip() != image]


def volume_names(volumes: list[dict], at: str, bad: list[str]) -> set[str]:
    names: set[str] = set()
    for number, volume in enumerate(volumes):
        path, name = f"{at}[{number}]", volume.get("name", "")
        sources = [key for key in volume if key != "name"]
        bad += [
            f"{path}.{each}: Forbidden: may not specify more than 1 volume type"
            for each in sources[1:]
        ]
        volume_errors(volume, path, bad)
        if not name:
            bad.append(required(f"{path}.name"))
        else:
            check_label_name(name, f"{path}.name", bad)
        if name in names:
            bad.append(f'{path}.name: Duplicate value: "{name}"')
        names.add(name)
    return names


def container_errors(container: dict, path: str, volumes: set[str], bad: list[str]) -> None:
    name, image = container.get("name"), container.get("image", "")
    if not name:
        bad.append(required(f"{path}.name"))
    else:
        check_label_name(name, f"{path}.name", bad)
    if not image:
        bad.append(required(f"{path}.image"))
    port_errors(container.get("ports") or [], f"{path}.ports", bad)
    for number, item in enumerate(container.get("env") or []):
        env_errors(item, f"{path}.env[{number}]", bad)
    seen: set[str] = set()
    for number, mount in enumerate(container.get("volumeMounts") or []):
        at, target = f"{path}.volumeMounts[{number}]", mount.get("mountPath", "")
        if not mount.get("name"):
            bad.append(required(f"{at}.name"))
        if mount.get("name", "") not in volumes:
            bad.append(f'{at}.name: Not found: "{mount.get("name", "")}"')
        if not target:
            bad.append(required(f"{at}.mountPath"))
        if target in seen:
            bad.append(invalid(f"{at}.mountPath", target, "must be unique"))
        seen.add(target)
        devices = container.get("volumeDevices") or []
        if mount.get("name", "") in [each.get("name") for each in devices]:
            told = "must not already exist in volumeDevices"
            bad.append(invalid(f"{at}.name", mount.get("name", ""), told))
        if target and target in [each.get("devicePath") for each in devices]:
            told = "must not already exist as a path in volumeDevices"
            bad.append(invalid(f"{at}.mountPath", target, told))
    one_of(
        container.get("imagePullPolicy"),
        ("Always", "IfNotPresent", "Never"),
        f"{path}.imagePullPolicy",
        bad,
    )
    mount_errors(container, path, bad)
    device_errors(container, path, volumes, bad)
    env_from_errors(container, path, bad)
    resource_errors(container.get("resources") or {}, f"{path}.resources", bad)
    context = container.get("securityContext") or {}
    user_errors(context, f"{path}.securityContext", bad)
    if context.get("privileged") and context.get("allowPrivilegeEscalation") is False:
        told = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        bad.append(invalid(f"{path}.securityContext", context_in_go(context), told))
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(kind) is not None:
            probe_errors(container[kind], f"{path}.{kind}", bad)


def claim_errors(claim: dict, path: str, bad: list[str]) -> None:
    """Of what a pod asks for by dynamic resource allocation."""
    names = ("resourceClaimName", "resourceClaimTemplateName")
    given = [name for name in names if claim.get(name) is not None]
    if len(given) == 2:
        told = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
        bad.append(invalid(path, claim, told))
    if not given:
        told = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
        bad.append(invalid(path, claim, told))


def shared_errors(resources: dict, path: str, bad: list[str]) -> None:
    """Of resources that all containers of a pod share."""
    for kind in ("limits", "requests"):
        for name in resources.get(kind) or {}:
            if name not in ("cpu", "memory") and not name.startswith("hugepages-"):
                allowed = supported(("cpu", "hugepages-", "memory"))
                told = f'Unsupported value: "{name}": supported values: {allowed}'
                bad.append(f"{path}.{kind}[{name}]: {told}")


def sum_errors(pod: dict, path: str, bad: list[str]) -> None:
    """Of what a pod asks for as a whole, which is no less than what its containers do."""
    for name, quantity in ((pod.get("resources") or {}).get("requests") or {}).items():
        asked = [
            str(((each.get("resources") or {}).get("requests") or {}).get(name, "0"))
            for each in pod.get("containers") or []
        ]
        total = sum(map(amount, asked))
        if total > amount(quantity):
            shown = asked[0] if len(asked) == 1 else canonical(total)
            told = f"must be greater than or equal to aggregate container requests of {shown}"
            bad.append(invalid(f"{path}[{name}]", canonical(quantity), told))


def user_errors(context: dict, path: str, bad: list[str]) -> None:
    told = f"must be between 0 and {MOST_INT}, inclusive"
    for key in ("fsGroup", "runAsUser", "runAsGroup"):
        if context.get(key) is not None and not 0 <= context[key] <= MOST_INT:
            bad.append(invalid(f"{path}.{key}", context[key], told))
    for number, group in enumerate(context.get("supplementalGroups") or []):
        if not 0 <= group <= MOST_INT:
            bad.append(invalid(f"{path}.supplementalGroups[{number}]", group, told))


def probe_errors(probe: dict, path: str, bad: list[str]) -> None:
    kinds = [key for key in ("exec", "httpGet", "tcpSocket", "grpc") if key in probe]
    bad += [
        f"{path}.{each}: Forbidden: may not specify more than 1 handler type" for each in kinds[1:]
    ]
    if not kinds:
        bad.append(required(path, "must specify a handler type"))
    for kind in kinds[:1]:
        port = probe[kind].get("port") if kind != "exec" else 1
        if isinstance(port, str):
            port_name_errors(port, f"{path}.{kind}.port", bad)
        if isinstance(port, int) and not 1 <= port <= 65535:
            bad.append(
                invalid(f"{path}.{kind}.port", port, "must be between 1 and 65535, inclusive")
            )
    for key in (
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ):
        not_negative(probe.get(key), f"{path}.{key}", bad)
    if not path.endswith("readinessProbe") and probe.get("successThreshold") not in (None, 1):
        bad.append(invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1"))


def port_errors(ports: list[dict], at: str, bad: list[str]) -> None:
    names: set[str] = set()
    for number, port in enumerate(ports):
        name, host = port.get("name", ""), port.get("hostPort")
        if name:
            port_name_errors(name, f"{at}[{number}].name", bad)
        if name in names:
            bad.append(f'{at}[{number}].name: Duplicate value: "{name}"')
        names |= {name} - {""}
        value = port.get("containerPort")
        if not value:
            bad.append(required(f"{at}[{number}].containerPort"))
        elif not 1 <= value <= 65535:
            bad.append(
                invalid(
                    f"{at}[{number}].containerPort", value, "must be between 1 and 65535, inclusive"
                )
            )
        if host and not 1 <= host <= 65535:
            told = "must be between 1 and 65535, inclusive"
            bad.append(invalid(f"{at}[{number}].hostPort", host, told))
        one_of(port.get("protocol"), ("SCTP", "TCP", "UDP"), f"{at}[{number}].protocol", bad)


def env_errors(item: dict, path: str, bad: list[str]) -> None:
    name, source = item.get("name", ""), item.get("valueFrom")
    if not name:
        bad.append(required(f"{path}.name"))
    elif not re.fullmatch(r"[ -<>-~]+", name):
        bad.append(invalid(f"{path}.name", name, ENV_RULE))
    if source is None:
        return
    kinds = [key for key in SOURCES if source.get(key) is not None]
    for kind in kinds:
        source_errors(kind, source[kind], f"{path}.valueFrom", bad)
    if not kinds:
        told = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        bad.append(invalid(f"{path}.valueFrom", "", told))
    elif item.get("value"):
        bad.append(
            invalid(f"{path}.valueFrom", "", "may not be specified when `value` is not empty")
        )
    elif len(kinds) > 1:
        bad.append(
            invalid(f"{path}.valueFrom", "", "may not have more than one field specified at a time")
        )


def source_errors(kind: str, source: dict, path: str, bad: list[str]) -> None:
    if kind == "fieldRef":
        field_errors(source, OF_VARIABLES, f"{path}.fieldRef", bad)
    elif kind in ("configMapKeyRef", "secretKeyRef"):
        key_source_errors(source, f"{path}.{kind}", bad)
    elif kind == "fileKeyRef":
        file_key_errors(source, f"{path}.{kind}", bad)
    elif kind == "resourceFieldRef":
        resource_source_errors(source, f"{path}.{kind}", bad)


def file_key_errors(source: dict, path: str, bad: list[str]) -> None:
    """Of a reference to a variable in a file that a container before wrote."""
    for key in ("key", "volumeName", "path"):
        if not source.get(key):
            bad.append(required(f"{path}.{key}"))
    if source.get("key") and not re.fullmatch(r"[ -<>-~]+", source["key"]):
        bad.append(invalid(f"{path}.key", source["key"], ENV_RULE))
    if source.get("volumeName"):
        check_label_name(source["volumeName"], f"{path}.volumeName", bad)
    if ".." in source.get("path", "").split("/"):
        bad.append(invalid(f"{path}.path", source["path"], "must not contain '..'"))


def file_volume_errors(pod: dict, at: str, bad: list[str]) -> None:
    """Of the volumes with files of variables, which are folders that come and go with the pod."""
    volumes = {each.get("name"): each for each in pod.get("volumes") or []}
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(pod.get(kind) or []):
            for index, row in enumerate(container.get("env") or []):
                name = ((row.get("valueFrom") or {}).get("fileKeyRef") or {}).get("volumeName")
                path = f"{at}.{kind}[{number}].env[{index}].valueFrom.fileKeyRef.volumeName"
                if name is not None and name not in volumes:
                    bad.append(f'{path}: Not found: "{name}"')
                elif name is not None and volumes[name].get("emptyDir") is None:
                    told = "referenced volume must be of type emptyDir"
                    bad.append(invalid(path, name, told))


def resource_errors(resources: dict, path: str, bad: list[str]) -> None:
    limits, wanted = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, rows in (("limits", limits), ("requests", wanted)):
        for name, quantity in rows.items():
            container_name_errors(name, f"{path}.{kind}[{name}]", bad)
            amount_errors(name, quantity, f"{path}.{kind}[{name}]", bad)
            if kind == "limits":
                continue
            fixed, limit = is_fixed(name), limits.get(name)
            if limit is None and fixed:
                bad.append(
                    required(f"{path}.limits", "Limit must be set for non overcommitable resources")
                )
            elif limit is not None and fixed and amount(quantity) != amount(limit):
                told = f"must be equal to {name} limit of {canonical(limit)}"
                bad.append(invalid(f"{path}.requests", canonical(quantity), told))
            elif limit is not None and amount(quantity) > amount(limit):
                told = f"must be less than or equal to {name} limit of {canonical(limit)}"
                bad.append(invalid(f"{path}.requests", canonical(quantity), told))


def toleration_errors(row: dict, path: str, bad: list[str]) -> None:
    key, operator, value, effect = (
        row.get(name) for name in ("key", "operator", "value", "effect")
    )
    if key:
        check_key(key, f"{path}.key", bad)
    if not key and operator != "Exists":
        told = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        bad.append(invalid(f"{path}.operator", operator or "", told))
    if row.get("tolerationSeconds") is not None and effect != "NoExecute":
        told = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        bad.append(invalid(f"{path}.effect", effect or "", told))
    if operator == "Exists" and value:
        bad.append(
            invalid(f"{path}.operator", value, "value must be empty when `operator` is 'Exists'")
        )
    elif operator in (None, "", "Equal"):
        told_of: list[str] = []
        check_label_value(value or "", f"{path}.operator", told_of)
        start = invalid(f"{path}.operator", value or "", "")
        if told_of:
            bad.append(start + ";".join(each.removeprefix(start) for each in told_of))
    elif operator != "Exists":
        known = ("Equal", "Exists", *(("Lt", "Gt") if operator in ("Lt", "Gt") else ()))
        one_of(operator, known, f"{path}.operator", bad)
    if effect:
        one_of(effect, EFFECTS, f"{path}.effect", bad)

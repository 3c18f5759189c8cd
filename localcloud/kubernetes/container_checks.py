"""What Kubernetes checks of a container beside its names, its resources and its volumes: ends and
probes, ports on the host, what its root may do. In its words.
"""

from __future__ import annotations

import re

from localcloud.kubernetes.placing_checks import PROFILES, WINDOWS, profile_errors
from localcloud.kubernetes.quantity import amount, canonical
from localcloud.kubernetes.words import in_go, invalid, one_of, required

ENDS = ("exec", "httpGet", "sleep", "tcpSocket")
RESTARTS = ("Always", "Never", "OnFailure")
ACTIONS = ("Restart", "RestartAllContainers")
MOST_RULES = 20
RESIZES = ("NotRequired", "RestartContainer")
HEADER = (
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', "
    "regex used for validation is '[-A-Za-z0-9]+')"
)
OF_CONTEXTS = (
    *("Capabilities", "Privileged", "SELinuxOptions", "WindowsOptions", "RunAsUser", "RunAsGroup"),
    *("RunAsNonRoot", "ReadOnlyRootFilesystem", "AllowPrivilegeEscalation", "ProcMount"),
    *("SeccompProfile", "AppArmorProfile"),
)
UNLESS_SIDECAR = "may not be set for init containers without restartPolicy=Always"


def more_errors(pod: dict, container: dict, path: str, bad: list[str]) -> None:
    """Of one container of a pod; `path` says whether it is one of those that begin first."""
    policies = ("File", "FallbackToLogsOnError")
    one_of(
        container.get("terminationMessagePolicy"), policies, f"{path}.terminationMessagePolicy", bad
    )
    for kind, end in (container.get("lifecycle") or {}).items():
        if kind in ("postStart", "preStop") and end is not None:
            end_errors(pod, end, f"{path}.lifecycle.{kind}", bad)
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(kind) is not None:
            probe_errors(container[kind], f"{path}.{kind}", bad)
    if ".initContainers[" in path and container.get("restartPolicy") != "Always":
        first_errors(container, path, bad)
    restart_errors(container, path, bad)
    resize_errors(pod, container, path, bad)
    block_errors(pod, container, path, bad)
    context_errors(pod, container.get("securityContext") or {}, f"{path}.securityContext", bad)
    huge_errors(container.get("resources") or {}, f"{path}.resources", bad)
    claims = {each.get("name") for each in pod.get("resourceClaims") or []}
    rows = (container.get("resources") or {}).get("claims") or []
    for number, row in enumerate(rows):
        if row in rows[:number]:
            at = f"{path}.resources.claims[{number}]"
            bad.append(f'{at}: Duplicate value: "{row.get("name", "")}"')
        if row.get("name") not in claims:
            at = f"{path}.resources.claims[{number}]"
            known = f": {', '.join(sorted(filter(None, claims)))}" if claims else " which is empty"
            told = f"must be one of the names in pod.spec.resourceClaims{known}"
            bad.append(f'{at}: Not found: "{row.get("name", "")}": {told}')


def restart_errors(container: dict, path: str, bad: list[str]) -> None:
    """Of what becomes of a container that ends, by its exit code."""
    policy, rules = container.get("restartPolicy"), container.get("restartPolicyRules") or []
    if policy is None and rules:
        told = "must specify restartPolicy when restart rules are used"
        bad.append(required(f"{path}.restartPolicy", told))
    one_of(policy, RESTARTS, f"{path}.restartPolicy", bad)
    if len(rules) > MOST_RULES:
        told = f"may not be more than {MOST_RULES} bytes"
        bad.append(f"{path}.restartPolicyRules: Too long: {told}")
    for number, rule in enumerate(rules):
        at, codes = f"{path}.restartPolicyRules[{number}]", rule.get("exitCodes")
        one_of(rule.get("action", ""), ACTIONS, f"{at}.action", bad)
        if codes is None:
            bad.append(required(f"{at}.exitCodes", "must be specified"))
        else:
            one_of(codes.get("operator", ""), ("In", "NotIn"), f"{at}.exitCodes.operator", bad)


def resize_errors(pod: dict, container: dict, path: str, bad: list[str]) -> None:
    """Of whether a container begins anew when its resources change."""
    at, rows = f"{path}.resizePolicy", container.get("resizePolicy") or []
    is_first = ".initContainers[" in path and container.get("restartPolicy") != "Always"
    for number, row in enumerate(rows):
        name, policy = row.get("resourceName", ""), row.get("restartPolicy", "")
        if name in [each.get("resourceName") for each in rows[:number]]:
            bad.append(f'{at}[{number}]: Duplicate value: "{name}"')
        for value, known in ((name, ("cpu", "memory")), (policy, RESIZES)):
            if not value:
                bad.append(required(at))
            else:
                one_of(value, known, at, bad)
        if pod.get("restartPolicy") == "Never" and policy != RESIZES[0]:
            told = "must be 'NotRequired' when `restartPolicy` is 'Never'"
            bad.append(invalid(at, policy, told))
        if is_first and policy == RESIZES[1]:
            told = "must not be set to 'RestartContainer' for non-sidecar initContainers"
            bad.append(invalid(f"{at}[{number}].restartPolicy", policy, told))


def block_errors(pod: dict, container: dict, path: str, bad: list[str]) -> None:
    """Of volumes that a container has as devices, without a file system."""
    others = {
        each.get("name")
        for each in pod.get("volumes") or []
        if not each.keys() & {"persistentVolumeClaim", "ephemeral"}
    }
    mounts = container.get("volumeMounts") or []
    names, paths = set[str](), set[str]()
    for number, device in enumerate(container.get("volumeDevices") or []):
        at, name = f"{path}.volumeDevices[{number}]", device.get("name", "")
        if name in names:
            bad.append(invalid(f"{at}.name", name, "must be unique"))
        if name in others:
            told = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            bad.append(invalid(f"{at}.name", name, told))
        place_errors(device.get("devicePath", ""), paths, f"{at}.devicePath", bad)
        if name in [each.get("name") for each in mounts]:
            bad.append(invalid(f"{at}.name", name, "must not already exist in volumeMounts"))
        target = device.get("devicePath", "")
        if target in [each.get("mountPath") for each in mounts]:
            told = "must not already exist as a path in volumeMounts"
            bad.append(invalid(f"{at}.devicePath", target, told))
        names |= {name} - {""}


def place_errors(target: str, taken: set[str], path: str, bad: list[str]) -> None:
    """Of where a container has a device, which no other is at."""
    if not target:
        bad.append(required(path))
    if target in taken:
        bad.append(invalid(path, target, "must be unique"))
    if ".." in target.split("/"):
        bad.append(invalid(path, target, "can not contain backsteps ('..')"))
    else:
        taken.add(target)


def first_errors(container: dict, path: str, bad: list[str]) -> None:
    """Of a container that begins and ends before the others."""
    for kind in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(kind) is not None:
            bad.append(f"{path}.{kind}: Forbidden: {UNLESS_SIDECAR}")


def end_errors(pod: dict, end: dict, path: str, bad: list[str]) -> None:
    kinds = [key for key in ENDS if end.get(key) is not None]
    bad += [
        f"{path}.{each}: Forbidden: may not specify more than 1 handler type" for each in kinds[1:]
    ]
    if not kinds:
        bad.append(required(path, "must specify a handler type"))
    if "sleep" in kinds:
        seconds, most = end["sleep"].get("seconds", 0), pod.get("terminationGracePeriodSeconds")
        most = 30 if most is None else most
        if not 0 <= seconds <= most:
            told = f"must be non-negative and less than terminationGracePeriodSeconds ({most})"
            bad.append(invalid(f"{path}.sleep", seconds, told))
    for kind in {"httpGet", "tcpSocket"} & {*kinds}:
        port_errors(end[kind].get("port", 0), f"{path}.{kind}.port", bad)
    if "exec" in kinds and not end["exec"].get("command"):
        bad.append(required(f"{path}.exec.command"))


def port_errors(port: int | str, path: str, bad: list[str]) -> None:
    """Of a port, by its number or by the name that the container gives it."""
    if isinstance(port, str):
        port_name_errors(port, path, bad)
    elif not 1 <= port <= 65535:
        bad.append(invalid(path, port, "must be between 1 and 65535, inclusive"))


def port_name_errors(name: str, path: str, bad: list[str]) -> None:
    """A name of a service as IANA writes it."""
    if len(name) > 15:
        bad.append(invalid(path, name, "must be no more than 15 characters"))
    if not re.fullmatch("[-a-z0-9]+", name):
        told = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
        bad.append(invalid(path, name, told))
    if not re.search("[a-z]", name):
        bad.append(invalid(path, name, "must contain at least one letter (a-z)"))
    if "--" in name:
        bad.append(invalid(path, name, "must not contain consecutive hyphens"))
    if name.startswith("-") or name.endswith("-"):
        bad.append(invalid(path, name, "must not begin or end with a hyphen"))


def probe_errors(probe: dict, path: str, bad: list[str]) -> None:
    if probe.get("exec") is not None and not probe["exec"].get("command"):
        bad.append(required(f"{path}.exec.command"))
    if probe.get("httpGet") is not None:
        schemes = ("HTTP", "HTTPS")
        one_of(probe["httpGet"].get("scheme"), schemes, f"{path}.httpGet.scheme", bad)
        for header in probe["httpGet"].get("httpHeaders") or []:
            if not re.fullmatch("[-A-Za-z0-9]+", header.get("name", "")):
                bad.append(invalid(f"{path}.httpGet.httpHeaders", header.get("name", ""), HEADER))
    seconds, at = (
        probe.get("terminationGracePeriodSeconds"),
        f"{path}.terminationGracePeriodSeconds",
    )
    if seconds is None:
        return
    if path.endswith("readinessProbe"):
        bad.append(invalid(at, seconds, "must not be set for readinessProbes"))
    elif seconds <= 0:
        bad.append(invalid(at, seconds, "must be greater than 0"))


def context_errors(pod: dict, context: dict, path: str, bad: list[str]) -> None:
    added = (context.get("capabilities") or {}).get("add") or []
    if context.get("allowPrivilegeEscalation") is False and "CAP_SYS_ADMIN" in added:
        told = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
        bad.append(invalid(path, context_in_go(context), told))
    one_of(context.get("procMount"), ("Default", "Unmasked"), f"{path}.procMount", bad)
    if context.get("procMount") == "Unmasked" and pod.get("hostUsers") is not False:
        told = "`hostUsers` must be false to use `Unmasked`"
        bad.append(invalid(f"{path}.procMount", "Unmasked", told))
    for key in PROFILES:
        profile_errors(context, key, path, bad)
    if (pod.get("os") or {}).get("name") == "linux" and context.get("windowsOptions") is not None:
        bad.append(f"{path}.windowsOptions: Forbidden: {WINDOWS}")


def context_in_go(context: dict) -> dict:
    """A security context as a refusal shows it."""
    shown = in_go(OF_CONTEXTS, context)
    shown["SELinuxOptions"] = context.get("seLinuxOptions")
    if context.get("capabilities") is not None:
        shown["Capabilities"] = in_go(("Add", "Drop"), context["capabilities"])
    for key in PROFILES:
        if context.get(key) is not None:
            name = key[0].upper() + key[1:]
            shown[name] = in_go(("Type", "LocalhostProfile"), context[key])
    return shown


def huge_errors(resources: dict, path: str, bad: list[str]) -> None:
    """Of large pages of memory, which come with memory or processors alone."""
    names = {*(resources.get("limits") or {}), *(resources.get("requests") or {})}
    for kind in ("limits", "requests"):
        for name, quantity in (resources.get(kind) or {}).items():
            size = amount(name.removeprefix("hugepages-"))
            if name.startswith("hugepages-") and (size <= 0 or amount(quantity) % size):
                told = f"{canonical(quantity)} is not positive integer multiple of {name}"
                bad.append(invalid(f"{path}.{kind}[{name}]", canonical(quantity), told))
    has_pages = any(name.startswith("hugepages-") for name in names)
    if has_pages and not names & {"cpu", "memory"}:
        bad.append(f"{path}: Forbidden: HugePages require cpu or memory")


def host_port_errors(pod: dict, at: str, bad: list[str]) -> None:
    """Of ports on the node, which no two containers share."""
    seen: set[str] = set()
    for number, container in enumerate(pod.get("containers") or []):
        for index, port in enumerate(container.get("ports") or []):
            path, host = f"{at}.containers[{number}].ports[{index}]", port.get("hostPort")
            if not host:
                continue
            own = port.get("containerPort")
            if pod.get("hostNetwork") and host != own:
                told = "must match `containerPort` when `hostNetwork` is true"
                bad.append(invalid(f"{path}.hostPort", host, told))
            key = f"{port.get('protocol') or 'TCP'}/{port.get('hostIP', '')}/{host}"
            if key in seen:
                bad.append(f'{path}.hostPort: Duplicate value: "{key}"')
            seen.add(key)

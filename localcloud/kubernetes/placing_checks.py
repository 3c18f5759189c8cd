"""What Kubernetes checks of where a pod may be placed and of what is around it (affinity, spread,
names, DNS, host), beside its schema, in its words.

Not covered: claims of devices, Windows.
"""

from __future__ import annotations

import ipaddress
import re

from localcloud.kubernetes.words import (
    check_key,
    check_label_name,
    check_labels,
    check_subdomain,
    compact,
    invalid,
    one_of,
    required,
)

IP_RULE = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
REQUIRED, PREFERRED = (
    f"{kind}DuringSchedulingIgnoredDuringExecution" for kind in ("required", "preferred")
)
SPREADS = ("DoNotSchedule", "ScheduleAnyway")
SYSCTL = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
NUMBERED = ("Gt", "Lt")
SECCOMP = ("Localhost", "RuntimeDefault", "Unconfined")
PROFILES = {"seccompProfile": "seccomp", "appArmorProfile": "AppArmor"}
NEAR_GROUPS = tuple(map(ipaddress.ip_network, ("224.0.0.0/24", "ff02::/16")))
MOST_SEARCHES = 32  # domains of a pod's own in which names are looked up
MOST_LETTERS = 2048  # of all of them
MOST_HOST_NAME = 64
# What pods of Windows have not: of the pod, and of its security context.
OF_LINUX = (
    *("hostPID", "hostIPC", "shareProcessNamespace", "seLinuxOptions", "seccompProfile"),
    *("appArmorProfile", "fsGroup", "fsGroupChangePolicy", "sysctls", "runAsUser", "runAsGroup"),
    *("supplementalGroups", "supplementalGroupsPolicy"),
)
WINDOWS = "windows options cannot be set for a linux pod"


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def descending_errors(path: str, at: str, bad: list[str]) -> None:
    """Of a path that leads down from some folder."""
    if path.startswith("/"):
        bad.append(invalid(at, path, "must be a relative path"))
    if ".." in path.split("/"):
        bad.append(invalid(at, path, "must not contain '..'"))


def special(text: str) -> str:
    """Why an address cannot be one under which others reach a service; "" if it can."""
    address = ipaddress.ip_address(text)
    if address.is_unspecified:
        return f"may not be unspecified ({text})"
    if address.is_loopback:
        return "may not be in the loopback range (127.0.0.0/8, ::1/128)"
    if address.is_link_local:
        return "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
    if any(address in each for each in NEAR_GROUPS):
        return "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
    return ""


def placing_errors(pod: dict, at: str) -> list[str]:
    """Of a pod's placement and of what it shares with its node."""
    bad: list[str] = []
    affinity = pod.get("affinity") or {}
    node_affinity_errors(affinity.get("nodeAffinity") or {}, f"{at}.affinity.nodeAffinity", bad)
    for kind in ("podAffinity", "podAntiAffinity"):
        pod_affinity_errors(affinity.get(kind) or {}, f"{at}.affinity.{kind}", bad)
    spreads = pod.get("topologySpreadConstraints") or []
    for number, row in enumerate(spreads):
        path = f"{at}.topologySpreadConstraints[{number}]"
        spread_errors(row, path, bad)
        twice_errors(row, spreads[number + 1 :], path, bad)
    dns_errors(pod, at, bad)
    if pod.get("nodeName"):
        check_subdomain(pod["nodeName"], f"{at}.nodeName", bad)
    alias_errors(pod.get("hostAliases") or [], f"{at}.hostAliases", bad)
    gate_errors(pod, at, bad)
    if pod.get("os") is not None:
        if not pod["os"].get("name"):
            bad.append(required(f"{at}.os.name"))
        else:
            one_of(pod["os"]["name"], ("linux", "windows"), f"{at}.os", bad)
    host_name_errors(pod, f"{at}.hostnameOverride", bad)
    if pod.get("shareProcessNamespace") and pod.get("hostPID"):
        told = "ShareProcessNamespace and HostPID cannot both be enabled"
        bad.append(invalid(f"{at}.shareProcessNamespace", True, told))
    context = pod.get("securityContext") or {}
    for key in PROFILES:
        profile_errors(context, key, f"{at}.securityContext", bad)
    changes = ("Always", "OnRootMismatch")
    one_of(
        context.get("fsGroupChangePolicy"),
        changes,
        f"{at}.securityContext.fsGroupChangePolicy",
        bad,
    )
    policy = context.get("supplementalGroupsPolicy")
    path = f"{at}.securityContext.supplementalGroupsPolicy"
    one_of(policy, ("Merge", "Strict"), path, bad)
    policy, path = context.get("seLinuxChangePolicy"), f"{at}.securityContext.seLinuxChangePolicy"
    one_of(policy, ("MountOption", "Recursive"), path, bad)
    if (pod.get("os") or {}).get("name") == "linux" and context.get("windowsOptions") is not None:
        bad.append(f"{at}.securityContext.windowsOptions: Forbidden: {WINDOWS}")
    if (pod.get("os") or {}).get("name") == "windows":
        of_linux = [f"{at}.{key}" for key in OF_LINUX[:3] if pod.get(key)]
        of_linux += [f"{at}.securityContext.{key}" for key in OF_LINUX[3:] if context.get(key)]
        bad += [f"{each}: Forbidden: cannot be set for a windows pod" for each in of_linux]
    if pod.get("hostUsers") is False:
        shown = {"hostNetwork": "hostNetwork", "hostPID": "HostPID", "hostIPC": "HostIPC"}
        bad += [
            f"{at}.{name}: Forbidden: when `hostUsers` is false"
            for key, name in shown.items()
            if pod.get(key)
        ]
    for number, row in enumerate(context.get("sysctls") or []):
        name, path = row.get("name", ""), f"{at}.securityContext.sysctls[{number}].name"
        if not name:
            bad.append(required(path))
        elif len(name) > 253 or not re.fullmatch(SYSCTL, name):
            told = f"must have at most 253 characters and match regex ^{SYSCTL}$"
            bad.append(invalid(path, name, told))
        elif of_host := shared_by(pod, name):
            told = f"may not be specified when '{of_host}' is true"
            bad.append(invalid(path, name, told))
        elif name in [each.get("name") for each in context["sysctls"][:number]]:
            bad.append(f'{path}: Duplicate value: "{name}"')
    return bad


def host_name_errors(pod: dict, path: str, bad: list[str]) -> None:
    """Of a pod's own whole host name, beside which it has no other."""
    name = pod.get("hostnameOverride")
    if name is None:
        return
    for key in ("setHostnameAsFQDN", "hostNetwork"):
        if pod.get(key):
            bad.append(f"{path}: Forbidden: may not be specified when {key} is true")
    if len(name) > MOST_HOST_NAME:
        bad.append(f"{path}: Too long: may not be more than {MOST_HOST_NAME} bytes")
    check_subdomain(name, path, bad)


def shared_by(pod: dict, name: str) -> str:
    """The field by which a pod shares with its node what a sysctl sets; "" for none."""
    name = name.replace("/", ".")
    if pod.get("hostNetwork") and name.startswith("net."):
        return "hostNetwork"
    of_ipc = name.startswith(("kernel.shm", "kernel.msg", "fs.mqueue.")) or name == "kernel.sem"
    return "hostIPC" if pod.get("hostIPC") and of_ipc else ""


def node_affinity_errors(affinity: dict, at: str, bad: list[str]) -> None:
    wanted = affinity.get(REQUIRED)
    if wanted is not None:
        terms, path = wanted.get("nodeSelectorTerms") or [], f"{at}.{REQUIRED}.nodeSelectorTerms"
        if not terms:
            bad.append(required(path, "must have at least one node selector term"))
        for number, term in enumerate(terms):
            term_errors(term, f"{path}[{number}]", bad)
    for number, row in enumerate(affinity.get(PREFERRED) or []):
        path = f"{at}.{PREFERRED}[{number}]"
        weight_errors(row, path, bad)
        term_errors(row.get("preference") or {}, f"{path}.preference", bad)


def term_errors(term: dict, path: str, bad: list[str]) -> None:
    for number, row in enumerate(term.get("matchExpressions") or []):
        expression_errors(row, f"{path}.matchExpressions[{number}]", bad, NUMBERED)
    for number, row in enumerate(term.get("matchFields") or []):
        field_errors(row, f"{path}.matchFields[{number}]", bad)


def field_errors(row: dict, path: str, bad: list[str]) -> None:
    """Of one expression that selects nodes by a field, which can only be their name."""
    operator, key = row.get("operator", ""), row.get("key", "")
    if operator not in ("In", "NotIn"):
        bad.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    elif len(row.get("values") or []) != 1:
        told = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        bad.append(required(f"{path}.values", told))
    if key != "metadata.name":
        bad.append(invalid(f"{path}.key", key, "not a valid field selector key"))


def expression_errors(row: dict, path: str, bad: list[str], numbered: tuple = ()) -> None:
    """Of one expression of a selector, of labels or of nodes."""
    operator, values = row.get("operator", ""), row.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            told = "must be specified when `operator` is 'In' or 'NotIn'"
            bad.append(required(f"{path}.values", told))
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            told = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            bad.append(f"{path}.values: Forbidden: {told}")
    elif operator in numbered:
        if len(values) != 1:
            told = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            bad.append(required(f"{path}.values", told))
    else:
        bad.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    check_key(row.get("key", ""), f"{path}.key", bad)


def selector_errors(selector: dict | None, path: str, bad: list[str]) -> None:
    """Of a selector of labels."""
    check_labels((selector or {}).get("matchLabels"), f"{path}.matchLabels", bad)
    for number, row in enumerate((selector or {}).get("matchExpressions") or []):
        expression_errors(row, f"{path}.matchExpressions[{number}]", bad)


def selects(selector: dict, labels: dict) -> bool:
    """Whether a selector, which has no errors, matches labels."""
    rows = selector.get("matchExpressions") or []
    wanted = (selector.get("matchLabels") or {}).items() <= labels.items()
    return wanted and all(fits(row, labels) for row in rows)


def fits(row: dict, labels: dict) -> bool:
    operator, value = row["operator"], labels.get(row["key"])
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) == (operator == "Exists")
    return (value in row["values"]) == (operator == "In")


def match_key_errors(row: dict, path: str, bad: list[str]) -> None:
    """Of keys of labels whose values are those of the pod itself."""
    chosen, keys = row.get("labelSelector"), row.get("matchLabelKeys") or []
    if keys and chosen is None:
        told = "must not be specified when labelSelector is not set"
        bad.append(f"{path}.matchLabelKeys: Forbidden: {told}")
    expressions = (chosen or {}).get("matchExpressions") or []
    named = {*((chosen or {}).get("matchLabels") or {}), *(each.get("key") for each in expressions)}
    for number, key in enumerate(keys if chosen is not None else []):
        at = f"{path}.matchLabelKeys[{number}]"
        check_key(key, at, bad)
        if key in named:
            told = "exists in both matchLabelKeys and labelSelector"
            bad.append(invalid(at, key, told))


def weight_errors(row: dict, path: str, bad: list[str]) -> None:
    if not 1 <= row.get("weight", 0) <= 100:
        bad.append(invalid(f"{path}.weight", row.get("weight", 0), "must be in the range 1-100"))


def pod_affinity_errors(affinity: dict, at: str, bad: list[str]) -> None:
    for number, term in enumerate(affinity.get(REQUIRED) or []):
        pod_term_errors(term, f"{at}.{REQUIRED}[{number}]", bad)
    for number, row in enumerate(affinity.get(PREFERRED) or []):
        path = f"{at}.{PREFERRED}[{number}]"
        weight_errors(row, path, bad)
        pod_term_errors(row.get("podAffinityTerm") or {}, f"{path}.podAffinityTerm", bad)


def pod_term_errors(term: dict, path: str, bad: list[str]) -> None:
    selector_errors(term.get("labelSelector"), f"{path}.labelSelector", bad)
    selector_errors(term.get("namespaceSelector"), f"{path}.namespaceSelector", bad)
    for name in term.get("namespaces") or []:
        check_label_name(name, f"{path}.namespace", bad)
    if term.get("labelSelector") is None and term.get("mismatchLabelKeys"):
        told = "must not be specified when labelSelector is not set"
        bad.append(f"{path}.mismatchLabelKeys: Forbidden: {told}")
    match_key_errors(term, path, bad)
    topology_errors(term.get("topologyKey", ""), f"{path}.topologyKey", bad)


def topology_errors(key: str, path: str, bad: list[str]) -> None:
    if not key:
        bad.append(required(path, "can not be empty"))
    check_key(key, path, bad)


def spread_errors(row: dict, path: str, bad: list[str]) -> None:
    if row.get("maxSkew", 0) <= 0:
        bad.append(invalid(f"{path}.maxSkew", row.get("maxSkew", 0), "must be greater than zero"))
    if not row.get("topologyKey"):
        bad.append(required(f"{path}.topologyKey", "can not be empty"))
    one_of(row.get("whenUnsatisfiable", ""), SPREADS, f"{path}.whenUnsatisfiable", bad)
    least = row.get("minDomains")
    if least is not None and least <= 0:
        bad.append(invalid(f"{path}.minDomains", least, "must be greater than zero"))
    action = row.get("whenUnsatisfiable", "")
    if least is not None and action != "DoNotSchedule":
        told = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
        bad.append(invalid(f"{path}.minDomains", least, told))
    for key in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        one_of(row.get(key), ("Honor", "Ignore"), f"{path}.{key}", bad)
    match_key_errors(row, path, bad)
    selector_errors(row.get("labelSelector"), f"{path}.labelSelector", bad)


def twice_errors(row: dict, later: list[dict], path: str, bad: list[str]) -> None:
    """Of a constraint that comes again, by its key and what is to be done."""
    same = [row.get("topologyKey"), row.get("whenUnsatisfiable")]
    if same in [[each.get("topologyKey"), each.get("whenUnsatisfiable")] for each in later]:
        twice = f"{{{same[0]}, {same[1]}}}"
        bad.append(f"{path}.{{topologyKey, whenUnsatisfiable}}: Duplicate value: {compact(twice)}")


def dns_errors(pod: dict, at: str, bad: list[str]) -> None:
    config, path = pod.get("dnsConfig"), f"{at}.dnsConfig"
    if pod.get("dnsPolicy") == "None" and config is None:
        bad.append(required(path, "must provide `dnsConfig` when `dnsPolicy` is None"))
    servers = (config or {}).get("nameservers") or []
    if pod.get("dnsPolicy") == "None" and config is not None and not servers:
        told = "must provide at least one DNS nameserver when `dnsPolicy` is None"
        bad.append(required(f"{path}.nameservers", told))
        return
    if len(servers) > 3:
        told = "must not have more than 3 nameservers"
        bad.append(invalid(f"{path}.nameservers", servers, told))
    for number, each in enumerate(servers):
        if not is_address(each):
            bad.append(invalid(f"{path}.nameservers[{number}]", each, IP_RULE))
    searches = (config or {}).get("searches") or []
    if len(searches) > MOST_SEARCHES:
        told = f"must not have more than {MOST_SEARCHES} search paths"
        bad.append(invalid(f"{path}.searches", searches, told))
    if len(" ".join(searches)) > MOST_LETTERS:
        told = f"must not have more than {MOST_LETTERS} characters (including spaces) in the search list"
        bad.append(invalid(f"{path}.searches", searches, told))
    for number, each in enumerate(searches):
        search_errors(each.removesuffix("."), f"{path}.searches[{number}]", bad)
    for number, each in enumerate((config or {}).get("options") or []):
        if not each.get("name"):
            bad.append(required(f"{path}.options[{number}]", "must not be empty"))


def search_errors(domain: str, path: str, bad: list[str]) -> None:
    """Of a domain in which names are looked up; "" is the root of all."""
    label = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
    pattern = rf"{label}(\.{label})*"
    if len(domain) > 253:
        bad.append(invalid(path, domain, "must be no more than 253 bytes"))
    if domain and not re.fullmatch(pattern, domain):
        told = (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' "
            "or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
        )
        bad.append(invalid(path, domain, f"{told}for validation is '{pattern}')"))


def alias_errors(rows: list[dict], at: str, bad: list[str]) -> None:
    for number, row in enumerate(rows):
        if not is_address(row.get("ip", "")):
            bad.append(invalid(f"{at}[{number}].ip", row.get("ip", ""), IP_RULE))
        for index, name in enumerate(row.get("hostnames") or []):
            check_subdomain(name, f"{at}[{number}].hostnames[{index}]", bad)


def gate_errors(pod: dict, at: str, bad: list[str]) -> None:
    seen: set[str] = set()
    for number, gate in enumerate(pod.get("schedulingGates") or []):
        path, name = f"{at}.schedulingGates[{number}]", gate.get("name", "")
        check_key(name, path, bad)
        if name in seen:
            bad.append(f"{path}: Duplicate value: {compact(name)}")
        seen.add(name)
    for number, gate in enumerate(pod.get("readinessGates") or []):
        path = f"{at}.readinessGates[{number}].conditionType"
        check_key(gate.get("conditionType", ""), path, bad)


def profile_errors(context: dict, key: str, at: str, bad: list[str]) -> None:
    """Add what is wrong with the profile of AppArmor or of seccomp of a pod or container."""
    profile, path, name = context.get(key), f"{at}.{key}", PROFILES[key]
    if profile is None:
        return
    kind, local = profile.get("type", ""), profile.get("localhostProfile")
    is_seccomp, where = key == "seccompProfile", f"{path}.localhostProfile"
    if not kind:
        bad.append(required(f"{path}.type", f"type is required when {key} is set"))
    else:
        one_of(kind, SECCOMP, f"{path}.type", bad)
    if kind == "Localhost":
        local_errors(local, is_seccomp, where, bad)
    elif local is not None and (is_seccomp or kind in SECCOMP):
        told = f"can only be set when {name} type is Localhost"
        shown = {"Type": kind, "LocalhostProfile": local} if is_seccomp else local
        bad.append(invalid(where, shown, told))


def local_errors(local: str | None, is_seccomp: bool, path: str, bad: list[str]) -> None:
    """Of the profile that a node has."""
    told = f"must be set when {'seccomp' if is_seccomp else 'AppArmor'} type is Localhost"
    if local is None or not (local.strip() or is_seccomp):
        bad.append(required(path, told))
    elif is_seccomp:
        descending_errors(local, path, bad)
    elif local != local.strip():
        bad.append(invalid(path, local, "must not be padded with whitespace"))

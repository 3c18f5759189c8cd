"""What Kubernetes checks of the names and amounts of resources, and of ranges of limits, in its words."""

from __future__ import annotations

from localcloud.kubernetes.quantity import amount, canonical
from localcloud.kubernetes.words import check_key, invalid, required

COUNTED: tuple[str, ...] = (
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
)
COUNTED += ("persistentvolumeclaims", "services.nodeports", "services.loadbalancers")
NATIVE = ("cpu", "memory", "ephemeral-storage")  # of containers, called by no domain
MEASURED = (
    *NATIVE,
    "requests.storage",
    *(f"{kind}.{name}" for kind in ("requests", "limits") for name in NATIVE),
)
STANDARD = (*COUNTED, *MEASURED, "storage")
PAGES = ("hugepages-", "requests.hugepages-")
RANGED = ("Container", "PersistentVolumeClaim", "Pod")  # what ranges of limits are for
# Of a range of limits: what is at most what, the field that the refusal names, and which of the
# two values it shows.
ORDERED = (
    ("min", "max", "min", 0),
    ("min", "defaultRequest", "defaultRequest", 1),
    ("defaultRequest", "max", "defaultRequest", 0),
    ("defaultRequest", "default", "defaultRequest", 0),
    ("min", "default", "default", 0),
    ("default", "max", "default", 1),
)
CALLED = {"defaultRequest": "default request"}
BOUNDS = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")


def is_native(name: str) -> bool:
    """Whether a resource is Kubernetes' own."""
    return "/" not in name or "kubernetes.io/" in name


def is_extended(name: str) -> bool:
    """Whether a resource is somebody else's, such as GPUs, of which there are whole ones only."""
    if is_native(name) or name.startswith("requests."):
        return False
    bad: list[str] = []
    check_key(f"requests.{name}", "", bad)
    return not bad


def is_fixed(name: str) -> bool:
    """Whether a limit and a request of a resource must be the same."""
    return not is_native(name) or name.startswith(PAGES[0])


def name_errors(name: str, path: str, bad: list[str]) -> None:
    """Of the name of any resource."""
    told: list[str] = []
    check_key(name, path, told)
    if not told and "/" not in name and name not in STANDARD and not name.startswith(PAGES):
        told = [invalid(path, name, "must be a standard resource type or fully qualified")]
    bad += told


def container_name_errors(name: str, path: str, bad: list[str]) -> None:
    """Of the name of a resource that a container asks for."""
    name_errors(name, path, bad)
    is_known = name in NATIVE or name.startswith(PAGES[0])
    if "/" not in name and not is_known:
        bad.append(invalid(path, name, "must be a standard resource for containers"))
    if not is_native(name) and not is_extended(name):
        bad.append(invalid(path, name, "doesn't follow extended resource name standard"))


def quota_name_errors(name: str, path: str, bad: list[str]) -> None:
    """Of the name of a resource that a quota limits."""
    name_errors(name, path, bad)
    is_known = name in (*COUNTED, *MEASURED) or name.startswith(PAGES)
    if "/" not in name and not is_known:
        bad.append(invalid(path, name, "must be a standard resource for quota"))


def amount_errors(name: str, quantity: object, path: str, bad: list[str]) -> None:
    """Of how much of a resource there is to be."""
    if amount(quantity) < 0:
        bad.append(invalid(path, canonical(quantity), "must be greater than or equal to 0"))
    is_whole = amount(quantity) == int(amount(quantity))
    if (name in COUNTED or is_extended(name)) and not is_whole:
        bad.append(invalid(path, canonical(quantity), "must be an integer"))


# --- ranges of limits


def fill_range(row: dict) -> None:
    """What Kubernetes fills into a range of containers' limits: each bound that is not said is the
    nearest one that is.
    """
    if row.get("type") != "Container":
        return
    for field, source in (("default", "max"), ("defaultRequest", "default")):
        row[field] = {**(row.get(source) or {}), **(row.get(field) or {})}
    row["defaultRequest"] = {**(row.get("min") or {}), **row["defaultRequest"]}


def range_errors(rows: list[dict], bad: list[str]) -> None:
    kinds = [row.get("type") or "" for row in rows]
    for number, row in enumerate(rows):
        path, kind = f"spec.limits[{number}]", kinds[number]
        type_errors(kind, f"{path}.type", bad)
        if kind in kinds[:number]:
            bad.append(f'{path}.type: Duplicate value: "{kind}"')
        names_errors(kind, row, path, bad)
        bounds = {*(row.get("min") or {}), *(row.get("max") or {})}
        if kind == "PersistentVolumeClaim" and "storage" not in bounds:
            told = "either minimum or maximum storage value is required, but neither was provided"
            bad.append(required(f"{path}.limits", told))
        order_errors(row, path, bad)
        ratio_errors(row, path, bad)
        same_errors(row, path, bad)


def type_errors(kind: str, path: str, bad: list[str]) -> None:
    told: list[str] = []
    check_key(kind, path, told)
    if not told and "/" not in kind and kind not in RANGED:
        told = [invalid(path, kind, "must be a standard limit type or fully qualified")]
    bad += told


def names_errors(kind: str, row: dict, path: str, bad: list[str]) -> None:
    check = container_name_errors if kind in ("Container", "Pod") else name_errors
    for field in BOUNDS:
        if kind == "Pod" and field.startswith("default"):
            if row.get(field):
                bad.append(f"{path}.{field}: Forbidden: may not be specified when `type` is 'Pod'")
            continue
        for name in row.get(field) or {}:
            check(name, f"{path}.{field}[{name}]", bad)


def order_errors(row: dict, path: str, bad: list[str]) -> None:
    """Of the bounds of one kind, of which some are not above others."""
    for least, most, field, shown in ORDERED:
        low, high = row.get(least) or {}, row.get(most) or {}
        upper = "default limit" if (least, most) == ORDERED[3][:2] else CALLED.get(most, most)
        for name in low.keys() & high.keys():
            if amount(low[name]) > amount(high[name]):
                values = canonical(low[name]), canonical(high[name])
                told = f"{CALLED.get(least, least)} value {values[0]} is greater than "
                told += f"{upper} value {values[1]}"
                bad.append(invalid(f"{path}.{field}[{name}]", values[shown], told))


def ratio_errors(row: dict, path: str, bad: list[str]) -> None:
    """Of how far above its request a limit may be."""
    least, most = row.get("min") or {}, row.get("max") or {}
    for name, ratio in (row.get("maxLimitRequestRatio") or {}).items():
        at, shown = f"{path}.maxLimitRequestRatio[{name}]", canonical(ratio)
        if amount(ratio) < 1:
            bad.append(invalid(at, shown, f"ratio {shown} is less than 1"))
        if not amount(least.get(name, 0)) or name not in most:
            continue
        highest = amount(most[name]) / amount(least[name])
        if amount(ratio) > highest:
            told = f"ratio {shown} is greater than max/min = {highest:f}"
            bad.append(invalid(at, shown, told))


def same_errors(row: dict, path: str, bad: list[str]) -> None:
    """Of resources whose limits and requests must be the same."""
    limits, wanted = row.get("default") or {}, row.get("defaultRequest") or {}
    for name in filter(is_fixed, limits.keys() & wanted.keys()):
        if amount(limits[name]) != amount(wanted[name]):
            values = canonical(limits[name]), canonical(wanted[name])
            told = f"default value {values[0]} must equal to defaultRequest value {values[1]} "
            at = f"{path}.defaultRequest[{name}]"
            bad.append(invalid(at, values[1], f"{told}in {name}"))

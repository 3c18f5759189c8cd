"""What Google refuses before it makes an instance, in its words, and the resource it makes otherwise.

Not covered: organisation policies, permissions, reservations, sole tenancy, confidential and shielded machines,
disks other than what fits one boot disk and attached ones by name. Wording of errors that Google does not
document is as remembered from practice.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from berg.local import catalog
from berg.local.errors import ApiError

LINK = "https://www.googleapis.com/compute/v1/"
NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
LABEL_KEY = re.compile(r"[a-z\u00df-\uffff][-_a-z0-9\u00df-\uffff]{0,62}")
LABEL_VALUE = re.compile(r"[-_a-z0-9\u00df-\uffff]{0,63}")
METADATA_KEY = re.compile(r"[a-zA-Z0-9-_]{1,128}")
MAX_METADATA_VALUE, MAX_METADATA = 256 << 10, 512 << 10
MIN_RUN, MAX_RUN = 30, 120 * 24 * 3600


def invalid(field: str, value: Any, why: str) -> ApiError:
    return ApiError(400, "invalid", f"Invalid value for field '{field}': '{value}'. {why}")


def not_found(path: str) -> ApiError:
    return ApiError(404, "notFound", f"The resource '{path}' was not found")


def last(link: str) -> str:
    return link.rstrip("/").rpartition("/")[2]


def fingerprint(value: Any) -> str:
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest[:8]).decode()


def check_zone(zone: str) -> str:
    """Return the region of a zone that a request's path names."""
    if zone not in catalog.ZONES:
        raise ApiError(400, "invalid", f"Invalid value for field 'zone': '{zone}'. Unknown zone.")
    return catalog.ZONES[zone]


def check_region(region: str) -> None:
    if region not in catalog.REGIONS:
        raise ApiError(400, "invalid", f"Invalid value for field 'region': '{region}'. Unknown region.")


def check_name(field: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise invalid(field, name, f"Must be a match of regex '{NAME.pattern}'")


def check_labels(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > 64:
        raise invalid("resource.labels", "", "At most 64 labels are allowed.")
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key):
            why = (
                "The only allowed characters are lowercase letters, numbers, dashes and underscores; "
                "it must start with a lowercase letter and have at most 63 characters."
            )
            raise invalid("resource.labels", key, f"Label key violates format constraints. {why}")
        if not LABEL_VALUE.fullmatch(value):
            why = (
                "Label value violates format constraints. The value can only contain lowercase letters, "
                "numeric characters, underscores and dashes. The value can be at most 63 characters long."
            )
            raise invalid("resource.labels", value, why)
    return labels


def check_metadata(metadata: dict) -> dict:
    """Return a Metadata resource with its fingerprint."""
    items = metadata.get("items", [])
    keys = [item.get("key", "") for item in items]
    for item in items:
        key, value = item.get("key", ""), item.get("value", "")
        if not METADATA_KEY.fullmatch(key):
            why = f"Must be a match of regex '{METADATA_KEY.pattern}'"
            raise invalid("resource.metadata.items.key", key, why)
        if keys.count(key) > 1:
            raise ApiError(400, "invalid", f"Metadata has duplicate key: {key}")
        if len(value.encode()) > MAX_METADATA_VALUE:
            message = f"Value for field 'resource.metadata.items[{keys.index(key)}].value' is too large: maximum size"
            raise ApiError(
                413, "fieldSizeTooLarge", f"{message} {MAX_METADATA_VALUE} character(s); actual size {len(value)}."
            )
    if sum(len(item.get("key", "")) + len(item.get("value", "").encode()) for item in items) > MAX_METADATA:
        raise ApiError(413, "fieldSizeTooLarge", "Total size of metadata exceeds 524288 bytes.")
    kept = [{"key": item["key"], "value": item.get("value", "")} for item in items]
    shape: dict[str, Any] = {"kind": "compute#metadata", "fingerprint": fingerprint(kept)}
    return {**shape, "items": kept} if kept else shape


def check_fingerprint(sent: str | None, current: str) -> None:
    if sent != current:
        message = "Supplied fingerprint does not match current metadata fingerprint."
        raise ApiError(412, "conditionNotMet", message)


def check_machine_type(zone: str, link: str) -> catalog.MachineType:
    if not link:
        raise invalid("resource.machineType", "", "Machine type must be specified.")
    found = catalog.machine_type(zone, last(link))
    if found is None:
        why = f"Machine type with name '{last(link)}' does not exist in zone '{zone}'."
        raise invalid("resource.machineType", link, why)
    if "zones/" in link and f"zones/{zone}/" not in link:
        raise invalid("resource.machineType", link, f"Machine type must be in zone '{zone}'.")
    return found


def check_accelerators(project: str, zone: str, kind: catalog.MachineType, body: dict) -> list[dict]:
    """Return guestAccelerators as Google writes them back, those built into the machine type included."""
    wanted = body.get("guestAccelerators", [])
    path = f"projects/{project}/zones/{zone}/acceleratorTypes/"
    if kind.accelerator:
        for item in wanted:
            if (last(item.get("acceleratorType", "")), item.get("acceleratorCount")) != (
                kind.accelerator,
                kind.accelerator_count,
            ):
                message = (
                    f"{kind.name} comes with {kind.accelerator_count} {kind.accelerator}; other guest accelerators"
                )
                raise ApiError(400, "badRequest", f"{message} are not supported with this machine type.")
        wanted = [{"acceleratorType": kind.accelerator, "acceleratorCount": kind.accelerator_count}]
    result = []
    for item in wanted:
        name, count = last(item.get("acceleratorType", "")), item.get("acceleratorCount", 0)
        if name not in catalog.accelerators_in(zone):
            raise not_found(path + name)
        if not kind.accelerator:
            limits = catalog.N1_CPU_LIMITS.get(name)
            if limits is None or kind.family != "n1" or kind.shared_core:
                message = f"[{name}] features are not compatible for creating instance: machine type {kind.name}."
                raise ApiError(400, "badRequest", message)
            if count not in limits:
                raise invalid(
                    "resource.guestAccelerators[0].acceleratorCount",
                    count,
                    f"The number of {name} must be one of {', '.join(map(str, limits))}.",
                )
            if kind.cpus > limits[count]:
                message = f"Number of vCPUs {kind.cpus} is too high for {count} accelerator(s) of type {name}: "
                raise ApiError(400, "badRequest", f"{message}the maximum is {limits[count]}.")
        result.append({"acceleratorType": f"{LINK}{path}{name}", "acceleratorCount": count})
    return result


def check_scheduling(body: dict, has_gpu: bool) -> dict:
    """Return a Scheduling resource with Google's defaults filled in."""
    given = dict(body.get("scheduling", {}))
    model = given.get("provisioningModel") or ("SPOT" if given.get("preemptible") else "STANDARD")
    spot = model == "SPOT"
    run = given.get("maxRunDuration")
    if spot:
        if given.get("automaticRestart"):
            message = "Scheduling must have preemptible be false when AutomaticRestart is true."
            raise ApiError(400, "invalid", message)
        if given.get("onHostMaintenance") == "MIGRATE":
            message = "Scheduling must have preemptible be false when OnHostMaintenance is MIGRATE."
            raise ApiError(400, "invalid", message)
    maintenance = given.get("onHostMaintenance") or ("TERMINATE" if spot else "MIGRATE")
    if has_gpu and maintenance != "TERMINATE":
        message = "Instances with guest accelerators do not support live migration."
        raise ApiError(400, "invalid", message)
    if run is not None:
        seconds = int(run.get("seconds", 0))
        if not MIN_RUN <= seconds <= MAX_RUN:
            why = f"Max run duration must be between {MIN_RUN} seconds and 120 days."
            raise invalid("resource.scheduling.maxRunDuration", seconds, why)
        if not given.get("instanceTerminationAction"):
            message = "You must specify an instance termination action when you set a max run duration."
            raise ApiError(400, "invalid", message)
    elif given.get("instanceTerminationAction") and not spot:
        message = "An instance termination action needs a Spot instance, a max run duration or a termination time."
        raise ApiError(400, "invalid", message)
    scheduling = {
        "automaticRestart": not spot and given.get("automaticRestart", True),
        "onHostMaintenance": maintenance,
        "preemptible": spot,
        "provisioningModel": model,
    }
    if spot or given.get("instanceTerminationAction"):
        scheduling["instanceTerminationAction"] = given.get("instanceTerminationAction", "STOP")
    if run is not None:
        scheduling["maxRunDuration"] = {"seconds": str(run.get("seconds", 0))}
    return scheduling


def check_service_accounts(project: str, number: str, body: dict) -> list[dict]:
    default = f"{number}-compute@developer.gserviceaccount.com"
    result = []
    for account in body.get("serviceAccounts", []):
        email = account.get("email", "default")
        email = default if email == "default" else email
        if email != default and not re.fullmatch(rf"[a-z0-9-]+@{re.escape(project)}\.iam\.gserviceaccount\.com", email):
            raise ApiError(404, "notFound", f"The resource '{email}' of type 'serviceAccount' was not found.")
        result.append({"email": email, "scopes": account.get("scopes", [])})
    return result


def quota_needs(kind: catalog.MachineType, resource: dict, disk_gb: int, disk_type: str) -> dict[str, int]:
    """What an instance counts against, metric -> amount."""
    family = {"n2": "N2_CPUS", "c2": "C2_CPUS", "a2": "A2_CPUS"}.get(kind.family, "CPUS")
    spot = resource["scheduling"]["provisioningModel"] == "SPOT"
    needs = {
        "PREEMPTIBLE_CPUS" if spot and family == "CPUS" else family: kind.cpus,
        "CPUS_ALL_REGIONS": kind.cpus,
        "INSTANCES": 1,
        "DISKS_TOTAL_GB" if disk_type == "pd-standard" else "SSD_TOTAL_GB": disk_gb,
    }
    if resource["networkInterfaces"][0].get("accessConfigs"):
        needs["IN_USE_ADDRESSES"] = 1
    for item in resource.get("guestAccelerators", []):
        metric = catalog.ACCELERATORS[last(item["acceleratorType"])][1]
        needs[f"PREEMPTIBLE_{metric}" if spot else metric] = item["acceleratorCount"]
        needs["GPUS_ALL_REGIONS"] = item["acceleratorCount"]
    return needs


def network_interfaces(project: str, region: str, body: dict, address: str) -> list[dict]:
    """One interface; its internal and external addresses are the machine's loopback address."""
    given = (body.get("networkInterfaces") or [{}])[0]
    network = last(given.get("network", "global/networks/default"))
    if network != "default" or last(given.get("subnetwork", "default")) != "default":
        which = "network" if network != "default" else "subnetwork"
        name = network if network != "default" else last(given["subnetwork"])
        where = f"global/networks/{name}" if which == "network" else f"regions/{region}/subnetworks/{name}"
        why = "The referenced network resource cannot be found."
        raise invalid(f"resource.networkInterfaces[0].{which}", f"{LINK}projects/{project}/{where}", why)
    interface: dict[str, Any] = {
        "kind": "compute#networkInterface",
        "name": "nic0",
        "network": f"{LINK}projects/{project}/global/networks/default",
        "subnetwork": f"{LINK}projects/{project}/regions/{region}/subnetworks/default",
        "networkIP": address,
        "stackType": "IPV4_ONLY",
        "fingerprint": fingerprint(address),
    }
    if given.get("accessConfigs"):
        interface["accessConfigs"] = [
            {
                "kind": "compute#accessConfig",
                "type": "ONE_TO_ONE_NAT",
                "name": given["accessConfigs"][0].get("name", "external-nat"),
                "natIP": address,
                "networkTier": "PREMIUM",
            }
        ]
    return [interface]

"""From the body of an insert to an instance: everything checked, everything filled in that Google fills in.

Not covered: reservations, sole tenancy, confidential and shielded machines, disks other than the boot disk.
"""

from __future__ import annotations

from typing import Any

from berg.local.compute import catalog
from berg.local.compute.checks import (
    LINK,
    already_exists,
    check_labels,
    check_metadata,
    check_name,
    fingerprint,
    invalid,
    last,
    not_found,
)
from berg.local.compute.images import boot_disk
from berg.local.compute.state import Compute, Instance
from berg.local.errors import ApiError

MIN_RUN, MAX_RUN = 30, 120 * 24 * 3600  # seconds, of maxRunDuration


def make_instance(compute: Compute, project: str, zone: str, body: dict) -> tuple[Instance, dict | None]:
    """Return the instance that `body` describes and its new boot disk; raise Google's error if it may not be."""
    region, name = catalog.ZONES[zone], body.get("name", "")
    check_name("resource.name", name)
    base = f"{LINK}projects/{project}/zones/{zone}"
    kind = check_machine_type(zone, body.get("machineType", ""))
    accelerators = check_accelerators(project, zone, kind, body)
    scheduling = check_scheduling(body, bool(accelerators))
    labels = check_labels(body.get("labels", {}))
    metadata = check_metadata(body.get("metadata", {}))
    accounts = check_service_accounts(compute, project, body)
    interfaces = network_interfaces(project, region, body, compute.new_address())
    if (project, zone, name) in compute.instances:
        raise already_exists(f"projects/{project}/zones/{zone}/instances/{name}")
    if not body.get("disks"):
        raise invalid("resource.disks", "", "At least one disk is required.")
    given = body["disks"][0]
    disk, plain, source = boot_disk(compute, project, zone, name, given)
    size = int(disk["sizeGb"]) if disk else 10
    resource: dict[str, Any] = {
        "kind": "compute#instance",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "name": name,
        "tags": {**body.get("tags", {}), "fingerprint": fingerprint(body.get("tags", {}).get("items", []))},
        "machineType": f"{base}/machineTypes/{kind.name}",
        "status": "PROVISIONING",
        "zone": base,
        "canIpForward": body.get("canIpForward", False),
        "networkInterfaces": interfaces,
        "disks": [
            {
                "kind": "compute#attachedDisk",
                "type": "PERSISTENT",
                "mode": "READ_WRITE",
                "source": source,
                "deviceName": given.get("deviceName", "persistent-disk-0"),
                "index": 0,
                "boot": True,
                "autoDelete": given.get("autoDelete", False),
                "interface": "SCSI",
                "diskSizeGb": str(size),
                "architecture": "X86_64",
            }
        ],
        "metadata": metadata,
        "selfLink": f"{base}/instances/{name}",
        "scheduling": scheduling,
        "cpuPlatform": catalog.CPU_PLATFORMS.get(kind.family, "Intel Haswell"),
        "labelFingerprint": fingerprint(labels),
        "startRestricted": False,
        "deletionProtection": body.get("deletionProtection", False),
        "fingerprint": fingerprint(name),
        "shieldedInstanceConfig": {
            "enableSecureBoot": False,
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
        },
    }
    if labels:
        resource["labels"] = labels
    if accelerators:
        resource["guestAccelerators"] = accelerators
    if accounts:
        resource["serviceAccounts"] = accounts
    if body.get("description"):
        resource["description"] = body["description"]
    if disk:
        disk.update(users=[resource["selfLink"]], creationTimestamp=compute.timestamp())
    disk_type = last(disk["type"]) if disk else "pd-standard"
    needs = quota_needs(kind, resource, size, disk_type)
    return Instance(project, zone, resource["id"], resource, needs, plain), disk


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


def check_service_accounts(compute: Compute, project: str, body: dict) -> list[dict]:
    default = f"{compute.projects[project]['number']}-compute@developer.gserviceaccount.com"
    result = []
    for account in body.get("serviceAccounts", []):
        email = account.get("email", "default")
        email = default if email == "default" else email
        if not compute.account_exists(email):
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

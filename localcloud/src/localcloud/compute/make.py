"""From the body of an insert to an instance: everything checked, everything filled in that Google
fills in.

The checks of single fields are in fields.py, those of disks in images.py, those of interfaces in
interfaces.py.

Not covered: sole tenancy, confidential machines, Local SSDs that are kept when a machine stops.
"""

from typing import Any

from localcloud.compute import catalog, contents, flex, quotas, reservations, tpus
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_description,
    check_labels,
    check_metadata,
    check_name,
    fingerprint,
    invalid,
    last,
    not_found,
    served,
)
from localcloud.compute.fields import (
    INSTANCE,
    check_policies,
    check_scheduling,
    check_service_accounts,
    check_threads,
    honoured,
)
from localcloud.compute.images import (
    boot_disk,
    check_disks,
    check_stop_action,
    local_ssds,
)
from localcloud.compute.interfaces import network_interfaces
from localcloud.compute.state import Compute, Instance
from localcloud.errors import ApiError


def make_instance(
    compute: Compute, project: str, zone: str, body: dict
) -> tuple[Instance, list[dict]]:
    """Return the instance that `body` describes and its new disks; raise Google's error if it may
    not be.
    """
    region, name = catalog.ZONES[zone], body.get("name", "")
    check_name("resource.name", name)
    check_description(body)
    base = f"{LINK}projects/{project}/zones/{zone}"
    kind = check_machine_type(zone, body.get("machineType", ""))
    accelerators = check_accelerators(project, zone, kind, body)
    honoured("resource", body, INSTANCE)
    check_threads(kind, body.get("advancedMachineFeatures") or {})
    scheduling = check_scheduling(body, kind, bool(accelerators) or kind.is_tpu)
    reservations.check(compute, project, zone, body, kind)
    policies = check_policies(compute, project, region, kind, body.get("resourcePolicies") or [])
    valid = flex.valid_seconds(body.get("params") or {}, scheduling["provisioningModel"])
    labels = check_labels(body.get("labels", {}))
    metadata = check_metadata(body.get("metadata", {}))
    accounts = check_service_accounts(compute, project, body)
    interfaces = network_interfaces(compute, project, zone, kind, body)
    if (project, zone, name) in compute.instances:
        raise already_exists(f"projects/{project}/zones/{zone}/instances/{name}")
    given = check_disks(kind, body)
    scratch = local_ssds(kind, body)
    check_stop_action(scheduling, bool(scratch))
    disk, plain = boot_disk(compute, project, zone, kind, name, given)
    resource: dict[str, Any] = {
        "kind": "compute#instance",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "name": name,
        "tags": {"fingerprint": fingerprint([])},
        "machineType": f"{base}/machineTypes/{kind.name}",
        "status": "PROVISIONING",
        "zone": base,
        "canIpForward": False,
        "networkInterfaces": interfaces,
        "disks": [
            {
                "kind": "compute#attachedDisk",
                "type": "PERSISTENT",
                "mode": "READ_WRITE",
                "source": disk["selfLink"],
                "deviceName": "persistent-disk-0",
                "index": 0,
                "boot": True,
                "autoDelete": given.get("autoDelete", False),
                "interface": given.get("interface", "SCSI"),
                "diskSizeGb": disk["sizeGb"],
                "architecture": "X86_64",
            },
            *scratch,
        ],
        "metadata": metadata,
        "selfLink": f"{base}/instances/{name}",
        "scheduling": scheduling,
        "cpuPlatform": catalog.CPU_PLATFORMS.get(kind.family, "Intel Haswell"),
        "labelFingerprint": fingerprint(labels),
        "startRestricted": False,
        "deletionProtection": False,
        "fingerprint": fingerprint(name),
        "shieldedInstanceConfig": {
            "enableSecureBoot": False,
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
        },
    }
    for key in ("reservationAffinity", "description", "advancedMachineFeatures"):
        if body.get(key):
            resource[key] = body[key]
    if labels:
        resource["labels"] = labels
    if policies:
        resource["resourcePolicies"] = policies
    if accelerators:
        resource["guestAccelerators"] = accelerators
    if accounts:
        resource["serviceAccounts"] = accounts
    disk.update(creationTimestamp=compute.timestamp())
    needs = quotas.drawn(compute, project, region, quota_needs(kind, resource, disk), scheduling)
    learns = f"/{catalog.DEEP_LEARNING}/" in disk["sourceImage"]
    instance = Instance(project, zone, resource["id"], resource, needs, plain, learns=learns)
    contents.settle(compute, instance, disk["sourceImageId"])
    instance.valid_seconds = valid
    return instance, [disk]


def check_machine_type(zone: str, link: str) -> catalog.MachineType:
    if not link:
        raise invalid("resource.machineType", "", "Machine type must be specified.")
    found = catalog.machine_type(zone, last(link))
    if found is None:
        why = f"Machine type with name '{last(link)}' does not exist in zone '{zone}'."
        raise invalid("resource.machineType", link, why)
    return found


def check_accelerators(
    project: str, zone: str, kind: catalog.MachineType, body: dict
) -> list[dict]:
    """Return guestAccelerators as Google writes them back, those built into the machine type
    included.
    """
    wanted = body.get("guestAccelerators", [])
    path = f"projects/{project}/zones/{zone}/acceleratorTypes/"
    if kind.accelerator:
        served("resource.guestAccelerators of a machine type that has them", wanted, [])
        wanted = [{"acceleratorType": kind.accelerator, "acceleratorCount": kind.accelerator_count}]
    result = []
    for item in wanted:
        link, count = item.get("acceleratorType", ""), item.get("acceleratorCount", 0)
        name = last(link)
        if name not in catalog.accelerators_in(zone):
            raise not_found(path + name)
        if not kind.accelerator:
            limits = catalog.cpu_limits(zone, name)
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


def quota_needs(kind: catalog.MachineType, resource: dict, disk: dict) -> dict[str, int]:
    """What an instance and its new disk count against, metric -> amount."""
    family = {"n2": "N2_CPUS", "c2": "C2_CPUS", "a2": "A2_CPUS"}.get(kind.family, "CPUS")
    # Those need quota for their GPUs or TPUs alone.
    families = [] if kind.is_tpu or kind.family.startswith(("a3", "a4", "g4")) else [family]
    model = resource["scheduling"]["provisioningModel"]
    spot = model == "SPOT"
    needs = {
        **{"PREEMPTIBLE_CPUS" if spot and each == "CPUS" else each: kind.cpus for each in families},
        **(tpus.quota_needs(kind.name, model) if kind.is_tpu else {"CPUS_ALL_REGIONS": kind.cpus}),
        "INSTANCES": 1,
    }
    needs[quotas.disk_metric(last(disk["type"]))] = int(disk["sizeGb"])
    if local := catalog.SSD_GB * sum(each["type"] == "SCRATCH" for each in resource["disks"]):
        needs["PREEMPTIBLE_LOCAL_SSD_GB" if spot else "LOCAL_SSD_TOTAL_GB"] = local
    if resource["networkInterfaces"][0].get("accessConfigs"):
        needs["IN_USE_ADDRESSES"] = 1
    for item in resource.get("guestAccelerators", []):
        metric = catalog.ACCELERATORS[last(item["acceleratorType"])][1]
        needs[f"PREEMPTIBLE_{metric}" if spot else metric] = item["acceleratorCount"]
        needs["GPUS_ALL_REGIONS"] = item["acceleratorCount"]
    return needs

"""From the body of an insert to an instance: everything checked, everything filled in that Google fills in."""

from __future__ import annotations

from typing import Any

from berg.local import catalog
from berg.local import compute_checks as checks
from berg.local.compute import Compute, Instance, boot_disk_for
from berg.local.compute_checks import LINK
from berg.local.errors import ApiError


def instance(compute: Compute, project: str, zone: str, body: dict) -> tuple[Instance, dict | None]:
    """Return the instance that `body` describes and its new boot disk; raise Google's error if it may not be."""
    region, name = catalog.ZONES[zone], body.get("name", "")
    checks.check_name("resource.name", name)
    base = f"{LINK}projects/{project}/zones/{zone}"
    kind = checks.check_machine_type(zone, body.get("machineType", ""))
    accelerators = checks.check_accelerators(project, zone, kind, body)
    scheduling = checks.check_scheduling(body, bool(accelerators))
    labels = checks.check_labels(body.get("labels", {}))
    metadata = checks.check_metadata(body.get("metadata", {}))
    accounts = checks.check_service_accounts(project, compute.projects[project]["number"], body)
    interfaces = checks.network_interfaces(project, region, body, compute.new_address())
    if (project, zone, name) in compute.instances:
        raise ApiError(
            409, "alreadyExists", f"The resource 'projects/{project}/zones/{zone}/instances/{name}' already exists"
        )
    if not body.get("disks"):
        raise checks.invalid("resource.disks", "", "At least one disk is required.")
    given = body["disks"][0]
    disk, plain, source = boot_disk_for(compute, project, zone, name, given)
    size = int(disk["sizeGb"]) if disk else 10
    resource: dict[str, Any] = {
        "kind": "compute#instance",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "name": name,
        "tags": {**body.get("tags", {}), "fingerprint": checks.fingerprint(body.get("tags", {}).get("items", []))},
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
        "labelFingerprint": checks.fingerprint(labels),
        "startRestricted": False,
        "deletionProtection": body.get("deletionProtection", False),
        "fingerprint": checks.fingerprint(name),
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
    disk_type = disk["type"].rpartition("/")[2] if disk else "pd-standard"
    needs = checks.quota_needs(kind, resource, size, disk_type)
    return Instance(project, zone, resource["id"], resource, needs, plain), disk

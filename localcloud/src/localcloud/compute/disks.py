"""Persistent disks other than those created with a machine, and snapshots of disks.

Disks are resources with a size, a type, users and a source; the content of all but a
machine's first disk is kept in files, see blocks.py. A boot disk made of a snapshot has what was on the disk of
the machine that the snapshot was taken of.

Not covered: regional disks, customer keys, schedules of snapshots, instant snapshots, and disks in
several machines that write.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

from localcloud.call import Call
from localcloud.compute import blocks, catalog, contents, quotas
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_description,
    check_labels,
    check_name,
    fingerprint,
    invalid,
    last,
    not_found,
    number_of,
)
from localcloud.compute.fields import honoured
from localcloud.compute.images import (
    DISK,
    MOST_GB,
    check_device_name,
    check_locations,
    check_ready,
    check_unused,
    find_disk,
    resolve,
    warn,
)
from localcloud.compute.listing import listed
from localcloud.compute.state import Compute, Instance
from localcloud.errors import ApiError
from localcloud.machines import sandbox

log = logging.getLogger("localcloud")

LEAST_GB = {"hyperdisk-balanced": 4}  # others have 10
# Field -> type of disk -> the least and the most that it takes.
SPEEDS = {
    "provisionedIops": {"hyperdisk-balanced": (2000, 160_000)},
    "provisionedThroughput": {"hyperdisk-balanced": (140, 2400)},
}
MOST_DISKS = 128  # persistent ones of a machine
OWN = (
    "name",
    "description",
    "sizeGb",
    "type",
    "sourceImage",
    "sourceSnapshot",
    "labels",
    "kind",
    "zone",
    "physicalBlockSizeBytes",
    "provisionedIops",
    "provisionedThroughput",
    "options",
)
SNAPSHOT = (
    "name",
    "description",
    "labels",
    "sourceDisk",
    "storageLocations",
    "kind",
    "snapshotType",
)


def row_of(
    compute: Compute, project: str, zone: str, name: str, params: dict, field: str
) -> dict[str, Any]:
    """A Disk as Google writes it, from what initializeParams say; raise its refusal."""
    base = f"{LINK}projects/{project}/zones/{zone}"
    link = params.get("diskType") or "pd-standard"
    disk_type = last(link)
    if disk_type not in catalog.DISK_TYPES or ("zones/" in link and f"zones/{zone}/" not in link):
        raise invalid(f"{field}.type", link, "The referenced diskType resource cannot be found.")
    source, least = origin(compute, project, params, field)
    size = int(params.get("diskSizeGb") or least or catalog.DISK_TYPES[disk_type])
    smallest = LEAST_GB.get(disk_type, 10)
    if not smallest <= size <= MOST_GB:
        why = f"Disk size must be between {smallest} GB and {MOST_GB} GB, inclusive."
        raise invalid(f"{field}.sizeGb", size, why)
    if size < least:
        why = f"Requested disk size cannot be smaller than the source's size ({least} GB)"
        raise invalid(f"{field}.sizeGb", size, why)
    labels = check_labels(params.get("labels") or {})
    kept = {"labels": labels, "description": params.get("description", "")}
    return {
        "kind": "compute#disk",
        "id": number_of(f"{base}/disks/{name}"),
        "name": name,
        "creationTimestamp": compute.timestamp(),
        "status": "READY",
        "sizeGb": str(size),
        "type": f"{base}/diskTypes/{disk_type}",
        "zone": base,
        "selfLink": f"{base}/disks/{name}",
        "physicalBlockSizeBytes": "4096",
        "labelFingerprint": fingerprint(labels),
        **source,
        **{key: value for key, value in kept.items() if value},
    }


def origin(compute: Compute, project: str, params: dict, field: str) -> tuple[dict[str, Any], int]:
    """What a disk is made from, as its resource says it, and the least size for it in GB."""
    if params.get("sourceImage") and params.get("sourceSnapshot"):
        message = "Exactly one of the fields must be specified: sourceImage, sourceSnapshot."
        raise ApiError(400, "invalid", f"Invalid value for field '{field}': ''. {message}")
    if link := params.get("sourceImage"):
        image = resolve(compute, project, link, f"{field}.sourceImage")
        found = {"sourceImage": image["selfLink"], "sourceImageId": image["id"]}
        return {**found, "architecture": "X86_64"}, int(image["diskSizeGb"])
    if link := params.get("sourceSnapshot"):
        snapshot = find_snapshot(compute, project, last(link))
        check_ready(snapshot)
        found = {"sourceSnapshot": snapshot["selfLink"], "sourceSnapshotId": snapshot["id"]}
        if image := compute.project_row(project)["snapshot_images"].get(snapshot["name"]):
            found["sourceImage"] = image
        return found, int(snapshot["diskSizeGb"])
    return {}, 0


# --- disks of a machine other than its boot disk


def others(
    compute: Compute, project: str, zone: str, kind: catalog.MachineType, name: str, body: dict
) -> tuple[list[dict], list[dict]]:
    """The persistent disks of an insert after the first, as attached disks, and those to make."""
    attached, made = [], []
    for index, disk in enumerate(body.get("disks") or []):
        if not index or disk.get("type") == "SCRATCH":
            continue
        row, is_new = one(compute, project, zone, kind, (name, index), disk)
        made += [row] if is_new else []
        attached.append(attachment(row, disk, index))
    return attached, made


def check_names(attached: list[dict]) -> None:
    """Raise the refusal of two disks of a machine with one device name, or of one disk twice."""
    seen: set[str] = set()
    for row in attached:
        source = row.get("source", "")  # which scratch disks have not
        if source in seen:
            path = source.removeprefix(LINK)
            message = f"The disk resource '{path}' is already being used by this instance"
            raise ApiError(400, "resourceInUseByAnotherResource", message)
        seen |= {source} - {""}
        if row["deviceName"] in seen:
            field = f"resource.disks[{row['index']}].deviceName"
            raise invalid(field, row["deviceName"], "Device names must be unique.")
        seen.add(row["deviceName"])


def one(
    compute: Compute,
    project: str,
    zone: str,
    kind: catalog.MachineType,
    of: tuple[str, int],
    disk: dict,
) -> tuple[dict, bool]:
    """The disk that a row of an insert means, and whether it is a new one."""
    field = f"resource.disks[{of[1]}]"
    if bool(disk.get("source")) == bool(disk.get("initializeParams")):
        why = "Exactly one of the fields must be specified: source, initializeParams."
        raise ApiError(400, "invalid", f"Invalid value for field '{field}': ''. {why}")
    if link := disk.get("source"):
        row = source_of(compute, project, zone, link, f"{field}.source")
        check_free(compute, row, disk)
        return row, False
    params = disk["initializeParams"]
    name = params.get("diskName") or f"{of[0]}-{of[1]}"
    check_name(f"{field}.initializeParams.diskName", name)
    if (project, zone, name) in compute.disks:
        raise already_exists(f"projects/{project}/zones/{zone}/disks/{name}")
    row = row_of(compute, project, zone, name, params, f"{field}.initializeParams")
    check_type(kind, row)
    return row, True


def check_type(kind: catalog.MachineType, disk: dict) -> None:
    taken = catalog.of_family(catalog.BOOT_DISKS, kind.name, tuple(catalog.DISK_TYPES))
    if last(disk["type"]) not in taken:
        message = f"{last(disk['type'])} disk type cannot be used by {kind.name} machine type."
        raise ApiError(400, "badRequest", message)


def source_of(compute: Compute, project: str, zone: str, link: str, field: str) -> dict:
    if "/" not in link:
        raise invalid(field, link, "The URL is malformed.")
    if "zones/" in link and f"zones/{zone}/" not in link:
        raise invalid(field, link, f"Disk must be in zone '{zone}'.")
    return find_disk(compute, project, zone, last(link))


def check_free(compute: Compute, disk: dict, wanted: dict) -> None:
    """Raise the refusal of a disk that another machine has, unless all of them only read it."""
    rows = [
        row
        for instance in compute.instances.values()
        for row in instance.resource["disks"]
        if row.get("source") == disk["selfLink"]
    ]
    if wanted.get("mode") != "READ_ONLY" or any(row["mode"] != "READ_ONLY" for row in rows):
        check_unused(disk)


def attachment(disk: dict, wanted: dict, index: int) -> dict:
    """A disk as a machine shows it."""
    return {
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "mode": wanted.get("mode", "READ_WRITE"),
        "source": disk["selfLink"],
        "deviceName": wanted.get("deviceName") or f"persistent-disk-{index}",
        "index": index,
        "boot": False,
        "autoDelete": wanted.get("autoDelete", False),
        "interface": wanted.get("interface", "SCSI"),
        "diskSizeGb": disk["sizeGb"],
    }


async def attach(compute: Compute, call: Call) -> dict:
    project, zone = call.params["project"], call.params["zone"]
    instance, wanted = compute.get(project, zone, call.params["instance"]), call.body or {}
    honoured("resource", wanted, DISK)
    if wanted.get("initializeParams"):
        why = "A disk must be there before it is attached."
        raise invalid("initializeParams", "", why)
    if wanted.get("boot"):
        raise invalid("boot", "true", "A machine has its boot disk.")
    check_device_name("deviceName", wanted.get("deviceName", ""))
    disk = source_of(compute, project, zone, wanted.get("source", ""), "source")
    check_free(compute, disk, wanted)
    there = instance.resource["disks"]
    kind = catalog.machine_type(zone, last(instance.resource["machineType"]))
    assert kind
    check_type(kind, disk)
    index = next(n for n in range(1, MOST_DISKS + 1) if n not in [row["index"] for row in there])
    row = attachment(disk, wanted, index)
    if any(each["deviceName"] == row["deviceName"] for each in there):
        raise invalid("deviceName", row["deviceName"], "Device names must be unique.")
    there.append(row)
    disk.setdefault("users", []).append(instance.resource["selfLink"])
    save(compute, disk)
    compute.save(instance)
    blocks.plug(compute, instance)
    return compute.finish(on(compute, call, instance, "attachDisk"))


async def detach(compute: Compute, call: Call) -> dict:
    instance = compute.get(call.params["project"], call.params["zone"], call.params["instance"])
    row = device(instance, call.params["deviceName"])
    if row["boot"] and instance.resource["status"] != "TERMINATED":
        message = (
            "Invalid resource usage: 'The boot disk of a running instance cannot be detached.'."
        )
        raise ApiError(400, "invalidResourceUsage", message)
    if row["type"] == "SCRATCH":
        raise invalid("deviceName", row["deviceName"], "A local SSD cannot be detached.")
    instance.resource["disks"].remove(row)
    disk = find_disk(compute, instance.project, instance.zone, last(row["source"]))
    disk["users"] = [link for link in disk["users"] if link != instance.resource["selfLink"]]
    if not disk["users"]:
        del disk["users"]
    save(compute, disk)
    compute.save(instance)
    blocks.plug(compute, instance)
    return compute.finish(on(compute, call, instance, "detachDisk"))


async def set_auto_delete(compute: Compute, call: Call) -> dict:
    instance = compute.get(call.params["project"], call.params["zone"], call.params["instance"])
    device(instance, call.params["deviceName"])["autoDelete"] = call.params["autoDelete"]
    compute.save(instance)
    return compute.finish(on(compute, call, instance, "setDiskAutoDelete"))


def device(instance: Instance, name: str) -> dict:
    for row in instance.resource["disks"]:
        if row["deviceName"] == name:
            return row
    raise invalid("deviceName", name, f"No attached disk found with device name '{name}'")


def on(compute: Compute, call: Call, instance: Instance, kind: str) -> dict:
    request_id = call.params.get("requestId")
    return compute.operation_on(instance, kind, call.principal, clientOperationId=request_id)


# --- disks alone


def save(compute: Compute, disk: dict) -> None:
    compute.write("disks", disk["id"], disk)


def done(compute: Compute, call: Call, kind: str, disk: dict, error: dict | None = None) -> dict:
    ids = {"targetId": disk["id"], "clientOperationId": call.params.get("requestId")}
    path, zone = disk["selfLink"].removeprefix(LINK), call.params["zone"]
    project = call.params["project"]
    row = compute.operation(project, kind, path, f"zones/{zone}", call.principal, **ids)
    return compute.finish(row, error)


def check_speed(body: dict) -> None:
    """Whether a disk of a type may be as fast as it is asked to be."""
    kind = last(body.get("type") or "pd-standard")
    for key, ranges in SPEEDS.items():
        if key not in body:
            continue
        least, most = ranges.get(kind, (0, 0))
        if not most:
            raise invalid(f"resource.{key}", body[key], f"It cannot be set for a disk of {kind}.")
        if not least <= int(body[key]) <= most:
            why = f"Must be between {least} and {most} for {kind}."
            raise invalid(f"resource.{key}", body[key], why)


async def insert_disk(compute: Compute, call: Call) -> dict:
    project, zone, body = call.params["project"], call.params["zone"], call.body or {}
    name = body.get("name", "")
    check_name("resource.name", name)
    check_description(body)
    honoured("resource", body, OWN)
    check_speed(body)
    if body.get("physicalBlockSizeBytes", "4096") not in ("4096", "16384"):
        why = "Supported block sizes: 4096, 16384."
        raise invalid("resource.physicalBlockSizeBytes", body["physicalBlockSizeBytes"], why)
    if "/" not in body.get("type", "/"):
        raise invalid("resource.type", body["type"], "The URL is malformed.")
    if (project, zone, name) in compute.disks:
        raise already_exists(f"projects/{project}/zones/{zone}/disks/{name}")
    same = {key: body.get(key) for key in ("labels", "description", "sourceSnapshot")}
    image = body.get("sourceImage") or call.params.get("sourceImage")
    sizes = {"diskSizeGb": body.get("sizeGb"), "diskType": body.get("type"), "sourceImage": image}
    disk = row_of(compute, project, zone, name, {**same, **sizes}, "resource")
    disk |= {key: body[key] for key in (*SPEEDS, "physicalBlockSizeBytes") if key in body}
    needs = {quotas.disk_metric(last(disk["type"])): int(disk["sizeGb"])}
    error = compute.faults.take_operation_error(call.method, zone)
    error = error or quotas.quota_error(compute, project, catalog.ZONES[zone], needs)
    if not error:
        compute.disks[project, zone, name] = disk
        save(compute, disk)
    operation = done(compute, call, "insert", disk, error)
    warn(compute, operation, [disk])
    return operation


def disk_of(compute: Compute, call: Call) -> dict:
    name = call.params.get("disk") or call.params["resource"]
    return find_disk(compute, call.params["project"], call.params["zone"], name)


async def resize_disk(compute: Compute, call: Call) -> dict:
    disk, size = disk_of(compute, call), int((call.body or {}).get("sizeGb") or 0)
    old = int(disk["sizeGb"])
    if size <= old:
        why = f"New disk size '{size}' GiB must be larger than existing size '{old}' GiB."
        raise invalid("sizeGb", size, why)
    if size > MOST_GB:
        raise invalid("sizeGb", size, f"Disk size must be at most {MOST_GB} GB.")
    needs = {quotas.disk_metric(last(disk["type"])): size - old}
    project, zone = call.params["project"], call.params["zone"]
    error = quotas.quota_error(compute, project, catalog.ZONES[zone], needs)
    if not error:
        disk["sizeGb"] = str(size)
        save(compute, disk)
        if compute.disk_file(disk).exists():
            blocks.file_of(compute, disk)
    return done(compute, call, "resizeDisk", disk, error)


async def label_disk(compute: Compute, call: Call) -> dict:
    disk = disk_of(compute, call)
    relabel(disk, call.body or {})
    save(compute, disk)
    return done(compute, call, "setLabels", disk)


def relabel(row: dict, body: dict) -> None:
    """Replace the labels of a resource; raise Google's refusal of a fingerprint that is not its."""
    if body.get("labelFingerprint") != row["labelFingerprint"]:
        message = "Labels fingerprint either invalid or resource labels have changed"
        raise ApiError(412, "conditionNotMet", message)
    labels = check_labels(body.get("labels") or {})
    row.pop("labels", None)
    row.update(labelFingerprint=fingerprint(labels), **({"labels": labels} if labels else {}))


# --- snapshots


def snapshots(compute: Compute, project: str) -> list[dict]:
    row = compute.project_row(project)
    row.setdefault("snapshot_images", {})
    found: list[dict] = row.setdefault("snapshots", [])
    return found


def find_snapshot(compute: Compute, project: str, name: str) -> dict:
    for row in snapshots(compute, project):
        if row["name"] == name:
            return row
    raise not_found(f"projects/{project}/global/snapshots/{name}")


async def snapshot_disk(compute: Compute, call: Call) -> dict:
    """Make a snapshot of a disk (disks.createSnapshot), which machines may write to meanwhile."""
    return await make_snapshot(compute, call, disk_of(compute, call))


async def insert_snapshot(compute: Compute, call: Call) -> dict:
    link = (call.body or {}).get("sourceDisk", "")
    found = re.search(r"zones/([^/]+)/disks/([^/]+)$", link)
    if not found:
        raise invalid("resource.sourceDisk", link, "The URL is malformed.")
    return await make_snapshot(
        compute, call, find_disk(compute, call.params["project"], found[1], found[2])
    )


async def make_snapshot(compute: Compute, call: Call, disk: dict) -> dict:
    project, body = call.params["project"], call.body or {}
    name, rows = body.get("name", ""), snapshots(compute, project)
    check_name("resource.name", name)
    honoured("resource", body, SNAPSHOT)
    path = f"projects/{project}/global/snapshots/{name}"
    if any(row["name"] == name for row in rows):
        raise already_exists(path)
    check_locations(body.get("storageLocations") or [])
    labels = check_labels(body.get("labels") or {})
    kept = {"labels": labels, "description": body.get("description", "")}
    row = {
        "kind": "compute#snapshot",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "name": name,
        "status": "UPLOADING",
        "sourceDisk": disk["selfLink"],
        "sourceDiskId": disk["id"],
        "diskSizeGb": disk["sizeGb"],
        "storageBytes": "0",
        "storageBytesStatus": "UP_TO_DATE",
        "downloadBytes": "0",
        "snapshotType": body.get("snapshotType", "STANDARD"),
        "storageLocations": body.get("storageLocations") or ["us"],
        "autoCreated": False,
        "labelFingerprint": fingerprint(labels),
        "selfLink": LINK + path,
        **{key: value for key, value in kept.items() if value},
    }
    scope = f"zones/{call.params['zone']}" if "zone" in call.params else "global"
    kind, target = "insert", path
    if scope != "global":
        kind, target = "createSnapshot", disk["selfLink"].removeprefix(LINK)
    ids = {"targetId": disk["id"], "clientOperationId": call.params.get("requestId")}
    operation = compute.operation(project, kind, target, scope, call.principal, **ids)
    rows.append(row)
    compute.project_row(project)["snapshot_images"][name] = disk.get("sourceImage", "")
    compute.save_project(project)
    failed = compute.faults.take_operation_error(call.method)
    compute.in_background(finish_snapshot(compute, project, row, disk, operation, failed))
    return operation


async def finish_snapshot(
    compute: Compute, project: str, row: dict, disk: dict, operation: dict, failed: dict | None
) -> None:
    """Copy the content of a disk; until then the snapshot can be neither used nor deleted. One that fails
    stays, and says so.
    """
    try:
        if not failed:
            await contents.keep(compute, disk, row["id"])
            await blocks.keep(compute, disk, row["id"])
    except Exception as error:  # an operation that never ends would say nothing
        log.exception("the snapshot %s failed", row["name"])
        failed = {"code": "INTERNAL_ERROR", "message": f"{type(error).__name__}: {error}"}
    await asyncio.sleep(compute.settings.image_delay)
    row["status"] = "FAILED" if failed else "READY"
    compute.save_project(project)
    compute.finish(operation, failed)


async def get_snapshot(compute: Compute, call: Call) -> dict:
    return find_snapshot(compute, call.params["project"], call.params["snapshot"])


async def list_snapshots(compute: Compute, call: Call) -> dict:
    rows = snapshots(compute, call.params["project"])
    return listed(call, "snapshot", "globals", [("global", row) for row in rows])


async def delete_snapshot(compute: Compute, call: Call) -> dict:
    row = await get_snapshot(compute, call)
    if row["status"] == "UPLOADING":
        check_ready(row)
    snapshots(compute, call.params["project"]).remove(row)
    await asyncio.to_thread(sandbox.remove, contents.folder_of(compute, row["id"]))
    return of_snapshot(compute, call, "delete", row)


def of_snapshot(compute: Compute, call: Call, kind: str, row: dict) -> dict:
    project = call.params["project"]
    compute.save_project(project)
    ids = {"targetId": row["id"], "clientOperationId": call.params.get("requestId")}
    path = row["selfLink"].removeprefix(LINK)
    return compute.finish(compute.operation(project, kind, path, "global", call.principal, **ids))


HANDLERS = {
    "instances.attachDisk": attach,
    "instances.detachDisk": detach,
    "instances.setDiskAutoDelete": set_auto_delete,
    "disks.insert": insert_disk,
    "disks.resize": resize_disk,
    "disks.setLabels": label_disk,
    "disks.createSnapshot": snapshot_disk,
    "snapshots.insert": insert_snapshot,
    "snapshots.get": get_snapshot,
    "snapshots.list": list_snapshots,
    "snapshots.delete": delete_snapshot,
}

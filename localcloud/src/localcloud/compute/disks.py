"""Snapshots of machines' boot disks, of which images are made."""

from __future__ import annotations

import asyncio
import logging

from localcloud.call import Call
from localcloud.compute import contents
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_labels,
    check_name,
    fingerprint,
    not_found,
)
from localcloud.compute.fields import honoured
from localcloud.compute.images import (
    check_ready,
    find_disk,
)
from localcloud.compute.listing import listed
from localcloud.compute.state import Compute
from localcloud.machines import sandbox

log = logging.getLogger("localcloud")

SNAPSHOT = (
    "name",
    "description",
    "labels",
    "kind",
)


def snapshots(compute: Compute, project: str) -> list[dict]:
    row = compute.project_row(project)
    found: list[dict] = row.setdefault("snapshots", [])
    return found


def find_snapshot(compute: Compute, project: str, name: str) -> dict:
    for row in snapshots(compute, project):
        if row["name"] == name:
            return row
    raise not_found(f"projects/{project}/global/snapshots/{name}")


async def snapshot_disk(compute: Compute, call: Call) -> dict:
    """Make a snapshot of a disk (disks.createSnapshot), which machines may write to meanwhile."""
    project, body = call.params["project"], call.body or {}
    disk = find_disk(compute, project, call.params["zone"], call.params["disk"])
    name, rows = body.get("name", ""), snapshots(compute, project)
    check_name("resource.name", name)
    honoured("resource", body, SNAPSHOT)
    path = f"projects/{project}/global/snapshots/{name}"
    if any(row["name"] == name for row in rows):
        raise already_exists(path)
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
        "snapshotType": "STANDARD",
        "storageLocations": ["us"],
        "autoCreated": False,
        "labelFingerprint": fingerprint(labels),
        "selfLink": LINK + path,
        **{key: value for key, value in kept.items() if value},
    }
    scope, target = f"zones/{call.params['zone']}", disk["selfLink"].removeprefix(LINK)
    ids = {"targetId": disk["id"], "clientOperationId": call.params.get("requestId")}
    operation = compute.operation(project, "createSnapshot", target, scope, call.principal, **ids)
    rows.append(row)
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
    "disks.createSnapshot": snapshot_disk,
    "snapshots.get": get_snapshot,
    "snapshots.list": list_snapshots,
    "snapshots.delete": delete_snapshot,
}

"""Reservations: room in a zone for so many machines of a kind, which machines that name it use.

Own ones and those that another project shares, all with specificReservationRequired: a machine uses
one only if it names it. What is in use follows from the instances that there are.

Not covered: reservations for any machine, commitments, future reservations and calendars themselves,
other updates than of the count and of the sharing, sharing with whole organisations, quota for what is reserved.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from localcloud.call import Call
from localcloud.compute import catalog
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_name,
    invalid,
    last,
    missing,
    not_found,
    written,
)
from localcloud.compute.fields import honoured
from localcloud.compute.listing import listed
from localcloud.compute.state import Compute, Instance
from localcloud.compute.templates import change
from localcloud.errors import ApiError

COUNT = "specificReservation.count"
SHARED = r"shareSettings(\.shareType|\.projectMap(\..+)?)?"  # what of it an update may name
FIELD = "resource.reservationAffinity"
KEY = "compute.googleapis.com/reservation-name"
KEPT: tuple[str, ...] = (
    "name",
    "description",
    "specificReservation",
    "specificReservationRequired",
)
KEPT += ("shareSettings", "deploymentType", "deleteAtTime", "zone", "kind")


async def insert_reservation(compute: Compute, call: Call) -> dict:
    project, zone = call.params["project"], call.params["zone"]
    body = written({"$ref": "Reservation"}, call.body)
    check_name("resource.name", body.get("name", ""))
    honoured("resource", body, KEPT)
    if not body.get("specificReservationRequired"):
        raise missing("resource.specificReservationRequired: false")
    specific = body.get("specificReservation") or {}
    properties = specific.get("instanceProperties") or {}
    if catalog.machine_type(zone, properties.get("machineType", "")) is None:
        field = "resource.specificReservation.instanceProperties.machineType"
        raise invalid(field, properties.get("machineType", ""), f"There is none in {zone}.")
    if int(specific.get("count", 0)) < 1:
        raise invalid("resource.specificReservation.count", specific.get("count"), "Must be 1 up.")
    path = f"projects/{project}/zones/{zone}/reservations/{body['name']}"
    if (project, zone, body["name"]) in compute.reservations:
        raise already_exists(path)
    row = {
        **body,
        "kind": "compute#reservation",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "zone": f"{LINK}projects/{project}/zones/{zone}",
        "status": "READY",
        "selfLink": LINK + path,
    }

    def keep() -> None:
        compute.reservations[project, zone, row["name"]] = row
        compute.write("reservations", row["id"], row)

    return change(compute, call, "insert", path, row["id"], keep)


def used(compute: Compute, row: dict) -> int:
    """How many machines use a reservation."""
    return sum(
        find(compute, each) is row
        for each in compute.instances.values()
        if each.resource["status"] != "TERMINATED"
    )


def find(compute: Compute, instance: Instance) -> dict | None:
    """The reservation that an instance names."""
    affinity = instance.resource.get("reservationAffinity") or {}
    return named(compute, instance.project, instance.zone, affinity)


def named(compute: Compute, project: str, zone: str, affinity: dict) -> dict | None:
    """The reservation that an affinity names, for a machine of a project in a zone."""
    if affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION":
        return None
    values = affinity.get("values") or [""]
    parts = values[0].split("/")
    owner = parts[1] if len(parts) == 4 else project
    row = compute.reservations.get((owner, zone, parts[-1]))
    if row is None or owner == project:
        return row
    shared = (row.get("shareSettings") or {}).get("projectMap") or {}
    return row if project in shared else None


def check(compute: Compute, project: str, zone: str, body: dict, kind: catalog.MachineType) -> None:
    """Refuse a machine that names a reservation which there is not, or not for such machines."""
    affinity = body.get("reservationAffinity") or {}
    model = (body.get("scheduling") or {}).get("provisioningModel")
    if affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION":
        return
    row = named(compute, project, zone, affinity)
    names = ", ".join(affinity.get("values") or [])
    if row is None:
        raise invalid(FIELD, "", f"Specified reservations [{names}] do not exist.")
    if row["specificReservation"]["instanceProperties"]["machineType"] != kind.name:
        why = f"Specified reservations [{names}] are not compatible with machine type {kind.name}."
        raise invalid(FIELD, "", why)
    is_bound = "deleteAtTime" in row or row.get("deploymentType") == "DENSE"
    if is_bound != (model == "RESERVATION_BOUND"):
        wanted = "RESERVATION_BOUND" if is_bound else "STANDARD"
        why = f"Reservation {names} is for instances with {wanted}."
        raise invalid("resource.scheduling.provisioningModel", model or "", why)


def shortage(compute: Compute, instance: Instance, count: int = 1) -> dict | None:
    """Why so many instances cannot have what they name of a reservation now."""
    row = find(compute, instance)
    if row is None:
        return None
    taken = used(compute, row) - compute.is_there(instance)
    if taken + count <= int(row["specificReservation"]["count"]):
        return None
    message = (
        f"Specified reservations [{row['name']}] do not have available resources for the request."
    )
    return {"code": "RESERVATION_CAPACITY_EXCEEDED", "message": message}


def shown(compute: Compute, row: dict) -> dict[str, Any]:
    counts = {
        "inUseCount": str(used(compute, row)),
        "count": str(row["specificReservation"]["count"]),
    }
    return {**row, "specificReservation": {**row["specificReservation"], **counts}}


def row_of(compute: Compute, call: Call) -> dict:
    key = (call.params["project"], call.params["zone"], call.params["reservation"])
    if key not in compute.reservations:
        raise not_found(f"projects/{key[0]}/zones/{key[1]}/reservations/{key[2]}")
    return compute.reservations[key]


async def get_reservation(compute: Compute, call: Call) -> dict:
    return shown(compute, row_of(compute, call))


async def list_reservations(compute: Compute, call: Call) -> dict:
    rows = [
        (key[1], shown(compute, row))
        for key, row in compute.reservations.items()
        if key[0] == call.params["project"]
    ]
    return listed(call, "reservation", "zones", rows)


async def delete_reservation(compute: Compute, call: Call) -> dict:
    row = row_of(compute, call)
    path = row["selfLink"].removeprefix(LINK)
    if used(compute, row):
        message = f"The reservation resource '{path}' is in use."
        raise ApiError(400, "resourceInUseByAnotherResource", message)

    def forget() -> None:
        del compute.reservations[call.params["project"], last(row["zone"]), row["name"]]
        compute.drop("reservations", row["id"])

    return change(compute, call, "delete", path, row["id"], forget)


async def resize_reservation(compute: Compute, call: Call) -> dict:
    row, count = row_of(compute, call), int((call.body or {}).get("specificSkuCount") or 0)
    check_count(compute, row, "specificSkuCount", count)

    def set_count() -> None:
        row["specificReservation"]["count"] = str(count)
        compute.write("reservations", row["id"], row)

    return change(compute, call, "resize", row["selfLink"].removeprefix(LINK), row["id"], set_count)


def check_count(compute: Compute, row: dict, field: str, count: int) -> None:
    least = max(1, used(compute, row))
    if count < least:
        why = f"Must be at least {least}: one, or as many as are in use."
        raise invalid(field, count, why)


async def update_reservation(compute: Compute, call: Call) -> dict:
    """Change the fields that the request names: how many machines a reservation is for, and with
    whom it is shared.
    """
    row, given = row_of(compute, call), written({"$ref": "Reservation"}, call.body or {})
    names = masked(call)
    if not names:
        raise invalid("paths", "", "The fields to update must be named.")
    for name in names:
        if name != COUNT and not re.fullmatch(SHARED, name):
            raise missing(f"paths: {name}")
    specific = dict(row["specificReservation"])
    if COUNT in names:
        specific["count"] = str((given.get("specificReservation") or {}).get("count", 0))
        check_count(compute, row, f"resource.{COUNT}", int(specific["count"]))
    sharing = copy.deepcopy(row.get("shareSettings") or {"shareType": "LOCAL"})
    asked = given.get("shareSettings") or {}
    for name in (name for name in names if name != COUNT):
        set_sharing(sharing, asked, name.split(".")[1:])
    check_sharing(sharing)

    def keep() -> None:
        row.update(specificReservation=specific, shareSettings=sharing)
        compute.write("reservations", row["id"], row)

    return change(compute, call, "update", row["selfLink"].removeprefix(LINK), row["id"], keep)


def masked(call: Call) -> list[str]:
    """The fields that a request names, by either of its two parameters."""
    paths = call.params.get("paths") or []
    rows = [paths] if isinstance(paths, str) else [*paths]
    return [
        each
        for row in (*rows, call.params.get("updateMask") or "")
        for each in row.split(",")
        if each
    ]


def set_sharing(sharing: dict, asked: dict, path: list[str]) -> None:
    """Take over a part of the settings: all, the type, all projects or one, which goes if it is not
    among those that are sent.
    """
    if not path:
        sharing.clear()
        sharing.update(asked)
    elif len(path) == 1:
        sharing.pop(path[0], None)
        sharing.update({key: asked[key] for key in path if key in asked})
    else:
        projects, sent = sharing.setdefault("projectMap", {}), asked.get("projectMap") or {}
        projects.pop(path[1], None)
        projects.update({key: sent[key] for key in path[1:] if key in sent})


def check_sharing(sharing: dict) -> None:
    kind, projects = sharing.get("shareType"), sharing.get("projectMap") or {}
    if kind not in ("LOCAL", "SPECIFIC_PROJECTS"):
        raise missing(f"resource.shareSettings.shareType: {kind}")
    if bool(projects) != (kind == "SPECIFIC_PROJECTS"):
        why = "It goes with the shareType SPECIFIC_PROJECTS, which needs at least one project."
        raise invalid("resource.shareSettings.projectMap", "", why)


HANDLERS = {
    "reservations.insert": insert_reservation,
    "reservations.get": get_reservation,
    "reservations.list": list_reservations,
    "reservations.aggregatedList": list_reservations,
    "reservations.delete": delete_reservation,
    "reservations.resize": resize_reservation,
    "reservations.update": update_reservation,
}

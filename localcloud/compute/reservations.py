"""Reservations: room in a zone for so many machines of a kind, which machines that name it use.

Own ones and those that another project shares, all with specificReservationRequired: a machine uses
one only if it names it. What is in use follows from the instances that there are.

Not covered: reservations for any machine, commitments, future reservations and calendars themselves,
resizing, sharing with whole organisations, quota for what is reserved.
"""

from __future__ import annotations

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
    least = max(1, used(compute, row))
    if count < least:
        why = f"Must be at least {least}: one, or as many as are in use."
        raise invalid("specificSkuCount", count, why)

    def set_count() -> None:
        row["specificReservation"]["count"] = str(count)
        compute.write("reservations", row["id"], row)

    return change(compute, call, "resize", row["selfLink"].removeprefix(LINK), row["id"], set_count)


HANDLERS = {
    "reservations.insert": insert_reservation,
    "reservations.get": get_reservation,
    "reservations.list": list_reservations,
    "reservations.aggregatedList": list_reservations,
    "reservations.delete": delete_reservation,
    "reservations.resize": resize_reservation,
}

"""The methods of reservations: made and listed. How machines use them: reservations.py.

Not covered: commitments, future reservations, changes, quota for what is reserved.
"""

from __future__ import annotations

from localcloud.call import Call
from localcloud.compute import catalog
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_name,
    check_types_are_names,
    invalid,
    missing,
    written,
)
from localcloud.compute.fields import honoured
from localcloud.compute.listing import listed
from localcloud.compute.reservations import shown
from localcloud.compute.state import Compute
from localcloud.compute.templates import change

SPECIFIC = "resource.specificReservation"
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
    specific = body.get("specificReservation") or {}
    if specific.get("sourceInstanceTemplate"):
        raise missing(f"{SPECIFIC}.sourceInstanceTemplate")
    if not body.get("specificReservationRequired"):
        raise missing("a reservation without specificReservationRequired")
    check_properties(zone, specific.get("instanceProperties") or {})
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


def check_properties(zone: str, properties: dict) -> None:
    """Whether a zone has machines such as a reservation is for."""
    where = f"{SPECIFIC}.instanceProperties"
    name = properties.get("machineType", "")
    if not name:
        raise invalid(f"{where}.machineType", "", "Machine type must be specified.")
    check_types_are_names(where, properties)
    if catalog.machine_type(zone, name) is None:
        raise invalid(f"{where}.machineType", name, f"There is none in {zone}.")
    honoured(where, properties, ("machineType",))


async def list_reservations(compute: Compute, call: Call) -> dict:
    rows = [
        (key[1], shown(compute, row))
        for key, row in compute.reservations.items()
        if key[0] == call.params["project"]
    ]
    return listed(call, "reservation", "zones", rows)


HANDLERS = {
    "reservations.insert": insert_reservation,
    "reservations.list": list_reservations,
    "reservations.aggregatedList": list_reservations,
}

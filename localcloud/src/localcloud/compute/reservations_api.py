"""The methods of reservations: made and listed. How machines use them: reservations.py.

Not covered: commitments, future reservations, changes, quota for what is reserved.
"""

from __future__ import annotations

from localcloud.call import Call
from localcloud.compute import catalog
from localcloud.compute.checks import (
    LINK,
    check_name,
    invalid,
    served,
    written,
)
from localcloud.compute.fields import honoured
from localcloud.compute.listing import listed
from localcloud.compute.operations import insert
from localcloud.compute.reservations import shown
from localcloud.compute.state import Compute

SPECIFIC = "resource.specificReservation"
KEPT = ("name", "specificReservation", "specificReservationRequired", "deploymentType")


async def insert_reservation(compute: Compute, call: Call) -> dict:
    project, zone = call.params["project"], call.params["zone"]
    body = written({"$ref": "Reservation"}, call.body)
    check_name("resource.name", body.get("name", ""))
    honoured("resource", body, KEPT)
    is_named = body.get("specificReservationRequired")
    served("resource.specificReservationRequired", is_named, True)
    specific = body.get("specificReservation") or {}
    honoured(SPECIFIC, specific, ("count", "instanceProperties"))
    properties = specific.get("instanceProperties") or {}
    honoured(f"{SPECIFIC}.instanceProperties", properties, ("machineType",))
    name = properties.get("machineType", "")
    if catalog.machine_type(zone, name) is None:
        field = f"{SPECIFIC}.instanceProperties.machineType"
        raise invalid(field, name, f"There is none in {zone}.")
    row = {
        **body,
        "kind": "compute#reservation",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "zone": f"{LINK}projects/{project}/zones/{zone}",
        "status": "READY",
        "selfLink": f"{LINK}projects/{project}/zones/{zone}/reservations/{body['name']}",
    }
    return insert(compute, call, "reservations", row)


async def list_reservations(compute: Compute, call: Call) -> dict:
    rows = compute.rows("reservations", call.params["project"])
    return listed(call, "reservation", "zones", [(at, shown(compute, row)) for at, row in rows])


HANDLERS = {
    "reservations.insert": insert_reservation,
    "reservations.list": list_reservations,
    "reservations.aggregatedList": list_reservations,
}

"""Reservations: room in a zone for so many machines of a kind; which machines use it, and whether
there is some left.

A machine uses one only if it names it. What is in use follows
from the instances that there are.

Not covered: reservations that any machine uses, those that another project shares, calendars, commitments,
future reservations, changes, quota for what is reserved.
"""

from typing import Any

from localcloud.call import Call
from localcloud.compute import catalog
from localcloud.compute.checks import LINK, check_name, invalid, served, written
from localcloud.compute.fields import honoured
from localcloud.compute.operations import insert
from localcloud.compute.state import Compute, Instance

FIELD = "resource.reservationAffinity"
SPECIFIC = "resource.specificReservation"
KEPT = ("name", "specificReservation", "specificReservationRequired", "deploymentType")


def used(compute: Compute, row: dict) -> int:
    """How many machines use a reservation."""
    on = [each for each in compute.instances.values() if each.resource["status"] != "TERMINATED"]
    return sum(find(compute, each) is row for each in on)


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
    return compute.tables["reservations"].get((owner, zone, parts[-1]))


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
    is_bound = row.get("deploymentType") == "DENSE"
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


def rows(compute: Compute, project: str) -> list[tuple[str, dict]]:
    """The reservations of a project with what is in use of them, each with its zone."""
    there = compute.rows("reservations", project)
    return [(zone, shown(compute, row)) for zone, row in there]


def shown(compute: Compute, row: dict) -> dict[str, Any]:
    counts = {
        "inUseCount": str(used(compute, row)),
        "assuredCount": str(row["specificReservation"]["count"]),
        "count": str(row["specificReservation"]["count"]),
    }
    return {**row, "specificReservation": {**row["specificReservation"], **counts}}


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


HANDLERS = {"reservations.insert": insert_reservation}

"""Reservations: room in a zone for so many machines of a kind; which machines use it, and whether
there is some left.

Own ones and those that another project shares. With specificReservationRequired a machine uses one
only if it names it; without, whatever machine fits uses it, on demand, which does not say that it
wants none. What is in use follows from the instances that there are. The methods are those of
reservations_api.py.
"""

from __future__ import annotations

from typing import Any

from localcloud.compute import catalog
from localcloud.compute.checks import LINK, invalid, last
from localcloud.compute.state import Compute, Instance

FIELD = "resource.reservationAffinity"


def used(compute: Compute, row: dict) -> int:
    """How many machines use a reservation."""
    on = [each for each in compute.instances.values() if each.resource["status"] != "TERMINATED"]
    if row["specificReservationRequired"]:
        return sum(find(compute, each) is row for each in on)
    fitting, left = sum(may_use(each, row) for each in on), 0
    for other in compute.reservations.values():  # the older one is full before this one is used
        if other is row:
            break
        is_open = not other["specificReservationRequired"]
        if is_open and other["zone"] == row["zone"] and shape_of(other) == shape_of(row):
            left += room_of(other)
    return max(0, min(room_of(row), fitting - left))


def room_of(row: dict) -> int:
    return int(row["specificReservation"]["count"])


def shape_of(row: dict) -> list[Any]:
    """What a machine must be like to use a reservation that it does not name."""
    properties = row["specificReservation"]["instanceProperties"]
    accelerators = [
        (each["acceleratorType"], each["acceleratorCount"])
        for each in properties.get("guestAccelerators", [])
    ]
    ssds = sorted(each.get("interface", "SCSI") for each in properties.get("localSsds", []))
    platform = properties.get("minCpuPlatform", "")
    return [properties["machineType"], platform, accelerators, ssds]


def may_use(instance: Instance, row: dict) -> bool:
    """Whether a machine uses a reservation that is for any machine, if there is room in it."""
    resource = instance.resource
    kind = (resource.get("reservationAffinity") or {}).get("consumeReservationType")
    owner = row["selfLink"].removeprefix(LINK).split("/")[1]
    shared = (row.get("shareSettings") or {}).get("projectMap") or {}
    if kind not in (None, "ANY_RESERVATION") or instance.project not in (owner, *shared):
        return False
    if resource["zone"].rpartition("/")[2] != last(row["zone"]):
        return False
    if resource["scheduling"]["provisioningModel"] != "STANDARD":
        return False
    name = last(resource["machineType"])
    accelerators = [
        (last(each["acceleratorType"]), each["acceleratorCount"])
        for each in resource.get("guestAccelerators", [])
    ]
    ssds = sorted(each["interface"] for each in resource["disks"] if each["type"] == "SCRATCH")
    shape = [name, resource.get("minCpuPlatform", ""), accelerators, ssds]
    built_in = name in catalog.BUILT_IN  # whose GPUs and disks a reservation need not say
    return shape[:2] == shape_of(row)[:2] if built_in else shape == shape_of(row)


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
    if row is None or not row["specificReservationRequired"]:
        return None
    if owner == project:
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
    is_bound = is_of_calendar(compute, row) or row.get("deploymentType") == "DENSE"
    if is_bound != (model == "RESERVATION_BOUND"):
        wanted = "RESERVATION_BOUND" if is_bound else "STANDARD"
        why = f"Reservation {names} is for instances with {wanted}."
        raise invalid("resource.scheduling.provisioningModel", model or "", why)


def future(compute: Compute, project: str) -> list[dict]:
    """The future reservations of a project; changes are kept once the project is saved."""
    found: list[dict] = compute.project_row(project).setdefault("future_reservations", [])
    return found


def is_of_calendar(compute: Compute, row: dict) -> bool:
    """Whether a future reservation in calendar mode made a reservation: its machines end with it."""
    owner = row["selfLink"].removeprefix(LINK).split("/")[1]
    return any(
        row["selfLink"] in each["status"]["autoCreatedReservations"]
        for each in future(compute, owner)
    )


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
        "assuredCount": str(row["specificReservation"]["count"]),
        "count": str(row["specificReservation"]["count"]),
    }
    return {**row, "specificReservation": {**row["specificReservation"], **counts}}

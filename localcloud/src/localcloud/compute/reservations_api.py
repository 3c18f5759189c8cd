"""The methods of reservations: made, read, changed, deleted. How machines use them: reservations.py.

A future reservation in calendar mode is there at once, with the reservation that it makes.

Not covered: commitments, other future reservations, other updates than of the count and of the
sharing, sharing with whole organisations, quota for what is reserved.
"""

from __future__ import annotations

import dataclasses

from localcloud.call import Call
from localcloud.compute import catalog
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_name,
    check_types_are_names,
    invalid,
    last,
    missing,
    not_found,
    written,
)
from localcloud.compute.fields import honoured
from localcloud.compute.listing import listed
from localcloud.compute.reservations import future, shown, used
from localcloud.compute.state import Compute
from localcloud.compute.templates import change
from localcloud.errors import ApiError

COUNT = "specificReservation.count"
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
    check_properties(zone, specific.get("instanceProperties") or {})
    if int(specific.get("count", 0)) < 1:
        raise invalid("resource.specificReservation.count", specific.get("count"), "Must be 1 up.")
    path = f"projects/{project}/zones/{zone}/reservations/{body['name']}"
    if (project, zone, body["name"]) in compute.reservations:
        raise already_exists(path)
    row = {
        **body,
        "specificReservationRequired": bool(body.get("specificReservationRequired")),
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


async def insert_future(compute: Compute, call: Call) -> dict:
    """Make a future reservation of a calendar, and its reservation, whose time begins at once."""
    project, zone = call.params["project"], call.params["zone"]
    body = written({"$ref": "FutureReservation"}, call.body)
    if body.get("reservationMode") != "CALENDAR":
        raise missing(f"resource.reservationMode: {body.get('reservationMode', '')}")
    sku, name = body["specificSkuProperties"], body.get("reservationName") or body["name"]
    made = {
        "name": name,
        "specificReservation": {
            "count": sku["totalCount"],
            "instanceProperties": sku["instanceProperties"],
        },
        "specificReservationRequired": True,
        "deleteAtTime": body["timeWindow"]["endTime"],
    }
    method = "compute.reservations.insert"
    await insert_reservation(compute, dataclasses.replace(call, method=method, body=made))
    path = f"projects/{project}/zones/{zone}/futureReservations/{body['name']}"
    row = {
        **body,
        "kind": "compute#futureReservation",
        "id": compute.new_id(),
        "creationTimestamp": compute.timestamp(),
        "zone": f"{LINK}projects/{project}/zones/{zone}",
        "selfLink": LINK + path,
        "status": {
            "autoCreatedReservations": [
                f"{LINK}projects/{project}/zones/{zone}/reservations/{name}"
            ]
        },
    }

    def keep() -> None:
        future(compute, project).append(row)
        compute.save_project(project)

    return change(compute, call, "insert", path, row["id"], keep)


async def list_future(compute: Compute, call: Call) -> dict:
    rows = [(last(row["zone"]), row) for row in future(compute, call.params["project"])]
    return listed(call, "futureReservation", "zones", rows)


def check_properties(zone: str, properties: dict) -> None:
    """Whether a zone has machines such as a reservation is for."""
    where = f"{SPECIFIC}.instanceProperties"
    name = properties.get("machineType", "")
    if not name:
        raise invalid(f"{where}.machineType", "", "Machine type must be specified.")
    check_types_are_names(where, properties)
    try:
        kind = catalog.machine_type(zone, name)
    except ValueError as error:  # a custom one that cannot be
        raise invalid(f"{where}.machineType", name, str(error)) from None
    if kind is None:
        raise invalid(f"{where}.machineType", name, f"There is none in {zone}.")
    platform = properties.get("minCpuPlatform")
    if platform and platform not in catalog.MIN_CPU_PLATFORMS.get(kind.family, ()):
        why = f"The CPU platform is not available for machine type {kind.name}."
        raise invalid(f"{where}.minCpuPlatform", platform, why)
    check_local_ssds(f"{where}.localSsds", kind, properties.get("localSsds") or [])
    for index, row in enumerate(properties.get("guestAccelerators") or []):
        if row.get("acceleratorType") not in catalog.accelerators_in(zone):
            field = f"{where}.guestAccelerators[{index}].acceleratorType"
            raise invalid(field, row.get("acceleratorType", ""), f"There is none in {zone}.")


def check_local_ssds(where: str, kind: catalog.MachineType, ssds: list[dict]) -> None:
    included = catalog.of_family(catalog.LOCAL_SSDS_INCLUDED, kind.name, 0)
    allowed = (0, included) if included else catalog.of_family(catalog.LOCAL_SSDS, kind.name, (0,))
    if len(ssds) not in allowed:
        offered = ", ".join(map(str, allowed))
        raise invalid(where, len(ssds), f"Machine type {kind.name} may have {offered}.")
    for index, row in enumerate(ssds):
        if int(row.get("diskSizeGb", catalog.SSD_GB)) != catalog.SSD_GB:
            why = f"A Local SSD has {catalog.SSD_GB} GB."
            raise invalid(f"{where}[{index}].diskSizeGb", row["diskSizeGb"], why)


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
    if row["specificReservationRequired"] and used(compute, row):
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


HANDLERS = {
    "reservations.insert": insert_reservation,
    "reservations.get": get_reservation,
    "reservations.list": list_reservations,
    "reservations.aggregatedList": list_reservations,
    "reservations.delete": delete_reservation,
    "reservations.resize": resize_reservation,
    "futureReservations.insert": insert_future,
    "futureReservations.list": list_future,
    "futureReservations.aggregatedList": list_future,
}

"""Reservations of Compute Engine: room that was booked before, for machines that name it.

Berg uses what there is, and books nothing. Not covered: booking ahead; parts of a reservation
(blocks).
"""

import re
from dataclasses import dataclass, replace
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import accelerators, api, http

NAME = re.compile(
    r"(?:projects/([a-z][a-z0-9:.-]+)/reservations/)?([a-z]([-a-z0-9]{0,61}[a-z0-9])?)"
)
KEY = "compute.googleapis.com/reservation-name"


@dataclass(frozen=True)
class Reservation:
    """Room for machines of one type in a zone."""

    name: str
    owner: str  # the project that has it
    zone: str
    machine_type: str
    count: int = 0
    in_use: int = 0
    is_bound: bool = False  # only for machines that end with it: of a calendar, or densely placed
    is_open: bool = False  # for any machine that fits, which must not name it
    ends: bool = False  # at a time: it may be of a calendar

    @property
    def free(self) -> int:
        return self.count - self.in_use

    def __str__(self) -> str:
        if not self.count:
            return f"{self.name} of {self.owner} in {self.zone}: what is free you may not see"
        what = f"{self.free} of {self.count} x {self.machine_type} free"
        return f"{self.name} in {self.zone}: {what}" + ", without --reservation" * self.is_open


def everything(config: Config, owner: str = "") -> list[Reservation]:
    """Return a project's reservations of machines of one type; by default the configured one's."""
    owner = owner or config.project
    found = []
    for page in api.pages(config, "/aggregated/reservations", project=owner):
        for scope in page.get("items", {}).values():
            for row in scope.get("reservations", []):
                if "specificReservation" in row:
                    found.append(of_row(owner, row))
    return found


def of_row(owner: str, row: dict[str, Any]) -> Reservation:
    """Return a reservation from what the API says of it."""
    specific = row["specificReservation"]
    return Reservation(
        name=row["name"],
        owner=owner,
        zone=api.last_part(row["zone"]),
        machine_type=specific.get("instanceProperties", {}).get("machineType", ""),
        count=int(specific.get("count", 0)),
        in_use=int(specific.get("inUseCount", 0)),
        is_bound=row.get("deploymentType") == "DENSE",
        is_open=not row.get("specificReservationRequired"),
        ends="deleteAtTime" in row,
    )


def is_of_calendar(config: Config, reservation: Reservation) -> bool:
    """Return whether a calendar made a reservation: then only machines that end with it may use it.

    Where Google does not let one look, those that cannot be had on demand are taken for it.
    """
    path = f"/zones/{reservation.zone}/reservations/{reservation.name}"
    try:
        for page in api.pages(config, "/aggregated/futureReservations", project=reservation.owner):
            for scope in page.get("items", {}).values():
                for row in scope.get("futureReservations", []):
                    made = row.get("status", {}).get("autoCreatedReservations", [])
                    if row.get("reservationMode") == "CALENDAR" and any(
                        each.endswith(path) for each in made
                    ):
                        return True
    except http.Forbidden:
        return reservation.machine_type.startswith(accelerators.NOT_ON_DEMAND)
    return False


def unseen(owner: str, name: str, machine_type: str, zones: list[str]) -> Reservation:
    """Return a reservation of a project that one may not look into, by what the caller knows."""
    if not zones:
        raise BergError(
            f"you may not list the reservations of {owner}: name the zone of {name} (--zone)"
        )
    is_bound = machine_type.startswith(accelerators.NOT_ON_DEMAND)
    return Reservation(name, owner, zones[0], machine_type, is_bound=is_bound)


def unknown(text: str, there: list[Reservation]) -> BergError:
    """Return the error for a name that no reservation of a project has."""
    known = f"What there is: {'; '.join(map(str, there))}" if there else "There is none at all"
    other = ". Another project's: projects/OWNER/reservations/NAME" * ("/" not in text)
    return BergError(f"there is no reservation {text!r}. {known}{other}")


def unfit(named: list[Reservation], machine_type: str, zones: list[str]) -> BergError:
    """Return the error for reservations that machines of a type cannot use there."""
    return BergError(
        f"no machine of type {machine_type} in {', '.join(zones) or 'any zone'} can use what is "
        f"reserved: {'; '.join(map(str, named))}. Choose -t, -g or --machine-type"
    )


def checked(config: Config, found: Reservation, text: str) -> Reservation:
    """Return a reservation that machines may name, with whether they are bound to it; raise
    BergError for one that they must not name.
    """
    if found.is_open:
        raise BergError(
            f"{found.name} is for any machine that fits, which uses it without its name: "
            f"leave out --reservation {text}"
        )
    is_bound = found.is_bound or (found.ends and is_of_calendar(config, found))
    return replace(found, is_bound=is_bound)


def find(config: Config, text: str, machine_type: str, zones: list[str]) -> Reservation:
    """Return the reservation of that name, in one of the zones if any are given.

    Raise BergError where there is none, or not for machines of that type.
    """
    parts = NAME.fullmatch(text)
    if parts is None:
        raise BergError(
            f"--reservation {text!r} is no name: give NAME, or projects/OWNER/reservations/NAME"
        )
    try:
        there = everything(config, parts[1] or "")
    except http.Forbidden:
        if parts[1] in (None, config.project):
            raise
        return unseen(parts[1], parts[2], machine_type, zones)
    named = [each for each in there if each.name == parts[2]]
    if not named:
        raise unknown(text, there)
    for each in named:
        if each.machine_type == machine_type and (not zones or each.zone in zones):
            return checked(config, each, text)
    raise unfit(named, machine_type, zones)


def affinity(config: Config, reservation: Reservation) -> dict[str, Any]:
    """Return what a machine's body says to use a reservation."""
    value = reservation.name
    if reservation.owner != config.project:
        value = f"projects/{reservation.owner}/reservations/{value}"
    return {"consumeReservationType": "SPECIFIC_RESERVATION", "key": KEY, "values": [value]}

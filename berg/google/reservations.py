"""Reservations of Compute Engine: room that was booked before, for machines that name it.

Berg uses what there is, and books nothing. Not covered: reservations that take any machine, which
Google uses by itself; booking ahead; parts of a reservation (blocks).
"""

import re
from dataclasses import dataclass
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api

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
    count: int
    in_use: int
    is_bound: bool  # only for machines that end with it: of a calendar, or densely placed

    @property
    def free(self) -> int:
        return self.count - self.in_use

    def __str__(self) -> str:
        what = f"{self.free} of {self.count} x {self.machine_type} free"
        return f"{self.name} in {self.zone}: {what}"


def everything(config: Config, owner: str = "") -> list[Reservation]:
    """Return the reservations of a project that name their machines; the configured one's."""
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
        is_bound="deleteAtTime" in row or row.get("deploymentType") == "DENSE",
    )


def find(config: Config, text: str, machine_type: str, zones: list[str]) -> Reservation:
    """Return the reservation of that name, in one of the zones if any are given.

    Raise BergError where there is none, or not for machines of that type.
    """
    parts = NAME.fullmatch(text)
    if parts is None:
        raise BergError(
            f"--reservation {text!r} is no name: give NAME, or projects/OWNER/reservations/NAME"
        )
    there = everything(config, parts[1] or "")
    named = [each for each in there if each.name == parts[2]]
    if not named:
        known = f"What there is: {'; '.join(map(str, there))}" if there else "There is none at all"
        other = ". Another project's: projects/OWNER/reservations/NAME" * (not parts[1])
        raise BergError(f"there is no reservation {text!r}. {known}{other}")
    for each in named:
        if each.machine_type == machine_type and (not zones or each.zone in zones):
            return each
    raise BergError(
        f"no machine of type {machine_type} in {', '.join(zones) or 'any zone'} can use what is "
        f"reserved: {'; '.join(map(str, named))}. Choose -t, -g or --machine-type"
    )


def affinity(config: Config, reservation: Reservation) -> dict[str, Any]:
    """Return what a machine's body says to use a reservation."""
    value = reservation.name
    if reservation.owner != config.project:
        value = f"projects/{reservation.owner}/reservations/{value}"
    return {"consumeReservationType": "SPECIFIC_RESERVATION", "key": KEY, "values": [value]}

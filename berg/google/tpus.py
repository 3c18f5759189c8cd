"""Which machines with TPUs Google offers through Compute Engine, and how many of them form a slice.

Not covered: v4 and v5e, which come as nodes of a cluster alone (tpu_nodes.py); v2 and v3; several
slices for one job.
"""

import re
from dataclasses import dataclass
from math import prod
from typing import Any

from berg import BergError
from berg.google import api, prices
from berg.google.accelerators import Shape

HOST_CHIPS = 4  # of each machine of a slice
IMAGE_PROJECT = "ubuntu-os-accelerator-images"
OLDER = ("v2", "v3", "v4", "v5e", "v5litepod")


@dataclass(frozen=True)
class Family:
    """What one generation of TPUs comes in: machine types by topology, one machine each, and the
    slices.
    """

    name: str
    image: str
    host_type: str  # machine type of a slice's machines
    alone: dict[str, str]  # topology of one machine -> machine type
    slices: tuple[str, ...]
    more: bool = False  # some AxBxC of multiples of 4, A <= B <= C, are, too: Google lists not all
    is_open: bool = True  # as Spot and by flex-start, to every project


# https://docs.cloud.google.com/tpu/docs/v5p
CUBES = ("2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")
V6E_IMAGE = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
FAMILIES = {
    "v6e": Family(
        "v6e",
        V6E_IMAGE,
        "ct6e-standard-4t",
        {"1x1": "ct6e-standard-1t", "2x2": "ct6e-standard-4t"},
        ("2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    ),
    "v5p": Family(
        "v5p",
        V6E_IMAGE,
        "ct5p-hightpu-4t",
        {"2x2x1": "ct5p-hightpu-4t"},
        (*CUBES, "16x16x16", "16x16x24"),
        more=True,
    ),
    "tpu7x": Family(
        "tpu7x",
        "ubuntu-accel-2404-amd64-tpu-tpu7x",
        "tpu7x-standard-4t",
        {"2x2x1": "tpu7x-standard-4t"},
        CUBES,
        more=True,
        is_open=False,
    ),
}
# Chips -> the topology of v6e, whose small ones are usually called by their number of chips.
V6E_SMALL = {"1": "1x1", "4": "2x2", "8": "2x4"}
# What an insert must say of a machine type beside its name.
# https://github.com/kubernetes/autoscaler: its machine types of GCE
WANTED_BY = {"ct6e-standard-8t": {"advancedMachineFeatures": {"threadsPerCore": 1}}}
MACHINE_TYPES = {
    kind: (family.name, topology)
    for family in FAMILIES.values()
    for topology, kind in family.alone.items()
}
# Eight chips of one machine: no zone had room for it in 2026-07, so that only its name means it.
MACHINE_TYPES["ct6e-standard-8t"] = ("v6e", "2x4")


def policy(name: str, topology: str, description: str) -> dict[str, Any]:
    """Return the body of the workload policy that lets machines form a slice of that topology."""
    workload = {
        "type": "HIGH_THROUGHPUT",
        "acceleratorTopology": topology,
        "acceleratorTopologyMode": "AUTO_CONNECT",
    }
    return {"name": name, "description": description, "workloadPolicy": workload}


@dataclass(frozen=True)
class Tpu:
    """TPUs to ask for: one machine, or a slice of several."""

    family: str
    topology: str
    machine_type: str
    hosts: int

    @property
    def chips(self) -> int:
        return prod(int(side) for side in self.topology.split("x"))

    @property
    def image(self) -> str:
        return FAMILIES[self.family].image

    @property
    def shape(self) -> Shape:
        return Shape(self.machine_type, 0, "")

    def __str__(self) -> str:
        return f"{self.family}-{self.topology}"


def parse(text: str) -> Tpu:
    if text in MACHINE_TYPES:
        return Tpu(*MACHINE_TYPES[text], text, 1)
    name, _, rest = text.partition("-")
    if name in OLDER:
        raise BergError(
            f"--tpu {text}: Compute Engine has no {name}, only {', '.join(FAMILIES)}. "
            "v4 and v5e come as pods of a cluster: berg cluster create NAME --tpu v5e-4x4"
        )
    family = FAMILIES.get(name)
    if family is None:
        known = ", ".join(FAMILIES)
        raise BergError(
            f"--tpu {text}: there is no such family, only {known}. Give FAMILY-TOPOLOGY; see: berg "
            "gpus --tpu"
        )
    rest = V6E_SMALL.get(rest, rest) if name == "v6e" else rest
    if rest in family.alone:
        return Tpu(name, rest, family.alone[rest], 1)
    if rest in family.slices or (family.more and is_large_cube(rest)):
        return Tpu(
            name, rest, family.host_type, prod(int(side) for side in rest.split("x")) // HOST_CHIPS
        )
    if rest.isdigit() and (meant := readings(family, int(rest))):
        raise BergError(f"--tpu {text} is not clear: {meant}. See: berg gpus --tpu")
    offered = ", ".join([*family.alone, *family.slices])
    raise BergError(
        f"--tpu {text}: {name} has no topology {rest!r}. It has: {offered}{', …' * family.more}"
    )


def is_large_cube(topology: str) -> bool:
    sides = (
        [int(side) for side in topology.split("x")]
        if re.fullmatch(r"\d{1,3}(x\d{1,3}){2}", topology)
        else []
    )
    return bool(sides) and sides == sorted(sides) and all(side and side % 4 == 0 for side in sides)


def readings(family: Family, number: int) -> str:
    """What a name with a bare number may mean, each as one would have to write it; "" if nothing
    there is.
    """
    chips: dict[str, float] = {"it may count chips": number}
    if family.more:
        chips["it may count cores, two of each chip"] = number / 2
    said = []
    for what, count in chips.items():
        fitting = [
            t
            for t in (*family.alone, *family.slices)
            if prod(int(side) for side in t.split("x")) == count
        ]
        if fitting:
            said.append(
                f"{what} ({', '.join(f'--tpu {family.name}-{topology}' for topology in fitting)})"
            )
    return " or ".join(said)


def everything() -> list[Tpu]:
    """All that can be asked for, but for the cubes that have no end."""
    found = []
    for family in FAMILIES.values():
        found += [
            parse(f"{family.name}-{topology}") for topology in (*family.alone, *family.slices)
        ]
    return found


def meaning(failed: api.OperationFailed) -> api.OperationFailed:
    """Return what Google means by an error about machines with TPUs: by INTERNAL_ERROR, which comes
    after minutes of STAGING, that there is no room.
    """
    if failed.code == "INTERNAL_ERROR":
        return api.OperationFailed("insufficientCapacity", f"{failed.code}: {failed.message}")
    return failed


def caution(text: str, model: str) -> list[tuple[str, str]]:
    """Return what a plan says of a topology that Google's table of slices does not have, and of a
    way to pay that is not open to every project.
    """
    found = parse(text)
    family, rows = FAMILIES[found.family], []
    if found.topology not in (*family.alone, *family.slices):
        rows.append(
            ("", f"Google's table has no {found.topology}: it takes some such cubes, not all")
        )
    if not family.is_open and model != prices.STANDARD:
        how = prices.MODELS[model]
        rows.append(("", f"Google gives {family.name} {how} only to projects that it let in"))
    return rows

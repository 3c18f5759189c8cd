"""Which machines with TPUs Google offers through Compute Engine, and how many of them form a slice.

Not covered: v4 and v5e, which come as nodes of a cluster alone (tpu_nodes.py); v2 and v3; several
slices for one job.

Which TPUs nodes of Google Kubernetes Engine have, and how many nodes form a slice.

GKE has generations that Compute Engine does not make, with a time limit all the same: that of the
nodes. https://docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus

Slices of tpu7x are placed by a workload policy, which a pool names; those of the others by the
pool's own placement.

Not covered: v3, and several slices for one job.
"""

import re
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from berg import BergError
from berg.google import api, prices
from berg.google.shapes import Shape

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


CHIP = "google.com/tpu"  # what pods ask for

TAINT = CHIP

ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"

TOPOLOGY = "cloud.google.com/gke-tpu-topology"

POOL = "cloud.google.com/gke-nodepool"

FLAT = ("2x4", "4x4", "4x8", "8x8", "8x16", "16x16")


@dataclass(frozen=True)
class NodeFamily:
    """What one generation comes in: single nodes by name, with topology and machine type, and the
    slices of nodes with four chips.
    """

    accelerator: str  # as labels of nodes have it
    host_type: str  # machine type of a slice's nodes
    alone: dict[str, tuple[str, str]]
    slices: tuple[str, ...]
    more: bool = False  # cubes that the tables leave out, too
    has_policy: bool = False  # whether a workload policy places its slices
    spot: bool = True


def flat(accelerator: str, machine: str) -> NodeFamily:
    """Return a family whose chips lie in a plane; 8 of them are one node, or a slice of two."""
    alone = {
        "1": ("1x1", f"{machine}-1t"),
        "1x1": ("1x1", f"{machine}-1t"),
        "4": ("2x2", f"{machine}-4t"),
        "2x2": ("2x2", f"{machine}-4t"),
        "8": ("2x4", f"{machine}-8t"),
    }
    return NodeFamily(accelerator, f"{machine}-4t", alone, FLAT)


def cubic(accelerator: str, machine: str) -> NodeFamily:
    """Return a family whose chips form cubes."""
    alone = {"2x2x1": ("2x2x1", f"{machine}-4t")}
    return NodeFamily(accelerator, f"{machine}-4t", alone, CUBES, more=True)


NODE_FAMILIES = {
    "v4": cubic("tpu-v4-podslice", "ct4p-hightpu"),
    "v5e": flat("tpu-v5-lite-podslice", "ct5lp-hightpu"),
    "v5p": cubic("tpu-v5p-slice", "ct5p-hightpu"),
    "v6e": flat("tpu-v6e-slice", "ct6e-standard"),
    "tpu7x": replace(cubic("tpu7x", "tpu7x-standard"), has_policy=True, spot=False),
}

KINDS = {family.accelerator: name for name, family in NODE_FAMILIES.items()}


@dataclass(frozen=True)
class Slice:
    """TPUs of nodes: one node, or several that come and go together."""

    name: str  # FAMILY-TOPOLOGY, or FAMILY-CHIPS of one node
    accelerator: str
    topology: str
    machine_type: str
    hosts: int
    has_policy: bool = False
    spot: bool = True

    @property
    def policy(self) -> str:
        """Return the name of the workload policy that places it; "" for none."""
        return f"berg-pools-{self.topology}" if self.has_policy and self.hosts > 1 else ""

    @property
    def chips(self) -> int:
        return prod(int(side) for side in self.topology.split("x"))

    @property
    def chips_each(self) -> int:
        return self.chips // self.hosts

    @property
    def shape(self) -> Shape:
        return Shape(self.machine_type, 0, "")

    def pool(self, spot: bool) -> str:
        """Return the name of the pool that has them: each pool is one slice."""
        return f"{self.name}-spot" if spot else self.name

    @property
    def selector(self) -> dict[str, str]:
        """Return the labels by which pods find the nodes."""
        return {ACCELERATOR: self.accelerator, TOPOLOGY: self.topology}


def parse_slice(text: str) -> Slice:
    """Return the TPUs that a name means in a cluster; raise BergError for any other name."""
    kind, _, rest = text.lower().partition("-")
    family = NODE_FAMILIES.get(kind)
    if family is None:
        raise BergError(
            f"--tpu {text}: nodes of a cluster have {', '.join(NODE_FAMILIES)}. "
            "Give FAMILY-TOPOLOGY, as in v5e-4x4"
        )
    if rest in family.alone:
        topology, machine_type = family.alone[rest]
        name = rest if rest == "8" else topology
        found = Slice(f"{kind}-{name}", family.accelerator, topology, machine_type, 1)
        return replace(found, spot=family.spot)
    if rest in family.slices or (family.more and is_large_cube(rest)):
        hosts = prod(int(side) for side in rest.split("x")) // HOST_CHIPS
        found = Slice(f"{kind}-{rest}", family.accelerator, rest, family.host_type, hosts)
        return replace(found, has_policy=family.has_policy, spot=family.spot)
    offered = ", ".join([*family.alone, *family.slices])
    raise BergError(
        f"--tpu {text}: {kind} has no {rest!r} in a cluster. It has: {offered}{', …' * family.more}"
    )


def of_pool(pool: dict[str, Any]) -> Slice | None:
    """Return the TPUs of a pool that berg made; None for one of other nodes."""
    try:
        found = parse_slice(pool["name"].removesuffix("-spot"))
    except BergError:
        return None
    is_it = pool.get("config", {}).get("machineType") == found.machine_type
    return found if is_it else None

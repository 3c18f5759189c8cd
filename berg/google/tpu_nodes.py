"""Which TPUs nodes of Google Kubernetes Engine have, and how many nodes form a slice.

GKE has generations that Compute Engine does not make, with a time limit all the same: that of the
nodes. https://docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus

Slices of tpu7x are placed by a workload policy, which a pool names; those of the others by the
pool's own placement.

Not covered: v3, and several slices for one job.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from berg import BergError
from berg.google.accelerators import Shape
from berg.google.tpus import CUBES, HOST_CHIPS, is_large_cube

CHIP = "google.com/tpu"  # what pods ask for
TAINT = CHIP
ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"
POOL = "cloud.google.com/gke-nodepool"
FLAT = ("2x4", "4x4", "4x8", "8x8", "8x16", "16x16")


@dataclass(frozen=True)
class Family:
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


def flat(accelerator: str, machine: str) -> Family:
    """Return a family whose chips lie in a plane; 8 of them are one node, or a slice of two."""
    alone = {
        "1": ("1x1", f"{machine}-1t"),
        "1x1": ("1x1", f"{machine}-1t"),
        "4": ("2x2", f"{machine}-4t"),
        "2x2": ("2x2", f"{machine}-4t"),
        "8": ("2x4", f"{machine}-8t"),
    }
    return Family(accelerator, f"{machine}-4t", alone, FLAT)


def cubic(accelerator: str, machine: str) -> Family:
    """Return a family whose chips form cubes."""
    alone = {"2x2x1": ("2x2x1", f"{machine}-4t")}
    return Family(accelerator, f"{machine}-4t", alone, CUBES, more=True)


FAMILIES = {
    "v4": cubic("tpu-v4-podslice", "ct4p-hightpu"),
    "v5e": flat("tpu-v5-lite-podslice", "ct5lp-hightpu"),
    "v5p": cubic("tpu-v5p-slice", "ct5p-hightpu"),
    "v6e": flat("tpu-v6e-slice", "ct6e-standard"),
    "tpu7x": replace(cubic("tpu7x", "tpu7x-standard"), has_policy=True, spot=False),
}
KINDS = {family.accelerator: name for name, family in FAMILIES.items()}


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


def parse(text: str) -> Slice:
    """Return the TPUs that a name means in a cluster; raise BergError for any other name."""
    kind, _, rest = text.lower().partition("-")
    family = FAMILIES.get(kind)
    if family is None:
        raise BergError(
            f"--tpu {text}: nodes of a cluster have {', '.join(FAMILIES)}. "
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
        found = parse(pool["name"].removesuffix("-spot"))
    except BergError:
        return None
    is_it = pool.get("config", {}).get("machineType") == found.machine_type
    return found if is_it else None

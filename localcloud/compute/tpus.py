"""TPUs: machine types, zones, topologies of slices, and what a machine with TPUs finds on itself.

A machine of the embedded cloud has no TPU. It shows the PCI devices, the attributes and the
variables by which JAX knows a TPU host, and lets JAX compute on as many devices of the CPU as it
has chips.

Not covered: TPUs of the Cloud TPU API (v2 to v5e), slices within slices, several slices of one job.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import prod

# stands for libtpu.so, which JAX looks for and, told to use the CPU, does not load
LIBRARY = "/etc/hostname"


@dataclass(frozen=True)
class Generation:
    name: str  # v6e
    family: str  # dimension tpu_family of its quota
    preemptible: str  # quota of Spot and flex-start
    device: str  # PCI device id
    zones: str  # as in catalog.ACCELERATORS
    cores: int  # that its name counts, for each chip
    image: str  # family of the image for it
    topologies: tuple[str, ...]  # of slices


CUBES = ("2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")
ALL = (
    Generation(
        *("v6e", "CT6E", "PREEMPTIBLE_TPU_V6E", "0x006f"),
        *("us-central1-a us-east5-ab europe-west4-a southamerica-west1-a", 1),
        *("ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", ("4x4", "4x8", "8x8", "8x16", "16x16")),
    ),
    Generation(
        *("v5p", "CT5P", "PREEMPTIBLE_TPU_V5P", "0x0062", "us-central1-a us-east5-a", 2),
        *("ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", (*CUBES, "16x16x16", "16x16x24")),
    ),
    Generation(
        *("tpu7x", "TPU7X", "PREEMPTIBLE_TPU_TPU7X", "0x0076", "us-central1-c", 2),
        *("ubuntu-accel-2404-amd64-tpu-tpu7x", CUBES),
    ),
)
GENERATIONS = {each.name: each for each in ALL}
# Machine type -> vCPUs, MB of memory, generation, chips.
MACHINE_TYPES = {
    "ct6e-standard-1t": (44, 176 << 10, "v6e", 1),
    "ct6e-standard-4t": (180, 720 << 10, "v6e", 4),
    "ct6e-standard-8t": (180, 1440 << 10, "v6e", 8),
    "ct5p-hightpu-4t": (208, 448 << 10, "v5p", 4),
    "tpu7x-standard-4t": (224, 960 << 10, "tpu7x", 4),
}
IN_SLICES = 4  # chips of a machine of a slice
FAMILY_QUOTA = "TPUS_PER_TPU_FAMILY:"
QUOTAS = {f"{FAMILY_QUOTA}{each.family}": 256 for each in ALL} | {
    each.preemptible: 1536 for each in ALL
}
SINGLE_THREADED = ("ct6e-standard-8t",)  # had with advancedMachineFeatures.threadsPerCore 1 alone


def generation_of(machine_type: str) -> Generation | None:
    row = MACHINE_TYPES.get(machine_type)
    return GENERATIONS[row[2]] if row else None


def chips_of(machine_type: str) -> int:
    return MACHINE_TYPES[machine_type][3]


def is_topology(machine_type: str, topology: str) -> bool:
    """Whether machines of a type come as slices of that topology."""
    generation = generation_of(machine_type)
    if generation is None or chips_of(machine_type) != IN_SLICES:
        return False
    return topology in generation.topologies


def chips_in(topology: str) -> int:
    return prod(int(side) for side in topology.split("x"))


def quota_needs(machine_type: str, model: str) -> dict[str, int]:
    """Chips, of the quota that a provisioning model draws on; without any for GPUs there are no
    TPUs either.
    """
    generation, chips = generation_of(machine_type), chips_of(machine_type)
    assert generation
    metric = f"{FAMILY_QUOTA}{generation.family}" if model == "STANDARD" else generation.preemptible
    return {metric: chips, "GPUS_ALL_REGIONS": 0}


def attributes(machine_type: str, topology: str, worker: int, names: list[str]) -> dict[str, str]:
    """What Google adds to the metadata of a slice's machine; `names` are those of all by the
    numbers of workers.
    """
    generation = generation_of(machine_type)
    assert generation
    kind = f"{generation.name}-{chips_in(topology) * generation.cores}"
    per_host = "2,2,1"
    sides = [int(side) for side in topology.split("x")]
    bounds = [sides[0] // 2, sides[1] // 2, sides[2] if len(sides) == 3 else 1]
    environment = {
        "TPU_ACCELERATOR_TYPE": kind,
        "TOPOLOGY": topology,
        "HOST_BOUNDS": ",".join(map(str, bounds)),
        "CHIPS_PER_HOST_BOUNDS": per_host,
        "TPU_WORKER_ID": str(worker),
    }
    return {
        "accelerator-type": kind,
        "tpu-env": "".join(f"{key}: '{value}'\n" for key, value in environment.items()),
        "worker-id": str(worker),
        "agent-worker-number": str(worker),
        "worker-network-endpoints": ",".join(names),
    }


def variables(machine_type: str, slice_id: str) -> dict[str, str]:
    """What lets JAX take the CPU for the TPUs of a machine; slices of one host do not share a
    coordinator's port.
    """
    return {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={chips_of(machine_type)}",
        "TPU_LIBRARY_PATH": LIBRARY,
        "JAX_COORDINATOR_PORT": str(20000 + zlib.crc32(slice_id.encode()) % 10000),
    }


def forced(worker: str, addresses: list[str]) -> dict[str, str]:
    """What says the same where a machine cannot show devices of its own. Empty variables spare JAX
    its retries.
    """
    return {
        **{
            "JAX_FORCE_TPU_INIT": "1",
            "TPU_WORKER_ID": worker,
            "TPU_WORKER_HOSTNAMES": ",".join(addresses),
        },
        **{
            "MEGASCALE_COORDINATOR_ADDRESS": "",
            "MEGASCALE_NUM_SLICES": "",
            "MEGASCALE_SLICE_ID": "",
        },
    }

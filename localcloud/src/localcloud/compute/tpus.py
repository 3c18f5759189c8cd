"""TPUs: machine types, zones, topologies of slices, and what a machine with TPUs finds on itself.

A machine of the embedded cloud has no TPU. It shows the PCI devices, the attributes and the
variables by which JAX knows a TPU host, and lets JAX compute on as many devices of the CPU as it
has chips.

v4 and v5e are for nodes of Kubernetes Engine alone: whether Compute Engine makes such machines
otherwise is nowhere documented, so that it is refused here.

Not covered: TPUs of the Cloud TPU API, slices within slices, several slices of one job.
"""

import zlib
from dataclasses import dataclass
from math import prod

# used as libtpu.so: JAX looks for the file, and does not load it when it uses the CPU
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
    accelerator: str  # what Kubernetes Engine calls it in labels
    on_demand: str = ""  # quota of its own; "": that of its family

    @property
    def quota(self) -> str:
        """The quota that machines on demand count against."""
        return self.on_demand or f"{FAMILY_QUOTA}{self.family}"


FAMILY_QUOTA = "TPUS_PER_TPU_FAMILY:"
CUBES = ("2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")
FLAT = ("2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
V5E_ZONES = "us-central1-a us-west1-c us-east1-c us-east5-ab europe-west4-b"
ALL = (
    Generation(
        name="v6e",
        family="CT6E",
        preemptible="PREEMPTIBLE_TPU_V6E",
        device="0x006f",
        zones="us-central1-a us-east5-ab europe-west4-a southamerica-west1-a",
        cores=1,
        image="ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
        topologies=FLAT,
        accelerator="tpu-v6e-slice",
    ),
    Generation(
        name="v5p",
        family="CT5P",
        preemptible="PREEMPTIBLE_TPU_V5P",
        device="0x0062",
        zones="us-central1-a us-east5-a",
        cores=2,
        image="ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
        topologies=(*CUBES, "16x16x16", "16x16x24"),
        accelerator="tpu-v5p-slice",
    ),
    Generation(
        name="tpu7x",
        family="TPU7X",
        preemptible="PREEMPTIBLE_TPU_TPU7X",
        device="0x0076",
        zones="us-central1-c",
        cores=2,
        image="ubuntu-accel-2404-amd64-tpu-tpu7x",
        topologies=CUBES,
        accelerator="tpu7x",
    ),
    Generation(
        name="v5e",
        family="CT5LP",
        preemptible="PREEMPTIBLE_TPU_LITE_PODSLICE_V5",
        device="0x0063",
        zones=V5E_ZONES,
        cores=1,
        image="ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
        topologies=FLAT,
        accelerator="tpu-v5-lite-podslice",
        on_demand="TPU_LITE_PODSLICE_V5",
    ),
    Generation(
        name="v4",
        family="CT4P",
        preemptible="PREEMPTIBLE_TPU_PODSLICE_V4",
        device="0x005e",
        zones="us-central2-b",
        cores=2,
        image="ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
        topologies=CUBES,
        accelerator="tpu-v4-podslice",
        on_demand="TPU_PODSLICE_V4",
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
    "ct5lp-hightpu-1t": (24, 48 << 10, "v5e", 1),
    "ct5lp-hightpu-4t": (112, 192 << 10, "v5e", 4),
    "ct5lp-hightpu-8t": (224, 384 << 10, "v5e", 8),
    "ct4p-hightpu-4t": (240, 407 << 10, "v4", 4),
}
NODES_ALONE = ("v4", "v5e")  # generations whose machines are nodes of Kubernetes alone
IN_SLICES = 4  # chips of a machine of a slice
QUOTAS = {each.quota: 256 for each in ALL} | {each.preemptible: 1536 for each in ALL}
# of which no zone has any, unless the setting `eight_chips` says so
SCARCE = ("ct6e-standard-8t",)
SINGLE_THREADED = ("ct6e-standard-8t",)  # had with advancedMachineFeatures.threadsPerCore 1 alone


def generation_of(machine_type: str) -> Generation | None:
    row = MACHINE_TYPES.get(machine_type)
    return GENERATIONS[row[2]] if row else None


def chips_of(machine_type: str) -> int:
    return MACHINE_TYPES[machine_type][3]


def is_topology(machine_type: str, topology: str) -> bool:
    """Whether machines of a type come as slices of that topology from Compute Engine."""
    generation = generation_of(machine_type)
    if generation is None or chips_of(machine_type) != IN_SLICES:
        return False
    return generation.name not in NODES_ALONE and topology in generation.topologies


def chips_in(topology: str) -> int:
    return prod(int(side) for side in topology.split("x"))


def quota_needs(machine_type: str, model: str) -> dict[str, int]:
    """Chips, of the quota that a provisioning model draws on; without any for GPUs there are no
    TPUs either.
    """
    generation, chips = generation_of(machine_type), chips_of(machine_type)
    assert generation
    metric = generation.quota if model == "STANDARD" else generation.preemptible
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

"""What Google offers, as tables: zones, machine types, accelerators, images, quotas (as of
2026-11).

Not covered: most regions, machine families that berg never asks for, prices, capacity. Accelerators
are in the zones that Google documents for them; disk and image sizes are round figures.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from localcloud.compute import tpus

REGIONS = {
    "us-central1": "abcf",
    "us-central2": "b",
    "us-west1": "abc",
    "us-east1": "bcd",
    "us-east4": "abc",
    "us-east5": "abc",
    "southamerica-west1": "abc",
    "europe-west1": "bcd",
    "europe-west4": "abc",
    "asia-east1": "abc",
}
# Zones for accelerators alone; their names end otherwise than those of others.
AI_ZONES = {"us-central1-ai1a": "us-central1"}
ZONES = {
    f"{region}-{letter}": region for region, letters in REGIONS.items() for letter in letters
} | AI_ZONES

# GPUs since the H100 share one metric, whose dimension is the kind of GPU; a region's `quotas` do
# not show it.
FAMILY = "GPUS_PER_GPU_FAMILY:"
# Accelerator type -> description, quota metric, most on one machine, zones that have it.
ACCELERATORS = {
    "nvidia-tesla-p4": ("NVIDIA Tesla P4", "NVIDIA_P4_GPUS", 4, "us-central1-ac europe-west4-bc"),
    "nvidia-tesla-t4": (
        "NVIDIA T4",
        "NVIDIA_T4_GPUS",
        4,
        "us-central1-abcf us-west1-ab us-east1-cd us-east4-b europe-west1-bcd europe-west4-abc asia-east1-ac",
    ),
    "nvidia-tesla-p100": (
        "NVIDIA Tesla P100",
        "NVIDIA_P100_GPUS",
        4,
        "us-central1-cf us-west1-ab us-east1-bc europe-west1-bd europe-west4-a asia-east1-ac",
    ),
    "nvidia-tesla-v100": (
        "NVIDIA V100",
        "NVIDIA_V100_GPUS",
        8,
        "us-central1-abcf us-west1-ab us-east1-c europe-west4-abc asia-east1-c",
    ),
    "nvidia-l4": (
        "NVIDIA L4",
        "NVIDIA_L4_GPUS",
        8,
        "us-central1-abc us-west1-abc us-east1-bcd us-east4-ac europe-west1-bc europe-west4-abc asia-east1-abc",
    ),
    "nvidia-tesla-a100": (
        "NVIDIA A100 40GB",
        "NVIDIA_A100_GPUS",
        16,
        "us-central1-abcf us-west1-b us-east1-b europe-west4-ab",
    ),
    "nvidia-a100-80gb": (
        "NVIDIA A100 80GB",
        "NVIDIA_A100_80GB_GPUS",
        8,
        "us-central1-ac us-east4-c europe-west4-a",
    ),
    "nvidia-h100-80gb": (
        "NVIDIA H100 80GB",
        f"{FAMILY}NVIDIA_H100",
        8,
        "us-central1-abc us-west1-ab us-east4-abc europe-west1-bc europe-west4-bc",
    ),
    "nvidia-h100-mega-80gb": (
        "NVIDIA H100 80GB MEGA",
        f"{FAMILY}NVIDIA_H100_MEGA",
        8,
        "us-central1-abc us-west1-ab",
    ),
    "nvidia-h200-141gb": (
        "NVIDIA H200 141GB",
        f"{FAMILY}NVIDIA_H200",
        8,
        "us-central1-b us-central1-ai1a us-west1-c europe-west1-b",
    ),
    "nvidia-b200": (
        "NVIDIA B200",
        f"{FAMILY}NVIDIA_B200",
        8,
        "us-central1-b us-central1-ai1a us-west1-a",
    ),
    "nvidia-gb200": ("NVIDIA GB200", f"{FAMILY}NVIDIA_GB200", 4, "us-central1-a"),
    "nvidia-rtx-pro-6000": (
        "NVIDIA RTX PRO 6000",
        f"{FAMILY}NVIDIA_RTX_PRO_6000",
        8,
        "us-central1-bf us-west1-ab",
    ),
}

# vCPUs that a machine with so many accelerators may have at most (N1 only; other families are
# fixed).
N1_CPU_LIMITS = {
    "nvidia-tesla-p4": {1: 24, 2: 48, 4: 96},
    "nvidia-tesla-t4": {1: 48, 2: 48, 4: 96},
    "nvidia-tesla-p100": {1: 16, 2: 32, 4: 96},
    "nvidia-tesla-v100": {1: 12, 2: 24, 4: 48, 8: 96},
}

# Family -> sizes in vCPUs, MB of memory per vCPU.
FAMILIES = {
    "n1-standard": ((1, 2, 4, 8, 16, 32, 64, 96), 3840),
    "n1-highmem": ((2, 4, 8, 16, 32, 64, 96), 6656),
    "n1-highcpu": ((2, 4, 8, 16, 32, 64, 96), 922),
    "n2-standard": ((2, 4, 8, 16, 32, 48, 64, 80, 96, 128), 4096),
    "n2-highmem": ((2, 4, 8, 16, 32, 48, 64, 80, 96, 128), 8192),
    "e2-standard": ((2, 4, 8, 16, 32), 4096),
    "e2-highmem": ((2, 4, 8, 16), 8192),
    "e2-highcpu": ((2, 4, 8, 16, 32), 1024),
    "c2-standard": ((4, 8, 16, 30, 60), 4096),
    "c4-standard": ((2, 4, 8, 16, 24, 32, 48, 96, 144, 192, 288), 3840),
    "n4-standard": ((2, 4, 8, 16, 32, 48, 64, 80), 4096),
}

# Machine type -> vCPUs, MB of memory, accelerator, how many of it.
BUILT_IN = {
    "g2-standard-4": (4, 16384, "nvidia-l4", 1),
    "g2-standard-8": (8, 32768, "nvidia-l4", 1),
    "g2-standard-12": (12, 49152, "nvidia-l4", 1),
    "g2-standard-16": (16, 65536, "nvidia-l4", 1),
    "g2-standard-24": (24, 98304, "nvidia-l4", 2),
    "g2-standard-32": (32, 131072, "nvidia-l4", 1),
    "g2-standard-48": (48, 196608, "nvidia-l4", 4),
    "g2-standard-96": (96, 393216, "nvidia-l4", 8),
    "a2-highgpu-1g": (12, 87040, "nvidia-tesla-a100", 1),
    "a2-highgpu-2g": (24, 174080, "nvidia-tesla-a100", 2),
    "a2-highgpu-4g": (48, 348160, "nvidia-tesla-a100", 4),
    "a2-highgpu-8g": (96, 696320, "nvidia-tesla-a100", 8),
    "a2-megagpu-16g": (96, 1392640, "nvidia-tesla-a100", 16),
    "a2-ultragpu-1g": (12, 174080, "nvidia-a100-80gb", 1),
    "a2-ultragpu-2g": (24, 348160, "nvidia-a100-80gb", 2),
    "a2-ultragpu-4g": (48, 696320, "nvidia-a100-80gb", 4),
    "a2-ultragpu-8g": (96, 1392640, "nvidia-a100-80gb", 8),
    "a3-highgpu-1g": (26, 239616, "nvidia-h100-80gb", 1),
    "a3-highgpu-2g": (52, 479232, "nvidia-h100-80gb", 2),
    "a3-highgpu-4g": (104, 958464, "nvidia-h100-80gb", 4),
    "a3-highgpu-8g": (208, 1916928, "nvidia-h100-80gb", 8),
    "a3-megagpu-8g": (208, 1916928, "nvidia-h100-mega-80gb", 8),
    "a3-ultragpu-8g": (224, 3022848, "nvidia-h200-141gb", 8),
    "a4-highgpu-8g": (224, 4063232, "nvidia-b200", 8),
    "a4x-highgpu-4g": (140, 905216, "nvidia-gb200", 4),
    "g4-standard-6": (6, 22528, "nvidia-rtx-pro-6000", 1),  # 1/8, 1/4 and 1/2 of one
    "g4-standard-12": (12, 46080, "nvidia-rtx-pro-6000", 1),
    "g4-standard-24": (24, 92160, "nvidia-rtx-pro-6000", 1),
    "g4-standard-48": (48, 184320, "nvidia-rtx-pro-6000", 1),
    "g4-standard-96": (96, 368640, "nvidia-rtx-pro-6000", 2),
    "g4-standard-192": (192, 737280, "nvidia-rtx-pro-6000", 4),
    "g4-standard-384": (384, 1474560, "nvidia-rtx-pro-6000", 8),
}
# Parts of one GPU are in one zone alone.
FRACTIONS = {f"g4-standard-{cpus}": "us-central1-b" for cpus in (6, 12, 24)}
# Machine types by how their names begin -> the provisioning models that they can be had with;
# others with all.
MODELS = {
    "a3-highgpu-1g": ("SPOT", "FLEX_START"),
    "a3-highgpu-2g": ("SPOT", "FLEX_START"),
    "a3-highgpu-4g": ("SPOT", "FLEX_START"),
    "a3-ultragpu": ("SPOT", "FLEX_START", "RESERVATION_BOUND"),
    "a4-": ("SPOT", "FLEX_START", "RESERVATION_BOUND"),
    "a4x": ("RESERVATION_BOUND",),
    "tpu7x": ("STANDARD", "RESERVATION_BOUND"),  # the others for projects that Google lets in
}
# The kinds of boot disk that families take, by how machine types begin; the first that fits. Others
# take all.
PD, FAST_PD, HYPERDISK = (
    ("pd-standard", "pd-balanced", "pd-ssd"),
    ("pd-balanced", "pd-ssd"),
    ("hyperdisk-balanced",),
)
BOOT_DISKS = {
    **{
        "a3-ultragpu": HYPERDISK,
        "a4": HYPERDISK,
        "g4": HYPERDISK,
        "a3": (*FAST_PD, *HYPERDISK),
        "g2": FAST_PD,
    },
    **{
        "ct6e": HYPERDISK,
        "tpu7x": HYPERDISK,
        "ct4p": ("pd-balanced",),
        "ct5lp": ("pd-balanced",),
        "ct5p": ("pd-balanced",),
        "c4": HYPERDISK,
        "n4": HYPERDISK,
    },
    **dict.fromkeys(("n1", "n2", "e2", "c2", "a2", "f1", "g1", "custom"), PD),
}
# How many Local SSDs one may ask for, and how many come with a machine unasked; all others have
# none. https://cloud.google.com/compute/docs/disks/local-ssd
SSD_GB = 375
LOCAL_SSDS: dict[str, tuple[int, ...]] = {
    **{"n1": (*range(9), 16, 24), "n2": (0, 1, 2, 4, 8, 16, 24), "c2": (0, 1, 2, 4, 8)},
    **{"a2-highgpu-1g": (0, 1, 2, 4, 8), "a2-highgpu-2g": (0, 2, 4, 8), "a2-highgpu-4g": (0, 4, 8)},
    **{"a2-highgpu-8g": (0, 8), "a2-megagpu": (0, 8)},
    **{"g2-standard-24": (0, 2), "g2-standard-48": (0, 4), "g2-standard-96": (0, 8), "g2": (0, 1)},
    **{"g4-standard-12": (0, 1), "g4-standard-24": (0, 2), "g4-standard-48": (0, 4)},
    **{"g4-standard-96": (0, 8), "g4-standard-192": (0, 16), "g4-standard-384": (0, 32)},
}
LOCAL_SSDS_INCLUDED = {
    **{"a2-ultragpu-1g": 1, "a2-ultragpu-2g": 2, "a2-ultragpu-4g": 4, "a2-ultragpu-8g": 8},
    **{
        "a3-highgpu-1g": 2,
        "a3-highgpu-2g": 4,
        "a3-highgpu-4g": 8,
        "a3-highgpu-8g": 16,
        "a3-megagpu": 16,
    },
    **{"a3-ultragpu": 32, "a4-": 32, "a4x": 4},
}
GVNIC_ONLY = (
    "a3",
    "a4",
    "g4",
    "ct4p",
    "ct5lp",
    "ct5p",
    "ct6e",
    "tpu7x",
    "c4",
    "n4",
)  # families without VirtIO
SHARED_CORE = {
    "f1-micro": (1, 614),
    "g1-small": (1, 1740),
    "e2-micro": (2, 1024),
    "e2-small": (2, 2048),
    "e2-medium": (2, 4096),
}
CPU_PLATFORMS = {
    "n1": "Intel Haswell",
    "f1": "Intel Haswell",
    "g1": "Intel Haswell",
    "e2": "Intel Broadwell",
    "n2": "Intel Cascade Lake",
    "c2": "Intel Cascade Lake",
    "c4": "Intel Emerald Rapids",
    "n4": "Intel Emerald Rapids",
    "g2": "Intel Cascade Lake",
    "a2": "Intel Cascade Lake",
    "a3": "Intel Sapphire Rapids",
    "a4": "Intel Emerald Rapids",
    "a4x": "NVIDIA Grace",
    "g4": "AMD Turin",
    "ct4p": "AMD Rome",
    "ct5lp": "AMD Milan",
    "ct5p": "AMD Milan",
    "ct6e": "AMD Genoa",
    "tpu7x": "AMD Turin",
}


@dataclass(frozen=True)
class MachineType:
    name: str
    cpus: int
    memory_mb: int
    accelerator: str | None = None
    accelerator_count: int = 0

    @property
    def family(self) -> str:
        return self.name.partition("-")[0]

    @property
    def is_tpu(self) -> bool:
        return self.name in tpus.MACHINE_TYPES

    @property
    def shared_core(self) -> bool:
        return self.name in SHARED_CORE


@dataclass(frozen=True)
class Image:
    name: str
    family: str
    description: str
    disk_gb: int
    created: str
    deprecated: bool = False  # had by its name alone


DEEP_LEARNING = "deeplearning-platform-release"
IMAGES = {
    DEEP_LEARNING: [
        Image(
            f"{family}-v{build}",
            family,
            f"{title}, CUDA 12.9, {ubuntu}, NVIDIA driver 580",
            50,
            f"{build[:4]}-{build[4:6]}-{build[6:]}T08:00:00.000-07:00",
        )
        for build in ("20250915", "20251010")
        for ubuntu in ("2204", "2404")
        for family, title in (
            (f"common-cu129-ubuntu-{ubuntu}-nvidia-580", "Common"),
            (f"pytorch-2-9-cu129-ubuntu-{ubuntu}-nvidia-580", "PyTorch 2.9"),
        )
    ]
    + [  # without a driver until its first boot
        Image(
            "common-cu124-v20250325-debian-11-py310",
            "common-cu124-debian-11-py310",
            "Common, CUDA 12.4, Debian 11, Python 3.10",
            50,
            "2025-03-25T08:00:00.000-07:00",
            deprecated=True,
        )
    ],
    "debian-cloud": [
        Image(
            "debian-12-bookworm-v20250910",
            "debian-12",
            "Debian 12",
            10,
            "2025-09-10T12:00:00.000-07:00",
        ),
        Image(
            "debian-12-bookworm-v20251014",
            "debian-12",
            "Debian 12",
            10,
            "2025-10-14T12:00:00.000-07:00",
        ),
    ],
    "cos-cloud": [  # of Kubernetes' nodes
        Image(
            "cos-stable-121-18867-199-88",
            "cos-stable",
            "COS",
            10,
            "2026-09-01T12:00:00.000-07:00",
        ),
    ],
    "ubuntu-os-accelerator-images": [
        Image(
            f"{family}-v20260801",
            family,
            "Ubuntu for TPUs",
            10,
            "2026-08-01T12:00:00.000-07:00",
        )
        for family in sorted({each.image for each in tpus.ALL})
    ],
}
# A few that samples and other tools name.
IMAGES |= {
    project: [
        Image(
            name,
            family,
            title,
            size,
            f"{name[-8:-4]}-{name[-4:-2]}-{name[-2:]}T12:00:00.000-07:00",
        )
        for family, title, size, name in rows
    ]
    for project, rows in {
        "rocky-linux-cloud": [("rocky-linux-8", "Rocky Linux 8", 20, "rocky-linux-8-v20251014")],
        "ubuntu-os-cloud": [
            ("ubuntu-2204-lts", "Ubuntu 22.04 LTS", 10, "ubuntu-2204-jammy-v20230714"),
            ("ubuntu-2204-lts", "Ubuntu 22.04 LTS", 10, "ubuntu-2204-jammy-v20251015"),
            ("ubuntu-2404-lts-amd64", "Ubuntu 24.04 LTS", 10, "ubuntu-2404-noble-amd64-v20251014"),
        ],
    }.items()
}
DISK_TYPES = {"pd-standard": 500, "pd-balanced": 100, "pd-ssd": 100, "hyperdisk-balanced": 100}

# Limits a project has in each region, unless /_berg/quotas changes them.
REGION_QUOTAS = {
    "CPUS": 500,
    "PREEMPTIBLE_CPUS": 0,  # none of its own: Spot machines then count as CPUS, as on Google
    "N2_CPUS": 500,
    "C2_CPUS": 100,
    "A2_CPUS": 200,
    "DISKS_TOTAL_GB": 40960,
    "SSD_TOTAL_GB": 20480,
    "HDB_TOTAL_GB": 20480,
    "LOCAL_SSD_TOTAL_GB": 100_000,
    "PREEMPTIBLE_LOCAL_SSD_GB": 100_000,
    "INSTANCES": 2000,
    "IN_USE_ADDRESSES": 2000,
    **{accelerator[1]: 16 for accelerator in ACCELERATORS.values()},
    **{f"PREEMPTIBLE_{accelerator[1]}": 16 for accelerator in ACCELERATORS.values()},
    **tpus.QUOTAS,
}
PROJECT_QUOTAS = {
    "GPUS_ALL_REGIONS": 64,
    "CPUS_ALL_REGIONS": 2000,
    "NETWORKS": 5,
    "FIREWALLS": 100,
}


def cpu_limits(zone: str, accelerator: str) -> dict[int, int] | None:
    """The most vCPUs of an N1 machine by its number of accelerators, which may depend on the zone."""
    limits = N1_CPU_LIMITS.get(accelerator)
    if accelerator == "nvidia-tesla-p100" and zone in (
        "us-east1-c",
        "europe-west1-b",
        "europe-west1-d",
    ):
        return {**N1_CPU_LIMITS[accelerator], 4: 64}
    return limits


@cache
def zones_of(text: str) -> frozenset[str]:
    """The zones of a text such as `us-west1-ab us-east1-c`."""
    found: set[str] = set()
    for word in text.split():
        region, _, letters = word.rpartition("-")
        found |= {word} if word in AI_ZONES else {f"{region}-{letter}" for letter in letters}
    return frozenset(found)


def accelerator_zones(name: str) -> frozenset[str]:
    return zones_of(ACCELERATORS[name][3])


def accelerators_in(zone: str) -> list[str]:
    return [name for name in ACCELERATORS if zone in accelerator_zones(name)]


def machine_types_in(zone: str) -> list[MachineType]:
    """Every machine type of a zone. Not covered: custom ones."""
    if zone in AI_ZONES:
        return [
            MachineType(name, *row)
            for name, row in BUILT_IN.items()
            if zone in accelerator_zones(row[2])
        ]
    types = [MachineType(name, cpus, memory) for name, (cpus, memory) in SHARED_CORE.items()]
    for family, (sizes, memory) in FAMILIES.items():
        types += [MachineType(f"{family}-{cpus}", cpus, cpus * memory) for cpus in sizes]
    types += [
        MachineType(name, *row)
        for name, row in BUILT_IN.items()
        if zone in accelerator_zones(row[2]) and FRACTIONS.get(name, zone) == zone
    ]
    return types + [
        MachineType(name, cpus, memory)
        for name, (cpus, memory, generation, _) in tpus.MACHINE_TYPES.items()
        if zone in zones_of(tpus.GENERATIONS[generation].zones)
    ]


def machine_type(zone: str, name: str) -> MachineType | None:
    """A machine type of a zone."""
    return next((each for each in machine_types_in(zone) if each.name == name), None)


def of_family(table: dict, name: str, default: Any) -> Any:
    """What a table says of a machine type: the first row whose key the type's name begins with."""
    return next((value for begin, value in table.items() if name.startswith(begin)), default)

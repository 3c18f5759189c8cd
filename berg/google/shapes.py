"""Which machine type has which GPUs or TPUs, so that impossible machines are refused before any
request.

Sources (2026-11): https://cloud.google.com/compute/docs/gpus,
https://docs.cloud.google.com/tpu/docs,
https://docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus

Not covered: TPUs v2 and v3; several slices for one job.
"""

import re
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from berg import BergError

# The default. A new project may have one GPU in all (GPUS_ALL_REGIONS). L4 is the one in the most
# zones; it has bfloat16, which T4 lacks, and half as much memory again.
DEFAULT = "l4"
N1 = ("n1-", "custom-")
N1_SIZES = (1, 2, 4, 8, 16, 32, 64, 96)
# GPUs that are attached to N1 machines: accelerator type, then the most vCPUs for each number of
# GPUs.
ATTACHED = {
    "p4": ("nvidia-tesla-p4", {1: 24, 2: 48, 4: 96}),
    "p100": ("nvidia-tesla-p100", {1: 16, 2: 32, 4: 64}),
    "t4": ("nvidia-tesla-t4", {1: 48, 2: 48, 4: 96}),
    "v100": ("nvidia-tesla-v100", {1: 12, 2: 24, 4: 48, 8: 96}),
}
# GPUs that are part of a machine type: number of GPUs, then the machine types by vCPUs, the usual
# one first.
BUILT_IN = {
    "a100": {
        1: {12: "a2-highgpu-1g"},
        2: {24: "a2-highgpu-2g"},
        4: {48: "a2-highgpu-4g"},
        8: {96: "a2-highgpu-8g"},
        16: {96: "a2-megagpu-16g"},
    },
    "a100-80gb": {
        1: {12: "a2-ultragpu-1g"},
        2: {24: "a2-ultragpu-2g"},
        4: {48: "a2-ultragpu-4g"},
        8: {96: "a2-ultragpu-8g"},
    },
    "h100": {
        1: {26: "a3-highgpu-1g"},
        2: {52: "a3-highgpu-2g"},
        4: {104: "a3-highgpu-4g"},
        8: {208: "a3-highgpu-8g"},
    },
    "h100-mega": {8: {208: "a3-megagpu-8g"}},
    "h200": {8: {224: "a3-ultragpu-8g"}},
    "b200": {8: {224: "a4-highgpu-8g"}},
    "gb200": {4: {140: "a4x-highgpu-4g"}},
    "l4": {
        1: {cpus: f"g2-standard-{cpus}" for cpus in (12, 4, 8, 16, 32)},
        2: {24: "g2-standard-24"},
        4: {48: "g2-standard-48"},
        8: {96: "g2-standard-96"},
    },
    "rtx-pro-6000": {
        1: {cpus: f"g4-standard-{cpus}" for cpus in (48, 6, 12, 24)},
        2: {96: "g4-standard-96"},
        4: {192: "g4-standard-192"},
        8: {384: "g4-standard-384"},
    },
}
ALIASES = {accelerator: name for name, (accelerator, _) in ATTACHED.items()} | {
    "nvidia-tesla-a100": "a100",
    "a100-40gb": "a100",
    "nvidia-a100-80gb": "a100-80gb",
    "h100-80gb": "h100",
    "nvidia-h100-80gb": "h100",
    "nvidia-h100-mega-80gb": "h100-mega",
    "nvidia-h200-141gb": "h200",
    "nvidia-b200": "b200",
    "nvidia-gb200": "gb200",
    "nvidia-l4": "l4",
    "nvidia-rtx-pro-6000": "rtx-pro-6000",
}
# Machine types with built-in GPUs -> the GPUs' type and number, and the vCPUs.
BY_TYPE = {
    machine_type: (name, num_gpus, cpus)
    for name, sizes in BUILT_IN.items()
    for num_gpus, by_cpus in sizes.items()
    for cpus, machine_type in by_cpus.items()
}
# What users can ask for; gb200 comes from reservations only.
TYPES = tuple(name for name in (*ATTACHED, *BUILT_IN) if name != "gb200")
FRACTIONS = {"g4-standard-6": "1/8", "g4-standard-12": "1/4", "g4-standard-24": "1/2"}  # of one GPU
# Beginnings of machine types that take no persistent disk, and of those that have no other kind of
# network interface. https://docs.cloud.google.com/compute/docs/machine-resource
HYPERDISK_FAMILIES = ("a3-ultragpu", "a4", "g4", "ct6e", "tpu7x", "c4", "n4", "h4d", "m4", "x4")
GVNIC_FAMILIES = ("a3", "a4", "g4", "ct5p", "ct6e", "tpu7x")
TPU_FAMILIES = ("ct5p", "ct6e", "tpu7x")
SSD_GB = 375  # GiB of a local SSD
# Local SSDs by how machine types begin: how many come with the machine, and how many others take.
# https://cloud.google.com/compute/docs/disks/local-ssd
WITH_SSDS = {"a2-ultragpu-1g": 1, "a2-ultragpu-2g": 2, "a2-ultragpu-4g": 4, "a2-ultragpu-8g": 8}
WITH_SSDS |= {"a3-highgpu-1g": 2, "a3-highgpu-2g": 4, "a3-highgpu-4g": 8, "a3-highgpu-8g": 16}
WITH_SSDS |= {"a3-megagpu": 16, "a3-ultragpu": 32, "a4-": 32}
TAKE_SSDS: dict[str, tuple[int, ...]] = {
    "a2-highgpu-1g": (1, 2, 4, 8),
    "a2-highgpu-2g": (2, 4, 8),
    "a2-highgpu-4g": (4, 8),
    "a2-highgpu-8g": (8,),
    "a2-megagpu": (8,),
    "g2-standard-24": (2,),
    "g2-standard-48": (4,),
    "g2-standard-96": (8,),
    "g2-": (1,),
    "g4-standard-12": (1,),
    "g4-standard-24": (2,),
    "g4-standard-48": (4,),
    "g4-standard-96": (8,),
    "g4-standard-192": (16,),
    "g4-standard-384": (32,),
    "n1-": (*range(1, 9), 16, 24),
    "custom-": (*range(1, 9), 16, 24),
}
SSD_QUOTAS = {False: "LOCAL_SSD_TOTAL_GB", True: "PREEMPTIBLE_LOCAL_SSD_GB"}  # by Spot
# How machines are offered. https://cloud.google.com/compute/docs/instances/about-flex-start-vms
NOT_RESERVED = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")
NOT_ON_DEMAND = (*NOT_RESERVED, "a3-ultragpu", "a4-")
# https://developer.nvidia.com/cuda-gpus
CAPABILITY = {"p4": 6.1, "p100": 6.0, "v100": 7.0, "t4": 7.5, "a100": 8.0, "a100-80gb": 8.0}
CAPABILITY |= {"l4": 8.9, "h100": 9.0, "h100-mega": 9.0, "h200": 9.0, "b200": 10.0}
CAPABILITY |= {"gb200": 10.0, "rtx-pro-6000": 12.0}
# GB of each GPU.
GPU_MEMORY = {"p4": 8, "t4": 16, "p100": 16, "v100": 16, "l4": 24, "a100": 40, "a100-80gb": 80}
GPU_MEMORY |= {"h100": 80, "h100-mega": 80, "h200": 141, "b200": 180, "gb200": 186}
GPU_MEMORY |= {"rtx-pro-6000": 96}
# CUDA in the name of an image with torch -> the compute capabilities that this torch is made for.
# https://github.com/pytorch/pytorch/blob/v2.9.0/.ci/manywheel/build_cuda.sh
TORCH = {"cu126": (5.0, 9.0), "cu128": (7.0, 12.0), "cu129": (7.0, 12.0), "cu130": (7.5, 12.0)}
# Images whose driver has open kernel modules, as these series have: it works with GPUs of
# OPEN_DRIVEN and up.
# https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html
OPEN_MODULES = re.compile(r".*nvidia-(5[5-9]|[6-9]\d)\d\b.*")
OPEN_DRIVEN = 7.5
# Google's image for older GPUs, with an older driver (driver_metadata). By its name: a family whose
# images are all deprecated is not found.
OLD_IMAGE = "common-cu124-v20250325-debian-11-py310"
# Newer ones have quotas that no region shows.
GPU_QUOTAS = ("p4", "p100", "v100", "t4", "l4", "a100", "a100-80gb")


@dataclass(frozen=True)
class Shape:
    """A machine to ask for. `accelerator` is what is attached to an N1."""

    machine_type: str
    num_gpus: int
    gpu_type: str
    accelerator: str = ""
    node_gpus: int = 0  # of the node of a cluster that a pod shares
    node_disk: tuple[str, int] = ("", 0)  # its disk's type and GB
    asked_ssds: int = 0  # local SSDs that do not come with the machine type

    @property
    def disk_type(self) -> str:
        is_new = self.machine_type.startswith(HYPERDISK_FAMILIES)
        return "hyperdisk-balanced" if is_new else "pd-balanced"

    @property
    def local_ssds(self) -> int:
        return self.asked_ssds or of_family(WITH_SSDS, self.machine_type, 0)

    @property
    def stop_action(self) -> dict[str, Any]:
        """What the scheduling of a machine needs if its time limit stops it, for local disks."""
        if not (self.local_ssds or has_local_disks(self.machine_type)):
            return {}
        return {"onInstanceStopAction": {"discardLocalSsd": True}}

    @property
    def scratch(self) -> str:
        """The size of its local SSDs, as in 12 TB; "" without any."""
        gigabytes = self.local_ssds * SSD_GB
        size = f"{gigabytes / 1000:g} TB" if gigabytes >= 1000 else f"{gigabytes} GB"
        return size if gigabytes else ""

    @property
    def nic_type(self) -> str:
        """The kind of network interface that must be asked for; "": Google's choice."""
        return "GVNIC" if self.machine_type.startswith(GVNIC_FAMILIES) else ""

    @property
    def num_cpus(self) -> int:
        """vCPUs; 0 if the machine type does not say."""
        if self.machine_type in BY_TYPE:
            return BY_TYPE[self.machine_type][2]
        named = re.search(r"custom-(\d+)|-(\d+)$", self.machine_type)
        return int(named[1] or named[2]) if named else 0

    def guests(self, zone: str) -> dict[str, Any]:
        """Return the key of a request for what is attached, if any; `zone` is zones/NAME."""
        if not self.accelerator:
            return {}
        kind = f"{zone}/acceleratorTypes/{self.accelerator}"
        attached = {"acceleratorType": kind, "acceleratorCount": self.num_gpus}
        return {"guestAccelerators": [attached]}

    def ssd_disks(self, zone: str) -> list[dict[str, Any]]:
        """Return the disks of a request for local SSDs that must be asked for; `zone` is
        zones/NAME.
        """
        disk = {
            "type": "SCRATCH",
            "autoDelete": True,
            "interface": "NVME",
            "initializeParams": {"diskType": f"{zone}/diskTypes/local-ssd"},
        }
        return [disk] * self.asked_ssds

    def __str__(self) -> str:
        if not self.num_gpus:
            return self.machine_type
        count = FRACTIONS.get(self.machine_type, f"{self.num_gpus} x")
        return f"{self.machine_type} with {count} {self.gpu_type}"


def choose(
    num_gpus: int | None, gpu_type: str | None, num_cpus: int | None, machine_type: str | None
) -> Shape:
    """Return the machine for these options (None: not given); raise BergError if there is none.

    The default is one L4; N1 machines have 8 vCPUs per GPU.
    """
    if machine_type and num_cpus:
        raise BergError("--machine-type fixes the number of CPUs: leave out --num-cpus")
    if machine_type in BY_TYPE:
        return choose_built_in(machine_type, num_gpus, gpu_type)
    name = name_of(gpu_type, machine_type)
    if num_gpus is None:
        num_gpus = 0 if machine_type and not gpu_type else min(numbers(name))
    if num_gpus < 0:
        raise BergError(f"--num-gpus {num_gpus} makes no sense: give 0 for a machine without GPUs")
    if num_gpus == 0:
        return Shape(n1_type(num_cpus, machine_type, 8, 96, ""), 0, "")
    if name in ATTACHED:
        return choose_n1(num_gpus, name, num_cpus, machine_type)
    if machine_type:
        raise cannot_be_had(name, f"be attached to {machine_type}")
    return choose_with_built_in(num_gpus, name, num_cpus)


def choose_built_in(machine_type: str, num_gpus: int | None, gpu_type: str | None) -> Shape:
    """Return a machine with built-in GPUs; raise BergError if others were asked for."""
    name, count, _ = BY_TYPE[machine_type]
    asked = (gpu_type or name).lower()
    if ALIASES.get(asked, asked) != name or num_gpus not in (None, count):
        raise BergError(f"{machine_type} has {count} x {name}: leave out --num-gpus and --gpu-type")
    return Shape(machine_type, count, name)


def name_of(gpu_type: str | None, machine_type: str | None) -> str:
    """Return berg's name of a GPU type, or that of the default; raise BergError for no type."""
    usual = "t4" if machine_type and machine_type.startswith(N1) else DEFAULT
    wanted = (gpu_type or usual).lower()
    name = ALIASES.get(wanted, wanted)
    if name not in CAPABILITY:
        raise unknown(gpu_type or "")
    return name


def unknown(gpu_type: str) -> BergError:
    """Return the error for a type of GPUs that does not exist, or no longer."""
    known = f"Berg knows: {', '.join(TYPES)}"
    if gpu_type.lower() in ("k80", "nvidia-tesla-k80"):
        return BergError(f"Google retired the K80 in 2024; take a t4, which is faster. {known}")
    if ":" in gpu_type:
        return BergError(f"-t {gpu_type}: give one type with -t, and one number with -g. {known}")
    return BergError(f"unknown GPU type {gpu_type!r}. {known}")


def numbers(name: str) -> list[int]:
    """Return how many GPUs of a type a machine may have."""
    return [*ATTACHED[name][1]] if name in ATTACHED else [*BUILT_IN[name]]


def shapes(gpu_type: str | None) -> list[Shape]:
    """Return the smallest machine with each GPU type, or the usual one for each number of one."""
    if gpu_type is None:
        return [choose(None, name, None, None) for name in TYPES]
    name = name_of(gpu_type, None)
    return [choose(number, name, None, None) for number in numbers(name)]


def cannot_be_had(name: str, how: str) -> BergError:
    sizes = ", ".join(map(str, BUILT_IN[name]))
    return BergError(f"{name} GPUs cannot {how}: Google offers {sizes} in one machine")


def choose_with_built_in(num_gpus: int, name: str, num_cpus: int | None) -> Shape:
    """Return the machine type that has so many GPUs of a type built in."""
    if num_gpus not in BUILT_IN[name]:
        raise cannot_be_had(name, f"be had in a number of {num_gpus}")
    by_cpus = BUILT_IN[name][num_gpus]
    if num_cpus and num_cpus not in by_cpus:
        offered = ", ".join(map(str, sorted(by_cpus)))
        raise BergError(
            f"{num_gpus} x {name} comes with {offered} vCPUs, not {num_cpus}: leave out --num-cpus"
        )
    return Shape(by_cpus[num_cpus or next(iter(by_cpus))], num_gpus, name)


def choose_n1(num_gpus: int, name: str, num_cpus: int | None, machine_type: str | None) -> Shape:
    """Return an N1 machine to which GPUs are attached."""
    accelerator, most_cpus = ATTACHED[name]
    if num_gpus not in most_cpus:
        offered = ", ".join(map(str, most_cpus))
        raise BergError(f"{num_gpus} x {name} in one machine is not offered: choose -g {offered}")
    if machine_type and not machine_type.startswith(N1):
        raise BergError(f"{name} GPUs can only be attached to N1 machines, not to {machine_type}")
    what = f"with {num_gpus} x {name} "
    kind = n1_type(num_cpus, machine_type, 8 * num_gpus, most_cpus[num_gpus], what)
    return Shape(kind, num_gpus, name, accelerator)


def n1_type(
    num_cpus: int | None, machine_type: str | None, usual: int, limit: int, what: str
) -> str:
    """Return the machine type given, or the N1 type with so many vCPUs, and 3.75 GB for each as in
    standard sizes. Raises BergError for a number of vCPUs that no N1 machine has.
    """
    cpus = usual if num_cpus is None else num_cpus
    if machine_type and (named := re.fullmatch(r"n1-.*-(\d+)", machine_type)):
        cpus = int(named[1])
    if not 1 <= cpus <= limit:
        raise BergError(f"an N1 machine {what}has 1 to {limit} vCPUs, not {cpus}: choose -c")
    if cpus not in N1_SIZES and cpus % 2:
        raise BergError(
            f"an N1 machine has 1 or an even number of vCPUs, not {cpus}: choose -c {cpus + 1}"
        )
    usual_type = f"n1-standard-{cpus}" if cpus in N1_SIZES else f"custom-{cpus}-{cpus * 3840}"
    return machine_type or usual_type


def of_family(table: dict[str, Any], machine_type: str, default: Any) -> Any:
    """Return what a table says of a machine type, by how its name begins."""
    found = (value for begin, value in table.items() if machine_type.startswith(begin))
    return next(found, default)


def with_ssds(shape: Shape, number: int) -> Shape:
    """Return a machine with so many local SSDs, 0 for those that come with it; raise BergError if
    it does not take them.
    """
    if number in (0, of_family(WITH_SSDS, shape.machine_type, 0)):
        return shape
    if comes := of_family(WITH_SSDS, shape.machine_type, 0):
        raise BergError(
            f"--local-ssd {number}: {shape.machine_type} comes with {comes} local SSDs, and takes "
            "no others: leave out --local-ssd"
        )
    takes = of_family(TAKE_SSDS, shape.machine_type, ())
    takes = [each for each in takes if shape.gpu_type != "t4" or each < 24]
    if not takes:
        raise BergError(
            f"--local-ssd {number}: {shape.machine_type} takes no local SSDs. Those that do are "
            "g2, g4, n1 and a2-highgpu"
        )
    if number not in takes:
        raise BergError(
            f"--local-ssd {number} is not possible: {shape.machine_type} takes "
            f"{' or '.join(map(str, takes))} of {SSD_GB} GB"
        )
    return replace(shape, asked_ssds=number)


def has_local_disks(machine_type: str) -> bool:
    """Return whether a machine comes with local disks, whose content is lost when it stops."""
    families = ("a2-ultragpu", "a3-", "a4-", "a4x-", "z3-")
    return machine_type.startswith(families) or machine_type.endswith("-lssd")


def check(shape: Shape, image: str, spot: bool) -> None:
    """Raise BergError for a machine that Google does not offer in this way, or that does not work
    with an image.
    """
    kind = shape.machine_type
    if kind.startswith("a4x"):
        raise BergError(
            f"{kind} comes from reservations only, and has Arm CPUs; berg uses neither. Choose -t "
            "b200 --spot"
        )
    if not spot and kind.startswith(NOT_ON_DEMAND):
        others = ", or take all 8 (-g 8)" if shape.gpu_type == "h100" else ""
        raise BergError(
            f"{kind} cannot be had on demand: Google offers it as a Spot machine, with flex-start "
            f"or from a reservation. Add --spot or --flex{others}"
        )
    if kind in FRACTIONS:
        raise BergError(
            f"{kind} has {FRACTIONS[kind]} of a GPU, which only NVIDIA's driver for virtual GPUs "
            "finds, and berg knows no image of Google's that has it. Take a whole GPU: leave out -c"
        )
    if shape.num_gpus:
        check_image(shape.gpu_type, image)


def check_flex(shape: Shape) -> None:
    """Raise BergError for a machine that Google does not offer by flex-start."""
    if shape.accelerator or not shape.num_gpus or shape.machine_type.startswith("a4x-"):
        raise BergError(
            "--flex is for TPUs and for GPUs that are a part of their machine type, such as l4, "
            f"a100 or h100, not for {shape}. Choose another -t, or --spot"
        )


def is_old(gpu_type: str) -> bool:
    """Return whether GPUs of a type need NVIDIA's proprietary kernel modules."""
    return CAPABILITY.get(gpu_type, OPEN_DRIVEN) < OPEN_DRIVEN


def check_image(gpu_type: str, image: str) -> None:
    """Raise BergError for an image whose driver or torch does not work with GPUs of a type."""
    has = f"{gpu_type} has {CAPABILITY[gpu_type]}"
    torch_for_it = "torch from https://download.pytorch.org/whl/cu126"
    other = f"{torch_for_it}, or choose another GPU: -t {DEFAULT}"
    if is_old(gpu_type) and OPEN_MODULES.fullmatch(image):
        raise BergError(
            f"the driver of image {image} finds GPUs of compute capability {OPEN_DRIVEN} and up, "
            f"and {has}. Give --image {OLD_IMAGE} and let requirements.txt install {other}"
        )
    torch = re.fullmatch(r"pytorch-\d+-\d+-(cu\d+)-(.*)", image)
    low, high = TORCH.get(torch[1], (0.0, 99.0)) if torch else (0.0, 99.0)
    if torch and not low <= CAPABILITY[gpu_type] <= high:
        raise BergError(
            f"the torch of image {image} runs on GPUs of compute capability {low} to {high}, and "
            f"{has}. Give --image common-{torch[1]}-{torch[2]} and let requirements.txt install "
            f"{other}"
        )


def driver_metadata(gpu_type: str) -> dict[str, str]:
    """Return the metadata with which OLD_IMAGE installs a driver at its first boot."""
    return {"install-nvidia-driver": "True"} if is_old(gpu_type) else {}


def driver_version(gpu_type: str) -> str:
    """Return which of GKE's drivers nodes need; the newest has open modules."""
    return "DEFAULT" if is_old(gpu_type) else "LATEST"


def quota_needs(
    shape: Shape,
    machines: int,
    disk_gb: int,
    spot: bool,
    addresses: bool = True,
    brief: bool = True,
) -> list[tuple[int, list[str]]]:
    """Return what machines count against: an amount, and the metrics of which one must have room.

    With `brief` Google deletes the machines within a week: their GPUs may draw on the quota of
    preemptible ones, too.
    """
    family = shape.machine_type.partition("-")[0]
    cpus, gpus = machines * shape.num_cpus, machines * shape.num_gpus
    needs = []
    if not family.startswith(("a3", "a4", "g4")):  # these need quota for their GPUs alone
        metrics = [f"{family.upper()}_CPUS" if family in ("n2", "c2", "c3", "a2") else "CPUS"]
        if spot and metrics == ["CPUS"]:
            metrics.append("PREEMPTIBLE_CPUS")
        needs.append((cpus, metrics))
    if shape.gpu_type in GPU_QUOTAS:
        metric = f"NVIDIA_{shape.gpu_type.upper().replace('-', '_')}_GPUS"
        metrics = [metric, f"PREEMPTIBLE_{metric}"]
        if spot:
            metrics = metrics[1:]
        elif not brief:
            metrics = metrics[:1]
        needs.append((gpus, metrics))
    disk = "HDB_TOTAL_GB" if shape.disk_type.startswith("hyperdisk") else "SSD_TOTAL_GB"
    needs += [
        (machines * disk_gb, [disk]),
        (machines * shape.asked_ssds * SSD_GB, [SSD_QUOTAS[spot]]),
        (machines * addresses, ["IN_USE_ADDRESSES"]),
        (machines, ["INSTANCES"]),
        (cpus, ["CPUS_ALL_REGIONS"]),
        # Without any quota for GPUs there are no TPUs either; no region shows theirs.
        (gpus or int(family in TPU_FAMILIES), ["GPUS_ALL_REGIONS"]),
    ]
    return [(amount, metrics) for amount, metrics in needs if amount]


# --- TPUs

TPU_IMAGES = "ubuntu-os-accelerator-images"  # the project of the images
TPU_IMAGE = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
HOST_CHIPS = 4  # of each machine of a slice
# What --tpu must have besides a name: https://github.com/kubernetes/autoscaler, its machine types.
TPU_EXTRAS = {"ct6e-standard-8t": {"advancedMachineFeatures": {"threadsPerCore": 1}}}
# What pods ask for, and the taint of nodes that have it; labels of these nodes.
CHIP = "google.com/tpu"
ACCELERATOR, TOPOLOGY = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
NODE_POOL = "cloud.google.com/gke-nodepool"
# Topology of one machine -> how its machine type ends; and the topologies of slices.
PLANE, PLANES = {"1x1": "1t", "2x2": "4t"}, ("2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBE = {"2x2x1": "4t"}
CUBES = ("2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")
# Small planes are usually called by their number of chips.
SMALL = {"1": "1x1", "4": "2x2", "8": "2x4"}


@dataclass(frozen=True)
class Generation:
    """What one generation of TPUs comes in."""

    machine: str  # how its machine types begin
    accelerator: str  # as labels of GKE's nodes have it
    alone: dict[str, str]
    slices: tuple[str, ...]
    image: str = ""  # "": only nodes of a cluster have it
    has_policy: bool = False  # a workload policy places slices of nodes, else the pool itself
    is_open: bool = True  # as Spot and by flex-start, to every project

    @property
    def topologies(self) -> tuple[str, ...]:
        return (*self.alone, *self.slices)

    @property
    def is_cubic(self) -> bool:
        """AxBxC of multiples of 4, A <= B <= C, may be slices, too: Google does not list all."""
        return "2x2x1" in self.alone

    def has_slice(self, topology: str) -> bool:
        return topology in self.slices or (self.is_cubic and is_large_cube(topology))


GENERATIONS = {
    "v4": Generation("ct4p-hightpu", "tpu-v4-podslice", CUBE, CUBES),
    "v5e": Generation("ct5lp-hightpu", "tpu-v5-lite-podslice", PLANE, PLANES),
    "v6e": Generation("ct6e-standard", "tpu-v6e-slice", PLANE, PLANES, TPU_IMAGE),
    "v5p": Generation(
        "ct5p-hightpu", "tpu-v5p-slice", CUBE, (*CUBES, "16x16x16", "16x16x24"), TPU_IMAGE
    ),
    "tpu7x": Generation(
        "tpu7x-standard",
        "tpu7x",
        CUBE,
        CUBES,
        "ubuntu-accel-2404-amd64-tpu-tpu7x",
        has_policy=True,
        is_open=False,
    ),
}
TPU_KINDS = {each.accelerator: name for name, each in GENERATIONS.items()}
IN_COMPUTE_ENGINE = [name for name, each in GENERATIONS.items() if each.image]
# Machine types of Compute Engine with TPUs -> generation and topology.
TPU_TYPES = {
    f"{GENERATIONS[name].machine}-{end}": (name, topology)
    for name in IN_COMPUTE_ENGINE
    for topology, end in GENERATIONS[name].alone.items()
}
# Eight chips of one machine. No zone had room for it in 2026-07, so that only its type means it.
TPU_TYPES["ct6e-standard-8t"] = ("v6e", "2x4")


@dataclass(frozen=True)
class Tpu:
    """TPUs to ask for: one machine or node, or a slice of several."""

    generation: str
    topology: str
    machine_type: str
    hosts: int

    @property
    def name(self) -> str:
        """What --tpu takes in a cluster; eight chips of one node have no topology of their own."""
        is_eight = self.hosts == 1 and self.topology == "2x4"
        return f"{self.generation}-{'8' if is_eight else self.topology}"

    @property
    def about(self) -> Generation:
        return GENERATIONS[self.generation]

    @property
    def chips(self) -> int:
        return chips_in(self.topology)

    @property
    def chips_each(self) -> int:
        return self.chips // self.hosts

    @property
    def shape(self) -> Shape:
        return Shape(self.machine_type, 0, "")

    @property
    def policy(self) -> str:
        """Return the name of the workload policy of a pool of such nodes; "" for none."""
        needs_it = self.about.has_policy and self.hosts > 1
        return f"berg-pools-{self.topology}" if needs_it else ""

    def pool(self, spot: bool) -> str:
        """Return the name of the pool of such nodes: each pool is one slice."""
        return f"{self.name}-spot" if spot else self.name

    @property
    def selector(self) -> dict[str, str]:
        """Return the labels by which pods find the nodes."""
        return {ACCELERATOR: self.about.accelerator, TOPOLOGY: self.topology}


def chips_in(topology: str) -> int:
    return prod(int(side) for side in topology.split("x"))


def parse_tpu(text: str, in_cluster: bool = False) -> Tpu:
    """Return the TPUs that --tpu means; raise BergError for any other name."""
    text = text.lower()
    if text in TPU_TYPES and not in_cluster:
        return Tpu(*TPU_TYPES[text], text, 1)
    name, _, rest = text.partition("-")
    check_generation(text, name, in_cluster)
    about = GENERATIONS[name]
    if not about.is_cubic:
        if rest == "8" and in_cluster:
            return Tpu(name, "2x4", f"{about.machine}-8t", 1)
        rest = SMALL.get(rest, rest)
    if rest in about.alone:
        return Tpu(name, rest, f"{about.machine}-{about.alone[rest]}", 1)
    if about.has_slice(rest):
        return Tpu(name, rest, f"{about.machine}-4t", chips_in(rest) // HOST_CHIPS)
    if rest.isdigit() and (meant := readings(name, int(rest))):
        raise BergError(f"--tpu {text} is not clear: {meant}. See: berg gpus --tpu")
    offered = ", ".join(about.topologies)
    if about.is_cubic:
        offered += ", …"
    raise BergError(f"--tpu {text}: {name} has no topology {rest!r}. It has: {offered}")


def check_generation(text: str, name: str, in_cluster: bool) -> None:
    """Raise BergError if there are no such TPUs in a cluster, or in Compute Engine."""
    if in_cluster and name not in GENERATIONS:
        raise BergError(
            f"--tpu {text}: nodes of a cluster have {', '.join(GENERATIONS)}. "
            "Give FAMILY-TOPOLOGY, as in v5e-4x4"
        )
    known = ", ".join(IN_COMPUTE_ENGINE)
    if not in_cluster and name in ("v2", "v3", "v4", "v5e", "v5litepod"):
        raise BergError(
            f"--tpu {text}: Compute Engine has no {name}, only {known}. "
            "v4 and v5e come as pods of a cluster: berg cluster create NAME --tpu v5e-4x4"
        )
    if name not in GENERATIONS:
        raise BergError(
            f"--tpu {text}: there is no such family, only {known}. Give FAMILY-TOPOLOGY; see: berg "
            "gpus --tpu"
        )


def is_large_cube(topology: str) -> bool:
    if not re.fullmatch(r"\d{1,3}(x\d{1,3}){2}", topology):
        return False
    sides = [int(side) for side in topology.split("x")]
    return sides == sorted(sides) and all(side and side % 4 == 0 for side in sides)


def readings(name: str, number: int) -> str:
    """Return what a name with a bare number may mean, as --tpu takes it; "" for nothing."""
    about = GENERATIONS[name]
    chips: dict[str, float] = {"it may count chips": number}
    if about.is_cubic:
        chips["it may count cores, two of each chip"] = number / 2
    found = []
    for what, count in chips.items():
        fitting = [
            f"--tpu {name}-{topology}"
            for topology in about.topologies
            if chips_in(topology) == count
        ]
        if fitting:
            found.append(f"{what} ({', '.join(fitting)})")
    return " or ".join(found)


def all_tpus() -> list[Tpu]:
    """Return what Compute Engine has; not all large cubes."""
    return [
        parse_tpu(f"{name}-{topology}")
        for name in IN_COMPUTE_ENGINE
        for topology in GENERATIONS[name].topologies
    ]


def tpu_of_pool(pool: dict[str, Any]) -> Tpu | None:
    """Return the TPUs of a pool that berg made; None for one of other nodes."""
    try:
        found = parse_tpu(pool["name"].removesuffix("-spot"), in_cluster=True)
    except BergError:
        return None
    is_it = pool.get("config", {}).get("machineType") == found.machine_type
    return found if is_it else None


def workload_policy(name: str, topology: str, description: str) -> dict[str, Any]:
    """Return the body of the policy that lets machines form a slice of a topology."""
    workload = {
        "type": "HIGH_THROUGHPUT",
        "acceleratorTopology": topology,
        "acceleratorTopologyMode": "AUTO_CONNECT",
    }
    return {"name": name, "description": description, "workloadPolicy": workload}

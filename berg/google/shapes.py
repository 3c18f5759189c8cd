"""Which machine type carries which GPUs, so that impossible machines are refused before any
request.

Source: https://cloud.google.com/compute/docs/gpus (2026-11).

Not covered: machines with several network interfaces, as GPUs of several machines use to talk to
each other past the CPUs.
"""

import re
from dataclasses import dataclass

from berg import BergError

# What one gets without a wish. A new project may have one GPU in all (GPUS_ALL_REGIONS), and L4 is
# the one in the most zones, with a bfloat16 that T4 lacks and memory for half as much again.
DEFAULT = "l4"
N1_SIZES = (1, 2, 4, 8, 16, 32, 64, 96)
# GPUs that are attached to N1 machines: accelerator type, then the most vCPUs for each number of
# GPUs.
ATTACHED = {
    "p4": ("nvidia-tesla-p4", {1: 24, 2: 48, 4: 96}),
    "p100": ("nvidia-tesla-p100", {1: 16, 2: 32, 4: 64}),
    "t4": ("nvidia-tesla-t4", {1: 48, 2: 48, 4: 96}),
    "v100": ("nvidia-tesla-v100", {1: 12, 2: 24, 4: 48, 8: 96}),
}
# Beginnings of the machine types that come with local disks.
WITH_LOCAL_DISKS = ("a2-ultragpu", "a3-", "a4-", "a4x-", "z3-")
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
        1: {
            12: "g2-standard-12",
            4: "g2-standard-4",
            8: "g2-standard-8",
            16: "g2-standard-16",
            32: "g2-standard-32",
        },
        2: {24: "g2-standard-24"},
        4: {48: "g2-standard-48"},
        8: {96: "g2-standard-96"},
    },
    "rtx-pro-6000": {
        1: {48: "g4-standard-48", 6: "g4-standard-6", 12: "g4-standard-12", 24: "g4-standard-24"},
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
# which comes from reservations only
TYPES = tuple(name for name in (*ATTACHED, *BUILT_IN) if name != "gb200")
FRACTIONS = {"g4-standard-6": "1/8", "g4-standard-12": "1/4", "g4-standard-24": "1/2"}  # of one GPU
# They take no persistent disk. Beyond GPUs:
# https://docs.cloud.google.com/compute/docs/machine-resource
RETIRED = ("k80", "nvidia-tesla-k80")
HYPERDISK_FAMILIES = ("a3-ultragpu", "a4", "g4", "ct6e", "tpu7x", "c4", "n4", "h4d", "m4", "x4")
# they have no other kind of network interface
GVNIC_FAMILIES = (
    "a3",
    "a4",
    "g4",
    "ct5p",
    "ct6e",
    "tpu7x",
)
TPU_FAMILIES = ("ct5p", "ct6e", "tpu7x")
# of which there are no reservations either
NOT_RESERVED = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")
# https://cloud.google.com/compute/docs/instances/about-flex-start-vms
NOT_FLEX = ("a4x-",)
NOT_ON_DEMAND = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g", "a3-ultragpu", "a4-")
# https://developer.nvidia.com/cuda-gpus
CAPABILITY = {
    **{
        "p4": 6.1,
        "p100": 6.0,
        "v100": 7.0,
        "t4": 7.5,
        "a100": 8.0,
        "a100-80gb": 8.0,
        "l4": 8.9,
        "h100": 9.0,
    },
    **{"h100-mega": 9.0, "h200": 9.0, "b200": 10.0, "gb200": 10.0, "rtx-pro-6000": 12.0},
}
# GB of each. https://cloud.google.com/compute/docs/gpus
GPU_MEMORY = {
    **{"p4": 8, "t4": 16, "p100": 16, "v100": 16, "l4": 24, "a100": 40, "a100-80gb": 80},
    **{"h100": 80, "h100-mega": 80, "h200": 141, "b200": 180, "gb200": 186, "rtx-pro-6000": 96},
}
# CUDA in the name of an image with torch -> the compute capabilities that this torch is made for.
# https://github.com/pytorch/pytorch/blob/v2.9.0/.ci/manywheel/build_cuda.sh
TORCH = {"cu126": (5.0, 9.0), "cu128": (7.0, 12.0), "cu129": (7.0, 12.0), "cu130": (7.5, 12.0)}
WITH_TORCH = re.compile(r"pytorch-\d+-\d+-(cu\d+)-(.*)")
OLD_TORCH = "https://download.pytorch.org/whl/cu126"
# Images that are named after a driver of these series have its open kernel modules, which drive
# GPUs of OPEN_DRIVEN and up alone.
# https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html
OPEN_MODULES = re.compile(r".*nvidia-(5[5-9]|[6-9]\d)\d\b.*")
OPEN_DRIVEN = 7.5
# An image of Google's for the others: at its first boot it installs a driver of before, if told to.
# By its name: a family whose images are all deprecated is not found.
OLD_IMAGE = "common-cu124-v20250325-debian-11-py310"
# families beside those in CPUS
CPU_QUOTAS = {
    "n2": "N2_CPUS",
    "c2": "C2_CPUS",
    "c3": "C3_CPUS",
    "a2": "A2_CPUS",
}
# newer ones have quotas that no region shows
GPU_QUOTAS = (
    "p4",
    "p100",
    "v100",
    "t4",
    "l4",
    "a100",
    "a100-80gb",
)


@dataclass(frozen=True)
class Shape:
    """A machine to ask for. `accelerator` is what is attached to an N1; built-in GPUs need no
    asking.
    """

    machine_type: str
    num_gpus: int
    gpu_type: str
    accelerator: str = ""
    node_gpus: int = 0  # of the node of a cluster that a pod shares
    node_disk: tuple[str, int] = ("", 0)  # its disk's type and GB

    @property
    def disk_type(self) -> str:
        return (
            "hyperdisk-balanced"
            if self.machine_type.startswith(HYPERDISK_FAMILIES)
            else "pd-balanced"
        )

    @property
    def nic_type(self) -> str:
        """The kind of network interface that must be asked for; "": Google's choice."""
        return "GVNIC" if self.machine_type.startswith(GVNIC_FAMILIES) else ""

    @property
    def num_cpus(self) -> int:
        """vCPUs; 0 if the name of the machine type does not tell."""
        sizes = [by_cpus for counts in BUILT_IN.values() for by_cpus in counts.values()]
        built_in = [
            cpus for by_cpus in sizes for cpus, name in by_cpus.items() if name == self.machine_type
        ]
        named = re.search(r"custom-(\d+)|-(\d+)$", self.machine_type)
        return built_in[0] if built_in else int(named[1] or named[2]) if named else 0

    def __str__(self) -> str:
        count = FRACTIONS.get(self.machine_type, f"{self.num_gpus} x")
        return (
            f"{self.machine_type} with {count} {self.gpu_type}"
            if self.num_gpus
            else self.machine_type
        )


N1 = ("n1-", "custom-")


def choose(
    num_gpus: int | None, gpu_type: str | None, num_cpus: int | None, machine_type: str | None
) -> Shape:
    """Return the machine for what was asked (None: not given); raise BergError where Google offers
    no such one.

    With no option given it is one L4, and N1 machines have 8 vCPUs per GPU.
    """
    if machine_type and num_cpus:
        raise BergError("--machine-type fixes the number of CPUs: leave out --num-cpus")
    if machine_type and (built_in := find_built_in(machine_type)):
        return check_built_in(machine_type, built_in, num_gpus, gpu_type)
    name = name_of(gpu_type, machine_type)
    if num_gpus is None:
        num_gpus = 0 if machine_type and not gpu_type else smallest_number(name)
    if num_gpus < 0:
        raise BergError(f"--num-gpus {num_gpus} makes no sense: give 0 for a machine without GPUs")
    if num_gpus == 0:
        return choose_cpus_only(num_cpus, machine_type)
    if name in ATTACHED:
        return choose_n1(num_gpus, name, num_cpus, machine_type)
    if machine_type:
        raise cannot_be_had(name, f"be attached to {machine_type}")
    return choose_with_built_in(num_gpus, name, num_cpus)


def name_of(gpu_type: str | None, machine_type: str | None) -> str:
    """Return berg's name of a GPU type, or that of the usual one; raise BergError for no type."""
    usual = DEFAULT
    if machine_type and machine_type.startswith(N1):
        usual = "t4"
    wanted = (gpu_type or usual).lower()
    name = ALIASES.get(wanted, wanted)
    if name not in CAPABILITY:
        raise unknown(gpu_type or "")
    return name


def unknown(gpu_type: str) -> BergError:
    """Return the error for a type of GPUs that there is not, or no more."""
    known = f"Berg knows: {', '.join(TYPES)}"
    if gpu_type.lower() in RETIRED:
        return BergError(f"Google retired the K80 in 2024; take a t4, which is quicker. {known}")
    return BergError(f"unknown GPU type {gpu_type!r}. {known}")


def shapes(gpu_type: str | None) -> list[Shape]:
    """Return the smallest machine with each GPU type, or the usual one for each number of one."""
    if gpu_type is None:
        return [choose(None, name, None, None) for name in TYPES]
    name = name_of(gpu_type, None)
    numbers = [*ATTACHED[name][1]] if name in ATTACHED else [*BUILT_IN[name]]
    return [choose(number, name, None, None) for number in numbers]


def smallest_number(name: str) -> int:
    """Return how many GPUs of a type a machine has at least."""
    if name in ATTACHED:
        return min(ATTACHED[name][1])
    return min(BUILT_IN[name])


def cannot_be_had(name: str, how: str) -> BergError:
    sizes = ", ".join(map(str, BUILT_IN[name]))
    return BergError(f"{name} GPUs cannot {how}: Google offers {sizes} in one machine")


def choose_with_built_in(num_gpus: int, name: str, num_cpus: int | None) -> Shape:
    """Return the machine type that has so many GPUs of a type built in."""
    if num_gpus not in BUILT_IN[name]:
        raise cannot_be_had(name, f"be had in a number of {num_gpus}")
    by_cpus = BUILT_IN[name][num_gpus]
    if not num_cpus:
        return Shape(next(iter(by_cpus.values())), num_gpus, name)
    if num_cpus not in by_cpus:
        offered = ", ".join(map(str, sorted(by_cpus)))
        raise BergError(
            f"{num_gpus} x {name} comes with {offered} vCPUs, not {num_cpus}: leave out --num-cpus"
        )
    return Shape(by_cpus[num_cpus], num_gpus, name)


def choose_cpus_only(num_cpus: int | None, machine_type: str | None) -> Shape:
    """Return a machine without GPUs."""
    cpus = n1_cpus(num_cpus, machine_type, 8)
    check_n1_cpus(cpus, 96, "")
    return Shape(machine_type or n1_type(cpus), 0, "", "")


def choose_n1(num_gpus: int, name: str, num_cpus: int | None, machine_type: str | None) -> Shape:
    """Return an N1 machine to which GPUs are attached."""
    accelerator, most_cpus = ATTACHED[name]
    if num_gpus not in most_cpus:
        offered = ", ".join(map(str, most_cpus))
        raise BergError(f"{num_gpus} x {name} in one machine is not offered: choose -g {offered}")
    if machine_type and not machine_type.startswith(N1):
        raise BergError(f"{name} GPUs can only be attached to N1 machines, not to {machine_type}")
    cpus = n1_cpus(num_cpus, machine_type, 8 * num_gpus)
    check_n1_cpus(cpus, most_cpus[num_gpus], f"with {num_gpus} x {name} ")
    return Shape(machine_type or n1_type(cpus), num_gpus, name, accelerator)


def n1_cpus(num_cpus: int | None, machine_type: str | None, usual: int) -> int:
    """Return the vCPUs of an N1 machine: those of its type, those asked for, or the usual."""
    if machine_type and (named := re.fullmatch(r"n1-.*-(\d+)", machine_type)):
        return int(named[1])
    return usual if num_cpus is None else num_cpus


def check_n1_cpus(cpus: int, limit: int, what: str) -> None:
    """Raise BergError for a number of vCPUs that no N1 machine has."""
    if not 1 <= cpus <= limit:
        raise BergError(f"an N1 machine {what}has 1 to {limit} vCPUs, not {cpus}: choose -c")
    if cpus not in N1_SIZES and cpus % 2:
        raise BergError(
            f"an N1 machine has 1 or an even number of vCPUs, not {cpus}: choose -c {cpus + 1}"
        )


def n1_type(cpus: int) -> str:
    """Return the N1 machine type with so many vCPUs, and 3.75 GB for each as in standard sizes."""
    return f"n1-standard-{cpus}" if cpus in N1_SIZES else f"custom-{cpus}-{cpus * 3840}"


def find_built_in(machine_type: str) -> tuple[str, int] | None:
    for name, sizes in BUILT_IN.items():
        for num_gpus, by_cpus in sizes.items():
            if machine_type in by_cpus.values():
                return name, num_gpus
    return None


def has_local_disks(machine_type: str) -> bool:
    """Return whether a machine comes with local disks, whose content is lost when it stops."""
    return machine_type.startswith(WITH_LOCAL_DISKS) or machine_type.endswith("-lssd")


def check_built_in(
    machine_type: str, built_in: tuple[str, int], num_gpus: int | None, gpu_type: str | None
) -> Shape:
    name, count = built_in
    asked = ALIASES.get((gpu_type or name).lower(), (gpu_type or name).lower())
    if asked != name or num_gpus not in (None, count):
        raise BergError(f"{machine_type} has {count} x {name}: leave out --num-gpus and --gpu-type")
    return Shape(machine_type, count, name)


def check(shape: Shape, image: str, spot: bool) -> None:
    """Raise BergError for a machine that exists, but not to be had like this, or not to be used
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
            "or from a "
            f"reservation. Add --spot or --flex{others}"
        )
    if kind in FRACTIONS:
        raise BergError(
            f"{kind} has {FRACTIONS[kind]} of a GPU, which only NVIDIA's driver for virtual GPUs "
            "finds, and berg knows no image of Google's that has it. Take a whole GPU: leave out -c"
        )
    if shape.num_gpus:
        check_image(shape.gpu_type, image)


def check_flex(shape: Shape) -> None:
    """Raise BergError for a machine that Google does not give by flex-start."""
    is_never_flex = shape.machine_type.startswith(NOT_FLEX)
    if shape.accelerator or not shape.num_gpus or is_never_flex:
        raise BergError(
            "--flex is for TPUs and for GPUs that are a part of their machine type, such as l4, "
            f"a100 or h100, not for {shape}. Choose another -t, or --spot"
        )


def is_old(gpu_type: str) -> bool:
    """Return whether only NVIDIA's proprietary kernel modules drive GPUs of a type."""
    return CAPABILITY.get(gpu_type, OPEN_DRIVEN) < OPEN_DRIVEN


def check_image(gpu_type: str, image: str) -> None:
    """Raise BergError for an image whose driver or torch does not run on GPUs of a type."""
    has = f"{gpu_type} has {CAPABILITY[gpu_type]}"
    other = f"torch from {OLD_TORCH}, or choose another GPU: -t {DEFAULT}"
    if is_old(gpu_type) and OPEN_MODULES.fullmatch(image):
        raise BergError(
            f"the driver of image {image} finds GPUs of compute capability {OPEN_DRIVEN} and up, "
            f"and {has}. Give --image {OLD_IMAGE} and let requirements.txt install {other}"
        )
    torch = WITH_TORCH.fullmatch(image)
    if not torch:
        return
    low, high = TORCH.get(torch[1], (0.0, 99.0))
    if not low <= CAPABILITY[gpu_type] <= high:
        raise BergError(
            f"the torch of image {image} runs on GPUs of compute capability {low} to {high}, and "
            f"{has}. Give --image common-{torch[1]}-{torch[2]} and let requirements.txt install "
            f"{other}"
        )


def told(gpu_type: str) -> dict[str, str]:
    """Return the metadata by which OLD_IMAGE and its like install a driver at their first boot."""
    return {"install-nvidia-driver": "True"} if is_old(gpu_type) else {}


def driver_version(gpu_type: str) -> str:
    """Return which of GKE's drivers nodes with such GPUs want; the newest has open modules."""
    return "DEFAULT" if is_old(gpu_type) else "LATEST"


def quota_needs(
    shape: Shape,
    machines: int,
    disk_gb: int,
    spot: bool,
    addresses: bool = True,
    brief: bool = True,
) -> list[tuple[int, list[str]]]:
    """What machines count against: an amount, and the metrics of which one must have room for it.

    GPUs of a machine that Google deletes within a week may draw on the quota of preemptible ones,
    too.
    """
    family, cpus = shape.machine_type.partition("-")[0], machines * shape.num_cpus
    needs = []
    if not family.startswith(("a3", "a4", "g4")):  # these need quota for their GPUs alone
        metric = CPU_QUOTAS.get(family, "CPUS")
        needs.append(
            (cpus, [metric, "PREEMPTIBLE_CPUS"] if spot and metric == "CPUS" else [metric])
        )
    gpus = machines * shape.num_gpus
    if shape.gpu_type in GPU_QUOTAS:
        metric = f"NVIDIA_{shape.gpu_type.upper().replace('-', '_')}_GPUS"
        needs.append(
            (
                gpus,
                [f"PREEMPTIBLE_{metric}"]
                if spot
                else [metric, *([f"PREEMPTIBLE_{metric}"] if brief else [])],
            )
        )
    disk = "HDB_TOTAL_GB" if shape.disk_type.startswith("hyperdisk") else "SSD_TOTAL_GB"
    needs += [
        (machines * disk_gb, [disk]),
        (machines * addresses, ["IN_USE_ADDRESSES"]),
        (machines, ["INSTANCES"]),
    ]
    # Without any quota for GPUs there are no TPUs either; theirs no region shows.
    needs += [
        (cpus, ["CPUS_ALL_REGIONS"]),
        (gpus or int(family in TPU_FAMILIES), ["GPUS_ALL_REGIONS"]),
    ]
    return [(amount, metrics) for amount, metrics in needs if amount]

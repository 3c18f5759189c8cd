"""Which machine type carries which GPUs, so that impossible machines are refused before any request.

Source: https://cloud.google.com/compute/docs/gpus (2026-11).
"""

from dataclasses import dataclass

from berg import BergError

N1_SIZES = (1, 2, 4, 8, 16, 32, 64, 96)
# GPUs that are attached to N1 machines: accelerator type, then the most vCPUs for each number of GPUs.
ATTACHED = {
    "p4": ("nvidia-tesla-p4", {1: 24, 2: 48, 4: 96}),
    "p100": ("nvidia-tesla-p100", {1: 16, 2: 32, 4: 64}),
    "t4": ("nvidia-tesla-t4", {1: 48, 2: 48, 4: 96}),
    "v100": ("nvidia-tesla-v100", {1: 12, 2: 24, 4: 48, 8: 96}),
}
# GPUs that are part of a machine type: number of GPUs, then the machine types by vCPUs, the usual one first.
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
        1: {48: "g4-standard-48"},
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
    "nvidia-l4": "l4",
    "nvidia-rtx-pro-6000": "rtx-pro-6000",
}
TYPES = (*ATTACHED, *BUILT_IN)
HYPERDISK_FAMILIES = ("a3-ultragpu", "a4", "g4")  # they take no persistent disk


@dataclass(frozen=True)
class Shape:
    """A machine to ask for. `accelerator` is what is attached to an N1; built-in GPUs need no asking."""

    machine_type: str
    num_gpus: int
    gpu_type: str
    accelerator: str = ""

    @property
    def disk_type(self) -> str:
        return "hyperdisk-balanced" if self.machine_type.startswith(HYPERDISK_FAMILIES) else "pd-balanced"

    def __str__(self) -> str:
        return f"{self.machine_type} with {self.num_gpus} x {self.gpu_type}" if self.num_gpus else self.machine_type


def choose(num_gpus: int | None, gpu_type: str | None, num_cpus: int | None, machine_type: str | None) -> Shape:
    """The machine for what was asked (None: not given); raises BergError where Google offers no such one.

    Without any wishes it is the seed's: 4 x p100 and 8 vCPUs per GPU.
    """
    if machine_type and num_cpus:
        raise BergError("--machine-type fixes the number of CPUs: leave out --num-cpus")
    built_in = find_built_in(machine_type) if machine_type else None
    if built_in:
        return check_built_in(machine_type or "", built_in, num_gpus, gpu_type)
    name = ALIASES.get((gpu_type or "p100").lower(), (gpu_type or "p100").lower())
    if name not in TYPES:
        raise BergError(f"unknown GPU type {gpu_type!r}. Berg knows: {', '.join(TYPES)}")
    if num_gpus is None:
        num_gpus = 0 if machine_type and not gpu_type else 4
        if gpu_type and num_gpus not in (ATTACHED[name][1] if name in ATTACHED else BUILT_IN[name]):
            num_gpus = max(BUILT_IN[name])
    if num_gpus < 0:
        raise BergError(f"--num-gpus {num_gpus} makes no sense: give 0 for a machine without GPUs")
    if name in ATTACHED or num_gpus == 0:
        return choose_n1(num_gpus, name, num_cpus, machine_type)
    sizes = BUILT_IN[name]
    if machine_type or num_gpus not in sizes:
        place = f"be attached to {machine_type}" if machine_type else f"be had in a number of {num_gpus}"
        raise BergError(f"{name} GPUs cannot {place}: Google offers {', '.join(map(str, sizes))} in one machine")
    by_cpus = sizes[num_gpus]
    if num_cpus and num_cpus not in by_cpus:
        offered = ", ".join(map(str, sorted(by_cpus)))
        raise BergError(f"{num_gpus} x {name} comes with {offered} vCPUs, not {num_cpus}: leave out --num-cpus")
    return Shape(by_cpus[num_cpus] if num_cpus else next(iter(by_cpus.values())), num_gpus, name)


def choose_n1(num_gpus: int, name: str, num_cpus: int | None, machine_type: str | None) -> Shape:
    accelerator, most_cpus = ATTACHED.get(name, ("", {}))
    if num_gpus and num_gpus not in most_cpus:
        offered = ", ".join(map(str, most_cpus))
        raise BergError(f"{num_gpus} x {name} in one machine is not offered: choose -g {offered}")
    if num_gpus and machine_type and not machine_type.startswith(("n1-", "custom-")):
        raise BergError(f"{name} GPUs can only be attached to N1 machines, not to {machine_type}")
    cpus = 8 * max(num_gpus, 1) if num_cpus is None else num_cpus
    if machine_type and machine_type.rpartition("-")[2].isdigit() and machine_type.startswith("n1-"):
        cpus = int(machine_type.rpartition("-")[2])
    limit = most_cpus[num_gpus] if num_gpus else 96
    if not 1 <= cpus <= limit:
        what = f"with {num_gpus} x {name} " if num_gpus else ""
        raise BergError(f"an N1 machine {what}has 1 to {limit} vCPUs, not {cpus}: choose -c")
    if cpus not in N1_SIZES and cpus % 2:
        raise BergError(f"an N1 machine has 1 or an even number of vCPUs, not {cpus}: choose -c {cpus + 1}")
    # 3.75 GB per vCPU, as in the standard sizes.
    n1 = f"n1-standard-{cpus}" if cpus in N1_SIZES else f"custom-{cpus}-{cpus * 3840}"
    return Shape(machine_type or n1, num_gpus, name if num_gpus else "", accelerator if num_gpus else "")


def find_built_in(machine_type: str) -> tuple[str, int] | None:
    for name, sizes in BUILT_IN.items():
        for num_gpus, by_cpus in sizes.items():
            if machine_type in by_cpus.values():
                return name, num_gpus
    return None


def check_built_in(machine_type: str, built_in: tuple[str, int], num_gpus: int | None, gpu_type: str | None) -> Shape:
    name, count = built_in
    asked = ALIASES.get((gpu_type or name).lower(), (gpu_type or name).lower())
    if asked != name or num_gpus not in (None, count):
        raise BergError(f"{machine_type} has {count} x {name}: leave out --num-gpus and --gpu-type")
    return Shape(machine_type, count, name)

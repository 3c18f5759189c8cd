"""Which GPU type a job gets where several would do: the first of a list, or the cheapest, that has
room.

Not covered: sweeps, pods, TPUs, and waiting for several types at once.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from berg import BergError
from berg.code.snapshot import Snapshot
from berg.config import Config
from berg.google import accelerators, api, offers, prices
from berg.laptop import launch
from berg.plan import Plan
from berg.spec import JobSpec

Made = TypeVar("Made")
CHEAPEST = "cheapest"


def candidates(config: Config, spec: JobSpec) -> list[JobSpec]:
    """Return what was asked for with each of its GPU types alone, in the order to try them."""
    if spec.gpu_type == CHEAPEST:
        check_is_a_choice(spec)
        return one_each(spec, by_price(config, spec))
    if spec.gpu_memory:
        raise BergError("--gpu-memory says what -t cheapest may choose from: give -t cheapest")
    if "," not in (spec.gpu_type or ""):
        return [spec]
    check_is_a_choice(spec)
    return one_each(spec, named(spec.gpu_type or ""))


def named(types: str) -> list[str]:
    """Return the GPU types of a list with commas; raise BergError for one that is none."""
    found = types.split(",")
    if "" in found:
        raise BergError(f"-t {types} names no GPU type between two commas")
    return [accelerators.name_of(each, None) for each in found]


def one_each(spec: JobSpec, types: list[str]) -> list[JobSpec]:
    return [replace(spec, gpu_type=each, gpu_memory=0) for each in types]


def check_is_a_choice(spec: JobSpec) -> None:
    """Raise BergError where the GPU type is not all that would differ."""
    if spec.cluster or spec.tpu is not None or spec.machine_type:
        raise BergError("-t with several types is for machines whose GPUs -g and -t say alone")


def by_price(config: Config, spec: JobSpec) -> list[str]:
    """Return the GPU types of the region that have the memory, the cheapest first.

    Raise BergError where none has, or has a price.
    """
    listed, why = prices.look_up(config, config.region)
    if listed is None:
        raise BergError(f"which GPU is the cheapest is unknown: {why}")
    zones = offers.gpu_zones(config)
    priced = {}
    for name in accelerators.TYPES:
        is_here = any(zone.startswith(f"{config.region}-") for zone in zones[name])
        rate = rate_of(config, listed, spec, name)
        if is_here and rate is not None and accelerators.GPU_MEMORY[name] >= spec.gpu_memory:
            priced[name] = rate
    if not priced:
        raise BergError(
            f"no GPU of at least {spec.gpu_memory} GB that {config.region} has can be had "
            f"{prices.MODELS[spec.model]} at a known price. See them: berg prices"
        )
    return sorted(priced, key=lambda name: priced[name])


def rate_of(config: Config, listed: prices.Prices, spec: JobSpec, name: str) -> float | None:
    """Return USD for an hour of the machine that a spec means with a GPU type; None without one."""
    try:
        shape = accelerators.choose(spec.num_gpus, name, spec.num_cpus, None)
        accelerators.check(shape, config.default_image, spec.spot or spec.flex)
        if spec.flex:
            accelerators.check_flex(shape)
    except BergError:  # there is no such machine
        return None
    return listed.per_hour(shape, spec.model, spec.disk_gb)


def first(
    config: Config,
    spec: JobSpec,
    folder: Path,
    code: Snapshot | None,
    carry_out: Callable[[Plan], Made],
    say: Callable[[str], None],
) -> Made:
    """Carry out the plan with the first GPU type that there is room for; return what that makes.

    Raise what the last one raises where none has room.
    """
    *others, last = found = candidates(config, spec)
    if others:
        say(f"GPU types to try, in this order: {', '.join(str(each.gpu_type) for each in found)}\n")
    for each, following in pairwise(found):
        # One name for all: what could not be taken back keeps the next one from beginning.
        plan = launch.prepare(
            config, replace(each, name=last.name, cwd=last.cwd), folder, code=code
        )
        code = plan.snapshot
        last = replace(last, name=plan.job.job_name, cwd=plan.job.cwd)
        try:
            return carry_out(replace(plan, must_have_room=True))
        except api.NoRoom as error:
            say(f"{error.message}\nNo room for {each.gpu_type}: now {following.gpu_type}\n")
    return carry_out(launch.prepare(config, last, folder, code=code))

"""A cluster as a file, which can be kept beside the code and made again: cluster.toml.

    name = "train"
    zone = "us-central1-a"

    [[pools]]
    gpu-type = "t4"
    num-gpus = 2
    max-nodes = 4

A pool's keys are the options of `berg cluster create`. Not covered: Kubernetes' own pool and that
of the dataset cache, which berg makes as they are; changes of a pool that is there.
"""

import json
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

from berg import BergError, toml
from berg.google import container
from berg.laptop.clusters import POOLS_NOT_FOR_JOBS, Wanted, pool_status

TOP = ("name", "zone", "pools")
KEYS = {each.name.replace("_", "-"): each.name for each in fields(Wanted) if each.name != "zone"}


def read(file: str) -> tuple[str, list[Wanted]]:
    """Return a cluster's name and its pools; raise BergError for a file that does not say them."""
    try:
        values = toml.parse(Path(file).read_text(), file)
    except (OSError, UnicodeDecodeError) as error:
        raise BergError(f"cannot read {file}: {error}") from None
    check_keys(file, values, TOP)
    name, zone, pools = values.get("name"), values.get("zone"), values.get("pools")
    if not isinstance(name, str):
        raise BergError(f'{file} has no name of the cluster, as in: name = "train"')
    if not isinstance(zone, str | None):
        raise BergError(f"{file}: zone must be text, not {zone!r}")
    if not isinstance(pools, list) or not pools:
        raise BergError(f"{file} has no [[pools]] of nodes for jobs")
    return name, [wanted_in(file, each, zone) for each in pools]


def check_keys(file: str, values: dict[str, Any], known: typing.Collection[str]) -> None:
    """Raise BergError for a key that means nothing."""
    if unknown := sorted(values.keys() - set(known)):
        raise BergError(
            f"{file}: there is no key {unknown[0]!r} here. There are: {', '.join(known)}"
        )


def wanted_in(file: str, values: Any, zone: str | None) -> Wanted:
    """Return a pool that a file describes; raise BergError for what it cannot be."""
    if not isinstance(values, dict):
        raise BergError(f"{file}: pools are tables, each below a line [[pools]]")
    check_keys(file, values, KEYS)
    kinds = typing.get_type_hints(Wanted)
    for key, value in values.items():
        kind = kinds[KEYS[key]]
        if kind is float:
            kind = float | int
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise BergError(f"{file}: {key} cannot be {value!r}")
    wanted = Wanted(zone=zone, **{KEYS[key]: value for key, value in values.items()})
    wanted.check()
    return wanted


def text(cluster: dict[str, Any]) -> str:
    """Return a cluster that is there as such a file."""
    lines = [f"name = {json.dumps(cluster['name'])}", f"zone = {json.dumps(cluster['location'])}"]
    for pool in container.pools(cluster):
        if pool["name"] in POOLS_NOT_FOR_JOBS:
            continue
        values = pool_values(pool).items()
        # TOML writes these values as JSON does.
        lines += ["", "[[pools]]", *(f"{key} = {json.dumps(value)}" for key, value in values)]
    return "\n".join(lines) + "\n"


def pool_values(pool: dict[str, Any]) -> dict[str, Any]:
    """Return what a pool is, by the keys of the file."""
    node, limits = pool["config"], pool_status(pool)
    return {
        **machines_of(pool, limits["tpu"]),
        "min-nodes": limits["min_nodes"],
        "max-nodes": limits["max_nodes"],
        "disk-gb": node["diskSizeGb"],
        "disk-type": node["diskType"],
        "spot": bool(node.get("spot")),
    }


def machines_of(pool: dict[str, Any], tpu: str) -> dict[str, Any]:
    """Return what the nodes of a pool are: `tpu` says it, or their type and GPUs."""
    node = pool["config"]
    if tpu:
        seconds = int(node.get("maxRunDuration", "0s").rstrip("s"))
        return {"tpu": tpu, "max-hours": seconds // 3600}
    gpu_type, num_gpus = container.gpus_of(pool)
    gpus = {"gpu-type": gpu_type} if gpu_type else {}
    return {**gpus, "num-gpus": num_gpus, "machine-type": node["machineType"]}

"""A folder for each step, to which all ranks write, and a pointer that the first one writes over
itself once all have: as DeepSpeed and Megatron do. The older folders are deleted.
"""

import shutil

import common
import torch
import torch.distributed as dist

FOLDER, RANK = common.FOLDER, common.RANK
KEPT = 2


def shard(step: int, rank: int, part: str):
    return FOLDER / f"global_step{step}" / f"{part}_rank_{rank:02}.pt"


def load() -> int:
    if not (FOLDER / "latest").exists():
        return 0
    step = int((FOLDER / "latest").read_text().removeprefix("global_step"))
    found = [
        torch.load(shard(step, rank, part))
        for rank in range(common.WORLD)
        for part in ("model", "optim")
    ]
    return common.same([step, *(int(each.max()) for each in found)], f"global_step{step}")


def save(step: int) -> None:
    (FOLDER / f"global_step{step}").mkdir(exist_ok=True)
    for part in ("model", "optim"):
        torch.save(torch.full((common.SIZE,), float(step)), shard(step, RANK, part))
    dist.barrier()
    if RANK == 0:
        with (FOLDER / "latest").open("w") as file:
            file.write(f"global_step{step}")
    dist.barrier()
    shutil.rmtree(FOLDER / f"global_step{step - KEPT}", ignore_errors=True)


common.meet()
common.run(load, save)

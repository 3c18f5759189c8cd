"""torch.distributed.checkpoint: each rank its file, and the first one the metadata, last; always
over the same folder.
"""

import common
import torch
import torch.distributed.checkpoint as dcp

PATH = common.FOLDER / "dcp"
PARTS = [f"{what}{rank}" for rank in range(common.WORLD) for what in ("model", "optim")]


def load() -> int:
    if not PATH.exists():
        return 0
    found = {part: torch.zeros(common.SIZE) for part in PARTS}
    step = {"step": torch.zeros(1)}
    try:
        dcp.load({**found, **step}, checkpoint_id=PATH, no_dist=True)
    except (dcp.api.CheckpointException, FileNotFoundError):
        if (PATH / ".metadata").exists():
            raise
        return 0  # saving over a checkpoint begins with deleting that file
    steps = [int(each.min()) for each in found.values()]
    return common.same([int(step["step"]), *steps, *(int(e.max()) for e in found.values())], "dcp")


def save(step: int) -> None:
    own = {part: torch.full((common.SIZE,), float(step)) for part in PARTS if part[-1] == RANK}
    dcp.save({"step": torch.tensor([float(step)]), **own}, checkpoint_id=PATH)


RANK = str(common.RANK)
common.meet()
common.run(load, save, pause=0.5)

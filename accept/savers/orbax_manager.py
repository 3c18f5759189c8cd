"""Orbax's CheckpointManager: a folder that is renamed when it is whole."""

import common
import numpy as np
import orbax.checkpoint as ocp

options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
manager = ocp.CheckpointManager(common.FOLDER / "orbax", options=options)
PARTS = [f"part{number}" for number in range(4)]


def load() -> int:
    step = manager.latest_step()
    if step is None:
        return 0
    empty = {part: np.zeros(common.SIZE, np.float32) for part in PARTS}
    found = manager.restore(step, args=ocp.args.StandardRestore(empty))
    ends = [end(found[part]) for part in PARTS for end in (np.min, np.max)]
    return common.same([step, *map(int, ends)], str(step))


def save(step: int) -> None:
    parts = {part: np.full(common.SIZE, step, np.float32) for part in PARTS}
    manager.save(step, args=ocp.args.StandardSave(parts))
    manager.wait_until_finished()


common.run(load, save)

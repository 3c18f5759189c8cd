"""A timed all_gather among the GPUs of several machines, each of which starts this once with the
variables of a command. The first rank prints the bandwidth of each one's network in bytes a second,
as nccl-tests calculates it (busbw). If that is below BERG_FLOOR, it then prints that of pairs of
machines, each of which is in two.

https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

WARM_UPS, REPEATS = 5, 20
PAIR_REPEATS = 5
GPU_BYTES, CPU_BYTES = 1 << 30, 1 << 24  # of what each rank has in the end


def start_ranks() -> int:
    """Start a process for each GPU of this machine; return the exit code of the first that failed,
    or 0.
    """
    here, node = int(os.environ["PET_NPROC_PER_NODE"]), int(os.environ["BERG_NODE_RANK"])
    world = {"WORLD_SIZE": str(here * int(os.environ["BERG_NUM_NODES"]))}
    ranks = [
        {**world, "RANK": str(node * here + local), "LOCAL_RANK": str(local)}
        for local in range(here)
    ]
    command = [sys.executable, __file__]
    running = [subprocess.Popen(command, env={**os.environ, **rank}) for rank in ranks]
    return next(filter(None, [each.wait() for each in running]), 0)


def run_rank() -> None:
    """Take part in the measurements."""
    import torch
    import torch.distributed as dist

    has_gpus = torch.cuda.is_available()
    device = torch.device("cpu")
    if has_gpus:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpus else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speed = bandwidth(dist.group.WORLD, [*range(ranks)], device, REPEATS)
    if rank == 0:
        write("berg-all-gather", {"bytes_per_second": speed, "ranks": ranks})
    shown = torch.tensor([speed], device=device)
    dist.broadcast(shown, 0)  # by its own clock each rank would decide for itself
    nodes, here = int(os.environ["BERG_NUM_NODES"]), int(os.environ["PET_NPROC_PER_NODE"])
    if nodes > 2 and shown.item() < float(os.environ.get("BERG_FLOOR", 0)):
        found = measure_pairs(nodes, here, device)
        if rank == 0:
            write("berg-pairs", found)
    dist.destroy_process_group()


def bandwidth(group: Any, members: list[int], device: Any, repeats: int) -> float:
    """Return the bandwidth of an all_gather in a group in bytes a second."""
    import torch
    import torch.distributed as dist

    size = (CPU_BYTES if device.type == "cpu" else GPU_BYTES) // 4 // len(members)
    own = torch.full((size,), float(dist.get_rank()), device=device)
    gathered = torch.empty(size * len(members), device=device)

    def wait() -> None:
        dist.barrier(group)
        if device.type == "cuda":
            torch.cuda.synchronize()

    began = 0.0
    for repeat in range(WARM_UPS + repeats):
        if repeat == WARM_UPS:
            wait()
            began = time.perf_counter()
        dist.all_gather_into_tensor(gathered, own, group)
    wait()
    seconds = (time.perf_counter() - began) / repeats
    expected = torch.tensor(members, device=device, dtype=gathered.dtype)
    if not torch.equal(gathered.view(len(members), size)[:, -1], expected):
        raise SystemExit("all_gather returned other values than were sent")
    return 4 * size * (len(members) - 1) / seconds


def rounds_of_pairs(nodes: int) -> list[list[tuple[int, int]]]:
    """Return rounds in which each machine is in one pair at most; each is in two pairs in all."""
    ring = [(node, (node + 1) % nodes) for node in range(nodes)]
    if nodes % 2:
        return [ring[:-1:2], ring[1::2], ring[-1:]]
    return [ring[::2], ring[1::2]]


def measure_pairs(nodes: int, here: int, device: Any) -> list[tuple[int, int, float]]:
    """Return the bandwidth of pairs of machines, each with so many ranks `here`."""
    import torch
    import torch.distributed as dist

    rank, found = dist.get_rank(), []
    for pairs in rounds_of_pairs(nodes):
        speed = torch.zeros(1, device=device)
        for pair in pairs:
            members = [node * here + local for node in sorted(pair) for local in range(here)]
            group = dist.new_group(members)  # which all ranks make
            if rank in members:
                speed += bandwidth(group, members, device, PAIR_REPEATS)
        speeds = torch.empty(dist.get_world_size(), device=device)
        dist.all_gather_into_tensor(speeds, speed)
        found += [(*pair, float(speeds[pair[0] * here])) for pair in pairs]
    return found


def write(what: str, value: Any) -> None:
    """Print a line of JSON at once, so that it is known if what follows takes too long."""
    sys.stdout.write(f"\n{what} {json.dumps(value)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        run_rank()
    else:
        sys.exit(start_ranks())

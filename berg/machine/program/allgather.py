"""A timed all_gather among the GPUs of several machines, each of which starts this once with the
variables of a command. The first rank prints the bandwidth of each one's network in bytes a second,
as nccl-tests calculates it (busbw).

https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

import json
import os
import subprocess
import sys
import time

WARM_UPS, REPEATS = 5, 20
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
    """Take part in the all_gather."""
    import torch
    import torch.distributed as dist

    has_gpus = torch.cuda.is_available()
    device = torch.device("cpu")
    if has_gpus:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpus else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = (GPU_BYTES if has_gpus else CPU_BYTES) // 4 // ranks
    own = torch.full((size,), float(rank), device=device)
    gathered = torch.empty(size * ranks, device=device)

    def wait() -> None:
        dist.barrier()
        if has_gpus:
            torch.cuda.synchronize()

    began = 0.0
    for repeat in range(WARM_UPS + REPEATS):
        if repeat == WARM_UPS:
            wait()
            began = time.perf_counter()
        dist.all_gather_into_tensor(gathered, own)
    wait()
    seconds = (time.perf_counter() - began) / REPEATS
    expected = torch.arange(ranks, device=device, dtype=gathered.dtype)
    if not torch.equal(gathered.view(ranks, size)[:, -1], expected):
        raise SystemExit("all_gather returned other values than were sent")
    if rank == 0:
        about = {"bytes_per_second": 4 * size * (ranks - 1) / seconds, "ranks": ranks}
        sys.stdout.write(f"berg-all-gather {json.dumps(about)}\n")
    dist.destroy_process_group()


if "LOCAL_RANK" in os.environ:
    run_rank()
else:
    sys.exit(start_ranks())

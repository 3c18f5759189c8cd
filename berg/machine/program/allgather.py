"""An all_gather among all ranks that torchrun started, timed: rank 0 prints the bandwidth of each
rank's network in bytes a second, as nccl-tests calculates it (busbw).

https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

WARM_UPS, REPEATS = 5, 20
GPU_BYTES, CPU_BYTES = 1 << 30, 1 << 24  # of what each rank has in the end


def main() -> None:
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
    for repeat in range(WARM_UPS + REPEATS):
        if repeat == WARM_UPS:
            wait(has_gpus)
            began = time.perf_counter()
        dist.all_gather_into_tensor(gathered, own)
    wait(has_gpus)
    seconds = (time.perf_counter() - began) / REPEATS
    expected = torch.arange(ranks, device=device, dtype=gathered.dtype)
    if not torch.equal(gathered.view(ranks, size)[:, -1], expected):
        raise SystemExit("all_gather brought other values than were sent")
    if rank == 0:
        about = {"bytes_per_second": 4 * size * (ranks - 1) / seconds, "ranks": ranks}
        sys.stdout.write(f"berg-all-gather {json.dumps(about)}\n")
    dist.destroy_process_group()


def wait(has_gpus: bool) -> None:
    """Wait until all ranks have done what they were told."""
    dist.barrier()
    if has_gpus:
        torch.cuda.synchronize()


main()

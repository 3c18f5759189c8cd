"""Train a small network on scikit-learn's handwritten digits with PyTorch, on all TPU chips of a machine or a slice.

torch_xla starts a process for each chip of this machine, on every worker of a slice; XLA averages the gradients over all
of them. The first process writes the metrics. On a computer without TPUs, with PJRT_DEVICE=CPU, it is one process.

Not covered: checkpoints (see tpu_jax), models that do not fit on one chip.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy


def train(_, args):
    device, rank, size = torch_xla.device(), xr.global_ordinal(), xr.world_size()
    print(f"process {rank} of {size} on {xm.xla_device_hw(device)} {device}", flush=True)
    torch.manual_seed(0)
    images, digits = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, digits, test_size=360, stratify=digits, random_state=0)
    x, x_test, y, y_test = (torch.tensor(part) for part in parts)
    x, x_test = x.float(), x_test.float().to(device)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    xm.broadcast_master_param(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * size, momentum=0.9)
    # All shapes are the same in every step: XLA compiles the step once.
    steps = len(x) // size // args.batch_size
    args.logdir.mkdir(parents=True, exist_ok=True)

    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        mine = order[rank::size][: steps * args.batch_size]
        for chosen in mine.split(args.batch_size):
            loss = cross_entropy(model(x[chosen].to(device)), y[chosen].to(device))
            optimizer.zero_grad()
            loss.backward()
            xm.optimizer_step(optimizer)  # averages the gradients first
            torch_xla.sync()
        loss = xm.mesh_reduce("loss", loss.item(), lambda each: sum(each) / len(each))
        if rank == 0:
            with torch.no_grad():
                accuracy = (model(x_test).argmax(1).cpu() == y_test).float().mean().item()
            row = {"epoch": epoch, "processes": size, "train_loss": round(loss, 4)}
            row |= {"test_accuracy": round(accuracy, 4)}
            row |= {"seconds": round(time.perf_counter() - start, 3)}
            print(json.dumps(row), flush=True)
            with (args.logdir / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")


def main():
    parser = argparse.ArgumentParser(description="Train a small network on TPUs with PyTorch.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument(
        "--logdir", type=Path, default=Path(os.environ.get("BERG_RESULTS_DIR", "results"))
    )
    torch_xla.launch(train, args=(parser.parse_args(),))


if __name__ == "__main__":
    main()

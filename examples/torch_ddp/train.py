"""Train a small network on scikit-learn's handwritten digits, on as many processes as torchrun starts.

Every process has a copy of the network and sees its share of the images; DistributedDataParallel averages the
gradients, so that all copies stay the same. They talk through NCCL where there are GPUs, else through gloo. The first
process writes metrics and, after every epoch, a checkpoint, from which a run with the same --logdir continues. Every
process prints its step, its loss and its rate in images per second, beside the rate of all processes together.
With --wandb-run-group each process logs a run of Weights & Biases, all of them in that group.

Not covered: mixed precision, models that do not fit into one GPU, clusters that change their size.
"""

import argparse
import json
import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def load_data():
    """Return two datasets, for training and for testing: images as 64 floats in [0, 1], and their digits."""
    images, digits = load_digits(return_X_y=True)  # pixels from 0 to 16
    parts = train_test_split(images / 16, digits, test_size=360, stratify=digits, random_state=0)
    x_train, x_test, y_train, y_test = parts
    return [
        TensorDataset(torch.tensor(x).float(), torch.tensor(y))
        for x, y in ((x_train, y_train), (x_test, y_test))
    ]


class Progress:
    """Print a line every few steps: the device, the step, the loss, and images per second."""

    def __init__(self, device, every, run=None):
        self.device, self.every, self.run = device, every, run
        self.images, self.start = 0, time.perf_counter()

    def step(self, epoch, step, loss, images):
        """Count a step of `images` images; every process has to call it equally often."""
        self.images += images
        if step % self.every:
            return
        rate = self.images / (time.perf_counter() - self.start)
        total = torch.tensor([rate], device=self.device)
        dist.all_reduce(total)
        self.images, self.start = 0, time.perf_counter()
        print(
            f"Training Device={self.device} Rank={dist.get_rank()}/{dist.get_world_size()} "
            f"Epoch={epoch} Step={step} Loss={loss:.4f} Rate={rate:.1f} "
            f"GlobalRate={total.item():.1f} Time={time.strftime('%H:%M:%S')}",
            flush=True,
        )
        if self.run:
            self.run.log({"epoch": epoch, "loss": loss, "rate": rate, "global_rate": total.item()})


def train_epoch(model, optimizer, loader, progress, epoch):
    """See every image of this process's share once; return the mean loss over all processes."""
    device = progress.device
    total = torch.zeros(2, device=device)  # sum of the losses, number of images
    for step, (x, y) in enumerate(loader, start=1):
        loss = cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()  # DistributedDataParallel averages the gradients here
        optimizer.step()
        total += torch.tensor([loss.item() * len(x), len(x)], device=device)
        progress.step(epoch, step, loss.item(), len(x))
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def start_wandb(args, rank):
    """Return a run of Weights & Biases for this process, in the group of all of them."""
    import wandb

    return wandb.init(
        project="berg-ddp",
        group=args.wandb_run_group,
        name=f"{args.wandb_run_group}-{rank}",
        mode="online" if os.environ.get("WANDB_API_KEY") else "offline",
        dir=args.logdir,
        config={"epochs": args.epochs, "lr": args.lr, "batch_size": args.batch_size},
    )


@torch.no_grad()
def accuracy(network, dataset, device):
    x, y = (part.to(device) for part in dataset.tensors)
    return (network(x).argmax(1) == y).float().mean().item()


def save(path, content):
    # renamed: a kill leaves the old checkpoint or the new, never a half
    temporary = path.with_suffix(".tmp")
    torch.save(content, temporary)
    temporary.replace(path)


def load(path):
    """Return on every process the checkpoint that the first one finds; None without one."""
    found = [
        torch.load(path, map_location="cpu") if dist.get_rank() == 0 and path.exists() else None
    ]
    dist.broadcast_object_list(found)
    return found[0]


def main():
    parser = argparse.ArgumentParser(description="Train a small network on several processes.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument(
        "--logdir", type=Path, default=Path(os.environ.get("BERG_RESULTS_DIR", "results"))
    )
    parser.add_argument("--log-every", type=int, default=10, help="steps between two lines")
    parser.add_argument("--wandb-run-group", "--wandb_run_group", help="log to Weights & Biases")
    parser.add_argument(
        "--local-rank",
        "--local_rank",
        type=int,
        default=os.environ.get("LOCAL_RANK"),
        help="which process of this machine it is; torch.distributed.launch passes it",
    )
    args = parser.parse_args()

    gpus, local_rank = torch.cuda.device_count(), args.local_rank
    device = torch.device("cuda", local_rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    hosts = [None] * size
    dist.all_gather_object(hosts, socket.gethostname())
    if rank == 0:
        print(
            f"{size} processes on {' '.join(sorted(set(hosts)))}, through {dist.get_backend()}",
            flush=True,
        )

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    model = DistributedDataParallel(network, device_ids=[local_rank] if gpus else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    training, test = load_data()
    # deals the images out, in another order every epoch
    sampler = DistributedSampler(training, seed=0)
    loader = DataLoader(training, args.batch_size, sampler=sampler)

    args.logdir.mkdir(parents=True, exist_ok=True)
    progress = Progress(
        device, args.log_every, start_wandb(args, rank) if args.wandb_run_group else None
    )
    metrics = []
    if checkpoint := load(args.logdir / "checkpoint.pt"):
        network.load_state_dict(checkpoint["network"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        metrics = checkpoint["metrics"]
        if rank == 0:
            print(f"Going on after epoch {len(metrics)}", flush=True)

    for epoch in range(len(metrics) + 1, args.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)
        loss = train_epoch(model, optimizer, loader, progress, epoch)
        seconds = time.perf_counter() - start
        if rank == 0:
            row = {
                "epoch": epoch,
                "processes": size,
                "seconds": round(seconds, 3),
                "train_loss": round(loss, 4),
            }
            row["test_accuracy"] = round(accuracy(network, test, device), 4)
            metrics.append(row)
            print(json.dumps(row), flush=True)
            (args.logdir / "metrics.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in metrics)
            )
            state = {
                "network": network.state_dict(),
                "optimizer": optimizer.state_dict(),
                "metrics": metrics,
            }
            save(args.logdir / "checkpoint.pt", state)
    if progress.run:
        progress.run.finish()
    dist.barrier()  # else the first to go may tear down what others still use
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

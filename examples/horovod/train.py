"""Train a small network on scikit-learn's handwritten digits, on as many processes as Horovod is started with.

Each process sees its share of the images; Horovod averages the gradients over all of them, and the first process's weights
are those that all begin with. The first process writes the metrics.

Not covered: checkpoints (see torch_ddp), elastic Horovod, GPUs of several machines, which want a Horovod with NCCL.
"""

import argparse
import json
import os
import socket
from pathlib import Path

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy


def main():
    parser = argparse.ArgumentParser(description="Train a small network with Horovod.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument(
        "--logdir", type=Path, default=Path(os.environ.get("BERG_RESULTS_DIR", "results"))
    )
    args = parser.parse_args()

    hvd.init()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())
    hosts = hvd.allgather_object(socket.gethostname())
    if hvd.rank() == 0:
        print(f"{hvd.size()} processes on {' '.join(dict.fromkeys(hosts))}", flush=True)

    torch.manual_seed(0)
    images, digits = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, digits, test_size=360, stratify=digits, random_state=0)
    x, x_test, y, y_test = (torch.tensor(part, device=device) for part in parts)
    x, x_test = x.float(), x_test.float()
    count = len(x) // hvd.size()  # so that all have as many batches
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    args.logdir.mkdir(parents=True, exist_ok=True)

    for epoch in range(1, args.epochs + 1):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        mine = order[hvd.rank() :: hvd.size()][:count]
        for chosen in mine.split(args.batch_size):
            loss = cross_entropy(model(x[chosen]), y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loss = hvd.allreduce(loss.detach(), op=hvd.Average).item()
        if hvd.rank() == 0:
            with torch.no_grad():
                accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
            row = {"epoch": epoch, "processes": hvd.size()}
            row |= {"train_loss": round(loss, 4), "test_accuracy": round(accuracy, 4)}
            print(json.dumps(row), flush=True)
            with (args.logdir / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

"""Train a small network on shards that are streamed from a bucket, on as many processes as torchrun starts.

In every epoch the shards are dealt out anew, so that each process reads what others read before: in a cluster with a
dataset cache (BERG_CACHE_URL) the second epoch comes from there. While the cache does not answer, shards come from
Cloud Storage itself, and the training goes on.

Not covered: checkpoints and GPUs (see torch_ddp), reading ahead, shards larger than memory.
"""

import argparse
import io
import json
import os
import sys
import tarfile
import time
from pathlib import Path
from urllib.parse import quote

import google.auth
import requests
import torch
import torch.distributed as dist
from google.auth.transport.requests import AuthorizedSession
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STORAGE = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
REST = 5  # seconds for which a cache that failed is not asked


class Bucket:
    """Objects of a bucket by name; `counts` are those from the cache, and those from Cloud Storage itself."""

    def __init__(self, name):
        credentials, _ = google.auth.default(
            scopes=["https://www.googleapis.com/auth/devstorage.read_only"]
        )
        self.name, self.session = name, AuthorizedSession(credentials)
        self.cache, self.rests_until, self.counts = os.environ.get("BERG_CACHE_URL"), 0.0, [0, 0]

    def read(self, name):
        if self.cache and time.monotonic() > self.rests_until:
            try:
                content = self.fetch(self.cache, name)
                self.counts[0] += 1
                return content
            except requests.RequestException as error:
                self.rests_until = time.monotonic() + REST
                print(f"the cache failed, on from the bucket: {error}", file=sys.stderr, flush=True)
        content = self.fetch(STORAGE, name)
        self.counts[1] += 1
        return content

    def fetch(self, server, name):
        # Cache and bucket have the same paths, and take the same token.
        answer = self.session.get(f"{server}/{self.name}/{quote(name)}", timeout=(5, 60))
        answer.raise_for_status()
        if len(answer.content) != int(answer.headers["x-goog-stored-content-length"]):
            raise requests.ConnectionError(f"{name} was cut short")
        return answer.content


def samples(content):
    """Return the images of a shard as floats in [0, 1], and their digits."""
    images, digits = [], []
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            data = archive.extractfile(member).read()
            if member.name.endswith(".pgm"):
                images.append(torch.frombuffer(bytearray(data[-64:]), dtype=torch.uint8) / 16)
            else:
                digits.append(int(data))
    return torch.stack(images), torch.tensor(digits)


def batches(bucket, names, size):
    """Yield what this process reads of an epoch; no more than one shard is in memory."""
    for name in names:
        images, digits = samples(bucket.read(name))
        for chosen in torch.randperm(len(images)).split(size):
            yield images[chosen], digits[chosen]


def train_epoch(model, optimizer, data):
    """See every sample of this process's shards once; return the mean loss over all processes."""
    total = torch.zeros(2)  # sum of the losses, number of samples
    with model.join():  # some processes have more batches than others
        for x, y in data:
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(x), len(x)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main():
    parser = argparse.ArgumentParser(description="Train a small network on shards of a bucket.")
    parser.add_argument("--bucket", default=os.environ.get("BERG_BUCKET"))
    parser.add_argument("--shards", required=True, help="job of which they are the results")
    parser.add_argument("--count", type=int, default=8, help="shards for training")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument(
        "--logdir", type=Path, default=Path(os.environ.get("BERG_RESULTS_DIR", "results"))
    )
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    bucket = Bucket(args.bucket)
    folder = f"berg_results/{args.shards}"
    names = [f"{folder}/train-{shard:03}.tar" for shard in range(args.count)]
    images, digits = samples(bucket.read(f"{folder}/test.tar"))
    args.logdir.mkdir(parents=True, exist_ok=True)

    for epoch in range(1, args.epochs + 1):
        start, bucket.counts = time.perf_counter(), [0, 0]
        order = torch.randperm(len(names), generator=torch.Generator().manual_seed(epoch)).tolist()
        loss = train_epoch(
            model,
            optimizer,
            batches(bucket, [names[n] for n in order[rank::size]], args.batch_size),
        )
        counts = torch.tensor(bucket.counts)
        dist.all_reduce(counts)
        if rank == 0:
            with torch.no_grad():
                accuracy = (model.module(images).argmax(1) == digits).float().mean().item()
            row = {
                "epoch": epoch,
                "processes": size,
                "seconds": round(time.perf_counter() - start, 3),
            }
            row |= {"train_loss": round(loss, 4), "test_accuracy": round(accuracy, 4)}
            row |= {"from_cache": int(counts[0]), "from_bucket": int(counts[1])}
            print(json.dumps(row), flush=True)
            with (args.logdir / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
    dist.barrier()  # else the first to go may tear down what others still use
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

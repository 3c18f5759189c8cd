"""Train a small network on shards that are streamed from a bucket, on as many processes as torchrun starts.

WebDataset deals the shards of every epoch out anew, so that each process reads its share, and what others read before. A
shard is read piece by piece, and no disk holds it; a piece whose connection breaks is read again.

Not covered: checkpoints and GPUs (see torch_ddp), processes that read ahead (WebLoader of WebDataset), shards that change
while they are read.
"""

import argparse
import json
import os
import time
from pathlib import Path

import google.auth
import torch
import torch.distributed as dist
import webdataset as wds
from google.cloud import storage
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate


class Bucket:
    """Objects of a bucket as streams. `shards` and `bytes` are what was read."""

    def __init__(self, name):
        credentials, project = google.auth.default(
            scopes=["https://www.googleapis.com/auth/devstorage.read_only"]
        )
        self.bucket = storage.Client(project or "none", credentials).bucket(name)
        self.shards = self.bytes = 0

    def open_all(self, shards):
        """Give WebDataset a stream for each shard: it reads 16 MiB at a time, again if that fails."""
        for shard in shards:
            blob = self.bucket.blob(shard["url"])
            blob.reload()
            self.shards += 1
            self.bytes += blob.size
            yield {**shard, "stream": blob.open("rb", chunk_size=16 << 20)}


def image_of(content):
    """Return a .pgm of 8 x 8 pixels, from 0 to 16, as floats in [0, 1]."""
    return torch.frombuffer(bytearray(content[-64:]), dtype=torch.uint8) / 16


def batches(bucket, names, size, seed, dealing=wds.split_by_node):
    """Yield batches of images and digits: of this process's share of the shards, in an order of the seed's."""
    return wds.DataPipeline(
        wds.SimpleShardList(names, seed=seed),
        dealing,
        bucket.open_all,
        wds.tariterators.tar_file_expander,
        wds.tariterators.group_by_keys,
        wds.shuffle(1000, seed=seed),
        wds.to_tuple("pgm", "cls"),
        wds.map_tuple(image_of, int),
        wds.batched(size, collation_fn=default_collate),
    )


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
    whole = batches(bucket, [f"{folder}/test.tar"], 10000, 0, dealing=iter)
    images, digits = next(iter(whole))
    args.logdir.mkdir(parents=True, exist_ok=True)

    for epoch in range(1, args.epochs + 1):
        start, bucket.shards, bucket.bytes = time.perf_counter(), 0, 0
        loss = train_epoch(model, optimizer, batches(bucket, names, args.batch_size, epoch))
        seconds = time.perf_counter() - start
        counts = torch.tensor([bucket.shards, bucket.bytes])
        dist.all_reduce(counts)
        if rank == 0:
            with torch.no_grad():
                accuracy = (model.module(images).argmax(1) == digits).float().mean().item()
            megabytes = int(counts[1]) / 1e6
            row = {"epoch": epoch, "processes": size, "seconds": round(seconds, 3)}
            row |= {"train_loss": round(loss, 4), "test_accuracy": round(accuracy, 4)}
            row |= {"shards": int(counts[0]), "mb": round(megabytes, 1)}
            row |= {"mb_per_second": round(megabytes / seconds, 1)}
            print(json.dumps(row), flush=True)
            with (args.logdir / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
    dist.barrier()  # else the first to go may tear down what others still use
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Train a small network on shards that are streamed from a bucket, on as many processes as torchrun starts.

WebDataset deals the shards of every epoch out anew, so that each process reads its share, and what others read before. A
shard is read while it comes, and no disk holds it; a connection that breaks in the middle goes on from there.

Not covered: checkpoints and GPUs (see torch_ddp), processes that read ahead (WebLoader of WebDataset), shards that change
while they are read.
"""

import argparse
import io
import json
import os
import sys
import time
from pathlib import Path
from urllib.parse import quote

import google.auth
import requests
import torch
import torch.distributed as dist
import urllib3
import webdataset as wds
from google.auth.transport.requests import AuthorizedSession
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

STORAGE = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
TRIES = 5  # of a shard that breaks
BROKEN = (requests.RequestException, urllib3.exceptions.HTTPError, OSError)


class Bucket:
    """Objects of a bucket as streams. `shards` and `bytes` are what was read."""

    def __init__(self, name):
        credentials, _ = google.auth.default(
            scopes=["https://www.googleapis.com/auth/devstorage.read_only"]
        )
        self.name, self.session = name, AuthorizedSession(credentials)
        self.shards = self.bytes = 0

    def ask(self, name, position):
        """Return the answer for an object from a position on."""
        headers = {"Range": f"bytes={position}-"} if position else {}
        url = f"{STORAGE}/{self.name}/{quote(name)}"
        answer = self.session.get(url, headers=headers, timeout=(5, 60), stream=True)
        answer.raise_for_status()
        return answer

    def open(self, name):
        self.shards += 1
        return io.BufferedReader(Stream(self, name), 1 << 20)

    def open_all(self, shards):
        """Give WebDataset a stream for each shard."""
        for shard in shards:
            yield {**shard, "stream": self.open(shard["url"])}


class Stream(io.RawIOBase):
    """An object as it comes; where a connection breaks, it goes on from there."""

    def __init__(self, bucket, name):
        self.bucket, self.name, self.position, self.tries = bucket, name, 0, TRIES
        self.answer = bucket.ask(name, 0)
        self.size = int(self.answer.headers["x-goog-stored-content-length"])

    def readable(self):
        return True

    def readinto(self, buffer):
        while self.position < self.size:
            try:
                data = self.answer.raw.read(len(buffer))
                if not data:
                    raise ConnectionError(f"{self.name} was cut short")
            except BROKEN as error:
                self.tries -= 1
                if not self.tries:
                    raise
                print(
                    f"{self.name} goes on at {self.position}: {error}", file=sys.stderr, flush=True
                )
                self.answer = self.bucket.ask(self.name, self.position)
                continue
            buffer[: len(data)] = data
            self.position += len(data)
            self.bucket.bytes += len(data)
            return len(data)
        return 0


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

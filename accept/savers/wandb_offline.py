"""Weights & Biases without a connection: a file to which the run is appended."""

import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import common
import wandb
from wandb.proto import wandb_internal_pb2

HEAD, BLOCK, PART_HEAD = 7, 32768, 7  # bytes
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a run; what is cut off at the end, as a kill leaves it, does not count.

    The format is LevelDB's log: blocks of parts, each with its checksum, length and kind.
    """
    data, at, record = path.read_bytes(), HEAD, b""
    while at + PART_HEAD < len(data):
        if BLOCK - at % BLOCK < PART_HEAD:
            at += BLOCK - at % BLOCK
            continue
        crc = int.from_bytes(data[at : at + 4], "little")
        length = int.from_bytes(data[at + 4 : at + 6], "little")
        kind, part = data[at + 6], data[at + PART_HEAD : at + PART_HEAD + length]
        if len(part) < length:
            return
        if zlib.crc32(data[at + 6 : at + 7] + part) != crc:
            sys.exit(f"torn: {path.name} at byte {at} of {len(data)}")
        record = part if kind in (FULL, FIRST) else record + part
        if kind in (FULL, LAST):
            yield record
        at += PART_HEAD + length


def load() -> int:
    """Return how many points the runs have that came back."""
    count = 0
    for path in sorted((common.FOLDER / "wandb").glob("offline-run-*/*.wandb")):
        for data in records(path):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            count += record.WhichOneof("record_type") == "history"
    return count


os.environ["WANDB_SILENT"] = "true"
before = load()
run = wandb.init(mode="offline", dir=common.FOLDER, project="p")


def save(step: int) -> None:
    run.log({"loss": 1 / step, "text": "x" * 9000})  # it writes blocks of 32 kB


common.STEPS = 3000
common.run(lambda: before, save, pause=0.02)

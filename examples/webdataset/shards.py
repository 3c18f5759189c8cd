"""Write scikit-learn's handwritten digits as shards, tar files of samples as WebDataset has them.

As a job of berg's it writes them into the job's results, so that they are in the bucket when it ends. A sample is two
files that share a number: the image (.pgm) and its digit (.cls).
"""

import argparse
import io
import os
import tarfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def add(archive, name, content):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def main():
    parser = argparse.ArgumentParser(description="Write handwritten digits as shards.")
    parser.add_argument(
        "--shards", type=int, default=8, help="for training; one more is for testing"
    )
    parser.add_argument(
        "--padding", type=int, default=0, help="kB of noise beside each image, to measure reading"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("BERG_RESULTS_DIR", "shards"))
    )
    args = parser.parse_args()

    images, digits = load_digits(return_X_y=True)  # 64 pixels from 0 to 16
    order = np.random.default_rng(0).permutation(len(images))
    parts = {"test.tar": order[:360]}
    parts |= {
        f"train-{shard:03}.tar": order[360 + shard :: args.shards] for shard in range(args.shards)
    }
    args.out.mkdir(parents=True, exist_ok=True)
    for name, numbers in parts.items():
        with tarfile.open(args.out / name, "w") as archive:
            for number in sorted(numbers):
                add(
                    archive,
                    f"{number:06}.pgm",
                    b"P5 8 8 16\n" + images[number].astype(np.uint8).tobytes(),
                )
                add(archive, f"{number:06}.cls", str(digits[number]).encode())
                if args.padding:
                    add(archive, f"{number:06}.bin", os.urandom(args.padding * 1000))
        print(
            f"{name}: {len(numbers)} samples, {(args.out / name).stat().st_size} bytes", flush=True
        )


if __name__ == "__main__":
    main()

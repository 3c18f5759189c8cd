"""Turn ImageNet's archives of 2012 into shards, tar files of samples as WebDataset has them.

ImageNet is given to people who ask for it, as three files: the training images (a tar of one tar for each class), the
validation images, and the bounding boxes of the validation images, which say the class of each. As a job of berg's
this writes shards into the job's results, so that they are in the bucket when it ends. Nothing is unpacked to disk.

A sample is two files that share a name: the image (.jpg), and its class (.cls), a number that is the line of
classes.txt, from 0. Each worker takes its share of the images and deals them out over its own shards by chance, so
that every shard has images of many classes; the same seed makes the same shards.

Not covered: resizing images, and checking that they are whole.
"""

import argparse
import contextlib
import io
import os
import random
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

RANK = int(os.environ.get("BERG_NODE_RANK", 0))
WORKERS = int(os.environ.get("BERG_NUM_NODES", 1))


def read_classes(train):
    """Return the names of the classes, such as n01440764, in order."""
    with tarfile.open(train) as archive:
        return sorted(Path(name).stem for name in archive.getnames() if name.endswith(".tar"))


def read_train(train):
    """Yield name, class and content of each training image of this worker's share."""
    number = 0
    with tarfile.open(train) as archive:
        for member in archive:
            if not member.name.endswith(".tar"):
                continue
            # Without "r|" the images of others are skipped, not read.
            with tarfile.open(fileobj=archive.extractfile(member)) as images:
                for image in images:
                    number += 1
                    if number % WORKERS == RANK:
                        content = images.extractfile(image).read()
                        yield Path(image.name).stem, Path(member.name).stem, content


def read_boxes(boxes):
    """Return the class of each validation image by its name."""
    classes = {}
    with tarfile.open(boxes) as archive:
        for member in archive:
            if member.name.endswith(".xml"):
                root = ElementTree.fromstring(archive.extractfile(member).read())
                classes[Path(member.name).stem] = root.findtext("object/name")
    return classes


def read_validation(validation, boxes):
    """Yield name, class and content of each validation image of this worker's share."""
    classes = read_boxes(boxes)
    with tarfile.open(validation) as archive:
        for number, image in enumerate(archive):
            name = Path(image.name).stem
            if image.isfile() and number % WORKERS == RANK:
                yield name, classes[name], archive.extractfile(image).read()


def add(archive, name, content):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def write_shards(samples, out, kind, count, classes):
    """Deal samples out over `count` shards of this worker; return how many samples there were."""
    chance = random.Random(f"{kind} {RANK}")
    paths = [out / f"{kind}-{RANK:02}-{number:03}.tar" for number in range(count)]
    written = 0
    with contextlib.ExitStack() as stack:
        shards = [stack.enter_context(tarfile.open(path, "w")) for path in paths]
        for name, label, content in samples:
            shard = chance.choice(shards)
            add(shard, f"{name}.jpg", content)
            add(shard, f"{name}.cls", str(classes[label]).encode())
            written += 1
            if written % 10_000 == 0:
                print(f"{kind}: {written} images", flush=True)
    return written


def main():
    parser = argparse.ArgumentParser(description="Turn ImageNet's archives into shards.")
    parser.add_argument("--train", type=Path, required=True, help="ILSVRC2012_img_train.tar")
    parser.add_argument("--val", type=Path, required=True, help="ILSVRC2012_img_val.tar")
    parser.add_argument("--boxes", type=Path, required=True, help="ILSVRC2012_bbox_val_v3.tgz")
    parser.add_argument("--shards", type=int, default=256, help="for training, of each worker")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("BERG_RESULTS_DIR", "shards"))
    )
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    names = read_classes(args.train)
    classes = {name: number for number, name in enumerate(names)}
    if RANK == 0:
        (args.out / "classes.txt").write_text("".join(f"{name}\n" for name in names))
    trained = write_shards(read_train(args.train), args.out, "train", args.shards, classes)
    tests = max(1, args.shards // 25)
    tested = write_shards(read_validation(args.val, args.boxes), args.out, "val", tests, classes)
    print(
        f"worker {RANK} of {WORKERS}: {trained} images to train with, {tested} to test", flush=True
    )


if __name__ == "__main__":
    main()

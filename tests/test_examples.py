"""Examples that need data which nobody may hand on: with a small set of the same shape."""

import io
import shutil
import tarfile
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
CLASSES = ("n01440764", "n01443537", "n02084071")
BOX = "<annotation><object><name>{}</name><bndbox/></object></annotation>"


def write_tar(path: Path, files: dict[str, bytes]) -> bytes:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path.read_bytes()


def make_imagenet(folder: Path) -> None:
    """The three archives that ImageNet gives out, with 7 images of each class."""
    folder.mkdir()
    parts = {}
    for name in CLASSES:
        images = {f"{name}_{n}.JPEG": f"{name} {n}".encode() for n in range(7)}
        parts[f"{name}.tar"] = write_tar(folder / "part", images)
    write_tar(folder / "ILSVRC2012_img_train.tar", parts)
    (folder / "part").unlink()
    tests = {f"ILSVRC2012_val_{n:08}": CLASSES[n % 3] for n in range(1, 6)}
    images = {f"{name}.JPEG": name.encode() for name in tests}
    write_tar(folder / "ILSVRC2012_img_val.tar", images)
    boxes = {f"val/{name}.xml": BOX.format(label).encode() for name, label in tests.items()}
    write_tar(folder / "ILSVRC2012_bbox_val_v3.tgz", boxes)


@pytest.mark.slow
def test_imagenet_becomes_shards_in_the_bucket(berg, tmp_path):
    make_imagenet(tmp_path / "imagenet")
    shutil.copy(EXAMPLES / "imagenet/prepare.py", berg.repo)
    assert berg("data", "push", str(tmp_path / "imagenet"), "imagenet").returncode == 0
    place = "/root/data/imagenet/ILSVRC2012"
    command = (
        f"python prepare.py --shards=2 --train={place}_img_train.tar --val={place}_img_val.tar "
        f"--boxes={place}_bbox_val_v3.tgz"
    )
    options = ["-g", "0", "-m", "2", "--each", "-n", "shards", "--data", "imagenet", "--wait"]
    done = berg("run", *options, command)
    assert done.returncode == 0, done.stderr + berg.log("shards")

    found = berg.objects("berg_results/shards/")
    assert found["berg_results/shards/classes.txt"].decode().split() == list(CLASSES)
    seen = {"train": {}, "val": {}}
    for name, content in found.items():
        if not name.endswith(".tar"):
            continue
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive:
                kind = Path(name).name.partition("-")[0]
                assert member.name not in seen[kind], "an image stands in one shard alone"
                seen[kind][member.name] = archive.extractfile(member).read()
    assert len(seen["train"]) == 2 * 21 and len(seen["val"]) == 2 * 5
    for number, label in enumerate(CLASSES):
        for n in range(7):
            assert seen["train"][f"{label}_{n}.jpg"] == f"{label} {n}".encode()
            assert seen["train"][f"{label}_{n}.cls"] == str(number).encode()
    for n in range(1, 6):
        assert seen["val"][f"ILSVRC2012_val_{n:08}.cls"] == str(n % 3).encode()

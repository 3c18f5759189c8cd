"""The examples, each in a repository of its own, by the command that its README says.

What they import comes from the environment of the tests; an example whose packages it has not is
skipped: `make examples` brings them all.
"""

import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from conftest import Cloud, commit

EXAMPLES = Path(__file__).parents[1] / "examples"
# Machines import the packages of these tests; no name server is asked for the name of every peer.
BORROW = """
echo nameserver 127.0.0.1 >/etc/resolv.conf
echo {site} >$(python -c 'import site; print(site.getsitepackages()[0])')/borrowed.pth
printf '#!/bin/sh\\nexec python -m torch.distributed.run "$@"\\n' >$(dirname $(command -v python))/torchrun
chmod +x $(dirname $(command -v python))/torchrun
"""


def borrow(project: Path, *packages: str) -> list[str]:
    """Options with which machines have these packages; the test is skipped if there are none."""
    for name in packages:
        pytest.importorskip(name, exc_type=ImportError)
    site = Path(str(importlib.import_module(packages[0]).__file__)).parent.parent
    (project / "borrow.sh").write_text(BORROW.format(site=site))
    return ["--install", "bash borrow.sh", "--env", "OMP_NUM_THREADS=1"]


def bring(project: Path, example: str, *packages: str) -> list[str]:
    shutil.copytree(EXAMPLES / example, project, dirs_exist_ok=True)
    options = borrow(project, *packages)
    commit(project)
    return options


def names(cloud: Cloud, job: str) -> list[str]:
    return [
        name.partition(f"berg_results/{job}/")[2] for name in cloud.names(f"berg_results/{job}/")
    ]


def rows(cloud: Cloud, job: str) -> list[dict[str, float]]:
    lines = cloud.read(f"berg_results/{job}/metrics.jsonl").splitlines()
    return [json.loads(line) for line in lines]


CASES = {
    "digits": (
        ["sklearn", "matplotlib", "threadpoolctl"],
        "-g 0",
        "python train.py --epochs=10 --logdir=/root/berg_results/digits",
        "final test accuracy 0.9",
        ["checkpoint.npz", "learning_curve.png", "metrics.jsonl"],
    ),
    "mpi_hello": (
        ["mpi4py"],
        "-m 2 -g 0 -c 2",
        "mpi python hello.py",
        "the sum of the ranks on 2 hosts is 6",
        [],
    ),
    "torch_ddp": (
        ["torch", "sklearn"],
        "-m 2 -g 0 -c 4 --each",
        "torchrun train.py --epochs=2",
        "2 processes on torch-ddp-0 torch-ddp-1, through gloo",
        ["checkpoint.pt", "metrics.jsonl"],
    ),
    "tensorboard": (
        ["torch", "sklearn", "tensorboard", "PIL"],
        "-g 0",
        "python train.py --epochs=2",
        "",
        ["00002/hidden/tensors.tsv", "projector_config.pbtxt"],
    ),
    "tpu_jax": (
        ["jax", "sklearn"],
        "--tpu v5p-2x2x2",
        "python train.py --epochs=2 --batch-size=64",
        "worker 1 of 2 on ",
        ["checkpoint.npz", "metrics.jsonl"],
    ),
    "wandb_digits": (
        ["sklearn", "wandb", "joblib"],
        "-g 0",
        "python train.py --epochs=2",
        "",
        ["model.joblib"],
    ),
    "horovod": (
        ["torch", "sklearn", "horovod.torch.mpi_ops"],
        "-m 2 -g 0 -c 2",
        "mpi --map-by ppr:1:node python train.py --epochs=2",
        "2 processes on horovod-0 horovod-1",
        ["metrics.jsonl"],
    ),
}


@pytest.mark.parametrize("example", CASES)
def test_an_example_runs_as_its_readme_says(cloud: Cloud, project: Path, example: str) -> None:
    packages, options, command, says, files = CASES[example]
    more, job = bring(project, example, *packages), example.replace("_", "-")
    words = ["run", *options.split(), "-n", job, *more, "--wait", command]
    done = cloud.run(*words, cwd=project)
    log = cloud.log(job)
    assert done.code == 0, done.err + log
    assert says in log and not {*files} - {*names(cloud, job)}, log
    if "metrics.jsonl" in files:
        assert rows(cloud, job)[-1]["test_accuracy"] > 0.6


def test_a_stream_of_shards_comes_from_the_bucket(cloud: Cloud, project: Path) -> None:
    more = bring(project, "webdataset", "torch", "sklearn", "webdataset")
    more += ["--env", f"STORAGE_EMULATOR_HOST={cloud.config.endpoint}"]
    done = cloud.run(
        "run", "-g", "0", "-n", "shards", *more, "--wait", "python shards.py", cwd=project
    )
    assert done.code == 0, done.err + cloud.log("shards")
    words = ["run", "-m", "2", "-g", "0", "--each", "-n", "streams", *more, "--wait"]
    done = cloud.run(*words, "torchrun train.py --shards=shards --epochs=2", cwd=project)
    assert done.code == 0, done.err + cloud.log("streams")
    assert [(row["processes"], row["shards"]) for row in rows(cloud, "streams")] == [(2, 8)] * 2


def write_tar(path: Path, files: dict[str, bytes]) -> bytes:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path.read_bytes()


CLASSES = ("n01440764", "n01443537", "n02084071")


def make_imagenet(folder: Path) -> None:
    """Archives such as ImageNet gives out, with 7 images of each class, and 5 to validate."""
    folder.mkdir()
    parts = {
        f"{name}.tar": write_tar(folder / "part", {f"{name}_{n}.JPEG": b"x" for n in range(7)})
        for name in CLASSES
    }
    (folder / "part").unlink()
    write_tar(folder / "ILSVRC2012_img_train.tar", parts)
    labels = {f"ILSVRC2012_val_{n:08}": CLASSES[n % 3] for n in range(1, 6)}
    write_tar(folder / "ILSVRC2012_img_val.tar", {f"{name}.JPEG": b"y" for name in labels})
    box = "<annotation><object><name>{}</name><bndbox/></object></annotation>"
    boxes = {f"val/{name}.xml": box.format(label).encode() for name, label in labels.items()}
    write_tar(folder / "ILSVRC2012_bbox_val_v3.tgz", boxes)


@pytest.mark.slow
def test_imagenet_becomes_shards_in_the_bucket(cloud: Cloud, project: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "imagenet", project, dirs_exist_ok=True)
    commit(project)
    make_imagenet(tmp_path / "imagenet")
    assert cloud.run("data", "push", str(tmp_path / "imagenet"), "imagenet").code == 0
    place = "/root/data/imagenet/ILSVRC2012"
    command = (
        f"python prepare.py --shards=2 --train={place}_img_train.tar --val={place}_img_val.tar "
        f"--boxes={place}_bbox_val_v3.tgz"
    )
    words = ["run", "-g", "0", "-m", "2", "--each", "-n", "images", "--data", "imagenet", "--wait"]
    done = cloud.run(*words, command, cwd=project)
    assert done.code == 0, done.err + cloud.log("images")
    assert cloud.read("berg_results/images/classes.txt").decode().split() == [*CLASSES]
    seen: list[str] = []
    for name in cloud.names("berg_results/images/"):
        if name.endswith(".tar"):
            with tarfile.open(fileobj=io.BytesIO(cloud.read(name))) as archive:
                seen += [f"{Path(name).name[:3]}{member.name}" for member in archive]
    assert len(seen) == len({*seen}) == 2 * (3 * 7 + 5)  # each in one shard alone


def test_optuna_runs_trials_as_jobs(cloud: Cloud, project: Path) -> None:
    pytest.importorskip("optuna")
    for name in ("optuna", "digits"):
        shutil.copytree(EXAMPLES / name, project / name)
    _, install, *_ = borrow(project, "sklearn", "matplotlib", "threadpoolctl")
    commit(project, {"pyproject.toml": f'[tool.berg]\ninstall = "{install}"\n'})
    words = [sys.executable, "tune.py", "--trials", "2", "--parallel", "2", "--epochs", "3"]
    done = subprocess.run(
        words, cwd=project / "optuna", env=cloud.env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"the best test loss is \d\.\d+, of tune-[01]", done.stdout), done.stdout


def test_pytorch_runs_on_every_worker_of_a_slice(cloud: Cloud, project: Path) -> None:
    """With the CPU as XLA's device, of which each process has its own; torch_xla wants a torch of its
    own, which TORCH_XLA_PYTHON has.
    """
    if not (python := os.environ.get("TORCH_XLA_PYTHON")):
        pytest.skip("TORCH_XLA_PYTHON names no python with torch_xla 2.9.0")
    shutil.copytree(EXAMPLES / "tpu_torch", project, dirs_exist_ok=True)
    commit(project)
    told = "TPU_SKIP_MDS_QUERY=1 TPU_ACCELERATOR_TYPE=v5p-16 TPU_PROCESS_BOUNDS=1,1,2 "
    told += "TPU_CHIPS_PER_PROCESS_BOUNDS=2,2,1 PJRT_DEVICE=CPU"
    command = f"{told} {python} train.py --epochs=2 --logdir=$BERG_RESULTS_DIR/$BERG_NODE_RANK"
    words = ["run", "-n", "xla", "--tpu", "v5p-2x2x2", "--install", "none", "--wait", command]
    done = cloud.run(*words, cwd=project)
    assert done.code == 0, done.err + cloud.log("xla")
    assert {"0/metrics.jsonl", "1/metrics.jsonl"} <= {*names(cloud, "xla")}

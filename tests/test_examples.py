"""Examples that need data which nobody may hand on: with a small set of the same shape."""

import importlib.util
import io
import json
import os
import re
import shutil
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import commit, wait_for
from machine.test_cluster import BORROW_TORCH

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


class Server(BaseHTTPRequestHandler):
    """Cloud Storage for one object, and a cache that breaks in the middle of it."""

    content = os.urandom(3_000_000)
    asked: list[str] = []

    def do_GET(self):
        begin = int(self.headers.get("Range", "bytes=0-")[6:-1])
        is_cache = self.path.startswith("/cache/")
        self.asked.append(f"{'cache' if is_cache else 'storage'} {begin}")
        self.send_response(206 if begin else 200)
        self.send_header("x-goog-stored-content-length", str(len(self.content)))
        self.send_header("Content-Length", str(len(self.content) - begin))
        self.end_headers()
        self.wfile.write(self.content[begin:][: 1_500_000 if is_cache else None])
        self.close_connection = True

    def log_message(self, *words):
        pass


@pytest.mark.slow
def test_a_stream_goes_on_from_the_bucket_where_the_cache_breaks(monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("webdataset")
    import requests

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    monkeypatch.setenv("BERG_CACHE_URL", f"{url}/cache")
    place = EXAMPLES / "webdataset/train.py"
    spec = importlib.util.spec_from_file_location("webdataset_train", place)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr(example.google.auth, "default", lambda **_: (None, "project"))
    monkeypatch.setattr(example, "AuthorizedSession", lambda _: requests.Session())
    bucket = example.Bucket("shards")
    with bucket.open("train-000.tar") as stream:
        assert stream.read() == Server.content
    assert bucket.counts == [1, 0, len(Server.content)]
    first, second = Server.asked
    assert first == "cache 0" and second.startswith("storage ") and second != "storage 0"
    server.shutdown()


def copy(berg, example: str, *packages: str) -> list[str]:
    """Bring an example to the repo, and what it imports to its machines; return the options for it."""
    found = [pytest.importorskip(each) for each in packages]
    site = Path(found[0].__file__).parent.parent
    for path in (EXAMPLES / example).iterdir():
        if path.suffix == ".py":
            shutil.copy(path, berg.repo)
    (berg.repo / "borrow.sh").write_text(BORROW_TORCH.format(borrowed=site))
    return ["-g", "0", "--install-script", "borrow.sh", "--wait"]


EPOCHS = 150
GOING_ON = re.compile(r"Going on after epoch (\d+)$", re.M)


def wait_for_epoch(berg, name: str, epoch: int) -> None:
    wait_for(
        lambda: f'"epoch": {epoch}, ' in berg.log(name), 150, f"epoch {epoch} in {berg.log(name)}"
    )


@pytest.mark.slow
def test_training_on_spot_machines_goes_on_from_its_checkpoint(berg, cloud):
    """Google takes one of three machines twice."""
    options = copy(berg, "torch_ddp", "torch", "sklearn")[:-1]
    options += ["--env", "OMP_NUM_THREADS=1"]  # all share one computer's cores
    command = f"torchrun train.py --epochs={EPOCHS}"
    done = berg("run", "-n", "taken", "-m", "3", "--spot", "--each", *options, command)
    assert done.returncode == 0, done.stderr
    for attempt in (1, 2):
        if attempt == 2:
            wait_for(lambda: GOING_ON.search(berg.log("taken")), 120, "the second attempt")
        begun = int((GOING_ON.findall(berg.log("taken")) or ["0"])[-1])
        wait_for_epoch(berg, "taken", begun + 2)
        cloud.call("POST", "/_berg/instances/taken-1/preempt", {"grace": 20})
    wait_for(lambda: berg.state("taken")["finished_at"], 240, "the end")
    state, log = berg.state("taken"), berg.log("taken")
    assert (state["state"], state["attempt"], state["restarts"]) == ("SUCCEEDED", 3, 2), (
        state,
        log,
    )
    lines = berg.objects("berg_results/taken/")["berg_results/taken/metrics.jsonl"].splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["epoch"], row["processes"]) for row in rows] == [
        (epoch, 3) for epoch in range(1, EPOCHS + 1)
    ]
    assert rows[-1]["test_accuracy"] > 0.9
    first, second = map(int, GOING_ON.findall(log))
    assert 2 <= first < second < EPOCHS, log
    trained = re.findall(r'"epoch": (\d+), "processes"', log)
    assert len(trained) <= EPOCHS + 2, "what the checkpoint had was not trained again"


@pytest.mark.slow
def test_each_worker_logs_a_run_of_one_group_to_weights_and_biases(berg):
    options = copy(berg, "torch_ddp", "torch", "wandb")
    command = "torchrun train.py --epochs=1 --wandb-run-group=go-sdk-1"
    done = berg("run", "-n", "group", "-m", "2", "--each", *options, command)
    assert done.returncode == 0, done.stderr + berg.log("group")
    found = berg.objects("berg_results/group/")
    runs = [found[name] for name in found if "/offline-run-" in name and name.endswith(".wandb")]
    assert len(runs) == 2 and all(b"go-sdk-1" in content for content in runs)
    assert {rank for rank in (b"go-sdk-1-0", b"go-sdk-1-1") for run in runs if rank in run} == {
        b"go-sdk-1-0",
        b"go-sdk-1-1",
    }


@pytest.mark.slow
def test_digits_are_logged_to_weights_and_biases(berg):
    options = copy(berg, "wandb_digits", "sklearn", "wandb")
    done = berg("run", "-n", "logged", *options, "python train.py --epochs=2")
    assert done.returncode == 0, done.stderr + berg.log("logged")
    found = berg.objects("berg_results/logged/")
    runs = [found[name] for name in found if "/offline-run-" in name and name.endswith(".wandb")]
    (run,) = runs
    assert b"berg-digits" in run and "berg_results/logged/model.joblib" in found


@pytest.mark.slow
def test_horovod_averages_over_two_machines(berg):
    options = copy(berg, "horovod", "torch", "horovod")
    pytest.importorskip("horovod.torch.mpi_ops")
    if not shutil.which("mpirun") or os.geteuid():
        pytest.skip("takes root and openmpi-bin")
    command = "mpi --mpi-procs-per-machine 1 python train.py --epochs=3"
    done = berg("run", "-n", "hvd", "-m", "2", "-c", "1", *options, command)
    assert done.returncode == 0, done.stderr + berg.log("hvd")
    lines = berg.objects("berg_results/hvd/")["berg_results/hvd/metrics.jsonl"].splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["epoch"], row["processes"]) for row in rows] == [(1, 2), (2, 2), (3, 2)]
    assert rows[-1]["test_accuracy"] > 0.8 and "2 processes on hvd-0 hvd-1" in berg.log("hvd")


SMALL_SETUP = """
from setuptools import setup
setup(name="horovod", version="0.28.1", py_modules=["small_horovod"],
      entry_points={"console_scripts": ["horovodrun=small_horovod:main"]})
"""
SMALL_MODULE = """
def main():
    print("small Horovod")
"""


def write_wheel(folder: Path, name: str) -> None:
    """An empty package, for a machine whose pip has no index."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        about = f"{name}-1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.mark.slow
def test_the_script_for_horovod_makes_an_image(berg):
    """With a source of the same shape that needs no minutes: what is built is not tried here."""
    for name in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
        (berg.repo / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (berg.repo / "source" / name).write_text("set(CMAKE_CXX_STANDARD 14)\n")
    modules = berg.repo / "source/cmake/Modules/FindPytorch.cmake"
    modules.parent.mkdir(parents=True)
    modules.write_text("string(TOUPPER x Pytorch_CUDA)\n")
    (berg.repo / "source/setup.py").write_text(SMALL_SETUP)
    (berg.repo / "source/small_horovod.py").write_text(SMALL_MODULE)
    shutil.copy(EXAMPLES.parent / "berg/machine/horovod.sh", berg.repo / "setup.sh")
    (berg.repo / "requirements.txt").write_text("packaging\n")
    (berg.repo / "image.sh").write_text(
        "export PIP_FIND_LINKS=$PWD/wheels HOROVOD_SOURCE=$PWD/source\nbash -e setup.sh\n"
    )
    for name in ("cloudpickle", "packaging", "psutil", "pyyaml", "wheel"):
        write_wheel(berg.repo / "wheels", name)
    commit(berg.repo)
    family = "hvd" + berg.bucket_name[-12:].strip("-")
    made = berg("image", "create", "--family", family, "--install-script", "image.sh", "--default")
    name = made.stdout.strip()
    try:
        assert made.returncode == 0, made.stderr
        ran = berg("run", "-g", "0", "-n", "booted", "--wait", "horovodrun --check-build")
        assert ran.returncode == 0, ran.stderr + berg.log("booted")
        assert "\nsmall Horovod\n" in berg.log("booted")
    finally:
        if name:
            berg("image", "delete", "-y", name)


@pytest.mark.slow
def test_pytorch_runs_on_every_worker_of_a_slice(berg):
    """With the CPU as XLA's device, of which each process has its own; torch_xla wants a torch of
    its own, which TORCH_XLA_PYTHON has.
    """
    python = os.environ.get("TORCH_XLA_PYTHON")
    if not python:
        pytest.skip("TORCH_XLA_PYTHON names no python with torch_xla 2.9.0: make examples XLA=1")
    shutil.copy(EXAMPLES / "tpu_torch/train.py", berg.repo)
    told = "TPU_SKIP_MDS_QUERY=1 TPU_ACCELERATOR_TYPE=v5p-16 TPU_PROCESS_BOUNDS=1,1,2 "
    told += "TPU_CHIPS_PER_PROCESS_BOUNDS=2,2,1 PJRT_DEVICE=CPU"
    command = f"{told} {python} train.py --epochs=2 --logdir=$BERG_RESULTS_DIR/$BERG_NODE_RANK"
    done = berg("run", "-n", "xla", "--tpu", "v5p-2x2x2", "--wait", command)
    assert done.returncode == 0, done.stderr + berg.log("xla")
    for rank in range(2):
        lines = berg.objects("berg_results/xla/")[f"berg_results/xla/{rank}/metrics.jsonl"]
        rows = [json.loads(line) for line in lines.splitlines()]
        assert [row["epoch"] for row in rows] == [1, 2] and rows[1]["test_accuracy"] > 0.8

"""The page of the four documents that berg was made for: its commands do what they say.

Every `berg run` and `berg devbox` of docs/seeds.md is planned on the embedded cloud, and those that
only look are run. What a row means by NAME or IMAGE stands here; other tests run such jobs.
"""

import json
import re
import shlex
from pathlib import Path

import pytest
from local_kube import install_kueue
from pods import cluster

PAGE = Path(__file__).parent.parent / "docs/seeds.md"
IMAGE = "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime"
POOLS = ({"gpu_type": "v100", "num_gpus": 8}, {"gpu_type": "t4", "num_gpus": 2}, {"tpu": "v5e-4x4"})
LOOKS = ("berg config", "berg list", "berg top", "berg cluster status")


def commands(*begin: str) -> list[list[str]]:
    """The words of the page's commands that begin like one of these, each command once."""
    found = dict.fromkeys(re.findall(r"`(berg [^`]+)`", PAGE.read_text()))
    return [shlex.split(text)[1:] for text in found if text.startswith(begin)]


def plans(in_cluster: bool) -> list[list[str]]:
    """The page's jobs and devboxes, on machines or in a cluster, with what only shows their plan."""
    found = [words for words in commands("berg run ", "berg devbox") if "--resume" not in words]
    found = [words for words in found if ("--cluster" in words) == in_cluster]
    there = {"IMAGE": IMAGE, "gke-dist": "train", "chips": "train"}
    return [
        [
            words[0],
            "--dry-run",
            "--json",
            *(there.get(word, word) for word in words[1:] if word != "--dry-run"),
        ]
        for words in found
    ]


def check(berg, words: list[str], **env: str) -> str:
    done = berg(*words, **env)
    assert done.returncode == 0 and "Traceback" not in done.stderr, (words, done.stderr)
    return done.stdout + done.stderr


@pytest.fixture
def data(berg, cloud, tmp_path):
    """The sets of the page: two that were pushed, and one in a bucket of somebody else's."""
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train-000.tar").write_bytes(b"x")
    for name in ("imagenet", "tiny-imagenet"):
        check(berg, ["data", "push", str(folder), name])
    url = f"{cloud.url}/storage/v1/b"
    cloud.session.post(url, params={"project": "berg-local"}, json={"name": "other-bucket"})
    upload = f"{cloud.url}/upload/storage/v1/b/other-bucket/o"
    cloud.session.post(upload, params={"uploadType": "media", "name": "imagenet/a"}, data=b"x")
    yield
    cloud.session.delete(f"{url}/other-bucket/o/imagenet%2Fa")
    cloud.session.delete(f"{url}/other-bucket")


def test_the_page_has_commands():
    assert len(plans(in_cluster=False)) > 10 and len(plans(in_cluster=True)) > 5


@pytest.mark.slow
def test_jobs_and_devboxes_on_machines_are_planned(berg, data):
    for words in plans(in_cluster=False):
        assert "machine" in check(berg, words), words


def test_what_only_looks(berg):
    for words in commands(*LOOKS):
        if not {"train", "NAME"} & {*words}:
            check(berg, words)


def test_the_defaults_of_the_page_are_a_devbox_of_cloud_bergs(berg):
    """Four P100, and an image whose driver finds them."""
    for words in commands("berg config set"):
        check(berg, words)
    plan = berg("devbox", "--dry-run", "--json")
    assert plan.returncode == 0, plan.stderr
    request = json.loads(plan.stdout)["request"]
    (gpus,) = request["guestAccelerators"]
    assert gpus["acceleratorType"].endswith("/nvidia-tesla-p100") and gpus["acceleratorCount"] == 4
    assert "/common-cu124-" in request["disks"][0]["initializeParams"]["sourceImage"]


@pytest.mark.slow
def test_jobs_and_devboxes_in_clusters_are_planned(berg, cloud, tmp_path):
    (berg.repo / "pod.yaml").write_text("metadata: {annotations: {team: a}}\n")
    with cluster(cloud, "train", tmp_path, *POOLS) as kube:
        install_kueue(kube, cpu="64", memory="256Gi", **{"nvidia.com/gpu": "8"})
        for words in plans(in_cluster=True):
            assert "Job" in check(berg, words, WANDB_API_KEY="k"), words
        assert "v100" in check(berg, ["cluster", "status", "train"])

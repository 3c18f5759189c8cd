"""Commands in containers, by a stand-in for docker."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import docker
import pytest
from conftest import Cloud, commit, until
from inside import job_of, plan_of, run_of

from berg import google
from berg.features import docker as features_docker

TRAIN = """\
import os, signal, sys, time
from pathlib import Path

results = Path(os.environ["BERG_RESULTS_DIR"])
signal.signal(signal.SIGTERM, lambda *_: (results / "saved").write_text("yes") and sys.exit(5))
told = [os.environ.get(name) for name in ("KEY", "LR", "FROM_IMAGE", "VIRTUAL_ENV", "PATH")]
(results / "told").write_text(repr((told, os.getcwd())))
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def boxed(project: Path) -> Path:
    """A repository that brings its machines a docker."""
    shutil.copy(docker.__file__, project / "docker.py")
    commit(project, {"train.py": TRAIN})
    return project


@pytest.mark.slow
def test_a_command_runs_in_a_container_and_hears_of_its_end(cloud: Cloud, boxed: Path) -> None:
    words = ["-g", "0", "-n", "boxed", "--docker", docker.IMAGE, "--install", docker.INSTALL]
    words += ["--env", "LR=0.1", "--secret", "KEY", "echo begun; python3 train.py 600 3"]
    assert cloud.run("run", *words, cwd=boxed, KEY="very secret").code == 0
    until(lambda: cloud.read("berg_results/boxed/told"))
    told = cloud.read("berg_results/boxed/told")
    path = docker.OF_THE_IMAGE["PATH"]
    assert told.decode() == repr((["very secret", "0.1", "yes", None, path], "/root/code/proj"))
    assert cloud.run("kill", "boxed").code == 0
    assert cloud.read("berg_results/boxed/saved") == b"yes", cloud.log("boxed")
    assert "begun\n" in cloud.log("boxed") and "very secret" not in cloud.log("boxed")


@pytest.fixture(scope="module")
def image(cloud: Cloud) -> str:
    """The name of an image in the embedded registry, to which tests push."""
    repository = "/artifactregistry/v1/projects/berg-local/locations/us-central1/repositories"
    cloud.call("POST", f"{repository}?repositoryId=berg", {"format": "DOCKER"})
    return f"{cloud.config.endpoint.removeprefix('http://')}/berg-local/berg/trainer"


def push(cloud: Cloud, image: str, tag: str, text: str) -> str:
    """Give a tag another image; return its digest."""
    session = google.session(cloud.config.endpoint, cloud.config.credentials)
    host, _, name = image.partition("/")
    base, kind = f"http://{host}/v2/{name}", "application/vnd.oci.image.manifest.v1+json"
    layers = []
    for content in (b"{}", text.encode()):
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        sent = session.post(f"{base}/blobs/uploads/?digest={digest}", data=content)
        assert sent.status_code == 201, sent.text
        layers.append({"mediaType": "x", "digest": digest, "size": len(content)})
    body = {"schemaVersion": 2, "mediaType": kind, "config": layers[0], "layers": layers[1:]}
    url, headers = f"{base}/manifests/{tag}", {"Content-Type": kind}
    sent = session.put(url, data=json.dumps(body), headers=headers)
    assert sent.status_code == 201, sent.text
    return str(sent.headers["Docker-Content-Digest"])


@pytest.mark.slow
def test_machines_pull_the_image_that_the_tag_named_at_the_submit(
    cloud: Cloud, boxed: Path, image: str
) -> None:
    first = push(cloud, image, "1", "first")
    words = ["--docker", f"{image}:1", "--install", docker.INSTALL, "cat /root/docker.jsonl"]
    done = cloud.run("run", "-g", "0", "-n", "pins", *words, cwd=boxed)
    assert f"{image}:1 ({first[:19]}…)" in done.err and done.code == 0, done.err
    push(cloud, image, "1", "second")
    assert cloud.run("wait", "pins").code == 0, cloud.log("pins")
    assert f'"pull", "--quiet", "{image}:1@{first}"' in cloud.log("pins")
    done = cloud.run("rerun", "pins", "--dry-run", cwd=boxed)
    assert f"({first[:19]}…)" in done.out, done.out


def test_what_has_no_container_is_refused(cloud: Cloud, project: Path) -> None:
    for words, reason in [
        (["run", "--docker", "Bad Image", "true"], "is no image"),
        (["devbox", "--docker", docker.IMAGE], "no command to run"),
    ]:
        cloud.fails(*words, "-g", "0", "--dry-run", says=reason, cwd=project)


@pytest.mark.skipif(not shutil.which("docker"), reason="no docker whose help could be read")
def test_docker_has_the_options_that_it_is_given() -> None:
    shown = subprocess.run(["docker", "run", "--help"], capture_output=True, text=True).stdout
    source = Path(docker.__file__).parents[1] / "berg/features/docker.py"
    given = re.findall(r'"(--[a-z-]+)', source.read_text().partition("def words")[2])
    assert {*given} <= {*re.findall(r"--[a-z-]+", shown)}


@pytest.mark.parametrize(
    ("about", "group", "given", "missing"),
    [
        ({}, None, ["--init", "--env=TINI_KILL_PROCESS_GROUP=1"], ["--gpus", "--cgroup-parent"]),
        ({"gpus": 2, "gpu_type": "t4"}, None, ["--gpus=all"], []),
        ({}, features_docker.CGROUPS / "a/berg-x",
         ["--cgroup-parent=/a/berg-x", "--sig-proxy=false"], ["--init"]),
    ],
)  # fmt: skip
def test_what_a_container_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    about: Any, group: Path | None, given: list[str], missing: list[str],
) -> None:  # fmt: skip
    if group:
        monkeypatch.setattr(features_docker, "CGROUPS", tmp_path)
        (tmp_path / "cgroup.controllers").touch()
        group = tmp_path / group.relative_to("/sys/fs/cgroup")
    job = job_of("given", "python t.py", env={"PATH_TO": "1", "HOME": "/h"}, **about)
    run = run_of(None, tmp_path, job)
    run.command.group = group
    run.words = ["bash", "-o", "pipefail", "-c", "python t.py"]
    run.variables = {"LR": "secret value", "PATH": "/x", "VIRTUAL_ENV": "/v", "HOME": "/root",
                     "LD_LIBRARY_PATH": "/usr/local/my lib"}  # fmt: skip
    run.folders, run.container = [Path("/opt/mnist"), Path("/root/data")], ["--device=/dev/x"]
    made = features_docker.words(run, "python:3.12")
    assert made[:4] == ["docker", "run", "--rm", "--pull=never"]
    options, rest = made[: made.index("python:3.12")], made[made.index("python:3.12") + 1 :]
    assert {*given, "--network=host", "--ipc=host", "--device=/dev/x"} <= {*options}
    assert not [each for each in options for name in missing if each.startswith(name)]
    assert "--entrypoint=bash" in options and "--workdir=/root/code/proj" in options
    assert [each for each in options if each.startswith("--env=") and "TINI" not in each] == [
        "--env=HOME", "--env=LR", "--env=PATH_TO",  # names alone; of the image's own the user's
    ]  # fmt: skip
    folders = [each.split("=")[1].split(":")[0] for each in options if "--volume" in each]
    assert folders == [
        "/root/code", "/root/berg_results", "/root/data", "/root/scratch", "/opt/mnist",
    ]  # fmt: skip
    assert rest[:3] == ["-o", "pipefail", "-c"]
    lines = rest[3].splitlines()
    assert lines[0].startswith("export LD_LIBRARY_PATH='/usr/local/my lib'${LD_LIBRARY_PATH:+:")
    assert lines[1:] == ["trap 'exit 143' TERM", "python t.py"]
    assert "secret value" not in run.log.read_text()


@pytest.mark.parametrize(
    ("image", "is_one"),
    [
        ("python:3.12", True), ("ghcr.io/a/b-c:v1", True), ("localhost:5000/x", True),
        (f"a@sha256:{'0' * 64}", True), (f"a@sha256:{'0' * 63}", False), ("Python", False),
        ("--privileged", False), ("a b", False), ("", False),
    ],
)  # fmt: skip
def test_what_can_be_an_image(image: str, is_one: bool) -> None:
    assert bool(features_docker.IMAGE.fullmatch(image)) == is_one


def test_a_registry_is_asked_for_the_digest_of_a_tag(cloud: Cloud, image: str) -> None:
    plan = plan_of(cloud, job_of("tags"))
    for tag, named in (("latest", image), ("dev.1", f"{image}:dev.1")):
        digest = push(cloud, image, tag, tag)
        assert features_docker.pinned(plan, named) == f"{named}@{digest}"
    assert "Careful" not in plan.rows
    assert features_docker.pinned(plan, f"{image}:none") == f"{image}:none"
    assert "as its tag is then" in plan.rows["Careful"] and "404" in plan.rows["Careful"]
    assert features_docker.pinned(plan, "ghcr.io/a/b") == "ghcr.io/a/b"

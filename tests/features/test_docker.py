"""Commands in containers, by a stand-in for docker."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import docker
import pytest
import requests
from conftest import Cloud, commit, until
from inside import job_of, plan_of, run_of, stand_ins

from berg import google
from berg.config import Config
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


@pytest.mark.skipif(not shutil.which("docker"), reason="no docker whose help could be read")
def test_docker_has_the_options_that_it_is_given() -> None:
    shown = subprocess.run(["docker", "run", "--help"], capture_output=True, text=True).stdout
    source = Path(docker.__file__).parents[1] / "berg/features/docker.py"
    given = re.findall(r'"(--[a-z-]+)', source.read_text().partition("def words")[2])
    assert {*given} <= {*re.findall(r"--[a-z-]+", shown)}


@pytest.mark.parametrize(
    ("about", "group", "given"),
    [
        ({}, None, ["--init", "--env=TINI_KILL_PROCESS_GROUP=1"]),
        ({"gpus": 2, "gpu_type": "t4"}, None, ["--init", "--env=TINI_KILL_PROCESS_GROUP=1"]),
        ({}, features_docker.CGROUPS / "a/berg-x",
         ["--cgroup-parent=/a/berg-x", "--sig-proxy=false"]),
    ],
)  # fmt: skip
def test_what_a_container_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    about: Any, group: Path | None, given: list[str],
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
    folders = ["code", "berg_results", "data", "scratch"]
    volumes = [*(f"/root/{folder}" for folder in folders), "/opt/mnist"]
    script = "export LD_LIBRARY_PATH='/usr/local/my lib'${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    assert features_docker.words(run, "python:3.12") == [
        "docker", "run", "--rm", "--pull=never", "--name=berg-command", "--entrypoint=bash",
        "--network=host", "--ipc=host", "--ulimit=memlock=-1", "--ulimit=nofile=1048576",
        *["--gpus=all"] * bool(about), "--device=/dev/x", *given,
        *(f"--volume={place}:{place}" for place in volumes),
        "--env=HOME", "--env=LR", "--env=PATH_TO",  # names alone; of the image's own the user's
        "--workdir=/root/code/proj", "python:3.12", "-o", "pipefail", "-c",
        f"{script}\ntrap 'exit 143' TERM\npython t.py",
    ]  # fmt: skip
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
    for other in (f"{image}:none", "ghcr.io/a/b"):
        assert features_docker.pinned(plan, other) == other


TOKEN = "berg.features.docker.token"
HUB = "https://registry-1.docker.io/v2/"
DIGEST = f"sha256:{'0' * 64}"
GIVEN = {"timeout": (5, 10), "allow_redirects": False}  # else another host would hear the token


def said(code: int, **headers: str) -> SimpleNamespace:
    return SimpleNamespace(ok=code == 200, status_code=code, headers=headers)


RIGHT = said(200, **{"Docker-Content-Digest": DIGEST})
ASKS, OPEN = (
    said(401, **{"WWW-Authenticate": f'Bearer realm="{scheme}://auth.docker.io/token",service="s"'})
    for scheme in ("https", "http")
)


@pytest.mark.parametrize(
    ("image", "url", "answers", "token", "says"),
    [
        ("python", f"{HUB}library/python/manifests/latest", [ASKS, RIGHT], "own", ""),
        ("me/x:1", f"{HUB}me/x/manifests/1", [ASKS, RIGHT], "own", ""),
        ("me/x", f"{HUB}me/x/manifests/latest", [OPEN], "", "registry-1.docker.io answers 401"),
        ("ghcr.io/x:1", "https://ghcr.io/v2/x/manifests/1", [said(404)], "", "ghcr.io answers 404"),
        ("us-docker.pkg.dev/p/x:1", "https://us-docker.pkg.dev/v2/p/x/manifests/1", [RIGHT],
         "google's", ""),
        ("gcr.io/x", "https://gcr.io/v2/x/manifests/latest", [said(200)], "google's",
         "gcr.io names no digest"),
        ("gcr.io/x", "https://gcr.io/v2/x/manifests/latest", requests.ConnectionError(),
         "google's", "gcr.io gives no answer (ConnectionError)"),
    ],
)  # fmt: skip
def test_googles_token_is_for_its_registries_and_others_give_their_own(
    monkeypatch: pytest.MonkeyPatch,
    image: str, url: str, answers: Any, token: str, says: str,
) -> None:  # fmt: skip
    head, get = Mock(side_effect=answers), Mock()
    get.return_value.json.return_value = {"token": "own"}
    own = {"requests.head": head, "requests.get": get, TOKEN: lambda _: "google's"}
    stand_ins(monkeypatch, own)
    plan = plan_of(None, job_of("asks"))
    plan.config = Config(project="p", bucket="b")
    assert features_docker.pinned(plan, image) == (image if says else f"{image}@{DIGEST}")
    assert plan.rows.get("Careful", "").partition("as its tag is then: ")[2] == says
    headers = {"Accept": features_docker.MANIFESTS} | (
        {"Authorization": f"Bearer {token}"} if token else {}
    )
    assert head.call_args_list == [call(url, headers=headers, **GIVEN)] * (1 + (token == "own"))
    auth = call("https://auth.docker.io/token", params={"service": "s"}, **GIVEN)
    assert get.call_args_list == [auth] * (token == "own")


RESTARTS = ["nvidia-ctk runtime configure --runtime=docker", "systemctl restart docker"]


@pytest.mark.parametrize(
    ("gpus", "lacking", "image", "asked"),
    [
        (0, "docker", "ghcr.io/a/b", []),
        (1, "", "gcr.io/a/b", ["login -u oauth2accesstoken --password-stdin gcr.io"]),
        (1, "docker", "docker.io/a/b", RESTARTS),
        (1, "nvidia-ctk", "python", RESTARTS),
    ],
)
def test_a_machine_without_docker_gets_it_and_logs_in_where_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    gpus: int, lacking: str, image: str, asked: list[str],
) -> None:  # fmt: skip
    done, run = Mock(), run_of(None, tmp_path, job_of("lacks", gpus=gpus))
    done.return_value.returncode = 0
    own = {"provide": lambda _, program, *__: program == lacking, "execute": done}
    known = {f"berg.install.{name}": value for name, value in own.items()}
    stand_ins(monkeypatch, {**known, "subprocess.run": done, TOKEN: lambda _: "google's"})
    features_docker.provide(run)
    features_docker.pull(run, image)
    lines = [" ".join(each.args[-1]) for each in done.call_args_list]
    lines = [re.sub(r"^docker --config \S+ ", "", line) for line in lines]
    assert lines == [*asked, f"pull --quiet {image}"]
    assert {"input": "google's"}.items() <= done.call_args_list[
        0
    ].kwargs.items() or "gcr" not in image

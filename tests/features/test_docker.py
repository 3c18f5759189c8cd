"""Commands in containers, by a stand-in for docker."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import docker
import pytest
from conftest import Cloud, commit, until

from berg import google

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
    (project / "train.py").write_text(TRAIN)
    commit(project)
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


def push(cloud: Cloud, image: str, text: str) -> str:
    """Give a tag of the embedded registry another image; return its digest."""
    name, _, tag = image.partition(":")
    session = google.session(cloud.config.endpoint, cloud.config.credentials)
    base, kind = f"{cloud.config.endpoint}/v2/{name}", "application/vnd.oci.image.manifest.v1+json"
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
    cloud: Cloud, boxed: Path
) -> None:
    repository = "/artifactregistry/v1/projects/berg-local/locations/us-central1/repositories"
    made = cloud.call("POST", f"{repository}?repositoryId=berg", {"format": "DOCKER"})
    assert made
    name = "berg-local/berg/trainer:1"
    image = f"{cloud.config.endpoint.removeprefix('http://')}/{name}"
    first = push(cloud, name, "first")
    words = ["--docker", image, "--install", docker.INSTALL, "cat /root/docker.jsonl"]
    done = cloud.run("run", "-g", "0", "-n", "pins", *words, cwd=boxed)
    assert f"{image} ({first[:19]}…)" in done.err and done.code == 0, done.err
    push(cloud, name, "second")
    assert cloud.run("wait", "pins").code == 0, cloud.log("pins")
    assert f'"pull", "--quiet", "{image}@{first}"' in cloud.log("pins")
    done = cloud.run("rerun", "pins", "--dry-run", cwd=boxed)
    assert f"({first[:19]}…)" in done.out, done.out


def test_what_has_no_container_is_refused(cloud: Cloud, project: Path) -> None:
    for words, reason in [
        (["run", "--docker", "Bad Image", "true"], "is no image"),
        (["devbox", "--docker", docker.IMAGE], "no command to run"),
    ]:
        done = cloud.run(*words, "-g", "0", "--dry-run", cwd=project)
        assert done.code == 1 and reason in done.err, done.err


@pytest.mark.skipif(not shutil.which("docker"), reason="no docker whose help could be read")
def test_docker_has_the_options_that_it_is_given() -> None:
    shown = subprocess.run(["docker", "run", "--help"], capture_output=True, text=True).stdout
    source = Path(docker.__file__).parents[1] / "berg/features/docker.py"
    given = re.findall(r'"(--[a-z-]+)', source.read_text().partition("def words")[2])
    assert {*given} <= {*re.findall(r"--[a-z-]+", shown)}

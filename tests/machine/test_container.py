"""Commands in containers: what docker is asked for, and what becomes of its words."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import docker_shim
import pytest
from conftest import commit, wait_for

from berg import BergError
from berg.google import builds
from berg.job import Job
from berg.laptop import launch
from berg.machine import installation
from berg.machine.environment import PROGRAM
from berg.plan import spec_of
from berg.spec import JobSpec

IMAGE = docker_shim.IMAGE
THIS = Job("box", "python train.py", "box", "", "proj", "", "", docker=IMAGE)
TRAIN = """\
import os, signal, sys, time
from pathlib import Path

results = Path(os.environ["BERG_RESULTS_DIR"])
signal.signal(signal.SIGTERM, lambda *_: (results / "saved").write_text("yes") and sys.exit(5))
told = {name: os.environ.get(name) for name in ("KEY", "LR", "FROM_IMAGE", "PIP_ROOT_USER_ACTION")}
(results / "told").write_text(repr((told, os.getcwd(), os.environ["PATH"])))
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


def test_a_container_shares_what_the_command_needs():
    data = [{"name": "mnist", "path": "/root/data/mnist"}]
    this = Job(**{**vars(THIS), "gpus_per_machine": 2, "data": data})
    words = installation.container_command(this, Path("/root/code/proj/sub"), ["BERG_JOB", "LR"])
    assert words[:3] == ["docker", "run", "--rm"]
    options, (image, *shell, command) = words[2:-5], words[-5:]
    assert (image, *shell) == (IMAGE, "-o", "pipefail", "-c")
    trap, path, run = command.split("\n")
    assert (trap, run) == ("trap 'exit 143' TERM", "python train.py")
    assert path == f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}"{PROGRAM}'
    volumes = {each for each in options if each.startswith("--volume=")}
    shared = ("/root/code", "/root/berg_results", "/root/data/mnist", str(PROGRAM))
    assert volumes == {f"--volume={each}:{each}" for each in shared}
    assert {"--gpus=all", "--network=host", "--ipc=host", "--init"} <= {*options}
    assert {"--env=BERG_JOB", "--env=LR", "--workdir=/root/code/proj/sub"} <= {*options}
    assert "--privileged" not in options
    assert not [
        each for each in installation.container_command(THIS, Path("/"), []) if "gpus" in each
    ]
    assert "--privileged" in installation.container_command(
        Job(**{**vars(THIS), "tpu": "v6e-1x1"}), Path("/"), []
    )


def test_a_container_gets_no_variables_of_the_machine_s_own(monkeypatch):
    for name in ("OF_THE_UNIT", "OF_BOTH", "BERG_UNIT"):
        monkeypatch.setenv(name, "1")
    machine = ["OF_THE_UNIT", "OF_BOTH", "PATH", "HOME", "PIP_BREAK_SYSTEM_PACKAGES"]
    names = installation.names_in_container([*machine, "BERG_JOB", "LR"], {"OF_BOTH", "LR"})
    assert names == ["BERG_JOB", "LR", "OF_BOTH"]


@pytest.mark.skipif(not shutil.which("docker"), reason="no docker here whose help could be read")
def test_docker_has_the_options_that_it_is_given():
    shown = subprocess.run(["docker", "run", "--help"], capture_output=True, text=True).stdout
    known = set(re.findall(r"--[a-z-]+", shown))
    this = Job(**{**vars(THIS), "gpus_per_machine": 1, "tpu": "v6e-1x1"})
    given = installation.container_command(this, Path("/"), ["LR"])
    assert {each.partition("=")[0] for each in given if each.startswith("--")} <= known


@pytest.mark.parametrize(
    ("image", "host"),
    [
        ("us-docker.pkg.dev/p/r/trainer:1", "us-docker.pkg.dev"),
        ("gcr.io/p/trainer", "gcr.io"),
        ("eu.gcr.io/p/trainer", "eu.gcr.io"),
        ("python:3.12", ""),
        ("docker.io/library/python", ""),
    ],
)
def test_only_google_s_registries_hear_who_the_machine_is(monkeypatch, image, host):
    heard = []

    def run(words, input, **_):
        heard.append((words[-1], words[-2], input))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(installation.subprocess, "run", run)
    monkeypatch.setattr(installation.boot, "metadata", lambda _: '{"access_token": "secret"}')
    installation.log_in_docker(image, "/tmp/x")
    assert heard == ([(host, "--password-stdin", "secret")] if host else [])


def test_a_refused_login_is_named(monkeypatch):
    refused = SimpleNamespace(returncode=1, stderr="denied: permission\n")
    monkeypatch.setattr(installation.subprocess, "run", lambda *_, **__: refused)
    monkeypatch.setattr(installation.boot, "metadata", lambda _: '{"access_token": "secret"}')
    with pytest.raises(BergError) as error:
        installation.log_in_docker("us-docker.pkg.dev/p/r/trainer:1", "/tmp/x")
    assert error.value.message == "docker could not log in to us-docker.pkg.dev: denied: permission"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"docker": "--privileged"}, "is not an image name"),
        ({"docker": "a b"}, "is not an image name"),
        ({"docker": IMAGE, "cmd": None}, "a devbox has no command"),
        ({"docker": IMAGE, "profile": True}, "has no --profile"),
    ],
)
def test_what_cannot_run_in_a_container_is_refused(options, why):
    with pytest.raises(BergError, match=why):
        JobSpec(**{"cmd": "true", **options}).check()


def install_shim(berg) -> None:
    """Let the machines of a repo's jobs have a docker."""
    shutil.copy(docker_shim.__file__, berg.repo / "docker.py")
    script = '(echo "#!$(command -v python3)"; cat docker.py) > /usr/local/bin/docker.new\n'
    script += (
        "chmod +x /usr/local/bin/docker.new; mv /usr/local/bin/docker.new /usr/local/bin/docker\n"
    )
    (berg.repo / "install.sh").write_text(script)
    (berg.repo / "train.py").write_text(TRAIN)
    commit(berg.repo)


@pytest.mark.slow
def test_a_command_runs_in_a_container_and_hears_of_its_end(berg, tmp_path):
    install_shim(berg)
    (tmp_path / "key").write_text("very secret")
    words = ["-g", "0", "--docker", IMAGE, "--install-script", "install.sh"]
    words += ["--env", "LR=0.1", "--secret", f"KEY={tmp_path}/key"]
    ran = berg("run", *words, "-n", "boxed", "--wait", "echo begun; python3 train.py 0 3")
    assert ran.returncode == 3, ran.stderr
    assert f"Container {IMAGE}" in ran.stderr
    told = berg.objects("berg_results/boxed/told")["berg_results/boxed/told"].decode()
    variables = {
        "KEY": "very secret",
        "LR": "0.1",
        "FROM_IMAGE": "yes",
        "PIP_ROOT_USER_ACTION": None,
    }
    code = f"/root/code/{berg.repo.name}"
    assert told == repr((variables, code, docker_shim.OF_THE_IMAGE["PATH"]))
    log = berg.log("boxed")
    assert f"Pulling {IMAGE}" in log and "begun\n" in log and "very secret" not in log
    path = ".berg/jobs/boxed_metadata.json"
    assert json.loads(berg.objects(path)[path])["docker"] == IMAGE

    again = berg("run", *words, "-n", "ended", "python3 train.py 600 0")
    assert again.returncode == 0, again.stderr
    wait_for(lambda: berg.objects("berg_results/ended/told"), 60)
    assert berg("kill", "ended").returncode == 0
    saved = berg.objects("berg_results/ended/saved")
    assert saved == {"berg_results/ended/saved": b"yes"}, berg.log("ended")


@pytest.mark.slow
def test_an_image_that_is_not_there_and_a_machine_without_docker_are_named(berg):
    install_shim(berg)
    words = ["-g", "0", "--docker", "localhost/other:1", "--install-script", "install.sh", "--wait"]
    missing = berg("run", *words, "-n", "missing", "true")
    assert missing.returncode == 1
    why = "the installation failed with exit code 1: docker pull localhost/other:1"
    assert berg.state("missing")["reason"].startswith(why)
    assert "manifest for localhost/other:1 not found" in berg.log("missing")


def push(cloud, image: str, text: str) -> str:
    """Give a tag of the embedded registry another image; return its digest."""
    base = f"{cloud.url}/v2/{image.partition(':')[0]}"
    kind = "application/vnd.oci.image.manifest.v1+json"
    parts = []
    for content in (b"{}", text.encode()):
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        path = f"{base}/blobs/uploads/?digest={digest}"
        assert cloud.session.post(path, data=content).status_code == 201
        parts.append({"mediaType": "x", "digest": digest, "size": len(content)})
    body = {"schemaVersion": 2, "mediaType": kind, "config": parts[0], "layers": parts[1:]}
    path = f"{base}/manifests/{image.partition(':')[2]}"
    sent = cloud.session.put(path, data=json.dumps(body), headers={"Content-Type": kind})
    assert sent.status_code == 201, sent.text
    return sent.headers["Docker-Content-Digest"]


@pytest.mark.slow
def test_a_tag_that_moves_changes_neither_a_job_that_waits_nor_its_rerun(berg, cloud):
    """The laptop asks the registry once; the machine pulls what was there then."""
    install_shim(berg)
    builds.ensure(cloud.settings(berg.bucket_name))
    berg.allowed.append(400)
    name = "berg-local/berg/trainer:1"
    image = f"{cloud.url.removeprefix('http://')}/{name}"
    words = ["-g", "0", "--docker", image, "--install-script", "install.sh"]
    first = push(cloud, name, "first")
    cloud.call("POST", "/_berg/stockout", {"on": True})
    ran = berg("run", *words, "-n", "waits", "--wait-for-capacity", "cat /root/docker.jsonl")
    assert ran.returncode == 0, ran.stderr
    assert f"{image} ({first[:19]}…)" in ran.stderr
    second = push(cloud, name, "second")
    cloud.call("POST", "/_berg/stockout", {"on": False})
    wait_for(lambda: berg.state("waits")["state"] in ("SUCCEEDED", "FAILED"), 90)
    log = berg.log("waits")
    assert f'"pull", "--quiet", "{image}@{first}"' in log and second not in log
    dry = berg("rerun", "waits", "--dry-run", "--json")
    assert f"{image} ({first[:19]}…)" in dry.stderr + dry.stdout, dry.stderr
    new = berg("run", *words, "--dry-run", "--json", "true")
    assert f"{image} ({second[:19]}…)" in new.stderr + new.stdout, new.stderr


def test_no_registry_is_asked_for_what_a_record_names_by_its_tag(berg, cloud):
    """Who can write the record would choose a host that the laptop asks."""
    job = Job("box", "true", "box", "", "proj", "", "", docker=IMAGE, spec=JobSpec(docker=IMAGE))
    spec = spec_of(job)
    assert (spec.docker, spec.recorded_image) == (IMAGE, IMAGE)
    found = launch.pin_image(cloud.settings(), spec, None, "gce")
    assert found.image == IMAGE and found.lines[1].endswith("its record names no digest")


PACKAGES = {
    "docker.io": ("docker", '#!/bin/sh\nexec python3 -I /root/code/proj/docker.py "$@"\n'),
    "nvidia-container-toolkit": ("nvidia-ctk", '#!/bin/sh\necho nvidia-ctk "$@" >>/root/asked\n'),
}


def serve_packages(berg, *names: str) -> None:
    """Let the machines of a repo's jobs install packages with apt-get from a folder of the repo."""
    shutil.copy(docker_shim.__file__, berg.repo / "docker.py")
    (berg.repo / "debs").mkdir()
    for name in names:
        program, text = PACKAGES[name]
        tree = berg.home / name
        (tree / "DEBIAN").mkdir(parents=True)
        fields = f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\n"
        (tree / "DEBIAN/control").write_text(f"{fields}Description: stands for {name}\n")
        (tree / "usr/bin").mkdir(parents=True)
        (tree / "usr/bin" / program).write_text(text)
        (tree / "usr/bin" / program).chmod(0o755)
        built = berg.repo / f"debs/{name}.deb"
        subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree, built], check=True)
    scan = ["dpkg-scanpackages", "."]
    packages = subprocess.run(scan, cwd=berg.repo / "debs", check=True, capture_output=True).stdout
    (berg.repo / "debs/Packages").write_bytes(packages)
    script = (
        "rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*\n"
        "cp -r debs /srv/debs\n"
        "echo 'deb [trusted=yes] file:/srv/debs ./' >/etc/apt/sources.list\n"
    )
    (berg.repo / "install.sh").write_text(script)
    commit(berg.repo)


needs_dpkg = pytest.mark.skipif(
    not shutil.which("dpkg-scanpackages"), reason="packages are made with dpkg-dev"
)


@pytest.mark.slow
@needs_dpkg
def test_docker_is_installed_on_a_machine_with_tpus_whose_image_has_none(berg):
    serve_packages(berg, "docker.io")
    words = ["--docker", IMAGE, "--install-script", "install.sh", "--wait"]
    ran = berg("run", "--tpu", "v6e-1", "--spot", *words, "-n", "chip", "echo $FROM_IMAGE")
    assert ran.returncode == 0, ran.stderr
    assert "Google's image for TPUs has no docker: apt-get installs docker.io" in ran.stderr
    assert "Installing with apt-get: docker.io" in ran.stderr + berg.log("chip")
    assert "yes\n" in berg.log("chip")


@pytest.mark.slow
@needs_dpkg
def test_with_gpus_nvidia_s_toolkit_is_installed_and_docker_knows_it(berg):
    serve_packages(berg, "docker.io", "nvidia-container-toolkit")
    words = ["--docker", IMAGE, "--install-script", "install.sh", "--wait"]
    ran = berg("run", *words, "-n", "cards", "cat /root/asked")
    assert ran.returncode == 0, ran.stderr
    assert "nvidia-ctk runtime configure --runtime=docker\n" in berg.log("cards")
    assert "docker and NVIDIA's container toolkit: installed with apt-get" in ran.stderr


@pytest.mark.slow
@needs_dpkg
def test_without_nvidia_s_toolkit_the_error_says_where_it_is(berg):
    serve_packages(berg, "docker.io")
    words = ["--docker", IMAGE, "--install-script", "install.sh", "--wait"]
    assert berg("run", *words, "-n", "none", "true").returncode == 1
    reason = berg.state("none")["reason"]
    assert "this machine has no NVIDIA Container Toolkit" in reason
    assert "Unable to locate package nvidia-container-toolkit" in reason
    assert "let --install-script add NVIDIA's package repository" in reason


@pytest.mark.slow
@needs_dpkg
def test_a_machine_on_which_docker_cannot_be_installed_says_what_to_do(berg):
    serve_packages(berg, "nvidia-container-toolkit")
    words = ["-g", "0", "--docker", IMAGE, "--install-script", "install.sh", "--wait"]
    assert berg("run", *words, "-n", "bare", "true").returncode == 1
    reason = berg.state("bare")["reason"]
    assert "this machine has no docker, and apt-get could not install it" in reason
    assert "Give an image that has it (--image), or install it (--install-script)" in reason

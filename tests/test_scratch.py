"""Local SSDs: asked for, mounted at /mnt/scratch, and lost by a stop."""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import docker_shim
import pytest
from machine.test_container import install_shim
from test_ssh import needs_sshd

from berg import BergError
from berg.google import instances, shapes
from berg.job import Machine
from berg.machine import boot, environment, installation
from berg.spec import JobSpec


def why_no_loops() -> str:
    if os.geteuid():
        return "only root makes loop devices"
    try:
        done = subprocess.run(["losetup", "--find"], capture_output=True, text=True)
    except OSError:
        return "there is no losetup"
    return done.stderr.strip()


needs_loops = pytest.mark.skipif(bool(why_no_loops()), reason=why_no_loops() or "-")


def loops() -> str:
    listed = subprocess.run(["losetup", "--list", "--noheadings"], capture_output=True, text=True)
    return "\n".join(line for line in listed.stdout.splitlines() if "/local-ssds/" in line)


@needs_loops
def test_a_job_has_its_local_ssds(berg):
    words = (
        "echo dir=$BERG_SCRATCH_DIR; stat -c mode=%a /mnt/scratch; findmnt -no FSTYPE /mnt/scratch"
    )
    options = ["--machine-type", "g2-standard-24", "--local-ssd", "2", "-n", "fast"]
    made = berg("run", *options, "--wait", words)
    assert made.returncode == 0, made.stderr + berg.log("fast")
    assert "Scratch   750 GB of local SSD at /mnt/scratch" in made.stderr
    log = berg.log("fast")
    assert "dir=/mnt/scratch\nmode=1777\next4\n" in log, log
    if not environment.MDSTAT.exists():
        assert "is the first of 2 local SSDs alone: this kernel has no RAID" in log
    berg("kill", "fast")
    assert "fast" not in loops()


@needs_loops
@needs_sshd
def test_a_stop_loses_them_and_keeps_the_disk(berg, monkeypatch):
    monkeypatch.setenv("HOME", str(berg.home))
    made = berg("devbox", "--machine-type", "a2-ultragpu-1g", "-n", "box")
    assert made.returncode == 0, made.stderr
    assert "stops and keeps its disk, but not /mnt/scratch after" in made.stderr
    files = "echo it >/mnt/scratch/lost; echo it >/opt/kept"
    assert berg("ssh", "box", "--", files).returncode == 0
    asked = berg("stop", "box", input="")
    assert asked.returncode == 1 and "(/mnt/scratch) is lost; its disk is kept" in asked.stderr
    assert berg.machines()["box"]["status"] == "RUNNING"
    assert berg("stop", "-y", "box").returncode == 0
    assert berg("start", "box").returncode == 0
    read = berg("ssh", "box", "--", "findmnt -no FSTYPE /mnt/scratch; ls /mnt/scratch /opt/kept")
    assert read.stdout.splitlines()[0] == "ext4" and "lost\n" not in read.stdout, read.stderr
    assert "/opt/kept" in read.stdout
    assert berg("stop", "--now", "-y", "box").returncode == 0
    assert berg("kill", "-y", "box").returncode == 0


@needs_loops
def test_data_and_docker_s_images_of_a_job_are_there(berg):
    install_shim(berg)
    folder = berg.home / "digits"
    folder.mkdir()
    (folder / "one").write_text("1")
    assert berg("data", "push", str(folder), "digits").returncode == 0
    options = ["--machine-type", "n1-standard-4", "--local-ssd", "1", "--data", "digits"]
    options += ["--docker", docker_shim.IMAGE, "--install-script", "install.sh"]
    words = "findmnt -no SOURCE /root/data; ls /mnt/scratch/berg-data; cat /etc/docker/daemon.json"
    made = berg("run", *options, "-n", "fast", "--wait", words)
    log = berg.log("fast")
    assert made.returncode == 0, made.stderr + log
    assert "/root/data is on the local SSDs" in log and "[/berg-data]\ndigits\n" in log
    assert '{\n    "data-root": "/mnt/scratch/berg-docker"\n}' in log


def a_job(**more) -> SimpleNamespace:
    spec = JobSpec(**more.pop("spec", {}))
    return SimpleNamespace(**{"kind": "job", "on": "", "spec": spec, **more})


@pytest.mark.parametrize(
    "this",
    [
        a_job(kind="devbox"),
        a_job(on="box"),
        a_job(spec={"keep_warm": 600}),
        a_job(spec={"disk_gb": 65536}),
    ],
)
def test_what_must_stay_is_on_the_disk(tmp_path, monkeypatch, this):
    monkeypatch.setattr(environment, "scratch_folder", lambda: tmp_path)
    usage = SimpleNamespace(total=375 * 2**30)
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda _: usage)
    assert environment.scratch_for(a_job()) == tmp_path
    assert environment.scratch_for(this) is None


def test_a_folder_that_holds_anything_is_not_hidden(tmp_path, monkeypatch):
    commands: list[str] = []
    attempt = SimpleNamespace(job=a_job(), say=lambda _: None)
    monkeypatch.setattr(environment, "scratch_for", lambda _: tmp_path)
    monkeypatch.setattr(boot, "execute", lambda *words: commands.append(" ".join(words)))
    own, link, new = (tmp_path / name for name in ("own", "link", "new"))
    own.mkdir()
    (own / "of-the-image").touch()
    link.symlink_to(tmp_path / "elsewhere")
    for each in (own, link, new):
        assert not commands
        monkeypatch.setattr(environment, "place", lambda _, folder=each: folder)
        environment.use_scratch_for_data(attempt)
    assert commands == [f"mount --bind {tmp_path}/berg-data {new}"]


@pytest.mark.parametrize(
    ("has", "before", "after"),
    [
        ("", None, {"data-root": "ROOT"}),
        ("", {"runtimes": {}}, {"runtimes": {}, "data-root": "ROOT"}),
        ("images", {"runtimes": {}}, {"runtimes": {}}),
        ("ps", {}, {}),
        ("", {"data-root": "/mnt/mine"}, {"data-root": "/mnt/mine"}),
        ("images", {"data-root": "ROOT"}, {"data-root": "ROOT"}),
    ],
)
def test_docker_keeps_what_it_has(tmp_path, monkeypatch, has, before, after):
    """It restarts if its folder is there, also after a reboot."""
    root = str(tmp_path / "berg-docker")
    settings = tmp_path / "docker/daemon.json"
    if before is not None:
        settings.parent.mkdir()
        settings.write_text(json.dumps(before).replace("ROOT", root))
    docker = tmp_path / "bin/docker"
    docker.parent.mkdir()
    docker.write_text(f'#!/bin/sh\n[ "$1" != "{has}" ] || echo 1234\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(installation, "DAEMON", settings)
    monkeypatch.setattr(installation, "scratch_for", lambda _: tmp_path)
    ran: list[str] = []
    monkeypatch.setattr(boot, "execute", lambda *words: ran.append(" ".join(words)))
    installation.use_scratch(SimpleNamespace(job=a_job(), say=print))
    assert json.loads(settings.read_text().replace(root, "ROOT")) == after
    assert ran == ["systemctl restart docker"] * (after.get("data-root") == "ROOT")


def test_a_docker_that_does_not_start_with_it_gets_its_settings_back(tmp_path, monkeypatch):
    settings = tmp_path / "daemon.json"
    settings.write_text('{"runtimes": {}}')
    monkeypatch.setattr(installation, "DAEMON", settings)
    monkeypatch.setattr(installation, "scratch_for", lambda _: tmp_path)
    monkeypatch.setattr(installation, "docker_has", lambda *_: False)

    def refuse(*words: str) -> None:
        raise OSError("systemctl restart docker failed: flag and file both say data-root")

    monkeypatch.setattr(boot, "execute", refuse)
    said: list[str] = []
    installation.use_scratch(SimpleNamespace(job=a_job(), say=said.append))
    assert settings.read_text() == '{"runtimes": {}}' and "cannot be on the local SSDs" in said[0]


def test_requests_have_them(berg):
    options = ["--machine-type", "g2-standard-24", "--local-ssd", "2", "--dry-run", "--json"]
    found = json.loads(berg("run", *options, "true").stdout)
    ssds = [each for each in found["request"]["disks"] if each.get("type") == "SCRATCH"]
    assert found["scratch_gb"] == 750 and len(ssds) == 2
    (ssd, _) = ssds
    assert ssd["autoDelete"] and ssd["interface"] == "NVME"
    assert ssd["initializeParams"]["diskType"].startswith("zones/us-central1-")
    several = berg("run", "-m", "2", *options, "true").stdout
    assert several.count('"diskType": "local-ssd"') == 2
    refused = berg("run", *options[:2], "--local-ssd", "3", "--dry-run", "true")
    assert refused.returncode == 1 and "takes 2 of 375 GB" in refused.stderr
    box = json.loads(berg("devbox", *options).stdout)["request"]
    assert box["scheduling"]["onInstanceStopAction"] == {"discardLocalSsd": True}


@pytest.mark.parametrize(
    ("kind", "number", "words"),
    [
        ("a3-megagpu-8g", 4, "comes with 16 local SSDs"),
        ("g4-standard-48", 2, "takes 4 of 375 GB"),
        ("a2-highgpu-2g", 1, "takes 2 or 4 or 8 of 375 GB"),
        ("e2-standard-4", 1, "takes no local SSDs"),
    ],
)
def test_a_wrong_number_is_refused(kind, number, words):
    with pytest.raises(BergError, match=words):
        shapes.with_ssds(shapes.choose(None, None, None, kind), number)


def test_a_t4_has_16_at_most():
    t4 = shapes.choose(1, "t4", None, None)
    assert shapes.with_ssds(t4, 16).scratch == "6 TB"
    with pytest.raises(BergError):
        shapes.with_ssds(t4, 24)
    needs = shapes.quota_needs(shapes.with_ssds(t4, 2), 3, 200, spot=True)
    assert (2250, ["PREEMPTIBLE_LOCAL_SSD_GB"]) in needs


def test_a_machine_that_moves_takes_as_many():
    disks = [{"type": "PERSISTENT"}, {"type": "SCRATCH"}, {"type": "SCRATCH"}]
    box = {"machineType": "zones/z/machineTypes/g2-standard-24", "disks": disks}
    assert instances.shape_of(box).asked_ssds == 2
    box["machineType"] = "zones/z/machineTypes/a2-ultragpu-2g"
    assert instances.shape_of(box).asked_ssds == 0
    assert instances.loses_scratch(Machine("m", "z", machine_type="n1-standard-4", local_ssds=1))


@pytest.fixture
def machine():
    return SimpleNamespace(said=[], say=lambda text: machine_said.append(text))


machine_said: list[str] = []


@pytest.mark.parametrize(
    ("held", "ran"),
    [
        (["", ""], "mdadm --create /dev/md/berg-scratch"),
        (["linux_raid_member", "linux_raid_member"], "mdadm --assemble /dev/md/berg-scratch"),
        (["ext4", ""], ""),
        (["", "xfs"], None),
    ],
)
def test_nothing_that_a_disk_holds_is_overwritten(tmp_path, monkeypatch, machine, held, ran):
    disks = [tmp_path / "0", tmp_path / "1"]
    commands: list[str] = []
    monkeypatch.setattr(environment, "content_of", lambda disk: held[disks.index(disk)])
    monkeypatch.setattr(environment, "why_no_raid", lambda _: "")
    monkeypatch.setattr(boot, "execute", lambda *words: commands.append(" ".join(words)))
    inactive = SimpleNamespace(returncode=1)
    monkeypatch.setattr(environment.subprocess, "run", lambda *_, **__: inactive)
    if ran is None:
        with pytest.raises(OSError, match="holds xfs already"):
            environment.scratch_device(machine, disks)
        return
    device = environment.scratch_device(machine, disks)
    assert device == (environment.ARRAY if ran else disks[0])
    assert len(commands) == bool(ran) and all(each.startswith(ran) for each in commands)


def test_blkid_says_what_a_disk_holds(tmp_path):
    disk = tmp_path / "disk"
    disk.touch()
    os.truncate(disk, 64 << 20)
    assert environment.content_of(disk) == ""
    subprocess.run(["mkfs.ext4", "-q", str(disk)], check=True)
    assert environment.content_of(disk) == "ext4"


def test_a_warm_machine_empties_it(tmp_path, monkeypatch):
    """The next job mounts the same disks."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "shards/deep").mkdir(parents=True)
    (tmp_path / "shards/deep/0").write_text("of the job before")
    (tmp_path / "link").symlink_to("/etc")
    monkeypatch.setattr(environment, "scratch_folder", lambda: tmp_path)
    environment.empty_scratch()
    assert [each.name for each in tmp_path.iterdir()] == ["lost+found"] and Path("/etc").is_dir()
    monkeypatch.setattr(environment, "scratch_folder", lambda: None)
    environment.empty_scratch()

"""Folders of buckets that jobs see as files, read only."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import docker_shim
import gcsfuse
import pytest
from conftest import Berg

from berg import BergError, config
from berg.google import data
from berg.machine import environment as on_machine

LOOK = """cd /root/data/mnist && cat 'train set/a.txt' b.txt && ls -1
touch here 2>/dev/null && echo written || echo refused
cp /root/berg/mounts/root/data/mnist.log $BERG_RESULTS_DIR/asked"""


@pytest.fixture
def pushed(berg: Berg, tmp_path) -> Berg:
    """A small data set in the bucket."""
    folder = tmp_path / "mnist"
    (folder / "train set").mkdir(parents=True)
    (folder / "train set/a.txt").write_text("grüße\n")
    (folder / "b.txt").write_text("b\n")
    done = berg("data", "push", str(folder), "mnist")
    assert done.returncode == 0, done.stderr
    return berg


def test_a_command_reads_a_data_set_from_the_bucket(pushed, repo):
    wishes = gcsfuse.bring(repo)
    done = pushed("run", "-n", "reads", "--wait", "--mount", "mnist", *wishes, LOOK)
    assert done.returncode == 0, done.stderr + pushed.log("reads")
    assert "mnist: 2 files, " in done.stderr and "--data copies it" in done.stderr
    assert pushed.log("reads").splitlines()[-6:-1] == [
        "grüße",
        "b",
        "b.txt",
        "train set",
        "refused",
    ]
    asked = json.loads(pushed.objects("berg_results/reads/")["berg_results/reads/asked"])
    options = dict(each.removeprefix("--").partition("=")[::2] for each in asked[1:-2])
    assert (options["profile"], options["o"]) == ("aiml-training", "ro")
    assert options["only-dir"] == "data/mnist" and int(options["file-cache-max-size-mb"]) > 0
    assert asked[-2] == pushed.bucket_name and asked[-1].endswith("/root/data/mnist")


def test_two_folders_of_one_name_have_caches_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(on_machine, "mount_cache", lambda: tmp_path)
    wish = {"bucket": "b", "prefix": "data/p"}
    first, second = (
        on_machine.mount_command(config.Config(), "gcsfuse", wish, Path(folder), 5)
        for folder in ("/root/data/one/train", "/root/data/two/train")
    )
    kept = {each for each in first if each.startswith(("--cache-dir=", "--log-file="))}
    assert len(kept) == 2 and not kept.intersection(second)


@pytest.mark.parametrize(
    ("options", "program"),
    [(["--docker", docker_shim.IMAGE], "docker"), (["--mount", "mnist"], "gcsfuse")],
)
def test_a_program_that_the_embedded_machines_lack_is_refused(
    pushed, options, program, monkeypatch
):
    monkeypatch.setattr(data, "own_program", lambda: ("", b""))
    for more in ([], ["--grid", "x=1,2", "echo {x}"]):
        done = pushed("run", "-g", "0", *options, *(more or ["true"]))
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert f"{options[0]}: machines of the embedded cloud have no {program}" in done.stderr
        assert "--install-script PATH" in done.stderr
    assert not pushed.objects(".berg/jobs/") and not pushed.machines()


@pytest.mark.slow
def test_a_mount_that_cannot_be_ends_the_job_with_the_words_of_gcsfuse(pushed, repo):
    wishes = gcsfuse.bring(repo)
    (repo / "install.sh").write_text(
        f"{gcsfuse.INSTALL}mkdir -p /root/data/mnist; echo >/root/data/mnist/own\n"
    )
    done = pushed("run", "-n", "hides", "--wait", "--mount", "mnist", *wishes, "true")
    state = pushed.state("hides")
    assert (done.returncode, state["state"]) == (1, "FAILED")
    assert "holds files already, which a mount would hide" in state["reason"]
    strange = gcsfuse.PROGRAM.replace('"profile": "aiml-(training', '"profile": "aiml-(')
    (repo / "gcsfuse").write_text(strange)
    (repo / "install.sh").write_text(gcsfuse.INSTALL)
    assert pushed("run", "-n", "old", "--wait", "--mount", "mnist", *wishes, "true").returncode == 1
    told = 'exit code 1): Error: invalid argument "aiml-training" for "--profile" flag'
    assert told in pushed.state("old")["reason"]


@pytest.mark.skipif(not gcsfuse.is_here(), reason="this host has no gcsfuse, or no /dev/fuse")
def test_gcsfuse_itself_takes_the_command(tmp_path, monkeypatch):
    wish = {"prefix": "data/a", "bucket": "none-such"}
    words = on_machine.mount_command(config.Config(), "gcsfuse", wish, tmp_path, 10)
    done = subprocess.run(words, capture_output=True, text=True)
    assert "unknown flag" not in done.stderr and "invalid argument" not in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--mount", "mnist:/root/berg_results/x"], "is berg's own, or a folder of results"),
        (["--mount", "mnist:/usr/local/data"], "a mount at /usr/local/data would hide what is"),
        (["--mount", "mnist:/root/code/proj"], "a mount at /root/code/proj would hide what is"),
        (["--mount", "mnist:data"], "is no folder for data: give a whole path"),
        (["--mount", "mn/ist"], "cannot be the name of a data set"),
        (["--mount", "gs://bucket-only"], "names no folder of a bucket"),
        (["--mount", "missing"], "there is nothing in gs://"),
        (["--mount", "gs://none-such/data"], "there is no bucket 'none-such'"),
        (
            ["--mount", "mnist", "--data", "mnist"],
            "/root/data/mnist is inside /root/data/mnist, or",
        ),
        (["--mount", "mnist:/a", "--mount", "mnist:/a/b"], "/a/b is inside /a, or the same"),
    ],
)
def test_mounts_that_cannot_be_are_refused_before_anything_is_created(pushed, words, says):
    done = pushed("run", *words, "true")
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr
    assert not pushed.objects(".berg/jobs/")


def test_gcsfuse_of_this_computer_comes_along_by_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program = tmp_path / "gcsfuse"
    for content, is_sent in (
        (b"\x7fELF\x02" + bytes(13) + b"\x3e\x00 for x86", True),
        (b"\x7fELF\x02" + bytes(13) + b"\xb7\x00 for arm", False),
        (b"\xcf\xfa\xed\xfe of macOS", False),
    ):
        program.write_bytes(content)
        program.chmod(0o755)
        named = f"gcsfuse-{hashlib.sha256(content).hexdigest()}", content
        assert data.own_program() == (named if is_sent else ("", b""))


HAS_COMPILER = shutil.which("gcc") is not None and platform.machine() == "x86_64"


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="this host has no gcc for x86-64")
def test_machines_run_the_gcsfuse_of_who_submitted_the_job(pushed, tmp_path):
    (tmp_path / "bin").mkdir()
    program = gcsfuse.build(tmp_path / "bin")
    sha256 = hashlib.sha256(program.read_bytes()).hexdigest()
    path = f"{program.parent}:{os.environ['PATH']}"
    words = ("run", "-g", "0", "--mount", "mnist:/mnt/data", "--wait")
    done = pushed(*words, "-n", "brings", "cat /mnt/data/b.txt", PATH=path)
    assert done.returncode == 0, done.stderr + pushed.log("brings")
    assert "\nb\n" in pushed.log("brings") and "bin/gcsfuse\n" in pushed.log("brings")
    name = f".berg/dist/gcsfuse-{sha256}"
    assert pushed.objects(".berg/dist/")[name] == program.read_bytes()
    record = json.loads(pushed.bucket.read(".berg/jobs/brings_metadata.json"))
    assert record["gcsfuse"] == f"gcsfuse-{sha256}"


class Machine:
    """A machine that reads one object."""

    bucket = "b"

    def __init__(self, content: bytes):
        self.content = content

    def read(self, name: str) -> tuple[bytes, str]:
        return self.content, "1"


class Attempt:
    def __init__(self, content: bytes, gcsfuse: str):
        self.machine = Machine(content)
        self.job = type("Job", (), {"gcsfuse": gcsfuse})


def test_a_machine_takes_no_other_gcsfuse_than_was_submitted(tmp_path, monkeypatch):
    monkeypatch.setattr(on_machine, "BIN", tmp_path / "bin")
    name = f"gcsfuse-{hashlib.sha256(b'mine').hexdigest()}"
    program = on_machine.bring_gcsfuse(Attempt(b"mine", name))
    assert Path(program).read_bytes() == b"mine" and os.access(program, os.X_OK)
    with pytest.raises(BergError, match="is not what was submitted: another user replaced it"):
        on_machine.bring_gcsfuse(Attempt(b"other", name))


def test_an_image_without_any_gcsfuse_is_told_where_it_may_come_from(monkeypatch):
    def refuse(machine, *packages: str) -> None:
        assert packages == ("gcsfuse",)
        raise OSError("apt-get exited with 100: Unable to locate package gcsfuse")

    monkeypatch.setattr(on_machine.boot, "apt_install", refuse)
    monkeypatch.setattr(on_machine, "python_path", lambda: "/none")
    monkeypatch.setattr(on_machine.platform, "machine", lambda: "aarch64")
    with pytest.raises(BergError, match="Unable to locate package gcsfuse.*Install it on your"):
        on_machine.find_gcsfuse(Attempt(b"for x86", "gcsfuse-0"))


def test_of_many_files_a_part_is_counted(monkeypatch):
    monkeypatch.setattr(data, "MOST", 3)
    blob = type("Blob", (), {"size": 10, "name": "x"})
    bucket = type("Bucket", (), {"name": "b", "list": lambda self, prefix: iter([blob] * 9)})()
    monkeypatch.setattr(data, "find", lambda config, name: (bucket, "data/a/"))
    found = data.measure_mount(config.Config(bucket="b"), "a:/mnt/a")
    assert (found["files"], found["bytes"], found["has_more"]) == (3, 30, True)
    assert (found["path"], found["prefix"]) == ("/mnt/a", "data/a")

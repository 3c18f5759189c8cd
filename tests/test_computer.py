"""Where the computers that people sit at differ, as far as Linux can tell."""

import os
import socket
import stat
import subprocess
import sys
import tempfile
import unicodedata
from datetime import datetime, timezone
from pathlib import Path

import folding_fs
import pytest

from berg import BergError, computer
from berg.code import dist
from berg.gke import client
from berg.google import data, fetch
from berg.google.storage import Listed
from berg.laptop import doctor, ssh, sync
from berg.watch import board

OPENRSYNC = "openrsync: protocol version 29\nrsync version 2.6.9 compatible\n"


@pytest.fixture
def mac(monkeypatch):
    monkeypatch.setattr(computer.sys, "platform", "darwin")


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Put a program into PATH that prints a text."""

    def add(name: str, says: str) -> Path:
        file = tmp_path / "bin" / name
        file.parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.txt").write_text(says)
        file.write_text(f"#!/bin/sh\ncat '{tmp_path}/{name}.txt'\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return file

    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return add


def test_the_path_of_ssh_s_socket_is_short(monkeypatch, tmp_path):
    """It is refused from 104 bytes on; macOS' own folder for temporary files has 49 of them."""
    long = tmp_path / "var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T" / ("x" * 60)
    long.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with computer.folder_for_sockets() as folder:
        assert len(f"{folder}/{'%C' * 20}.{'x' * 16}") < 104
        assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    assert not Path(folder).exists()


def test_what_is_missing_is_installed_by_brew_on_a_mac(mac):
    assert computer.install_command("rsync") == "brew install rsync"
    assert computer.install_command("openssh-client") == "brew install openssh"


def test_the_rsync_of_macos_is_refused_by_name(mac, programs):
    programs("rsync", OPENRSYNC)
    with pytest.raises(BergError, match=r"openrsync.* brew install rsync"):
        sync.check_rsync()
    found = {each.check: each for each in doctor.check_tools()}["rsync"]
    assert found.status == doctor.WARNING and found.fix == "brew install rsync"
    programs("rsync", "rsync  version 3.4.1  protocol version 32\n")
    sync.check_rsync()
    assert {each.check: each for each in doctor.check_tools()}["rsync"].status == doctor.OK


def test_a_port_that_somebody_has_for_all_addresses_is_taken():
    """MacOS would let it be bound for 127.0.0.1 beside him, and the browser would find AirPlay."""
    with socket.socket() as airplay:
        airplay.bind(("", 0))
        airplay.listen()
        port = airplay.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            computer.free_port(port)
        with pytest.raises(BergError, match="to use a free one"):
            board.free_port(port)
        with pytest.raises(BergError, match="choose another"):
            ssh.check_port(f"{port}:localhost:{port}")
    computer.free_port(port)


def test_gcloud_is_named_by_its_whole_path(programs):
    assert computer.program("gcloud") == shutil_which("gcloud")
    assert computer.program("no-such-program") == "no-such-program"
    assert computer.program("gsay") == "gsay"
    file = programs("gsay", "")
    assert computer.program("gsay") == str(file)


def shutil_which(name: str) -> str:
    return computer.shutil.which(name) or name


def test_a_python_that_knows_no_authority_takes_those_of_requests(monkeypatch):
    empty = client.ssl.SSLContext(client.ssl.PROTOCOL_TLS_CLIENT)
    monkeypatch.setattr(client.ssl, "create_default_context", lambda cafile: empty)
    assert client.trusting("").cert_store_stats()["x509_ca"] > 50
    other = client.ssl.SSLContext(client.ssl.PROTOCOL_TLS_CLIENT)
    monkeypatch.setattr(client.ssl, "create_default_context", lambda cafile: other)
    assert client.trusting("a file").cert_store_stats()["x509_ca"] == 0


def test_an_environment_of_uv_s_has_pip_by_uv(monkeypatch, programs):
    assert dist.pip() == computer.python("pip")
    monkeypatch.setattr(dist.importlib.util, "find_spec", lambda name: None)
    programs("uv", "")
    assert dist.pip() == ["uv", "tool", "run", "pip"]


def test_names_of_files_go_up_composed_and_the_finder_s_stay(mac, tmp_path):
    apart = unicodedata.normalize("NFD", "größe.txt")
    for name in (apart, ".DS_Store"):
        (tmp_path / name).write_text("x")
    plan = data.Push({})
    data.add_folder(plan, "data/", tmp_path)
    assert list(plan.files) == ["data/größe.txt"] and plan.files["data/größe.txt"].exists()
    assert plan.left_out == {".DS_Store": "a file of macOS' Finder"}


class Bucket:
    """Objects by name; each holds its own name."""

    name = "bucket"

    def __init__(self, *names: str):
        self.names = names

    media = None  # nobody asks for so many files that others help

    def list(self, prefix: str):
        for name in self.names:
            yield Listed(name, len(name.encode()), generation=1, updated=datetime.now(timezone.utc))

    def download_pieces(self, listed: Listed, path: Path):
        path.write_bytes(listed.name.encode())


ALIKE = ["r/A", "r/a", "r/b", unicodedata.normalize("NFD", "r/ü"), "r/ü"]


def check_alike(folder: Path, monkeypatch) -> None:
    """Fetch objects whose names differ by case or form alone into a folder that folds names."""
    _, count, left = fetch.fetch(Bucket(*ALIKE), "r/", folder)
    assert count == 3 and list(left) == ["r/a", "r/ü"]
    assert "takes its name for that of r/A" in str(left["r/a"])
    assert (folder / "A").read_text() == "r/A"
    assert sorted(each.name for each in folder.iterdir()) == ["A", "b", ALIKE[3][2:]]


def test_of_two_names_that_a_disk_takes_for_one_the_first_is_brought(tmp_path, monkeypatch):
    monkeypatch.setattr(computer, "folds_names", lambda folder: True)
    check_alike(tmp_path / "one", monkeypatch)


def test_a_disk_that_tells_names_apart_gets_them_all(tmp_path, monkeypatch):
    assert fetch.fetch(Bucket(*ALIKE), "r/", tmp_path / "apart")[1:] == (5, {})


@pytest.fixture
def folding_disk(tmp_path):
    """A folder of a file system that takes `A` and `a` for one name, as macOS' own does."""
    below, mount = tmp_path / "below", tmp_path / "disk"
    below.mkdir()
    mount.mkdir()
    program = [sys.executable, folding_fs.__file__, str(below), str(mount)]
    with subprocess.Popen(program, stdout=-1, stderr=subprocess.STDOUT, text=True) as process:
        said = process.stdout.readline()
        if said != "mounted\n":
            said += process.stdout.read()
            pytest.skip(f"no file system that folds names here: {said.splitlines()[-1]}")
        try:
            yield mount
        finally:
            subprocess.run(["umount", str(mount)], check=True)


def test_a_disk_that_folds_names_loses_no_file(folding_disk, monkeypatch):
    """The disk itself says so; the tests above only pretend."""
    assert computer.folds_names(folding_disk)
    check_alike(folding_disk / "one", monkeypatch)


def test_a_fetch_again_to_a_disk_that_folds_names_brings_nothing_anew(folding_disk, bucket):
    """What one takes there for another is not overwritten by it, the second time either."""
    for name in ALIKE:
        bucket.write(name, name)
    for new in (3, 0):
        brought, count, left = fetch.fetch(bucket, "r/", folding_disk / "one")
        assert (brought, count, sorted(left)) == (new, 3, ["r/a", "r/ü"])
    assert [(folding_disk / f"one/{name[2:]}").read_text() for name in ALIKE[:1]] == ["r/A"]
    bucket.write("r/A", "newer")
    assert fetch.fetch(bucket, "r/", folding_disk / "one")[0] == 1
    assert (folding_disk / "one/a").read_text() == "newer"


def test_this_disk_tells_names_apart(tmp_path):
    assert not computer.folds_names(tmp_path) and not list(tmp_path.iterdir())
    assert not computer.folds_names(tmp_path / "nowhere")

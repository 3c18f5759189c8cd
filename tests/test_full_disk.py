"""The embedded cloud on a disk that is full: it says so, at once."""

import os
import subprocess
import time

import pytest
from conftest import Berg

from localcloud import control


@pytest.fixture
def full(cloud, repo, tmp_path):
    """Berg with an embedded cloud of its own on a disk of 10 MB."""
    home = tmp_path / "home"
    folder = home / "local"
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a disk takes root")
    (folder / "image").symlink_to((cloud.folder / "image").resolve())
    yield Berg(cloud, home, repo, "")
    (folder / "fill").unlink(missing_ok=True)
    control.stop(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_at_once(full):
    ready = full("init", "--local")
    assert ready.returncode == 0, ready.stderr
    with (full.home / "local/fill").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(b"\0" * 65536)
    began = time.monotonic()
    ran = full("run", "-g", "0", "true")
    assert ran.returncode == 1 and time.monotonic() - began < 20, ran.stderr
    assert f"the embedded cloud's disk is full ({full.home / 'local'})" in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr

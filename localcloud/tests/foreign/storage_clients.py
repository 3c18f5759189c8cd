# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""Clients of Cloud Storage that no one here wrote, against the embedded cloud: `make foreign` runs
this.

What a client does not pass stands in a table, by name and with the reason.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from local_cloud import MB, PROJECT, http_session, names, server  # noqa: F401

HERE = Path(__file__).parent
CLIENTS = Path(sys.prefix) / "foreign"  # where `make foreign` puts them
GCSFS = CLIENTS / "gcsfs"
# Tests of gcsfs's own that are left out, and why. Others skip themselves, as for every cloud that
# is not Google's.
GCSFS_LEFT_OUT = {
    "test_info_versioned": "object versions are refused (501)",
    "test_cat_versioned": "object versions are refused (501)",
    "test_cp_versioned": "object versions are refused (501)",
    "test_ls_versioned": "object versions are refused (501)",
    "test_find_versioned": "object versions are refused (501)",
    "test_sign": "it signs with the private key of a service account, and there are none here",
}


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def test_gcsfs(server):
    """The tests in its sdist. They write the same few names at once, so that the limit of writes a
    second is off.
    """
    if not GCSFS.exists():
        pytest.skip("gcsfs's sdist is not there: make foreign fetches it")
    server.credentials()
    environment = {
        **os.environ,
        "STORAGE_EMULATOR_HOST": server.url,
        "GOOGLE_APPLICATION_CREDENTIALS": str(server.folder / "credentials.json"),
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        "GCSFS_TEST_PROJECT": PROJECT,
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        ".",
        "-p",
        "no:cacheprovider",
    ]
    command += [
        "gcsfs/tests/test_core.py",
        "gcsfs/tests/test_mapping.py",
        "gcsfs/tests/test_manyopens.py",
    ]
    command += [f"--deselect=gcsfs/tests/test_core.py::{name}" for name in GCSFS_LEFT_OUT]
    done = run(command, cwd=GCSFS, env=environment)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert f"115 passed, 20 skipped, {len(GCSFS_LEFT_OUT)} deselected" in done.stdout, done.stdout[
        -300:
    ]


@pytest.fixture
def limited(server, http_session):
    """The server with Google's limit of writes a second."""
    url = f"{server.url}/_berg/settings"
    http_session.post(url, json={"write_interval": 1})
    yield server
    http_session.post(url, json={"write_interval": 0})


def test_rclone(limited, tmp_path):
    """Uploads, the same in pieces, copies (whose body is `null`), moves, streams, checks."""
    if not shutil.which("rclone"):
        pytest.skip("rclone is not installed: apt-get install rclone")
    token = f'{{"access_token": "{limited.token()}", "token_type": "Bearer", "expiry": "2099-01-01T00:00:00Z"}}'
    settings = f"[gs]\ntype = google cloud storage\nproject_number = {PROJECT}\ntoken = {token}\n"
    (tmp_path / "rclone.conf").write_text(f"{settings}endpoint = {limited.url}/storage/v1/\n")
    (tmp_path / "rclone.conf").chmod(0o600)
    source, back, gs = tmp_path / "source", tmp_path / "back", f"gs:{next(names)}"
    (source / "sub").mkdir(parents=True)
    (source / "big").write_bytes(os.urandom(20 * MB))
    (source / "sub/grüße 100%.txt").write_text("hello")
    (source / "empty").touch()

    def rclone(*words, stdin=""):
        done = run(
            ["rclone", "--config", str(tmp_path / "rclone.conf"), "--retries=1", *words],
            input=stdin,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    rclone("mkdir", gs)
    rclone("copy", str(source), f"{gs}/a")
    rclone("check", str(source), f"{gs}/a")
    rclone("copy", f"{gs}/a", f"{gs}/b")
    rclone("moveto", f"{gs}/b/empty", f"{gs}/c/empty")
    rclone("rcat", f"{gs}/stream", stdin="said")
    assert rclone("cat", f"{gs}/stream") == "said"
    assert sorted(rclone("lsf", "-R", "--files-only", gs).splitlines()) == [
        *(
            "a/big",
            "a/empty",
            "a/sub/grüße 100%.txt",
            "b/big",
            "b/sub/grüße 100%.txt",
            "c/empty",
            "stream",
        ),
    ]
    rclone("sync", f"{gs}/a", str(back))
    assert (back / "big").read_bytes() == (source / "big").read_bytes()
    rclone("purge", gs)
    assert gs.partition(":")[2] not in rclone("lsf", "gs:")


def test_node(limited, tmp_path):
    if not shutil.which("node") or not (CLIENTS / "node_modules").exists():
        pytest.skip(
            "node, or its package @google-cloud/storage, is not there: make foreign fetches the package"
        )
    environment = {
        **os.environ,
        "TOKEN": limited.token(),
        "NODE_PATH": str(CLIENTS / "node_modules"),
    }
    done = run(["node", str(HERE / "node.js"), limited.url, PROJECT, next(names)], env=environment)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 16
    assert not [line for line in done.stdout.splitlines() if not line.startswith("ok ")], (
        done.stdout
    )

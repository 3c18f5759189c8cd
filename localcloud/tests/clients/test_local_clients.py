"""Clients that no one here wrote, as people use them with the embedded cloud: rclone and gcloud.
kubectl is in kubernetes/, gcloud's ssh in compute/.
"""

import os
import shutil
import subprocess
import uuid

import pytest
from local_gcloud import Gcloud
from local_machines import ZONE

MB = 1 << 20


@pytest.fixture
def bucket(cloud):
    name = f"clients-{uuid.uuid4().hex[:12]}"
    body = {"name": name, "location": "US-CENTRAL1"}
    cloud.call("POST", "/storage/v1/b?project=berg-local", body)
    return name


@pytest.fixture
def files(tmp_path):
    """A folder with a large file, an empty one, and one of a difficult name."""
    folder = tmp_path / "files"
    (folder / "sub").mkdir(parents=True)
    (folder / "big").write_bytes(os.urandom(20 * MB))
    (folder / "sub/grüße 100%.txt").write_text("hello")
    (folder / "empty").touch()
    return folder


@pytest.fixture
def gcloud(cloud, tmp_path):
    return Gcloud(cloud.folder, tmp_path)


def same(one, other) -> bool:
    return not subprocess.run(["diff", "-r", str(one), str(other)]).returncode


@pytest.mark.skipif(not shutil.which("rclone"), reason="rclone is not installed")
def test_rclone(cloud, bucket, files, tmp_path):
    token = f'{{"access_token": "{cloud.token}", "expiry": "2099-01-01T00:00:00Z"}}'
    settings = f"[gs]\ntype = google cloud storage\nproject_number = 1\ntoken = {token}\n"
    (tmp_path / "conf").write_text(f"{settings}endpoint = {cloud.url}/storage/v1/\n")

    def rclone(*words):
        words = ["rclone", "--config", str(tmp_path / "conf"), "--retries=1", *words]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    there = f"gs:{bucket}/a"
    rclone("sync", str(files), there)
    rclone("check", str(files), there)
    rclone("copy", there, f"gs:{bucket}/b")
    assert {*rclone("lsf", "-R", f"gs:{bucket}/b").splitlines()} == {
        "big",
        "empty",
        "sub/",
        "sub/grüße 100%.txt",
    }
    rclone("copy", f"gs:{bucket}/b", str(tmp_path / "back"))
    assert same(files, tmp_path / "back")
    rclone("deletefile", f"{there}/empty")
    assert "empty" not in rclone("lsf", there)


def test_gcloud_storage(gcloud, bucket, files, tmp_path):
    there = f"gs://{bucket}"
    gcloud("storage", "rsync", "--recursive", str(files), f"{there}/a")
    assert gcloud("storage", "ls", f"{there}/a").split() == [
        f"{there}/a/big",
        f"{there}/a/empty",
        f"{there}/a/sub/",
    ]
    gcloud("storage", "cp", f"{there}/a/sub/grüße 100%.txt", f"{there}/b.txt")
    assert gcloud("storage", "cat", f"{there}/b.txt") == "hello"
    (tmp_path / "back").mkdir()
    gcloud("storage", "rsync", "--recursive", f"{there}/a", str(tmp_path / "back"))
    assert same(files, tmp_path / "back")
    gcloud("storage", "rm", f"{there}/b.txt")
    assert gcloud.run("storage", "cat", f"{there}/b.txt").returncode
    assert (
        gcloud("storage", "buckets", "describe", there, "--format=value(location)")
        == "US-CENTRAL1\n"
    )


def test_gcloud_changes_a_bucket_as_berg_advises(gcloud, cloud, bucket):
    there = f"gs://{bucket}"
    gcloud("storage", "buckets", "update", there, "--public-access-prevention")
    gcloud("storage", "buckets", "update", there, "--clear-soft-delete")
    gcloud("storage", "buckets", "update", there, "--update-labels=team=a")
    found = cloud.session.get(f"{cloud.url}/storage/v1/b/{bucket}").json()
    assert found["iamConfiguration"]["publicAccessPrevention"] == "enforced"
    assert found["softDeletePolicy"]["retentionDurationSeconds"] == "0"
    assert found["labels"] == {"team": "a"} and found["metageneration"] == "4"
    moved = {"location": "europe-west4"}
    answer = cloud.session.patch(f"{cloud.url}/storage/v1/b/{bucket}", json=moved)
    assert answer.status_code == 400


def test_gcloud_compute(machines, gcloud):
    machines.insert("seen")
    assert "seen" in gcloud("compute", "instances", "list", "--format=value(name)").split()
    words = ("compute", "instances", "describe", "seen", f"--zone={ZONE}", "--format=value(status)")
    assert gcloud(*words) == "RUNNING\n"
    machines.delete("seen")

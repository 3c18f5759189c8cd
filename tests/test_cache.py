"""The dataset cache: real NGINX in front of the embedded bucket, alone and in a cluster."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from conftest import commit, settle, wait_for
from local_kube import Kube
from machine.test_cluster import BORROW_TORCH, EXAMPLES

from berg.gke import cache, clusters
from localcloud.identity.tokens import LAPTOP, Tokens
from localcloud.kubernetes import nodes

pytestmark = pytest.mark.skipif(
    not shutil.which("nginx") or os.getuid() != 0, reason="takes root and nginx-light"
)
MB = 1 << 20
SLICE = 8 * MB
PLACE = "us-central1-a/cached"


class Nginx:
    """NGINX with the cache's configuration, without a cluster: its address, its folder, its
    readers.
    """

    def __init__(self, cloud, folder: Path, port: int, megabytes: int = 1000, disk: str = ""):
        self.cloud, self.folder, self.url = cloud, folder, f"http://127.0.0.1:{port}"
        text = cache.configuration(cloud.settings(), megabytes).replace("/cache/", "/mnt/")
        # In mounts of its own, as in a pod: its workers are nobody, who may not enter pytest's
        # folders.
        mount = f"-t tmpfs -o size={disk} tmpfs" if disk else f"--bind {folder}"
        script = f"mount {mount} /mnt && mount -t tmpfs tmpfs /tmp && cat >/mnt/nginx.conf && "
        script += (
            f"echo 'listen 127.0.0.1:{port};' >/mnt/listen.conf && exec nginx -c /mnt/nginx.conf"
        )
        folder.chmod(0o777)  # as a folder for pods is
        with (folder / "errors").open("w") as errors:
            command = ["unshare", "--mount", "sh", "-c", script]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=errors, text=True
            )
        self.process.stdin.write(text)
        self.process.stdin.close()
        try:
            wait_for(self.answers, what="NGINX answers")
        except BaseException:
            self.end()
            raise

    def answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/healthz", timeout=1).ok
        except requests.ConnectionError:
            return False

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(10)

    def get(
        self, path: str, reader: str | None = LAPTOP, token: str = "", **headers: str
    ) -> requests.Response:
        token = token or (Tokens(self.cloud.folder).mint(reader) if reader else "")
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return requests.get(f"{self.url}/{path}", headers=headers, timeout=60)

    def counted(self) -> cache.Status:
        """What `berg cluster cache` would say."""
        script = cache.COUNT.replace("/cache/", f"{self.folder}/")
        status = cache.Status("", "", "", "", 0)
        cache.count(
            status,
            subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout,
        )
        return status


@pytest.fixture(scope="module")
def nginx(cloud, tmp_path_factory):
    made = Nginx(cloud, tmp_path_factory.mktemp("nginx"), 18080)
    yield made
    made.end()


def asked(berg, verb: str = "GET") -> list[str]:
    """Paths of the objects that Cloud Storage was asked for by name since the log of requests
    began.
    """
    log = berg.cloud.call("GET", "/_berg/requests")["requests"]
    return [
        each["path"]
        for each in log
        if each["verb"] == verb and each["path"].startswith(f"/{berg.bucket_name}/")
    ]


def test_the_second_reading_comes_from_the_cache_and_is_counted(berg, cloud, nginx):
    content = os.urandom(2 * SLICE + 5)
    berg.bucket.write("data/a b%.tar", content)
    path = f"{berg.bucket_name}/data/a%20b%25.tar"
    before = nginx.counted()
    first = nginx.get(path)
    assert first.content == content and len(asked(berg)) == 3 and len(asked(berg, "HEAD")) == 1
    for span in ((0, 9), (SLICE - 1, SLICE), (5, 2 * SLICE + 3)):
        part = nginx.get(path, Range="bytes={}-{}".format(*span))
        assert (part.status_code, part.content) == (206, content[span[0] : span[1] + 1])
        assert part.headers["Content-Range"] == "bytes {}-{}/{}".format(*span, len(content))
    assert nginx.get(path).content == content
    assert nginx.get(path, Range="bytes=-7").content == content[-7:]
    assert len(asked(berg)) == 3, "each slice was fetched once"
    assert len(asked(berg, "HEAD")) == 6, "and each reader's right asked for"
    now = nginx.counted()
    assert (now.slices - before.slices, now.hits - before.hits) == (3 + 1 + 2 + 3 + 3 + 3, 12)
    assert now.fetched_bytes - before.fetched_bytes == len(content)
    assert now.kept_bytes - before.kept_bytes >= len(content) and time.time() - now.since < 600
    beyond = nginx.get(path, Range=f"bytes={3 * SLICE}-")
    assert beyond.status_code == 416


def test_bytes_are_never_stale(berg, cloud, nginx):
    for number in range(3):  # of one length, so that nothing but the generation tells
        time.sleep(1 if number else 0)
        berg.bucket.write("changes", f"version {number}".encode())
        assert nginx.get(f"{berg.bucket_name}/changes").text == f"version {number}"
    berg.bucket.delete("changes")
    assert nginx.get(f"{berg.bucket_name}/changes").status_code == 404


def test_what_changes_between_question_and_answer_is_an_error_that_passes(berg, cloud, nginx):
    berg.bucket.write("x", b"content")
    cloud.fault("storage.objects.get", match="generation=", status=404)
    assert nginx.get(f"{berg.bucket_name}/x").status_code == 503
    assert nginx.get(f"{berg.bucket_name}/x").content == b"content"


def test_nobody_reads_what_he_may_not_also_when_it_is_kept(berg, cloud, nginx):
    berg.bucket.write("private", b"secret")
    path = f"{berg.bucket_name}/private"
    assert nginx.get(path).content == b"secret"
    assert nginx.get(path).headers["X-Cache"] == "HIT"
    stranger = f"{berg.home.parent.name[:20].replace('_', '-').strip('-')}-stranger"[-30:].strip(
        "-"
    )
    accounts = "/iam/v1/projects/berg-local/serviceAccounts"
    email = cloud.call("POST", accounts, {"accountId": stranger})["email"]
    old = Tokens(cloud.folder).mint(LAPTOP, -1)
    for status, who in {
        "nobody": (403, {"reader": None}),
        "a word": (401, {"token": "nonsense"}),
        "one whose time is over": (401, {"token": old}),
        "a stranger": (403, {"reader": email}),
    }.values():
        answer = nginx.get(path, **who)
        assert answer.status_code == status and b"secret" not in answer.content, who
    policy = {
        "bindings": [{"role": "roles/storage.objectViewer", "members": [f"serviceAccount:{email}"]}]
    }
    cloud.call("PUT", f"/storage/v1/b/{berg.bucket_name}/iam", policy)
    settle(cloud)
    assert nginx.get(path, email).content == b"secret"
    cloud.call("PUT", f"/storage/v1/b/{berg.bucket_name}/iam", {"bindings": []})
    assert nginx.get(path, email).status_code == 403
    cloud.call("DELETE", f"{accounts}/{email}")


def test_what_is_no_object_is_refused_and_not_kept(berg, cloud, nginx):
    path = f"{berg.bucket_name}/later"
    assert nginx.get(path).status_code == 404
    berg.bucket.write("later", b"come")
    assert nginx.get(path).content == b"come"
    berg.bucket.write("empty", b"")
    answer = nginx.get(f"{berg.bucket_name}/empty")
    assert (answer.status_code, answer.content) == (200, b"")
    for wrong in (
        "",
        berg.bucket_name,
        f"{berg.bucket_name}/",
        f"{path}?acl",
        f"{path}?generation=1",
    ):
        assert nginx.get(wrong).status_code == 400, wrong
    assert requests.put(f"{nginx.url}/{path}", data=b"x").status_code == 403
    assert nginx.get("no-such-bucket/x").status_code == 404


def test_troubles_of_cloud_storage_are_errors_and_not_kept(berg, cloud, nginx):
    berg.bucket.write("x", b"content")
    for fault in ({"status": 503}, {"status": 429}, {"status": 503, "match": "generation="}):
        cloud.fault("storage.objects.get", **fault)
        assert nginx.get(f"{berg.bucket_name}/x").status_code in (502, 503), fault
    cloud.fault("storage.objects.get", reset=True)  # a connection that was kept for too long
    assert nginx.get(f"{berg.bucket_name}/x").content == b"content"


def test_many_who_ask_for_the_same_at_once_are_one_fetch(berg, cloud, nginx):
    content = os.urandom(SLICE + 1)
    berg.bucket.write("x", content)
    cloud.fault("storage.objects.get", match="generation=", delay=0.5, times=None)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: nginx.get(f"{berg.bucket_name}/x").content, range(6)))
    assert answers == [content] * 6
    assert len(asked(berg)) == 2, "one for each slice"


@pytest.mark.slow
def test_a_full_disk_breaks_a_reading_off_and_passes(berg, cloud, tmp_path):
    """Who reads sees that bytes are missing; what is kept is still served, and the oldest makes
    room.
    """
    small = Nginx(cloud, tmp_path, 18081, megabytes=9, disk="20m")
    try:
        first, second = os.urandom(SLICE), os.urandom(2 * SLICE)
        berg.bucket.write("first", first)
        berg.bucket.write("second", second)
        assert small.get(f"{berg.bucket_name}/first").content == first
        with pytest.raises(requests.exceptions.ChunkedEncodingError, match="IncompleteRead"):
            small.get(f"{berg.bucket_name}/second")
        kept = small.get(f"{berg.bucket_name}/first")
        assert kept.content == first and kept.headers["X-Cache"] == "HIT"

        def recovered() -> bool:
            try:
                return (
                    small.get(f"{berg.bucket_name}/second", Range=f"bytes={SLICE}-").content
                    == second[SLICE:]
                )
            except requests.exceptions.ChunkedEncodingError:
                return False

        wait_for(recovered, 40, "room again")
    finally:
        small.end()


# --- in a cluster


def test_the_room_on_a_nodes_disk_is_what_google_shows():
    """Of a node with 100 GB: capacity 98831908Ki, allocatable 47060071478 ("Plan GKE Standard node
    sizes").
    """
    assert nodes.disk_capacity(100) * 2**20 == pytest.approx(98831908, rel=1e-3)
    assert cache.room(100) + cache.SPARE == 47060071478 >> 30


@pytest.fixture(scope="module")
def kube(cloud, tmp_path_factory):
    """A cluster of berg's for jobs without GPUs."""
    said: list[str] = []
    settings = cloud.settings("any")
    wanted = clusters.Wanted(num_gpus=0, machine_type="n1-standard-4", zone="us-central1-a")
    assert clusters.create(settings, "cached", wanted, said.append) == PLACE
    yield Kube(cloud, "cached", tmp_path_factory.mktemp("kube"))
    clusters.delete(settings, "cached", said.append)  # and a cache that is there still
    wait_for(
        lambda: not [name for name in cloud.instances() if name.startswith("gke-cached-")],
        what="no node is left",
    )


def deploy(berg, *options: str) -> None:
    made = berg("cluster", "cache", "cached", *options)
    assert made.returncode == 0, made.stderr


def status(berg) -> dict:
    shown = berg("cluster", "cache", "cached", "--json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def run(berg, *words: str):
    done = berg("run", "--cluster", "cached", "-g", "0", *words)
    assert done.returncode == 0, done.stderr
    return done


def cache_pods(kube) -> list[dict]:
    return kube.get("pods", labelSelector="app=berg-cache")["items"]


HOG = {"resources": {"requests": {"ephemeral-storage": "5Gi"}}}
READ = """
import hashlib, os, sys, google.auth
from google.auth.transport.requests import AuthorizedSession
session = AuthorizedSession(google.auth.default()[0])
url = f"{os.environ['BERG_CACHE_URL']}/{os.environ['BERG_BUCKET']}/data.tar"
print("sum", hashlib.md5(session.get(url).content).hexdigest())
"""


@pytest.mark.slow
def test_from_deploy_to_delete(berg, kube, cloud):
    assert (
        "has no dataset cache. Make it: berg cluster cache cached --size 200"
        in berg("cluster", "cache", "cached").stderr
    )
    deploy(berg, "--size", "10")
    nodes = lambda: [name for name in cloud.instances() if name.startswith("gke-cached-cache-")]
    (pod,) = cache_pods(kube)
    assert pod["spec"]["nodeName"] == nodes()[0]
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"ephemeral-storage": "18Gi"}
    shown = berg("cluster", "cache", "cached")
    assert (
        "READY" in shown.stdout and "0 B of 10 GB" in shown.stdout and "nothing yet" in shown.stdout
    )
    assert status(berg)["hit_rate"] is None

    content = os.urandom(2 * SLICE)
    berg.bucket.write("data.tar", content)
    (berg.repo / "read.py").write_text(READ)
    (berg.repo / "setup.sh").write_text(
        BORROW_TORCH.format(borrowed=Path(requests.__file__).parent.parent)
    )
    commit(berg.repo, "a reader")
    cloud.fault("storage.objects.get", match="data.tar?generation=", delay=1, times=None)
    words = ["-m", "2", "--each", "--install-script", "setup.sh", "--wait"]
    run(berg, "-n", "two", *words, "python read.py; python read.py")
    assert berg.log("two").count(f"sum {hashlib.md5(content).hexdigest()}") == 4
    assert len(asked(berg)) == 2, "both pods read twice, and each slice was fetched once"
    now = status(berg)
    assert (now["slices"], now["hits"], now["hit_rate"]) == (8, 6, 0.75)
    assert now["fetched_bytes"] == len(content) and now["hit_bytes"] == 3 * len(content)
    assert "Hits      75.0%: 50.3 MB" in berg("cluster", "cache", "cached").stdout

    most = berg("cluster", "cache", "cached", "--size", "11")
    assert most.returncode == 1 and "--size 11 does not fit the cache's node" in most.stderr, (
        most.stderr
    )
    assert "Give --size 10, or start again: berg cluster cache cached --delete" in most.stderr
    grown = berg("cluster", "resize", "cached", "--max-nodes", "3")
    assert "Changed the pool n1-standard-4 of cached" in grown.stderr, (
        "the cache's pool is none for jobs"
    )
    deploy(berg, "--size", "5")
    assert (status(berg)["size_gb"], status(berg)["slices"]) == (5, 0)
    assert len(kube.get("configmaps", labelSelector="app=berg-cache")["items"]) == 1
    spec = {
        **json.loads(json.dumps(pod["spec"])),
        "containers": [{**HOG, "name": "main", "image": "debian:12"}],
    }
    del spec["nodeName"], spec["volumes"]
    kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hog"}, "spec": spec})
    wait_for(
        lambda: kube.get("pods", "hog")["status"].get("phase") == "Running",
        what="another who takes its disk",
    )
    full = berg("cluster", "cache", "cached", "--size", "10")
    assert full.returncode == 1 and "does not fit the disk of its node" in full.stderr, full.stderr
    kube.call("DELETE", "/api/v1/namespaces/default/pods/hog", gracePeriodSeconds=0)
    assert "and its dataset cache. Delete it" in berg("reap", "-y").stderr

    assert berg("cluster", "cache", "cached", "--delete", stdin="n\n").returncode == 130
    gone = berg("cluster", "cache", "cached", "--delete", "-y")
    assert gone.returncode == 0, gone.stderr
    wait_for(lambda: not nodes(), what="the end of its node")
    for kind in ("pods", "services", "deployments", "configmaps"):
        assert not kube.get(kind, labelSelector="app=berg-cache")["items"], kind
    assert "has no dataset cache" in berg("cluster", "cache", "cached", "--delete", "-y").stderr
    assert "BERG_CACHE_URL" not in run(berg, "--dry-run", "--json", "true").stdout


def test_what_cannot_be_is_said_in_a_sentence(berg, kube, cloud):
    for words, told in {
        ("nosuch", "--size", "9"): "there is no cluster 'nosuch'",
        ("cached", "--size", "0"): "--size 0 is not possible: give 1 to 50000 GB",
        ("cached", "--size", "99999"): "--size 99999 is not possible",
        ("cached", "--delete", "-y"): "the cluster cached has no dataset cache",
    }.items():
        done = berg("cluster", "cache", *words)
        assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr, (
            done.stderr
        )
    assert not cache_pods(kube)


@pytest.mark.slow
def test_a_cache_that_does_not_come_says_why_and_can_be_interrupted(berg, kube, cloud):
    cloud.call("POST", "/_berg/clusters/cached/images", {"image": "nginx"})
    process = berg.start("cluster", "cache", "cached", "--size", "5")
    wait_for(
        lambda: cache_pods(kube) and "image" in json.dumps(status(berg)["state"]),
        60,
        "a word of the image",
    )
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=20)[1]
    assert process.returncode == 130
    assert "Its image nginx:" in said and "cannot be pulled" in said
    assert (
        "Continue:   berg cluster cache cached --size 5" in said
        and "berg cluster cache cached --delete" in said
    )
    cloud.call("POST", "/_berg/clusters/cached/images", {"image": "nginx", "on": False})
    deploy(berg, "--size", "5")
    assert berg("cluster", "cache", "cached", "--delete", "-y").returncode == 0


@pytest.mark.slow
def test_a_training_reads_through_the_cache_and_goes_on_when_it_dies(berg, kube, cloud):
    torch = pytest.importorskip("torch")
    pytest.importorskip("webdataset")
    for file in ("shards.py", "train.py", "requirements.txt"):
        shutil.copy(EXAMPLES / "webdataset" / file, berg.repo)
    (berg.repo / "setup.sh").write_text(
        BORROW_TORCH.format(borrowed=Path(torch.__file__).parent.parent)
    )
    deploy(berg, "--size", "5")
    wishes = ["--install-script", "setup.sh", "--env", f"STORAGE_EMULATOR_HOST={cloud.url}"]
    run(berg, "-n", "shards", *wishes, "--wait", "python shards.py")
    assert len(berg.objects("berg_results/shards/train-")) == 8
    cloud.call("DELETE", "/_berg/requests")
    run(
        berg,
        "-n",
        "train",
        "-m",
        "2",
        "--each",
        *wishes,
        "torchrun train.py --shards=shards --epochs=100000",
    )
    epochs = lambda: [
        json.loads(line) for line in berg.log("train").splitlines() if line.startswith('{"epoch"')
    ]
    wait_for(lambda: len(epochs()) >= 3, 120, "three epochs")
    assert len(asked(berg)) == 9, "each shard was fetched once, by whichever pod read it first"
    assert all(
        (row["from_cache"], row["from_bucket"], row["processes"]) == (8, 0, 2) for row in epochs()
    )
    now = status(berg)
    assert now["slices"] - now["hits"] == 9 and now["hits"] >= 16
    (pod,) = cache_pods(kube)
    kube.call(
        "DELETE", f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}", gracePeriodSeconds=0
    )
    wait_for(lambda: any(row["from_bucket"] for row in epochs()), 60, "an epoch from the bucket")
    wait_for(
        lambda: epochs()[-1]["from_cache"] == 8, 60, "an epoch from the cache, which came back"
    )
    assert berg("kill", "train").returncode == 0
    rows = [
        json.loads(line)
        for line in berg.objects("berg_results/train/")[
            "berg_results/train/metrics.jsonl"
        ].splitlines()
    ]
    assert all(row["from_cache"] + row["from_bucket"] == 8 for row in rows)
    shards = berg.objects("berg_results/shards/train-").values()
    megabytes = sum(map(len, shards)) / 1e6
    assert all(abs(row["mb"] - megabytes) < 0.1 for row in rows), "each byte once, by one process"
    assert rows[-1]["test_accuracy"] > 0.9 and rows[-1]["epoch"] == len(rows)
    assert "the cache failed, on from the bucket" in berg.log("train")

"""Read shards through the dataset cache, in a first and a second epoch, and straight from the bucket.

NGINX runs here with the configuration that it has in a cluster. Two processes read 8 shards of 32 MB. A round
trip to the bucket takes no time, as within a region, or 30 ms, as between regions.
"""

import os
import subprocess
import sys
import time

import common
import requests
from common import SCRATCH, Cloud, Cost, Result, Target, ratio, rounds, table, timed

from berg.gke import cache

SHARDS, SIZE, PORT = 8, 32 << 20, 18085
READ = """
import multiprocessing, sys, requests

def read(urls):
    session = requests.Session()
    session.headers["Authorization"] = "Bearer " + token
    for url in urls:
        with session.get(url, stream=True) as answer:
            answer.raise_for_status()
            assert sum(map(len, answer.iter_content(1 << 20))) == int(answer.headers["Content-Length"])

token, urls = sys.stdin.read(), sys.argv[1:]
with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.map(read, [urls[::2], urls[1::2]], chunksize=1)
"""
STRAIGHT, FIRST, SECOND = (
    "straight from the bucket",
    "first epoch through the cache",
    "second epoch through the cache",
)
WHY = "the cloud, NGINX and the readers share two cores"


def start(cloud: Cloud) -> subprocess.Popen:
    """NGINX with the cache's configuration, in a folder of the benchmark's."""
    folder = SCRATCH / "cache"
    folder.mkdir()
    text = cache.configuration(cloud.config, 10_000).replace("/tmp/", f"{SCRATCH}/nginx-")
    text = text.replace("/cache/", f"{folder}/").replace(
        "user nobody nogroup;", "user root;" if not os.getuid() else ""
    )
    (folder / "listen.conf").write_text(f"listen 127.0.0.1:{PORT};")
    (SCRATCH / "nginx.conf").write_text(text)
    process = subprocess.Popen(["nginx", "-c", SCRATCH / "nginx.conf"], stderr=subprocess.DEVNULL)
    for _ in range(100):
        try:
            requests.get(f"http://127.0.0.1:{PORT}/healthz", timeout=1)
            return process
        except requests.ConnectionError:
            time.sleep(0.1)
    sys.exit("NGINX does not answer")


def read(cloud: Cloud, base: str) -> Cost:
    """Read all shards by two processes."""
    urls = [f"{base}/{cloud.bucket}/shard-{number}" for number in range(SHARDS)]
    return timed(sys.executable, "-c", READ, *urls, stdin=cloud.token)


def anew(cloud: Cloud) -> None:
    """Give every shard another generation, so that nothing of it is kept."""
    for number in range(SHARDS):
        path = f"/storage/v1/b/{cloud.bucket}/o/shard-{number}"
        cloud.call("POST", f"{path}/rewriteTo/b/{cloud.bucket}/o/shard-{number}", {})


def compare(cloud: Cloud, latency: float, repeats: int, limit: float) -> Result:
    through, costs = f"http://127.0.0.1:{PORT}", {STRAIGHT: [], FIRST: [], SECOND: []}
    for number in range(repeats):
        anew(cloud)
        cloud.call("POST", "/_berg/settings", {"latency": latency})
        costs[FIRST].append(read(cloud, through))
        sides = {STRAIGHT: lambda: read(cloud, cloud.url), SECOND: lambda: read(cloud, through)}
        sides = dict(list(sides.items())[:: -1 if number % 2 else 1])
        for side, found in rounds(sides, 1).items():
            costs[side] += found
        cloud.call("POST", "/_berg/settings", {"latency": 0})
    measured = ratio(costs, SECOND, STRAIGHT)
    target = Target(
        "wall of the second epoch over straight from the bucket", measured, limit, why=WHY
    )
    title = f"Dataset cache, {latency * 1000:.0f} ms away"
    return table(title, "", costs, [target])


def measure(repeats: int) -> list[Result]:
    if not common.has("nginx", "nginx-light"):
        sys.exit("nginx is missing: apt-get install nginx-light")
    with Cloud() as cloud:
        cloud.call("POST", "/_berg/settings", {"write_interval": 0})
        content = SCRATCH / "shard"
        content.write_bytes(os.urandom(SIZE))
        bucket = cloud.session
        for number in range(SHARDS):
            url = f"{cloud.url}/upload/storage/v1/b/{cloud.bucket}/o?uploadType=media&name=shard-{number}"
            bucket.post(url, data=content.read_bytes()).raise_for_status()
        nginx = start(cloud)
        try:
            return [
                compare(cloud, latency, repeats, limit)
                for latency, limit in ((0, 1.5), (0.03, 0.5))
            ]
        finally:
            nginx.terminate()
            nginx.wait()


if __name__ == "__main__":
    common.main(__doc__, measure)

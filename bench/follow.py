"""How soon a line that a job prints is on the laptop's screen, and how fast a long log is read."""

import os
import statistics
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

import common
from common import BIN, FAR, SCRATCH, Cloud, Result, Target, distance

LINES = 20  # one every 1.7 s, so that they fall on all moments of what looks for them
JOB = f"for n in $(seq {LINES}); do echo line $(date +%s.%N); sleep 1.7; done"
LARGE = 300_000_000  # bytes
BANDWIDTH = 50_000_000  # bytes a second to the laptop


def following(cloud: Cloud, repo: Path) -> tuple[list[float], float]:
    """Follow a job; return the seconds from print to screen of each line, and requests a second."""
    cloud.berg("run", "-g", "0", "-n", "talks", JOB, cwd=repo)
    command: list[str | Path] = [BIN / "berg", "tail", "talks"]
    seconds: list[float] = []
    cloud.call("DELETE", "/_berg/requests")
    began = time.monotonic()
    with subprocess.Popen(command, env=cloud.env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            word, _, printed = line.partition(" ")
            if word == "line":
                seconds.append(time.time() - float(printed))
    log = cloud.call("GET", "/_berg/requests")["requests"]
    asked = sum(1 for each in log if each.get("laptop"))
    return seconds, asked / (time.monotonic() - began)


def reading(cloud: Cloud, repo: Path) -> tuple[float, float, float]:
    """Read a long log; return the seconds, those of a bare GET, and berg's memory in MB at the most."""
    cloud.berg("run", "-g", "0", "-n", "short", "--wait", "true", cwd=repo)
    log = next(
        each["name"]
        for each in cloud.call("GET", f"/storage/v1/b/{cloud.bucket}/o?prefix=.berg/logs/short/")[
            "items"
        ]
        if each["name"].endswith(".log")
    )
    large = SCRATCH / "large.log"
    line = b"step 1 loss 0.123456 and what else a training says of itself in one line of text\n"
    with large.open(
        "wb"
    ) as file:  # in pieces: what this process holds would count as berg's memory
        for _ in range(1000):
            file.write(line * (LARGE // len(line) // 1000))
    write = (
        "import sys; from pathlib import Path; from berg import config; from berg.google.storage import Bucket; "
        "bucket = Bucket(config.load()); file = open(sys.argv[2], 'rb'); name = sys.argv[1]; "
        "bucket.upload_stream(name, file, Path(sys.argv[2]).stat().st_size, bucket.get(name).generation, lambda *_: None, {})"
    )
    common.timed(BIN / "python", "-c", write, log, large, env=cloud.env)
    with cloud.far(FAR):
        cloud.call("POST", "/_berg/settings", {"bandwidth": BANDWIDTH})
        began = time.monotonic()
        with subprocess.Popen(
            [BIN / "berg", "log", "short"], env=cloud.env, stdout=subprocess.DEVNULL
        ) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        took = time.monotonic() - began
        began = time.monotonic()
        url = f"{cloud.url}/storage/v1/b/{cloud.bucket}/o/{quote(log, safe='')}?alt=media"
        with cloud.session.get(url, stream=True) as answer:
            assert sum(map(len, answer.iter_content(1 << 20))) == large.stat().st_size
        bare = time.monotonic() - began
        cloud.call("POST", "/_berg/settings", {"bandwidth": 0})
    return took, bare, usage.ru_maxrss / 1024


def measure(repeats: int) -> list[Result]:
    repo = SCRATCH / "repo"
    common.make_repo(repo, 10)
    with Cloud() as cloud:
        with cloud.far(FAR):
            seconds, asked = following(cloud, repo)
        took, bare, memory = reading(cloud, repo)
    middle = statistics.median(seconds)
    shown = [f"{value:.2f} s" for value in (middle, min(seconds), max(seconds))]
    lines = Result(
        f"Follow: {LINES} lines, {distance(FAR)}",
        "`berg tail` of a job that prints one every 1.7 s. The machine sends its log every 2 s.",
        ["median from print to screen", "soonest", "latest", "requests a second"],
        [[*shown, f"{asked:.1f}"]],
        [
            Target("from print to screen, median", middle, 3, "s"),
            Target("requests in a minute", asked * 60, 240, "requests"),
        ],
    )
    log = Result(
        f"Follow: a log of 300 MB, {distance(FAR)}",
        f"`berg log` to nowhere, over a line of {BANDWIDTH / 1e6:.0f} MB/s. Once.",
        ["wall", "one GET of python-requests", "memory"],
        [[f"{took:.1f} s", f"{bare:.1f} s", f"{memory:.0f} MB"]],
        [
            Target(
                "wall over one GET's",
                took / bare,
                1.3,
                why="what a terminal would obey is looked for in every byte, on cores that the embedded cloud shares",
            ),
            Target("memory at the most", memory, 150, "MB"),
        ],
    )
    return [lines, log]


if __name__ == "__main__":
    common.main(__doc__, measure)

"""How long `berg page` takes to open with 1,000 past jobs, and how much memory it holds."""

import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import common
import requests
from common import Cloud, Cost, Result, Target, median, rounds, table
from list import ZONE, write_jobs

from berg import job
from berg.google.storage import Bucket

sys.path.insert(0, str(common.TOP / "tests"))
import chromium

OPENED = 50
JOBS = 1000
SERVED = f"the page of a sweep of {JOBS}"
DRAWN = f"{SERVED}, drawn with its charts"


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) << 10


def write_sweep(cloud: Cloud, count: int) -> None:
    """A sweep that is over: each of its jobs has two parameters and a loss."""
    bucket = Bucket(cloud.config)

    def write(number: int) -> None:
        name, folder = f"grid-{number}", f"grid/{number}"
        made = job.Job(
            name, "true", folder, f"gs://{bucket.name}/{folder}", "repo", "0" * 40, "0" * 40
        )
        made.created_at, made.created_by = job.now(), cloud.config.user
        made.snapshot = {"commit": "0" * 40}
        made.sweep = "grid"
        made.params = {
            "lr": str(10 ** -(1 + number % 50 / 10)),
            "width": str(32 * (1 + number % 7)),
        }
        state = job.State("SUCCEEDED", 0, machine=name, zone=ZONE, job=made.summary())
        bucket.write(job.metadata_path(name), made.to_json())
        text = state.to_json()
        bucket.write(job.state_path(name), text, metadata={"state": text})
        loss = {"step": 1, "loss": (number * 7919 % count) / count}
        bucket.write(f"berg_results/{folder}/metrics.jsonl", json.dumps(loss) + "\n")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, range(count)))
    bucket.write(job.sweep_path("grid"), json.dumps({"jobs": []}))


def reason(costs: dict[str, list[Cost]]) -> str:
    """Return why charts of a sweep take longer than a second."""
    if DRAWN not in costs:
        return ""
    served = median(costs[SERVED])
    return (
        f"Berg serves it in {served:.2f} s; the other {median(costs[DRAWN]) - served:.2f} s are Chromium's "
        "without a GPU, which parses 4.8 MB of chart library and draws"
    )


def measure(repeats: int) -> list[Result]:
    with Cloud() as cloud:
        write_jobs(cloud, 0, 1000, 0)
        command = [common.BIN / "berg", "page"]
        server = subprocess.Popen(
            command, env=cloud.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert server.stdout
        address = server.stdout.readline().strip()
        root = address.partition("?")[0]
        session = requests.Session()
        session.trust_env = False
        session.get(address)

        def page(path: str = "", last: str = "job-999") -> Cost:
            began = time.perf_counter()
            shown = session.get(root + path).text
            assert last in shown
            return Cost(time.perf_counter() - began, 0, shown)

        sides = {
            "the page of all jobs": lambda: cloud.counted(page),
            "the page of one": lambda: cloud.counted(lambda: page("job/job-999/")),
            "`berg list --limit 1000`": lambda: cloud.counted(
                lambda: cloud.berg("list", "--limit", "1000")
            ),
        }
        if chromium.PROGRAM:
            with chromium.Browser(cloud.home) as browser:
                browser.open(address)

                def seen() -> Cost:
                    began = time.perf_counter()
                    browser.open(root)
                    browser.wait("document.querySelectorAll('#list tbody tr').length >= 1000")
                    return Cost(time.perf_counter() - began, 0)

                def drawn() -> Cost:
                    began = time.perf_counter()
                    browser.open(f"{root}sweep/grid/")
                    browser.eval("document.querySelector('#pictures').scrollIntoView()")
                    browser.wait(
                        "document.querySelectorAll('.plotted .xaxislayer-above').length >= 2"
                    )
                    return Cost(time.perf_counter() - began, 0)

                sides["the page of all jobs, drawn by Chromium"] = lambda: cloud.counted(seen)
                costs = rounds(sides, repeats)
                write_sweep(cloud, JOBS)
                of_sweep = {
                    SERVED: lambda: cloud.counted(lambda: page("sweep/grid/", "grid-999")),
                    DRAWN: lambda: cloud.counted(drawn),
                }
                costs |= rounds(of_sweep, repeats)
        else:
            costs = rounds(sides, repeats)
        before = resident(server.pid)
        for _ in range(OPENED):
            page()
        grown = resident(server.pid) - before
        server.send_signal(signal.SIGINT)
        server.wait(20)
    targets = [
        Target(f"opening {name}", median(each), 1, "s", reason(costs) * (name == DRAWN))
        for name, each in costs.items()
        if "page" in name
    ]
    targets.append(Target(f"memory growth while opened {OPENED} times", grown / 1e6, 20, "MB"))
    note = "No live machines. Chromium: until all rows are drawn."
    return [table("Page", note, costs, targets, net=True)]


if __name__ == "__main__":
    common.main(__doc__, measure)

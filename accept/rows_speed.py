"""Speed: what users wait for, in seconds. A row is red only far beyond its limit, as the computer has
other work; the reason has what was measured, and with `--other` how that compares.
"""

import contextlib
import datetime
import os
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from accept.rows_hostile import Copies
from accept.suite import check, row
from accept.world import Laptop, Trial
from localcloud import guide

FAR = 3  # times the limit, before a row is red; more if the computer has more to do than it can
FILES, BYTES = 2000, 50_000
JOBS = 5000
MAKE = f"""
import os, pathlib

folder = pathlib.Path(os.environ["BERG_RESULTS_DIR"]) / "many"
folder.mkdir()
for number in range({FILES}):
    (folder / str(number)).write_bytes(os.urandom({BYTES}))
"""


def judged(what: str, seconds: float, limit: float, others: dict[str, float]) -> str:
    """What to say of a measurement, compared with others by name."""
    told = f"{what}: {seconds:.2f} s (limit {limit:g})"
    load = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    told += f", with {load:.1f} × the load" if load > 1.5 else ""
    told += "".join(f", {seconds / each:.2f} × {name}" for name, each in others.items() if each)
    check(seconds <= FAR * load * limit, told)
    return told


def by_berg(t: Trial, measure: Callable[[str], float]) -> tuple[float, dict[str, float]]:
    """The measurement of the berg that is tried, and of the other one, if there is any."""
    return measure(t.laptop.berg), {"other": measure(t.other)} if t.other else {}


def took(t: Trial, berg: str, *words: str) -> float:
    """Seconds of a command that must succeed."""
    began = time.monotonic()
    done = Laptop(berg, t.laptop.home, t.told)(*words, cwd=t.repo, timeout=60)
    seconds = time.monotonic() - began
    check(done.code == 0, f"berg {' '.join(words)[:60]}: exit {done.code}: {done.last}")
    return seconds


def median(t: Trial, times: int, *words: str) -> tuple[float, dict[str, float]]:
    """The usual seconds of a command, by this berg and by the other one."""
    return by_berg(t, lambda berg: statistics.median(took(t, berg, *words) for _ in range(times)))


@row("speed", "`berg --help` is there at once", name="help", is_alone=True, is_sample=True)
def help_page(t: Trial) -> str:
    seconds, others = median(t, 5, "--help")
    return judged("--help", seconds, 0.3, others)


@row("speed", "a submit after an edit", name="submit", latency=0, limit=1.5, is_alone=True)
@row(
    "speed",
    "a submit after an edit, 30 ms away",
    name="submit, 30 ms",
    latency=0.03,
    limit=2.5,
    is_alone=True,
)
def submit(t: Trial, latency: float, limit: float) -> str:
    """Machines without a process, so that only the laptop works."""
    t.cloud.settings(boot=0, latency=latency)

    def measure(berg: str) -> float:
        seconds = []
        for number in range(4):
            (t.repo / "train.py").write_text(f"print({berg!r}, {number})\n")
            name = t.name(f"{'o' if berg == t.other else 'j'}{number}")
            seconds.append(took(t, berg, "run", "-g", "0", "-n", name, "true"))
        return statistics.median(seconds[1:])

    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    seconds, others = by_berg(t, measure)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return judged("submit", seconds, limit, others) + f"; CPU {used / 4 / (1 + len(others)):.2f} s"


@row("speed", "results come as fast as with Google's own program", name="fetch", is_alone=True)
def fetch(t: Trial) -> str:
    t.files({"make.py": MAKE})
    job = t.ran("python3 make.py")
    folder = t.folder / t.prefix / "got"

    def measure(berg: str) -> float:
        shutil.rmtree(folder, ignore_errors=True)
        seconds = took(t, berg, "fetch", job, str(folder))
        check(len(list((folder / "many").iterdir())) == FILES, "files are missing")
        return seconds

    seconds, others = by_berg(t, measure)
    others["gcloud"] = copied(t, f"gs://{t.cloud.bucket}/berg_results/{job}/many")
    return judged(f"fetch of {FILES} × {BYTES // 1000} kB", seconds, 8, others)


def copied(t: Trial, source: str) -> float:
    """Seconds for which Google's program copies; 0 if it cannot here."""
    folder = t.folder / t.prefix / "copied"
    folder.mkdir()
    port = int(t.cloud.endpoint.rpartition(":")[2])
    env = guide.environment(t.cloud.folder or Path(), port, t.cloud.project)
    env["CLOUDSDK_AUTH_ACCESS_TOKEN"] = t.cloud.session.credentials.token
    words, began = ["gcloud", "storage", "cp", "-r", source, str(folder)], time.monotonic()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            words, env={**os.environ, **env}, capture_output=True, timeout=60, check=True
        )
    seconds = time.monotonic() - began
    return seconds if sum(path.is_file() for path in folder.rglob("*")) == FILES else 0.0


@row("speed", "a resumed job has its files soon", name="restore", is_alone=True)
def restore(t: Trial) -> str:
    """From `berg run --resume` to the command, which finds all files; and how long it is without."""
    t.files({"make.py": MAKE})
    mark = "date +%s.%N >$BERG_RESULTS_DIR/began"
    found = f"test $(ls $BERG_RESULTS_DIR/many | wc -l) = {FILES}"
    job = t.ran(f"{found} 2>/dev/null && {mark} && exit 0; python3 make.py; exit 1", ends="FAILED")
    began = time.time()
    t.ok("run", "-y", "--resume", job)
    name = f"berg_results/{job}/began"
    first = float(t.until(lambda: t.cloud.read(name), "the command with its files", 60) or 0)
    return judged(f"{FILES} files restored", first - began, 12, {})


@row(
    "speed",
    "a machine's first line, from its creation",
    name="cold start",
    prepared=0,
    limit=15,
    is_alone=True,
)
@row(
    "speed",
    "the same with a golden image",
    name="cold start, golden image",
    prepared=1,
    limit=5,
    is_alone=True,
)
def cold_start(t: Trial, prepared: int, limit: float) -> str:
    t.cloud.settings(prepared=prepared)
    job = t.run("date +%s.%N >$BERG_RESULTS_DIR/began; sleep 3")
    created = t.until(lambda: t.machines(job), "a machine")[0]["creationTimestamp"]
    t.ended(job, "SUCCEEDED")
    first = datetime.datetime.fromisoformat(created).timestamp()
    return judged("first line", float(t.results(job)["began"]) - first, limit, {})


@row("speed", "a second start, on a devbox", name="second start", is_alone=True)
def second_start(t: Trial) -> str:
    box, took = t.devbox(), []
    for number in range(3):
        job = t.name(f"on{number}")
        began = time.time()
        t.ok("run", "-y", "--on", box, "-n", job, "date +%s.%N >$BERG_RESULTS_DIR/began")
        t.ended(job, "SUCCEEDED")
        took.append(float(t.results(job)["began"]) - began)
    return judged("from `run --on` to the command", statistics.median(took), 5, {})


@row("speed", "the list of 5,000 jobs", name="list", is_alone=True)
def list_of_many(t: Trial) -> str:
    """The last row, as it leaves many objects."""
    t.cloud.settings(write_interval=0)
    copies = Copies(t, t.ran("true"))
    listed = [n for n in copies.found if n.endswith("_state.json") or n.startswith(".berg/index/")]
    copies.found = {name: copies.found[name] for name in listed}
    names = [f"{t.prefix}-n{number:04}" for number in range(JOBS)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(copies.write, names))
    seconds, others = median(t, 3, "list", "-a")
    return judged(f"list of {JOBS} jobs", seconds, 2, others)

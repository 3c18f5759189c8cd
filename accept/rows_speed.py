"""Speed: what users wait for, in seconds. A row is red only far beyond its limit, as the computer has
other work; the reason has what was measured. `make bench` compares it with other programs.
"""

import datetime
import os
import re
import statistics
import subprocess
import sys
import time

from accept.suite import check, row
from accept.world import Trial

FAR = 3  # times the limit, before a row is red; more if the computer has more to do than it can


def judged(what: str, seconds: float, limit: float) -> str:
    """What to say of a measurement."""
    load = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    told = f"{what}: {seconds:.2f} s (limit {limit:g}), with {load:.1f} × the load"
    check(seconds <= FAR * load * limit, told)
    return told


def took(t: Trial, *words: str) -> float:
    """Seconds of a command that must succeed."""
    began = time.monotonic()
    t.ok(*words)
    return time.monotonic() - began


@row("speed", "`berg --help` is there at once", name="help", is_alone=True, is_sample=True)
def help_page(t: Trial) -> str:
    return judged("--help", statistics.median(took(t, "--help") for _ in range(5)), 0.3)


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
    seconds = []
    for number in range(4):
        (t.repo / "train.py").write_text(f"print({number})\n")
        seconds.append(took(t, "run", "-g", "0", "-n", t.name(f"j{number}"), "true"))
    return judged("submit", statistics.median(seconds[1:]), limit)


BIG = """
import hashlib, os, sys, time
print("began", time.time(), flush=True)
os.chdir(sys.argv[1])
is_first = os.environ.get("BERG_ATTEMPT") == "1"
if is_first:
    with open("big", "wb") as file:
        for _ in range(300): file.write(os.urandom(1 << 20))
    os.mkdir("many")
    for number in range(3000):
        open(f"many/{number}", "w").write(f"{number} " * 40)
digest = hashlib.sha256()
for name in ["big", *sorted(f"many/{name}" for name in os.listdir("many"))]:
    digest.update(open(name, "rb").read())
print("digest", digest.hexdigest(), flush=True)
sys.exit(is_first)
"""


@row(
    "speed",
    "a file of 300 MB and 3,000 small ones come exactly and soon, by a fetch and to a resumed job",
    minutes=8,
    is_alone=True,
)
def results(t: Trial) -> str:
    """The program sums up what it finds: on its machines, and here what a fetch brought."""
    t.files({"big.py": BIG})
    job = t.ran("python big.py $BERG_RESULTS_DIR", ends="FAILED", seconds=150)
    told = judged("fetch", took(t, "fetch", job, "../fetched"), 20)
    began = time.time()
    t.ok("run", "-y", "--resume", job)
    t.reached(job, "SUCCEEDED", seconds=150)
    words = [sys.executable, "big.py", "../fetched"]
    here = subprocess.run(words, cwd=t.repo, capture_output=True, text=True, check=True).stdout
    log = t.log(job)
    first, *others = re.findall("(?m)^digest .*", f"{log}\n{here}")
    check(others == [first] * 2, f"resume or fetch bring other bytes: {first}, {others}")
    resumed = float(re.findall(r"(?m)^began ([\d.]+)", log)[-1]) - began
    return f"{told}; {judged('resume', resumed, 20)}"


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
    t.reached(job, "SUCCEEDED")
    first = datetime.datetime.fromisoformat(created).timestamp()
    return judged("first line", float(t.results(job)["began"]) - first, limit)

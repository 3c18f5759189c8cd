"""Whatever a program writes and however it ends: what comes back is the folder at one instant.

A random writer tells its history to the suite while it writes; then its machines end in some way.
What the next attempt finds, and what `berg fetch` brings, must be the folder as it was at one
instant: with notice the last one, without notice one of the last 30 seconds.
"""

import datetime
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from accept import judge, writer
from accept.suite import check, row
from accept.world import Trial

SOURCE = Path(writer.__file__).read_text()
BUCKETS: dict[str, tuple[str, dict[str, Any]]] = {  # what is told to the embedded cloud
    "30 ms": ("settings", {"latency": 0.03}),
    "slow": ("settings", {"bandwidth": 1_500_000}),
    "stalls": ("faults", {"method": "storage.objects.insert", "delay": 20, "probability": 0.03}),
    "fails": ("faults", {"method": "storage.objects.*", "status": 503, "probability": 0.2}),
}
NOTICE = {"end", "failure", "kill", "limit", "preemption"}
NOTICE |= {"worker killed", "worker killed before a preemption"}
ON_SPOT = {"preemption", "spot power loss"}


def submit(t: Trial, cut: str, machines: int, heard: judge.Collector, rate: float) -> str:
    t.files({"writer.py": SOURCE})
    options = ["--spot"] if cut in ON_SPOT else []
    options += ["-m", str(machines), "--each"] if machines > 1 else []
    options += ["--max-hours", "0.02"] if cut == "limit" else []
    return t.run(f"python writer.py {heard.port} {t.seed} {rate}", *options, name="data")


ENDS = {  # how an attempt ends that has no next one by itself
    "end": ["SUCCEEDED"],
    "failure": ["FAILED"],
    "kill": ["KILLED"],
    "limit": ["FAILED", "KILLED"],
    "worker killed": ["FAILED"],
    "worker killed before a preemption": ["FAILED", "LOST"],
    "power loss": ["LOST", "KILLED", "FAILED"],
}


def make_cut(t: Trial, cut: str, job: str, machines: int) -> float:
    """End the first attempt, and return when its program was ended without notice, if it was."""
    victim, at = t.dice.randrange(machines), time.time()
    names = [machine["name"] for machine in t.machines(job)]
    if cut.startswith("worker killed"):
        t.kill_worker(job, victim)
    if "preemption" in cut:
        t.power(names[victim], "preempt", grace=30)
    for name in {"spot power loss": names[victim:][:1], "power loss": names}.get(cut, []):
        t.power(name, "crash")
    if cut in ("kill", "power loss"):
        t.ok("kill", "-y", job)
    if cut in ENDS:
        t.reached(job, *ENDS[cut], seconds=180)
    return at if "power" in cut else 0.0


def life(t: Trial, cut: str, machines: int = 1, bucket: str = "") -> str:
    """Let a program live and end, and judge what the next one finds and what a fetch brings."""
    heard = judge.Collector()
    t.ending.callback(heard.close)
    rate, seconds = t.dice.choice([1, 5, 20, 50]), t.dice.uniform(14, 26)
    ends_itself = cut in ("end", "failure")
    heard.answer = {"seconds": seconds if ends_itself else 1000, "code": int(cut == "failure")}
    heard.answer["pace"] = t.dice.choice([0, 4, 4])
    job = submit(t, cut, machines, heard, rate)
    first = heard.histories[job, 1]
    t.until(lambda: len(first.found) == machines, f"{machines} writers that begin")
    if bucket:
        route, what = BUCKETS[bucket]
        more = {"match": job, "times": None, "seed": t.seed} if route == "faults" else {}
        t.cloud.control("POST", route, {**what, **more})
    if not ends_itself and cut != "limit":
        time.sleep(seconds)
    with heard.lock:
        heard.answer = {"seconds": 0, "code": 0, "pace": 0}  # what comes next only looks
    stamp = t.state(job).get("synced_until") or "1970-01-01T00:00:00Z"
    synced = datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    cut_at, told = make_cut(t, cut, job, machines), []
    looks = {"fetch": fetched, "next attempt": seen}
    for where in ["next attempt", "fetch"] if cut in ON_SPOT else [*looks]:
        if where == "fetch" or cut != "end":
            found = looks[where](t, job, heard, machines, cut in ON_SPOT)
            told.append(f"{where} is {verdict(first, found, cut, cut_at, synced, where)}")
    if cut != "limit":
        t.gone()
    return f"{rate} a second, {len(first.changes)} changes: " + ", ".join(told)


def seen(t: Trial, job: str, heard: judge.Collector, machines: int, comes: bool) -> judge.Listing:
    """What the next attempt finds, which comes by itself or is asked for; on all machines the same."""
    if not comes:
        t.ok("run", "--resume", job)
    found = heard.histories[job, 2].found
    t.until(lambda: len(found) == machines, "the next attempt", 120)
    t.reached(job, "SUCCEEDED")
    for rank in range(1, machines):
        check(found[rank] == found[0], f"next attempt: rank {rank} finds other files than rank 0")
    return found[0]


def fetched(t: Trial, job: str, *_: Any) -> judge.Listing:
    folder = t.repo.parent / "fetched"
    t.ok("fetch", job, str(folder))
    return writer.listing(str(folder))


def verdict(
    first: judge.History, found: judge.Listing, cut: str, at: float, synced: float, where: str
) -> str:
    """How old what was found is; Red if it is no instant, or too old."""
    said = judge.judge(first, found, first.found[0])
    end = at or first.last
    check(not said.wrong, f"{where}: {said.wrong}")
    age = 0.0 if said.is_last else max(0.0, end - said.at)
    if cut in NOTICE:
        check(said.is_last, f"{where}: rolled back {age:.1f} s: {said.late}")
        return "the last state"
    check(age <= 30, f"{where}: {age:.1f} s old: {said.late}")
    check(
        said.is_last or said.at >= synced - 1,
        f"{where}: {synced - said.at:.1f} s older than synced_until says",
    )
    old = 0.0 if said.database_at == float("inf") else end - said.database_at
    check(old <= 30, f"{where}: the database is {old:.1f} s old")
    return f"{age:.1f} s old"


INSTANT = "what comes back is the folder at one instant: "
LAST, RECENT = f"{INSTANT}the last", f"{INSTANT}of the last 30 s, and not before synced_until"
SAMPLE = {f"{cut}, 1 machine" for cut in ("end", "kill", "worker killed", "spot power loss")}
SAMPLE |= {"spot power loss, 2 machines"}
for name, machines, bucket in [
    *[
        (cut, 1, "")
        for cut in (
            "end",
            "failure",
            "kill",
            "limit",
            "preemption",
            "worker killed",
            "worker killed before a preemption",
            "power loss",
            "spot power loss",
        )
    ],
    *[
        (cut, 1, bucket)
        for bucket in ("30 ms", "slow", "stalls", "fails")
        for cut in ("kill", "spot power loss")
    ],
    *[
        (cut, 2, "")
        for cut in ("end", "kill", "limit", "preemption", "power loss", "spot power loss")
    ],
    *[(cut, 2, "fails") for cut in ("preemption", "spot power loss")],
    *[(cut, 4, "") for cut in ("kill", "spot power loss")],
]:
    title = f"{name}, {machines} machine{'s' * (machines > 1)}" + (
        f", bucket {bucket}" if bucket else ""
    )
    row(
        "data",
        LAST if name in NOTICE else RECENT,
        title,
        cut=name,
        machines=machines,
        bucket=bucket,
        minutes=8,
        is_sample=title in SAMPLE,
    )(life)


BIG = """
import hashlib, os, sys
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


@row("data", "a file of 300 MB and 3,000 small ones come exactly, to a resumed job, too", minutes=8)
def large_and_many(t: Trial) -> None:
    """The program sums up what it finds: on its machines, and here what a fetch brought."""
    t.files({"big.py": BIG})
    job = t.ran("python big.py $BERG_RESULTS_DIR", ends="FAILED", seconds=150)
    t.ok("fetch", job, "../fetched")
    t.ok("run", "-y", "--resume", job)
    t.reached(job, "SUCCEEDED", seconds=150)
    words = [sys.executable, "big.py", "../fetched"]
    here = subprocess.run(words, cwd=t.repo, capture_output=True, text=True, check=True).stdout
    first, *others = re.findall("(?m)^digest .*", f"{t.log(job)}\n{here}")
    check(others == [first] * 2, f"resume or fetch bring other bytes: {first}, {others}")

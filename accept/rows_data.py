"""Whatever a program writes and however it ends: what comes back is the folder at one instant.

A random writer tells its history to the suite while it writes; then its machines end in some way.
What the next attempt finds, and what `berg fetch` brings, must be the folder as it was at one
instant: with notice the last one, without notice one of the last 30 seconds.
"""

import datetime
import time
from pathlib import Path

from accept import judge, writer
from accept.suite import Red, check, row
from accept.world import Trial

SOURCE = Path(writer.__file__).read_text()
BUCKETS = {
    "": {},
    "30 ms": {"latency": 0.03},
    "slow": {"bandwidth": 1_500_000},
    "stalls": {},
    "fails": {},
}
NOTICE = {"end", "failure", "kill", "limit", "preemption"}
ON_SPOT = {"preemption", "spot power loss"}


def trouble(t: Trial, bucket: str, job: str) -> None:
    """Make the bucket as the row says, for this job's requests."""
    if BUCKETS[bucket]:
        t.cloud.settings(**BUCKETS[bucket])
    if bucket == "stalls":
        t.cloud.fault(
            "storage.objects.insert", match=job, delay=20, times=None, probability=0.03, seed=t.seed
        )
    if bucket == "fails":
        t.cloud.fault(
            "storage.objects.*", match=job, status=503, times=None, probability=0.2, seed=t.seed
        )


def submit(t: Trial, cut: str, machines: int, heard: judge.Collector, rate: float) -> str:
    t.files({"writer.py": SOURCE})
    options = ["--spot"] if cut in ON_SPOT else []
    options += ["-m", str(machines), "--each"] if machines > 1 else []
    options += ["--max-hours", "0.02"] if cut == "limit" else []
    return t.run(f"python writer.py {heard.port} {t.seed} {rate}", *options, name="data")


def make_cut(t: Trial, cut: str, job: str, machines: int, heard: judge.Collector) -> float:
    """End the first attempt, and return when its program was ended without notice, if it was."""
    at = 0.0
    victim = t.dice.randrange(machines)
    names = [machine["name"] for machine in t.machines(job)]
    if cut in ("end", "failure"):
        t.ended(job, "SUCCEEDED" if cut == "end" else "FAILED", seconds=150)
    elif cut == "kill":
        t.ok("kill", "-y", job)
        t.ended(job, "KILLED")
    elif cut == "limit":
        t.ended(job, "FAILED", "KILLED", seconds=150)
    elif cut == "preemption":
        t.power(names[victim], "preempt", grace=30)
    elif cut == "spot power loss":
        at = time.time()
        t.power(names[victim], "crash")
    elif cut == "power loss":
        at = time.time()
        for name in names:
            t.power(name, "crash")
        t.ok("kill", "-y", job)
        t.ended(job, "LOST", "KILLED", "FAILED")
    elif cut == "worker killed":
        t.kill_worker(job, victim)
        t.ended(job, "FAILED", seconds=180)
    return at


def life(t: Trial, cut: str, machines: int = 1, bucket: str = "", pace: float = 4) -> str:
    """Let a program live and end, and judge what the next one finds and what a fetch brings."""
    heard = judge.Collector()
    t.ending.callback(heard.close)
    rate, seconds = t.dice.choice([1, 5, 20, 50]), t.dice.uniform(14, 26)
    lasts = {"end": seconds, "failure": seconds}.get(cut, 1000)
    pace = t.dice.choice([0, pace, pace])
    heard.answer = {"seconds": lasts, "code": 3 if cut == "failure" else 0, "pace": pace}
    job = submit(t, cut, machines, heard, rate)
    first = heard.histories[job, 1]
    t.until(lambda: len(first.found) == machines, f"{machines} writers that begin")
    trouble(t, bucket, job)
    if cut not in ("end", "failure", "limit"):
        time.sleep(seconds)
    with heard.lock:
        heard.answer = {"seconds": 0, "code": 0, "pace": 0}  # what comes next only looks
    synced = stamp(t.state(job).get("synced_until"))
    cut_at = make_cut(t, cut, job, machines, heard)
    check(not heard.broken, f"the suite's own fault: {heard.broken}")
    told = []
    if cut in ON_SPOT:
        t.until(lambda: len(heard.histories[job, 2].found) == machines, "the next attempt", 120)
        told.append(seen(heard, job, machines, first, cut, cut_at, synced))
        t.ended(job, "SUCCEEDED")
    told.append(fetched(t, job, first, cut, cut_at, synced))
    if cut not in ON_SPOT and cut != "end":
        t.ok("run", "--resume", job)
        t.until(lambda: len(heard.histories[job, 2].found) == machines, "the next attempt", 120)
        told.append(seen(heard, job, machines, first, cut, cut_at, synced))
        t.ended(job, "SUCCEEDED")
    if cut != "limit":
        t.gone()
    return f"{rate} a second, {len(first.changes)} changes: " + ", ".join(told)


def seen(
    heard: judge.Collector,
    job: str,
    machines: int,
    first: judge.History,
    cut: str,
    at: float,
    synced: float,
) -> str:
    """Judge what each machine of the next attempt found."""
    found = heard.histories[job, 2].found
    for rank in range(1, machines):
        check(found[rank] == found[0], f"next attempt: rank {rank} finds other files than rank 0")
    return "next attempt " + verdict(first, found[0], cut, at, synced, "next attempt")


def fetched(t: Trial, job: str, first: judge.History, cut: str, at: float, synced: float) -> str:
    folder = t.repo.parent / "fetched"
    done = t.ok("fetch", job, str(folder))
    check(folder.exists(), f"fetch: nothing came: {done.last}")
    return "fetch " + verdict(first, writer.listing(str(folder)), cut, at, synced, "fetch")


def verdict(
    first: judge.History, found: judge.Listing, cut: str, at: float, synced: float, where: str
) -> str:
    """How old what was found is; Red if it is no instant, or too old."""
    said = judge.judge(first, found, first.found[0])
    end = at or first.last
    if said.wrong:
        raise Red(f"{where}: {said.wrong}")
    age = 0.0 if said.is_last else max(0.0, end - said.at)
    if cut in NOTICE or cut == "worker killed":
        check(said.is_last, f"{where}: rolled back {age:.1f} s: {said.late}")
        return "is the last state"
    check(age <= 30, f"{where}: {age:.1f} s old: {said.late}")
    check(
        said.is_last or said.at >= synced - 1,
        f"{where}: {synced - said.at:.1f} s older than synced_until says",
    )
    old = 0.0 if said.database_at == float("inf") else end - said.database_at
    check(old <= 30, f"{where}: the database is {old:.1f} s old")
    return f"is {age:.1f} s old"


def stamp(text: str | None) -> float:
    """Seconds since 1970 of a time in a record; 0 if there is none."""
    if not text:
        return 0.0
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


INSTANT = "what comes back is the folder at one instant: "
LAST, RECENT = f"{INSTANT}the last", f"{INSTANT}of the last 30 s, and not before synced_until"
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
        LAST if name in NOTICE or name == "worker killed" else RECENT,
        title,
        cut=name,
        machines=machines,
        bucket=bucket,
        minutes=8,
        is_sample=title == "end, 1 machine",
    )(life)

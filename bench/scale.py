"""1,000 machines and 10,000 live jobs: `berg list`, the page, and `berg kill` of a sweep.

The machines run nothing, so the kill is one with --now. Ten sweeps share them; one job in ten runs, the others
wait.
"""

import contextlib
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import common
import requests
from common import (
    FAR,
    Cloud,
    Cost,
    Result,
    Target,
    distance,
    median,
    ratio,
    rounds,
    table,
)
from list import ZONE, make_machines

from berg import job
from berg.google.storage import Bucket
from berg.laptop import index

SWEEPS = 10
SIZES = (1_000, 10_000)  # jobs
JOBS_OF_A_MACHINE = 10
LIST, GCLOUD = "`berg list`", "`gcloud compute instances list`"
PAGE, KILL = "the page of all jobs", "`berg kill --now` of a sweep"
WHY = (
    "Python takes 0.11 ms to read and check a state, 1.1 s for 10,000, which gcloud does not read; machines, "
    "index and Python's start take 0.5 s"
)
WHY_KILL = "each job's state is written and each machine deleted and waited for, sixteen at a time"
NO_LIMITS = (
    "CPUS",
    "INSTANCES",
    "IN_USE_ADDRESSES",
    "SSD_TOTAL_GB",
    "DISKS_TOTAL_GB",
)


def lift_quotas(cloud: Cloud) -> None:
    cloud.call("POST", "/_berg/settings", {"boot": 0, "grace": 0})
    for metric in NO_LIMITS:
        quota = {"metric": metric, "limit": 1e9, "project": cloud.project}
        cloud.call("POST", "/_berg/quotas", {**quota, "region": "us-central1"})
    quota = {"metric": "CPUS_ALL_REGIONS", "limit": 1e9, "project": cloud.project}
    cloud.call("POST", "/_berg/quotas", quota)


def of_sweep(cloud: Cloud, sweep: str) -> job.Job:
    """Return a job of a sweep as it was submitted."""
    folder = f"{sweep}/0000"
    this = job.Job(
        f"{sweep}-0000",
        "python train.py",
        folder,
        f"gs://{cloud.bucket}/berg_results/{folder}",
        "repo",
        "0" * 40,
        "0" * 40,
    )
    this.created_at, this.created_by = job.now(), cloud.config.user
    this.snapshot, this.sweep = {"commit": "0" * 40}, sweep
    return this


def write_sweep(cloud: Cloud, sweep: str, jobs: int, machines: int) -> None:
    """A sweep as it is while its first jobs run, each on a machine, and the others wait."""
    bucket, this = Bucket(cloud.config), of_sweep(cloud, sweep)
    names = [f"{sweep}-{number:04}" for number in range(jobs)]
    running = job.State("RUNNING", zone=ZONE, started_at=job.now(), job=this.summary())
    waiting = job.State("SUBMITTED", job=this.summary())

    def states() -> Iterator[tuple[str, dict[str, Any]]]:
        for number, name in enumerate(names[1:], 1):
            state = waiting
            if number < machines:
                running.machine = name
                state = running
            text = state.to_json().replace(f"{sweep}/0000", f"{sweep}/{number:04}")
            yield job.state_path(name), {"metadata": {"state": text}}

    running.machine = names[0]
    bucket.write(job.metadata_path(names[0]), this.to_json())
    text = running.to_json()
    bucket.write(job.state_path(names[0]), text, metadata={"state": text})
    cloud.multiply(job.state_path(names[0]), states())
    copies = ((job.metadata_path(name), {}) for name in names[1:])
    cloud.multiply(job.metadata_path(names[0]), copies)
    bucket.write(job.sweep_path(sweep), '{"jobs": []}')
    index.note(bucket, names[0], this.summary())
    make_machines(cloud, names[:machines], {"berg-sweep": sweep})


def fill(cloud: Cloud, jobs: int) -> None:
    """All sweeps, with so many jobs between them."""
    lift_quotas(cloud)
    each = jobs // SWEEPS
    for number in range(SWEEPS):
        write_sweep(cloud, f"sweep-{number}", each, each // JOBS_OF_A_MACHINE)
    cloud.berg("list")  # makes the index


def beat(cloud: Cloud) -> None:
    """Let all states be as new as those of jobs that run are: workers write theirs twice a minute."""
    with sqlite3.connect(cloud.home / "local/storage/index.sqlite3", timeout=60) as objects:
        objects.execute(
            "UPDATE objects SET resource = json_set(resource, '$.updated', ?) "
            "WHERE CAST(name AS TEXT) LIKE '%_state.json' AND resource LIKE '%RUNNING%'",
            (job.now().replace("+00:00", "Z"),),
        )
    objects.close()


@contextlib.contextmanager
def page_of(cloud: Cloud) -> Iterator[Callable[[], Cost]]:
    """Start the page; yield what opens it."""
    server = subprocess.Popen(
        [common.BIN / "berg", "page"],
        env=cloud.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout
    address = server.stdout.readline().strip()
    session = requests.Session()
    session.trust_env = False
    session.get(address)

    def page() -> Cost:
        began = time.perf_counter()
        shown = session.get(address.partition("?")[0]).text
        assert f"sweep-{SWEEPS - 1}" in shown
        return Cost(time.perf_counter() - began, 0, shown)

    yield page
    server.send_signal(signal.SIGINT)
    server.wait(20)


def sides(cloud: Cloud, page: Callable[[], Cost]) -> dict[str, Callable[[], Cost]]:
    """What is measured, the kill at last: each takes another sweep."""
    numbers = iter(range(SWEEPS))
    found = {LIST: lambda: cloud.berg("list"), PAGE: page}
    if common.has("gcloud"):
        found[GCLOUD] = lambda: cloud.gcloud("compute", "instances", "list")
    found[KILL] = lambda: cloud.berg("kill", "--now", f"sweep-{next(numbers)}")
    return {name: lambda run=run: cloud.counted(run) for name, run in found.items()}  # type: ignore[misc]


def measured(jobs: int, repeats: int) -> dict[str, list[Cost]]:
    """Return what each side costs while so many jobs live, 30 ms away."""
    with Cloud() as cloud:
        fill(cloud, jobs)
        with cloud.far(FAR), page_of(cloud) as page:
            found = sides(cloud, page)
            kill = {KILL: found.pop(KILL)}
            costs = rounds(found, repeats, lambda: beat(cloud))
            costs |= rounds(kill, min(repeats, 3), lambda: beat(cloud))
    return costs


def measure(repeats: int) -> list[Result]:
    few, many = (measured(jobs, repeats) for jobs in SIZES)
    jobs = SIZES[1] // SWEEPS
    each = median(many[KILL], "requests") / jobs
    targets = [
        Target(f"{LIST}: wall with {SIZES[1]:,} jobs", median(many[LIST]), 3, "s", WHY),
        Target(f"opening {PAGE} with {SIZES[1]:,} jobs", median(many[PAGE]), 4, "s", WHY),
        Target(f"{KILL} of {jobs:,} jobs: requests for each", each, 3, "requests each"),
        Target(f"{KILL} of {jobs:,} jobs", median(many[KILL]), 20, "s", WHY_KILL),
    ]
    if GCLOUD in many:
        over = ratio(many, LIST, GCLOUD)
        targets.append(Target(f"{LIST}: wall over gcloud's", over, 1, why=WHY))
    for name in (LIST, PAGE, KILL):
        grown = median(many[name]) / median(few[name])
        text = f"{name}: wall with {SIZES[1]:,} jobs over {SIZES[0]:,}"
        targets.append(Target(text, grown, SIZES[1] / SIZES[0]))
    note = f"{distance(FAR).capitalize()}. gcloud shows only the machines. The kill ends a tenth of the jobs."
    titles = [f"Scale: {jobs:,} jobs" for jobs in SIZES]
    return [
        table(titles[0], note, few, [], net=True),
        table(titles[1], note, many, targets, net=True),
    ]


if __name__ == "__main__":
    common.main(__doc__, measure)

"""A job's plan, and its machine, in the process of a test: what features decide is seen without a boot."""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud
from records import CODE

from berg import gce, worker
from berg import job as jobs
from berg.bucket import Bucket
from berg.command import Command
from berg.config import Config
from berg.job import Job, State
from berg.results import Mirror
from berg.run import Plan
from berg.worker import Facts, Run

# Without a cloud, for what asks it nothing: no request would get an answer.
ALONE = Config(project="p", bucket="b", user="ada", endpoint="http://127.0.0.1:9")
NUMBERS = itertools.count()


def fresh(name: str) -> str:
    """A name of its own for each case of a test: a bucket takes one write a second of an object."""
    return f"{name}-{next(NUMBERS)}"


def stand_ins(monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]) -> None:
    """Let things have other values until the test ends, by their names."""
    for name, value in values.items():
        monkeypatch.setattr(name, value)


def job_of(name: str, cmd: str = "true", **about: Any) -> Job:
    about = {
        "machine_type": "n1-standard-8",
        "max_seconds": 1000,
        "created_at": jobs.now(),
        **about,
    }
    return Job(name, cmd, "proj", CODE, name, **about)


def plan_of(cloud: Cloud | None, job: Job, features: Any = (), ended: State | None = None) -> Plan:
    config = cloud.config if cloud else ALONE
    shape = gce.Shape(job.machine_type, job.gpus, job.gpu_type)
    request = gce.body(config, job, shape, 200)
    rows, zones = {"Machine": str(shape), "Zones": ""}, ["us-central1-a"]
    return Plan(config, job, None, request, zones, [*features], rows, ended=ended)


def state_of(job: Job, state: str = jobs.RUNNING, ago: float = 0, **about: Any) -> State:
    """A state that was reached so many seconds ago."""
    at = jobs.now(time.time() - ago)
    times = {jobs.SUBMITTED: at} | ({jobs.STARTING: at} if state != jobs.SUBMITTED else {})
    about = {"created_at": at, "id": job.id, "results": job.results, **about}
    return State(job.name, state, times={**times, state: at}, **about)


def run_of(
    cloud: Cloud | None, folder: Path, job: Job, rank: int = 0, up: float = 0, begun: bool = True,
    features: Any = (), monkeypatch: pytest.MonkeyPatch | None = None, **state: Any,
) -> Run:  # fmt: skip
    """A machine that is up for so many seconds; its marks are in this folder."""
    since = str(time.clock_gettime(time.CLOCK_BOOTTIME) - up)
    facts = Facts("77", job.machine_names[rank], "us-central1-a", "10.0.0.1",
                  {"berg-since": since}, False, False)  # fmt: skip
    log, command = folder / "log", Command(f"test-{job.name}")
    now = state_of(job, **state)
    config, bucket = (cloud.config, cloud.bucket) if cloud else (ALONE, Bucket(ALONE))
    run = Run(config, bucket, facts, job, now, 0, [*features], log, command, rank)
    if monkeypatch:
        monkeypatch.setattr(worker, "BEGAN", folder / "began")
        if begun:
            worker.BEGAN.write_text(run.title)
    return run


def mirrored(cloud: Cloud, folder: Path, job: str, **more: Any) -> tuple[Mirror, Path]:
    """The results of a job of one machine, and its own folder below this one."""
    mirror = Mirror(str(folder), cloud.bucket, "berg_results/", job, job, "0", **more)
    mirror.restore()
    (folder / job).mkdir(parents=True, exist_ok=True)
    return mirror, folder / job

"""`berg run --resume JOB`: a job that is over goes on, under its name and with its results, on
machines made anew.

It is for what nobody else heals: a slice of TPUs that lost a machine, a cluster, a machine that
Google does not make anew. Not covered: sweeps (sweep.py), devboxes.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from berg import BergError, job, places
from berg.config import Config
from berg.google import secret
from berg.google.storage import Bucket, Changed
from berg.laptop import jobs, launch, records
from berg.plan import Plan, spec_of


def described(config: Config, name: str) -> tuple[jobs.Entry, job.Job]:
    """A job that can go on, as it is and as it was asked for; raises BergError for any other."""
    found = jobs.find(config, name)
    state, this = found.state, records.described_job(Bucket(config), found.name)
    if state is None or this is None or not this.spec:
        raise BergError(f"what {name} was asked for with is not known. Start it as new: berg run")
    if this.kind != "job" or this.sweep:
        what = (
            f"a job of the sweep {this.sweep}: berg run --resume {this.sweep}"
            if this.sweep
            else "a devbox"
        )
        raise BergError(f"{name} is {what}")
    if not records.is_over(found):
        raise BergError(f"{name} is not over ({found.status}). See it: berg list")
    records.check_kept(found)
    if state.state == "SUCCEEDED":
        raise BergError(
            f"{name} succeeded: there is nothing left to do. To run it again: berg rerun {name}"
        )
    if state.restarts >= this.max_restarts:
        times = f"{state.restarts} times, as often as --max-restarts allows"
        raise BergError(f"{name} began anew {times}. To run it again: berg rerun {name}")
    return found, this


def plan(config: Config, this: job.Job) -> Plan:
    """What the job's machines are to be, from its own spec and code."""
    spec = replace(spec_of(this), name=this.job_name, results_dir=this.results_dir)
    made = launch.prepare(config, spec, Path.cwd(), code=records.code_of(config, this), again=True)
    return replace(made, job=replace(this, place=made.job.place, group=made.job.group))


def submit(found: jobs.Entry, plan: Plan, say: Callable[[str], None]) -> str:
    """Let the job begin anew on new machines; returns where. If that fails it is over again, and
    has none.
    """
    config, this, bucket = plan.config, plan.job, Bucket(plan.config)
    place = places.of(this.place)
    assert found.stored
    state = replace(
        found.stored.state, state="SUBMITTED", exit_code=None, reason="", ending="", finished_at=""
    )
    state.failures = state.ran_seconds = 0
    for archive in (plan.wheel, plan.packages):
        launch.send_archive(bucket, *archive)
    try:
        generation = write(bucket, this.job_name, state, found.stored.generation)
    except Changed:
        raise BergError(
            f"{found.name} changed meanwhile. Try again: berg run --resume {found.name}"
        ) from None
    try:
        launch.forget_machines(bucket, this)
        if plan.secrets:
            secret.store(config, this.job_name, plan.secrets, this.max_run_seconds)
        place.warm_up()
        tell = launch.alive(config, this, state.to_json(), generation, say)
        return place.create(config, place.request(plan), plan.machines, bool(this.group), tell)
    except BaseException:
        say("Taking back what was created")
        place.delete(
            config, this.job_name, place.machines(config, jobs=[this.job_name]), this.group
        )
        if plan.secrets:
            secret.delete(config, this.job_name)
        now = bucket.get(job.state_path(this.job_name))
        write(bucket, this.job_name, found.stored.state, now.generation if now else 0)
        raise


def write(bucket: Bucket, name: str, state: job.State, generation: int) -> int:
    text = state.to_json()
    return bucket.write(job.state_path(name), text, generation, metadata={"state": text})

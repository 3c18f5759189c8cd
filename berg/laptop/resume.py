"""`berg run --resume JOB`: a job that is over goes on, under its name and with its results, on
machines made anew.

It is for what nobody else heals: a slice of TPUs that lost a machine, a cluster, a machine that
Google does not make anew. Not covered: sweeps (sweep.py), devboxes.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from berg import BergError, job, places, states
from berg.config import Config
from berg.google import secret
from berg.google.storage import Bucket, Changed
from berg.laptop import index, jobs, launch, records
from berg.plan import Plan, spec_of
from berg.spec import JobSpec, rows

# Options that are given again when a job resumes or runs again.
ASKED_AGAIN = [name for name, row in rows(JobSpec).items() if row.asked_again]
# Fields of a job that today's berg may fill otherwise than the one that submitted it.
COMPARED = (
    "image",
    "docker",
    "machine_type",
    "gpus_per_machine",
    "gpu_type",
    "tpu",
    "num_machines",
    "place",
    "group",
    "env",
    "data",
    "mounts",
    "max_run_seconds",
    "berg_version",
)


def described(config: Config, name: str) -> tuple[jobs.Entry, job.Job]:
    """A job that can go on, as it is and as it was asked for; raises BergError for any other."""
    found = jobs.find(config, name)
    state, this = found.state, records.described_job(Bucket(config), found.name)
    if state is None or this is None:
        raise BergError(f"what {name} was asked for with is not known. Start it as new: berg run")
    if this.sweep:
        raise BergError(
            f"{name} is a job of the sweep {this.sweep}: berg run --resume {this.sweep}"
        )
    if this.kind != "job":
        raise BergError(f"{name} is a devbox")
    if not (records.is_over(found) or records.is_about_to_go(found)):
        raise BergError(f"{name} is not over ({found.status}). See it: berg list")
    records.check_kept(found)
    if state.state == "SUCCEEDED":
        raise BergError(
            f"{name} succeeded: there is nothing left to do. To run it again: berg rerun {name}"
        )
    if state.restarts >= this.spec.max_restarts:
        times = f"{state.restarts} times, as often as --max-restarts allows"
        raise BergError(f"{name} began anew {times}. To run it again: berg rerun {name}")
    return found, this


def asked_anew(this: job.Job, given: dict[str, Any]) -> JobSpec:
    """Return what a job was asked for with, and of what is `given` now the secrets, the webhook and
    the patch for its pods, which are taken out there.

    Raise BergError where one of its secrets is not given, or its patch.
    """
    anew = {key: given.pop(key) for key in ASKED_AGAIN if key in given}
    check_secrets(this, "--secret", this.secrets, anew.get("secrets", ()))
    given_to_install = anew.get("install_secrets", ())
    check_secrets(this, "--install-secret", this.install_secrets, given_to_install)
    spec = with_patch(this, anew.pop("pod_patch", None))
    return replace(spec, **anew)


def with_patch(this: job.Job, patch: dict[str, Any] | None) -> JobSpec:
    """Return what a job was asked for with, and the patch for its pods that is given now. What it
    was allowed to cost only lowers the user's own limit.

    Raise BergError where it had one and none is given: what its record says may be another's, and
    would be sent to the cluster with the rights of who lets it run again.
    """
    if this.spec.pod_patch and patch is None:
        raise BergError(
            f"{this.sweep or this.job_name} had a patch for its pods, which berg asks for anew: "
            "--pod-patch FILE"
        )
    spec = spec_of(this)
    lower = min(filter(None, (spec.max_cost, spec.lower_cost)), default=0)
    return replace(spec, max_cost=None, lower_cost=lower, pod_patch=patch)


def check_secrets(this: job.Job, option: str, names: list[str], secrets: tuple[str, ...]) -> None:
    """Raise BergError where one of a job's secrets of these names is not given by the option."""
    given = {text.partition("=")[0] for text in secrets}
    if missing := [name for name in names if name not in given]:
        options = " ".join(f"{option} {name}" for name in missing)
        raise BergError(
            f"{this.sweep or this.job_name} had secrets, which berg asks for anew: {options} "
            "(or NAME=FILE)"
        )


def plan(config: Config, this: job.Job, spec: JobSpec) -> Plan:
    """Return what the job and its machines are to be, made anew from its spec and its code."""
    named = replace(spec, name=this.job_name, results_dir=this.results_dir)
    made = launch.prepare(config, named, Path.cwd(), code=records.code_of(config, this), again=True)
    now = replace(
        made.job,
        spec=spec.recorded(),
        snapshot=this.snapshot,
        created_at=this.created_at,
        created_by=this.created_by,
    )
    return replace(made, job=now)


def differences(before: job.Job, now: job.Job) -> list[str]:
    """Return what a job that goes on has otherwise than it had, in words."""
    found = []
    for name in COMPARED:
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            found.append(f"{name.replace('_', ' ')}: {old or 'none'} before, now {new or 'none'}")
    if before.spec.pod_patch != now.spec.pod_patch:
        found.append("the patch for its pods is another one")
    return found


def submit(found: jobs.Entry, plan: Plan, say: Callable[[str], None]) -> str:
    """Let the job begin anew on new machines; return where they are.

    If that fails it is over again, and has none.
    """
    assert found.stored
    config, this, bucket = plan.config, plan.job, Bucket(plan.config)
    if left := launch.wait_until_gone(config, this, say):
        raise BergError(f"{', '.join(left)} did not go. End it first: berg kill {found.name}")
    if this.group.region:  # whose request failed, or whose machines are gone
        places.of(this.place).delete(config, this.job_name, [], this.group)
    for archive in plan.archives:
        if warning := launch.send_archive(bucket, *archive, plan.there):
            say(warning)
    state = replace(begun_anew(found.stored.state), job=this.summary())
    try:
        claimed = states.claim(bucket, this.job_name, state, found.stored.generation)
    except Changed:
        raise BergError(
            f"{found.name} changed meanwhile. Try again: berg run --resume {found.name}"
        ) from None
    try:
        launch.forget_machines(bucket, this)
        index.note(bucket, this.job_name, this.summary())
        states.write_job(bucket, this)  # its machines run what has this hash
        if plan.secrets:
            secret.store(config, this.job_name, plan.secrets, this.max_run_seconds, plan.accounts)
        places.of(this.place).warm_up()
        return launch.create(plan, claimed, say)
    except BaseException:
        say("Deleting what was created")
        take_back(plan, claimed, found.stored.state)
        raise


def begun_anew(state: job.State) -> job.State:
    """Return the state of a job that is over as it is to begin anew."""
    return replace(
        state,
        state="SUBMITTED",
        exit_code=None,
        reason="",
        ending="",
        finished_at="",
        failures=0,
        ran_seconds=0,
        undeleted={},
    )


def take_back(plan: Plan, claimed: states.Stored, before: job.State) -> None:
    """Delete the machines of a job that could not go on, and let it be over as it was before."""
    config, this, bucket = plan.config, plan.job, Bucket(plan.config)
    there = states.read(bucket, this.job_name)
    if there is None or there.state.claim != claimed.state.claim:
        return  # somebody deleted the job, or lets it go on as well
    place = places.of(this.place)
    place.delete(config, this.job_name, place.machines(config, jobs=[this.job_name]), this.group)
    if plan.secrets:
        secret.delete(config, this.job_name)
    if there := states.read(bucket, this.job_name):
        states.replaced(bucket, there, before)

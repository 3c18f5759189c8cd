"""`berg run --resume JOB`: a job that has ended runs again on new machines, under its name and with
its results, for example after a TPU slice lost a machine. Sweeps are in sweep.py.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from berg import BergError, job, places, states
from berg.config import Config
from berg.google.storage import Bucket, Changed
from berg.laptop import jobs, launch, lookup, records, reuse
from berg.laptop.jobs import Say
from berg.plan import Plan, spec_of
from berg.spec import JobSpec, rows

# Options that are given again when a job resumes or runs again.
ASKED_AGAIN = [name for name, row in rows(JobSpec).items() if row.asked_again]
# Fields of a job that may differ if it is submitted again.
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


def find(config: Config, name: str) -> tuple[jobs.Entry, job.Job]:
    """Return a job that can resume, and its metadata; raise BergError for any other."""
    found = jobs.find(config, name)
    state, this = found.state, read_job(config, found.name)
    if state is None:
        raise BergError(f"{name} is a machine without a job. End it: berg kill {name}")
    if this.sweep:
        raise BergError(
            f"{name} is a job of the sweep {this.sweep}: berg run --resume {this.sweep}"
        )
    if this.kind != "job":
        raise BergError(f"{name} is a devbox")
    if not (records.is_over(found) or records.is_about_to_go(found)):
        raise BergError(f"{name} has not ended ({found.status}). See it: berg list")
    records.check_kept(found)
    if state.state == "SUCCEEDED":
        raise BergError(
            f"{name} succeeded, so nothing is left to do. To run it again: berg rerun {name}"
        )
    if state.restarts >= this.spec.max_restarts:
        times = f"{state.restarts} times, as often as --max-restarts allows"
        raise BergError(f"{name} restarted {times}. To run it again: berg rerun {name}")
    if this.on:
        check_box(config, this)
    return found, this


def check_box(config: Config, this: job.Job) -> None:
    """Raise BergError if the devbox of a job is gone, or takes no jobs now."""
    try:
        reuse.checked_box(config, jobs.find(config, this.on))
    except BergError as error:
        name, box = this.job_name, this.on
        raise BergError(f"{name} resumes on its devbox {box} alone. {error.message}") from None


def read_job(config: Config, name: str) -> job.Job:
    """Return a job's metadata; raise BergError if it is missing or damaged."""
    this = states.read_job(Bucket(config), name)
    if this is None:
        raise BergError(
            f"the options of {name} are not known. Start it as a new job: berg run. To use its "
            f"name again: berg rm {name}"
        )
    return this


def spec_again(this: job.Job, given: dict[str, Any]) -> JobSpec:
    """Return a job's spec with the secrets, webhook and patch that are `given` now, which are taken
    out there; raise BergError if one is missing.
    """
    again = {key: given.pop(key) for key in ASKED_AGAIN if key in given}
    check_secrets(this, "--secret", this.secrets, again.get("secrets", ()))
    check_secrets(this, "--install-secret", this.install_secrets, again.get("install_secrets", ()))
    return replace(with_patch(this, again.pop("pod_patch", None)), **again)


def with_purse(config: Config, spec: JobSpec, before: job.Job) -> JobSpec:
    """Return a spec that draws on the purse of the job before, unless one is given or set."""
    if spec.purse or config.purse:
        return spec
    return replace(spec, purse=before.spec.purse)


def with_patch(this: job.Job, patch: dict[str, Any] | None) -> JobSpec:
    """Return a job's spec with the patch for its pods that is given now; its cost limit can only
    lower the user's own.

    Raise BergError if its record has a patch and none is given: another user may have written the
    record, and the patch would reach the cluster with the rights of this one.
    """
    if this.spec.pod_patch and patch is None:
        raise BergError(
            f"{this.sweep or this.job_name} had a patch for its pods. Give it again: "
            "--pod-patch FILE"
        )
    spec = spec_of(this)
    lower = min(filter(None, (spec.max_cost, spec.lower_cost)), default=0)
    return replace(spec, max_cost=None, lower_cost=lower, pod_patch=patch)


def check_secrets(this: job.Job, option: str, names: list[str], secrets: tuple[str, ...]) -> None:
    """Raise BergError if one of a job's secrets is not given by the option."""
    given = {text.partition("=")[0] for text in secrets}
    if missing := [name for name in names if name not in given]:
        options = " ".join(f"{option} {name}" for name in missing)
        raise BergError(
            f"{this.sweep or this.job_name} had secrets. Give them again: {options} (or NAME=FILE)"
        )


def plan(config: Config, this: job.Job, spec: JobSpec) -> Plan:
    """Return the plan of a job that resumes, from its spec and its code."""
    named = replace(spec, name=this.job_name, results_dir=this.results_dir)
    made = launch.prepare(config, named, Path.cwd(), code=records.code_of(config, this), again=True)
    now = replace(
        made.job,
        spec=spec.recorded(),
        snapshot=this.snapshot,
        begins_with=this.begins_with,
        created_at=this.created_at,
        created_by=this.created_by,
    )
    return replace(made, job=now, files=made.files if this.fresh else 0)  # else they are its own


def differences(before: job.Job, now: job.Job) -> list[str]:
    """Return how a resumed job differs from before, in words."""
    found = []
    for name in COMPARED:
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            found.append(f"{name.replace('_', ' ')}: {old or 'none'} before, now {new or 'none'}")
    if before.spec.pod_patch != now.spec.pod_patch:
        found.append("the patch for its pods is another one")
    return found


def submit(found: jobs.Entry, plan: Plan, say: Say) -> str:
    """Submit the job again on new machines and return their zone; if that fails, undo it."""
    assert found.stored
    config, this, bucket = plan.config, plan.job, Bucket(plan.config)
    if left := launch.wait_until_gone(config, this, say):
        raise BergError(
            f"{', '.join(left)} could not be deleted. End it first: berg kill {found.name}"
        )
    if this.group.region:  # whose request failed, or whose machines are gone
        places.of(this.place).delete(config, this.job_name, [], this.group)
    for archive in plan.archives:
        if warning := launch.send_archive(bucket, *archive, plan.there):
            say(warning)
    state = replace(submitted_again(found.stored.state), job=this.summary())
    state.claim = states.new_claim()
    try:
        launch.claim_folders(plan, bucket, state)
        generation = found.stored.generation
        claimed = states.claim(bucket, this.job_name, state, generation, token=state.claim)
    except (Changed, lookup.Taken):
        raise BergError(
            f"{found.name} changed meanwhile. Try again: berg run --resume {found.name}"
        ) from None
    try:
        launch.forget_machines(bucket, this)
        return launch.write_and_create(plan, claimed, say)
    except BaseException:
        with launch.cleaning_up(this.job_name, say):
            launch.take_back(config, this, claimed, found.stored.state)
        raise


def submitted_again(state: job.State) -> job.State:
    """Return the state of an ended job as SUBMITTED again."""
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

"""Jobs on a devbox of one's own (berg run --on): which devbox can take one, and how it gets it.

The devbox's metadata name the job and the hash of its record. They change under a fingerprint: of
two laptops at once the second one sees the job of the first. The devbox's worker does the rest
(machine/hosting.py).
"""

import contextlib
import json
from dataclasses import replace
from datetime import timedelta

from berg import BergError, job, states
from berg.config import Config
from berg.google import api, instances
from berg.google.shapes import Shape
from berg.google.storage import Bucket, Changed
from berg.job import Machine
from berg.laptop import jobs, warm
from berg.laptop.spending import LEAST
from berg.plan import Choice, Offer, Plan
from berg.spec import JobSpec

ANSWER = 60  # seconds in which a devbox begins a job
START = "Start one: berg devbox -n NAME"


def choose(config: Config, spec: JobSpec) -> Choice:
    """Return the devbox that a spec names; raise BergError if it takes no job."""
    found = jobs.find(config, spec.on or "")
    machine = checked(config, found)
    assert found.state
    instance = api.find(config, instances.path_of(machine))
    values = {each["key"]: each["value"] for each in instance.get("metadata", {}).get("items", [])}
    check_free(config, found.name, values, spec, spec.name or "")
    this = states.read_job(Bucket(config), found.name)
    if this is None:
        raise BergError(f"--on {found.name}: its record is missing. {START}")
    shape = Shape(machine.machine_type, this.gpus_per_machine, this.gpu_type)
    seconds = warm.seconds_left(instance)
    until = job.timestamp(api.time_of(job.now()) + timedelta(seconds=seconds))
    kind = this.gpu_type or this.tpu or machine.machine_type
    day = "" if until[:10] == job.now()[:10] else f"{until[:10]} "
    line = f"devbox {found.name} ({kind}), until {day}{until[11:16]} UTC; nothing new is created"
    costs = jobs.by_the_hour(replace(found.state, job=this.summary()), 1)
    offer = Offer(
        shape=shape,
        hosts=1,
        image=this.image,
        zones=[machine.zone],
        rows=[("Machine", line), ("Cost", f"none of its own: {found.name} costs {costs} anyway")],
        ender=f"{found.name} ends",
        accounts=(machine.account,),
        box=machine,
        seconds=seconds,
    )
    return Choice(shape, 1, this.image, offer=offer)


def checked(config: Config, found: jobs.Entry) -> Machine:
    """Return the machine of a devbox that may take jobs; raise BergError with what to do if it is
    none, or not now.
    """
    name, state, machine, summary = found.name, found.state, found.machine, found.summary
    whys: list[tuple[object, str]] = [
        (state is None or summary.kind != "devbox", f"it is no devbox. {START}"),
        (summary.place == "gke", f"it is a pod, which runs nothing else. {START}"),
        (summary.machines > 1, f"it has {summary.machines} machines, not one. {START}"),
        (found.is_stopped, f"it is stopped. Start it: berg start {name}"),
        (machine is None or (state and state.final), f"it is {found.status}. {START}"),
        (machine and not jobs.is_users(config, machine), f"it is {summary.user}'s devbox. {START}"),
        (found.status != "RUNNING", f"it is {found.status}. Wait for it: berg tail {name}"),
    ]
    if why := next((text for is_so, text in whys if is_so), ""):
        raise BergError(f"--on {name}: {why}")
    assert machine
    return machine


def check_free(
    config: Config, box: str, values: dict[str, str], spec: JobSpec, name: str = ""
) -> dict[str, dict[str, str]]:
    """Return the jobs of a devbox that have not ended, by its metadata; raise BergError if there
    are others than `name`, unless the spec shares it.
    """
    living = running(config, values)
    if (others := living.keys() - {name}) and not spec.share:
        other = min(others)
        raise BergError(
            f"{box} runs {other} already. Wait for it: berg wait {other}, end it: berg kill "
            f"{other}, or run both at the same time: --share"
        )
    return living


def running(config: Config, values: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return the jobs of a devbox that have not ended, by its metadata."""
    found = {}
    for name, facts in job.hosted(values).items():
        stored = states.read(Bucket(config), name)
        if stored is None or stored.is_damaged or stored.state.final:
            continue
        if facts.get(job.CLAIM) == stored.state.claim:  # else of an earlier submit
            found[name] = facts
    return found


def limited(plan: Plan) -> Plan:
    """Return a plan whose job ends before its devbox; raise BergError if that is too soon."""
    box, left = plan.job.on, plan.offer.seconds
    if left < LEAST:
        raise BergError(
            f"--on {box}: it ends in {max(left, 0) // 60} minutes. {START}, or start it again: "
            f"berg stop {box} && berg start {box}"
        )
    if left >= plan.job.max_run_seconds:
        return plan
    return replace(plan, job=replace(plan.job, max_run_seconds=left), limit=f"what {box} has left")


def give(plan: Plan, claim: str) -> str:
    """Let a devbox run a job, wait until it has begun, and return its zone; raise BergError if it
    has another job by now, or does not answer. `claim` is that of the job's state.
    """
    config, this, box = plan.config, plan.job, plan.offer.box
    assert box
    facts = {f"berg-{key.replace('_', '-')}": value for key, value in plan.facts.items() if value}
    facts[job.CLAIM] = claim

    def change(values: dict[str, str]) -> dict[str, str]:
        living = check_free(config, this.on, values, plan.job.spec, this.job_name)
        living.pop(this.job_name, None)
        return {
            **dict.fromkeys(requests_to_end(values, {this.on, *living}), ""),
            job.HOSTED: json.dumps({**living, this.job_name: facts}),
        }

    def has_begun() -> bool:
        stored = states.read(Bucket(config), this.job_name)
        return stored is None or stored.state.state != "SUBMITTED"

    instances.change_metadata(config, box, change)
    if not api.wait_for(has_begun, 0.3, ANSWER):
        raise BergError(
            f"{this.on} did not begin the job within {ANSWER} s: see why: berg log {this.on}. One "
            "that an older berg started takes no jobs; start a new one"
        )
    return box.zone


def requests_to_end(values: dict[str, str], others: set[str]) -> list[str]:
    """Return the keys of a devbox's metadata that ended jobs, but not `others`."""
    kept = {f"berg-kill-{name}" for name in others}
    return [key for key in values if key.startswith("berg-kill-") and key not in kept]


def end_with(config: Config, box: str, names: list[str]) -> None:
    """Write that jobs have ended with a devbox that is deleted, unless their workers did."""
    bucket = Bucket(config)
    for stored in states.several(bucket, names):
        if not (stored.is_damaged or stored.state.final):
            reason = f"its devbox {box} was deleted"
            ended = replace(stored.state, state="FAILED", reason=reason, finished_at=job.now())
            with contextlib.suppress(Changed):
                states.replaced(bucket, stored, ended)


def take_back(config: Config, box: str, name: str) -> None:
    """End a job that could not be submitted, if its devbox began it."""
    with contextlib.suppress(BergError, api.GoogleError):  # the devbox is gone
        if machine := jobs.find(config, box).machine:
            instances.set_metadata(config, machine, f"berg-kill-{name}", f"{config.user} now")

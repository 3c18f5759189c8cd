"""Jobs on machines that are there: a devbox of one's own (berg run --on), or machines that earlier
jobs kept warm. Which one can take a job, and how the job gets it.

A devbox's metadata name the job and the hash of its record. They change under a fingerprint: of two
laptops at once the second one sees the job of the first. The devbox's worker does the rest
(machine/hosting.py).

A warm machine fits if the request that created it is the one that would create the job's, but for
what is the job's own. The instance says which that was: its metadata, which no machine can change,
have a hash. Offers in the bucket are hints. What pip installed into the image's python stays there,
so that such jobs must install the same; uv's environments are made exact for each job.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

from berg import BergError, gce, job, plain, states
from berg.code import snapshot
from berg.code.installation import DECLARING, PROJECT
from berg.config import Config
from berg.google import api, instances
from berg.google.shapes import Shape
from berg.google.storage import Bucket, Changed
from berg.job import Machine
from berg.laptop import jobs
from berg.laptop.spending import LEAST
from berg.plan import Choice, Offer, Plan, Warm
from berg.spec import JobSpec

OF_A_JOB = ["berg-job", "berg-job-sha256", "berg-dist", "berg-dist-sha256"]  # metadata
OF_A_JOB += ["berg-packages", "berg-packages-sha256", "ssh-keys", "berg-cluster-key"]
SHAPE = "berg-shape"  # metadata: the hash
MOST = 20  # offers that are looked at
AT_ONCE = 64  # requests about the machines of one offer
WARM_ANSWER = 40  # seconds in which a machine takes a job that claimed it
WARM_BEGINS = 3  # seconds from then to its command, without its installation
USUAL = round(JobSpec().max_hours * 3600)
BOX_ANSWER = 60  # seconds in which a devbox begins a job
START_BOX = "Start one: berg devbox -n NAME"


# --- machines that earlier jobs kept warm


def find_warm(config: Config, spec: JobSpec) -> list[Warm]:
    """Return the user's machines that wait for such a job; forget all that are gone."""
    is_of_machines = spec.cmd is not None and not (spec.cluster or spec.tpu)
    if spec.on or spec.fresh_machine or spec.elsewhere or not is_of_machines:
        return []
    bucket = Bucket(config)

    def look(offered: tuple[states.Offer, int]) -> Warm | None:
        with contextlib.suppress(api.GoogleError):  # no such zone or name: any job may write that
            return of_offer(*offered)
        return None

    def of_offer(offer: states.Offer, generation: int) -> Warm | None:
        path = f"/zones/{offer.zone}/instances/"
        first = api.find(config, path + offer.machine)
        if first.get("id") != offer.id:
            with contextlib.suppress(Changed):  # a new machine of that name offers itself
                bucket.delete_at(offer.path, generation)
            return None
        is_fit = offer.num_machines == spec.num_machines and not offer.claimed_by
        if not is_fit or not is_mine(config, first):
            return None
        with ThreadPoolExecutor(AT_ONCE) as pool:
            others = pool.map(lambda name: api.find(config, path + name), offer.names[1:])
            found = [first, *others]
        if not all(each and is_mine(config, each) for each in found):
            return None
        return Warm(offer, generation, found, min(map(seconds_left, found)))

    with ThreadPoolExecutor(MOST) as pool:
        return [each for each in pool.map(look, islice(states.offers(bucket), MOST)) if each]


def is_mine(config: Config, instance: dict[str, Any]) -> bool:
    """Return whether a machine runs, and is the user's."""
    machine = instances.machine_of(instance)
    return machine.status == "RUNNING" and jobs.is_users(config, machine)


def seconds_left(instance: dict[str, Any]) -> int:
    """Return for how long a machine may still run a job: Google ends it at a fixed time."""
    ends = instance.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp", "")
    if not ends:
        return 0
    return round(-job.age_seconds(ends)) - states.LAST_SECONDS


def with_warm(plan: Plan) -> Plan:
    """Return a plan with the warm machine that has most time left of those that fit.

    A job with the usual time limit ends with its machine, if that has half of the time left.
    """
    there = [] if plan.job.group else plan.waiting  # a group makes its machines itself
    fit = [each for each in there if each.offer.zone in plan.offer.zones]
    fit = [each for each in fit if is_same(plan, each)]
    if not fit:
        return plan
    best, keeps = max(fit, key=lambda each: each.seconds), round(plan.job.spec.keep_warm)
    left, wanted = best.seconds - keeps, plan.job.max_run_seconds
    since = plain.span(job.age_seconds(best.offer.since))
    machine = best.offer.title
    line = f"warm: {machine}, since {since}; begins after about {WARM_BEGINS} s"
    changes: dict[str, Any] = {"warm": best}
    if left < wanted == USUAL and left > USUAL / 2:
        limited = replace(plan.job, max_run_seconds=left)
        changes |= {"job": limited, "limit": f"the time left of {machine}"}
    elif left < wanted:
        changes = {}
        line = f"not {machine}, which is warm: {plain.span(max(left, 0))} are left of its time"
    (what, text), *rows = plan.offer.rows
    return replace(
        plan, offer=replace(plan.offer, rows=[(what, text), ("", line), *rows]), **changes
    )


def is_same(plan: Plan, found: Warm) -> bool:
    wanted = shape_of(plan, found.offer.zone)
    return all(instances.metadata_of(each).get(SHAPE) == wanted for each in found.instances)


def shape_of(plan: Plan, zone: str) -> str:
    """Return the hash of what must be the same of two jobs on one machine."""
    body = gce.body(plan, zone)
    items = instances.metadata_of(body)
    request = without_labels(body)
    request["scheduling"].pop("maxRunDuration")
    request.pop("resourcePolicies", None)  # each job's own, and only for machines to be created
    request["metadata"] = {key: items[key] for key in items if key not in OF_A_JOB}
    about = [plan.config.ssh_user, bool(plan.job.docker), recipe(plan)]
    return hashlib.sha256(json.dumps([request, about], sort_keys=True).encode()).hexdigest()


def without_labels(value: Any) -> Any:
    if isinstance(value, list):
        return [without_labels(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: without_labels(each) for key, each in value.items() if key != "labels"}


def recipe(plan: Plan) -> list[Any]:
    """Return what a job installs outside of an environment of its own."""
    what, script = plan.job.installation, plan.job.spec.install_script
    if not script and all(step[:2] == ["uv", "sync"] for step in what.steps):
        return []
    if plan.snapshot.ran:  # its files may be in the bucket alone
        return [plan.job.repo_name, plan.job.git_snapshot]
    files = snapshot.files_in(plan.snapshot)
    names = [(folder, name) for folder in {what.folder, ""} for name in (*DECLARING, PROJECT)]
    texts = [files.text(*each) for each in sorted(names)]
    return [plan.job.repo_name, what.steps, what.venv, texts, files.text("", script or "")]


def with_shape(plan: Plan, request: dict[str, Any]) -> dict[str, Any]:
    """Return the request for a job's machine, with what later jobs compare if it is kept warm."""
    if plan.job.spec.keep_warm:
        for zone, body in request.items():
            body["metadata"]["items"].append({"key": SHAPE, "value": shape_of(plan, zone)})
    return request


def take_warm(plan: Plan, say: Callable[[str], None]) -> str:
    """Let the plan's warm machine take the job; return its zone, "" if it takes none any more.

    Of several machines the first one gets it last, and takes it for all.
    """
    assert plan.warm
    bucket, offer, name = Bucket(plan.config), plan.warm.offer, plan.job.job_name
    first, *others = plan.warm.instances
    machine, what = offer.title, "new machines" if others else "a machine"

    def is_answered() -> bool:
        there, _ = latest_offer(bucket, offer)
        return there.is_taken or there.claimed_by != name

    try:
        states.write_offer(bucket, replace(offer, claimed_by=name), plan.warm.generation)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(functools.partial(give_to_warm, plan), others))
        give_to_warm(plan, first)
        api.wait_for(is_answered, 0.1, WARM_ANSWER)
    except Changed:
        say(f"Another job took {machine}, or its time ended: creating {what}")
        return ""
    except (api.GoogleError, api.OperationFailed) as error:
        say(f"{machine} could not take it: {api.words(error)}. Creating {what} instead")
        end_warm(plan)
        return ""
    if conclude(plan):
        return offer.zone
    say(f"{machine} did not take the job: creating {what}")
    return ""


def end_warm(plan: Plan) -> None:
    """Delete the plan's warm machines, and their offer."""
    assert plan.warm
    machines = [instances.machine_of(each) for each in plan.warm.instances]
    gce.delete(plan.config, plan.job.job_name, machines)
    Bucket(plan.config).delete(plan.warm.offer.path)


def give_to_warm(plan: Plan, instance: dict[str, Any]) -> None:
    """Name the job in a machine's metadata and labels; raise Changed if another laptop did so since
    it was found: this one slept, and its claim was forgotten.
    """
    machine, name = instances.machine_of(instance), plan.job.job_name
    before = instances.metadata_of(instance).get("berg-job")
    items = gce.metadata(plan) | {instances.WARM: name}
    given = {key: items.get(key, "") for key in (*OF_A_JOB, instances.WARM)}

    def change(there: dict[str, str]) -> dict[str, str]:
        if there.get("berg-job") != before:
            raise Changed(f"{machine.name} has another job")
        return given

    instances.change_metadata(plan.config, machine, change)
    # After the metadata, which say who has it.
    instances.set_labels(plan.config, machine, {**plan.labels, instances.WARM: machine.name})


def latest_offer(bucket: Bucket, offer: states.Offer) -> tuple[states.Offer, int]:
    """Return the offer as it is now and its generation; without the object unclaimed, at 0."""
    there = bucket.get(offer.path)
    if there is None:
        return replace(offer, claimed_by=""), 0
    with contextlib.suppress(ValueError, BergError):
        return states.read_offer(there), there.generation
    return replace(offer, claimed_by=""), there.generation


def conclude(plan: Plan) -> bool:
    """Return whether the plan's warm machine took its job; end it if it did not, unless it has
    another.
    """
    assert plan.warm
    bucket, name = Bucket(plan.config), plan.job.job_name
    while True:
        there, generation = latest_offer(bucket, plan.warm.offer)
        is_taken = there.is_taken and there.claimed_by == name
        if not (is_taken or generation) or there.claimed_by not in ("", name):
            return False
        try:
            if is_taken:
                bucket.delete_at(there.path, generation)
                return True
            states.write_offer(bucket, replace(there, is_withdrawn=True), generation)
        except Changed:  # by the machine or another laptop, just now
            continue
        end_warm(plan)
        return False


# --- a devbox of one's own


def choose_box(config: Config, spec: JobSpec) -> Choice:
    """Return the devbox that a spec names; raise BergError if it takes no job."""
    found = jobs.find(config, spec.on or "")
    machine = checked_box(config, found)
    assert found.state
    instance = api.find(config, instances.path_of(machine))
    values = instances.metadata_of(instance)
    check_free(config, found.name, values, spec, spec.name or "")
    this = states.read_job(Bucket(config), found.name)
    if this is None:
        raise BergError(f"--on {found.name}: its record is missing. {START_BOX}")
    shape = Shape(machine.machine_type, this.gpus_per_machine, this.gpu_type)
    seconds = seconds_left(instance)
    until = job.after(seconds)
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


def checked_box(config: Config, found: jobs.Entry) -> Machine:
    """Return the machine of a devbox that may take jobs; raise BergError with what to do if it is
    none, or not now.
    """
    name, state, machine, summary = found.name, found.state, found.machine, found.summary
    whys: list[tuple[object, str]] = [
        (state is None or summary.kind != "devbox", f"it is no devbox. {START_BOX}"),
        (summary.place == "gke", f"it is a pod, which runs nothing else. {START_BOX}"),
        (summary.machines > 1, f"it has {summary.machines} machines, not one. {START_BOX}"),
        (found.is_stopped, f"it is stopped. Start it: berg start {name}"),
        (machine is None or (state and state.final), f"it is {found.status}. {START_BOX}"),
        (
            machine and not jobs.is_users(config, machine),
            f"it is {summary.user}'s devbox. {START_BOX}",
        ),
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
    living = jobs_on_box(config, values)
    if (others := living.keys() - {name}) and not spec.share:
        other = min(others)
        raise BergError(
            f"{box} runs {other} already. Wait for it: berg wait {other}, end it: berg kill "
            f"{other}, or run both at the same time: --share"
        )
    return living


def jobs_on_box(config: Config, values: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return the jobs of a devbox that have not ended, by its metadata."""
    found = {}
    for name, facts in job.hosted(values).items():
        stored = states.read(Bucket(config), name)
        if stored is None or stored.is_damaged or stored.state.final:
            continue
        if facts.get(job.CLAIM) == stored.state.claim:  # else of an earlier submit
            found[name] = facts
    return found


def limited_by_box(plan: Plan) -> Plan:
    """Return a plan whose job ends before its devbox; raise BergError if that is too soon."""
    box, left = plan.job.on, plan.offer.seconds
    if left < LEAST:
        raise BergError(
            f"--on {box}: it ends in {max(left, 0) // 60} minutes. {START_BOX}, or start it again: "
            f"berg stop {box} && berg start {box}"
        )
    if left >= plan.job.max_run_seconds:
        return plan
    return replace(plan, job=replace(plan.job, max_run_seconds=left), limit=f"what {box} has left")


def give_to_box(plan: Plan, claim: str) -> str:
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
        kept = {f"berg-kill-{name}" for name in (this.on, *living)}
        old = [key for key in values if key.startswith("berg-kill-") and key not in kept]
        return {
            **dict.fromkeys(old, ""),
            job.HOSTED: json.dumps({**living, this.job_name: facts}),
        }

    def has_begun() -> bool:
        stored = states.read(Bucket(config), this.job_name)
        return stored is None or stored.state.state != "SUBMITTED"

    instances.change_metadata(config, box, change)
    if not api.wait_for(has_begun, 0.3, BOX_ANSWER):
        raise BergError(
            f"{this.on} did not begin the job within {BOX_ANSWER} s: see why: berg log {this.on}. "
            "One that an older berg started takes no jobs; start a new one"
        )
    return box.zone


def end_with_box(config: Config, box: str, names: list[str]) -> None:
    """Write that jobs have ended with a devbox that is deleted, unless their workers did."""
    bucket = Bucket(config)
    for stored in states.several(bucket, names):
        if not (stored.is_damaged or stored.state.final):
            reason = f"its devbox {box} was deleted"
            ended = replace(stored.state, state="FAILED", reason=reason, finished_at=job.now())
            with contextlib.suppress(Changed):
                states.replaced(bucket, stored, ended)


def take_back_from_box(config: Config, box: str, name: str, claim: str) -> None:
    """End a job that could not be submitted, if its devbox has it with this claim."""
    with contextlib.suppress(BergError, api.GoogleError):  # the devbox is gone
        machine = jobs.find(config, box).machine
        there = instances.metadata(config, machine) if machine else None
        if machine and job.hosted(there or {}).get(name, {}).get(job.CLAIM) == claim:
            instances.set_metadata(config, machine, f"berg-kill-{name}", f"{config.user} now")

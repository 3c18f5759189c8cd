"""Jobs on machines that earlier jobs kept warm: which one fits, and how a job takes it.

A machine fits if the request that created it is the one that would create the job's, but for what
is the job's own. The instance says which that was: its metadata, which no machine can change, have
a hash. Offers in the bucket are hints. What pip installed into the image's python stays there, so
that such jobs must install the same; uv's environments are made exact for each job.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

from berg import gce, job, plain, states, warm
from berg.code import commits
from berg.code.installation import DECLARING, PROJECT
from berg.config import Config
from berg.google import api, instances
from berg.google.storage import Bucket, Changed
from berg.plan import Plan, Warm
from berg.spec import JobSpec
from berg.warm import Offer

OF_A_JOB = ["berg-job", "berg-job-sha256", "berg-dist", "berg-dist-sha256"]  # metadata
OF_A_JOB += ["berg-packages", "berg-packages-sha256", "ssh-keys"]
SHAPE = "berg-shape"  # metadata: the hash
MOST = 20  # machines that are looked at
ANSWER = 40  # seconds in which a machine takes a job that claimed it
BEGINS = 3  # seconds from then to its command, without its installation
USUAL = round(JobSpec().max_hours * 3600)


def find(config: Config, spec: JobSpec) -> list[Warm]:
    """Return the user's machines that wait for a job, and forget those that are gone."""
    is_single = spec.cmd is not None and spec.num_machines == 1 and not (spec.cluster or spec.tpu)
    if spec.fresh_machine or spec.elsewhere or not is_single:
        return []
    bucket = Bucket(config)

    def look(offered: tuple[Offer, int]) -> Warm | None:
        offer, generation = offered
        try:
            instance = api.find(config, f"/zones/{offer.zone}/instances/{offer.machine}")
        except api.GoogleError:  # of a zone that there is not: any job may write that
            return None
        if instance.get("id") != offer.id:
            with contextlib.suppress(Changed):
                bucket.delete_at(offer.path, generation)
            return None
        is_mine = instance.get("labels", {}).get("berg-user") == config.user
        if not is_mine or instance["status"] != "RUNNING" or offer.claimed_by:
            return None
        return Warm(offer, generation, instance, seconds_left(instance))

    with ThreadPoolExecutor(MOST) as pool:
        return [each for each in pool.map(look, islice(states.offers(bucket), MOST)) if each]


def seconds_left(instance: dict[str, Any]) -> int:
    """Return for how long a machine may still run a job: Google ends it at a fixed time."""
    ends = instance.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp", "")
    if not ends:
        return 0
    return round((api.time_of(ends) - api.time_of(job.now())).total_seconds()) - warm.FEW


def fitted(plan: Plan) -> Plan:
    """Return a plan with the warm machine that has most time left of those that fit.

    A job with the usual time limit ends with its machine, if that has half of the time left.
    """
    fit = [each for each in plan.waiting if each.offer.zone in plan.offer.zones]
    fit = [each for each in fit if is_same(plan, each)]
    if not fit:
        return plan
    best, keeps = max(fit, key=lambda each: each.seconds), round(plan.job.spec.keep_warm)
    left, wanted = best.seconds - keeps, plan.job.max_run_seconds
    since = plain.span(job.age_seconds(best.offer.since))
    line = f"warm: {best.offer.machine}, since {since}; begins after about {BEGINS} s"
    changes: dict[str, Any] = {"warm": best}
    if left < wanted == USUAL and left > USUAL / 2:
        limited = replace(plan.job, max_run_seconds=left)
        changes |= {"job": limited, "limit": f"what {best.offer.machine} has left"}
    elif left < wanted:
        changes = {}
        line = f"a new one: {best.offer.machine} is warm, and has {plain.span(max(left, 0))} left"
    (what, text), *rows = plan.offer.rows
    return replace(
        plan, offer=replace(plan.offer, rows=[(what, text), ("", line), *rows]), **changes
    )


def is_same(plan: Plan, found: Warm) -> bool:
    items = found.instance.get("metadata", {}).get("items", [])
    there = {each["key"]: each["value"] for each in items}
    return bool(there.get(SHAPE) == shape(plan, found.offer.zone))


def shape(plan: Plan, zone: str) -> str:
    """Return the hash of what must be the same of two jobs on one machine."""
    body = gce.body(plan, zone)
    items = {each["key"]: each["value"] for each in body.pop("metadata")["items"]}
    request = without_labels(body)
    request["scheduling"].pop("maxRunDuration")
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
    files = commits.of_snapshot(plan.snapshot)
    names = [(folder, name) for folder in {what.folder, ""} for name in (*DECLARING, PROJECT)]
    texts = [files.text(*each) for each in sorted(names)]
    return [plan.job.repo_name, what.steps, what.venv, texts, files.text("", script or "")]


def with_shape(plan: Plan, request: dict[str, Any]) -> dict[str, Any]:
    """Return the request for a job's machine, with what later jobs compare if it is kept warm."""
    if plan.job.spec.keep_warm:
        for zone, body in request.items():
            body["metadata"]["items"].append({"key": SHAPE, "value": shape(plan, zone)})
    return request


def take(plan: Plan, say: Callable[[str], None]) -> str:
    """Let the plan's warm machine take the job; return its zone, "" if it takes none any more."""
    assert plan.warm
    bucket, offer = Bucket(plan.config), plan.warm.offer
    name, machine = plan.job.job_name, instances.machine_of(plan.warm.instance)
    claimed = replace(offer, claimed_by=name)
    try:
        generation = states.write_offer(bucket, claimed, plan.warm.generation)
    except Changed:
        say(f"{machine.name} has another job, or has ended: creating a machine")
        return ""
    items = gce.metadata(plan) | {instances.WARM: name}
    given = {key: items.get(key, "") for key in (*OF_A_JOB, instances.WARM)}
    why = "it does not answer"
    try:
        # The metadata last: with them the machine begins.
        instances.set_labels(plan.config, machine, {**plan.labels, instances.WARM: machine.name})
        instances.change_metadata(plan.config, machine, lambda _: given)
        if api.wait_for(lambda: bucket.get(offer.path) is None, 0.1, ANSWER):
            return offer.zone
    except (api.GoogleError, api.OperationFailed) as error:
        why = api.words(error)
    try:
        states.write_offer(bucket, replace(claimed, is_withdrawn=True), generation)
    except Changed:  # it took the job just now
        return offer.zone
    say(f"{machine.name} cannot take it: {why}. Deleting it, and creating a machine")
    gce.delete(plan.config, name, [machine])
    bucket.delete(offer.path)
    return ""

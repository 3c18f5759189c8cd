"""Machines that wait for room: flex-start, reservations, and --wait-for-capacity.

--wait-for-capacity   a group as for Spot machines makes the machine when there is room
--flex                Google's queue: one machine waits in a zone for up to two hours; several, or
                      those of --queue-timeout, in a group's resize request, all or none
--reservation         room that is paid for already; its zone and machine type are given
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from berg import BergError, gce, google, terminal
from berg import job as jobs
from berg.feature import Feature
from berg.features import spot
from berg.google import GoogleError
from berg.options import duration, option

if TYPE_CHECKING:
    from berg.config import Config
    from berg.job import Job
    from berg.run import Plan
    from berg.worker import Ending, Run

LEAST, MOST = 600, 7 * 86400  # seconds that Google lets machines by flex-start run
QUEUE = 7200  # seconds that one machine waits at most
OLD = 3600  # seconds after which a template that no group has is deleted
NAME = re.compile(
    r"(?:projects/([a-z][a-z0-9:.-]+)/reservations/)?([a-z]([-a-z0-9]{0,61}[a-z0-9])?)"
)
NOT_ON_DEMAND = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g", "a3-ultra", "a4-")


@dataclass
class Flex(Feature):
    flex: bool = option(
        "--flex", default=False, is_flag=True,
        help="Wait in Google's queue for capacity; the machine runs for at most 7 days.",
    )  # fmt: skip
    queue_timeout: float = option(
        "--queue-timeout", default=0.0, type=duration, metavar="DURATION",
        help="Give up if machines by --flex have not come up by then.",
    )  # fmt: skip
    reservation: str = option(
        "--reservation", default="", metavar="NAME",
        help="Use a reservation: NAME, or projects/OWNER/reservations/NAME.",
    )  # fmt: skip
    wait_for_capacity: bool = option(
        "--wait-for-capacity", default=False, is_flag=True,
        help="Wait for capacity instead of failing.",
    )  # fmt: skip

    def change(self, plan: Plan) -> None:
        ways = ["--flex"] * self.flex + ["--reservation"] * bool(self.reservation)
        ways += ["--wait-for-capacity"] * self.wait_for_capacity
        ways += ["--spot"] * (plan.request["scheduling"].get("provisioningModel") == "SPOT")
        if len(ways) != 1:
            told = " and ".join(ways) or "--queue-timeout without --flex"
            raise BergError(f"{told}: a machine comes in one way. Leave out all but one")
        if self.queue_timeout and not self.flex:
            raise BergError("--queue-timeout is for Google's queue. Add --flex")
        if self.wait_for_capacity:
            if plan.job.machines > 1 or plan.job.is_devbox:
                raise BergError("--wait-for-capacity is for jobs on one machine. Use --spot")
            plan.job.returns = True
            plan.create = spot.create_group
            plan.rows["Machine"] += ", when there is room"
        elif self.reservation:
            reserve(plan, self.reservation)
        else:
            self.queue(plan)

    def queue(self, plan: Plan) -> None:
        """Change a plan to flex-start."""
        job, scheduling = plan.job, plan.request["scheduling"]
        seconds = int(scheduling["maxRunDuration"]["seconds"])
        if job.rows:
            raise BergError("flex-start is not for sweeps. Use --spot")
        if not job.gpu_type or "guestAccelerators" in plan.request:
            raise BergError(
                "--flex is for TPUs, and for GPUs that are a part of their machine type, such as l4, a100 or h100. "
                "Choose another -t, or --spot"
            )
        if not LEAST <= seconds <= MOST:
            raise BergError(
                f"--flex: Google gives machines for 10 minutes to 7 days, not for "
                f"{terminal.duration(seconds)}. Give --max-hours"
            )
        scheduling["provisioningModel"] = "FLEX_START"
        plan.request["reservationAffinity"] = {"consumeReservationType": "NO_RESERVATION"}
        plan.rows["Machine"] += ", flex-start"
        wait = self.queue_timeout or QUEUE
        if plan.create is not gce.create:
            pass  # another feature has a way of its own
        elif job.machines > 1 or self.queue_timeout:
            job.returns = True  # it is not lost while its group waits
            plan.create = create_request
        else:
            plan.create = create_queued
        is_endless = job.machines > 1 and not self.queue_timeout
        plan.rows["Queue"] = (
            "until there is room" if is_endless else f"for at most {terminal.duration(wait)}"
        )

    def forget(self, config: Config, job: Job) -> None:
        spot.Spot().forget(config, job)

    def look(self, run: Run) -> Ending | None:
        from berg.worker import Ending

        if not self.queue_timeout or run.has_begun:
            return None
        booted = run.job.max_seconds - run.seconds  # seconds ago
        if jobs.age(run.state.times[jobs.SUBMITTED]) - booted < self.queue_timeout:
            return None
        reason = "its machines came later than --queue-timeout"
        return Ending(jobs.FAILED, reason, is_firm=True)

    def ended(self, run: Run, ending: Ending) -> Ending:
        return spot.Spot().ended(run, ending) if self.wait_for_capacity else ending


# --- Google's queue


def create_queued(
    config: Config, job: Job, request: dict[str, Any], zones: list[str], say: Callable[[str], None]
) -> str:
    """Create one machine that may wait; return its zone, "" while it waits."""
    told = []
    for zone in zones:
        say(f"Asking Google's queue for {job.name} in {zone}")
        body = {"name": job.name, **gce.in_zone(request, zone)}
        body["params"] = {"requestValidForDuration": {"seconds": str(QUEUE)}}
        try:
            if gce.once_known(functools.partial(insert_queued, config, zone, body), say):
                return zone
            say(f"It waits in the queue of {zone} for up to two hours, at no cost")
            return ""
        except GoogleError as error:
            told.append(f"{zone}: {gce.reason(error)}")
            if error.reason not in gce.NO_ROOM:
                break
    text = "\n  ".join(told)
    raise BergError(f"no machine could be created, and none was left behind.\n  {text}")


def insert_queued(config: Config, zone: str, body: dict[str, Any]) -> bool:
    """Ask for a machine; return whether it is there now, and does not wait in the queue."""
    path = f"/zones/{zone}/instances"
    operation = google.call(config, "POST", path, body, requestId=str(uuid.uuid4()))
    while operation.get("status") != "DONE":
        found = google.find(config, f"{path}/{body['name']}", fields="status")
        if found and found["status"] == "PENDING":
            return False
        time.sleep(0.5)
        operation = google.call(config, "GET", f"/zones/{zone}/operations/{operation['name']}")
    google.wait(config, {**operation, "zone": zone})
    return True


def create_request(
    config: Config, job: Job, request: dict[str, Any], zones: list[str], say: Callable[[str], None]
) -> str:
    """Make a group that gets all machines of a job at once, when there is room for all; "" while they wait."""
    region = zones[0].rpartition("-")[0]
    say(f"Asking Google's queue for {job.machines} machines in {region}")
    delete_old_templates(config)
    digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:20]
    template = f"berg-flex-{digest}"
    places = [zone for zone in zones if zone.rpartition("-")[0] == region]
    group = {
        "name": job.name,
        "baseInstanceName": job.name[:58].rstrip("-"),
        "targetSize": 0,
        "instanceTemplate": f"projects/{config.project}/global/instanceTemplates/{template}",
        "updatePolicy": {"type": "OPPORTUNISTIC", "instanceRedistributionType": "NONE"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
        "distributionPolicy": {
            "zones": [{"zone": f"projects/{config.project}/zones/{zone}"} for zone in places],
            "targetShape": "ANY_SINGLE_ZONE",
        },
        # `groups` knows the job's by it.
        "allInstancesConfig": {"properties": {"metadata": {"berg-job-sha256": job.sha256}}},
    }
    queued = {
        "name": job.name,
        "requestedRunDuration": request["scheduling"]["maxRunDuration"],
        "instances": [{"name": name} for name in job.machine_names],
    }
    made = {"name": template, "properties": request}
    try:
        google.do(config, "POST", "/global/instanceTemplates", made)
    except GoogleError as error:
        if error.status != 409:  # of a job that is resumed
            raise
    google.do(config, "POST", spot.path(region), group)
    google.do(config, "POST", f"{spot.path(region)}/{job.name}/resizeRequests", queued)
    end = time.monotonic() + spot.ANSWER
    while time.monotonic() < end:
        path = f"{spot.path(region)}/{job.name}/resizeRequests/{job.name}"
        row = google.call(config, "GET", path)
        errors = row.get("status", {}).get("error", {}).get("errors", [])
        if row["state"] == "FAILED":
            raise BergError(f"no machine could be created in {region}: {errors[0].get('message')}")
        if row["state"] == "SUCCEEDED" and (found := gce.machines(config, job.name)):
            return found[0].zone
        if "lastAttempt" in row.get("status", {}):
            break
        time.sleep(0.5)
    say("There is no room now. Google makes the machines when there is, without this computer")
    return ""


def delete_old_templates(config: Config) -> None:
    """Delete the templates of earlier jobs; Google keeps those that a group has."""
    rows = google.items(config, "/global/instanceTemplates", filter="name eq berg-flex-.*")
    for row in rows:
        if jobs.age(row["creationTimestamp"]) > OLD:
            with contextlib.suppress(GoogleError):
                google.call(config, "DELETE", f"/global/instanceTemplates/{row['name']}")


# --- reservations


def reserve(plan: Plan, text: str) -> None:
    """Change a plan to use a reservation."""
    config, job = plan.config, plan.job
    parts = NAME.fullmatch(text)
    if parts is None:
        raise BergError(f"--reservation {text}: give NAME, or projects/OWNER/reservations/NAME")
    owner, name = parts[1] or config.project, parts[2]
    base = config.endpoint or "https://compute.googleapis.com"
    url = f"{base}/compute/v1/projects/{owner}/aggregated/"
    rows = [
        row for row in google.items(config, f"{url}reservations") if "specificReservation" in row
    ]
    named = [row for row in rows if row["name"] == name]
    if not named:
        known = ", ".join(sorted(row["name"] for row in rows)) or "none"
        raise BergError(f"{owner} has no reservation {name}. There are: {known}")
    asked = job.options.get("zones")
    fitting = [
        row for row in named if kind_of(row) == job.machine_type
        and (not asked or google.last_part(row["zone"]) in asked)
    ]  # fmt: skip
    if not fitting:
        kinds = ", ".join(f"{kind_of(row)} in {google.last_part(row['zone'])}" for row in named)
        wanted = " in ".join([job.machine_type, *([", ".join(asked)] if asked else [])])
        raise BergError(f"{name} is for {kinds}, not {wanted}. Choose --machine-type and -z")
    row, zone = fitting[0], google.last_part(fitting[0]["zone"])
    if not row.get("specificReservationRequired"):
        raise BergError(
            f"{name} is for any machine that fits, which uses it without its name. "
            "Leave out --reservation"
        )
    value = name if owner == config.project else f"projects/{owner}/reservations/{name}"
    key = "compute.googleapis.com/reservation-name"
    plan.request["reservationAffinity"] = {
        "consumeReservationType": "SPECIFIC_RESERVATION", "key": key, "values": [value],
    }  # fmt: skip
    is_bound = row.get("deploymentType") == "DENSE"
    if is_bound or ("deleteAtTime" in row and is_of_calendar(config, url, row, zone)):
        plan.request["scheduling"]["provisioningModel"] = "RESERVATION_BOUND"
    plan.zones[:] = [zone]
    plan.rows["Zones"] = zone
    count = row["specificReservation"]
    free = int(count.get("count", 0)) - int(count.get("inUseCount", 0))
    plan.rows["Reservation"] = f"{name}, {free} of {count.get('count', 0)} machines free"


def kind_of(row: dict[str, Any]) -> str:
    kind: str = row["specificReservation"].get("instanceProperties", {}).get("machineType", "")
    return kind


def is_of_calendar(config: Config, url: str, row: dict[str, Any], zone: str) -> bool:
    """Whether a calendar made a reservation: only machines that end with it may use it."""
    path = f"/zones/{zone}/reservations/{row['name']}"
    try:
        return any(
            made.endswith(path)
            for future in google.items(config, f"{url}futureReservations")
            for made in future.get("status", {}).get("autoCreatedReservations", [])
            if future.get("reservationMode") == "CALENDAR"
        )
    except GoogleError:  # not everybody may see calendars
        return kind_of(row).startswith(NOT_ON_DEMAND)

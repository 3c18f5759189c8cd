"""Spot machines that come back: a managed group makes a machine again after Google took it.

The machines end together: what is taken saves its results and puts the job back to SUBMITTED, and
all restore them and run the command again. A group makes each machine again under its name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, ClassVar

from berg import BergError, gce, google
from berg.feature import Feature
from berg.google import GoogleError
from berg.job import SUBMITTED
from berg.options import option

if TYPE_CHECKING:
    from berg.config import Config
    from berg.job import Job
    from berg.run import Plan
    from berg.worker import Ending, Run

ANSWER = 60  # seconds to wait for Google's first answer on whether there is room
SEARCH = 15  # seconds between two looks for files that a restart would not find
OWN = ("berg-job", "berg-job-sha256")  # metadata that differ between jobs of one kind


@dataclass
class Spot(Feature):
    spot: bool = option(
        "--spot",
        default=False,
        is_flag=True,
        help="Spot machines: cheaper, and made again with the results when Google takes them.",
    )

    next_look: ClassVar[float] = 0  # time.monotonic()

    def change(self, plan: Plan) -> None:
        scheduling = plan.request["scheduling"]
        scheduling["provisioningModel"] = "SPOT"
        scheduling["onHostMaintenance"] = "TERMINATE"
        scheduling["preemptionNoticeDuration"] = {"seconds": "120"}
        plan.rows["Machine"] += ", Spot"
        # The user of a devbox would find another machine; and other features have ways of their own.
        if not plan.job.is_devbox and plan.create is gce.create:
            plan.job.returns = True
            plan.create = create_group

    def forget(self, config: Config, job: Job) -> None:
        if job.returns:
            for group in groups(config, job):
                google.delete(config, f"{path(google.last_part(group['region']))}/{job.name}")

    def look(self, run: Run) -> None:
        """Say of files in the checkout, when they are first seen, that a restart will not find them."""
        if not run.job.returns or monotonic() < self.next_look:
            return
        from berg.worker import written_elsewhere

        began = monotonic()
        for folder, about in written_elsewhere(run, [], seconds=1):
            if f"{folder}/" not in run.state.missing:
                where = run.variables["BERG_RESULTS_DIR"]
                reason = f"a restart will not find it: write to $BERG_RESULTS_DIR ({where})"
                run.state.missing[f"{folder}/"] = f"{about}; {reason}"
                run.say(f"{folder}: {about}: {reason}")
        Spot.next_look = monotonic() + max(SEARCH, 50 * (monotonic() - began))

    def ended(self, run: Run, ending: Ending) -> Ending:
        if ending.is_loss and run.job.returns and ending.state != SUBMITTED:
            reason = f"{ending.reason}; waiting for another machine"
            return replace(ending, state=SUBMITTED, reason=reason, exit_code=None)
        return ending


def path(region: str) -> str:
    return f"/regions/{region}/instanceGroupManagers"


def groups(config: Config, job: Job) -> list[dict[str, Any]]:
    """The group that was made for this very job, not another one's of the same name."""
    columns = "nextPageToken,items/*/instanceGroupManagers(name,region,zone,allInstancesConfig)"
    query = {"filter": f'name="{job.name}"', "fields": columns}
    return [
        row
        for row in google.items(config, "/aggregated/instanceGroupManagers", **query)
        if made_for(row) == job.sha256
    ]


def made_for(group: dict[str, Any]) -> str:
    """The hash of a group's job; "" of a group that is not Berg's."""
    own = group.get("allInstancesConfig", {}).get("properties", {}).get("metadata", {})
    return str(own.get("berg-job-sha256", ""))


def create_group(
    config: Config, job: Job, request: dict[str, Any], zones: list[str], say: Callable[[str], None]
) -> str:
    """Make a group in the zones of a region; return the zone of its machines, "" while it waits."""
    region = zones[0].rpartition("-")[0]
    zones = [zone for zone in zones if zone.rpartition("-")[0] == region]
    say(f"Asking for capacity in {region} ({', '.join(zones)})")
    template, own = make_template(config, request)
    is_one = job.machines == 1
    # A machine alone may come back in any zone; several are near each other.
    again = {"onRepair": {"allowChangingZone": "YES"}} if is_one else {}
    group = {
        "name": job.name,
        "baseInstanceName": job.name[:58].rstrip("-"),
        "targetSize": int(is_one),
        "instanceTemplate": template,
        "updatePolicy": {"type": "OPPORTUNISTIC", "instanceRedistributionType": "NONE"},
        "instanceLifecyclePolicy": {"forceUpdateOnRepair": "YES", **again},
        "distributionPolicy": {
            "zones": [{"zone": f"projects/{config.project}/zones/{zone}"} for zone in zones],
            "targetShape": "ANY" if is_one else "ANY_SINGLE_ZONE",
        },
        "allInstancesConfig": {"properties": {"labels": {"berg-job": job.name}, "metadata": own}},
    }
    google.do(config, "POST", path(region), group)
    if not is_one:
        names = {"instances": [{"name": name} for name in job.machine_names]}
        google.do(config, "POST", f"{path(region)}/{job.name}/createInstances", names)
    return first_zone(config, region, job, say)


def make_template(config: Config, request: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Make the template that jobs of one kind share; return its path, and the metadata that it leaves
    to their groups.
    """
    items = {row["key"]: row["value"] for row in request["metadata"]["items"]}
    own = {key: items.pop(key) for key in OWN}
    labels = {key: value for key, value in request["labels"].items() if key != "berg-job"}
    disk = {**request["disks"][0]["initializeParams"], "labels": labels}
    properties = {
        **request,
        "labels": labels,
        "metadata": {"items": [{"key": key, "value": text} for key, text in items.items()]},
        "disks": [{**request["disks"][0], "initializeParams": disk}, *request["disks"][1:]],
    }
    digest = hashlib.sha256(json.dumps(properties, sort_keys=True).encode()).hexdigest()[:20]
    name = f"berg-{digest}"
    make_once(config, "/global/instanceTemplates", {"name": name, "properties": properties})
    return f"projects/{config.project}/global/instanceTemplates/{name}", own


def make_once(config: Config, path: str, body: dict[str, Any]) -> None:
    """Make what an earlier job may have made as well."""
    try:
        google.do(config, "POST", path, body)
    except GoogleError as error:
        if error.status != 409:
            raise


def may_come(error: dict[str, str]) -> bool:
    """Whether the group makes its machine in spite of this error, once there is room, or its account is known."""
    is_new = gce.UNKNOWN_ACCOUNT in error.get("message", "")
    return is_new or error.get("code") in gce.NO_ROOM


def first_zone(config: Config, region: str, job: Job, say: Callable[[str], None]) -> str:
    """The zone of the group's machines; raise BergError if waiting for them is of no use."""
    end = monotonic() + ANSWER
    while monotonic() < end:
        asked = f"{path(region)}/{job.name}/listManagedInstances"
        rows = google.call(config, "POST", asked, requestId=None).get("managedInstances", [])
        for row in rows:
            errors = row.get("lastAttempt", {}).get("errors", {}).get("errors", [])
            failed = [error for error in errors if not may_come(error)]
            if failed:
                message = failed[0].get("message")
                raise BergError(f"no machine could be created in {region}: {message}")
        made = [
            row
            for row in rows
            if row.get("instanceStatus") in ("PROVISIONING", "STAGING", "RUNNING")
        ]
        if len(made) == job.machines:
            return str(made[0]["instance"]).split("/zones/")[1].split("/")[0]
        sleep(0.5)
    say("There is no room now. Google makes the machines when there is, without this computer")
    return ""

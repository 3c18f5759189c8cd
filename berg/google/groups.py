"""Managed instance groups: Google creates the machines of a job whenever there is room.

A job has one group per region (or zone), with its name. One function makes the requests for all
shapes of groups:

    KEPT    machines on demand or Spot, which Google re-creates when they are preempted or crash:
            one machine in any zone of a region, or several with their names in one zone
    QUEUED  flex-start: a resize request waits in Google's queue, without end and at no cost, until
            one zone has room and quota for all machines. Deleting the group ends the wait
    BULK    one machine with TPUs by flex-start: resize requests are not for TPUs
    SLICE   a slice of TPUs in one zone (places/tpu.py): all machines or none

The machines know their job from what the group sets for all its machines, so that jobs of the same
kind share an instance template, which is named after its content. Google does not apply what a
group sets for all to the machines of a resize request: there the template names the job, and is the
job's own. The job's worker deletes the group at the end.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api, iam, tpus
from berg.google.instances import base_name, without_zones
from berg.google.prices import FLEX
from berg.plain import plural

KEPT, QUEUED, BULK, SLICE = "kept", "queued", "bulk", "slice"  # shapes
SHORTEST = 600  # seconds: the least that Google lets the machines of a resize request run
PATIENCE = 60  # seconds to wait for Google's first answer on whether there is room
YOUNG = 3600  # seconds for which a template without a group stays
# key of the label and of the metadata; all else is the same for jobs of the same kind
OF_THE_JOB = "berg-job"
# keys of the metadata that each job has its own values of
METADATA_OF_THE_JOB = (OF_THE_JOB, "berg-job-sha256", "berg-cluster-key")


def description(config: Config) -> str:
    return f"for berg's jobs in gs://{config.bucket}"


def shape_of(body: dict[str, Any]) -> str:
    """Return the shape of a region's group for machines with the body of an insert."""
    if body["scheduling"].get("provisioningModel") != FLEX:
        return KEPT
    return BULK if api.last_part(body["machineType"]) in tpus.MACHINE_TYPES else QUEUED


def requests(
    config: Config,
    shape: str,
    zones: list[str],
    body: dict[str, Any],
    names: list[str],
    topology: str = "",
) -> dict[str, dict[str, Any]]:
    """Return the bodies of the requests that make a group, in their order, from the body of an
    insert. A slice has a topology.
    """
    name = job_of(names)
    made_from = named_template(config, body) if shape == QUEUED else template(config, body)
    group: dict[str, Any] = {
        "name": name,
        "description": description(config),
        "baseInstanceName": base_name(name),
        "targetSize": 0,
        "instanceTemplate": (
            f"projects/{config.project}/global/instanceTemplates/{made_from['name']}"
        ),
        "updatePolicy": {"type": "OPPORTUNISTIC"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
    }
    found = {"template": made_from, "group": group}
    members = [{"name": each} for each in names]
    if shape != QUEUED:
        group["allInstancesConfig"] = all_instances(body, name)
        found["members"] = {"instances": members}
    if shape in (BULK, SLICE):
        group["targetSizePolicy"] = {"mode": "BULK"}
    if shape == SLICE:
        owner = hashlib.sha256(config.bucket.encode()).hexdigest()[:8]
        policy = tpus.policy(f"berg-{topology}-{owner}", topology, description(config))
        region = zones[0].rpartition("-")[0]
        where = f"projects/{config.project}/regions/{region}/resourcePolicies/{policy['name']}"
        url = f"https://www.googleapis.com/compute/v1/{where}"
        group["resourcePolicies"] = {"workloadPolicy": url}
        return {"policy": policy, **found}
    group["updatePolicy"]["instanceRedistributionType"] = "NONE"
    group["distributionPolicy"] = {
        "zones": [{"zone": f"projects/{config.project}/zones/{zone}"} for zone in zones],
        "targetShape": "ANY_SINGLE_ZONE",
    }
    if shape == QUEUED:
        seconds = max(int(body["scheduling"]["maxRunDuration"]["seconds"]), SHORTEST)
        duration = {"seconds": str(seconds)}
        found["request"] = {"name": name, "requestedRunDuration": duration, "instances": members}
    if shape == KEPT:
        group["instanceLifecyclePolicy"] = {"forceUpdateOnRepair": "YES"}
        if len(names) == 1:
            # Else the machine waits for room in the zone where it was first.
            group["instanceLifecyclePolicy"]["onRepair"] = {"allowChangingZone": "YES"}
            group["targetSize"] = 1
            group["distributionPolicy"]["targetShape"] = "ANY"
            del found["members"]
    return found


def job_of(names: list[str]) -> str:
    """Return the job whose machines have these names."""
    if len(names) == 1:
        return names[0]
    return names[0].rpartition("-")[0]


def all_instances(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what tells the machines of a job's group whose they are, and what the job is."""
    items = body["metadata"]["items"]
    own = {item["key"]: item["value"] for item in items if item["key"] in METADATA_OF_THE_JOB}
    return {"properties": {"labels": {OF_THE_JOB: name}, "metadata": {**own, OF_THE_JOB: name}}}


def template(config: Config, body: dict[str, Any]) -> dict[str, Any]:
    """The instance template for machines with the body of an insert, whichever job's they are."""
    shared: dict[str, Any] = json.loads(json.dumps(body))
    for labels in (shared["labels"], shared["disks"][0]["initializeParams"]["labels"]):
        labels.pop(OF_THE_JOB)
    items = shared["metadata"]["items"]
    shared["metadata"]["items"] = [item for item in items if item["key"] not in METADATA_OF_THE_JOB]
    return named_template(config, shared)


def named_template(config: Config, body: dict[str, Any]) -> dict[str, Any]:
    """The instance template for machines with the body of an insert, named after its content."""
    properties = without_zones(json.loads(json.dumps(body)))
    properties.pop("params", None)  # how long an insert waits
    digest = hashlib.sha256(json.dumps(properties, sort_keys=True).encode()).hexdigest()[:20]
    return {"name": f"berg-{digest}", "description": description(config), "properties": properties}


def path_of(region: str, name: str) -> str:
    return f"/regions/{region}/instanceGroupManagers/{name}"


def create(
    config: Config,
    zones: list[str],
    body: dict[str, Any],
    names: list[str],
    say: Callable[[str], None],
) -> str:
    """Make a job's group in a region; return the zone of its machines, or "" while they wait for
    room.

    Raises BergError for errors that waiting does not fix; then only the template is left behind.
    """
    region, job, shape = zones[0].rpartition("-")[0], job_of(names), shape_of(body)
    say(f"Asking Google for {plural(len(names), 'machine')} in {region} ({', '.join(zones)})")
    if shape == QUEUED:
        with contextlib.suppress(api.GoogleError, BergError):
            delete_old_templates(config)
    try:
        send(config, f"/regions/{region}", requests(config, shape, zones, body, names))
    except (api.GoogleError, api.OperationFailed) as error:
        why = f"{error.message} {api.advise(error.message)}".rstrip()
        raise BergError(f"no group of machines could be made in {region}: {why}") from None
    answer = {KEPT: answer_of_kept, QUEUED: answer_of_request, BULK: answer_of_bulk}[shape]
    end = time.monotonic() + PATIENCE
    zone = None
    while zone is None and time.monotonic() < end:
        zone = answer(config, region, job)
        if zone is None:
            time.sleep(0.5)
    if not zone and shape == KEPT:
        say(
            f"There is no room in {', '.join(zones)} now. Google creates the machine when there "
            "is, without this computer."
        )
    return zone or ""


def send(config: Config, where: str, bodies: dict[str, dict[str, Any]]) -> None:
    """Send the requests that make a group in a region or a zone; raises what Google refuses."""
    groups = f"{where}/instanceGroupManagers"
    group = f"{groups}/{bodies['group']['name']}"
    region = api.last_part(where).rpartition("-")[0]  # of a slice's zone: only slices have a policy
    paths = {
        "policy": f"/regions/{region}/resourcePolicies",
        "template": "/global/instanceTemplates",
        "group": groups,
        "members": f"{group}/createInstances",
        "request": f"{group}/resizeRequests",
    }
    for key, body in bodies.items():
        try:
            api.write(config, paths[key], body)
        except api.Conflict:
            if key not in ("policy", "template"):  # those may be an earlier job's of this kind
                raise


def nothing_made(why: str) -> BergError:
    return BergError(f"no machine could be created, and none was left behind.\n  {why}")


def answer_of_kept(config: Config, region: str, job: str) -> str | None:
    """Return the zone in which a job's machines are created, "" if they wait for room, None if
    Google has not said so yet. Raise BergError if it gave up, like the two functions below.
    """
    machine, errors = member(config, region, job)
    if machine or not errors:
        return machine or None
    failed = api.OperationFailed(errors[0].get("code", ""), errors[0].get("message", ""))
    if failed.blocks == "zone":
        return ""
    if iam.is_settling(config, failed):
        return None
    error = nothing_made(failed.explain(region))
    raise api.NoRoom(error.message) if failed.blocks else error


def answer_of_request(config: Config, region: str, job: str) -> str | None:
    asked = resize_request(config, region, job)
    if asked["state"] == "SUCCEEDED":
        return member(config, region, job)[0]
    if asked["state"] == "FAILED":
        raise nothing_made(why(asked))
    return "" if "lastAttempt" in asked.get("status", {}) else None


def answer_of_bulk(config: Config, region: str, job: str) -> str | None:
    """Google keeps trying, whatever the error: raise for those that no waiting fixes."""
    zone, _ = member(config, region, job)
    if zone:
        return zone
    path = path_of(region, job)
    status = api.call(config, "GET", path, fields="status").get("status", {})
    for failed in bulk_errors(status):
        if failed.blocks:
            return ""
        if not iam.is_settling(config, failed):
            raise nothing_made(failed.explain(region))
    return None


def resize_request(config: Config, region: str, job: str) -> dict[str, Any]:
    """Return the resize request of a job's group; raises NotFound if there is none."""
    return api.call(config, "GET", f"{path_of(region, job)}/resizeRequests/{job}")


def why(asked: dict[str, Any]) -> str:
    """Return why a resize request failed, in Google's words; "" if it did not."""
    errors = asked.get("status", {}).get("error", {}).get("errors", [])
    return "; ".join(each.get("message", each.get("code", "")) for each in errors)


def why_failed(config: Config, region: str, job: str) -> str:
    """Return why a job's resize request failed; "" if there is no such request."""
    try:
        return why(resize_request(config, region, job))
    except api.NotFound:
        return ""


def member(config: Config, region: str, name: str) -> tuple[str, list[dict[str, Any]]]:
    """Zone of the machine that a group has ("": none yet), and why the last attempt to make it
    failed.
    """
    listed = api.call(config, "POST", f"{path_of(region, name)}/listManagedInstances").get(
        "managedInstances", []
    )
    for instance in listed:
        if instance.get("instanceStatus"):
            return instance["instance"].split("/")[-3], []
    return "", [
        error
        for each in listed
        for error in each.get("lastAttempt", {}).get("errors", {}).get("errors", [])
    ]


def bulk_errors(status: dict[str, Any]) -> list[api.OperationFailed]:
    """Return why the machines of a group of TPUs in BULK mode are not there, from its status."""
    progress = status.get("bulkInstanceOperation", {}).get("lastProgressCheck", {})
    errors = progress.get("error", {}).get("errors", [])
    return [
        tpus.meaning(api.OperationFailed(each.get("code", ""), each.get("message", "")))
        for each in errors
    ]


def find(config: Config, name: str | None = None) -> list[dict[str, Any]]:
    """Berg's groups, in the API's words, with `region` or `zone` as its short name; of one job if
    it is given.
    """
    found = []
    query = {
        "filter": f'(description="{description(config)}")'
        + (f' AND (name="{name}")' if name else "")
    }
    fields = (
        "items/*/instanceGroupManagers(name,region,targetSize,creationTimestamp,instanceTemplate,"
    )
    fields += "zone,resourcePolicies,status(bulkInstanceOperation,isStable)),nextPageToken"
    for page in api.pages(config, "/aggregated/instanceGroupManagers", **query, fields=fields):
        for scope in page.get("items", {}).values():
            for group in scope.get("instanceGroupManagers", []):
                where = "zone" if "zone" in group else "region"
                found.append({**group, where: api.last_part(group[where])})
    return found


def waiting(config: Config, name: str | None = None) -> set[str]:
    """Names of the groups that have a machine, or wait for room for one; not those whose machine's
    time is over.
    """
    return {
        group["name"]
        for group in find(config, name)
        if "region" in group and group.get("targetSize")
    }


def regions(config: Config, name: str) -> set[str]:
    """Return the regions in which a job has a group."""
    return {group["region"] for group in find(config, name) if "region" in group}


def delete_old_templates(config: Config) -> None:
    """Delete the templates of single jobs that no group has any more; those that jobs share stay.

    A young one may be that of a group which is about to be made.
    """
    for each in unused_templates(config, find(config)):
        is_of_one_job = OF_THE_JOB in each["properties"].get("labels", {})
        if is_of_one_job and api.age_seconds(config, each["creationTimestamp"]) > YOUNG:
            api.delete(config, f"/global/instanceTemplates/{each['name']}", wait_for_it=True)


def unused_templates(config: Config, used: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Berg's templates that none of these groups is made from."""
    pages = api.pages(
        config, "/global/instanceTemplates", filter=f'description="{description(config)}"'
    )
    names = {api.last_part(group["instanceTemplate"]) for group in used}
    return [
        template
        for page in pages
        for template in page.get("items", [])
        if template["name"] not in names
    ]

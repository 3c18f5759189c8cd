"""Managed instance groups: Google creates the machines of a job when there is room.

A job has one group per region (a slice: in one zone), with its name. One function makes the
requests for all shapes of groups:

    KEPT    machines on demand or Spot, which Google re-creates when they are preempted or crash:
            one machine in any zone of a region, or several with their names in one zone
    QUEUED  flex-start: a resize request waits in Google's queue, without end and at no cost, until
            one zone has room and quota for all machines. Deleting the group ends the wait
    BULK    one machine with TPUs by flex-start: resize requests are not for TPUs
    SLICE   a slice of TPUs (gce.py): all machines or none

Jobs of the same kind share an instance template, which is named after its content; the group sets
what differs. Google does not apply that to the machines of a resize request, so that their job has
a template of its own, as has one with a placement policy. The job's worker deletes the group at the
end.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api, iam, shapes
from berg.google.instances import JOB_SHA256, base_name, metadata_of, without_zones
from berg.google.prices import FLEX
from berg.job import age_seconds
from berg.plain import plural

KEPT, QUEUED, BULK, SLICE = "kept", "queued", "bulk", "slice"
ANSWER_TIMEOUT = 60  # seconds to wait for Google's first answer on whether there is room
WAITS = "waits"  # that answer if there is none
YOUNG = 3600  # seconds for which a template without a group is kept
OF_THE_JOB = "berg-job"  # a label's key, and one of the metadata
# Keys of the metadata whose values differ from job to job.
METADATA_OF_THE_JOB = (OF_THE_JOB, JOB_SHA256, "berg-cluster-key")


def description(config: Config) -> str:
    return f"for berg's jobs in gs://{config.bucket}"


def shape_of(body: dict[str, Any]) -> str:
    """Return the shape of a region's group for machines with the body of an insert."""
    if body["scheduling"].get("provisioningModel") != FLEX:
        return KEPT
    return BULK if api.last_part(body["machineType"]) in shapes.TPU_TYPES else QUEUED


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
    is_own = shape == QUEUED or "resourcePolicies" in body
    made_from = named_template(config, body if is_own else shared(body))
    group = group_body(config, shape, zones, body, names)
    group["instanceTemplate"] = (
        f"projects/{config.project}/global/instanceTemplates/{made_from['name']}"
    )
    found = {"template": made_from, "group": group}
    members = [{"name": each} for each in names]
    if shape == QUEUED:
        # Google lets the machines of a resize request run for at least 10 minutes.
        seconds = max(int(body["scheduling"]["maxRunDuration"]["seconds"]), 600)
        found["request"] = {
            "name": group["name"],
            "requestedRunDuration": {"seconds": str(seconds)},
            "instances": members,
        }
    elif not group["targetSize"]:
        found["members"] = {"instances": members}
    if shape == SLICE:
        owner = hashlib.sha256(config.bucket.encode()).hexdigest()[:8]
        policy = shapes.workload_policy(f"berg-{topology}-{owner}", topology, description(config))
        region = zones[0].rpartition("-")[0]
        where = f"projects/{config.project}/regions/{region}/resourcePolicies/{policy['name']}"
        url = f"https://www.googleapis.com/compute/v1/{where}"
        group["resourcePolicies"] = {"workloadPolicy": url}
        return {"policy": policy, **found}
    return found


def group_body(
    config: Config, shape: str, zones: list[str], body: dict[str, Any], names: list[str]
) -> dict[str, Any]:
    """Return the body of a group, without what its machines are made from."""
    name = job_of(names)
    group: dict[str, Any] = {
        "name": name,
        "description": description(config),
        "baseInstanceName": base_name(name),
        "targetSize": 0,
        "updatePolicy": {"type": "OPPORTUNISTIC"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
    }
    if shape != QUEUED:
        items = body["metadata"]["items"]
        own = {item["key"]: item["value"] for item in items if item["key"] in METADATA_OF_THE_JOB}
        properties = {"labels": {OF_THE_JOB: name}, "metadata": {**own, OF_THE_JOB: name}}
        group["allInstancesConfig"] = {"properties": properties}
    if shape in (BULK, SLICE):
        group["targetSizePolicy"] = {"mode": "BULK"}
    if shape != SLICE:
        group["updatePolicy"]["instanceRedistributionType"] = "NONE"
        places = [{"zone": f"projects/{config.project}/zones/{zone}"} for zone in zones]
        group["distributionPolicy"] = {"zones": places, "targetShape": "ANY_SINGLE_ZONE"}
    if shape == KEPT:
        group["instanceLifecyclePolicy"] = {"forceUpdateOnRepair": "YES"}
    if shape == KEPT and len(names) == 1:
        # Otherwise the machine waits for room in the zone where it was first.
        group["instanceLifecyclePolicy"]["onRepair"] = {"allowChangingZone": "YES"}
        group["targetSize"] = 1
        group["distributionPolicy"]["targetShape"] = "ANY"
    return group


def job_of(names: list[str]) -> str:
    """Return the job whose machines have these names."""
    return names[0] if len(names) == 1 else names[0].rpartition("-")[0]


def shared(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of an insert without what differs between jobs of the same kind."""
    found: dict[str, Any] = json.loads(json.dumps(body))
    for labels in (found["labels"], found["disks"][0]["initializeParams"]["labels"]):
        labels.pop(OF_THE_JOB)
    items = found["metadata"]["items"]
    found["metadata"]["items"] = [item for item in items if item["key"] not in METADATA_OF_THE_JOB]
    return found


def named_template(config: Config, body: dict[str, Any]) -> dict[str, Any]:
    """Return the instance template for machines with the body of an insert."""
    properties = without_zones(body)
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
    room. Raises BergError if waiting does not help; then only the template is left.
    """
    region, job, shape = zones[0].rpartition("-")[0], job_of(names), shape_of(body)
    say(f"Asking Google for {plural(len(names), 'machine')} in {region} ({', '.join(zones)})")
    if shape == QUEUED or "resourcePolicies" in body:
        with contextlib.suppress(api.GoogleError, BergError):
            delete_old_templates(config)
    try:
        send(config, f"/regions/{region}", requests(config, shape, zones, body, names))
    except (api.GoogleError, api.OperationFailed) as error:
        why = f"{error.message} {api.advise(error.message)}".rstrip()
        raise BergError(f"no group of machines could be made in {region}: {why}") from None
    answer = {KEPT: answer_of_kept, QUEUED: answer_of_request, BULK: answer_of_bulk}[shape]
    zone = api.wait_for(lambda: answer(config, region, job), 0.5, ANSWER_TIMEOUT)
    if zone and zone != WAITS:
        return zone
    if shape == KEPT:
        say(
            f"There is no room in {', '.join(zones)} now. Google creates the machine when there "
            "is, without this computer."
        )
    return ""


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
            if key not in ("policy", "template"):  # an earlier job of this kind may have made these
                raise


# --- Google's answer: the zone of the machines, WAITS if there is no room, "" if it is unknown yet


def answer_of_kept(config: Config, region: str, job: str) -> str:
    zone, errors = member(config, region, job)
    if zone or not errors:
        return zone
    failed = api.OperationFailed(errors[0].get("code", ""), errors[0].get("message", ""))
    if failed.blocks == "zone":
        return WAITS
    if iam.is_settling(config, failed):
        return ""
    error = nothing_made(failed.explain(region))
    raise api.NoRoom(error.message) if failed.blocks else error


def answer_of_request(config: Config, region: str, job: str) -> str:
    request = api.call(config, "GET", request_path(region, job))
    if request["state"] == "SUCCEEDED":
        return member(config, region, job)[0] or WAITS
    if request["state"] == "FAILED":
        raise nothing_made(reason(request))
    return WAITS if "lastAttempt" in request.get("status", {}) else ""


def answer_of_bulk(config: Config, region: str, job: str) -> str:
    """Return Google's answer; it keeps trying whatever the error, so raise what waiting does not
    fix.
    """
    zone, _ = member(config, region, job)
    if zone:
        return zone
    group = api.call(config, "GET", path_of(region, job), fields="status")
    for failed in bulk_errors(group.get("status", {})):
        if failed.blocks:
            return WAITS
        if not iam.is_settling(config, failed):
            raise nothing_made(failed.explain(region))
    return ""


def nothing_made(why: str) -> BergError:
    return BergError(f"no machine could be created, and none was left behind.\n  {why}")


def request_path(region: str, job: str) -> str:
    return f"{path_of(region, job)}/resizeRequests/{job}"


def reason(request: dict[str, Any]) -> str:
    """Return why a resize request failed, in Google's words; "" if it did not."""
    errors = request.get("status", {}).get("error", {}).get("errors", [])
    return "; ".join(each.get("message", each.get("code", "")) for each in errors)


def member(config: Config, region: str, name: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the zone of a group's machine ("": none yet), and why the last attempt failed."""
    answer = api.call(config, "POST", f"{path_of(region, name)}/listManagedInstances")
    errors = []
    for instance in answer.get("managedInstances", []):
        if instance.get("instanceStatus"):
            return instance["instance"].split("/")[-3], []
        errors += instance.get("lastAttempt", {}).get("errors", {}).get("errors", [])
    return "", errors


def bulk_errors(status: dict[str, Any]) -> list[api.OperationFailed]:
    """Return why the machines of a group of TPUs in BULK mode are not there, from its status."""
    progress = status.get("bulkInstanceOperation", {}).get("lastProgressCheck", {})
    errors = progress.get("error", {}).get("errors", [])
    return [
        tpu_error(api.OperationFailed(each.get("code", ""), each.get("message", "")))
        for each in errors
    ]


def tpu_error(failed: api.OperationFailed) -> api.OperationFailed:
    """Return what an error about machines with TPUs means: after minutes of STAGING, Google says
    INTERNAL_ERROR if there is no room.
    """
    if failed.code == "INTERNAL_ERROR":
        return api.OperationFailed("insufficientCapacity", f"{failed.code}: {failed.message}")
    return failed


# --- which groups there are


def find(config: Config, name: str | None = None) -> list[dict[str, Any]]:
    """Return berg's groups, or a job's, in the API's words, with `region` or `zone` as its short
    name.
    """
    only = f'(description="{description(config)}")' + (f' AND (name="{name}")' if name else "")
    fields = "name,region,zone,targetSize,creationTimestamp,instanceTemplate,resourcePolicies"
    fields = f"{fields},status(bulkInstanceOperation,isStable),allInstancesConfig"
    fields = f"items/*/instanceGroupManagers({fields}),nextPageToken"
    found = []
    for group in api.items(config, "/aggregated/instanceGroupManagers", filter=only, fields=fields):
        where = "zone" if "zone" in group else "region"
        found.append({**group, where: api.last_part(group[where])})
    return found


def waiting(config: Config, name: str | None = None) -> set[str]:
    """Return the names of groups that have a machine, or get one when there is room."""
    return {group["name"] for group in find(config, name) if is_waiting(group)}


def is_waiting(group: dict[str, Any]) -> bool:
    """Return whether a group has a machine, or gets one: not one whose machine's time has ended,
    and a slice only while it is created.
    """
    if "region" in group:
        return bool(group.get("targetSize"))
    return bool(group.get("status", {}).get("bulkInstanceOperation", {}).get("inProgress"))


def sha256_of(config: Config, group: dict[str, Any]) -> str:
    """Return the hash of its job that a group gives to its machines; "" if it gives none."""
    own = group.get("allInstancesConfig", {}).get("properties", {}).get("metadata", {})
    if own:
        return str(own.get(JOB_SHA256, ""))
    path = f"/global/instanceTemplates/{api.last_part(group['instanceTemplate'])}"
    template = api.find(config, path, fields="properties/metadata/items")
    return metadata_of(template.get("properties", {})).get(JOB_SHA256, "")


def regions(config: Config, name: str) -> set[str]:
    """Return the regions in which a job has a group."""
    return {group["region"] for group in find(config, name) if "region" in group}


def delete_old_templates(config: Config, job: str = "") -> None:
    """Delete the templates of single jobs whose group is gone, of `job` however young; those that
    jobs share are kept.
    """
    for each in unused_templates(config, find(config)):
        owner = each["properties"].get("labels", {}).get(OF_THE_JOB)
        # A young one may be that of a group which is about to be made.
        is_old = age_seconds(each["creationTimestamp"]) > YOUNG
        if owner and (is_old or owner == job):
            api.delete(config, f"/global/instanceTemplates/{each['name']}", wait_for_it=True)


def unused_templates(config: Config, used: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return berg's templates that none of these groups is made from."""
    ours = f'description="{description(config)}"'
    names = {api.last_part(group["instanceTemplate"]) for group in used}
    found = api.items(config, "/global/instanceTemplates", filter=ours)
    return [template for template in found if template["name"] not in names]

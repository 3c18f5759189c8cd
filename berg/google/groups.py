"""Instance groups: Google keeps a machine for a job, whenever and in whichever zone there is room
for it.

A job's group is a regional managed instance group of one machine. The group is named like the job,
the machine as Google likes; it knows its job from what the group sets for all its machines. When
the machine is preempted or crashes, Google re-creates it; not when its time is over. The machine's
worker deletes the group when the job is over. What the machine is to be is in an instance template
that is named after its content, so that jobs of the same kind share it. Where Google does not apply
what a group sets for all (resize_requests.py), the template names the job, and is its own.
"""

import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api, grants, tpus
from berg.google.instances import base_name, without_zones
from berg.words import plural

PATIENCE = 60  # seconds to wait for the first word on whether there is room
YOUNG = 3600  # seconds for which a template without a group stays
# key of the label and of the metadata; all else is the same for jobs of the same kind
OF_THE_JOB = "berg-job"
# keys of the metadata that each job has its own values of
METADATA_OF_THE_JOB = (OF_THE_JOB, "berg-job-sha256", "berg-cluster-key")


def description(config: Config) -> str:
    return f"for berg's jobs in gs://{config.bucket}"


def requests(
    config: Config,
    zones: list[str],
    body: dict[str, Any],
    names: list[str],
    has_own_template: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return the bodies of the requests that make a group, from the body of an insert.

    Several machines keep their names, and are in one zone, where each waits for room when it is
    lost. With a template of its own the group sets nothing for all of its machines.
    """
    name = job_of(names)
    made_from = named_template(config, body) if has_own_template else template(config, body)
    group: dict[str, Any] = {
        "name": name,
        "description": description(config),
        "baseInstanceName": base_name(name),
        "targetSize": 1,
        "instanceTemplate": (
            f"projects/{config.project}/global/instanceTemplates/{made_from['name']}"
        ),
        "distributionPolicy": {
            "zones": [{"zone": f"projects/{config.project}/zones/{zone}"} for zone in zones],
            "targetShape": "ANY",
        },
        "updatePolicy": {"type": "OPPORTUNISTIC", "instanceRedistributionType": "NONE"},
        # Else a machine waits for room in the zone where it was first.
        "instanceLifecyclePolicy": {
            "forceUpdateOnRepair": "YES",
            "onRepair": {"allowChangingZone": "YES"},
        },
    }
    if not has_own_template:
        group["allInstancesConfig"] = all_instances(body, name)
    found = {"template": made_from, "group": group}
    if len(names) > 1:
        group["targetSize"] = 0
        group["distributionPolicy"]["targetShape"] = "ANY_SINGLE_ZONE"
        group["instanceLifecyclePolicy"] = {"forceUpdateOnRepair": "YES"}
        found["members"] = {"instances": [{"name": each} for each in names]}
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
    """Make a job's group; returns the zone of its machines, or "" while there is no room for one.

    Raises BergError for what waiting does not fix; then nothing is left behind but the template.
    """
    region = zones[0].rpartition("-")[0]
    bodies = requests(config, zones, body, names)
    name = job_of(names)
    say(f"Asking Google to keep {plural(len(names), 'machine')} in {region} ({', '.join(zones)})")
    make(config, region, bodies, "createInstances", bodies.get("members"))
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        machine, errors = member(config, region, name)
        if machine:
            return machine
        if errors:
            failed = api.OperationFailed(errors[0].get("code", ""), errors[0].get("message", ""))
            if failed.blocks == "zone":
                break
            if not grants.is_settling(config, failed):
                why = failed.explain(region)
                said = f"no machine could be created, and none was left behind.\n  {why}"
                if failed.blocks:
                    raise api.NoRoom(said)
                raise BergError(said)
        time.sleep(0.5)
    say(
        f"There is no room in {', '.join(zones)} now. Google creates the machine when there is, "
        "without this computer."
    )
    return ""


def make(
    config: Config,
    region: str,
    bodies: dict[str, dict[str, Any]],
    method: str,
    more: dict[str, Any] | None,
) -> None:
    """Make a template, its group, and by a method of the group's what else its members need; raise
    BergError with what Google says.
    """
    from google.api_core import exceptions

    try:
        api.write(config, "/global/instanceTemplates", bodies["template"])
    except exceptions.Conflict:
        pass  # of an earlier job of this kind
    try:
        api.write(config, f"/regions/{region}/instanceGroupManagers", bodies["group"])
        if more:
            api.write(config, f"{path_of(region, bodies['group']['name'])}/{method}", more)
    except (exceptions.GoogleAPICallError, api.OperationFailed) as error:
        raise BergError(
            f"no group of machines could be made in {region}: {error.message}"
        ) from None


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

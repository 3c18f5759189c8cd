"""Compute Engine as a place for jobs: from a plan to machines, what becomes of them, and their end.

What a place does says places.py. The single requests stand in google/: instances.py, and groups.py
for machines that Google makes anew.
"""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from berg import BergError
from berg.config import Config
from berg.credentials import SCOPES
from berg.google import api, grants, groups, instances
from berg.inventory import Machine, Resource
from berg.plan import Plan

STARTUP_SCRIPT = Path(__file__).with_name("machine") / "boot.py"
warm_up = instances.import_compute
machines = instances.find
waiting = groups.waiting
tell = instances.set_metadata
console = instances.serial_output
why_gone, proxy, shell = instances.why_gone, instances.tunnel, instances.no_shell


def request(plan: Plan) -> dict[str, Any]:
    """What each machine is to be, by zone in the order of the attempts, in the API's words, without
    its name.
    """
    return {zone: body(plan, zone) for zone in plan.zones}


def body(plan: Plan, zone: str) -> dict[str, Any]:
    config, shape, name = plan.config, plan.shape, plan.job.job_name
    scheduling: dict[str, Any] = {
        "maxRunDuration": {"seconds": str(plan.machine_seconds)},
        "instanceTerminationAction": "DELETE",
        "automaticRestart": plan.job.is_restarted and not plan.spot,
    }
    if plan.spot:
        scheduling["provisioningModel"] = "SPOT"
        # else the machine hears of it with the power-off
        scheduling["preemptionNoticeDuration"] = {"seconds": "120"}
    if plan.spot or shape.num_gpus or plan.job.tpu:
        scheduling["onHostMaintenance"] = "TERMINATE"
    interface: dict[str, Any] = {"network": f"global/networks/{config.network}"}
    if shape.nic_type:
        interface["nicType"] = shape.nic_type
    if not config.no_external_ip:
        interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    if config.subnetwork:
        interface["subnetwork"] = f"regions/{region_of(zone)}/subnetworks/{config.subnetwork}"
    owner = {"berg-sweep": name} if plan.job.sweep else {"berg-job": name}
    metadata = {
        "berg-bucket": config.bucket,
        **owner,
        "berg-dist": f".berg/dist/{plan.wheel[0]}",
        **({"berg-packages": f".berg/dist/{plan.packages[0]}"} if plan.packages[0] else {}),
        **({"berg-endpoint": config.endpoint} if config.endpoint else {}),
        # It refuses the metadata's keys. Root's the worker installs, whatever the organisation says
        # of OS Login.
        **({"enable-oslogin": "FALSE"} if config.ssh_user != "root" else {}),
        **({"ssh-keys": plan.ssh_key} if plan.ssh_key else {}),
        "startup-script": STARTUP_SCRIPT.read_text(),
    }
    labels = {"berg": "1", **owner, "berg-kind": plan.job.kind, "berg-user": config.user}
    labels["berg-bucket"] = instances.bucket_label(config)
    disk = {
        "sourceImage": plan.job.image,
        "diskSizeGb": str(plan.disk_gb),
        "diskType": f"zones/{zone}/diskTypes/{shape.disk_type}",
        "labels": labels,
    }
    made = {
        "machineType": f"zones/{zone}/machineTypes/{shape.machine_type}",
        "labels": labels,
        "scheduling": scheduling,
        "networkInterfaces": [interface],
        "serviceAccounts": [{"email": config.service_account or "default", "scopes": SCOPES}],
        "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
    }
    if shape.accelerator:
        accelerator = f"zones/{zone}/acceleratorTypes/{shape.accelerator}"
        made["guestAccelerators"] = [
            {"acceleratorType": accelerator, "acceleratorCount": shape.num_gpus}
        ]
    return made


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def preview(config: Config, request: dict[str, Any], names: list[str], keep: bool) -> Any:
    """The body of the request that makes the machines, or those for the template and the group that
    keeps one.
    """
    first = next(iter(request.values()))
    return (
        groups.requests(config, [*request], first, names[0])
        if keep
        else instances.request_body(first, names)
    )


def create(
    config: Config,
    request: dict[str, Any],
    names: list[str],
    keep: bool,
    say: Callable[[str], None],
) -> str:
    """Create the machines in the first zone that has room for all of them, or a group that keeps
    one.

    Returns the zone, "" while the group has no room. Raises BergError with every zone that was
    tried and why it would not do.
    """
    if keep:
        return groups.create(config, [*request], next(iter(request.values())), names[0], say)
    what = "the machine" if len(names) == 1 else f"{len(names)} machines"
    hint = "Try other zones (--zone), other or fewer GPUs (-t, -g) or TPUs (--tpu), or --spot"

    def make(zone: str, body: dict[str, Any]) -> None:
        instances.insert(config, zone, body, names)

    return in_turn(config, request, make, what, say, hint)


def in_turn(
    config: Config,
    bodies: dict[str, dict[str, Any]],
    make: Callable[[str, dict[str, Any]], None],
    what: str,
    say: Callable[[str], None],
    hint: str,
) -> str:
    """The first zone in which `make` works; raises BergError with why each that was tried would not
    do.
    """
    tried: list[str] = []
    full_regions: set[str] = set()
    for zone, body in bodies.items():
        region = region_of(zone)
        if region in full_regions:
            continue
        try:
            say(f"Creating {what} in {zone}")
            grants.once_known(config, functools.partial(make, zone, body))
            if tried:
                say("\n".join(tried))
            return zone
        except api.OperationFailed as error:
            tried.append(f"{zone}: {error.explain(region)}")
            if error.blocks == "region":
                full_regions.add(region)
            elif error.blocks != "zone":
                hint = hint if error.blocks else ""  # no other zone would do
                break
    failed = "no machine could be created, and none was left behind.\n  " + "\n  ".join(tried)
    raise BergError(f"{failed}\n{hint}".rstrip())


def let_in(config: Config, machine: Machine, line: str) -> bool | None:
    """Add a line to the keys in a machine's metadata; whether it was new there, None if the machine
    is gone.
    """
    told = instances.metadata(config, machine)
    if told is None or line in told.get("ssh-keys", "").splitlines():
        return None if told is None else False
    tell(config, machine, "ssh-keys", lambda old: "\n".join([*old.splitlines(), line]))
    return True


def delete(config: Config, job: str, machines: list[Machine], group: str) -> None:
    """Delete machines, or the group in the region `group` with them, and wait until they are gone."""
    paths = (
        [groups.path_of(group, job)]
        if group
        else [instances.path_of(machine) for machine in machines]
    )
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda path: api.delete(config, path, wait_for_it=True), paths))


def resources(config: Config) -> list[Resource]:
    """Groups, disks that no machine has, and templates that no group is made from."""
    kept = groups.find(config)
    found = [
        Resource("group", each["name"], each["region"], each["creationTimestamp"], "")
        for each in kept
        if "region" in each
    ]
    for disk in instances.unused_disks(config):
        user, where = disk.get("labels", {}).get("berg-user", ""), api.last_part(disk["zone"])
        found.append(
            Resource(
                "disk", disk["name"], where, disk["creationTimestamp"], "no machine has it", user
            )
        )
    for template in groups.unused_templates(config, kept):
        why = "no group is made from it"
        found.append(Resource("template", template["name"], "", template["creationTimestamp"], why))
    return found


def remove(config: Config, resource: Resource) -> None:
    """Delete a group, with its machine, or a disk or template; what is gone already is fine."""
    path = {
        "disk": f"/zones/{resource.where}/disks/{resource.name}",
        "group": groups.path_of(resource.where, resource.name),
        "template": f"/global/instanceTemplates/{resource.name}",
    }[resource.kind]
    api.delete(config, path, wait_for_it=True)

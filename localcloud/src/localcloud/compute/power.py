"""A machine's life: what turns an instance on and off, and what happens to it by itself.

Transitions hold the lock of their instance: a deletion waits for a boot that has begun. sandbox.py
does the work on the host; a server that is killed leaves its machines running, and the next one ends
them (`settle`).

A machine that is to go down hears it as on Google: the power button (ACPI), and 30 s (Spot) or 120
s later no power. In a preemption `preempted` turns TRUE first, as long before the power button as
`preemptionNoticeDuration` says.

Not covered: suspend and resume, live migration, automatic restart after a crash. Spot machines are
preempted only on demand, and hosts maintained likewise.
"""

import asyncio
import logging
import os
import signal
from datetime import datetime, timezone

from localcloud.compute import blocks, contents, flex, networks, quotas, reservations, tpus
from localcloud.compute.checks import last
from localcloud.compute.state import Compute, Instance
from localcloud.errors import ApiError
from localcloud.machines import processes, sandbox

log = logging.getLogger("localcloud")

GRACE_SPOT, GRACE = 30.0, 120.0  # seconds between the power button and the end of power
NODE = "goog-gke-node"  # a label of nodes of clusters
MAINTAINED = "compute.instances.terminateOnHostMaintenance"


def insert(compute: Compute, instance: Instance, disks: list[dict], operation: dict) -> None:
    """Make an instance; how it goes is the operation's to tell."""
    error = compute.faults.take_operation_error("compute.instances.insert", instance.zone)
    failed = error if error and not error.get("instance_lives") else None
    failed = failed or networks.give_addresses(compute, instance)
    failed = failed or quotas.shortage(compute, instance)
    failed = failed or reservations.shortage(compute, instance)
    if failed and instance.valid_seconds and failed["code"] in flex.ROOM:  # it waits
        instance.resource["status"] = "PENDING"
        compute.add(instance, disks)
        compute.in_background(wait(compute, instance, operation))
        return
    if failed:
        compute.finish(operation, failed)
        return
    if instance.zone in compute.stockouts:
        compute.stockouts[instance.zone] -= 1
    compute.add(instance, disks)
    compute.in_background(boot(compute, instance, operation, error))


async def wait(compute: Compute, instance: Instance, operation: dict) -> None:
    """Boot an instance as soon as there is room for it, or forget it when its wait runs out."""
    failed = await flex.room(compute, instance)
    if not compute.is_there(instance):
        compute.finish(operation, failed)
        return
    if failed:
        compute.forget(instance)
        compute.finish(operation, failed)
        return
    if instance.zone in compute.stockouts:
        compute.stockouts[instance.zone] -= 1
    compute.set_status(instance, "PROVISIONING")
    await boot(compute, instance, operation)


def check_stop(instance: Instance, params: dict) -> None:
    """Raise ApiError for what Google does not stop: it has no way back, or would lose a disk."""
    resource = instance.resource
    if resource["scheduling"]["provisioningModel"] == "FLEX_START":
        why = "Stopping a VM with the FLEX_START provisioning model is not supported."
        raise ApiError(400, "invalidResourceUsage", f"Invalid resource usage: '{why}'.")
    has_scratch = any(disk["type"] == "SCRATCH" for disk in resource["disks"])
    if has_scratch and "discardLocalSsd" not in params:
        why = "The discardLocalSsd parameter must be set for a VM with local SSDs."
        raise ApiError(400, "badRequest", why)


def check_start(instance: Instance) -> None:
    """Raise ApiError for an instance that is on its way down."""
    if instance.resource["status"] == "STOPPING":
        why = f"The resource '{instance.path}' is not ready"
        raise ApiError(400, "resourceNotReady", why)


async def start(compute: Compute, instance: Instance, operation: dict) -> None:
    """Turn a stopped instance on again."""
    if instance.resource["status"] != "TERMINATED":
        compute.finish(operation)
    elif error := quotas.shortage(compute, instance):
        compute.finish(operation, error)
    else:
        instance.preempted = instance.maintained = False
        for access in instance.access_configs:
            access["natIP"] = instance.address
        compute.set_status(instance, "PROVISIONING")
        await boot(compute, instance, operation)


async def boot(
    compute: Compute, instance: Instance, operation: dict, error: dict | None = None
) -> None:
    async with compute.lock(instance):
        try:
            on = await power_on(compute, instance)
            why = "" if on else sandbox.console_tail(compute.machine_folder(instance))
        except Exception as failure:  # an operation that never ends would say nothing
            log.exception("%s did not boot", instance.name)
            on, why = False, f"{type(failure).__name__}: {failure}"
        if not on:
            await power_off(compute, instance, 0)
            error = {"code": "INTERNAL_ERROR", "message": f"Machine did not boot: {why}"}
    compute.finish(operation, error)


async def power_on(compute: Compute, instance: Instance) -> bool:
    """Boot a machine; False if this host could not."""
    if not compute.settings.boot:
        compute.set_status(instance, "RUNNING", lastStartTimestamp=compute.timestamp())
        return True
    # Elsewhere there is no system's python to install packages into: the image's is a virtual
    # environment.
    learns = instance.learns and compute.sandbox.files == sandbox.OVERLAY
    learns = learns and bool(await asyncio.to_thread(sandbox.system_python))
    kind = "prepared" if compute.settings.prepared else "learning"
    image = None if instance.plain_image else compute.images / kind
    instance.network_down = False
    compute.set_status(instance, "STAGING")
    await compute.open_address(instance.address)
    folder = compute.machine_folder(instance)
    script = instance.metadata(compute.common_metadata(instance.project)).get("startup-script")
    about = (instance.name, instance.address, compute.metadata_port, image, script)
    busy = compute.settings.first_boot if instance.learns or instance.plain_image else 0
    chips = chips_on(instance)
    await contents.lay_out(compute, instance)
    ssds = blocks.plug_ssds(compute, instance)
    machine = sandbox.Machine(
        folder, *about, *chips, instance.peers, learns, busy, devices_open=ssds
    )
    try:
        process = await asyncio.to_thread(sandbox.boot, machine, compute.sandbox)
    finally:
        for each in ssds:
            os.close(each)
    compute.booted[instance.id] = process
    while not processes.is_up(folder):
        if process.poll() is not None and not processes.is_up(folder):
            return False
        await asyncio.sleep(0.003)
    run = instance.resource["scheduling"].get("maxRunDuration")
    instance.ends_at = compute.now() + int(run["seconds"]) if run else None
    if instance.ends_at:
        ends = datetime.fromtimestamp(instance.ends_at, timezone.utc).isoformat(
            timespec="milliseconds"
        )
        instance.resource["resourceStatus"] = {"scheduling": {"terminationTimestamp": ends}}
    compute.set_status(instance, "RUNNING", lastStartTimestamp=compute.timestamp())
    watch(compute, instance)
    return True


def chips_on(instance: Instance) -> tuple[dict[str, str], list[str]]:
    """The variables and the PCI devices by which programs know a machine with TPUs; none for
    others.
    """
    kind = last(instance.resource["machineType"])
    generation = tpus.generation_of(kind)
    if not generation:
        return {}, []
    variables = tpus.variables(kind, instance.group or instance.id)
    return variables, [generation.device] * tpus.chips_of(kind)


def watch(compute: Compute, instance: Instance) -> None:
    """Notice a machine that ends by itself, and end one that reaches its time limit."""
    tasks = [asyncio.ensure_future(see_end(compute, instance))]
    if instance.ends_at is not None:
        tasks.append(asyncio.ensure_future(end_in_time(compute, instance, instance.ends_at)))
    compute.watches[instance.id] = tasks


async def see_end(compute: Compute, instance: Instance) -> None:
    await processes.ended(compute.machine_folder(instance), compute.sandbox)
    # A host process that ended inside a transition is that transition's business.
    if instance.resource["status"] == "RUNNING":
        log.info("%s powered itself off", instance.name)
        async with compute.lock(instance):
            if instance.resource["status"] == "RUNNING":
                await power_off(compute, instance, 0)


async def end_in_time(compute: Compute, instance: Instance, ends_at: float) -> None:
    await asyncio.sleep(max(0.0, ends_at - compute.now()) / compute.settings.hurry)
    if group := compute.group_of(instance):
        compute.release(group, instance.name)
        compute.save_group(group)
    terminate(compute, instance, "compute.instances.scheduledTermination")


async def take_down(compute: Compute, instance: Instance, grace: float | None) -> None:
    """The power button, `grace` seconds, no power. Leaves the instance STOPPING: what it is next,
    the caller knows.
    """
    current = asyncio.current_task()
    for task in compute.watches.pop(instance.id, []):
        if task is not current:
            task.cancel()
    compute.set_status(instance, "STOPPING")
    spot = instance.resource["scheduling"]["provisioningModel"] == "SPOT"
    usual = (
        compute.settings.grace
        if compute.settings.grace is not None
        else GRACE_SPOT
        if spot
        else GRACE
    )
    grace = usual if grace is None else grace
    await processes.shut_down(compute.machine_folder(instance), compute.sandbox, grace)
    process = compute.booted.pop(instance.id, None)
    if process is not None:
        await asyncio.to_thread(process.wait)
    await compute.close_address(instance.address)
    instance.ends_at = None


async def power_off(compute: Compute, instance: Instance, grace: float | None) -> None:
    """Take a machine down, to TERMINATED. Its disk stays."""
    await take_down(compute, instance, grace)
    blocks.discard_ssds(compute, instance)
    for access in instance.access_configs:
        access.pop("natIP", None)
    # Google restarts the time limit with the next start.
    instance.resource.pop("resourceStatus", None)
    compute.set_status(instance, "TERMINATED", lastStopTimestamp=compute.timestamp())


async def stop(
    compute: Compute, instance: Instance, operation: dict, grace: float | None = None
) -> None:
    async with compute.lock(instance):
        if compute.is_there(instance) and instance.resource["status"] != "TERMINATED":
            await power_off(compute, instance, grace)
    compute.finish(operation)


async def delete(
    compute: Compute, instance: Instance, operation: dict, grace: float | None = None
) -> None:
    async with compute.lock(instance):
        if compute.is_there(instance):
            if instance.resource["status"] != "PENDING":  # which has no machine yet
                await take_down(compute, instance, grace)
            folder = compute.machine_folder(instance)
            if folder.exists():
                await asyncio.to_thread(sandbox.remove, folder)
            compute.forget(instance)
    compute.finish(operation)


def terminate(
    compute: Compute,
    instance: Instance,
    kind: str,
    grace: float | None = None,
    notice: float = 0,
) -> dict:
    """End an instance on Google's behalf in `notice` seconds, the way its termination action says."""
    operation = compute.operation_on(instance, kind)
    action = instance.resource["scheduling"].get("instanceTerminationAction")
    end = delete if action == "DELETE" else stop

    async def in_time() -> None:
        waited = 0.0
        while waited < notice and compute.is_there(instance) and not compute.closing:
            await asyncio.sleep(0.1)
            waited += 0.1
        await end(compute, instance, operation, grace)

    compute.in_background(in_time())
    return operation


def preempt(
    compute: Compute, instance: Instance, grace: float | None = None, notice: float | None = None
) -> dict:
    """What Google does to a Spot machine: the metadata flag, the notice it asked for, the power
    button, 30 s, off.
    """
    instance.preempted = True
    compute.save(instance)
    asked = float(
        instance.resource["scheduling"].get("preemptionNoticeDuration", {}).get("seconds", 0)
    )
    notice = asked if notice is None else min(notice, asked)
    return terminate(compute, instance, "compute.instances.preempted", grace, notice)


def maintain(compute: Compute, instance: Instance) -> dict:
    """What Google does to a machine that cannot go to another host: the metadata flag, the power button, off."""
    instance.maintained = True
    compute.save(instance)
    operation = compute.operation_on(instance, MAINTAINED)
    compute.in_background(stop(compute, instance, operation))
    return operation


def crash(compute: Compute, instance: Instance) -> None:
    """Cut the power. `see_end` finds the machine off."""
    processes.send(compute.machine_folder(instance), compute.sandbox, signal.SIGKILL)


async def cut_off(compute: Compute, instance: Instance, cut: bool) -> None:
    """Take a machine off the network, or put it back."""
    instance.cut = cut
    compute.save(instance)
    await (compute.close_address if cut else compute.open_address)(instance.address)


async def network_down(compute: Compute, instance: Instance) -> None:
    """A machine that goes down has taken its network down: nothing of it comes or goes any more."""
    instance.network_down = True
    await compute.close_address(instance.address)
    for transport in compute.connections.pop(instance.token, set()):
        transport.abort()


async def settle(compute: Compute) -> None:
    """After a start of the server: what a killed one left running has lost its power, and what was
    under way is over.
    """
    going_on = {group.deletion for group in compute.groups.values()}
    deletions = {}
    for operation in compute.operations.values():
        if operation["status"] != "DONE" and operation["name"] not in going_on:
            compute.finish(operation)
            if operation["operationType"] == "delete":
                deletions[operation.get("targetId")] = operation
    for instance in list(compute.instances.values()):
        if (
            instance.resource["status"] == "PENDING"
        ):  # Google's queue survives what this one does not
            compute.forget(instance)
        elif NODE in instance.resource.get("labels", {}):  # likewise of clusters
            await delete(compute, instance, compute.operation_on(instance, "delete"), 0)
        elif instance.id in deletions:
            await delete(compute, instance, deletions[instance.id], 0)
        elif instance.resource["status"] != "TERMINATED":
            await power_off(compute, instance, 0)
    for project in compute.settled.values():
        for snapshot in project.get("snapshots", []):
            if snapshot["status"] == "UPLOADING":  # from a disk whose copy broke off
                snapshot["status"] = "FAILED"


async def close(compute: Compute) -> None:
    """End every machine, before the server ends, in half a minute at most."""
    compute.closing = True
    grace = min(GRACE_SPOT, GRACE if compute.settings.grace is None else compute.settings.grace)
    running = [i for i in compute.instances.values() if i.resource["status"] != "TERMINATED"]
    await asyncio.gather(
        *(stop(compute, i, compute.operation_on(i, "stop"), grace) for i in running)
    )

"""Compute Engine's state and what changes it: instances, disks, operations, quotas. Knows no HTTP.

Every resource is one JSON file under `<folder>/compute/`, written in one step, so a server that is killed finds
its machines again: those that still run are adopted, the others are TERMINATED.

Not covered: suspend and resume, live migration, moving disks, disks that outlive their machine with their data,
regional disks, automatic restart after a crash. A stockout is what /_berg/stockout says; Spot machines are
preempted only on demand.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import secrets
import subprocess
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from berg.local import catalog, compute_images, machines
from berg.local.compute_checks import LINK, fingerprint, not_found
from berg.local.errors import ApiError

log = logging.getLogger("berg.local")

SYSTEM = "system@google.com"
KEEP_OPERATIONS = 14 * 24 * 3600  # seconds, as on Google
# Operation error code -> the HTTP status and message that stand beside it.
HTTP_OF_ERROR = {
    "QUOTA_EXCEEDED": (403, "FORBIDDEN"),
    "ZONE_RESOURCE_POOL_EXHAUSTED": (503, "SERVICE UNAVAILABLE"),
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": (503, "SERVICE UNAVAILABLE"),
    "RESOURCE_NOT_FOUND": (404, "NOT FOUND"),
    "IAM_PERMISSION_DENIED": (403, "FORBIDDEN"),
    "PERMISSIONS_ERROR": (403, "FORBIDDEN"),
    "INTERNAL_ERROR": (500, "INTERNAL SERVER ERROR"),
}


@dataclass
class Instance:
    project: str
    zone: str
    id: str
    resource: dict  # Google's Instance
    needs: dict[str, int]  # quota metric -> amount
    plain_image: bool
    preempted: bool = False
    cut: bool = False  # off the network
    ends_at: float | None = None  # when maxRunDuration is over
    token: str = ""
    token_expires: float = 0
    guest_attributes: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.resource["name"]

    @property
    def address(self) -> str:
        return self.resource["networkInterfaces"][0]["networkIP"]

    @property
    def path(self) -> str:
        return f"projects/{self.project}/zones/{self.zone}/instances/{self.name}"

    def metadata(self, common: dict | None = None) -> dict[str, str]:
        items = [*(common or {}).get("items", []), *self.resource["metadata"].get("items", [])]
        return {item["key"]: item["value"] for item in items}


@dataclass
class Settings:
    grace: float = 30.0  # seconds between SIGTERM and SIGKILL
    delay: float = 0.0  # extra seconds in PROVISIONING


async def _nothing(address: str) -> None: ...


@dataclass
class Compute:
    folder: Path
    projects: dict[str, dict]
    faults: Any
    settings: Settings = field(default_factory=Settings)
    metadata_port: int = 0
    open_address: Callable[[str], Awaitable[None]] = _nothing  # of the metadata server
    close_address: Callable[[str], Awaitable[None]] = _nothing
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.sandbox = machines.Sandbox(machines.PLAIN)
        self.image: asyncio.Future[Path] | None = None
        self.instances: dict[tuple[str, str, str], Instance] = {}
        self.operations: dict[str, dict] = {}
        self.disks: dict[tuple[str, str, str], dict] = {}
        self.settled: dict[str, dict] = {}  # project -> common metadata, own images, quotas
        self.stockouts: dict[str, int] = {}  # zone -> how many instances it still takes
        self.changed = asyncio.Event()  # replaced whenever anything changes
        self.locks: dict[str, asyncio.Lock] = {}
        self.watches: dict[str, list[asyncio.Task]] = {}
        self.booted: dict[str, subprocess.Popen] = {}
        self.tasks: set[asyncio.Task] = set()
        self.closing = False
        self.load()

    # --- on disk

    def load(self) -> None:
        for kind in ("instances", "operations", "disks", "projects"):
            (self.folder / kind).mkdir(parents=True, exist_ok=True)
        for row in self.read("instances"):
            instance = Instance(**row)
            self.instances[instance.project, instance.zone, instance.name] = instance
        for row in self.read("operations"):
            if self.now() - datetime.fromisoformat(row["insertTime"]).timestamp() < KEEP_OPERATIONS:
                self.operations[row["name"]] = row
            else:
                self.drop("operations", row["name"])
        for row in self.read("disks"):
            self.disks[tuple(row["berg_key"])] = row
        for row in self.read("projects"):
            self.settled[row["project"]] = row

    def read(self, kind: str) -> list[dict]:
        return [json.loads(path.read_text()) for path in sorted((self.folder / kind).glob("*.json"))]

    def write(self, kind: str, key: str, row: dict) -> None:
        path = self.folder / kind / f"{key}.json"
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(row))
        temporary.replace(path)
        self.notify()

    def drop(self, kind: str, key: str) -> None:
        (self.folder / kind / f"{key}.json").unlink(missing_ok=True)
        self.notify()

    def notify(self) -> None:
        """Wake everything that waits for a change (operations/wait, wait_for_change)."""
        self.changed.set()
        self.changed = asyncio.Event()

    def save(self, instance: Instance) -> None:
        self.write("instances", instance.id, asdict(instance))

    def project_row(self, project: str) -> dict:
        metadata = {"kind": "compute#metadata", "fingerprint": fingerprint([])}
        empty = {"project": project, "commonInstanceMetadata": metadata, "images": [], "quotas": {}}
        return self.settled.setdefault(project, empty)

    def save_project(self, project: str) -> None:
        self.write("projects", project, self.project_row(project))

    def own_images(self) -> dict[str, list[dict]]:
        return {project: row["images"] for project, row in self.settled.items()}

    # --- operations

    def timestamp(self) -> str:
        return datetime.fromtimestamp(self.now(), timezone.utc).isoformat(timespec="milliseconds")

    def operation(self, project: str, kind: str, target: str, scope: str, user: str, **more: Any) -> dict:
        """Record a new operation; `scope` is zones/<zone>, regions/<region> or global."""
        name = f"operation-{int(self.now() * 1000)}-{uuid.uuid4().hex[:13]}-{secrets.token_hex(4)}"
        base = f"{LINK}projects/{project}/{scope}"
        row = {
            "kind": "compute#operation",
            "id": self.new_id(),
            "name": name,
            "operationType": kind,
            "targetLink": LINK + target,
            "user": user,
            "status": "RUNNING",
            "progress": 0,
            "insertTime": self.timestamp(),
            "startTime": self.timestamp(),
            "selfLink": f"{base}/operations/{name}",
            **({scope.partition("s/")[0]: base} if scope != "global" else {}),
            **{key: value for key, value in more.items() if value},
        }
        self.operations[name] = row
        self.write("operations", name, row)
        return row

    def finish(self, operation: dict, error: dict | None = None) -> dict:
        operation.update(status="DONE", progress=100, endTime=self.timestamp())
        if error:
            shown = {key: error[key] for key in ("code", "message", "errorDetails", "location") if key in error}
            status, message = HTTP_OF_ERROR.get(error["code"], (400, "BAD REQUEST"))
            operation.update(error={"errors": [shown]}, httpErrorStatusCode=status, httpErrorMessage=message)
        self.write("operations", operation["name"], operation)
        return operation

    def repeated(self, project: str, request_id: str | None) -> dict | None:
        """The operation that the same requestId began before."""
        rows = self.operations.values()
        return next((row for row in rows if request_id and row.get("clientOperationId") == request_id), None)

    def new_id(self) -> str:
        return str(random.randrange(10**18, 9 * 10**18))

    def start(self, work: Awaitable[None]) -> None:
        """Run a transition in the background."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception():
            log.error("a transition failed", exc_info=task.exception())

    # --- looking up

    def get(self, project: str, zone: str, name: str) -> Instance:
        try:
            return self.instances[project, zone, name]
        except KeyError:
            raise not_found(f"projects/{project}/zones/{zone}/instances/{name}") from None

    def find(self, name: str) -> Instance:
        """The instance of that name, whatever its zone: for the control routes."""
        for instance in self.instances.values():
            if name in (instance.name, instance.id):
                return instance
        raise not_found(f"instances/{name}")

    def at_address(self, address: str) -> Instance | None:
        for instance in self.instances.values():
            if instance.address == address:
                return instance
        return None

    def new_address(self) -> str:
        """An unused loopback address; at random, because other clouds on this host choose too."""
        used = {instance.address for instance in self.instances.values()}
        while True:
            address = f"127.{random.randint(64, 127)}.{random.randint(0, 255)}.{random.randint(2, 254)}"
            if address not in used:
                return address

    # --- quotas and capacity

    def limit(self, project: str, region: str | None, metric: str) -> float:
        changed = self.project_row(project)["quotas"].get(region or "global", {})
        table = catalog.REGION_QUOTAS if region else catalog.PROJECT_QUOTAS
        return changed.get(metric, table.get(metric, 0))

    def usage(self, project: str, region: str | None, metric: str) -> int:
        total = 0
        for instance in self.instances.values():
            here = instance.project == project and region in (None, catalog.ZONES[instance.zone])
            if here and instance.resource["status"] != "TERMINATED":
                total += instance.needs.get(metric, 0)
        return total

    def quota_error(self, project: str, region: str, needs: dict[str, int]) -> dict | None:
        """The operation error for the first quota that `needs` would exceed."""
        needs = dict(needs)
        if "PREEMPTIBLE_CPUS" in needs and not self.limit(project, region, "PREEMPTIBLE_CPUS"):
            needs["CPUS"] = needs.pop("PREEMPTIBLE_CPUS")
        for metric, amount in needs.items():
            where = None if metric in catalog.PROJECT_QUOTAS else region
            limit = self.limit(project, where, metric)
            if self.usage(project, where, metric) + amount <= limit:
                continue
            scope = f"in region {region}" if where else "globally"
            info = {
                "metricName": f"compute.googleapis.com/{metric.lower()}",
                "limitName": f"{metric.replace('_', '-')}-per-project{'-region' if where else ''}",
                "dimensions": {"region": region} if where else {"global": "global"},
                "limit": float(limit),
            }
            return {
                "code": "QUOTA_EXCEEDED",
                "message": f"Quota '{metric}' exceeded.  Limit: {float(limit)} {scope}.",
                "errorDetails": [{"quotaInfo": info}],
            }
        return None

    def stockout_error(self, project: str, zone: str, resource: dict) -> dict:
        gpus = resource.get("guestAccelerators", [])
        attachment = ",".join(f"{g['acceleratorType'].rpartition('/')[2]}:{g['acceleratorCount']}" for g in gpus)
        vm_type = resource["machineType"].rpartition("/")[2]
        details = {"vmType": vm_type, "attachment": attachment, "zone": zone, "zonesAvailable": ""}
        info = {"reason": "resource_availability", "domain": "compute.googleapis.com", "metadatas": details}
        return {
            "code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "message": f"The zone 'projects/{project}/zones/{zone}' does not have enough resources available to "
            "fulfill the request.  '(resource type:compute)'.",
            "errorDetails": [{"errorInfo": info}],
        }

    # --- transitions

    def add(self, instance: Instance, disk: dict | None) -> None:
        self.instances[instance.project, instance.zone, instance.name] = instance
        if disk is not None:
            disk["berg_key"] = [instance.project, instance.zone, disk["name"]]
            self.disks[instance.project, instance.zone, disk["name"]] = disk
            self.write("disks", disk["id"], disk)
        self.save(instance)

    def insert(self, instance: Instance, disk: dict | None, operation: dict) -> None:
        """Make an instance; how it goes is the operation's to tell."""
        error = self.faults.take_operation_error("compute.instances.insert", instance.zone)
        region = catalog.ZONES[instance.zone]
        failed = error if error and not error.get("instance_lives") else None
        failed = failed or self.quota_error(instance.project, region, instance.needs)
        if not failed and instance.zone in self.stockouts:
            if self.stockouts[instance.zone] <= 0:
                failed = self.stockout_error(instance.project, instance.zone, instance.resource)
            self.stockouts[instance.zone] -= 1
        if failed:
            self.finish(operation, failed)
            return
        self.add(instance, disk)
        self.start(self._begin(instance, operation, error))

    async def _begin(self, instance: Instance, operation: dict, error: dict | None = None) -> None:
        async with self.lock(instance):
            if await self.power_on(instance):
                self.finish(operation, error)
            else:
                await self.power_off(instance, 0)
                console = machines.console_tail(self.machine_folder(instance))
                self.finish(operation, {"code": "INTERNAL_ERROR", "message": f"Machine did not boot: {console}"})

    def lock(self, instance: Instance) -> asyncio.Lock:
        return self.locks.setdefault(instance.id, asyncio.Lock())

    def machine_folder(self, instance: Instance) -> Path:
        return self.folder.parent / "machines" / instance.id

    def set_status(self, instance: Instance, status: str, **fields: Any) -> None:
        instance.resource.update(status=status, **fields)
        self.save(instance)

    async def power_on(self, instance: Instance) -> bool:
        """Boot a machine; False if this host could not."""
        if self.settings.delay:
            await asyncio.sleep(self.settings.delay)
        image = None
        if not instance.plain_image and self.image is not None:
            image = await asyncio.shield(self.image)
        self.set_status(instance, "STAGING")
        await self.open_address(instance.address)
        common = self.project_row(instance.project)["commonInstanceMetadata"]
        folder = self.machine_folder(instance)
        script = instance.metadata(common).get("startup-script")
        machine = machines.Machine(folder, instance.name, instance.address, self.metadata_port, image, script)
        process = await asyncio.to_thread(machines.boot, machine, self.sandbox)
        self.booted[instance.id] = process
        while not (folder / "init.pid").exists():
            if process.poll() is not None:
                return (folder / "init.pid").exists()
            await asyncio.sleep(0.003)
        run = instance.resource["scheduling"].get("maxRunDuration")
        instance.ends_at = self.now() + int(run["seconds"]) if run else None
        if instance.ends_at:
            ends = datetime.fromtimestamp(instance.ends_at, timezone.utc).isoformat(timespec="milliseconds")
            instance.resource["resourceStatus"] = {"scheduling": {"terminationTimestamp": ends}}
        self.set_status(instance, "RUNNING", lastStartTimestamp=self.timestamp())
        self.watch(instance)
        return True

    def watch(self, instance: Instance) -> None:
        """See a machine that ends by itself, and end one whose time is over."""
        tasks = [asyncio.ensure_future(self._see_end(instance))]
        if instance.ends_at is not None:
            tasks.append(asyncio.ensure_future(self._end_in_time(instance, instance.ends_at)))
        self.watches[instance.id] = tasks

    async def _see_end(self, instance: Instance) -> None:
        await machines.ended(self.machine_folder(instance), self.sandbox)
        # A host process that ended inside a transition is that transition's business.
        if instance.resource["status"] == "RUNNING":
            log.info("%s powered itself off", instance.name)
            async with self.lock(instance):
                if instance.resource["status"] == "RUNNING":
                    await self.power_off(instance, 0)

    async def _end_in_time(self, instance: Instance, ends_at: float) -> None:
        await asyncio.sleep(max(0.0, ends_at - self.now()))
        self.terminate(instance, "compute.instances.scheduledTermination")

    def terminate(self, instance: Instance, kind: str) -> dict:
        """End an instance the way its termination action says, on Google's behalf."""
        operation = self.operation(instance.project, kind, instance.path, f"zones/{instance.zone}", SYSTEM)
        operation["targetId"] = instance.id
        delete = instance.resource["scheduling"].get("instanceTerminationAction") == "DELETE"
        self.start(self._delete(instance, operation) if delete else self._stop(instance, operation))
        return operation

    async def power_off(self, instance: Instance, grace: float | None = None) -> None:
        """Take a machine down, to TERMINATED. Its disk stays."""
        current = asyncio.current_task()
        for task in self.watches.pop(instance.id, []):
            if task is not current:
                task.cancel()
        if instance.resource["status"] != "TERMINATED":
            self.set_status(instance, "STOPPING")
        grace = self.settings.grace if grace is None else grace
        await machines.shut_down(self.machine_folder(instance), self.sandbox, grace)
        process = self.booted.pop(instance.id, None)
        if process is not None:
            await asyncio.to_thread(process.wait)
        await self.close_address(instance.address)
        instance.ends_at = None
        self.set_status(instance, "TERMINATED", lastStopTimestamp=self.timestamp())

    async def _stop(self, instance: Instance, operation: dict, grace: float | None = None) -> None:
        async with self.lock(instance):
            if self.is_there(instance):
                await self.power_off(instance, grace)
        self.finish(operation)

    async def _delete(self, instance: Instance, operation: dict, grace: float | None = None) -> None:
        async with self.lock(instance):
            if self.is_there(instance):
                instance.resource["labelFingerprint"] = instance.resource.get("labelFingerprint", "")
                await self.power_off(instance, grace)
                folder = self.machine_folder(instance)
                if folder.exists():
                    await asyncio.to_thread(machines.remove, folder)
                self.forget(instance)
        self.finish(operation)

    def is_there(self, instance: Instance) -> bool:
        return self.instances.get((instance.project, instance.zone, instance.name)) is instance

    def forget(self, instance: Instance) -> None:
        del self.instances[instance.project, instance.zone, instance.name]
        self.drop("instances", instance.id)
        for disk in instance.resource["disks"]:
            key = (instance.project, instance.zone, disk["source"].rpartition("/")[2])
            row = self.disks.get(key)
            if row and disk.get("autoDelete"):
                del self.disks[key]
                self.drop("disks", row["id"])
            elif row:
                row.pop("users", None)
                self.write("disks", row["id"], row)

    def delete(self, instance: Instance, operation: dict) -> None:
        self.start(self._delete(instance, operation))

    def stop(self, instance: Instance, operation: dict) -> None:
        self.start(self._stop(instance, operation))

    def begin(self, instance: Instance, operation: dict) -> None:
        """Start a stopped instance again."""
        region = catalog.ZONES[instance.zone]
        if instance.resource["status"] != "TERMINATED":
            self.finish(operation)
            return
        error = self.quota_error(instance.project, region, instance.needs)
        if not error and self.stockouts.get(instance.zone, 1) <= 0:
            error = self.stockout_error(instance.project, instance.zone, instance.resource)
        if error:
            self.finish(operation, error)
            return
        instance.preempted = False
        self.set_status(instance, "PROVISIONING")
        self.start(self._begin(instance, operation))

    def reset(self, instance: Instance, operation: dict) -> None:
        async def work() -> None:
            async with self.lock(instance):
                if self.is_there(instance):
                    await self.power_off(instance, 0)
                    await self.power_on(instance)
            self.finish(operation)

        self.start(work())

    def preempt(self, instance: Instance, grace: float | None = None) -> dict:
        """What Google does to a Spot machine: the metadata flag, the power button, 30 s, off."""
        instance.preempted = True
        self.save(instance)
        scope, kind = f"zones/{instance.zone}", "compute.instances.preempted"
        operation = self.operation(instance.project, kind, instance.path, scope, SYSTEM, targetId=instance.id)
        delete = instance.resource["scheduling"].get("instanceTerminationAction") == "DELETE"
        end = self._delete if delete else self._stop
        self.start(end(instance, operation, grace))
        return operation

    def crash(self, instance: Instance) -> None:
        """Cut the power. `_see_end` finds the machine off."""
        machines.send(self.machine_folder(instance), self.sandbox, machines.signal.SIGKILL)

    async def cut_off(self, instance: Instance, cut: bool) -> None:
        """Take a machine off the network, or put it back."""
        instance.cut = cut
        self.save(instance)
        await (self.close_address if cut else self.open_address)(instance.address)

    # --- the process

    async def adopt(self) -> None:
        """After a start of the server: take over machines that run, settle those that do not."""
        for operation in self.operations.values():
            if operation["status"] != "DONE":
                self.finish(operation)
        for instance in list(self.instances.values()):
            folder = self.machine_folder(instance)
            if instance.resource["status"] == "RUNNING" and machines.alive(folder, self.sandbox):
                if not instance.cut:
                    await self.open_address(instance.address)
                self.watch(instance)
            elif instance.resource["status"] != "TERMINATED":
                await self.power_off(instance, 0)
        kept = {instance.id for instance in self.instances.values()}
        for folder in (self.folder.parent / "machines").glob("*"):
            if folder.name not in kept:
                await asyncio.to_thread(machines.remove, folder)

    async def close(self) -> None:
        """End every machine, before the server ends."""
        self.closing = True
        running = [i for i in self.instances.values() if i.resource["status"] != "TERMINATED"]
        operations = [
            self.operation(i.project, "stop", i.path, f"zones/{i.zone}", SYSTEM, targetId=i.id) for i in running
        ]
        await asyncio.gather(*(self._stop(i, o) for i, o in zip(running, operations, strict=True)))


def disk_view(row: dict) -> dict:
    """A disk as Google shows it."""
    return {key: value for key, value in row.items() if key != "berg_key"}


def boot_disk_for(compute: Compute, project: str, zone: str, name: str, given: dict) -> tuple[dict | None, bool, str]:
    """Return the new boot disk (None if an existing one is attached), whether its image is plain, its link."""
    if given.get("source"):
        disk_name = given["source"].rpartition("/")[2]
        row = compute.disks.get((project, zone, disk_name))
        if row is None:
            raise not_found(f"projects/{project}/zones/{zone}/disks/{disk_name}")
        if row.get("users"):
            message = f"The disk resource '{row['selfLink']}' is already being used by '{row['users'][0]}'"
            raise ApiError(400, "resourceInUseByAnotherResource", message)
        return None, "debian" in row.get("sourceImage", ""), row["selfLink"]
    disk, image = compute_images.boot_disk(project, zone, name, given, compute.own_images())
    if (project, zone, disk["name"]) in compute.disks:
        path = f"projects/{project}/zones/{zone}/disks/{disk['name']}"
        raise ApiError(409, "alreadyExists", f"The resource '{path}' already exists")
    return disk, compute_images.is_plain(image), disk["selfLink"]

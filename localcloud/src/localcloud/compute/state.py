"""Compute Engine's state: instances, groups, disks, operations, and how it is kept on disk. Knows
no HTTP.

Every resource is one JSON file under `<folder>/compute/`, written in one step, so a server that is
killed finds everything again. What turns machines on and off, and so changes most of this, is
power.py.

Not covered: disks that outlive their machine with their data, regional disks.
"""

import asyncio
import json
import logging
import random
import secrets
import subprocess
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from localcloud.compute.checks import LINK, fingerprint, last, not_found
from localcloud.machines import sandbox

log = logging.getLogger("localcloud")

Key = tuple[str, str, str]
SYSTEM = "system@google.com"
KEEP_OPERATIONS = 14 * 24 * 3600  # seconds, as on Google
# Operation error code -> its HTTP status and message.
HTTP_OF_ERROR = {
    "QUOTA_EXCEEDED": (403, "FORBIDDEN"),
    "ZONE_RESOURCE_POOL_EXHAUSTED": (503, "SERVICE UNAVAILABLE"),
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": (503, "SERVICE UNAVAILABLE"),
    "RESOURCE_NOT_FOUND": (404, "NOT FOUND"),
    "EXTERNAL_RESOURCE_NOT_FOUND": (404, "NOT FOUND"),
    "IAM_PERMISSION_DENIED": (403, "FORBIDDEN"),
    "PERMISSIONS_ERROR": (403, "FORBIDDEN"),
    "INTERNAL_ERROR": (500, "INTERNAL SERVER ERROR"),
    "CONDITION_NOT_MET": (412, "PRECONDITION FAILED"),
    "VM_MIN_COUNT_NOT_REACHED": (503, "SERVICE UNAVAILABLE"),
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
    maintained: bool = False  # its host is
    cut: bool = False  # off the network
    network_down: bool = False  # it took its network down itself, on its way out
    ends_at: float | None = None  # when maxRunDuration ends
    valid_seconds: float = 0  # for which it waits for room (flex-start)
    token: str = ""
    token_expires: float = 0
    learns: bool = False  # whether its image is one of Google's for deep learning
    group: str = ""  # path of the managed instance group that it is a member of
    attributes: dict[str, str] = field(default_factory=dict)  # metadata that Google adds
    # namespace -> key -> value: what the machine wrote by its metadata server
    guest_attributes: dict[str, dict[str, str]] = field(default_factory=dict)
    # name -> address of the workers of its slice, by their numbers
    peers: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.resource["name"]

    @property
    def address(self) -> str:
        return self.resource["networkInterfaces"][0]["networkIP"]

    @property
    def access_configs(self) -> list[dict]:
        return self.resource["networkInterfaces"][0].get("accessConfigs", [])

    @property
    def path(self) -> str:
        return f"projects/{self.project}/zones/{self.zone}/instances/{self.name}"

    def metadata(self, common: dict | None = None) -> dict[str, str]:
        items = [*(common or {}).get("items", []), *self.resource["metadata"].get("items", [])]
        return {**{item["key"]: item["value"] for item in items}, **self.attributes}


@dataclass
class Group:
    """A managed instance group. A member is {"zone", "created" (ever), "action", "errors" (of the
    last attempt)}.
    """

    project: str
    region: str
    resource: dict  # Google's InstanceGroupManager, less what its members say
    members: dict[str, dict]
    deletion: str = ""  # name of the operation that deletes it
    zone: str = ""  # of a zonal one; with a workload policy it is a slice: see slices.py
    # of a slice: Google's last word on how its machines come
    progress: dict = field(default_factory=dict)
    formed: bool = False  # a slice was whole once
    # resize requests by name, as Google shows them: see resize_requests.py
    requests: dict[str, dict] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.resource["name"]

    @property
    def path(self) -> str:
        return f"projects/{self.project}/{self.place}/instanceGroupManagers/{self.name}"

    @property
    def place(self) -> str:
        return f"zones/{self.zone}" if self.zone else f"regions/{self.region}"

    @property
    def key(self) -> tuple[str, str, str]:
        return self.project, self.zone or self.region, self.name

    @property
    def policy(self) -> str:
        """Link of its workload policy."""
        return self.resource.get("resourcePolicies", {}).get("workloadPolicy", "")

    @property
    def is_slice(self) -> bool:
        return bool(self.policy)

    @property
    def zones(self) -> list[str]:
        return (
            [self.zone]
            if self.zone
            else [last(row["zone"]) for row in self.resource["distributionPolicy"]["zones"]]
        )


@dataclass
class Settings:
    grace: float | None = None  # seconds between the power button and no power; None: as on Google
    boot: float = 1.0  # 0: machines are RUNNING without a process, to try many
    metadata_delay: float = 0.0  # seconds before the metadata server answers
    first_boot: float = (
        30.0  # seconds for which an image of Google's holds the locks of dpkg when it first boots
    )
    prepared: float = 0.0  # 1: Google's images have /root/berg/venv, which saves time
    refill: float = 1.0  # seconds between two attempts of a group to make a member
    image_delay: float = 0.0  # seconds for which an image or a snapshot is not ready
    network_delay: float = 0.2  # seconds until a new network or subnetwork is ready
    hurry: float = 1.0  # times as fast as on Google do waits for room and maxRunDuration run out


async def _nothing(address: str) -> None: ...


def key_of(link: str) -> Key:
    """Project, zone or region or "global", and name of what a link or a path leads to."""
    parts = link.partition("projects/")[2].split("/")
    return parts[0], parts[-3], parts[-1]


@dataclass
class Compute:
    folder: Path
    projects: dict[str, dict]
    faults: Any
    settings: Settings = field(default_factory=Settings)
    metadata_port: int = 0
    open_address: Callable[[str], Awaitable[None]] = _nothing  # of the metadata server
    close_address: Callable[[str], Awaitable[None]] = _nothing
    # whether there is this service account
    account_exists: Callable[[str], bool] = lambda email: True
    # whether Compute Engine has heard of it
    account_is_known: Callable[[str], bool] = lambda email: True
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.sandbox = sandbox.Sandbox(sandbox.PLAIN)
        self.images = self.folder.parent / "image"  # see machines/image.py
        self.instances: dict[tuple[str, str, str], Instance] = {}
        self.operations: dict[str, dict] = {}
        self.groups: dict[tuple[str, str, str], Group] = {}
        kinds = ("disks", "templates", "policies", "reservations")
        self.tables: dict[str, dict[Key, dict]] = {kind: {} for kind in kinds}
        self.settled: dict[str, dict] = {}  # project -> common metadata, own images, quotas
        self.stockouts: dict[str, int] = {}  # zone -> how many instances it still takes
        self.changed = asyncio.Event()  # replaced whenever anything changes
        self.unready: set[str] = set()  # links of networks and subnetworks that are being made
        self.locks: dict[str, asyncio.Lock] = {}
        # id of a machine -> when it wrote guest attributes
        self.guest_writes: dict[str, deque[float]] = {}
        self.watches: dict[str, list[asyncio.Task]] = {}
        self.booted: dict[str, subprocess.Popen] = {}
        self.tasks: set[asyncio.Task] = set()
        self.connections: dict[
            str, set[Any]
        ] = {}  # token of a machine -> transports of its requests under way
        self.closing = False  # nothing is made any more
        self.load()

    # --- on disk

    def load(self) -> None:
        for kind in ("instances", "operations", "groups", "projects", *self.tables):
            (self.folder / kind).mkdir(parents=True, exist_ok=True)
        for row in self.read("instances"):
            instance = Instance(**row)
            self.instances[instance.project, instance.zone, instance.name] = instance
        for row in self.read("operations"):
            if self.now() - datetime.fromisoformat(row["insertTime"]).timestamp() < KEEP_OPERATIONS:
                self.operations[row["name"]] = row
            else:
                self.drop("operations", row["name"])
        for row in self.read("groups"):
            group = Group(**row)
            self.groups[group.key] = group
        for kind, table in self.tables.items():
            for row in self.read(kind):
                table[key_of(row["selfLink"])] = row
        for row in self.read("projects"):
            self.settled[row["project"]] = row

    def read(self, kind: str) -> list[dict]:
        return [
            json.loads(path.read_text()) for path in sorted((self.folder / kind).glob("*.json"))
        ]

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

    def save_group(self, group: Group) -> None:
        self.write("groups", group.resource["id"], asdict(group))

    def release(self, group: Group, name: str) -> None:
        """Let a member of a group go for good."""
        if group.members[name]["action"] != "DELETING":
            group.members[name].update(action="DELETING", errors=[])
            group.resource["targetSize"] -= 1

    def group_of(self, instance: Instance) -> Group | None:
        return next((group for group in self.groups.values() if group.path == instance.group), None)

    def project_row(self, project: str) -> dict:
        metadata = {"kind": "compute#metadata", "fingerprint": fingerprint([])}
        empty = {"project": project, "commonInstanceMetadata": metadata, "quotas": {}}
        return self.settled.setdefault(project, empty)

    def common_metadata(self, project: str) -> dict:
        return self.project_row(project)["commonInstanceMetadata"]

    def save_project(self, project: str) -> None:
        self.write("projects", project, self.project_row(project))

    def kept(self, project: str, kind: str) -> list:
        """What a project has of a kind; changes to the list last once the project is saved."""
        return self.project_row(project).setdefault(kind, [])

    # --- disks, templates, policies, reservations

    def row(self, kind: str, path: str) -> dict:
        """What is at a path or a link; raise Google's 404 if there is nothing."""
        row = self.tables[kind].get(key_of(path))
        if row is None:
            raise not_found(path.removeprefix(LINK))
        return row

    def rows(self, kind: str, project: str) -> list[tuple[str, dict]]:
        """All that a project has, each with its place."""
        return [(key[1], row) for key, row in self.tables[kind].items() if key[0] == project]

    def keep(self, kind: str, row: dict) -> None:
        self.tables[kind][key_of(row["selfLink"])] = row
        self.write(kind, row["id"], row)

    def lose(self, kind: str, row: dict) -> None:
        del self.tables[kind][key_of(row["selfLink"])]
        self.drop(kind, row["id"])

    # --- operations

    def timestamp(self) -> str:
        return datetime.fromtimestamp(self.now(), timezone.utc).isoformat(timespec="milliseconds")

    def operation(
        self, project: str, kind: str, target: str, scope: str, user: str, **more: Any
    ) -> dict:
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

    def operation_on(self, instance: Instance, kind: str, user: str = SYSTEM, **more: Any) -> dict:
        scope, path = f"zones/{instance.zone}", instance.path
        return self.operation(
            instance.project, kind, path, scope, user, targetId=instance.id, **more
        )

    def finish(self, operation: dict, *errors: dict | None) -> dict:
        operation.update(status="DONE", progress=100, endTime=self.timestamp())
        kept = ("code", "message", "errorDetails", "location")
        shown = [{key: error[key] for key in kept if key in error} for error in errors if error]
        if shown:
            status, message = HTTP_OF_ERROR.get(shown[0]["code"], (400, "BAD REQUEST"))
            operation.update(
                error={"errors": shown}, httpErrorStatusCode=status, httpErrorMessage=message
            )
        self.write("operations", operation["name"], operation)
        return operation

    def repeated(self, request_id: str | None) -> dict | None:
        """The operation that the same requestId began before."""
        rows = self.operations.values()
        return next(
            (row for row in rows if request_id and row.get("clientOperationId") == request_id), None
        )

    def new_id(self) -> str:
        return str(random.randrange(10**18, 9 * 10**18))

    def in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception():
            log.error("a transition failed", exc_info=task.exception())

    # --- instances

    def get(self, project: str, zone: str, name: str) -> Instance:
        """An instance by its name or its id."""
        found = self.instances.get((project, zone, name))
        for key, instance in self.instances.items() if not found else ():
            if key[:2] == (project, zone) and name == instance.id:
                return instance
        if not found:
            raise not_found(f"projects/{project}/zones/{zone}/instances/{name}")
        return found

    def find(self, name: str) -> Instance:
        """The instance of that name, whatever its zone, or that of a group of that name: for the
        control routes.
        """
        for instance in self.instances.values():
            if name in (instance.name, instance.id, last(instance.group)):
                return instance
        raise not_found(f"instances/{name}")

    def at_address(self, address: str) -> Instance | None:
        return next((each for each in self.instances.values() if each.address == address), None)

    def new_address(self) -> str:
        """An unused loopback address; at random, because other clouds on this host choose too."""
        used = {instance.address for instance in self.instances.values()}
        while True:
            address = (
                f"127.{random.randint(64, 127)}.{random.randint(0, 255)}.{random.randint(2, 254)}"
            )
            if address not in used:
                return address

    def is_there(self, instance: Instance) -> bool:
        return self.instances.get((instance.project, instance.zone, instance.name)) is instance

    def lock(self, instance: Instance) -> asyncio.Lock:
        return self.locks.setdefault(instance.id, asyncio.Lock())

    def machine_folder(self, instance: Instance) -> Path:
        return self.folder.parent / "machines" / instance.id

    def add(self, instance: Instance, disks: list[dict]) -> None:
        """Keep an instance and its new disks, and note on them whose they are."""
        self.instances[instance.project, instance.zone, instance.name] = instance
        for disk in disks:
            disk["users"] = [instance.resource["selfLink"]]
            self.keep("disks", disk)
        self.save(instance)

    def set_status(self, instance: Instance, status: str, **fields: Any) -> None:
        instance.resource.update(status=status, **fields)
        self.save(instance)

    def forget(self, instance: Instance) -> None:
        del self.instances[instance.project, instance.zone, instance.name]
        self.drop("instances", instance.id)
        disk = instance.resource["disks"][0]  # the others are Local SSDs
        row = self.row("disks", disk["source"])
        if disk["autoDelete"]:
            self.lose("disks", row)
        else:
            del row["users"]
            self.keep("disks", row)

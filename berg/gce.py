"""Machines of Compute Engine: which type and zones, the request, creation, and those that exist."""

import contextlib
import functools
import json
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from berg import BergError, google, narrow
from berg.config import SCOPES, Config
from berg.google import GoogleError, T, last_part
from berg.job import Job
from berg.place import DEVBOX, Machine

# A GPU's name -> Google's accelerator, and the machine types that have it built in ("": attached).
GPUS = {
    "l4": ("nvidia-l4", "g2-.*"),
    "a100": ("nvidia-tesla-a100", "a2-(high|mega)gpu-.*"),
    "a100-80gb": ("nvidia-a100-80gb", "a2-ultragpu-.*"),
    "h100": ("nvidia-h100-80gb", "a3-highgpu-.*"),
    "h100-mega": ("nvidia-h100-mega-80gb", "a3-megagpu-.*"),
    "h200": ("nvidia-h200-141gb", "a3-ultragpu-.*"),
    "b200": ("nvidia-b200", "a4-highgpu-.*"),
    "rtx-pro-6000": ("nvidia-rtx-pro-6000", "g4-standard-(48|96|192|384)"),
    "t4": ("nvidia-tesla-t4", ""),
    "v100": ("nvidia-tesla-v100", ""),
    "p100": ("nvidia-tesla-p100", ""),
    "p4": ("nvidia-tesla-p4", ""),
}
CPUS_FOR_A_GPU, CPUS = 12, 8  # vCPUs of a machine, unless the user names a number
HYPERDISK = ("a3-ultragpu", "a4", "g4", "c4", "n4", "h4d", "m4", "x4")  # take no other disks
GVNIC = ("a3", "a4", "g4")  # have no other kind of network interface
SSD_GB = 375  # GiB of a local SSD
# Machine types, by how they begin, that come with so many of them.
# https://cloud.google.com/compute/docs/disks/local-ssd
SSDS = {"a2-ultragpu-1g": 1, "a2-ultragpu-2g": 2, "a2-ultragpu-4g": 4, "a2-ultragpu-8g": 8}
SSDS |= {"a3-highgpu-1g": 2, "a3-highgpu-2g": 4, "a3-highgpu-4g": 8, "a3-highgpu-8g": 16}
SSDS |= {"a3-megagpu": 16, "a3-ultragpu": 32, "a4-": 32}
NO_ROOM = {
    "ZONE_RESOURCE_POOL_EXHAUSTED",
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
    "insufficientCapacity",
    "UNSUPPORTED_OPERATION",
    "RESOURCE_NOT_READY",
}
COLUMNS = "name,id,zone,status,labels,creationTimestamp,machineType,networkInterfaces"
NO_QUOTA = ("QUOTA_EXCEEDED", "quotaExceeded")
UNKNOWN_ACCOUNT = "of type 'serviceAccount' was not found"  # or is new
QUOTA_PAGE = "https://console.cloud.google.com/iam-admin/quotas"
BOOT = Path(__file__).with_name("boot.py")
IMPORTING, LOADED = threading.Lock(), list[Any]()  # of `client`


@dataclass(frozen=True)
class Shape:
    """What kind of machine."""

    machine_type: str
    gpus: int = 0
    gpu_type: str = ""

    @property
    def is_attached(self) -> bool:
        return bool(self.gpus) and not GPUS[self.gpu_type][1]

    @property
    def gpus_in_words(self) -> str:
        return f"{self.gpus} x {self.gpu_type}" if self.gpus else ""

    def __str__(self) -> str:
        return self.machine_type + (f" with {self.gpus_in_words}" if self.gpus else "")


class Instance(Machine):
    """A machine of Compute Engine."""

    @property
    def path(self) -> str:
        """By its id: another machine may have its name by now."""
        return f"/zones/{self.zone}/instances/{self.id}"

    def tell(self, config: Config, key: str, value: str) -> None:
        """Set a value of its metadata, which it reads at once; "" removes it, and others stay."""
        self.change(config, key, lambda before: value)

    def let_in(self, config: Config, key: str) -> None:
        """Google's agent on it reads the keys at once, too."""
        line = f"root:{key}"
        self.change(
            config, "ssh-keys", lambda keys: keys if line in keys else f"{keys}\n{line}".strip()
        )

    def change(self, config: Config, key: str, value_of: Callable[[str], str]) -> None:
        """Change a value of its metadata, unless it is that already."""
        for _ in range(5):
            found = google.find(config, self.path, fields="metadata")
            if not found:
                return None
            before = found["metadata"]
            values = {row["key"]: row["value"] for row in before.get("items", [])}
            value = value_of(values.get(key, ""))
            if value == values.get(key, ""):
                return None
            items = [row for row in before.get("items", []) if row["key"] != key]
            items += [{"key": key, "value": value}] if value else []
            changed = {"fingerprint": before["fingerprint"], "items": items}
            try:
                return google.do(config, "POST", f"{self.path}/setMetadata", changed)
            except GoogleError as error:
                if error.status == 404 or error.reason == "resourceNotReady":  # it is being deleted
                    return None
                if error.status != 412:
                    raise
        raise BergError(f"{self.name} keeps being changed by others. Try again")

    def host_keys(self, config: Config) -> list[str]:
        """As it wrote them to its guest attributes, which no other machine can write."""
        answer = None
        with contextlib.suppress(GoogleError):
            answer = google.find(config, f"{self.path}/getGuestAttributes", queryPath="hostkeys/")
        items = (answer or {}).get("queryValue", {}).get("items", [])
        return [f"{row['key']} {row['value'].strip()}" for row in items]

    def delete(self, config: Config) -> None:
        google.delete(config, self.path)

    def stop(self, config: Config) -> None:
        self.switch(config, "stop", discardLocalSsd="true")  # of any that there are

    def start(self, config: Config) -> None:
        self.switch(config, "start")

    def switch(self, config: Config, how: str, **query: str) -> None:
        try:
            google.do(config, "POST", f"{self.path}/{how}", **query)
        except GoogleError as error:
            if error.status == 404 or error.reason == "RESOURCE_NOT_FOUND":
                raise BergError(f"{self.name} was deleted meanwhile. See: berg list") from None
            if error.reason not in NO_ROOM:
                raise
            raise BergError(
                f"{self.zone} has no capacity for {self.name} now, and its disk is there. "
                f"Try again later: berg start {self.job}. Elsewhere a machine starts from its image: "
                f"berg image create {self.job}"
            ) from None


# --- what there is


def choose(
    config: Config,
    gpus: int | None,
    gpu_type: str,
    cpus: int | None,
    machine_type: str,
    zones: list[str],
    regions: list[str],
) -> tuple[Shape, list[str]]:
    """The machine type that fits, by Google's own list, and the zones that have it: those that are
    named, then those of the regions (`any` is all), by default of the configured one.
    """
    if gpu_type not in GPUS:
        raise BergError(f"there is no GPU type {gpu_type!r}. Choose one: -t {', '.join(GPUS)}")
    accelerator, pattern = GPUS[gpu_type]
    gpus = 1 if gpus is None and not machine_type else gpus or 0
    if machine_type:
        pattern = re.escape(machine_type)
    elif not gpus or not pattern:
        pattern = f"n1-standard-{cpus or CPUS * max(gpus, 1)}"
    listed: dict[str, dict[str, Any]] = {}
    places: dict[str, list[str]] = {}
    query = {"filter": f'name eq "{pattern}"', "maxResults": "500"}
    fields = "items/*/machineTypes(name,zone,guestCpus,accelerators),nextPageToken"
    for row in google.items(config, "/aggregated/machineTypes", fields=fields, **query):
        listed[row["name"]] = row
        places.setdefault(row["name"], []).append(row["zone"])
    fitting = [row for row in listed.values() if fits(row, accelerator, gpus, cpus, machine_type)]
    if not fitting:
        numbers = sorted({built_in(row)[1] for row in listed.values()} - {0})
        offered = f"Google offers {', '.join(map(str, numbers))} in one machine" if numbers else ""
        words = [f"{gpus} x {gpu_type}"] * bool(gpus) + [f"{cpus} vCPUs"] * bool(cpus)
        what = f"the type {machine_type}" if machine_type else " with ".join(words)
        how = "Choose another: --machine-type" if machine_type else "Choose others: -g, -t, -c"
        raise BergError(f"no machine has {what}. {offered or how}")
    wanted = cpus or CPUS_FOR_A_GPU * gpus
    best = min(fitting, key=lambda row: (row["guestCpus"] < wanted, row["guestCpus"]))
    kind, count = built_in(best)
    if machine_type and count:
        gpu_type = next((name for name, row in GPUS.items() if row[0] == kind), "")
        gpus = count if gpu_type else 0  # TPUs are listed like GPUs
    shape = Shape(best["name"], gpus, gpu_type if gpus else "")
    everywhere = sorted(places[shape.machine_type])
    if shape.is_attached:
        everywhere = [zone for zone in everywhere if zone in zones_with(config, accelerator)]
    if not (zones or regions):
        regions = [config.region]
    within = [zone for region in regions for zone in everywhere
              if region in ("any", zone.rpartition("-")[0])]  # fmt: skip
    found = [*dict.fromkeys([zone for zone in zones if zone in everywhere] + within)]
    if not found:
        place, there = ", ".join(zones + regions), {zone.rpartition("-")[0] for zone in everywhere}
        raise BergError(
            f"there is no {shape} in {place}. Regions that have it: {', '.join(sorted(there)) or 'none'}. "
            "Choose one, or any: --region REGION"
        )
    return shape, found


def included_ssds(machine_type: str) -> int:
    return next((count for name, count in SSDS.items() if machine_type.startswith(name)), 0)


def built_in(row: dict[str, Any]) -> tuple[str, int]:
    """Accelerator and number of GPUs that come with a machine type."""
    first: dict[str, Any] = next(iter(row.get("accelerators", [])), {})
    return first.get("guestAcceleratorType", ""), int(first.get("guestAcceleratorCount", 0))


def fits(row: dict[str, Any], accelerator: str, gpus: int, cpus: int | None, named: str) -> bool:
    if named:
        return True
    if cpus and row["guestCpus"] != cpus:
        return False
    return built_in(row) in ((accelerator, gpus), ("", 0))


def zones_with(config: Config, accelerator: str) -> set[str]:
    query = {
        "filter": f"name={accelerator}",
        "fields": "items/*/acceleratorTypes(zone),nextPageToken",
    }
    return {
        last_part(row["zone"])
        for row in google.items(config, "/aggregated/acceleratorTypes", **query)
    }


def find_image(config: Config, name: str) -> str:
    """The path of an image, named [PROJECT/]IMAGE by its family or its own name; without a project in
    the configured one, or that of the default image.
    """
    project, _, image = name.rpartition("/")
    projects = [project] if project else [config.project, config.default_image.rpartition("/")[0]]
    base = f"{config.endpoint or 'https://compute.googleapis.com'}/compute/v1/projects"
    for owner in filter(None, projects):
        for path in (f"{owner}/global/images/family/{image}", f"{owner}/global/images/{image}"):
            if found := google.find(config, f"{base}/{path}", fields="name"):
                return f"projects/{owner}/global/images/{found['name']}"
    raise BergError(
        f"there is no image or image family {name!r}. "
        f"List them: gcloud compute images list --project {project or config.project}"
    )


# --- the request


def body(config: Config, job: Job, shape: Shape, disk_gb: int) -> dict[str, Any]:
    """The request for a machine, with bare names of types; `in_zone` completes it."""
    labels = {"berg": "1", "berg-bucket": bucket_label(config), "berg-job": job.name}
    labels |= {"berg-user": job.user, "berg-kind": DEVBOX if job.is_devbox else "job"}
    disk = {
        "sourceImage": job.image,
        "diskSizeGb": str(disk_gb),
        "diskType": disk_type(shape),
        "labels": labels,
    }
    interface: dict[str, Any] = {"network": f"global/networks/{config.network}"}
    interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    if shape.machine_type.startswith(GVNIC):
        interface["nicType"] = "GVNIC"
    scheduling: dict[str, Any] = {
        # Then Google ends it, whatever happens.
        "maxRunDuration": {"seconds": str(job.max_seconds)},
        "instanceTerminationAction": "STOP" if job.is_devbox else "DELETE",
        "automaticRestart": False,
    }
    if shape.gpus:
        scheduling["onHostMaintenance"] = "TERMINATE"
    made: dict[str, Any] = {
        "machineType": shape.machine_type,
        "labels": labels,
        "scheduling": scheduling,
        "networkInterfaces": [interface],
        "serviceAccounts": [{"email": config.service_account or "default", "scopes": SCOPES}],
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
    }
    if shape.is_attached:
        kind = {"acceleratorType": GPUS[shape.gpu_type][0], "acceleratorCount": shape.gpus}
        made["guestAccelerators"] = [kind]
    return made


def disk_type(shape: Shape) -> str:
    is_new = shape.machine_type.startswith(HYPERDISK)
    return "hyperdisk-balanced" if is_new else "pd-balanced"


def metadata(config: Config, job: Job, key: str) -> dict[str, str]:
    """What a machine is told, besides where it finds Berg; `key` lets the user log in."""
    values = {
        "startup-script": BOOT.read_text("utf-8"),
        "berg-bucket": config.bucket,
        "berg-job": job.name,
        "berg-job-sha256": job.sha256,  # it runs no other
        "berg-endpoint": config.endpoint,
        "berg-devbox": "1" if job.is_devbox else "",  # it goes off, and keeps its disk
        "berg-rows": str(len(job.rows) or ""),  # a machine that cannot work leaves the others alone
        "enable-guest-attributes": "TRUE",  # where it writes its ssh host keys
        "ssh-keys": f"root:{key}" if key else "",
    }
    return {name: value for name, value in values.items() if value}


def in_zone(request: dict[str, Any], zone: str) -> dict[str, Any]:
    """A request as one machine needs it: types of disks, machines and GPUs by their paths."""
    made = {**request, "machineType": f"zones/{zone}/machineTypes/{request['machineType']}"}
    made["disks"] = []
    for disk in request["disks"]:
        kind = f"zones/{zone}/diskTypes/{disk['initializeParams']['diskType']}"
        params = {**disk["initializeParams"], "diskType": kind}
        made["disks"].append({**disk, "initializeParams": params})
    if rows := request.get("guestAccelerators"):
        kind = f"zones/{zone}/acceleratorTypes/{rows[0]['acceleratorType']}"
        made["guestAccelerators"] = [{**rows[0], "acceleratorType": kind}]
    return made


def bucket_label(config: Config) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", config.bucket)[:63]


# --- creation


def create(
    config: Config, job: Job, request: dict[str, Any], zones: list[str], say: Any, make: Any = None
) -> str:
    """Create the machines of a job by `make`, all or none, in the first zone with room; return the zone.

    Raises BergError with the reason of every zone; then there is no machine.
    """
    tried, full = [], set()
    advice = "Try other zones (-z), other or fewer GPUs (-t, -g), or --spot"
    for zone in zones:
        region = zone.rpartition("-")[0]
        if region in full:
            continue
        say(f"Creating {job.name} in {zone}")
        names = job.machine_names
        try:
            once_known(functools.partial(make or insert, config, request, names, zone), say)
            return zone
        except GoogleError as error:
            made = machines(config, job.name, zone, [job.sha256])
            if len(made) == job.machines:  # it failed afterwards, or its answer was lost
                return zone
            for machine in made:
                google.delete(config, machine.path)
            tried.append(f"{zone}: {reason(error)}")
            if error.reason in NO_QUOTA:
                full.add(region)
            elif error.reason not in NO_ROOM:  # other zones would refuse it as well
                advice = "See what is lacking: berg doctor"
                break
    text = "\n  ".join(tried)
    raise BergError(f"no machine could be created, and none was left behind.\n  {text}\n{advice}")


def once_known(ask: Callable[[], T], say: Any) -> T:
    """Ask for machines, again while Compute Engine does not know their account, which may be new."""
    seconds, has_said = google.NEW_ACCOUNT, False
    end = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except GoogleError as error:
            if UNKNOWN_ACCOUNT not in error.message or time.monotonic() > end:
                raise
        if not has_said:
            say(f"Compute Engine does not know the machines' account; trying again for {seconds} s")
        has_said = True
        time.sleep(2)


def client() -> tuple[Any, Any]:
    """google-cloud-compute's client of instances, and its types. The command line loads only what it sends;
    a program that uses Berg gets the whole package, which it may use, too. One thread imports, others wait.
    """
    with IMPORTING:
        if not LOADED:
            load = narrow.load if "berg.cli" in sys.modules else narrow.load_whole
            LOADED.extend(load())
        return LOADED[0], LOADED[1]


def insert(config: Config, request: dict[str, Any], names: list[str], zone: str) -> None:
    """Send the one request that creates machines, and wait; raise OperationFailed if it fails."""
    from google.api_core import exceptions

    instances, types = client()
    options = {"api_endpoint": config.endpoint} if config.endpoint else None
    service = instances.InstancesClient(credentials=config.credentials, client_options=options)
    arguments: dict[str, Any] = {
        "project": config.project,
        "zone": zone,
        "request_id": str(uuid.uuid4()),  # Google carries out a repeated request once
    }
    if len(names) == 1:
        text = json.dumps({"name": names[0], **in_zone(request, zone)})
        arguments["instance_resource"] = types.Instance.from_json(text)
        method: Any = service.insert_unary
    else:
        many = {
            "count": str(len(names)),
            "minCount": str(len(names)),
            "perInstanceProperties": {name: {} for name in names},
            "instanceProperties": request,
        }
        arguments["bulk_insert_instance_resource_resource"] = (
            types.BulkInsertInstanceResource.from_json(json.dumps(many))
        )
        method = service.bulk_insert_unary

    def ask() -> Any:
        try:
            return method(request=arguments, retry=None, timeout=60)
        except exceptions.GoogleAPICallError as error:
            details = error.errors[0] if error.errors else {}
            cause = details.get("reason", "") if isinstance(details, dict) else ""
            raise GoogleError(int(error.code or 0), cause, google.own_words(error)) from None

    operation = google.retry(ask)
    google.wait(config, {"name": operation.name, "zone": zone})


def reason(error: GoogleError) -> str:
    """Why a machine could not be created, and what helps."""
    if error.reason in NO_QUOTA:
        return f"{error.message} Raise the quota: {QUOTA_PAGE}"
    if error.reason in NO_ROOM:
        return "out of stock"
    if UNKNOWN_ACCOUNT in error.message:
        return f"{error.message} Make it: berg init"
    if error.status == 409:
        return f"{error.message}. Choose another name: -n NAME"
    return error.message


# --- what is there


def machines(
    config: Config, job: str = "", zone: str = "", made_for: Collection[str] = ()
) -> list[Instance]:
    """The machines of a job, or of all jobs of the bucket, by name; with `made_for` only those of the
    jobs whose records have these hashes, not of others of the same names.
    """
    if "/" in zone:  # it is in another place
        return []
    named = f' AND (labels.berg-job="{job}")' if job else ""
    query = {
        "filter": f'(labels.berg="1") AND (labels.berg-bucket="{bucket_label(config)}"){named}',
        "maxResults": "500",
    }
    columns = COLUMNS + ",metadata" * bool(made_for)
    path, place = (
        ("/aggregated/instances", "/*/instances") if not zone else (f"/zones/{zone}/instances", "")
    )
    query["fields"] = f"items{place}({columns}),nextPageToken"
    listed = google.items(config, path, **query)
    found = [machine_of(row) for row in listed if not made_for or sha_of(row) in made_for]
    return sorted(found, key=lambda machine: (machine.job, order(machine.name)))


def sha_of(row: dict[str, Any]) -> str:
    """The hash of the record of the job that a machine was made for."""
    items = row.get("metadata", {}).get("items", [])
    return next((item["value"] for item in items if item["key"] == "berg-job-sha256"), "")


def machine(config: Config, zone: str, id: str) -> Machine | None:
    """A machine of this bucket by its id, whatever its job; None if there is none, or in another place."""
    if not (re.fullmatch(r"[a-z0-9-]+", zone) and id.isdigit()):  # a record may say anything
        return None
    row = google.find(config, f"/zones/{zone}/instances/{id}", fields=COLUMNS)
    is_ours = row and row.get("labels", {}).get("berg-bucket") == bucket_label(config)
    return machine_of(row) if row and is_ours else None


def name_is_taken(config: Config, name: str) -> str:
    """Where there is a machine of a name, of whomever; "" if there is none."""
    query = {"filter": f'name="{name}"', "fields": "items/*/instances(name,zone),nextPageToken"}
    rows = google.items(config, "/aggregated/instances", **query)
    return next((last_part(row["zone"]) for row in rows), "")


def is_coming(config: Config, job: str) -> bool:
    """Whether there is a group of this name that has yet to make machines, or makes them again."""
    columns = "items/*/instanceGroupManagers(name,targetSize,targetSizePolicy,status),nextPageToken"
    query = {"filter": f'name="{job}"', "fields": columns}
    groups = google.items(config, "/aggregated/instanceGroupManagers", **query)
    return any(map(wants_machines, groups))


def wants_machines(group: dict[str, Any]) -> bool:
    """In BULK mode, in which a group makes all of its machines at once, until it has made them."""
    if group.get("targetSizePolicy", {}).get("mode") == "BULK":
        return bool(group["status"].get("bulkInstanceOperation", {}).get("inProgress"))
    return bool(group.get("targetSize"))


def order(name: str) -> tuple[str, int]:
    """Names of machines by their number: a-2 before a-10."""
    base, _, number = name.rpartition("-")
    return (base, int(number)) if number.isdigit() else (name, 0)


def machine_of(row: dict[str, Any]) -> Instance:
    interface: dict[str, Any] = next(iter(row.get("networkInterfaces", [])), {})
    access: dict[str, str] = next(iter(interface.get("accessConfigs", [])), {})
    labels = row.get("labels", {})
    return Instance(
        name=row["name"],
        zone=last_part(row["zone"]),
        status=row["status"],
        job=labels.get("berg-job", ""),
        id=row["id"],
        created_at=row["creationTimestamp"],
        address=access.get("natIP", ""),
        inner_address=interface.get("networkIP", ""),
        machine_type=last_part(row["machineType"]),
        user=labels.get("berg-user", ""),
        labels=labels,
    )

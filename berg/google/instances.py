"""Compute Engine's machines: listed, read, told, created, deleted.

Inserts go through google-cloud-compute, which takes long to import and is imported where it is
used. Everything else is a single HTTP request.

Images of machines' disks that berg made in the project: listed, made, deleted.

Moves a machine that is off to another zone: a snapshot of its disk, and a machine like it there.

A laptop that dies meanwhile leaves the snapshot, and maybe both machines: who tries again goes on
from there.

Not covered: disks beside the first one, addresses that were reserved, and images that another
project lends to its first zone alone.
"""

import importlib.util
import json
import re
import sys
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

from berg import BergError, computer
from berg.config import Config
from berg.google import api, offers, prices, shapes
from berg.google.api import OperationFailed, call, last_part, pages, wait
from berg.google.shapes import Shape
from berg.job import Login, Machine

HOST_KEY = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/]+=*")

LOGIN = re.compile(r"(\d{1,5}) (\d{1,5})", re.A)  # a machine's rank, and the port of its ssh server

OF_JOBS = ("berg-job", "berg-sweep")  # labels

MOST = 58  # characters of the name that a group's members' names begin with

CREATED_BY: dict[str, str] = {}  # instance id -> the group that created it, which never changes

RESERVED = "SPECIFIC_RESERVATION"  # what a machine consumes that names its reservation


def ours(config: Config) -> str:
    """The filter for what berg made for the jobs of this bucket."""
    return f'(labels.berg="1") AND (labels.berg-bucket="{bucket_label(config)}")'


def bucket_label(config: Config) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", config.bucket)[:63]


def find(
    config: Config,
    jobs: Collection[str] = (),
    sweeps: Collection[str] = (),
    names: Collection[str] = (),
    zone: str = "",
) -> list[Machine]:
    """Machines of this bucket's jobs, by name: all, or those of these jobs and sweeps, and of these
    names. Of two of one name, in two zones, the newer one comes first.

    Who asks again and again names the zone: of lists of all zones a project has 750 a minute for
    everybody together. A label that names a job is left out where the machine's name is none that
    berg gives to that job's machines.
    """
    wanted = [f'(labels.berg-job="{name}")' for name in jobs]
    wanted += [f'(labels.berg-sweep="{name}")' for name in sweeps]
    wanted += [f'(name="{name}")' for name in names]
    fields = "name,id,zone,status,labels,creationTimestamp,guestAccelerators,networkInterfaces"
    fields += ",machineType,scheduling/provisioningModel,disks/diskSizeGb"
    fields += ",reservationAffinity/consumeReservationType,serviceAccounts/email"
    listed = pages(
        config,
        f"/zones/{zone}/instances" if zone else "/aggregated/instances",
        filter=ours(config) + (f" AND ({' OR '.join(wanted)})" if wanted else ""),
        returnPartialSuccess="true",
        maxResults="500",
        fields=f"items({fields}),nextPageToken"
        if zone
        else f"items/*/instances({fields}),nextPageToken",
    )
    found = []
    for page in listed:
        scopes = [{"instances": page.get("items", [])}] if zone else page.get("items", {}).values()
        found += [
            named(machine_of(instance))
            for scope in scopes
            for instance in scope.get("instances", [])
        ]
    found.sort(key=lambda machine: machine.created_at, reverse=True)
    return sorted(found, key=lambda machine: machine.name)


def named(machine: Machine) -> Machine:
    """Return a machine without its job where its name is none of that job's machines."""
    job, sweep = machine.labels.get("berg-job", ""), machine.labels.get("berg-sweep", "")
    names = [rf"{re.escape(job)}(-\d+)?", rf"{re.escape(base_name(job))}-[a-z0-9]{{4}}"]
    if sweep:
        names = [rf"{re.escape(sweep)}-machine-\d+"]
    is_its = not (job or sweep) or any(re.fullmatch(each, machine.name) for each in names)
    return machine if is_its else without_job(machine)


def without_job(machine: Machine) -> Machine:
    """Return a machine as one that belongs to no job: who creates one gives it any label."""
    labels = {key: value for key, value in machine.labels.items() if key not in OF_JOBS}
    return replace(machine, labels=labels)


def base_name(job: str) -> str:
    """Return what the names of machines begin with that a job's group makes."""
    return job[:MOST].rstrip("-")


def vouched(config: Config, machine: Machine) -> Machine:
    """Return a machine without its job where it has the name of a group's member, and Compute
    Engine does not say that the job's group created it.
    """
    job = machine.labels.get("berg-job", "")
    if machine.place == "gke" or not job or re.fullmatch(rf"{re.escape(job)}(-\d+)?", machine.name):
        return machine
    if machine.id not in CREATED_BY:
        CREATED_BY[machine.id] = (metadata(config, machine) or {}).get("created-by", "")
    is_its = CREATED_BY[machine.id].endswith(f"/instanceGroupManagers/{job}")
    return machine if is_its else without_job(machine)


def machine_of(instance: dict[str, Any]) -> Machine:
    """A machine from what the API says of an instance."""
    interface = (instance.get("networkInterfaces") or [{}])[0]
    access = interface.get("accessConfigs") or [{}]
    gpus = instance.get("guestAccelerators") or []
    return Machine(
        name=instance["name"],
        zone=last_part(instance["zone"]),
        status=instance["status"],
        id=instance["id"],
        labels=instance.get("labels", {}),
        created_at=instance["creationTimestamp"],
        external_ip=access[0].get("natIP", ""),
        internal_ip=interface.get("networkIP", ""),
        place="tpu" if instance.get("labels", {}).get("berg-place") == "tpu" else "gce",
        machine_type=last_part(instance["machineType"]),
        model=model_of(instance),
        account=(instance.get("serviceAccounts") or [{}])[0].get("email", ""),
        disk_gb=sum(int(disk.get("diskSizeGb", 0)) for disk in instance.get("disks", [])),
        gpus=", ".join(
            f"{gpu['acceleratorCount']} x {gpu['acceleratorType'].rpartition('-')[2]}"
            for gpu in gpus
        ),
    )


def model_of(instance: dict[str, Any]) -> str:
    """Return how a machine is paid for, in the API's words: with a reservation if it names one."""
    if instance.get("reservationAffinity", {}).get("consumeReservationType") == RESERVED:
        return RESERVED
    model: str = instance.get("scheduling", {}).get("provisioningModel", "STANDARD")
    return model


def path_of(machine: Machine) -> str:
    return f"/zones/{machine.zone}/instances/{machine.name}"


def serial_output(config: Config, machine: Machine) -> str:
    """The last megabyte that a machine wrote to its serial console; "" if it is gone."""
    return str(api.find(config, f"{path_of(machine)}/serialPort").get("contents", ""))


def metadata(config: Config, machine: Machine) -> dict[str, str] | None:
    """What a machine is told, None if it is gone, or if another one has its name now."""
    instance = api.find(config, path_of(machine), fields="id,metadata/items")
    if instance.get("id") != machine.id:
        return None
    return {item["key"]: item["value"] for item in instance.get("metadata", {}).get("items", [])}


def login(config: Config, machine: Machine) -> Login | None:
    """Return what a machine wrote to its guest attributes, which no other machine can write.

    None if it wrote nothing yet, or guest attributes are forbidden.
    """
    try:
        found = call(config, "GET", f"{path_of(machine)}/getGuestAttributes")
    except (api.NotFound, api.Forbidden, api.BadRequest):
        return None
    items = found.get("queryValue", {}).get("items", [])
    values = {(each["namespace"], each["key"]): each["value"] for each in items}
    ready = LOGIN.fullmatch(values.get(("berg", "ssh"), ""))
    if not ready or int(ready[2]) > 65535:
        return None
    keys = [
        f"{key} {value.strip()}" for (space, key), value in values.items() if space == "hostkeys"
    ]
    return Login(int(ready[1]), int(ready[2]), [each for each in keys if HOST_KEY.fullmatch(each)])


def why_gone(config: Config, job: str, zone: str) -> str:
    """Why a machine that was asked for in a zone never came, in Google's words; "" if that is not
    known.
    """
    if not zone:
        return ""
    fields = "items(targetLink,error/errors/message),nextPageToken"
    path, asked = f"/zones/{zone}/operations", "operationType=insert"
    for page in pages(config, path, filter=asked, orderBy="creationTimestamp desc", fields=fields):
        for operation in page.get("items", []):
            errors = operation.get("error", {}).get("errors", [])
            if errors and operation["targetLink"].endswith(f"/instances/{job}"):
                return str(errors[-1].get("message", ""))
    return ""


def tunnel(config: Config, machine: Machine) -> list[str]:
    """The command that connects to a machine's ssh server through IAP."""
    command = [
        computer.program("gcloud"),
        "compute",
        "start-iap-tunnel",
        machine.name,
        "%p",
        "--listen-on-stdin",
    ]
    # At "warning" it recommends NumPy each time.
    options = [
        "--project",
        config.project,
        "--zone",
        machine.zone,
        "--verbosity=error",
        *config.tunnel_options,
    ]
    return command + options


def no_shell(machine: Machine) -> list[str]:
    """Nothing: there is no way in but ssh."""
    return []


def set_metadata(
    config: Config, machine: Machine, key: str, value: str | Callable[[str], str]
) -> None:
    """Set one metadata value of a running machine, which it hears of at once; a function makes it
    of the old one.
    """
    path = path_of(machine)
    for attempt in range(5):
        metadata = call(config, "GET", path, fields="metadata")["metadata"]
        values = {item["key"]: item["value"] for item in metadata.get("items", [])}
        values[key] = value if isinstance(value, str) else value(values.get(key, ""))
        body = {
            "fingerprint": metadata["fingerprint"],
            "items": [{"key": k, "value": v} for k, v in values.items()],
        }
        try:
            return wait(
                config,
                call(config, "POST", f"{path}/setMetadata", body, requestId=str(uuid.uuid4())),
            )
        except api.PreconditionFailed:  # somebody else changed it since it was read
            if attempt == 4:
                raise
    return None


def stop(config: Config, machine: Machine) -> None:
    """Turn a machine off, as Google does it: it hears of it, and has seconds. Its disk stays."""
    wait(config, call(config, "POST", f"{path_of(machine)}/stop", requestId=str(uuid.uuid4())))


def start(config: Config, machine: Machine) -> None:
    """Turn a machine on that is off. Raise OperationFailed where there is no room for it."""
    wait(config, call(config, "POST", f"{path_of(machine)}/start", requestId=str(uuid.uuid4())))


def unused_disks(config: Config) -> list[dict[str, Any]]:
    """Disks of this bucket's jobs that no machine has."""
    fields = "items/*/disks(name,zone,users,labels,creationTimestamp,sizeGb,type),nextPageToken"
    listed = pages(config, "/aggregated/disks", filter=ours(config), fields=fields)
    scopes = (scope for page in listed for scope in page.get("items", {}).values())
    return [disk for scope in scopes for disk in scope.get("disks", []) if not disk.get("users")]


def import_compute() -> None:
    """Import what `insert` needs of google-cloud-compute without the other hundred services, which
    take a second more.

    The package's own __init__ imports all of them; in its place stands an empty one with the same
    path.
    """
    name = "google.cloud.compute_v1"
    if name not in sys.modules and (spec := importlib.util.find_spec(name)):
        sys.modules[name] = importlib.util.module_from_spec(spec)  # with its path, but not executed
    importlib.import_module(f"{name}.services.instances")


def insert(config: Config, zone: str, body: dict[str, Any], names: list[str]) -> None:
    """Create machines of those names, all or none, and wait until they exist.

    Raises OperationFailed with what Google says. A machine that lives although its creation failed
    is deleted.
    """
    import_compute()
    from google.cloud.compute_v1.services.instances import InstancesClient
    from google.cloud.compute_v1.types import BulkInsertInstanceResource, Instance

    options = {"api_endpoint": config.endpoint} if config.endpoint else None
    client = InstancesClient(credentials=config.credentials, client_options=options)
    url = config.compute_url()
    # its connections are open, and each new one waits for two handshakes
    transport: Any = client.transport
    transport._session.mount(url, config.session.get_adapter(url))
    request: dict[str, Any] = {
        "project": config.project,
        "zone": zone,
        "request_id": str(uuid.uuid4()),
    }
    text = json.dumps(request_body(body, names))
    try:
        if len(names) == 1:
            call_once: Any = client.insert_unary
            request["instance_resource"] = Instance.from_json(text)
        else:
            call_once = client.bulk_insert_unary
            request["bulk_insert_instance_resource_resource"] = (
                BulkInsertInstanceResource.from_json(text)
            )

        def create() -> Any:
            with api.translated():
                return call_once(request=request, retry=None, timeout=60)

        operation = api.retrying()(create)()
    except api.Conflict as error:
        what = "a machine"
        if "/disks/" in error.message:
            what = "a disk without a machine (berg reap) named"
        raise OperationFailed("alreadyExists", f"{what} {names[0]!r} exists in {zone}") from None
    except api.GoogleError as error:
        raise OperationFailed(error.reason, error.message) from None
    try:
        begun = {"name": operation.name, "zone": zone, "status": ""}
        if body.get("params"):
            wait_or_queue(config, begun, f"/zones/{zone}/instances/{names[0]}")
        else:
            wait(config, begun)
    except OperationFailed:
        for name in names:
            api.delete(config, f"/zones/{zone}/instances/{name}", wait_for_it=True)
        if not body["disks"][0]["autoDelete"]:
            delete_new_disks(config, zone, names, operation.insert_time)
        raise


def delete_new_disks(config: Config, zone: str, names: list[str], since: str) -> None:
    """Delete the disks that an insert made which then failed, and none that is older."""
    for name in names:
        path = f"/zones/{zone}/disks/{name}"
        found = api.find(config, path, fields="creationTimestamp,users")
        if not found or found.get("users"):
            continue
        if api.time_of(found["creationTimestamp"]) > api.time_of(since) - timedelta(seconds=10):
            api.delete(config, path, wait_for_it=True)


def let_disk_go(config: Config, machine: Machine) -> None:
    """Let the disk of a devbox be deleted with its machine, as a person chose: else it stays."""
    if machine.labels.get("berg-kind") != "devbox" or machine.place != "gce":
        return
    path = path_of(machine)
    try:
        disks = call(config, "GET", path, fields="disks(boot,deviceName,autoDelete)")["disks"]
        for disk in disks:
            if disk.get("boot") and not disk.get("autoDelete"):
                asked = {"deviceName": disk["deviceName"], "autoDelete": "true"}
                asked["requestId"] = str(uuid.uuid4())
                wait(config, call(config, "POST", f"{path}/setDiskAutoDelete", **asked))
    except api.NotFound:
        return


def queued(seconds: int) -> dict[str, Any]:
    """Return what a machine's body says beside its scheduling so that Google waits for room."""
    return {
        "params": {"requestValidForDuration": {"seconds": str(seconds)}},
        "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
    }


def wait_or_queue(config: Config, operation: dict[str, Any], path: str) -> None:
    """Wait until a machine is there, or is in Google's queue: that may take hours.

    Raise OperationFailed if it is neither.
    """
    known = f"/zones/{operation['zone']}/operations/{operation['name']}"
    while operation["status"] != "DONE":
        operation = call(config, "GET", known)
        if api.find(config, path, fields="status").get("status") == "PENDING":
            return
        time.sleep(0.3)
    wait(config, operation)


def request_body(body: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The body of the one request that creates machines like `body` under those names."""
    if len(names) == 1:
        return {"name": names[0], **body}
    return {
        "count": str(len(names)),
        "minCount": str(len(names)),
        "perInstanceProperties": {name: {} for name in names},
        "instanceProperties": without_zones(body),
    }


def without_zones(value: Any) -> Any:
    """A request's body for a bulk insert, which wants bare names of types where an insert wants
    paths.
    """
    if isinstance(value, dict):
        return {key: without_zones(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_zones(inner) for inner in value]
    return last_part(value) if isinstance(value, str) and value.startswith("zones/") else value


FIELDS = "name,family,status,diskSizeGb,archiveSizeBytes,creationTimestamp,description,labels"


def find_images(config: Config) -> list[dict[str, Any]]:
    """Return the images that berg made, whoever asked for them, the newest first."""
    fields = f"items({FIELDS}),nextPageToken"
    listed = api.pages(config, "/global/images", filter='(labels.berg="1")', fields=fields)
    found = [image for page in listed for image in page.get("items", [])]
    return sorted(found, key=lambda image: str(image["creationTimestamp"]), reverse=True)


def make(config: Config, name: str, zone: str, body: dict[str, Any]) -> None:
    """Make an image of the disk that has its name, and wait until it can be used.

    If that fails or is interrupted, there is no image. Raise api.OperationFailed with Google's
    words.
    """
    disk = f"projects/{config.project}/zones/{zone}/disks/{name}"
    try:
        api.write(config, "/global/images", {"name": name, "sourceDisk": disk, **body})
    except BaseException:
        withdraw(config, name)
        raise


def withdraw(config: Config, name: str) -> None:
    """Delete an image that may be half made: Google refuses that until it is made."""
    path = f"/global/images/{name}"
    api.wait_for(lambda: api.find(config, path, fields="status").get("status") != "PENDING", 0.5)
    api.delete(config, path, wait_for_it=True)


def delete(config: Config, names: list[str]) -> None:
    """Delete images; raise BergError for one that berg did not make, before any is deleted."""
    check_made(config, names)
    for name in names:
        withdraw(config, name)


def check_made(config: Config, names: list[str]) -> None:
    """Raise BergError if berg made no image of one of these names."""
    there = {image["name"] for image in find_images(config)}
    for name in names:
        if name not in there:
            raise BergError(f"berg made no image {name!r}. See those it made: berg image list")


SAME = ("labels", "scheduling", "serviceAccounts", "reservationAffinity")

COPIED_AT = "berg-copied-at"  # in the metadata of what was made of a snapshot: when it was taken

KIND = "move"  # the label berg-kind of its snapshots

UNDER_WAY = ("CREATING", "UPLOADING")

PAUSE = 1  # seconds between two looks at a snapshot

LONGEST = 7200  # seconds that a snapshot may take

INTERFACE = ("network", "subnetwork", "nicType")  # what an interface there has of the one here


def read(config: Config, machine: Machine) -> dict[str, Any]:
    """Return an instance as Google describes it."""
    found: dict[str, Any] = api.call(config, "GET", path_of(machine))
    return found


def shape_of(instance: dict[str, Any]) -> Shape:
    """Return what kind of machine an instance is, with the GPUs that are attached to it."""
    kind = last_part(instance["machineType"])
    gpus = instance.get("guestAccelerators", [])
    if not gpus or shapes.find_built_in(kind):
        return Shape(kind, 0, "")
    attached = last_part(gpus[0]["acceleratorType"])
    return Shape(kind, gpus[0]["acceleratorCount"], "", accelerator=attached)


def zones(config: Config, instance: dict[str, Any]) -> list[str]:
    """Return the other zones of its region that have such machines."""
    here = last_part(instance["zone"])
    offered = offers.zones_with(config, shape_of(instance), regions=[prices.region_of(here)])
    return [zone for zone in offered if zone != here]


def take_snapshot(config: Config, instance: dict[str, Any], name: str) -> None:
    """Copy a machine's disk to a snapshot, which may take minutes."""
    disk = last_part(instance["disks"][0]["source"])
    path = f"/zones/{last_part(instance['zone'])}/disks/{disk}/createSnapshot"
    labels = {**instance.get("labels", {}), "berg-kind": KIND}
    api.write(config, path, {"name": name, "labels": labels})


def snapshots(config: Config, box: str = "") -> list[dict[str, Any]]:
    """Return the snapshots that moves of a box (of all boxes) made and have not deleted."""
    which = f'{ours(config)} AND (labels.berg-kind="{KIND}")'
    if box:
        which += f' AND (labels.berg-job="{box}")'
    fields = "items(name,status,labels,creationTimestamp,sourceDisk),nextPageToken"
    listed = api.pages(config, "/global/snapshots", filter=which, fields=fields)
    return [each for page in listed for each in page.get("items", [])]


def is_current(snapshot: dict[str, Any], instance: dict[str, Any]) -> bool:
    """Return whether a snapshot has what is on the disk of an instance that is off."""
    on = instance.get("lastStartTimestamp") or instance["creationTimestamp"]
    disk = instance["disks"][0]["source"].partition("/projects/")[2]
    return (
        snapshot["sourceDisk"].partition("/projects/")[2] == disk
        and api.time_of(snapshot["creationTimestamp"]) > api.time_of(on)
        and snapshot["status"] in ("READY", *UNDER_WAY)
    )


def wait_until_ready(config: Config, name: str) -> None:
    """Wait for a snapshot that somebody else began; raise BergError after two hours."""
    path = f"/global/snapshots/{name}"

    def is_ready() -> bool:
        return api.call(config, "GET", path, fields="status")["status"] not in UNDER_WAY

    if not api.wait_for(is_ready, PAUSE, LONGEST):
        raise BergError(f"Google still makes the snapshot {name}. Try again later")


def copied_at(config: Config, name: str) -> str:
    """Return when a snapshot was taken; raise BergError unless it is whole."""
    found = api.call(config, "GET", f"/global/snapshots/{name}", fields="status,creationTimestamp")
    if found["status"] != "READY":
        raise BergError(
            f"the snapshot {name} is {found['status']}. Try again: berg reap, then start"
        )
    return str(found["creationTimestamp"])


def delete_snapshots(config: Config, box: str) -> list[str]:
    """Delete the snapshots of a box's moves; return those that Google still makes, which stay."""
    there = snapshots(config, box)
    going = [each["name"] for each in there if each["status"] in UNDER_WAY]
    for each in there:
        if each["name"] not in going:
            api.delete(config, f"/global/snapshots/{each['name']}", wait_for_it=True)
    return going


def body(instance: dict[str, Any], zone: str, snapshot: str, copied: str = "") -> dict[str, Any]:
    """Return what a machine like this one is to be in a zone, with the disk of a snapshot."""
    shape = shape_of(instance)
    disk = {
        "sourceSnapshot": f"global/snapshots/{snapshot}",
        "diskSizeGb": instance["disks"][0]["diskSizeGb"],
        "diskType": f"zones/{zone}/diskTypes/{shape.disk_type}",
        "labels": instance.get("labels", {}),
    }
    made = {key: instance[key] for key in SAME if instance.get(key)}
    made["machineType"] = f"zones/{zone}/machineTypes/{shape.machine_type}"
    made["tags"] = {"items": instance.get("tags", {}).get("items", [])}
    items = [each for each in instance["metadata"].get("items", []) if each["key"] != COPIED_AT]
    made["metadata"] = {"items": [*items, *[{"key": COPIED_AT, "value": copied}] * bool(copied)]}
    made["networkInterfaces"] = [interface(each) for each in instance["networkInterfaces"]]
    is_kept = not instance["disks"][0].get("autoDelete", True)
    made["disks"] = [{"boot": True, "autoDelete": not is_kept, "initializeParams": disk}]
    if shape.accelerator:
        kind = f"zones/{zone}/acceleratorTypes/{shape.accelerator}"
        attached = {"acceleratorType": kind, "acceleratorCount": shape.num_gpus}
        made["guestAccelerators"] = [attached]
    return made


def interface(here: dict[str, Any]) -> dict[str, Any]:
    """Return a network interface like this one, with an external address if this one has any."""
    there = {key: here[key] for key in INTERFACE if here.get(key)}
    if here.get("accessConfigs"):
        there["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return there

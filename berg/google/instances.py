"""Compute Engine's machines: created, listed, changed, turned off and on; images of their disks;
and moves to another zone, by a snapshot of the disk.

Machines are created through google-cloud-compute, and nothing else is: every other request to
Compute Engine is a plain one (api.py).

A laptop that dies during a move leaves the snapshot, and maybe both machines; the next try
continues from there. Not covered: disks besides the boot disk, reserved addresses, and images that
another project lends to the first zone alone.
"""

import importlib.util
import json
import re
import sys
import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

from berg import BergError, computer
from berg.config import Config
from berg.google import api, offers, shapes
from berg.google.api import OperationFailed, call, last_part, wait
from berg.google.prices import region_of
from berg.google.shapes import Shape
from berg.job import Login, Machine, time_of

HOST_KEY = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/]+=*")
CREATED_BY: dict[str, str] = {}  # instance id -> the group that created it, which never changes
WARM = "berg-warm"  # label: the machine's name; metadata: the job that took it when it was warm
JOB_SHA256 = "berg-job-sha256"  # metadata: the hash of the machine's job, or of its sweep
RESERVED = "SPECIFIC_RESERVATION"  # what a machine consumes that names its reservation


def ours(config: Config) -> str:
    """Return the filter for what berg made for the jobs of this bucket."""
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
    """Return this bucket's machines by name: all, or those of these jobs, sweeps and names.

    Of two with one name, in two zones, the newer one comes first. Callers that ask often name the
    zone: a project has 750 lists of all zones a minute for all its users.
    """
    wanted = [f'(labels.berg-job="{name}")' for name in jobs]
    wanted += [f'(labels.berg-sweep="{name}")' for name in sweeps]
    wanted += [f'(name="{name}")' for name in names]
    fields = "name,id,zone,status,labels,creationTimestamp,guestAccelerators,networkInterfaces"
    fields += ",machineType,scheduling/provisioningModel,disks(diskSizeGb,type)"
    fields += ",reservationAffinity/consumeReservationType,serviceAccounts/email"
    listed = api.items(
        config,
        f"/zones/{zone}/instances" if zone else "/aggregated/instances",
        filter=ours(config) + (f" AND ({' OR '.join(wanted)})" if wanted else ""),
        returnPartialSuccess="true",
        maxResults="500",
        fields=f"items{'' if zone else '/*/instances'}({fields}),nextPageToken",
    )
    found = [named(machine_of(instance)) for instance in listed]
    found.sort(key=lambda machine: machine.created_at, reverse=True)
    return sorted(found, key=lambda machine: machine.name)


def named(machine: Machine) -> Machine:
    """Return a machine without its job if its name is none that berg gives to that job's machines,
    and it was not a warm machine of that name.

    The user that creates a machine can give it any label.
    """
    job, sweep = machine.labels.get("berg-job", ""), machine.labels.get("berg-sweep", "")
    names = [rf"{re.escape(job)}(-\d+)?", rf"{re.escape(base_name(job))}-[a-z0-9]{{4}}"]
    if sweep:
        names = [rf"{re.escape(sweep)}-machine-\d+"]
    names.append(re.escape(machine.labels.get(WARM, "")))
    is_its = not (job or sweep) or any(re.fullmatch(each, machine.name) for each in names)
    return machine if is_its else without_job(machine)


def without_job(machine: Machine) -> Machine:
    of_jobs = ("berg-job", "berg-sweep")
    kept = {key: value for key, value in machine.labels.items() if key not in of_jobs}
    return replace(machine, labels=kept)


def base_name(job: str) -> str:
    """Return what the names of the machines of a job's group begin with."""
    return job[:58].rstrip("-")


def vouched(config: Config, machine: Machine) -> Machine:
    """Return a machine without its job if it has the name of a group's machine, and Compute Engine
    does not say that the job's group created it, or that the job took it when it was warm.
    """
    job = machine.labels.get("berg-job", "")
    if machine.place == "gke" or not job or re.fullmatch(rf"{re.escape(job)}(-\d+)?", machine.name):
        return machine
    if WARM in machine.labels:
        is_its = (metadata(config, machine) or {}).get(WARM) == job
        return machine if is_its else without_job(machine)
    if machine.id not in CREATED_BY:
        CREATED_BY[machine.id] = (metadata(config, machine) or {}).get("created-by", "")
    is_its = CREATED_BY[machine.id].endswith(f"/instanceGroupManagers/{job}")
    return machine if is_its else without_job(machine)


def machine_of(instance: dict[str, Any]) -> Machine:
    """Return a machine from an instance in the API's words."""
    interface = (instance.get("networkInterfaces") or [{}])[0]
    access = interface.get("accessConfigs") or [{}]
    gpus, disks = instance.get("guestAccelerators") or [], instance.get("disks", [])
    model: str = instance.get("scheduling", {}).get("provisioningModel", "STANDARD")
    if instance.get("reservationAffinity", {}).get("consumeReservationType") == RESERVED:
        model = RESERVED
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
        model=model,
        account=(instance.get("serviceAccounts") or [{}])[0].get("email", ""),
        disk_gb=sum(int(disk.get("diskSizeGb", 0)) for disk in disks if not is_ssd(disk)),
        local_ssds=sum(map(is_ssd, disks)),
        gpus=", ".join(
            f"{gpu['acceleratorCount']} x {gpu['acceleratorType'].rpartition('-')[2]}"
            for gpu in gpus
        ),
    )


def is_ssd(disk: dict[str, Any]) -> bool:
    return disk.get("type") == "SCRATCH"


def path_of(machine: Machine) -> str:
    return f"/zones/{machine.zone}/instances/{machine.name}"


def serial_output(config: Config, machine: Machine) -> str:
    """Return the last megabyte that a machine wrote to its serial console; "" if it is gone."""
    return str(api.find(config, f"{path_of(machine)}/serialPort").get("contents", ""))


def metadata(config: Config, machine: Machine) -> dict[str, str] | None:
    """Return a machine's metadata; None if it is gone, or another one has its name now."""
    instance = api.find(config, path_of(machine), fields="id,metadata/items")
    if instance.get("id") != machine.id:
        return None
    return metadata_of(instance)


def metadata_of(instance: dict[str, Any]) -> dict[str, str]:
    """Return the metadata in an instance of the API's, or in the body of an insert."""
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
    # a machine's rank, and its ssh server's port
    ready = re.fullmatch(r"(\d{1,5}) (\d{1,5})", values.get(("berg", "ssh"), ""), re.A)
    if not ready or int(ready[2]) > 65535:
        return None
    keys = [
        f"{key} {value.strip()}" for (space, key), value in values.items() if space == "hostkeys"
    ]
    return Login(int(ready[1]), int(ready[2]), [each for each in keys if HOST_KEY.fullmatch(each)])


def why_gone(config: Config, job: str, zone: str) -> str:
    """Return why a machine was never created in a zone, in Google's words; "" if unknown."""
    if not zone:
        return ""
    fields = "items(insertTime,targetLink,error/errors/message),nextPageToken"
    # Google sorts no list that it filters.
    only = {"filter": "operationType=insert", "maxResults": "500"}
    found = list(api.items(config, f"/zones/{zone}/operations", **only, fields=fields))
    failed = [
        each
        for each in found
        if each.get("error", {}).get("errors") and each["targetLink"].endswith(f"/instances/{job}")
    ]
    newest = max(failed, key=lambda each: time_of(each["insertTime"]), default=None)
    return str(newest["error"]["errors"][-1].get("message", "")) if newest else ""


def tunnel(config: Config, machine: Machine) -> list[str]:
    """Return the command that connects to a machine's ssh server through IAP."""
    # At --verbosity=warning it recommends NumPy each time.
    gcloud = [computer.program("gcloud"), "compute", "start-iap-tunnel", machine.name, "%p"]
    place = ["--project", config.project, "--zone", machine.zone]
    return [*gcloud, "--listen-on-stdin", *place, "--verbosity=error", *config.tunnel_options]


def no_shell(machine: Machine) -> list[str]:
    """Return no command: ssh is the only way in."""
    return []


def act(config: Config, path: str, action: str, body: Any = None, **query: str) -> None:
    """Do something with a machine, and wait until it is done."""
    query["requestId"] = str(uuid.uuid4())
    wait(config, call(config, "POST", f"{path}/{action}", body, **query))


def set_metadata(
    config: Config, machine: Machine, key: str, value: str | Callable[[str], str]
) -> None:
    """Set one metadata value of a machine, which reads it at once if it runs; a function makes it
    from the old one.
    """

    def change(values: dict[str, str]) -> dict[str, str]:
        return {key: value if isinstance(value, str) else value(values.get(key, ""))}

    change_metadata(config, machine, change)


def change_metadata(
    config: Config, machine: Machine, change: Callable[[dict[str, str]], dict[str, str]]
) -> None:
    """Set the metadata values of a machine that a function returns for the present ones; those that
    it returns as "" are deleted.
    """

    def body() -> tuple[str, dict[str, Any]]:
        metadata = call(config, "GET", path_of(machine), fields="metadata")["metadata"]
        there = {item["key"]: item["value"] for item in metadata.get("items", [])}
        new = change(there)
        kept = {key: text for key, text in there.items() if key not in new}
        items = [{"key": key, "value": text} for key, text in (kept | new).items() if text]
        return "setMetadata", {"fingerprint": metadata["fingerprint"], "items": items}

    change_as_read(config, machine, body)


def set_labels(config: Config, machine: Machine, labels: dict[str, str]) -> None:
    """Set labels of a machine; others stay."""

    def body() -> tuple[str, dict[str, Any]]:
        there = call(config, "GET", path_of(machine), fields="labels,labelFingerprint")
        both = there.get("labels", {}) | labels
        return "setLabels", {"labelFingerprint": there["labelFingerprint"], "labels": both}

    change_as_read(config, machine, body)


def change_as_read(
    config: Config, machine: Machine, body: Callable[[], tuple[str, dict[str, Any]]]
) -> None:
    """Send a change that holds only for what was read, again if another client was faster."""
    for attempt in range(5):
        action, content = body()
        try:
            return act(config, path_of(machine), action, content)
        except api.PreconditionFailed:
            if attempt == 4:
                raise
    return None


def stop(config: Config, machine: Machine) -> None:
    """Turn a machine off: its programs get a signal, and have seconds. Its disk is kept, and what
    is on local SSDs is lost.
    """
    discard = {"discardLocalSsd": "true"} if loses_scratch(machine) else {}
    act(config, path_of(machine), "stop", **discard)


def loses_scratch(machine: Machine) -> bool:
    """Return whether a machine has local disks, whose content is lost when it stops."""
    return bool(machine.local_ssds) or shapes.has_local_disks(machine.machine_type)


def start(config: Config, machine: Machine) -> None:
    """Turn a machine on that is off. Raises OperationFailed if there is no room for it."""
    act(config, path_of(machine), "start")


def let_disk_go(config: Config, machine: Machine) -> None:
    """Let the disk of a devbox be deleted with its machine, which only a user decides."""
    if machine.labels.get("berg-kind") != "devbox" or machine.place != "gce":
        return
    path = path_of(machine)
    try:
        disks = call(config, "GET", path, fields="disks(boot,deviceName,autoDelete)")["disks"]
        for disk in disks:
            if disk.get("boot") and not disk.get("autoDelete"):
                which = {"deviceName": disk["deviceName"], "autoDelete": "true"}
                act(config, path, "setDiskAutoDelete", **which)
    except api.NotFound:
        return


def unused_disks(config: Config) -> list[dict[str, Any]]:
    """Return the disks of this bucket's jobs that no machine has."""
    fields = "items/*/disks(name,zone,users,labels,creationTimestamp,sizeGb,type),nextPageToken"
    found = api.items(config, "/aggregated/disks", filter=ours(config), fields=fields)
    return [disk for disk in found if not disk.get("users")]


# --- images of disks


def find_images(config: Config) -> list[dict[str, Any]]:
    """Return the images that berg made, for any user, the newest first."""
    fields = "name,family,status,diskSizeGb,archiveSizeBytes,creationTimestamp,description,labels"
    fields = f"items({fields}),nextPageToken"
    found = api.items(config, "/global/images", filter='(labels.berg="1")', fields=fields)
    return sorted(found, key=lambda image: str(image["creationTimestamp"]), reverse=True)


def make_image(config: Config, name: str, zone: str, body: dict[str, Any]) -> None:
    """Make an image of the disk that has its name, and wait until it can be used.

    If that fails or is interrupted, there is no image. Raises OperationFailed.
    """
    disk = f"projects/{config.project}/zones/{zone}/disks/{name}"
    try:
        api.write(config, "/global/images", {"name": name, "sourceDisk": disk, **body})
    except BaseException:
        delete_image(config, name)
        raise


def delete_image(config: Config, name: str) -> None:
    """Delete an image, as soon as it is made: Google refuses that before."""
    path = f"/global/images/{name}"
    api.wait_for(lambda: api.find(config, path, fields="status").get("status") != "PENDING", 0.5)
    api.delete(config, path, wait_for_it=True)


def check_made(config: Config, names: list[str]) -> None:
    """Raise BergError if berg made no image of one of these names."""
    there = {image["name"] for image in find_images(config)}
    for name in names:
        if name not in there:
            raise BergError(f"berg made no image {name!r}. See those it made: berg image list")


# --- moves to another zone

SAME = ("labels", "scheduling", "serviceAccounts", "reservationAffinity")
COPIED_AT = "berg-copied-at"  # in the metadata of a moved machine: when its snapshot was taken
KIND = "move"  # the label berg-kind of its snapshots
UNDER_WAY = ("CREATING", "UPLOADING")


def describe(config: Config, machine: Machine) -> dict[str, Any]:
    """Return an instance in the API's words."""
    return call(config, "GET", path_of(machine))


def shape_of(instance: dict[str, Any]) -> Shape:
    """Return what kind of machine an instance is, with the GPUs that are attached to it."""
    kind = last_part(instance["machineType"])
    gpus = instance.get("guestAccelerators", [])
    ssds = sum(map(is_ssd, instance["disks"]))
    if shapes.has_local_disks(kind):
        ssds = 0
    if not gpus or kind in shapes.BY_TYPE:
        return Shape(kind, 0, "", asked_ssds=ssds)
    attached = last_part(gpus[0]["acceleratorType"])
    return Shape(kind, gpus[0]["acceleratorCount"], "", accelerator=attached, asked_ssds=ssds)


def other_zones(config: Config, instance: dict[str, Any]) -> list[str]:
    """Return the other zones of its region that have such machines."""
    here = last_part(instance["zone"])
    offered = offers.zones_with(config, shape_of(instance), regions=[region_of(here)])
    return [zone for zone in offered if zone != here]


def take_snapshot(config: Config, instance: dict[str, Any], name: str) -> None:
    """Copy a machine's disk to a snapshot, which may take minutes."""
    disk = last_part(instance["disks"][0]["source"])
    path = f"/zones/{last_part(instance['zone'])}/disks/{disk}/createSnapshot"
    labels = {**instance.get("labels", {}), "berg-kind": KIND}
    api.write(config, path, {"name": name, "labels": labels})


def snapshots(config: Config, box: str = "") -> list[dict[str, Any]]:
    """Return the snapshots that moves of a box, or of all boxes, have left."""
    which = f'{ours(config)} AND (labels.berg-kind="{KIND}")'
    if box:
        which += f' AND (labels.berg-job="{box}")'
    fields = "items(name,status,labels,creationTimestamp,sourceDisk),nextPageToken"
    return list(api.items(config, "/global/snapshots", filter=which, fields=fields))


def is_current(snapshot: dict[str, Any], instance: dict[str, Any]) -> bool:
    """Return whether a snapshot has what is on the disk of an instance that is off."""
    on = instance.get("lastStartTimestamp") or instance["creationTimestamp"]
    disk = instance["disks"][0]["source"].partition("/projects/")[2]
    return (
        snapshot["sourceDisk"].partition("/projects/")[2] == disk
        and time_of(snapshot["creationTimestamp"]) > time_of(on)
        and snapshot["status"] == "READY"
    )


def wait_until_made(config: Config, snapshot: str) -> None:
    """Wait until Google is no longer making a snapshot; raise BergError after two hours."""
    path = f"/global/snapshots/{snapshot}"

    def is_made() -> bool:
        return api.find(config, path, fields="status").get("status") not in UNDER_WAY

    if not api.wait_for(is_made, 1, 7200):
        raise BergError(f"Google is still making the snapshot {snapshot}. Try again later")


def copied_at(config: Config, name: str) -> str:
    """Return when a snapshot was taken; raise BergError unless it is complete."""
    found = api.find(config, f"/global/snapshots/{name}", fields="status,creationTimestamp")
    if (status := found.get("status", "gone")) != "READY":
        raise BergError(f"the disk was not copied: its snapshot {name} is {status}. Try again")
    return str(found["creationTimestamp"])


def delete_snapshots(config: Config, box: str) -> list[str]:
    """Delete the snapshots of a box's moves; return those that Google is still making."""
    unfinished = []
    for each in snapshots(config, box):
        if each["status"] in UNDER_WAY:
            unfinished.append(each["name"])
        else:
            api.delete(config, f"/global/snapshots/{each['name']}", wait_for_it=True)
    return unfinished


def moved(instance: dict[str, Any], zone: str, snapshot: str, copied: str = "") -> dict[str, Any]:
    """Return the body of a machine like this one in a zone, with the disk of a snapshot."""
    shape = shape_of(instance)
    disk = {
        "sourceSnapshot": f"global/snapshots/{snapshot}",
        "diskSizeGb": instance["disks"][0]["diskSizeGb"],
        "diskType": f"zones/{zone}/diskTypes/{shape.disk_type}",
        "labels": instance.get("labels", {}),
    }
    items = [each for each in instance["metadata"].get("items", []) if each["key"] != COPIED_AT]
    if copied:
        items.append({"key": COPIED_AT, "value": copied})
    interfaces = []
    for here in instance["networkInterfaces"]:
        there = {key: here[key] for key in ("network", "subnetwork", "nicType") if here.get(key)}
        if here.get("accessConfigs"):
            there["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
        interfaces.append(there)
    is_deleted = instance["disks"][0].get("autoDelete", True)
    return {
        **{key: instance[key] for key in SAME if instance.get(key)},
        "machineType": f"zones/{zone}/machineTypes/{shape.machine_type}",
        "tags": {"items": instance.get("tags", {}).get("items", [])},
        "metadata": {"items": items},
        "networkInterfaces": interfaces,
        "disks": [
            {"boot": True, "autoDelete": is_deleted, "initializeParams": disk},
            *shape.ssd_disks(f"zones/{zone}"),
        ],
        **shape.guests(f"zones/{zone}"),
    }


# --- creation


def import_compute() -> None:
    """Import the client for instances from google-cloud-compute, and no other."""
    # The package's own __init__ imports the clients of some hundred services. That takes a second
    # more, for which `berg run` would wait. An empty module with the same path replaces it.
    name = "google.cloud.compute_v1"
    if name not in sys.modules and (spec := importlib.util.find_spec(name)):
        sys.modules[name] = importlib.util.module_from_spec(spec)  # not executed
    importlib.import_module(f"{name}.services.instances")


def insert(config: Config, zone: str, body: dict[str, Any], names: list[str]) -> None:
    """Create machines of those names, all or none, and wait until they exist or are in Google's
    queue. Raises OperationFailed with Google's reason; then no machine is left.
    """
    try:
        operation = send_insert(config, zone, body, names)
    except api.Conflict as error:
        what = "a machine"
        if "/disks/" in error.message:
            what = "a disk without a machine (berg reap) named"
        raise OperationFailed("alreadyExists", f"{what} {names[0]!r} exists in {zone}") from None
    except api.GoogleError as error:
        raise OperationFailed(error.reason, error.message) from None
    try:
        if not (body.get("params") and is_queued(config, zone, operation.name, names[0])):
            api.wait(config, {"name": operation.name, "zone": zone, "status": ""})
    except OperationFailed:
        made = ids_made(config, zone, operation)
        for name in names:
            path = f"/zones/{zone}/instances/{name}"
            if api.find(config, path, fields="id").get("id") in made:
                api.delete(config, path, wait_for_it=True)
        if not body["disks"][0]["autoDelete"]:
            delete_new_disks(config, zone, names, operation.insert_time)
        raise


def ids_made(config: Config, zone: str, operation: Any) -> set[str]:
    """Return the ids of the machines that an insert made; of several each has an operation."""
    if not operation.operation_group_id:
        return {str(operation.target_id)}
    only = f'operationGroupId="{operation.operation_group_id}"'
    fields = "items(targetId),nextPageToken"
    found = api.items(config, f"/zones/{zone}/operations", filter=only, fields=fields)
    return {each["targetId"] for each in found if "targetId" in each}


def send_insert(config: Config, zone: str, body: dict[str, Any], names: list[str]) -> Any:
    """Send the one request that creates machines; return Google's operation."""
    import_compute()
    from google.cloud.compute_v1.services.instances import InstancesClient
    from google.cloud.compute_v1.types import BulkInsertInstanceResource, Instance

    options = {"api_endpoint": config.endpoint} if config.endpoint else None
    client = InstancesClient(credentials=config.credentials, client_options=options)
    url = config.compute_url()
    # The session's connections are open; each new one would take two handshakes.
    transport: Any = client.transport
    transport._session.mount(url, api.kept_connections())
    request = {"project": config.project, "zone": zone, "request_id": str(uuid.uuid4())}
    text = json.dumps(request_body(body, names))
    if len(names) == 1:
        method: Any = client.insert_unary
        resource = {"instance_resource": Instance.from_json(text)}
    else:
        method = client.bulk_insert_unary
        machines = BulkInsertInstanceResource.from_json(text)
        resource = {"bulk_insert_instance_resource_resource": machines}

    def once() -> Any:
        with api.translated():
            return method(request={**request, **resource}, retry=None, timeout=60)

    return api.retry(once)


def request_body(body: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the body of the one request that creates machines like `body` under those names."""
    if len(names) == 1:
        return {"name": names[0], **body}
    return {
        "count": str(len(names)),
        "minCount": str(len(names)),
        "perInstanceProperties": {name: {} for name in names},
        "instanceProperties": without_zones(body),
    }


def without_zones(value: Any) -> Any:
    """Return a request's body with bare names of types and of policies, as bulk inserts and
    templates want them.
    """
    if isinstance(value, dict):
        return {key: without_zones(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_zones(inner) for inner in value]
    is_path = isinstance(value, str) and (
        value.startswith("zones/") or "/resourcePolicies/" in value
    )
    return api.last_part(value) if is_path else value


def queued(seconds: int) -> dict[str, Any]:
    """Return what a machine's body needs, besides its scheduling, to wait in Google's queue."""
    return {
        "params": {"requestValidForDuration": {"seconds": str(seconds)}},
        "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
    }


def is_queued(config: Config, zone: str, operation: str, name: str) -> bool:
    """Wait until an operation is done, or its machine is in Google's queue; return whether it is.

    It may be there for hours.
    """

    def look() -> str:
        path = f"/zones/{zone}/operations/{operation}"
        status = api.call(config, "GET", path, fields="status")["status"]
        machine = api.find(config, f"/zones/{zone}/instances/{name}", fields="status")
        if machine.get("status") == "PENDING":
            return "PENDING"
        return "DONE" if status == "DONE" else ""

    return api.wait_for(look, 0.3) == "PENDING"


def delete_new_disks(config: Config, zone: str, names: list[str], since: str) -> None:
    """Delete the disks that a failed insert created, and none that is older."""
    for name in names:
        path = f"/zones/{zone}/disks/{name}"
        found = api.find(config, path, fields="creationTimestamp,users")
        if not found or found.get("users"):
            continue
        if time_of(found["creationTimestamp"]) > time_of(since) - timedelta(seconds=10):
            api.delete(config, path, wait_for_it=True)

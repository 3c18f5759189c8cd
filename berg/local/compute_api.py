"""Compute Engine's methods: each handler reads one checked request and answers in Google's shapes.

Not covered: see `handlers` for the methods there are; everything else answers 501. Permissions are one flag per
project.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from berg.local import catalog, compute_bulk, compute_images, compute_make, schema
from berg.local import compute_checks as checks
from berg.local.compute import Compute, Instance, disk_view
from berg.local.compute_checks import LINK, last, not_found
from berg.local.compute_resources import RESOURCES
from berg.local.errors import ApiError
from berg.local.listing import page

if TYPE_CHECKING:
    from berg.local.server import Call, Cloud

CONSOLE = 1 << 20  # bytes of serial output that Google keeps
WAIT = 120  # seconds that operations/wait waits at most


def handlers(cloud: Cloud) -> dict[str, Any]:
    """The handler of every method there is, by discovery id."""
    own = {
        "instances.insert": insert,
        "instances.bulkInsert": compute_bulk.bulk_insert,
        "regionInstances.bulkInsert": compute_bulk.bulk_insert,
        "instances.get": get_instance,
        "instances.delete": change_power,
        "instances.stop": change_power,
        "instances.start": change_power,
        "instances.reset": change_power,
        "instances.getSerialPortOutput": serial_port_output,
        "instances.setMetadata": set_metadata,
        "instances.setLabels": set_labels,
        "instances.list": list_instances,
        "instances.aggregatedList": list_instances,
        "disks.get": get_disk,
        "disks.list": list_disks,
        "disks.aggregatedList": list_disks,
        "disks.delete": delete_disk,
        "projects.get": get_project,
        "projects.setCommonInstanceMetadata": set_common_metadata,
        "images.get": get_image,
        "images.getFromFamily": get_image,
        "images.list": list_images,
        "images.insert": insert_image,
        "images.delete": delete_image,
        "imageFamilyViews.get": image_family_view,
        **{f"{scope}Operations.get": get_operation for scope in ("zone", "region", "global")},
        **{f"{scope}Operations.wait": wait_operation for scope in ("zone", "region", "global")},
        **{f"{scope}Operations.list": list_operations for scope in ("zone", "region", "global")},
    }
    table: dict[str, Any] = {
        f"compute.{method}": functools.partial(_checked, cloud, handler) for method, handler in own.items()
    }
    # gcloud 528 sends this with every list. The document of 2026-11 only mentions it in prose.
    for method in schema.load("compute").methods.values():
        if method.id.endswith(("list", "List")):
            method.params["returnPartialSuccess"] = {"location": "query", "type": "boolean"}
    for name in RESOURCES:
        for verb in ("get", "list", "aggregatedList"):
            table[f"compute.{name}.{verb}"] = functools.partial(_checked, cloud, read_resource)
    return table


async def _checked(cloud: Cloud, handler: Callable, call: Call) -> Any:
    """Refuse unknown and forbidden projects and unknown places before any handler runs."""
    project = call.params["project"]
    known = cloud.projects.get(project)
    if known is None and project not in catalog.IMAGES:
        raise not_found(f"projects/{project}")
    if known is not None and not known["access"]:
        permission = call.method
        message = f"Required '{permission}' permission for 'projects/{project}'"
        raise ApiError(403, "forbidden", message)
    if known is None and not call.method.startswith(("compute.images.", "compute.imageFamilyViews.")):
        raise ApiError(403, "forbidden", f"Required '{call.method}' permission for 'projects/{project}'")
    zone = call.params.get("zone")
    reads_place = call.method in ("compute.zones.get", "compute.regions.get")
    if zone and zone != "-" and not reads_place:
        checks.check_zone(zone)
    if call.params.get("region") and not reads_place:
        checks.check_region(call.params["region"])
    return await handler(cloud.compute, call)


# --- instances


async def insert(compute: Compute, call: Call) -> dict:
    project, zone, body = call.params["project"], call.params["zone"], call.body or {}
    done = repeated(compute, call)
    if done:
        return done
    instance, disk = compute_make.instance(compute, project, zone, body)
    operation = new_operation(compute, call, "insert", instance)
    compute.insert(instance, disk, operation)
    return operation


def repeated(compute: Compute, call: Call) -> dict | None:
    request_id = call.params.get("requestId")
    if request_id == "00000000-0000-0000-0000-000000000000":
        raise checks.invalid("requestId", request_id, "A zero UUID is not supported.")
    return compute.repeated(call.params["project"], request_id)


def new_operation(compute: Compute, call: Call, kind: str, instance: Instance) -> dict:
    return compute.operation(
        instance.project,
        kind,
        instance.path,
        f"zones/{instance.zone}",
        call.principal,
        targetId=instance.id,
        clientOperationId=call.params.get("requestId"),
    )


def instance_of(compute: Compute, call: Call) -> Instance:
    return compute.get(call.params["project"], call.params["zone"], call.params["instance"])


async def get_instance(compute: Compute, call: Call) -> dict:
    return instance_of(compute, call).resource


async def change_power(compute: Compute, call: Call) -> dict:
    done = repeated(compute, call)
    if done:
        return done
    instance = instance_of(compute, call)
    verb = call.method.rpartition(".")[2]
    operation = new_operation(compute, call, verb, instance)
    error = compute.faults.take_operation_error(call.method, instance.zone)
    if error:
        return compute.finish(operation, error)
    change = {"delete": compute.delete, "stop": compute.stop, "start": compute.begin, "reset": compute.reset}
    change[verb](instance, operation)
    return operation


async def serial_port_output(compute: Compute, call: Call) -> dict:
    """What the machine wrote from byte `start` on, of the last 1 MB; ports 2 to 4 stay silent."""
    instance = instance_of(compute, call)
    start, data, size = int(call.params.get("start", 0)), b"", 0
    path = compute.machine_folder(instance) / "serial.log"
    if path.exists() and int(call.params.get("port", 1)) == 1:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(size + start if start < 0 else start, size - CONSOLE, 0)
            file.seek(min(start, size))
            data = file.read(CONSOLE)
    contents = data.decode("utf-8", "replace")
    return {
        "kind": "compute#serialPortOutput",
        "selfLink": f"{LINK}{instance.path}/serialPort",
        "contents": contents,
        "start": str(start),
        "next": str(start + len(data)),
    }


async def set_metadata(compute: Compute, call: Call) -> dict:
    instance, body = instance_of(compute, call), call.body or {}
    checks.check_fingerprint(body.get("fingerprint"), instance.resource["metadata"]["fingerprint"])
    instance.resource["metadata"] = checks.check_metadata(body)
    compute.save(instance)
    return compute.finish(new_operation(compute, call, "setMetadata", instance))


async def set_labels(compute: Compute, call: Call) -> dict:
    instance, body = instance_of(compute, call), call.body or {}
    current = instance.resource["labelFingerprint"]
    if body.get("labelFingerprint") != current:
        raise ApiError(412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
    labels = checks.check_labels(body.get("labels", {}))
    instance.resource.update(labels=labels, labelFingerprint=checks.fingerprint(labels))
    compute.save(instance)
    return compute.finish(new_operation(compute, call, "setLabels", instance))


async def list_instances(compute: Compute, call: Call) -> dict:
    project = call.params["project"]
    rows = [(i.zone, i.resource) for i in compute.instances.values() if i.project == project]
    return listed(call, "instance", "zones", rows)


def listed(call: Call, kind: str, place: str, rows: list[tuple[str, dict]]) -> dict:
    """One page of a list or of an aggregated list; `rows` are (zone or region, resource)."""
    name = f"{kind}s"
    aggregated = call.method.endswith("aggregatedList")
    singular = place[:-1]
    if not aggregated and singular in call.params:
        rows = [row for row in rows if row[0] == call.params[singular]]
    rows = sorted(rows, key=lambda row: row[1]["name"])
    where = {id(resource): at for at, resource in rows}
    kept, token = page([resource for _, resource in rows], call.params)
    answer: dict[str, Any] = {
        "kind": f"compute#{kind}{'AggregatedList' if aggregated else 'List'}",
        "id": f"projects/{call.params['project']}/{'aggregated/' if aggregated else ''}{name}",
        "selfLink": f"{LINK}projects/{call.params['project']}/{'aggregated/' if aggregated else ''}{name}",
    }
    if aggregated:
        scopes = catalog.ZONES if place == "zones" else catalog.REGIONS
        items: dict[str, dict] = {}
        for scope in scopes:
            here = [resource for resource in kept if where[id(resource)] == scope]
            items[f"{place}/{scope}"] = {name: here} if here else empty_scope(f"{place}/{scope}")
        answer["items"] = items
    elif kept:
        answer["items"] = kept
    if token:
        answer["nextPageToken"] = token
    return answer


def empty_scope(scope: str) -> dict:
    message = f"There are no results for scope '{scope}' on this page."
    data = [{"key": "scope", "value": scope}]
    return {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": message, "data": data}}


# --- disks


async def get_disk(compute: Compute, call: Call) -> dict:
    key = (call.params["project"], call.params["zone"], call.params["disk"])
    if key not in compute.disks:
        raise not_found(f"projects/{key[0]}/zones/{key[1]}/disks/{key[2]}")
    return disk_view(compute.disks[key])


async def list_disks(compute: Compute, call: Call) -> dict:
    project = call.params["project"]
    rows = [(key[1], disk_view(row)) for key, row in compute.disks.items() if key[0] == project]
    return listed(call, "disk", "zones", rows)


async def delete_disk(compute: Compute, call: Call) -> dict:
    disk = await get_disk(compute, call)
    if disk.get("users"):
        path = disk["selfLink"].removeprefix(LINK)
        message = f"The disk resource '{path}' is already being used by '{disk['users'][0].removeprefix(LINK)}'"
        raise ApiError(400, "resourceInUseByAnotherResource", message)
    project, zone = call.params["project"], call.params["zone"]
    del compute.disks[project, zone, disk["name"]]
    compute.drop("disks", disk["id"])
    path = f"projects/{project}/zones/{zone}/disks/{disk['name']}"
    operation = compute.operation(project, "delete", path, f"zones/{zone}", call.principal, targetId=disk["id"])
    return compute.finish(operation)


# --- operations


async def get_operation(compute: Compute, call: Call) -> dict:
    name, project = call.params["operation"], call.params["project"]
    row = compute.operations.get(name)
    scope = next((f"{s}s/{call.params[s]}" for s in ("zone", "region") if s in call.params), "global")
    path = f"projects/{project}/{scope}/operations/{name}"
    if row is None or row["selfLink"] != LINK + path:
        raise not_found(path)
    return row


async def wait_operation(compute: Compute, call: Call) -> dict:
    """Answer when the operation is done, or with what it is after two minutes."""
    row = await get_operation(compute, call)
    deadline = asyncio.get_running_loop().time() + WAIT
    while row["status"] != "DONE" and asyncio.get_running_loop().time() < deadline:
        remaining = deadline - asyncio.get_running_loop().time()
        try:
            await asyncio.wait_for(compute.changed.wait(), remaining)
        except asyncio.TimeoutError:
            break
    return row


async def list_operations(compute: Compute, call: Call) -> dict:
    scope = next((f"{s}s/{call.params[s]}" for s in ("zone", "region") if s in call.params), "global")
    prefix = f"{LINK}projects/{call.params['project']}/{scope}/operations/"
    rows = [row for row in compute.operations.values() if row["selfLink"].startswith(prefix)]
    kept, token = page(sorted(rows, key=lambda row: row["name"]), call.params)
    answer: dict[str, Any] = {"kind": "compute#operationList", "id": scope, "selfLink": prefix.rstrip("/")}
    return {**answer, **({"items": kept} if kept else {}), **({"nextPageToken": token} if token else {})}


# --- projects, images


async def get_project(compute: Compute, call: Call) -> dict:
    project = call.params["project"]
    number = compute.projects[project]["number"]
    metrics = catalog.PROJECT_QUOTAS
    return {
        "kind": "compute#project",
        "id": number,
        "name": project,
        "creationTimestamp": "2026-01-05T01:02:03.000-08:00",
        "commonInstanceMetadata": compute.project_row(project)["commonInstanceMetadata"],
        "quotas": [
            {
                "metric": metric,
                "limit": float(compute.limit(project, None, metric)),
                "usage": float(compute.usage(project, None, metric)),
            }
            for metric in metrics
        ],
        "defaultServiceAccount": f"{number}-compute@developer.gserviceaccount.com",
        "defaultNetworkTier": "PREMIUM",
        "selfLink": f"{LINK}projects/{project}",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
    }


async def set_common_metadata(compute: Compute, call: Call) -> dict:
    project, body = call.params["project"], call.body or {}
    row = compute.project_row(project)
    checks.check_fingerprint(body.get("fingerprint"), row["commonInstanceMetadata"]["fingerprint"])
    row["commonInstanceMetadata"] = checks.check_metadata(body)
    compute.save_project(project)
    kind, path = "compute.projects.setCommonInstanceMetadata", f"projects/{project}"
    return compute.finish(compute.operation(project, kind, path, "global", call.principal))


async def get_image(compute: Compute, call: Call) -> dict:
    project = call.params["project"]
    own = compute.own_images().get(project, [])
    if "family" in call.params:
        return compute_images.get_from_family(project, call.params["family"], own)
    return compute_images.get(project, call.params["image"], own)


async def list_images(compute: Compute, call: Call) -> dict:
    project = call.params["project"]
    rows = compute_images.images_of(project, compute.own_images().get(project, []))
    return listed(call, "image", "globals", [("global", row) for row in rows])


async def image_family_view(compute: Compute, call: Call) -> dict:
    return {"image": await get_image(compute, call)}


async def insert_image(compute: Compute, call: Call) -> dict:
    """Give the project an image of its own: the same machine under another name, from an image or a disk."""
    project, body = call.params["project"], call.body or {}
    name, row = body.get("name", ""), compute.project_row(project)
    checks.check_name("resource.name", name)
    if any(image["name"] == name for image in row["images"]):
        raise ApiError(409, "alreadyExists", f"The resource 'projects/{project}/global/images/{name}' already exists")
    source = {"sourceImage": body.get("sourceImage"), "sourceDisk": body.get("sourceDisk")}
    kept = {key: body[key] for key in ("family", "description", "labels") if key in body}
    if source["sourceImage"]:
        based_on = compute_images.resolve(project, source["sourceImage"], "resource.sourceImage", compute.own_images())
    else:
        based_on = {"diskSizeGb": "10"}
    size = body.get("diskSizeGb", based_on["diskSizeGb"])
    image = catalog.Image(name, "", "", int(size), compute.timestamp())
    shown = {k: v for k, v in compute_images.image_resource(project, image).items() if v != ""}
    row["images"].append({**shown, **kept, **{k: v for k, v in source.items() if v}})
    compute.save_project(project)
    path = f"projects/{project}/global/images/{name}"
    return compute.finish(compute.operation(project, "insert", path, "global", call.principal))


async def delete_image(compute: Compute, call: Call) -> dict:
    project, name = call.params["project"], call.params["image"]
    row = compute.project_row(project)
    if all(image["name"] != name for image in row["images"]):
        raise not_found(f"projects/{project}/global/images/{name}")
    row["images"] = [image for image in row["images"] if image["name"] != name]
    compute.save_project(project)
    path = f"projects/{project}/global/images/{name}"
    return compute.finish(compute.operation(project, "delete", path, "global", call.principal))


# --- zones, regions, machine types, accelerators, networks: read only, made from the catalog


async def read_resource(compute: Compute, call: Call) -> dict:
    collection, verb = call.method.split(".")[1:]
    resource = RESOURCES[collection]
    rows = resource.rows(compute, call.params["project"])
    if verb == "get":
        name = last(call.params[resource.kind])
        scope = call.params.get(resource.place[:-1]) if resource.place != "globals" else None
        for at, row in rows:
            if row["name"] == name and scope in (None, at, name):
                return row
        path = f"{resource.place}/{scope}/" if scope and resource.place[:-1] != resource.kind else ""
        path = "global/" if resource.place == "globals" and resource.kind == "network" else path
        raise not_found(f"projects/{call.params['project']}/{path}{collection}/{name}")
    return listed(call, resource.kind, resource.place, rows)


# --- the control plane


def control_routes(cloud: Cloud) -> list[web.RouteDef]:
    """Trouble on demand, under /_berg/. Bodies and answers are JSON."""
    compute: Compute = cloud.compute

    async def preempt(request: web.Request) -> web.Response:
        body = await read_json(request)
        operation = compute.preempt(compute.find(request.match_info["name"]), body.get("grace"))
        return web.json_response(operation)

    async def crash(request: web.Request) -> web.Response:
        compute.crash(compute.find(request.match_info["name"]))
        return web.json_response({})

    async def cut(request: web.Request) -> web.Response:
        body = await read_json(request)
        await compute.cut_off(compute.find(request.match_info["name"]), body.get("cut", True))
        return web.json_response({})

    async def quotas(request: web.Request) -> web.Response:
        body = await read_json(request)
        project = body.get("project", "berg-local")
        row = compute.project_row(project)
        row["quotas"].setdefault(body.get("region") or "global", {})[body["metric"]] = body["limit"]
        compute.save_project(project)
        return web.json_response(row["quotas"])

    async def stockout(request: web.Request) -> web.Response:
        body = await read_json(request)
        zones = [body["zone"]] if body.get("zone") else list(catalog.ZONES)
        for zone in zones:
            checks.check_zone(zone)
            compute.stockouts.pop(zone, None)
            if body.get("on", True):
                compute.stockouts[zone] = body.get("left", 0)
        return web.json_response(compute.stockouts)

    async def settings(request: web.Request) -> web.Response:
        for name, value in (await read_json(request)).items():
            if not hasattr(compute.settings, name):
                raise ApiError(400, "invalid", f"Unknown setting: {name}")
            setattr(compute.settings, name, float(value))
        return web.json_response(vars(compute.settings))

    return [
        web.post("/_berg/instances/{name}/preempt", preempt),
        web.post("/_berg/instances/{name}/crash", crash),
        web.post("/_berg/instances/{name}/cut", cut),
        web.post("/_berg/quotas", quotas),
        web.post("/_berg/stockout", stockout),
        web.post("/_berg/settings", settings),
    ]


async def read_json(request: web.Request) -> dict:
    return await request.json() if request.can_read_body else {}


def cut_off(cloud: Cloud) -> Any:
    """Middleware: requests with the token of a machine that is off the network find their connection reset."""
    from berg.local.server import cut

    @web.middleware
    async def middleware(request: web.Request, handler: Callable) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").rpartition(" ")[2]
        if token and any(i.cut and i.token == token for i in cloud.compute.instances.values()):
            cut(request)
            raise ConnectionResetError("this machine is off the network")
        return await handler(request)

    return middleware

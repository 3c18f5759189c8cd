"""Creates machines: the one thing that goes through google-cloud-compute.

Every other request to Compute Engine is a plain one (api.py).
"""

import importlib.util
import json
import sys
import uuid
from datetime import timedelta
from typing import Any

from berg.config import Config
from berg.google import api
from berg.google.api import OperationFailed


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
        operation = send(config, zone, body, names)
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
        for name in names:
            api.delete(config, f"/zones/{zone}/instances/{name}", wait_for_it=True)
        if not body["disks"][0]["autoDelete"]:
            delete_new_disks(config, zone, names, operation.insert_time)
        raise


def send(config: Config, zone: str, body: dict[str, Any], names: list[str]) -> Any:
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
        if api.time_of(found["creationTimestamp"]) > api.time_of(since) - timedelta(seconds=10):
            api.delete(config, path, wait_for_it=True)

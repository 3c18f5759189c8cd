"""Compute Engine: machines created, listed, read and deleted, with its errors made readable.

Inserts go through google-cloud-compute, which takes long to import and is imported where it is used.
Everything else is a single HTTP request, as is waiting: that library asks Google's own host about an
operation, whatever endpoint it was given.
"""

import importlib.util
import json
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from berg import BergError
from berg.config import Config

# What a failed create blocks; whatever is not named here blocks only itself and is told to the user.
BLOCKS_ZONE = {"ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "insufficientCapacity"}
BLOCKS_ZONE |= {"UNSUPPORTED_OPERATION", "RESOURCE_NOT_READY", "RESOURCE_NOT_FOUND"}
BLOCKS_REGION = ("QUOTA_EXCEEDED", "quotaExceeded")
BLOCKS_ALL = "GPUS_ALL_REGIONS"


class OperationFailed(BergError):
    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


def retrying():
    """The retry of every request here: 408, 429, 5xx and broken connections, with jitter, for 90 s."""
    import requests
    from google.api_core import exceptions, retry

    broken = (requests.ConnectionError, requests.Timeout, exceptions.TooManyRequests, exceptions.ServerError)
    return retry.Retry(retry.if_exception_type(*broken), initial=0.5, maximum=15, timeout=90)


def call(config: Config, method: str, path: str, body: dict | None = None, project="", **query) -> dict[str, Any]:
    """One request below the project, or to a whole address; raises google.api_core.exceptions.GoogleAPICallError.

    Every method used here may be repeated: reads, and writes that carry a requestId or a fingerprint.
    """
    from google.api_core import exceptions

    def once() -> dict[str, Any]:
        url = path if path.startswith("http") else config.compute_url(project) + path
        response = config.session.request(method, url, params=query or None, json=body, timeout=(10, 150))
        if "Date" in response.headers:
            date = parsedate_to_datetime(response.headers["Date"])
            config.clock_is_behind = date.timestamp() - time.time()
        if response.status_code >= 400:
            raise exceptions.from_http_response(response)
        return response.json() if response.content else {}

    return retrying()(once)()


def now(config: Config) -> float:
    """The time by Google's clock, as of its last answer: this computer's may be wrong. Seconds since 1970."""
    return time.time() + config.clock_is_behind


def time_of(timestamp: str) -> datetime:
    """A time in Google's words, RFC 3339."""
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00"))


def age_seconds(config: Config, timestamp: str) -> float:
    return now(config) - time_of(timestamp).timestamp()


def pages(config: Config, path: str, **query: Any) -> Iterable[dict[str, Any]]:
    token = None
    while True:
        answer = call(config, "GET", path, **query, **({"pageToken": token} if token else {}))
        yield answer
        token = answer.get("nextPageToken")
        if not token:
            return


def ours(config: Config) -> str:
    """The filter for what berg made for the jobs of this bucket."""
    return f"labels.berg=1 AND labels.berg-bucket={bucket_label(config)}"


def of_job(name: str) -> str:
    """The filter for the machines that a job has for itself."""
    return f"labels.berg-job={name}"


def bucket_label(config: Config) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", config.bucket)[:63]


def list_instances(config: Config, only: str = "") -> list[dict[str, Any]]:
    """Machines of this bucket's jobs that a filter takes, in the API's words, with `zone` as its short name."""
    fields = "name,zone,status,labels,creationTimestamp,machineType,guestAccelerators,scheduling,networkInterfaces"
    found = []
    for page in pages(
        config,
        "/aggregated/instances",
        filter=ours(config) + (f" AND ({only})" if only else ""),
        returnPartialSuccess="true",
        maxResults="500",
        fields=f"items/*/instances({fields}),nextPageToken",
    ):
        for scope in page.get("items", {}).values():
            found += [{**i, "zone": last_part(i["zone"])} for i in scope.get("instances", [])]
    return sorted(found, key=lambda machine: machine["name"])


def last_part(url: str) -> str:
    return url.rpartition("/")[2]


def addresses(instance: dict[str, Any]) -> tuple[str, str]:
    """External and internal address of an instance; "" for one that it has not."""
    interface = (instance.get("networkInterfaces") or [{}])[0]
    access = interface.get("accessConfigs") or [{}]
    return access[0].get("natIP", ""), interface.get("networkIP", "")


def serial_output(config: Config, zone: str, name: str) -> str:
    """The last megabyte that a machine wrote to its serial console; "" if it is gone."""
    from google.api_core import exceptions

    try:
        return call(config, "GET", f"/zones/{zone}/instances/{name}/serialPort").get("contents", "")
    except exceptions.NotFound:
        return ""


def set_metadata(config: Config, zone: str, name: str, key: str, value: str | Callable[[str], str]) -> None:
    """Set one metadata value of a running machine, which it hears of at once; a function makes it of the old one."""
    from google.api_core import exceptions

    path = f"/zones/{zone}/instances/{name}"
    for attempt in range(5):
        metadata = call(config, "GET", path, fields="metadata")["metadata"]
        values = {item["key"]: item["value"] for item in metadata.get("items", [])}
        values[key] = value if isinstance(value, str) else value(values.get(key, ""))
        body = {"fingerprint": metadata["fingerprint"], "items": [{"key": k, "value": v} for k, v in values.items()]}
        try:
            return wait(config, call(config, "POST", f"{path}/setMetadata", body, requestId=str(uuid.uuid4())))
        except exceptions.PreconditionFailed:  # somebody else changed it since it was read
            if attempt == 4:
                raise
    return None


def path_of(machine: dict[str, Any]) -> str:
    return f"/zones/{machine['zone']}/instances/{machine['name']}"


def delete(config: Config, path: str, wait_for_it: bool = False) -> None:
    """Delete what is at a path below the project; what is gone already is fine."""
    from google.api_core import exceptions

    try:
        try:
            operation = call(config, "DELETE", path, requestId=str(uuid.uuid4()))
        except exceptions.BadRequest as error:  # somebody else is deleting it
            if not error.errors or error.errors[0].get("reason") != "resourceNotReady":
                raise
            while wait_for_it and call(config, "GET", path, fields="name"):
                time.sleep(0.5)
            return
        if wait_for_it:
            wait(config, operation)
    except exceptions.NotFound:
        pass


def wait(config: Config, operation: dict[str, Any]) -> None:
    """Wait for an operation; raises OperationFailed with Google's code."""
    scope = next((f"{key}s/{last_part(operation[key])}" for key in ("zone", "region") if key in operation), "global")
    path = f"/{scope}/operations/{operation['name']}"
    while operation["status"] != "DONE":
        operation = call(config, "POST", f"{path}/wait")
    for error in operation.get("error", {}).get("errors", []):
        raise OperationFailed(error.get("code", ""), error.get("message", ""))


def import_compute() -> None:
    """Import what `insert` needs of google-cloud-compute without the other hundred services, which take a second more.

    The package's own __init__ imports all of them; in its place stands an empty one with the same path.
    """
    name = "google.cloud.compute_v1"
    if name not in sys.modules and (spec := importlib.util.find_spec(name)):
        sys.modules[name] = importlib.util.module_from_spec(spec)  # with its path, but not executed
    if sys.modules.get("grpc", name) is None:  # kept away by the command line, but needed here
        del sys.modules["grpc"]
    importlib.import_module(f"{name}.services.instances")


def insert(config: Config, zone: str, body: dict[str, Any], names: list[str]) -> None:
    """Create machines of those names, all or none, and wait until they exist.

    Raises OperationFailed with what Google says. A machine that lives although its creation failed is deleted.
    """
    from google.api_core import exceptions

    import_compute()
    from google.cloud.compute_v1.services.instances import InstancesClient
    from google.cloud.compute_v1.types import BulkInsertInstanceResource, Instance

    options = {"api_endpoint": config.endpoint} if config.endpoint else None
    client = InstancesClient(credentials=config.credentials, client_options=options)
    request: dict[str, Any] = {"project": config.project, "zone": zone, "request_id": str(uuid.uuid4())}
    text = json.dumps(request_body(body, names))
    try:
        if len(names) == 1:
            call_once: Any = client.insert_unary
            request["instance_resource"] = Instance.from_json(text)
        else:
            call_once = client.bulk_insert_unary
            request["bulk_insert_instance_resource_resource"] = BulkInsertInstanceResource.from_json(text)
        operation = call_once(request=request, retry=retrying(), timeout=60)
    except exceptions.Conflict:
        raise OperationFailed("alreadyExists", f"a machine {names[0]!r} exists in {zone}") from None
    except exceptions.GoogleAPICallError as error:
        reason = error.errors[0].get("reason", "") if error.errors else ""
        raise OperationFailed(reason, error.message) from None
    try:
        wait(config, {"name": operation.name, "zone": zone, "status": ""})
    except OperationFailed:
        for name in names:
            delete(config, f"/zones/{zone}/instances/{name}", wait_for_it=True)
        raise


def request_body(body: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The body of the one request that creates machines like `body` under those names."""
    if len(names) == 1:
        return {"name": names[0], **body}
    return {
        "count": str(len(names)),
        "minCount": str(len(names)),
        "perInstanceProperties": {name: {"name": name} for name in names},
        "instanceProperties": without_zones(body),
    }


def without_zones(value: Any) -> Any:
    """A request's body for a bulk insert, which wants bare names of types where an insert wants paths."""
    if isinstance(value, dict):
        return {key: without_zones(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_zones(inner) for inner in value]
    return last_part(value) if isinstance(value, str) and value.startswith("zones/") else value


def create(
    config: Config,
    zones: list[str],
    body_for: Callable[[str], dict],
    names: list[str],
    say: Callable[[str], None],
) -> str:
    """Create the machines in the first zone that has room for all of them and return that zone.

    Raises BergError with every zone that was tried and why it would not do.
    """
    tried: list[str] = []
    full_regions: set[str] = set()
    for zone in zones:
        region = zone.rpartition("-")[0]
        if region in full_regions:
            continue
        try:
            say(f"Creating {'the machine' if len(names) == 1 else f'{len(names)} machines'} in {zone}")
            insert(config, zone, body_for(zone), names)
            return zone
        except OperationFailed as error:
            tried.append(f"{zone}: {readable(error, region)}")
            say(tried[-1])
            if error.code in BLOCKS_REGION and BLOCKS_ALL not in error.message:
                full_regions.add(region)
            elif error.code not in BLOCKS_ZONE:
                break
    raise BergError(
        "no machine could be created, and none was left behind.\n  "
        + "\n  ".join(tried)
        + "\nTry other zones (--zone), another GPU type (-t), fewer GPUs (-g), or --spot"
    )


def readable(error: OperationFailed, region: str) -> str:
    if error.code in BLOCKS_REGION:
        where = "the whole project" if BLOCKS_ALL in error.message else region
        return f"quota of {where}: {error.message} Raise it: https://console.cloud.google.com/iam-admin/quotas"
    if error.code.startswith("ZONE_RESOURCE_POOL_EXHAUSTED") or error.code == "insufficientCapacity":
        return "out of stock"
    if error.code == "alreadyExists":
        return f"{error.message}. Choose another name: -n NAME"
    return f"{error.message} ({error.code})" if error.code else error.message

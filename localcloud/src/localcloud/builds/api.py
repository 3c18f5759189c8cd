"""Handlers of the Cloud Build methods: builds in a location, and the operations that follow them.

Not covered: steps of other images than gcr.io/cloud-builders/docker, substitutions, secrets,
artifacts, volumes, steps that wait for others than those before, Cloud Logging, private pools,
triggers, retries.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import re
import uuid
from collections.abc import Callable
from typing import Any

from localcloud.builds import checks, runner
from localcloud.builds.checks import bad
from localcloud.builds.store import ENDED
from localcloud.call import Call, Cloud, Handler
from localcloud.compute.listing import resources
from localcloud.errors import ApiError
from localcloud.identity.permissions import allowed
from localcloud.locations import REGIONS

STEP = r"gcr\.io/cloud-builders/docker(@sha256:[0-9a-f]{64})?"
REFUSED = (
    "artifacts",
    "availableSecrets",
    "secrets",
    "substitutions",
    "gitConfig",
    "dependencies",
    "approval",
)
REFUSED_STEP = (
    "entrypoint",
    "env",
    "secretEnv",
    "volumes",
    "waitFor",
    "script",
    "timeout",
    "allowFailure",
)
LONGEST = 86400  # seconds
TYPE = "type.googleapis.com/google.devtools.cloudbuild.v1."
NO_LOGS = (
    "if 'build.service_account' is specified, the build must either (a) specify 'build.logs_bucket', (b) use the "
    "REGIONAL_USER_OWNED_BUCKET build.options.default_logs_bucket_behavior option, or (c) use either "
    "CLOUD_LOGGING_ONLY / NONE logging options"
)


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the handler of every method that is served, by method id."""
    table = {
        "builds.create": create,
        "builds.get": get,
        "builds.list": list_builds,
        "builds.cancel": cancel,
        "operations.get": get_operation,
    }
    prefix = "cloudbuild.projects.locations."
    return {
        prefix + method: functools.partial(placed, cloud, handler)
        for method, handler in table.items()
    }


async def placed(cloud: Cloud, handler: Callable, call: Call) -> Any:
    """Check the project and the location that a request names, and call the handler with the name,
    project by id.
    """
    name = cloud.by_id(call.params.get("name") or call.params.get("parent", ""))
    location = name.split("/")[3]
    if location not in REGIONS | {"global"}:
        raise bad(f'invalid location "{location}"')
    return await handler(cloud, call, name)


def find(cloud: Cloud, name: str) -> dict:
    if name not in cloud.builds.rows:
        raise ApiError(404, "notFound", "Requested entity was not found.")
    return cloud.builds.rows[name]


def check(cloud: Cloud, body: dict) -> str:
    """Raise Google's refusal of a build; returns the email of its account, "" for the default."""
    for key in REFUSED:
        if body.get(key):
            raise ApiError(501, "notImplemented", f"The embedded cloud's builds have no {key}")
    if not body.get("steps"):
        raise bad("invalid build: no build steps specified")
    for step in body["steps"]:
        is_plain = not any(step.get(key) for key in REFUSED_STEP)
        if not re.fullmatch(STEP, step.get("name") or "") or not is_plain:
            raise ApiError(
                501,
                "notImplemented",
                "The embedded cloud runs plain steps of gcr.io/cloud-builders/docker alone",
            )
    checks.check(body)
    source = (body.get("source") or {}).get("storageSource")
    if body.get("source") and not (source and source.get("bucket") and source.get("object")):
        raise bad("invalid build: invalid source: storage source must name a bucket and an object")
    seconds = re.fullmatch(r"(\d+)(\.\d+)?s", body.get("timeout", "3600s"))
    if not seconds or not 0 < float(seconds[0][:-1]) <= LONGEST:
        raise bad(f"invalid build: timeout must be positive and at most {LONGEST}s")
    options = body.get("options") or {}
    account, logging = body.get("serviceAccount", ""), options.get("logging", "LOGGING_UNSPECIFIED")
    if account and not body.get("logsBucket") and logging not in ("CLOUD_LOGGING_ONLY", "NONE"):
        raise bad(f"{NO_LOGS}: invalid argument")
    if (
        options.get("pool")
        or logging not in ("GCS_ONLY", "NONE")
        or not (body.get("logsBucket") or logging == "NONE")
    ):
        raise ApiError(
            501,
            "notImplemented",
            "The embedded cloud writes logs to a bucket of one's own alone (GCS_ONLY)",
        )
    found = re.fullmatch(r"projects/([^/]+)/serviceAccounts/([^/]+)", account)
    if account and not (found and cloud.iam.account(found[2])):
        raise bad(f"invalid build: invalid service account: {account}")
    email = found[2] if found else ""
    check_log(cloud, body.get("logsBucket", ""), email)
    return email


def check_log(cloud: Cloud, url: str, email: str) -> None:
    """Refuse a log in a bucket that the build's account may not look at."""
    name = url.removeprefix("gs://").partition("/")[0]
    bucket = cloud.storage.bucket(name) if name else None
    if name and bucket is None:
        raise bad(f'invalid logs bucket "{url}": the bucket "{name}" does not exist')
    if bucket and not allowed(
        cloud, email, "storage.buckets.get", f"projects/{bucket['project']}/buckets/{name}"
    ):
        why = "builder service account does not have access to logs bucket"
        raise bad(f'invalid logs bucket "{url}": {why} "{name}"')


async def create(cloud: Cloud, call: Call, parent: str) -> dict:
    body, (_, project, _, location) = call.body or {}, parent.split("/")
    email = check(cloud, body) or cloud.iam.default_account(project)["email"]
    id = str(uuid.uuid4())
    number = cloud.projects[project]["number"]
    name = f"{parent}/builds/{id}"
    console = f"https://console.cloud.google.com/cloud-build/builds;region={location}/{id}?project={number}"
    row = {
        **body,
        **{
            "id": id,
            "name": f"projects/{number}/locations/{location}/builds/{id}",
            "projectId": project,
        },
        **{"status": "QUEUED", "createTime": runner.stamp(), "logUrl": console},
        "timeout": body.get("timeout", "3600s"),
        "queueTtl": body.get("queueTtl", "3600s"),
    }
    cloud.builds.rows[name] = row
    cloud.builds.save()
    task = asyncio.ensure_future(runner.run(cloud, row, email))
    cloud.builds.tasks[name] = task
    task.add_done_callback(lambda _: cloud.builds.tasks.pop(name, None))
    return operation(cloud, name)


def operation(cloud: Cloud, name: str) -> dict:
    """The operation that follows a build; its name holds the build's."""
    row = cloud.builds.rows[name]
    id = base64.urlsafe_b64encode(row["id"].encode()).decode().rstrip("=")
    shown: dict[str, Any] = {"name": f"{name.partition('/builds/')[0]}/operations/{id}"}
    shown["metadata"] = {"@type": f"{TYPE}BuildOperationMetadata", "build": row}
    if row["status"] == "SUCCESS":
        shown |= {"done": True, "response": {"@type": f"{TYPE}Build", **row}}
    elif row["status"] in ENDED:
        shown |= {
            "done": True,
            "error": {"code": 2, "message": "Build failed; check build logs for details"},
        }
    return shown


async def get_operation(cloud: Cloud, call: Call, name: str) -> dict:
    parent, _, id = name.partition("/operations/")
    try:
        decoded = base64.urlsafe_b64decode(id + "=" * (-len(id) % 4)).decode()
    except ValueError:
        decoded = ""
    find(cloud, f"{parent}/builds/{decoded}")
    return operation(cloud, f"{parent}/builds/{decoded}")


async def get(cloud: Cloud, call: Call, name: str) -> dict:
    return find(cloud, name)


async def list_builds(cloud: Cloud, call: Call, parent: str) -> dict:
    rows = [row for name, row in cloud.builds.rows.items() if name.startswith(f"{parent}/builds/")]
    return resources(call.params, "builds", rows[::-1], 20)


async def cancel(cloud: Cloud, call: Call, name: str) -> dict:
    row, task = find(cloud, name), cloud.builds.tasks.get(name)
    if task is None:
        raise ApiError(
            400, "failedPrecondition", "Build has already completed.", code="FAILED_PRECONDITION"
        )
    task.cancel()
    await asyncio.wait([task])
    if row["status"] not in ENDED:  # it had not begun
        row.update(status="CANCELLED", finishTime=runner.stamp())
        cloud.builds.save()
    return row

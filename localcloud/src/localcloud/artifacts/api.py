"""The handler of the Artifact Registry method that makes repositories of container images.

An operation is done at once. Not covered: other formats than DOCKER, other methods, what is in a repository.
"""

import re
import time
import uuid

from localcloud.call import Call, Cloud
from localcloud.compute.checks import check_labels
from localcloud.errors import ApiError, unserved
from localcloud.locations import REGIONS

TYPE = "type.googleapis.com/google.devtools.artifactregistry.v1."


def full_name(cloud: Cloud, call: Call, name: str) -> str:
    """A name with its project by id, in a location that there is."""
    needed = f"artifactregistry.{'.'.join(call.method.split('.')[-2:])}"
    refusal = f"Permission '{needed}' denied on resource '{name}' (or it may not exist)."
    name = cloud.by_id(name, refusal)
    if name.split("/")[3] not in REGIONS | {"us", "europe", "asia"}:
        raise ApiError(400, "invalid", "Request contains an invalid argument.")
    return name


async def create(cloud: Cloud, call: Call) -> dict:
    parent = full_name(cloud, call, call.params["parent"])
    body, id = call.body or {}, call.params.get("repositoryId", "")
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", id):
        raise ApiError(400, "invalid", "Request contains an invalid argument.")
    unserved(body.get("format") != "DOCKER", "repositories but of container images")
    check_labels(body.get("labels") or {})
    name, now = f"{parent}/repositories/{id}", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if name in cloud.artifacts.repositories:
        raise ApiError(409, "alreadyExists", "the repository already exists")
    row = {
        **body,
        "name": name,
        "mode": "STANDARD_REPOSITORY",
        "createTime": now,
        "updateTime": now,
    }
    cloud.artifacts.repositories[name] = row
    cloud.artifacts.save()
    return {
        "name": f"{parent}/operations/{uuid.uuid4()}",
        "metadata": {"@type": f"{TYPE}OperationMetadata"},
        "done": True,
        "response": {"@type": f"{TYPE}Repository", **row},
    }


HANDLERS = {"artifactregistry.projects.locations.repositories.create": create}

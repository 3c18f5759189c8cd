"""Handlers of the Artifact Registry methods: repositories of container images, their tags and
images.

An operation is done at the first look at it.

Not covered: other formats than DOCKER, remote and virtual repositories, patches, tags that cannot
be moved, clean-up (policies are kept, and delete nothing), deleting single images.
"""

from __future__ import annotations

import functools
import json
import re
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote

from localcloud.artifacts.store import stamp
from localcloud.call import Call, Cloud, Handler
from localcloud.compute.checks import check_labels
from localcloud.compute.listing import resources
from localcloud.errors import ApiError
from localcloud.locations import REGIONS

MULTI_REGIONS = {"us", "europe", "asia"}
TYPE = "type.googleapis.com/google.devtools.artifactregistry.v1."
REFUSED = (
    "dockerConfig",
    "kmsKeyName",
    "remoteRepositoryConfig",
    "virtualRepositoryConfig",
    "mavenConfig",
)
INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the handler of every method that is served, by method id."""
    table = {
        "repositories.create": create,
        "repositories.get": get,
        "repositories.list": list_repositories,
        "repositories.delete": delete,
        "repositories.packages.tags.get": get_tag,
        "repositories.dockerImages.list": list_images,
        "operations.get": get_operation,
    }
    prefix = "artifactregistry.projects.locations."
    return {
        prefix + method: functools.partial(placed, cloud, handler)
        for method, handler in table.items()
    }


async def placed(cloud: Cloud, handler: Callable, call: Call) -> Any:
    """Check the project and the location that a request names, and call the handler with the name,
    project by id.
    """
    name = call.params.get("name") or call.params.get("parent", "")
    needed = f"artifactregistry.{'.'.join(call.method.split('.')[-2:])}"
    name = cloud.by_id(
        name, f"Permission '{needed}' denied on resource '{name}' (or it may not exist)."
    )
    _, _, *rest = name.split("/")
    if len(rest) > 1 and rest[1] not in REGIONS | MULTI_REGIONS:
        raise ApiError(400, "invalid", "Request contains an invalid argument.")
    return await handler(cloud, call, name)


def find(cloud: Cloud, name: str) -> dict:
    if name not in cloud.artifacts.repositories:
        raise ApiError(404, "notFound", "Requested entity was not found.")
    return cloud.artifacts.repositories[name]


def uri(name: str) -> str:
    """Where images of a repository are on Google."""
    _, project, _, location, _, id = name.split("/")
    return f"{location}-docker.pkg.dev/{project}/{id}"


def present(cloud: Cloud, row: dict) -> dict:
    digests = {
        digest
        for image in cloud.artifacts.images.get(row["name"], {}).values()
        for digest in image["blobs"]
    }
    size = sum(cloud.artifacts.blob(digest).stat().st_size for digest in digests)
    return {**row, **({"sizeBytes": str(size)} if size else {})}


def operation(place: str, response: dict | None) -> dict:
    """An operation that has begun, or with its response one that is done."""
    begun = {"name": place, "metadata": {"@type": f"{TYPE}OperationMetadata"}}
    return begun if response is None else {**begun, "done": True, "response": response}


def begin(cloud: Cloud, name: str, response: dict) -> dict:
    place = f"{'/'.join(name.split('/')[:4])}/operations/{uuid.uuid4()}"
    cloud.artifacts.operations[place] = response
    return operation(place, None)


async def get_operation(cloud: Cloud, call: Call, name: str) -> dict:
    if name not in cloud.artifacts.operations:
        raise ApiError(404, "notFound", "Requested entity was not found.")
    return operation(name, cloud.artifacts.operations[name])


# --- repositories


async def create(cloud: Cloud, call: Call, parent: str) -> dict:
    body, id = call.body or {}, call.params.get("repositoryId", "")
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", id) or body.get("format") in (
        None,
        "FORMAT_UNSPECIFIED",
    ):
        raise ApiError(400, "invalid", "Request contains an invalid argument.")
    standard = body.get("mode") in (None, "MODE_UNSPECIFIED", "STANDARD_REPOSITORY")
    if body["format"] != "DOCKER" or not standard or any(body.get(key) for key in REFUSED):
        raise ApiError(
            501,
            "notImplemented",
            "The embedded cloud has plain repositories of container images alone",
        )
    check_labels(body.get("labels") or {})
    name = f"{parent}/repositories/{id}"
    if name in cloud.artifacts.repositories:
        raise ApiError(409, "alreadyExists", "the repository already exists")
    if any(
        uri(each).partition("/")[2] == uri(name).partition("/")[2]
        for each in cloud.artifacts.repositories
    ):
        # Its registry is at one address, without a host for each location.
        raise ApiError(
            501,
            "notImplemented",
            f"The embedded cloud has one repository {id} in a project, in one place",
        )
    now = stamp()
    row = {
        **body,
        "name": name,
        "mode": "STANDARD_REPOSITORY",
        "createTime": now,
        "updateTime": now,
    }
    row["registryUri"] = uri(name)
    cloud.artifacts.repositories[name] = row
    cloud.artifacts.save()
    return begin(cloud, name, {"@type": f"{TYPE}Repository", **row})


async def get(cloud: Cloud, call: Call, name: str) -> dict:
    return present(cloud, find(cloud, name))


async def list_repositories(cloud: Cloud, call: Call, parent: str) -> dict:
    rows = [
        row
        for name, row in cloud.artifacts.repositories.items()
        if name.startswith(f"{parent}/repositories/")
    ]
    return resources(call.params, "repositories", [present(cloud, row) for row in rows], 1000)


async def delete(cloud: Cloud, call: Call, name: str) -> dict:
    find(cloud, name)
    cloud.artifacts.delete_repository(name)
    cloud.iam.forget(name)
    return begin(cloud, name, {"@type": "type.googleapis.com/google.protobuf.Empty"})


# --- what is in them


def find_image(cloud: Cloud, name: str) -> tuple[str, str, dict]:
    """The repository, the name and the state of the image that a package's name means."""
    repository, _, rest = name.partition("/packages/")
    find(cloud, repository)
    image = unquote(rest.partition("/tags")[0])
    if image not in cloud.artifacts.images.get(repository, {}):
        raise ApiError(404, "notFound", "Requested entity was not found.")
    return repository, image, cloud.artifacts.image(repository, image)


def present_tag(repository: str, image: str, tag: str, digest: str) -> dict:
    package = f"{repository}/packages/{quote(image, safe='')}"
    return {"name": f"{package}/tags/{tag}", "version": f"{package}/versions/{digest}"}


async def get_tag(cloud: Cloud, call: Call, name: str) -> dict:
    repository, image, state = find_image(cloud, name)
    tag = name.rpartition("/")[2]
    if tag not in state["tags"]:
        raise ApiError(404, "notFound", "Requested entity was not found.")
    return present_tag(repository, image, tag, state["tags"][tag])


async def list_images(cloud: Cloud, call: Call, repository: str) -> dict:
    find(cloud, repository)
    rows = [
        present_image(cloud, repository, name, state, digest)
        for name, state in cloud.artifacts.images.get(repository, {}).items()
        for digest in state["manifests"]
    ]
    return resources(call.params, "dockerImages", rows, 100)


def present_image(cloud: Cloud, repository: str, name: str, state: dict, digest: str) -> dict:
    about, body = state["manifests"][digest], json.loads(cloud.artifacts.blob(digest).read_bytes())
    sizes = [each["size"] for each in parts(body)]
    row = {
        "name": f"{repository}/dockerImages/{quote(name, safe='')}@{digest}",
        "uri": f"{uri(repository)}/{name}@{digest}",
        "tags": [tag for tag, found in state["tags"].items() if found == digest],
        "imageSizeBytes": str(sum(sizes)),
        "mediaType": about["type"],
        "uploadTime": about["time"],
        "updateTime": about["time"],
    }
    if about["type"] in INDEXES:
        row["imageManifests"] = [
            {"digest": each["digest"], "mediaType": each["mediaType"], **platform(each)}
            for each in body["manifests"]
        ]
    return row


def parts(manifest: dict) -> list[dict]:
    """The blobs that a manifest names: layers and configuration; a list of manifests has none."""
    return [*manifest.get("layers", []), *(manifest[key] for key in ("config",) if key in manifest)]


def platform(entry: dict) -> dict[str, str]:
    found = entry.get("platform") or {}
    return {key: found[key] for key in ("architecture", "os", "variant") if found.get(key)}

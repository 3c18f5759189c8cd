"""The registry itself: the Open Container Initiative's distribution protocol, which docker, podman
and others speak.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md, below
/v2/PROJECT/REPOSITORY/IMAGE. A client without a token gets the address of /v2/token, as from
Google's registries: with the user `oauth2accesstoken` and an access token as its password. An
access token will do, too.

Not covered: the catalog, referrers, pages of tags, uploads cut into pieces that do not follow each
other.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from typing import Any

from aiohttp import web

from localcloud.artifacts.api import INDEXES, parts, uri
from localcloud.artifacts.store import digest_of
from localcloud.call import CLOUD, Cloud
from localcloud.errors import ApiError
from localcloud.identity import services
from localcloud.identity.permissions import allowed

MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    *INDEXES,
)
MAX_MANIFEST = 4 << 20
DIGEST = r"sha256:[0-9a-f]{64}"
TAG = r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}"
IMAGE = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
NAME = rf"/v2/(?P<name>{IMAGE}(?:/{IMAGE})+)"
USERS = ("oauth2accesstoken", "_dcgcloud_token")
VERSION = {"Docker-Distribution-Api-Version": "registry/2.0"}
PULL, PUSH = (
    "artifactregistry.repositories.downloadArtifacts",
    "artifactregistry.repositories.uploadArtifacts",
)
DELETE = "artifactregistry.repositories.deleteArtifacts"


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers or {}


async def serve(request: web.Request) -> web.StreamResponse:
    """Answer one request below /v2/."""
    cloud = request.app[CLOUD]
    method = "registry"
    try:
        for verb, path, permission, handler in ROUTES:
            found = re.fullmatch(path, request.path)
            if verb == request.method and found:
                method = f"registry.{handler.__name__}"
                response = await enter(cloud, request, permission, handler, found.groupdict())
                break
        else:
            raise Refusal(
                404, "UNSUPPORTED", f"{request.method} {request.path} is no request to a registry"
            )
    except Refusal as refusal:
        body = {"errors": [{"code": refusal.code, "message": refusal.message}]}
        response = web.json_response(body, status=refusal.status, headers=refusal.headers)
    except ApiError as error:  # a fault's
        response = web.json_response(
            {"errors": [{"code": error.code, "message": error.message}]}, status=error.status
        )
    response.headers.update(VERSION)
    cloud.requests.add(
        method, request.method, request.raw_path, response.status, request.content.total_bytes
    )
    return response


async def enter(
    cloud: Cloud, request: web.Request, permission: str, handler: Any, found: dict
) -> web.StreamResponse:
    """Check who asks and what for, and call the handler."""
    fault = cloud.faults.take(f"registry.{handler.__name__}", request.path)
    if fault and fault.status:
        raise fault.error()
    principal = owner(cloud, request)
    name = found.pop("name", "")
    if principal is None:
        raise challenge(request, name, permission)
    if not permission:
        return await handler(cloud, request)
    repository, image = locate(cloud, name, principal, permission)
    return await handler(cloud, request, repository, image, **found)


def owner(cloud: Cloud, request: web.Request) -> str | None:
    """Who sends a request: by a token, or by user and password, which is a token."""
    kind, _, value = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "basic":
        try:
            user, _, value = base64.b64decode(value).decode().partition(":")
        except ValueError:
            return None
        if user not in USERS:
            return None
    found = cloud.tokens.owner(value) if kind.lower() in ("basic", "bearer") else None
    return found.email if found else None


def challenge(request: web.Request, name: str, permission: str) -> Refusal:
    """Google's 401, which says where tokens come from."""
    scope = (
        f',scope="repository:{name}:{"pull" if permission == PULL else "push,pull"}"'
        if name
        else ""
    )
    header = f'Bearer realm="http://{request.host}/v2/token",service="{request.host}"{scope}'
    message = (
        f'Unauthenticated request. Unauthenticated requests do not have permission "{permission}"'
    )
    return Refusal(401, "UNAUTHORIZED", message, {"WWW-Authenticate": header})


def locate(cloud: Cloud, name: str, principal: str, permission: str) -> tuple[str, str]:
    """The repository and the image in it that a path means, if the caller may do that there."""
    project, id, *image = name.split("/")
    found = next(
        (
            each
            for each in cloud.artifacts.repositories
            if uri(each).endswith(f".dev/{project}/{id}")
        ),
        None,
    )
    if project in cloud.projects and "artifactregistry" not in services.enabled(cloud, project):
        raise Refusal(
            403, "DENIED", f"Artifact Registry API has not been used in project {project} before"
        )
    where = found or f"projects/{project}/locations/us/repositories/{id}"
    if cloud.project_named(project) is None or not allowed(cloud, principal, permission, where):
        message = f'Permission "{permission}" denied on resource "{where}" (or it may not exist)'
        raise Refusal(403, "DENIED", message)
    if found is None:
        raise Refusal(404, "NAME_UNKNOWN", f'Repository "{id}" not found')
    if not image:
        raise Refusal(
            400,
            "NAME_INVALID",
            "Missing image name. Pushes should be of the form HOST/PROJECT/REPO/IMAGE",
        )
    return found, "/".join(image)


async def token(cloud: Cloud, request: web.Request) -> web.Response:
    """The token that a client asks for after a challenge: that which it sent as its password."""
    value = request.headers["Authorization"].partition(" ")[2]
    if request.headers["Authorization"].lower().startswith("basic"):
        value = base64.b64decode(value).decode().partition(":")[2]
    return web.json_response({"token": value, "access_token": value, "expires_in": 3600})


async def version(cloud: Cloud, request: web.Request) -> web.Response:
    return web.json_response({})


# --- blobs


async def get_blob(
    cloud: Cloud, request: web.Request, repository: str, image: str, digest: str
) -> web.StreamResponse:
    if digest not in cloud.artifacts.image(repository, image)["blobs"]:
        raise Refusal(404, "BLOB_UNKNOWN", "blob unknown to registry")
    headers = {"Docker-Content-Digest": digest, "Content-Type": "application/octet-stream"}
    return web.FileResponse(cloud.artifacts.blob(digest), headers=headers)


async def start_upload(
    cloud: Cloud, request: web.Request, repository: str, image: str
) -> web.Response:
    digest, source = request.query.get("mount", ""), request.query.get("from", "")
    if digest and source and owner(cloud, request):
        there = locate(cloud, source, owner(cloud, request) or "", PULL)
        if digest in cloud.artifacts.image(*there)["blobs"]:
            cloud.artifacts.add_blob(repository, image, digest)
            return created(request, f"blobs/{digest}", digest)
    id = cloud.artifacts.new_upload().name
    if "digest" in request.query:
        return await finish_upload(cloud, request, repository, image, id)
    return progress(request, repository, image, id, 0, 202)


def progress(
    request: web.Request, repository: str, image: str, id: str, size: int, status: int
) -> web.Response:
    path = request.path.partition("/blobs/")[0]
    headers = {
        "Location": f"{path}/blobs/uploads/{id}",
        "Docker-Upload-UUID": id,
        "Range": f"0-{max(size - 1, 0)}",
    }
    return web.Response(status=status, headers=headers)


def created(request: web.Request, what: str, digest: str) -> web.Response:
    path = re.split("/(?:blobs|manifests)/", request.path)[0]
    return web.Response(
        status=201, headers={"Location": f"{path}/{what}", "Docker-Content-Digest": digest}
    )


async def receive(cloud: Cloud, request: web.Request, id: str) -> Any:
    """Append a request's body to an upload."""
    path = cloud.artifacts.upload(id)
    if path is None:
        raise Refusal(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
    begin = request.headers.get("Content-Range", "").partition("-")[0]
    if begin and begin != str(path.stat().st_size):
        raise Refusal(
            416,
            "BLOB_UPLOAD_INVALID",
            "blob upload invalid",
            {"Range": f"0-{path.stat().st_size - 1}"},
        )
    with path.open("ab") as file:
        async for data in request.content.iter_chunked(1 << 20):
            file.write(data)
    return path


async def continue_upload(
    cloud: Cloud, request: web.Request, repository: str, image: str, id: str
) -> web.Response:
    path = await receive(cloud, request, id)
    return progress(request, repository, image, id, path.stat().st_size, 202)


async def look_at_upload(
    cloud: Cloud, request: web.Request, repository: str, image: str, id: str
) -> web.Response:
    path = cloud.artifacts.upload(id)
    if path is None:
        raise Refusal(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
    return progress(request, repository, image, id, path.stat().st_size, 204)


async def finish_upload(
    cloud: Cloud, request: web.Request, repository: str, image: str, id: str
) -> web.Response:
    digest = request.query.get("digest", "")
    path = await receive(cloud, request, id)
    if await asyncio.to_thread(digest_of, path) != digest:
        path.unlink()
        raise Refusal(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
    cloud.artifacts.keep(path, digest, repository, image)
    return created(request, f"blobs/{digest}", digest)


async def drop_upload(
    cloud: Cloud, request: web.Request, repository: str, image: str, id: str
) -> web.Response:
    path = cloud.artifacts.upload(id)
    if path is None:
        raise Refusal(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
    path.unlink()
    return web.Response(status=204)


# --- manifests and tags


async def get_manifest(
    cloud: Cloud, request: web.Request, repository: str, image: str, reference: str
) -> web.Response:
    found = cloud.artifacts.manifest(repository, image, reference)
    if found is None:
        message = f'Failed to fetch "{reference}"'
        raise Refusal(404, "MANIFEST_UNKNOWN", message)
    digest, kind, data = found
    return web.Response(body=data, headers={"Content-Type": kind, "Docker-Content-Digest": digest})


async def put_manifest(
    cloud: Cloud, request: web.Request, repository: str, image: str, reference: str
) -> web.Response:
    data = await request.content.read(MAX_MANIFEST + 1)
    while len(data) <= MAX_MANIFEST and (more := await request.content.read(MAX_MANIFEST)):
        data += more
    if len(data) > MAX_MANIFEST:
        raise Refusal(413, "MANIFEST_INVALID", f"a manifest has at most {MAX_MANIFEST} bytes")
    try:
        body, kind = json.loads(data), request.content_type
        digests = [each["digest"] for each in parts(body)]
        children = [each["digest"] for each in body.get("manifests", [])]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refusal(400, "MANIFEST_INVALID", "manifest invalid") from None
    if (
        kind not in MANIFESTS
        or body.get("mediaType", kind) != kind
        or not (children if kind in INDEXES else digests)
    ):
        raise Refusal(400, "MANIFEST_INVALID", f"manifest invalid: {kind}")
    there = cloud.artifacts.image(repository, image)
    for digest in digests:
        if digest not in there["blobs"]:
            raise Refusal(400, "MANIFEST_BLOB_UNKNOWN", f"blob unknown to registry: {digest}")
    for digest in children:
        if digest not in there["manifests"]:
            raise Refusal(400, "MANIFEST_UNKNOWN", f"manifest unknown to registry: {digest}")
    if (
        reference.startswith("sha256:")
        and reference != f"sha256:{hashlib.sha256(data).hexdigest()}"
    ):
        raise Refusal(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
    digest = cloud.artifacts.put_manifest(repository, image, reference, kind, data)
    return created(request, f"manifests/{digest}", digest)


async def delete_manifest(
    cloud: Cloud, request: web.Request, repository: str, image: str, reference: str
) -> web.Response:
    state = cloud.artifacts.change(repository, image)
    if state["tags"].pop(reference, None) is None:
        if state["manifests"].pop(reference, None) is None:
            raise Refusal(404, "MANIFEST_UNKNOWN", f'Failed to fetch "{reference}"')
        state["tags"] = {
            tag: digest for tag, digest in state["tags"].items() if digest != reference
        }
    cloud.artifacts.save()
    return web.Response(status=202)


async def list_tags(
    cloud: Cloud, request: web.Request, repository: str, image: str
) -> web.Response:
    state = cloud.artifacts.image(repository, image)
    if not state["manifests"]:
        raise Refusal(404, "NAME_UNKNOWN", "repository name not known to registry")
    return web.json_response(
        {"name": request.path[len("/v2/") : -len("/tags/list")], "tags": sorted(state["tags"])}
    )


UPLOAD = rf"{NAME}/blobs/uploads/(?P<id>[0-9a-f-]{{36}})"
MANIFEST = rf"{NAME}/manifests/(?P<reference>{DIGEST}|{TAG})"
ROUTES = (
    ("GET", "/v2/", "", version),
    ("GET", "/v2/token", "", token),
    ("GET", rf"{NAME}/blobs/(?P<digest>{DIGEST})", PULL, get_blob),
    ("HEAD", rf"{NAME}/blobs/(?P<digest>{DIGEST})", PULL, get_blob),
    ("POST", rf"{NAME}/blobs/uploads/", PUSH, start_upload),
    ("GET", UPLOAD, PUSH, look_at_upload),
    ("PATCH", UPLOAD, PUSH, continue_upload),
    ("PUT", UPLOAD, PUSH, finish_upload),
    ("DELETE", UPLOAD, PUSH, drop_upload),
    ("GET", MANIFEST, PULL, get_manifest),
    ("HEAD", MANIFEST, PULL, get_manifest),
    ("PUT", MANIFEST, PUSH, put_manifest),
    ("DELETE", MANIFEST, DELETE, delete_manifest),
    ("GET", rf"{NAME}/tags/list", PULL, list_tags),
)

"""The registry itself, of the Open Container Initiative's distribution protocol: images are pushed, and their
manifests are read.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md, below
/v2/PROJECT/REPOSITORY/IMAGE, with an access token.

Not covered: the challenge for clients without a token, reading layers, uploads in several requests, indexes of
images, lists of tags, deletion.
"""

import json
import re

from aiohttp import web

from localcloud.call import CLOUD, Cloud
from localcloud.identity.permissions import allowed

MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
IMAGE = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
NAME = rf"/v2/(?P<name>{IMAGE}(?:/{IMAGE}){{2,}})"
REFERENCE = r"(?P<reference>sha256:[0-9a-f]{64}|[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127})"
RIGHT = "artifactregistry.repositories."


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str):
        super().__init__(message)
        self.status, self.code = status, code


async def serve(request: web.Request) -> web.StreamResponse:
    """Answer one request below /v2/."""
    cloud, method = request.app[CLOUD], "registry"
    try:
        for verb, path, right, handler in ROUTES:
            found = re.fullmatch(path, request.path)
            if found and verb == request.method:
                method = f"registry.{handler.__name__}"
                check(cloud, request, found["name"], RIGHT + right)
                response = await handler(cloud, request, **found.groupdict())
                break
        else:
            raise Refusal(404, "UNSUPPORTED", f"{request.method} is no request to this registry")
    except Refusal as refusal:
        body = {"errors": [{"code": refusal.code, "message": str(refusal)}]}
        response = web.json_response(body, status=refusal.status)
    response.headers["Docker-Distribution-Api-Version"] = "registry/2.0"
    received = request.content.total_bytes
    cloud.requests.add(method, request.method, request.raw_path, response.status, received)
    return response


def check(cloud: Cloud, request: web.Request, name: str, permission: str) -> None:
    """Refuse who may not do that with an image, and repositories that there are not."""
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    owner = cloud.tokens.owner(token) if kind.lower() == "bearer" else None
    if owner is None:
        message = f'Unauthenticated requests do not have permission "{permission}"'
        raise Refusal(401, "UNAUTHORIZED", message)
    project, id = name.split("/")[:2]
    rows = [
        each
        for each in cloud.artifacts.repositories
        if each.split("/")[1] == project and each.endswith(f"/repositories/{id}")
    ]
    where = rows[0] if rows else f"projects/{project}/locations/us/repositories/{id}"
    if cloud.project_named(project) is None or not allowed(cloud, owner.email, permission, where):
        message = f'Permission "{permission}" denied on resource "{where}" (or it may not exist)'
        raise Refusal(403, "DENIED", message)
    if not rows:
        raise Refusal(404, "NAME_UNKNOWN", f'Repository "{id}" not found')


async def put_blob(cloud: Cloud, request: web.Request, name: str) -> web.Response:
    digest = cloud.artifacts.put(await request.read())
    if digest != request.query.get("digest"):
        message = "provided digest did not match uploaded content"
        raise Refusal(400, "DIGEST_INVALID", message)
    cloud.artifacts.image(name)["blobs"].append(digest)
    cloud.artifacts.save()
    return web.Response(status=201, headers={"Docker-Content-Digest": digest})


async def get_manifest(
    cloud: Cloud, request: web.Request, name: str, reference: str
) -> web.Response:
    image = cloud.artifacts.image(name)
    digest = image["tags"].get(reference, reference)
    if digest not in image["manifests"]:
        raise Refusal(404, "MANIFEST_UNKNOWN", f'Failed to fetch "{reference}"')
    headers = {"Content-Type": image["manifests"][digest], "Docker-Content-Digest": digest}
    return web.Response(body=cloud.artifacts.read(digest), headers=headers)


async def put_manifest(
    cloud: Cloud, request: web.Request, name: str, reference: str
) -> web.Response:
    image, kind, data = cloud.artifacts.image(name), request.content_type, await request.read()
    try:
        body = json.loads(data)
        digests = [each["digest"] for each in (body["config"], *body["layers"])]
    except (ValueError, KeyError, TypeError):
        raise Refusal(400, "MANIFEST_INVALID", "manifest invalid") from None
    if kind not in MANIFESTS or body.get("mediaType", kind) != kind:
        raise Refusal(400, "MANIFEST_INVALID", f"manifest invalid: {kind}")
    if lost := {*digests} - {*image["blobs"]}:
        raise Refusal(400, "MANIFEST_BLOB_UNKNOWN", f"blob unknown to registry: {min(lost)}")
    digest = cloud.artifacts.put(data)
    image["manifests"][digest] = kind
    image["tags"][reference] = digest
    cloud.artifacts.save()
    return web.Response(status=201, headers={"Docker-Content-Digest": digest})


ROUTES = (
    ("POST", f"{NAME}/blobs/uploads/", "uploadArtifacts", put_blob),
    ("GET", f"{NAME}/manifests/{REFERENCE}", "downloadArtifacts", get_manifest),
    ("HEAD", f"{NAME}/manifests/{REFERENCE}", "downloadArtifacts", get_manifest),
    ("PUT", f"{NAME}/manifests/{REFERENCE}", "uploadArtifacts", put_manifest),
)

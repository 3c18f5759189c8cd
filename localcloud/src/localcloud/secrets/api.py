"""Handlers of the Secret Manager methods. The payload of a secret is only in answers to `access`, in no
log.

Not covered: pages of lists, regional secrets (projects.locations), patch, rotation, topics, version aliases,
delayed destruction, keys of one's own, secret types, tags.
"""

import base64
import functools
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import google_crc32c

from localcloud.call import Call, Cloud
from localcloud.compute.checks import check_labels
from localcloud.errors import ApiError, unserved
from localcloud.identity.iam import tag
from localcloud.secrets.store import Secret, timestamp

MAX_PAYLOAD = 64 << 10
MIN_LIFE, MAX_LIFE = 60, 100 * 365.25 * 86400  # seconds until a secret expires


def permission(method: str) -> str:
    """The permission that a method needs: `secretmanager.versions.access`."""
    name = method.replace("secretmanager.projects.secrets.", "secrets.").replace(
        "secrets.versions.", "versions."
    )
    return "secretmanager." + name.replace("secrets.addVersion", "versions.add")


def resource_of(call: Call) -> str:
    """The full name that a request is about."""
    return next(call.params[key] for key in ("name", "parent", "resource") if key in call.params)


async def _checked(handler: Callable, cloud: Cloud, call: Call) -> Any:
    """Refuse projects that are not there, and call the handler with the name, its project by id."""
    name = resource_of(call)
    refusal = f"Permission '{permission(call.method)}' denied for resource '{name}' (or it may not exist)."
    return await handler(cloud, call, cloud.by_id(name, refusal))


def find(cloud: Cloud, name: str) -> Secret:
    secret = cloud.secrets.find(name)
    if secret is None:
        raise ApiError(404, "notFound", f"Secret [{cloud.by_number(name)}] not found.")
    return secret


def present(cloud: Cloud, secret: Secret) -> dict:
    shown = {
        "name": cloud.by_number(secret.name),
        **secret.fields,
        "createTime": timestamp(secret.created),
    }
    if secret.expires is not None:
        shown["expireTime"] = timestamp(secret.expires)
    # a new version is no change of its secret
    return {**shown, "etag": f'"{tag({**asdict(secret), "versions": None})}"'}


# --- secrets


async def create(cloud: Cloud, call: Call, name: str) -> dict:
    body, id = call.body or {}, call.params.get("secretId", "")
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,255}", id):
        message = (
            f"The provided Secret ID [{id}] does not match the expected format [[a-zA-Z_0-9-]+]."
        )
        raise ApiError(400, "invalid", message)
    for key in body.keys() - {"replication", "labels", "ttl"}:
        unserved(body[key], f"secrets with {key}")
    unserved(body.get("replication") != {"automatic": {}}, "replication but the automatic one")
    labels = check_labels(body.get("labels") or {})
    secret = Secret(cloud.project_named(name.split("/")[1]) or "", id, time.time(), {})
    secret.fields = {"replication": body["replication"], **({"labels": labels} if labels else {})}
    if text := body.get("ttl"):
        if not re.fullmatch(r"[0-9]+s", text) or not MIN_LIFE <= int(text[:-1]) <= MAX_LIFE:
            message = "A secret's expiration must be 60 seconds to 100 years away."
            raise ApiError(400, "invalid", message)
        secret.expires = secret.created + int(text[:-1])
    if cloud.secrets.find(secret.name):
        raise ApiError(
            409, "alreadyExists", f"Secret [{cloud.by_number(secret.name)}] already exists."
        )
    cloud.iam.forget(secret.name)  # the policy of one of this name that is gone
    cloud.secrets.add(secret)
    return present(cloud, secret)


async def list_secrets(cloud: Cloud, call: Call, name: str) -> dict:
    unserved(call.params.get("filter"), "filters of secrets")
    mine = [each for each in cloud.secrets.all() if each.name.startswith(f"{name}/")]
    return {"secrets": [present(cloud, each) for each in reversed(mine)]}


async def delete(cloud: Cloud, call: Call, name: str) -> dict:
    secret = find(cloud, name)
    cloud.secrets.delete(secret)
    return {}


# --- versions


async def add_version(cloud: Cloud, call: Call, name: str) -> dict:
    secret, payload = find(cloud, name), (call.body or {}).get("payload") or {}
    text = payload.get("data") or ""
    data = base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4))
    if not data:
        raise ApiError(400, "invalid", "The secret payload must not be empty.")
    if len(data) > MAX_PAYLOAD:
        raise ApiError(
            400,
            "invalid",
            f"The secret payload is {len(data)} bytes; at most {MAX_PAYLOAD} are allowed.",
        )
    unserved(payload.get("dataCrc32c"), "checksums of new versions")
    version = cloud.secrets.add_version(secret, data, google_crc32c.value(data))
    return {
        "name": cloud.by_number(f"{secret.name}/versions/{version.number}"),
        "createTime": timestamp(version.created),
        "state": "ENABLED",
        "replicationStatus": {"automatic": {}},
    }


async def access(cloud: Cloud, call: Call, name: str) -> dict:
    parent, _, number = name.partition("/versions/")
    secret = find(cloud, parent)
    unserved(number != "latest", "versions of secrets but the latest")
    if not secret.versions:
        message = f"Secret [{cloud.by_number(parent)}] not found or has no versions."
        raise ApiError(404, "notFound", message)
    version = secret.versions[-1]
    data = base64.b64encode(cloud.secrets.read(version)).decode()
    full = cloud.by_number(f"{secret.name}/versions/{version.number}")
    return {"name": full, "payload": {"data": data, "dataCrc32c": str(version.crc)}}


HANDLERS = {
    f"secretmanager.projects.secrets.{method}": functools.partial(_checked, handler)
    for method, handler in {
        "create": create,
        "list": list_secrets,
        "delete": delete,
        "addVersion": add_version,
        "versions.access": access,
    }.items()
}

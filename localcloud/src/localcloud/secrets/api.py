"""Handlers of the Secret Manager methods. The payload of a secret is only in answers to `access`, in no
log.

Not covered: regional secrets (projects.locations), patch, rotation, topics, version aliases,
delayed destruction, keys of one's own, secret types, tags.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any

import google_crc32c

from localcloud.call import Call, Cloud, Handler
from localcloud.compute.checks import check_labels
from localcloud.compute.listing import resources
from localcloud.errors import ApiError
from localcloud.locations import REGIONS
from localcloud.secrets.store import Secret, Version, timestamp

MAX_PAYLOAD = 64 << 10
MIN_LIFE, MAX_LIFE = 60, 100 * 365.25 * 86400  # seconds until a secret expires
ANNOTATION = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?")
MOST_ANNOTATIONS = 16 << 10  # bytes of all keys and values
STORED = ("replication", "labels", "annotations")
REFUSED = ("rotation", "topics", "versionAliases", "versionDestroyTtl", "secretType", "tags")
KEYS = "customerManagedEncryption"


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the handler of every method that is served, by method id."""
    table = {
        "create": create,
        "get": get,
        "list": list_secrets,
        "delete": delete,
        "addVersion": add_version,
        "versions.get": get_version,
        "versions.list": list_versions,
        "versions.access": access,
    }
    prefix = "secretmanager.projects.secrets."
    return {
        prefix + method: functools.partial(_checked, cloud, handler)
        for method, handler in table.items()
    }


def permission(method: str) -> str:
    """The permission that a method needs: `secretmanager.versions.access`."""
    name = method.replace("secretmanager.projects.secrets.", "secrets.").replace(
        "secrets.versions.", "versions."
    )
    return "secretmanager." + name.replace("secrets.addVersion", "versions.add")


def resource_of(call: Call) -> str:
    """The full name that a request is about."""
    return next(call.params[key] for key in ("name", "parent", "resource") if key in call.params)


async def _checked(cloud: Cloud, handler: Callable, call: Call) -> Any:
    """Refuse projects that are not there, and call the handler with the name, its project by id."""
    name = resource_of(call)
    refusal = f"Permission '{permission(call.method)}' denied for resource '{name}' (or it may not exist)."
    return await handler(cloud, call, cloud.by_id(name, refusal))


def shown_name(cloud: Cloud, name: str) -> str:
    """Secret Manager answers with the project's number, whatever it was asked with."""
    _, project, *rest = name.split("/")
    return "/".join(["projects", cloud.projects[project]["number"], *rest])


def etag(what: Secret | Version) -> str:
    # a new version is no change of its secret
    row: dict[str, Any] = {
        **asdict(what),
        "versions": None,
    }
    return f'"{hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:14]}"'


def check_etag(sent: str | None, what: Secret | Version) -> None:
    if sent and sent != etag(what):
        raise ApiError(
            400,
            "failedPrecondition",
            f"The etag '{sent}' is out of date",
            code="FAILED_PRECONDITION",
        )


def find(cloud: Cloud, name: str) -> Secret:
    secret = cloud.secrets.find(name)
    if secret is None:
        raise ApiError(404, "notFound", f"Secret [{shown_name(cloud, name)}] not found.")
    return secret


def find_version(cloud: Cloud, name: str) -> tuple[Secret, Version]:
    """The version of a full name; `latest` is the newest."""
    parent, _, number = name.partition("/versions/")
    secret = find(cloud, parent)
    if number == "latest" and not secret.versions:
        raise ApiError(
            404, "notFound", f"Secret [{shown_name(cloud, parent)}] not found or has no versions."
        )
    for version in reversed(secret.versions):
        if number in ("latest", str(version.number)):
            return secret, version
    raise ApiError(404, "notFound", f"Secret Version [{shown_name(cloud, name)}] not found.")


def present(cloud: Cloud, secret: Secret) -> dict:
    shown = {
        "name": shown_name(cloud, secret.name),
        **secret.fields,
        "createTime": timestamp(secret.created),
    }
    if secret.expires is not None:
        shown["expireTime"] = timestamp(secret.expires)
    return {**shown, "etag": etag(secret)}


def present_version(cloud: Cloud, secret: Secret, version: Version) -> dict:
    kind = "automatic"
    status: dict[str, Any] = {}
    if "userManaged" in secret.fields["replication"]:
        kind, replicas = "userManaged", secret.fields["replication"]["userManaged"]["replicas"]
        status = {"replicas": [{"location": replica["location"]} for replica in replicas]}
    shown: dict[str, Any] = {
        "name": shown_name(cloud, f"{secret.name}/versions/{version.number}"),
        "createTime": timestamp(version.created),
        "state": "ENABLED",
        "replicationStatus": {kind: status},
        "etag": etag(version),
    }
    if version.checked:
        shown["clientSpecifiedPayloadChecksum"] = True
    return shown


# --- secrets


def check_annotations(annotations: dict[str, str]) -> None:
    """Raise 400 for annotations that Google does not keep."""
    for key in annotations:
        if not ANNOTATION.fullmatch(key):
            raise ApiError(400, "invalid", f"Invalid annotation key: {key}")
    if sum(len(f"{key}{annotations[key]}".encode()) for key in annotations) >= MOST_ANNOTATIONS:
        raise ApiError(400, "invalid", "The annotations must have less than 16 KiB in all.")


async def create(cloud: Cloud, call: Call, name: str) -> dict:
    body, id = call.body or {}, call.params.get("secretId", "")
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,255}", id):
        message = (
            f"The provided Secret ID [{id}] does not match the expected format [[a-zA-Z_0-9-]+]."
        )
        raise ApiError(400, "invalid", message)
    for key in (*REFUSED, KEYS):
        if body.get(key):
            raise ApiError(501, "notImplemented", f"The embedded cloud's secrets have no {key}")
    check_replication(body.get("replication") or {})
    check_labels(body.get("labels") or {})
    check_annotations(body.get("annotations") or {})
    secret = Secret(cloud.project_named(name.split("/")[1]) or "", id, cloud.secrets.now(), {})
    secret.fields = {key: body[key] for key in STORED if body.get(key)}
    secret.expires = expiry(body, secret.created)
    if cloud.secrets.find(secret.name):
        raise ApiError(
            409, "alreadyExists", f"Secret [{shown_name(cloud, secret.name)}] already exists."
        )
    cloud.iam.forget(secret.name)  # the policy of one of this name that is gone
    cloud.secrets.add(secret)
    return present(cloud, secret)


def check_replication(replication: dict) -> None:
    kinds = {key: value for key, value in replication.items() if value is not None}
    replicas = (kinds.get("userManaged") or {}).get("replicas") or []
    places = [replica.get("location") for replica in replicas]
    located = bool(places) and all(places)
    if list(kinds) != ["automatic"] and not (list(kinds) == ["userManaged"] and located):
        raise ApiError(
            400,
            "invalid",
            "The secret's replication must be 'automatic', or 'userManaged' with locations.",
        )
    for place in places:
        if place not in REGIONS or places.count(place) > 1:
            raise ApiError(
                400,
                "invalid",
                f"The replica location [{place}] is not supported, or is there twice.",
            )
    if any(part.get(KEYS) for part in [*kinds.values(), *replicas]):
        raise ApiError(501, "notImplemented", f"The embedded cloud's secrets have no {KEYS}")


def expiry(body: dict, now: float) -> float | None:
    """When a secret is to expire, from `ttl` or `expireTime`."""
    ttl, time = body.get("ttl"), body.get("expireTime")
    if ttl is None and time is None:
        return None
    if ttl is not None and time is not None:
        message = "Invalid value (oneof), oneof field 'expiration' is already set. Cannot set 'ttl'"
        raise ApiError(400, "invalid", message)
    try:
        if ttl is not None:
            moment = now + float(re.fullmatch(r"([0-9]+(?:\.[0-9]{1,9})?)s", ttl)[1])  # type: ignore[index]
        else:
            moment = datetime.fromisoformat(str(time).replace("Z", "+00:00")).timestamp()
    except (TypeError, ValueError):
        raise ApiError(
            400, "invalid", f'Invalid value for the secret\'s expiration: "{ttl or time}"'
        ) from None
    if not MIN_LIFE <= moment - now <= MAX_LIFE:
        raise ApiError(
            400, "invalid", "A secret's expiration must be 60 seconds to 100 years away."
        )
    return moment


async def get(cloud: Cloud, call: Call, name: str) -> dict:
    return present(cloud, find(cloud, name))


async def list_secrets(cloud: Cloud, call: Call, name: str) -> dict:
    rows = [
        present(cloud, secret)
        for secret in cloud.secrets.all()
        if secret.name.startswith(f"{name}/")
    ]
    return listed(call, "secrets", rows)


def listed(call: Call, kind: str, rows: list[dict]) -> dict:
    """One page, newest first."""
    total = {} if call.params.get("filter") or not rows else {"totalSize": len(rows)}
    return {**resources(call.params, kind, rows[::-1], 25_000), **total}


async def delete(cloud: Cloud, call: Call, name: str) -> dict:
    secret = find(cloud, name)
    check_etag(call.params.get("etag"), secret)
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
    crc, sent = google_crc32c.value(data), payload.get("dataCrc32c")
    if sent is not None and int(sent) != crc:
        raise ApiError(
            400, "invalid", "The checksum data_crc32c does not match the secret payload."
        )
    return present_version(
        cloud, secret, cloud.secrets.add_version(secret, data, crc, sent is not None)
    )


async def get_version(cloud: Cloud, call: Call, name: str) -> dict:
    return present_version(cloud, *find_version(cloud, name))


async def list_versions(cloud: Cloud, call: Call, name: str) -> dict:
    secret = find(cloud, name)
    return listed(
        call, "versions", [present_version(cloud, secret, version) for version in secret.versions]
    )


async def access(cloud: Cloud, call: Call, name: str) -> dict:
    secret, version = find_version(cloud, name)
    data = base64.b64encode(cloud.secrets.read(version)).decode()
    full = shown_name(cloud, f"{secret.name}/versions/{version.number}")
    return {"name": full, "payload": {"data": data, "dataCrc32c": str(version.crc)}}

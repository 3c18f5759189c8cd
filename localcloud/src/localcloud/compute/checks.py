"""What requests of Compute Engine share: links, ids, and the fields that Google refuses, in its
words.

Not covered: organisation policies and permissions. Wording of errors that Google does not document
is as remembered from practice.
"""

import base64
import hashlib
import json
import re
import zlib
from typing import Any

from localcloud import schema
from localcloud.compute import catalog
from localcloud.errors import ApiError, unserved

LINK = "https://www.googleapis.com/compute/v1/"
NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
LABEL_KEY = re.compile(r"[a-z\u00df-\uffff][-_a-z0-9\u00df-\uffff]{0,62}")
LABEL_VALUE = re.compile(r"[-_a-z0-9\u00df-\uffff]{0,63}")
METADATA_KEY = re.compile(r"[a-zA-Z0-9-_]{1,128}")
MAX_DESCRIPTION = 2048
MAX_METADATA_VALUE, MAX_METADATA = 256 << 10, 512 << 10


def invalid(field: str, value: Any, why: str) -> ApiError:
    return ApiError(400, "invalid", f"Invalid value for field '{field}': '{value}'. {why}")


def served(field: str, value: Any, *values: Any) -> None:
    """Refuse what is Google's and not among the values that are served here."""
    unserved(value not in values, f"{field} {json.dumps(value)}")


def not_found(path: str) -> ApiError:
    return ApiError(404, "notFound", f"The resource '{path}' was not found")


def in_use(kind: str, row: dict, user: str) -> ApiError:
    path = row["selfLink"].removeprefix(LINK)
    message = f"The {kind} resource '{path}' is already being used by '{user}'"
    return ApiError(400, "resourceInUseByAnotherResource", message)


def already_exists(path: str) -> ApiError:
    return ApiError(409, "alreadyExists", f"The resource '{path}' already exists")


def named(rows: list[dict], path: str) -> dict:
    """The row whose name a path ends in; raise 404 if there is none."""
    found = next((row for row in rows if row["name"] == last(path)), None)
    if found is None:
        raise not_found(path)
    return found


def last(link: str) -> str:
    """The name at the end of a link."""
    return link.rstrip("/").rpartition("/")[2]


def fingerprint(value: Any) -> str:
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest[:8]).decode()


def number_of(path: str) -> str:
    """A stable uint64 id for something that has none in our tables."""
    return str(10**18 + zlib.crc32(path.encode()) * 1000)


def written(kind: dict, value: Any) -> Any:
    """A checked part of a request as Google writes it back: no output-only fields, 64-bit integers
    as strings.
    """
    kind = schema.load("compute").schemas[kind["$ref"]] if "$ref" in kind else kind
    if isinstance(value, dict):
        fields, others = kind.get("properties", {}), kind.get("additionalProperties", {})
        inner = {key: fields.get(key, others) for key, item in value.items() if item is not None}
        return {
            key: written(inner[key], value[key]) for key in inner if not inner[key].get("readOnly")
        }
    if isinstance(value, list):
        return [written(kind.get("items", {}), item) for item in value]
    if kind.get("format") in schema.INT_RANGES:
        return str(value) if kind["type"] == "string" else int(value)
    return value


def check_place(field: str, name: str) -> None:
    if name not in (catalog.ZONES if field == "zone" else catalog.REGIONS):
        raise invalid(field, name, f"Unknown {field}.")


def check_name(field: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise invalid(field, name, f"Must be a match of regex '{NAME.pattern}'")


def check_description(body: dict) -> None:
    size = len(body.get("description") or "")
    if size > MAX_DESCRIPTION:
        message = (
            "Value for field 'resource.description' is too large: maximum size "
            f"{MAX_DESCRIPTION} character(s); actual size {size}."
        )
        raise ApiError(413, "fieldSizeTooLarge", message)


def types_in(properties: dict) -> list[tuple[str, str]]:
    """The fields of a machine's properties that name types or policies, and what they say."""
    found = [("machineType", properties.get("machineType", ""))]
    for index, disk in enumerate(properties.get("disks") or []):
        params = disk.get("initializeParams", {})
        found.append((f"disks[{index}].initializeParams.diskType", params.get("diskType", "")))
    for index, row in enumerate(properties.get("guestAccelerators") or []):
        field = f"guestAccelerators[{index}].acceleratorType"
        found.append((field, row.get("acceleratorType", "")))
    for index, policy in enumerate(properties.get("resourcePolicies") or []):
        found.append((f"resourcePolicies[{index}]", policy))
    return [(field, value) for field, value in found if value]


def check_types_are_links(body: dict) -> None:
    """Raise the refusal of bare names of types and policies, which the insert of an instance does not take."""
    for field, value in types_in(body):
        if "/" not in value:
            raise invalid(f"resource.{field}", value, "The URL is malformed.")


def check_types_are_names(where: str, properties: dict) -> None:
    """Raise the refusal of links to types and policies, which no template and no bulk insert takes."""
    for field, value in types_in(properties):
        if "/" in value:
            raise invalid(f"{where}.{field}", value, "Must be the name of a type, not its URL.")


def check_labels(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > 64:
        raise invalid("resource.labels", "", "At most 64 labels are allowed.")
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key):
            why = (
                "The only allowed characters are lowercase letters, numbers, dashes and underscores; "
                "it must start with a lowercase letter and have at most 63 characters."
            )
            raise invalid("resource.labels", key, f"Label key violates format constraints. {why}")
        if not LABEL_VALUE.fullmatch(value):
            why = (
                "Label value violates format constraints. The value can only contain lowercase letters, "
                "numeric characters, underscores and dashes. The value can be at most 63 characters long."
            )
            raise invalid("resource.labels", value, why)
    return labels


def check_metadata(metadata: dict) -> dict:
    """Return a Metadata resource with its fingerprint."""
    items = metadata.get("items", [])
    keys = [item.get("key", "") for item in items]
    for item in items:
        key, value = item.get("key", ""), item.get("value", "")
        if not METADATA_KEY.fullmatch(key):
            why = f"Must be a match of regex '{METADATA_KEY.pattern}'"
            raise invalid("resource.metadata.items.key", key, why)
        if keys.count(key) > 1:
            raise ApiError(400, "invalid", f"Metadata has duplicate key: {key}")
        if len(value.encode()) > MAX_METADATA_VALUE:
            message = f"Value for field 'resource.metadata.items[{keys.index(key)}].value' is too large: maximum size"
            raise ApiError(
                413,
                "fieldSizeTooLarge",
                f"{message} {MAX_METADATA_VALUE} character(s); actual size {len(value)}.",
            )
    if (
        sum(len(item.get("key", "")) + len(item.get("value", "").encode()) for item in items)
        > MAX_METADATA
    ):
        raise ApiError(413, "fieldSizeTooLarge", "Total size of metadata exceeds 524288 bytes.")
    kept = [{"key": item["key"], "value": item.get("value", "")} for item in items]
    shape: dict[str, Any] = {"kind": "compute#metadata", "fingerprint": fingerprint(kept)}
    return {**shape, "items": kept} if kept else shape


def check_fingerprint(sent: str | None, current: str) -> None:
    if sent != current:
        message = "Supplied fingerprint does not match current metadata fingerprint."
        raise ApiError(412, "conditionNotMet", message)

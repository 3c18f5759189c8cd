"""Guest attributes: what a machine writes by its metadata server, and users with the permission read by the API.

Only the machine can write them, so that host keys in the namespace `hostkeys` are its own.
They are there with enable-guest-attributes=TRUE in the metadata of the machine or the project.
https://docs.cloud.google.com/compute/docs/metadata/manage-guest-attributes

Not covered: an organisation's policy against them.
"""

import re
import time
from collections import deque
from typing import Any

from localcloud.call import Call
from localcloud.compute.checks import LINK
from localcloud.compute.state import Compute, Instance
from localcloud.errors import ApiError
from localcloud.machines.agent import is_true

PATH = "instance/guest-attributes/"
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
MOST_BYTES = 256 << 10
A_MINUTE, A_SECOND = 10, 3  # requests of a machine that write
WHY = {
    400: "A guest attribute has a namespace and a key",
    403: "Guest attributes are not enabled for this machine",
    413: "The value is too large",
    429: "Too many guest attributes are written",
}


def is_enabled(compute: Compute, instance: Instance) -> bool:
    """Return whether a machine may write guest attributes: its own metadata count first."""
    key = "enable-guest-attributes"
    known = instance.metadata(compute.common_metadata(instance.project))
    return is_true(known.get(key, ""))


def readable(compute: Compute, instance: Instance) -> dict[str, dict[str, str]]:
    return instance.guest_attributes if is_enabled(compute, instance) else {}


def write(compute: Compute, instance: Instance, path: str, value: bytes) -> int:
    """Write a value for its machine; return the status of the answer."""
    namespace, slash, key = path.removeprefix(PATH).partition("/")
    if not is_enabled(compute, instance):
        return 403
    if not slash or not NAME.fullmatch(namespace) or not NAME.fullmatch(key):
        return 400
    if not is_in_time(compute.guest_writes.setdefault(instance.id, deque())):
        return 429
    if len(value) > MOST_BYTES:
        return 413
    there = instance.guest_attributes.setdefault(namespace, {})
    there[key] = value.decode(errors="replace")
    compute.save(instance)
    return 200


def is_in_time(before: deque[float]) -> bool:
    """Count a request; return whether the machine made few enough lately."""
    now = time.monotonic()
    while before and before[0] < now - 60:
        before.popleft()
    if len(before) >= A_MINUTE or sum(each > now - 1 for each in before) >= A_SECOND:
        return False
    before.append(now)
    return True


async def get(compute: Compute, call: Call) -> dict[str, Any]:
    """Answer instances.getGuestAttributes: all, a namespace `NAME/`, or a key `NAME/KEY`."""
    instance = compute.get(call.params["project"], call.params["zone"], call.params["instance"])
    asked = call.params.get("queryPath", "")
    namespace, _, key = asked.partition("/")
    found = [
        {"namespace": each, "key": name, "value": value}
        for each, values in readable(compute, instance).items()
        for name, value in values.items()
        if (namespace or each) == each and (key or name) == name
    ]
    if not found:
        message = f"The resource '{asked}' of type 'Guest Attribute' was not found."
        raise ApiError(404, "notFound", message)
    return {
        "kind": "compute#guestAttributes",
        "selfLink": f"{LINK}{instance.path}/getGuestAttributes/{asked}",
        "queryPath": asked,
        "queryValue": {"items": found},
    }

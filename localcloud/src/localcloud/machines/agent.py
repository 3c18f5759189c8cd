"""The accounts daemon of Google's guest agent, as far as root goes: which keys of the metadata let
people in.

boot.sh asks for them and adds them to the other lines of root's authorized_keys, as
updateAuthorizedKeys of https://github.com/GoogleCloudPlatform/guest-agent does. Not covered: users
other than root, whom that one makes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from datetime import datetime

from localcloud.compute.state import Compute, Instance

WAIT = 50  # seconds that a question is kept open
EXPIRES = re.compile(r"google-ssh (\{.*\})\s*$")


def items(metadata: dict) -> dict[str, str]:
    return {item["key"]: item["value"] for item in metadata.get("items", [])}


def keys(compute: Compute, instance: Instance) -> list[str]:
    """Root's public keys: of the machine, and of the project unless the machine blocks those; none
    with OS Login.
    """
    own, common = instance.metadata(), items(compute.common_metadata(instance.project))
    if is_true(own.get("enable-oslogin", common.get("enable-oslogin", ""))):
        return []
    lines = own.get("ssh-keys", "").splitlines()
    if not is_true(own.get("block-project-ssh-keys", "")):
        lines += common.get("ssh-keys", "").splitlines()
    found = [
        key.strip()
        for user, _, key in (line.partition(":") for line in lines)
        if user.strip() == "root"
    ]
    return [key for key in found if key and not is_over(key)]


def is_true(value: str) -> bool:
    return value.lower() in ("true", "y", "yes", "1")


def is_over(key: str) -> bool:
    """Whether a key has expired, as gcloud's keys do."""
    found = EXPIRES.search(key)
    if not found:
        return False
    try:
        end = json.loads(found[1])["expireOn"].replace("+0000", "+00:00")
        return datetime.fromisoformat(end).timestamp() < time.time()
    except (ValueError, KeyError):
        return True


async def answer(compute: Compute, instance: Instance, known: str) -> str:
    """A tag, and below it the keys, one on each line; waits while the tag would be the one that is
    known.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + WAIT
    while (
        tag := hashlib.sha256("\n".join(there := keys(compute, instance)).encode()).hexdigest()[:16]
    ) == known:
        try:
            await asyncio.wait_for(compute.changed.wait(), min(end - loop.time(), WAIT))
        except asyncio.TimeoutError:
            break
    return "".join(f"{line}\n" for line in (tag, *there))

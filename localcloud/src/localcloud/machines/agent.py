"""The accounts daemon of Google's guest agent, as far as root goes: which keys of the metadata let
people in.

boot.sh asks for them and adds them to the other lines of root's authorized_keys, as
updateAuthorizedKeys of https://github.com/GoogleCloudPlatform/guest-agent does. Not covered: users
other than root, whom that one makes, OS Login, keys that expire.
"""

import asyncio
import hashlib

from localcloud.compute.state import Compute, Instance

WAIT = 50  # seconds that a question is kept open


def items(metadata: dict) -> dict[str, str]:
    return {item["key"]: item["value"] for item in metadata.get("items", [])}


def keys(compute: Compute, instance: Instance) -> list[str]:
    """Root's public keys: of the machine, and of the project."""
    common = items(compute.common_metadata(instance.project))
    lines = instance.metadata().get("ssh-keys", "").splitlines()
    lines += common.get("ssh-keys", "").splitlines()
    return [
        key.strip()
        for user, _, key in (line.partition(":") for line in lines)
        if user.strip() == "root" and key.strip()
    ]


def is_true(value: str) -> bool:
    return value.lower() in ("true", "y", "yes", "1")


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

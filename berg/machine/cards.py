"""Signatures of what the machines of a job write of themselves for each other.

Every machine's account may write below .berg/machines/, those of other jobs included, and what
stands there puts a key into authorized_keys and hosts into known_hosts. So each object is signed
with a key that the laptop made for this job alone: it lies in Secret Manager where the job has
secrets, or its person an account of their own; in a Secret of Kubernetes' for pods; else in the
machines' metadata.

This keeps out whoever writes to the bucket and no more. It does not keep out who may read the key:
the job's own root; people and machines that may list instances, while it lies in the metadata;
machines of the same account, while it lies in Secret Manager. An object that was signed once may be
written again: who saw a newer one ignores it (cluster.py), a machine that just came may not. It may
be deleted: a stranger may end a job so, but not log in to it.
"""

import hashlib
import hmac
import ipaddress
import json
import re
from dataclasses import asdict
from typing import Any

from berg import gate

SIGNATURE = "signature"
PUBLIC_KEY = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [\w.@-]*)?")


def signature(key: str, *parts: Any) -> str:
    """Return the signature of values that JSON has."""
    text = json.dumps(parts, sort_keys=True)
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def signed(key: str, where: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return values with a signature that holds for the object `where` alone."""
    return {**values, SIGNATURE: signature(key, where, values)}


def is_signed(key: str, where: str, values: dict[str, Any] | None) -> bool:
    """Whether the values of the object `where` were signed with this key."""
    unsigned = dict(values or {})
    found = unsigned.pop(SIGNATURE, "")
    expected = signature(key, where, unsigned)
    return (
        bool(key)
        and isinstance(found, str)
        and hmac.compare_digest(found.encode(), expected.encode())
    )


def write(key: str, where: str, node: Any) -> str:
    """Return a node as JSON that the other machines believe."""
    return json.dumps(signed(key, where, asdict(node)))


def read(key: str, where: str, data: bytes, kind: type[Any]) -> Any:
    """Return the node in `data`; raise ValueError unless it is signed and nothing in it is odd."""
    values = gate.values(data)
    if not is_signed(key, where, values):
        raise ValueError("it is not signed by a machine of this job")
    node = gate.build(kind, values)
    gate.check_plain(node, free=())
    for address in (node.internal_ip, node.external_ip):
        if address:
            ipaddress.ip_address(address)
    for public_key in (*node.host_keys, node.node_key):
        if public_key and not PUBLIC_KEY.fullmatch(public_key):
            raise ValueError(f"{public_key[:40]!r} is no public key")
    return node

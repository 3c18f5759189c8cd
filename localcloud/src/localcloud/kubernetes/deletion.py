"""What the deletion of an object means for it and for what it owns: decided here, done by the plane.

Deleting follows Kubernetes: an object with finalizers only begins to go; what an object owns goes
with it, unless it is orphaned.
"""

from __future__ import annotations

from dataclasses import dataclass

OF_POLICIES = ("foregroundDeletion", "orphan")  # finalizers that the propagation policies set


@dataclass(frozen=True)
class Deletion:
    """What follows when an object is deleted."""

    finalizers: list[str]  # what the object waits for; none: it goes at once
    orphans: list[tuple[str, dict]]  # (kind, object) of those that lose their owner and stay
    deletes: list[tuple[str, dict]]  # of those that go with it
    policy: str  # by which they go


def decide(plural: str, thing: dict, owned: list[tuple[str, dict]], policy: str) -> Deletion:
    """Return what the deletion of `thing`, which owns `owned`, does by a propagation policy."""
    kept = [each for each in thing["metadata"].get("finalizers") or [] if each not in OF_POLICIES]
    if policy == "Orphan":
        return Deletion(kept, owned, [], "Background")
    if policy == "Foreground":
        waits = any(blocks(each) for _, each in owned)
        further = "Foreground"
    else:
        waits = False
        further = "Background"
    if waits or (plural == "namespaces" and owned):
        kept = [*kept, "foregroundDeletion"]
    return Deletion(kept, [], owned, further)


def blocks(thing: dict) -> bool:
    """Whether the owner of an object is to wait until the object is gone."""
    references = thing["metadata"].get("ownerReferences") or []
    return any(row.get("blockOwnerDeletion") for row in references)

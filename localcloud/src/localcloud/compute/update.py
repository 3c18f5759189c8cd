"""instances.update: a whole instance as it was read, with what is to change in it.

Not covered: changes other than those in CHANGES, and the restart of a machine that runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from localcloud.call import Call
from localcloud.compute import checks, constraints
from localcloud.compute.checks import invalid, missing
from localcloud.compute.fields import check_tags
from localcloud.compute.make import retype
from localcloud.compute.state import Compute, Instance
from localcloud.errors import ApiError

# What Google itself sets or changes with each request.
SET = {"id", "kind", "creationTimestamp", "selfLink", "status", "statusMessage", "cpuPlatform"}
SET |= {"fingerprint", "labelFingerprint", "lastStartTimestamp", "lastStopTimestamp"}
SET |= {
    "startRestricted",
    "satisfiesPzi",
    "satisfiesPzs",
    "resourceStatus",
    "lastSuspendedTimestamp",
}


async def update_instance(compute: Compute, call: Call) -> dict:
    params, body = call.params, call.body or {}
    instance = compute.get(params["project"], params["zone"], params["instance"])
    current = instance.resource
    if body.get("name", instance.name) != instance.name:
        raise invalid("resource.name", body["name"], "The name of an instance cannot be changed.")
    if body.get("fingerprint") != current["fingerprint"]:
        message = "Supplied fingerprint does not match current instance fingerprint."
        raise ApiError(412, "conditionNotMet", message)
    written = checks.written({"$ref": "Instance"}, body)
    was = checks.written({"$ref": "Instance"}, current)
    changed = [key for key in {**was, **written} if key not in SET and differs(key, was, written)]
    for key in changed:
        if key not in CHANGES:
            raise missing(f"resource.{key} in an update")
    if "machineType" in changed:
        check_action(instance, params)
    for key in changed:
        CHANGES[key](compute, instance, written.get(key))
    current["fingerprint"] = checks.fingerprint([current["fingerprint"], *changed])
    compute.save(instance)
    row = compute.operation_on(
        instance, "update", call.principal, clientOperationId=params.get("requestId")
    )
    return compute.finish(row)


def differs(key: str, was: dict, written: dict) -> bool:
    """Whether a field is to be another one; types count by their names."""
    if key == "machineType":
        return checks.last(was[key]) != checks.last(written.get(key, ""))
    empty: tuple[Any, ...] = (None, "", [], {}, False)
    old, new = was.get(key), written.get(key)
    return old != new and not (old in empty and new in empty)


def check_action(instance: Instance, params: dict) -> None:
    """Raise the refusal of a change that needs a restart which is not allowed, or not done here."""
    if instance.resource["status"] == "TERMINATED":
        return
    allowed = params.get("mostDisruptiveAllowedAction", "RESTART")
    if allowed != "RESTART":
        why = f"The update requires the action RESTART, and at most {allowed} is allowed."
        raise ApiError(400, "invalid", why)
    raise missing("instances.update with a restart of the instance")


def set_type(compute: Compute, instance: Instance, link: Any) -> None:
    if "/" not in (link or ""):
        raise invalid("resource.machineType", link or "", "The URL is malformed.")
    retype(compute, instance, link)


def set_labels(compute: Compute, instance: Instance, labels: Any) -> None:
    labels = checks.check_labels(labels or {})
    instance.resource.update(labels=labels, labelFingerprint=checks.fingerprint(labels))


def set_metadata(compute: Compute, instance: Instance, metadata: Any) -> None:
    items = (metadata or {}).get("items") or []
    current = instance.resource["metadata"]["fingerprint"]
    checks.check_fingerprint((metadata or {}).get("fingerprint"), current)
    constraints.check_metadata(compute, instance.project, items)
    instance.resource["metadata"] = checks.check_metadata({"items": items})


def set_tags(compute: Compute, instance: Instance, tags: Any) -> None:
    items = (tags or {}).get("items") or []
    check_tags("resource.tags.items", items)
    new = {"fingerprint": checks.fingerprint(items), **({"items": items} if items else {})}
    instance.resource["tags"] = new


def set_protection(compute: Compute, instance: Instance, value: Any) -> None:
    instance.resource["deletionProtection"] = bool(value)


CHANGES: dict[str, Callable[[Compute, Instance, Any], None]] = {
    "machineType": set_type,
    "labels": set_labels,
    "metadata": set_metadata,
    "tags": set_tags,
    "deletionProtection": set_protection,
}
HANDLERS = {"instances.update": update_instance}

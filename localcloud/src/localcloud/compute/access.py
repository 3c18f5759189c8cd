"""External addresses of machines that are there: instances.addAccessConfig and deleteAccessConfig.

A machine of the embedded cloud has one address. An address added later differs from it only if it is
a reserved one: the resource shows it, but nothing listens there.

Not covered: updateAccessConfig, IPv6.
"""

from __future__ import annotations

from localcloud.call import Call
from localcloud.compute import catalog, constraints, quotas
from localcloud.compute.checks import fingerprint, invalid
from localcloud.compute.interfaces import access_config, check_access, external_address
from localcloud.compute.state import Compute, Instance
from localcloud.errors import ApiError

METRIC = "IN_USE_ADDRESSES"


async def add(compute: Compute, call: Call) -> dict:
    """Give a machine without an external address one: a reserved one, or any."""
    instance, given = instance_of(compute, call), call.body or {}
    interface = interface_of(instance, call.params["networkInterface"])
    check_access("resource", given)
    if interface.get("accessConfigs"):
        message = "At most one access config currently supported."
        raise ApiError(400, "badRequest", message)
    constraints.check_address(compute, instance.project, instance.path)
    region, wanted = catalog.ZONES[instance.zone], given.get("natIP")
    address = instance.address
    if wanted:
        where = "resource.natIP"
        address = external_address(compute, instance.project, region, wanted, where)
    error = quotas.quota_error(compute, instance.project, region, {METRIC: 1})
    if not error:
        config = access_config(given, address)
        if not wanted and instance.resource["status"] == "TERMINATED":
            del config["natIP"]  # it gets one when it starts
        interface["accessConfigs"] = [config]
        instance.needs[METRIC] = 1
        settle(compute, instance, interface)
    return done(compute, call, instance, "addAccessConfig", error)


async def delete(compute: Compute, call: Call) -> dict:
    """Take a machine's external address away; a reserved one stays the project's."""
    instance, name = instance_of(compute, call), call.params["accessConfig"]
    interface = interface_of(instance, call.params["networkInterface"])
    kept = [row for row in interface.get("accessConfigs", []) if row["name"] != name]
    if len(kept) == len(interface.get("accessConfigs", [])):
        why = f"Access config not found on network interface '{interface['name']}'."
        raise invalid("accessConfig", name, why)
    del interface["accessConfigs"]
    instance.needs.pop(METRIC, None)
    settle(compute, instance, interface)
    return done(compute, call, instance, "deleteAccessConfig")


def instance_of(compute: Compute, call: Call) -> Instance:
    return compute.get(call.params["project"], call.params["zone"], call.params["instance"])


def interface_of(instance: Instance, name: str) -> dict:
    for row in instance.resource["networkInterfaces"]:
        if row["name"] == name:
            found: dict = row
            return found
    raise invalid("networkInterface", name, "The specified network interface does not exist.")


def settle(compute: Compute, instance: Instance, interface: dict) -> None:
    interface["fingerprint"] = fingerprint([interface["networkIP"], interface.get("accessConfigs")])
    compute.save(instance)


def done(
    compute: Compute, call: Call, instance: Instance, kind: str, error: dict | None = None
) -> dict:
    request_id = call.params.get("requestId")
    row = compute.operation_on(instance, kind, call.principal, clientOperationId=request_id)
    return compute.finish(row, error)


HANDLERS = {"instances.addAccessConfig": add, "instances.deleteAccessConfig": delete}

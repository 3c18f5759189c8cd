"""The way out of the network `default` for machines without an external address: Private Google Access.

Machines here share the host's network, so that such a machine reaches the internet all the same. Google's APIs
answer it only where they would on Google. Not covered: Cloud NAT.
"""

from __future__ import annotations

from localcloud.call import Call
from localcloud.compute import networks
from localcloud.compute.checks import (
    LINK,
    not_found,
)
from localcloud.compute.state import Compute, Instance
from localcloud.compute.templates import change


def reaches_google(compute: Compute, instance: Instance) -> bool:
    """Whether a machine's requests to Google's APIs arrive: by its address, or Private Google Access."""
    first = instance.resource["networkInterfaces"][0]
    subnetwork = networks.subnetwork_at(compute, first["subnetwork"]) or {}
    return bool(first.get("accessConfigs") or subnetwork.get("privateIpGoogleAccess"))


async def set_private_access(compute: Compute, call: Call) -> dict:
    project, region, name = (call.params[key] for key in ("project", "region", "subnetwork"))
    path = f"projects/{project}/regions/{region}/subnetworks/{name}"
    row, there = (
        networks.subnetwork_at(compute, LINK + path),
        networks.private_access(compute, project),
    )
    if row is None:
        raise not_found(path)
    wanted = bool((call.body or {}).get("privateIpGoogleAccess"))

    def work() -> None:
        if name == "default":
            there[:] = sorted({*there, region} if wanted else {*there} - {region})
        row["privateIpGoogleAccess"] = wanted
        compute.save_project(project)

    return change(compute, call, "setPrivateIpGoogleAccess", path, "0", work)

"""The network interfaces of an instance, checked, and as Google writes them back.

The first one's address, internal and external, is the machine's loopback address, whatever its
subnetwork's range. The others have addresses of their subnetworks' ranges, and no external ones.

Not covered: IPv6, alias ranges, chosen and external addresses of interfaces after the first, how
many interfaces a machine type of few vCPUs takes.
"""

import itertools
from typing import Any

from localcloud.compute import catalog, networks
from localcloud.compute.checks import fingerprint, invalid, served
from localcloud.compute.fields import honoured
from localcloud.compute.networks import Place
from localcloud.compute.state import Compute
from localcloud.errors import ApiError, unserved

INTERFACE = (
    "kind",
    "name",
    "network",
    "subnetwork",
    "accessConfigs",
    "nicType",
)
ACCESS = ("kind", "type", "name", "networkTier")
MOST = 10


def network_interfaces(
    compute: Compute, project: str, zone: str, kind: catalog.MachineType, body: dict
) -> list[dict]:
    """The interfaces of an instance. Those after the first get their addresses when it is made."""
    given, field = body.get("networkInterfaces") or [], "resource.networkInterfaces"
    region = catalog.ZONES[zone]
    if not 1 <= len(given) <= MOST:
        raise invalid(field, "", f"1 to {MOST} network interfaces are allowed.")
    places = []
    for index, each in enumerate(given):
        check_interface(f"{field}[{index}]", each)
        places.append(networks.find(compute, project, region, each, f"{field}[{index}]"))
    check_distinct(field, places)
    for index, (each, place) in enumerate(zip(given, places, strict=True)):
        check_profile(f"{field}[{index}]", zone, kind, each, place)
        if index:
            served(f"{field}[{index}].accessConfigs", each.get("accessConfigs") or [], [])
    if sum(bool(place.zone) for place in places) > networks.RDMA.get(kind.name, 0):
        most = networks.RDMA[kind.name]
        raise invalid(field, "", f"{kind.name} supports at most {most} interfaces of type MRDMA.")
    address = compute.new_address()
    made = []
    for index, (each, place) in enumerate(zip(given, places, strict=True)):
        interface: dict[str, Any] = {
            "kind": "compute#networkInterface",
            "name": f"nic{index}",
            "network": place.network["selfLink"],
            "subnetwork": place.subnetwork["selfLink"],
            "stackType": "IPV4_ONLY",
        }
        usual = "GVNIC" if kind.name.startswith(catalog.GVNIC_ONLY) else ""
        if nic_type := each.get("nicType") or usual:
            interface["nicType"] = nic_type
        made.append(interface)
    made[0].update(networkIP=address, fingerprint=fingerprint(address))
    for access in given[0].get("accessConfigs") or []:
        made[0]["accessConfigs"] = [access_config(access, address)]
    return made


def check_distinct(field: str, places: list[Place]) -> None:
    links = [place.subnetwork["selfLink"] for place in places]
    for index, link in enumerate(links):
        if link in links[:index]:
            why = "Subnetworks must be distinct for NICs attached to a VM."
            raise invalid(f"{field}[{index}].subnetwork", link, why)
    for one, other in itertools.combinations(places, 2):
        if one.range.overlaps(other.range):
            why = f"Its range overlaps with that of '{one.subnetwork['selfLink']}'."
            raise invalid(f"{field}.subnetwork", other.subnetwork["selfLink"], why)


def check_profile(
    field: str, zone: str, kind: catalog.MachineType, given: dict, place: Place
) -> None:
    """Refuse what a network with an RDMA profile does not take, and RDMA elsewhere."""
    nic_type, is_rdma = given.get("nicType", ""), given.get("nicType") == "MRDMA"
    if place.zone and place.zone != zone:
        message = f"Network profile only allows resource creation in location {place.zone}."
        raise ApiError(400, "invalid", message)
    if is_rdma != bool(place.zone):
        why = f"The network '{place.network['name']}' takes {'MRDMA only' if place.zone else 'no MRDMA'}."
        raise invalid(f"{field}.nicType", nic_type, why)
    if is_rdma and kind.name not in networks.RDMA:
        raise invalid(f"{field}.nicType", nic_type, f"{kind.name} does not support MRDMA.")
    if place.zone and given.get("accessConfigs"):
        why = "The network profile does not allow external IP addresses."
        raise invalid(f"{field}.accessConfigs", "", why)


def access_config(given: dict, address: str) -> dict[str, Any]:
    """An access config as Google writes it, with the external address that it gives."""
    return {
        "kind": "compute#accessConfig",
        "type": "ONE_TO_ONE_NAT",
        "name": given.get("name", "external-nat"),
        "natIP": address,
        "networkTier": given.get("networkTier", "PREMIUM"),
    }


def check_interface(field: str, given: dict) -> None:
    honoured(field, given, INTERFACE)
    served(f"{field}.nicType", given.get("nicType"), None, "GVNIC", "MRDMA")
    configs = given.get("accessConfigs") or []
    unserved(len(configs) > 1, "interfaces with several access configs")
    for config in configs:
        honoured(f"{field}.accessConfigs[0]", config, ACCESS)

"""Networks and subnetworks of a project, and what links to them mean.

Each project has the network `default`, with a subnetwork `default` in each region, and those that
are made by networks_api.py, with subnetworks of their own. In each zone that sells machines with
RDMA there is a network profile, whose networks are for those machines' RDMA interfaces.

Not covered: networks of other projects (Shared VPC), Cloud NAT.
"""

import ipaddress
import re
from dataclasses import dataclass

from localcloud.compute import catalog
from localcloud.compute.checks import LINK, fingerprint, invalid, last, number_of
from localcloud.compute.state import Compute, Instance
from localcloud.errors import ApiError

Rows = list[tuple[str, dict]]
BEGINNING = r"(?:https?://[^/]+/compute/[^/]+/)?(?:projects/(?P<project>[^/]+)/)?"
FORMS = {
    "network": re.compile(BEGINNING + r"global/(?P<region>)networks/(?P<name>[^/]+)"),
    "subnetwork": re.compile(BEGINNING + r"regions/(?P<region>[^/]+)/subnetworks/(?P<name>[^/]+)"),
}
NOT_FOUND = "The referenced network resource cannot be found."
SINCE = "1969-12-31T16:00:00.000-08:00"  # what Google writes for things that always were
RDMA = {"a3-ultragpu-8g": 8, "a4-highgpu-8g": 8}  # machine type -> its RDMA interfaces
MTU, RDMA_MTU = 1460, 8896
OPEN = "private_google_access"  # key of the regions whose subnetwork `default` has it
# Of the features of a profile for RDMA over Ethernet those that requests here can run into.
FEATURES = {
    "allowAliasIpRanges": "ALIAS_IP_RANGES_BLOCKED",
    "allowAutoModeSubnet": "AUTO_MODE_SUBNET_BLOCKED",
    "allowCloudNat": "CLOUD_NAT_BLOCKED",
    "allowCloudRouter": "CLOUD_ROUTER_BLOCKED",
    "allowDefaultNicAttachment": "DEFAULT_NIC_ATTACHMENT_BLOCKED",
    "allowExternalIpAccess": "EXTERNAL_IP_ACCESS_BLOCKED",
    "allowMultiNicInSameNetwork": "MULTI_NIC_IN_SAME_NETWORK_ALLOWED",
    "allowMultiNicInSameSubnetwork": "MULTI_NIC_IN_SAME_SUBNETWORK_BLOCKED",
    "allowVpcFirewallRules": "VPC_FIREWALL_RULES_BLOCKED",
    "interfaceTypes": ["MRDMA"],
    "subnetStackTypes": ["SUBNET_STACK_TYPE_IPV4_ONLY"],
}


@dataclass(frozen=True)
class Place:
    """Where an interface is."""

    network: dict
    subnetwork: dict

    @property
    def zone(self) -> str:
        """The zone of the network's profile; "" for an ordinary network."""
        return zone_of(self.network)

    @property
    def range(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(self.subnetwork["ipCidrRange"])


# --- what there is


def profiles(compute: Compute, project: str) -> Rows:
    rows = []
    for zone in catalog.ZONES:
        if not any(catalog.machine_type(zone, name) for name in RDMA):
            continue
        path = f"projects/{project}/global/networkProfiles/{zone}-vpc-roce"
        row = {
            "kind": "compute#networkProfile",
            "id": number_of(path),
            "name": last(path),
            "creationTimestamp": SINCE,
            "selfLink": LINK + path,
            "location": {"name": zone, "scope": "ZONE"},
            "profileType": {"networkType": "RDMA", "rdmaSubtype": "ROCE"},
            "features": FEATURES,
        }
        rows.append(("global", row))
    return rows


def zone_of(network: dict) -> str:
    """The zone of a network's profile; "" for an ordinary network."""
    return last(network.get("networkProfile", "")).removesuffix("-vpc-roce")


def networks(compute: Compute, project: str) -> Rows:
    links: dict[str, list[str]] = {}
    for _, row in subnetworks(compute, project):
        links.setdefault(row["network"], []).append(row["selfLink"])
    path = f"projects/{project}/global/networks/default"
    default = {
        "kind": "compute#network",
        "id": number_of(path),
        "name": "default",
        "creationTimestamp": SINCE,
        "selfLink": LINK + path,
        "description": "Default network for the project",
        "autoCreateSubnetworks": True,
        "mtu": MTU,
        "routingConfig": {"routingMode": "REGIONAL"},
    }
    rows = [default, *compute.kept(project, "networks")]
    return [
        ("global", {**row, "subnetworks": links[row["selfLink"]]})
        if row["selfLink"] in links
        else ("global", row)
        for row in rows
    ]


def subnetworks(compute: Compute, project: str) -> Rows:
    base = f"projects/{project}"
    rows = []
    for region in catalog.REGIONS:
        path = f"{base}/regions/{region}/subnetworks/default"
        row = {
            "kind": "compute#subnetwork",
            "id": number_of(path),
            "name": "default",
            "creationTimestamp": SINCE,
            "selfLink": LINK + path,
            "network": f"{LINK}{base}/global/networks/default",
            # Machines have loopback addresses: this is the range they are drawn from.
            "ipCidrRange": "127.64.0.0/10",
            "gatewayAddress": "127.64.0.1",
            "region": f"{LINK}{base}/regions/{region}",
            "stackType": "IPV4_ONLY",
            "purpose": "PRIVATE",
            "privateIpGoogleAccess": region in compute.kept(project, OPEN),
        }
        rows.append((region, row))
    made = compute.kept(project, "subnetworks")
    return rows + [(last(row["region"]), row) for row in made]


def row_at(compute: Compute, link: str) -> dict | None:
    """The network or subnetwork of a full link."""
    kind = networks if "/networks/" in link else subnetworks
    found = kind(compute, link.removeprefix(LINK).split("/")[1])
    return next((row for _, row in found if row["selfLink"] == link), None)


def reaches_google(compute: Compute, instance: Instance) -> bool:
    """Whether a machine's requests to Google's APIs arrive: by its address, or Private Google Access.

    Machines here share the host's network: one without an external address reaches all else on the
    internet.
    """
    first = instance.resource["networkInterfaces"][0]
    subnetwork = row_at(compute, first["subnetwork"]) or {}
    return bool(first.get("accessConfigs") or subnetwork.get("privateIpGoogleAccess"))


# --- where an interface is


def find(compute: Compute, project: str, region: str, given: dict, field: str) -> Place:
    """Return where an interface in a project and a region is."""
    links = {}
    for which in FORMS:
        link = given.get(which) or ""
        if not link:
            continue
        found = FORMS[which].fullmatch(link)
        if found is None:
            raise invalid(f"{field}.{which}", link, "The URL is malformed.")
        owner = found["project"] or project
        if which == "subnetwork" and found["region"] != region:
            why = f"The subnetwork must be in the region of the instance, {region}."
            raise invalid(f"{field}.subnetwork", link, why)
        scope = "global" if which == "network" else f"regions/{region}"
        links[which] = f"{LINK}projects/{owner}/{scope}/{which}s/{found['name']}"
        if owner != project or row_at(compute, links[which]) is None:
            raise invalid(f"{field}.{which}", links[which], NOT_FOUND)
        check_ready(compute, links[which])
    default = f"{LINK}projects/{project}/global/networks/default"
    wanted = links.get("network") or ("" if "subnetwork" in links else default)
    if "subnetwork" not in links:
        if last(wanted) != "default":
            message = (
                "Network interface must specify a subnet if the network resource is in custom "
                "subnet mode."
            )
            raise ApiError(400, "invalid", f"Invalid value for field '{field}': ''. {message}")
        base = wanted.removesuffix("/global/networks/default")
        links["subnetwork"] = f"{base}/regions/{region}/subnetworks/default"
    subnetwork = row_at(compute, links["subnetwork"])
    assert subnetwork is not None
    if wanted and subnetwork["network"] != wanted:
        why = "The subnetwork is not one of the network's."
        raise invalid(f"{field}.subnetwork", given["subnetwork"], why)
    network = row_at(compute, subnetwork["network"])
    assert network is not None
    return Place(network, subnetwork)


def check_ready(compute: Compute, link: str) -> None:
    """Refuse what is still being made."""
    if link in compute.unready:
        why = f"The resource '{link.removeprefix(LINK)}' is not ready"
        raise ApiError(400, "resourceNotReady", why)


# --- addresses


def give_addresses(compute: Compute, instance: Instance) -> dict | None:
    """Give the interfaces of a new instance after the first addresses of their subnetworks; return
    the operation error if one has none left.
    """
    used = {
        each["networkIP"]
        for other in compute.instances.values()
        for each in other.resource["networkInterfaces"]
    }
    for interface in instance.resource["networkInterfaces"][1:]:
        subnetwork = row_at(compute, interface["subnetwork"])
        hosts = list(ipaddress.IPv4Network(subnetwork["ipCidrRange"]).hosts()) if subnetwork else []
        # The first is the gateway's. No two networks here share addresses, because all machines
        # share this computer.
        free = next((str(each) for each in hosts[1:] if str(each) not in used), None)
        if free is None:
            path = interface["subnetwork"].removeprefix(LINK)
            message = f"IP space of '{path}' is exhausted."
            return {"code": "IP_SPACE_EXHAUSTED", "message": message}
        interface.update(networkIP=free, fingerprint=fingerprint(free))
    return None


def mac_of(address: str) -> str:
    """The hardware address of an interface, which on Google follows from its internal address."""
    return "42:01:" + ipaddress.IPv4Address(address).packed.hex(":")

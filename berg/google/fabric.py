"""What the machines of a job talk over: one network interface each, or RoCE as well, by which the
GPUs of a3-ultragpu-8g and a4-highgpu-8g reach those of other machines without the CPUs.

RoCE takes networks of its own, which cost nothing and stay for the next job:

    berg-fast       of the project, with a subnetwork in each region: the machines' second interface
    berg-roce-ZONE  of a zone, with eight subnetworks: one for each GPU's interface

They are made in a zone when the first job comes there. Each job has a placement policy of its own,
so that Google puts its machines close to each other; it goes with the job.

Source: https://docs.cloud.google.com/ai-hypercomputer/docs/create/create-vm. Not covered: the
fabrics of a3-highgpu-8g (TCPX) and a3-megagpu-8g (TCPXO), a4x, and networks of another project.
"""

import contextlib
import ipaddress
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from berg import BergError
from berg.config import Config
from berg.google import api, offers
from berg.google.prices import region_of
from berg.google.shapes import Shape
from berg.job import age_seconds
from berg.spec import TCP

FAST = "berg-fast"
ROCE = ("a3-ultragpu-8g", "a4-highgpu-8g")
RAILS = 8  # interfaces for RoCE, and their subnetworks
MTU = 8896  # bytes, the most
# Ranges for FAST and the zones' networks; the second pair if the machines' own subnetwork overlaps
# with the first.
RANGES = ("192.168.64.0/18", "192.168.128.0/18"), ("172.24.64.0/18", "172.24.128.0/18")
PER_REGION = 22  # length of the prefix of a region's subnetwork of FAST
PER_RAIL = 21
# Gbps between two machines over one interface, by GPU type and number of GPUs.
# https://docs.cloud.google.com/compute/docs/gpus/gpu-network-bandwidth
GBPS = {
    "a100": {1: 24, 2: 32, 4: 50, 8: 100, 16: 100},
    "a100-80gb": {1: 24, 2: 32, 4: 50, 8: 100},
    "h100": {1: 25, 2: 50, 4: 100},
    "h200": {8: 200},
    "b200": {8: 200},
    "l4": {1: 16, 2: 32, 4: 50, 8: 100},
    "rtx-pro-6000": {1: 50, 2: 100, 4: 200, 8: 400},
}
UNUSED = ("a3-highgpu-8g", "a3-megagpu-8g")  # have a fabric that Berg does not set up
# NCCL's plugin, and what it loads when it is opened: without that each rank fails with "internal
# error".
PACKAGES = ["nccl-gib", "libibverbs1", "ibverbs-providers"]
TIMEOUT = 120  # seconds for networks that another computer makes
YOUNG = 3600  # seconds for which a policy without machines is kept: they may be coming


class Made(NamedTuple):
    """One thing to make: the path to POST to, its body, and the same for gcloud."""

    path: str
    body: dict[str, Any]
    gcloud: str


def is_fast(machine_type: str, hosts: int, network: str) -> bool:
    """Return whether a job's machines talk over RoCE."""
    return machine_type in ROCE and hosts > 1 and network != TCP


def row(shape: Shape, hosts: int, network: str) -> list[tuple[str, str]]:
    """Return the row of a plan on what several machines with GPUs talk over."""
    if hosts == 1 or not shape.num_gpus:
        return []
    if is_fast(shape.machine_type, hosts, network):
        return [("Network", f"{RAILS} x RoCE, 3,200 Gbps between machines")]
    if shape.machine_type in UNUSED:
        most = "about 1/10 of what these machines can: Berg sets up RoCE, of h200 and b200"
        return [("Network", f"TCP over one interface, {most}")]
    gbps = GBPS.get(shape.gpu_type, {}).get(shape.num_gpus)
    known = f", {gbps} Gbps between machines" if gbps else ""
    return [("Network", f"one interface{known}")]


def network_of(zone: str) -> str:
    return f"berg-roce-{zone}"


# --- where there is RoCE


def zones_with(config: Config, zones: Collection[str]) -> list[str]:
    """Return which of the zones have RoCE, and have its network or room for it in the quota.

    Raise BergError if there is none.
    """
    with ThreadPoolExecutor(3) as pool:
        listed = pool.submit(lambda: list(api.items(config, "/global/networkProfiles")))
        made = pool.submit(networks, config)
        project = pool.submit(api.call, config, "GET", "", fields="quotas")
        places = [api.last_part(each["location"]["name"]) for each in listed.result()]
        names = {each["name"] for each in listed.result()}
        there, quotas = made.result(), project.result().get("quotas", [])
    sold = sorted(place for place in set(places) if profile_of(place) in names)
    here = [zone for zone in zones if zone in sold]
    if not here:
        raise BergError(
            f"Google has no network for RoCE in {', '.join(zones)}; it has them in "
            f"{', '.join(sold) or 'no zone'}. Choose one with --zone, or --network {TCP}"
        )
    return with_room(config, here, there, quotas)


def with_room(
    config: Config, zones: list[str], there: Collection[str], quotas: list[dict[str, Any]]
) -> list[str]:
    """Return which of the zones have their network, or room for it in the quota; raise BergError if
    there is none.
    """
    quota = next((each for each in quotas if each["metric"] == "NETWORKS"), None)
    needed = 1 + (FAST not in there)
    if quota is None or quota["limit"] - quota["usage"] >= needed:
        return zones
    if FAST in there and (found := [zone for zone in zones if network_of(zone) in there]):
        return found
    raise BergError(
        f"RoCE needs {needed} more of the quota NETWORKS, of which {quota['usage']:g} of "
        f"{quota['limit']:g} are in use. Ask for more: "
        f"https://console.cloud.google.com/iam-admin/quotas?project={config.project} "
        f"(or run with --network {TCP}, over one interface)"
    )


def profile_of(zone: str) -> str:
    return f"{zone}-vpc-roce"


def networks(config: Config) -> list[str]:
    """Return the names of Berg's networks."""
    names = [each["name"] for each in api.items(config, "/global/networks", fields="items(name)")]
    return [each for each in names if each == FAST or each.startswith(network_of(""))]


# --- what is made once


def make(config: Config, zone: str) -> None:
    """Make what is missing of the networks for a zone; raise BergError with what an owner can do.

    Several computers may do this at once.
    """
    region = region_of(zone)
    subnetwork = f"/regions/{region}/subnetworks"
    with ThreadPoolExecutor(RAILS + 2) as pool:
        wanted = [f"{subnetwork}/{FAST}", *(f"{subnetwork}/{rail(zone, n)}" for n in range(RAILS))]
        wanted.append(f"/global/firewalls/{FAST}")
        if all(pool.map(lambda path: is_there(config, path), wanted)):
            return
    try:
        if not api.wait_for(lambda: all_made(config, zone), 1, TIMEOUT):
            raise BergError(f"the networks for RoCE in {zone} are not ready yet. Try again later")
    except api.Forbidden as error:
        commands = "\n  ".join(each.gcloud for each in missing(config, zone))
        raise BergError(
            f"you may not make the networks for RoCE: {api.words(error)}. An owner of the project "
            f"can, once for {zone}: berg init --fast-network {zone}, or\n  {commands}\n"
            f"Or run with --network {TCP}, over one interface"
        ) from None


def is_there(config: Config, path: str) -> bool:
    """Return whether something is there. Who may not see it uses what an owner made: roles that
    create machines need not show firewalls.
    """
    try:
        return bool(api.find(config, path, fields="name"))
    except api.Forbidden:
        return True


def all_made(config: Config, zone: str) -> bool:
    """Make what is missing for a zone; return False if another computer was quicker with a part of
    it, which is not ready, or has the range of addresses.
    """
    for each in missing(config, zone):
        try:
            api.write(config, each.path, each.body)
        except api.Conflict:
            continue
        except api.BadRequest as error:
            if error.reason == "resourceNotReady" or "conflicts with existing" in error.message:
                return False
            raise BergError(f"{each.body['name']} cannot be made: {api.words(error)}") from None
    return True


def missing(config: Config, zone: str) -> list[Made]:
    """Return what there is to make for a zone, in this order; some of it may be there already."""
    region, name = region_of(zone), network_of(zone)
    fast, roce = ranges(config, region)
    profile = f"projects/{config.project}/global/networkProfiles/{profile_of(zone)}"
    rails = list(ipaddress.ip_network(roce).subnets(new_prefix=PER_RAIL))
    return [
        network(config, FAST),
        firewall(config, fast),
        subnetwork(config, FAST, FAST, region, free_range(config, region, fast)),
        network(config, name, profile),
        *(subnetwork(config, rail(zone, n), name, region, str(rails[n])) for n in range(RAILS)),
    ]


def rail(zone: str, number: int) -> str:
    return f"{network_of(zone)}-{number}"


def ranges(config: Config, region: str) -> tuple[str, str]:
    """Return ranges of addresses for FAST and a zone's network that do not overlap with that of the
    machines' own subnetwork in a region; one that may not be seen is not looked at.
    """
    owner, name = offers.network_of(config).project, offers.subnetwork_of(config, region)
    try:
        path = f"/regions/{region}/subnetworks/{name}"
        own = api.find(config, path, project=owner, fields="ipCidrRange").get("ipCidrRange")
    except api.Forbidden:
        own = None
    for fast, roce in RANGES:
        if own is None or not any(overlap(own, each) for each in (fast, roce)):
            return fast, roce
    return RANGES[0]


def overlap(one: str, other: str) -> bool:
    return ipaddress.ip_network(one).overlaps(ipaddress.ip_network(other))


def free_range(config: Config, region: str, fast: str) -> str:
    """Return the range of FAST's subnetwork in a region: its own, or the first that is free."""
    used: dict[str, str] = {}
    for page in api.pages(config, "/aggregated/subnetworks", filter=f'(name="{FAST}")'):
        for scope in page.get("items", {}).values():
            for each in scope.get("subnetworks", []):
                used[api.last_part(each["region"])] = each["ipCidrRange"]
    possible = map(str, ipaddress.ip_network(fast).subnets(new_prefix=PER_REGION))
    taken = [each for other, each in used.items() if other != region]
    return used.get(region) or next(
        each for each in possible if not any(overlap(each, other) for other in taken)
    )


def network(config: Config, name: str, profile: str = "") -> Made:
    body = {
        "name": name,
        "description": "RoCE between berg's machines",
        "autoCreateSubnetworks": False,
        "mtu": MTU,
        "routingConfig": {"routingMode": "REGIONAL"},
    }
    options = f"--subnet-mode=custom --mtu={MTU} --project={config.project}"
    if profile:
        body["networkProfile"] = profile
        options += f" --network-profile={api.last_part(profile)}"
    return Made("/global/networks", body, f"gcloud compute networks create {name} {options}")


def subnetwork(config: Config, name: str, of: str, region: str, addresses: str) -> Made:
    body = {
        "name": name,
        "network": f"projects/{config.project}/global/networks/{of}",
        "ipCidrRange": addresses,
    }
    options = f"--network={of} --region={region} --range={addresses} --project={config.project}"
    command = f"gcloud compute networks subnets create {name} {options}"
    return Made(f"/regions/{region}/subnetworks", body, command)


def firewall(config: Config, addresses: str) -> Made:
    """Let the machines of FAST reach each other; networks for RoCE allow that by themselves."""
    protocols = ("tcp", "udp", "icmp")
    body = {
        "name": FAST,
        "network": f"projects/{config.project}/global/networks/{FAST}",
        "direction": "INGRESS",
        "sourceRanges": [addresses],
        "allowed": [{"IPProtocol": each} for each in protocols],
    }
    options = f"--network={FAST} --allow={','.join(protocols)} --source-ranges={addresses}"
    command = f"gcloud compute firewall-rules create {FAST} {options} --project={config.project}"
    return Made("/global/firewalls", body, command)


def remove(config: Config, name: str) -> None:
    """Delete one of Berg's networks with its subnetworks and rules; raise BergError if in use."""
    ours = f'network eq ".*/{name}"'
    try:
        for each in api.items(config, "/global/firewalls", filter=ours):
            api.delete(config, f"/global/firewalls/{each['name']}", wait_for_it=True)
        for page in api.pages(config, "/aggregated/subnetworks", filter=ours):
            for scope in page.get("items", {}).values():
                for each in scope.get("subnetworks", []):
                    where = f"/regions/{api.last_part(each['region'])}/subnetworks"
                    api.delete(config, f"{where}/{each['name']}", wait_for_it=True)
        api.delete(config, f"/global/networks/{name}", wait_for_it=True)
    except api.BadRequest as error:
        raise BergError(f"the network {name} is in use: {api.words(error)}") from None


# --- the parts of a job's requests


def interfaces(config: Config, zone: str) -> list[dict[str, str]]:
    """Return the interfaces of a machine besides its first: the order is that of the recipe."""
    region = region_of(zone)

    def on(network: str, subnetwork: str, kind: str) -> dict[str, str]:
        path = f"projects/{config.project}/regions/{region}/subnetworks/{subnetwork}"
        whole = f"projects/{config.project}/global/networks/{network}"
        return {"network": whole, "subnetwork": path, "nicType": kind}

    rails = [on(network_of(zone), rail(zone, number), "MRDMA") for number in range(RAILS)]
    return [on(FAST, FAST, "GVNIC"), *rails]


def policy_of(zone: str, job: str, project: str) -> str:
    """Return the path of a job's placement policy for machines of a zone."""
    return f"projects/{project}/regions/{region_of(zone)}/resourcePolicies/{job}"


def make_policy(config: Config, path: str, description: str) -> None:
    """Make a placement policy, unless it is there: its machines are to be close to each other."""
    _, _, _, region, where, name = path.split("/")
    close = {"collocation": "COLLOCATED"}
    policy = {"name": name, "description": description, "groupPlacementPolicy": close}
    with contextlib.suppress(api.Conflict):
        api.write(config, f"/regions/{region}/{where}", policy)


def policies(config: Config, description: str) -> list[dict[str, Any]]:
    """Return the policies with a description, in the API's words."""
    ours = f'description="{description}"'
    return [
        each
        for page in api.pages(config, "/aggregated/resourcePolicies", filter=ours)
        for scope in page.get("items", {}).values()
        for each in scope.get("resourcePolicies", [])
    ]


def delete_policies(
    config: Config, description: str, job: str = "", groups: Collection[str] = ()
) -> None:
    """Delete the placement policies that no machine has: of `job`, and those that are old, but for
    those of `groups`, whose machines may be coming. Google refuses to delete one that is in use.
    """
    for each in policies(config, description):
        is_old = age_seconds(each["creationTimestamp"]) > YOUNG and each["name"] not in groups
        if "groupPlacementPolicy" in each and (is_old or each["name"] == job):
            path = f"/regions/{api.last_part(each['region'])}/resourcePolicies/{each['name']}"
            with contextlib.suppress(api.BadRequest):
                api.delete(config, path, wait_for_it=True)


def zone_of_each(zones: Iterable[str]) -> list[str]:
    """Return the first zone of each region: the machines of a group with RoCE are in one zone."""
    found: dict[str, str] = {}
    for zone in zones:
        found.setdefault(region_of(zone), zone)
    return list(found.values())

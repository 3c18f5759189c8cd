"""The network of the machines, which may be another project's (Shared VPC), its ways out for
machines without an external address, and the organisation policies about that.
"""

import re
from dataclasses import dataclass
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api, http
from berg.google.api import EXTERNAL, LOCATIONS, OS_LOGIN, SHIELDED

IAP = "35.235.240.0/20"  # where tunnels through Identity-Aware Proxy come from
BEGINNING = r"(?:https://[^/]+/compute/v1/)?projects/(?P<project>[^/]+)/"
NETWORK = re.compile(BEGINNING + "global/networks/(?P<name>[^/]+)")
SUBNETWORK = re.compile(BEGINNING + "regions/(?P<region>[^/]+)/subnetworks/(?P<name>[^/]+)")


@dataclass(frozen=True)
class Network:
    """A VPC network, and the project that owns it."""

    project: str
    name: str


def network_of(config: Config) -> Network:
    """Return the configured network; raise BergError if the setting is neither name nor path."""
    if "/" not in config.network:
        return Network(config.project, config.network)
    found = NETWORK.fullmatch(config.network)
    if not found:
        raise BergError(
            f"network {config.network!r} is neither a name nor a path such as "
            "projects/HOST/global/networks/NAME. Name it: berg config set network PATH"
        )
    return Network(found["project"], found["name"])


def subnetwork_of(config: Config, region: str) -> str:
    """Return the name of the subnetwork that machines of a region are on.

    Raises BergError if the setting is neither name nor path, or means another network or region.
    """
    setting, network = config.subnetwork, network_of(config)
    if "/" not in setting:
        return setting or network.name
    found = SUBNETWORK.fullmatch(setting)
    if not found:
        raise BergError(
            f"subnetwork {setting!r} is neither a name nor a path such as "
            "projects/HOST/regions/REGION/subnetworks/NAME. "
            "Name it: berg config set subnetwork PATH"
        )
    if found["project"] != network.project:
        raise BergError(
            f"the subnetwork {found['name']} is in the project {found['project']}, and the "
            f"network {network.name} in {network.project}. Name that project's network: "
            f"berg config set network projects/{found['project']}/global/networks/NAME"
        )
    if found["region"] != region:
        raise BergError(
            f"the subnetwork {found['name']} is in {found['region']}, not in {region}. Choose "
            f"zones there (--region {found['region']}), or, where each region has a subnetwork "
            f"of that name: berg config set subnetwork {found['name']}"
        )
    return found["name"]


def interface(config: Config, region: str) -> dict[str, str]:
    """Return the network of a machine in a region, as its interface names it."""
    network, subnetwork = network_of(config), subnetwork_of(config, region)
    path = f"regions/{region}/subnetworks/{subnetwork}"
    if network.project != config.project:
        host = f"projects/{network.project}"
        return {
            "network": f"{host}/global/networks/{network.name}",
            "subnetwork": f"{host}/{path}",
        }
    found = {"network": f"global/networks/{network.name}"}
    return {**found, "subnetwork": path} if config.subnetwork else found


@dataclass
class Ways:
    """How machines without an external address get out of a region; None: Google does not let one
    look.
    """

    region: str
    network: Network
    subnetwork: str
    to_google: bool | None  # to its APIs: Private Google Access, which Cloud NAT brings along
    to_internet: bool | None  # Cloud NAT

    def mend(self, to_internet: bool) -> str:
        """The commands that open a way."""
        where = f"--region {self.region} --project {self.network.project}"
        if not to_internet:
            return (
                f"gcloud compute networks subnets update {self.subnetwork} {where} "
                "--enable-private-ip-google-access"
            )
        router = f"gcloud compute routers create berg-nat {where} --network {self.network.name}"
        nat = f"gcloud compute routers nats create berg-nat --router berg-nat {where}"
        return f"{router} && {nat} --auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges"


def let_ssh_in(config: Config, port: int, tunnel: bool) -> str:
    """The command that opens a port: to the person's own address, or to where tunnels come from."""
    name, source = ("berg-iap", IAP) if tunnel else ("berg-ssh", "YOUR_ADDRESS/32")
    network = network_of(config)
    rule = (
        f"gcloud compute firewall-rules create {name} --project {network.project} --network "
        f"{network.name}"
    )
    return f"{rule} --allow tcp:{port} --source-ranges {source}"


def ways(config: Config, region: str) -> Ways:
    """What leads out of the configured subnetwork of a region; raises BergError if there is no such
    subnetwork.
    """
    network, name = network_of(config), subnetwork_of(config, region)
    private = nat = None
    try:
        found = api.call(
            config,
            "GET",
            f"/regions/{region}/subnetworks/{name}",
            project=network.project,
            fields="privateIpGoogleAccess",
        )
        private = found.get("privateIpGoogleAccess", False)
    except http.Forbidden:
        pass
    except http.NotFound:
        raise BergError(
            f"there is no subnetwork {name!r} in {region} of {network.project}. "
            "Name it: berg config set subnetwork NAME"
        ) from None
    try:
        routers = [
            row
            for page in api.pages(config, f"/regions/{region}/routers", project=network.project)
            for row in page.get("items", [])
        ]
        nat = any(
            row.get("nats")
            for row in routers
            if api.last_part(row.get("network", "")) == network.name
        )
    except http.Forbidden:
        pass
    return Ways(region, network, name, True if nat else private, nat)


def policy(config: Config, constraint: str) -> dict[str, Any]:
    """What is in force for the project; raises Forbidden where one may not ask."""
    base = config.service_url("cloudresourcemanager")
    url = f"{base}/v1/projects/{config.project}:getEffectiveOrgPolicy"
    return api.call(config, "POST", url, {"constraint": constraint})


def enforced(config: Config) -> dict[str, bool]:
    """Whether each of the policies is in force for the project."""
    external = policy(config, EXTERNAL).get("listPolicy", {})
    denied = external.get("allValues") == "DENY" or bool(external.get("allowedValues"))
    switches = {
        each: bool(policy(config, each).get("booleanPolicy", {}).get("enforced"))
        for each in (OS_LOGIN, SHIELDED)
    }
    return {EXTERNAL: denied, **switches}


def allowed_places(config: Config) -> list[str]:
    """Where the organisation allows resources, in its words, such as in:us-locations; [] for
    everywhere.
    """
    found: list[str] = policy(config, LOCATIONS).get("listPolicy", {}).get("allowedValues", [])
    return found

"""Ways out of a network for machines without an external address, and the organisation policies
about that.
"""

from dataclasses import dataclass

from berg import BergError
from berg.config import Config
from berg.google import api
from berg.google.api import EXTERNAL, OS_LOGIN

IAP = "35.235.240.0/20"  # where tunnels through Identity-Aware Proxy come from


@dataclass
class Ways:
    """How machines without an external address get out of a region; None: Google does not let one
    look.
    """

    region: str
    network: str
    subnetwork: str
    to_google: bool | None  # to its APIs: Private Google Access, which Cloud NAT brings along
    to_internet: bool | None  # Cloud NAT

    def mend(self, project: str, to_internet: bool) -> str:
        """The commands that open a way."""
        where = f"--region {self.region} --project {project}"
        if not to_internet:
            return (
                f"gcloud compute networks subnets update {self.subnetwork} {where} "
                "--enable-private-ip-google-access"
            )
        router = f"gcloud compute routers create berg-nat {where} --network {self.network}"
        nat = f"gcloud compute routers nats create berg-nat --router berg-nat {where}"
        return f"{router} && {nat} --auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges"


def let_ssh_in(config: Config, port: int, tunnel: bool) -> str:
    """The command that opens a port: to the person's own address, or to where tunnels come from."""
    name, source = ("berg-iap", IAP) if tunnel else ("berg-ssh", "YOUR_ADDRESS/32")
    rule = (
        f"gcloud compute firewall-rules create {name} --project {config.project} --network "
        f"{config.network}"
    )
    return f"{rule} --allow tcp:{port} --source-ranges {source}"


def ways(config: Config, region: str) -> Ways:
    """What leads out of the configured subnetwork of a region; raises BergError if there is no such
    subnetwork.
    """
    from google.api_core import exceptions

    name = config.subnetwork or config.network
    private = nat = None
    try:
        found = api.call(
            config, "GET", f"/regions/{region}/subnetworks/{name}", fields="privateIpGoogleAccess"
        )
        private = found.get("privateIpGoogleAccess", False)
    except exceptions.Forbidden:
        pass
    except exceptions.NotFound:
        raise BergError(
            f"there is no subnetwork {name!r} in {region}. Name it: berg config set subnetwork NAME"
        ) from None
    try:
        routers = [
            row
            for page in api.pages(config, f"/regions/{region}/routers")
            for row in page.get("items", [])
        ]
        nat = any(
            row.get("nats")
            for row in routers
            if api.last_part(row.get("network", "")) == config.network
        )
    except exceptions.Forbidden:
        pass
    return Ways(region, config.network, name, True if nat else private, nat)


def enforced(config: Config) -> dict[str, bool]:
    """Whether each of the policies is in force for the project; raises Forbidden where one may not
    ask.
    """
    base = config.service_url("cloudresourcemanager")
    url = f"{base}/v1/projects/{config.project}:getEffectiveOrgPolicy"
    external = api.call(config, "POST", url, {"constraint": EXTERNAL}).get("listPolicy", {})
    login = api.call(config, "POST", url, {"constraint": OS_LOGIN}).get("booleanPolicy", {})
    denied = external.get("allValues") == "DENY" or bool(external.get("allowedValues"))
    return {EXTERNAL: denied, OS_LOGIN: bool(login.get("enforced"))}

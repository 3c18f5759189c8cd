"""Machines without an external address: ssh goes through Google's Identity-Aware Proxy.

The tunnel is gcloud's. What the machines need: Private Google Access of their subnetwork, or Cloud
NAT, which pip needs, too; and for ssh a firewall rule that lets 35.235.240.0/20 in.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from berg import BergError, google
from berg.feature import Feature
from berg.google import GoogleError
from berg.options import option

if TYPE_CHECKING:
    from berg.config import Config
    from berg.place import Machine
    from berg.run import Plan


@dataclass
class Iap(Feature):
    no_external_ip: bool = option(
        "--no-external-ip",
        default=False,
        is_flag=True,
        help="Reach the machines only from their network and through IAP.",
    )

    def is_due(self, plan: Plan) -> bool:
        return plan.config.no_external_ip.lower() in ("true", "1", "yes")

    def change(self, plan: Plan) -> None:
        note = "no external address; ssh goes through IAP, with gcloud"
        for region in dict.fromkeys(zone.rpartition("-")[0] for zone in plan.zones):
            if not has_nat(plan.config, region):
                check_access(plan.config, region)
                note += f"; without Cloud NAT in {region} nothing can be downloaded there"
        for interface in plan.request["networkInterfaces"]:
            interface.pop("accessConfigs", None)
        plan.rows["Network"] = note

    def tunnel(self, config: Config, machine: Machine) -> list[str]:
        program = shutil.which("gcloud")
        if not program:
            raise BergError(
                f"{machine.name} has no external address, and the tunnel to it needs gcloud. "
                "Install it: https://cloud.google.com/sdk/docs/install"
            )
        # At --verbosity=warning it recommends NumPy each time.
        words = [program, "compute", "start-iap-tunnel", machine.name, "%p", "--listen-on-stdin"]
        words += ["--project", config.project, "--zone", machine.zone, "--verbosity=error"]
        if config.endpoint:
            port = config.endpoint.rpartition(":")[2]
            words += [f"--iap-tunnel-url-override=wss://127.0.0.2:{port}/v4"]
            words += ["--iap-tunnel-insecure-disable-websocket-cert-check"]
        return words


def has_nat(config: Config, region: str) -> bool:
    """Whether machines of a region reach the internet; where nobody may look, they may."""
    try:
        return any(
            row.get("nats") and google.last_part(row.get("network", "")) == config.network
            for row in google.items(config, f"/regions/{region}/routers")
        )
    except GoogleError as error:
        return error.status == 403


def check_access(config: Config, region: str) -> None:
    """Raise BergError if machines of a region cannot reach Google's APIs without Cloud NAT."""
    path = f"/regions/{region}/subnetworks/{config.network}"
    found = google.find(config, path, fields="privateIpGoogleAccess")
    if found and not found.get("privateIpGoogleAccess"):
        where = f"--region {region} --project {config.project}"
        raise BergError(
            f"machines in {region} without an external address cannot reach Google's APIs. Run: "
            f"gcloud compute networks subnets update {config.network} {where} "
            "--enable-private-ip-google-access; or, for pip as well, make a Cloud NAT: "
            f"gcloud compute routers create berg-nat {where} --network {config.network} && "
            f"gcloud compute routers nats create berg-nat --router berg-nat {where} "
            "--auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges"
        )

"""RoCE: the GPUs of several a3-ultragpu-8g or a4-highgpu-8g reach each other without the CPUs.

It takes networks of its own, which cost nothing and stay for the next job:

    berg-fast       of the project, with a subnetwork in each region: the machines' second interface
    berg-roce-ZONE  of a zone, with eight subnetworks: one for each GPU's interface

They are made when the first job comes to a zone. A job has a placement policy of its own, so that
Google puts its machines close to each other. On the machines NCCL uses Google's plugin gIB. It needs the
same network on all of them: if one lacks gIB or an interface, all talk over TCP, and the log says so.

https://docs.cloud.google.com/ai-hypercomputer/docs/create/create-vm and …/docs/nccl/test-vms. Not
covered: TCPX and TCPXO of the two H100 machines, a4x, networks of another project, sweeps.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from berg import BergError, gce, google, install
from berg import job as jobs
from berg.bucket import Bucket
from berg.feature import Feature
from berg.features.spot import make_once
from berg.google import GoogleError, last_part
from berg.options import option

if TYPE_CHECKING:
    from berg.config import Config
    from berg.job import Job
    from berg.run import Create, Plan
    from berg.worker import Run

FAST, TCP = "berg-fast", "tcp"
ROCE = ("a3-ultragpu-8g", "a4-highgpu-8g")
SLOW = ("a3-highgpu-8g", "a3-megagpu-8g")  # have a fabric that Berg does not set up
RAILS = 8  # interfaces for RoCE, and their subnetworks
MTU = 8896  # bytes, the most
# Of FAST and of a zone's network; the second pair where the machines' own network overlaps the first.
RANGES = ("192.168.64.0/18", "192.168.128.0/18"), ("172.24.64.0/18", "172.24.128.0/18")
PER_REGION, PER_RAIL = 22, 21  # lengths of the prefixes of their subnetworks
READY = 120  # seconds for networks that another computer makes as well
LINKS = 180  # seconds for a machine's interfaces to come up
GIB, DEVICES = Path("/usr/local/gib"), Path("/sys/class/infiniband")
# Without the last two the plugin cannot be loaded, and each rank fails with "internal error".
PACKAGES = ("nccl-gib", "libibverbs1", "ibverbs-providers")
GOOGLE, APT = "https://packages.cloud.google.com/apt", Path("/etc/apt")


@dataclass
class Roce(Feature):
    network: str = option(
        "--network", default="fast", show_default=True, type=click.Choice(["fast", TCP]),
        help="Of several machines with GPUs: fast is RoCE where Berg sets it up, tcp one interface.",
    )  # fmt: skip

    def is_due(self, plan: Plan) -> bool:
        kind = plan.job.machine_type
        return plan.job.machines > 1 and not plan.job.rows and kind in (*ROCE, *SLOW)

    def is_wanted(self, job: Job) -> bool:
        is_fast = job.machine_type in ROCE and self.network != TCP
        return is_fast and job.machines > 1 and not job.rows

    def change(self, plan: Plan) -> None:
        if not self.is_wanted(plan.job):
            slow = plan.job.machine_type in (*ROCE, *SLOW)
            few = ", about a tenth of what these machines can" * (slow and plan.job.machines > 1)
            plan.rows["Network"] = f"TCP over one interface{few}"
            return
        plan.rows["Network"] = f"{RAILS} x RoCE, 3,200 Gbps between machines"
        plan.zones[:] = zones_with(plan.config, plan.zones)
        if plan.create is gce.create:
            insert = functools.partial(insert_near, plan.job)
            plan.create = functools.partial(gce.create, make=insert)
        else:  # a group's machines are in one zone
            plan.zones[:] = plan.zones[:1]
            plan.create = functools.partial(create_in_first, plan.create)
        plan.rows["Zones"] = ", ".join(plan.zones)

    def forget(self, config: Config, job: Job) -> None:
        from berg.run import own_state

        is_its = self.is_wanted(job) and own_state(Bucket(config), job) is not None
        for row in policies(config, job.name) if is_its else []:
            for machine in gce.machines(config, job.name, made_for=[job.sha256]):
                google.delete(config, machine.path)  # Google keeps a policy that a machine has
            forget_policy(config, row)

    @contextlib.contextmanager
    def around(self, run: Run) -> Iterator[None]:
        from berg import machines

        if self.is_wanted(run.job):
            run.told["roce"] = fault(run)
            machines.tell(run, run.peers.phase)
            while any("roce" not in row for row in {**run.peers.records}.values()):
                run.look()
                time.sleep(0.2)
            names, heard = run.job.machine_names, run.peers.records
            faults = [f"{names[rank]}: {row['roce']}" for rank, row in heard.items() if row["roce"]]
            interface = machines.interface(run)
            sockets = dict.fromkeys(["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"], interface)
            more = {"NCCL_NET": "Socket"} if faults else nccl_variables()
            run.variables = {**run.variables, **sockets, **more, **run.job.env}
            run.say(
                f"Machines talk over TCP: {'; '.join(faults)}" if faults
                else f"{RAILS} interfaces for RoCE are up, and NCCL uses them by gIB"
            )  # fmt: skip
            if not faults:  # for containers
                run.folders.append(GIB)
                run.container.append("--device=/dev/infiniband")
        yield


# --- where there is RoCE, and its networks


def network_of(zone: str) -> str:
    return f"berg-roce-{zone}"


def zones_with(config: Config, zones: list[str]) -> list[str]:
    """The zones that have RoCE, and their network or room for it in the quota; raise BergError if
    there is none.
    """
    rows = google.items(config, "/global/networkProfiles", fields="items(name),nextPageToken")
    sold = sorted(
        row["name"].removesuffix("-vpc-roce") for row in rows if "-vpc-roce" in row["name"]
    )
    here = [zone for zone in zones if zone in sold]
    if not here:
        raise BergError(
            f"Google has no RoCE in {', '.join(zones)}. Choose a zone that has it: "
            f"-z {' -z '.join(sold)}; or --network {TCP}"
        )
    existing = {row["name"] for row in google.items(config, "/global/networks")}
    quotas = google.call(config, "GET", "", fields="quotas").get("quotas", [])
    quota = next((row for row in quotas if row["metric"] == "NETWORKS"), None)
    needed = 1 + (FAST not in existing)
    if quota is None or quota["limit"] - quota["usage"] >= needed:
        return here
    if FAST in existing and (made := [zone for zone in here if network_of(zone) in existing]):
        return made
    raise BergError(
        f"RoCE needs {needed} more of the quota NETWORKS, of which {quota['usage']:g} of "
        f"{quota['limit']:g} are used. Raise it: {gce.QUOTA_PAGE}; or run with --network {TCP}"
    )


def make_networks(config: Config, zone: str) -> None:
    """Make what is missing of the networks for a zone; other computers may do that at the same time."""
    region = zone.rpartition("-")[0]
    ends = (FAST, f"{network_of(zone)}-{RAILS - 1}")
    if all(google.find(config, f"/regions/{region}/subnetworks/{each}") for each in ends):
        return
    end = time.monotonic() + READY
    while True:
        try:
            for path, body in steps(config, zone, region):
                make_once(config, path, body)
            return
        except GoogleError as error:
            if error.status == 403:
                raise BergError(
                    f"you may not make the networks for RoCE: {error.message.rstrip('.')}. Ask for the roles Compute "
                    f"Network Admin and Compute Security Admin, or run with --network {TCP}"
                ) from None
            is_early = error.reason == "resourceNotReady" or "conflicts" in error.message
            if not is_early or time.monotonic() > end:
                raise
        time.sleep(2)


def steps(config: Config, zone: str, region: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and body of each request for the networks of a zone, in their order."""
    columns = "items/*/subnetworks(name,network,region,ipCidrRange),nextPageToken"
    listed = google.items(config, "/aggregated/subnetworks", fields=columns)
    rows = [row for row in listed if "ipCidrRange" in row]  # not of IPv6 alone
    here = [row for row in rows if last_part(row["region"]) == region]
    own = [row["ipCidrRange"] for row in here if last_part(row["network"]) == config.network]
    fast, roce = next((pair for pair in RANGES if not overlaps(pair, own)), RANGES[0])
    taken = [row["ipCidrRange"] for row in rows if row["name"] == FAST]
    parts = map(str, ipaddress.ip_network(fast).subnets(new_prefix=PER_REGION))
    rails = ipaddress.ip_network(roce).subnets(new_prefix=PER_RAIL)
    base = f"projects/{config.project}/global/"
    profile = f"{base}networkProfiles/{zone}-vpc-roce"
    networks, path, name = f"{base}networks", f"/regions/{region}/subnetworks", network_of(zone)
    common = {"autoCreateSubnetworks": False, "mtu": MTU}
    yield "/global/networks", {**common, "name": FAST}
    yield "/global/firewalls", {  # networks for RoCE need none
        "name": FAST, "network": f"{networks}/{FAST}", "direction": "INGRESS", "sourceRanges": [fast],
        "allowed": [{"IPProtocol": each} for each in ("tcp", "udp", "icmp")],
    }  # fmt: skip
    if not any(row["name"] == FAST for row in here):
        free = next(part for part in parts if not overlaps([part], taken))
        yield path, {"name": FAST, "network": f"{networks}/{FAST}", "ipCidrRange": free}
    yield "/global/networks", {**common, "name": name, "networkProfile": profile}
    for number, part in zip(range(RAILS), rails):
        about = {"name": f"{name}-{number}", "network": f"{networks}/{name}"}
        yield path, {**about, "ipCidrRange": str(part)}


def overlaps(ranges: Iterable[str], others: Iterable[str]) -> bool:
    pairs = itertools.product(map(ipaddress.ip_network, ranges), map(ipaddress.ip_network, others))
    return any(one.overlaps(other) for one, other in pairs)


# --- the machines


def near(config: Config, job: Job, request: dict[str, Any], zone: str) -> dict[str, Any]:
    """The request for machines in a zone, with their interfaces, and the policy that puts them close
    to each other; both are there then.
    """
    make_networks(config, zone)
    region, base = zone.rpartition("-")[0], f"projects/{config.project}"

    def on(network: str, subnetwork: str, kind: str) -> dict[str, str]:
        path = f"{base}/regions/{region}/subnetworks/{subnetwork}"
        return {"network": f"{base}/global/networks/{network}", "subnetwork": path, "nicType": kind}

    name = network_of(zone)
    rails = [on(name, f"{name}-{number}", "MRDMA") for number in range(RAILS)]
    interfaces = [*request["networkInterfaces"], on(FAST, FAST, "GVNIC"), *rails]
    made = {**request, "networkInterfaces": interfaces}
    is_queued = request["scheduling"].get("provisioningModel") == "FLEX_START"
    if is_queued or "key" in request.get("reservationAffinity", {}):
        return made  # Google puts those close to each other in any case
    forget_old_policies(config)
    close = {"groupPlacementPolicy": {"collocation": "COLLOCATED"}}
    policy = {"name": job.name, "description": description(config), **close}
    make_once(config, f"/regions/{region}/resourcePolicies", policy)
    return {**made, "resourcePolicies": [job.name]}


def insert_near(
    job: Job, config: Config, request: dict[str, Any], names: list[str], zone: str
) -> None:
    gce.insert(config, near(config, job, request, zone), names, zone)


def create_in_first(
    create: Create,
    config: Config,
    job: Job,
    request: dict[str, Any],
    zones: list[str],
    say: Callable[[str], None],
) -> str:
    return create(config, job, near(config, job, request, zones[0]), zones[:1], say)


def description(config: Config) -> str:
    return f"for berg's jobs in gs://{config.bucket}"


def policies(config: Config, name: str = "") -> list[dict[str, Any]]:
    """Placement policies of all jobs of the bucket, or of one."""
    query = {"filter": f'description="{description(config)}"'}
    rows = google.items(config, "/aggregated/resourcePolicies", **query)
    return [row for row in rows if "groupPlacementPolicy" in row and name in ("", row["name"])]


def forget_policy(config: Config, row: dict[str, Any]) -> None:
    """Delete a policy, if no machine has it."""
    path = f"/regions/{last_part(row['region'])}/resourcePolicies/{row['name']}"
    with contextlib.suppress(GoogleError):
        google.delete(config, path)


def forget_old_policies(config: Config) -> None:
    """Delete the policies of jobs that have ended, whose last machine could not: it had the policy. They
    cost nothing, but count.
    """
    for row in policies(config):
        with contextlib.suppress(BergError):  # it may have no record: see `berg reap`
            if jobs.read_state(Bucket(config), row["name"])[0].is_final:
                forget_policy(config, row)


# --- on a machine


def active() -> int:
    """How many of this machine's interfaces for RoCE are up."""
    return sum("ACTIVE" in port.read_text() for port in DEVICES.glob("*/ports/*/state"))


def fault(run: Run) -> str:
    """What keeps this machine from RoCE, once gIB is installed and its links had time; "" if nothing does."""
    import requests

    reason, end = "", time.monotonic() + LINKS
    if not (GIB / "lib64").is_dir():
        try:
            install_gib(run)
        except (requests.RequestException, install.Failed, OSError) as error:
            reason = f"gIB cannot be installed: {error}"
    while (up := active()) < RAILS and time.monotonic() < end:
        run.look()
        time.sleep(1)
    return reason if up == RAILS else f"{up} of {RAILS} interfaces for RoCE are up"


def install_gib(run: Run) -> None:
    """Install gIB and what it needs. Its source does not stay: upgrades would make machines differ."""
    import requests

    answer = requests.get(f"{GOOGLE}/doc/apt-key.gpg", timeout=30)
    answer.raise_for_status()
    kind = "asc" if answer.content.startswith(b"-----BEGIN") else "gpg"
    key, source = APT / f"keyrings/berg-google.{kind}", APT / "sources.list.d/berg-gib.list"
    key.parent.mkdir(exist_ok=True)
    key.write_bytes(answer.content)
    words = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600"]
    try:
        source.write_text(f"deb [signed-by={key}] {GOOGLE} gpudirect-gib-apt main\n")
        install.execute(run, [*words, "update"])
        install.execute(run, [*words, "install", "-y", *PACKAGES])
    finally:
        source.unlink(missing_ok=True)


def nccl_variables() -> dict[str, str]:
    """What Google's script sets, and where NCCL finds the plugin."""
    script = f"source {GIB}/scripts/set_nccl_env.sh >/dev/null && env -0"
    done = subprocess.run(["env", "-i", "bash", "-c", script], capture_output=True, text=True)
    rows = dict(row.partition("=")[::2] for row in done.stdout.split("\0") if row)
    found = {name: text for name, text in rows.items() if name.startswith("NCCL_")}
    path = ":".join(filter(None, [f"{GIB}/lib64", os.environ.get("LD_LIBRARY_PATH")]))
    return {"NCCL_NET": "gIB", **found, "LD_LIBRARY_PATH": path}

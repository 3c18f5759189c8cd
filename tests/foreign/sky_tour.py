"""SkyPilot's provisioner, as its own backend calls it: create, query, info, stop, resume, delete.

Runs in an environment of its own, where SkyPilot is. What it says is of the last step that went
well; the exit code tells.

Usage: python sky_tour.py URL PROJECT ZONE
"""

import json
import sys
import time

from googleapiclient import discovery
from sky.adaptors import gcp
from sky.provision import common
from sky.provision.gcp import (
    bootstrap_instances,
    cleanup_ports,
    get_cluster_info,
    open_ports,
    query_instances,
    run_instances,
    stop_instances,
    terminate_instances,
    wait_instances,
)
from sky.utils import status_lib

URL, PROJECT, ZONE = sys.argv[1:]
REGION, NAME = ZONE.rpartition("-")[0], "sky-tour"
# A service's name -> the path of its API on the embedded cloud.
PATHS = {
    "compute": "/compute/v1/",
    "cloudresourcemanager": "/cloudresourcemanager/",
    "iam": "/iam/",
}


def build(name: str, version: str, **options):
    """Build a client for the embedded cloud, as SkyPilot builds one for Google's."""
    options.pop("discoveryServiceUrl", None)
    endpoint = {"api_endpoint": URL + PATHS[name]}
    return discovery.build(name, version, client_options=endpoint, **options)


def config(count: int, resume: bool) -> common.ProvisionConfig:
    disk = {
        "sourceImage": "projects/debian-cloud/global/images/family/debian-12",
        "diskSizeGb": 20,
        "diskType": f"zones/{ZONE}/diskTypes/pd-balanced",
    }
    node = {
        "labels": {"skypilot-user": "tester"},
        "machineType": "n1-standard-1",
        "disks": [
            {"boot": True, "autoDelete": True, "type": "PERSISTENT", "initializeParams": disk}
        ],
        "metadata": {"items": [{"key": "ssh-keys", "value": "tester:ssh-ed25519 AAAA tester"}]},
        "networkInterfaces": [
            {
                "subnetwork": f"projects/{PROJECT}/regions/{REGION}/subnetworks/default",
                "accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}],
            }
        ],
    }
    provider = {
        "type": "external",
        "module": "sky.provision.gcp",
        "region": REGION,
        "availability_zone": ZONE,
        "cache_stopped_nodes": True,
        "project_id": PROJECT,
        "use_internal_ips": False,
        "force_enable_external_ips": False,
        "disable_launch_public_ip": False,
        "firewall_rule": f"{NAME}-ports",
    }
    return common.ProvisionConfig(
        provider_config=provider,
        authentication_config={"ssh_user": "tester"},
        docker_config={},
        node_config=node,
        count=count,
        tags={},
        resume_stopped_nodes=resume,
        ports_to_open_on_launch=None,
    )


def statuses(made: common.ProvisionConfig) -> list[str]:
    found = query_instances(NAME, NAME, made.provider_config)
    return sorted(status.value for status, _ in found.values())


def step(what: str) -> None:
    print(what, flush=True)


gcp.build = build
made = bootstrap_instances(REGION, NAME, config(2, False))
step("bootstrapped " + json.dumps(made.node_config["serviceAccounts"]))
for _ in range(30):  # the account is new, and not known everywhere yet
    try:
        record = run_instances(REGION, NAME, NAME, made)
        break
    except common.ProvisionerError:
        time.sleep(1)
wait_instances(REGION, NAME, status_lib.ClusterStatus.UP)
assert len(record.created_instance_ids) == 2 and not record.resumed_instance_ids, record
step("created")
assert statuses(made) == ["UP", "UP"], statuses(made)
info = get_cluster_info(REGION, NAME, made.provider_config)
assert len(info.instances) == 2 and info.head_instance_id == record.head_instance_id
assert all(each[0].external_ip for each in info.instances.values())
step("informed")
open_ports(NAME, ["8080", "9000-9010"], made.provider_config)
open_ports(NAME, ["8081"], made.provider_config)
cleanup_ports(NAME, ["8080", "8081"], made.provider_config)
step("opened and closed ports")
stop_instances(NAME, made.provider_config)
assert statuses(made) == ["STOPPED", "STOPPED"], statuses(made)
step("stopped")
again = bootstrap_instances(REGION, NAME, config(2, True))
record = run_instances(REGION, NAME, NAME, again)
wait_instances(REGION, NAME, status_lib.ClusterStatus.UP)
assert len(record.resumed_instance_ids) == 2 and not record.created_instance_ids, record
assert statuses(made) == ["UP", "UP"], statuses(made)
step("resumed")
terminate_instances(NAME, made.provider_config)
assert not query_instances(NAME, NAME, made.provider_config)
step("deleted")

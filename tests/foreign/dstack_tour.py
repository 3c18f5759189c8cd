"""dstack's backend for Google Cloud, as its server calls it: machines, gateways, volumes, reservations.

Runs in an environment of its own, where dstack is. It prints a line for each step that went well;
the exit code tells.

Usage: python dstack_tour.py URL PROJECT ZONE SOLD_OUT RESERVATION
"""

import functools
import sys
import time

from dstack._internal.core.backends.gcp import resources
from dstack._internal.core.backends.gcp.compute import GCPCompute
from dstack._internal.core.backends.gcp.models import GCPConfig, GCPDefaultCreds
from dstack._internal.core.errors import NoCapacityError, PlacementGroupInUseError
from dstack._internal.core.models.gateways import GatewayReplicaConfiguration
from dstack._internal.core.models.instances import (
    Disk,
    Gpu,
    InstanceAvailability,
    InstanceConfiguration,
    InstanceOfferWithAvailability,
    InstanceType,
    Resources,
    SSHKey,
)
from dstack._internal.core.models.placement import (
    PlacementGroup,
    PlacementGroupConfiguration,
)
from dstack._internal.core.models.runs import Requirements, ResourcesSpec
from dstack._internal.core.models.volumes import (
    GCPVolumeConfiguration,
    Volume,
    VolumeAttachment,
    VolumeInstance,
    VolumeStatus,
)
from google.cloud import compute_v1

URL, PROJECT, ZONE, SOLD_OUT, RESERVATION = sys.argv[1:]
REGION = ZONE.rpartition("-")[0]


def lead_here(client: type) -> None:
    """Let a client of google-cloud-compute, and those by which it waits, call the embedded cloud."""
    old = client.__init__

    @functools.wraps(old)
    def new(self, **options):
        old(self, **{**options, "client_options": {"api_endpoint": URL}})

    client.__init__ = new


for name in dir(compute_v1):
    if name.endswith("Client"):
        lead_here(getattr(compute_v1, name))

KEY = "ssh-ed25519 AAAA tester"
backend = GCPCompute(
    GCPConfig(project_id=PROJECT, regions=[REGION], creds=GCPDefaultCreds(), vpc_name="default")
)


def step(what: str) -> None:
    print(what, flush=True)


def offer(machine: str, zones: list[str], gpus: int = 0) -> InstanceOfferWithAvailability:
    """An offer as dstack's catalog has it; the catalog itself is on the internet."""
    gpu = Gpu(name="T4", memory_mib=16 * 1024)
    about = Resources(
        cpus=2, memory_mib=8192, gpus=[gpu] * gpus, spot=False, disk=Disk(size_mib=20 * 1024)
    )
    return InstanceOfferWithAvailability(
        backend="gcp",
        instance=InstanceType(name=machine, resources=about),
        region=REGION,
        price=1.0,
        availability=InstanceAvailability.UNKNOWN,
        availability_zones=zones,
    )


def wishes(name: str, **more) -> InstanceConfiguration:
    return InstanceConfiguration(
        project_name="tour",
        instance_name=name,
        user="tester",
        ssh_keys=[SSHKey(public=KEY)],
        **more,
    )


def running(made):
    """Wait, as dstack's server does, until a machine says where it is."""
    for _ in range(60):
        backend.update_provisioning_data(made, KEY, "")
        if made.hostname:
            return made
        time.sleep(0.5)
    raise AssertionError("the machine never ran")


def gone(made) -> None:
    backend.terminate_instance(made.instance_id, made.region, made.backend_data)
    backend.terminate_instance("dstack-never", made.region, made.backend_data)  # is no error


def volume(name: str, **configuration) -> Volume:
    now = "2026-01-01T00:00:00+00:00"
    return Volume(
        id="11111111-1111-4111-8111-111111111111",
        name=name,
        user="tester",
        project_name="tour",
        configuration=GCPVolumeConfiguration(name=name, region=REGION, **configuration),
        external="volume_id" in configuration,
        created_at=now,
        last_processed_at=now,
        status=VolumeStatus.SUBMITTED,
        deleted=False,
    )


def volumes(machine) -> None:
    kept = volume("data", size="10GB", availability_zone=ZONE)
    kept.provisioning_data = backend.create_volume(kept)
    kept.volume_id = kept.provisioning_data.volume_id
    known = backend.register_volume(volume("again", volume_id=kept.volume_id))
    assert (known.size_gb, known.availability_zone) == (10, ZONE), known
    attached = backend.attach_volume(kept, machine)
    about = VolumeInstance(name="one", instance_num=0, instance_id=machine.instance_id)
    kept.attachments = [VolumeAttachment(instance=about, attachment_data=attached)]
    backend.detach_volume(kept, machine)
    backend.delete_volume(kept)
    backend.delete_volume(kept)  # is no error


resources.check_vpc(
    subnetworks_client=backend.subnetworks_client,
    routers_client=backend.routers_client,
    project_id=PROJECT,
    regions=[REGION],
    allocate_public_ip=True,
)
step("network")
# Out of stock in the first zone: the second one has it.
machine = running(
    backend.create_instance(offer("n1-standard-8", [SOLD_OUT, ZONE], 1), wishes("one"), None)
)
assert machine.availability_zone == ZONE and machine.internal_ip, machine
step("machine")
try:
    backend.create_instance(offer("n2-standard-2", [SOLD_OUT]), wishes("none"), None)
except NoCapacityError:
    step("no capacity")
volumes(machine)
step("volumes")
near = PlacementGroup(
    name="tour-near",
    project_name="tour",
    configuration=PlacementGroupConfiguration(
        backend="gcp", region=REGION, placement_strategy="cluster"
    ),
)
near.provisioning_data = backend.create_placement_group(near, offer("n2-standard-2", [ZONE]))
close = backend.create_instance(offer("n2-standard-2", [ZONE]), wishes("close"), near)
try:
    backend.delete_placement_group(near)
except PlacementGroupInUseError:
    step("placed")
gone(running(close))
for _ in range(60):  # the machine is on its way out
    try:
        backend.delete_placement_group(near)
        break
    except PlacementGroupInUseError:
        time.sleep(0.5)
wanted = Requirements(resources=ResourcesSpec(), reservation=RESERVATION)
reserved = offer("n2-standard-2", [SOLD_OUT, ZONE])
for change in backend.get_offers_modifiers(wanted, False):
    reserved = change(reserved)
assert reserved.availability_zones == [ZONE], reserved
assert reserved.availability == InstanceAvailability.UNKNOWN, reserved
second = running(backend.create_instance(reserved, wishes("two", reservation=RESERVATION), None))
backend._reservation_cache.cache.clear()
full = offer("n2-standard-2", [ZONE])
for change in backend.get_offers_modifiers(wanted, False):
    full = change(full)
assert full.availability == InstanceAvailability.NOT_AVAILABLE, full
step("reservation")
gateway = GatewayReplicaConfiguration(
    project_name="tour",
    instance_name="gate",
    backend="gcp",
    region=REGION,
    public_ip=True,
    ssh_key_pub=KEY,
)
door = backend.create_gateway_replica(gateway)
assert door.ip_address
backend.terminate_gateway_replica(door.instance_id, gateway, door.backend_data)
step("gateway")
gone(machine)
gone(second)
step("deleted")

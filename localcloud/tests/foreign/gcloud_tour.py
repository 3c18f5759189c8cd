"""gcloud's tour of the embedded cloud, as a table of commands with what comes of them: `make
foreign` runs this in the folder above `tests`, whose files it sends.

gcloud repeats for half a minute what is answered with 501, so that one such command stands for all.
"""

import re
import uuid

import pytest
from local_gcloud import Gcloud

BUCKET = f"tour-{uuid.uuid4().hex[:12]}"
WORKER = f"tour-{uuid.uuid4().hex[:8]}"
EMAIL = f"{WORKER}@berg-local.iam.gserviceaccount.com"
GS = f"gs://{BUCKET}"
ZONE = "--zone=us-central1-b"
DEBIAN = "--image-family=debian-12 --image-project=debian-cloud"

# What is run, and a pattern of what it prints; after a "!" it fails, and that is a pattern of its
# error.
TOUR = [
    # Buckets
    (f"storage buckets create {GS} --location=mars-west1", "!location constraint is not valid"),
    (
        f"storage buckets create {GS} --default-encryption-key=projects/p/locations/us/keyRings/r/cryptoKeys/k",
        "!no encryption",
    ),
    (f"storage buckets create {GS} --location=us-central1 --uniform-bucket-level-access", ""),
    (f"storage buckets create {GS} --location=us-central1", "!already own it"),
    (f"storage buckets describe {GS} --format=value(location)", "US-CENTRAL1"),
    (f"storage buckets update {GS} --update-labels=team=a", ""),
    (f"storage buckets update {GS} --update-labels=Team=A", "!abel"),
    (f"storage buckets update {GS} --public-access-prevention", ""),
    (
        f"storage buckets add-iam-policy-binding {GS} --member=allUsers --role=roles/storage.objectViewer",
        "!public access prevention is enforced",
    ),
    # Objects
    (f"storage cp pyproject.toml {GS}/a/pyproject.toml --custom-metadata=k=v", ""),
    (f"storage objects describe {GS}/a/pyproject.toml --format=value(custom_fields)", "k"),
    (f"storage cp {GS}/a/pyproject.toml {GS}/b/pyproject.toml", ""),
    (f"storage mv {GS}/b/pyproject.toml {GS}/c/pyproject.toml", ""),
    (f"storage ls {GS}/**", f"{GS}/a/pyproject.toml\n{GS}/c/pyproject.toml"),
    (f"storage cat {GS}/c/pyproject.toml", "An embedded Google Cloud"),
    (f"storage rsync tests/storage {GS}/tests --recursive", ""),
    (f"storage du {GS}/tests --summarize", r"\d+"),
    # Accounts and policies
    (f"iam service-accounts create {WORKER}", ""),
    (
        f"projects add-iam-policy-binding berg-local --member=serviceAccount:{EMAIL} --role=roles/compute.viewer "
        "--condition=None",
        EMAIL,
    ),
    (
        f"projects add-iam-policy-binding berg-local --member=serviceAccount:{EMAIL} --role=roles/compute.browser "
        "--condition=None",
        "!Role roles/compute.browser is not supported for this resource",
    ),
    (
        f"storage buckets add-iam-policy-binding {GS} --member=serviceAccount:{EMAIL} --role=roles/compute.viewer",
        "!is not supported for this resource",
    ),
    (
        f"storage buckets add-iam-policy-binding {GS} --member=serviceAccount:{EMAIL} --role=roles/storage.objectUser",
        "",
    ),
    # Secrets
    (
        f"secrets create {WORKER} --replication-policy=user-managed --locations=mars-west1",
        "!mars-west1",
    ),
    (
        f"secrets create {WORKER} --replication-policy=user-managed --locations=us-east1,europe-west4",
        "",
    ),
    (f"secrets versions add {WORKER} --data-file=pyproject.toml", ""),
    (f"secrets versions access latest --secret={WORKER}", "An embedded Google Cloud"),
    (f"secrets delete {WORKER}", ""),
    # Machines
    (f"compute instances create {WORKER} {ZONE} --machine-type=n1-standard-1 {DEBIAN}", WORKER),
    (
        f"compute instances create {WORKER} {ZONE} --machine-type=n1-standard-1 {DEBIAN}",
        "!already exists",
    ),
    (
        f"compute instances create none {ZONE} --machine-type=n1-standard-99999 {DEBIAN}",
        "!machineType|machine type",
    ),
    ("compute instances list --format=value(name)", WORKER),
    (f"compute instances describe {WORKER} {ZONE} --format=value(status)", "RUNNING"),
    # Disks, snapshots, addresses, rules and groups
    (f"compute disks create {WORKER}-d {ZONE} --size=20GB --type=pd-ssd --labels=a=b", WORKER),
    (f"compute disks create {WORKER}-d {ZONE} --size=20GB", "!already exists"),
    (f"compute disks resize {WORKER}-d {ZONE} --size=30GB --quiet", ""),
    (f"compute disks add-labels {WORKER}-d {ZONE} --labels=c=d", ""),
    (f"compute instances attach-disk {WORKER} {ZONE} --disk={WORKER}-d --device-name=more", ""),
    (f"compute disks describe {WORKER}-d {ZONE} --format=value(sizeGb,users)", f"30.*{WORKER}"),
    (f"compute instances detach-disk {WORKER} {ZONE} --disk={WORKER}-d", ""),
    (
        f"compute snapshots create {WORKER}-s --source-disk={WORKER} --source-disk-zone={ZONE[7:]}",
        "",
    ),
    ("compute snapshots list --format=value(name,diskSizeGb)", f"{WORKER}-s"),
    (f"compute disks create {WORKER}-e {ZONE} --source-snapshot={WORKER}-s", WORKER),
    (f"compute disks delete {WORKER}-d {WORKER}-e {ZONE} --quiet", ""),
    (f"compute snapshots delete {WORKER}-s --quiet", ""),
    (f"compute addresses create {WORKER}-a --region=us-central1", ""),
    (
        f"compute addresses describe {WORKER}-a --region=us-central1 --format=value(status)",
        "RESERVED",
    ),
    (
        f"compute instances delete-access-config {WORKER} {ZONE} --access-config-name=other",
        "!not found",
    ),
    (f"compute instances delete-access-config {WORKER} {ZONE}", ""),
    (f"compute instances add-access-config {WORKER} {ZONE}", ""),
    (f"compute instances add-access-config {WORKER} {ZONE}", "!At most one access config"),
    (f"compute addresses delete {WORKER}-a --region=us-central1 --quiet", ""),
    (f"compute addresses create {WORKER}-g --global --ip-version=IPV6", ""),
    (f"compute addresses describe {WORKER}-g --global --format=value(address)", ":"),
    (f"compute addresses delete {WORKER}-g --global --quiet", ""),
    (
        f"compute images create {WORKER}-i --source-image-family=debian-12 --source-image-project=debian-cloud "
        "--storage-location=us-central1 --guest-os-features=GVNIC",
        "READY",
    ),
    (f"compute images deprecate {WORKER}-i --state=DEPRECATED", ""),
    (f"compute images describe {WORKER}-i --format=value(deprecated.state)", "DEPRECATED"),
    (f"compute images delete {WORKER}-i --quiet", ""),
    (
        f"compute instance-templates create {WORKER}-t --source-instance={WORKER} "
        f"--source-instance-zone={ZONE[7:]} --configure-disk=device-name=persistent-disk-0,"
        "instantiate-from=source-image-family",
        WORKER,
    ),
    (
        f"compute reservations create {WORKER}-r {ZONE} --vm-count=1 --machine-type=n1-standard-1",
        "",
    ),
    (
        f"compute reservations describe {WORKER}-r {ZONE} --format=value(specificReservation.inUseCount)",
        "1",
    ),
    (f"compute reservations delete {WORKER}-r {ZONE} --quiet", ""),
    (f"compute instance-templates delete {WORKER}-t --quiet", ""),
    (f"compute firewall-rules create {WORKER} --allow=tcp:22 --target-tags=a", WORKER),
    (f"compute firewall-rules update {WORKER} --source-ranges=10.0.0.0/8", ""),
    (
        f"compute firewall-rules describe {WORKER} --format=value(sourceRanges,targetTags)",
        r"10\.0\.0\.0/8.*a",
    ),
    ("compute networks get-effective-firewalls default --format=value(name)", WORKER),
    (f"compute firewall-rules delete {WORKER} --quiet", ""),
    (f"compute instances stop {WORKER} {ZONE}", ""),
    (f"compute instances set-machine-type {WORKER} {ZONE} --machine-type=n1-standard-2", ""),
    (f"compute instances describe {WORKER} {ZONE} --format=value(machineType)", "n1-standard-2"),
    (
        f"compute instance-templates create {WORKER} --instance-template-region=us-central1 "
        f"--machine-type=n1-standard-1 {DEBIAN}",
        WORKER,
    ),
    (
        f"compute instance-groups managed create {WORKER} {ZONE} --size=0 --template=projects/berg-local/regions/"
        f"us-central1/instanceTemplates/{WORKER}",
        WORKER,
    ),
    (f"compute instance-groups managed delete {WORKER} {ZONE} --quiet", ""),
    (f"compute instance-templates delete {WORKER} --region=us-central1 --quiet", ""),
    (f"compute instances delete {WORKER} {ZONE}", ""),
    (f"compute instances describe {WORKER} {ZONE}", "!not found"),
    # Networks for RDMA, and a machine with ten interfaces
    (f"compute networks create {WORKER}-f --subnet-mode=custom --mtu=8896", WORKER),
    (
        f"compute networks create {WORKER}-r --subnet-mode=custom --mtu=8896 "
        f"--network-profile={ZONE[7:]}-vpc-roce",
        WORKER,
    ),
    (
        f"compute networks subnets create {WORKER}-f --network={WORKER}-f --region=us-central1 "
        "--range=192.168.64.0/22",
        WORKER,
    ),
    *[
        (
            f"compute networks subnets create {WORKER}-r{each} --network={WORKER}-r "
            f"--region=us-central1 --range=192.168.{128 + 8 * each}.0/21",
            WORKER,
        )
        for each in range(8)
    ],
    (
        f"compute instances create {WORKER}-g {ZONE} {DEBIAN} --machine-type=a3-ultragpu-8g "
        "--boot-disk-type=hyperdisk-balanced --provisioning-model=SPOT --no-restart-on-failure "
        "--maintenance-policy=TERMINATE --network-interface=nic-type=GVNIC,network=default "
        f"--network-interface=nic-type=GVNIC,network={WORKER}-f,subnet={WORKER}-f,no-address "
        + " ".join(
            f"--network-interface=nic-type=MRDMA,network={WORKER}-r,subnet={WORKER}-r{each},no-address"
            for each in range(8)
        ),
        r"192\.168\.184\.2",
    ),
    (f"compute networks delete {WORKER}-f --quiet", "!already being used by"),
    (f"compute instances delete {WORKER}-g {ZONE} --quiet", ""),
    (f"compute networks subnets delete {WORKER}-f --region=us-central1 --quiet", ""),
    (f"compute networks delete {WORKER}-f --quiet", ""),
    # And all of it goes again
    (f"iam service-accounts delete {EMAIL}", ""),
    (f"storage rm --recursive {GS}", ""),
    (f"storage ls {GS}", "!404|not found"),
]


@pytest.fixture(scope="module")
def gcloud(cloud, tmp_path_factory):
    cloud.session.get(f"{cloud.url}/_berg/requests")  # so that there is a token
    return Gcloud(
        cloud.url, "berg-local", cloud.session.credentials.token, tmp_path_factory.mktemp("gcloud")
    )


@pytest.mark.parametrize(("command", "expected"), TOUR, ids=lambda text: text[:60])
def test_tour(gcloud, command, expected):
    done = gcloud.run(*command.split())
    assert (done.returncode != 0) == expected.startswith("!"), done.stdout + done.stderr
    shown = done.stderr if done.returncode else done.stdout + done.stderr
    assert re.search(expected.removeprefix("!"), shown), shown

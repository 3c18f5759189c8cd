# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""What Google refuses and an emulation easily takes, by service."""

import pytest
from local_cloud import bucket, client, http_session, raw, server  # noqa: F401
from local_kube import PLACE, SYSTEM, gpu_pool
from local_machines import IMAGE, NIC, ZONE, Client, body

from localcloud.compute import listing
from localcloud.errors import ApiError

REGION = "us-central1"
DISK = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}
GPU = {"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}
TERMINATE = {"onHostMaintenance": "TERMINATE"}


@pytest.fixture
def machines(cloud):
    return Client(cloud.folder)


def message(answer) -> str:
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["message"]


def disk(**params) -> dict:
    return {**DISK, "initializeParams": {**DISK["initializeParams"], **params}}


# --- Compute Engine

LINKS = [
    ({"machineType": "n1-standard-1"}, "machineType"),
    ({"disks": [disk(diskType="pd-ssd")]}, "disks[0].initializeParams.diskType"),
    ({"guestAccelerators": [GPU], "scheduling": TERMINATE}, "guestAccelerators[0].acceleratorType"),
]


@pytest.mark.parametrize(("fields", "field"), LINKS, ids=[field for _, field in LINKS])
def test_an_insert_names_types_by_their_links(machines, fields, field):
    answer = machines.call("POST", f"/zones/{ZONE}/instances", body("bare", **fields))
    assert f"'resource.{field}'" in message(answer) and "malformed" in message(answer)


URLS = [
    ({"machineType": f"zones/{ZONE}/machineTypes/n1-standard-1"}, "machineType"),
    ({"disks": [disk(diskType=f"zones/{ZONE}/diskTypes/pd-ssd")]}, "diskType"),
    (
        {
            "guestAccelerators": [
                {**GPU, "acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4"}
            ],
            "scheduling": TERMINATE,
        },
        "acceleratorType",
    ),
]


@pytest.mark.parametrize(("fields", "field"), URLS, ids=[field for _, field in URLS])
def test_templates_and_bulk_inserts_name_types_by_their_names(machines, fields, field):
    properties = {"machineType": "n1-standard-1", "disks": [DISK], "networkInterfaces": [NIC]}
    template = {"name": "linked", "properties": {**properties, **fields}}
    answer = machines.call("POST", "/global/instanceTemplates", template)
    assert field in message(answer) and "Must be the name" in message(answer)
    bulk = {"count": 1, "namePattern": "linked-#", "instanceProperties": {**properties, **fields}}
    answer = machines.call("POST", f"/zones/{ZONE}/instances/bulkInsert", bulk)
    assert field in message(answer) and "Must be the name" in message(answer)


def test_how_long_a_machine_may_run(machines):
    limited = {"maxRunDuration": {"seconds": "3600"}, "instanceTerminationAction": "DELETE"}
    fields = {"scheduling": {**limited, "preemptible": True}}
    answer = machines.call("POST", f"/zones/{ZONE}/instances", body("old", **fields))
    assert "preemptible" in message(answer)
    flexible = {**limited, **TERMINATE, "provisioningModel": "FLEX_START"}
    properties = {"machineType": "n1-standard-1", "disks": [DISK], "networkInterfaces": [NIC]}
    properties |= {"guestAccelerators": [GPU], "scheduling": flexible}
    bulk = {"count": 1, "namePattern": "flex-#", "instanceProperties": properties}
    answer = machines.call("POST", f"/zones/{ZONE}/instances/bulkInsert", bulk)
    assert "provisioningModel" in message(answer)


def test_the_length_of_a_device_name(machines):
    fields = {"disks": [{**DISK, "deviceName": "d" * 64}]}
    answer = machines.call("POST", f"/zones/{ZONE}/instances", body("long", **fields))
    assert "deviceName" in message(answer)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"distributionPolicy": ["a", "a"]}, "distinct"),
        ({"updatePolicy": {"maxUnavailable": {"fixed": 1}}}, "number of zones"),
    ],
)
def test_the_zones_of_a_group(machines, fields, words):
    properties = {"machineType": "n1-standard-1", "disks": [DISK], "networkInterfaces": [NIC]}
    template = {"name": "zoned", "properties": properties}
    machines.wait(machines.call("POST", "/global/instanceTemplates", template))
    zones = [
        {"zone": f"zones/{REGION}-{letter}"} for letter in fields.pop("distributionPolicy", "abc")
    ]
    group = {"name": "zoned", "targetSize": 0, "instanceTemplate": "global/instanceTemplates/zoned"}
    group |= {"distributionPolicy": {"zones": zones}, **fields}
    try:
        answer = machines.call("POST", f"/regions/{REGION}/instanceGroupManagers", group)
        assert words in message(answer)
    finally:
        machines.wait(machines.call("DELETE", "/global/instanceTemplates/zoned"))


@pytest.mark.parametrize(
    "text",
    [
        'name eq "a.*" AND status eq RUNNING',
        "(name eq a.*) OR (name eq b.*)",
        "name eq a.* status=RUNNING",
        "NOT name eq a.*",
        "tags.items=web",
        "tags:web",
        "(name=a) AND (tags.items:web)",
    ],
)
def test_filters_of_two_languages_do_not_mix(text):
    with pytest.raises(ApiError, match="filter"):
        listing.matches(text)


def test_filters_of_one_language_go_on_working():
    row = {"name": "a-1", "status": "RUNNING"}
    assert listing.matches("(name eq a.*) (status ne STOPPED)")(row)
    assert listing.matches("name=a-1 AND (status=RUNNING OR status=STOPPING)")(row)


def test_a_mask_names_fields_that_there_are(machines, raw):
    path = f"/zones/{ZONE}/instances"
    assert machines.call("GET", path, fields="items(name,disks/deviceName),nextPageToken").ok
    assert machines.call("GET", "/aggregated/instances", fields="items/*/instances(name)").ok
    for wrong in ("item", "items(nam)", "items/disks/deviceNames"):
        assert "Invalid field selection" in message(machines.call("GET", path, fields=wrong))
    assert raw.session.get(raw.base, params={"fields": "name,labels/any"}).ok
    assert raw.session.get(raw.base, params={"fields": "names"}).status_code == 400


# --- Cloud Storage


def test_predefined_lists_do_not_go_with_uniform_access(raw):
    uniform = {"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}
    url = f"{raw.server.url}/storage/v1/b?project=test-project"
    for key in ("predefinedAcl", "predefinedDefaultObjectAcl"):
        answer = raw.session.post(f"{url}&{key}=private", json={"name": "uniform-one", **uniform})
        assert "uniform bucket-level access" in message(answer)


@pytest.mark.parametrize(("days", "status"), [(0, 200), (1, 400), (7, 200), (90, 200), (91, 400)])
def test_how_long_deleted_objects_are_kept(raw, days, status):
    policy = {"softDeletePolicy": {"retentionDurationSeconds": days * 24 * 3600}}
    assert raw.session.patch(raw.base, json=policy).status_code == status


def test_permissions_that_can_be_tested_of_a_bucket(raw):
    url = f"{raw.base}/iam/testPermissions"
    for wrong in ("storage.*", "storage.objects.erase", "compute.instances.get"):
        asked = [("permissions", "storage.objects.get"), ("permissions", wrong)]
        assert raw.session.get(url, params=asked).status_code == 400, wrong
    held = raw.session.get(url, params={"permissions": "storage.objects.get"}).json()
    assert held["permissions"] == ["storage.objects.get"]


# --- Kubernetes Engine


def pool(**fields) -> dict:
    return {**SYSTEM, "config": {**SYSTEM["config"], **fields.pop("config", {})}, **fields}


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"nodePools": [SYSTEM, SYSTEM]}, "unique"),
        ({"network": "elsewhere"}, 'Network "elsewhere"'),
        ({"subnetwork": "elsewhere"}, 'Subnetwork "elsewhere"'),
        ({"resourceLabels": {"Team": "a"}}, "resource.labels"),
        ({"resourceLabels": {"team": "A"}}, "resource.labels"),
        ({"initialClusterVersion": "1.12"}, "1.12"),
        ({"initialClusterVersion": "1.3"}, '"1.3"'),
        ({"nodePools": [pool(version="1.12.1-gke.1")]}, "1.12.1"),
        ({"nodePools": [pool(management={"autoRepair": True})]}, "Auto_upgrade must be true"),
        (
            {"nodePools": [pool(config={"serviceAccount": "no@one.iam.gserviceaccount.com"})]},
            "no@one",
        ),
        ({"nodePools": [pool(config={"imageType": "ARCH_LINUX"})]}, "ARCH_LINUX"),
        ({"nodePools": [pool(config={"oauthScopes": ["cloud-platform"]})]}, "OAuth scope"),
        ({"nodePools": [pool(config={"labels": {"kubernetes.io/os": "linux"}})]}, "reserved"),
        ({"nodePools": [pool(config={"labels": {"node.k8s.io/x": "y"}})]}, "reserved"),
        ({"nodePools": [pool(config={"resourceLabels": {"Team": "a"}})]}, "resource.labels"),
        ({"nodePools": [pool(maxPodsConstraint={"maxPodsPerNode": "300"})]}, "between 8 and 256"),
    ],
)
def test_a_cluster_that_google_refuses_is_refused(cloud, cluster, words):
    wanted = {"name": "refused", "nodePools": [SYSTEM], **cluster}
    url = f"{cloud.url}/container/v1/{PLACE}/clusters"
    assert words in message(cloud.session.post(url, json={"cluster": wanted}))


@pytest.mark.parametrize("version", ["", "-", "latest", "1.36", "1.36.2", "1"])
def test_versions_of_clusters_that_are_served(version):
    from localcloud.container.checks import NODE_VERSION, check_version

    check_version("version", version)
    check_version("version", NODE_VERSION)


def test_pools_of_machines_with_gpus_still_pass():
    from localcloud.container.checks import check_config

    check_config(gpu_pool())


# --- Cloud Build


def test_a_log_goes_to_a_bucket_that_is_there(cloud):
    build = {"steps": [{"name": "gcr.io/cloud-builders/docker", "args": ["version"]}]}
    build |= {"logsBucket": "gs://no-such-bucket", "options": {"logging": "GCS_ONLY"}}
    url = f"{cloud.url}/cloudbuild/v1/projects/berg-local/locations/us-central1/builds"
    assert "no-such-bucket" in message(cloud.session.post(url, json=build))

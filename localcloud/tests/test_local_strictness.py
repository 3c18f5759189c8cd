# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""What Google refuses and an emulation easily takes, by service."""

import pytest
from local_cloud import bucket, client, http_session, raw, server  # noqa: F401
from local_kube import SYSTEM
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
    bulk = {
        "count": 1,
        "perInstanceProperties": {"linked-1": {}},
        "instanceProperties": {**properties, **fields},
    }
    answer = machines.call("POST", f"/zones/{ZONE}/instances/bulkInsert", bulk)
    assert field in message(answer) and "Must be the name" in message(answer)


SCRATCH = {
    "type": "SCRATCH",
    "autoDelete": True,
    "initializeParams": {"diskType": f"zones/{ZONE}/diskTypes/local-ssd", "diskSizeGb": "100"},
}
SECOND = {"autoDelete": True, "initializeParams": {"diskSizeGb": "10"}}
HOUR = {"maxRunDuration": {"seconds": "3600"}, "instanceTerminationAction": "DELETE"}
AFFINITY = {"consumeReservationType": "SPECIFIC_RESERVATION"}
UNKNOWN_SCOPE = "https://www.googleapis.com/auth/secretmanager"  # there is no such scope
ACCOUNT = {"email": "default", "scopes": [UNKNOWN_SCOPE]}


def named(row: dict) -> dict:
    return {**row, "deviceName": "same"}


NEIGHBOURS = [
    ({"disks": [named(DISK), named(SECOND)]}, "disks[1].deviceName': 'same'. Device names must"),
    ({"disks": [DISK, SCRATCH]}, "disks[1].initializeParams.diskSizeGb': '100'. A Local SSD has"),
    (
        {"scheduling": {"preemptible": True, "provisioningModel": "STANDARD"}},
        "'STANDARD'. For preemptible, only allowed provisioning_model value is SPOT",
    ),
    (
        {"scheduling": {"instanceTerminationAction": "DELETE"}},
        "'DELETE'. You cannot specify a termination action for a VM instance that has",
    ),
    (
        {"scheduling": {**HOUR, "maxRunDuration": {"seconds": "3600", "nanos": -5}}},
        "maxRunDuration.nanos': '-5'. Must be from 0 to 999,999,999",
    ),
    ({"reservationAffinity": AFFINITY}, "A specific reservation needs its key and its name."),
    (
        {"serviceAccounts": [ACCOUNT]},
        f"One or more of the service account scopes are invalid: '{UNKNOWN_SCOPE}'",
    ),
    (
        {"serviceAccounts": [{**ACCOUNT, "scopes": ["cloud-platform"]}]},
        "One or more of the service account scopes are invalid: 'cloud-platform'",
    ),
]


def test_a_scope_that_one_of_googles_apis_has_is_taken(machines):
    scopes = ["https://www.googleapis.com/auth/trace.append", "https://mail.google.com/"]
    account = {"email": "default", "scopes": scopes}
    properties = {"machineType": "n1-standard-1", "disks": [DISK], "networkInterfaces": [NIC]}
    template = {"name": "scoped", "properties": {**properties, "serviceAccounts": [account]}}
    assert machines.call("POST", "/global/instanceTemplates", template).ok


@pytest.mark.parametrize(
    "text",
    [
        'name eq "a.*" AND status eq RUNNING',
        "(name eq a.*) OR (name eq b.*)",
        "name eq a.* status=RUNNING",
        "tags.items=web",
        "tags:web",
        "(name=a) AND (tags.items:web)",
    ],
)
def test_filters_of_two_languages_do_not_mix(text):
    with pytest.raises(ApiError, match="filter"):
        listing.matches(text)


def test_a_duration_is_seconds(raw):
    chart = {"timeSeriesFilter": {"filter": "x", "aggregation": {"alignmentPeriod": "a minute"}}}
    wish = {"xyChart": {"dataSets": [{"timeSeriesQuery": chart}]}}
    tile = {"width": 4, "height": 4, "widget": wish}
    board = {"displayName": "d", "mosaicLayout": {"columns": 12, "tiles": [tile]}}
    path = "/monitoring/v1/projects/test-project/dashboards"
    answer = raw.session.post(f"{raw.server.url}{path}", json=board)
    assert 'protobuf.Duration), "a minute"' in message(answer)


def test_the_family_of_an_image_is_a_name(machines):
    image = {"name": "own", "sourceSnapshot": "global/snapshots/none", "family": "No Family"}
    assert "resource.family" in message(machines.call("POST", "/global/images", image))


def test_a_reservation_of_any_kind_is_not_served(machines):
    affinity = {"consumeReservationType": "ANY_RESERVATION"}
    answer = machines.call(
        "POST", f"/zones/{ZONE}/instances", body("any", reservationAffinity=affinity)
    )
    assert answer.status_code == 501 and "ANY_RESERVATION" in answer.text


def test_filters_of_one_language_go_on_working():
    row = {"name": "a-1", "status": "RUNNING"}
    assert listing.matches("(name eq a.*) (status eq RUNNING)")(row)
    assert listing.matches("name=a-1 AND (status=RUNNING)")(row)


def test_a_mask_names_fields_that_there_are(machines, raw):
    path = f"/zones/{ZONE}/instances"
    assert machines.call("GET", path, fields="items(name,disks/deviceName),nextPageToken").ok
    assert machines.call("GET", "/aggregated/instances", fields="items/*/instances(name)").ok
    for wrong in ("item", "items(nam)", "items/disks/deviceNames"):
        assert "Invalid field selection" in message(machines.call("GET", path, fields=wrong))
    assert raw.session.get(raw.base, params={"fields": "name,labels/any"}).ok
    assert raw.session.get(raw.base, params={"fields": "names"}).status_code == 400


# --- Cloud Storage


@pytest.mark.parametrize(("days", "status"), [(0, 200), (1, 400), (7, 200), (90, 200), (91, 400)])
def test_how_long_deleted_objects_are_kept(raw, days, status):
    policy = {"softDeletePolicy": {"retentionDurationSeconds": days * 24 * 3600}}
    url, params = f"{raw.server.url}/storage/v1/b", {"project": "test-project"}
    answer = raw.session.post(url, params=params, json={"name": f"kept-{days}-days", **policy})
    assert answer.status_code == status


def test_permissions_that_can_be_tested_of_a_bucket(raw):
    url = f"{raw.base}/iam/testPermissions"
    for wrong in ("storage.*", "storage.objects.erase", "compute.instances.get"):
        asked = [("permissions", "storage.objects.get"), ("permissions", wrong)]
        assert raw.session.get(url, params=asked).status_code == 400, wrong
    held = raw.session.get(url, params={"permissions": "storage.objects.get"}).json()
    assert held["permissions"] == ["storage.objects.get"]


def test_uploads_say_what_can_be(raw):
    put = lambda **what: raw.session.post(raw.uploads, **what)
    assert "uploadType" in message(put(params={"name": "a"}, data=b"x"))


def test_a_body_names_the_object_of_its_path(raw):
    raw.put("a", b"x")
    assert "does not agree" in message(raw.session.patch(raw.url("a"), json={"name": "b"}))
    composed = {"sourceObjects": [{"name": "a"}], "destination": {"name": "other"}}
    assert "does not agree" in message(raw.session.post(f"{raw.url('c')}/compose", json=composed))
    assert raw.session.patch(raw.url("a"), json={"name": "a", "bucket": raw.name}).ok


# --- IAM, Resource Manager and Secret Manager

READER = "roles/storage.objectViewer"
ME = "user:laptop@berg.local"
TRUE = {"title": "t", "expression": "resource.name == 'a'"}


class Policies:
    """The policy of the project, by requests that may be refused."""

    def __init__(self, raw):
        self.session, self.base = raw.session, f"{raw.server.url}/cloudresourcemanager/v1/projects"

    def call(self, method: str, body: dict):
        return self.session.post(f"{self.base}/test-project:{method}", json=body)

    def set(self, *bindings: dict, version: int = 1, **more):
        kept = self.call("getIamPolicy", {}).json()["bindings"]
        policy = {"bindings": [*kept, *bindings], "version": version}
        return self.call("setIamPolicy", {"policy": policy, **more})


def bound(*members: str, **fields) -> dict:
    return {"role": READER, "members": [*members], **fields}


def test_a_project_keeps_the_owner_it_has(raw):
    policies = Policies(raw)
    policy = {"bindings": [bound(ME)]}
    assert "at least one owner" in message(policies.call("setIamPolicy", {"policy": policy}))


# --- Kubernetes Engine


OF_GKE = "cloud.google.com/gke-"


def pool(**fields) -> dict:
    return {**SYSTEM, "config": {**SYSTEM["config"], **fields.pop("config", {})}, **fields}


ADDRESSES = {"useIpAliases": True, "clusterIpv4CidrBlock": "hello"}
UNREACHABLE = {
    "dnsEndpointConfig": {"allowExternalTraffic": False},
    "ipEndpointsConfig": {"enabled": False},
}


TAINT = {"key": "a", "value": "b", "effect": "NO_SCHEDULE"}
T4 = {"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": "1"}
ON_N1 = {"machineType": "n1-standard-4"}
POOLS = [
    ({"upgradeSettings": {"maxSurge": 0, "maxUnavailable": 0}}, 400, "greater than 0"),
    ({"upgradeSettings": {"maxSurge": 15, "maxUnavailable": 15}}, 400, "at most 20"),
    ({"upgradeSettings": {"maxSurge": -1}}, 400, "must not be negative"),
    ({"upgradeSettings": {"strategy": "BLUE_GREEN"}}, 501, "strategy"),
    ({"config": {"taints": [{"key": "a", "value": "b"}]}}, 400, "must have an effect"),
    ({"config": {"taints": [TAINT, TAINT]}}, 400, "must differ"),
    ({"config": {"labels": {"a b": "c"}}}, 400, "Invalid label key"),
    ({"config": {"labels": {"a": "c" * 64}}}, 400, "Invalid label value"),
    ({"config": {"labels": {f"k{n}": "v" * 60 for n in range(20)}}}, 400, "at most 1024"),
    ({"config": {"tags": [f"t{n}" for n in range(65)]}}, 400, "at most 64"),
    ({"config": {"tags": ["a", "a"]}}, 400, "must be distinct"),
    ({"config": {"metadata": {"a": "x" * 40000}}}, 400, "at most 32768 bytes"),
    ({"config": {**ON_N1, "accelerators": [T4, T4]}}, 400, "Only one type"),
    ({"config": {**ON_N1, "accelerators": [{**T4, "gpuPartitionSize": "1g.5gb"}]}}, 501, "gpuPart"),
    ({"config": {"localSsdCount": 1}}, 501, "localSsdCount"),
    ({"config": {"kubeletConfig": {"podPidsLimit": "5"}}}, 501, "podPidsLimit"),
    (
        {"config": {"reservationAffinity": {"consumeReservationType": "SPECIFIC_RESERVATION"}}},
        501,
        "reservation",
    ),
    ({"placementPolicy": {"type": "COMPACT"}}, 501, "placementPolicy"),
    ({"networkConfig": {"podRange": "nope"}}, 501, "podRange"),
    ({"autoscaling": {"enabled": True, "minNodeCount": -1, "maxNodeCount": 2}}, 400, "negative"),
    ({"autoscaling": {"enabled": True, "maxNodeCount": 20000}}, 400, "at most 1000"),
    ({"initialNodeCount": 5, "autoscaling": {"enabled": True, "maxNodeCount": 2}}, 400, "exceed"),
]


# --- Cloud Build

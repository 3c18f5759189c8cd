# ruff: noqa: F811 (a fixture is imported, and arguments have its name)
"""The embedded Compute Engine, asked by plain HTTP."""

import os
import re
import shlex
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from local_machines import IMAGE, ZONE, body, client, error, failure, until  # noqa: F401 (a fixture)

from localcloud.compute import listing
from localcloud.errors import ApiError
from localcloud.machines import processes

P100 = [
    {"acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-p100", "acceleratorCount": 1}
]
TERMINATE = {"onHostMaintenance": "TERMINATE"}
REGION = "us-central1"


@pytest.fixture(autouse=True)
def tidy(client):
    yield
    client.tidy()


# --- the life of an instance


def test_insert_boots_a_machine_and_delete_leaves_nothing(client):
    resource = client.insert("one", guestAccelerators=P100, scheduling=TERMINATE)
    assert resource["selfLink"].endswith(f"/projects/berg-local/zones/{ZONE}/instances/one")
    disk = client.call("GET", f"/zones/{ZONE}/disks/one").json()
    assert disk["users"] == [resource["selfLink"]] and disk["sizeGb"] == "10"
    folder = client.folder / "machines" / resource["id"]
    first = processes.first_process(folder)
    assert client.get(resource["id"]) == resource  # by its id, and deleted by it
    done = client.delete(resource["id"])
    assert done["operationType"] == "delete" and done["targetId"] == resource["id"]
    assert client.get("one") is None and not folder.exists()
    assert not Path(f"/proc/{first}").exists()
    assert client.call("GET", f"/zones/{ZONE}/disks/one").status_code == 404


def test_the_same_request_id_is_the_same_operation_and_another_finds_the_name_taken(client):
    request_id = str(uuid.uuid4())
    path = f"/zones/{ZONE}/instances"
    first = client.call("POST", path, body("twice"), requestId=request_id)
    again = client.call("POST", path, body("twice"), requestId=request_id)
    assert first.json()["name"] == again.json()["name"]
    client.wait(first)
    words = f"The resource 'projects/berg-local/zones/{ZONE}/instances/twice' already exists"
    assert error(client.call("POST", path, body("twice"))) == (409, "alreadyExists", words)
    delete_id = str(uuid.uuid4())
    client.wait(client.call("DELETE", f"{path}/twice", requestId=delete_id))
    again = client.call("DELETE", f"{path}/twice", requestId=delete_id)
    assert again.json()["operationType"] == "delete" and again.json()["status"] == "DONE"


def test_a_request_id_is_a_uuid(client):
    for wrong in (
        "mine",
        "00000000-0000-0000-0000-000000000000",
        str(uuid.uuid4()).replace("-", ""),
    ):
        found = error(
            client.call("POST", f"/zones/{ZONE}/instances", body("once"), requestId=wrong)
        )
        assert found[:2] == (400, "invalid") and "requestId" in found[2]


@pytest.mark.parametrize(("end", "has_words"), [("preempt", True), ("crash", False)])
def test_a_preempted_machine_has_time_for_last_words_and_one_that_crashed_has_none(
    client, end, has_words
):
    words = "trap 'sleep 0.1; echo saved >/root/words; exit' TERM; echo up; sleep 100 & wait"
    spot = {"provisioningModel": "SPOT", "instanceTerminationAction": "STOP"}
    resource = client.insert("spot", f"#!/bin/bash\n{words}\n", scheduling=spot)
    client.console_with("spot", "startup-script: up")
    client.control(f"instances/spot/{end}", {"grace": 10} if has_words else {})
    until(lambda: client.status("spot") == "TERMINATED", "the end of the machine")
    files = (client.folder / "machines" / resource["id"]).glob("*/root/words")
    assert [file.read_text() for file in files] == ["saved\n"] * has_words


def test_a_cut_machine_reaches_nothing(client):
    token = 'curl -s -m 2 -H "Metadata-Flavor: Google" $M/service-accounts/default/token'
    script = (
        "#!/bin/bash\nexec 2>&1\nM=http://$GCE_METADATA_HOST/computeMetadata/v1/instance\n"
        f"T=$({token} | cut -d'\"' -f4)\necho token ${{T:0:5}}\n"
        f'while {token} >/dev/null; do sleep 0.05; done; echo "metadata gone $?"\n'
        f'curl -s -m 2 -H "Authorization: Bearer $T" {client.url}/compute/v1/projects/berg-local; echo api $?\n'
    )
    client.insert("island", script)
    client.console_with("island", "startup-script: token ya29.")
    client.control("instances/island/cut")
    client.console_with("island", "metadata gone")
    # 56: the connection was reset
    assert "api 56" in client.console_with("island", "startup-script: api")


# --- the metadata server


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_machine_gets_its_token_and_others_on_this_computer_do_not(client):
    token = "http://%s/computeMetadata/v1/instance/service-accounts/default/token"
    ask = ["curl", "-s", "-H", "Metadata-Flavor: Google"]
    inside = f"{shlex.join(ask)} {token % '$GCE_METADATA_HOST'}"
    script = f"#!/bin/bash\necho host $GCE_METADATA_HOST end\necho inside $({inside})\n"
    client.insert("box", script)
    console = client.console_with("box", "inside")
    assert "access_token" in console
    host = re.search(r"host (\S+) end", console)[1]
    namespaces = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    for others in ([], namespaces):  # which make no machine of root's
        if subprocess.run([*others, "true"], user="nobody", capture_output=True).returncode:
            continue  # other users make no namespaces here
        words = [*others, *ask, token % host]
        done = subprocess.run(words, user="nobody", capture_output=True, text=True)
        assert done.returncode == 0 and "only the user of its machine" in done.stdout, done
        assert "ya29" not in done.stdout


def test_metadata_server_and_default_credentials(client):
    project = f"{client.url}/compute/v1/projects/berg-local"
    code = (
        "import google.auth as a, google.auth.transport.requests as t; found, project = a.default();"
        f" print(project, t.AuthorizedSession(found).get('{project}').status_code)"
    )
    script = (
        "#!/bin/bash\nexec 2>&1\nM=http://$GCE_METADATA_HOST/computeMetadata/v1\n"
        'get() { curl -s -H "Metadata-Flavor: Google" "$M/$1"; echo; }\n'
        "get instance/name; get instance/zone; get project/project-id; get instance/attributes/mine\n"
        "get instance/network-interfaces/0/ip; get 'instance/service-accounts/default/?recursive=true'\n"
        "curl -s -o /dev/null -w 'bare %{http_code}\\n' $M/instance/name\n"
        "curl -s -o /dev/null -w 'none %{http_code}\\n' -H 'Metadata-Flavor: Google' $M/instance/nothing\n"
        f'{sys.prefix}/bin/python -c "{code}"\n'
        "until get instance/attributes/mine | grep second; do sleep 0.1; done\n"
    )
    items = [{"key": "startup-script", "value": script}, {"key": "mine", "value": "first"}]
    resource = client.insert("meta", metadata={"items": items})
    shown = client.console_with("meta", "startup-script: berg-local 200")
    assert (
        "startup-script: meta" in shown
        and f"zones/{ZONE}" in shown
        and "startup-script: berg-local" in shown
    )
    assert f"startup-script: {resource['networkInterfaces'][0]['networkIP']}" in shown
    assert '"aliases": ["default"]' in shown and "bare 403" in shown and "none 404" in shown
    metadata = {"fingerprint": "c3RhbGU=", "items": [items[0], {"key": "mine", "value": "second"}]}
    path = f"/zones/{ZONE}/instances/meta/setMetadata"
    assert error(client.call("POST", path, metadata))[:2] == (412, "conditionNotMet")
    metadata["fingerprint"] = resource["metadata"]["fingerprint"]
    client.wait(client.call("POST", path, metadata))
    assert "startup-script: second" in client.console_with("meta", "Finished running")


# --- what Google refuses


BOOT = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}
LOCAL_SSD = {
    "type": "SCRATCH",
    "autoDelete": True,
    "initializeParams": {"diskType": f"zones/{ZONE}/diskTypes/local-ssd"},
}


def of_type(machine_type: str, **fields) -> dict:
    return {"machineType": f"zones/{ZONE}/machineTypes/{machine_type}", **fields}


DAY = {"seconds": "86400"}
NO_SCOPE = "https://www.googleapis.com/auth/secretmanager"


def boot_disk(**params) -> dict:
    return {"disks": [{**BOOT, "initializeParams": {"sourceImage": IMAGE, **params}}]}


WRONG = {
    "name": ({"name": "No"}, 400, "invalid", "Must be a match of regex"),
    "machine type": (
        {"machineType": f"zones/{ZONE}/machineTypes/n1-huge"},
        400,
        "invalid",
        f"Machine type with name 'n1-huge' does not exist in zone '{ZONE}'",
    ),
    "image": (
        boot_disk(sourceImage="projects/debian-cloud/global/images/family/debian-99"),
        400,
        "invalid",
        "The referenced image resource cannot be found",
    ),
    "small disk": (
        boot_disk(diskSizeGb="5"),
        400,
        "invalid",
        "cannot be smaller than the image size",
    ),
    "accelerator": (
        {
            "guestAccelerators": [
                {
                    **P100[0],
                    "acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-h200-141gb",
                }
            ],
            "scheduling": TERMINATE,
        },
        404,
        "notFound",
        f"zones/{ZONE}/acceleratorTypes/nvidia-h200-141gb' was not found",
    ),
    "migrating gpu": ({"guestAccelerators": P100}, 400, "invalid", "do not support live migration"),
    "too many cpus": (
        {
            "guestAccelerators": P100,
            "scheduling": TERMINATE,
            "machineType": f"zones/{ZONE}/machineTypes/n1-standard-32",
        },
        400,
        "badRequest",
        "Number of vCPUs 32 is too high",
    ),
    "gpu on e2": (
        {
            "guestAccelerators": P100,
            "scheduling": TERMINATE,
            "machineType": f"zones/{ZONE}/machineTypes/e2-standard-4",
        },
        400,
        "badRequest",
        "not compatible",
    ),
    "short run": (
        {
            "scheduling": {
                "maxRunDuration": {"seconds": "10"},
                "instanceTerminationAction": "DELETE",
            }
        },
        400,
        "invalid",
        "Max run duration",
    ),
    "run without action": (
        {"scheduling": {"maxRunDuration": {"seconds": "60"}}},
        400,
        "invalid",
        "termination action",
    ),
    "spot restart": (
        {"scheduling": {"provisioningModel": "SPOT", "automaticRestart": True}},
        400,
        "invalid",
        "AutomaticRestart",
    ),
    "label": ({"labels": {"Berg": "1"}}, 400, "invalid", "Label key violates format constraints"),
    "service account": (
        {"serviceAccounts": [{"email": "x@elsewhere.iam.gserviceaccount.com"}]},
        404,
        "notFound",
        "of type 'serviceAccount' was not found",
    ),
    "network": (
        {"networkInterfaces": [{"network": "global/networks/lab"}]},
        400,
        "invalid",
        "The referenced network resource cannot be found",
    ),
    "metadata twice": (
        {"metadata": {"items": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]}},
        400,
        "invalid",
        "duplicate key: a",
    ),
    "metadata size": (
        {"metadata": {"items": [{"key": "a", "value": "x" * 300_000}]}},
        413,
        "fieldSizeTooLarge",
        "too large",
    ),
    "description": (
        {"description": "x" * 2049},
        413,
        "fieldSizeTooLarge",
        "'resource.description' is too large: maximum size 2048 character(s); actual size 2049.",
    ),
    "two on one network": (
        {"networkInterfaces": [{}, {}]},
        400,
        "invalid",
        "Subnetworks must be distinct for NICs attached to a VM.",
    ),
    "bare network": (
        {"networkInterfaces": [{"network": "default"}]},
        400,
        "invalid",
        "The URL is malformed.",
    ),
    "subnetwork elsewhere": (
        {"networkInterfaces": [{"subnetwork": "regions/us-west1/subnetworks/default"}]},
        400,
        "invalid",
        "'resource.networkInterfaces[0].subnetwork'",
    ),
    "IPv6": (
        {"networkInterfaces": [{"stackType": "IPV4_IPV6"}]},
        501,
        "notImplemented",
        "stackType",
    ),
    "alias range": (
        {"networkInterfaces": [{"aliasIpRanges": [{"ipCidrRange": "/24"}]}]},
        501,
        "notImplemented",
        "aliasIpRanges",
    ),
    "policy": (
        {"resourcePolicies": ["regions/us-central1/resourcePolicies/nightly"]},
        404,
        "notFound",
        "resourcePolicies/nightly",
    ),
    "seven local ssds on g2": (
        of_type("g2-standard-4", disks=[BOOT, *[LOCAL_SSD] * 7], scheduling=TERMINATE),
        400,
        "badRequest",
        "Invalid number of local SSDs 7",
    ),
    "a time limit that loses local ssds": (
        of_type(
            "n1-standard-4",
            disks=[BOOT, LOCAL_SSD],
            scheduling={"maxRunDuration": DAY, "instanceTerminationAction": "STOP"},
        ),
        400,
        "invalid",
        "onInstanceStopAction.discardLocalSsd",
    ),
    "local ssd on e2": (
        of_type("e2-standard-4", disks=[BOOT, LOCAL_SSD]),
        400,
        "badRequest",
        "Invalid number of local SSDs 1",
    ),
    "disk type of another zone": (
        boot_disk(diskType="zones/us-west1-a/diskTypes/pd-ssd"),
        400,
        "invalid",
        "The referenced diskType resource cannot be found.",
    ),
    "hyperdisk on n1": (
        boot_disk(diskType=f"zones/{ZONE}/diskTypes/hyperdisk-balanced"),
        400,
        "badRequest",
        "hyperdisk-balanced disk type cannot be used by",
    ),
    "encrypted disk": (
        {"disks": [{**BOOT, "diskEncryptionKey": {"rawKey": "x"}}]},
        501,
        "notImplemented",
        "diskEncryptionKey",
    ),
    "bare scope": (
        {"serviceAccounts": [{"email": "default", "scopes": ["cloud-platform"]}]},
        400,
        "invalid",
        "scopes are invalid: 'cloud-platform'",
    ),
    "a scope that no API has": (
        {"serviceAccounts": [{"email": "default", "scopes": [NO_SCOPE]}]},
        400,
        "invalid",
        f"One or more of the service account scopes are invalid: '{NO_SCOPE}'",
    ),
    "reservation": (
        {
            "reservationAffinity": {
                "consumeReservationType": "SPECIFIC_RESERVATION",
                "key": "compute.googleapis.com/reservation-name",
                "values": ["mine"],
            }
        },
        400,
        "invalid",
        "Specified reservations [mine] do not exist.",
    ),
    "any reservation": (
        {"reservationAffinity": {"consumeReservationType": "ANY_RESERVATION"}},
        501,
        "notImplemented",
        "ANY_RESERVATION",
    ),
    "hostname": ({"hostname": "vm.example.com"}, 501, "notImplemented", "resource.hostname"),
    "notice without spot": (
        {"scheduling": {"preemptionNoticeDuration": {"seconds": "120"}}},
        400,
        "invalid",
        "preemptionNoticeDuration",
    ),
    "short flex": (
        of_type(
            "a3-highgpu-1g",
            scheduling={
                "provisioningModel": "FLEX_START",
                "maxRunDuration": {"seconds": "360"},
                "instanceTerminationAction": "DELETE",
            },
        ),
        400,
        "invalid",
        "between 600 seconds and 7 days",
    ),
    "graceful shutdown": (
        {"scheduling": {"gracefulShutdown": {"enabled": True}}},
        501,
        "notImplemented",
        "scheduling.gracefulShutdown",
    ),
    "h100 on demand": (
        of_type("a3-highgpu-1g", scheduling=TERMINATE),
        400,
        "invalid",
        "SPOT, FLEX_START",
    ),
    "flex without end": (
        of_type("a3-highgpu-1g", scheduling={"provisioningModel": "FLEX_START"}),
        400,
        "invalid",
        "max run duration",
    ),
    "machine image": (
        {"sourceMachineImage": "global/machineImages/x"},
        501,
        "notImplemented",
        "resource.sourceMachineImage",
    ),
    "bare machine type": (
        {"machineType": "n1-standard-1"},
        400,
        "invalid",
        "'resource.machineType': 'n1-standard-1'. The URL is malformed.",
    ),
    "bare disk type": (
        boot_disk(diskType="pd-ssd"),
        400,
        "invalid",
        "'resource.disks[0].initializeParams.diskType': 'pd-ssd'. The URL is malformed.",
    ),
    "bare accelerator type": (
        {
            "guestAccelerators": [{**P100[0], "acceleratorType": "nvidia-tesla-p100"}],
            "scheduling": TERMINATE,
        },
        400,
        "invalid",
        "'resource.guestAccelerators[0].acceleratorType': 'nvidia-tesla-p100'. The URL is malformed.",
    ),
    "network card": (
        {"networkInterfaces": [{"nicType": "IDPF"}]},
        501,
        "notImplemented",
        "resource.networkInterfaces[0].nicType",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_inserts(client, what):
    fields, status, reason, message = WRONG[what]
    found = error(client.call("POST", f"/zones/{ZONE}/instances", {**body("wrong"), **fields}))
    assert found[:2] == (status, reason) and message in found[2]
    assert client.get("wrong") is None


def test_unknown_places(client):
    assert (
        error(client.call("GET", "/zones/mars-a"))[2]
        == "The resource 'projects/berg-local/zones/mars-a' was not found"
    )
    assert error(client.call("GET", "/zones/mars-a/instances"))[2].endswith("Unknown zone.")
    assert error(client.call("GET", "", project="nobody-knows"))[:2] == (404, "notFound")
    found = error(client.call("GET", "", project="debian-cloud"))
    assert found[:2] == (403, "forbidden") and "compute.projects.get" in found[2]


# --- shortages


def test_quota_is_the_operations_error(client):
    path, gpu = f"/zones/{ZONE}/instances", {"guestAccelerators": P100, "scheduling": TERMINATE}
    with client.limited("NVIDIA_P100_GPUS", 1, REGION):
        client.insert("first", **gpu)
        operation = client.wait(client.call("POST", path, body("second", **gpu)))
    assert operation["httpErrorStatusCode"] == 403 and client.get("second") is None
    assert failure(operation)["code"] == "QUOTA_EXCEEDED"
    words = "Quota 'NVIDIA_P100_GPUS' exceeded.  Limit: 1.0 in region us-central1."
    assert failure(operation)["message"] == words
    assert failure(operation)["errorDetails"][0]["quotaInfo"]["dimensions"] == {"region": REGION}
    with client.limited("GPUS_ALL_REGIONS", 0):
        operation = client.wait(client.call("POST", path, body("third", **gpu)))
    words = "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."
    assert failure(operation)["message"] == words


def test_gpus_that_go_within_a_week_may_count_among_the_preemptible_ones(client):
    week, path = 7 * 24 * 3600, f"/zones/{ZONE}/instances"
    usual, others = (f"{kind}NVIDIA_P100_GPUS" for kind in ("", "PREEMPTIBLE_"))
    with client.limited(usual, 0, REGION), client.limited(others, 1, REGION):
        for seconds, action, is_made in (
            (week + 1, "DELETE", False),
            (week, "STOP", False),
            (week, "DELETE", True),
            (week, "DELETE", False),  # for the preemptible ones have a limit, too
        ):
            limit = {"maxRunDuration": {"seconds": f"{seconds}"}, "automaticRestart": False}
            scheduling = {**TERMINATE, **limit, "instanceTerminationAction": action}
            name = f"brief-{uuid.uuid4().hex[:6]}"
            sent = body(name, guestAccelerators=P100, scheduling=scheduling)
            done = client.wait(client.call("POST", path, sent))
            assert is_made or failure(done)["code"] == "QUOTA_EXCEEDED"
            assert bool(client.get(name)) == is_made


def test_stockout(client):
    client.control("stockout", {"zone": ZONE})
    gpu = {"guestAccelerators": P100, "scheduling": TERMINATE}
    operation = client.wait(client.call("POST", f"/zones/{ZONE}/instances", body("out", **gpu)))
    assert failure(operation)["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    info = failure(operation)["errorDetails"][0]["errorInfo"]
    assert info["reason"] == "resource_availability"
    assert info["metadatas"]["attachment"] == "nvidia-tesla-p100:1"
    assert client.get("out") is None


# --- bulk


def names(client, text: str = "") -> list[str]:
    asked = {"filter": text} if text else {}
    scopes = client.call("GET", "/aggregated/instances", **asked).json()["items"].values()
    return [row["name"] for scope in scopes for row in scope.get("instances", [])]


def test_bulk_insert_is_all_or_nothing(client):
    properties = body("x", machineType="n1-standard-1")
    del properties["name"]
    three = {f"part-{number}": {} for number in range(3)}
    part = {"instanceProperties": properties, "perInstanceProperties": three}
    path = f"/zones/{ZONE}/instances/bulkInsert"
    client.control("stockout", {"zone": ZONE, "left": 2})
    done = client.wait(client.call("POST", path, part))
    summary, cause = done["error"]["errors"]
    assert summary["code"] == "VM_MIN_COUNT_NOT_REACHED" and done["httpErrorStatusCode"] == 503
    assert summary["message"] == "Requested minimum count of 3 VMs could not be created."
    assert cause["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" and names(client) == []
    client.control("stockout", {"on": False})
    wrong = {"operation_error": {"code": "INTERNAL_ERROR", "message": "no"}}
    client.control("faults", {"method": "compute.instances.insert", **wrong})
    done = client.wait(client.call("POST", path, part))
    assert [each["code"] for each in done["error"]["errors"]] == [
        "VM_MIN_COUNT_NOT_REACHED",
        "INTERNAL_ERROR",
    ]
    assert names(client) == [], "what came is taken back"
    assert error(client.call("POST", path, {**part, "minCount": 1}))[0] == 501


# --- reading


def test_lists_filter_and_page(client):
    for number in range(3):
        client.insert(f"row-{number}", labels={"berg": "1", "kind": "job" if number else "devbox"})
    path = f"/zones/{ZONE}/instances"
    first = client.call("GET", path, maxResults=2).json()
    assert [row["name"] for row in first["items"]] == ["row-0", "row-1"]
    second = client.call("GET", path, maxResults=2, pageToken=first["nextPageToken"]).json()
    assert [row["name"] for row in second["items"]] == ["row-2"] and "nextPageToken" not in second
    assert {*names(client, "labels.kind=job AND status=RUNNING")} == {"row-1", "row-2"}
    assert names(client, "status=TERMINATED") == []
    assert error(client.call("GET", path, filter="name ="))[0] == 501


ROW = {
    "name": "web-1",
    "status": "RUNNING",
    "labels": {"x": "y"},
    "zone": "https://g/zones/us-west1-a",
    "n": 5,
}
FILTERS = {
    "labels.x=y": True,
    "labels.x=z": False,
    "labels.x=*": True,
    "labels.z=*": False,
    'name eq "web-.*"': True,
    'name eq "web"': False,
    "name=web*": True,
    'zone eq ".*\\bus\\-west1\\-a\\b.*"': True,
    "(name=web-1) AND status=RUNNING": True,
    "(name = web-1) (status = STOPPED)": False,
    "(name eq web.*) (status eq RUNNING)": True,
    "name=web-1 AND (status=RUNNING)": True,
}


@pytest.mark.parametrize("text", FILTERS)
def test_filters(text):
    assert listing.matches(text)(ROW) is FILTERS[text]


@pytest.mark.parametrize(
    "text",
    [
        "name",
        "name=",
        "(name=a",
        "name=a OR name=b",
        'name eq "("',
        "AND",
        "labels.x:*",
        "a!=b",
        "-a=b",
        'name eq "a.*" AND status eq RUNNING',
        "(name eq a.*) OR (name eq b.*)",
        "name eq a.* status=RUNNING",
        "tags.items=web",
        "tags:web",
        "(name=a) AND (tags.items:web)",
    ],
)
def test_other_filters_are_refused(text):
    with pytest.raises(ApiError, match="filter"):
        listing.matches(text)


def test_a_disk_without_auto_delete_stays(client):
    disks = [{"boot": True, "autoDelete": False, "initializeParams": {"sourceImage": IMAGE}}]
    client.insert("keeper", disks=disks)
    path = f"/zones/{ZONE}/disks/keeper"
    assert error(client.call("DELETE", path))[1] == "resourceInUseByAnotherResource"
    client.delete("keeper")
    assert "users" not in client.call("GET", path).json()
    client.wait(client.call("DELETE", path))
    assert client.call("GET", path).status_code == 404

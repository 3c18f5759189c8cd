# ruff: noqa: F811 (a fixture is imported, and arguments have its name)
"""The embedded Compute Engine, asked by plain HTTP, by Google's client and by gcloud."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import uuid
from pathlib import Path

import google.oauth2.credentials
import pytest
from local_machines import IMAGE, LEARNING, ZONE, body, client, until  # noqa: F401 (a fixture)

from localcloud import control
from localcloud.compute import catalog, listing
from localcloud.errors import ApiError
from localcloud.machines import processes

P100 = [
    {"acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-p100", "acceleratorCount": 1}
]
TERMINATE = {"onHostMaintenance": "TERMINATE"}
REGION = "us-central1"


@pytest.fixture(autouse=True)
def clean(client):
    """No test leaves a machine or a shortage to the next."""
    yield
    client.control("stockout", {"on": False})
    client.session.delete(f"{client.url}/_berg/faults")
    scopes = client.call("GET", "/aggregated/instances").json()["items"]
    rows = [row for scope in scopes.values() for row in scope.get("instances", [])]
    for row in rows:
        client.delete(row["name"], row["zone"].rpartition("/")[2])


def error(answer) -> tuple[int, str, str]:
    found = answer.json()["error"]
    return answer.status_code, found["errors"][0]["reason"], found["message"]


def failure(operation: dict) -> dict:
    return operation["error"]["errors"][0]


# --- the life of an instance


def test_insert_boots_a_machine_and_delete_leaves_nothing(client):
    fields = {"labels": {"berg": "1"}, "guestAccelerators": P100, "scheduling": TERMINATE}
    config = [{"accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}]
    resource = client.insert("one", "#!/bin/bash\necho hello\n", networkInterfaces=config, **fields)
    assert resource["status"] == "RUNNING" and resource["labels"] == {"berg": "1"}
    assert resource["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert resource["selfLink"].endswith(f"/projects/berg-local/zones/{ZONE}/instances/one")
    interface = resource["networkInterfaces"][0]
    assert interface["networkIP"].startswith("127.") and interface["accessConfigs"][0]["natIP"]
    client.console_with("one", "startup-script: hello")
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


def test_the_same_request_id_is_the_same_operation(client):
    request_id = str(uuid.uuid4())
    path = f"/zones/{ZONE}/instances"
    first = client.call("POST", path, body("twice"), requestId=request_id)
    again = client.call("POST", path, body("twice"), requestId=request_id)
    assert first.json()["name"] == again.json()["name"]
    client.wait(first)
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


def test_stop_and_start_keep_the_disk(client):
    client.insert(
        "sleeper", '#!/bin/bash\ncd "${BERG_ROOT:-/root}"; cat kept; echo data > kept; echo end\n'
    )
    client.console_with("sleeper", "startup-script: end")
    client.wait(client.call("POST", f"/zones/{ZONE}/instances/sleeper/stop"))
    assert client.status("sleeper") == "TERMINATED"
    client.wait(client.call("POST", f"/zones/{ZONE}/instances/sleeper/start"))
    assert client.status("sleeper") == "RUNNING"
    client.console_with("sleeper", "startup-script: data")


def test_an_instance_is_stopping_until_it_is_gone(client):
    client.insert("leaver", "#!/bin/bash\ntrap 'sleep 0.3; exit' TERM\necho up\nsleep 100 & wait\n")
    client.console_with("leaver", "startup-script: up")
    client.call("DELETE", f"/zones/{ZONE}/instances/leaver")
    seen = {client.status("leaver")}
    while "GONE" not in seen:
        seen.add(client.status("leaver"))
    assert seen == {"STOPPING", "GONE"}


def test_preemption_is_announced_then_done(client):
    script = (
        "#!/bin/bash\ntrap 'sleep 0.1; echo last words >/root/words; exit' TERM\necho up\n"
        'curl -s -H "Metadata-Flavor: Google" "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/preempted'
        '?wait_for_change=true" >/tmp/$$ & wait $!\nsleep 100 & wait\n'
    )
    spot = {"provisioningModel": "SPOT", "instanceTerminationAction": "STOP"}
    client.insert("spot", script, scheduling=spot)
    client.console_with("spot", "startup-script: up")
    operation = client.control("instances/spot/preempt", {"grace": 10})
    assert operation["operationType"] == "compute.instances.preempted"
    until(lambda: client.status("spot") == "TERMINATED", "the end of the machine")
    folder = client.folder / "machines" / client.get("spot")["id"]
    assert any(file.read_text() == "last words\n" for file in folder.glob("*/root/words"))
    client.insert("spot2", scheduling={**spot, "instanceTerminationAction": "DELETE"})
    client.control("instances/spot2/preempt", {"grace": 0.1})
    until(lambda: client.get("spot2") is None, "deletion")


def test_a_crash_is_a_power_cut(client):
    client.insert("crash", "#!/bin/bash\ntrap 'echo saved' TERM\necho up\nsleep 100 & wait\n")
    client.console_with("crash", "startup-script: up")
    client.control("instances/crash/crash")
    until(lambda: client.status("crash") == "TERMINATED", "TERMINATED")
    assert "saved" not in client.console("crash")


def test_max_run_duration_ends_the_machine(client):
    limit = {"maxRunDuration": {"seconds": "30"}, "instanceTerminationAction": "DELETE"}
    client.control("settings", {"hurry": 15})
    resource = client.insert("limited", scheduling=limit)
    assert (
        resource["resourceStatus"]["scheduling"]["terminationTimestamp"]
        > resource["creationTimestamp"]
    )
    assert client.status("limited") == "RUNNING"
    until(lambda: client.get("limited") is None, "deletion", 60)
    client.control("settings", {"hurry": 1})


def test_a_server_that_is_killed_leaves_nothing_running(client):
    left = client.insert("left", "#!/bin/bash\necho up\nsleep 1000\n")
    client.console_with("left", "startup-script: up")
    os.kill(control.status(client.folder)["pid"], signal.SIGKILL)
    until(lambda: not control.is_running(client.folder), "the end of the server")
    control.start(client.folder, options=("--grace", "3"))
    assert client.status("left") == "TERMINATED"
    folder = client.folder / "machines" / left["id"]
    assert processes.first_process(folder) is None


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
    done = subprocess.run([*ask, token % host], user="nobody", capture_output=True, text=True)
    assert done.returncode == 0 and "only the user of its machine" in done.stdout, done
    assert "ya29" not in done.stdout


def test_metadata_server_and_default_credentials(client):
    script = (
        "#!/bin/bash\nexec 2>&1\nM=http://$GCE_METADATA_HOST/computeMetadata/v1\n"
        'get() { curl -s -H "Metadata-Flavor: Google" "$M/$1"; echo; }\n'
        "get instance/name; get instance/zone; get project/project-id; get instance/attributes/mine\n"
        "get instance/network-interfaces/0/ip; get 'instance/service-accounts/default/?recursive=true'\n"
        "curl -s -o /dev/null -w 'bare %{http_code}\\n' $M/instance/name\n"
        "curl -s -o /dev/null -w 'none %{http_code}\\n' -H 'Metadata-Flavor: Google' $M/instance/nothing\n"
        "until get instance/attributes/mine | grep second; do sleep 0.1; done\n"
    )
    items = [{"key": "startup-script", "value": script}, {"key": "mine", "value": "first"}]
    resource = client.insert("meta", metadata={"items": items})
    shown = client.console_with("meta", "none 404")
    assert (
        "startup-script: meta" in shown
        and f"zones/{ZONE}" in shown
        and "startup-script: berg-local" in shown
    )
    assert f"startup-script: {resource['networkInterfaces'][0]['networkIP']}" in shown
    assert '"aliases": ["default"]' in shown and "bare 403" in shown
    metadata = {"fingerprint": "c3RhbGU=", "items": [items[0], {"key": "mine", "value": "second"}]}
    path = f"/zones/{ZONE}/instances/meta/setMetadata"
    assert error(client.call("POST", path, metadata))[:2] == (412, "conditionNotMet")
    metadata["fingerprint"] = resource["metadata"]["fingerprint"]
    client.wait(client.call("POST", path, metadata))
    assert "startup-script: second" in client.console_with("meta", "Finished running")


def test_default_credentials_read_the_bucket_from_inside(client):
    bucket = client.session.post(
        f"{client.url}/storage/v1/b?project=berg-local", json={"name": "from-inside"}
    )
    assert bucket.ok, bucket.text
    upload = f"{client.url}/upload/storage/v1/b/from-inside/o?uploadType=media&name=note"
    assert client.session.post(upload, data=b"the content").ok
    code = (
        "import google.auth, google.auth.transport.requests as t\n"
        "credentials, project = google.auth.default()\n"
        "session = t.AuthorizedSession(credentials)\n"
        f"print(project, session.get('{client.url}/storage/v1/b/from-inside/o/note?alt=media').text)\n"
    )
    client.insert("reader", f"#!/bin/bash\n{os.sys.prefix}/bin/python - <<'X'\n{code}X\n")
    client.console_with("reader", "startup-script: berg-local the content")


def test_project_metadata_reaches_every_machine(client):
    current = client.call("GET", "").json()["commonInstanceMetadata"]
    script = "#!/bin/bash\necho from the project\n"
    items = [{"key": "startup-script", "value": script}]
    new = {"items": items, "fingerprint": current["fingerprint"]}
    done = client.wait(client.call("POST", "/setCommonInstanceMetadata", new))
    assert "/global/operations/" in done["selfLink"]
    client.insert("common")
    client.console_with("common", "startup-script: from the project")
    current = client.call("GET", "").json()["commonInstanceMetadata"]
    client.wait(
        client.call("POST", "/setCommonInstanceMetadata", {"fingerprint": current["fingerprint"]})
    )


# --- what Google refuses


def wrong_image(image: str) -> list[dict]:
    return [{"boot": True, "initializeParams": {"sourceImage": image}}]


BOOT = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}
LOCAL_SSD = {
    "type": "SCRATCH",
    "autoDelete": True,
    "initializeParams": {"diskType": f"zones/{ZONE}/diskTypes/local-ssd"},
}
CLOUD_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def of_type(machine_type: str, **fields) -> dict:
    return {"machineType": f"zones/{ZONE}/machineTypes/{machine_type}", **fields}


def scheduled(**fields) -> dict:
    return {"scheduling": fields}


def reserved(*names: str, **fields) -> dict:
    key = "compute.googleapis.com/reservation-name"
    return {
        "reservationAffinity": {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": key,
            "values": names,
        },
        **fields,
    }


def boot_disk(**params) -> dict:
    return {"disks": [{**BOOT, "initializeParams": {"sourceImage": IMAGE, **params}}]}


DAY = {"seconds": "86400"}
# What an insert says -> the status, and words of the message. Each was taken for good once.
REFUSED = {
    "no interface": ({"networkInterfaces": []}, 400, "At least one network interface is required."),
    "two on one network": (
        {"networkInterfaces": [{}, {}]},
        400,
        "Subnetworks must be distinct for NICs attached to a VM.",
    ),
    "bare network": ({"networkInterfaces": [{"network": "default"}]}, 400, "The URL is malformed."),
    "subnetwork elsewhere": (
        {"networkInterfaces": [{"subnetwork": "regions/us-west1/subnetworks/default"}]},
        400,
        "'resource.networkInterfaces[0].subnetwork'",
    ),
    "nobody's address": (
        {"networkInterfaces": [{"accessConfigs": [{"natIP": "34.1.2.3"}]}]},
        400,
        "The specified external IP address '34.1.2.3' was not found in region 'us-central1'.",
    ),
    "address of no subnetwork": (
        {"networkInterfaces": [{"networkIP": "10.1.2.3"}]},
        400,
        "out of range",
    ),
    "IPv6": ({"networkInterfaces": [{"stackType": "IPV4_IPV6"}]}, 501, "stackType"),
    "alias range": (
        {"networkInterfaces": [{"aliasIpRanges": [{"ipCidrRange": "/24"}]}]},
        501,
        "aliasIpRanges",
    ),
    "odd custom type": (of_type("n2-custom-3-4096"), 400, "Number of CPUs"),
    "custom type with too much memory": (
        of_type("custom-2-20480"),
        400,
        "should be at most 13312MiB",
    ),
    "custom type of odd memory": (of_type("custom-2-4097"), 400, "multiple of 256MiB"),
    "huge custom type": (of_type("e2-custom-64-65536"), 400, "at most 32"),
    "cpu platform": ({"minCpuPlatform": "Intel Ice Lake"}, 400, "'resource.minCpuPlatform'"),
    "tag": (
        {"tags": {"items": ["Web_1"]}},
        400,
        "'resource.tags.items[0]': 'Web_1'. Must be a match of regex",
    ),
    "policy": (
        {"resourcePolicies": ["regions/us-central1/resourcePolicies/nightly"]},
        404,
        "resourcePolicies/nightly",
    ),
    "seven local ssds on g2": (
        of_type(
            "g2-standard-4",
            disks=[BOOT, *[LOCAL_SSD] * 7],
            **scheduled(onHostMaintenance="TERMINATE"),
        ),
        400,
        "Invalid number of local SSDs 7",
    ),
    "a time limit that loses local ssds": (
        of_type(
            "n1-standard-4",
            disks=[BOOT, LOCAL_SSD],
            **scheduled(maxRunDuration=DAY, instanceTerminationAction="STOP"),
        ),
        400,
        "onInstanceStopAction.discardLocalSsd",
    ),
    "local ssd on e2": (
        of_type("e2-standard-4", disks=[BOOT, LOCAL_SSD]),
        400,
        "Invalid number of local SSDs 1",
    ),
    "no boot disk": ({"disks": [{**BOOT, "boot": False}]}, 400, "Boot disk must be the first disk"),
    "two boot disks": ({"disks": [BOOT, BOOT]}, 400, "Boot disk must be the first disk"),
    "second disk of nothing": ({"disks": [BOOT, {"boot": False}]}, 400, "source, initializeParams"),
    "disk type of another zone": (
        boot_disk(diskType="zones/us-west1-a/diskTypes/pd-ssd"),
        400,
        "The referenced diskType resource cannot be found.",
    ),
    "hyperdisk on n1": (
        boot_disk(diskType=f"zones/{ZONE}/diskTypes/hyperdisk-balanced"),
        400,
        "hyperdisk-balanced disk type cannot be used by",
    ),
    "read-only boot disk": ({"disks": [{**BOOT, "mode": "READ_ONLY"}]}, 400, "READ_WRITE mode"),
    "a size beside the parameters": (
        {"disks": [{**BOOT, "diskSizeGb": "20"}]},
        501,
        "disks[0].diskSizeGb",
    ),
    "encrypted disk": (
        {"disks": [{**BOOT, "diskEncryptionKey": {"rawKey": "x"}}]},
        501,
        "diskEncryptionKey",
    ),
    "two accounts": (
        {"serviceAccounts": [{"email": "default"}] * 2},
        400,
        "At most one service account",
    ),
    "bare scope": (
        {"serviceAccounts": [{"email": "default", "scopes": ["cloud-platform"]}]},
        400,
        "scopes are invalid: 'cloud-platform'",
    ),
    "reservation": (reserved("mine"), 400, "Specified reservations [mine] do not exist."),
    "hostname": ({"hostname": "one word"}, 400, "'resource.hostname'"),
    "a good hostname": ({"hostname": "vm.example.com"}, 501, "resource.hostname"),
    "two ends": (
        scheduled(
            maxRunDuration=DAY,
            terminationTime="2030-01-01T00:00:00Z",
            instanceTerminationAction="DELETE",
        ),
        400,
        "Only one of max run duration and termination time",
    ),
    "notice without spot": (
        scheduled(preemptionNoticeDuration={"seconds": "120"}),
        400,
        "preemptionNoticeDuration",
    ),
    "odd notice": (
        scheduled(provisioningModel="SPOT", preemptionNoticeDuration={"seconds": "60"}),
        400,
        "Must be 0 or 120 seconds",
    ),
    "part of an hour for local SSDs": (
        scheduled(localSsdRecoveryTimeout={"seconds": "60"}),
        400,
        "in whole hours",
    ),
    "short flex": (
        of_type(
            "a3-highgpu-1g",
            **scheduled(
                provisioningModel="FLEX_START",
                maxRunDuration={"seconds": "360"},
                instanceTerminationAction="DELETE",
            ),
        ),
        400,
        "between 600 seconds and 7 days",
    ),
    "graceful shutdown": (
        scheduled(gracefulShutdown={"enabled": True}),
        501,
        "scheduling.gracefulShutdown",
    ),
    "h100 on demand": (
        of_type("a3-highgpu-1g", **scheduled(onHostMaintenance="TERMINATE")),
        400,
        "SPOT, FLEX_START",
    ),
    "flex without end": (
        of_type("a3-highgpu-1g", **scheduled(provisioningModel="FLEX_START")),
        400,
        "max run duration",
    ),
    "machine image": (
        {"sourceMachineImage": "global/machineImages/x"},
        501,
        "resource.sourceMachineImage",
    ),
}


WRONG = {
    "name": ({"name": "No"}, 400, "invalid", "Must be a match of regex"),
    "machine type": (
        {"machineType": f"zones/{ZONE}/machineTypes/n1-huge"},
        400,
        "invalid",
        f"Machine type with name 'n1-huge' does not exist in zone '{ZONE}'",
    ),
    "image": (
        {"disks": wrong_image("projects/debian-cloud/global/images/family/debian-99")},
        400,
        "invalid",
        "The referenced image resource cannot be found",
    ),
    "small disk": (
        {"disks": [{"boot": True, "initializeParams": {"sourceImage": IMAGE, "diskSizeGb": "5"}}]},
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


def test_names_are_taken_once(client):
    client.insert("same")
    status, reason, message = error(client.call("POST", f"/zones/{ZONE}/instances", body("same")))
    assert (status, reason) == (409, "alreadyExists")
    assert (
        message == f"The resource 'projects/berg-local/zones/{ZONE}/instances/same' already exists"
    )


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
    before = client.call("GET", f"/regions/{REGION}").json()["quotas"]
    limit = {row["metric"]: row["limit"] for row in before}["NVIDIA_P100_GPUS"]
    client.control("quotas", {"region": REGION, "metric": "NVIDIA_P100_GPUS", "limit": 1})
    gpu = {"guestAccelerators": P100, "scheduling": TERMINATE}
    client.insert("first", **gpu)
    operation = client.wait(client.call("POST", f"/zones/{ZONE}/instances", body("second", **gpu)))
    client.control("quotas", {"region": REGION, "metric": "NVIDIA_P100_GPUS", "limit": limit})
    assert failure(operation)["code"] == "QUOTA_EXCEEDED"
    assert (
        failure(operation)["message"]
        == "Quota 'NVIDIA_P100_GPUS' exceeded.  Limit: 1.0 in region us-central1."
    )
    assert operation["httpErrorStatusCode"] == 403
    assert failure(operation)["errorDetails"][0]["quotaInfo"]["dimensions"] == {"region": REGION}
    assert client.get("second") is None
    client.control("quotas", {"metric": "GPUS_ALL_REGIONS", "limit": 0})
    operation = client.wait(client.call("POST", f"/zones/{ZONE}/instances", body("third", **gpu)))
    client.control("quotas", {"metric": "GPUS_ALL_REGIONS", "limit": 64})
    assert (
        failure(operation)["message"] == "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."
    )


def test_stockout(client):
    client.control("stockout", {"zone": ZONE})
    gpu = {"guestAccelerators": P100, "scheduling": TERMINATE}
    operation = client.wait(client.call("POST", f"/zones/{ZONE}/instances", body("out", **gpu)))
    assert failure(operation)["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    info = failure(operation)["errorDetails"][0]["errorInfo"]
    assert info["reason"] == "resource_availability"
    assert info["metadatas"]["attachment"] == "nvidia-tesla-p100:1"
    assert client.get("out") is None
    client.control("stockout", {"zone": ZONE, "on": False})
    client.insert("in")


def test_wrong_control_requests_say_what_is_wrong(client):
    for path, content, message in (
        ("quotas", {"limit": 1}, '"metric"'),
        ("stockout", {"zone": "mars-a"}, "Unknown zone"),
        ("settings", {"speed": 1}, "Unknown setting: speed"),
        ("instances/nobody/preempt", {}, "was not found"),
    ):
        answer = client.session.post(f"{client.url}/_berg/{path}", json=content)
        assert answer.status_code in (400, 404) and message in error(answer)[2]


def test_an_operation_may_fail_although_the_instance_lives(client):
    wrong = {"code": "RESOURCE_NOT_FOUND", "message": "gone", "instance_lives": True}
    fault = {"method": "compute.instances.insert", "operation_error": wrong}
    assert client.session.post(f"{client.url}/_berg/faults", json=fault).ok
    operation = client.wait(client.call("POST", f"/zones/{ZONE}/instances", body("zombie")))
    assert failure(operation)["code"] == "RESOURCE_NOT_FOUND"
    assert client.status("zombie") == "RUNNING"


# --- bulk


def bulk(**fields) -> dict:
    """A bulk insert of small sandbox."""
    properties = body("x", "#!/bin/bash\nhostname\n")
    del properties["name"]
    properties["machineType"] = "n1-standard-1"
    return {"instanceProperties": properties, **fields}


def names(client, text: str = "") -> dict[str, str]:
    scopes = client.call(
        "GET", "/aggregated/instances", **({"filter": text} if text else {})
    ).json()["items"]
    return {
        row["name"]: scope[6:]
        for scope, rows in scopes.items()
        for row in rows.get("instances", [])
    }


def many(prefix: str, count: int) -> dict:
    return {f"{prefix}-{number}": {} for number in range(count)}


def test_bulk_insert_is_all_or_nothing(client):
    client.control("stockout", {"zone": ZONE, "left": 2})
    path = f"/zones/{ZONE}/instances/bulkInsert"
    part = bulk(perInstanceProperties=many("part", 3))
    done = client.wait(client.call("POST", path, part))
    summary, cause = done["error"]["errors"]
    assert summary["code"] == "VM_MIN_COUNT_NOT_REACHED" and done["httpErrorStatusCode"] == 503
    assert summary["message"] == "Requested minimum count of 3 VMs could not be created."
    assert cause["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" and names(client) == {}
    assert error(client.call("POST", path, {**part, "minCount": 1}))[0] == 501


def test_bulk_insert_takes_back_what_falls_short(client):
    wrong = {"code": "INTERNAL_ERROR", "message": "no"}
    fault = {"method": "compute.instances.insert", "operation_error": wrong, "skip": 1}
    assert client.session.post(f"{client.url}/_berg/faults", json=fault).ok
    path = f"/zones/{ZONE}/instances/bulkInsert"
    done = client.wait(client.call("POST", path, bulk(perInstanceProperties=many("back", 2))))
    assert [each["code"] for each in done["error"]["errors"]] == [
        "VM_MIN_COUNT_NOT_REACHED",
        "INTERNAL_ERROR",
    ]
    assert names(client) == {}


# --- reading


def test_lists_filter_and_page(client):
    for number in range(3):
        client.insert(f"row-{number}", labels={"berg": "1", "kind": "job" if number else "devbox"})
    path = f"/zones/{ZONE}/instances"
    first = client.call("GET", path, maxResults=2).json()
    assert [row["name"] for row in first["items"]] == ["row-0", "row-1"]
    second = client.call("GET", path, maxResults=2, pageToken=first["nextPageToken"]).json()
    assert [row["name"] for row in second["items"]] == ["row-2"] and "nextPageToken" not in second
    assert set(names(client, "labels.kind=job AND status=RUNNING")) == {"row-1", "row-2"}
    assert names(client, "status=TERMINATED") == {}
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
    ],
)
def test_other_filters_are_refused(text):
    with pytest.raises(ApiError):
        listing.matches(text)(ROW)


def test_the_catalog(client):
    zones = [row["name"] for row in client.call("GET", "/zones").json()["items"]]
    assert zones == sorted(catalog.ZONES)
    p100 = [zone for zone in zones if "nvidia-tesla-p100" in catalog.accelerators_in(zone)]
    assert "us-west1-b" in p100 and "us-west1-c" not in p100
    gpu = client.call("GET", "/zones/us-central1-a/machineTypes/a2-highgpu-4g").json()
    assert gpu["accelerators"] == [
        {"guestAcceleratorType": "nvidia-tesla-a100", "guestAcceleratorCount": 4}
    ]
    tpu = client.call("GET", "/zones/us-east5-a/machineTypes/ct6e-standard-4t").json()
    assert tpu["accelerators"] == [{"guestAcceleratorType": "ct6e", "guestAcceleratorCount": 4}]
    image = client.call("GET", "/global/images/family/debian-12", project="debian-cloud").json()
    assert image["name"] == "debian-12-bookworm-v20251014"
    gone = client.call(
        "GET", "/global/images/family/pytorch-latest-gpu", project="deeplearning-platform-release"
    )
    assert error(gone)[:2] == (404, "notFound")
    assert client.call("GET", "/global/networks/default").json()["name"] == "default"
    assert client.call("GET", f"/regions/{REGION}/subnetworks/default").status_code == 200


def test_a_disk_without_auto_delete_stays(client):
    disks = [{"boot": True, "autoDelete": False, "initializeParams": {"sourceImage": IMAGE}}]
    client.insert("keeper", disks=disks)
    path = f"/zones/{ZONE}/disks/keeper"
    assert error(client.call("DELETE", path))[1] == "resourceInUseByAnotherResource"
    client.delete("keeper")
    assert "users" not in client.call("GET", path).json()
    client.wait(client.call("DELETE", path))
    assert client.call("GET", path).status_code == 404


# --- clients that no one here wrote


def test_google_cloud_compute(client):
    compute = pytest.importorskip("google.cloud.compute_v1")
    client.call("GET", "")  # refreshes the token
    credentials = google.oauth2.credentials.Credentials(client.session.credentials.token)
    options = {"api_endpoint": client.url}
    instances = compute.InstancesClient(credentials=credentials, client_options=options)
    resource = compute.Instance.from_json(json.dumps(body("typed", "#!/bin/bash\necho typed\n")))
    request = compute.InsertInstanceRequest(
        project="berg-local", zone=ZONE, instance_resource=resource
    )
    operation = instances.insert_unary(request=request)
    client.wait(client.call("GET", f"/zones/{ZONE}/operations/{operation.name}"))
    listed = {
        i.name: i
        for _, scope in instances.aggregated_list(project="berg-local")
        for i in scope.instances
    }
    assert listed["typed"].status == "RUNNING"
    client.console_with("typed", "startup-script: typed")


def test_gpus_that_go_within_a_week_may_count_among_the_preemptible_ones(client):
    for metric, limit in (("NVIDIA_P100_GPUS", 0), ("PREEMPTIBLE_NVIDIA_P100_GPUS", 1)):
        client.control("quotas", {"region": REGION, "metric": metric, "limit": limit})
    deleted = {**TERMINATE, "instanceTerminationAction": "DELETE", "automaticRestart": False}

    def codes(name: str, scheduling: dict) -> list[str]:
        sent = body(name, guestAccelerators=P100, scheduling=scheduling)
        done = client.wait(client.call("POST", f"/zones/{ZONE}/instances", sent))
        return [each["code"] for each in done.get("error", {}).get("errors", [])]

    try:
        week = 7 * 24 * 3600
        assert codes("long", {**deleted, "maxRunDuration": {"seconds": str(week + 1)}}) == [
            "QUOTA_EXCEEDED"
        ]
        stopped = {**deleted, "instanceTerminationAction": "STOP"}
        assert codes("stopped", {**stopped, "maxRunDuration": {"seconds": str(week)}}) == [
            "QUOTA_EXCEEDED"
        ]
        assert codes("brief", {**deleted, "maxRunDuration": {"seconds": str(week)}}) == []
        assert codes("second", {**deleted, "maxRunDuration": {"seconds": str(week)}}) == [
            "QUOTA_EXCEEDED"
        ]
    finally:
        for metric in ("NVIDIA_P100_GPUS", "PREEMPTIBLE_NVIDIA_P100_GPUS"):
            client.control("quotas", {"region": REGION, "metric": metric, "limit": 16})


@pytest.fixture
def gcloud(client, tmp_path):
    if not shutil.which("gcloud"):
        pytest.skip("gcloud is not installed")
    client.call("GET", "")
    (tmp_path / "token").write_text(client.session.credentials.token)
    settings = {
        "CLOUDSDK_CONFIG": str(tmp_path / "config"),
        "CLOUDSDK_CORE_PROJECT": "berg-local",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "GCE_METADATA_ROOT": "127.0.0.1:9",  # or gcloud asks the network whether it runs on Google
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{client.url}/compute/v1/",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "token"),
    }

    def gcloud(*words: str) -> str:
        command = ["gcloud", "compute", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, **settings}, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return gcloud


RULE = {"name": "wrong", "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}


def test_projects_with_images_for_everybody_are_there_without_any(client):
    """libcloud looks for an image in all of them, one after the other."""
    url = client.url.partition("/_berg")[0]
    for project in ("rhel-cloud", "centos-cloud", "windows-cloud"):
        found = client.session.get(f"{url}/compute/v1/projects/{project}/global/images")
        assert found.status_code == 200 and "items" not in found.json()
    assert (
        client.session.get(f"{url}/compute/v1/projects/no-cloud/global/images").status_code == 404
    )

"""What is asked of Google again, what its refusals mean, and which machine, zone and image are found."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from conftest import Cloud, until
from google.api_core import exceptions
from google.auth import exceptions as auth
from requests.exceptions import ReadTimeout

from berg import BergError, gce, google, place
from berg.config import Config
from berg.gce import Shape
from berg.google import GoogleError, OperationFailed
from berg.job import Job
from berg.place import Machine

# --- requests


@pytest.mark.parametrize(
    "what",
    [*({"status": status} for status in (408, 429, 500, 502, 503, 504)), {"reset": True},
     {"half": True}, {"status": 403, "reason": "rateLimitExceeded"}],
    ids=str,
)  # fmt: skip
def test_what_may_pass_is_asked_again(cloud: Cloud, faults: Any, what: dict[str, Any]) -> None:
    faults("compute.regions.list", **what, times=2)
    assert google.call(cloud.config, "GET", "/regions")["items"]


@pytest.mark.parametrize("status", [400, 403, 404, 409, 412, 501])
def test_what_google_refuses_is_asked_once(cloud: Cloud, faults: Any, status: int) -> None:
    faults("compute.regions.list", status=status, reason="someReason", message="No.")
    with pytest.raises(GoogleError) as caught:
        google.call(cloud.config, "GET", "/regions")
    error = caught.value
    assert (error.status, error.reason, error.message) == (status, "someReason", "No.")
    assert str(error) == f"No. (HTTP {status})"


def test_only_what_is_not_there_is_nothing(cloud: Cloud, faults: Any) -> None:
    assert google.find(cloud.config, "/regions/mars-west1") is None
    faults("compute.regions.get", status=403, message="No.")
    with pytest.raises(GoogleError, match="No"):
        google.find(cloud.config, "/regions/us-central1")
    faults("compute.regions.list", status=503, times=9)
    with pytest.raises(GoogleError, match="503"):
        google.call(cloud.config, "GET", "/regions", seconds=0.3)


RULES = "/global/firewalls"


def rule(name: str) -> dict[str, Any]:
    return {"name": name, "network": "global/networks/default", "allowed": [{"IPProtocol": "icmp"}]}


def test_a_request_whose_answer_is_lost_is_carried_out_once(cloud: Cloud, faults: Any) -> None:
    for method, how in (("POST", "insert"), ("DELETE", "delete")):
        faults(f"compute.firewalls.{how}", reset=True, after_handler=True)
        path, body = (RULES, rule("once")) if method == "POST" else (f"{RULES}/once", None)
        google.do(cloud.config, method, path, body)
    assert google.find(cloud.config, f"{RULES}/once") is None


def test_what_is_deleted_is_gone(cloud: Cloud, faults: Any) -> None:
    config, path = cloud.config, f"{RULES}/goes"
    google.delete(config, path)  # there is none
    google.do(config, "POST", RULES, rule("goes"))
    for status, reason in ((403, "forbidden"), (400, "resourceInUseByAnotherResource")):
        faults("compute.firewalls.delete", status=status, reason=reason, message="No.")
        with pytest.raises(GoogleError, match="No"):
            google.delete(config, path)
    faults("compute.firewalls.delete", status=400, reason="resourceNotReady")
    cloud.call("DELETE", "/_berg/requests")
    with ThreadPoolExecutor(1) as pool:  # another one deletes it
        waiting = pool.submit(google.delete, config, path)
        until(lambda: "compute.firewalls.get" in str(cloud.call("GET", "/_berg/requests")))
        assert not waiting.done()
        google.delete(config, path)
        waiting.result()


def test_all_pages_of_a_list_are_read(cloud: Cloud) -> None:
    for path, some in (("/regions", "2"), ("/aggregated/acceleratorTypes", "40")):
        rows = [[row["selfLink"] for row in google.items(cloud.config, path, **query)]
                for query in ({}, {"maxResults": some})]  # fmt: skip
        assert len(rows[0]) > int(some) and sorted(rows[0]) == sorted(rows[1])


def test_an_operation_fails_with_its_cause() -> None:
    few = {"code": "VM_MIN_COUNT_NOT_REACHED", "message": "Too few."}
    full = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "No room."}
    done: dict[str, Any] = {"name": "operation", "status": "DONE"}
    google.wait(Config(), done)
    for errors, cause in (([few, full], full), ([full], full), ([few], few)):
        with pytest.raises(OperationFailed) as caught:
            google.wait(Config(), {**done, "error": {"errors": errors}})
        assert (caught.value.reason, str(caught.value)) == (cause["code"], cause["message"])


def test_a_person_hears_once_that_google_does_not_answer(
    cloud: Cloud, faults: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    google.FAILED.clear()
    faults("compute.regions.list", status=503)
    google.call(cloud.config, "GET", "/regions")
    assert capsys.readouterr().err == ""  # it may be back at once
    google.FAILED[:] = [time.monotonic() - google.SOON - 1]
    faults("compute.regions.list", status=503, times=2)
    google.call(cloud.config, "GET", "/regions")
    google.FAILED.clear()
    assert capsys.readouterr().err.count("No answer (GoogleError); trying again") == 1


HERE = Config(project="mine", bucket="b", endpoint="http://here")
FILE = Config(project="mine", bucket="b", credentials_file="key.json")


@pytest.mark.parametrize(
    ("error", "config", "says"),
    [
        (auth.DefaultCredentialsError(), None, "no Google credentials. Run: gcloud auth application"),
        (auth.DefaultCredentialsError(), FILE, "no Google credentials. Renew key.json"),
        (auth.RefreshError(), None, "no longer valid. Run: gcloud auth application-default login"),
        (auth.TransportError(), None, "cannot reach Google Cloud. Check the network"),
        (ReadTimeout(), HERE, "cannot reach http://here. Check the network"),
        (exceptions.RetryError("", None), FILE, "cannot reach Google Cloud"),
        (exceptions.Forbidden("No."), HERE, "Google refused: No. Ask an owner"),
        (exceptions.NotFound("No."), HERE, "Google refused: No. If that may pass, repeat"),
        (GoogleError(403, "", "No."), None, "Ask an owner of the project, or run: berg init"),
        (GoogleError(404, "", "The specified bucket does not exist."), HERE, "the bucket b does not"),
        (GoogleError(403, "", "It requires a quota project."), HERE, "set-quota-project mine"),
        (GoogleError(403, "", "Not used in project 764086051850."), None, "set-quota-project PROJECT"),
    ],
)  # fmt: skip
def test_an_error_of_googles_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, config: Config | None, says: str
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    assert says in str(google.sentence(error, config))
    assert google.sentence(ValueError("ours"), config) is None


# --- which machine, where


@pytest.mark.parametrize(
    ("gpus", "gpu_type", "cpus", "named", "machine"),
    [
        (None, "l4", None, "", "g2-standard-12 with 1 x l4"),
        (1, "l4", 4, "", "g2-standard-4 with 1 x l4"),
        (1, "l4", 32, "", "g2-standard-32 with 1 x l4"),
        (4, "l4", None, "", "g2-standard-48 with 4 x l4"),
        (None, "a100", None, "", "a2-highgpu-1g with 1 x a100"),
        (16, "a100", None, "", "a2-megagpu-16g with 16 x a100"),
        (2, "a100-80gb", None, "", "a2-ultragpu-2g with 2 x a100-80gb"),
        (1, "h100", None, "", "a3-highgpu-1g with 1 x h100"),
        (8, "h100-mega", None, "", "a3-megagpu-8g with 8 x h100-mega"),
        (8, "h200", None, "", "a3-ultragpu-8g with 8 x h200"),
        (8, "b200", None, "", "a4-highgpu-8g with 8 x b200"),
        (1, "rtx-pro-6000", None, "", "g4-standard-48 with 1 x rtx-pro-6000"),
        (2, "t4", None, "", "n1-standard-16 with 2 x t4"),
        (2, "v100", 8, "", "n1-standard-8 with 2 x v100"),
        (1, "p100", None, "", "n1-standard-8 with 1 x p100"),
        (1, "p4", None, "", "n1-standard-8 with 1 x p4"),
        (0, "h100", 2, "", "n1-standard-2"),
        (None, "l4", None, "e2-medium", "e2-medium"),
        (None, "l4", None, "a2-highgpu-4g", "a2-highgpu-4g with 4 x a100"),
        (None, "l4", None, "ct6e-standard-1t", "ct6e-standard-1t"),  # a TPU is no GPU
        (1, "t4", None, "n1-standard-4", "n1-standard-4 with 1 x t4"),
    ],
)  # fmt: skip
def test_the_smallest_machine_that_fits(
    cloud: Cloud, gpus: int | None, gpu_type: str, cpus: int | None, named: str, machine: str
) -> None:
    shape, _ = gce.choose(cloud.config, gpus, gpu_type, cpus, named, [], ["any"])
    assert str(shape) == machine
    assert shape.is_attached == (shape.gpu_type in ("t4", "v100", "p100", "p4"))


def test_zones_are_tried_in_the_order_in_which_they_are_named(cloud: Cloud) -> None:
    def zones(
        gpu_type: str, *named: str, regions: tuple[str, ...] = (), gpus: int = 1
    ) -> list[str]:
        found = gce.choose(cloud.config, gpus, gpu_type, None, "", [*named], [*regions])
        return found[1]

    central = ["us-central1-a", "us-central1-b", "us-central1-c"]
    assert zones("l4") == central
    other = replace(cloud.config, region="us-east1")
    assert {zone[:-2] for zone in gce.choose(other, 0, "l4", None, "", [], [])[1]} == {"us-east1"}
    first = zones("l4", "us-central1-c", "us-central1-zz", regions=("us-central1",))
    assert first == ["us-central1-c", "us-central1-a", "us-central1-b"]
    every = zones("l4", regions=("us-east1", "any"))
    assert every[0].startswith("us-east1-") and {*central} < {*every}
    assert len(every) == len({*every})
    attached = zones("t4", regions=("any",))
    two = {"guestAccelerators": [{"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 2}]}
    made = gce.in_zone({**two, "machineType": "n1-standard-16", "disks": []}, attached[0])
    kind = f"zones/{attached[0]}/acceleratorTypes/nvidia-tesla-t4"
    assert made["guestAccelerators"] == [{"acceleratorType": kind, "acceleratorCount": 2}]
    listed = google.items(
        cloud.config, "/aggregated/acceleratorTypes", filter="name=nvidia-tesla-t4"
    )
    assert {*attached} == {google.last_part(row["zone"]) for row in listed}
    assert len(attached) < len(zones("t4", regions=("any",), gpus=0))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ((1, "l5", None, "", [], []), "no GPU type 'l5'. Choose one: -t l4, a100,"),
        ((3, "l4", None, "", [], []), "no machine has 3 x l4. Google offers 1, 2, 4, 8 in one"),
        ((1, "l4", 5, "", [], []), "no machine has 1 x l4 with 5 vCPUs. Google offers"),
        ((0, "l4", 7, "", [], []), "no machine has 7 vCPUs. Choose others: -g, -t, -c"),
        ((None, "l4", None, "e9-tiny", [], []), "no machine has the type e9-tiny. Choose another: --machine-type"),
        ((1, "l4", None, "", ["us-central1-zz"], []), "in us-central1-zz. Regions that have it: asia-"),
        ((1, "l4", None, "", [], ["us-central"]), "in us-central. Regions that have it"),  # a region's beginning
        ((8, "b200", None, "", [], ["mars-west1"]), "no a4-highgpu-8g with 8 x b200 in mars-west1. Regions that have it"),
    ],
)  # fmt: skip
def test_a_machine_that_is_nowhere_is_refused_with_what_there_is(
    cloud: Cloud, asked: tuple[Any, ...], says: str
) -> None:
    with pytest.raises(BergError) as caught:
        gce.choose(cloud.config, *asked)
    assert says in str(caught.value)


def test_an_image_is_found_by_its_family_and_by_its_name(cloud: Cloud) -> None:
    config = cloud.config
    owner, _, family = config.default_image.rpartition("/")
    found = gce.find_image(config, config.default_image)
    assert found.startswith(f"projects/{owner}/global/images/{family}-v")
    for name in (family, google.last_part(found), f"{owner}/{google.last_part(found)}"):
        assert gce.find_image(config, name) == found
    with pytest.raises(BergError, match="images list --project berg-local"):
        gce.find_image(config, "nobodys")
    with pytest.raises(BergError, match="images list --project elsewhere"):
        gce.find_image(config, f"elsewhere/{family}")


# --- what is asked for


@pytest.mark.parametrize(
    ("machine", "disk", "nic"),
    [
        ("n1-standard-8", "pd-balanced", None), ("g2-standard-4", "pd-balanced", None),
        ("a2-highgpu-1g", "pd-balanced", None), ("a3-highgpu-8g", "pd-balanced", "GVNIC"),
        ("a3-ultragpu-8g", "hyperdisk-balanced", "GVNIC"), ("c4-standard-8", "hyperdisk-balanced", None),
        ("a4-highgpu-8g", "hyperdisk-balanced", "GVNIC"), ("g4-standard-48", "hyperdisk-balanced", "GVNIC"),
        ("n4-standard-8", "hyperdisk-balanced", None), ("h4d-standard-192", "hyperdisk-balanced", None),
        ("m4-megamem-28", "hyperdisk-balanced", None), ("x4-megamem-960-metal", "hyperdisk-balanced", None),
        ("a3-megagpu-8g", "pd-balanced", "GVNIC"), ("c3-standard-4", "pd-balanced", None),
    ],
)  # fmt: skip
def test_a_machine_has_a_disk_and_a_network_interface_that_it_takes(
    machine: str, disk: str, nic: str | None
) -> None:
    made = gce.body(Config(), Job("j", "true", "r", {}, "j"), Shape(machine), 10)
    assert made["disks"][0]["initializeParams"]["diskType"] == disk
    assert made["networkInterfaces"][0].get("nicType") == nic


def test_google_restarts_no_machine_and_knows_whose_it_is() -> None:
    config = Config(bucket="Some.bucket_" + "x" * 70, network="inner")
    made = gce.body(config, Job("j", "true", "r", {}, "j", user="ada"), Shape("e2-medium"), 10)
    assert made["scheduling"]["automaticRestart"] is False and (
        made["networkInterfaces"][0]["network"] == "global/networks/inner"
    )
    label = gce.bucket_label(config)
    assert label.startswith("-ome-bucket_x") and len(label) == 63
    labels = {"berg": "1", "berg-bucket": label, "berg-job": "j", "berg-user": "ada"}
    assert made["labels"] == {**labels, "berg-kind": "job"}
    assert made["disks"][0]["initializeParams"]["labels"] == made["labels"]
    assert made["serviceAccounts"][0]["email"] == "default"
    assert (
        gce.body(config, Job("j", "", "r", {}, "j"), Shape("e2-medium"), 10)["labels"]["berg-kind"]
        == "devbox"
    )


def test_a_machine_is_told_which_job_it_is_for() -> None:
    config = Config(bucket="b", endpoint="http://here")
    sweep = Job("s", "x {a}", "r", {}, "s", rows=[{"a": "1"}, {"a": "2"}])
    told = gce.metadata(config, sweep, "ssh-ed25519 KEY")
    assert told.pop("startup-script") == gce.BOOT.read_text()
    assert told == {
        "berg-bucket": "b", "berg-job": "s", "berg-job-sha256": sweep.sha256, "berg-rows": "2",
        "berg-endpoint": "http://here", "enable-guest-attributes": "TRUE",
        "ssh-keys": "root:ssh-ed25519 KEY",
    }  # fmt: skip
    box = gce.metadata(Config(bucket="b"), Job("s", "", "r", {}, "s"), "")
    assert box["berg-devbox"] == "1"
    assert not {"ssh-keys", "berg-rows", "berg-endpoint"} & box.keys()


ZONES = ["us-central1-a", "us-central1-b", "us-east1-b"]


@pytest.mark.parametrize(
    ("error", "tried", "says"),
    [
        *(
            (OperationFailed(code, "m"), ZONES, "out of stock")
            for code in (
                "ZONE_RESOURCE_POOL_EXHAUSTED",
                "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
                "insufficientCapacity",
                "UNSUPPORTED_OPERATION",
                "RESOURCE_NOT_READY",
            )
        ),
        *(
            (GoogleError(403, code, "m."), ZONES[::2], "m. Raise the quota: https://")
            for code in ("QUOTA_EXCEEDED", "quotaExceeded")
        ),
        (GoogleError(409, "alreadyExists", "It is there"), ZONES[:1], "Choose another name: -n"),
        (GoogleError(400, "invalid", "Wrong."), ZONES[:1], "us-central1-a: Wrong.\n"),
        (OperationFailed("INTERNAL", "Broken."), ZONES[:1], "us-central1-a: Broken.\n"),
    ],
    ids=lambda value: value.reason if isinstance(value, GoogleError) else "",
)
def test_other_zones_are_tried_where_they_can_help(
    cloud: Cloud, error: GoogleError, tried: list[str], says: str
) -> None:
    asked = []

    def make(config: Config, request: Any, names: list[str], zone: str) -> None:
        asked.append((zone, names))
        raise error

    job = Job("nowhere", "true", "r", {}, "nowhere", machines=2)
    with pytest.raises(BergError) as caught:
        gce.create(cloud.config, job, {}, ZONES, [].append, make)
    assert asked == [(zone, ["nowhere-0", "nowhere-1"]) for zone in tried]
    assert says in str(caught.value) and "none was left behind" in str(caught.value)
    assert all(f"  {zone}: " in str(caught.value) for zone in tried)


def test_an_account_that_nobody_makes_is_named(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(google, "NEW_ACCOUNT", 1)
    said: list[str] = []

    def make(*_: Any) -> None:
        raise GoogleError(400, "", "The resource 'x' of type 'serviceAccount' was not found.")

    with pytest.raises(BergError, match="Make it: berg init"):
        gce.create(cloud.config, Job("none", "true", "r", {}, "none"), {}, ZONES, said.append, make)
    assert [text for text in said if "does not know the machines' account" in text] == said[1:]


# --- what is there


def bare_job(cloud: Cloud, name: str, machines: int = 1) -> tuple[Job, dict[str, Any]]:
    """A job whose machines run nothing, and the request for one."""
    config = cloud.config
    image = gce.find_image(config, config.default_image)
    job = Job(name, "", "r", {}, name, machines=machines, machine_type="e2-medium", image=image)
    job.max_seconds, job.user = 3600, "ada"
    request = gce.body(config, job, Shape("e2-medium"), 200)
    told = {"key": "berg-job-sha256", "value": job.sha256}
    return job, {**request, "metadata": {"items": [told]}}


def values(cloud: Cloud, machine: Any) -> dict[str, str]:
    found: Any = google.find(cloud.config, machine.path)
    return {row["key"]: row["value"] for row in found["metadata"].get("items", [])}


def test_a_machine_is_found_told_and_deleted_as_that_of_its_job(cloud: Cloud, faults: Any) -> None:
    config = cloud.config
    job, request = bare_job(cloud, "bare")
    faults("compute.instances.insert", status=400, reason="invalid", after_handler=True)
    assert gce.create(config, job, request, ["us-central1-b"], print) == "us-central1-b"
    (machine,) = place.machines(config, "bare")
    assert (machine.name, machine.zone, machine.job, machine.user) == (
        "bare", "us-central1-b", "bare", "ada"
    )  # fmt: skip
    assert machine.is_devbox and machine.is_on and machine.machine_type == "e2-medium"
    row: Any = google.find(config, machine.path)
    (interface,) = row["networkInterfaces"]
    assert machine.address == interface["accessConfigs"][0]["natIP"]
    assert machine.inner_address == interface["networkIP"]

    def names(*asked: Any, of: Config = config) -> list[str]:
        return [each.name for each in gce.machines(of, *asked)]

    assert names() == names("bare", "us-central1-b", [job.sha256]) == ["bare"]
    other = replace(config, bucket="another")
    assert not names("bare", "us-central1-a") and not names("bar") and not names("bare", "gke/x")
    assert not names("bare", "", ["0" * 64]) and not names(of=other)
    same = gce.machine(config, machine.zone, machine.id)
    assert same and (same.name, same.id, same.labels) == ("bare", machine.id, machine.labels)
    asked = (other, machine.zone, machine.id), (config, "us-central1-a", machine.id)
    assert [gce.machine(*each) for each in (*asked, (config, machine.zone, "bare"))] == [None] * 3
    assert [gce.name_is_taken(config, each) for each in ("bare", "bar")] == ["us-central1-b", ""]
    # images of its disk, one with the name of a family beside
    owner, _, family = config.default_image.rpartition("/")
    copy = {"name": "of-bare"}
    google.do(config, "POST", f"/zones/{machine.zone}/disks/bare/createSnapshot", copy)
    made = {"sourceSnapshot": "global/snapshots/of-bare"}
    for name, group in (("mine-1", "mine"), (family, "other")):
        google.do(config, "POST", "/global/images", {**made, "name": name, "family": group})
    for name in ("mine", "mine-1", "berg-local/mine"):
        assert gce.find_image(config, name) == "projects/berg-local/global/images/mine-1"
    assert gce.find_image(config, family) == f"projects/berg-local/global/images/{family}"
    with pytest.raises(BergError, match="no image"):
        gce.find_image(config, f"{owner}/mine")
    for path in ("images/mine-1", f"images/{family}", "snapshots/of-bare"):
        google.delete(config, f"/global/{path}")
    # its metadata
    before = values(cloud, machine)
    faults("compute.instances.setMetadata", status=412, times=2)  # somebody else was faster
    machine.tell(config, "berg-kill", "now")
    machine.let_in(config, "ssh-ed25519 ONE")
    machine.let_in(config, "ssh-ed25519 TWO")
    cloud.call("DELETE", "/_berg/requests")
    machine.let_in(config, "ssh-ed25519 ONE")
    assert "setMetadata" not in str(cloud.call("GET", "/_berg/requests"))
    keys = "root:ssh-ed25519 ONE\nroot:ssh-ed25519 TWO"
    assert values(cloud, machine) == {**before, "berg-kill": "now", "ssh-keys": keys}
    machine.tell(config, "berg-kill", "")
    assert values(cloud, machine) == {**before, "ssh-keys": keys}
    faults("compute.instances.setMetadata", status=412, times=None)
    with pytest.raises(BergError, match="bare keeps being changed by others"):
        machine.tell(config, "berg-kill", "now")
    cloud.call("DELETE", "/_berg/faults")
    faults("compute.instances.setMetadata", status=403, message="No.")
    with pytest.raises(GoogleError, match="No"):
        machine.tell(config, "berg-kill", "now")
    faults("compute.instances.getGuestAttributes", status=403)
    assert machine.host_keys(config) == []
    # its power
    machine.stop(config)
    (off,) = place.machines(config, "bare")
    assert not off.is_on and off.id == machine.id
    machine.start(config)
    assert place.machines(config, "bare")[0].is_on
    faults("compute.instances.stop", status=403, message="No.")
    with pytest.raises(GoogleError, match="No"):
        machine.stop(config)
    gone = {"code": "RESOURCE_NOT_FOUND", "message": "Gone."}
    faults("compute.instances.delete", operation_error=gone)
    machine.delete(config)  # another one was faster
    assert cloud.call("GET", "/_berg/faults")["faults"][-1]["hits"] == 1
    place.delete(config, [machine])
    assert not names("bare") and gce.machine(config, machine.zone, machine.id) is None
    machine.tell(config, "berg-kill", "now")  # it needs no word any more
    place.delete(config, [machine])
    with pytest.raises(BergError, match="was deleted meanwhile"):
        machine.start(config)


def test_machines_of_a_job_are_all_there_or_none(cloud: Cloud, faults: Any) -> None:
    job, request = bare_job(cloud, "both", 2)
    error = {"code": "INTERNAL", "message": "Broken."}
    faults("compute.instances.bulkInsert", operation_error=error)
    with pytest.raises(BergError, match="Broken"):
        gce.create(cloud.config, job, request, ["us-central1-a"], print)
    assert not place.machines(cloud.config, "both")
    one = {"name": "both-1", **gce.in_zone(request, "us-central1-a")}
    google.do(cloud.config, "POST", "/zones/us-central1-a/instances", one)

    def make(*_: Any) -> None:
        raise GoogleError(503, "", "No answer.")

    with pytest.raises(BergError, match="No answer"):  # one of two is none
        gce.create(cloud.config, job, request, ["us-central1-a"], print, make)
    assert not place.machines(cloud.config, "both")


def test_names_of_machines_are_sorted_by_their_numbers() -> None:
    names = ["a", "a-10", "a-2", "b-1", "a-1-x"]
    assert sorted(names, key=gce.order) == ["a", "a-2", "a-10", "a-1-x", "b-1"]


@pytest.mark.parametrize(
    ("group", "is_coming"),
    [
        ({"targetSize": 1, "status": {}}, True),
        ({"targetSize": 0, "status": {}}, False),
        ({"targetSize": 2, "status": {}, "targetSizePolicy": {"mode": "BULK"}}, False),
        ({"targetSize": 2, "targetSizePolicy": {"mode": "BULK"},
          "status": {"bulkInstanceOperation": {"inProgress": True}}}, True),
    ],
)  # fmt: skip
def test_a_group_makes_machines_until_it_has_them(group: dict[str, Any], is_coming: bool) -> None:
    assert gce.wants_machines(group) is is_coming


@pytest.mark.parametrize(
    ("status", "is_on"),
    [("RUNNING", True), ("STAGING", True), ("STOPPING", True), ("TERMINATED", False),
     ("SUSPENDED", False)],
)  # fmt: skip
def test_a_machine_that_is_off_is_known(status: str, is_on: bool) -> None:
    machine: Machine = gce.Instance("m", "z", status, "m", labels={"berg-kind": "job"})
    assert machine.is_on is is_on and not machine.is_devbox

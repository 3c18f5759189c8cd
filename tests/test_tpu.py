"""Machines with TPUs: one is a machine like any other, several are a slice that comes and goes as a
whole.
"""

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from conftest import wait_for

from berg.laptop import ending, jobs
from localcloud.machines import sshd

ZONE = "us-central1-a"
GROUPS = f"/compute/v1/projects/berg-local/zones/{ZONE}/instanceGroupManagers"
TOLD = (
    'echo "worker $BERG_NODE_RANK of $BERG_NUM_NODES on $(hostname): $TPU_WORKER_ID $TPU_WORKER_HOSTNAMES '
    '$MASTER_ADDR $PET_NODE_RANK" | tee $BERG_RESULTS_DIR/$BERG_NODE_RANK'
)


@pytest.fixture(autouse=True)
def clean(cloud):
    yield
    for row in cloud.call("GET", GROUPS).get("items", []):
        cloud.session.delete(f"{cloud.url}{GROUPS}/{row['name']}")
    wait_for(lambda: "items" not in cloud.call("GET", GROUPS), what="the end of all slices")


def machines(cloud, name: str) -> dict[str, dict]:
    return {
        key: each
        for key, each in cloud.instances().items()
        if each.get("labels", {}).get("berg-job") == name
    }


def running(berg, cloud, name: str, count: int) -> None:
    def there() -> bool:
        return len(machines(cloud, name)) == count and berg.state(name)["state"] == "RUNNING"

    wait_for(there, 60, f"{name} on {count} machines")


def test_a_slice_runs_the_command_on_every_worker_in_its_own_order(berg, cloud):
    done = berg("run", "-n", "pod", "--tpu", "v5p-2x2x2", "--wait", TOLD)
    assert done.returncode == 0, done.stderr
    results = berg.objects("berg_results/pod/")
    lines = [results[f"berg_results/pod/{rank}"].decode().split() for rank in range(2)]
    assert [line[1] for line in lines] == ["0", "1"] and {line[3] for line in lines} == {"2"}
    # The numbers are those of the metadata, which are never the order of the names here.
    assert [line[5] for line in lines] == ["pod-1:", "pod-0:"]
    assert [line[6] for line in lines] == ["0", "1"] == [line[9] for line in lines]
    addresses = {line[7] for line in lines}
    assert len(addresses) == 1 and addresses.pop().split(",")[0] == lines[0][8] == lines[1][8]
    assert {"pod-0", "pod-1"} <= {
        name.split("/")[3].partition(".")[0] for name in berg.objects(".berg/logs/pod/")
    }
    wait_for(lambda: not machines(cloud, "pod"), what="the end of the machines")
    wait_for(lambda: "items" not in cloud.call("GET", GROUPS), what="the end of the group")


@pytest.mark.slow
def test_one_machine_with_tpus_is_no_slice(berg, cloud):
    done = berg("run", "-n", "one", "--tpu", "v6e-1", "--spot", "--wait", "ls /sys/bus/pci/devices")
    assert done.returncode == 0, done.stderr
    assert "ct6e-standard-1t" in done.stderr and "0000:00:04.0" in berg.log("one")
    asked = cloud.call("GET", "/_berg/requests")["requests"]
    assert not [each for each in asked if "nstanceGroupManagers.insert" in each["method"]]
    assert json.loads(berg.objects()[".berg/jobs/one_metadata.json"])["place"] == "gce"


def test_a_dry_run_shows_the_four_requests(berg):
    done = berg(
        "run",
        "--tpu",
        "v6e-4x4",
        "--spot",
        "--max-hours",
        "4",
        "--dry-run",
        "--json",
        "-n",
        "pod",
        "true",
    )
    assert done.returncode == 0, done.stderr
    assert (
        "4 machines, each ct6e-standard-4t, spot" in done.stderr
        and "v6e-4x4, 16 chips" in done.stderr
    )
    bodies = json.loads(done.stdout)["request"]
    workload = {
        "type": "HIGH_THROUGHPUT",
        "acceleratorTopology": "4x4",
        "acceleratorTopologyMode": "AUTO_CONNECT",
    }
    assert bodies["policy"]["workloadPolicy"] == workload
    properties = bodies["template"]["properties"]
    assert properties["machineType"] == "ct6e-standard-4t"
    scheduling = properties["scheduling"]
    assert scheduling["provisioningModel"] == "SPOT" and scheduling["maxRunDuration"] == {
        "seconds": "14400"
    }
    assert (
        scheduling["instanceTerminationAction"] == "DELETE"
        and scheduling["onHostMaintenance"] == "TERMINATE"
    )
    group = bodies["group"]
    assert group["targetSizePolicy"] == {"mode": "BULK"} and group["targetSize"] == 0
    assert group["instanceLifecyclePolicy"] == {"defaultActionOnFailure": "DO_NOTHING"}
    assert bodies["members"] == {"instances": [{"name": f"pod-{number}"} for number in range(4)]}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v6e-16", "it may count chips (--tpu v6e-4x4)"),
        (
            "v5p-16",
            "chips (--tpu v5p-2x2x4) or it may count cores, two of each chip (--tpu v5p-2x2x2)",
        ),
        ("v6e-3x3", "v6e has no topology '3x3'. It has: 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"),
        ("v5p-8x4x4", "v5p has no topology '8x4x4'"),
        ("v4-8", "v4 and v5e come as pods of a cluster"),
        ("v5p-4", "it may count chips (--tpu v5p-2x2x1). See: berg gpus --tpu"),
        ("v5p-7", "v5p has no topology '7'. It has: 2x2x1, 2x2x2"),
        ("v6e-0", "v6e has no topology '0'. It has: 1x1, 2x2"),
        (
            "h100",
            "there is no such family, only v6e, v5p, tpu7x. Give FAMILY-TOPOLOGY; see: berg gpus --tpu",
        ),
    ],
)
def test_names_that_are_not_clear_are_not_guessed(berg, name, said):
    done = berg("run", "--tpu", name, "true")
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["v6e-8", "v6e-2x4"])
def test_eight_chips_of_v6e_are_a_slice_of_two_machines(berg, name):
    done = berg("run", "--tpu", name, "--dry-run", "--json", "-n", "eight", "true")
    assert done.returncode == 0 and "2 machines, each ct6e-standard-4t" in done.stderr, done.stderr
    assert '"acceleratorTopology": "2x4"' in done.stdout and "8 chips" in done.stderr


def test_one_machine_with_eight_chips_is_had_by_its_type_alone(berg, cloud):
    done = berg("run", "--tpu", "ct6e-standard-8t", "--dry-run", "--json", "-n", "eight", "true")
    body = json.loads(done.stdout)["request"]
    assert body["machineType"].endswith("/ct6e-standard-8t") and "8 chips" in done.stderr
    assert body["advancedMachineFeatures"] == {"threadsPerCore": 1}


@pytest.mark.slow
def test_a_slice_of_eight_chips_runs(berg, cloud):
    """The machine with eight, which is never there, would not."""
    done = berg("run", "-n", "eight", "--tpu", "v6e-8", "--wait", "echo $TPU_WORKER_ID of two")
    assert done.returncode == 0, done.stderr
    logs = b"".join(berg.objects(".berg/logs/eight/").values())
    assert b"0 of two" in logs and b"1 of two" in logs


def test_a_cube_that_google_does_not_list_is_asked_for_with_a_word_of_caution(berg):
    done = berg("run", "--tpu", "v5p-4x4x12", "--dry-run", "--json", "-n", "cube", "true")
    assert done.returncode == 0 and "Google's table has no 4x4x12" in done.stderr, done.stderr
    listed = berg("run", "--tpu", "v5p-8x8x16", "--dry-run", "--json", "-n", "cube", "true")
    assert listed.returncode == 0 and "Google's table" not in listed.stderr, listed.stderr


@pytest.mark.parametrize(
    ("options", "how"), [(["--spot"], "as Spot"), (["--flex"], "by flex-start"), ([], "")]
)
def test_a_plan_says_for_whom_tpu7x_is(berg, options, how):
    zone = ("--zone", "us-central1-c")
    done = berg("run", "--tpu", "tpu7x-2x2x1", *options, *zone, "--dry-run", "--json", "true")
    assert done.returncode == 0, done.stderr
    said = f"Google gives tpu7x {how} only to projects that it let in"
    assert (said in done.stderr) == bool(how), done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-g", "1"], "leave out -g"),
        (["-t", "t4"], "leave out -t"),
        (["-m", "2"], "leave out -m"),
        (["--machine-type", "n1-standard-1"], "leave out --machine-type"),
        (["--wait-for-capacity"], "leave out --wait-for-capacity"),
        (["--zone", "us-west1-a"], "It is offered in: us-central1-a, us-east5-a"),
        (["--grid", "lr=1,2"], "each job of a sweep runs on one machine"),
    ],
)
def test_what_does_not_go_with_tpus(berg, options, said):
    done = berg(
        "run", "--tpu", "v5p-2x2x2", *options, "echo {lr}" if "--grid" in options else "true"
    )
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


def test_tpus_lists_what_there_is(berg):
    rows = {row["tpu"]: row for row in json.loads(berg("gpus", "--tpu", "--json").stdout)}
    assert rows["v6e-4x4"]["hosts"] == 4 and rows["v6e-4x4"]["chips"] == 16
    assert (
        rows["v6e-4x4"]["machine_type"] == "ct6e-standard-4t" and ZONE in rows["v6e-4x4"]["zones"]
    )
    assert rows["v6e-2x4"]["hosts"] == 2 and rows["tpu7x-2x2x1"]["zones"] == ["us-central1-c"]
    table = berg("gpus", "--tpu").stdout
    assert len(table.splitlines()) == len(rows) + 1 and "v5p-4x4x4" in table


def test_one_machine_with_tpus_without_room_in_a_zone_goes_to_the_next(berg, cloud):
    """Google says INTERNAL_ERROR where it has no room for a machine with TPUs."""
    cloud.call("POST", "/_berg/stockout", {"zone": "us-east5-a"})
    zones = ["--zone", "us-east5-a", "--zone", ZONE]
    done = berg("run", "-n", "one", "--tpu", "v6e-1", *zones, "--wait", "true")
    assert done.returncode == 0, done.stderr
    assert "us-east5-a: out of stock (INTERNAL_ERROR: Internal error." in done.stderr
    assert berg.state("one")["zone"] == ZONE


@pytest.mark.slow
@pytest.mark.parametrize("code", ["ZONE_RESOURCE_POOL_EXHAUSTED", "INTERNAL_ERROR"])
def test_no_room_in_one_zone_leads_to_the_next(berg, cloud, code):
    fault = {"code": code, "message": "An internal error has occurred"}
    cloud.fault("compute.instances.insert", zone="us-east5-a", operation_error=fault)
    done = berg(
        "run",
        "-n",
        "pod",
        "--tpu",
        "v5p-2x2x2",
        "--zone",
        "us-east5-a",
        "--zone",
        ZONE,
        "--wait",
        "true",
    )
    assert done.returncode == 0, done.stderr
    assert "us-east5-a: out of stock" in done.stderr and f"in {ZONE} after" in done.stderr
    left = cloud.call(
        "GET", "/compute/v1/projects/berg-local/zones/us-east5-a/instanceGroupManagers"
    )
    assert "items" not in left


@pytest.mark.slow
def test_what_machines_said_that_were_taken_back_ends_no_job_in_the_next_zone(berg, cloud):
    """A group tries again by itself: between its failure and its end machines come, begin the job
    and are shut down.
    """
    fault = {"code": "INTERNAL_ERROR", "message": "An internal error has occurred"}
    cloud.fault("compute.instances.insert", zone="us-east5-a", operation_error=fault)
    cloud.fault("compute.instanceGroupManagers.delete", zone="us-east5-a", delay=8)
    zones = ["--zone", "us-east5-a", "--zone", ZONE]
    started = berg.start("run", "-n", "pod", "--tpu", "v5p-2x2x2", *zones, "--wait", "sleep 10")
    there = ".berg/machines/pod/pod-1.json"
    wait_for(lambda: berg.bucket.exists(there), 60, "a machine of the first zone")
    # so that the next one's word comes late
    cloud.fault("storage.objects.insert", match=there, delay=3, times=None)
    _, said = started.communicate(timeout=120)
    assert started.returncode == 0, said
    assert berg.state("pod")["zone"] == ZONE and "us-east5-a: out of stock" in said


@pytest.mark.slow
def test_between_two_zones_a_slice_is_not_lost(berg, cloud, monkeypatch):
    fault = {"code": "INTERNAL_ERROR", "message": "An internal error has occurred"}
    cloud.fault("compute.instances.insert", zone="us-east5-a", operation_error=fault, times=None)
    cloud.fault("compute.instanceGroupManagers.insert", zone=ZONE, delay=10)
    state = ".berg/jobs/pod_state.json"
    started = berg.start(
        "run", "-n", "pod", "--tpu", "v5p-2x2x2", "--zone", "us-east5-a", "--zone", ZONE, "true"
    )
    first = wait_for(lambda: berg.bucket.get(state), what="the state")
    asked = "compute.instanceGroupManagers.insert"

    def is_between() -> bool:
        faults = cloud.call("GET", "/_berg/faults")["faults"]
        return any(each["method"] == asked and each["hits"] for each in faults)

    wait_for(is_between, 60, "the request for the second zone")
    assert berg.bucket.get(state).generation > first.generation, (
        "whoever looks sees that somebody works on it"
    )
    monkeypatch.setattr(jobs, "LOST_AFTER", -60)
    (entry,) = jobs.overview(cloud.settings(berg.bucket_name), None)
    assert entry.state.state == "SUBMITTED" and not entry.machines
    monkeypatch.setattr(jobs, "BETWEEN_ZONES", 0)
    (entry,) = jobs.overview(cloud.settings(berg.bucket_name), None)
    assert entry.state.state == "LOST", "it has no group now"
    _, said = started.communicate(timeout=60)
    assert started.returncode == 0, said
    wait_for(lambda: berg.state("pod")["state"] == "SUCCEEDED", 60)


def test_no_quota_is_said_and_nothing_stays(berg, cloud):
    metric = {"region": "us-central1", "metric": "PREEMPTIBLE_TPU_V5P"}
    cloud.call("POST", "/_berg/quotas", {**metric, "limit": 4})
    done = berg("run", "-n", "pod", "--tpu", "v5p-2x2x2", "--spot", "true")
    cloud.call("POST", "/_berg/quotas", {**metric, "limit": 1536})
    assert (
        done.returncode == 1
        and "PREEMPTIBLE_TPU_V5P" in done.stderr
        and "none was left behind" in done.stderr
    )
    assert "items" not in cloud.call("GET", GROUPS) and not machines(cloud, "pod")
    assert not [name for name in berg.objects(".berg/jobs/") if "pod" in name]


def test_one_machine_without_room_is_told_what_to_try(berg, cloud):
    cloud.call("POST", "/_berg/stockout", {"zone": ZONE, "left": 0})
    done = berg("run", "-n", "one", "--tpu", "v6e-1", "true")
    assert done.returncode == 1 and f"{ZONE}: out of stock" in done.stderr
    assert (
        "Try other zones (--zone), other or fewer GPUs (-t, -g) or TPUs (--tpu), or --spot"
        in done.stderr
    )


@pytest.mark.slow
def test_of_the_workers_of_a_slice_the_first_reports_metrics(berg):
    code = "python3 -c 'import berg; berg.report(7, loss=0.5)'"
    done = berg("run", "-n", "told", "--tpu", "v5p-2x2x2", "--wait", code)
    assert done.returncode == 0, done.stderr
    assert json.loads(berg.bucket.read("berg_results/told/metrics.jsonl")) == {
        "step": 7,
        "loss": 0.5,
    }


@pytest.mark.slow
@pytest.mark.parametrize("spot", [[], ["--spot"]])
def test_a_lost_machine_ends_the_attempt_and_resume_goes_on(berg, cloud, spot):
    command = "[ -e $BERG_RESULTS_DIR/half ] && exit; touch $BERG_RESULTS_DIR/half; sleep 100"
    assert berg("run", "-n", "pod", "--tpu", "v5p-2x2x2", *spot, command).returncode == 0
    running(berg, cloud, "pod", 2)
    wait_for(
        lambda: "berg_results/pod/half" in berg.objects("berg_results/pod/"),
        40,
        "the first results",
    )
    cloud.call("POST", "/_berg/instances/pod-1/preempt", {"grace": 20})
    wait_for(lambda: berg.state("pod")["state"] == "FAILED", 60, "the end of the attempt")
    assert "pod-1" in berg.state("pod")["reason"]
    wait_for(lambda: not machines(cloud, "pod"), what="the end of the machines")
    other = berg("run", "--resume", "pod", "--zone", "us-east5-a", "--spot")
    assert (
        other.returncode == 2
        and "leave out --zone, --spot. With other options: berg rerun pod" in other.stderr
    )
    done = berg("run", "--resume", "pod", "--tail")
    assert done.returncode == 0, done.stderr
    assert "pod-1 | [berg] Running" in done.stdout
    state = berg.state("pod")
    assert (state["state"], state["attempt"], state["restarts"]) == ("SUCCEEDED", 2, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "counted"), [("crash", 1), ("maintain", 0)])
def test_google_repairs_a_slice_on_demand_and_the_job_goes_on(berg, cloud, how, counted):
    """All machines are turned off and on together; the command begins anew on each of them."""
    half = "$BERG_RESULTS_DIR/half$BERG_NODE_RANK"
    command = f"[ -e {half} ] && echo $BERG_ATTEMPT >{half} && exit; touch {half}; sleep 600"
    cloud.call("POST", "/_berg/settings", {"grace": 20})  # seconds for the last results
    assert berg("run", "-n", "pod", "--tpu", "v5p-2x2x2", command).returncode == 0
    running(berg, cloud, "pod", 2)
    halves = {f"berg_results/pod/half{rank}" for rank in range(2)}
    wait_for(lambda: halves <= set(berg.objects("berg_results/pod/")), 60, "the first results")
    ids = {each["id"] for each in machines(cloud, "pod").values()}
    cloud.call("POST", f"/_berg/instances/pod-1/{how}", {"notice": 1})
    wait_for(lambda: berg.state("pod")["attempt"] == 2, 90, "the second attempt")
    assert {each["id"] for each in machines(cloud, "pod").values()} in (ids, set())
    wait_for(lambda: berg.state("pod")["finished_at"], 90, "the end")
    state = berg.state("pod")
    assert (state["state"], state["attempt"], state["restarts"]) == ("SUCCEEDED", 2, counted)
    results = berg.objects("berg_results/pod/")
    assert {results[half] for half in halves} == {b"2\n"}
    wait_for(lambda: not machines(cloud, "pod"), what="the end of the machines")


@pytest.mark.slow
def test_kill_ends_a_slice(berg, cloud):
    assert berg("run", "-n", "pod", "--tpu", "v5p-2x2x2", "sleep 100").returncode == 0
    running(berg, cloud, "pod", 2)
    row = json.loads(berg("list", "--json").stdout)[0]
    assert (row["name"], row["gpus"], len(row["instances"])) == ("pod", "v5p-2x2x2", 2)
    done = berg("kill", "pod")
    assert done.returncode == 0 and berg.state("pod")["state"] == "KILLED"
    assert not machines(cloud, "pod") and "items" not in cloud.call("GET", GROUPS)


@pytest.mark.slow
def test_what_a_laptop_left_that_was_killed_while_google_looked_for_room_can_be_killed(berg, cloud):
    cloud.call("POST", "/_berg/stockout", {"zone": ZONE, "left": 0})
    cloud.fault("compute.instanceGroupManagers.get", delay=30, times=None)
    started = berg.start("run", "-n", "pod", "--tpu", "v5p-2x2x2", "--zone", ZONE, "true")
    wait_for(lambda: "items" in cloud.call("GET", GROUPS), what="the group")
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    cloud.call("DELETE", "/_berg/faults")
    assert json.loads(berg("list", "--json").stdout)[0]["state"] == "SUBMITTED"
    done = berg("kill", "pod")
    assert done.returncode == 0, done.stderr
    assert "items" not in cloud.call("GET", GROUPS)


@pytest.mark.slow
def test_ctrl_c_takes_a_slice_back(berg, cloud):
    cloud.fault("compute.instanceGroupManagers.get", delay=30)
    started = berg.start("run", "-n", "pod", "--tpu", "v5p-2x2x2", "true")
    wait_for(lambda: machines(cloud, "pod"), what="the machines")
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 130 and "Deleting what was created" in said
    assert not machines(cloud, "pod") and "items" not in cloud.call("GET", GROUPS)


@pytest.mark.slow
@pytest.mark.skipif(bool(sshd.obstacle()), reason=f"no ssh into machines here: {sshd.obstacle()}")
def test_ssh_knows_workers_and_all_machines(berg, cloud):
    assert berg("devbox", "-n", "pod", "--tpu", "v5p-2x2x2").returncode == 0
    running(berg, cloud, "pod", 2)
    done = berg("ssh", "pod", "--all", "--", "echo", "$BERG_NODE_RANK")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["pod-0 | 1", "pod-1 | 0"]
    there = berg("ssh", "pod", "--worker", "0", "--dry-run")
    assert "pod-1" in there.stdout, there.stderr
    missing = berg("ssh", "pod", "--worker", "7", "--dry-run")
    assert missing.returncode == 1 and "no machine with the number 7: 0 to 1" in missing.stderr
    failed = berg("ssh", "pod", "--all", "--", "exit $((BERG_NODE_RANK + 3))")
    assert failed.returncode == 4  # of pod-0, the first by name
    assert berg("ssh", "pod", "--all").returncode == 2
    assert berg("kill", "pod").returncode == 0
    over = berg("ssh", "pod", "--worker", "0")
    assert over.returncode == 1 and "pod has no machine any more" in over.stderr
    assert berg("devbox", "-n", "one", "-g", "0").returncode == 0
    assert "one" in berg("ssh", "one", "--worker", "0", "--dry-run").stdout
    missing = berg("ssh", "one", "--worker", "1", "--dry-run")
    assert missing.returncode == 1 and "no machine with the number 1: 0 to 0" in missing.stderr


@pytest.mark.slow
def test_reap_finds_the_shared_parts_and_deletes_them_last(berg, cloud, monkeypatch):
    monkeypatch.setattr(ending, "SETTLED", -1)
    assert berg("run", "-n", "pod", "--tpu", "v5p-2x2x2", "sleep 100").returncode == 0
    running(berg, cloud, "pod", 2)
    settings = cloud.settings(berg.bucket_name)
    assert not ending.leftovers(settings, "tester")
    berg.bucket.delete(".berg/jobs/pod_state.json", ".berg/jobs/pod_metadata.json")
    found = ending.leftovers(settings, "tester")
    assert [(each.kind, each.name, each.where) for each in found] == [("group", "pod", ZONE)]
    ending.delete_leftovers(settings, found)
    assert not machines(cloud, "pod")
    found = ending.leftovers(settings, "tester")
    assert sorted(each.kind for each in found) == ["policy", "template"]
    ending.delete_leftovers(settings, found)
    assert not ending.leftovers(settings, "tester")


@pytest.mark.slow
def test_the_example_learns_on_a_slice_and_goes_on_after_a_lost_machine(berg, cloud):
    shutil.copy(Path(__file__).parent.parent / "examples/tpu_jax/train.py", berg.repo)
    command = (
        f"n=3; [ -e $BERG_RESULTS_DIR/checkpoint.npz ] && n=6; {sys.executable} train.py --epochs=$n --batch-size=64 "
        "&& { [ $n = 6 ] || sleep 100; }"
    )
    assert berg("run", "-n", "digits", "--tpu", "v5p-2x2x2", command).returncode == 0

    def metrics() -> list[dict]:
        found = berg.objects("berg_results/digits/").get("berg_results/digits/metrics.jsonl", b"")
        return [json.loads(line) for line in found.splitlines()]

    wait_for(lambda: len(metrics()) == 3, 100, "three epochs")
    assert "berg_results/digits/checkpoint.npz" in berg.objects("berg_results/digits/")
    cloud.call("POST", "/_berg/instances/digits-0/preempt", {"grace": 20})
    wait_for(lambda: berg.state("digits")["state"] == "FAILED", 60, "the end of the attempt")
    wait_for(lambda: not machines(cloud, "digits"), what="the end of the machines")
    done = berg("run", "--resume", "digits", "--wait")
    assert done.returncode == 0, done.stderr + berg.log("digits")
    rows = metrics()
    assert [(row["epoch"], row["chips"], row["workers"]) for row in rows] == [
        (n, 8, 2) for n in range(1, 7)
    ]
    assert rows[-1]["train_loss"] < 0.5 * rows[0]["train_loss"] and rows[-1]["test_accuracy"] > 0.8
    log = berg.log("digits")
    assert log.count("going on after epoch 3") == 1
    for rank, name in enumerate(("digits-1", "digits-0")):
        assert log.count(f"worker {rank} of 2 on {name}: 4 of 8 cpu devices") == 2
        assert re.search(rf"Device=\S+ Worker={rank}/2 Epoch=6 Step=10 .* GlobalRate=\d", log), log

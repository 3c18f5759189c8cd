"""TPUs in pods of a cluster: slices of nodes that come and go together, for the generations that
Compute Engine does not make.
"""

import contextlib
import json
import re
import shutil
import sys
import time
from pathlib import Path

import pytest
from conftest import wait_for
from local_kube import PLACE
from pods import alive, cluster

from berg import BergError
from berg.gke import client, clusters
from berg.google import api, shapes

ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"
TOLD = (
    'echo "worker $BERG_NODE_RANK of $BERG_NUM_NODES: $TPU_WORKER_ID $TPU_WORKER_HOSTNAMES" '
    '$(python3 -c "import os, socket; '
    "names = os.environ['TPU_WORKER_HOSTNAMES'].split(','); "
    'print(*map(socket.gethostbyname, names))")'
)


@pytest.fixture(scope="module")
def kube(cloud, tmp_path_factory):
    """A cluster with a slice of two nodes, and one of single nodes with all chips."""
    folder = tmp_path_factory.mktemp("chips")
    with cluster(cloud, "chips", folder, {"tpu": "v5e-2x4"}, {"tpu": "v5e-8"}) as made:
        yield made


@pytest.fixture(autouse=True)
def clean(request):
    yield
    if "kube" in request.fixturenames:
        import pods

        pods.delete_jobs(request.getfixturevalue("kube"))


def run(berg, *words: str):
    return berg("run", "--cluster", "chips", *words)


def pool_of(kube, name: str) -> dict:
    found = kube.google("GET", f"{PLACE}/clusters/chips")
    return next(each for each in found["nodePools"] if each["name"] == name)


# --- pools


def test_a_pool_is_one_slice_with_a_limit_and_without_nodes(kube):
    pool = pool_of(kube, "v5e-2x4")
    assert pool["placementPolicy"] == {"type": "COMPACT", "tpuTopology": "2x4"}
    assert pool["initialNodeCount"] == 0 and pool["autoscaling"]["maxNodeCount"] == 2
    node = pool["config"]
    assert (node["machineType"], node["maxRunDuration"]) == ("ct5lp-hightpu-4t", "1209600s")
    assert {"key": "google.com/tpu", "value": "present", "effect": "NO_SCHEDULE"} in node["taints"]
    alone = pool_of(kube, "v5e-8")
    assert alone["config"]["machineType"] == "ct5lp-hightpu-8t" and "placementPolicy" not in alone


def test_the_cluster_is_a_file_that_makes_it_again(kube, cloud, tmp_path):
    settings = cloud.settings("any")
    text = clusters.text(client.find_cluster(settings, "chips"))
    assert 'tpu = "v5e-2x4"\nmax-hours = 336\n' in text and "num-gpus" not in text
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    _, pools = clusters.read(str(file))
    assert [(each.tpu, each.most) for each in pools] == [("v5e-2x4", 2), ("v5e-8", 2)]


@pytest.mark.parametrize(
    ("name", "machine_type", "hosts", "chips_each"),
    [
        ("v4-2x2x1", "ct4p-hightpu-4t", 1, 4),
        ("v4-2x2x4", "ct4p-hightpu-4t", 4, 4),
        ("v5e-1", "ct5lp-hightpu-1t", 1, 1),
        ("v5e-2x4", "ct5lp-hightpu-4t", 2, 4),
        ("v5e-8", "ct5lp-hightpu-8t", 1, 8),
        ("v5p-2x2x2", "ct5p-hightpu-4t", 2, 4),
        ("v5p-4x4x12", "ct5p-hightpu-4t", 48, 4),
        ("v6e-2x4", "ct6e-standard-4t", 2, 4),
        ("V6E-16x16", "ct6e-standard-4t", 64, 4),
        ("tpu7x-2x2x1", "tpu7x-standard-4t", 1, 4),
        ("tpu7x-2x2x2", "tpu7x-standard-4t", 2, 4),
    ],
)
def test_names_of_slices(name, machine_type, hosts, chips_each):
    found = shapes.parse_tpu(name, in_cluster=True)
    assert (found.machine_type, found.hosts, found.chips_each) == (machine_type, hosts, chips_each)
    assert shapes.parse_tpu(found.name, in_cluster=True) == found


@pytest.mark.parametrize("name", ["v3-8", "tpu7x-2x2", "v5e-3x3", "v5p-8x4x4", "v5e", "l4"])
def test_names_of_no_slice(name):
    with pytest.raises(BergError, match="--tpu"):
        shapes.parse_tpu(name, in_cluster=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpu_type": "t4"}, "leave out -t"),
        ({"machine_type": "n1-standard-1"}, "leave out --machine-type"),
        ({"max_nodes": 3}, "a slice of 4 nodes, all or none"),
        ({"min_nodes": 1}, "a slice of 4 nodes, all or none"),
        ({"max_hours": 0}, "give 1h to 2880h"),
    ],
)
def test_what_does_not_go_with_a_pool_of_tpus(options, said):
    with pytest.raises(BergError, match=said):
        clusters.Wanted(tpu="v5e-4x4", **options).check()


# --- what Google refuses


def tpu_pool(machine_type: str, topology: str = "", **fields) -> dict:
    placed = {"placementPolicy": {"type": "COMPACT", "tpuTopology": topology}} if topology else {}
    scaling = {"enabled": True, "minNodeCount": 0, "maxNodeCount": 4}
    config = {"machineType": machine_type, "diskType": "pd-balanced", **fields.pop("config", {})}
    base = {"name": "tpus", "initialNodeCount": 0, "autoscaling": scaling, "config": config}
    return {**base, **placed, **fields}


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (tpu_pool("ct5lp-hightpu-4t", "2x2"), "can't be specified with single-host"),
        (tpu_pool("ct5lp-hightpu-8t", "2x4"), "can't be specified with single-host"),
        (tpu_pool("ct5lp-hightpu-4t", "3x3"), "topology 3x3 is not supported"),
        (tpu_pool("ct5lp-hightpu-8t", "4x4"), "topology 4x4 is not supported"),
        (tpu_pool("n1-standard-4", "4x4"), "not supported on machine type n1-standard-4"),
        (tpu_pool("ct5lp-hightpu-4t", "4x8"), "Max node count must be 8"),
        (tpu_pool("ct5lp-hightpu-4t", "4x4", initialNodeCount=2), "must be 0 or 4"),
        (
            tpu_pool("ct5lp-hightpu-4t", placementPolicy={"tpuTopology": "4x4"}),
            "policy type COMPACT",
        ),
        (tpu_pool("ct5lp-hightpu-4t", config={"maxRunDuration": "5s"}), "between 30 seconds"),
        (tpu_pool("ct4p-hightpu-4t", "2x2x2"), "does not exist in zone us-central1-a"),
    ],
)
def test_a_pool_that_google_refuses_is_refused(cloud, kube, pool, words):
    path = f"{cloud.url}/container/v1/{PLACE}/clusters/chips/nodePools"
    answer = cloud.session.post(path, json={"nodePool": pool})
    assert answer.status_code == 400 and words in answer.json()["error"]["message"]


IRONWOOD = "tpu7x-standard-4t"
NAMED = {"policyName": "there", "tpuTopology": "2x2x4"}


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        ({"type": "COMPACT", "tpuTopology": "2x2x4"}, "Use workload policy instead"),
        ({"tpuTopology": "2x2x4"}, "Use workload policy instead"),
        ({**NAMED, "type": "COMPACT"}, "Use workload policy instead"),
        ({**NAMED, "policyName": "nowhere"}, "resourcePolicies/nowhere' was not found"),
        ({**NAMED, "tpuTopology": "2x2x2"}, "has the topology 2x2x4"),
        ({"tpuTopology": "2x2x1"}, "can't be specified with single-host"),
        (NAMED, ""),
    ],
)
def test_a_slice_of_ironwood_names_its_workload_policy(cloud, kube, placement, words):
    settings = cloud.settings("any")
    body = shapes.workload_policy("there", "2x2x4", "a test's")
    with contextlib.suppress(api.Conflict):
        api.write(settings, "/regions/us-central1/resourcePolicies", body)
    wanted = tpu_pool(IRONWOOD, placementPolicy=placement, locations=["us-central1-c"])
    wanted["config"]["diskType"] = "hyperdisk-balanced"
    wanted["autoscaling"]["maxNodeCount"] = 2 if "2x2x2" in str(placement) else 4
    path = f"{cloud.url}/container/v1/{PLACE}/clusters/chips/nodePools"
    answer = cloud.session.post(path, json={"nodePool": wanted})
    if words:
        assert answer.status_code == 400 and words in answer.json()["error"]["message"]
        return
    kube.done(answer.json())
    assert pool_of(kube, "tpus")["placementPolicy"] == NAMED
    kube.done(cloud.call("DELETE", path.removeprefix(cloud.url) + "/tpus"))


@pytest.fixture(scope="module")
def ironwood(cloud, tmp_path_factory):
    """A cluster with a slice of two nodes of tpu7x; a pool of another cluster's has its policy."""
    settings = cloud.settings("any")
    wanted = clusters.Wanted(zone="us-central1-c", tpu="tpu7x-2x2x2")
    policy = shapes.workload_policy(wanted.slice.policy, wanted.slice.topology, "of another's")
    api.write(settings, "/regions/us-central1/resourcePolicies", policy)
    assert clusters.create(settings, "iron", wanted, print) == "us-central1-c/iron"
    yield client.get_cluster(settings, "us-central1-c/iron")
    clusters.delete(settings, "iron", print)


def test_a_pool_of_ironwood(cloud, ironwood):
    pool = next(each for each in ironwood["nodePools"] if each["name"] == "tpu7x-2x2x2")
    policy = {"policyName": "berg-pools-2x2x2", "tpuTopology": "2x2x2"}
    assert pool["placementPolicy"] == policy and pool["config"]["machineType"] == IRONWOOD
    assert shapes.tpu_of_pool(pool).hosts == pool["autoscaling"]["maxNodeCount"] == 2
    text = clusters.text(ironwood)
    assert 'tpu = "tpu7x-2x2x2"' in text
    url = f"{cloud.url}/compute/v1/projects/berg-local/regions/us-central1/resourcePolicies"
    refused = cloud.session.delete(f"{url}/berg-pools-2x2x2")
    assert refused.status_code == 400 and "already being used by 'gke-iron" in refused.text
    with pytest.raises(BergError, match="Leave out --spot"):
        clusters.Wanted(tpu="tpu7x-2x2x2", spot=True).check()


@pytest.mark.slow
def test_a_job_on_ironwood(berg, ironwood):
    command = "echo at $BERG_NODE_RANK: $TPU_TOPOLOGY, $TPU_WORKER_ID"
    done = berg("run", "--cluster", "iron", "--tpu", "tpu7x-2x2x2", "-n", "on", "--wait", command)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"at \d: .*", berg.log("on"))) == {"at 0: 2x2x2, 0", "at 1: 2x2x2, 1"}


def pod(chips: int, selector: dict[str, str]) -> dict:
    main = {"name": "main", "image": "debian:12", "command": ["true"]}
    main["resources"] = {"limits": {"google.com/tpu": chips}}
    spec = {"restartPolicy": "Never", "nodeSelector": selector, "containers": [main]}
    return {"metadata": {"name": "chip"}, "spec": spec}


SLICE = {ACCELERATOR: "tpu-v5-lite-podslice", TOPOLOGY: "2x4"}


@pytest.mark.parametrize(
    ("chips", "selector", "words"),
    [
        (4, {}, f"Missing nodeSelector/nodeAffinity label {ACCELERATOR}"),
        (4, {ACCELERATOR: "tpu-v5-lite-podslice"}, f"label {TOPOLOGY}"),
        (4, {**SLICE, ACCELERATOR: "tpu-v9"}, "Invalid TPU accelerator tpu-v9"),
        (4, {**SLICE, TOPOLOGY: "2x2x2"}, "Invalid TPU topology 2x2x2"),
        (2, SLICE, "chip count 2 for tpu-v5-lite-podslice 2x4: request 4 or 8"),
        (8, {**SLICE, TOPOLOGY: "4x4"}, "chip count 8 for tpu-v5-lite-podslice 4x4: request 4"),
    ],
)
@pytest.mark.parametrize("kind", ["pods", "jobs"])
def test_pods_that_fit_no_node_are_refused(kube, kind, chips, selector, words):
    body, path = pod(chips, selector), "/api/v1/namespaces/default/pods"
    if kind == "jobs":
        body = {"metadata": {"name": "chip"}, "spec": {"template": {"spec": body["spec"]}}}
        path = "/apis/batch/v1/namespaces/default/jobs"
    answer = kube.raw("POST", path, body)
    assert answer.status_code == 400, answer.text
    said = answer.json()["message"]
    assert "GKE Warden rejected the request" in said and words in said


@pytest.mark.parametrize("machine_type", ["ct5lp-hightpu-4t", "ct4p-hightpu-4t"])
def test_compute_engine_makes_no_such_machine_by_itself(cloud, machine_type):
    zone = "us-central2-b" if machine_type.startswith("ct4p") else "us-central1-a"
    path = f"{cloud.url}/compute/v1/projects/berg-local/zones/{zone}/instances"
    body = {"name": "chip", "machineType": f"zones/{zone}/machineTypes/{machine_type}"}
    answer = cloud.session.post(path, json=body)
    assert answer.status_code == 400
    assert "is for nodes of Google Kubernetes Engine" in answer.json()["error"]["message"]


# --- jobs


def test_a_dry_run_shows_the_service_and_the_job(berg, kube):
    words = ("--tpu", "v5e-2x4", "--replacement-timeout", "5m", "--dry-run", "--json", "-n", "pod")
    done = run(berg, *words, "true")
    assert done.returncode == 0, done.stderr
    assert (
        "20 after pods that were taken away; the others wait 5m for the replacement" in done.stderr
    )
    assert "2 pods, each 4 TPU chips" in done.stderr and "v5e-2x4, 8 chips" in done.stderr
    service, made = json.loads(done.stdout)["request"]["items"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    spec = made["spec"]["template"]["spec"]
    assert spec["subdomain"] == service["metadata"]["name"] and made["spec"]["completions"] == 2
    assert spec["nodeSelector"] == {**SLICE, "cloud.google.com/gke-nodepool": "v5e-2x4"}
    resources = spec["containers"][0]["resources"]
    assert resources["limits"] == {"google.com/tpu": "4"} == resources["requests"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tpu", "v5e-4x4"], "has no pool v5e-4x4. Add it: berg cluster create chips --tpu"),
        (["--tpu", "v5e-2x4", "--spot"], "create chips --tpu v5e-2x4 --spot"),
        (["--tpu", "v5e-2x4", "-g", "1"], "leave out -g"),
        (["--tpu", "v5e-2x4", "-m", "2"], "leave out -m"),
        (["--tpu", "v5e-2x4", "--max-hours", "400"], "exist for 336 hours at most"),
        (["--tpu", "v5e-2x4", "--grid", "lr=1,2"], "each job of a sweep runs on one machine"),
        (["--tpu", "v3-8"], "nodes of a cluster have v4, v5e, v6e, v5p, tpu7x"),
    ],
)
def test_what_does_not_go_with_tpus_in_a_cluster(berg, kube, options, said):
    done = run(berg, *options, "echo {lr}" if "--grid" in options else "true")
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_slice_runs_the_command_on_every_pod_and_goes_as_a_whole(berg, cloud, kube):
    cloud.call("POST", "/_berg/settings", {"scale_down": 1.0})
    done = run(berg, "-n", "pod", "--tpu", "v5e-2x4", "--wait", TOLD)
    assert done.returncode == 0, done.stderr
    lines = sorted(re.findall(r"worker \d of .*", berg.log("pod")))
    assert [line.split(": ")[0] for line in lines] == ["worker 0 of 2", "worker 1 of 2"]
    told = [line.split(": ")[1].split() for line in lines]
    assert [each[0] for each in told] == ["0", "1"]
    hosts = told[0][1].split(",")
    assert [host.split(".")[0] for host in hosts] == ["pod-0", "pod-1"]
    assert told[0][1:] == told[1][1:] and len(set(told[0][2:])) == 2, "names lead to the pods"
    (service,) = [
        each
        for each in kube.get("services")["items"]
        if each["metadata"]["name"].startswith("berg-slice-")
    ]
    assert service["metadata"]["ownerReferences"][0]["name"] == "pod"
    status = berg("cluster", "status", "chips").stdout
    assert "v5e-2x4" in status
    wait_for(lambda: not nodes_of(kube), 60, "the end of both nodes")


def nodes_of(kube) -> list[str]:
    names = [node["metadata"]["name"] for node in kube.get("nodes")["items"]]
    return [name for name in names if "v5e-2x4" in name]


def instances_of(cloud) -> list[str]:
    """Machines of the pool that are there and do not go."""
    there = {name: each["status"] for name, each in cloud.instances().items()}
    return [name for name in there if "v5e-2x4" in name and there[name] != "STOPPING"]


def test_a_slice_without_room_for_all_has_no_node(berg, cloud, kube):
    """All or none: the first node that was made goes again."""
    quota = {"metric": "TPU_LITE_PODSLICE_V5", "region": "us-central1"}
    cloud.call("POST", "/_berg/quotas", {**quota, "limit": 4})
    try:
        started = run(berg, "-n", "stuck", "--tpu", "v5e-2x4", "true")
        assert started.returncode == 0, started.stderr
        wait_for(lambda: "no quota for another node" in berg("list").stdout, 30, "the reason")
    finally:
        cloud.call("POST", "/_berg/quotas", {**quota, "limit": 256})
    wait_for(lambda: not nodes_of(kube) and not instances_of(cloud), 20, "the first node to go")
    killed = berg("kill", "-y", "stuck")
    assert killed.returncode == 0, killed.stderr
    services = [each["metadata"]["name"] for each in kube.get("services")["items"]]
    assert not [name for name in services if name.startswith("berg-slice-")]


@pytest.mark.slow
def test_jax_forms_the_slice_over_the_pods(berg, cloud, kube):
    pytest.importorskip("jax")
    example = Path(__file__).parent.parent / "examples/tpu_jax/train.py"
    shutil.copy(example, berg.repo)
    command = f"{sys.executable} train.py --epochs=2 --batch-size=64"
    done = run(berg, "-n", "digits", "--tpu", "v5e-2x4", "--wait", command)
    assert done.returncode == 0, done.stderr + berg.log("digits")
    found = berg.objects("berg_results/digits/")["berg_results/digits/metrics.jsonl"]
    rows = [json.loads(line) for line in found.splitlines()]
    assert [(row["epoch"], row["chips"], row["workers"]) for row in rows] == [(1, 8, 2), (2, 8, 2)]
    log = berg.log("digits")
    for rank in range(2):
        assert f"worker {rank} of 2 on digits-{rank}: 4 of 8 cpu devices" in log


@pytest.mark.slow
def test_people_look_into_a_slice_and_end_it(berg, cloud, kube):
    started = run(berg, "-n", "long", "--tpu", "v5e-2x4", "sleep 100")
    assert started.returncode == 0, started.stderr
    wait_for(lambda: berg.state("long")["state"] == "RUNNING", 90, "the job")
    on = berg("ssh", "long", "--worker", "1", "--", "echo $TPU_WORKER_ID")
    assert on.stdout.split() == ["1"], on.stderr
    shown = json.loads(berg("cluster", "status", "chips", "--json").stdout)
    mine = [node for node in shown["nodes"] if node["pool"] == "v5e-2x4"]
    assert [(node["gpus"], node["used"]) for node in mine] == [(4, 4), (4, 4)]
    done = berg("kill", "-y", "long")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: berg.state("long")["state"] == "KILLED", 90, "the end")
    wait_for(lambda: not kube.pods(), 60, "the end of the pods")


COUNTED = (
    "n=$(($(cat $BERG_RESULTS_DIR/$BERG_NODE_RANK || echo 0) + 1)); "
    "echo $n > $BERG_RESULTS_DIR/$BERG_NODE_RANK; echo id $TPU_WORKER_ID of run $n; "
    "[ $n = 2 ] || sleep 300"
)


@contextlib.contextmanager
def lost_without_room(berg, cloud, kube, name: str):
    """A job whose slice was lost, for which there is no room."""
    started = run(berg, "-n", name, "--tpu", "v5e-2x4", "--replacement-timeout", "0.1m", COUNTED)
    assert started.returncode == 0, started.stderr
    wait_for(lambda: berg.log(name).count(" of run 1\n") == 2, 90, "the job")
    wait_for(lambda: len(berg.objects(f"berg_results/{name}/")) == 3, 60, "what it wrote")
    before = nodes_of(kube)
    cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a"})
    try:
        cloud.call("POST", f"/_berg/instances/{before[0]}/crash", {})
        wait_for(lambda: not nodes_of(kube), 60, "the end of both nodes")
        says = f"{name}-1 waits: no room"
        wait_for(lambda: says in " ".join(berg("list").stdout.split()), 60, "the list's word")
        yield
    finally:
        cloud.call("POST", "/_berg/stockout", {"on": False})


@pytest.mark.slow
def test_a_slice_that_is_lost_waits_for_room_without_an_end(berg, cloud, kube):
    """None of its pods is there, which would count --replacement-timeout."""
    with lost_without_room(berg, cloud, kube, "still"):
        time.sleep(7)  # longer than --replacement-timeout
        assert not berg.state("still")["finished_at"]  # what it says is its first pod's last word
    wait_for(lambda: berg.state("still")["finished_at"], 120, "the end of the job")
    state = berg.state("still")
    assert (state["state"], state["attempt"], state["restarts"]) == ("SUCCEEDED", 2, 1), state


@contextlib.contextmanager
def closed(kube, node: str):
    """No pod comes to a node meanwhile, as after `kubectl cordon`."""
    path = f"/api/v1/nodes/{node}"
    about = kube.call("GET", path)
    kube.call("PUT", path, {**about, "spec": {**about["spec"], "unschedulable": True}})
    yield
    kube.call("PUT", path, {**kube.call("GET", path), "spec": about["spec"]})


@pytest.mark.slow
def test_the_other_pods_of_a_slice_wait_for_one_as_long_as_they_may(berg, cloud, kube):
    started = run(berg, "-n", "alone", "--tpu", "v5e-2x4", "--replacement-timeout", "0.1m", COUNTED)
    assert started.returncode == 0, started.stderr
    wait_for(lambda: berg.log("alone").count(" of run 1\n") == 2, 90, "the job")
    (pod,) = [each for each in kube.pods() if "alone-1-" in each["metadata"]["name"]]
    with closed(kube, pod["spec"]["nodeName"]):
        cloud.call("POST", f"/_berg/pods/{pod['metadata']['name']}/evict", {})
        wait_for(lambda: berg.state("alone")["finished_at"], 40, "the end of the job")
    state = berg.state("alone")
    assert state["state"] == "FAILED", state
    why = "alone-1 did not come within 6s (--replacement-timeout). Resume the job: berg run --resume alone"
    assert state["reason"].startswith(why), state["reason"]
    wait_for(lambda: not alive(kube, "alone"), 60, "the end of the pods")


@pytest.mark.slow
def test_a_job_is_killed_while_its_slice_has_no_room(berg, cloud, kube):
    with lost_without_room(berg, cloud, kube, "dead"):
        killed = berg("kill", "-y", "dead")
        assert killed.returncode == 0, killed.stderr
    assert berg.state("dead")["state"] == "KILLED"
    assert berg.objects("berg_results/dead/")["berg_results/dead/0"] == b"1\n", "it is kept"
    wait_for(lambda: not kube.pods(), 60, "the end of the pods")
    services = [each["metadata"]["name"] for each in kube.get("services")["items"]]
    assert not [each for each in services if each.startswith("berg-slice-")]
    assert not nodes_of(kube)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "victim"), [("crash", 0), ("preempt", 1)])
def test_a_job_goes_on_when_a_node_is_lost_which_takes_the_slice_along(
    berg, cloud, kube, how, victim
):
    """Google makes all nodes anew, the Job all pods, and these begin the next attempt together."""
    count = "n=$(($(cat $BERG_RESULTS_DIR/$BERG_NODE_RANK || echo 0) + 1)); "
    count += "echo $n > $BERG_RESULTS_DIR/$BERG_NODE_RANK; echo id $TPU_WORKER_ID of run $n; "
    started = run(berg, "-n", "lost", "--tpu", "v5e-2x4", f"{count} [ $n = 2 ] || sleep 300")
    assert started.returncode == 0, started.stderr
    wait_for(lambda: berg.log("lost").count(" of run 1\n") == 2, 90, "the job")
    wait_for(lambda: len(berg.objects("berg_results/lost/")) == 3, 60, "what it wrote")
    before = nodes_of(kube)
    cloud.call("POST", f"/_berg/instances/{before[victim]}/{how}", {})
    wait_for(lambda: not set(before) & set(nodes_of(kube)), 60, "the end of both nodes")
    wait_for(lambda: berg.state("lost")["finished_at"], 120, "the end of the job")
    state = berg.state("lost")
    assert (state["state"], state["failures"]) == ("SUCCEEDED", 0), state
    assert state["attempt"] == state["restarts"] + 1 and state["attempt"] in (2, 3)
    assert {"id 0 of run 2", "id 1 of run 2"} <= set(berg.log("lost").splitlines())


@pytest.mark.slow
def test_one_node_with_all_chips_is_a_pod(berg, kube):
    done = run(berg, "-n", "one", "--tpu", "v5e-8", "--wait", "echo $TPU_WORKER_HOSTNAMES")
    assert done.returncode == 0, done.stderr
    assert "localhost" in berg.log("one")

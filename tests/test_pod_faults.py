"""What goes wrong with jobs in pods, one fault a test, as in test_faults.py: nothing is lost, and
nothing is left.

Left would be a Job that is not over, a pod that lives, an object of the cluster that was not there
before, a secret.
"""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator

import pytest
from conftest import USUAL, wait_for
from pods import alive, clean, cluster  # noqa: F401 (a fixture)
from test_cluster_faults import check_attempts, lost_in_phase
from test_faults import Trial, fault, faults, stockout
from test_run import worker_of

from berg import BergError
from berg.gke import client, clusters, place, pods
from berg.google import iam
from berg.laptop import ending, jobs
from localcloud import control


@pytest.fixture(scope="module")
def kube(cloud, tmp_path_factory):
    """A cluster with Spot nodes, which come when a pod needs one."""
    pool = {"num_gpus": 0, "machine_type": "n1-standard-2", "spot": True, "num_nodes": 3}
    with cluster(cloud, "faults", tmp_path_factory.mktemp("kube"), pool) as made:
        yield made


@pytest.fixture
def trial(berg, kube, seed, record_property, request) -> Trial:
    if mark := request.node.get_closest_marker("fault"):
        record_property("fault", mark.args)
    where = ("--cluster", "faults", "-g", "0", "--spot")
    made = Trial(berg, seed, record_property, bool(request.config.getoption("--table")), where)
    before = objects(kube)

    def left() -> list[str]:
        going = [
            each["metadata"]["name"]
            for each in kube.get("jobs")["items"]
            if is_of(made, each) and not ended(each)
        ]
        return (
            going
            + [pod["metadata"]["name"] for pod in alive(kube, made.name)]
            + sorted(objects(kube) - before)
        )

    made.others = left
    return made


def objects(kube) -> set[str]:
    """What is there but for what goes with a Job."""
    return {
        f"{kind} {each['metadata']['name']}"
        for kind in ("secrets", "configmaps")
        for each in kube.get(kind)["items"]
        if not each["metadata"].get("ownerReferences")
    }


def is_of(trial: Trial, thing: dict) -> bool:
    return thing["metadata"]["labels"].get("berg-job") == trial.name


def ended(job: dict) -> bool:
    kinds = [
        each["type"] for each in job["status"].get("conditions", []) if each["status"] == "True"
    ]
    return bool({"Complete", "Failed"} & {*kinds})


def with_secret(trial: Trial) -> tuple[str, str]:
    return "--secret", f"KEY={trial.berg.home}/berg.json"


# --- nodes and pods

TAKEN_AWAY = {  # what happens -> the fault as the table has it, its promises
    "preempt": ("a pod's node is preempted", "1 2 3 6"),
    "crash": ("a pod's node vanishes", "1 2 4 6"),
    "evict": ("a pod is evicted without grace", "1 2 4 6"),
    "drain": ("a pod is evicted through the API, as a drain does", "1 2 3 6"),
}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=fault(*told)) for what, told in TAKEN_AWAY.items()]
)
def test_a_pod_is_taken_away(trial, kube, what):
    count, pause = 40, 0.1
    trial.run(trial.command(count, pause), *with_secret(trial))
    trial.until("wrote 0 ")
    time.sleep(trial.dice.uniform(0, count * pause * 0.6))
    (pod,) = alive(kube, trial.name)
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    if what == "evict":
        trial.berg.cloud.call("POST", f"/_berg/pods/{name}/evict", {})
    elif what == "drain":
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": "default"},
        }
        kube.call("POST", f"/api/v1/namespaces/default/pods/{name}/eviction", body)
    else:
        trial.berg.cloud.call(
            "POST", f"/_berg/instances/{node}/{what}", {"grace": 20} if what == "preempt" else {}
        )
    state = trial.check("SUCCEEDED", count)
    assert state["attempt"] == 2, state
    log = trial.log()
    assert log.count("attempt 1 finds 0") == 1 and "attempt 2 finds" in log, (
        "the log goes on over pods"
    )
    if what in ("preempt", "drain"):
        assert len(re.findall(r"^wrote ", log, re.M)) == count, (
            "what was written before was not written again"
        )


SEVERAL = ("-m", "3", "-c", "1")  # each on a node of its own
COUNT = 40


def take_away(trial: Trial, pod: dict, how: str) -> None:
    """Let a pod be lost, alone or with its node."""
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    if how == "evict":
        trial.berg.cloud.call("POST", f"/_berg/pods/{name}/evict", {})
    else:
        grace = {"grace": 20} if how == "preempt" else {}
        trial.berg.cloud.call("POST", f"/_berg/instances/{node}/{how}", grace)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["preempt", "crash", "evict"])
@pytest.mark.parametrize("victims", ["1", "0", "1 2", "0 1 2"])
@fault("of 3 pods one, the first, two or all are lost while the command runs", "1 2 3 6")
def test_several_pods_are_lost(trial, kube, victims, how):
    trial.run(trial.command(COUNT, 0.2), *SEVERAL, *with_secret(trial))
    trial.until(f"wrote {trial.dice.randint(2, 10)} ")
    there = alive(kube, trial.name)
    for victim in victims.split():
        take_away(trial, there[int(victim)], how)
    state = trial.check("SUCCEEDED", COUNT)
    assert state["attempt"] in (2, 3, 4), "each loss, or several of them together"
    check_attempts(state)
    assert re.search(r"^attempt [234] finds", trial.log(), re.M)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0])
@pytest.mark.parametrize("phase", ["meeting", "installing", "uploading"])
@fault("of 3 pods one is lost in each phase", "1 2 3 6")
def test_a_pod_of_several_is_lost_in_each_phase(trial, kube, phase, victim):
    options = (*SEVERAL, *with_secret(trial))
    take = lambda: take_away(trial, alive(kube, trial.name)[victim], "preempt")
    lost_in_phase(trial, phase, victim, options, take)


@contextlib.contextmanager
def one_missing(trial: Trial, kube, victim: int, *options: str) -> Iterator[None]:
    """A job on three pods of which two wait for the third one, for which there is no room."""
    trial.run(trial.command(COUNT, 0.2), *SEVERAL, *options, *with_secret(trial))
    trial.until("wrote 3 ")
    with stockout(trial.berg, "us-central1-a"):
        take_away(trial, alive(kube, trial.name)[victim], "preempt")
        says = "attempt 2; waits for 1 of 3 machines since "
        wait_for(lambda: says in " ".join(trial.berg("list").stdout.split()), 60, "the list's word")
        yield


@pytest.mark.slow
@pytest.mark.parametrize("victim", [2, 0])
@pytest.mark.parametrize("lost_again", [False, True])
@fault("2 pods wait for one without room, for a while, and maybe one is lost again", "1 2 6 7")
def test_room_for_a_pod_comes_back(trial, kube, victim, lost_again):
    with one_missing(trial, kube, victim):
        if lost_again:
            (pod,) = [
                each for each in alive(kube, trial.name) if f"{trial.name}-1-" in name_of(each)
            ]
            take_away(trial, pod, "evict")
    check_attempts(trial.check("SUCCEEDED", COUNT))


def name_of(thing: dict) -> str:
    return thing["metadata"]["name"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [2, 0])
@fault("a job is killed while its pods wait for one", "1 2 7")
def test_kill_while_pods_wait(trial, kube, victim):
    with one_missing(trial, kube, victim):
        killed = trial.berg("kill", "-y", trial.name)
        assert killed.returncode == 0, killed.stderr
        trial.check("KILLED")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [2, 0])
@fault("the time limit comes while pods wait for one", "1 2 7")
def test_time_limit_while_pods_wait(trial, kube, victim):
    with one_missing(trial, kube, victim, "--max-hours", "0.02"):
        assert "it ran into its time limit" in trial.check("FAILED")["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [2, 0])
@fault("no room for one of 3 pods for longer than --replacement-timeout; then --resume", "1 2 4 7")
def test_no_room_for_a_pod_for_too_long(trial, kube, victim):
    with one_missing(trial, kube, victim, "--replacement-timeout", "0.25m"):
        state = trial.check("FAILED")
    why = f"{trial.name}-{victim} did not come within 15s (--replacement-timeout). "
    assert state["reason"].startswith(f"{why}Resume the job: berg run --resume {trial.name}"), state
    secret = with_secret(trial)
    resumed = trial.berg("run", "--resume", trial.name, "--wait", *secret)
    assert resumed.returncode == 0, (resumed.stderr, trial.log())
    trial.check("SUCCEEDED", COUNT)


@pytest.mark.slow
@fault("a worker of 3 pods is killed with -9", "1 2 4")
def test_a_worker_of_several_pods_is_killed(trial):
    trial.run(trial.command(COUNT, 0.2), *SEVERAL, *with_secret(trial))
    trial.until(f"wrote {trial.dice.randint(2, 10)} ")
    os.kill(wait_for(lambda: worker_of(trial.name)), signal.SIGKILL)
    assert "berg's worker was killed by signal 9" in trial.check("FAILED")["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [2, 0])
@fault("the cloud itself is killed and restarts while pods wait for one", "1 2 4 6 7")
def test_the_cloud_restarts_while_pods_wait(trial, kube, cloud, victim):
    server = json.loads((cloud.folder / "server.json").read_text())
    with one_missing(trial, kube, victim):
        os.kill(server["pid"], signal.SIGKILL)
        time.sleep(trial.dice.uniform(0.5, 3))
        assert control.start(cloud.folder, server["port"]) == server["port"]
        cloud.call("POST", "/_berg/settings", USUAL)
    check_attempts(trial.check("SUCCEEDED", COUNT))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0])
@fault("answers of the bucket are lost while one of 3 pods is replaced", "1 2 4 6")
def test_answers_are_lost_while_a_pod_is_made_anew(trial, kube, victim):
    trial.run(trial.command(COUNT, 0.2), *SEVERAL, *with_secret(trial))
    trial.until("wrote 3 ")
    trial.fault("storage.objects.insert", status=503, after_handler=True, times=12)
    take_away(trial, alive(kube, trial.name)[victim], "preempt")
    check_attempts(trial.check("SUCCEEDED", COUNT))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0])
@fault("the node of one of 3 pods hangs for a while", "1 2 4 6")
def test_a_node_of_several_hangs(trial, kube, victim):
    count = 200  # for longer than a pod may be silent
    words = ("run", *trial.where, "-n", trial.name, *SEVERAL, trial.command(count, 0.2))
    begin = trial.berg.start(*words, silence_seconds=15)
    assert begin.wait(60) == 0, begin.stderr.read()
    trial.until("wrote 3 ")
    trial.berg.allowed += [500]
    node = alive(kube, trial.name)[victim]["spec"]["nodeName"]
    trial.berg.cloud.call("POST", f"/_berg/instances/{node}/cut", {})
    try:
        trial.berg.cloud.call("POST", "/_berg/settings", {"node_grace": 0.5, "eviction": 0.5})
        leaves = lambda: "deletionTimestamp" in alive(kube, trial.name)[victim]["metadata"]
        wait_for(leaves, 60, "the pod's deletion")
        time.sleep(20)  # nobody hears of it meanwhile
    finally:
        trial.berg.cloud.call("POST", f"/_berg/instances/{node}/cut", {"cut": False})
    check_attempts(trial.check("SUCCEEDED", count))


@pytest.mark.slow
@fault("a pod's node hangs", "1 4")
def test_a_node_hangs(trial, kube, capsys):
    """Its log cannot be read, its pod stays Terminating for ever: the job is killed all the same."""
    trial.run(trial.command(8, then="sleep 600"), *with_secret(trial))
    trial.until("all written")
    wait_for(lambda: trial.berg.state(trial.name)["synced_until"], 60, "the results in the bucket")
    (pod,) = alive(kube, trial.name)
    node = pod["spec"]["nodeName"]
    config = trial.berg.bucket.config
    trial.berg.allowed += [500]  # of the pod's log
    trial.berg.cloud.call("POST", f"/_berg/instances/{node}/cut", {})
    try:
        (machine,) = place.machines(config, [trial.name])
        began = time.monotonic()
        assert place.console(config, machine) == "" and time.monotonic() - began < 9
        assert "cannot be read now" in capsys.readouterr().err
        trial.berg.cloud.call("POST", "/_berg/settings", {"node_grace": 0.5, "eviction": 0.5})
        words = f"its node {node} does not answer since 20"
        wait_for(lambda: words in " ".join(trial.berg("list").stdout.split()), 30, "the silence")
        leaves = lambda: alive(kube, trial.name)[0]["metadata"].get("deletionTimestamp")
        wait_for(leaves, 30, "the pod's deletion")
        assert jobs.find(config, trial.name).state.state == "RUNNING", "it may come back"
        assert words in " ".join(trial.berg("cluster", "status", "faults").stdout.split())
        (row,) = found_by_doctor(trial, "clusters")
        assert row["status"] == "warning" and words in row["found"], row
        assert row["fix"] == f"berg kill {trial.name}"
        for command in (["ssh", trial.name, "--", "true"], ["profile", trial.name]):
            told = trial.berg(*command)
            assert told.returncode == 1 and f"{trial.name}: {words}" in told.stderr, told.stderr
        done = trial.berg("kill", trial.name)
        assert done.returncode == 0, done.stderr
        assert f"{trial.name}: {words}" in " ".join(done.stderr.split()), done.stderr
        assert not alive(kube, trial.name)
        state = trial.berg.state(trial.name)
        assert state["state"] == "KILLED" and words in state["reason"], state
    finally:
        trial.berg.cloud.call("POST", f"/_berg/instances/{node}/cut", {"cut": False})
    trial.check("KILLED", 8)


# --- the API server


@pytest.mark.slow
@fault("the cluster's API is slow", "1 2 4")
def test_the_api_is_slow(trial):
    trial.fault("kubernetes.*", delay=5 if trial.thorough else 2, times=None)
    trial.run(trial.command(20, 0.1), "-m", "2")
    trial.check("SUCCEEDED", 20)


@pytest.mark.slow
@fault("the cluster's API answers a third of the calls with 429 or 503", "1 2 4 5")
def test_the_api_is_busy(trial, kube):
    for number, status in enumerate((429, 503)):
        seed = trial.seed * 10 + number
        trial.fault("kubernetes.*", status=status, times=None, probability=0.17, seed=seed)
    trial.run(trial.command(20, 0.1), "-m", "2", "--queue-timeout", "0.1h")
    trial.fault("kubernetes.pods.list", status=503, times=3)
    trial.until_state("SUCCEEDED", "FAILED")
    trial.berg.cloud.call("DELETE", "/_berg/faults")
    trial.check("SUCCEEDED", 20)


@pytest.mark.slow
@fault("an answer of the cluster's API is lost, and the same again is a conflict", "1 5")
def test_a_conflict(trial, kube):
    trial.fault("kubernetes.jobs.create", reset=True, after_handler=True)
    trial.run(trial.command(8, then="sleep 100"))
    trial.until("all written")
    trial.fault("kubernetes.pods.patch", status=409)
    done = trial.berg("kill", trial.name)
    assert done.returncode == 0, done.stderr
    assert trial.check("KILLED", 8)["reason"] == "killed by tester"


@pytest.mark.slow
@fault("the cluster's API is silent while its job is killed", "1 4")
def test_the_api_is_silent(trial, kube, monkeypatch):
    monkeypatch.setattr("berg.gke.client.TIMEOUT", 3)
    monkeypatch.setattr("berg.gke.client.LISTING", 2)
    trial.run(trial.command(8, then="sleep 600"))
    trial.until("all written")
    trial.fault("kubernetes.*", status=503, times=None)
    listed = jobs.overview(trial.berg.bucket.config, None)
    assert [each.status for each in listed if each.name == trial.name] == ["RUNNING"], (
        "nobody knows, so it is not lost"
    )
    with pytest.raises(BergError, match="does not answer"):
        ending.kill(trial.berg.bucket.config, trial.name, True, lambda text: None)
    assert trial.berg.state(trial.name)["state"] == "RUNNING", "not killed"
    trial.berg.cloud.call("DELETE", "/_berg/faults")
    assert trial.berg("kill", trial.name).returncode == 0
    trial.check("KILLED", 8)


@pytest.mark.slow
@fault("the cloud itself is killed and restarts while a pod runs", "1 2 4")
def test_the_cloud_restarts(trial, kube, cloud):
    server = json.loads((cloud.folder / "server.json").read_text())
    trial.run(trial.command(60, 0.1))
    trial.until(f"wrote {trial.dice.randint(2, 20)} ")
    os.kill(server["pid"], signal.SIGKILL)
    time.sleep(trial.dice.uniform(0.5, 3))
    assert control.start(cloud.folder, server["port"]) == server["port"]
    cloud.call("POST", "/_berg/settings", USUAL)
    assert trial.check("SUCCEEDED", 60)["attempt"] == 1


@pytest.mark.slow
@fault("a connection into a pod is cut", "2 4")
def test_an_exec_is_cut(trial, kube):
    trial.run(trial.command(40, 0.1))
    trial.until("wrote 0 ")
    (pod,) = alive(kube, trial.name)
    words = [
        "cluster",
        "exec",
        "us-central1-a/faults",
        pod["metadata"]["name"],
        "--",
        "sleep",
        "100",
    ]
    inside = trial.berg.start(*words)
    wait_for(
        lambda: trial.berg.cloud.call("POST", "/_berg/clusters/faults/cut", {"what": "exec"})["cut"]
    )
    _, said = inside.communicate(timeout=20)
    assert (
        inside.returncode == 255
        and f"the connection to the pod {pod['metadata']['name']} was cut" in said
    ), said
    trial.check("SUCCEEDED", 40)


# --- pods that do not come


@pytest.mark.parametrize("end", ["kill", "give up"])
@fault("a pod's image cannot be pulled", "1 7")
def test_no_image(trial, kube, end):
    kube.cloud.call("POST", "/_berg/clusters/faults/images", {"image": "nosuch"})
    wait = ["--queue-timeout", "0.004h"] if end == "give up" else []
    trial.run(None, "--docker", "example.com/nosuch:1", *wait, *with_secret(trial))
    words = "its image example.com/nosuch:1 cannot be pulled"
    wait_for(
        lambda: words in " ".join(trial.berg("list").stdout.split()), 30, "the reason in the list"
    )
    if end == "kill":
        assert trial.berg("kill", trial.name).returncode == 0
        trial.check("KILLED", 0)
        return
    said = wait_for(lambda: "LOST" in (t := trial.berg("list").stdout) and t, 90, "the loss")
    assert "not all of its pods or machines were up within --queue-timeout" in " ".join(
        said.split()
    )
    assert trial.berg("kill", trial.name).returncode == 0
    trial.check_gone()


@pytest.mark.slow
@fault("no pool can grow for a pod, for a while", "6 7")
def test_no_room(trial, kube):
    trial.berg.cloud.call("POST", "/_berg/settings", {"scale_down": 0.1})
    wait_for(lambda: len(kube.get("nodes")["items"]) == 1, 60, "the end of the nodes for jobs")
    trial.berg.cloud.call("POST", "/_berg/settings", {"scale_down": USUAL["scale_down"]})
    with stockout(trial.berg):
        trial.run()
        wait_for(
            lambda: "no stock" in " ".join(trial.berg("list").stdout.split()),
            60,
            "the reason in the list",
        )
    trial.check("SUCCEEDED", 8)


def found_by_doctor(trial: Trial, check: str) -> list[dict]:
    rows = json.loads(trial.berg("doctor", "--json").stdout)
    return [row for row in rows if row["check"] == check]


@pytest.mark.slow
@fault("a quota of the namespace admits no pod, for a while", "6 7")
def test_no_quota_for_pods(trial, kube):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    kube.create({**quota, "spec": {"hard": {"pods": "0"}}})
    try:
        trial.run()
        words = "Kubernetes makes no pod: forbidden: exceeded quota: none"
        said = lambda: " ".join(trial.berg("list").stdout.split())
        told = wait_for(lambda: words in (t := said()) and t, 15, "the reason in the list")
        assert "exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0" in told
        assert words in " ".join(trial.berg("cluster", "status", "faults").stdout.split())
        assert words in " ".join(trial.berg("show", trial.name).stdout.split())
        assert words in trial.berg("log", trial.name).stderr
        (row,) = found_by_doctor(trial, "clusters")
        assert row["status"] == "warning" and words in row["found"]
        assert all("faults" not in each for each in clusters.idle(trial.berg.bucket.config))
    finally:
        kube.call("DELETE", "/api/v1/namespaces/default/resourcequotas/none")
    trial.check("SUCCEEDED", 8)


@pytest.mark.slow
@fault("the account of the pods is deleted before they come", "6 7")
def test_no_account_for_pods(trial, kube):
    path = f"/api/v1/namespaces/default/serviceaccounts/{iam.ACCOUNT}"
    trial.fault("kubernetes.jobs.create", delay=1)
    laptop = trial.berg.start("run", *trial.where, "-n", trial.name, trial.command())
    wait_for(lambda: any(each["hits"] for each in faults(trial.berg)), 60, "the fault")
    kube.raw("DELETE", path)
    assert laptop.wait() == 0
    said = lambda: " ".join(trial.berg("list").stdout.split())
    wait_for(lambda: f'serviceaccount "{iam.ACCOUNT}" not found' in said(), 15, "the reason")
    config = trial.berg.bucket.config
    pods.ensure_account(config, client.connect(config, "us-central1-a/faults"))
    trial.check("SUCCEEDED", 8)


@pytest.mark.slow
@fault("pods end before their worker starts, repeatedly", "1 7")
def test_no_memory_for_boot(trial, kube, monkeypatch):
    trial.fault("storage.objects.get", match=".berg/dist/", delay=8, times=None)
    trial.run(None, *with_secret(trial))
    killed: set[str] = set()

    def another() -> str | None:
        running = [each for each in alive(kube, trial.name) if each["status"]["phase"] == "Running"]
        names = [each["metadata"]["name"] for each in running]
        return next((name for name in names if name not in killed), None)

    for _ in range(3):
        name = wait_for(another, 60, "a pod")
        oom = f"/_berg/pods/{name}/oom"
        wait_for(lambda path=oom: trial.berg.cloud.call("POST", path, {})["killed"])
        wait_for(lambda: not alive(kube, trial.name), 30, "its end")
        killed.add(name)
    words = "ended: OOMKilled, exit code 137"
    monkeypatch.setattr("berg.laptop.jobs.LOST_AFTER", -5)
    config = trial.berg.bucket.config
    given_up = lambda: (s := jobs.find(config, trial.name).state).state == "LOST" and s
    trial.berg.cloud.call("POST", "/_berg/settings", {"backoff": 100})
    state = wait_for(given_up, 30, "that it is given up")
    assert words in state.reason and "3 pods ended before; the last: " in state.reason, state
    assert words in " ".join(trial.berg("list").stdout.split())
    trial.berg.cloud.call("DELETE", "/_berg/faults")
    assert trial.berg("kill", trial.name).returncode == 0
    trial.check_gone()


@pytest.mark.slow
@fault("a job's cluster is deleted", "1 4")
def test_the_cluster_is_deleted(trial, cloud, monkeypatch):
    """Nothing of it is left but what was in the bucket by then."""
    settings = cloud.settings("any")
    wanted = clusters.Wanted(
        num_gpus=0, machine_type="n1-standard-2", zone="us-central1-a", num_nodes=1
    )
    clusters.create(settings, "brief", wanted, lambda text: None)
    trial.others = list
    ran = trial.berg(
        "run", "--cluster", "brief", "-g", "0", "-n", trial.name, *with_secret(trial), "sleep 1000"
    )
    assert ran.returncode == 0, ran.stderr
    trial.until_state("RUNNING")
    assert "jobs " + trial.name in trial.berg("cluster", "delete", "brief", "-y").stderr
    # The clock that tells has whole seconds.
    monkeypatch.setattr("berg.laptop.jobs.LOST_AFTER", -5)
    (found,) = [
        each for each in jobs.overview(trial.berg.bucket.config, None) if each.name == trial.name
    ]
    assert (
        found.state.state == "LOST"
        and "no cluster 'brief' in us-central1-a any more" in found.state.reason
    )
    assert trial.leaked(), "its secret"
    assert ending.kill(trial.berg.bucket.config, trial.name, False, lambda text: None) == "LOST"
    trial.check_gone()


# --- the laptop

SUBMIT = {  # step -> how it is held, so that the laptop dies in the middle of it
    "cluster": {"method": "container.projects.locations.clusters.list"},
    "boot": {"method": "kubernetes.configmaps.create"},
    "job": {"method": "kubernetes.jobs.create"},
    "job, answer": {"method": "kubernetes.jobs.create", "after_handler": True},
}


@pytest.mark.parametrize("step", SUBMIT)
@pytest.mark.parametrize("how", ["kill -9", "Ctrl-C"])
@fault("laptop killed with -9, or Ctrl-C, at each step of a submit to a cluster", "1 5")
def test_laptop_killed(trial, kube, step, how, monkeypatch):
    trial.fault(**SUBMIT[step], delay=1)
    laptop = trial.berg.start(
        "run", *trial.where, "-n", trial.name, *with_secret(trial), trial.command()
    )
    wait_for(lambda: any(each["hits"] for each in faults(trial.berg)), 60, "the fault")
    time.sleep(trial.dice.uniform(0, 0.5))
    laptop.send_signal(signal.SIGKILL if how == "kill -9" else signal.SIGINT)
    _, said = laptop.communicate()
    assert "Traceback" not in said, said
    time.sleep(2)  # a request that was under way arrives
    if alive(kube, trial.name) and trial.berg.bucket.exists(f".berg/jobs/{trial.name}_state.json"):
        trial.until_state("SUCCEEDED")  # the pod was made, and does its work
        wait_for(lambda: not alive(kube, trial.name))
    trial.reap(monkeypatch)
    trial.check_gone()

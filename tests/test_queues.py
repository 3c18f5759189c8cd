"""Jobs in pods that wait in a queue of Kueue's, over berg's real command line."""

import json
import signal
import time

import pods
import pytest
from conftest import Berg, wait_for
from local_kube import install_kueue, job
from pods import clean, cluster  # noqa: F401 (a fixture)
from test_pods import RIGHTS, somebody

from berg.gke import client, status
from berg.laptop import jobs

POOL = {"num_gpus": 0, "machine_type": "n1-standard-4", "num_nodes": 3}


@pytest.fixture(scope="module")
def kube(cloud, tmp_path_factory):
    """A cluster without GPUs, and without Kueue at first."""
    with cluster(cloud, "queued", tmp_path_factory.mktemp("kube"), POOL) as made:
        yield made


@pytest.fixture(scope="module")
def team(kube):
    """The cluster with Kueue, and a queue that has one CPU."""
    install_kueue(kube, "team", cpu="1")
    return kube


def run(berg: Berg, *words: str):
    return berg("run", "--cluster", "queued", "-c", "1", *words)


def listed(berg: Berg) -> str:
    return " ".join(berg("list").stdout.split())


def test_a_cluster_without_kueue_has_no_queues(berg, kube):
    """Runs first: the module's cluster has Kueue from the next test on."""
    done = run(berg, "--queue", "team", "true")
    assert done.returncode == 1
    assert "the cluster queued has no Kueue, and so no queues" in done.stderr, done.stderr
    assert not berg.objects(".berg/jobs/")


@pytest.mark.slow
def test_a_job_waits_in_its_queue_and_begins_anew_after_an_eviction(berg, kube, team):
    asked = json.loads(
        run(berg, "-n", "dry", "--queue", "team", "--dry-run", "--json", "true").stdout
    )["request"]
    assert (
        asked["metadata"]["labels"][status.QUEUE_LABEL] == "team"
        and asked["spec"]["suspend"] is True
    )
    assert status.QUEUE_LABEL not in asked["spec"]["template"]["metadata"]["labels"]

    script = (
        "echo x >>$BERG_RESULTS_DIR/tries; [ $(wc -l <$BERG_RESULTS_DIR/tries) = 2 ] || sleep 1000"
    )
    done = run(berg, "-n", "first", "--queue", "team", script)
    assert done.returncode == 0 and "in the queue team" in done.stderr, done.stderr
    tries = "berg_results/first/tries"
    wait_for(lambda: tries in berg.objects("berg_results/first/"), 90, "its first results")
    assert run(berg, "-n", "second", "--queue", "team", "true").returncode == 0
    words = (
        "it waits in the queue team: couldn't assign flavors to pod set main: insufficient unused "
        "quota for cpu in flavor team-flavor, 1 more needed"
    )
    wait_for(lambda: words in listed(berg), 30, "the reason in the list")
    assert f"second waits: {words}" in berg("cluster", "status", "queued").stdout
    follower = berg.start("tail", "second")
    pods.hear(follower, words)
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=20)

    kube.stop_queue("team-all", "HoldAndDrain")
    wait_for(lambda: berg.state("first")["state"] == "SUBMITTED", 60, "the eviction")
    evicted = "evicted: The ClusterQueue is stopped (ClusterQueueStopped)"
    wait_for(lambda: evicted in listed(berg), 60, "the eviction in the list")
    assert berg("kill", "second").returncode == 0
    assert berg.state("second")["state"] == "KILLED"
    there = [each["metadata"]["name"] for each in kube.get("jobs")["items"]]
    assert there == ["first"], "a Job that is suspended is deleted, too"

    kube.stop_queue("team-all", "None")
    wait_for(lambda: berg.state("first")["state"] == "SUCCEEDED", 90, "the end of the job")
    state = berg.state("first")
    assert (state["attempt"], state["restarts"]) == (2, 1)
    assert berg.objects("berg_results/first/")[tries] == b"x\nx\n"


def test_a_queue_that_is_not_there_is_refused_with_those_that_are(berg, kube, team):
    done = run(berg, "--queue", "teem", "true")
    assert done.returncode == 1, done.stdout
    assert "has no queue 'teem' in your namespace default; there: team" in done.stderr
    kube.stop_queue("team-all", "Hold")
    asked = run(berg, "--queue", "team", "--dry-run", "--json", "true")
    assert "The queue team admits nothing now: Can't submit new workloads" in asked.stderr
    kube.stop_queue("team-all", "None")
    assert not berg.objects(".berg/jobs/")


def test_the_wait_in_a_queue_has_its_limit(berg, kube, team, cloud, monkeypatch):
    monkeypatch.setattr("berg.laptop.jobs.LOST_AFTER", 0)
    words = ["--queue", "team", "-c", "2", "-n", "large", "--queue-timeout", "0.0005h"]
    assert berg("run", "--cluster", "queued", *words, "true").returncode == 0
    wait_for(lambda: "maximum capacity (1)" in listed(berg), 30, "the reason in the list")

    def end() -> str:
        (found,) = jobs.overview(cloud.settings(berg.bucket_name), None)
        return found.state.reason if found.state.state == "LOST" else ""

    assert "within --queue-timeout" in wait_for(end, 30, "its end")
    assert berg("kill", "large").returncode == 0
    assert not kube.get("jobs")["items"]


@pytest.mark.slow
def test_the_limit_of_the_wait_counts_anew_from_an_eviction(berg, kube, team):
    words = ["--queue", "team", "-n", "late", "--queue-timeout", "0.005h"]
    assert run(berg, *words, "sleep 1000").returncode == 0
    wait_for(lambda: berg.state("late")["state"] == "RUNNING", 60, "it runs")
    time.sleep(19)
    for pause in (2, 19):
        kube.stop_queue("team-all", "HoldAndDrain")
        wait_for(lambda: berg.state("late")["state"] == "SUBMITTED", 60, "the eviction")
        time.sleep(pause)
        kube.stop_queue("team-all", "None")
        wait_for(lambda: berg.state("late")["state"] in ("RUNNING", "FAILED"), 60, "what follows")
    state = berg.state("late")
    assert (state["state"], state["attempt"]) == ("FAILED", 3)
    assert "within --queue-timeout; this one came after" in state["reason"]


@pytest.mark.slow
def test_a_job_of_several_pods_begins_anew_after_an_eviction(berg, kube, team):
    script = (
        'file="$BERG_RESULTS_DIR/tries-$BERG_NODE_RANK"; echo x >>"$file"; '
        '[ $(wc -l <"$file") = 2 ] || sleep 1000'
    )
    words = ("-n", "pair", "-m", "2", "--each", "--queue", "team", script)
    assert berg("run", "--cluster", "queued", *words).returncode == 0
    tries = {"berg_results/pair/tries-0", "berg_results/pair/tries-1"}
    there = lambda: tries <= berg.objects("berg_results/pair/").keys()
    wait_for(there, 90, "the first results of both")
    before = kube.get("jobs", "pair")["metadata"]["uid"]
    kube.stop_queue("team-all", "HoldAndDrain")
    wait_for(lambda: berg.state("pair")["state"] == "SUBMITTED", 60, "the eviction")
    wait_for(lambda: not kube.pods(), 60, "the end of its pods")
    evicted = "evicted: The ClusterQueue is stopped (ClusterQueueStopped)"
    wait_for(lambda: evicted in listed(berg), 60, "the eviction in the list")
    kube.stop_queue("team-all", "None")
    wait_for(lambda: berg.state("pair")["state"] == "SUCCEEDED", 120, "the end of the job")
    state = berg.state("pair")
    assert (state["attempt"], state["restarts"], state["failures"]) == (2, 1, 0)
    assert kube.get("jobs", "pair")["metadata"]["uid"] == before, "it is the same Job"
    results = berg.objects("berg_results/pair/")
    assert {results[name] for name in tries} == {b"x\nx\n"}


def test_who_may_not_see_queues_is_told_which_right_is_missing(berg, kube, team, cloud):
    her = somebody(berg, cloud, *RIGHTS, "roles/container.clusterViewer")
    done = berg("run", "--cluster", "queued", "--queue", "team", "true", **her)
    assert done.returncode == 1 and "does not let you list localqueues" in done.stderr
    assert 'requires one of ["container.thirdPartyObjects.list"]' in done.stderr, done.stderr
    assert "roles/container.developer" in done.stderr


def test_who_may_not_see_workloads_is_told_which_right_is_missing(berg, kube, team, cloud):
    server = client.connect(cloud.settings(berg.bucket_name), "us-central1-a/queued")
    waiting = job("waits", "true", suspend=True)
    waiting["metadata"]["labels"] = {status.QUEUE_LABEL: "team"}
    (there,) = [kube.create(waiting)]
    told = 'User "a" cannot list resource "workloads" in API group "kueue.x-k8s.io"'
    fault = {"method": "kubernetes.workloads.list", "status": 403, "message": told}
    cloud.call("POST", "/_berg/faults", {**fault, "reason": "Forbidden"})
    (why,) = status.why_suspended(server, [there]).values()
    assert "why cannot be seen: the cluster us-central1-a/queued does not let you list work" in why
    assert "roles/container.developer" in why


def test_a_suspended_job_says_what_its_workload_says():
    reserved = {"type": "QuotaReserved", "status": "True", "message": "Quota reserved in a"}
    check = {"name": "dws", "state": "Pending", "message": "Waiting for 8 nodes"}
    workload = {"status": {"conditions": [reserved], "admissionChecks": [check]}}
    assert (
        status.workload_in_words(workload)
        == "Quota reserved in a; dws is Pending Waiting for 8 nodes"
    )
    assert status.workload_in_words({}) == "Kueue has not looked at it yet"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--queue", "team", "true"], "--queue needs --cluster"),
        (["--cluster", "queued", "--queue", "Team A", "true"], "is not a queue name"),
    ],
)
def test_queues_that_cannot_be_are_refused_before_anything_is_asked(berg, words, says):
    done = berg("run", *words)
    assert done.returncode == 1 and says in done.stderr, done.stderr

"""Kueue in a cluster of the embedded cloud, over plain HTTP."""

import pytest
from local_kube import KUEUE, delete_cluster, install_kueue, job, make_cluster
from local_machines import until

QUEUE = "kueue.x-k8s.io/queue-name"
TOO_SMALL = (
    "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor "
    "one-flavor, 300m more needed"
)


@pytest.fixture(scope="module")
def kube(cloud, tmp_path_factory):
    """A cluster of its own: Kueue stays in it."""
    made = make_cluster(cloud, "queues", tmp_path_factory.mktemp("kube"))
    yield made
    delete_cluster(made)


@pytest.fixture(scope="module")
def team(kube):
    """The cluster with Kueue, and a queue that has less than one CPU."""
    install_kueue(kube, "one", cpu="700m")
    return kube


def queued(name: str, script: str, queue: str = "one", cpu: str = "500m") -> dict:
    asks = {"resources": {"requests": {"cpu": cpu}}}
    made = job(name, script, container=asks)
    made["metadata"]["labels"] = {QUEUE: queue}
    return made


def is_true(kube, name: str, kind: str) -> bool:
    return kube.workload(name).get(kind, {}).get("status") == "True"


def clean(kube, *names: str) -> None:
    for name in names:
        path = f"/apis/batch/v1/namespaces/default/jobs/{name}"
        kube.call("DELETE", path, propagationPolicy="Background")
    until(lambda: not kube.get("workloads")["items"], "the end of the workloads")


def test_a_cluster_without_kueue_knows_no_queues(kube):
    """Runs first: the cluster keeps Kueue from the next test on."""
    assert kube.raw("GET", "/apis/kueue.x-k8s.io").status_code == 404
    assert kube.raw("GET", f"{KUEUE}/namespaces/default/localqueues").status_code == 404
    made = kube.create(queued("plain", "true"))
    assert made["spec"]["suspend"] is False, "no webhook"
    kube.ended("plain")
    kube.call("DELETE", "/apis/batch/v1/namespaces/default/jobs/plain")


def test_jobs_wait_for_quota_and_an_eviction_suspends_them(kube, team):
    assert kube.call("GET", "/apis/kueue.x-k8s.io")["preferredVersion"]["version"] == "v1beta2"
    first = kube.create(queued("first", "sleep 1000"))
    assert first["spec"]["suspend"] is True, "the webhook's"
    pod = kube.pod("first")
    assert is_true(kube, "first", "Admitted") and is_true(kube, "first", "QuotaReserved")
    kube.create(queued("second", "true"))
    told = until(lambda: kube.workload("second").get("QuotaReserved"), "a word of the second")
    assert (told["status"], told["reason"], told["message"]) == ("False", "Pending", TOO_SMALL)
    assert not kube.pods("second")
    suspended = kube.get("jobs", "second")["status"]["conditions"][-1]
    assert (suspended["type"], suspended["status"]) == ("Suspended", "True")
    status = kube.get("localqueues", "one")["status"]
    assert [status[key] for key in ("pendingWorkloads", "admittedWorkloads")] == [1, 1]

    kube.stop_queue("one-all", "HoldAndDrain")
    until(lambda: not kube.pods("first"), "the end of the first one's pod")
    row = kube.workload("first")["Evicted"]
    assert (row["reason"], row["message"]) == ("ClusterQueueStopped", "The ClusterQueue is stopped")
    spec, status = (kube.get("jobs", "first")[key] for key in ("spec", "status"))
    assert spec["suspend"] and "startTime" not in status and not status.get("failed")

    kube.stop_queue("one-all", "None")
    again = kube.pod("first")
    assert again["metadata"]["uid"] != pod["metadata"]["uid"]
    assert kube.workload("first")["Evicted"]["status"] == "False"
    path = "/apis/batch/v1/namespaces/default/jobs/first"
    kube.call("DELETE", path, propagationPolicy="Background")
    kube.ended("second")
    until(lambda: is_true(kube, "second", "Finished"), "the end of the second's Workload")
    clean(kube, "second")


def test_what_can_never_be_admitted_is_told_why(kube, team):
    kube.create(queued("large", "true", cpu="2"))
    kube.create(queued("lost", "true", queue="nowhere"))
    row = until(lambda: kube.workload("large").get("QuotaReserved"), "a word of the large one")
    assert row["message"].endswith("current podset request (2) > maximum capacity (700m)")
    row = until(lambda: kube.workload("lost").get("QuotaReserved"), "a word of the lost one")
    assert (row["reason"], row["message"]) == ("Inadmissible", "LocalQueue nowhere doesn't exist")
    clean(kube, "large", "lost")


def test_the_queue_of_a_job_that_runs_stays(kube, team):
    kube.create(queued("stays", "sleep 1000"))
    kube.pod("stays")
    path = "/apis/batch/v1/namespaces/default/jobs/stays"
    headers = {"Content-Type": "application/merge-patch+json"}
    change = {"metadata": {"labels": {QUEUE: "two"}}}
    answer = kube.raw("PATCH", path, change, headers=headers)
    assert answer.status_code == 403 and "field is immutable" in answer.json()["message"]
    refused = kube.raw("POST", path.rpartition("/")[0], queued("odd", "true", queue="A_b"))
    assert refused.status_code == 403 and "vjob.kb.io" in refused.json()["message"]
    clean(kube, "stays")

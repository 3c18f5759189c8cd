"""How jobs end and begin again: policies, back-offs, deadlines, deletion."""

import time

import pytest
from local_kube import job
from local_machines import until

OVER = {
    "action": "FailJob",
    "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]},
}
DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
SINGLE = {"podFailurePolicy": {"rules": [OVER, DISRUPTED]}}


def status(kube, name: str) -> dict:
    return kube.get("jobs", name)["status"]


def test_a_failed_pod_is_made_anew_until_the_limit(kube):
    kube.create(job("fails", "exit 3", backoffLimit=1))
    ended = kube.ended("fails")
    assert (ended["type"], ended["reason"]) == ("Failed", "BackoffLimitExceeded")
    assert status(kube, "fails")["failed"] == 2 and len(kube.pods("fails")) == 2
    assert [row["type"] for row in status(kube, "fails")["conditions"]] == [
        "FailureTarget",
        "Failed",
    ]
    (one, _) = kube.pods("fails")
    assert one["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_an_exit_code_can_end_the_job_at_once(kube):
    kube.create(job("over", "exit 42", backoffLimit=5, **SINGLE))
    ended = kube.ended("over")
    assert (
        ended["reason"] == "PodFailurePolicy"
        and "exit code 42 matching FailJob rule at index 0" in ended["message"]
    )
    assert len(kube.pods("over")) == 1


def test_a_pod_that_was_evicted_does_not_count(kube):
    kube.create(
        job("moved", "[ -e /mnt/x ] && exit 0; sleep 1; exec sleep 600", backoffLimit=0, **SINGLE)
    )
    first = kube.pod("moved")
    kube.cloud.call("POST", f"/_berg/pods/{first['metadata']['name']}/evict", {"grace": 1})
    uid = first["metadata"]["uid"]
    phases = lambda: [
        pod["status"]["phase"] for pod in kube.pods("moved") if pod["metadata"]["uid"] != uid
    ]
    until(lambda: phases() == ["Running"], "another pod")
    (old,) = [pod for pod in kube.pods("moved") if pod["metadata"]["uid"] == uid]
    assert (old["status"]["phase"], old["status"]["reason"]) == ("Failed", "Evicted")
    assert any(row["type"] == "DisruptionTarget" for row in old["status"]["conditions"])
    assert not status(kube, "moved").get("failed")
    kube.kubectl("delete", "job", "moved")


def test_rank_0_ends_the_others_by_the_success_policy(kube):
    script = 'trap "echo told; exit 0" TERM; [ $JOB_COMPLETION_INDEX = 0 ] && sleep 1 && exit 0; sleep 600 & wait'
    rules = {"rules": [{"succeededIndexes": "0"}]}
    kube.create(
        job(
            "ranks", script, count=2, successPolicy=rules, pod={"terminationGracePeriodSeconds": 20}
        )
    )
    ended = kube.ended("ranks")
    assert (ended["type"], ended["reason"]) == ("Complete", "SuccessPolicy")
    assert [row["type"] for row in status(kube, "ranks")["conditions"]] == [
        "SuccessCriteriaMet",
        "Complete",
    ]


def test_the_first_process_ignores_sigterm_unless_it_handles_it_or_shares_its_processes(kube):
    for name, pod in (("alone", {}), ("shared", {"shareProcessNamespace": True})):
        grace = {"terminationGracePeriodSeconds": 3}
        kube.create(job(name, "exec sleep 600", pod={**pod, **grace}))
        found = kube.pod(name)["metadata"]["name"]
        began = time.monotonic()
        kube.kubectl("delete", "pod", found)
        assert (time.monotonic() - began < 2.5) == (name == "shared")
        kube.kubectl("delete", "job", name)


@pytest.mark.slow
def test_deadlines_of_jobs_and_of_pods(kube):
    kube.create(job("late", "exec sleep 600", activeDeadlineSeconds=1))
    assert kube.ended("late")["reason"] == "DeadlineExceeded"
    kube.create(job("latepod", "exec sleep 600", pod={"activeDeadlineSeconds": 1}))
    assert kube.ended("latepod")["reason"] == "BackoffLimitExceeded"
    (pod,) = kube.pods("latepod")
    assert pod["status"]["reason"] == "DeadlineExceeded"


def test_a_job_goes_when_its_time_to_live_is_over(kube):
    kube.create(job("brief", "true", ttlSecondsAfterFinished=1))
    until(
        lambda: kube.raw("GET", "/apis/batch/v1/namespaces/default/jobs/brief").status_code == 404,
        "it is gone",
    )
    until(lambda: not kube.pods("brief"), "its pods, too")


@pytest.mark.slow
def test_pods_outlive_a_job_that_is_deleted_without_a_policy(kube):
    path = "/apis/batch/v1/namespaces/default/jobs/left"
    kube.create(job("left", "exec sleep 600"))
    pod = kube.pod("left")["metadata"]["name"]
    kube.call("DELETE", path)
    time.sleep(1)
    found = kube.get("pods", pod)
    assert found["status"]["phase"] == "Running" and not found["metadata"].get("ownerReferences")
    kube.kubectl("delete", "pod", pod)
    kube.create(job("left", "exec sleep 600"))
    kube.pod("left")
    kube.call("DELETE", path, {"propagationPolicy": "Background"})
    until(lambda: not kube.pods("left"), "its pods are gone")


def test_a_suspended_job_has_no_pods(kube):
    kube.create(job("paused", "true", suspend=True))
    until(lambda: status(kube, "paused").get("conditions"), "it is suspended")
    assert not kube.pods("paused")
    patch = '{"spec": {"suspend": false}}'
    kube.kubectl("patch", "job", "paused", "--type=merge", "-p", patch)
    assert kube.ended("paused")["type"] == "Complete"


def test_a_job_that_is_deleted_in_the_foreground_waits_for_its_pods(kube):
    path = "/apis/batch/v1/namespaces/default/jobs/waits"
    kube.create(job("waits", "exec sleep 600", pod={"terminationGracePeriodSeconds": 1}))
    kube.pod("waits")
    gone = kube.call("DELETE", path, {"propagationPolicy": "Foreground"})
    assert gone["metadata"]["finalizers"] == ["foregroundDeletion"]
    until(lambda: kube.raw("GET", path).status_code == 404, "it is gone")
    assert not kube.pods("waits")

"""Drains, what becomes of the pods of a finished job, and what pods and nodes use."""

import json
import re
import shutil

import pytest
from local_kube import job
from local_machines import until

needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
JOBS = "/apis/batch/v1/namespaces/default/jobs"


@needs_kubectl
def test_a_drain_evicts_and_is_no_failure(kube):
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    rules = {"podFailurePolicy": {"rules": [ignored]}}
    kube.create(job("drained", "exec sleep 600", **rules))
    pod = kube.pod("drained")
    node = pod["spec"]["nodeName"]
    try:
        words = ["--ignore-daemonsets", "--force", "--delete-emptydir-data"]
        selector = "--pod-selector=batch.kubernetes.io/job-name=drained"
        kube.kubectl("drain", node, *words, selector)
        others = lambda: [
            each
            for each in kube.pods("drained")
            if each["metadata"]["uid"] != pod["metadata"]["uid"]
        ]
        until(others, "another pod")
        assert not kube.get("jobs", "drained")["status"].get("failed")
    finally:
        kube.kubectl("uncordon", node)
        kube.call("DELETE", f"{JOBS}/drained", propagationPolicy="Background")


def test_pods_of_a_job_that_is_over_have_failed_and_others_that_it_removes_have_not(kube):
    script = 'trap "exit 0" TERM; [ $JOB_COMPLETION_INDEX = 0 ] && exit 0; sleep 600 & wait'
    success = {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}}
    kube.create(job("led", script, 2, **success))
    assert kube.ended("led")["reason"] == "SuccessPolicy"
    status = kube.get("jobs", "led")["status"]
    assert (status["succeeded"], status.get("failed")) == (1, 1)
    deleted = [told for reason, told in kube.events("led") if reason == "SuccessfulDelete"]
    assert len(deleted) == 1 and deleted[0].startswith("Deleted pod: led-1-")
    kube.create(job("set-aside", "exec sleep 600", pod={"terminationGracePeriodSeconds": 1}))
    kube.pod("set-aside")
    patch = {"Content-Type": "application/merge-patch+json"}
    kube.raw("PATCH", f"{JOBS}/set-aside", json.dumps({"spec": {"suspend": True}}), headers=patch)
    until(lambda: not kube.pods("set-aside"), "it has no pod")
    assert not kube.get("jobs", "set-aside")["status"].get("failed")
    reasons = [reason for reason, _ in kube.events("set-aside")]
    assert "Suspended" in reasons and "BackoffLimitExceeded" not in reasons
    for name in ("led", "set-aside"):
        kube.call("DELETE", f"{JOBS}/{name}", propagationPolicy="Background")


@needs_kubectl
def test_kubectl_top_shows_what_pods_and_nodes_use(kube):
    kube.create(job("busy", "while :; do :; done"))
    pod = kube.pod("busy")["metadata"]["name"]
    kube.kubectl("top", "pods")
    until(lambda: re.search(rf"{pod} +[1-9]\d*m +\d+Mi", kube.kubectl("top", "pods")), "it works")
    node = kube.get("nodes")["items"][0]["metadata"]["name"]
    assert node in kube.kubectl("top", "nodes")
    assert kube.run("top", "pod", "no-such-pod").returncode == 1
    kube.call("DELETE", f"{JOBS}/busy", propagationPolicy="Background")

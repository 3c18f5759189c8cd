"""Nodes that come, fail to come, and go; and trouble between a client and its cluster."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import requests
from local_kube import PLACE, Kube, gpu_pool, job, make_cluster
from local_machines import until

from localcloud import control
from localcloud.machines import processes

DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
HOLDS = (
    'trap "echo told; sleep 0.5; echo done; exit 1" TERM; echo begun; while :; do sleep 0.1; done'
)


def test_a_preempted_node_tells_its_pods(kube):
    kube.create(
        job(
            "spot",
            HOLDS,
            gpus=1,
            podFailurePolicy={"rules": [DISRUPTED]},
            pod={"terminationGracePeriodSeconds": 10},
        )
    )
    pod = kube.pod("spot")
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    until(lambda: "begun" in kube.log(name), "it runs")
    follow = subprocess.Popen(kube.command("logs", "-f", name), stdout=subprocess.PIPE, text=True)
    assert follow.stdout and follow.stdout.readline() == "begun\n"
    kube.cloud.call("POST", f"/_berg/instances/{node}/preempt")
    assert follow.communicate(timeout=30)[0] == "told\ndone\n"
    others = lambda: [
        each for each in kube.pods("spot") if each["metadata"]["uid"] != pod["metadata"]["uid"]
    ]
    again = until(
        lambda: [each for each in others() if each["status"]["phase"] == "Running"],
        "another pod",
        40,
    )
    assert again[0]["spec"]["nodeName"] != node
    assert not kube.get("jobs", "spot")["status"].get("failed")
    kube.kubectl("delete", "job", "spot")


def test_a_node_that_is_gone_takes_its_pods_with_it(kube):
    kube.create(job("gone", "exec sleep 600", gpus=1, podFailurePolicy={"rules": [DISRUPTED]}))
    pod = kube.pod("gone")
    kube.cloud.call("POST", f"/_berg/instances/{pod['spec']['nodeName']}/crash")
    alive = lambda: {
        each["metadata"]["uid"]
        for each in kube.pods("gone")
        if each["status"]["phase"] == "Running"
    }
    until(lambda: alive() - {pod["metadata"]["uid"]}, "another pod", 40)
    kube.kubectl("delete", "job", "gone")


def test_a_shortage_stands_on_the_pod_until_there_is_room(kube):
    kube.cloud.call("POST", "/_berg/settings", {"scale_down": 0.5})
    until(lambda: len(kube.get("nodes")["items"]) == 1, "idle nodes have gone", 40)
    kube.cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a"})
    kube.create(job("short", "true", gpus=2))
    until(lambda: kube.pods("short"), "its pod")
    name = kube.pods("short")[0]["metadata"]["name"]
    told = until(
        lambda: [m for reason, m in kube.events(name) if reason == "FailedScaleUp"], "the shortage"
    )
    assert "GCE out of resources" in told[0]
    assert any(
        "Insufficient nvidia.com/gpu" in m or "node affinity" in m
        for r, m in kube.events(name)
        if r == "FailedScheduling"
    )
    kube.cloud.call("POST", "/_berg/stockout", {"on": False})
    assert kube.ended("short")["type"] == "Complete"


def test_a_quota_is_named_as_such(kube):
    quota = {"region": "us-central1", "metric": "NVIDIA_T4_GPUS"}
    kube.cloud.call("POST", "/_berg/settings", {"scale_down": 0.5})
    until(lambda: len(kube.get("nodes")["items"]) == 1, "idle nodes have gone", 40)
    kube.cloud.call("POST", "/_berg/quotas", {**quota, "limit": 0})
    try:
        kube.create(job("quota", "true", gpus=2))
        until(lambda: kube.pods("quota"), "its pod")
        name = kube.pods("quota")[0]["metadata"]["name"]
        told = until(
            lambda: [m for reason, m in kube.events(name) if reason == "FailedScaleUp"],
            "the shortage",
        )
        assert "GCE quota exceeded" in told[0]
    finally:
        kube.cloud.call("POST", "/_berg/quotas", {**quota, "limit": 16})
        kube.kubectl("delete", "job", "quota")


def test_what_no_pool_can_give_is_said(kube):
    kube.create(job("huge", "true", gpus=8))
    until(lambda: kube.pods("huge"), "its pod")
    name = kube.pods("huge")[0]["metadata"]["name"]
    told = until(
        lambda: [m for reason, m in kube.events(name) if reason == "NotTriggerScaleUp"],
        "that it cannot be",
    )
    assert "Insufficient nvidia.com/gpu" in told[0]
    kube.kubectl("delete", "job", "huge")


# --- trouble on the way


def test_faults_are_told_as_kubernetes_does(kube):
    kube.cloud.call("POST", "/_berg/faults", {"method": "kubernetes.pods.list", "status": 429})
    answer = kube.raw("GET", "/api/v1/namespaces/default/pods")
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    assert answer.json()["reason"] == "TooManyRequests"
    kube.cloud.call("POST", "/_berg/faults", {"method": "kubernetes.pods.*", "delay": 0.5})
    began = time.monotonic()
    assert kube.raw("GET", "/api/v1/namespaces/default/pods").ok and time.monotonic() - began >= 0.5


def test_an_old_version_is_a_conflict(kube):
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "seen"},
        "data": {"a": "1"},
    }
    old = kube.create(body)
    path = "/api/v1/namespaces/default/configmaps/seen"
    kube.call("PUT", path, {**old, "data": {"a": "2"}})
    answer = kube.raw("PUT", path, {**old, "data": {"a": "3"}})
    assert answer.status_code == 409 and "the object has been modified" in answer.json()["message"]
    assert kube.get("configmaps", "seen")["data"] == {"a": "2"}
    kube.call("DELETE", path)


def test_a_watch_goes_on_where_it_was_cut(kube):
    path = "/api/v1/namespaces/default/configmaps"
    version = kube.get("configmaps")["metadata"]["resourceVersion"]
    headers = {"Authorization": f"Bearer {kube.token}"}
    query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
    with requests.get(
        kube.server + path, params=query, headers=headers, verify=kube.ca, stream=True
    ) as answer:
        kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}})
        lines = answer.iter_lines()
        event = json.loads(next(lines))
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "one")
        assert kube.cloud.call("POST", "/_berg/clusters/kube/cut", {"what": "watch"})["cut"] >= 1
        with pytest.raises(requests.RequestException):
            list(lines)
    kube.call("DELETE", f"{path}/one")
    query |= {
        "resourceVersion": event["object"]["metadata"]["resourceVersion"],
        "timeoutSeconds": "2",
    }
    lines = requests.get(
        kube.server + path, params=query, headers=headers, verify=kube.ca
    ).text.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["DELETED", "BOOKMARK"]
    query |= {"resourceVersion": "1"}
    lines = requests.get(
        kube.server + path, params=query, headers=headers, verify=kube.ca
    ).text.splitlines()
    assert [(json.loads(line)["type"], json.loads(line)["object"]["code"]) for line in lines] == [
        ("ERROR", 410)
    ]


def test_an_exec_that_is_cut_ends(kube):
    kube.create(job("cutme", "exec sleep 600"))
    pod = kube.pod("cutme")["metadata"]["name"]
    process = subprocess.Popen(
        kube.command("exec", pod, "--", "sleep", "60"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(
        lambda: kube.cloud.call("POST", "/_berg/clusters/kube/cut", {"what": "exec"})["cut"],
        "it runs",
    )
    process.communicate(timeout=20)
    assert process.returncode != 0
    kube.kubectl("delete", "job", "cutme")


@pytest.mark.slow
def test_pods_of_a_killed_server_end_with_a_reset(cloud_of_its_own, tmp_path):
    cloud = cloud_of_its_own
    kube = make_cluster(cloud, "left", tmp_path)
    kube.create(job("left", "exec sleep 600"))
    kube.pod("left")
    os.kill(control.status(cloud.folder)["pid"], signal.SIGKILL)
    until(lambda: not control.is_running(cloud.folder), "the end of the server")
    folders = list((cloud.folder / "kubernetes").glob("*/pods/*/main"))
    pids = [processes.first_process(folder) for folder in folders]
    assert pids and all(pids)
    control.reset(cloud.folder)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()] and not cloud.folder.exists()


@pytest.mark.slow
def test_a_killed_server_finds_its_clusters_and_pods_again(cloud_of_its_own, tmp_path):
    cloud = cloud_of_its_own
    kube = make_cluster(cloud, "again", tmp_path, gpu_pool())
    kube.create(
        job(
            "stays",
            "echo begun; for i in $(seq 60); do [ -e /mnt/go ] && exit 5; sleep 0.5; done",
            gpus=1,
        )
    )
    pod = kube.pod("stays")
    nodes = {node["metadata"]["name"] for node in kube.get("nodes")["items"]}
    assert len(nodes) == 2, "one node came for one pod"
    os.kill(control.status(cloud.folder)["pid"], signal.SIGKILL)
    until(lambda: not control.is_running(cloud.folder), "the end of the server")
    control.start(cloud.folder)
    kube = Kube(cloud, "again", tmp_path)
    found = kube.get("pods", pod["metadata"]["name"])
    assert (found["status"]["phase"], found["metadata"]["uid"]) == (
        "Running",
        pod["metadata"]["uid"],
    )
    until(
        lambda: kube.run("exec", pod["metadata"]["name"], "--", "touch", "/mnt/go").returncode == 0,
        "it is reached",
    )
    assert kube.ended("stays")["type"] == "Failed"
    assert {node["metadata"]["name"] for node in kube.get("nodes")["items"]} == nodes
    (pod,) = kube.pods("stays")
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
    kube.done(cloud.call("DELETE", f"/container/v1/{PLACE}/clusters/again"))
    assert not cloud.instances()


@pytest.mark.slow
def test_a_node_that_stays_silent_is_made_anew_where_its_pool_says_so(kube):
    """Its pods end with its machine, whoever may hear of it: their Job makes others."""
    kube.cloud.call("POST", "/_berg/settings", {"node_grace": 0.3, "eviction": 0.3, "repair": 1.5})
    rules = {"podFailurePolicy": {"rules": [DISRUPTED]}, "podReplacementPolicy": "Failed"}
    kube.create(job("silent", "exec sleep 600", gpus=1, **rules))
    pod = kube.pod("silent")
    node = pod["spec"]["nodeName"]
    kube.cloud.call("POST", f"/_berg/instances/{node}/cut", {"on": True})
    leaving = lambda: kube.pods("silent")[0]["metadata"].get("deletionTimestamp")
    until(leaving, "its pod is deleted, and stays")
    assert node in [each["metadata"]["name"] for each in kube.get("nodes")["items"]]
    others = lambda: [
        each
        for each in kube.pods("silent")
        if each["spec"].get("nodeName", node) != node and each["status"]["phase"] == "Running"
    ]
    until(others, "another pod on another node", 40)
    assert node not in [each["metadata"]["name"] for each in kube.get("nodes")["items"]]
    assert node not in kube.cloud.instances()
    kube.kubectl("delete", "job", "silent")

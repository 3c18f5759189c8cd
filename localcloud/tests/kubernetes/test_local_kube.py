"""Clusters of the embedded cloud: what Berg asks of one, and kubectl, which no one here wrote."""

import subprocess

import pytest
import requests
from local_kube import PLACE, job
from local_machines import until

JOBS, PODS = "/apis/batch/v1/namespaces/default/jobs", "/api/v1/namespaces/default/pods"
DISRUPTED = {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}
HOLDS = (
    'trap "echo told; sleep 0.5; echo done; exit 1" TERM; echo begun; while :; do sleep 0.1; done'
)
MERGE = {"Content-Type": "application/merge-patch+json"}


def test_pods_with_gpus_bring_nodes_when_there_is_room(kube):
    kube.cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a"})
    kube.create(job("short", "true", gpus=2))
    until(lambda: kube.pods("short"), "its pod")
    name = kube.pods("short")[0]["metadata"]["name"]
    until(lambda: "FailedScaleUp" in dict(kube.events(name)), "the shortage is told")
    assert "GCE out of resources" in dict(kube.events(name))["FailedScaleUp"]
    kube.cloud.call("POST", "/_berg/stockout", {"on": False})
    assert kube.ended("short", 60)["type"] == "Complete"
    told = {"FailedScheduling", "TriggeredScaleUp", "Scheduled", "Pulled", "Started"}
    assert told <= {*dict(kube.events(name))}
    kube.delete("short")


def test_a_pod_has_its_files_and_hears_what_is_written_on_it(kube):
    for kind, field in (("ConfigMap", "data"), ("Secret", "stringData")):
        meta = {"name": kind.lower()}
        kube.create({"apiVersion": "v1", "kind": kind, "metadata": meta, field: {"k": kind}})
    volumes = [
        {"name": "a", "configMap": {"name": "configmap"}},
        {"name": "b", "secret": {"secretName": "secret", "defaultMode": 0o400}},
        {"name": "c", "downwardAPI": {"items": [
            {"path": "notes", "fieldRef": {"fieldPath": "metadata.annotations"}}]}},
        {"name": "d", "emptyDir": {"medium": "Memory"}},
    ]  # fmt: skip
    mounts = [{"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes]
    script = "cat /a/k /b/k; stat -c %a /b/k; touch /d/x; until grep -q berg-kill /c/notes; do sleep 0.1; done"
    kube.create(job("files", script, pod={"volumes": volumes}, container={"volumeMounts": mounts}))
    pod = kube.pod("files")
    path, uid = f"{PODS}/{pod['metadata']['name']}", pod["metadata"]["uid"]
    patch = {"metadata": {"uid": uid, "annotations": {"berg-kill": "now"}}}
    assert kube.raw("PATCH", path, {"metadata": {"uid": "other"}}, headers=MERGE).status_code == 409
    assert kube.raw("PATCH", path, {"spec": {"nodeName": "x"}}, headers=MERGE).status_code == 422
    assert kube.raw("PATCH", path, patch, headers=MERGE).ok
    assert kube.ended("files")["type"] == "Complete"
    assert kube.log(pod["metadata"]["name"]) == "ConfigMapSecret400\n"
    kube.delete("files")


def test_a_preempted_node_tells_its_pods_and_another_pod_comes(kube):
    pod = {"terminationGracePeriodSeconds": 10}
    kube.create(job("spot", HOLDS, gpus=1, podFailurePolicy={"rules": [DISRUPTED]}, pod=pod))
    first = kube.pod("spot")
    until(lambda: "begun" in kube.log(first["metadata"]["name"]), "it runs")
    words = kube.command("logs", "-f", first["metadata"]["name"])
    follow = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert follow.stdout and follow.stdout.readline() == "begun\n"
    kube.cloud.call("POST", f"/_berg/instances/{first['spec']['nodeName']}/preempt")
    assert follow.communicate(timeout=60)[0] == "told\ndone\n"
    others = lambda: [
        each["spec"].get("nodeName")
        for each in kube.pods("spot")
        if each["metadata"]["uid"] != first["metadata"]["uid"]
        and each["status"]["phase"] == "Running"
    ]
    assert until(others, "another pod") != [first["spec"]["nodeName"]]
    kube.delete("spot")


@pytest.mark.parametrize("how", ["evict", "crash"])
def test_what_takes_a_pod_away_is_no_failure(kube, how):
    kube.create(job(how, "sleep 600", podFailurePolicy={"rules": [DISRUPTED]}))
    pod = kube.pod(how)
    what = (
        f"pods/{pod['metadata']['name']}"
        if how == "evict"
        else f"instances/{pod['spec']['nodeName']}"
    )
    kube.cloud.call("POST", f"/_berg/{what}/{how}", {})
    until(
        lambda: {each["metadata"]["uid"] for each in kube.pods(how)} - {pod["metadata"]["uid"]},
        "another",
    )
    assert not kube.get("jobs", how)["status"].get("failed")
    kube.delete(how)


def test_exit_codes_and_success_policies_end_jobs(kube):
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
    kube.create(job("code", "exit 42", podFailurePolicy={"rules": [rule]}, backoffLimit=3))
    assert kube.ended("code")["reason"] == "PodFailurePolicy"
    first = {"rules": [{"succeededIndexes": "0"}]}
    script = "test $JOB_COMPLETION_INDEX = 0 || sleep 600"
    kube.create(job("lead", script, count=2, successPolicy=first))
    assert kube.ended("lead")["reason"] == "SuccessPolicy"
    for name in ("code", "lead"):
        kube.delete(name)


def test_kubectl_sees_and_reaches_pods(kube):
    kube.create(job("shell", "echo begun; exec sleep 600"))
    name = kube.pod("shell")["metadata"]["name"]
    shown = kube.kubectl("get", "pods", "-l", "job-name=shell", "--no-headers").split()
    assert shown[:3] == [name, "1/1", "Running"]
    assert "Completions" in kube.kubectl("get", "jobs").title()
    described = kube.kubectl("describe", "pod", name)
    assert "Successfully assigned default/" in described and "Started container main" in described
    assert "Pods Statuses:" in kube.kubectl("describe", "job", "shell")
    assert "system" in kube.kubectl("describe", "nodes")
    until(lambda: "begun" in kube.log(name), "it has begun")
    assert kube.kubectl("logs", "--tail=1", name) == "begun\n"
    words = ("exec", "-i", name, "--", "sh", "-c", "cat; echo oops >&2; exit 7")
    done = kube.run(*words, stdin="through\n")
    assert (done.stdout, done.returncode) == ("through\n", 7) and "oops" in done.stderr
    kube.delete("shell")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("spec.paralellism", 2, 'unknown field "spec.paralellism"'),
        ("spec.parallelism", "2", 'cannot unmarshal "2"'),
        ("metadata.name", "Upper", "a lowercase RFC 1123 subdomain"),
        ("metadata.labels", {"a": "b c"}, "a valid label must be"),
        ("spec.template.metadata", {"labels": {"-": "b"}}, "name part must consist of"),
        ("spec.template.spec.containers", [], "Required value"),
    ],
)
def test_a_job_that_may_not_be_is_refused(kube, path, value, words):
    place = body = job("wrong", "true")
    *above, last = path.split(".")
    for each in above:
        place = place[each]
    place[last] = value
    answer = kube.raw("POST", JOBS, body, fieldValidation="Strict", dryRun="All")
    assert answer.status_code in (400, 422) and words in answer.json()["message"], answer.text


def test_what_is_tried_is_not_made_and_what_is_there_is_another(kube):
    body = job("tried", "sleep 600")
    assert kube.call("POST", JOBS, body, dryRun="All")["kind"] == "Job"
    assert kube.raw("GET", f"{JOBS}/tried").status_code == 404
    kube.create(body)
    again = kube.raw("POST", JOBS, body)
    assert (again.status_code, again.json()["reason"]) == (409, "AlreadyExists")
    gone = kube.raw("DELETE", f"{JOBS}/tried", {"preconditions": {"uid": "other"}})
    assert gone.status_code == 409
    kube.delete("tried")


def test_who_may_not_is_told_so(kube):
    nobody = {"Authorization": "Bearer hunter2"}
    assert requests.get(kube.server + PODS, headers=nobody, verify=kube.ca).status_code == 401


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ({"name": "Upper"}, "Must be a match of regex"),
        ({"name": "x", "config": {"machineType": "n9-huge"}}, "does not exist in zone"),
        ({"name": "x", "autoscaling": {"enabled": True}}, "Max node count must be set"),
        ({"name": "x", "config": {"localSsdCount": 1}}, "no node pools.config with localSsdCount"),
        ({"name": "x", "config": {"accelerators": [{"gpuPartitionSize": "1g.5gb"}]}}, "gpuPart"),
        ({"name": "x", "config": {"kubeletConfig": {"podPidsLimit": "5"}}}, "podPidsLimit"),
        (
            {
                "name": "x",
                "config": {
                    "reservationAffinity": {"consumeReservationType": "SPECIFIC_RESERVATION"}
                },
            },
            "reservationAffinity",
        ),
        ({"name": "x", "placementPolicy": {"type": "COMPACT"}}, "placementPolicy"),
        ({"name": "x", "upgradeSettings": {"maxSurge": 1}}, "upgradeSettings"),
    ],
)
def test_pools_that_google_refuses_or_that_would_lose_something(kube, pool, words):
    url = f"{kube.cloud.url}/container/v1/{PLACE}/clusters/kube/nodePools"
    answer = kube.cloud.session.post(url, json={"nodePool": pool})
    assert answer.status_code in (400, 501) and words in answer.json()["error"]["message"]

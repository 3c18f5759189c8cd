"""What a cluster admits: service accounts and resource quotas; and what becomes of Jobs whose pods it
does not.
"""

import pytest
from local_kube import job
from local_machines import until

TRACER = {
    "name": "main",
    "image": "debian:12",
    "command": ["true"],
    "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},
}


@pytest.fixture
def space(kube, request):
    """A namespace of the test's own."""
    name = f"space-{request.node.name[:20].strip('_').replace('_', '-')}"
    kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    kube.call("DELETE", f"/api/v1/namespaces/{name}")
    gone = lambda: kube.raw("GET", f"/api/v1/namespaces/{name}").status_code == 404
    until(gone, "the namespace has gone")


def pod(name: str, **container) -> dict:
    spec = {"restartPolicy": "Never", "containers": [{**TRACER, **container}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def refused(kube, body: dict, space: str) -> str:
    """How the cluster refuses an object, with a 403."""
    path = f"/api/v1/namespaces/{space}/{body['kind'].lower()}s"
    answer = kube.raw("POST", path, body)
    assert answer.status_code == 403 and answer.json()["reason"] == "Forbidden", answer.text
    return answer.json()["message"]


def failed_creates(kube, space: str) -> list[str]:
    rows = kube.get("events", namespace=space)["items"]
    return [row["message"] for row in rows if row["reason"] == "FailedCreate"]


def test_a_job_without_its_service_account_says_so_and_goes_on_with_it(kube, space):
    kube.create(job("lone", "true", pod={"serviceAccountName": "worker"}), space)
    told = until(lambda: failed_creates(kube, space), "the refusal")
    why = f'error looking up service account {space}/worker: serviceaccount "worker" not found'
    assert told[0].startswith('Error creating: pods "lone-0-')
    assert told[0].endswith(f" is forbidden: {why}")
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "worker"}}
    kube.create(account, space)
    until(lambda: kube.get("pods", namespace=space)["items"], "its pod")


def test_a_quota_of_pods_holds_for_jobs_and_tells_how_much_is_used(kube, space):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    kube.create({**quota, "spec": {"hard": {"pods": "1", "count/jobs.batch": "1"}}}, space)
    kube.create(job("two", "sleep 100", 2), space)
    told = until(lambda: failed_creates(kube, space), "the refusal")
    assert "exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1" in told[0]
    there = kube.get("resourcequotas", "few", space)["status"]
    assert there["used"] == {"pods": "1", "count/jobs.batch": "1"}
    second = kube.raw("POST", f"/apis/batch/v1/namespaces/{space}/jobs", job("three", "true"))
    words = "requested: count/jobs.batch=1, used: count/jobs.batch=1, limited: count/jobs.batch=1"
    assert second.status_code == 403 and words in second.json()["message"]


def test_a_quota_of_processors_wants_to_know_what_pods_take(kube, space):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cpus"}}
    kube.create({**quota, "spec": {"hard": {"requests.cpu": "1"}}}, space)
    silent = refused(kube, pod("silent"), space)
    assert silent.endswith("failed quota: cpus: must specify requests.cpu for: main")
    large = pod("large", resources={"requests": {"cpu": "1500m"}})
    words = "exceeded quota: cpus, requested: requests.cpu=1500m, used: requests.cpu=0, limited: requests.cpu=1"
    assert refused(kube, large, space).endswith(words)


def test_what_cannot_be_started_ends_with_a_start_error(kube):
    body = job("nothing", "", container={"command": ["no-such-program"]})
    kube.create(body)
    kube.ended("nothing")
    (status,) = kube.pods("nothing")[0]["status"]["containerStatuses"]
    ended = status["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("StartError", 128)
    assert ended["message"].endswith('exec: "no-such-program": executable file not found in $PATH')
    assert kube.log(kube.pods("nothing")[0]["metadata"]["name"]) == ""
    kube.call(
        "DELETE", "/apis/batch/v1/namespaces/default/jobs/nothing", propagationPolicy="Background"
    )

"""What a cluster answers to changes of objects, in Kubernetes' words."""

import json
from pathlib import Path

import pytest
from local_kube import job

CHANGES = json.loads(Path(__file__).with_name("changes.json").read_text())
CORE = "/api/v1/namespaces/default"
MERGE = {"Content-Type": "application/merge-patch+json"}
NOWHERE = {"nodeSelector": {"no": "where"}}


def pod(name: str, **spec) -> dict:
    about = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    main = {"name": "main", "image": "debian:12", "command": ["sleep", "600"]}
    return {**about, "spec": {"containers": [main], "terminationGracePeriodSeconds": 1, **spec}}


@pytest.fixture(scope="module")
def there(kube):
    """Objects that nothing comes of."""
    init = {"name": "init", "image": "debian:12"}
    limits = {"tolerations": [{"key": "a", "operator": "Exists"}], "activeDeadlineSeconds": 3600}
    kube.create(pod("lasting", **NOWHERE, initContainers=[init], **limits))
    jobs = (
        job("lasting", "true", suspend=True),
        job("plain", "true", suspend=True, completions=3, completionMode="NonIndexed"),
        job("begun", "true", pod=NOWHERE),
    )
    for each in jobs:
        kube.create(each)
    template = {"metadata": {"labels": {"a": "b"}}}
    template["spec"] = {"containers": [{"name": "main", "image": "x"}]}
    spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    about = {"kind": "Deployment", "metadata": {"name": "lasting"}}
    kube.create({"apiVersion": "apps/v1", **about, "spec": spec})
    yield kube
    for each in jobs:
        path = f"/apis/batch/v1/namespaces/default/jobs/{each['metadata']['name']}"
        kube.call("DELETE", path, propagationPolicy="Background")
    kube.call("DELETE", f"{CORE}/pods/lasting")
    kube.call("DELETE", "/apis/apps/v1/namespaces/default/deployments/lasting")


@pytest.mark.parametrize(
    ("name", "path", "content", "body", "code", "message"), CHANGES, ids=[row[0] for row in CHANGES]
)
def test_a_change_is_answered_in_kubernetes_words(there, name, path, content, body, code, message):
    """A message that ends with * is the beginning of one."""
    found = there.raw("PATCH", path, body, headers={"Content-Type": content}, dryRun="All")
    told = None if found.ok else found.json()["message"]
    if message and message.endswith("*"):
        told, message = told and told[: len(message) - 1], message[:-1]
    assert (found.status_code, told) == (code, message)


def test_a_generated_name_has_room_for_its_end(kube):
    body = {**job("x", "true"), "metadata": {"generateName": "g" * 70}, "apiVersion": "batch/v1"}
    body["spec"]["completionMode"] = "NonIndexed"
    path = "/apis/batch/v1/namespaces/default/jobs"
    name = kube.call("POST", path, body, dryRun="All")["metadata"]["name"]
    assert name.startswith("g" * 58) and len(name) == 63


def test_nothing_more_comes_into_a_namespace_that_goes(kube):
    about = lambda kind, **meta: {"apiVersion": "v1", "kind": kind, "metadata": meta}
    kube.call("POST", "/api/v1/namespaces", about("Namespace", name="goes"))
    maps = "/api/v1/namespaces/goes/configmaps"
    kube.call("POST", maps, about("ConfigMap", name="held", finalizers=["a.b/c"]))
    gone = kube.call("DELETE", "/api/v1/namespaces/goes")
    assert gone["status"]["phase"] == "Terminating"
    found = kube.raw("POST", maps, about("ConfigMap", name="more")).json()
    why = "unable to create new content in namespace goes because it is being terminated"
    assert found["message"] == f'configmaps "more" is forbidden: {why}'
    (cause,) = found["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("NamespaceTerminating", "metadata.namespace")
    kube.raw("PATCH", f"{maps}/held", {"metadata": {"finalizers": None}}, headers=MERGE)


def test_requests_for_tokens_and_reviews_come_back_whole(kube):
    path = f"{CORE}/serviceaccounts/default/token"
    made = kube.call("POST", path, {"spec": {}})
    assert made["metadata"]["name"] == "default" and made["spec"]["expirationSeconds"] == 3600
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    found = kube.call("POST", path, {"spec": spec})
    assert found["kind"] == "SelfSubjectAccessReview"
    assert found["apiVersion"] == "authorization.k8s.io/v1"

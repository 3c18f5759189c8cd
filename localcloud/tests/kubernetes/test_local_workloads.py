"""Deployments and services: what they are refused for, readiness, and how a deployment's pods are
replaced.
"""

import copy

import pytest
from local_machines import until

LABELS = {"app": "web"}
SCRIPT = """
mkdir -p /srv/www && cd /srv/www && echo "$TEXT" >text && sleep 1
exec python3 -m http.server --bind "$POD_IP" 8080
"""


def deployment(text: str = "one", **spec) -> dict:
    """A deployment of a server that answers after a second."""
    env = [
        {"name": "TEXT", "value": text},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    probe = {"httpGet": {"path": "/text", "port": 8080}, "periodSeconds": 1}
    main = {
        "name": "main",
        "image": "debian:12",
        "command": ["bash", "-c", SCRIPT],
        "env": env,
        "readinessProbe": probe,
    }
    pod = {"containers": [main], "terminationGracePeriodSeconds": 0, "enableServiceLinks": False}
    base = {
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": {"labels": LABELS}, "spec": pod},
    }
    about = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}
    return {**about, "spec": {**base, "strategy": {"type": "Recreate"}, **spec}}


def change(body: dict, path: str, value) -> dict:
    """A copy of a body with another value at a path of keys; None takes it away."""
    body = copy.deepcopy(body)
    *keys, last = path.split(".")
    there = body
    for key in keys:
        there = there[int(key) if key.isdigit() else key]
    there.pop(last, None) if value is None else there.update({last: value})
    return body


PROBE = "spec.template.spec.containers.0.readinessProbe"
REFUSED = {
    "selector": ("spec.selector", None, "spec.selector: Required value"),
    "labels": (
        "spec.template.metadata.labels",
        {"app": "x"},
        "`selector` does not match template `labels`",
    ),
    "restarts": ("spec.template.spec.restartPolicy", "Never", 'supported values: "Always"'),
    "probe": (PROBE, {"periodSeconds": 1}, "must specify a handler type"),
    "port": (
        f"{PROBE}.httpGet.port",
        0,
        "readinessProbe.httpGet.port: Invalid value: 0: must be between",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_deployment_that_cannot_be(kube, case):
    path, value, told = REFUSED[case]
    body = change(deployment(), path, value)
    answer = kube.raw(
        "POST", "/apis/apps/v1/namespaces/default/deployments", body, fieldValidation="Strict"
    )
    assert answer.status_code == 422 and told in answer.json()["message"], answer.text


def pods(kube) -> list[dict]:
    return kube.get("pods", labelSelector="app=web")["items"]


@pytest.mark.slow
def test_a_service_sends_to_pods_that_are_ready_and_one_goes_before_the_next_comes(kube):
    kube.create(deployment())
    service = {"selector": LABELS, "ports": [{"port": 8080}]}
    kube.create(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": service}
    )
    until(lambda: [pod["status"]["phase"] for pod in pods(kube)] == ["Running"], "it runs")
    row = lambda: kube.get("deployments", "web")
    until(lambda: row()["status"].get("readyReplicas") == 1, "it is ready")
    (first,) = pods(kube)
    assert any(
        reason == "Unhealthy" and "refused" in told
        for reason, told in kube.events(first["metadata"]["name"])
    )
    same = [{"port": 8080, "targetPort": 8080}]
    merge = {"Content-Type": "application/merge-patch+json"}
    kube.raw(
        "PATCH", "/api/v1/namespaces/default/services/web", {"spec": {"ports": same}}, headers=merge
    )
    assert kube.get("services", "web")["spec"]["ports"] == [{**same[0], "protocol": "TCP"}]
    change_ = {"spec": deployment("two")["spec"]}
    path = "/apis/apps/v1/namespaces/default/deployments/web"
    kube.raw("PATCH", path, change_, headers=merge)
    seen = set()

    def replaced() -> bool:
        names = [pod["metadata"]["name"] for pod in pods(kube)]
        seen.add(len(names))
        return names != [first["metadata"]["name"]] and row()["status"].get("readyReplicas") == 1

    until(replaced, "another pod is ready")
    assert max(seen) == 1, "two at once"
    assert row()["status"]["observedGeneration"] == row()["metadata"]["generation"] == 2
    kube.call("DELETE", path)
    kube.call("DELETE", "/api/v1/namespaces/default/services/web")
    until(lambda: not pods(kube), "its pods are gone")

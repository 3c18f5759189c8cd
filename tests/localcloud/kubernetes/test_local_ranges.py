"""Ranges of limits of a namespace: what its pods get, what is refused, and how tables show what
there is of the kind.
"""

import pytest
from local_kube import job
from local_machines import until

WHERE = "/api/v1/namespaces/ranged"


@pytest.fixture(scope="module")
def ranged(kube):
    """A namespace with usual limits, and bounds."""
    kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": "ranged"}})
    rows = [
        {
            "type": "Container",
            "max": {"cpu": "2", "memory": "1Gi"},
            "min": {"cpu": "100m"},
            "default": {"cpu": "1"},
            "defaultRequest": {"cpu": "500m"},
            "maxLimitRequestRatio": {"cpu": "4"},
        },
        {"type": "Pod", "max": {"cpu": "3"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "2Gi"}, "min": {"storage": "1Gi"}},
    ]
    body = {"metadata": {"name": "all"}, "spec": {"limits": rows}}
    kube.call("POST", f"{WHERE}/limitranges", body, fieldValidation="Strict")
    yield WHERE
    kube.call("DELETE", "/api/v1/namespaces/ranged")


def pod(*resources: dict) -> dict:
    rows = [
        {"name": f"c{number}", "image": "debian:12", "resources": each}
        for number, each in enumerate(resources)
    ]
    return {"metadata": {"name": "one"}, "spec": {"containers": rows}}


def test_a_pod_gets_what_it_does_not_ask_for(kube, ranged):
    made = kube.call("POST", f"{ranged}/pods", pod({}), dryRun="All")
    has = made["spec"]["containers"][0]["resources"]
    assert has["limits"] == {"cpu": "1", "memory": "1Gi"}
    assert has["requests"] == {"cpu": "500m", "memory": "1Gi"}
    assert made["status"]["qosClass"] == "Burstable"
    told = "LimitRanger plugin set: cpu, memory request for container c0; "
    told += "cpu, memory limit for container c0"
    assert made["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == told


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        (
            [{"limits": {"cpu": "3"}, "requests": {"cpu": "1"}}],
            "maximum cpu usage per Container is 2, but limit is 3",
        ),
        (
            [{"requests": {"cpu": "50m"}, "limits": {"cpu": "200m"}}],
            "minimum cpu usage per Container is 100m, but request is 50m",
        ),
        (
            [{"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}],
            "cpu max limit to request ratio per Container is 4, but provided ratio is 10.000000",
        ),
        (
            [{"limits": {"cpu": "2"}}, {"limits": {"cpu": "1500m"}}],
            "maximum cpu usage per Pod is 3, but limit is 3500m",
        ),
    ],
)
def test_a_pod_that_asks_for_what_it_may_not(kube, ranged, resources, told):
    found = kube.raw("POST", f"{ranged}/pods", pod(*resources), dryRun="All")
    message = f'pods "one" is forbidden: {told}'
    assert (found.status_code, found.json()["message"]) == (403, message)


@pytest.mark.parametrize(
    ("size", "told"),
    [
        ("3Gi", "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"),
        ("1Mi", "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"),
        ("1Gi", ""),
    ],
)
def test_a_claim_of_a_disk_has_bounds(kube, ranged, size, told):
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    body = {"metadata": {"name": "disk"}, "spec": spec}
    found = kube.raw("POST", f"{ranged}/persistentvolumeclaims", body, dryRun="All")
    assert found.ok == (not told) and told in found.text


def test_a_job_is_told_why_it_gets_no_pod(kube, ranged):
    container = {"resources": {"limits": {"cpu": "8"}, "requests": {"cpu": "4"}}}
    kube.create(job("greedy", "true", container=container), "ranged")
    said = lambda: [
        each["message"]
        for each in kube.get("events", namespace="ranged")["items"]
        if each["reason"] == "FailedCreate"
    ]
    (message, *_) = until(said, "the event")
    assert "maximum cpu usage per Container is 2, but limit is 8" in message


def test_tables_show_what_kubernetes_shows(kube, ranged):
    accept = {"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}

    def shown(path: str) -> tuple[list, list]:
        found = kube.raw("GET", path, headers=accept).json()
        names = [each["name"] for each in found["columnDefinitions"]]
        return names, found["rows"][0]["cells"]

    names, cells = shown("/apis/scheduling.k8s.io/v1/priorityclasses")
    assert names == ["Name", "Value", "Global-Default", "Age", "PreemptionPolicy"]
    assert cells[:3] == ["system-cluster-critical", 2_000_000_000, False]
    assert shown(f"{ranged}/limitranges")[0] == ["Name", "Created At"]
    assert shown(f"{ranged}/serviceaccounts")[1][:2] == ["default", 0]
    hard = {"pods": "5", "limits.cpu": "2"}
    body = {"metadata": {"name": "few"}, "spec": {"hard": hard}}
    kube.call("POST", f"{ranged}/resourcequotas", body)
    cells = until(lambda: (row := shown(f"{ranged}/resourcequotas")[1])[1] and row, "its status")
    assert cells[:3] == ["few", "pods: 0/5", "limits.cpu: 0/2"]
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": "disk"}, "spec": spec}
    kube.call("POST", f"{ranged}/persistentvolumeclaims", claim)
    assert shown(f"{ranged}/persistentvolumeclaims")[1][:2] == ["disk", "Pending"]

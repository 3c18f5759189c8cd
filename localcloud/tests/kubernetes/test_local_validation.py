"""Bodies that fit their schema and still may not be, with what Kubernetes' own rules say of them; and
bodies that these rules let pass (201, and nothing is said).

The rules are those of its sources: pkg/apis/core/validation, apps, batch, policy, rbac and the
admission of priorities and runtimes.
"""

import json
from pathlib import Path

import pytest
from local_kube import job

ROWS = json.loads(Path(__file__).with_name("validation.json").read_text())
CORE = "/api/v1/namespaces/default"
IN_ORDER = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}
NEVER_BOTH = "DuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("name", "path", "body", "code", "message"), ROWS, ids=[row[0] for row in ROWS]
)
def test_a_body_is_refused_in_kubernetes_words(kube, name, path, body, code, message):
    found = kube.raw("POST", path, body, fieldValidation="Strict", dryRun="All")
    told = None if found.ok else found.json()["message"]
    assert (found.status_code, told) == (code, message)


def pod(spec: dict, container: dict) -> dict:
    main = {"name": "main", "image": "debian:12", **container}
    about = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fine"}}
    return {**about, "spec": {"containers": [main], **spec}}


def with_volume(name: str, **source) -> tuple[dict, dict]:
    mount = {"name": name, "mountPath": "/data", "subPath": "part"}
    return {"volumes": [{"name": name, **source}]}, {"volumeMounts": [mount]}


FINE = {
    "affinity": (
        {
            "affinity": {
                "nodeAffinity": {
                    f"required{NEVER_BOTH}": {"nodeSelectorTerms": [IN_ORDER]},
                    f"preferred{NEVER_BOTH}": [{"weight": 100, "preference": IN_ORDER}],
                },
                "podAntiAffinity": {
                    f"required{NEVER_BOTH}": [
                        {"topologyKey": "kubernetes.io/hostname", "labelSelector": IN_ORDER}
                    ]
                },
            }
        },
        {},
    ),
    "spread": (
        {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ]
        },
        {},
    ),
    "host": (
        {"hostNetwork": True, "dnsPolicy": "None", "dnsConfig": {"nameservers": ["::1"]}},
        {"ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 81}]},
    ),
    "security": (
        {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}, "fsGroup": 0}},
        {"securityContext": {"privileged": True, "procMount": "Default"}},
    ),
    "downward": with_volume(
        "down",
        downwardAPI={
            "items": [
                {"path": "labels", "mode": 0o644, "fieldRef": {"fieldPath": "metadata.labels"}},
                {
                    "path": "cpu",
                    "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"},
                },
            ]
        },
    ),
    "projected": with_volume(
        "both",
        projected={
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                {"configMap": {"name": "kube-root-ca.crt"}},
            ]
        },
    ),
    "disk": with_volume("disk", emptyDir={"medium": "Memory", "sizeLimit": "1Gi"}),
    "variables": (
        {},
        {
            "env": [
                {"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a.b"}}},
            ],
            "envFrom": [{"prefix": "X_", "configMapRef": {"name": "m"}}],
        },
    ),
    "ends": (
        {"terminationGracePeriodSeconds": 5, "priorityClassName": "system-node-critical"},
        {
            "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
            "livenessProbe": {"exec": {"command": ["true"]}, "terminationGracePeriodSeconds": 1},
            "readinessProbe": {"httpGet": {"port": "web", "scheme": "HTTPS"}},
        },
    ),
    "sidecar": (
        {
            "initContainers": [
                {
                    "name": "beside",
                    "image": "x",
                    "restartPolicy": "Always",
                    "readinessProbe": {"tcpSocket": {"port": 1}},
                }
            ]
        },
        {"resources": {"limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}}},
    ),
}


@pytest.mark.parametrize("what", FINE)
def test_a_body_that_may_be_passes(kube, what):
    found = kube.raw(
        "POST", f"{CORE}/pods", pod(*FINE[what]), fieldValidation="Strict", dryRun="All"
    )
    assert found.ok, found.text


def test_other_objects_that_may_be_pass(kube):
    hard = {"pods": "4", "requests.cpu": "1500m", "requests.nvidia.com/gpu": "2"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "fine"}}
    quota |= {"spec": {"hard": {**hard, "count/jobs.batch": "3"}}}
    assert kube.raw("POST", f"{CORE}/resourcequotas", quota, dryRun="All").ok
    node_port = {"type": "NodePort", "ports": [{"port": 1, "targetPort": "web", "nodePort": 30001}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "fine"}}
    service |= {"spec": {**node_port, "externalTrafficPolicy": "Local", "selector": {"a": "b"}}}
    found = kube.raw("POST", f"{CORE}/services", service, dryRun="All")
    assert found.ok, found.text
    codes = {"operator": "In", "values": [42, 126]}
    rules = [{"action": "FailJob", "onExitCodes": codes}]
    body = job("fine", "true", podFailurePolicy={"rules": rules})
    assert kube.raw("POST", "/apis/batch/v1/namespaces/default/jobs", body, dryRun="All").ok


MERGE = {"Content-Type": "application/merge-patch+json"}
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
JOBS = "/apis/batch/v1/namespaces/default/jobs"


@pytest.fixture(scope="module")
def kept(kube):
    """One object of each kind that may not change in everything."""
    about = lambda kind, **more: {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": "kept"},
        **more,
    }
    kube.create(job("kept", "true", suspend=True))
    kube.create(about("ConfigMap", data={"a": "b"}, immutable=True))
    kube.create(about("Secret", stringData={"a": "b"}))
    kube.create(about("Service", spec={"ports": [{"port": 80}], "selector": {"a": "b"}}))
    nowhere = {"nodeSelector": {"no": "where"}, "containers": [{"name": "main", "image": "x"}]}
    limits = {"tolerations": [{"key": "a", "operator": "Exists"}], "activeDeadlineSeconds": 3600}
    kube.create(about("Pod", spec={**nowhere, **limits}))
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    binding = {**about("RoleBinding", roleRef=role), "apiVersion": "rbac.authorization.k8s.io/v1"}
    kube.call("POST", BINDINGS, binding)
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": nowhere["containers"]}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    kube.call("POST", DEPLOYMENTS, {**about("Deployment", spec=spec), "apiVersion": "apps/v1"})
    yield kube
    for path in (JOBS, f"{CORE}/configmaps", f"{CORE}/secrets", f"{CORE}/services", BINDINGS):
        kube.call("DELETE", f"{path}/kept", propagationPolicy="Background")
    for path in (f"{CORE}/pods", DEPLOYMENTS):
        kube.call("DELETE", f"{path}/kept")


OTHER = {"matchLabels": {"a": "c"}}
TEMPLATE = {"metadata": {"labels": {"a": "c"}}}
CHANGES = [
    (JOBS, {"spec": {"template": {"spec": {"restartPolicy": "OnFailure"}}}}, "field is immutable"),
    (
        f"{CORE}/services",
        {"spec": {"clusterIP": "127.1.1.1", "clusterIPs": ["127.1.1.1"]}},
        "may not change once set",
    ),
    (f"{CORE}/pods", {"spec": {"terminationGracePeriodSeconds": 3}}, "pod updates may not change"),
    (DEPLOYMENTS, {"spec": {"selector": OTHER, "template": TEMPLATE}}, "field is immutable"),
]


@pytest.mark.parametrize(("path", "patch", "words"), CHANGES)
def test_what_may_not_change(kept, path, patch, words):
    found = kept.raw("PATCH", f"{path}/kept", patch, headers=MERGE, dryRun="All")
    assert found.status_code == 422 and words in found.json()["message"]


def test_what_may_change(kept):
    for path, patch in (
        (JOBS, {"spec": {"backoffLimit": 3, "suspend": False}}),
        (f"{CORE}/secrets", {"stringData": {"c": "d"}}),
        (f"{CORE}/services", {"spec": {"selector": {"a": "c"}}}),
        (
            f"{CORE}/pods",
            {"spec": {"activeDeadlineSeconds": 60}, "metadata": {"labels": {"a": "b"}}},
        ),
        (BINDINGS, {"subjects": [{"kind": "User", "name": "somebody@example.com"}]}),
        (DEPLOYMENTS, {"spec": {"replicas": 0, "minReadySeconds": 1}}),
    ):
        found = kept.raw("PATCH", f"{path}/kept", patch, headers=MERGE, dryRun="All")
        assert found.ok, found.text
    service = kept.get("services", "kept")
    del service["spec"]["clusterIP"], service["spec"]["clusterIPs"]
    found = kept.raw("PUT", f"{CORE}/services/kept", service, dryRun="All")
    assert found.ok and found.json()["spec"]["clusterIP"], found.text


def test_a_quantity_of_null_is_none(kube):
    body = pod({}, {"resources": {"requests": {"cpu": None}}})
    found = kube.raw("POST", f"{CORE}/pods", body, dryRun="All")
    assert found.ok and found.json()["spec"]["containers"][0]["resources"]["requests"] == {
        "cpu": "0"
    }


def test_a_job_that_chooses_all_pods_itself(kube):
    body = job("chooses", "true", manualSelector=True, selector={})
    assert kube.raw("POST", JOBS, body, dryRun="All").status_code == 201

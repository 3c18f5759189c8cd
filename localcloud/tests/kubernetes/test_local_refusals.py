"""What Kubernetes refuses and an emulation easily takes, in its words."""

import base64

import pytest
from local_kube import job

CORE = "/api/v1/namespaces/default"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
MB = 1 << 20


def named(kind: str, api: str = "v1", **fields) -> dict:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "refused"}, **fields}


def refusal(kube, path: str, body, code: int = 422, **query) -> str:
    answer = kube.raw("POST", path, body, dryRun="All", **query)
    assert answer.status_code == code, answer.text
    return answer.json()["message"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"data": {"a b": "x"}}, "data[a b]: Invalid value"),
        ({"data": {"..": "x"}}, "must not be '..'"),
        ({"data": {"..x": "x"}}, "must not start with '..'"),
        ({"data": {"a/b": "x"}}, "a valid config key must consist of"),
        ({"data": {"k" * 254: "x"}}, "must be no more than 253 bytes"),
        ({"data": {"a": "x" * (MB + 1)}}, "Too long: may not be more than 1048576 bytes"),
        (
            {"data": {"a": "x"}, "binaryData": {"a": "eA=="}},
            "duplicate of key present in binaryData",
        ),
    ],
)
def test_config_maps(kube, fields, words):
    assert words in refusal(kube, f"{CORE}/configmaps", named("ConfigMap", **fields))


def encoded(size: int) -> str:
    return base64.b64encode(b"x" * size).decode()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"data": {"a b": "eA=="}}, "data[a b]: Invalid value"),
        ({"stringData": {"a/b": "x"}}, "data[a/b]: Invalid value"),
        ({"data": {"a": encoded(MB + 1)}}, "data: Too long: may not be more than 1048576 bytes"),
    ],
)
def test_secrets(kube, fields, words):
    assert words in refusal(kube, f"{CORE}/secrets", named("Secret", **fields))


def test_data_that_just_fits(kube):
    fits = named("Secret", data={"a": encoded(MB)})
    assert kube.raw("POST", f"{CORE}/secrets", fits, dryRun="All").status_code == 201
    fits = named("ConfigMap", data={"a.b_c-D": "x" * MB})
    assert kube.raw("POST", f"{CORE}/configmaps", fits, dryRun="All").status_code == 201


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ({"kind": "Rolle", "name": "x"}, 'roleRef.kind: Unsupported value: "Rolle"'),
        ({"kind": "Role", "name": ""}, "roleRef.name: Required value"),
        (
            {"kind": "Role", "name": "x", "apiGroup": "y"},
            'roleRef.apiGroup: Unsupported value: "y"',
        ),
    ],
)
def test_bindings(kube, reference, words):
    reference = {"apiGroup": "rbac.authorization.k8s.io", **reference}
    body = named("RoleBinding", "rbac.authorization.k8s.io/v1", roleRef=reference, subjects=[])
    assert words in refusal(kube, f"{RBAC}/rolebindings", body)


def labelled(**labels) -> dict:
    body = job("refused", "true")
    body["spec"]["template"]["metadata"] = {"labels": labels}
    return body


def volume(**source) -> dict:
    return {"pod": {"volumes": [{"name": "v", **source}]}}


PATH = "spec.template.spec"
ITEM = {"configMap": {"name": "m", "items": [{"key": "k", "path": "../x"}]}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (labelled(**{"job-name": "other"}), "labels[job-name]: Invalid value"),
        (labelled(**{"batch.kubernetes.io/job-name": "other"}), "must be 'refused'"),
        (
            job("refused", "", container={"ports": [{"containerPort": 70000}]}),
            "between 1 and 65535",
        ),
    ],
)
def test_jobs(kube, body, words):
    assert words in refusal(kube, JOBS, body)


def test_metadata(kube):
    body = named("ConfigMap")
    body["metadata"]["annotations"] = {"a": "x" * (256 << 10)}
    told = refusal(kube, f"{CORE}/configmaps", body)
    assert "metadata.annotations: Too long: may not be more than 262144 bytes" in told


def test_a_job_that_another_controller_looks_after_gets_no_pods(kube):
    kube.create(job("managed", "true", managedBy="example.com/other"))
    kube.create(job("unmanaged", "true"))
    kube.ended("unmanaged")
    assert kube.pods("managed") == [] and not kube.get("jobs", "managed")["status"]
    kube.call("DELETE", f"{JOBS}/managed", propagationPolicy="Background")


def test_bodies_that_cannot_be_read(kube):
    review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    for data in (b"{", b"nonsense", b"\xff\xfe", b"[" * 100_000, b"[]", b'"x"'):
        for path in (f"{CORE}/configmaps", review):
            assert "json parse error" in refusal(kube, path, data, 400)
    text = {"Content-Type": "text/plain"}
    answer = kube.raw("POST", f"{CORE}/configmaps", named("ConfigMap"), headers=text)
    assert (answer.status_code, answer.json()["reason"]) == (415, "UnsupportedMediaType")
    assert "accepted media types include: application/json" in answer.json()["message"]


def test_what_must_stay_and_who_must_not_be(kube):
    for name in ("default", "kube-system"):
        answer = kube.raw("DELETE", f"/api/v1/namespaces/{name}")
        assert answer.status_code == 403 and "may not be deleted" in answer.text


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"containers": [{"name": "a", "command": "true"}]}, "Container.spec.containers.command"),
        (
            {"containers": {}},
            "object into Go struct field PodSpec.spec.containers of type []v1.Con",
        ),
        ("x", "string into Go struct field Pod.spec of type v1.PodSpec"),
    ],
)
def test_a_wrong_type_is_named_as_go_names_it(kube, spec, words):
    told = refusal(kube, f"{CORE}/pods", named("Pod", spec=spec), 400)
    assert words in told
    assert words != "Container.spec.containers.command" or told.endswith("of type []string")

"""What Kubernetes refuses and an emulation easily takes, in its words."""

import base64

import pytest
from local_kube import job

CORE = "/api/v1/namespaces/default"
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


def test_ports(kube):
    body = job("refused", "", container={"ports": [{"containerPort": 70000}]})
    assert "between 1 and 65535" in refusal(kube, JOBS, body)


def test_metadata(kube):
    body = named("ConfigMap")
    body["metadata"]["annotations"] = {"a": "x" * (256 << 10)}
    told = refusal(kube, f"{CORE}/configmaps", body)
    assert "metadata.annotations: Too long: may not be more than 262144 bytes" in told


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

"""What a real API server answers to requests that are odd, stale or in parts."""

import json

import pytest

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
MERGE = {"Content-Type": "application/merge-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}


def settings(name: str, **meta) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **meta},
        "data": {"a": "b"},
    }


@pytest.fixture
def there(kube):
    made = kube.create(settings("there"))
    yield made
    kube.raw("DELETE", f"{MAPS}/there")


def told(answer) -> tuple[int, str, str]:
    body = answer.json()
    assert (body["kind"], body["code"]) == ("Status", answer.status_code)
    return answer.status_code, body.get("reason", ""), body["message"]


def test_a_long_list_comes_in_pages(kube):
    names = [f"page-{number}" for number in (3, 1, 5, 2, 4)]
    for name in names:
        kube.create(settings(name, labels={"of": "pages"}))
    seen, query = [], {"limit": "2", "labelSelector": "of in(pages)"}
    while True:
        found = kube.call("GET", MAPS, **query)
        seen.append([each["metadata"]["name"] for each in found["items"]])
        if "continue" not in found["metadata"]:
            break
        query["continue"] = found["metadata"]["continue"]
    assert seen == [["page-1", "page-2"], ["page-3", "page-4"], ["page-5"]]
    rest = kube.call("GET", MAPS, limit="1")["metadata"]["remainingItemCount"]
    assert rest == len(kube.call("GET", MAPS)["items"]) - 1
    bad = {"limit": "2", "continue": "nonsense"}
    assert told(kube.raw("GET", MAPS, **bad)) == (
        400,
        "BadRequest",
        "invalid continue token: continue key is not valid: invalid character '\\ufffd' "
        "looking for beginning of value",
    )
    table = kube.kubectl("get", "cm", "-l", "of=pages", "--chunk-size=2", "--no-headers")
    assert [line.split()[0] for line in table.splitlines()] == sorted(names)
    kube.kubectl("delete", "cm", "-l", "of=pages")


@pytest.mark.parametrize(
    ("query", "code", "says"),
    [
        ({"limit": "x"}, 400, 'parsing "x": invalid syntax'),
        ({"resourceVersion": "abc"}, 400, 'parsing "abc": invalid syntax'),
        ({"resourceVersion": "99999999"}, 504, "Too large resource version: 99999999, current: "),
        ({"fieldSelector": "spec.foo=x"}, 400, "field label not supported: spec.foo"),
        ({"labelSelector": "a in"}, 400, "unable to parse requirement"),
        ({"watch": "true", "resourceVersion": "abc"}, 400, 'parsing "abc": invalid syntax'),
        ({"watch": "true", "timeoutSeconds": "x"}, 400, 'parsing "x": invalid syntax'),
        (
            {"watch": "true", "sendInitialEvents": "true"},
            422,
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
    ],
)
def test_a_question_that_makes_no_sense(kube, query, code, says):
    found = told(kube.raw("GET", PODS, **query))
    assert found[0] == code and says in found[2]


def test_fields_that_kubernetes_does_not_know(kube):
    body = {**settings("odd"), "foo": 1}
    warned = kube.raw("POST", MAPS, body, fieldValidation="Warn")
    assert (
        warned.headers["Warning"] == '299 - "unknown field \\"foo\\""'
        and "foo" not in warned.json()
    )
    assert (
        'Warning: unknown field "foo"'
        in kube.run("replace", "--validate=warn", "-f", "-", stdin=json.dumps(body)).stderr
    )
    ignored = kube.raw("PUT", f"{MAPS}/odd", body, fieldValidation="Ignore")
    assert "Warning" not in ignored.headers and "foo" not in ignored.json()
    code, reason, message = told(kube.raw("PUT", f"{MAPS}/odd", body, fieldValidation="Strict"))
    assert (code, reason) == (
        400,
        "BadRequest",
    ) and 'strict decoding error: unknown field "foo"' in message
    patched = kube.raw("PATCH", f"{MAPS}/odd", {"bar": 1}, headers=MERGE)
    assert (
        patched.headers["Warning"] == '299 - "unknown field \\"bar\\""'
        and "bar" not in patched.json()
    )
    assert told(kube.raw("POST", MAPS, body, fieldValidation="Perhaps"))[:2] == (422, "Invalid")
    assert told(kube.raw("POST", MAPS, body, dryRun="Some"))[:2] == (422, "Invalid")
    kube.raw("DELETE", f"{MAPS}/odd")


def test_what_is_wrong_is_named_field_by_field(kube):
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "wrong"}}
    body["spec"] = {
        "completions": -1,
        "template": {"spec": {"restartPolicy": "Never", "containers": []}},
    }
    answer = kube.raw("POST", "/apis/batch/v1/namespaces/default/jobs", body)
    assert told(answer)[:2] == (422, "Invalid")
    assert answer.json()["details"] == {
        "name": "wrong",
        "group": "batch",
        "kind": "Job",
        "causes": [
            {
                "reason": "FieldValueInvalid",
                "message": "Invalid value: -1: must be greater than or equal to 0",
                "field": "spec.completions",
            },
            {
                "reason": "FieldValueRequired",
                "message": "Required value",
                "field": "spec.template.spec.containers",
            },
        ],
    }
    shown = kube.run("create", "-f", "-", stdin=json.dumps(body)).stderr
    assert "* spec.completions: Invalid value: -1: must be greater than or equal to 0" in shown
    assert "* spec.template.spec.containers: Required value" in shown


def test_another_objects_name_version_or_identity(kube, there):
    path = f"{MAPS}/there"
    put = lambda **meta: told(kube.raw("PUT", path, settings(**{"name": "there", **meta})))
    assert put(name="other") == (
        400,
        "BadRequest",
        "the name of the object (other) does not match the name on the URL (there)",
    )
    assert put(uid="x")[:2] == put(resourceVersion="1")[:2] == (409, "Conflict")
    assert put(resourceVersion="abc")[:2] == (422, "Invalid")
    assert told(kube.raw("POST", MAPS, settings("new", resourceVersion="5"))) == (
        500,
        "",
        "resourceVersion should not be set on objects to be created",
    )
    for condition in ({"uid": "x"}, {"resourceVersion": "1"}):
        code, reason, message = told(kube.raw("DELETE", path, {"preconditions": condition}))
        assert (code, reason) == (409, "Conflict") and "in the precondition (" in message
    assert told(kube.raw("PATCH", path, settings("there"), headers=APPLY))[:2] == (422, "Invalid")
    assert kube.raw("PATCH", path, settings("there"), headers=APPLY, fieldManager="me").ok
    assert kube.call("GET", path)["metadata"]["uid"] == there["metadata"]["uid"]


def test_what_is_only_tried_changes_nothing(kube):
    kube.kubectl("run", "stays", "--image=debian:12", "--restart=Never", "--", "sleep", "600")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "stays"}}
    assert kube.raw("POST", f"{PODS}/stays/eviction", eviction, dryRun="All").status_code == 201
    assert kube.raw("DELETE", f"{PODS}/stays", dryRun="All").ok
    assert "deletionTimestamp" not in kube.get("pods", "stays")["metadata"]
    assert told(kube.raw("GET", f"{PODS}/stays/log", tailLines="x"))[0] == 400
    kube.kubectl("delete", "pod", "stays", "--now")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"securityContext": {"runAsUser": -1}},
            "securityContext.runAsUser: Invalid value: -1: must be between 0 and",
        ),
        (
            {"securityContext": {"privileged": True, "allowPrivilegeEscalation": False}},
            "securityContext: Invalid value",
        ),
        ({"livenessProbe": {}}, "livenessProbe: Required value: must specify a handler type"),
        (
            {"startupProbe": {"tcpSocket": {"port": 80}, "successThreshold": 2}},
            "successThreshold: Invalid value: 2: must",
        ),
    ],
)
def test_a_container_that_cannot_be(kube, fields, says):
    container = {"name": "main", "image": "debian:12", **fields}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "odd"},
        "spec": {"containers": [container]},
    }
    code, reason, message = told(kube.raw("POST", PODS, body, dryRun="All"))
    assert (
        (code, reason) == (422, "Invalid") and "spec.containers[0]." in message and says in message
    )

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
    refused = told(kube.raw("GET", MAPS, **bad))
    assert refused[:2] == (400, "BadRequest") and "invalid continue token" in refused[2]
    table = kube.kubectl("get", "cm", "-l", "of=pages", "--chunk-size=2", "--no-headers")
    assert [line.split()[0] for line in table.splitlines()] == sorted(names)
    kube.kubectl("delete", "cm", "-l", "of=pages")


@pytest.mark.parametrize(
    ("query", "code", "says"),
    [
        ({"limit": "x"}, 400, 'parsing "x": invalid syntax'),
        ({"resourceVersion": "abc"}, 400, 'parsing "abc": invalid syntax'),
        ({"labelSelector": "a in"}, 400, "unable to parse requirement"),
        ({"watch": "true", "resourceVersion": "abc"}, 400, 'parsing "abc": invalid syntax'),
        ({"watch": "true", "timeoutSeconds": "x"}, 400, 'parsing "x": invalid syntax'),
    ],
)
def test_a_question_that_makes_no_sense(kube, query, code, says):
    found = told(kube.raw("GET", PODS, **query))
    assert found[0] == code and says in found[2]


def test_fields_that_kubernetes_does_not_know(kube):
    body = {**settings("odd"), "foo": 1}
    kube.create(settings("odd"))
    ignored = kube.raw("PUT", f"{MAPS}/odd", body, fieldValidation="Ignore")
    assert ignored.ok and "foo" not in ignored.json()
    code, reason, message = told(kube.raw("PUT", f"{MAPS}/odd", body, fieldValidation="Strict"))
    assert (code, reason) == (
        400,
        "BadRequest",
    ) and 'strict decoding error: unknown field "foo"' in message
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
                "reason": "FieldValueRequired",
                "message": "Required value",
                "field": "spec.template.spec.containers",
            },
            {
                "reason": "FieldValueInvalid",
                "message": "Invalid value: -1: must be greater than or equal to 0",
                "field": "spec.completions",
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
    assert put(resourceVersion="1")[:2] == (409, "Conflict")
    assert put(resourceVersion="abc")[:2] == (422, "Invalid")
    assert told(kube.raw("POST", MAPS, settings("new", resourceVersion="5"))) == (
        500,
        "",
        "resourceVersion should not be set on objects to be created",
    )
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


PLAIN = "404 page not found\n"
NO_ROUTE = "the server could not find the requested resource"


@pytest.mark.parametrize(
    ("path", "is_plain"),
    [
        ("/foo", True),
        ("/apis/foo", True),
        ("/apis/foo/v1", True),
        ("/apis/foo/v1/namespaces/default/bars", True),
        ("/openapi/v3/apis/foo/v1", True),
        ("/apis/storage.k8s.io/v1/storageclasses", True),
        ("/apis/batch/v2", False),
        ("/apis/batch/v1beta1/jobs", False),
        ("/api/v2", False),
        ("/api/v1/foos", False),
        ("/api/v1/pods/x", False),
        ("/api/v1/namespaces/default/foos/x", False),
        ("/api/v1/namespaces/default/nodes", False),
        ("/api/v1/namespaces/default/pods/x/foo", False),
    ],
)
def test_what_is_not_served_is_plain_text_outside_of_the_groups_that_are(kube, path, is_plain):
    found = kube.raw("GET", path)
    if not is_plain:
        assert told(found) == (404, "NotFound", NO_ROUTE)
        return
    assert (found.status_code, found.text) == (404, PLAIN)
    assert found.headers["Content-Type"] == "text/plain; charset=utf-8"


@pytest.fixture(scope="module")
def pod(kube):
    spec = {"containers": [{"name": "main", "image": "debian:12", "command": ["sleep", "99"]}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "subs"}, "spec": spec}
    kube.create(body)
    yield f"{PODS}/subs"
    kube.raw("DELETE", f"{PODS}/subs", gracePeriodSeconds="0")


def test_subresources_take_their_own_methods_alone(kube, pod):
    for sub, methods in {
        "status": ("DELETE", "POST"),
        "log": ("POST", "PUT", "DELETE"),
        "exec": ("PUT", "DELETE"),
        "eviction": ("GET", "PUT", "DELETE"),
    }.items():
        for method in methods:
            found = kube.raw(method, f"{pod}/{sub}", {})
            assert told(found)[:2] == (405, "MethodNotAllowed"), (method, sub)
    assert "deletionTimestamp" not in kube.call("GET", pod)["metadata"]
    mismatch = "name in URL does not match name in Eviction object"
    assert told(kube.raw("POST", f"{pod}/eviction", {})) == (400, "BadRequest", mismatch)

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
        ({"resourceVersion": "99999999"}, 504, "Too large resource version: 99999999, current: "),
        ({"fieldSelector": "spec.foo=x"}, 400, "field label not supported: spec.foo"),
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


BAD = 'PodLogOptions "subs" is invalid: '


@pytest.mark.parametrize(
    ("query", "code", "says"),
    [
        (
            {"tailLines": "-1"},
            422,
            "tailLines: Invalid value: -1: must be greater than or equal to 0",
        ),
        ({"limitBytes": "0"}, 422, "limitBytes: Invalid value: 0: must be greater than 0"),
        ({"sinceSeconds": "0"}, 422, "sinceSeconds: Invalid value: 0: must be greater than 0"),
        (
            {"sinceSeconds": "1", "sinceTime": "2026-01-01T00:00:00Z"},
            422,
            "[]: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
        ),
        (
            {"sinceTime": "foo"},
            400,
            'parsing time "foo" as "2006-01-02T15:04:05Z07:00": cannot parse "foo" as "2006"',
        ),
    ],
)
def test_what_may_not_be_asked_of_a_log(kube, pod, query, code, says):
    found = kube.raw("GET", f"{pod}/log", **query)
    reason = {422: "Invalid", 400: "BadRequest"}[code]
    assert told(found) == (code, reason, BAD + says if code == 422 else says)


META = "g=meta.k8s.io;v=v1"


def test_objects_come_in_the_form_that_is_asked_for(kube, there):
    def get(path: str, form: str, **query) -> dict:
        accept = {"Accept": f"application/json;as={form};{META}"}
        return kube.raw("GET", path, headers=accept, **query).json()

    one = get(f"{MAPS}/there", "PartialObjectMetadata")
    assert (one["kind"], one["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert one["metadata"]["name"] == "there" and "data" not in one
    several = get(MAPS, "PartialObjectMetadataList")
    assert (
        several["kind"] == "PartialObjectMetadataList" and "resourceVersion" in several["metadata"]
    )
    assert {each["kind"] for each in several["items"]} == {"PartialObjectMetadata"}
    for wanted, kind in {
        "None": None,
        "Metadata": "PartialObjectMetadata",
        "Object": "ConfigMap",
    }.items():
        (row,) = get(f"{MAPS}/there", "Table", includeObject=wanted)["rows"]
        assert (row["object"] or {}).get("kind") == kind
    unknown = kube.raw("GET", MAPS, headers={"Accept": f"application/json;as=Foo;{META}"})
    assert told(unknown)[:2] == (406, "NotAcceptable")
    either = {"Accept": f"application/json;as=Foo;{META},application/json"}
    assert kube.raw("GET", MAPS, headers=either).json()["kind"] == "ConfigMapList"


def test_all_groups_come_as_one_document(kube):
    accept = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}
    found = kube.raw("GET", "/apis", headers=accept)
    assert found.headers["Content-Type"] == accept["Accept"]
    assert found.json()["apiVersion"] == "apidiscovery.k8s.io/v2"
    groups = {each["metadata"]["name"]: each["versions"] for each in found.json()["items"]}
    (jobs,) = [row for row in groups["batch"][0]["resources"] if row["resource"] == "jobs"]
    assert jobs["responseKind"] == {"group": "batch", "version": "v1", "kind": "Job"}
    assert jobs["scope"] == "Namespaced" and jobs["singularResource"] == "job"
    assert [row["subresource"] for row in jobs["subresources"]] == ["status"]
    (core,) = kube.raw("GET", "/api", headers=accept).json()["items"]
    assert core["versions"][0]["version"] == "v1"
    (pods,) = [row for row in core["versions"][0]["resources"] if row["resource"] == "pods"]
    (eviction,) = [row for row in pods["subresources"] if row["subresource"] == "eviction"]
    assert eviction["responseKind"] == {"group": "policy", "version": "v1", "kind": "Eviction"}
    (where,) = kube.call("GET", "/api")["serverAddressByClientCIDRs"]
    assert where["serverAddress"] == kube.server.removeprefix("https://")

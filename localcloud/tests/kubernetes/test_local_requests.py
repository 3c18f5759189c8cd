"""What a real API server says of requests whose form is wrong, word for word: bodies that are no
JSON, patches that do not apply, selectors that cannot be read, preconditions that do not hold.

The words are those of its sources: apiserver/pkg/endpoints/handlers, apimachinery/pkg/labels and
fields, and Go's encoding/json.
"""

import pytest

MAPS = "/api/v1/namespaces/default/configmaps"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
MERGE, STRATEGIC, APPLY = (
    {"Content-Type": f"application/{name}"}
    for name in (
        "merge-patch+json",
        "strategic-merge-patch+json",
        "apply-patch+yaml",
    )
)


def settings(name: str, **fields) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **fields}


@pytest.fixture(scope="module")
def asked(kube):
    kube.create(settings("asked", data={"a": "b"}))
    yield f"{MAPS}/asked"
    kube.raw("DELETE", f"{MAPS}/asked")


UNKNOWN = (
    "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; "
)


@pytest.mark.parametrize("text", ["", "{", '{"a": }', '{"a": 1} x', "[1]"])
def test_what_is_no_json(kube, text):
    found = kube.raw("POST", MAPS, text.encode())
    assert found.status_code == 400 and found.json()["reason"] == "BadRequest"
    assert found.json()["message"].startswith(f"{UNKNOWN}json parse error: "), found.text
    assert "details" not in found.json()


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (
            MAPS,
            {"apiVersion": "v1", "kind": "Secret"},
            'Secret in version "v1" cannot be handled as a ConfigMap: no kind "Secret" is '
            'registered for version "v1" here',
        ),
        (
            JOBS,
            {"spec": {"template": {"spec": {"restartPolicy": 5}}}},
            'Job in version "v1" cannot be handled as a Job: json: cannot unmarshal number into '
            "Go struct field PodSpec.spec.template.spec.restartPolicy of type string",
        ),
        (
            JOBS,
            {"spec": {"template": {"spec": {"containers": [{"resources": {"limits": []}}]}}}},
            'Job in version "v1" cannot be handled as a Job: json: cannot unmarshal array into '
            "Go struct field ResourceRequirements.spec.template.spec.containers.resources.limits "
            "of type v1.ResourceList",
        ),
        (
            "/api/v1/namespaces/default/secrets",
            {"data": {"a": 1}},
            'Secret in version "v1" cannot be handled as a Secret: json: cannot unmarshal number '
            "into Go struct field Secret.data of type []uint8",
        ),
    ],
)
def test_what_is_no_object_of_its_kind(kube, path, body, message):
    found = kube.raw("POST", path, body)
    assert (found.status_code, found.json()["message"]) == (400, message)


def test_nulls_in_maps_are_empty_texts(kube):
    found = kube.raw("POST", MAPS, settings("nulls", data={"a": None, "c": "d"}), dryRun="All")
    assert found.status_code == 201 and found.json()["data"] == {"a": "", "c": "d"}


def test_what_is_wrong_comes_before_what_is_there(kube, asked):
    found = kube.raw("POST", MAPS, settings("asked", data={"/": "x"}))
    assert found.status_code == 422
    assert kube.raw("POST", MAPS, settings("asked")).json()["reason"] == "AlreadyExists"


@pytest.mark.parametrize(
    ("headers", "text", "query", "code", "message"),
    [
        (
            {"Content-Type": "application/json"},
            "{}",
            {},
            415,
            "the body of the request was in an unknown format - accepted media types include: "
            "application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml",
        ),
        (
            APPLY,
            "{}",
            {"fieldManager": "me"},
            400,
            "Incorrect version specified in apply patch. Specified patch version: , expected: v1",
        ),
        (
            MERGE,
            '{"metadata": {"name": null}}',
            {},
            400,
            "the name of the object (asked based on URL) was undeterminable: name must be provided",
        ),
    ],
)
def test_patches_that_cannot_be(kube, asked, headers, text, query, code, message):
    found = kube.raw("PATCH", asked, text, headers=headers, dryRun="All", **query)
    assert (found.status_code, found.json()["message"]) == (code, message)


def test_a_merge_patch_of_a_wrong_type_shows_the_whole_object(kube, asked):
    found = kube.raw("PATCH", asked, {"data": {"a": 1}}, headers=MERGE, dryRun="All")
    (cause,) = found.json()["details"]["causes"]
    assert (found.status_code, cause["field"], cause["reason"]) == (
        422,
        "patch",
        "FieldValueInvalid",
    )
    told = "json: cannot unmarshal number into Go struct field ConfigMap.data of type string"
    assert (
        cause["message"].endswith(f'}}": {told}') and '\\"data\\":{\\"a\\":1}' in cause["message"]
    )


def test_a_strategic_patch_keeps_and_drops(kube, asked):
    patch = lambda body: kube.raw("PATCH", asked, body, headers=STRATEGIC, dryRun="All").json()
    assert patch({"data": {"$retainKeys": ["c"], "c": "d"}})["data"] == {"c": "d"}
    assert patch({"data": {"$patch": "replace", "e": "f"}})["data"] == {"e": "f"}
    more = {"metadata": {"finalizers": ["a.io/x", "a.io/y"]}}
    assert kube.raw("PATCH", asked, more, headers=STRATEGIC).ok
    kept = patch({"metadata": {"finalizers": ["a.io/z"]}})["metadata"]["finalizers"]
    assert kept == ["a.io/x", "a.io/y", "a.io/z"]
    drop = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.io/x"]}}
    assert patch(drop)["metadata"]["finalizers"] == ["a.io/y"]
    assert kube.raw("PATCH", asked, {"metadata": {"finalizers": None}}, headers=MERGE).ok


@pytest.mark.parametrize(
    "selector", ["a in", "a in (b", "a=b=c", "a=b c", "a!", "!", "=a", "a,", "a>b", "-a", "a=-b"]
)
def test_selectors_of_labels(kube, selector):
    found = kube.raw("GET", MAPS, labelSelector=selector)
    assert found.status_code == 400 and "unable to parse requirement" in found.text


@pytest.mark.parametrize(
    ("path", "query", "message"),
    [
        (MAPS, {"limit": "x"}, 'strconv.ParseInt: parsing "x": invalid syntax'),
        (
            MAPS,
            {"resourceVersion": "x"},
            'resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax',
        ),
    ],
)
def test_questions_that_cannot_be_read(kube, path, query, message):
    found = kube.raw("GET", path, **query)
    assert (found.status_code, found.json()["message"]) == (400, message)


def test_a_deletion_whose_options_cannot_be_read(kube, asked):
    assert kube.raw("DELETE", asked, gracePeriodSeconds="x").status_code == 400
    found = kube.raw("DELETE", asked, {"dryRun": ["Foo"]})
    assert found.status_code == 422 and found.json()["details"]["kind"] == "DeleteOptions"
    found = kube.raw("DELETE", asked, {"dryRun": ["All"]})
    assert found.ok and [*found.json()["details"]] == ["name", "kind", "uid"]
    assert kube.raw("GET", asked).ok

"""Requests and answers against Google's discovery documents."""

import pytest

from localcloud import schema
from localcloud.errors import ApiError

COMPUTE, STORAGE = "compute.instances.insert", "storage.objects.insert"


def body_error(service, method, body):
    """Return the 400 for a body, None if it is accepted."""
    api = schema.load(service)
    try:
        schema.check_body(api, api.methods[method], body)
    except ApiError as error:
        assert error.status == 400
        return error
    return None


def params_error(method, query, path_values=None):
    api = schema.load(method.split(".")[0])
    with pytest.raises(ApiError) as caught:
        schema.check_params(api, api.methods[method], path_values or {}, query)
    assert caught.value.status == 400
    return caught.value


def machine(**fields):
    return {"name": "a-machine", "machineType": "zones/z/machineTypes/n1-standard-1", **fields}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (machine(nam="x"), "Unknown name \"nam\" at 'resource': Cannot find field."),
        (
            machine(scheduling={"preemptable": True}),
            "Unknown name \"preemptable\" at 'resource.scheduling'",
        ),
        (
            machine(scheduling={"provisioningModel": "SPOTTY"}),
            "resource.scheduling.provisioningModel",
        ),
        (machine(disks=[{}, {"boot": "yes"}]), "resource.disks[1].boot"),
        (machine(disks={"boot": True}), "expected a list"),
        (machine(labels={"a": 1}), "resource.labels.a"),
        (machine(disks=[{"initializeParams": {"diskSizeGb": "50GB"}}]), "TYPE_INT64"),
        (machine(disks=[{"initializeParams": {"diskSizeGb": str(2**63)}}]), "TYPE_INT64"),
        (machine(guestAccelerators=[{"acceleratorCount": 1.5}]), "acceleratorCount"),
        (machine(guestAccelerators=[{"acceleratorCount": True}]), "acceleratorCount"),
        (machine(fingerprint="not base64!"), "TYPE_BYTES"),
        (machine(status="RUNNING"), "'resource.status': \"RUNNING\". The field is output only."),
        (machine(disks=[{"index": 1}]), "'resource.disks[0].index': 1. The field is output only."),
        ({"machineType": "x"}, "Required field 'resource.name' not specified"),
        (machine(name="good Bad"), "Must be a match of regex"),  # all of it
        ([], "Expected an object"),
    ],
)
def test_a_wrong_body_is_refused_by_name(body, words):
    error = body_error("compute", COMPUTE, body)
    assert error is not None
    assert words in error.message
    assert error.body()["error"]["status"] == "INVALID_ARGUMENT"


def test_required_depends_on_the_method():
    assert body_error("storage", "storage.buckets.insert", {}).reason == "required"
    assert body_error("storage", "storage.buckets.patch", {}) is None


def test_numbers_may_be_strings_in_requests_but_not_in_answers():
    api = schema.load("storage")
    method = api.methods[STORAGE]
    schema.check_body(api, method, {"size": 5, "componentCount": "2"})
    schema.check_answer(api, method, {"size": "5", "componentCount": 2})
    for wrong in ({"size": 5}, {"componentCount": "2"}, {"name": None}, {"contnet": "x"}):
        with pytest.raises(ApiError):
            schema.check_answer(api, method, wrong)


def test_parameters_are_converted():
    api = schema.load("storage")
    values = {"bucket": "b"}
    query = [
        ("maxResults", "7"),
        ("versions", "True"),
        ("prefix", ""),
        ("fields", "items"),
        ("$.xgafv", "2"),
    ]
    params = schema.check_params(api, api.methods["storage.objects.list"], values, query)
    assert params == {
        "bucket": "b",
        "maxResults": 7,
        "versions": True,
        "prefix": "",
        "fields": "items",
        "$.xgafv": "2",
    }
    permissions = [("permissions", "a"), ("permissions", "b")]
    method = api.methods["storage.buckets.testIamPermissions"]
    assert schema.check_params(api, method, values, permissions)["permissions"] == ["a", "b"]


@pytest.mark.parametrize(
    ("method", "query", "reason"),
    [
        ("compute.instances.list", [("filtr", "a")], "badRequest"),
        ("storage.objects.list", [("maxResults", "ten")], "invalidParameter"),
        ("storage.objects.list", [("maxResults", "-1")], "invalidParameter"),
        ("storage.objects.list", [("versions", "maybe")], "invalidParameter"),
        ("storage.objects.list", [("projection", "ful")], "invalidParameter"),
        ("storage.objects.list", [("prefix", "a"), ("prefix", "b")], "invalidParameter"),
        ("storage.objects.list", [("prefix", "\udcff")], "invalidParameter"),
        ("storage.objects.get", [("ifGenerationMatch", "1e3")], "invalidParameter"),
        ("storage.buckets.list", [], "required"),
    ],
)
def test_wrong_parameters_are_refused(method, query, reason):
    assert params_error(method, query).reason == reason


def test_path_patterns_are_checked_except_for_the_wildcard():
    method = "compute.instances.list"
    error = params_error(method, [], {"project": "p", "zone": "Us_Central"})
    assert "Invalid value for field 'zone'" in error.message
    api = schema.load("compute")
    assert (
        schema.check_params(api, api.methods[method], {"project": "p", "zone": "-"}, [])["zone"]
        == "-"
    )


@pytest.mark.parametrize("service", ["compute", "storage"])
def test_every_method_is_found_by_its_own_path(service):
    api = schema.load(service)
    assert len(api.methods) > 80
    for method in api.methods.values():
        path = "/".join(
            "x%2Fy" if segment.startswith("{") else segment for segment in method.segments
        )
        found, values = schema.match(api, method.verb, path)
        assert found.id == method.id
        assert set(values.values()) <= {"x/y"}
        assert len(values) == path.count("x%2Fy")


SECRET = "projects/p/secrets/s"


@pytest.mark.parametrize(
    ("verb", "path", "method", "values"),
    [
        ("GET", SECRET, "secrets.get", {"name": SECRET}),
        ("POST", f"{SECRET}:addVersion", "secrets.addVersion", {"parent": SECRET}),
        ("GET", f"{SECRET}:getIamPolicy", "secrets.getIamPolicy", {"resource": SECRET}),
        (
            "GET",
            f"{SECRET}/versions/1:access",
            "secrets.versions.access",
            {"name": f"{SECRET}/versions/1"},
        ),
        ("POST", "projects/p/secrets", "secrets.create", {"parent": "projects/p"}),
    ],
)
def test_names_of_many_segments_are_one_parameter(verb, path, method, values):
    found = schema.match(schema.load("secretmanager"), verb, path)
    assert (found[0].id, found[1]) == (f"secretmanager.projects.{method}", values)


def test_a_name_has_so_many_segments_and_verbs_that_there_are():
    api = schema.load("secretmanager")
    assert schema.match(api, "POST", f"{SECRET}:fly") is None
    project = schema.match(schema.load("cloudresourcemanager"), "POST", "projects/p:getIamPolicy")
    assert project[0].id == "cloudresourcemanager.projects.getIamPolicy"
    assert project[1] == {"resource": "p"}
    # An encoded slash makes one segment more than the pattern allows.
    method, values = schema.match(api, "GET", "projects/p/secrets/a%2Fb")
    with pytest.raises(ApiError):
        schema.check_params(api, method, values, [])


def test_fields_select_parts_of_an_answer():
    answer = {
        "kind": "k",
        "items": [{"name": "a", "size": "1", "metadata": {"x": "1", "y": "2"}}, {"name": "b"}],
        "nextPageToken": "t",
    }
    select = lambda mask: schema.select(answer, schema.parse_fields(mask))
    assert select("items(name,size),nextPageToken") == {
        "items": [{"name": "a", "size": "1"}, {"name": "b"}],
        "nextPageToken": "t",
    }
    assert select("items/metadata/x") == {"items": [{"metadata": {"x": "1"}}, {}]}
    assert select("items(*)") == {"items": answer["items"]}
    assert select("items/*/y") == {"items": [{"metadata": {"y": "2"}}, {}]}
    assert select("kind, nothing") == {"kind": "k"}
    api = schema.load("storage")
    objects = api.methods["storage.objects.list"].response
    schema.check_fields(api, objects, schema.parse_fields("kind, items(name)"))
    for broken in ("items(", "items(name", "kind)", "kind items", "kind;items"):
        with pytest.raises(ApiError, match="Invalid field selection"):
            schema.check_fields(api, objects, schema.parse_fields(broken))


def test_a_duration_is_seconds():
    period = {"alignmentPeriod": "a minute"}
    query = {"timeSeriesFilter": {"filter": "x", "aggregation": period}}
    widget = {"xyChart": {"dataSets": [{"timeSeriesQuery": query}]}}
    body = {"displayName": "d", "gridLayout": {"widgets": [widget]}}
    error = body_error("monitoring", "monitoring.projects.dashboards.create", body)
    assert 'protobuf.Duration), "a minute"' in error.message

# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""IAM conditions: which expressions are taken, and what they let an account do."""

import pytest
from local_cloud import Server, http_session, server  # noqa: F401 (fixtures)
from test_local_iam import RESOURCES, Api

from localcloud.errors import ApiError
from localcloud.identity.conditions import Asked, check, holds

OBJECT = Asked("projects/_/buckets/b/objects/a/b", "storage.googleapis.com/Object", "storage")


def below(bucket: str, prefix: str) -> dict:
    name = f"projects/_/buckets/{bucket}/objects/{prefix}"
    return {"title": prefix, "expression": f'resource.name.startsWith("{name}")'}


@pytest.fixture
def api(server):
    return Api(server.url, server.folder)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ('resource.name.startsWith("projects/_/buckets/b/objects/a/")', True),
        ('resource.name.startsWith("projects/_/buckets/b/objects/b/")', False),
        ("resource.name.endsWith('/b')", True),
        ('resource.type == "storage.googleapis.com/Object" && resource.name != "x"', True),
        ('resource.type != "storage.googleapis.com/Object" || resource.service == "storage"', True),
        ('!(resource.service == "storage") || resource.name == "x"', False),
        ('resource.name.extract("/objects/{name}").startsWith("a/")', True),
        ('resource.name.extract("/instances/{name}") == ""', True),
        ('resource.name.extract("/buckets/{name}/") == "b"', True),
        ('request.time < timestamp("2999-01-01T00:00:00Z")', True),
        ('request.time > timestamp("2999-01-01T00:00:00Z")', False),
    ],
)
def test_expressions_are_evaluated(expression, value):
    assert holds(check({"title": "t", "expression": expression}), OBJECT) is value


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ({"expression": "true"}, 400),
        ({"title": "t"}, 400),
        ({"title": "t", "expression": 'resource.name.contains("x")'}, 400),
        ({"title": "t", "expression": 'resource.nam == "x"'}, 400),
        ({"title": "t", "expression": 'resource.name == "x'}, 400),
        ({"title": "t", "expression": 'resource.name == "x" &&'}, 400),
        ({"title": "t", "expression": " || ".join(['resource.name == "x"'] * 14)}, 400),
        ({"title": "t", "expression": 'resource.matchTag("a", "b")'}, 400),
        ({"title": "t", "expression": 'resource.name.matches("x")'}, 501),
    ],
)
def test_expressions_that_iam_does_not_take_are_refused(condition, status):
    with pytest.raises(ApiError) as refused:
        check(condition)
    assert refused.value.status == status


def bind(api: Api, bucket: str, email: str, role: str, condition: dict | None, **changes) -> dict:
    path = f"/storage/v1/b/{bucket}/iam"
    policy = api.ok("GET", path, optionsRequestedPolicyVersion=3)
    binding = {"role": role, "members": [f"serviceAccount:{email}"]}
    policy["bindings"].append({**binding, **({"condition": condition} if condition else {})})
    return api("PUT", path, {**policy, "version": 3, **changes})


def test_rights_on_objects_end_at_their_prefix(api):
    bucket = api.bucket()
    email, worker = api.account()
    role = api.role("storage.objects.get", "storage.objects.create", "storage.objects.delete")
    for name in ("results/x", "results2/x", "code/x"):
        assert api.upload(bucket, name).ok
    assert bind(api, bucket, email, role, below(bucket, "results/")).ok
    objects = f"/storage/v1/b/{bucket}/o"

    assert worker("GET", f"{objects}/results%2Fx", alt="media").ok
    assert worker.upload(bucket, "results/new").ok and worker.upload(bucket, "results/x").ok
    assert worker("DELETE", f"{objects}/results%2Fnew").ok
    for name in ("results2%2Fx", "code%2Fx"):
        assert worker("GET", f"{objects}/{name}").status_code == 403
        assert worker("DELETE", f"{objects}/{name}").status_code == 403
    assert worker.upload(bucket, "code/x").status_code == 403
    assert worker("GET", objects).status_code == 403, "a list is asked for on the bucket"
    composed = {"sourceObjects": [{"name": "code/x"}]}
    assert worker("POST", f"{objects}/results%2Fall/compose", composed).status_code == 403
    assert (
        worker("POST", f"{objects}/code%2Fx/rewriteTo/b/{bucket}/o/results%2Fy").status_code == 403
    )
    assert (
        worker("POST", f"{objects}/results%2Fx/rewriteTo/b/{bucket}/o/code%2Fx").status_code == 403
    )

    assert bind(api, bucket, email, "roles/storage.legacyBucketReader", None).ok
    assert len(worker.ok("GET", objects)["items"]) == 3


def test_policies_with_conditions_are_of_version_3(api):
    bucket = api.bucket()
    email, _ = api.account()
    wanted = below(bucket, "results/")
    refused = bind(api, bucket, email, "roles/storage.objectViewer", wanted, version=1)
    assert refused.status_code == 400 and "version 3" in refused.text
    assert bind(api, bucket, email, "roles/storage.objectViewer", wanted).ok
    path = f"/storage/v1/b/{bucket}/iam"

    full = api.ok("GET", path, optionsRequestedPolicyVersion=3)
    assert full["version"] == 3
    assert [each["condition"] for each in full["bindings"] if "condition" in each] == [wanted]
    seen = api.ok("GET", path)
    assert seen["version"] == 1 and not any("condition" in each for each in seen["bindings"])
    assert any("_withcond_" in each["role"] for each in seen["bindings"])
    assert api("PUT", path, seen).status_code == 400, "such a role there is not"

    plain = [each for each in full["bindings"] if "condition" not in each]
    kept = api.ok("PUT", path, {"bindings": plain, "version": 1})
    assert kept["version"] == 1, "without an etag a write of version 1 drops all conditions"


def test_an_unconditional_binding_of_the_same_role_wins(api):
    bucket = api.bucket()
    email, worker = api.account()
    assert api.upload(bucket, "code/x").ok
    role = "roles/storage.objectViewer"
    assert bind(api, bucket, email, role, below(bucket, "results/")).ok
    path = f"/storage/v1/b/{bucket}/o/code%2Fx"
    assert worker("GET", path).status_code == 403
    assert bind(api, bucket, email, role, None).ok
    assert worker("GET", path).ok


def test_what_may_have_no_condition(api):
    policy = api.ok("POST", f"{RESOURCES}:getIamPolicy", {"options": {"requestedPolicyVersion": 3}})
    email, _ = api.account()
    condition = {"title": "t", "expression": 'resource.name == "x"'}
    binding = {"members": [f"serviceAccount:{email}"], "condition": condition}
    policy["bindings"].append({"role": "roles/editor", **binding})
    answer = api("POST", f"{RESOURCES}:setIamPolicy", {"policy": {**policy, "version": 3}})
    assert answer.status_code == 400 and "primitive" in answer.text


def test_deletion_of_instances_ends_at_their_names(cloud):
    cloud.call("POST", "/_berg/settings", {"grant_delay": 0, "account_delay": 0})
    email = "deleter@berg-local.iam.gserviceaccount.com"
    cloud.call("POST", "/iam/v1/projects/berg-local/serviceAccounts", {"accountId": "deleter"})
    rights = ["compute.instances.delete", "compute.instances.list"]
    body = {"roleId": "deleter", "role": {"title": "t", "includedPermissions": rights}}
    role = cloud.call("POST", "/iam/v1/projects/berg-local/roles", body)["name"]
    project = "/cloudresourcemanager/v1/projects/berg-local"
    options = {"options": {"requestedPolicyVersion": 3}}
    before = cloud.call("POST", f"{project}:getIamPolicy", options)
    condition = {
        "title": "berg's",
        "expression": 'resource.type == "compute.googleapis.com/Instance" && '
        'resource.name.extract("/instances/{name}").startsWith("berg-")',
    }
    member = [f"serviceAccount:{email}"]
    bindings = [
        *before["bindings"],
        {"role": role, "members": member, "condition": condition},
    ]
    policy = {"etag": before["etag"], "version": 3, "bindings": bindings}
    cloud.call("POST", f"{project}:setIamPolicy", {"policy": policy})

    worker = Api(cloud.url, cloud.folder, email)
    zone = "/compute/v1/projects/berg-local/zones/us-central1-a/instances"
    assert worker("DELETE", f"{zone}/other").status_code == 403
    assert worker("DELETE", f"{zone}/berg-1").status_code == 404
    assert worker("GET", zone).status_code == 403, "a list is asked for on the project"
    policy = {"version": 3, "bindings": before["bindings"]}
    cloud.call("POST", f"{project}:setIamPolicy", {"policy": policy})

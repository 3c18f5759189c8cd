# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""The embedded IAM: accounts, roles, policies and APIs by plain HTTP, and what accounts may do
because of them.
"""

import itertools

import pytest
import requests
from local_cloud import PROJECT, Server, http_session, server  # noqa: F401 (fixtures)

from localcloud.identity.tokens import LAPTOP, Tokens

SECRETS = f"/secretmanager/v1/projects/{PROJECT}/secrets"
ACCOUNTS = f"/iam/v1/projects/{PROJECT}/serviceAccounts"
ROLES = f"/iam/v1/projects/{PROJECT}/roles"
RESOURCES = f"/cloudresourcemanager/v1/projects/{PROJECT}"
SERVICES = f"/serviceusage/v1/projects/{PROJECT}/services"
CONCURRENT = "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff."
numbers = itertools.count()


class Api:
    """Requests with the token of one principal."""

    def __init__(self, url, folder, email="laptop@berg.local"):
        self.url, self.folder = url, folder
        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Bearer {Tokens(folder).mint(email)}"

    def __call__(self, verb, path, body=None, **params):
        return self.session.request(verb, self.url + path, json=body, params=params)

    def ok(self, verb, path, body=None, **params):
        answer = self(verb, path, body, **params)
        assert answer.ok, answer.text
        return answer.json() if answer.content else None

    def as_account(self, email):
        return Api(self.url, self.folder, email)

    def account(self):
        """A new service account, and requests as that account."""
        made = self.ok("POST", ACCOUNTS, {"accountId": f"worker-{next(numbers)}"})
        return made["email"], self.as_account(made["email"])

    def role(self, *permissions):
        body = {
            "roleId": f"role_{next(numbers)}",
            "role": {"title": "t", "includedPermissions": permissions},
        }
        return self.ok("POST", ROLES, body)["name"]

    def bind(self, member, role, base=RESOURCES):
        policy = self.ok("GET" if "/secrets/" in base else "POST", f"{base}:getIamPolicy")
        policy.setdefault("bindings", []).append({"role": role, "members": [member]})
        return self.ok("POST", f"{base}:setIamPolicy", {"policy": policy})

    def bind_bucket(self, member, role, bucket):
        policy = self.ok("GET", f"/storage/v1/b/{bucket}/iam")
        policy["bindings"].append({"role": role, "members": [member]})
        return self.ok("PUT", f"/storage/v1/b/{bucket}/iam", policy)

    def bucket(self):
        name = f"iam-{next(numbers)}"
        uniform = {"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}
        return self.ok("POST", "/storage/v1/b", {"name": name, **uniform}, project=PROJECT)["name"]

    def upload(self, bucket, name, data=b"x", **params):
        path = f"{self.url}/upload/storage/v1/b/{bucket}/o"
        return self.session.post(
            path, params={"uploadType": "media", "name": name, **params}, data=data
        )


@pytest.fixture
def api(server):
    return Api(server.url, server.folder)


def refusal(answer):
    found = answer.json()["error"]
    assert found["code"] == answer.status_code
    return answer.status_code, found.get("status"), found["message"]


# --- accounts and roles


def test_service_accounts(api):
    fields = {"displayName": "Berg's workers", "description": "machines act as this"}
    made = api.ok("POST", ACCOUNTS, {"accountId": "berg-worker", "serviceAccount": fields})
    email = f"berg-worker@{PROJECT}.iam.gserviceaccount.com"
    assert (
        made["email"] == email
        and made["displayName"] == "Berg's workers"
        and made["projectId"] == PROJECT
    )
    assert (
        made["name"] == f"projects/{PROJECT}/serviceAccounts/{email}"
        and len(made["uniqueId"]) == 21
    )
    for name in (email, made["uniqueId"]):
        assert api.ok("GET", f"{ACCOUNTS}/{name}") == made
        assert api.ok("GET", f"/iam/v1/projects/-/serviceAccounts/{name}") == made
    again = refusal(api("POST", ACCOUNTS, {"accountId": "berg-worker"}))
    assert again == (
        409,
        "ALREADY_EXISTS",
        f"Service account berg-worker already exists within project projects/{PROJECT}.",
    )
    assert refusal(api("POST", ACCOUNTS, {"accountId": "short"}))[1] == "INVALID_ARGUMENT"
    assert (
        refusal(api("POST", ACCOUNTS, {"accountId": "berg-worker2", "displayName": "x"}))[0] == 400
    )
    listed = api.ok("GET", ACCOUNTS, pageSize=100)["accounts"]
    assert listed[0]["email"].endswith("-compute@developer.gserviceaccount.com") and made in listed
    assert api.ok("DELETE", f"{ACCOUNTS}/{email}") == {}
    assert refusal(api("GET", f"{ACCOUNTS}/{email}"))[:2] == (404, "NOT_FOUND")
    assert refusal(api("GET", "/iam/v1/projects/elsewhere/serviceAccounts"))[:2] == (
        403,
        "PERMISSION_DENIED",
    )


def test_an_account_has_a_policy(api):
    email, _ = api.account()
    base = f"{ACCOUNTS}/{email}"
    assert "bindings" not in api.ok("POST", f"{base}:getIamPolicy", {})
    policy = api.bind("user:laptop@berg.local", "roles/iam.serviceAccountUser", base)
    assert policy["bindings"] == [
        {"role": "roles/iam.serviceAccountUser", "members": ["user:laptop@berg.local"]}
    ]
    asked = {"permissions": ["iam.serviceAccounts.actAs"]}
    assert api.ok("POST", f"{base}:testIamPermissions", asked) == asked


def test_custom_roles(api):
    role = {"title": "Berg", "includedPermissions": ["compute.instances.delete"], "stage": "GA"}
    made = api.ok("POST", ROLES, {"roleId": "berg_worker", "role": role})
    assert made["name"] == f"projects/{PROJECT}/roles/berg_worker" and made["includedPermissions"]
    assert api.ok("GET", f"{ROLES}/berg_worker") == made
    wanted = [
        "compute.zoneOperations.get",
        "compute.instances.delete",
        "compute.instanceGroupManagers.delete",
    ]
    body = {"includedPermissions": wanted, "title": "Other", "etag": made["etag"]}
    changed = api.ok("PATCH", f"{ROLES}/berg_worker", body, updateMask="includedPermissions")
    assert changed["title"] == "Berg" and changed["includedPermissions"] == sorted(wanted)
    stale = refusal(api("PATCH", f"{ROLES}/berg_worker", body, updateMask="included_permissions"))
    assert stale[:2] == (409, "ABORTED")
    again = refusal(api("POST", ROLES, {"roleId": "berg_worker", "role": role}))
    assert again[2] == f"A role named berg_worker in projects/{PROJECT} already exists."
    assert refusal(api("POST", ROLES, {"roleId": "berg-worker", "role": role}))[2].startswith(
        'The role_id "berg-worker"'
    )
    assert api.ok("DELETE", f"{ROLES}/berg_worker")["deleted"]
    missing = refusal(api("GET", f"{ROLES}/berg_workers"))
    assert missing == (404, "NOT_FOUND", f"The role named {made['name']}s was not found.")


def test_a_deleted_role_keeps_its_name_for_itself(api):
    role = {"title": "Berg", "includedPermissions": ["compute.instances.delete"]}
    api.ok("POST", ROLES, {"roleId": "for_a_week", "role": role})
    api.ok("DELETE", f"{ROLES}/for_a_week")
    assert api.ok("GET", f"{ROLES}/for_a_week")["deleted"]
    again = refusal(api("POST", ROLES, {"roleId": "for_a_week", "role": role}))
    assert again[:2] == (400, "FAILED_PRECONDITION") and "in a deleted state" in again[2]
    assert refusal(api("PATCH", f"{ROLES}/for_a_week", {"title": "x"}))[0] == 400


def test_lengths_of_roles_and_what_can_be_tested(api):
    role = {"title": "é" * 50, "includedPermissions": ["compute.instances.delete"]}
    api.ok("POST", ROLES, {"roleId": "long_title", "role": role})
    role["title"] += "x"
    assert refusal(api("POST", ROLES, {"roleId": "longer_title", "role": role}))[0] == 400
    path = f"/cloudresourcemanager/v1/projects/{PROJECT}:testIamPermissions"
    for wrong in ("compute.*", "*", "compute.instances.erase", "instances"):
        body = {"permissions": ["compute.instances.get", wrong]}
        assert refusal(api("POST", path, body))[0] == 400, wrong
    held = api.ok("POST", path, {"permissions": ["compute.instances.get"]})
    assert held == {"permissions": ["compute.instances.get"]}


@pytest.mark.parametrize(
    ("permission", "valid"),
    [
        ("compute.instances.delete", True),
        ("compute.subnetworks.useExternalIp", True),
        ("storage.objects.create", True),
        ("storage.multipartUploads.create", True),
        ("secretmanager.versions.access", True),
        ("iam.serviceAccounts.actAs", True),
        ("serviceusage.services.get", True),
        ("logging.logEntries.create", True),
        ("pubsub.topics.publish", True),
        ("cloudsql.instances.get", True),
        ("nothing.jobs.create", False),
        ("resourcemanager.projects.list", False),
        ("compute.instances.erase", False),
        ("compute.instances.insert", False),
        ("compute.instance.delete", False),
        ("compute.regionInstanceGroupManagers.get", False),
        ("compute.instances", False),
    ],
)
def test_permissions_of_a_role_must_be_there(api, permission, valid):
    answer = api(
        "POST",
        ROLES,
        {"roleId": f"check_{next(numbers)}", "role": {"includedPermissions": [permission]}},
    )
    assert answer.ok == valid
    assert valid or refusal(answer)[2] == f"Permission {permission} is not valid."


# --- policies


def test_a_project_and_its_policy(api):
    project = api.ok("GET", RESOURCES)
    assert project["projectId"] == PROJECT and project["projectNumber"].isdigit()
    assert project["lifecycleState"] == "ACTIVE"
    assert refusal(api("GET", "/cloudresourcemanager/v1/projects/elsewhere")) == (
        403,
        "PERMISSION_DENIED",
        "The caller does not have permission",
    )
    policy = api.ok("POST", f"{RESOURCES}:getIamPolicy", {"options": {"requestedPolicyVersion": 3}})
    assert {"role": "roles/owner", "members": ["user:laptop@berg.local"]} in policy["bindings"]
    email, _ = api.account()
    api.bind(f"serviceAccount:{email}", "roles/viewer")
    # The policy that was read first is now out of date.
    stale = refusal(api("POST", f"{RESOURCES}:setIamPolicy", {"policy": policy}))
    assert stale == (409, "ABORTED", CONCURRENT)
    # Etags are bytes: both alphabets of base64 are good, and clients do change from one to the
    # other.
    for _ in range(20):
        current = api.bind(f"serviceAccount:{email}", api.role("compute.instances.get"))
        other = {**current, "etag": current["etag"].replace("+", "-").replace("/", "_")}
        api.ok("POST", f"{RESOURCES}:setIamPolicy", {"policy": other})
    del policy["etag"]
    assert (
        api.ok("POST", f"{RESOURCES}:setIamPolicy", {"policy": policy})["bindings"]
        == policy["bindings"]
    )
    asked = {"permissions": ["compute.instances.create", "storage.buckets.create"]}
    assert api.ok("POST", f"{RESOURCES}:testIamPermissions", asked) == asked


@pytest.mark.parametrize(
    ("binding", "status", "message"),
    [
        (
            {
                "role": "roles/viewer",
                "members": [f"serviceAccount:nobody@{PROJECT}.iam.gserviceaccount.com"],
            },
            400,
            f"Service account nobody@{PROJECT}.iam.gserviceaccount.com does not exist.",
        ),
        (
            {"role": "roles/viewer", "members": ["user:who@example.com"]},
            400,
            "User who@example.com does not exist.",
        ),
        ({"role": "roles/viewer", "members": ["who@example.com"]}, 400, "is of an unknown type"),
        (
            {"role": "roles/viewer", "members": ["allUsers"]},
            400,
            "allUsers cannot be in policies of projects",
        ),
        ({"role": "viewer", "members": []}, 400, "Role viewer is not supported for this resource."),
        (
            {"role": f"projects/{PROJECT}/roles/none", "members": []},
            400,
            f"Role (projects/{PROJECT}/roles/none) does not exist in the resource's hierarchy.",
        ),
        (
            {"role": "roles/storage.objectAdmn", "members": []},
            400,
            "not supported for this resource",
        ),
        ({"role": "roles/compute.browser", "members": []}, 400, "not supported for this resource"),
        ({"role": "roles/logging.nonsense", "members": []}, 400, "not supported for this resource"),
        ({"role": "roles/nonsense.viewer", "members": []}, 400, "not supported for this resource"),
        ({"role": "roles/compute.networkAdmin", "members": []}, 501, "does not know the role"),
        (
            {"role": "roles/storage.legacyBucketReader", "members": []},
            400,
            "not supported for this resource",
        ),
        (
            {"role": "roles/viewer", "members": [], "condition": {"expression": "true"}},
            400,
            "must specify version 3",
        ),
    ],
)
def test_wrong_bindings_are_refused(api, binding, status, message):
    answer = api("POST", f"{RESOURCES}:setIamPolicy", {"policy": {"bindings": [binding]}})
    assert answer.status_code == status and message in answer.json()["error"]["message"]
    assert "roles/owner" in str(api.ok("POST", f"{RESOURCES}:getIamPolicy"))


def test_a_deleted_account_leaves_no_rights_to_its_namesake(api):
    email, worker = api.account()
    bucket, member = api.bucket(), f"serviceAccount:{email}"
    api.bind(member, "roles/viewer")
    api.bind_bucket(member, "roles/storage.objectUser", bucket)
    number = api.ok("GET", f"{ACCOUNTS}/{email}")["uniqueId"]
    api.ok("DELETE", f"{ACCOUNTS}/{email}")
    assert worker.upload(bucket, "x").status_code == 401
    for policy in (
        api.ok("POST", f"{RESOURCES}:getIamPolicy"),
        api.ok("GET", f"/storage/v1/b/{bucket}/iam"),
    ):
        members = [name for binding in policy["bindings"] for name in binding["members"]]
        assert member not in members and f"deleted:{member}?uid={number}" in members
    api.ok("POST", ACCOUNTS, {"accountId": email.partition("@")[0]})
    assert worker.upload(bucket, "x").status_code == 403
    # What was read can be written back.
    policy = api.ok("POST", f"{RESOURCES}:getIamPolicy")
    api.ok("POST", f"{RESOURCES}:setIamPolicy", {"policy": policy})


# --- what accounts may do


def test_objects_need_permissions(api):
    email, worker = api.account()
    bucket = api.bucket()
    api.upload(bucket, "a")
    base = f"/storage/v1/b/{bucket}/o"
    status, _, message = refusal(worker("GET", f"{base}/a"))
    assert (status, message) == (
        403,
        f"{email} does not have storage.objects.get access to the Google Cloud Storage object. "
        "Permission 'storage.objects.get' denied on resource (or it may not exist).",
    )
    assert (
        "storage.objects.list access to the Google Cloud Storage bucket."
        in refusal(worker("GET", base))[2]
    )
    assert worker("GET", f"{base}/a", alt="media").status_code == 403
    assert worker.upload(bucket, "b").status_code == 403
    create = api.role("storage.objects.create")
    api.bind_bucket(f"serviceAccount:{email}", create, bucket)
    assert worker.upload(bucket, "b").status_code == 200
    # To overwrite is to delete as well; the name may stand in the body.
    assert "storage.objects.delete" in refusal(worker.upload(bucket, "b"))[2]
    resumable = worker(
        "POST", f"/upload/storage/v1/b/{bucket}/o", {"name": "b"}, uploadType="resumable"
    )
    assert "storage.objects.delete" in refusal(resumable)[2]
    compose = {"sourceObjects": [{"name": "a"}], "destination": {"contentType": "text/plain"}}
    assert "storage.objects.get" in refusal(worker("POST", f"{base}/c/compose", compose))[2]
    api.bind_bucket(f"serviceAccount:{email}", "roles/storage.objectViewer", bucket)
    assert worker("POST", f"{base}/c/compose", compose).status_code == 200
    assert "storage.objects.delete" in refusal(worker("POST", f"{base}/c/compose", compose))[2]
    assert worker("POST", f"{base}/a/rewriteTo/b/{bucket}/o/d").status_code == 200
    assert worker("PATCH", f"{base}/a", {"metadata": {}}).status_code == 403
    assert worker("DELETE", f"{base}/a").status_code == 403
    api.bind_bucket(f"serviceAccount:{email}", "roles/storage.objectUser", bucket)
    assert worker.upload(bucket, "b").status_code == 200
    assert [
        worker(verb, f"{base}/a", body).status_code
        for verb, body in (("PATCH", {}), ("DELETE", None))
    ] == [
        200,
        204,
    ]
    assert (
        "storage.buckets.get access to the Google Cloud Storage bucket"
        in refusal(worker("GET", base[:-2]))[2]
    )
    asked = {"permissions": ["storage.objects.get", "storage.buckets.get"]}
    assert (
        worker.ok("GET", f"/storage/v1/b/{bucket}/iam/testPermissions", **asked)["permissions"]
        == asked["permissions"][:1]
    )
    assert worker("GET", "/storage/v1/b/no-such-bucket/o").status_code == 404


def test_a_session_once_begun_needs_no_more(api):
    email, worker = api.account()
    bucket = api.bucket()
    api.bind_bucket(f"serviceAccount:{email}", "roles/storage.objectCreator", bucket)
    path = f"/upload/storage/v1/b/{bucket}/o"
    session = worker("POST", path, uploadType="resumable", name="big").headers["Location"]
    assert worker.session.put(session, data=b"content").status_code == 200


def test_basic_roles_reach_objects_through_the_policy_of_the_bucket(api):
    email, worker = api.account()
    bucket = api.bucket()
    api.bind(f"serviceAccount:{email}", "roles/editor")
    assert worker.upload(bucket, "x").status_code == 200
    assert worker("GET", f"/storage/v1/b/{bucket}/o/x").status_code == 200
    policy = {"bindings": [{"role": "roles/storage.admin", "members": ["user:laptop@berg.local"]}]}
    api.ok("PUT", f"/storage/v1/b/{bucket}/iam", policy)
    assert worker("GET", f"/storage/v1/b/{bucket}/o/x").status_code == 403
    assert worker("GET", f"/storage/v1/b?project={PROJECT}").status_code == 200


def test_secrets_need_permissions(api):
    email, worker = api.account()
    for name in ("mine", "theirs"):
        api.ok("POST", SECRETS, {"replication": {"automatic": {}}}, secretId=name)
        api.ok("POST", f"{SECRETS}/{name}:addVersion", {"payload": {"data": "eA=="}})
    read = "versions/latest:access"
    resource = f"projects/{PROJECT}/secrets/mine/versions/latest"
    answer = worker("GET", f"{SECRETS}/mine/{read}")
    message = f"Permission 'secretmanager.versions.access' denied for resource '{resource}' (or it may not exist)."
    assert refusal(answer) == (403, "PERMISSION_DENIED", message)
    (info,) = answer.json()["error"]["details"]
    assert info["reason"] == "IAM_PERMISSION_DENIED"
    assert info["metadata"] == {"permission": "secretmanager.versions.access", "resource": resource}
    assert worker("GET", f"{SECRETS}/no-such-secret/{read}").status_code == 403
    api.bind(f"serviceAccount:{email}", "roles/secretmanager.secretAccessor", f"{SECRETS}/mine")
    assert worker("GET", f"{SECRETS}/mine/{read}").status_code == 200
    assert worker("GET", f"{SECRETS}/theirs/{read}").status_code == 403
    assert worker("DELETE", f"{SECRETS}/mine").status_code == 403
    asked = {"permissions": ["secretmanager.versions.access", "secretmanager.secrets.delete"]}
    held = worker.ok("POST", f"{SECRETS}/mine:testIamPermissions", asked)
    assert held["permissions"] == ["secretmanager.versions.access"]
    api.bind(f"serviceAccount:{email}", api.role("secretmanager.secrets.delete"), f"{SECRETS}/mine")
    assert worker("DELETE", f"{SECRETS}/mine").status_code == 200
    # A secret of the same name starts without a policy.
    api.ok("POST", SECRETS, {"replication": {"automatic": {}}}, secretId="mine")
    assert "bindings" not in api.ok("GET", f"{SECRETS}/mine:getIamPolicy")
    api.bind(f"serviceAccount:{email}", "roles/editor")
    assert worker("GET", f"{SECRETS}/mine").status_code == 200
    # editors do not see what secrets hold
    assert worker("GET", f"{SECRETS}/theirs/{read}").status_code == 403


def test_the_other_apis_need_permissions_too(api):
    email, worker = api.account()
    assert (
        refusal(worker("POST", f"{RESOURCES}:getIamPolicy"))[2]
        == "The caller does not have permission"
    )
    assert (
        "'iam.roles.create' denied"
        in refusal(worker("POST", ROLES, {"roleId": "xyz", "role": {}}))[2]
    )
    assert worker("GET", ACCOUNTS).status_code == 403
    api.bind(f"serviceAccount:{email}", "roles/viewer")
    for verb, path in (("GET", ACCOUNTS), ("GET", RESOURCES)):
        assert worker(verb, path).status_code == 200
    assert worker("POST", f"{RESOURCES}:setIamPolicy", {"policy": {}}).status_code == 403


# --- services


def test_services_are_turned_on(api):
    shown = api.ok("GET", f"{SERVICES}/tpu.googleapis.com")
    assert shown["state"] == "DISABLED" and shown["name"].split("/")[1].isdigit()
    operation = api.ok("POST", f"{SERVICES}/tpu.googleapis.com:enable", {})
    assert "done" not in operation
    done = api.ok("GET", f"/serviceusage/v1/{operation['name']}")
    assert done["done"] and done["response"]["service"]["state"] == "ENABLED"
    assert api.ok("POST", f"{SERVICES}/tpu.googleapis.com:enable", {})["done"]
    asked = [f"projects/{PROJECT}/services/{name}.googleapis.com" for name in ("tpu", "iap")]
    found = api.ok("GET", f"{SERVICES}:batchGet", names=asked)["services"]
    assert [row["state"] for row in found] == ["ENABLED", "DISABLED"]
    api.ok("POST", f"{SERVICES}/iap.googleapis.com:enable", {})
    for id in ("iap.googleapis.com", "tpu.googleapis.com"):
        api.ok("POST", f"{SERVICES}/{id}:disable", {})
        assert refusal(api("POST", f"{SERVICES}/{id}:disable", {}))[:2] == (
            400,
            "FAILED_PRECONDITION",
        )
    # An API that is not served here can be turned on all the same, as scripts of projects do.
    assert "done" not in api.ok("POST", f"{SERVICES}/bigquery.googleapis.com:enable", {})
    assert api.ok("GET", f"{SERVICES}/bigquery.googleapis.com")["state"] == "ENABLED"
    api.ok("POST", f"{SERVICES}/bigquery.googleapis.com:disable", {})
    unknown = refusal(api("POST", f"{SERVICES}/teapot.googleapis.com:enable", {}))
    assert unknown == (
        403,
        "PERMISSION_DENIED",
        "Not found or permission denied for service(s): teapot.googleapis.com.",
    )


def test_an_api_that_is_off_says_how_to_turn_it_on(api):
    number = api.ok("GET", RESOURCES)["projectNumber"]
    bucket = api.bucket()
    off = ("secretmanager", "storage", "iam")
    calls = {"secretmanager": SECRETS, "storage": f"/storage/v1/b/{bucket}/o", "iam": ACCOUNTS}
    for service in off:
        api.ok("POST", f"{SERVICES}/{service}.googleapis.com:disable", {})
    try:
        for service in off:
            answer = api("GET", calls[service])
            assert answer.status_code == 403
            error = answer.json()["error"]
            url = f"https://console.developers.google.com/apis/api/{service}.googleapis.com/overview?project={number}"
            assert (
                f" has not been used in project {number} before or it is disabled. "
                in error["message"]
            )
            assert f"Enable it by visiting {url} then retry." in error["message"]
            info, links = error["details"]
            assert (
                info["reason"] == "SERVICE_DISABLED"
                and info["metadata"]["consumer"] == f"projects/{number}"
            )
            assert links["links"][0]["url"] == url
            reasons = [each["reason"] for each in error.get("errors", [])]
            assert reasons == (["accessNotConfigured"] if service == "storage" else [])
    finally:
        for service in off:
            api.ok("POST", f"{SERVICES}/{service}.googleapis.com:enable", {})
    assert all(api("GET", path).ok for path in calls.values())


@pytest.mark.slow
def test_everything_survives_kill_9(tmp_path):
    server = Server(tmp_path).start()
    api = Api(server.url, tmp_path)
    email, worker = api.account()
    role = api.role("storage.objects.list")
    api.bind(f"serviceAccount:{email}", role)
    bucket = api.bucket()
    api.ok("POST", f"{SERVICES}/secretmanager.googleapis.com:disable", {})
    asked = (("POST", f"{RESOURCES}:getIamPolicy"), ("GET", f"/iam/v1/{role}"), ("GET", ACCOUNTS))
    before = [api.ok(*call) for call in asked]
    server.kill()
    server.start()
    assert [api.ok(*call) for call in asked] == before
    assert worker("GET", f"/storage/v1/b/{bucket}/o").status_code == 200
    assert api("GET", SECRETS).status_code == 403
    server.kill()


def test_roles_must_fit_what_they_are_given_on(api):
    email, _ = api.account()
    bucket, secret = api.bucket(), f"secret-{next(numbers)}"
    api.ok("POST", SECRETS, {"replication": {"automatic": {}}}, secretId=secret)
    member = [f"serviceAccount:{email}"]
    roles = {
        "bucket": ["roles/storage.objectUser", "roles/storage.legacyBucketReader"],
        "secret": ["roles/secretmanager.secretAccessor"],
        "account": ["roles/iam.serviceAccountUser"],
        "project": [
            "roles/compute.admin",
            "roles/logging.logWriter",
            "roles/container.defaultNodeServiceAccount",
        ],
    }
    everywhere = {role for fitting in roles.values() for role in fitting}
    for what, fitting in roles.items():
        for role in sorted(everywhere):
            policy = {"bindings": [{"role": role, "members": member}]}
            if what == "project":
                policy["bindings"].append({"role": "roles/owner", "members": [f"user:{LAPTOP}"]})
            if what == "bucket":
                answer = api("PUT", f"/storage/v1/b/{bucket}/iam", policy)
            else:
                base = {
                    "secret": f"{SECRETS}/{secret}",
                    "account": f"{ACCOUNTS}/{email}",
                    "project": RESOURCES,
                }[what]
                answer = api("POST", f"{base}:setIamPolicy", {"policy": policy})
            fits = role in fitting or (what == "project" and "legacy" not in role)
            assert answer.status_code == (200 if fits else 400), (what, role, answer.text)
            assert fits or f"Role {role} is not supported for this resource." in answer.text


def test_the_public_stays_out_where_access_is_prevented(api):
    _, worker = api.account()
    bucket = api.bucket()
    api.upload(bucket, "x", b"x")
    path = f"/storage/v1/b/{bucket}/o/x"
    api.bind_bucket("allUsers", "roles/storage.objectViewer", bucket)
    assert worker("GET", path).status_code == 200
    enforced = {"iamConfiguration": {"publicAccessPrevention": "enforced"}}
    api.ok("PATCH", f"/storage/v1/b/{bucket}", enforced)
    assert worker("GET", path).status_code == 403  # what the policy said before counts no more
    for member in ("allUsers", "allAuthenticatedUsers"):
        policy = {"bindings": [{"role": "roles/storage.objectViewer", "members": [member]}]}
        answer = api("PUT", f"/storage/v1/b/{bucket}/iam", policy)
        assert answer.status_code == 412 and "public access prevention is enforced" in answer.text
    # uniform access has no lists
    assert api.upload(bucket, "y", predefinedAcl="publicRead").status_code == 400

# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""The embedded IAM: accounts, roles, policies and APIs by plain HTTP, and what accounts may do
because of them.
"""

import itertools

import pytest
from local_cloud import PROJECT, server  # noqa: F401 (fixtures)
from local_machines import session_of

from localcloud.identity.tokens import LAPTOP

SECRETS = f"/secretmanager/v1/projects/{PROJECT}/secrets"
ACCOUNTS = f"/iam/v1/projects/{PROJECT}/serviceAccounts"
ROLES = f"/iam/v1/projects/{PROJECT}/roles"
RESOURCES = f"/cloudresourcemanager/v1/projects/{PROJECT}"
CONCURRENT = "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff."
numbers = itertools.count()


class Api:
    """Requests with the token of one principal."""

    def __init__(self, url, folder, email=LAPTOP):
        self.url, self.folder, self.session = url, folder, session_of(folder, email)

    def __call__(self, verb, path, body=None, **params):
        return self.session.request(verb, self.url + path, json=body, params=params)

    def ok(self, verb, path, body=None, **params):
        answer = self(verb, path, body, **params)
        assert answer.ok, answer.text
        return answer.json() if answer.content else None

    def account(self):
        """A new service account, and requests as that account."""
        made = self.ok("POST", ACCOUNTS, {"accountId": f"worker-{next(numbers)}"})
        return made["email"], Api(self.url, self.folder, made["email"])

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


# --- services


def test_roles_must_fit_what_they_are_given_on(api):
    email, _ = api.account()
    bucket, secret = api.bucket(), f"secret-{next(numbers)}"
    api.ok("POST", SECRETS, {"replication": {"automatic": {}}}, secretId=secret)
    member = [f"serviceAccount:{email}"]
    owner = {"role": "roles/owner", "members": [f"user:{LAPTOP}"]}
    on_secrets = f"{SECRETS}/{secret}:setIamPolicy"
    on_project = f"{RESOURCES}:setIamPolicy"
    grant = {
        "bucket": lambda row: api("PUT", f"/storage/v1/b/{bucket}/iam", {"bindings": [row]}),
        "secret": lambda row: api("POST", on_secrets, {"policy": {"bindings": [row]}}),
        "project": lambda row: api("POST", on_project, {"policy": {"bindings": [row, owner]}}),
    }
    for role, fitting in {
        "roles/storage.objectUser": ("bucket", "project"),
        "roles/storage.legacyBucketReader": ("bucket",),
        "roles/secretmanager.secretAccessor": ("secret", "project"),
        "roles/compute.admin": ("project",),
        "roles/logging.logWriter": ("project",),
        "roles/container.defaultNodeServiceAccount": ("project",),
    }.items():
        for what, ask in grant.items():
            answer, fits = ask({"role": role, "members": member}), what in fitting
            assert answer.status_code == (200 if fits else 400), (what, role, answer.text)
            assert fits or f"Role {role} is not supported for this resource." in answer.text

"""Keys of service accounts: what is signed with one is taken, and nothing else."""

import base64
import json
import time
import uuid

import pytest
import requests
from cloud_fixtures import settle
from google.auth import crypt, jwt

ACCOUNTS = "/iam/v1/projects/berg-local/serviceAccounts"
PROJECT = "/cloudresourcemanager/v1/projects/berg-local"


@pytest.fixture
def key(cloud, tmp_path):
    """The file of a key of an account that may do everything in the project."""
    name = f"ci-{uuid.uuid4().hex[:9]}"
    email = cloud.call("POST", ACCOUNTS, {"accountId": name})["email"]
    options = {"options": {"requestedPolicyVersion": 3}}
    policy = cloud.call("POST", f"{PROJECT}:getIamPolicy", options)
    member = f"serviceAccount:{email}"
    policy["bindings"].append({"role": "roles/owner", "members": [member]})
    cloud.call("POST", f"{PROJECT}:setIamPolicy", {"policy": policy})
    made = cloud.call("POST", f"{ACCOUNTS}/{email}/keys", {})
    file = tmp_path / "key.json"
    file.write_bytes(base64.b64decode(made["privateKeyData"]))
    settle(cloud)
    return file


def token_of(cloud, assertion: str) -> requests.Response:
    grant = "urn:ietf:params:oauth:grant-type:jwt-bearer"
    form = {"grant_type": grant, "assertion": assertion}
    return requests.post(f"{cloud.url}/token", data=form)


def test_only_what_the_key_signed_for_this_place_and_time_is_taken(cloud, key):
    told = json.loads(key.read_text())
    signer = crypt.RSASigner.from_service_account_info(told)
    now = int(time.time())
    good = {
        "iss": told["client_email"],
        "aud": told["token_uri"],
        "scope": "https://www.googleapis.com/auth/devstorage.read_only",
        "iat": now,
        "exp": now + 3600,
    }
    answer = token_of(cloud, jwt.encode(signer, good).decode())
    assert answer.status_code == 200 and answer.json()["token_type"] == "Bearer", answer.text
    headers = {"Authorization": f"Bearer {answer.json()['access_token']}"}
    buckets = f"{cloud.url}/storage/v1/b?project=berg-local"
    assert requests.get(buckets, headers=headers).status_code == 200
    assert requests.post(buckets, headers=headers, json={"name": "x-y-z"}).status_code == 403

    for wrong in (
        {"aud": "https://example.com/token"},
        {"iss": "somebody@berg-local.iam.gserviceaccount.com"},
        {"exp": now - 10},
        {"exp": now + 9999},
        {"iat": now + 900},
    ):
        refused = token_of(cloud, jwt.encode(signer, {**good, **wrong}).decode())
        assert refused.status_code == 400, wrong
        assert refused.json()["error"] == "invalid_grant"
    head, claims, signature = jwt.encode(signer, good).decode().split(".")
    forged = base64.urlsafe_b64encode(json.dumps({**good, "iss": "other"}).encode()).decode()
    for parts in ((head, forged.rstrip("="), signature), (head, claims, ""), ("", "", ""), ("x",)):
        assert token_of(cloud, ".".join(parts)).status_code == 400
    without = {name: value for name, value in good.items() if name != "scope"}
    assert token_of(cloud, jwt.encode(signer, without).decode()).json()["error"] == "invalid_scope"


def test_keys_are_listed_without_their_secret_and_are_few(cloud, key):
    told = json.loads(key.read_text())
    base = f"{ACCOUNTS}/{told['client_email']}/keys"
    (listed,) = cloud.call("GET", base)["keys"]
    assert listed["name"].endswith(told["private_key_id"]) and "public" not in listed
    assert "privateKeyData" not in cloud.call("GET", f"/iam/v1/{listed['name']}")
    for _ in range(9):
        cloud.call("POST", base, {})
    full = cloud.session.post(f"{cloud.url}{base}", json={})
    assert full.status_code == 400 and "Precondition check failed" in full.text

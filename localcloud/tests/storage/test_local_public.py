"""Buckets that everybody may read, without a token, and all that stays closed in them."""

import uuid

import pytest
import requests
from google.cloud import storage

READER = "roles/storage.objectViewer"


@pytest.fixture
def public(cloud):
    """A bucket with one object that everybody may read."""
    endpoint = {"api_endpoint": cloud.url}
    client = storage.Client("berg-local", cloud.session.credentials, client_options=endpoint)
    made = client.bucket(f"public-{uuid.uuid4().hex[:12]}")
    made.iam_configuration.uniform_bucket_level_access_enabled = True
    made.create()
    made.blob("sets/a.txt").upload_from_string("grüße")
    policy = made.get_iam_policy()
    policy[READER] = ["allUsers"]
    made.set_iam_policy(policy)
    cloud.call("POST", "/_berg/settings", {"grant_delay": 0})
    return made


def test_everybody_reads_and_lists(cloud, public):
    base = f"{cloud.url}/storage/v1/b/{public.name}/o"
    listed = requests.get(base, params={"prefix": "sets/"}).json()
    assert [each["name"] for each in listed["items"]] == ["sets/a.txt"]
    assert requests.get(f"{base}/sets%2Fa.txt").json()["size"] == "7"
    for path in (f"{base}/sets%2Fa.txt?alt=media", f"{cloud.url}/{public.name}/sets/a.txt"):
        answer = requests.get(path)
        assert (answer.status_code, answer.content.decode()) == (200, "grüße"), path
    assert requests.get(f"{base}/none").status_code == 404


def test_google_s_own_client_reads_without_credentials(cloud, public):
    client = storage.Client.create_anonymous_client()
    client._connection.API_BASE_URL = cloud.url
    assert client.bucket(public.name).blob("sets/a.txt").download_as_text() == "grüße"


def test_everybody_writes_and_administers_nothing(cloud, public):
    url = f"{cloud.url}/storage/v1/b/{public.name}"
    upload = f"{cloud.url}/upload/storage/v1/b/{public.name}/o?uploadType=media&name=x"
    for answer in (
        requests.get(url),
        requests.get(f"{url}/iam"),
        requests.delete(f"{url}/o/sets%2Fa.txt"),
        requests.patch(f"{url}/o/sets%2Fa.txt", json={"metadata": {"a": "b"}}),
        requests.post(upload, data=b"x"),
        requests.get(f"{cloud.url}/storage/v1/b?project=berg-local"),
    ):
        assert answer.status_code == 401, answer.request.url
    told = requests.get(url).json()["error"]["message"]
    assert told.startswith("Anonymous caller does not have storage.buckets.get access")
    wrong = requests.get(f"{url}/o", headers={"Authorization": "Bearer wrong"})
    assert wrong.status_code == 401, "a token that is none is refused also here"


def test_a_closed_bucket_stays_closed(cloud, public):
    made = public
    other = requests.get(f"{cloud.url}/{public.name}-none/x")
    assert other.status_code == 403
    made.iam_configuration.public_access_prevention = "enforced"
    made.patch()
    for path in (f"storage/v1/b/{public.name}/o/sets%2Fa.txt", f"{public.name}/sets/a.txt"):
        assert requests.get(f"{cloud.url}/{path}").status_code in (401, 403), path

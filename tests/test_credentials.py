"""Credentials of the embedded cloud: what google-auth says of them."""

import json
import logging

import pytest
from google.auth.transport.requests import AuthorizedSession

from berg import config


def test_the_embedded_clouds_credentials_are_no_matter_for_the_log(cloud, caplog):
    """Else google-auth complains of them wherever a program of a user's writes a log."""
    session = AuthorizedSession(config.find(str(cloud.folder / "credentials.json")))
    with caplog.at_level(logging.DEBUG):
        assert session.get(f"{cloud.url}/storage/v1/b?project=berg-local").ok
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_other_lines_of_google_auths_log_stay(caplog, cloud):
    config.find(str(cloud.folder / "credentials.json"))
    logging.getLogger(config.LOG).error("it expired")
    assert [each.message for each in caplog.records] == ["it expired"]
    assert json.loads((cloud.folder / "credentials.json").read_text())["audience"] == "berg-local"


GCLOUD = "764086051850-6qr4p6gpi6hn506pt8ejuq83di341hur.apps.googleusercontent.com"
PERSON = {"type": "authorized_user", "client_id": GCLOUD, "client_secret": "x"}
POOL = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q"
FEDERATED = {
    "type": "external_account",
    "audience": POOL,
    "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
    "token_url": "https://sts.googleapis.com/v1/token",
    "credential_source": {"url": "http://127.0.0.1:9/subject"},
}


@pytest.fixture
def google(berg):
    """Settings for Google's own cloud, and a file of credentials of the environment."""
    berg.write_config(project="mine", bucket="mine")
    file = berg.home / "key.json"

    def run(content: dict | None, **env: str) -> str:
        file.unlink(missing_ok=True)
        if content:
            file.write_text(json.dumps(content))
        done = berg("list", GOOGLE_APPLICATION_CREDENTIALS=str(file), **env)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        return " ".join(done.stderr.split())

    return run


def test_a_proxy_that_does_not_answer_is_named_without_its_password(google):
    said = google({**PERSON, "refresh_token": "r"}, HTTPS_PROXY="http://u:hush@127.0.0.1:9")
    assert "cannot reach Google Cloud through the proxy http://127.0.0.1:9 (HTTPS_PROXY)." in said
    assert "hush" not in said


def test_a_missing_quota_project_is_one_sentence(google):
    person = {**PERSON, "refresh_token": "r"}
    said = google(person, HTTPS_PROXY="http://127.0.0.1:9")
    command = "gcloud auth application-default set-quota-project mine"
    assert f"your Google credentials name no project for quotas. Run: {command}" in said
    assert "UserWarning" not in said and "warnings.warn" not in said
    there = google({**person, "quota_project_id": "mine"}, HTTPS_PROXY="http://127.0.0.1:9")
    assert "quotas" not in there


def test_a_file_of_credentials_that_is_not_there_is_named(google):
    said = google(None)
    assert "key.json, which GOOGLE_APPLICATION_CREDENTIALS names. Correct that variable" in said


def test_federation_that_does_not_answer_is_named(google):
    said = google(FEDERATED)
    assert "the token of Workload Identity Federation from http://127.0.0.1:9/subject" in said
    assert "exchanged at https://sts.googleapis.com/v1/token, does not come" in said
    source = {"credential_source": {"file": "/nowhere/token"}}
    said = google({**FEDERATED, **source})
    assert "from /nowhere/token" in said and "is refused: " in said and "was not found" in said

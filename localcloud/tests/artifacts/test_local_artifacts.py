# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""The embedded Artifact Registry, by plain HTTP and by gcloud."""

import json

import pytest
from local_cloud import (  # noqa: F401 (fixtures)
    PROJECT,
    Server,
    http_session,
    make_repository,
    server,
)
from local_gcloud import Gcloud
from test_local_registry import IMAGE, MANIFEST, Image, digest_of

PLACE = f"projects/{PROJECT}/locations/us-central1"


@pytest.fixture
def api(server, http_session):
    def call(verb, path, body=None, **params):
        url = f"{server.url}/artifactregistry/v1/{path}"
        return http_session.request(verb, url, json=body, params=params)

    yield call
    for row in call("GET", f"{PLACE}/repositories").json().get("repositories", []):
        call("DELETE", row["name"])


def error(answer):
    found = answer.json()["error"]
    assert found["code"] == answer.status_code and "errors" not in found
    return answer.status_code, found["status"]


def test_the_life_of_a_repository(api):
    name = f"{PLACE}/repositories/berg"
    assert error(api("GET", name)) == (404, "NOT_FOUND")
    body = {"format": "DOCKER", "description": "images", "labels": {"berg": "1"}}
    begun = api("POST", f"{PLACE}/repositories", body, repositoryId="berg").json()
    assert begun["name"].startswith(f"{PLACE}/operations/") and "done" not in begun
    done = api("GET", begun["name"]).json()
    assert done["done"] and done["response"]["name"] == name
    found = api("GET", name).json()
    assert found["registryUri"] == f"us-central1-docker.pkg.dev/{PROJECT}/berg" and found[
        "labels"
    ] == {"berg": "1"}
    assert error(api("POST", f"{PLACE}/repositories", body, repositoryId="berg")) == (
        409,
        "ALREADY_EXISTS",
    )
    assert api("GET", f"{PLACE}/repositories").json()["repositories"] == [found]
    assert api("GET", f"projects/{PROJECT}/locations/europe-west4/repositories").json() == {}
    gone = api("DELETE", name).json()
    assert api("GET", gone["name"]).json()["done"] and api("GET", name).status_code == 404
    assert error(api("DELETE", name)) == (404, "NOT_FOUND")
    assert error(api("GET", f"{PLACE}/operations/none")) == (404, "NOT_FOUND")


def test_what_google_refuses(api):
    def create(body, id="berg", place=PLACE):
        return error(api("POST", f"{place}/repositories", body, repositoryId=id))

    invalid = (400, "INVALID_ARGUMENT")
    assert (
        create({})
        == create({"format": "TAR"})
        == create({"format": "DOCKER", "size": 1})
        == invalid
    )
    for id in ("", "Berg", "b_erg", "9berg", "berg-", "x" * 64):
        assert create({"format": "DOCKER"}, id) == invalid, id
    assert create({"format": "DOCKER"}, place=f"projects/{PROJECT}/locations/moon") == invalid
    assert create({"format": "DOCKER"}, place="projects/other/locations/us") == (
        403,
        "PERMISSION_DENIED",
    )
    assert create({"format": "PYTHON"}) == (501, "UNIMPLEMENTED")
    assert create({"format": "DOCKER", "labels": {"A": "b"}})[0] == 400


def test_tags_and_images(server, http_session, api):
    make_repository(server, http_session)
    image = Image((http_session, server.url))
    assert image.push("v1").status_code == 201
    package = f"{PLACE}/repositories/images/packages/demo"
    tag = {"name": f"{package}/tags/v1", "version": f"{package}/versions/{digest_of(MANIFEST)}"}
    assert api("GET", f"{package}/tags/v1").json() == tag
    assert error(api("GET", f"{package}/tags/v2")) == (404, "NOT_FOUND")
    assert error(api("GET", f"{PLACE}/repositories/images/packages/none/tags/v1")) == (
        404,
        "NOT_FOUND",
    )
    (listed,) = api("GET", f"{PLACE}/repositories/images/dockerImages").json()["dockerImages"]
    assert listed["uri"] == f"us-central1-docker.pkg.dev/{IMAGE}@{digest_of(MANIFEST)}" and listed[
        "tags"
    ] == ["v1"]
    size = api("GET", f"{PLACE}/repositories/images").json()["sizeBytes"]
    assert size == listed["imageSizeBytes"] == "1110"


@pytest.mark.slow
def test_gcloud_makes_lists_and_deletes(server, http_session, api, tmp_path):
    gcloud = Gcloud(server.url, PROJECT, server.token(), tmp_path)
    where = ["--location=us-central1", "--quiet"]
    gcloud("artifacts", "repositories", "create", "images", "--repository-format=docker", *where)
    assert Image((http_session, server.url)).push().status_code == 201
    rows = json.loads(
        gcloud("artifacts", "repositories", "list", "--location=us-central1", "--format=json")
    )
    assert [(row["name"].rpartition("/")[2], row["format"]) for row in rows] == [
        ("images", "DOCKER")
    ]
    assert "DOCKER" in gcloud("artifacts", "repositories", "describe", "images", *where)
    gcloud("artifacts", "repositories", "delete", "images", *where)
    assert (
        gcloud(
            "artifacts", "repositories", "list", "--location=us-central1", "--format=json"
        ).strip()
        == "[]"
    )

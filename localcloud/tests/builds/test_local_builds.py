# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""The embedded Cloud Build, by plain HTTP and by gcloud: real builds by podman, pushed to the
embedded registry.
"""

import io
import json
import re
import tarfile

import pytest
import requests
from containers import needs_podman, slow  # noqa: F401 (a fixture)
from local_cloud import (  # noqa: F401 (fixtures)
    PROJECT,
    Server,
    http_session,
    make_repository,
    server,
)
from local_gcloud import Gcloud
from local_machines import until

from localcloud.builds import checks
from localcloud.identity.tokens import LAPTOP, Tokens

STEP = "gcr.io/cloud-builders/docker"
PLACE = f"projects/{PROJECT}/locations/us-central1"
ENDED = ("SUCCESS", "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED")


@pytest.fixture(scope="module")
def bucket(server):
    session = server.session()
    answer = session.post(
        f"{server.url}/storage/v1/b", params={"project": PROJECT}, json={"name": "builds"}
    )
    assert answer.ok, answer.text
    return "builds"


class Builds:
    def __init__(self, server, session, bucket):
        self.server, self.session, self.bucket = server, session, bucket
        make_repository(server, session)
        self.image = f"{server.url.removeprefix('http://')}/{PROJECT}/images/built"

    def __call__(self, verb, path, body=None, **params):
        url = f"{self.server.url}/cloudbuild/v1/{path}"
        return self.session.request(verb, url, json=body, params=params)

    def source(self, dockerfile: str, name: str = "source.tar.gz") -> dict:
        """Send a source to the bucket."""
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w:gz") as tar:
            for path, text in (("Dockerfile", dockerfile), ("context/file", "content")):
                about = tarfile.TarInfo(path)
                about.size = len(text)
                tar.addfile(about, io.BytesIO(text.encode()))
        url = f"{self.server.url}/upload/storage/v1/b/{self.bucket}/o"
        sent = self.session.post(
            url, params={"uploadType": "media", "name": name}, data=data.getvalue()
        )
        assert sent.ok, sent.text
        return {"storageSource": {"bucket": self.bucket, "object": name}}

    def body(
        self, *steps: list[str], dockerfile="FROM scratch\nCOPY file /file\n", **fields
    ) -> dict:
        rows = [{"name": STEP, "args": list(words)} for words in steps]
        options = {"logging": "GCS_ONLY"}
        name = f"{abs(hash(dockerfile))}.tar.gz"
        source = self.source(dockerfile, name)
        return {
            "source": source,
            "steps": rows,
            "options": options,
            "logsBucket": f"gs://{self.bucket}/logs",
            **fields,
        }

    def create(self, *steps, **fields) -> dict:
        answer = self("POST", f"{PLACE}/builds", self.body(*steps, **fields))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def get(self, operation: dict) -> dict:
        return self("GET", f"{PLACE}/builds/{operation['metadata']['build']['id']}").json()

    def ended(self, operation: dict) -> dict:
        return until(
            lambda: (found := self.get(operation))["status"] in ENDED and found,
            "the build has ended",
            120,
        )

    def log(self, build: dict) -> str:
        name = f"logs%2Flog-{build['id']}.txt"
        url = f"{self.server.url}/storage/v1/b/{self.bucket}/o/{name}"
        return self.session.get(url, params={"alt": "media"}).text


@pytest.fixture
def builds(server, http_session, bucket):
    return Builds(server, http_session, bucket)


def error(answer):
    found = answer.json()["error"]
    assert found["code"] == answer.status_code and "errors" not in found
    return answer.status_code, found["status"], found["message"]


def build_words(image: str) -> list[str]:
    return ["build", "-t", image, "-f", "Dockerfile", "context"]


@pytest.mark.slow
@needs_podman
def test_a_build_from_its_source_to_its_image(builds, server, tmp_path):
    begun = builds.create(build_words(builds.image), images=[builds.image + ":v1"])
    missing = builds.ended(begun)
    assert missing["status"] == "FAILURE" and missing["failureInfo"]["type"] == "PUSH_FAILED", (
        "it has another tag"
    )
    image = f"{builds.image}:v1"
    begun = builds.create(build_words(image), images=[image], tags=["berg"])
    assert (
        begun["metadata"]["@type"].endswith("cloudbuild.v1.BuildOperationMetadata")
        and "done" not in begun
    )
    assert begun["metadata"]["build"]["status"] == "QUEUED"
    done = builds.ended(begun)
    assert done["status"] == "SUCCESS", builds.log(done)
    assert done["startTime"] <= done["finishTime"] and done["steps"][0]["status"] == "SUCCESS"
    manifest = builds.session.get(
        f"{server.url}/v2/{image.partition('/')[2].replace(':', '/manifests/')}"
    )
    assert done["results"]["images"] == [
        {"name": image, "digest": manifest.headers["Docker-Content-Digest"]}
    ]
    log = builds.log(done)
    assert log.startswith(f'starting build "{done["id"]}"\n\nFETCHSOURCE\nBUILD\n')
    assert f"PUSH\nPushing {image}\n" in log and log.endswith("DONE\n")
    assert "COPY file /file" in log
    operation = builds("GET", begun["name"]).json()
    assert operation["done"] and operation["response"]["id"] == done["id"]
    gcloud = Gcloud(server.url, PROJECT, server.token(), tmp_path)
    rows = json.loads(gcloud("builds", "list", "--region=us-central1", "--format=json"))
    assert [row["status"] for row in rows[:2]] == ["SUCCESS", "FAILURE"]
    assert "SUCCESS" in gcloud("builds", "describe", done["id"], "--region=us-central1")


@pytest.mark.slow
@needs_podman
def test_two_platforms_take_another_builder(builds, server):
    image = f"{builds.image}:both"
    last = [
        "buildx",
        "build",
        "--platform",
        "linux/amd64,linux/arm64",
        "-t",
        image,
        "-f",
        "Dockerfile",
        "--push",
    ]
    last.append("context")
    failed = builds.ended(builds.create(last))
    assert failed["status"] == "FAILURE"
    assert "Multi-platform build is not supported for the docker driver." in builds.log(failed)
    binfmt = ["run", "--privileged", "--rm", "tonistiigi/binfmt", "--install", "arm64"]
    create = ["buildx", "create", "--name", "other", "--driver", "docker-container", "--use"]
    done = builds.ended(builds.create(binfmt, create, last))
    log = builds.log(done)
    assert done["status"] == "SUCCESS", log
    assert (
        "Starting Step #2\nStep #2: " in log
        and "Finished Step #0\nStarting Step #1\nStep #1: other\n" in log
    )
    path = f"{server.url}/v2/{PROJECT}/images/built/manifests/both"
    rows = builds.session.get(path).json()["manifests"]
    assert sorted(row["platform"]["architecture"] for row in rows) == ["amd64", "arm64"]


@pytest.mark.slow
@needs_podman
def test_failure_time_out_and_cancel(builds, server, slow, tmp_path):
    image = f"{builds.image}:never"
    failed = builds.ended(
        builds.create(build_words(image), dockerfile="FROM scratch\nCOPY nothing /file\n")
    )
    told = f'build step 0 "{STEP}" failed: step exited with non-zero status: 125'
    assert (failed["status"], failed["statusDetail"]) == ("FAILURE", told)
    assert failed["failureInfo"] == {"type": "USER_BUILD_STEP", "detail": told}
    assert "nothing" in builds.log(failed) and builds.log(failed).endswith(
        f"ERROR\nERROR: {told}\n"
    )
    late = builds.ended(builds.create(build_words(image), dockerfile=slow, timeout="1s"))
    assert late["status"] == "TIMEOUT" and "ERROR: context deadline exceeded" in builds.log(late)
    begun = builds.create(build_words(image), dockerfile=slow)
    until(lambda: builds.get(begun)["status"] == "WORKING", "the build runs")
    path = f"{PLACE}/builds/{begun['metadata']['build']['id']}"
    cancelled = builds("POST", f"{path}:cancel", {}).json()
    assert cancelled["status"] == "CANCELLED" and builds("GET", path).json() == cancelled
    assert error(builds("POST", f"{path}:cancel", {}))[:2] == (400, "FAILED_PRECONDITION")
    assert builds("GET", begun["name"]).json()["error"]["code"] == 2
    gone = builds.body(build_words(image))
    gone["source"]["storageSource"]["object"] = "no-such-object.tar.gz"
    ended = builds.ended(builds("POST", f"{PLACE}/builds", gone).json())
    assert ended["failureInfo"]["type"] == "FETCH_SOURCE_FAILED"
    begun = builds.create(build_words(image), dockerfile=slow)
    gcloud = Gcloud(server.url, PROJECT, server.token(), tmp_path)
    gcloud("builds", "cancel", begun["metadata"]["build"]["id"], "--region=us-central1")
    assert builds.get(begun)["status"] == "CANCELLED"


def test_what_google_refuses(builds):
    good = builds.body(build_words("x"))

    def refused(**fields):
        body = {key: value for key, value in {**good, **fields}.items() if value is not None}
        return error(builds("POST", f"{PLACE}/builds", body))

    account = f"projects/{PROJECT}/serviceAccounts/somebody@{PROJECT}.iam.gserviceaccount.com"
    assert refused(steps=[])[:2] == (400, "INVALID_ARGUMENT")
    assert refused(timeout="1h")[:2] == refused(timeout="90000s")[:2] == (400, "INVALID_ARGUMENT")
    assert (
        "must either (a) specify 'build.logs_bucket'"
        in refused(serviceAccount=account, logsBucket=None)[2]
    )
    assert refused(serviceAccount=account)[0] == 400 and refused(machine="large")[0] == 400
    assert refused(status="SUCCESS")[0] == 400, "output only"
    assert refused(options={"logging": "SOMEWHERE"})[0] == 400
    assert refused(steps=[{"name": "ubuntu", "args": ["true"]}])[:2] == (501, "UNIMPLEMENTED")
    assert error(builds("GET", f"{PLACE}/builds/none"))[:2] == (404, "NOT_FOUND")
    assert error(builds("GET", f"projects/{PROJECT}/locations/moon/builds"))[0] == 400
    assert error(builds("GET", "projects/other/locations/global/builds"))[0] == 403


@pytest.mark.parametrize(
    ("fields", "status", "why"),
    [
        ({"args": ["build", "--build-arg", "A=$_A", "."]}, 400, "is not matched in the substitu"),
        ({"args": ["build", "--tag", "${NAME}", "."]}, 400, '"NAME" is not a valid built-in'),
        ({"args": ["build", "--tag", "$PROJECT_ID", "."]}, 501, "in the place of $PROJECT_ID"),
        ({"dir": "$HERE"}, 400, '"HERE" is not a valid built-in substitution'),
        ({"args": ["x"] * 101}, 400, "build step 0 too many args (max: 100)"),
        ({"args": ["x" * 10_001]}, 400, "build step 0 arg 0 too long"),
        ({"id": "-"}, 400, "the ID is not unique"),
    ],
)
def test_what_google_refuses_in_a_step(builds, fields, status, why):
    body = builds.body(build_words("x"))
    body["steps"][0].update(fields)
    found = error(builds("POST", f"{PLACE}/builds", body))
    assert found[0] == status and why in found[2]


def test_names_of_a_build_and_dollars_that_are_meant(builds):
    good = builds.body(build_words("x"), build_words("x"))
    for step in good["steps"]:
        step["id"] = "same"
    assert "the ID is not unique" in error(builds("POST", f"{PLACE}/builds", good))[2]
    for fields, why in (
        ({"images": ["BAD NAME"]}, "invalid image name"),
        ({"images": ["localhost/p/r/i:"]}, "invalid image name"),
        ({"tags": ["a b"]}, "invalid build tag"),
        ({"tags": ["a"] * 65}, "number of tags 65 exceeded"),
    ):
        body = builds.body(build_words("x"), **fields)
        assert why in error(builds("POST", f"{PLACE}/builds", body))[2]
    # A dollar before what is no key stays one; two stand for one.
    kept = builds.body(["version", "$lower", "5$", "$$NOT_A_KEY"])
    assert builds("POST", f"{PLACE}/builds", kept).ok
    assert checks.plain("$$NOT_A_KEY costs 5$") == "$NOT_A_KEY costs 5$"


@needs_podman
def test_a_build_has_the_rights_of_its_account(builds, server, bucket):
    accounts = f"{server.url}/iam/v1/projects/{PROJECT}/serviceAccounts"
    email = builds.session.post(accounts, json={"accountId": "builder"}).json()["email"]
    image = f"{builds.image}:held"
    acting = {"serviceAccount": f"projects/{PROJECT}/serviceAccounts/{email}"}

    def failure(build) -> str:
        ended = builds.ended(build)
        return ended.get("failureInfo", {}).get("type", ended["status"])

    def allow(url: str, *roles: str, storage: bool = False) -> None:
        policy = {
            "bindings": [{"role": role, "members": [f"serviceAccount:{email}"]} for role in roles]
        }
        if url.endswith(f"projects/{PROJECT}"):
            policy["bindings"].append({"role": "roles/owner", "members": [f"user:{LAPTOP}"]})
        verb, path, body = (
            ("PUT", "/iam", policy) if storage else ("POST", ":setIamPolicy", {"policy": policy})
        )
        answer = builds.session.request(verb, url + path, json=body)
        assert answer.ok, answer.text

    def no_log() -> str:
        refused = builds(
            "POST", f"{PLACE}/builds", builds.body(build_words(image), images=[image], **acting)
        )
        return error(refused)[2]

    told = f'"gs://{bucket}/logs": builder service account does not have access to logs bucket "{bucket}"'
    assert no_log() == f"invalid logs bucket {told}"
    storage = f"{server.url}/storage/v1/b/{bucket}"
    allow(storage, "roles/storage.objectUser", storage=True)
    assert no_log() == f"invalid logs bucket {told}"
    allow(storage, "roles/storage.legacyBucketReader", storage=True)
    assert failure(builds.create(build_words(image), images=[image], **acting)) == "LOGGING_FAILURE"
    allow(storage, "roles/storage.objectUser", "roles/storage.legacyBucketReader", storage=True)
    assert failure(builds.create(build_words(image), images=[image], **acting)) == "PUSH_FAILED"
    repository = f"{server.url}/artifactregistry/v1/{PLACE}/repositories/images"
    allow(repository, "roles/artifactregistry.writer")
    assert failure(builds.create(build_words(image), images=[image], **acting)) == "SUCCESS"
    person = requests.Session()
    person.headers["Authorization"] = f"Bearer {Tokens(server.folder).mint(email)}"
    url = f"{server.url}/cloudbuild/v1/{PLACE}/builds"
    assert person.get(url).status_code == 403
    project = f"{server.url}/cloudresourcemanager/v1/projects/{PROJECT}"
    allow(project, "roles/cloudbuild.builds.editor")
    assert person.get(url).status_code == 200
    refused = person.post(url, json=builds.body(build_words(image), **acting))
    assert refused.status_code in (400, 403) and re.search("actAs|serviceAccountUser", refused.text)

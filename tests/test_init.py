"""The walkthrough of `berg init`, asked of the embedded cloud in Google's place."""

import json
import uuid

import pytest


@pytest.fixture
def init(berg):
    """`berg init` without settings, but with the way to the embedded cloud in the environment."""
    settings = berg.cloud.settings()
    (berg.home / "berg.json").unlink()

    def call(*arguments: str, stdin: str | None = None, **env: str):
        where = {
            "BERG_ENDPOINT": settings.endpoint,
            "BERG_CREDENTIALS_FILE": settings.credentials_file,
        }
        return berg("init", *arguments, stdin=stdin, **{**where, **env})

    return call


def saved(berg) -> dict:
    return json.loads((berg.home / "berg.json").read_text())


def test_flags_answer_everything_and_the_bucket_is_created(berg, init):
    name = f"fresh-{uuid.uuid4().hex[:12]}"
    result = init(
        "-y", "--project", "berg-local", "--region", "us-west1", "--bucket", name, COLUMNS="80"
    )
    assert result.returncode == 0, result.stderr
    assert f"Created gs://{name}" in result.stderr
    wide = [line for line in result.stderr.splitlines() if len(line) > 80 and " " in line]
    assert wide == [], "what is said breaks between words"
    settings = saved(berg)
    assert (settings["project"], settings["region"], settings["bucket"]) == (
        "berg-local",
        "us-west1",
        name,
    )
    # one of the user's own, as the project has the shared one already
    assert settings["service_account"].startswith("berg-worker-")
    bucket = berg.cloud.call("GET", f"/storage/v1/b/{name}")
    assert bucket["location"] == "US-WEST1"
    assert bucket["softDeletePolicy"]["retentionDurationSeconds"] == "0"
    assert bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"] is True
    assert bucket["iamConfiguration"]["publicAccessPrevention"] == "enforced"
    assert "berg run" in result.stderr


def test_local_takes_no_answers_for_google(berg):
    before = saved(berg)
    result = berg("init", "--local", "--region", "us-east1", "--image", "mine")
    assert result.returncode == 2 and "no settings but --monitoring" in result.stderr
    assert saved(berg) == before


def test_questions_are_explained_and_a_second_time_offers_the_answers(berg, init):
    answers = ["berg-local", "us-east1", berg.bucket_name, "", "y", "", ""]
    result = init(stdin="\n".join(answers) + "\n")
    assert result.returncode == 0, result.stderr
    for word in (
        "Project:",
        "Region:",
        "Bucket:",
        "Service account:",
        "Image:",
        berg.bucket_name,
        "us-east1",
    ):
        assert word in result.stderr
    assert result.stdout.strip() == "", (
        "data alone goes there; older clicks write the blank behind a question to it"
    )
    before = saved(berg)
    assert before["region"] == "us-east1"
    (berg.home / "berg.json").write_text(
        json.dumps({**before, "zones": ["us-east1-b"], "endpoint": None})
    )
    again = init(stdin="\n" * 6)
    assert again.returncode == 0, again.stderr
    assert "[us-east1]" in again.stderr
    assert {**saved(berg), "endpoint": None} == {
        **before,
        "zones": ["us-east1-b"],
        "endpoint": None,
    }


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--project", "no-such-project-1"], ["no-such-project-1", "gcloud services enable"]),
        (["--project", "berg-local", "--region", "mars"], ["no region 'mars'", "us-central1"]),
        (["--project", "berg-local", "--bucket", "Not_A_Name"], ["'Not_A_Name' cannot be created"]),
        (
            ["--project", "berg-local", "--image", "nothing"],
            ["no image or image family 'nothing'", "gcloud compute"],
        ),
    ],
)
def test_answers_that_do_not_hold_are_refused(berg, init, flags, words):
    berg.allowed = [400]
    bucket = [] if "--bucket" in flags else ["--bucket", berg.bucket_name]
    result = init("-y", *flags, *bucket)
    assert result.returncode == 1
    for word in words:
        assert word in result.stderr
    assert "Traceback" not in result.stderr
    assert not (berg.home / "berg.json").exists()


UNCOUNTED = [  # what an API says to credentials of a person that name no project
    "Your application is authenticating by using local Application Default Credentials. The iam.googleapis.com API "
    "requires a quota project, which is not set by default. To learn how to set your quota project, see "
    "https://cloud.google.com/docs/authentication/adc-troubleshooting/user-creds .",
    "Identity and Access Management (IAM) API has not been used in project 764086051850 before or it is disabled.",
]


@pytest.mark.parametrize("words", UNCOUNTED)
def test_credentials_without_a_quota_project_are_no_lack_of_rights(berg, init, cloud, words):
    for api in ("iam", "cloudresourcemanager"):
        cloud.fault(f"{api}.*", status=403, message=words, times=None)
    mend = "gcloud auth application-default set-quota-project berg-local"
    result = init("-y", "--project", "berg-local", "--bucket", berg.bucket_name)
    assert result.returncode == 1 and not (berg.home / "berg.json").exists(), result.stderr
    assert (
        "your Google credentials do not say which project's quota they use. Run: " in result.stderr
    )
    assert mend in result.stderr and "You lack the right" not in result.stderr


@pytest.mark.parametrize(
    ("method", "command"),
    [
        ("container.*", "cluster list"),
        ("monitoring.*", "dashboard"),
        ("artifactregistry.*", "image build --push --builder cloud"),
        ("cloudbuild.*", "image build --push --builder cloud"),
    ],
)
def test_no_quota_project_is_no_lack_of_rights_elsewhere_either(berg, cloud, method, command):
    (berg.repo / "Dockerfile").write_text("FROM debian\n")
    cloud.fault(method, status=403, message=UNCOUNTED[0], times=None)
    result = berg(*command.split())
    assert result.returncode == 1 and "set-quota-project berg-local" in result.stderr, result.stderr
    error = result.stderr.rpartition("berg: ")[2]
    assert "roles/" not in error and "may not" not in error


def test_who_may_not_list_buckets_names_one(berg, init, cloud):
    cloud.fault(
        "storage.buckets.list", status=403, message="you lack storage.buckets.list", times=None
    )
    result = init("-y", "--project", "berg-local", "--bucket", berg.bucket_name)
    assert result.returncode == 0, result.stderr
    assert "You may not list the project's buckets: you lack storage.buckets.list" in result.stderr
    assert saved(berg)["bucket"] == berg.bucket_name and "Created" not in result.stderr
    (berg.home / "berg.json").unlink()
    cloud.fault(
        "storage.buckets.get", status=403, message="you lack storage.buckets.get", times=None
    )
    result = init("-y", "--project", "berg-local", "--bucket", berg.bucket_name)
    assert (
        result.returncode == 1
        and f"access to bucket '{berg.bucket_name}' is forbidden" in result.stderr
    )


def test_a_bucket_is_not_created_without_a_yes(berg, init):
    answers = ["berg-local", "us-east1", f"fresh-{uuid.uuid4().hex[:12]}", "n"]
    result = init(stdin="\n".join(answers) + "\n")
    assert result.returncode == 1
    assert "there is no bucket" in result.stderr


@pytest.mark.slow
def test_a_broken_file_is_set_aside(berg, init):
    (berg.home / "berg.json").write_text("{oops")
    result = init("-y", "--project", "berg-local", "--bucket", berg.bucket_name)
    assert result.returncode == 0, result.stderr
    assert (berg.home / "berg.json.broken").read_text() == "{oops"
    assert saved(berg)["project"] == "berg-local"


def test_from_the_embedded_cloud_to_google_errors_are_googles(berg, cloud):
    result = berg("init", "-y")
    assert result.returncode == 1, result.stderr
    assert (
        "no Google credentials found. Run: gcloud auth application-default login" in result.stderr
    )
    assert "embedded cloud" not in result.stderr
    refused = berg("run", "-g", "0", "true", BERG_BUCKET="no-such-bucket")
    assert (
        "'no-such-bucket' does not exist. Create it, or choose another one: berg init --local"
        in refused.stderr
    )
    refused = berg("run", "-g", "0", "true", BERG_PROJECT="no-such-project")
    assert (
        "'no-such-project' cannot be used: The resource 'projects/no-such-project' was not"
        in refused.stderr
    )
    assert refused.returncode == 1 and "found. Choose one: berg init --local\n" in refused.stderr
    cloud.call("POST", "/_berg/projects", {"project": "next-door", "access": True})
    theirs = f"next-{berg.bucket_name}"
    cloud.call("POST", "/storage/v1/b?project=next-door", {"name": theirs})
    refused = berg("run", "-g", "0", "true", BERG_BUCKET=theirs)
    assert f"bucket '{theirs}' belongs to another project (number " in refused.stderr
    assert (
        ") than 'berg-local' (number " in refused.stderr
        and "the project: berg init --local\n" in refused.stderr
    )
    looked = {
        each["check"]: each
        for each in json.loads(berg("doctor", "--json", BERG_BUCKET=theirs).stdout)
    }
    assert looked["bucket"]["found"].startswith(
        f"gs://{theirs} belongs to another project, number "
    )
    assert (looked["bucket"]["status"], looked["bucket"]["fix"]) == ("failed", "berg init --local")


def test_settings_for_google_are_not_replaced_by_local_ones_unasked(berg):
    berg.write_config(project="my-project", bucket="my-bucket")
    result = berg("init", "--local")
    assert result.returncode == 1
    assert "BERG_HOME" in result.stderr
    assert saved(berg) == {"project": "my-project", "bucket": "my-bucket"}


@pytest.fixture
def kept_for_a_week(cloud):
    """An organisation policy that wants soft delete for a week."""
    constraint = "constraints/storage.softDeletePolicySeconds"
    path = "/cloudresourcemanager/v1/projects/berg-local"
    policy = {"constraint": constraint, "listPolicy": {"allowedValues": ["604800"]}}
    cloud.call("POST", f"{path}:setOrgPolicy", {"policy": policy})
    yield
    cloud.call("POST", f"{path}:clearOrgPolicy", {"constraint": constraint})


def test_a_bucket_is_made_where_soft_delete_may_not_be_off(berg, init, kept_for_a_week):
    name = f"fresh-{uuid.uuid4().hex[:12]}"
    result = init("-y", "--project", "berg-local", "--region", "us-west1", "--bucket", name)
    assert result.returncode == 0, result.stderr
    assert "Soft delete cannot be off here: " in result.stderr and "billed" in result.stderr
    bucket = berg.cloud.call("GET", f"/storage/v1/b/{name}")
    assert bucket["softDeletePolicy"]["retentionDurationSeconds"] == "604800"
    assert bucket["iamConfiguration"]["publicAccessPrevention"] == "enforced"

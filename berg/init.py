"""The walkthrough of `berg init`: what it asks Google, and what it asks the person.

Every answer is checked when it is given. It talks on standard error, like everything that is not data.
"""

from typing import Any

import click

from berg import BergError, config, credentials, gce, offers
from berg.config import Config
from berg.storage import Bucket

LOCAL_PROJECT, LOCAL_BUCKET = "berg-local", "berg-local-results"


def explain(text: str) -> None:
    click.echo(f"\n{text}", err=True)


def walk_through(settings: Config, given: dict[str, Any], yes: bool, create: bool) -> dict[str, Any]:
    """Ask for what was not given as a flag, offering what was answered before or what Google knows."""

    def ask(key: str, default: str) -> str:
        answer = given.get(key) or (default if yes else None)
        if answer is None:
            answer = click.prompt(key.replace("_", " "), default=default or None, err=True)
        setattr(settings, key, answer)
        return answer

    explain("Project: what pays for the machines. `gcloud projects list` shows yours.")
    ask("project", settings.project or default_project(settings))
    if not settings.project:
        raise BergError("no project is known. Run: berg init --project PROJECT")
    details = check_project(settings)

    regions = [item["name"] for page in gce.pages(settings, "/regions") for item in page.get("items", [])]
    explain(f"Region: machines start in its zones, and the bucket lies there. There are: {', '.join(regions)}")
    if ask("region", settings.region) not in regions:
        raise BergError(f"there is no region {settings.region!r}. Choose one of: {', '.join(regions)}")

    bucket = Bucket(settings)
    listed = bucket.client.list_buckets(fields="items(name,location),nextPageToken", retry=bucket.retry)
    places = {found.name: found.location.lower() for found in listed}
    explain(
        "Bucket: keeps code, logs and results. "
        + (f"The project has: {', '.join(places)}" if places else "The project has none yet; berg can create one.")
    )
    usual = next((name for name, place in places.items() if place == settings.region), f"{settings.project}-berg")
    ask_create_bucket(Bucket(settings), ask("bucket", settings.bucket or usual), places, yes or create)

    usual = details.get("defaultServiceAccount", "")
    explain(
        "Service account: what the machines act as. It needs roles/storage.objectAdmin on the bucket, and "
        "roles/compute.instanceAdmin.v1 to delete its own machine."
    )
    ask("service_account", settings.service_account or usual)

    explain("Image: what the machines boot; an image family gives its newest image.")
    ask("default_image", settings.default_image)
    ask("default_image_project", settings.default_image_project)
    offers.find_image(settings, settings.default_image, settings.default_image_project)
    keys = ("project", "region", "bucket", "service_account", "default_image", "default_image_project")
    return {key: getattr(settings, key) for key in (*keys, "endpoint", "credentials_file")}


def default_project(settings: Config) -> str:
    """The project that gcloud and Application Default Credentials are set to, if any."""
    _ = settings.credentials  # says what to do if there are none
    return "" if settings.credentials_file else credentials.application_default()[1] or ""


def check_project(settings: Config) -> dict[str, Any]:
    from google.api_core import exceptions

    try:
        return gce.call(settings, "GET", "")
    except (exceptions.NotFound, exceptions.Forbidden) as error:
        raise BergError(
            f"project {settings.project!r} cannot be used: {error.message} "
            "Check its id, or enable the API: gcloud services enable compute.googleapis.com"
        ) from None


def ask_create_bucket(bucket: Bucket, name: str, places: dict[str, str], yes: bool) -> None:
    """Create a bucket that is not in the project, after asking; raises BergError if that cannot be."""
    from google.api_core import exceptions

    if name in places:
        return
    if not yes and not click.confirm(f"Create bucket {name} in {bucket.config.region}?", default=True, err=True):
        raise BergError(f"there is no bucket {name!r} in the project. Run berg init again with another one")
    wanted = bucket.client.bucket(name)
    wanted.iam_configuration.uniform_bucket_level_access_enabled = True
    wanted.iam_configuration.public_access_prevention = "enforced"
    # A log is rewritten as it grows; soft delete would keep, and bill, every former version for a week.
    wanted.soft_delete_policy.retention_duration_seconds = 0
    try:
        bucket.client.create_bucket(wanted, location=bucket.config.region, retry=bucket.retry)
    except exceptions.Conflict:
        raise BergError(f"bucket {name!r} belongs to somebody else. Choose another name: berg init") from None
    except (exceptions.BadRequest, exceptions.Forbidden) as error:
        raise BergError(f"bucket {name!r} cannot be created: {error.message}. Run: berg init") from None
    click.echo(f"Created gs://{name}", err=True)


def set_up_local() -> dict[str, Any]:
    """Start the embedded cloud with a bucket in it; returns the settings that lead there."""
    from berg.local import control

    port = control.start(config.local_folder())
    values: dict[str, Any] = {
        "project": LOCAL_PROJECT,
        "region": "us-central1",
        "bucket": LOCAL_BUCKET,
        "service_account": "",
        "endpoint": f"http://127.0.0.1:{port}",
        "credentials_file": str(config.local_folder() / "credentials.json"),
    }
    bucket = Bucket(Config(**values))
    places = {found.name: found.location for found in bucket.client.list_buckets(retry=bucket.retry)}
    ask_create_bucket(bucket, LOCAL_BUCKET, places, yes=True)
    return values

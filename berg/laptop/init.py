"""The walkthrough of `berg init`: what it asks Google, and what it asks the person.

Every answer is checked when it is given. It talks on standard error, like everything that is not
data.
"""

import contextlib
import sys
from typing import Any

import click

from berg import BergError, config, credentials, wrapped
from berg.config import Config
from berg.google import api, grants, offers
from berg.google.storage import Bucket

LOCAL_PROJECT, LOCAL_BUCKET = "berg-local", "berg-local-results"


def say(text: str) -> None:
    click.echo(wrapped(text, sys.stderr), err=True)


def walk_through(
    settings: Config, given: dict[str, Any], yes: bool, create: bool
) -> dict[str, Any]:
    """Ask for what was not given as a flag, offering what was answered before or what Google knows."""

    def ask(key: str, default: str) -> str:
        answer = given.get(key) or (default if yes else None)
        if answer is None:
            answer = click.prompt(key.replace("_", " "), default=default or None, err=True)
        setattr(settings, key, answer)
        return answer

    say("\nProject: what pays for the machines. `gcloud projects list` shows yours.")
    before = settings.project
    ask("project", before or default_project(settings))
    if not settings.project:
        raise BergError("no project is known. Run: berg init --project PROJECT")
    details = check_project(settings)

    regions = [
        item["name"] for page in api.pages(settings, "/regions") for item in page.get("items", [])
    ]
    say(
        f"\nRegion: machines start in its zones, and the bucket lies there. There are: {', '.join(regions)}"
    )
    if ask("region", settings.region) not in regions:
        raise BergError(
            f"there is no region {settings.region!r}. Choose one of: {', '.join(regions)}"
        )

    places, hidden = list_buckets(settings)
    there = (
        f"The project has: {', '.join(places)}"
        if places
        else "The project has none yet; berg can create one."
    )
    say(f"\nBucket: keeps code, logs and results. {hidden or there}")
    usual = next(
        (name for name, place in places.items() if place == settings.region),
        f"{settings.project}-berg",
    )
    name = ask("bucket", settings.bucket or usual)
    bucket = Bucket(settings)
    if not hidden or not bucket.client.lookup_bucket(name, retry=bucket.retry):
        ask_create_bucket(bucket, name, places, yes or create)

    own = grants.account(settings)
    say(
        f"\nService account: what the machines act as. It needs {grants.NEEDS}. Berg can make one that has no more."
    )
    earlier = settings.service_account if settings.project == before else ""
    if ask("service_account", earlier or own) == own:
        settings.service_account = set_up_account(
            settings, details.get("defaultServiceAccount", ""), yes
        )
    else:
        say(
            f"{settings.service_account} is taken as it is. Look at what it may do with: berg doctor"
        )
    check_acting(settings)

    say("\nImage: what the machines boot; an image family gives its newest image.")
    ask("default_image", settings.default_image)
    ask("default_image_project", settings.default_image_project)
    offers.find_image(settings, settings.default_image, settings.default_image_project)
    keys = (
        "project",
        "region",
        "bucket",
        "service_account",
        "default_image",
        "default_image_project",
        "monitoring",
    )
    return {key: getattr(settings, key) for key in (*keys, "endpoint", "credentials_file")}


def default_project(settings: Config) -> str:
    """The project that gcloud and Application Default Credentials are set to, if any."""
    _ = settings.credentials  # says what to do if there are none
    return "" if settings.credentials_file else credentials.application_default()[1] or ""


def check_project(settings: Config) -> dict[str, Any]:
    from google.api_core import exceptions

    try:
        return api.call(settings, "GET", "")
    except (exceptions.NotFound, exceptions.Forbidden) as error:
        raise BergError(
            f"project {settings.project!r} cannot be used: {api.words(error)}. "
            f"Check its id, or enable the API: {api.enable_command(settings, 'compute')}"
        ) from None


def list_buckets(settings: Config) -> tuple[dict[str, str], str]:
    """The buckets of the project and where they lie; and why they cannot be seen."""
    from google.api_core import exceptions

    bucket = Bucket(settings)
    try:
        listed = bucket.client.list_buckets(
            fields="items(name,location),nextPageToken", retry=bucket.retry
        )
        return {found.name: found.location.lower() for found in listed}, ""
    except exceptions.Forbidden as error:
        return {}, f"Which there are you may not see: {api.words(error)}."


def ask_create_bucket(bucket: Bucket, name: str, places: dict[str, str], yes: bool) -> None:
    """Create a bucket that is not in the project, after asking; raises BergError if that cannot be."""
    from google.api_core import exceptions

    if name in places:
        return
    if not yes and not click.confirm(
        f"Create bucket {name} in {bucket.config.region}?", default=True, err=True
    ):
        raise BergError(
            f"there is no bucket {name!r} in the project. Run berg init again with another one"
        )
    wanted = bucket.client.bucket(name)
    wanted.iam_configuration.uniform_bucket_level_access_enabled = True
    wanted.iam_configuration.public_access_prevention = "enforced"
    # A log is rewritten as it grows; soft delete would keep, and bill, every former version for a
    # week.
    wanted.soft_delete_policy.retention_duration_seconds = 0
    try:
        bucket.client.create_bucket(wanted, location=bucket.config.region, retry=bucket.retry)
    except exceptions.Conflict:
        raise BergError(
            f"bucket {name!r} belongs to somebody else. Choose another name: berg init"
        ) from None
    except (exceptions.BadRequest, exceptions.Forbidden) as error:
        raise BergError(
            f"bucket {name!r} cannot be created: {api.words(error)}. Run: berg init"
        ) from None
    say(f"Created gs://{name}")


def set_up_account(settings: Config, default: str, yes: bool) -> str:
    """Give berg's own account what it lacks, after asking; returns it, or else the project's
    default account.
    """
    from google.api_core import exceptions

    own = grants.account(settings)
    lacking, refusal = grants.missing(settings)
    if not lacking:
        say(f"{own} has what it needs; nothing was changed")
        return own
    with contextlib.suppress(exceptions.NotFound, exceptions.Forbidden):
        if refusal and grants.may_act_as(settings, own):
            say(f"{own} is taken as it is: what it may do you cannot see ({refusal})")
            return own
    if not refusal:
        say("\n".join(grant.text for grant in lacking))
        if yes or click.confirm("Do this?", default=True, err=True):
            try:
                while lacking:
                    lacking[0].make()
                    lacking.pop(0)
                say("Done. Google may take some minutes until it holds everywhere")
                return own
            except (
                exceptions.Forbidden,
                exceptions.BadRequest,
            ) as error:  # BadRequest: rules of the organization
                refusal = api.words(error)
    if refusal:
        enable = [api.enable_command(settings, *grants.APIS)] if "disabled" in refusal else []
        commands = [*enable, *(grant.gcloud for grant in lacking)]
        commands.append(grants.act_as_command(settings, own))
        say(
            f"You lack the right to set up {own}: {refusal}\nAn administrator of the project can, with:\n  "
            + "\n  ".join(commands)
            + f"\nand then you, when it holds, which may take minutes:\n  berg init --service-account {own}",
        )
    question = f"Go on with the project's default account {default} for now?"
    if not default or not (yes or click.confirm(question, default=True, err=True)):
        raise BergError(
            "the machines have no account to act as. Name one: berg init --service-account ACCOUNT"
        )
    say(f"The machines act as the project's default account {default}")
    return default


def check_acting(settings: Config) -> None:
    """Say so if the person may not start machines that act as the account; raises BergError if
    there is none.
    """
    from google.api_core import exceptions

    email = settings.service_account
    try:
        if not grants.may_act_as(settings, email):
            command = grants.act_as_command(settings, email)
            say(
                f"To start machines that act as {email} you need {grants.ACT_AS} on it:\n  {command}"
            )
    except exceptions.NotFound:
        if email != grants.account(settings):  # which takes a while to be known everywhere
            raise BergError(
                f"there is no service account {email!r}. Choose another one: berg init"
            ) from None
    except exceptions.Forbidden as error:
        say(
            f"Whether you may start machines that act as {email} cannot be seen: {api.words(error)}"
        )


def set_up_local(monitoring: int = 0) -> dict[str, Any]:
    """Start the embedded cloud, with a bucket and the machines' account in it; returns the settings
    that lead there.
    """
    from localcloud import control

    port = control.start(config.local_folder())
    values: dict[str, Any] = {
        "project": LOCAL_PROJECT,
        "region": "us-central1",
        "bucket": LOCAL_BUCKET,
        "service_account": "",
        "monitoring": monitoring,
        "endpoint": f"http://127.0.0.1:{port}",
        "credentials_file": str(config.local_folder() / "credentials.json"),
    }
    bucket = Bucket(Config(**values))
    places = {
        found.name: found.location for found in bucket.client.list_buckets(retry=bucket.retry)
    }
    ask_create_bucket(bucket, LOCAL_BUCKET, places, yes=True)
    return {**values, "service_account": set_up_account(Config(**values), "", yes=True)}

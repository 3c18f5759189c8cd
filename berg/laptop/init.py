"""The questions of `berg init`. Each answer is checked at once; messages go to standard error."""

import contextlib
import sys
from dataclasses import dataclass, replace
from typing import Any

import click

from berg import BergError, config, plain, wrapped
from berg.config import Config
from berg.gke import client, pods
from berg.google import api, builds, iam, offers
from berg.google.storage import Bucket
from berg.laptop import doctor

KEYS = (  # the settings that are saved
    "project",
    "region",
    "bucket",
    "service_account",
    "default_image",
    "monitoring",
    "endpoint",
    "credentials_file",
)
LOCAL_PROJECT, LOCAL_BUCKET = "berg-local", "berg-local-results"


def say(text: str) -> None:
    plain.echo(wrapped(text, sys.stderr), err=True)


@dataclass
class Walk:
    """The settings so far, and how to ask for more."""

    settings: Config
    given: dict[str, Any]  # answers given as flags
    yes: bool  # accept the defaults

    def ask(self, key: str, default: str) -> str:
        """Ask for a setting unless a flag gave it, and keep the answer."""
        answer = self.given.get(key)
        if not answer:
            answer = default
            if not self.yes:
                text = key.replace("_", " ")
                flag = f"--{key.removeprefix('default_').replace('_', '-')}"
                plain.refuse_to_ask(f"{text}?", f"{flag}, or -y for {default or 'no value'}")
                answer = click.prompt(text, default=default or None, err=True)
        self.settings.put(key, answer)
        return str(answer)


def walk_through(
    settings: Config, given: dict[str, Any], yes: bool, create: bool
) -> dict[str, Any]:
    """Ask for all settings, and return them.

    The defaults are earlier answers, or what Google knows. `create`: create the bucket unasked.
    """
    walk = Walk(settings, given, yes)
    before = settings.project
    details = ask_project(walk)
    ask_region(walk)
    ask_bucket(walk, yes or create)
    earlier = settings.service_account if settings.project == before else ""
    ask_account(walk, earlier, details.get("defaultServiceAccount", ""))
    say("\nImage: what the machines boot; an image family gives its newest image.")
    walk.ask("default_image", settings.default_image)
    offers.find_image(settings, *settings.image)
    for finding in doctor.ask(settings, doctor.RIGHTS):
        if finding.status != doctor.OK:
            doctor.show(finding, sys.stderr)
    return {key: getattr(settings, key) for key in KEYS}


def ask_project(walk: Walk) -> dict[str, Any]:
    """Ask for the project; return what Compute Engine knows about it."""
    settings = walk.settings
    say("\nProject: what pays for the machines. `gcloud projects list` shows yours.")
    default = settings.project
    if not default:
        _ = settings.credentials  # reports missing ones
        if not settings.credentials_file:
            default = config.application_default()[1] or ""
    walk.ask("project", default)
    if not settings.project:
        raise BergError("no project is known. Run: berg init --project PROJECT")
    try:
        return api.when_on(settings, lambda: api.call(settings, "GET", ""))
    except (api.NotFound, api.Forbidden) as error:
        raise BergError(
            f"project {settings.project!r} cannot be used: {api.words(error)}. "
            f"Check its id, or enable the API: {api.enable_command(settings, 'compute')}"
        ) from None


def ask_region(walk: Walk) -> None:
    settings = walk.settings
    regions = [item["name"] for item in api.items(settings, "/regions")]
    known = ", ".join(regions)
    say(f"\nRegion: of the bucket, and of the zones where machines start. There are: {known}")
    if walk.ask("region", settings.region) not in regions:
        raise BergError(f"there is no region {settings.region!r}. Choose one of: {known}")


def ask_bucket(walk: Walk, create: bool) -> None:
    """Ask for the bucket, and create it if there is none."""
    settings = walk.settings
    buckets, refusal = list_buckets(settings)
    known = refusal or "The project has none yet; berg can create one."
    if buckets:
        known = f"The project has: {', '.join(buckets)}"
    say(f"\nBucket: keeps code, logs and results. {known}")
    in_region = [name for name, location in buckets.items() if location == settings.region]
    usual = in_region[0] if in_region else f"{settings.project}-berg"
    name = walk.ask("bucket", settings.bucket or usual)
    if refusal:
        with contextlib.suppress(api.NotFound):
            Bucket(settings).ask("GET", fields="name")
            return
    if name not in buckets:
        if not create and not plain.confirm(
            f"Create bucket {name} in {settings.region}?", "--create-bucket", default=True
        ):
            raise BergError(
                f"there is no bucket {name!r} in the project. Run berg init again with another one"
            )
        create_bucket(settings, name)


def ask_account(walk: Walk, earlier: str, default: str) -> None:
    """Ask for the account of the machines, and set it up if it is berg's."""
    settings = walk.settings
    say(
        f"\nService account: what the machines act as. It needs {iam.NEEDS}. "
        "Berg can make one that has no more. Jobs of one account may read each other's secrets."
    )
    if iam.is_ours(settings, walk.ask("service_account", earlier or usual_account(settings))):
        settings.service_account = set_up_account(settings, default, walk.yes)
        return
    if iam.is_default(settings.service_account):
        say(f"Careful: {iam.DEFAULT_IS_WIDE}")
    say(f"{settings.service_account} is used unchanged. Check its roles with: berg doctor")
    for found in doctor.check_acting(settings):
        if found.check == doctor.ACCOUNT:
            raise BergError(f"{found.found}. Choose another one: berg init")


def usual_account(settings: Config) -> str:
    """Return the default account: one of the user's own if others have the shared one already."""
    shared = iam.shared_account(settings)
    try:
        iam.may_act_as(settings, shared)
    except (api.NotFound, api.Forbidden):
        return shared
    return iam.account_of_user(settings)


def list_buckets(settings: Config) -> tuple[dict[str, str], str]:
    """Return the project's buckets and their locations; if they cannot be seen, also why."""
    fields = "items(name,location),nextPageToken"
    where = f"{api.buckets_url(settings)}?project={settings.project}"
    listed = api.items(settings, where, fields=fields)
    try:
        return {each["name"]: each["location"].lower() for each in listed}, ""
    except api.Forbidden as error:
        return {}, f"You may not list the project's buckets: {api.words(error)}."


def create_bucket(settings: Config, name: str) -> None:
    """Create a bucket in the region of the settings, which can never be public."""
    import google.cloud.storage as storage  # takes half a second

    options = {"api_endpoint": settings.endpoint} if settings.endpoint else None
    client = storage.Client(settings.project, settings.credentials, client_options=options)
    bucket = client.bucket(name)
    bucket.iam_configuration.uniform_bucket_level_access_enabled = True
    bucket.iam_configuration.public_access_prevention = "enforced"
    # A log is rewritten as it grows; soft delete would keep, and bill, each version for a week.
    bucket.soft_delete_policy.retention_duration_seconds = 0

    def create() -> None:
        with api.translated():
            client.create_bucket(bucket, location=settings.region, retry=None)

    try:
        try:
            api.retry(create)
        except api.PreconditionFailed as error:
            say(
                f"Soft delete cannot be off here: {api.words(error)}. Every version of what jobs "
                "rewrite is kept, and billed, for as long as your organisation requires"
            )
            bucket.soft_delete_policy.retention_duration_seconds = None
            api.retry(create)
    except api.Conflict:
        raise BergError(
            f"bucket {name!r} belongs to another project. Choose another name: berg init"
        ) from None
    except (api.BadRequest, api.Forbidden) as error:
        raise BergError(
            f"bucket {name!r} cannot be created: {api.words(error)}. Run: berg init"
        ) from None
    say(f"Created gs://{name}")


def set_up_account(settings: Config, default: str, yes: bool) -> str:
    """Give berg's own account what it lacks, after asking.

    Returns the account to use: this one, else the shared one, else the project's default one.
    """
    own = iam.account(settings)
    lacking, refusal = iam.missing(settings)
    acting = replace(settings, service_account=own)
    lacking += builds.too_wide(acting)
    lacking += pods.missing_grants(acting, lambda: client.seen_clusters(acting))
    if not lacking:
        say(f"{own} has what it needs; nothing was changed")
        return own
    if refusal and may_use(settings, own):
        say(f"{own} is used unchanged: you do not have permission to see its roles ({refusal})")
        return own
    if not refusal:
        say("\n".join(grant.text for grant in lacking))
        if yes or plain.confirm("Do this?", default=True):
            refusal = iam.make_all(lacking)
            if not refusal:
                say("Done. It may take Google some minutes to apply this everywhere")
                return own
    if refusal:
        say_who_can(settings, own, lacking, refusal)
    shared = iam.shared_account(settings)
    if own != shared and may_use(settings, shared):
        say(f"For now the machines act as {shared}, as those of other users do")
        return shared
    return default_account(default, yes)


def say_who_can(settings: Config, own: str, lacking: list[iam.Grant], refusal: str) -> None:
    """Print the commands with which an administrator sets up the account."""
    commands = [grant.gcloud for grant in lacking]
    if "disabled" in refusal:
        commands.insert(0, api.enable_command(settings, *iam.APIS))
    commands.append(iam.act_as_command(settings, own))
    say(
        f"You lack the right to set up {own}: {refusal}\n"
        "An administrator of the project can, with:\n  "
        + "\n  ".join(commands)
        + "\nand then you, some minutes later:\n"
        f"  berg init --service-account {own}"
    )


def may_use(settings: Config, email: str) -> bool:
    """Return whether the account exists and the user may start machines that act as it."""
    try:
        return iam.may_act_as(settings, email)
    except (api.NotFound, api.Forbidden):
        return False


def default_account(default: str, yes: bool) -> str:
    """Return the project's default account if the user agrees; else raise BergError."""
    if default and yes:
        raise BergError(
            f"the machines have no account to act as. -y does not choose the project's default "
            f"account {default}; you can: berg init --service-account {default}"
        )
    if default:
        say(f"Careful: {iam.DEFAULT_IS_WIDE}")
    question = f"Use the project's default account {default} for now?"
    option = f"--service-account {default}"
    if not default or not plain.confirm(question, option):
        raise BergError(
            "the machines have no account to act as. Name one: berg init --service-account ACCOUNT"
        )
    say(f"The machines act as the project's default account {default}")
    return default


def set_up_local(monitoring: int = 0) -> dict[str, Any]:
    """Start the embedded cloud with a bucket and the machines' account; return its settings."""
    port = config.embedded_cloud().start(config.local_folder())
    values: dict[str, Any] = {
        "project": LOCAL_PROJECT,
        "region": "us-central1",
        "bucket": LOCAL_BUCKET,
        "service_account": "",
        "monitoring": monitoring,
        "endpoint": f"http://127.0.0.1:{port}",
        "credentials_file": str(config.local_folder() / "credentials.json"),
        "ask_above": 0,  # nothing here costs money
    }
    settings = Config(**values)
    if LOCAL_BUCKET not in list_buckets(settings)[0]:
        create_bucket(settings, LOCAL_BUCKET)
    return {**values, "service_account": set_up_account(settings, "", yes=True)}

"""The walkthrough of `berg init`: what it asks Google, and what it asks the person.

Every answer is checked when it is given. It talks on standard error, like everything that is not
data.
"""

import contextlib
import sys
from dataclasses import dataclass, replace
from typing import Any

import click

from berg import BergError, config, plain, wrapped
from berg.config import Config
from berg.gke import container, podaccount
from berg.gke import place as gke
from berg.google import api, builds, iam, offers
from berg.google.storage import Bucket
from berg.laptop import doctor

KEYS = (  # what a walk settles
    "project",
    "region",
    "bucket",
    "service_account",
    "default_image",
    "default_image_project",
    "monitoring",
    "endpoint",
    "credentials_file",
)
LOCAL_PROJECT, LOCAL_BUCKET = "berg-local", "berg-local-results"


def say(text: str) -> None:
    plain.echo(wrapped(text, sys.stderr), err=True)


@dataclass
class Walk:
    """One walk through the questions: the settings so far, and how they are asked for."""

    settings: Config
    given: dict[str, Any]  # answers that came as flags
    yes: bool  # take what is offered

    def ask(self, key: str, default: str) -> str:
        """Ask for a setting that no flag gave, and keep the answer."""
        answer = self.given.get(key)
        if not answer and self.yes:
            answer = default
        if not answer and not self.yes:
            text = key.replace("_", " ")
            answer = click.prompt(text, default=default or None, err=True)
        setattr(self.settings, key, answer)
        return str(answer)


def walk_through(
    settings: Config, given: dict[str, Any], yes: bool, create: bool
) -> dict[str, Any]:
    """Ask for what no flag gave, and offer what was answered before or what Google knows."""
    walk = Walk(settings, given, yes)
    before = settings.project
    details = ask_project(walk)
    ask_region(walk)
    ask_bucket(walk, yes or create)
    earlier = settings.service_account if settings.project == before else ""
    ask_account(walk, earlier, details.get("defaultServiceAccount", ""))
    say("\nImage: what the machines boot; an image family gives its newest image.")
    walk.ask("default_image", settings.default_image)
    walk.ask("default_image_project", settings.default_image_project)
    offers.find_image(settings, settings.default_image, settings.default_image_project)
    for found in doctor.ask(settings, doctor.RIGHTS):
        if found.status != doctor.OK:
            say(f"\n{found.check}: {found.found}")
            if found.mend:
                say(f"  {found.mend}")
    return {key: getattr(settings, key) for key in KEYS}


def ask_project(walk: Walk) -> dict[str, Any]:
    """Ask for the project; return what Compute Engine knows about it."""
    settings = walk.settings
    say("\nProject: what pays for the machines. `gcloud projects list` shows yours.")
    walk.ask("project", settings.project or default_project(settings))
    if not settings.project:
        raise BergError("no project is known. Run: berg init --project PROJECT")
    return check_project(settings)


def ask_region(walk: Walk) -> None:
    settings = walk.settings
    pages = api.pages(settings, "/regions")
    regions = [item["name"] for page in pages for item in page.get("items", [])]
    known = ", ".join(regions)
    say(f"\nRegion: machines start in its zones, and the bucket lies there. There are: {known}")
    if walk.ask("region", settings.region) not in regions:
        raise BergError(f"there is no region {settings.region!r}. Choose one of: {known}")


def ask_bucket(walk: Walk, create: bool) -> None:
    """Ask for the bucket, and create one that is not there."""
    settings = walk.settings
    places, hidden = list_buckets(settings)
    known = "The project has none yet; berg can create one."
    if places:
        known = f"The project has: {', '.join(places)}"
    say(f"\nBucket: keeps code, logs and results. {hidden or known}")
    in_region = [name for name, place in places.items() if place == settings.region]
    usual = in_region[0] if in_region else f"{settings.project}-berg"
    name = walk.ask("bucket", settings.bucket or usual)
    if hidden:
        with contextlib.suppress(api.NotFound):
            Bucket(settings).ask("GET", fields="name")
            return
    ask_create_bucket(settings, name, places, create)


def ask_account(walk: Walk, earlier: str, default: str) -> None:
    """Ask for the account of the machines, and set up berg's own."""
    settings = walk.settings
    say(
        f"\nService account: what the machines act as. It needs {iam.NEEDS}. "
        "Berg can make one that has no more. Jobs of one account may read each other's secrets."
    )
    if iam.is_ours(settings, walk.ask("service_account", earlier or usual_account(settings))):
        settings.service_account = set_up_account(settings, default, walk.yes)
    else:
        if iam.is_default(settings.service_account):
            say(f"Careful: {iam.DEFAULT_IS_WIDE}")
        say(
            f"{settings.service_account} is used as it is. Look at what it may do with: berg doctor"
        )
        for found in doctor.check_acting(settings):
            if found.check == doctor.ACCOUNT:
                raise BergError(f"{found.found}. Choose another one: berg init")


def usual_account(settings: Config) -> str:
    """Return the account to offer: one of one's own where others have the shared one already."""
    shared = iam.shared_account(settings)
    try:
        iam.may_act_as(settings, shared)
    except (api.NotFound, api.Forbidden):
        return shared
    return iam.account_of_user(settings)


def default_project(settings: Config) -> str:
    """The project that gcloud and Application Default Credentials are set to, if any."""
    _ = settings.credentials  # says what to do if there are none
    return "" if settings.credentials_file else config.application_default()[1] or ""


def check_project(settings: Config) -> dict[str, Any]:
    try:
        found: dict[str, Any] = api.when_on(settings, lambda: api.call(settings, "GET", ""))
        return found
    except (api.NotFound, api.Forbidden) as error:
        raise BergError(
            f"project {settings.project!r} cannot be used: {api.words(error)}. "
            f"Check its id, or enable the API: {api.enable_command(settings, 'compute')}"
        ) from None


def list_buckets(settings: Config) -> tuple[dict[str, str], str]:
    """The buckets of the project and where they lie; and why they cannot be seen."""
    fields = "items(name,location),nextPageToken"
    pages = api.pages(settings, buckets_of(settings), fields=fields)
    try:
        listed = [each for page in pages for each in page.get("items", [])]
        return {each["name"]: each["location"].lower() for each in listed}, ""
    except api.Forbidden as error:
        return {}, f"Which there are you may not see: {api.words(error)}."


def ask_create_bucket(settings: Config, name: str, places: dict[str, str], yes: bool) -> None:
    """Ask whether to create a bucket that is not in the project, and create it."""
    if name in places:
        return
    if not yes and not click.confirm(
        f"Create bucket {name} in {settings.region}?", default=True, err=True
    ):
        raise BergError(
            f"there is no bucket {name!r} in the project. Run berg init again with another one"
        )
    # A log is rewritten as it grows; soft delete would keep, and bill, every former version for a
    # week.
    without = {"softDeletePolicy": {"retentionDurationSeconds": "0"}}
    try:
        try:
            create(settings, name, **without)
        except api.PreconditionFailed as error:
            say(
                f"Soft delete cannot be off here: {api.words(error)}. What jobs write again and "
                "again is kept, and billed, for as long as your organisation wants it"
            )
            create(settings, name)
    except api.Conflict:
        raise BergError(
            f"bucket {name!r} belongs to somebody else. Choose another name: berg init"
        ) from None
    except (api.BadRequest, api.Forbidden) as error:
        raise BergError(
            f"bucket {name!r} cannot be created: {api.words(error)}. Run: berg init"
        ) from None
    say(f"Created gs://{name}")


def create(settings: Config, name: str, **more: Any) -> None:
    """Create a bucket in the region of the settings, which can never be public."""
    access = {
        "uniformBucketLevelAccess": {"enabled": True},
        "publicAccessPrevention": "enforced",
    }
    body = {"name": name, "location": settings.region, "iamConfiguration": access, **more}
    api.call(settings, "POST", buckets_of(settings), body)


def buckets_of(settings: Config) -> str:
    return f"{api.buckets_url(settings)}?project={settings.project}"


def set_up_account(settings: Config, default: str, yes: bool) -> str:
    """Give berg's own account what it lacks, after asking.

    Returns it, or else the shared one, or the project's default account.
    """
    own = iam.account(settings)
    lacking, refusal = iam.missing(settings)
    acting = replace(settings, service_account=own)
    lacking += builds.too_wide(acting)
    lacking += podaccount.missing(acting, lambda: gke.if_seen(lambda: container.clusters(acting)))
    if not lacking:
        say(f"{own} has what it needs; nothing was changed")
        return own
    if refusal and may_use(settings, own):
        say(f"{own} is used as it is: you may not see what it may do ({refusal})")
        return own
    if not refusal:
        say("\n".join(grant.text for grant in lacking))
        if yes or click.confirm("Do this?", default=True, err=True):
            refusal = iam.make_all(lacking)
            if not refusal:
                say("Done. Google may take some minutes until it holds everywhere")
                return own
    if refusal:
        say_who_can(settings, own, lacking, refusal)
    shared = iam.shared_account(settings)
    if own != shared and may_use(settings, shared):
        say(f"For now the machines act as {shared}, as those of others do")
        return shared
    return take_default(default, yes)


def may_use(settings: Config, email: str) -> bool:
    """Tell whether the account is there and the person may start machines that act as it."""
    try:
        return iam.may_act_as(settings, email)
    except (api.NotFound, api.Forbidden):
        return False


def say_who_can(settings: Config, own: str, lacking: list[iam.Grant], refusal: str) -> None:
    """Show the commands with which an administrator sets up the account."""
    commands = [grant.gcloud for grant in lacking]
    if "disabled" in refusal:
        commands.insert(0, api.enable_command(settings, *iam.APIS))
    commands.append(iam.act_as_command(settings, own))
    say(
        f"You lack the right to set up {own}: {refusal}\n"
        "An administrator of the project can, with:\n  "
        + "\n  ".join(commands)
        + "\nand then you, when it holds, which may take minutes:\n"
        f"  berg init --service-account {own}"
    )


def take_default(default: str, yes: bool) -> str:
    """Ask whether the machines may act as the project's default account, and return it.

    Raises BergError if nobody can be asked.
    """
    if default and yes:
        raise BergError(
            f"the machines have no account to act as. -y does not choose the project's default "
            f"account {default}; you can: berg init --service-account {default}"
        )
    if default:
        say(f"Careful: {iam.DEFAULT_IS_WIDE}")
    question = f"Go on with the project's default account {default} for now?"
    if not default or not click.confirm(question, default=False, err=True):
        raise BergError(
            "the machines have no account to act as. Name one: berg init --service-account ACCOUNT"
        )
    say(f"The machines act as the project's default account {default}")
    return default


def set_up_local(monitoring: int = 0) -> dict[str, Any]:
    """Start the embedded cloud, with a bucket and the machines' account in it; returns the settings
    that lead there.
    """
    port = config.embedded_cloud().start(config.local_folder())
    values: dict[str, Any] = {
        "project": LOCAL_PROJECT,
        "region": "us-central1",
        "bucket": LOCAL_BUCKET,
        "service_account": "",
        "monitoring": monitoring,
        "endpoint": f"http://127.0.0.1:{port}",
        "credentials_file": str(config.local_folder() / "credentials.json"),
        "ask_above": 0,  # nobody pays for it
    }
    settings = Config(**values)
    places, _ = list_buckets(settings)
    ask_create_bucket(settings, LOCAL_BUCKET, places, yes=True)
    return {**values, "service_account": set_up_account(settings, "", yes=True)}

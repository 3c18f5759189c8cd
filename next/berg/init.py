"""Setup: `berg init` for Google or an embedded cloud, `berg config`, `berg local`."""

from dataclasses import fields
from typing import Any

import click

from berg import BergError, google, terminal
from berg.bucket import Bucket
from berg.config import Config, home, path

LOCAL = {"project": "berg-local", "bucket": "berg-local-results", "ask_above": "0"}
ACCOUNT, ROLE = "berg-worker", "bergMachine"
RIGHTS = [  # of a machine in its project
    "compute.instances.get",
    "compute.instances.list",
    "compute.instances.delete",
    "compute.instances.stop",  # a devbox
    "compute.instanceGroupManagers.update",  # to leave a group that goes on
    "compute.instanceGroupManagers.delete",
    "compute.instanceGroups.delete",
]


@click.command()
@click.option("--project", help="Project that pays for the machines.")
@click.option("--bucket", help="Bucket for code, logs and results.")
@click.option("--region", help="Region of machines and bucket.")
@click.option("--local", is_flag=True, help="Try Berg on this computer, without Google.")
@click.option("-y", "--yes", is_flag=True, help="Create what is missing without asking.")
def init(local: bool, yes: bool, **given: str | None) -> None:
    """Choose project and bucket, and make what jobs need: the bucket and an account for machines."""
    config = Config.read(
        **(local_settings() | {key: text for key, text in given.items() if text})
        if local
        else given
    )
    if not config.project:
        config.project = click.prompt("Project that pays for the machines", err=True)
    config.bucket = config.bucket or f"{config.project}-berg"
    bucket = Bucket(config)
    if not bucket.client.exists():
        if not terminal.confirm(f"Create gs://{config.bucket} in {config.region}?", yes, "-y"):
            raise BergError("Berg needs a bucket. Name one: berg init --bucket BUCKET")
        create_bucket(config)
    email = f"{ACCOUNT}@{config.project}.iam.gserviceaccount.com"
    if not config.service_account and terminal.confirm(
        f"Create the account {email}, with the least rights for machines?", yes, "-y"
    ):
        create_account(config, email)
        config.service_account = email
    config.save()
    terminal.say(f'Saved {path()}. Now, in a git repository:  berg run "python train.py"')


def local_settings() -> dict[str, str]:
    """Start the embedded cloud of this user; return its settings."""
    folder = home() / "local"
    port = control().start(folder)
    endpoint, file = f"http://127.0.0.1:{port}", str(folder / "credentials.json")
    return {**LOCAL, "endpoint": endpoint, "credentials_file": file}


def control() -> Any:
    try:
        from localcloud import control as module
    except ModuleNotFoundError:
        raise BergError(
            "the embedded cloud is not installed. Run: pip install /path/to/localcloud"
        ) from None
    return module


def create_bucket(config: Config) -> None:
    """A bucket that can never be public, and keeps no old versions of growing logs."""
    made = Bucket(config).client
    made.iam_configuration.uniform_bucket_level_access_enabled = True
    made.iam_configuration.public_access_prevention = "enforced"
    made.soft_delete_policy.retention_duration_seconds = 0
    made.client.create_bucket(made, location=config.region)
    terminal.say(f"Created gs://{config.bucket}")


def create_account(config: Config, email: str) -> None:
    """The machines' account: may use the bucket's objects, and delete machines."""
    iam = f"{config.endpoint}/iam" if config.endpoint else "https://iam.googleapis.com"
    manager = (
        f"{config.endpoint}/cloudresourcemanager"
        if config.endpoint
        else "https://cloudresourcemanager.googleapis.com"
    )
    parent = f"{iam}/v1/projects/{config.project}"
    account = {"accountId": ACCOUNT, "serviceAccount": {"displayName": "Berg's machines"}}
    role = {
        "roleId": ROLE,
        "role": {"title": "Berg's machines", "includedPermissions": RIGHTS, "stage": "GA"},
    }
    for address, body in ((f"{parent}/serviceAccounts", account), (f"{parent}/roles", role)):
        try:
            google.send(config, "POST", address, body, {})
        except google.GoogleError as error:
            if error.status != 409:  # it is there already
                raise
    bucket, member = Bucket(config).client, f"serviceAccount:{email}"
    policy = bucket.get_iam_policy(requested_policy_version=3)
    policy.version = 3
    policy.bindings.append({"role": "roles/storage.objectUser", "members": {member}})
    google.retry(lambda: bucket.set_iam_policy(policy))
    url = f"{manager}/v1/projects/{config.project}"
    project = google.send(
        config, "POST", f"{url}:getIamPolicy", {"options": {"requestedPolicyVersion": 3}}, {}
    )
    role_name = f"projects/{config.project}/roles/{ROLE}"
    project.setdefault("bindings", []).append({"role": role_name, "members": [member]})
    google.send(config, "POST", f"{url}:setIamPolicy", {"policy": {**project, "version": 3}}, {})
    terminal.say(f"Created {email}. Google may need some minutes until its rights count everywhere")


@click.command()
@click.argument("key", required=False)
@click.argument("value", required=False)
def config(key: str | None, value: str | None) -> None:
    """Show the settings, or set KEY to VALUE."""
    settings = Config.read()
    known = {each.name: each.metadata["help"] for each in fields(settings)}
    if key and key not in known:
        raise BergError(f"there is no setting {key!r}. There are: {', '.join(known)}")
    if key and value is not None:
        setattr(settings, key, value)
        return settings.save()
    for name, text in known.items():
        if key in (None, name):
            terminal.show(f"{name} = {getattr(settings, name)}" + ("" if key else f"   # {text}"))
    return None


@click.command()
@click.argument("action", type=click.Choice(["start", "stop", "status"]))
def local(action: str) -> None:
    """Start or stop the embedded cloud of this computer."""
    folder = home() / "local"
    if action == "start":
        terminal.say(f"It runs at http://127.0.0.1:{control().start(folder)}")
    elif action == "stop":
        terminal.say("Stopped" if control().stop(folder) else "It did not run")
    else:
        terminal.say("It runs" if control().is_running(folder) else "It does not run")

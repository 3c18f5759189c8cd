"""Setup: `berg init` and `berg doctor` go through one list of checks; `berg config`, `berg local`.

A check looks at one thing that jobs need, and says what it found. What is lacking has the command
that helps, and a repair where Berg can do it: init asks and repairs, doctor only prints.
"""

import contextlib
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

import click

from berg import BergError, config, gce, google, terminal
from berg.bucket import Bucket
from berg.config import Config
from berg.google import GoogleError, last_part

LOCAL = {"project": "berg-local", "bucket": "berg-local-results", "ask_above": "0"}
ANSWERS = (
    "project",
    "region",
    "bucket",
    "service_account",
    "endpoint",
    "credentials_file",
    "ask_above",
)
ACCOUNT, ROLE = "berg-worker", "bergMachine"
BUCKET_ROLE = "roles/storage.objectUser"
RIGHTS = [  # of a machine in its project
    "compute.instances.get",
    "compute.instances.list",
    "compute.instances.delete",
    "compute.instances.stop",  # a devbox
    "compute.instanceGroupManagers.update",  # to leave a group that goes on
    "compute.instanceGroupManagers.delete",
    "compute.instanceGroups.delete",
]
ACT_AS = "iam.serviceAccounts.actAs"
OWN_RIGHTS = [  # of a user in the project; those of roles/compute.instanceAdmin.v1
    *(f"compute.instances.{verb}" for verb in ("create", "delete", "get", "list", "setLabels")),
    *(f"compute.instances.{verb}" for verb in ("setMetadata", "setServiceAccount", "start")),
    *("compute.instances.stop", "compute.instances.getGuestAttributes", "compute.disks.create"),
    *("compute.instanceTemplates.create", "compute.instanceGroupManagers.create"),
]
ON_BUCKET = [f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list", "update")]
APIS = ("compute", "storage", "iam", "cloudresourcemanager")
ANYWHERE, IAP = "0.0.0.0/0", "35.235.240.0/20"
TIMEOUT = 30  # seconds for the answers of all checks
OK, WARNING, FAILED = "ok", "warning", "failed"


class Lack(Exception):
    """What a check misses, and the command that helps; a warning where most jobs run without it."""

    def __init__(self, found: str, fix: str = "", status: str = FAILED):
        super().__init__(found)
        self.found, self.fix, self.status = found, fix, status


@dataclass
class Check:
    """`look` returns what it found or raises Lack, which `repair` ends, if the user says so."""

    name: str
    look: Callable[[Config], str]
    repair: Callable[[Config], None] | None = None
    question: str = ""


@dataclass
class Finding:
    check: str
    status: str
    found: str
    fix: str = ""


# --- what jobs need of this computer


def look_at_program(name: str, package: str, purpose: str, status: str) -> Callable[[Config], str]:
    def look(settings: Config) -> str:
        if not (found := shutil.which(name)):
            raise Lack(f"not installed; {purpose} needs it", f"apt-get install {package}", status)
        return found

    return look


def look_at_settings(settings: Config) -> str:
    if not (settings.project and settings.bucket):
        raise Lack(f"{config.path()} names no project and bucket", "berg init")
    return str(config.path())


def look_at_credentials(settings: Config) -> str:
    _ = settings.credentials  # raises what google.sentence explains
    return settings.credentials_file or "Application Default Credentials"


# --- what they need of Google


def address(settings: Config, service: str) -> str:
    """Where a service answers, of Google's or of the embedded cloud's."""
    if settings.endpoint:
        return f"{settings.endpoint}/{service}"
    return f"https://{service}.googleapis.com"


def ask(settings: Config, method: str, service: str, path: str, body: Any = None) -> dict[str, Any]:
    """Ask a service about the project; IAM's take no request id."""
    base = f"{address(settings, service)}/v1/projects/{settings.project}"
    return google.call(settings, method, base + path, body, requestId=None)


def look_at_project(settings: Config) -> str:
    if not google.find(settings, "", fields="name"):
        raise Lack(f"there is no project {settings.project!r}", "berg init --project PROJECT")
    return settings.project


def look_at_apis(settings: Config) -> str:
    names = "&".join(f"names=projects/{settings.project}/services/{name}.googleapis.com"
                     for name in APIS)  # fmt: skip
    services = ask(settings, "GET", "serviceusage", f"/services:batchGet?{names}")["services"]
    off = [name for name, row in zip(APIS, services, strict=True) if row["state"] != "ENABLED"]
    if off:
        services_off = " ".join(f"{name}.googleapis.com" for name in off)
        command = f"gcloud services enable {services_off} --project {settings.project}"
        raise Lack(f"off: {', '.join(off)}", command)
    return ", ".join(APIS)


def look_at_region(settings: Config) -> str:
    try:
        check_region(settings, settings.region)
        check_zones(settings, settings.zones)
    except BergError as error:
        raise Lack(str(error), "berg config set region REGION") from None
    return settings.zones or settings.region


def look_at_rights(settings: Config) -> str:
    answer = ask(
        settings, "POST", "cloudresourcemanager", ":testIamPermissions", {"permissions": OWN_RIGHTS}
    )
    if lacks := [each for each in OWN_RIGHTS if each not in answer.get("permissions", [])]:
        raise Lack(
            f"you lack {', '.join(lacks)}",
            f"gcloud projects add-iam-policy-binding {settings.project} --member user:YOUR_ADDRESS "
            "--role roles/compute.instanceAdmin.v1",
        )
    return "you may create and delete machines"


def look_at_bucket(settings: Config) -> str:
    bucket, name = Bucket(settings).client, f"gs://{settings.bucket}"
    if not bucket.exists():
        raise Lack(f"there is no {name}", "berg init")
    bucket.reload()
    if lacks := {*ON_BUCKET} - {*bucket.test_iam_permissions(ON_BUCKET)}:
        raise Lack(
            f"you lack {', '.join(sorted(lacks))} on {name}",
            f"gcloud storage buckets add-iam-policy-binding {name} --member user:YOUR_ADDRESS "
            "--role roles/storage.admin",
        )
    change = f"gcloud storage buckets update {name}"
    if bucket.iam_configuration.public_access_prevention != "enforced":
        fix = f"{change} --public-access-prevention"
        raise Lack(f"{name} could be made public", fix, WARNING)
    if bucket.soft_delete_policy.retention_duration_seconds:
        text = f"{name} bills each earlier version of a growing log: soft delete is on"
        raise Lack(text, f"{change} --clear-soft-delete", WARNING)
    location = str(bucket.location).lower()
    if location != settings.region:
        text = f"{name} is in {location}, and machines in {settings.region}: traffic costs"
        raise Lack(text, f"berg config set region {location}", WARNING)
    return f"{name} in {location}"


def create_bucket(settings: Config) -> None:
    """A bucket that can never be public, and keeps no old versions of growing logs."""
    made = Bucket(settings).client
    if made.exists():
        return  # what it lacks is for its owner to decide
    made.iam_configuration.uniform_bucket_level_access_enabled = True
    made.iam_configuration.public_access_prevention = "enforced"
    made.soft_delete_policy.retention_duration_seconds = 0
    made.client.create_bucket(made, location=settings.region)
    terminal.say(f"Created gs://{settings.bucket}")


def look_at_account(settings: Config) -> str:
    """The account that machines act as: it exists, the user may use it, and ours has its roles."""
    email = settings.service_account
    if not email:
        raise Lack("machines act as the project's default account, which may do all", "berg init")
    path = f"/serviceAccounts/{email}:testIamPermissions"
    try:
        held = ask(settings, "POST", "iam", path, {"permissions": [ACT_AS]}).get("permissions")
    except GoogleError as error:
        if (
            error.status not in (403, 404)
            or "it is disabled" in error.message  # the API
            or google.lacks_quota_project(error)
        ):
            raise
        raise Lack(f"there is no account {email}", "berg init") from None
    if not held:
        raise Lack(
            f"you may not start machines that act as {email}",
            f"gcloud iam service-accounts add-iam-policy-binding {email} --member user:YOUR_ADDRESS "
            f"--role roles/iam.serviceAccountUser --project {settings.project}",
        )
    if email != own_account(settings):
        return f"{email}, which needs {BUCKET_ROLE} on the bucket, and {', '.join(RIGHTS)}"
    if lacks := [text for text, _ in missing_grants(settings)]:
        raise Lack(f"{email} lacks {', '.join(lacks)}", "berg init")
    return email


def own_account(settings: Config) -> str:
    return f"{ACCOUNT}@{settings.project}.iam.gserviceaccount.com"


def missing_grants(settings: Config) -> list[tuple[str, Callable[[], Any]]]:
    """What Berg's account lacks, in words, and what gives it."""
    missing: list[tuple[str, Callable[[], Any]]] = []
    member, name = (
        f"serviceAccount:{own_account(settings)}",
        f"projects/{settings.project}/roles/{ROLE}",
    )
    about = {"title": "Berg's machines", "includedPermissions": RIGHTS, "stage": "GA"}
    role = google.find(settings, f"{address(settings, 'iam')}/v1/{name}")
    if role is None:
        made = {"roleId": ROLE, "role": about}
        missing.append((f"the role {ROLE}", partial(ask, settings, "POST", "iam", "/roles", made)))
    elif {*RIGHTS} - {*role.get("includedPermissions", [])}:
        change = partial(ask, settings, "PATCH", "iam", f"/roles/{ROLE}", about)
        missing.append((f"rights in the role {ROLE}", change))
    options = {"options": {"requestedPolicyVersion": 3}}
    policy = ask(settings, "POST", "cloudresourcemanager", ":getIamPolicy", options)
    if not has_role(policy.get("bindings", []), name, member):
        bindings = [*policy.get("bindings", []), {"role": name, "members": [member]}]
        body = {"policy": {**policy, "version": 3, "bindings": bindings}}
        give = partial(ask, settings, "POST", "cloudresourcemanager", ":setIamPolicy", body)
        missing.append((f"the role {ROLE} in the project", give))
    bucket = Bucket(settings).client
    of_bucket = bucket.get_iam_policy(requested_policy_version=3)
    if not has_role(of_bucket.bindings, BUCKET_ROLE, member):
        of_bucket.version = 3
        of_bucket.bindings.append({"role": BUCKET_ROLE, "members": {member}})
        give_bucket = partial(google.retry, partial(bucket.set_iam_policy, of_bucket))
        missing.append((f"{BUCKET_ROLE} on the bucket", give_bucket))
    return missing


def has_role(bindings: Any, role: str, member: str) -> bool:
    return any(
        row["role"] == role and member in row["members"] and not row.get("condition")
        for row in bindings
    )


def set_up_account(settings: Config) -> None:
    """The machines' account: may use the bucket's objects, and delete machines."""
    email = own_account(settings)
    if settings.service_account not in ("", email):
        return  # a user's own one is left as it is
    body = {"accountId": ACCOUNT, "serviceAccount": {"displayName": "Berg's machines"}}
    try:
        ask(settings, "POST", "iam", "/serviceAccounts", body)
    except GoogleError as error:
        if error.status != 409:  # it is there already
            raise
    end = time.monotonic() + google.NEW_ACCOUNT
    while True:
        try:
            for _, give in missing_grants(settings):
                give()
            break
        except Exception as error:  # a new account is not known everywhere at once
            code = getattr(error, "status", getattr(error, "code", 0))
            if code not in (400, 404, 409, 412) or time.monotonic() > end:
                raise
            time.sleep(2)
    settings.service_account = email
    terminal.say(f"{email} has the rights that machines need; they apply everywhere within minutes")


def look_at_network(settings: Config) -> str:
    """The network, and whether a rule lets ssh in; a narrower source may well be the user's."""
    check_network(settings, settings.network)
    inside = settings.no_external_ip.lower() in ("true", "1", "yes")
    source = IAP if inside else ANYWHERE
    sources = {
        each
        for rule in google.items(settings, "/global/firewalls")
        if last_part(rule["network"]) == settings.network and opens(rule, int(settings.ssh_port))
        for each in rule.get("sourceRanges", [])
    }
    if not (source in sources or ANYWHERE in sources or sources - {IAP} - private(sources)):
        raise Lack(
            f"no rule of {settings.network} lets ssh in, so berg ssh cannot connect",
            f"gcloud compute firewall-rules create {settings.network}-allow-ssh --allow tcp:{settings.ssh_port} "
            f"--network {settings.network} --source-ranges {source} --project {settings.project}",
            WARNING,
        )
    return f"{settings.network}, and ssh is let in"


def private(sources: set[str]) -> set[str]:
    import ipaddress

    return {each for each in sources if ipaddress.ip_network(each).is_private and each != ANYWHERE}


def opens(rule: dict[str, Any], port: int) -> bool:
    if rule.get("disabled") or rule.get("direction") != "INGRESS" or rule.get("targetTags"):
        return False
    for row in rule.get("allowed", []):
        spans = [text.partition("-") for text in row.get("ports", [])]
        has_port = any(int(low) <= port <= int(high or low) for low, _, high in spans)
        if row["IPProtocol"] in ("tcp", "6", "all") and (not spans or has_port):
            return True
    return False


def look_at_image(settings: Config) -> str:
    return last_part(gce.find_image(settings, settings.default_image))


def look_at_quota(settings: Config) -> str:
    """Whether a machine with one GPU of the usual type fits; Google shows all quotas by region."""
    kind = (settings.gpu_type or "l4").upper().replace("-", "_")
    rows = {
        row["metric"]: (row["limit"], row["usage"])
        for path in (f"/regions/{settings.region}", "")
        for row in (google.find(settings, path, fields="quotas") or {}).get("quotas", [])
    }
    shown = [name for name in (f"NVIDIA_{kind}_GPUS", "GPUS_ALL_REGIONS") if name in rows]
    text = ", ".join(f"{name} {rows[name][1]:g} of {rows[name][0]:g} in use" for name in shown)
    if any(rows[name][0] - rows[name][1] < 1 for name in shown):
        fix = f"{gce.QUOTA_PAGE}?project={settings.project}"
        raise Lack(f"no GPU is left in {settings.region}: {text}", fix, WARNING)
    return text or f"Google shows no quota of {kind} in {settings.region}"


CHECKS = [
    Check("git", look_at_program("git", "git", "berg run", FAILED)),
    Check("ssh", look_at_program("ssh", "openssh-client", "berg ssh", WARNING)),
    Check("rsync", look_at_program("rsync", "rsync", "berg sync", WARNING)),
    Check("settings", look_at_settings),
    Check("credentials", look_at_credentials),
    Check("project", look_at_project),
    Check("apis", look_at_apis),
    Check("region", look_at_region),
    Check("rights", look_at_rights),
    Check("bucket", look_at_bucket, create_bucket, "Create gs://{0.bucket} in {0.region}?"),
    Check("account", look_at_account, set_up_account,
          f"Create the account {ACCOUNT} with only the rights that machines need, or repair it?"),
    Check("network", look_at_network),
    Check("image", look_at_image),
    Check("quota", look_at_quota),
]  # fmt: skip


def finding(check: Check, settings: Config) -> Finding:
    """What a check finds; every error is one."""
    try:
        return Finding(check.name, OK, check.look(settings))
    except Lack as lack:
        return Finding(check.name, lack.status, lack.found, lack.fix)
    except BergError as error:
        return Finding(check.name, FAILED, str(error))
    except Exception as error:
        text = google.sentence(error, settings) or f"{type(error).__name__}: {error}"
        refused = isinstance(error, GoogleError) and error.status == 403  # to look
        return Finding(check.name, WARNING if refused else FAILED, text)


def examine(settings: Config) -> list[Finding]:
    """What all checks find, asked at once; without credentials and project Google is not asked."""
    first = [each.name for each in CHECKS].index("credentials") + 1
    found = [finding(check, settings) for check in CHECKS[:first]]
    if any(row.status == FAILED and row.check in ("settings", "credentials") for row in found):
        return found
    rest = CHECKS[first:]
    late = f"no answer within {TIMEOUT} s. Check the network"
    answers = {check.name: Finding(check.name, FAILED, late) for check in rest}

    def look(check: Check) -> None:
        answers[check.name] = finding(check, settings)

    # Daemons: one without an answer does not hold up the exit.
    threads = [threading.Thread(target=look, args=[check], daemon=True) for check in rest]
    for thread in threads:
        thread.start()
    end = time.monotonic() + TIMEOUT
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    return found + [answers[check.name] for check in rest]


def show(row: Finding, err: bool = False) -> None:
    color = {OK: "green", WARNING: "yellow", FAILED: "red"}[row.status]
    text = terminal.clean(f"{row.check:12} {row.found}")
    click.echo(click.style(f"{row.status:8}", fg=color) + text, err=err)
    if row.fix:
        click.echo(f"{'':21}{row.fix}", err=err)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Check all that jobs need, and print the next step for what is lacking. Exit 1 if a check failed.

    \b
    berg doctor
    berg doctor --json | jq -r '.[] | select(.status != "ok") | .fix'
    """
    settings = Config.read()
    settings.check_near()
    with terminal.waiting("Asking Google"):
        rows = examine(settings)
    if as_json:
        terminal.show_json([asdict(row) for row in rows])
    else:
        for row in rows:
            show(row)
    sys.exit(any(row.status == FAILED for row in rows))


@click.command()
@click.option("--project", help="Project that pays for the machines.")
@click.option("--bucket", help="Bucket for code, logs and results.")
@click.option("--region", help="Region of machines and bucket.")
@click.option("--service-account", help="Account that machines act as.")
@click.option("--local", is_flag=True, help="Try Berg on this computer, without Google.")
@click.option("-y", "--yes", is_flag=True, help="Create what is missing without asking.")
def init(local: bool, yes: bool, **given: str | None) -> None:
    """Choose project and bucket, check all that jobs need, and make what is missing.

    \b
    berg init
    berg init --project my-project --region us-central1 --bucket my-bucket -y
    berg init --local                        # no Google account needed
    """
    before = config.read_file()
    if local and before.get("project") and not before.get("endpoint") and not yes:
        raise BergError(
            f"{config.path()} is of the project {before['project']!r}, which --local would replace. "
            "To keep both: export BERG_HOME=~/.berg-local. To replace it: berg init --local -y"
        )
    if local:
        given = {**local_settings(), **{key: text for key, text in given.items() if text}}
        settings = Config.read(**given)
        is_same = before.get("endpoint") == settings.endpoint
        earlier = before.get("service_account") if is_same else ""
        settings.service_account = given.get("service_account") or earlier or ""
    else:
        settings = Config.read(**given)
        if before.get("endpoint") == settings.endpoint and settings.endpoint:
            # What the embedded cloud's file says is of no use for Google.
            settings = Config(**{key: text for key, text in given.items() if text})
        choose(settings, given, yes)
    answers = dict.fromkeys([*ANSWERS, *given])
    for check in CHECKS:
        row = finding(check, settings)
        if row.status != OK and check.repair:
            if not terminal.confirm(check.question.format(settings), yes, "-y"):
                if check.name == "bucket":
                    raise BergError("Berg needs a bucket. Name one: berg init --bucket BUCKET")
                continue
            check.repair(settings)
            row = finding(check, settings)
        if row.status == FAILED and check.name in ("git", "credentials", "project", "region"):
            raise BergError(f"{row.found}. {f'Next: {row.fix}' if row.fix else ''}".strip())
        if row.status != OK:
            show(row, err=True)
        if check.name == "bucket":  # what follows may need an owner of the project, and doctor
            settings.save(*answers)
    settings.save(*answers)
    terminal.say(f'Saved {config.path()}. Now, in a git repository:  berg run "python train.py"')


def choose(settings: Config, given: dict[str, str | None], yes: bool) -> None:
    """Ask for what no option gave; the defaults are earlier answers, or what Google knows."""
    if not settings.project and not settings.credentials_file:
        import google.auth

        with contextlib.suppress(google.auth.exceptions.DefaultCredentialsError):
            settings.project = google.auth.default()[1] or ""
    for key in ("project", "region", "bucket"):
        default = getattr(settings, key) or (f"{settings.project}-berg" if key == "bucket" else "")
        if given.get(key) or (yes and default):
            setattr(settings, key, given.get(key) or default)
        elif not sys.stdin.isatty() or terminal.is_for_program():
            raise BergError(f"no {key} is known. Name it: berg init --{key} {key.upper()}")
        else:
            setattr(settings, key, click.prompt(key.title(), default=default or None, err=True))


def local_settings() -> dict[str, str | None]:
    """Start the embedded cloud of this user; return its settings."""
    folder = config.home() / "local"
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


# --- berg config


def check_region(settings: Config, text: str) -> None:
    if not (is_word(text) and google.find(settings, f"/regions/{text}", fields="name")):
        names = ", ".join(row["name"] for row in google.items(settings, "/regions"))
        raise BergError(f"there is no region {text!r}. There are: {names}")


def check_zones(settings: Config, text: str) -> None:
    for zone in text.split(",") if text else []:
        if not (is_word(zone) and google.find(settings, f"/zones/{zone}", fields="name")):
            raise BergError(
                f"zones: there is no zone {zone!r}. Give such as us-central1-a,us-central1-b"
            )


def check_bucket(settings: Config, text: str) -> None:
    is_name = re.fullmatch(config.FORMS["bucket"], text)
    settings.bucket = text
    if not (is_name and Bucket(settings).client.exists()):
        raise BergError(f"there is no bucket {text!r}. Create it: berg init --bucket BUCKET")


def check_network(settings: Config, text: str) -> None:
    if not (is_word(text) and google.find(settings, f"/global/networks/{text}", fields="name")):
        raise BergError(
            f"there is no network {text!r} in {settings.project}. Make it: gcloud compute networks "
            f"create NETWORK --project {settings.project}; or: berg config set network NAME"
        )


def check_account(settings: Config, text: str) -> None:
    settings.service_account = text
    try:
        look_at_account(settings)
    except Lack as lack:
        raise BergError(f"{lack.found}. Next: {lack.fix}") from None


def check_project(settings: Config, text: str) -> None:
    settings.project = text
    if not (is_word(text) and google.find(settings, "", fields="name")):
        raise BergError(
            f"there is no project {text!r}, or you may not see it: gcloud projects list"
        )


def check_credentials(settings: Config, text: str) -> None:
    settings.credentials_file = text
    _ = settings.credentials


def check_gpu_type(settings: Config, text: str) -> None:
    if text not in gce.GPUS:
        raise BergError(f"there is no gpu_type {text!r}. There are: {', '.join(gce.GPUS)}")


def is_word(text: str) -> bool:
    return bool(re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", text))


def of_form(form: str, words: str) -> Callable[[Config, str], None]:
    def check(settings: Config, text: str) -> None:
        if not re.fullmatch(form, text):
            raise BergError(f"{text!r} is not {words}")

    return check


SETTERS: dict[str, Callable[[Config, str], Any]] = {
    "project": check_project,
    "region": check_region,
    "zones": check_zones,
    "bucket": check_bucket,
    "gpu_type": check_gpu_type,
    "gpus": of_form(r"\d{1,2}", "a number of gpus, such as 0 or 8"),
    "default_image": gce.find_image,
    "service_account": check_account,
    "network": check_network,
    "ssh_port": of_form(config.FORMS["ssh_port"], "an ssh_port, such as 22"),
    "user": of_form("[a-z0-9][a-z0-9-]{0,39}", "a user's name of lower-case letters and digits"),
    "no_external_ip": of_form("true|false", "true or false"),
    **dict.fromkeys(
        ("budget", "max_cost", "ask_above"), of_form(r"\d+(\.\d+)?", "dollars, such as 50")
    ),
    "endpoint": of_form(r"https?://\S+", "an endpoint. For Google: berg config unset endpoint"),
    "credentials_file": check_credentials,
}


@click.group("config")
def config_() -> None:
    """Show and change the settings. A flag comes first, then BERG_<KEY>, [tool.berg], the file.

    \b
    berg config list
    berg config set zones us-central1-a,us-central1-b
    berg config unset zones
    """


key_argument = click.argument(
    "key", metavar="KEY", type=click.Choice([each.name for each in fields(Config)])
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def value_of(key: str, text: str) -> Any:
    return text.split(",") if key == "zones" and text else text or ([] if key == "zones" else "")


@click.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Show all settings, and what set each: a variable, the file, or nothing but its default.

    \b
    berg config list
    berg config show --json
    """
    settings = Config.read()
    about = {each.name: each.metadata["help"] for each in fields(settings)}
    sources = {key: config.source(key) for key in about}
    values = {key: str(getattr(settings, key)) for key in about}
    if as_json:
        shown = {key: value_of(key, text) for key, text in values.items()}
        return terminal.show_json({**shown, "sources": sources})
    rows = [[key, values[key], sources[key], about[key]] for key in about]
    return terminal.show_table(["KEY", "VALUE", "SET BY", "ABOUT"], rows)


@config_.command()
@key_argument
@json_option
def get(key: str, as_json: bool) -> None:
    """Print one setting.

    \b
    gcloud storage ls gs://$(berg config get bucket)
    """
    text = str(getattr(Config.read(), key))
    if as_json:
        about = {"name": key, "value": value_of(key, text), "source": config.source(key)}
        return terminal.show_json(about)
    return terminal.show(text)


@config_.command("set")
@key_argument
@click.argument("value")
@json_option
def set_(key: str, value: str, as_json: bool) -> None:
    """Change a setting in the file, after asking Google whether there is such a thing.

    \b
    berg config set region europe-west4
    """
    value = value.strip()
    if not value:
        raise BergError(f"{key} needs a value. To remove it: berg config unset {key}")
    settings = Config.read()
    if key == "default_image" and "/" not in value:  # in the project of the one before
        value = f"{settings.default_image.rpartition('/')[0]}/{value}"
    if key in SETTERS:
        SETTERS[key](settings, value)
    write(key, value, as_json)


@config_.command()
@key_argument
@json_option
def unset(key: str, as_json: bool) -> None:
    """Remove a setting from the file; its default counts again.

    \b
    berg config unset zones
    """
    write(key, "", as_json)


def write(key: str, text: str, as_json: bool) -> None:
    """Write a setting to the file, and say what it is now."""
    changed = Config()
    setattr(changed, key, text)
    changed.save(key)
    now = str(getattr(Config.read(), key))
    done = "set" if text else "unset"
    if as_json:
        terminal.show_json({"name": key, "done": done, "value": value_of(key, now)})
    terminal.say(f"{key} is {now or 'empty'} ({config.source(key)})")
    if text and now != text:
        terminal.warn(f"the variable BERG_{key.upper()} is set, and comes before the file")


@config_.command("path")
@json_option
def path_(as_json: bool) -> None:
    """Print where the file with the settings is.

    \b
    $EDITOR $(berg config path)
    """
    where = str(config.path())
    return terminal.show_json({"name": where}) if as_json else terminal.show(where)


config_.add_command(list_)
config_.add_command(list_, "show")


# --- the rest


@click.command()
@click.argument("action", type=click.Choice(["start", "stop", "status", "reset"]))
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
def local(action: str, yes: bool, as_json: bool) -> None:
    """Start or stop the embedded cloud of this computer; reset deletes its machines and buckets.

    \b
    berg local start
    berg local reset
    """
    folder = config.home() / "local"
    if action == "start":
        terminal.say(f"It runs at http://127.0.0.1:{control().start(folder)}")
    elif action == "status":
        terminal.say("It runs" if control().is_running(folder) else "It does not run")
    elif action == "reset":
        if not terminal.confirm(f"Delete {folder} with all buckets and machines?", yes, "-y"):
            raise BergError("nothing was deleted")
        control().reset(folder)
        terminal.say(f"Deleted {folder}")
    else:
        machines = sum((control().status(folder).get("machines") or {}).values())
        question = f"Stop the embedded cloud, and {machines} machines with it?"
        if machines and not terminal.confirm(question, yes, "-y"):
            raise BergError("nothing was stopped")
        terminal.say("Stopped" if control().stop(folder) else "It did not run")
    if as_json:
        about = control().status(folder)
        is_running = control().is_running(folder)
        terminal.show_json({"running": is_running, "machines": about.get("machines") or {}})


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), default="bash")
def completion(shell: str) -> None:
    """Print what lets a shell complete commands, options and names of jobs.

    \b
    echo 'eval "$(berg completion bash)"' >>~/.bashrc
    echo 'eval "$(berg completion zsh)"' >>~/.zshrc
    berg completion fish >~/.config/fish/completions/berg.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind:
        root = click.get_current_context().find_root().command
        try:
            click.echo(kind(root, {}, "berg", "_BERG_COMPLETE").source())
        except RuntimeError as error:  # an old bash
            raise BergError(f"{error}. Take another shell: berg completion zsh") from None

"""What `berg doctor` checks: this computer, the project, the user's rights, bucket and network.

A check returns findings; what it raises becomes a finding. Checks that ask Google run in parallel.
`berg init` uses those of the user's rights.
"""

import ipaddress
import itertools
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import click

from berg import BergError, computer, config, plain, states, wrapped
from berg.config import Config
from berg.gke import client, clusters, pods
from berg.google import api, builds, iam, offers, shapes
from berg.google.storage import Bucket
from berg.laptop import index
from berg.spec import JobSpec

TIMEOUT = 15  # seconds for all answers
STATES = 5_000  # jobs compared with the index, at most: more would take too long

OK, WARNING, FAILED = "ok", "warning", "failed"
COLORS = {OK: "green", WARNING: "yellow", FAILED: "red"}

# program: package, command for its version, what the answer looks like, oldest version, what for
TOOLS = {
    "git": ("git", ["git", "--version"], r"version ([\d.]+)", (2, 0), "berg run"),
    "ssh": (
        "openssh-client",
        ["ssh", "-V"],
        r"OpenSSH_([\d.]+)",
        (6, 0),
        "berg ssh and berg sync",
    ),
    "rsync": ("rsync", ["rsync", "--version"], r"^rsync +version v?([\d.]+)", (3, 1), "berg sync"),
}
APIS = {
    "compute": "machines",
    "storage": "code, logs and results",
    "iam": "the machines' account",
    "cloudresourcemanager": "the rights of that account",
    "secretmanager": "--secret",
    "cloudbilling": "prices",
}


def permissions(resource: str, verbs: str) -> list[str]:
    return [f"{resource}.{verb}" for verb in verbs.split()]


ADMIN = "roles/compute.instanceAdmin.v1"
# what for: a role, and the permissions of it that the user needs in the project
IN_PROJECT = {
    "machines": (
        ADMIN,
        [
            *permissions("compute.instances", "create delete get list setLabels setMetadata"),
            *permissions("compute.instances", "setDiskAutoDelete setServiceAccount"),
            *permissions("compute.instances", "getSerialPortOutput getGuestAttributes"),
            *permissions("compute.disks", "create delete"),
            "compute.instanceTemplates.create",
            *permissions("compute.instanceGroupManagers", "create update delete"),
            "compute.instanceGroups.delete",
        ],
    ),
    "devboxes": (  # stopped, started, moved, and made into images
        ADMIN,
        [
            *permissions("compute.instances", "start stop"),
            "compute.disks.createSnapshot",
            *permissions("compute.snapshots", "create useReadOnly delete"),
            "compute.images.create",
        ],
    ),
    "slices": (ADMIN, permissions("compute.resourcePolicies", "create use list delete")),
    "secrets": (
        "roles/secretmanager.admin",
        [
            *permissions("secretmanager.secrets", "create setIamPolicy"),
            "secretmanager.versions.add",
            "secretmanager.secrets.delete",
        ],
    ),
}
TUNNELS = ("roles/iap.tunnelResourceAccessor", ["iap.tunnelInstances.accessViaIAP"])
CLUSTER_ROLE = "roles/container.developer"
IN_CLUSTERS = [
    *permissions("container.clusters", "get list"),
    *permissions("container.jobs", "create delete get list"),
    *permissions("container.pods", "delete exec get getLogs list update"),
    "container.configMaps.create",
    "container.namespaces.create",
    *permissions("container.serviceAccounts", "create update get"),
    "container.events.list",
]
ON_BUCKET = [
    "storage.buckets.get",
    *permissions("storage.objects", "create delete get list update"),
]
# Roles of accounts that berg did not create: too much, and enough.
ENOUGH_ON_BUCKET = {iam.BUCKET_ROLE, "roles/storage.objectAdmin", "roles/storage.admin"}

ANYWHERE = "0.0.0.0/0"
ACCOUNT = "machines' account"


@dataclass
class Finding:
    check: str
    status: str
    found: str
    fix: str = ""  # a command


Check = Callable[[Config], list[Finding]]


def show(finding: Finding, stream: IO[str]) -> None:
    """Print a finding, and below it the command that fixes it."""
    line = wrapped(f"{finding.status:<8} {finding.check:<17} {finding.found}", stream, 27)
    is_error = stream is sys.stderr
    plain.echo(click.style(line[:8], COLORS[finding.status]) + line[8:], err=is_error)
    if finding.fix:
        plain.echo(wrapped(f"{'':<26} {finding.fix}", stream), err=is_error)


def examine() -> list[Finding]:
    """Run all checks; return the findings in their order."""
    settings, findings = check_settings()
    findings += [*check_tools(), *check_gcloud(settings), *check_embedded_cloud(settings)]
    findings += ask(settings, {"credentials": check_credentials})
    lacks = "" if settings.project else "a project"
    if findings[-1].status == FAILED:
        lacks = "credentials"
    if lacks:
        unseen = f"not checked, without {lacks}"
        return findings + [Finding(name, WARNING, unseen) for name in ASKED]
    return findings + ask(settings, ASKED)


def ask(settings: Config, checks: Mapping[str, Check]) -> list[Finding]:
    """Return the findings of checks that ask Google, run in parallel for TIMEOUT seconds."""
    late = f"no answer within {TIMEOUT} s. Check the network"
    answers = {name: [Finding(name, FAILED, late)] for name in checks}

    def look(name: str) -> None:
        status = FAILED
        try:
            answers[name] = checks[name](settings)
            return
        except api.Forbidden as error:
            if api.lacks_quota_project(error):
                found = api.name_quota_project(settings)
            else:
                found = f"you do not have permission to check this: {api.words(error)}"
                status = FAILED if name in ("project", "bucket") else WARNING
        except BergError as error:
            found = error.message
        except Exception as error:
            found = api.explain(error, settings) or f"{type(error).__name__}: {error}"
        answers[name] = [Finding(name, status, found)]

    # Daemons: one without an answer does not hold up the exit.
    threads = [threading.Thread(target=look, args=[name], daemon=True) for name in checks]
    for thread in threads:
        thread.start()
    end = time.monotonic() + TIMEOUT
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    return [finding for name in checks for finding in answers[name]]


# --- this computer


def check_settings() -> tuple[Config, list[Finding]]:
    settings = Config()
    try:
        settings = config.load()
        config.load_ready()
    except BergError as error:
        return settings, [Finding("settings", FAILED, error.message)]
    return settings, [Finding("settings", OK, str(config.path()))]


def check_tools() -> list[Finding]:
    findings = []
    for name, (package, command, pattern, oldest, purpose) in TOOLS.items():
        fix = computer.install_command(package)
        status = FAILED if name == "git" else WARNING
        if not shutil.which(name):
            findings.append(Finding(name, status, f"not installed; {purpose} needs it", fix))
            continue
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        found = re.search(pattern, done.stdout + done.stderr)
        version = found[1] if found else "of an unknown version"
        if found and tuple(int(part) for part in version.strip(".").split(".")[:2]) >= oldest:
            findings.append(Finding(name, OK, version))
        else:
            wanted = ".".join(map(str, oldest))
            findings.append(Finding(name, status, f"{version}; {purpose} needs {wanted}", fix))
    return findings


def check_gcloud(settings: Config) -> list[Finding]:
    if not settings.no_external_ip or shutil.which("gcloud"):
        return []
    found = "not installed; berg ssh and berg sync need it for machines without external addresses"
    return [Finding("gcloud", WARNING, found, "https://cloud.google.com/sdk/docs/install")]


def check_embedded_cloud(settings: Config) -> list[Finding]:
    if not settings.endpoint or not config.local_folder().is_dir():
        return []
    limits = config.embedded_cloud().status(config.local_folder())["abilities"]
    found = " ".join(limits) or "its machines have no limits here"
    return [Finding("embedded cloud", OK, found)]


# --- the project


def check_credentials(settings: Config) -> list[Finding]:
    _ = settings.credentials
    found = settings.credentials_file or "Application Default Credentials"
    if (user := iam.person(settings)) != iam.YOUR_ADDRESS:
        found += f" of {user}"
    return [Finding("credentials", OK, found)]


def set_up(settings: Config, options: str = "") -> str:
    """Return the command that sets up this cloud; the embedded one takes no options."""
    return "berg init --local" if settings.endpoint else f"berg init {options}".strip()


def check_project(settings: Config) -> list[Finding]:
    if not api.find(settings, "", fields="name"):
        found = f"there is no project {settings.project!r}"
        return [Finding("project", FAILED, found, set_up(settings))]
    return [Finding("project", OK, settings.project)]


def check_apis(settings: Config) -> list[Finding]:
    names = [f"projects/{settings.project}/services/{name}.googleapis.com" for name in APIS]
    url = f"{settings.service_url('serviceusage')}/v1/projects/{settings.project}/services:batchGet"
    services = api.call(settings, "GET", url, names=names)["services"]
    off = [name for name, row in zip(APIS, services, strict=True) if row["state"] != "ENABLED"]
    if not off:
        return [Finding("apis", OK, ", ".join(APIS))]
    is_needed = bool({"compute", "storage"} & set(off))  # by every job
    status = FAILED if is_needed else WARNING
    found = "off: " + ", ".join(f"{name} (for {APIS[name]})" for name in off)
    return [Finding("apis", status, found, api.enable_command(settings, *off))]


# --- the user's rights


def rights(
    name: str, asked: list[str], held: list[str], where: str, fix: str, status: str = FAILED
) -> Finding:
    """Return which of the permissions asked for the user does not hold."""
    lacks = [permission for permission in asked if permission not in held]
    if not lacks:
        return Finding(f"rights: {name}", OK, f"you have the required permissions{where}")
    return Finding(f"rights: {name}", status, f"you lack {', '.join(lacks)}{where}", fix)


def held_in_project(settings: Config, asked: list[str]) -> list[str]:
    """Return those of some permissions that the user has in the project."""
    service = settings.service_url("cloudresourcemanager")
    url = f"{service}/v1/projects/{settings.project}:testIamPermissions"
    return list(api.call(settings, "POST", url, {"permissions": asked}).get("permissions", []))


def give(settings: Config, role: str, project: str = "") -> str:
    """Return the command that gives the user a role in the project, or in another one."""
    user, where = iam.person(settings), project or settings.project
    return f"gcloud projects add-iam-policy-binding {where} --member {user} --role {role}"


def check_in_project(settings: Config) -> list[Finding]:
    wanted = dict(IN_PROJECT)
    if settings.no_external_ip:
        wanted["tunnels"] = TUNNELS
    held = held_in_project(settings, [each for _, needed in wanted.values() for each in needed])
    findings = []
    for name, (role, needed) in wanted.items():
        status = FAILED if name == "machines" else WARNING  # few jobs need the others
        findings.append(rights(name, needed, held, "", give(settings, role), status))
    return findings


def check_subnetwork(settings: Config) -> list[Finding]:
    """Check that the user may put machines on the subnetwork, in the project that owns it."""
    network, region = offers.network_of(settings), settings.region
    if settings.zones:
        region = settings.zones[0].rpartition("-")[0]
    name = offers.subnetwork_of(settings, region)
    asked = ["compute.subnetworks.use"]
    if not settings.no_external_ip:
        asked.append("compute.subnetworks.useExternalIp")
    path = f"/regions/{region}/subnetworks/{name}/testIamPermissions"
    try:
        answer = api.call(settings, "POST", path, {"permissions": asked}, project=network.project)
    except api.NotFound:
        found = f"there is no subnetwork {name!r} in {region} of {network.project}"
        return [Finding("rights: network", FAILED, found, "berg config set subnetwork NAME")]
    where = f" on the subnetwork {name} in {region} of {network.project}"
    fix = give(settings, "roles/compute.networkUser", network.project)
    return [rights("network", asked, answer.get("permissions", []), where, fix)]


def check_on_bucket(settings: Config) -> list[Finding]:
    answer = Bucket(settings).ask("GET", "/iam/testPermissions", permissions=ON_BUCKET)
    fix = (
        f"gcloud storage buckets add-iam-policy-binding gs://{settings.bucket} "
        f"--member {iam.person(settings)} --role roles/storage.admin"
    )
    where = f" on gs://{settings.bucket}"
    return [rights("bucket", ON_BUCKET, answer.get("permissions", []), where, fix)]


def check_acting(settings: Config) -> list[Finding]:
    """Check that the user may start machines that act as the account."""
    email = account_of(settings)
    try:
        held = [iam.ACT_AS] if iam.may_act_as(settings, email) else []
    except api.NotFound:
        return [no_account(settings, email)]
    fix = iam.act_as_command(settings, email)
    return [rights("account", [iam.ACT_AS], held, f" on {email}", fix)]


def account_of(settings: Config) -> str:
    """Return the account that machines act as."""
    if settings.service_account:
        return settings.service_account
    return str(api.call(settings, "GET", "").get("defaultServiceAccount", ""))


def no_account(settings: Config, email: str) -> Finding:
    return Finding(ACCOUNT, FAILED, f"there is no service account {email!r}", set_up(settings))


# --- quotas and the image


def check_quotas(settings: Config) -> list[Finding]:
    """Check that a machine with the default options, and a Spot one, fits into every quota."""
    shape = shapes.choose(None, None, None, None)
    limits = offers.quotas(settings, settings.region)
    external = not settings.no_external_ip
    needs = shapes.quota_needs(shape, 1, JobSpec.disk_gb, False, external)
    on_spot = shapes.quota_needs(shape, 1, JobSpec.disk_gb, True, external)
    findings = [quota(settings, need, metrics, limits, "machine") for need, metrics in needs]
    others = [each for each in on_spot if each not in needs]
    return findings + [quota(settings, *each, limits, "Spot machine") for each in others]


def quota(
    settings: Config,
    need: float,
    metrics: Sequence[str],
    limits: Mapping[str, tuple[float, float]],
    machine: str,
) -> Finding:
    """Compare what a machine needs with the largest of the quotas that it may count against."""

    def free(metric: str) -> float:
        limit, usage = limits.get(metric, (0, 0))
        return limit - usage

    best = max(metrics, key=free)
    limit, usage = limits.get(best, (0, 0))
    name = best if limit else metrics[0]
    where = settings.project if best.endswith("_ALL_REGIONS") else settings.region
    found = f"{name} in {where}: {usage:g} of {limit:g} in use; a default {machine} needs {need}"
    if free(best) >= need:
        return Finding("quota", OK, found)
    fix = f"https://console.cloud.google.com/iam-admin/quotas?project={settings.project}"
    return Finding("quota", WARNING, found, fix)


def check_reservations(settings: Config) -> list[Finding]:
    reserved = offers.reservations(settings)
    return [Finding("reserved", OK, "; ".join(map(str, reserved)))] if reserved else []


def check_image(settings: Config) -> list[Finding]:
    return [Finding("image", OK, api.last_part(offers.find_image(settings, *settings.image)))]


# --- the network


def check_firewall(settings: Config) -> list[Finding]:
    """Check that the network exists, and that its rules let ssh in."""
    network = offers.network_of(settings)
    path = f"/global/networks/{network.name}"
    if not api.find(settings, path, project=network.project, fields="name"):
        found = (
            f"there is no network {network.name!r} in {network.project}. Make it, or name another "
            "one: berg config set network NAME"
        )
        fix = f"gcloud compute networks create {network.name} --project {network.project}"
        return [Finding("network", FAILED, found, fix)]
    tunnel = settings.no_external_ip
    fix = offers.let_ssh_in(settings, settings.ssh_port, tunnel)
    port, to = f"tcp:{settings.ssh_port}", f"the network {network.name}"
    sources = allowed_sources(settings)
    if tunnel:
        iap = ipaddress.IPv4Network(offers.IAP)
        if any(iap.subnet_of(ipaddress.IPv4Network(each)) for each in sources):
            return [Finding("firewall", OK, f"{port} to {to} is open to IAP")]
        found = f"no rule allows IAP to {port} of {to}, so berg ssh cannot connect"
        return [Finding("firewall", WARNING, found, fix)]
    if ANYWHERE in sources:
        return [Finding("firewall", OK, f"{port} to {to} is open to all")]
    if not sources:
        found = f"no rule allows {port} to {to}, so berg ssh cannot connect"
        return [Finding("firewall", WARNING, found, fix)]
    found = f"{port} to {to} is open to {', '.join(sources)}"
    if set(sources) == {offers.IAP}:
        found += " (IAP), which berg ssh uses only without external addresses"
        return [Finding("firewall", WARNING, found, fix)]
    return [Finding("firewall", OK, f"{found}; this computer should be among them")]


def allowed_sources(settings: Config) -> list[str]:
    """Return the public IPv4 ranges from which firewall rules allow ssh.

    A rule that denies counts only if it holds for all addresses.
    """
    network = offers.network_of(settings)
    rules = [
        rule
        for rule in api.items(settings, "/global/firewalls", project=network.project)
        if api.last_part(rule["network"]) == network.name and applies(rule, settings)
    ]
    sources: list[str] = []
    # Google's order: of equal priority, a rule that denies counts first.
    for rule in sorted(rules, key=lambda rule: (rule["priority"], "allowed" in rule)):
        ranges = [each for each in rule.get("sourceRanges", []) if ":" not in each]
        if opens(rule.get("allowed", []), settings.ssh_port):
            sources += filter(is_public, ranges)
        elif ANYWHERE in ranges and opens(rule.get("denied", []), settings.ssh_port):
            break
    return sources


def is_public(source: str) -> bool:
    """Return whether a range may hold this computer, which comes from no private address."""
    return source == ANYWHERE or not ipaddress.ip_network(source).is_private


def applies(rule: dict[str, Any], settings: Config) -> bool:
    """Return whether a rule is in force for traffic to berg's machines, which have no tags."""
    accounts = rule.get("targetServiceAccounts")
    aimed = not rule.get("targetTags") and (not accounts or settings.service_account in accounts)
    return aimed and rule.get("direction") == "INGRESS" and not rule.get("disabled")


def opens(entries: list[dict[str, Any]], port: int) -> bool:
    for entry in entries:
        spans = [text.partition("-") for text in entry.get("ports", [])]
        inside = not spans or any(int(low) <= port <= int(high or low) for low, _, high in spans)
        if entry["IPProtocol"] in ("tcp", "6", "all") and inside:
            return True
    return False


def check_policies(settings: Config) -> list[Finding]:
    """Check that no organisation policy refuses machines as the settings describe them."""
    enforced = offers.enforced(settings)
    refused = {
        api.EXTERNAL: "external addresses",
        api.OS_LOGIN: "machines without OS Login",
        api.SHIELDED: "images that cannot be Shielded VMs",
    }
    harmless = [what for policy, what in refused.items() if enforced[policy]]
    findings = []
    if enforced[api.EXTERNAL] and not settings.no_external_ip:
        found = "the organisation refuses external addresses"
        findings.append(Finding("policies", FAILED, found, "berg config set no_external_ip true"))
    if enforced[api.OS_LOGIN] and settings.ssh_user != "root":
        found = f"the organisation requires OS Login, so {settings.ssh_user} cannot log in"
        findings.append(Finding("policies", FAILED, found, "berg config set ssh_user root"))
    findings += check_location(settings)
    found = "none blocks berg"
    if harmless:
        found = f"refused, but not used by berg: {', '.join(harmless)}"
    return findings or [Finding("policies", OK, found)]


def check_location(settings: Config) -> list[Finding]:
    """Check that the organisation allows resources in the region of the settings."""
    policy, region = offers.policy(settings, api.LOCATIONS), settings.region
    places = policy.get("listPolicy", {}).get("allowedValues", [])  # such as in:us-locations
    continent = region.partition("-")[0]
    areas = {f"in:{continent}-locations", f"in:{continent[:2]}-locations"}
    if not places or areas & {*places} or any(region in each for each in places):
        return []
    allowed = ", ".join(places)
    found = f"the organisation allows resources in {allowed}, and your region is {region}"
    return [Finding("policies", WARNING, found, "berg config set region REGION")]


def check_egress(settings: Config) -> list[Finding]:
    """Check what machines without an external address reach."""
    if not settings.no_external_ip:
        return []
    egress = offers.egress(settings, settings.region)
    subnetwork = f"the subnetwork {egress.subnetwork} in {egress.region}"
    where = f"from {subnetwork}, without an external address"

    def reach(what: str, is_reached: bool | None, status: str, fix: str) -> Finding:
        name = f"egress: {what}"
        if is_reached:
            return Finding(name, OK, f"reachable {where}")
        if is_reached is None:  # Google does not let the user look
            return Finding(name, WARNING, f"perhaps not reachable {where}", fix)
        return Finding(name, status, f"not reachable {where}", fix)

    return [
        reach("google", egress.to_google, FAILED, egress.command(to_internet=False)),
        reach("internet", egress.to_internet, WARNING, egress.command(to_internet=True)),
    ]


# --- the bucket and the account of the machines


def check_bucket(settings: Config) -> list[Finding]:
    found = Bucket(settings).ask("GET")
    name = f"gs://{settings.bucket}"
    change = f"gcloud storage buckets update {name}"
    privacy = Finding("bucket's privacy", OK, "public access is prevented")
    if found["iamConfiguration"].get("publicAccessPrevention", "") != "enforced":
        fix = f"{change} --public-access-prevention"
        privacy = Finding("bucket's privacy", WARNING, "it could be made public", fix)
    cost = Finding("bucket's cost", OK, "soft delete is off")
    if kept := int(found.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0)):
        text = f"soft delete bills every earlier version of a growing log for {kept / 86400:g} days"
        cost = Finding("bucket's cost", WARNING, text, f"{change} --clear-soft-delete")
    return [bucket_location(settings, name, found), privacy, cost]


def bucket_location(settings: Config, name: str, bucket: dict[str, Any]) -> Finding:
    about = api.call(settings, "GET", "", fields="defaultServiceAccount")
    number = about.get("defaultServiceAccount", "").partition("-")[0]
    if number not in ("", bucket["projectNumber"]):
        text = f"{name} belongs to another project, number {bucket['projectNumber']}"
        return Finding("bucket", FAILED, text, set_up(settings, "--bucket ANOTHER"))
    location = bucket["location"].lower()
    if location == settings.region:
        return Finding("bucket", OK, f"{name} in {location}")
    text = f"{name} in {location}, and machines in {settings.region}: slower, and traffic costs"
    fix = set_up(settings, "--bucket ANOTHER --create-bucket")
    return Finding("bucket", WARNING, text, fix)


def check_account(settings: Config) -> list[Finding]:
    email = account_of(settings)
    try:
        iam.may_act_as(settings, email)  # raises NotFound if there is none
        check = check_own if iam.is_ours(settings, email) else check_other
        return [check(settings, email)]
    except api.NotFound:
        return [no_account(settings, email)]


def check_own(settings: Config, email: str) -> Finding:
    """Return what the account that berg created lacks."""
    lacking, refusal = iam.missing(settings)
    lacking += builds.too_wide(settings)
    if refusal:
        return Finding(ACCOUNT, WARNING, f"the roles of {email} cannot be seen: {refusal}")
    if lacking:
        found = f"{email} lacks: " + "; ".join(grant.text for grant in lacking)
        return Finding(ACCOUNT, FAILED, found, set_up(settings))
    return Finding(ACCOUNT, OK, f"{email} has what it needs, and berg gave it no more")


def check_other(settings: Config, email: str) -> Finding:
    """Return which roles an account has that berg did not create, and whether they are enough."""
    member = [f"serviceAccount:{email}"]
    in_project = iam.roles(iam.project_policy(settings), member)
    on_bucket = iam.roles(iam.bucket_policy(settings), member)
    has = (
        f"{email} has {', '.join(sorted(in_project)) or 'no role'} in the project "
        f"and {', '.join(sorted(on_bucket)) or 'no role'} on the bucket"
    )
    fix = set_up(settings, f"--service-account {iam.account(settings)}")
    if in_project & {"roles/editor", "roles/owner"}:
        wide = "with that a job may change what any machine runs, all code and all results"
        return Finding(ACCOUNT, WARNING, f"{has}: more than it needs; {wide}", fix)
    reads_and_writes = (in_project | on_bucket) & ENOUGH_ON_BUCKET
    own_role = f"projects/{settings.project}/roles/{iam.ROLE}"
    if reads_and_writes and in_project & {own_role, ADMIN, "roles/compute.admin"}:
        return Finding(ACCOUNT, OK, has)
    if not in_project or not (on_bucket or reads_and_writes):
        return Finding(ACCOUNT, FAILED, f"{has}; it needs {iam.NEEDS}", fix)
    unknown = f"{has}; berg cannot tell whether that includes {iam.NEEDS}"
    return Finding(ACCOUNT, WARNING, unknown, fix)


# --- clusters


def check_clusters(settings: Config) -> list[Finding]:
    """Check that no cluster costs money for nothing, and that jobs may run in them."""
    try:
        ours = client.running_clusters(client.clusters(settings))
    except api.Denied:
        found = "you do not have permission to list clusters"
        return [Finding("clusters", WARNING, found, give(settings, CLUSTER_ROLE))]
    except api.Forbidden:
        found = "none; the API container, for berg run --cluster, is off"
        return [Finding("clusters", OK, found, api.enable_command(settings, "container"))]
    if not ours:
        return [Finding("clusters", OK, "none of berg's")]
    held = held_in_project(settings, IN_CLUSTERS)
    lacks = [each for each in IN_CLUSTERS if each not in held]
    held += [each for each in lacks if all(pods.may(settings, at, each) for at in ours)]
    trouble = [(text, "berg cluster delete NAME") for text in clusters.idle(settings)]
    trouble += clusters.hindered(settings)
    findings = [Finding("clusters", WARNING, text, fix) for text, fix in trouble]
    findings += check_identity(settings)
    if not findings:
        findings = [Finding("clusters", OK, ", ".join(ours))]
    fix = give(settings, CLUSTER_ROLE)
    return [*findings, rights("clusters", IN_CLUSTERS, held, "", fix, WARNING)]


def check_identity(settings: Config) -> list[Finding]:
    """Return what keeps pods from acting as their users' own accounts, and what gives them the
    token of their node.
    """
    ours = [each for each in client.clusters(settings) if client.is_ours(each)]
    missing = pods.missing_grants(settings, lambda: ours)
    trouble = [(grant.text, grant.gcloud) for grant in missing]
    trouble += [found for each in ours if (found := without_identity(settings, each))]
    return [Finding("pods' account", WARNING, text, fix) for text, fix in trouble]


def without_identity(settings: Config, cluster: dict[str, Any]) -> tuple[str, str] | None:
    """Return what a cluster's pods get from their nodes, and the command that stops it."""
    where = f"--location {cluster['location']} --project {settings.project}"
    if not client.workload_pool(cluster):
        return (
            f"in {cluster['name']} all pods share a namespace and their nodes' token: it has no "
            "Workload Identity. The pools, too, have to be changed then",
            f"gcloud container clusters update {cluster['name']} {where} "
            f"--workload-pool {iam.pool(settings)}",
        )
    names = [pool["name"] for pool in client.without_identity(cluster)]
    if not names:
        return None
    return (
        f"pods on {', '.join(names)} of {cluster['name']} get the token of their node",
        f"gcloud container node-pools update {names[0]} --cluster {cluster['name']} {where} "
        "--workload-metadata GKE_METADATA",
    )


# --- the index


def check_index(settings: Config) -> list[Finding]:
    """Check that the index has the jobs that have a state, the first STATES of them."""
    bucket, fix = Bucket(settings), "berg list --all-jobs"
    paths = {listed.name for listed in bucket.list(index.TOP, index.FIELDS)}
    looked_at = list(itertools.islice(states.listed(bucket), STATES))
    if looked_at and index.COMPLETE not in paths:
        text = "there is none yet, so lists read all jobs"
        return [Finding("index", WARNING, text, fix)]
    jobs = [each for each in looked_at if not index.has(paths, each.name, each.state)]
    if jobs:
        text = f"lacks {plain.plural(len(jobs), 'job')}, for example {jobs[0].name}"
        return [Finding("index", WARNING, text, fix)]
    return [Finding("index", OK, f"has {plain.plural(len(looked_at), 'job')}")]


# The user's rights, for `berg init`, too.
RIGHTS: dict[str, Check] = {
    "rights": check_in_project,
    "rights: network": check_subnetwork,
    "rights: bucket": check_on_bucket,
    "rights: account": check_acting,
}
# All checks that ask Google.
ASKED: dict[str, Check] = {
    "project": check_project,
    "apis": check_apis,
    **RIGHTS,
    "bucket": check_bucket,
    ACCOUNT: check_account,
    "index": check_index,
    "image": check_image,
    "quota": check_quotas,
    "reserved": check_reservations,
    "firewall": check_firewall,
    "policies": check_policies,
    "egress": check_egress,
    "clusters": check_clusters,
}

"""What `berg doctor` looks at: whether this computer, the person, the project and the machines'
account are ready.

Every check stands alone: it returns findings, and what it raises becomes one. Those that ask Google
stand in readiness.py; they run side by side, and one that has no answer in time is reported as
such.

The checks of `berg doctor` that ask Google: whether the project, the person, the bucket and the
account are ready.

Of what a check raises, and of one without an answer, doctor.py makes a finding.

Not covered: prices, whether a zone has room, organisation policies but two, what people's own roles
hold.
"""

import ipaddress
import itertools
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from berg import BergError, computer, config, states
from berg.config import Config
from berg.gke import clusters, container, podaccount
from berg.gke import place as gke
from berg.google import api, builds, iam, offers, shapes
from berg.google.api import explain
from berg.google.storage import Bucket
from berg.laptop import index
from berg.plain import plural
from berg.spec import JobSpec

PATIENCE = 15  # seconds for all answers

# program: how to ask for its version, what the answer looks like, the oldest that will do, what for
TOOLS = {
    "git": (["git", "--version"], r"version ([\d.]+)", (2, 0), "berg run"),
    "ssh": (["ssh", "-V"], r"OpenSSH_([\d.]+)", (6, 0), "berg ssh and berg sync"),
    "rsync": (["rsync", "--version"], r"^rsync +version v?([\d.]+)", (3, 1), "berg sync"),
}

PACKAGES = {"ssh": "openssh-client"}  # of tools whose package has another name


@dataclass
class Finding:
    check: str
    status: str
    found: str
    mend: str = ""  # the command that does


def examine() -> list[Finding]:
    """Look at everything; findings in the order of the checks."""
    settings, findings = check_settings()
    findings += check_tools() + check_gcloud(settings) + check_abilities(settings)
    findings += ask(settings, {"credentials": check_credentials})
    lacks = (
        "credentials" if findings[-1].status == FAILED else "" if settings.project else "a project"
    )
    if lacks:
        return findings + [
            Finding(name, WARNING, f"not looked at, without {lacks}") for name in ASKED
        ]
    return findings + ask(settings, ASKED)


def ask(settings: Config, checks: Mapping[str, Callable[[Config], list[Finding]]]) -> list[Finding]:
    """The findings of checks that wait for Google, all at once; what raises or takes too long is a
    finding, too.
    """
    late = f"no answer within {PATIENCE} s. Check the network"
    answers = {name: [Finding(name, FAILED, late)] for name in checks}

    def look(name: str) -> None:
        try:
            answers[name] = checks[name](settings)
        except api.Forbidden as error:
            if api.lacks_quota_project(error):
                answers[name] = [Finding(name, FAILED, api.name_quota_project(settings))]
                return
            status = FAILED if name in ("project", "bucket") else WARNING
            answers[name] = [
                Finding(name, status, f"Google does not let you look: {api.words(error)}")
            ]
        except Exception as error:
            known = error.message if isinstance(error, BergError) else explain(error, settings)
            answers[name] = [Finding(name, FAILED, known or f"{type(error).__name__}: {error}")]

    threads = [threading.Thread(target=look, args=[name], daemon=True) for name in checks]
    for thread in threads:
        thread.start()
    end = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    return [finding for name in checks for finding in answers[name]]


# --- this computer


def check_settings() -> tuple[Config, list[Finding]]:
    try:
        settings = config.load()
    except BergError as error:
        return Config(), [Finding("settings", FAILED, error.message)]
    try:
        config.load_ready()
    except BergError as error:
        return settings, [Finding("settings", FAILED, error.message)]
    return settings, [Finding("settings", OK, str(config.path()))]


def check_tools() -> list[Finding]:
    findings = []
    for name, (command, pattern, oldest, purpose) in TOOLS.items():
        mend = computer.install_command(PACKAGES.get(name, name))
        status = FAILED if name == "git" else WARNING
        if not shutil.which(name):
            findings.append(Finding(name, status, f"not installed; {purpose} needs it", mend))
            continue
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        found = re.search(pattern, done.stdout + done.stderr)
        version = found[1] if found else "of an unknown version"
        if found and tuple(int(part) for part in version.strip(".").split(".")[:2]) >= oldest:
            findings.append(Finding(name, OK, version))
        else:
            wanted = ".".join(map(str, oldest))
            findings.append(Finding(name, status, f"{version}; {purpose} needs {wanted}", mend))
    return findings


def check_gcloud(settings: Config) -> list[Finding]:
    """Whether machines without an external address can be logged in to from here."""
    if not settings.no_external_ip or shutil.which("gcloud"):
        return []
    found = "not installed; berg ssh and berg sync need it for machines without external addresses"
    return [Finding("gcloud", WARNING, found, "https://cloud.google.com/sdk/docs/install")]


def check_abilities(settings: Config) -> list[Finding]:
    """What the machines of an embedded cloud cannot do here."""
    if not settings.endpoint or not config.local_folder().is_dir():
        return []
    limits = config.embedded_cloud().status(config.local_folder())["abilities"]
    return [
        Finding(
            "embedded cloud",
            OK,
            " ".join(limits) or "its machines can do all that they can anywhere",
        )
    ]


OK, WARNING, FAILED = "ok", "warning", "failed"

APIS = {
    "compute": "machines",
    "storage": "code, logs and results",
    "iam": "the machines' account",
    "cloudresourcemanager": "the rights of that account",
    "secretmanager": "--secret",
    "cloudbilling": "prices",
}

POD_VERBS = ("delete", "exec", "get", "getLogs", "list", "update")

STATES = 5_000  # that are compared with the index: more would take longer than anybody waits

NEEDED = {"compute", "storage"}  # for every job; the others for what is named


@dataclass
class Purpose:
    """What a person needs for something: permissions, and a role that has them."""

    permissions: list[str]
    role: str


# What a person needs in the project.
IN_PROJECT = {
    "machines": Purpose(
        [
            "compute.instances.create",
            "compute.instances.delete",
            "compute.instances.get",
            "compute.instances.list",
            "compute.instances.setLabels",
            "compute.instances.setMetadata",
            "compute.instances.setDiskAutoDelete",
            "compute.instances.setServiceAccount",
            "compute.instances.getSerialPortOutput",
            "compute.instances.getGuestAttributes",
            "compute.disks.create",
            "compute.disks.delete",
            "compute.instanceTemplates.create",
            "compute.instanceGroupManagers.create",
            "compute.instanceGroupManagers.update",
            "compute.instanceGroupManagers.delete",
            "compute.instanceGroups.delete",
        ],
        "roles/compute.instanceAdmin.v1",
    ),
    "devboxes": Purpose(  # stopped, started, moved and made into images
        [
            "compute.instances.start",
            "compute.instances.stop",
            "compute.disks.createSnapshot",
            "compute.snapshots.create",
            "compute.snapshots.useReadOnly",
            "compute.snapshots.delete",
            "compute.images.create",
        ],
        "roles/compute.instanceAdmin.v1",
    ),
    "slices": Purpose(
        [
            "compute.resourcePolicies.create",
            "compute.resourcePolicies.use",
            "compute.resourcePolicies.list",
            "compute.resourcePolicies.delete",
        ],
        "roles/compute.instanceAdmin.v1",
    ),
    "secrets": Purpose(
        [
            "secretmanager.secrets.create",
            "secretmanager.secrets.setIamPolicy",
            "secretmanager.versions.add",
            "secretmanager.secrets.delete",
        ],
        "roles/secretmanager.admin",
    ),
}

IN_CLUSTERS = Purpose(
    [
        *(f"container.clusters.{verb}" for verb in ("get", "list")),
        *(f"container.jobs.{verb}" for verb in ("create", "delete", "get", "list")),
        *(f"container.pods.{verb}" for verb in POD_VERBS),
        "container.configMaps.create",
        "container.namespaces.create",
        *(f"container.serviceAccounts.{verb}" for verb in ("create", "update")),
        "container.serviceAccounts.get",
        "container.events.list",
    ],
    "roles/container.developer",
)

ON_BUCKET = (
    "storage.buckets.get",
    *(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list", "update")),
)

BASIC = {"roles/editor", "roles/owner"}

# Roles that are enough, of accounts that berg did not create.
ENOUGH_IN_PROJECT = {"roles/compute.instanceAdmin.v1", "roles/compute.admin"}

ENOUGH_ON_BUCKET = {iam.BUCKET_ROLE, "roles/storage.objectAdmin", "roles/storage.admin"}

TUNNELS = Purpose(["iap.tunnelInstances.accessViaIAP"], "roles/iap.tunnelResourceAccessor")

ANYWHERE = "0.0.0.0/0"

ACCOUNT = "machines' account"

IDENTITY = "pods' account"


# --- the project


def check_credentials(settings: Config) -> list[Finding]:
    _ = settings.session
    found = settings.credentials_file or "Application Default Credentials"
    who = iam.person(settings)
    if who != iam.YOUR_ADDRESS:
        found += f" of {who}"
    return [Finding("credentials", OK, found)]


def set_up(settings: Config, options: str = "") -> str:
    """The command that sets up the cloud that is looked at; the embedded one takes no options."""
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
    status = FAILED if NEEDED & set(off) else WARNING
    found = "off: " + ", ".join(f"{name} (for {APIS[name]})" for name in off)
    return [Finding("apis", status, found, api.enable_command(settings, *off))]


# --- what the person may do


def rights(
    name: str, asked: list[str], held: list[str], where: str, mend: str, status: str = FAILED
) -> Finding:
    """Say which permissions the person lacks, and the command that gives them."""
    lacks = [permission for permission in asked if permission not in held]
    if not lacks:
        return Finding(f"rights: {name}", OK, f"you have what is needed{where}")
    return Finding(f"rights: {name}", status, f"you lack {', '.join(lacks)}{where}", mend)


def check_person(settings: Config) -> list[Finding]:
    wanted = dict(IN_PROJECT)
    if settings.no_external_ip:
        wanted["tunnels"] = TUNNELS
    asked = [permission for each in wanted.values() for permission in each.permissions]
    held = held_in_project(settings, asked)
    findings = []
    for name, purpose in wanted.items():
        # Few jobs need the others.
        status = FAILED if name == "machines" else WARNING
        mend = give(settings, purpose.role)
        findings.append(rights(name, purpose.permissions, held, "", mend, status))
    return findings


def check_subnetwork(settings: Config) -> list[Finding]:
    """Check that the person may put machines on the subnetwork, in the project that owns it."""
    network, region = offers.network_of(settings), settings.region
    if settings.zones:
        region = settings.zones[0].rpartition("-")[0]
    name = offers.subnetwork_of(settings, region)
    asked = ["compute.subnetworks.use"]
    if not settings.no_external_ip:
        asked.append("compute.subnetworks.useExternalIp")
    path = f"/regions/{region}/subnetworks/{name}/testIamPermissions"
    where = f"the subnetwork {name} in {region} of {network.project}"
    try:
        answer = api.call(settings, "POST", path, {"permissions": asked}, project=network.project)
    except api.NotFound:
        found = f"there is no subnetwork {name!r} in {region} of {network.project}"
        return [Finding("rights: network", FAILED, found, "berg config set subnetwork NAME")]
    mend = give(settings, "roles/compute.networkUser", network.project)
    return [rights("network", asked, answer.get("permissions", []), f" on {where}", mend)]


def check_on_bucket(settings: Config) -> list[Finding]:
    asked = list(ON_BUCKET)
    answer = Bucket(settings).ask("GET", "/iam/testPermissions", permissions=asked)
    mend = (
        f"gcloud storage buckets add-iam-policy-binding gs://{settings.bucket} "
        f"--member {iam.person(settings)} --role roles/storage.admin"
    )
    held = answer.get("permissions", [])
    return [rights("bucket", asked, held, f" on gs://{settings.bucket}", mend)]


def check_acting(settings: Config) -> list[Finding]:
    """Check that the person may start machines that act as the account."""
    email = account_of(settings)
    try:
        held = [iam.ACT_AS] if iam.may_act_as(settings, email) else []
    except api.NotFound:
        return [no_account(settings, email)]
    mend = iam.act_as_command(settings, email)
    return [rights("account", [iam.ACT_AS], held, f" on {email}", mend)]


def account_of(settings: Config) -> str:
    """Return the account that machines act as."""
    if settings.service_account:
        return settings.service_account
    return str(api.call(settings, "GET", "").get("defaultServiceAccount", ""))


def no_account(settings: Config, email: str) -> Finding:
    return Finding(ACCOUNT, FAILED, f"there is no service account {email!r}", set_up(settings))


def held_in_project(settings: Config, asked: list[str]) -> list[str]:
    """Return those of some permissions that the person has in the project."""
    service = settings.service_url("cloudresourcemanager")
    url = f"{service}/v1/projects/{settings.project}:testIamPermissions"
    held: list[str] = api.call(settings, "POST", url, {"permissions": asked}).get("permissions", [])
    return held


def give(settings: Config, role: str, project: str = "") -> str:
    """The command that gives the person a role in the project, or in another one."""
    who, where = iam.person(settings), project or settings.project
    return f"gcloud projects add-iam-policy-binding {where} --member {who} --role {role}"


def check_quotas(settings: Config) -> list[Finding]:
    """Check that a machine with the default options, and a Spot one, fits into every quota."""
    shape = shapes.choose(None, None, None, None)
    there = offers.quotas(settings, settings.region)
    external = not settings.no_external_ip
    needs = shapes.quota_needs(shape, 1, JobSpec.disk_gb, False, external)
    on_spot = shapes.quota_needs(shape, 1, JobSpec.disk_gb, True, external)
    findings = [quota(settings, need, metrics, there, "machine") for need, metrics in needs]
    for need, metrics in on_spot:
        if (need, metrics) not in needs:
            findings.append(quota(settings, need, metrics, there, "Spot machine"))
    return findings


def check_reservations(settings: Config) -> list[Finding]:
    """Say what is reserved in the project, and how much of it is free."""
    there = offers.reservations(settings)
    if not there:
        return []
    return [Finding("reserved", OK, "; ".join(map(str, there)))]


def quota(
    settings: Config,
    need: float,
    metrics: Sequence[str],
    there: Mapping[str, tuple[float, float]],
    machine: str,
) -> Finding:
    """Compare what a machine needs with the roomiest of the quotas that it may count against."""

    def free(metric: str) -> float:
        limit, usage = there.get(metric, (0, 0))
        return limit - usage

    best = max(metrics, key=free)
    limit, usage = there.get(best, (0, 0))
    name = best if limit else metrics[0]
    where = settings.region
    if best.endswith("_ALL_REGIONS"):
        where = settings.project
    found = f"{name} in {where}: {usage:g} of {limit:g} in use; a default {machine} needs {need}"
    if free(best) >= need:
        return Finding("quota", OK, found)
    mend = f"https://console.cloud.google.com/iam-admin/quotas?project={settings.project}"
    return Finding("quota", WARNING, found, mend)


def check_firewall(settings: Config) -> list[Finding]:
    """Check that machines have a network that ssh from outside reaches, as far as rules tell."""
    if not has_network(settings):
        network = offers.network_of(settings)
        found = (
            f"there is no network {network.name!r} in {network.project}. Make it, or name another "
            "one: berg config set network NAME"
        )
        make = f"gcloud compute networks create {network.name} --project {network.project}"
        return [Finding("network", FAILED, found, make)]
    sources = sources_let_in(firewall_rules(settings), settings.ssh_port)
    if settings.no_external_ip:
        return [judge_tunnel(settings, sources)]
    return [judge_sources(settings, sources)]


def has_network(settings: Config) -> bool:
    network = offers.network_of(settings)
    path = f"/global/networks/{network.name}"
    return bool(api.find(settings, path, project=network.project, fields="name"))


def firewall_rules(settings: Config) -> list[dict[str, Any]]:
    """Return the rules that count for berg's machines, in the order in which Google takes them."""
    found, network = [], offers.network_of(settings)
    for page in api.pages(settings, "/global/firewalls", project=network.project):
        for rule in page.get("items", []):
            if api.last_part(rule["network"]) == network.name and concerns(rule, settings):
                found.append(rule)
    # Of equal priority, a denial counts first.
    return sorted(found, key=lambda rule: (rule["priority"], "allowed" in rule))


def sources_let_in(rules: list[dict[str, Any]], port: int) -> list[str]:
    """Return the public address ranges that the rules let in to a port.

    A denial must hold for everyone to count.
    """
    sources: list[str] = []
    for rule in rules:
        # Machines have IPv4 alone.
        ranges = [each for each in rule.get("sourceRanges", []) if ":" not in each]
        if opens(rule.get("allowed", []), port):
            sources += filter(is_public, ranges)
        elif ANYWHERE in ranges and opens(rule.get("denied", []), port):
            break
    return sources


def is_public(source: str) -> bool:
    """Tell whether a range may hold this computer, which comes from no private address."""
    return source == ANYWHERE or not ipaddress.ip_network(source).is_private


def judge_tunnel(settings: Config, sources: list[str]) -> Finding:
    """Say whether Identity-Aware Proxy reaches the machines."""
    port, network = settings.ssh_port, offers.network_of(settings).name
    iap = ipaddress.IPv4Network(offers.IAP)
    if any(iap.subnet_of(ipaddress.IPv4Network(each)) for each in sources):
        return Finding("firewall", OK, f"tcp:{port} to the network {network} is open to IAP")
    found = f"no rule lets IAP in to tcp:{port} of the network {network}: no berg ssh"
    return Finding("firewall", WARNING, found, offers.let_ssh_in(settings, port, True))


def judge_sources(settings: Config, sources: list[str]) -> Finding:
    """Say whether this computer reaches the machines' external addresses."""
    port, network = settings.ssh_port, offers.network_of(settings).name
    mend = offers.let_ssh_in(settings, port, False)
    if ANYWHERE in sources:
        return Finding("firewall", OK, f"tcp:{port} to the network {network} is open to all")
    if not sources:
        found = f"no rule lets tcp:{port} in to the network {network}: no berg ssh"
        return Finding("firewall", WARNING, found, mend)
    found = f"tcp:{port} to the network {network} is open to {', '.join(sources)}"
    if set(sources) == {offers.IAP}:
        found += " (IAP), which berg ssh takes without external addresses"
        return Finding("firewall", WARNING, found, mend)
    return Finding("firewall", OK, f"{found}; this computer should be among them")


def check_policies(settings: Config) -> list[Finding]:
    """Check that no organisation policy would refuse the machines as the settings have them."""
    there = offers.enforced(settings)
    findings, harmless = [], []
    if there[api.EXTERNAL]:
        harmless.append("external addresses")
        if not settings.no_external_ip:
            found = "the organisation refuses external addresses"
            mend = "berg config set no_external_ip true"
            findings.append(Finding("policies", FAILED, found, mend))
    if there[api.OS_LOGIN]:
        harmless.append("machines without OS Login")
        if settings.ssh_user != "root":
            found = f"the organisation requires OS Login, which keeps {settings.ssh_user} out"
            findings.append(Finding("policies", FAILED, found, "berg config set ssh_user root"))
    if there[api.SHIELDED]:
        harmless.append("images that cannot be Shielded VMs")
    findings += check_places(settings)
    if findings:
        return findings
    if harmless:
        return [Finding("policies", OK, f"refused, and not asked for: {', '.join(harmless)}")]
    return [Finding("policies", OK, "none is in the way")]


def check_places(settings: Config) -> list[Finding]:
    """Check that the organisation allows resources in the region of the settings."""
    places, region = offers.allowed_places(settings), settings.region
    continent = region.partition("-")[0]
    known = {f"in:{continent}-locations", f"in:{continent[:2]}-locations"}
    if not places or known & {*places} or any(region in each for each in places):
        return []
    found = f"the organisation allows resources in {', '.join(places)}, and your region is {region}"
    return [Finding("policies", WARNING, found, "berg config set region REGION")]


def check_ways(settings: Config) -> list[Finding]:
    """Check what machines without an external address would reach."""
    if not settings.no_external_ip:
        return []
    ways = offers.ways(settings, settings.region)
    return [way_to_google(settings, ways), way_to_internet(settings, ways)]


def way_to_google(settings: Config, ways: offers.Ways) -> Finding:
    name, where = "ways: google", origin_of(ways)
    if ways.to_google:
        return Finding(name, OK, f"Google's APIs are in reach {where}")
    mend = ways.command(to_internet=False)
    if ways.to_google is None:
        return Finding(name, WARNING, f"Google's APIs may be out of reach {where}", mend)
    return Finding(name, FAILED, f"Google's APIs are out of reach {where}", mend)


def way_to_internet(settings: Config, ways: offers.Ways) -> Finding:
    name, where = "ways: internet", origin_of(ways)
    if ways.to_internet:
        return Finding(name, OK, f"the internet is in reach {where}, through Cloud NAT")
    known = "may be" if ways.to_internet is None else "are"
    found = f"pip and the internet {known} out of reach {where}"
    return Finding(name, WARNING, found, ways.command(to_internet=True))


def origin_of(ways: offers.Ways) -> str:
    return f"from the subnetwork {ways.subnetwork} in {ways.region}, without an external address"


def concerns(rule: dict[str, Any], settings: Config) -> bool:
    """Tell whether a rule is in force for what reaches berg's machines, which have no tags."""
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


def check_image(settings: Config) -> list[Finding]:
    try:
        found = offers.find_image(settings, settings.default_image, settings.default_image_project)
    except BergError as error:
        return [Finding("image", FAILED, error.message)]
    return [Finding("image", OK, api.last_part(found))]


# --- the bucket and the account of the machines


def check_bucket(settings: Config) -> list[Finding]:
    found = Bucket(settings).ask("GET")
    kept = found.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0)
    return [
        bucket_place(settings, found["location"].lower(), found["projectNumber"]),
        bucket_privacy(settings, found["iamConfiguration"].get("publicAccessPrevention", "")),
        bucket_cost(settings, int(kept)),
    ]


def bucket_place(settings: Config, place: str, number: str) -> Finding:
    """Say where the bucket lies, and whether it is the project's."""
    about = api.call(settings, "GET", "", fields="defaultServiceAccount")
    own_number = about.get("defaultServiceAccount", "").partition("-")[0]
    if own_number not in ("", number):
        text = f"gs://{settings.bucket} belongs to another project, number {number}"
        return Finding("bucket", FAILED, text, set_up(settings, "--bucket ANOTHER"))
    text = f"gs://{settings.bucket} in {place}"
    if place == settings.region:
        return Finding("bucket", OK, text)
    text += f", and machines in {settings.region}: slower, and traffic costs"
    return Finding("bucket", WARNING, text, set_up(settings, "--bucket ANOTHER --create-bucket"))


def bucket_privacy(settings: Config, prevention: str) -> Finding:
    if prevention == "enforced":
        return Finding("bucket's privacy", OK, "public access is prevented")
    mend = f"{change_bucket(settings)} --public-access-prevention"
    return Finding("bucket's privacy", WARNING, "it could be made public", mend)


def bucket_cost(settings: Config, kept_seconds: int) -> Finding:
    if not kept_seconds:
        return Finding("bucket's cost", OK, "soft delete is off")
    days = kept_seconds / 86400
    text = f"soft delete keeps, and bills, every former version of a growing log for {days:g} days"
    mend = f"{change_bucket(settings)} --clear-soft-delete"
    return Finding("bucket's cost", WARNING, text, mend)


def change_bucket(settings: Config) -> str:
    return f"gcloud storage buckets update gs://{settings.bucket}"


def check_account(settings: Config) -> list[Finding]:
    email = account_of(settings)
    try:
        iam.may_act_as(settings, email)  # raises NotFound if there is none
        check = check_own if iam.is_ours(settings, email) else check_other
        return [check(settings, email)]
    except api.NotFound:
        return [no_account(settings, email)]


def check_own(settings: Config, email: str) -> Finding:
    """Say what the account that berg made lacks."""
    lacking, refusal = iam.missing(settings)
    lacking += builds.too_wide(settings)
    if refusal:
        return Finding(ACCOUNT, WARNING, f"what {email} may do cannot be seen: {refusal}")
    if lacking:
        found = f"{email} lacks: " + "; ".join(grant.text for grant in lacking)
        return Finding(ACCOUNT, FAILED, found, set_up(settings))
    return Finding(ACCOUNT, OK, f"{email} has what it needs, and berg gave it no more")


def check_other(settings: Config, email: str) -> Finding:
    """Say which roles an account has that berg did not make, and whether they are enough."""
    member = [f"serviceAccount:{email}"]
    in_project = iam.roles(iam.project_policy(settings), member)
    on_bucket = iam.roles(iam.bucket_policy(settings), member)
    has = (
        f"{email} has {', '.join(sorted(in_project)) or 'no role'} in the project "
        f"and {', '.join(sorted(on_bucket)) or 'no role'} on the bucket"
    )
    mend = set_up(settings, f"--service-account {iam.account(settings)}")
    if in_project & BASIC:
        wide = "with that a job may change what any machine runs, everybody's code and results"
        return Finding(ACCOUNT, WARNING, f"{has}: more than it needs; {wide}", mend)
    reads_and_writes = (in_project | on_bucket) & ENOUGH_ON_BUCKET
    own_role = f"projects/{settings.project}/roles/{iam.ROLE}"
    if reads_and_writes and in_project & {own_role, *ENOUGH_IN_PROJECT}:
        return Finding(ACCOUNT, OK, has)
    if not in_project or not (on_bucket or reads_and_writes):
        return Finding(ACCOUNT, FAILED, f"{has}; it needs {iam.NEEDS}", mend)
    unknown = f"{has}; berg cannot tell whether that includes {iam.NEEDS}"
    return Finding(ACCOUNT, WARNING, unknown, mend)


def check_clusters(settings: Config) -> list[Finding]:
    """Tell whether clusters cost money for nothing, and jobs may run in them.

    Without any cluster, nothing is wrong.
    """
    try:
        ours = gke.running(settings)
    except api.Denied:
        found = "you may not see whether there are any"
        return [Finding("clusters", WARNING, found, give(settings, IN_CLUSTERS.role))]
    except api.Forbidden:
        found = "none; the API container, for berg run --cluster, is off"
        return [Finding("clusters", OK, found, api.enable_command(settings, "container"))]
    if not ours:
        return [Finding("clusters", OK, "none of berg's")]
    held = held_in_project(settings, IN_CLUSTERS.permissions)
    lacks = [each for each in IN_CLUSTERS.permissions if each not in held]
    held += [each for each in lacks if all(podaccount.may(settings, at, each) for at in ours)]
    findings = [
        Finding("clusters", WARNING, text, "berg cluster delete NAME")
        for text in clusters.idle(settings)
    ]
    findings += [
        Finding("clusters", WARNING, text, mend) for text, mend in clusters.hindered(settings)
    ]
    findings += check_identity(settings)
    if not findings:
        findings = [Finding("clusters", OK, ", ".join(ours))]
    mend = give(settings, IN_CLUSTERS.role)
    return [*findings, rights("clusters", IN_CLUSTERS.permissions, held, "", mend, WARNING)]


def check_identity(settings: Config) -> list[Finding]:
    """Name what keeps pods from acting as their people's own accounts, and no token of a node from
    them.
    """
    there = [each for each in container.clusters(settings) if container.is_ours(each)]
    findings = [
        Finding(IDENTITY, WARNING, grant.text, grant.gcloud)
        for grant in podaccount.missing(settings, lambda: there)
    ]
    for each in there:
        found, mend = without_identity(settings, each)
        if found:
            findings.append(Finding(IDENTITY, WARNING, found, mend))
    return findings


def without_identity(settings: Config, cluster: dict[str, Any]) -> tuple[str, str]:
    """Return what a cluster's pods get of their nodes, and the command that ends it; or nothing."""
    where = f"--location {cluster['location']} --project {settings.project}"
    if not container.workload_pool(cluster):
        return (
            f"in {cluster['name']} all pods share a namespace and their nodes' token: it has no "
            "Workload Identity. The pools, too, have to be changed then",
            f"gcloud container clusters update {cluster['name']} {where} "
            f"--workload-pool {iam.pool(settings)}",
        )
    names = [pool["name"] for pool in container.without_identity(cluster)]
    if not names:
        return "", ""
    return (
        f"pods on {', '.join(names)} of {cluster['name']} get the token of their node",
        f"gcloud container node-pools update {names[0]} --cluster {cluster['name']} {where} "
        "--workload-metadata GKE_METADATA",
    )


def check_index(settings: Config) -> list[Finding]:
    """Whether the index of jobs has what their states say; of very many the first ones."""
    bucket, mend = Bucket(settings), "berg list --all-jobs"
    names = {listed.name for listed in index.everything(bucket)}
    looked_at = list(itertools.islice(states.listed(bucket), STATES))
    if looked_at and index.COMPLETE not in names:
        text = "none yet, so that a list looks at all jobs"
        return [Finding("index", WARNING, text, mend)]
    jobs = [each for each in looked_at if not index.has(names, each.name, each.state)]
    if jobs:
        text = f"lacks {len(jobs):,} of the jobs, {jobs[0].name} among them"
        return [Finding("index", WARNING, text, mend)]
    return [Finding("index", OK, f"has {plural(len(looked_at), 'job')}")]


# What the person may do: doctor and init ask for it.
RIGHTS = {
    "rights": check_person,
    "rights: network": check_subnetwork,
    "rights: bucket": check_on_bucket,
    "rights: account": check_acting,
}

ASKED = {
    "project": check_project,
    "apis": check_apis,
    **RIGHTS,
    "bucket": check_bucket,
    "machines' account": check_account,
    "index": check_index,
    "image": check_image,
    "quota": check_quotas,
    "reserved": check_reservations,
    "firewall": check_firewall,
    "policies": check_policies,
    "ways": check_ways,
    "clusters": check_clusters,
}

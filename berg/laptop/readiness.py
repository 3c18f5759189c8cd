"""The checks of `berg doctor` that ask Google: whether the project, the person, the bucket and the
account are ready.

Of what a check raises, and of one without an answer, doctor.py makes a finding.

Not covered: prices, whether a zone has room, organisation policies but two, what people's own roles
hold.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import accelerators, api, grants, networks, offers
from berg.google.storage import Bucket
from berg.laptop import clusters
from berg.places import gke
from berg.plan import JobSpec

OK, WARNING, FAILED = "ok", "warning", "failed"
APIS = {
    "compute": "machines",
    "storage": "code, logs and results",
    "iam": "the machines' account",
    "cloudresourcemanager": "the rights of that account",
    "secretmanager": "--secret",
}
NEEDED = {"compute", "storage"}  # for every job; the others for what is named
# What a person needs in the project: what for, permissions, and a role that has them.
IN_PROJECT = {
    "machines": (
        "compute.instances.create compute.instances.delete compute.instances.get compute.instances.list "
        "compute.instances.setLabels compute.instances.setMetadata compute.instances.setServiceAccount "
        "compute.instances.getSerialPortOutput compute.disks.create compute.subnetworks.use "
        "compute.subnetworks.useExternalIp compute.instanceTemplates.create compute.instanceGroupManagers.create "
        "compute.instanceGroupManagers.update compute.instanceGroupManagers.delete",
        "roles/compute.instanceAdmin.v1",
    ),
    "slices": (
        "compute.resourcePolicies.create compute.resourcePolicies.use compute.resourcePolicies.list "
        "compute.resourcePolicies.delete",
        "roles/compute.instanceAdmin.v1",
    ),
    "secrets": (
        "secretmanager.secrets.create secretmanager.secrets.setIamPolicy secretmanager.versions.add "
        "secretmanager.secrets.delete",
        "roles/secretmanager.admin",
    ),
}
IN_CLUSTERS = (
    *(f"container.clusters.{verb}" for verb in ("get", "list")),
    *(f"container.jobs.{verb}" for verb in ("create", "delete", "get", "list")),
    *(f"container.pods.{verb}" for verb in ("delete", "exec", "get", "getLogs", "list", "update")),
    "container.configMaps.create",
    "container.events.list",
)
ON_BUCKET = (
    "storage.buckets.get",
    *(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list", "update")),
)
# Roles that are as good as those that berg grants.
ENOUGH_IN_PROJECT = {
    "roles/compute.instanceAdmin.v1",
    "roles/compute.admin",
    "roles/editor",
    "roles/owner",
}
ENOUGH_ON_BUCKET = {grants.BUCKET_ROLE, "roles/storage.objectAdmin", "roles/storage.admin"}
# of a project's editors and owners
LEGACY = {
    "roles/storage.legacyBucketOwner",
    "roles/storage.legacyObjectOwner",
}
TUNNELS = {"tunnels": ("iap.tunnelInstances.accessViaIAP", "roles/iap.tunnelResourceAccessor")}
ANYWHERE, IAP = "0.0.0.0/0", networks.IAP


@dataclass
class Finding:
    check: str
    status: str
    found: str
    mend: str = ""  # the command that does


# --- the project


def check_credentials(settings: Config) -> list[Finding]:
    _ = settings.session
    who = grants.person(settings)
    whose = "" if who == grants.SOMEBODY else f" of {who}"
    return [
        Finding(
            "credentials",
            OK,
            f"{settings.credentials_file or 'Application Default Credentials'}{whose}",
        )
    ]


def set_up(settings: Config, options: str = "") -> str:
    """The command that sets up the cloud that is looked at; the embedded one takes no options."""
    return "berg init --local" if settings.endpoint else f"berg init {options}".strip()


def check_project(settings: Config) -> list[Finding]:
    from google.api_core import exceptions

    try:
        api.call(settings, "GET", "", fields="name")
    except exceptions.NotFound:
        return [
            Finding(
                "project", FAILED, f"there is no project {settings.project!r}", set_up(settings)
            )
        ]
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


def check_person(settings: Config) -> list[Finding]:
    wanted = {**IN_PROJECT, **(TUNNELS if settings.no_external_ip else {})}
    held = held_in_project(
        settings, [permission for words, _ in wanted.values() for permission in words.split()]
    )
    # The others are for what few jobs need.
    return [
        rights(
            settings,
            purpose,
            words.split(),
            held,
            role,
            FAILED if purpose == "machines" else WARNING,
        )
        for purpose, (words, role) in wanted.items()
    ]


def held_in_project(settings: Config, asked: list[str]) -> list[str]:
    """Those of some permissions that the person has in the project."""
    url = f"{settings.service_url('cloudresourcemanager')}/v1/projects/{settings.project}:testIamPermissions"
    return api.call(settings, "POST", url, {"permissions": asked}).get("permissions", [])


def rights(
    settings: Config, purpose: str, wanted: Iterable[str], held: list[str], role: str, status: str
) -> Finding:
    lacks = [permission for permission in wanted if permission not in held]
    if not lacks:
        return Finding(f"rights: {purpose}", OK, "you have what it takes")
    return Finding(
        f"rights: {purpose}", status, f"you lack {', '.join(lacks)}", give(settings, role)
    )


def give(settings: Config, role: str) -> str:
    """The command that gives the person a role in the project."""
    who = grants.person(settings)
    return f"gcloud projects add-iam-policy-binding {settings.project} --member {who} --role {role}"


def check_quotas(settings: Config) -> list[Finding]:
    """Whether a machine as one gets it without options finds room in every quota it counts against,
    and a Spot one.
    """
    shape, there = (
        accelerators.choose(None, None, None, None),
        offers.quotas(settings, settings.region),
    )
    needs = accelerators.quota_needs(shape, 1, JobSpec.disk_gb, False, not settings.no_external_ip)
    on_spot = accelerators.quota_needs(shape, 1, JobSpec.disk_gb, True, not settings.no_external_ip)
    findings = []
    for need, metrics in needs + [each for each in on_spot if each not in needs]:
        best = max(
            metrics, key=lambda metric: there.get(metric, (0, 0))[0] - there.get(metric, (0, 0))[1]
        )
        limit, usage = there.get(best, (0, 0))
        spot = (need, metrics) not in needs
        where = settings.project if best.endswith("_ALL_REGIONS") else settings.region
        what = "Spot machine" if spot else "machine"
        found = f"{best if limit else metrics[0]} in {where}: {usage:g} of {limit:g} in use; a default {what} needs {need}"
        mend = f"https://console.cloud.google.com/iam-admin/quotas?project={settings.project}"
        short = limit - usage < need
        findings.append(Finding("quota", WARNING if short else OK, found, mend if short else ""))
    return findings


def check_firewall(settings: Config) -> list[Finding]:
    """Whether machines have a network that ssh from outside reaches, as far as rules tell.

    A denial must hold for everyone to count.
    """
    from google.api_core import exceptions

    port, network = settings.ssh_port, settings.network
    try:
        api.call(settings, "GET", f"/global/networks/{network}", fields="name")
    except exceptions.NotFound:
        found = f"there is no network {network!r}. Make it, or name another one: berg config set network NAME"
        make = f"gcloud compute networks create {network} --project {settings.project}"
        return [Finding("network", FAILED, found, make)]
    rules = [
        rule for page in api.pages(settings, "/global/firewalls") for rule in page.get("items", [])
    ]
    rules = [
        rule
        for rule in rules
        if api.last_part(rule["network"]) == network and concerns(rule, settings)
    ]
    sources: list[str] = []
    for rule in sorted(rules, key=lambda rule: (rule["priority"], "allowed" in rule)):
        # machines have IPv4 alone
        ranges = [each for each in rule.get("sourceRanges", []) if ":" not in each]
        # private ranges are not where this computer comes from
        if opens(rule.get("allowed", []), port):
            sources += [
                each
                for each in ranges
                if each == ANYWHERE or not ipaddress.ip_network(each).is_private
            ]
        elif ANYWHERE in ranges and opens(rule.get("denied", []), port):
            break
    inside, mend = (
        ipaddress.ip_network(IAP),
        networks.let_ssh_in(settings, port, settings.no_external_ip),
    )
    if settings.no_external_ip:
        if any(inside.subnet_of(ipaddress.ip_network(each)) for each in sources):  # type: ignore[arg-type]
            return [Finding("firewall", OK, f"tcp:{port} to the network {network} is open to IAP")]
        found = f"no rule lets IAP in to tcp:{port} of the network {network}: no berg ssh"
        return [Finding("firewall", WARNING, found, mend)]
    if ANYWHERE in sources:
        return [Finding("firewall", OK, f"tcp:{port} to the network {network} is open to all")]
    if not sources:
        return [
            Finding(
                "firewall",
                WARNING,
                f"no rule lets tcp:{port} in to the network {network}: no berg ssh",
                mend,
            )
        ]
    found = f"tcp:{port} to the network {network} is open to {', '.join(sources)}"
    if set(sources) == {IAP}:
        return [
            Finding(
                "firewall",
                WARNING,
                f"{found} (IAP), which berg ssh takes without external addresses",
                mend,
            )
        ]
    return [Finding("firewall", OK, f"{found}; this computer should be among them")]


def check_policies(settings: Config) -> list[Finding]:
    """Whether an organisation policy would refuse the machines as the settings have them."""
    there = networks.enforced(settings)
    external, login = there[networks.EXTERNAL], there[networks.OS_LOGIN]
    findings = []
    if external and not settings.no_external_ip:
        found, mend = (
            "the organisation refuses external addresses",
            "berg config set no_external_ip true",
        )
        findings.append(Finding("policies", FAILED, found, mend))
    if login and settings.ssh_user != "root":
        found = f"the organisation requires OS Login, which keeps {settings.ssh_user} out"
        findings.append(Finding("policies", FAILED, found, "berg config set ssh_user root"))
    words = [
        text
        for is_so, text in ((external, "external addresses"), (login, "machines without OS Login"))
        if is_so
    ]
    fine = f"refused, and not asked for: {', '.join(words)}" if words else "none is in the way"
    return findings or [Finding("policies", OK, fine)]


def check_ways(settings: Config) -> list[Finding]:
    """What machines without an external address would reach."""
    if not settings.no_external_ip:
        return []
    ways = networks.ways(settings, settings.region)
    where = f"from the subnetwork {ways.subnetwork} in {ways.region}, without an external address"
    mends = [ways.mend(settings.project, nat) for nat in (False, True)]
    google = Finding("ways: google", OK, f"Google's APIs are in reach {where}")
    if not ways.to_google:
        status, known = (WARNING, "may be") if ways.to_google is None else (FAILED, "are")
        google = Finding(
            "ways: google", status, f"Google's APIs {known} out of reach {where}", mends[0]
        )
    internet = Finding("ways: internet", OK, f"the internet is in reach {where}, through Cloud NAT")
    if not ways.to_internet:
        known = "may be" if ways.to_internet is None else "are"
        internet = Finding(
            "ways: internet",
            WARNING,
            f"pip and the internet {known} out of reach {where}",
            mends[1],
        )
    return [google, internet]


def concerns(rule: dict[str, Any], settings: Config) -> bool:
    """Whether a rule is in force for what reaches berg's machines, which have no tags."""
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
    bucket = Bucket(settings)
    found = bucket.client.get_bucket(settings.bucket, retry=bucket.retry)
    change, place = f"gcloud storage buckets update gs://{settings.bucket}", found.location.lower()
    number = api.call(settings, "GET", "", fields="defaultServiceAccount").get(
        "defaultServiceAccount", ""
    )
    where = Finding("bucket", OK, f"gs://{settings.bucket} in {place}")
    if number.partition("-")[0] not in ("", str(found.project_number)):
        text = f"gs://{settings.bucket} belongs to another project, number {found.project_number}"
        where = Finding("bucket", FAILED, text, set_up(settings, "--bucket ANOTHER"))
    elif place != settings.region:
        text = f"{where.found}, and machines in {settings.region}: slower, and traffic costs"
        where = Finding(
            "bucket", WARNING, text, set_up(settings, "--bucket ANOTHER --create-bucket")
        )
    held = bucket.bucket.test_iam_permissions(list(ON_BUCKET))
    lacks = [permission for permission in ON_BUCKET if permission not in held]
    bind = f"gcloud storage buckets add-iam-policy-binding gs://{settings.bucket} --member {grants.person(settings)}"
    yours = Finding("rights: bucket", OK, "you have what it takes")
    if lacks:
        yours = Finding(
            "rights: bucket",
            FAILED,
            f"you lack {', '.join(lacks)}",
            f"{bind} --role roles/storage.admin",
        )
    public = Finding("bucket's privacy", OK, "public access is prevented")
    if found.iam_configuration.public_access_prevention != "enforced":
        public = Finding(
            "bucket's privacy",
            WARNING,
            "it could be made public",
            f"{change} --public-access-prevention",
        )
    days = (found.soft_delete_policy.retention_duration_seconds or 0) / 86400
    soft = Finding("bucket's cost", OK, "soft delete is off")
    if days:
        text = (
            f"soft delete keeps, and bills, every former version of a growing log for {days:g} days"
        )
        soft = Finding("bucket's cost", WARNING, text, f"{change} --clear-soft-delete")
    return [where, yours, public, soft]


def check_account(settings: Config) -> list[Finding]:
    from google.api_core import exceptions

    email = settings.service_account or api.call(settings, "GET", "").get(
        "defaultServiceAccount", ""
    )
    name, own = "machines' account", email == grants.account(settings)
    try:
        acts = grants.may_act_as(settings, email)
    except exceptions.NotFound:
        return [Finding(name, FAILED, f"there is no service account {email!r}", set_up(settings))]
    act = Finding("rights: account", OK, f"you may start machines that act as {email}")
    if not acts:
        command = grants.act_as_command(settings, email)
        act = Finding("rights: account", FAILED, f"you lack {grants.ACT_AS} on {email}", command)
    try:
        return [
            check_own(settings, name, email) if own else check_other(settings, name, email),
            act,
        ]
    except exceptions.Forbidden as error:
        return [
            Finding(name, WARNING, f"what {email} may do cannot be seen: {api.words(error)}"),
            act,
        ]


def check_own(settings: Config, name: str, email: str) -> Finding:
    lacking, refusal = grants.missing(settings)
    if refusal:
        return Finding(name, WARNING, f"what {email} may do cannot be seen: {refusal}")
    if lacking:
        return Finding(
            name,
            FAILED,
            f"{email} lacks: " + "; ".join(grant.text for grant in lacking),
            set_up(settings),
        )
    return Finding(name, OK, f"{email} has what it needs, and berg gave it no more")


def check_other(settings: Config, name: str, email: str) -> Finding:
    """An account that berg did not make: what its roles are, and whether berg knows them to be
    enough.
    """
    member, mend = (
        f"serviceAccount:{email}",
        set_up(settings, f"--service-account {grants.account(settings)}"),
    )
    in_project = grants.roles(grants.project_policy(settings), [member])
    basic = {"roles/editor": "projectEditor", "roles/owner": "projectOwner"}
    members = [member, *(f"{basic[role]}:{settings.project}" for role in in_project & basic.keys())]
    on_bucket = grants.roles(grants.bucket_policy(settings), members)
    has = f"{email} has {', '.join(sorted(in_project)) or 'no role'} in the project"
    has += f" and {', '.join(sorted(on_bucket)) or 'no role'} on the bucket"
    everywhere = in_project | on_bucket
    enough = everywhere & ENOUGH_ON_BUCKET or on_bucket >= LEGACY
    if enough and f"projects/{settings.project}/roles/{grants.ROLE}" in in_project:
        return Finding(name, OK, has)
    if enough and in_project & ENOUGH_IN_PROJECT:
        return Finding(name, WARNING, f"{has}: more than it needs", mend)
    if not in_project or not (on_bucket or in_project & ENOUGH_ON_BUCKET):
        return Finding(name, FAILED, f"{has}; it needs {grants.NEEDS}", mend)
    return Finding(
        name, WARNING, f"{has}; berg cannot tell whether that includes {grants.NEEDS}", mend
    )


def check_clusters(settings: Config) -> list[Finding]:
    """Whether clusters cost money for nothing, and jobs may run in them; without any, nothing is
    wrong.
    """
    from google.api_core import exceptions

    role = "roles/container.developer"
    try:
        ours = gke.running(settings)
    except api.Denied:
        return [
            Finding(
                "clusters", WARNING, "you may not see whether there are any", give(settings, role)
            )
        ]
    except exceptions.Forbidden:
        mend = api.enable_command(settings, "container")
        return [
            Finding("clusters", OK, "none; the API container, for berg run --cluster, is off", mend)
        ]
    if not ours:
        return [Finding("clusters", OK, "none of berg's")]
    held = held_in_project(settings, [*IN_CLUSTERS])
    idle = [
        Finding("clusters", WARNING, text, "berg cluster delete NAME")
        for text in clusters.idle(settings)
    ]
    findings = idle or [Finding("clusters", OK, ", ".join(ours))]
    return [*findings, rights(settings, "clusters", IN_CLUSTERS, held, role, WARNING)]


ASKED = {
    "project": check_project,
    "apis": check_apis,
    "rights": check_person,
    "bucket": check_bucket,
    "machines' account": check_account,
    "image": check_image,
    "quota": check_quotas,
    "firewall": check_firewall,
    "policies": check_policies,
    "ways": check_ways,
    "clusters": check_clusters,
}

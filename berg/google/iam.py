"""What the account of the machines may do: the least that works. `berg init` grants it, `berg
doctor` checks it.

A job's code acts as this account. It may read what laptops wrote, write results, logs and states,
and nothing else. IAM conditions limit each right to prefixes of object names, with a `/` at the end
because `a/b` would include `a/bc`. Listing is a right of its own: it is checked on the bucket,
where a condition on objects never holds. Policies are read, changed and written with their etag,
as version 3 if they have conditions; other bindings with conditions are kept, and not counted.

Workload Identity: the Kubernetes account of one user's pods acts as the user's Google account,
which has to allow that in its own policy. IAM identifies the Kubernetes account by the project's
pool, its namespace and its name, whatever the cluster.

Not covered: resource tags that would limit deletion, separating the jobs of one account, which IAM
cannot, and accounts of another project than the cluster's.
"""

import functools
import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api
from berg.google.storage import Bucket

MACHINES = (
    "compute.instances.list",  # which machines of the job are there
    "compute.instances.delete",  # itself, and the others when the job is finished
    # The job's group, which would re-create the machine. Compute Engine checks both of these. Not
    # `update`: groups take no condition, so a job could change the startup script of other groups.
    "compute.instanceGroupManagers.delete",
    "compute.instanceGroups.delete",
)


@dataclass(frozen=True)
class Right:
    """A custom role, and the objects that it holds for; without prefixes there is no condition."""

    role: str
    title: str
    permissions: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    states: bool = False  # also for the states of jobs
    on_bucket: bool = True  # else on the project

    def condition(self, bucket: str) -> dict[str, str] | None:
        """Return the condition of the binding on a bucket, as IAM writes it."""
        if not self.prefixes:
            return None
        parts = [is_below(bucket, prefix) for prefix in self.prefixes]
        if self.states:
            of_jobs = is_below(bucket, ".berg/jobs/")
            parts.append(f'({of_jobs} && resource.name.endsWith("_state.json"))')
        return {"title": self.role, "expression": " || ".join(parts)}


MACHINE = Right("bergWorker", "Berg's machines", MACHINES, on_bucket=False)
READ = Right(
    "bergReader",
    "Berg's machines read code, jobs and data",
    ("storage.objects.get",),
    (".berg/dist/", ".berg/repos/", ".berg/jobs/", ".berg/sweeps/", "data/"),
)
WRITE = Right(
    "bergWriter",
    "Berg's machines write results, logs and states",
    ("storage.objects.create", "storage.objects.delete", "storage.objects.get"),
    (
        "berg_results/",
        ".berg/logs/",
        ".berg/machines/",
        ".berg/folders/",
        ".berg/views/",
        ".berg/tmp/",
    ),
    states=True,
)
LIST = Right("bergLister", "Berg's machines list objects", ("storage.objects.list",))
RIGHTS = (MACHINE, READ, WRITE, LIST)  # of the machines' account
# On one secret each, which its job grants (secret.py).
SECRET = Right(
    "bergSecret",
    "Berg's machines read and delete the secret of their job",
    ("secretmanager.secrets.delete", "secretmanager.versions.access"),
)
ROLES = (*RIGHTS, SECRET)
NAME, TITLE, ROLE = "berg-worker", "Berg's machines", MACHINE.role
LONGEST_NAME = 30  # characters of an account's name
BUCKET_ROLE = "roles/storage.objectUser"  # enough on the bucket, for accounts of the user's making
# What an account that draws on a purse has on the bucket, in the project, and on the machines' one.
SEES = ("roles/storage.legacyBucketReader", "roles/storage.objectViewer")
CREATES, USES = "roles/compute.instanceAdmin.v1", "roles/iam.serviceAccountUser"
WIDE = {  # roles with which it could change a purse
    "roles/owner",
    "roles/editor",
    "roles/storage.admin",
    "roles/storage.objectAdmin",
    "roles/storage.legacyBucketOwner",
    "roles/storage.legacyBucketWriter",
    BUCKET_ROLE,
}
APIS = ("iam", "cloudresourcemanager", "serviceusage")
YOUR_ADDRESS = "user:YOUR_ADDRESS"  # the user replaces it
ACT_AS = "iam.serviceAccounts.actAs"
PURSES = ".berg/purses/"  # written by owners of purses
NEEDS = f"{BUCKET_ROLE} on the bucket, and in the project {', '.join(MACHINE.permissions)}"
UNLIMITED = (
    "Compute Engine cannot limit deletion to berg's own machines without resource tags or "
    "conditions, so that it may delete any machine and any managed instance group of the project"
)
# Seconds until a new account is known everywhere, or others stop changing the same policy.
SETTLING = 90
# What Compute Engine and Kubernetes Engine say while they do not know an account, or the right to
# act as one.
NOT_KNOWN_YET = re.compile(
    r"of type 'serviceAccount' was not found|does not have access to service account"
    r'|Service account "\S+" does not exist'
)
DEFAULT_IS_WIDE = (
    "the project's default account usually is Editor of the project: with it a job may change what "
    "any machine runs, everybody's code, results and secrets, and berg keeps nothing from it"
)
WORKLOAD_ROLE = "roles/iam.workloadIdentityUser"
ACCOUNT = "berg-pod"  # of pods, in each namespace of berg's
ANNOTATION = "iam.gke.io/gcp-service-account"  # of a Kubernetes account: the account it acts as
LONGEST = 63  # characters of a namespace


@dataclass
class Grant:
    """Something that berg's own account lacks: in words, as a gcloud command, and as a call."""

    text: str
    gcloud: str
    make: Callable[[], Any]


def is_below(bucket: str, prefix: str) -> str:
    """Return the condition that an object's name begins with a prefix, as IAM writes it."""
    return f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{prefix}")'


def ledger_of(purse: str) -> str:
    """Return the object of a purse that what draws on it writes."""
    return f"{PURSES}{purse}/ledger.json"


def role_name(project: str, right: Right) -> str:
    """Return the full name of a custom role in a project."""
    return f"projects/{project}/roles/{right.role}"


# --- which account


def address(config: Config, name: str) -> str:
    return f"{name}@{config.project}.iam.gserviceaccount.com"


def shared_account(config: Config) -> str:
    """Return the account that all users of a bucket may act as."""
    return address(config, NAME)


def account_of_user(config: Config) -> str:
    """Return the account of one user, whose secrets no other user's jobs may read."""
    name = f"{NAME}-{config.user.replace('_', '-')}"
    if len(name) > LONGEST_NAME:  # others may share what is left of the name
        digest = hashlib.sha256(config.user.encode()).hexdigest()[:6]
        name = f"{name[: LONGEST_NAME - 7].rstrip('-')}-{digest}"
    return address(config, name)


def is_ours(config: Config, email: str) -> bool:
    """Return whether an account is one that berg creates."""
    name, _, domain = email.partition("@")
    is_here = f"@{domain}" == address(config, "")
    return is_here and (name == NAME or name.startswith(f"{NAME}-"))


def is_own(config: Config) -> bool:
    """Return whether the machines act as an account that berg created for one user."""
    email = config.service_account
    return is_ours(config, email) and email != shared_account(config)


def account(config: Config) -> str:
    """Return the configured account if berg creates it, else the shared one."""
    given = config.service_account
    return given if is_ours(config, given) else shared_account(config)


def is_default(email: str) -> bool:
    """Return whether an account is the default one of a project; so is ""."""
    return bool(re.fullmatch(r"\d+-compute@developer\.gserviceaccount\.com|default|", email))


def person(config: Config) -> str:
    """Return the user of berg as a member of policies; not all credentials name their user."""
    found = config.credentials
    if email := getattr(found, "service_account_email", ""):
        return f"serviceAccount:{email}"
    email = getattr(found, "account", "")
    return f"user:{email}" if email else YOUR_ADDRESS


# --- what it lacks


@dataclass
class Look:
    """Read what there is, and remember what Google refused to show."""

    config: Config
    refusals: list[str] = field(default_factory=list)

    def __call__(self, read: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        """Return what a function reads; {} if there is nothing, or the user may not see it."""
        try:
            found: dict[str, Any] = api.when_on(self.config, lambda: read(self.config, *arguments))
            return found
        except api.NotFound:
            return {}
        except api.Forbidden as error:
            if api.lacks_quota_project(error):
                raise BergError(api.name_quota_project(self.config)) from None
            self.refusals.append(api.words(error))
            return {}


def missing(config: Config) -> tuple[list[Grant], str]:
    """Return what berg's own account lacks, in the order of making, and why Google refused to show
    some of it.
    """
    look = Look(config)
    found = [*missing_account(config, look, account(config), TITLE), *missing_roles(config, look)]
    if not look(has_uniform_access).get("enabled", True):
        bucket = f"gs://{config.bucket}"
        text = (
            f"Turn on uniform access on {bucket}: access lists of single objects count no more, "
            "and rights may be given by prefix"
        )
        command = f"gcloud storage buckets update {bucket} --uniform-bucket-level-access"
        body = {"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}
        found.append(Grant(text, command, lambda: Bucket(config).ask("PATCH", body=body)))
    found += missing_bindings(config, look)
    return found, look.refusals[0] if look.refusals else ""


def make_all(lacking: list[Grant]) -> str:
    """Make grants, and take each one made out of the list; return why Google refused one."""
    try:
        while lacking:
            lacking[0].make()
            lacking.pop(0)
    except (api.Forbidden, api.BadRequest) as error:
        # BadRequest: rules of the organization.
        return api.words(error)
    return ""


def missing_account(
    config: Config, look: Callable[..., dict[str, Any]], email: str, title: str
) -> list[Grant]:
    """Return the creation of an account, if there is none."""
    if look(iam, "GET", f"/serviceAccounts/{email}"):
        return []
    name = email.partition("@")[0]
    command = f"gcloud iam service-accounts create {name} --project {config.project}"
    make = functools.partial(create_account, config, email, title)
    return [Grant(f"Create the service account {email}", command, make)]


def missing_roles(config: Config, look: Look) -> list[Grant]:
    """Return the custom roles to create, and to add permissions to."""
    found = []
    for right in ROLES:
        role, where = right.role, f"--project {config.project}"
        there = look(iam, "GET", f"/roles/{role}")
        if there.get("deleted"):
            raise BergError(
                f"the custom role {role} was deleted. Restore it: gcloud iam roles undelete {role} "
                f"{where}; then run berg init again"
            )
        held = there.get("includedPermissions", [])
        lacks = [permission for permission in right.permissions if permission not in held]
        verb, command = "Create", f"gcloud iam roles create {role} {where} --permissions"
        if there:
            verb, command = "Add to", f"gcloud iam roles update {role} {where} --add-permissions"
        if lacks:
            text = f"{verb} the custom role {role}: {', '.join(lacks)}"
            make = functools.partial(write_role, config, right)
            found.append(Grant(text, f"{command} {','.join(lacks)}", make))
    return found


def has_uniform_access(config: Config) -> dict[str, Any]:
    access: dict[str, Any] = Bucket(config).ask("GET", fields="iamConfiguration")
    return {"enabled": access["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]}


def missing_bindings(config: Config, look: Look) -> list[Grant]:
    """Return what the policies of the project and of the bucket do not give the account yet."""
    member = f"serviceAccount:{account(config)}"
    in_project, on_bucket = look(project_policy), look(bucket_policy)
    found = []
    for right in RIGHTS:
        role, condition = role_name(config.project, right), right.condition(config.bucket)
        if right.on_bucket and not is_bound(on_bucket, role, member, condition):
            text = f"Give the account {right.role} on gs://{config.bucket}"
            if right.prefixes:
                text += f" below {', '.join(right.prefixes)}"
            if right.states:
                text += " and states"
            found.append(bucket_grant(config, text, role, member, condition))
        elif not right.on_bucket and role not in roles(in_project, [member]):
            found.append(project_grant(config, right.role, role, f". {UNLIMITED}"))
    role = "roles/monitoring.metricWriter"
    if config.monitoring and role not in roles(in_project, [member]):
        found.append(project_grant(config, role, role, ", to write metrics and no more"))
    return found


def project_grant(config: Config, name: str, role: str, why: str) -> Grant:
    """Return a role for the account in the project; `name` is its short name."""
    project, member = config.project, f"serviceAccount:{account(config)}"
    command = (
        f"gcloud projects add-iam-policy-binding {project} --member {member} --role {role} "
        "--condition None"
    )
    make = functools.partial(bind, config, project_policy, role, member)
    return Grant(f"Give the account {name} in the project {project}{why}", command, make)


def bucket_grant(
    config: Config, text: str, role: str, member: str, condition: dict[str, str] | None
) -> Grant:
    """Return a role for a member on the bucket, under a condition."""
    limit = "None"
    if condition:  # it has no comma, at which gcloud would split it
        limit = f"'expression={condition['expression']},title={condition['title']}'"
    command = (
        f"gcloud storage buckets add-iam-policy-binding gs://{config.bucket} --member {member} "
        f"--role {role} --condition={limit}"
    )
    make = functools.partial(bind, config, bucket_policy, role, member, condition)
    return Grant(text, command, make)


# --- accounts that draw on a purse


def of_purse(config: Config, purse: str) -> dict[str, str]:
    """Return the condition under which an account draws on a purse: it writes none of the objects
    of purses but the ledger of this one.
    """
    others, own = is_below(config.bucket, PURSES), is_below(config.bucket, ledger_of(purse))
    return {"title": f"berg purse {purse}", "expression": f"!{others} || {own}"}


def purse_grants(config: Config, purse: str, email: str) -> list[Grant]:
    """Return what an account lacks to submit jobs that draw on a purse; raise BergError if it, or
    the machines' account that it may use, could change the purse.
    """
    member = f"serviceAccount:{email}"
    in_project, on_bucket = project_policy(config), bucket_policy(config)
    if is_default(config.service_account):
        raise BergError(f"{email} could change the purse through its machines: {DEFAULT_IS_WIDE}")
    wide = sorted(WIDE & (roles(in_project, [member]) | roles(on_bucket, [member])))
    if wide:
        raise BergError(
            f"{email} has {', '.join(wide)}, with which it could change the purse. Take it away: "
            f"gcloud projects remove-iam-policy-binding {config.project} --member {member} --role "
            f"{wide[0]}, or gcloud storage buckets remove-iam-policy-binding gs://{config.bucket}"
        )
    found = []
    for role in SEES:
        if not is_bound(on_bucket, role, member):
            text = f"Let {email} read gs://{config.bucket}: {role}"
            found.append(bucket_grant(config, text, role, member, None))
    condition = of_purse(config, purse)
    if not is_bound(on_bucket, BUCKET_ROLE, member, condition):
        text = f"Let {email} write gs://{config.bucket}, but of purses only {ledger_of(purse)}"
        found.append(bucket_grant(config, text, BUCKET_ROLE, member, condition))
    if CREATES not in roles(in_project, [member]):
        text = f"Let {email} create machines in the project {config.project}: {CREATES}"
        make = functools.partial(bind, config, project_policy, CREATES, member)
        found.append(Grant(text, binding_commands(config, "add", email)[0], make))
    if not is_bound(account_policy(config), USES, member):
        text = f"Let {email} start machines that act as {config.service_account}"
        make = functools.partial(bind, config, account_policy, USES, member)
        found.append(Grant(text, binding_commands(config, "add", email)[1], make))
    return found


def binding_commands(config: Config, verb: str, email: str) -> list[str]:
    """Return the commands that add or remove what an account may do outside of the bucket."""
    member = f"--member serviceAccount:{email}"
    return [
        f"gcloud projects {verb}-iam-policy-binding {config.project} {member} --role {CREATES} "
        "--condition None",
        f"gcloud iam service-accounts {verb}-iam-policy-binding {config.service_account} "
        f"--project {config.project} {member} --role {USES}",
    ]


def purse_removal(config: Config, purse: str, email: str) -> Grant:
    """Return what takes a purse from an account: it can write nothing more in the bucket."""
    member, condition = f"serviceAccount:{email}", of_purse(config, purse)
    granted = bucket_grant(config, "", BUCKET_ROLE, member, condition)
    command = granted.gcloud.replace("add-iam", "remove-iam")
    make = functools.partial(unbind, config, bucket_policy, BUCKET_ROLE, member, condition)
    return Grant(f"Take from {email} what it may write for the purse {purse}", command, make)


# --- requests


def iam(
    config: Config,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    project: str = "",
    **query: Any,
) -> dict[str, Any]:
    base = f"{config.service_url('iam')}/v1/projects/{project or config.project}"
    return api.call(config, method, base + path, body, **query)


def may_act_as(config: Config, email: str) -> bool:
    """Return whether the user may start machines that act as an account; raises api.NotFound."""
    # Ask in the account's own project: in any other one Google answers "forbidden" for an account
    # that does not exist.
    home = re.fullmatch(r".*@(.*)\.iam\.gserviceaccount\.com", email)
    path, asked = f"/serviceAccounts/{email}:testIamPermissions", {"permissions": [ACT_AS]}
    answer = iam(config, "POST", path, asked, project=home[1] if home else "")
    return bool(answer.get("permissions"))


def act_as_command(config: Config, email: str) -> str:
    """Return the command that gives the user that right."""
    return (
        f"gcloud iam service-accounts add-iam-policy-binding {email} --project {config.project} "
        f"--member {person(config)} --role roles/iam.serviceAccountUser"
    )


def is_settling(config: Config, error: BaseException) -> bool:
    """Return whether an error passes because IAM knows the machines' account, and other services
    soon will.
    """
    kinds = (api.OperationFailed, api.BadRequest)
    if not isinstance(error, kinds) or not NOT_KNOWN_YET.search(error.message):
        return False
    try:
        return bool(config.service_account) and may_act_as(config, config.service_account)
    except api.GoogleError:
        return False


def once_known(config: Config, make: Callable[[], Any]) -> None:
    """Create machines, and try again while their account is too new."""
    settling = functools.partial(is_settling, config)
    what = "the new service account"
    api.retry(make, settling, SETTLING, what, forbidden=False, initial=1, maximum=8)


def until_settled(change: Callable[[], Any]) -> Any:
    """Read, change and write again while others change the same, and while a new account is not
    known everywhere.
    """

    def unsettled(error: Exception) -> bool:
        unknown = isinstance(error, api.BadRequest) and "does not exist" in error.message
        return unknown or isinstance(error, (api.Conflict, api.PreconditionFailed))

    return api.retry(change, unsettled, SETTLING, "IAM", initial=0.2, maximum=8)


def create_account(config: Config, email: str = "", title: str = TITLE) -> None:
    """Create an account; by default that of the machines."""
    name = (email or account(config)).partition("@")[0]
    body = {"accountId": name, "serviceAccount": {"displayName": title}}
    try:
        iam(config, "POST", "/serviceAccounts", body)
    except api.Conflict:  # created by a request whose answer was lost, or by another user
        pass


def write_role(config: Config, right: Right = MACHINE) -> None:
    """Create a custom role, or add the permissions that it lacks."""
    path = f"/roles/{right.role}"

    def once() -> None:
        try:
            there = iam(config, "GET", path)
        except api.NotFound:
            role = {"title": right.title, "stage": "GA", "includedPermissions": right.permissions}
            iam(config, "POST", "/roles", {"roleId": right.role, "role": role})
            return
        together = sorted({*there.get("includedPermissions", []), *right.permissions})
        changed = {"includedPermissions": together, "etag": there["etag"]}
        iam(config, "PATCH", path, changed, updateMask="includedPermissions")

    until_settled(once)


# --- policies: each function reads one, or writes it


def project_policy(config: Config, new: dict[str, Any] | None = None) -> dict[str, Any]:
    url = f"{config.service_url('cloudresourcemanager')}/v1/projects/{config.project}"
    if new is None:
        options = {"options": {"requestedPolicyVersion": 3}}
        return api.call(config, "POST", f"{url}:getIamPolicy", options)
    return api.call(config, "POST", f"{url}:setIamPolicy", {"policy": new})


def bucket_policy(config: Config, new: dict[str, Any] | None = None) -> dict[str, Any]:
    if new is None:
        return Bucket(config).ask("GET", "/iam", optionsRequestedPolicyVersion=3)
    return Bucket(config).ask("PUT", "/iam", new)


def account_policy(config: Config, new: dict[str, Any] | None = None) -> dict[str, Any]:
    path = f"/serviceAccounts/{config.service_account}"
    if new is None:
        return iam(config, "POST", f"{path}:getIamPolicy?options.requestedPolicyVersion=3", {})
    return iam(config, "POST", f"{path}:setIamPolicy", {"policy": new})


def roles(policy: dict[str, Any], members: Iterable[str]) -> set[str]:
    """Return the roles that a policy gives to any of these members without a condition."""
    bindings = [each for each in policy.get("bindings", []) if not each.get("condition")]
    return {each["role"] for each in bindings if set(members) & set(each.get("members", []))}


def bind(
    config: Config,
    policy: Callable[..., dict[str, Any]],
    role: str,
    member: str,
    condition: dict[str, str] | None = None,
) -> bool:
    """Give a member a role in a policy; return False, and write nothing, if the member has it."""

    def once() -> bool:
        current = policy(config)
        if is_bound(current, role, member, condition):
            return False
        bindings = current.setdefault("bindings", [])
        ours = [each for each in bindings if is_like(each, role, condition)]
        if ours:
            ours[0]["members"].append(member)
        else:
            given = {"condition": condition} if condition else {}
            bindings.append({"role": role, "members": [member], **given})
        write_policy(config, policy, current)
        return True

    has_changed: bool = until_settled(once)
    return has_changed


def unbind(
    config: Config,
    policy: Callable[..., dict[str, Any]],
    role: str,
    member: str,
    condition: dict[str, str] | None = None,
) -> None:
    """Take a role, under a condition, from a member."""

    def once() -> None:
        current = policy(config)
        for each in current.get("bindings", []):
            if is_like(each, role, condition) and member in each["members"]:
                each["members"].remove(member)
        bindings = current.get("bindings", [])
        current["bindings"] = [each for each in bindings if each["members"]]
        write_policy(config, policy, current)

    until_settled(once)


def write_policy(
    config: Config, policy: Callable[..., dict[str, Any]], changed: dict[str, Any]
) -> None:
    """Write a policy; one with conditions has version 3, or Google would drop them."""
    if any(each.get("condition") for each in changed["bindings"]):
        changed["version"] = 3
    policy(config, changed)


def is_bound(
    policy: dict[str, Any], role: str, member: str, condition: dict[str, str] | None = None
) -> bool:
    """Return whether a policy gives a member a role under this condition, and no other."""
    bindings = policy.get("bindings", [])
    return any(is_like(each, role, condition) and member in each["members"] for each in bindings)


def is_like(binding: dict[str, Any], role: str, condition: dict[str, str] | None) -> bool:
    """Return whether a binding is for a role, under the same expression."""
    wanted = condition["expression"] if condition else None
    has = (binding.get("condition") or {}).get("expression")
    return bool(binding["role"] == role and has == wanted)


# --- pods


def pool(config: Config) -> str:
    """Return the pool of the project's Kubernetes accounts, as clusters and policies name it."""
    return f"{config.project}.svc.id.goog"


def namespace(user: str) -> str:
    """Return the namespace of one user's pods, in each cluster with Workload Identity.

    No two users have the same one: a hash replaces what a namespace's name cannot have.
    """
    name = f"berg-{user}"
    if re.fullmatch(rf"(?=.{{1,{LONGEST}}}\Z)[-a-z0-9]*[a-z0-9]", name):
        return name
    digest = hashlib.sha256(user.encode()).hexdigest()[:10]
    return f"{name.replace('_', '-')[: LONGEST - 11].rstrip('-')}-{digest}"


def pods_member(config: Config) -> str:
    """Return the user's pods as a member of policies."""
    return f"serviceAccount:{pool(config)}[{namespace(config.user)}/{ACCOUNT}]"


def bind_pods(config: Config) -> None:
    """Let the user's pods act as the configured account."""
    bind(config, account_policy, WORKLOAD_ROLE, pods_member(config))


def bind_pods_command(config: Config) -> str:
    """Return the command with which another user does that."""
    return (
        f"gcloud iam service-accounts add-iam-policy-binding {config.service_account} "
        f"--project {config.project} --role {WORKLOAD_ROLE} --member '{pods_member(config)}'"
    )

"""What the account of the machines may do: the least that works. `berg init` grants it, `berg
doctor` looks at it.

Which rights those are, and for which objects, says rights.py. The secrets of a job come through
policies of their own (secret.py). Policies are read, changed and written with their etag, as
version 3 where they have conditions; bindings with conditions of others stay as they are and count
for nothing.

Not covered: resource tags or conditions that would limit deletion.

What the machines' account may do: custom roles, and on which objects of the bucket they hold.

A job's code acts as this account. It may read what laptops wrote, write results, logs and states,
and nothing else: no code, no package, no job and no data set of anybody's. Conditions of IAM say so
by the prefix of an object's name, each with a `/` at its end, because `a/b` would let `a/bc` in. A
list is asked for on the bucket, where a condition on objects never holds: it is a right of its own.

Not covered: telling the jobs of one account from each other, which IAM cannot.

Workload Identity: a Kubernetes account of one person's pods acts as the person's account of
Google's.

That account has to let it, by a binding in its own policy. IAM names the Kubernetes account by its
project's pool, its namespace and its name, whatever the cluster. So rights, conditions by prefix
and secrets are those of machines, and pods of different people get different tokens.

Not covered: accounts of another project than the cluster's, principals without an account.
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
from berg.google.monitoring import ROLE as MONITORING_ROLE
from berg.google.storage import Bucket

MACHINES = (
    "compute.instances.list",  # which machines of the job live
    "compute.instances.delete",  # itself, and the others when the job is over
    # The job's group, which would re-create the machine. Compute Engine checks both of these. Not
    # `update`: groups take no condition, so a job could change the startup script of other groups.
    "compute.instanceGroupManagers.delete",
    "compute.instanceGroups.delete",
)


@dataclass(frozen=True)
class Right:
    """A custom role, and the objects that it holds for: none of them means no condition."""

    role: str
    title: str
    permissions: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    states: bool = False  # the states of jobs as well
    on_bucket: bool = True  # else on the project

    @property
    def words(self) -> str:
        """Say where the right holds, for people."""
        if not self.prefixes:
            return ""
        return " below " + ", ".join(self.prefixes) + (" and states" if self.states else "")

    def condition(self, bucket: str) -> dict[str, str] | None:
        """Return the condition of the binding on a bucket, as IAM writes one."""
        if not self.prefixes:
            return None
        parts = [is_below(bucket, prefix) for prefix in self.prefixes]
        if self.states:
            begin, end = STATES
            parts.append(f'({is_below(bucket, begin)} && resource.name.endsWith("{end}"))')
        return {"title": self.role, "expression": " || ".join(parts)}


MACHINE = Right("bergWorker", "Berg's machines", MACHINES, on_bucket=False)

NAME, TITLE, ROLE = "berg-worker", "Berg's machines", MACHINE.role

LONGEST_NAME = 30  # characters of an account's name

# Enough on the bucket, of accounts that berg did not create.
BUCKET_ROLE = "roles/storage.objectUser"

APIS = ("iam", "cloudresourcemanager", "serviceusage")

SOMEBODY = "user:YOUR_ADDRESS"  # for whom the person fills in who that is

ACT_AS = "iam.serviceAccounts.actAs"

NEEDS = f"{BUCKET_ROLE} on the bucket, and in the project {', '.join(MACHINE.permissions)}"

UNLIMITED = (
    "Compute Engine cannot limit deletion to berg's own machines without resource tags or "
    "conditions, so that it may delete any machine and any managed instance group of the project"
)

SETTLING = (
    90  # seconds until a new account is known everywhere, or others stop changing the same policy
)

# What Compute Engine and Kubernetes Engine say of an account, or of a right to act as one, unheard
# of by now.
UNHEARD_OF = re.compile(
    r"of type 'serviceAccount' was not found|does not have access to service account"
    r'|Service account "\S+" does not exist'
)


@dataclass
class Grant:
    """Something that berg's own account lacks: in words, as gcloud would do it, and done."""

    text: str
    gcloud: str
    make: Callable[[], Any]


def shared_account(config: Config) -> str:
    """The account that all who use a bucket may act as."""
    return address(config, NAME)


def account_of_user(config: Config) -> str:
    """The account of one person, whose secrets no other person's jobs may read."""
    name = f"{NAME}-{config.user.replace('_', '-')}"
    if len(name) > LONGEST_NAME:  # others may share what is left of the name
        digest = hashlib.sha256(config.user.encode()).hexdigest()[:6]
        name = f"{name[: LONGEST_NAME - 7].rstrip('-')}-{digest}"
    return address(config, name)


def address(config: Config, name: str) -> str:
    return f"{name}@{config.project}.iam.gserviceaccount.com"


def is_ours(config: Config, email: str) -> bool:
    """Return whether an account is one that berg makes."""
    name, _, domain = email.partition("@")
    is_here = f"@{domain}" == address(config, "")
    return is_here and (name == NAME or name.startswith(f"{NAME}-"))


def is_own(config: Config) -> bool:
    """Return whether the machines act as an account that berg made for one person."""
    email = config.service_account
    return is_ours(config, email) and email != shared_account(config)


def account(config: Config) -> str:
    """The account of berg's making that the settings mean; the shared one if they mean another."""
    given = config.service_account
    return given if is_ours(config, given) else shared_account(config)


def missing(config: Config) -> tuple[list[Grant], str]:
    """What berg's own account lacks, in the order of making; and Google's refusal, if not all can
    be looked up.
    """
    look = Look(config)
    of_roles = missing_roles(config, look)
    found = [*missing_account(config, look, account(config), TITLE), *of_roles]
    found += without_uniform_access(config, look)
    found += missing_bindings(config, look)
    return found, look.refusals[0] if look.refusals else ""


@dataclass
class Look:
    """Read what there is, and remember what Google refused to show."""

    config: Config
    refusals: list[str] = field(default_factory=list)

    def __call__(self, read: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        """Return what a function reads; nothing where there is nothing, or it may not be seen."""
        try:
            policy: dict[str, Any] = api.when_on(self.config, lambda: read(self.config, *arguments))
            return policy
        except api.NotFound:
            return {}
        except api.Forbidden as error:
            if api.lacks_quota_project(error):
                raise BergError(api.name_quota_project(self.config)) from None
            self.refusals.append(api.words(error))
            return {}


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
    """The custom roles that are not there, or lack permissions."""
    found = []
    for right in ROLES:
        there = look(iam, "GET", f"/roles/{right.role}")
        if there.get("deleted"):
            undelete = f"gcloud iam roles undelete {right.role} --project {config.project}"
            raise BergError(
                f"the custom role {right.role} was deleted. Bring it back: {undelete}; "
                "then run berg init again"
            )
        held = there.get("includedPermissions", [])
        lacks = [permission for permission in right.permissions if permission not in held]
        if lacks:
            found.append(role_grant(config, right, lacks, bool(there)))
    return found


def role_grant(config: Config, right: Right, lacks: list[str], is_there: bool) -> Grant:
    """The creation of a custom role, or what it takes to add to it."""
    words = f"{'Add to' if is_there else 'Create'} the custom role {right.role}: {', '.join(lacks)}"
    command = f"gcloud iam roles create {right.role} --project {config.project} --permissions"
    if is_there:
        command = (
            f"gcloud iam roles update {right.role} --project {config.project} --add-permissions"
        )
    make = functools.partial(write_role, config, right)
    return Grant(words, f"{command} {','.join(lacks)}", make)


def without_uniform_access(config: Config, look: Look) -> list[Grant]:
    """The step that a bucket needs before its policy may have conditions."""
    if look(has_uniform_access).get("enabled", True):
        return []
    text = (
        f"Turn on uniform access on gs://{config.bucket}: access lists of single objects count no "
        "more, and rights may be given by prefix"
    )
    command = f"gcloud storage buckets update gs://{config.bucket} --uniform-bucket-level-access"
    return [Grant(text, command, functools.partial(turn_on_uniform_access, config))]


def has_uniform_access(config: Config) -> dict[str, Any]:
    access: dict[str, Any] = Bucket(config).ask("GET", fields="iamConfiguration")
    return {"enabled": access["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]}


def turn_on_uniform_access(config: Config) -> None:
    access = {"uniformBucketLevelAccess": {"enabled": True}}
    Bucket(config).ask("PATCH", body={"iamConfiguration": access})


def missing_bindings(config: Config, look: Look) -> list[Grant]:
    """What the policies of the project and of the bucket do not give the account yet."""
    member = f"serviceAccount:{account(config)}"
    in_project, on_bucket = look(project_policy), look(bucket_policy)
    found = []
    for right in RIGHTS:
        role, condition = role_name(config.project, right), right.condition(config.bucket)
        if right.on_bucket and not is_bound(on_bucket, role, member, condition):
            found.append(bucket_grant(config, right, condition))
        elif not right.on_bucket and role not in roles(in_project, [member]):
            found.append(project_grant(config, right.role, role, f". {UNLIMITED}"))
    if config.monitoring and MONITORING_ROLE not in roles(in_project, [member]):
        why = ", to write metrics and no more"
        found.append(project_grant(config, MONITORING_ROLE, MONITORING_ROLE, why))
    return found


def project_grant(config: Config, name: str, role: str, why: str) -> Grant:
    """A role for the account in the project; `name` is what people call the role."""
    project, member = config.project, f"serviceAccount:{account(config)}"
    command = (
        f"gcloud projects add-iam-policy-binding {project} --member {member} --role {role} "
        "--condition None"
    )
    make = functools.partial(bind, config, project_policy, role, member)
    return Grant(f"Give the account {name} in the project {project}{why}", command, make)


def bucket_grant(config: Config, right: Right, condition: dict[str, str] | None) -> Grant:
    """A role for the account on the bucket, on those objects that its condition names."""
    role, member = role_name(config.project, right), f"serviceAccount:{account(config)}"
    limit = "None"
    if condition:  # without a comma in it, at which gcloud would split
        limit = f"'expression={condition['expression']},title={right.role}'"
    command = (
        f"gcloud storage buckets add-iam-policy-binding gs://{config.bucket} --member {member} "
        f"--role {role} --condition={limit}"
    )
    make = functools.partial(bind, config, bucket_policy, role, member, condition)
    return Grant(
        f"Give the account {right.role} on gs://{config.bucket}{right.words}", command, make
    )


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


def roles(policy: dict[str, Any], members: Iterable[str]) -> set[str]:
    """The roles that a policy gives to any of these, whatever the conditions of others."""
    bindings = [each for each in policy.get("bindings", []) if not each.get("condition")]
    return {each["role"] for each in bindings if set(members) & set(each.get("members", []))}


def may_act_as(config: Config, email: str) -> bool:
    """Whether the person may start machines that act as an account; raises NotFound if there is
    none.
    """
    # Of the account's own project: anywhere else Google answers "forbidden" for an account that
    # does not exist.
    home = re.fullmatch(r".*@(.*)\.iam\.gserviceaccount\.com", email)
    path, asked = f"/serviceAccounts/{email}:testIamPermissions", {"permissions": [ACT_AS]}
    return bool(
        iam(config, "POST", path, asked, project=home[1] if home else "").get("permissions")
    )


def is_settling(config: Config, error: BaseException) -> bool:
    """Whether an error passes because IAM knows of the machines' account, and soon others will."""
    kinds = (api.OperationFailed, api.BadRequest)
    if not isinstance(error, kinds) or not UNHEARD_OF.search(error.message):
        return False
    try:
        return bool(config.service_account) and may_act_as(config, config.service_account)
    except api.GoogleError:
        return False


def once_known(config: Config, make: Callable[[], Any]) -> None:
    """Make machines, again and again while their account is too new."""
    settling = functools.partial(is_settling, config)
    api.retrying(
        settling, SETTLING, "the new service account", forbidden=False, initial=1, maximum=8
    )(make)()


def act_as_command(config: Config, email: str) -> str:
    """What gives the person that right."""
    command = (
        f"gcloud iam service-accounts add-iam-policy-binding {email} --project {config.project}"
    )
    return f"{command} --member {person(config)} --role roles/iam.serviceAccountUser"


def person(config: Config) -> str:
    """Who runs berg, as a member of policies; credentials of people do not always say it."""
    found = config.credentials
    if email := getattr(found, "service_account_email", ""):
        return f"serviceAccount:{email}"
    email = getattr(found, "account", "")
    return f"user:{email}" if email else SOMEBODY


def create_account(config: Config, email: str = "", title: str = TITLE) -> None:
    """Create an account; that of the machines where none is named."""
    try:
        iam(
            config,
            "POST",
            "/serviceAccounts",
            {
                "accountId": (email or account(config)).partition("@")[0],
                "serviceAccount": {"displayName": title},
            },
        )
    except api.Conflict:  # created by a request whose answer was lost, or by another user
        pass


def write_role(config: Config, right: Right = MACHINE) -> None:
    """Create a custom role, or add what it lacks; what else it holds stays."""
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


def project_policy(config: Config, new: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read the project's policy, or write it."""
    url = f"{config.service_url('cloudresourcemanager')}/v1/projects/{config.project}"
    if new is None:
        return api.call(
            config, "POST", f"{url}:getIamPolicy", {"options": {"requestedPolicyVersion": 3}}
        )
    return api.call(config, "POST", f"{url}:setIamPolicy", {"policy": new})


def bucket_policy(config: Config, new: dict[str, Any] | None = None) -> dict[str, Any]:
    """The same for the bucket's."""
    if new is None:
        return Bucket(config).ask("GET", "/iam", optionsRequestedPolicyVersion=3)
    return Bucket(config).ask("PUT", "/iam", new)


def bind(
    config: Config,
    policy: Callable[..., dict[str, Any]],
    role: str,
    member: str,
    condition: dict[str, str] | None = None,
) -> bool:
    """Give a member a role in a policy; False, and nothing is written, if it has it."""

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


def unbind(config: Config, policy: Callable[..., dict[str, Any]], role: str, member: str) -> None:
    """Take a role without a condition from a member."""

    def once() -> None:
        current = policy(config)
        for each in current["bindings"]:
            if is_like(each, role, None) and member in each["members"]:
                each["members"].remove(member)
        current["bindings"] = [each for each in current["bindings"] if each["members"]]
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
    """Whether a policy gives a member a role under this condition, and no other."""
    bindings = policy.get("bindings", [])
    return any(is_like(each, role, condition) and member in each["members"] for each in bindings)


def is_like(binding: dict[str, Any], role: str, condition: dict[str, str] | None) -> bool:
    """Whether a binding is of a role, under the same expression."""
    wanted = condition["expression"] if condition else None
    return bool(
        binding["role"] == role and (binding.get("condition") or {}).get("expression") == wanted
    )


def until_settled(change: Callable[[], Any]) -> Any:
    """Read, change and write again while others change the same, and while a new account is not
    known everywhere.
    """

    def unsettled(error: Exception) -> bool:
        unknown = isinstance(error, api.BadRequest) and "does not exist" in error.message
        return unknown or isinstance(error, (api.Conflict, api.PreconditionFailed))

    return api.retrying(unsettled, SETTLING, "IAM", initial=0.2, maximum=8)(change)()


DEFAULT_ACCOUNT = re.compile(r"\d+-compute@developer\.gserviceaccount\.com|default|")

DEFAULT_IS_WIDE = (
    "the project's default account usually is Editor of the project: with it a job may change what "
    "any machine runs, everybody's code, results and secrets, and berg keeps nothing from it"
)

STATES = (".berg/jobs/", "_state.json")  # begin and end of the names of states


def is_below(bucket: str, prefix: str) -> str:
    """Return the condition that an object's name begins with a prefix, as IAM writes one."""
    return f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{prefix}")'


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
        ".berg/tmp/",
    ),
    states=True,
)

LIST = Right("bergLister", "Berg's machines list objects", ("storage.objects.list",))

RIGHTS = (MACHINE, READ, WRITE, LIST)  # of the machines' account

# On one secret each, which its job gives (secret.py).
SECRET = Right(
    "bergSecret",
    "Berg's machines read and delete the secret of their job",
    ("secretmanager.secrets.delete", "secretmanager.versions.access"),
)

ROLES = (*RIGHTS, SECRET)


def is_default(email: str) -> bool:
    """Return whether an account is the default one of a project, which "" stands for, too."""
    return bool(DEFAULT_ACCOUNT.fullmatch(email))


def role_name(project: str, right: Right) -> str:
    """The full name of a custom role in a project."""
    return f"projects/{project}/roles/{right.role}"


WORKLOAD_ROLE = "roles/iam.workloadIdentityUser"

ACCOUNT = "berg-pod"  # of pods, in each namespace of berg's

ANNOTATION = "iam.gke.io/gcp-service-account"  # of a Kubernetes account: whom it acts as

LONGEST = 63  # characters of a namespace

NAMESPACE_NAME = re.compile(rf"(?=.{{1,{LONGEST}}}\Z)[-a-z0-9]*[a-z0-9]")  # of one


def pool(config: Config) -> str:
    """The pool of the project's Kubernetes accounts, as clusters and policies name it."""
    return f"{config.project}.svc.id.goog"


def namespace(user: str) -> str:
    """The namespace of one person's pods, in each cluster with Workload Identity.

    No two people have the same one: what a name cannot keep of a user's, a hash stands for.
    """
    name = f"berg-{user}"
    if NAMESPACE_NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(user.encode()).hexdigest()[:10]
    return f"{name.replace('_', '-')[: LONGEST - 11].rstrip('-')}-{digest}"


def member(config: Config) -> str:
    """The person's pods as a member of policies."""
    return f"serviceAccount:{pool(config)}[{namespace(config.user)}/{ACCOUNT}]"


def policy(config: Config, new: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read the policy of the account of the settings, or write it."""
    path = f"/serviceAccounts/{config.service_account}"
    if new is None:
        asked = f"{path}:getIamPolicy?options.requestedPolicyVersion=3"
        return iam(config, "POST", asked, {})
    return iam(config, "POST", f"{path}:setIamPolicy", {"policy": new})


def are_pods_bound(config: Config) -> bool:
    """Return whether the person's pods may act as the account; raise what Google refuses."""
    return is_bound(policy(config), WORKLOAD_ROLE, member(config))


def bind_pods(config: Config) -> None:
    """Let the person's pods act as the account of the settings."""
    bind(config, policy, WORKLOAD_ROLE, member(config))


def command(config: Config) -> str:
    """What somebody else types to do so."""
    email = config.service_account
    return (
        f"gcloud iam service-accounts add-iam-policy-binding {email} --project {config.project} "
        f"--role {WORKLOAD_ROLE} --member '{member(config)}'"
    )

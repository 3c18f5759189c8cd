"""What the account of the machines may do: the least that works. `berg init` grants it, `berg
doctor` looks at it.

Machines read and write objects, list the machines of their job, and delete those, themselves, and
the group that would make them anew. The secrets of a job come through policies of their own
(secret.py). Policies are read, changed and written with their etag; bindings with conditions stay
as they are and count for nothing.

Not covered: resource tags or conditions that would limit deletion.
"""

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api
from berg.google.monitoring import ROLE as MONITORING_ROLE
from berg.google.storage import Bucket

NAME, ROLE = "berg-worker", "bergWorker"
PERMISSIONS = (
    "compute.instances.list",  # which machines of the job live
    "compute.instances.delete",  # itself, and the others when the job is over
    "compute.instanceGroupManagers.delete",  # the job's group, which would make the machine anew
)
BUCKET_ROLE = "roles/storage.objectUser"
APIS = ("iam", "cloudresourcemanager")
SOMEBODY = "user:YOUR_ADDRESS"  # for whom the person fills in who that is
ACT_AS = "iam.serviceAccounts.actAs"
NEEDS = f"{BUCKET_ROLE} on the bucket, and in the project {', '.join(PERMISSIONS)}"
UNLIMITED = (
    "Compute Engine cannot limit deletion to berg's own machines without resource tags or conditions, "
    "so that it may delete any machine and any managed instance group of the project"
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


def account(config: Config) -> str:
    return f"{NAME}@{config.project}.iam.gserviceaccount.com"


def missing(config: Config) -> tuple[list[Grant], str]:
    """What berg's own account lacks, in the order of making; and Google's refusal, if not all can
    be looked up.
    """
    project, email = config.project, account(config)
    member, role = f"serviceAccount:{email}", f"projects/{project}/roles/{ROLE}"
    refusals: list[str] = []

    def look(read: Callable[..., dict], *arguments: Any) -> dict:
        from google.api_core import exceptions

        try:
            return read(*arguments)
        except exceptions.NotFound:
            return {}
        except exceptions.Forbidden as error:
            if api.lacks_quota_project(error):
                raise BergError(api.name_quota_project(config)) from None
            refusals.append(api.words(error))
            return {}

    there = look(iam, config, "GET", f"/roles/{ROLE}")
    if there.get("deleted"):
        undelete = f"gcloud iam roles undelete {ROLE} --project {project}"
        raise BergError(
            f"the custom role {ROLE} was deleted. Bring it back: {undelete}; then run berg init again"
        )
    lacks = [
        permission
        for permission in PERMISSIONS
        if permission not in there.get("includedPermissions", [])
    ]
    update = (
        f"gcloud iam roles update {ROLE} --project {project} --add-permissions {','.join(lacks)}"
    )
    create = f"gcloud iam roles create {ROLE} --project {project} --permissions {','.join(lacks)}"
    to_project = f"gcloud projects add-iam-policy-binding {project} --member {member} --role {role} --condition None"
    to_bucket = (
        f"gcloud storage buckets add-iam-policy-binding gs://{config.bucket} --member {member}"
    )
    wanted: list[tuple[Any, str, str, Callable[[], Any]]] = [
        (
            look(iam, config, "GET", f"/serviceAccounts/{email}"),
            f"Create the service account {email}",
            f"gcloud iam service-accounts create {NAME} --project {project}",
            functools.partial(create_account, config),
        ),
        (
            not lacks,
            f"{'Add to' if there else 'Create'} the custom role {ROLE}: {', '.join(lacks)}",
            update if there else create,
            functools.partial(write_role, config),
        ),
        (
            role in roles(look(project_policy, config), [member]),
            f"Give the account {ROLE} in the project {project}. {UNLIMITED}",
            to_project,
            functools.partial(bind, config, project_policy, role, member),
        ),
        (
            BUCKET_ROLE in roles(look(bucket_policy, config), [member]),
            f"Give the account {BUCKET_ROLE} on gs://{config.bucket}",
            f"{to_bucket} --role {BUCKET_ROLE}",
            functools.partial(bind, config, bucket_policy, BUCKET_ROLE, member),
        ),
    ]
    if config.monitoring:
        wanted.append(
            (
                MONITORING_ROLE in roles(look(project_policy, config), [member]),
                f"Give the account {MONITORING_ROLE} in the project {project}, to write metrics and no more",
                to_project.replace(role, MONITORING_ROLE),
                functools.partial(bind, config, project_policy, MONITORING_ROLE, member),
            )
        )
    found = [Grant(text, command, make) for made, text, command, make in wanted if not made]
    return found, refusals[0] if refusals else ""


def iam(
    config: Config,
    method: str,
    path: str,
    body: dict | None = None,
    project: str = "",
    **query: Any,
) -> dict:
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
    from google.api_core import exceptions

    kinds = (api.OperationFailed, exceptions.BadRequest)
    if not isinstance(error, kinds) or not UNHEARD_OF.search(error.message):
        return False
    try:
        return bool(config.service_account) and may_act_as(config, config.service_account)
    except exceptions.GoogleAPICallError:
        return False


def once_known(config: Config, make: Callable[[], Any]) -> None:
    """Make machines, again and again while their account is too new."""
    settling = functools.partial(is_settling, config)
    api.patient(
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


def create_account(config: Config) -> None:
    from google.api_core import exceptions

    try:
        iam(
            config,
            "POST",
            "/serviceAccounts",
            {"accountId": NAME, "serviceAccount": {"displayName": "Berg's machines"}},
        )
    except (
        exceptions.Conflict
    ):  # made by a request whose answer was lost, or by somebody else just now
        pass


def write_role(config: Config) -> None:
    """Create the custom role, or add what it lacks; what else it holds stays."""
    from google.api_core import exceptions

    def once() -> None:
        try:
            there = iam(config, "GET", f"/roles/{ROLE}")
        except exceptions.NotFound:
            role = {"title": "Berg's machines", "stage": "GA", "includedPermissions": PERMISSIONS}
            iam(config, "POST", "/roles", {"roleId": ROLE, "role": role})
            return
        together = sorted({*there.get("includedPermissions", []), *PERMISSIONS})
        changed = {"includedPermissions": together, "etag": there["etag"]}
        iam(config, "PATCH", f"/roles/{ROLE}", changed, updateMask="includedPermissions")

    until_settled(once)


def project_policy(config: Config, new: dict | None = None) -> dict:
    """Read the project's policy, or write it."""
    url = f"{config.service_url('cloudresourcemanager')}/v1/projects/{config.project}"
    if new is None:
        return api.call(
            config, "POST", f"{url}:getIamPolicy", {"options": {"requestedPolicyVersion": 3}}
        )
    return api.call(config, "POST", f"{url}:setIamPolicy", {"policy": new})


def bucket_policy(config: Config, new: dict | None = None) -> dict:
    """The same for the bucket's."""
    from google.api_core.iam import Policy

    bucket, retry = Bucket(config).bucket, Bucket(config).retry
    if new is None:
        return bucket.get_iam_policy(requested_policy_version=3, retry=retry).to_api_repr()
    return bucket.set_iam_policy(Policy.from_api_repr(new), retry=retry).to_api_repr()


def bind(config: Config, policy: Callable[..., dict], role: str, member: str) -> bool:
    """Give a member a role in a policy; False, and nothing is written, if it has it."""

    def once() -> bool:
        current = policy(config)
        bindings = current.setdefault("bindings", [])
        ours = [each for each in bindings if each["role"] == role and not each.get("condition")]
        if not ours:
            bindings.append({"role": role, "members": [member]})
        elif member not in ours[0]["members"]:
            ours[0]["members"].append(member)
        else:
            return False
        policy(config, current)
        return True

    return until_settled(once)


def until_settled(change: Callable[[], Any]) -> Any:
    """Read, change and write again while others change the same, and while a new account is not
    known everywhere.
    """
    from google.api_core import exceptions, retry

    def unsettled(error: BaseException) -> bool:
        unknown = isinstance(error, exceptions.BadRequest) and "does not exist" in error.message
        return unknown or isinstance(error, (exceptions.Conflict, exceptions.PreconditionFailed))

    return retry.Retry(unsettled, initial=0.2, maximum=8, timeout=SETTLING)(change)()

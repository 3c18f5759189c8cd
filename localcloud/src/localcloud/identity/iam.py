"""Who may do what: service accounts, custom roles and policies, in one file written in one step.
Knows no HTTP.

    <folder>/iam.json     accounts by email, roles by name, policies by the name of what they are on

Policies of buckets lie with the buckets (storage.py). A policy names its members by email.

Not covered: conditions of bindings, Kubernetes accounts as members.

The public halves of accounts' keys (keys.py) lie there, too.

Not covered: everybody, groups, domains, deny policies, organizations and folders, audit configurations, limits
of size, accounts that are disabled or deleted.
"""

import base64
import hashlib
import json
import math
import random
import time
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from localcloud.errors import ApiError, unserved
from localcloud.identity.roles import trouble
from localcloud.identity.tokens import LAPTOP, write_private

# members of buckets' policies only
CONVENIENCE = (
    "projectOwner:",
    "projectEditor:",
    "projectViewer:",
)
OWNER = "roles/owner"


def refused(message: str) -> ApiError:
    return ApiError(400, "invalid", message)


def tag(value: Any) -> str:
    """An etag as these APIs write them: base64 of eight bytes."""
    return base64.b64encode(
        hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()[:8]
    ).decode()


def is_stale(sent: str | None, current: str) -> bool:
    """Whether an etag was sent that is another. Etags are bytes: gcloud returns them in base64's
    other alphabet.
    """
    return bool(sent) and str(sent).replace("-", "+").replace("_", "/") != current


class Iam:
    def __init__(
        self, folder: Path, projects: dict[str, dict], users: Callable[[], Collection[str]]
    ):
        self.path, self.projects, self.users = folder / "iam.json", projects, users
        self.grant_delay = (
            0.0  # seconds before a grant counts; what counts is not kept over a restart
        )
        self.account_delay = 0.0  # seconds before other services hear of a new account
        self.granted: dict[
            tuple[str, str, str], float
        ] = {}  # resource, role with condition, member -> time.monotonic()
        self.made: dict[str, float] = {}  # account -> time.monotonic()
        empty: dict[str, Any] = {"accounts": {}, "roles": {}, "policies": {}}
        state = json.loads(self.path.read_text()) if self.path.exists() else empty
        self.accounts, self.roles, self.policies = (
            state["accounts"],
            state["roles"],
            state["policies"],
        )
        self.keys: dict[str, dict] = state.get("keys", {})  # by their id

    def save(self) -> None:
        state = {"accounts": self.accounts, "roles": self.roles, "policies": self.policies}
        write_private(self.path, {**state, "keys": self.keys})

    # --- service accounts

    def default_account(self, project: str) -> dict:
        email = f"{self.projects[project]['number']}-compute@developer.gserviceaccount.com"
        shown = {"displayName": "Compute Engine default service account"}
        return self._account(project, email, str(10**20 + zlib.crc32(email.encode())), shown)

    def account(self, name: str) -> dict | None:
        """The account with this email or unique id."""
        defaults = [self.default_account(project) for project in self.projects]
        found = (
            row
            for row in [*self.accounts.values(), *defaults]
            if name in (row["email"], row["uniqueId"])
        )
        return next(found, None)

    def add_account(self, project: str, id: str, fields: dict) -> dict:
        email = f"{id}@{project}.iam.gserviceaccount.com"
        account = self._account(project, email, str(random.randrange(10**20, 12 * 10**19)), fields)
        self.accounts[email] = account
        self.made[email] = time.monotonic()
        self.save()
        return account

    def is_known(self, email: str) -> bool:
        """Whether other services have heard of an account: of a new one IAM knows first."""
        return self.made.get(email, -math.inf) <= time.monotonic() - self.account_delay

    def _account(self, project: str, email: str, number: str, fields: dict) -> dict:
        name = f"projects/{project}/serviceAccounts/{email}"
        ids = {"uniqueId": number, "oauth2ClientId": number, "email": email}
        return {"name": name, "projectId": project, **ids, "etag": "MDEwMjE5MjA=", **fields}

    # --- policies

    def bindings(self, resource: str) -> list[dict]:
        """What was set on `projects/p` or on something in it, or what is there from the start."""
        if resource in self.policies:
            return self.policies[resource]["bindings"]
        if resource.count("/") > 1:
            return []
        default = self.default_account(resource.removeprefix("projects/"))["email"]
        owners = {"role": OWNER, "members": [f"user:{LAPTOP}"]}
        return [{"role": "roles/editor", "members": [f"serviceAccount:{default}"]}, owners]

    def policy(self, resource: str) -> dict:
        """Google's Policy."""
        bindings = self.bindings(resource)
        return {
            "version": 1,
            "etag": tag([resource, bindings]),
            **({"bindings": bindings} if bindings else {}),
        }

    def set_policy(self, resource: str, policy: dict) -> dict:
        if is_stale(policy.get("etag"), self.policy(resource)["etag"]):
            message = (
                "There were concurrent policy changes. Please retry the whole read-modify-write "
            )
            raise ApiError(409, "aborted", f"{message}with exponential backoff.", code="ABORTED")
        bindings = self.checked(resource, policy)
        self._check_owners(resource, bindings)
        self.note(resource, self.bindings(resource), bindings)
        self.policies[resource] = {"bindings": bindings}
        self.save()
        return self.policy(resource)

    def _check_owners(self, resource: str, bindings: list[dict]) -> None:
        """Refuse to leave a project without a person who owns it, and to give it to another.

        That is Google's rule for projects outside of organizations, as these are.
        """
        if resource.count("/") > 1:
            return
        old, new = people(self.bindings(resource)), people(bindings)
        if not new:
            raise refused(
                "There must be at least one owner who has accepted the Terms of Service (ToS) "
                "agreement in the policy."
            )
        if new - old:
            member = sorted(new - old)[0]
            raise refused(
                f"The owner role cannot be granted to {member} by setIamPolicy(). The user must be "
                "granted it using the Cloud Platform Console and must accept the invitation."
            )

    def note(self, resource: str, old: list[dict], new: list[dict]) -> None:
        """Remember when a policy gave what it did not give before."""
        had = {(each["role"], member) for each in old for member in each["members"]}
        for each in new:
            for member in each["members"]:
                if (each["role"], member) not in had:
                    self.granted[resource, each["role"], member] = time.monotonic()

    def effective(self, resource: str, bindings: list[dict]) -> list[dict]:
        """What counts of a policy by now: grants take minutes on Google, here `grant_delay`
        seconds.
        """
        since = time.monotonic() - self.grant_delay

        def counts(role: str, member: str) -> bool:
            return self.granted.get((resource, role, member), since) <= since

        return [
            {**each, "members": [m for m in each["members"] if counts(each["role"], m)]}
            for each in bindings
        ]

    def forget(self, resource: str) -> None:
        """Drop the policy of something that is gone."""
        if self.policies.pop(resource, None):
            self.save()

    def checked(self, resource: str, policy: dict) -> list[dict]:
        """The bindings of a policy that a client sends, one for each role; raise Google's error for
        a wrong one.
        """
        unserved(policy.get("auditConfigs"), "auditConfigs")
        found: dict[str, dict] = {}
        for binding in policy.get("bindings") or []:
            role = binding.get("role") or ""
            self._check_role(resource, role)
            unserved(binding.get("condition"), "conditions")
            kept = found.setdefault(role, {"role": role, "members": []})
            for member in binding.get("members") or []:
                self._check_member(resource, member)
                if member not in kept["members"]:
                    kept["members"].append(member)
        return [found[role] for role in sorted(found)]

    def _check_role(self, resource: str, role: str) -> None:
        if role.startswith("projects/"):
            kept = role in self.roles
            if not kept or role.split("/")[1] != resource.split("/")[1]:
                raise refused(f"Role ({role}) does not exist in the resource's hierarchy.")
            return
        if found := trouble(role, resource):
            status, message = found
            raise refused(message) if status == 400 else ApiError(status, "notImplemented", message)

    def _check_member(self, resource: str, member: str) -> None:
        kind, _, name = member.partition(":")
        unserved(kind in ("allUsers", "allAuthenticatedUsers"), "public members")
        if kind == "serviceAccount":
            if not self.account(name):
                raise refused(f"Service account {name} does not exist.")
        elif kind == "user":
            if name not in self.users():
                raise refused(f"User {name} does not exist.")
        elif not (member.startswith(CONVENIENCE) and "/buckets/" in resource):
            message = f"The member {member} is of an unknown type. Please set a valid type prefix for the member."
            raise refused(message)


def people(bindings: list[dict]) -> set[str]:
    """The owners of a project by its policy, without service accounts."""
    owners = {m for each in bindings if each["role"] == OWNER for m in each["members"]}
    return {member for member in owners if member.startswith("user:")}

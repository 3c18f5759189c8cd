"""Workload Identity: a Kubernetes account of one person's pods acts as the person's account of
Google's.

That account has to let it, by a binding in its own policy. IAM names the Kubernetes account by its
project's pool, its namespace and its name, whatever the cluster. So rights, conditions by prefix
and secrets are those of machines, and pods of different people get different tokens.

Not covered: accounts of another project than the cluster's, principals without an account.
"""

import hashlib
import re
from typing import Any

from berg.config import Config
from berg.google import grants

ROLE = "roles/iam.workloadIdentityUser"
ACCOUNT = "berg-pod"  # of pods, in each namespace of berg's
ANNOTATION = "iam.gke.io/gcp-service-account"  # of a Kubernetes account: whom it acts as
LONGEST = 63  # characters of a namespace
NAME = re.compile(rf"(?=.{{1,{LONGEST}}}\Z)[-a-z0-9]*[a-z0-9]")  # of one


def pool(config: Config) -> str:
    """The pool of the project's Kubernetes accounts, as clusters and policies name it."""
    return f"{config.project}.svc.id.goog"


def namespace(user: str) -> str:
    """The namespace of one person's pods, in each cluster with Workload Identity.

    No two people have the same one: what a name cannot keep of a user's, a hash stands for.
    """
    name = f"berg-{user}"
    if NAME.fullmatch(name):
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
        return grants.iam(config, "POST", asked, {})
    return grants.iam(config, "POST", f"{path}:setIamPolicy", {"policy": new})


def is_bound(config: Config) -> bool:
    """Return whether the person's pods may act as the account; raise what Google refuses."""
    return grants.is_bound(policy(config), ROLE, member(config))


def bind(config: Config) -> None:
    """Let the person's pods act as the account of the settings."""
    grants.bind(config, policy, ROLE, member(config))


def command(config: Config) -> str:
    """What somebody else types to do so."""
    email = config.service_account
    return (
        f"gcloud iam service-accounts add-iam-policy-binding {email} --project {config.project} "
        f"--role {ROLE} --member '{member(config)}'"
    )

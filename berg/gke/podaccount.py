"""Whose a job's pods are in a cluster: their namespace, their Kubernetes account, its rights.

In a cluster with Workload Identity each person has a namespace with an account that acts as
`service_account` of the settings: a pod gets a token of that, and none of its node. In any other
cluster all pods are in the namespace default, and act as their nodes do.

Everywhere the account may list the pods of its namespace and nothing else.

Not covered: people who may make pods in a cluster; those may do so in every namespace.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from berg import BergError
from berg.config import Config
from berg.gke import client as k8s
from berg.gke import container, manifest
from berg.google import api, iam
from berg.google.iam import Grant

RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
GROUP = "rbac.authorization.k8s.io"
REVIEWS = "authorization.k8s.io"
PARTS_OF_PODS = {"exec": ("create", "exec"), "getLogs": ("get", "log")}  # a verb of Google's alone


@dataclass(frozen=True)
class Home:
    """Where a job's pods are, and what they are there."""

    namespace: str
    account: str


def accounts(config: Config, cluster: dict[str, Any]) -> tuple[str, ...]:
    """What the person's pods in a cluster act as; raise BergError where settings lack an account.

    Nodes of a time before Workload Identity hand their own account on.
    """
    if not container.workload_pool(cluster):
        return container.accounts(cluster)
    if "@" not in config.service_account:
        raise BergError(
            f"in the cluster {cluster['name']} each person's pods act as an account of that "
            "person's, and the settings name none. Make one: berg init"
        )
    older = container.accounts({"nodePools": container.without_identity(cluster)})
    return tuple(sorted({config.service_account, *older}))


def namespace(config: Config, server: k8s.Server) -> str:
    """The namespace of the person's pods."""
    return iam.namespace(config.user) if server.has_identity else k8s.SHARED


def may(config: Config, place: str, permission: str) -> bool:
    """Return whether the person may do in a cluster what a permission of Google's is for, such as
    container.jobs.create, as the cluster itself sees it: roles in it count, too.
    """
    _, plural, verb = permission.split(".")
    verb, below = PARTS_OF_PODS.get(verb, (verb, ""))
    server = k8s.connect(config, place)
    asked = {"verb": verb, "resource": plural.lower(), "subresource": below}
    if plural == "jobs":
        asked["group"] = "batch"
    if plural != "namespaces":
        asked["namespace"] = namespace(config, server)
    review = {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": f"{REVIEWS}/v1",
        "spec": {"resourceAttributes": asked},
    }
    path = f"/apis/{REVIEWS}/v1/selfsubjectaccessreviews"
    answer = k8s.call(config, server, "POST", path, review)
    return bool(answer.get("status", {}).get("allowed"))


def ensure(config: Config, server: k8s.Server) -> Home:
    """Create what the pods need in the cluster besides themselves, if it is missing."""
    if server.has_identity:
        return ensure_own(config, server)
    k8s.create(config, server, k8s.below(k8s.SHARED, "configmaps"), manifest.boot_map())
    account = f"{k8s.below(k8s.SHARED, 'serviceaccounts')}/{manifest.ACCOUNT}"
    if not k8s.find(config, server, account):
        admit_pods(config, server, k8s.SHARED)
    return Home(k8s.SHARED, manifest.ACCOUNT)


# --- with Workload Identity


def ensure_own(config: Config, server: k8s.Server) -> Home:
    """Make the person's namespace, with an account that acts as the person's of Google's."""
    home = Home(iam.namespace(config.user), iam.ACCOUNT)
    make_namespace(config, server, home.namespace)
    k8s.create(config, server, k8s.below(home.namespace, "configmaps"), manifest.boot_map())
    path = f"{k8s.below(home.namespace, 'serviceaccounts')}/{home.account}"
    there = k8s.find(config, server, path)
    if there is None:
        admit(config, server, home)
    if annotation_of(there) == config.service_account:
        return home
    let_act(config)
    named = {"metadata": {"annotations": {iam.ANNOTATION: config.service_account}}}
    k8s.call(config, server, "PATCH", path, named, kind=k8s.MERGE)
    return home


def annotation_of(account: dict[str, Any] | None) -> str:
    """Return whom a Kubernetes account acts as; "" if that is nobody."""
    annotations = (account or {"metadata": {}})["metadata"].get("annotations", {})
    return str(annotations.get(iam.ANNOTATION, ""))


def make_namespace(config: Config, server: k8s.Server, name: str) -> None:
    about = {"name": name, "labels": {"berg": "1"}}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": about}
    k8s.create(config, server, k8s.NAMESPACES, body)


def admit(config: Config, server: k8s.Server, home: Home) -> None:
    """Make the account of somebody's pods; raise BergError for who may not give it its right."""
    try:
        admit_pods(config, server, home.namespace)
    except k8s.Refused as error:
        if error.code != 403:
            raise
        name = server.place.rpartition("/")[2]
        user = home.namespace.removeprefix("berg-")
        raise BergError(
            f"your pods have no account in the cluster {name} yet, and you may not give rights "
            f"there: {error.message}. Somebody with roles/container.admin has to run: "
            f"berg cluster admit {name} {user}"
        ) from None


def let_act(config: Config) -> None:
    """Let the person's pods act as the account of the settings; who may not is told who else does
    what, since it may have been done.
    """
    try:
        iam.bind_pods(config)
    except api.Forbidden as error:
        api.notify(
            f"Whether your pods may act as {config.service_account} you may neither see nor say "
            f"({api.words(error)}). If they get no token, somebody who may has to run: "
            f"{iam.bind_pods_command(config)}"
        )


def missing(config: Config, look: Callable[[], list[dict[str, Any]]]) -> list[Grant]:
    """Return the binding that the person's pods lack, if a cluster among those that `look` returns
    has Workload Identity; nothing where that cannot be seen.
    """
    ours = [each for each in look() if container.is_ours(each) and container.workload_pool(each)]
    if not ours or "@" not in config.service_account:
        return []
    try:
        if iam.are_pods_bound(config):
            return []
    except api.NotFound:
        pass  # the account is yet to be made
    except api.Forbidden:
        return []
    text = f"Let your pods, and no others, act as {config.service_account}"
    return [Grant(text, iam.bind_pods_command(config), lambda: iam.bind_pods(config))]


def admit_pods(config: Config, server: k8s.Server, namespace: str) -> None:
    """Let the account of the pods list the pods of its namespace, and make it.

    It comes last: whoever finds it there, and may not look at rights, knows that it has them.
    """
    about = {"name": manifest.ACCOUNT, "labels": {"berg": "1"}}
    rights = {"apiVersion": f"{GROUP}/v1", "metadata": about}
    role = {"apiGroup": GROUP, "kind": "Role", "name": manifest.ACCOUNT}
    whose = [{"kind": "ServiceAccount", "name": manifest.ACCOUNT, "namespace": namespace}]
    binding = {**rights, "kind": "RoleBinding", "roleRef": role, "subjects": whose}
    role_itself = {**rights, "kind": "Role", "rules": RULES}
    k8s.create(config, server, k8s.below(namespace, "roles"), role_itself)
    k8s.create(config, server, k8s.below(namespace, "rolebindings"), binding)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about}
    k8s.create(config, server, k8s.below(namespace, "serviceaccounts"), account)

"""The namespace and the Kubernetes account of a job's pods, and their rights in the cluster.

With Workload Identity each user has a namespace with an account that acts as `service_account` of
the settings; pods get no token of their node. In other clusters all pods are in the namespace
default and act as their nodes. The account may list the pods of its namespace and nothing else.
Not covered: users that may create pods in a cluster; they may do so in every namespace.
"""

from collections.abc import Callable
from typing import Any

from berg import BergError
from berg.config import Config
from berg.gke import client, container, pods
from berg.gke.client import SHARED, Server, below
from berg.google import api, iam
from berg.google.iam import ACCOUNT, Grant

RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
REVIEWS = "authorization.k8s.io"
PARTS_OF_PODS = {"exec": ("create", "exec"), "getLogs": ("get", "log")}  # Google's own verbs


def accounts(config: Config, cluster: dict[str, Any]) -> tuple[str, ...]:
    """Return the accounts that the user's pods act as; raise BergError if settings name none.

    Nodes from before Workload Identity pass their own account on.
    """
    if not container.workload_pool(cluster):
        return container.accounts(cluster)
    if "@" not in config.service_account:
        raise BergError(
            f"in the cluster {cluster['name']} each user's pods act as an account of that "
            "user, and the settings name none. Make one: berg init"
        )
    older = container.accounts({"nodePools": container.without_identity(cluster)})
    return tuple(sorted({config.service_account, *older}))


def namespace(config: Config, server: Server) -> str:
    """Return the namespace of the user's pods."""
    return iam.namespace(config.user) if server.has_identity else SHARED


def may(config: Config, place: str, permission: str) -> bool:
    """Return whether the cluster lets the user do what a permission of Google's allows.

    The permission is one such as container.jobs.create; roles in the cluster count as well.
    """
    _, plural, verb = permission.split(".")
    verb, part = PARTS_OF_PODS.get(verb, (verb, ""))
    server = client.connect(config, place)
    access = {"verb": verb, "resource": plural.lower(), "subresource": part}
    if plural == "jobs":
        access["group"] = "batch"
    if plural != "namespaces":
        access["namespace"] = namespace(config, server)
    review = {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": f"{REVIEWS}/v1",
        "spec": {"resourceAttributes": access},
    }
    path = f"/apis/{REVIEWS}/v1/selfsubjectaccessreviews"
    answer = client.call(server, "POST", path, review)
    return bool(answer.get("status", {}).get("allowed"))


def ensure(config: Config, server: Server) -> str:
    """Create what the user's pods need in a cluster, if it is missing; return their namespace."""
    own = namespace(config, server)
    if server.has_identity:
        make_namespace(server, own)
    client.create(server, below(own, "configmaps"), pods.boot_map())
    path = f"{below(own, 'serviceaccounts')}/{ACCOUNT}"
    there = client.find(server, path)
    if there is None:
        try:
            admit_pods(server, own)
        except client.Refused as error:
            if error.code != 403 or not server.has_identity:
                raise
            name, user = server.place.rpartition("/")[2], own.removeprefix("berg-")
            raise BergError(
                f"your pods have no account in the cluster {name} yet, and you may not give rights "
                f"there: {error.message}. A user with roles/container.admin has to run: "
                f"berg cluster admit {name} {user}"
            ) from None
    annotations = there["metadata"].get("annotations", {}) if there else {}
    if server.has_identity and annotations.get(iam.ANNOTATION) != config.service_account:
        try:
            iam.bind_pods(config)
        except api.Forbidden as error:
            api.notify(
                f"Whether your pods may act as {config.service_account} you may neither see nor "
                f"change ({api.words(error)}). If they get no token, its administrator has to run: "
                f"{iam.bind_pods_command(config)}"
            )
        change = {"metadata": {"annotations": {iam.ANNOTATION: config.service_account}}}
        client.call(server, "PATCH", path, change, kind=client.MERGE)
    return own


def make_namespace(server: Server, name: str) -> None:
    client.create(server, client.NAMESPACES, client.thing("Namespace", name, {"berg": "1"}))


def admit_pods(server: Server, namespace: str) -> None:
    """Create the account of a namespace's pods with its right to list them.

    The account comes last: if it exists, it has its right, which not all users may look at.
    """
    role = {"apiGroup": client.RBAC, "kind": "Role", "name": ACCOUNT}
    subjects = [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}]
    binding = {"roleRef": role, "subjects": subjects}
    for plural, kind, content in (
        ("roles", "Role", {"rules": RULES}),
        ("rolebindings", "RoleBinding", binding),
        ("serviceaccounts", "ServiceAccount", {}),
    ):
        made = client.thing(kind, ACCOUNT, {"berg": "1"}, **content)
        client.create(server, below(namespace, plural), made)


def missing(config: Config, look: Callable[[], list[dict[str, Any]]]) -> list[Grant]:
    """Return the binding that the user's pods lack, if a cluster has Workload Identity.

    `look` returns the clusters. Return nothing where the binding cannot be seen.
    """
    ours = [each for each in look() if container.is_ours(each) and container.workload_pool(each)]
    if not ours or "@" not in config.service_account:
        return []
    try:
        policy = iam.account_policy(config)
        if iam.is_bound(policy, iam.WORKLOAD_ROLE, iam.pods_member(config)):
            return []
    except api.NotFound:
        pass  # the account has yet to be created
    except api.Forbidden:
        return []
    text = f"Let your pods, and no others, act as {config.service_account}"
    return [Grant(text, iam.bind_pods_command(config), lambda: iam.bind_pods(config))]

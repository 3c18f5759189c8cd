"""Who may do what in a cluster: Google's permissions for people and Google's accounts, roles for
all.

A caller with all rights in the project has all rights in its clusters. A service account of a cluster
has only the rights that role bindings give it.

Not covered: aggregated cluster roles, groups other than those of service accounts, impersonation.
"""

from __future__ import annotations

from collections.abc import Iterator

from localcloud.call import Cloud
from localcloud.errors import ApiError
from localcloud.identity import permissions
from localcloud.identity.tokens import Owner
from localcloud.kubernetes.kinds import KINDS, KUEUE, Refusal
from localcloud.kubernetes.plane import Plane

READ, WRITE = ["get", "list", "watch"], ["create", "delete", "deletecollection", "patch", "update"]
USUAL = [
    f"{kind.plural}{sub}"
    for kind in KINDS.values()
    if kind.group != "rbac.authorization.k8s.io"
    for sub in ("", "/log")
]
# The cluster roles that every cluster has.
ROLES: dict[str, list[dict]] = {
    "cluster-admin": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    "admin": [{"apiGroups": ["*"], "resources": ["*"], "verbs": [*READ, *WRITE]}],
    "edit": [
        {
            "apiGroups": ["*"],
            "resources": [*USUAL, "pods/exec", "pods/portforward"],
            "verbs": [*READ, *WRITE],
        }
    ],
    "view": [
        {
            "apiGroups": ["*"],
            "resources": [each for each in USUAL if each != "secrets"],
            "verbs": READ,
        }
    ],
}
# Google's names of permissions for what is not called as in Kubernetes.
GOOGLE = {
    "log": "getLogs",
    "exec": "exec",
    "portforward": "portForward",
    "eviction": "evict",
}
VERBS = {"watch": "list", "patch": "update"}


def authenticate(cloud: Cloud, plane: Plane, header: str) -> Owner:
    """Whose a token is; a service account's is good in its own cluster alone."""
    kind, _, token = header.partition(" ")
    owner = cloud.tokens.owner(token.strip()) if kind.lower() == "bearer" else None
    account = plane.account_of(owner.email) if owner else None
    if owner is None or (account and owner.scopes != (f"kubernetes:{plane.identity}",)):
        raise Refusal(401, "Unauthorized", "Unauthorized")
    if account and plane.store.get("serviceaccounts", *account) is None:
        raise Refusal(401, "Unauthorized", "Unauthorized")
    return owner


def require(
    cloud: Cloud,
    plane: Plane,
    owner: Owner,
    verb: str,
    group: str,
    plural: str,
    namespace: str,
    name: str = "",
    sub: str = "",
) -> None:
    """Raise the 403 unless a caller may do that; there need not be such a kind of objects."""
    if may(cloud, plane, owner, verb, group, plural, namespace, name, sub):
        return
    resource = f"{plural}/{sub}" if sub else plural
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    whole = f"{plural}.{group}".rstrip(".")
    shown = f'{whole} "{name}"' if name else whole
    message = (
        f'User "{owner.email}" cannot {verb} resource "{resource}" in API group "{group}" {where}'
    )
    if not plane.account_of(owner.email):
        message += f': requires one of ["{google_permission(verb, plural, sub)}"] permission(s).'
    raise Refusal(
        403,
        "Forbidden",
        f"{shown} is forbidden: {message}",
        name=name,
        group=group,
        kind=plural,
    )


def may(
    cloud: Cloud,
    plane: Plane,
    owner: Owner,
    verb: str,
    group: str,
    plural: str,
    namespace: str,
    name: str = "",
    sub: str = "",
) -> bool:
    if not plane.account_of(owner.email):
        permission = google_permission(verb, plural, sub)
        try:
            if permissions.allowed(cloud, owner.email, permission, f"projects/{plane.project}"):
                return True
        except ApiError:
            pass
    resource = f"{plural}/{sub}" if sub else plural
    return any(
        allows(rule, verb, group, resource, name) for rule in rules_of(plane, owner, namespace)
    )


def google_permission(verb: str, plural: str, sub: str) -> str:
    if plural not in KINDS or KINDS[plural].api == KUEUE:  # as of all custom resources
        return f"container.thirdPartyObjects.{VERBS.get(verb, verb)}"
    name = KINDS[plural].name if plural in KINDS else plural
    name = f"{name[0].lower()}{name[1:]}{'' if name.endswith('s') else 's'}" if name else plural
    if sub in GOOGLE:
        return f"container.{name}.{GOOGLE[sub]}"
    if sub == "status":
        return f"container.{name}.{'getStatus' if verb == 'get' else 'updateStatus'}"
    return f"container.{name}.{VERBS.get(verb, verb)}"


def rules_of(plane: Plane, owner: Owner, namespace: str) -> Iterator[dict]:
    """The rules that bindings give a caller, in a namespace and cluster-wide."""
    for kind, where in (("clusterrolebindings", ""), ("rolebindings", namespace)):
        for (there, _), binding in list(plane.store.rows[kind].items()):
            if there == where and any(
                is_subject(plane, owner, row) for row in binding.get("subjects") or []
            ):
                ref = binding["roleRef"]
                plural, place = (
                    ("clusterroles", "") if ref["kind"] == "ClusterRole" else ("roles", where)
                )
                role = plane.store.get(plural, place, ref["name"])
                yield from (role or {}).get("rules") or (
                    ROLES.get(ref["name"], []) if plural == "clusterroles" else []
                )


def groups_of(plane: Plane, owner: Owner) -> list[str]:
    """The groups of a caller."""
    account = plane.account_of(owner.email)
    if not account:
        return ["system:authenticated"]
    of_account = ["system:serviceaccounts", f"system:serviceaccounts:{account[0]}"]
    return [*of_account, "system:authenticated"]


def is_subject(plane: Plane, owner: Owner, row: dict) -> bool:
    account = plane.account_of(owner.email)
    if row["kind"] == "ServiceAccount":
        return account == (row.get("namespace", ""), row["name"])
    if row["kind"] == "Group":
        return row["name"] in groups_of(plane, owner)
    return row["name"] == owner.email


def allows(rule: dict, verb: str, group: str, resource: str, name: str) -> bool:
    resources, plural = rule.get("resources") or [], resource.partition("/")[0]
    return (
        bool({verb, "*"} & set(rule.get("verbs") or []))
        and bool({group, "*"} & set(rule.get("apiGroups") or []))
        and (
            bool({resource, "*"} & set(resources))
            or (f"*/{resource.partition('/')[2]}" in resources and plural != resource)
        )
        and (not rule.get("resourceNames") or name in rule["resourceNames"])
    )


def review(cloud: Cloud, plane: Plane, owner: Owner, body: dict) -> dict:
    """Answer a SelfSubjectAccessReview."""
    asked = (body.get("spec") or {}).get("resourceAttributes") or {}
    about = [
        asked.get(key, "")
        for key in ("verb", "group", "resource", "namespace", "name", "subresource")
    ]
    allowed = may(cloud, plane, owner, *about)
    return {
        **body,
        "status": {"allowed": allowed, **({} if allowed else {"reason": "no role gives that"})},
    }

"""Who may do what in a cluster: Google's permissions for people and Google's accounts, roles for
all.

Whoever may do everything in the project may do everything in its clusters. A service account of a
cluster's may do what role bindings give it, and nothing else.

Not covered: aggregated cluster roles, groups other than those of service accounts, impersonation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from localcloud.call import Cloud
from localcloud.errors import ApiError
from localcloud.identity import permissions
from localcloud.identity.tokens import Owner
from localcloud.kubernetes.kinds import KINDS, KUEUE, Kind, Refusal, stamp
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
# What everybody may read who has a token (the cluster role system:discovery).
DISCOVERY = [
    *("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*"),
    *("/readyz", "/version", "/version/"),
]
# Google's names of permissions for what is not called as in Kubernetes.
GOOGLE = {
    "log": "getLogs",
    "exec": "exec",
    "attach": "attach",
    "portforward": "portForward",
    "eviction": "evict",
}
VERBS = {"watch": "list", "patch": "update", "deletecollection": "delete"}


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
    kind: Kind,
    namespace: str,
    name: str,
    sub: str,
) -> None:
    """Raise the 403 unless a caller may do that."""
    require_of(cloud, plane, owner, verb, kind.group, kind.plural, namespace, name, sub)


def require_of(
    cloud: Cloud,
    plane: Plane,
    owner: Owner,
    verb: str,
    group: str,
    plural: str,
    namespace: str,
    name: str,
    sub: str,
) -> None:
    """The same of what need not be a kind of objects here."""
    if may(cloud, plane, owner, verb, group, plural, namespace, name, sub):
        return
    resource = f"{plural}/{sub}" if sub else plural
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    whole = f"{plural}.{group}".rstrip(".")
    shown = f'{whole} "{name}"' if name else whole
    told = (
        f'User "{owner.email}" cannot {verb} resource "{resource}" in API group "{group}" {where}'
    )
    if not plane.account_of(owner.email):
        told += f': requires one of ["{google_permission(verb, plural, sub)}"] permission(s).'
    raise Refusal(
        403,
        "Forbidden",
        f"{shown} is forbidden: {told}",
        name=name,
        group=group,
        kind=plural,
    )


def may_path(cloud: Cloud, plane: Plane, owner: Owner, verb: str, path: str) -> bool:
    """Whether somebody may do that with a path that is no object's."""
    for rule in [{"verbs": ["get"], "nonResourceURLs": DISCOVERY}, *rules_of(plane, owner, "")]:
        urls = rule.get("nonResourceURLs") or []
        fits = [
            url for url in urls if path == url or (url[-1:] == "*" and path.startswith(url[:-1]))
        ]
        if fits and {verb, "*"} & {*rule.get("verbs", [])}:
            return True
    return has_all(cloud, plane, owner)


def has_all(cloud: Cloud, plane: Plane, owner: Owner) -> bool:
    """Whether somebody may do everything in a cluster: who may give others any right."""
    wanted = may(
        cloud, plane, owner, "create", "rbac.authorization.k8s.io", "clusterrolebindings", ""
    )
    return wanted and plane.account_of(owner.email) is None


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
    """The rules that bindings give somebody, in a namespace and everywhere."""
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
    """The groups that somebody is in."""
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


NO_RESOURCE = "spec.nonResourceAttributes"


def review(cloud: Cloud, plane: Plane, owner: Owner, body: dict) -> dict:
    """Answer a SelfSubjectAccessReview."""
    spec = body.get("spec") or {}
    asked, of_path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    told, path = "", "spec.resourceAttributes"
    if asked is not None and of_path is not None:
        told, path = "cannot be specified in combination with resourceAttributes", NO_RESOURCE
    elif asked is None and of_path is None:
        told = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
    if told:
        told = f"{path}: Invalid value: {json.dumps(of_path, separators=(',', ':'))}: {told}"
        kind = "SelfSubjectAccessReview.authorization.k8s.io"
        raise Refusal(422, "Invalid", f'{kind} "" is invalid: {told}')
    asked = asked or {}
    about = [
        asked.get(key, "")
        for key in ("verb", "group", "resource", "namespace", "name", "subresource")
    ]
    allowed = may(cloud, plane, owner, *about)
    if of_path is not None:
        verb, path = of_path.get("verb", ""), of_path.get("path", "")
        allowed = may_path(cloud, plane, owner, verb, path)
    return {
        **body,
        "status": {"allowed": allowed, **({} if allowed else {"reason": "no role gives that"})},
    }


def who(plane: Plane, owner: Owner, body: dict) -> dict:
    """Answer a SelfSubjectReview."""
    account = plane.account_of(owner.email)
    found = plane.store.get("serviceaccounts", *account) if account else None
    uid = {"uid": found["metadata"]["uid"]} if found else {}
    info = {"username": owner.email, **uid, "groups": groups_of(plane, owner)}
    return {**body, "metadata": {"creationTimestamp": stamp()}, "status": {"userInfo": info}}


def list_rules(plane: Plane, owner: Owner, body: dict) -> dict:
    """Answer a SelfSubjectRulesReview; Google's permissions are not among the rules, on Google
    neither.
    """
    namespace = (body.get("spec") or {}).get("namespace") or ""
    if not namespace:
        raise Refusal(400, "BadRequest", "no namespace on request")
    own = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]
    rules = [
        {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": own},
        {
            "verbs": ["create"],
            "apiGroups": ["authentication.k8s.io"],
            "resources": ["selfsubjectreviews"],
        },
        *rules_of(plane, owner, namespace),
    ]
    status = {
        "resourceRules": rules,
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": DISCOVERY}],
        "incomplete": not plane.account_of(owner.email),
    }
    if status["incomplete"]:
        status["evaluationError"] = "webhook authorizer does not support user rule resolution"
    return {**body, "status": status}

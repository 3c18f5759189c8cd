"""Who may do what in a cluster: Google's permissions in the project. Not covered: roles of Kubernetes' own, and
service accounts of a cluster.
"""

from localcloud.call import Cloud
from localcloud.identity import permissions
from localcloud.identity.tokens import Owner
from localcloud.kubernetes.kinds import KINDS, Refusal
from localcloud.kubernetes.plane import Plane

# Google's names of permissions for what is not called as in Kubernetes.
GOOGLE = {"log": "getLogs", "exec": "exec"}
VERBS = {"watch": "list", "patch": "update"}


def authenticate(cloud: Cloud, header: str) -> Owner:
    """Whose a token is."""
    kind, _, token = header.partition(" ")
    owner = cloud.tokens.owner(token.strip()) if kind.lower() == "bearer" else None
    if owner is None:
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
    """Raise the 403 unless a caller may do that."""
    permission = google_permission(verb, plural, sub)
    if permissions.allowed(cloud, owner.email, permission, f"projects/{plane.project}"):
        return
    resource = f"{plural}/{sub}" if sub else plural
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    whole = f"{plural}.{group}".rstrip(".")
    shown = f'{whole} "{name}"' if name else whole
    message = f'User "{owner.email}" cannot {verb} resource "{resource}" in API group "{group}" '
    message += f'{where}: requires one of ["{permission}"] permission(s).'
    about = {"name": name, "group": group, "kind": plural}
    raise Refusal(403, "Forbidden", f"{shown} is forbidden: {message}", **about)


def google_permission(verb: str, plural: str, sub: str) -> str:
    name = KINDS[plural].name
    name = f"{name[0].lower()}{name[1:]}{'' if name.endswith('s') else 's'}"
    return f"container.{name}.{GOOGLE.get(sub) or VERBS.get(verb, verb)}"

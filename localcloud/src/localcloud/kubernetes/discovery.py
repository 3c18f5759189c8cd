"""What the API server says of itself: versions, groups, kinds."""

from __future__ import annotations

from localcloud.kubernetes import metrics, openapi
from localcloud.kubernetes.kinds import ALL, GROUPS, KUEUE, Kind
from localcloud.kubernetes.plane import MINOR, VERSION

EVERYBODY = {"clientCIDR": "0.0.0.0/0", "serverAddress": ""}
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
ABOUT = {
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "go1.24",
}
ABOUT |= {"compiler": "gc", "platform": "linux/amd64"}
REVIEW = {
    "name": "selfsubjectaccessreviews",
    "singularName": "selfsubjectaccessreview",
    "namespaced": False,
}
REVIEW |= {"kind": "SelfSubjectAccessReview", "verbs": ["create"]}
# Subresources that are made of another kind than the resource itself.
KINDS_OF_SUBS = {
    "eviction": {"group": "policy", "version": "v1", "kind": "Eviction"},
    "token": {"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"},
}


VERSION_OF_METRICS = {"groupVersion": metrics.API, "version": metrics.VERSION}
METRICS = {
    "name": metrics.GROUP,
    "versions": [VERSION_OF_METRICS],
    "preferredVersion": VERSION_OF_METRICS,
}


def document(path: str, has_kueue: bool = False) -> dict | None:
    """The document at a path; None if there is none."""
    versions = [f"{name}/v1" for name in GROUPS]
    if has_kueue:
        versions.append(KUEUE)
    if path == "version":
        return {"major": "1", "minor": MINOR, "gitVersion": VERSION, **ABOUT}
    if path == "api":
        return {
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{**EVERYBODY}],
        }
    if path == "apis":
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [*(group(each) for each in versions), METRICS],
        }
    if path == "openapi/v3":
        paths = ["api/v1", *(f"apis/{each}" for each in versions)]
        return {"paths": {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in paths}}
    for each in versions:
        if path == f"apis/{each.partition('/')[0]}":
            return {"kind": "APIGroup", "apiVersion": "v1", **group(each)}
    if path == f"apis/{metrics.API}":
        return resources_of_metrics()
    short = path.removeprefix("openapi/v3/")
    if short != "api/v1" and short not in [f"apis/{each}" for each in versions]:
        return None
    version = short.partition("/")[2]
    kinds = [kind for kind in ALL if kind.api == version]
    return (
        openapi.document(short, VERSION)
        if path.startswith("openapi")
        else resources(version, kinds)
    )


def is_served(name: str, has_kueue: bool) -> bool:
    """Whether there is a group of that name."""
    return name in (*GROUPS, metrics.GROUP) or (has_kueue and name == KUEUE.partition("/")[0])


def group(api: str) -> dict:
    name, _, number = api.partition("/")
    version = {"groupVersion": api, "version": number}
    return {"name": name, "versions": [version], "preferredVersion": version}


def resources_of_metrics() -> dict:
    rows = [
        {"name": each, "singularName": "", "verbs": ["get", "list"]}
        | {"namespaced": each == "pods", "kind": f"{each[:-1].title()}Metrics"}
        for each in ("nodes", "pods")
    ]
    about = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": metrics.API}
    return {**about, "resources": rows}


def resources(version: str, kinds: list[Kind]) -> dict:
    rows: list[dict] = []
    for kind in kinds:
        about = {"namespaced": kind.namespaced, "kind": kind.name}
        categories = {"categories": ["all"]} if kind.in_all else {}
        row = {"name": kind.plural, "singularName": kind.name.lower(), **about, "verbs": VERBS}
        rows.append({**row, "shortNames": list(kind.short), **categories})
        for sub in kind.subresources:
            verbs = (
                ["get", "patch", "update"]
                if sub == "status"
                else ["get"]
                if sub == "log"
                else ["create"]
                if sub in KINDS_OF_SUBS
                else ["create", "get"]
            )
            about_sub = KINDS_OF_SUBS.get(sub, {"kind": kind.name})
            rows.append(
                {
                    "name": f"{kind.plural}/{sub}",
                    "singularName": "",
                    "namespaced": kind.namespaced,
                    "verbs": verbs,
                    **about_sub,
                }
            )
    if version.startswith("authorization"):
        rows.append(REVIEW)
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": rows,
    }

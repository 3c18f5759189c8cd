"""What the API server serves besides objects: its version and what it has (discovery)."""

import json

from aiohttp import web

from localcloud.call import Cloud
from localcloud.identity.tokens import Owner
from localcloud.kubernetes.kinds import ALL, NO_ROUTE, Refusal
from localcloud.kubernetes.plane import MINOR, VERSION, Plane

VERBS = ["create", "delete", "get", "list", "patch"]
GROUPS = ("batch/v1",)
ABOUT = {
    "major": "1",
    "minor": MINOR,
    "gitVersion": VERSION,
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "go1.24",
    "compiler": "gc",
    "platform": "linux/amd64",
}


async def answer(
    cloud: Cloud, plane: Plane, request: web.Request, owner: Owner
) -> web.StreamResponse:
    path = request.path.strip("/")
    known = document(path, request.host)
    if known is None:
        raise nothing()
    return web.Response(body=json.dumps(known).encode(), content_type="application/json")


def nothing() -> Refusal:
    """The answer for a path without anything."""
    return Refusal(NO_ROUTE[0], "NotFound", NO_ROUTE[1])


def document(path: str, host: str) -> dict | None:
    """The document at a path; None if there is none."""
    apis = {"api/v1": "v1", **{f"apis/{api}": api for api in GROUPS}}
    if path == "version":
        return ABOUT
    if path == "api":
        where = [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}]
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": where}
    if path == "apis":
        groups = [group(api) for api in GROUPS]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    return resources(apis[path]) if path in apis else None


def group(api: str) -> dict:
    name, _, number = api.partition("/")
    version = {"groupVersion": api, "version": number}
    return {"name": name, "versions": [version], "preferredVersion": version}


def resources(api: str) -> dict:
    rows: list[dict] = []
    for kind in ALL:
        if kind.api == api:
            about = {"namespaced": kind.namespaced, "kind": kind.name}
            row = {"name": kind.plural, "singularName": kind.name.lower(), **about, "verbs": VERBS}
            rows.append({**row, "shortNames": list(kind.short)})
            for sub in kind.subresources:
                rows.append(
                    {
                        "name": f"{kind.plural}/{sub}",
                        "singularName": "",
                        "verbs": ["create", "get"],
                        **about,
                    }
                )
    about = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api}
    return {**about, "resources": rows}

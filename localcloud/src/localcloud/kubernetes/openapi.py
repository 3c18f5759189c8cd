"""As much OpenAPI as kubectl needs to send a body: the paths that say that the server checks fields.

Not covered: the fields of objects, which `kubectl explain` would show.
"""

from __future__ import annotations

from localcloud.kubernetes.kinds import ALL, Kind


def document(path: str, version: str) -> dict:
    """The part for one API, such as api/v1 or apis/batch/v1."""
    kinds = [kind for kind in ALL if kind.api == path.partition("/")[2]]
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": version},
        "paths": dict(of_path(path, kind) for kind in kinds),
        "components": {"schemas": {}},
    }


def of_path(path: str, kind: Kind) -> tuple[str, dict]:
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string"}}
        for name in ("fieldValidation", "dryRun")
    ]
    operation = {
        "parameters": parameters,
        "x-kubernetes-group-version-kind": {
            "group": kind.group,
            "version": kind.version,
            "kind": kind.name,
        },
        "responses": {},
    }
    where = "namespaces/{namespace}/" if kind.namespaced else ""
    return f"/{path}/{where}{kind.plural}/{{name}}", {"patch": operation}

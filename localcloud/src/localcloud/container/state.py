"""Kubernetes Engine's state: clusters, operations, control planes. Knows no HTTP. It ends with the server.

Keys that begin with `_` are the embedded cloud's own, and no answer shows them.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from localcloud.compute.state import Compute
from localcloud.errors import ApiError
from localcloud.kubernetes.plane import Plane, Settings

LINK = "https://container.googleapis.com/v1/"
Key = tuple[str, str, str]  # project, location, name


class Container:
    def __init__(self, folder: Path, compute: Compute):
        self.folder, self.compute = folder, compute
        self.settings = Settings()
        self.clusters: dict[Key, dict] = {}
        self.operations: dict[Key, dict] = {}
        self.planes: dict[Key, Plane] = {}
        self.servers: dict[Key, web.AppRunner] = {}

    def folder_of(self, cluster: dict) -> Path:
        return self.folder / cluster["id"][:16]

    def plane_of(self, cluster: dict) -> Plane:
        """The control plane of a cluster, opened if it is not."""
        key = key_of(cluster)
        if key not in self.planes:
            about = (
                *key,
                self.folder_of(cluster),
                self.compute,
                self.settings,
                cluster["nodePools"],
            )
            self.planes[key] = Plane(*about)
        return self.planes[key]

    def begin(
        self, cluster: dict, kind: str, target: str, work: Callable[[], Awaitable[dict | None]]
    ) -> dict:
        """Start an operation; `work` takes its time, and gives an error (google.rpc.Status) or
        None.
        """
        project, place, _ = key_of(cluster)
        name = f"operation-{int(time.time() * 1000)}-{uuid.uuid4()}"
        base = f"projects/{project}/locations/{place}"
        operation: dict[str, Any] = {
            **{
                "name": name,
                "operationType": kind,
                "status": "RUNNING",
                "location": place,
                "zone": place,
            },
            **{"startTime": stamp(), "selfLink": f"{LINK}{base}/operations/{name}"},
            "targetLink": f"{LINK}{base}/clusters/{cluster['name']}{target}",
        }
        self.operations[project, place, name] = operation
        cluster["_operation"] = f"{kind}: {name}"

        async def run() -> None:
            await asyncio.sleep(self.settings.operation)
            try:
                error = await work()
            except ApiError as refused:
                error = {"code": 13, "message": refused.message}
            cluster.pop("_operation", None)
            operation.update(status="DONE", endTime=stamp())
            if error:
                operation.update(error=error, statusMessage=error["message"])

        self.compute.in_background(run())
        return dict(operation)


def key_of(cluster: dict) -> Key:
    return cluster["_project"], cluster["location"], cluster["name"]


def stamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime())


def shown(value: Any) -> Any:
    """Without our own keys."""
    if isinstance(value, dict):
        return {key: shown(inner) for key, inner in value.items() if not key.startswith("_")}
    return [shown(item) for item in value] if isinstance(value, list) else value

"""What every service's handlers are given: the request as a checked Call, and the Cloud that holds
all state.

It imports the services' states, and no handler: so that handlers need not import the server.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from localcloud.artifacts.store import Artifacts
from localcloud.compute.state import Compute
from localcloud.container.state import Container
from localcloud.distance import Link
from localcloud.errors import ApiError
from localcloud.faults import Fault, Faults, RequestLog
from localcloud.identity.iam import Iam
from localcloud.identity.tokens import Tokens, write_private
from localcloud.monitoring.store import Monitoring
from localcloud.secrets.store import Secrets
from localcloud.storage.state import Storage

CLOUD: web.AppKey["Cloud"] = web.AppKey("cloud")


@dataclass
class Call:
    """One checked request to a method."""

    method: str  # discovery id, e.g. "compute.instances.insert"
    params: dict[str, Any]  # path and query parameters, converted (bool, int, repeated -> list)
    body: dict | None  # JSON body; None for GET and for media uploads
    request: web.Request
    principal: str  # email of the owner of the bearer token
    late_fault: Fault | None = None

    async def named(self, name: str) -> None:
        """Apply a fault for an object whose name is in the body instead of the path."""
        fault = self.request.app[CLOUD].faults.take(self.method, f"name={name}", named=True)
        if fault and not fault.after_handler:
            await suffer(fault, self.request)
        self.late_fault = fault


@dataclass
class Cloud:
    """Everything that one embedded cloud owns. `open_cloud` makes one."""

    folder: Path
    port: int
    projects: dict[str, dict]  # id -> {"number": "123..."}
    tokens: Tokens
    storage: Storage
    secrets: Secrets
    iam: Iam
    faults: Faults
    monitoring: Monitoring
    artifacts: Artifacts
    compute: Compute
    container: Container
    requests: RequestLog = field(default_factory=RequestLog)
    link: Link = field(default_factory=Link)

    def __post_init__(self) -> None:
        self.tokens.endpoint = lambda: f"http://127.0.0.1:{self.port}"

    def save_projects(self) -> None:
        write_private(self.folder / "projects.json", self.projects)

    def project_named(self, name: str) -> str | None:
        """The id of the project with this id or number; None if there is none."""
        rows = self.projects.items()
        return next((id for id, row in rows if name in (id, row["number"])), None)

    def by_id(self, name: str, refusal: str = "The caller does not have permission") -> str:
        """A full name with its project by id; raises 403 where there is none."""
        _, project, *rest = name.split("/")
        found = self.project_named(project)
        if found is None:
            raise ApiError(403, "forbidden", refusal)
        return "/".join(["projects", found, *rest])

    def by_number(self, name: str) -> str:
        """A full name, whose project is by its id, with the project's number, as some APIs answer."""
        _, project, *rest = name.split("/")
        return "/".join(["projects", self.projects[project]["number"], *rest])

    def add_project(self, project: str) -> None:
        self.projects[project] = {"number": str(100_000_000_001 + len(self.projects))}
        self.save_projects()


async def suffer(
    fault: Fault, request: web.Request, error: Callable[[Fault], Exception] = Fault.error
) -> None:
    """Do to a request what a fault says: wait, cut the connection, raise."""
    if fault.delay:
        await asyncio.sleep(fault.delay)
    if fault.together:
        await fault.meet()
    if fault.reset:
        cut(request)
        raise ConnectionResetError("cut by a fault")
    if fault.status:
        raise error(fault)


def cut(request: web.Request) -> None:
    """Drop the client's connection at once: with lingering off the kernel sends a reset."""
    if request.transport is not None:
        sock = request.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()


def parse_json(data: bytes) -> Any:
    """Parse a request body; an empty one is an empty object, and so is `null`, which Google's
    clients in Go send.
    """
    if not data:
        return {}
    try:
        body = json.loads(data)
    except ValueError as error:
        raise ApiError(400, "parseError", f"Invalid JSON payload received. {error}") from None
    return {} if body is None else body

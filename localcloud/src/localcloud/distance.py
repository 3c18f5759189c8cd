"""How far away the cloud is: round trips, and the bandwidth of the way to it.

Every request waits for the way there and back. The first one on a connection waits for two more
before it: TCP's handshake and that of TLS 1.3, which Google's services speak. What a request sends
and gets shares one line with everybody else's, each direction with all of its bandwidth.

Not covered: slow start of TCP, lost packets, name servers. The control routes are always near.
"""

import asyncio
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from localcloud.identity.tokens import LAPTOP, Tokens

HANDSHAKES = 2  # of TCP, and of TLS 1.3
BLOCK = 64 << 10  # bytes that go at once, so that a large body lets others pass


@dataclass
class Link:
    """The way to one cloud; set by `POST /_berg/settings`."""

    latency: float = 0.0  # seconds to the cloud and back
    # The same for callers other than the laptop, as if they were in another region; None: `latency`.
    machine_latency: float | None = None
    bandwidth: float = 0.0  # bytes a second in each direction; 0: as many as there are
    free_at: dict[str, float] = field(default_factory=dict)  # by direction; time.monotonic()
    known: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)  # connections

    def trips(self, request: web.Request) -> int:
        """Return how many round trips a request takes: more where its connection is new."""
        if request.transport is None or request.transport in self.known:
            return 1
        self.known.add(request.transport)
        return 1 + HANDSHAKES

    def seconds(self, is_laptop: bool) -> float:
        """Return how long a round trip takes."""
        if is_laptop or self.machine_latency is None:
            return self.latency
        return self.machine_latency

    async def carry(self, direction: str, size: int) -> None:
        """Wait until so many bytes have gone in one direction, behind those of all others."""
        while size > 0 and self.bandwidth:
            block = min(size, BLOCK)
            begins = max(time.monotonic(), self.free_at.get(direction, 0))
            self.free_at[direction] = begins + block / self.bandwidth
            await asyncio.sleep(self.free_at[direction] - time.monotonic())
            size -= block


def middleware(link: Link, tokens: Tokens) -> Callable:
    """Return what lets the requests of an application be as far away as `link` says.

    A request learns when it was sent, as `began`, how many round trips it takes, as `trips`, and
    whether it is the laptop's, for the log.
    """

    @web.middleware
    async def travel(request: web.Request, handler: Callable) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").rpartition(" ")[2]
        owner = tokens.owner(token) if token else None
        request["laptop"] = owner is None or owner.email == LAPTOP
        request["began"] = time.monotonic()
        if request.path.startswith("/_berg/"):
            request["trips"] = 0
            return await handler(request)
        request["trips"] = link.trips(request)
        if seconds := link.seconds(request["laptop"]):
            await asyncio.sleep(seconds * request["trips"])
        response = await handler(request)
        await link.carry("up", request.content.total_bytes)
        if isinstance(response, web.Response) and isinstance(response.body, bytes):
            await link.carry("down", len(response.body))
        return response

    return travel


def times_of(request: web.Request) -> dict[str, Any]:
    """Return when a request was sent and answered, how far that was, and whether a laptop asked."""
    return {
        "began": request["began"],
        "ended": time.monotonic(),
        "trips": request["trips"],
        "laptop": request["laptop"],
    }

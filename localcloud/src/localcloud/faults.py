"""Faults on demand and a log of requests: what a test needs to make trouble and to count calls.

Not covered: faults below HTTP other than a cut connection (packet loss, corrupt bytes, slow links).
"""

import asyncio
import contextlib
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from localcloud.errors import ApiError

LOG_LENGTH = 5000
EFFECTS = ("status", "delay", "together", "reset", "half", "operation_error")
MEETING = 30.0  # seconds for which a request waits for the others that it is to meet
# Google's reasons for the statuses that tests use most.
REASONS = {
    401: "authError",
    403: "forbidden",
    404: "notFound",
    408: "requestTimeout",
    409: "conflict",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    503: "backendError",
}


@dataclass
class Fault:
    """One instruction: which requests it is for, and what happens to them."""

    method: str  # fnmatch pattern of method ids
    times: int | None = 1  # None: until cleared
    probability: float = 1.0
    seed: int | None = None
    zone: str | None = None
    match: str | None = (
        None  # substring of the decoded path and query, or of an uploaded object's name
    )
    status: int | None = None
    reason: str | None = None
    message: str | None = None
    delay: float = 0
    together: int = 0  # requests that wait for each other, and are then released together
    reset: bool = False
    half: bool = False  # the answer breaks off
    after_handler: bool = False  # do the work, then lose the answer
    operation_error: dict | None = None
    hits: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.here, self.all_here = 0, asyncio.Event()

    def applies(self, method: str, path: str, zone: str | None) -> bool:
        """Whether this request is one of those meant; counts it."""
        if not fnmatchcase(method, self.method) or (
            self.times is not None and self.hits >= self.times
        ):
            return False
        if (self.zone and self.zone != zone) or (self.match and self.match not in path):
            return False
        if self.random.random() >= self.probability:
            return False
        self.hits += 1
        return True

    async def meet(self) -> None:
        """Wait until all of the requests that are released together have arrived."""
        self.here += 1
        if self.here == self.together:
            self.all_here.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.all_here.wait(), MEETING)

    def error(self) -> ApiError:
        """The error of a fault with a status."""
        status = self.status or 500
        reason = self.reason or REASONS.get(status, "backendError")
        return ApiError(status, reason, self.message or f"Injected fault: {reason}")


class Faults:
    """The faults waiting to happen, in the order in which they were added."""

    def __init__(self) -> None:
        self.queue: list[Fault] = []

    def add(self, spec: Any) -> None:
        """Add a fault from its JSON form; raise 400 for one that could never do anything."""
        if not isinstance(spec, dict) or not any(spec.get(effect) for effect in EFFECTS):
            raise ApiError(400, "invalid", f"A fault needs one of: {', '.join(EFFECTS)}")
        known = set(Fault.__dataclass_fields__) - {"hits"}
        unknown = sorted(set(spec) - known)
        if unknown or "method" not in spec:
            wrong = (
                f"Unknown field of a fault: {unknown[0]}" if unknown else "A fault needs a method"
            )
            raise ApiError(400, "invalid", f"{wrong}. Known: {', '.join(sorted(known))}")
        self.queue.append(Fault(**spec))

    def clear(self) -> None:
        self.queue.clear()

    def take(
        self, method: str, path: str, zone: str | None = None, named: bool = False
    ) -> Fault | None:
        """Return the fault that this request must suffer, None for almost all; `named`: only one
        with a `match`.
        """
        waiting = [fault for fault in self.queue if not fault.operation_error]
        meant = [fault for fault in waiting if fault.match or not named]
        return next((fault for fault in meant if fault.applies(method, path, zone)), None)

    def take_operation_error(self, method: str, zone: str | None = None) -> dict | None:
        """Return the error with which an operation of this method must end, or None."""
        waiting = [fault for fault in self.queue if fault.operation_error]
        fault = next((fault for fault in waiting if fault.applies(method, "", zone)), None)
        return fault.operation_error if fault else None

    def describe(self) -> list[dict]:
        """The faults with their counts, as JSON."""
        return [
            {name: getattr(fault, name) for name in Fault.__dataclass_fields__}
            for fault in self.queue
        ]


@dataclass
class RequestLog:
    """The last requests, and how many of each method there were since the last reset."""

    last: deque = field(default_factory=lambda: deque(maxlen=LOG_LENGTH))
    counts: Counter = field(default_factory=Counter)
    received: Counter = field(default_factory=Counter)  # bytes of request bodies per method

    def add(
        self,
        method: str,
        verb: str,
        path: str,
        status: int,
        bytes_received: int,
        times: dict[str, Any] | None = None,  # of a request that is no part of another one
    ) -> None:
        entry = {
            "method": method,
            "verb": verb,
            "path": path,
            "status": status,
            "bytes": bytes_received,
            **(times or {}),
        }
        self.last.append(entry)
        self.counts[method] += 1
        self.received[method] += bytes_received

    def clear(self) -> None:
        self.last.clear()
        self.counts.clear()
        self.received.clear()

    def describe(self) -> dict:
        return {
            "requests": list(self.last),
            "counts": dict(self.counts),
            "bytes": dict(self.received),
        }

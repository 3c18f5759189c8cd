"""Operations: what requests begin, and how clients ask for their end."""

import asyncio
from collections.abc import Callable
from typing import Any

from localcloud.call import Call
from localcloud.compute.checks import LINK, already_exists, not_found
from localcloud.compute.state import Compute, key_of

WAIT = 120  # seconds that operations/wait waits at most


def scope_of(call: Call) -> str:
    """Where a request is about something: zones/<zone>, regions/<region> or global."""
    return next(
        (f"{place}s/{call.params[place]}" for place in ("zone", "region") if place in call.params),
        "global",
    )


def begin_operation(
    compute: Compute, call: Call, kind: str, path: str, number: str = "", **more: Any
) -> dict:
    """Record the operation that a request begins on what is at a path."""
    ids = {"targetId": number, "clientOperationId": call.params.get("requestId"), **more}
    project, scope = call.params["project"], scope_of(call)
    return compute.operation(project, kind, path, scope, call.principal, **ids)


def change(
    compute: Compute, call: Call, kind: str, path: str, number: str, work: Callable[[], None]
) -> dict:
    """Do what takes no time; a fault lets the operation fail without it."""
    operation = begin_operation(compute, call, kind, path, number)
    error = compute.faults.take_operation_error(call.method)
    if not error:
        work()
    return compute.finish(operation, error)


def insert(compute: Compute, call: Call, kind: str, row: dict) -> dict:
    """Keep something new, unless its place is taken."""
    path = row["selfLink"].removeprefix(LINK)
    if key_of(path) in compute.tables[kind]:
        raise already_exists(path)
    return change(compute, call, "insert", path, row["id"], lambda: compute.keep(kind, row))


def delete(compute: Compute, call: Call, kind: str, row: dict) -> dict:
    path = row["selfLink"].removeprefix(LINK)
    return change(compute, call, "delete", path, row["id"], lambda: compute.lose(kind, row))


# --- methods


async def get_operation(compute: Compute, call: Call) -> dict:
    name, project = call.params["operation"], call.params["project"]
    row = compute.operations.get(name)
    path = f"projects/{project}/{scope_of(call)}/operations/{name}"
    if row is None or row["selfLink"] != LINK + path:
        raise not_found(path)
    return row


async def wait_operation(compute: Compute, call: Call) -> dict:
    """Answer when the operation is done, or with what it is after two minutes."""
    row = await get_operation(compute, call)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT
    while row["status"] != "DONE" and loop.time() < deadline:
        try:
            await asyncio.wait_for(compute.changed.wait(), deadline - loop.time())
        except asyncio.TimeoutError:
            break
    return row

"""What a request's query asks for: which objects, how strictly checked.

Not covered: pages of lists; an answer has all, which `limit` allows.
"""

from __future__ import annotations

import re

from aiohttp import web

from localcloud.kubernetes.kinds import Refusal
from localcloud.kubernetes.store import Selector


def selector(request: web.Request) -> Selector:
    """Which objects a request means."""
    query = request.query
    return Selector(
        request.match_info.get("namespace", ""),
        query.get("labelSelector", ""),
        query.get("fieldSelector", ""),
    )


def number(request: web.Request, name: str) -> int | None:
    """A number of the query."""
    text = request.query.get(name, "")
    if text and not re.fullmatch("[+-]?[0-9]+", text):
        message = f'strconv.ParseInt: parsing "{text}": invalid syntax'
        raise Refusal(400, "BadRequest", message)
    return int(text) if text else None


def flags(request: web.Request) -> tuple[bool, bool]:
    """Whether fields are checked strictly, and whether nothing is to be done."""
    query = request.query
    return query.get("fieldValidation", "") == "Strict", bool(query.getall("dryRun", []))

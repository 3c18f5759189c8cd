"""Selectors of labels and of fields in a query: equalities alone."""

from __future__ import annotations

import re

from localcloud.kubernetes.kinds import Refusal


def terms(text: str) -> list[tuple[str, str, bool]]:
    """Key, value and whether it is to be that, of each term."""
    return [term(each.strip()) for each in re.split(r"(?<!\\),", text) if each]


def term(text: str) -> tuple[str, str, bool]:
    found = re.fullmatch(r"([^=!\s]+)\s*(!=|==|=)\s*([^=]*)", text)
    if not found:
        raise Refusal(400, "BadRequest", f"unable to parse requirement: {text!r}")
    return found[1], re.sub(r"\\(.)", r"\1", found[3]), found[2] != "!="

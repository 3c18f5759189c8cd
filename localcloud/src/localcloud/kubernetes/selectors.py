"""Selectors of labels and of fields in a query.

Not covered: comparing labels as numbers; Kubernetes' exact words for what is wrong with a selector.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from localcloud.kubernetes.kinds import Refusal
from localcloud.kubernetes.words import check_key, check_label_value

OPERATORS = {"=": "in", "==": "in", "!=": "notin"}
COMPARES = re.compile(r"([^\s!=<>(),]+)\s*(==|!=|=)\s*([^\s!=<>(),]*)")
IN_A_SET = re.compile(r"([^\s!=<>(),]+)\s+(in|notin)\s*\(([^()]*)\)")
IS_THERE = re.compile(r"(!?)\s*([^\s!=<>(),]+)")


def labels(text: str) -> list[tuple[str, str, list[str]]]:
    """Key, operator (in, notin, exists, missing) and values of each requirement."""
    terms = re.split(r",(?![^()]*\))", text) if text.strip() else []
    return [requirement(term.strip()) for term in terms]


def requirement(term: str) -> tuple[str, str, list[str]]:
    if found := COMPARES.fullmatch(term):
        key, operator, values = found[1], OPERATORS[found[2]], [found[3]]
    elif found := IN_A_SET.fullmatch(term):
        key, operator = found[1], found[2]
        values = sorted({each.strip() for each in found[3].split(",")})
    elif found := IS_THERE.fullmatch(term):
        key, operator, values = found[2], "missing" if found[1] else "exists", []
    else:
        raise unreadable(f"invalid selector: {term!r}")
    refuse(key, check_key)
    for value in values:
        refuse(value, check_label_value)
    return key, operator, values


def refuse(text: str, check: Callable[[str, str, list[str]], None]) -> None:
    bad: list[str] = []
    check(text, "<nil>", bad)
    if bad:
        raise unreadable(bad[0])


def unreadable(why: str) -> Refusal:
    return Refusal(400, "BadRequest", f"unable to parse requirement: {why}")


def fields(text: str) -> list[tuple[str, str, bool]]:
    """Path, value and whether it is to be that, of each term."""
    return [field_term(term) for term in re.split(r"(?<!\\),", text) if term]


def field_term(term: str) -> tuple[str, str, bool]:
    found = re.fullmatch(r"([^=!]*)(!=|==|=)([^=]*)", term)
    if not found:
        raise Refusal(400, "BadRequest", f"invalid field selector: can't understand '{term}'")
    return found[1], re.sub(r"\\(.)", r"\1", found[3]), found[2] != "!="

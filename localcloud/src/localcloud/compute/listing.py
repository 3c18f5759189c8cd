"""Compute Engine's lists, plain and aggregated, with `filter`, `maxResults` and `pageToken`.

Both filter languages: `labels.berg=1 AND (status=RUNNING OR name:web*)` and the older `name eq
"web-.*"`, with AND, OR, parentheses and terms side by side. Not covered: NOT, comparisons of numbers,
functions, orderBy.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Callable
from typing import Any

from localcloud.call import Call
from localcloud.compute import catalog
from localcloud.compute.checks import LINK, invalid, missing
from localcloud.errors import ApiError

MOST = 500  # rows of a page
Test = Callable[[dict], bool]
TOKEN = re.compile(
    r'\s*(\(|\)|!=|<=|>=|[=:<>]|"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[^\s()=:<>!"\']+)'
)
OPERATORS = ("=", "!=", ":", "<", ">", "<=", ">=", "eq", "ne")


def listed(
    call: Call, kind: str, place: str, rows: list[tuple[str, dict]], plural: str = ""
) -> dict:
    """One page of a list or of an aggregated list; `rows` are (zone or region, resource).

    Of what is in zones and in regions, `place` is "everywhere", and rows begin with zones/<zone> or
    regions/<region>.
    """
    name = plural or f"{kind}s"
    if int(call.params.get("maxResults", MOST)) > MOST:
        why = f"Must be less than or equal to {MOST}"
        raise invalid("maxResults", call.params["maxResults"], why)
    aggregated = call.method.endswith("aggregatedList")
    singular = place[:-1]
    if not aggregated and singular in call.params:
        rows = [row for row in rows if row[0] == call.params[singular]]
    rows = sorted(rows, key=lambda row: row[1]["name"])
    where = {id(resource): at for at, resource in rows}
    kept, token = page([resource for _, resource in rows], call.params)
    answer: dict[str, Any] = {
        "kind": f"compute#{kind}{'AggregatedList' if aggregated else 'List'}",
        "id": f"projects/{call.params['project']}/{'aggregated/' if aggregated else ''}{name}",
        "selfLink": f"{LINK}projects/{call.params['project']}/{'aggregated/' if aggregated else ''}{name}",
    }
    if aggregated:
        places = {"zones": catalog.ZONES, "regions": catalog.REGIONS}
        items: dict[str, dict] = {}
        everywhere = [f"{where}/{scope}" for where, scopes in places.items() for scope in scopes]
        scopes = {"everywhere": everywhere, **places}
        for scope in scopes.get(place, ["global"]):
            here = [resource for resource in kept if where[id(resource)] == scope]
            key = f"{place}/{scope}" if place in places else scope
            items[key] = {name: here} if here else empty_scope(key)
        answer["items"] = items
    elif kept:
        answer["items"] = kept
    if token:
        answer["nextPageToken"] = token
    return answer


def empty_scope(scope: str) -> dict:
    message = f"There are no results for scope '{scope}' on this page."
    data = [{"key": "scope", "value": scope}]
    return {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": message, "data": data}}


def page(rows: list[dict], params: dict) -> tuple[list[dict], str | None]:
    """Return the rows that `filter` keeps, cut to one page, and the token of the next page."""
    if "orderBy" in params:
        raise missing("orderBy")
    rows = list(filter(matches(params.get("filter")), rows))
    start = 0
    if params.get("pageToken"):
        try:
            start = int(base64.urlsafe_b64decode(params["pageToken"]))
        except ValueError:
            raise ApiError(
                400, "invalid", f"Invalid value for field 'pageToken': '{params['pageToken']}'."
            ) from None
    size = int(params.get("maxResults", 500)) or 500
    token = (
        base64.urlsafe_b64encode(str(start + size).encode()).decode()
        if start + size < len(rows)
        else None
    )
    return rows[start : start + size], token


def matches(text: str | None) -> Test:
    """Compile a filter expression into a test of one resource."""
    if not text:
        return lambda row: True
    tokens = tokenize(text)
    check_language(text, tokens)
    test = parse_or(tokens)
    if tokens:
        raise bad(text)
    return test


def bad(text: str) -> ApiError:
    return ApiError(
        400,
        "invalid",
        f"Invalid value for field 'filter': '{text}'. Invalid list filter expression.",
    )


def check_language(text: str, tokens: list[str]) -> None:
    """Refuse what mixes the two languages: with eq and ne there is no AND, no OR, no NOT, and none
    of the other operators. Tags can be filtered by in neither.
    """
    operators = {each for each in tokens if each in OPERATORS}
    older = operators & {"eq", "ne"}
    if older and (operators - older or {"AND", "OR", "NOT", "-"} & set(tokens)):
        raise bad(text)
    for token, operator in itertools.pairwise(tokens):
        if operator in OPERATORS and token.lstrip("-").partition(".")[0] == "tags":
            raise bad(text)


def tokenize(text: str) -> list[str]:
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        found = TOKEN.match(text, position)
        if not found:
            raise bad(text)
        tokens.append(found.group(1))
        position = found.end()
    return tokens


def parse_or(tokens: list[str]) -> Test:
    tests = [parse_and(tokens)]
    while tokens and tokens[0] == "OR":
        tokens.pop(0)
        tests.append(parse_and(tokens))
    return lambda row: any(test(row) for test in tests)


def parse_and(tokens: list[str]) -> Test:
    tests = [parse_term(tokens)]
    while tokens and tokens[0] not in ("OR", ")"):
        if tokens[0] == "AND":
            tokens.pop(0)
        tests.append(parse_term(tokens))
    return lambda row: all(test(row) for test in tests)


def parse_term(tokens: list[str]) -> Test:
    if not tokens:
        raise bad("")
    token = tokens.pop(0)
    if token == "NOT" or token.startswith("-"):
        raise missing("NOT in a filter")
    if token == "(":
        test = parse_or(tokens)
        if not tokens or tokens.pop(0) != ")":
            raise bad("unbalanced parentheses")
        return test
    if len(tokens) < 2 or tokens[0] not in OPERATORS or tokens[1] in ("(", ")", *OPERATORS):
        raise bad(token)
    operator, value = tokens.pop(0), unquote(tokens.pop(0))
    if operator in ("<", ">", "<=", ">="):
        raise missing(f"{operator} in a filter")
    return lambda row: compare(look_up(row, token), operator, value)


def unquote(word: str) -> str:
    """Take quotes off; other backslashes stay, because gcloud sends regular expressions with \\b in
    them.
    """
    return re.sub(r"\\([\"'])", r"\1", word[1:-1]) if word[0] in "\"'" else word


def look_up(row: Any, path: str) -> Any:
    for name in path.split("."):
        name = unquote(name) if name else name
        if isinstance(row, list):
            row = [look_up(item, name) for item in row]
        else:
            row = row.get(name) if isinstance(row, dict) else None
    return row


def compare(found: Any, operator: str, value: str) -> bool:
    if isinstance(found, list):
        return any(compare(item, operator, value) for item in found)
    if operator in ("!=", "ne"):
        return not compare(found, {"!=": "=", "ne": "eq"}[operator], value)
    if found is None:
        return False
    if isinstance(found, bool):
        found = "true" if found else "false"
    if operator == "eq":
        try:
            return re.fullmatch(value, str(found)) is not None
        except re.error:
            raise bad(value) from None
    if operator == ":":
        return value == "*" or holds(str(found), value)
    return wildcard(value).fullmatch(str(found)) is not None


def holds(found: str, value: str) -> bool:
    return wildcard(value).fullmatch(found) is not None or value.strip("*").lower() in found.lower()


def wildcard(value: str) -> re.Pattern:
    return re.compile(".*".join(re.escape(part) for part in value.split("*")), re.IGNORECASE)

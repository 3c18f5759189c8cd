"""Compute Engine's lists, plain and aggregated, with `filter`, `maxResults` and `pageToken`.

Of both filter languages what berg and gcloud send: `(labels.berg="1") AND name=web*` and the older `name
eq "web-.*"`, terms side by side. Not covered: all other operators, orderBy.
"""

import re
from collections.abc import Callable
from typing import Any

from localcloud.call import Call
from localcloud.compute import catalog
from localcloud.compute.checks import LINK, invalid
from localcloud.errors import ApiError, unserved

MOST = 500  # rows of a page
Test = Callable[[dict], bool]
# A term of a filter, in parentheses or not; its value is a word, or in quotes.
TERM = re.compile(
    r"""\s*(?P<and>AND\b)?\s*(?P<open>\()?\s*(?P<path>[A-Za-z][\w.-]*)\s*(?P<operator>=|\beq\b)\s*"""
    r"""(?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s()=:<>!"']+)\s*(?(open)\))"""
)


def listed(call: Call, kind: str, place: str, rows: list[tuple[str, dict]]) -> dict:
    """One page of a list or of an aggregated list; `rows` are (zone or region, resource).

    Of what is in zones and in regions, `place` is "everywhere", and rows begin with zones/<zone> or
    regions/<region>.
    """
    name = call.method.split(".")[1]
    if int(call.params.get("maxResults", MOST)) > MOST:
        raise invalid("maxResults", call.params["maxResults"], f"Must be at most {MOST}.")
    aggregated = call.method.endswith("aggregatedList")
    singular = place[:-1]
    if not aggregated and singular in call.params:
        rows = [row for row in rows if row[0] == call.params[singular]]
    rows = sorted(rows, key=lambda row: row[1]["name"])
    where = {id(resource): at for at, resource in rows}
    kept, token = page([resource for _, resource in rows], call.params)
    path = f"projects/{call.params['project']}/{'aggregated/' if aggregated else ''}{name}"
    answer: dict[str, Any] = {
        "kind": f"compute#{kind}{'AggregatedList' if aggregated else 'List'}",
        "id": path,
        "selfLink": LINK + path,
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
    """Return the rows that `filter` keeps, cut to one page, and the token of the next page: where it
    begins.
    """
    unserved("orderBy" in params, "lists by orderBy")
    rows = list(filter(matches(params.get("filter") or ""), rows))
    token = params.get("pageToken") or "0"
    if not token.isdigit():
        raise invalid("pageToken", token, "It is none of this list.")
    end = int(token) + (int(params.get("maxResults", MOST)) or MOST)
    return rows[int(token) : end], str(end) if end < len(rows) else None


def matches(text: str) -> Test:
    """Compile a filter expression into a test of one resource."""
    text = text.strip()
    terms = list(TERM.finditer(text))
    others = TERM.sub("", text).strip() or text.startswith("AND")
    unserved(others, f"filters such as {text}")
    operators = {term["operator"] for term in terms}
    if "eq" in operators and (len(operators) > 1 or any(term["and"] for term in terms)):
        raise bad(text)  # the older language has neither = nor AND
    if any(term["path"].partition(".")[0] == "tags" for term in terms):
        raise bad(text)
    tests = [test_of(term["path"], term["operator"], unquote(term["value"])) for term in terms]
    return lambda row: all(test(row) for test in tests)


def bad(text: str) -> ApiError:
    why = "Invalid list filter expression."
    return ApiError(400, "invalid", f"Invalid value for field 'filter': '{text}'. {why}")


def unquote(word: str) -> str:
    """Take quotes off; other backslashes stay, because gcloud sends regular expressions with \\b in
    them.
    """
    return re.sub(r"\\([\"'])", r"\1", word[1:-1]) if word[0] in "\"'" else word


def test_of(path: str, operator: str, value: str) -> Test:
    """The test of a term: eq takes a regular expression, = a text with `*` for anything."""
    text = ".*".join(re.escape(part) for part in value.split("*"))
    try:
        pattern = re.compile(value if operator == "eq" else f"(?i){text}")
    except re.error:
        raise bad(value) from None

    def test(row: Any) -> bool:
        for name in path.split("."):
            row = row.get(name) if isinstance(row, dict) else None
        return row is not None and pattern.fullmatch(str(row)) is not None

    return test

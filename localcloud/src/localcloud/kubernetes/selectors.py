"""Selectors of labels and of fields as they stand in a query, read as Kubernetes reads them; what
cannot be read is refused in its words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from localcloud.kubernetes.kinds import Refusal
from localcloud.kubernetes.words import check_key, check_label_value, invalid

SPECIAL = "=!(),><"
OPERATORS = {
    "in": "in",
    "notin": "notin",
    "=": "in",
    "==": "in",
    "!=": "notin",
    ">": "gt",
    "<": "lt",
}
KNOWN = (*"!(),=<>", "==", "!=")
BINARY = "in, notin, =, ==, !=, gt, lt"
NAME, END = "name", "end"


@dataclass
class Token:
    kind: str  # NAME, END, an operator or a bracket; "" for what is none
    text: str


def tokens(text: str) -> list[Token]:
    found = []
    for part in re.findall(rf"[{re.escape(SPECIAL)}]+|[^\s{re.escape(SPECIAL)}]+", text):
        found += special(part) if part[0] in SPECIAL else [Token(NAME, part)]
    return [*found, Token(END, "")]


def special(text: str) -> list[Token]:
    """Of signs in a row: each is as long as it can be."""
    found = []
    while text:
        size = 2 if text[:2] in KNOWN else 1
        found.append(Token(text[:size], text[:size]))
        text = text[size:]
    return found


class Parser:
    """What remains of a selector of labels."""

    def __init__(self, text: str):
        self.rest = tokens(text)

    def take(self) -> Token:
        return self.rest.pop(0) if len(self.rest) > 1 else self.rest[0]

    @property
    def next(self) -> Token:
        return self.rest[0]


def wrong(token: Token, expected: str, comma: str = ",") -> ValueError:
    return ValueError(f"found '{token.text}'{comma} expected: {expected}")


def labels(text: str) -> list[tuple[str, str, list[str]]]:
    """Key, operator (in, notin, exists, missing, gt, lt) and values of each requirement."""
    parser = Parser(text)
    found: list[tuple[str, str, list[str]]] = []
    try:
        while parser.next.kind != END:
            if parser.next.kind not in (NAME, "!"):
                raise wrong(parser.next, "!, identifier, or 'end of string'")
            found.append(requirement_of(parser))
            end = parser.take()
            if end.kind not in (END, ","):
                raise wrong(end, "',' or 'end of string'")
            if end.kind == "," and parser.next.kind not in (NAME, "!"):
                raise wrong(parser.next, "identifier after ','")
    except ValueError as error:
        raise Refusal(400, "BadRequest", str(error)) from None
    return found


def requirement_of(parser: Parser) -> tuple[str, str, list[str]]:
    try:
        return requirement(parser)
    except ValueError as error:
        raise ValueError(f"unable to parse requirement: {error}") from None


def requirement(parser: Parser) -> tuple[str, str, list[str]]:
    token = parser.take()
    missing = token.kind == "!"
    if missing:
        token = parser.take()
    if token.kind != NAME:
        raise wrong(token, "identifier")
    refuse(token.text, "<nil>", check_key)
    if missing or parser.next.kind in (END, ","):
        return token.text, "missing" if missing else "exists", []
    sign = parser.take()
    if sign.text not in OPERATORS:
        raise wrong(sign, BINARY)
    values = several(parser) if sign.text in ("in", "notin") else [exact(parser)]
    operator = OPERATORS[sign.text]
    if operator in ("gt", "lt") and not re.fullmatch("[+-]?[0-9]+", values[0]):
        told = "for 'Gt', 'Lt' operators, the value must be an integer"
        raise ValueError(invalid("values[0]", values[0], told))
    for number, value in enumerate(sorted(values)):
        refuse(value, f"values[{number}][{token.text}]", check_label_value)
    return token.text, operator, values


def refuse(text: str, path: str, check: Callable[[str, str, list[str]], None]) -> None:
    bad: list[str] = []
    check(text, path, bad)
    if bad:
        start = invalid(path, text, "")
        raise ValueError(start + "; ".join(each.removeprefix(start) for each in bad))


def exact(parser: Parser) -> str:
    if parser.next.kind in (END, ","):
        return ""
    token = parser.take()
    if token.kind != NAME:
        raise wrong(token, "identifier")
    return token.text


def several(parser: Parser) -> list[str]:
    """The values of a set: `(a,b)`."""
    if (token := parser.take()).kind != "(":
        raise wrong(token, "'('", "")
    if parser.next.kind == ")":
        parser.take()
        return [""]
    if parser.next.kind not in (NAME, ","):
        raise wrong(parser.next, "',', ')' or identifier")
    found = {value_of(parser)}
    while parser.next.kind == ",":
        parser.take()
        found.add(value_of(parser))
    if (token := parser.take()).kind != ")":
        raise wrong(token, "',' or ')'")
    return sorted(found)


def value_of(parser: Parser) -> str:
    if parser.next.kind in (",", ")"):
        return ""
    if (token := parser.take()).kind != NAME:
        raise wrong(token, "',', or identifier")
    return token.text


def selects(selector: dict, labels: dict) -> bool:
    """Return whether the selector of an object (matchLabels, matchExpressions) matches labels."""
    wanted = (selector.get("matchLabels") or {}).items() <= labels.items()
    return wanted and all(fits(row, labels) for row in selector.get("matchExpressions") or [])


def fits(row: dict, labels: dict) -> bool:
    """Return whether labels meet one expression of a selector."""
    operator, value = row.get("operator"), labels.get(row.get("key", ""))
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) == (operator == "Exists")
    return (value in (row.get("values") or [])) == (operator == "In")


def fields(text: str) -> list[tuple[str, str, bool]]:
    """Path, value and whether it is to be that, of each term."""
    terms = [term for term in re.split(r"(?<!\\),", text) if term]
    return [field_term(term, text) for term in terms]


def field_term(term: str, text: str) -> tuple[str, str, bool]:
    found = re.match(r"((?:\\.|[^=!\\]|!(?!=))*)(!=|==|=)(.*)", term, re.DOTALL)
    if not found:
        told = f"invalid selector: '{text}'; can't understand '{term}'"
        raise Refusal(400, "BadRequest", told)
    value = found[3]
    if odd := re.search(r"[=]", re.sub(r"\\.", "", value)):
        told = f"invalid field selector: unescaped character in value: {ord(odd[0])}"
        raise Refusal(400, "BadRequest", told)
    if odd := re.search(r"\\([^\\,=]|$)", value):
        raise Refusal(
            400, "BadRequest", f"invalid field selector: invalid escape sequence: {odd[0]}"
        )
    return found[1], re.sub(r"\\(.)", r"\1", value), found[2] != "!="

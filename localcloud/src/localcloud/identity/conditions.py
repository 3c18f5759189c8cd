"""IAM conditions: the part of CEL that policies of machine-learning projects use, and no more.

    resource.name, resource.type, resource.service      strings
    request.time < timestamp("2026-12-01T00:00:00Z")    also >, <=, >=
    NAME == "text", NAME != "text"
    NAME.startsWith("text"), NAME.endsWith("text")
    NAME.extract("/instances/{name}").startsWith("berg-")
    && || ! ( )

Google's rules follow https://cloud.google.com/iam/docs/conditions-attribute-reference: an expression
that IAM cannot read is refused when the policy is written, one that fails when it is asked counts as
false. `contains` is none of IAM's functions. An expression has at most 12 logical operators.

Not covered: tags, access levels, dates' parts, `in`, `matches`; they are refused with 501, as what
the embedded cloud lacks.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from localcloud.errors import ApiError

OPERATORS = 12
MOST = {"title": 100, "description": 256}  # characters
TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"""|(?P<word>[A-Za-z_][\w]*)|(?P<sign>&&|\|\||==|!=|<=|>=|[().,!<>]))"""
)
ATTRIBUTES = ("resource.name", "resource.type", "resource.service", "request.time")
FUNCTIONS = ("startsWith", "endsWith", "extract")
MISSING = ("matches", "matchTag", "hasTagKey", "in", "size", "split", "duration", "getHours")


@dataclass(frozen=True)
class Asked:
    """What a condition is asked about."""

    name: str
    type: str
    service: str

    @property
    def attributes(self) -> dict[str, str]:
        return {
            "resource.name": self.name,
            "resource.type": self.type,
            "resource.service": self.service,
            "request.time": datetime.now(timezone.utc).isoformat(),
        }


NOTHING = Asked("", "", "")
# A part of an expression that has been read: its value for what is asked about.
Value = Callable[[Asked], object]


def check(condition: dict) -> dict:
    """Return a condition as it is kept; raise Google's refusal of one that cannot be read."""
    title, expression = condition.get("title") or "", condition.get("expression") or ""
    if not title:
        raise invalid("Condition title must not be empty.")
    if not expression:
        raise invalid("Condition expression must not be empty.")
    for field, most in MOST.items():
        if len(condition.get(field) or "") > most:
            raise invalid(f"Condition {field} must have at most {most} characters.")
    if len(re.findall(r"&&|\|\||!(?!=)", expression)) > OPERATORS:
        raise invalid(f"Condition expression has more than {OPERATORS} logical operators.")
    Parser(expression).parse()
    kept = {"title": title, "description": condition.get("description"), "expression": expression}
    return {key: value for key, value in kept.items() if value}


def holds(condition: dict | None, asked: Asked) -> bool:
    """Whether a binding with this condition counts for what is asked about."""
    if not condition:
        return True
    return bool(Parser(condition["expression"]).parse()(asked))


def invalid(why: str) -> ApiError:
    return ApiError(400, "invalid", f"Invalid condition: {why}")


class Parser:
    """Read an expression from left to right; || binds less than &&, and that less than !."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.tokens = list(self.split(expression))
        self.at = 0

    def split(self, expression: str) -> list[tuple[str, str]]:
        tokens, at, end = [], 0, len(expression.rstrip())
        while at < end:
            found = TOKEN.match(expression, at)
            if not found:
                raise self.wrong(expression[at:].strip()[:20])
            tokens.append((str(found.lastgroup), found[found.lastgroup or 0]))
            at = found.end()
        return tokens

    def wrong(self, what: str) -> ApiError:
        return invalid(f"undeclared reference or syntax error at {what!r} in {self.expression!r}")

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise self.wrong(token or "the end")
        self.at += 1
        return token

    def parse(self) -> Value:
        value = self.any_of()
        if self.peek():
            raise self.wrong(self.peek())
        return value

    def any_of(self) -> Value:
        parts = [self.all_of()]
        while self.peek() == "||":
            self.take()
            parts.append(self.all_of())
        return lambda asked: any(part(asked) for part in parts)

    def all_of(self) -> Value:
        parts = [self.one()]
        while self.peek() == "&&":
            self.take()
            parts.append(self.one())
        return lambda asked: all(part(asked) for part in parts)

    def one(self) -> Value:
        if self.peek() == "!":
            self.take()
            negated = self.one()
            return lambda asked: not negated(asked)
        if self.peek() == "(":
            self.take()
            inner = self.any_of()
            self.take(")")
            return inner
        return self.comparison()

    def comparison(self) -> Value:
        left = self.operand()
        sign = self.peek()
        if sign not in ("==", "!=", "<", ">", "<=", ">="):
            if not isinstance(left(NOTHING), bool):
                raise invalid(f"{self.expression!r} is not true or false everywhere.")
            return left
        self.take()
        right = self.operand()
        compare = {
            "==": lambda a, b: a == b,
            "!=": lambda a, b: a != b,
            "<": lambda a, b: a < b,
            ">": lambda a, b: a > b,
            "<=": lambda a, b: a <= b,
            ">=": lambda a, b: a >= b,
        }[sign]
        return lambda asked: compare(left(asked), right(asked))

    def operand(self) -> Value:
        """A string, a timestamp, or an attribute with the functions that are called on it."""
        kind, token = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        self.take()
        if kind == "text":
            text = re.sub(r"\\(.)", r"\1", token[1:-1])
            return lambda asked: text
        if token == "timestamp":
            self.take("(")
            text = self.string()
            self.take(")")
            try:
                moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
            except ValueError:
                raise invalid(f"{text!r} is no timestamp.") from None
            return lambda asked: moment.isoformat()
        self.take(".")
        name = f"{token}.{self.take()}"
        if name not in ATTRIBUTES:
            raise self.wrong(name)
        value: Value = lambda asked: asked.attributes[name]  # noqa: E731
        while self.peek() == ".":
            self.take()
            value = self.call(value)
        return value

    def call(self, value: Value) -> Value:
        function = self.take()
        if function in MISSING:
            raise ApiError(501, "notImplemented", f"The embedded cloud has no {function} in CEL")
        if function not in FUNCTIONS:
            raise self.wrong(function)
        self.take("(")
        argument = self.string()
        self.take(")")
        if function == "startsWith":
            return lambda asked: str(value(asked)).startswith(argument)
        if function == "endsWith":
            return lambda asked: str(value(asked)).endswith(argument)
        return lambda asked: extract(str(value(asked)), argument)

    def string(self) -> str:
        token = self.take()
        if token[0] not in "\"'":
            raise self.wrong(token)
        return re.sub(r"\\(.)", r"\1", token[1:-1])


def extract(value: str, template: str) -> str:
    """The part of a value that matches `{...}` of a template; "" where it does not match."""
    before, _, rest = template.partition("{")
    after = rest.partition("}")[2]
    _, found, tail = value.partition(before)
    if not found:
        return ""
    return tail.partition(after)[0] if after else tail

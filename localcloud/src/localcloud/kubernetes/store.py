"""What a cluster knows: its objects, and what happened to them.

An object in `rows` belongs to the controllers, which change it and `put` it; readers get what was
last put.

Not covered: versions of a list in the past (`resourceVersionMatch=Exact`).
"""

import asyncio
import copy
import re

from localcloud.kubernetes.kinds import KINDS, Refusal, key_of


class Store:
    def __init__(self) -> None:
        self.rows: dict[str, dict[tuple[str, str], dict]] = {plural: {} for plural in KINDS}
        self.shown: dict[str, dict[tuple[str, str], dict]] = {plural: {} for plural in KINDS}
        self.changed = asyncio.Event()  # replaced whenever anything changes
        self.version = 100

    def put(self, plural: str, thing: dict, event: str = "MODIFIED") -> None:
        """Make a change known. One to an object that is gone meanwhile, or that changes nothing, is
        none.
        """
        meta, key = thing["metadata"], key_of(thing)
        old = self.shown[plural].get(key)
        if event != "ADDED" and (
            old is None
            or old["metadata"]["uid"] != meta["uid"]
            or (event, old) == ("MODIFIED", thing)
        ):
            return
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        new = copy.deepcopy(thing)
        if event == "DELETED":
            del self.rows[plural][key], self.shown[plural][key]
        else:
            self.rows[plural][key], self.shown[plural][key] = thing, new
        self.notify()

    def notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def get(self, plural: str, namespace: str, name: str) -> dict | None:
        return self.rows[plural].get((namespace, name))

    def all(self, plural: str) -> list[dict]:
        """Every object of a kind, for controllers: a list, because they change the table while they
        look.
        """
        return list(self.rows[plural].values())


def terms(text: str) -> list[tuple[str, str, bool]]:
    """Key, value and whether it is to be that, of each term of a selector: equalities alone."""
    return [term(each.strip()) for each in re.split(r"(?<!\\),", text) if each]


def term(text: str) -> tuple[str, str, bool]:
    found = re.fullmatch(r"([^=!\s]+)\s*(!=|==|=)\s*([^=]*)", text)
    if not found:
        raise Refusal(400, "BadRequest", f"unable to parse requirement: {text!r}")
    return found[1], re.sub(r"\\(.)", r"\1", found[3]), found[2] != "!="


class Selector:
    """Whether objects fit a namespace, a label selector and a field selector."""

    def __init__(self, namespace: str = "", labels: str = "", fields: str = ""):
        self.namespace = namespace
        self.labels, self.fields = terms(labels), terms(fields)

    def fits(self, thing: dict | None) -> bool:
        if thing is None or (
            self.namespace and thing["metadata"].get("namespace") != self.namespace
        ):
            return False
        mine = thing["metadata"].get("labels") or {}
        if not all((mine.get(key) == value) == wanted for key, value, wanted in self.labels):
            return False
        return all(
            (field_of(thing, path) == value) == wanted for path, value, wanted in self.fields
        )


def field_of(thing: dict, path: str) -> str:
    value: object = thing
    for part in path.split("."):
        value = (value.get(part) if isinstance(value, dict) else None) or ""
    return str(value)

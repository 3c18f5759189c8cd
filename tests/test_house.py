"""The house: which folder may import from which, and that no modules import each other in a circle."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

BERG = Path(__file__).parent.parent / "berg"
# Room -> what stands in it; a folder is a room, and so are these modules beside the folders.
ROOMS = {
    "berg": {"__init__"},
    "contract": {"config", "job", "inventory", "checks", "credentials", "words"},
    "plan": {"plan"},
    "places": {"gce", "gke", "manifest", "podstatus", "tpu"},
    "verbs": {
        "launch",
        "jobs",
        "ending",
        "logs",
        "sweep",
        "resume",
        "reap",
        "ssh",
        "ssh_config",
        "sync",
        "init",
        "doctor",
        "readiness",
        "records",
        "names",
        "clusters",
        "cache",
        "images",
        "defaults",
        "api",
    },
    "worker": {"worker"},
    "cli": {"cli", "__main__"},
}
# Room -> the rooms below it, from which it may import.
BELOW = {
    "berg": set(),
    "contract": {"berg"},
    "google": {"berg", "contract"},
    "code": {"berg", "contract"},
    "plan": {"berg", "contract", "google", "code"},
    "places": {"berg", "contract", "google", "code", "plan"},
    "verbs": {"berg", "contract", "google", "code", "plan", "places"},
    "watch": {"berg", "contract", "google", "code", "plan", "places", "verbs"},
    "commands": {"berg", "contract", "google", "code", "plan", "places", "verbs", "watch"},
    "cli": {"berg", "contract", "google", "plan", "verbs", "commands"},
    "machine": {"berg", "contract", "google", "code"},
    "worker": {"berg", "contract", "google", "code", "machine"},
    "local": {"berg"},
}
# The embedded cloud is started and looked after from outside, as a program is; nothing of it is used otherwise.
CONTROL = "berg.local.control"
STARTS_IT = {"berg.config", "berg.init", "berg.doctor", "berg.commands.setup", "berg.cli"}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(BERG.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in sorted(BERG.rglob("*.py"))}


def room_of(module: str) -> str:
    _, first, *rest = f"{module}.__init__".split(".")
    if rest and first in BELOW:
        return first
    found = [room for room, names in ROOMS.items() if first in names]
    assert found, (
        f"berg/{first}.py belongs in a folder: what runs on machines to machine/, a service of Google's to google/, a "
        "command to commands/. A new verb or place of its own stands in ROOMS of this test, and in CONTRIBUTING.md"
    )
    return found[0]


@cache
def imports(module: str) -> dict[str, int]:
    """Modules of berg's that a module imports anywhere in it, also for types, and in which line."""
    found = {}
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relatively; this house writes whole names"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            while name not in MODULES and "." in name:
                name = name.rpartition(".")[0]
            if name.partition(".")[0] == "berg" and name != module:
                found[name] = node.lineno
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_below_its_room(module):
    room = room_of(module)
    for imported, line in imports(module).items():
        there = room_of(imported)
        allowed = there == room or there in BELOW[room] or (imported == CONTROL and module in STARTS_IT)
        assert allowed, (
            f"{MODULES[module].relative_to(BERG.parent)}:{line} imports {imported}. The room {room!r} stands on "
            f"{sorted(BELOW[room])} alone: move what both need down there, or hand it over as an argument"
        )


def test_no_modules_import_each_other_in_a_circle():
    packages = {module for module, path in MODULES.items() if path.name == "__init__.py"}
    graph = {module: imports(module).keys() - packages for module in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"these import each other: {' <- '.join(error.args[1])}")


def test_a_stray_module_is_told_where_it_belongs():
    with pytest.raises(AssertionError, match=r"berg/utils\.py belongs in a folder"):
        room_of("berg.utils")
    assert room_of("berg.machine.boot") == "machine" and room_of("berg.gce") == "places" and room_of("berg") == "berg"

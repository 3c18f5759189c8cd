"""The house: which folder may import from which, and that no modules import each other in a circle."""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

BERG = Path(__file__).parent.parent / "berg"
LOCALCLOUD = BERG.parent / "localcloud/src"
# Room -> what stands in it; a folder is a room, and so are these modules beside the folders.
ROOMS = {
    "berg": {"__init__", "plain"},
    "contract": {
        "config",
        "job",
        "validation",
        "computer",
        "spec",
    },
    "states": {"states"},
    "plan": {"plan"},
    "places": {"gce", "places"},
    "api": {"api"},
    "worker": {"worker"},
    "cli": {"cli", "__main__"},
}
# Room -> the rooms below it, from which it may import.
BELOW = {
    "berg": set(),
    "contract": {"berg"},
    "google": {"berg", "contract"},
    "states": {"berg", "contract", "google"},
    "code": {"berg", "contract"},
    "plan": {"berg", "contract", "google", "states", "code"},
    "gke": {"berg", "contract", "google", "plan"},
    "places": {"berg", "contract", "google", "code", "plan", "gke"},
    "laptop": {"berg", "contract", "google", "states", "code", "plan", "gke", "places"},
    "api": {"berg", "contract", "google", "states", "plan", "laptop"},
    "watch": {"berg", "contract", "google", "states", "code", "plan", "places", "laptop"},
    "commands": {
        "berg",
        "contract",
        "google",
        "states",
        "code",
        "plan",
        "gke",
        "places",
        "laptop",
        "watch",
    },
    "cli": {"berg", "contract", "google", "plan", "laptop", "commands"},
    "machine": {"berg", "contract", "google", "states", "code", "gke"},
    "worker": {"berg", "contract", "google", "states", "code", "machine"},
}
# The embedded cloud is started and looked after from outside, as a program is; nothing of it is
# used otherwise.
CONTROL = "localcloud.control"
STARTS_IT = {"berg.config"}


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
    for name, line in imported_names(MODULES[module]):
        while name not in MODULES and "." in name:
            name = name.rpartition(".")[0]
        if name.partition(".")[0] == "berg" and name != module:
            found[name] = line
    return found


@cache
def imported_names(path: Path) -> list[tuple[str, int]]:
    """Every name that a file imports anywhere in it, and in which line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports relatively; this house writes whole names"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_below_its_room(module):
    room = room_of(module)
    for imported, line in imports(module).items():
        there = room_of(imported)
        allowed = there == room or there in BELOW[room]
        assert allowed, (
            f"{MODULES[module].relative_to(BERG.parent)}:{line} imports {imported}. The room {room!r} stands on "
            f"{sorted(BELOW[room])} alone: move what both need down there, or hand it over as an argument"
        )


def test_the_embedded_cloud_and_berg_meet_at_one_door():
    for path in LOCALCLOUD.rglob("*.py"):
        strays = [name for name, _ in imported_names(path) if name.partition(".")[0] == "berg"]
        assert not strays, f"{path} imports {strays}: the embedded cloud imports nothing of berg's"
    for module, path in MODULES.items():
        used = [name for name, _ in imported_names(path) if name.partition(".")[0] == "localcloud"]
        allowed = module in STARTS_IT and all(f"{name}.".startswith(f"{CONTROL}.") for name in used)
        assert not used or allowed, (
            f"{path} imports {used}: only {CONTROL} is a door, and only for {sorted(STARTS_IT)}"
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
    assert (
        room_of("berg.machine.boot") == "machine"
        and room_of("berg.gce") == "places"
        and room_of("berg") == "berg"
    )


@pytest.mark.parametrize("name", MODULES)
def test_what_is_printed_goes_through_one_door(name):
    """plain.py takes out of it what would steer a terminal; machines print to their own logs."""
    if room_of(name) in ("berg", "machine", "worker"):
        return
    text = MODULES[name].read_text()
    assert "click.echo" not in text and "click.secho" not in text and "sys.stdout.write" not in text


@pytest.mark.parametrize("name", MODULES)
def test_git_and_python_start_by_one_door(name):
    """Else they would obey the folder that a person is in; machines are the job's own."""
    if room_of(name) in ("machine", "worker"):
        return
    text = MODULES[name].read_text()
    assert name == "berg.code.git" or not re.search(r"gitpython\.(Git|Repo)\b", text)
    assert not re.search(r"sys\.executable,\s*\"-[mc]\"", text), "see computer.python"
    starts = re.findall(r"(?:run|Popen|call)\(\s*\[\s*\"git\"", text)
    assert not starts, "see berg/code/git.py"

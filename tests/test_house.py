"""The house: the core names no feature and no client, and modules import each other in one direction."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

import berg
from berg import clients, features
from berg.cli import COMMANDS, cli

FOLDER = Path(berg.__file__).parent
CORE = sorted(FOLDER.glob("*.py"))


def imports(file: Path, is_at_the_top: bool) -> set[str]:
    """Modules of berg that a file imports, as berg.x.y; at the top alone, or anywhere."""
    tree = ast.parse(file.read_text())
    nodes = tree.body if is_at_the_top else [*ast.walk(tree)]
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "berg":
            base = str(node.module)
            inner = {f"{base}.{alias.name}" for alias in node.names}
            found |= {each for each in inner if is_module(each)} or {base}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "berg"}
    return found


def is_module(name: str) -> bool:
    place = FOLDER.parent.joinpath(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def test_the_core_imports_no_feature_and_no_client() -> None:
    wrong = {
        (file.name, name)
        for file in CORE
        for name in imports(file, is_at_the_top=False)
        if name.count(".") > 1 and file.name != "__init__.py"  # which offers berg.run to programs
    }
    assert not wrong


def test_the_core_names_no_feature() -> None:
    for file in CORE:
        nodes = ast.walk(ast.parse(file.read_text()))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        assert not names & features.ALL.keys(), file


def test_features_and_clients_are_all_in_their_lists() -> None:
    own = {file.stem for file in (FOLDER / "features").glob("*.py")} - {"__init__"}
    own |= {file.parent.name for file in (FOLDER / "features").glob("*/__init__.py")}
    commands = {module.partition(".")[0] for module, _ in features.COMMANDS.values()}
    assert own == {*features.ALL.values()} | commands
    modules = {module for module, _ in clients.COMMANDS.values()}
    assert modules <= {file.stem for file in (FOLDER / "clients").iterdir()}


def test_no_feature_imports_a_client() -> None:
    for file in (FOLDER / "features").glob("*.py"):
        assert not [
            n for n in imports(file, is_at_the_top=False) if n.startswith("berg.clients")
        ], file


def test_imports_at_the_top_have_no_circle() -> None:
    graph = {
        "berg." + ".".join(file.relative_to(FOLDER).with_suffix("").parts): imports(file, True)
        for file in FOLDER.rglob("*.py")
        if file.name != "__init__.py"
    }
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above, name])
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_help_imports_no_command() -> None:
    program = (
        "import sys; from berg.cli import COMMANDS, cli; cli.main(['--help'], standalone_mode=False);"
        "print(sorted(sys.modules.keys() & {f'berg.{each}' for each in COMMANDS.values()}))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout.endswith("\n[]\n"), said.stdout + said.stderr


def commands(group: click.Group, *above: str) -> Iterator[tuple[str, click.Command]]:
    """All commands with the words that are typed for them."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command, name
        if isinstance(command, click.Group):
            yield from commands(command, *above, name)
        elif not command.hidden:
            yield " ".join([*above, name]), command


def test_each_command_has_a_module_and_a_help_with_an_example() -> None:
    found = dict(commands(cli))
    assert {words.split()[0] for words in found} == {*COMMANDS}
    lines = {words: command.help or "" for words, command in found.items()}
    assert not [words for words in lines if not re.search(rf"\n.*\bberg {words}\b", lines[words])]


def test_the_startup_script_runs_with_what_an_old_image_has() -> None:
    """Python 3.8 and its standard library; Google takes 256 kB."""
    text = (FOLDER / "boot.py").read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    found = {
        name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    found |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in found} <= {*sys.stdlib_module_names}
    assert len(text) < 200_000

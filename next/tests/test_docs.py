"""The documentation against the code: commands parse, links lead somewhere, generated pages are current."""

import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import berg
from berg.cli import cli
from berg.config import Config

TOP = Path(berg.__file__).parents[1]
DOCS = TOP / "docs"
TOOLS = next(place for place in (TOP / "tools", TOP.parent / "tools") if place.exists())
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def command_lines(text: str) -> list[str]:
    """Lines that call berg: in blocks of shell and of help, and between backticks."""
    lines = []
    for language, block in FENCE.findall(text):
        if language in ("bash", "text"):
            lines += [line.strip() for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    return [line for line in lines if re.match(r"berg [a-z-]", line)]


def parse(line: str) -> None:
    """Let click read a line up to a pipe or `&&`, without running it; raises click.UsageError."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = [*lexer][1:]
    words = words[: next((n for n, word in enumerate(words) if {*word} <= {*"|&;<>()"}), None)]
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(command)
        found = command.get_command(context, words[0])
        if found is None:
            raise click.UsageError(f"no such command: {words[0]}")
        command, words = found, words[1:]
    if not isinstance(command, click.Group):
        try:
            command.make_context("berg", words)
        except (click.MissingParameter, click.BadOptionUsage):  # `berg kill --now` is a mention
            if any(not word.startswith("-") for word in words):
                raise


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_shown_parse(page: Path) -> None:
    wrong = []
    for line in command_lines(page.read_text()):
        try:
            parse(line)
        except (click.ClickException, ValueError) as error:
            wrong.append(f"{line}: {getattr(error, 'message', error)}")
    assert not wrong


def test_wrong_commands_are_refused() -> None:
    for wrong in ("berg fly", "berg run --wings true", "berg kill --wings", "berg local fly"):
        with pytest.raises(click.UsageError):
            parse(wrong)


@pytest.mark.parametrize("name", ["commands.md", "llms.txt"])
def test_generated_pages_are_current(name: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text((DOCS / "README.md").read_text())
    tool = TOOLS / f"{name.partition('.')[0]}.py"
    subprocess.run([sys.executable, tool, tmp_path / name], check=True)
    assert (tmp_path / name).read_text() == (DOCS / name).read_text(), "run: make docs"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        name, _, anchor = target.partition("#")
        if not target.startswith("http"):
            file = page.parent / name if name else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), target


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text()
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    assert not [name for name in pages if f"]({name})" not in index]


def test_settings_are_described_as_berg_describes_them() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\| (.+) \|$", (DOCS / "setup.md").read_text(), re.M)
    shown = {key: (default.strip("`"), text) for key, default, text in rows}
    own = {each.name: (each.default, each.metadata["help"]) for each in dataclasses.fields(Config)}
    assert shown == own | {"user": ("your login", own["user"][1])}

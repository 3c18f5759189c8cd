"""What pages and messages name is there: commands, options, links, make's targets, tests; pages that are written
from the code, and the table of settings, are current.
"""

import dataclasses
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from berg.cli import cli
from berg.clients.skill import page
from berg.config import Config

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TOOLS = next(place for place in (ROOT / "tools", ROOT.parent / "tools") if place.exists())
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
FILLED = re.compile(r"\{[^{}]*\}")  # what a program fills in


def commands(text: str) -> Iterator[str]:
    """What begins with `berg` in blocks of commands and between backquotes."""
    for block in re.findall(r"^```(?:bash|sh)\n(.*?)^```", text, re.M | re.S):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            yield from parts(line)
    inline = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for line in re.findall(r"`([^`\n]+)`", inline):
        yield from parts(line)


def parts(line: str) -> Iterator[str]:
    """The commands of a line that are Berg's."""
    words = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
    words.whitespace_split, words.commenters = True, "#"
    try:
        found = [*words]
    except ValueError:
        return  # a part of a line
    at = 0
    while "berg" in found[at:]:
        at = found.index("berg", at) + 1
        end = next(
            (n for n in range(at, len(found)) if set(found[n]) <= set("|&;()<>")), len(found)
        )
        if at < 2 or not re.fullmatch(r"[a-z].*", found[at - 2]):  # not `pip install berg`
            yield shlex.join(found[at:end])


def check(words: list[str]) -> None:
    """Raise click.UsageError for a command or option that there is not."""
    command: click.Command = cli
    context = click.Context(cli, info_name="berg")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if words[0] in ("COMMAND", "…"):
            return
        found = command.get_command(context, words[0])
        if found is None:
            raise click.UsageError(f"no command {words[0]}")
        command, words = found, words[1:]
        context = click.Context(command, context, info_name=command.name, resilient_parsing=True)
        context.allow_extra_args = context.allow_interspersed_args = True
    command.make_parser(context).parse_args([word for word in words if word not in ("…", "...")])


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.stem)
def test_commands_links_and_targets_of_a_page_exist(file: Path) -> None:
    text, wrong = file.read_text(), []
    for line in commands(text):
        try:
            check(shlex.split(line))
        except click.UsageError as error:
            wrong.append(f"berg {line}: {error.format_message()}")
    for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
        if "://" not in link and not (file.parent / link).exists():
            wrong.append(f"no {link}")
    makefile = (
        next(each for each in (ROOT, ROOT.parent) if (each / "Makefile").exists()) / "Makefile"
    )
    targets = {*re.findall(r"^([a-z-]+):", makefile.read_text(), re.M)}
    named = {*re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M)}
    assert not wrong and named <= targets, (wrong, named - targets)


def test_commands_of_the_page_for_agents_exist() -> None:
    for line in commands(page(cli)):
        check(shlex.split(line))


def test_what_messages_tell_to_run_exists() -> None:
    wrong = []
    for file in sorted((ROOT / "berg").rglob("*.py")):
        text = re.sub(r'"\s*\n\s*f?"', "", file.read_text())  # a string on several lines
        for said in re.findall(r": berg ((?:[a-z{-][\w.{}\[\]-]*[ ]?)+)", text):
            words = FILLED.sub("NAME", said.rstrip(".")).split()
            if words[0] == "NAME":
                continue
            try:
                check(words)
            except click.UsageError as error:
                wrong.append(f"{file.name}: berg {said}: {error.format_message()}")
    assert not wrong


@pytest.mark.parametrize("name", ["reliability", "security"])
def test_what_fails_if_a_promise_does_not_hold_is_there(name: str) -> None:
    """In brackets: rows of the acceptance suite, in which … is a part of the name, or tests."""
    words = [sys.executable, "-m", "accept", "--list"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [re.split(r"\s{2,}", line)[0] for line in done.stdout.splitlines()]
    sources = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    tests = re.findall(r"^def (test_\w+)", sources, re.M)
    named = re.findall(r"\[((?:`[^`]+`(?:,\s+)?)+)\]", (ROOT / f"docs/{name}.md").read_text())
    found = [each for group in named for each in re.findall(r"`([^`]+)`", group)]
    assert len(found) > 10
    for each in found:
        pattern = re.escape(each).replace("…", ".*")
        assert any(re.fullmatch(pattern, row) for row in rows) or each in tests, each


@pytest.mark.parametrize("name", ["commands.md", "llms.txt"])
def test_generated_pages_are_current(name: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text((DOCS / "README.md").read_text())
    tool = TOOLS / f"{name.partition('.')[0]}.py"
    subprocess.run([sys.executable, tool, tmp_path / name], check=True)
    assert (tmp_path / name).read_text() == (DOCS / name).read_text(), "run: make docs"


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text()
    names = {file.name for file in DOCS.glob("*.md")} - {"README.md"}
    assert not [name for name in names if f"]({name})" not in index]


def test_links_to_headings_lead_somewhere() -> None:
    wrong = []
    for file in PAGES:
        for name, anchor in re.findall(r"\]\(([\w./-]*)#([^)\s]+)\)", file.read_text()):
            text = FENCE.sub("", (file.parent / name if name else file).read_text())
            headings = [each.lower() for each in re.findall(r"^#+ (.+)$", text, re.M)]
            if anchor not in [re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in headings]:
                wrong.append(f"{file.name}: {name}#{anchor}")
    assert not wrong


def test_settings_are_described_as_berg_describes_them() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\| (.+) \|$", (DOCS / "setup.md").read_text(), re.M)
    shown = {key: (default.strip("`"), text) for key, default, text in rows}
    own = {each.name: (each.default, each.metadata["help"]) for each in dataclasses.fields(Config)}
    assert shown == own | {"user": ("your login", own["user"][1])}

"""The documentation against the code: commands parse, links lead somewhere, generated text is
fresh.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from conftest import commit, git

from berg import config
from berg.cli import cli

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
COMMANDS = ROOT / "docs/commands.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "localcloud/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
FOLDERS = ("berg", "localcloud", "docs", "examples", "tests", "tools", ".ci")
SHELL = ("bash", "text")


def command_lines(text: str) -> list[str]:
    """Lines that call berg: in blocks of shell, output and help, and between backticks."""
    lines = []
    for language, block in FENCE.findall(text):
        if language in SHELL:
            lines += [
                line.strip().removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines()
            ]
    lines += re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    return [line for line in lines if re.match(r"berg [a-z-]", line)]


def words_of(line: str) -> list[str]:
    """Arguments of berg in a line, without comments and what follows a pipe or `&&`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)[1:]
    end = next((at for at, word in enumerate(words) if set(word) <= set("|&;<>()")), len(words))
    return words[:end]


def parse(words: list[str]) -> None:
    """Let click read the arguments, down to the command, without running it; raises
    click.UsageError.
    """
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        if name not in command.commands:
            raise click.UsageError(f"No such command: {name}")
        command = command.commands[name]
    if not isinstance(command, click.Group):
        try:
            command.make_context("berg", list(words))
        except click.MissingParameter:
            # else a mere mention, such as `berg kill --now`
            if any(not word.startswith("-") for word in words):
                raise


EXAMPLES = [(page, line) for page in PAGES for line in command_lines(page.read_text())]


@pytest.mark.parametrize(
    ("page", "line"), EXAMPLES, ids=[f"{page.stem}: {line}" for page, line in EXAMPLES]
)
def test_commands_that_are_shown_parse(page, line):
    parse(words_of(line))


def test_examples_are_found_and_wrong_ones_refused():
    assert len(EXAMPLES) > 40
    assert words_of('berg run -g 0 --wait "make test" && echo passed # or not') == [
        "run",
        "-g",
        "0",
        "--wait",
        "make test",
    ]
    for wrong in (
        "berg fly",
        "berg run --wings true",
        "berg kill --wings",
        "berg list --json 3",
        "berg local fly",
    ):
        with pytest.raises(click.UsageError):
            parse(words_of(wrong))


def test_the_help_of_every_command_is_shown_as_it_is(tmp_path):
    page = tmp_path / "commands.md"
    subprocess.run([sys.executable, ROOT / "tools/commands.py", page], check=True)
    assert page.read_text() == COMMANDS.read_text(), "run: make docs"
    for name in ("run", "open", "local reset"):
        assert re.search(rf"\n### berg {name}\b", page.read_text())


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_exist(page):
    text = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("https://", "http://")):
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), target
    for word in re.findall(r"`([\w./-]+/[\w./-]+)`", text):
        if word.split("/")[0] in FOLDERS:
            assert (ROOT / word).exists(), word


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    for target in re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(), re.M):
        assert target in targets, target


def test_the_packages_of_debian_are_named():
    rule = re.search(r"^\$\(VENV\)/test:.*?\n\n", (ROOT / "Makefile").read_text(), re.M | re.S)
    taken = {name for names in re.findall(r"tools/require (.*)", rule[0]) for name in names.split()}
    named = re.search(r"the Debian packages that it needs: ([^.]*)\.", README.read_text())
    assert set(named[1].split()) == taken


def lines_of(paths) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


FIVE = ("commands/jobs", "config", "job", "gce", "worker")


def test_the_readme_says_honestly_how_long_berg_is():
    text = README.read_text().partition("## Reading the code")[2].partition("\n## ")[0]
    five, rest, cloud = (int(each.replace(",", "")) for each in re.findall(r"\d+,\d+", text))
    core = [ROOT / "berg" / f"{name}.py" for name in FIVE]
    assert tuple(re.findall(r"\]\(berg/([\w/]+)\.py\)", text)[:5]) == FIVE
    real = lines_of(core)
    for said, there in (
        (five, real),
        (rest, lines_of((ROOT / "berg").rglob("*.py")) - real),
        (cloud, lines_of((ROOT / "localcloud/src").rglob("*.py"))),
    ):
        assert 0.9 < said / there < 1.1, f"the README says {said} lines; there are {there}"


def test_every_page_is_in_the_index_and_the_readme_is_short():
    index = (ROOT / "docs/README.md").read_text()
    assert [
        page.name for page in (ROOT / "docs").glob("*.md") if f"]({page.name})" not in index
    ] == ["README.md"]
    assert len(README.read_text().splitlines()) < 400


def test_every_setting_is_explained_as_berg_explains_it():
    page = (ROOT / "docs/settings.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\| (.+) \|$", page, re.M)
    assert {key: text for key, _, text in rows} == config.HELP
    for key, default, _ in rows:
        value = "your login" if key == "user" else getattr(config.Config(), key)
        value = str(value).lower() if isinstance(value, bool) else value
        assert default.strip("`") == ("null" if value is None else str(value or "")), key


def test_the_demo_s_plan_is_shown_as_berg_prints_it(berg):
    """All but the commit, its size, the bucket and the day of the prices."""
    block = next(
        block for _, block in FENCE.findall(README.read_text()) if "berg init --local" in block
    )
    (command,) = re.findall(r"^\$ (berg run .*)$", block, re.M)
    _, *words = shlex.split(command)
    repo = berg.home / "digits"
    shutil.copytree(ROOT / "examples/digits", repo)
    git(repo, "init", "-q", "-b", "main")
    commit(repo)
    planned = berg(*words, "--dry-run", "--json", cwd=repo)
    assert planned.returncode == 0, planned.stderr

    def plain(text: str) -> list[str]:
        rows = re.findall(
            r"^(?:Job|Command|Code|Install|Machine|Image|Zones|Price|Results|Limit) .*$", text, re.M
        )
        text = "\n".join(rows).replace(berg.bucket_name, "berg-local-results")
        text = re.sub(r"at [0-9a-f]{12} |[\d.]+ kB|of \d{4}-\d\d-\d\d", "", text)
        return text.splitlines()

    assert plain(block) == plain(planned.stderr)

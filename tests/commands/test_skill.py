"""The page for coding agents: valid, in step with the commands, installed without harm."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import Berg
from test_readme import command_lines, parse, words_of

from berg import __version__
from berg.cli import cli
from berg.commands import setup

ROOT = Path(__file__).parents[2]
TEXT = setup.skill_page(cli)
# Berg's commands after a `timeout`, too.
LINES = command_lines(re.sub(r"\btimeout \d+ (?=berg )", "", TEXT))


def test_the_front_matter_is_valid():
    _, front, body = TEXT.split("---\n", 2)
    about = yaml.safe_load(front)
    assert about.keys() <= {"name", "description", "compatibility", "metadata"}
    assert about["name"] == "berg" == Path(setup.SKILL_FILES[0]).parent.name
    assert 'description: "' in front and 0 < len(about["description"]) <= 1024
    assert len(about["compatibility"]) <= 500
    start = about["description"][:200]
    for word in ("Google Cloud", "GPU", "TPU", "train", "experiments", "sweep", "berg"):
        assert word in start
    assert about["metadata"]["version"] == __version__
    assert all(isinstance(value, str) for value in about["metadata"].values())
    assert body.startswith("\n# Berg\n") and len(TEXT.splitlines()) <= 120
    assert "COMMANDS" not in TEXT and "OPTIONS" not in TEXT


@pytest.mark.parametrize("line", LINES)
def test_every_command_of_the_page_parses(line):
    parse(words_of(line))


def test_the_page_has_every_command():
    assert len(LINES) > 60
    for name, command in cli.commands.items():
        assert command.hidden or f"`berg {name}" in TEXT.partition("## Commands")[2]


def test_it_is_installed_for_all_agents_and_again_without_harm(berg: Berg):
    def install(*more: str, **env: str) -> tuple[int, list[str], str]:
        done = berg("skill", "--install", "--json", *more, **env)
        rows = json.loads(done.stdout) if done.stdout else []
        return done.returncode, [row["done"] for row in rows], done.stderr

    files = [berg.repo / each for each in setup.SKILL_FILES]
    assert berg("skill").stdout == TEXT
    assert install()[:2] == (0, ["written", "written"])
    assert [file.read_text() for file in files] == [TEXT, TEXT]
    assert install()[:2] == (0, ["unchanged", "unchanged"])
    files[0].write_text("my own notes")
    code, _, printed = install(BERG_FORMAT="agent")
    assert code == 1 and f"{files[0]} was not written by berg" in printed and "-y" in printed
    assert files[0].read_text() == "my own notes"
    files[1].write_text(TEXT.replace("# Berg", "# My Berg"))
    assert install("-y")[1] == ["replaced", "replaced"]
    assert [file.read_text() for file in files] == [TEXT, TEXT]
    assert install("--user")[:2] == (0, ["written", "written"])
    assert (berg.home / setup.SKILL_FILES[1]).read_text() == TEXT


def test_an_older_page_is_named_and_replaced_without_a_question(berg: Berg):
    old = setup.SKILL_CHECKSUM.sub("", TEXT).replace(f'"{__version__}"', '"0.0.9"')
    line = f'  checksum: "{setup.checksum(old)}"\n'
    old = setup.SKILL_VERSION.sub(lambda found: found[0] + line, old)
    file = berg.repo / setup.SKILL_FILES[1]
    file.parent.mkdir(parents=True)
    file.write_text(old)
    named = berg("skill").stderr
    assert f"{file} is of berg 0.0.9" in named and "berg skill --install" in named
    done = berg("skill", "--install", BERG_FORMAT="agent")
    assert done.returncode == 0 and f"Replaced {file}, which was of berg 0.0.9" in done.stderr
    assert file.read_text() == TEXT and "0.0.9" not in berg("skill").stderr


def test_no_link_of_the_repository_leads_it_elsewhere(berg: Berg, tmp_path):
    (berg.repo / ".claude").mkdir()
    (berg.repo / ".claude/skills").symlink_to(tmp_path)
    done = berg("skill", "--install", "-y")
    assert done.returncode == 1 and "leads out of" in done.stderr
    assert not (tmp_path / "berg").exists()


def test_the_list_of_pages_is_complete(tmp_path):
    made = tmp_path / "llms.txt"
    subprocess.run([sys.executable, ROOT / "tools/llms.py", made], check=True)
    listed = (ROOT / "docs/llms.txt").read_text()
    assert made.read_text() == listed, "run: make docs"
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= set(re.findall(r"\]\(([\w.-]+\.md)\)", listed))

"""Pages of the documentation that are written from the code, or say what it says, are current."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

import berg
from berg.config import Config

TOP = Path(berg.__file__).parents[1]
DOCS = TOP / "docs"
TOOLS = next(place for place in (TOP / "tools", TOP.parent / "tools") if place.exists())
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


@pytest.mark.parametrize("name", ["commands.md", "llms.txt"])
def test_generated_pages_are_current(name: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text((DOCS / "README.md").read_text())
    tool = TOOLS / f"{name.partition('.')[0]}.py"
    subprocess.run([sys.executable, tool, tmp_path / name], check=True)
    assert (tmp_path / name).read_text() == (DOCS / name).read_text(), "run: make docs"


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text()
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    assert not [name for name in pages if f"]({name})" not in index]


def test_links_to_headings_lead_somewhere() -> None:
    wrong = []
    for page in PAGES:
        for name, anchor in re.findall(r"\]\(([\w./-]*)#([^)\s]+)\)", page.read_text()):
            text = FENCE.sub("", (page.parent / name if name else page).read_text())
            headings = [each.lower() for each in re.findall(r"^#+ (.+)$", text, re.M)]
            if anchor not in [re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in headings]:
                wrong.append(f"{page.name}: {name}#{anchor}")
    assert not wrong


def test_settings_are_described_as_berg_describes_them() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\| (.+) \|$", (DOCS / "setup.md").read_text(), re.M)
    shown = {key: (default.strip("`"), text) for key, default, text in rows}
    own = {each.name: (each.default, each.metadata["help"]) for each in dataclasses.fields(Config)}
    assert shown == own | {"user": ("your login", own["user"][1])}

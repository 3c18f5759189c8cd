"""What is installed by a name that an index knows: each name was looked at by a person.

On machines berg and its packages come from archives whose hashes the laptop wrote; pip asks an
index only where there is no archive for the machine's python, and for a py-spy that it lacks.
"""

import ast
import re
from pathlib import Path

import pytest

from berg.code import dist
from berg.config import Config
from berg.gke import cache
from berg.google import builds

ROOT = Path(__file__).parent.parent
# Names that their projects have had on the index for years.
KNOWN = {
    "click",
    "GitPython",
    "google-auth",
    "google-cloud-compute",
    "google-cloud-storage",
    "google-crc32c",
    "packaging",
    "requests",
    "tomli",
    "urllib3",
    "watchfiles",
    "websocket-client",
}
BY_NAME = {"py-spy"}  # what else machines install
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")]
PROGRAMS = [*ROOT.glob("berg/**/*.py"), *ROOT.glob("localcloud/**/*.py"), *ROOT.glob("**/*.sh")]


def test_bergs_own_requirements_are_known():
    tree = ast.parse((ROOT / "setup.py").read_text())
    found = next(
        ast.literal_eval(each.value)
        for each in ast.walk(tree)
        if isinstance(each, ast.keyword) and each.arg == "install_requires"
    )
    assert {re.match(r"[\w-]+", each)[0] for each in found} == KNOWN


def commands_of_pip(text: str) -> list[list[str]]:
    """The words of each list or call of a program that has `pip` and `install` among them."""
    found = []
    for node in ast.walk(ast.parse(text)):
        parts = getattr(node, "elts", None) or getattr(node, "args", None)
        if not isinstance(parts, list):
            continue
        words = [each.value for each in parts if isinstance(each, ast.Constant)]
        if {"pip", "install"} <= {word for word in words if isinstance(word, str)}:
            found.append([word for word in words if isinstance(word, str)])
    return found


def test_machines_install_nothing_else_by_its_name():
    paths = [*(ROOT / "berg/machine").glob("*.py"), ROOT / "berg/worker.py"]
    commands = [each for path in paths for each in commands_of_pip(path.read_text())]
    assert len(commands) == 2, "berg's wheel and py-spy; the laptop decides what the repo needs"
    words = {word for each in commands for word in each if not word.startswith("-")}
    assert words == {"pip", "install"} and dist.PY_SPY.partition("==")[0] in BY_NAME


@pytest.mark.parametrize("path", [*PAGES, *PROGRAMS], ids=lambda path: path.name)
def test_nobody_is_told_to_install_berg_by_its_name(path):
    """The index may know another berg: people install the folder or the wheel that they have."""
    told = re.findall(r"(?:pip|uv|pipx) install[^`\n]*", path.read_text(errors="replace"))
    by_name = [each for each in told if re.search(r"[\s'\"]berg(\[\w+\])?(['\"\s]|$)", each)]
    assert not [each for each in by_name if " -e " not in each], by_name


def test_images_that_berg_names_are_pinned():
    """Whoever can move a tag of theirs would run programs with a build's rights, or a cluster's."""
    steps = builds.steps("image", ["linux/amd64", "linux/arm64"], [])
    (deployment,) = (each for path, each in cache.bodies(Config(), 9).items() if "deploy" in path)
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    named = [container["image"], *(each["name"] for each in steps)]
    named += [word for each in steps for word in each["args"] if re.search(r"\w/\w+:", word)]
    assert len(named) == 6
    assert all(re.search(r"@sha256:[0-9a-f]{64}$", each) for each in named), named

"""The command that teaches coding agents to use berg: skill.

The page is skill.md next to this file. Its list of commands comes from the commands themselves.
"""

import contextlib
import hashlib
import re
from pathlib import Path
from typing import Any

import click

from berg import BergError, __version__, computer
from berg.commands.terminal import (
    Row,
    confirm,
    json_option,
    print_data,
    print_json,
    say,
    yes_option,
)

# In a repository or a home: the folder that most agents read, and the one of Claude Code.
FILES = (".agents/skills/berg/SKILL.md", ".claude/skills/berg/SKILL.md")
VERSION = re.compile(r'^  version: "(.*)"\n', re.M)
CHECKSUM = re.compile(r'^  checksum: "(.*)"\n', re.M)


@click.command()
@click.option("--install", is_flag=True, help="Write it where agents look, in this repository.")
@click.option("--user", is_flag=True, help="With --install: in your home instead.")
@yes_option
@json_option
def skill(install: bool, user: bool, yes: bool, as_json: bool) -> None:
    """Print or install the page that teaches coding agents berg.

    It is a SKILL.md: when to use berg, the loop of an experiment, what costs money, and what to do
    about mistakes. --install writes it to .agents/skills/berg and .claude/skills/berg, and asks
    before it replaces a file that berg did not write or that was changed.

    \b
    berg skill
    berg skill --install                     # in this repository; again after an update of berg
    berg skill --install --user              # for all repositories
    """
    if user and not install:
        raise click.UsageError("--user says where to install: give --install, too")
    text = page(click.get_current_context().find_root().command)
    if install:
        top = Path.home() if user else repository()
        paths = [top / each for each in FILES]
        for path in paths:
            if not user and not path.resolve().is_relative_to(top.resolve()):
                raise BergError(f"{path} is behind a link that leads out of {top}. Delete the link")
        rows = [{"name": str(path), "done": write(path, text, yes)} for path in paths]
        if as_json:
            print_json(rows)
        return
    about = {"name": "berg", "version": __version__, "text": text}
    print_data(about, text.removesuffix("\n"), as_json)
    say_outdated(text)


def repository() -> Path:
    """Return the root of the repository around this folder."""
    from berg.code import snapshot

    return snapshot.find_root(Path.cwd())


def write(path: Path, text: str, yes: bool) -> str:
    """Write the page to a file, and say so; return what was done.

    Asks before it replaces a file that berg did not write.
    """
    before = read(path)
    if before == text:
        say(f"{path} is up to date")
        return "unchanged"
    if before is not None and not is_ours(before):
        confirm(f"{path} was not written by berg, or was changed since. Replace it?", yes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()  # with the usual mode, which stays
    computer.write(path, text)
    if before is None:
        say(f"Wrote {path}")
        return "written"
    say(f"Replaced {path}, which was of berg {version_of(before)}")
    return "replaced"


def read(path: Path) -> str | None:
    """Return what is in a file, None if there is none."""
    return path.read_text(errors="replace") if path.is_file() else None


def say_outdated(text: str) -> None:
    """Name the installed pages that are not the one of this berg."""
    tops = {Path.home(): " --user"}
    with contextlib.suppress(BergError):
        tops[repository()] = ""
    for top, option in tops.items():
        for path in (top / each for each in FILES):
            there = read(path)
            if there not in (None, text):
                say(
                    f"{path} is of berg {version_of(there or '')}, not of this one, which is "
                    f"{__version__}. To replace it: berg skill --install{option}"
                )


def version_of(text: str) -> str:
    """Return the version that a page names."""
    found = VERSION.search(text)
    return found[1] if found else "unknown"


def is_ours(text: str) -> bool:
    """Return whether a page is as berg wrote it."""
    found = CHECKSUM.search(text)
    return found is not None and found[1] == checksum(CHECKSUM.sub("", text))


def checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def page(root: Any) -> str:
    """Return SKILL.md for berg's group of commands."""
    text = (Path(__file__).parent / "skill.md").read_text()
    text = text.replace("COMMANDS", commands(root)).replace("OPTIONS", options(root))
    text = text.replace('"VERSION"', f'"{__version__}"')
    line = f'  checksum: "{checksum(text)}"\n'
    return VERSION.sub(lambda found: found[0] + line, text)


def commands(root: Any) -> str:
    """Return a line for each section of the help, with its commands and their arguments."""
    lines = []
    for heading, names in root.sections.items():
        usages = ", ".join(f"`berg {usage(name, root.commands[name])}`" for name in names)
        lines.append(f"- {heading}: {usages}")
    return "\n".join(lines)


def usage(name: str, command: click.Command) -> str:
    """Return a command with its arguments; of a group the commands in it."""
    if isinstance(command, click.Group):
        return (
            f"{name} {'|'.join(each for each, sub in command.commands.items() if not sub.hidden)}"
        )
    pieces = command.collect_usage_pieces(click.Context(command))
    return " ".join([name, *(piece for piece in pieces if piece != "[OPTIONS]")])


def options(root: Any) -> str:
    """Return the options of `berg run` that its --help shows."""
    rows = [each for each in root.commands["run"].params if isinstance(each, Row)]
    usual = [each for each in rows if each.row.usual]
    return ", ".join(f"`{each.opts[-1]}`" for each in usual)


COMMANDS = (skill,)

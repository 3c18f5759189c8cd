"""The command line as a whole: help, start-up, completion."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import berg.commands
from berg import __version__, spec
from berg.cli import SECTIONS, cli
from berg.worker import main as worker


def commands(
    group: click.Group, path: tuple[str, ...]
) -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name, command in group.commands.items():
        found.append(((*path, name), command))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


FOLDER = Path(berg.commands.__file__).parent
COMMAND_MODULES = [
    f"berg.commands.{path.stem}"
    for path in sorted(FOLDER.glob("*.py"))
    if "\nCOMMANDS = " in path.read_text()
]
ALL = commands(cli, ("berg",)) + commands(worker, ("berg-worker",))


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_every_help_has_an_example_and_explains_every_option(path, command):
    text = command.get_help(click.Context(command, info_name=" ".join(path)))
    if path != ("berg-worker", "salvage"):  # which only the startup script calls
        assert " ".join(path) in text.split("\n", 1)[1]
    for parameter in command.params:
        assert isinstance(parameter, click.Argument) or parameter.help, parameter.name


def test_every_command_stands_in_one_section_of_the_help():
    shown = [name for names in SECTIONS.values() for name in names]
    assert sorted(shown) == sorted(name for name, each in cli.commands.items() if not each.hidden)
    for commands in SECTIONS.values():
        for name, (_, sentence) in commands.items():
            assert sentence == cli.commands[name].get_short_help_str(1000)


@pytest.mark.parametrize("module", COMMAND_MODULES)
def test_every_command_of_a_module_can_be_called(module):
    for command in importlib.import_module(module).COMMANDS:
        assert cli.commands[command.name] is command


def test_only_the_command_that_is_called_is_imported():
    code = """
import sys
from berg.cli import cli

cli(sys.argv[1:], standalone_mode=False)
print(*sys.modules)
"""
    for arguments, needed in (([], []), (["list"], ["jobs"])):
        command = [sys.executable, "-c", code, *arguments, "--help"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        imported = set(printed.split()).intersection(COMMAND_MODULES)
        assert imported == {f"berg.commands.{each}" for each in needed}


@pytest.mark.parametrize("columns", ["80", "100"])
@pytest.mark.parametrize("path", [("berg",), ("berg", "config"), ("berg", "local")], ids=" ".join)
def test_no_summary_is_cut_off_or_wrapped(path, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    group = dict([(("berg",), cli), *ALL])[path]
    assert isinstance(group, click.Group)
    text = group.get_help(click.Context(group, info_name=path[-1], **cli.context_settings))
    for name, command in group.commands.items():
        assert command.hidden or re.search(
            rf"^  {name} +{re.escape(command.get_short_help_str(1000))}$", text, re.M
        ), text


def test_google_s_words_about_old_pythons_are_not_shown_with_every_command():
    words = "You are using a Python version (3.10.13) past its end of life. Google will update google.auth"
    code = f"import warnings, berg; warnings.warn({words!r}, FutureWarning); warnings.warn('others', FutureWarning)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stderr
    assert "FutureWarning: others" in shown and "FutureWarning: You" not in shown


def test_version():
    result = subprocess.run(
        [sys.executable, "-m", "berg", "--version"], capture_output=True, text=True
    )
    assert result.stdout == f"berg, version {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["run", "--help"], ["list", "--help"]]
)
def test_help_imports_nothing_heavy(arguments):
    command = [sys.executable, "-X", "importtime", "-m", "berg", *arguments]
    imported = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert " click" in imported
    for name in (
        "google",
        "git",
        "aiohttp",
        "requests",
        "secrets",
        "subprocess",
        "localcloud",
        "logging",
        "concurrent",
        "getpass",
        "berg.job",
    ):
        assert not [
            line
            for line in imported.splitlines()
            if line.rpartition("|")[2].strip().split(".")[0] == name
        ]
        assert f" {name}\n" not in imported


def test_names_complete_in_the_shell_without_the_network(tmp_path):
    (tmp_path / "names").write_text(
        "digits-1\ndigits-2 live\nother\ngrid live sweep 12\nold sweep 2\n"
    )
    (tmp_path / "zones").write_text("us-central1-a\nus-east1-b\n")
    (tmp_path / "berg.json").write_text('{"zones": ["us-central1-f"]}')

    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        environment = {
            **os.environ,
            "BERG_HOME": str(tmp_path),
            "_BERG_COMPLETE": "bash_complete",
            **words,
        }
        program = str(Path(sys.executable).with_name("berg"))
        result = subprocess.run([program], env=environment, capture_output=True, text=True)
        assert result.stderr == ""
        return [word.removeprefix("plain,") for word in result.stdout.split()]

    assert completed("berg tail dig") == ["digits-1", "digits-2"]
    assert completed("berg ssh ") == ["digits-2", "grid"], "nobody logs in to what is gone"
    assert completed("berg log grid/1") == ["grid/1", "grid/10", "grid/11"]
    assert completed("berg show old/") == ["old/0", "old/1"]
    assert completed("berg run --resume o") == ["other", "old"], "a job that is over goes on, too"
    assert completed("berg run -t a100") == ["a100", "a100-80gb"]
    assert completed("berg run -t g") == [], "GB200s come from reservations only"
    assert completed("berg devbox --zone us-c") == ["us-central1-a", "us-central1-f"]
    assert completed("berg config set zo") == ["zones"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["nonsense"],
        ["list", "--nonsense"],
        ["kill"],
        ["kill", "a", "--all"],
        ["run", "x", "-g", "many"],
    ],
)
def test_wrong_usage_exits_with_2_and_says_how_it_goes(arguments, tmp_path):
    environment = {**os.environ, "BERG_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "berg", *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 2
    assert "Usage:" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colors_are_for_terminals_that_want_them(tmp_path, no_color):
    ours, theirs = os.openpty()
    env = {
        **os.environ,
        "BERG_HOME": str(tmp_path),
        "HOME": str(tmp_path),
        "TERM": "xterm",
        "NO_COLOR": no_color,
    }
    command = [sys.executable, "-m", "berg", "doctor"]
    subprocess.run(
        command, stdout=theirs, stderr=subprocess.DEVNULL, env=env, timeout=60, check=False
    )
    os.close(theirs)
    seen = os.read(ours, 4096)
    os.close(ours)
    assert b"settings" in seen and (b"\x1b[" in seen) == (not no_color), seen


def test_nothing_is_collected_when_a_command_ends():
    """After a submit that would take python a third of a second."""
    code = """
import atexit, gc, sys
atexit.register(lambda: print("frozen:", gc.get_freeze_count() > 1000))
sys.argv = ["berg", "--version"]
from berg import cli
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "frozen: True" in done.stdout


@pytest.mark.parametrize("name", ["run", "devbox", "rerun"])
def test_help_has_the_usual_options_in_groups_and_help_all_has_all(berg, name):
    short, whole = berg(name, "--help", COLUMNS="80"), berg(name, "--help-all", COLUMNS="80")
    lines = short.stdout.splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 80
    assert {each + ":" for each in spec.GROUPS[:4]} <= {*lines}
    flags = {flag for each in cli.commands[name].params for flag in each.opts if "--" in flag}
    shown = {*re.findall(r"--[a-z-]+", whole.stdout)}
    assert flags <= shown and whole.returncode == 0
    usual = {row.flags[-1] for row in spec.rows(spec.JobSpec).values() if row.usual}
    assert (flags & usual) <= {*re.findall(r"--[a-z-]+", short.stdout)}
    assert "--note" not in short.stdout and "--help-all" in short.stdout


def test_every_option_that_a_row_names_has_a_row():
    known = spec.rows(spec.JobSpec)
    there = known.keys() | spec.rows(spec.RunOptions)
    for row in known.values():
        assert there >= {*row.excludes, *row.needs, *row.replaces}, row.flag
        assert bool(row.excludes) == bool(row.why), row.flag


def test_ctrl_c_counts_also_where_python_cannot_raise():
    program = """
import os, signal, time
from berg import cli

class Leaving:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

cli.cli.main = lambda **options: (Leaving() and None, time.sleep(60))
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "berg: interrupted\n")

"""What is shown fits a terminal of 80 columns, breaks between words, and is plain text in a pipe;
errors come once.
"""

import fcntl
import os
import struct
import subprocess
import sys
import termios

import click
import pytest
from conftest import wait_for

from berg import COMMANDS, wrapped
from berg.commands.terminal import table

COMMAND = "python train.py --learning-rate=0.001 --batch-size=256 --logdir=/root/berg_results/sweep1/bs_256 ; exit 3"


@pytest.fixture
def failed(berg) -> str:
    """A job on two machines with a long name, which failed with a long command."""
    name = "a-rather-long-name-as-people-give-them"
    ran = berg("run", "-g", "0", "-m", "2", "-n", name, "--wait", COMMAND)
    assert ran.returncode == 3, ran.stderr
    assert ran.stderr.count("the command failed with exit code 3") == 1, ran.stderr
    # else what is shown changes
    wait_for(lambda: not berg.machines(), what="the end of the machines")
    return name


def fits(shown: str) -> None:
    for line in shown.splitlines():
        # a command is to be copied
        is_whole = " " not in line.strip() or line.lstrip().startswith(COMMANDS)
        assert len(line) <= 80 or is_whole, f"{len(line)} columns: {line}"


def words(shown: str) -> str:
    return " ".join(shown.split())


@pytest.mark.slow
def test_what_is_shown_of_jobs_breaks_between_words(berg, failed):
    for arguments in (
        ("show", failed),
        ("show", "no-job-has-this-name-and-so-there-is-an-error-that-is-longer-than-a-line"),
        ("doctor",),
        ("gpus",),
        ("gpus", "--all"),
        ("config", "show"),
        ("kill", "no-job-has-this-name-and-so-there-is-an-error-that-is-longer-than-a-line"),
        (
            "run",
            "--wait",
            "--nonsense-that-click-has-a-word-about",
            "--and-more-of-it=that-is-long",
            "python train.py",
        ),
        ("fetch", failed),
        (
            "log",
            failed,
            "--machine",
            "such-a-machine-is-not-among-those-of-the-job-whose-log-it-is",
        ),
    ):
        wide, narrow = berg(*arguments), berg(*arguments, COLUMNS="80")
        fits(narrow.stdout + narrow.stderr)
        assert wide.returncode == narrow.returncode
        if arguments[0] != "fetch":  # the second one brings nothing new
            assert words(wide.stdout + wide.stderr) == words(narrow.stdout + narrow.stderr), (
                arguments
            )
        assert "\x1b" not in wide.stdout + wide.stderr + narrow.stdout + narrow.stderr


@pytest.mark.slow
def test_a_list_that_does_not_fit_has_names_on_lines_of_their_own(berg, failed):
    wide, narrow = berg("list", "-a").stdout, berg("list", "-a", COLUMNS="80").stdout
    fits(narrow)
    assert failed in narrow.splitlines() and "the command failed with exit code 3" in narrow
    assert any(line.startswith(f"{failed}  tester  FAILED") for line in wide.splitlines()), (
        "a pipe has no end"
    )
    assert "\x1b" not in wide + narrow


def test_plans_and_sweeps_fit(berg):
    for i in range(3):
        (
            berg.repo
            / f"a file with a name of some length, number {i}, which nobody added so far.txt"
        ).write_text("x")
    options = ("--dry-run", "--json", "--spot", "--zone", "us-central1-a", "--env", "A=1")
    wide, narrow = (
        berg("run", "-n", "one", *options, COMMAND, COLUMNS=columns).stderr
        for columns in ("", "80")
    )
    fits(narrow)
    assert words(wide) == words(narrow) and f"Command   {COMMAND}\n" in wide
    grid = (
        "--grid",
        "lr=0.1,0.01",
        "--grid",
        "dataset=one-with-a-long-name,another-one-with-a-longer-name",
    )
    command = "python train.py --lr={lr} --d={dataset} --logdir=/root/berg_results/sweep1/lr_{lr}_{dataset}"
    swept = berg("run", "--dry-run", "--json", *grid, command, COLUMNS="80").stderr
    fits(swept)
    assert "4 jobs on 4 machines" in swept and "\x1b" not in wide + narrow + swept


def test_tpus_fit_and_name_zones_once(berg):
    narrow = berg("gpus", "--tpu", COLUMNS="80").stdout
    fits(narrow)
    assert narrow.count("southamerica-west1-a") == 1 and narrow.count("as above") > 10
    assert "as above" not in berg("gpus", "--tpu").stdout


def test_a_terminal_says_itself_how_wide_it_is(berg):
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    command = [sys.executable, "-m", "berg", "show", "no-job-has-this-name"]
    environment = berg.environment(NO_COLOR="1")
    subprocess.run(command, stdout=theirs, stderr=theirs, env=environment, timeout=60, check=False)
    os.close(theirs)
    seen = os.read(ours, 4096).decode()
    os.close(ours)
    assert "there is no job" in seen and max(map(len, seen.split("\r\n"))) <= 50, seen
    assert "\x1b" not in seen, "NO_COLOR holds for errors, too"


@pytest.mark.slow
def test_why_there_is_no_room_is_said_once(berg, cloud):
    cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a", "left": 0})
    try:
        here = berg("run", "-t", "t4", "-n", "here", "--zone", "us-central1-a", "true")
        there = berg(
            "run",
            "-t",
            "t4",
            "-n",
            "there",
            "--zone",
            "us-central1-a",
            "--zone",
            "us-central1-b",
            "true",
        )
    finally:
        cloud.call("POST", "/_berg/stockout", {"on": False})
    assert here.returncode == 1 and here.stderr.count("us-central1-a: out of stock") == 1, (
        here.stderr
    )
    assert there.returncode == 0 and there.stderr.count("us-central1-a: out of stock") == 1, (
        there.stderr
    )


@pytest.mark.parametrize("width", range(40, 100, 3))
def test_a_line_does_not_break_inside_of_a_quoted_command(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    hint = 'There is no repo here. Go to one and type: berg run "python train.py", or `berg list`.'
    shown = wrapped(hint, sys.stdout)
    assert '"python train.py"' in shown and "`berg list`" in shown and words(shown) == hint
    assert max(map(len, shown.splitlines())) <= width


def test_a_table_cuts_no_name_and_what_fits_stays_whole(monkeypatch):
    states = "12 RUNNING, 3 SUBMITTED, 100 SUCCEEDED"
    rows = [
        ["NAME", "STATE", "WHY"],
        ["a" * 30, f"{states}, 2 FAILED", "out of stock in all zones"],
    ]
    shown = {}
    for width in ("", "100", "60"):
        monkeypatch.setenv("COLUMNS", width)
        shown[width] = click.unstyle(table(rows)).splitlines()
    assert shown[""][1].endswith(f"{states}, 2 FAILED  out of stock in all zones"), (
        "a pipe has no end"
    )
    assert (
        shown["100"][1].endswith("2 FAILED  out of stock in")
        and words(shown["100"][2]) == "all zones"
    )
    assert shown["60"][2] == "a" * 30 and shown["60"][3].startswith(f"  {states}")
    assert max(map(len, shown["60"])) <= 60

"""What coding agents and other programs get: plain rows, JSON, errors instead of questions."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest
from conftest import Berg

from berg import job, plain


def in_terminal(berg: Berg, *arguments: str, **env: str) -> tuple[int, str]:
    """Run berg in a terminal of 40 columns; return the exit code, and all that it printed."""
    ours, theirs = pty.openpty()
    environment = berg.environment(COLUMNS="40", **env)
    process = subprocess.Popen(
        [sys.executable, "-m", "berg", *arguments],
        cwd=berg.repo,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, b"\4")  # end of input, for a question that is asked by mistake
    printed = b""
    while True:
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        printed += chunk
    os.close(ours)
    return process.wait(60), printed.decode().replace("\r\n", "\n")


def finish(berg: Berg, name: str) -> None:
    """Put a finished job into the bucket."""
    summary = job.Summary("tester", "2026-11-24T04:00:23Z", "true", results_dir=f"results/{name}")
    text = job.State("FAILED", 3, reason="it failed", job=summary).to_json()
    berg.bucket.write(f".berg/jobs/{name}_state.json", text, metadata={"state": text})


LONG = "a-name-that-is-much-longer-than-the-terminal-is-wide"


def test_an_agent_in_a_terminal_gets_rows_with_tabs_and_a_person_a_table(berg):
    finish(berg, LONG)
    code, printed = in_terminal(berg, "list", CLAUDECODE="1")
    header, row = (line.split("\t") for line in printed.splitlines())
    assert code == 0 and "\x1b" not in printed and "…" not in printed
    found = dict(zip(header, row, strict=True))
    assert (found["NAME"], found["STATE"], found["EXIT"]) == (LONG, "FAILED", "3")
    assert (found["CREATED"], found["NOTES"]) == ("2026-11-24T04:00:23Z", "it failed")
    for arguments, env in ((["--format", "human"], {}), ([], {"BERG_FORMAT": "human"})):
        shown = in_terminal(berg, *arguments, "list", CLAUDECODE="1", **env)[1]
        assert "\x1b[31m" in shown and "\t" not in shown
    assert in_terminal(berg, "--format", "agent", "list")[1] == printed
    assert berg("list", BERG_FORMAT="agent").stdout == printed
    wrong = berg("list", BERG_FORMAT="fancy")
    assert wrong.returncode == 2 and "'human', 'agent'" in wrong.stderr


@pytest.mark.parametrize("variable", plain.AGENTS)
def test_every_agent_is_known_by_its_variable(variable, monkeypatch):
    assert not plain.for_program()
    monkeypatch.setenv(variable, "1")
    assert plain.for_program()
    monkeypatch.setenv("BERG_FORMAT", "human")
    assert not plain.for_program()


def test_a_question_to_an_agent_fails_at_once_with_the_option_that_answers_it(berg):
    finish(berg, "old")
    code, printed = in_terminal(berg, "rm", "old", AI_AGENT="some-agent_1")
    assert code == 1 and "Delete it permanently? To answer it beforehand: -y" in printed
    assert ".berg/jobs/old_state.json" in berg.objects()
    settings = berg.cloud.settings()
    (berg.home / "berg.json").unlink()
    known = {"BERG_ENDPOINT": settings.endpoint, "BERG_CREDENTIALS_FILE": settings.credentials_file}
    code, printed = in_terminal(berg, "init", GEMINI_CLI="1", **known)
    assert code == 1 and "To answer it beforehand: --project, or -y for" in printed


def test_errors_are_json_if_json_was_asked_for(berg):
    for arguments, code in (
        (["show", "nothing", "--json"], 1),
        (["list", "--wings", "--json"], 2),
        (["fly", "--json"], 2),
        (["config", "set", "budget", "much", "--json"], 1),
    ):
        done = berg(*arguments)
        error = json.loads(done.stderr.splitlines()[-1])
        assert (done.returncode, error["exit_code"]) == (code, code), done.stderr
        assert error["error"] and not error["error"].startswith("berg:")
    plain = berg("run", "--dry-run", "-t", "nonsense", "--", "train", "--json")
    assert plain.returncode == 1 and plain.stderr.splitlines()[-1].startswith("berg: ")


def test_what_changes_something_answers_in_json(berg):
    for name in ("one", "two"):
        finish(berg, name)
    ended = berg("kill", "one", "nothing", "--json")
    rows = {row["name"]: row for row in json.loads(ended.stdout)}
    assert ended.returncode == 1 and "no job or machine" in rows["nothing"]["error"]
    assert rows["one"]["done"] == "ended" and rows["one"]["became"]
    deleted = json.loads(berg("rm", "one", "two", "-y", "--json").stdout)
    assert [(row["name"], row["done"]) for row in deleted] == [
        ("one", "deleted"),
        ("two", "deleted"),
    ]
    assert not [name for name in berg.objects(".berg/jobs/") if re.search("one|two", name)]
    changed = berg("config", "set", "budget", "40", "--json")
    (row,) = json.loads(changed.stdout)
    assert row == {"name": "budget", "done": "set", "value": 40} and not changed.stderr
    assert json.loads(berg("config", "get", "budget", "--json").stdout)["value"] == 40


def test_a_plan_says_in_json_what_it_costs(berg):
    planned = berg("run", "--dry-run", "--json", "--max-hours", "2h", "-g", "0", "true")
    plan = json.loads(planned.stdout)
    assert plan["name"] and plan["results"].startswith(f"gs://{berg.bucket_name}/")
    assert plan["max_run_seconds"] == 7200 and plan["usd_per_hour"] > 0
    assert plan["usd_at_most"] == pytest.approx(2 * plan["usd_per_hour"])
    of_two = berg("run", "--dry-run", "--json", "--max-hours", "2h", "-g", "0", "--grid", "a=1,2")
    assert of_two.returncode == 2  # it has no command
    swept = ("--grid", "a=1,2", "--parallel", "1", "true {a}")
    both = json.loads(
        berg("run", "--dry-run", "--json", "--max-hours", "2h", "-g", "0", *swept).stdout
    )
    assert both["usd_per_hour"] == plan["usd_per_hour"]
    assert both["usd_at_most"] == pytest.approx(2 * plan["usd_at_most"])

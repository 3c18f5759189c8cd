"""The JSON that commands print: one shape, as docs/json.md tells it."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import Berg

from berg import job
from berg.cli import cli

PAGE = Path(__file__).parents[2] / "docs/json.md"
MOMENT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)?")


def keys_of_page() -> dict[str, tuple[str, set[str]]]:
    """Return the commands of the page, each with the kind and the keys of its JSON."""
    rows = re.findall(r"^- (`berg .+?`) \((\w+)\): (.*)$", PAGE.read_text(), re.M)
    found = {}
    for commands, kind, text in rows:
        always = re.split(r"; (?:with|of a)|: as", text)[0]
        for command in re.findall(r"`(berg [^`]+)`", commands):
            found[command] = kind, set(re.findall(r"`(\w+)`", always))
    return found


def with_json(group: click.Group, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from with_json(command, f"{path} {name}")
        elif any("--json" in each.opts for each in command.params):
            yield f"{path} {name}"


def test_every_command_that_has_json_stands_on_the_page():
    known = {re.sub(r"( [A-Z]+)?( --.*)?$", "", command) for command in keys_of_page()}
    assert sorted(known) == sorted(with_json(cli, "berg"))


def check_moments(value: Any, key: str = "") -> None:
    """Check that every moment is in berg's one format."""
    if isinstance(value, dict):
        for name, each in value.items():
            check_moments(each, name)
    elif isinstance(value, list):
        for each in value:
            check_moments(each, key)
    elif key.endswith("_at") or key == "updated":
        assert MOMENT.fullmatch(value), (key, value)


def over(berg: Berg, name: str, **details: Any) -> None:
    """Put a job that is over into the bucket, with a metric."""
    summary = job.Summary("tester", job.now(), "true", results_dir=f"results/{name}", **details)
    text = job.State("FAILED", 3, started_at=job.now(), job=summary).to_json()
    berg.bucket.write(f".berg/jobs/{name}_state.json", text, metadata={"state": text})
    berg.bucket.write(f"berg_results/results/{name}/metrics.jsonl", '{"state": 1, "loss": 0.5}\n')


@pytest.mark.slow
def test_what_commands_print_is_as_the_page_says(berg, tmp_path):
    over(berg, "alone")
    over(berg, "grid-0", sweep="grid", params={"state": "x", "name": "y"})
    berg.bucket.write(".berg/sweeps/grid.json", json.dumps({"jobs": ["grid-0"]}))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/one").write_text("1")
    commands = {
        "berg list": ["list", "--json"],
        "berg show": ["show", "alone", "--json"],
        "berg show SWEEP": ["show", "grid", "--json"],
        "berg wait": ["wait", "alone", "--json"],
        "berg fetch": ["fetch", "grid", str(tmp_path / "there"), "--json"],
        "berg data push": ["data", "push", str(tmp_path / "data"), "set", "--json"],
        "berg data pull": ["data", "pull", "set", str(tmp_path / "pulled"), "--json"],
        "berg data ls": ["data", "ls", "--json"],
        "berg data ls DATA": ["data", "ls", "set", "--json"],
        "berg gpus": ["gpus", "--json"],
        "berg gpus --tpu": ["gpus", "--tpu", "--json"],
        "berg config show": ["config", "show", "--json"],
        "berg doctor": ["doctor", "--json"],
        "berg dashboard": ["dashboard", "--json"],
    }
    page = keys_of_page()
    for command, arguments in commands.items():
        printed = json.loads(berg(*arguments).stdout)
        kind, keys = page[command]
        rows = printed if kind == "rows" else [printed]
        assert isinstance(rows, list) and rows, command
        assert all(keys <= row.keys() for row in rows), (command, keys, rows[0])
        if command != "berg dashboard":  # which is Google's
            check_moments(printed)
    (row,) = json.loads(berg("show", "grid", "--json").stdout)
    assert row == {
        "name": "grid-0",
        "state": "FAILED",
        "exit_code": 3,
        "params": {"state": "x", "name": "y"},
        "metrics": {"state": 1, "loss": 0.5},
        "reason": "",
    }
    (line,) = csv.DictReader((tmp_path / "there/results.csv").open())
    assert (line["name"], line["state"], line["exit_code"]) == ("grid-0", "FAILED", "3")
    assert (line["param.state"], line["param.name"], line["metric.state"]) == ("x", "y", "1")
    shown = berg("show", "grid").stdout
    assert "1 FAILED" in shown and re.search(r"^grid-0 +FAILED +3 +x +y +1 +0.5$", shown, re.M)


@pytest.mark.slow
def test_a_sweep_that_is_waited_for_ends_with_its_states(berg):
    started = berg("run", "-g", "0", "-n", "two", "--grid", "state=0,4", "--json", "exit {state}")
    about = json.loads(started.stdout)
    assert (about["name"], about["num_jobs"]) == ("two", 2), started.stderr
    assert about["usd_at_most"] == pytest.approx(
        2 * about["usd_per_hour"] * about["max_run_seconds"] / 3600
    )
    assert berg("wait", "two").returncode == 4
    again = berg("run", "--resume", "two", "--wait", "--json")
    ended = json.loads(again.stdout)
    assert (ended["name"], ended["num_jobs"], again.returncode) == ("two", 1, 4)
    found = [(each["state"], each["exit_code"], each["params"]) for each in ended["jobs"]]
    assert found == [("SUCCEEDED", 0, {"state": "0"}), ("FAILED", 4, {"state": "4"})]

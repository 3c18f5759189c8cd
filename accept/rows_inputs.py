"""Sixty wrong inputs: each is refused with the right exit code and one sentence that names the
thing, and nothing comes of it.
"""

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accept.suite import Red, check, row
from accept.world import Trial

USAGE, ERROR, EITHER = {2}, {1}, {1, 2}
Input = tuple[list[str], set[int], str] | tuple[list[str], set[int], str, dict[str, Any]]
GO = ["run", "-g", "0"]


def jobs(t: Trial) -> set[str]:
    return {name for name in t.cloud.objects(".berg/jobs/") if t.prefix in name}


def refuses(t: Trial, table: Sequence[Input]) -> None:
    """Try all inputs of a table, and report every one that is not refused as it should be."""
    before, faults = jobs(t), []
    for words, codes, says, *rest in table:
        try:
            t.refused(*words, codes=codes, says=says, timeout=200, **(rest[0] if rest else {}))
        except Red as error:
            faults.append(str(error))
    if made := [*(jobs(t) - before), *(each["name"] for each in t.machines())]:
        faults.append(f"created {sorted(made)}")
    check(not faults, "; ".join(faults))


def settings(t: Trial, name: str, **changes: Any) -> dict[str, str]:
    """A BERG_HOME with the trial's settings and these changes."""
    home = folder(t, name)
    given = json.loads((t.laptop.home / ".berg/berg.json").read_text())
    (home / "berg.json").write_text(json.dumps({**given, **changes}))
    return {"BERG_HOME": str(home)}


def folder(t: Trial, name: str) -> Path:
    made = t.folder / t.prefix / name
    made.mkdir()
    return made


@row("story", "wrong names and empty commands are refused", is_real=True)
def wrong_names(t: Trial) -> None:
    mine = [*GO, "-n", t.name()]
    refuses(
        t,
        [
            ([*GO, "-n", "UPPER case", "true"], EITHER, "name"),
            ([*GO, "-n", "a" * 80, "true"], EITHER, "name|long|character"),
            ([*GO, "-n", "-x-", "true"], EITHER, "name"),
            ([*GO, "-n", "../x", "true"], EITHER, "name"),
            ([*mine, ""], EITHER, "command|CMD"),
            ([*mine, "   "], EITHER, "command|CMD"),
            (["run", "-g", "0"], EITHER, "command|CMD"),
            ([*mine, "-r", "../outside", "true"], EITHER, r"results|\.\."),
            ([*mine, "--cwd", "nowhere", "true"], EITHER, "nowhere"),
            ([*mine, "--no-such-option", "true"], USAGE, "no-such-option"),
            (["frobnicate"], USAGE, "frobnicate"),
        ],
    )


@row("story", "folders that are no repository with a commit are refused; no branch is fine")
def wrong_repositories(t: Trial) -> None:
    bare, empty, outside = folder(t, "bare"), folder(t, "empty"), folder(t, "outside")
    t.git("init", "-q", "--bare", cwd=bare)
    t.git("init", "-q", cwd=empty)
    go = [*GO, "-n", t.name(), "true"]
    above = {"GIT_CEILING_DIRECTORIES": str(t.folder / t.prefix)}
    wrong = [*GO, "-n", t.name(), "--branch", "no-such-branch", "true"]
    refuses(
        t,
        [
            (go, ERROR, "git|repo", {"cwd": outside, **above}),
            (go, ERROR, "bare|repo|working tree", {"cwd": bare, **above}),
            (go, ERROR, "commit", {"cwd": empty}),
            (wrong, EITHER, "no-such-branch"),
            ([*GO, "-n", t.name(), "--commit", "0123abcd", "true"], EITHER, "0123abcd"),
        ],
    )
    t.git("checkout", "-q", "--detach")
    t.ok(*GO, "-n", t.name(), "--dry-run", "true")


@row("story", "GPUs, zones, regions, machine types and images that do not exist are refused")
def wrong_machines(t: Trial) -> None:
    run = ["run", "-n", t.name()]
    refuses(
        t,
        [
            ([*run, "-t", "rtx9090", "true"], EITHER, "rtx9090"),
            ([*run, "-g", "7", "-t", "a100", "true"], EITHER, "7|a100"),
            ([*run, "--zone", "mars-west1-a", "true"], EITHER, "mars-west1-a"),
            ([*run, "--region", "mars-west1", "true"], EITHER, "mars-west1"),
            ([*run, "-g", "0", "--machine-type", "z9-mega-1", "true"], EITHER, "z9-mega-1"),
            ([*run, "-g", "0", "--image", "no-such-image", "true"], EITHER, "no-such-image"),
            ([*run, "--tpu", "v99-1", "true"], EITHER, "v99"),
            ([*run, "--cluster", t.name("none"), "true"], EITHER, t.name("none")),
            ([*run, "--on", t.name("none"), "true"], EITHER, t.name("none")),
            ([*run, "--docker", "Bad Image", "true"], EITHER, "image|docker"),
        ],
    )


@row("story", "numbers and durations that are none, or make no sense, are refused")
def wrong_numbers(t: Trial) -> None:
    run = [*GO, "-n", t.name()]
    refuses(
        t,
        [
            (["run", "-g", "-1", "true"], EITHER, "-1|gpu"),
            (["run", "-g", "many", "true"], USAGE, "many"),
            ([*run, "-m", "0", "true"], EITHER, "machines|-m"),
            ([*run, "-m", "-3", "true"], EITHER, "machines|-m"),
            ([*run, "-c", "-4", "true"], EITHER, "cpu|-c"),
            ([*run, "--disk-gb", "-5", "true"], EITHER, "disk"),
            ([*run, "--disk-gb", "1", "true"], EITHER, "disk|GB"),
            ([*run, "--max-hours", "0", "true"], EITHER, "max-hours"),
            ([*run, "--max-hours", "-2", "true"], EITHER, "max-hours"),
            ([*run, "--max-hours", "soon", "true"], EITHER, "soon"),
            ([*run, "--keep-failed", "a while", "true"], EITHER, "a while|keep-failed"),
            ([*run, "--max-cost", "-1", "true"], EITHER, "cost"),
            (["list", "--limit", "-1"], EITHER, "limit"),
        ],
    )


@row("story", "variables, secrets, data and files that are not there are refused")
def wrong_files(t: Trial) -> None:
    run, none = [*GO, "-n", t.name()], t.name("none")
    (bad := t.repo / "bad.env").write_text("no equals sign\n")
    refuses(
        t,
        [
            ([*run, "--env", "NOT_SET_HERE", "true"], EITHER, "NOT_SET_HERE"),
            ([*run, "--env", "1BAD NAME=x", "true"], EITHER, "1BAD NAME"),
            ([*run, "--env", "BERG_JOB=x", "true"], EITHER, "BERG_"),
            ([*run, "--env-file", "/no/such/file", "true"], EITHER, "/no/such/file"),
            ([*run, "--env-file", str(bad), "true"], EITHER, r"bad\.env|line 1|no equals"),
            ([*run, "--secret", "TOKEN=/no/such/file", "true"], EITHER, "/no/such/file"),
            ([*run, "--secret", "NOT_SET_HERE", "true"], EITHER, "NOT_SET_HERE"),
            ([*run, "--secret", f"TOKEN={t.repo}", "true"], EITHER, "TOKEN|directory|folder|file"),
            ([*run, "--data", none, "true"], EITHER, none),
            (["data", "push", "/no/such/folder", none], EITHER, "/no/such/folder"),
            (["data", "push", str(t.repo), "Bad Name"], EITHER, "Bad Name|name"),
            (["data", "pull", none, str(t.repo / "there")], EITHER, none),
            (["data", "rm", none, "-y"], EITHER, none),
        ],
    )


@row("story", "sweeps of wrong syntax, or without a column, are refused")
def wrong_sweeps(t: Trial) -> None:
    run = [*GO, "-n", t.name()]
    files = {"one.csv": "lr\n0.1\n", "none.csv": "lr\n", "bad.jsonl": '{"lr": 1}\n{oops\n'}
    for name, text in files.items():
        (t.repo / name).write_text(text)
    refuses(
        t,
        [
            ([*run, "--grid", "lr", "x {lr}"], EITHER, "lr|grid"),
            ([*run, "--grid", "lr=", "x {lr}"], EITHER, "lr|grid"),
            ([*run, "--grid", "=1,2", "x"], EITHER, "grid|name"),
            ([*run, "--grid", "lr=1,2", "x without it"], EITHER, "lr"),
            ([*run, "--tasks", "no.csv", "x {lr}"], EITHER, r"no\.csv"),
            ([*run, "--tasks", "one.csv", "x {lr} {bs}"], EITHER, "bs"),
            ([*run, "--tasks", "none.csv", "x {lr}"], EITHER, r"none\.csv|row|empty"),
            ([*run, "--tasks", "bad.jsonl", "x {lr}"], EITHER, r"bad\.jsonl|line 2"),
            ([*run, "--grid", "lr=1,2", "--parallel", "0", "x {lr}"], EITHER, "parallel"),
        ],
    )


@row("story", "names of jobs that do not exist are refused by each command", is_real=True, usd=0.02)
def wrong_jobs(t: Trial) -> None:
    none, file = t.name("none"), t.repo / "train.py"
    mine = file.read_text()
    job = t.ran("true")
    commands = ["log", "show", "fetch", "kill", "ssh", "rm", "wait", "rerun", "tail", "stop"]
    commands += ["start", "sync", "run --resume", "rerun --new-code", "kill -y --now"]
    more: list[Input] = [
        (["kill"], EITHER, "name|--all"),
        (["rm"], EITHER, "name"),
        (["wait"], EITHER, "name"),
        (["show", "Bad/../Name"], EITHER, "Bad|name|no job"),
        (["fetch", job, str(file)], EITHER, "file"),
        (["run", "--resume", job], EITHER, f"{job}|succeeded|finished"),
        (["run", "--resume", job, "-n", none, "true"], EITHER, "resume|name|-n"),
        (["ssh", job, "--", "true"], ERROR, f"{job}|machine"),
        ([*GO, "-n", job, "true"], EITHER, job),
    ]
    refuses(t, [([*words.split(), none], ERROR, none) for words in commands] + more)
    check(file.read_text() == mine, "fetch to a file replaced it")


@row("story", "settings that are damaged, empty, unreadable or wrong are refused", minutes=8)
def wrong_settings(t: Trial) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    mine = [*GO, "-n", t.name(), "true"]
    texts = {"damaged": '{"project": "x", ', "empty": "", "list": "[1, 2]"}
    for word, text in texts.items():
        (folder(t, word) / "berg.json").write_text(text)
    (folder(t, "unreadable") / "berg.json").mkdir()
    homes = [{"BERG_HOME": str(t.repo.with_name(word))} for word in [*texts, "unreadable"]]
    file = t.repo / "train.py"
    dead = settings(t, "dead", endpoint=f"http://127.0.0.1:{port}")
    nobody = settings(t, "nobody", credentials_file="/no/such/credentials.json")
    refuses(
        t,
        [
            *[(mine, ERROR, r"berg\.json|berg init", home) for home in homes],
            (mine, ERROR, r"train\.py", {"BERG_HOME": str(file)}),
            (mine, ERROR, "berg init", {"BERG_HOME": str(folder(t, "new"))}),
            (["list"], ERROR, f"127.0.0.1|{port}|reach|connect", dead),
            (mine, ERROR, "credentials", nobody),
            (mine, ERROR, "no-such-bucket", settings(t, "wrong", bucket="no-such-bucket-x")),
            (mine, ERROR, "Bad_Bucket", settings(t, "bad", bucket="Bad_Bucket!")),
            (["list"], ERROR, "BERG_SSH_PORT|ssh_port", {"BERG_SSH_PORT": "many"}),
        ],
    )


@row("story", "a setting is checked when it is set", is_real=True)
def wrong_values(t: Trial) -> None:
    home = settings(t, "home")
    values = {"ssh_port": "many", "region": "Mars!", "zones": "us central", "gpus": "-1"}
    values |= {"max_cost": "cheap", "bucket": "Bad_Bucket!", "no_such_key": "1"}
    table: list[Input] = [
        (["config", "set", key, value], EITHER, f"{key}|{value}", home)
        for key, value in values.items()
    ]
    more: list[Input] = [
        (["config", "get", "no_such_key"], EITHER, "no_such_key", home),
        (["config", "unset", "no_such_key"], EITHER, "no_such_key", home),
        (["config", "set", "region"], USAGE, "value|missing", home),
    ]
    refuses(t, table + more)
    shown = t.ok("config", "show", "--json", **home).json
    check(shown["bucket"] == t.cloud.bucket, "a refused config set changed the settings")

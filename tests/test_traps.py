"""Every command, started in a folder full of traps: programs of that folder that it must not run.

A repo that was cloned, an archive that was unpacked and results that were fetched can have such
files. The commands are those of the register: a new one fails here until it says how to start it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from conftest import Berg, wait_for
from traps import Traps, run

from berg import BergError, computer, job
from berg.cli import cli
from berg.code import dist, git, snapshot
from berg.gke import place
from berg.laptop import sync
from berg.spec import JobSpec

BERG = Path(sys.executable).with_name("berg")
# How each command is started, so that it goes as far as it can without a machine.
ARGUMENTS = {
    "run": ["-g", "0", "--dry-run", "--json", "true"],
    "list": ["-a"],
    "show": ["done"],
    "rerun": ["done", "--dry-run", "--json"],
    "diff": ["done", "other"],
    "kill": ["-y", "nosuch"],
    "rm": ["-y", "gone"],
    "devbox": ["--dry-run", "--json"],
    "stop": ["nosuch"],
    "start": ["nosuch"],
    "ssh": ["nosuch", "--", "true"],
    "open": ["nosuch"],
    "sync": ["nosuch", "--once"],
    "cluster create": ["made", "--zone", "nowhere"],
    "cluster list": [],
    "cluster status": ["nosuch"],
    "cluster resize": ["nosuch", "--max-nodes", "1"],
    "cluster cache": ["nosuch", "--delete", "-y"],
    "cluster admit": ["nosuch", "ann@example.com"],
    "cluster delete": ["nosuch", "-y"],
    "cluster token": [],
    "cluster exec": ["us-central1-a/nosuch", "pod", "--", "true"],
    "image create": ["--dry-run", "--json"],
    "image list": [],
    "image delete": ["-y", "nosuch"],
    "image build": ["--builder", "podman"],
    "reap": [],
    "fetch": ["done", "fetched"],
    "data push": ["inner", "set"],
    "data pull": ["there", "pulled"],
    "data ls": ["there"],
    "data rm": ["there", "-y"],
    "log": ["done"],
    "tail": ["done"],
    "wait": ["done"],
    "top": ["--once"],
    "tensorboard": ["done"],
    "profile": ["nosuch"],
    "page": [],
    "dashboard": [],
    "gpus": [],
    "prices": [],
    "costs": [],
    "purse create": ["mine", "--usd", "1"],
    "purse top-up": ["mine", "--usd", "1"],
    "purse close": ["mine"],
    "init": [],
    "doctor": [],
    "config path": [],
    "config show": [],
    "config get": ["bucket"],
    "config set": ["ask_above", "0"],
    "config unset": ["ask_above"],
    "local start": [],
    "local status": [],
    "local stop": [],
    "local reset": ["-y"],
    "skill": ["--install", "-y"],
}
SERVES = ("page", "tensorboard")  # until they are interrupted


def leaves(command: click.Command, name: str = "") -> Iterator[str]:
    """Return the names of all commands that do something."""
    if not isinstance(command, click.Group):
        yield name
        return
    for each in command.commands:
        yield from leaves(command.commands[each], f"{name} {each}".strip())


@pytest.fixture
def traps(berg, tmp_path) -> Traps:
    """The traps in the repo of a user, who has a job that is over and a data set."""
    made = Traps(tmp_path / "notes")
    made.lay(berg.repo)
    for name in ("done", "other", "gone"):
        this = job.Job(name, "true", name, f"gs://b/{name}", "proj", "c0ffee", "c0ffee")
        this.created_by, this.spec = "tester", JobSpec(num_gpus=0)
        this.snapshot = {"commit": "c0ffee", "packs": [], "submodules": {}}
        state = job.State("SUCCEEDED", job=this.summary()).to_json()
        berg.bucket.write(job.state_path(name), state, metadata={"state": state})
        berg.bucket.write(job.metadata_path(name), this.to_json())
    metrics = json.dumps({"loss": 0.1, "step": 1})
    berg.bucket.write("berg_results/done/metrics.jsonl", metrics)
    berg.bucket.write("data/there/file", "x")
    berg.allowed += [400]
    return made


def start(berg: Berg, folder: Path, *arguments: str) -> tuple[int | None, str]:
    """Start the command line as users do, in a folder; return how it ended and what it said."""
    said = berg.home / "said"
    with said.open("w") as output:
        process = subprocess.Popen(
            [str(BERG), *arguments],
            cwd=folder,
            env=berg.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    if arguments[0] in SERVES:
        wait_for(lambda: "http://" in said.read_text() or process.poll() is not None, 60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
    process.wait(240)
    return process.returncode, said.read_text()


def test_every_command_is_started_here():
    assert sorted(ARGUMENTS) == sorted(leaves(cli))


def test_no_command_runs_what_lies_in_its_folder(berg, traps):
    (berg.home / "packages").unlink()  # `berg run` makes them in this folder, too
    found, wrong = {}, {}
    for name, arguments in ARGUMENTS.items():
        code, said = start(berg, berg.repo, *name.split(), *arguments)
        if sprung := traps.sprung():
            found[name] = sprung
            traps.forget()
        if "Traceback" in said or code == 2:
            wrong[name] = said
    assert (found, wrong) == ({}, {})


@pytest.mark.parametrize("folder", ["bare", "inner"])
def test_code_is_not_taken_from_a_bare_repo_and_runs_nothing_in_another(berg, traps, folder):
    """They are started inside of what a clone or an archive has below the user's repo. Filters of
    the repo that a user stands in are the user's.
    """
    for command in ("run -g 0 --dry-run true", "devbox --dry-run", "image create --dry-run"):
        code, said = start(berg, berg.repo / folder, *command.split())
        assert set(traps.sprung()) <= {"clean-inner-inner"}, said
        assert code == (folder == "bare") and "Traceback" not in said, said
        if folder == "bare":
            assert "is a bare git repo, or in one" in said


def test_a_repo_inside_of_the_repo_starts_no_filter_of_its_own(berg, traps):
    taken = snapshot.take(berg.repo)
    inner = taken.submodules["inner"]
    env = snapshot.objects_of(inner)
    assert git.run(inner.root, "show", f"{inner.commit}:file", env=env) == b"2\n"
    assert {"inner/file", "inner/new"} <= sync.scan(berg.repo).keys()
    assert traps.sprung() == []


def test_a_repo_inside_of_the_repo_is_not_completed_by_a_program(berg, traps):
    """Git would fetch what a partial clone lacks, by what its configuration names."""
    inner = berg.repo / "inner"
    run("rm", "-r", *map(str, (inner / ".git/objects").glob("??")))
    for key, value in {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": str(inner),
        "remote.origin.uploadpack": str(traps.program("uploadpack", "exit 1")),
    }.items():
        run("git", "config", "--file", str(inner / ".git/config"), key, value)
    for url in (str(inner), "ssh://localhost/x", f"ext::{traps.program('ext', 'exit 1')}"):
        run("git", "config", "--file", str(inner / ".git/config"), "remote.origin.url", url)
        with pytest.raises((BergError, git.GitError)):
            snapshot.take(berg.repo)
        assert traps.sprung() == [], url


def test_a_repo_inside_of_the_repo_leads_nowhere_else(berg, traps, tmp_path):
    """Neither to files by its `core.worktree`, nor to commits by a `.git` that is elsewhere."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").write_text("private")
    config = str(berg.repo / "inner/.git/config")
    run("git", "config", "--file", config, "core.worktree", str(tmp_path / "private"))
    (berg.repo / "link").mkdir()
    run("git", "init", "-q", str(tmp_path / "other"))
    git_commit = ("-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q")
    run("git", "-C", str(tmp_path / "other"), *git_commit, "--allow-empty", "-m", "private")
    (berg.repo / "link/.git").write_text(f"gitdir: {tmp_path / 'other/.git'}\n")
    taken = snapshot.take(berg.repo)
    assert taken.submodules.keys() == {"inner"}
    assert not any("key" in line for line in taken.all_changed())
    assert any(line.startswith("link/ (a repo whose .git is elsewhere") for line in taken.left_out)


def test_what_others_start_of_berg_runs_nothing_of_their_folder(berg, traps, monkeypatch):
    """What leads ssh, rsync and editors into a pod, kubectl's program, and pip."""
    machine = job.Machine("pod", zone="us-central1-a/nosuch", status="RUNNING", pod="pod")
    monkeypatch.chdir(berg.repo)
    programs = [
        [*place.shell(machine), "--help"],
        [*place.proxy(berg.cloud.settings(), machine)],
        [*computer.python("berg", "cluster", "token")],
        [*dist.pip(), "--version"],
    ]
    for program in programs:
        ran = subprocess.run(program, env=berg.environment(), capture_output=True, text=True)
        assert traps.sprung() == [], program
        assert "Traceback" not in ran.stderr and ran.returncode in (0, 1), ran.stderr

"""What the commands say and record of an installation, through the real command line."""

import json

import pytest
from conftest import commit, git
from repositories import BUILT, EXCLUSIVE, SHAPES, STUB, lock, make_index, project, write

from berg import job

TRAIN = "python train.py"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return make_index(tmp_path_factory.mktemp("index"))


def planned(berg, *arguments: str, **more) -> tuple[list[str], dict]:
    """Return the lines that a plan says of the installation, and what --json does."""
    ran = berg("run", "--dry-run", "--json", *arguments, **more)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["request"]["name"], "the request as without --json"
    lines = ran.stderr.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("Install "))
    end = next(at for at in range(begin + 1, len(lines)) if not lines[at].startswith(" "))
    return [line[10:] for line in lines[begin:end]], found["install"]


def refused(berg, *arguments: str, says: str) -> None:
    ran = berg("run", *arguments)
    assert (ran.returncode, ran.stdout) == (1, "") and "Traceback" not in ran.stderr, ran.stderr
    assert says in " ".join(ran.stderr.split()), ran.stderr
    assert berg.machines() == {} and berg.objects(".berg/jobs/") == {}


def recorded(berg, name: str) -> job.Installation:
    data = berg.bucket.read(job.metadata_path(name))
    return job.from_json(data, name).installation


def test_the_plan_has_a_line_of_the_installation(berg, index):
    assert planned(berg, TRAIN)[0] == [
        "nothing (no requirements.txt, pyproject.toml or uv.lock here or above)"
    ]
    lock(write(berg.repo, SHAPES["extras-in-conflict"]), index)
    lines, install = planned(berg, "-g", "0", TRAIN)
    assert lines == [
        "uv.lock: 3 packages, extra cpu, python 3.12",
        "extra cpu, as the machine has no GPUs; one of cpu, gpu: --extra",
        "downloads torch 0.0.1 from the lock; the image has 2.9",
    ]
    assert [install["what"], *install["notes"]] == lines
    assert install["steps"] == [["uv", "sync", "--frozen", "--extra", "cpu"]]
    assert "extra gpu" in planned(berg, "-g", "1", TRAIN)[0][0]
    assert "extra cpu" in planned(berg, "-g", "1", "--extra", "cpu", TRAIN)[0][0]
    ran = berg("devbox", "-g", "0", "--dry-run", "--json")
    assert "Install   uv.lock: 3 packages, extra cpu" in ran.stderr
    ran = berg("run", "-g", "0", "--dry-run", "--json", "echo {x}", "--grid", "x=1,2")
    assert "Install   uv.lock: 3 packages, extra cpu" in ran.stderr


def test_what_cannot_work_is_refused_before_anything_is_made(berg, index):
    pair = EXCLUSIVE.format(first="small", second="large")
    lock(write(berg.repo, {"pyproject.toml": project("pair", "", pair), **STUB}), index)
    refused(berg, "-g", "0", TRAIN, says="choose one of small, large")
    refused(berg, "--extra", "medium", TRAIN, says="there is no extra 'medium'")
    both = ("--extra", "small", "--extra", "large")
    refused(berg, *both, TRAIN, says="extra large and extra small exclude each other")
    write(berg.repo, {"pyproject.toml": project("pair", '"pluggy"', pair)})
    refused(berg, TRAIN, says="uv.lock is older than pyproject.toml: pluggy. Run: uv lock")
    write(berg.repo, SHAPES["python-too-new"])
    (berg.repo / "uv.lock").unlink()
    says = "requires-python >=3.99: no python meets it; the image pytorch-2-9-cu129-ubuntu-2404"
    refused(berg, TRAIN, says=says)


def test_the_files_of_the_commit_that_runs_count(berg, index):
    write(berg.repo, {"requirements.txt": "iniconfig\n", ".gitignore": "uv.lock\n"})
    commit(berg.repo)
    git(berg.repo, "checkout", "-q", "-b", "other")
    lock(write(berg.repo, SHAPES["flat-two-modules"]), index)
    git(berg.repo, "add", "-f", "uv.lock")
    commit(berg.repo, "other")
    git(berg.repo, "checkout", "-q", "main")
    assert planned(berg, TRAIN)[0] == ["requirements.txt"]
    assert planned(berg, "--branch", "other", TRAIN)[0][0].startswith("uv.lock: 1 package")
    write(berg.repo, {"pyproject.toml": project("new", more=BUILT), "uv.lock": "ignored by git"})
    assert planned(berg, TRAIN)[0] == ["requirements.txt and -e ."], "not committed, but sent"
    assert planned(berg, "--commit", "main", TRAIN)[0] == ["requirements.txt"]
    (berg.repo / "requirements.txt").unlink()
    (berg.repo / "requirements.txt").symlink_to("lists/all.txt")
    write(berg.repo, {"lists/all.txt": "torch==2.10.0\n"})
    assert planned(berg, TRAIN)[0][1] == "torch ==2.10.0 is downloaded; the image has 2.9"


def test_the_folder_one_is_in_comes_first(berg):
    write(berg.repo, {**SHAPES["requirements-below"], "requirements.txt": "pluggy\n"})
    assert planned(berg, TRAIN, cwd=berg.repo / "experiments")[0] == [
        "experiments/requirements.txt"
    ]
    assert planned(berg, "--cwd", "experiments", TRAIN)[0] == ["experiments/requirements.txt"]
    assert planned(berg, TRAIN)[0] == ["requirements.txt"]
    ran = berg("devbox", "--dry-run", "--json", cwd=berg.repo / "experiments")
    assert "Install   experiments/requirements.txt" in ran.stderr
    kinds = planned(berg, "-t", "l4,t4", TRAIN, cwd=berg.repo / "experiments")[0]
    assert kinds == ["experiments/requirements.txt"]


def test_a_repo_says_its_extras_and_the_command_line_comes_first(berg, index):
    chosen = SHAPES["extras-in-conflict"]["pyproject.toml"] + '[tool.berg]\nextras = ["gpu"]\n'
    lock(write(berg.repo, {**SHAPES["extras-in-conflict"], "pyproject.toml": chosen}), index)
    assert planned(berg, "-g", "0", TRAIN)[0][0] == "uv.lock: 3 packages, extra gpu, python 3.12"
    assert "extra cpu" in planned(berg, "--extra", "cpu", TRAIN)[0][0]
    assert planned(berg, "--install", "none", TRAIN)[0] == ["nothing (--install none)"]
    assert planned(berg, "--install", "make deps", TRAIN)[1]["steps"][0][-1] == "make deps"


def test_no_repo_takes_a_secret_of_this_computer(berg):
    (berg.repo / "berg.toml").write_text('install-secrets = ["INDEX_PASSWORD"]\n')
    refused(berg, TRAIN, says="the installation needs --install-secret INDEX_PASSWORD")
    ran = berg(
        "run",
        "--dry-run",
        "--json",
        "--install-secret",
        "INDEX_PASSWORD",
        TRAIN,
        INDEX_PASSWORD="s3",
    )
    assert ran.returncode == 0 and "s3" not in ran.stdout + ran.stderr
    assert "Secrets   INDEX_PASSWORD (only for the installation)" in ran.stderr
    given = ("--install-secret", f"INDEX_PASSWORD={berg.repo}/train.py")
    says = "--install-secret INDEX_PASSWORD has two values"
    refused(berg, *given, "--secret", f"INDEX_PASSWORD={berg.repo}/berg.toml", TRAIN, says=says)
    refused(berg, "--install-secret", "INDEX_PASSWORD", TRAIN, says="there is no such variable")


def test_a_job_records_its_installation_and_a_rerun_takes_it(berg, index):
    berg.cloud.call("POST", "/_berg/settings", {"boot": 0})  # its machine runs nothing
    lock(write(berg.repo, SHAPES["extras-in-conflict"]), index)
    ran = berg("run", "-g", "0", "-n", "first", "--json", TRAIN)
    install = json.loads(ran.stdout)["install"]
    assert install["steps"] == [["uv", "sync", "--frozen", "--extra", "cpu"]]
    assert json.loads(berg("show", "first", "--json").stdout)["install"] == install
    in_plan, shown = ran.stderr.splitlines(), berg("show", "first").stdout.splitlines()
    begin = next(at for at, line in enumerate(in_plan) if line.startswith("Install "))
    assert in_plan[begin + 1].startswith("          extra cpu, as ")
    at = shown.index(in_plan[begin])
    assert shown[at : at + 3] == in_plan[begin : begin + 3], "the same words"
    first = recorded(berg, "first")
    assert first.venv == ".venv" and first.no_sync and first.needs_uv
    (berg.repo / "uv.lock").unlink()
    rerun = ("rerun", "first", "--dry-run", "--json")
    berg.cloud.call("DELETE", "/_berg/requests")
    assert f"Install   {first.words}" in berg(*rerun).stderr, "the code is in the bucket"
    asked = berg.cloud.call("GET", "/_berg/requests")["requests"]
    assert not [each for each in asked if ".pack" in each["path"] and "alt=media" in each["path"]]
    assert "Install   uv.lock: 3 packages, extra gpu" in berg(*rerun, "--extra", "gpu").stderr
    assert "Install   nothing (--install none)" in berg(*rerun, "--install", "none").stderr
    assert "Install   pyproject.toml by uv, not locked" in berg(*rerun, "--new-code").stderr
    assert berg("kill", "--now", "first").returncode == 0

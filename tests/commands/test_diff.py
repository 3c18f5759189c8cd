"""berg diff: two jobs side by side, from what the bucket keeps of them."""

import json
import subprocess

import pytest
from conftest import commit, git

from berg import BergError, job
from berg.code import snapshot as changes
from berg.laptop import records

EMPTY = {"commit": "a" * 40, "branch": "", "shallow": [], "packs": [], "submodules": {}}


def submit(berg, name: str, *words: str) -> None:
    done = berg("run", "-g", "0", "-n", name, *words)
    assert done.returncode == 0, done.stderr


def ended(berg, name: str) -> None:
    """What a job that is over has left in the bucket, but for its code."""
    this = job.Job(name, "true", name, f"gs://b/{name}", "proj", "0" * 40, "1" * 40)
    this.created_at, this.created_by, this.snapshot = job.now(), "tester", EMPTY
    text = job.State("SUCCEEDED", 0, job=this.summary()).to_json()
    berg.bucket.write(job.metadata_path(name), this.to_json())
    berg.bucket.write(job.state_path(name), text, metadata={"state": text})


def test_what_differs_between_two_jobs_is_shown(berg):
    submit(berg, "before", "--env", "LR=1", "python train.py")
    (berg.repo / "train.py").write_text("print('hello from after')\n")
    (berg.repo / "new.py").write_text("import os\n")
    submit(berg, "after", "--env", "LR=2", "-c", "4", "python train.py --fast")
    metrics = {"before": '{"loss": 2.5, "step": 1}\n', "after": '{"loss": 0.5, "step": 9}\n{"lo'}
    for name, text in metrics.items():
        berg.bucket.write(f"berg_results/{name}/metrics.jsonl", text.encode())
    shown = berg("diff", "before", "after")
    assert shown.returncode == 0, shown.stderr
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["before", "after"] in rows and ["env", "LR", "1", "2"] in rows
    assert ["loss", "2.5", "0.5"] in rows
    assert "-print('hello from train')\n+print('hello from after')\n" in shown.stdout
    assert "+import os\n" in shown.stdout, "what has no commit ran, too"
    short = berg("diff", "before", "after", "--stat").stdout
    assert "train.py |" in short and "+import os" not in short
    found = json.loads(berg("diff", "before", "after", "--json").stdout)
    commands = [each for each in found["differences"] if each["what"] == "command"]
    assert commands == [
        {"what": "command", "first": "python train.py", "second": "python train.py --fast"}
    ]
    assert "The code is the same." in berg("diff", "after", "after").stdout
    missing = berg("diff", "before", "nosuch")
    assert missing.returncode == 1 and "there is no job or machine 'nosuch'" in missing.stderr


@pytest.mark.slow
def test_packages_that_differ_are_shown_and_odd_ones_are_none(berg):
    for name in ("old", "new"):
        ended(berg, name)
    said = {
        "old": {"python": "3.11.1", "packages": {"numpy": "1.26", "same": "1"}},
        "new": {"python": "3.11.1", "packages": {"numpy": "2.0", "same": "1", "\x1b[2J": "1"}},
    }
    for name, found in said.items():
        path = f"{job.log_prefix(name)}{name}.9{job.SOFTWARE}"
        berg.bucket.write(path, json.dumps(found).encode())
    shown = berg("diff", "old", "new").stdout
    assert ["package", "numpy", "1.26", "2.0"] in [line.split() for line in shown.splitlines()]
    assert "package same" not in shown and "\x1b" not in shown and "[2J" in shown
    for odd in (b"[]", b"{", b'{"packages": {"a": 1}}', b'{"python": 3}', b"\xff" * 100):
        berg.bucket.write(f"{job.log_prefix('new')}new.9{job.SOFTWARE}", odd)
        told = berg("diff", "old", "new")
        assert told.returncode == 0 and "package numpy" in told.stdout, told.stderr


@pytest.mark.slow
def test_an_attempt_says_which_software_it_ran_with(berg):
    submit(berg, "first", "--wait", "sleep 3")
    found = records.read_software(berg.bucket, "first")
    assert found.python.startswith("3.") and "pip" in found.packages


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ({"commit": "--output=/tmp/x"}, "is not the id of a commit"),
        ({"packs": ["../../home/ann/.ssh/id_rsa"]}, "is not the name of a pack"),
        ({"packs": [".berg/repos/r/a.pack"]}, "the code cannot be compared"),
    ],
)
def test_an_odd_snapshot_opens_nothing(tmp_path, odd, says):
    opened = []

    def open_pack(name: str):
        opened.append(name)
        return (tmp_path / "train.py").open("rb")

    (tmp_path / "train.py").write_text("no pack")
    repo = tmp_path / "repo"
    repo.mkdir()
    with pytest.raises(BergError, match=says):
        changes.between({**EMPTY, "commit": "b" * 40}, {**EMPTY, **odd}, repo, open_pack)
    assert opened == [each for each in odd.get("packs", []) if each.startswith(".berg/repos/")]
    assert [path.name for path in repo.iterdir()] == [".git"]


def test_nothing_of_the_code_becomes_a_file_here(repo, tmp_path):
    """A tree of a job may hold what git, an editor or a shell obeys once it lies in a folder."""
    before = git(repo, "rev-parse", "HEAD")
    (repo / ".envrc").write_text("echo obeyed\n")
    after = commit(repo, "more")
    pack = tmp_path / "pack"
    with pack.open("wb") as file:
        file.write(git_bytes(repo, "pack-objects", "--stdout", "--all", "--quiet", stdin=b""))
    folder = tmp_path / "empty"
    folder.mkdir()
    packs = [".berg/repos/r/all.pack"]
    told = [{**EMPTY, "commit": each, "packs": packs} for each in (before, after)]
    text = changes.between(told[0], told[1], folder, lambda name: pack.open("rb"))
    assert "+echo obeyed" in text
    assert [path.name for path in folder.iterdir()] == [".git"]
    assert git(repo, "rev-parse", "HEAD") == after


def test_the_code_of_repos_with_sha256_is_compared(tmp_path):
    repo, folder, pack = tmp_path / "long", tmp_path / "empty", tmp_path / "pack"
    repo.mkdir()
    folder.mkdir()
    git(repo, "init", "-q", "-b", "main", "--object-format=sha256")
    commits = []
    for text in ("print(1)\n", "print(2)\n"):
        (repo / "train.py").write_text(text)
        commits.append(commit(repo))
    pack.write_bytes(git_bytes(repo, "pack-objects", "--stdout", "--all", "--quiet", stdin=b""))
    told = [{**EMPTY, "commit": each, "packs": [".berg/repos/r/all.pack"]} for each in commits]
    assert "+print(2)" in changes.between(*told, folder, lambda name: pack.open("rb"))


def git_bytes(folder, *arguments: str, stdin: bytes) -> bytes:

    done = subprocess.run(
        ["git", *arguments], cwd=folder, input=stdin, capture_output=True, check=True
    )
    return done.stdout

"""Commits as snapshots, whatever the working tree is."""

import json

import pytest
from conftest import commit, git

from berg import BergError
from berg.code import snapshot


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BERG_HOME", str(tmp_path / "home"))


@pytest.fixture
def branches(repo):
    """A repo on `main` with changes, with a branch `try` whose train.py is another one."""
    git(repo, "checkout", "-q", "-b", "try")
    (repo / "train.py").write_text("print('tried')\n")
    (repo / "deep").mkdir()
    (repo / "deep/run.sh").write_text("true\n")
    commit(repo, "try")
    git(repo, "checkout", "-q", "main")
    (repo / "train.py").write_text("print('changed')\n")
    (repo / "untracked").write_text("new\n")
    return repo


def test_a_branch_travels_without_the_working_tree(branches, bucket, tmp_path):
    before = git(branches, "status", "--porcelain", "--branch")
    tried = git(branches, "rev-parse", "try")
    taken = snapshot.revision(branches, "try", None)
    assert (taken.commit, taken.head, taken.dirty, taken.branch) == (tried, tried, False, "try")
    description = snapshot.send(snapshot.take(branches), bucket)  # so that there is a base
    description = snapshot.send(taken, bucket)

    def open_pack(name):
        bucket.download(name, tmp_path / "pack")
        return (tmp_path / "pack").open("rb")

    snapshot.restore(description, tmp_path / "there", open_pack)
    assert (tmp_path / "there/train.py").read_text() == "print('tried')\n"
    assert not (tmp_path / "there/untracked").exists()
    assert git(tmp_path / "there", "status", "--porcelain", "--branch") == "## try"
    assert git(branches, "status", "--porcelain", "--branch") == before


def test_commits_are_known_by_id_and_tag_and_branches_of_origin_too(branches, tmp_path):
    tried = git(branches, "rev-parse", "try")
    git(branches, "tag", "-a", "v1", "-m", "v1", "try")
    for name in (tried, tried[:8], "v1", "main~0"):
        found = snapshot.revision(branches, None, name)
        assert (found.commit == tried) == (name != "main~0") and found.branch == ""
    git(tmp_path, "clone", "-q", str(branches), "clone")
    assert snapshot.revision(tmp_path / "clone", "try", None).commit == tried
    with pytest.raises(BergError, match="no branch 'gone'.*: git fetch origin gone"):
        snapshot.revision(branches, "gone", None)
    for wrong in ("deadbeef", "--all", ""):
        with pytest.raises(BergError, match="there is no commit"):
            snapshot.revision(branches, None, wrong)
    with pytest.raises(BergError, match="leave one out"):
        snapshot.revision(branches, "try", "v1")


def test_submodules_of_a_commit_travel_as_it_names_them(repo, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q", "-b", "main")
    (inner / "a").write_text("1\n")
    first = commit(inner)
    git(repo, "submodule", "add", "-q", str(inner), "sub")
    commit(repo, "with a submodule")
    (repo / "sub/a").write_text("2\n")
    commit(repo / "sub", "second")
    taken = snapshot.revision(repo, "main", None)
    assert taken.submodules["sub"].commit == first and not taken.left_out
    git(repo, "submodule", "deinit", "-q", "-f", "sub")
    left_out = snapshot.revision(repo, "main", None).left_out
    assert len(left_out) == 1 and left_out[0].startswith("sub/ (a submodule whose commit")


def test_content_of_lfs_is_named(repo):
    (repo / ".gitattributes").write_text("*.bin filter=lfs\n")
    (repo / "model.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    commit(repo)
    assert snapshot.revision(repo, None, "HEAD").left_out == ["model.bin (content of Git LFS)"]


@pytest.mark.slow
def test_the_plan_says_which_commit_and_where_it_runs(berg, branches):
    tried = git(branches, "rev-parse", "try")
    dry = ["-g", "0", "--dry-run", "--json", "true"]
    shown = berg("run", "--branch", "try", *dry)
    assert shown.returncode == 0, shown.stderr
    assert f"proj at {tried[:12]} (try), not the working tree; about " in shown.stderr
    assert "untracked" not in shown.stderr and "M train.py" not in shown.stderr
    deep = berg("run", "--commit", tried[:8], "--cwd", "deep", *dry)
    assert "deep of the repo" in deep.stderr, deep.stderr
    script = ["--install-script", "deep/run.sh"]
    assert berg("run", "--branch", "try", *script, *dry).returncode == 0
    for wishes, why in (
        (["--branch", "main", "--cwd", "deep"], "has no folder deep to run in"),
        (["--branch", "main", *script], "is not a file of the commit"),
        (["--branch", "main", "--cwd", ".."], "has no folder .. to run in"),
    ):
        refused = berg("run", *wishes, *dry)
        assert refused.returncode == 1 and why in refused.stderr


@pytest.mark.slow
def test_a_branch_runs(berg, branches):
    done = berg("run", "-g", "0", "-n", "tried", "--branch", "try", "--wait", "python3 train.py")
    assert done.returncode == 0, done.stderr
    assert "\ntried\n" in berg.log("tried")
    there = json.loads(berg.bucket.read(".berg/jobs/tried_metadata.json"))
    assert there["git_commit"] == git(branches, "rev-parse", "try") and not there["git_dirty"]

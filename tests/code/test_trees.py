"""The trees of snapshots against what `git add -A` makes of the same working tree."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import commit, git

from berg.code import git as trees
from berg.code import snapshot

NAMES = ("a", "b", "a.b", "a-b", "A", "ü", "sp ace", "z\nz")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BERG_HOME", str(tmp_path / "home"))


def anywhere(dice: random.Random) -> str:
    return "/".join(dice.choice(NAMES) for _ in range(dice.randint(1, 3)))


def forget(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def put(root: Path, name: str, dice: random.Random) -> None:
    """A file, an executable or a link, whatever was in its way."""
    path = root / name
    for each in (*reversed(path.relative_to(root).parents), Path(name)):
        if each != Path() and ((root / each).is_symlink() or (root / each).is_file()):
            forget(root / each)
    forget(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if dice.random() < 0.2:
        path.symlink_to("nowhere")
        return
    path.write_text(str(dice.random()))
    path.chmod(dice.choice([0o644, 0o755]))


def change(root: Path, dice: random.Random) -> None:
    """One thing that people do to a working tree and its index."""
    there = [str(path.relative_to(root)) for path in root.rglob("*") if ".git" not in path.parts]
    name = dice.choice(there) if there and dice.random() < 0.6 else anywhere(dice)
    kind = dice.choice(["put", "put", "remove", "add", "planned", "uncached"])
    if kind == "put":
        put(root, name, dice)
    elif kind == "remove":
        forget(root / name)
    else:
        words = {
            "add": ["add", "-A"],
            "planned": ["add", "-N"],
            "uncached": ["rm", "-rq", "--cached"],
        }
        command = ["git", *words[kind], "--", name]
        subprocess.run(command, cwd=root, capture_output=True)


def by_git(root: Path, folder: Path) -> str:
    """Return the tree that git makes of a working tree, with an index of its own."""
    shutil.copy2(root / ".git/index", folder / "index")
    env = {**os.environ, "GIT_INDEX_FILE": str(folder / "index")}
    subprocess.run(["git", "add", "-A"], cwd=root, check=True, env=env)
    made = subprocess.run(
        ["git", "write-tree"], cwd=root, check=True, env=env, capture_output=True, text=True
    )
    return made.stdout.strip()


@pytest.mark.parametrize("kind", ["sha1", "sha256"])
def test_a_snapshot_has_the_tree_that_git_makes_of_all_files(tmp_path, kind):
    dice = random.Random(27)
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "-q", "-b", "main", f"--object-format={kind}")
    for _ in range(15):
        put(root, anywhere(dice), dice)
    commit(root)
    for number in range(20):
        for _ in range(dice.randint(1, 6)):
            change(root, dice)
        taken = snapshot.take(root)
        tree = snapshot.text(
            root, "rev-parse", f"{taken.commit}^{{tree}}", env=snapshot.objects_of(taken)
        )
        assert tree == by_git(root, tmp_path), number
        if number % 4 == 3:
            commit(root)


@pytest.mark.parametrize("kind", ["sha1", "sha256"])
def test_a_tree_without_any_file_is_one(tmp_path, kind):
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "-q", "-b", "main", f"--object-format={kind}")
    (root / "only").write_text("x")
    commit(root)
    (root / "only").unlink()
    taken = snapshot.take(root)
    tree = f"{taken.commit}^{{tree}}"
    assert taken.changed == ["D only"]
    assert snapshot.text(root, "ls-tree", tree, env=snapshot.objects_of(taken)) == ""


def test_modes_that_the_file_system_cannot_tell_stay(repo):
    (repo / "run").write_text("one")
    (repo / "run").chmod(0o755)
    commit(repo)
    git(repo, "config", "core.fileMode", "false")
    (repo / "run").chmod(0o644)
    (repo / "run").write_text("other")
    taken = snapshot.take(repo)
    listed = snapshot.text(repo, "ls-tree", taken.commit, "run", env=snapshot.objects_of(taken))
    assert taken.changed == ["M run"] and listed.startswith("100755")


def test_the_index_is_neither_listed_nor_written(repo, monkeypatch):
    """One of 100,000 files has 10 MB: each of that takes half as long as the walk over all files."""
    asked, run = [], snapshot.git

    def git_here(folder, *arguments, env=None, **options):
        if "GIT_INDEX_FILE" not in (env or {}):
            asked.append(arguments)
        return run(folder, *arguments, env=env, **options)

    (repo / "train.py").write_text("print('edited')\n")
    monkeypatch.setattr(snapshot, "git", git_here)
    monkeypatch.setattr(trees, "run", git_here)
    before = (repo / ".git/index").stat().st_mtime_ns
    assert snapshot.take(repo).changed == ["M train.py"]
    users_of_the_index = {"ls-files", "update-index", "write-tree", "add", "read-tree"}
    assert [each for each in asked if each[0] in users_of_the_index] == [
        (*trees.STAGED, "-v"),
        (*snapshot.FILTERED,),
    ]
    assert (repo / ".git/index").stat().st_mtime_ns == before


def test_a_tree_that_git_makes_otherwise_is_refused(repo, monkeypatch):
    """Its id is computed here, too: what it says of the trees in it would be wrong."""
    tree, run = git(repo, "rev-parse", "HEAD^{tree}"), trees.run

    def odd(folder, *words, **options):
        return b"0" * 40 + b"\n" if words[0] == "mktree" else run(folder, *words, **options)

    monkeypatch.setattr(trees, "run", odd)
    with pytest.raises(ValueError, match=f"where {tree} was meant"):
        trees.edited(repo, {}, tree, {"nothing": None})

"""Snapshots of real repos: sent to the embedded cloud's bucket, restored elsewhere, compared."""

import os
import random
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import commit, git

from berg import BergError, config, validation
from berg.code import git as program
from berg.code import snapshot
from berg.commands import results
from berg.laptop import launch, sync
from berg.spec import JobSpec


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BERG_HOME", str(tmp_path / "home"))


@pytest.fixture
def trip(bucket, tmp_path):
    """Take, send and restore a snapshot; returns it with the checkout and the sizes of the packs
    sent.
    """

    def travel(folder, target="checkout"):
        taken, sent = snapshot.take(folder), []

        def tell(done, size):
            if done == size:
                sent.append(size)

        description = snapshot.send(taken, bucket, tell)

        def open_pack(name):
            bucket.download(name, tmp_path / "pack")
            return (tmp_path / "pack").open("rb")

        snapshot.restore(description, tmp_path / target, open_pack)
        return taken, tmp_path / target, sent

    return travel


def differences(a, b, *without: str) -> str:
    options = [word for name in (".git", *without) for word in ("-x", name)]
    command = ["diff", "-r", "--no-dereference", *options, str(a), str(b)]
    return subprocess.run(command, capture_output=True, text=True).stdout


def test_a_clean_repo_travels_as_its_head(repo, trip):
    head = git(repo, "rev-parse", "HEAD")
    taken, checkout, _ = trip(repo)
    assert (taken.commit, taken.head, taken.dirty, taken.changed) == (head, head, False, [])
    assert git(checkout, "rev-parse", "HEAD") == head
    assert git(checkout, "status", "--porcelain", "--branch") == "## main"
    assert git(checkout, "log", "-1", "--format=%s") == "start"
    assert differences(repo, checkout) == ""


def test_modes_links_odd_names_and_untracked_files_travel_and_the_users_repo_stays_as_it_was(
    repo, trip
):
    (repo / "ex").write_text("#!/bin/sh\n")
    (repo / "ex").chmod(0o755)
    (repo / "link").symlink_to("train.py")
    (repo / "dangling").symlink_to("nowhere")
    (repo / "gone").write_text("x")
    (repo / ".gitignore").write_text("data/\n*.tmp\n")
    head = commit(repo)
    (repo / "train.py").write_text("print('changed')\n")
    (repo / "gone").unlink()
    (repo / "sp ace 'q\" ünï 中").mkdir()
    (repo / "sp ace 'q\" ünï 中" / "-ö\tt").write_text("new")
    (repo / "data").mkdir()
    (repo / "data/big").write_text("ignored")
    (repo / "x.tmp").write_text("ignored")
    (repo / "stashed").write_text("s")
    git(repo, "add", "stashed")
    git(repo, "stash", "push", "-q", "--", "stashed")
    git(repo, "config", "status.showStash", "true")
    (repo / "staged").write_text("staged")
    git(repo, "add", "staged")

    def user_sees():
        return [
            git(repo, *words)
            for words in (["status", "--porcelain"], ["stash", "list"], ["for-each-ref"])
        ]

    before, objects = user_sees(), sorted((repo / ".git/objects").rglob("*"))
    taken, checkout, _ = trip(repo)
    assert user_sees() == before
    assert sorted((repo / ".git/objects").rglob("*")) == objects
    assert differences(repo, checkout, "data", "x.tmp") == ""
    assert (checkout / "ex").stat().st_mode & 0o111
    assert taken.changed == ["D gone", "A sp ace 'q\" ünï 中/-ö\tt", "A staged", "M train.py"]
    assert taken.left_out == ["data/ (ignored by git)", "x.tmp (ignored by git)"]
    assert git(checkout, "rev-parse", "HEAD") == taken.commit != head
    assert git(checkout, "rev-parse", "HEAD~1") == head
    assert git(checkout, "status", "--porcelain") == ""
    # On the machine `git show` tells exactly what was not committed.
    assert "changed" in git(checkout, "show", "HEAD", "--", "train.py")


def test_files_that_became_folders_and_folders_that_became_links_travel(repo, trip):
    for name in ("file", "folder/inner", "other/deep/inner", "linked"):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text("before")
    commit(repo)
    git(repo, "rm", "-q", "--cached", "train.py")  # and the file is still there
    (repo / "planned").write_text("by git add --intent-to-add")
    git(repo, "add", "--intent-to-add", "planned")
    (repo / "file").unlink()
    (repo / "file").mkdir()
    (repo / "file/inner").write_text("after")
    (repo / "folder/inner").unlink()
    (repo / "folder").rmdir()
    (repo / "folder").symlink_to("other")
    (repo / "other/deep/inner").unlink()
    (repo / "other/deep").rmdir()
    (repo / "other/deep").write_text("after")
    (repo / "linked").unlink()
    (repo / "linked").symlink_to("train.py")
    taken, checkout, _ = trip(repo)
    assert differences(repo, checkout) == ""
    changed = "D file, A file/inner, A folder, D folder/inner, T linked, A other/deep, "
    assert ", ".join(taken.changed) == changed + "D other/deep/inner, A planned"


def test_the_working_tree_is_walked_once(repo, monkeypatch):
    """Of 100,000 files each further walk would take as long as `git status` does."""
    looked, run = [], snapshot.git

    def git_here(folder, *arguments, **options):
        looked.append(arguments)
        return run(folder, *arguments, **options)

    (repo / "new").write_text("x")
    monkeypatch.setattr(snapshot, "git", git_here)
    monkeypatch.setattr(program, "run", git_here)
    assert snapshot.take(repo).changed == ["A new"]
    of_the_tree = {"status", "add", "diff", "diff-files", "diff-index", "check-ignore"}
    walks = [each for each in looked if of_the_tree & {*each} or {"--others", "-o"} & {*each}]
    assert [walk[0] for walk in walks] == ["status"]


def test_the_same_files_make_the_same_commit_and_a_changed_one_sends_kilobytes(repo, trip):
    for number in range(300):
        (repo / f"file{number}.py").write_text(f"{number}\n" * 2000)
    commit(repo)
    first, _, sent = trip(repo)
    assert len(sent) == 1
    again, _, nothing = trip(repo)
    assert again.commit == first.commit
    assert nothing == []
    (repo / "file7.py").write_text("edited\n")
    second, checkout, increment = trip(repo)
    assert second.commit != first.commit
    assert increment[0] < 2000 < sent[0]
    assert (checkout / "file7.py").read_text() == "edited\n"
    # History that was rewritten, and a base that somebody removed from the bucket, do no harm.
    git(repo, "commit", "-q", "--amend", "-a", "-m", "rewritten")
    _, checkout, _ = trip(repo, "rewritten")
    assert differences(repo, checkout) == ""


def test_a_base_that_is_gone_from_the_bucket_is_sent_again(repo, trip, bucket):
    trip(repo)
    bucket.delete(*[blob.name for blob in bucket.list(".berg/repos/")])
    (repo / "new").write_text("x")
    _, checkout, sent = trip(repo, "again")
    assert len(sent) == 1
    assert differences(repo, checkout) == ""


def test_a_large_file_on_top_of_a_small_repo_is_sent_once(repo, trip):
    trip(repo)
    (repo / "weights").write_bytes(random.Random(0).randbytes(3 << 20))
    _, checkout, sent = trip(repo, "large")
    assert len(sent) == 1 and sent[0] > 3 << 20
    assert differences(repo, checkout) == ""
    (repo / "train.py").write_text("edited\n")
    assert trip(repo, "small")[2][0] < 2000, "what is large is the new base"


def forget_history(folder):
    """Let git delete what no branch leads to any more."""
    git(folder, "reflog", "expire", "--expire=now", "--all")
    git(folder, "gc", "-q", "--prune=now")


def test_a_rewritten_history_is_sent_anew(repo, trip):
    (repo / "train.py").write_text("more\n" * 1000)
    commit(repo)
    trip(repo)
    (repo / "train.py").write_text("other\n" * 1000)
    git(repo, "commit", "-q", "--amend", "-a", "-m", "rewritten")
    forget_history(repo)
    _, checkout, _ = trip(repo, "rewritten")
    assert differences(repo, checkout) == ""


def test_a_base_without_its_head_or_with_half_of_its_files_is_none(repo, trip):
    """Berg's own folder has the commit of a dirty tree; what it stands on, and unchanged files, lie
    in the repo.
    """
    (repo / "data").write_text("as it was\n" * 1000)
    commit(repo)
    (repo / "train.py").write_text("dirty")
    trip(repo)
    (repo / "data").write_text("new\n")
    git(repo, "commit", "-q", "--amend", "-a", "-m", "rewritten")
    forget_history(repo)
    (repo / "train.py").write_text("dirtier")
    _, checkout, _ = trip(repo, "rewritten")
    assert differences(repo, checkout) == ""


@pytest.mark.parametrize(
    "options", [[], ["--depth=1"], ["--branch=side"]], ids=["clone", "shallow clone", "branch"]
)
def test_a_new_clone_at_the_same_path_is_sent(repo, trip, tmp_path, options):
    source = tmp_path / "source"
    git(repo, "branch", "side")
    (repo / "train.py").write_text("second\n")
    commit(repo)
    git(tmp_path, "clone", "-q", "--bare", str(repo), str(source))
    (repo / "only here").write_text("never pushed\n" * 1000)
    commit(repo)
    trip(repo)
    repo.rename(tmp_path / "before")
    git(tmp_path, "clone", "-q", *options, source.as_uri(), str(repo))
    (repo / "train.py").write_text("edited\n")
    _, checkout, _ = trip(repo, "cloned")
    assert differences(repo, checkout) == ""


def test_an_edit_of_the_same_size_in_the_moment_of_a_clone_is_sent(repo, trip, tmp_path):
    """Git tells it by the age of its index alone: a file as young as that may have changed since."""
    (repo / "train.py").write_text("first\n")
    commit(repo)
    fresh = tmp_path / "fresh"
    git(tmp_path, "clone", "-q", str(repo), str(fresh))
    git(fresh, "config", "core.trustctime", "false")
    moment = (fresh / "train.py").stat().st_mtime_ns
    (fresh / "train.py").write_text("edits\n")
    for path in ("train.py", ".git/index"):
        os.utime(fresh / path, ns=(moment, moment))
    _, checkout, _ = trip(fresh)
    assert differences(fresh, checkout) == ""


def test_another_project_at_the_same_path_is_sent(repo, trip, tmp_path):
    trip(repo)
    repo.rename(tmp_path / "before")
    repo.mkdir()
    (repo / "other.py").write_text("another project\n")
    git(repo, "init", "-q", "-b", "main")
    commit(repo)
    _, checkout, sent = trip(repo, "other")
    assert len(sent) == 1
    assert differences(repo, checkout) == ""


def test_submodules_travel_with_their_changes(repo, trip, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "lib.py").write_text("one")
    commit(inner)
    git(repo, "submodule", "add", "-q", str(inner), "deps/inner")
    commit(repo)
    _, checkout, _ = trip(repo)
    assert differences(repo, checkout) == ""
    (repo / "deps/inner/lib.py").write_text("two")
    (repo / "deps/inner/new.py").write_text("three")
    taken, checkout, _ = trip(repo, "dirty")
    assert taken.dirty
    assert "M deps/inner/lib.py" in taken.all_changed()
    assert differences(repo, checkout) == ""
    assert git(checkout, "status", "--porcelain") == ""


def test_a_submodule_that_is_not_checked_out_is_named(repo, tmp_path):
    inner = tmp_path / "inner"
    git(repo, "clone", "-q", ".", str(inner))
    git(repo, "submodule", "add", "-q", str(inner), "deps/inner")
    commit(repo)
    git(repo, "submodule", "deinit", "-q", "-f", "deps/inner")
    (left,) = snapshot.take(repo).left_out
    assert left == "deps/inner/ (a submodule that is not checked out: git submodule update --init)"


def test_lfs_files_travel_as_content(repo, trip):
    git(repo, "lfs", "install", "--local")
    (repo / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    (repo / "weights.bin").write_bytes(bytes(range(256)) * 100)
    commit(repo)
    assert git(repo, "cat-file", "-p", "HEAD:weights.bin").startswith("version https://git-lfs")
    taken, checkout, _ = trip(repo)
    assert (checkout / "weights.bin").read_bytes() == bytes(range(256)) * 100
    assert not taken.dirty
    assert snapshot.take(repo).commit == taken.commit != taken.head, "the content is a commit"
    assert git(checkout, "status", "--porcelain") == ""
    assert git(repo, "status", "--porcelain") == ""


def test_a_virtual_environment_stays_here(repo, trip):
    (repo / "env/bin").mkdir(parents=True)
    (repo / "env/pyvenv.cfg").write_text("home = /usr")
    (repo / "env/bin/python").write_text("x")
    taken, checkout, _ = trip(repo)
    assert not (checkout / "env").exists()
    assert taken.left_out == ["env/ (a virtual environment)"]
    assert not taken.dirty


def test_a_worktree_and_a_subfolder_are_the_same_repo(repo, trip, tmp_path):
    (repo / "sub").mkdir()
    (repo / "sub/x").write_text("x")
    commit(repo)
    git(repo, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "side")
    taken, checkout, _ = trip(tmp_path / "tree" / "sub")
    assert taken.branch == "side"
    assert (checkout / "sub/x").read_text() == "x"


def test_repos_that_cannot_be_known_are_refused(repo, tmp_path, monkeypatch):
    with pytest.raises(BergError, match="not in a git repo.*git init"):
        snapshot.take(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    with pytest.raises(BergError, match="no commit yet.*git commit"):
        snapshot.take(empty)
    with pytest.raises(BergError, match="bare"):
        git(tmp_path, "clone", "-q", "--bare", str(repo), "bare")
        snapshot.take(tmp_path / "bare")
    monkeypatch.setattr(snapshot, "MAX_UNTRACKED_BYTES", 100)
    (repo / "data.bin").write_bytes(b"x" * 101)
    with pytest.raises(BergError, match=r"untracked files.*data.bin.*\.gitignore"):
        snapshot.take(repo)
    (repo / "data.bin").unlink()


def test_merge_conflicts_are_refused(repo):
    git(repo, "checkout", "-q", "-b", "side")
    (repo / "train.py").write_text("a")
    commit(repo, "a")
    git(repo, "checkout", "-q", "main")
    (repo / "train.py").write_text("b")
    commit(repo, "b")
    with pytest.raises(subprocess.CalledProcessError):
        git(repo, "merge", "side")
    assert git(repo, "ls-files", "--unmerged")
    with pytest.raises(BergError, match="merge conflicts"):
        snapshot.take(repo)


def test_a_commit_that_is_not_in_the_packs_is_named(repo, bucket, tmp_path):
    description = snapshot.send(snapshot.take(repo), bucket)
    wrong = {**description, "commit": "1" * 40}
    bucket.download(description["packs"][0], tmp_path / "pack")
    with pytest.raises(BergError, match="commit 1111.*cannot be restored"):
        snapshot.restore(wrong, tmp_path / "out", lambda name: (tmp_path / "pack").open("rb"))


def hostile_pack(folder, entries: dict[str, tuple[str, str]]) -> tuple[str, bytes]:
    """A commit whose uppermost tree has these entries (name -> mode, content), and its pack."""
    folder.mkdir()
    git(folder, "init", "-q")

    def run(*arguments: str, data: bytes = b"") -> bytes:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, input=data, capture_output=True, check=True).stdout

    tree, objects = b"", []
    for name, (mode, content) in sorted(entries.items()):
        blob = run("hash-object", "-w", "--stdin", data=content.encode()).decode().strip()
        tree += f"{mode} {name}".encode() + b"\0" + bytes.fromhex(blob)
        objects.append(blob)
    wild = ("hash-object", "-t", "tree", "-w", "--literally", "--stdin")
    root = run(*wild, data=tree).decode().strip()
    who = "a <a@b> 1700000000 +0000"
    about = f"tree {root}\nauthor {who}\ncommitter {who}\n\nx\n".encode()
    commit = run("hash-object", "-t", "commit", "-w", "--stdin", data=about).decode().strip()
    names = "\n".join([commit, root, *objects]).encode()
    return commit, run("pack-objects", "--stdout", data=names)


HOSTILE = {
    "hasDotgit": {  # a folder .git
        ".git": ("100644", "[core]\n\tfsmonitor = touch evil\n")
    },
    "hasDotdot": {  # a file ..
        "..": ("100644", "evil")
    },
    "fullPathname": {  # a slash in a name
        "a/../../evil": ("100644", "evil")
    },
    "gitmodulesUrl": {  # a submodule's URL that is an option
        ".gitmodules": ("100644", '[submodule "a"]\n\tpath = a\n\turl = -u./evil\n')
    },
    "gitmodulesName": {  # a submodule's name that leaves
        ".gitmodules": ("100644", '[submodule "../../a"]\n\tpath = a\n\turl = x\n')
    },
    "gitmodulesSymlink": {  # a link as .gitmodules
        ".gitmodules": ("120000", "/etc/passwd")
    },
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_pack_that_git_would_check_out_badly_is_refused(tmp_path, what):
    commit, pack = hostile_pack(tmp_path / "evil", HOSTILE[what])
    (tmp_path / "pack").write_bytes(pack)
    description = {"commit": commit, "branch": "", "packs": ["p"], "shallow": [], "cut": []}
    description["submodules"] = {}
    with pytest.raises(BergError, match=f"cannot be restored: error: object .*{what}"):
        snapshot.restore(description, tmp_path / "out", lambda name: (tmp_path / "pack").open("rb"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".git"]


def test_an_honest_pack_of_the_same_kind_is_taken(tmp_path):
    commit, pack = hostile_pack(tmp_path / "good", {"a": ("100644", "x")})
    (tmp_path / "pack").write_bytes(pack)
    description = {"commit": commit, "branch": "", "packs": ["p"], "shallow": [], "cut": []}
    description["submodules"] = {}
    snapshot.restore(description, tmp_path / "out", lambda name: (tmp_path / "pack").open("rb"))
    assert (tmp_path / "out/a").read_text() == "x"


def test_a_repo_with_sha256_travels(tmp_path, trip):
    repo = tmp_path / "long"
    repo.mkdir()
    git(repo, "init", "-q", "-b", "main", "--object-format=sha256")
    (repo / "train.py").write_text("print(1)\n")
    head = commit(repo)
    (repo / "train.py").write_text("print(2)\n")
    (repo / "new.py").write_text("print(3)\n")
    taken, checkout, _ = trip(repo)
    assert len(taken.commit) == 64 and git(checkout, "rev-parse", "HEAD~1") == head
    assert differences(repo, checkout) == ""
    (repo / "new.py").write_text("print(4)\n")
    _, checkout, _ = trip(repo, "again")
    assert differences(repo, checkout) == ""


def test_a_repo_with_sha1_travels_to_where_sha256_is_the_default(repo, trip, monkeypatch):
    taken, _, _ = trip(repo)
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    _, checkout, _ = trip(repo, "there")
    assert git(checkout, "rev-parse", "HEAD") == taken.commit


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_repo_of_another_user_is_named(repo):
    for path in (repo, repo / ".git"):
        os.chown(path, 12345, 12345)
    mend = f"git config --global --add safe.directory {repo}"
    with pytest.raises(
        BergError, match=f"git does not trust {repo}, which belongs to another user. Run: {mend}$"
    ):
        snapshot.take(repo)


def test_what_git_cannot_add_is_named(repo):
    (repo / "inner").mkdir()
    git(repo / "inner", "init", "-q")
    with pytest.raises(BergError, match="cannot add the files of .*: error: inner: is a directory"):
        snapshot.take(repo)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads all")
def test_an_unreadable_file_is_named(repo):
    (repo / "closed").write_text("x")
    (repo / "closed").chmod(0)
    with pytest.raises(BergError, match="closed.*Permission denied"):
        snapshot.take(repo)


def test_private_code_stays_private_also_in_a_home_of_an_earlier_version(repo, tmp_path):
    old_umask = os.umask(0o022)
    try:
        (repo / "secret.txt").write_text("private")
        snapshot.take(repo)
        home = tmp_path / "home"
        assert home.stat().st_mode & 0o777 == 0o700
        assert (home / "repos").stat().st_mode & 0o777 == 0o700
        for path in [home, *home.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o444)
        (home / "berg.json").write_text("{}")
        config.load()
        snapshot.take(repo)
        assert home.stat().st_mode & 0o777 == 0o700
        assert (home / "repos").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(old_umask)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_reads_no_code(repo, tmp_path, monkeypatch):
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o755)
        monkeypatch.setenv("BERG_HOME", f"{shared}/home")
        (repo / "secret.txt").write_text("private")
        snapshot.take(repo)
        packs = [path for path in Path(shared).rglob("objects/*/*") if path.is_file()]
        assert packs
        for path in packs:
            done = subprocess.run(["cat", path], user="nobody", capture_output=True, text=True)
            assert (done.returncode, done.stdout) == (1, ""), "another user read code"


def test_what_bergignore_names_stays_here(repo, trip, tmp_path):
    (repo / "train.py").write_text("changed, and known to git")
    for path in ("raw/a.bin", "raw/deep/b.bin", "notes.txt", "mixed/c.bin", "mixed/keep.txt"):
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text("x")
    (tmp_path / "users").write_text("*.tmp")
    (repo / "x.tmp").touch()
    git(repo, "config", "core.excludesFile", str(tmp_path / "users"))
    (repo / snapshot.IGNORE_FILE).write_text("*.bin\n/notes.txt\nraw/\ntrain.py\n")
    taken, checkout, _ = trip(repo)
    why = f"({snapshot.IGNORE_FILE})"
    assert taken.left_out[1:] == [f"mixed/c.bin {why}", f"notes.txt {why}", f"raw/ {why}"]
    assert differences(repo, checkout, "raw", "notes.txt", "c.bin", "x.tmp") == ""
    assert not (checkout / "x.tmp").exists(), "what the user's own file ignores stays ignored"
    assert "M train.py" in taken.changed, "what git knows travels"
    assert {"mixed/keep.txt", "train.py"} <= sync.scan(repo).keys()
    assert not {"mixed/c.bin", "raw/a.bin", "notes.txt"} & sync.scan(repo).keys()


def test_what_bergignore_negates_travels_although_git_ignores_it(repo, trip):
    (repo / ".gitignore").write_text("data/\n*.bin\n/cache/\n.venv/\n")
    (repo / "raw").write_text("x")
    commit(repo)
    brought = ["data/small.csv", "keep.bin", "cache/a.txt", "cache/deep/b.bin"]
    stays = ["data/big.csv", "other.bin", "cache/raw/c.txt", ".venv/a.py", ".venv/cache/d.txt"]
    for path in (*brought, *stays):
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text(path)
    rules = ["!data/small.csv", "!keep.bin", "!cache/", "cache/raw/", "!cache/deep/b.bin", "!*.py"]
    (repo / snapshot.IGNORE_FILE).write_text("\n".join(rules))
    taken, checkout, _ = trip(repo)
    assert [path for path in (*brought, *stays) if (checkout / path).exists()] == brought
    ignored = [f"{path} (ignored by git)" for path in (".venv/", "data/", "other.bin")]
    assert taken.left_out == [*ignored, f"cache/raw/ ({snapshot.IGNORE_FILE})"]
    scanned = sync.scan(repo).keys()
    assert [path for path in (*brought, *stays) if path in scanned] == brought


def test_large_untracked_files_are_named(repo, monkeypatch):
    monkeypatch.setattr(snapshot, "LARGE_UNTRACKED", 1000)
    (repo / "big").write_text("x" * 1000)
    (repo / "train.py").write_text("x" * 2000)
    assert snapshot.take(repo).doubtful == ["big (1.0 kB)"]


def test_the_bytes_that_go_up_are_known_before(repo, bucket, trip):
    (repo / "noise").write_bytes(random.Random(1).randbytes(200_000))
    commit(repo)
    ahead = snapshot.bytes_to_send(snapshot.take(repo), bucket.name)
    taken, _, (sent,) = trip(repo)
    assert ahead == pytest.approx(sent, rel=0.05) and sent > 200_000
    assert snapshot.bytes_to_send(taken, bucket.name) == 0
    (repo / "more").write_bytes(random.Random(2).randbytes(50_000))
    changed = snapshot.take(repo)
    assert 50_000 < snapshot.bytes_to_send(changed, bucket.name) < 55_000
    changed.ran = SimpleNamespace(snapshot={"packs": []})
    assert snapshot.bytes_to_send(changed, bucket.name) == 0


def test_results_that_lie_in_a_repo_are_code_unless_it_ignores_them(repo, tmp_path, capsys):
    (repo / "my results").mkdir()
    (repo / "my results/loss.txt").write_text("0.1")
    (tmp_path / "outside").mkdir()
    results.say_if_code(tmp_path / "outside", tmp_path / "outside")
    assert capsys.readouterr().err == ""
    results.say_if_code(repo / "my results", repo / "my results")
    command = capsys.readouterr().err.partition("$ ")[2]
    assert command.startswith("echo '/my results/' >>"), command
    subprocess.run(["sh", "-c", command], check=True)
    results.say_if_code(repo / "my results", repo / "my results")
    assert capsys.readouterr().err == ""
    assert "my results/ (.bergignore)" in snapshot.take(repo).left_out


def test_a_repo_takes_what_lies_in_it_and_is_not_ignored(repo, tmp_path, monkeypatch):
    (repo / ".gitignore").write_text("ignored/\n")
    for name in ("results", "ignored/results"):
        (repo / name).mkdir(parents=True)
        (repo / name / "weights").write_text("new")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(repo)
    (repo / "deep/below").mkdir(parents=True)
    monkeypatch.chdir(repo / "deep")
    for folder in (repo / "results", Path("../results"), tmp_path / "link/results"):
        assert snapshot.repo_that_takes(folder, folder).resolve() == repo.resolve(), folder
    for folder in (repo / "ignored/results", Path("../ignored/results"), tmp_path / "elsewhere"):
        assert snapshot.repo_that_takes(folder, folder) is None, folder


@pytest.fixture
def traced(tmp_path, monkeypatch):
    """Returns the fetches that git started since the last call."""
    trace = tmp_path / "trace"
    monkeypatch.setenv("GIT_TRACE", str(trace))

    def fetches():
        lines = trace.read_text().splitlines()
        trace.unlink()
        return [line for line in lines if "built-in: git fetch" in line]

    return fetches


def test_files_with_a_filter_travel_as_they_are_here(repo, trip, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "filters"))  # machines have them, too
    for name, clean, smudge in (
        ("rot", "tr a-y b-z", "tr b-z a-y"),
        ("strip", "grep -v out", "cat"),
    ):
        git(repo, "config", "--global", f"filter.{name}.clean", clean)
        git(repo, "config", "--global", f"filter.{name}.smudge", smudge)
        git(repo, "config", "--global", f"filter.{name}.required", "true")
    (repo / ".gitattributes").write_text("key filter=rot\n*.ptr filter=lfs\n*.lock filter=rot\n")
    (repo / ".git/info/attributes").write_text("*.nb filter=strip\n")
    for path, content in {
        "key": "abc\n",
        "a.nb": "in\nout\n",
        "plain.nb": "in\n",
        "w.ptr": "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    }.items():
        (repo / path).write_text(content)
    (repo / "key").chmod(0o755)
    commit(repo)
    assert git(repo, "cat-file", "-p", "HEAD:key") == "bcd"
    taken, checkout, _ = trip(repo)
    assert differences(repo, checkout) == ""
    assert (checkout / "key").stat().st_mode & 0o100
    assert git(checkout, "status", "--porcelain") == "" and not taken.dirty
    assert taken.doubtful == [
        "a.nb (as it is here, without git's filter strip)",
        "key (as it is here, without git's filter rot)",
        "w.ptr (a pointer of Git LFS without its content: git lfs pull)",
    ]
    snapshot.write_out(taken, checkout.parent / "context")
    assert differences(checkout, checkout.parent / "context") == "", "also in an image"
    (repo / "key").write_text("edited\n")
    (repo / "new.nb").write_text("out\nin\n")
    taken, checkout, _ = trip(repo, "edited")
    assert differences(repo, checkout) == ""
    assert taken.changed == ["M key", "A new.nb"]
    stored = snapshot.commit_snapshot(repo, "proj", "", taken.head).left_out
    assert (
        "key (as git's filter rot stores it)" in stored and "w.ptr (content of Git LFS)" in stored
    )


def test_what_git_status_hides_travels_as_it_is_here(repo, trip):
    for path in ("skipped", "assumed", "gone", "sparse/a", "sparse/b", "same"):
        (repo / path).parent.mkdir(exist_ok=True)
        (repo / path).write_text("one\n")
    commit(repo)
    git(repo, "update-index", "--skip-worktree", "skipped", "sparse/a", "sparse/b", "same")
    git(repo, "update-index", "--assume-unchanged", "assumed", "gone")
    for path in ("skipped", "assumed"):
        (repo / path).write_text("another\n")
    for path in ("gone", "sparse/a", "sparse/b"):
        (repo / path).unlink()
    (repo / "sparse").rmdir()
    assert git(repo, "status", "--porcelain") == ""
    taken, checkout, _ = trip(repo)
    assert differences(repo, checkout) == ""
    assert taken.changed == ["M assumed", "D gone", "M skipped"]
    why = "(changed, but hidden from `git status`)"
    assert taken.doubtful == [f"assumed {why}", f"skipped {why}"]
    assert taken.left_out == ["2 files that are not in the working tree (sparse checkout)"]
    (repo / "skipped").write_text("a third\n")
    _, checkout, (sent,) = trip(repo, "later")
    assert sent < 1000 and differences(repo, checkout) == "", "on top of what was sent"


def test_replaced_commits_and_files_travel_as_they_are_here(repo, trip):
    (repo / "file").write_text("one\n")
    first = commit(repo)
    (repo / "file").write_text("two\n")
    (repo / "more").write_text("three\n")
    second = commit(repo)
    git(repo, "replace", git(repo, "rev-parse", "HEAD:more"), git(repo, "rev-parse", "HEAD:file"))
    git(repo, "reset", "-q", "--hard", first)
    git(repo, "replace", first, second)
    git(repo, "reset", "-q", "--hard")
    assert (repo / "more").read_text() == "two\n"
    later = time.time() + 10  # so that git has no reason to read the files
    os.utime(repo / ".git/index", (later, later))
    taken, checkout, _ = trip(repo)
    assert differences(repo, checkout) == ""
    assert taken.changed == ["M file", "A more"]


def test_links_out_of_a_repo_are_named(repo):
    (repo / "folder").mkdir()
    for path, target in {
        "absolute": "/data/sets",
        "folder/up": "../../elsewhere",
        "folder/inside": "../train.py",
        "annexed": ".git/annex/objects/x",
        "dots": "..data",
    }.items():
        (repo / path).symlink_to(target)
    commit(repo)
    (repo / "untracked").symlink_to("..")
    found = [line.partition(" (a link to ") for line in snapshot.take(repo).doubtful]
    assert [(path, target.partition(",")[0]) for path, _, target in found] == [
        ("absolute", "/data/sets"),
        ("annexed", ".git/annex/objects/x"),
        ("folder/up", "../../elsewhere"),
        ("untracked", ".."),
    ]


@pytest.fixture
def partial(repo, tmp_path):
    """A clone without old files, in which only a folder is checked out."""
    git(repo, "config", "uploadpack.allowFilter", "true")
    git(repo, "config", "uploadpack.allowAnySHA1InWant", "true")
    for number in range(20):
        for folder in ("in", "out"):
            (repo / folder).mkdir(exist_ok=True)
            (repo / folder / str(number)).write_text(f"{folder} {number}\n")
    commit(repo)
    git(repo, "tag", "old")
    for number in range(20):
        (repo / "in" / str(number)).write_text(f"changed {number}\n")
    commit(repo)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--filter=blob:none", "--sparse", f"file://{repo}", str(clone))
    git(clone, "sparse-checkout", "set", "--no-cone", "/in/1")
    return clone


def test_a_partial_clone_fetches_nothing_that_does_not_travel(partial, trip, traced):
    (partial / "in/1").write_text("edited\n")
    taken, checkout, _ = trip(partial)
    assert differences(partial, checkout) == ""
    assert taken.left_out == ["40 files that are not in the working tree (sparse checkout)"]
    assert traced() == []


def test_an_old_commit_of_a_partial_clone_is_fetched_at_once(partial, traced, tmp_path):
    taken = snapshot.revision(partial, None, "old")
    files = snapshot.files_in(taken)
    assert files.text("out", "3") == "out 3\n" and files.text("in", "3") == "in 3\n"
    assert snapshot.bytes_to_send(taken, "bucket") > 0
    assert len(traced()) == 1
    git(partial, "remote", "set-url", "origin", f"file://{tmp_path}/offline")
    config.home().rename(tmp_path / "forgotten")
    with pytest.raises(BergError, match=r"lacks of [0-9a-f]{12}: .*could not fetch"):
        snapshot.revision(partial, None, "old")


@pytest.mark.parametrize("name", [b'a:b "c\\', b"by\xff", b"x" * 200])
def test_a_repo_may_have_any_name_and_so_may_its_files(repo, trip, name):
    there = repo.rename(repo.parent / os.fsdecode(name))
    odd = os.fsdecode(b"bad\xff")
    (there / odd).mkdir()
    (there / odd / "requirements.txt").write_text("x\n")
    taken, checkout, _ = trip(there)
    assert differences(there, checkout) == ""
    assert taken.changed == ["A bad\\xff/requirements.txt"]
    assert not snapshot.files_in(taken).below("", "requirements.txt")
    assert taken.repo_name.isascii() and len(taken.repo_name) <= 100
    spec = JobSpec(cmd="true")
    validation.check_size(launch.job_of(spec, config.Config(), "one", taken))
    made = launch.job_of(replace(spec, cwd=odd), config.Config(), "one", taken)
    with pytest.raises(BergError, match=r'this is not: "cwd": "bad\\xff … Rename it'):
        validation.check_size(made)

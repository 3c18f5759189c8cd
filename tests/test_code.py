"""Of code that is taken here, sent and checked out elsewhere: what goes along, what git says of it there, and what
is in the way.
"""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import BERG, Cloud, commit, git, write

from berg import BergError, code
from berg.code import Snapshot


def there(cloud: Cloud, snapshot: Snapshot, folder: Path) -> Path:
    """What a machine makes of it."""
    code.send(snapshot, cloud.bucket)
    code.check_out(folder, cloud.bucket, snapshot.record())
    return folder


def test_what_looks_like_a_secret_or_is_large_is_asked_for(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code.LARGE == 50_000_000
    monkeypatch.setattr(code, "LARGE", 500_000)
    secrets = [".env", "a/.env.local", "key.pem", "a/id_rsa", "id_ed25519", "id_ecdsa",
               "my-credentials-2.json"]  # fmt: skip
    others = ["env", "x.env", "id_rsa.pub", "pem.py", "credentials.py", "the.envs"]
    for name in [*secrets, *others, "tracked.bin", "new.bin", "small.bin"]:
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).touch()
    (project / "new.bin").unlink()
    with (project / "tracked.bin").open("wb") as file:
        file.truncate(code.LARGE + 1)
    commit(project)
    (project / "tracked.bin").write_bytes(b"x" * (code.LARGE + 2))
    for name, size in (("new.bin", 1_600_000), ("other.bin", code.LARGE)):
        with (project / name).open("wb") as file:
            file.truncate(size)
    found = code.warnings(code.take(project))
    large = found.pop()
    assert large == "new.bin is untracked, and 2 MB"
    assert sorted(text.split()[0] for text in found) == sorted(secrets)
    assert all("looks like a secret, and would be sent" in text for text in found)


def test_a_plan_says_which_code_it_is(project: Path, tmp_path: Path) -> None:
    head = git(project, "rev-parse", "HEAD")
    assert str(code.take(project)) == f"proj at {head[:12]} (main)"
    (project / "sub").mkdir()
    for name in ("one", "sub/two"):
        (project / name).write_text("new")
    (project / "train.py").unlink()
    taken = code.take(project / "sub")
    assert str(taken) == f"proj at {head[:12]} (main), with 3 changed files"
    assert taken.cwd == "sub" and taken.changed == ["D train.py", "? one", "? sub/two"]
    assert taken.head == head != taken.commit and taken.files == ["one", "sub/two"]
    assert taken.within("./sub/") == "sub" and taken.within(".") == "."
    with pytest.raises(BergError, match=f"no such folder. Give its path from {project}"):
        taken.within("su")
    git(project, "checkout", "-q", "--detach")
    git(project, "stash", "-q", "-u")
    assert str(code.take(project)) == f"proj at {head[:12]}"
    new = tmp_path / "new"
    new.mkdir()
    git(new, "init", "-q", "-b", "main")
    with pytest.raises(BergError, match="no commit, and no file that could be sent"):
        code.take(new)
    (new / "file").write_text("x")
    assert str(code.take(new)) == "new at no commit (main), with 1 changed file"


@pytest.mark.parametrize("name", ["main", "side", "v1", "HEAD~1"])
def test_a_commit_that_is_named_is_sent_as_it_is(
    cloud: Cloud, project: Path, tmp_path: Path, name: str
) -> None:
    git(project, "tag", "v1")
    git(project, "checkout", "-q", "-b", "side")
    git(project, "update-ref", "refs/remotes/origin/side", "main")  # what is here counts
    commit(project, {"train.py": "of side\n"})
    (project / "train.py").write_text("edited\n")
    taken = code.take(project, name)
    assert (taken.is_named, taken.changed) == (True, [])
    assert taken.commit == taken.head == git(project, "rev-parse", f"{name}^{{commit}}")
    assert taken.branch == (name if name in ("main", "side") else "")
    out = there(cloud, taken, tmp_path / "out")
    assert (out / "train.py").read_text() == git(project, "show", f"{name}:train.py") + "\n"
    assert git(out, "branch", "--show-current") == taken.branch
    assert git(out, "status", "--porcelain") == ""
    with pytest.raises(BergError, match="no commit, tag or branch 'nosuch'. If it is new: git f"):
        code.take(project, "nosuch")


def test_a_branch_of_origin_is_sent_whatever_the_working_tree_has(
    cloud: Cloud, tmp_path: Path
) -> None:
    """Here of a repository whose names are SHA-256."""
    source, clone = tmp_path / "source", tmp_path / "clone"
    git(tmp_path, "init", "-q", "-b", "side", "--object-format=sha256", str(source))
    commit(source, {"train.py": "of side"})
    git(source, "checkout", "-q", "-b", "main")
    git(tmp_path, "clone", "-q", source.as_uri(), str(clone))
    (clone / "train.py").write_text("edited")
    for branch, text in {"side": "of side", "": "edited"}.items():
        out = there(cloud, code.take(clone, branch), tmp_path / f"out-{branch}")
        assert (out / "train.py").read_text() == text


def test_what_is_no_working_tree_is_named(tmp_path: Path) -> None:
    with pytest.raises(BergError, match=f"{tmp_path} is not in a git repository. Create one"):
        code.take(tmp_path)
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    with pytest.raises(BergError, match="bare.git is a bare repository"):
        code.take(tmp_path / "bare.git")


def test_history_goes_along_as_far_as_it_is_here(
    cloud: Cloud, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        git(project, "tag", f"light{number}")
        git(project, "tag", "-a", f"heavy{number}", "-m", "x")
        commit(project, {"file": str(number)})
    git(project, "checkout", "-q", "-b", "other", "HEAD~2")
    (project / "aside").touch()
    commit(project)
    git(project, "tag", "aside")  # of no history of what is sent
    git(project, "checkout", "-q", "main")
    out = there(cloud, code.take(project), tmp_path / "whole")
    assert git(out, "rev-list", "--count", "HEAD") == "4"
    tags = [f"{kind}{number}" for kind in ("heavy", "light") for number in range(3)]
    assert git(out, "tag").split() == tags
    assert git(out, "cat-file", "-t", "heavy1") == "tag"
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "2", project.as_uri(), str(clone))
    (clone / "file").write_text("edited")
    out = there(cloud, code.take(clone), tmp_path / "shallow")
    assert git(out, "rev-list", "--count", "HEAD") == "2"
    assert git(out, "status", "--porcelain") == "M file"
    monkeypatch.setattr(code, "HISTORY", 3)
    (project / "file").write_text("edited")
    out = there(cloud, code.take(project), tmp_path / "cut")
    assert git(out, "rev-list", "--count", "HEAD") == "1"
    assert git(out, "status", "--porcelain") == "M file" and git(out, "tag") == ""
    monkeypatch.setattr(code, "HISTORY", 10)
    monkeypatch.setattr(code, "TAGS", 2)
    taken = code.take(project)
    assert len(taken.tags) == 4 and len(taken.history) == 5  # of each kind


def test_a_repository_on_a_machine_has_the_users_settings(
    cloud: Cloud, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    git(project, "config", "core.autocrlf", "false")
    out = there(cloud, code.take(project), tmp_path / "none")
    named = git(out, "config", "--local", "--list").splitlines()
    own = [line for line in named if line.startswith(("user", "remote", "core.autocrlf"))]
    assert own == ["user.name=berg", "user.email=berg@localhost"]
    for name, text in {"user.name": "me", "user.email": "me@here", "core.abbrev": "12"}.items():
        git(project, "config", name, text)
    git(project, "config", "--add", "user.name", "me again")
    git(project, "remote", "add", "origin", "https://me:t0ken@github.com/me/proj.git")
    record = code.take(project).record()
    assert "t0ken" not in str(record)
    record["settings"]["core.sshCommand"] = "touch /tmp/started"  # of a record of somebody
    code.check_out(tmp_path / "out", cloud.bucket, record)
    named = git(tmp_path / "out", "config", "--local", "--list").splitlines()
    expected = ["user.name=me again", "user.email=me@here", "core.abbrev=12",
                "remote.origin.url=https://github.com/me/proj.git", "remote.origin.promisor=true",
                "remote.origin.fetch=+refs/heads/*:refs/remotes/origin/*"]  # fmt: skip
    assert {*expected} <= {*named} and "sshcommand" not in str(named).lower()


def test_a_record_names_commits_and_places_of_submodules_alone(
    cloud: Cloud, project: Path, tmp_path: Path
) -> None:
    record = code.take(project).record()
    code.send(code.take(project), cloud.bucket)
    wrong = [{"commit": "HEAD"}, {"head": "--help"}, {"shallow": ["x"]}, {"tags": {"v": "x"}}]
    for each in wrong:
        with pytest.raises(BergError, match="is no commit"):
            code.check_out(tmp_path / "out", cloud.bucket, {**record, **each})
    odd = {"branch": "a..b", "tags": {"../../x": record["head"], "v1": record["head"]}}
    odd |= {"submodules": {"../beside": record}}
    code.check_out(tmp_path / "out", cloud.bucket, {**record, **odd})
    assert git(tmp_path / "out", "branch", "--show-current") == ""
    assert git(tmp_path / "out", "tag") == "v1" and not (tmp_path / "beside").exists()


def test_submodules_go_along_as_they_are_and_those_that_are_missing_are_named(
    cloud: Cloud, project: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        inner = tmp_path / name
        commit(inner, {"file": "before\n"})
        git(project, "submodule", "--quiet", "add", str(inner), f"libs/{name}")
    commit(project)
    git(project, "submodule", "--quiet", "deinit", "-f", "libs/two")
    (project / "libs/one/file").write_text("after\n")
    taken = code.take(project)
    assert taken.missing == ["libs/two"] and "libs/one/file" in taken.files
    assert ", and libs/one, with 1 changed" in str(taken)
    out = there(cloud, taken, tmp_path / "out")
    assert (out / "libs/one/file").read_text() == "after\n"
    assert git(out / "libs/one", "status", "--porcelain") == "M file"
    assert git(out / "libs/one", "log", "--format=%s") == "files"
    named = there(cloud, code.take(project, "main"), tmp_path / "named")
    assert (named / "libs/one/file").read_text() == "before\n"
    cloud.call("DELETE", "/_berg/requests")
    code.send(taken, cloud.bucket)
    asked = str(cloud.call("GET", "/_berg/requests"))
    assert "storage.objects.get" in asked and "insert" not in asked  # it is sent once


def test_the_bucket_has_what_machines_need_and_what_was_replaced_is_sent_again(
    cloud: Cloud,
) -> None:
    told = code.provide(cloud.bucket)
    assert [row.split("==")[0] for row in told["berg-packages"].split()] == code.PACKAGES
    name = told["berg-dist"]
    before = cloud.bucket.get(name)
    assert before and code.provide(cloud.bucket) == told
    assert cloud.bucket.get(name) == before
    cloud.bucket.write(name, b"of somebody else", before.generation)
    code.provide(cloud.bucket)
    for key in ("berg-dist", "berg-uv"):
        assert hashlib.sha256(cloud.read(told[key])).hexdigest() == told[f"{key}-sha256"]


def test_commits_on_no_branch_are_saved(project: Path, tmp_path: Path) -> None:
    sent, target = git(project, "rev-parse", "HEAD"), tmp_path / "bundle"
    assert code.save_commits(project, sent, target) == "" and not target.exists()
    git(project, "checkout", "-q", "--detach")
    git(project, "commit", "-q", "--allow-empty", "-m", "by the job")
    assert code.save_commits(project, sent, target) == "1 new commits"
    assert git(project, "bundle", "list-heads", str(target)).endswith(" HEAD")


def test_a_record_lists_a_hundred_changes(project: Path) -> None:
    for number in range(101):
        (project / f"new{number:03}").touch()
    taken = code.take(project)
    assert len(taken.changed) == 101 and taken.record()["changed"][-1] == "? new099"


def listed(folder: Path, *but: str) -> dict[str, tuple[str, str]]:
    """The mode and content of files below a folder, and where links lead, except in some folders."""
    found = {}
    for path in folder.rglob("*"):
        name, is_link = str(path.relative_to(folder)), path.is_symlink()
        if (is_link or path.is_file()) and not name.startswith((".git/", *but)):
            mode = "link" if is_link else oct(path.stat().st_mode & 0o111)
            found[name] = mode, os.readlink(path) if is_link else path.read_text()
    return found


def test_the_working_tree_travels_as_it_is(cloud: Cloud, project: Path, tmp_path: Path) -> None:
    git(project, "config", "filter.rot.clean", "tr a-y b-z")
    git(project, "config", "filter.rot.smudge", "tr b-z a-y")
    rules = {".gitignore": "data/\n*.tmp\n", ".gitattributes": "key filter=rot\nnew filter=rot\n"}
    plain = dict.fromkeys(("file", "folder/inner", "gone", "kept"), "before\n")
    commit(project, {**rules, **plain, "key": "abc\n"})
    assert git(project, "show", "HEAD:key") == "bcd"
    (project / "new").write_text("def\n")
    (project / "file").unlink()
    write(project, {"file/inner": "after\n"})
    shutil.rmtree(project / "folder")
    (project / "folder").symlink_to("file")
    (project / "gone").unlink()
    (project / "run").write_text("#!/bin/sh\n")
    (project / "run").chmod(0o755)
    (project / "dangling").symlink_to("nowhere")
    write(project, {"sp ace 'q\" ünï/-ö\tt": "new"})
    left = ("data/big", "x.tmp", "my env/pyvenv.cfg", "my env/bin/python")
    write(project, dict.fromkeys(left, "stays here"))
    git(project, "add", "kept", "run")
    before = git(project, "status", "--porcelain"), git(project, "for-each-ref")
    out = there(cloud, code.take(project), tmp_path / "out")
    assert listed(out) == listed(project, "data/", "x.tmp", "my env/")
    assert (git(project, "status", "--porcelain"), git(project, "for-each-ref")) == before


def test_settings_of_git_that_stop_it_stop_no_submit(cloud: Cloud, project: Path) -> None:
    of_git = {"core.autocrlf": "true", "core.safecrlf": "true", "pack.packSizeLimit": "1m"}
    for key, text in of_git.items():
        git(project, "config", key, text)
    (project / "new").write_text("a line\n")
    (project / "large").write_bytes(os.urandom(2_500_000))  # more than the limit, which git raises
    code.send(taken := code.take(project), cloud.bucket)
    assert cloud.bucket.get(taken.object)


def test_filters_of_a_repository_in_the_repository_start_nothing(
    cloud: Cloud, project: Path, tmp_path: Path
) -> None:
    """Also not those of its submodules, which it says are its own."""
    mark = tmp_path / "started"
    for path in ("theirs/deep", "theirs"):
        folder = project / path
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "-q")
        commit(
            folder,
            {
                ".gitattributes": "*.py filter=a=b.c\n*.txt filter=other\n",
                "file.py": "theirs\n",
                "file.txt": "theirs\n",
            },
        )
        for name in ("a=b.c", "other"):
            git(folder, "config", f"filter.{name}.clean", f"touch {mark}; cat")
            git(folder, "config", f"filter.{name}.required", "true")
        write(folder, {"file.py": "edited\n", "file.txt": "edited\n"})
    out = there(cloud, code.take(project), tmp_path / "out")
    for path in ("theirs", "theirs/deep"):
        for name in ("file.py", "file.txt"):
            assert (out / path / name).read_text() == "edited\n"
    assert not mark.exists()


def test_code_that_cannot_be_taken_is_refused(cloud: Cloud, project: Path, tmp_path: Path) -> None:
    def refused(*says: str, **env: str) -> None:
        done = cloud.run("run", "-g", "0", "-n", "untaken", "true", cwd=project, **env)
        assert done.code == 1 and all(text in done.err for text in says), done.err
        assert not cloud.read(".berg/jobs/untaken_state.json")

    blob = git(project, "rev-parse", "HEAD:train.py")
    place = project / ".git/objects" / blob[:2] / blob[2:]
    lost = place.rename(tmp_path / "lost")
    refused("git fsck", "git fetch")
    lost.rename(place)
    stages = "".join(f"100644 {blob} {stage}\ttrain.py\n" for stage in (1, 2, 3))
    words = ["git", "update-index", "--index-info"]
    subprocess.run(words, cwd=project, input=stages, text=True, check=True)
    refused("train.py: merge conflicts", "git status")
    git(project, "reset", "-q", "--hard")
    (project / "inner").mkdir()
    git(project / "inner", "init", "-q")
    refused("git add", "inner")
    shutil.rmtree(project / "inner")
    (tmp_path / "bin").mkdir()
    words = [*BERG, "run", "true"]  # others have it imported
    env = {**cloud.env, "PATH": str(tmp_path / "bin")}
    done = subprocess.run(words, cwd=project, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "git is not installed" in done.stderr, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_repository_of_another_user_is_named(cloud: Cloud, project: Path) -> None:
    for path in (project, project / ".git"):
        os.chown(path, 12345, 12345)
    cloud.fails("run", "-g", "0", "true", cwd=project, says=f"--add safe.directory {project}")


def test_pointers_of_git_lfs_without_content_are_named(cloud: Cloud, project: Path) -> None:
    (project / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    for number in range(5):
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{number:064}\nsize 5\n"
        (project / f"{number}.bin").write_text(pointer)
    (project / "here.bin").write_bytes(b"12345")
    commit(project)
    done = cloud.run("run", "-g", "0", "--dry-run", "true", cwd=project)
    assert done.code == 0 and "0.bin, 1.bin, 2.bin and 2 more: Git LFS has the" in done.out
    assert "here.bin" not in done.out


ASKED = [
    "describe --tags --dirty --long", "describe --tags --match v* --long", "status --porcelain",
    "rev-list --count HEAD", "branch --show-current", "log --oneline -4", "remote get-url origin",
    "config user.email", "diff --stat",
]  # fmt: skip


def test_git_answers_as_on_the_laptop(cloud: Cloud, project: Path, tmp_path: Path) -> None:
    for words in ("config user.name me", "config user.email me@example.com", "tag -a v1.2 -m one"):
        git(project, *words.split())
    git(project, "remote", "add", "origin", "https://github.com/me/proj.git")
    for number in range(3):
        commit(project, {f"file{number}": "x"})
    git(project, "tag", "light")
    write(project, {"train.py": "print('changed')\n", "new": "new"})
    lines = "; ".join(f"echo '{words}:' $(git {words})" for words in ASKED)
    known = "echo $USER $LOGNAME; ls -d $BERG_RESULTS_DIR $BERG_REPO_DIR $BERG_SCRATCH_DIR; env"
    made = "git checkout -qb mine && git add -A && git commit -qm 'by the job'"
    words = ["-n", "asks-git", "--wait", f"{lines}; {known}; {made}"]
    done = cloud.run("run", "-g", "0", *words, cwd=project)
    assert done.code == 0, cloud.log("asks-git")
    log = cloud.log("asks-git")
    for words in ASKED:
        assert f"{words}: {' '.join(git(project, *words.split()).split())}\n" in log, (words, log)
    page = (Path(__file__).parents[1] / "docs/environment.md").read_text()
    promised = {*re.findall(r"BERG_[A-Z_]+", page)} - {"BERG_ROW"}  # which is that of a sweep
    told = dict(re.findall(r"^(\w+)=(.+)", log, re.M))
    assert len(promised) > 10 and promised <= told.keys()
    assert {
        "BERG_JOB": "asks-git", "BERG_ATTEMPT": "1", "BERG_BUCKET": cloud.config.bucket,
        "BERG_NUM_GPUS": "0", "BERG_DATA_DIR": "/root/data", "BERG_REPO_DIR": "/root/code/proj",
        "BERG_RESULTS_DIR": "/root/berg_results/asks-git", "BERG_SCRATCH_DIR": "/root/scratch",
        "PYTHONUNBUFFERED": "1",  # else a log is minutes late
    }.items() <= told.items()  # fmt: skip
    assert "\nroot root\n" in log and "No such file" not in log
    assert "1 new commits on mine are saved in berg_commits.bundle" in log
    assert cloud.run("fetch", "asks-git", str(tmp_path / "out")).code == 0
    git(project, "fetch", "-q", f"{tmp_path}/out/berg_commits.bundle", "*:*")
    assert git(project, "log", "--format=%s", "-1", "mine") == "by the job"
    assert git(project, "show", "mine:new") == "new"

"""The working tree travels as it is, or what is in the way is named."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import BERG, Cloud, commit, git

LIST = """\
import json, os, sys
found = {}
for folder, folders, files in os.walk("."):
    folders[:] = [each for each in folders if each not in (".git", "berg_results")]
    for name in files + [each for each in folders if os.path.islink(f"{folder}/{each}")]:
        path = os.path.join(folder, name)
        is_link = os.path.islink(path)
        mode = "link" if is_link else oct(os.stat(path).st_mode & 0o111)
        found[path] = mode, os.readlink(path) if is_link else open(path, errors="replace").read()
print("listed", json.dumps(found, sort_keys=True))
"""


def listed(folder: Path, *but: str) -> dict[str, list[str]]:
    words = ["python3", "list.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout.removeprefix("listed "))
    return {path: row for path, row in found.items() if not path[2:].startswith(but)}


def test_the_working_tree_travels_as_it_is(cloud: Cloud, project: Path) -> None:
    for name in ("file", "folder/inner", "gone", "kept"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("before\n")
    (project / "list.py").write_text(LIST)
    (project / ".gitignore").write_text("data/\n*.tmp\n")
    (project / ".gitattributes").write_text("key filter=rot\nnew filter=rot\n")
    git(project, "config", "filter.rot.clean", "tr a-y b-z")
    git(project, "config", "filter.rot.smudge", "tr b-z a-y")
    (project / "key").write_text("abc\n")
    commit(project)
    assert git(project, "show", "HEAD:key") == "bcd"
    (project / "new").write_text("def\n")
    (project / "file").unlink()
    (project / "file").mkdir()
    (project / "file/inner").write_text("after\n")
    shutil.rmtree(project / "folder")
    (project / "folder").symlink_to("file")
    (project / "gone").unlink()
    (project / "run").write_text("#!/bin/sh\n")
    (project / "run").chmod(0o755)
    (project / "dangling").symlink_to("nowhere")
    (project / "sp ace 'q\" ünï").mkdir()
    (project / "sp ace 'q\" ünï/-ö\tt").write_text("new")
    for left in ("data/big", "x.tmp", "my env/pyvenv.cfg", "my env/bin/python"):
        (project / left).parent.mkdir(parents=True, exist_ok=True)
        (project / left).write_text("stays here")
    git(project, "add", "kept", "run")
    before = git(project, "status", "--porcelain"), git(project, "for-each-ref")
    words = ["run", "-g", "0", "-n", "travels", "--wait", "python3 list.py"]
    assert cloud.run(*words, cwd=project).code == 0, cloud.log("travels")
    (line,) = [line for line in cloud.log("travels").splitlines() if line.startswith("listed ")]
    assert json.loads(line[7:]) == listed(project, "data/", "x.tmp", "my env/")
    assert (git(project, "status", "--porcelain"), git(project, "for-each-ref")) == before


@pytest.mark.slow
def test_a_branch_of_origin_runs_whatever_the_working_tree_has(
    cloud: Cloud, project: Path, tmp_path: Path
) -> None:
    source, clone = tmp_path / "source", tmp_path / "clone"
    git(tmp_path, "init", "-q", "-b", "main", "--object-format=sha256", str(source))
    (source / "train.py").write_text("print('of main')\n")
    commit(source)
    git(source, "checkout", "-q", "-b", "side")
    (source / "train.py").write_text("print('of side')\n")
    commit(source)
    git(source, "checkout", "-q", "main")
    git(tmp_path, "clone", "-q", source.as_uri(), str(clone))
    (clone / "train.py").write_text("print('edited')\n")
    for branch, says in (("side", "of side"), ("", "edited")):
        options = ["--branch", branch] if branch else []
        name = f"branch-{branch or 'none'}"
        words = ["run", "-g", "0", "-n", name, *options, "--wait", "python3 train.py"]
        done = cloud.run(*words, cwd=clone)
        assert done.code == 0, (done.err, cloud.log(name))
        assert f"\n{says}\n" in cloud.log(name), cloud.log(name)


def test_code_that_cannot_be_taken_is_refused(cloud: Cloud, project: Path, tmp_path: Path) -> None:
    def refused(*says: str, **env: str) -> None:
        done = cloud.run("run", "-g", "0", "-n", "untaken", "true", cwd=project, **env)
        assert done.code == 1 and all(text in done.err for text in says), done.err
        assert not cloud.read(".berg/jobs/untaken_state.json")

    blob = git(project, "rev-parse", "HEAD:train.py")
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


@pytest.mark.slow
def test_filters_of_a_repository_in_the_repository_start_nothing(
    cloud: Cloud, project: Path, tmp_path: Path
) -> None:
    """Also not those of its submodules, which it says are its own."""
    mark = tmp_path / "started"
    for path in ("theirs/deep", "theirs"):
        folder = project / path
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "-q")
        (folder / ".gitattributes").write_text("*.py filter=a=b.c\n*.txt filter=other\n")
        (folder / "file.py").write_text("theirs\n")
        (folder / "file.txt").write_text("theirs\n")
        commit(folder)
        for name in ("a=b.c", "other"):
            git(folder, "config", f"filter.{name}.clean", f"touch {mark}; cat")
            git(folder, "config", f"filter.{name}.required", "true")
        (folder / "file.py").write_text("edited\n")
        (folder / "file.txt").write_text("edited\n")
    words = ["run", "-g", "0", "-n", "theirs", "--wait", "cat theirs/file.* theirs/deep/file.*"]
    done = cloud.run(*words, cwd=project)
    assert done.code == 0 and not mark.exists(), done.err
    assert cloud.log("theirs").count("\nedited\n") == 2, cloud.log("theirs")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_repository_of_another_user_is_named(cloud: Cloud, project: Path) -> None:
    for path in (project, project / ".git"):
        os.chown(path, 12345, 12345)
    done = cloud.run("run", "-g", "0", "true", cwd=project)
    assert done.code == 1 and f"--add safe.directory {project}" in done.err, done.err


def test_pointers_of_git_lfs_without_content_are_named(cloud: Cloud, project: Path) -> None:
    (project / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5\n"
    (project / "model.bin").write_text(pointer)
    (project / "here.bin").write_bytes(b"12345")
    commit(project)
    done = cloud.run("run", "-g", "0", "--dry-run", "true", cwd=project)
    assert done.code == 0 and "model.bin: Git LFS has the content" in done.out, done.out
    assert "here.bin" not in done.out

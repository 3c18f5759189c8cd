"""Git on the machine answers as on the laptop, and what a job commits comes back."""

from pathlib import Path

from conftest import Cloud, commit, git

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
        (project / f"file{number}").write_text("x")
        commit(project)
    git(project, "tag", "light")
    (project / "train.py").write_text("print('changed')\n")
    (project / "new").write_text("new")
    lines = "; ".join(f"echo '{words}:' $(git {words})" for words in ASKED)
    made = "git checkout -qb mine && git add -A && git commit -qm 'by the job'"
    words = ["-n", "asks-git", "--wait", f"{lines}; echo $USER $LOGNAME; {made}"]
    done = cloud.run("run", "-g", "0", *words, cwd=project)
    assert done.code == 0, cloud.log("asks-git")
    log = cloud.log("asks-git")
    for words in ASKED:
        assert f"{words}: {' '.join(git(project, *words.split()).split())}\n" in log, (words, log)
    assert "\nroot root\n" in log
    assert "1 new commits on mine are saved in berg_commits.bundle" in log
    assert cloud.run("fetch", "asks-git", str(tmp_path / "out")).code == 0
    git(project, "fetch", "-q", f"{tmp_path}/out/berg_commits.bundle", "*:*")
    assert git(project, "log", "--format=%s", "-1", "mine") == "by the job"
    assert git(project, "show", "mine:new") == "new"


def test_a_damaged_repository_is_named_with_what_helps(cloud: Cloud, project: Path) -> None:
    name = git(project, "rev-parse", "HEAD:train.py")
    (project / ".git/objects" / name[:2] / name[2:]).unlink()
    done = cloud.run("run", "-g", "0", "-n", "damaged", "true", cwd=project)
    assert done.code == 1 and "git fsck" in done.err and "git fetch" in done.err, done.err
    assert not cloud.read(".berg/jobs/damaged_state.json")

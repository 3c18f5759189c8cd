"""A secret reaches what it is for, and nothing else."""

import os
import shlex
from pathlib import Path

import pytest
from conftest import Cloud

SHOW = 'test "$TOKEN" = "$EXPECTED-x" && echo "<$LOGIN>"'


def secrets(cloud: Cloud) -> list[str]:
    listed = cloud.call("GET", "/secretmanager/v1/projects/berg-local/secrets").get("secrets", [])
    return [row["name"].rpartition("/")[2] for row in listed]


def test_each_secret_reaches_what_it_is_for_and_is_in_no_object(
    cloud: Cloud, project: Path
) -> None:
    (cloud.home / "login").write_text("open-sesame\n")
    words = ["-g", "0", "-n", "kept", "--env", "EXPECTED=hunter2", "--secret", "TOKEN"]
    words += ["--install-secret", f"LOGIN={cloud.home}/login"]
    words += ["--install", 'test -z "$TOKEN" && test "$(echo $LOGIN | tr - +)" = open+sesame']
    done = cloud.run("run", *words, "--wait", SHOW, cwd=project, TOKEN="hunter2-x")
    assert done.code == 0, cloud.log("kept")
    assert "<>" in cloud.log("kept"), "the command has the secret of the installation"
    told = [done.out, done.err, *(cloud.read(name).decode("latin1") for name in cloud.names())]
    assert not any("hunter2-x" in text or "open-sesame" in text for text in told)
    assert not [name for name in secrets(cloud) if name.startswith("berg-kept")]


@pytest.mark.slow
def test_a_killed_job_leaves_none_and_is_given_its_secrets_again(
    cloud: Cloud, project: Path
) -> None:
    words = ["run", "-g", "0", "-n", "gone", "--secret", "TOKEN", "sleep 300"]
    assert cloud.run(*words, cwd=project, TOKEN="x").code == 0
    (own,) = [name for name in secrets(cloud) if name.startswith("berg-gone-")]
    look = 'while [ -z "$TOKEN" ]; do . /dev/shm/berg-*-gone.sh; sleep 1; done 2>/dev/null; echo "<$TOKEN>"'
    assert cloud.run("ssh", "gone", "--", f"timeout 60 bash -c {shlex.quote(look)}").out == "<x>\n"
    assert cloud.run("kill", "-y", "--now", "gone").code == 0
    assert own not in secrets(cloud)
    for words in (["rerun", "gone"], ["run", "--resume", "gone"]):
        done = cloud.run(*words, "--dry-run", cwd=project, TOKEN="x")
        assert done.code == 1 and "Add: --secret TOKEN" in done.err
        done = cloud.run(*words, "--dry-run", "--secret", "TOKEN", cwd=project, TOKEN="x")
        assert done.code == 0 and "TOKEN" in done.out, done.err


def test_what_cannot_be_a_secret_is_refused(cloud: Cloud, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.berg]\nsecret = ["KEY=/etc/passwd"]\n')
    run = ["run", "-g", "0", "--dry-run"]
    for words, reason in [
        (["--secret", "NOT_SET_HERE"], "there is no variable NOT_SET_HERE"),
        (["--secret", "TOKEN=/no/such/file"], "cannot read /no/such/file"),
        (["--secret", "BERG_JOB"], "BERG_"),
        (["--secret", "TOKEN", "--env", "TOKEN=1"], "TOKEN has two values"),
        ([], "are needed again"),  # a repository chooses no file of this computer
    ]:
        done = cloud.run(*run, *words, "true", cwd=project, TOKEN="x")
        assert done.code == 1 and reason in done.err, done.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_other_users_of_a_machine_find_no_variable_of_the_command(
    cloud: Cloud, project: Path
) -> None:
    look = "grep -sl hunter[2]-x /proc/[0-9]*/environ /proc/[0-9]*/cmdline /dev/shm/berg-*"
    line = f"cd $BERG_RESULTS_DIR; grep -q TOKEN /dev/shm/berg-*-alone.sh && {look} | wc -l >root; "
    line += f"env -i setpriv --reuid 65534 --clear-groups sh -c 'id -u; {look}' >other || true"
    words = ["run", "-g", "0", "-n", "alone", "--install", "none", "--secret", "TOKEN", "--wait"]
    assert cloud.run(*words, line, cwd=project, TOKEN="hunter2-x").code == 0, cloud.log("alone")
    assert int(cloud.read("berg_results/alone/root")) >= 2, "root finds it, so the look is right"
    assert cloud.read("berg_results/alone/other") == b"65534\n"

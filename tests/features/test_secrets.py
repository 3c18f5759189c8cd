"""A secret reaches what it is for, and nothing else."""

import os
import shlex
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud
from inside import job_of, plan_of, run_of

from berg import BergError
from berg.features import secrets as secret
from berg.worker import Ending

SHOW = 'test "$TOKEN" = "$EXPECTED-x" && echo "<$LOGIN>"'


def test_each_secret_reaches_what_it_is_for_and_is_in_no_object(
    cloud: Cloud, project: Path
) -> None:
    (cloud.home / "login").write_text("open-sesame\n")
    words = ["-g", "0", "-n", "kept", "--env", "EXPECTED=hunter2", "--secret", "TOKEN"]
    words += ["--install-secret", f"LOGIN={cloud.home}/login"]
    line = 'test -z "$TOKEN" && test "$(echo $LOGIN | tr - +)" = open+sesame && test $INDEX = here'
    words += ["--install", line, "--env", "INDEX=here"]
    done = cloud.run("run", *words, "--wait", SHOW, cwd=project, TOKEN="hunter2-x")
    assert done.code == 0, cloud.log("kept")
    assert done.err.endswith("\nIts results: berg fetch kept\n")
    assert "<>" in cloud.log("kept"), "the command has the secret of the installation"
    told = [done.out, done.err, *(cloud.read(name).decode("latin1") for name in cloud.names())]
    assert not any("hunter2-x" in text or "open-sesame" in text for text in told)
    assert not cloud.secrets("kept")


@pytest.mark.slow
def test_a_killed_job_leaves_none_and_is_given_its_secrets_again(
    cloud: Cloud, project: Path
) -> None:
    words = ["run", "-g", "0", "-n", "gone", "--secret", "TOKEN", "sleep 300"]
    assert cloud.run(*words, cwd=project, TOKEN="x").code == 0
    assert len(cloud.secrets("gone")) == 1
    look = 'while [ -z "$TOKEN" ]; do . /dev/shm/berg-*-gone.sh; sleep 1; done 2>/dev/null; echo "<$TOKEN>"'
    assert cloud.run("ssh", "gone", "--", f"timeout 60 bash -c {shlex.quote(look)}").out == "<x>\n"
    assert cloud.run("kill", "-y", "--now", "gone").code == 0
    assert not cloud.secrets("gone")
    for words in (["rerun", "gone"], ["run", "--resume", "gone"]):
        cloud.fails(*words, "--dry-run", says="Add: --secret TOKEN", cwd=project, TOKEN="x")
        done = cloud.run(*words, "--dry-run", "--secret", "TOKEN", cwd=project, TOKEN="x")
        assert done.code == 0 and "TOKEN" in done.out, done.err


def test_what_cannot_be_a_secret_is_refused(cloud: Cloud, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.berg]\nsecret = ["KEY=/etc/passwd"]\n')
    (project / "long").write_text("x" * (64 << 10))
    for words, reason in [
        (["--secret", "NOT_SET_HERE"], "there is no variable NOT_SET_HERE"),
        (["--secret", "TOKEN=/no/such/file"], "cannot read /no/such/file"),
        (["--secret", "BERG_JOB"], "BERG_"),
        (["--secret", "TOKEN", "--env", "TOKEN=1"], "TOKEN has two values"),
        (["--secret", "TOKEN", "--secret", f"TOKEN={project}/train.py"], "TOKEN has two values"),
        (["--secret", f"LONG={project}/long"], "at most 65536 bytes"),
        ([], "are needed again"),  # a repository chooses no file of this computer
    ]:
        run = ["run", "-g", "0", "--dry-run", *words, "true"]
        cloud.fails(*run, says=reason, cwd=project, TOKEN="x")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("TOKEN", "of here"), ("TOKEN=FILE", "of a file"), ("_t9=FILE", "of a file"),
        ("EMPTY", ""), ("9TOKEN", None), ("TO-KEN", None), ("T\u00f6KEN", None), ("PET_X", None),
        ("MASTER_ADDR", None), ("BERG_X", None), ("NOT_SET", None), ("TOKEN=BINARY", None),
        ("TOKEN=NUL", None), ("TOKEN=/", None),
    ],
)  # fmt: skip
def test_a_value_is_that_of_a_variable_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, value: str | None
) -> None:
    monkeypatch.setenv("TOKEN", "of here")
    for name in ("9TOKEN", "TO-KEN", "T\u00f6KEN", "PET_X", "MASTER_ADDR", "BERG_X"):
        monkeypatch.setenv(name, "of here, too")
    monkeypatch.setenv("EMPTY", "")
    files = {"FILE": b"of a file\n", "BINARY": b"\xff\xfe", "NUL": b"a\0b"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        text = text.replace(f"={name}", f"={tmp_path}/{name}")
    if value is None:
        with pytest.raises(BergError) as refused:
            secret.read("--secret", text)
        assert "of here" not in str(refused.value) and "--secret" in str(refused.value)
    else:
        assert secret.read("--secret", text) == (text.partition("=")[0], value)


def test_a_record_has_the_names_alone() -> None:
    made = secret.Secrets(secret=["B=/f", "A", "B"], install_secret=["C=/g"], values={"A": "x"})
    assert made.record() == {"secret": ["A", "B"], "install_secret": ["C"]}
    assert "x" not in repr(made).replace("secret", "")


@pytest.mark.parametrize(
    ("state", "about", "rank", "is_over"),
    [
        ("SUCCEEDED", {}, 0, True),
        ("KILLED", {}, 0, True),
        ("SUBMITTED", {}, 0, False),  # the next attempt needs them
        ("STOPPED", {}, 0, False),
        ("SUCCEEDED", {"name": "over/1"}, 0, False),
        ("SUCCEEDED", {"machines": 2}, 1, False),
        ("SUCCEEDED", {"machines": 2, "rows": [{"x": "1"}]}, 1, True),
    ],
)
def test_when_secrets_have_done_their_work(
    tmp_path: Path, state: str, about: Any, rank: int, is_over: bool
) -> None:
    job = job_of(**{"name": "over", **about})
    assert secret.is_over(run_of(None, tmp_path, job, rank=rank), Ending(state)) == is_over


def test_a_machine_gives_each_secret_to_what_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc, values = tmp_path / "netrc", {"TOKEN": "t", "NETRC": "machine x", "PIP": "p"}
    monkeypatch.setattr(secret, "NETRC_FILE", netrc)
    monkeypatch.setattr(secret, "MOUNTED", tmp_path / "mounted")
    own = secret.Secrets(secret=["TOKEN"], install_secret=["NETRC", "PIP"], values=values)
    run = run_of(None, tmp_path, job_of("gives"))
    own.prepare(run)
    assert run.install_variables == {"NETRC": str(netrc), "PIP": "p"} and run.variables == {}
    assert netrc.read_text() == "machine x" and netrc.stat().st_mode & 0o777 == 0o600
    with own.around(run):
        assert run.variables == {"TOKEN": "t"} and not netrc.exists()
    (tmp_path / "mounted").write_text('{"TOKEN": "of a pod"}')
    own = secret.Secrets(secret=["TOKEN"])
    own.prepare(run)
    assert own.values == {"TOKEN": "of a pod"}


def test_a_secret_is_for_the_machines_account_alone_and_goes_by_itself(cloud: Cloud) -> None:
    job = job_of("apart", max_seconds=3600)
    name = secret.secret_id(job)
    assert name == f"berg-apart-{job.id}" == secret.secret_id(job_of("apart/3", id=job.id))
    for value in ("old", "new"):  # of an attempt, and of the next one
        secret.store(cloud.config, job, name, {"TOKEN": value})
    assert secret.access(cloud.config, name, 60) == {"TOKEN": "new"}
    rows = cloud.call("GET", "/secretmanager/v1/projects/berg-local/secrets")["secrets"]
    (row,) = [row for row in rows if row["name"].endswith(f"/{name}")]
    assert row["labels"]["berg-user"] == cloud.config.user and row["labels"]["berg"] == "1"
    left = datetime.fromisoformat(row["expireTime"].replace("Z", "+00:00")).timestamp()
    assert left - time.time() == pytest.approx(3600 + 30 * 86400, abs=100)
    role = cloud.call("GET", "/iam/v1/projects/berg-local/roles/bergSecret")
    assert {*role["includedPermissions"]} == {*secret.RIGHTS}
    own = secret.Secrets(values={"TOKEN": "x"}, is_mounted=True)
    own.forget(cloud.config, job)
    own.send(plan_of(cloud, job))
    assert not cloud.secrets("apart"), "a pod has them without Secret Manager"
    assert not secret.delete(cloud.config, name)


def test_who_may_not_keep_secrets_hears_whom_to_ask(
    cloud: Cloud, tmp_path: Path, faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of("forbidden")
    run = run_of(cloud, tmp_path, job)
    with pytest.raises(BergError, match="cannot be read"):
        secret.fetch(run, "berg-none")
    faults("secretmanager.*", status=400, times=1)
    assert secret.discard(run, "berg-none") is False
    assert "stay until Google deletes them" in run.log.read_text()
    faults("iam.projects.roles.create", status=403)
    with pytest.raises(BergError, match="Ask an owner to make it: gcloud iam roles create bergSec"):
        secret.make_role(cloud.config)
    faults("secretmanager.*", status=403, times=3)
    with pytest.raises(BergError, match="roles/secretmanager.admin"):
        secret.store(cloud.config, job, secret.secret_id(job), {"A": "b"})
    sent, answer = list[Any](), {"defaultServiceAccount": "own@x"}
    monkeypatch.setattr(secret, "call", lambda *words, **_: sent.append(words) or answer)
    secret.give(replace(cloud.config, service_account=""), "any")
    assert sent[-1][3]["policy"]["bindings"][0]["members"] == ["serviceAccount:own@x"]

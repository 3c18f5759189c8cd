"""Secrets in code that would be sent: which are noticed, which are not, and how a user is asked."""

import os
import pty
import random
import string
import subprocess
import sys

import pytest
from conftest import commit, git

from berg.code import leaks, snapshot
from berg.laptop import sync

LETTERS, HEX = string.ascii_letters, "0123456789abcdef"
WORD = LETTERS + string.digits
BUCKET = "bucket"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BERG_HOME", str(tmp_path / "home"))


def noise(count: int, letters: str = WORD) -> str:
    """Return what looks like a secret, the same in all runs; no secret is in this file."""
    return "".join(random.Random(count).choices(letters, k=count))


TOKEN = f"hf_{noise(34, LETTERS)}"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f'T = "{TOKEN}"', "Hugging Face"),
        (f'"source": ["login(\\n{TOKEN})"]', "Hugging Face"),
        (f"OPENAI_API_KEY=sk-{noise(48)}", "OpenAI"),
        (f"sk-proj-{noise(120, WORD + '-_')}", "OpenAI"),
        (f"sk-ant-api03-{noise(93, WORD + '-_')}AA", "OpenAI"),
        (f"sk-{noise(32, HEX)}", "OpenAI"),
        (f"https://ghp_{noise(36)}@github.com/me/repo", "GitHub"),
        (f"github_pat_{noise(22)}_{noise(59)}", "GitHub"),
        (f"glpat-{noise(20)}", "GitLab"),
        (f'"AIza{noise(35)}"', "Google's APIs"),
        (f"GOCSPX-{noise(28)}", "OAuth"),
        (f"aws_access_key_id = AKIA{noise(16, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567')}", "AWS"),
        (f"xoxb-{noise(12, '9876532')}-{noise(24)}", "Slack"),
        (f'os.environ["WANDB_API_KEY"] = "{noise(40, HEX)}"', "Weights & Biases"),
        (f'wandb.login(key="{noise(40, HEX)}")', "Weights & Biases"),
        (f'"private_key": "-----BEGIN PRIVATE KEY-----\\nMII{noise(61)}\\n"', "private key"),
        (f"-----BEGIN OPENSSH PRIVATE KEY-----\n{noise(70)}\n", "private key"),
        (f"-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES\n\n{noise(64)}\n", "private key"),
        (f"pypi-AgEIcHlwaS5vcmc{noise(80)}", "PyPI"),
        (f"//registry.npmjs.org/:_authToken=npm_{noise(36)}", "npm"),
    ],
    ids=lambda text: text[:16],
)
def test_secrets_are_noticed_in_their_line(text, what):
    found = leaks.kind_of("some.txt", f"first\n{text}\nlast".encode(), is_committed=True)
    assert what in found and found.endswith(" in line 2")
    assert noise(5) not in found


@pytest.mark.parametrize(
    "text",
    [
        f"hf_{'x' * 34}",
        f"hf_{LETTERS[:34]}",
        f"hf_{'Aa' * 17}",
        "sk-...",
        f"sk-{'1234567890abcdef' * 3}",
        "class=sk-toggleable__content-fitted-and-more-words-2024",
        f"disk-{noise(48)}",
        "AKIAIOSFODNN7EXAMPLE",
        "hf_hub_download(repo_id=name)",
        f"wandb @ git+https://github.com/wandb/wandb@{noise(40, HEX)}",
        "WANDB_API_KEY=$WANDB_API_KEY",
        '"private_key": "-----BEGIN PRIVATE KEY-----\\n...\\n-----END PRIVATE KEY-----"',
        f"-----BEGIN PUBLIC KEY-----\n{noise(64)}",
        f"iVBORw0KGgo/AIza{noise(35)}{noise(40)}",
        f"\0{TOKEN}",
    ],
    ids=lambda text: text[:16],
)
def test_placeholders_and_other_words_are_not(text):
    assert leaks.kind_of("some.txt", text.encode(), is_committed=True) == ""


def test_what_is_new_is_looked_at_until_its_user_agrees(repo, monkeypatch):
    def found() -> list[str]:
        return [each.path for each in leaks.find(snapshot.take(repo), BUCKET)]

    (repo / "old.py").write_text(TOKEN)
    (repo / ".env").write_text("committed, and without a token")
    commit(repo)
    (repo / "id_rsa").write_text("new, and named like a secret")
    (repo / "id_rsa.pub").write_text("public")
    (repo / ".env.example").write_text("HF_TOKEN=")
    assert found() == found() == ["id_rsa", "old.py"]
    (repo / "old.py").write_text("it is gone here, but HEAD is sent as well")
    assert found() == ["id_rsa", "old.py"]
    taken = snapshot.take(repo)
    leaks.accept(taken, BUCKET, leaks.find(taken, BUCKET))
    assert found() == []
    (repo / "more.py").write_text(f"a = {TOKEN!r}")
    (repo / "id_rsa").rename(repo / "id_dsa")
    assert found() == ["more.py"], "and what was agreed to has its content, not its name"
    assert len(leaks.find(taken, "another-bucket")) == 2
    monkeypatch.setattr(leaks, "RULES", "other rules")
    assert found() == ["id_dsa", "more.py", "old.py"]


def test_of_many_files_git_finds_those_to_look_at(repo, monkeypatch):
    monkeypatch.setattr(leaks, "MANY", 2)
    monkeypatch.setattr(leaks, "AT_ONCE", 100)
    assert leaks.find(snapshot.take(repo), BUCKET) == []
    (repo / ".gitattributes").write_text("*.ipynb -diff\n")
    for path in ("a.ipynb", "sub/b: c.py", "large.txt", "sub/.env"):
        (repo / path).parent.mkdir(exist_ok=True)
        (repo / path).write_text(f"{path}\n{TOKEN}\n")
    (repo / "sub/.env").write_text("X=1")
    monkeypatch.setattr(leaks, "MOST", 10_000)
    (repo / "large.txt").write_text(f"{TOKEN}\n" * 1000)
    found = leaks.find(snapshot.take(repo), BUCKET)
    assert [each.path for each in found] == ["a.ipynb", "sub/.env", "sub/b: c.py"]


def test_submodules_are_looked_at(repo, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q", "-b", "main")
    (inner / "key.py").write_text(TOKEN)
    commit(inner)
    git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    commit(repo)
    taken = snapshot.take(repo)
    found = leaks.find(taken, BUCKET)
    assert [each.path for each in found] == ["sub/key.py"]
    leaks.accept(taken, BUCKET, found)
    assert leaks.find(taken, BUCKET) == []


def test_a_push_leaves_out_what_may_be_secret(repo):
    """Until it is none any more, or its user agreed to send that with a job."""
    (repo / ".env").write_text("committed")
    commit(repo)
    said: list[str] = []
    push = sync.Push(repo, [], said.append)
    push.suspect = lambda paths: leaks.in_files(repo, paths, BUCKET)

    def pushed() -> set[str]:
        push.touched.put(None)
        return {*push.look()}

    assert {".env", "train.py"} <= pushed()
    (repo / "train.py").write_text(TOKEN)
    (repo / ".env.local").write_text("new")
    assert not {"train.py", ".env.local"} & pushed()
    assert not {"train.py", ".env.local"} & pushed()
    assert len(said) == 2 and all(line.startswith("Not sent, as it may be secret") for line in said)
    (repo / "train.py").write_text("harmless")
    assert "train.py" in pushed() and len(said) == 2
    taken = snapshot.take(repo)
    leaks.accept(taken, BUCKET, leaks.find(taken, BUCKET))
    again = sync.Push(repo, [], said.append, suspect=push.suspect)
    assert ".env.local" in again.look() and len(said) == 2


def test_a_secret_is_sent_only_if_its_user_says_so(berg):
    (berg.repo / "conf.py").write_text(f"T = {TOKEN!r}\n")
    line = "conf.py (a token of Hugging Face in line 1)"
    run = ("run", "-g", "0", "-n", "one", "true")
    plan = berg(*run, "--dry-run")
    assert plan.returncode == 0 and line in plan.stdout
    for refused in (
        berg(*run),
        berg(*run, "-y"),
        berg("run", "-g", "0", "--grid", "a=1", "true {a}"),
    ):
        assert refused.returncode == 1 and f"may be secret would be sent: {line}" in refused.stderr
        assert TOKEN not in refused.stderr and "--send-secrets" in refused.stderr
    program = 'import berg; berg.run("true", num_gpus=0, name="one")'
    command, quiet = [sys.executable, "-c", program], subprocess.PIPE
    ran = subprocess.run(command, cwd=berg.repo, env=berg.environment(), stderr=quiet, text=True)
    assert line in ran.stderr
    assert answered(berg, run, b"n\n") == 130
    assert not berg.objects(".berg/jobs/") and not berg.objects(".berg/repos/")
    assert answered(berg, (*run, "--wait"), b"y\n") == 0
    assert berg(*run[:4], "two", "true").returncode == 0, "it was sent already"


def answered(berg, arguments, answer: bytes) -> int:
    """Run berg on a terminal on which a user answers its question; return the exit code."""
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    command = [sys.executable, "-m", "berg", *arguments]
    errors = subprocess.PIPE
    ran = subprocess.run(
        command, cwd=berg.repo, env=berg.environment(), stdin=theirs, stderr=errors, text=True
    )
    os.close(theirs)
    os.close(ours)
    assert "Send 1 file that may be secret? [y/N]" in ran.stderr
    return ran.returncode


def test_sends_secrets_is_an_option_of_all_that_send_code(berg):
    for command in (["run"], ["devbox"], ["rerun"]):
        assert "--send-secrets" in berg(*command, "--help-all").stdout
    for command in (["sync"], ["image", "create"], ["image", "build"]):
        assert "--send-secrets" in berg(*command, "--help").stdout

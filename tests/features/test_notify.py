"""Who is told that a job is over, and who never learns the URL."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud
from inside import fresh, job_of, run_of
from records import put_row

from berg import BergError
from berg.features import notify, secrets
from berg.features.notify import body_for
from berg.worker import Ending


class Webhook:
    """A server that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[int] = []  # statuses; then 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                outer.told.append((self.path, json.loads(content)))
                self.send_response(outer.answers.pop(0) if outer.answers else 200)
                self.send_header("Location", "/elsewhere")  # of those that redirect
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.secret = f"T0K3N{os.urandom(8).hex()}"
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/{self.secret}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hook() -> Iterator[Webhook]:
    made = Webhook()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.slow
def test_the_end_of_a_job_is_told_once_and_its_url_to_nobody(
    cloud: Cloud, project: Path, hook: Webhook
) -> None:
    (cloud.home / "hook").write_text(f"{hook.url}\n")
    hook.answers = [503]
    words = ["run", "-n", "told", "-g", "0", "--notify", f"HOOK={cloud.home}/hook", "--wait"]
    done = cloud.run(*words, "env; echo; echo it broke >&2; exit 4", cwd=project)
    assert done.code == 4 and "a webhook, at the end" in done.err, done.err
    (path, about), again = hook.told  # it had answered 503
    assert again == (path, about) and path.endswith(hook.secret)
    assert about["text"] == "told FAILED: exit code 4: it broke"
    told = [done.out, done.err, *(cloud.read(name).decode("latin1") for name in cloud.names())]
    assert not any(hook.secret in text for text in told)
    assert not cloud.secrets("told")


@pytest.mark.slow
def test_a_sweep_is_told_once_as_a_whole(cloud: Cloud, project: Path, hook: Webhook) -> None:
    words = ["run", "-n", "many", "-g", "0", "--notify", "HOOK", "--parallel", "1", "--wait"]
    words += ["--secret", "CODE", "--grid", "x=0,1", "exit ${{CODE}}{x}"]
    assert cloud.run(*words, cwd=project, HOOK=hook.url, CODE="0").code == 1
    ((_, about),) = hook.told
    assert about["sweep"] == "many" and about["jobs"] == {"SUCCEEDED": 1, "FAILED": 1}
    assert not cloud.secrets("many")


@pytest.mark.parametrize(
    ("host", "body"),
    [
        ("hooks.slack.com", {"text": "done"}),
        ("chat.googleapis.com", {"text": "done"}),
        ("discord.com", {"content": "done"}),
        ("ptb.discord.com", {"content": "done"}),
        ("example.org", {"text": "done", "job": "a"}),
    ],
)
def test_a_service_gets_the_fields_that_it_takes(host: str, body: dict[str, str]) -> None:
    assert body_for(host, "done", {"job": "a"}) == body


@pytest.mark.parametrize(
    ("answers", "asked", "says"),
    [
        ([], 1, ""),
        ([204], 1, ""),
        ([503, 429], 3, ""),
        ([503, 503, 503], 3, "it answered 503"),
        ([404], 1, "it answered 404"),
        ([302], 1, "it answered 302"),  # wherever that leads
    ],
)
def test_a_webhook_is_asked_again_while_it_is_busy(
    hook: Webhook, monkeypatch: pytest.MonkeyPatch, answers: list[int], asked: int, says: str
) -> None:
    monkeypatch.setattr(notify, "PAUSES", (0,) * len(notify.PAUSES))
    hook.answers = answers
    assert notify.post(hook.url, "done", {"job": "a"}) == says
    assert hook.told == [(f"/services/{hook.secret}", {"text": "done", "job": "a"})] * asked


def test_a_webhook_that_is_not_there_is_no_url_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "PAUSES", (0, 0, 0))
    assert notify.post("http://127.0.0.1:9/secret", "done", {}) == "ConnectionError"


def test_a_webhook_is_a_url_or_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "hook").write_text(" https://example.org/x \n")
    for text in ("https://example.org/x", f"HOOK={tmp_path}/hook"):
        assert notify.webhook(text) == "https://example.org/x"
    assert notify.webhook("http://127.0.0.1:8/x") == "http://127.0.0.1:8/x"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ftp://example.org/x", "is no URL"), ("https:///x", "is no URL"), ("HOOK", "is no URL"),
        ("https://example.org/a b", "is no URL"), ("https://[::1/x", "is no URL"),
        ("NOT_SET", "no variable NOT_SET"),
    ],
)  # fmt: skip
def test_what_is_no_webhook_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    monkeypatch.setenv("HOOK", "x y")
    with pytest.raises(BergError, match=says) as refused:
        notify.webhook(text)
    assert "://" not in str(refused.value) and "x y" not in str(refused.value)


def test_a_repository_gives_no_webhook(cloud: Cloud, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.berg]\nnotify = "HOOK"\n')
    plan, url = ["run", "-g", "0", "--dry-run", "true"], "https://example.org/x"
    cloud.fails(*plan, says="needs its webhook again", cwd=project, HOOK=url)


@pytest.mark.parametrize(
    ("text", "kept"),
    [("https://example.org/x", "URL"), ("HOOK=/etc/hook", "HOOK"), ("HOOK", "HOOK")],
)
def test_a_record_has_no_webhook(text: str, kept: str) -> None:
    assert notify.Notify(notify=text, url="https://example.org/x").record() == {"notify": kept}
    assert "example.org/x" not in repr(notify.Notify(url="https://example.org/x"))


def test_the_machine_that_ends_the_job_tells_it_and_no_other_one(
    cloud: Cloud, tmp_path: Path, hook: Webhook
) -> None:
    job = job_of(fresh("tells"), user="ada")
    run, own = run_of(cloud, tmp_path, job), notify.Notify(notify="HOOK")
    name = notify.secret_id(job)
    secrets.store(cloud.config, job, name, {notify.KEY: hook.url})
    own.ended(run, Ending("SUBMITTED", "taken", is_loss=True))
    assert not hook.told and cloud.secrets(job.name), "it goes on"
    ending = Ending("FAILED", "exit code 3", 3)
    assert own.ended(run, ending) is ending
    ((_, about),) = hook.told
    assert about == {
        "text": f"{job.name} FAILED: exit code 3", "job": job.name, "state": "FAILED",
        "exit_code": 3, "reason": "exit code 3", "user": "ada",
        "results": f"gs://{cloud.config.bucket}/berg_results/{job.name}",
    }  # fmt: skip
    assert not cloud.secrets(job.name)
    assert notify.message(run, Ending("LOST"))[1]["exit_code"] is None
    own.ended(run, ending)  # by another machine
    assert len(hook.told) == 1 and not run.log.exists()
    secrets.store(cloud.config, job, name, {"no": "url"})
    own.ended(run, ending)
    assert "its address cannot be read" in run.log.read_text()
    hook.answers = [410]
    secrets.store(cloud.config, job, name, {notify.KEY: hook.url})
    own.ended(run, Ending("SUCCEEDED"))
    assert hook.told[-1][1]["text"] == f"{job.name} SUCCEEDED"
    assert "was not reached: it answered 410" in run.log.read_text()
    assert hook.secret not in run.log.read_text()
    secrets.store(cloud.config, job, name, {notify.KEY: hook.url})
    own.forget(cloud.config, job)
    assert not cloud.secrets(job.name)
    job.rows = [{"x": "1"}] * 3
    for number, state in enumerate(("FAILED", "SUCCEEDED", "SUCCEEDED")):
        put_row(cloud, job, number, state)
    about = {"sweep": job.name, "jobs": {"SUCCEEDED": 2, "FAILED": 1}}
    said = f"{job.name} FAILED: 2 SUCCEEDED, 1 FAILED"
    assert notify.message(run, Ending("FAILED")) == (said, about)

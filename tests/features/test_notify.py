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

from berg.features.notify import body_for


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


def kept(cloud: Cloud, job: str) -> list[str]:
    """The job's secrets."""
    listed = cloud.call("GET", "/secretmanager/v1/projects/berg-local/secrets").get("secrets", [])
    return [row["name"] for row in listed if f"berg-{job}" in row["name"]]


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
    expected = {"job": "told", "state": "FAILED", "exit_code": 4}
    assert {key: about[key] for key in expected} == expected
    assert about["text"] == "told FAILED: exit code 4: it broke"
    assert about["results"] == "gs://berg-local-results/berg_results/told"
    told = [done.out, done.err, *(cloud.read(name).decode("latin1") for name in cloud.names())]
    assert not any(hook.secret in text for text in told)
    assert not kept(cloud, "told")


@pytest.mark.slow
def test_a_sweep_is_told_once_as_a_whole(cloud: Cloud, project: Path, hook: Webhook) -> None:
    words = ["run", "-n", "many", "-g", "0", "--notify", "HOOK", "--parallel", "1", "--wait"]
    words += ["--secret", "CODE", "--grid", "x=0,1", "exit ${{CODE}}{x}"]
    assert cloud.run(*words, cwd=project, HOOK=hook.url, CODE="0").code == 1
    ((_, about),) = hook.told
    assert about["sweep"] == "many" and about["jobs"] == {"SUCCEEDED": 1, "FAILED": 1}
    assert not kept(cloud, "many")


def test_what_is_no_webhook_is_refused(cloud: Cloud, project: Path) -> None:
    for text, reason in [("HOOK", "is no URL"), ("NOT_SET", "no variable NOT_SET")]:
        done = cloud.run(
            "run", "-g", "0", "--dry-run", "--notify", text, "true", cwd=project, HOOK="x y"
        )
        assert done.code == 1 and reason in done.err, done.err


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

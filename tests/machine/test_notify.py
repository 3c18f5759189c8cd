# ruff: noqa: F811 (a fixture is imported, and arguments have its name)
"""Who is told that a job is over, and who never learns the URL."""

import json
import socket
import time
from pathlib import Path

import pytest
from conftest import wait_for
from webhook import webhook  # noqa: F401 (a fixture)

from berg.machine import watchdogs


@pytest.mark.slow
def test_the_end_of_a_job_is_told_once_and_its_url_to_nobody(berg, webhook):
    (berg.home / "hook").write_text(f"{webhook.url}\n")
    wishes = ["-n", "told", "-g", "0", "--notify", f"HOOK={berg.home}/hook"]
    shown = berg("run", "--dry-run", "--json", *wishes, "true")
    ran = berg("run", *wishes, "env; sleep 3; exit 4")
    assert (shown.returncode, ran.returncode) == (0, 0), ran.stderr
    assert "a webhook, at the end" in ran.stderr
    wait_for(lambda: "BERG_JOB=told" in berg.log("told"), 60)
    arguments = b"".join(
        path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()
    )
    assert berg("wait", "told").returncode == 4
    ((path, about),) = webhook.told
    assert path.endswith(webhook.secret)
    assert about["text"] == "told FAILED with exit code 4: the command failed with exit code 4"
    assert (about["job"], about["state"], about["exit_code"], about["user"]) == (
        "told",
        "FAILED",
        4,
        "tester",
    )
    assert about["results"] == f"gs://{berg.bucket_name}/berg_results/told"
    everything = [shown.stdout, shown.stderr, ran.stdout, ran.stderr, berg("list", "--json").stdout]
    everything += [json.dumps(berg.cloud.instances()), arguments.decode(errors="replace")]
    everything += [data.decode(errors="replace") for data in berg.objects().values()]
    assert not any(webhook.secret in text for text in everything)
    assert "BERG_NOTIFY" not in berg.log("told"), "it is none of the command's variables"
    listed = berg.cloud.call("GET", "/secretmanager/v1/projects/berg-local/secrets").get(
        "secrets", []
    )
    assert not [each for each in listed if each["name"].endswith("/berg-told")]
    kept = json.loads(berg.bucket.read(".berg/jobs/told_metadata.json"))["spec"]
    assert kept["notify"] == f"HOOK={berg.home}/hook"


@pytest.mark.slow
def test_the_end_is_told_once_where_the_last_state_is_refused_for_a_while(berg, webhook):
    berg.allowed.append(400)
    assert berg("run", "-n", "twice", "-g", "0", "--notify", webhook.url, "sleep 3").returncode == 0
    wait_for(lambda: berg.state("twice")["state"] == "RUNNING", 60)
    berg.cloud.fault("storage.objects.insert", match="twice_state.json", status=400, times=None)
    wait_for(
        lambda: berg.cloud.call("GET", "/_berg/faults")["faults"][0]["hits"] > 4, 60, "some tries"
    )
    berg.cloud.call("DELETE", "/_berg/faults")
    assert berg("wait", "twice").returncode == 0
    assert [about["state"] for _, about in webhook.told] == ["SUCCEEDED"]


@pytest.mark.slow
def test_a_url_that_was_given_as_it_is_is_kept_nowhere(berg, webhook):
    assert (
        berg("run", "-n", "plain", "-g", "0", "--notify", webhook.url, "--wait", "true").returncode
        == 0
    )
    assert [about["state"] for _, about in webhook.told] == ["SUCCEEDED"]
    assert not any(webhook.secret.encode() in data for data in berg.objects().values())


@pytest.mark.slow
def test_a_webhook_that_fails_is_a_line_in_the_log(berg, webhook):
    webhook.answers = [404]
    assert (
        berg("run", "-n", "gone", "-g", "0", "--notify", webhook.url, "--wait", "true").returncode
        == 0
    )
    assert "The webhook of --notify was not reached: it answered 404\n" in berg.log("gone")
    webhook.server.shutdown()
    webhook.server.server_close()
    assert (
        berg("run", "-n", "deaf", "-g", "0", "--notify", webhook.url, "--wait", "true").returncode
        == 0
    )
    assert "The webhook of --notify was not reached: NewConnectionError\n" in berg.log("deaf")


@pytest.mark.slow
def test_a_sweep_is_told_of_once(berg, webhook):
    (berg.home / "hook").write_text(webhook.url)
    wishes = [
        "--grid",
        "code=0,1,2",
        "--parallel",
        "2",
        "-g",
        "0",
        "--notify",
        f"HOOK={berg.home}/hook",
    ]
    assert berg("run", "-n", "grid", *wishes, "--wait", "exit $(({code} % 2))").returncode == 1
    wait_for(lambda: webhook.told, 60)
    wait_for(lambda: not berg.machines(), 60)
    ((_, about),) = webhook.told
    assert about["sweep"] == "grid" and about["jobs"] == {"SUCCEEDED": 2, "FAILED": 1}
    assert about["text"] == "grid is finished: 2 SUCCEEDED, 1 FAILED"


@pytest.mark.slow
def test_a_sweep_that_goes_on_is_told_of_again_and_has_its_secrets(berg, webhook):
    (berg.home / "hook").write_text(webhook.url)
    (berg.home / "token").write_text("s3cr3t")
    wishes = [
        "--grid",
        "code=0,1",
        "--parallel",
        "1",
        "-g",
        "0",
        "--secret",
        f"TOKEN={berg.home}/token",
    ]
    command = "[ $TOKEN = s3cr3t ] && exit {code}"
    ran = berg(
        "run", "-n", "grid", *wishes, "--notify", f"HOOK={berg.home}/hook", "--wait", command
    )
    assert ran.returncode == 1, ran.stderr
    wait_for(lambda: webhook.told and not berg.machines(), 60)
    (berg.home / "token").unlink()
    without = berg("run", "--resume", "grid")
    assert without.returncode == 1 and "Give them again: --secret TOKEN" in without.stderr
    (berg.home / "other").write_text("s3cr3t")
    given = ["--secret", f"TOKEN={berg.home}/other", "--notify", f"HOOK={berg.home}/hook"]
    again = berg("run", "--resume", "grid", *given, "--wait")
    assert again.returncode == 1 and "1 job of grid runs again" in again.stderr, again.stderr
    wait_for(lambda: len(webhook.told) == 2, 60)
    assert [about["jobs"] for _, about in webhook.told] == [{"SUCCEEDED": 1, "FAILED": 1}] * 2
    assert "failed with exit code 1" in berg.state("grid-1")["reason"], (
        "and not for want of its secret"
    )


@pytest.mark.slow
def test_a_sweep_that_goes_on_without_its_webhook_says_so(berg, webhook):
    wishes = ["--grid", "code=0,1", "--parallel", "1", "-g", "0", "--notify", webhook.url]
    assert berg("run", "-n", "grid", *wishes, "--wait", "exit {code}").returncode == 1
    wait_for(lambda: webhook.told and not berg.machines(), 60)
    again = berg("run", "--resume", "grid", "--wait")
    assert (
        again.returncode == 1
        and "No webhook is called at its end: give --notify again" in again.stderr
    )


def test_what_is_no_url_is_refused_and_not_repeated(berg):
    for wish in (
        "ftp://hidden.example/abc",
        "https://hid den/",
        "NAME=/nonexistent",
        "UNSET",
        "",
        " ",
    ):
        refused = berg("run", "-g", "0", "--notify", wish, "true")
        assert refused.returncode == 1 and "--notify" in refused.stderr, refused.stderr
        assert "hid" not in refused.stderr
    assert berg.objects() == {}


def test_what_each_service_takes():
    about = {"job": "j", "state": "FAILED"}
    assert watchdogs.body("https://hooks.slack.com/services/T/B/x", "j FAILED", about) == {
        "text": "j FAILED"
    }
    assert watchdogs.body("https://discord.com/api/webhooks/1/x", "j" * 3000, about) == {
        "content": "j" * 2000
    }
    assert watchdogs.body("https://example.com/hook", "j FAILED", about) == {
        "text": "j FAILED",
        **about,
    }


def test_tries_are_repeated_where_that_helps_and_bounded(webhook):
    webhook.answers = [503, 200]
    assert watchdogs.send(webhook.url, "x", {}, 30) == "" and len(webhook.told) == 2
    webhook.answers = [302]
    assert watchdogs.send(webhook.url, "x", {}, 30) == "it answered 302"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        why = watchdogs.send(f"http://127.0.0.1:{silent.getsockname()[1]}/s3cr3t", "x", {}, 1)
        assert why == "it did not answer within 1 s" and time.monotonic() - began < 5

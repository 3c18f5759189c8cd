"""Requests to Compute Engine that the embedded cloud refuses for a while, through the command line."""

import json
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from google.auth.exceptions import TransportError

from berg import config, job
from berg.google import api

MINUTE = 5  # seconds that this file's minutes have: more than a command takes


@pytest.mark.slow
def test_too_many_requests_in_a_minute_wait_for_the_next(berg, cloud):
    cloud.call("POST", "/_berg/settings", {"heavy_reads": 2, "minute": MINUTE})
    time.sleep(MINUTE - time.time() % MINUTE)
    for _ in range(2):
        cloud.call("GET", "/compute/v1/projects/berg-local/aggregated/instances")
    listed = berg("list", "--json")
    assert listed.returncode == 0 and json.loads(listed.stdout) == [], listed.stderr
    log = cloud.call("GET", "/_berg/requests")["requests"]
    assert 403 in [
        each["status"] for each in log if each["method"] == "compute.instances.aggregatedList"
    ]


def test_the_refusal_is_googles(cloud):
    cloud.call("POST", "/_berg/settings", {"heavy_reads": 0})
    answer = cloud.session.get(f"{cloud.url}/compute/v1/projects/berg-local/aggregated/instances")
    error = answer.json()["error"]
    assert (answer.status_code, error["errors"][0]["reason"]) == (403, "rateLimitExceeded")
    assert error["errors"][0]["domain"] == "usageLimits"
    assert error["message"].startswith(
        "Quota exceeded for quota metric 'Heavy-weight read requests' and limit 'Heavy-weight read requests per minute'"
    )
    assert error["details"][0]["reason"] == "RATE_LIMIT_EXCEEDED"


@pytest.mark.slow
def test_who_waits_for_a_machine_asks_its_zone(berg, cloud):
    ran = berg("run", "-g", "0", "-n", "polled", "--tail", "sleep 5")
    assert ran.returncode == 0, ran.stderr
    counts = cloud.call("GET", "/_berg/requests")["counts"]
    assert (
        counts["compute.instances.list"] >= 2 and counts["compute.instances.aggregatedList"] <= 6
    ), counts


def test_who_signs_in_where_nobody_answers_hears_of_it_soon(cloud, tmp_path, monkeypatch):
    """On a machine, where nobody waits, it is tried again as any request is."""
    monkeypatch.setattr(config, "SIGN_IN", 0.3, raising=False)
    settings = cloud.settings("any")
    row = json.loads(Path(settings.credentials_file).read_text())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        row["token_url"] = f"http://127.0.0.1:{silent.getsockname()[1]}/token"
        (tmp_path / "credentials.json").write_text(json.dumps(row))
        settings = replace(settings, credentials_file=str(tmp_path / "credentials.json"))
        settings.is_mine = True
        began = time.monotonic()
        with pytest.raises(TransportError, match="timed out"):
            api.call(settings, "GET", "/zones")
        assert time.monotonic() - began < 5


def test_a_look_that_is_not_answered_is_tried_again_soon(cloud, monkeypatch):
    monkeypatch.setattr(api, "LOOKS", 0.5, raising=False)
    cloud.fault("compute.zones.list", delay=20)
    began = time.monotonic()
    assert api.call(cloud.settings("any"), "GET", "/zones", fields="items/name")["items"]
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("off", [5 * 3600, -5 * 3600, 0.3, -0.3])
def test_times_are_googles(bucket, monkeypatch, off):
    """Whatever this computer's clock shows; where it may be right, it is believed."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + off)
    monkeypatch.setattr(job, "clock_is_behind", 0.0)
    assert abs(job.clock() - right() - off) < 0.1
    bucket.exists("anything")
    assert abs(job.clock() - right()) < 2
    assert abs(off) > 1 or abs(job.clock_is_behind) < 1
    assert abs(job.age_seconds(job.now())) < 2


def test_a_wait_that_takes_long_is_named(monkeypatch):
    said, is_said = [], threading.Event()

    def say(text: str) -> None:
        said.append(text)
        is_said.set()

    with api.waiting("too soon", say):
        pass
    monkeypatch.setattr(api, "SOON", 0)
    with api.waiting("the tide", say):
        assert is_said.wait(60)
    assert said == ["the tide"]

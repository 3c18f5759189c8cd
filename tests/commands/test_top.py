"""wait and top, on the command line."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import nvidia_smi
import pytest
from conftest import wait_for

from berg import job, states
from berg.commands import watch
from berg.google import api
from berg.watch import collect


@pytest.mark.slow
def test_wait_ends_with_the_jobs_and_the_first_exit_code_that_was_not_0(berg):
    for name, command in (("good", "true"), ("bad", "sleep 3; exit 7")):
        assert berg("run", "-n", name, "-g", "0", command).returncode == 0
    both = berg("wait", "good", "bad", "--json")
    assert both.returncode == 7, both.stderr
    found = {row["name"]: (row["state"], row["exit_code"]) for row in json.loads(both.stdout)}
    assert found == {"good": ("SUCCEEDED", 0), "bad": ("FAILED", 7)}
    ended = both.stderr
    assert (
        "good SUCCEEDED with exit code 0" in ended
        and "bad FAILED: the command failed with exit code 7" in ended
    )
    assert berg("wait", "good").returncode == 0 and berg("wait", "@").returncode == 7


@pytest.mark.slow
def test_wait_for_any_ends_with_the_first_of_a_sweep(berg):
    sweep = ["--grid", "seconds=1,200", "-g", "0", "sleep {seconds}"]
    assert berg("run", "-n", "naps", *sweep).returncode == 0
    began = time.monotonic()
    first = berg("wait", "--all", "--any", "naps", "--json")
    assert first.returncode == 0 and time.monotonic() - began < 100
    assert [row["name"] for row in json.loads(first.stdout)] == ["naps-0"]
    waiting = berg.start("wait", "naps")
    assert berg("kill", "naps").returncode == 0
    assert waiting.wait(60) == 143 and "naps-1 KILLED" in waiting.communicate()[1]


@pytest.mark.slow
def test_without_a_network_wait_says_so_and_goes_on(berg, capsys, monkeypatch):
    assert berg("run", "-n", "far", "-g", "0", "true").returncode == 0
    settings = berg.cloud.settings(berg.bucket_name)
    retry = api.retry
    monkeypatch.setattr(api, "retry", lambda ask, *_, **__: retry(ask, seconds=1))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound, but not listening: connections are refused
        away = replace(settings, endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert (
            watch.look_again(away, ["far"]) == [] and watch.look_again(away, ["far", "other"]) == []
        )
    assert capsys.readouterr().err.count("Waiting on: cannot reach http://127.0.0.1:") == 2
    assert [entry.name for entry in watch.look_again(settings, ["far"])] == ["far"]
    assert berg("wait", "far").returncode == 0


def test_wait_for_what_is_no_job_is_an_error(berg):
    unknown = berg("wait", "nothing")
    assert unknown.returncode == 1 and "there is no job or machine 'nothing'" in unknown.stderr
    assert berg("wait").returncode == 2


@pytest.fixture
def busy_job(berg, request):
    """A job with two GPUs that runs and was sampled."""
    name = f"busy-{request.node.name[9:18].replace('_', '-')}x"
    options = nvidia_smi.bring(berg.repo, nvidia_smi.busy(97, 3))
    assert berg("run", "-n", name, *options, "--sample-seconds", "1", "sleep 200").returncode == 0

    def sampled() -> bool:
        return any(
            sample["gpus"]
            for samples in collect.read_samples(berg.bucket, name).values()
            for sample in samples
        )

    wait_for(sampled, 60)
    return name


def test_top_shows_machines_with_bars_and_their_last_half_hour(berg, busy_job):
    head, row = berg("top", "--once").stdout.splitlines()
    assert head.split() == [
        "MACHINE",
        "GPU",
        "GPU",
        "MEM",
        "CPU",
        "MEMORY",
        "NET/s",
        "LAST",
        "HALF",
        "HOUR",
    ]
    assert re.match(rf"{busy_job} +██ +50% +██ +49% .*%.*%  +[\d.]+ [kM]?B  .*▅", row), row
    detail = berg("top", busy_job, "--once").stdout
    assert re.search(r"^  gpu0 +███▉ +97% +██ +49% +310 W  66 °C$", detail, re.M), detail
    assert re.search(r"^  gpu1 +▏ +3% ", detail, re.M), detail
    (told,) = json.loads(berg("top", "--json").stdout)
    assert told["job"] == told["name"] == busy_job and told["state"] == "RUNNING"
    assert told["samples"][-1]["gpus"][0]["percent"] == 97
    narrow = berg("top", "--once", COLUMNS="60").stdout
    assert all(len(line) <= 90 for line in narrow.splitlines())


@pytest.mark.slow
def test_top_is_drawn_anew_on_a_terminal_until_ctrl_c(berg, busy_job):
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "berg", "top"]
    process = subprocess.Popen(
        command, env=berg.environment(TERM="xterm"), stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    while b"until Ctrl-C" not in seen:
        seen += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0 and "▅".encode() in seen
    os.close(ours)


@pytest.mark.slow
def test_top_without_machines_and_of_a_job_that_is_over(berg):
    nothing = berg("top", "--once")
    assert (
        nothing.returncode == 0
        and nothing.stdout == ""
        and "No machine of yours runs" in nothing.stderr
    )
    assert json.loads(berg("top", "--json").stdout) == []
    assert berg("top", "nothing").returncode == 1
    assert (
        berg(
            "run", "-n", "past", "-g", "0", "--sample-seconds", "1", "--wait", "sleep 3"
        ).returncode
        == 0
    )
    _, row = berg("top", "past", "--once").stdout.splitlines()
    assert re.match(r"past +- +- .*%", row), row


def test_sparklines_go_by_time():
    now = time.time()
    history = [
        (now - 1740, 100.0),
        (now - 900, 50.0),
        (now - 899, None),
        (now - 1, 0.0),
        (now, 25.0),
    ]
    line = watch.sparkline(history, 60)
    assert (
        len(line) == 60
        and line[0] == " "
        and line[1] == "█"
        and line[29] == "▅"
        and line[-1] == "▂"
    )
    assert watch.sparkline(history, 3) == "█▅▂"
    assert watch.sparkline([(now, None)], 2) == "  "


ODD = {
    "times that go back": [{"time": 5e8}, {"time": 1e9}, {"time": 0}],
    "times beyond all": [{"time": 1e300}, {"time": -1}, {"time": 10**400}],
    "numbers beyond all": [{"time": 1e9, "cpu_percent": 1e300, "memory_percent": -1e300}],
    "a whole number that no float holds": [{"time": 1e9, "received_per_second": 10**400}],
    "a million GPUs": [{"time": 1e9, "gpus": [{"index": n, "percent": 1} for n in range(10_000)]}],
    "GPUs without numbers": [{"time": 1e9, "gpus": [{}, 1, None, {"index": None, "percent": "x"}]}],
    "names that nobody knows": [{"time": 1e9, **{f"key{n}": n for n in range(10_000)}}],
}


@pytest.mark.parametrize("what", ODD)
def test_odd_samples_of_a_job_end_nothing(berg, what):
    path = ".berg/logs/done/done.20260101.usage.jsonl"
    berg.bucket.write(path, "".join(json.dumps(each) + "\n" for each in ODD[what]))
    states.claim(berg.bucket, "done", job.State("SUCCEEDED", job=job.Summary("tester")))
    for words in (("top", "done", "--once"), ("top", "done", "--json"), ("show", "done")):
        ran = berg(*words)
        assert "Traceback" not in ran.stderr and len(ran.stdout) < 40_000, ran
        if words[0] == "top":
            assert ran.returncode == 0, ran.stderr
        if "--json" in words:
            json.loads(ran.stdout, parse_constant=pytest.fail)

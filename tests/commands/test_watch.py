"""`--wait`, `--tail` and `berg tail`: what they say while a job goes on, when it fails, and when
somebody leaves.
"""

import json
import re
import signal

import pytest
from click.testing import CliRunner
from conftest import wait_for
from test_run import bare_machine

from berg import cli, job
from berg.laptop import jobs


def submitted(berg, name: str, **details) -> None:
    """A job's state as a laptop writes it."""
    summary = job.Summary("tester", job.now(), results_dir=name, **details)
    state = job.State(job=summary).to_json()
    berg.bucket.write(job.state_path(name), state, generation=0, metadata={"state": state})


def test_a_job_whose_startup_script_ended_without_a_worker_is_lost(berg, monkeypatch):
    submitted(berg, "dead")
    bare_machine(berg, "dead", labels={"berg-job": "dead"})
    path = "/compute/v1/projects/berg-local/zones/us-central1-a/instances/dead/serialPort"
    wait_for(lambda: "Finished running startup scripts" in berg.cloud.call("GET", path)["contents"])
    (listed,) = json.loads(berg("list", "--json").stdout)
    assert listed["state"] == "SUBMITTED", "its state was written seconds ago: too early to tell"
    monkeypatch.setattr(jobs, "LOST_AFTER", -5)  # the clock that tells has whole seconds
    monkeypatch.setenv("BERG_HOME", str(berg.home))
    shown = CliRunner().invoke(cli.cli, ["list"])
    assert re.search(r"dead +LOST, machine RUNNING", shown.output), shown.output
    tail = CliRunner().invoke(cli.cli, ["tail", "dead"])
    assert tail.exit_code == 1
    words = " ".join(tail.output.split())
    assert (
        "dead LOST: the startup script of dead ended without a worker" in words
        and "berg kill dead" in words
    )
    assert "The end of its console: hello from the console" in words
    assert CliRunner().invoke(cli.cli, ["kill", "dead"]).exit_code == 0
    assert berg.machines() == {}


def test_a_sweep_whose_machines_ended_without_a_worker_is_lost(berg, monkeypatch):
    for index in range(2):
        submitted(berg, f"many-{index}", sweep="many", params={"x": str(index)})
    berg.bucket.write(".berg/sweeps/many.json", "{}")
    bare_machine(berg, "many-machine-0", labels={"berg-sweep": "many"})
    monkeypatch.setattr(jobs, "LOST_AFTER", -5)  # the clock that tells has whole seconds
    monkeypatch.setenv("BERG_HOME", str(berg.home))

    def states() -> list[str]:
        return [
            each["state"]
            for each in json.loads(CliRunner().invoke(cli.cli, ["list", "--json"]).stdout)
        ]

    wait_for(lambda: states() == ["LOST", "LOST"])
    assert "berg reap" in " ".join(CliRunner().invoke(cli.cli, ["list", "-v"]).output.split())
    ended = CliRunner().invoke(cli.cli, ["kill", "many"])
    assert ended.exit_code == 0 and "nothing to kill" not in ended.output, ended.output
    assert berg.machines() == {}
    assert "nothing to kill" in CliRunner().invoke(cli.cli, ["kill", "many"]).output


def test_wait_shows_each_state_and_the_end_of_the_log_of_what_failed(berg):
    ran = berg("run", "-g", "0", "-n", "fails", "--wait", "seq 100; sleep 3; exit 3")
    assert ran.returncode == 3
    for line in (
        "fails SUBMITTED: waiting for fails in us-central1-",
        "fails RUNNING on fails in us-central1-",
    ):
        assert line in ran.stderr
    assert "(all of it: berg log fails):" in ran.stderr
    assert "\n100\n" in ran.stderr and "\n95\n" in ran.stderr and "\n70\n" not in ran.stderr
    assert ran.stderr.endswith("fails FAILED: the command failed with exit code 3\n")
    assert ran.stdout == "fails\n"


@pytest.mark.slow
def test_who_leaves_hears_that_the_job_goes_on(berg):
    assert berg("run", "-g", "0", "-n", "long", "sleep 100").returncode == 0
    for arguments in (["tail", "long"], ["run", "-g", "0", "-n", "other", "--wait", "sleep 100"]):
        name = arguments[arguments.index("-n") + 1] if "-n" in arguments else "long"
        following = berg.start(*arguments)
        wait_for(
            lambda name=name: name in berg.machines() and berg.state(name)["state"] == "RUNNING"
        )
        following.send_signal(signal.SIGINT)
        _, stderr = following.communicate(timeout=20)
        assert following.returncode == 130, stderr
        assert f"{name} continues without you" in stderr and "cost money" in stderr
        assert (
            f"berg tail {name}" in stderr
            and f"berg kill {name}" in stderr
            and "Traceback" not in stderr
        )
        assert berg.state(name)["state"] == "RUNNING"


@pytest.mark.slow
def test_a_retry_that_takes_long_says_what_it_waits_for(berg, cloud):
    berg.allowed.append(500)
    cloud.fault("compute.instances.aggregatedList", status=503, delay=6, times=1)
    # at the same time, and said once
    cloud.fault("storage.objects.list", status=503, delay=6, times=1)
    listed = berg("list")
    assert (
        listed.returncode == 0 and listed.stderr.count("retrying for up to two minutes: Inj") == 1
    ), listed.stderr
    assert berg("list").stderr.count("retrying") == 0
    assert berg("run", "-g", "0", "-n", "slow", "echo ready; sleep 10").returncode == 0
    wait_for(lambda: "\nready\n" in berg.log("slow"), 60)
    cloud.fault("storage.objects.insert", status=503, delay=6, times=1)
    assert berg("tail", "slow").returncode == 0
    assert "[berg] Waiting for Google Cloud, retrying" in berg.log("slow")

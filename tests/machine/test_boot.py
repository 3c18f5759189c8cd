"""How a machine starts its worker and lets it end: the unit, the console, what comes too early and too late."""

import shutil
import subprocess
import sys

import pytest
from conftest import wait_for

from berg import jobs
from berg.machine import boot

# What a command does when its machine goes down: its last words take longer than the network of a machine whose
# processes nobody waits for, and come before the end of berg's grace.
LAST_WORDS = "trap 'sleep 6; echo late > $BERG_RESULTS_DIR/late; exit 3' TERM; touch $BERG_RESULTS_DIR/up; "
GPU = ("-g", "1", "-t", "t4")  # hosts of machines without one are maintained without a word
ENDLESS = LAST_WORDS + "echo up; while :; do sleep 0.1; done"


def zone_of(berg, name: str) -> str:
    return berg.machines()[name]["zone"].rpartition("/")[2]


def run(berg, name: str, command: str, *options: str) -> None:
    ran = berg("run", "-g", "0", "-n", name, *options, command)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("end", ["stop", "delete"])
def test_the_last_words_of_a_machine_that_goes_down_arrive(berg, end):
    run(berg, end, ENDLESS)
    wait_for(lambda: "\nup\n" in berg.log(end))
    path = f"/compute/v1/projects/berg-local/zones/{zone_of(berg, end)}/instances/{end}"
    berg.cloud.call(*(("POST", f"{path}/stop") if end == "stop" else ("DELETE", path)))
    wait_for(lambda: berg.state(end)["state"] == "KILLED")
    assert berg.objects(f"berg_results/{end}/")[f"berg_results/{end}/late"] == b"late\n"
    assert berg.state(end)["reason"] == "the machine was shut down from outside"


def test_a_preemption_without_notice_leaves_time_for_the_last_words(berg):
    run(berg, "spot", f"[ $BERG_ATTEMPT = 1 ] || exit 0; {ENDLESS}", "--spot")
    wait_for(lambda: "\nup\n" in berg.log("spot"))
    berg.cloud.call("POST", "/_berg/instances/spot/preempt", {"notice": 0})
    wait_for(lambda: berg.state("spot")["state"] == "SUCCEEDED", 60)
    assert berg.objects("berg_results/spot/")["berg_results/spot/late"] == b"late\n"
    assert berg.state("spot")["attempt"] == 2


def test_a_spot_machine_asks_for_notice_and_does_not_wait_for_its_end(berg):
    run(berg, "spot", f"[ $BERG_ATTEMPT = 1 ] || exit 0; {ENDLESS}", "--spot")
    assert berg.machines()["spot"]["scheduling"]["preemptionNoticeDuration"] == {"seconds": "120"}
    wait_for(lambda: "\nup\n" in berg.log("spot"))
    berg.cloud.call("POST", "/_berg/instances/spot/preempt")
    wait_for(lambda: berg.state("spot")["state"] == "SUCCEEDED", 60)  # not 120 s and more


def test_a_second_start_leaves_a_running_job_alone(berg):
    again = "for how in '' work; do python3 /root/berg/boot.py $how; echo again: $?; done"
    run(berg, "twice", f"{again}; systemctl start berg; echo unit: $?; sleep 1; touch $BERG_RESULTS_DIR/done")
    wait_for(lambda: berg.state("twice")["state"] == "SUCCEEDED")
    log = berg.log("twice")
    assert log.count("Berg works on this machine already: nothing to do") == 2 and log.count("again: 0") == 2
    assert "unit: 0" in log and log.count("Starting on twice") == 1 and berg.state("twice")["attempt"] == 1


def test_the_boot_is_complete_while_the_job_runs(berg):
    run(berg, "booted", "sleep 60")
    wait_for(lambda: berg.state("booted")["state"] == "RUNNING")
    path = f"/compute/v1/projects/berg-local/zones/{zone_of(berg, 'booted')}/instances/booted/serialPort"
    assert "Finished running startup scripts." in berg.cloud.call("GET", path)["contents"]


def test_a_long_command_runs(berg):
    """Its line is longer than what the console takes."""
    run(berg, "long", f": {'x' * 63_900}; echo ran")
    wait_for(lambda: berg.state("long")["state"] == "SUCCEEDED")
    assert "\nran\n" in berg.log("long")


def test_a_console_that_is_closed_takes_nothing_and_lines_are_cut():
    code = (
        "import os, sys; from berg.machine import boot\n"
        "boot.console('x' * 100_000 + chr(10) + 'next')\n"
        "sys.stdin.read(1)\n"
        "for _ in range(3): boot.console('nobody hears this')\n"
        "import subprocess; sys.exit(subprocess.run(['echo', 'nor this']).returncode)\n"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe)
    lines = [process.stdout.readline(), process.stdout.readline()]
    process.stdout.close()
    process.stdin.write(b"x")
    process.stdin.close()
    assert process.wait() == 0 and process.stderr.read() == b""
    assert lines[1] == b"next\n" and len(lines[0]) == boot.CONSOLE_LINE + 1


def test_the_console_is_read_in_every_form():
    lines = (
        "Nov 21 18:37:45 box google_metadata_script_runner[812]: startup-script: one\r\n"
        'Nov 21 18:37:45 box google_metadata_script_runner[812]: Metadata key("startup-script"), command("/bin/bash"): '
        "two: 2\r\n[  OK  ] Started berg.service - Runs a job.\r\nberg: three\r\n[    1.0] kernel: four\r\n"
    )
    assert jobs.STARTUP_LINE.findall(lines) == ["one", "two: 2", "three"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    unit = tmp_path / "berg.service"
    unit.write_text(boot.UNIT.format(python="/usr/bin/python3", script="/etc/hostname"))
    ran = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    about_it = [line for line in (ran.stdout + ran.stderr).splitlines() if str(unit) in line or "berg.service" in line]
    assert about_it == [], about_it


def test_a_job_of_one_machine_goes_on_after_maintenance(berg):
    run(berg, "kept-on", f"[ $BERG_ATTEMPT = 1 ] || {{ ls $BERG_RESULTS_DIR; exit 0; }}; {ENDLESS}", *GPU)
    wait_for(lambda: "\nup\n" in berg.log("kept-on"))
    berg.cloud.call("POST", "/_berg/instances/kept-on/maintain", {"notice": 3})
    wait_for(lambda: berg.state("kept-on")["state"] == "SUCCEEDED", 90)
    state = berg.state("kept-on")
    assert state["attempt"] == 2 and state["restarts"] == 0
    assert "within the hour, to maintain its host" in berg.log("kept-on") and "\nlate\n" in berg.log("kept-on")


def test_a_cluster_ends_with_the_maintenance_as_its_reason(berg):
    run(berg, "pair", ENDLESS, "-m", "2", *GPU)
    wait_for(lambda: "\nup\n" in berg.log("pair"))
    berg.cloud.call("POST", "/_berg/instances/pair-0/maintain", {"notice": 1})
    wait_for(lambda: berg.state("pair")["state"] == "FAILED", 60)
    assert "to maintain its host" in berg.state("pair")["reason"]


def test_rights_that_come_late_are_waited_for(berg):
    """What `berg init` granted a moment ago counts after minutes; until then everything is forbidden."""
    berg.cloud.fault("storage.objects.get", match=".whl?alt=media", status=403, times=4)
    berg.cloud.fault("compute.instances.delete", status=403, times=3)
    run(berg, "early", "echo ran")
    wait_for(lambda: berg.state("early")["state"] == "SUCCEEDED", 60)
    wait_for(lambda: "early" not in berg.machines(), 60)


def test_a_machine_that_may_not_be_deleted_turns_itself_off(berg):
    """Off it costs its disk alone, and `berg reap` finds it."""
    berg.cloud.fault("compute.instances.delete", match="/instances/stuck", status=403, times=None)
    # The worker that saves what is left gives up after seconds what else it would for a quarter of an hour.
    impatient = "sed -i 's/^FORBIDDEN_SECONDS = 900/FORBIDDEN_SECONDS = 3/' /root/berg/app/berg/machine/boot.py"
    run(berg, "stuck", f"echo kept > $BERG_RESULTS_DIR/out; {impatient}; kill -9 $PPID; sleep 60")
    wait_for(lambda: berg.machines()["stuck"]["status"] == "TERMINATED", 60)
    assert berg.state("stuck")["state"] == "FAILED" and "killed by signal 9" in berg.state("stuck")["reason"]
    assert berg.objects("berg_results/stuck/")["berg_results/stuck/out"] == b"kept\n"
    path = f"/compute/v1/projects/berg-local/zones/{zone_of(berg, 'stuck')}/instances/stuck/serialPort"
    assert "It is turned off instead. Delete it: berg reap" in berg.cloud.call("GET", path)["contents"]
    berg.cloud.call("DELETE", "/_berg/faults")
    reaped = berg("reap", "-y")
    assert reaped.returncode == 0 and "stuck" in reaped.stdout + reaped.stderr, reaped.stderr
    wait_for(lambda: not berg.machines())


def test_machines_take_what_the_worker_needs_from_the_bucket(berg):
    """The default image has no environment for berg, and cannot make one: no venv, no network."""
    run(berg, "plain", "python3 -c 'import click'; ls /root/berg; ls /root/berg/packages")
    run(berg, "golden", "ls /root/berg", "--image", "golden", "--image-project", "golden-images")
    for name in ("plain", "golden"):
        wait_for(lambda name=name: berg.state(name)["state"] == "SUCCEEDED", 60)
        assert "Making a python environment" not in berg.log(name)
    assert "\nvenv\n" not in berg.log("plain") and "\ngoogle_crc32c\n" in berg.log("plain")
    assert "\npackages\n" not in berg.log("golden") and "\nvenv\n" in berg.log("golden")
    sent = berg.cloud.call("GET", "/_berg/requests")["requests"]
    uploads = [each for each in sent if "packages-" in each["path"] and each["verb"] == "POST"]
    assert len([name for name in berg.objects(".berg/dist/") if "packages-" in name]) == 1 and len(uploads) <= 1

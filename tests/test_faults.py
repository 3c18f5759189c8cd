"""What goes wrong, one fault a test: afterwards nothing is lost and nothing is left behind.

Every job writes files whose bytes follow from a seed, and a line to its log after each. A file is
lost if the log says that it was written (before `synced_until`, where the machine went without a
warning) and the bucket has not exactly its bytes. A machine, group or secret is leaked if it is
there when the job is over, `berg reap` included.

`make chaos` runs every test many times, with other seeds, and writes the table in
docs/reliability.md.
"""

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import Berg, commit, library, wait_for
from test_run import worker_of

from berg import BergError, cli, config, gce, places, states
from berg.google import api, groups, iam, instances, views
from berg.laptop import ending, jobs
from localcloud import control

WRITER = """
import hashlib, os, sys, time
seed, count, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
out = os.environ["BERG_RESULTS_DIR"]
found = [name for name in os.listdir(out) if name.endswith(".bin")]
print("attempt", os.environ["BERG_ATTEMPT"], "finds", len(found), flush=True)
for i in range(count):
    path = f"{out}/{i:04}.bin"
    if not os.path.exists(path):
        with open(path + ".part", "wb") as file:
            file.write(hashlib.shake_256(f"{seed} {i}".encode()).digest(1 + i * 7919 % 300_000))
        os.rename(path + ".part", path)
        print("wrote", i, time.time(), flush=True)
        time.sleep(pause)
print("all written", flush=True)
"""


def content(seed: int, i: int) -> bytes:
    return hashlib.shake_256(f"{seed} {i}".encode()).digest(1 + i * 7919 % 300_000)


@dataclass
class Trial:
    """One job under one fault."""

    berg: Berg
    seed: int
    record: Callable[[str, object], None]
    thorough: bool  # as long as the promises say, not as short as a test may be
    where: tuple[str, ...] = ("-g", "0")  # options of its machines
    name: str = ""
    others: Callable[[], list[str]] = list  # what it has in a place of its own
    dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.name = f"trial-{self.seed}-{os.urandom(3).hex()}"
        (self.berg.repo / "writer.py").write_text(WRITER)
        commit(self.berg.repo)

    def command(self, count: int = 8, pause: float = 0.05, then: str = "") -> str:
        return f"python writer.py {self.seed} {count} {pause}" + (f"; {then}" if then else "")

    def run(
        self, cmd: str | None = None, *options: str, fails: bool = False
    ) -> subprocess.CompletedProcess:
        ran = self.berg("run", *self.where, "-n", self.name, *options, cmd or self.command())
        assert (ran.returncode != 0) == fails, ran.stderr
        assert "Traceback" not in ran.stderr
        return ran

    def fault(self, method: str, **what) -> None:
        self.berg.cloud.fault(method, **what)

    def power(self, what: str, **options) -> None:
        self.berg.cloud.call("POST", f"/_berg/instances/{self.name}/{what}", options)

    def log(self) -> str:
        return self.berg.log(self.name)

    def state(self) -> dict:
        """The state as a reader is told it."""
        found = [
            each
            for each in json.loads(self.berg("list", "--json").stdout)
            if each["name"] == self.name
        ]
        return found[0] if found else {}

    def until(self, text: str, seconds: float = 60) -> None:
        try:
            wait_for(lambda: text in self.log(), seconds, f"{text!r} in the log")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.berg.state(self.name)}\n{self.log()}") from None

    def until_state(self, *states: str, seconds: float = 90) -> dict:
        wait_for(
            lambda: self.berg.state(self.name)["state"] in states,
            seconds,
            f"state {states} of {self.name}",
        )
        return self.berg.state(self.name)

    def leaked(self) -> list[str]:
        """What the job still has in the cloud."""
        there = [
            name
            for name in self.berg.machines()
            if name == self.name or name.startswith(f"{self.name}-")
        ]
        secrets = self.berg.cloud.call("GET", "/secretmanager/v1/projects/berg-local/secrets").get(
            "secrets", []
        )
        # While it has a machine nobody asks for groups: a project may not list them all ten times a
        # second.
        found = [] if there else groups.find(self.berg.bucket.config, self.name)
        return [
            *there,
            *(group["name"] for group in found),
            *(
                secret["name"]
                for secret in secrets
                if secret["name"].endswith(f"/berg-{self.name}")
            ),
            *self.others(),
        ]

    def lost(self, count: int | None = None, until: float | None = None) -> list[int]:
        """Files that should be in the bucket and are not: `count` of them, or those that the log
        has.
        """
        written = {
            int(i): float(at) for i, at in re.findall(r"^wrote (\d+) ([\d.]+)$", self.log(), re.M)
        }
        wanted = (
            range(count)
            if count is not None
            else [i for i, at in written.items() if until is None or at < until]
        )
        objects = self.berg.objects(f"berg_results/{self.name}/")
        return [
            i
            for i in wanted
            if objects.get(f"berg_results/{self.name}/{i:04}.bin") != content(self.seed, i)
        ]

    def check(self, states: str, count: int | None = None, until: float | None = None) -> dict:
        """The job ended in one of these states, nothing is lost, and nothing is left."""
        state = self.until_state(*states.split())
        try:
            wait_for(lambda: not self.leaked(), 60, "the end of the machine")
        except AssertionError:
            pass  # told below
        leaked, lost = self.leaked(), self.lost(count, until)
        self.record("lost", len(lost))
        self.record("leaked", len(leaked))
        assert (lost, leaked) == ([], []), state
        return state

    def check_gone(self) -> None:
        """Nothing is left; there was nothing to lose."""
        leaked = self.leaked()
        self.record("lost", 0)
        self.record("leaked", len(leaked))
        assert leaked == []

    def reap(self, monkeypatch) -> None:
        """What `berg reap` does when enough time has passed."""
        settings = self.berg.bucket.config
        monkeypatch.setattr(ending, "SETTLED", -1)
        monkeypatch.setattr("berg.laptop.jobs.LOST_AFTER", 0)
        ending.delete_leftovers(
            settings, [each for each in ending.leftovers(settings, None) if each.name == self.name]
        )


@pytest.fixture
def trial(berg, seed, record_property, request) -> Trial:
    if mark := request.node.get_closest_marker("fault"):
        record_property("fault", mark.args)
    return Trial(berg, seed, record_property, bool(request.config.getoption("--table")))


def fault(name: str, promises: str, weight: int = 1):
    """Name a test's fault, and by their numbers the promises that it tests; `weight` times the
    rounds of others.
    """
    return pytest.mark.fault(name, promises, weight)


# --- workers and commands

HOLD = {  # phase -> what makes a job stay in it for a while
    "STARTING": lambda t: t.fault("storage.objects.get", match=f"{t.name}_metadata.json", delay=4),
    "INSTALLING": lambda t: (t.berg.repo / "setup.sh").write_text("sleep 4\n"),
    "RUNNING": lambda t: None,
    "UPLOADING": lambda t: t.fault("storage.objects.insert", match=f"{t.name}/0007.bin", delay=4),
}


@pytest.mark.parametrize("phase", HOLD)
@fault("worker killed with -9 in each phase", "1 2 4")
def test_worker_killed(trial, phase):
    HOLD[phase](trial)
    script = ["--install-script", "setup.sh"] if phase == "INSTALLING" else []
    trial.run(trial.command(8, 0.05 if phase == "UPLOADING" else 2), *script)
    trial.until_state(phase)
    time.sleep(trial.dice.random() if phase != "STARTING" else 0)
    os.kill(wait_for(lambda: worker_of(trial.name)), signal.SIGKILL)
    state = trial.check("FAILED SUCCEEDED")
    if phase == "UPLOADING":
        assert state["state"] == "SUCCEEDED" and state["exit_code"] == 0, (
            "the command had ended well"
        )
    else:
        assert "berg's worker was killed by signal 9" in state["reason"]


@fault("command killed with -9", "2 4")
def test_command_killed(trial):
    trial.run(trial.command(5, then="kill -9 $$"))
    assert trial.check("FAILED", 5)["exit_code"] == 137


@pytest.mark.slow
@fault("the command leaves a process in its own session, which keeps writing results", "1 2")
def test_left_behind(trial):
    """It kept the machine until its time limit, and `berg kill` waiting."""
    beside = "$BERG_RESULTS_DIR/beside"
    (trial.berg.repo / "daemon.sh").write_text(f"while :; do date +%N >{beside}; sleep 0.1; done\n")
    commit(trial.berg.repo)
    trial.run(f"setsid nohup bash daemon.sh >/dev/null 2>&1 & {trial.command(8)}")
    state = trial.check("SUCCEEDED", 8)
    assert state["exit_code"] == 0 and not state["lost"]
    assert re.fullmatch(r"the command ended after \d+ s and left 2 .* ended", state["reason"]), (
        state
    )
    assert f"berg_results/{trial.name}/beside" in trial.berg.objects("berg_results/")


@pytest.mark.slow
@fault("two workers with the same job", "1 4")
def test_two_workers(trial):
    trial.run(trial.command(40, 0.1))
    trial.until("wrote 2 ")
    zone = "us-central1-b"
    machine = trial.berg.machines()[trial.name]
    body = {
        key: machine[key]
        for key in ("name", "labels", "scheduling", "serviceAccounts", "networkInterfaces")
    }
    body["networkInterfaces"] = [{"network": "global/networks/default", "accessConfigs": [{}]}]
    body["metadata"] = {"items": machine["metadata"]["items"]}
    body["machineType"] = f"zones/{zone}/machineTypes/{machine['machineType'].rpartition('/')[2]}"
    image = "projects/debian-cloud/global/images/family/debian-12"
    body["disks"] = [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}}]
    second = f"/compute/v1/projects/berg-local/zones/{zone}/instances"
    trial.berg.cloud.call("POST", second, body)

    def in_zone() -> bool:
        scopes = trial.berg.cloud.call(
            "GET", "/compute/v1/projects/berg-local/aggregated/instances"
        )["items"]
        return any(
            each["name"] == trial.name for each in scopes[f"zones/{zone}"].get("instances", [])
        )

    wait_for(in_zone)
    wait_for(lambda: not in_zone(), 60, "the end of the second machine")
    state = trial.check("SUCCEEDED", 40)
    assert state["attempt"] == 1 and state["zone"] != zone
    assert trial.log().count("attempt 1 finds") == 1, "the command ran once"


# --- machines

PREEMPTED_RUN = 60, 0.08  # files, seconds between two


@fault("machine preempted at a random moment", "1 2 3 6", weight=10)
def test_preempted(trial):
    count, pause = PREEMPTED_RUN
    trial.run(trial.command(count, pause), "--spot")
    if has_begun := trial.dice.random() < 0.8:
        trial.until("wrote 0 ")
    time.sleep(trial.dice.uniform(0, count * pause * 0.8))
    with contextlib.suppress(AssertionError):  # it is done already
        trial.power("preempt", grace=20)
    state = trial.check("SUCCEEDED", count)
    if has_begun and state["attempt"] == 2:
        log = trial.log()
        assert log.count("attempt 1 finds 0") == 1 and "attempt 2 finds" in log, (
            "the log goes on over machines"
        )
        done = len(re.findall(r"^wrote ", log, re.M))
        assert done == count, "what was written before was not written again"


@pytest.mark.slow
@fault("the second machine's worker is killed as it begins", "3 6")
def test_log_of_the_first_attempt_stays(trial):
    trial.run(trial.command(60, 0.1), "--spot")
    trial.until(f"wrote {trial.dice.randint(3, 20)} ")
    before = trial.log()
    trial.fault("storage.objects.get", match=f"{trial.name}_metadata.json", delay=4, times=None)
    trial.power("preempt", grace=20)
    wait_for(lambda: trial.berg.state(trial.name)["attempt"] == 2, 60, "the second attempt")
    os.kill(wait_for(lambda: worker_of(trial.name)), signal.SIGKILL)
    trial.check("FAILED")
    log = trial.berg("log", trial.name).stdout
    assert log.startswith(before) and "attempt 1 finds 0" in log, "the log of the first attempt"
    assert "berg's worker was killed by signal 9" in log.partition("preempted")[2]


@pytest.mark.slow
@fault("machine loses its power", "1 2 4 6")
def test_power_cut_of_a_spot_machine(trial):
    trial.run(trial.command(30, 0.2), "--spot")
    trial.until(f"wrote {trial.dice.randint(0, 20)} ")
    trial.power("crash")
    assert trial.check("SUCCEEDED", 30)["attempt"] == 2


@pytest.mark.slow
@fault("machine loses its power", "1 2 4")
def test_power_cut(trial):
    trial.run(trial.command(200, 0.2))
    wait_for(lambda: trial.berg.state(trial.name)["synced_until"], 60, "the first synced_until")
    trial.power("crash")
    stored = trial.berg.state(trial.name)
    until = datetime.fromisoformat(stored["synced_until"]).timestamp()
    assert trial.lost(until=until) == [], "what synced_until says is in the bucket"
    ran = trial.berg("kill", trial.name)
    assert ran.returncode == 0 and re.search(": (KILLED|LOST)", ran.stderr), ran.stderr
    trial.check(stored["state"] + " KILLED", until=until)


def resume_and_stand_still(trial) -> None:
    """Resume a job with eight files, until the restore waits for one of them."""
    trial.run(trial.command(8, then="exit 1"))
    trial.check("FAILED", 8)
    trial.fault("storage.objects.get", match=f"/o/berg_results/{trial.name}/0003.bin?", delay=60)
    resumed = trial.berg("run", "--resume", trial.name)
    assert resumed.returncode == 0, resumed.stderr
    wait_for(lambda: any(each["hits"] for each in faults(trial.berg)), 60, "the fault")
    trial.until_state("STARTING")  # before that the bucket knows of no second attempt


def check_third_attempt(trial) -> None:
    trial.until("attempt 3 finds ")
    assert "attempt 3 finds 8\n" in trial.log(), trial.log()
    trial.check("FAILED", 8)


@pytest.mark.slow
@fault("machine loses its power while it restores results, and restarts", "1 2 4")
def test_power_cut_while_results_are_brought_back(trial):
    resume_and_stand_still(trial)
    trial.berg.crash_and_start(trial.name)
    check_third_attempt(trial)


@pytest.mark.slow
@fault("machine loses its power, with a restored file, before the command begins", "1 2 4")
def test_power_cut_before_the_command_begins_again(trial):
    """The kernel writes a file to the disk half a minute after a program did."""
    (trial.berg.repo / "setup.sh").write_text("sleep 5\n")
    trial.run(trial.command(8, then="exit 1"), "--install-script", "setup.sh")
    trial.check("FAILED", 8)
    assert trial.berg("run", "--resume", trial.name).returncode == 0
    wait_for(lambda: trial.log().count("Checked out ") == 2)
    machine = trial.berg.machines()[trial.name]
    disk = trial.berg.cloud.folder / "machines" / machine["id"]
    (restored,) = disk.glob(f"**/berg_results/{trial.name}/0003.bin")
    os.truncate(restored, 0)
    trial.berg.crash_and_start(trial.name)
    check_third_attempt(trial)


@fault("worker killed with -9 while it restores results; then --resume", "1 2 4")
def test_worker_killed_while_results_are_brought_back(trial):
    resume_and_stand_still(trial)
    os.kill(wait_for(lambda: worker_of(trial.name)), signal.SIGKILL)
    trial.check("FAILED", 8)
    trial.berg.cloud.call("DELETE", "/_berg/faults")
    assert trial.berg("run", "--resume", trial.name).returncode == 0
    check_third_attempt(trial)


@pytest.mark.slow
@fault("machine off the network", "1 2 4")
def test_machine_is_cut_off(trial):
    """It comes back after a while, and goes on as if nothing had been."""
    trial.run(trial.command(30, 0.1))
    trial.until("wrote 3 ")
    trial.power("cut")
    time.sleep(trial.dice.uniform(3, 8))
    trial.power("cut", cut=False)
    trial.check("SUCCEEDED", 30)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["crash", "cut", "delete"])
@fault("of 3 machines on demand one is lost at any moment from its creation on", "1 2 4")
def test_a_machine_is_lost_before_the_others_see_it(trial, how):
    victim = f"{trial.name}-{trial.dice.randrange(3)}"
    words = ("run", *trial.where, "-n", trial.name, "-m", "3", trial.command(100, 0.5))
    begin = trial.berg.start(*words, silence_seconds=15)
    there = trial.berg.cloud.instances
    wait_for(lambda: there().get(victim, {}).get("status") == "RUNNING", 60, "the machine")
    time.sleep(trial.dice.uniform(0, 4))
    trial.berg.cloud.call("POST", "/_berg/settings", {"grace": 3})  # it may not hear its end
    if how == "delete":
        path = there()[victim]["selfLink"].partition("/compute/")[2]
        trial.berg.cloud.call("DELETE", f"/compute/{path}")
    else:
        trial.berg.cloud.call("POST", f"/_berg/instances/{victim}/{how}")
    lost = time.monotonic()
    begin.communicate(timeout=60)
    assert victim in trial.check("FAILED")["reason"]
    assert time.monotonic() - lost < 90, "with the patience of real machines 5 minutes"


@pytest.mark.slow
@fault("disk full", "2 4")
def test_disk_full(trial):
    (trial.berg.repo / "small.sh").write_text(
        "mount -t tmpfs -o size=2m tmpfs /root/berg_results\n"
    )
    trial.run(f"mkdir $BERG_RESULTS_DIR; {trial.command(40, 0)}", "--install-script", "small.sh")
    assert "disk is full" in trial.check("FAILED")["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["garbage", "an odd state", "nothing"])
@fault("the state is overwritten or deleted while the job runs", "1 2 3")
def test_state_is_damaged(trial, what):
    path = f".berg/jobs/{trial.name}_state.json"
    trial.run(trial.command(2000, 0.1))
    trial.until("wrote 3 ")
    reader = trial.berg.start("tail", trial.name)
    assert reader.stdout and reader.stdout.readline()
    if what == "nothing":
        trial.berg.bucket.delete(path)
    else:
        odd = json.dumps({"state": "RUNNING", "job": [], "restarts": "many"})
        trial.berg.bucket.write(path, "{", metadata={} if what == "garbage" else {"state": odd})
    wait_for(lambda: not trial.leaked(), 100, "the end of the machine")
    lost = trial.lost()
    trial.record("lost", len(lost))
    trial.record("leaked", 0)
    assert lost == []
    said = reader.communicate()[1]
    assert reader.returncode == 1, said
    if what == "nothing":
        assert (
            f"the state of {trial.name} is gone from the bucket" in said
            and f"berg fetch {trial.name}" in said
        )
        assert not trial.berg.bucket.exists(path)
    else:
        state = trial.state()
        assert (
            state["state"] == "FAILED"
            and "was overwritten with what is no state" in state["reason"]
        ), state


@pytest.mark.slow
@fault("the state is overwritten before the machine is there", "1")
def test_state_is_damaged_from_the_beginning(trial):
    trial.berg.cloud.call("POST", "/_berg/settings", {"delay": 8})
    laptop = trial.berg.start("run", "-g", "0", "-n", trial.name, trial.command())
    wait_for(lambda: trial.name in trial.berg.machines(), 60, "the machine")
    trial.berg.bucket.write(
        f".berg/jobs/{trial.name}_state.json", "null", metadata={"state": "null"}
    )
    said = laptop.communicate()
    assert laptop.returncode == 0, said
    trial.record("lost", 0)
    wait_for(lambda: not trial.leaked(), 60, "the end of the machine")
    trial.record("leaked", 0)
    state = trial.state()
    assert "was overwritten" in state.get("reason", ""), (state, said, trial.log())


ODD_JOBS = {
    "no machines": {"num_machines": 0},
    "a NUL": {"env": {"A": "x\0"}},
    "no command": {"cmd": ""},
}


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD_JOBS)
@fault("odd metadata of a job", "1 4")
def test_odd_metadata(trial, odd):
    trial.berg.cloud.call("POST", "/_berg/settings", {"delay": 2})
    laptop = trial.berg.start("run", "-g", "0", "-n", trial.name, trial.command())
    wait_for(lambda: trial.name in trial.berg.machines(), 60, "the machine")
    path = f".berg/jobs/{trial.name}_metadata.json"
    values = json.loads(trial.berg.bucket.read(path))
    trial.berg.bucket.write(path, json.dumps({**values, **ODD_JOBS[odd]}))
    laptop.communicate()
    assert "is not what was submitted" in trial.check("FAILED", 0)["reason"]


@pytest.mark.slow
@fault("an upload stalls when Google takes the machine", "1 2 3 6")
def test_stalled_upload_at_the_notice(trial):
    """What else the command saves in those seconds arrives, and what did not is named, also once it
    did later on.
    """
    trap = 'trap "echo told; echo late >$BERG_RESULTS_DIR/late; exit 0" TERM; '
    stall = "head -c 1000 /dev/zero >$BERG_RESULTS_DIR/stalls; echo; echo ready; sleep 100 & wait"
    trial.run(
        f"if [ $BERG_ATTEMPT = 2 ]; then echo x >$BERG_RESULTS_DIR/stalls; exit 0; fi; {trap}{stall}",
        "--spot",
    )
    trial.fault("storage.objects.insert", match=f"{trial.name}/stalls", delay=45, times=None)
    trial.until("\nready\n")
    time.sleep(trial.dice.uniform(0, 12))
    trial.power("preempt", grace=30)
    wait_for(lambda: trial.berg.state(trial.name)["attempt"] == 2, 90, "the second attempt")
    trial.berg.cloud.call("DELETE", "/_berg/faults")
    state = trial.check("SUCCEEDED", 0)
    assert state["reason"].startswith(
        f"in earlier attempts: 1 file is not in the bucket: {trial.name}/stalls"
    ), state
    assert trial.berg.objects(f"berg_results/{trial.name}/stalls").popitem()[1] == b"x\n"
    assert trial.berg.objects(f"berg_results/{trial.name}/late").popitem()[1] == b"late\n"
    assert "\ntold\n" in trial.log()
    listed = trial.berg("list").stdout
    assert "1 file is not in the bucket: " in " ".join(listed.split()), listed


ENDED = "echo begins; {writer}"  # counts how often the command began


def end_with_stalled_upload(trial, seconds: float, *options: str) -> None:
    """Run a command that ends while its last file is on its way for so many seconds."""
    trial.fault("storage.objects.insert", match=f"{trial.name}/0007.bin", delay=seconds, times=None)
    trial.run(ENDED.format(writer=trial.command(8)), *options)
    trial.until_state("UPLOADING")
    trial.until("begins")  # the log is sent every few seconds


def check_ended_once(trial, states: str, count: int | None = None) -> dict:
    """The command ran once, and its exit code is the job's."""
    state = trial.check(states, count, until=None if count else 0)
    assert trial.log().count("begins\n") == 1, trial.log()
    assert (state["exit_code"], state["attempt"]) == (0, 1), state
    return state


@fault("the command had ended when Google takes the machine, and all arrives in time", "1 2 6")
def test_what_has_ended_stays_ended(trial):
    end_with_stalled_upload(trial, 6, "--spot")
    trial.power("preempt", grace=30)
    assert check_ended_once(trial, "SUCCEEDED", 8)["reason"] == ""


@pytest.mark.slow
@fault("the command had ended when Google takes the machine, and a file does not arrive", "1 4")
def test_what_has_ended_and_was_not_saved_in_time(trial):
    end_with_stalled_upload(trial, 60, "--spot")
    trial.power("preempt", grace=30)
    assert f"{trial.name}/0007.bin" in check_ended_once(trial, "FAILED")["reason"]
    assert trial.lost(8) == [7]


@fault("a machine loses its power after the command has ended", "1 4")
def test_power_cut_after_the_end(trial):
    """Another machine writes the job's end, and runs nothing."""
    end_with_stalled_upload(trial, 60, "--spot")
    trial.power("crash")
    state = check_ended_once(trial, "FAILED")
    assert "its machine was lost before the last results were in the bucket" in state["reason"]


@pytest.mark.slow
@fault("a machine loses its power after the command has ended, and starts again", "1 2 4")
def test_power_cut_of_a_disk_that_comes_back(trial):
    end_with_stalled_upload(trial, 60)
    trial.berg.crash_and_start(trial.name)
    trial.berg.cloud.call("DELETE", "/_berg/faults")
    assert check_ended_once(trial, "SUCCEEDED", 8)["reason"] == ""


@pytest.mark.slow
@fault("the last upload is refused until the time is up", "1 2 4")
def test_upload_is_refused_for_ever(trial):
    trial.run("sleep 4; " + trial.command(8), "--max-hours", "0.015")
    trial.fault("storage.objects.insert", match=f"{trial.name}/0007.bin", status=403, times=None)
    state = trial.until_state("FAILED")
    assert "1 file is not in the bucket: " in state["reason"] and "0007.bin" in state["reason"], (
        state
    )
    wait_for(lambda: not trial.leaked(), 60, "the end of the machine")
    trial.berg.cloud.call("DELETE", "/_berg/faults")
    assert trial.lost() == [7], "named, so not lost without a word"
    trial.record("lost", 0)
    trial.record("leaked", 0)


# --- the laptop

SUBMIT = {  # step -> how it is held, so that the laptop dies in the middle of it
    "code": {"method": "storage.objects.insert", "match": ".berg/repos"},
    "state": {"method": "storage.objects.insert", "match": "_state.json"},
    "state, answer": {
        "method": "storage.objects.insert",
        "match": "_state.json",
        "after_handler": True,
    },
    "metadata": {"method": "storage.objects.insert", "match": "_metadata.json"},
    "create": {"method": "compute.instances.insert"},
    "create, answer": {"method": "compute.instances.insert", "after_handler": True},
    "operation": {"method": "compute.zoneOperations.wait"},
    "group": {"method": "compute.regionInstanceGroupManagers.insert", "after_handler": True},
    "group's template": {"method": "compute.instanceTemplates.insert", "after_handler": True},
}


@pytest.mark.parametrize("step", SUBMIT)
@fault("laptop killed with -9 at each step of a submit", "1 5")
def test_laptop_killed(trial, step, monkeypatch):
    what = SUBMIT[step]
    trial.fault(**what, delay=1)
    wishes = ["--spot"] if "group" in step else []
    laptop = trial.berg.start("run", "-g", "0", "-n", trial.name, *wishes, trial.command())
    hit = {"method": what["method"]}
    wait_for(
        lambda: any(f["hits"] and f["method"] == hit["method"] for f in faults(trial.berg)),
        60,
        "the fault",
    )
    time.sleep(trial.dice.uniform(0, 0.5))
    laptop.kill()
    laptop.communicate()
    time.sleep(2)  # a request that was under way arrives
    if trial.name in trial.berg.machines():
        trial.until_state("SUCCEEDED")  # the machine was made, and does its work
        wait_for(lambda: trial.name not in trial.berg.machines())
    trial.reap(monkeypatch)
    trial.check_gone()


def faults(berg: Berg) -> list[dict]:
    return berg.cloud.call("GET", "/_berg/faults")["faults"]


TAKING = {
    "claim": {"method": "storage.objects.insert", "match": ".warm/"},
    "labels": {"method": "compute.instances.setLabels"},
    "metadata": {"method": "compute.instances.setMetadata"},
}


@pytest.mark.slow
@pytest.mark.parametrize("step", TAKING)
@pytest.mark.parametrize("machines", ["1", "2"])
@fault("laptop killed with -9 while its job takes one or two warm machines", "1 2 5")
def test_laptop_killed_that_takes_a_warm_machine(trial, machines, step, monkeypatch):
    berg, several = trial.berg, ["-g", "0", "-m", machines]
    berg("run", *several, "--keep-warm", "20s", "-n", "earlier", "--wait", "true")
    wait_for(lambda: [*states.offers(berg.bucket)], what="the offer")
    trial.fault(**TAKING[step], delay=1)
    laptop = berg.start("run", *several, "-n", trial.name, trial.command(5))
    wait_for(lambda: any(each["hits"] for each in faults(berg)), 60, "the fault")
    time.sleep(trial.dice.uniform(0, 2))
    laptop.kill()
    laptop.communicate()
    wait_for(lambda: not berg.machines(), 150, "the end of the machine")
    if trial.berg.state(trial.name)["state"] == "SUCCEEDED":
        trial.check("SUCCEEDED", 5)
        return
    trial.reap(monkeypatch)
    trial.check_gone()


@pytest.mark.slow
@pytest.mark.parametrize("machines", ["1", "2"])
@fault("the time of one or two warm machines ends while a job takes them", "1 2 4 5", weight=3)
def test_the_time_of_a_warm_machine_ends_as_a_job_takes_it(trial, machines):
    several = ["-m", machines]
    trial.berg("run", "-g", "0", *several, "--keep-warm", "6s", "-n", "earlier", "--wait", "true")
    time.sleep(trial.dice.uniform(1, 5))
    trial.run(None, *several)
    trial.check("SUCCEEDED")
    wait_for(lambda: not trial.berg.machines(), what="the end of both machines")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@fault("one of two warm machines is lost while they wait for a job", "1 4 5", weight=2)
def test_one_of_two_warm_machines_is_lost(trial, rank):
    berg, several = trial.berg, ["-m", "2", "--keep-warm", "1h"]
    berg("run", "-g", "0", *several, "-n", "earlier", "--wait", "true")
    wait_for(lambda: [*states.offers(berg.bucket)], what="the offer")
    berg.cloud.call("POST", f"/_berg/instances/earlier-{rank}/crash")
    time.sleep(trial.dice.uniform(0, 12))
    trial.run(None, "-m", "2")
    trial.check("SUCCEEDED")
    wait_for(lambda: not berg.machines(), 90, "the end of the other")


@pytest.mark.slow
@fault("a create that Google carries out after the laptop gave up", "1 5")
def test_a_machine_whose_job_was_taken_back(trial):
    trial.berg.cloud.call("POST", "/_berg/settings", {"delay": 1})
    trial.run()
    trial.berg.bucket.delete(f".berg/jobs/{trial.name}_state.json")
    trial.record("lost", 0)
    wait_for(lambda: not trial.leaked(), 60, "the end of the machine")
    trial.record("leaked", len(trial.leaked()))
    assert trial.leaked() == [] and not trial.berg.bucket.exists(
        f".berg/jobs/{trial.name}_state.json"
    )


# --- the bucket


@pytest.mark.slow
@fault("20 % of storage calls fail with 503, 429 and resets for a whole run", "2 3 4 5")
def test_storage_stumbles(trial):
    for number, what in enumerate(({"status": 503}, {"status": 429}, {"reset": True})):
        seed = trial.seed * 10 + number
        trial.fault("storage.objects.*", times=None, probability=0.07, seed=seed, **what)
    trial.run(trial.command(20))
    trial.check("SUCCEEDED", 20)
    assert "all written" in trial.log()


@pytest.mark.slow
@fault("a call to the bucket stalls", "2 4")
def test_a_call_stalls(trial):
    stall = 60 if trial.thorough else 3
    trial.fault("storage.objects.insert", match=f"{trial.name}/0003.bin", delay=stall)
    trial.run(trial.command(8))
    trial.check("SUCCEEDED", 8)


@pytest.mark.slow
@fault("the final upload fails for a while", "2 4")
def test_final_upload_fails(trial):
    seconds = 120 if trial.thorough else 3
    trial.run(trial.command(8, then="sleep 2"))
    trial.until("wrote 7 ")
    trial.fault(
        "storage.objects.insert", match=f"berg_results/{trial.name}/", status=403, times=None
    )
    began = time.monotonic()
    state = wait_for(
        lambda: (
            (s := trial.berg.state(trial.name)) and "not in the bucket yet" in s["reason"] and s
        ),
        60,
    )
    assert state["state"] == "UPLOADING"
    while time.monotonic() - began < seconds:
        assert trial.berg.state(trial.name)["state"] == "UPLOADING", "success before the last byte"
        time.sleep(1)
    trial.berg.cloud.call("DELETE", "/_berg/faults")
    assert trial.check("SUCCEEDED", 8)["reason"] == ""


@pytest.mark.slow
@fault("the job is killed while it uploads", "1 2 4")
def test_killed_while_uploading(trial):
    trial.fault("storage.objects.insert", match=f"{trial.name}/0005.bin", delay=3)
    trial.run(trial.command(8))
    trial.until_state("UPLOADING")
    assert trial.berg("kill", trial.name).returncode == 0
    trial.check("SUCCEEDED KILLED", 8)


@pytest.mark.slow
@fault("tokens expire", "2 4")
def test_tokens_expire(trial):
    trial.run(trial.command(20, 0.1))
    for _ in range(3):
        time.sleep(trial.dice.uniform(0.2, 1))
        trial.berg.cloud.call("POST", "/_berg/tokens/expire", {})
    trial.check("SUCCEEDED", 20)


@pytest.mark.slow
@fault("a killed job cannot upload its results", "1 2 4")
def test_kill_says_what_it_waits_for(trial, monkeypatch):
    monkeypatch.setattr("berg.laptop.ending.STALLED", 4)
    trial.fault("storage.objects.insert", match=f"{trial.name}/0005.bin", status=403, times=None)
    trial.run(trial.command(8))
    trial.until_state("UPLOADING")
    wait_for(lambda: trial.berg.state(trial.name)["left_files"], 30, "what is left, in the state")
    said: list[str] = []
    with pytest.raises(BergError) as waiting:
        ending.kill(trial.berg.bucket.config, trial.name, False, said.append)
    why, left = waiting.value.message, f"1 files, {len(content(trial.seed, 5)):,} bytes are left"
    assert "has been uploading its results since" in said[0] and left in said[0]
    assert left in why and f"berg kill --now {trial.name}" in why and "0005.bin" in why
    assert trial.berg("kill", "--now", trial.name).returncode == 0
    trial.berg.cloud.call("DELETE", "/_berg/faults")
    assert trial.lost(8) == [5]
    trial.check_gone()  # what is lost was said, and wanted


@pytest.mark.slow
@fault("the bucket is deleted while machines run", "1")
@pytest.mark.parametrize("options", [(), ("--spot",)])
def test_bucket_is_deleted(trial, options):
    trial.run("sleep 600", *options)
    trial.until_state("RUNNING")
    bucket = trial.berg.bucket
    bucket.delete(*[blob.name for blob in bucket.list("")])
    library(bucket.config).delete()
    for command in (["list"], ["reap", "--json"]):
        ran = trial.berg(*command)
        assert ran.returncode == 0, ran.stderr
        assert (
            f"bucket '{bucket.name}' does not exist" in ran.stderr
            and "these are the machines" in ran.stderr
        )
    assert trial.name in trial.berg("list").stdout
    ended = trial.berg("kill", trial.name)
    assert ended.returncode == 0 and "machine deleted" in ended.stderr, ended.stderr
    trial.check_gone()


# --- results that are hard to keep


@pytest.mark.slow
@fault("machine preempted, of a job that writes to several folders", "2 6")
def test_preempted_with_results_elsewhere(trial):
    lines = "/root/berg_results/elsewhere-$BERG_JOB/lines"
    script = f"mkdir -p $(dirname {lines}); for i in $(seq 40); do n=$(cat {lines} 2>/dev/null | wc -l); "
    script += f"[ $n -lt 40 ] && echo line $n >>{lines}; echo has $n; sleep 0.1; done"
    trial.run(script, "--spot")
    trial.until(f"has {trial.dice.randint(5, 25)}\n")
    trial.power("preempt", grace=20)
    assert trial.check("SUCCEEDED")["attempt"] == 2
    (found,) = trial.berg.objects(f"berg_results/elsewhere-{trial.name}/").values()
    lost = found.decode().split("\n")[:-1] != [f"line {i}" for i in range(40)]
    trial.record("lost", int(lost))
    assert not lost, found.decode()


@pytest.mark.slow
@fault("an upload stalls when Google takes the machine", "2 4")
def test_a_stall_at_the_notice(trial):
    trial.fault("storage.objects.insert", match=f"{trial.name}/stuck", delay=60, times=None)
    save = "trap 'echo last words; echo saved >$BERG_RESULTS_DIR/checkpoint; exit 1' TERM"
    trial.run(
        f"{save}; echo x >$BERG_RESULTS_DIR/stuck; sleep 11; echo ready; while :; do sleep 0.1; done"
    )
    trial.until("\nready\n")
    trial.power("preempt", grace=30)
    state = trial.check("FAILED")
    objects = trial.berg.objects(f"berg_results/{trial.name}/")
    assert (
        objects.get(f"berg_results/{trial.name}/checkpoint") == b"saved\n"
        and "last words" in trial.log()
    )
    assert f"1 file is not in the bucket: {trial.name}/stuck" in state["reason"]


@pytest.mark.slow
@fault("a write of the state stalls when Google takes the machine", "2 4")
def test_a_state_that_stalls_at_the_notice(trial):
    """It holds up neither the last results nor the last word."""
    save = "trap 'echo last words; echo saved >$BERG_RESULTS_DIR/checkpoint; exit 1' TERM"
    trial.run(
        f"{save}; echo; echo ready; while :; do echo x >$BERG_RESULTS_DIR/$(date +%s); sleep 0.3; done"
    )
    trial.until("\nready\n")
    trial.fault("storage.objects.insert", match=f"{trial.name}_state.json", delay=60)
    wait_for(lambda: any(f["hits"] for f in faults(trial.berg)), 60, "a write of the state")
    trial.power("preempt", grace=30)
    wait_for(lambda: not trial.leaked(), 45, "the end of the machine, before Google takes it")
    state = trial.check("FAILED")
    objects = trial.berg.objects(f"berg_results/{trial.name}/")
    assert (
        objects.get(f"berg_results/{trial.name}/checkpoint") == b"saved\n"
        and "last words" in trial.log()
    )
    assert state["reason"] == "Google preempted the machine"


@pytest.mark.slow
@fault("a file that the bucket refuses for good", "1 2 4")
def test_a_file_that_is_refused(trial):
    trial.berg.allowed.append(400)
    trial.fault("storage.objects.insert", match=f"{trial.name}/refused", status=400, times=None)
    trial.run(trial.command(8, then="echo x >$BERG_RESULTS_DIR/refused"))
    reason = trial.check("SUCCEEDED", 8)["reason"]
    assert f"1 file is not in the bucket: {trial.name}/refused (the bucket refuses it" in reason
    trial.berg.cloud.call("DELETE", "/_berg/faults")
    assert (
        "refused" in trial.berg("fetch", trial.name).stderr
        and "refused" in trial.berg("list").stdout
    )


@pytest.mark.slow
@fault("results that are links, or whose names are not UTF-8", "2 4")
def test_odd_results(trial):
    odd = "ln -s /etc/hostname link; echo x >$(printf 'caf\\351'); ln -s /root/disk disk; mkdir /root/disk"
    trial.run(trial.command(8, then=f"cd $BERG_RESULTS_DIR; {odd}"))
    reason = trial.check("SUCCEEDED", 8)["reason"]
    assert (
        reason.startswith("3 files are not in the bucket: ")
        and "caf\\udce9 (its name is not UTF-8)" in reason
    )
    assert f"{trial.name}/link (a link to outside of the results)" in reason


@pytest.mark.slow
@fault("the last pass over the results is interrupted", "1 2 4")
def test_a_last_pass_that_breaks_off(trial):
    """Of the worker that saves what is left, so that another one's code can be made to."""
    broken = "cd /root/berg/app/berg/google && rm -r __pycache__"  # which came along compiled
    broken += " && sed -i 's/self.finishing = self.sender/nothing.sender/' mirror.py"
    trial.fault("storage.objects.insert", match=f"{trial.name}/0007.bin", delay=60)
    trial.run(trial.command(8, then=broken))
    trial.until_state("UPLOADING")
    os.kill(wait_for(lambda: worker_of(trial.name)), signal.SIGKILL)
    state = trial.until_state("FAILED", "SUCCEEDED")
    wait_for(lambda: not trial.leaked(), 60, "the end of the machine")
    named = f"1 file is not in the bucket: berg_results/{trial.name} (NameError: name 'nothing' is not defined); "
    named += "the end of the log is not in the bucket"
    assert state["state"] == "FAILED" and state["reason"] == named, state
    trial.record("lost", 0)  # named, so not without a word
    trial.record("leaked", 0)


@pytest.mark.slow
@fault("the results cannot be restored on the next machine", "1 2 4")
def test_a_restore_that_fails(trial):
    trial.run(trial.command(60, 0.2, then="sleep 600"), "--spot")
    trial.until("wrote 4 ")
    wait_for(lambda: trial.lost(3) == [], 60, "the first results in the bucket")
    match = f"/o/berg_results/{trial.name}/0002.bin?"
    trial.fault("storage.objects.get", match=match, status=403, times=None)
    trial.power("preempt", grace=20)
    trial.until_state("FAILED")
    trial.berg.cloud.call("DELETE", "/_berg/faults")
    state = trial.check("FAILED")
    assert "could not be restored" in state["reason"] and state["attempt"] == 2


@pytest.mark.slow
@fault("another user writes where the job will", "2 4")
def test_what_somebody_else_wrote_stays(trial):
    trial.run(trial.command(8, then="sleep 3; echo ours >$BERG_RESULTS_DIR/theirs"))
    trial.until("wrote 0 ")
    trial.berg.bucket.write(f"berg_results/{trial.name}/theirs", b"theirs", generation=0)
    reason = trial.check("SUCCEEDED", 8)["reason"]
    assert (
        trial.berg.bucket.read(f"berg_results/{trial.name}/theirs") == b"theirs"
        and "did not write" in reason
    )
    for shown in (trial.berg("list").stdout, trial.berg("fetch", trial.name).stderr):
        words = " ".join(shown.split())
        assert f"1 file is not in the bucket: {trial.name}/theirs (" in words, words


# --- Google


@pytest.mark.slow
@fault("no room in the first two zones", "7")
def test_stockout_in_two_zones(trial):
    with stockout(trial.berg, "us-central1-a", "us-central1-b"):
        ran = trial.run(None, "--zone", "us-central1-b", "--region", "us-central1")
    assert (
        "us-central1-b: out of stock" in ran.stderr and "us-central1-a: out of stock" in ran.stderr
    )
    assert trial.check("SUCCEEDED", 8)["zone"] not in ("us-central1-a", "us-central1-b")


@fault("no room anywhere", "1 7")
def test_stockout(trial):
    with stockout(trial.berg):
        ran = trial.run(None, fails=True)
        assert ran.stderr.count("out of stock") == 4, "all of them at the end, and once"
    trial.check_gone()
    assert not trial.berg.bucket.exists(f".berg/jobs/{trial.name}_state.json")


@pytest.mark.slow
@fault("no room anywhere, for a while", "6 7")
def test_waiting_for_capacity(trial):
    with stockout(trial.berg):
        ran = trial.run(None, "--wait-for-capacity")
        assert "There is no room" in ran.stderr
        assert trial.state()["state"] == "SUBMITTED" and trial.berg.machines() == {}
    trial.check("SUCCEEDED", 8)


class stockout:
    """No room in these zones, or in any."""

    def __init__(self, berg: Berg, *zones: str):
        self.berg, self.bodies = berg, [{"zone": zone} for zone in zones] or [{}]

    def __enter__(self) -> None:
        for body in self.bodies:
            self.berg.cloud.call("POST", "/_berg/stockout", body)

    def __exit__(self, *_) -> None:
        self.berg.cloud.call("POST", "/_berg/stockout", {"on": False})


@fault("no quota", "1 7")
@pytest.mark.parametrize("options", [[], ["--spot"]], ids=["machine", "group"])
def test_quota(trial, options):
    for metric in ("CPUS", "PREEMPTIBLE_CPUS"):
        trial.berg.cloud.call(
            "POST", "/_berg/quotas", {"metric": metric, "region": "us-central1", "limit": 1}
        )
    try:
        ran = trial.run(None, *options, fails=True)
    finally:
        for metric, limit in (("CPUS", 10_000), ("PREEMPTIBLE_CPUS", 0)):
            trial.berg.cloud.call(
                "POST", "/_berg/quotas", {"metric": metric, "region": "us-central1", "limit": limit}
            )
    assert "CPUS" in ran.stderr and "Limit: 1.0" in ran.stderr
    trial.check_gone()


@pytest.mark.slow
@fault("a create that fails after the machine lives", "1 5")
def test_create_fails_but_the_machine_lives(trial):
    error = {
        "code": "RESOURCE_NOT_FOUND",
        "message": "The resource was not found",
        "instance_lives": True,
    }
    trial.fault("compute.instances.insert", operation_error=error)
    trial.run()
    state = trial.check("SUCCEEDED", 8)
    assert state["zone"] == "us-central1-b" and state["attempt"] == 1


@pytest.mark.slow
@fault("the metadata server is slow", "1 2 4")
def test_slow_metadata(trial):
    trial.berg.cloud.call(
        "POST", "/_berg/settings", {"metadata_delay": 2 if trial.thorough else 0.3}
    )
    trial.run()
    trial.check("SUCCEEDED", 8)


FAKETIME = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)


@pytest.mark.slow
@fault("the laptop's clock is off by an hour", "4")
@pytest.mark.parametrize("off", ["+1h", "-1h"])
@pytest.mark.skipif(not FAKETIME, reason="needs Debian's libfaketime")
def test_clock_is_wrong(trial, off):
    wrong = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": off, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    ran = trial.berg("run", "-g", "0", "-n", trial.name, trial.command(20, 0.2), **wrong)
    assert ran.returncode == 0, ran.stderr
    listed = json.loads(trial.berg("list", "--json", **wrong).stdout)
    assert [each["state"] for each in listed] != ["LOST"] and len(listed) == 1
    assert trial.berg("reap", "--json", **wrong).stdout == "[]\n"
    trial.check("SUCCEEDED", 20)


@pytest.mark.slow
@fault("the cloud itself is killed and restarts", "1 2 4")
def test_the_cloud_restarts(trial):
    folder = trial.berg.cloud.folder
    server = json.loads((folder / "server.json").read_text())
    trial.run(trial.command(40, 0.1))
    trial.until("wrote 2 ")
    time.sleep(trial.dice.uniform(0, 2))
    os.kill(server["pid"], signal.SIGKILL)
    time.sleep(trial.dice.uniform(0.5, 3))
    assert control.start(folder, server["port"]) == server["port"]
    trial.check("SUCCEEDED", 40)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["preempt", "delete"])
@fault("the cloud itself is killed while a machine goes down", "1 2 4")
def test_the_cloud_restarts_while_a_machine_goes_down(trial, end):
    folder = trial.berg.cloud.folder
    save = "trap 'sleep 4; echo saved >$BERG_RESULTS_DIR/checkpoint; exit 1' TERM"
    trial.run(f"{save}; {trial.command(3)}; while :; do sleep 0.1; done")
    trial.until("all written")
    if end == "preempt":
        trial.power("preempt", grace=30)
    else:
        zone = trial.berg.state(trial.name)["zone"]
        path = f"/compute/v1/projects/berg-local/zones/{zone}/instances/{trial.name}"
        trial.berg.cloud.call("DELETE", path)
    time.sleep(trial.dice.uniform(0, 3))
    server = json.loads((folder / "server.json").read_text())
    os.kill(server["pid"], signal.SIGKILL)
    time.sleep(trial.dice.uniform(0.5, 2))
    control.start(folder, server["port"])
    trial.check("FAILED" if end == "preempt" else "KILLED", 3)
    found = trial.berg.objects(f"berg_results/{trial.name}/")
    assert found.get(f"berg_results/{trial.name}/checkpoint") == b"saved\n"


@pytest.mark.slow
@fault("rights take effect minutes after they were granted", "1 2 4")
def test_rights_come_late(trial):
    """What `berg init` granted a moment ago counts for one request and not for the next; else all
    is forbidden.
    """
    for method, match, times in (
        ("storage.objects.get", ".whl?alt=media", 4),
        ("storage.objects.get", f"{trial.name}_metadata.json", 2),
        ("storage.objects.insert", f"berg_results/{trial.name}/", 3),
        ("compute.instances.delete", "", 3),
    ):
        trial.fault(method, match=match, status=403, times=times)
    trial.run()
    trial.check("SUCCEEDED", 8)
    assert all(each["hits"] for each in faults(trial.berg)), faults(trial.berg)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-m", "2")])
@fault("Compute Engine has not heard of the machines' account yet", "1 5")
def test_a_new_account(trial, options):
    words = "The resource 'berg-worker@berg-local.iam.gserviceaccount.com' of type 'serviceAccount' was not found."
    error = {"code": "EXTERNAL_RESOURCE_NOT_FOUND", "message": words, "instance_lives": True}
    trial.fault("compute.instances.insert", operation_error=error, times=2)
    trial.run(None, *options)
    trial.check("SUCCEEDED", 8)
    assert all(each["hits"] == 2 for each in faults(trial.berg)), faults(trial.berg)


def test_what_machines_said_before_their_account_was_known_is_forgotten(monkeypatch):
    """They lived, although their creation failed; those that come next are not to wait for them."""
    calls = []

    def insert(*_) -> None:
        calls.append("insert")
        if len(calls) == 1:
            raise api.OperationFailed("EXTERNAL_RESOURCE_NOT_FOUND", "the account was not found")

    monkeypatch.setattr(instances, "insert", insert)
    monkeypatch.setattr(iam, "is_settling", lambda settings, error: len(calls) == 1)
    zones, names = {"us-central1-a": {"networkInterfaces": [{}]}}, ["a-0", "a-1"]
    gce.create(
        config.Config(), zones, names, False, lambda text: None, lambda: calls.append("forget")
    )
    assert calls == ["insert", "forget", "insert"]


@pytest.mark.parametrize("options", [(), ("--spot",), ("-m", "2")])
@fault("an organisation forbids external addresses", "1 5")
def test_a_policy_of_the_organisation(trial, options):
    policy = {"constraint": "constraints/compute.vmExternalIpAccess"}
    project, refused = (
        "/cloudresourcemanager/v1/projects/berg-local",
        {"listPolicy": {"allValues": "DENY"}},
    )
    trial.berg.cloud.call("POST", f"{project}:setOrgPolicy", {"policy": {**policy, **refused}})
    try:
        ran = trial.run(
            trial.command(), *options, "--secret", f"KEY={trial.berg.home}/berg.json", fails=True
        )
    finally:
        trial.berg.cloud.call("POST", f"{project}:clearOrgPolicy", policy)
    assert "Give --no-external-ip" in ran.stderr
    trial.record("lost", 0)
    trial.record("leaked", len(trial.leaked()))
    assert trial.leaked() == []


@pytest.mark.slow
@fault("a command longer than an object's custom metadata", "2 4")
def test_a_long_command(trial):
    """What of it fits stands in the state; its job runs all of it."""
    trial.run(
        trial.command(8, then=f"true {'ü' * 30_000} && echo to its end"),
        "--env",
        f"A={'x' * 10_000}",
    )
    assert trial.check("SUCCEEDED", 8)["exit_code"] == 0
    assert (
        "\nto its end\n" in trial.log()
        and len(trial.berg.bucket.get(f".berg/jobs/{trial.name}_state.json").metadata["state"])
        < 8192
    )


@pytest.mark.slow
@fault("a machine may not delete itself, and its worker is killed with -9", "1 2 4")
def test_a_machine_that_may_not_be_deleted(trial):
    """It turns itself off: so it costs its disk alone, and `berg reap` finds it."""
    trial.fault(
        "compute.instances.delete", match=f"/instances/{trial.name}", status=403, times=None
    )
    # The worker that saves what is left gives up after seconds what else it would for a quarter of
    # an hour.
    impatient = "cd /root/berg/app/berg/machine && rm -r __pycache__"  # which came along compiled
    impatient += " && sed -i 's/^FORBIDDEN_SECONDS = 900/FORBIDDEN_SECONDS = 3/' boot.py"
    trial.run(trial.command(8, then=f"{impatient}; kill -9 $(ps -o ppid= -p $PPID); sleep 60"))
    machine = wait_for(
        lambda: (m := trial.berg.machines()[trial.name])["status"] == "TERMINATED" and m, 60
    )
    zone = machine["zone"].rpartition("/")[2]
    console = f"/compute/v1/projects/berg-local/zones/{zone}/instances/{trial.name}/serialPort"
    assert (
        "it is turned off instead, and its disk costs money. Delete it: berg reap"
        in trial.berg.cloud.call("GET", console)["contents"]
    )
    trial.berg.cloud.call("DELETE", "/_berg/faults")
    listed = trial.berg("list").stdout
    assert "machine is off, its disk costs money: berg reap" in listed, listed
    assert trial.berg("reap", "-y").returncode == 0
    assert "killed by signal 9" in trial.check("FAILED", 8)["reason"]


@pytest.mark.slow
@fault("more requests than Google takes in a minute, from submit to end", "1 2 4 5")
def test_rate_limits(trial):
    trial.berg.cloud.call("POST", "/_berg/settings", {"heavy_reads": 0})
    laptop = trial.berg.start("run", "-g", "0", "-n", trial.name, "--wait", trial.command())
    try:
        wait_for(lambda: refused(trial.berg), 60, "a request too many")
        time.sleep(trial.dice.uniform(0, 3))
    finally:
        trial.berg.cloud.settle_down()
    _, said = laptop.communicate()
    assert laptop.returncode == 0, said
    trial.check("SUCCEEDED", 8)


def refused(berg: Berg) -> bool:
    log = berg.cloud.call("GET", "/_berg/requests")["requests"]
    return any(each["status"] == 403 for each in log if each["method"].startswith("compute."))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cluster", "sweep"])
@fault("a zone has room for one machine of several", "1 7")
def test_room_for_one_of_several(trial, kind):
    wishes = {"cluster": ("-m", "2"), "sweep": ("--parallel", "2", "--grid", "x=1,2")}[kind]
    unused, stock = "; true {x}" * (kind == "sweep"), {"zone": "us-central1-a"}
    trial.berg.cloud.call("POST", "/_berg/stockout", {**stock, "left": 1})
    try:
        where = ("--zone", "us-central1-a", "--region", "us-central1")
        ran = trial.run(trial.command() + unused, *wishes, *where)
    finally:
        trial.berg.cloud.call("POST", "/_berg/stockout", {**stock, "on": False})
    assert "us-central1-a: out of stock" in ran.stderr, ran.stderr
    wait_for(lambda: not trial.leaked(), 90, "the end of the machines")
    objects = trial.berg.objects(f"berg_results/{trial.name}/")
    folders = {"cluster": [trial.name], "sweep": [f"{trial.name}/{n}" for n in range(2)]}[kind]
    wanted = {
        f"berg_results/{where}/{i:04}.bin": content(trial.seed, i)
        for where in folders
        for i in range(8)
    }
    lost = [name for name in wanted if objects.get(name) != wanted[name]]
    trial.record("lost", len(lost))
    trial.record("leaked", len(trial.leaked()))
    assert (lost, trial.leaked()) == ([], [])


@pytest.mark.slow
@fault("a group's machine hangs until Google's limit of its time", "1 2 4")
def test_a_member_reaches_its_limit(trial, monkeypatch):
    """Google deletes it and makes no other; `berg reap` takes the empty group."""
    trial.run(trial.command(8, then="sleep 600"), "--spot", "--max-hours", "0.0084")
    trial.until("all written")
    wait_for(lambda: not trial.lost(8), 30, "the results in the bucket")
    trial.power("cut")
    wait_for(lambda: trial.name not in trial.berg.machines(), 60, "the end of its time")
    monkeypatch.setattr(jobs, "LOST_AFTER", 0)
    settings = trial.berg.bucket.config
    assert [each["targetSize"] for each in groups.find(settings, trial.name)] == [0]
    assert jobs.find(settings, trial.name).state.state == "LOST"
    trial.reap(monkeypatch)
    trial.record("lost", len(trial.lost(8)))
    trial.record("leaked", len(trial.leaked()))
    assert (trial.lost(8), trial.leaked()) == ([], [])


# --- restarts and secrets


def test_a_command_that_fails_runs_again(trial):
    script = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) >n; echo try $n as $BERG_ATTEMPT; test $n = 2"
    trial.run(f"{script} || exit 1$n", "--restart-on-failure", "5")
    state = trial.check("SUCCEEDED")
    assert (state["attempt"], state["failures"]) == (3, 2)
    assert [line for line in trial.log().splitlines() if line.startswith("try")] == [
        "try 0 as 1",
        "try 1 as 2",
        "try 2 as 3",
    ]


@pytest.mark.slow
def test_a_command_that_fails_the_same_way_is_given_up(trial):
    trial.run("echo once; exit 3", "--restart-on-failure", "50")
    state = trial.check("FAILED")
    assert (state["attempt"], state["exit_code"]) == (3, 3)
    assert "failed 3 times with exit code 3 in under a minute" in trial.log()


@pytest.mark.slow
def test_preemptions_have_a_limit(trial):
    trial.run(trial.command(100, 0.1), "--spot", "--max-restarts", "1")
    for attempt in (1, 2):
        trial.until(f"attempt {attempt} finds")
        trial.power("preempt", grace=20)
    assert "preempted" in trial.check("FAILED")["reason"]


@pytest.mark.slow
def test_secrets_stay_secret(trial):
    value = f"s3cr3t-{os.urandom(8).hex()}"
    (trial.berg.home / "file").write_text(value + "-of-a-file\n")
    options = ["--secret", "TOKEN", "--secret", f"KEY={trial.berg.home}/file"]
    command = trial.command(
        20, 0.2, then='test "$TOKEN-of-a-file" = "$KEY" && echo same; echo ${#TOKEN}'
    )
    shown = trial.berg("run", "--dry-run", "--json", "-g", "0", *options, command, TOKEN=value)
    ran = trial.berg("run", "-g", "0", "-n", trial.name, *options, command, TOKEN=value)
    assert (shown.returncode, ran.returncode) == (0, 0), ran.stderr
    trial.until("wrote 3 ")
    assert trial.leaked()[1:], "the secret is there while the job runs"
    arguments = b"".join(
        path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()
    )
    on_disk = subprocess.run(
        ["grep", "-rlF", value, *machine_folders(trial)], capture_output=True, text=True
    ).stdout
    trial.check("SUCCEEDED", 20)
    everything = [
        shown.stdout,
        shown.stderr,
        ran.stdout,
        ran.stderr,
        trial.berg("list", "--json").stdout,
    ]
    everything += [json.dumps(trial.berg.cloud.instances()), arguments.decode(errors="replace")]
    everything += [data.decode(errors="replace") for data in trial.berg.objects().values()]
    assert not any(value in text for text in everything) and on_disk == ""
    assert "KEY, TOKEN" in shown.stderr and f"\nsame\n{len(value)}\n" in trial.log()


def machine_folders(trial: Trial) -> list[str]:
    machine = trial.berg.machines()[trial.name]
    return [str(trial.berg.cloud.folder / "machines" / machine["id"])]


SECRETS_LEFT = {  # what happens -> the fault at submit, what is done with the machine
    "the submit dies before the grant": {
        "method": "secretmanager.projects.secrets.setIamPolicy",
        "delay": 3,
    },
    "the machine loses its power": {},
}


@pytest.mark.parametrize("end", ["reap", "kill"])
@pytest.mark.parametrize("what", SECRETS_LEFT)
@fault("a job with secrets vanishes", "5 8")
def test_secrets_are_not_left(trial, what, end, monkeypatch):
    if fault := SECRETS_LEFT[what]:
        trial.fault(**fault)
        options = ["-g", "0", "-n", trial.name, "--secret", f"KEY={trial.berg.home}/berg.json"]
        laptop = trial.berg.start("run", *options, trial.command())
        wait_for(lambda: any(f["hits"] for f in faults(trial.berg)), 60, "the fault")
        laptop.kill()
        laptop.communicate()
        time.sleep(4)
    else:
        trial.run(trial.command(100, 0.1), "--secret", f"KEY={trial.berg.home}/berg.json")
        trial.until("wrote 1 ")
        trial.power("crash")
        wait_for(lambda: trial.berg.machines()[trial.name]["status"] == "TERMINATED")
    assert any(name.endswith(f"/berg-{trial.name}") for name in trial.leaked())
    monkeypatch.setattr("berg.laptop.jobs.LOST_AFTER", 0)
    settings, said = trial.berg.bucket.config, []
    if end == "kill":
        ending.kill(settings, trial.name, False, said.append)
    else:
        left = ending.leftovers(settings, "tester", said.append)
        assert "secret" not in [each.kind for each in left], "a submit may be under way"
        (line,) = [each for each in said if each.startswith(f"secret {trial.name} (")]
        assert "may still change: look again in 5 minutes" in line
        monkeypatch.setattr(ending, "SETTLED", -1)
        ending.delete_leftovers(settings, ending.leftovers(settings, "tester", said.append))
    trial.check_gone()


@pytest.mark.slow
@fault("berg cannot be started on the machine of a job with secrets", "1 5 8")
def test_a_machine_that_gives_up_leaves_no_secret(trial):
    trial.fault("storage.objects.get", match=".whl?alt=media", status=404, times=None)
    trial.run(None, "--secret", f"KEY={trial.berg.home}/berg.json")
    assert "berg could not be started" in trial.check("FAILED", 0)["reason"]


@pytest.mark.slow
def test_a_resume_that_finds_no_room_leaves_no_secret(trial):
    trial.run("exit 3", "--secret", f"KEY={trial.berg.home}/berg.json")
    trial.check("FAILED")
    with stockout(trial.berg):
        given = ["--secret", f"KEY={trial.berg.home}/berg.json"]
        resumed = trial.berg("run", "--resume", trial.name, *given)
    assert resumed.returncode == 1 and "Deleting what was created" in resumed.stderr, resumed.stderr
    assert trial.check("FAILED")["exit_code"] == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--secret", "MISSING"],
            "there is no such variable. Export it, or give a file: --secret MISSING=FILE",
        ),
        (["--secret", "A=/nowhere"], "cannot read /nowhere"),
        (["--secret", "9=/etc/hostname"], "is not the name of a variable"),
        (["--env", f"A={'x' * 100_000}"], "the variables have 100,"),
        (["--secret", "HOME", "--env", "HOME=x"], "HOME is both a secret and a variable"),
        (["--restart-on-failure", "-1"], "give 0 or more"),
        (["--wait-for-capacity", "-m", "2"], "--wait-for-capacity is for jobs on one machine"),
    ],
)
def test_wishes_that_cannot_be(berg, options, says):
    ran = berg("run", "-g", "0", *options, "true")
    assert ran.returncode == 1 and says in ran.stderr, ran.stderr
    assert berg.objects() == {}


# --- how machines go down


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "delete", "preempt", "preempt unannounced", "maintain"])
@fault("machine goes down as Google's do: its network after 2 s, and 6 s to finish", "1 2 4 6")
def test_machine_goes_down(trial, end):
    last = "trap 'sleep 6; echo late > $BERG_RESULTS_DIR/late; exit 3' TERM; "
    again = f"[ $BERG_ATTEMPT = 1 ] || {{ {trial.command(8)}; exit; }}; "
    end, _, unannounced = end.partition(" ")  # a preemption whose notice comes with its end
    # without a GPU it would move
    kind = {"preempt": ["--spot"], "maintain": ["-g", "1", "-t", "t4"]}.get(end, [])
    first = again if end in ("preempt", "maintain") else ""
    trial.run(f"{first}{last}{trial.command(8)}; while :; do sleep 0.1; done", *kind)
    trial.until("all written")
    if end in ("preempt", "maintain"):
        trial.power(end, notice=0 if unannounced else 1)
    else:
        zone = trial.berg.state(trial.name)["zone"]
        path = f"/compute/v1/projects/berg-local/zones/{zone}/instances/{trial.name}"
        trial.berg.cloud.call(*(("DELETE", path) if end == "delete" else ("POST", f"{path}/stop")))
    trial.check("SUCCEEDED" if end in ("preempt", "maintain") else "KILLED", 8)
    assert (
        trial.berg.objects(f"berg_results/{trial.name}/")[f"berg_results/{trial.name}/late"]
        == b"late\n"
    )


SAVER = """
import itertools, os, time
files = [os.environ["BERG_RESULTS_DIR"] + "/" + name for name in ("first.pt", "second.pt")]
found = [open(file).read() for file in files if os.path.exists(file)]
if found:
    print("finds", *[text[:8] for text in found if text == text[:8] * 8000], flush=True)
    raise SystemExit
for step in itertools.count(1):
    for name in files:
        with open(name, "w", buffering=1) as file:
            for _ in range(8):
                file.write(f"{step:08}" * 1000)
                time.sleep(0.02)
    print("saved", step, flush=True)
    time.sleep(0.2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["preempt", "maintain", "kill", "crash"])
@fault("a program is ended in the middle of a save over its last checkpoint", "2 6", 3)
def test_the_middle_of_a_save(trial, end):
    (trial.berg.repo / "saver.py").write_text(SAVER)
    commit(trial.berg.repo)
    kind = {"preempt": ["--spot"], "maintain": ["-g", "1", "-t", "t4"]}.get(end, [])
    trial.run("python saver.py", *kind)
    trial.until("saved 3\n")

    def has_both() -> bool:
        view = views.at(views.of_job(trial.berg.bucket, trial.name)) or views.View()
        return [row.half for row in view.rows.values()] == [False, False]

    wait_for(has_both, 90, "a moment with both files")
    time.sleep(trial.dice.uniform(0, 1))
    if end == "kill":
        assert trial.berg("kill", trial.name).returncode == 0
        trial.until_state("KILLED")
        assert trial.berg("run", "--resume", trial.name).returncode == 0
    elif end == "crash":
        trial.berg.crash_and_start(trial.name)
    else:
        trial.power(end, **{"grace": 25} if end == "preempt" else {"notice": 1})
    trial.check("SUCCEEDED")
    found = re.findall(r"^finds (\d+) (\d+)$", trial.log(), re.M)
    assert len(found) == 1, trial.log()
    first, second = map(int, found[0])
    assert 0 <= first - second <= 1, f"they were so at no moment\n{trial.log()}"


@pytest.mark.slow
@fault("startup script started a second time", "1 2 4")
def test_second_start(trial):
    trial.run(
        trial.command(8, 0.2, then="python3 /root/berg/boot.py; python3 /root/berg/boot.py work")
    )
    assert trial.check("SUCCEEDED", 8)["attempt"] == 1
    assert trial.log().count("nothing to do") == 2


@pytest.mark.slow
@fault("an upgrade of packages restarts all services under a job", "1 2 4")
def test_upgrade_under_a_job(trial):
    """As needrestart does it; and no timer of apt's begins another one."""
    services = (
        "for name in berg google-startup-scripts; do systemctl restart $name; echo $name: $?; done"
    )
    timer = "! grep -q Debian /etc/os-release || apt-config dump APT::Periodic::Enable"
    trial.run(trial.command(8, 0.2, then=f"{services}; {timer}"))
    assert trial.check("SUCCEEDED", 8)["attempt"] == 1
    log = trial.log()
    assert (
        "\nberg: 4\n" in log
        and "\ngoogle-startup-scripts: 0\n" in log
        and log.count("Starting on") == 1
    )
    # who is not root changes no /etc
    has_apt = os.getuid() == 0 and "Debian" in Path("/etc/os-release").read_text()
    assert ('\nAPT::Periodic::Enable "0";\n' in log) == has_apt


@pytest.mark.slow
@fault("host maintenance of a machine of a cluster", "1 2 4")
def test_maintenance_ends_a_cluster(trial):
    last = f"trap 'echo late >$BERG_RESULTS_DIR/late; exit 3' TERM; {trial.command(8)}; while :; do sleep 0.1; done"
    trial.run(last, "-m", "2", "-g", "1", "-t", "t4")
    trial.until("all written")
    trial.berg.cloud.call("POST", f"/_berg/instances/{trial.name}-0/maintain", {"notice": 1})
    assert "to maintain its host" in trial.check("FAILED", 8)["reason"]
    assert (
        trial.berg.objects(f"berg_results/{trial.name}/")[f"berg_results/{trial.name}/late"]
        == b"late\n"
    )


@fault("first boot of Google's image holds dpkg's locks; it has neither venv nor pip", "1 2 4")
def test_first_boot(trial):
    trial.berg.cloud.call("POST", "/_berg/settings", {"first_boot": 600})
    trial.run(
        None,
        "--image",
        config.Config.default_image,
    )
    trial.check("SUCCEEDED", 8)


@pytest.mark.slow
def test_a_command_may_be_long_but_not_too_long(berg):
    long = f"echo; echo ready; true {'ü' * 31_000}"
    refused = berg("run", "-g", "0", long + "x" * 4_000)
    assert refused.returncode == 1 and "more than 64,000: put it into a script" in refused.stderr
    assert berg.objects() == {}
    ran = berg("run", "-g", "0", "-n", "long", "--wait", long)
    assert ran.returncode == 0, ran.stderr
    assert berg.state("long")["state"] == "SUCCEEDED" and "\nready\n" in berg.log("long")


# --- slices of TPUs

SLICE = ("--tpu", "v5p-2x2x2", "--zone", "us-central1-a")
STEPS = {
    "the policy": "compute.resourcePolicies.insert",
    "the template": "compute.instanceTemplates.insert",
    "the group": "compute.instanceGroupManagers.insert",
    "the members": "compute.instanceGroupManagers.createInstances",
}


def slice_started(trial: Trial, step: str) -> subprocess.Popen:
    """A laptop that just asked for a part of a slice, and has no answer yet."""
    trial.fault(STEPS[step], delay=3, after_handler=True)
    laptop = trial.berg.start("run", "-n", trial.name, *SLICE, trial.command(4))
    wait_for(lambda: any(f["hits"] for f in faults(trial.berg)), 60, "the fault")
    time.sleep(trial.dice.random())
    return laptop


def slice_left(trial: Trial) -> list[str]:
    """All that is there for slices of this bucket."""
    machines = [name for name in trial.berg.cloud.instances() if name.startswith(trial.name)]
    settings = trial.berg.bucket.config
    return machines + [
        f"{each.kind} {each.name}" for place in places.ALL for each in place.resources(settings)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@fault("Ctrl-C while a slice is made, at each step", "1 5")
def test_ctrl_c_at_each_step_of_a_slice(trial, step):
    laptop = slice_started(trial, step)
    laptop.send_signal(signal.SIGINT)
    _, said = laptop.communicate(timeout=60)
    assert laptop.returncode == 130 and "Deleting what was created" in said, said
    wait_for(
        lambda: all(each.startswith(("policy", "template")) for each in slice_left(trial)),
        60,
        "the end",
    )
    trial.check_gone()
    assert not trial.berg.objects(f".berg/jobs/{trial.name}")


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@fault("laptop killed with -9 while it makes a slice, at each step", "1 5")
def test_laptop_killed_at_each_step_of_a_slice(trial, step, monkeypatch):
    laptop = slice_started(trial, step)
    laptop.kill()
    laptop.communicate()
    if step == "the members":  # from here on nobody needs the laptop
        trial.check("SUCCEEDED", 4)
    time.sleep(3)
    for constant in ("LOST_AFTER", "BETWEEN_ZONES"):
        monkeypatch.setattr(jobs, constant, -5)
    monkeypatch.setattr(ending, "SETTLED", -1)
    settings = trial.berg.bucket.config
    for _ in range(2):  # what is shared goes when nothing needs it any more
        ending.delete_leftovers(settings, ending.leftovers(settings, "tester"))
    left = slice_left(trial)
    trial.record("lost", 0)
    trial.record("leaked", len(left))
    assert left == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["preempt", "crash"])
@fault("a slice loses a member", "1 2 4")
def test_a_slice_loses_a_member(trial, how):
    spot = [] if how == "preempt" else ["--spot"]  # else Google repairs it
    done = trial.berg("run", "-n", trial.name, *SLICE, *spot, trial.command(4, then="sleep 100"))
    assert done.returncode == 0, done.stderr
    trial.until("all written")
    # what came later goes with its machine
    wait_for(lambda: not trial.lost(4), 60, "the results in the bucket")
    first = wait_for(lambda: trial.berg.state(trial.name).get("machine"), what="the first machine")
    other = next(name for name in (f"{trial.name}-0", f"{trial.name}-1") if name != first)
    trial.berg.cloud.call(
        "POST", f"/_berg/instances/{other}/{how}", {"grace": 20} if how == "preempt" else {}
    )
    assert other in trial.check("FAILED", 4)["reason"]


@pytest.mark.parametrize("code", ["ZONE_RESOURCE_POOL_EXHAUSTED", "INTERNAL_ERROR"])
@fault("no room for a slice, reported in either way", "1 7")
def test_no_room_for_a_slice(trial, code):
    error = {"code": code, "message": "An internal error has occurred"}
    trial.fault("compute.instances.insert", operation_error=error, times=None)
    ran = trial.berg("run", "-n", trial.name, *SLICE, "true")
    assert ran.returncode == 1 and ran.stderr.count("us-central1-a: out of stock") == 1, ran.stderr
    trial.check_gone()
    assert not trial.berg.objects(f".berg/jobs/{trial.name}")


@pytest.mark.slow
@fault("a worker of a slice never comes", "1 7")
def test_a_worker_of_a_slice_never_comes(trial, monkeypatch):
    monkeypatch.setenv("BERG_HOME", str(trial.berg.home))
    monkeypatch.chdir(trial.berg.repo)
    monkeypatch.setattr(gce, "SLICE_TIMEOUT", 2)
    trial.berg.cloud.call("POST", "/_berg/settings", {"delay": 6})
    ran = CliRunner().invoke(cli.cli, ["run", "-n", trial.name, *SLICE, "true"])
    trial.berg.cloud.call("POST", "/_berg/settings", {"delay": 0})
    said = " ".join(str(ran.exception or ran.output).split()) + " ".join(ran.output.split())
    assert ran.exit_code == 1 and f"{trial.name}-0, {trial.name}-1 did not come within" in said, (
        said
    )
    trial.check_gone()
    assert not trial.berg.objects(f".berg/jobs/{trial.name}")


# --- Google's queue

TWO_REGIONS = ("--region", "us-central1", "--region", "us-east1")
QUEUES = {
    "a machine": ("-t", "l4", "-g", "1", "--flex", "--zone", "us-central1-a"),
    "several machines": ("-t", "l4", "-m", "2", "--flex", "--max-hours", "4"),
    "a machine in two regions": (
        *("-t", "l4", "-g", "1", "--flex", "--max-hours", "4", "--queue-timeout", "4h"),
        *TWO_REGIONS,
    ),
    "several machines in two regions": (
        *("-t", "l4", "-m", "2", "--flex", "--max-hours", "4"),
        *TWO_REGIONS,
    ),
    "a machine with TPUs": (
        *("--tpu", "v6e-1", "--flex", "--max-hours", "4", "--queue-timeout", "4h"),
        *("--zone", "us-central1-a"),
    ),
    "a slice": (*SLICE, "--flex", "--max-hours", "4"),
}


def queued(trial: Trial, what: str, then: str = "") -> None:
    """Submit a job for which there is no room, by a laptop that is killed as it hears of that."""
    trial.berg.cloud.call("POST", "/_berg/stockout", {})
    laptop = trial.berg.start("run", "-n", trial.name, *QUEUES[what], trial.command(4, then=then))
    assert any("is in Google's queue" in line for line in laptop.stderr)
    laptop.kill()
    laptop.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("what", QUEUES)
@fault("laptop killed with -9 while Google's queue holds its job", "1 5 7")
def test_laptop_killed_in_the_queue(trial, what):
    queued(trial, what)
    trial.berg.cloud.call("POST", "/_berg/stockout", {"on": False})
    trial.check("SUCCEEDED", 4)


@pytest.mark.slow
@pytest.mark.parametrize("what", QUEUES)
@fault("a job is killed in Google's queue, and then there is room", "1 7")
def test_killed_in_the_queue(trial, what):
    queued(trial, what)
    killed = trial.berg("kill", trial.name)
    assert killed.returncode == 0, killed.stderr
    trial.berg.cloud.call("POST", "/_berg/stockout", {"on": False})
    time.sleep(2)
    trial.check_gone()
    assert trial.berg.state(trial.name)["state"] == "KILLED"


@pytest.mark.slow
@fault("the wait in Google's queue runs out", "1 7")
def test_the_queue_runs_out(trial):
    trial.berg.cloud.call("POST", "/_berg/settings", {"hurry": 3600})  # two seconds
    queued(trial, "a machine")
    wait_for(lambda: not trial.berg.machines(), 30, "the end of the wait")
    trial.berg.cloud.call("POST", "/_berg/stockout", {"on": False})
    time.sleep(1)
    trial.check_gone()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["several machines in two regions", "a machine in two regions"])
@fault("machines are lost that have a job for which others wait in a second region", "1 2 4 7")
def test_lost_before_they_ended_the_other_region_s(trial, what):
    """Who comes there then takes the job over; a second machine is up for seconds before that."""
    queued(trial, what, "[ $BERG_ATTEMPT = 2 ] || sleep 100")
    trial.fault("compute.regionInstanceGroupManagers.delete", status=503, times=None)
    cloud = trial.berg.cloud
    cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a", "on": False})
    trial.until_state("STARTING", "RUNNING")
    count = 2 if what.startswith("several") else 1
    wait_for(lambda: len(cloud.instances()) == count, 30, "all machines")
    for name in cloud.instances():
        cloud.call("POST", f"/_berg/instances/{name}/crash")
    off = lambda: {each["status"] for each in cloud.instances().values()} == {"TERMINATED"}
    wait_for(off, 30, "their end")
    cloud.call("DELETE", "/_berg/faults")
    trial.fault("storage.objects.insert", match=f"{trial.name}_state", delay=8)
    cloud.call("POST", "/_berg/stockout", {"on": False})
    state = trial.check("SUCCEEDED", 4)
    assert state["zone"].startswith("us-east1-")
    assert (state["attempt"], state["restarts"], state["failures"]) == (2, 1, 0)

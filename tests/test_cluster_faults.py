"""What goes wrong with jobs on several Spot machines, one fault a test, as in test_faults.py: nothing
is lost, nothing is left, and the attempts are counted right.

How long a machine waits for the others is tried by a clock of its own in machine/test_cards.py.
"""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from conftest import wait_for
from test_faults import Trial, fault, stockout
from test_run import worker_of

from localcloud import control

SEVERAL = ("-m", "3", "--spot")
COUNT = 40


@pytest.fixture
def trial(berg, seed, record_property, request) -> Trial:
    if mark := request.node.get_closest_marker("fault"):
        record_property("fault", mark.args)
    return Trial(berg, seed, record_property, bool(request.config.getoption("--table")))


def lose(trial: Trial, victim: int, how: str = "preempt") -> None:
    """Let Google take a machine of the job, or let it lose its power."""
    grace = {"grace": 20} if how == "preempt" else {}
    trial.berg.cloud.call("POST", f"/_berg/instances/{trial.name}-{victim}/{how}", grace)


def check_attempts(state: dict) -> None:
    """Each attempt but the first began because machines were lost, and is noted."""
    assert state["attempt"] == state["restarts"] + 1 and state["failures"] == 0
    noted = [int(number) for number, _, _ in state["attempts"]]
    assert noted == list(range(2, state["attempt"] + 1)), state["attempts"]
    assert (state["missing"], state["missing_since"]) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["preempt", "crash"])
@pytest.mark.parametrize("victims", ["1", "0", "1 2", "0 1", "0 1 2"])
@fault("of 3 Spot machines one, the first, two or all are lost while the command runs", "1 2 3 6")
def test_spot_machines_are_lost(trial, victims, how):
    trial.run(trial.command(COUNT, 0.2), *SEVERAL)
    trial.until(f"wrote {trial.dice.randint(2, 10)} ")
    for victim in victims.split():
        lose(trial, int(victim), how)
    state = trial.check("SUCCEEDED", COUNT)
    assert state["attempt"] in (2, 3, 4), "each loss, or several of them together"
    check_attempts(state)
    assert re.search(r"^attempt [234] finds", trial.log(), re.M)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0])
@pytest.mark.parametrize("phase", ["meeting", "installing", "uploading"])
@fault("of 3 Spot machines one is lost in each phase", "1 2 3 6")
def test_a_spot_machine_is_lost_in_each_phase(trial, phase, victim):
    lost_in_phase(trial, phase, victim, SEVERAL, lambda: lose(trial, victim))


def lost_in_phase(
    trial: Trial, phase: str, victim: int, options: tuple[str, ...], take: Callable[[], None]
) -> None:
    """Run a job on three machines, take one in a phase, and see that nothing of any is lost."""
    (trial.berg.repo / "setup.sh").write_text("echo installs; sleep 6\n")
    if phase == "uploading":
        trial.fault("storage.objects.insert", match=f"{trial.name}/{trial.name}-{victim}", delay=6)
    own = f"echo x >$BERG_RESULTS_DIR/{trial.name}-$BERG_NODE_RANK"
    command = f'[ "$BERG_NODE_RANK" != 0 ] || {trial.command(8)}; {own}'
    words = (*options, "--each", "--install-script", "setup.sh", command)
    begin = trial.berg.start("run", *trial.where, "-n", trial.name, *words)
    is_in = {
        "meeting": lambda: f"Starting on {trial.name}-{victim}" in trial.log(),
        "installing": lambda: trial.log().count("\ninstalls\n") == 3,
        "uploading": lambda: trial.berg.state(trial.name)["state"] == "UPLOADING",
    }
    wait_for(lambda: trial.berg.objects(f".berg/jobs/{trial.name}_state"), 60, "the job")
    wait_for(is_in[phase], 120, phase)
    take()
    assert begin.wait(60) == 0, begin.stderr.read()
    check_attempts(trial.check("SUCCEEDED", 8))
    assert len(trial.berg.objects(f"berg_results/{trial.name}/{trial.name}-")) == 3


@contextlib.contextmanager
def one_missing(trial: Trial, victim: int, *options: str) -> Iterator[None]:
    """A job on three machines of which two wait for the third one, for which there is no room."""
    trial.run(trial.command(COUNT, 0.2), *SEVERAL, *options)
    trial.until("wrote 3 ")
    zone = trial.berg.cloud.instances()[f"{trial.name}-0"]["zone"].rpartition("/")[2]
    with stockout(trial.berg, zone):
        lose_for_good(trial, victim)
        says = "attempt 2; waits for 1 of 3 machines since "
        wait_for(lambda: says in trial.berg("list").stdout, 40, "what the list says")
        yield


def lose_for_good(trial: Trial, victim: int) -> None:
    lose(trial, victim)
    gone = f"{trial.name}-{victim}"
    wait_for(lambda: gone not in trial.berg.cloud.instances(), 60, "its end")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [2, 0])
@pytest.mark.parametrize("lost_again", [False, True])
@fault(
    "2 Spot machines wait for one without room, for a while, and maybe one is lost again", "1 2 6 7"
)
def test_room_comes_back(trial, victim, lost_again):
    with one_missing(trial, victim):
        if lost_again:
            lose_for_good(trial, 1)
    check_attempts(trial.check("SUCCEEDED", COUNT))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [2, 0])
@fault("a job is killed while its Spot machines wait for one", "1 2 7")
def test_kill_while_machines_wait(trial, victim):
    with one_missing(trial, victim):
        killed = trial.berg("kill", "-y", trial.name)
        assert killed.returncode == 0, killed.stderr
        trial.check("KILLED")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [2, 0])
@fault("the time limit comes while Spot machines wait for one", "1 2 7")
def test_time_limit_while_machines_wait(trial, victim):
    with one_missing(trial, victim, "--max-hours", "0.02"):
        assert "it ran into its time limit" in trial.check("FAILED")["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [2, 0])
@fault(
    "no room for one of 3 Spot machines for longer than --replacement-timeout; then --resume",
    "1 2 4 7",
)
def test_no_room_for_too_long(trial, victim):
    with one_missing(trial, victim, "--replacement-timeout", "0.25m"):
        state = trial.check("FAILED")
    why = f"{trial.name}-{victim} did not come within 15s (--replacement-timeout). "
    assert state["reason"].startswith(f"{why}Resume the job: berg run --resume {trial.name}"), state
    resumed = trial.berg("run", "--resume", trial.name, "--wait")
    assert resumed.returncode == 0, (resumed.stderr, trial.log())
    trial.check("SUCCEEDED", COUNT)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0])
@fault("of 3 Spot machines one hangs, the first or another", "1 2 4 6")
def test_a_spot_machine_hangs(trial, victim):
    count = 200  # for longer than a machine may be silent
    words = ("run", *trial.where, "-n", trial.name, *SEVERAL, trial.command(count, 0.2))
    begin = trial.berg.start(*words, silence_seconds=15)
    assert begin.wait(60) == 0, begin.stderr.read()
    trial.until("wrote 3 ")
    trial.berg.cloud.call("POST", "/_berg/settings", {"grace": 3})  # it does not hear its end
    trial.berg.cloud.call("POST", f"/_berg/instances/{trial.name}-{victim}/cut")
    wait_for(lambda: trial.berg.state(trial.name)["attempt"] > 1, 90, "the next attempt")
    check_attempts(trial.check("SUCCEEDED", count))


@pytest.mark.slow
@fault("a worker of 3 Spot machines is killed with -9", "1 2 4")
def test_a_worker_of_several_is_killed(trial):
    trial.run(trial.command(COUNT, 0.2), *SEVERAL)
    trial.until(f"wrote {trial.dice.randint(2, 10)} ")
    os.kill(wait_for(lambda: worker_of(trial.name)), signal.SIGKILL)
    assert "berg's worker was killed by signal 9" in trial.check("FAILED")["reason"]


@pytest.mark.slow
@fault("a worker of 3 machines is killed with -9, and its command has last words", "1 3 4")
def test_the_log_of_a_killed_worker_is_whole(trial):
    worker = "$(cut -d' ' -f4 /proc/$PPID/stat)"  # the parent of the command's parent
    kills = f"[ $BERG_NODE_RANK = 2 ] && sleep 5 && kill -9 {worker}"
    traps = "trap 'echo; echo last words; exit 1' TERM"
    trial.run(f"{traps}; {kills}; sleep 60 & wait", "-m3", "--each")
    assert "berg's worker was killed by signal 9" in trial.check("FAILED")["reason"]
    assert trial.log().count("\nlast words\n") == 3, trial.log()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [2, 0])
@fault("the cloud itself is killed and restarts while Spot machines wait for one", "1 2 4 6 7")
def test_the_cloud_restarts_while_machines_wait(trial, victim):
    folder = trial.berg.cloud.folder
    server = json.loads((folder / "server.json").read_text())
    with one_missing(trial, victim):
        os.kill(server["pid"], signal.SIGKILL)
        time.sleep(trial.dice.uniform(0.5, 3))
        assert control.start(folder, server["port"]) == server["port"]
    check_attempts(trial.check("SUCCEEDED", COUNT))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0])
@fault("answers of the bucket are lost while one of 3 Spot machines is replaced", "1 2 4 6")
def test_answers_are_lost_while_a_machine_is_made_anew(trial, victim):
    trial.run(trial.command(COUNT, 0.2), *SEVERAL)
    trial.until("wrote 3 ")
    trial.fault("storage.objects.insert", status=503, after_handler=True, times=12)
    lose(trial, victim)
    check_attempts(trial.check("SUCCEEDED", COUNT))

"""Jobs and devboxes on several machines: real ssh between them, real Open MPI, real torchrun.

What is looked at is what the machines left in the bucket, which processes they have, and which
machines there are.
"""

import itertools
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Berg, wait_for

from berg.laptop import ssh
from localcloud.machines import sshd

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
needs_ssh = pytest.mark.skipif(
    bool(sshd.obstacle()), reason=f"no ssh into machines here: {sshd.obstacle()}"
)
needs_mpi = pytest.mark.skipif(
    not shutil.which("mpirun"), reason="no mpirun here (package openmpi-bin)"
)

STEPS = '''
"""What a person does with mpi, one thing after another; notes what came of it."""
import json, os, signal, subprocess, time

notes = {}

def mpi(*words):
    began = time.monotonic()
    done = subprocess.run(["mpi", *words], capture_output=True, text=True)
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr, "seconds": time.monotonic() - began}

def left_behind(pattern):
    """Machines that still run something of mpi's or the program, once they had five seconds to end it."""
    end, command = time.monotonic() + 5, f"pgrep -x orted; pgrep -f '{pattern}'"
    for host in os.environ["BERG_HOSTS"].split(","):
        while subprocess.run(["ssh", host, command], capture_output=True).stdout:
            if time.monotonic() > end:
                return host
    return ""

two = ("--mpi-procs-per-machine", "2")
notes["hello"] = mpi(*two, "python", "hello.py")
notes["exit"] = mpi(*two, "bash", "-c", '[ "$OMPI_COMM_WORLD_RANK" != 3 ] || exit 7; sleep 987')
notes["killed"] = mpi(*two, "bash", "-c", '[ "$OMPI_COMM_WORLD_RANK" != 3 ] || kill -9 $$; sleep 987')
notes["left by killed"] = left_behind("sleep 98[7]")
notes["nothing"] = mpi()
os.environ["ODD"] = "a;b \\"c\\" $d"
notes["environment"] = mpi("bash", "-c", 'echo "$(hostname) $WISH $ODD"')
notes["elsewhere"] = subprocess.run(["ssh", "trio-1", "mpi hostname"], capture_output=True, text=True).stderr

program = ["bash", "-c", 'trap "touch /root/berg_results/trio/$(hostname); exit" TERM; echo up; sleep 654 & wait']
running = subprocess.Popen(["mpi", "--mpi-procs-per-machine", "1", *program], stdout=subprocess.PIPE, text=True)
for _ in range(3):
    running.stdout.readline()
running.send_signal(signal.SIGINT)
notes["interrupted"] = running.wait()
notes["left by interrupted"] = left_behind("echo u[p]|sleep 65[4]")
with open(os.environ["BERG_RESULTS_DIR"] + "/notes.json", "w") as file:
    json.dump(notes, file)
'''


def result(berg: Berg, path: str) -> bytes:
    return berg.objects(f"berg_results/{path}")[f"berg_results/{path}"]


def names(berg: Berg, results_dir: str) -> set[str]:
    """Files of results, but for the copy of the job."""
    found = {
        name.removeprefix(f"berg_results/{results_dir}/")
        for name in berg.objects(f"berg_results/{results_dir}/")
    }
    return found - {"berg_job_metadata.json"}


def begun(berg: Berg, job: str, times: int = 1, marker: str = "ready") -> None:
    """Wait until commands of a job printed a line that says `marker` and nothing else."""
    wait_for(
        lambda: berg.log(job).count(f"\n{marker}\n") == times, 90, f"{marker!r} in the log of {job}"
    )


def check_ended(berg: Berg, job: str, state: str, reason: str = "") -> None:
    """The job is over, and none of its machines is left."""
    wait_for(lambda: berg.state(job)["finished_at"], 30, f"the end of {job}")
    found = berg.state(job)
    assert (found["state"], found["reason"]) == (state, reason), found
    wait_for(lambda: not berg.machines(), what="the end of the machines")


def launched(berg: Berg, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = berg(*arguments)
    assert done.returncode == 0, done.stderr + "\n".join(berg.log("").splitlines()[-100:])
    return done


@pytest.mark.slow
@needs_ssh
@needs_mpi
def test_mpi_on_three_machines(berg):
    for file in ("hello.py", "requirements.txt"):
        shutil.copy(EXAMPLES / "mpi_hello" / file, berg.repo)
    (berg.repo / "steps.py").write_text(STEPS)
    started = launched(
        berg, "run", "-m", "3", "-g", "0", "-n", "trio", "--env", "WISH=x y", "python steps.py"
    )
    assert (
        "3 machines, each n1-standard-8" in started.stderr
        and "(on the first machine)" in started.stderr
    )
    (listed,) = json.loads(berg("list", "--json").stdout)
    assert [each["name"] for each in listed["instances"]] == ["trio-0", "trio-1", "trio-2"]
    (row,) = berg("list").stdout.splitlines()[1:]
    assert row.startswith("trio ") and "3 machines" in row
    opened = berg("list", "-v").stdout.splitlines()[2:]
    assert [line.split()[:2] for line in opened] == [
        [f"trio-{rank}", "RUNNING"] for rank in range(3)
    ]
    tail = launched(berg, "tail", "trio")
    assert "trio SUCCEEDED" in tail.stderr

    notes = json.loads(result(berg, "trio/notes.json"))
    hosts = ["trio-0", "trio-0", "trio-1", "trio-1", "trio-2", "trio-2"]
    lines = [f"process {rank} of 6 on {host}" for rank, host in enumerate(hosts)]
    assert notes["hello"]["out"].splitlines() == [*lines, "the sum of the ranks on 3 hosts is 15"]
    assert (notes["exit"]["code"], notes["killed"]["code"]) == (7, 137)
    assert max(notes["exit"]["seconds"], notes["killed"]["seconds"]) < 20  # of 987
    assert notes["left by killed"] == notes["left by interrupted"] == ""
    assert (
        notes["nothing"]["code"] == 2 and "Missing argument 'PROGRAM...'" in notes["nothing"]["err"]
    )
    spoken = notes["environment"]["out"].splitlines()
    assert set(spoken) == {f'trio-{rank} x y a;b "c" $d' for rank in range(3)}
    assert notes["elsewhere"] == "berg: mpi runs on the first machine of a cluster: trio-0\n"
    assert notes["interrupted"] not in (0, None)
    # What the ranks did when Ctrl-C ended them is in the bucket, from every machine.
    assert names(berg, "trio") == {"notes.json", "trio-0", "trio-1", "trio-2"}

    log = tail.stdout.splitlines()
    assert {line.split(" | ")[0] for line in log} == {"trio-0", "trio-1", "trio-2"}
    # Nothing runs before everything is installed everywhere.
    installed = [
        at
        for at, line in enumerate(berg("log", "trio").stdout.splitlines())
        if "Successfully inst" in line
    ]
    assert len(installed) == 3
    only = launched(berg, "tail", "trio", "--machine", "trio-1").stdout
    assert "[berg] Ready\n" in only and "trio-0" not in only and " | " not in only
    check_ended(berg, "trio", "SUCCEEDED")


@pytest.mark.slow
@needs_mpi
def test_mpi_on_a_single_machine(berg):
    command = "mpi --mpi-procs-per-machine 3 bash -c 'echo rank $OMPI_COMM_WORLD_RANK'"
    launched(berg, "run", "-g", "0", "-n", "one", "--wait", command)
    assert [f"rank {rank}" in berg.log("one") for rank in range(3)] == [True] * 3


# The machines have no network: they import the torch of these tests, and no name server answers
# when torch asks for the name of every peer.
BORROW_TORCH = """
echo nameserver 127.0.0.1 >/etc/resolv.conf
site=$(python -c 'import site; print(site.getsitepackages()[0])')
rm -rf $site/torch # stands for the image's
echo {borrowed} >$site/borrowed.pth
printf '#!/bin/sh\\nexec python -m torch.distributed.run "$@"\\n' >$(dirname $(command -v python))/torchrun
chmod +x $(dirname $(command -v python))/torchrun
"""

# As scripts from before torchrun are started: each process is told its number on the machine as an argument.
OLD_LAUNCHER = (
    "python -m torch.distributed.launch --nnodes=$BERG_NUM_NODES --node_rank=$BERG_NODE_RANK "
    "--nproc_per_node=2 --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT old.py"
)
OLD_SCRIPT = """
import runpy, socket, sys
# In one write: unbuffered, print would have one for each of them, between those of the other process.
sys.stdout.write(" ".join([socket.gethostname(), "was launched with", *sys.argv[1:]]) + "\\n")
runpy.run_path("train.py", run_name="__main__")
"""


def copy_torch_example(berg) -> None:
    torch = pytest.importorskip("torch")
    for file in ("train.py", "requirements.txt"):
        shutil.copy(EXAMPLES / "torch_ddp" / file, berg.repo)
    (berg.repo / "old.py").write_text(OLD_SCRIPT)
    (berg.repo / "setup.sh").write_text(
        BORROW_TORCH.format(borrowed=Path(torch.__file__).parent.parent)
    )


def check_training(berg, name: str, is_told_its_number: bool) -> None:
    """Two processes on each of two machines trained as one."""
    assert f"4 processes on {name}-0 {name}-1, through gloo" in berg.log(name)
    (row,) = map(json.loads, result(berg, f"{name}/metrics.jsonl").splitlines())
    assert (row["epoch"], row["processes"]) == (1, 4)
    printed = berg.log(name) + berg("log", "--machine", f"{name}-1", name).stdout
    told = set(re.findall(r"\S+ was launched with \S+", printed))
    ranks = itertools.product((0, 1), (0, 1)) if is_told_its_number else ()
    assert told == {f"{name}-{m} was launched with --local-rank={rank}" for m, rank in ranks}


@pytest.mark.slow
def test_the_launcher_before_torchrun_on_every_machine(berg):
    copy_torch_example(berg)
    wishes = ["-m", "2", "-g", "0", "-n", "old", "--each", "--install-script", "setup.sh"]
    launched(berg, "run", *wishes, "--wait", f"{OLD_LAUNCHER} --epochs=1")
    check_training(berg, "old", is_told_its_number=True)


@pytest.mark.slow
def test_torchrun_on_every_machine(berg):
    copy_torch_example(berg)
    command = "torchrun train.py --epochs=2 && touch $BERG_RESULTS_DIR/$(hostname)"
    wishes = ["-m", "2", "-g", "0", "-n", "ddp", "--each", "--install-script", "setup.sh"]
    launched(berg, "run", *wishes, "--wait", command)
    # The results of both machines were there before the state said so.
    assert names(berg, "ddp") == {"metrics.jsonl", "checkpoint.pt", "ddp-0", "ddp-1"}
    rows = [json.loads(line) for line in result(berg, "ddp/metrics.jsonl").splitlines()]
    assert [(row["epoch"], row["processes"]) for row in rows] == [(1, 2), (2, 2)]
    assert rows[1]["train_loss"] < rows[0]["train_loss"]
    log = berg.log("ddp")
    assert "2 processes on ddp-0 ddp-1, through gloo" in log
    for rank in (0, 1):
        line = (
            rf"Training Device=cpu Rank={rank}/2 Epoch=2 Step=20 Loss=\S+ Rate=\d\S* GlobalRate=\d"
        )
        assert re.search(line, log), log
    check_ended(berg, "ddp", "SUCCEEDED")


NOTE_THE_END = (
    'trap "touch $BERG_RESULTS_DIR/$(hostname); exit 1" TERM; echo; echo ready; sleep 600 & wait'
)


@pytest.mark.slow
def test_a_first_machine_that_loses_power_ends_the_job(berg, cloud):
    launched(berg, "run", "-m", "3", "-g", "0", "-n", "dark", "--each", NOTE_THE_END)
    begun(berg, "dark", times=3)
    cloud.call("POST", "/_berg/instances/dark-0/crash")
    check_ended(berg, "dark", "FAILED", "machine dark-0 is gone")
    assert names(berg, "dark") == {"dark-1", "dark-2"}
    assert berg.state("dark")["machine"] == "dark-0"


def delete(berg, machine: str) -> None:
    zone = berg.machines()[machine]["zone"].rpartition("/")[2]
    berg.cloud.call("DELETE", f"/compute/v1/projects/berg-local/zones/{zone}/instances/{machine}")


@pytest.mark.slow
def test_a_machine_that_is_deleted_ends_the_job(berg):
    launched(berg, "run", "-m", "2", "-g", "0", "-n", "shut", NOTE_THE_END)
    begun(berg, "shut")
    delete(berg, "shut-1")
    wait_for(lambda: berg.state("shut")["finished_at"])
    reason = berg.state("shut")["reason"]
    # and it may be gone before it told of its results
    told = "shut-1: the machine was shut down from outside"
    gone = "machine shut-1 is gone"
    assert reason in (told, gone, f"{told}; {gone}"), reason
    check_ended(berg, "shut", "FAILED", reason)
    assert names(berg, "shut") == {"shut-0"}


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_machine_that_loses_power_before_the_machines_met_ends_the_job(berg, rank):
    laptop = berg.start("run", "-m", "2", "-g", "0", "-n", "dawn", "true")
    wait_for(
        lambda: [each["status"] for each in berg.machines().values()] == ["RUNNING"] * 2,
        30,
        "the machines",
    )
    berg.cloud.call("POST", f"/_berg/instances/dawn-{rank}/crash", {})
    assert laptop.wait(60) == 0, laptop.communicate()
    laptop.communicate()
    wait_for(lambda: berg.state("dawn")["finished_at"], 40, "the end of the job")
    state = berg.state("dawn")
    assert (state["state"], state["reason"]) == ("FAILED", f"machine dawn-{rank} is gone"), state


@pytest.mark.slow
def test_a_first_machine_that_is_deleted_ends_the_job(berg):
    """It says so itself in the time that it has left, or the next machine does."""
    launched(berg, "run", "-m", "2", "-g", "0", "-n", "led", NOTE_THE_END)
    begun(berg, "led")
    delete(berg, "led-0")
    wait_for(lambda: berg.state("led")["finished_at"])
    told = {
        ("KILLED", "the machine was shut down from outside"),
        ("FAILED", "machine led-0 is gone"),
    }
    assert (berg.state("led")["state"], berg.state("led")["reason"]) in told
    check_ended(berg, "led", berg.state("led")["state"], berg.state("led")["reason"])
    assert names(berg, "led") == {"led-0"}


@pytest.mark.slow
def test_a_command_that_fails_on_one_machine(berg):
    command = 'touch $BERG_RESULTS_DIR/$BERG_NODE_RANK; [ "$BERG_NODE_RANK" = 0 ] || exit 5'
    ran = berg("run", "-m", "2", "-g", "0", "-n", "odd", "--each", "--wait", command)
    assert ran.returncode == 5
    assert names(berg, "odd") == {"0", "1"}
    check_ended(berg, "odd", "FAILED", "the command failed with exit code 5 on odd-1")
    assert "The end of the log of odd-0 (all of it: berg log odd)" in ran.stderr
    shown = berg("show", "odd").stdout
    assert "(of odd-0, the first machine)" in shown and "Starting on odd-0" in shown
    assert "Starting on odd-1" not in shown and "Cost      $0." in shown


WAIT_FOR_OTHERS = 'trap "touch $BERG_RESULTS_DIR/$(hostname); exit 1" TERM; sleep 600 & wait'


@pytest.mark.slow
def test_the_first_failure_ends_the_job(berg):
    """The others wait for the one that failed, as programs do in their collectives."""
    command = f'if [ "$BERG_NODE_RANK" = 1 ]; then sleep 1; exit 3; fi; {WAIT_FOR_OTHERS}'
    began = time.monotonic()
    ran = berg("run", "-m", "3", "-g", "0", "-n", "one", "--each", "--wait", command)
    assert ran.returncode == 3 and time.monotonic() - began < 60
    assert names(berg, "one") == {"one-0", "one-2"}
    check_ended(berg, "one", "FAILED", "the command failed with exit code 3 on one-1")


@pytest.mark.slow
def test_keep_going_lets_the_others_end(berg):
    command = 'if [ "$BERG_NODE_RANK" = 0 ]; then exit 3; fi; sleep 20; touch $BERG_RESULTS_DIR/all'
    ran = berg("run", "-m", "2", "-g", "0", "-n", "on", "--each", "--keep-going", "--wait", command)
    assert ran.returncode == 3 and names(berg, "on") == {"all"}
    check_ended(berg, "on", "FAILED", "the command failed with exit code 3 on on-0")
    refused = berg("run", "-g", "0", "--keep-going", "true")
    assert refused.returncode == 1 and "--keep-going needs --each" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("silent", [0, 2])
def test_a_silent_machine_is_given_up(berg, cloud, silent):
    cloud.call("POST", "/_berg/settings", {"delay": 2})
    name = f"mute{silent}"
    command = f'touch $BERG_RESULTS_DIR/$(hostname); echo; echo ready; [ "$BERG_NODE_RANK" = {silent} ] || sleep 12'
    options = ("-m", "3", "-g", "0", "-n", name, "--each")
    start = berg.start("run", *options, command, silence_seconds=15)
    assert start.wait(60) == 0, start.stderr.read()
    begun(berg, name, times=3)
    wait_for(lambda: len(names(berg, name)) == 3, 30, "the results")
    cloud.call("POST", f"/_berg/instances/{name}-{silent}/cut")
    cloud.call("POST", "/_berg/settings", {"grace": 10})  # else it has two minutes to go
    wait_for(lambda: berg.state(name)["finished_at"], 90, f"the end of {name}")
    wait_for(
        lambda: not berg.machines(), 60, "the end of the machines, of which one does not listen"
    )
    check_ended(
        berg, name, "FAILED", f"machine {name}-{silent} was silent for 15 s and was given up"
    )


@pytest.mark.slow
def test_what_the_bucket_cannot_take_of_another_machine_is_named_and_fails_nothing(berg):
    """As on a single machine."""
    command = '[ "$BERG_NODE_RANK" = 0 ] || ln -s /etc/hostname $BERG_RESULTS_DIR/link'
    assert launched(berg, "run", "-m", "2", "-g", "0", "-n", "link", "--each", "--wait", command)
    why = "link-1: 1 file is not in the bucket: link/link (a link to outside of the results)"
    check_ended(berg, "link", "SUCCEEDED", why)


@pytest.mark.slow
def test_what_another_machine_could_not_send_in_time_fails_the_job(berg, cloud):
    cloud.fault("storage.objects.insert", match="slow/late", status=403, times=None)
    command = '[ "$BERG_NODE_RANK" = 0 ] || echo x >$BERG_RESULTS_DIR/late'
    ran = berg(
        "run",
        "-m",
        "2",
        "-g",
        "0",
        "-n",
        "slow",
        "--each",
        "--max-hours",
        "0.025",
        "--wait",
        command,
    )
    assert ran.returncode == 1
    found = berg.state("slow")
    assert (
        found["state"] == "FAILED"
        and "slow-1: 1 file is not in the bucket: slow/late" in found["reason"]
    ), found
    wait_for(lambda: not berg.machines(), what="the end of the machines")


@pytest.mark.slow
def test_an_installation_that_fails_on_one_machine(berg):
    (berg.repo / "setup.sh").write_text('[ "$(hostname)" != bad-1 ] || exit 4\n')
    ran = berg(
        "run",
        "-m",
        "2",
        "-g",
        "0",
        "-n",
        "bad",
        "--install-script",
        "setup.sh",
        "--wait",
        "echo; echo ready",
    )
    assert ran.returncode == 1
    check_ended(
        berg, "bad", "FAILED", "bad-1: the installation failed with exit code 4: bash -e setup.sh"
    )
    assert "\nready\n" not in berg.log("bad"), (
        "the command ran although a machine was not ready for it"
    )


@pytest.mark.slow
def test_kill_takes_all_machines_and_keeps_what_they_wrote(berg):
    launched(berg, "run", "-m", "2", "-g", "0", "-n", "doomed", "--each", NOTE_THE_END)
    begun(berg, "doomed", times=2)
    killed = berg("kill", "doomed")
    assert killed.returncode == 0 and "doomed: KILLED" in killed.stderr
    assert not berg.machines()
    assert names(berg, "doomed") == {"doomed-0", "doomed-1"}
    check_ended(berg, "doomed", "KILLED", "killed by tester")


@pytest.mark.slow
@needs_ssh
@needs_mpi
def test_a_devbox_of_eight_machines(berg):
    up = launched(berg, "devbox", "-m", "8", "-g", "0", "-n", "octet", "--idle-hours", "0")
    assert (
        "With --idle-hours 0 a forgotten devbox costs money until --max-hours ends it." in up.stderr
    )
    wait_for(lambda: berg.state("octet")["state"] == "RUNNING", 90, "the devbox")
    machines = [f"octet-{rank}" for rank in range(8)]
    assert set(berg.objects(".berg/machines/octet/")) == {
        f".berg/machines/octet/{name}.json" for name in machines
    }
    script = "for host in ${BERG_HOSTS//,/ }; do getent ahostsv4 $host >/dev/null && ssh $host hostname; done"
    reached = launched(
        berg, "ssh", "octet", "--", f"bash -lc '{script}; mpi --mpi-procs-per-machine 1 hostname'"
    )
    assert reached.stdout.split()[:8] == machines
    assert sorted(reached.stdout.split()[8:]) == machines
    assert "octet: KILLED" in berg("kill", "octet").stderr
    assert not berg.machines()


def read_terminal(terminal: int, text: bytes) -> None:
    """Read from a terminal until it shows a text."""
    shown = b""
    end = time.monotonic() + 120
    while text not in shown:
        assert select.select([terminal], [], [], max(0, end - time.monotonic()))[0], shown
        shown += os.read(terminal, 65536)


def logged_in(berg: Berg, *arguments: str) -> tuple[subprocess.Popen, int]:
    """`berg ssh` with a terminal, and that terminal."""
    terminal, other_end = pty.openpty()
    command = [sys.executable, "-m", "berg", "ssh", *arguments]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), other_end)
    environment = berg.environment(TERM="xterm-256color")
    login = subprocess.Popen(command, cwd=berg.repo, env=environment, **streams)
    os.close(other_end)
    return login, terminal


@pytest.mark.slow
@needs_ssh
def test_an_idle_devbox_deletes_itself_but_not_one_in_use(berg, monkeypatch):
    """Two machines: somebody types on the first one, then something waits on the second; shells
    stay open on both.
    """
    monkeypatch.setenv("HOME", str(berg.home))
    ssh.public_key(create=True)  # so that the devbox knows it before it can be idle
    launched(berg, "devbox", "-m", "2", "-g", "0", "-n", "den", "--idle-hours", "0.0033")
    patience = 13.0
    login, terminal = logged_in(berg, "den", "-t", "--", "tt")
    read_terminal(terminal, b"[berg] Checked out")
    look = 'tmux list-panes -t berg -F "#{pane_current_command}"; tmux capture-pane -p -t berg:0.0; pwd'
    panes = launched(berg, "ssh", "den", "--", look).stdout
    assert {"bash", "tail"} < set(panes.split()), panes
    os.write(terminal, b"echo mine > /root/berg_results/by_hand\n")
    end = time.monotonic() + patience
    while time.monotonic() < end:
        os.write(terminal, b" ")
        time.sleep(1)
    assert berg.state("den")["state"] == "RUNNING"
    waits = "until [ -e /tmp/enough ]; do sleep 0.2; done"
    launched(berg, "ssh", "den-1", "--", f"nohup sh -c '{waits}' >/dev/null 2>&1 </dev/null &")
    other, other_terminal = logged_in(berg, "den-1")
    time.sleep(patience)
    assert berg.state("den")["state"] == "RUNNING"
    launched(berg, "ssh", "den-1", "--", "touch /tmp/enough")
    for each in (terminal, other_terminal):
        read_terminal(
            each, b"berg: this devbox is idle and deletes itself in 1 minutes, unless it is used."
        )
    check_ended(berg, "den", "SUCCEEDED", "idle for 12s")
    assert result(berg, "by_hand") == b"mine\n"
    for each in (login, other):
        each.kill()  # nobody reads its terminal any more, at which ssh waits, whatever it is told
        each.wait()


@pytest.mark.slow
def test_what_cannot_be_had_leaves_nothing(berg, cloud):
    refused = berg("run", "-m", "0", "-g", "0", "true")
    assert refused.returncode == 1 and "-m 0 is not possible: give 1 to 1000" in refused.stderr
    refused = berg("devbox", "-g", "0", "--idle-hours", "-1")
    assert refused.returncode == 1 and "--idle-hours -1 is not possible" in refused.stderr
    planned = launched(
        berg, "run", "-m", "11", "-g", "0", "-n", "many", "--dry-run", "--json", "true"
    )
    request = json.loads(planned.stdout)["request"]
    assert list(request["perInstanceProperties"]) == [f"many-{rank:02}" for rank in range(11)]
    assert request["count"] == request["minCount"] == "11"
    assert set(map(str, request["perInstanceProperties"].values())) == {"{}"}, (
        "their names are output only"
    )

    # One machine of several cannot be created.
    error = {"code": "INTERNAL_ERROR", "message": "the third machine broke"}
    cloud.fault("compute.instances.insert", skip=2, operation_error=error)
    broken = berg("run", "-m", "3", "-g", "0", "-n", "broken", "true")
    assert broken.returncode == 1 and "the third machine broke" in broken.stderr
    # A zone without room for all is not the last one that is tried.
    cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a", "left": 1})
    try:
        moved = berg("run", "-m", "2", "-g", "0", "-n", "moved", "true")
    finally:
        cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a", "on": False})
    assert moved.returncode == 0 and "us-central1-a: out of stock" in moved.stderr, moved.stderr
    assert berg("kill", "moved", "--now").returncode == 0
    # The region has room for three of the four machines.
    region = cloud.call("GET", "/compute/v1/projects/berg-local/regions/us-central1")
    before = {quota["metric"]: quota["limit"] for quota in region["quotas"]}
    # on either draw machines that live for a week at most
    metrics = (
        "NVIDIA_L4_GPUS",
        "PREEMPTIBLE_NVIDIA_L4_GPUS",
    )
    try:
        for metric in metrics:
            cloud.call(
                "POST", "/_berg/quotas", {"region": "us-central1", "metric": metric, "limit": 3}
            )
        over = berg("run", "-m", "4", "-g", "1", "-n", "over", "true")
    finally:
        for metric in metrics:
            cloud.call(
                "POST",
                "/_berg/quotas",
                {"region": "us-central1", "metric": metric, "limit": before[metric]},
            )
    assert over.returncode == 1
    assert "NVIDIA_L4_GPUS" in over.stderr and "Limit: 3.0" in over.stderr
    assert not berg.machines()
    assert not [name for name in berg.objects(".berg/jobs/") if "/moved_" not in name]

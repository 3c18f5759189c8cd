"""Faults: if the startup script dies on a machine, and whatever the bucket, the rights or a token do meanwhile,
the job ends, its results are kept, and no machine is left.
"""

import re
import time

from accept.suite import check, row
from accept.world import Trial

SCRIPT = r"startup-script|boot\.py"
COMMAND = "echo kept > $BERG_RESULTS_DIR/kept; sleep 15; echo last > $BERG_RESULTS_DIR/last"
STEPS = {  # how a step is made long enough to be hit, by its state
    "INSTALLING": ("--install", "sleep 15"),
    "RUNNING": (),
    "UPLOADING": (),
}


def script_killed(t: Trial, step: str) -> None:
    """Kill the startup script in a step of the job."""
    if step == "UPLOADING":
        t.cloud.fault("storage.objects.insert", match="berg_results", delay=3, times=None)
    job = t.run(
        COMMAND if step == "RUNNING" else "echo kept > $BERG_RESULTS_DIR/kept", *STEPS[step]
    )
    t.until_state(job, step)
    if step == "RUNNING":
        time.sleep(5)
    [machine] = t.machines(job)
    check(t.kill_processes(machine, SCRIPT) > 0, "no startup script was running")
    state = t.ended(job, "SUCCEEDED", "FAILED", seconds=400)
    t.gone(90)
    files = t.results(job)
    if state["state"] == "SUCCEEDED" or step != "INSTALLING":
        check("kept" in files, f"{state['state']} without the file that was kept: {[*files]}")
    if state["state"] == "SUCCEEDED" and step == "RUNNING":
        check("last" in files, "SUCCEEDED without the last file")
    check(state["state"] == "SUCCEEDED" or state["reason"], "FAILED without a reason")


for step in STEPS:
    row(
        "processes",
        "kill -9 of Berg's startup script: the job ends with its results, and the machine goes",
        name=f"startup script killed while {step}",
        step=step,
    )(script_killed)


@row("processes", "kill -9 of the command is its exit code 137; what it wrote is kept")
def command_killed(t: Trial) -> None:
    job = t.run("echo kept > $BERG_RESULTS_DIR/kept; echo ready; exec sleep 987")
    t.until_log(job, "ready")
    [machine] = t.machines(job)
    t.until(lambda: t.kill_processes(machine, r"^sleep 987"), "the command")
    state = t.ended(job, "FAILED")
    check(state["exit_code"] == 137, f"exit code {state['exit_code']}")
    check("kept" in t.results(job), "what it wrote is not in the bucket")
    t.gone()


@row(
    "processes",
    "a bucket that answers nothing for a minute loses nothing: the job succeeds",
    minutes=8,
)
def bucket_away(t: Trial) -> None:
    job = t.run(
        "for i in $(seq 60); do echo $i >> $BERG_RESULTS_DIR/train.log; echo line $i; sleep 1; done"
    )
    t.until_log(job, "line 3")
    t.cloud.fault("storage.*", status=503, times=None)
    time.sleep(40)
    t.cloud.control("DELETE", "faults")
    t.ended(job, "SUCCEEDED", seconds=200)
    lines = t.results(job)["train.log"].decode().split()
    check(lines == [str(n) for n in range(1, 61)], f"train.log has {len(lines)} lines")
    log = t.log(job)
    check(all(f"line {n}\n" in log for n in range(1, 61)), "the log lacks lines")
    t.gone()


@row(
    "processes", "tokens that expire in the middle of a job are renewed; nothing is lost", minutes=6
)
def tokens_expire(t: Trial) -> None:
    job = t.run(
        "for i in $(seq 20); do echo $i > $BERG_RESULTS_DIR/file-$i; echo line $i; sleep 1; done"
    )
    t.until_log(job, "line 3")
    t.cloud.control("POST", "tokens/expire", {})
    t.ended(job, "SUCCEEDED", seconds=200)
    check(len(t.files_named(t.state(job)["results"], "file-")) == 20, "files are missing")
    t.gone()


@row("processes", "rights that Google grants a minute late delay a job; it succeeds", minutes=8)
def rights_late(t: Trial) -> None:
    t.cloud.settings(delay=8)
    job = t.run("echo kept > $BERG_RESULTS_DIR/kept")
    t.cloud.fault("storage.objects.*", status=403, reason="forbidden", match="%2Fdist%2F", times=5)
    t.ended(job, "SUCCEEDED", seconds=300)
    check("kept" in t.results(job), "its file is not in the bucket")
    t.gone()


@row("processes", "a bucket that is gone for good keeps no machine", minutes=15)
def bucket_gone(t: Trial) -> None:
    job = t.run("echo ready; sleep 20", "--max-hours", "0.1")
    t.until_log(job, "ready")
    t.cloud.fault("storage.*", status=404, reason="notFound", times=None)
    t.gone(500)


@row(
    "processes",
    "a disk of the results that is full ends no job of Berg's: what fits is kept",
    minutes=6,
)
def results_full(t: Trial) -> None:
    job = t.run(
        "mkdir $BERG_RESULTS_DIR/small && mount -t tmpfs -o size=1m none $BERG_RESULTS_DIR/small && "
        "echo kept > $BERG_RESULTS_DIR/small/kept; "
        "head -c 3000000 /dev/zero > $BERG_RESULTS_DIR/small/big; sync; sleep 3; exit 7"
    )
    state = t.ended(job, "FAILED")
    check(state["exit_code"] == 7, f"exit code {state['exit_code']}: {state['reason']}")
    files = t.results(job)
    check(files.get("small/kept") == b"kept\n", f"what fitted is not in the bucket: {[*files]}")
    t.gone()


@row("processes", "a preemption while the worker begins again after its death: all is kept")
def notice_between_workers(t: Trial) -> None:
    write = 'seq $n > "$BERG_RESULTS_DIR/.new" && mv "$BERG_RESULTS_DIR/.new" "$BERG_RESULTS_DIR/n"'
    job = t.run(f"for n in $(seq 2000); do {write}; echo line $n; sleep 0.05; done")
    t.until_log(job, "line 60\n")
    [machine] = t.machines(job)
    t.kill_worker(job)
    t.power(machine["name"], "preempt", grace=25)
    t.ended(job, "FAILED", "LOST")
    last = re.findall(r"^.*\bline (\d+)$", t.log(job), re.M)[-1]
    kept = len(t.results(job)["n"].split())
    check(kept >= int(last), f"line {last} was printed, and the results are of {kept}")
    t.gone()

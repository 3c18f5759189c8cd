"""What a machine does with its job: restore the code, install, run, mirror the results, delete
itself.

The phases stand in `run`, in their order; attempt.py holds what they share.
"""

from berg.machine import libraries  # noqa: F401 - first: it makes what comes next fast, or says what is missing

# isort: split
import contextlib
import functools
import os
import shutil
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from berg import BergError, job
from berg.code import snapshot
from berg.google import api, paths, secret
from berg.machine import (
    boot,
    cluster,
    data,
    idle,
    kineto,
    logins,
    notify,
    outside,
    saving,
    sweep_worker,
    waste,
)
from berg.machine.attempt import (
    COMMAND_FILE,
    GRACE,
    LAST_WORD,
    MAINTAINED,
    PREEMPTED,
    SHUT_DOWN,
    Attempt,
    Damaged,
    Ended,
    NoJob,
    Stopped,
)
from berg.machine.process import RESULTS, end_group, full_disk, is_alone, judge
from berg.machine.surroundings import (
    InstallationFailed,
    environment,
    install,
    install_commands,
    repo_folder,
)

ROOT = boot.ROOT
ELSEWHERE = "; the job begins anew where there is capacity"
MOST_LOST = 500  # characters of a state for what was not kept


def run(attempt: Attempt) -> None:
    """See a job through, from its metadata to the deletion of this machine (if it is not to take
    another job).
    """
    if attempt.state.final:
        attempt.say(f"Job {attempt.name} is {attempt.state.state} already; nothing to do")
        if not attempt.state.job.kept:
            attempt.machine.insist_on_deletion()
        return
    signal.signal(signal.SIGTERM, lambda *_: attempt.stop(*SHUT_DOWN))
    api.tell = attempt.say
    exit_code = None
    try:
        begin(attempt)
        restore(attempt)
        meet(attempt)
        install(attempt)
        if attempt.job.num_machines > 1:
            cluster.get_ready(attempt.member)
        saving.mirror_results(attempt)
        exit_code, where = run_command(attempt)
        while attempt.runs_again(exit_code):
            exit_code, where = run_command(attempt)
        state, reason = judge(exit_code, where)
    except Stopped:
        state, reason = "KILLED", ""
    except Ended as error:
        leave(attempt, str(error))
        return
    except InstallationFailed as error:
        state, reason, exit_code = "FAILED", error.message, error.code
    except BergError as error:
        state, reason = "FAILED", error.message
    except Exception as error:
        boot.console(traceback.format_exc())
        state, reason = "FAILED", f"berg's worker failed: {type(error).__name__}: {error}"
    if attempt.outcome == SHUT_DOWN:
        with contextlib.suppress(OSError, ValueError):  # its metadata may tell whose doing it is
            attempt.outcome = outside.ending_in(attempt, attempt.machine.told()) or SHUT_DOWN
    exit_code = exit_code if attempt.exit_code is None else attempt.exit_code
    finish(attempt, *(attempt.outcome or (state, reason)), exit_code)


def begin(attempt: Attempt) -> None:
    """Say that this machine has the job, and read it; a job that began before goes on with its
    results.
    """
    if not attempt.sweep:  # else it was taken already
        attempt.claim()
    saving.mirror_log(attempt)
    saving.read_job(attempt)
    names = job.machine_names(attempt.name, attempt.job.num_machines)
    if not (attempt.sweep or attempt.job.group or attempt.machine.name in names):
        raise Ended(f"{attempt.machine.name} is none of the machines of job {attempt.name}")
    attempt.check_restarts()
    notify.read_secrets(attempt)
    install_commands(attempt.machine)
    attempt.member.node = cluster.describe(attempt.machine, attempt.job)
    attempt.member.nodes = [attempt.member.node]
    if attempt.member.is_alone:
        introduce(attempt)
    attempt.start_thread(outside.watch, attempt)
    attempt.start_thread(outside.limit_time, attempt)
    attempt.sampling = attempt.start_thread(waste.watch, attempt)
    kineto.listen(attempt)
    attempt.reachable = attempt.start_thread(attempt.become_reachable)


def restore(attempt: Attempt) -> None:
    """Check out the snapshot, and leave a copy of the job beside its results."""
    this = attempt.job
    packs = boot.BERG / "packs"
    copy = RESULTS / this.results_dir / "berg_job_metadata.json"
    saving.restore_results(attempt)
    if not attempt.begins_here and copy.exists() and not this.cmd:
        attempt.say("Left the code as it was before the reboot: people change it here")
        return

    def bring(name: str) -> None:
        from google.api_core import exceptions

        try:
            attempt.bucket.download(name, packs / name.replace("/", "%"))
        except exceptions.NotFound:
            raise BergError(
                f"commit {this.git_snapshot} is missing: no gs://{attempt.bucket.name}/{name}"
            ) from None

    with ThreadPoolExecutor() as pool:
        list(pool.map(bring, snapshot.all_packs(this.snapshot)))
    folder = repo_folder(this)
    if attempt.sweep:  # what the job before left there is not this one's
        shutil.rmtree(folder, ignore_errors=True)
    snapshot.restore(
        this.snapshot, folder, lambda name: (packs / name.replace("/", "%")).open("rb")
    )
    shutil.rmtree(packs)
    attempt.say(f"Checked out {this.git_snapshot[:12]} of {this.repo_name} to {folder}")
    data.bring(attempt)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(this.to_json())


def meet(attempt: Attempt) -> None:
    """In a cluster, wait for the other machines and get to know them."""
    if not attempt.member.is_alone:
        attempt.reachable.join()
        attempt.member.nodes = cluster.gather(attempt.member)
        attempt.start_thread(cluster.heartbeat, attempt.member)
        attempt.start_thread(outside.watch_others, attempt)
        introduce(attempt)
        cluster.announce(attempt.member)


def introduce(attempt: Attempt) -> None:
    """Tell this machine, and who logs in to it, of the job and its machines."""
    values = environment(attempt).items()
    # What boot set is of this process alone.
    ours = {
        key: value
        for key, value in values
        if os.environ.get(key) != value or key.upper() in boot.FOR_WORKER
    }
    # not for files
    ours = {key: value for key, value in ours.items() if key not in attempt.secrets}
    logins.introduce(attempt.member, ours)


def run_command(attempt: Attempt) -> tuple[int, str]:
    """Run the job's command where it is to run, or wait for its end; an exit code, and whose it is."""
    this = attempt.job
    attempt.write_state(state="RUNNING")
    if not this.cmd or not (attempt.leads or this.run_on == "each"):
        attempt.say("Ready")
        if this.idle_seconds and attempt.leads:
            rest(attempt)
        elif this.idle_seconds:
            cluster.tell_use(attempt.member, attempt.stopped.wait)
        attempt.pause()
    attempt.say(f"Running: {this.cmd}")
    folder = repo_folder(this) / this.cwd
    folder.mkdir(parents=True, exist_ok=True)  # one of the repo's without a file in it
    code = attempt.execute(
        ["bash", "-c", this.cmd], cwd=folder, env=kineto.variables(attempt, environment(attempt))
    )
    if this.num_machines > 1 and this.run_on == "each" and not attempt.outcome:
        cluster.announce(
            attempt.member, phase="ENDED", exit_code=str(code), ended_at=str(time.time())
        )
        if attempt.leads:
            return cluster.wait_for_commands(attempt.member)
        attempt.pause()
    return code, ""


def rest(attempt: Attempt) -> None:
    """Wait until the devbox has been idle for too long, and end it."""

    def warn(left: float) -> None:
        text = f"berg: this devbox is idle and deletes itself in {max(left / 60, 1):.0f} minutes, unless it is used."
        text += f" Only {RESULTS} is kept"
        attempt.say(text)
        idle.tell_terminals(text)
        if not attempt.member.is_alone:
            cluster.announce(attempt.member, warning=f"{time.time()} {text}")

    this, elsewhere = attempt.job, functools.partial(cluster.others_are_used, attempt.member)
    if idle.wait(this.idle_seconds, attempt.stopped.wait, warn, elsewhere, bool(this.tpu)):
        attempt.stop("SUCCEEDED", f"idle for {this.idle_seconds / 3600:.2g} h")


def finish(attempt: Attempt, state: str, reason: str, exit_code: int | None) -> None:
    """Upload what is left, write the final state, and delete the machines of the job."""
    code = exit_code if exit_code is None or exit_code >= 0 else 128 - exit_code
    reason += full_disk() if state == "FAILED" else ""
    saving.stop_mirrors(attempt)
    in_cluster = attempt.job.num_machines > 1
    uploading = {"state": "UPLOADING", "ending": state, "exit_code": code, "reason": reason}
    try:
        if not attempt.machine_goes:  # else every second is for the results
            attempt.write_state(soon=True, **uploading, uploading_since=job.now())
        if not attempt.leads and state != "ENDED":
            attempt.insist(
                lambda: cluster.announce(attempt.member, phase="FAILED", reason=reason), 1
            )
        left, is_whole = saving.save(attempt, reason)
        for path, why in left.items():
            attempt.say(f"Not in the bucket: {paths.shorten(path, 2 * paths.MAX_NAME)}: {why}")
        if not is_whole and state == "SUCCEEDED" and not attempt.begins_anew():
            state = "FAILED"
        lost = paths.tell(left)
        seconds = LAST_WORD if attempt.machine_goes else saving.UNREACHABLE
        last: dict[str, Any] = {}
        attempt.insist(
            lambda: last.update(conclude(attempt, state, reason, code, lost, is_whole)), seconds
        )
        attempt.insist(lambda: attempt.write_state(**last), seconds)
    except Ended as error:
        leave(attempt, str(error))
        return
    if attempt.sweep:
        attempt.clear()
    elif attempt.job.kill_instance_after_job and attempt.state.state != "SUBMITTED":
        # a slice goes with its group
        if in_cluster and attempt.leads and attempt.job.place != "tpu":
            attempt.insist(lambda: cluster.delete_others(attempt.member), saving.UNREACHABLE)
        # it comes with the deletion, and ends nothing that is left to do
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        attempt.machine.insist_on_deletion()
    elif attempt.state.state == "SUBMITTED" and attempt.outcome == PREEMPTED:
        # Google does it soon; this saves what is left of its notice
        with contextlib.suppress(Exception):
            attempt.machine.delete(alone=True)


def conclude(
    attempt: Attempt, state: str, reason: str, code: int | None, lost: str, is_whole: bool
) -> dict[str, Any]:
    """Tell how the job ended, once its last results are in the bucket, or given up (then they are
    not `is_whole`).

    Returns what is to be written into its state.
    """
    in_cluster = attempt.job.num_machines > 1
    again = attempt.begins_anew()
    if in_cluster:
        cluster.announce(attempt.member, uploaded="all" if is_whole else "part", lost=lost)
        if not attempt.leads and not cluster.wait_for_end(attempt.member, attempt.is_over):
            state, reason = (
                "FAILED",
                cluster.absence(attempt.member, cluster.first_machine(attempt.member)),
            )
        if attempt.leads:
            missing, all_whole = cluster.wait_for_uploads(
                attempt.member, functools.partial(saving.tell_left, attempt)
            )
            state = "FAILED" if state == "SUCCEEDED" and not all_whole else state
            lost = "; ".join(
                filter(None, [lost, *(text for text in missing if text not in reason)])
            )
    lost = "; ".join(dict.fromkeys(filter(None, [lost, attempt.state.lost])))[:MOST_LOST]
    reason = "; ".join(filter(None, [reason, "" if again or lost in reason else lost]))
    elsewhere = attempt.results.elsewhere(alone=not in_cluster) if attempt.leads else ""
    if elsewhere:
        attempt.say(f"Results that are not in berg_results/{attempt.job.results_dir}: {elsewhere}")
    if attempt.leads:
        how = "begins anew on another machine" if again else state
        attempt.say(f"Job {attempt.name} {how}{': ' + reason if reason else ''}")
    if not again:
        notify.tell(attempt, state, reason, code)
    if not saving.send_log(attempt):
        reason = "; ".join(filter(None, [reason, "the end of the log is not in the bucket"]))
    about: dict[str, Any] = {
        "exit_code": code,
        "synced_until": attempt.results.synced_until,
        "lost": lost,
    }
    about |= {"elsewhere": elsewhere, "left_files": 0, "left_bytes": 0, "ending": ""}
    if again:
        # this machine comes back, and that is none of the restarts it has
        maintained = attempt.outcome == MAINTAINED
        reason += "; it comes back, and the job begins anew" if maintained else ELSEWHERE
        restarts = attempt.state.restarts - maintained
        return {
            **about,
            "exit_code": None,
            "state": "SUBMITTED",
            "reason": reason,
            "restarts": restarts,
        }
    if attempt.leads and (attempt.job.secrets or attempt.job.notify) and not attempt.sweep:
        attempt.insist(lambda: secret.delete(attempt.bucket.config, attempt.name), 1)
    return {**about, "state": state, "reason": reason, "finished_at": job.now()}


def leave(attempt: Attempt, why: str) -> None:
    """Stop without a word in the state: it is somebody else's, or none. What was written is saved
    all the same.
    """
    attempt.say(why)
    attempt.end_process()
    saving.stop_mirrors(attempt)
    with contextlib.suppress(Exception):
        saving.save_alone(attempt, why)
    if not attempt.sweep:
        attempt.machine.insist_on_deletion()


@click.group()
def main() -> None:
    """What berg runs on its machines.

    \b
    berg-worker run digits-1121-0930-x7k
    """
    api.forbidden_passes_until = time.monotonic() + boot.FORBIDDEN_SECONDS


@main.command(name="run")
@click.argument("name", metavar="JOB")
def run_(name: str) -> None:
    """Run JOB on this machine, then delete the machine.

    \b
    berg-worker run digits-1121-0930-x7k
    """
    check_alone()
    run(attempt_at(name))


def attempt_at(name: str, sweep: str = "") -> Attempt:
    """The attempt that this machine makes; a machine without a job deletes itself and exits."""
    attempt = Attempt(name, sweep)
    try:
        attempt.learn()
    except (NoJob, Damaged) as error:
        if isinstance(error, Damaged) or attempt.marker.exists():
            leave(attempt, error.message)
        else:
            attempt.say(error.message)
            attempt.machine.insist_on_deletion()
        sys.exit()
    return attempt


def check_alone() -> None:
    if not is_alone():
        raise BergError("another worker runs on this machine")


@main.command()
@click.argument("name", metavar="SWEEP")
def sweep(name: str) -> None:
    """Run the jobs of SWEEP that are left, then delete the machine.

    \b
    berg-worker sweep lr-1121-0930-x7k
    """
    check_alone()
    sweep_worker.run_sweep(name, run)


@main.command()
@click.argument("name", metavar="JOB")
@click.argument("reason")
@click.argument("sweep", default="")
def salvage(name: str, reason: str, sweep: str) -> None:
    """Save the results of JOB after its worker died, and record why it failed."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        end_group(int(COMMAND_FILE.read_text()), GRACE)
    attempt = attempt_at(name, sweep)
    if not attempt.state.final:
        with contextlib.suppress(BergError):
            saving.read_job(attempt)
            attempt.member.node = cluster.describe(attempt.machine, attempt.job)
        with contextlib.suppress(Exception):
            notify.read_secrets(attempt)
        if attempt.job.num_machines > 1:
            attempt.start_thread(cluster.heartbeat, attempt.member)
        ending = attempt.state.ending  # it had seen the command end
        finish(
            attempt,
            ending or "FAILED",
            attempt.state.reason if ending else reason,
            attempt.state.exit_code,
        )
    elif not sweep:
        attempt.machine.insist_on_deletion()

"""What a machine does with its job: restore the code, install, run, mirror the results, delete
itself.

The phases stand in `run`, in their order; attempt.py holds what they share.
"""

# First, since it makes what comes next fast, or says what is missing.
from berg.machine import libraries  # noqa: F401

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
from dataclasses import replace
from typing import NoReturn

import click

from berg import BergError, job
from berg.code import snapshot
from berg.google import api, paths, secret
from berg.job import State
from berg.machine import (
    boot,
    cluster,
    data,
    halving,
    idle,
    kineto,
    logins,
    notify,
    outside,
    saving,
    sweep_worker,
    waste,
)
from berg.machine.attempt import Attempt
from berg.machine.command import COMMAND_FILE, GRACE
from berg.machine.outcome import (
    POD_TAKEN_AWAY,
    PREEMPTED,
    SHUT_DOWN,
    Ending,
    Restart,
    Uploads,
    after_uploads,
    decide,
    final_reason,
)
from berg.machine.process import (
    RESULTS,
    delete_soon,
    end_group,
    full_disk,
    is_alone,
    judge,
    shell_exit_code,
    start_thread,
)
from berg.machine.state_writer import Damaged, Ended, NoJob
from berg.machine.stopping import Stopped
from berg.machine.surroundings import (
    InstallationFailed,
    environment,
    install,
    install_commands,
    repo_folder,
)


def run(attempt: Attempt) -> None:
    """See a job through, from its metadata to the deletion of this machine (if it is not to take
    another job).
    """
    if attempt.state.final:
        attempt.say(f"Job {attempt.name} is {attempt.state.state} already; nothing to do")
        if not attempt.state.job.kept:
            attempt.machine.insist_on_deletion()
        return
    signal.signal(signal.SIGTERM, lambda *_: attempt.stop(SHUT_DOWN))
    api.notify = attempt.say
    try:
        ending = ending_of_phases(attempt)
    except Ended as error:
        leave(attempt, str(error))
        return
    if attempt.stopping.ending == SHUT_DOWN:
        attempt.stopping.ending = reason_of_shutdown(attempt)
    finish(attempt, requested_or(attempt.stopping.ending, ending))


def ending_of_phases(attempt: Attempt) -> Ending:
    """Go through the phases of a job; return how it ended, whatever happened on the way."""
    try:
        return go_through_phases(attempt)
    except Stopped:
        return Ending("KILLED", "")
    except InstallationFailed as error:
        return Ending("FAILED", error.message, error.code)
    except BergError as error:
        return Ending("FAILED", error.message)
    except Ended:
        raise
    except Exception as error:
        boot.console(traceback.format_exc())
        return Ending("FAILED", f"berg's worker failed: {type(error).__name__}: {error}")


def go_through_phases(attempt: Attempt) -> Ending:
    """Prepare this machine for the job and run its command; return how that ended."""
    begin(attempt)
    restore(attempt)
    meet(attempt)
    install(attempt)
    if not attempt.member.is_alone:
        cluster.get_ready(attempt.member)
    saving.mirror_results(attempt)
    ending = run_command(attempt)
    while attempt.runs_again(ending.exit_code):
        ending = run_command(attempt)
    return ending


def reason_of_shutdown(attempt: Attempt) -> Ending:
    """Return why this machine shuts down, if its metadata says more than that it does."""
    usual = POD_TAKEN_AWAY if boot.POD else SHUT_DOWN
    with contextlib.suppress(OSError, ValueError):
        return outside.ending_in(attempt, attempt.machine.instance_now()) or usual
    return usual


def requested_or(requested: Ending | None, ending: Ending) -> Ending:
    """Return the ending that was requested, with the command's exit code if it has none; or else
    how the job ended by itself.
    """
    if requested is None:
        return ending
    if requested.exit_code is None:
        return replace(requested, exit_code=ending.exit_code)
    return requested


def begin(attempt: Attempt) -> None:
    """Claim the job for this machine, read it, and start what watches it; a job that began before
    goes on with its results.
    """
    if not attempt.sweep:  # else it was taken already
        attempt.claim()
    saving.mirror_log(attempt)
    saving.read_job(attempt)
    attempt.say(f"Results go to {attempt.job.gcs_results_dir}")
    names = job.machine_names(attempt.name, attempt.job.num_machines)
    if not (attempt.sweep or attempt.job.group or attempt.machine.name in names):
        raise Ended(f"{attempt.machine.name} is none of the machines of job {attempt.name}")
    attempt.check_in_time()
    attempt.check_restarts()
    notify.read_secrets(attempt)
    install_commands(attempt.machine)
    attempt.member.node = cluster.describe(attempt.member)
    attempt.member.nodes = [attempt.member.node]
    if attempt.member.is_alone:
        introduce(attempt)
    start_thread(outside.watch, attempt)
    start_thread(outside.limit_time, attempt)
    attempt.sampling = start_thread(waste.watch, attempt)
    start_thread(halving.watch, attempt)
    kineto.listen(attempt)
    attempt.reachable = start_thread(attempt.become_reachable)


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
        start_thread(cluster.heartbeat, attempt.member)
        start_thread(outside.watch_others, attempt)
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
    if attempt.job.kind == "job":  # its secrets are for the command, not for files
        ours = {key: value for key, value in ours.items() if key not in attempt.secrets}
    logins.introduce(attempt.member, ours)


def run_command(attempt: Attempt) -> Ending:
    """Run the job's command where it is to run, or wait for its end; return how it ended."""
    this = attempt.job
    attempt.states.write(state="RUNNING")
    runs_here = attempt.leads or this.run_on == "each"
    if not this.cmd or not runs_here:
        wait_for_the_end(attempt)
    attempt.say(f"Running: {this.cmd}")
    folder = repo_folder(this) / this.cwd
    folder.mkdir(parents=True, exist_ok=True)  # one of the repo's without a file in it
    variables = kineto.variables(attempt, environment(attempt))
    code = attempt.runner.keep(["bash", "-c", this.cmd], folder, variables)
    runs_elsewhere = this.num_machines > 1 and this.run_on == "each"
    if runs_elsewhere and not attempt.stopping.ending:
        return wait_for_other_commands(attempt, code)
    return judge(code)


def wait_for_other_commands(attempt: Attempt, code: int) -> Ending:
    """Tell the other machines that the command has ended here, and return how it ended on all of
    them. On a machine that does not lead, wait until the job ends.
    """
    cluster.announce(attempt.member, phase="ENDED", exit_code=str(code), ended_at=str(time.time()))
    if not attempt.leads:
        wait_for_stop(attempt)
    return judge(*cluster.wait_for_commands(attempt.member))


def wait_for_the_end(attempt: Attempt) -> NoReturn:
    """Wait until the job is to end, on a machine that runs no command: a devbox, or one that does
    not lead. Raises Stopped.
    """
    attempt.say("Ready")
    if attempt.job.idle_seconds and attempt.leads:
        end_when_idle(attempt)
    elif attempt.job.idle_seconds:
        cluster.report_use(attempt.member, attempt.stopping.event.wait)
    wait_for_stop(attempt)


def wait_for_stop(attempt: Attempt) -> NoReturn:
    """Wait until the job is to end, and raise Stopped."""
    attempt.stopping.event.wait()
    raise Stopped


def end_when_idle(attempt: Attempt) -> None:
    """Wait until the devbox has been idle for too long, and end it."""

    def warn(left: float) -> None:
        minutes = max(left / 60, 1)
        text = (
            f"berg: this devbox is idle and deletes itself in {minutes:.0f} minutes, unless it is "
            f"used. Only {RESULTS} is kept"
        )
        attempt.say(text)
        idle.tell_terminals(text)
        if not attempt.member.is_alone:
            cluster.announce(attempt.member, warning=f"{time.time()} {text}")

    this = attempt.job
    is_used_elsewhere = functools.partial(cluster.others_are_used, attempt.member)
    stopped = attempt.stopping.event.wait
    if idle.wait(this.idle_seconds, stopped, warn, is_used_elsewhere, bool(this.tpu)):
        attempt.stop(Ending("SUCCEEDED", f"idle for {this.idle_seconds / 3600:.2g} h"))


def finish(attempt: Attempt, ending: Ending) -> None:
    """Upload what is left, write the final state, and delete the machines of the job."""
    ending = replace(ending, exit_code=shell_exit_code(ending.exit_code))
    if ending.state == "FAILED":
        ending = replace(ending, reason=ending.reason + full_disk())
    saving.stop_mirrors(attempt)
    try:
        begin_upload(attempt, ending)
        left, is_whole = saving.save(attempt, ending.reason)
        for path, why in left.items():
            name = paths.shorten(path, 2 * paths.MAX_NAME)
            attempt.say(f"Not in the bucket: {name}: {why}")
        uploads = Uploads(is_whole=is_whole, lost=paths.name_left(left))
        write_end(attempt, ending, uploads)
    except Ended as error:
        leave(attempt, str(error))
        return
    release_machines(attempt)


def begin_upload(attempt: Attempt, ending: Ending) -> None:
    """Write that the job uploads its last results, and tell the other machines of a failure."""
    # A machine that Google takes needs every second for the results.
    if not attempt.machine_goes:
        attempt.states.write(
            soon=True,
            state="UPLOADING",
            ending=ending.state,
            exit_code=ending.exit_code,
            reason=ending.reason,
            uploading_since=job.now(),
        )
    if not attempt.leads and ending.state != "ENDED":
        attempt.insist(
            lambda: cluster.announce(attempt.member, phase="FAILED", reason=ending.reason), 1
        )


def write_end(attempt: Attempt, ending: Ending, uploads: Uploads) -> None:
    """Write the last state of this attempt, once the other machines have uploaded their results."""
    seconds = saving.seconds_for_last_words(attempt)
    last = attempt.insist(lambda: conclude(attempt, ending, uploads), seconds)
    if last:
        attempt.insist(lambda: attempt.states.write_whole(last), seconds)
    else:
        attempt.insist(attempt.states.flush, seconds)


def conclude(attempt: Attempt, ending: Ending, uploads: Uploads) -> State:
    """Wait for the other machines, say how the job ended, and return its last state.

    `uploads` tells what this machine uploaded.
    """
    restart = attempt.restart()
    if not attempt.member.is_alone:
        ending, uploads = wait_for_others(attempt, ending, uploads)
    uploads = replace(uploads, synced_until=attempt.mirrors.results.synced_until)
    if attempt.leads:
        elsewhere = attempt.mirrors.results.elsewhere(alone=attempt.member.is_alone)
        uploads = replace(uploads, elsewhere=elsewhere)
    announce_end(attempt, ending, uploads, restart)
    uploads = replace(uploads, log_is_whole=saving.send_log(attempt))
    if attempt.leads and attempt.job.has_secret and not attempt.sweep and not restart:
        attempt.insist(lambda: secret.delete(attempt.bucket.config, attempt.name), 1)
    return decide(attempt.state, ending, uploads, restart, job.now())


def wait_for_others(attempt: Attempt, ending: Ending, uploads: Uploads) -> tuple[Ending, Uploads]:
    """Tell the other machines what this one uploaded, and wait for their uploads if this one leads,
    or else for the leader's last word; return how the job ended, and what all uploaded.
    """
    member = attempt.member
    uploaded = "part"
    if uploads.is_whole:
        uploaded = "all"
    cluster.announce(member, uploaded=uploaded, lost=uploads.lost)
    if not attempt.leads and not cluster.wait_for_end(member, attempt.is_over):
        # From now on this machine leads.
        absence = cluster.absence(member, cluster.first_machine(member))
        ending = replace(ending, state="FAILED", reason=absence)
    if not attempt.leads:
        return ending, uploads
    lost, are_whole = cluster.wait_for_uploads(member, functools.partial(saving.note_left, attempt))
    return ending, replace(uploads, others_lost=lost, others_are_whole=are_whole)


def announce_end(
    attempt: Attempt, ending: Ending, uploads: Uploads, restart: Restart | None
) -> None:
    """Say in the log how the job ended, and notify the webhook."""
    ending = after_uploads(ending, uploads)
    reason, how = ending.reason, "begins anew on another machine"
    if not restart:
        reason, how = final_reason(ending, uploads, attempt.state.lost), ending.state
    if uploads.elsewhere:
        own = f"berg_results/{attempt.job.results_dir}"
        attempt.say(f"Results that are not in {own}: {uploads.elsewhere}")
    if attempt.leads:
        text = f"Job {attempt.name} {how}"
        if reason:
            text += f": {reason}"
        attempt.say(text)
    if not restart:
        notify.of_job(attempt, replace(ending, reason=reason))


def release_machines(attempt: Attempt) -> None:
    """Delete the machines of a job that is over, unless they are kept or go on to another job."""
    this = attempt.job
    if attempt.sweep:
        attempt.clear()
        return
    if attempt.state.state == "SUBMITTED":
        if attempt.stopping.ending == PREEMPTED:
            delete_soon(attempt.machine)
        return
    if not this.kill_instance_after_job:
        return
    if attempt.leads and this.num_machines > 1:
        attempt.insist(lambda: attempt.member.host.delete_peers(this), saving.UNREACHABLE)
    # it comes with the deletion, and ends nothing that is left to do
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    attempt.machine.insist_on_deletion()


def leave(attempt: Attempt, why: str) -> None:
    """Stop without writing the state: it is somebody else's, or there is none. What the job wrote
    is saved all the same.
    """
    attempt.say(why)
    attempt.runner.end()
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
        attempt.read_first_state()
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


def ending_after_death(state: State, reason: str) -> Ending:
    """Return how a job ended whose worker died for `reason`, maybe after the command had ended."""
    if state.ending:
        return Ending(state.ending, state.reason, state.exit_code)
    return Ending("FAILED", reason, state.exit_code)


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
            attempt.member.node = cluster.describe(attempt.member)
        with contextlib.suppress(Exception):
            notify.read_secrets(attempt)
        if not attempt.member.is_alone:
            start_thread(cluster.heartbeat, attempt.member)
        finish(attempt, ending_after_death(attempt.state, reason))
    elif not sweep:
        attempt.machine.insist_on_deletion()

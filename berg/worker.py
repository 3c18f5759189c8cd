"""What a machine does with its job: restore the code, install, run, mirror the results, delete
itself.
"""

# First: it makes the imports after it fast, or reports missing packages.
from berg.machine import installation

# isort: split
import contextlib
import functools
import math
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from berg import BergError, job, plain, states
from berg.google import api, secret
from berg.google.storage import Bucket
from berg.job import STOPPED, State
from berg.machine import (
    boot,
    fabric,
    logins,
    peers,
    preflight,
    profile,
    saving,
    usage,
    warm,
    watchdogs,
)
from berg.machine.attempt import Attempt, Damaged, Ended, MachineLost, NoJob, settings_of
from berg.machine.environment import (
    bring_data,
    environment,
    fetch_code,
    install_commands,
    mount_buckets,
    note_software,
    prepare_scratch,
    repo_folder,
    use_scratch_for_data,
    with_report,
)
from berg.machine.installation import InstallationFailed, install
from berg.machine.outcome import (
    BOX_ENDS,
    POD_TAKEN_AWAY,
    PREEMPTED,
    SHUT_DOWN,
    SLOW_NETWORK,
    TO_FINISH,
    Ending,
    Restart,
    Stopped,
    Uploads,
    after_uploads,
    decide,
    final_reason,
    join,
)
from berg.machine.process import (
    COMMAND_FILE,
    ENDING_FILE,
    GRACE,
    LOST_POWER,
    RESULTS,
    RUNNING,
    delete_soon,
    end_group,
    full_disk,
    is_alone,
    judge,
    raise_limits,
    shell_exit_code,
    start_thread,
)

SILENT_SECONDS = 60  # for which the deletion of a silent machine is tried
POLL = 0.3  # seconds between two looks whether the next attempt has begun
NOTING = 10  # seconds that a command that ended waits for the record of its software


def run(attempt: Attempt) -> None:
    """Run a job, from reading its metadata to deleting this machine (unless it takes another)."""
    if attempt.state.final:
        attempt.say(f"Job {attempt.name} is {attempt.state.state} already; nothing to do")
        if not attempt.state.job.kept:
            if not attempt.state.is_warm:
                attempt.machine.hold(attempt.state.kept_seconds)
            attempt.machine.insist_on_deletion(is_refused=bool(attempt.state.undeleted))
        return

    def shut_down(*_: Any) -> None:
        boot.SIGTERM_TIMES.append(time.time())
        attempt.stop(SHUT_DOWN)

    signal.signal(signal.SIGTERM, shut_down)
    api.notify = attempt.say
    try:
        ending = ending_of_phases(attempt)
    except Ended as error:
        leave(attempt, str(error))
        return
    learn_why_it_shuts_down(attempt)
    requested = None if attempt.has_ended else attempt.stopping.ending
    if requested and requested.exit_code is None:
        requested = replace(requested, exit_code=ending.exit_code)
    finish(attempt, requested or ending)


def learn_why_it_shuts_down(attempt: Attempt) -> None:
    """Replace the ending of a machine that shuts down by the reason, if its metadata say it."""
    if attempt.stopping.ending != SHUT_DOWN:
        return
    ending = POD_TAKEN_AWAY if boot.POD else BOX_ENDS if attempt.job.on else SHUT_DOWN
    with contextlib.suppress(OSError, ValueError):
        ending = watchdogs.ending_in(attempt, attempt.machine.instance_now()) or ending
    attempt.stopping.ending = ending


def ending_of_phases(attempt: Attempt) -> Ending:
    """Go through the phases of a job; return how it ended, also after an error."""
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
    if attempt.earlier:
        return resume_end(attempt, attempt.earlier)
    if prepare_scratch(attempt.machine) and attempt.member.is_alone:
        introduce(attempt)  # again, with its variable
    restore(attempt)
    meet_first = meet
    while True:
        ending = try_once(attempt, meet_first)
        meet_first = meet_again
        if attempt.loss and not attempt.survives_loss():
            return Ending("FAILED", attempt.loss)
        if not attempt.loss and ending and not attempt.runs_again(ending):
            return ending
        note_next_attempt(attempt, ending)


def resume_end(attempt: Attempt, ending: Ending) -> Ending:
    """Return how a job ends whose command ended before this worker began: it does not run again.

    A disk that is still there may have results that the bucket lacks; of a lost one nothing is
    left to send.
    """
    attempt.say("The command has ended already; finishing the upload of its results")
    if not attempt.is_blank:
        saving.restore_results(attempt)
    return ending if attempt.leads else Ending("ENDED", "the job ended")


def try_once(attempt: Attempt, meet_others: Callable[[Attempt], None]) -> Ending | None:
    """Prepare together with the other machines of the job, and run its command; return how it
    ended, None if another attempt begins: a machine was lost, or a command failed elsewhere.
    """
    try:
        if not attempt.member.is_alone:
            meet_others(attempt)
        if not attempt.is_prepared:
            prepare(attempt)
        if not attempt.member.is_alone:
            get_ready(attempt)
            preflight.check(attempt)
        return run_command(attempt)
    except MachineLost:
        return None


def prepare(attempt: Attempt) -> None:
    """Install and mount what the job needs, and begin to mirror its results, once.

    A devbox's disk keeps what was installed: its next boot does not install again.
    """
    if not attempt.is_installed:
        install(attempt)
        attempt.is_installed = True
        with contextlib.suppress(OSError):  # a full disk
            attempt.installed_mark.write_text(attempt.machine.job_sha256)
        if attempt.job.kind == "devbox" and attempt.secrets:
            introduce(attempt)
    mount_buckets(attempt)
    fabric.install(attempt)
    if attempt.job.docker:
        installation.pull_image(attempt)
    saving.mirror_results(attempt)
    attempt.is_prepared = True


def get_ready(attempt: Attempt) -> None:
    """Wait until all is installed on the other machines, too. Learn which of them cannot use RoCE:
    then none does, as NCCL needs the same network on all.
    """
    has_roce = fabric.is_wanted(attempt.job)
    is_together = has_roce or preflight.is_wanted(attempt.job)
    about = {"fault": fabric.fault()} if has_roce else {}
    found = peers.get_ready(attempt.member, is_together, attempt.pause_together, **about)
    if has_roce:
        faults = {name: their.get("fault", "") for name, their in found.items()}
        attempt.roce_faults = {name: fault for name, fault in faults.items() if fault}
        introduce(attempt)  # again, with NCCL's variables


def note_next_attempt(attempt: Attempt, ending: Ending | None) -> None:
    """On the machine that leads, write into the state that the next attempt begins, and why."""
    if attempt.member.is_alone or not attempt.leads:
        return
    why = attempt.loss or (ending.reason if ending else "")
    text = f"{why}; attempt {attempt.state.attempt} begins on all machines"
    attempt.states.write(state="RUNNING", reason=text)
    if attempt.loss:
        attempt.say(text)
    for name in attempt.member.silent * attempt.job.is_replaced:
        attempt.insist(functools.partial(attempt.member.host.delete_peer, name), SILENT_SECONDS)


def begin(attempt: Attempt) -> None:
    """Claim the job for this machine, read it, and start the threads that watch it."""
    if not attempt.sweep:  # else it is claimed already
        attempt.claim()
    mirrors = attempt.mirrors
    mirrors.start(mirrors.log.run, saving.LOG_INTERVAL, mirrors.done)
    saving.read_job(attempt)
    mirrors.results.is_halfway = attempt.is_blank or attempt.lost_power  # up to the restore
    this, member = attempt.job, attempt.member
    attempt.say(f"Results go to {this.gcs_results_dir}")
    check_machine(attempt)
    warm.begin(attempt)
    attempt.check_region()
    if len(this.regions) > 1:
        start_thread(attempt.insist, lambda: member.host.delete_groups_elsewhere(this))
    member.attempt = attempt.state.attempt
    if this.is_replaced and not attempt.leads:
        member.attempt = 0  # the first machine says in which it takes part
    attempt.check_limits()
    mark, record = attempt.installed_mark, attempt.machine.job_sha256
    attempt.is_installed = this.kind == "devbox" and mark.exists() and mark.read_text() == record
    watchdogs.read_secrets(attempt)
    install_commands(attempt.machine)
    member.node = peers.describe(member)
    # The machines of the next attempt may have other names.
    mirrors.results.journal.machine = str(member.node.rank)
    member.nodes = [member.node]
    if member.is_alone:
        introduce(attempt)
    elif not this.is_replaced:
        peers.note_earlier(member)
    start_thread(watchdogs.watch, attempt)
    start_thread(watchdogs.limit_time, attempt)
    attempt.sampling = start_thread(watchdogs.watch_use, attempt)
    start_thread(watchdogs.watch_rungs, attempt)
    start_thread(watchdogs.watch_steps, attempt)
    profile.listen(attempt)
    if not this.on:
        attempt.reachable = start_thread(attempt.become_reachable)


def check_machine(attempt: Attempt) -> None:
    """Raise Ended unless this machine is the job's: by its name, its group, or as a warm one."""
    this, machine = attempt.job, attempt.machine
    is_named = machine.name in job.machine_names(attempt.name, this.num_machines)
    if not (attempt.sweep or this.group or is_named or machine.warm == attempt.name):
        raise Ended(f"{machine.name} is none of the machines of job {attempt.name}")


def restore(attempt: Attempt) -> None:
    """Restore the results, check out the snapshot, and copy the job's record to its results."""
    this = attempt.job
    use_scratch_for_data(attempt)
    if attempt.lost_power:
        installation.remove_container()  # its name is needed, and it may still run
        saving.set_aside(attempt)
    if attempt.is_blank and attempt.member.is_alone and this.kind == "job":
        attempt.begins_here = True
        shutil.rmtree(RESULTS / this.results_dir, ignore_errors=True)  # bytes of it may be missing
    saving.restore_results(attempt)
    if not (attempt.begins_here or this.cmd):
        attempt.say("Left the code as it was before the reboot: people change it here")
        return

    folder = repo_folder(this)
    # What an earlier job left there, or a container image has there, is not of this commit.
    if attempt.sweep or not (folder / ".git").exists():
        shutil.rmtree(folder, ignore_errors=True)
    fetch_code(attempt.bucket, this.snapshot, folder)
    attempt.say(f"Checked out {this.git_snapshot[:12]} of {this.repo_name} to {folder}")
    saving.put_back(attempt)
    bring_data(attempt)
    if attempt.leads:
        saving.write_record(attempt)
    if attempt.begins_here:
        attempt.marker.touch()


def meet(attempt: Attempt) -> None:
    """Wait for the other machines of the job, and exchange addresses and keys with them."""
    attempt.reachable.join()
    member = attempt.member
    if member.job.is_replaced:
        start_thread(watchdogs.watch_others, attempt)
    note = functools.partial(note_missing, attempt)
    timeout = peers.coming_seconds(member, attempt.waited_last)
    member.nodes = peers.gather(member, timeout, note)
    if member.job.is_replaced:
        saving.bring_news(attempt)  # of machines that stayed
    else:
        start_thread(watchdogs.watch_others, attempt)
    introduce(attempt)
    start_thread(logins.tell_ready, attempt.member)  # for people, before all is installed
    start_thread(peers.announce_soon, attempt.member)


def meet_again(attempt: Attempt) -> None:
    """Begin another attempt on all machines of a job together, each with the results of all.

    The machine that leads has written its number into the state. The watchdogs limit its time.
    """
    saving.send_all(attempt)
    peers.begin_attempt(attempt.member, attempt.state.attempt)
    attempt.loss = ""
    timeout = attempt.job.spec.replacement_timeout if attempt.job.is_replaced else math.inf
    note = functools.partial(note_missing, attempt)
    attempt.member.nodes = peers.gather(attempt.member, timeout, note)
    saving.bring_news(attempt)
    introduce(attempt)


def note_missing(attempt: Attempt, missing: int) -> None:
    """On the machine that leads, write into the state how many machines are missing, and since
    when.
    """
    if missing == attempt.state.missing:
        return
    since = attempt.state.missing_since or job.now() if missing else ""
    attempt.states.write(soon=True, missing=missing, missing_since=since)


def introduce(attempt: Attempt) -> None:
    """Write the job's machines and variables to files, for programs and logins."""
    # Secrets of a job are for its command, not for files, and installation must not find any.
    is_without = attempt.job.kind == "job" or not attempt.is_installed
    logins.introduce(attempt.member, variables_of_logins(attempt, is_without))


def variables_of_logins(attempt: Attempt, is_without_secrets: bool) -> dict[str, str]:
    """Return the variables that a login has as a command of the job does."""
    values = with_report(environment(attempt)).items()
    # Variables that boot set are only for this process; those that GKE sets in a pod with TPUs are
    # for all.
    ours = {
        key: value
        for key, value in values
        if os.environ.get(key) != value or key.upper() in boot.FOR_WORKER or key.startswith("TPU_")
    }
    hidden = attempt.secrets if is_without_secrets else {}
    return {key: value for key, value in ours.items() if key not in hidden}


def run_command(attempt: Attempt) -> Ending | None:
    """Run the job's command, or wait for its end where it does not run.

    Return how it ended; None on a machine that does not lead, once the next attempt begins.
    """
    this = attempt.job
    attempt.states.write(state="RUNNING", reason="")
    # After the installation: setuptools would take the link for a package of the repository.
    saving.link_results(repo_folder(this), this.spec.cwd or "")
    saving.note_start(attempt)
    if not this.cmd or not (attempt.leads or this.run_on == "each"):
        wait_for_the_end(attempt)
        return None
    attempt.say(f"Running: {this.cmd}")
    folder = repo_folder(this) / (this.spec.cwd or "")
    folder.mkdir(parents=True, exist_ok=True)  # one of the repo's without a file in it
    code = run_in(attempt, folder)
    if leftovers := attempt.runner.leftovers():
        attempt.say(leftovers.capitalize())
    if this.num_machines == 1 or this.run_on != "each" or attempt.stopping.ending:
        ending = judge(code)
        return replace(ending, reason=join(ending.reason, leftovers))
    peers.announce(attempt.member, phase="ENDED", exit_code=str(code), ended_at=str(job.clock()))
    if attempt.leads:
        return peers.wait_for_commands(attempt.member)
    wait_for_next_attempt(attempt)
    return None


def run_in(attempt: Attempt, folder: Path) -> int:
    """Run the job's command in a folder of this machine, or in a container; return its exit code.

    Meanwhile record its software, but not that of a container.
    """
    this = attempt.job
    if this.docker:
        variables = environment(attempt)
        given = {*this.env, *attempt.secrets}
        words = installation.container_command(
            this, folder, installation.names_in_container(variables, given)
        )
        try:
            return attempt.runner.keep(words, folder, variables)
        finally:
            installation.remove_container()
    variables = profile.variables(attempt, with_report(environment(attempt)))
    noted = start_thread(note_software, attempt)
    code = attempt.runner.keep([*this.shell, this.cmd], folder, variables)
    noted.join(NOTING)
    return code


def wait_for_the_end(attempt: Attempt) -> None:
    """Wait for the end of the job, or its next attempt, on a devbox or a machine that runs no
    command.
    """
    attempt.say("Ready")
    if attempt.job.idle_seconds and attempt.leads:
        end_when_idle(attempt)
    elif attempt.job.idle_seconds:
        peers.report_use(attempt.member, attempt.stopping.event.wait)
    wait_for_next_attempt(attempt)


def wait_for_next_attempt(attempt: Attempt) -> None:
    """Wait until the job is in another attempt; raise Stopped if it is to end."""
    while not attempt.is_behind:
        attempt.stopping.pause(POLL)


def end_when_idle(attempt: Attempt) -> None:
    """Wait until the devbox has been idle for too long, and end it."""

    def warn(left: float) -> None:
        minutes = max(left / 60, 1)
        text = (
            f"berg: this devbox is idle and {ends} itself in {minutes:.0f} minutes, unless it is "
            f"used. {kept}"
        )
        attempt.say(text)
        usage.tell_terminals(text)
        if not attempt.member.is_alone:
            peers.announce(attempt.member, warning=f"{job.clock()} {text}")

    this = attempt.job
    ending = Ending("SUCCEEDED", f"idle for {plain.span(this.idle_seconds)}", is_chosen=True)
    ends, kept = "deletes", f"Only {RESULTS} is kept"
    if this.stops_when_idle:
        ending = replace(ending, state=STOPPED, is_chosen=False)
        ends, kept = "stops", "Its disk is kept"

    def is_used_elsewhere() -> bool:
        return attempt.hosting.is_busy() or peers.others_are_used(attempt.member)

    stopped = attempt.stopping.event.wait
    if usage.wait_until_idle(this.idle_seconds, stopped, warn, is_used_elsewhere, bool(this.tpu)):
        attempt.stop(ending)


def finish(attempt: Attempt, ending: Ending) -> None:
    """Upload the last results, write the final state, and delete the machines of the job."""
    ending = replace(ending, exit_code=shell_exit_code(ending.exit_code))
    if ending.state == "FAILED":
        reason = ending.reason + full_disk()
        if ending.exit_code is not None:  # the command's
            reason += installation.missing_module(attempt.machine.log, attempt.job.installation)
        ending = replace(ending, reason=reason)
    if attempt.machine.box:
        ending = end_of_box(attempt, ending)
        attempt.hosting.stop()
    saving.stop_mirrors(attempt)
    try:
        begin_upload(attempt, ending)
        if attempt.earlier and attempt.begins_here:
            uploads = saving.of_lost_machine(attempt)
        else:
            uploads = saving.save(attempt, ending.reason)
        attempt.is_saved = uploads.is_whole
        if not attempt.machine_goes:  # else its last state is written first
            attempt.hosting.wait()
        # Once the other machines have uploaded their results.
        seconds = saving.seconds_for_last_words(attempt)
        last = attempt.insist(lambda: conclude(attempt, ending, uploads), seconds)
        if last:
            attempt.insist(lambda: attempt.states.write(**vars(last)), seconds)
        else:
            attempt.insist(attempt.states.flush, seconds)
    except Ended as error:
        attempt.hosting.wait()
        leave(attempt, str(error))
        return
    attempt.hosting.wait()
    release_machines(attempt)


def end_of_box(attempt: Attempt, ending: Ending) -> Ending:
    """Return how a devbox ends: unless a user chose its end, it stops and keeps its disk; one that
    Google cannot stop stays on.
    """
    is_usual = ending.state in (STOPPED, "ENDED") or attempt.machine_goes
    if is_usual or attempt.is_deletion_chosen:
        return ending
    ending = replace(ending, reason=f"{ending.reason}; {attempt.machine.way_in()}")
    if attempt.machine.box == boot.STOPS:
        ending = replace(ending, state=STOPPED)
        attempt.stopping.ending = ending  # the next start continues from it
    return ending


def begin_upload(attempt: Attempt, ending: Ending) -> None:
    """Write that the job uploads its last results, and tell the other machines of a failure."""
    # A machine that Google takes needs every second for the results, but what ended stays ended.
    if attempt.has_ended or not attempt.machine_goes:
        attempt.states.write(
            soon=True,
            state="UPLOADING",
            ending=ending.state,
            exit_code=ending.exit_code,
            reason=ending.reason,
            missing=0,
            missing_since="",
            uploading_since=job.now(),
        )
    if not attempt.leads and ending.state != "ENDED":
        phase = "GONE" if attempt.is_re_created else "FAILED"
        attempt.insist(lambda: peers.announce(attempt.member, phase=phase, reason=ending.reason), 1)


def conclude(attempt: Attempt, ending: Ending, uploads: Uploads) -> State:
    """Wait for the other machines, log how the job ended, and return its last state.

    `uploads` is what this machine uploaded.
    """
    learn_why_it_shuts_down(attempt)
    restart = attempt.restart()
    others_continue = attempt.leads and restart
    if not (attempt.member.is_alone or others_continue):
        ending, uploads = wait_for_others(attempt, ending, uploads)
    synced_until = attempt.mirrors.results.synced_until or attempt.state.synced_until
    uploads = replace(uploads, synced_until=synced_until)
    if attempt.leads:
        knows_all = attempt.member.is_alone and not attempt.earlier
        uploads = replace(uploads, elsewhere=attempt.mirrors.results.elsewhere(alone=knows_all))
    announce_end(attempt, ending, uploads, restart)
    kept = announce_keeping(attempt, ending, uploads, restart)
    uploads = replace(uploads, log_is_whole=saving.send_log(attempt))
    if attempt.leads and attempt.job.has_secret and not attempt.sweep and not restart:
        attempt.insist(lambda: secret.delete(attempt.bucket.config, attempt.name), 1)
    last = decide(attempt.state, ending, uploads, restart, job.now())
    return replace(last, **kept)


def announce_keeping(
    attempt: Attempt, ending: Ending, uploads: Uploads, restart: Restart | None
) -> dict[str, Any]:
    """Log until when the machines of a job that ended so are kept, if they are; return the fields
    of the state.

    Google deletes them at their time limit in any case.
    """
    spec, seconds, is_warm = attempt.job.spec, 0.0, False
    ending = after_uploads(ending, uploads)
    if ending.state == "FAILED" and spec.keep_failed:
        left = attempt.job.max_run_seconds - (time.monotonic() - attempt.states.began)
        seconds = max(min(spec.keep_failed, left), 0)
    elif ending.state in ("SUCCEEDED", "FAILED") and spec.keep_warm and uploads.are_whole:
        seconds, is_warm = warm.seconds_left(attempt), True
    if restart or attempt.machine_goes or not seconds:
        return {}
    kept_until = job.after(seconds)
    if attempt.leads:
        what = "Warm for another job" if is_warm else "Kept"
        attempt.say(
            f"{what} until {kept_until}:  berg {'kill' if is_warm else 'ssh'} {attempt.name}"
        )
    return {"kept_until": kept_until, "is_warm": is_warm}


def wait_for_others(attempt: Attempt, ending: Ending, uploads: Uploads) -> tuple[Ending, Uploads]:
    """Tell the other machines what this one uploaded. Wait for their uploads if this one leads,
    else for the leader's final state; return how the job ended, and what all uploaded.
    """
    member = attempt.member
    if not attempt.leads:  # once all have uploaded, the leader deletes their machines
        saving.send_log(attempt)
    uploads = saving.conclude_together(attempt, uploads)
    sent = saving.how_it_ends(attempt)
    uploaded = "all" if uploads.is_whole else "part"
    peers.announce(member, sent=sent, uploaded=uploaded, lost=uploads.lost)
    if attempt.is_re_created:
        return ending, uploads
    if not attempt.leads and not peers.wait_for_end(member, attempt.is_over):
        # From now on this machine leads.
        absence = peers.absence(member, peers.first_machine(member))
        if ending.state == "ENDED":
            failed = replace(ending, state="FAILED", reason=absence)
            ending = attempt.earlier_ending() or failed
    if not attempt.leads:
        return ending, uploads
    lost, are_whole = peers.wait_for_uploads(member, functools.partial(saving.note_left, attempt))
    return ending, replace(uploads, others_lost=lost, others_are_whole=are_whole)


def announce_end(
    attempt: Attempt, ending: Ending, uploads: Uploads, restart: Restart | None
) -> None:
    """Log how the job ended, and notify the webhook."""
    ending = after_uploads(ending, uploads)
    reason, how = ending.reason, "restarts on another machine"
    if restart and restart.state == STOPPED:
        how = "is stopped, and its disk is kept"
    if restart == TO_FINISH:
        how = "finishes its upload when the machine is there again"
    if not restart:
        reason, how = final_reason(ending, uploads, attempt.state.lost), ending.state
    if uploads.elsewhere:
        own = f"berg_results/{attempt.job.results_dir}"
        attempt.say(f"Results that are not in {own}: {uploads.elsewhere}")
    if attempt.leads:
        text = f"Job {attempt.name} {how}"
        attempt.say(f"{text}: {reason}" if reason else text)
    if not restart:
        watchdogs.of_job(attempt, replace(ending, reason=reason))


def release_machines(attempt: Attempt) -> None:
    """Delete the machines of a job that has ended, unless they are kept or take another job."""
    this, machine = attempt.job, attempt.machine
    if attempt.sweep:
        attempt.clear()
    if attempt.sweep or this.on:
        return
    if attempt.state.state == STOPPED:
        machine.turn_off()
        return
    restarts = attempt.state.state == "SUBMITTED" or attempt.restart() is not None
    if restarts or (attempt.is_re_created and not attempt.state.final):
        if attempt.stopping.ending in (PREEMPTED, SLOW_NETWORK):
            delete_soon(machine)
        return
    if not this.spec.no_kill:
        if attempt.state.kept_seconds:
            keep(attempt)
        delete_machines(attempt)


def keep(attempt: Attempt) -> None:
    """Keep this machine on for people (--keep-failed), or for another job, which then begins
    (--keep-warm).
    """
    this, state = attempt.job, attempt.state
    if state.is_warm and warm.has_next(attempt):
        sys.exit(boot.ANOTHER_JOB)
    if not state.is_warm:
        given = variables_of_logins(attempt, not this.spec.secrets_too)
        logins.equip_shells(given, repo_folder(this) / (this.spec.cwd or ""))
        attempt.machine.hold(state.kept_seconds)


def delete_machines(attempt: Attempt) -> None:
    """Delete the machines of a job that has ended; keep a devbox unless a user deleted it."""
    this, machine = attempt.job, attempt.machine
    if machine.box and not attempt.is_deletion_chosen:
        machine.keep()
        return
    if attempt.leads and this.num_machines > 1 and not this.is_replaced:
        attempt.insist(lambda: attempt.member.host.delete_peers(this), saving.UNREACHABLE)
    # The deletion sends SIGTERM, when nothing is left to do.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    machine.insist_on_deletion(functools.partial(watchdogs.of_machine, attempt), is_chosen=True)


def leave(attempt: Attempt, why: str) -> None:
    """Stop without writing the state, which is missing or was written elsewhere; save the results
    all the same.
    """
    attempt.say(why)
    attempt.runner.end()
    saving.stop_mirrors(attempt)
    with contextlib.suppress(Exception):
        saving.save_alone(attempt, why)
    if not attempt.sweep:
        attempt.machine.insist_on_deletion()


def take(machine: boot.Machine, sweep: str, before: Attempt | None) -> Attempt | None:
    """Claim the next job of a sweep that no machine has; None if there is none left."""
    known = stored_states(machine, sweep)
    names = list(known)
    number = int(machine.name.rpartition("-")[2]) % max(len(names), 1)
    # Machines begin at different jobs, so that few try the same one.
    for name in names[number:] + names[:number]:
        if known[name].state != "SUBMITTED":
            continue
        attempt = Attempt(name, sweep)
        try:
            attempt.read_first_state()
            if attempt.state.state != "SUBMITTED":
                continue
            attempt.claim()
        except (Ended, NoJob, Damaged):
            continue
        (boot.BERG / "job").write_text(name)  # for a worker that comes after one that died
        if before:
            attempt.mirrors.results.take_over(before.mirrors.results.manifest)
        return attempt
    return None


def stored_states(machine: boot.Machine, sweep: str) -> dict[str, State]:
    """Return the states of a sweep's jobs by their names, without damaged ones."""
    found = states.of_sweep(Bucket(settings_of(machine)), sweep)
    return {each.name: each.state for each in found if not each.is_damaged}


@click.group()
def main() -> None:
    """The worker: Berg on its machines.

    \b
    berg-worker run digits-1121-0930-x7k
    """
    raise_limits()
    api.forbidden_passes_until = time.monotonic() + boot.FORBIDDEN_SECONDS


@main.command(name="run")
@click.argument("name", metavar="JOB")
def run_(name: str) -> None:
    """Run JOB on this machine, then delete the machine.

    \b
    berg-worker run digits-1121-0930-x7k
    """
    become_worker()
    run(attempt_at(name))


def attempt_at(name: str, sweep: str = "") -> Attempt:
    """Return this machine's attempt at a job; without a job, delete the machine and exit."""
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


def become_worker() -> None:
    """Make this process the worker of its machine, on which no command runs now."""
    if not is_alone():
        raise BergError("another worker runs on this machine")
    COMMAND_FILE.unlink(missing_ok=True)
    if RUNNING.exists():
        RUNNING.rename(LOST_POWER)


@main.command()
@click.argument("name", metavar="SWEEP")
def sweep(name: str) -> None:
    """Run the jobs of SWEEP that are left, one after another, then delete the machine.

    \b
    berg-worker sweep lr-1121-0930-x7k
    """
    become_worker()
    attempt, machine = None, boot.this_machine()
    while attempt := take(machine, name, attempt):
        run(attempt)
        if attempt.machine_goes:
            delete_soon(machine)
            return
    machine.say(f"No job of {name} is left")
    known = stored_states(machine, name)
    has_secrets = any(state.job.secrets for state in known.values())
    if has_secrets and all(state.final for state in known.values()):
        watchdogs.of_sweep(settings_of(machine), name, known, machine.say)
    machine.insist_on_deletion()


@main.command()
def image() -> None:
    """Prepare this machine's disk for an image of it.

    \b
    berg-worker image
    """
    installation.prepare_image(boot.this_machine())


@main.command()
@click.argument("name", metavar="JOB")
@click.argument("reason")
@click.argument("sweep", default="")
def salvage(name: str, reason: str, sweep: str) -> None:
    """Save the results of JOB after its worker died, and record why it failed."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        end_group(int(COMMAND_FILE.read_text()), GRACE, ENDING_FILE)
        installation.remove_container()
    RUNNING.unlink(missing_ok=True)  # what the command had open was noted as it was ended
    attempt = attempt_at(name, sweep)
    state = attempt.state
    if state.final:
        if not sweep:
            attempt.machine.insist_on_deletion()
        return
    with contextlib.suppress(BergError):
        saving.read_job(attempt)
        attempt.member.node = peers.describe(attempt.member)
        attempt.mirrors.results.journal.machine = str(attempt.member.node.rank)
    attempt.mirrors.results.is_halfway = attempt.is_blank or attempt.lost_power
    with contextlib.suppress(Exception):
        watchdogs.read_secrets(attempt)
    if not attempt.member.is_alone:
        start_thread(peers.heartbeat, attempt.member)
    ending = attempt.earlier_ending() or Ending("FAILED", reason, state.exit_code)
    if ending.state == STOPPED:
        attempt.stopping.request(ending)
    finish(attempt, ending)

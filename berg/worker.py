"""What a machine does with its job: restore the code, install, run, mirror the results, delete itself.

The phases stand in `run`, in their order; attempt.py holds what they share.
"""

import contextlib
import os
import shutil
import signal
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

from berg import BergError, boot

try:
    import click
    import git  # noqa: F401
    import google.auth
    import google.cloud.storage  # noqa: F401
except ImportError:
    sys.exit(boot.DEPENDENCIES_MISSING)

from berg import cluster, idle, job, snapshot
from berg.attempt import COMMAND_FILE, GRACE, PREEMPTED, RESULTS, Attempt, Ended, Stopped, end_group, full_disk, judge
from berg.surroundings import InstallationFailed, environment, install, install_commands, repo_folder

ROOT = boot.ROOT
# A machine that goes down tells all its processes at once; whose doing it is, its metadata may tell.
SHUT_DOWN = ("KILLED", "the machine was shut down from outside")


def run(name: str) -> None:
    """See a job through, from its metadata to the deletion of this machine."""
    attempt = Attempt(name)
    if attempt.state.final:
        attempt.say(f"Job {name} is {attempt.state.state} already; nothing to do")
        attempt.machine.delete()
        return
    signal.signal(signal.SIGTERM, lambda *_: attempt.stop(*SHUT_DOWN))
    attempt.mirror_log()
    exit_code = None
    try:
        begin(attempt)
        restore(attempt)
        meet(attempt)
        install(attempt)
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
        traceback.print_exc()  # to the serial console
        state, reason = "FAILED", f"berg's worker failed: {type(error).__name__}: {error}"
    if attempt.outcome == SHUT_DOWN and was_preempted():
        attempt.outcome = PREEMPTED
    finish(attempt, *(attempt.outcome or (state, reason)), exit_code)


def was_preempted() -> bool:
    with contextlib.suppress(OSError):
        return boot.request(f"{boot.METADATA}instance/preempted", headers=boot.FLAVOR, attempts=1)[0] == b"TRUE"
    return False


def begin(attempt: Attempt) -> None:
    """Read the job, and say that this machine has it."""
    machine = attempt.machine
    attempt.write_state(state="STARTING", machine=machine.name, zone=machine.zone, started_at=job.now())
    data = attempt.bucket.read(job.metadata_path(attempt.name))
    if data is None:
        raise BergError(f"gs://{attempt.bucket.name}/{job.metadata_path(attempt.name)} is missing")
    attempt.job = job.from_json(data, attempt.name)
    install_commands()
    attempt.node = cluster.describe(attempt)
    attempt.start_thread(attempt.watch)
    attempt.start_thread(attempt.limit_time)
    attempt.reachable = attempt.start_thread(become_reachable, attempt)


def become_reachable(attempt: Attempt) -> None:
    """Let people and the job's other machines in; nothing of the job itself waits for it."""
    try:
        if attempt.job.num_machines > 1 and attempt.leads:
            cluster.make_node_key(attempt.node)
        cluster.open_to_ssh(attempt, attempt.node)
        cluster.announce(attempt)
    except Exception as error:
        attempt.say(f"This machine cannot be reached by ssh: {error}")
        if attempt.job.num_machines > 1:
            attempt.stop("FAILED", f"{attempt.machine.name} cannot be reached by the others: {error}")


def restore(attempt: Attempt) -> None:
    """Check out the snapshot, and leave a copy of the job beside its results."""
    this = attempt.job
    packs = boot.BERG / "packs"
    copy = RESULTS / this.results_dir / "berg_job_metadata.json"
    if copy.exists() and not this.cmd:
        attempt.say("Left the code as it was before the reboot: people change it here")
        return

    def bring(name: str) -> None:
        from google.api_core import exceptions

        try:
            attempt.bucket.download(name, packs / name.replace("/", "%"))
        except exceptions.NotFound:
            raise BergError(f"commit {this.git_snapshot} is missing: no gs://{attempt.bucket.name}/{name}") from None

    with ThreadPoolExecutor() as pool:
        list(pool.map(bring, snapshot.all_packs(this.snapshot)))
    folder = repo_folder(this)
    snapshot.restore(this.snapshot, folder, lambda name: (packs / name.replace("/", "%")).open("rb"))
    shutil.rmtree(packs)
    attempt.say(f"Checked out {this.git_snapshot[:12]} of {this.repo_name} to {folder}")
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(this.to_json())


def meet(attempt: Attempt) -> None:
    """In a cluster, wait for the other machines and get to know them."""
    if attempt.job.num_machines > 1:
        attempt.reachable.join()
        attempt.nodes = cluster.gather(attempt)
        attempt.start_thread(cluster.watch, attempt)
    ours = {key: value for key, value in environment(attempt).items() if os.environ.get(key) != value}
    cluster.introduce(attempt.nodes or [attempt.node], attempt.node, ours)


def run_command(attempt: Attempt) -> tuple[int, str]:
    """Run the job's command where it is to run, or wait for its end; an exit code, and whose it is."""
    this = attempt.job
    if this.num_machines > 1:
        cluster.get_ready(attempt)
    attempt.write_state(state="RUNNING")
    attempt.mirror_results()
    if not this.cmd or not (attempt.leads or this.run_on == "each"):
        attempt.say("Ready")
        if this.idle_seconds and attempt.leads:
            rest(attempt)
        elif this.idle_seconds:
            cluster.tell_use(attempt)
        attempt.pause()
    attempt.say(f"Running: {this.cmd}")
    code = attempt.execute(["bash", "-c", this.cmd], cwd=repo_folder(this), env=environment(attempt))
    if this.num_machines > 1 and this.run_on == "each" and not attempt.outcome:
        if attempt.leads:
            return cluster.wait_for_commands(attempt, code)
        cluster.announce(attempt, phase="ENDED", exit_code=str(code))
        attempt.pause()
    return code, ""


def rest(attempt: Attempt) -> None:
    """Wait until the devbox has been idle for too long, and end it."""

    def warn(left: float) -> None:
        text = f"berg: this devbox is idle and deletes itself in {max(left / 60, 1):.0f} minutes, unless it is used"
        attempt.say(text)
        idle.tell_terminals(text)

    if idle.wait(attempt.job.idle_seconds, attempt.stopped.wait, warn, lambda: cluster.others_are_used(attempt)):
        attempt.stop("SUCCEEDED", f"idle for {attempt.job.idle_seconds / 3600:.2g} h")


def finish(attempt: Attempt, state: str, reason: str, exit_code: int | None) -> None:
    """Upload what is left, write the final state, and delete the machines of the job."""
    code = exit_code if exit_code is None or exit_code >= 0 else 128 - exit_code
    reason += full_disk() if state == "FAILED" else ""
    attempt.stop_mirrors()
    in_cluster = attempt.job.num_machines > 1
    try:
        attempt.write_state(state="UPLOADING", exit_code=code, reason=reason)
        if not attempt.leads and state != "ENDED":
            cluster.announce(attempt, phase="FAILED", reason=reason)
        attempt.results.finish(attempt.say)
        for path, why in attempt.results.refused.items():
            attempt.say(f"Not in the bucket: {path}: {why}")
        if attempt.leads:
            attempt.say(f"Job {attempt.name} {state}{': ' + reason if reason else ''}")
        attempt.log.finish(print)
        if in_cluster:
            cluster.announce(attempt, uploaded="yes")
            if not attempt.leads and not cluster.wait_for_end(attempt):
                state, reason = "FAILED", "the machine that led the job is gone"
            if attempt.leads:
                cluster.wait_for_uploads(attempt)
        until = attempt.results.synced_until
        attempt.write_state(state=state, reason=reason, finished_at=job.now(), synced_until=until)
    except Ended as error:
        leave(attempt, str(error))
        return
    if attempt.job.kill_instance_after_job:
        if in_cluster and attempt.leads:
            cluster.delete_others(attempt)
        attempt.machine.delete()


def leave(attempt: Attempt, why: str) -> None:
    """Stop without a word in the state: it belongs to somebody else. What was written is saved all the same."""
    attempt.say(why)
    attempt.end_process()
    attempt.stop_mirrors()
    if attempt.read_state().final:  # else another worker has the job, and its results
        attempt.results.finish(attempt.say)
        attempt.log.finish(print)
    attempt.machine.delete()


@click.group()
def main() -> None:
    """What berg runs on its machines.

    \b
    berg-worker run digits-1121-0930-x7k
    """


@main.command(name="run")
@click.argument("name", metavar="JOB")
def run_(name: str) -> None:
    """Run JOB on this machine, then delete the machine.

    \b
    berg-worker run digits-1121-0930-x7k
    """
    run(name)


@main.command()
@click.argument("name", metavar="JOB")
@click.argument("reason")
def salvage(name: str, reason: str) -> None:
    """Save the results of JOB after its worker died, and record why it failed."""
    attempt = Attempt(name)
    with contextlib.suppress(FileNotFoundError, ValueError):
        end_group(int(COMMAND_FILE.read_text()), GRACE)
    if not attempt.state.final:
        with contextlib.suppress(BergError):
            attempt.job = job.from_json(attempt.bucket.read(job.metadata_path(name)) or b"", name)
        finish(attempt, "FAILED", reason, None)
    else:
        attempt.machine.delete()

"""What a machine does with its job: restore the code, install, run, mirror the results, delete itself.

The phases stand in `run`, in their order; attempt.py holds what they share.
"""

import contextlib
import os
import re
import shutil
import signal
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from berg import BergError, boot

try:
    import click
    import git  # noqa: F401
    import google.auth
    import google.cloud.storage  # noqa: F401
except ImportError:
    sys.exit(boot.DEPENDENCIES_MISSING)

from berg import job, snapshot
from berg.attempt import COMMAND_FILE, GRACE, RESULTS, Attempt, Ended, Stopped, end_group

ROOT = boot.ROOT
PYTHONS = (ROOT / "anaconda3/bin", Path("/opt/conda/bin"))


def run(name: str) -> None:
    """See a job through, from its metadata to the deletion of this machine."""
    attempt = Attempt(name)
    if attempt.state.final:
        attempt.say(f"Job {name} is {attempt.state.state} already; nothing to do")
        attempt.machine.delete()
        return
    signal.signal(signal.SIGTERM, lambda *_: attempt.stop("KILLED", "the machine was shut down from outside"))
    attempt.mirror_log()
    exit_code = None
    try:
        begin(attempt)
        restore(attempt)
        install(attempt)
        exit_code = run_command(attempt)
        state, reason = judge(exit_code)
    except Stopped:
        state, reason = "KILLED", ""
    except Ended as error:
        leave(attempt, str(error))
        return
    except BergError as error:
        state, reason = "FAILED", error.message
    except Exception as error:
        traceback.print_exc()  # to the serial console
        state, reason = "FAILED", f"berg's worker failed: {type(error).__name__}: {error}"
    finish(attempt, *(attempt.outcome or (state, reason)), exit_code)


def begin(attempt: Attempt) -> None:
    """Read the job, and say that this machine has it."""
    machine = attempt.machine
    attempt.write_state(state="STARTING", machine=machine.name, zone=machine.zone, started_at=job.now())
    data = attempt.bucket.read(job.metadata_path(attempt.name))
    if data is None:
        raise BergError(f"gs://{attempt.bucket.name}/{job.metadata_path(attempt.name)} is missing")
    attempt.job = job.from_json(data, attempt.name)
    attempt.start_thread(attempt.watch)
    attempt.start_thread(attempt.limit_time)


def repo_folder(this: job.Job) -> Path:
    return ROOT / "code" / this.repo_name


def restore(attempt: Attempt) -> None:
    """Check out the snapshot, and leave a copy of the job beside its results."""
    this = attempt.job
    packs = boot.BERG / "packs"

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
    copy = RESULTS / this.results_dir / "berg_job_metadata.json"
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(this.to_json())


def python_path() -> str:
    """PATH with the image's python first: conda's where there is one."""
    folders = [str(folder) for folder in PYTHONS if (folder / "python").exists()]
    path = ":".join([*folders, os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")])
    python3 = shutil.which("python3", path=path)
    if python3 and not shutil.which("python", path=path):  # Debian has only python3
        (boot.BERG / "bin").mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (boot.BERG / "bin/python").symlink_to(python3)
        path += f":{boot.BERG / 'bin'}"
    return path


def environment(attempt: Attempt) -> dict[str, str]:
    """The environment of the command: the machine's, the job's own, and berg's variables."""
    this, machine = attempt.job, attempt.machine
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("BERG_")},
        "HOME": str(ROOT),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "PATH": python_path(),
        "PYTHONUNBUFFERED": "1",
        **this.env,
        "BERG_JOB": this.job_name,
        "BERG_RESULTS_DIR": str(RESULTS / this.results_dir),
        "BERG_BUCKET": machine.bucket,
        "BERG_REPO_DIR": str(repo_folder(this)),
        "BERG_NUM_GPUS": str(this.gpus_per_machine),
        "BERG_ATTEMPT": str(attempt.state.attempt),
        "BERG_NODE_RANK": "0",
        "BERG_NUM_NODES": "1",
        "BERG_HOSTS": machine.name,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


def install(attempt: Attempt) -> None:
    """Install what the repo says it needs into the image's python; raises BergError if that fails."""
    this = attempt.job
    folder = repo_folder(this)
    steps = []
    if this.install_script:
        steps.append(["bash", "-e", this.install_script])
    if requirements := requirement_arguments(folder):
        # Compiling all of a package takes as long as installing it; python compiles what is imported.
        steps.append(["python", "-m", "pip", "install", "--no-input", "--no-compile", *requirements])
    if not steps:
        return
    attempt.write_state(state="INSTALLING")
    # The machine is the user's to install into, also where its distribution guards its python.
    variables = {**environment(attempt), "PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    for step in steps:
        attempt.say(f"Installing: {' '.join(step)}")
        code = attempt.execute(step, cwd=folder, env=variables)
        if attempt.outcome:
            raise Stopped
        if code:
            raise BergError(f"the installation failed with exit code {code}: {' '.join(step)}")


def requirement_arguments(folder: Path) -> list[str]:
    """What pip is to install for a repo; nothing for one that declares nothing."""
    arguments = ["-r", "requirements.txt"] if (folder / "requirements.txt").exists() else []
    project = folder / "pyproject.toml"
    is_package = project.exists() and re.search(r"^\[(project|build-system)\]", project.read_text(), re.M)
    if (folder / "setup.py").exists() or is_package:
        arguments += ["-e", "."]
    return arguments


def run_command(attempt: Attempt) -> int:
    this = attempt.job
    attempt.write_state(state="RUNNING")
    attempt.mirror_results()
    attempt.say(f"Running: {this.cmd}")
    return attempt.execute(["bash", "-c", this.cmd], cwd=repo_folder(this), env=environment(attempt))


def judge(exit_code: int) -> tuple[str, str]:
    """Final state and reason for the exit code of a command that nobody stopped."""
    if exit_code == 0:
        return "SUCCEEDED", ""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number in signal.valid_signals():
        reason = f"the command was killed by {signal.Signals(number).name}"
        if number == signal.SIGKILL:
            reason += ", which is often the kernel when memory runs out"
    else:
        reason = f"the command failed with exit code {exit_code}"
    for folder in (RESULTS, ROOT, Path("/tmp")):
        if folder.exists() and shutil.disk_usage(folder).free < 1 << 20:
            reason += f"; the machine's disk is full ({folder}): ask for more with --disk-gb"
            break
    return "FAILED", reason


def finish(attempt: Attempt, state: str, reason: str, exit_code: int | None) -> None:
    """Upload what is left, write the final state, and delete this machine."""
    code = exit_code if exit_code is None or exit_code >= 0 else 128 - exit_code
    attempt.stop_mirrors()
    try:
        attempt.write_state(state="UPLOADING", exit_code=code, reason=reason)
        attempt.results.finish(attempt.say)
        for path, why in attempt.results.refused.items():
            attempt.say(f"Not in the bucket: {path}: {why}")
        attempt.say(f"Job {attempt.name} {state}{': ' + reason if reason else ''}")
        attempt.log.finish(print)
        until = attempt.results.synced_until
        attempt.write_state(state=state, finished_at=job.now(), synced_until=until)
    except Ended as error:
        leave(attempt, str(error))
        return
    if attempt.job.kill_instance_after_job:
        attempt.machine.delete()


def leave(attempt: Attempt, why: str) -> None:
    """Stop without a word in the state: it belongs to somebody else."""
    attempt.say(why)
    attempt.done.set()
    attempt.end_process()
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

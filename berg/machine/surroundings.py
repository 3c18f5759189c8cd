"""What a command finds on its machine: the image's python, variables, and what its repo asked to
install.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from berg import BergError, job
from berg.code import requirements
from berg.machine import boot, cluster
from berg.machine.attempt import Attempt
from berg.machine.process import RESULTS
from berg.machine.stopping import Stopped

BIN = boot.BERG / "bin"
PROGRAM = Path(__file__).parent / "program"  # on the path of the pythons of a command
# What installs the driver at the first boot of one of Google's older images, and for how long.
DRIVER_SCRIPT = Path("/opt/deeplearning/install-driver.sh")
DRIVER_SECONDS = 900
QUIET = subprocess.DEVNULL
# Variables of the worker, and of the unit that it runs in, which are none of a command's.
OURS = ("BERG_", "DISABLE_GCS_", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID")
# The machine is the user's to install into, also where its distribution guards its python.
INSTALLING = {
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "UV_BREAK_SYSTEM_PACKAGES": "1",
}
PYTHONS = (boot.ROOT / "anaconda3/bin", Path("/opt/conda/bin"))
PANES = f"""#!/bin/sh
# tmux with a shell, the log, and the monitors that this machine has.
tmux has-session -t berg 2>/dev/null && exec tmux attach -t berg
cd {boot.ROOT}/code/* 2>/dev/null || cd {boot.ROOT}
tmux new-session -d -s berg || exit
tmux split-window -h -t berg "tail -n +1 -F {boot.BERG}/logs/*.log"
if command -v nvtop >/dev/null; then tmux split-window -v -t berg nvtop
elif command -v nvidia-smi >/dev/null; then tmux split-window -v -t berg "watch -n 1 nvidia-smi"; fi
if command -v htop >/dev/null; then tmux split-window -v -t berg htop
elif command -v top >/dev/null; then tmux split-window -v -t berg top; fi
tmux select-layout -t berg tiled
tmux select-pane -t berg:0.0
exec tmux attach -t berg
"""


def install_commands(machine: boot.Machine) -> None:
    """Put `mpi` and `tt` where a command and a login find them, and berg itself where `berg
    tensorboard --on` does.
    """
    BIN.mkdir(exist_ok=True)
    folders = [path for path in sys.path if path.startswith(str(boot.BERG))]
    start = f"#!{sys.executable}\nimport os, sys; sys.path[:0] = {folders!r}"
    (BIN / "mpi").write_text(f"{start}; from berg.machine.mpi import main; main()\n")
    settings = {
        "BERG_PROJECT": machine.project,
        "BERG_BUCKET": machine.bucket,
        "BERG_ENDPOINT": machine.endpoint,
    }
    settings |= {"BERG_HOME": str(boot.BERG / "home")}
    settings |= {key: value for key, value in os.environ.items() if key.startswith("GCE_METADATA_")}
    (boot.BERG / "berg").write_text(
        f"{start}; os.environ.update({settings!r}); from berg.cli import main; main()\n"
    )
    (boot.BERG / "berg").chmod(0o755)
    (BIN / "tt").write_text(PANES)
    for name in ("mpi", "tt"):
        (BIN / name).chmod(0o755)
        with contextlib.suppress(OSError):  # there already, or not ours to write
            Path("/usr/local/bin", name).symlink_to(BIN / name)


def repo_folder(this: job.Job) -> Path:
    return boot.ROOT / "code" / this.repo_name


def python_path() -> str:
    """PATH with the image's python first: conda's where there is one."""
    folders = [str(folder) for folder in PYTHONS if (folder / "python").exists()]
    path = ":".join([*folders, os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"), str(BIN)])
    python3 = shutil.which("python3", path=path)
    if python3 and not shutil.which("python", path=path):  # Debian has only python3
        BIN.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (BIN / "python").symlink_to(python3)
    return path


def environment(attempt: Attempt) -> dict[str, str]:
    """The environment of the command: the machine's, the job's own, and berg's variables."""
    this, machine = attempt.job, attempt.machine
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith(OURS)},
        "HOME": str(boot.ROOT),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "PATH": python_path(),
        "PYTHONUNBUFFERED": "1",
        **INSTALLING,
        "BERG_JOB": this.job_name,
        "BERG_RESULTS_DIR": str(RESULTS / this.results_dir),
        "BERG_BUCKET": machine.bucket,
        "BERG_REPO_DIR": str(repo_folder(this)),
        "BERG_DATA_DIR": str(boot.ROOT / "data"),
        "BERG_NUM_GPUS": str(this.gpus_per_machine),
        "BERG_PROFILER_PORT": str(attempt.profiler_port),
        "BERG_ATTEMPT": str(attempt.member.attempt),
        **cluster.environment(attempt.member),
        **{key: os.environ[key] for key in ("BERG_CACHE_URL",) if key in os.environ},  # of pods
        **this.env,
        **attempt.secrets,
    }


def with_report(values: dict[str, str]) -> dict[str, str]:
    """Return the environment of a command, with what lets its pythons import berg.report."""
    path = filter(None, [values.get("PYTHONPATH"), str(PROGRAM)])
    return {**values, "PYTHONPATH": os.pathsep.join(path)}


class InstallationFailed(BergError):
    def __init__(self, code: int, step: list[str]):
        super().__init__(f"the installation failed with exit code {code}: {' '.join(step)}")
        self.code = code


def await_driver(attempt: Attempt) -> None:
    """Wait while an image installs the driver of its GPUs; raises InstallationFailed if it never
    answers.
    """
    if not (attempt.job.gpus_per_machine and DRIVER_SCRIPT.exists()) or has_driver():
        return
    attempt.say("Waiting for the driver of the GPUs, which this image installs at its first boot")
    until = time.monotonic() + DRIVER_SECONDS
    while not has_driver():
        if attempt.stopping.ending:
            raise Stopped
        if time.monotonic() > until:
            raise InstallationFailed(1, ["nvidia-smi"])
        time.sleep(2)


def has_driver() -> bool:
    """Return whether the driver of the GPUs answers."""
    try:
        return subprocess.call(["nvidia-smi"], stdout=QUIET, stderr=QUIET) == 0
    except OSError:
        return False


def provide_pip(attempt: Attempt, variables: dict[str, str]) -> None:
    """Install pip with apt-get where the image's python has none, as those for TPUs may not."""
    command = ["python", "-m", "pip", "--version"]
    with contextlib.suppress(OSError):  # pip's own step says what is wrong
        if subprocess.call(command, env=variables, stdout=QUIET, stderr=QUIET):
            boot.apt_install(attempt.machine, "python3-pip")


def pip_step(needed: list[str]) -> list[str]:
    """Return the command that installs what a repo needs.

    Compiling all of a package takes as long as installing it; python compiles what is imported.
    """
    quietly = ["--no-input", "--no-compile", "--progress-bar=off"]
    return ["python", "-m", "pip", "install", *quietly, *needed]


def install(attempt: Attempt) -> None:
    """Install what the repo says it needs into the image's python; raises InstallationFailed."""
    await_driver(attempt)
    this = attempt.job
    folder = repo_folder(this)
    steps = []
    if this.install_script:
        steps.append(["bash", "-e", this.install_script])
    needed = requirements.arguments(folder)
    if this.docker:  # its image has what it needs
        needed = []
    if needed:
        steps.append(pip_step(needed))
    if not steps:
        return
    attempt.states.write(state="INSTALLING")
    if needed:
        provide_pip(attempt, environment(attempt))
    for step in steps:
        attempt.say(f"Installing: {' '.join(step)}")
        code = attempt.runner.execute(step, folder, environment(attempt))
        if attempt.stopping.ending:
            raise Stopped
        if code:
            raise InstallationFailed(code, step)

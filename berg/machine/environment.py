"""What a command finds on its machine: programs, variables, and the python with its repo's needs.
Also what software an attempt runs with: its python, the packages in it, and the GPUs' driver.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from berg import job
from berg.machine import boot, fabric, peers, scratch, uv
from berg.machine.attempt import Attempt
from berg.machine.process import FLIGHT, RESULTS

BIN = boot.BERG / "bin"
PROGRAM = Path(__file__).parent / "program"  # on the path of the pythons of a command
# Variables of the worker and of its unit, which a command does not get.
OURS = ("BERG_", "DISABLE_GCS_", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID")
# The user may install into the machine's python, also where its distribution protects it.
INSTALLING = {
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "UV_BREAK_SYSTEM_PACKAGES": "1",
}
# Say where PyTorch's flight recorder writes; the second is the first one's name before 2.9.
RECORDER = (
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
)
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

TIMEOUT = 60  # seconds for the python, and for the driver
LARGEST = 1 << 20  # characters of their answers that are kept
# Only names and versions: parsing all metadata takes seconds in Google's images.
ASK_PYTHON = """
import json, platform, re
from importlib import metadata
found = {}
for each in metadata.distributions():
    header = (each.read_text("METADATA") or each.read_text("PKG-INFO") or "").partition("\\n\\n")[0]
    fields = dict(re.findall("^(Name|Version): *(.+)$", header, re.MULTILINE))
    if len(fields) == 2:
        found[fields["Name"]] = fields["Version"]
print(json.dumps({"python": platform.python_version(), "packages": found}))
"""
ASK_DRIVER = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]


def install_commands(machine: boot.Machine) -> None:
    """Install `mpi`, `tt` and uv for commands and logins, and Berg for `berg tensorboard --on`."""
    BIN.mkdir(exist_ok=True)
    folders = [path for path in sys.path if path.startswith(str(boot.BERG))]
    start = f"#!{sys.executable}\nimport os, sys; sys.path[:0] = {folders!r}"
    settings = {
        "BERG_PROJECT": machine.project,
        "BERG_BUCKET": machine.bucket,
        "BERG_ENDPOINT": machine.endpoint,
        "BERG_HOME": str(boot.BERG / "home"),
        **{key: value for key, value in os.environ.items() if key.startswith("GCE_METADATA_")},
    }
    (boot.BERG / "berg").write_text(
        f"{start}; os.environ.update({settings!r}); from berg.cli import main; main()\n"
    )
    (boot.BERG / "berg").chmod(0o755)
    facts = {key: value for key, value in os.environ.items() if key.startswith("BERG_")}
    facts.pop("BERG_CLUSTER_KEY", None)
    uv.write_scripts(BIN, {**facts, **settings})
    (BIN / "mpi").write_text(f"{start}; from berg.machine.mpi import main; main()\n")
    (BIN / "tt").write_text(PANES)
    for name in ("mpi", "tt"):
        (BIN / name).chmod(0o755)
        with contextlib.suppress(OSError):  # it exists, or the folder cannot be written
            Path("/usr/local/bin", name).symlink_to(BIN / name)


def repo_folder(this: job.Job) -> Path:
    return boot.ROOT / "code" / this.repo_name


def python_path() -> str:
    """Return PATH with the image's python first: conda's where there is one."""
    folders = [str(folder) for folder in PYTHONS if (folder / "python").exists()]
    path = ":".join([*folders, os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"), str(BIN)])
    python3 = shutil.which("python3", path=path)
    if python3 and not shutil.which("python", path=path):  # Debian has only python3
        BIN.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (BIN / "python").symlink_to(python3)
    return path


def programs(what: job.Installation, repo: Path) -> dict[str, str]:
    """Return the variables by which programs find what was installed."""
    found = {"PATH": python_path(), "UV_CACHE_DIR": str(boot.ROOT / "berg_cache/uv")}
    if what.venv:
        venv = repo / what.venv
        found["PATH"] = f"{venv}/bin:{found['PATH']}"
        found |= {"VIRTUAL_ENV": str(venv), "UV_PROJECT_ENVIRONMENT": venv.name}
    if what.no_sync:
        found["UV_NO_SYNC"] = "1"
    return found


def environment(attempt: Attempt, secrets: dict[str, str] | None = None) -> dict[str, str]:
    """Return the variables of the command: the machine's, the job's and Berg's. With `secrets`
    those of another program, which sees these in place of the command's.
    """
    this, machine = attempt.job, attempt.machine
    what = job.Installation() if this.docker else this.installation
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith(OURS)},
        "HOME": str(boot.ROOT),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        **programs(what, repo_folder(this)),
        "PYTHONUNBUFFERED": "1",
        **INSTALLING,
        "BERG_JOB": this.job_name,
        "BERG_RESULTS_DIR": str(RESULTS / this.results_dir),
        "BERG_BUCKET": machine.bucket,
        "BERG_REPO_DIR": str(repo_folder(this)),
        "BERG_DATA_DIR": str(boot.ROOT / "data"),
        **({"BERG_SCRATCH_DIR": str(found)} if (found := scratch.folder()) else {}),
        "BERG_NUM_GPUS": str(this.gpus_per_machine),
        "BERG_PROFILER_PORT": str(attempt.profiler_port),
        "BERG_ATTEMPT": str(attempt.member.attempt),
        **(dict.fromkeys(RECORDER, FLIGHT) if this.gpus_per_machine else {}),
        **peers.environment(attempt.member),
        **fabric.variables(this, attempt.roce_faults),
        **{key: os.environ[key] for key in ("BERG_CACHE_URL",) if key in os.environ},  # of pods
        **this.env,
        **(attempt.secrets if secrets is None else secrets),
    }


def with_report(values: dict[str, str]) -> dict[str, str]:
    """Return the variables of a command, with which its pythons can import berg.report."""
    path = filter(None, [values.get("PYTHONPATH"), str(PROGRAM)])
    return {**values, "PYTHONPATH": os.pathsep.join(path)}


def place(path: str) -> Path:
    """Return a folder on this machine, whose /root may be another folder."""
    return boot.ROOT / path.removeprefix("/root/") if path.startswith("/root/") else Path(path)


def note(attempt: Attempt) -> None:
    """Write the software of an attempt next to its log; what does not answer is left out."""
    path = environment(attempt)["PATH"]
    answer = ask([shutil.which("python", path=path) or "python3", "-c", ASK_PYTHON])
    try:
        found = json.loads(answer)
    except ValueError:
        found = {}
    if driver := ask(ASK_DRIVER).split():
        found["driver"] = driver[0]
    with contextlib.suppress(OSError):  # a full disk, which the job reports
        attempt.software_file.write_text(json.dumps(found))


def ask(command: list[str]) -> str:
    """Return what a program prints; "" where it is missing or fails."""
    try:
        done = subprocess.run(
            command,
            cwd=boot.ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[:LARGEST] if done.returncode == 0 else ""

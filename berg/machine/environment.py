"""What a command finds on its machine: programs, variables, and the python with its repo's needs.
Also what software an attempt runs with: its python, the packages in it, and the GPUs' driver.

uv and uvx are scripts that download the programs when they are first called, so that only a job
that uses uv waits for it. The programs come from the bucket, or from the package index; their hash
is in Berg's code.
"""

import contextlib
import fcntl
import io
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import urllib.error
import zipfile
from pathlib import Path

from berg import BergError, job
from berg.code import dist
from berg.machine import boot, fabric, peers, scratch
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
UV_FOLDER = boot.BERG / f"uv-{dist.UV_VERSION}"  # of the programs
UV_PROGRAMS = ("uv", "uvx")
QUIET = subprocess.DEVNULL


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
    write_uv_scripts(BIN, {**facts, **settings})
    (BIN / "mpi").write_text(f"{start}; from berg.machine.logins import mpi; mpi()\n")
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


# --- uv and uvx


def write_uv_scripts(bin_folder: Path, settings: dict[str, str]) -> None:
    """Write the scripts; `settings` are the variables that describe this machine."""
    folders = [path for path in sys.path if path.startswith(str(boot.BERG))]
    code = (
        f"import os, sys; os.environ.update({settings!r}); sys.path[:0] = {folders!r}; "
        "from berg.machine.environment import download_uv; download_uv()"
    )
    fetch = shlex.join([sys.executable, "-I", "-c", code])
    for name in UV_PROGRAMS:
        program, script = UV_FOLDER / name, bin_folder / name
        text = f'#!/bin/sh\n[ -x {program} ] || {fetch} >&2 || exit\nexec {program} "$@"\n'
        script.touch(mode=0o700)
        script.write_text(text)


def provide_uv(machine: boot.Machine) -> None:
    """Install uv's programs on this machine unless they are there; raises BergError."""
    with (boot.BERG / "uv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (UV_FOLDER / UV_PROGRAMS[0]).exists():
            return
        wheel = dist.WHEELS.get(platform.machine())
        if wheel is None:
            raise BergError(f"there is no uv for processors of the kind {platform.machine()}")
        new = UV_FOLDER.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        with zipfile.ZipFile(io.BytesIO(wheel_content(machine, wheel))) as zipped:
            for name in UV_PROGRAMS:
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                source = zipped.open(f"uv-{dist.UV_VERSION}.data/scripts/{name}")
                with source, (new / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
                (new / name).chmod(0o755)
        new.rename(UV_FOLDER)


def wheel_content(machine: boot.Machine, wheel: dist.Wheel) -> bytes:
    """Return the content of a wheel, from the bucket or the package index; raises BergError."""
    try:
        content = machine.read(wheel.path)[0]
        boot.check(content, wheel.sha256, f"gs://{machine.bucket}/{wheel.path}")
        return content
    except urllib.error.HTTPError as error:
        if error.code != 404:
            boot.console(f"{wheel.path} cannot be read: {error}")
    except OSError as error:
        boot.console(str(error))
    if subprocess.call(["python3", "-m", "pip", "--version"], stdout=QUIET, stderr=QUIET):
        boot.apt_install(machine, "python3-pip")
    return dist.download_uv(wheel, ["python3", "-m", "pip"])


def download_uv() -> None:
    """Download uv for a program that called it."""
    boot.bypass_proxies()
    try:
        provide_uv(boot.this_machine())
    except (BergError, OSError) as error:
        sys.exit(f"berg: {error}")

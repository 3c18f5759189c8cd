"""What a command finds on its machine: programs, variables, and the python with its repo's needs;
its code, its data sets, and folders of buckets mounted with Google's gcsfuse. Also what software an
attempt runs with: its python, the packages in it, and the GPUs' driver. Local SSDs are
/mnt/scratch.

A pod has its mounts as volumes already. A mount stays as long as its machine.

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
import time
import urllib.error
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from berg import BergError, job
from berg.code import dist, snapshot
from berg.config import Config
from berg.google import api, data
from berg.google.fetch import fetch
from berg.google.storage import Bucket
from berg.job import Job
from berg.machine import boot, fabric, peers
from berg.machine.attempt import Attempt
from berg.machine.process import FLIGHT, RESULTS
from berg.plain import plural

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
        **({"BERG_SCRATCH_DIR": str(found)} if (found := scratch_folder()) else {}),
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


def note_software(attempt: Attempt) -> None:
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


# --- from buckets: code, data sets, and mounts


MOUNT_SECONDS = 120  # for gcsfuse to mount; it answers once it has seen the bucket


def use_scratch_for_data(attempt: Attempt) -> None:
    """Let the folder of a job's data sets be on its local SSDs, unless it holds anything; it stays
    where it is if that fails.
    """
    own, fast = place("/root/data"), scratch_for(attempt.job)
    try:
        if not fast or own.is_mount() or own.is_symlink() or (own.is_dir() and any(own.iterdir())):
            return
        own.mkdir(parents=True, exist_ok=True)
        (fast / "berg-data").mkdir(exist_ok=True)
        boot.execute("mount", "--bind", str(fast / "berg-data"), str(own))
        attempt.say(f"{own} is on the local SSDs")
    except OSError as error:
        attempt.say(f"{own} cannot be on the local SSDs: {error}")


def bring_data(attempt: Attempt) -> None:
    """Download what is missing of each data set; raises BergError, or Stopped if the job ends."""
    for wanted in attempt.job.data:
        name, folder, began = wanted["name"], place(wanted["path"]), time.monotonic()
        attempt.say(
            f"Downloading data {name}: {plural(wanted['files'], 'file')}, "
            f"{wanted['bytes'] / 1e6:,.1f} MB, to {folder}"
        )
        bucket, prefix = data.find(attempt.bucket.config, name)
        new, seen = download_data(attempt, bucket, prefix, name, folder)
        if not seen:
            raise BergError(f"data {name} is not in gs://{bucket.name}/{prefix} any more")
        if data.checksum(seen) != wanted["checksum"]:
            attempt.say(f"Data {name} changed since the job was submitted")
        attempt.say(
            f"Downloaded {new:,} of {plural(len(seen), 'file')} of data {name} "
            f"in {time.monotonic() - began:.1f} s"
        )


def download_data(
    attempt: Attempt, bucket: Bucket, prefix: str, name: str, folder: Path
) -> tuple[int, list[Any]]:
    """Download a data set; return how many files are new, and its objects."""
    seen: list[Any] = []

    def note(blob: Any) -> None:
        seen.append(blob)
        attempt.stopping.pause(0)  # a killed job does not wait for the rest

    try:
        new, _, left = fetch(bucket, prefix, folder, done=note, on_machine=True)
    except api.Forbidden as error:
        raise data_refused(bucket, name, error) from None
    except OSError as error:
        raise BergError(
            f"data {name} cannot be downloaded to {folder}: {error.strerror or error}"
        ) from None
    if left:
        path, why = next(iter(left.items()))
        if isinstance(why, api.Forbidden):
            raise data_refused(bucket, name, why)
        raise BergError(
            f"{plural(len(left), 'file')} of data {name} could not be downloaded to {folder}, "
            f"{path}: {why}"
        )
    return new, seen


def data_refused(bucket: Bucket, name: str, error: Exception) -> BergError:
    """Return the error for data that the machines' account may not read, with the fix."""
    account = getattr(bucket.config.credentials, "service_account_email", "ACCOUNT")
    fix = data.grant_command(bucket.name, f"serviceAccount:{account}")
    return BergError(f"data {name}: {api.words(error)}. {fix}")


def mount_buckets(attempt: Attempt) -> None:
    """Mount the folders that a job asks for; raises BergError with gcsfuse's message."""
    wanted = attempt.job.mounts
    missing = [each for each in wanted if not is_mounted(place(each["path"]))]
    if not missing:
        return
    if boot.POD:
        raise BergError(f"the pod has no volume at {missing[0]['path']}, which was asked for")
    program = find_gcsfuse(attempt)
    mount_cache().mkdir(parents=True, exist_ok=True)
    # each mount may keep its share of half of the free disk
    cache_mb = max(shutil.disk_usage(mount_cache()).free // 2**21 // len(wanted), 1)
    for each in missing:
        mount_one(attempt, program, each, cache_mb)


def mount_cache() -> Path:
    """Return the folder for what mounts have read: on local SSDs, or on the machine's disk."""
    fast = scratch_folder()
    return fast / "berg-mounts" if fast else boot.BERG / "mounts"


def is_mounted(folder: Path) -> bool:
    """Return whether a folder is a mount, which may be of the same disk, as in pods."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].replace("\\040", " ") for line in lines]
    return str(folder) in points


def mount_one(attempt: Attempt, program: str, wanted: dict[str, Any], cache_mb: int) -> None:
    """Mount a folder of a bucket over an empty one."""
    name, folder = wanted["name"], place(wanted["path"])
    if folder.is_dir() and any(folder.iterdir()):
        raise BergError(f"mount {name}: {folder} holds files already, which a mount would hide")
    folder.mkdir(parents=True, exist_ok=True)
    words = mount_command(attempt.bucket.config, program, wanted, folder, cache_mb)
    attempt.say(f"Mounting {name}, {plural(wanted['files'], 'file')}, at {folder}: {words[0]}")
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=MOUNT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BergError(f"mount {name}: {error}") from None
    if done.returncode or not is_mounted(folder):
        output = (done.stderr or done.stdout).strip().splitlines()
        raise BergError(
            f"mount {name}: gcsfuse could not mount gs://{wanted['bucket']}/{wanted['prefix']} "
            f"(exit code {done.returncode}): {' | '.join(output[-3:])}"
        )


def mount_command(
    config: Config, program: str, wanted: dict[str, Any], folder: Path, cache_mb: int
) -> list[str]:
    """Return the command that mounts a folder of a bucket."""
    own = mount_cache() / folder.relative_to(
        folder.anchor
    )  # one for each: folders may have one name
    own.parent.mkdir(parents=True, exist_ok=True)
    options = [
        # As metadata never expire, later files of the same name are not seen.
        "--profile=aiml-training",
        "--o=ro",
        f"--only-dir={wanted['prefix']}",
        "--file-mode=444",
        "--dir-mode=555",
        f"--cache-dir={own}",
        f"--file-cache-max-size-mb={cache_mb}",
        "--file-cache-enable-parallel-downloads",
        "--app-name=berg",
        f"--log-file={own}.log",
        "--log-format=text",
    ]
    if config.endpoint:
        options.append(f"--custom-endpoint={config.endpoint}/storage/v1/")
    return [program, *options, wanted["bucket"], str(folder)]


def find_gcsfuse(attempt: Attempt) -> str:
    """Return gcsfuse: of the image, else sent with the job, else of the image's package sources."""
    if found := shutil.which(data.PROGRAM, path=python_path()):
        return found
    if attempt.job.gcsfuse and platform.machine() == "x86_64":
        return bring_gcsfuse(attempt)
    try:
        boot.apt_install(attempt.machine, data.PROGRAM)
    except OSError as error:
        raise BergError(
            f"this image has no gcsfuse, and its package sources have none ({error}). Install it "
            "on your computer, from which it is then sent, or in the image: "
            "https://cloud.google.com/storage/docs/gcsfuse-install"
        ) from None
    return data.PROGRAM


def bring_gcsfuse(attempt: Attempt) -> str:
    """Return the gcsfuse that was sent with the job; raises BergError if it was replaced."""
    name, file = f".berg/dist/{attempt.job.gcsfuse}", BIN / data.PROGRAM
    content = attempt.machine.read(name)[0]
    try:
        boot.check(content, name.rpartition("-")[2], f"gs://{attempt.machine.bucket}/{name}")
    except OSError as error:
        raise BergError(str(error)) from None
    BIN.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(0o755)
    return str(file)


def fetch_code(bucket: Bucket, description: dict[str, Any], folder: Path) -> None:
    """Check a snapshot out to a folder; raises BergError if a part of it is not in the bucket."""
    packs = boot.BERG / "packs"

    def file(name: str) -> Path:
        return packs / name.replace("/", "%")

    def bring(name: str) -> None:
        try:
            bucket.download(name, file(name))
        except api.NotFound:
            missing = f"gs://{bucket.name}/{name}"
            raise BergError(f"commit {description['commit']} is missing: no {missing}") from None

    with ThreadPoolExecutor() as pool:
        list(pool.map(bring, snapshot.all_packs(description)))
    snapshot.restore(description, folder, lambda name: file(name).open("rb"))
    shutil.rmtree(packs)


# --- a machine's local SSDs as one folder: ext4 on a RAID 0 of all, or on the only one
#
# It is prepared at each boot. After a stop the disks are empty, and it is made again; after a
# reboot what is there is mounted. A disk that holds anything is never formatted. No fault ends the
# job: it then has no such folder, or a smaller one, and its log says why. What a job can get again
# is on it, too, as it is gone when the machine stops: data sets, what mounts have read, and
# docker's images.
# Not covered: machine types whose number of local SSDs Berg does not know (z3, those with -lssd).

SCRATCH = Path("/mnt/scratch")
DISKS = Path("/dev/disk/by-id")
SCRATCH_NAME = "berg-scratch"  # of the array and the file system
ARRAY = Path("/dev/md") / SCRATCH_NAME
MDSTAT = Path("/proc/mdstat")  # exists where the kernel has RAID
DISK_SECONDS = 60  # for the disks to appear
RAID, EXT4 = "linux_raid_member", "ext4"  # as blkid calls them


def scratch_folder() -> Path | None:
    """Return the folder if it is there."""
    is_own = "BERG_ROOT" not in os.environ and not boot.POD  # else /mnt is the host's
    return SCRATCH if is_own and SCRATCH.is_mount() else None


def scratch_for(this: Job) -> Path | None:
    """Return the folder if what a job can get again may be there, in place of the machine's disk.

    Not of a devbox, whose disk people keep when they stop it; not on a machine that waits for
    another job, which may use the same again; and not if the disk is larger.
    """
    found = scratch_folder()
    if not found or this.kind != "job" or this.on or this.spec.keep_warm:
        return None
    return found if shutil.disk_usage(found).total > this.spec.disk_gb * 10**9 else None


def prepare_scratch(machine: boot.Machine) -> bool:
    """Mount the local SSDs that a machine was created with; return whether they are there."""
    if boot.POD or "BERG_ROOT" in os.environ or scratch_folder():
        return False
    number = int(boot.metadata("instance/attributes/berg-local-ssds", default="0"))
    if not number:
        return False
    try:
        device = scratch_device(machine, find_local_ssds(number))
        mount_scratch(device)
    except (OSError, subprocess.SubprocessError) as error:
        machine.say(f"{SCRATCH} cannot be prepared, and the job continues without it: {error}")
        return False
    size = shutil.disk_usage(SCRATCH).total / 2**30
    machine.say(f"{SCRATCH} has {size:,.0f} GB of local SSD")
    return True


def find_local_ssds(number: int) -> list[Path]:
    """Return the local SSDs once all are there; raise OSError if some do not come."""
    disks = [DISKS / f"google-local-nvme-ssd-{each}" for each in range(number)]
    until = time.monotonic() + DISK_SECONDS
    while DISKS.exists() and time.monotonic() < until and not all(each.exists() for each in disks):
        time.sleep(0.1)
    if missing := [each.name for each in disks if not each.exists()]:
        raise OSError(f"{len(missing)} of {number} local SSDs are missing: {missing[0]}")
    return disks


def scratch_device(machine: boot.Machine, disks: list[Path]) -> Path:
    """Return the device of the file system: the array of all disks, or the first disk alone.

    Raise OSError if a disk holds something else.
    """
    contents = [content_of(each) for each in disks]
    if contents[0] == EXT4 or len(disks) == 1:
        return disks[0]
    names = [str(each) for each in disks]
    if RAID in contents:
        if subprocess.run(["mdadm", "--detail", str(ARRAY)], capture_output=True).returncode:
            boot.execute("mdadm", "--assemble", str(ARRAY), *names)
        return ARRAY
    if any(contents):
        raise OSError(f"a local SSD holds {max(contents)} already, which is left as it is")
    if why := why_no_raid(machine):
        machine.say(f"{SCRATCH} is the first of {len(disks)} local SSDs alone: {why}")
        return disks[0]
    create = [
        "--create",
        str(ARRAY),
        f"--name={SCRATCH_NAME}",
        "--homehost=any",
        "--level=0",
        "--run",
    ]
    boot.execute("mdadm", *create, f"--raid-devices={len(disks)}", *names)
    return ARRAY


def content_of(device: Path) -> str:
    """Return what a device holds, as blkid calls it; "" for nothing."""
    done = subprocess.run(
        ["blkid", "--probe", "--output", "export", str(device)], capture_output=True, text=True
    )
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if done.returncode == 2 and not found:
        return ""
    return found.get("TYPE") or found.get("PTTYPE") or "something unknown"


def why_no_raid(machine: boot.Machine) -> str:
    """Return why this machine can make no array; "" if it can. Install mdadm if it is missing."""
    if not MDSTAT.exists():
        with contextlib.suppress(OSError):
            subprocess.run(["modprobe", "raid0"], capture_output=True)
    if not MDSTAT.exists():
        return "this kernel has no RAID"
    try:
        if not shutil.which("mdadm"):
            boot.apt_install(machine, "--no-install-recommends", "mdadm")
    except OSError as error:
        return f"mdadm cannot be installed: {error}"
    return ""


def empty_scratch() -> None:
    """Delete what is in the folder, before another job; raise OSError if something stays."""
    for each in there.iterdir() if (there := scratch_folder()) else ():
        if each.name == "lost+found":  # of the file system
            continue
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()


def mount_scratch(device: Path) -> None:
    """Mount a device, with a new file system if it holds nothing; raise OSError if that fails."""
    there = content_of(device)
    if there not in ("", EXT4):
        raise OSError(f"{device} holds {there} already, which is left as it is")
    if not there:
        boot.execute("mkfs.ext4", "-q", "-m", "0", "-L", SCRATCH_NAME, str(device))
    SCRATCH.mkdir(parents=True, exist_ok=True)
    boot.execute("mount", "-o", "discard,nofail", str(device), str(SCRATCH))
    SCRATCH.chmod(0o1777)

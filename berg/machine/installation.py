"""Installs what the repo of a job needs: the steps that the laptop decided, on a job's machine or
on one whose disk becomes an image.

A virtual environment is outside of the checkout, which has a link to it: it stays when the next job
of a sweep gets a new checkout, and in an image of the disk. The steps see only the secrets of the
installation. The worker imports this module first: its last part imports other packages.

A job with --docker installs nothing of its repo: its command runs in a container, with the
machine's docker. It shares the machine's network, shared memory, accelerators, and the folders of
code, results and data, at the same paths. It gets berg's variables, the job's and the secrets by
name: no value is in an argument or a file. What the image sets for its own programs, such as PATH,
stays.
"""

import contextlib
import gc
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from berg import BergError, validation
from berg.code.dist import normal
from berg.google import api, builds
from berg.google.storage import Bucket
from berg.job import Installation, Job
from berg.machine import boot, fabric
from berg.machine.attempt import Attempt, settings_of
from berg.machine.environment import (
    INSTALLING,
    OURS,
    PROGRAM,
    UV_FOLDER,
    environment,
    fetch_code,
    place,
    programs,
    provide_uv,
    repo_folder,
    scratch_folder,
    scratch_for,
)
from berg.machine.logins import ENVIRONMENT
from berg.machine.outcome import Stopped
from berg.machine.process import CONTAINER, MOST_FILES, RESULTS, written_to

ENVIRONMENTS = boot.ROOT / "berg_env"
AGAIN = boot.BERG / "install-again"  # a script that installs a changed lock, for `berg sync`
NETRC = "NETRC"  # a secret of this name is the content of the file that the variable names
UV = {"UV_HTTP_TIMEOUT": "120", "UV_NO_PROGRESS": "1"}
# Some images of Google's install the driver of the GPUs at their first boot.
DRIVER_SCRIPT = Path("/opt/deeplearning/install-driver.sh")
DRIVER_SECONDS = 900
# Modules whose packages have other names.
PACKAGES = {
    "attr": ["attrs"],
    "bs4": ["beautifulsoup4"],
    "cv2": ["opencv-python", "opencv-python-headless", "opencv-contrib-python"],
    "dateutil": ["python-dateutil"],
    "dotenv": ["python-dotenv"],
    "faiss": ["faiss-cpu", "faiss-gpu"],
    "git": ["gitpython"],
    "hydra": ["hydra-core"],
    "OpenSSL": ["pyopenssl"],
    "PIL": ["pillow"],
    "skimage": ["scikit-image"],
    "sklearn": ["scikit-learn"],
    "umap": ["umap-learn"],
    "yaml": ["pyyaml"],
}
QUIET = subprocess.DEVNULL
HEADERS = "import sys, sysconfig; print(sysconfig.get_path('include'), *sys.version_info[:2])"

LAST = 20  # lines of a step's output in which the reason of its failure is looked for
MOST = 300  # characters of such a line
ERROR = re.compile(r"(error|fatal|E)\b.*:|\w+Error:|× ", re.I)
CAUSE = "cause: "
SCRIPT = "in a script that runs first: --install-script PATH"
ADVICE = {  # pattern in the output of a step -> what to change
    r"\b40[13]\b|[Cc]redentials|could not read (Username|Password)|Authentication failed": (
        "Give the installation the password that it lacks: --install-secret NAME"
    ),
    r"Python\.h": f"Install python's headers (apt-get install -y python3-dev) {SCRIPT}",
    r"command not found|command '\S*(gcc|g\+\+|cmake|nvcc)'|Git (executable|LFS)": (
        f"Install the program that is missing {SCRIPT}"
    ),
    r"dns error|Name or service not known|Network is unreachable|onnect timeout|timed out": (
        "The machine cannot reach that server. A golden image needs no network: berg image create"
    ),
    r"[Rr]equires-[Pp]ython|No interpreter found": (
        "Let uv download another python: --install uv, or use another --image"
    ),
    # pip does not report that an index refused it
    r"No matching distribution found|not found in the package registry": (
        "If a private index has it, give its password: --install-secret NAME"
    ),
}
OTHERWISE = "Change what it installs, or choose what to run instead: --install uv|pip|none|COMMAND"

MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
END = 1 << 14  # bytes of a log in which a missing module is looked for

KEYS = Path("/etc/ssh")
KEPT = ("venv", UV_FOLDER.name, "boot.lock", "worker.err")  # in an image; the last two are open
OWN = (".cache", ".ssh/authorized_keys", ".bash_history", ".python_history")


class InstallationFailed(BergError):
    """A step that failed with an exit code; `output` is the end of what it printed."""

    def __init__(self, code: int, words: list[str], output: str = ""):
        lines = [line.strip() for line in output.splitlines() if line.strip()][-LAST:]
        errors = [line for line in lines if ERROR.match(line)] or lines[-1:]
        # uv prints the causes of an error below it, the first cause last
        causes = [line for line in lines if line.startswith(CAUSE)][-1:]
        why = "".join(f": {line.removeprefix(CAUSE)[:MOST]}" for line in errors[:1] + causes)
        advice = ""
        if output:
            found = (text for shown, text in ADVICE.items() if re.search(shown, "\n".join(lines)))
            advice = f". {next(found, OTHERWISE)}"
        super().__init__(
            f"the installation failed with exit code {code}: {shlex.join(words)}{why}{advice}"
        )
        self.code = code


@dataclass(frozen=True)
class Step:
    """A command of an installation."""

    words: list[str]
    folder: Path
    may_fail: bool = False


def install(attempt: Attempt) -> None:
    """Install what a job's repo needs; raises InstallationFailed."""
    await_driver(attempt)
    this, repo = attempt.job, repo_folder(attempt.job)
    what = Installation() if this.docker else this.installation
    steps = steps_of(what, this.spec.install_script or "", repo)
    if steps:
        attempt.states.write(state="INSTALLING")
        prepare(attempt.machine, what, repo)
        with secrets_of(attempt) as secrets:
            variables = with_uv(environment(attempt, secrets))
            if any(step.words[:3] == ["python", "-m", "pip"] for step in steps):
                provide_pip(attempt, variables)
            for step in steps:
                run(attempt, step, variables)
        if what.venv:
            write_again(what, repo)
    if this.gpus_per_machine and not this.docker:
        provide_headers(attempt)


def steps_of(what: Installation, script: str, repo: Path) -> list[Step]:
    """Return the commands of an installation, in order."""
    steps = []
    venv = repo / what.venv
    if what.venv and (venv.is_symlink() or not venv.exists()):  # prepare() makes the link
        venv = ENVIRONMENTS / what.environment(repo.name)
    if what.venv and not (venv / "bin/pip").exists():
        folder, name = (repo / what.venv).parent, PurePosixPath(what.venv).name
        python = ["--python", what.python] if what.python else []
        make = ["uv", "venv", "--seed", "--allow-existing", *python, name]
        steps.append(Step(make, folder))
    if script:
        steps.append(Step(["bash", "-e", script], repo))
    for number, words in enumerate(what.steps):
        steps.append(Step(words, repo / what.folder, number in what.may_fail))
    return steps


def prepare(machine: boot.Machine, what: Installation, repo: Path) -> None:
    """Bring uv, and link the place of the virtual environment, if the installation needs them."""
    if what.venv or any(step[0] == "uv" for step in what.steps):
        provide_uv(machine)
    if not what.venv:
        return
    link, target = repo / what.venv, ENVIRONMENTS / what.environment(repo.name)
    target.mkdir(parents=True, exist_ok=True)
    if link.is_symlink():  # of the snapshot, or of an earlier installation
        link.unlink()
    if not link.exists():
        link.symlink_to(target)
    exclude, line = repo / ".git/info/exclude", f"/{what.venv}\n"
    exclude.parent.mkdir(exist_ok=True)
    there = exclude.read_text() if exclude.exists() else ""
    if line not in there.splitlines(keepends=True):  # git does not see a link as a folder
        exclude.write_text(f"{there}{line}")


def with_uv(variables: dict[str, str]) -> dict[str, str]:
    """Return the variables of an installation: Berg's uv comes before the image's."""
    return {**variables, **UV, "PATH": f"{UV_FOLDER}:{variables['PATH']}"}


@contextlib.contextmanager
def secrets_of(attempt: Attempt) -> Iterator[dict[str, str]]:
    """Provide the secrets of the installation, by variable, while it runs."""
    secrets, file = dict(attempt.install_secrets), boot.BERG / "netrc"
    try:
        if NETRC in secrets:
            file.touch(mode=0o600)
            file.write_text(secrets[NETRC] + "\n")
            secrets[NETRC] = str(file)
        yield secrets
    finally:
        file.unlink(missing_ok=True)


def run(attempt: Attempt, step: Step, variables: dict[str, str]) -> None:
    """Run a step with its output in the log; raises InstallationFailed if it must not fail."""
    attempt.say(f"Installing: {shlex.join(step.words)}")
    log = attempt.machine.log
    before = log.stat().st_size
    code = attempt.runner.execute(step.words, step.folder, variables)
    if attempt.stopping.ending:
        raise Stopped
    if code and step.may_fail:
        attempt.say("That failed. The job continues: the dependencies of the repo are installed")
    elif code:
        with log.open("rb") as file:
            file.seek(max(before, log.stat().st_size - (1 << 16)))
            raise InstallationFailed(code, step.words, file.read().decode(errors="replace"))


def write_again(what: Installation, repo: Path) -> None:
    """Write the script with which `berg sync` installs a changed lock."""
    lines = [
        f". {shlex.quote(str(ENVIRONMENT))}",
        f"export PATH={UV_FOLDER}:$PATH",
        f"cd {shlex.quote(str(repo / what.folder))}",
        *map(shlex.join, what.steps),
    ]
    AGAIN.write_text("\n".join(lines) + "\n")


def provide_pip(attempt: Attempt, variables: dict[str, str]) -> None:
    """Install pip with apt-get where the image's python has none, as some images for TPUs."""
    with contextlib.suppress(OSError):  # the step that uses pip reports what is wrong
        command = ["python", "-m", "pip", "--version"]
        if subprocess.call(command, env=variables, stdout=QUIET, stderr=QUIET):
            boot.apt_install(attempt.machine, "python3-pip")


def provide_headers(attempt: Attempt) -> None:
    """Install python's headers where they are missing: Triton and torch.compile need them."""
    command = ["python", "-c", HEADERS]
    asked = subprocess.run(command, env=environment(attempt), capture_output=True, text=True)
    folder, *version = asked.stdout.split() or [""]
    if asked.returncode or Path(folder, "Python.h").exists():
        return
    try:
        boot.apt_install(attempt.machine, f"python{'.'.join(version)}-dev")
    except OSError as error:
        attempt.say(f"Python's headers are missing, which torch.compile needs: {error}")


def await_driver(attempt: Attempt) -> None:
    """Wait while an image installs the driver of its GPUs; raises InstallationFailed."""
    if not (attempt.job.gpus_per_machine and DRIVER_SCRIPT.exists()) or has_driver():
        return
    attempt.say("Waiting for the driver of the GPUs, which this image installs at its first boot")
    answered = api.wait_for(lambda: attempt.stopping.ending or has_driver(), 2, DRIVER_SECONDS)
    if attempt.stopping.ending:
        raise Stopped
    if not answered:
        raise InstallationFailed(1, ["nvidia-smi"])


def has_driver() -> bool:
    try:
        return subprocess.call(["nvidia-smi"], stdout=QUIET, stderr=QUIET) == 0
    except OSError:
        return False


def missing_module(log: Path, what: Installation) -> str:
    """Return which file of the repo names a module that a command missed, for the reason; or ""."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - END))
            end = file.read().decode(errors="replace")
    except OSError:
        return ""
    for module in MISSING.findall(end)[-1:]:
        top = module.partition(".")[0]
        for where, names in what.others.items():
            if {*PACKAGES.get(top, []), normal(top)} & {*names}:
                return f"; the module {module} is not installed: it is named by {where}"
    return ""


def prepare_image(machine: boot.Machine) -> None:
    """Prepare a machine whose disk becomes an image; the last line on its console has the result.

    The image keeps what was installed; code, keys, logs and most of Berg's files are deleted.
    """
    try:
        install_image(machine, json.loads(machine.recipe))
        clean_image()
    except (BergError, OSError) as error:
        boot.console(f"{boot.NO_IMAGE}{error}")
    else:
        boot.console(boot.IMAGE_READY)


def install_image(machine: boot.Machine, recipe: dict[str, Any]) -> None:
    """Install packages of the distribution, and what the repo needs; raises BergError or OSError.

    `recipe` is what the laptop wrote into the machine's metadata.
    """
    if recipe["packages"]:
        boot.apt_install(machine, *recipe["packages"])
    if recipe["roce"]:
        fabric.install_packages(machine)
    folder = boot.ROOT / "code" / recipe["repo"]
    fetch_code(Bucket(settings_of(machine)), recipe["snapshot"], folder)
    what = validation.from_dict(Installation, recipe["installation"])
    prepare(machine, what, folder)
    steps = steps_of(what, recipe["install_script"], folder)
    if recipe["horovod"]:
        script = str(Path(__file__).with_name("horovod.sh"))
        steps.append(Step(["bash", "-e", script], folder))
    variables = {**os.environ, "HOME": str(boot.ROOT), **programs(what, folder), **INSTALLING}
    for step in steps:
        run_for_image(step, with_uv(variables))


def run_for_image(step: Step, variables: dict[str, str]) -> None:
    """Run a step with its output on the console; raises InstallationFailed if it must not fail."""
    boot.console(f"Installing: {shlex.join(step.words)}")
    log = boot.BERG / "step.log"
    log.unlink(missing_ok=True)
    with written_to(log) as pipe:
        code = subprocess.call(
            step.words, cwd=step.folder, env=variables, stdin=QUIET, stdout=pipe, stderr=pipe
        )
    output = log.read_text(errors="replace")
    boot.console(output)
    if code and not step.may_fail:
        raise InstallationFailed(code, step.words, output)


def clean_image() -> None:
    """Delete what belongs to this machine alone, and the code."""
    paths = [each for each in boot.BERG.iterdir() if each.name not in KEPT]
    paths += [boot.ROOT / name for name in OWN]
    paths += (boot.ROOT / "code").iterdir()
    if "BERG_ROOT" not in os.environ:  # else these are the host's
        paths += KEYS.glob("ssh_host_*")
        Path("/etc/machine-id").write_text("")
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
            continue
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            boot.console(f"{path} stays in the image: {error}")


# The machine's variables for its own programs, not for those of the image.
OF_THE_MACHINE = {"HOME", "LD_LIBRARY_PATH", "PATH", "UV_CACHE_DIR", *INSTALLING}
# By program: what is wrong without it, and what to do then.
LACKS = {
    "docker": "this machine has no docker, and apt-get could not install it",
    "nvidia-ctk": (
        "this machine has no NVIDIA Container Toolkit, without which containers see no GPU, and "
        "apt-get could not install it"
    ),
}
WITHOUT = {
    "docker": "Give an image that has it (--image), or install it (--install-script)",
    "nvidia-ctk": (
        "Give an image that has it (--image), or let --install-script add NVIDIA's package "
        "repository: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/"
    ),
}
DAEMON = Path("/etc/docker/daemon.json")  # docker's settings
# Behind the image's own.
REPORT = f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}"{shlex.quote(str(PROGRAM))}\n'


def pull_image(attempt: Attempt) -> None:
    """Pull the image to this machine.

    Raise InstallationFailed if docker cannot, BergError if docker cannot be installed.
    """
    image = attempt.job.docker
    attempt.states.write(state="INSTALLING")
    provide_docker(attempt)
    use_scratch(attempt)
    attempt.say(f"Pulling {image}")
    with tempfile.TemporaryDirectory(prefix="berg-docker-") as folder:
        log_in_docker(image, folder)
        words = ["docker", "--config", folder, "pull", "--quiet", image]
        code = attempt.runner.execute(words, boot.ROOT, dict(os.environ))
    if attempt.stopping.ending:
        raise Stopped
    if code:
        raise InstallationFailed(code, ["docker", "pull", image])


def provide_docker(attempt: Attempt) -> None:
    """Install docker, and NVIDIA's toolkit for GPUs, if the machine's image lacks them; raise
    BergError if that fails.
    """
    needed = {"docker": "docker.io"}
    if attempt.job.gpus_per_machine:
        needed["nvidia-ctk"] = "nvidia-container-toolkit"
    lacking = [program for program in needed if not shutil.which(program)]
    for program in lacking:
        try:
            boot.apt_install(attempt.machine, needed[program])
        except OSError as error:
            raise BergError(f"{LACKS[program]}: {error}. {WITHOUT[program]}") from None
    if lacking and attempt.job.gpus_per_machine:
        boot.execute("nvidia-ctk", "runtime", "configure", "--runtime=docker")
        boot.execute("systemctl", "restart", "docker")


def use_scratch(attempt: Attempt) -> None:
    """Let docker have its images and containers on the local SSDs of a job; nothing changes if it
    has any, or has another folder for them.

    A docker that has its folder there began before they were mounted, at a reboot: restart it.
    """
    fast = scratch_for(attempt.job)
    if not fast:
        return
    before = DAEMON.read_text() if DAEMON.exists() else ""
    try:
        settings, ours = json.loads(before or "{}"), {"data-root": str(fast / "berg-docker")}
        if settings.get("data-root", ours["data-root"]) != ours["data-root"]:
            return
        if not settings.keys() & ours.keys():
            if docker_has("images") or docker_has("ps", "--all"):
                return
            DAEMON.parent.mkdir(exist_ok=True)
            DAEMON.write_text(json.dumps(settings | ours, indent=4))
        boot.execute("systemctl", "restart", "docker")
    except (OSError, ValueError) as error:
        attempt.say(f"docker's images cannot be on the local SSDs: {error}")
        with contextlib.suppress(OSError):
            DAEMON.write_text(before or "{}")
            boot.execute("systemctl", "restart", "docker")


def docker_has(*words: str) -> bool:
    """Return whether docker lists any of what the words name; raise OSError if it fails."""
    done = subprocess.run(["docker", *words, "--quiet"], capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.stderr.strip())
    return bool(done.stdout.strip())


def log_in_docker(image: str, folder: str) -> None:
    """Log docker in to a registry of Google's as this machine, with settings in a folder."""
    host = image.partition("/")[0]
    if not builds.is_google(host):
        return
    token = json.loads(boot.metadata("instance/service-accounts/default/token"))["access_token"]
    # for which Google's registries take a token as password
    words = [
        "docker",
        "--config",
        folder,
        "login",
        "--username",
        "oauth2accesstoken",
        "--password-stdin",
        host,
    ]
    done = subprocess.run(words, input=token, capture_output=True, text=True)
    if done.returncode:
        raise BergError(f"docker could not log in to {host}: {done.stderr.strip()}")


def container_command(this: Job, folder: Path, names: list[str]) -> list[str]:
    """Return the command line that runs a job's command in a container: in a folder, with the
    variables of these names.
    """
    words = ["docker", "run", "--rm", "--pull=never", f"--name={CONTAINER}", "--init"]
    words += ["--network=host", "--ipc=host", "--ulimit=memlock=-1"]
    words.append(f"--ulimit=nofile={MOST_FILES}")
    if this.gpus_per_machine:
        words.append("--gpus=all")
    script = "trap 'exit 143' TERM\n"
    if fabric.is_used(this):
        words += [f"--volume={fabric.GIB}:{fabric.GIB}:ro", "--device=/dev/infiniband"]
        script += fabric.in_container()
    if this.tpu:
        words.append("--privileged")  # its devices
    places = [str(place(each["path"])) for each in (*this.data, *this.mounts)]
    ours = [str(boot.ROOT / "code"), str(RESULTS), str(PROGRAM)]
    ours += [str(each) for each in [scratch_folder()] if each]
    words += [f"--volume={each}:{each}" for each in dict.fromkeys([*ours, *places])]
    words += [f"--env={name}" for name in names]
    # SIGTERM goes to all processes in the container, as it does on the machine.
    words += ["--env=TINI_KILL_PROCESS_GROUP=1", f"--workdir={folder}", "--entrypoint=bash"]
    # bash would end at SIGTERM before the program that it runs; so it waits for that, then ends.
    return [*words, this.docker, *this.shell[1:], script + REPORT + this.cmd]


def names_in_container(variables: Iterable[str], given: set[str]) -> list[str]:
    """Return which of a command's variables are for a container: not the machine's own, unless they
    were `given` with the job.
    """
    of_the_machine = {key for key in os.environ if not key.startswith(OURS)} | OF_THE_MACHINE
    return sorted({*variables} - of_the_machine | given)


def remove_container() -> None:
    """End the container if it still exists: docker, which ran it, may be dead."""
    with contextlib.suppress(OSError):
        subprocess.run(["docker", "rm", "--force", CONTAINER], capture_output=True)


class Unused(types.ModuleType):
    """In place of a module whose classes are imported but never used."""

    def __getattr__(self, name: str) -> type:
        if not name[0].isupper():
            raise AttributeError(name)
        return type(name, (), {"sign": None, "key_id": None})


# The worker's imports of other packages; if one is missing, the process exits. There is no garbage
# to collect meanwhile (measured by bench/worker.py). The worker has no key to sign with, so it does
# without google-auth's cryptography: 15 MB, compiled for each processor.
gc.disable()
sys.modules["google.auth.crypt"] = Unused("google.auth.crypt")
# The metadata server may take half a minute; google-auth gives up after three seconds. It reads the
# variable when it is imported, and the command must not see it.
RETRIES = "GCE_METADATA_DETECT_RETRIES"
os.environ[RETRIES] = "6"
try:
    import click
    import git
    import google.auth.compute_engine
    import google.auth.transport.requests
    import google_crc32c

    if google_crc32c.implementation == "python":  # it would take an hour for a gigabyte
        raise ImportError
except ImportError:
    sys.exit(boot.DEPENDENCIES_MISSING)
del os.environ[RETRIES]
gc.freeze()
gc.enable()

__all__ = ["click", "git", "google"]

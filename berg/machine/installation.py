"""Installs what the repo of a job needs before its command runs: the steps that the laptop decided.

A virtual environment is outside of the checkout, which has a link to it: it stays when the next job
of a sweep gets a new checkout, and in an image of the disk. The steps see none of the secrets of
the command in their environment, only those that were named for the installation.

The worker's imports of other packages; where one is missing, the process exits.

Meanwhile no garbage is collected: there is none. (Measured by bench/worker.py.) The worker signs
nothing: it has no key. What google-auth signs with would be cryptography, of 15 MB and compiled
for each processor. And it may be half a minute until the metadata server answers, which google-auth
otherwise takes after three seconds for another computer's.
"""

import contextlib
import gc
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from berg import BergError
from berg.google import api
from berg.job import Installation
from berg.machine import boot, uv
from berg.machine.attempt import Attempt
from berg.machine.environment import environment, repo_folder
from berg.machine.logins import ENVIRONMENT
from berg.machine.outcome import Stopped

ENVIRONMENTS = boot.ROOT / "berg_env"

AGAIN = boot.BERG / "install-again"  # a script that installs a changed uv.lock

NETRC = "NETRC"  # a secret of this name is the content of the file that the variable names

UV = {"UV_HTTP_TIMEOUT": "120", "UV_NO_PROGRESS": "1"}

# What installs the driver at the first boot of one of Google's older images, and for how long.
DRIVER_SCRIPT = Path("/opt/deeplearning/install-driver.sh")

DRIVER_SECONDS = 900

QUIET = subprocess.DEVNULL

HEADERS = "import sys, sysconfig; print(sysconfig.get_path('include'), *sys.version_info[:2])"

LAST = 20  # lines of a step's output in which the reason of its failure is looked for

MOST = 300  # characters of such a line

ERROR = re.compile(r"(error|fatal|E)\b.*:|\w+Error:|× ", re.I)

CAUSE = "cause: "

SCRIPT = "in a script that runs first: --install-script PATH"

ADVICE = {  # pattern in what a step printed -> what to change
    r"\b40[13]\b|[Cc]redentials|could not read (Username|Password)|Authentication failed": (
        "Give the installation the password that it lacks: --install-secret NAME"
    ),
    r"Python\.h": f"Install python's headers (apt-get install -y python3-dev) {SCRIPT}",
    r"command not found|command '\S*(gcc|g\+\+|cmake|nvcc)'|Git (executable|LFS)": (
        f"Install the program that is missing {SCRIPT}"
    ),
    r"dns error|Name or service not known|Network is unreachable|onnect timeout|timed out": (
        "The machine does not reach that server. A golden image needs no network: berg image create"
    ),
    r"[Rr]equires-[Pp]ython|No interpreter found": (
        "Let uv download another python: --install uv, or take another --image"
    ),
    # pip does not say that an index refused it
    r"No matching distribution found|not found in the package registry": (
        "If a private index has it, give its password: --install-secret NAME"
    ),
}

OTHERWISE = "Change what it installs, or say what to run instead: --install uv|pip|none|COMMAND"


class InstallationFailed(BergError):
    """A step that failed with an exit code; `output` is the end of what it printed."""

    def __init__(self, code: int, words: list[str], output: str = ""):
        lines = [line.strip() for line in output.splitlines() if line.strip()][-LAST:]
        telling = [line for line in lines if ERROR.match(line)] or lines[-1:]
        # uv says below an error what it comes from, the first cause last.
        causes = [line for line in lines if line.startswith(CAUSE)][-1:]
        said = "".join(f": {line.removeprefix(CAUSE)[:MOST]}" for line in telling[:1] + causes)
        advice = ""
        if output:
            found = (text for shown, text in ADVICE.items() if re.search(shown, "\n".join(lines)))
            advice = f". {next(found, OTHERWISE)}"
        super().__init__(
            f"the installation failed with exit code {code}: {shlex.join(words)}{said}{advice}"
        )
        self.code = code


@dataclass(frozen=True)
class Step:
    """A command of an installation."""

    words: list[str]
    folder: Path
    may_fail: bool = False


def install(attempt: Attempt) -> None:
    """Install what a job's repo needs; raise InstallationFailed."""
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
        note_how(what, repo)
    if this.gpus_per_machine and not this.docker:
        provide_headers(attempt)


def steps_of(what: Installation, script: str, repo: Path) -> list[Step]:
    """Return what an installation runs, in order."""
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
    """Bring uv, and link the virtual environment's place, if the installation needs them."""
    if what.venv or any(step[0] == "uv" for step in what.steps):
        uv.provide(machine)
    if not what.venv:
        return
    link = repo / what.venv
    name = what.environment(repo.name)
    (ENVIRONMENTS / name).mkdir(parents=True, exist_ok=True)
    if link.is_symlink():  # of the snapshot, or of an earlier installation
        link.unlink()
    if not link.exists():
        link.symlink_to(ENVIRONMENTS / name)
    exclude, line = repo / ".git/info/exclude", f"/{what.venv}\n"
    exclude.parent.mkdir(exist_ok=True)
    there = exclude.read_text() if exclude.exists() else ""
    if line not in there.splitlines(keepends=True):  # git takes a link for no folder
        exclude.write_text(f"{there}{line}")


def with_uv(variables: dict[str, str]) -> dict[str, str]:
    """Return the variables of an installation: berg's uv comes before that of the image."""
    return {**variables, **UV, "PATH": f"{uv.FOLDER}:{variables['PATH']}"}


@contextlib.contextmanager
def secrets_of(attempt: Attempt) -> Iterator[dict[str, str]]:
    """While the installation runs, provide the secrets that it may see, by their variables."""
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
    """Run a step with its output in the log; raise InstallationFailed if it must not fail."""
    attempt.say(f"Installing: {shlex.join(step.words)}")
    log = attempt.machine.log
    before = log.stat().st_size
    code = attempt.runner.execute(step.words, step.folder, variables)
    if attempt.stopping.ending:
        raise Stopped
    if code and step.may_fail:
        attempt.say("That failed, and the job goes on: what the repo depends on is installed")
    elif code:
        with log.open("rb") as file:
            file.seek(max(before, log.stat().st_size - (1 << 16)))
            raise InstallationFailed(code, step.words, file.read().decode(errors="replace"))


def note_how(what: Installation, repo: Path) -> None:
    """Write the script with which `berg sync` installs a changed lock."""
    if not what.venv:
        return
    lines = [f". {shlex.quote(str(ENVIRONMENT))}", f"export PATH={uv.FOLDER}:$PATH"]
    lines.append(f"cd {shlex.quote(str(repo / what.folder))}")
    lines += [shlex.join(words) for words in what.steps]
    AGAIN.write_text("\n".join(lines) + "\n")


def provide_pip(attempt: Attempt, variables: dict[str, str]) -> None:
    """Install pip with apt-get where the image's python has none, as those for TPUs may not."""
    command = ["python", "-m", "pip", "--version"]
    with contextlib.suppress(OSError):  # pip's own step says what is wrong
        if subprocess.call(command, env=variables, stdout=QUIET, stderr=QUIET):
            boot.apt_install(attempt.machine, "python3-pip")


def provide_headers(attempt: Attempt) -> None:
    """Install the headers of the python where they are missing: Triton and torch.compile compile
    with them.
    """
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
    """Wait while an image installs the driver of its GPUs; raises InstallationFailed if it never
    answers.
    """
    if not (attempt.job.gpus_per_machine and DRIVER_SCRIPT.exists()) or has_driver():
        return
    attempt.say("Waiting for the driver of the GPUs, which this image installs at its first boot")
    is_over = api.wait_for(lambda: attempt.stopping.ending or has_driver(), 2, DRIVER_SECONDS)
    if attempt.stopping.ending:
        raise Stopped
    if not is_over:
        raise InstallationFailed(1, ["nvidia-smi"])


def has_driver() -> bool:
    """Return whether the driver of the GPUs answers."""
    try:
        return subprocess.call(["nvidia-smi"], stdout=QUIET, stderr=QUIET) == 0
    except OSError:
        return False


class Unused(types.ModuleType):
    """A module of which nothing is called: what it is asked for are classes, which nobody uses."""

    def __getattr__(self, name: str) -> type:
        if not name[0].isupper():
            raise AttributeError(name)
        return type(name, (), {"sign": None, "key_id": None})


gc.disable()

sys.modules["google.auth.crypt"] = Unused("google.auth.crypt")

# google-auth reads it when it is imported; the command is not to see it
PATIENCE = "GCE_METADATA_DETECT_RETRIES"

os.environ[PATIENCE] = "6"


try:
    import click
    import git
    import google.auth.compute_engine
    import google.auth.transport.requests
    import google_crc32c

    if google_crc32c.implementation == "python":  # would take an hour for a gigabyte
        raise ImportError
    if not importlib.util.find_spec("google.cloud.storage"):  # it is for large files, and is slow
        raise ImportError
except ImportError:
    sys.exit(boot.DEPENDENCIES_MISSING)


del os.environ[PATIENCE]


gc.freeze()


gc.enable()

__all__ = ["click", "git", "google"]

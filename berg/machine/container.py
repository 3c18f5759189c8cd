"""Run a job's command in a container, with the machine's docker.

The container shares the machine's network, shared memory, accelerators, and the folders of code,
results and data, at the same paths. It gets berg's variables, the job's and the secrets by name: no
value is in an argument or a file. What the image sets for its own programs, such as PATH, stays.
"""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from berg import BergError
from berg.google import builds
from berg.job import Job
from berg.machine import boot
from berg.machine.attempt import Attempt
from berg.machine.environment import INSTALLING, OURS, PROGRAM, place
from berg.machine.installation import InstallationFailed
from berg.machine.outcome import Stopped
from berg.machine.process import MOST_FILES, RESULTS

NAME = "berg-command"  # of the container
# The machine's variables for its own programs, not for those of the image.
OF_THE_MACHINE = {"HOME", "PATH", "UV_CACHE_DIR", *INSTALLING}
# By program: what is wrong without it, and what to do then.
LACKS = {
    "docker": "this machine has no docker, and apt-get could not install it",
    "nvidia-ctk": (
        "this machine has no NVIDIA Container Toolkit, without which containers see no GPU, and "
        "apt-get could not install it"
    ),
}
OTHERS = {
    "docker": "Give an image that has it (--image), or install it (--install-script)",
    "nvidia-ctk": (
        "Give an image that has it (--image), or let --install-script add NVIDIA's package "
        "repository: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/"
    ),
}
USER = "oauth2accesstoken"  # for which Google's registries take a token as password
# bash would end at SIGTERM before the program that it runs; so it waits for that, then ends.
LAST = "trap 'exit 143' TERM\n"
# Behind the image's own.
REPORT = f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}"{shlex.quote(str(PROGRAM))}\n'


def pull(attempt: Attempt) -> None:
    """Pull the image to this machine.

    Raise InstallationFailed if docker cannot, BergError if docker cannot be installed.
    """
    image = attempt.job.docker
    attempt.states.write(state="INSTALLING")
    provide_docker(attempt)
    attempt.say(f"Pulling {image}")
    with tempfile.TemporaryDirectory(prefix="berg-docker-") as folder:
        login(image, folder)
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
            raise BergError(f"{LACKS[program]}: {error}. {OTHERS[program]}") from None
    if lacking and attempt.job.gpus_per_machine:
        boot.execute("nvidia-ctk", "runtime", "configure", "--runtime=docker")
        boot.execute("systemctl", "restart", "docker")


def login(image: str, folder: str) -> None:
    """Log docker in to a registry of Google's as this machine, with settings in a folder."""
    host = image.partition("/")[0]
    if not builds.is_google(host):
        return
    token = json.loads(boot.metadata("instance/service-accounts/default/token"))["access_token"]
    words = ["docker", "--config", folder, "login", "--username", USER, "--password-stdin", host]
    done = subprocess.run(words, input=token, capture_output=True, text=True)
    if done.returncode:
        raise BergError(f"docker could not log in to {host}: {done.stderr.strip()}")


def command(this: Job, folder: Path, names: list[str]) -> list[str]:
    """Return the command line that runs a job's command in a container: in a folder, with the
    variables of these names.
    """
    words = ["docker", "run", "--rm", "--pull=never", f"--name={NAME}", "--init"]
    words += ["--network=host", "--ipc=host", "--ulimit=memlock=-1"]
    words.append(f"--ulimit=nofile={MOST_FILES}")
    if this.gpus_per_machine:
        words.append("--gpus=all")
    if this.tpu:
        words.append("--privileged")  # its devices
    places = [str(place(each["path"])) for each in (*this.data, *this.mounts)]
    ours = [str(boot.ROOT / "code"), str(RESULTS), str(PROGRAM)]
    words += [f"--volume={each}:{each}" for each in dict.fromkeys([*ours, *places])]
    words += [f"--env={name}" for name in names]
    # SIGTERM goes to all processes in the container, as it does on the machine.
    words += ["--env=TINI_KILL_PROCESS_GROUP=1", f"--workdir={folder}", "--entrypoint=bash"]
    return [*words, this.docker, *this.shell[1:], LAST + REPORT + this.cmd]


def names_of(variables: Iterable[str], given: set[str]) -> list[str]:
    """Return which of a command's variables are for a container: not the machine's own, unless they
    were `given` with the job.
    """
    of_the_machine = {key for key in os.environ if not key.startswith(OURS)} | OF_THE_MACHINE
    return sorted({*variables} - of_the_machine | given)


def remove() -> None:
    """End the container if it still exists: docker, which ran it, may be dead."""
    with contextlib.suppress(OSError):
        subprocess.run(["docker", "rm", "--force", NAME], capture_output=True)

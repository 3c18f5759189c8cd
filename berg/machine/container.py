"""Run a job's command in a container of an image, by the machine's docker.

The container shares the machine's network, the memory in which processes talk to each other, its
accelerators, and the folders of code, results and data, at the paths that they have on the machine.
Its variables are berg's, the job's and the secrets, by name: no value stands in an argument or in a
file. What the image sets for its own programs, such as PATH, stays.

Not covered: what a command needs to have installed, which is in its image.
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
from berg.machine.process import RESULTS

NAME = "berg-command"  # of the container
# What the machine says of its own programs: not for those of the image.
OF_THE_MACHINE = {"HOME", "PATH", "UV_CACHE_DIR", *INSTALLING}
LACKS = {  # what a machine's image has not, by program
    "docker": "this machine has no docker, and apt-get could not install it",
    "nvidia-ctk": (
        "this machine has no NVIDIA Container Toolkit, without which containers see no GPU, and "
        "apt-get could not install it"
    ),
}
OTHERS = {  # what to do then
    "docker": "Give an image that has it (--image), or install it (--install-script)",
    "nvidia-ctk": (
        "Give an image that has it (--image), or let --install-script add NVIDIA's package "
        "repository: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/"
    ),
}
USER = "oauth2accesstoken"  # with which they take a token as a password
# bash would end at SIGTERM before the program that it runs; so it waits for that, then ends.
LAST = "trap 'exit 143' TERM\n"
# Behind what the image has there.
REPORT = f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}"{shlex.quote(str(PROGRAM))}\n'


def pull(attempt: Attempt) -> None:
    """Bring the image to this machine.

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
    """Install docker, and NVIDIA's toolkit for it, where the machine's image has none.

    Raise BergError if that fails.
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
    """Let docker's settings in a folder know this machine at a registry of Google's."""
    host = image.partition("/")[0]
    if not builds.is_google(host):
        return
    told = json.loads(boot.metadata("instance/service-accounts/default/token"))
    words = ["docker", "--config", folder, "login", "--username", USER, "--password-stdin", host]
    done = subprocess.run(words, input=told["access_token"], capture_output=True, text=True)
    if done.returncode:
        raise BergError(f"docker could not log in to {host}: {done.stderr.strip()}")


def command(this: Job, folder: Path, names: list[str]) -> list[str]:
    """Return what runs a job's command in a container, begun in a folder, with the variables of
    those names.
    """
    words = ["docker", "run", "--rm", "--pull=never", f"--name={NAME}", "--init"]
    words += ["--network=host", "--ipc=host", "--ulimit=memlock=-1"]
    if this.gpus_per_machine:
        words.append("--gpus=all")
    if this.tpu:
        words.append("--privileged")  # its devices
    words += [f"--volume={each}:{each}" for each in folders(this)]
    words += [f"--env={name}" for name in names]
    # SIGTERM is for all that runs there, as it is on the machine.
    words += ["--env=TINI_KILL_PROCESS_GROUP=1", f"--workdir={folder}", "--entrypoint=bash"]
    return [*words, this.docker, "-c", LAST + REPORT + this.cmd]


def folders(this: Job) -> list[str]:
    """Return the folders of the machine that a container shares."""
    places = [str(place(each["path"])) for each in (*this.data, *this.mounts)]
    ours = [str(boot.ROOT / "code"), str(RESULTS), str(PROGRAM)]
    return list(dict.fromkeys([*ours, *places]))


def names_of(variables: Iterable[str], given: set[str]) -> list[str]:
    """Return which of a command's variables are for a container: not those of the machine's own,
    but for what was `given` with the job.
    """
    of_the_machine = {key for key in os.environ if not key.startswith(OURS)} | OF_THE_MACHINE
    return sorted({*variables} - of_the_machine | given)


def remove() -> None:
    """End the container if it is still there: docker, which ran it, may be dead."""
    with contextlib.suppress(OSError):
        subprocess.run(["docker", "rm", "--force", NAME], capture_output=True)

"""Containers: the command runs in an image, by the machine's docker, beside everything it shares.

The image has the packages, so nothing of the repository is installed. The laptop asks the registry
once which digest a tag names; all machines pull that, and so do a resumed job and a rerun. Google's
registries alone hear who asks. The container runs in the command's cgroup, where its processes end
with the command's; where there is none, docker's own process hands SIGTERM on.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from berg import BergError, install
from berg.code import ROOT
from berg.config import Config
from berg.feature import Feature
from berg.options import option, set_by

if TYPE_CHECKING:
    from berg.run import Plan
    from berg.worker import Ending, Run

IMAGE = re.compile(r"[a-z0-9][\w./:-]*(@sha256:[0-9a-f]{64})?")
CONTAINER = "berg-command"
SHARED = [ROOT / folder for folder in ("code", "berg_results", "data", "scratch")]
MACHINES = {"PATH", "HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV"}  # not for programs of the image
CGROUPS, DAEMON = Path("/sys/fs/cgroup"), Path("/etc/docker/daemon.json")
KINDS = "application/vnd.{}+json"
MANIFESTS = ", ".join(
    KINDS.format(kind)
    for kind in (
        "oci.image.index.v1",
        "docker.distribution.manifest.list.v2",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.v2",
    )
)
TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/"


@dataclass
class Docker(Feature):
    docker: str = option(
        "--docker", default="", metavar="IMAGE", help="Run CMD in a container of this image."
    )

    def change(self, plan: Plan) -> None:
        if not IMAGE.fullmatch(self.docker):
            raise BergError(f"--docker {self.docker!r} is no image. Name one, such as python:3.12")
        if plan.job.is_devbox:
            if set_by("docker") == "command line":
                raise BergError("a devbox has no command to run in a container. Leave --docker out")
            plan.drop(self)
            return
        if not plan.ended:
            if "@" not in self.docker and set_by("docker") == "command line":
                self.docker = pinned(plan, self.docker)  # no record chooses whom this computer asks
            plan.job.features["Docker"] = self.record()
            plan.job.options["docker"] = self.docker
            plan.job.install = plan.job.install or install.IN_IMAGE
        name, _, digest = self.docker.partition("@")
        plan.rows["Container"] = f"{name} ({digest[:19]}…)" if digest else f"{name}, by its tag"

    @contextmanager
    def around(self, run: Run) -> Iterator[None]:
        if run.words[-1] == run.job.cmd:  # not on a machine that only waits
            provide(run)
            pull(run, self.docker)
            run.words = words(run, self.docker)
        yield

    def ended(self, run: Run, ending: Ending) -> Ending:
        if run.has_begun:  # docker, whose process had it, may be dead
            subprocess.run(["docker", "rm", "--force", CONTAINER], capture_output=True)
        return ending


# --- which image


def pinned(plan: Plan, image: str) -> str:
    """An image by the digest that its tag names now; by its tag, if the registry does not say."""
    import requests

    host, slash, name = image.partition("/")
    if not slash or not (re.search("[.:]", host) or host == "localhost"):
        host, name = "docker.io", image if slash else f"library/{image}"
    path, tag = re.fullmatch(r"(.*?)(?::([\w.-]+))?", name).groups()  # type: ignore[union-attr]
    is_local = plan.config.endpoint and urlsplit(plan.config.endpoint).netloc == host
    if plan.config.endpoint and not is_local:
        return image  # the embedded cloud has no images of others
    server = "registry-1.docker.io" if host == "docker.io" else host
    url = f"http{'' if is_local else 's'}://{server}/v2/{path}/manifests/{tag or 'latest'}"
    headers = {"Accept": MANIFESTS}
    if is_local or is_google(host):
        headers["Authorization"] = f"Bearer {token(plan.config)}"
    given: Any = {"timeout": (5, 10), "allow_redirects": False}
    try:
        answer = requests.head(url, headers=headers, **given)
        if answer.status_code == 401 and "Authorization" not in headers:
            says = dict(re.findall(r'(\w+)="([^"]*)"', answer.headers.get("WWW-Authenticate", "")))
            realm = says.pop("realm", "")
            if urlsplit(realm).scheme == "https":  # for anyone
                found = requests.get(realm, params=says, **given).json()
                headers["Authorization"] = f"Bearer {found.get('token') or found['access_token']}"
                answer = requests.head(url, headers=headers, **given)
        digest = answer.headers.get("Docker-Content-Digest", "")
        reason = "" if answer.ok else f"{server} answers {answer.status_code}"
    except (requests.RequestException, ValueError, KeyError) as error:
        digest, reason = "", f"{server} gives no answer ({type(error).__name__})"
    if reason or not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        reason = reason or f"{server} names no digest"
        plan.rows["Careful"] = f"machines pull {image} as its tag is then: {reason}"
        return image
    return f"{image}@{digest}"


def is_google(host: str) -> bool:
    """Whether a host is a registry of Google's, which takes a Google token."""
    return host == "gcr.io" or host.endswith((".gcr.io", ".pkg.dev"))


def token(config: Config) -> str:
    from google.auth.transport.requests import Request

    config.credentials.refresh(Request())
    return str(config.credentials.token)


# --- on a machine


def provide(run: Run) -> None:
    """Install docker, and what lets containers have GPUs, where the image lacks them."""
    had_all = True
    needed = {"docker": ("docker.io", "Take an image that has it: --image")}
    if run.job.gpus:
        repository = f"Add NVIDIA's package sources: --install COMMAND, see {TOOLKIT}"
        needed["nvidia-ctk"] = ("nvidia-container-toolkit", repository)
    for program, (package, without) in needed.items():
        had_all &= not install.provide(run, program, package, without)
    if run.job.gpus and not had_all:
        install.execute(run, ["nvidia-ctk", "runtime", "configure", "--runtime=docker"])
        install.execute(run, ["systemctl", "restart", "docker"])
    if parent(run):
        asked = ["docker", "info", "--format", "{{.CgroupDriver}}"]
        driver = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        if driver == "systemd":  # it takes no cgroup of ours, but slices
            settings = json.loads(DAEMON.read_text()) if DAEMON.exists() else {}
            settings["exec-opts"] = ["native.cgroupdriver=cgroupfs"]
            DAEMON.parent.mkdir(exist_ok=True)
            DAEMON.write_text(json.dumps(settings))
            install.execute(run, ["systemctl", "restart", "docker"])


def parent(run: Run) -> str:
    """The command's cgroup as docker names it; "" without one that docker can use."""
    group, has_only_v2 = run.command.group, (CGROUPS / "cgroup.controllers").exists()
    return f"/{group.relative_to(CGROUPS)}" if group and has_only_v2 else ""


def pull(run: Run, image: str) -> None:
    """Pull the image; from a registry of Google's as this machine's account."""
    with tempfile.TemporaryDirectory() as folder:
        docker = ["docker", "--config", folder]
        host = image.partition("/")[0]
        if is_google(host):
            login = [*docker, "login", "-u", "oauth2accesstoken", "--password-stdin", host]
            done = subprocess.run(login, input=token(run.config), capture_output=True, text=True)
            if done.returncode:
                raise BergError(f"docker could not log in to {host}: {done.stderr.strip()}")
        install.execute(run, [*docker, "pull", "--quiet", image])


def words(run: Run, image: str) -> list[str]:
    """What runs the command in a container, with its folders and variables."""
    made = ["docker", "run", "--rm", "--pull=never", f"--name={CONTAINER}"]
    made += [f"--entrypoint={run.words[0]}"]
    made += ["--network=host", "--ipc=host", "--ulimit=memlock=-1", "--ulimit=nofile=1048576"]
    made += [*["--gpus=all"] * bool(run.job.gpus), *run.container]
    if group := parent(run):  # all its processes get SIGTERM there, and once
        made += [f"--cgroup-parent={group}", "--sig-proxy=false"]
    else:
        made += ["--init", "--env=TINI_KILL_PROCESS_GROUP=1"]
    made += [f"--volume={folder}:{folder}" for folder in dict.fromkeys([*SHARED, *run.folders])]
    made += [f"--env={name}" for name in sorted({*run.variables} - MACHINES | {*run.job.env})]
    # bash would end at SIGTERM before the program that it runs; so it waits for that.
    script = f"trap 'exit 143' TERM\n{run.words[-1]}"
    if folders := run.variables.get("LD_LIBRARY_PATH"):  # before those of the image
        folders = shlex.quote(folders)
        script = (
            f"export LD_LIBRARY_PATH={folders}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\n{script}"
        )
    made += [f"--workdir={run.cwd}", image, *run.words[1:-1], script]
    run.say(f"In a container: {shlex.join(made[:-1])}")
    return made

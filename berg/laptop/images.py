"""Images of a repo: container images for pods, and disk images for machines.

The context of a container build is the repo's snapshot: committed and changed files, without those
that git ignores; the builders apply `.dockerignore`. The tag is the snapshot's commit.

A disk image comes from a machine that installs what the repo names and is stopped. The machine is
deleted whatever happens; Google deletes it after two hours if this computer does not.
"""

import base64
import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from berg import BergError, computer, gce, job, plain, plan
from berg import plan as defaults
from berg.code import git, snapshot
from berg.config import Config, label
from berg.gke import client
from berg.google import api, builds, instances, offers
from berg.google.storage import Bucket
from berg.job import Machine
from berg.laptop import installing, launch, power
from berg.laptop.jobs import GOING, STARTUP_LINE, Progress, Say
from berg.plan import Plan
from berg.spec import JobSpec

PLATFORMS = ("linux/amd64", "linux/arm64")
PYTHON = "3.12"
NAME = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*")  # of images, in their registry
LAST = 5  # lines of a failed build that are searched for a known error
USER = "oauth2accesstoken"
LATE = 900  # seconds until a granted role counts everywhere
# docker asks git about the context, whose files may look like a repo with settings of its own.
NO_FOREIGN_GIT = {**git.ENVIRONMENT, "BUILDX_GIT_INFO": "0"}
MPI = ["openmpi-bin", "libopenmpi-dev"]
# What a disk image may have in addition -> Debian packages
ADDITIONS = {
    "horovod": [*MPI, "cmake", "g++", "make", "python3-dev"],
    "openmpi": MPI,
    "roce": [],  # of a source of Google's, which the machine adds
    "tmux": ["tmux"],
}
CPUS, HOURS = 8, 2
FAMILY = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
READY, FAILED = "The disk is ready to be an image", "The disk is no image: "  # boot.py's words


@dataclass
class Wanted:
    """The options of a container build; None: the default."""

    file: Path | None = None
    name: str | None = None
    python: str | None = None
    platforms: str = PLATFORMS[0]
    push: bool = False
    builder: str | None = None
    force: bool = False
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    install: str | None = None
    install_script: str = ""

    def check(self) -> None:
        """Raise BergError for invalid options."""
        if self.file is not None and not self.file.is_file():
            raise BergError(
                f"there is no file {self.file}: name a Dockerfile with -f, or leave that out"
            )
        if self.name is not None and not NAME.fullmatch(self.name):
            raise BergError(
                f"--name {self.name!r} cannot be an image's: give lower-case letters and digits, "
                "with - _ or . between"
            )
        if self.python is not None and not re.fullmatch(r"3\.\d{1,2}(\.\d{1,2})?", self.python):
            raise BergError(
                f"--python {self.python!r} is not a Python version. Give one, such as --python "
                f"{PYTHON}"
            )
        if self.builder == "cloud" and not self.push:
            raise BergError("--builder cloud leaves no image on this computer: give --push as well")
        for platform in self.platforms.split(","):
            if platform not in PLATFORMS:
                raise BergError(
                    f"--platform {platform!r}: give {', '.join(PLATFORMS)}, or both with a comma"
                )


@dataclass
class Build:
    """One container build."""

    image: str  # full name
    context: Path
    dockerfile: Path
    platforms: list[str]
    arguments: list[str]  # for the Dockerfile


def build(
    config: Config,
    wanted: Wanted,
    folder: Path,
    say: Say,
    agree: Callable[[snapshot.Snapshot], None],
) -> str:
    """Build a container image of the repo around `folder`, push it if wanted; return its name.

    `agree` raises an error if the files of the repo must not be pushed.
    """
    wanted.check()
    taken = snapshot.take(folder)
    if wanted.push:
        agree(taken)
    file = wanted.file or taken.root / "Dockerfile"
    with tempfile.TemporaryDirectory(prefix="berg-image-") as temporary:
        context, written = Path(temporary, "context"), Path(temporary, "Dockerfile")
        snapshot.write_out(taken, context)
        own = file_in(context, taken.root, file)
        if own:
            check_no_choice(wanted, own.name)
            say(f"Install   what {own.name} says")
            written.write_bytes(own.read_bytes())
        else:
            written.write_text(generated_dockerfile(config, taken, folder, wanted, say))
        write_ignore_files(context, taken.root, file)
        name, tag = wanted.name or label(taken.repo_name) or "image", taken.commit
        builder = choose(wanted)
        image = builds.full_name(config, name, tag)
        if wanted.push:
            prepare_push(config, wanted, name, tag, say)
        given = ["--build-arg", f"PYTHON_VERSION={wanted.python}"] if wanted.python else []
        this = Build(image, context, written, wanted.platforms.split(","), given)
        source = f"commit {taken.head[:12]}"
        if taken.dirty:
            source += f" and {plain.plural(len(taken.all_changed()), 'changed file')}"
        say(f"Building {image}\nwith {builder}, of {source}, for {', '.join(this.platforms)}")
        BUILDERS[builder](config, this, wanted.push, say)
    return image


def admit_readers(config: Config, say: Say) -> None:
    """Let the accounts of machines and of clusters' nodes read the images."""
    readers = {config.service_account}
    for cluster in client.seen_clusters(config):
        if client.is_ours(cluster):
            readers |= {*client.accounts(cluster)}
    for each in sorted(readers - {"", "default"}):
        builds.admit_reader(config, each, say)


def file_in(context: Path, root: Path, file: Path) -> Path | None:
    """Return the path of a repo's file in the context, or None if there is no such file.

    A file outside of the repo, or that git ignores, is used where it is. Links are followed inside
    the context only, because another author may have written them; others raise BergError.
    """
    named = Path(os.path.normpath(Path.cwd() / file))
    if not named.is_relative_to(root):
        named = file.parent.resolve() / file.name
    if not named.is_relative_to(root):
        return file if file.is_file() else None
    found = (context / named.relative_to(root)).resolve()
    if found.is_file() and found.is_relative_to(context.resolve()):
        return found
    if not named.is_file():
        return None
    if named.resolve() != named:
        raise BergError(
            f"{named} is a link to {named.resolve()}, which is not among the files that go into "
            "the image. Put that file in its place"
        )
    return named


def check_no_choice(wanted: Wanted, name: str) -> None:
    """Raise BergError for options that only a generated Dockerfile can follow."""
    if wanted.extras or wanted.groups or wanted.install or wanted.install_script:
        raise BergError(
            f"{name} says what is installed: leave out --extra, --group, --install and "
            "--install-script, or install it there"
        )


def generated_dockerfile(
    config: Config, taken: snapshot.Snapshot, folder: Path, wanted: Wanted, say: Say
) -> str:
    """Return a Dockerfile for a repo without one, on Python's image by its digest."""
    python = wanted.python or PYTHON
    chosen = plan.of_installation(wanted.extras, wanted.groups, wanted.install, folder)
    chosen["script"] = wanted.install_script
    files, what = installing.decide_for_image(taken, folder, python, chosen)
    if not (what.steps or what.venv or wanted.install_script or chosen["install"] == "none"):
        found = ". ".join([what.words, *what.notes])
        raise BergError(
            f"{taken.root} has no Dockerfile, and what berg would install is {found}. Name a "
            "Dockerfile: -f PATH, or build an image without packages: --install none"
        )
    base = builds.pin(config, f"python:{python}-slim")
    if base.why_not:
        say(f"{base.image} is used by its tag: {base.why_not}")
    text = installing.dockerfile(what, files, taken.repo_name, wanted.install_script, base.image)
    say("\n          ".join([f"Install   {what.words}", *what.notes]))
    say(
        f"{taken.root} has no Dockerfile; this one is used. Save it as Dockerfile to change it:"
        f"\n\n{text}"
    )
    return text


def write_ignore_files(context: Path, root: Path, file: Path) -> None:
    """Copy the Dockerfile's own or the repo's ignore file into the context: builders would follow
    a link out of it.
    """
    own = file.with_name(f"{file.name}.dockerignore")
    sources = {
        ".dockerignore": [own, root / ".dockerignore"],
        ".containerignore": [root / ".containerignore"],  # podman's name for it
    }
    for name, candidates in sources.items():
        found = [place for each in candidates if (place := file_in(context, root, each))]
        if found:
            content = found[0].read_bytes()
            (context / name).unlink(missing_ok=True)
            (context / name).write_bytes(content)


def prepare_push(config: Config, wanted: Wanted, name: str, tag: str, say: Say) -> None:
    """Create the repository if it is missing, and let machines read its images; raise BergError if
    this one cannot be pushed.
    """
    if builds.ensure(config):
        say(f"Created the repository {builds.REPOSITORY} in {config.region}")
    builds.check_push(config)
    if not wanted.force and builds.digest_of_tag(config, name, tag):
        image = builds.full_name(config, name, tag)
        raise BergError(
            f"{image} exists already, of this very commit. Run with it: --docker {image}; "
            "or build it again and replace it: --force"
        )
    admit_readers(config, say)


def choose(wanted: Wanted) -> str:
    """Return the builder that was given, or docker, or podman; raise BergError if it cannot build
    here.
    """
    if wanted.builder:
        if why := obstacle(wanted.builder):
            raise BergError(f"--builder {wanted.builder}: {why}")
        return wanted.builder
    whys = []
    for name in ("docker", "podman"):
        if not (why := obstacle(name)):
            return name
        whys.append(why)
    raise BergError(
        f"nothing here builds images: {'; '.join(whys)}. Install podman, for example: "
        f"{computer.install_command('podman')}; or let Google build it: --builder cloud --push"
    )


def obstacle(builder: str) -> str:
    """Return why a builder cannot build here; "" if it can."""
    if builder != "cloud" and not shutil.which(builder):
        return f"{builder} is not installed"
    if builder == "docker" and quietly("docker", "buildx", "version"):
        return "docker has no buildx (https://docs.docker.com/go/buildx)"
    if builder == "docker" and quietly("docker", "info"):
        return "docker has no daemon that answers"
    return ""


def quietly(*command: str, env: dict[str, str] | None = None) -> int:
    """Run a command without its output; return its exit code."""
    variables = {**os.environ, **NO_FOREIGN_GIT, **(env or {})}
    return subprocess.run(
        command, env=variables, stdin=subprocess.DEVNULL, capture_output=True
    ).returncode


def docker(config: Config, this: Build, push: bool, say: Say) -> None:
    """Build with docker buildx; without a push the image of one platform goes to docker's images,
    those of several stay in its cache.
    """
    several = len(this.platforms) > 1
    command = ["docker", "buildx", "build", "--platform", ",".join(this.platforms)]
    command += ["--tag", this.image, "--file", str(this.dockerfile), *this.arguments]
    if several:  # docker's own builder builds one
        if quietly("docker", "buildx", "inspect", "berg") and quietly("docker", *builds.CREATE):
            raise BergError(
                "docker has no builder for several platforms. See why: docker buildx create --name "
                "berg"
            )
        command += ["--builder", "berg"]
    with login(config, "docker") as variables:
        load = [] if push or several else ["--load"]
        run([*command, *load, str(this.context)], variables, say)
    if push:  # all of it is in the cache; the token is new
        with login(config, "docker") as variables:
            run([*command, "--push", str(this.context)], variables, say, "pushed")


def podman(config: Config, this: Build, push: bool, say: Say) -> None:
    """Build with podman: a list of images, one for each platform, among podman's own."""
    trust = f"--tls-verify={str(builds.registry(config).startswith('https')).lower()}"
    command = ["podman", "build", "--platform", ",".join(this.platforms), "--manifest", this.image]
    command += ["--file", str(this.dockerfile), *this.arguments]
    with login(config, "podman") as variables:
        for more in ([], ["--no-cache"]):
            quietly("podman", "manifest", "rm", this.image)  # it would keep its old images
            run([*command, *more, str(this.context)], variables, say)
            # Its cache takes an image for another platform's if nothing in their builds differs.
            if not (lacking := set(this.platforms) - listed(this.image)):
                break
        else:
            raise BergError(
                f"podman built no image for {', '.join(sorted(lacking))}. Try: --builder docker"
            )
    if push:
        target = f"docker://{this.image}"
        command = ["podman", "manifest", "push", "--all", trust, this.image, target]
        with login(config, "podman") as variables:
            run(command, variables, say, "pushed")


def listed(image: str) -> set[str]:
    """Return the platforms of a list of podman's images."""
    ran = subprocess.run(["podman", "manifest", "inspect", image], capture_output=True, text=True)
    rows = json.loads(ran.stdout)["manifests"] if ran.returncode == 0 else []
    return {f"{row['platform']['os']}/{row['platform']['architecture']}" for row in rows}


def run(command: list[str], variables: dict[str, str], say: Say, done: str = "built") -> None:
    """Run a builder and show its output; raise BergError if it fails."""
    kept: deque[str] = deque(maxlen=LAST)
    with subprocess.Popen(
        command,
        env={**os.environ, **NO_FOREIGN_GIT, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout
        try:
            for line in process.stdout:
                text = line.decode(errors="replace").rstrip()
                plain.echo(text, err=True)
                kept.extend([text] if text.strip() else [])
        except BaseException:  # such as Ctrl-C
            process.terminate()
            raise
    if process.returncode:
        hint = (
            "\nThis computer cannot run programs of that platform. Install qemu-user-static, or: "
            "--builder cloud"
        )
        is_foreign = "exec format error" in "\n".join(kept).lower()
        raise BergError(
            f"the image could not be {done}: {command[0]} ended with exit code "
            f"{process.returncode}; its output is above" + hint * is_foreign
        )


@contextlib.contextmanager
def login(config: Config, builder: str) -> Iterator[dict[str, str]]:
    """Yield variables with which a builder can log in to the project's registry, and to those that
    the user's own settings know. The token is in a file meanwhile.
    """
    from google.auth.transport.requests import Request

    own = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    known = read(own / "config.json")
    known.setdefault("auths", {})
    if builder == "podman":
        runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
        for each in (Path.home() / ".config", Path(runtime)):
            known["auths"] |= read(each / "containers/auth.json").get("auths", {})
    config.credentials.refresh(Request())
    host, pair = builds.host(config), f"{USER}:{config.credentials.token}"
    known["auths"][host] = {"auth": base64.b64encode(pair.encode()).decode()}
    helpers = dict(known.get("credHelpers", {}))
    helpers.pop(host, None)
    # For docker an empty name means that no helper has it.
    known["credHelpers"] = {**helpers, host: ""} if builder == "docker" else helpers
    with tempfile.TemporaryDirectory(prefix="berg-login-") as temporary:
        folder = Path(temporary)
        for each in own.iterdir() if own.is_dir() else ():
            if each.name != "config.json":
                (folder / each.name).symlink_to(each)
        file = folder / "config.json"
        file.touch(0o600)
        file.write_text(json.dumps(known))
        if builder == "podman":
            yield {"REGISTRY_AUTH_FILE": str(file)}
        else:
            yield {
                "DOCKER_CONFIG": temporary,
                "BUILDX_CONFIG": os.environ.get("BUILDX_CONFIG") or str(own / "buildx"),
            }


def read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise BergError(f"cannot read {file}: {error}. Fix it, or move it away") from None


def cloud(config: Config, this: Build, push: bool, say: Say) -> None:
    """Build with Cloud Build, which pushes."""
    late = time.monotonic() + LATE if builds.prepare(config, say) else 0
    source = this.dockerfile.with_name("source.tar.gz")
    with tarfile.open(source, "w:gz") as tar:
        tar.add(this.dockerfile, "Dockerfile")
        tar.add(this.context, "context")
    show = functools.partial(plain.echo, err=True)
    while True:
        try:
            return builds.run(config, this.image, this.platforms, this.arguments, source, show)
        except builds.Forbidden as error:
            if time.monotonic() > late:
                raise
            say(
                f"{error.message}\nThe role was granted just now, which takes effect in minutes. "
                "Building again"
            )
            time.sleep(5)


BUILDERS: dict[str, Callable[[Config, Build, bool, Say], None]] = {
    "docker": docker,
    "podman": podman,
    "cloud": cloud,
}


@dataclass
class MachineImage:
    """The options of a disk image; "" and 0: the default."""

    source: str = ""
    family: str = ""
    additions: tuple[str, ...] = ()
    install_script: str = ""
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    install: str | None = None
    zones: tuple[str, ...] = ()
    disk_gb: int = 0


def image_plan(config: Config, wanted: MachineImage, folder: Path) -> Plan:
    """Return the plan of the machine that becomes an image; raise BergError for invalid options."""
    for extra in wanted.additions:
        if extra not in ADDITIONS:
            raise BergError(
                f"--with {extra!r}: give {', '.join(ADDITIONS)}, or several with commas"
            )
    family = wanted.family or f"berg-{label(snapshot.find_root(folder).name)[:35].strip('-')}"
    if not FAMILY.fullmatch(family):
        raise BergError(
            f"--family {family!r} is not a family name: give up to 40 lower-case letters, digits "
            "and dashes, beginning with a letter"
        )
    now = datetime.now(timezone.utc)
    if wanted.source:
        own = "" if "/" in wanted.source else f"{config.project}/"
        config = replace(config, default_image=own + wanted.source)
    found = offers.find_image(config, *config.image)
    spec = JobSpec(
        name=f"{family}-{now:%Y%m%d-%H%M%S}",
        num_gpus=0,
        num_cpus=CPUS,
        zones=wanted.zones,
        disk_gb=wanted.disk_gb or offers.image_gb(config, found),
        max_hours=HOURS,
        install_script=wanted.install_script or None,
        **defaults.of_installation(wanted.extras, wanted.groups, wanted.install, folder),
    )
    made = launch.prepare(config, spec, folder, for_image=True)
    return replace(
        made, job=replace(made.job, kind="image", stops_when_idle=False, keeps_disk=False)
    )


def request(plan: Plan, wanted: MachineImage) -> dict[str, Any]:
    """Return the request for the machine, by zone, with how to prepare its disk."""
    packages = [package for extra in wanted.additions for package in ADDITIONS[extra]]
    recipe = {
        "packages": list(dict.fromkeys(packages)),
        "horovod": "horovod" in wanted.additions,
        "roce": "roce" in wanted.additions,
        "repo": plan.job.repo_name,
        "snapshot": plan.job.snapshot,
        "install_script": plan.job.spec.install_script or "",
        "installation": asdict(plan.job.installation),
    }
    made = gce.request(plan)
    for body in made.values():
        body["metadata"]["items"].append({"key": "berg-image", "value": json.dumps(recipe)})
    return made


def preview(plan: Plan, wanted: MachineImage) -> Any:
    """Return the request for the machine, as people read it."""
    first = next(iter(request(plan, wanted).values()))
    return launch.without_script({"name": plan.job.job_name, **first})


def create(plan: Plan, wanted: MachineImage, say: Say, on_progress: Progress) -> dict[str, Any]:
    """Create the image and return its body; nothing else is left, whatever happens."""
    config, this = plan.config, plan.job
    config.refuse_in_purse("make an image")
    name = this.job_name
    launch.send_code(plan, Bucket(config), say, on_progress)
    extras = f", with {', '.join(wanted.additions)}" if wanted.additions else ""
    source = api.last_part(plan.offer.image)
    image = {
        "family": name.rsplit("-", 2)[0],
        "labels": {"berg": "1", "berg-user": config.user},
        "description": f"{source}; {this.repo_name} at {this.git_snapshot[:12]}{extras}",
    }
    with power.claimed(config, name, "made into an image", say):  # tells reap that this is alive
        try:
            zone = gce.create(config, request(plan, wanted), [name], False, say, lambda: None)
            wait_until_ready(config, name, zone, say)
            say(f"Stopping {name}")  # so that all of its disk is written
            path = f"/zones/{zone}/instances/{name}/stop"
            api.wait(config, api.call(config, "POST", path, requestId=str(uuid.uuid4())))
            say(f"Creating the image {name}")
            instances.make_image(config, name, zone, image)
            say(f"The image {name} is ready")
        finally:
            delete_machine(config, name, say)
    return {"name": name, **image}


def wait_until_ready(config: Config, name: str, zone: str, say: Say) -> None:
    """Wait until the machine has prepared its disk, and show its console; raise BergError if it
    could not, or is gone.
    """
    shown = 0

    def is_ready() -> bool:
        nonlocal shown
        there = instances.find(config, names=[name], zone=zone)
        output = instances.serial_output(config, Machine(name, zone))
        lines = [line.strip() for line in STARTUP_LINE.findall(output)]
        for line in lines[shown:]:
            say(line)
        shown = len(lines)
        for line in lines:
            if line.startswith(FAILED):
                raise BergError(f"no image was created: {line.removeprefix(FAILED)}")
        if READY not in lines and all(machine.status in GOING for machine in there):
            raise BergError(f"no image was created: the machine {name} is gone")
        return READY in lines

    api.wait_for(is_ready, every=2)


def delete_machine(config: Config, name: str, say: Say) -> None:
    """Delete the machine with its disk, if it exists."""
    try:
        machines = instances.find(config, names=[name])
        if machines:
            say(f"Deleting the machine {name}")
        gce.delete(config, name, machines)
    except BaseException:
        say(f"The machine {name} may still exist. Delete it:  berg kill --now {name}")
        raise


def lacks_default(config: Config) -> bool:
    """Return whether the default image should be one of the project's, which has none."""
    if config.image[1] != config.project:
        return False
    try:
        offers.find_image(config, *config.image)
    except BergError:
        return True
    return False


def row(image: dict[str, Any]) -> dict[str, Any]:
    """Return an image's row in a list."""
    return {
        "name": image["name"],
        "family": image.get("family", ""),
        "disk_gb": int(image["diskSizeGb"]),
        "status": image["status"],
        "created_at": job.timestamp(job.time_of(image["creationTimestamp"]).timestamp()),
        "user": image.get("labels", {}).get("berg-user", ""),
        "description": image.get("description", ""),
    }

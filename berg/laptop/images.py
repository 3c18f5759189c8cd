"""Container images of a repo, for pods: what goes into one, and who builds it.

The context of a build is the repo's snapshot: what is committed and changed, without what git
ignores; `.dockerignore` takes out more, as the builders do it. The tag is the snapshot's commit.
docker (with buildx) or podman build it on this computer, Cloud Build at Google's.

Not covered: images of other registries than the project's, contexts other than the whole repo,
build secrets.

An image of a machine on which everything is installed, so that jobs begin at once.

A machine boots from another image, installs what the repo names, and is stopped; its disk becomes
the image. It is deleted whatever happens, and an image that is half made as well. Should this
computer die meanwhile, Google deletes the machine after two hours; one that was stopped already,
which costs its disk alone, is `berg reap`'s.

Not covered: images for other processors than that of the machine, and what GPUs need: their driver
is the other image's.
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
from berg.gke import place as gke
from berg.google import api, builds, instances, offers, registry
from berg.google.storage import Bucket
from berg.job import Machine
from berg.laptop import dockerfile, installing, launch
from berg.laptop.jobs import GOING, STARTUP_LINE
from berg.laptop.launch import repo_name
from berg.plan import Plan
from berg.spec import JobSpec

PLATFORMS = ("linux/amd64", "linux/arm64")

PYTHON = "3.12"

NAME = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*")  # of images, in their registry

LAST = 5  # lines of a build that failed which an error repeats

USER = "oauth2accesstoken"

LATE = 900  # seconds until what was granted counts everywhere

# docker asks git about the context, whose files may look like a repo with settings of its own.
NO_FOREIGN_GIT = {**git.ENVIRONMENT, "BUILDX_GIT_INFO": "0"}

Say = Callable[[str], None]


@dataclass
class Wanted:
    """What image is to be built; None: as usual."""

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

    @property
    def all_platforms(self) -> list[str]:
        return self.platforms.split(",")

    def check(self) -> None:
        """Raise BergError for what no image can be."""
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
                f"--python {self.python!r} is no version of python. Give one, such as --python "
                f"{PYTHON}"
            )
        if self.builder == "cloud" and not self.push:
            raise BergError("--builder cloud leaves no image on this computer: give --push as well")
        for platform in self.all_platforms:
            if platform not in PLATFORMS:
                raise BergError(
                    f"--platform {platform!r}: there are {', '.join(PLATFORMS)}, or both with a "
                    "comma"
                )


@dataclass
class Build:
    """One build: what it is made of, in files, and what comes of it."""

    image: str  # full name
    context: Path
    dockerfile: Path
    platforms: list[str]
    arguments: list[str]  # for the Dockerfile


def build(config: Config, wanted: Wanted, folder: Path, say: Say) -> str:
    """Build the image of the repo around `folder`, and push it if that is wanted; returns its full
    name.
    """
    wanted.check()
    taken = snapshot.take(folder)
    file = wanted.file or taken.root / "Dockerfile"
    with tempfile.TemporaryDirectory(prefix="berg-image-") as temporary:
        context, written = Path(temporary, "context"), Path(temporary, "Dockerfile")
        snapshot.write_out(taken, context)
        own = file_in(context, taken.root, file)
        if own:
            check_no_choice(wanted, own.name)
            say(f"Install   what {own.name} says")
        content = own.read_bytes() if own else made_for(config, taken, folder, wanted, say)
        written.write_bytes(content)
        write_ignore_files(context, taken.root, file)
        name, tag = wanted.name or label(taken.repo_name) or "image", taken.commit
        builder = choose(wanted)
        image = builds.full_name(config, name, tag)
        if wanted.push:
            prepare_push(config, wanted, name, tag, say)
        given = ["--build-arg", f"PYTHON_VERSION={wanted.python}"] if wanted.python else []
        this = Build(image, context, written, wanted.all_platforms, given)
        say(
            f"Building {image}\nwith {builder}, of {commit_in_words(taken)}, for "
            f"{', '.join(this.platforms)}"
        )
        BUILDERS[builder](config, this, wanted.push, say)
        if wanted.push:
            admit_readers(config, say)
    return image


def admit_readers(config: Config, say: Say) -> None:
    """Let the accounts of machines and of clusters' nodes read the images; the user that made a
    cluster chose the account of its nodes.
    """
    for each in sorted({config.service_account, *gke.accounts(config)} - {"", "default"}):
        builds.admit_readers(replace(config, service_account=each), builds.IMAGE_READER, say)


# --- what goes into it


def file_in(context: Path, root: Path, file: Path) -> Path | None:
    """Return where a file of the repo is in the context, through links that stay in it, or None.

    A file that the user named outside of the repo, or that git ignores, is where it is. Raise
    BergError for a link to what is not in the context: its author may be another than the user.
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
    """Raise BergError for a choice of what is installed, which is that of a Dockerfile."""
    if wanted.extras or wanted.groups or wanted.install or wanted.install_script:
        raise BergError(
            f"{name} says what is installed: leave out --extra, --group, --install and "
            "--install-script, or install it there"
        )


def made_for(
    config: Config, taken: snapshot.Snapshot, folder: Path, wanted: Wanted, say: Say
) -> bytes:
    """Return a Dockerfile for a repo without one, on the image that Python's tag names now, by its
    digest; `say` hears what it installs.
    """
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
    base = registry.pin(config, f"python:{python}-slim")
    if base.why_not:
        say(f"{base.image} is used by its tag: {base.why_not}")
    repo = repo_name(taken.root.name)
    text = dockerfile.write(what, files, repo, wanted.install_script, base.image)
    say("\n          ".join([f"Install   {what.words}", *what.notes]))
    say(
        f"{taken.root} has no Dockerfile; this one is used. Save it as Dockerfile to change it:"
        f"\n\n{text}"
    )
    return text.encode()


def write_ignore_files(context: Path, root: Path, file: Path) -> None:
    """Let the builders see what is to be left out: what is written for this Dockerfile alone, or
    for all. They would follow a link out of the context.
    """
    own = file.with_name(f"{file.name}.dockerignore")
    sources = {".dockerignore": [own, root / ".dockerignore"]}
    sources[".containerignore"] = [root / ".containerignore"]  # podman's name for it
    for name, candidates in sources.items():
        found = [place for each in candidates if (place := file_in(context, root, each))]
        if found:
            content = found[0].read_bytes()
            (context / name).unlink(missing_ok=True)
            (context / name).write_bytes(content)


def prepare_push(config: Config, wanted: Wanted, name: str, tag: str, say: Say) -> None:
    """Make the repository where there is none; raise BergError where nothing can be pushed."""
    if builds.ensure(config):
        say(f"Made the repository {builds.REPOSITORY} in {config.region}")
    builds.check_push(config)
    if not wanted.force and builds.digest(config, name, tag):
        image = builds.full_name(config, name, tag)
        raise BergError(
            f"{image} is there already, of this very commit. Run with it: --docker {image}; "
            "or build it anew in its place: --force"
        )


def commit_in_words(taken: snapshot.Snapshot) -> str:
    """Say which commit a snapshot is of, and how many files were changed since."""
    if not taken.dirty:
        return f"commit {taken.head[:12]}"
    changed = plain.plural(len(taken.all_changed()), "changed file")
    return f"commit {taken.head[:12]} and {changed}"


# --- who builds it


def choose(wanted: Wanted) -> str:
    """The builder: that which was named, or docker, or podman, whichever is there; raises BergError
    if none is.
    """
    obstacles: dict[str, Callable[[], str]]
    obstacles = {"docker": docker_obstacle, "podman": podman_obstacle, "cloud": lambda: ""}
    if wanted.builder:
        if why := obstacles[wanted.builder]():
            raise BergError(f"--builder {wanted.builder}: {why}")
        return wanted.builder
    whys = []
    for name in ("docker", "podman"):
        if not (why := obstacles[name]()):
            return name
        whys.append(why)
    raise BergError(
        f"nothing here builds images: {'; '.join(whys)}. Install podman, for example: "
        f"{computer.install_command('podman')}; or let Google build it: --builder cloud --push"
    )


def docker_obstacle() -> str:
    """Why docker builds nothing here; "" if it does."""
    if not shutil.which("docker"):
        return "docker is not installed"
    if quietly("docker", "buildx", "version"):
        return "docker has no buildx (https://docs.docker.com/go/buildx)"
    return "docker has no daemon that answers" if quietly("docker", "info") else ""


def podman_obstacle() -> str:
    return "" if shutil.which("podman") else "podman is not installed"


def quietly(*command: str, env: dict[str, str] | None = None) -> int:
    """The exit code of a command that nobody sees."""
    variables = {**os.environ, **NO_FOREIGN_GIT, **(env or {})}
    return subprocess.run(
        command, env=variables, stdin=subprocess.DEVNULL, capture_output=True
    ).returncode


def docker(config: Config, this: Build, push: bool, say: Say) -> None:
    """Build with docker buildx; without a push one platform comes to docker's own images, several
    stay in its cache.
    """
    command = [
        "docker",
        "buildx",
        "build",
        "--platform",
        ",".join(this.platforms),
        "--tag",
        this.image,
    ]
    command += ["--file", str(this.dockerfile), *this.arguments]
    if len(this.platforms) > 1:  # docker's own builder makes one
        if quietly("docker", "buildx", "inspect", "berg") and quietly("docker", *builds.CREATE):
            raise BergError(
                "docker has no builder for several platforms. See why: docker buildx create --name "
                "berg"
            )
        command += ["--builder", "berg"]
    with login(config, "docker") as variables:
        run(
            [*command, *([] if push or len(this.platforms) > 1 else ["--load"]), str(this.context)],
            variables,
            say,
        )
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
            quietly("podman", "manifest", "rm", this.image)  # it would keep what is in it
            run([*command, *more, str(this.context)], variables, say)
            # Its cache takes an image for that of another platform if nothing in its making
            # differs.
            if not (lacking := set(this.platforms) - listed(this.image)):
                break
        else:
            raise BergError(
                f"podman built no image for {', '.join(sorted(lacking))}. Try: --builder docker"
            )
    if push:
        with login(config, "podman") as variables:
            run(
                [
                    "podman",
                    "manifest",
                    "push",
                    "--all",
                    trust,
                    this.image,
                    f"docker://{this.image}",
                ],
                variables,
                say,
                "pushed",
            )


def listed(image: str) -> set[str]:
    """The platforms of a list of images among podman's own."""
    ran = subprocess.run(["podman", "manifest", "inspect", image], capture_output=True, text=True)
    rows = json.loads(ran.stdout)["manifests"] if ran.returncode == 0 else []
    return {f"{row['platform']['os']}/{row['platform']['architecture']}" for row in rows}


def run(command: list[str], variables: dict[str, str], say: Say, done: str = "built") -> None:
    """Run a builder, and let people see what it prints; raises BergError if it fails."""
    kept: deque[str] = deque(maxlen=LAST)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        env={**os.environ, **NO_FOREIGN_GIT, **variables},
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout
        try:
            for line in process.stdout:
                text = line.decode(errors="replace").rstrip()
                plain.echo(text, err=True)
                kept.extend([text] if text.strip() else [])
        except BaseException:  # somebody left
            process.terminate()
            raise
    if process.returncode:
        last = "\n".join(kept).lower()
        hint = (
            "\nThis computer cannot run programs of that platform. Install qemu-user-static, or: "
            "--builder cloud"
        )
        raise BergError(
            f"the image could not be {done}: {command[0]} ended with exit code "
            f"{process.returncode}; what it said is above" + hint * ("exec format error" in last)
        )


@contextlib.contextmanager
def login(config: Config, builder: str) -> Iterator[dict[str, str]]:
    """Variables with which a builder knows who one is at the project's registry, beside what else
    it knows.

    The token lies in a file for as long as that takes; the person's own settings stay as they are.
    """
    from google.auth.transport.requests import Request

    own = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    known = read(own / "config.json")
    known.setdefault("auths", {})
    if builder == "podman":
        known["auths"] |= podman_logins()

    config.credentials.refresh(Request())
    host, pair = builds.host(config), f"{USER}:{config.credentials.token}"
    known["auths"][host] = {"auth": base64.b64encode(pair.encode()).decode()}
    helpers = dict(known.get("credHelpers", {}))
    helpers.pop(host, None)
    # To docker an empty name says that no helper has it.
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


def podman_logins() -> dict[str, Any]:
    """Return what podman knows of registries, from its own files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    found: dict[str, Any] = {}
    for folder in (Path.home() / ".config", Path(runtime)):
        found |= read(folder / "containers/auth.json").get("auths", {})
    return found


def read(file: Path) -> dict[str, Any]:
    try:
        written: dict[str, Any] = json.loads(file.read_text())
        return written
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BergError(f"cannot read {file}: {error}. Mend it, or move it away") from None


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
                f"{error.message}\nIts right was granted just now, which takes minutes to count. "
                "Building again"
            )
            time.sleep(5)


BUILDERS: dict[str, Callable[[Config, Build, bool, Say], None]] = {
    "docker": docker,
    "podman": podman,
    "cloud": cloud,
}

MPI = ["openmpi-bin", "libopenmpi-dev"]

# What an image may have as well -> packages of Debian's.
ADDITIONS = {
    "horovod": [*MPI, "cmake", "g++", "make", "python3-dev"],
    "openmpi": MPI,
    "tmux": ["tmux"],
}

CPUS, HOURS = 8, 2

FAMILY = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")

LOOK = 2  # seconds between two looks at the console

READY, FAILED = "The disk is ready to be an image", "The disk is no image: "  # boot.py's words


@dataclass
class MachineImage:
    """What image is to be made; "" and 0 stand for what is usual."""

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
    """Return what is to be done; raise BergError for what is not possible."""
    for extra in wanted.additions:
        if extra not in ADDITIONS:
            raise BergError(
                f"--with {extra!r}: there are {', '.join(ADDITIONS)}, or several with commas"
            )
    family = wanted.family or f"berg-{label(snapshot.find_root(folder).name)[:35].strip('-')}"
    if not FAMILY.fullmatch(family):
        raise BergError(
            f"--family {family!r} cannot be one: give up to 40 lower-case letters, digits and "
            "dashes, beginning with a letter"
        )
    now = datetime.now(timezone.utc)
    project, _, source = wanted.source.rpartition("/")
    project = project or (config.project if source else "")
    source = source or config.default_image
    found = offers.find_image(config, source, project or config.default_image_project)
    config = replace(config, default_image=source)
    config.default_image_project = found.split("/")[1]
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
    made = launch.prepare(config, spec, folder, image_for="gpu")
    return replace(
        made, job=replace(made.job, kind="image", stops_when_idle=False, keeps_disk=False)
    )


def request(plan: Plan, wanted: MachineImage) -> dict[str, Any]:
    """Return what the machine is to be, by zone: one that prepares its disk."""
    packages = [package for extra in wanted.additions for package in ADDITIONS[extra]]
    recipe = {
        "packages": list(dict.fromkeys(packages)),
        "horovod": "horovod" in wanted.additions,
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
    """Return the request that makes the machine, as people read it."""
    first = next(iter(request(plan, wanted).values()))
    return launch.without_script({"name": plan.job.job_name, **first})


def create(
    plan: Plan, wanted: MachineImage, say: Say, on_progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Make the image, and return its body; of anything else nothing is left, whatever happens."""
    config, name = plan.config, plan.job.job_name
    launch.send_code(plan, Bucket(config), say, on_progress)
    try:
        zone = gce.create(config, request(plan, wanted), [name], False, say, lambda: None)
        wait_until_ready(config, name, zone, say)
        say(f"Stopping {name}")
        stop(config, name, zone)
        say(f"Making the image {name}")
        made = image_body(plan, wanted)
        instances.make(config, name, zone, made)
    finally:
        delete_machine(config, name, say)
    return {"name": name, **made}


def image_body(plan: Plan, wanted: MachineImage) -> dict[str, Any]:
    """Return what the image says of itself."""
    this = plan.job
    extras = f", with {', '.join(wanted.additions)}" if wanted.additions else ""
    source = api.last_part(plan.offer.image)
    return {
        "family": this.job_name.rsplit("-", 2)[0],
        "labels": {"berg": "1", "berg-user": plan.config.user},
        "description": f"{source}; {this.repo_name} at {this.git_snapshot[:12]}{extras}",
    }


def wait_until_ready(config: Config, name: str, zone: str, say: Say) -> None:
    """Wait until the machine has prepared its disk; `say` hears what its console says.

    Raise BergError if it could not, or went away.
    """
    shown = 0
    while True:
        there = instances.find(config, names=[name], zone=zone)
        lines = said_by(config, Machine(name, zone))
        for line in lines[shown:]:
            say(line)
        shown = len(lines)
        for line in lines:
            if line.startswith(FAILED):
                raise BergError(f"no image was made: {line.removeprefix(FAILED)}")
        if READY in lines:
            return
        if all(machine.status in GOING for machine in there):
            raise BergError(f"no image was made: the machine {name} went away")
        time.sleep(LOOK)


def said_by(config: Config, machine: Machine) -> list[str]:
    """Return the lines of berg's on a machine's console."""
    return [line.strip() for line in STARTUP_LINE.findall(instances.serial_output(config, machine))]


def stop(config: Config, name: str, zone: str) -> None:
    """Turn a machine off, so that all of its disk is written."""
    path = f"/zones/{zone}/instances/{name}/stop"
    api.wait(config, api.call(config, "POST", path, requestId=str(uuid.uuid4())))


def delete_machine(config: Config, name: str, say: Say) -> None:
    """Delete the machine with its disk, if it is there; say how to, if that fails."""
    try:
        machines = instances.find(config, names=[name])
        if machines:
            say(f"Deleting the machine {name}")
        gce.delete(config, name, machines)
    except BaseException:
        say(f"The machine {name} may be there still. Delete it:  berg kill --now {name}")
        raise


def lacks_default(config: Config) -> bool:
    """Return whether jobs boot by default what the project has no image of."""
    if config.default_image_project != config.project:
        return False
    try:
        offers.find_image(config, config.default_image, config.project)
    except BergError:
        return True
    return False


def described(image: dict[str, Any]) -> dict[str, Any]:
    """Return what a list says of an image of Google's."""
    made = api.time_of(image["creationTimestamp"]).astimezone(timezone.utc)
    return {
        "name": image["name"],
        "family": image.get("family", ""),
        "disk_gb": int(image["diskSizeGb"]),
        "status": image["status"],
        "created_at": job.timestamp(made),
        "user": image.get("labels", {}).get("berg-user", ""),
        "description": image.get("description", ""),
    }

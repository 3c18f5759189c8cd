"""Log in to machines with plain OpenSSH.

    ~/.ssh/google_compute_engine   the key, shared with gcloud
    BERG_HOME/known_hosts          host keys by <machine>.<instance id>
    BERG_HOME/ssh/<machine>        the Host entry that ssh, rsync and editors read

A machine publishes its host keys and the port of its ssh server in its guest attributes, which no
other machine can write. The first login pins the keys: from then on ssh refuses any other. Berg's
own logins read no ssh configuration but Berg's: a `Host *` with ForwardAgent or RemoteForward would
hold for machines that run other people's code.

Jupyter of a machine is shown in the browser of this computer, through a tunnel. Its token is in no
command line and no log: the browser gets a file that only its owner may read, and that is deleted
with the tunnel. A browser sends the cookies of a host to all of its ports, so each tunnel has an
address of its own in 127.0.0.0/8: other users' servers at 127.0.0.1 get none of Jupyter's. macOS
has 127.0.0.1 alone.
"""

import contextlib
import functools
import html
import math
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

from berg import BergError, computer, gce, job, places, validation
from berg import config as settings
from berg.config import Config
from berg.google import api, iam, instances, offers
from berg.google.instances import HOST_KEY
from berg.google.storage import Bucket
from berg.job import Login, Machine
from berg.laptop import jobs
from berg.laptop.jobs import Say

TIMEOUT = 600  # seconds for a machine to boot and to publish its keys
NO_ANSWER = 60  # seconds for a machine with published keys to answer: it may be rebooting
INTERVAL, MESSAGE_INTERVAL = 0.5, 5  # seconds between two looks, and between two messages
KEY_LOCK = threading.Lock()  # several machines are reached in parallel
COMING = ("PROVISIONING", "STAGING", "RUNNING", "REPAIRING")
# What entries switch off in the user's own configuration.
OFF = {
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ForwardX11Trusted": "no",
    "Tunnel": "no",
    "PermitLocalCommand": "no",
    "ControlMaster": "no",
    "ControlPath": "none",  # a connection to an earlier machine of this address
}
FORWARDS = ("localforward", "remoteforward", "dynamicforward")  # as `ssh -G` prints them
VARIABLES = ("sendenv", "setenv")

Found = TypeVar("Found")


class NoServer(BergError):
    """The machine has no ssh server. `shell` is the command that runs others there; [] if none."""

    def __init__(self, message: str, shell: list[str]):
        super().__init__(message)
        self.shell = shell


@dataclass
class Target:
    """A machine that can be logged in to."""

    machine: str
    job: str
    instance_id: str
    address: str  # "": it has no external address, and is reached through `proxy`
    port: int
    host_keys: list[str]
    proxy: list[str]
    key_is_new: bool = False  # it was given our key just now

    @property
    def host(self) -> str:
        return self.address or self.machine

    @property
    def alias(self) -> str:
        """The name of its pinned host keys: a later machine may have its name or address."""
        return f"{self.machine}.{self.instance_id}"


# --- the key


def key_file() -> Path:
    return Path.home() / ".ssh/google_compute_engine"


def public_key(create: bool, say: Say = lambda text: None) -> str | None:
    """Return the public key that machines should know; None if there is none."""
    private = key_file()
    public = private.with_name(f"{private.name}.pub")
    if create:
        if public.exists() and not private.exists():
            raise BergError(
                f"{public} has no private key next to it. Move it away; berg then makes a new pair"
            )
        if not private.exists():
            make_key(private, say)
        elif not public.exists():
            public.write_text(run(["ssh-keygen", "-y", "-f", str(private)]))
    return public.read_text().strip() if private.exists() and public.exists() else None


def make_key(private: Path, say: Say) -> None:
    """Make a key as gcloud does, RSA without a passphrase, unless another process does first."""
    private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    comment = f"{settings.Config().user}@{socket.gethostname()}"
    with tempfile.TemporaryDirectory(dir=private.parent) as folder:
        new = Path(folder, private.name)
        words = ["-q", "-t", "rsa", "-b", "3072", "-N", "", "-C", comment, "-f", str(new)]
        run(["ssh-keygen", *words])
        new.chmod(0o600)
        try:
            private.hardlink_to(new)
        except FileExistsError:
            return
        new.with_name(f"{new.name}.pub").replace(private.with_name(f"{private.name}.pub"))
    say(f"Created the ssh key {private}, which gcloud uses, too")


def metadata_line(config: Config, key: str) -> str:
    """Return a public key as a line of the metadata value `ssh-keys`."""
    return f"{config.ssh_user}:{key}"


def run(command: list[str]) -> str:
    """Return what a program prints; raise BergError with its message if it fails."""
    program = require(command[0])
    done = subprocess.run(
        [program, *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        message = done.stderr.strip() or done.stdout.strip()
        raise BergError(f"{shlex.join(command)} failed: {message}")
    return done.stdout


def require(program: str) -> str:
    """Return the path of a program; raise BergError if it is not installed."""
    found = shutil.which(program)
    if not found and program == "gcloud":
        raise NoServer(
            "gcloud is not installed; berg reaches machines without an external address through "
            "its tunnel. Install it: https://cloud.google.com/sdk/docs/install, and run: "
            "gcloud auth login",
            [],
        )
    if not found:
        raise BergError(
            f"{program} is not installed. Install OpenSSH's client, for example: "
            f"{computer.install_command('openssh-client')}"
        )
    return found


# --- a machine to log in to


def find_target(config: Config, name: str, say: Say, timeout: float = TIMEOUT) -> Target:
    """Wait until the machine of that name, or the first of the job, accepts logins; return it.

    Raises BergError for an unknown name, and for a machine that is gone, does not start or does
    not answer within `timeout` seconds.
    """
    began, silent_since = time.monotonic(), math.inf

    def reachable() -> tuple[Target | None, str]:
        nonlocal silent_since
        target, missing = look(config, name, say)
        if target is None:
            return None, missing
        pin(target)
        # For tunnels it is expensive to ask.
        if not target.address or computer.listens(target.address, target.port, 5):
            return target, ""
        missing = f"nothing answers at {target.host} port {target.port}"
        silent_since = min(silent_since, time.monotonic())
        if time.monotonic() > min(silent_since + NO_ANSWER, began + timeout):
            raise BergError(f"{target.machine} runs, but {missing}. {advice(config, target)}")
        return None, missing

    target = wait_for(name, reachable, say, timeout)
    if target.key_is_new:
        wait_for_key(config, target, say)
    write_entry(config, target)
    return target


def wait_for(
    name: str, look: Callable[[], tuple[Found | None, str]], say: Say, timeout: float
) -> Found:
    """Return what `look` finds; until then, `say` every few seconds what it reports as missing."""
    began, last_message = time.monotonic(), -math.inf
    while True:
        found, missing = look()
        if found is not None:
            return found
        waited = time.monotonic() - began
        if waited > timeout:
            raise BergError(
                f"cannot log in to {name} after {waited:.0f} s: {missing}. See: berg log {name}"
            )
        if waited > last_message + MESSAGE_INTERVAL:
            last_message = waited
            so_far = f" ({waited:.0f} s)" if waited >= 1 else ""
            say(f"Waiting for {name}: {missing}{so_far}")
        # A project has 750 such requests a minute for all of its users.
        time.sleep(min(INTERVAL + waited / 30, 5))


def look(config: Config, name: str, say: Say) -> tuple[Target | None, str]:
    """Return the machine if it can be reached, or what is still missing.

    Raises BergError if it will never be reachable.
    """
    found = jobs.find(config, name)
    machine = found.machine
    if machine is None:
        return None, still_missing(found)
    if machine.silence:
        raise BergError(f"{machine.name}: {machine.silence}. End it: berg kill {found.name}")
    if machine.status not in COMING:
        if found.is_stopped:
            raise BergError(f"{found.name} is stopped. Start it: berg start {found.name}")
        status = f"{machine.status} ({found.status}{reason_of_end(found.state)})"
        raise BergError(f"the machine {machine.name} is {status}")
    if machine.status != "RUNNING":
        return None, f"the machine {machine.name} is {machine.status}"
    check_account(config, found, machine)
    target = reach(config, found.name, machine, say)
    return target, "" if target else still_missing(found)


def still_missing(found: jobs.Entry) -> str:
    """Return what a login to a job still waits for; raise BergError if the job has ended."""
    state, machine = found.state, found.machine
    if machine is None:
        assert state
        if state.state == "SUBMITTED":
            return "its machine is being created"
        raise BergError(
            f"{found.name} has no machine any more (the job is {state.state}"
            f"{reason_of_end(state)}). Its log: berg log {found.name}"
        )
    if state is None:
        return f"the machine {machine.name} boots"
    if state.final:
        ended = f"{state.state}{reason_of_end(state)}"
        raise BergError(f"{machine.name} accepts no logins any more: the job is {ended}")
    return f"the machine {machine.name} boots, the job is {state.state}"


def reason_of_end(state: job.State | None) -> str:
    """Return the reason of a job's end after a colon; "" while it runs."""
    return f": {state.reason}" if state and state.final and state.reason else ""


def check_account(config: Config, found: jobs.Entry, machine: Machine) -> None:
    """Raise BergError for a machine that is mine by name but does not act as my own account.

    Anyone who can create machines can give one that name and these labels.
    """
    by_name = config.user in (found.user, machine.labels.get("berg-user"))
    if machine.place == "gke" or not by_name or not iam.is_own(config):
        return
    if not jobs.is_mine(config, machine):
        raise BergError(
            f"{machine.name} in {machine.zone} acts as {machine.account or 'no account'}, and your "
            f"machines as {config.service_account}: another person may have created it. If it is "
            "yours, from before your account changed, log in without berg: gcloud compute ssh "
            f"root@{machine.name} --zone {machine.zone}"
        )


def advice(config: Config, target: Target) -> str:
    """Return what to do if nothing answers.

    Root on a machine chooses the port that it names, so only the settings' port is ever opened.
    """
    if target.port != config.ssh_port:
        return (
            f"Your settings name port {config.ssh_port}, the machine itself named {target.port}. "
            "If its image has its ssh server there: "
            f"berg config set ssh_port {target.port}"
        )
    command = offers.let_ssh_in(config, target.port, not target.address)
    return f"If a firewall blocks it: {command}"


def reach(config: Config, job_name: str, machine: Machine, say: Say) -> Target | None:
    """Return how to reach a running machine; None until it has published that.

    The machine gets our key if it lacks it; the key is made if there is none.
    """
    place, name = places.of(machine.place), machine.name
    login = place.login(config, machine) or from_record(config, job_name, machine)
    if login is None:
        return None
    if not login.port:
        why = "see: berg local status" if config.endpoint else "does its image have openssh-server?"
        raise NoServer(f"the machine {name} runs no ssh server; {why}", place.shell(machine))
    keys = pinned(f"{name}.{machine.id}") or login.host_keys
    if not keys:
        raise BergError(
            f"{name} published no host keys where other machines cannot write (guest attributes): "
            "the organisation forbids them, or the machine accepts no more of them. "
            f"Log in without berg: gcloud compute ssh root@{name} --zone {machine.zone}"
        )
    with KEY_LOCK:
        key = public_key(create=True, say=say) or ""
    address, proxy = machine.external_ip, place.proxy(config, machine)
    if not address:
        require(proxy[0])
    is_new = place.let_in(config, machine, metadata_line(config, key))
    if is_new is None:
        return None
    return Target(name, job_name, machine.id, address, login.port, keys, proxy, is_new)


@dataclass
class Record:
    """What a machine writes about itself to the bucket, where every machine may write."""

    instance_id: str
    host_keys: list[str] = field(default_factory=list)
    introduced: bool = True  # to the other machines of its cluster


def from_record(config: Config, job_name: str, machine: Machine) -> Login | None:
    """Return how to log in to a machine by its record in the bucket; None before it is written.

    No port or key in it counts for machines of Compute Engine. Pods are reached through the
    cluster's API, which leads to no other pod, so theirs count.
    """
    bucket, path = Bucket(config), f"{job.machines_prefix(job_name)}{machine.name}.json"
    data = bucket.read_from(path, 0, validation.MOST_BYTES + 1)
    if not data:
        return None
    is_pod = machine.place == "gke"
    try:
        record = validation.from_dict(Record, validation.parse(data))
        validation.check_plain(record, free=())
    except ValueError as error:
        why = f"gs://{bucket.name}/{path} is damaged ({error}): another job may have written it"
        if is_pod:
            shell = places.of(machine.place).shell(machine)
            raise NoServer(f"{why}. {machine.name} is fine", shell) from None
        raise BergError(
            f"{why}. {machine.name} is fine, and writes it again when it restarts. Until then: "
            f"gcloud compute ssh root@{machine.name} --zone {machine.zone}"
        ) from None
    if record.instance_id != machine.id or not record.introduced:
        return None  # of an earlier machine of that name, or too early
    if is_pod:
        keys = [key for key in record.host_keys if HOST_KEY.fullmatch(key)]
        return Login(0, 22 if keys else 0, keys)
    return Login(0, config.ssh_port if record.host_keys else 0, [])


def known_hosts_file() -> Path:
    return settings.home() / "known_hosts"


def pinned(alias: str) -> list[str]:
    """Return the pinned host keys of a machine."""
    file = known_hosts_file()
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.partition(" ")[2] for line in lines if line.startswith(f"{alias} ")]


def pin(target: Target) -> None:
    """Pin a machine's host keys, unless some are pinned: those stay."""
    file = known_hosts_file()
    if not pinned(target.alias):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file.open("a") as output:
            output.write("".join(f"{target.alias} {key}\n" for key in target.host_keys))


def wait_for_key(config: Config, target: Target, say: Say) -> None:
    """Wait until the machine knows our key; the login itself reports any other fault."""
    probe = [require("ssh"), *command(config, target, ["-o", "BatchMode=yes"], ["true"])[1:]]
    say(f"Adding your key to {target.machine}")

    def is_known() -> bool:
        done = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return "Permission denied" not in done.stderr

    api.wait_for(is_known, INTERVAL, NO_ANSWER)


def worker(config: Config, name: str, rank: int, say: Say) -> str:
    """Wait until the machine of a rank in a cluster is known, and return its name.

    Raises BergError for a rank that the cluster does not have, and for a job that has ended.
    """

    def of_rank() -> tuple[str | None, str]:
        found = jobs.find(config, name)
        last = found.summary.machines - 1
        if not 0 <= rank <= last:
            raise BergError(f"{found.name} has no machine with the number {rank}: 0 to {last}")
        if last == 0:
            return found.name, ""
        names = job.machine_names(found.name, last + 1)
        for machine in found.machines:
            if instances.WARM in machine.labels:
                names = job.names_beside(machine.name, last + 1)
            if machine.place != "tpu":
                if machine.name == names[rank]:
                    return machine.name, ""
            # Google numbers the workers of slices, so their names do not have the rank.
            elif (login := gce.login(config, machine)) and login.rank == rank:
                return machine.name, ""
        if found.machine is None:
            return None, still_missing(found)
        missing = f"nothing is known of number {rank} yet"
        if found.state:
            missing += f", the job is {found.state.state}{reason_of_end(found.state)}"
        return None, missing

    return wait_for(name, of_rank, say, TIMEOUT)


def check_port(forward: str) -> None:
    """Raise BergError if the port of PORT:HOST:PORT is taken here; ssh would accept one that is
    free only for ::1.
    """
    port = forward.partition(":")[0]
    if forward.count(":") != 2 or not port.isdigit() or int(port) > 65535:
        return  # ssh knows more forms, and reports what is wrong with them
    try:
        computer.free_port(int(port))
    except OSError as error:
        raise BergError(
            f"port {port} of this computer cannot be used ({error.strerror}): choose another, "
            f"as in -L 1{forward}"
        ) from None


# --- the command line


def options(config: Config, target: Target) -> list[str]:
    """Return arguments for ssh, and for `rsync -e`, that lead to this machine and to no other.

    They skip the ssh configuration of the user and of the computer.
    """
    values = [f"{key}={value}" for key, value in keywords(target).items()]
    return ["-F", "/dev/null", *(word for value in values for word in ("-o", value))]


def destination(config: Config, target: Target) -> str:
    return f"{config.ssh_user}@{target.host}"


def command(
    config: Config, target: Target, ssh_options: list[str], remote_command: list[str]
) -> list[str]:
    """Return the command that logs in, or runs a command there; ssh joins its words by spaces."""
    words = ["--", *remote_command] if remote_command else []
    return ["ssh", *options(config, target), *ssh_options, destination(config, target), *words]


def keywords(target: Target) -> dict[str, str]:
    """Return the settings of ssh_config(5) for a machine."""
    values = {
        "Port": str(target.port),
        "HostKeyAlias": target.alias,
        "UserKnownHostsFile": as_path(known_hosts_file()),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "CheckHostIP": "no",
        "IdentityFile": as_path(key_file()),
        # Servers end the connection after a few keys, and an agent may have many.
        "IdentitiesOnly": "yes",
        "PreferredAuthentications": "publickey",
        "ConnectTimeout": "30",
        "ServerAliveInterval": "30",
        "ServerAliveCountMax": "3",
    }
    if not target.address:
        values["ProxyCommand"] = shlex.join(target.proxy)
    return values


def as_path(path: Path) -> str:
    """Return a path as ssh reads it: % begins a token, and a blank ends a word."""
    text = str(path.absolute()).replace("%", "%%")
    return f'"{text}"' if " " in text else text


def run_everywhere(
    config: Config, name: str, words: list[str], say: Say, write: Callable[[str], None]
) -> int:
    """Run a command on all machines of a job in parallel.

    `write` gets the lines of their output, each after the name of its machine. Returns the exit
    code of the first machine, in the order of their names, on which it failed.
    """
    found = jobs.find(config, name)
    names = sorted(machine.name for machine in found.machines) or [name]
    width, writing = max(map(len, names)), threading.Lock()

    def run_on(machine: str) -> int:
        target = find_target(config, machine, say)
        line = command(config, target, ["-o", "BatchMode=yes"], in_repo(words))
        with subprocess.Popen(
            [require("ssh"), *line[1:]],
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            for text in process.stdout or []:
                with writing:
                    write(f"{machine:<{width}} | {text.rstrip()}")
        return process.returncode

    with ThreadPoolExecutor(len(names)) as pool:
        codes = list(pool.map(run_on, names))
    return next((code for code in codes if code), 0)


def in_repo(words: list[str]) -> list[str]:
    """Return a command that runs in the folder of the repo on its machine; none stays none."""
    return ['cd "${BERG_REPO_DIR:-.}";', *words] if words else []


# --- entries for ssh, rsync and editors


def entry_file(machine: str) -> Path:
    return settings.home() / "ssh" / machine


def write_entry(config: Config, target: Target) -> None:
    """Write the Host entry of a machine; the first of a cluster also answers to the job's name.

    OpenSSH collects forwarded ports from all entries that match, so they are cleared if the user's
    own configuration has some.
    """
    names = [target.machine]
    if target.machine != target.job and not target.machine.removeprefix(target.job).strip("-0"):
        names.append(target.job)
    values = {"HostName": target.host, "User": config.ssh_user, **keywords(target), **OFF}
    if any(line.startswith(FORWARDS) for line in of_all_hosts(target.machine)):
        values["ClearAllForwardings"] = "yes"
    lines = [f"Host {' '.join(names)}", *(f"    {key} {value}" for key, value in values.items())]
    computer.write(entry_file(target.machine), "\n".join([*lines, ""]))


def refresh_entry(config: Config, job_name: str, machine: Machine) -> None:
    """Write the entry of a machine again if there is one: its address may be new."""
    if not entry_file(machine.name).exists():
        return
    if target := reach(config, job_name, machine, jobs.silent):
        pin(target)
        write_entry(config, target)


def of_all_hosts(name: str) -> list[str]:
    """Return the lines of `ssh -G` by which ~/.ssh/config forwards ports or sends variables to a
    machine.
    """
    if not user_config().exists():
        return []
    # An entry that exists may hide them.
    options = ["-F", str(user_config()), "-o", "ClearAllForwardings=no"]
    command = [require("ssh"), *options, "-G", name]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(FORWARDS + VARIABLES)]
    return [line for line in lines if not line.startswith(("sendenv LANG", "sendenv LC_"))]


def warn(machine: str, say: Say) -> None:
    """Report what an entry switches off in the user's own configuration, and what it cannot."""
    lines = of_all_hosts(machine)
    forwards = [line for line in lines if line.startswith(FORWARDS)]
    variables = [line for line in lines if line.startswith(VARIABLES)]
    if forwards:
        say(
            f"Your ssh configuration forwards for all hosts: {', '.join(forwards)}. That is "
            "switched off for berg's machines, and with it what editors forward there"
        )
    if variables:
        say(
            f"Your ssh configuration sends variables to all hosts: {', '.join(variables)}. "
            "An editor sends them to berg's machines, too; berg ssh and berg sync do not"
        )
    if lines:
        say("Limit such lines to the hosts that need them")


def include_line() -> str:
    return f"Include {as_path(entry_file('*'))}"


def user_config() -> Path:
    return Path.home() / ".ssh/config"


def is_included() -> bool:
    file = user_config()
    return file.exists() and include_line() in map(str.strip, file.read_text().splitlines())


def include() -> None:
    """Put the Include at the beginning of ~/.ssh/config: after a Host line it would hold only for
    that host.
    """
    file = user_config()
    before = file.read_text() if file.exists() else ""
    computer.write(file, f"{include_line()}\n\n{before}")


JUPYTER_SCRIPT = Path(__file__).parents[1] / "machine/notebook.py"
TUNNEL_TIMEOUT = 30  # seconds for the tunnel to open
MOST = 100_000  # characters read from a machine about its server, or in a line
READY = "berg-tunnel"


@dataclass
class JupyterServer:
    """Where a machine's Jupyter server listens, as the machine reports it."""

    port: int
    token: str
    path: str


@contextlib.contextmanager
def jupyter(config: Config, name: str, say: Say) -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    """Open a tunnel to the Jupyter server of a machine, which is started if there is none.

    Yields a file for the browser, and the process of the tunnel; both end with the context. Raises
    BergError for a machine that cannot be logged in to, or has no Jupyter.
    """
    target = find_target(config, name, say)
    say(f"Looking for Jupyter on {target.machine}")
    server = find_server(config, target)
    host, port = free_address()
    options = ["-L", f"{host}:{port}:127.0.0.1:{server.port}", "-o", "ExitOnForwardFailure=yes"]
    # ssh runs this command when it has the port here; it ends with its input.
    words = command(config, target, options, ["echo", READY, "&&", "exec", "cat"])
    program, pipe = [require("ssh"), *words[1:]], subprocess.PIPE
    with (
        tempfile.TemporaryDirectory(prefix="berg-") as folder,
        subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, errors="replace") as tunnel,
    ):
        try:
            wait_for_tunnel(tunnel, target)
            yield write_page(Path(folder), server, f"{host}:{port}"), tunnel
        finally:
            tunnel.terminate()


def find_server(config: Config, target: Target) -> JupyterServer:
    """Return the Jupyter server of a machine; raise BergError with why there is none."""
    words = command(config, target, ["-o", "BatchMode=yes"], ["python3", "-"])
    code, output, errors = run_with_input([require("ssh"), *words[1:]], JUPYTER_SCRIPT)
    if "there is no Jupyter in " in errors:
        raise BergError(
            f"{target.machine} has no Jupyter in the environment of the repo, only in the image's "
            f"python. Install it: uv add --dev jupyterlab, then berg sync {target.machine}"
        )
    if "there is no Jupyter" in errors:
        raise BergError(
            f"{target.machine} has no Jupyter. Install it: "
            f"berg ssh {target.machine} -- python -m pip install jupyterlab"
        )
    if code:
        why = validation.clean(errors.strip().rpartition("\n")[2])
        raise BergError(f"Jupyter cannot be reached on {target.machine}: {why}")
    try:
        return server_from(output.rstrip().rpartition("\n")[2].encode())
    except ValueError as error:
        raise BergError(f"{target.machine} reports an invalid Jupyter server: {error}") from None


def run_with_input(program: list[str], script: Path) -> tuple[int, str, str]:
    """Run a program with a file as its input; return its exit code, output and errors.

    It is ended at MOST characters of one of them: a machine may print without end.
    """
    pipe = subprocess.PIPE
    with (
        script.open() as given,
        subprocess.Popen(
            program, stdin=given, stdout=pipe, stderr=pipe, text=True, errors="replace"
        ) as process,
        ThreadPoolExecutor() as pool,
    ):

        def read(stream: IO[str] | None) -> str:
            text = stream.read(MOST + 1) if stream else ""
            if len(text) > MOST:
                process.kill()
            return text

        output, errors = pool.map(read, (process.stdout, process.stderr))
        code = process.wait()
    if max(len(output), len(errors)) > MOST:
        errors += "\nit prints too much"
    return code, output, errors


def server_from(data: bytes) -> JupyterServer:
    """Return what a machine reports about its server; raise ValueError if it is invalid."""
    server = validation.from_dict(JupyterServer, validation.parse(data))
    if not 1 <= server.port <= 65535:
        raise ValueError(f"its port is {server.port}")
    if not re.fullmatch(r"[\w.~-]+", server.token, re.ASCII):
        raise ValueError("its token has characters that no token has")
    if not re.fullmatch(r"/[\w./~-]*", server.path, re.ASCII):
        raise ValueError("its path is not valid")
    return server


def free_address() -> tuple[str, int]:
    """Return a random address of this computer's loopback, and a port that is free there now."""
    host = ".".join(["127", *(str(1 + secrets.randbelow(254)) for _ in range(3))])
    try:
        return host, computer.free_port(host=host)
    except OSError:  # macOS has 127.0.0.1 alone
        return "127.0.0.1", computer.free_port()


def wait_for_tunnel(tunnel: "subprocess.Popen[str]", target: Target) -> None:
    """Wait until the machine confirms the login, when ssh has the port; raise BergError if it does
    not.

    The port itself proves nothing: another user of this computer may see it in ssh's arguments and
    be quicker.
    """
    assert tunnel.stdout
    timer = threading.Timer(TUNNEL_TIMEOUT, tunnel.terminate)
    timer.start()
    try:
        lines = iter(functools.partial(tunnel.stdout.readline, MOST), "")
        is_open = any(line.strip() == READY for line in lines)
    finally:
        timer.cancel()
    if not is_open:
        raise BergError(f"no tunnel to {target.machine} opened. See: berg ssh {target.machine}")


def write_page(folder: Path, server: JupyterServer, host: str) -> Path:
    """Write the file that leads a browser to a server, for its owner alone."""
    address = html.escape(f"http://{host}{server.path}?token={server.token}")
    page = folder / "jupyter.html"
    page.touch(mode=0o600)
    page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">\n')
    return page

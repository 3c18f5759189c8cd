"""Log in to machines with plain OpenSSH: the key, the host key to expect, and the command line.

    ~/.ssh/google_compute_engine   the key, which gcloud uses, too
    BERG_HOME/known_hosts          host keys by <machine>.<instance id>

A machine writes its host keys, its rank and the port of its ssh server to its guest attributes,
which no other machine can write. The first login pins the keys: from then on ssh refuses any
other. Our public key reaches the machine through its metadata, as with gcloud.

ssh reads no configuration but berg's: what a person's own file says for all hosts, such as
ForwardAgent or RemoteForward, would hold for machines that run other people's code.

A machine without an external address is reached through gcloud's tunnel, which takes gcloud's own
login.

Root's key is installed by berg's worker, whether OS Login is on or not; another user's by Google's
guest agent, which does it with OS Login off. Not covered: logging in by OS Login itself, Windows.

Entries for my running machines, for ssh, rsync and editors, in a file that ~/.ssh/config
includes.

    BERG_HOME/ssh_config           what `berg ssh-config` wrote

What ~/.ssh/config says for all hosts holds for these, too, so the entries switch off what would
hand something of this computer to a machine. Options that OpenSSH collects from all entries cannot
be switched off by one of them: forwarded ports are cleared where there are some, and variables
that are sent are named to the person.

Not covered: entries that come and go by themselves.
"""

import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from berg import BergError, computer, gate, gce, job, places
from berg import config as settings
from berg.config import Config
from berg.google import api, iam, offers
from berg.google.instances import HOST_KEY, vouched
from berg.google.storage import Bucket
from berg.job import Login, Machine
from berg.laptop import jobs
from berg.laptop.jobs import Entry

PATIENCE = 600  # seconds for a machine to boot and to publish its keys

NO_ANSWER = 60  # seconds for a machine that published them to answer: it may be rebooting

INTERVAL, TELL_INTERVAL = 0.5, 5  # seconds between two looks, and between two notes about them

KEY_MAKING = threading.Lock()  # several machines are reached at once

SSH_PORT = 22

COMING = ("PROVISIONING", "STAGING", "RUNNING", "REPAIRING")

Say = Callable[[str], None]


class NoServer(BergError):
    """The machine will never be reached by ssh; `shell` is the command that runs others there, if
    there is one.
    """

    def __init__(self, message: str, shell: list[str]):
        super().__init__(message)
        self.shell = shell


@dataclass
class Target:
    """A machine that can be logged in to."""

    machine: str
    job: str
    zone: str
    instance_id: str
    address: str  # "": it has no external one, and is reached through `proxy`
    port: int
    host_keys: list[str]
    proxy: list[str]
    key_is_new: bool = False  # our key was given to it just now

    @property
    def host(self) -> str:
        return self.address or self.machine

    @property
    def alias(self) -> str:
        """Under which name its host keys are pinned: another machine may have its name or address
        later.
        """
        return f"{self.machine}.{self.instance_id}"


def key_file() -> Path:
    return Path.home() / ".ssh/google_compute_engine"


def known_hosts_file() -> Path:
    return settings.home() / "known_hosts"


def public_key(create: bool, say: Say = lambda text: None) -> str | None:
    """Return the public key that machines are to know; None if there is none."""
    private = key_file()
    public = private.with_name(f"{private.name}.pub")
    if create:
        if public.exists() and not private.exists():
            raise BergError(
                f"{public} has no private key beside it. Move it away; berg then makes a new pair"
            )
        if not private.exists():
            make_key(private, say)
        elif not public.exists():
            public.write_text(run(["ssh-keygen", "-y", "-f", str(private)]))
    return public.read_text().strip() if private.exists() and public.exists() else None


def make_key(private: Path, say: Say) -> None:
    """Make a key as gcloud does, RSA without a passphrase, unless somebody else does meanwhile."""
    private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    comment = f"{settings.Config().user}@{socket.gethostname()}"
    with tempfile.TemporaryDirectory(dir=private.parent) as folder:
        made = Path(folder, private.name)
        words = ["-q", "-t", "rsa", "-b", "3072", "-N", "", "-C", comment, "-f", str(made)]
        run(["ssh-keygen", *words])
        made.chmod(0o600)
        try:
            private.hardlink_to(made)
        except FileExistsError:
            return
        made.with_name(f"{made.name}.pub").replace(private.with_name(f"{private.name}.pub"))
    say(f"Made the ssh key {private}, which gcloud uses, too")


def run(command: list[str]) -> str:
    """Output of a program; raises BergError with what it says when it fails."""
    program = require(command[0])
    done = subprocess.run(
        [program, *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise BergError(
            f"{shlex.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}"
        )
    return done.stdout


def require(program: str) -> str:
    found = shutil.which(program)
    if not found and program == "gcloud":
        raise NoServer(
            "the program gcloud is missing, through whose tunnel berg reaches machines without an "
            "external address. "
            "Install it: https://cloud.google.com/sdk/docs/install, and run: gcloud auth login",
            [],
        )
    if not found:
        raise BergError(
            f"the program {program} is missing. Install OpenSSH's client, for example: "
            f"{computer.install_command('openssh-client')}"
        )
    return found


def metadata_line(config: Config, key: str) -> str:
    """A public key as a line of the metadata value `ssh-keys`."""
    return f"{config.ssh_user}:{key}"


def find_target(config: Config, name: str, say: Say, patience: float = PATIENCE) -> Target:
    """The machine of that name, the job's or the cluster's first; waits until it can be logged in
    to.

    `say` hears every few seconds what it waits for. Raises BergError for a name that is unknown, a
    machine that is gone or does not come, and one that does not answer.
    """
    waiting = Waiting(name, say, patience)
    silent_since = None
    while True:
        target, missing = look(config, name, say)
        if target:
            pin(target)
            if answers(target):
                break
            silent_since = silent_since or time.monotonic()
            missing = f"nothing answers at {target.host} port {target.port}"
            if time.monotonic() > min(silent_since + NO_ANSWER, waiting.began + patience):
                raise BergError(f"{target.machine} runs, but {missing}. {advice(config, target)}")
        waiting.pause(missing)
    if target.key_is_new:
        wait_until_admitted(config, target, say)
    return target


def advice(config: Config, target: Target) -> str:
    """Return what to do where nothing answers. Whatever runs as root on a machine chooses the port
    that it names: only that of the settings is opened.
    """
    if target.port != config.ssh_port:
        return (
            f"Your settings name port {config.ssh_port}, the machine itself named {target.port}. "
            "If its image has its ssh server there: "
            f"berg config set ssh_port {target.port}"
        )
    mend = offers.let_ssh_in(config, target.port, not target.address)
    return f"If a firewall is in the way: {mend}"


@dataclass
class Waiting:
    """Patience with a machine that boots: `say` hears every few seconds what is missing."""

    name: str
    say: Say
    patience: float  # seconds
    began: float = field(default_factory=time.monotonic)
    told: float = -TELL_INTERVAL

    def pause(self, missing: str) -> None:
        """Wait a little before another look; raise BergError when that was for too long."""
        waited = time.monotonic() - self.began
        if waited > self.patience:
            raise BergError(
                f"{self.name} cannot be logged in to after {waited:.0f} s: {missing}. See: "
                f"berg log {self.name}"
            )
        if waited > self.told + TELL_INTERVAL:
            self.told = waited
            so_far = f" ({waited:.0f} s)" if waited >= 1 else ""
            self.say(f"Waiting for {self.name}: {missing}{so_far}")
        # a project has 750 such looks a minute for everybody together
        time.sleep(min(INTERVAL + waited / 30, 5))


def look(config: Config, name: str, say: Say) -> tuple[Target | None, str]:
    """Return the machine once it can be logged in to, else what is still missing.

    Raise BergError if it will not come.
    """
    found = jobs.find(config, name)
    machine = found.machine
    if machine is None:
        return None, without_machine(found)
    if machine.silence:
        raise BergError(f"{machine.name}: {machine.silence}. End it: berg kill {found.name}")
    if machine.status not in COMING:
        ended = how_ended(found.state)
        status = f"{machine.status} ({found.status}{ended})"
        if found.is_stopped:
            raise BergError(f"{found.name} is stopped. Start it: berg start {found.name}")
        raise BergError(f"the machine {machine.name} is {status}")
    if machine.status != "RUNNING":
        return None, f"the machine {machine.name} is {machine.status}"
    check_account(config, found, machine)
    if target := reach(config, found.name, machine, say):
        return target, ""
    return None, still_booting(machine, found.state)


def check_account(config: Config, found: jobs.Entry, machine: Machine) -> None:
    """Raise BergError for a machine that is mine by name and does not act as my own account: any
    person who may create machines can give one that name and these labels.
    """
    says_mine = config.user in (found.user, machine.labels.get("berg-user"))
    if machine.place == "gke" or not says_mine or not iam.is_own(config):
        return
    if not jobs.is_mine(config, machine):
        raise BergError(
            f"{machine.name} in {machine.zone} acts as {machine.account or 'no account'}, and your "
            f"machines as {config.service_account}: another person may have created it. If it is "
            "yours, of before your account changed, log in without berg: gcloud compute ssh "
            f"root@{machine.name} --zone {machine.zone}"
        )


def without_machine(found: jobs.Entry) -> str:
    """Say that a job's machine is to come; raise BergError if none will."""
    state = found.state
    assert state is not None
    if state.state == "SUBMITTED":
        return "its machine is being created"
    raise BergError(
        f"{found.name} has no machine any more (the job is {state.state}{how_ended(state)}). "
        f"Its log: berg log {found.name}"
    )


def still_booting(machine: Machine, state: job.State | None) -> str:
    """Say that a machine boots; raise BergError if its job is over already."""
    if state is None:
        return f"the machine {machine.name} boots"
    if state.final:
        raise BergError(
            f"nobody can log in to {machine.name} any more: the job is "
            f"{state.state}{how_ended(state)}"
        )
    return f"the machine {machine.name} boots, the job is {state.state}"


def how_ended(state: job.State | None) -> str:
    """Return the reason of a job's end behind a colon; "" while it lives."""
    return f": {state.reason}" if state and state.final and state.reason else ""


def reach(config: Config, job_name: str, machine: Machine, say: Say) -> Target | None:
    """How to reach a running machine, None before it said so itself; hands our key to a machine
    that lacks it.

    The key is made when there is the first machine to let us in.
    """
    place, name = places.of(machine.place), machine.name
    told = place.login(config, machine) or from_record(config, job_name, machine)
    if told is None:
        return None
    if not told.port:
        why = "see: berg local status" if config.endpoint else "does its image have openssh-server?"
        raise NoServer(f"the machine {name} runs no ssh server; {why}", place.shell(machine))
    keys = pinned(f"{name}.{machine.id}") or told.host_keys
    if not keys:
        raise BergError(
            f"{name} told nobody its host keys where others cannot write them (guest attributes): "
            "the organisation forbids them, or it takes no more of them now. "
            f"Log in without berg: gcloud compute ssh root@{name} --zone {machine.zone}"
        )
    with KEY_MAKING:
        key = public_key(create=True, say=say) or ""
    address, proxy = machine.external_ip, place.proxy(config, machine)
    if not address:
        require(proxy[0])
    is_new = place.let_in(config, machine, metadata_line(config, key))
    if is_new is None:
        return None
    where = (machine.zone, machine.id, address, told.port)
    return Target(name, job_name, *where, keys, proxy, is_new)


@dataclass
class Card:
    """What a machine says of itself in the bucket, where every machine may write: enough to know
    that it is there, and for a pod, to which the cluster's API leads, its host keys.
    """

    instance_id: str
    host_keys: list[str] = field(default_factory=list)
    introduced: bool = True


def from_record(config: Config, job_name: str, machine: Machine) -> Login | None:
    """Return how to log in to a machine that said so in the bucket alone; None before it did.

    Of a machine of Compute Engine no port and no key there counts.
    """
    bucket, path = Bucket(config), f"{job.machines_prefix(job_name)}{machine.name}.json"
    data = bucket.read_from(path, 0, gate.MOST_BYTES + 1)
    try:
        card = card_from(data) if data else None
    except ValueError as error:
        raise damaged(machine, f"gs://{bucket.name}/{path}", error) from None
    # Not written yet, by an earlier machine of that name, or before it knew the others of its
    # cluster.
    if card is None or card.instance_id != machine.id or not card.introduced:
        return None
    if machine.place == "gke":
        keys = [key for key in card.host_keys if HOST_KEY.fullmatch(key)]
        return Login(0, SSH_PORT if keys else 0, keys)
    return Login(0, config.ssh_port if card.host_keys else 0, [])


def card_from(data: bytes) -> Card:
    """Return the card in `data`; raise ValueError for one that is odd."""
    card = gate.build(Card, gate.values(data))
    gate.check_plain(card, free=())
    return card


def damaged(machine: Machine, path: str, error: ValueError) -> BergError:
    """Return the error for a record that its machine did not write like this."""
    why = f"{path} is damaged ({error}): another job may have written it. {machine.name} is fine"
    if machine.place == "gke":
        return NoServer(why, places.of(machine.place).shell(machine))
    return BergError(
        f"{why}, and writes it again when it restarts. Until then: gcloud compute ssh "
        f"root@{machine.name} --zone {machine.zone}"
    )


def pinned(alias: str) -> list[str]:
    """Return the host keys that are remembered of a machine."""
    file = known_hosts_file()
    there = file.read_text().splitlines() if file.exists() else []
    return [line.partition(" ")[2] for line in there if line.startswith(f"{alias} ")]


def pin(target: Target) -> None:
    """Remember a machine's host keys, unless some are remembered already: those stay."""
    file = known_hosts_file()
    if not pinned(target.alias):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file.open("a") as output:
            output.write("".join(f"{target.alias} {key}\n" for key in target.host_keys))


def answers(target: Target) -> bool:
    """Whether something listens there; what IAP reaches cannot be asked so cheaply."""
    if not target.address:
        return True
    try:
        socket.create_connection((target.address, target.port), 5).close()
    except OSError:
        return False
    return True


def wait_until_admitted(config: Config, target: Target, say: Say) -> None:
    """Wait until the machine knows our key; the login itself says what else is wrong."""
    probe = [require("ssh"), *command(config, target, ["-o", "BatchMode=yes"], ["true"])[1:]]
    say(f"Handing your key to {target.machine}")

    def is_admitted() -> bool:
        done = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return "Permission denied" not in done.stderr

    api.wait_for(is_admitted, INTERVAL, NO_ANSWER)


def check_port(forward: str) -> None:
    """Raise BergError if the port of PORT:HOST:PORT is taken here; ssh would be content with one of
    ::1 alone.
    """
    port = forward.partition(":")[0]
    if forward.count(":") != 2 or not port.isdigit() or int(port) > 65535:
        return  # ssh knows more forms, and what is wrong with them
    try:
        computer.free_port(int(port))
    except OSError as error:
        raise BergError(
            f"port {port} of this computer cannot be used ({error.strerror}): choose another, "
            f"as in -L 1{forward}"
        ) from None


def options(config: Config, target: Target) -> list[str]:
    """Arguments for ssh that lead to the machine and to no other; for `rsync -e`, too.

    Without the configuration of the person and of the computer.
    """
    values = [f"{key}={value}" for key, value in keywords(config, target).items()]
    return ["-F", "/dev/null", *(word for value in values for word in ("-o", value))]


def destination(config: Config, target: Target) -> str:
    return f"{config.ssh_user}@{target.host}"


def command(
    config: Config, target: Target, ssh_options: list[str], remote_command: list[str]
) -> list[str]:
    """The command that logs in, or runs a command there; as with ssh, its words are joined by
    spaces.
    """
    words = ["--", *remote_command] if remote_command else []
    return ["ssh", *options(config, target), *ssh_options, destination(config, target), *words]


def keywords(config: Config, target: Target) -> dict[str, str]:
    """Settings of ssh_config(5). What is said here wins over the user's own file."""
    values = {
        "Port": str(target.port),
        "HostKeyAlias": target.alias,
        "UserKnownHostsFile": as_path(known_hosts_file()),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "CheckHostIP": "no",
        "IdentityFile": as_path(key_file()),
        "IdentitiesOnly": "yes",  # an agent with many keys would use up the server's patience
        "PreferredAuthentications": "publickey",
        "ConnectTimeout": "30",
        "ServerAliveInterval": "30",
        "ServerAliveCountMax": "3",
    }
    if not target.address:
        values["ProxyCommand"] = shlex.join(target.proxy)
    return values


def as_path(path: Path) -> str:
    """A path as ssh reads it: % begins a token, and a blank ends a word."""
    text = str(path.absolute()).replace("%", "%%")
    return f'"{text}"' if " " in text else text


def worker(config: Config, name: str, rank: int, say: Say, patience: float = PATIENCE) -> str:
    """Return the name of the machine that has a rank in a cluster, as it says itself; wait until it
    does.

    Of a job on one machine that is its own. Raises BergError for a rank that none will have, and
    for a job that is over.
    """
    waiting = Waiting(name, say, patience)
    while True:
        found = jobs.find(config, name)
        last = found.summary.machines - 1
        if not 0 <= rank <= last:
            raise BergError(f"{found.name} has no machine with the number {rank}: 0 to {last}")
        if last == 0:
            return found.name
        if machine := machine_of_rank(config, found, rank):
            return machine
        missing = f"nothing is known of number {rank} yet"
        if found.machine is None:
            missing = without_machine(found)
        elif found.state:
            missing += f", the job is {found.state.state}{how_ended(found.state)}"
        waiting.pause(missing)


def machine_of_rank(config: Config, found: jobs.Entry, rank: int) -> str:
    """Return the name of the machine of a cluster that has this rank; "" if none has.

    Names have it, but for slices, whose workers Google numbers.
    """
    wanted = job.machine_names(found.name, found.summary.machines)[rank]
    for machine in found.machines:
        if machine.place != "tpu":
            if machine.name == wanted:
                return wanted
        elif (told := gce.login(config, machine)) and told.rank == rank:
            return machine.name
    return ""


def run_everywhere(
    config: Config, name: str, words: list[str], say: Say, write: Callable[[str], None]
) -> int:
    """Run a command on all machines of a job at once; the exit code of the first that failed, in
    their order.

    `write` gets the lines of their output, each behind the name of its machine.
    """
    found = jobs.find(config, name)
    names = sorted(machine.name for machine in found.machines) or [name]
    width, writing = max(map(len, names)), threading.Lock()

    def run_on(machine: str) -> int:
        target = find_target(config, machine, say)
        line = command(config, target, ["-o", "BatchMode=yes"], words)
        program = [require("ssh"), *line[1:]]
        with subprocess.Popen(
            program,
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


def config_file() -> Path:
    return settings.home() / "ssh_config"


def config_entry(config: Config, target: Target, others: list[str]) -> str:
    """A Host entry for ssh's configuration; a cluster's first machine also answers to the job's
    name. `others` are options that the person's own configuration adds to it.
    """
    first = target.machine.removeprefix(target.job).strip("-0") == ""
    names = [target.machine, *([target.job] if first and target.job != target.machine else [])]
    values = {"HostName": target.host, "User": config.ssh_user, **keywords(config, target), **OFF}
    if any(each.startswith(FORWARDS) for each in others):
        values["ClearAllForwardings"] = "yes"
    return "\n".join(
        [f"Host {' '.join(names)}", *(f"    {key} {value}" for key, value in values.items()), ""]
    )


def write_config(config: Config, say: Say) -> list[str]:
    """Write an entry for every machine of mine that runs; returns the machines' names.

    Those that cannot be logged in to yet are left out, and named to `say`.
    """
    targets = targets_of_mine(config, say)
    others = {target.machine: of_all_hosts(target.machine) for target in targets}
    entries = ["# Written by `berg ssh-config`; your own entries belong to ~/.ssh/config.\n"]
    entries += [config_entry(config, target, others[target.machine]) for target in targets]
    computer.write(config_file(), "\n".join(entries))
    warn(sorted({each for found in others.values() for each in found}), say)
    return [target.machine for target in targets]


def targets_of_mine(config: Config, say: Say) -> list[Target]:
    """Return my machines that can be logged in to, with their host keys pinned."""

    def reach_it(machine: Machine) -> Target | None:
        try:
            check_account(config, Entry(machine.name, None, [machine]), machine)
            return reach(config, machine.labels.get("berg-job", machine.name), machine, say)
        except BergError as error:
            say(error.message)
            return None

    running = [
        machine
        for machine in places.machines(config)
        if machine.labels.get("berg-user") == config.user and machine.status == "RUNNING"
    ]
    with ThreadPoolExecutor(8) as pool:
        running = list(pool.map(lambda each: vouched(config, each), running))
        targets = list(pool.map(reach_it, running))
    for machine, target in zip(running, targets, strict=True):
        if target:
            pin(target)
        else:
            say(f"Left out: {machine.name}, which cannot be logged in to yet")
    return [target for target in targets if target]


def of_all_hosts(name: str) -> list[str]:
    """Return the options of ~/.ssh/config that would forward ports or send variables to a machine,
    as `ssh -G` prints them.
    """
    if not user_config().exists():
        return []
    # An entry that is there already may switch off what is to be seen.
    options = ["-F", str(user_config()), "-o", "ClearAllForwardings=no"]
    command = [require("ssh"), *options, "-G", name]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(FORWARDS + VARIABLES)]
    return [line for line in lines if not line.startswith(("sendenv LANG", "sendenv LC_"))]


def warn(others: list[str], say: Say) -> None:
    """Say what of the person's own configuration berg switched off, and what it cannot."""
    forwards = [each for each in others if each.startswith(FORWARDS)]
    variables = [each for each in others if each.startswith(VARIABLES)]
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
    if others:
        say("Give such lines to the hosts that they are for, and run: berg ssh-config")


def include_line() -> str:
    return f"Include {as_path(config_file())}"


def user_config() -> Path:
    return Path.home() / ".ssh/config"


def is_included() -> bool:
    file = user_config()
    return file.exists() and include_line() in map(str.strip, file.read_text().splitlines())


def include() -> None:
    """Put the Include into ~/.ssh/config: at its beginning, as below a Host it would hold for that
    host only.
    """
    file = user_config()
    there = file.read_text() if file.exists() else ""
    computer.write(file, f"{include_line()}\n\n{there}")

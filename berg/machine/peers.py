"""The machines of a job among themselves: who they are, who leads, what programs are told.

Every machine writes one object to the bucket and reads those of the others:

    .berg/machines/<job>/<machine>.json   name, rank, addresses, ssh host keys; of the first one
    also the
                                          public key with which it logs in to the others
    its custom metadata                   attempt, serial, phase (UP, READY, ENDED, FAILED), reason,
                                          exit_code, ended_at, uploaded, lost (what it could not
                                          upload), used_at, warning

Both are signed (cards.py); what is not, or is older than what was seen, is ignored. A command that
failed runs again on all machines together: each meets the others anew once it has stopped its own
and uploaded its results. The attempt in its object says for which it did so.

The machine with the lowest rank that is there leads: it writes the job's state. A machine is there
if Compute Engine says that it lives and if it writes its object, as each does many times in the
seconds after which a silent one is given up. Not covered: how they trust each other (logins.py).

Signatures of what the machines of a job write of themselves for each other.

Every machine's account may write below .berg/machines/, those of other jobs included, and what
stands there puts a key into authorized_keys and hosts into known_hosts. So each object is signed
with a key that the laptop made for this job alone: it lies in Secret Manager where the job has
secrets, or its person an account of their own; in a Secret of Kubernetes' for pods; else in the
machines' metadata.

This keeps out whoever writes to the bucket and no more. It does not keep out who may read the key:
the job's own root; people and machines that may list instances, while it lies in the metadata;
machines of the same account, while it lies in Secret Manager. An object that was signed once may be
written again: who saw a newer one ignores it (cluster.py), a machine that just came may not. It may
be deleted: a stranger may end a job so, but not log in to it.
"""

import contextlib
import hashlib
import hmac
import ipaddress
import json
import math
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from berg import BergError, job, validation
from berg.google.storage import Bucket
from berg.machine import boot, idle
from berg.machine.host import COMING, Host
from berg.machine.outcome import Ending
from berg.machine.process import judge

CLUSTER_FILE = boot.BERG / "cluster.json"  # for `mpi` and `tt`

HOST_FILE = boot.BERG / "hostfile"

CARD = "card"  # the key of an object's metadata that holds its content as well

WATCH_INTERVAL = 3  # seconds between two looks at the others

# times that a machine writes its object within the seconds of silence that it may be given up for
BEATS = 9

MENDING_GAP = 60  # seconds between two such looks, after which they are of different losses

DEFERENCE = 30  # seconds that who waits for others leaves the word to the machine that leads

# seconds between two writes of a machine's object, of which Cloud Storage takes one a second: what
# comes sooner would be refused, and wait longer for its retries
BETWEEN_WRITES = 1.05

FAILURE_GRACE = 10  # seconds that the others have to end by themselves after a command has failed


@dataclass
class Node:
    name: str
    rank: int
    instance_id: str = ""
    internal_ip: str = ""
    external_ip: str = ""
    ssh_port: int = 22
    host_keys: list[str] = field(default_factory=list)  # "ssh-ed25519 AAAA…"
    node_key: str = ""  # public
    slots: int = 1  # processes that `mpi` starts here: one per GPU, else one per CPU
    introduced: bool = False  # it knows the others, and who logs in finds what a command finds


@dataclass
class Member:
    """This machine among those of its job."""

    machine: boot.Machine
    host: Host
    bucket: Bucket
    job: job.Job
    leads: bool  # it writes the job's state
    pause: Callable[[float], None]  # seconds; raises what ends the job when the job is to end
    node: Node
    nodes: list[Node]  # all machines by rank, this one among them
    # what the others see of this one
    summary: dict[str, str] = field(default_factory=lambda: {"phase": "UP"})
    key: str = field(repr=False, default="")  # signs what the machines write (cards.py)
    ignored: set[str] = field(default_factory=set)  # objects that were not signed
    next_look: float = (
        0.0  # time.monotonic() from which a machine that does not lead looks who does
    )
    # its object is written by one thread at a time
    lock: threading.Lock = field(default_factory=threading.Lock)
    # machine -> its object's serial, since when
    heard: dict[str, tuple[int, float]] = field(default_factory=dict)
    listened: float = 0.0  # time.monotonic() of the last look at the others' objects
    silent: list[str] = field(default_factory=list)  # machines that were not heard of for too long
    waited: float = 0.0  # seconds from the submit of a job to this machine, the first of it to come
    failure_seen: float = 0.0  # time.monotonic() at which a command was seen to have failed
    # time.monotonic() of the last look at which the first machine was not there, and of the first
    # such look of those in a row
    leaderless_seen: float = -math.inf
    leaderless_since: float = 0.0
    deleted_for: tuple[int, float] = (0, 0.0)  # what was heard last of the first machine, deleted
    attempt: int = 1  # of the job, that this machine makes or waits for
    serial: int = 0  # of this machine's object: each one that it writes has a higher one
    next_write: float = -math.inf  # time.monotonic() from which the object may be written again
    newest: dict[str, int] = field(default_factory=dict)  # object -> the highest that was seen

    @property
    def is_alone(self) -> bool:
        return self.job.num_machines == 1


def describe(member: Member) -> Node:
    """Return this machine as the others see it, from its metadata."""
    instance, rank = member.host.identity(member.job)
    interface = first(instance.get("networkInterfaces"))
    return Node(
        name=member.machine.name,
        rank=rank,
        instance_id=str(instance.get("id", "")),
        internal_ip=interface.get("ip", ""),
        external_ip=first(interface.get("accessConfigs")).get("externalIp", ""),
        slots=member.job.gpus_per_machine or os.cpu_count() or 1,
    )


def first(listed: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Return the first of the things that were listed; {} if there is none."""
    if not listed:
        return {}
    return listed[0]


def announce(member: Member, **changes: str) -> None:
    """Write this machine's object: who it is, and how far it is (see above)."""
    with member.lock:
        time.sleep(max(member.next_write - time.monotonic(), 0))
        member.serial = max(member.serial + 1, int(time.time() * 1e6))  # also after a reboot
        about = {"attempt": str(member.attempt), "instance": member.node.instance_id}
        about["serial"] = str(member.serial)
        member.summary |= {**changes, **about}
        name = f"{job.machines_prefix(member.job.job_name)}{member.machine.name}.json"
        content = write(member.key, name, member.node)
        # with the card, which who lists all machines need not read then: of N machines N² reads
        metadata = signed(member.key, name, {**member.summary, CARD: content})
        member.bucket.write(name, content, metadata=metadata)
        member.next_write = time.monotonic() + BETWEEN_WRITES


def announce_soon(member: Member) -> None:
    """Write this machine's object when it may be written again, unless that was done meanwhile."""
    serial = member.serial
    time.sleep(BETWEEN_WRITES)
    if member.serial == serial:
        with contextlib.suppress(Exception):  # the heartbeat says it, too
            announce(member)


def note_earlier(member: Member) -> None:
    """Take part in the next attempt if this machine took part in one before it was turned off, as
    its object tells: all of a slice are turned off and on together.
    """
    own = phases(member).get(member.machine.name)
    if own:
        member.attempt = max(member.attempt, int(own.metadata["attempt"]) + 1)


def heartbeat(member: Member) -> None:
    """Write this machine's object again and again, so that the others hear that it is there."""
    while True:
        time.sleep(member.job.silence_seconds / BEATS)
        with contextlib.suppress(Exception):  # the network may fail for a while
            announce(member)


def begin_attempt(member: Member, attempt: int) -> None:
    """Tell the other machines that this one has ended the last attempt, and is up for another."""
    with member.lock:
        lasting = {key: value for key, value in member.summary.items() if key == "maintenance"}
        member.summary = {"phase": "UP", **lasting}
        member.attempt, member.failure_seen = attempt, 0.0
        member.nodes = [member.node]
    announce(member)


def coming_seconds(member: Member, came: float = 0) -> float:
    """Return for how many seconds the first attempt waits for all machines of the job; this one
    came so many seconds after it was submitted, 0 where that is not known.
    """
    is_new_pod = member.host.is_pod and member.attempt <= 1
    if member.job.is_replaced and not is_new_pod:
        return member.job.spec.replacement_timeout
    if member.job.spec.queue_timeout and member.host.is_pod:
        return max(member.job.spec.queue_timeout - round(member.waited), 0)
    return member.host.coming_seconds(member.job, came)


def gather(member: Member, patience: float, note: Callable[[int], None]) -> list[Node]:
    """Wait until every machine of the job is up for this attempt, and return them by rank.

    `note` hears now and then how many are missing.

    Raises BergError with the names of those that did not come within `patience` seconds, or came
    and went.
    """
    names = job.machine_names(member.job.job_name, member.job.num_machines)
    began = time.monotonic()
    next_look = began + WATCH_INTERVAL
    nodes: dict[str, Node] = {}
    seen: set[str] = set()
    while True:
        add_nodes(member, names, nodes)
        if len(nodes) == len(names):
            note(0)
            return sorted(nodes.values(), key=lambda node: node.rank)
        waited = time.monotonic() - began
        if waited > patience or time.monotonic() > next_look:
            next_look = time.monotonic() + WATCH_INTERVAL * max(member.node.rank, 1)
            note(len(names) - len(nodes))
            if not member.job.is_replaced:
                if waited > member.job.longest_silence:
                    seen |= set(names)  # they were made together, and are in the list by now
                check_peers(member, seen)
            elif all_are_there(member, names):  # such as one that still uploads
                began, waited = time.monotonic(), 0.0
        if waited > patience + deference(member, nodes):
            patience = longer_patience(member, names, nodes, patience)
        member.pause(0.3)


def deference(member: Member, nodes: dict[str, Node]) -> float:
    """Return for how many seconds more a machine waits that does not lead, for the one that leads
    to say who did not come: that word is to be the job's reason.
    """
    if member.leads or first_machine(member) not in nodes:
        return 0
    return DEFERENCE


def longer_patience(
    member: Member, names: list[str], nodes: dict[str, Node], patience: float
) -> float:
    """Return for how many seconds in all to wait for the machines that are not among `nodes` after
    `patience`; raises BergError with their names if that is all.
    """
    missing = [name for name in names if name not in nodes]
    if patience < COMING and installs_still(member, missing):
        return COMING
    lead_if_first(member, sorted(nodes))
    raise BergError(lateness(member.job, missing, patience))


def installs_still(member: Member, names: list[str]) -> bool:
    """Whether one of the machines said before its worker began that it waits to install."""
    found = member.bucket.list(job.machines_prefix(member.job.job_name), "name")
    notes = {blob.name.rpartition("/")[2] for blob in found}
    return any(name + boot.INSTALLS in notes for name in names)


def lateness(this: job.Job, names: list[str], patience: float) -> str:
    """Return a sentence on machines that did not come within `patience` seconds, and what helps."""
    missing = ", ".join(names)
    if patience != this.spec.replacement_timeout or not this.is_replaced:
        return f"{missing} did not come up within {patience:.0f} s"
    return (
        f"{missing} did not come within {patience / 60:g} minutes (--replacement-timeout). "
        f"Go on: berg run --resume {this.job_name}"
    )


def all_are_there(member: Member, names: list[str]) -> bool:
    """Whether all machines of the job live, and were heard of lately."""
    heard = member.heard.keys() - set(member.silent)
    return set(names) <= heard & set(living(member))


def add_nodes(member: Member, names: list[str], nodes: dict[str, Node]) -> None:
    """Add the job's machines that are up now to `nodes`; raises BergError if one has failed.

    A machine that others expect in a later attempt takes part in that one.
    """
    blobs = phases(member)
    first = blobs.get(first_machine(member))
    if first and first.metadata["phase"] == "UP":
        expected = int(first.metadata["attempt"])
        if expected > member.attempt:
            nodes.clear()
            begin_attempt(member, expected)
    for name, blob in blobs.items():
        if blob.metadata["phase"] == "FAILED" and member.leads:
            raise BergError(f"{name}: {blob.metadata['reason']}")
        is_new = name in names and name not in nodes
        if is_new and is_of_attempt(member, blob):
            node = read_node(member, blob)
            if node and node.name == name:
                nodes[name] = node


def is_of_attempt(member: Member, blob: Any) -> bool:
    """Whether a machine wrote its object for the attempt that this one makes."""
    return bool(blob.metadata.get("attempt") == str(member.attempt))


def read_node(member: Member, blob: Any) -> Node | None:
    """Return what a machine wrote of itself; None, and say so, if it is not to be believed."""
    card = blob.metadata.get(CARD, "{}")
    try:
        node: Node = read(member.key, blob.name, card.encode(), Node)
    except ValueError as error:
        ignore(member, blob.name, str(error))
        return None
    return node


def ignore(member: Member, where: str, why: str) -> None:
    """Say once that an object is ignored."""
    if where not in member.ignored:
        member.ignored.add(where)
        member.machine.say(f"Ignored gs://{member.bucket.name}/{validation.clean(where)}: {why}")


def check_peers(member: Member, seen: set[str]) -> None:
    """Add the machines that are there to `seen`; raises BergError if one of those is gone."""
    found = member.host.peers(member.job)
    seen |= found.keys()
    gone = sorted(name for name in seen if not found.get(name))
    if gone:
        lead_if_first(member, sorted(name for name in found if found[name]))
        raise BergError(f"machine {', '.join(gone)} is gone")


def lead_if_first(member: Member, names: list[str]) -> None:
    """Let this machine lead if it is the first of those that are there."""
    member.leads = member.leads or names[:1] == [member.machine.name]


def phases(member: Member) -> dict[str, Any]:
    """The objects of the machines that are up, by machine; `metadata` holds the phase. Notes who is
    silent.
    """
    prefix = job.machines_prefix(member.job.job_name)
    found = member.bucket.list(prefix, "name,metadata")
    listed = believed(member, [blob for blob in found if blob.name.endswith(".json")])
    blobs = {blob.name.removeprefix(prefix).removesuffix(".json"): blob for blob in listed}
    now, patience = time.monotonic(), member.job.longest_silence
    if now - member.listened > patience / 3 + WATCH_INTERVAL * member.node.rank:
        member.heard.clear()  # it could not listen itself
    member.listened = now
    for name, blob in blobs.items():
        if member.heard.get(name, (-1, 0.0))[0] != serial_of(blob):
            member.heard[name] = serial_of(blob), now
    quiet = [name for name, (_, since) in member.heard.items() if now - since > patience]
    member.silent = sorted(name for name in quiet if name != member.machine.name)
    return blobs


def believed(member: Member, blobs: Iterable[Any]) -> list[Any]:
    """Return the objects whose metadata a machine of this job signed, and nothing newer since:
    somebody may write again what was signed before.
    """
    found = []
    for blob in blobs:
        if not is_signed(member.key, blob.name, blob.metadata):
            ignore(member, blob.name, "it is not signed by a machine of this job")
        elif serial_of(blob) < member.newest.get(blob.name, 0):
            ignore(member, blob.name, "somebody wrote again what its machine had written before")
        else:
            member.newest[blob.name] = serial_of(blob)
            found.append(blob)
    return found


def serial_of(blob: Any) -> int:
    """Return the number of an object among those that its machine wrote."""
    return int(blob.metadata.get("serial", 0))


def get_ready(member: Member) -> None:
    """Say that all is installed here; the machine that leads waits until it is everywhere."""
    announce(member, phase="READY")
    waiting = member.leads
    while waiting:
        found = {name: blob.metadata for name, blob in phases(member).items()}
        for name, about in found.items():
            if about["phase"] == "FAILED":
                raise BergError(f"{name}: {about['reason']}")
        waiting = any(about["phase"] == "UP" for about in found.values())
        if waiting:
            member.pause(0.3)
        else:
            member.pause(0)


def environment(member: Member) -> dict[str, str]:
    """Return the variables that describe the machines to a program.

    `PET_*` is what torchrun reads in place of its options.
    """
    this, node, nodes = member.job, member.node, member.nodes
    first = nodes[0]
    address = first.internal_ip if len(nodes) > 1 else "127.0.0.1"
    # A port of the job's own, for machines that share a network stack; another one for each
    # attempt, so that nothing that is left of the last one is met.
    port = str(29500 + (zlib.crc32(this.job_name.encode()) + member.attempt - 1) % 1000)
    variables = {
        "BERG_NODE_RANK": str(node.rank),
        "BERG_NUM_NODES": str(len(nodes)),
        "BERG_HOSTS": ",".join(n.name for n in nodes),
        "BERG_HOSTFILE": str(HOST_FILE),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "PET_NNODES": str(len(nodes)),
        "PET_NODE_RANK": str(node.rank),
        "PET_NPROC_PER_NODE": str(max(this.gpus_per_machine, 1)),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
    }
    variables |= member.host.variables(node.rank, [n.internal_ip for n in nodes])
    if len(nodes) > 1:
        variables["GLOO_SOCKET_IFNAME"] = variables["NCCL_SOCKET_IFNAME"] = interface(
            node.internal_ip
        )
    return variables


def interface(address: str) -> str:
    """Name of the network interface with an address."""
    if address.startswith("127."):
        return "lo"
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        name, destination = line.split()[:2]
        if destination == "00000000":
            return name
    return "eth0"


def living(member: Member) -> list[str]:
    """Return the names of the job's machines that are on, by rank."""
    return sorted(name for name, is_on in member.host.peers(member.job).items() if is_on)


def ending_of_part(member: Member, is_over: Callable[[], bool]) -> Ending | None:
    """Return how this machine's part ends now: another machine went or failed, or the job is over.

    None if it goes on.
    """
    if member.leads:
        return ending_by_others(member)
    if is_over():
        return Ending("ENDED", "the job ended")
    if not comes_next(member):
        return None
    if member.job.is_replaced:
        replace_silent_leader(member)
    if is_given_up(member):
        member.leads = True
        return Ending("FAILED", final_absence(member))
    return None


def replace_silent_leader(member: Member) -> None:
    """Delete the first machine where it says nothing, once for each time that it falls silent:
    Google makes it anew, and the one that comes says nothing either until it is up.
    """
    name = first_machine(member)
    if name not in member.silent or member.heard[name] == member.deleted_for:
        return
    member.deleted_for = member.heard[name]
    member.machine.say(f"Machine {name} was silent; deleting it, so that it is made anew")
    member.host.delete_peer(name)


def final_absence(member: Member) -> str:
    """Return a sentence on the first machine, which is not there any more and does not come."""
    name = first_machine(member)
    if member.job.is_replaced:
        return lateness(member.job, [name], member.job.spec.replacement_timeout)
    return absence(member, name)


def is_given_up(member: Member) -> bool:
    """Whether the first machine, which is not there, does not come back in time."""
    if not member.job.is_replaced:
        return True
    now = time.monotonic()
    if now - member.leaderless_seen > MENDING_GAP:
        member.leaderless_since = now
    member.leaderless_seen = now
    return now - member.leaderless_since > member.job.spec.replacement_timeout


def ending_by_others(member: Member) -> Ending | None:
    """Return how the job ends because another machine went or failed; None if it goes on."""
    alive, blobs = living(member), phases(member)
    for name, blob in blobs.items():
        if blob.metadata["phase"] == "FAILED":
            return Ending("FAILED", f"{name}: {blob.metadata['reason']}")
        is_gone = name not in alive or name in member.silent
        if is_gone and not member.job.is_replaced:
            return Ending("FAILED", absence(member, name))
    return None


def loss(member: Member) -> str:
    """Return a sentence on a machine that takes part in this attempt no more; "" if there is none.

    One that Google made anew has the same name, but is another instance.
    """
    alive, blobs = living(member), phases(member)
    known = {node.name: node.instance_id for node in member.nodes}
    for name, blob in blobs.items():
        about = blob.metadata
        if name in known and about["instance"] != known[name]:
            return f"machine {name} was made anew"
        if not is_of_attempt(member, blob):
            continue
        if about["phase"] == "GONE":
            return f"{name}: {about['reason']}"
        if name not in alive or name in member.silent:
            return absence(member, name)
    return ""


def lasting_failure(member: Member, blobs: dict[str, Any]) -> Ending | None:
    """Return how a command failed that ends those of the other machines, which have had time to end
    by themselves; None while there is no such.
    """
    failed = first_failure(member, blobs)
    if not failed or member.job.spec.keep_going:
        return None
    member.failure_seen = member.failure_seen or time.monotonic()
    if time.monotonic() - member.failure_seen < FAILURE_GRACE:
        return None
    return judge(*failed)


def absence(member: Member, name: str) -> str:
    """Return a sentence on a machine that is not there any more."""
    if name in member.silent:
        return f"machine {name} was silent for {member.job.longest_silence} s and was given up"
    blob = phases(member).get(name)
    if blob and "maintenance" in blob.metadata:
        return f"machine {name} is gone: Google stopped it to maintain its host"
    return f"machine {name} is gone"


def ended(member: Member, blobs: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return what the machines say on which this attempt's command has ended."""
    return {
        name: blob.metadata
        for name, blob in blobs.items()
        if blob.metadata["phase"] == "ENDED" and is_of_attempt(member, blob)
    }


def first_failure(member: Member, blobs: dict[str, Any]) -> tuple[int, str] | None:
    """Return exit code and machine of the command that failed first; None if none has failed."""
    failed = []
    for name, about in ended(member, blobs).items():
        if about["exit_code"] != "0":
            failed.append((float(about["ended_at"]), int(about["exit_code"]), name))
    if not failed:
        return None
    _, exit_code, name = min(failed)
    return exit_code, name


def first_machine(member: Member) -> str:
    return job.machine_names(member.job.job_name, member.job.num_machines)[0]


def takes_over(member: Member) -> bool:
    """Whether this machine leads from now on, as the one that comes next."""
    member.leads = comes_next(member)
    return member.leads


def comes_next(member: Member) -> bool:
    """Whether the first machine is gone, and of the others this one has the lowest rank.

    Compute Engine takes some 1,500 reads a minute, so that a machine asks the less often the higher
    its rank.
    """
    if time.monotonic() < member.next_look:
        return False
    member.next_look = time.monotonic() + WATCH_INTERVAL * (member.node.rank - 0.5)
    phases(member)
    there = [name for name in living(member) if name not in member.silent]
    return first_machine(member) not in there and there[:1] == [member.machine.name]


def wait_for_commands(member: Member) -> Ending:
    """Wait until the command has ended on every machine, or failed on one; return how."""
    while True:
        blobs = phases(member)
        failure = lasting_failure(member, blobs)
        if failure:
            return failure
        if len(ended(member, blobs)) == member.job.num_machines:
            return judge(*(first_failure(member, blobs) or (0, "")))
        member.pause(1)


def wait_for_uploads(
    member: Member, on_progress: Callable[[list[str]], None]
) -> tuple[list[str], bool]:
    """Wait for the last results of all other machines that are there.

    Returns what of whom is not in the bucket, and whether that is only what the bucket cannot take.
    `on_progress` gets what each of them has still to send: a number of files and one of bytes.
    """
    while True:
        # Before the objects: who is not there has written the last word that there will be.
        alive = living(member)
        others = {name: blob.metadata for name, blob in phases(member).items()}
        others.pop(member.machine.name, None)
        missing = [name for name, about in others.items() if not about.get("uploaded")]
        if not awaited(missing, alive, member.silent):
            break
        on_progress([others[name].get("left", "0 0") for name in missing])
        time.sleep(1)
    absences = [absence(member, name) for name in missing]
    lost = [f"{name}: {about['lost']}" for name, about in others.items() if about.get("lost")]
    is_whole = all(about.get("uploaded") == "all" for about in others.values())
    return absences + lost, is_whole


def awaited(names: list[str], alive: list[str], silent: list[str]) -> bool:
    """Whether any of the machines is there, and was heard of lately."""
    return any(name in alive and name not in silent for name in names)


def wait_for_end(member: Member, is_over: Callable[[], bool]) -> bool:
    """Wait until the leader wrote the job's end; False if it died before, and this machine leads
    now.
    """
    while not is_over():
        if takes_over(member):
            return False
        time.sleep(1)
    return True


def report_use(member: Member, stopped: Callable[[float], bool]) -> None:
    """Report to the machine that leads a devbox when this one is used, and show its warnings to the
    people here, until the devbox ends.
    """
    heard = ""
    for used in idle.samples(member.job.idle_seconds, stopped, bool(member.job.tpu)):
        # the network may fail for a while; the next sample reports
        with contextlib.suppress(Exception):
            if used:
                announce(member, used_at=str(time.time()))
            warnings = [
                blob.metadata["warning"]
                for blob in phases(member).values()
                if "warning" in blob.metadata
            ]
            if warnings and max(warnings) > heard:
                heard = max(warnings)
                idle.tell_terminals(heard.partition(" ")[2])


def others_are_used(member: Member) -> bool:
    """Whether another machine of the devbox said so lately, or may have."""
    if member.job.num_machines == 1:
        return False
    lately = time.time() - 2 * idle.sample_seconds(member.job.idle_seconds)
    try:
        return any(
            float(blob.metadata.get("used_at", 0)) > lately for blob in phases(member).values()
        )
    except Exception:  # better one hour too many than a machine taken away from somebody
        return True


SIGNATURE = "signature"

PUBLIC_KEY = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [\w.@-]*)?")


def signature(key: str, *parts: Any) -> str:
    """Return the signature of values that JSON has."""
    text = json.dumps(parts, sort_keys=True)
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def signed(key: str, where: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return values with a signature that holds for the object `where` alone."""
    return {**values, SIGNATURE: signature(key, where, values)}


def is_signed(key: str, where: str, values: dict[str, Any] | None) -> bool:
    """Whether the values of the object `where` were signed with this key."""
    unsigned = dict(values or {})
    found = unsigned.pop(SIGNATURE, "")
    expected = signature(key, where, unsigned)
    return (
        bool(key)
        and isinstance(found, str)
        and hmac.compare_digest(found.encode(), expected.encode())
    )


def write(key: str, where: str, node: Any) -> str:
    """Return a node as JSON that the other machines believe."""
    return json.dumps(signed(key, where, asdict(node)))


def read(key: str, where: str, data: bytes, kind: type[Any]) -> Any:
    """Return the node in `data`; raise ValueError unless it is signed and nothing in it is odd."""
    values = validation.parse(data)
    if not is_signed(key, where, values):
        raise ValueError("it is not signed by a machine of this job")
    node = validation.from_dict(kind, values)
    validation.check_plain(node, free=())
    for address in (node.internal_ip, node.external_ip):
        if address:
            ipaddress.ip_address(address)
    for public_key in (*node.host_keys, node.node_key):
        if public_key and not PUBLIC_KEY.fullmatch(public_key):
            raise ValueError(f"{public_key[:40]!r} is no public key")
    return node

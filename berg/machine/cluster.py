"""The machines of a job among themselves: who they are, who leads, what programs are told.

Every machine writes one object to the bucket and reads those of the others:

    .berg/machines/<job>/<machine>.json   name, rank, addresses, ssh host keys; of the first one
    also the
                                          public key with which it logs in to the others
    its custom metadata                   phase (UP, READY, ENDED, FAILED), exit_code, ended_at,
    reason, uploaded,
                                          lost (what it could not upload), used_at, warning

The machine with the lowest rank that is there leads: it writes the job's state. A machine is there
if Compute Engine says that it lives and if it writes its object, as each does many times in the
seconds after which a silent one is given up. Not covered: how they trust each other (logins.py).
"""

import contextlib
import functools
import json
import os
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from berg import BergError, job
from berg.google import api, instances
from berg.google.storage import Bucket
from berg.machine import boot, idle, pods
from berg.machine.outcome import Ending
from berg.machine.process import judge

CLUSTER_FILE = boot.BERG / "cluster.json"  # for `mpi` and `tt`
HOST_FILE = boot.BERG / "hostfile"
NUMBERED = 300  # seconds for the metadata to say which worker of a slice a machine is
COMING = 600  # seconds for all machines to come up
PODS_COMING = 1800  # the same for pods, whose nodes may be made one after another
WATCH_INTERVAL = 3  # seconds between two looks at the others
# times that a machine writes its object within the seconds of silence that it may be given up for
BEATS = 9
FAILURE_GRACE = 10  # seconds that the others have to end by themselves after a command has failed
ALIVE = ("PROVISIONING", "STAGING", "RUNNING", "REPAIRING")


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
    bucket: Bucket
    job: job.Job
    leads: bool  # it writes the job's state
    pause: Callable[[float], None]  # seconds; raises what ends the job when the job is to end
    node: Node
    nodes: list[Node]  # all machines by rank, this one among them
    # what the others see of this one
    summary: dict[str, str] = field(default_factory=lambda: {"phase": "UP"})
    next_look: float = (
        0.0  # time.monotonic() from which a machine that does not lead looks who does
    )
    # its object is written by one thread at a time
    lock: threading.Lock = field(default_factory=threading.Lock)
    # machine -> its object's generation, since when
    heard: dict[str, tuple[int, float]] = field(default_factory=dict)
    listened: float = 0.0  # time.monotonic() of the last look at the others' objects
    silent: list[str] = field(default_factory=list)  # machines that were not heard of for too long
    failure_seen: float = 0.0  # time.monotonic() at which a command was seen to have failed

    @property
    def is_alone(self) -> bool:
        return self.job.num_machines == 1


def describe(machine: boot.Machine, this: job.Job) -> Node:
    """This machine, from its metadata and its ssh keys."""
    instance = slice_member(machine) if this.place == "tpu" else machine.instance()
    interface = (instance.get("networkInterfaces") or [{}])[0]
    names = job.machine_names(this.job_name, this.num_machines)
    return Node(
        name=machine.name,
        rank=worker_number(instance)
        if this.place == "tpu"
        else names.index(machine.name)
        if machine.name in names
        else 0,
        instance_id=str(instance.get("id", "")),
        internal_ip=interface.get("ip", ""),
        external_ip=(interface.get("accessConfigs") or [{}])[0].get("externalIp", ""),
        slots=this.gpus_per_machine or os.cpu_count() or 1,
    )


def slice_member(machine: boot.Machine) -> dict[str, Any]:
    """What the metadata server knows of this machine, once Google has numbered the workers of its
    slice.
    """
    end = time.monotonic() + NUMBERED
    while worker_number(instance := machine.instance()) < 0:
        if time.monotonic() > end:
            raise BergError(
                f"Google did not say within {NUMBERED} s which worker of its slice {machine.name} is"
            )
        time.sleep(1)
    return instance


def worker_number(instance: dict[str, Any]) -> int:
    """A worker's place in its slice, which is not the order of the names; -1 before Google has said
    it.
    """
    told = instance.get("attributes", {})
    number = told.get("worker-id", told.get("agent-worker-number", ""))
    return int(number) if number.isdigit() else -1


def announce(member: Member, **changes: str) -> None:
    """Write this machine's object: who it is, and how far it is (see above)."""
    with member.lock:
        member.summary |= changes
        name = f"{job.machines_prefix(member.job.job_name)}{member.machine.name}.json"
        member.bucket.write(name, json.dumps(asdict(member.node)), metadata=member.summary)


def heartbeat(member: Member) -> None:
    """Write this machine's object again and again, so that the others hear that it is there."""
    while True:
        time.sleep(member.job.silence_seconds / BEATS)
        with contextlib.suppress(Exception):  # the network may fail for a while
            announce(member)


def gather(member: Member) -> list[Node]:
    """Wait until every machine of the job is up, and return them by rank.

    Raises BergError with the names of those that did not come, or came and went.
    """
    names = job.machine_names(member.job.job_name, member.job.num_machines)
    patience = member.job.wait_seconds or (PODS_COMING if boot.POD else COMING)
    end, next_look = time.monotonic() + patience, time.monotonic() + WATCH_INTERVAL
    nodes: dict[str, Node] = {}
    seen: set[str] = set()
    while True:
        for other, blob in phases(member).items():
            if blob.metadata["phase"] == "FAILED" and member.leads:
                raise BergError(f"{other}: {blob.metadata['reason']}")
            if other in names and other not in nodes:
                nodes[other] = Node(**json.loads(member.bucket.read(blob.name) or b"{}"))
        if len(nodes) == len(names):
            return sorted((nodes[name] for name in names), key=lambda node: node.rank)
        missing = [name for name in names if name not in nodes]
        if time.monotonic() > next_look:
            next_look = time.monotonic() + WATCH_INTERVAL * max(member.node.rank, 1)
            found = there(member)
            seen |= found.keys()
            if gone := sorted(name for name in seen if not found.get(name)):
                alive = sorted(name for name in found if found[name])
                member.leads = member.leads or alive[:1] == [member.machine.name]
                raise BergError(f"machine {', '.join(gone)} is gone")
        if time.monotonic() > end:
            member.leads = member.leads or sorted(nodes)[:1] == [member.machine.name]
            raise BergError(f"{', '.join(missing)} did not come up within {patience} s")
        member.pause(0.3)


def phases(member: Member) -> dict[str, Any]:
    """The objects of the machines that are up, by machine; `metadata` holds the phase. Notes who is
    silent.
    """
    prefix = job.machines_prefix(member.job.job_name)
    listed = member.bucket.list(prefix, "name,metadata,generation")
    blobs = {blob.name.removeprefix(prefix).removesuffix(".json"): blob for blob in listed}
    now, patience = time.monotonic(), member.job.silence_seconds
    if now - member.listened > patience / 3 + WATCH_INTERVAL * member.node.rank:
        member.heard.clear()  # it could not listen itself
    member.listened = now
    for name, blob in blobs.items():
        if member.heard.get(name, (0, 0.0))[0] != blob.generation:
            member.heard[name] = blob.generation, now
    quiet = [name for name, (_, since) in member.heard.items() if now - since > patience]
    member.silent = sorted(name for name in quiet if name != member.machine.name)
    return blobs


def get_ready(member: Member) -> None:
    """Say that all is installed here; the machine that leads waits until it is everywhere."""
    announce(member, phase="READY")
    waiting = member.leads
    while waiting:
        found = [(name, blob.metadata) for name, blob in phases(member).items()]
        for name, told in found:
            if told["phase"] == "FAILED":
                raise BergError(f"{name}: {told['reason']}")
        waiting = any(told["phase"] == "UP" for _, told in found)
        member.pause(0.3 if waiting else 0)


def environment(member: Member) -> dict[str, str]:
    """What a program is told of the machines; `PET_*` is what torchrun reads in place of its
    options.
    """
    this, node, nodes = member.job, member.node, member.nodes
    first = nodes[0]
    address = first.internal_ip if len(nodes) > 1 else "127.0.0.1"
    # A port of the job's own, for machines that share a network stack.
    port = str(29500 + zlib.crc32(this.job_name.encode()) % 1000)
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
    # libtpu, JAX and torch_tpu look for these before they ask the metadata server
    if this.place == "tpu":
        variables["TPU_WORKER_ID"] = str(node.rank)
        variables["TPU_WORKER_HOSTNAMES"] = ",".join(n.internal_ip for n in nodes)
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


def there(member: Member) -> dict[str, bool]:
    """The job's machines that Compute Engine has, or its pods that live, and whether each is on."""
    if boot.POD:
        return dict.fromkeys(pods.living(member.job.job_name, member.job.num_machines), True)
    machines = instances.find(
        member.bucket.config, jobs=[member.job.job_name], zone=member.machine.zone
    )
    return {machine.name: machine.status in ALIVE for machine in machines}


def lives(member: Member, machine: str, zone: str) -> bool:
    """Whether another machine of the job is on; `zone` is where that machine was made."""
    if boot.POD:
        return machine in pods.living(member.job.job_name, member.job.num_machines, others=True)
    listed = instances.find(member.bucket.config, names=[machine], zone=zone)
    return any(each.status in ALIVE for each in listed)


def living(member: Member) -> list[str]:
    """Names of the job's machines that are on, by rank."""
    return sorted(name for name, is_on in there(member).items() if is_on)


def ending_of_part(member: Member, is_over: Callable[[], bool]) -> Ending | None:
    """Return how this machine's part ends now: another machine went or failed, or the job is over.

    None if it goes on.
    """
    if member.leads:
        return ending_by_others(member)
    if is_over():
        return Ending("ENDED", "the job ended")
    if takes_over(member):
        return Ending("FAILED", absence(member, first_machine(member)))
    return None


def ending_by_others(member: Member) -> Ending | None:
    """Return how the job ends because another machine went or failed; None if it goes on."""
    alive, blobs = living(member), phases(member)
    for name, blob in blobs.items():
        if blob.metadata["phase"] == "FAILED":
            return Ending("FAILED", f"{name}: {blob.metadata['reason']}")
        if name not in alive or name in member.silent:
            return Ending("FAILED", absence(member, name))
    failed = first_failure(blobs)
    if failed and not member.job.keep_going:
        member.failure_seen = member.failure_seen or time.monotonic()
        if time.monotonic() - member.failure_seen > FAILURE_GRACE:
            return judge(*failed)
    return None


def absence(member: Member, name: str) -> str:
    """What is to be said of a machine that is not there any more."""
    if name in member.silent:
        return f"machine {name} was silent for {member.job.silence_seconds} s and was given up"
    told = phases(member).get(name)
    why = (
        ": Google stopped it to maintain its host"
        if told and "maintenance" in told.metadata
        else ""
    )
    return f"machine {name} is gone{why}"


def first_failure(blobs: dict[str, Any]) -> tuple[int, str] | None:
    """Exit code and machine of the command that failed first, if one has failed."""
    ended = [
        (name, blob.metadata) for name, blob in blobs.items() if blob.metadata["phase"] == "ENDED"
    ]
    failed = [
        (float(told["ended_at"]), int(told["exit_code"]), name)
        for name, told in ended
        if told["exit_code"] != "0"
    ]
    return min(failed)[1:] if failed else None


def first_machine(member: Member) -> str:
    return job.machine_names(member.job.job_name, member.job.num_machines)[0]


def takes_over(member: Member) -> bool:
    """Whether this machine leads from now on: the first one is gone, and of the others this has the
    lowest rank.

    Compute Engine takes some 1,500 reads a minute, so that a machine asks the less often the higher
    its rank.
    """
    if time.monotonic() < member.next_look:
        return False
    member.next_look = time.monotonic() + WATCH_INTERVAL * (member.node.rank - 0.5)
    phases(member)
    there = [name for name in living(member) if name not in member.silent]
    member.leads = first_machine(member) not in there and there[:1] == [member.machine.name]
    return member.leads


def wait_for_commands(member: Member) -> tuple[int, str]:
    """Wait until the command has ended on every machine; the first exit code that was not 0, and
    where.
    """
    while True:
        blobs = phases(member)
        if (
            sum(blob.metadata["phase"] == "ENDED" for blob in blobs.values())
            == member.job.num_machines
        ):
            return first_failure(blobs) or (0, "")
        member.pause(1)


def wait_for_uploads(member: Member, tell: Callable[[list[str]], None]) -> tuple[list[str], bool]:
    """Wait for the last results of all other machines that are there.

    Returns what of whom is not in the bucket, and whether that is only what the bucket cannot take.
    """
    while True:
        alive, blobs = living(member), phases(member)
        missing = [
            n
            for n, blob in blobs.items()
            if n != member.machine.name and not blob.metadata.get("uploaded")
        ]
        if not any(name in alive and name not in member.silent for name in missing):
            told = {
                name: blob.metadata for name, blob in blobs.items() if name != member.machine.name
            }
            texts = [
                f"{name}: {about['lost']}" for name, about in told.items() if about.get("lost")
            ]
            is_whole = all(about.get("uploaded") == "all" for about in told.values())
            return [*map(functools.partial(absence, member), missing), *texts], is_whole
        tell([blobs[name].metadata.get("left", "0 0") for name in missing])
        time.sleep(1)


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
    """Tell the machine that leads a devbox when this one is used, and people here what it warns of,
    until it ends.
    """
    heard = ""
    for used in idle.samples(member.job.idle_seconds, stopped, bool(member.job.tpu)):
        # the network may fail for a while; the next sample tells
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


def delete_others(member: Member) -> None:
    if boot.POD:  # Kubernetes ends them
        return
    config, name = member.bucket.config, member.machine.name
    others = [
        each for each in instances.find(config, jobs=[member.job.job_name]) if each.name != name
    ]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda machine: api.delete(config, instances.path_of(machine)), others))

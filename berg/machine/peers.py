"""The machines of a job among themselves, and what their place means to them.

The machine with the lowest rank that is there leads: it writes the job's state. A machine is there
if its place says that it is on and it keeps writing its record, as each does many times in the
seconds after which a silent one is given up.
"""

# Each machine writes a record to the bucket and reads those of the others:
#
#     .berg/machines/<job>/<machine>.json   name, rank, addresses, ssh host keys; of the first one
#                                           also the public key with which it logs in to the others
#     its custom metadata                   attempt, serial, phase (UP, READY, ENDED, FAILED, GONE),
#                                           reason, exit_code, ended_at, uploaded, lost (what it
#                                           could not upload), used_at, warning; fault (why it
#                                           cannot use RoCE), verdict (preflight.py)
#
# A command that failed runs again on all machines together: each meets the others again once it has
# stopped its own and uploaded its results. The attempt in its record says for which it did so.
#
# Every machine's account may write below .berg/machines/, also for other jobs, and a record puts a
# key into authorized_keys and hosts into known_hosts. So records are signed with a key that the
# laptop made for this job alone. It is in Secret Manager if the job has secrets or its user a
# service account of their own; in a Secret of Kubernetes for pods; else in the metadata of the
# machines. This does not protect from those who can read the key: the job's own root, users and
# machines that may list instances or read the secret. A signed record may be written again: a
# machine that saw a newer one ignores it. It may be deleted: that ends a job, but lets no one in.

import contextlib
import fcntl
import functools
import hashlib
import hmac
import ipaddress
import json
import math
import os
import re
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from berg import BergError, job, plain, validation
from berg.config import Config
from berg.gke import client
from berg.google import api, groups, instances
from berg.google.storage import Bucket
from berg.google.views import Head
from berg.job import Job
from berg.machine import boot, usage
from berg.machine.outcome import Ending
from berg.machine.process import judge

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # of a pod
INDEX = "batch.kubernetes.io/job-completion-index"
CLUSTER_FILE = boot.BERG / "cluster.json"  # for `mpi` and logins
HOST_FILE = boot.BERG / "hostfile"
VIEW = "view"  # the key of a record's metadata that holds what its machine's last view says
HEARD = "at_ns", "gaps", "rests"  # of it
CARD = "card"  # the key of a record's metadata that holds its content as well
WATCH_INTERVAL = 3  # seconds between two looks at the other machines
BEATS = 9  # writes of a machine's record within the seconds of silence that end its part
ABSENCE_GAP = 60  # seconds between two looks, after which they are of different losses
LEADER_GRACE = 30  # seconds in which the leader is the one to report who did not come
BETWEEN_WRITES = 1.05  # seconds between two writes of a record: Cloud Storage takes one a second
FAILURE_GRACE = 10  # seconds for the other commands to end by themselves after one has failed
COMING = 600  # seconds for all machines of a job to come up, at most
NODES_COMING = 1800  # the same for pods, whose nodes may be created one after another
NUMBERED = 300  # seconds for the metadata to say which worker of a slice a machine is
METADATA_QUERY = "instance/?recursive=true&wait_for_change=true&timeout_sec=50&last_etag="
POLL = 1  # seconds between two looks at what sends no notification
SIOCGIFADDR = 0x8915  # what asks Linux for the address of an interface
ALIVE = ("PROVISIONING", "STAGING", "RUNNING", "REPAIRING")
SIGNATURE = "signature"


def names_of(machine: boot.Machine, this: Job) -> list[str]:
    """Return the names of a job's machines by rank; `machine` is one. Warm ones keep those that
    they were created with.
    """
    if machine.warm == this.job_name:
        return job.names_beside(machine.name, this.num_machines)
    return job.machine_names(this.job_name, this.num_machines)


class Host:
    """An instance of Compute Engine, as its job needs it."""

    is_pod = False

    def __init__(self, machine: boot.Machine, config: Config):
        self.machine, self.config = machine, config
        self.etag = "0"

    def identity(self, this: Job) -> tuple[dict[str, Any], int]:
        """Return what the metadata server knows of this machine, and its rank in the job."""
        names = names_of(self.machine, this)
        rank = names.index(self.machine.name) if self.machine.name in names else 0
        return self.machine.instance(), rank

    def new_metadata(self, over: threading.Event) -> dict[str, Any]:
        """Wait until this machine's metadata change, for a minute or until `over`; return them."""
        url = boot.METADATA + METADATA_QUERY + self.etag
        content, headers = boot.request(url, headers=boot.FLAVOR, attempts=1)
        values: dict[str, Any] = json.loads(content)
        self.etag = headers.get("ETag", "0")
        return values

    def coming_seconds(self, this: Job, came: float) -> float:
        """Return the seconds to wait for the other machines, which were created together with this
        one; it came `came` seconds after the submit (0: not known).
        """
        return min(COMING, max(this.longest_silence, 2 * came)) if came else COMING

    def peers(self, this: Job) -> dict[str, bool]:
        """Return the job's machines that exist, and whether each is on."""
        found = self.machines(this, self.machine.zone)
        return {machine.name: machine.status in ALIVE for machine in found}

    def machines(self, this: Job, zone: str = "") -> list[job.Machine]:
        """Return the job's machines in a zone, or in all. Those that are or were kept warm have the
        right labels only some time after a laptop gave them another job: their names count.
        """
        if self.machine.warm == this.job_name or this.spec.keep_warm:
            names = {*names_of(self.machine, this)}  # too many for a filter
            found = instances.find(self.config, zone=self.machine.zone)
            return [each for each in found if each.name in names]
        return instances.find(self.config, jobs=[this.job_name], zone=zone)

    def is_on(self, this: Job, name: str, zone: str) -> bool:
        """Return whether another machine that had the job is on; `zone` is its own."""
        found = instances.find(self.config, names=[name], zone=zone)
        return any(machine.status in ALIVE for machine in found)

    def variables(self, rank: int, addresses: list[str]) -> dict[str, str]:
        """Return variables for this place's libraries; the addresses are by rank."""
        return {}

    def delete_groups_elsewhere(self, this: Job) -> None:
        """Delete the groups of the job that wait for capacity in other regions."""
        here = self.machine.zone.rpartition("-")[0]
        for region in set(this.regions) - {here}:
            api.delete(self.config, groups.path_of(region, this.job_name))

    def delete_peer(self, name: str) -> None:
        """Delete another machine of the job, which Google re-creates."""
        for each in instances.find(self.config, names=[name], zone=self.machine.zone):
            api.delete(self.config, instances.path_of(each))

    def delete_peers(self, this: Job) -> None:
        """Delete the other machines of the job."""
        others = [each for each in self.machines(this) if each.name != self.machine.name]
        paths = map(instances.path_of, others)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(functools.partial(api.delete, self.config), paths))


class SliceWorker(Host):
    """A worker of a TPU slice, which is deleted with its instance group."""

    def identity(self, this: Job) -> tuple[dict[str, Any], int]:
        """Return the metadata and the rank once Google has numbered the workers of the slice."""

        def numbered() -> tuple[dict[str, Any], int] | None:
            instance = self.machine.instance()
            number = worker_number(instance)
            return None if number is None else (instance, number)

        found = api.wait_for(numbered, POLL, NUMBERED)
        if found is None:
            raise BergError(
                f"Google did not say within {NUMBERED} s which worker of its slice "
                f"{self.machine.name} is"
            )
        return found

    def peers(self, this: Job) -> dict[str, bool]:
        """Return the job's machines that exist; all of a slice that Google repairs count as on."""
        found = super().peers(this)
        return {name: is_on or this.is_restarted for name, is_on in found.items()}

    def variables(self, rank: int, addresses: list[str]) -> dict[str, str]:
        """Return what libtpu, JAX and torch_tpu read before they ask the metadata server."""
        return {"TPU_WORKER_ID": str(rank), "TPU_WORKER_HOSTNAMES": ",".join(addresses)}

    def delete_peers(self, this: Job) -> None:
        """Do nothing: a slice is deleted as a whole."""


class Pod(Host):
    """A pod of a cluster, whose peers Kubernetes ends."""

    is_pod = True

    def living(self, this: Job, others: bool = False) -> dict[str, str]:
        """Return the phases of the job's living pods, by the names of its machines; with `others`
        without this one. A pod's account may do no more.
        """
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        token = (ACCOUNT / "token").read_text().strip()  # it changes by the hour
        url, authority = f"https://{host}:{port}", str(ACCOUNT / "ca.crt")
        server = client.Server("of this pod", url, Config(), authority, token=token)
        namespace = (ACCOUNT / "namespace").read_text().strip()
        path = f"/api/v1/namespaces/{namespace}/pods?labelSelector=berg-job%3D{this.job_name}"
        ranked = {}
        for pod in client.call(server, "GET", path)["items"]:
            about, phase = pod["metadata"], pod["status"].get("phase")
            if phase in ("Pending", "Running") and not (others and about["uid"] == boot.POD):
                ranked[int(about["labels"].get(INDEX, 0))] = phase
        names = job.machine_names(this.job_name, this.num_machines)
        return {names[rank]: phase for rank, phase in sorted(ranked.items())}

    def coming_seconds(self, this: Job, came: float) -> float:
        return NODES_COMING

    def new_metadata(self, over: threading.Event) -> dict[str, Any]:
        over.wait(POLL)
        return self.machine.instance()

    def peers(self, this: Job) -> dict[str, bool]:
        """Return the job's pods that exist; where lost ones are re-created, a pod that has not
        begun replaces a lost one.
        """
        phases = self.living(this)
        return {name: phase == "Running" or not this.is_replaced for name, phase in phases.items()}

    def is_on(self, this: Job, name: str, zone: str) -> bool:
        return name in self.living(this, others=True)

    def delete_peer(self, name: str) -> None:
        """Do nothing: Kubernetes ends a pod whose node is silent."""

    def delete_peers(self, this: Job) -> None:
        """Do nothing: Kubernetes ends the pods of a job together."""


def host_of(machine: boot.Machine, config: Config, this: Job) -> Host:
    """Return the host of a job's machine."""
    if isinstance(machine, boot.Pod):
        return Pod(machine, config)
    return SliceWorker(machine, config) if this.place == "tpu" else Host(machine, config)


def worker_number(instance: dict[str, Any]) -> int | None:
    """Return a worker's number in its slice, which is not the order of the names; None until Google
    has set it.
    """
    attributes = instance.get("attributes", {})
    in_lines = re.search(r"^TPU_WORKER_ID: '?(\d+)", attributes.get("tpu-env", ""), re.M)
    number = attributes.get("worker-id", attributes.get("agent-worker-number", ""))
    if not number and in_lines:
        number = in_lines[1]
    return int(number) if number.isdigit() else None


@dataclass
class Node:
    """What a machine writes of itself in its record."""

    name: str
    rank: int
    instance_id: str = ""
    internal_ip: str = ""
    external_ip: str = ""
    ssh_port: int = 22
    host_keys: list[str] = field(default_factory=list)  # "ssh-ed25519 AAAA…"
    node_key: str = ""  # public
    slots: int = 1  # processes that `mpi` starts here: one per GPU, else one per CPU
    introduced: bool = False  # it knows the others, and logins have the variables of commands

    def validate(self) -> None:
        """Raise ValueError for what no machine of the job writes."""
        validation.check_plain(self, free=())
        for address in filter(None, (self.internal_ip, self.external_ip)):
            ipaddress.ip_address(address)
        for public_key in filter(None, (*self.host_keys, self.node_key)):
            if not re.fullmatch(r"[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [\w.@-]*)?", public_key):
                raise ValueError(f"{public_key[:40]!r} is no public key")


@dataclass
class Member:
    """This machine among those of its job. Times are of time.monotonic()."""

    machine: boot.Machine
    host: Host
    bucket: Bucket
    job: Job
    leads: bool  # it writes the job's state
    pause: Callable[[float], None]  # seconds; raises an error when the job is to end
    node: Node
    nodes: list[Node]  # all machines by rank, this one among them
    # metadata of this machine's record
    summary: dict[str, str] = field(default_factory=lambda: {"phase": "UP"})
    key: str = field(repr=False, default="")  # signs records
    ignored: set[str] = field(default_factory=set)  # invalid records
    next_look: float = 0.0  # of a machine that does not lead, for the leader
    lock: threading.Lock = field(default_factory=threading.Lock)  # of this machine's record
    # machine -> serial of its record, and since when
    heard: dict[str, tuple[int, float]] = field(default_factory=dict)
    listened: float = 0.0  # last look at the others' records
    silent: list[str] = field(default_factory=list)  # machines that were silent for too long
    waited: float = 0.0  # seconds from the submit of a job to this machine, the first of it to come
    failure_seen: float = 0.0  # when a command was seen to have failed
    # last look without the first machine, and the first such look of those in a row
    leaderless_seen: float = -math.inf
    leaderless_since: float = 0.0
    # what was last heard of a first machine that was deleted
    deleted_for: tuple[int, float] = (0, 0.0)
    attempt: int = 1  # of the job, that this machine makes or waits for
    serial: int = 0  # of this machine's last record; each has a higher one
    next_write: float = -math.inf  # of this machine's record
    newest: dict[str, int] = field(default_factory=dict)  # record -> highest serial
    views: dict[str, Head] = field(default_factory=dict)  # other machine -> what its last one says
    own_view: Callable[[], Head] = lambda: Head(0)

    @property
    def is_alone(self) -> bool:
        return self.job.num_machines == 1

    def others_views(self) -> list[Head]:
        """Return what the last views of all other machines say; [] before that is known of all."""
        known = list(self.views.values())
        return known if len(known) == self.job.num_machines - 1 else []


def describe(member: Member) -> Node:
    """Return this machine as the others see it, from its metadata."""
    instance, rank = member.host.identity(member.job)
    interface = (instance.get("networkInterfaces") or [{}])[0]
    external = (interface.get("accessConfigs") or [{}])[0]
    return Node(
        name=member.machine.name,
        rank=rank,
        instance_id=str(instance.get("id", "")),
        internal_ip=interface.get("ip", ""),
        external_ip=external.get("externalIp", ""),
        slots=member.job.gpus_per_machine or os.cpu_count() or 1,
    )


def announce(member: Member, **changes: str) -> None:
    """Write this machine's record, with changes to its metadata."""
    with member.lock:
        time.sleep(max(member.next_write - time.monotonic(), 0))
        member.serial = max(member.serial + 1, int(time.time() * 1e6))  # also after a reboot
        about = {"attempt": str(member.attempt), "instance": member.node.instance_id}
        about["serial"] = str(member.serial)
        if (view := member.own_view()).at_ns:
            about[VIEW] = json.dumps({name: getattr(view, name) for name in HEARD})
        member.summary |= {**changes, **about}
        name = f"{job.machines_prefix(member.job.job_name)}{member.machine.name}.json"
        content = write(member.key, name, member.node)
        # With the content, so that one list request reads all machines: else N machines read N².
        metadata = signed(member.key, name, {**member.summary, CARD: content})
        member.bucket.write(name, content, metadata=metadata)
        member.next_write = time.monotonic() + BETWEEN_WRITES


def announce_soon(member: Member) -> None:
    """Write this machine's record when possible, unless that was done meanwhile."""
    serial = member.serial
    time.sleep(BETWEEN_WRITES)
    if member.serial == serial:
        with contextlib.suppress(Exception):  # the heartbeat writes it, too
            announce(member)


def note_earlier(member: Member) -> None:
    """Take part in the attempt after the one in this machine's record, if it took part in one
    before it was turned off: all of a slice are turned off and on together.
    """
    own = phases(member).get(member.machine.name)
    if own:
        member.attempt = max(member.attempt, int(own.metadata["attempt"]) + 1)


def heartbeat(member: Member) -> None:
    """Write this machine's record again and again, so that the others see that it is alive."""
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
    came so many seconds after the submit (0: not known).
    """
    is_new_pod = member.host.is_pod and member.attempt <= 1
    if member.job.is_replaced and not is_new_pod:
        return member.job.spec.replacement_timeout
    if member.job.spec.queue_timeout and member.host.is_pod:
        return max(member.job.spec.queue_timeout - round(member.waited), 0)
    return member.host.coming_seconds(member.job, came)


def gather(member: Member, timeout: float, note: Callable[[int], None]) -> list[Node]:
    """Wait until every machine of the job is up for this attempt, and return them by rank.

    `note` is called now and then with how many are missing. Raise BergError with the names of those
    that did not come within `timeout` seconds, or are gone again.
    """
    names = names_of(member.machine, member.job)
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
        if waited > timeout or time.monotonic() > next_look:
            next_look = time.monotonic() + WATCH_INTERVAL * max(member.node.rank, 1)
            note(len(names) - len(nodes))
            if not member.job.is_replaced:
                if waited > member.job.longest_silence:
                    seen |= set(names)  # they were created together, and are listed by now
                check_peers(member, seen)
            elif {*names} <= (member.heard.keys() - {*member.silent}) & {*living(member)}:
                began, waited = time.monotonic(), 0.0  # all are there; one may still upload
        # The leader's word on who did not come is to be the job's reason.
        is_second = not member.leads and first_machine(member) in nodes
        if waited > timeout + LEADER_GRACE * is_second:
            timeout = longer_timeout(member, names, nodes, timeout)
        member.pause(0.3)


def longer_timeout(
    member: Member, names: list[str], nodes: dict[str, Node], timeout: float
) -> float:
    """Return for how many seconds in all to wait for machines that are not among `nodes`, where one
    of them wrote that it installs packages; else raise BergError with their names.
    """
    missing = [name for name in names if name not in nodes]
    if timeout < COMING:
        found = member.bucket.list(job.machines_prefix(member.job.job_name), "name")
        notes = {blob.name.rpartition("/")[2] for blob in found}
        if any(name + boot.INSTALLS in notes for name in missing):
            return COMING
    lead_if_first(member, sorted(nodes))
    raise BergError(lateness(member.job, missing, timeout))


def lateness(this: Job, names: list[str], timeout: float) -> str:
    """Return a sentence on machines that did not come within `timeout` seconds, and what helps."""
    missing = ", ".join(names)
    if timeout != this.spec.replacement_timeout or not this.is_replaced:
        return f"{missing} did not come up within {timeout:.0f} s"
    return (
        f"{missing} did not come within {plain.span(timeout)} (--replacement-timeout). "
        f"Resume the job: berg run --resume {this.job_name}"
    )


def add_nodes(member: Member, names: list[str], nodes: dict[str, Node]) -> None:
    """Add the job's machines that are up now to `nodes`; raise BergError if one has failed.

    If the first machine waits for a later attempt, begin that one.
    """
    blobs = phases(member)
    first = blobs.get(first_machine(member))
    if first and first.metadata["phase"] == "UP":
        expected = int(first.metadata["attempt"])
        if expected > member.attempt:
            nodes.clear()
            begin_attempt(member, expected)
    for name, blob in blobs.items():
        if member.leads and has_failed(member, blob):
            raise BergError(f"{name}: {blob.metadata['reason']}")
        if name not in names or name in nodes or not is_of_attempt(member, blob):
            continue
        try:
            node = read(member.key, blob.name, blob.metadata.get(CARD, "{}").encode())
        except ValueError as error:
            ignore(member, blob.name, str(error))
            continue
        if node.name == name:
            nodes[name] = node


def has_failed(member: Member, blob: Any) -> bool:
    """Return whether a machine has failed in this attempt, or before it heard of one. All machines
    of a slice are turned off and on together; one that is slow has the record of the last attempt.
    """
    is_earlier = 0 < int(blob.metadata["attempt"]) < member.attempt
    return blob.metadata["phase"] == "FAILED" and not is_earlier


def is_of_attempt(member: Member, blob: Any) -> bool:
    """Return whether a machine wrote its record for this machine's attempt."""
    return bool(blob.metadata.get("attempt") == str(member.attempt))


def ignore(member: Member, where: str, why: str) -> None:
    """Log once that a record is ignored."""
    if where not in member.ignored:
        member.ignored.add(where)
        member.machine.say(f"Ignored gs://{member.bucket.name}/{validation.clean(where)}: {why}")


def check_peers(member: Member, seen: set[str]) -> None:
    """Add the machines that are there to `seen`; raise BergError if one of those is gone."""
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
    """Return the valid records of the job's machines, by machine, and update which are silent."""
    prefix = job.machines_prefix(member.job.job_name)
    blobs = {
        blob.name.removeprefix(prefix).removesuffix(".json"): blob
        for blob in member.bucket.list(prefix, "name,metadata")
        if blob.name.endswith(".json") and is_valid(member, blob)
    }
    now, longest = time.monotonic(), member.job.longest_silence
    if now - member.listened > longest / 3 + WATCH_INTERVAL * member.node.rank:
        member.heard.clear()  # this machine itself could not read for a while
    member.listened = now
    for name, blob in blobs.items():
        if member.heard.get(name, (-1, 0.0))[0] != serial_of(blob):
            member.heard[name] = serial_of(blob), now
    note_views(member, blobs)
    quiet = [name for name, (_, since) in member.heard.items() if now - since > longest]
    member.silent = sorted(name for name in quiet if name != member.machine.name)
    return blobs


def note_views(member: Member, blobs: dict[str, Any]) -> None:
    """Note what the last view of each other machine says."""
    for name, blob in blobs.items():
        if VIEW in blob.metadata and name != member.machine.name:
            found = validation.parse(blob.metadata[VIEW])
            member.views[name] = validation.from_dict(Head, found)


def is_valid(member: Member, blob: Any) -> bool:
    """Return whether a machine of this job signed a record, and none newer was seen: another user
    may write again what was signed before.
    """
    if not is_signed(member.key, blob.name, blob.metadata):
        ignore(member, blob.name, "it is not signed by a machine of this job")
        return False
    if serial_of(blob) < member.newest.get(blob.name, 0):
        ignore(member, blob.name, "it is an old record that was written again")
        return False
    member.newest[blob.name] = serial_of(blob)
    return True


def serial_of(blob: Any) -> int:
    return int(blob.metadata.get("serial", 0))


def get_ready(
    member: Member, is_together: bool, pause: Callable[[float], None], **about: str
) -> dict[str, dict[str, str]]:
    """Announce that all is installed here, and more `about` this machine. The machine that leads
    waits until all is installed everywhere, and with `is_together` the others do too; return what
    each then announced.
    """
    announce(member, phase="READY", **about)
    found: dict[str, dict[str, str]] = {}
    waiting = member.leads or is_together
    while waiting:
        found = {name: blob.metadata for name, blob in phases(member).items()}
        for name, their in found.items():
            if their["phase"] == "FAILED" and member.leads:
                raise BergError(f"{name}: {their['reason']}")
        waiting = any(their["phase"] == "UP" for their in found.values())
        pause(0.3 if waiting else 0)
    return found


def environment(member: Member) -> dict[str, str]:
    """Return the variables that describe the machines to a program.

    `PET_*` is what torchrun reads in place of its options.
    """
    this, node, nodes = member.job, member.node, member.nodes
    address = nodes[0].internal_ip if len(nodes) > 1 else "127.0.0.1"
    # A port of the job's own, for machines that share a network stack, and of the attempt's, since
    # processes of the last one may be left.
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
        name = interface(node.internal_ip)
        variables["GLOO_SOCKET_IFNAME"] = variables["NCCL_SOCKET_IFNAME"] = name
    return variables


def interface(address: str) -> str:
    """Return the name of the network interface with an address."""
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                answer = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return "eth0"


def living(member: Member) -> list[str]:
    """Return the names of the job's machines that are on, by rank."""
    return sorted(name for name, is_on in member.host.peers(member.job).items() if is_on)


def ending_of_part(member: Member, is_over: Callable[[], bool]) -> Ending | None:
    """Return how this machine's part ends now: another machine was lost or failed, or the job has
    ended; None if it does not end.
    """
    if member.leads:
        return ending_by_others(member)
    if is_over():
        return Ending("ENDED", "the job ended")
    if not comes_next(member):
        return None
    name = first_machine(member)
    if member.job.is_replaced:
        # Delete a silent first machine, once each time that it falls silent. Google re-creates it,
        # and the new one is silent, too, until it is up.
        if name in member.silent and member.heard[name] != member.deleted_for:
            member.deleted_for = member.heard[name]
            member.machine.say(f"Machine {name} was silent; deleting it, so that it is replaced")
            member.host.delete_peer(name)
        now = time.monotonic()
        if now - member.leaderless_seen > ABSENCE_GAP:
            member.leaderless_since = now
        member.leaderless_seen = now
        if now - member.leaderless_since <= member.job.spec.replacement_timeout:
            return None
        reason = lateness(member.job, [name], member.job.spec.replacement_timeout)
    else:
        reason = absence(member, name)
    member.leads = True
    return Ending("FAILED", reason)


def ending_by_others(member: Member) -> Ending | None:
    """Return how the job ends because another machine was lost or failed; None otherwise."""
    alive, blobs = living(member), phases(member)
    for name, blob in blobs.items():
        if blob.metadata["phase"] == "FAILED":
            return Ending("FAILED", f"{name}: {blob.metadata['reason']}")
        is_gone = name not in alive or name in member.silent
        if is_gone and not member.job.is_replaced:
            return Ending("FAILED", absence(member, name))
    return None


def loss(member: Member) -> str:
    """Return a sentence on a machine that is lost for this attempt; "" if there is none.

    One that Google re-created has the same name, but is another instance.
    """
    alive, blobs = living(member), phases(member)
    known = {node.name: node.instance_id for node in member.nodes}
    for name, blob in blobs.items():
        about = blob.metadata
        if name in known and about["instance"] != known[name]:
            return f"machine {name} was re-created"
        if not is_of_attempt(member, blob):
            continue
        if about["phase"] == "GONE":
            return f"{name}: {about['reason']}"
        if name not in alive or name in member.silent:
            return absence(member, name)
    return ""


def lasting_failure(member: Member, blobs: dict[str, Any]) -> Ending | None:
    """Return how a command failed after which the others have had time to end by themselves; None
    without one.
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
    """Return the metadata of the machines on which this attempt's command has ended."""
    return {
        name: blob.metadata
        for name, blob in blobs.items()
        if blob.metadata["phase"] == "ENDED" and is_of_attempt(member, blob)
    }


def first_failure(member: Member, blobs: dict[str, Any]) -> tuple[int, str] | None:
    """Return exit code and machine of the command that failed first; None if none has failed."""
    failed = [
        (float(about["ended_at"]), int(about["exit_code"]), name)
        for name, about in ended(member, blobs).items()
        if about["exit_code"] != "0"
    ]
    return min(failed)[1:] if failed else None


def first_machine(member: Member) -> str:
    return names_of(member.machine, member.job)[0]


def comes_next(member: Member) -> bool:
    """Return whether the first machine is gone, and of the others this one has the lowest rank.

    Compute Engine takes some 1,500 reads a minute, so machines with higher ranks look less often.
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

    Return what is not in the bucket, a text for each machine, and whether that is only what the
    bucket cannot take. `on_progress` is called with a number of files and one of bytes for each
    machine that still uploads.
    """
    others = wait_for_records(member, "uploaded", on_progress)
    absences = [absence(member, name) for name, about in others.items() if "uploaded" not in about]
    lost = [f"{name}: {about['lost']}" for name, about in others.items() if about.get("lost")]
    is_whole = all(about.get("uploaded") == "all" for about in others.values())
    return absences + lost, is_whole


def wait_for_records(
    member: Member,
    key: str,
    on_progress: Callable[[list[str]], None] = lambda left: None,
    until: float = math.inf,
) -> dict[str, dict[str, str]]:
    """Wait until the records of all other machines that are there have a key, at most until
    time.monotonic() is `until`; return the records.

    Compute Engine takes some 1,500 reads a minute, so that a machine that does not lead looks less
    often at which are there, the higher its rank is.
    """
    alive = {*names_of(member.machine, member.job)}
    pause = WATCH_INTERVAL * max(member.node.rank, 1)
    next_look = time.monotonic() + pause
    while True:
        # Before the records: a machine that is not there has written its last.
        if member.leads or time.monotonic() > next_look:
            alive, next_look = {*living(member)}, time.monotonic() + pause
        others = {name: blob.metadata for name, blob in phases(member).items()}
        others.pop(member.machine.name, None)
        missing = [name for name, about in others.items() if key not in about]
        if time.monotonic() > until or not alive.intersection(missing) - {*member.silent}:
            return others
        on_progress([others[name].get("left", "0 0") for name in missing])
        time.sleep(1)


def wait_for_end(member: Member, is_over: Callable[[], bool]) -> bool:
    """Wait until the leader wrote the job's end; return False if it died before, and this machine
    leads now.
    """
    while not is_over():
        member.leads = comes_next(member)
        if member.leads:
            return False
        time.sleep(1)
    return True


def report_use(member: Member, stopped: Callable[[float], bool]) -> None:
    """Report to the machine that leads a devbox when this one is used, and show its warnings on
    the terminals here, until the devbox ends.
    """
    shown = ""
    for used in usage.used_samples(member.job.idle_seconds, stopped, bool(member.job.tpu)):
        with contextlib.suppress(Exception):  # the network; the next sample reports
            if used:
                announce(member, used_at=str(job.clock()))
            warnings = [blob.metadata.get("warning", "") for blob in phases(member).values()]
            newest = max(warnings, default="")
            if newest > shown:
                shown = newest
                usage.tell_terminals(shown.partition(" ")[2])


def others_are_used(member: Member) -> bool:
    """Return whether another machine of the devbox reported use lately, or may have."""
    if member.is_alone:
        return False
    lately = job.clock() - 2 * usage.sample_seconds(member.job.idle_seconds)
    try:
        return any(
            float(blob.metadata.get("used_at", 0)) > lately for blob in phases(member).values()
        )
    except Exception:  # better one hour too many than a used machine that is stopped
        return True


def signature(key: str, *parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True)
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def signed(key: str, where: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return values with a signature that is valid for the object `where` alone."""
    return {**values, SIGNATURE: signature(key, where, values)}


def is_signed(key: str, where: str, values: dict[str, Any] | None) -> bool:
    """Return whether the values of the object `where` were signed with this key."""
    unsigned = dict(values or {})
    found = unsigned.pop(SIGNATURE, "")
    expected = signature(key, where, unsigned)
    is_equal = isinstance(found, str) and hmac.compare_digest(found.encode(), expected.encode())
    return bool(key) and is_equal


def write(key: str, where: str, node: Node) -> str:
    """Return a node as signed JSON."""
    return json.dumps(signed(key, where, asdict(node)))


def read(key: str, where: str, data: bytes) -> Node:
    """Return the node in `data`; raise ValueError unless it is signed and valid."""
    values = validation.parse(data)
    if not is_signed(key, where, values):
        raise ValueError("it is not signed by a machine of this job")
    return validation.from_dict(Node, values)

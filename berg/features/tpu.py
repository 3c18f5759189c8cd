"""TPUs: --tpu v6e-4x4 says what the machines are, and how many.

One machine is an instance like any other. Several are a slice: a managed group of a zone in BULK mode,
whose workload policy has the topology. Google makes all of them or none, and repairs nothing: also of
Spot, a lost machine ends the job, and `berg run --resume NAME` goes on.

https://docs.cloud.google.com/tpu/docs. Not covered: v2 and v3, which only the Cloud TPU API has, v4 and
v5e, which are nodes of clusters alone, and several slices for one job.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from berg import BergError, gce, google, terminal
from berg import job as jobs
from berg.bucket import Bucket
from berg.feature import Feature
from berg.features import flex, spot
from berg.google import GoogleError, OperationFailed, last_part
from berg.options import option, set_by

if TYPE_CHECKING:
    from berg.config import Config
    from berg.job import Job
    from berg.run import Plan, Spec
    from berg.worker import Ending, Run

IMAGES = "ubuntu-os-accelerator-images"  # the project that has them
IMAGE = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
HOST = 4  # chips of each machine of a slice
FLAT = ("2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBES = ("2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")
SMALL = {"1": "1x1", "4": "2x2", "8": "2x4"}  # numbers of chips that can mean nothing else
EIGHT = "ct6e-standard-8t"  # eight chips of one machine, of which no zone had any in 2026-07
# Other options, by field, that say what the machines are; and those of features that TPUs do not have.
OTHERS = {
    "gpus": "-g",
    "gpu_type": "-t",
    "cpus": "-c",
    "machine_type": "--machine-type",
    "machines": "-m",
}
WITHOUT = {"Flex": ("queue_timeout", "wait_for_capacity"), "Ssd": ("local_ssd",)}
TYPES = ("ct", "tpu")  # beginnings of machine types
COMING = 1500  # seconds; Google may take 12 minutes to say that there is no room
QUEUED = 60  # seconds without a machine, after which a slice by flex-start is in Google's queue
NUMBERED = 300  # seconds for the metadata to say which worker of its slice a machine is
NO_ROOM = "insufficientCapacity"


@dataclass(frozen=True)
class Family:
    """What TPUs of a generation come in."""

    machine: str  # how its machine types begin
    alone: dict[str, str]  # topology of one machine -> how its type ends
    slices: tuple[str, ...]
    image: str = IMAGE
    disk: str = "hyperdisk-balanced"
    is_open: bool = True  # as Spot and by flex-start, to every project

    @property
    def is_cubic(self) -> bool:
        return "2x2x1" in self.alone


FAMILIES = {
    "v6e": Family("ct6e-standard", {"1x1": "1t", "2x2": "4t"}, FLAT),
    "v5p": Family(
        "ct5p-hightpu", {"2x2x1": "4t"}, (*CUBES, "16x16x16", "16x16x24"), disk="pd-balanced"
    ),
    "tpu7x": Family(
        "tpu7x-standard", {"2x2x1": "4t"}, CUBES, "ubuntu-accel-2404-amd64-tpu-tpu7x", is_open=False
    ),
}


@dataclass(frozen=True)
class Slice:
    """TPUs to ask for: of one machine, or of several."""

    family: str
    topology: str
    machine_type: str
    hosts: int

    @property
    def name(self) -> str:
        return f"{self.family}-{self.topology}"

    @property
    def chips(self) -> int:
        return chips_in(self.topology)


def chips_in(topology: str) -> int:
    return prod(map(int, topology.split("x")))


def parse(text: str) -> Slice:
    """The TPUs that --tpu means; raise BergError for what Compute Engine has not, or is not clear."""
    if text == EIGHT:
        return Slice("v6e", "2x4", EIGHT, 1)
    name, _, rest = text.lower().partition("-")
    if name not in FAMILIES:
        nodes = ": v4 and v5e come as nodes of clusters" * (name in ("v4", "v5e", "v5litepod"))
        raise BergError(
            f"--tpu {text}: Compute Engine has {', '.join(FAMILIES)}{nodes}. Give FAMILY-TOPOLOGY; "
            "see: berg gpus --tpu"
        )
    family = FAMILIES[name]
    topology = rest if family.is_cubic else SMALL.get(rest, rest)
    if topology in family.alone:
        return Slice(name, topology, f"{family.machine}-{family.alone[topology]}", 1)
    if topology in family.slices or (family.is_cubic and is_large_cube(topology)):
        return Slice(name, topology, f"{family.machine}-4t", chips_in(topology) // HOST)
    offered = [*family.alone, *family.slices]
    if rest.isdigit():  # of those with two cores a chip, tools count one or the other
        counts = {int(rest), int(rest) / 2} if family.is_cubic else {int(rest)}
        fitting = [f"{name}-{each}" for each in offered if chips_in(each) in counts]
        raise BergError(
            f"--tpu {text} is not clear: some tools count chips, some cores. "
            f"Give a topology: {', '.join(fitting or offered)}"
        )
    more = ", and larger cubes" * family.is_cubic
    raise BergError(f"--tpu {text}: {name} has {', '.join(offered)}{more}. Choose one of them")


def is_large_cube(topology: str) -> bool:
    """Whether it is AxBxC of multiples of 4, A <= B <= C, of which Google lists some."""
    if not re.fullmatch(r"[1-9]\d{0,2}(x[1-9]\d{0,2}){2}", topology):
        return False
    sides = [*map(int, topology.split("x"))]
    return sides == sorted(sides) and not any(side % 4 for side in sides)


def listed() -> list[Slice]:
    """What Compute Engine has, without some of the large cubes."""
    return [
        parse(f"{name}-{topology}")
        for name, family in FAMILIES.items()
        for topology in (*family.alone, *family.slices)
    ]


@dataclass
class Tpu(Feature):
    tpu: str = option(
        "--tpu", default="", metavar="FAMILY-TOPOLOGY",
        help="TPUs instead of GPUs: v6e-1, v6e-4x4, … (see berg gpus --tpu).",
    )  # fmt: skip

    def is_due(self, plan: Plan) -> bool:
        return plan.job.machine_type.startswith(TYPES)

    def choose(self, config: Config, spec: Spec) -> None:
        wanted = parse(self.tpu)
        if given := [name for name in OTHERS if set_by(name) == "command line"]:
            flag = OTHERS[given[0]]
            raise BergError(
                f"--tpu {self.tpu} says what the machines are, and how many. Leave out {flag}"
            )
        if (spec.grid or spec.tasks) and wanted.hosts > 1:
            raise BergError(
                f"--tpu {self.tpu} is a slice of {wanted.hosts} machines, and a row of a sweep has one. "
                "See: berg gpus --tpu"
            )
        spec.gpus, spec.cpus, spec.machine_type = 0, None, wanted.machine_type
        spec.machines, spec.each = wanted.hosts, wanted.hosts > 1
        spec.image = spec.image or f"{IMAGES}/{FAMILIES[wanted.family].image}"

    def change(self, plan: Plan) -> None:
        job, request = plan.job, plan.request
        if not self.tpu:  # it would get the image and disk of other machines
            same = [row.name for row in listed() if row.machine_type == job.machine_type]
            same += [EIGHT] if job.machine_type == EIGHT else ["FAMILY-TOPOLOGY"]
            raise BergError(
                f"{job.machine_type} has TPUs. Ask for them instead of a machine type: --tpu {same[0]} "
                "(see: berg gpus --tpu)"
            )
        wanted = parse(self.tpu)
        family, is_slice = FAMILIES[wanted.family], wanted.hosts > 1
        without = {**WITHOUT, "Flex": (*WITHOUT["Flex"], *["reservation"] * is_slice)}
        for kind, names in without.items():
            for name in names:
                if job.features.get(kind, {}).get(name):
                    raise BergError(f"--tpu takes no --{name.replace('_', '-')}. Leave it out")
        request["scheduling"]["onHostMaintenance"] = "TERMINATE"
        request["networkInterfaces"][0]["nicType"] = "GVNIC"
        request["disks"][0]["initializeParams"]["diskType"] = family.disk
        if wanted.machine_type == EIGHT:  # Google refuses it otherwise
            request["advancedMachineFeatures"] = {"threadsPerCore": 1}
        job.gpu_type = self.tpu  # in lists
        plan.create = create
        plan.rows["TPUs"] = f"{wanted.name}, {wanted.chips} chip{'s' * (wanted.chips > 1)}"
        if is_slice:
            plan.rows["TPUs"] += f": {wanted.hosts} machines together; none is made again when lost"
        if wanted.topology not in (*family.alone, *family.slices) and wanted.machine_type != EIGHT:
            plan.rows["TPUs"] += f"; Google's table has no {wanted.topology}, and may refuse it"
        if not family.is_open and job.features.keys() & {"Spot", "Flex"}:
            plan.rows["TPUs"] += f"; Google gives {wanted.family} so only to projects it let in"
        if is_slice and job.is_devbox:  # Google cannot stop it
            request["labels"] = {**request["labels"], "berg-kind": "job"}
            request["scheduling"]["instanceTerminationAction"] = "DELETE"
            plan.rows["TPUs"] += "; they cannot be switched off, and have no disk that stays"

    def forget(self, config: Config, job: Job) -> None:
        for group in spot.groups(config, job) if job.machines > 1 else []:
            google.delete(config, f"{groups_of(last_part(group['zone']))}/{job.name}")

    # --- on the machine

    def prepare(self, run: Run) -> None:
        if run.job.machines > 1 and not run.job.rows:
            run.told["worker"] = worker_number(run)

    @contextlib.contextmanager
    def around(self, run: Run) -> Iterator[None]:
        run.container.append("--privileged")  # or it would not see the chips
        if run.job.machines > 1 and not run.job.rows:
            numbers = {rank: row.get("worker", -1) for rank, row in run.peers.records.items()}
            if {*numbers.values()} != {*range(run.job.machines)}:
                raise BergError(f"the machines are not the workers of one slice: {numbers}")
            order = sorted(numbers, key=lambda rank: numbers[rank])
            hosts, number = [run.addresses[rank] for rank in order], str(numbers[run.rank])
            own = {"TPU_WORKER_ID": number, "TPU_WORKER_HOSTNAMES": ",".join(hosts)}
            own |= dict.fromkeys(["BERG_NODE_RANK", "PET_NODE_RANK"], number)
            own |= dict.fromkeys(["MASTER_ADDR", "PET_MASTER_ADDR"], hosts[0])
            run.variables |= {**own, "BERG_HOSTS": ",".join(hosts), **run.job.env}
        yield

    def ended(self, run: Run, ending: Ending) -> Ending:
        is_gone = ending.state == jobs.STOPPED and run.job.machines > 1
        return replace(ending, state=jobs.FAILED) if is_gone else ending


def worker_number(run: Run) -> int:
    """Which worker of its slice a machine is, once Google has said it; not the order of the names."""
    from berg.worker import Facts

    end = time.monotonic() + NUMBERED
    while time.monotonic() < end:
        facts = Facts.read().attributes
        inner = re.search(r"^TPU_WORKER_ID: '?(\d+)", facts.get("tpu-env", ""), re.M)
        text = facts.get("worker-id") or facts.get("agent-worker-number") or (inner and inner[1])
        if text and text.isdigit():
            return int(text)
        run.look()
        time.sleep(1)
    raise BergError(f"Google did not say in {NUMBERED} seconds which worker {run.facts.name} is")


# --- creation


def groups_of(zone: str) -> str:
    return f"/zones/{zone}/instanceGroupManagers"


def create(
    config: Config, job: Job, request: dict[str, Any], zones: list[str], say: Callable[[str], None]
) -> str:
    """Create the machines of a job, all or none, in the first zone with room; return the zone, "" while
    they wait in Google's queue.
    """
    is_queued = request["scheduling"].get("provisioningModel") == "FLEX_START"
    is_slice = parse(job.gpu_type).hosts > 1
    if is_queued and not is_slice:
        return flex.create_queued(config, job, request, zones, say)
    make = functools.partial(make_slice, job, is_queued) if is_slice else insert
    zone = gce.create(config, job, request, zones, say, make)
    if is_queued and not gce.machines(config, job.name, zone):
        say(f"The slice waits in the queue of {zone}, at no cost, until there is room")
        return ""
    return zone


def insert(config: Config, request: dict[str, Any], names: list[str], zone: str) -> None:
    try:
        gce.insert(config, request, names, zone)
    except OperationFailed as error:
        raise meant(error.reason, error.message) from None


def meant(code: str, message: str) -> OperationFailed:
    """What an error about TPUs means: after minutes of STAGING Google says INTERNAL_ERROR if there is no
    room.
    """
    return OperationFailed(NO_ROOM if code == "INTERNAL_ERROR" else code, message)


def make_slice(
    job: Job, is_queued: bool, config: Config, request: dict[str, Any], names: list[str], zone: str
) -> None:
    """Create a slice in a zone, and wait until it runs, or is in Google's queue. After an error there is
    nothing of it.
    """
    state, _ = jobs.read_state(Bucket(config), job.name)
    if state.is_final or state.id != job.id:  # before this zone many minutes went by
        raise ended(job)
    topology, region = parse(job.gpu_type).topology, zone.rpartition("-")[0]
    if job.is_devbox:
        items = request["metadata"]["items"]
        kept = [row for row in items if row["key"] != "berg-devbox"]  # it would only go off
        request = {**request, "metadata": {"items": kept}}
    template, own = spot.make_template(config, request)
    workload = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": topology}
    workload["acceleratorTopologyMode"] = "AUTO_CONNECT"
    path, policy = f"/regions/{region}/resourcePolicies", f"berg-{topology}"
    spot.make_once(config, path, {"name": policy, "workloadPolicy": workload})
    base = f"https://www.googleapis.com/compute/v1/projects/{config.project}"
    group = {
        "name": job.name,
        "baseInstanceName": job.name[:58].rstrip("-"),
        "targetSize": 0,
        "instanceTemplate": template,
        "targetSizePolicy": {"mode": "BULK"},
        "resourcePolicies": {"workloadPolicy": f"{base}{path}/{policy}"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
        "updatePolicy": {"type": "OPPORTUNISTIC"},
        "allInstancesConfig": {"properties": {"labels": {"berg-job": job.name}, "metadata": own}},
    }
    Tpu().forget(config, job)  # of an earlier attempt
    try:
        google.do(config, "POST", groups_of(zone), group)
        members = {"instances": [{"name": name} for name in names]}
        google.do(config, "POST", f"{groups_of(zone)}/{job.name}/createInstances", members)
        with terminal.waiting(f"Waiting for {len(names)} machines of a slice, up to 12 minutes"):
            await_all(config, job, f"{groups_of(zone)}/{job.name}", is_queued)
    except GoogleError:
        Tpu().forget(config, job)
        raise


def await_all(config: Config, job: Job, path: str, is_queued: bool) -> None:
    """Wait until all machines of a slice run, or it is in Google's queue; raise OperationFailed with
    Google's reason if they will not.
    """
    began = time.monotonic()
    while (waited := time.monotonic() - began) < COMING:
        if (found := google.find(config, path, fields="status")) is None:
            raise ended(job)
        status = found["status"]
        counts = status.get("currentInstanceStatuses", {})
        if counts.get("running", 0) == job.machines:
            return
        check = status.get("bulkInstanceOperation", {}).get("lastProgressCheck", {})
        is_empty = counts.get("nonExistent", 0) >= job.machines
        for error in check.get("error", {}).get("errors", []):
            code = error.get("code", "")
            if is_queued and is_empty and code in (*gce.NO_ROOM, *gce.NO_QUOTA):
                return
            raise meant(code, error.get("message", code))
        if is_queued and is_empty and waited > QUEUED:
            return
        time.sleep(1)
    raise OperationFailed("RESOURCE_NOT_READY", f"not all came in {COMING // 60} minutes")


def ended(job: Job) -> BergError:
    from berg.run import NameTaken

    return NameTaken(f"{job.name} was ended before its machines came. See: berg show {job.name}")

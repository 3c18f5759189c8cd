"""What is asked for, and the plan that `launch` makes of it and a place carries out."""

import hashlib
from dataclasses import dataclass, field, fields
from typing import Any

from berg import BergError, gate
from berg.checks import check_types
from berg.code.snapshot import Snapshot
from berg.config import Config
from berg.google.accelerators import Shape
from berg.google.networks import Ways
from berg.google.reservations import Reservation
from berg.google.storage import Listed
from berg.inventory import Machine
from berg.job import NO_GROUP, Group, Job, machine_names
from berg.spec import LIMITS, JobSpec

# What spec_of takes from no record, and what it takes that becomes a part of a URL.
UNBELIEVED = {"cmd", "name", "note", "defaults", "secrets", "notify", "branch", "commit"}
UNBELIEVED |= {"install_secrets", "recorded_image"}
UNBELIEVED |= {"pod_patch"}  # a part of a request, which would be sent with the person's rights
NAMES = ("gpu_type", "machine_type", "tpu", "cluster", "queue")


def spec_of(job: Job) -> JobSpec:
    """Return what a job was asked for with, without its name, its secrets, its webhook and the
    patch for its pods; the image of its containers by the digest that it ran with.

    Raise BergError where its record says what no option can be. What names a file or variable of
    the laptop is left out: machines may have written the record.
    """
    known = {each.name for each in fields(JobSpec)} - UNBELIEVED
    values = {key: as_given(value) for key, value in job.spec.items() if key in known}
    spec = JobSpec(**values, cmd=job.cmd if job.kind == "job" else None)
    spec.docker = job.pinned_image or spec.docker
    spec.recorded_image = spec.docker or ""
    try:
        check_types(spec)
        project, _, image = (spec.image or "").rpartition("/")
        gate.check_project(project)
        for name in (image, *spec.zones, *(getattr(spec, each) or "" for each in NAMES)):
            gate.check_resource(name)
    except ValueError as error:
        raise BergError(
            f"the options of {job.job_name} are damaged ({error}). Start it as new: berg run"
        ) from None
    return spec


def as_given(value: Any) -> Any:
    """Return an option's value as JobSpec has it: JSON knows lists alone, no tuples."""
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Choice:
    """The machines that a spec means, before anybody was asked where there are such."""

    shape: Shape
    hosts: int  # number of machines
    image: str  # an image's family or name; of pods a container's
    image_project: str = ""
    cluster: str = ""  # LOCATION/NAME, whose pods the machines are
    is_slice: bool = False  # machines that run a command together, or not at all
    accounts: tuple[str, ...] = ()  # as in `Offer`


@dataclass
class Offer:
    """What a place has for a spec, and how people read it."""

    shape: Shape
    hosts: int  # number of machines
    image: str  # its path; of pods a container's name
    zones: list[str]  # to try, in this order
    rows: list[tuple[str, str]]  # of the plan: machine, image, where
    ender: str  # who ends a machine whose time is over, and how
    group: Group = NO_GROUP  # as Job.group
    regions: list[str] = field(default_factory=list)  # as Job.regions
    left_out: list[str] = field(default_factory=list)  # regions that were asked for beside them
    heals: str = ""  # what a group makes anew, in words; "": nothing
    disk_gb: int = 0  # 0: its machines have no disks of their own
    # quotas that have no room for the machines now
    shortages: list[str] = field(default_factory=list)
    # out of the regions, for machines without an external address
    ways: list[Ways] = field(default_factory=list)
    priced: Shape | None = None  # what is paid for; None: it is not known
    reservation: Reservation | None = None  # whose room the machines use
    # what Google says of its room for Spot machines, a line a zone
    odds: list[str] = field(default_factory=list)
    is_shared: bool = False  # whether that is a node, which several pods may share
    accounts: tuple[str, ...] = ()  # that its machines act as; none: that of the settings


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Plan:
    """Everything that is known before the first byte is sent."""

    config: Config
    job: Job
    offer: Offer
    bucket_region: str
    snapshot: Snapshot
    spot: bool
    wheel: tuple[str, bytes]
    packages: tuple[str, bytes]  # what the worker imports; ("", b""): the machine asks pip
    gcsfuse: tuple[str, bytes] = ("", b"")  # for machines that lack it
    uv: tuple[str, bytes] = ("", b"")  # for a job that needs it, if the bucket has none
    ssh_key: str = ""  # a line of metadata for people who log in; "": they have none yet
    secrets: dict[str, str] = field(repr=False, default_factory=dict)
    # signs what the machines of a job tell each other; "": there is one, or it is among the secrets
    cluster_key: str = field(repr=False, default="")
    sweep_sha256: str = ""  # of the jobs of a sweep and what they are
    must_have_room: bool = False  # to wait for room is no way: something else would do
    drawn: str = ""  # how the values of a sweep's jobs came about, for its record
    # what the bucket had of the archives and the code, by the objects' names
    there: dict[str, Listed] = field(repr=False, default_factory=dict)
    code_bytes: int = 0  # about, that are to be sent of the code
    container: list[str] = field(default_factory=list)  # image of containers, in words
    left: list[Machine] = field(default_factory=list)  # that an earlier job of the name still has
    limit: str = "--max-hours"  # what says when its machines end
    rounds: int = 1  # jobs of a sweep that one machine may have to run, one after another

    @property
    def spec(self) -> JobSpec:
        """What was asked for."""
        return spec_of(self.job)

    @property
    def model(self) -> str:
        """How the machines are paid for, in the API's words."""
        return self.spec.model

    @property
    def far_zones(self) -> list[str]:
        """Zones outside of where the bucket lies: a region, us, eu or asia; of a pair such as nam4
        nothing is known.
        """
        near = {"eu": "europe"}.get(self.bucket_region, self.bucket_region)
        known = "-" in near or near in ("us", "europe", "asia")
        return [zone for zone in self.offer.zones if known and not zone.startswith(f"{near}-")]

    @property
    def machine_seconds(self) -> int:
        """How long a machine may live."""
        return min(self.job.max_run_seconds * self.rounds, LIMITS[1])

    @property
    def checksums(self) -> dict[str, str]:
        """What a machine compares with what it reads from the bucket, by the names in boot.py."""
        found = {
            "dist_sha256": sha256(self.wheel[1]),
            "job_sha256": self.sweep_sha256 or sha256(self.job.to_json().encode()),
        }
        if self.packages[0]:
            found["packages_sha256"] = sha256(self.packages[1])
        if self.cluster_key:
            found["cluster_key"] = self.cluster_key
        return found

    @property
    def archives(self) -> list[tuple[str, bytes]]:
        """What machines bring from the bucket, by name, beside the code of the job."""
        return [self.wheel, self.packages, self.gcsfuse, self.uv]

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts that the machines act as; "" is the project's default."""
        return self.offer.accounts or (self.config.service_account,)

    @property
    def machines(self) -> list[str]:
        return machine_names(self.job.job_name, self.job.num_machines)

    @property
    def owner(self) -> dict[str, str]:
        """The label that tells whose the machines are: a job's, or a sweep's."""
        key = "berg-sweep" if self.job.sweep else "berg-job"
        return {key: self.job.job_name}

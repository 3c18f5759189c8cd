"""What is asked for, and the plan that `launch` makes of it and a place carries out."""

import hashlib
import math
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from berg import BergError, gate
from berg.checks import check_types
from berg.code.snapshot import Snapshot
from berg.config import Config
from berg.google import prices
from berg.google.accelerators import Shape
from berg.google.networks import Ways
from berg.google.reservations import Reservation
from berg.google.storage import Listed
from berg.inventory import Machine
from berg.job import NO_GROUP, Group, Job, machine_names

LIMITS = (30, 120 * 24 * 3600)  # seconds; what Google takes as maxRunDuration
IMAGE_NAME = re.compile(r"[a-z0-9][\w./:-]*(@sha256:[0-9a-f]{64})?")  # of containers
# What spec_of takes from no record, and what it takes that becomes a part of a URL.
MAX_NOTE = 200  # characters
UNBELIEVED = {"cmd", "name", "note", "defaults", "secrets", "notify", "branch", "commit"}
UNBELIEVED |= {"install_secrets"}
UNBELIEVED |= {"pod_patch"}  # a part of a request, which would be sent with the person's rights
NAMES = ("image", "gpu_type", "machine_type", "tpu", "cluster", "queue")
QUEUE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # fits a label, too
RESERVED = ("BERG_", "PET_", "MASTER_")


@dataclass
class JobSpec:
    """The options of `berg run` and `berg devbox`, as they were given; None: not at all."""

    cmd: str | None = None  # None: machines for people
    name: str | None = None
    results_dir: str | None = None
    # folder for the results of jobs whose command names none, each in its own
    results_parent: str | None = None
    note: str = ""  # for people to find it again
    defaults: tuple[str, ...] = ()  # what came from where, for people to read
    zones: tuple[str, ...] = ()
    any_zone: bool = False  # the region's others after those
    # whose zones are tried, the cheapest first; any: all there are
    regions: tuple[str, ...] = ()
    cwd: str | None = None  # folder of the repo to run in; None: where it was typed
    branch: str | None = None  # whose last commit runs, not the working tree
    commit: str | None = None  # which runs, by id or tag
    image: str | None = None
    image_project: str | None = None
    num_gpus: int | None = None
    gpu_type: str | None = None  # several with commas between them, or cheapest
    gpu_memory: int = 0  # GB that a GPU has at least, where the cheapest is wanted
    num_cpus: int | None = None
    machine_type: str | None = None
    num_machines: int = 1
    tpu: str | None = None  # FAMILY-TOPOLOGY
    cluster: str | None = None  # whose pods are the machines
    docker: str | None = None  # image of those
    pod_patch: dict[str, Any] | None = None  # metadata and spec of those, beside berg's
    queue: str | None = None  # of Kueue's, in the cluster
    wait_hours: float = 0  # for room for all of them; 0: for ever
    disk_gb: int = 200
    spot: bool = False
    flex: bool = False  # wait for room in Google's queue
    reservation: str = ""  # NAME, or projects/OWNER/reservations/NAME
    no_external_ip: bool = False
    max_hours: float = 168
    max_cost: float | None = None  # USD in all; 0: no limit; None: the config's
    # USD in all that a repo or the record of an earlier run says; it only lowers the config's
    lower_cost: float = 0
    idle_hours: float = 0  # 0: never
    idle: str | None = None  # stop or delete; None: what suits the machine
    install_script: str | None = None
    extras: tuple[str, ...] = ()  # of the repo's package, to install as well
    groups: tuple[str, ...] = ()  # of dependencies, the same
    install: str | None = None  # uv, pip, none or a command; None: what the repo's files say
    install_secrets: tuple[str, ...] = ()  # as secrets, for the installation alone
    env: tuple[str, ...] = ()  # NAME=VALUE
    secrets: tuple[str, ...] = ()  # NAME or NAME=FILE
    # URL of a webhook, or NAME or NAME=FILE that holds it
    notify: str | None = field(default=None, repr=False)
    data: tuple[str, ...] = ()  # NAME or NAME:PATH
    mount: tuple[str, ...] = ()  # the same
    each: bool = False
    keep_going: bool = False
    no_kill: bool = False
    wait_for_capacity: bool = False
    max_restarts: int = 20
    wait_minutes: float = 15  # of several Spot machines, for those that Google makes anew
    restart_on_failure: int = 0
    sample_seconds: int = 30  # 0: no samples
    profile: bool = False
    stop_worst: str = ""  # metric by which the worst jobs of a sweep end themselves
    rungs: str = ""  # steps at which they look, with commas between them
    min_utilization: int = 0  # percent; 0: none is asked for
    for_minutes: float = 30  # in which no accelerator reached it

    def to_dict(self) -> dict[str, Any]:
        """What was given, for the job's metadata; values of secrets are not among it."""
        left_out = ["cmd", "name", *(["notify"] if "://" in (self.notify or "") else [])]
        return {key: value for key, value in asdict(self).items() if key not in left_out}

    @property
    def settings(self) -> dict[str, object]:
        """What of it stands in for settings."""
        images = {"default_image": self.image, "default_docker_image": self.docker}
        rest = {
            "default_image_project": self.image_project,
            "no_external_ip": self.no_external_ip or None,
        }
        return {"zones": self.zones, **images, **rest}

    def check(self) -> None:
        """Raise BergError for what is not possible, whatever there is at Google."""
        if self.cmd is not None and not self.cmd.strip():
            raise BergError('there is no command to run, as in: berg run "python train.py"')
        for bounds in BOUNDS:
            bounds.check(self)
        check_note(self.note)
        self.check_utilization()
        self.check_tpu()
        self.check_docker()
        self.check_cluster()
        if self.keep_going and not self.each:
            raise BergError(
                "--keep-going is for a command that runs on every machine: give --each as well"
            )
        self.check_one_machine()
        self.check_flex()
        self.steps()
        if self.regions and (given := self.given(NOT_WITH_REGIONS)):
            raise BergError(f"--region says where to try: leave out {given[0]}")

    def steps(self) -> list[int]:
        """Return the steps of --rungs; raise BergError for what are none."""
        if bool(self.stop_worst) != bool(self.rungs):
            raise BergError("--stop-worst METRIC looks at the steps of --rungs: give both")
        if not self.rungs:
            return []
        if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", self.rungs):
            raise BergError(f"--rungs {self.rungs}: give steps, such as 3,9,27")
        found = [int(each) for each in self.rungs.split(",")]
        if found != sorted(set(found)):
            raise BergError(f"--rungs {self.rungs}: each step must be above the one before")
        return found

    def check_flex(self) -> None:
        """Raise BergError for what flex-start cannot be together with."""
        if self.reservation and (given := self.given(NOT_RESERVED)):
            raise BergError(
                f"--reservation takes what is there, at its own price: leave out {given[0]}"
            )
        if not self.flex:
            return
        if given := self.given(NOT_WITH_FLEX):
            raise BergError(f"--flex waits for room of its own kind: leave out {given[0]}")
        if self.max_hours > MOST_FLEX_HOURS:
            raise BergError(
                f"--flex: Google gives machines for {MOST_FLEX_HOURS} hours at most, "
                f"not {self.max_hours:g}: give --max-hours"
            )

    def check_utilization(self) -> None:
        """Raise BergError for --min-utilization and --for that no sample could answer."""
        if not self.min_utilization:
            if self.for_minutes != JobSpec.for_minutes:
                raise BergError(
                    "--for says in how many minutes: give --min-utilization PERCENT as well"
                )
            return
        two_samples = 2 * self.sample_seconds
        if not 0 < two_samples <= self.for_minutes * 60 < math.inf:
            raise BergError(
                f"--min-utilization needs at least two samples in --for {self.for_minutes:g} "
                f"minutes: there is one every {self.sample_seconds} s (--sample-seconds)"
            )

    def check_tpu(self) -> None:
        """Raise BergError for options that say otherwise what --tpu says, or that a slice lacks."""
        given = self.given(SAID_BY_TPU)
        if self.tpu is not None and given:
            raise BergError(
                f"--tpu says what the machines are and how many: leave out {', '.join(given)}"
            )

    def check_docker(self) -> None:
        """Raise BergError for what is no image of containers, and for what has no command."""
        if self.docker is None:
            return
        if not IMAGE_NAME.fullmatch(self.docker):
            raise BergError(
                f"--docker {self.docker!r} is no name of an image: it is one as in python:3.12"
            )
        if self.cluster is not None:
            return
        if self.cmd is None:
            raise BergError("--docker: a devbox has no command to run in a container")
        if self.profile:
            raise BergError("--docker: the command of a container has no --profile")

    def check_cluster(self) -> None:
        """Raise BergError for options that a pod cannot have, or that are for pods alone."""
        if self.cluster is None:
            for_pods = FOR_QUEUED if self.flex else FOR_PODS
            if given := self.given(for_pods):
                raise BergError(f"{given[0]} is for pods: give --cluster NAME as well")
            WAIT_HOURS.check(self)
            return
        if given := self.given(SAID_BY_CLUSTER):
            raise BergError(
                "--cluster: the cluster's nodes are what they are, and pods wait anyway: "
                f"leave out {given[0]}"
            )
        if self.num_cpus is not None and self.num_cpus < 1:
            raise BergError(f"-c {self.num_cpus} is not possible: give 1 or more CPUs for each pod")
        if self.queue is not None and not QUEUE_NAME.fullmatch(self.queue):
            raise BergError(f"--queue {self.queue!r} is no name of a queue: it is one as in team-a")
        WAIT_HOURS.check(self)

    def check_one_machine(self) -> None:
        """Raise BergError for options that only a job on one machine can have, or only several
        Spot machines.
        """
        is_alone = self.num_machines == 1
        in_pods = self.cluster is not None and (self.tpu is not None or not is_alone)
        if self.given(FOR_MENDED) and not (in_pods or (self.spot and not is_alone)):
            raise BergError(
                "--wait-minutes is for several Spot machines or pods: give -m N, and --spot or "
                "--cluster NAME"
            )
        if is_alone:
            return
        if given := self.given(FOR_ONE_MACHINE):
            raise BergError(f"{given[0]} is for jobs on one machine, not on {self.num_machines}")

    @property
    def elsewhere(self) -> bool:
        """Whether its machines need not be there on demand."""
        return self.spot or self.flex or bool(self.reservation)

    @property
    def model(self) -> str:
        """How its machines are paid for, in the API's words."""
        if self.spot:
            return prices.SPOT
        if self.flex:
            return prices.FLEX
        return prices.STANDARD

    @property
    def container(self) -> str:
        """Image of the container that the command runs in on its machine; "" for none, as in pods,
        which are containers themselves.
        """
        if self.cluster is not None:
            return ""
        return self.docker or ""

    def given(self, options: dict[str, str]) -> list[str]:
        """Return those of the options (by the field that each sets) that are not as usual."""
        return [
            option
            for option, name in options.items()
            if getattr(self, name) != getattr(JobSpec, name)
        ]

    def variables(self) -> dict[str, str]:
        """The command's variables from --env."""
        found = {}
        for text in self.env:
            key, equals, value = text.partition("=")
            if not equals:
                raise BergError(f"--env {text!r} is not of the form NAME=VALUE")
            check_variable("--env", key)
            found[key] = value
        return found


@dataclass(frozen=True)
class Bounds:
    """What a number of a JobSpec may be."""

    option: str
    field: str
    least: float
    most: float
    advice: str

    def check(self, spec: JobSpec) -> None:
        """Raise BergError for a number out of the bounds, or none at all."""
        value = getattr(spec, self.field)
        if value is None:
            return
        if not self.least <= value <= self.most:
            raise BergError(f"{self.option} {shown(value)} is not possible: {self.advice}")


def shown(number: float) -> str:
    """Return a number as people write it: 168.0 is 168."""
    return f"{number:g}" if isinstance(number, float) else str(number)


HOURS = [seconds / 3600 for seconds in LIMITS]
TIMES = "give 0 or more times"
BOUNDS = [
    Bounds("--machines", "num_machines", 1, 1000, "give 1 to 1000"),
    Bounds("--max-hours", "max_hours", HOURS[0], HOURS[1], "Google takes 30 seconds to 120 days"),
    Bounds("--max-cost", "max_cost", 0, 1e7, "give dollars, or 0 for no limit"),
    Bounds("max-cost", "lower_cost", 0, 1e7, "give dollars, or 0 for no limit"),
    Bounds("--idle-hours", "idle_hours", 0, 1e6, "give hours, or 0 for never"),
    Bounds("--disk-gb", "disk_gb", 10, 65536, "a boot disk has 10 to 65536 GB"),
    Bounds("--sample-seconds", "sample_seconds", 0, 3600, "give 1 to 3600, or 0 for none"),
    Bounds("--min-utilization", "min_utilization", 0, 100, "give percent, 1 to 100"),
    Bounds("--max-restarts", "max_restarts", 0, math.inf, TIMES),
    Bounds("--restart-on-failure", "restart_on_failure", 0, math.inf, TIMES),
    Bounds("--wait-minutes", "wait_minutes", 0.1, 7 * 24 * 60, "give 0.1 to 10080, a week"),
]
WAIT_HOURS = Bounds("--wait-hours", "wait_hours", 0, 24 * 30, "give up to 720, or 0 for ever")
# Options that say what something else says already, by the field of JobSpec that each sets.
SAID_BY_TPU = {
    "-g": "num_gpus",
    "-t": "gpu_type",
    "-c": "num_cpus",
    "--machine-type": "machine_type",
    "-m": "num_machines",
    "--wait-for-capacity": "wait_for_capacity",
}
SAID_BY_CLUSTER = {
    "--image": "image",
    "--image-project": "image_project",
    "--machine-type": "machine_type",
    "--zone": "zones",
    "--any-zone": "any_zone",
    "--disk-gb": "disk_gb",
    "--no-kill": "no_kill",
    "--wait-for-capacity": "wait_for_capacity",
    "--no-external-ip": "no_external_ip",
    "--flex": "flex",
    "--reservation": "reservation",
    "--region": "regions",
}
FOR_QUEUED = {"--pod-patch": "pod_patch", "--queue": "queue"}
FOR_PODS = {**FOR_QUEUED, "--wait-hours": "wait_hours"}
NOT_WITH_REGIONS = {"--zone": "zones", "--any-zone": "any_zone"}
NOT_WITH_REGIONS |= {"--reservation": "reservation"}
NOT_RESERVED = {"--spot": "spot", "--flex": "flex"}
NOT_RESERVED |= {"--wait-for-capacity": "wait_for_capacity"}
NOT_WITH_FLEX = {"--spot": "spot", "--wait-for-capacity": "wait_for_capacity"}
MOST_FLEX_HOURS = 168
FOR_MENDED = {"--wait-minutes": "wait_minutes"}
FOR_ONE_MACHINE = {
    "--wait-for-capacity": "wait_for_capacity",
}


def check_note(note: str) -> None:
    """Raise BergError for a note that does not fit a line of a list."""
    if len(note) > MAX_NOTE or not note.isprintable():
        raise BergError(f"--note is one line of {MAX_NOTE} printable characters at most")


def check_variable(option: str, key: str) -> None:
    """Raise BergError for what is no name of a variable, or one that berg sets itself."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
        raise BergError(f"{option} {key!r} is not the name of a variable")
    if key.startswith(RESERVED):
        raise BergError(
            f"{option} {key}: names that begin with {', '.join(RESERVED)} are set by berg"
        )


def spec_of(job: Job) -> JobSpec:
    """Return what a job was asked for with, without its name, its secrets, its webhook and the
    patch for its pods.

    Raise BergError where its record says what no option can be. What names a file or variable of
    the laptop is left out: machines may have written the record.
    """
    known = {each.name for each in fields(JobSpec)} - UNBELIEVED
    values = {key: as_given(value) for key, value in job.spec.items() if key in known}
    spec = JobSpec(**values, cmd=job.cmd if job.kind == "job" else None)
    try:
        check_types(spec)
        gate.check_project(spec.image_project or "")
        for name in (*spec.zones, *(getattr(spec, each) or "" for each in NAMES)):
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

"""What is asked for, and the plan that `launch` makes of it and a place carries out."""

import math
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from berg import BergError
from berg.code.snapshot import Snapshot
from berg.config import Config
from berg.google.accelerators import Shape
from berg.google.networks import Ways
from berg.job import Job, machine_names

LIMITS = (30, 120 * 24 * 3600)  # seconds; what Google takes as maxRunDuration
IMAGE_NAME = re.compile(r"[a-z0-9][\w./:-]*(@sha256:[0-9a-f]{64})?")  # of containers
RESERVED = ("BERG_", "PET_", "MASTER_")


@dataclass
class JobSpec:
    """The options of `berg run` and `berg devbox`, as they were given; None: not at all."""

    cmd: str | None = None  # None: machines for people
    name: str | None = None
    results_dir: str | None = None
    results_parent: str | None = (
        None  # folder for the results of jobs whose command names none, each in its own
    )
    defaults: tuple[str, ...] = ()  # what came from where, for people to read
    zones: tuple[str, ...] = ()
    any_zone: bool = False  # the region's others after those
    cwd: str | None = None  # folder of the repo to run in; None: where it was typed
    image: str | None = None
    image_project: str | None = None
    num_gpus: int | None = None
    gpu_type: str | None = None
    num_cpus: int | None = None
    machine_type: str | None = None
    num_machines: int = 1
    tpu: str | None = None  # FAMILY-TOPOLOGY
    cluster: str | None = None  # whose pods are the machines
    docker: str | None = None  # image of those
    wait_hours: float = 0  # for room for all of them; 0: for ever
    disk_gb: int = 200
    spot: bool = False
    no_external_ip: bool = False
    max_hours: float = 168
    idle_hours: float = 0  # 0: never
    install_script: str | None = None
    env: tuple[str, ...] = ()  # NAME=VALUE
    secrets: tuple[str, ...] = ()  # NAME or NAME=FILE
    # URL of a webhook, or NAME or NAME=FILE that holds it
    notify: str | None = field(default=None, repr=False)
    data: tuple[str, ...] = ()  # NAME or NAME:PATH
    each: bool = False
    keep_going: bool = False
    no_kill: bool = False
    wait_for_capacity: bool = False
    max_restarts: int = 20
    restart_on_failure: int = 0
    sample_seconds: int = 30  # 0: no samples
    profile: bool = False
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
        if not 1 <= self.num_machines <= 1000:
            raise BergError(f"--machines {self.num_machines} is not possible: give 1 to 1000")
        if not math.isfinite(self.max_hours) or not LIMITS[0] <= self.max_hours * 3600 <= LIMITS[1]:
            raise BergError(
                f"--max-hours {self.max_hours:g} is not possible: Google takes 30 seconds to 120 days"
            )
        if not 0 <= self.idle_hours <= 1e6:
            raise BergError(
                f"--idle-hours {self.idle_hours:g} is not possible: give hours, or 0 for never"
            )
        if not 10 <= self.disk_gb <= 65536:
            raise BergError(
                f"--disk-gb {self.disk_gb} is not possible: a boot disk has 10 to 65536 GB"
            )
        if self.sample_seconds != 0 and not 1 <= self.sample_seconds <= 3600:
            raise BergError(
                f"--sample-seconds {self.sample_seconds} is not possible: give 1 to 3600, or 0 for none"
            )
        if not 0 <= self.min_utilization <= 100:
            raise BergError(
                f"--min-utilization {self.min_utilization} is not possible: give percent, 1 to 100"
            )
        if self.for_minutes != JobSpec.for_minutes and not self.min_utilization:
            raise BergError(
                "--for says in how many minutes: give --min-utilization PERCENT as well"
            )
        if (
            self.min_utilization
            and not 0 < 2 * self.sample_seconds <= self.for_minutes * 60 < math.inf
        ):
            raise BergError(
                f"--min-utilization needs at least two samples in --for {self.for_minutes:g} minutes: there is one "
                f"every {self.sample_seconds} s (--sample-seconds)"
            )
        if self.tpu is not None:
            self.check_tpu()
        if self.cluster is not None:
            self.check_cluster()
        elif self.docker is not None or self.wait_hours:
            option = "--docker" if self.docker is not None else "--wait-hours"
            raise BergError(f"{option} is for pods: give --cluster NAME as well")
        if self.max_restarts < 0 or self.restart_on_failure < 0:
            raise BergError("--max-restarts and --restart-on-failure count times: give 0 or more")
        if self.keep_going and not self.each:
            raise BergError(
                "--keep-going is for a command that runs on every machine: give --each as well"
            )
        if self.num_machines > 1 and (self.wait_for_capacity or self.restart_on_failure):
            option = "--wait-for-capacity" if self.wait_for_capacity else "--restart-on-failure"
            raise BergError(f"{option} is for jobs on one machine, not on {self.num_machines}")

    def check_tpu(self) -> None:
        """Raise BergError for options that say otherwise what --tpu says, or need what a slice has
        not.
        """
        machine = {
            "-g": self.num_gpus,
            "-t": self.gpu_type,
            "-c": self.num_cpus,
            "--machine-type": self.machine_type,
        }
        given = [option for option, value in machine.items() if value is not None]
        given += ["-m"] if self.num_machines != 1 else []
        given += ["--wait-for-capacity"] if self.wait_for_capacity else []
        if given:
            raise BergError(
                f"--tpu says what the machines are and how many: leave out {', '.join(given)}"
            )

    def check_cluster(self) -> None:
        """Raise BergError for options that a pod cannot have: its nodes are what they are."""
        nodes: dict[str, Any] = {
            "--image": self.image,
            "--image-project": self.image_project,
            "--machine-type": self.machine_type,
        }
        nodes |= {
            "--tpu": self.tpu,
            "--zone": self.zones or None,
            "--any-zone": self.any_zone or None,
        }
        nodes |= {"--disk-gb": self.disk_gb if self.disk_gb != JobSpec.disk_gb else None}
        nodes |= {
            "--no-kill": self.no_kill or None,
            "--wait-for-capacity": self.wait_for_capacity or None,
        }
        nodes |= {"--no-external-ip": self.no_external_ip or None}
        if given := [option for option, value in nodes.items() if value is not None]:
            raise BergError(
                f"--cluster: the cluster's nodes are what they are, and pods wait anyway: leave out {given[0]}"
            )
        if self.num_cpus is not None and self.num_cpus < 1:
            raise BergError(f"-c {self.num_cpus} is not possible: give 1 or more CPUs for each pod")
        if self.docker is not None and not IMAGE_NAME.fullmatch(self.docker):
            raise BergError(
                f"--docker {self.docker!r} is no name of an image: it is one as in python:3.12"
            )
        if not 0 <= self.wait_hours <= 24 * 30:
            raise BergError(
                f"--wait-hours {self.wait_hours:g} is not possible: give up to 720, or 0 for ever"
            )

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


def check_variable(option: str, key: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
        raise BergError(f"{option} {key!r} is not the name of a variable")
    if key.startswith(RESERVED):
        raise BergError(
            f"{option} {key}: names that begin with {', '.join(RESERVED)} are set by berg"
        )


def spec_of(job: Job) -> JobSpec:
    """What a job was asked for with, without its name."""
    known = {each.name for each in fields(JobSpec)}
    values = {key: value for key, value in job.spec.items() if key in known - {"defaults"}}
    values = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }
    return JobSpec(**values, cmd=job.cmd if job.kind == "job" else None)


@dataclass
class Plan:
    """Everything that is known before the first byte is sent."""

    config: Config
    job: Job
    shape: Shape
    zones: list[str]
    bucket_region: str
    snapshot: Snapshot
    disk_gb: int
    spot: bool
    wheel: tuple[str, bytes]
    packages: tuple[str, bytes]  # what the worker imports; ("", b""): the machine asks pip
    ssh_key: str = ""  # a line of metadata for people who log in; "": they have none yet
    secrets: dict[str, str] = field(repr=False, default_factory=dict)
    # quotas that have no room for the machines now
    shortages: list[str] = field(default_factory=list)
    # out of the regions, for machines without an external address
    ways: list[Ways] = field(default_factory=list)
    rounds: int = 1  # jobs of a sweep that one machine may have to run, one after another

    @property
    def far_zones(self) -> list[str]:
        """Zones outside of where the bucket lies: a region, us, eu or asia; of a pair such as nam4
        nothing is known.
        """
        near = {"eu": "europe"}.get(self.bucket_region, self.bucket_region)
        known = "-" in near or near in ("us", "europe", "asia")
        return [zone for zone in self.zones if known and not zone.startswith(f"{near}-")]

    @property
    def machine_seconds(self) -> int:
        """How long a machine may live."""
        return min(self.job.max_run_seconds * self.rounds, LIMITS[1])

    @property
    def machines(self) -> list[str]:
        return machine_names(self.job.job_name, self.job.num_machines)

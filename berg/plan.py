"""The plan that `launch` makes and a place carries out, and a repository's defaults.

Defaults are `[tool.berg]` of pyproject.toml, or berg.toml. They come after BERG_ variables and
before the user's settings, except `max-cost`, which can only lower the user's limit. Options of the
command line come first, and remove defaults that contradict them.
"""

import hashlib
import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin

from berg import BergError, config, states, validation
from berg.code.leaks import Leak
from berg.code.snapshot import Snapshot
from berg.config import Config
from berg.google.offers import Egress, Reservation
from berg.google.shapes import Shape
from berg.google.storage import Listed
from berg.job import NO_GROUP, Group, Job, Machine, Owner, machine_names
from berg.spec import LIMITS, JobSpec, in_unit, rows

# What spec_of takes from no record: machines may have written it. These name files and variables of
# the laptop, or are a part of a request that is sent with the user's rights.
UNBELIEVED = {name for name, row in rows(JobSpec).items() if row.asked_again}
UNBELIEVED |= {"name", "note", "defaults", "branch", "commit"}


def spec_of(job: Job) -> JobSpec:
    """Return the options of a job to run it again; its container image has the digest that it ran.

    Name, secrets, webhook and the patch for pods are not among them.
    """
    usual = JobSpec(cmd=job.cmd if job.kind == "job" else None)
    spec = replace(job.spec, cmd=usual.cmd, **{key: getattr(usual, key) for key in UNBELIEVED})
    spec.docker = job.pinned_image or spec.docker
    spec.recorded_image = spec.docker or ""
    return spec


@dataclass(frozen=True)
class Choice:
    """The machines that a spec means, before Google is asked where there are such."""

    shape: Shape
    hosts: int  # number of machines
    image: str  # an image's family or name; of pods a container's
    image_project: str = ""
    cluster: str = ""  # LOCATION/NAME, whose pods the machines are
    is_slice: bool = False  # machines that run a command together, or not at all
    accounts: tuple[str, ...] = ()  # as in `Offer`
    offer: "Offer | None" = None  # of a machine that there is: nothing is looked up


@dataclass
class Offer:
    """What a place has for a spec, and how people read it."""

    shape: Shape
    hosts: int  # number of machines
    image: str  # its path; of pods a container's name
    zones: list[str]  # to try, in this order
    rows: list[tuple[str, str]]  # of the plan: machine, image, where
    ender: str  # what ends a machine at its time limit, in words
    group: Group = NO_GROUP  # as Job.group
    regions: list[str] = field(default_factory=list)  # as Job.regions
    left_out: list[str] = field(default_factory=list)  # regions asked for that are not among them
    heals: str = ""  # what a group replaces, in words; "": nothing
    disk_gb: int = 0  # 0: its machines have no disks of their own
    # quotas that have no room for the machines now
    shortages: list[str] = field(default_factory=list)
    # out of the regions, for machines without an external address
    egress: list[Egress] = field(default_factory=list)
    priced: Shape | None = None  # what is paid for; None: it is not known
    reservation: Reservation | None = None  # whose room the machines use
    # what Google says of its room for Spot machines, a line a zone
    odds: list[str] = field(default_factory=list)
    is_fast: bool = False  # whether the machines talk over RoCE
    is_shared: bool = False  # whether that is a node, which several pods may share
    accounts: tuple[str, ...] = ()  # that its machines act as; none: that of the settings
    box: Machine | None = None  # devbox that runs the job
    seconds: int = 0  # that the devbox has left


@dataclass(frozen=True)
class Warm:
    """Machines that wait for a job, usually one, and Google's answers about them."""

    offer: states.Offer
    generation: int  # of its object
    instances: list[dict[str, Any]]  # in the API's words, by rank
    seconds: int  # that they have left


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
    wheel: tuple[str, bytes]
    packages: tuple[str, bytes]  # what the worker imports; ("", b""): the machine asks pip
    gcsfuse: tuple[str, bytes] = ("", b"")  # for machines that lack it
    uv: tuple[str, bytes] = ("", b"")  # for a job that needs it, if the bucket has none
    ssh_key: str = ""  # a line of metadata for people who log in; "": they have none yet
    secrets: dict[str, str] = field(repr=False, default_factory=dict)
    # signs the peer records of a job's machines; "": there is one, or it is among the secrets
    cluster_key: str = field(repr=False, default="")
    sweep_sha256: str = ""  # of the jobs of a sweep and what they are
    must_have_room: bool = False  # fail instead of waiting: another choice is tried then
    drawn: str = ""  # how a sweep's values were chosen, for its record
    # what the bucket had of the archives and the code, by the objects' names
    there: dict[str, Listed] = field(repr=False, default_factory=dict)
    code_bytes: int = 0  # about, that are to be sent of the code
    leaks: list[Leak] = field(default_factory=list)  # files that would be sent for the first time
    container: list[str] = field(default_factory=list)  # image of containers, in words
    left: list[Machine] = field(default_factory=list)  # that an earlier job of the name still has
    owners: list[Owner] = field(default_factory=list)  # of its results folders, to be written
    hidden: str = ""  # path in the command that is a folder of the repo, and no results
    files: int = 0  # that are in the results folder now, up to a thousand
    limit: str = "--max-hours"  # what says when its machines end
    waiting: list[Warm] = field(default_factory=list)  # machines, for any job of the user's
    warm: Warm | None = None  # the one of them that the job takes
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
        """Zones outside of the bucket's region, us, eu or asia; [] for a pair such as nam4."""
        near = {"eu": "europe"}.get(self.bucket_region, self.bucket_region)
        known = "-" in near or near in ("us", "europe", "asia")
        return [zone for zone in self.offer.zones if known and not zone.startswith(f"{near}-")]

    @property
    def machine_seconds(self) -> int:
        """How long a machine may live."""
        seconds = self.job.max_run_seconds * self.rounds + round(self.job.spec.keep_warm)
        return min(seconds, LIMITS[1])

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
        """What machines download besides the code of the job, by name."""
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
        """The label with the job or the sweep of the machines."""
        key = "berg-sweep" if self.job.sweep else "berg-job"
        return {key: self.job.job_name}

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the machines; each place adds the bucket."""
        about = {"berg-kind": self.job.kind, "berg-user": self.config.user}
        return {"berg": "1", **self.owner, **about}

    @property
    def facts(self) -> dict[str, str]:
        """What machine/boot.py needs to know in every place."""
        return {
            "bucket": self.config.bucket,
            "dist": f".berg/dist/{self.wheel[0]}",
            "packages": f".berg/dist/{self.packages[0]}" if self.packages[0] else "",
            "box": self.job.box,
            "endpoint": self.config.endpoint or "",
            **self.checksums,
        }


# --- defaults of a repository

ROWS = rows(JobSpec)
TYPES: dict[str, Any] = {each.name: each.type for each in fields(JobSpec)}
KEYS = {row.key: name for name, row in ROWS.items() if row.key}  # key -> field of JobSpec
VARIABLES = {
    "gpu-type": "BERG_GPU_TYPE",
    "num-gpus": "BERG_GPUS",
    "no-external-ip": "BERG_NO_EXTERNAL_IP",
    "zones": "BERG_ZONES",
    "image": "BERG_DEFAULT_IMAGE",
    "docker": "BERG_DEFAULT_DOCKER_IMAGE",
}
GPUS = {"gpu-type", "num-gpus"}


def find(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the defaults of the repository around a folder, and the name of their file."""
    root = next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)
    if root is None:
        return {}, ""
    own = validation.read_toml(root / "berg.toml")
    shared = validation.read_toml(root / "pyproject.toml").get("tool", {}).get("berg")
    if own and shared:
        raise BergError(f"{root} has berg.toml and [tool.berg] in pyproject.toml. Keep one of them")
    name = "pyproject.toml" if shared is not None and not own else "berg.toml"
    values = own or shared or {}
    for key, value in (values if isinstance(values, dict) else {"tool.berg": values}).items():
        check(root / name, key, value)
    return values, name


def check(file: Path, key: str, value: Any) -> None:
    """Raise BergError for an unknown key, or a value of another type than its option's."""
    if key not in KEYS:
        raise BergError(f"{file}: there is no key {key!r} for berg. There are: {', '.join(KEYS)}")
    kind = TYPES[KEYS[key]]
    kind = next(iter(get_args(kind)), kind) if get_origin(kind) is not tuple else tuple
    if key == "env":
        what, is_right = "a table", is_table(value)
    elif kind is tuple:
        what = "a list of texts"
        is_right = isinstance(value, list) and all(isinstance(each, str) for each in value)
    elif ROWS[KEYS[key]].unit and isinstance(value, str):
        what, is_right = "a duration, such as 90s, 30m, 2h or 3d", is_duration(KEYS[key], value)
    else:
        what = {str: "text", bool: "true or false"}.get(kind, "a number")
        is_right = type(value) is kind or (kind is float and type(value) is int)
    if not is_right:
        raise BergError(f"{file}: {key!r} must be {what}, not {value!r}. Fix it there")


def is_table(value: Any) -> bool:
    """Return whether a value is a table of single values."""
    single = (str, int, float)
    return isinstance(value, dict) and all(isinstance(each, single) for each in value.values())


def is_duration(name: str, text: str) -> bool:
    try:
        in_unit(text, ROWS[name].unit)
    except BergError:
        return False
    return True


def option_of(name: str, value: Any) -> Any:
    """Return a repository's value as the command line would have it."""
    if name in ROWS and ROWS[name].unit and isinstance(value, str):
        return in_unit(value, ROWS[name].unit)
    return tuple(value) if isinstance(value, list) else value


def fill(options: dict[str, Any], given: set[str], folder: Path) -> dict[str, Any]:
    """Return options with the defaults of the repository around a folder where none was given.

    The option `defaults` has lines on the source of each value.
    """
    values, file = find(folder)
    check_secrets(values.pop("install-secrets", []), options.get("install_secrets", ()), file)
    dropped = dropped_keys(given, options.get("install"))
    settings = of_settings(dropped | keys_of_others(options, given, values, dropped), values)
    dropped |= {key for key, variable in VARIABLES.items() if os.environ.get(variable)}
    used = {key: value for key, value in values.items() if key not in dropped}
    own = config.load()
    filled = {**options, **{KEYS[key]: option_of(KEYS[key], value) for key, value in used.items()}}
    if "gpu-type" in settings:
        filled["gpu_type"] = own.gpu_type
    if "num-gpus" in settings:
        filled["num_gpus"] = own.gpus
    # Variables of the command line come after the repository's: the last one of a name counts.
    variables = tuple(f"{name}={each}" for name, each in values.get("env", {}).items())
    if "env" in options or variables:
        filled["env"] = (*variables, *options.get("env", ()))
    return {**filled, "defaults": sources(values, used, file, settings)}


def check_secrets(names: list[str], given: tuple[str, ...], file: str) -> None:
    """Raise BergError for a secret of the installation that is not given.

    No repository takes a variable of this computer by itself.
    """
    if missing := {*names} - {text.partition("=")[0] for text in given}:
        options = " ".join(f"--install-secret {name}" for name in sorted(missing))
        raise BergError(f"{file} says that the installation needs {options} (or NAME=FILE)")


def of_installation(
    extras: tuple[str, ...], groups: tuple[str, ...], install: str | None, folder: Path
) -> dict[str, Any]:
    """Return the options of an image's installation, with the repository's where none was given."""
    given = {"extras": extras, "groups": groups, "install": install or ""}
    named = {key for key, value in given.items() if value}
    values, _ = find(folder)
    used = values.keys() & given.keys() - dropped_keys(named, install)
    return {**given, **{key: option_of(key, values[key]) for key in used}}


def dropped_keys(given: set[str], install: str | None) -> set[str]:
    """Return the repository's keys that do not count, because of options that were given.

    An option that says everything that is installed leaves no extras and groups.
    """
    dropped = {"extras", "groups"} if install not in (None, "uv", "pip") else set()
    options = [ROWS[name] for name in given & ROWS.keys()]
    taken = given.union(*(row.excludes for row in options), *(row.replaces for row in options))
    for key, name in KEYS.items():
        if name in taken or given & {*ROWS[name].excludes}:
            dropped.add(key)
    return dropped - {"env"}


def keys_of_others(
    options: dict[str, Any], given: set[str], values: dict[str, Any], dropped: set[str]
) -> set[str]:
    """Return the keys of settings that do not count.

    TPUs have images of their own, only pods have containers, and a user's default GPUs count only
    where neither an option nor the repo names a machine.
    """
    found = set()
    of_repo = values.keys() - dropped
    if given & {"cluster", "tpu", "machine_type"} or of_repo & {"tpu", "machine-type"}:
        found |= GPUS
    if of_repo & GPUS:
        found |= {key for key in GPUS if not os.environ.get(VARIABLES[key])}
    if "tpu" in given | of_repo:
        found.add("image")
    if "docker" in given or not options.get("cluster"):
        found.add("docker")
    return found


def sources(
    values: dict[str, Any],
    used: dict[str, Any],
    file: str,
    settings: dict[str, tuple[str, str]],
) -> tuple[str, ...]:
    """Return lines on the source of each value."""

    def listed(values: dict[str, Any]) -> str:
        return ", ".join(f"{key} = {shown(value)}" for key, value in values.items())

    lines = [f"{listed(used)} (of {file})"] if used else []
    lines += [f"{key} = {text} (of {source})" for key, (text, source) in settings.items()]
    rest = {key: value for key, value in values.items() if key not in used}
    if rest:
        lines.append(f"not {listed(rest)} (of {file}): what is given comes first")
    return tuple(lines)


def of_settings(given: set[str], of_repo: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the values from variables and the user's file with their source, by key."""
    found, file, usual = {}, config.read_file(), config.Config()
    for key, variable in VARIABLES.items():
        setting = variable.removeprefix("BERG_").lower()
        value = file.get(setting)
        if key in given:
            continue
        if text := os.environ.get(variable):
            found[key] = (text, variable)
        elif key not in of_repo and value not in (None, getattr(usual, setting)):
            found[key] = (shown(value), str(config.path()))
    for setting in config.HELP:
        variable = f"BERG_{setting.upper()}"
        if variable not in VARIABLES.values() and (text := os.environ.get(variable)):
            found[setting] = (text, variable)
    return found


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(value)
    return str(value).lower() if value in (True, False) else str(value)

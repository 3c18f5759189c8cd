"""What is asked for, and the plan that `launch` makes of it and a place carries out.

Defaults of a repo: `[tool.berg]` in its pyproject.toml, or berg.toml beside it.

They come after the BERG_ variables and before the user's settings, but for `max-cost`: a repo,
which may be another person's, lowers the user's own limit and never raises it. What is given on the
command line comes before them, and takes what would contradict it out: a repo's CPUs do not stay
where other GPUs are asked for. The plan says what came from where.
"""

import hashlib
import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin

from berg import BergError, config, validation
from berg.code.snapshot import Snapshot
from berg.config import Config
from berg.google.offers import Reservation, Ways
from berg.google.shapes import Shape
from berg.google.storage import Listed
from berg.job import NO_GROUP, Group, Job, Machine, machine_names
from berg.spec import LIMITS, JobSpec, in_unit, rows

# What spec_of takes from no record: machines may have written it. These name files and variables of
# the laptop, or are a part of a request that is sent with the user's rights.
UNBELIEVED = {name for name, row in rows(JobSpec).items() if row.asked_again}
UNBELIEVED |= {"name", "note", "defaults", "branch", "commit"}


def spec_of(job: Job) -> JobSpec:
    """Return the options of a job to run it again, without its name, its secrets, its webhook and
    the patch for its pods; the image of its containers by the digest that it ran with.
    """
    usual = JobSpec(cmd=job.cmd if job.kind == "job" else None)
    spec = replace(job.spec, cmd=usual.cmd, **{key: getattr(usual, key) for key in UNBELIEVED})
    spec.docker = job.pinned_image or spec.docker
    spec.recorded_image = spec.docker or ""
    return spec


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


ROWS = rows(JobSpec)

TYPES: dict[str, Any] = {each.name: each.type for each in fields(JobSpec)}

KEYS = {row.key: name for name, row in ROWS.items() if row.key}  # key -> field of JobSpec

VARIABLES = {
    "gpu-type": "BERG_GPU_TYPE",
    "num-gpus": "BERG_GPUS",
    "no-external-ip": "BERG_NO_EXTERNAL_IP",
    "zones": "BERG_ZONES",
    "image": "BERG_DEFAULT_IMAGE",
    "image-project": "BERG_DEFAULT_IMAGE_PROJECT",
    "docker": "BERG_DEFAULT_DOCKER_IMAGE",
}

GPUS = {"gpu-type", "num-gpus"}


def find(folder: Path) -> tuple[dict[str, Any], str]:
    """The defaults of the git repo around a folder, and the name of the file that has them; {}
    without any.
    """
    root = next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)
    if root is None:
        return {}, ""
    own, shared = (
        read(root / "berg.toml"),
        read(root / "pyproject.toml").get("tool", {}).get("berg"),
    )
    if own and shared:
        raise BergError(f"{root} has berg.toml and [tool.berg] in pyproject.toml. Keep one of them")
    name = "pyproject.toml" if shared is not None and not own else "berg.toml"
    values = own or shared or {}
    for key, value in (values if isinstance(values, dict) else {"tool.berg": values}).items():
        check(root / name, key, value)
    return values, name


def read(file: Path) -> dict[str, Any]:
    try:
        return validation.parse_toml(file.read_text(), str(file))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BergError(f"cannot read {file}: {error}") from None


def check(file: Path, key: str, value: Any) -> None:
    if key not in KEYS:
        raise BergError(f"{file}: there is no key {key!r} for berg. There are: {', '.join(KEYS)}")
    if key == "env":
        what, is_right = "a table", is_table(value)
    elif get_origin(kind := TYPES[KEYS[key]]) is tuple:
        what = "a list of texts"
        is_right = isinstance(value, list) and all(isinstance(each, str) for each in value)
    else:
        kind = next(iter(get_args(kind)), kind)  # int of int | None
        what = {str: "text", bool: "true or false"}.get(kind, "a number")
        is_right = type(value) is kind or (kind is float and type(value) is int)
    if ROWS[KEYS[key]].unit and isinstance(value, str):
        what, is_right = "a duration, such as 90s, 30m, 2h or 3d", is_duration(KEYS[key], value)
    if not is_right:
        raise BergError(f"{file}: {key!r} must be {what}, not {value!r}. Mend it there")


def is_table(value: Any) -> bool:
    """Return whether a value is a table of single values."""
    return isinstance(value, dict) and all(
        isinstance(each, (str, int, float)) for each in value.values()
    )


def fill(options: dict[str, Any], given: set[str], folder: Path) -> dict[str, Any]:
    """Return options with the defaults of the repo around a folder in place of what was not given.

    The option `defaults` says what came from where, in lines for people.
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
    # Variables of the command line come after the repo's: the last one of a name counts.
    variables = tuple(f"{name}={each}" for name, each in values.get("env", {}).items())
    if "env" in options or variables:
        filled["env"] = (*variables, *options.get("env", ()))
    return {**filled, "defaults": sources(values, used, file, settings)}


def of_installation(
    extras: tuple[str, ...], groups: tuple[str, ...], install: str | None, folder: Path
) -> dict[str, Any]:
    """Return what is chosen of an image's installation, with the repo's choices in place of what
    was not given.
    """
    given = {"extras": extras, "groups": groups, "install": install or ""}
    named = {key for key, value in given.items() if value}
    values, _ = find(folder)
    used = values.keys() & given.keys() - dropped_keys(named, install)
    return {**given, **{key: option_of(key, values[key]) for key in used}}


def check_secrets(names: list[str], given: tuple[str, ...], file: str) -> None:
    """Raise BergError for a secret that the repo says its installation needs and that is not given:
    no repo takes a variable of this computer by itself.
    """
    missing = {*names} - {text.partition("=")[0] for text in given}
    if missing:
        options = " ".join(f"--install-secret {name}" for name in sorted(missing))
        raise BergError(f"{file} says that the installation needs {options} (or NAME=FILE)")


def dropped_keys(given: set[str], install: str | None) -> set[str]:
    """Return the repo's keys that do not count beside the options that were given: one that says
    all that is installed has no extras and groups.
    """
    says_all = install not in (None, "uv", "pip")
    dropped = {"extras", "groups"} if says_all else set()
    said = {each for name in given & ROWS.keys() for each in ROWS[name].excludes}
    said |= {each for name in given & ROWS.keys() for each in ROWS[name].replaces}
    for key, name in KEYS.items():
        if name in given | said or given & {*ROWS[name].excludes}:
            dropped.add(key)
    if "image" in dropped:
        dropped.add("image-project")
    return dropped - {"env"}


def keys_of_others(
    options: dict[str, Any], given: set[str], values: dict[str, Any], dropped: set[str]
) -> set[str]:
    """Return the keys of settings that do not count: TPUs have images of their own, only pods have
    containers, and a person's own GPUs are for machines of which nothing is said.
    """
    found = set()
    of_repo = values.keys() - dropped
    if given & {"cluster", "tpu", "machine_type"} or of_repo & {"tpu", "machine-type"}:
        found |= GPUS
    if of_repo & GPUS:
        found |= {key for key in GPUS if not os.environ.get(VARIABLES[key])}
    if "tpu" in given or "tpu" in values.keys() - dropped:
        found |= {"image", "image-project"}
    if "docker" in given or not options.get("cluster"):
        found.add("docker")
    return found


def is_duration(name: str, text: str) -> bool:
    try:
        in_unit(text, ROWS[name].unit)
    except BergError:
        return False
    return True


def option_of(name: str, value: Any) -> Any:
    """Return a repo's value as the command line would have it."""
    if name in ROWS and ROWS[name].unit and isinstance(value, str):
        return in_unit(value, ROWS[name].unit)
    return tuple(value) if isinstance(value, list) else value


def sources(
    values: dict[str, Any],
    used: dict[str, Any],
    file: str,
    settings: dict[str, tuple[str, str]],
) -> tuple[str, ...]:
    """Return what came from where, in lines."""
    lines = [f"{listed(used)} (of {file})"] if used else []
    lines += [f"{key} = {text} (of {source})" for key, (text, source) in settings.items()]
    rest = {key: value for key, value in values.items() if key not in used}
    if rest:
        lines.append(f"not {listed(rest)} (of {file}): what is given comes first")
    return tuple(lines)


def of_settings(given: set[str], of_repo: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """What comes from variables and the user's file, by key: the value, and where it stands."""
    found, file, usual = {}, config.read_file(), config.Config()
    for key, variable in VARIABLES.items():
        setting = variable.removeprefix("BERG_").lower()
        value = file.get(setting)
        if key in given:
            continue
        if text := os.environ.get(variable):
            found[key] = (text, variable)
        elif key not in of_repo and value not in (None, getattr(usual, setting)):
            found[key] = (shown_setting(value), str(config.path()))
    others = {setting: f"BERG_{setting.upper()}" for setting in config.HELP}
    return found | {
        setting: (text, variable)
        for setting, variable in others.items()
        if variable not in VARIABLES.values() and (text := os.environ.get(variable))
    }


def listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {shown_setting(value)}" for key, value in values.items())


def shown_setting(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return (
        ", ".join(value)
        if isinstance(value, list)
        else str(value).lower()
        if value in (True, False)
        else str(value)
    )

"""The options of the commands that start machines, and of `berg cluster create`: one row for each.

The command line, the checks, the keys of `[tool.berg]` and docs/commands.md come from the rows.
"""

import math
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePosixPath
from typing import Any

from berg import BergError, validation

LIMITS = (30, 120 * 24 * 3600)  # seconds; what Google accepts as maxRunDuration
MOST_FLEX_HOURS = 168
MAX_NOTE = 200  # characters
IMAGE_NAME = re.compile(r"[a-z0-9][\w./:-]*(@sha256:[0-9a-f]{64})?")  # of containers
QUEUE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # fits a label, too
RESERVED = ("BERG_", "PET_", "MASTER_")

# Groups of options, in the order of --help.
RUNS, WHERE, LIMIT = "What runs", "Where", "Limits and cost"
DATA, SWEEP, OTHER = "Data and secrets", "Sweeps", "Other"
GROUPS = (RUNS, WHERE, LIMIT, DATA, SWEEP, OTHER)
# Commands that have an option.
ALL, JOB, RUN, DEVBOX = ("run", "devbox", "rerun"), ("run", "rerun"), ("run",), ("devbox",)
TIMES = "give 0 or more times"
NONE = "none"  # as --keep
TCP = "tcp"  # as --network
DOLLARS = "give dollars, or 0 for no limit"


@dataclass(frozen=True)
class Option:
    """One option; its name, type and default are those of its field."""

    flags: tuple[str, ...]
    help: str
    commands: tuple[str, ...] = ALL
    metavar: str | None = None
    group: str = ""  # of this row and those after it
    usual: bool = False  # shown by --help; --help-all shows all
    choices: tuple[str, ...] = ()
    # of a duration: the unit of the field, and of a number without one: h, m or s; "-": the field
    # has seconds, and the option needs a unit
    unit: str = ""
    preset: Any = None  # default on the command line, where it differs from the field's
    complete: str = ""  # what the shell completes: names, types or zones
    bounds: tuple[float, float, str] = (-math.inf, math.inf, "")  # and what to give instead
    excludes: tuple[str, ...] = ()  # fields that cannot be given together with this one
    why: str = ""  # they cannot
    needs: tuple[str, ...] = ()  # fields, one of which must be given as well
    replaces: tuple[str, ...] = ()  # fields: the repo's values of them and of `excludes` go
    key: str = ""  # in [tool.berg]
    asked_again: bool = False  # not taken from a job's record: --resume and rerun need it again

    @property
    def flag(self) -> str:
        return self.flags[0] if self.flags else self.key


def option(
    flags: str,
    help: str,
    default: Any = None,
    commands: tuple[str, ...] = ALL,
    repr: bool = True,
    **more: Any,
) -> Any:
    """Return a field with its row; `flags` are as in --help: -n --name NAME. Fields in `excludes`,
    `needs` and `replaces` are separated by blanks.
    """
    for key in ("excludes", "needs", "replaces"):
        more[key] = tuple(more.get(key, "").split())
    words = flags.split()
    names = tuple(word for word in words if word.startswith("-"))
    metavar = words[-1] if len(words) > len(names) else None
    row = Option(names, help, commands, metavar, **more)
    return field(default=default, repr=repr, metadata={"option": row})


def in_unit(text: str, unit: str) -> float:
    """Return a duration as a number of an option's unit; raise BergError for an invalid one."""
    unit = unit.strip("-")
    return validation.parse_duration(text, unit) / validation.UNITS[unit or "s"]


def rows(kind: Any) -> dict[str, Option]:
    """Return the rows of a dataclass, by field."""
    found, group = {}, ""
    for each in fields(kind):
        if each.metadata:
            row = each.metadata["option"]
            group = row.group or group
            found[each.name] = replace(row, group=group)
    return found


def check_rows(options: Any) -> None:
    """Raise BergError for numbers out of bounds, and for options that do not go together."""
    known = rows(options)
    given = [name for name in known if is_given(options, name)]
    for name in given:
        row = known[name]
        check_bounds(row, getattr(options, name))
        if clash := [known[each].flag for each in row.excludes if each in given]:
            raise BergError(f"{row.why}: leave out {', '.join(clash)}")
        if row.needs and not {*given} & {*row.needs}:
            needed = " or ".join(known[each].flags[-1] for each in row.needs)
            raise BergError(f"{row.flags[-1]} needs {needed}")


def check_bounds(row: Option, value: Any) -> None:
    """Raise BergError for a number out of its bounds."""
    least, most, advice = row.bounds
    if isinstance(value, (int, float)) and not least <= value <= most:
        unit = "s" if row.unit == "-" else ""
        raise BergError(f"{row.flag} {shown(value)}{unit} is not possible: {advice}")


def is_given(options: Any, name: str) -> bool:
    return bool(getattr(options, name) != getattr(type(options), name))


def shown(number: float) -> str:
    """Return a number as people write it: 168.0 is 168."""
    return f"{number:g}" if isinstance(number, float) else str(number)


@dataclass
class JobSpec:
    """The options of `berg run` and `berg devbox`, as they were given; None: not at all."""

    cmd: str | None = None  # None: machines for people
    defaults: tuple[str, ...] = ()  # what came from where, for people to read
    # image that a job's record names by its tag; it is not looked up in its registry
    recorded_image: str = ""

    name: str | None = option(
        "-n --name NAME", "Name of the job.  [default: made from the repo]", usual=True, group=RUNS
    )
    note: str = option("--note", "A line that lists show next to the job.", "")
    results_dir: str | None = option(
        "-r --results-dir PATH",
        "Folder in berg_results.  [default: read off CMD]",
        commands=JOB,
        usual=True,
    )
    fresh: bool = option(
        "--fresh", "Begin without the files that an earlier job left there.", False, JOB
    )
    keep: tuple[str, ...] = option(
        "--keep PATH",
        "Mirror and restore this folder of the repo, too; repeatable. "
        "none: save no new files of the repo.",
        (),
        JOB,
        key="keep",
    )
    keep_deleted: bool = option(
        "--keep-deleted",
        "Keep results in the bucket that the job deletes.",
        False,
        JOB,
        key="keep-deleted",
    )
    # folder for the results of jobs whose command names none, each in its own
    results_parent: str | None = option("", "", commands=(), key="results-dir")
    cwd: str | None = option(
        "--cwd PATH", "Folder of the repo to run CMD in.  [default: the current one]", commands=RUN
    )
    branch: str | None = option(
        "--branch NAME", "Run this branch's last commit instead of the working tree."
    )
    commit: str | None = option("--commit ID", "Run this commit or tag instead.")
    docker: str | None = option("--docker IMAGE", "Run in a container of this image.", usual=True)
    each: bool = option(
        "--each", "Run CMD on every machine, not only the first.", False, RUN, usual=True
    )
    keep_going: bool = option(
        "--keep-going",
        "With --each, keep the other machines running when one fails.",
        False,
        RUN,
        needs="each",
    )
    no_pipefail: bool = option(
        "--no-pipefail",
        "Only the last program of a pipe in CMD decides whether it failed.",
        False,
        JOB,
        key="no-pipefail",
    )
    install_script: str | None = option(
        "--install-script PATH",
        "Script in the repo to run before anything else.",
        key="install-script",
    )
    extras: tuple[str, ...] = option(
        "--extra NAME",
        "Install this extra of the repo's pyproject.toml; repeatable.",
        (),
        key="extras",
    )
    groups: tuple[str, ...] = option(
        "--group NAME", "Install this dependency group; repeatable.", (), key="groups"
    )
    install: str | None = option(
        "--install HOW",
        "uv, pip, none, or a command that installs.  [default: chosen by the repo's files]",
        key="install",
    )
    profile: bool = option(
        "--profile", "Let berg profile record PyTorch's own profiles of CMD.", False, RUN
    )
    notify: str | None = option(
        "--notify URL",
        "Webhook to call when the job ends or hangs, or NAME[=FILE] that holds its URL.",
        commands=JOB,
        repr=False,
        asked_again=True,
    )

    num_gpus: int | None = option(
        "-g --num-gpus N",
        "GPUs per machine; 0 for none.  [default: 1]",
        usual=True,
        key="num-gpus",
        replaces="machine_type num_cpus",
        group=WHERE,
    )
    gpu_type: str | None = option(
        "-t --gpu-type TYPE",
        "l4, a100, …; several to try in turn (l4,a100), or cheapest.  [default: l4]",
        usual=True,
        complete="types",
        key="gpu-type",
        replaces="machine_type num_cpus",
    )
    gpu_memory: int = option("--gpu-memory GB", "With -t cheapest: least memory of a GPU.", 0)
    num_cpus: int | None = option(
        "-c --num-cpus N", "vCPUs per machine.", usual=True, key="num-cpus", replaces="machine_type"
    )
    num_machines: int = option(
        "-m --machines N", "Number of machines.", 1, usual=True, bounds=(1, 1000, "give 1 to 1000")
    )
    machine_type: str | None = option(
        "--machine-type TYPE",
        "Machine type.  [default: by GPUs and CPUs]",
        key="machine-type",
        replaces="gpu_type num_gpus num_cpus",
    )
    tpu: str | None = option(
        "--tpu FAMILY-TOPOLOGY",
        "TPUs instead: v6e-1, … (see berg gpus --tpu).",
        usual=True,
        excludes="num_gpus gpu_type num_cpus machine_type num_machines wait_for_capacity",
        why="--tpu says what the machines are and how many",
        key="tpu",
    )
    cluster: str | None = option(
        "--cluster NAME",
        "Run in pods of this cluster.",
        usual=True,
        excludes="image machine_type zones regions disk_gb reservation flex wait_for_capacity "
        "no_external_ip no_kill",
        why="--cluster: the cluster's nodes are what they are, and pods wait anyway",
        replaces="num_cpus tpu",
    )
    pod_patch: dict[str, Any] | None = option(  # noqa: RUF009 - it returns a field
        "--pod-patch FILE",
        "YAML or JSON merged into the pods: volumes, sidecars, …",
        needs="cluster",
        asked_again=True,
    )
    queue: str | None = option(
        "--queue NAME", "Wait for quota in this Kueue queue of the cluster.", needs="cluster"
    )
    image: str | None = option(
        "--image [PROJECT/]IMAGE",
        "Image or image family.  [default: default_image]",
        usual=True,
        key="image",
    )
    disk_gb: int = option(
        "--disk-gb GB",
        "Size of the boot disk.",
        200,
        bounds=(10, 65536, "a boot disk has 10 to 65536 GB"),
        key="disk-gb",
    )
    local_ssd: int = option(
        "--local-ssd N",
        "Local SSDs of 375 GB to add, together at /mnt/scratch.",
        0,
        bounds=(0, 32, "machine types take 1 to 32, or 0 for none"),
        excludes="cluster tpu",
        why="--local-ssd is for machines of Compute Engine without TPUs",
        key="local-ssd",
    )
    zones: tuple[str, ...] = option(
        "--zone ZONE",
        "Zone to try, before others of --region; repeatable.",
        (),
        replaces="regions",
        complete="zones",
        key="zones",
    )
    # whose zones are tried, the cheapest first; any: all there are
    regions: tuple[str, ...] = option(
        "--region REGION",
        "Try all zones of this region, or of any; repeatable.",
        (),
        usual=True,
        excludes="reservation",
        replaces="zones",
        why="--region says where to try",
        key="regions",
    )
    reservation: str = option(
        "--reservation NAME",
        "Use a reservation: NAME, or projects/OWNER/reservations/NAME.",
        "",
        excludes="spot flex wait_for_capacity",
        why="--reservation takes what is there, at its own price",
        key="reservation",
    )
    network: str = option(
        "--network HOW",
        "What several machines with GPUs talk over: fast is RoCE where Berg sets it up, tcp one "
        "interface.",
        "fast",
        choices=("fast", TCP),
        excludes="cluster tpu",
        why="--network is for machines of Compute Engine with GPUs",
    )
    preflight: str = option(
        "--preflight HOW",
        "warn, fail or off: what to do if the network between machines with GPUs is slow.",
        "warn",
        RUN,
        choices=("warn", "fail", "off"),
        excludes="cluster tpu",
        why="--preflight is for machines of Compute Engine with GPUs",
    )
    no_external_ip: bool = option(
        "--no-external-ip",
        "Reach the machines only from their network and through IAP.",
        False,
        key="no-external-ip",
    )

    spot: bool = option(
        "--spot",
        "Cheaper machines that Google may preempt.",
        False,
        usual=True,
        key="spot",
        group=LIMIT,
    )
    flex: bool = option(
        "--flex",
        "Use flex-start: wait in Google's queue for capacity; the machine runs for at most 7 days.",
        False,
        excludes="spot wait_for_capacity",
        why="--flex waits for room of its own kind",
        key="flex",
    )
    max_hours: float = option(
        "--max-hours",
        "Delete the machines after this time.",
        168,
        usual=True,
        unit="h",
        bounds=(LIMITS[0] / 3600, LIMITS[1] / 3600, "Google takes 30 seconds to 120 days"),
        key="max-hours",
    )
    # USD in all; 0: no limit; None: the config's
    max_cost: float | None = option(
        "--max-cost DOLLARS",
        "Limit the total cost by shortening --max-hours.",
        usual=True,
        bounds=(0, 1e7, DOLLARS),
        replaces="lower_cost",
    )
    purse: str | None = option(
        "--purse NAME",
        "Draw on this purse: the job is refused, or ends sooner, if it has too little left.",
        asked_again=True,
    )
    # USD in all that a repo or the record of an earlier run says; it only lowers the config's
    lower_cost: float = option("", "", 0, (), bounds=(0, 1e7, DOLLARS), key="max-cost")
    idle_hours: float = option(
        "--idle-hours",
        "End after being idle for this time; 0 for never.",
        0,
        DEVBOX,
        usual=True,
        unit="h",
        preset=4.0,
        bounds=(0, 1e6, "give hours, or 0 for never"),
    )
    idle: str | None = option(
        "--idle",
        "What to do then.  [default: stop, if possible]",
        commands=DEVBOX,
        usual=True,
        choices=("stop", "delete"),
    )
    wait_for_capacity: bool = option(
        "--wait-for-capacity",
        "Wait for capacity instead of failing.",
        False,
        RUN,
        excludes="num_machines",
        why="--wait-for-capacity is for jobs on one machine",
    )
    queue_timeout: float = option(
        "--queue-timeout",
        "Give up if not all pods, or machines by --flex, have come up by then.",
        0,
        unit="-",
        needs="cluster flex",
        bounds=(0, 30 * 24 * 3600, "give up to 30d, or 0 for no timeout"),
    )
    replacement_timeout: float = option(
        "--replacement-timeout",
        "Give up if a lost Spot machine or pod of several is not replaced by then.",
        900,
        RUN,
        unit="-",
        bounds=(6, 7 * 24 * 3600, "give 6s to 7d"),
    )
    max_restarts: int = option(
        "--max-restarts N",
        "Most restarts after lost machines.",
        20,
        RUN,
        bounds=(0, math.inf, TIMES),
    )
    restart_on_failure: int = option(
        "--restart-on-failure N",
        "Run CMD again when it fails, up to N times.",
        0,
        RUN,
        bounds=(0, math.inf, TIMES),
    )
    min_utilization: int = option(
        "--min-utilization PERCENT",
        "End the job if no GPU or TPU is this busy for the time in --for.",
        0,
        RUN,
        bounds=(0, 100, "give percent, 1 to 100"),
    )
    for_minutes: float = option(
        "--for", "Time for --min-utilization.", 30, RUN, unit="m", needs="min_utilization"
    )
    max_silence: float = option(
        "--max-silence",
        "Time without a step, after which a job seems to hang.  "
        "[default: 20m, or 8 times the longest so far]",
        0,
        RUN,
        unit="-",
        bounds=(0, 7 * 24 * 3600, "give up to 7d, or 0 for the default"),
    )
    on_hang: str = option(
        "--on-hang HOW",
        "report, fail or restart: what to do after --max-silence.",
        "report",
        RUN,
        choices=("report", "fail", "restart"),
        needs="max_silence",
    )
    sample_seconds: float = option(
        "--sample-seconds",
        "How often to measure utilization; 0 for never.",
        30,
        unit="s",
        bounds=(0, 3600, "give 1 to 3600, or 0 for none"),
        key="sample-seconds",
    )
    no_kill: bool = option(
        "--no-kill", "Keep the machine after the job (until --max-hours).", False, RUN
    )
    keep_failed: float = option(
        "--keep-failed",
        "Keep the machines of a failed job for this time, for berg ssh.",
        0,
        RUN,
        unit="-",
        bounds=(0, 7 * 24 * 3600, "give up to 7d, or 0 for not at all"),
        excludes="cluster no_kill",
        why="--keep-failed keeps machines of Compute Engine, and for a time",
    )
    keep_warm: float = option(
        "--keep-warm",
        "Keep the machines for this time, for the next job that fits.",
        0,
        RUN,
        unit="-",
        bounds=(0, 7 * 24 * 3600, "give up to 7d, or 0 for not at all"),
        excludes="cluster tpu spot flex wait_for_capacity no_kill grid tasks samples",
        why="--keep-warm keeps machines that were created on demand: groups make those of other "
        "jobs and of slices, and clusters their pods",
        key="keep-warm",
    )
    on: str | None = option(
        "--on BOX",
        "Run on this devbox of yours.",
        commands=RUN,
        complete="names",
        excludes="docker each num_gpus gpu_type gpu_memory num_cpus num_machines machine_type tpu "
        "cluster image disk_gb zones regions reservation no_external_ip spot flex max_cost "
        "lower_cost purse wait_for_capacity no_kill keep_failed keep_warm fresh_machine mount "
        "stop_worst",
        why="--on runs on a machine that is there, as it is, and leaves it as it is",
    )
    share: bool = option(
        "--share", "With --on, also if another job runs there.", False, RUN, needs="on"
    )
    fresh_machine: bool = option(
        "--fresh-machine", "Create a machine, also if one is kept warm.", False, RUN
    )
    secrets_too: bool = option(
        "--secrets-too",
        "With --keep-failed, logins have CMD's secrets as well.",
        False,
        RUN,
        needs="keep_failed",
    )

    env: tuple[str, ...] = option(
        "--env NAME[=VALUE]",
        "Variable for commands and logins, by default with its value here; repeatable.",
        (),
        usual=True,
        key="env",
        group=DATA,
    )
    secrets: tuple[str, ...] = option(
        "--secret NAME[=FILE]",
        "Variable that only CMD (in a devbox: you) can read.",
        (),
        usual=True,
        asked_again=True,
    )
    install_secrets: tuple[str, ...] = option(
        "--install-secret NAME[=FILE]",
        "Variable that only the installation can read.",
        (),
        key="install-secrets",
        asked_again=True,
    )
    data: tuple[str, ...] = option(
        "--data NAME[:PATH]",
        "Copy a data set or gs://BUCKET/FOLDER there.",
        (),
        usual=True,
        key="data",
    )
    mount: tuple[str, ...] = option(
        "--mount NAME[:PATH]",
        "The same, read from the bucket when needed; repeatable.",
        (),
        key="mount",
    )

    stop_worst: str = option(
        "--stop-worst METRIC",
        "End jobs that are among the worst at --rungs by this metric; max:METRIC if more is "
        "better.",
        "",
        RUN,
        needs="rungs",
        group=SWEEP,
    )
    rungs: str = option(
        "--rungs N,N…",
        "Steps of metrics.jsonl at which --stop-worst compares: 3,9,27.",
        "",
        RUN,
        needs="stop_worst",
    )

    def recorded(self) -> "JobSpec":
        """Return the options for the job's record: without its command, which a sweep fills, its
        name, and the URL of its webhook.
        """
        notify = None if "://" in (self.notify or "") else self.notify
        return replace(self, cmd=None, name=None, recorded_image="", notify=notify)

    @property
    def settings(self) -> dict[str, object]:
        """The settings that it overrides."""
        return {
            "zones": self.zones,
            "default_image": self.image,
            "default_docker_image": self.docker,
            "no_external_ip": self.no_external_ip or None,
            "purse": self.purse,
        }

    def __post_init__(self) -> None:
        """Read `-t a100:8` as `-t a100 -g 8`."""
        name, _, number = (self.gpu_type or "").partition(":")
        if re.fullmatch("[1-9][0-9]?", number) and self.num_gpus in (None, int(number)):
            self.gpu_type, self.num_gpus = name, int(number)

    def validate(self) -> None:
        """Raise ValueError or BergError for invalid options in a job's record."""
        for name, row in rows(JobSpec).items():
            check_bounds(row, getattr(self, name))
        self.check_keep()
        # These become parts of URLs.
        project, _, image = (self.image or "").rpartition("/")
        validation.check_project(project)
        names = (image, self.gpu_type, self.machine_type, self.tpu, self.cluster, self.queue)
        for each in (*names, *self.zones):
            validation.check_resource(each or "")

    def check(self) -> None:
        """Raise BergError for what is not possible, whatever Google offers."""
        if self.cmd is not None and not self.cmd.strip():
            raise BergError('there is no command to run, as in: berg run "python train.py"')
        check_rows(self)
        self.check_keep()
        if len(self.note) > MAX_NOTE or not self.note.isprintable():
            raise BergError(f"--note is one line of {MAX_NOTE} printable characters at most")
        if self.on_hang == "restart" and not self.restart_on_failure:
            raise BergError(
                "--on-hang restart needs --restart-on-failure N: it counts as a failure"
            )
        two_samples = 2 * self.sample_seconds
        if self.min_utilization and not 0 < two_samples <= self.for_minutes * 60 < math.inf:
            raise BergError(
                f"--min-utilization needs at least two samples in --for {self.for_minutes:g} "
                f"minutes: there is one every {self.sample_seconds:g} s (--sample-seconds)"
            )
        self.check_container()
        self.check_replacement()
        if self.flex and self.max_hours > MOST_FLEX_HOURS:
            raise BergError(
                f"--flex: Google gives machines for {MOST_FLEX_HOURS} hours at most, "
                f"not {self.max_hours:g}: give --max-hours"
            )
        self.steps()

    def steps(self) -> list[int]:
        """Return the steps of --rungs; raise BergError for invalid ones."""
        if not self.rungs:
            return []
        if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", self.rungs):
            raise BergError(f"--rungs {self.rungs}: give steps, such as 3,9,27")
        found = [int(each) for each in self.rungs.split(",")]
        if found != sorted(set(found)):
            raise BergError(f"--rungs {self.rungs}: each step must be above the one before")
        return found

    def check_container(self) -> None:
        """Raise BergError for an invalid image, queue or number of CPUs of containers."""
        if self.docker is not None and not IMAGE_NAME.fullmatch(self.docker):
            raise BergError(f"--docker {self.docker!r} is not an image name such as python:3.12")
        if self.container and self.cmd is None:
            raise BergError("--docker: a devbox has no command to run in a container")
        if self.container and self.profile:
            raise BergError("--docker: the command of a container has no --profile")
        if self.cluster is not None and self.num_cpus is not None and self.num_cpus < 1:
            raise BergError(f"-c {self.num_cpus} is not possible: give 1 or more CPUs for each pod")
        if self.queue is not None and not QUEUE_NAME.fullmatch(self.queue):
            raise BergError(f"--queue {self.queue!r} is not a queue name such as team-a")

    def check_replacement(self) -> None:
        """Raise BergError for --replacement-timeout where no machine is replaced on its own."""
        several = self.num_machines > 1
        in_pods = self.cluster is not None and (self.tpu is not None or several)
        is_replaced = in_pods or (self.spot and several)
        if is_given(self, "replacement_timeout") and not is_replaced:
            raise BergError(
                "--replacement-timeout is for several Spot machines or pods: give -m N, and "
                "--spot or --cluster NAME"
            )

    @property
    def elsewhere(self) -> bool:
        """Whether its machines need not be available on demand."""
        return self.spot or self.flex or bool(self.reservation)

    @property
    def model(self) -> str:
        """How its machines are paid for, in the API's words."""
        if self.spot:
            return "SPOT"
        return "FLEX_START" if self.flex else "STANDARD"

    @property
    def container(self) -> str:
        """Image of the container that a machine runs the command in; "" for none, as in pods."""
        return "" if self.cluster is not None else self.docker or ""

    @property
    def kept(self) -> list[str]:
        """The folders of --keep, without those that are in another one."""
        paths = [PurePosixPath(path) for path in self.keep if path != NONE]
        return [str(path) for path in paths if not {*path.parents} & {*paths}]

    @property
    def saves_checkout(self) -> bool:
        """Whether new files of the checkout are saved when the command has ended."""
        return self.keep != (NONE,)

    def check_keep(self) -> None:
        """Raise BergError for what is no folder below the root of a repository."""
        for path in self.keep if self.saves_checkout else ():
            parts = PurePosixPath(path).parts
            if path == NONE:
                raise BergError("--keep none cannot be combined with other --keep options")
            if not parts or parts[0] == "/" or {"..", ".git"} & {*parts} or not path.isprintable():
                raise BergError(
                    f"--keep {path!r}: give a folder by its path from the root of the repository, "
                    "such as --keep checkpoints"
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
    """Raise BergError for an invalid name of a variable, or one that berg sets itself."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
        raise BergError(f"{option} {key!r} is not the name of a variable")
    if key.startswith(RESERVED):
        raise BergError(
            f"{option} {key}: names that begin with {', '.join(RESERVED)} are set by berg"
        )


@dataclass(frozen=True)
class RunOptions:
    """The options of a command that starts machines which are not stored with the job."""

    resume: str | None = option(
        "--resume NAME",
        "Resume a failed or lost job or sweep, or SWEEP/3.",
        commands=RUN,
        usual=True,
        complete="names",
        group=RUNS,
    )
    new_code: bool = option(
        "--new-code",
        "Use the working tree, not the code that NAME ran.",
        False,
        JOB,
        usual=True,
    )
    env_file: str | None = option(
        "--env-file FILE",
        "Variables from a file with a line NAME=VALUE for each; for secrets there is --secret.",
        group=DATA,
    )
    send_secrets: bool = option(
        "--send-secrets", "Send files that look like secrets without asking.", False
    )
    grid: tuple[str, ...] = option(
        "--grid NAME=V,V…",
        "A job per value of {NAME} in CMD; repeatable.",
        (),
        RUN,
        usual=True,
        group=SWEEP,
    )
    tasks: str | None = option(
        "--tasks FILE", "A job per row of a CSV or JSONL file.", commands=RUN, usual=True
    )
    params: tuple[str, ...] = option(
        "--param NAME=…",
        "With --samples, what to draw from: a|b|c, 0..1, log:1e-5..1e-1, int:1..9.",
        (),
        RUN,
    )
    samples: int | None = option(
        "--samples N",
        "Number of jobs whose values are drawn from --param.",
        commands=RUN,
        bounds=(1, math.inf, "give 1 or more"),
    )
    sampler: str = option(
        "--sampler",
        "How to draw: evenly spread or at random.",
        "sobol",
        RUN,
        choices=("sobol", "random"),
    )
    seed: int | None = option(
        "--seed N",
        "Seed, to draw the same values again.",
        commands=RUN,
        bounds=(0, math.inf, "give 0 or more"),
    )
    parallel: int | None = option(
        "--parallel N",
        "Machines for all jobs.  [default: one each]",
        commands=RUN,
        usual=True,
        bounds=(1, math.inf, "give 1 or more"),
    )
    wait: bool = option(
        "--wait",
        "Wait for the end; exit with CMD's exit code.",
        False,
        JOB,
        usual=True,
        group=OTHER,
    )
    tail: bool = option("--tail", "Follow the log, then as --wait.", False, JOB, usual=True)
    dry_run: bool = option(
        "--dry-run", "Show the plan, with --json also the request, and stop.", False, usual=True
    )
    as_json: bool = option("--json", "Print JSON.", False, usual=True)


@dataclass
class PoolOptions:
    """The options of `berg cluster create`: the nodes of a pool for jobs; None: as usual."""

    num_nodes: int = option(
        "--num-nodes N", "Nodes for jobs at most.", 2, bounds=(1, 1000, "give 1 to 1000")
    )
    min_nodes: int = option("--min-nodes N", "Nodes at least.  [default: 0]", 0)
    max_nodes: int | None = option(
        "--max-nodes N",
        "The same as --num-nodes; takes precedence.",
        bounds=(1, 1000, "give 1 to 1000"),
    )
    machine_type: str | None = option(
        "--machine-type TYPE", "Machine type of the nodes.  [default: by the GPUs]"
    )
    tpu: str | None = option(
        "--tpu NAME",
        "TPUs of the nodes instead of GPUs: v5e-4x4, v4-2x2x2, v5e-8, …",
        excludes="machine_type gpu_type num_gpus",
        why="--tpu says what the nodes are",
    )
    max_hours: float = option(
        "--max-hours TIME",
        "Delete a node with TPUs after this time, even if it is busy.",
        336,
        unit="h",
        bounds=(1, LIMITS[1] / 3600, "give 1h to 2880h (120 days)"),
    )
    gpu_type: str | None = option(
        "-t --gpu-type TYPE", "GPU type.  [default: l4]", complete="types"
    )
    num_gpus: int | None = option("-g --num-gpus N", "GPUs of each node; 0 for none.  [default: 1]")
    disk_gb: int = option(
        "--disk-gb GB",
        "Disk size of each node.",
        100,
        bounds=(30, 65536, "a node's disk has 30 to 65536 GB"),
    )
    disk_type: str | None = option(
        "--disk-type TYPE", "pd-ssd, pd-balanced, …  [default: by the machine type]"
    )
    zone: str | None = option(
        "--zone ZONE",
        "Zone of the cluster.  [default: one of the region that has the GPUs]",
        complete="zones",
    )
    spot: bool = option("--spot", "Cheaper nodes that Google may preempt.", False)

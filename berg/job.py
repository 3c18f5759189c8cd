"""The job: the contract between the laptop that submits it and the machine that runs it.

Where it lies in the bucket:

.berg/jobs/<job>_metadata.json
    what to run; written once, and anew where a sweep is resumed with new code
.berg/jobs/<job>_state.json
    how it goes; the same JSON also as the object's custom metadata
.berg/logs/<job>/<machine>.<time>.log
    what its machines printed; one for each that had the job
.berg/logs/<job>/<machine>.<time>.usage.jsonl
    what they were busy with (machine/usage.py)
.berg/folders/<job>/...
    the folders beside <results_dir> that it wrote to (google/mirror.py)
.berg/index/...
    which jobs may live, and which are the newest (laptop/index.py)
.berg/sweeps/<sweep>.json
    the jobs of a sweep, and the hashes of their metadata (states.py)
berg_results/<results_dir>/...
    what it left

What there is in a place for jobs: machines, and other resources that may be left over.
"""

import json
import math
import re
import secrets
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from berg import BergError, gate
from berg.gate import COMMIT, check_bounds, check_results_dir, fits
from berg.spec import JobSpec, spec_from

VERSION = 1

ACTIVE = ("SUBMITTED", "STARTING", "INSTALLING", "RUNNING", "UPLOADING")

MAX_STATE = 8000  # bytes; Cloud Storage takes 8 KiB of custom metadata for an object

STOPPED = "STOPPED"  # of a devbox: its machine is off, and keeps its disk

TOO_LATE = "not all of its pods or machines had come when --queue-timeout was over"

# seconds that the machines of a slice may be silent which Google repairs
REPAIRED_WITHIN = 900

FINAL = ("SUCCEEDED", "FAILED", "KILLED", "LOST")

# what no job has more of: USD for an hour of one machine, and machines
MOST_RATE, MOST_MACHINES = 10_000, 100_000

ATTEMPTS = 10  # attempts that a state remembers, with so many characters of why each began

WHY = 150

HISTORY = 30  # changes that a state remembers: it must fit an object's custom metadata

# A machine's name is its job's name, so a job's name must be one that Compute Engine takes.
SOFTWARE = ".software.json"  # ends what an attempt writes beside its log of what it ran with

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Group:
    """What makes a job's machines anew when they are lost, if anything does: one of the two."""

    region: str = ""  # of the instance group that Google refills
    cluster: str = ""  # LOCATION/NAME of the cluster that makes its pods

    @classmethod
    def parse(cls, text: Any) -> "Group":
        """Return what a record says; raise ValueError for what names neither."""
        if not isinstance(text, str):
            raise ValueError(f"group is {str(text)[:40]!r}")
        gate.check_resource(text)
        return cls(cluster=text) if "/" in text else cls(region=text)

    def __str__(self) -> str:
        """Return it as records have it."""
        return self.region or self.cluster

    def __bool__(self) -> bool:
        return bool(str(self))


NO_GROUP = Group()


@dataclass(frozen=True)
class Installation:
    """What a machine installs before the command, decided on the laptop by code/installation.py.

    Where `venv` is set, the machine first makes that virtual environment with uv (next to uv.lock,
    where there is one), then runs the install script with it on PATH, then the steps. A step is an
    argument list that runs in `folder`; `python` in it is the environment's. No step is a shell's,
    but for the user's own --install "COMMAND".
    """

    words: str = ""  # of the plan: one line
    notes: list[str] = field(default_factory=list)  # more lines of the plan
    folder: str = ""  # of the repo, relative to its root, where the steps run; "": the root
    # path of the virtual environment from the root of the repo, such as .venv or sub/.venv;
    # "": the image's python is used
    venv: str = ""
    steps: list[list[str]] = field(default_factory=list)
    may_fail: list[int] = field(default_factory=list)  # indexes of steps that may fail
    # set UV_NO_SYNC=1: `uv run` would drop the extras and groups that berg chose, or make a lock
    # again that was made with other settings
    no_sync: bool = False
    needs_uv: bool = False  # a step runs uv, or the environment is made by it
    # what names packages of the repo that are not installed, and how to install it -> their names
    others: dict[str, list[str]] = field(default_factory=dict)
    # of the virtual environment, such as 3.11 (uv venv --python); "": the one that uv chooses
    python: str = ""

    def summary(self) -> dict[str, Any]:
        """Return the `install` object of --json."""
        return {"what": self.words, "notes": self.notes, "folder": self.folder, "steps": self.steps}

    def environment(self, repo: str) -> str:
        """Return what the folder of the virtual environment of a repo is called."""
        return "-".join([repo, *self.venv.split("/")[:-1]])

    def check(self) -> None:
        """Raise ValueError for what no laptop decides."""
        for path in filter(None, (self.folder, self.venv)):
            if path.startswith("/") or {"", ".", ".."} & {*path.split("/")}:
                raise ValueError(f"its installation has the path {path[:40]!r}")
        if self.python and not re.fullmatch(r"3\.\d{1,2}", self.python):
            raise ValueError(f"its installation has the python {self.python[:40]!r}")
        if not all(self.steps) or not {*self.may_fail} <= {*range(len(self.steps))}:
            raise ValueError("its installation has odd steps")
        texts = [self.folder, self.venv, *(word for step in self.steps for word in step)]
        if any("\0" in text for text in texts):
            raise ValueError("a text has a NUL")


@dataclass
class Job:
    """One command on one or more machines. Times are ISO 8601 in UTC."""

    job_name: str
    cmd: str
    results_dir: str
    gcs_results_dir: str
    repo_name: str
    git_commit: str
    git_snapshot: str
    git_dirty: bool = False
    git_changed_files: list[str] = field(default_factory=list)
    snapshot: dict[str, Any] = field(default_factory=dict)
    installation: Installation = field(default_factory=Installation)
    install_secrets: list[str] = field(default_factory=list)  # that installation alone sees
    env: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    notify: bool = False  # its secrets hold the URL of a webhook that is to hear of its end
    # name, path, files, bytes, checksum of each data set
    data: list[dict[str, Any]] = field(default_factory=list)
    # name, path, bucket, prefix, files, bytes of each folder of a bucket that is seen as files
    mounts: list[dict[str, Any]] = field(default_factory=list)
    gcsfuse: str = ""  # the program for them that came along, by its name in .berg/dist
    place: str = "gce"  # where it runs: a module of places.py
    kind: str = "job"  # or devbox: no command, for people
    stops_when_idle: bool = False  # and keeps its disk; else it deletes itself then
    # of a devbox: whatever ends it, but for a kill, `berg reap` and --idle delete, its disk stays
    keeps_disk: bool = False
    num_machines: int = 1
    gpus_per_machine: int = 0
    gpu_type: str = ""
    tpu: str = ""  # FAMILY-TOPOLOGY of its TPUs, or a machine type
    machine_type: str = ""
    image: str = ""
    docker: str = ""  # image of the container that its command runs in; "": in none
    run_on: str = "first"
    marked_seconds: int = 900  # that a machine's accelerators do nothing, after which lists mark it
    silence_seconds: int = 180  # without word of a machine, after which the others give it up
    # without progress, after which a machine gives up the upload of the last results
    upload_timeout: int = 3600
    max_run_seconds: int = 0
    # region -> USD for an hour of one of its machines, as the list said when it was submitted
    rates: dict[str, float] = field(default_factory=dict)
    sweep: str = ""  # whose job this is; "": a job on its own
    # of a sweep's job, what fills the command's placeholders
    params: dict[str, str] = field(default_factory=dict)
    group: Group = NO_GROUP  # what makes its machines anew
    regions: list[str] = field(default_factory=list)  # with such a group each, until one has room
    # the key with which its machines sign what they tell each other lies in Secret Manager
    sealed: bool = False
    monitoring: int = 0  # 1: its machines write metrics to Cloud Monitoring
    spec: JobSpec = field(default_factory=JobSpec)  # the options, as JobSpec.recorded returns them
    created_at: str = ""
    created_by: str = ""
    berg_version: str = ""
    version: int = VERSION

    def to_json(self) -> str:
        values = {**asdict(self), "group": str(self.group)}
        return json.dumps(values, indent=2, ensure_ascii=False)

    @property
    def box(self) -> str:
        """What a fault does to the machine of a devbox, in boot.py's words; "" of a job."""
        if self.kind != "devbox":
            return ""
        return "stop" if self.keeps_disk else "stay"

    @property
    def idle_seconds(self) -> int:
        """Seconds of being idle after which a devbox ends; 0: it never does."""
        return math.ceil(self.spec.idle_hours * 3600)

    @property
    def pinned_image(self) -> str:
        """The image of its containers or pods by its digest; "" if that is not known."""
        image = self.image if self.place == "gke" else self.docker
        return image if "@" in image else ""

    @property
    def is_restarted(self) -> bool:
        """Whether Google starts its machines again, with their disks, after maintaining a host: one
        machine alone, or all of a slice of TPUs on demand together.
        """
        is_slice = self.place == "tpu" and not (self.spec.spot or self.spec.flex)
        return (self.num_machines == 1 or is_slice) and not self.sweep and not self.group

    @property
    def longest_silence(self) -> int:
        """Seconds without word of a machine, after which the others give it up. Google may take 330
        to find that the host of a slice has failed, before it brings all of them back.
        """
        if self.num_machines > 1 and self.is_restarted:
            return max(self.silence_seconds, REPAIRED_WITHIN)
        return self.silence_seconds

    @property
    def is_kept(self) -> bool:
        """Whether its group makes machines anew that are lost: none does by flex-start."""
        return self.kind == "job" and bool(self.group) and not self.spec.flex

    @property
    def is_replaced(self) -> bool:
        """Whether Google or Kubernetes makes each of its several machines anew when it is lost,
        and the others wait for it: not one of a slice of TPUs on Compute Engine.
        """
        return self.num_machines > 1 and self.is_kept and self.place != "tpu"

    @property
    def has_secret(self) -> bool:
        """Whether there is something of it in Secret Manager."""
        return bool(self.secrets or self.install_secrets or self.notify or self.sealed)

    def summary(self) -> "Summary":
        """Return what a list shows of the job; it travels with every state."""
        gpus = f"{self.gpus_per_machine} x {self.gpu_type}" if self.gpus_per_machine else self.tpu
        return Summary(
            user=self.created_by,
            created_at=self.created_at,
            cmd=self.cmd.encode()[:500].decode(errors="ignore"),
            results_dir=self.results_dir,
            repo=self.repo_name,
            commit=self.git_snapshot[:12],
            place=self.place,
            kind=self.kind,
            machines=self.num_machines,
            note=self.spec.note,
            kept=self.spec.no_kill,
            group=self.group,
            sweep=self.sweep,
            params=self.params if self.sweep else {},
            secrets=len({*self.secrets, *self.install_secrets}) + self.notify or int(self.sealed),
            gpus=gpus,
            wait_seconds=round(self.spec.queue_timeout),
            rates=self.rates,
            max_run_seconds=self.max_run_seconds,
        )


@dataclass
class Summary:
    """What a state says of its job, for who lists jobs without reading their metadata."""

    user: str = ""
    created_at: str = ""
    cmd: str = ""  # its beginning
    note: str = ""
    results_dir: str = ""  # "": not known
    repo: str = ""
    commit: str = ""
    place: str = "gce"
    kind: str = "job"
    machines: int = 1
    kept: bool = False  # its machines stay when it is over
    group: Group = NO_GROUP  # what makes its machines anew
    sweep: str = ""
    params: dict[str, str] = field(default_factory=dict)
    secrets: int = 0
    gpus: str = ""  # in words, such as 8 x h100; or its TPUs
    wait_seconds: int = 0  # for room, after which it ends (--queue-timeout); 0: no limit
    rates: dict[str, float] = field(default_factory=dict)  # as Job.rates
    max_run_seconds: int = 0  # as in `Job`

    def to_dict(self) -> dict[str, Any]:
        """Return it as it is in the bucket: a job without a sweep has no keys for one."""
        values = {**asdict(self), "group": str(self.group)}
        if not self.sweep:
            del values["sweep"], values["params"]
        return values


def from_json(data: bytes, name: str) -> Job:
    """The job in `data`; raises BergError if it is damaged or written by a newer berg."""
    try:
        values = gate.values(data)
        group = Group.parse(values.get("group", ""))
        installation = gate.build(Installation, values.get("installation", {}))
        spec = spec_from(values.get("spec", {}))
        parts = {"group": group, "installation": installation, "spec": spec}
        job = gate.build(Job, {**values, **parts})
        installation.check()
        check_bounds(job)
        check_snapshot(job.snapshot)
        job.to_json().encode()  # JSON has halves of letters, which UTF-8 has not
        if job.job_name != name:
            raise ValueError("it does not describe this job")
    except (ValueError, BergError) as error:
        raise BergError(
            f"{metadata_path(name)} is damaged ({error}). Submit the job again: berg run"
        ) from None
    if job.version > VERSION:
        raise BergError(f"job {name} was written by berg {job.berg_version}, newer than this one")
    return job


def check_snapshot(snapshot: Any) -> None:
    """Raise ValueError for what describes no commit, or none of one of its submodules."""
    if not isinstance(snapshot, dict) or not COMMIT.fullmatch(str(snapshot.get("commit"))):
        raise ValueError("it does not describe a commit")
    lists = [snapshot.get(key, []) for key in ("packs", "shallow")]
    lists.append(snapshot.get("cut") or [])
    if not fits(lists, list[list[str]]):
        raise ValueError("its packs are odd")
    submodules = snapshot.get("submodules", {})
    if not isinstance(submodules, dict):
        raise ValueError("its submodules are odd")
    for each in submodules.values():
        check_snapshot(each)


@dataclass
class State:
    """How a job goes. Only its worker writes RUNNING and later; LOST is a reader's conclusion."""

    state: str = "SUBMITTED"
    exit_code: int | None = None
    reason: str = ""
    attempt: int = 1
    # [number, when it began, why the one before ended] of all but the first; the newest ATTEMPTS
    attempts: list[list[str]] = field(default_factory=list)
    missing: int = 0  # its machines that the others wait for, and since when they do
    missing_since: str = ""
    restarts: int = 0  # attempts that began because a machine went away
    failures: int = 0  # attempts that began because the command failed
    ran_seconds: int = 0  # in all attempts together
    ending: str = ""  # while UPLOADING: the final state to come
    uploading_since: str = ""
    left_files: int = 0  # while UPLOADING: what is not in the bucket yet
    left_bytes: int = 0
    # machines with idle accelerators -> since when
    idle: dict[str, str] = field(default_factory=dict)
    # step at which it was compared with its sweep -> its value there, of which less is better
    rungs: dict[str, float] = field(default_factory=dict)
    # machines that could not delete themselves -> when they last said so
    undeleted: dict[str, str] = field(default_factory=dict)
    elsewhere: str = ""  # other folders under berg_results that it wrote to, in words
    lost: str = ""  # what an attempt could not bring to the bucket, in words
    machine: str = ""
    zone: str = ""
    started_at: str = ""  # of the first attempt
    finished_at: str = ""
    synced_until: str = ""
    # [state, when it began]; the newest HISTORY of them
    history: list[list[str]] = field(default_factory=list)
    job: Summary = field(default_factory=Summary)
    removed_by: str = ""  # who began to delete the job: it does not go on
    claim: str = ""  # random, of who submitted the job: tells it from another that is the same

    @property
    def final(self) -> bool:
        return self.state in FINAL

    def next_attempt(self, why: str) -> dict[str, Any]:
        """Return the fields with which another attempt begins now, and `why` the last one ended."""
        number = self.attempt + 1
        begun = [str(number), now(), cut(why, WHY)]
        return {"attempt": number, "attempts": [*self.attempts, begun][-ATTEMPTS:]}

    def note(self) -> None:
        """Put a state that is new into the history: it begins now."""
        if not self.history or self.history[-1][0] != self.state:
            self.history = [*self.history, [self.state, now()]][-HISTORY:]

    def to_json(self) -> str:
        """Return it as JSON that fits into an object's custom metadata; what is long is cut."""
        self.note()
        text = self._as_text()
        for room in (1000, 300, 100, 30):
            if len(text) <= MAX_STATE:
                break
            text = self._shortened(room)._as_text()
        return text

    def _as_text(self) -> str:
        return json.dumps({**asdict(self), "job": self.job.to_dict()})

    def _shortened(self, room: int) -> "State":
        """Return it with texts of at most `room` characters."""
        some = list(self.job.params)[: room // 10]
        params = {cut(key, room): cut(self.job.params[key], room) for key in some}
        summary = replace(self.job, cmd=cut(self.job.cmd, room), params=params)
        newest = self.attempts[-max(room // 100, 1) :]
        attempts = [[cut(word, room) for word in each] for each in newest]
        return replace(self, reason=cut(self.reason, room), attempts=attempts, job=summary)


def cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def state_from_json(data: str | bytes) -> State:
    """Return the state in `data`; raise ValueError if there is none, or one that is odd."""
    is_plain = gate.is_plain(data)
    try:
        values = gate.values(data)
        summary = summary_from(values.get("job", {}), is_plain)
        state = gate.build(State, {**values, "job": summary})
        check_state(state)
        if is_plain:
            return state
        gate.check_plain(state, free=("reason", "elsewhere", "lost"))
    except ValueError as error:
        raise ValueError(f"it describes no state of a job: {error}") from None
    return gate.cleaned(state)


def summary_from(values: Any, is_plain: bool) -> Summary:
    """Return what a state says of its job; with `is_plain` none of its texts steers a terminal."""
    try:
        if not isinstance(values, dict):
            raise ValueError("it is no JSON object")
        group = Group.parse(values.get("group", ""))
        summary = gate.build(Summary, {**values, "group": group})
        check_summary(summary)
        if is_plain:
            return summary
        gate.check_plain(summary, free=("cmd",))
    except (ValueError, BergError) as error:
        raise ValueError(f"its job is odd: {error}") from None
    return gate.cleaned(summary, free=("cmd",))


def check_summary(summary: Summary) -> None:
    """Raise ValueError or BergError for what no job is like."""
    if summary.results_dir:
        check_results_dir(summary.results_dir)
    if summary.sweep:
        check_name(summary.sweep)
    numbers = (summary.machines, summary.secrets, summary.max_run_seconds)
    if min(*numbers, *summary.rates.values()) < 0:
        raise ValueError("a number is below zero")
    if summary.machines > MOST_MACHINES or max(summary.rates.values(), default=0) > MOST_RATE:
        raise ValueError("its cost is beyond any machine's")


def check_state(state: State) -> None:
    """Raise ValueError for what no state is like."""
    if state.state not in (*ACTIVE, STOPPED, *FINAL):
        raise ValueError(f"{state.state!r} is no state")
    if any(len(change) != 2 for change in state.history):
        raise ValueError("its history is odd")
    if any(len(each) != 3 for each in state.attempts):
        raise ValueError("its attempts are odd")
    for time in (state.started_at, state.finished_at, state.missing_since):
        gate.check_time(time)
    gate.check_resource(state.machine)
    gate.check_resource(state.zone)
    for name, since in state.undeleted.items():
        gate.check_resource(name)
        gate.check_time(since)


def metadata_path(name: str) -> str:
    return f".berg/jobs/{name}_metadata.json"


def state_path(name: str) -> str:
    return f".berg/jobs/{name}_state.json"


def name_of(path: str) -> str:
    """The job of a `state_path`."""
    return path.removeprefix(".berg/jobs/").removesuffix("_state.json")


def sweep_path(name: str) -> str:
    return f".berg/sweeps/{name}.json"


def machine_names(name: str, num_machines: int) -> list[str]:
    """Names of a job's machines: the job's own for one, NAME-0 … with zeros in front for more."""
    width = len(str(num_machines - 1))
    return (
        [name] if num_machines == 1 else [f"{name}-{rank:0{width}}" for rank in range(num_machines)]
    )


def machines_prefix(name: str) -> str:
    """Where the machines of a job say who they are, to each other and to laptops."""
    return f".berg/machines/{name}/"


def folders_prefix(name: str) -> str:
    """Where a job records the folders below berg_results/, beside its own, that it wrote to: an
    object each.
    """
    return f".berg/folders/{name}/"


def log_prefix(name: str) -> str:
    return f".berg/logs/{name}/"


def now() -> str:
    return timestamp(datetime.now(timezone.utc))


def timestamp(moment: datetime) -> str:
    """Return a moment as berg writes all of them: 2026-01-31T23:59:59Z."""
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def age_seconds(timestamp: str) -> float:
    then = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    return (datetime.now(timezone.utc) - then).total_seconds()


def new_name(repo_name: str) -> str:
    """A name for a job that got none: the repo, the minute, and three characters against
    collisions.
    """
    slug = (
        re.sub(r"^[^a-z]+", "", re.sub(r"[^a-z0-9]+", "-", repo_name.lower()))
        .strip("-")[:40]
        .strip("-")
    )
    unique = "".join(secrets.choice("bcdfghjkmnpqrstvwxz23456789") for _ in range(3))
    return f"{slug or 'job'}-{datetime.now().strftime('%m%d-%H%M')}-{unique}"


def check_name(name: str) -> str:
    """Return a name; raise BergError if no job can have it."""
    if NAME.fullmatch(name):
        return name
    why = "longer than 63 characters" if len(name) > 63 else "not a name that Compute Engine takes"
    raise BergError(
        f"{name!r} is {why}: use lower-case letters, digits and dashes, beginning with a letter, "
        "for example: berg run -n bs-256"
    )


@dataclass
class Machine:
    """A machine as the place that it is in tells of it. The words of its status are Compute
    Engine's.
    """

    name: str
    zone: str
    status: str = ""
    id: str = ""  # tells it from an earlier one of its name
    labels: dict[str, str] = field(default_factory=dict)
    created_at: str = ""
    external_ip: str = ""
    internal_ip: str = ""
    gpus: str = ""  # such as 4 x p100
    machine_type: str = ""
    model: str = "STANDARD"  # how it is paid for, in the API's words
    disk_gb: int = 0  # of all of its disks
    account: str = ""  # that it acts as
    place: str = "gce"
    pod: str = ""  # its name in Kubernetes, where it is a pod
    note: str = ""  # what it waits for, in words
    is_crash_looping: bool = False  # those before it ended in the same way before they began
    is_queued: bool = False  # its cluster holds it back until it is its turn
    silence: str = ""  # that the node it is on does not answer, in words


@dataclass
class Login:
    """How to log in to a machine, in its own words."""

    rank: int
    port: int  # of its ssh server; 0: it runs none
    host_keys: list[str]


@dataclass
class Resource:
    """What a place has for jobs beside machines, such as a disk."""

    kind: str
    name: str
    where: str  # zone or region; "": everywhere
    created_at: str
    why: str  # why nobody needs it; "": as long as its job is not over
    user: str = ""  # "": shared
    disk_type: str = ""  # of a disk
    gb: int = 0  # of a disk
    place: str = "gce"

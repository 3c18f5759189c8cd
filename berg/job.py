"""The job: the contract between the laptop that submits it and the machine that runs it.

Objects in the bucket:
    .berg/jobs/<job>_metadata.json      what to run; replaced if a sweep resumes with new code
    .berg/jobs/<job>_state.json         its state, also as the object's custom metadata
    .berg/logs/<job>/<machine>.<time>.log           what a machine printed
    .berg/logs/<job>/<machine>.<time>.usage.jsonl   how busy it was (machine/usage.py)
    .berg/folders/<job>/…               other results folders that it wrote to (google/mirror.py)
    .berg/views/<job>/<disk>/…          its results as they were at a moment (google/views.py)
    .berg/index/…                       jobs that may be alive, and the newest (laptop/index.py)
    .berg/owners/<results_dir>/owner    the job that has this results dir (laptop/lookup.py)
    .berg/sweeps/<sweep>.json           a sweep's jobs and the hashes of their metadata (states.py)
    berg_results/<results_dir>/…        its results
"""

import json
import math
import re
import secrets
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from berg import BergError, validation
from berg.spec import JobSpec

VERSION = 1
ACTIVE = ("SUBMITTED", "STARTING", "INSTALLING", "RUNNING", "UPLOADING")
FINAL = ("SUCCEEDED", "FAILED", "KILLED", "LOST")
STOPPED = "STOPPED"  # of a devbox: its machine is off, and keeps its disk
TOO_LATE = "not all of its pods or machines were up within --queue-timeout"
REPAIR_SECONDS = 900  # for which machines of a slice may be silent while Google repairs it
# No job has more: USD for an hour of one machine, and machines.
MOST_RATE, MOST_MACHINES = 10_000, 100_000
# A state must fit into an object's custom metadata, of which Cloud Storage takes 8 KiB: in bytes,
# its attempts and the characters of why each began, and its changes.
MAX_STATE, ATTEMPTS, WHY, HISTORY = 8000, 10, 150, 30
SHELL = ["bash", "-o", "pipefail", "-c"]
HOSTED = "berg-hosted"  # metadata of a devbox: a JSON object, see `hosted`
CLAIM = "berg-claim"  # in it: the claim of the job's state
USAGE = ".usage.jsonl"  # suffix of the file next to the log with samples of the machine
METRICS = "custom.googleapis.com/berg/"  # that machines write to Cloud Monitoring
SOFTWARE = ".software.json"  # suffix of the file next to the log with the software of an attempt
# A job's name is its machine's name, so that Compute Engine must accept it.
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Group:
    """What re-creates lost machines of a job: one of the two, or nothing."""

    region: str = ""  # of the instance group
    cluster: str = ""  # LOCATION/NAME of the cluster

    @classmethod
    def parse(cls, text: Any) -> "Group":
        """Return the group that a record names; raise ValueError for an invalid one."""
        if not isinstance(text, str):
            raise ValueError(f"group is {str(text)[:40]!r}")
        validation.check_resource(text)
        return cls(cluster=text) if "/" in text else cls(region=text)

    def __str__(self) -> str:
        return self.region or self.cluster

    def __bool__(self) -> bool:
        return bool(str(self))


NO_GROUP = Group()


@dataclass(frozen=True)
class Installation:
    """What a machine installs before the command, decided on the laptop by code/installation.py.

    Where `venv` is set, the machine first makes that virtual environment with uv (next to uv.lock,
    if there is one), then runs the install script with it on PATH, then the steps. A step is a list
    of arguments that runs in `folder`; `python` in it is the environment's. Only the user's own
    --install "COMMAND" is a shell's.
    """

    words: str = ""  # of the plan: one line
    notes: list[str] = field(default_factory=list)  # more lines of the plan
    folder: str = ""  # of the repo, relative to its root, where the steps run; "": the root
    # path of the virtual environment from the root of the repo, such as .venv or sub/.venv;
    # "": the image's python is used
    venv: str = ""
    steps: list[list[str]] = field(default_factory=list)
    may_fail: list[int] = field(default_factory=list)  # indexes of steps that may fail
    # set UV_NO_SYNC=1: `uv run` would drop the extras and groups that berg chose, or lock again
    # with other settings
    no_sync: bool = False
    needs_uv: bool = False  # a step runs uv, or the environment is made by it
    # how to install packages of the repo that are not installed -> their names
    others: dict[str, list[str]] = field(default_factory=dict)
    # of the virtual environment, such as 3.11 (uv venv --python); "": the one that uv chooses
    python: str = ""

    def summary(self) -> dict[str, Any]:
        """Return the `install` object of --json."""
        return {"what": self.words, "notes": self.notes, "folder": self.folder, "steps": self.steps}

    def environment(self, repo: str) -> str:
        """Return the name of the folder of a repo's virtual environment."""
        return "-".join([repo, *self.venv.split("/")[:-1]])

    def validate(self) -> None:
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
    # job that had this results dir before: the first attempt begins with its files; "": none had it
    begins_with: str = ""
    git_dirty: bool = False
    git_changed_files: list[str] = field(default_factory=list)
    snapshot: dict[str, Any] = field(default_factory=dict)
    installation: Installation = field(default_factory=Installation)
    install_secrets: list[str] = field(default_factory=list)  # names; for the installation alone
    env: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    notify: bool = False  # its secrets hold the URL of a webhook to call at its end
    # name, path, files, bytes, checksum of each data set
    data: list[dict[str, Any]] = field(default_factory=list)
    # name, path, bucket, prefix, files, bytes of each mounted folder of a bucket
    mounts: list[dict[str, Any]] = field(default_factory=list)
    gcsfuse: str = ""  # the program that mounts them, by its name in .berg/dist
    place: str = "gce"  # a module of places.py
    kind: str = "job"  # or devbox: without a command; or image
    stops_when_idle: bool = False  # a devbox stops and keeps its disk; else it deletes itself
    # of a devbox: its disk stays, unless berg kill, berg reap or --idle delete ended it
    keeps_disk: bool = False
    num_machines: int = 1
    gpus_per_machine: int = 0
    gpu_type: str = ""
    tpu: str = ""  # FAMILY-TOPOLOGY of its TPUs, or a machine type
    machine_type: str = ""
    image: str = ""
    docker: str = ""  # image of the container that its command runs in; "": without one
    run_on: str = "first"  # or each
    marked_seconds: int = 900  # of idle accelerators, after which lists mark a machine
    hang_seconds: int = 1200  # without a step, after which a job seems to hang, at least
    silence_seconds: int = 180  # after which the other machines give a silent one up
    upload_timeout: int = 3600  # seconds without progress of the upload of the last results
    max_run_seconds: int = 0
    # region -> USD for an hour of one of its machines, by the price list at the submit
    rates: dict[str, float] = field(default_factory=dict)
    on: str = ""  # devbox that it runs on, next to people; "": machines of its own
    sweep: str = ""  # that it is a job of; "": none
    params: dict[str, str] = field(default_factory=dict)  # of a sweep's job: placeholder -> value
    group: Group = NO_GROUP
    regions: list[str] = field(default_factory=list)  # with a group each, until one has capacity
    # the key that signs messages between its machines is in Secret Manager
    sealed: bool = False
    monitoring: int = 0  # 1: its machines write metrics to Cloud Monitoring
    spec: JobSpec = field(default_factory=JobSpec)  # the options, as JobSpec.recorded returns them
    created_at: str = ""
    created_by: str = ""
    berg_version: str = ""
    version: int = VERSION

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "group": str(self.group)}, indent=2, ensure_ascii=False)

    def validate(self) -> None:
        """Raise ValueError or BergError for what no machine can run."""
        validation.check_bounds(self)
        for name in filter(None, (self.begins_with, self.on)):
            check_name(name)
        check_snapshot(self.snapshot)
        self.to_json().encode()  # JSON has halves of letters, which UTF-8 has not

    @property
    def fresh(self) -> bool:
        """Whether it begins with an empty folder: nothing that is in the bucket is restored."""
        return self.spec.fresh

    @property
    def shell(self) -> list[str]:
        """The program that runs the command, which is its last argument."""
        return ["bash", "-c"] if self.spec.no_pipefail else SHELL

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
        """Whether Google starts its machines again, with their disks, after host maintenance: a
        single machine, or all machines of an on-demand TPU slice together.
        """
        is_slice = self.place == "tpu" and not (self.spec.spot or self.spec.flex)
        return (self.num_machines == 1 or is_slice) and not (self.sweep or self.group or self.on)

    @property
    def longest_silence(self) -> int:
        """Seconds without a message, after which the other machines give one up. Google may take
        330 to find that the host of a slice has failed, before it restarts all of them.
        """
        if self.num_machines > 1 and self.is_restarted:
            return max(self.silence_seconds, REPAIR_SECONDS)
        return self.silence_seconds

    @property
    def is_kept(self) -> bool:
        """Whether its group re-creates lost machines: with flex-start none does."""
        return self.kind == "job" and bool(self.group) and not self.spec.flex

    @property
    def is_replaced(self) -> bool:
        """Whether each of its several machines is re-created when it is lost, and the others wait
        for it: not on a TPU slice of Compute Engine.
        """
        return self.num_machines > 1 and self.is_kept and self.place != "tpu"

    @property
    def has_secret(self) -> bool:
        """Whether Secret Manager has something of it."""
        return bool(self.secrets or self.install_secrets or self.notify or self.sealed)

    def summary(self) -> "Summary":
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
            on=self.on,
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
    """Job fields copied into the state, so that listing needs no second read."""

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
    kept: bool = False  # --no-kill
    group: Group = NO_GROUP
    on: str = ""  # as Job.on
    sweep: str = ""
    params: dict[str, str] = field(default_factory=dict)
    secrets: int = 0  # their number
    gpus: str = ""  # such as 8 x h100; or its TPUs
    wait_seconds: int = 0  # --queue-timeout
    rates: dict[str, float] = field(default_factory=dict)
    max_run_seconds: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as it is in the bucket: a job without a sweep has no keys for one."""
        values = {**asdict(self), "group": str(self.group)}
        if not self.sweep:
            del values["sweep"], values["params"]
        return values

    def validate(self) -> None:
        """Raise ValueError or BergError for what no job has."""
        if self.results_dir:
            validation.check_results_dir(self.results_dir)
        for name in filter(None, (self.sweep, self.on)):
            check_name(name)
        numbers = (self.machines, self.secrets, self.max_run_seconds)
        if min(*numbers, *self.rates.values()) < 0:
            raise ValueError("a number is below zero")
        if self.machines > MOST_MACHINES or max(self.rates.values(), default=0) > MOST_RATE:
            raise ValueError("its cost is beyond any machine's")


def from_json(data: bytes, name: str) -> Job:
    """Return the job in `data`; raise BergError if it is damaged or was written by a newer berg."""
    try:
        job = validation.from_dict(Job, validation.parse(data))
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
    """Raise ValueError for an invalid commit, also of a submodule."""
    commit = str(snapshot.get("commit")) if isinstance(snapshot, dict) else ""
    if not validation.COMMIT.fullmatch(commit):
        raise ValueError("it does not describe a commit")
    lists = [snapshot.get("packs", []), snapshot.get("shallow", []), snapshot.get("cut") or []]
    if not validation.fits(lists, list[list[str]]):
        raise ValueError("its packs are odd")
    submodules = snapshot.get("submodules", {})
    if not isinstance(submodules, dict):
        raise ValueError("its submodules are odd")
    for each in submodules.values():
        check_snapshot(each)


@dataclass
class State:
    """The state of a job. Its worker alone writes RUNNING and later; readers conclude LOST."""

    state: str = "SUBMITTED"
    exit_code: int | None = None
    reason: str = ""
    attempt: int = 1
    # [number, start, why the one before ended] of all but the first; the newest ATTEMPTS
    attempts: list[list[str]] = field(default_factory=list)
    missing: int = 0  # machines that the others wait for
    missing_since: str = ""
    restarts: int = 0  # attempts that began because a machine was lost
    failures: int = 0  # attempts that began because the command failed
    ran_seconds: int = 0  # in all attempts together
    ending: str = ""  # while UPLOADING: the final state to come
    uploading_since: str = ""
    left_files: int = 0  # while UPLOADING: what is not in the bucket yet
    left_bytes: int = 0
    idle: dict[str, str] = field(default_factory=dict)  # machine with idle accelerators -> start
    hang: str = ""  # why it seems to hang, and what its ranks do, in words
    hang_at: str = ""  # since when that is known, which names the autopsy among its results
    # step at which it was compared with its sweep -> its value there; less is better
    rungs: dict[str, float] = field(default_factory=dict)
    # machine that could not delete itself -> time of its last report
    undeleted: dict[str, str] = field(default_factory=dict)
    network: str = ""  # what was measured between its machines, in words
    replaced: str = ""  # machine that was replaced because its network was slow; there is only one
    elsewhere: str = ""  # other folders under berg_results that it wrote to, in words
    # whose machines stay for a while after its end, until then (--keep-failed, --keep-warm)
    kept_until: str = ""
    is_warm: bool = False  # they wait for another job
    checkout: str = ""  # what was saved of the new files in the checkout, in words
    lost: str = ""  # what an attempt could not upload, in words
    machine: str = ""
    zone: str = ""
    started_at: str = ""  # of the first attempt
    finished_at: str = ""
    synced_until: str = ""
    history: list[list[str]] = field(default_factory=list)  # [state, start]; the newest HISTORY
    job: Summary = field(default_factory=Summary)
    removed_by: str = ""  # user who began to delete the job: it does not run again
    claim: str = ""  # random, of the submit: tells two submits of the same job apart

    @property
    def final(self) -> bool:
        return self.state in FINAL

    @property
    def kept_seconds(self) -> float:
        """Seconds for which its machines are still kept; 0 if they are not."""
        return max(-age_seconds(self.kept_until), 0) if self.final and self.kept_until else 0

    def next_attempt(self, why: str) -> dict[str, Any]:
        """Return the fields of another attempt that begins now; `why` the last one ended."""
        number = self.attempt + 1
        begun = [str(number), now(), cut(why, WHY)]
        return {"attempt": number, "attempts": [*self.attempts, begun][-ATTEMPTS:]}

    def note(self) -> None:
        """Add a new state to the history: it begins now."""
        if not self.history or self.history[-1][0] != self.state:
            self.history = [*self.history, [self.state, now()]][-HISTORY:]

    def to_json(self) -> str:
        """Return it as JSON that fits into an object's custom metadata; long texts are cut."""
        self.note()
        text = self._as_text()
        for room in (1000, 300, 100, 30):
            if len(text) <= MAX_STATE:
                break
            text = self._shortened(room)._as_text()
        return text

    def validate(self) -> None:
        """Raise ValueError for what no worker writes."""
        if self.state not in (*ACTIVE, STOPPED, *FINAL):
            raise ValueError(f"{self.state!r} is no state")
        if any(len(change) != 2 for change in self.history):
            raise ValueError("its history is odd")
        if any(len(each) != 3 for each in self.attempts):
            raise ValueError("its attempts are odd")
        for name in (self.machine, self.zone, *self.undeleted):
            validation.check_resource(name)
        times = (
            self.started_at,
            self.finished_at,
            self.missing_since,
            self.kept_until,
            self.hang_at,
        )
        for each in (*times, *self.undeleted.values()):
            validation.check_time(each)

    def _as_text(self) -> str:
        return json.dumps({**asdict(self), "job": self.job.to_dict()})

    def _shortened(self, room: int) -> "State":
        """Return it with texts of at most `room` characters."""
        some = list(self.job.params)[: room // 10]
        params = {cut(key, room): cut(self.job.params[key], room) for key in some}
        summary = replace(self.job, cmd=cut(self.job.cmd, room), params=params)
        newest = self.attempts[-max(room // 100, 1) :]
        attempts = [[cut(word, room) for word in each] for each in newest]
        return replace(
            self,
            reason=cut(self.reason, room),
            hang=cut(self.hang, room),
            attempts=attempts,
            job=summary,
        )


def cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def state_from_json(data: str | bytes) -> State:
    """Return the state in `data`; raise ValueError for anything else."""
    try:
        state = validation.from_dict(State, validation.parse(data))
        if validation.is_plain(data):  # none of its texts steers a terminal
            return state
        validation.check_plain(
            state, free=("reason", "hang", "network", "elsewhere", "checkout", "lost")
        )
        validation.check_plain(state.job, free=("cmd",))
    except (ValueError, BergError) as error:
        raise ValueError(f"it describes no state of a job: {error}") from None
    return validation.cleaned(replace(state, job=validation.cleaned(state.job, free=("cmd",))))


def metadata_path(name: str) -> str:
    return f".berg/jobs/{name}_metadata.json"


def state_path(name: str) -> str:
    return f".berg/jobs/{name}_state.json"


def name_of(path: str) -> str:
    """Return the job of a `state_path`."""
    return path.removeprefix(".berg/jobs/").removesuffix("_state.json")


def sweep_path(name: str) -> str:
    return f".berg/sweeps/{name}.json"


def machine_names(name: str, num_machines: int) -> list[str]:
    """Return the names of a job's machines: the job's own for one, else NAME-0 …, zero-padded."""
    if num_machines == 1:
        return [name]
    width = len(str(num_machines - 1))
    return [f"{name}-{rank:0{width}}" for rank in range(num_machines)]


def names_beside(machine: str, num_machines: int) -> list[str]:
    """Return the names of so many machines, by rank, that were created together with this one.

    They keep them when another job takes them (--keep-warm).
    """
    return machine_names(machine.rpartition("-")[0] if num_machines > 1 else machine, num_machines)


def machines_prefix(name: str) -> str:
    """Return where the machines of a job write their records for each other and for laptops."""
    return f".berg/machines/{name}/"


def folders_prefix(name: str) -> str:
    """Return where a job records the other folders below berg_results/ that it wrote to, an object
    for each.
    """
    return f".berg/folders/{name}/"


def views_prefix(name: str) -> str:
    """Return where the machines of a job write the views of its results."""
    return f".berg/views/{name}/"


def log_prefix(name: str) -> str:
    return f".berg/logs/{name}/"


clock_is_behind = 0.0  # seconds, compared with Google's


def clock() -> float:
    """Return seconds since 1970 by Google's clock, as of its last answer."""
    return time.time() + clock_is_behind


def now() -> str:
    return timestamp(clock())


def after(seconds: float) -> str:
    """Return the time in so many seconds."""
    return timestamp(clock() + seconds)


def timestamp(seconds: float) -> str:
    """Return a moment, in seconds since 1970, as berg writes all of them: 2026-01-31T23:59:59Z."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def time_of(timestamp: str) -> datetime:
    """Return the time in a timestamp of RFC 3339."""
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00"))


def age_seconds(timestamp: str) -> float:
    return clock() - time_of(timestamp).timestamp()


def hosted(attributes: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return the jobs that a devbox was given, with what its metadata would say of machines of
    their own.
    """
    try:
        found = json.loads(attributes.get(HOSTED) or "{}")
        return {str(name): {**facts} for name, facts in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def new_name(repo_name: str) -> str:
    """Return a name for a job without one: the repo, the minute, and three random characters."""
    slug = re.sub(r"^[^a-z]+", "", re.sub(r"[^a-z0-9]+", "-", repo_name.lower()))
    slug = slug.strip("-")[:40].strip("-")
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
    """A machine, as its place lists it. Its status has Compute Engine's words."""

    name: str
    zone: str
    status: str = ""
    id: str = ""  # differs from that of an earlier machine of its name
    labels: dict[str, str] = field(default_factory=dict)
    created_at: str = ""
    external_ip: str = ""
    internal_ip: str = ""
    gpus: str = ""  # such as 4 x p100
    machine_type: str = ""
    model: str = "STANDARD"  # how it is paid for, in the API's words
    disk_gb: int = 0  # of all of its disks but local SSDs
    local_ssds: int = 0
    account: str = ""  # that it acts as
    place: str = "gce"
    pod: str = ""  # its name in Kubernetes, if it is a pod
    note: str = ""  # what it waits for, in words
    is_crash_looping: bool = False  # those before it ended in the same way before they began
    is_queued: bool = False  # its cluster delays it until it has quota
    silence: str = ""  # that its node does not answer, in words


@dataclass
class Login:
    """What a machine writes about its ssh server."""

    rank: int
    port: int  # 0: it runs none
    host_keys: list[str]


@dataclass
class Resource:
    """What a place has for jobs besides machines, such as a disk."""

    kind: str
    name: str
    where: str  # zone or region; "": everywhere
    created_at: str
    why: str  # why no job needs it; "": its job is not over
    user: str = ""  # "": shared
    disk_type: str = ""  # of a disk
    gb: int = 0  # of a disk
    place: str = "gce"


@dataclass(frozen=True)
class Owner:
    """The job that has a results folder, or the sweep whose jobs have its numbered subfolders.

    Only laptops write it. A submit writes the owner, then the state, and then looks whether another
    job has the folder too: of two submits at the same time at least one sees the other.
    """

    folder: str
    name: str
    before: str = ""  # the last job or sweep that began in the folder before; "": none
    generation: int = 0  # of its object; 0: there is none
    claim: str = ""  # of the submit that wrote it
    replaces: str = ""  # of one that is to be written: the owner at that generation

"""The contract between laptop and machine: a job, its state, and where both are in the bucket.

.berg/dist/                          what machines need of Berg
.berg/repos/<repo>/                  code, as packs of git's
.berg/jobs/<job>_metadata.json       the job; its hash is in the metadata of its machines
.berg/jobs/<job>_state.json          its state
.berg/machines/<job>/                its machines: rank, phase, host keys
.berg/rows/<job>/<number>.json       states of a sweep's rows
.berg/moments/<job>/                 its results as they were at moments, and what these keep
.berg/logs/<job>/                    <machine>.<time>.log, and .usage.jsonl: samples
berg_results/<results>/              the results
"""

import contextlib
import hashlib
import json
import re
import secrets
import typing
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from types import UnionType
from typing import Any, TypeVar

from berg import BergError
from berg.bucket import Bucket, Changed, Object

SUBMITTED, STARTING, INSTALLING = "SUBMITTED", "STARTING", "INSTALLING"
RUNNING, UPLOADING = "RUNNING", "UPLOADING"
STOPPED = "STOPPED"  # a devbox that is off
SUCCEEDED, FAILED, KILLED, LOST = "SUCCEEDED", "FAILED", "KILLED", "LOST"
FINAL = (SUCCEEDED, FAILED, KILLED, LOST)
NAME = re.compile(r"[a-z]([a-z0-9-]{0,56}[a-z0-9])?")
RESULTS = "/root/berg_results"
OBEYED = {".git", ".hg", ".svn"}  # programs on a laptop would obey what is below
JOBS = ".berg/jobs/"
STATE_ENDING = "_state.json"  # of the object with a job's state
ROWS = ".berg/rows/"
OF_JOBS = (".berg/logs/", ".berg/machines/", ".berg/moments/")  # below each: folders of jobs
SILENT = 300  # seconds without a machine and without a new state, after which a job is LOST
BEAT = 180  # seconds without a word, after which a machine that waits is gone

Record = TypeVar("Record", bound="Job | State")


def now(seconds: float | None = None) -> str:
    """A time as records have it, of so many seconds since 1970."""
    time = datetime.fromtimestamp(seconds, timezone.utc) if seconds else datetime.now(timezone.utc)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def datetime_of(time: str) -> datetime:
    """A time of a record; raise ValueError for one without its time zone."""
    at = datetime.fromisoformat(time.replace("Z", "+00:00"))
    if at.tzinfo is None:
        raise ValueError(f"the time {time} has no time zone")
    return at


def age(time: str) -> float:
    """Seconds since a time, by this computer's clock."""
    return (datetime.now(timezone.utc) - datetime_of(time)).total_seconds()


@dataclass
class Job:
    """What was submitted. Nobody changes it afterwards."""

    name: str
    cmd: str  # "": a devbox
    repo: str
    code: dict[str, Any]  # see berg/code.py
    results: str  # below berg_results/
    cwd: str = "."  # in the repository
    install: str = ""  # the user's own command; "": what the repository says
    env: dict[str, str] = field(default_factory=dict)
    machines: int = 1
    each: bool = False  # the command runs on all machines, not on the first alone
    gpus: int = 0  # of each machine
    gpu_type: str = ""
    machine_type: str = ""
    image: str = ""
    max_seconds: int = 0  # of the machine
    user: str = ""
    created_at: str = ""
    returns: bool = False  # Google makes its machines again when it took them
    rows: list[dict[str, str]] = field(default_factory=list)  # of a sweep: values for its command
    options: dict[str, Any] = field(default_factory=dict)  # as given, for `berg rerun`
    features: dict[str, dict[str, Any]] = field(default_factory=dict)
    id: str = field(default_factory=lambda: secrets.token_hex(8))  # no two submits are the same

    @property
    def is_devbox(self) -> bool:
        return not self.cmd

    @property
    def machine_names(self) -> list[str]:
        if self.machines == 1:
            return [self.name]
        return [f"{self.name}-{rank}" for rank in range(self.machines)]

    def content(self) -> bytes:
        return json.dumps(asdict(self), indent=1, sort_keys=True).encode()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content()).hexdigest()


@dataclass
class State:
    """How far a job is. Only its first machine writes it, and a laptop before and after that."""

    name: str
    state: str = SUBMITTED
    user: str = ""
    note: str = ""  # the user's own
    results: str = ""
    is_devbox: bool = False
    returns: bool = False
    machines: int = 1
    gpus: str = ""  # in words
    rate: float | None = None  # USD an hour of each machine; None: unknown
    seconds_before: float = 0.0  # of its machines in earlier attempts
    id: str = ""  # of the job
    created_at: str = ""
    attempt: int = 1
    reason: str = ""
    exit_code: int | None = None
    machine: str = ""
    machine_id: str = ""
    zone: str = ""
    times: dict[str, str] = field(default_factory=dict)  # of the last attempt, by state
    missing: dict[str, str] = field(default_factory=dict)  # results that the bucket lacks, and why
    synced_until: str = ""  # what was there by then is in the bucket
    kept_until: str = ""  # its machine waits until then, after its end

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def changed_at(self) -> str:
        return self.times[self.state]

    @property
    def seconds(self) -> float:
        """How long its machines have worked in all attempts, until its end or now."""
        if not (began := self.times.get(STARTING) or self.times.get(RUNNING)):
            return self.seconds_before
        over = [time for step, time in self.times.items() if step in (STOPPED, *FINAL)]
        if self.times.get(SUBMITTED, "") > began:  # it waits for its next attempt
            over.append(self.times[SUBMITTED])
        end = age(max(min(over), self.synced_until)) if over else 0.0
        if over and self.kept_until:  # one that waits says every minute that it is there
            end = min(end, max(age(self.kept_until), end - BEAT))
        return self.seconds_before + max(0.0, age(began) - max(0.0, end))

    @property
    def waits(self) -> float:
        """Seconds for which its machine still waits, after its end."""
        return max(0.0, -age(self.kept_until)) if self.kept_until else 0.0

    @property
    def usd_per_hour(self) -> float | None:
        return None if self.rate is None else self.rate * self.machines

    @property
    def usd(self) -> float | None:
        """What it has cost so far, about; None: unknown."""
        hourly = self.usd_per_hour
        return None if hourly is None else round(hourly * self.seconds / 3600, 4)

    def content(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def about(self) -> dict[str, str]:
        """What a list of jobs needs, as metadata of the object: so one request lists a thousand."""
        values = {key: value for key, value in asdict(self).items() if key != "missing"}
        return {"state": json.dumps(values | {"reason": self.reason[:300]})}


def job_path(name: str) -> str:
    return f"{JOBS}{name}_metadata.json"


def state_path(name: str) -> str:
    """Where the state of a job is, or of a row of a sweep: SWEEP/NUMBER."""
    return f"{rows_prefix(name)[:-1]}.json" if "/" in name else f"{JOBS}{name}{STATE_ENDING}"


def rows_prefix(name: str) -> str:
    return f"{ROWS}{name}/"


def login_file(name: str, machine_id: str) -> str:
    """Where a machine has the variables of a job's command for logins: in memory, as secrets are among them."""
    return f"/dev/shm/berg-{machine_id}-{name.partition('/')[0]}.sh"


def log_prefix(name: str) -> str:
    return f".berg/logs/{name}/"


def machines_prefix(name: str) -> str:
    return f".berg/machines/{name}/"


def moments_prefix(name: str) -> str:
    return f".berg/moments/{name}/at/"


def kept_prefix(name: str) -> str:
    return f".berg/moments/{name}/kept/"


def parts_prefix(name: str) -> str:
    return f".berg/moments/{name}/parts/"


def results_prefix(results: str) -> str:
    return f"berg_results/{results}/"


def check_name(name: str, what: str = "a job's name") -> str:
    """The name, if Google takes it for machines."""
    if not NAME.fullmatch(name):
        raise BergError(
            f"{name!r} is not {what}: at most 58 lower-case letters, digits and dashes, and a "
            "letter first. Choose another one: -n NAME"
        )
    return name


def is_name(name: str) -> bool:
    """Whether a job, or a row of a sweep, may have this name."""
    return bool(NAME.fullmatch(re.sub(r"/\d+$", "", name)))


def new_name(repo: str) -> str:
    base = re.sub(r"[^a-z0-9]+", "-", repo.lower()).strip("-")[:40].strip("-")
    base = base if base[:1].isalpha() else f"job-{base}".strip("-")
    return f"{base}-{datetime.now().strftime('%m%d-%H%M%S')}-{secrets.token_hex(1)}"


def check_results(folder: str) -> str:
    """The path of a results folder below berg_results/, without slashes around it."""
    folder = folder.removeprefix(RESULTS).strip("/")
    wrong = {"", ".", "..", *OBEYED}
    if not folder.isprintable() or wrong & {part.lower() for part in folder.split("/")}:
        raise BergError(f"{folder!r} is no folder below {RESULTS}. Name one: -r sweep1/bs_256")
    return folder


def results_of(cmd: str) -> str:
    """The folder that a command names behind berg_results/, up to a variable; "" if none."""
    named = re.search(r"berg_results/([\w./-]*[\w-])(?=$|[\s'\"/=;,&|>)])", cmd)
    return named[1].strip("/") if named else ""


# --- reading: records come from a bucket that others may write


# The types of fields; thousands of records have the same.
HINTS: dict[Any, dict[str, Any]] = {kind: typing.get_type_hints(kind) for kind in (Job, State)}
# Types that need no look inside the value; `fits` knows the others.
TYPES: dict[Any, dict[str, tuple[Any, ...]]] = {
    kind: {
        key: (hint, *typing.get_args(hint)) if typing.get_origin(hint) is UnionType else (hint,)
        for key, hint in hints.items()
    }
    for kind, hints in HINTS.items()
}


def parse(kind: type[Record], content: bytes | str, name: str) -> Record:
    """A record, if its fields have their types; raise BergError that names the object."""
    try:
        values = json.loads(content)
        hints, types = HINTS[kind], TYPES[kind]
        known = {key: values[key] for key in hints if key in values}
        odd = [key for key, value in known.items() if type(value) not in types[key]]
        wrong = [key for key in odd if not fits(known[key], hints[key])]
        if wrong:
            raise ValueError(f"{wrong[0]} is {known[wrong[0]]!r}")
        record = kind(**known)
        check_name(re.sub(r"/\d+$", "", record.name))
        check_results(record.results)
        if isinstance(record, Job) and not all(
            fits(record.code.get(key), hint)
            for key, hint in (("head", str), ("commit", str), ("changed", list[str]))
        ):
            raise ValueError(f"its code is {record.code!r}")
        if isinstance(record, State):
            optional = {*filter(None, (record.synced_until, record.kept_until))}
            for time in {record.created_at, record.changed_at, *record.times.values()} | optional:
                datetime_of(time)
        return record
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, BergError) as error:
        raise BergError(
            f"{name} is no record of Berg's ({error}). See it: gcloud storage cat"
        ) from None


def fits(value: Any, hint: Any) -> bool:
    """Whether a value of JSON has the type of a field."""
    if type(value) is hint or hint is Any:
        return True
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        return isinstance(value, dict) and all(
            fits(inner, arguments[1]) for inner in value.values()
        )
    if origin is list:
        return isinstance(value, list) and all(fits(inner, arguments[0]) for inner in value)
    return any(fits(value, inner) for inner in arguments)


def read_job(bucket: Bucket, name: str, sha256: str = "") -> Job:
    """A job; with `sha256` only the very one that was submitted."""
    path = job_path(re.sub(r"/\d+$", "", name))
    content = bucket.find(path) if is_name(name) else None
    if content is None:
        raise BergError(f"there is no job {name!r}. See them: berg list -a")
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise BergError(f"{path} is not what was submitted: nothing of it was run. Submit it again")
    return parse(Job, content, path)


def read_state(bucket: Bucket, name: str) -> tuple[State, int]:
    """A job's state and its generation."""
    found = bucket.find_with_generation(state_path(name)) if is_name(name) else None
    if found is None:
        raise BergError(f"there is no job {name!r}. See them: berg list -a")
    return parse(State, found[0], state_path(name)), found[1]


def states(bucket: Bucket, begun: str = "") -> list[State]:
    """The states of all jobs by their age, from one list; a record that is none is left out. With
    `begun` only those whose names begin so.
    """
    listed = bucket.list(f"{JOBS}{begun}", ending=STATE_ENDING)
    return sorted(states_of(listed), key=lambda state: state.created_at)


def writers(bucket: Bucket) -> list[State]:
    """What has a results folder: all jobs, and the rows of sweeps that have begun."""
    return states_of([*bucket.list(JOBS, ending=STATE_ENDING), *bucket.list(ROWS)])


def states_of(items: Iterable[Object]) -> list[State]:
    """The states among objects; a record that is none is left out."""
    found = []
    for item in items:
        with contextlib.suppress(BergError):
            found.append(state_of(item))
    return found


def row_states(bucket: Bucket, name: str) -> dict[int, tuple[State, int]]:
    """The states of a sweep's rows that have begun, and their generations, by number."""
    found = {}
    for item in bucket.list(rows_prefix(name)):
        try:
            state = state_of(item)
            found[int(state.name.rpartition("/")[2])] = state, item.generation
        except BergError:
            continue
    return found


def state_of(item: Object) -> State:
    state = parse(State, item.about.get("state", ""), item.name)
    if item.name != state_path(state.name):
        raise BergError(f"{item.name} names another job")
    return state


def write_state(bucket: Bucket, state: State, generation: int) -> int:
    """Replace a state; return its generation, raise Changed if another writer was faster."""
    written = bucket.write(state_path(state.name), state.content(), generation, state.about())
    return written.generation


def conclude(
    bucket: Bucket, job: Job | State, outcome: str, reason: str, code: int | None = None
) -> State:
    """Write a final state, unless the job has one, or another job has its name; return what there is."""
    while True:
        state, generation = read_state(bucket, job.name)
        if state.is_final or state.id != job.id:
            return state
        state.state, state.reason, state.exit_code = outcome, reason, code
        state.times[outcome] = now(bucket.time())
        try:
            write_state(bucket, state, generation)
            return state
        except Changed:
            continue

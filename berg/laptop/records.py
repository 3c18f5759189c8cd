"""What the bucket keeps of jobs: all about one, how two differ, and their deletion.

Code is not deleted: jobs share snapshots, and a submit sends what is missing.
"""

import contextlib
import fnmatch
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from berg import BergError, job, places, states, validation
from berg.code import snapshot
from berg.config import Config
from berg.google import events, mirror, secret, views
from berg.google.fetch import side_by_side
from berg.google.storage import Bucket, Changed, Listed
from berg.laptop import index, installing, jobs, lookup, purse
from berg.laptop.jobs import Entry
from berg.states import Stored

MOMENTS = 100  # views of a job that are shown
TAIL = 16 << 10  # bytes of a log in which its last lines are looked for
LARGEST = 1 << 20  # bytes of a software record
THREADS = 16
# Folders of .berg/ with berg's records of jobs and sweeps, under their names.
KEPT = ("jobs", "logs", "machines", "folders", "views", "tmp", "sweeps")


# --- all about one job


@dataclass
class Record:
    """All about one job."""

    entry: Entry
    job: job.Job | None  # None: it is missing or damaged
    results: list[Listed]
    deleted: list[Listed] = field(default_factory=list)  # by the job, and still in the bucket
    log: list[str] = field(default_factory=list)  # its last lines
    metrics: dict[str, Any] = field(default_factory=dict)  # the last value of each

    def to_dict(self) -> dict[str, Any]:
        files, deleted = (
            [{"path": each.name, "bytes": each.size} for each in blobs]
            for blobs in (self.results, self.deleted)
        )
        return {
            **self.entry.to_dict(),
            "install": self.job.installation.summary() if self.job else None,
            "metadata": asdict(self.job) if self.job else None,
            "results": files,
            "deleted": deleted,
            "log": self.log,
            "metrics": self.metrics,
        }


def read(config: Config, name: str, lines: int) -> Record:
    """Return all about a job, with the last lines of its log; raise BergError for a machine without
    a job.
    """
    entry, bucket = jobs.find(config, name), Bucket(config)
    state = entry.job_state
    with ThreadPoolExecutor() as pool:
        described = pool.submit(described_job, bucket, entry.name)
        log = pool.submit(last_lines, bucket, entry.name, state, lines)
        left = lookup.Results()
        if entry.stored and entry.summary.results_dir:
            left = lookup.results(bucket, replace(entry.stored, state=state))
        metrics = last_metrics(bucket, entry.summary.results_dir, left.files)
        return Record(entry, described.result(), left.files, left.deleted, log.result(), metrics)


@dataclass
class Moment:
    """A view of a job's results."""

    time: str
    state: str  # the job's at that time
    files: int
    bytes: int


def moments(config: Config, name: str) -> list[Moment]:
    """Return the newest views of a job's results, the oldest first; raise BergError without any."""
    bucket = Bucket(config)
    stored = jobs.find(config, name).stored
    histories = views.of_job(bucket, name) if stored else []
    found = []
    for at_ns in views.moments(histories)[-MOMENTS:]:
        view = views.at(histories, at_ns)
        rows = view.rows.values() if view else ()
        time = job.timestamp(at_ns / 1e9)
        before = [state for state, since in stored.state.history if since <= time] if stored else []
        size = sum(row.size for row in rows)
        found.append(Moment(time, before[-1] if before else "", len(rows), size))
    if not found:
        raise BergError(f"{name} has no views of its results. See it: berg show {name}")
    return found


@dataclass
class Deleted:
    """How many files a job deleted that are still in the bucket, and their bytes."""

    job: str
    files: int
    bytes: int


def deleted_files(config: Config, entries: Iterable[Entry]) -> list[Deleted]:
    """Return what jobs deleted that is still in the bucket: jobs that live, or ended today."""
    bucket = Bucket(config)
    ends = {each.name: each.state.finished_at for each in entries if each.state}
    recent = [name for name, end in ends.items() if not end or job.age_seconds(end) < 86400]
    found = side_by_side(lambda name: Deleted(name, *lookup.count_deleted(bucket, name)), recent)
    return [each for each in found if each.files]


def described_job(bucket: Bucket, name: str) -> job.Job | None:
    """Return a job's metadata; None if it is missing or damaged."""
    try:
        return states.read_job(bucket, name)
    except BergError:
        return None


def last_lines(bucket: Bucket, name: str, state: job.State, count: int) -> list[str]:
    """Return the last lines of the newest log; of several machines that of the first one."""
    logs = list(bucket.list(job.log_prefix(name), glob="**.log"))
    logs = [each for each in logs if f"/{state.machine}." in each.name] or logs
    if not logs or not count:
        return []
    last = max(logs, key=lambda each: str(each.updated))
    text = bucket.read_from(last.name, max(0, last.size - TAIL), last.size) or b""
    return text.decode(errors="replace").splitlines()[-count:]


def members(config: Config, names: Iterable[str]) -> list[str]:
    """Return names, each once, with the jobs of a sweep for the sweep."""
    found: list[str] = []
    for name in names:
        if states.sweep_exists(Bucket(config), name):
            listed = jobs.overview(config, None, f"{name}-")
            found += sorted(each.name for each in listed if each.sweep == name)
        else:
            found.append(name)
    return list(dict.fromkeys(found))


def code_of(config: Config, this: job.Job) -> snapshot.Snapshot:
    """Return the code that a job ran, from the bucket; raise BergError if it is not there."""
    bucket = Bucket(config)
    for pack in snapshot.all_packs(this.snapshot):
        if not bucket.exists(pack):
            raise BergError(
                f"the code of {this.job_name} is not in the bucket any more "
                f"(gs://{bucket.name}/{pack}). "
                f"Run it with your own code: berg rerun {this.job_name} --new-code"
            )
    branch, root = this.snapshot.get("branch", ""), Path(this.repo_name)
    commits, changed = (this.git_commit, this.git_snapshot), this.git_changed_files
    return snapshot.Snapshot(root, this.repo_name, branch, *commits, Path(), changed, ran=this)


@dataclass(frozen=True)
class Software:
    """What a job's last attempt ran with; what is not known is empty."""

    python: str = ""
    driver: str = ""  # of NVIDIA's GPUs
    packages: dict[str, str] = field(default_factory=dict)  # name -> version

    def facts(self) -> dict[str, str]:
        """Return it as texts by what people call them."""
        packages = {f"package {name}": self.packages[name] for name in sorted(self.packages)}
        return {"python": self.python, "driver": self.driver, **packages}


def read_software(bucket: Bucket, name: str) -> Software:
    """Return what the last attempt of a job recorded; a damaged record counts as nothing."""
    found = list(bucket.list(job.log_prefix(name), glob=f"**{job.SOFTWARE}"))
    if not found:
        return Software()
    last = max(found, key=lambda each: str(each.updated))
    data = bucket.read_from(last.name, 0, LARGEST) or b""
    try:
        return validation.cleaned(validation.from_dict(Software, validation.parse(data)))
    except ValueError:
        return Software()


# --- deletion


@dataclass
class Removal:
    """What goes when a job is deleted, or all jobs of a sweep."""

    name: str
    entries: list[Entry]
    results: list[Listed] = field(default_factory=list)
    elsewhere: list[Listed] = field(default_factory=list)  # of these, outside of its jobs' folders
    others: list[Listed] = field(default_factory=list)  # logs, and berg's records of it
    shared: dict[str, str] = field(default_factory=dict)  # results dir that stays -> its other job

    @property
    def jobs(self) -> list[str]:
        return [each.name for each in self.entries]

    @property
    def folders(self) -> list[str]:
        """The results dirs of its jobs."""
        found = dict.fromkeys(each.summary.results_dir for each in self.entries)
        return [folder for folder in found if folder]

    @property
    def alone(self) -> list[str]:
        """Those of its results dirs that no other job has."""
        return [folder for folder in self.folders if folder not in self.shared]


def plan_removal(
    config: Config, names: Iterable[str], say: Callable[[str], None] = jobs.silent
) -> list[Removal]:
    """Return what deleting jobs and sweeps would delete; raise BergError for those that live or do
    not exist.

    Waits for machines of jobs that have ended; `say` hears of it.
    """
    bucket = Bucket(config)
    entries = [each for each in jobs.overview(config, None) if each.state]
    removals = choose(entries, names, config.user)
    for removal in removals:
        wait_for_machines(config, removal, say)
    gone = {name for removal in removals for name in removal.jobs}
    owners = {each.summary.results_dir: each.name for each in entries if each.name not in gone}
    owners.pop("", None)
    for removal in removals:
        removal.shared = shared_folders(removal.folders, owners)
        list_results(bucket, removal, owners)
        removal.others = list_records(bucket, removal)
    return removals


def choose(entries: list[Entry], names: Iterable[str], user: str) -> list[Removal]:
    """Return the jobs and sweeps meant by names, and by patterns over a user's own.

    Raises BergError for those that live or do not exist.
    """
    alone = {each.name: [each] for each in entries if job.NAME.fullmatch(each.name)}
    sweeps: dict[str, list[Entry]] = {}
    for each in entries:
        if each.sweep:
            sweeps.setdefault(each.sweep, []).append(each)
    mine = {each.sweep or each.name for each in entries if each.user == user}
    known = alone | sweeps
    chosen = dict.fromkeys(hit for name in names for hit in matching(name, mine, {*known}))
    for name in chosen:
        check_removable(name, known[name], is_sweep=name in sweeps)
    return [Removal(name, known[name]) for name in chosen]


def matching(pattern: str, mine: set[str], known: set[str]) -> list[str]:
    """Return the names that a pattern or a name means; raise BergError if there are none."""
    hits, what = [pattern] if pattern in known else [], f"there is no job {pattern!r}"
    if jobs.is_glob(pattern):
        hits, what = sorted(fnmatch.filter(mine, pattern)), f"{pattern!r} matches none of your jobs"
    if not hits:
        raise BergError(f"{what}. See what there is: berg list -a")
    return hits


def check_removable(name: str, parts: list[Entry], is_sweep: bool) -> None:
    if not is_sweep and parts[0].sweep:
        raise BergError(
            f"{name} is a job of the sweep {parts[0].sweep}, which can only be deleted as a whole: "
            f"berg rm {parts[0].sweep}"
        )
    for each in parts:
        if not (is_over(each) or is_about_to_go(each)):
            raise BergError(
                f"{each.name} has not ended ({each.status}). End it first: berg kill {name}"
            )


def is_over(entry: Entry) -> bool:
    """Return whether a job has ended, and its machines are gone or on their way out."""
    if not (entry.state and entry.state.final):
        return False
    return all(machine.status == "STOPPING" for machine in [*entry.machines, *entry.workers])


def is_about_to_go(entry: Entry) -> bool:
    """Return whether the machines of a job delete themselves: it ended, and they are not kept."""
    state = entry.stored.state if entry.stored else None
    return state is not None and state.final and not (state.job.kept or state.kept_seconds)


def wait_for_machines(config: Config, removal: Removal, say: Callable[[str], None]) -> None:
    """Wait until the machines of jobs that ended are going; raise BergError if they stay."""
    if all(map(is_over, removal.entries)):
        return
    name, sweeps = removal.name, {each.sweep for each in removal.entries if each.sweep}

    def there() -> list[str]:
        found = places.machines(config, [] if sweeps else [name], sweeps)
        return [each.name for each in found if each.status != "STOPPING"]

    if left := jobs.wait_while(there, f"as {name} has ended", say):
        raise BergError(f"{', '.join(left)} could not be deleted. End it first: berg kill {name}")


def shared_folders(folders: list[str], owners: dict[str, str]) -> dict[str, str]:
    """Return those of the folders that another job has, or one above or inside of them, with its
    name.
    """
    inside = {
        str(parent): name
        for folder, name in owners.items()
        for parent in PurePosixPath(folder).parents
    }
    shared = {}
    for folder in folders:
        path = PurePosixPath(folder)
        others = [owners.get(str(each)) for each in (path, *path.parents)]
        if other := next(filter(None, others), inside.get(folder)):
            shared[folder] = other
    return shared


def list_results(bucket: Bucket, removal: Removal, owners: Iterable[str]) -> None:
    """List the results that go: the folders of these jobs alone, and what they wrote elsewhere, but
    for what is in other jobs' folders.
    """
    prefixes = [f"berg_results/{folder}/" for folder in removal.alone]
    for listed in side_by_side(lambda prefix: list(bucket.list(prefix)), prefixes, THREADS):
        removal.results += listed
    known = {blob.name for blob in removal.results}
    theirs = tuple(f"berg_results/{folder}/" for folder in owners)

    def elsewhere(entry: Entry) -> list[Listed]:
        own = entry.summary.results_dir
        if not own:
            return []
        folders = mirror.recorded_folders(bucket, job.folders_prefix(entry.name))
        return list(mirror.in_other_folders(bucket, "berg_results/", own, folders, entry.name))

    for listed in side_by_side(elsewhere, removal.entries, THREADS):
        removal.elsewhere += [
            blob for blob in listed if blob.name not in known and not blob.name.startswith(theirs)
        ]
    removal.results += removal.elsewhere


def list_records(bucket: Bucket, removal: Removal) -> list[Listed]:
    """Return what berg keeps of the jobs that go, and of their sweep."""
    names, folders = {job.sweep_path(removal.name)}, set()
    for each in removal.jobs:
        names |= {job.metadata_path(each), job.state_path(each)}
        folders |= {f".berg/{folder}/{each}/" for folder in KEPT}
    return [
        blob
        for folder in KEPT
        for blob in bucket.list(f".berg/{folder}/{removal.name}")
        if blob.name in names or blob.name.startswith(tuple(folders))
    ]


def remove(config: Config, removal: Removal, on_progress: Callable[[int], None]) -> None:
    """Delete what a removal names, the states last: until then it can be repeated.

    The states are marked first, so that no job restarts meanwhile; raises BergError if one did
    before. `on_progress` gets the number of deleted objects.
    """
    bucket = Bucket(config)
    purse.settle_all(config)  # they enter what these jobs have cost as long as that is known
    entered = index.listed_jobs(bucket, [(each.name, each.summary) for each in removal.entries])
    marked = mark(bucket, removal, config.user)
    if any(each.summary.secrets for each in removal.entries):
        secret.delete(config, removal.name)
    of_jobs = {job.state_path(each) for each in removal.jobs}
    first = [each for each in removal.results + removal.others if each.name not in of_jobs]
    gone = 0
    for _ in side_by_side(lambda each: bucket.delete(each.name), first, THREADS):
        gone += 1
        on_progress(gone)
    for _ in side_by_side(lambda each: states.delete(bucket, each), marked, THREADS):
        gone += 1
        on_progress(gone)
    states.forget_owners(bucket, removal.folders, {removal.name, *removal.jobs})
    index.delete(bucket, entered)


def mark(bucket: Bucket, removal: Removal, user: str) -> list[Stored]:
    """Mark the states of all jobs of a removal as being deleted, or none of them.

    Raises BergError if a job changed since its state was read.
    """

    def mark_one(entry: Entry) -> Stored | None:
        assert entry.state and entry.stored
        if entry.stored.is_damaged:
            return entry.stored
        try:
            return states.replaced(bucket, entry.stored, replace(entry.state, removed_by=user))
        except Changed:
            return None

    marked = list(side_by_side(mark_one, removal.entries, THREADS))
    done = [stored for stored in marked if stored]
    if len(done) == len(marked):
        return done
    for entry, stored in zip(removal.entries, marked, strict=True):
        if stored and entry.stored:
            with contextlib.suppress(Changed):
                states.replaced(bucket, stored, entry.stored.state)
    raise BergError(
        f"{removal.name} changed in the meantime, so it was not deleted. See it: berg list"
    )


def check_kept(entry: Entry) -> None:
    """Raise BergError for a job that is being deleted: it cannot continue."""
    if entry.state and entry.state.removed_by:
        raise BergError(
            f"{entry.name} is being deleted by {entry.state.removed_by}. "
            f"Finish it: berg rm {entry.sweep or entry.name}"
        )


METRICS = 64 << 10  # bytes at the end of a metrics.jsonl that are read
# Options that have a row of their own, or always differ.
UNSEEN = ("cmd", "name", "results_dir", "data", "note", "env", "secrets")


@dataclass(frozen=True)
class Difference:
    """One fact about two jobs; "" for a job without it."""

    what: str
    first: str
    second: str


@dataclass
class Comparison:
    """How two jobs differ."""

    names: tuple[str, str]
    differences: list[Difference]
    metrics: list[Difference]
    code: str  # git's diff; "": the same code


def compare(config: Config, first: str, second: str) -> Comparison:
    """Compare two jobs; raise BergError if a job or its metadata is missing."""
    with ThreadPoolExecutor() as pool:
        before, after = pool.map(lambda name: read(config, name, 0), (first, second))
    bucket, old, new = Bucket(config), described(before).snapshot, described(after).snapshot
    with tempfile.TemporaryDirectory(prefix="berg-diff-") as folder, ThreadPoolExecutor() as pool:
        repo = Path(folder, "repo")
        repo.mkdir()
        packs = installing.packs_of(bucket, Path(folder))
        code = pool.submit(snapshot.between, old, new, repo, packs)
        facts = pool.map(lambda record: facts_of(bucket, record), (before, after))
        differences = [row for row in differing(*facts) if row.first != row.second]
        names = (before.entry.name, after.entry.name)
        metrics = differing(before.metrics, after.metrics)
        return Comparison(names, differences, metrics, code.result())


def described(record: Record) -> job.Job:
    if record.job is None:
        raise BergError(
            f"{record.entry.name} cannot be compared: its metadata is not in the bucket any more, "
            "or damaged"
        )
    return record.job


def facts_of(bucket: Bucket, record: Record) -> dict[str, str]:
    """Return what a job was, how it went, and which software it ran with; nothing that is empty."""
    state, this = record.entry.state, described(record)
    facts: dict[str, Any] = {
        "state": record.entry.status,
        "exit code": str(state.exit_code) if state else "",
        "ran seconds": state and state.ran_seconds,
        "command": this.cmd,
        "repo": this.repo_name,
        "commit": this.git_snapshot[:12],
        "machines": this.num_machines,
        "machine type": this.machine_type,
        "gpus": this.gpus_per_machine and f"{this.gpus_per_machine} x {this.gpu_type}",
        "tpu": this.tpu,
        "image": this.image,
        "secrets": ", ".join(sorted(this.secrets)),
        "user": this.created_by,
        "berg": this.berg_version,
    }
    facts |= {f"param {key}": value for key, value in this.params.items()}
    facts |= {f"env {key}": value for key, value in this.env.items()}
    chosen = {key: value for key, value in asdict(this.spec).items() if key not in UNSEEN}
    facts |= {f"option {key}": value for key, value in chosen.items()}
    facts |= read_software(bucket, record.entry.name).facts()
    return {key: str(value) for key, value in facts.items() if value not in (None, "", 0, [], {})}


def last_metrics(bucket: Bucket, folder: str, files: list[Listed]) -> dict[str, Any]:
    """Return the last value of each metric in the metrics.jsonl of a results dir; {} without."""
    name = f"berg_results/{folder}/metrics.jsonl"
    size = next((each.size for each in files if each.name == name), 0)
    text = bucket.last_lines(name, size, METRICS).decode(errors="replace") if size else ""
    return events.last_values(text)


def differing(first: dict[str, Any], second: dict[str, Any]) -> list[Difference]:
    """Return a row for each name of two tables, in their order."""
    names = dict.fromkeys([*first, *second])
    return [Difference(name, str(first.get(name, "")), str(second.get(name, ""))) for name in names]

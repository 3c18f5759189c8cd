"""What the bucket keeps of jobs: which is the latest, all about one, and its deletion.

Not covered: code. Snapshots are shared by jobs, and are sent again when they are needed.
"""

import fnmatch
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from berg import BergError, job
from berg.code import snapshot
from berg.config import Config
from berg.google import mirror, secret
from berg.google.fetch import side_by_side
from berg.google.storage import Bucket, Listed
from berg.laptop import jobs
from berg.laptop.jobs import Entry

LATEST = ("@", "-")
TAIL = 16 << 10  # bytes of a log in which its last lines are looked for
THREADS = 16


def states(bucket: Bucket) -> Iterator[tuple[str, job.State]]:
    """Every job with its state as it lies in the bucket; damaged ones are passed over."""
    for blob in bucket.list(".berg/jobs/", "name,metadata", "**_state.json"):
        try:
            yield job.name_of(blob.name), job.state_from_json(blob.metadata["state"])
        except (KeyError, ValueError, TypeError):
            continue


def resolve(config: Config, name: str) -> str:
    """A name as it is; for `@` or `-` that of my latest job, or its sweep's, and for `@/0` a job of
    that sweep.
    """
    latest, slash, index = name.partition("/")
    if latest not in LATEST:
        return name
    mine = [each for each in states(Bucket(config)) if each[1].job.user == config.user]
    if not mine:
        raise BergError(
            f'{name} is your latest job, and you have none yet. Start with: berg run "python train.py"'
        )
    last, state = max(mine, key=lambda each: each[1].job.created_at)
    return f"{state.job.sweep or last}{slash}{index}"


@dataclass
class Record:
    """All about one job."""

    entry: Entry
    job: job.Job | None  # None: it cannot be read
    results: list[Listed]
    log: list[str] = field(default_factory=list)  # its last lines

    def to_dict(self) -> dict[str, Any]:
        described = asdict(self.job) if self.job else None
        files = [{"path": each.name, "bytes": each.size} for each in self.results]
        return {**self.entry.to_dict(), "metadata": described, "results": files, "log": self.log}


def read(config: Config, name: str, lines: int) -> Record:
    """All about a job, with the last lines of its log; raises BergError for a machine without a
    job.
    """
    entry, bucket = jobs.find(config, name), Bucket(config)
    if entry.state is None:
        raise BergError(
            f"{entry.name} is a machine without a job ({entry.status}). End it: berg kill {entry.name}"
        )
    results_dir = entry.state.job.results_dir
    with ThreadPoolExecutor() as pool:
        described = pool.submit(described_job, bucket, entry.name)
        log = pool.submit(last_lines, bucket, entry.name, lines)
        results = list(bucket.list(f"berg_results/{results_dir}/")) if results_dir else []
        return Record(entry, described.result(), results, log.result())


def code_of(config: Config, this: job.Job) -> snapshot.Snapshot:
    """The code that a job ran, as it lies in the bucket; raises BergError if it does no more."""
    bucket = Bucket(config)
    for pack in snapshot.all_packs(this.snapshot):
        if not bucket.exists(pack):
            raise BergError(
                f"the code of {this.job_name} is not in the bucket any more (gs://{bucket.name}/{pack}). "
                f"Run it with the code around you: berg rerun {this.job_name} --new-code"
            )
    branch, root = this.snapshot.get("branch", ""), Path(this.repo_name)
    commits, changed = (this.git_commit, this.git_snapshot), this.git_changed_files
    return snapshot.Snapshot(
        root, this.repo_name, branch, *commits, Path(), changed, sent=this.snapshot
    )


def members(config: Config, name: str) -> list[str]:
    """The jobs of a sweep; of anything else its name."""
    if not job.NAME.fullmatch(name) or not Bucket(config).exists(job.sweep_path(name)):
        return [name]
    return sorted(e.name for e in jobs.overview(config, None, f"{name}-") if e.sweep == name)


def described_job(bucket: Bucket, name: str) -> job.Job | None:
    try:
        return job.from_json(bucket.read(job.metadata_path(name)) or b"", name)
    except BergError:
        return None


def last_lines(bucket: Bucket, name: str, count: int) -> list[str]:
    """The last lines of the log that was written last."""
    logs = sorted(
        bucket.list(job.log_prefix(name), glob="**.log"), key=lambda each: str(each.updated)
    )
    if not logs or not count:
        return []
    text = bucket.read_from(logs[-1].name, max(0, logs[-1].size - TAIL)) or b""
    return text.decode(errors="replace").splitlines()[-count:]


@dataclass
class Removal:
    """What goes when a job is deleted, or all jobs of a sweep."""

    name: str
    jobs: list[str]
    results: list[Listed] = field(default_factory=list)
    # of them, those in folders that are no job's
    beside: list[Listed] = field(default_factory=list)
    others: list[Listed] = field(default_factory=list)  # logs, and what berg knows of it
    secrets: bool = False
    # results dir that stays -> the job whose it is, too
    shared: dict[str, str] = field(default_factory=dict)


def plan_removal(config: Config, names: Iterable[str]) -> list[Removal]:
    """What deleting jobs and sweeps would delete; raises BergError for those that live or do not
    exist.
    """
    bucket = Bucket(config)
    entries = {each.name: each for each in jobs.overview(config, None) if each.state}
    sweeps: dict[str, list[Entry]] = {}
    for each in entries.values():
        if each.sweep:
            sweeps.setdefault(each.sweep, []).append(each)
    mine = {each.sweep or each.name for each in entries.values() if each.user == config.user}
    chosen = dict.fromkeys(
        hit for name in names for hit in matching(name, mine, {*entries, *sweeps})
    )
    removals = []
    for name in chosen:
        parts = sweeps.get(name) or [entries[name]]
        check_removable(name, parts, is_sweep=name in sweeps)
        removals.append(Removal(name, [each.name for each in parts]))
    gone = {each for removal in removals for each in removal.jobs}
    whose = {
        folder: each.name
        for each in entries.values()
        if each.name not in gone and (folder := results_of(each))
    }
    inside = {
        str(parent): name
        for folder, name in whose.items()
        for parent in PurePosixPath(folder).parents
    }
    for removal in removals:
        folders = dict.fromkeys(
            folder for each in removal.jobs if (folder := results_of(entries[each]))
        )
        for folder in folders:
            above = (
                whose.get(str(path))
                for path in (PurePosixPath(folder), *PurePosixPath(folder).parents)
            )
            if other := next(filter(None, above), inside.get(folder)):
                removal.shared[folder] = other
        alone = [f"berg_results/{folder}/" for folder in folders if folder not in removal.shared]
        for listed in side_by_side(lambda prefix: list(bucket.list(prefix)), alone, THREADS):
            removal.results += listed
        known = {blob.name for blob in removal.results}
        for listed in side_by_side(
            lambda each: beside(bucket, entries[each], whose), removal.jobs, THREADS
        ):
            removal.beside += [blob for blob in listed if blob.name not in known]
        removal.results += removal.beside
        removal.secrets = any(entries[each].to_dict().get("secrets") for each in removal.jobs)
        paths = {
            path(each) for each in removal.jobs for path in (job.metadata_path, job.state_path)
        }
        kinds = (job.log_prefix, job.machines_prefix, job.folders_prefix)
        folders_of = {path(each) for each in removal.jobs for path in kinds}
        for prefix in (
            ".berg/jobs/",
            ".berg/logs/",
            ".berg/machines/",
            ".berg/folders/",
            ".berg/sweeps/",
        ):
            for blob in bucket.list(prefix + removal.name):
                folder = blob.name[: blob.name.rfind("/") + 1]
                if (
                    blob.name in paths
                    or folder in folders_of
                    or blob.name == job.sweep_path(removal.name)
                ):
                    removal.others.append(blob)
    return removals


def beside(bucket: Bucket, entry: Entry, whose: Iterable[str]) -> list[Listed]:
    """What a job wrote to other folders than its own; what lies in another job's goes with that
    one.
    """
    if not (own := results_of(entry)):
        return []
    theirs = tuple(f"berg_results/{folder}/" for folder in whose)
    found = mirror.beside(bucket, "berg_results/", own, job.folders_prefix(entry.name), entry.name)
    return [blob for blob in found if not blob.name.startswith(theirs)]


def results_of(entry: Entry) -> str:
    return entry.state.job.results_dir if entry.state else ""


def matching(pattern: str, mine: set[str], known: set[str]) -> list[str]:
    hits = (
        sorted(fnmatch.filter(mine, pattern))
        if jobs.is_glob(pattern)
        else [pattern]
        if pattern in known
        else []
    )
    if not hits:
        what = (
            f"{pattern!r} matches none of your jobs"
            if jobs.is_glob(pattern)
            else f"there is no job {pattern!r}"
        )
        raise BergError(f"{what}. See what there is: berg list -a")
    return hits


def is_over(entry: Entry) -> bool:
    """Whether nobody writes for a job any more: it is over, and its machines are gone or on their
    way out.
    """
    final = entry.state and entry.state.final
    return bool(final) and all(
        machine.status == "STOPPING" for machine in [*entry.machines, *entry.workers]
    )


def check_removable(name: str, parts: list[Entry], is_sweep: bool) -> None:
    if not is_sweep and parts[0].sweep:
        raise BergError(
            f"{name} is a job of the sweep {parts[0].sweep}, which goes as a whole: berg rm {parts[0].sweep}"
        )
    for each in parts:
        if not is_over(each):
            raise BergError(
                f"{each.name} is not over ({each.status}). End it first: berg kill {name}"
            )


def remove(config: Config, removal: Removal, tell: Callable[[int], None]) -> None:
    """Delete what a removal names, the states last: until then it can be repeated. `tell` hears how
    many are gone.
    """
    bucket = Bucket(config)
    if removal.secrets:
        secret.delete(config, removal.name)
    states = [each for each in removal.others if each.name.endswith("_state.json")]
    first = [each for each in removal.others if each not in states]
    gone = 0
    for part in (removal.results, first, states):
        for _ in side_by_side(lambda each: bucket.delete(each.name), part, THREADS):
            gone += 1
            tell(gone)

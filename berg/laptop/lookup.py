"""What a name means: `@` and `-`, where the results of a job or a folder are in the bucket, and who
has a name and a results folder.

It imports no place for jobs: commands with other names, and those that fetch, need none.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timezone
from itertools import chain

from berg import BergError, job, states, validation
from berg.config import Config
from berg.google import sending, views
from berg.google.sending import RECORD, writer_of
from berg.google.storage import Bucket, Changed, Listed, ahead, crc32c_of
from berg.google.views import Row, View
from berg.job import Job, Machine, Owner
from berg.states import Stored

LATEST = ("@", "-")
SETTLED = 10  # seconds after a job's end from which a list has all of its files


def resolve(config: Config, name: str) -> str:
    """Return a name as it is; for `@` or `-` that of my latest job, or its sweep's, and for `@/0`
    that of a job of that sweep.
    """
    latest, slash, index = name.partition("/")
    if latest not in LATEST:
        return name
    listed = states.listed(Bucket(config))
    mine = [each for each in listed if not each.is_damaged and each.state.job.user == config.user]
    if not mine:
        raise BergError(
            f"{name} is your latest job, and you have none yet. "
            'Start with: berg run "python train.py"'
        )
    last = max(mine, key=lambda each: each.state.job.created_at)
    return f"{last.state.job.sweep or last.name}{slash}{index}"


@dataclass
class Found:
    """What a name means."""

    name: str
    is_sweep: bool
    prefix: str = ""  # of the results in the bucket
    stored: Stored | None = None  # the state, if it is a job
    begun: Iterator[Listed] | None = None  # the results, if they were asked for already


def look_up(config: Config, name: str, is_once: bool) -> Found:
    """Return what a name means, by requests in parallel; with `is_once` the results are listed,
    too, in case the folder has the same name.
    """
    bucket = Bucket(config)
    with ThreadPoolExecutor(2) as pool:
        sweep = pool.submit(states.sweep_exists, bucket, name)
        found = pool.submit(results_of, config, name)
        guess, begun = "", None
        with contextlib.suppress(BergError):
            guess = prefix_of(config, name)
            if is_once:
                begun = chain.from_iterable(ahead(bucket.pages(guess, sending.LISTED)))
        if sweep.result():
            return Found(name, True)
        prefix, stored = found.result()
    # A job that ended after the list began may have more files.
    is_final = stored is not None and stored.state.final
    is_recent = stored is not None and job.clock() < stored.written_at + SETTLED
    is_of_use = prefix == guess and not (is_final and is_recent)
    return Found(name, False, prefix, stored, begun if is_of_use else None)


def results_of(config: Config, name: str) -> tuple[str, Stored | None]:
    """Return the bucket's prefix for a job or a results folder, and the state if it is a job."""
    stored = states.read(Bucket(config), name)
    if stored is None:
        return prefix_of(config, name), None
    if not stored.state.job.results_dir:
        raise BergError(
            f"{job.state_path(name)} is damaged. "
            "Fetch the results by the name of their folder: berg fetch FOLDER"
        )
    return f"berg_results/{stored.state.job.results_dir}/", stored


def prefix_of(config: Config, folder: str) -> str:
    """Return the bucket's prefix for a results folder; raise BergError for an invalid one."""
    path = (
        folder.removeprefix(f"gs://{config.bucket}/")
        .removeprefix("/root/")
        .removeprefix("berg_results/")
    )
    return f"berg_results/{validation.check_results_dir(path.strip('/'))}/"


def as_seen(config: Config, stored: Stored) -> Stored:
    """Return a job's state as a reader must see it, by its machines if it is not final."""
    if stored.state.final:
        return stored
    from berg.laptop import jobs

    return replace(stored, state=jobs.find(config, stored.name).state or stored.state)


def of_others(bucket: Bucket, folders: set[str], user: str) -> set[str]:
    """Return those of some results folders that belong to another user's job.

    A folder mostly has its job's name, so jobs are looked up by the parts of the paths.
    """
    parts = {part for folder in folders for part in folder.split("/")}
    jobs = [stored.state.job for stored in states.several(bucket, sorted(parts))]
    theirs = tuple(f"{each.results_dir}/" for each in jobs if each.user not in ("", user))
    return {folder for folder in folders if f"{folder}/".startswith(theirs)}


ROOT = "berg_results/"


@dataclass
class Results:
    """What a job left in the bucket, and what else is there in its folder."""

    view: View = field(default_factory=View)  # empty for a job without views
    files: list[Listed] = field(default_factory=list)
    deleted: list[Listed] = field(default_factory=list)  # by the job
    others: list[Listed] = field(default_factory=list)  # of other jobs
    gone: list[str] = field(default_factory=list)  # paths of what the job deleted lately


def results(
    bucket: Bucket,
    stored: Stored,
    listed: Iterable[Listed] | None = None,
    moment: str | None = None,
) -> Results:
    """Return what a job left in its own folder, as far as that is `listed` already; of a moment
    only its view.
    """
    prefix = f"{ROOT}{stored.state.job.results_dir}/"
    view = view_of(bucket, stored.name, moment)
    listed = bucket.list(prefix, sending.LISTED) if listed is None else listed
    is_exact = bool(moment) or (view.final and stored.state.final)
    return left_by(stored.name, view, listed, lambda name: name.startswith(prefix), is_exact)


def left_by(
    name: str,
    view: View,
    listed: Iterable[Listed],
    is_inside: Callable[[str], bool],
    is_exact: bool,
) -> Results:
    """Return what a job left: rows of its view that are inside, and objects of those `listed`.

    What no job wrote belongs to it, and, unless it is to be exactly the view, what the job wrote
    later. Without a view that is all.
    """
    if not view.at_ns:
        return Results(view, list(listed))
    inside = [path for path in (*view.rows, *view.gone) if is_inside(f"{ROOT}{path}")]
    rows = {f"{ROOT}{path}": view.rows[path] for path in inside if path in view.rows}
    found = Results(view, gone=[path for path in inside if path in view.gone])
    files = sort_out(found, rows, listed, name, is_exact)
    for each, row in rows.items():
        if each not in files and is_own(name, row):
            files[each] = without_object(each, row)
    found.files = [files[each] for each in sorted(files)]
    return found


def sort_out(
    found: Results, rows: dict[str, Row], listed: Iterable[Listed], name: str, is_exact: bool
) -> dict[str, Listed]:
    """Return the objects that a job left by their names; note what it deleted, and others'."""
    files = {}
    for blob in listed:
        row = rows.get(blob.name)
        if row and row.is_in(blob):
            files[blob.name] = replace(blob, row=row)
        elif writer_of(blob) not in ("", name):
            found.others.append(blob)
        elif is_deleted(blob, found.view, is_exact):
            found.deleted.append(blob)
        elif not row or is_later(blob, row, is_exact):
            files[blob.name] = blob
    return files


def is_own(name: str, row: Row) -> bool:
    """Return whether a row names no object that another job staged."""
    return not row.object or row.object.startswith(f"{views.STAGED}{name}/")


def is_later(blob: Listed, row: Row, is_exact: bool) -> bool:
    """Return whether an object is newer than the row of its file, and counts."""
    if not writer_of(blob):
        return True
    return not is_exact and blob.generation > row.generation and not (row.object or row.data)


def is_deleted(blob: Listed, view: View, is_exact: bool) -> bool:
    """Return whether an object of a job's, or of none's, is of a file that the job deleted.

    A later file of the same name is not.
    """
    path = blob.name.removeprefix(ROOT)
    is_record = path.endswith(f"/{RECORD}")  # which is in no view
    if path in view.rows or is_record or not writer_of(blob):
        return False
    row = view.gone.get(path)
    if is_exact or row is None or not row.is_in(blob) or not blob.updated:
        return is_exact
    return blob.updated.timestamp() * 1e9 < row.changed_ns + views.CLOCKS_NS


def without_object(name: str, row: Row) -> Listed:
    """Return a file of a view whose object is not known yet, or a link."""
    if row.link:
        return Listed(name, len(row.link.encode()), crc32c_of([row.link.encode()]), row=row)
    return Listed(name, row.size, row.crc32c, row=row)


def view_of(bucket: Bucket, name: str, moment: str | None = None) -> View:
    """Return the newest view of a job's results, or that of a moment; an empty one without any. Of
    a job that ended in the middle of a save, what was there at its end.

    Raises BergError if there is none of that moment.
    """
    histories = views.of_job(bucket, name)
    if moment is None:
        view = views.at(histories) or View()
        return views.at(histories, views.FOREVER) or view if view.cut else view
    see = f"See which there are: berg show {name} --views"
    try:
        until = job.time_of(moment)
    except ValueError:
        raise BergError(f"{moment!r} is not a time such as {job.now()}. {see}") from None
    if until.tzinfo is None:
        until = until.replace(tzinfo=timezone.utc)
    # times are shown without the part of a second
    before = [at for at in views.moments(histories) if at < (until.timestamp() + 1) * 10**9]
    if not before:
        raise BergError(f"{name} has no view of {moment}, or of a time before. {see}")
    return views.at(histories, before[-1]) or View()


def count_deleted(bucket: Bucket, name: str) -> tuple[int, int]:
    """Return how many files a job deleted lately that are still in the bucket, and their bytes."""
    view = view_of(bucket, name)
    blobs = bucket.gets((f"{ROOT}{path}" for path in view.gone), sending.LISTED)
    sizes = [blob.size for blob in blobs if blob and is_deleted(blob, view, False)]
    return len(sizes), sum(sizes)


# --- who has a name and a results folder: a live job alone; a later one begins with its files


class Taken(BergError):
    """Another job or sweep has the name, or the results folder."""


def taken(name: str, what: str = "job") -> Taken:
    """Return the error for a name that another job or sweep has."""
    return Taken(
        f"there is a {what} {name!r} already. Choose another name: -n NAME (or leave -n out)"
    )


def refuse_machines(name: str, machines: list[Machine]) -> None:
    """Raise BergError if one of the machines that have a name does not go by itself: it is not
    being deleted, and is no queued pod, which is replaced. The disk of a devbox stays.
    """
    for each in machines:
        is_box = each.labels.get("berg-kind") == "devbox"
        if is_box:
            raise in_the_way("devbox", each.name, each.zone, f"kill {name}", " and its disk")
        if not each.is_queued and each.status != "STOPPING":
            raise in_the_way("machine", each.name, each.zone, f"kill {name}")


def in_the_way(what: str, name: str, where: str, command: str, more: str = "") -> BergError:
    """Return the error for a machine or a group that has the name of a job that is to begin."""
    return BergError(
        f"there is a {what} {name!r} in {where} already, and no job of it is known. Choose another "
        f"name: -n NAME. To delete the {what}{more}: berg {command}"
    )


def folder_of(this: Job) -> tuple[str, str]:
    """Return the folder that a job needs an owner of, and this owner: jobs of a sweep in numbered
    subfolders share one.
    """
    parent, _, last = this.results_dir.rpartition("/")
    if this.sweep and parent and this.job_name == f"{this.sweep}-{last}":
        return parent, this.sweep
    return this.results_dir, this.job_name


def owners_of(config: Config, new: list[Job]) -> tuple[list[Owner], dict[str, str]]:
    """Return the owners to write for a job, or all jobs of a sweep, and by their results dirs the
    earlier jobs whose files are there ("" for none).

    Raise BergError if a live job has one of these folders, or one above or inside of them.
    """
    bucket, wanted = Bucket(config), dict(map(folder_of, new))
    found = states.owners(bucket, wanted)
    mine = {name for this in new for name in (this.job_name, this.sweep)}
    check_free(config, [each for each in found.values() if each.name not in mine])
    began: dict[str, dict[str, str]] = {"": {}}

    def jobs_of(name: str) -> dict[str, str]:
        """Return the jobs of a job's or a sweep's name that began, by their results dir."""
        if name not in began:
            began[name] = {
                each.state.job.results_dir: each.name
                for each in states.listed(bucket, name)
                if name in (each.name, each.state.job.sweep) and each.state.started_at
            }
        return began[name]

    def earlier(folder: str) -> str:
        near = [found[each] for each in (folder, *states.above(folder)) if each in found]
        for owner in sorted(near, key=lambda each: -each.generation):
            for name in (owner.name, owner.before):
                if folder in jobs_of(name):
                    return jobs_of(name)[folder]
        return ""

    owners = []
    for folder, name in wanted.items():
        there = found.get(folder, Owner(folder, ""))
        is_next = name != there.name and jobs_of(there.name)
        before = there.name if is_next else there.before
        owners.append(Owner(folder, name, before, there.generation, "", there.name))
    return owners, {this.results_dir: earlier(this.results_dir) for this in new}


def check_free(config: Config, others: list[Owner]) -> None:
    """Raise BergError if one of the owners is a live job, or a sweep with one."""
    from berg.laptop import jobs

    known = {each.name: each for each in states.several(Bucket(config), {e.name for e in others})}
    for owner in others:
        name = owner.name
        if name in known and known[name].state.final:
            continue
        for each in jobs.overview(config, None, name):
            # A submit that failed leaves its folder to a name that may be another job's by now.
            is_there = f"{each.summary.results_dir}/".startswith(f"{owner.folder}/")
            if not is_there or name not in (each.name, each.sweep) or each.state is None:
                continue
            if each.can_end and each.state.state not in ("SUCCEEDED", "FAILED", "KILLED"):
                raise BergError(
                    f"berg_results/{owner.folder} is the results dir of {name}, which has not "
                    f"ended ({each.status}): two jobs that write to it would lose files. Choose "
                    f"another one: -r DIR. Or end it first: berg kill {name}"
                )


def take_folders(bucket: Bucket, wanted: list[Owner], claim: str) -> None:
    """Write the owners of folders; raise Taken if another submit has one of them meanwhile."""
    try:
        states.own(bucket, wanted, claim)
    except Changed:
        found = states.owners(bucket, [each.folder for each in wanted])
        raise Taken(why_lost(wanted, found, claim)) from None


def check_owners(config: Config, wanted: list[Owner], claim: str) -> None:
    """Raise BergError if another job has a folder that was taken, once the job's state is there."""
    found = states.owners(Bucket(config), [each.folder for each in wanted])
    if why := why_lost(wanted, found, claim):
        raise BergError(why)
    names = {"", *(each.name for each in wanted)}
    others = [*found.values(), *(Owner(each.folder, each.replaces) for each in wanted)]
    check_free(config, [each for each in others if each.name not in names])


def why_lost(wanted: list[Owner], found: dict[str, Owner], claim: str) -> str:
    """Return why folders are another submit's; "" if they are ours."""
    for each in wanted:
        there = found.get(each.folder)
        if there and there.claim != claim and there.name == each.name:
            return taken(each.name).message
        if there and there.claim != claim:
            return f"{there.name} just took berg_results/{each.folder}. Choose another: -r DIR"
    return ""

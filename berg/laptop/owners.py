"""Who has a name and a results folder: a live job alone; a later one begins with its files."""

from berg import BergError, states
from berg.config import Config
from berg.google.storage import Bucket, Changed
from berg.job import Job, Owner
from berg.laptop import jobs

ENDED = ("SUCCEEDED", "FAILED", "KILLED")


class Taken(BergError):
    """Another job or sweep has the name, or the results folder."""


def taken(name: str, what: str = "job") -> Taken:
    """Return the error for a name that another job or sweep has."""
    return Taken(
        f"there is a {what} {name!r} already. Choose another name: -n NAME (or leave -n out)"
    )


def folder_of(this: Job) -> tuple[str, str]:
    """Return the folder that a job needs an owner of, and this owner: jobs of a sweep in numbered
    subfolders share one.
    """
    parent, _, last = this.results_dir.rpartition("/")
    if this.sweep and parent and this.job_name == f"{this.sweep}-{last}":
        return parent, this.sweep
    return this.results_dir, this.job_name


def look(config: Config, new: list[Job]) -> tuple[list[Owner], dict[str, str]]:
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
            if each.can_end and each.state.state not in ENDED:
                raise BergError(
                    f"berg_results/{owner.folder} is the results dir of {name}, which has not "
                    f"ended ({each.status}): two jobs that write to it would lose files. Choose "
                    f"another one: -r DIR. Or end it first: berg kill {name}"
                )


def take(bucket: Bucket, wanted: list[Owner], claim: str) -> None:
    """Write the owners of folders; raise Taken if another submit has one of them meanwhile."""
    try:
        states.own(bucket, wanted, claim)
    except Changed:
        found = states.owners(bucket, [each.folder for each in wanted])
        raise Taken(why_lost(wanted, found, claim)) from None


def check(config: Config, wanted: list[Owner], claim: str) -> None:
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

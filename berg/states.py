"""The state store: states and metadata of jobs, records of sweeps, owners of results folders,
offers of warm machines, and what machines record of a job that hangs.

Reads are validated (validation.py), and every write is at the generation that was read.
A submit claims the job's name with a random token in its state, which distinguishes two submits of
an equal job.
"""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import PurePosixPath
from typing import Any

from berg import BergError, job, validation
from berg.google.storage import Bucket, Changed, Listed, ahead
from berg.job import Job, Owner, State

PREFIX = ".berg/jobs/"
OWNERS = ".berg/owners/"
FIELDS = "name,metadata,updated,generation"  # of a state's object


@dataclass(frozen=True)
class Stored:
    """A state in the bucket."""

    name: str
    state: State
    generation: int
    written_at: float = 0.0  # seconds since 1970
    is_damaged: bool = False  # then `state` has only the reason


@dataclass(frozen=True)
class Sweep:
    """A sweep's record: its jobs and their hashes."""

    jobs: list[str]
    claim: str = ""
    drawn: str = ""  # space, method and seed of its jobs' values
    sha256: list[str] = field(default_factory=list)  # of each job's metadata

    def validate(self) -> None:
        """Raise BergError for an invalid name of a job."""
        for each in self.jobs:
            job.check_name(each)

    def fingerprint(self) -> str:
        """Return the hash of the jobs' names and hashes, which is in the machines' metadata."""
        return hashlib.sha256(json.dumps([self.jobs, self.sha256]).encode()).hexdigest()

    def sha256_of(self, name: str) -> str:
        """Return the hash of a job's metadata, "" for one that the sweep does not have."""
        return dict(zip(self.jobs, self.sha256, strict=False)).get(name, "")


def new_claim() -> str:
    return secrets.token_hex(8)


def claim(bucket: Bucket, name: str, state: State, generation: int = 0, token: str = "") -> Stored:
    """Write a state with a new claim; raise Changed if another submit has the name.

    `generation` is that of the state of a finished job that continues, 0 for a new job. A sweep's
    jobs all have the claim of its record, the `token`.
    """
    return write(bucket, name, replace(state, claim=token or new_claim()), generation)


def read(bucket: Bucket, name: str) -> Stored | None:
    """Return the state of a job; None if there is none."""
    if not job.NAME.fullmatch(name):
        return None
    blob = bucket.get(job.state_path(name))
    return stored_in(blob) if blob else None


def listed(bucket: Bucket, prefix: str = "") -> Iterator[Stored]:
    """Yield the states of all jobs whose names begin with a prefix, in order of their names."""
    pages = bucket.pages(f"{PREFIX}{prefix}", FIELDS, "**_state.json")
    for blob in chain.from_iterable(ahead(pages)):  # validation takes as long as the download
        yield stored_in(blob)


def several(bucket: Bucket, names: Iterable[str]) -> Iterator[Stored]:
    """Yield the states of those jobs of these names that have one."""
    paths = [job.state_path(name) for name in names if job.NAME.fullmatch(name)]
    for blob in bucket.gets(paths, FIELDS):
        if blob:
            yield stored_in(blob)


def of_sweep(bucket: Bucket, sweep: str) -> Iterator[Stored]:
    """Yield the states of a sweep's jobs, and damaged states of such names."""
    for stored in listed(bucket, f"{sweep}-"):
        if stored.is_damaged or stored.state.job.sweep == sweep:
            yield stored


def names(bucket: Bucket, prefix: str = "") -> list[str]:
    """Return the names of all jobs that begin with a prefix."""
    found = bucket.list(f"{PREFIX}{prefix}", "name", "**_state.json")
    return [name for blob in found if job.NAME.fullmatch(name := job.name_of(blob.name))]


def stored_in(blob: Any) -> Stored:
    """Return the state in an object's metadata, or that it is damaged."""
    name = validation.clean(job.name_of(blob.name))
    written_at = blob.updated.timestamp() if blob.updated else 0.0
    try:
        state = job.state_from_json((blob.metadata or {})["state"])
        if state.job.sweep and not name.startswith(f"{state.job.sweep}-"):
            raise ValueError("it is of another sweep")
    except (KeyError, ValueError, TypeError):
        lost = State(state="LOST", reason=f"{validation.clean(blob.name)} is damaged")
        return Stored(name, lost, blob.generation, written_at, is_damaged=True)
    return Stored(name, state, blob.generation, written_at)


def replaced(bucket: Bucket, stored: Stored, state: State) -> Stored:
    """Replace a state that was read; raise Changed if it was replaced since."""
    return write(bucket, stored.name, state, stored.generation)


def write(bucket: Bucket, name: str, state: State, generation: int) -> Stored:
    text = state.to_json()
    written = bucket.write(job.state_path(name), text, generation, metadata={"state": text})
    return Stored(name, state, written)


def delete(bucket: Bucket, stored: Stored) -> None:
    """Delete a state that was read; raise Changed if it was replaced since."""
    bucket.delete_at(job.state_path(stored.name), stored.generation)


def withdraw(bucket: Bucket, claimed: Stored) -> bool:
    """Delete a job's state and metadata if it still has the claim; return whether it did."""
    while (there := read(bucket, claimed.name)) and there.state.claim == claimed.state.claim:
        try:
            delete(bucket, there)
        except Changed:  # a machine of the job wrote meanwhile
            continue
        bucket.delete(job.metadata_path(claimed.name))
        return True
    return False


def read_job(bucket: Bucket, name: str, sha256: str | None = None) -> Job | None:
    """Return a job's metadata, None if there is none; raise BergError if it is damaged, or has
    another hash than `sha256`.
    """
    if not job.NAME.fullmatch(name):
        return None
    data = bucket.read(job.metadata_path(name))
    if data is None:
        return None
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise BergError(
            f"{job.metadata_path(name)} is not what was submitted: it was replaced. Nothing of it "
            "was run; submit the job again"
        )
    return job.from_json(data, name)


def write_job(bucket: Bucket, this: Job, generation: int | None = None) -> None:
    """Write a job's metadata; with a generation raise Changed if it was replaced since."""
    bucket.write(job.metadata_path(this.job_name), this.to_json(), generation)


def write_sweep(bucket: Bucket, name: str, sweep: Sweep) -> None:
    """Write the record of a new sweep; raise Changed if another submit has the name."""
    bucket.write(job.sweep_path(name), json.dumps(asdict(sweep)), generation=0)


def read_sweep(bucket: Bucket, name: str) -> Sweep | None:
    """Return a sweep's record, None if there is none; raise BergError if it is damaged."""
    if not job.NAME.fullmatch(name):
        return None
    data = bucket.read(job.sweep_path(name))
    try:
        return None if data is None else validation.from_dict(Sweep, validation.parse(data))
    except (ValueError, BergError) as error:
        raise BergError(f"{job.sweep_path(name)} is damaged ({error})") from None


def replace_sweep(bucket: Bucket, name: str, before: Sweep, sweep: Sweep) -> None:
    """Replace a sweep's record that was read; raise Changed if it was replaced since."""
    blob = bucket.get(job.sweep_path(name))
    if blob is None or read_sweep(bucket, name) != before:
        raise Changed(f"{job.sweep_path(name)} changed meanwhile")
    bucket.write(job.sweep_path(name), json.dumps(asdict(sweep)), blob.generation)


def sweep_exists(bucket: Bucket, name: str) -> bool:
    return bool(job.NAME.fullmatch(name)) and bucket.exists(job.sweep_path(name))


def withdraw_sweep(bucket: Bucket, name: str, claimed: Sweep) -> bool:
    """Delete a sweep's record if it still has the claim; return whether it did."""
    blob = bucket.get(job.sweep_path(name))
    there = read_sweep(bucket, name) if blob else None
    if not blob or not there or there.claim != claimed.claim:
        return False
    bucket.delete_at(job.sweep_path(name), blob.generation)
    return True


def owner_path(folder: str) -> str:
    return f"{OWNERS}{folder}/owner"


def above(folder: str) -> Iterator[str]:
    """Yield the folders that a folder is in, the nearest first."""
    return (str(each) for each in PurePosixPath(folder).parents if each.name)


def owners(bucket: Bucket, folders: Iterable[str]) -> dict[str, Owner]:
    """Return the owners of folders, and of those above and inside of them, by folder."""
    meant = {*folders}
    parents = {each for folder in meant for each in above(folder)}
    prefix = os.path.commonprefix([f"{each}/" for each in meant])  # noqa: RUF071 - of names
    more = [each for each in sorted(parents) if not f"{each}/".startswith(prefix)]
    listed = chain(bucket.list(OWNERS + prefix, FIELDS), bucket.gets(map(owner_path, more), FIELDS))
    found = [owner_in(blob) for blob in listed if blob]
    return {
        each.folder: each
        for each in found
        if job.NAME.fullmatch(each.name)
        and (each.folder in meant | parents or not meant.isdisjoint(above(each.folder)))
    }


def owner_in(blob: Any) -> Owner:
    folder = blob.name[len(OWNERS) :].removesuffix("/owner")
    name, before, claim = (blob.metadata.get(key, "") for key in ("name", "before", "claim"))
    return Owner(folder, name, before, blob.generation, claim)


def own(bucket: Bucket, wanted: list[Owner], claim: str) -> None:
    """Write the owners of folders; raise Changed if one was replaced since."""

    def write(each: Owner) -> None:
        about = {"name": each.name, "before": each.before, "claim": claim}
        bucket.write(owner_path(each.folder), b"", each.generation, metadata=about)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, wanted))


def forget_owners(bucket: Bucket, folders: Iterable[str], names: set[str]) -> None:
    """Delete the owners of folders, and of those above, that are these jobs or sweeps."""
    gone = [each for each in owners(bucket, folders).values() if each.name in names]
    bucket.delete_all_at((owner_path(each.folder), each.generation) for each in gone)


# --- machines that wait for a job
# A machine that waits for another job of its user (--keep-warm) offers itself in an object. A
# laptop claims it by replacing the offer. The machine takes the claim by replacing it again, or
# deletes the object and ends, each at the generation that was last seen: so one laptop has the
# machine, or it ends, and never both. Of several machines the first one does that for all. Other
# jobs may write the object, too. What the machine is, and what it runs, its instance says
# (laptop/reuse.py, machine/warm.py).

OFFERS = ".berg/machines/.warm/"  # no job has such a name
CLAIM_SECONDS = 60  # seconds after which a claim does not count: its laptop died
LAST_SECONDS = 300  # seconds before Google's limit in which no machine waits, or begins another job


@dataclass
class Offer:
    """What a machine offers, and who claims it. Times are timestamps."""

    machine: str  # the first of several
    zone: str
    id: str  # of the instance
    job: str  # the last one that ran there
    since: str
    until: str  # when the machine ends
    num_machines: int = 1
    claimed_by: str = ""  # the next job
    is_taken: bool = False  # the machine begins that job
    is_withdrawn: bool = False  # its laptop gave it up: it is to end

    def validate(self) -> None:
        """Raise ValueError for what no machine or laptop writes."""
        validation.check_resource(self.machine)
        validation.check_resource(self.zone)
        for name in filter(None, (self.job, self.claimed_by)):
            validation.check_resource(name)
        for time in (self.since, self.until):
            validation.check_time(time)
        if self.num_machines not in range(1, 1001):
            raise ValueError(f"{self.num_machines} machines")

    @property
    def names(self) -> list[str]:
        """The names of the machines by rank."""
        return job.names_beside(self.machine, self.num_machines)

    @property
    def title(self) -> str:
        more = self.num_machines - 1
        return f"{self.machine} and {more} more" if more else self.machine

    def is_for(self, job: str) -> bool:
        """Return whether a job's claim holds."""
        return job != "" and self.claimed_by == job and not self.is_withdrawn

    @property
    def path(self) -> str:
        """The name of its object, which has it as custom metadata: one list shows all offers."""
        return f"{OFFERS}{self.zone}/{self.machine}"


def write_offer(bucket: Bucket, offer: Offer, generation: int) -> int:
    """Write an offer, return its generation; raise Changed unless it is at `generation`."""
    return bucket.write(offer.path, "", generation, {"offer": json.dumps(asdict(offer))})


def read_offer(there: Listed) -> Offer:
    """Return the offer of an object; raise ValueError for what is none."""
    offer = validation.parse(there.metadata.get("offer", ""))
    found = validation.cleaned(validation.from_dict(Offer, offer))
    if found.path != there.name:
        raise ValueError(f"{there.name} is an offer of another machine")
    return found


def offers(bucket: Bucket) -> Iterator[tuple[Offer, int]]:
    """Yield the offers of all machines with their generations; no damaged ones."""
    for each in bucket.list(OFFERS, "name,metadata,generation"):
        with contextlib.suppress(ValueError, BergError):
            yield read_offer(each), each.generation


# --- jobs that hang
# What each machine records of a job that hangs, and which of its processes is the odd one. It is
# written to the results by a machine and read by laptops, so it is checked.

AUTOPSIES = "autopsy"  # of a results folder
MOST_GROUPS = 4  # groups that are named


@dataclass
class Autopsy:
    """What one machine recorded. Texts are what programs printed that were asked."""

    machine: str
    time: str
    # of each Python process of the job: its rank, its pid, and what its main thread does
    processes: list[list[str]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)  # by part: stacks, nccl, nvidia-smi, …
    failed: dict[str, str] = field(default_factory=dict)  # part -> why it is missing

    def validate(self) -> None:
        """Raise ValueError for what no machine writes."""
        if any(len(each) != 3 for each in self.processes):
            raise ValueError("its processes are odd")


def autopsy_folder(results_dir: str, at: str) -> str:
    """Return the folder below berg_results of what was recorded at a moment."""
    return f"{results_dir}/{AUTOPSIES}/{at.replace(':', '').replace('-', '')}"


def read_autopsy(data: bytes) -> Autopsy:
    """Return what a machine recorded; raise ValueError for what none writes."""
    found = validation.from_dict(Autopsy, validation.parse(data))
    return validation.cleaned(found, free=("texts", "failed"))


def odd_one_out(found: Iterable[Autopsy]) -> str:
    """Return what the ranks of a job do, the smallest group first; "" if no stack is known.

    `rank 1 (train-1) is in evaluate (train.py:214), the 3 others are in all_reduce (train.py:210)`
    """
    autopsies = list(found)
    groups: dict[str, list[str]] = {}
    for each in autopsies:
        for rank, _, place in each.processes:
            if place:
                groups.setdefault(place, []).append(f"rank {rank} ({each.machine})")
    ordered = sorted(groups.items(), key=lambda group: len(group[1]))
    if len(ordered) < 2:
        lines = [in_words(place, members, "all") for place, members in ordered]
        return "; ".join([*lines, *behind(autopsies)])
    shown, rest = ordered[:-1], ordered[-1:]
    if len(ordered) > MOST_GROUPS:
        shown, rest = ordered[: MOST_GROUPS - 1], ordered[MOST_GROUPS - 1 :]
    last = f"the others are in {len(rest)} other places"
    if len(rest) == 1:
        last = in_words(*rest[0], "the", " others")
    return ", ".join([*(in_words(*group, "") for group in shown), last])


def in_words(place: str, members: list[str], before: str, after: str = "") -> str:
    """Return who is in a place: one by its rank and machine, several by their number."""
    if len(members) == 1:
        return f"{members[0]} is in {place}"
    return f"{before} {len(members)}{after or ' ranks'} are in {place}".strip()


def behind(found: list[Autopsy]) -> list[str]:
    """Return what NCCL counts where ranks disagree; [] if it does not say so."""
    lines = [line.strip() for each in found for line in each.texts.get("nccl", "").splitlines()]
    counts = list(dict.fromkeys(line for line in lines if "launched up to operation" in line))
    return [f"NCCL: {', '.join(counts[:2])}"] if len(counts) > 1 else []

"""End jobs, and delete what was left behind.

`berg kill`: which jobs are meant, the request to their machines, and what is deleted with them.
`berg reap`: machines, groups and secrets without a living job, disks without a machine, what broken
moves of devboxes left, templates, jobs whose submit was cut off. Machines delete themselves, and
Google deletes them at their time limit; reap is for faults, and for users who do not want to wait.
Idle clusters are only named.
"""

import contextlib
import fnmatch
import math
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from berg import BergError, job, places, states
from berg.config import Config
from berg.gke import clusters
from berg.google import api, instances, secret
from berg.google.storage import Bucket, Changed
from berg.job import Machine, Resource, State
from berg.laptop import index, jobs, power, records, reuse, ssh
from berg.laptop.jobs import OFF, Entry, Say, find, is_glob, logs_of, look_again, overview
from berg.laptop.power import claimed

KILL_TIMEOUT = 60  # seconds for a worker to stop its command, which has 30 of them
STALLED = 120  # seconds without progress of an upload, after which `kill` reports what is left
# Seconds after a job's end, or a resource's creation, in which resources may still change.
SETTLED = 300
DELETED_LAST = ("template", "policy", "job")  # other resources use them


# --- kill


def match(config: Config, patterns: tuple[str, ...], everything: bool) -> dict[str, Entry | None]:
    """Return the jobs that names mean, that globs match among my living ones, or all of these.

    By name, each as it was just listed; None if it was not.
    """
    if not everything and not any(map(is_glob, patterns)):
        return {name: e for pattern in patterns for name, e in parts(config, pattern).items()}
    living = {e.name: e for e in index.look(config, config.user, 0).entries if e.can_end}
    if everything:
        return {**living}
    return {hit: living.get(hit) for pattern in patterns for hit in hits(pattern, list(living))}


def hits(pattern: str, living: list[str]) -> list[str]:
    """Return the names that a pattern means; raise BergError for one that matches none."""
    if not is_glob(pattern):
        return [pattern]
    found = fnmatch.filter(living, pattern)
    if not found:
        raise BergError(f"{pattern!r} matches none of your jobs and machines. See them: berg list")
    return found


def parts(config: Config, name: str) -> dict[str, Entry | None]:
    """Return the living jobs of a sweep, those without a machine first; else the name."""
    if not states.sweep_exists(Bucket(config), name):
        return {name: None}
    live = [e for e in overview(config, None, f"{name}-") if e.sweep == name and e.can_end]
    return {e.name: e for e in sorted(live, key=lambda e: (bool(e.machines), e.name))}


def kill(config: Config, name: str, now: bool, say: Say, seen: Entry | None = None) -> str:
    """End a job and delete its machines; return its final state, "" for a machine without a job.

    Unless `now`, a worker has time to stop its command and to upload the last results. For jobs of
    a sweep, each as `seen` in one list, machines of all zones are not listed again, and the caller
    deletes the sweep's secrets.
    """
    if seen and waits_for_turn(seen) and end_unbegun(config, seen, now):
        return "KILLED"
    found = as_now(config, name, seen)
    for silence in silences(found):
        say(f"{name}: {silence}, and cannot save what is not in the bucket yet")
    if found.summary.kind == "devbox":
        with claimed(config, found.name, "killed", say, is_forced=True):
            found = end_devbox(config, found, now, say)
    elif found.summary.on:
        found = end_worker(config, found, now, say)
    else:
        found = end_machines(config, found, now, say)
    forget_secrets(config, found)
    ended = write_end(config, found)
    if found.sweep and found.state and not seen:
        forget_secrets(config, replace(found, state=replace(found.state, state=ended)))
    return ended


def waits_for_turn(seen: Entry) -> bool:
    """Return whether a job of a sweep has no machine yet."""
    waits = seen.state is not None and seen.state.state == "SUBMITTED"
    return bool(seen.sweep and waits and not seen.machines)


def end_unbegun(config: Config, seen: Entry, now: bool) -> bool:
    """End a job that no machine has; return False if one has it by now."""
    assert seen.stored
    delete_machines(config, seen, now)
    try:
        states.replaced(Bucket(config), seen.stored, killed(config, seen, seen.stored.state))
    except Changed:
        return False
    return True


def as_now(config: Config, name: str, seen: Entry | None) -> Entry:
    """Return a job as it is at the moment."""
    if seen and seen.sweep and seen.machine:
        found = look_again(config, seen)
        if found.machine or (found.state and found.state.final):
            return found
    return find(config, name)


def end_machines(config: Config, found: Entry, now: bool, say: Say) -> Entry:
    """End the worker of a job unless `now`, and delete its machines; return the job as it was."""
    for machine in found.machines:
        instances.let_disk_go(config, machine)  # even if this computer goes off meanwhile
    found = end_worker(config, found, now, say)
    with api.waiting(f"{found.name}: waiting until Google has deleted its machines", say):
        delete_machines(config, found, now)
    return found


def end_worker(config: Config, found: Entry, now: bool, say: Say) -> Entry:
    """End the worker of a job, and unless `now` wait until it has; return the job as it was."""
    if found.summary.on and found.machine and not has_worker(found):
        request_end(config, found, now)  # its devbox may be about to begin it
    if has_worker(found):
        request_end(config, found, now)
        if not now:
            return wait_for_end(config, found, say)
    return found


def end_devbox(config: Config, found: Entry, now: bool, say: Say) -> Entry:
    """End a devbox and delete its disks, and what its moves left; return it as it was."""
    if found.place is not places.of("gce"):
        return end_machines(config, found, now, say)
    values = [instances.metadata(config, machine) or {} for machine in found.machines]
    on_it = [name for each in values for name in reuse.jobs_on_box(config, each)]
    for name in on_it:
        say(f"{name} runs on {found.name}, and ends with it")
    power.wait_for_copies(config, found.name, say)
    found = end_machines(config, found, now, say)
    reuse.end_with_box(config, found.name, on_it)
    delete_disks(config, found.name)
    power.forget_snapshots(config, found.name, say)
    return found


def has_worker(found: Entry) -> bool:
    """Return whether a worker may have the job and can be asked to end it."""
    if found.state is None or found.state.final or found.state.state == "SUBMITTED":
        return False
    alive = [each for each in found.machines if each.status not in (*OFF, "PROVISIONING")]
    return bool(alive) and not alive[0].silence


def request_end(config: Config, found: Entry, now: bool) -> None:
    """Tell the first machine who ends the job; with `now` all machines, which then save nothing."""
    value = f"{config.user} now" if now else config.user
    meant = sorted(found.machines, key=lambda machine: machine.name)[: None if now else 1]
    key = f"berg-kill-{found.name}"
    with ThreadPoolExecutor(16) as pool:
        requests = [
            pool.submit(found.place.set_metadata, config, each, key, value) for each in meant
        ]
    for each in requests:
        if not now:  # else an error only means that the machine is going already
            each.result()


def wait_for_end(config: Config, found: Entry, say: Say) -> Entry:
    """Wait until a worker has ended its job, or does not answer; return the job as it is then.

    Raises BergError if its upload stalls.
    """
    waiting = Waiting(found.name, time.monotonic())
    if found.summary.on:
        waiting.otherwise = "ending it on its devbox"
    while found.machine and found.state and not found.state.final:
        if message := waiting.look(found.state, time.monotonic()):
            say(message)
        if waiting.gave_up:
            break
        time.sleep(0.5)
        found = look_again(config, found)
    return found


@dataclass
class Waiting:
    """Waiting for a job's end, and what the user hears of it. Times are in seconds."""

    name: str
    began: float
    moved: float = 0.0  # when the upload made progress for the last time
    left: str = ""  # what was left then
    reported: str = ""  # what was left in the last message
    reported_at: float = -math.inf
    is_slow: bool = False  # the user knows that it takes time
    gave_up: bool = False  # its worker does not answer
    otherwise: str = "deleting its machine"

    def look(self, state: job.State, now: float) -> str:
        """Return a message for the user, "" for none; raise BergError if the upload stalls."""
        if state.state == "UPLOADING":
            return self.look_at_upload(state, now)
        self.gave_up = now > self.began + KILL_TIMEOUT
        if self.gave_up:
            return f"{self.name} did not answer; {self.otherwise}"
        if self.is_slow or now < self.began + api.SOON:
            return ""
        self.is_slow = True
        return (
            f"{self.name} is still {state.state}: its command has 30 s to end. If it does not "
            f"answer within {KILL_TIMEOUT} s: {self.otherwise}. At once, without the last results: "
            f"berg kill --now {self.name}"
        )

    def look_at_upload(self, state: job.State, now: float) -> str:
        left = f"{state.left_files:,} files, {state.left_bytes:,} bytes are left"
        if left != self.left:
            self.left, self.moved = left, now
        still = now - self.moved
        if still > STALLED:
            raise BergError(
                f"{self.name} has been uploading its results since {state.uploading_since}, but "
                f"nothing has moved for {still:.0f} s: {left}. {state.reason}\nIt keeps trying. "
                f"To end it without them: berg kill --now {self.name}"
            )
        # Its worker takes some seconds to count.
        is_counted = state.left_files > 0 and now - self.began > 3
        if not is_counted or left == self.reported or now - self.reported_at <= 30:
            return ""
        self.reported, self.reported_at = left, now
        return (
            f"{self.name} has been uploading its results since {state.uploading_since}: {left} "
            "(Ctrl-C stops waiting)"
        )


def delete_machines(config: Config, found: Entry, now: bool) -> None:
    """Delete the machines of a job that ends; in a sweep they take the next job, unless `now`."""
    is_lost = found.state is not None and found.state.state == "LOST"
    # The machines of a sweep whose job is lost take no other job.
    gone = found.workers if is_lost and found.sweep else found.machines
    for machine in gone:
        save_console(config, found.name, machine)
        ssh.entry_file(machine.name).unlink(missing_ok=True)
    if found.state is None:
        remove_group(config, found)
    if not found.sweep or now or is_lost:
        found.place.delete(config, found.name, gone, found.group)


def remove_group(config: Config, found: Entry) -> None:
    """Delete the group of machines of an unknown job: it would re-create them."""
    for resource in found.place.resources(config):
        if (resource.kind, resource.name) == ("group", found.name):
            found.place.remove(config, resource)


def delete_disks(config: Config, name: str) -> None:
    """Delete the disks of a devbox that have no machine."""
    for disk in instances.unused_disks(config):
        if disk.get("labels", {}).get("berg-job") == name:
            path = f"/zones/{api.last_part(disk['zone'])}/disks/{disk['name']}"
            api.delete(config, path, wait_for_it=True)


def write_end(config: Config, found: Entry) -> str:
    """Write that a job was killed, unless it ended by itself; return its final state."""
    bucket = Bucket(config)
    while found.state and not found.state.final:
        assert found.stored
        try:
            states.replaced(bucket, found.stored, killed(config, found, found.state))
            return "KILLED"
        except Changed:  # its worker wrote a last state meanwhile
            found = find(config, found.name)
    if not found.state:
        return ""
    end_keeping(bucket, found)
    # Why a lost job could not begin is known only as long as its Job in the cluster is there.
    notes = [
        machine.note for machine in found.machines if machine.is_crash_looping and machine.note
    ]
    if notes and found.stored and found.state.state == "LOST":
        reason = f"{notes[0]}; ended by {config.user}"
        ended = replace(found.state, reason=reason, finished_at=job.now())
        with contextlib.suppress(Changed):
            states.replaced(bucket, found.stored, ended)
    return found.state.state


def end_keeping(bucket: Bucket, found: Entry) -> None:
    """Write that the machines of a job are kept no more: until now they cost."""
    if found.stored and found.state and found.state.kept_seconds:
        with contextlib.suppress(Changed):
            states.replaced(bucket, found.stored, replace(found.state, kept_until=job.now()))


def killed(config: Config, found: Entry, state: job.State) -> job.State:
    """Return the final state of a job that was killed."""
    reason = "; ".join([f"killed by {config.user}", *silences(found)])
    return replace(state, state="KILLED", reason=reason, finished_at=job.now())


def silences(found: Entry) -> list[str]:
    """Return which nodes do not answer, in words, each once."""
    return [*dict.fromkeys(each.silence for each in found.machines if each.silence)]


def forget_secrets(config: Config, found: Entry) -> None:
    """Delete the secrets of a job that is killed, or of its sweep with the last of its jobs."""
    if not found.summary.secrets:
        return
    if not found.sweep:
        secret.delete(config, found.name)
    elif found.state and found.state.final:
        forget_those_of_sweep(config, found.sweep, found.name)


def forget_those_of_sweep(config: Config, sweep: str, ended: str = "") -> None:
    """Delete the secrets of a sweep if all of its jobs have ended; the one named `ended` has."""
    entries = [each for each in overview(config, None, f"{sweep}-") if each.sweep == sweep]
    if all(each.name == ended or (each.state and each.state.final) for each in entries):
        secret.delete(config, sweep)


def save_console(config: Config, name: str, machine: Machine) -> None:
    """Save a machine's serial console, which goes with it, if its worker wrote no log."""
    bucket = Bucket(config)
    with contextlib.suppress(api.NotFound, Changed):  # NotFound: there is no bucket
        if not logs_of(bucket, name, machine.name) and (
            output := places.of(machine.place).console(config, machine)
        ):
            bucket.write(f"{job.log_prefix(name)}{machine.name}.log", output, generation=0)


# --- reap


@dataclass
class Leftover:
    """A machine or a resource, and why no job needs it."""

    what: Machine | Resource
    why: str

    @property
    def name(self) -> str:
        return self.what.name

    @property
    def kind(self) -> str:
        return self.what.kind if isinstance(self.what, Resource) else "machine"

    @property
    def where(self) -> str:
        """Zone or region; "" for what is global."""
        return self.what.where if isinstance(self.what, Resource) else self.what.zone

    def to_dict(self) -> dict[str, str]:
        details = {"kind": self.kind, "name": self.name, "place": self.where}
        return {**details, "created_at": self.what.created_at, "why": self.why}


@dataclass
class Seen:
    """All jobs, machines and resources."""

    entries: list[Entry]
    resources: list[Resource]
    age: Callable[[str], float]  # of a time, in seconds
    stopped_seconds: float = 0  # after which a stopped devbox is a leftover; 0: never
    imaging: Collection[str] = ()  # machines of which a command that is alive makes an image


def leftovers(config: Config, user: str | None, say: Say = jobs.silent) -> list[Leftover]:
    """Return what a user (None: all users) left behind, without machines that are kept on purpose.

    `say` gets what may still change, and idle clusters.
    """
    seen = gather(config, say)
    settled = []
    for each in [*left_machines(seen, user), *left_resources(seen, user), *cut_off(seen, user)]:
        is_off = isinstance(each.what, Machine) and each.what.status == "TERMINATED"
        if is_off or seen.age(each.what.created_at) > SETTLED:
            settled.append(each)
        else:
            say(
                f"{each.kind} {each.name} ({each.why}) may still change: look again in "
                f"{SETTLED // 60} minutes"
            )
    return in_order(settled)


def gather(config: Config, say: Say) -> Seen:
    """Ask all places in parallel what is there."""
    _ = config.credentials
    with ThreadPoolExecutor() as pool:
        idle = pool.submit(clusters.idle, config)
        listed = pool.map(lambda place: place.resources(config), places.ALL)
        secrets = pool.submit(secret.find, config)
        entries = overview(config, None, say=say)
    for line in idle.result():  # a new cluster takes ten minutes, so a person decides
        say(line)
    resources = [resource for found in listed for resource in found] + secrets.result()
    imaging = {e.name for e in entries if is_for_image(e) and power.is_claimed(config, e.name)}
    stopped_seconds = config.max_stopped_days * 86400
    return Seen(entries, resources, job.age_seconds, stopped_seconds, imaging)


def left_machines(seen: Seen, user: str | None) -> list[Leftover]:
    """Return the machines of a user (None: of all users) that no job needs."""
    found = []
    workers: dict[str, list[Machine]] = {}
    for entry in seen.entries:
        if user not in (None, entry.user):
            continue
        if entry.sweep:
            workers[entry.sweep] = entry.workers
        if why := why_left(seen, entry):
            found += [Leftover(machine, why) for machine in entry.machines]
        else:
            moved = power.left_by_move(entry)
            found += [Leftover(machine, f"{entry.name} moved to another zone") for machine in moved]
    busy = busy_sweeps(seen)
    for sweep, machines in workers.items():
        why = "it is stopped; its sweep continues" if sweep in busy else "its sweep has ended"
        for machine in machines:
            if sweep not in busy or machine.status == "TERMINATED":
                found.append(Leftover(machine, why))
    return found


def left_resources(seen: Seen, user: str | None) -> list[Leftover]:
    """Return the resources of a user (None: of all users) that no job needs."""
    # By the names of jobs and sweeps: why what has such a name is not needed; "" if it is.
    whys = dict.fromkeys((name for each in seen.entries for name in (each.name, each.sweep)), "")
    busy = busy_sweeps(seen)
    for entry in seen.entries:
        if user in (None, entry.user):
            whys[entry.name] = why_left(seen, entry)
            if entry.sweep and entry.sweep not in busy:
                whys[entry.sweep] = "its sweep has ended"
    found = []
    for resource in seen.resources:
        is_meant = not resource.user or user in (None, resource.user)
        why = resource.why or whys.get(resource.name, "no job owns it")
        if is_meant and why:
            found.append(Leftover(resource, why))
    return found


def cut_off(seen: Seen, user: str | None) -> list[Leftover]:
    """Return the jobs and sweeps of a user (None: of all users) that no machine began or will."""
    named: dict[str, list[Entry]] = {}
    for entry in seen.entries:
        if user in (None, entry.user):
            named.setdefault(entry.sweep or entry.name, []).append(entry)
    found = []
    for name, entries in named.items():
        if all(map(never_began, entries)):
            newest = max(each.stored.written_at for each in entries if each.stored)
            written = job.timestamp(newest)
            why = f"no machine began it (to run it: berg run --resume {name})"
            found.append(Leftover(Resource("job", name, "", written, why, entries[0].user), why))
    return found


def never_began(entry: Entry) -> bool:
    """Return whether a job was submitted, and no machine has begun it or will."""
    if not entry.stored or not entry.state or entry.machines or entry.workers:
        return False
    stored = entry.stored.state
    return entry.state.state == "LOST" and stored.state == "SUBMITTED" and not stored.started_at


def busy_sweeps(seen: Seen) -> set[str]:
    """Return the sweeps with a job that may still need their machines."""
    return {each.sweep for each in seen.entries if each.sweep and not why_left(seen, each)}


def why_left(seen: Seen, entry: Entry) -> str:
    """Return why the machines and the group of an entry are not needed; "" if they may be."""
    statuses = {machine.status for machine in entry.machines}
    if entry.state is None and is_for_image(entry):
        return "" if entry.name in seen.imaging else "its berg image create broke off"
    if entry.state is None:
        return "no job owns it"
    if statuses == {"TERMINATED"} and not entry.group:
        return why_off(seen, entry, entry.state)
    if not entry.state.final or entry.summary.kept:
        return ""
    end = max(entry.state.finished_at, entry.state.kept_until)
    is_settled = not end or seen.age(end) > SETTLED
    return f"the job is {entry.state.state}" if is_settled else ""


def is_for_image(entry: Entry) -> bool:
    return {each.labels.get("berg-kind") for each in entry.machines} == {"image"}


def why_off(seen: Seen, entry: Entry, state: State) -> str:
    """Return why a machine that is off is not needed; "" for a devbox that may start again."""
    if entry.summary.on:  # the machine is the devbox's
        return ""
    is_over = state.state in ("KILLED", "SUCCEEDED")
    if not entry.is_stopped and (is_over or entry.summary.kind != "devbox"):
        return f"it is stopped; the job is {state.state}"
    since = power.since(state)
    limit = seen.stopped_seconds
    if not since or not limit or seen.age(since) < limit:
        return ""
    return f"it is stopped since {since} (max_stopped_days)"


def in_order(found: list[Leftover]) -> list[Leftover]:
    """Return leftovers in the order of deletion, without machines of a group that is one itself."""
    groups = {each.name for each in found if each.kind == "group"}
    alone = [
        each
        for each in found
        if not (isinstance(each.what, Machine) and jobs.owner(each.what) in groups)
    ]
    return sorted(alone, key=lambda each: (each.kind != "machine", each.kind in DELETED_LAST))


def delete_leftovers(config: Config, found: list[Leftover]) -> None:
    """Delete leftovers in parallel; what is gone already is no error."""

    def delete(leftover: Leftover) -> None:
        what = leftover.what
        place = places.of(what.place)
        if leftover.kind == "secret":
            secret.delete(config, what.name)
        elif leftover.kind == "job":
            forget(config, what.name)
        elif isinstance(what, Resource):
            place.remove(config, what)
        else:
            save_console(config, what.name, what)
            place.delete(config, what.name, [what])
            Bucket(config).delete(power.claim_path(what.name))  # of a computer that died

    with ThreadPoolExecutor(16) as pool:
        for is_last in (False, True):
            part = [each for each in found if (each.kind in DELETED_LAST) == is_last]
            list(pool.map(delete, part))


def forget(config: Config, name: str) -> None:
    """Delete the records of a job or sweep that never began, and none of the results."""
    for removal in records.plan_removal(config, [name]):
        removal.results.clear()
        records.remove(config, removal, lambda count: None)

"""Jobs and devboxes that somebody ends: kill, rm, stop and start.

What is to end is looked at again after every wait: this computer may have slept meanwhile, and another
job may have the name. A machine is addressed by its id, so that no other one is met. Names are ended
together, with one list of each kind of thing for all of them.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from berg import BergError, features, google, place, rows, terminal
from berg import job as records
from berg.bucket import Bucket, Changed, Object, trouble
from berg.config import Config
from berg.job import KILLED, STOPPED, SUBMITTED, UPLOADING, Job, State
from berg.jobs import POLL, choose, find, host_of, is_pattern, judged
from berg.options import complete_names
from berg.place import Machine

FRESH = 5  # seconds after which `berg rm` looks again
MANY = 8  # of more jobs the objects of all are listed at once
PATIENCE = 90  # seconds that `berg kill` waits until a machine ends its command
SAVING = 400  # and until it has saved the last results
GOES_OFF = 180  # seconds within which a devbox is off
GOING_OFF = ("STOPPING", "SUSPENDING")  # what a machine is soon after `berg stop`
TROUBLE: tuple[type[Exception], ...] = (BergError, *trouble())


def each_of(
    config: Config, names: Iterable[str], act: Callable[[str], Any], failed: dict[str, str]
) -> dict[str, Any]:
    """Do it for all names at the same time, and return what it gave, without those that failed."""

    def attempt(name: str) -> Any:
        try:
            return act(name)
        except TROUBLE as error:
            failed[name] = sentence(config, error)

    names = [*names]
    with google.together(32) as pool:
        gave = dict(zip(names, pool.map(attempt, names)))
    return {name: each for name, each in gave.items() if name not in failed}


def sentence(config: Config, error: Exception) -> str:
    return google.sentence(error, config) or str(error)


def report(
    names: list[str], done: dict[str, dict[str, Any]], failed: dict[str, str], as_json: bool
) -> None:
    """Say what failed, which is the exit code 1, and print JSON of each name."""
    for error in failed.values():
        terminal.say(f"Error: {error}")
    if as_json:
        each = {name: {"error": error} for name, error in failed.items()} | done
        terminal.show_json([{"name": name, **each[name]} for name in names])
    if failed:
        sys.exit(1)


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, shell_complete=complete_names)
@click.option("--all", "everything", is_flag=True, help="All your jobs and machines.")
@click.option("--now", is_flag=True, help="Delete the machines at once, without the last results.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def kill(names: tuple[str, ...], everything: bool, now: bool, yes: bool, as_json: bool) -> None:
    """End jobs: SIGTERM, 30 seconds, the last results, then their machines are deleted.

    NAME may be a pattern for your own jobs, or SWEEP/3 for a row of a sweep. Of a devbox the disk
    goes, too, which is asked before; to keep it: berg stop.

    \b
    berg kill digits-1121-0930-x7k
    berg kill 'sweep1-*'
    berg kill --all --now
    """
    if bool(names) == everything:
        raise click.UsageError("give the name of a job, or --all")
    began, config = time.time(), Config.load()
    wanted = ["*"] if everything else names
    chosen = choose(config, wanted, lambda state: not state.is_final, has_machines=True)
    if not chosen:
        terminal.say("There is nothing to end")
    has_patterns = everything or any(map(is_pattern, names))
    if chosen and has_patterns and not terminal.confirm(f"End {', '.join(chosen)}?", yes, "-y"):
        raise BergError("nothing was changed")

    def is_agreed(name: str) -> bool:
        return yes or (has_patterns and name not in names)  # a pattern's are the user's own

    became, failed = end_all(config, chosen, now, is_agreed, began)
    done = {name: {"done": "ended", "became": state} for name, state in became.items()}
    report(chosen, done, failed, as_json)


def kill_one(config: Config, name: str, now: bool = False, yes: bool = False) -> str:
    """End a job, or a row of a sweep; what it became."""
    became, failed = end_all(config, [name], now, lambda name: yes, time.time())
    if failed:
        raise BergError(failed[name])
    return became[name]


def check_meant(record: State | Job, began: float) -> None:
    """Raise BergError for a job that was submitted after the command began (seconds since 1970): this
    computer slept, and what had the name before was meant.
    """
    if 0 <= records.age(record.created_at) < time.time() - began:  # below 0 it is another clock's
        raise BergError(
            f"{record.name} was submitted after this command began, and was not touched. "
            f"If it is meant, repeat the command"
        )


@dataclass
class Target:
    """A job that is to end, and its machines."""

    state: State
    job: Job
    machines: list[Machine]

    @property
    def is_over(self) -> bool:
        """Whether no machine has anything to save, or another job has the name by now."""
        return (self.state.is_final and not self.state.waits) or self.state.id != self.job.id

    @property
    def saves(self) -> bool:
        """Whether there is a machine that can save something."""
        is_on = any(machine.is_on for machine in self.machines)
        return is_on and not self.is_over and self.state.state != SUBMITTED

    @property
    def patience(self) -> float:
        return SAVING if self.state.state == UPLOADING else PATIENCE


def end_all(
    config: Config, names: list[str], now: bool, is_agreed: Callable[[str], bool], began: float
) -> tuple[dict[str, str], dict[str, str]]:
    """End jobs, rows of sweeps, and machines whose job has no record that can be read; by name what
    became of each, and why one failed. What there is to ask is asked first.
    """
    failed = dict[str, str]()
    whole = [name for name in names if rows.number_of(name) is None]  # others are rows of sweeps
    # Records before machines, and again after: if this computer sleeps now, another job may get a name.
    first = each_of(config, whole, reader(config, whole), failed)
    one = whole[0] if len(whole) == 1 else ""
    machines = by_job(place.machines(config, one)) if whole else {}
    again = each_of(config, first, reader(config, first), failed)
    targets, orphans, parts = dict[str, Target](), dict[str, list[Machine]](), dict[str, Job]()
    for name in [name for name in names if name not in failed]:
        own = machines.get(name, [])
        try:
            if name not in whole:
                parts[name] = row_to_end(config, name, is_agreed(name), began)
            elif isinstance(first[name], Target) and isinstance(again[name], Target):
                targets[name] = replace(first[name], machines=own)
                ask_to_end(config, targets[name], again[name].state, is_agreed(name), began)
            elif own and first[name] == again[name]:
                ask_to_delete(config, own, first[name], is_agreed(name), began)
                orphans[name] = own
            else:
                raise BergError(again[name] if isinstance(again[name], str) else first[name])
        except TROUBLE as error:
            targets.pop(name, None)
            failed[name] = sentence(config, error)

    def delete(name: str) -> str:
        place.delete(config, orphans[name])
        terminal.say(f"Deleted {', '.join(machine.name for machine in orphans[name])}")
        return "machine deleted"

    with google.together(2) as pool:
        to_kill = lambda name: kill_row(config, parts[name], name)  # noqa: E731
        others = [
            pool.submit(each_of, config, parts, to_kill, failed),
            pool.submit(each_of, config, orphans, delete, failed),
        ]
        became = end_jobs(config, targets, now, failed)
        for other in others:
            became |= other.result()
    return became, failed


def state_reader(config: Config, names: Collection[str]) -> Callable[[str], State]:
    """What reads a job's state; those of many are listed now, at once."""
    bucket = Bucket(config)
    many = records.states(bucket) if len(names) > MANY else []
    listed = {state.name: state for state in many}
    return lambda name: listed.get(name) or records.read_state(bucket, name)[0]


def reader(config: Config, names: Collection[str]) -> Callable[[str], Target | str]:
    """What reads the records of a job, or says why they are none."""
    bucket, state_of = Bucket(config), state_reader(config, names)

    def read(name: str) -> Target | str:
        try:
            return Target(state_of(name), records.read_job(bucket, name), [])
        except BergError as error:
            return str(error)

    return read


def by_job(machines: list[Machine]) -> dict[str, list[Machine]]:
    found: dict[str, list[Machine]] = {}
    for machine in machines:
        found.setdefault(machine.job, []).append(machine)
    return found


def ask_to_end(config: Config, target: Target, again: State, yes: bool, began: float) -> None:
    """Ask what is to be asked before a job ends, whose state was read `again` after its machines."""
    state, job, name = target.state, target.job, target.job.name
    check_meant(state, began)
    if not state.id == job.id == again.id:  # then the machines may be another one's
        raise BergError(f"{name} is another job now, which was not touched. See: berg show {name}")
    is_box = job.is_devbox or any(machine.is_devbox for machine in target.machines)
    target.machines = target.machines or host_of(config, state)
    target.state = judged(config, state, target.machines)
    is_there = bool(target.machines) or state.waits or not target.state.is_final
    if is_there and (is_box or job.user != config.user):
        question = (
            f"Delete the devbox {name} and what is on its disk?" if is_box else f"End {name}?"
        )
        agree(config, question, job.user, yes, job.created_at)


def ask_to_delete(
    config: Config, machines: list[Machine], reason: str, yes: bool, began: float
) -> None:
    """Ask before machines are deleted whose job has no record that can be read, for a reason."""
    ages = [records.age(machine.created_at) for machine in machines]
    if any(0 <= age < time.time() - began for age in ages):  # see `check_meant`
        raise BergError(f"{reason}. A machine of that name was made meanwhile, and not touched")
    listed = ", ".join(f"{machine.name} in {machine.zone}" for machine in machines)
    agree(config, f"{reason}. Delete {listed} with its disk?", machines[0].user, yes)


def end_jobs(
    config: Config, targets: dict[str, Target], now: bool, failed: dict[str, str]
) -> dict[str, str]:
    """Let the machines of jobs end their commands and save their results, and delete them; what each
    job became.
    """

    def tell(name: str) -> None:
        target = targets[name]
        what = "the machine of " if target.state.is_final else ""
        terminal.say(f"Ending {what}{name}; its last results are saved")
        for machine in target.machines:  # on a host another guest may have the name by then
            word = name if machine.job == name else target.job.id
            machine.tell(config, f"berg-kill-{word}", config.user)

    saving = [name for name, target in targets.items() if target.saves and not now]
    waiting = each_of(config, saving, tell, failed)
    became, left = dict[str, str](), targets.keys() - failed.keys()
    began = at = time.monotonic()
    while left:
        over = {
            name: targets[name]
            for name in left
            if name not in waiting or targets[name].is_over or at > began + targets[name].patience
        }
        became |= delete_all(config, over, failed) if over else {}
        left -= over.keys()
        if left:
            time.sleep(POLL)
            at = time.monotonic()  # the states are newer, also if this computer sleeps now
            with contextlib.suppress(*TROUBLE):  # who cannot be read now is looked at later
                for name, state in each_of(config, left, state_reader(config, left), {}).items():
                    targets[name].state = state
    return became


def delete_all(
    config: Config, targets: dict[str, Target], failed: dict[str, str]
) -> dict[str, str]:
    """Delete the machines of jobs, and what their features left; what each job became."""
    bucket, jobs = Bucket(config), {name: target.job for name, target in targets.items()}

    def forget(name: str) -> None:
        for feature in features.of(jobs[name]):
            feature.forget(config, jobs[name])

    forgotten = each_of(config, jobs, forget, failed)
    one = next(iter(jobs)) if len(jobs) == 1 else ""
    hashes = {job.sha256 for job in jobs.values()}
    try:
        machines = by_job(place.machines(config, one, made_for=hashes))
    except TROUBLE as error:
        failed |= dict.fromkeys(forgotten, sentence(config, error))
        return {}

    def finish(name: str) -> str:
        target = targets[name]
        # Machines that were found before the wait go whatever record they were made for.
        found = [*target.machines, *machines.get(name, [])]
        place.delete(config, [*{each.id: each for each in found if each.job == name}.values()])
        if target.state.waits:  # its worker has not said that this is over
            with contextlib.suppress(BergError, Changed):
                last, generation = records.read_state(bucket, name)
                if last.id == target.job.id:
                    last.kept_until = records.now()
                    records.write_state(bucket, last, generation)
        state = records.conclude(bucket, target.job, KILLED, f"killed by {config.user}")
        if state.id != target.job.id:
            terminal.say(f"{name} is another job now, which was not touched")
            return "another job"
        was_over = target.state.state == state.state and not target.machines
        terminal.say(f"{name} {'was' if was_over else 'is'} {state.state}")
        return state.state

    return each_of(config, forgotten, finish, failed)


def agree(config: Config, question: str, owner: str, yes: bool, since: str = "") -> None:
    """Ask before something is taken; whose it is, if it is another user's, is said with -y, too."""
    question += of_other(config, owner, since)
    if yes:
        terminal.say(question)
    if not terminal.confirm(question, yes, "-y"):
        raise BergError("nothing was changed")


def of_other(config: Config, owner: str, since: str) -> str:
    """Whose something is and how old, if it is another user's."""
    if owner in ("", config.user):
        return ""
    return f" It is {owner}'s" + (
        f", {terminal.duration(records.age(since))} old." if since else "."
    )


def agree_on_box(config: Config, name: str, machines: list[Machine], verb: str, yes: bool) -> None:
    """Ask before a devbox of another user is switched."""
    if (owner := machines[0].user) not in ("", config.user):
        agree(config, f"{verb} {name}?", owner, yes, machines[0].created_at)


def row_to_end(config: Config, name: str, yes: bool, began: float) -> Job:
    """Ask before a row of another user's sweep ends; the sweep."""
    job, number = records.read_job(Bucket(config), name), int(name.partition("/")[2])
    check_meant(job, began)
    if number >= len(job.rows):
        raise BergError(f"{job.name} has {len(job.rows)} rows, from {job.name}/0 on")
    if job.user != config.user:
        agree(config, f"End {name}?", job.user, yes, job.created_at)
    return job


def kill_row(config: Config, job: Job, name: str) -> str:
    """End one row of a sweep, and the others go on; what it became."""
    bucket, sweep, number = Bucket(config), job.name, int(name.partition("/")[2])
    began, reason = time.monotonic(), f"killed by {config.user}"
    while True:
        waited = time.monotonic() - began  # what is seen below is newer: this computer may sleep
        if records.read_state(bucket, sweep)[0].id != job.id:
            raise BergError(f"{sweep} is another job now, which was not touched")
        state, generation = records.row_states(bucket, sweep).get(number, (None, 0))
        if state and state.is_final:
            terminal.say(f"{name} is {state.state}")
            return state.state
        if state is None or state.state == SUBMITTED:  # nobody has it
            state = rows.state_of(job, {}, number) if state is None else state
            state.state, state.reason = KILLED, reason
            state.times[KILLED] = records.now(bucket.time())
            with contextlib.suppress(Changed):
                records.write_state(bucket, state, generation)
            continue
        for machine in place.machines(config, sweep, state.zone):
            if machine.id == state.machine_id:
                machine.tell(config, f"berg-kill-{number}", config.user)
        if waited > (SAVING if state.state == UPLOADING else PATIENCE):
            raise BergError(f"{name} has not ended in {waited:.0f} seconds. See: berg log {name}")
        time.sleep(POLL)


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rm(names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete results, logs and states of jobs that have ended; their names can be used again.

    NAME may be a pattern for your own jobs. Results that other jobs have as well stay.

    \b
    berg rm digits-1121-0930-x7k
    berg rm sweep1 'try-*'
    """
    began, config = time.time(), Config.load()
    bucket = Bucket(config)
    chosen = choose(config, names, lambda state: state.is_final)
    with terminal.waiting("Looking what there is"):
        looked, first = time.time(), removals(config, chosen)
    for name, (state, items) in first.items():
        check_meant(state, began)
        size = sum(item.size for item in items) / 1e6
        terminal.say(
            f"{name}: {len(items)} objects, {size:.1f} MB.{of_other(config, state.user, state.created_at)}"
        )
    if not chosen:
        terminal.say("There is nothing to delete")
    elif not terminal.confirm(f"Delete {', '.join(chosen)} forever?", yes, "-y"):
        raise BergError("nothing was deleted")

    def delete(name: str) -> dict[str, Any]:
        """Of what was listed what is still there, unless this computer slept until another job had it."""
        last = [records.job_path(name), records.state_path(name)]  # a rest can be deleted again
        items = first[name][1]
        if time.time() - looked > FRESH:
            seen = {(item.name, item.generation) for item in items}
            now = removals(config, [name])[name][1]
            items = [item for item in now if (item.name, item.generation) in seen]
        try:
            state = bucket.get(last[1])
            if not state or state.generation not in [item.generation for item in items]:
                raise Changed(name)
            bucket.delete(*[item for item in items if item.name not in last])
            bucket.delete(*[item for item in items if item.name in last])
        except Changed:
            raise BergError(
                f"{name} is not what it was, and what is new was not deleted. See: berg show {name}"
            ) from None
        terminal.say(f"Deleted {name}")
        return {"done": "deleted", "objects": len(items)}

    failed: dict[str, str] = {}
    report(chosen, each_of(config, chosen, delete, failed), failed, as_json)


def removals(config: Config, names: Sequence[str]) -> dict[str, tuple[State, list[Object]]]:
    """What the bucket has of jobs that have ended, without results that others have as well."""
    bucket = Bucket(config)
    for name in names:
        if rows.number_of(name) is not None:
            sweep = name.partition("/")[0]
            raise BergError(f"{name} is a row. Delete the whole sweep: berg rm {sweep}")
    listed = {
        item.name: item for kind in (records.JOBS, records.ROWS) for item in bucket.list(kind)
    }
    writers = records.states_of(listed.values())
    states = {state.name: state for state in writers}
    with google.together(8) as pool:
        found = [*pool.map(lambda kind: of_jobs(bucket, kind, names), records.OF_JOBS)]

        def removal(name: str) -> tuple[State, list[Object]]:
            state = states.get(name)
            if not (state and state.is_final):
                state = find(config, name)
            if not state.is_final:
                raise BergError(f"{name} is {state.state}. End it first: berg kill {name}")
            if state.waits and place.machines(config, name, state.zone):
                raise BergError(
                    f"the machine of {name} still waits. End it first: berg kill {name}"
                )
            items = [item for kind in found for item in kind[name]]
            items += [
                item for path, item in listed.items() if path.startswith(records.rows_prefix(name))
            ]
            own = [each for each in writers if each.name.partition("/")[0] == name]
            others = [each for each in writers if each.name.partition("/")[0] not in names]
            for folder in {state.results, *(each.results for each in own)}:
                sharing = [
                    each.name for each in others if f"{each.results}/".startswith(f"{folder}/")
                ]
                if sharing:
                    named = ", ".join(sharing[:3])
                    terminal.say(f"berg_results/{folder} stays: {named} has it as well")
                else:
                    items += bucket.list(records.results_prefix(folder))
            paths = (records.job_path(name), records.state_path(name))
            items += [listed[path] for path in paths if path in listed]
            return state, [*{item.name: item for item in items}.values()]

        return dict(zip(names, pool.map(removal, names)))


def of_jobs(bucket: Bucket, kind: str, names: Sequence[str]) -> dict[str, list[Object]]:
    """The objects of a kind that jobs have, by name; for many jobs from one list."""
    found: dict[str, list[Object]] = {name: [] for name in names}
    for prefix in [kind] if len(names) > MANY else [f"{kind}{name}/" for name in names]:
        for item in bucket.list(prefix):
            found.setdefault(item.name.removeprefix(kind).partition("/")[0], []).append(item)
    return found


# --- devboxes


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names)
@click.option("--now", is_flag=True, help="Switch off at once, without the last results.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def stop(names: tuple[str, ...], now: bool, yes: bool) -> None:
    """Switch devboxes off: their results are saved, and their disks stay. On again: berg start.

    \b
    berg stop box
    berg start box
    """
    config = Config.load()
    for name in names:
        machines = devbox(config, name)
        agree_on_box(config, name, machines, "Switch off", yes)
        if not now and any(machine.is_on for machine in machines):
            for machine in machines:
                if machine.is_on:
                    word = f"{config.user} {records.now()}"
                    machine.tell(config, "berg-stop", word)
            terminal.say(f"Stopping {name}; its last results are saved")
        end = time.monotonic() + (0 if now else SAVING)
        while any(machine.is_on for machine in machines) and time.monotonic() < end:
            time.sleep(POLL)
            machines = same(config, machines)
        machines = same(config, machines) if machines else []  # this computer may have slept
        if not machines:
            raise BergError(f"the machine of {name} was deleted meanwhile. See: berg show {name}")
        for machine in machines:
            if machine.is_on:
                machine.stop(config)
        terminal.say(f"{name} is off. Its disk costs money until you delete it: berg kill {name}")


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def start(names: tuple[str, ...], yes: bool) -> None:
    """Switch devboxes on again, with their disks.

    \b
    berg start box
    """
    config = Config.load()
    for name in names:
        machines = devbox(config, name)
        agree_on_box(config, name, machines, "Switch on", yes)
        bucket, end = Bucket(config), time.monotonic() + GOES_OFF
        while is_going_off(bucket, name, machines):
            if time.monotonic() > end:
                raise BergError(f"{name} is STOPPED, but does not go off. See: berg show {name}")
            time.sleep(POLL)
            machines = same(config, machines)
        if not machines:
            raise BergError(f"the machine of {name} was deleted meanwhile. See: berg show {name}")
        for machine in machines:
            if not machine.is_on:
                machine.start(config)
        with contextlib.suppress(BergError, Changed):  # its records may be damaged
            state, generation = records.read_state(bucket, name)
            is_its = state.machine_id in [machine.id for machine in machines]
            if state.state == STOPPED and is_its:
                state.state, state.seconds_before = SUBMITTED, state.seconds
                state.times = {SUBMITTED: records.now(bucket.time())}
                records.write_state(bucket, state, generation)
        terminal.say(f"{name} is on. Log in: berg ssh {name}")


def is_going_off(bucket: Bucket, name: str, machines: list[Machine]) -> bool:
    """Whether a devbox goes off, or is about to: its worker says before that it is STOPPED."""
    if any(machine.status in GOING_OFF for machine in machines):
        return True
    with contextlib.suppress(BergError):  # its records may be damaged
        state, _ = records.read_state(bucket, name)
        on = [machine.id for machine in machines if machine.is_on]
        return state.state == STOPPED and state.machine_id in on
    return False


def devbox(config: Config, name: str) -> list[Machine]:
    """The machines of a devbox, by their labels alone."""
    machines = place.machines(config, name)
    if not machines:
        raise BergError(f"there is no devbox {name!r}. See them: berg list")
    if not all(machine.is_devbox for machine in machines):
        raise BergError(f"{name} is a job, which has no disk to keep. End it: berg kill {name}")
    if not all(machine.has_disk for machine in machines):
        raise BergError(f"{name} is in pods, which have no disk to keep. End it: berg kill {name}")
    return machines


def same(config: Config, machines: list[Machine]) -> list[Machine]:
    """The same machines as they are now, without those that are gone."""
    ids = {machine.id for machine in machines}
    return [machine for machine in place.machines(config, machines[0].job) if machine.id in ids]

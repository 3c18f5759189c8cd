"""Jobs that exist: list, show, wait, kill, rm, stop and start."""

import contextlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import click

from berg import BergError, features, gce, google, rows, terminal
from berg import job as records
from berg.bucket import Bucket, Changed
from berg.config import Config
from berg.gce import Machine
from berg.google import GoogleError
from berg.job import KILLED, LOST, STOPPED, SUBMITTED, SUCCEEDED, UPLOADING, Job, State

POLL = 2  # seconds between two looks at a job
PATIENCE = 90  # seconds that `berg kill` waits until a machine ends its command
SAVING = 400  # and until it has saved the last results


def observed(config: Config) -> tuple[list[State], list[Machine]]:
    """All jobs with what Compute Engine adds: one without a machine for long is LOST."""
    bucket = Bucket(config)
    with ThreadPoolExecutor(1) as pool:
        listed = pool.submit(gce.machines, config)
        states = records.states(bucket)
        machines = listed.result()
    own: dict[str, list[Machine]] = {}
    for machine in machines:
        own.setdefault(machine.job, []).append(machine)
    return [judged(config, state, own.get(state.name, [])) for state in states], machines


def judged(config: Config, state: State, machines: list[Machine]) -> State:
    """A state as it is in truth: a devbox whose machines are off is STOPPED, a job without a machine for
    long, for which none will come, is LOST.
    """
    if state.is_final or any(machine.is_on for machine in machines):
        return state
    if machines and state.is_devbox:
        return replace(state, state=STOPPED, times={**state.times, STOPPED: state.changed_at})
    if records.age(state.changed_at) < records.SILENT:
        return state
    if state.returns and gce.has_group(config, state.name):
        return state
    reason = f"its machine vanished while it was {state.state}. See: berg log {state.name}"
    return replace(state, state=LOST, reason=reason, times={**state.times, LOST: state.changed_at})


def find(config: Config, name: str) -> State:
    """One job, as it is in truth; @ is the user's latest."""
    bucket = Bucket(config)
    if name == "@":
        mine = [state for state in records.states(bucket) if state.user == config.user]
        if not mine:
            raise BergError("you have no jobs yet. Start one: berg run CMD")
        name = mine[-1].name
    state, _ = records.read_state(bucket, name)
    if not state.is_final and records.age(state.changed_at) >= records.SILENT:
        return judged(config, state, gce.machines(config, name, state.zone))
    return state


def exit_code(state: State) -> int:
    """What `berg wait` exits with: the command's code, 0 or 1 for a job without one."""
    if state.state == SUCCEEDED:
        return 0
    return state.exit_code or 1


def wait_for(config: Config, name: str) -> int:
    """Wait until a job has ended; say how, and return the exit code."""
    while not (state := find(config, name)).is_final:
        time.sleep(POLL)
    with_code = f" with exit code {state.exit_code}" if state.exit_code is not None else ""
    reason = f": {state.reason}" if state.reason and "exit code" not in state.reason else ""
    terminal.say(f"{state.name} {state.state}{with_code}{reason}")
    return exit_code(state)


@click.command("list")
@click.option("-a", "--all", "everything", is_flag=True, help="All jobs, not the latest 20.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(everything: bool, as_json: bool) -> None:
    """Show machines and recent jobs, the newest first."""
    config = Config.load()
    states, machines = observed(config)
    if as_json:
        return terminal.show_json([about(config, state) for state in reversed(states)])
    shown = list(reversed(states))
    if not everything:
        shown = [state for number, state in enumerate(shown) if number < 20 or not state.is_final]
    rows = [
        [
            state.name,
            state.state + (f" ({state.attempt})" if state.attempt > 1 else ""),
            terminal.duration(records.age(state.created_at)),
            state.zone,
            state.gpus,
            "" if state.exit_code is None else str(state.exit_code),
            state.results,
        ]
        for state in shown
    ]
    terminal.show_table(["NAME", "STATE", "AGE", "ZONE", "GPUS", "EXIT", "RESULTS"], rows)
    ended = {state.name for state in states if state.is_final}
    alone = [
        machine
        for machine in machines
        if machine.job in ended or machine.job not in {s.name for s in states}
    ]
    for machine in alone:
        if records.age(machine.created_at) > records.SILENT:
            terminal.warn(
                f"{machine.name} in {machine.zone} has no job. Delete it: berg kill {machine.job}"
            )
    return None


def about(config: Config, state: State) -> dict[str, Any]:
    folder = f"gs://{config.bucket}/{records.results_prefix(state.results)}"
    return {**asdict(state), "results_url": folder}


@click.command()
@click.argument("name", default="@")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str, as_json: bool) -> None:
    """Show all about a job; @ is your latest."""
    config = Config.load()
    state = find(config, name)
    job = records.read_job(Bucket(config), state.name)
    machines = gce.machines(config, state.name)
    if as_json:
        running = [asdict(machine) for machine in machines]
        return terminal.show_json({**about(config, state), "job": asdict(job), "running": running})
    fields = {
        "Job": state.name,
        "State": f"{state.state} {state.reason}".strip(),
        "Exit code": "" if state.exit_code is None else str(state.exit_code),
        "Attempt": str(state.attempt) if state.attempt > 1 else "",
        "Command": job.cmd or "none: a devbox",
        "Code": f"{job.repo} at {job.code['head'][:12]}, {len(job.code['changed'])} changed files",
        "Machines": "\n".join(
            f"{m.name} {m.status} {m.machine_type} in {m.zone}" for m in machines
        ),
        "Results": f"gs://{config.bucket}/{records.results_prefix(state.results)}",
        "Rows": "\n".join(
            f"{number} {state.state} {rows.describe(job.rows[number])} {state.reason}".rstrip()
            for number, (state, _) in sorted(records.row_states(Bucket(config), state.name).items())
        ),
        "Missing": "\n".join(f"{path}: {reason}" for path, reason in state.missing.items()),
        "Times": "\n".join(f"{time} {step}" for step, time in state.times.items()),
        "User": job.user,
    }
    terminal.show_fields({key: text for key, text in fields.items() if text})
    return None


@click.command()
@click.argument("name", default="@")
def wait(name: str) -> None:
    """Wait until a job has ended, and exit with its command's exit code."""
    config = Config.load()
    sys.exit(wait_for(config, find(config, name).name))


@click.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--now", is_flag=True, help="Delete the machines at once, without the last results.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def kill(names: tuple[str, ...], now: bool, yes: bool) -> None:
    """End jobs: SIGTERM, 30 seconds, the last results, then their machines are deleted.

    Of a devbox the disk goes, too, which is asked before; to keep it: berg stop.
    """
    config = Config.load()
    for name in names:
        if rows.number_of(name) is None:
            kill_one(config, name, now, yes)
        else:
            kill_row(config, name)


def kill_one(config: Config, name: str, now: bool, yes: bool) -> None:
    """End a job, or delete the machines of one whose records are missing or damaged."""
    bucket, name = Bucket(config), find(config, name).name if name == "@" else name
    try:  # before its machines: if this computer sleeps now, another job may get the name
        state, job = find(config, name), records.read_job(bucket, name)
        machines = gce.machines(config, name)
    except BergError as error:
        machines = gce.machines(config, name)
        if not machines:
            raise
        listed = ", ".join(f"{machine.name} in {machine.zone}" for machine in machines)
        agree(config, f"{error}. Delete {listed} with its disk?", machines[0].user, yes)
        gce.delete(config, name, ids={machine.id for machine in machines})
        return terminal.say(f"Deleted {listed}")
    is_box = job.is_devbox or any(machine.is_devbox for machine in machines)
    if not state.is_final and (is_box or job.user != config.user):
        question = (
            f"Delete the devbox {name} and what is on its disk?" if is_box else f"End {name}?"
        )
        agree(config, question, job.user, yes, job.created_at)
    is_on = any(machine.is_on for machine in machines)
    if is_on and not (now or state.is_final or state.state == SUBMITTED):
        terminal.say(f"Ending {name}; its last results are saved")
        for machine in machines:
            gce.set_metadata(config, machine, "berg-kill", config.user)
        began = time.monotonic()
        while not state.is_final and state.id == job.id:
            patience = SAVING if state.state == UPLOADING else PATIENCE
            if time.monotonic() > began + patience:
                break
            time.sleep(POLL)
            state = find(config, name)
    remove(config, job)
    was_final = state.is_final
    state = records.conclude(bucket, job, KILLED, f"killed by {config.user}")
    if state.id != job.id:
        return terminal.say(f"{name} is another job now, which was not touched")
    terminal.say(f"{name} {'was' if was_final and not machines else 'is'} {state.state}")
    return None


def agree(config: Config, question: str, owner: str, yes: bool, since: str = "") -> None:
    """Ask before something is taken; whose it is, if it is another user's, is said with -y, too."""
    if owner and owner != config.user:
        old = f", {terminal.duration(records.age(since))} old" if since else ""
        question = f"{question} It is {owner}'s{old}."
    if yes:
        terminal.say(question)
    if not terminal.confirm(question, yes, "-y"):
        raise BergError("nothing was changed")


def kill_row(config: Config, name: str) -> None:
    """End one row of a sweep; the others go on."""
    bucket, (sweep, _, number) = Bucket(config), name.partition("/")
    job = records.read_job(bucket, sweep)
    if int(number) >= len(job.rows):
        raise BergError(f"{sweep} has {len(job.rows)} rows, from {sweep}/0 on")
    end, reason = time.monotonic() + PATIENCE, f"killed by {config.user}"
    while time.monotonic() < end:
        state, generation = records.row_states(bucket, sweep).get(int(number), (None, 0))
        if state and state.is_final:
            return terminal.say(f"{name} is {state.state}")
        if state is None or state.state == SUBMITTED:  # nobody has it
            of_row = rows.row_job(job, int(number))
            state = state or State(name, results=of_row.results, user=job.user, id=job.id)
            state.created_at = state.created_at or job.created_at
            state.state, state.reason = KILLED, reason
            state.times[KILLED] = records.now(bucket.time())
            with contextlib.suppress(Changed):
                records.write_state(bucket, state, generation)
            continue
        for machine in gce.machines(config, sweep, state.zone):
            if machine.id == state.machine_id:
                gce.set_metadata(config, machine, f"berg-kill-{number}", config.user)
        time.sleep(POLL)
    raise BergError(f"{name} has not ended within {PATIENCE} seconds. See: berg log {name}")


def remove(config: Config, job: Job) -> None:
    """Delete a job's machines and what its features left."""
    from berg.run import end

    end(config, job, features.of(job))


@click.command()
@click.argument("names", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(names: tuple[str, ...], yes: bool) -> None:
    """Delete results, logs and states of jobs from the bucket."""
    config = Config.load()
    bucket = Bucket(config)
    for name in names:
        state = find(config, name)
        if not state.is_final:
            raise BergError(f"{state.name} is {state.state}. End it first: berg kill {state.name}")
        prefixes = [
            records.results_prefix(state.results),
            records.log_prefix(state.name),
            records.machines_prefix(state.name),
            records.rows_prefix(state.name),
            f".berg/moments/{state.name}/",
        ]
        items = [item for prefix in prefixes for item in bucket.list(prefix)]
        size = sum(item.size for item in items) / 1e6
        question = f"Delete {len(items)} objects ({size:.1f} MB) of {state.name}?"
        if terminal.confirm(question, yes, "-y"):
            bucket.delete(*[item.name for item in items])
            bucket.delete(records.job_path(state.name), records.state_path(state.name))
            terminal.say(f"Deleted {state.name}")


# --- devboxes


@click.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--now", is_flag=True, help="Switch off at once, without the last results.")
def stop(names: tuple[str, ...], now: bool) -> None:
    """Switch devboxes off: their results are saved, and their disks stay. On again: berg start."""
    config = Config.load()
    for name in names:
        machines = devbox(config, name)
        if not now:
            for machine in machines:
                if machine.is_on:
                    word = f"{config.user} {records.now()}"
                    gce.set_metadata(config, machine, "berg-stop", word)
            terminal.say(f"Stopping {name}; its last results are saved")
        end = time.monotonic() + (0 if now else SAVING)
        while any(machine.is_on for machine in machines) and time.monotonic() < end:
            time.sleep(POLL)
            machines = same(config, machines)
        for machine in machines:
            if machine.is_on:
                google.do(config, "POST", f"{machine.path}/stop")
        terminal.say(f"{name} is off. Its disk costs until: berg kill {name}")


@click.command()
@click.argument("names", nargs=-1, required=True)
def start(names: tuple[str, ...]) -> None:
    """Switch devboxes on again, with their disks."""
    config = Config.load()
    for name in names:
        for machine in devbox(config, name):
            if machine.is_on:
                continue
            try:
                google.do(config, "POST", f"{machine.path}/start")
            except GoogleError as error:
                if error.reason not in gce.NO_ROOM:
                    raise
                raise BergError(
                    f"{machine.zone} has no room for {machine.name} now, and its disk is there. "
                    f"Try again later: berg start {name}"
                ) from None
        bucket = Bucket(config)
        with contextlib.suppress(BergError, Changed):  # its records may be damaged
            state, generation = records.read_state(bucket, name)
            if state.state == STOPPED:
                state.state, state.times[SUBMITTED] = SUBMITTED, records.now(bucket.time())
                records.write_state(bucket, state, generation)
        terminal.say(f"{name} is on. Log in: berg ssh {name}")


def devbox(config: Config, name: str) -> list[Machine]:
    """The machines of a devbox, by their labels alone."""
    machines = gce.machines(config, name)
    if not machines:
        raise BergError(f"there is no devbox {name!r}. See them: berg list")
    if not all(machine.is_devbox for machine in machines):
        raise BergError(f"{name} is a job, which has no disk to keep. End it: berg kill {name}")
    return machines


def same(config: Config, machines: list[Machine]) -> list[Machine]:
    """The same machines as they are now, without those that are gone."""
    ids = {machine.id for machine in machines}
    return [machine for machine in gce.machines(config, machines[0].job) if machine.id in ids]

"""Jobs that exist: list, show, wait, kill, rm, stop and start."""

import contextlib
import fnmatch
import functools
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

import click

from berg import BergError, features, gce, metrics, place, rows, table, terminal, usage
from berg import job as records
from berg.bucket import Bucket, Changed, Object
from berg.config import Config
from berg.job import KILLED, LOST, RUNNING, STOPPED, SUBMITTED, SUCCEEDED, UPLOADING, Job, State
from berg.options import complete_names
from berg.place import Machine

POLL, WATCH = 2, 5  # seconds between two looks at a job, and at the list
FINISHED = 20  # jobs that have ended in the list
LINES = 10  # of the log
ABOUT, ROOM = "ABOUT", 24  # the last column of the list, and letters for it in a narrow terminal
FRESH = 5  # seconds after which `berg rm` looks again
MANY = 8  # of more jobs it lists the objects of all at once
FILES = 1000  # of the results that `berg show --json` names
PATIENCE = 90  # seconds that `berg kill` waits until a machine ends its command
SAVING = 400  # and until it has saved the last results


def observed(config: Config) -> tuple[list[State], list[Machine]]:
    """All jobs with what their places add: one without a machine for long is LOST."""
    bucket = Bucket(config)
    with ThreadPoolExecutor(1) as pool:
        listed = pool.submit(place.machines, config)
        states = records.states(bucket)
        machines = listed.result()
    own: dict[str, list[Machine]] = {}
    for machine in machines:
        own.setdefault(machine.job, []).append(machine)
        own.setdefault(machine.id, []).append(machine)  # for its guests
    return [
        judged(config, state, own.get(state.name, []) or own.get(state.machine_id, []))
        for state in states
    ], machines


def judged(config: Config, state: State, machines: list[Machine]) -> State:
    """A state as it is in truth: a devbox whose machines are off is STOPPED, a job without a machine for
    long, for which none will come, is LOST.
    """
    if state.is_final:
        return state
    if any(machine.is_on for machine in machines):
        note = next((machine.note for machine in machines if machine.note), "")
        return replace(state, reason=note or state.reason)
    if machines and state.is_devbox:
        return replace(state, state=STOPPED, times={**state.times, STOPPED: state.changed_at})
    if records.age(state.changed_at) < records.SILENT:
        return state
    may_come = state.returns or state.state == SUBMITTED
    if may_come and place.is_coming(config, state.name):
        return state
    reason = f"its machine vanished while it was {state.state}. See: berg log {state.name}"
    return replace(state, state=LOST, reason=reason, times={**state.times, LOST: state.changed_at})


def find(config: Config, name: str) -> State:
    """One job, or a row of a sweep, as it is in truth; @ is the user's latest job."""
    bucket = Bucket(config)
    if name == "@":
        mine = [state for state in records.states(bucket) if state.user == config.user]
        if not mine:
            raise BergError("you have no jobs yet. Start one: berg run CMD")
        name = mine[-1].name
    if rows.number_of(name) is not None:
        return find_row(config, name)
    state, _ = records.read_state(bucket, name)
    if not state.is_final and records.age(state.changed_at) >= records.SILENT:
        machines = place.machines(config, name, state.zone) or host_of(config, state)
        return judged(config, state, machines)
    return state


def host_of(config: Config, state: State) -> list[Machine]:
    """The machine on which a job is a guest, while it runs; none for a job with machines of its own."""
    if state.is_final or not state.machine_id:
        return []
    machine = gce.machine(config, state.zone, state.machine_id)
    is_host = machine and machine.job != state.name
    return [machine] if machine and is_host else []


def find_row(config: Config, name: str) -> State:
    """A row of a sweep: SUBMITTED until a machine takes it, and LOST if the sweep ended without it."""
    bucket, (sweep, _, number) = Bucket(config), name.partition("/")
    job = records.read_job(bucket, sweep)
    if int(number) >= len(job.rows):
        has = f"{len(job.rows)} rows, from {sweep}/0 on" if job.rows else "no rows"
        raise BergError(f"{sweep} has {has}. See: berg show {sweep}")
    state = rows.state_of(job, records.row_states(bucket, sweep), int(number))
    if not state.is_final and (whole := find(config, sweep)).is_final:
        reason = f"{sweep} ended {whole.state} before it"
        return replace(state, state=LOST, reason=reason, times={LOST: whole.changed_at})
    return state


def choose(
    config: Config,
    names: Sequence[str],
    is_fit: Callable[[State], bool] = lambda state: True,
    has_machines: bool = False,
) -> list[str]:
    """The names that were meant, each once: @ is the user's latest job, and a pattern such as 'try-*'
    stands for the user's own jobs that are fit for the command; with `has_machines` also for those
    that have machines and no record.
    """
    found: list[str] = []
    own: list[str] | None = None
    for name in names:
        if not is_pattern(name):
            found.append(find(config, name).name if name == "@" else name)
            continue
        if own is None:
            states, machines = observed(config)
            own = [state.name for state in states if state.user == config.user and is_fit(state)]
            if has_machines:
                own += [machine.job for machine in machines if machine.user == config.user]
        matching = fnmatch.filter(own, name)
        if not matching and name != "*":
            raise BergError(f"{name!r} matches none of your jobs. See them: berg list")
        found += matching
    return [*dict.fromkeys(found)]


def is_pattern(name: str) -> bool:
    return any(letter in name for letter in "*?[")


def each_of(
    names: list[str], prepare: Callable[[str], Callable[[], dict[str, Any]]], as_json: bool
) -> None:
    """Prepare it for each name, which may ask; then do it for all at the same time. What failed is
    said, and is the exit code 1.
    """

    def attempt(name: str, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except BergError as error:
            terminal.say(f"Error: {error}")
            return {"name": name, "error": str(error)}

    acts = [attempt(name, functools.partial(prepare, name)) for name in names]
    with ThreadPoolExecutor(16) as pool:
        done = [
            *pool.map(lambda n, act: act if isinstance(act, dict) else attempt(n, act), names, acts)
        ]
    if as_json:
        terminal.show_json(done)
    if any("error" in row for row in done):
        sys.exit(1)


def exit_code(state: State) -> int:
    """What `berg wait` exits with: the command's code, 0 or 1 for a job without one."""
    if state.state == SUCCEEDED:
        return 0
    return state.exit_code or 1


def wait_for(config: Config, name: str) -> State:
    """Wait until a job has ended; say how, and return its state then."""
    return wait_for_all(config, [name])[0]


@contextlib.contextmanager
def left_alone(*names: str) -> Iterator[None]:
    """Say at Ctrl-C that the jobs, which a user only watched, go on."""
    try:
        yield
    except KeyboardInterrupt:
        terminal.say(f"{', '.join(names)} goes on. To end it: berg kill {' '.join(names)}")
        raise


def say_next(state: State) -> None:
    """Say what a user may do next with a job that has ended."""
    is_good = state.state == SUCCEEDED
    name = state.name
    terminal.say(f"Its results: berg fetch {name}" if is_good else f"Its log: berg log {name}")


def wait_for_all(config: Config, names: list[str], is_any: bool = False) -> list[State]:
    """Wait until all jobs have ended, or any; say how, and return the states of those that have."""
    ended: dict[str, State] = {}
    before = SUBMITTED
    while True:
        for name in [name for name in names if name not in ended]:
            state = find(config, name)
            if len(names) == 1 and state.state != before and not state.is_final:
                before = state.state
                terminal.say(f"{name} {before}")
            if state.is_final:
                ended[name] = state
                code = f" with exit code {state.exit_code}" if state.exit_code is not None else ""
                more = without_code(state)
                terminal.say(f"{name} {state.state}{code}{f': {more}' * bool(more)}")
        if len(ended) == len(names) or (ended and is_any):
            return [ended[name] for name in names if name in ended]
        time.sleep(POLL)


@click.command("list")
@click.option(
    "-a", "--all", "everyone", is_flag=True, help="Include other users' jobs and machines."
)
@click.option("-c", "--command", "commands", is_flag=True, help="Show the commands, too.")
@click.option("-v", "--verbose", is_flag=True, help="Show machines and rows of sweeps, too.")
@click.option(
    "--limit", type=click.IntRange(0), default=FINISHED, show_default=True,
    help="Jobs that have ended, at most.",
)  # fmt: skip
@click.option("--all-jobs", "is_whole", is_flag=True, help="All jobs that have ended.")
@click.option("--watch", is_flag=True, help="Refresh every 5 seconds until all jobs have ended.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(
    everyone: bool, commands: bool, verbose: bool, limit: int, is_whole: bool, watch: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Show machines and recent jobs, the newest at the bottom.

    \b
    berg list -a -c
    berg list --watch
    berg list --json | jq -r '.[] | select(.state == "FAILED") | .name'
    """
    config = Config.load()
    while True:
        states, machines = observed(config)
        states += unrecorded(states, machines)
        if not everyone:
            states = [state for state in states if state.user in ("", config.user)]
        ended = [state.name for state in states if state.is_final]
        shown = {*ended} if is_whole else {*ended[len(ended) - min(limit, len(ended)) :]}
        shown |= {state.name for state in states if state.waits}
        states = [state for state in states if not state.is_final or state.name in shown]
        if as_json:
            return terminal.show_json([about(config, state, machines) for state in states])
        if watch and sys.stdout.isatty():
            click.clear()
        show_list(config, states, machines, everyone, commands, verbose)
        if not watch or all(state.is_final for state in states):
            return None
        time.sleep(WATCH)


def unrecorded(states: list[State], machines: list[Machine]) -> list[State]:
    """States for machines whose job has no record that can be read."""
    known, found = {state.name for state in states}, {}
    for machine in machines:
        if machine.job and machine.job not in known:
            state = RUNNING if machine.is_on else STOPPED
            created = datetime.fromisoformat(machine.created_at.replace("Z", "+00:00"))
            at = records.now(created.timestamp())
            reason = (
                f"{machine.name} has no job that can be read. Delete it: berg kill {machine.job}"
            )
            found[machine.job] = State(
                machine.job, state, machine.user, zone=machine.zone, is_devbox=machine.is_devbox,
                machine=machine.name, created_at=at, times={state: at}, reason=reason,
            )  # fmt: skip
    return [*found.values()]


def show_list(
    config: Config, states: list[State], machines: list[Machine], everyone: bool,
    commands: bool, verbose: bool,
) -> None:  # fmt: skip
    """Print a line for each job, which ends with what there is to say about it."""
    bucket, lines = Bucket(config), list[list[str]]()
    with ThreadPoolExecutor(16) as pool:
        cmds = [*pool.map(lambda each: command_of(bucket, each) if commands else "", states)]
        begun = [
            *pool.map(
                lambda each: own_rows(bucket, each) if verbose or not each.is_final else [], states
            )
        ]
    for state, cmd, own in zip(states, cmds, begun):
        counts = Counter(row.state for row in own)
        words = [
            waiting(state, machines),  # first, as it costs money
            cmd,
            state.note,
            ", ".join(f"{count} {outcome}" for outcome, count in counts.items()),
            without_code(state),
            "" if state.results in ("", state.name) else f"results in {state.results}",
        ]
        lines.append(line_of(state, "; ".join(filter(None, words)), everyone))
        lines += [line_of(row, without_code(row), everyone) for row in own if verbose]
        for machine in (machine for machine in machines if machine.job == state.name):
            if verbose:
                name = "its machine" if machine.name == state.name else machine.name
                user = [machine.user] if everyone else []
                cells = ["", machine.zone, "", "", *user, "", machine.machine_type]
                lines.append([f"  {name}", machine.status, *cells])
            is_late = records.age(state.changed_at) > records.SILENT
            if state.is_final and is_late and not state.waits:
                terminal.warn(
                    f"{machine.name} in {machine.zone} still exists although its job has ended. "
                    f"Delete it: berg kill {state.name}"
                )
    columns = [
        "NAME",
        "STATE",
        "AGE",
        "ZONE",
        "GPUS",
        "COST",
        *["USER"] * everyone,
        "EXIT",
        ABOUT,
    ]
    kept = fitting(columns, lines, terminal.width())
    shown = [[line[number] for number in kept] for line in lines]
    terminal.show_table([columns[number] for number in kept], shown, is_cut=True)


def fitting(columns: list[str], lines: list[list[str]], width: int) -> list[int]:
    """Which columns a terminal shows: none that is empty, and in a narrow one not those that matter
    least; all where there is no terminal (0).
    """
    if not width:
        return [*range(len(columns))]
    widths = [max([0, *(len(line[n]) for line in lines)]) for n in range(len(columns))]
    kept = [n for n, name in enumerate(columns) if widths[n] or name == ABOUT]
    for least in ("ZONE", "COST", "GPUS"):
        taken = sum(max(widths[n], len(columns[n])) + 2 for n in kept if columns[n] != ABOUT)
        if taken + ROOM > width:
            kept = [n for n in kept if columns[n] != least]
    return kept


def without_code(state: State) -> str:
    """The reason, without an exit code that is said beside it."""
    return state.reason.removeprefix(f"exit code {state.exit_code}").removeprefix(": ")


def waiting(state: State, machines: list[Machine]) -> str:
    """That the machine of a job that has ended waits, or on whose machine a job is; "" for most."""
    if state.waits and any(machine.job == state.name and machine.is_on for machine in machines):
        left = terminal.duration(state.waits)
        return f"waits for {left}: berg run --on {state.name}, berg kill {state.name}"
    if state.is_final:
        return ""
    hosts = [machine.job for machine in machines if machine.id == state.machine_id]
    return f"on {hosts[0]}" if hosts and hosts[0] != state.name else ""


def line_of(state: State, words: str, has_user: bool) -> list[str]:
    return [
        state.name,
        state.state + (f" ({state.attempt})" if state.attempt > 1 else ""),
        terminal.duration(records.age(state.created_at)),
        state.zone,
        state.gpus,
        terminal.dollars(state.usd),
        *([state.user] if has_user else []),
        "" if state.exit_code is None else str(state.exit_code),
        words,
    ]


def command_of(bucket: Bucket, state: State) -> str:
    with contextlib.suppress(BergError):
        return records.read_job(bucket, state.name).cmd or "a devbox"
    return ""


def own_rows(bucket: Bucket, state: State) -> list[State]:
    """The rows of a sweep that have begun; none of another job."""
    return [row for _, (row, _) in sorted(records.row_states(bucket, state.name).items())]


def about(config: Config, state: State, machines: Sequence[Machine] = ()) -> dict[str, Any]:
    """A state as JSON has it."""
    folder = f"gs://{config.bucket}/{records.results_prefix(state.results)}"
    return {
        **asdict(state),
        "usd": state.usd,
        "usd_per_hour": state.usd_per_hour,
        "results_url": folder,
        "started_at": state.times.get(RUNNING, ""),
        "finished_at": state.changed_at if state.is_final else "",
        "instances": [machine.name for machine in machines if machine.job == state.name],
    }


def all_about(config: Config, name: str, lines: int = LINES) -> dict[str, Any]:
    """All about a job, or a row of a sweep, as `berg show --json` prints it."""
    from berg import logs

    bucket, state = Bucket(config), find(config, name)
    job, machines = records.read_job(bucket, state.name), machines_of(config, state)
    folder = records.results_prefix(state.results)
    listed = itertools.islice(bucket.list(folder), FILES)
    return {
        **about(config, state),
        "instances": [machine.name for machine in machines],
        "metadata": asdict(job),
        "running": [asdict(machine) for machine in machines],
        "results": [{"path": each.name[len(folder) :], "bytes": each.size} for each in listed],
        "metrics": metrics.finite(metrics.of_results(bucket, state.results).last),
        "usage": usage.summary(usage.read(bucket, state.name)),
        "log": logs.last_lines(bucket, state.name, lines),
    }


def machines_of(config: Config, state: State) -> list[Machine]:
    """The machines of a job, or the one that has a row of a sweep or a guest."""
    machines = place.machines(config, state.name.partition("/")[0]) or host_of(config, state)
    if "/" in state.name:
        machines = [machine for machine in machines if machine.id == state.machine_id]
    return machines


@click.command()
@click.argument("name", default="@", shell_complete=complete_names)
@click.option(
    "--lines", type=click.IntRange(0), default=LINES, show_default=True, help="Of the log."
)
@click.option("--ip", is_flag=True, help="Print only the address of its machine.")
@click.option("--views", is_flag=True, help="List the times that berg fetch --view can go back to.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str, lines: int, ip: bool, views: bool, as_json: bool) -> None:
    """Show all about a job; @ is your latest, SWEEP/3 a row of a sweep. A sweep is shown with its rows.

    \b
    berg show digits-1121-0930-x7k
    ping $(berg show my-devbox --ip)
    berg show @ --json | jq .metadata.code.head
    """
    from berg import logs

    config = Config.load()
    state = find(config, name)
    if ip:
        addresses = [each.address or each.inner_address for each in machines_of(config, state)]
        if not addresses:
            raise BergError(f"{state.name} is {state.state} and has no machine. See: berg list")
        return terminal.show(addresses[0])
    bucket = Bucket(config)
    if views:
        found = moments(bucket, state)
        if as_json:
            return terminal.show_json(found)
        cells = [[str(value) for value in row.values()] for row in found]
        return terminal.show_table(["TIME", "FILES", "BYTES"], cells)
    job = records.read_job(bucket, state.name)
    is_sweep = bool(job.rows) and "/" not in state.name
    table_rows, notes = table.read(config, state.name) if is_sweep else ([], [])
    for note in notes:
        terminal.warn(note)
    if as_json and is_sweep:
        return terminal.show_json([row.record() for row in table_rows])
    if as_json:
        return terminal.show_json(all_about(config, state.name, lines))
    machines = machines_of(config, state)
    values = metrics.of_results(bucket, state.results).last
    number = rows.number_of(state.name)
    fields = {
        "Job": state.name,
        "Note": state.note,
        "State": f"{state.state} {state.reason}".strip(),
        "Waiting": waiting(state, machines),
        "Exit code": "" if state.exit_code is None else str(state.exit_code),
        "Attempt": str(state.attempt) if state.attempt > 1 else "",
        "Command": job.cmd or "none: a devbox",
        "Values": "" if number is None else rows.describe(job.rows[number]),
        "Code": f"{job.repo} at {job.code['head'][:12] or 'no commit'}, "
        f"{len(job.code['changed'])} changed files",
        "Machines": "\n".join(
            f"{m.name} {m.status} {m.machine_type} in {m.zone}" for m in machines
        ),
        "Results": f"gs://{config.bucket}/{records.results_prefix(state.results)}",
        "Cost": f"{terminal.dollars(state.usd)}, at {terminal.dollars(state.usd_per_hour)} an hour",
        "Metrics": ", ".join(f"{key} {metrics.text(value)}" for key, value in values.items()),
        "Usage": ", ".join(
            f"{name} {row['mean']:.0f} % (peak {row['peak']:.0f} %)"
            for name, row in usage.summary(usage.read(bucket, state.name)).items()
        ),
        "Missing": "\n".join(f"{path}: {reason}" for path, reason in state.missing.items()),
        "Times": "\n".join(f"{time} {step}" for step, time in state.times.items()),
        "User": job.user,
    }
    terminal.show_fields({key: text for key, text in fields.items() if text})
    if is_sweep:
        return table.show_rows(table_rows)
    for line in logs.last_lines(bucket, state.name, lines):
        logs.show(line, color=False)
    return None


def moments(bucket: Bucket, state: State) -> list[dict[str, Any]]:
    """The moments whose results the bucket has, the oldest first."""
    from berg.results import newest

    found, before = list[dict[str, Any]](), 1 << 62
    while before:
        _, at_ns, files = newest(bucket, state.name, state.machines, before)
        if at_ns:
            size = sum(row.size for row in files.values())
            found.insert(0, {"time": records.now(at_ns / 1e9), "files": len(files), "bytes": size})
        before = max(0, at_ns - 1)
    return found


@click.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names)
@click.option("--any/--all", "is_any", default=False, help="Wait for any of them, or for all.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def wait(names: tuple[str, ...], is_any: bool, as_json: bool) -> None:
    """Wait until jobs have ended; the exit code is 0, or that of the first that did not succeed.

    \b
    berg wait digits-1121-0930-x7k && berg fetch digits-1121-0930-x7k
    berg wait --any first-try second-try
    """
    config = Config.load()
    chosen = choose(config, names)
    with left_alone(*chosen):
        ended = wait_for_all(config, chosen, is_any)
    if as_json:
        terminal.show_json([about(config, state) for state in ended])
    sys.exit(next((code for state in ended if (code := exit_code(state))), 0))


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

    def prepare(name: str) -> Callable[[], dict[str, Any]]:
        is_agreed = yes or (has_patterns and name not in names)  # a pattern's are the user's own
        if rows.number_of(name) is not None:
            end = to_kill_row(config, name, is_agreed)
        else:
            end = to_kill(config, name, now, is_agreed, began)
        return lambda: {"name": name, "done": "ended", "became": end()}

    each_of(chosen, prepare, as_json)


def kill_one(config: Config, name: str, now: bool, yes: bool) -> str:
    """End a job; what it became."""
    return to_kill(config, name, now, yes, time.time())()


def check_meant(state: State, began: float) -> None:
    """Raise BergError for a job that was submitted after the command began (seconds since 1970): this
    computer slept, and what had the name before was meant.
    """
    if 0 <= records.age(state.created_at) < time.time() - began:  # below 0 it is another clock's
        raise BergError(
            f"{state.name} was submitted after this command began, and was not touched. "
            f"If it is meant, repeat the command"
        )


def to_kill(config: Config, name: str, now: bool, yes: bool, began: float) -> Callable[[], str]:
    """Ask what is to be asked before a job ends; return what ends it. Of one whose records are missing
    or damaged the machines are deleted.
    """
    try:  # before its machines: if this computer sleeps now, another job may get the name
        state, job = find(config, name), records.read_job(Bucket(config), name)
        machines = place.machines(config, name)
    except BergError as error:
        machines = place.machines(config, name)
        if not machines:
            raise
        listed = ", ".join(f"{machine.name} in {machine.zone}" for machine in machines)
        agree(config, f"{error}. Delete {listed} with its disk?", machines[0].user, yes)

        def delete() -> str:
            place.delete(config, name, ids={machine.id for machine in machines})
            terminal.say(f"Deleted {listed}")
            return "machine deleted"

        return delete
    check_meant(state, began)
    if not state.id == job.id == find(config, name).id:  # then the machines may be another one's
        raise BergError(f"{name} is another job now, which was not touched. See: berg show {name}")
    is_box = job.is_devbox or any(machine.is_devbox for machine in machines)
    is_there = bool(machines) or state.waits or not state.is_final
    if is_there and (is_box or job.user != config.user):
        question = (
            f"Delete the devbox {name} and what is on its disk?" if is_box else f"End {name}?"
        )
        agree(config, question, job.user, yes, job.created_at)
    machines = machines or host_of(config, state)
    return lambda: end_job(config, job, state, machines, now)


def end_job(config: Config, job: Job, state: State, machines: list[Machine], now: bool) -> str:
    """Let a job's machines end its command and save its results, and delete them; what it became."""
    name = job.name
    is_on = any(machine.is_on for machine in machines)
    is_over = state.state == SUBMITTED or (state.is_final and not state.waits)
    if is_on and not now and not is_over:
        what = "the machine of " if state.is_final else ""
        terminal.say(f"Ending {what}{name}; its last results are saved")
        for machine in machines:  # on a host another guest may have the name by then
            word = name if machine.job == name else job.id
            machine.tell(config, f"berg-kill-{word}", config.user)
        began = at = time.monotonic()
        while (not state.is_final or state.waits) and state.id == job.id:
            if at > began + (SAVING if state.state == UPLOADING else PATIENCE):
                break
            time.sleep(POLL)
            at = time.monotonic()  # the state is newer, also if this computer sleeps now
            state = find(config, name)
    remove(config, job)
    was_final = state.is_final
    if state.waits:  # its worker has not said that this is over
        with contextlib.suppress(BergError, Changed):
            last, generation = records.read_state(Bucket(config), name)
            if last.id == job.id:
                last.kept_until = records.now()
                records.write_state(Bucket(config), last, generation)
    state = records.conclude(Bucket(config), job, KILLED, f"killed by {config.user}")
    if state.id != job.id:
        terminal.say(f"{name} is another job now, which was not touched")
        return "another job"
    terminal.say(f"{name} {'was' if was_final and not machines else 'is'} {state.state}")
    return state.state


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


def to_kill_row(config: Config, name: str, yes: bool) -> Callable[[], str]:
    """Ask before a row of another user's sweep ends; return what ends it."""
    job, number = records.read_job(Bucket(config), name), int(name.partition("/")[2])
    if number >= len(job.rows):
        raise BergError(f"{job.name} has {len(job.rows)} rows, from {job.name}/0 on")
    if job.user != config.user:
        agree(config, f"End {name}?", job.user, yes, job.created_at)
    return lambda: kill_row(config, job, number)


def kill_row(config: Config, job: Job, number: int) -> str:
    """End one row of a sweep, and the others go on; what it became."""
    bucket, sweep, name = Bucket(config), job.name, f"{job.name}/{number}"
    end, reason = time.monotonic() + PATIENCE, f"killed by {config.user}"
    while True:
        is_late = time.monotonic() > end  # what is seen below is newer: this computer may sleep
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
        if is_late:
            raise BergError(f"{name} has not ended in {PATIENCE} seconds. See: berg log {name}")
        time.sleep(POLL)


def remove(config: Config, job: Job) -> None:
    """Delete a job's machines and what its features left."""
    from berg.run import end

    end(config, job, features.of(job))


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
        return {"name": name, "done": "deleted", "objects": len(items)}

    each_of(chosen, lambda name: functools.partial(delete, name), as_json)


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
    with ThreadPoolExecutor(8) as pool:
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
            others = [each for each in writers if each.name.partition("/")[0] != name]
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
        if not now:
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
        for machine in machines:
            if not machine.is_on:
                machine.start(config)
        bucket = Bucket(config)
        with contextlib.suppress(BergError, Changed):  # its records may be damaged
            state, generation = records.read_state(bucket, name)
            is_its = state.machine_id in [machine.id for machine in machines]
            if state.state == STOPPED and is_its:
                state.state, state.seconds_before = SUBMITTED, state.seconds
                state.times = {SUBMITTED: records.now(bucket.time())}
                records.write_state(bucket, state, generation)
        terminal.say(f"{name} is on. Log in: berg ssh {name}")


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

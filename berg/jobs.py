"""Jobs that exist: list, show and wait."""

import contextlib
import fnmatch
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from berg import BergError, gce, google, metrics, place, rows, table, terminal, usage
from berg import job as records
from berg.bucket import Bucket
from berg.config import Config
from berg.job import LOST, RUNNING, STOPPED, SUBMITTED, SUCCEEDED, State
from berg.options import complete_names
from berg.place import Machine

POLL, WATCH = 1, 5  # seconds between two looks at a job, and at the list
FINISHED = 20  # jobs that have ended in the list
LINES = 10  # of the log
ABOUT, ROOM = "ABOUT", 24  # the last column of the list, and letters for it in a narrow terminal
FILES = 1000  # of the results that `berg show --json` names


def observed(config: Config) -> tuple[list[State], list[Machine]]:
    """All jobs with what their places add: one without a machine for long is LOST."""
    bucket = Bucket(config)
    with google.together(1) as pool:
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
        return noted(state, machines)
    if machines and state.is_devbox:
        return replace(state, state=STOPPED, times={**state.times, STOPPED: state.changed_at})
    if records.age(state.changed_at) < records.SILENT:
        return state
    may_come = state.returns or state.state == SUBMITTED
    if may_come and place.is_coming(config, state.name):
        return state
    reason = f"its machine vanished while it was {state.state}. See: berg log {state.name}"
    return replace(state, state=LOST, reason=reason, times={**state.times, LOST: state.changed_at})


def noted(state: State, machines: list[Machine]) -> State:
    """A state with the reason for which its machines, pods, do not run yet."""
    note = next((machine.note for machine in machines if machine.note), "")
    return replace(state, reason=note) if note and not state.is_final else state


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
    return state if state.is_final else rows.in_truth(state, find(config, sweep))


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
        is_leaving = machine.status == "STOPPING"  # its job may have been deleted
        if machine.job and machine.job not in known and not is_leaving:
            state = RUNNING if machine.is_on else STOPPED
            created = records.datetime_of(machine.created_at)
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
    with google.together(16) as pool:
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
    """The rows of a sweep that have begun; any other job has none."""
    return [row for _, (row, _) in sorted(records.row_states(bucket, state.name).items())]


def about(config: Config, state: State, machines: Sequence[Machine] = ()) -> dict[str, Any]:
    """A state as JSON has it."""
    folder = f"gs://{config.bucket}/{records.results_prefix(state.results)}"
    return {
        **asdict(state),
        "usd": state.usd,
        "usd_per_hour": state.usd_per_hour,
        "results_url": folder if state.results else "",
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
        **about(config, noted(state, machines)),
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
    state = noted(state, machines)
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
    from berg.moments import newest

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

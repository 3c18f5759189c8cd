"""The rows of a sweep: one job on machines that do not wait for each other.

A row is a job of its own on one machine, called <sweep>/<number>: its command has the row's values, and
it has results, log, state and attempts of its own. Its state, .berg/rows/<sweep>/<number>.json, is also
the claim: it is written at the generation that was read. A machine takes one row after the other, also
those of a machine that is lost. Whoever sees that nothing is left writes how the sweep ended.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from berg import BergError, machines
from berg import job as jobs
from berg.bucket import Bucket, Changed
from berg.job import FAILED, KILLED, LOST, STARTING, SUBMITTED, SUCCEEDED, Job, State

if TYPE_CHECKING:
    from berg.worker import Ending, Run

Values = dict[str, str]
PARALLEL = 8  # machines, unless the user says how many
MOST = 10_000  # rows
WORD = r"[A-Za-z_]\w*(?:[./-]\w+)*"  # the name of a value
# {NAME}, or {{NAME}} for the text {NAME}; not ${NAME}, which is the shell's
PLACEHOLDER = re.compile(rf"\{{(\{{{WORD}\}})\}}|(?<!\$)\{{(?P<name>{WORD})\}}")


# --- on the laptop


def make(cmd: str, grid: list[str], tasks: str) -> list[Values]:
    """The rows that options describe; raise BergError for what a command cannot have."""
    columns: dict[str, list[str]] = {}
    for text in grid:
        name, _, listed = text.partition("=")
        if not re.fullmatch(WORD, name):
            raise BergError(f"--grid {text}: give NAME=VALUE,VALUE")
        if name in columns:
            raise BergError(f"--grid {name} is given twice. Give all its values at once")
        try:
            columns[name] = split(listed)
        except ValueError as error:
            more = ". Quote a value that is not JSON" * isinstance(error, json.JSONDecodeError)
            raise BergError(f"--grid {text}: {error}{more}") from None
    tasks_rows = read(Path(tasks)) if tasks else [{}]
    count = len(tasks_rows) * math.prod(map(len, columns.values()))
    if count > MOST:
        raise BergError(f"{count} rows are more than {MOST}. Make several sweeps")
    grid_rows = [dict(zip(columns, values)) for values in itertools.product(*columns.values())]
    rows = [{**row, **values} for row in tasks_rows for values in grid_rows]
    named, folders = placeholders(cmd), dict[str, int]()
    for number, row in enumerate(rows):
        if missing := sorted(named - row.keys()):
            raise BergError(f"row {number} has no {missing[0]!r}, which the command names")
        if unused := sorted(row.keys() - named):
            raise BergError(f"the command does not name {unused[0]!r}: write {{{unused[0]}}} in it")
        folder = jobs.results_of(fill(cmd, row))
        if folder and (first := folders.setdefault(folder, number)) != number:
            raise BergError(
                f"rows {first} and {number} would write to one folder, berg_results/{folder}. "
                "Write {NAME} in it, or use $BERG_RESULTS_DIR"
            )
    return rows


def split(text: str) -> list[str]:
    """The values between commas; one that begins with a bracket or a quote goes on to its end."""
    values, at = [], 0
    while True:
        at += len(text[at:]) - len(text[at:].lstrip())
        if text.startswith(("[", "{", '"'), at):
            value, end = json.JSONDecoder().raw_decode(text, at)
            values.append(value if isinstance(value, str) else text[at:end])
        elif text.startswith("'", at):
            if (end := text.find("'", at + 1) + 1) == 0:
                raise ValueError(f"{text[at:]} has no second quote")
            values.append(text[at + 1 : end - 1])
        else:
            end = text.find(",", at) if "," in text[at:] else len(text)
            values.append(text[at:end].strip())
            if not values[-1]:
                raise ValueError("a value is empty; write '' for an empty one")
        if len(values) != len({*values}):
            raise ValueError(f"{values[-1]!r} is named twice")
        rest = text[end:].lstrip()
        if not rest:
            return values
        if not rest.startswith(","):
            raise ValueError(f"before {rest!r} a comma is missing")
        at = len(text) - len(rest) + 1


def read(file: Path) -> list[Values]:
    """The rows of a CSV or JSONL file."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        rows = json_rows(text) if file.suffix == ".jsonl" else csv_rows(text)
    except OSError as error:
        raise BergError(f"--tasks {file}: {error.strerror}. Give a CSV or JSONL file") from None
    except (ValueError, csv.Error, RecursionError) as error:
        raise BergError(f"--tasks {file}: {error}. Give a CSV or JSONL file") from None
    if not rows:
        raise BergError(f"--tasks {file} has no rows")
    return rows


def csv_rows(text: str) -> list[Values]:
    header, *lines = [*csv.reader(io.StringIO(text, newline=""))] or [[]]
    if len({*header}) < len(header):
        raise ValueError(f"a column is named twice: {', '.join(header)}")
    for number, line in enumerate(lines):
        if line and len(line) != len(header):
            raise ValueError(f"row {number} has {len(line)} values for {len(header)} columns")
    return [dict(zip(header, line)) for line in lines if line]


def json_rows(text: str) -> list[Values]:
    """Texts as they are, other values as in JSON."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if not isinstance(values, dict):
            raise ValueError(f"line {number} is no object")
        rows.append(
            {
                key: each if isinstance(each, str) else json.dumps(each)
                for key, each in values.items()
            }
        )
    return rows


def placeholders(cmd: str) -> set[str]:
    """The names in braces that values replace."""
    return {found["name"] for found in PLACEHOLDER.finditer(cmd) if found["name"]}


def fill(cmd: str, values: Values) -> str:
    """The command with its values, each of which the shell reads as one word."""
    return PLACEHOLDER.sub(lambda found: found[1] or shlex.quote(values[found["name"]]), cmd)


def resume(bucket: Bucket, job: Job) -> None:
    """Let rows that ended without success begin their next attempt."""
    for state, generation in jobs.row_states(bucket, job.name).values():
        if state.is_final and state.state != SUCCEEDED:
            state = replace(state, state=SUBMITTED, attempt=state.attempt + 1, reason="")
            state.exit_code, state.times[SUBMITTED] = None, jobs.now()
            jobs.write_state(bucket, state, generation)


# --- a row


def row_job(job: Job, number: int) -> Job:
    """A row as a job: its command with its values."""
    cmd = fill(job.cmd, job.rows[number])
    return replace(
        job,
        name=f"{job.name}/{number}",
        cmd=cmd,
        results=jobs.results_of(cmd) or f"{job.results}/{number}",
        machines=1,
        rows=[],
    )


def state_of(job: Job, begun: dict[int, tuple[State, int]], number: int) -> State:
    """The state of a row; one that nobody began has none in the bucket, and is SUBMITTED."""
    if number in begun:
        return begun[number][0]
    row = row_job(job, number)
    return State(
        row.name, user=job.user, results=row.results, id=job.id, created_at=job.created_at,
        times={SUBMITTED: job.created_at},
    )  # fmt: skip


def in_truth(row: State, sweep: State) -> State:
    """A row as it is in truth: LOST, if its sweep ended before it."""
    if row.is_final or not sweep.is_final:
        return row
    reason = f"{sweep.name} ended {sweep.state} before it"
    return replace(row, state=LOST, reason=reason, times={LOST: sweep.changed_at})


def describe(values: Values) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


# --- on a machine


def work(run: Run) -> Ending:
    """Run rows until none is left for this machine; return the ending that says what becomes of it."""
    from berg import worker

    begin(run)
    stop: Ending | None = None
    while not (stop := worker.killed_or_taken(run) or worker.out_of_time(run)):
        if (row := take(run)) is None:
            break
        run.say(f"Row {row.job.name}: {row.job.cmd}")
        try:
            ending = worker.attempt(row)
        except worker.NotMine as error:  # we were silent for so long that another one took the row
            run.say(f"Row {row.job.name}: {error}")
            continue
        run.say(f"Row {row.job.name} {ending.state} {ending.reason}".rstrip())
        if ending.state == SUBMITTED:  # Google makes this machine again
            return ending
    if stop and stop.is_loss:
        return replace(stop, state=SUBMITTED)
    machines.tell(run, "saved")
    return end(run, stop) or worker.Ending(worker.LEFT)


def begin(run: Run) -> None:
    """Say in the sweep's state that it runs, unless another machine has."""
    while run.state.state == SUBMITTED:
        run.state.times[jobs.RUNNING] = jobs.now(run.bucket.time())
        state = replace(run.state, state=jobs.RUNNING, zone=run.facts.zone)
        try:
            run.generation = jobs.write_state(run.bucket, state, run.generation)
            run.state = state
        except Changed:
            run.state, run.generation = jobs.read_state(run.bucket, run.job.name)


def take(run: Run) -> Run | None:
    """Claim the next row: a new one, one that was put back, or that of a machine that is lost."""
    from berg import worker

    states = jobs.row_states(run.bucket, run.job.name)
    # A row of this machine that has not ended comes first: its worker died in it.
    unended = {number for number, (state, _) in states.items() if not state.is_final}
    mine = {number for number in unended if states[number][0].machine_id == run.facts.id}
    for number in sorted(range(len(run.job.rows)), key=lambda number: number not in mine):
        job = row_job(run.job, number)
        state, generation = states.get(number, (None, 0))
        if state is None or state.id != run.job.id:  # none, or of a sweep that had the name
            state = replace(run.state, name=job.name, state=SUBMITTED, results=job.results)
            state.attempt, state.machines, state.times, state.seconds_before = 1, 1, {}, 0.0
        if state.state != SUBMITTED and number not in mine:
            if state.is_final or not is_lost(run, state):
                continue
            state.attempt += 1
        log = worker.log_file(worker.HOME / f"row-{number}", run.facts)
        row = replace(
            run,
            job=job,
            state=state,
            generation=generation,
            log=log,
            rank=0,
            peers=machines.Peers(),
        )
        try:
            about = {"machine": run.facts.name, "machine_id": run.facts.id, "zone": run.facts.zone}
            row.write_state(STARTING, **about, reason="", exit_code=None)
            return row
        except worker.NotMine:
            continue
    return None


def is_lost(run: Run, state: State) -> bool:
    """Whether the machine that has a row is gone: silent, or this is the one in its place."""
    if state.machine == run.facts.name:
        return True
    names = run.job.machine_names
    rank = names.index(state.machine) if state.machine in names else -1
    return run.peers.missed.get(rank, 0) > machines.SILENCE


def end(run: Run, stop: Ending | None) -> Ending | None:
    """Write how the sweep ended, if nothing of it runs any more; None if another machine will."""
    from berg.worker import Ending

    states = {n: state for n, (state, _) in jobs.row_states(run.bucket, run.job.name).items()}
    total, done = len(run.job.rows), sum(state.is_final for state in states.values())
    saved = {rank for rank, row in run.peers.records.items() if row["phase"] == "saved"}
    if done < total and len(saved | {run.rank}) < run.job.machines:
        return None
    failed = {n: state for n, state in states.items() if state.state == FAILED}
    killed = [n for n, state in states.items() if state.state == KILLED]
    if stop and stop.state == KILLED:
        ending = stop
    elif done < total:
        reason = stop.reason if stop else "machines were lost"
        ending = Ending(FAILED, f"{total - done} of {total} rows have not ended: {reason}")
    elif failed:
        first = failed[min(failed)]
        which = ", ".join(map(str, sorted(failed)[:20]))
        reason = f"{len(failed)} of {total} rows failed: {which}; the first: {first.reason}"
        ending = Ending(FAILED, reason, first.exit_code)
    else:
        ending = Ending(SUCCEEDED, f"{len(killed)} of {total} rows killed" if killed else "", 0)
    machines.delete_lost(run)
    for feature in reversed(run.features):
        ending = feature.ended(run, ending)
    jobs.conclude(run.bucket, run.job, ending.state, ending.reason, ending.exit_code)
    return ending


def number_of(name: str) -> int | None:
    """The number of a row by its name, SWEEP/NUMBER; None for the name of a job."""
    found = re.fullmatch(r"[^/]+/(\d+)", name)
    return int(found[1]) if found else None

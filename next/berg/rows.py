"""The rows of a sweep: one job on machines that do not wait for each other.

A row is a job of its own on one machine, called <sweep>/<number>: its command has the row's values, and
it has results, log, state and attempts of its own. Its state, .berg/rows/<sweep>/<number>.json, is also
the claim: it is written at the generation that was read. A machine takes one row after the other, also
those of a machine that is lost. Whoever sees that nothing is left writes how the sweep ended.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import string
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from berg import BergError, machines
from berg import job as jobs
from berg.bucket import Bucket, Changed
from berg.job import FAILED, KILLED, STARTING, SUBMITTED, SUCCEEDED, Job, State

if TYPE_CHECKING:
    from berg.worker import Ending, Run

Values = dict[str, str]
PARALLEL = 8  # machines, unless the user says how many
MOST = 10_000  # rows


# --- on the laptop


def make(cmd: str, grid: list[str], tasks: str) -> list[Values]:
    """The rows that options describe; raise BergError for what a command cannot have."""
    columns: list[list[tuple[str, str]]] = []
    for text in grid:
        name, _, values = text.partition("=")
        if not name.isidentifier() or not all(values.split(",")):
            raise BergError(f"--grid {text}: give NAME=VALUE,VALUE")
        if name in {column[0][0] for column in columns}:
            raise BergError(f"--grid {name} is given twice. Give all its values at once")
        columns.append([(name, value) for value in values.split(",")])
    listed = read(Path(tasks)) if tasks else [{}]
    count = len(listed) * math.prod(map(len, columns))
    if count > MOST:
        raise BergError(f"{count} rows are more than {MOST}. Make several sweeps")
    grid_rows = [dict(pairs) for pairs in itertools.product(*columns)]
    rows = [{**values, **row} for row in listed for values in grid_rows]
    try:
        named = {name for _, name, _, _ in string.Formatter().parse(cmd) if name is not None}
    except ValueError as error:
        raise BergError(f"{cmd!r}: {error}. A brace itself is written twice: {{{{") from None
    for number, row in enumerate(rows):
        if missing := sorted(named - row.keys()):
            raise BergError(f"row {number} has no {missing[0]!r}, which the command names")
        if unused := sorted(row.keys() - named):
            raise BergError(f"the command does not name {unused[0]!r}: write {{{unused[0]}}} in it")
        try:
            cmd.format(**row)
        except (ValueError, LookupError, AttributeError) as error:
            raise BergError(f"row {number} does not fit the command: {error}") from None
    return rows


def read(file: Path) -> list[Values]:
    """The rows of a CSV or JSONL file."""
    try:
        text = file.read_text()
        if file.suffix == ".jsonl":
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            found = [*csv.DictReader(text.splitlines())]
        for number, row in enumerate(found):
            if None in row or None in row.values():
                raise ValueError(f"row {number} has too few or too many values")
        rows = [{name: str(value) for name, value in row.items()} for row in found]
    except (OSError, ValueError, AttributeError) as error:
        raise BergError(f"--tasks {file}: {error}. Give a CSV or JSONL file") from None
    if not rows:
        raise BergError(f"--tasks {file} has no rows")
    return rows


def resume(bucket: Bucket, job: Job) -> None:
    """Let rows that ended without success begin their next attempt."""
    for state, generation in jobs.row_states(bucket, job.name).values():
        if state.is_final and state.state != SUCCEEDED:
            state = replace(state, state=SUBMITTED, attempt=state.attempt + 1, reason="")
            state.exit_code, state.times[SUBMITTED] = None, jobs.now()
            jobs.write_state(bucket, state, generation)


# --- a row


def row_job(job: Job, number: int) -> Job:
    """A row as a job: its command with its values, as they are."""
    cmd = job.cmd.format(**job.rows[number])
    return replace(
        job,
        name=f"{job.name}/{number}",
        cmd=cmd,
        results=jobs.results_of(cmd) or f"{job.results}/{number}",
        machines=1,
        rows=[],
    )


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
        if state is None:
            state = replace(run.state, name=job.name, state=SUBMITTED, results=job.results)
            state.attempt, state.machines, state.times = 1, 1, {}
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
        ending = Ending(SUCCEEDED, f"{len(killed)} rows were killed" if killed else "", 0)
    machines.delete_lost(run)
    for feature in reversed(run.features):
        ending = feature.ended(run, ending)
    jobs.conclude(run.bucket, run.job, ending.state, ending.reason, ending.exit_code)
    return ending


def number_of(name: str) -> int | None:
    """The number of a row by its name, SWEEP/NUMBER; None for the name of a job."""
    found = re.fullmatch(r"[^/]+/(\d+)", name)
    return int(found[1]) if found else None

"""A sweep as a table, with the parameters and last metrics of each row; also as CSV."""

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from berg import BergError, google, metrics, terminal
from berg import job as records
from berg.bucket import THREADS, Bucket
from berg.config import Config
from berg.metrics import Metrics
from berg.rows import in_truth, state_of

FORMULA = tuple("=+-@＝＋－＠\t\r\n")  # begin a formula in a spreadsheet


@dataclass
class Row:
    """A row of a sweep, with the last value of each of its metrics."""

    name: str
    state: str
    exit_code: int | None
    reason: str
    params: dict[str, str]
    metrics: dict[str, Any]

    def cells(self) -> dict[str, Any]:
        """Its columns in a CSV file."""
        about = {"name": self.name, "state": self.state, "exit_code": self.exit_code}
        params = {f"param.{key}": value for key, value in self.params.items()}
        values = {f"metric.{key}": value for key, value in self.metrics.items()}
        return {**about, "reason": self.reason, **params, **values}

    def record(self) -> dict[str, Any]:
        return {**vars(self), "metrics": metrics.finite(self.metrics)}


def read(config: Config, name: str) -> tuple[list[Row], list[str]]:
    """The rows of a sweep, also those that nobody began, and what could not be read of them."""
    bucket, sweep = Bucket(config), name.partition("/")[0]
    job = records.read_job(bucket, sweep)
    if not job.rows:
        raise BergError(f"{sweep} is no sweep, but one job. See: berg show {sweep}")
    whole, _ = records.read_state(bucket, sweep)
    begun = records.row_states(bucket, sweep)
    states = [in_truth(state_of(job, begun, number), whole) for number in range(len(job.rows))]

    def of_row(number: int) -> Metrics:
        is_there = number in begun
        return metrics.of_results(bucket, states[number].results) if is_there else Metrics()

    with (
        terminal.waiting(f"Reading the metrics of {len(begun)} rows"),
        google.together(THREADS) as pool,
    ):
        found = [*pool.map(of_row, range(len(states)))]
    rows = [
        Row(state.name, state.state, state.exit_code, state.reason, params, values.last)
        for state, params, values in zip(states, job.rows, found)
    ]
    notes = [values.note(row.name) for row, values in zip(rows, found) if values.damaged]
    return rows, notes


def columns(rows: list[dict[str, Any]]) -> list[str]:
    return [*dict.fromkeys(key for row in rows for key in row)]


def write_csv(rows: list[Row], file: Path) -> None:
    """Write a line for each row, with a column for each parameter and metric that any row has."""
    cells = [row.cells() for row in rows]
    try:
        with file.open(
            "w", newline="", errors="replace"
        ) as output:  # JSON may have half a character
            writer = csv.DictWriter(output, columns(cells))
            writer.writerow({key: harmless(key) for key in writer.fieldnames})
            writer.writerows({key: harmless(value) for key, value in row.items()} for row in cells)
    except OSError as error:
        raise BergError(f"cannot write {file}: {error.strerror}. Name another file") from None


def harmless(value: Any) -> Any:
    """A cell, with an apostrophe before what a spreadsheet would run as a formula."""
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def show_rows(rows: list[Row]) -> None:
    """Print a line for each row; a metric that has a parameter's name gets no second column."""
    params, values = columns([row.params for row in rows]), columns([row.metrics for row in rows])
    values = [key for key in values if key not in params]
    table = [
        [
            row.name,
            row.state,
            "" if row.exit_code is None else str(row.exit_code),
            *[row.params.get(key, "") for key in params],
            *[metrics.text(row.metrics.get(key, "")) for key in values],
            row.reason,
        ]
        for row in rows
    ]
    terminal.show_table(["NAME", "STATE", "EXIT", *params, *values, "REASON"], table)
    counts = Counter(row.state for row in rows)
    terminal.say(f"{len(rows)} rows: " + ", ".join(f"{n} {state}" for state, n in counts.items()))

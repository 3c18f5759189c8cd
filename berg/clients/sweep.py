"""`berg sweep`: a sweep as a table, also while it runs, and as a CSV file."""

from pathlib import Path

import click

from berg import jobs, table, terminal
from berg.config import Config
from berg.options import complete_names


@click.command()
@click.argument("name", default="@", shell_complete=complete_names)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sweep(name: str, file: Path | None, as_json: bool) -> None:
    """Show the rows of a sweep with their parameters and last metrics; FILE gets them as CSV.

    \b
    berg sweep lr-sweep
    berg sweep lr-sweep results.csv
    berg sweep lr-sweep --json | jq 'min_by(.[]; .metrics.loss)'
    """
    config = Config.load()
    rows, notes = table.read(config, jobs.find(config, name).name)
    for note in notes:
        terminal.warn(note)
    if file:
        table.write_csv(rows, file)
        terminal.say(f"Wrote {file}")
    if as_json:
        return terminal.show_json([row.record() for row in rows])
    return table.show_rows(rows)

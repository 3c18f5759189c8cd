"""`berg top`: how busy machines are, and were in the last half hour, by their samples (berg/usage.py)."""

import sys
import time
from dataclasses import asdict, dataclass

import click

from berg import gce, google, jobs, terminal, usage
from berg.bucket import Bucket
from berg.config import Config
from berg.options import complete_names
from berg.place import Machine
from berg.usage import Sample

REDRAW = 10  # seconds
SHOWN = 1800  # seconds of samples
OLD = 120  # seconds after which a sample says nothing about now
BARS = "▁▂▃▄▅▆▇█"


@dataclass
class Row:
    """A machine, and how busy it was in its last half hour, the newest sample at the end."""

    name: str
    job: str
    state: str
    samples: list[Sample]

    def cells(self) -> list[str]:
        last = self.samples[-1] if self.samples else {"gpus": []}
        shares = usage.shares(last) if self.samples else {}
        moved = [last.get(key) for key in ("received_per_second", "sent_per_second")]
        return [
            self.name,
            *(percent(shares.get(name)) for name in ("GPU", "GPU memory", "CPU", "memory")),
            f"{sum(filter(None, moved)) / 1e6:.1f} MB" if self.samples else "-",
            self.about(),
        ]

    def about(self) -> str:
        """A line of the half hour, of GPUs or without them of CPUs; the state, if nothing is new."""
        if not self.samples:
            return f"{self.state}: no sample yet"
        if (age := time.time() - self.samples[-1]["time"]) > OLD:
            return f"{self.state}: {terminal.duration(age)} ago"
        first = next(iter(usage.shares(self.samples[-1])), "CPU")
        values = [usage.shares(sample).get(first, 0.0) for sample in self.samples]
        return "".join(BARS[min(7, max(0, int(value / 12.5)))] for value in values)

    def gpu_cells(self) -> list[list[str]]:
        found = []
        for gpu in self.samples[-1]["gpus"] if self.samples else []:
            texts = [
                f"{gpu[key]:.0f} {unit}"
                for key, unit in (("watt", "W"), ("celsius", "°C"))
                if gpu[key] is not None
            ]
            name = f"  GPU {gpu['index'] or 0:.0f}"
            shares = [percent(gpu["percent"]), percent(usage.memory(gpu))]
            found.append([name, *shares, "", "", "", "  ".join(texts)])
        return found


def look(config: Config, name: str) -> list[Row]:
    """The machines of a job, also of one that has ended, or all of the user's that are on ("")."""
    bucket, states, machines = Bucket(config), dict[str, str](), list[Machine]()
    if name:
        states[name] = jobs.find(config, name).state
    else:
        listed, everyones = jobs.observed(config)
        machines = [each for each in everyones if each.user == config.user and each.is_on]
        known = {state.name: state.state for state in listed}
        states = {each.job: known.get(each.job, each.status) for each in machines}
    with google.together(8) as pool:
        found = [*pool.map(lambda job: usage.read(bucket, job), states)]
    rows = []
    for (job, state), samples in zip(states.items(), found):
        on = {machine.name for machine in machines if machine.job == job}
        for machine in sorted(on or samples, key=gce.order):
            last = samples.get(machine, [])
            since = last[-1]["time"] - SHOWN if last else 0
            rows.append(Row(machine, job, state, [row for row in last if row["time"] > since]))
    return rows


def percent(value: float | None) -> str:
    """A bar of four characters and the number."""
    if value is None:
        return "-"
    return f"{'█' * round(max(0, min(value, 100)) / 25):4}{value:4.0f}%"


def show_rows(rows: list[Row], in_detail: bool) -> None:
    table = []
    for row in rows:
        table += [row.cells(), *(row.gpu_cells() if in_detail else [])]
    terminal.show_table(
        ["MACHINE", "GPU", "GPU MEM", "CPU", "MEMORY", "NET/s", "LAST HALF HOUR"], table
    )


@click.command()
@click.argument("name", default="", shell_complete=complete_names)
@click.option("--once", is_flag=True, help="Print it once, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, once.")
def top(name: str, once: bool, as_json: bool) -> None:
    """Show how busy your machines are; with NAME those of a job, and each of their GPUs.

    \b
    berg top
    berg top digits-1121-0930-x7k --once
    """
    config = Config.load()
    name = jobs.find(config, name).name if name else ""
    is_live = sys.stdout.isatty() and not (once or as_json or terminal.is_for_program())
    while True:
        with terminal.waiting("Reading the samples of machines"):
            rows = look(config, name)
        if is_live:
            click.clear()
        if as_json:
            return terminal.show_json([asdict(row) for row in rows])
        if rows:
            show_rows(rows, bool(name))
        else:
            terminal.say(f"{name} has no samples" if name else "No machine runs. See: berg list")
        if not is_live:
            return None
        terminal.say(f"{time.strftime('%H:%M:%S')}, every {REDRAW} s until Ctrl-C")
        time.sleep(REDRAW)

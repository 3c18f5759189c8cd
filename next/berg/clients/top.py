"""`berg top`: how busy machines are now, by their own /proc and nvidia-smi, through ssh."""

import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from berg import jobs, place, ssh, terminal
from berg.bucket import THREADS
from berg.config import Config
from berg.place import Machine

REDRAW = 10  # seconds
TIMEOUT = 30  # seconds for an answer; nvidia-smi takes some where nothing keeps the driver loaded
VIRTUAL = ("lo", "docker", "veth", "br-")  # beginnings of interfaces that are counted elsewhere
GPU = {  # nvidia-smi's name -> ours: percent, MiB, watt, degrees Celsius
    "index": "index",
    "utilization.gpu": "percent",
    "memory.used": "memory_mb",
    "memory.total": "memory_total_mb",
    "power.draw": "watt",
    "temperature.gpu": "celsius",
}
COUNT = "head -n 1 /proc/stat; echo ---; cat /proc/net/dev; echo ---"
ASK = (
    f"{COUNT}; sleep 1; {COUNT}; cat /proc/meminfo; echo ---; "
    f"nvidia-smi --query-gpu={','.join(GPU)} --format=csv,noheader,nounits 2>/dev/null || true"
)
Sample = dict[str, Any]


@dataclass
class Row:
    """A machine, and what it is busy with now: one sample, or none if it did not answer."""

    name: str
    job: str
    state: str
    samples: list[Sample]
    note: str = ""  # why there is none

    def cells(self) -> list[str]:
        sample = self.samples[0] if self.samples else {}
        gpus = sample.get("gpus", [])
        moved = sample.get("received_per_second", 0) + sample.get("sent_per_second", 0)
        return [
            self.name,
            percent(mean(gpu["percent"] for gpu in gpus)),
            percent(mean(memory(gpu) for gpu in gpus)),
            percent(sample.get("cpu_percent")),
            percent(sample.get("memory_percent")),
            f"{moved / 1e6:.1f} MB" if sample else "-",
            self.state if sample else f"{self.state}: {self.note}",
        ]

    def gpu_cells(self) -> list[list[str]]:
        found = []
        for gpu in self.samples[0]["gpus"] if self.samples else []:
            texts = [
                f"{gpu[key]:.0f} {unit}"
                for key, unit in (("watt", "W"), ("celsius", "°C"))
                if gpu[key] is not None
            ]
            name = f"  GPU {gpu['index'] or 0:.0f}"
            shares = [percent(gpu["percent"]), percent(memory(gpu))]
            found.append([name, *shares, "", "", "", "  ".join(texts)])
        return found


def look(config: Config, name: str) -> list[Row]:
    """The machines of a job, or all of the user's (""), that are on."""
    if name:
        states = {name: jobs.find(config, name)}
        machines = place.machines(config, name)
    else:
        listed, everyones = jobs.observed(config)
        states = {state.name: state for state in listed}
        machines = [machine for machine in everyones if machine.user == config.user]

    def row(machine: Machine) -> Row:
        state = states[machine.job].state if machine.job in states else machine.status
        sample, note = ask(config, machine)
        return Row(machine.name, machine.job, state, [sample] if sample else [], note)

    with ThreadPoolExecutor(THREADS) as pool:
        return [*pool.map(row, [machine for machine in machines if machine.status == "RUNNING"])]


def ask(config: Config, machine: Machine) -> tuple[Sample, str]:
    """What a machine is busy with for a second; or nothing, and the reason."""
    if not (keys := machine.host_keys(config)):
        return {}, "it boots"
    with tempfile.NamedTemporaryFile(prefix="berg-known-") as known:
        words = ssh.words(machine, keys, Path(known.name))
        if through := machine.tunnel(config):
            words[1:1] = ["-o", f"ProxyCommand={shlex.join(through)}"]
        try:
            done = subprocess.run(
                [*words, ASK], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT
            )
            return parse(done.stdout.decode(errors="replace")), ""
        except subprocess.TimeoutExpired:
            return {}, f"no answer for {TIMEOUT} seconds"
        except (OSError, ValueError, IndexError, KeyError):
            reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            return {}, reason or "its answer cannot be read"


def parse(text: str) -> Sample:
    """A sample out of the answer to ASK; raises ValueError, IndexError or KeyError for another one."""
    first, net_before, second, net_after, memory, gpus = text.split("---\n")
    before, after = ([int(word) for word in line.split()[1:9]] for line in (first, second))
    ticks = [new - old for old, new in zip(before, after)]
    lines = [line.replace(":", " ", 1).split() for line in memory.splitlines()]
    sizes = {line[0]: int(line[1]) * 1024 for line in lines}
    used = sizes["MemTotal"] - sizes["MemAvailable"]
    received, sent = (
        max(0, traffic(net_after, column) - traffic(net_before, column)) for column in (1, 9)
    )
    return {
        "time": round(time.time(), 1),
        "cpu_percent": round(100 - 100 * (ticks[3] + ticks[4]) / max(sum(ticks), 1), 1),
        "memory_percent": round(100 * used / sizes["MemTotal"], 1),
        "memory_bytes": used,
        "received_per_second": received,
        "sent_per_second": sent,
        "gpus": [
            dict(zip(GPU.values(), map(number, line.split(","))))
            for line in gpus.splitlines()
            if line.count(",") == len(GPU) - 1
        ],
    }


def traffic(text: str, column: int) -> int:
    """Bytes that all real interfaces moved since the boot."""
    rows = [line.replace(":", " ", 1).split() for line in text.splitlines()[2:]]
    return sum(int(row[column]) for row in rows if not row[0].startswith(VIRTUAL))


def number(text: str) -> float | None:
    """A number of nvidia-smi's; None for [N/A], as a GPU that is split has no utilization."""
    try:
        return float(text)
    except ValueError:
        return None


def memory(gpu: Sample) -> float | None:
    used, total = gpu["memory_mb"], gpu["memory_total_mb"]
    return 100 * used / total if used is not None and total else None


def mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def percent(value: float | None) -> str:
    """A bar of four characters and the number."""
    if value is None:
        return "-"
    return f"{'█' * round(max(0, min(value, 100)) / 25):4}{value:4.0f}%"


def show_rows(rows: list[Row], in_detail: bool) -> None:
    table = []
    for row in rows:
        table += [row.cells(), *(row.gpu_cells() if in_detail else [])]
    terminal.show_table(["MACHINE", "GPU", "GPU MEM", "CPU", "MEMORY", "NET/s", "STATE"], table)


@click.command()
@click.argument("name", default="")
@click.option("--once", is_flag=True, help="Print it once, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, once.")
def top(name: str, once: bool, as_json: bool) -> None:
    """Show how busy your machines are, live; with NAME those of a job, and each of their GPUs.

    \b
    berg top
    berg top digits-1121-0930-x7k --once
    """
    config = Config.load()
    name = jobs.find(config, name).name if name else ""
    is_live = sys.stdout.isatty() and not (once or as_json or terminal.is_for_program())
    while True:
        with terminal.waiting("Asking the machines"):
            rows = look(config, name)
        if is_live:
            click.clear()
        if as_json:
            return terminal.show_json([asdict(row) for row in rows])
        if rows:
            show_rows(rows, bool(name))
        else:
            terminal.say("No machine runs. See: berg list")
        if not is_live:
            return None
        terminal.say(f"{time.strftime('%H:%M:%S')}, every {REDRAW} s until Ctrl-C")
        time.sleep(REDRAW)

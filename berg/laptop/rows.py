"""Jobs as rows of a list, the same in the terminal and on the page."""

import os
from collections import Counter
from dataclasses import replace

from berg.job import State
from berg.laptop.jobs import Entry
from berg.words import age, counts, dollars


def cells(entry: Entry) -> list[str]:
    """Return what a list shows of a job or machine: name, state, age, cost, zone, GPUs, results
    dir, exit code.
    """
    state, summary = entry.state, entry.summary
    gpus = summary.gpus
    if entry.machine:
        gpus = gpus or entry.machine.gpus
    if summary.machines > 1:
        of_gpus = f" of {gpus}" if gpus else ""
        gpus = f"{summary.machines} machines{of_gpus}"
    code = ""
    if state and state.exit_code is not None:
        code = str(state.exit_code)
    created = age(entry.created_at)
    cost = dollars(entry.usd)
    return [
        entry.name,
        entry.status,
        created,
        cost,
        entry.zone,
        gpus,
        summary.results_dir,
        code,
    ]


def folded(entries: list[Entry]) -> list[Entry]:
    """Return entries with one in place of all jobs of a sweep, where the first of them stood."""
    parts: dict[str, list[Entry]] = {}
    for each in entries:
        parts.setdefault(each.sweep, []).append(each)
    shown: list[Entry] = []
    done: set[str] = set()
    for each in entries:
        if not each.sweep:
            shown.append(each)
        elif each.sweep not in done:
            shown.append(as_one(parts[each.sweep]))
        done.add(each.sweep)
    return shown


def as_one(parts: list[Entry]) -> Entry:
    """Return the jobs of a sweep as one entry, which says how many are in which state."""
    first = parts[0]
    states = [part.state for part in parts if part.state]
    more = f"  (the command of {first.name}, the first of {len(parts)} here)"
    zones = sorted({part.zone for part in parts if part.zone})
    summary = replace(
        first.summary,
        sweep="",
        results_dir=common_folder([state.job.results_dir for state in states]),
        machines=len(first.workers),
        cmd=first.summary.cmd + more,
    )
    idle: dict[str, str] = {}
    for state in states:
        if not state.final:
            idle |= state.idle
    in_states = counts(Counter(state.state for state in states))
    state = State(state=in_states, idle=idle, zone=few(zones), job=summary)
    return replace(first, name=first.sweep, state=state, machines=first.workers, parts=parts)


def few(zones: list[str]) -> str:
    """Return the zone, or how many there are of them."""
    if len(zones) > 1:
        return f"{len(zones)} zones"
    return "".join(zones)


def common_folder(folders: list[str]) -> str:
    """Return what all results folders of a sweep have in common."""
    try:
        common = os.path.commonpath(folders)
    except ValueError:  # odd ones, such as an absolute path among others
        common = ""
    return f"{common}/…" if common else "…"

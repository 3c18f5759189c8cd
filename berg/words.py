"""Jobs in words and rows, the same in the terminal and on the page."""

import os
from collections import Counter
from dataclasses import replace

from berg import job


def cells(each) -> list[str]:
    """What a list shows of a job or machine: name, state, age, zone, GPUs, results dir, exit code."""
    state, details = each.state, each.state.job if each.state else job.Summary()
    zone = each.machine.zone if each.machine else state.zone if state else ""
    gpus = details.gpus or (each.machine.gpus if each.machine else "")
    if details.machines > 1:
        gpus = f"{details.machines} machines" + (f" of {gpus}" if gpus else "")
    code = "" if state is None or state.exit_code is None else str(state.exit_code)
    return [
        each.name,
        each.status,
        age(each.created_at),
        zone,
        gpus,
        details.results_dir,
        code,
    ]


def counts(states) -> str:
    """How many jobs are in which state, as in `2 RUNNING, 1 FAILED`."""
    order = (*job.ACTIVE, *job.FINAL)
    return ", ".join(f"{states[state]} {state}" for state in order if states[state])


def folded(entries) -> list:
    """Entries with one in place of all jobs of a sweep: its name, and how many jobs are in which
    state.
    """
    sweeps: dict = {}
    for each in entries:
        if each.sweep:
            sweeps.setdefault(each.sweep, []).append(each)
    shown, done = [], set()
    for each in entries:
        if not each.sweep:
            shown.append(each)
        elif each.sweep not in done:
            done.add(each.sweep)
            parts = sweeps[each.sweep]
            results = results_of([part.state.job.results_dir for part in parts])
            details = replace(
                each.state.job, sweep="", results_dir=results, machines=len(each.workers)
            )
            idle = {
                name: at
                for part in parts
                if not part.state.final
                for name, at in part.state.idle.items()
            }
            state = job.State(
                state=counts(Counter(part.state.state for part in parts)), idle=idle, job=details
            )
            shown.append(replace(each, name=each.sweep, state=state, machines=each.workers))
    return shown


def results_of(folders: list[str]) -> str:
    """What all results folders of a sweep have in common."""
    try:
        common = os.path.commonpath(folders)
    except ValueError:  # odd ones, such as an absolute path among others
        common = ""
    return f"{common}/…" if common else "…"


def age(timestamp: str) -> str:
    """How long ago that was; "?" for what is no time."""
    try:
        return duration(max(0, job.age_seconds(timestamp)) if timestamp else 0)
    except (ValueError, TypeError):
        return "?"


def duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def also(state: job.State) -> str:
    return f"It wrote to other folders, too: {state.elsewhere}" if state.elsewhere else ""


def idle(state: job.State) -> str:
    """Which machines of a job have accelerators that do nothing, and for how long; "" if none."""
    if state.final or not state.idle:
        return ""
    what = "TPUs" if state.job.gpus and " x " not in state.job.gpus else "GPUs"
    if state.job.machines == 1:
        return f"its {what} are idle for {age(min(state.idle.values()))}"
    return f"{what} are idle: " + ", ".join(
        f"{name} for {age(since)}" for name, since in state.idle.items()
    )


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Bytes in the unit that people would say."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"

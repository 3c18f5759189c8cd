"""What berg shows, as text: the plan of a job, the list of jobs, how one ended."""

import os
import shutil
import sys
import textwrap
import time
from collections import Counter
from dataclasses import replace
from datetime import datetime

import click

from berg import job
from berg.google import tpus as tpu_types

COLORS = {"SUCCEEDED": "green", "FAILED": "red", "LOST": "red", "KILLED": "yellow", "RUNNING": "cyan"}
MACHINE_COLORS = ("cyan", "green", "yellow", "magenta", "blue", "red")
SHOWN = 8  # files named in a plan; the rest is counted


def plan(plan) -> str:
    """What will run, where, with which code, and what stops it."""
    this, snapshot = plan.job, plan.snapshot
    code = f"{this.repo_name} at {this.git_commit[:12]} ({snapshot.branch or 'detached HEAD'})"
    if this.git_dirty:
        code += f" with {plural(len(this.git_changed_files), 'uncommitted change')}, as {this.git_snapshot[:12]}"
    defaults = this.wishes.get("defaults")
    several = f"{this.num_machines} machines, each " if this.num_machines > 1 else ""
    where = {"first": " (on the first machine)", "each": " (on every machine)"}[this.run_on] if several else ""
    is_guess = not this.wishes.get("results_dir") and not this.results_dir.endswith(this.job_name)
    rows = [
        ("Job", this.job_name) if this.cmd else ("Devbox", this.job_name),
        *([("Command", this.cmd + where)] if this.cmd else []),
        *([("Folder", f"{this.cwd} of the repo (--cwd)")] if this.cwd else []),
        ("Code", code),
        *[("", line) for line in shorten(this.git_changed_files)],
        *[("Left out" if n == 0 else "", line) for n, line in enumerate(shorten(snapshot.left_out))],
        *([("TPUs", f"{this.tpu}, {tpu_types.parse(this.tpu).chips} chips")] if this.tpu else []),
        ("Machine", f"{several}{plan.shape}{', spot' if plan.spot else ''}, {plan.disk_gb} GB disk"),
        ("Image", this.image.rpartition("/")[2]),
        ("Zones", ", ".join(plan.zones)),
        *(
            [("", f"{', '.join(plan.far_zones)}: not in {plan.bucket_region}, where the bucket is")]
            if plan.far_zones
            else []
        ),
        *[("Network" if n == 0 else "", text) for n, text in enumerate(network(plan))],
        *[("Quota" if n == 0 else "", text) for n, text in enumerate(plan.shortages)],
        *([("Restarts", f"{this.max_restarts} after lost machines, wherever there is room")] if this.group else []),
        *([("Again", f"{this.restart_on_failure} times if the command fails")] if this.restart_on_failure else []),
        *([("Secrets", ", ".join(this.secrets))] if this.secrets else []),
        *[("Data" if n == 0 else "", data_set(each)) for n, each in enumerate(this.data)],
        *([("Defaults", f"{', '.join(defaults[1:])} (of {defaults[0]})")] if defaults else []),
        ("Results", this.gcs_results_dir + (" (read off the command; another: -r)" if is_guess else "")),
        ("Limit", f"{this.max_run_seconds / 3600:g} h, then Google deletes the machine (--max-hours)"),
        *([("Idle", f"deletes itself after {this.idle_seconds / 3600:g} h")] if this.idle_seconds else []),
    ]
    return "\n".join(f"{click.style(f'{key:<9}', bold=True)} {value}" for key, value in rows) + "\n"


def network(plan) -> list[str]:
    """What machines without an external address reach."""
    if not plan.config.no_external_ip:
        return []
    lines = ["no external address; ssh goes through IAP, with gcloud"]
    for ways in plan.ways:
        if ways.to_google is None:
            lines.append(f"you may not see whether {ways.region} has Private Google Access, without which nothing runs")
        if ways.to_internet is False:
            command = ways.mend(plan.config.project, to_internet=True)
            lines.append(f"{ways.region} has no Cloud NAT: pip and the internet are out of reach. For one: {command}")
    return lines


def data_set(wish) -> str:
    return f"{wish['name']}: {plural(wish['files'], 'file')}, {size(wish['bytes'])}, to {wish['path']}"


def gpus(found, region: str, everywhere: bool) -> str:
    """GPU types as a table; zones below each other where they are many."""
    rows = [["TYPE", "PER MACHINE", "QUOTA LEFT", "SPOT", f"ZONES{'' if everywhere else f' OF {region}'}"]]
    for each in found:
        zones = [zone for zone in each.zones if everywhere or zone.startswith(f"{region}-")]
        left = ["unknown" if count is None else f"{count:g}" for count in (each.quota_left, each.spot_quota_left)]
        where = textwrap.wrap(", ".join(zones), 60, break_on_hyphens=False) or [elsewhere(each)]
        rows.append([each.type, ", ".join(map(str, each.per_machine)), *left, where[0]])
        rows += [["", "", "", "", line] for line in where[1:]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [fit(row, widths) for row in rows]
    return "\n".join([click.style(lines[0], bold=True), *lines[1:]])


def tpus(found) -> str:
    """What there is of TPUs, as a table."""
    rows = [["TPU", "HOSTS", "CHIPS", "MACHINE TYPE", "ZONES"]]
    for each in found:
        about = [each["tpu"], str(each["hosts"]), str(each["chips"]), each["machine_type"]]
        rows.append([*about, ", ".join(each["zones"]) or "none"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [fit(row, widths) for row in rows]
    return "\n".join([click.style(lines[0], bold=True), *lines[1:]])


def elsewhere(gpu) -> str:
    regions = sorted({zone.rpartition("-")[0] for zone in gpu.zones})
    return f"none; in {', '.join(regions[:3])}{', …' if len(regions) > 3 else ''}" if regions else "none"


def shorten(lines: list[str]) -> list[str]:
    lines = [line.encode(errors="replace").decode() for line in lines]
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"… and {len(lines) - SHOWN} more"]


def entries(entries, with_command: bool, with_user: bool, with_machines: bool) -> str:
    """Jobs and machines as a table that fits the terminal."""
    entries = entries if with_machines else folded(entries)
    header = ["NAME", "STATE", "AGE", "ZONE", "GPUS", "RESULTS", "EXIT"]
    rows = [cells(each) for each in entries]
    if with_user:
        header.insert(1, "USER")
        for row, each in zip(rows, entries, strict=True):
            row.insert(1, each.user)
    widths = [max(len(line[column]) for line in [header, *rows]) for column in range(len(header))]
    room = max(shutil.get_terminal_size((120, 24)).columns, 60)
    results = header.index("RESULTS")
    widths[results] = max(8, min(widths[results], widths[results] + room - sum(widths) - 2 * len(widths)))
    lines = [click.style(fit(header, widths), bold=True)]
    for row, each in zip(rows, entries, strict=True):
        color = COLORS.get(each.state.state.rpartition(" ")[2] if each.state else "LOST")
        lines.append(click.style(fit(row, widths), fg=color))
        if each.state and each.state.reason:
            lines += textwrap.wrap(
                each.state.reason,
                room - 4,
                break_long_words=False,
                break_on_hyphens=False,
                initial_indent="    ",
                subsequent_indent="    ",
            )
        if each.state and each.state.elsewhere:
            lines += textwrap.wrap(
                also(each.state),
                room - 4,
                break_long_words=False,
                break_on_hyphens=False,
                initial_indent="    ",
                subsequent_indent="    ",
            )
        if with_machines and len(each.machines) > 1:
            for machine in each.machines:
                addresses = f"{machine.internal_ip}  {machine.external_ip}"
                lines.append(f"    {machine.name}  {machine.status}  {addresses}")
        if with_command and each.state:
            lines.append(f"    $ {each.state.job.get('cmd')}" if each.state.job.get("cmd") else "    (devbox)")
    return "\n".join(lines)


def watch(newest, table, interval: float = 5) -> None:
    """Show a table anew where it was, or below, if this is no terminal and it changed; until nothing lives."""
    shown = ""
    while True:
        entries = newest()
        text = table(entries) if entries else "Nothing yet"
        if sys.stdout.isatty():
            click.clear()
            click.echo(f"{text}\n\n{datetime.now():%H:%M:%S}, every {interval:g} s until Ctrl-C")
        elif states(entries) != shown:
            click.echo(text)
            shown = states(entries)
        if not any(each.machines or each.crew or not (each.state and each.state.final) for each in entries):
            return
        time.sleep(interval)


def states(entries) -> str:
    """What of a list is worth to be shown again: ages alone are not."""
    return " ".join(f"{each.name} {each.status}" for each in entries)


def cells(each) -> list[str]:
    state, details = each.state, each.state.job if each.state else {}
    zone = each.machine.zone if each.machine else state.zone if state else ""
    gpus = details.get("gpus") or (each.machine.gpus if each.machine else "")
    if details.get("machines", 1) > 1:
        gpus = f"{details['machines']} machines" + (f" of {gpus}" if gpus else "")
    code = "" if state is None or state.exit_code is None else str(state.exit_code)
    return [each.name, each.status, age(each.created_at), zone, gpus, details.get("results_dir", ""), code]


def sweep(jobs) -> str:
    """The jobs of a sweep with what differs between them."""
    rows = [["JOB", *jobs[0].params, "RESULTS"]]
    rows += [[each.job_name, *each.params.values(), each.results_dir] for each in jobs]
    shown = rows if len(rows) <= 2 * SHOWN + 1 else [*rows[: SHOWN + 1], *rows[-SHOWN:]]
    widths = [min(40, max(len(row[column]) for row in shown)) for column in range(len(rows[0]))]
    lines = [fit(row, widths) for row in shown]
    if len(shown) < len(rows):
        lines.insert(SHOWN + 1, f"… {len(rows) - len(shown)} more …")
    return "\n".join([click.style(lines[0], bold=True), *lines[1:]]) + "\n"


def counts(states) -> str:
    """How many jobs are in which state, as in `2 RUNNING, 1 FAILED`."""
    order = (*job.ACTIVE, *job.FINAL)
    return ", ".join(f"{states[state]} {state}" for state in order if states[state])


def folded(entries) -> list:
    """Entries with one in place of all jobs of a sweep: its name, and how many jobs are in which state."""
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
            results = results_of([part.state.job["results_dir"] for part in parts])
            details = {**each.state.job, "sweep": "", "results_dir": results, "machines": len(each.crew)}
            state = job.State(state=counts(Counter(part.state.state for part in parts)), job=details)
            shown.append(replace(each, name=each.sweep, state=state, machines=each.crew))
    return shown


def results_of(folders: list[str]) -> str:
    """What all results folders of a sweep have in common."""
    common = os.path.commonpath(folders)
    return f"{common}/…" if common else "…"


def fit(row: list[str], widths: list[int]) -> str:
    cut = [text if len(text) <= width else text[: width - 1] + "…" for text, width in zip(row, widths, strict=True)]
    return "  ".join(f"{text:<{width}}" for text, width in zip(cut, widths, strict=True)).rstrip()


def age(timestamp: str) -> str:
    seconds = max(0, job.age_seconds(timestamp)) if timestamp else 0
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def progress(found) -> str:
    """How a job goes that is not over, in a line; "" for what is no job or over."""
    state, machine = found.state, found.machine
    if state is None or state.final:
        return ""
    if state.state != "SUBMITTED":
        where = f" on {state.machine} in {state.zone}" if state.machine else ""
        return f"{found.name} {state.state}{where}"
    if machine is None:
        what = "a machine of its sweep" if found.sweep else "room for its machine" if found.group else "its machine"
    else:
        what = f"{machine.name} in {machine.zone}, which boots" if machine.status == "RUNNING" else machine.name
        what += f" ({machine.status})"
    return f"{found.name} SUBMITTED: waiting for {what}"


def left(name: str, see: str) -> str:
    """What becomes of what somebody followed and follows no more."""
    costs = f"\n{name} goes on without you, and its machines cost money until it ends, at most until --max-hours."
    return f"{costs}\nSee it:  {see}\nEnd it:  berg kill {name}"


def outcome(name: str, state: job.State) -> str:
    """How a job ended, in a line."""
    code = f" with exit code {state.exit_code}" if state.exit_code is not None else ""
    reason = f": {state.reason}" if state.reason else ""
    beside = f"\n{also(state)}" if state.elsewhere else ""
    kept = f"\nIts machine was kept (--no-kill). Delete it:  berg kill {name}" if state.job.get("kept") else ""
    return click.style(f"{name} {state.state}{code}{reason}", fg=COLORS.get(state.state), bold=True) + beside + kept


def also(state: job.State) -> str:
    return f"It wrote to other folders, too: {state.elsewhere}"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Bytes in the unit that people would say."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def counter(what: str, total: int):
    """A function that shows on a terminal how many of `total` are done, where that are many."""

    def tell(done: int) -> None:
        if total > 100 and sys.stderr.isatty() and (done == total or done % 50 == 0):
            click.echo(f"\r{what}: {done:,} of {total:,} ", nl=done == total, err=True)

    return tell


def sending(done: int, size: int) -> None:
    """One line on a terminal that grows with what was sent; what is sent at once needs none."""
    if size > 4 << 20 and sys.stderr.isatty():
        click.echo(f"\rSending the code: {done / 1e6:.1f} of {size / 1e6:.1f} MB ", nl=done == size, err=True)


class Interleaved:
    """Logs of several machines on one stream: whole lines, each behind the name of its machine."""

    def __init__(self, stream):
        self.stream = stream
        self.rest: dict[str, bytes] = {}

    def write(self, source: str, chunk: bytes) -> None:
        if not source:
            self.stream.write(chunk)
        else:
            *lines, self.rest[source] = (self.rest.get(source, b"") + chunk).split(b"\n")
            self.stream.writelines(self.prefix(source) + line + b"\n" for line in lines)
        self.stream.flush()

    def end(self) -> None:
        for source, line in self.rest.items():
            if line:
                self.stream.write(self.prefix(source) + line + b"\n")
        self.stream.flush()

    def prefix(self, source: str) -> bytes:
        text = f"{source} | "
        if self.stream.isatty() and not os.environ.get("NO_COLOR"):
            text = click.style(text, fg=MACHINE_COLORS[list(self.rest).index(source) % len(MACHINE_COLORS)])
        return text.encode()

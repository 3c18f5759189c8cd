"""What berg shows, as text: the plan of a job, the list of jobs, how one ended.

GPUs and TPUs to choose from, and what machines cost, as text.

Not covered: what Google billed; spending.py says what is not in the sums.
"""

import json
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

import click

from berg import columns, job, plain, wrapped
from berg.commands.terminal import labelled, table
from berg.config import Config
from berg.gke import container
from berg.google import iam, offers, prices
from berg.google.shapes import Shape, parse_tpu
from berg.laptop import jobs as job_list
from berg.laptop import limits, spending
from berg.laptop.jobs import also, attempt, cells, folded, idle
from berg.plain import plural, size
from berg.plan import Plan

if TYPE_CHECKING:
    from berg.gke.clusters import Status
    from berg.google.offers import Priced
    from berg.laptop.jobs import Entry
    from berg.laptop.spending import Billable, Sum
    from berg.laptop.sweep import Row

COLORS = {
    "SUCCEEDED": "green",
    "FAILED": "red",
    "LOST": "red",
    "KILLED": "yellow",
    "RUNNING": "cyan",
}

MACHINE_COLORS = ("cyan", "green", "yellow", "magenta", "blue", "red")

SHOWN = 8  # files named in a plan; the rest is counted

KEYS = 50  # parameters, and as many metrics, that are columns


def plan(plan: Plan, jobs: int = 0, at_once: int = 0) -> str:
    """What will run, where, with which code, and what stops it; of a sweep with so many jobs and
    machines.
    """
    this = plan.job
    rows = [
        *command_rows(plan),
        *code_rows(plan),
        *install_rows(this),
        *tpu_rows(plan),
        *plan.offer.rows,
        *below("", far_zones(plan)),
        *below("Network", network(plan)),
        *below("Account", account_warning(plan)),
        *below("Price", [price(plan, jobs, at_once)]),
        *below("Quota", plan.offer.shortages),
        *restart_rows(plan),
        *below("Secrets", [", ".join(this.secrets), install_secrets(this)]),
        *below("Notify", ["a webhook, of the end"] * this.notify),
        *below("Data", [data_set(each) for each in this.data]),
        *below("Mounted", [mounted(each, plan.offer.disk_gb) for each in this.mounts]),
        *below("Defaults", this.spec.defaults),
        *end_rows(plan),
    ]
    return labelled(rows, sys.stderr) + "\n"


def install_rows(this: job.Job) -> list[tuple[str, str]]:
    """Return what a job's machines install."""
    return below("Install", [this.installation.words, *this.installation.notes])


def install_secrets(this: job.Job) -> str:
    """Return which secrets the installation alone sees, in words."""
    names = ", ".join(this.install_secrets)
    return f"{names} (for the installation alone)" if names else ""


def below(label: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return rows of a plan: lines below each other, of which the first has the label."""
    shown = [line for line in lines if line]
    labels = [label] + [""] * len(shown)
    return list(zip(labels, shown, strict=False))


def command_rows(plan: Plan) -> list[tuple[str, str]]:
    """What runs, and in which folder."""
    this = plan.job
    if not this.cmd:
        return [(this.kind.capitalize(), this.job_name)]
    where = ""
    if this.num_machines > 1:
        where = {"first": " (on the first machine)", "each": " (on every machine)"}[this.run_on]
    folder = f"{this.spec.cwd} of the repo (--cwd)" if this.spec.cwd else ""
    ran = [("Command", this.cmd + where), *below("Container", container_rows(plan))]
    return [("Job", this.job_name), *ran, *below("Folder", [folder])]


def container_rows(plan: Plan) -> list[str]:
    """Return the image that the command runs in, and what the machine installs for that."""
    this = plan.job
    if not this.docker:
        return []
    toolkit = " and NVIDIA's container toolkit" if this.gpus_per_machine else ""
    if this.tpu:
        return [
            *plan.container,
            "Google's image for TPUs has no docker: apt-get installs docker.io",
        ]
    what = f"docker{toolkit}: installed with apt-get where the machine has none"
    return [*plan.container, what]


def code_rows(plan: Plan) -> list[tuple[str, str]]:
    """Which code runs."""
    this, snapshot = plan.job, plan.snapshot
    code = f"{this.repo_name} at {this.git_commit[:12]} ({snapshot.branch or 'detached HEAD'})"
    if this.git_dirty:
        changes = plural(len(this.git_changed_files), "uncommitted change")
        code += f" with {changes}, as {this.git_snapshot[:12]}"
    if this.spec.branch or this.spec.commit:
        code += ", not the working tree"
    if plan.code_bytes:
        code += f"; about {size(plan.code_bytes)} to send"
    changed, left_out = shorten(this.git_changed_files), shorten(snapshot.left_out)
    rows = [("Code", code), *below("", changed), *below("Left out", left_out)]
    return [*rows, *below("Careful", shorten(snapshot.doubtful))]


def tpu_rows(plan: Plan) -> list[tuple[str, str]]:
    this = plan.job
    if not this.tpu:
        return []
    in_cluster = this.place == "gke"
    chips = plural(parse_tpu(this.tpu, in_cluster).chips, "chip")
    caution = [] if in_cluster else offers.tpu_caution(this.tpu, plan.model)
    return [("TPUs", f"{this.tpu}, {chips}"), *caution]


def account_warning(plan: Plan) -> list[str]:
    """A warning of an account that may do anything."""
    if not any(map(iam.is_default, plan.accounts)):
        return []
    return [f"{iam.DEFAULT_IS_WIDE}. Another one: berg init"]


def far_zones(plan: Plan) -> list[str]:
    """A warning of zones that are far from the bucket."""
    if not plan.far_zones:
        return []
    regions = dict.fromkeys(zone.rpartition("-")[0] for zone in plan.far_zones)
    far = f"not in {plan.bucket_region}, where the bucket is: slower, and its traffic costs"
    return [f"{', '.join(regions)}: {far}"]


def restart_rows(plan: Plan) -> list[tuple[str, str]]:
    """What becomes of a job that loses a machine, or whose command fails."""
    this, rows = plan.job, []
    if plan.offer.heals:
        times = f"{this.spec.max_restarts} after {plan.offer.heals}"
        rows.append(("Restarts", f"{times}{patience(this)}"))
    elif this.group:
        what = "a pod" if this.group.cluster else "a machine"
        go_on = f". Go on: berg run --resume {this.job_name}" if this.cmd else ""
        rows.append(("Restarts", f"none: {what} that is taken away ends it{go_on}"))
    if this.spec.restart_on_failure:
        rows.append(("Again", f"{this.spec.restart_on_failure} times if the command fails"))
    return rows


def patience(this: job.Job) -> str:
    """How long the machines of a job wait for those of them that are made anew; "" for one."""
    if not this.is_replaced:
        return ""
    minutes = this.spec.replacement_timeout / 60
    return f"; the others wait {minutes:g} min for them (--replacement-timeout)"


def end_rows(plan: Plan) -> list[tuple[str, str]]:
    """Where the results go, and what ends the machines."""
    this, results = plan.job, plan.job.gcs_results_dir
    is_given = this.spec.results_dir or this.results_dir.endswith(this.job_name)
    if not is_given:
        results += " (read off the command; another: -r)"
    ender = plan.offer.ender
    if this.keeps_disk:
        ender = "Google stops the machine, whose disk stays"
    limit = f"{span(this.max_run_seconds)}, then {ender} ({plan.limit})"
    rows = [("Results", results)] * (this.kind != "image") + [("Limit", limit)]
    if this.spec.idle_hours:
        ends = "stops itself, and keeps its disk," if this.stops_when_idle else "deletes itself"
        rows.append(("Idle", f"{ends} after {this.spec.idle_hours:g} h"))
    if this.box == "stay":
        from berg.laptop import power

        about = this.place, this.num_machines, this.machine_type, plan.model
        why = power.why_never("devbox", *about)
        lost = f"lost when the machine ends, but for /root/berg_results: {why}"
        rows.append(("Disk", lost))
    return rows


def span(seconds: int) -> str:
    """Return a limit as people say it: in minutes where it is no round number of hours."""
    if seconds % 360 == 0:
        return f"{seconds / 3600:g} h"
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def network(plan: Plan) -> list[str]:
    """What machines without an external address reach; pods are reached through their cluster."""
    if not plan.offer.ways:
        return []
    lines = ["no external address; ssh goes through IAP, with gcloud"]
    for ways in plan.offer.ways:
        if ways.to_google is None:
            lines.append(
                f"you may not see whether {ways.region} has Private Google Access, "
                "without which nothing runs"
            )
        if ways.to_internet is False:
            command = ways.command(to_internet=True)
            lines.append(
                f"{ways.region} has no Cloud NAT: pip and the internet are out of reach. "
                f"For one: {command}"
            )
    return lines


def data_set(wish: dict[str, Any]) -> str:
    return (
        f"{wish['name']}: {plural(wish['files'], 'file')}, {size(wish['bytes'])}, to {wish['path']}"
    )


def mounted(wish: dict[str, Any], disk_gb: int) -> str:
    """A folder of a bucket that is seen as files, and whether a disk could hold it instead."""
    least = "more than " * wish["has_more"]
    text = (
        f"{wish['name']}: {least}{plural(wish['files'], 'file')}, {size(wish['bytes'])}, at "
        f"{wish['path']}, read as it is needed"
    )
    if wish["has_more"] or wish["bytes"] > disk_gb * 2**29:
        return f"{text}; half of the disk keeps what was read"
    return f"{text}. It would fit the disk: --data brings it before the command begins"


def cluster(found: "Status", price: str) -> str:
    """A cluster with its pools, nodes and pods."""
    head = f"{found.name} in {found.location}: {found.state}"
    if found.idle and found.state == "RUNNING":
        head += ", idle"
    head += f". It costs {price}"
    parts = [head, found.problems, pools_of(found), found.trouble, nodes_of(found), pods_of(found)]
    return "\n\n".join(part for part in parts if part)


def pools_of(found: "Status") -> str:
    """A cluster's pools as a table."""
    rows = [["POOL", "MACHINE TYPE", "GPUS", "NODES", "STATUS"]]
    for pool in found.pools:
        there = sum(node["pool"] == pool["pool"] for node in found.nodes)
        nodes = f"{there} of {pool['min_nodes']} to {pool['max_nodes']}"
        kind = pool["machine_type"] + ", spot" * pool["spot"]
        chips = pool["gpus"] or pool["tpu"]
        rows.append([pool["pool"], kind, chips, nodes, pool["problems"] or pool["status"]])
    return table(rows, sys.stdout)


def nodes_of(found: "Status") -> str:
    """A cluster's nodes as a table, and how many of their GPUs are free; "" without nodes."""
    if not found.nodes:
        return ""
    rows = [["NODE", "POOL", "READY", "GPUS", "USED"]]
    for node in found.nodes:
        gpus, used = str(node["gpus"]), str(node["used"])
        rows.append([node["node"], node["pool"], readiness(node), gpus, used])
    taken = sum(node["used"] for node in found.nodes)
    free = sum(node["gpus"] for node in found.nodes) - taken
    return f"{table(rows, sys.stdout)}\n\nGPUs: {taken} used, {free} free"


def readiness(node: dict[str, Any]) -> str:
    if node["drivers"] == "coming":
        return "drivers are coming"
    return "yes" if node["ready"] else "no"


def pods_of(found: "Status") -> str:
    """The pods of berg's jobs as a table, and what they wait for; "" without pods."""
    if not found.pods:
        return ""
    rows = [["POD", "JOB", "STATUS", "NODE", "GPUS"]]
    for pod in found.pods:
        rows.append([pod["name"], pod["job"], pod["status"], pod["node"], str(pod["gpus"])])
    notes = [f"{pod['name']} waits: {pod['note']}" for pod in found.pods if pod["note"]]
    notes += [f"{pod['name']}: {pod['silence']}" for pod in found.pods if pod["silence"]]
    return "\n".join([table(rows, sys.stdout), *notes])


def cache(found: Any) -> str:
    """A cluster's dataset cache, and how much it was of use."""
    rows = [("Cache", f"{found.url} in {found.cluster}: {found.state}")]
    rows += [("Node", found.node)] if found.node else []
    rows.append(("Kept", f"{size(found.kept_bytes)} of {found.size_gb} GB"))
    if found.slices:
        since = datetime.fromtimestamp(found.since).strftime("%Y-%m-%d %H:%M")
        rows.append(("Read", f"{plural(found.slices, 'slice')} since {since}"))
        rows.append(("Hits", f"{found.hit_rate:.1%}: {size(found.hit_bytes)}"))
        rows.append(("Fetched", f"{size(found.fetched_bytes)} from Cloud Storage"))
    else:
        rows.append(("Read", "nothing yet"))
    return labelled(rows, sys.stdout)


def shorten(lines: list[str]) -> list[str]:
    lines = [plain.name(line) for line in lines]
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"… and {len(lines) - SHOWN} more"]


def entries(
    entries: "list[Entry]", with_command: bool, with_user: bool, with_machines: bool
) -> str:
    """Jobs and machines as a table that fits the terminal."""
    entries = entries if with_machines else folded(entries)
    header = ["NAME", "STATE", "AGE", "COST", "ZONE", "GPUS", "RESULTS", "EXIT"]
    rows = [cells(each) for each in entries]
    if with_user:
        header.insert(1, "USER")
        for row, each in zip(rows, entries, strict=True):
            row.insert(1, each.user)
    layout = layout_of([header, *rows])
    lines = [click.style(layout.line(header), bold=True)]
    for row, each in zip(rows, entries, strict=True):
        status = each.state.state.rpartition(" ")[2] if each.state else "LOST"
        lines.append(click.style(layout.line(row), fg=COLORS.get(status)))
        lines += [wrapped(f"    {text}", sys.stdout) for text in notes_of(each)]
        if with_machines:
            lines += machines_of(each)
        if with_command and each.state:
            lines.append(wrapped(f"    {command_of(each.state.job)}", sys.stdout))
    return "\n".join(lines)


def command_of(summary: job.Summary) -> str:
    """Return a job's command as a list shows it."""
    if not summary.cmd:
        return "(devbox)"
    return f"$ {summary.cmd}"


@dataclass(frozen=True)
class Layout:
    """How the rows of a list fit the terminal."""

    widths: list[int]  # of the columns, in characters
    apart: bool  # names stand on a line of their own

    def line(self, row: list[str]) -> str:
        if not self.apart:
            return fit(row, self.widths)
        return f"{row[0]}\n  {fit(row[1:], self.widths[1:])}"


def layout_of(rows: list[list[str]]) -> Layout:
    """Return widths with which rows fit; only the results' folder gets less than it needs."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    room = max(columns(sys.stdout) or 10_000, 60)
    results = rows[0].index("RESULTS")
    left = widths[results] + room + 2 - sum(widths) - 2 * len(widths)
    widths[results] = max(8, min(widths[results], left))
    # Names are for typing: they are never cut.
    return Layout(widths, sum(widths) + 2 * len(widths) > room + 2)


def notes_of(entry: "Entry") -> list[str]:
    """Return what is to be said of a job: its reason, what its machines wait for, and the rest."""
    waits = waits_of(entry)
    if not entry.state:
        return waits
    said = [
        entry.summary.note,
        entry.state.reason,
        attempt(entry.state),
        entry.about,
        *waits,
        also(entry.state),
        idle(entry.state),
    ]
    return [text for text in said if text]


def waits_of(entry: "Entry") -> list[str]:
    """Return what a job's machines wait for, whose node is silent, and that machines are left, each
    thing once.
    """
    waits = {machine.note: f"{machine.name} waits: {machine.note}" for machine in entry.machines}
    waits |= {machine.silence: f"{machine.name}: {machine.silence}" for machine in entry.machines}
    waits |= {entry.left: entry.left}
    waits.pop("", None)
    return list(waits.values())


def machines_of(entry: "Entry") -> list[str]:
    """Return a line for each machine of a job that has several."""
    if len(entry.machines) < 2:
        return []
    return [
        f"    {each.name}  {each.status}  {each.internal_ip}  {each.external_ip}"
        for each in entry.machines
    ]


def watch(newest: Callable[[], Any], table: Callable[[Any], str], interval: float = 5) -> None:
    """Show a table anew where it was, or below, if this is no terminal and it changed; until
    nothing lives.
    """
    shown = ""
    while True:
        entries = newest()
        text = table(entries) if entries else "Nothing yet"
        if sys.stdout.isatty():
            click.clear()
            plain.echo(f"{text}\n\n{datetime.now():%H:%M:%S}, every {interval:g} s until Ctrl-C")
        elif states(entries) != shown:
            plain.echo(text)
            shown = states(entries)
        if not any(
            each.machines or each.workers or not (each.state and each.state.final)
            for each in entries
        ):
            return
        time.sleep(interval)


def states(entries: "Iterable[Entry]") -> str:
    """What of a list is worth to be shown again: ages alone are not."""
    return " ".join(f"{each.name} {each.status}" for each in entries)


def sweep(jobs: list[Any]) -> str:
    """The jobs of a sweep with what differs between them."""
    rows = [["JOB", *jobs[0].params, "RESULTS"]]
    rows += [[each.job_name, *each.params.values(), each.results_dir] for each in jobs]
    return shortened(rows, sys.stderr)


def again(found: Any, plan: Plan, machines: list[str]) -> str:
    """What of a sweep runs again, and on what."""
    params = found.jobs[0].state.job.params
    jobs = [["JOB", "STATE", *params, "RESULTS"]]
    for each in found.jobs:
        jobs.append(
            [
                each.name,
                each.status,
                *each.state.job.params.values(),
                each.state.job.results_dir,
            ]
        )
    limit = f"{found.first.max_run_seconds / 3600:g} h each"
    if plan.job.max_run_seconds < found.first.max_run_seconds:
        limit = f"{span(plan.job.max_run_seconds)} each ({plan.limit})"
    rows = [("Command", f"{found.first.cmd} ({found.first.job_name})"), ("Code", str(found))]
    if machines:
        rows += [("Machines", f"{len(machines)} new"), *plan.offer.rows]
        rows += below("Price", [price(plan, len(found.jobs), len(machines))])
    else:
        rows.append(("Machines", "none beside those there"))
    rows += [
        *below("Secrets", [", ".join(plan.job.secrets)]),
        *below("Notify", ["a webhook, of the end"] * plan.job.notify),
        ("Limit", limit),
    ]
    return f"{shortened(jobs, sys.stderr)}\n{labelled(rows, sys.stderr)}\n"


def outcomes(rows: "list[Row]") -> str:
    """Return how the jobs of a sweep went, with what differs between them and the last values of
    their metrics.
    """
    params = list(dict.fromkeys(key for row in rows for key in row.params))[:KEYS]
    metrics = list(dict.fromkeys(key for row in rows for key in row.metrics))[:KEYS]
    lines = [["JOB", "STATE", "EXIT_CODE", *params, *metrics, "REASON"]]
    for row in rows:
        values = [row.name, row.state, row.exit_code]
        values += [row.params.get(key) for key in params]
        values += [row.metrics.get(key) for key in metrics]
        values.append(row.reason)
        lines.append(["" if value is None else str(value) for value in values])
    return shortened(lines, sys.stdout)


def shortened(rows: list[list[str]], stream: IO[str]) -> str:
    """The first and the last rows below their header, as wide as the terminal at most."""
    shown = rows if len(rows) <= 2 * SHOWN + 1 else [*rows[: SHOWN + 1], *rows[-SHOWN:]]
    shown = [list(map(plain.line, row)) for row in shown]
    widths = [min(40, max(len(row[column]) for row in shown)) for column in range(len(rows[0]))]
    while sum(widths) + 2 * len(widths) - 2 > (columns(stream) or 10_000) and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    lines = [fit(row, widths) for row in shown]
    if len(shown) < len(rows):
        lines.insert(SHOWN + 1, f"… {len(rows) - len(shown)} more …")
    return "\n".join([click.style(lines[0], bold=True), *lines[1:]]) + "\n"


def fit(row: list[str], widths: list[int]) -> str:
    cut = [
        text if len(text) <= width else text[: width - 1] + "…"
        for text, width in zip(row, widths, strict=True)
    ]
    return "  ".join(f"{text:<{width}}" for text, width in zip(cut, widths, strict=True)).rstrip()


def progress(found: "Entry") -> str:
    """How a job goes that is not over, in a line; "" for what is no job or over."""
    state, machine = found.state, found.machine
    if state is None or state.final:
        return ""
    if state.state != "SUBMITTED":
        where = f" on {state.machine} in {state.zone}" if state.machine else ""
        return f"{found.name} {state.state}{where}"
    if machine is None:
        what = (
            "a machine of its sweep"
            if found.sweep
            else "room for its machine"
            if found.group
            else "its machine"
        )
    else:
        what = (
            f"{machine.name} in {machine.zone}, which boots"
            if machine.status == "RUNNING"
            else machine.name
        )
        what += f" ({machine.note or machine.status})"
    return f"{found.name} SUBMITTED: waiting for {what}"


def left(name: str, see: str) -> str:
    """What becomes of what somebody followed and follows no more."""
    costs = (
        f"\n{name} goes on without you, and its machines cost money until it ends, at most until "
        "--max-hours."
    )
    return f"{costs}\nSee it:  {see}\nEnd it:  berg kill {name}"


def outcome(name: str, state: job.State) -> str:
    """How a job ended, in a line."""
    beside = f"\n{also(state)}" if state.elsewhere else ""
    kept = (
        f"\nIts machine was kept (--no-kill). Delete it:  berg kill {name}"
        if state.job.kept
        else ""
    )
    return (
        click.style(f"{name} {state.state}{why(state)}", fg=COLORS.get(state.state), bold=True)
        + beside
        + kept
    )


def why(state: job.State) -> str:
    """The exit code of a job that is over, and the reason that it ended so."""
    is_said = f"exit code {state.exit_code}" in state.reason
    code = "" if state.exit_code is None or is_said else f" with exit code {state.exit_code}"
    return code + (f": {state.reason}" if state.reason else "")


def counter(what: str, total: int) -> Callable[[int], None]:
    """A function that shows on a terminal how many of `total` are done, where that are many."""

    def tell(done: int) -> None:
        if total > 100 and sys.stderr.isatty() and (done == total or done % 50 == 0):
            plain.redraw(f"{what}: {done:,} of {total:,} ", done == total)

    return tell


def sending(done: int, size: int) -> None:
    """One line on a terminal that grows with what was sent; what is sent at once needs none."""
    if size > 4 << 20 and sys.stderr.isatty():
        line = f"Sending the code: {done / 1e6:.1f} of {size / 1e6:.1f} MB "
        plain.redraw(line, done == size)


class Interleaved:
    """Logs on one stream, as a terminal may show them: of several machines whole lines, each behind
    the name of its machine. Colours stay on a terminal, and where somebody asks for them.
    """

    def __init__(self, stream: IO[bytes], color: bool = False) -> None:
        self.stream, self.redraws = stream, stream.isatty()
        self.colors = color or (stream.isatty() and not os.environ.get("NO_COLOR"))
        self.logs: dict[str, plain.Log] = {}
        self.rest: dict[str, str] = {}

    def write(self, source: str, chunk: bytes, is_last: bool = False) -> None:
        if source not in self.logs:
            self.logs[source] = plain.Log(self.colors, self.redraws and not source)
        log = self.logs[source]
        text = log.read(chunk, is_last)
        if source:
            *lines, self.rest[source] = (self.rest.get(source, "") + text).split("\n")
            text = "".join(f"{self.prefix(source)}{log.colored(line)}\n" for line in lines)
        else:
            text = log.colored(text)
        self.stream.write(text.encode())
        self.stream.flush()

    def end(self) -> None:
        """Write what no newline has ended yet."""
        for source in self.logs:
            self.write(source, b"", is_last=True)
            if self.rest.get(source):
                self.write(source, b"\n", is_last=True)

    def prefix(self, source: str) -> str:
        text = f"{plain.clean(source)} | "
        if not self.colors:
            return text
        color = MACHINE_COLORS[list(self.logs).index(source) % len(MACHINE_COLORS)]
        return click.style(text, fg=color)


ABOUT_ODDS = (
    "Spot odds, as Google tells them of the best zone: obtainability (0.7 good, 0.3 poor), hours "
    "that one machine lasts, and how many of those that ended were preempted."
)


def gpus(found: list[Any], region: str, everywhere: bool) -> str:
    """GPU types as a table; zones of everywhere take the room of the odds."""
    start, last = f"{region}-", ["SPOT ODDS", f"ZONES OF {region}-"]
    if everywhere:
        start, last = "", ["ZONES"]
    rows = [["TYPE", "PER MACHINE", "QUOTA, SPOT", "$/H, SPOT", *last]]
    for each in found:
        zones = [zone.removeprefix(start) for zone in each.zones if zone.startswith(start)]
        quota = map(number, (each.quota_left, each.spot_quota_left))
        about = [", ".join(map(str, each.per_machine)), ", ".join(quota)]
        costs = dollars(each.usd_per_hour, each.spot_usd_per_hour)
        places = ", ".join(zones) or elsewhere(each)
        odds = [] if everywhere else [spot_odds(each.spot_odds)]
        rows.append([each.type, *about, costs, *odds, places])
    return table(rows, sys.stdout)


def spot_odds(there: Any) -> str:
    """Return what Google says of its room for Spot machines; "?" if it says nothing."""
    if there is None:
        return "?"
    return f"{there.obtainability:g}, {there.hours}h, {there.share.replace(' ', '')}"


def number(count: float | None) -> str:
    """Return a number as people write it; "?" for one that is unknown."""
    return "?" if count is None else f"{count:g}"


def dollars(*amounts: float | None) -> str:
    return ", ".join("?" if amount is None else f"{amount:,.2f}" for amount in amounts)


def about_prices(listed: Any, why: str) -> str:
    """Where prices come from and what is not in them, or why they are unknown."""
    if listed is None:
        return f"Prices: unknown: {why}"
    return f"List prices in {listed.region} of {listed.date}, without disks and traffic."


def per_chip(found: Any) -> str:
    """Prices of each family of TPUs, of which every chip costs the same."""
    first = {each["family"]: each for each in reversed(found)}
    costs = {
        name: (each["usd_per_hour"], each["spot_usd_per_hour"], each["chips"])
        for name, each in first.items()
    }
    shown = [
        f"{name} {dollars(*(each and each / chips for each in two))}"
        for name, (*two, chips) in costs.items()
    ]
    return f" $/h a chip, on demand and Spot: {'; '.join(reversed(shown))}."


def price(plan: Plan, jobs: int, at_once: int) -> str:
    """What the machines of a plan cost, and what else they could be had for; of pods, their share
    of a node.

    "" for pods without GPUs, which any node may hold.
    """
    if plan.offer.reservation:
        return "that of the reservation, which is paid for whether it is used or not"
    if plan.offer.priced is None:
        return ""
    region = prices.region_of(plan.offer.zones[0])
    listed = prices.known(plan.config, region)
    if listed is None:
        return "unknown; berg prices says why"
    count = machines_paid_for(plan, at_once)
    hourly = spending.rate(listed, plan.offer, plan.model)
    if hourly is None:
        return f"unknown in {region}"
    models = [plan.model, *(each for each in prices.MODELS if each != plan.model)]
    each = [(model, spending.rate(listed, plan.offer, model)) for model in models]
    shown = [
        f"${dollars(rate * count)} an hour {prices.MODELS[model]}" for model, rate in each if rate
    ]
    where = f"list price in {region} of {listed.date}, with disks, without traffic"
    if plan.offer.is_shared:
        where = f"its share of {plan.offer.priced}; {where}"
    return f"{', '.join(shown)}; {at_most(plan, jobs)} ({where})"


def machines_paid_for(plan: Plan, at_once: int) -> int:
    """Return how many machines a plan pays for at a time."""
    return at_once or plan.job.num_machines


def at_most(plan: Plan, jobs: int) -> str:
    """What a job costs at most, or a sweep of so many jobs, wherever there is room for it."""
    usd = limits.worst(plan, jobs)
    hours = plan.job.max_run_seconds / 3600
    limit = f"{tidy(jobs * hours)} machine-hours" if jobs else f"{tidy(hours)} h"
    if usd is None:
        unpriced = set(map(prices.region_of, plan.offer.zones)) - plan.job.rates.keys()
        return f"at most unknown: no price in {', '.join(sorted(unpriced))}"
    amount = f"{usd:,.0f}" if usd >= 10 else dollars(usd)
    return f"at most ${amount} in {limit}"


def tidy(number: float) -> str:
    """Return a number with one digit behind the point, if there is one."""
    return f"{number:,.1f}".removesuffix(".0")


def cluster_cost(config: Config, found: "Status") -> str:
    """What a cluster costs an hour, with those nodes for jobs that are up."""
    from berg.gke import clusters

    up = Counter(node["pool"] for node in found.nodes if node["pool"] != container.SYSTEM)
    pools = [pool for pool in found.pools if up[pool["pool"]]]
    if not pools:
        return clusters.IDLE_PRICE
    nodes = plain.plural(sum(up[pool["pool"]] for pool in pools), "node")
    listed = prices.known(config, found.location.rpartition("-")[0])
    hourly = [(node_price(listed, pool), float(up[pool["pool"]])) for pool in pools]
    in_all = prices.total(hourly)
    if in_all is None:
        return f"{clusters.IDLE_PRICE}, and more for {nodes} up (berg gpus looks for prices)"
    return f"{clusters.IDLE_PRICE}, and ${dollars(in_all)} an hour for {nodes} up"


def node_price(listed: prices.Prices | None, pool: dict[str, Any]) -> float | None:
    """Return USD for an hour of one node of a pool; None where that is not known."""
    if listed is None:
        return None
    count, _, kind = pool["gpus"].partition(" x ")
    model = prices.STANDARD
    if pool["spot"]:
        model = prices.SPOT
    return listed.per_hour(Shape(pool["machine_type"], int(count or 0), kind), model)


def tpu_table(found: list[Any]) -> str:
    """What there is of TPUs, as a table."""
    rows, before = [["TPU", "HOSTS", "CHIPS", "MACHINE TYPE", "ZONES"]], None
    for each in found:
        about = [each["tpu"], str(each["hosts"]), str(each["chips"]), each["machine_type"]]
        same = columns(sys.stdout) and each["zones"] == before
        rows.append([*about, "as above" if same else ", ".join(each["zones"]) or "none"])
        before = each["zones"]
    return table(rows, sys.stdout)


def elsewhere(gpu: Any) -> str:
    regions = sorted({zone.rpartition("-")[0] for zone in gpu.zones})
    return (
        f"none; in {', '.join(regions[:3])}{', …' if len(regions) > 3 else ''}"
        if regions
        else "none"
    )


def priced(found: "list[Priced]", region: str) -> str:
    """Machines with what an hour of them costs, as a table."""
    zones = f"ZONES OF {region}-"
    rows = [["TYPE", "GPUS", "MACHINE TYPE", "ON DEMAND", "SPOT", "FLEX-START", zones]]
    for each in found:
        costs = (each.usd_per_hour, each.spot_usd_per_hour, each.flex_usd_per_hour)
        ends = ", ".join(zone.removeprefix(f"{region}-") for zone in each.zones)
        about = [each.type, str(each.gpus), each.machine_type]
        rows.append([*about, *map(plain.dollars, costs), ends])
    return table(rows, sys.stdout)


def sums(weeks: "list[Sum]") -> str:
    """What jobs cost by week and user, as a table."""
    rows = [["WEEK OF", "USER", "JOBS", "MACHINE-HOURS", "COST", "PRICE UNKNOWN"]]
    for each in weeks:
        about = [each.begins, each.user, f"{each.jobs:,}", f"{each.hours:,.1f}"]
        rows.append([*about, plain.dollars(each.usd), plain.plural(each.unknown, "job")])
    return table(rows, sys.stdout)


def billable_table(there: "list[Billable]") -> str:
    """What costs money now, as a table, and an hour of all of it."""
    rows = [["NOW", "NAME", "WHERE", "AGE", "$/H", "WHAT"]]
    for each in there:
        age = job_list.age(each.created_at)
        rows.append([each.kind, each.name, each.where, age, dollars(each.usd_per_hour), each.about])
    known = sum(each.usd_per_hour or 0 for each in there)
    unknown = sum(each.usd_per_hour is None for each in there)
    rest = f", and {unknown} of unknown price" if unknown else ""
    return f"{table(rows, sys.stdout)}\n\nNow: {plain.dollars(known)} an hour{rest}"


def cap_command(project: str, usd: int) -> str:
    """Return the command that makes a spend cap: what may be spent on Compute Engine in a month."""
    body = {
        "displayName": f"berg: {project}",
        "budgetFilter": {
            "projects": [f"projects/{project}"],
            "services": [prices.SERVICE],
            "calendarPeriod": "MONTH",
            "creditTypesTreatment": "EXCLUDE_ALL_CREDITS",
        },
        "amount": {"specifiedAmount": {"currencyCode": "USD", "units": str(usd)}},
        "thresholdRules": [{"thresholdPercent": each} for each in (0.5, 0.8, 1.0)],
        "notificationsRule": {"enableProjectLevelRecipients": True},
        "spendCap": {"inputState": "CONFIGURED"},
    }
    account = f"gcloud billing projects describe {project} --format='value(billingAccountName)'"
    return " \\\n    ".join(
        [
            "curl --fail-with-body -X POST",
            '-H "Authorization: Bearer $(gcloud auth print-access-token)"',
            f'-H "x-goog-user-project: {project}" -H "Content-Type: application/json"',
            f"-d {shlex.quote(json.dumps(body))}",
            f'"https://billingbudgets.googleapis.com/v1/$({account})/budgets"',
        ]
    )

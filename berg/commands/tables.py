"""What the commands print, as text: plans, lists, prices, progress, logs."""

import json
import math
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

import click

from berg import job, plain
from berg.code.snapshot import IGNORE_FILE
from berg.commands.terminal import labelled, table
from berg.config import Config
from berg.gke import client
from berg.google import iam, offers, prices
from berg.google.instances import WARM
from berg.google.shapes import Shape, parse_tpu
from berg.laptop import jobs as job_list
from berg.laptop import power, records, spending
from berg.plain import dollars, plural, size, span
from berg.plan import Plan

if TYPE_CHECKING:
    from berg.gke.clusters import Status
    from berg.google.offers import Priced
    from berg.laptop.jobs import Entry
    from berg.laptop.records import Comparison, Moment, Record, Removal
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
PAGE = 1000  # files of the results dir are counted, at most
SHOWN = 8  # files that a plan names, and rows at either end of a sweep's table
KEYS = 50  # parameters, and metrics, that are columns, at most
FILES = 20  # results that a record names
SIDE_BY_SIDE = 80  # characters of two values, at most


def plan(plan: Plan, num_jobs: int = 0, at_once: int = 0) -> str:
    """Return what will run, where, with which code, and what stops it."""
    this, offer = plan.job, plan.offer
    far = account = install_secrets = ""
    if plan.far_zones:
        regions = ", ".join(dict.fromkeys(map(prices.region_of, plan.far_zones)))
        where = f"not in {plan.bucket_region}, where the bucket is"
        far = f"{regions}: {where}: slower, and traffic costs money"
    if any(map(iam.is_default, plan.accounts)):
        account = f"{iam.DEFAULT_IS_WIDE}. To use another one: berg init"
    if this.install_secrets:
        install_secrets = f"{', '.join(this.install_secrets)} (only for the installation)"
    rows: list[tuple[str, ...]] = [
        *command_rows(plan),
        *code_rows(plan),
        install_row(this),
        *tpu_rows(plan),
        *offer.rows,
        ("", far),
        ("Network", *network(plan)),
        ("Account", account),
        ("Price", price(plan, num_jobs, at_once)),
        ("Quota", *offer.shortages),
        *restart_rows(plan),
        ("Secrets", ", ".join(this.secrets), install_secrets),
        notify_row(this),
        ("Data", *(f"{contents(each)}, to {each['path']}" for each in this.data)),
        ("Mounted", *(mounted(each, offer.disk_gb) for each in this.mounts)),
        ("Defaults", *this.spec.defaults),
        *end_rows(plan),
    ]
    return labelled(rows, sys.stderr) + "\n"


def install_row(this: job.Job) -> tuple[str, ...]:
    return ("Install", this.installation.words, *this.installation.notes)


def notify_row(this: job.Job) -> tuple[str, str]:
    return ("Notify", "a webhook, at the end" if this.notify else "")


def command_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return what runs, in which container and folder."""
    this = plan.job
    if not this.cmd:
        return [(this.kind.capitalize(), this.job_name)]
    where = ""
    if this.num_machines > 1:
        where = {"first": " (on the first machine)", "each": " (on every machine)"}[this.run_on]
    container: list[str] = []
    if this.docker:
        toolkit = " and NVIDIA's container toolkit" if this.gpus_per_machine else ""
        docker = f"docker{toolkit}: installed with apt-get if the machine has none"
        if this.tpu:
            docker = "Google's image for TPUs has no docker: apt-get installs docker.io"
        container = [*plan.container, docker]
    folder = f"{this.spec.cwd} of the repo (--cwd)" if this.spec.cwd else ""
    return [
        ("Job", this.job_name),
        ("Command", this.cmd + where),
        ("Container", *container),
        ("Folder", folder),
    ]


def code_of(this: job.Job, branch: str) -> str:
    """Return a job's repository, commit, branch and number of changes."""
    code = f"{this.repo_name} at {this.git_commit[:12]}"
    if branch:
        code += f" ({branch})"
    if this.git_dirty:
        code += f" with {plural(len(this.git_changed_files), 'uncommitted change')}"
    return code


def code_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return which code runs, and what of the working tree is not sent."""
    this, snapshot = plan.job, plan.snapshot
    code = code_of(this, snapshot.branch or "detached HEAD")
    if this.git_dirty:
        code += f", as {this.git_snapshot[:12]}"
    if this.spec.branch or this.spec.commit:
        code += ", not the working tree"
    if plan.code_bytes:
        code += f"; about {size(plan.code_bytes)} to send"
    is_ignored = any(each.endswith("(ignored by git)") for each in snapshot.left_out)
    hint = f"to send one anyway: a line !PATH in {IGNORE_FILE}" if is_ignored else ""
    return [
        ("Code", code, *shorten(this.git_changed_files)),
        ("Left out", *shorten(snapshot.left_out), hint),
        ("Careful", *shorten([*map(str, plan.leaks), *snapshot.doubtful])),
    ]


def tpu_rows(plan: Plan) -> list[tuple[str, str]]:
    tpu, in_cluster = plan.job.tpu, plan.job.place == "gke"
    if not tpu:
        return []
    chips = plural(parse_tpu(tpu, in_cluster).chips, "chip")
    caution = [] if in_cluster else offers.tpu_caution(tpu, plan.model)
    return [("TPUs", f"{tpu}, {chips}"), *caution]


def restart_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return what happens if a job loses a machine, or if its command fails."""
    this, rows = plan.job, []
    if plan.offer.heals:
        text = f"{this.spec.max_restarts} after {plan.offer.heals}"
        if this.is_replaced:
            wait = span(this.spec.replacement_timeout)
            text += f"; the others wait {wait} for the replacement (--replacement-timeout)"
        rows.append(("Restarts", text))
    elif this.group:
        what = "a pod" if this.group.cluster else "a machine"
        resume = f". To resume it: berg run --resume {this.job_name}" if this.cmd else ""
        rows.append(("Restarts", f"none: the loss of {what} ends it{resume}"))
    if this.spec.restart_on_failure:
        rows.append(("Again", f"{this.spec.restart_on_failure} times if the command fails"))
    return rows


def end_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return where the results go, and what ends the machines."""
    this = plan.job
    rows: list[tuple[str, ...]] = []
    if this.kind != "image":
        results = this.gcs_results_dir
        if not (this.spec.results_dir or this.results_dir.endswith(this.job_name)):
            results += " (taken from the command; to change it: -r)"
        hidden = ""
        if plan.hidden:
            hidden = f"not {plan.hidden}, a folder of the repository: write to /root/{plan.hidden}"
        rows += [("Results", results, hidden, beginning(plan))]
    if this.spec.kept:
        rows.append(("Keeps", f"{', '.join(this.spec.kept)} of the repository, also in a restart"))
    ender, lossy = plan.offer.ender, ", but not /mnt/scratch" * bool(plan.offer.shape.local_ssds)
    if this.keeps_disk:
        ender = f"Google stops the machine, and its disk stays{lossy}"
    rows.append(("Limit", f"{span(this.max_run_seconds)}, then {ender} ({plan.limit})"))
    if this.spec.idle_hours:
        ends = f"stops and keeps its disk{lossy}" if this.stops_when_idle else "deletes itself"
        rows.append(("Idle", f"{ends} after {span(this.spec.idle_hours * 3600)}"))
    failed, warm = this.spec.keep_failed, this.spec.keep_warm
    rows.append(("Failed", f"kept for {span(failed)}, within the limit" if failed else ""))
    rows.append(("Warm", f"for another job, {span(warm)} after this one" if warm else ""))
    if this.box == "stay":
        about = this.place, this.num_machines, this.machine_type, plan.model
        why = power.why_never("devbox", *about)
        rows.append(("Disk", f"deleted with the machine, except /root/berg_results: {why}"))
    return rows


def beginning(plan: Plan) -> str:
    """Return which files a job finds in its results folder."""
    count = plural(plan.files, "file") if plan.files < PAGE else f"{PAGE:,} files or more"
    if plan.job.fresh and plan.files:
        return f"begins empty (--fresh); of the {count} there, those of the same name are replaced"
    whose = f"of job {plan.job.begins_with}" if plan.job.begins_with else "of no known job"
    return f"begins with {count} {whose}; --fresh begins empty" if plan.files else ""


def network(plan: Plan) -> list[str]:
    """Return what machines without an external address reach."""
    if not plan.offer.egress:
        return []
    lines = ["no external address; ssh goes through IAP, with gcloud"]
    for each in plan.offer.egress:
        if each.to_google is None:
            lines.append(
                f"you do not have permission to see whether {each.region} has Private Google "
                "Access, without which nothing runs"
            )
        if each.to_internet is False:
            lines.append(
                f"{each.region} has no Cloud NAT: the machines do not reach pip and the internet. "
                f"To create one: {each.command(to_internet=True)}"
            )
    return lines


def contents(data: dict[str, Any]) -> str:
    return f"{data['name']}: {plural(data['files'], 'file')}, {size(data['bytes'])}"


def mounted(data: dict[str, Any], disk_gb: int) -> str:
    """Return what is mounted, and whether the disk could hold it instead."""
    count = plural(data["files"], "file")
    if data["has_more"]:
        count = f"more than {count}"
    about = f"{data['name']}: {count}, {size(data['bytes'])}"
    text = f"{about}, at {data['path']}, read when needed"
    if data["has_more"] or data["bytes"] > disk_gb * 2**29:
        return f"{text}; half of the disk caches what was read"
    return f"{text}. It would fit on the disk: --data copies it there before the command starts"


def cluster(found: "Status", price: str) -> str:
    """Return a cluster with its pools, nodes and pods."""
    head = f"{found.name} in {found.location}: {found.state}"
    if found.idle and found.state == "RUNNING":
        head += ", idle"
    head += f". It costs {price}"
    parts = [head, found.problems, pools_of(found), found.trouble, nodes_of(found), pods_of(found)]
    return "\n\n".join(part for part in parts if part)


def pools_of(found: "Status") -> str:
    rows = [["POOL", "MACHINE TYPE", "GPUS", "DRIVERS", "NODES", "STATUS"]]
    for pool in found.pools:
        there = [node for node in found.nodes if node["pool"] == pool["pool"]]
        kind = pool["machine_type"] + (", spot" if pool["spot"] else "")
        drivers = ""
        if pool["gpus"]:
            ready = sum(each["drivers"] == "ready" for each in there)
            drivers = "not installed by Google"
            if pool["drivers"] not in ("", "INSTALLATION_DISABLED"):
                drivers = f"Google installs {pool['drivers']}"
            drivers += f", {ready} of {len(there)}"
        nodes = f"{len(there)} of {pool['min_nodes']} to {pool['max_nodes']}"
        chips = pool["gpus"] or pool["tpu"]
        rows.append([pool["pool"], kind, chips, drivers, nodes, pool["problems"] or pool["status"]])
    return table(rows)


def nodes_of(found: "Status") -> str:
    """Return a cluster's nodes, and how many of their GPUs are free; "" without nodes."""
    if not found.nodes:
        return ""
    rows = [["NODE", "POOL", "READY", "GPUS", "USED"]]
    for node in found.nodes:
        is_ready = "drivers are coming"
        if node["drivers"] != "coming":
            is_ready = "yes" if node["ready"] else "no"
        rows.append([node["node"], node["pool"], is_ready, str(node["gpus"]), str(node["used"])])
    used = sum(node["used"] for node in found.nodes)
    free = sum(node["gpus"] for node in found.nodes) - used
    return f"{table(rows)}\n\nGPUs: {used} used, {free} free"


def pods_of(found: "Status") -> str:
    """Return the pods of berg's jobs, and what they wait for; "" without pods."""
    if not found.pods:
        return ""
    keys = ("name", "job", "status", "node", "gpus")
    rows = [["POD", *map(str.upper, keys[1:])]]
    rows += [[str(pod[key]) for key in keys] for pod in found.pods]
    notes = [f"{pod['name']} waits: {pod['note']}" for pod in found.pods if pod["note"]]
    notes += [f"{pod['name']}: {pod['silence']}" for pod in found.pods if pod["silence"]]
    return "\n".join([table(rows), *notes])


def cache(found: Any) -> str:
    """Return a cluster's dataset cache, and how often it had what was read."""
    rows = [
        ("Cache", f"{found.url} in {found.cluster}: {found.state}"),
        ("Node", found.node),
        ("Kept", f"{size(found.kept_bytes)} of {found.size_gb} GB"),
    ]
    if found.slices:
        since = datetime.fromtimestamp(found.since).strftime("%Y-%m-%d %H:%M")
        rows.append(("Read", f"{plural(found.slices, 'slice')} since {since}"))
        rows.append(("Hits", f"{found.hit_rate:.1%}: {size(found.hit_bytes)}"))
        rows.append(("Fetched", f"{size(found.fetched_bytes)} from Cloud Storage"))
    else:
        rows.append(("Read", "nothing yet"))
    return labelled(rows, sys.stdout)


def shorten(names: list[str]) -> list[str]:
    """Return the first names, and the number of the others."""
    shown = [plain.name(name) for name in names[:SHOWN]]
    if len(names) > SHOWN:
        shown.append(f"… and {len(names) - SHOWN:,} more")
    return shown


def entries(entries: "list[Entry]", command: bool, everyone: bool, verbose: bool) -> str:
    """Return jobs and machines as a table; unless it is verbose, a sweep is one row."""
    entries = entries if verbose else job_list.folded(entries)
    rows = [["NAME", "STATE", job_list.age_heading(), "COST", "ZONE", "GPUS", "EXIT", "RESULTS"]]
    colors, notes = [], []
    for each in entries:
        *row, results, code = job_list.cells(each)
        rows.append([*row, code, results])
        state = each.state.state.rpartition(" ")[2] if each.state else "LOST"
        colors.append(COLORS.get(state))
        notes.append(notes_of(each))
        if verbose and len(each.machines) > 1:
            notes[-1] += map(machine_line, each.machines)
        if command and each.state:
            notes[-1].append(f"$ {each.summary.cmd}" if each.summary.cmd else "(devbox)")
    if everyone:
        for row, user in zip(rows, ["USER", *(each.user for each in entries)], strict=True):
            row.insert(1, user)
    return table(rows, colors=colors, notes=notes)


def machine_line(machine: job.Machine) -> str:
    return "  ".join([machine.name, machine.status, machine.internal_ip, machine.external_ip])


def notes_of(entry: "Entry") -> list[str]:
    """Return what a list shows below a job: its note, its reason, what it waits for."""
    state, waits = entry.state, waits_of(entry)
    if not state:
        return waits
    texts = [entry.summary.note, state.reason, job_list.attempt(state), entry.about, *waits]
    also = job_list.also(state), job_list.idle(state), job_list.hang(state)
    return [text for text in (*texts, *also) if text]


def waits_of(entry: "Entry") -> list[str]:
    """Return what a job's machines wait for, whose node is silent, and what is left, each once."""
    waits = {machine.note: f"{machine.name} waits: {machine.note}" for machine in entry.machines}
    waits |= {machine.silence: f"{machine.name}: {machine.silence}" for machine in entry.machines}
    waits |= {entry.left: entry.left}
    waits.pop("", None)
    return list(waits.values())


def ends_of(rows: list[list[str]]) -> list[list[str]]:
    """Return the first and the last rows below their header, and the number of the others."""
    left = len(rows) - 1 - 2 * SHOWN
    if left <= 0 or plain.for_program():
        return rows
    between = [f"… {left} more …"] + [""] * (len(rows[0]) - 1)
    return [*rows[: SHOWN + 1], between, *rows[-SHOWN:]]


def sweep(jobs: list[Any]) -> str:
    rows = [["JOB", *jobs[0].params, "RESULTS"]]
    rows += [[each.job_name, *each.params.values(), each.results_dir] for each in jobs]
    text = table(ends_of(rows), sys.stderr) + "\n"
    earlier = sorted({each.begins_with for each in jobs if each.begins_with})
    if earlier:
        names = ", ".join(earlier[:3]) + (", …" if len(earlier) > 3 else "")
        count = sum(bool(each.begins_with) for each in jobs)
        text += f"{count} of them begin with the files of {names}; --fresh begins empty\n"
    return text


def again(found: Any, plan: Plan, machines: list[str]) -> str:
    jobs = [["JOB", "STATE", *found.jobs[0].state.job.params, "RESULTS"]]
    for each in found.jobs:
        summary = each.state.job
        jobs.append([each.name, each.status, *summary.params.values(), summary.results_dir])
    limit = f"{span(plan.job.max_run_seconds)} each"
    if plan.job.max_run_seconds < found.first.max_run_seconds:
        limit += f" ({plan.limit})"
    machine_rows = [("Machines", "none besides those that run")]
    if machines:
        machine_rows = [("Machines", f"{len(machines)} new"), *plan.offer.rows]
        machine_rows.append(("Price", price(plan, len(found.jobs), len(machines))))
    rows = [
        ("Command", f"{found.first.cmd} ({found.first.job_name})"),
        ("Code", str(found)),
        *machine_rows,
        ("Secrets", ", ".join(plan.job.secrets)),
        notify_row(plan.job),
        ("Limit", limit),
    ]
    return f"{table(ends_of(jobs), sys.stderr)}\n\n{labelled(rows, sys.stderr)}\n"


def outcomes(rows: "list[Row]") -> str:
    """Return how the jobs of a sweep went, with their parameters and last metrics."""
    params = list(dict.fromkeys(key for row in rows for key in row.params))[:KEYS]
    metrics = list(dict.fromkeys(key for row in rows for key in row.metrics))[:KEYS]
    lines = [["JOB", "STATE", "EXIT_CODE", *params, *metrics, "REASON"]]
    for row in rows:
        values = [row.name, row.state, row.exit_code, *map(row.params.get, params)]
        values += [*map(row.metrics.get, metrics), row.reason]
        lines.append(["" if value is None else str(value) for value in values])
    return table(ends_of(lines)) + "\n"


def record(found: "Record") -> str:
    """Return all about a job: how it went, what it left, and the next commands."""
    entry, state, this = found.entry, found.entry.state, found.job
    assert state
    attempts = [f"{when}  {number}: {reason}" for number, when, reason in state.attempts]
    if state.attempt > 1:
        attempts.insert(0, f"{state.attempt}, {state.restarts} of them after a machine was lost")
    times = {
        "created": state.job.created_at,
        "started": state.started_at,
        "finished": state.finished_at,
    }
    of_machine = f"(of {state.machine}, the first machine)" if state.job.machines > 1 else ""
    rows: list[tuple[str, ...]] = [
        ("Devbox" if state.job.kind == "devbox" else "Job", entry.name),
        ("State", click.style(f"{entry.status}{why(state)}", fg=COLORS.get(state.state))),
        ("History", *(f"{begun}  {word}" for word, begun in state.history)),
        ("Hang", *job_list.about_hang(state)),
        ("Network", state.network),
        ("Attempts", *attempts),
        ("Times", ", ".join(f"{word} {when}" for word, when in times.items() if when)),
        ("Cost", f"{dollars(entry.usd)}, ran {span(state.ran_seconds)}"),
        *(what_ran(this) if this else [("Trouble", UNKNOWN)]),
        ("Machine", *machines_of(entry, this)),
        ("Results", *results_of(found)),
        ("Metrics", ", ".join(f"{name} {value}" for name, value in found.metrics.items())),
        ("Log", of_machine, "\n".join(found.log)),
    ]
    return f"{labelled(rows, sys.stdout)}\n\n{next_commands(entry)}"


UNKNOWN = "the command cannot be read: the job's metadata in the bucket is missing or damaged"


def what_ran(this: job.Job) -> list[tuple[str, ...]]:
    """Return a job's note, command, container, code and installation."""
    code = code_of(this, this.snapshot.get("branch", ""))
    return [
        ("Note", this.spec.note),
        ("Command", this.cmd or ""),
        ("Container", this.docker),
        ("Code", code, *shorten(this.git_changed_files)),
        install_row(this),
    ]


def machines_of(entry: "Entry", this: job.Job | None) -> list[str]:
    """Return what a job's machines are, each of them, and what they wait for."""
    lines = []
    if this:
        shape = this.machine_type
        if this.num_machines > 1:
            shape = f"{this.num_machines} of {shape}"
        if this.gpus_per_machine:
            shape += f" with {this.gpus_per_machine} x {this.gpu_type}"
        lines.append(f"{shape}, {this.image.rpartition('/')[2]}")
    for each in entry.machines:
        lines.append(f"{each.name} {each.status} in {each.zone} {each.external_ip}".rstrip())
    if not entry.machines and entry.state and entry.state.machine:
        lines.append(f"{entry.state.machine} in {entry.state.zone}{entry.fate}")
    return [*lines, *waits_of(entry)]


def results_of(found: "Record") -> list[str]:
    """Return how many files the results are, how large, and the first ones."""
    state, files = found.entry.state, found.results
    assert state
    folder = state.job.results_dir
    summary = f"{folder}: {plural(len(files), 'file')}, {size(sum(each.size for each in files))}"
    if state.synced_until:
        summary += f", up to {state.synced_until}"
    lines = [summary]
    if found.deleted:
        lines.append(deleted(len(found.deleted), sum(each.size for each in found.deleted)))
    for each in files[:FILES]:
        path = plain.name(each.name.removeprefix(f"berg_results/{folder}/"))
        lines.append(f"{each.size:>14,}  {path}")
    if len(files) > FILES:
        lines.append(f"{'':>14}  … and {len(files) - FILES:,} more")
    return [*lines, job_list.also(state)]


def deleted(files: int, bytes_: int) -> str:
    return f"deleted by the job: {plural(files, 'file')}, {size(bytes_)}"


def moments(found: "list[Moment]") -> str:
    """Return a row for each view of a job's results."""
    rows = [[each.time, each.state, f"{each.files:,}", size(each.bytes)] for each in found]
    return table([["TIME", "STATE", "FILES", "SIZE"], *rows])


def next_commands(entry: "Entry") -> str:
    name = entry.name
    commands = {
        "Follow it": f"tail {name}",
        "Log in": f"ssh {name}",
        "Results": f"fetch {name}",
        "End it": f"kill {name}",
    }
    if records.is_over(entry):
        commands = {
            "Log": f"log {name}",
            "Results": f"fetch {name}",
            "Again": f"rerun {name}" + " --new-code" * (entry.status == "FAILED"),
            "Delete it": f"rm {entry.sweep or name}",
        }
    elif entry.is_stopped:
        commands = {
            "Start it": f"start {name}",
            "Results": f"fetch {name}",
            "End it": f"kill {name}",
        }
    return "\n".join(f"{what + ':':<11} berg {command}" for what, command in commands.items())


def devbox_commands(this: job.Job, model: str) -> str:
    name, about = this.job_name, (this.place, this.num_machines, this.machine_type, model)
    stop = "" if power.why_never("devbox", *about) else f"Stop it: berg stop {name}\n"
    return f"Log in:  berg ssh {name}\n{stop}End it:  berg kill {name}\n"


def sweep_record(name: str, rows: "list[Row]") -> str:
    """Return all about a sweep: the states of its jobs, a row for each, and the next commands."""
    counts = Counter(row.state for row in rows)
    states = ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
    head = labelled([("Sweep", name), ("Jobs", f"{len(rows):,}: {states}")], sys.stdout)
    is_over = all(row.state in job.FINAL for row in rows)
    return "\n".join(
        [
            head,
            "",
            outcomes(rows),
            f"One job:    berg show {name}/0",
            f"Results:    berg fetch {name}",
            f"Delete it:  berg rm {name}" if is_over else f"End it:     berg kill {name}",
        ]
    )


def comparison(found: "Comparison", stat: bool) -> str:
    """Return two jobs side by side; with `stat` without the changes of the code."""
    parts = []
    for title, rows in (("", found.differences), ("last value", found.metrics)):
        short = [row for row in rows if len(row.first + row.second) <= SIDE_BY_SIDE]
        cells = [[row.what, row.first or "-", row.second or "-"] for row in short]
        if cells:
            parts.append(table([[title, *found.names], *cells]))
        parts += [f"{row.what}\n- {row.first}\n+ {row.second}" for row in rows if row not in short]
    code = found.code or "The code is the same."
    return "\n\n".join([*parts, code.partition("\n\n")[0] if stat else code])


def removal(found: "Removal") -> str:
    """Return what of a job, or of all jobs of a sweep, will be deleted, and what stays."""
    name = found.name
    if len(found.jobs) > 1:
        name += f" ({len(found.jobs):,} jobs)"
    files = plural(len(found.results), "file")
    bytes_, rest = (
        size(sum(each.size for each in blobs)) for blobs in (found.results, found.others)
    )
    lines = [f"{name}: {files} of results, {bytes_}; log and state, {rest}"]
    if found.elsewhere:
        folders = dict.fromkeys(blob.name.rpartition("/")[0] for blob in found.elsewhere)
        lines.append(f"  {len(found.elsewhere):,} of them in {', '.join(shorten([*folders]))}")
    for folder, owner in found.shared.items():
        lines.append(f"  berg_results/{folder} stays: {owner} has its results there, too")
    return "\n".join(lines)


def progress(found: "Entry") -> str:
    """Return a line on a job that has not ended; "" for anything else."""
    state, machine = found.state, found.machine
    if state is None or state.final:
        return ""
    if state.state != "SUBMITTED":
        where = f" on {state.machine} in {state.zone}" if state.machine else ""
        return f"{found.name} {state.state}{where}"
    if machine:
        boots = machine.status == "RUNNING" and WARM not in machine.labels
        where = f" in {machine.zone}, which boots" if boots else ""
        what = f"{machine.name}{where} ({machine.note or machine.status})"
    elif found.sweep:
        what = "a machine of its sweep"
    else:
        what = "capacity for its machine" if found.group else "its machine"
    return f"{found.name} SUBMITTED: waiting for {what}"


def still_running(name: str, see: str) -> str:
    """Return what a user should know who stops following a job or sweep."""
    return (
        f"\n{name} continues without you, and its machines cost money until it ends, at most until "
        f"--max-hours.\nSee it:  {see}\nEnd it:  berg kill {name}"
    )


def outcome(name: str, state: job.State) -> str:
    head = f"{name} {state.state}{why(state)}"
    lines = [click.style(head, fg=COLORS.get(state.state), bold=True)]
    if also := job_list.also(state):
        lines.append(also)
    if state.job.kept:
        lines.append(f"Its machine was kept (--no-kill). Delete it:  berg kill {name}")
    if state.kept_seconds:
        lines.append(f"{plural(state.job.machines, 'machine')} {job_list.kept(state)}")
        look = f"Look at it:  berg ssh {name}\n"
        lines.append(f"{'' if state.is_warm else look}Delete it:   berg kill {name}")
    return "\n".join(lines)


def why(state: job.State) -> str:
    """Return a job's exit code, and the reason for its end."""
    text = ""
    if state.exit_code is not None and f"exit code {state.exit_code}" not in state.reason:
        text = f" with exit code {state.exit_code}"
    return f"{text}: {state.reason}" if state.reason else text


def count_up(what: str, total: int, in_bytes: bool = False) -> Callable[[int], None]:
    """Return a function that shows on a terminal how many of many are done."""
    began, shown = time.monotonic(), [0.0]
    is_worth_it = total > (4 << 20 if in_bytes else 100) and plain.is_terminal(sys.stderr)

    def show(done: int) -> None:
        now = time.monotonic()
        if not is_worth_it or (done < total and now - shown[0] < 0.2):
            return
        shown[0] = now
        line = f"{what}: {done:,} of {total:,} "
        if in_bytes:
            speed = size(done / max(now - began, 0.1))
            line = f"{what} {size(done)} of {size(total)}, {speed}/s "
        plain.redraw(line, done >= total)

    return show


def sending(done: int, total: int) -> None:
    """Show on a terminal how much of the code was sent, unless it is little."""
    if total > 4 << 20 and plain.is_terminal(sys.stderr):
        plain.redraw(f"Sending the code: {size(done)} of {size(total)} ", done == total)


class Interleaved:
    """Writes logs to a stream; of several machines whole lines, each after its machine's name."""

    def __init__(self, stream: IO[bytes], color: bool = False) -> None:
        self.stream, self.redraws = stream, plain.is_terminal(stream)
        self.colors = color or (self.redraws and plain.color() is None)
        self.logs: dict[str, plain.Log] = {}
        self.rest: dict[str, str] = {}

    def write(self, source: str, chunk: bytes, is_last: bool = False) -> None:
        if source not in self.logs:
            self.logs[source] = plain.Log(self.colors, self.redraws and not source)
        log = self.logs[source]
        text = log.read(chunk, is_last)
        if source:
            *lines, self.rest[source] = (self.rest.get(source, "") + text).split("\n")
            prefix = f"{plain.clean(source)} | "
            if self.colors:
                number = list(self.logs).index(source)
                prefix = click.style(prefix, fg=MACHINE_COLORS[number % len(MACHINE_COLORS)])
            text = "".join(f"{prefix}{log.colored(line)}\n" for line in lines)
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


def gpus(found: list[Any], region: str, everywhere: bool) -> str:
    """Return GPU types; zones of all regions take the room of the odds."""
    start = "" if everywhere else f"{region}-"
    odds_here = [] if everywhere else ["SPOT ODDS"]
    rows = [["TYPE", "GB", "GPUS", "QUOTA", "$/GPU, SPOT", *odds_here, "ZONES"]]
    for each in found:
        counts = ",".join(map(str, each.per_machine))
        left = (each.quota_left, each.spot_quota_left)
        quota = ", ".join("?" if number is None else f"{number:g}" for number in left)
        costs = (each.usd_per_hour, each.spot_usd_per_hour)  # a GPU with its share of the machine
        price = ", ".join(dollars(cost and cost / each.per_machine[0]) for cost in costs)
        row = [each.type, str(each.memory_gb), counts, quota, price]
        if not everywhere:
            row.append(odds_of(each))
        zones = [zone.removeprefix(start) for zone in each.zones if zone.startswith(start)]
        rows.append([*row, ", ".join(zones) or elsewhere(each.zones)])
    return table(rows)


def odds_of(gpu: Any) -> str:
    """Return Google's odds of a Spot machine: obtainability, uptime, share preempted."""
    odds = gpu.spot_odds
    if odds is None:
        return "?"
    share = odds.share.replace(" ", "")
    return f"{odds.obtainability:g}, {plain.duration(odds.uptime)}, {share}"


def elsewhere(zones: list[str]) -> str:
    """Return that a region has none, and which other regions have some."""
    regions = sorted({prices.region_of(zone) for zone in zones})
    if not regions:
        return "none"
    return f"none; in {', '.join(regions[:3])}{', …' if len(regions) > 3 else ''}"


def about_prices(listed: Any, why: str) -> str:
    """Return where prices come from and what they leave out, or why they are unknown."""
    if listed is None:
        return f"Prices: unknown: {why}"
    return f"List prices in {listed.region} of {listed.date}, without disks and traffic."


def per_chip(found: Any) -> str:
    """Return the prices of a chip of each TPU family."""
    shown: dict[str, str] = {}
    for each in found:
        costs = (each["usd_per_hour"], each["spot_usd_per_hour"])
        texts = [dollars(cost and cost / each["chips"]) for cost in costs]
        shown.setdefault(each["family"], f"{each['family']} {', '.join(texts)}")
    return f" Per chip and hour, on demand and Spot: {'; '.join(shown.values())}."


def price(plan: Plan, num_jobs: int, at_once: int) -> str:
    """Return the price of a plan's machines; "" for pods that any node may run."""
    if plan.offer.reservation:
        return "that of the reservation, which is paid for whether it is used or not"
    if plan.offer.priced is None:
        return ""
    region = prices.region_of(plan.offer.zones[0])
    listed = prices.known(plan.config, region)
    if listed is None:
        return "unknown; berg prices says why"
    count = at_once or plan.job.num_machines
    rates = {each: spending.rate(listed, plan.offer, each) for each in (plan.model, *prices.MODELS)}
    if rates[plan.model] is None:
        return f"unknown in {region}"
    shown = [
        f"{dollars(rate * count)} an hour {prices.MODELS[model]}"
        for model, rate in rates.items()
        if rate
    ]
    where = f"list price in {region} of {listed.date}, with disks, without traffic"
    if plan.offer.is_shared:
        where = f"its share of {plan.offer.priced}; {where}"
    return f"{', '.join(shown)}; {at_most(plan, num_jobs)} ({where})"


def at_most(plan: Plan, num_jobs: int) -> str:
    """Return what a job or a sweep costs at most, in whichever zone it runs."""
    usd = spending.worst(plan, num_jobs)
    if usd is None:
        unpriced = set(map(prices.region_of, plan.offer.zones)) - plan.job.rates.keys()
        return f"at most unknown: no price in {', '.join(sorted(unpriced))}"
    limit = span(plan.job.max_run_seconds)
    if num_jobs:
        hours = f"{num_jobs * plan.job.max_run_seconds / 3600:,.1f}".removesuffix(".0")
        limit = f"{hours} machine-hours"
    amount = f"${usd:,.0f}" if usd >= 10 else dollars(usd)
    return f"at most {amount} in {limit}"


def cluster_cost(config: Config, found: "Status") -> str:
    """Return what a cluster costs an hour, with its nodes for jobs that are up."""
    from berg.gke import clusters

    up = Counter(node["pool"] for node in found.nodes if node["pool"] != client.SYSTEM)
    pools = [pool for pool in found.pools if up[pool["pool"]]]
    if not pools:
        return clusters.IDLE_PRICE
    listed = prices.known(config, prices.region_of(found.location))
    hourly = [(node_price(listed, pool), float(up[pool["pool"]])) for pool in pools]
    total, nodes = prices.total(hourly), plural(sum(int(count) for _, count in hourly), "node")
    if total is None:
        return f"{clusters.IDLE_PRICE}, and more for {nodes} up (berg gpus looks for prices)"
    return f"{clusters.IDLE_PRICE}, and {dollars(total)} an hour for {nodes} up"


def node_price(listed: prices.Prices | None, pool: dict[str, Any]) -> float | None:
    """Return USD for an hour of one node of a pool; None if unknown."""
    if listed is None:
        return None
    count, _, kind = pool["gpus"].partition(" x ")
    model = prices.SPOT if pool["spot"] else prices.STANDARD
    return listed.per_hour(Shape(pool["machine_type"], int(count or 0), kind), model)


def tpu_table(found: list[Any]) -> str:
    rows, before = [["TPU", "HOSTS", "CHIPS", "MACHINE TYPE", "ZONES"]], None
    for each in found:
        zones = ", ".join(each["zones"]) or "none"
        if plain.columns(sys.stdout) and each["zones"] == before:
            zones = "as above"
        row = [each["tpu"], str(each["hosts"]), str(each["chips"]), each["machine_type"], zones]
        rows.append(row)
        before = each["zones"]
    return table(rows)


def priced(found: "list[Priced]", region: str) -> str:
    """Return machines with what an hour of them costs, and of one GPU in the cheapest way."""
    rows = [["TYPE", "GB", "GPUS", "MACHINE TYPE", "DEMAND", "SPOT", "FLEX", "$/GPU", "ZONES"]]
    for each in found:
        costs = map(dollars, (each.usd_per_hour, each.spot_usd_per_hour, each.flex_usd_per_hour))
        ends = ",".join(zone.removeprefix(f"{region}-") for zone in each.zones)
        about = [each.type, str(each.memory_gb), str(each.gpus), each.machine_type]
        per_gpu = dollars(None if math.isinf(each.cheapest) else each.cheapest)
        rows.append([*about, *costs, per_gpu, ends])
    return table(rows)


def sums(weeks: "list[Sum]") -> str:
    rows = [["WEEK OF", "USER", "JOBS", "MACHINE-HOURS", "COST", "PRICE UNKNOWN"]]
    for each in weeks:
        about = [each.begins, each.user, f"{each.jobs:,}", f"{each.hours:,.1f}"]
        rows.append([*about, dollars(each.usd), plural(each.unknown, "job")])
    return table(rows)


def billable_table(there: "list[Billable]") -> str:
    """Return what costs money now, and the sum of it."""
    rows = [["NOW", "NAME", "WHERE", job_list.age_heading(), "$/H", "WHAT"]]
    for each in there:
        age, cost = job_list.shown_age(each.created_at), dollars(each.usd_per_hour)
        rows.append([each.kind, each.name, each.where, age, cost, each.about])
    known = sum(each.usd_per_hour or 0 for each in there)
    unknown = sum(each.usd_per_hour is None for each in there)
    rest = f", and {unknown} of unknown price" if unknown else ""
    return f"{table(rows)}\n\nNow: {dollars(known)} an hour{rest}"


def cap_command(project: str, usd: int) -> str:
    """Return the command that limits what Compute Engine may cost in a month."""
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
    lines = [
        "curl --fail-with-body -X POST",
        '-H "Authorization: Bearer $(gcloud auth print-access-token)"',
        f'-H "x-goog-user-project: {project}" -H "Content-Type: application/json"',
        f"-d {shlex.quote(json.dumps(body))}",
        f'"https://billingbudgets.googleapis.com/v1/$({account})/budgets"',
    ]
    return " \\\n    ".join(lines)

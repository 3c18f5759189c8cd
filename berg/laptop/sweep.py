"""Sweeps: many jobs from one command, and machines that take them one after another.

.berg/sweeps/<sweep>.json   the names of its jobs, and what its machines are; written once

Every combination is an ordinary job, named SWEEP-INDEX. A machine of a sweep has no job of its own:
it takes the next one that is SUBMITTED, by writing the job's state under a generation precondition,
so that no two machines take the same. The job of a machine that Google took away is SUBMITTED
again.
"""

import csv
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from berg import BergError, checks, job, places
from berg.code import snapshot
from berg.config import Config
from berg.google import secret
from berg.google.storage import Bucket, Changed
from berg.inventory import Machine
from berg.laptop import jobs, launch, records
from berg.plan import LIMITS, Plan, spec_of

PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_]\w*)\}")  # not ${…}, which is the shell's
MOST = 100_000  # jobs
BULK = 500  # machines in one request
THREADS = 32


def grid(options: tuple[str, ...]) -> list[dict[str, str]]:
    """Every combination of `NAME=VALUE,VALUE…`, the last name changing fastest."""
    axes: dict[str, list[str]] = {}
    for text in options:
        name, equals, values = text.partition("=")
        if not equals or not values or not PLACEHOLDER.fullmatch(f"{{{name}}}"):
            raise BergError(f"--grid {text!r} is not of the form NAME=VALUE,VALUE…")
        if name in axes:
            raise BergError(f"--grid {name} is given twice; give all of its values at once")
        axes[name] = values.split(",")
        if len(set(axes[name])) < len(axes[name]):
            raise BergError(f"--grid {text!r} names a value twice")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def tasks(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header, or of a file with one JSON object a line; raises
    BergError with the row.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = "it is not text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise BergError(f"--tasks: cannot read {file}: {why}") from None
    rows: list[dict[str, str]] = []
    if file.suffix == ".csv":
        header, *records = list(csv.reader(lines)) or [[]]
        if len(set(header)) < len(header):
            raise BergError(f"{file}: a column is named twice: {', '.join(header)}")
        for number, record in enumerate(records, 2):
            if record and len(record) != len(header):
                raise BergError(
                    f"{file}, row {number}: {len(record)} values for {len(header)} columns"
                )
            rows += [dict(zip(header, record, strict=True))] if record else []
    else:
        for number, line in enumerate(lines, 1):
            try:
                values = json.loads(line) if line.strip() else {}
                if not isinstance(values, dict) or any(
                    isinstance(value, (dict, list)) for value in values.values()
                ):
                    raise ValueError("not an object of plain values")
            except ValueError as error:
                raise BergError(f"{file}, line {number}: {error}") from None
            row = {
                key: value if isinstance(value, str) else json.dumps(value)
                for key, value in values.items()
            }
            rows += [row] if row else []
    if not rows:
        raise BergError(f"{file} holds no tasks")
    return rows


def fill(cmd: str, values: dict[str, str]) -> str:
    """The command with its placeholders replaced; a value is one word for the shell, whatever is in
    it.
    """
    return PLACEHOLDER.sub(lambda found: shlex.quote(values[found[1]]), cmd)


def expand(plan: Plan, rows: list[dict[str, str]], results_dir: str | None) -> list[job.Job]:
    """A job for every row; raises BergError with the row that cannot be one."""
    cmd, sweep = plan.job.cmd, plan.job.job_name
    wanted = set(PLACEHOLDER.findall(cmd))
    width = len(str(len(rows) - 1))
    base = "/".join(filter(None, (plan.job.spec.get("results_parent"), sweep)))
    if len(rows) > MOST:
        raise BergError(f"{len(rows):,} jobs are more than the {MOST:,} that a sweep may have")
    job.check_name(f"{sweep}-{'0' * width}")
    found: list[job.Job] = []
    seen: dict[str, int] = {}
    for index, values in enumerate(rows):
        where = f"row {index} ({', '.join(f'{key}={value}' for key, value in values.items())})"
        if missing := sorted(wanted - values.keys()):
            raise BergError(f"{where} has no value for {{{missing[0]}}} of the command")
        if unused := sorted(values.keys() - wanted):
            raise BergError(
                f"{where} has a value for {unused[0]!r}, but the command has no {{{unused[0]}}}"
            )
        command = fill(cmd, values)
        given = results_dir and f"{results_dir}/{index:0{width}}"
        results = (
            given
            or checks.sketchy_guess_at_results_dir_from_cmd(command)
            or f"{base}/{index:0{width}}"
        )
        if results in seen:
            raise BergError(f"{where} has the same results dir as row {seen[results]}: {results}")
        seen[results] = index
        found.append(
            checks.check_size(
                replace(
                    plan.job,
                    job_name=f"{sweep}-{index:0{width}}",
                    cmd=command,
                    results_dir=checks.check_results_dir(results),
                    gcs_results_dir=f"gs://{plan.config.bucket}/berg_results/{results}",
                    sweep=sweep,
                    params=values,
                )
            )
        )
    return found


def machines(name: str, count: int) -> list[str]:
    width = len(str(count - 1))
    return [f"{name}-machine-{number:0{width}}" for number in range(count)]


def submit(
    plan: Plan,
    all_jobs: list[job.Job],
    parallel: int,
    say: Callable[[str], None],
    tell: Callable[[int, int], None],
) -> None:
    """Send the code once and the jobs side by side, and create the machines; or leave nothing."""
    bucket, name = Bucket(plan.config), plan.job.job_name
    on = machines(name, min(parallel, len(all_jobs)))
    job.check_name(f"{on[-1]}-{len(on) - 1}" if plan.job.place == "gke" else on[-1])
    place = places.of(plan.job.place)
    importing = launch.import_ahead(place)
    launch.send_code(plan, bucket, tell)
    request = place.request(plan)
    names, ours = [each.job_name for each in all_jobs], set[str]()
    about = {"jobs": names, "place": plan.job.place, "machines": request}
    try:
        bucket.write(job.sweep_path(name), json.dumps(about), generation=0)
    except Changed:
        raise BergError(
            f"there is a sweep {name!r} already. Choose another name: -n NAME"
        ) from None
    try:
        say(f"Sending {len(all_jobs):,} jobs")
        with ThreadPoolExecutor(THREADS) as pool:
            list(
                pool.map(
                    lambda each: write_job(bucket, replace(each, snapshot=plan.job.snapshot), ours),
                    all_jobs,
                )
            )
        if plan.secrets:
            secret.store(plan.config, name, plan.secrets, plan.machine_seconds)
        importing.join()
        create(plan.config, place, request, on, say)
    except BaseException:
        say("Taking back what was created")
        try:
            delete_machines(plan.config, name)
            with ThreadPoolExecutor(THREADS) as pool:
                list(
                    pool.map(lambda n: bucket.delete(job.state_path(n), job.metadata_path(n)), ours)
                )
            if plan.secrets:
                secret.delete(plan.config, name)
            bucket.delete(job.sweep_path(name))
        except BaseException:
            say(
                f"That did not work. {name} may have machines; delete them:  berg kill --now {name}"
            )
        raise


def write_job(bucket: Bucket, this: job.Job, ours: set[str]) -> None:
    """Claim the job's name, which then is one of `ours`, and describe it; a job that has it already
    stays as it is.
    """
    state = job.State(job=this.summary()).to_json()
    ours.add(this.job_name)
    try:
        bucket.write(job.state_path(this.job_name), state, generation=0, metadata={"state": state})
    except Changed:
        ours.remove(this.job_name)
        raise BergError(
            f"there is a job {this.job_name!r} already. Choose another name: -n NAME"
        ) from None
    bucket.write(job.metadata_path(this.job_name), this.to_json())


def create(
    config: Config,
    place: places.Place,
    request: dict[str, Any],
    names: list[str],
    say: Callable[[str], None],
) -> None:
    for start in range(0, len(names), BULK):
        place.create(config, request, names[start : start + BULK], False, say)


def members(config: Config, name: str) -> list[Machine]:
    """The machines of a sweep."""
    return places.machines(config, sweeps=[name])


def delete_machines(config: Config, name: str) -> None:
    for place_name, place in places.PLACES.items():
        place.delete(
            config, name, [each for each in members(config, name) if each.place == place_name], ""
        )


def read(bucket: Bucket, name: str) -> dict[str, Any] | None:
    """What a sweep is (see above); None if there is none of that name."""
    data = bucket.read(job.sweep_path(name)) if job.NAME.fullmatch(name) else None
    return json.loads(data) if data else None


def states(config: Config, name: str) -> list[jobs.Entry]:
    """The jobs of a sweep, in their order, as a reader must see them."""
    there = [entry for entry in jobs.overview(config, None, f"{name}-") if entry.sweep == name]
    return sorted(there, key=lambda entry: entry.name)


def exists(config: Config, name: str) -> bool:
    return bool(job.NAME.fullmatch(name)) and Bucket(config).exists(job.sweep_path(name))


@dataclass
class Again:
    """What of a sweep is to run again: its jobs, the code from now on (None: as before), secrets
    that went with it.
    """

    sweep: str
    about: dict[str, Any]  # as read() returns it
    jobs: list[jobs.Entry]
    first: job.Job | None = None
    code: snapshot.Snapshot | None = None
    secrets: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        before = ", ".join(sorted({str(entry.to_dict().get("commit")) for entry in self.jobs}))
        if self.code is None:
            return f"the code that they ran before, {before}. With the code around you: --new-code"
        changes = len(self.code.all_changed())
        with_changes = (
            f", HEAD {self.code.head[:12]} with {changes} of its files changed" if changes else ""
        )
        return (
            f"the code as it is now, {self.code.commit[:12]}{with_changes}; before it was {before}"
        )


def again(
    config: Config, name: str, say: Callable[[str], None], folder: Path | None = None
) -> Again:
    """What failed or was lost, or the one job named SWEEP/INDEX; creates nothing.

    With a folder they run the working tree around it from now on, else the code that they ran
    before.
    """
    bucket = Bucket(config)
    name, _, index = name.partition("/")
    about = read(bucket, name)
    if about is None:
        raise BergError(f"there is no sweep {name!r}. See what there is: berg list")
    there_are = {entry.name: entry for entry in states(config, name) if entry.state}
    if index:
        chosen = there_are[jobs.find(config, f"{name}/{index}").name]
        if not chosen.state or not chosen.state.final:
            raise BergError(
                f"{chosen.name} is not over ({chosen.status}). See it: berg tail {chosen.name}"
            )
        found = Again(name, about, [chosen])
    else:
        over = [
            entry
            for entry in there_are.values()
            if entry.state and entry.state.state in ("FAILED", "LOST")
        ]
        found = Again(name, about, over)
    if not found.jobs:
        return found
    for entry in found.jobs:
        records.check_kept(entry)
    found.first = described(bucket, found.jobs[0])
    if folder:
        found.code = snapshot.take(folder)
        check_code(found.first, found.code)
    # else they are there
    if all(entry.state and entry.state.final for entry in there_are.values()):
        found.secrets = read_secrets(found.first, say)
    return found


def missing(config: Config, found: Again, parallel: int | None) -> list[str]:
    """The machines that these jobs take beside those that the sweep has."""
    there = members(config, found.sweep)
    used = {machine.name for machine in there}
    free = [
        each
        for each in machines(found.sweep, len(found.about["jobs"]) + len(used))
        if each not in used
    ]
    count = len(found.jobs)
    wanted = min(parallel or count, count) - sum(
        machine.status not in jobs.GOING for machine in there
    )
    return free[: max(wanted, 0)]


def preview(config: Config, found: Again, names: list[str]) -> Any:
    """What would be asked for to make these machines."""
    place = places.of(found.about["place"])
    return launch.without_script(place.preview(config, found.about["machines"], names, False))


def resume(
    config: Config,
    found: Again,
    parallel: int | None,
    say: Callable[[str], None],
    tell: Callable[[int, int], None] = lambda done, size: None,
) -> None:
    """Submit jobs of a sweep again, and make the machines that it lacks for them."""
    bucket = Bucket(config)
    code: dict[str, Any] = {}
    if found.code:
        code = launch.code_fields(found.code) | {
            "snapshot": snapshot.send(found.code, bucket, tell)
        }
    if found.secrets and found.first:
        seconds = min(found.first.max_run_seconds * len(found.jobs), LIMITS[1])
        secret.store(config, found.sweep, found.secrets, seconds)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda entry: submit_again(bucket, entry, code), found.jobs))
    place = places.of(found.about["place"])
    create(config, place, found.about["machines"], missing(config, found, parallel), say)


def read_secrets(this: job.Job, say: Callable[[str], None]) -> dict[str, str]:
    """The secrets of a sweep that was over, anew from where they came from then."""
    spec = spec_of(this)
    values = dict(secret.read(text) for text in spec.secrets)
    if spec.notify:
        values[secret.WEBHOOK] = secret.webhook(spec.notify)
    elif this.notify:
        say(
            "Nobody will be told of its end: --notify gave the webhook's URL itself, which is kept nowhere"
        )
    return values


def described(bucket: Bucket, entry: jobs.Entry) -> job.Job:
    return job.from_json(bucket.read(job.metadata_path(entry.name)) or b"", entry.name)


def check_code(this: job.Job, taken: snapshot.Snapshot) -> None:
    """Raise BergError unless a sweep's jobs can run another snapshot."""
    if (here := launch.repo_name(taken.root.name)) != this.repo_name:
        raise BergError(
            f"{this.sweep} runs the repo {this.repo_name}, and this is {here}. Go there: cd {this.repo_name}"
        )
    script = this.install_script
    if script and not (taken.root / script).is_file():
        raise BergError(
            f"the sweep's --install-script {script} is not a file in {taken.root} any more"
        )


def submit_again(bucket: Bucket, entry: jobs.Entry, code: dict[str, Any]) -> None:
    """Let a job that is over run again, with other code if there is some; nobody else must have
    changed it.
    """
    assert entry.stored
    state = replace(
        entry.stored.state, state="SUBMITTED", exit_code=None, reason="", ending="", finished_at=""
    )
    state.failures = state.ran_seconds = 0
    state.restarts = -1  # the start to come is none
    path = job.metadata_path(entry.name)
    try:
        if code:
            generation = blob.generation if (blob := bucket.get(path)) else 0
            this = checks.check_size(replace(described(bucket, entry), **code))
            bucket.write(path, this.to_json(), generation)
            state.job = this.summary()
        text = state.to_json()
        bucket.write(
            job.state_path(entry.name), text, entry.stored.generation, metadata={"state": text}
        )
    except Changed:
        raise BergError(
            f"{entry.name} changed meanwhile. Try again: berg run --resume {entry.sweep}"
        ) from None


def results(entries: list[jobs.Entry], read: Callable[[str], str]) -> Iterable[dict[str, Any]]:
    """A row for each job of a sweep: its parameters, how it went, and the last value of each of its
    metrics.

    `read` gives the text of a file by its path below `berg_results/`, "" if there is none.
    """
    for entry in entries:
        assert entry.state
        details = entry.state.job
        metrics: dict[str, Any] = {}
        try:
            for line in read(f"{details.results_dir}/metrics.jsonl").splitlines():
                metrics.update(json.loads(line))
        except (ValueError, TypeError, RecursionError):
            pass  # cut off in the middle of a line: what was read counts
        row = {"job": entry.name, "state": entry.state.state, "exit_code": entry.state.exit_code}
        yield (row | details.params | {f"metric:{key}": value for key, value in metrics.items()})


def write_results(entries: list[jobs.Entry], fetched: Path, file: Path) -> None:
    """Write the rows as CSV; a metric is a column, also where only some jobs have it.

    `fetched` is where `berg_results/` of the bucket is here.
    """

    def read(path: str) -> str:
        try:
            return (fetched / path).read_text()
        except (OSError, ValueError):
            return ""

    rows = list(results(entries, read))
    columns = list(dict.fromkeys(key for row in rows for key in row))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as output:
        writer = csv.DictWriter(output, columns)
        writer.writeheader()
        writer.writerows(rows)

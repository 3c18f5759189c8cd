"""Sweeps: many jobs from one command, and machines that take them one after another.

Each is an ordinary job, named SWEEP-INDEX; .berg/sweeps/<sweep>.json has their names and hashes. A
machine takes the next SUBMITTED job by writing its state under a generation precondition. The job
of a preempted machine is SUBMITTED again.
"""

import csv
import itertools
import json
import math
import random
import re
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from berg import BergError, job, places, states, validation
from berg.code import snapshot
from berg.config import Config
from berg.google import events, secret
from berg.google.storage import Bucket, Changed
from berg.job import Machine
from berg.laptop import jobs, launch, lookup, purse, records, spending
from berg.laptop.jobs import Progress, Say
from berg.laptop.resume import ASKED_AGAIN, spec_again, submitted_again, with_patch
from berg.plan import Plan, sha256
from berg.spec import LIMITS, JobSpec

WORD = r"[A-Za-z_]\w*(?:[./-]\w+)*"
NAME = re.compile(WORD)  # of a parameter
# {NAME}, or {{NAME}} for the text {NAME}; not ${…}, which is the shell's
PLACEHOLDER = re.compile(rf"\{{(\{{{WORD}\}})\}}|(?<!\$)\{{(?P<name>{WORD})\}}")
MOST = 100_000  # jobs
FORMULA = tuple("=+-@＝＋－＠\t\r\n")  # begin a formula in a spreadsheet
BULK = 500  # machines in one request
THREADS = 32
RANDOM, SOBOL = "random", "sobol"
BITS = 30
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
# For each dimension of a Sobol sequence after the first: the polynomial's coefficients and the
# first direction numbers, from Joe and Kuo (https://web.maths.unsw.edu.au/~fkuo/sobol/).
DIRECTIONS = (
    (0, (1,)),
    (1, (1, 3)),
    (1, (1, 3, 1)),
    (2, (1, 1, 1)),
    (1, (1, 1, 3, 3)),
    (4, (1, 3, 5, 13)),
    (2, (1, 1, 5, 5, 17)),
    (4, (1, 1, 5, 5, 5)),
    (7, (1, 1, 7, 11, 19)),
)


def grid(options: tuple[str, ...]) -> list[dict[str, str]]:
    """Return every combination of `NAME=VALUE,VALUE…`; the last name changes fastest."""
    axes: dict[str, list[str]] = {}
    for text in options:
        name, equals, values = text.partition("=")
        if not equals or not values or not NAME.fullmatch(name):
            raise BergError(f"--grid {text!r} is not of the form NAME=VALUE,VALUE…")
        if name in axes:
            raise BergError(f"--grid {name} is given twice; give all of its values at once")
        axes[name] = values.split(",")
        if len(set(axes[name])) < len(axes[name]):
            raise BergError(f"--grid {text!r} names a value twice")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def tasks(file: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a header, or of a file with a JSON object in each line."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise BergError(f"--tasks: cannot read {file}: it is not text") from None
    except OSError as error:
        raise BergError(f"--tasks: cannot read {file}: {error.strerror}") from None
    rows = csv_rows(file, lines) if file.suffix == ".csv" else json_rows(file, lines)
    if not rows:
        raise BergError(f"{file} has no tasks")
    return rows


def csv_rows(file: Path, lines: list[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a header, without empty lines."""
    header, *records = list(csv.reader(lines)) or [[]]
    if len(set(header)) < len(header):
        raise BergError(f"{file}: a column is named twice: {', '.join(header)}")
    for number, record in enumerate(records, 2):
        if record and len(record) != len(header):
            raise BergError(f"{file}, row {number}: {len(record)} values for {len(header)} columns")
    return [dict(zip(header, record, strict=True)) for record in records if record]


def json_rows(file: Path, lines: list[str]) -> list[dict[str, str]]:
    """Return the JSON objects of a file, one in each line, without empty ones."""
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line) if line.strip() else {}
        except ValueError as error:
            raise BergError(f"{file}, line {number}: {error}") from None
        is_object = isinstance(values, dict)
        if not is_object or any(isinstance(each, (dict, list)) for each in values.values()):
            raise BergError(f"{file}, line {number}: not an object of plain values")
        texts = {
            key: each if isinstance(each, str) else json.dumps(each) for key, each in values.items()
        }
        rows += [texts] if texts else []
    return rows


def fill(cmd: str, values: dict[str, str]) -> str:
    """Return the command with its placeholders replaced; the shell reads each value as one word."""
    return PLACEHOLDER.sub(lambda found: found[1] or shlex.quote(values[found["name"]]), cmd)


def expand(plan: Plan, rows: list[dict[str, str]], results_dir: str | None) -> list[job.Job]:
    """Return a job for every row; raise BergError for an invalid row."""
    sweep, width = plan.job.job_name, len(str(len(rows) - 1))
    if len(rows) > MOST:
        raise BergError(f"{len(rows):,} jobs are more than the {MOST:,} that a sweep may have")
    job.check_name(f"{sweep}-{'0' * width}")
    base = results_dir or "/".join(filter(None, (plan.job.spec.results_parent, sweep)))
    found: list[job.Job] = []
    seen: dict[str, int] = {}
    for number, values in enumerate(rows):
        where = f"row {number} ({', '.join(f'{key}={value}' for key, value in values.items())})"
        check_row(plan.job.cmd, values, where)
        command = fill(plan.job.cmd, values)
        is_default = results_dir or plan.hidden
        own = "" if is_default else validation.sketchy_guess_at_results_dir_from_cmd(command)
        results = own or f"{base}/{number:0{width}}"
        if results in seen:
            raise BergError(f"{where} has the same results dir as row {seen[results]}: {results}")
        seen[results] = number
        this = replace(
            plan.job,
            job_name=f"{sweep}-{number:0{width}}",
            cmd=command,
            results_dir=validation.check_results_dir(results),
            gcs_results_dir=f"gs://{plan.config.bucket}/berg_results/{results}",
            sweep=sweep,
            params=values,
        )
        found.append(validation.check_size(this))
    return found


def with_earlier(plan: Plan, all_jobs: list[job.Job]) -> list[job.Job]:
    """Return the jobs of a sweep with the earlier jobs whose files they begin with; the plan gets
    the owners of their folders.
    """
    plan.owners, begins_with = lookup.owners_of(plan.config, all_jobs)
    if plan.job.fresh:
        return all_jobs
    return [replace(each, begins_with=begins_with[each.results_dir]) for each in all_jobs]


def check_row(cmd: str, values: dict[str, str], where: str) -> None:
    """Raise BergError unless a row has the values that the command names, and no others."""
    wanted = {found["name"] for found in PLACEHOLDER.finditer(cmd) if found["name"]}
    if missing := sorted(wanted - values.keys()):
        raise BergError(f"{where} has no value for {{{missing[0]}}} of the command")
    if unused := sorted(values.keys() - wanted):
        raise BergError(
            f"{where} has a value for {unused[0]!r}, but the command has no {{{unused[0]}}}"
        )


def machines(name: str, count: int) -> list[str]:
    width = len(str(count - 1))
    return [f"{name}-machine-{number:0{width}}" for number in range(count)]


def submit(
    plan: Plan, all_jobs: list[job.Job], parallel: int, say: Say, on_progress: Progress
) -> None:
    """Send the code and the jobs, and create the machines; if that fails delete all of it."""
    launch.check_embedded(plan)
    bucket, name = Bucket(plan.config), plan.job.job_name
    on = machines(name, min(parallel, len(all_jobs)))
    place = places.of(plan.job.place)
    job.check_name(place.longest_name(on[-1], on))
    launch.import_ahead(place)
    launch.send_code(plan, bucket, say, on_progress)
    with_code = [replace(each, snapshot=plan.job.snapshot) for each in all_jobs]
    record = states.Sweep(
        [each.job_name for each in with_code],
        claim=states.new_claim(),
        sha256=[hash_of(each) for each in with_code],
        drawn=plan.drawn,
    )
    plan.sweep_sha256 = record.fingerprint()
    try:
        write_jobs(plan, with_code, record, say)
        if plan.secrets:
            secret.store(plan.config, name, plan.secrets, plan.machine_seconds, plan.accounts)
        place.warm_up()  # waits for `import_ahead`
        create(plan, on, record.claim, say)
    except lookup.Taken:
        raise
    except BaseException:
        with launch.cleaning_up(name, say):
            take_back(plan, record)
        raise


def write_jobs(plan: Plan, all_jobs: list[job.Job], record: states.Sweep, say: Say) -> None:
    """Write the jobs of a sweep, and its record last: a sweep has all of its jobs.

    The first job is written before the others, so that of two submits of the same sweep one has
    them all; raise Taken if it is another's.
    """
    bucket, name = Bucket(plan.config), plan.job.job_name
    first, *others = all_jobs
    say(f"Sending {len(all_jobs):,} jobs")
    launch.claim_folders(plan, bucket, job.State(job=first.summary(), claim=record.claim))
    with ThreadPoolExecutor(THREADS) as pool:  # waits for its requests, also when interrupted
        pool.submit(write_job, bucket, first, record).result()
        try:
            list(pool.map(lambda this: write_job(bucket, this, record), others))
            lookup.check_owners(plan.config, plan.owners, record.claim)
            pool.submit(states.write_sweep, bucket, name, record).result()
        except lookup.Taken as error:
            raise BergError(error.message) from None  # what is there already is deleted
        except Changed:
            raise BergError(lookup.taken(name, "sweep").message) from None


def hash_of(this: job.Job) -> str:
    return sha256(this.to_json().encode())


def write_job(bucket: Bucket, this: job.Job, sweep: states.Sweep) -> None:
    """Claim the job's name for its sweep and write its metadata; raise Taken if it is taken."""
    try:
        states.claim(bucket, this.job_name, job.State(job=this.summary()), token=sweep.claim)
    except Changed:
        raise lookup.taken(this.job_name) from None
    states.write_job(bucket, this)


def take_back(plan: Plan, claimed: states.Sweep) -> None:
    """Delete what a failed submit of a sweep created, its jobs last; nothing of another's."""
    config, bucket, name = plan.config, Bucket(plan.config), plan.job.job_name
    there = states.read_sweep(bucket, name)
    if there and there.claim == claimed.claim:
        places.of(plan.job.place).take_back(config, name, plan.sweep_sha256)
        if plan.secrets:
            secret.take_back(config, name)
        states.withdraw_sweep(bucket, name, claimed)
    purse.release(config, claimed.claim)
    ours = [states.Stored(each, job.State(claim=claimed.claim), 0) for each in claimed.jobs]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda each: states.withdraw(bucket, each), ours))


def create(plan: Plan, names: list[str], claim: str, say: Say) -> None:
    """Create machines of a sweep, many in one request."""
    if not names:
        return
    place = places.of(plan.job.place)
    request = place.request(plan)
    reserved = purse.reserve(plan, claim, len(names))
    for start in range(0, len(names), BULK):
        some = names[start : start + BULK]
        place.create(plan.config, request, some, False, say, still_trying=lambda: None)
    purse.note_begun(plan.config, reserved)


def entries(config: Config, name: str) -> list[jobs.Entry]:
    """Return the jobs of a sweep, in their order."""
    there = [entry for entry in jobs.overview(config, None, f"{name}-") if entry.sweep == name]
    return sorted(there, key=lambda entry: entry.name)


@dataclass
class Again:
    """The jobs of a sweep that run again."""

    sweep: str
    record: states.Sweep
    jobs: list[jobs.Entry]
    first: job.Job
    is_over: bool  # all jobs have ended; then its secrets are deleted
    code: snapshot.Snapshot | None = None  # None: as before

    def __str__(self) -> str:
        before = ", ".join(sorted({str(entry.to_dict().get("commit")) for entry in self.jobs}))
        if self.code is None:
            return f"the code that they ran before, {before}. With the code around you: --new-code"
        now = f"the code as it is now, {self.code.commit[:12]}"
        if changes := len(self.code.all_changed()):
            now += f", HEAD {self.code.head[:12]} with {changes} of its files changed"
        return f"{now}; before it was {before}"

    def spec(self, given: JobSpec) -> JobSpec:
        """Return the sweep's spec with the secrets that are given now.

        Raise BergError if one is missing, or if those of the first time still exist.
        """
        if self.is_over:
            return spec_again(self.first, {key: getattr(given, key) for key in ASKED_AGAIN})
        if given.secrets or given.install_secrets or given.notify:
            raise BergError(
                f"other jobs of {self.sweep} still use the secrets that it has: leave out "
                "--secret, --install-secret and --notify"
            )
        return with_patch(self.first, given.pod_patch)


def again(config: Config, name: str, folder: Path | None = None) -> Again | None:
    """Return the jobs that failed or were lost, or the one named SWEEP/INDEX; None for none.

    With a folder they run its working tree, else the code that they ran before.
    """
    bucket = Bucket(config)
    name, _, number = name.partition("/")
    record = states.read_sweep(bucket, name)
    if record is None:
        raise BergError(f"there is no sweep {name!r}. See what there is: berg list")
    there = {entry.name: entry for entry in entries(config, name) if entry.state}
    if number:
        chosen = [ended_job(there, jobs.find(config, f"{name}/{number}").name)]
    else:
        chosen = [entry for entry in there.values() if state_of(entry) in ("FAILED", "LOST")]
    if not chosen:
        return None
    for entry in chosen:
        records.check_kept(entry)
    is_over = all(state_of(entry) in job.FINAL for entry in there.values())
    found = Again(name, record, chosen, read_job(bucket, record, chosen[0]), is_over)
    if folder:
        found.code = snapshot.take(folder)
        check_code(found.first, found.code)
    return found


def state_of(entry: jobs.Entry) -> str:
    return entry.state.state if entry.state else ""


def ended_job(there: dict[str, jobs.Entry], name: str) -> jobs.Entry:
    """Return a job of a sweep; raise BergError unless it has ended."""
    entry = there.get(name)
    if entry is None:
        raise BergError(f"{name} cannot run again: its state is damaged. See it: berg show {name}")
    if state_of(entry) not in job.FINAL:
        raise BergError(
            f"{entry.name} has not ended ({entry.status}). See it: berg tail {entry.name}"
        )
    return entry


def wait_until_gone(config: Config, name: str, say: Say) -> None:
    """Wait for the machines of an ended sweep to go; raise BergError if they stay."""

    def there() -> list[str]:
        return [
            each.name
            for each in places.machines(config, sweeps=[name])
            if each.status not in jobs.OFF
        ]

    if left := jobs.wait_while(there, f"as the sweep {name} has ended", say):
        raise BergError(f"{', '.join(left)} could not be deleted. Delete them: berg reap")


def missing(config: Config, found: Again, parallel: int | None) -> list[str]:
    """Return the names of the machines to create; those of a sweep that has ended will go."""
    there = places.machines(config, sweeps=[found.sweep])
    used = {machine.name for machine in there}
    free = [
        each
        for each in machines(found.sweep, len(found.record.jobs) + len(used))
        if each not in used
    ]
    count = len(found.jobs)
    wanted = min(parallel or count, count)
    if not found.is_over:
        wanted -= sum(machine.status not in jobs.GOING for machine in there)
    return free[: max(wanted, 0)]


def plan_again(config: Config, found: Again, spec: JobSpec, machines: int) -> Plan:
    """Return the plan of a sweep's new machines, from its jobs' spec and the user's limits."""
    named = replace(spec, name=found.sweep, results_dir=None)
    code = found.code or records.code_of(config, found.first)
    plan = launch.prepare(config, named, Path.cwd(), sweep=machines or 1, code=code, again=True)
    plan = spending.limited(plan, len(found.record.jobs))
    plan.rounds = -(-len(found.jobs) // (machines or 1))
    plan = purse.limited(plan, machines or 1)
    # by what their states say of their results dirs
    before = [
        replace(found.first, job_name=each.name, results_dir=each.summary.results_dir)
        for each in found.jobs
    ]
    plan.owners, _ = lookup.owners_of(config, before)
    return replace(plan, sweep_sha256=found.record.fingerprint())


def resume(
    found: Again,
    plan: Plan,
    names: list[str],
    say: Say,
    on_progress: Progress = lambda done, size: None,
) -> None:
    """Submit jobs of a sweep again, and create the machines that they need."""
    bucket = Bucket(plan.config)
    if found.is_over:
        wait_until_gone(plan.config, found.sweep, say)
    launch.send_code(plan, bucket, say, on_progress)
    if plan.secrets:
        seconds = min(found.first.max_run_seconds * len(found.jobs), LIMITS[1])
        secret.store(plan.config, found.sweep, plan.secrets, seconds, plan.accounts)
    code: dict[str, Any] = {}
    if found.code:
        code = launch.code_fields(found.code) | {"snapshot": plan.job.snapshot}
        code["installation"] = plan.job.installation
    with ThreadPoolExecutor(THREADS) as pool:
        written = pool.map(
            lambda each: write_with_code(bucket, found.record, each, code), found.jobs
        )
        changed = {this.job_name: this for this in written if this}
    plan.sweep_sha256 = update_hashes(plan.config, found, changed).fingerprint()
    claim = states.new_claim()
    try:
        launch.claim_folders(plan, bucket, job.State(job=found.jobs[0].summary, claim=claim))
    except lookup.Taken:
        raise changed_error(found.jobs[0]) from None
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda each: submit_again(bucket, each, changed), found.jobs))
    lookup.check_owners(plan.config, plan.owners, claim)
    create(plan, names, claim, say)


def update_hashes(config: Config, found: Again, changed: dict[str, job.Job]) -> states.Sweep:
    """Put the hashes of rewritten jobs into the sweep's record and its machines' metadata, so that
    they run them; return the record.
    """
    bucket, record = Bucket(config), found.record
    if not changed:
        return record
    hashes = dict(zip(record.jobs, record.sha256, strict=False))
    hashes |= {name: hash_of(this) for name, this in changed.items()}
    new = replace(record, sha256=[hashes.get(name, "") for name in record.jobs])
    there = places.machines(config, sweeps=[found.sweep])
    # they may find either record
    publish_hash(config, there, f"{record.fingerprint()} {new.fingerprint()}")
    states.replace_sweep(bucket, found.sweep, record, new)
    publish_hash(config, there, new.fingerprint())
    return new


def publish_hash(config: Config, machines: list[Machine], value: str) -> None:
    """Write the hash of a sweep's record into its machines' metadata."""

    def tell(each: Machine) -> None:
        places.of(each.place).set_metadata(config, each, "berg-job-sha256", value)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(tell, machines))


def read_job(bucket: Bucket, record: states.Sweep, entry: jobs.Entry) -> job.Job:
    """Return a job of a sweep; raise BergError if its hash is not the one in the record."""
    this = states.read_job(bucket, entry.name, record.sha256_of(entry.name))
    if this is None:
        raise BergError(f"{job.metadata_path(entry.name)} is missing")
    return this


def check_code(this: job.Job, taken: snapshot.Snapshot) -> None:
    """Raise BergError unless a sweep's jobs can run another snapshot."""
    if taken.repo_name != this.repo_name:
        raise BergError(
            f"{this.sweep} runs the repo {this.repo_name}, and this is {taken.repo_name}. Go "
            f"there: cd {this.repo_name}"
        )
    script = this.spec.install_script
    if script and not (taken.root / script).is_file():
        raise BergError(
            f"the sweep's --install-script {script} is no longer a file in {taken.root}"
        )


def submit_again(bucket: Bucket, entry: jobs.Entry, changed: dict[str, job.Job]) -> None:
    """Submit an ended job again; raise BergError if another process changed it."""
    assert entry.stored
    state = submitted_again(entry.stored.state)
    state.restarts = -1  # the next start does not count
    if entry.name in changed:
        state.job = changed[entry.name].summary()
    try:
        states.claim(bucket, entry.name, state, entry.stored.generation)
    except Changed:
        raise changed_error(entry) from None


def write_with_code(
    bucket: Bucket, record: states.Sweep, entry: jobs.Entry, code: dict[str, Any]
) -> job.Job | None:
    """Write a job's metadata with new code and return it; None if it stays the same.

    Raise BergError if another process changed it.
    """
    blob = bucket.get(job.metadata_path(entry.name))
    this = read_job(bucket, record, entry)
    if not code:
        return None
    changed: job.Job = validation.check_size(replace(this, **code))
    try:
        states.write_job(bucket, changed, blob.generation if blob else 0)
    except Changed:
        raise changed_error(entry) from None
    return changed


def changed_error(entry: jobs.Entry) -> BergError:
    """Return the error for a job that another process changed."""
    return BergError(f"{entry.name} changed meanwhile. Try again: berg run --resume {entry.sweep}")


@dataclass
class Row:
    """A job of a sweep with its parameters and the last value of each of its metrics."""

    name: str
    state: str
    exit_code: int | None
    params: dict[str, str]
    metrics: dict[str, Any]
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON, which has no NaN and no Infinity: such a metric is null."""
        metrics = {
            key: None if isinstance(each, float) and not math.isfinite(each) else each
            for key, each in self.metrics.items()
        }
        return {**asdict(self), "metrics": metrics}


def results(entries: list[jobs.Entry], read: Callable[[str], str]) -> list[Row]:
    """Return a row for each job; `read` returns a file of `berg_results/`, "" if it is missing."""
    rows = []
    for entry in entries:
        state, details = entry.job_state, entry.summary
        metrics = events.last_values(read(f"{details.results_dir}/metrics.jsonl"))
        about = (entry.name, state.state, state.exit_code, details.params, metrics)
        rows.append(Row(*about, state.reason))
    return rows


def write_results(entries: list[jobs.Entry], fetched: Path, file: Path) -> None:
    """Write the rows as CSV, with a column for each parameter and metric of any job.

    `fetched` is the local copy of `berg_results/`.
    """

    def read(path: str) -> str:
        try:
            return events.last_lines(fetched / path).decode()
        except (OSError, ValueError):
            return ""

    rows: list[dict[str, Any]] = []
    for each in results(entries, read):
        row = {"name": each.name, "state": each.state, "exit_code": each.exit_code}
        row["reason"] = each.reason
        row |= {f"param.{key}": value for key, value in each.params.items()}
        rows.append(row | {f"metric.{key}": value for key, value in each.metrics.items()})
    columns = list(dict.fromkeys(key for row in rows for key in row))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", errors="replace") as output:  # JSON may have half a character
        writer = csv.DictWriter(output, columns)
        writer.writerow({key: cell(key) for key in columns})
        writer.writerows({key: cell(value) for key, value in row.items()} for row in rows)


def cell(value: Any) -> Any:
    """Return a value for a CSV file, with an apostrophe before what could be a formula."""
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


@dataclass(frozen=True)
class Param:
    """The values of a parameter: one of some texts, or a number between two."""

    name: str
    choices: tuple[str, ...] = ()
    kind: str = ""  # log: uniform in its logarithm; int: a whole number
    low: float = 0.0
    high: float = 0.0

    def at(self, share: float) -> str:
        """Return the value at a share of its range, 0 to below 1."""
        if self.choices:
            return self.choices[int(share * len(self.choices))]
        if self.kind == "int":
            return str(int(self.low) + int(share * (self.high - self.low + 1)))
        if self.kind == "log":
            span = math.log(self.high / self.low)
            return f"{self.low * math.exp(share * span):.6g}"
        return f"{self.low + share * (self.high - self.low):.6g}"


def parse(text: str) -> Param:
    """Return the parameter of a text such as lr=log:1e-5..1e-1 or bs=32|64."""
    name, equals, values = text.partition("=")
    if not equals or not values or not NAME.fullmatch(name):
        raise wrong(text, "give NAME=A|B|C, NAME=LOW..HIGH, NAME=log:LOW..HIGH, NAME=int:LOW..HIGH")
    found = re.fullmatch(rf"(?:(log|int):)?({NUMBER})\.\.({NUMBER})", values)
    if found is None:
        return Param(name, tuple(values.split("|")))
    param = Param(name, (), found[1] or "", float(found[2]), float(found[3]))
    if not param.low < param.high:
        raise wrong(text, "the first number must be below the second")
    if param.kind == "log" and param.low <= 0:
        raise wrong(text, "a logarithm needs numbers above 0")
    if param.kind == "int" and not (param.low.is_integer() and param.high.is_integer()):
        raise wrong(text, "give whole numbers")
    return param


def wrong(text: str, why: str) -> BergError:
    return BergError(f"--param {text!r}: {why}")


def rows(texts: tuple[str, ...], samples: int, sampler: str, seed: int) -> list[dict[str, str]]:
    """Return `samples` draws, the same for the same seed."""
    params = [parse(text) for text in texts]
    names = [param.name for param in params]
    if len(set(names)) < len(names):
        raise BergError("--param names a parameter twice; give all of its values at once")
    if sampler == SOBOL and len(params) > len(DIRECTIONS) + 1:
        raise BergError(f"--sampler sobol draws {len(DIRECTIONS) + 1} parameters at most")
    draw = sobol if sampler == SOBOL else uniform
    points = itertools.islice(draw(len(params), random.Random(seed)), samples)
    return [
        {param.name: param.at(share) for param, share in zip(params, point, strict=True)}
        for point in points
    ]


def uniform(dimensions: int, dice: random.Random) -> Iterator[list[float]]:
    """Yield points at random."""
    while True:
        yield [dice.random() for _ in range(dimensions)]


def sobol(dimensions: int, dice: random.Random) -> Iterator[list[float]]:
    """Yield the points of a Sobol sequence with a random digital shift (Lemieux, 2009): of the
    first 2^k points each 1/2^k of every parameter's range has exactly one.
    """
    directions = [direction_numbers(each) for each in range(dimensions)]
    point = [dice.getrandbits(BITS) for _ in range(dimensions)]
    index = 0
    while True:
        yield [each / 2**BITS for each in point]
        # Gray code: the next point differs by the number of the lowest bit of the index that is 0.
        bit = (~index & (index + 1)).bit_length() - 1
        point = [each ^ numbers[bit] for each, numbers in zip(point, directions, strict=True)]
        index += 1


def direction_numbers(dimension: int) -> list[int]:
    """Return the direction numbers of a dimension, as fractions of 2^BITS."""
    if dimension == 0:
        return [1 << (BITS - 1 - bit) for bit in range(BITS)]
    coefficients, first = DIRECTIONS[dimension - 1]
    degree = len(first)
    found = [number << (BITS - 1 - bit) for bit, number in enumerate(first)]
    for bit in range(degree, BITS):
        number = found[bit - degree] ^ (found[bit - degree] >> degree)
        for k in range(1, degree):
            if (coefficients >> (degree - 1 - k)) & 1:
                number ^= found[bit - k]
        found.append(number)
    return found

"""`berg run`: from a command to a machine that runs it.

    plan     what will exist: code, job, machine. It is printed, and nothing exists
    submit   the code, then the job's name, the job, its machine; after an error, none of them
    end      machines and what features left are deleted

`berg devbox` is a job without a command, `berg rerun` a job with the options of an earlier one.
"""

import contextlib
import functools
import os
import re
import shlex
import signal
import sys
import threading
import time
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from berg import BergError, code, features, gce, google, install, place, prices, ssh, terminal
from berg import job as jobs
from berg import rows as rows_
from berg.bucket import Bucket, Changed
from berg.config import Config
from berg.feature import Feature
from berg.job import Job, State
from berg.options import complete_names, given, option, option_fields, options_of, set_by

LEAVING = 90  # seconds in which a machine is gone whose job has ended
NOT_AGAIN = {
    "name",
    "results",
    "env",
    "env_file",
    "grid",
    "tasks",
}  # options that a rerun does not repeat
Create = Callable[[Config, Job, dict[str, Any], list[str], Callable[[str], None]], str]


@dataclass
class Spec:
    """What a person asks for."""

    name: str = option("-n", "--name", default="", help="The job's name.")
    note: str = option("--note", default="", metavar="TEXT", help="A note that lists show.")
    gpus: int | None = option(
        "-g", "--num-gpus", type=click.IntRange(0), metavar="N",
        help="GPUs of each machine; 0 for none.  [default: 1]",
    )  # fmt: skip
    gpu_type: str = option("-t", "--gpu-type", default="l4", show_default=True, help="Their type.")
    cpus: int | None = option(
        "-c", "--num-cpus", type=click.IntRange(1), metavar="N", help="vCPUs of each machine."
    )
    machine_type: str = option("--machine-type", default="", help="A Compute Engine machine type.")
    zones: list[str] = option(
        "-z", "--zone", default=[], multiple=True, help="A zone to try, in this order."
    )
    regions: list[str] = option(
        "--region", default=[], multiple=True, metavar="REGION",
        help="Try all zones of this region, or of any; repeatable.",
    )  # fmt: skip
    machines: int = option(
        "-m",
        "--machines",
        default=1,
        type=click.IntRange(1, 1000),
        help="Number of machines, which run together.",
    )
    each: bool = option("--each", default=False, is_flag=True, help="Run CMD on every machine.")
    grid: list[str] = option(
        "--grid", default=[], multiple=True, metavar="NAME=V1,V2",
        help="A sweep: CMD with {NAME}, once for each combination.",
    )  # fmt: skip
    tasks: str = option(
        "--tasks", default="", metavar="FILE", help="A sweep of a CSV or JSONL file."
    )
    parallel: int | None = option(
        "--parallel", type=click.IntRange(1, 1000), help="Machines of a sweep."
    )
    results: str = option(
        "-r", "--results-dir", default="", metavar="PATH", help="Folder in berg_results/."
    )
    cwd: str = option(
        "--cwd", default="", metavar="PATH",
        help="Folder of the repository to run CMD in.  [default: this one]",
    )  # fmt: skip
    env: list[str] = option(
        "--env", default=[], multiple=True, metavar="NAME[=VALUE]",
        help="A variable for CMD; without =VALUE, its value here.",
    )  # fmt: skip
    env_file: str = option(
        "--env-file", default="", metavar="FILE", help="Variables, one NAME=VALUE in each line."
    )
    install: str = option(
        "--install", default="", metavar="COMMAND", help="Install with this command instead."
    )
    max_hours: float = option(
        "--max-hours", default=168.0, type=click.FloatRange(0.02, 2880), show_default=True,
        help="Hours until Google deletes the machine.",
    )  # fmt: skip
    disk_gb: int = option(
        "--disk-gb", default=200, type=click.IntRange(10), show_default=True, help="Boot disk."
    )
    image: str = option("--image", default="", metavar="[PROJECT/]IMAGE", help="Image or family.")
    commit: str = option(
        "--commit", "--branch", default="", metavar="COMMIT",
        help="Run this commit, tag or branch, not the working tree.",
    )  # fmt: skip

    rows: list[dict[str, str]] = field(default_factory=list)  # of a sweep that runs again

    @property
    def machine(self) -> tuple[int | None, str, int | None, str, list[str], list[str]]:
        """What gce.choose is asked for."""
        kind = self.gpus, self.gpu_type, self.cpus, self.machine_type
        return *kind, self.zones, self.regions


@dataclass
class Then:
    """What a command does with a plan; this is no part of the job."""

    dry_run: bool = option("--dry-run", default=False, is_flag=True, help="Only show the plan.")
    tail: bool = option(
        "--tail", default=False, is_flag=True, help="Follow the log; exit as CMD does."
    )
    wait: bool = option("--wait", default=False, is_flag=True, help="Wait; exit as CMD does.")
    yes: bool = option(
        "-y", "--yes", default=False, is_flag=True, help="Answer questions with yes."
    )
    as_json: bool = option("--json", default=False, is_flag=True, help="Print the job as JSON.")


@dataclass
class Plan:
    """A job and its machines, before anything exists. Features change it."""

    config: Config
    job: Job
    snapshot: code.Snapshot | None  # None: the bucket has it
    request: dict[str, Any]  # for one machine; see gce.body
    zones: list[str]  # to try, in this order
    features: list[Feature]
    rows: dict[str, str]  # what is printed
    questions: list[str] = field(default_factory=list)  # to answer before anything is sent
    create: Create = gce.create
    preview: Callable[[], dict[str, Any]] | None = None  # what `create` sends, if not the request
    ended: State | None = None  # of a job that is resumed: how its last attempt ended
    generation: int = 0  # of that state
    before: Job | None = None  # its record, if it goes on with new code
    end: str = ""  # what happens at its limit of time, if that is not Google's to do
    limited_by: str = "--max-hours"

    def drop(self, feature: Feature) -> None:
        """Do without a feature that makes no sense for this job."""
        self.features.remove(feature)
        self.job.features.pop(type(feature).__name__, None)

    @property
    def attempt(self) -> int:
        return self.ended.attempt + 1 if self.ended else 1

    @property
    def seconds(self) -> int:
        """Until Google ends the machines."""
        return int(self.request["scheduling"]["maxRunDuration"]["seconds"])

    @property
    def limit(self) -> str:
        stops = self.request["scheduling"]["instanceTerminationAction"] == "STOP"
        end = self.end or f"Google {'switches it off' if stops else 'deletes the machine'}"
        return f"{terminal.duration(self.seconds)}, then {end} ({self.limited_by})"

    @functools.cached_property
    def usd_per_hour(self) -> float | None:
        """Of all its machines, once the request says what they are; None: unknown."""
        with terminal.waiting("Reading Google's prices"):
            return prices.of_machines(self.config, self.job, self.request, self.zones)

    @property
    def usd_at_most(self) -> float | None:
        return None if self.usd_per_hour is None else self.usd_per_hour * self.seconds / 3600

    def record(self) -> dict[str, Any]:
        """What --json prints of it, and of the job that comes of it."""
        job = self.job
        ssds = gce.included_ssds(job.machine_type) or len(self.request["disks"]) - 1
        return {
            "name": job.name,
            "results": f"gs://{self.config.bucket}/{jobs.results_prefix(job.results)}",
            "usd_per_hour": self.usd_per_hour,
            "usd_at_most": self.usd_at_most,
            "max_run_seconds": self.seconds,
            "scratch_gb": ssds * gce.SSD_GB,
            "install": {
                "how": self.rows.get("Install", ""),
                "not_read": self.rows.get("Not read", ""),
            },
            **({"num_jobs": len(job.rows), "jobs": []} if job.rows else {}),
        }


def make_plan(config: Config, cmd: str, folder: Path, spec: Spec, used: list[Feature]) -> Plan:
    """What `submit` would do. Everything that can be refused by now is refused here."""
    _ = config.credentials
    elsewhere = place.choose(config, used, spec)
    is_sweep = bool(spec.grid or spec.tasks or spec.rows)
    values = spec.rows or (rows_.make(cmd, spec.grid, spec.tasks) if is_sweep else [])
    if is_sweep and spec.machines > 1:
        raise BergError(
            "a row of a sweep runs on one machine. Leave out -m; --parallel is the number of machines"
        )
    spec.gpu_type = spec.gpu_type.lower()
    several = min(len(values), spec.parallel or rows_.PARALLEL) if is_sweep else spec.machines
    bucket = Bucket(config)
    results = spec.results or jobs.results_of(cmd) or spec.name  # "": its name, which is made below
    with terminal.waiting("Reading the code, and asking Google"), google.together(6) as pool:
        chosen = pool.submit(lambda: elsewhere or gce.choose(config, *spec.machine))
        image = pool.submit(gce.find_image, config, spec.image or config.default_image)
        exists = pool.submit(bucket.client.exists)
        name_taken = pool.submit(bucket.get, jobs.state_path(spec.name)) if spec.name else None
        holder = pool.submit(gce.name_is_taken, config, spec.name) if spec.name else None
        writers = pool.submit(jobs.writers, bucket) if results else None
        snapshot = code.take(folder, spec.commit)
        shape, zones = chosen.result()
        if not exists.result():
            raise BergError(f"the bucket {config.bucket} does not exist. Create it: berg init")
        if name_taken and name_taken.result():
            raise BergError(has_job(spec.name))
        if holder and holder.result():
            raise BergError(
                f"there is a machine {spec.name!r} in {holder.result()} already. "
                "Choose another name: -n NAME"
            )
    threading.Thread(target=gce.client, daemon=True).start()
    name = jobs.check_name(spec.name or jobs.new_name(snapshot.repo))
    results = jobs.check_results(results or name)
    if writers:
        check_unused(config, results, writers.result())
    if several > 1:
        jobs.check_name(f"{name}-{several - 1}", "a name for the job's last machine")
    job = Job(
        name=name,
        cmd=cmd,
        repo=snapshot.repo,
        code=snapshot.record(),
        results=results,
        cwd=snapshot.within(spec.cwd) if spec.cwd else snapshot.cwd,
        install=spec.install,
        env=variables(spec.env_file, spec.env),
        machines=several,
        rows=values,
        each=spec.each,
        gpus=shape.gpus,
        gpu_type=shape.gpu_type,
        machine_type=shape.machine_type,
        image=image.result(),
        max_seconds=round(spec.max_hours * 3600),
        user=config.user,
        created_at=jobs.now(),
        options=given([spec, *used]),
        features={type(each).__name__: each.record() for each in used},
    )
    each = f"{job.machines} machines, each " if job.machines > 1 else ""
    rows = {
        "Job": job.name,
        "Command": cmd or "none: a devbox",
        "Code": str(snapshot),
        "Machine": f"{each}{shape}, {spec.disk_gb} GB disk",
        "Image": job.image.rpartition("/")[2],
        "Zones": ", ".join(zones),
        "Results": f"gs://{config.bucket}/{jobs.results_prefix(job.results)}",
        "Limit": "",  # known once all have changed the plan
    }
    if values:
        rows["Rows"] = f"{len(values)}: {rows_.describe(values[0])}, …"
    elif named := sorted(rows_.placeholders(cmd)):
        rows["Note"] = f"no --grid gives {{{named[0]}}} a value: the command has it as it is"
    request = gce.body(config, job, shape, spec.disk_gb)
    plan = Plan(config, job, snapshot, request, zones, used, rows, code.warnings(snapshot))
    change(plan)
    plan.rows |= install.foresee(plan)
    return plan


def check_unused(config: Config, results: str, writers: list[State]) -> None:
    """Raise BergError if one of these that has not ended writes to this folder of results, in it or above it."""
    from berg import jobs as commands

    for state in writers:
        outer, inner = sorted([f"{state.results}/", f"{results}/"])
        if state.is_final or not inner.startswith(outer):
            continue
        if not commands.find(config, state.name).is_final:
            raise BergError(
                f"{state.name}, which has not ended, has the results folder {state.results}. "
                f"Name another one (-r), or end it: berg kill {state.name}"
            )


def change(plan: Plan) -> None:
    """Add the features that no option names, and let all change the plan; one may take out others."""
    for kind in features.kinds():
        if not any(isinstance(each, kind) for each in plan.features) and kind().is_due(plan):
            plan.features.append(kind())
            if not plan.ended and (record := kind().record()):  # else its record is written
                plan.job.features[kind.__name__] = record
    order = [*features.ALL]
    plan.features.sort(key=lambda each: order.index(type(each).__name__))
    for feature in [*plan.features]:
        if feature in plan.features:
            feature.change(plan)
    plan.rows["Limit"] = plan.limit


def variables(file: str, texts: list[str]) -> dict[str, str]:
    """The variables of a file's lines, then those of --env; a name alone has its value here."""
    named = [("--env", text) for text in texts]
    if file:
        named = [*lines_of(file), *named]
    found = {}
    for where, text in named:
        name, equals, value = text.partition("=")
        if not name.isidentifier():
            raise BergError(f"{where} {text}: give NAME=VALUE")
        if name.startswith("BERG_"):
            raise BergError(
                f"{where} {name}: names that begin with BERG_ are Berg's. Choose another"
            )
        if name in ("PATH", "HOME"):
            raise BergError(
                f"{where} {name}: a machine has its own. Set it in CMD, for example: "
                "'PATH=\"/opt/tool/bin:$PATH\" python train.py'"
            )
        if not equals and name not in os.environ:
            raise BergError(f"{where} {name}: it is not set here. Give {name}=VALUE")
        found[name] = value if equals else os.environ[name]
    return found


def lines_of(file: str) -> list[tuple[str, str]]:
    """Place and text of each variable in a file of NAME=VALUE, which may be quoted or exported."""
    found = []
    try:
        for number, line in enumerate(Path(file).read_text("utf-8-sig").splitlines(), 1):
            line = re.sub(r"(?<=\S)#", "\0", line)  # in a word it begins no comment
            words = [word.replace("\0", "#") for word in shlex.split(line, comments=True)]
            words = words[1:] if words[:1] == ["export"] else words
            if len(words) > 1:
                raise ValueError(f"line {number}: put quotes around blanks")
            found += [(f"{file}, line {number}:", word) for word in words]
    except OSError as error:
        raise BergError(f"--env-file {file}: {error.strerror}. Give another file") from None
    except ValueError as error:
        raise BergError(f"--env-file {file}: {error}. Give NAME=VALUE in each line") from None
    return found


def submit(plan: Plan, say: Callable[[str], None] = terminal.say) -> str:
    """Send the code, claim the name, write the job, create its machines; return their zone.

    The order is the safety: a machine finds its job, and a job its code. What fails is taken back.
    """
    config, job, bucket = plan.config, plan.job, Bucket(plan.config)
    with terminal.waiting("Sending the code"), google.together(1) as pool:
        provided = pool.submit(code.provide, bucket)
        if plan.snapshot:
            code.send(plan.snapshot, bucket)
        programs = provided.result()
    state = State(
        name=job.name, user=job.user, results=job.results, is_devbox=job.is_devbox, id=job.id,
        returns=job.returns, machines=job.machines, created_at=job.created_at,
        times={jobs.SUBMITTED: jobs.now()}, attempt=plan.attempt,
        gpus=f"{job.gpus} x {job.gpu_type}" if job.gpus else job.gpu_type,
        rate=None if plan.usd_per_hour is None else plan.usd_per_hour / job.machines,
        seconds_before=plan.ended.seconds if plan.ended else 0.0,
        note=str(job.options.get("note", "")),
    )  # fmt: skip
    with taken_back(plan, bucket, say):
        try:
            jobs.write_state(bucket, state, plan.generation)
        except Changed:
            raise NameTaken(has_job(job.name)) from None
        if plan.snapshot:
            present = bucket.get(jobs.job_path(job.name))
            try:  # this computer may have slept
                if not own_state(bucket, job):
                    raise Changed(job.name)
                generation = present.generation if present else 0
                bucket.write(jobs.job_path(job.name), job.content(), generation)
            except Changed:
                raise NameTaken(
                    f"{job.name} is another job now. Choose another name: -n NAME"
                ) from None
        if plan.ended and job.rows:
            rows_.resume(bucket, job)
        for feature in plan.features:
            feature.send(plan)
        facts = gce.metadata(config, job, ssh.public_key()) | programs
        plan.request["metadata"] = {
            "items": [{"key": key, "value": text} for key, text in facts.items()]
        }
        return plan.create(config, job, plan.request, plan.zones, say)


class NameTaken(BergError):
    """Another submit has the name: nothing of it may be touched."""


def has_job(name: str) -> str:
    return (
        f"there is a job {name!r} already. Choose another name: -n NAME; "
        f"or delete it, if it has ended: berg rm {name}"
    )


def own_state(bucket: Bucket, job: Job) -> State | None:
    """The state of a job; None if its name is another's by now."""
    with contextlib.suppress(BergError):
        state, _ = jobs.read_state(bucket, job.name)
        return state if state.id == job.id else None
    return None


@contextlib.contextmanager
def taken_back(plan: Plan, bucket: Bucket, say: Callable[[str], None]) -> Iterator[None]:
    """After an error or Ctrl-C, leave neither job nor machine. A machine that comes later finds no
    job, and deletes itself.
    """
    try:
        yield
    except NameTaken:
        raise
    except BaseException as error:
        say(f"Undoing {plan.job.name}; one moment")
        is_main = threading.current_thread() is threading.main_thread()  # others get no signals
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
        try:
            withdraw(plan, bucket, error)
        finally:
            if is_main:
                signal.signal(signal.SIGINT, previous)
        raise


def withdraw(plan: Plan, bucket: Bucket, error: BaseException) -> None:
    """Take back what a submit has made, unless a machine, berg kill or another submit took the job
    further while this computer slept. Each record is looked at just before it goes.
    """
    job, path, attempt = plan.job, jobs.job_path(plan.job.name), plan.attempt
    state = own_state(bucket, job)
    if state and state.attempt > attempt:
        return
    if state and state.attempt == attempt and state.state != jobs.SUBMITTED:
        if state.is_final:
            end(plan.config, job, plan.features)  # machines that were asked for since
            raise BergError(f"{job.name} is {state.state} by now. See: berg show {job.name}")
        if isinstance(error, Exception):
            text = google.sentence(error, plan.config) or str(error)
            raise BergError(
                f"{job.name} is {state.state}, but: {text}. End it: berg kill {job.name}"
            )
    record = bucket.find_with_generation(path)
    with contextlib.suppress(Changed):
        if record and record[0] == job.content() and plan.before:
            bucket.write(path, plan.before.content(), record[1])
        elif record and record[0] == job.content() and not plan.ended:
            bucket.delete(path, generation=record[1])
    end(plan.config, job, plan.features)
    with contextlib.suppress(BergError, Changed):
        state, generation = jobs.read_state(bucket, job.name)
        if (state.id, state.attempt) == (job.id, attempt) and plan.ended:
            jobs.write_state(bucket, plan.ended, generation)
        elif (state.id, state.attempt) == (job.id, attempt):
            bucket.delete(jobs.state_path(job.name), generation=generation)


def end(config: Config, job: Job, used: list[Feature]) -> None:
    """Delete what a job's features left, and its machines."""
    for feature in used:
        feature.forget(config, job)
    place.delete(config, place.machines(config, job.name, made_for=[job.sha256]))


# --- the commands


def go(config: Config, plan: Plan, then: Then) -> None:
    """Show a plan, submit it, and do what the user wants next."""
    if plan.job.env:
        plan.rows["Variables"] = ", ".join(plan.job.env)
    terminal.show_fields(plan.rows, err=then.as_json or not then.dry_run)
    if then.dry_run:
        if then.as_json:
            terminal.show_json(
                {**plan.record(), "request": plan.preview() if plan.preview else plan.request}
            )
        return
    for question in plan.questions:
        if not terminal.confirm(f"{question}. Continue?", then.yes, "-y"):
            raise BergError("nothing was sent")
    zone = submit(plan)
    name = plan.job.name
    terminal.say(f"Created {name} in {zone}" if zone else f"{name} waits for a machine")
    about, code = {**plan.record(), "zone": zone}, 0
    if then.tail or then.wait:
        from berg import jobs as commands
        from berg import logs, table

        with commands.left_alone(name):
            state = (logs.follow if then.tail else commands.wait_for)(config, name)
        commands.say_next(state)
        code = commands.exit_code(state)
        if plan.job.rows and then.as_json:
            about["jobs"] = [row.record() for row in table.read(config, name)[0]]
    elif not then.as_json:
        terminal.say(f"Follow it: berg tail {name}")
        terminal.show(name)
    if then.as_json:
        terminal.show_json(about)
    sys.exit(code)


def sweep_of(row: str) -> str:
    return row.partition("/")[0]


def resume_plan(
    config: Config, name: str, again: list[Feature], folder: Path | None = None
) -> Plan:
    """The same job again: its record, code and results, in the next attempt on new machines.

    A feature of `again` is the record's, with what no record has; `folder` has new code.
    """
    from berg import jobs as commands

    bucket = Bucket(config)
    state = commands.find(config, name)
    if rows_.number_of(state.name) is not None:
        raise BergError(
            f"{name} is a row. The sweep goes on with: berg run --resume {sweep_of(name)}"
        )
    if not state.is_final:
        raise BergError(f"{state.name} is {state.state}. End it first: berg kill {state.name}")
    if state.state == jobs.SUCCEEDED:
        raise BergError(f"{state.name} has SUCCEEDED. To run it again: berg rerun {state.name}")
    job = jobs.read_job(bucket, state.name)
    if any(job.features.get(type(each).__name__) != each.record() for each in again):
        raise BergError(
            f"{job.name} keeps its options when it is resumed. To change them: berg rerun {job.name}"
        )
    with terminal.waiting(f"Waiting until the last machine of {job.name} is gone"):
        end = time.monotonic() + LEAVING
        while place.machines(config, job.name) or place.is_coming(config, job.name):
            if state.waits or time.monotonic() > end:
                raise BergError(f"{job.name} still has a machine. End it: berg kill {job.name}")
            time.sleep(1)
    last, generation = jobs.read_state(bucket, state.name)
    if (last.id, last.attempt) != (state.id, state.attempt):
        raise BergError(f"{state.name} was resumed meanwhile. See: berg show {state.name}")
    gpus = job.gpu_type if job.gpus else "l4"
    given_again = {type(each): each for each in again}
    used = [given_again.get(type(each), each) for each in features.of(job)]
    asked = [[*map(str, job.options.get(key, []))] for key in ("zones", "regions")]
    spec = Spec(job.name, gpus=job.gpus, gpu_type=gpus, machine_type=job.machine_type)
    spec.zones, spec.regions = asked
    shape, zones = place.choose(config, used, spec) or gce.choose(config, *spec.machine)
    request = gce.body(config, job, shape, int(job.options.get("disk_gb", 200)))
    rows = {
        "Job": f"{job.name}, attempt {state.attempt + 1}",
        "Command": job.cmd,
        "Machine": f"{job.machines} machines, each " * (job.machines > 1) + str(shape),
        "Results": f"gs://{config.bucket}/{jobs.results_prefix(job.results)}",
        "Limit": "",
        **({"Install": job.install} if job.install else {}),
    }
    plan = Plan(config, job, None, request, zones, used, rows, ended=state, generation=generation)
    plan.limited_by = "by the job's record"
    if folder:
        plan.snapshot = code.take(folder)
        plan.before, plan.job = job, replace(job, code=plan.snapshot.record())
        plan.rows["Code"] = str(plan.snapshot)
        plan.questions = code.warnings(plan.snapshot)
    change(plan)
    plan.rows |= install.foresee(plan)
    return plan


@click.command()
@click.argument("cmd", default="")
@click.option(
    "--resume",
    metavar="NAME",
    shell_complete=complete_names,
    help="Resume a job that has ended, from its results.",
)
@click.option("--new-code", is_flag=True, help="With --resume: run the working tree.")
@options_of(Spec, Then, *features.kinds())
def run(
    spec: Spec, then: Then, *kinds: Feature, cmd: str, resume: str | None, new_code: bool
) -> None:
    """Run CMD on its own machine, with your repository.

    \b
    berg run -g 8 -t a100 "python train.py --logdir=/root/berg_results/sweep1/bs_256"
    berg run --resume sweep1-0102-030405-a1
    """
    used = [kind for kind in kinds if kind.is_used]
    if resume:
        if cmd or any(set_by(name) == "command line" for name in given([spec])):
            raise BergError(
                f"--resume continues a job with the command and the options that it had. "
                f"For others: berg rerun {resume}"
            )
        config = Config.load()
        again = [each for each in used if "command line" in map(set_by, each.record())]
        return go(
            config, resume_plan(config, resume, again, Path.cwd() if new_code else None), then
        )
    if new_code:
        raise click.UsageError("--new-code is for --resume NAME: other jobs run the working tree")
    if not cmd.strip():
        raise BergError("CMD is empty. For a machine without a command: berg devbox")
    config = Config.load()
    return go(config, make_plan(config, cmd, Path.cwd(), spec, used), then)


@click.command()
@options_of(Spec, Then, *features.kinds())
def devbox(spec: Spec, then: Then, *kinds: Feature) -> None:
    """Start a machine with your repository, for `berg ssh`.

    \b
    berg devbox -g 1 -t l4 -n box
    berg ssh box
    """
    config = Config.load()
    used = [kind for kind in kinds if kind.is_used]
    go(config, make_plan(config, "", Path.cwd(), spec, used), then)


@click.command()
@click.argument("before", metavar="JOB", shell_complete=complete_names)
@click.option("--new-code", is_flag=True, help="Run the working tree, not the job's code.")
@options_of(Spec, Then, *features.kinds())
def rerun(spec: Spec, then: Then, *kinds: Feature, before: str, new_code: bool) -> None:
    """Run a job again, with its code and options, except those given here; --env adds to the job's.

    \b
    berg rerun sweep1-0102-030405-a1 --spot --tail
    berg rerun @ --new-code
    """
    from berg import jobs as commands

    config = Config.load()
    before = commands.find(config, before).name if before == "@" else before
    if rows_.number_of(before) is not None:
        raise BergError(f"{before} is a row. All rows again: berg rerun {sweep_of(before)}")
    earlier = jobs.read_job(Bucket(config), before)
    new = given([spec, *kinds])
    if not (spec.grid or spec.tasks):  # a record names no file of this computer
        spec.rows = earlier.rows
    for name in earlier.options.keys() - new.keys() - NOT_AGAIN:
        for kind in (spec, *kinds):
            if name in [each.name for each in option_fields(type(kind))]:
                if not jobs.fits(earlier.options[name], typing.get_type_hints(type(kind))[name]):
                    raise BergError(
                        f"the record of {before} has no {name} that fits. Give it again"
                    )
                setattr(kind, name, earlier.options[name])
    used = [kind for kind in kinds if kind.is_used]
    if not new_code:
        spec.commit = spec.commit or earlier.code["commit"]
    spec.name = spec.name or jobs.new_name(earlier.repo)
    cmd = earlier.cmd
    if folder := jobs.results_of(cmd):  # it has one of its own
        named = rf"berg_results/{re.escape(folder)}(?![\w.-])"
        own = f"berg_results/{spec.results or spec.name}"
        cmd = re.sub(named, lambda found: own, cmd)
    plan = make_plan(config, cmd, Path.cwd(), spec, used)
    plan.job.env = {**earlier.env, **plan.job.env}
    plan.job.options = {**earlier.options, **plan.job.options}  # for the next rerun
    go(config, plan, then)

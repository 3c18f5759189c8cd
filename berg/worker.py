"""The worker: what a machine does with its job.

    claim        read the job, and take its state
    attempt      all that follows, for a job or for each row of a sweep
    prepare      check the code out, restore the results, install; wait for the other machines
    run_command  run it, watch for reasons to end it, and send its results meanwhile
    finish       send the last results, and hear how it ended on the other machines
    conclude     write how it ended: from now on nothing needs this machine

boot.py starts it, starts it again if it dies, and deletes the machine when it has ended. A mark on
the disk says that the command began: a worker that finds it only saves and ends the job.
"""

import contextlib
import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import requests

from berg import BergError, boot, code, features, google, install, machines, reasons, rows, usage
from berg import job as jobs
from berg.bucket import Bucket, Changed, Object, checksum
from berg.command import Command
from berg.config import Config
from berg.feature import Feature
from berg.job import INSTALLING, LOST, RUNNING, STARTING, STOPPED, SUBMITTED, UPLOADING, Job, State
from berg.results import Mirror

HOME, RESULTS = boot.BERG, code.ROOT / "berg_results"
# The mark, and how the command ended, for a worker that is started again; each says of which attempt.
BEGAN, ENDED = HOME / "began", HOME / "ended"
KILLS = HOME / "memory-kills"  # of the kernel, for want of memory, when the command began
RECORD = "berg_job_metadata.json"  # in the results of each job
LEFT = "LEFT"  # the ending of a machine whose sweep goes on without it
SIGNALLED: list[float] = []  # when this process got SIGTERM: the machine shuts down
GRACE, TAKEN_GRACE = 30, 15  # seconds between SIGTERM and SIGKILL; where Google takes the machine
SAVING = 300  # seconds that are kept for the last results, or a fifth of the time
TAKEN = 50  # seconds for them where Google takes the machine
METADATA_RETRY, METADATA_TIMEOUT = 300, 20  # seconds: all tries together; one request
PASS, AGAIN = 10, 1  # seconds between two passes over the results; after one without a whole moment
LOG, LOOK = 2, 1  # seconds between two pieces of the log, and two looks at the metadata
UPDATE = 1  # second between two writes of an object, else a bucket refuses the second one
STATE = 20  # seconds after which the state is written again, so that readers see how old it is
# Other places where commands may leave files, and folders to skip there.
ELSEWHERE = ("/root", "/home", "/workspace", "/data", "/mnt", "/opt", "/srv", "/tmp")
SMALL = 1_000_000  # bytes of a folder in /tmp that nobody misses
NO_WORK = {".git", "__pycache__", ".venv", ".cache", ".local", ".ssh", "site-packages", "pkgs"}
SEARCH = 5  # seconds spent searching each of them
PIECE = 64 << 20  # bytes of a log that are sent at once


@dataclass
class Ending:
    """How a job ends, or why its command is to end."""

    state: str
    reason: str = ""
    exit_code: int | None = None
    grace: float = GRACE
    seconds: float = SAVING  # how long sending the last results may take
    is_loss: bool = False  # a machine was lost; where Google replaces it, the next attempt begins
    is_firm: bool = False  # what happens on the other machines does not change it
    then: Callable[["Run"], None] | None = None  # what this machine does when that is written


class EndEarly(Exception):
    """The job is to end before its command runs."""

    def __init__(self, ending: Ending):
        self.ending = ending


class NotMine(Exception):
    """The job is over, or another machine has it: there is nothing to do."""


@dataclass
class Facts:
    """What the metadata server knows of this machine."""

    id: str  # differs between a machine and the one that replaces it under its name
    name: str
    zone: str
    address: str
    attributes: dict[str, str]
    preempted: bool
    maintained: bool  # Google is about to end it, as its host cannot go on

    @classmethod
    def read(cls) -> "Facts":
        row = json.loads(metadata("instance/?recursive=true"))
        return cls(
            id=str(row["id"]),
            name=row["name"],
            zone=row["zone"].rpartition("/zones/")[2],
            address=row["networkInterfaces"][0]["ip"],
            attributes=boot.told(row["attributes"]),
            preempted=row.get("preempted") == "TRUE",
            maintained=row.get("maintenanceEvent") == "TERMINATE_ON_HOST_MAINTENANCE",
        )


@dataclass
class Run:
    """One job on this machine, as the core's parts and the features see it."""

    config: Config
    bucket: Bucket
    facts: Facts
    job: Job
    state: State
    generation: int
    features: list[Feature]
    log: Path
    command: Command
    rank: int = 0
    words: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)  # what else the command needs, of features
    container: list[str] = field(default_factory=list)  # docker's options for it, of features
    told: dict[str, Any] = field(default_factory=dict)  # what features let the other machines know
    install_variables: dict[str, str] = field(default_factory=dict)  # for the installation alone
    addresses: list[str] = field(default_factory=list)  # of the machines, by rank
    peers: machines.Peers = field(default_factory=machines.Peers)
    ending: Ending | None = None  # why it is to end, once that is known
    next_word: float = 0  # time.monotonic() of the next look at the metadata
    next_state: float = 0  # time.monotonic() at which the state is written again
    wrote_state: float = -1  # time.monotonic() after the last write of it
    asked_state: float = -1  # and before: the job was this machine's then, or later
    pass_seconds: float = 0  # duration of the last pass over the results, or 3 x its CPU if more
    has_ended: bool = False  # the command
    is_taken: bool = False  # the job, by another machine

    @property
    def repo(self) -> Path:
        """The job's checkout."""
        return code.ROOT / "code" / self.job.repo

    @property
    def cwd(self) -> Path:
        return self.repo / self.job.cwd

    @property
    def title(self) -> str:
        """This attempt, as the marks on the disk name it."""
        return f"{self.job.name} {self.state.attempt}"

    @property
    def has_begun(self) -> bool:
        return BEGAN.exists() and BEGAN.read_text() == self.title

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def seconds(self) -> float:
        """Until Google ends this machine; the clock of its kernel began at boot, and a guest later."""
        began = float(self.facts.attributes.get("berg-since", BOOTED))
        return self.job.max_seconds - time.clock_gettime(time.CLOCK_BOOTTIME) + began

    def say(self, text: str) -> None:
        text = text.encode(errors="replace").decode()  # it may name a file whose name is not UTF-8
        print(f"berg: {text}", flush=True)
        with contextlib.suppress(OSError), self.log.open("ab+") as file:  # the disk may be full
            size = file.tell()
            if size and os.pread(file.fileno(), 1, size - 1) not in b"\r\n":  # in a line
                file.write(b"\n")
            file.write(f"[berg] {text}\n".encode())

    def write_state(self, state: str, **changes: Any) -> None:
        """Write the job's state, on the machine that leads; raise NotMine if another one has it."""
        if state == STARTING:  # of this attempt
            self.state.seconds_before = self.state.seconds
            before = self.state.times.items()
            self.state.times = {step: at for step, at in before if step == SUBMITTED}
        self.state = replace(self.state, state=state, **changes)
        if state not in self.state.times or state == SUBMITTED:
            self.state.times[state] = jobs.now(self.bucket.time())
        if not self.leads:
            return
        time.sleep(max(0, self.wrote_state + UPDATE - time.monotonic()))
        self.asked_state = time.monotonic()
        try:
            self.generation = jobs.write_state(self.bucket, self.state, self.generation)
        except Changed:  # maybe by this machine, whose answer was lost
            last, generation = jobs.read_state(self.bucket, self.job.name)
            is_ours = (last.machine_id, last.attempt) == (self.facts.id, self.state.attempt)
            if not is_ours or (last.is_final and last.state != state):
                raise NotMine("its state was written by someone else") from None
            self.asked_state = time.monotonic()
            self.generation = jobs.write_state(self.bucket, self.state, generation)
        self.wrote_state = time.monotonic()

    def look(self) -> None:
        """Raise EndEarly if the job is to end before its command runs."""
        if ending := look(self):
            raise EndEarly(ending)

    def watch(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for a program of the preparation, with a session of its own; raise EndEarly if the job is to
        end meanwhile.
        """
        try:
            while (exit_code := process.poll()) is None:
                self.look()
                time.sleep(0.05)
            return exit_code
        except EndEarly:
            os.killpg(process.pid, signal.SIGTERM)
            raise


# Where machines share a kernel (the embedded cloud), its clock began before this machine.
BOOTED = time.clock_gettime(time.CLOCK_BOOTTIME) if "GCE_METADATA_HOST" in os.environ else 0.0


def main() -> None:
    """Run this machine's job; the exit code tells boot.py what becomes of the machine."""
    parent = os.getppid()
    config, facts = know()
    signal.signal(signal.SIGTERM, lambda *_: SIGNALLED.append(time.monotonic()))
    if "stopping" in sys.argv:  # a worker before this one got the signal
        SIGNALLED.append(time.monotonic())
    try:
        run = claim(config, facts)
        with machines.beating(run):
            last = sweep(run) if run.job.rows else attempt(run)
        again = boot.CONTINUES if last.is_loss else boot.AGAIN
        # A group that makes no machine again is deleted by the machine that waited for the others.
        has_waited = machines.goes_last(run) and not run.job.is_devbox
        over = boot.OVER if has_waited or run.job.returns else boot.CONTINUES
        exit_code = {SUBMITTED: again, LEFT: boot.LEAVES}.get(last.state, over)
        is_killed = last.state == "KILLED"
        if last.then:
            last.then(run)
    except NotMine as error:
        print(f"berg: {error}", flush=True)
        exit_code, is_killed = boot.OVER, False
    if "berg-devbox" in facts.attributes and not is_killed:
        exit_code = boot.STOPS
    if os.getppid() != parent:  # boot.py is dead, and nobody else would do it
        boot.delete_machine(exit_code)
    sys.exit(exit_code)


def know() -> tuple[Config, Facts]:
    """What this machine is, and how it reaches its bucket."""
    facts = google.retry(Facts.read, METADATA_RETRY)
    attributes = facts.attributes
    config = Config(bucket=attributes["berg-bucket"], endpoint=attributes.get("berg-endpoint", ""))
    config.project = google.retry(lambda: metadata("project/project-id"), METADATA_RETRY)
    return config, facts


def give_up() -> None:
    """End the job as failed, for the reason that boot.py gives: no worker could. Other machines of a sweep go
    on, and a devbox goes off.
    """
    config, facts = know()
    bucket, name, reason = Bucket(config), facts.attributes["berg-job"], sys.argv[1]
    with contextlib.suppress(BergError):  # a record that is not what was submitted says nothing
        job = jobs.read_job(bucket, name, facts.attributes["berg-job-sha256"])
        if job.is_devbox or job.rows or (job.machines > 1 and facts.name != job.machine_names[0]):
            return
    if boot.IS_GUEST:
        (boot.BERG / "unsaved").touch()
        reason += f". What was not saved stays on {facts.name}: {boot.BERG.parent}"
    state, _ = jobs.read_state(bucket, name)
    if state.state == SUBMITTED or state.machine_id == facts.id:
        jobs.conclude(bucket, state, "FAILED", reason)


def sweep(run: Run) -> Ending:
    with every(lambda: LOG, Sender(run, run.log).send, last=True):
        return rows.work(run)


def attempt(run: Run) -> Ending:
    """Run a job, or a row of a sweep, to its end; the ending that its state has."""
    mirror = Mirror(
        str(RESULTS),
        run.bucket,
        "berg_results/",
        own=run.job.results,
        job=run.job.name,
        disk=str(run.rank),
        attempt=run.state.attempt,
        machines=run.job.machines,
        id=run.job.id,
        notes=str(HOME / "restored"),
        stopped=run.command.frozen,
        cut=run.command.cut,
    )
    with every(lambda: LOG, log_and_samples(run), last=True):
        ending = ending_of(run, mirror)
        note_ending(run, ending)
        ending = finish(run, mirror, ending)
    conclude(run, ending)
    return ending


def note_ending(run: Run, ending: Ending) -> None:
    with contextlib.suppress(OSError):  # the disk may be full
        part = ENDED.with_name("ended.part")
        part.write_text(json.dumps({"of": run.title, **dataclasses.asdict(ending)}))
        part.replace(ENDED)


def noted_ending(run: Run) -> Ending | None:
    """How this attempt ended, as a worker that died noted it."""
    if ENDED.exists():
        noted = json.loads(ENDED.read_text())
        if noted.pop("of") == run.title:
            return Ending(**noted)
    return None


def metadata(path: str) -> str:
    url = f"http://{boot.HOST}/computeMetadata/v1/{path}"
    answer = requests.get(url, headers={"Metadata-Flavor": "Google"}, timeout=METADATA_TIMEOUT)
    if answer.status_code != 200:
        raise requests.ConnectionError(f"{url}: {answer.status_code}")
    return str(answer.text)


def claim(config: Config, facts: Facts) -> Run:
    """Take the job that this machine was made for; raise NotMine if it is not its to run."""
    bucket, name = Bucket(config), facts.attributes["berg-job"]
    job = jobs.read_job(bucket, name, facts.attributes["berg-job-sha256"])
    rank = job.machine_names.index(facts.name) if job.machines > 1 else 0
    state, generation = jobs.read_state(bucket, name)
    if state.is_final or state.id != job.id:
        raise NotMine(f"the job {name} is {state.state} already")
    log = log_file(HOME, facts)
    command = Command(f"{facts.id}-{name}")
    run = Run(config, bucket, facts, job, state, generation, features.of(job), log, command, rank)
    with contextlib.suppress(OSError, ValueError):  # a job needs no login
        machines.open_to_ssh(run)
    if job.rows:
        return run
    if run.leads and state.state != SUBMITTED and state.machine_id != facts.id:
        if not job.returns:
            raise NotMine(f"the job {name} runs on {state.machine} in {state.zone}")
        run.state.attempt += 1  # its machine was taken without a word
        run.state.times.setdefault(LOST, state.synced_until or state.changed_at)
        run.say(f"{state.machine} was lost; this is attempt {run.state.attempt}")
    if not run.leads:
        machines.enter(run)
    if not run.has_begun:
        run.write_state(STARTING, machine=facts.name, machine_id=facts.id, zone=facts.zone)
        run.say(f"Started on {facts.name} in {facts.zone}")
    return run


def log_file(folder: Path, facts: Facts) -> Path:
    """The log of this attempt on this machine, which a worker that is started again goes on with."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    return min(folder.glob("*.log"), default=folder / f"{facts.name}.{began}.log")


def ending_of(run: Run, mirror: Mirror) -> Ending:
    """Prepare the machine and run the command; return how that ended."""
    if run.has_begun:
        run.command.kill_leftovers()
        mirror.take_over(run.job.is_devbox)
        died = "Berg's worker died while the command ran; the results were saved"
        died = ": ".join(filter(None, [died, out_of_memory()]))
        if not run.job.is_devbox:
            return noted_ending(run) or Ending("FAILED", died)
    try:
        if run.has_begun:  # a devbox that was off: its disk is as its user left it
            machines.meet_again(run)
            for feature in run.features:
                feature.prepare(run)
        else:
            prepare(run, mirror)
        return run_command(run, mirror)
    except EndEarly as error:
        return error.ending
    except install.Failed as error:
        return Ending("FAILED", str(error), error.code)
    except NotMine:
        raise
    except Exception as error:
        traceback.print_exc()
        text = str(error) if isinstance(error, BergError) else f"{type(error).__name__}: {error}"
        # A devbox that was on before can be started again: its disk is its user's.
        return Ending(STOPPED if run.has_begun and run.job.is_devbox else "FAILED", text)


def prepare(run: Run, mirror: Mirror) -> None:
    """Bring code and results to this disk, and install; what is there already stays."""
    code.check_out(run.repo, run.bucket, run.job.code)
    machines.gather(run, "come")
    machines.introduce(run)  # before any is ready: the first one's command may log in at once
    if restored := mirror.restore():
        run.say(f"Restored {restored} files of gs://{run.config.bucket}/berg_results/")
    for folder in (RESULTS / run.job.results, code.ROOT / "data", code.ROOT / "scratch"):
        folder.mkdir(parents=True, exist_ok=True)
    if run.leads:
        (RESULTS / run.job.results / RECORD).write_bytes(run.job.content())
    run.look()
    preparing = [each for each in run.features if type(each).prepare is not Feature.prepare]
    if preparing:
        run.write_state(INSTALLING)
    for feature in preparing:
        feature.prepare(run)
    try:
        install.run(run)
    except install.Failed as error:
        if not run.job.is_devbox:
            raise
        run.say(f"{error}. Go on by hand: berg ssh {run.job.name}")
    machines.gather(run, "ready")
    run.look()


def run_command(run: Run, mirror: Mirror) -> Ending:
    """Run the command, or nothing on a devbox, until it ends or is to end."""
    job, command = run.job, run.command
    run.variables = {
        "BERG_JOB": job.name.partition("/")[0],
        "BERG_BUCKET": run.config.bucket,
        "BERG_REPO_DIR": str(run.repo),
        "BERG_RESULTS_DIR": str(RESULTS / job.results),
        "BERG_DATA_DIR": str(code.ROOT / "data"),
        "BERG_SCRATCH_DIR": str(code.ROOT / "scratch"),
        "BERG_ROW": job.name.partition("/")[2],
        "BERG_ATTEMPT": str(run.state.attempt),
        "BERG_NUM_GPUS": str(job.gpus),
        "PYTHONUNBUFFERED": "1",
        "USER": "root",
        "LOGNAME": "root",
        **machines.variables(run),
        **install.variables(run.cwd),
        **job.env,
    }
    machines.write_mpi(run)
    link_results(run)
    waits = job.is_devbox or (run.rank > 0 and not job.each)
    run.words = ["sleep", "infinity"] if waits else ["bash", "-o", "pipefail", "-c", job.cmd]
    with ExitStack() as stack:
        for feature in run.features:
            stack.enter_context(feature.around(run))
        machines.write_login(run)
        run.look()
        BEGAN.write_text(run.title)
        KILLS.write_text(str(memory_kills()))
        # When it began, though that may be written later: a state that is less than a second old needs no
        # second look whether another machine has the job, and the first pass writes RUNNING.
        run.state.times.setdefault(RUNNING, jobs.now(run.bucket.time()))
        if time.monotonic() > run.asked_state + UPDATE:
            run.write_state(RUNNING, reason="")  # why the last attempt ended
        machines.tell(run, "running")
        run.say("Ready for berg ssh" if waits else f"Running: {job.cmd}")
        kept = {key: text for key, text in os.environ.items() if not key.startswith("PYTHON")}
        command.start(run.words, run.cwd, {**kept, **run.variables}, run.log)
        try:
            with every(lambda: pause(run, mirror), lambda: make_pass(run, mirror)):
                while (exit_code := command.poll()) is None:
                    if not run.ending and (ending := look(run)):
                        run.ending = ending
                        run.say(f"Stopping: {ending.reason}")
                        command.ask_to_end(ending.grace)
                    command.kill_late()
                    time.sleep(0.05)
                run.has_ended = True
                mirror.give_up()
        finally:
            if left := command.end_leftovers():
                run.say(f"Ended what the command left running: {left} process{'es' * (left > 1)}")
    if job.is_devbox:
        return run.ending or Ending(STOPPED, "somebody ended its process `sleep`")
    if run.ending:
        return replace(run.ending, exit_code=run.ending.exit_code or exit_code)
    if exit_code:
        return Ending("FAILED", reason_of(run, exit_code), exit_code, seconds=run.seconds)
    return Ending("SUCCEEDED", "", 0, seconds=run.seconds)


def link_results(run: Run) -> None:
    """Let a relative berg_results/… of the command lead to the results, unless the repository has such
    a folder.
    """
    if f"{RESULTS.name}/" not in run.job.cmd.replace(f"{RESULTS}/", ""):
        return
    link, git = run.cwd / RESULTS.name, run.repo / ".git"
    with contextlib.suppress(OSError):  # the disk may be full
        if not os.path.lexists(link):
            link.symlink_to(RESULTS)
            with (git / "info/exclude").open("a") as file:  # it is no change of the user's
                file.write(f"/{link.relative_to(git.parent)}\n")


def memory_kills() -> int:
    """How many processes the kernel has killed for want of memory."""
    rows = dict(row.split() for row in Path("/proc/vmstat").read_text().splitlines())
    return int(rows.get("oom_kill", 0))


def out_of_memory() -> str:
    """What to say if the kernel has killed a process for want of memory since the command began."""
    if not KILLS.exists() or memory_kills() <= int(KILLS.read_text()):
        return ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"the kernel ended a process, as the machine's {memory:.0f} GB of memory were used up"


def reason_of(run: Run, exit_code: int) -> str:
    """The exit code, and what failed in the command's own words."""
    with run.log.open("rb") as file:
        file.seek(max(0, run.log.stat().st_size - 20_000))
        said = reasons.of_command(file.read().decode(errors="replace"))
    return ": ".join(filter(None, [f"exit code {exit_code}", out_of_memory() or said]))


def make_pass(run: Run, mirror: Mirror) -> None:
    """Send the results as they are now; say in the state how new what the bucket has is."""
    if run.state.state != RUNNING:
        write_running(run, reason="")
    number = 0
    if run.job.machines > 1:
        machines.end_of_lost(run)
        number = machines.tick(run)
        at = number * machines.TICK + machines.SKEW * (run.rank > 0)
        while (seconds := at - run.bucket.time()) > 0:
            if run.has_ended:
                return
            time.sleep(min(seconds, 0.2))
    began, cpu = time.monotonic(), time.process_time()
    mirror.sync(number)
    run.pass_seconds = max(time.monotonic() - began, 3 * (time.process_time() - cpu))
    synced = jobs.now(mirror.at_ns / 1e9 + run.bucket.offset) if mirror.at_ns else ""
    if run.leads and synced and not run.ending and time.monotonic() > run.next_state:
        run.next_state = time.monotonic() + STATE
        write_running(run, synced_until=synced)


def write_running(run: Run, **changes: Any) -> None:
    """Write that the command runs; `look` ends it if another machine has the job."""
    try:
        run.write_state(RUNNING, **changes)
    except NotMine:
        run.is_taken = True


def pause(run: Run, mirror: Mirror) -> float:
    """Seconds until the next pass: few after one without a whole moment."""
    if run.job.machines > 1:
        return 0
    return AGAIN if mirror.waiting_since else PASS


def look(run: Run) -> Ending | None:
    """Why the job is to end: a user, Google, the time, another machine or a feature says so."""
    if run.is_taken:
        return Ending("KILLED", "another machine goes on with it", is_firm=True)
    looks: list[Callable[[Run], Ending | None]] = [killed_or_taken, out_of_time, machines.look]
    for each in (*looks, *(feature.look for feature in run.features)):
        if ending := each(run):
            return ending
    return None


def killed_or_taken(run: Run) -> Ending | None:
    """A user's `berg kill`, a preemption, or a shutdown from outside, as the metadata tell it."""
    if time.monotonic() < run.next_word and not SIGNALLED:
        return None
    run.next_word = time.monotonic() + LOOK
    facts = None
    with contextlib.suppress(requests.RequestException, ValueError, KeyError):
        facts = Facts.read()
    words, is_loss = facts.attributes if facts else {}, run.job.returns
    if words.get("ssh-keys", "") != run.facts.attributes.get("ssh-keys", ""):
        with contextlib.suppress(OSError):
            machines.let_in(words)  # another laptop's
        run.facts.attributes["ssh-keys"] = words.get("ssh-keys", "")
    name, _, number = run.job.name.partition("/")
    for word in (name, number or name, run.job.id):
        if user := words.get(f"berg-kill-{word}"):
            return Ending("KILLED", f"killed by {user}", is_firm=True)
    off = STOPPED if run.job.is_devbox else ""
    if words.get("berg-stop", "") not in ("", run.facts.attributes.get("berg-stop")):  # a new one
        return Ending(off or "KILLED", f"stopped by {words['berg-stop']}", is_firm=True)
    if facts and facts.preempted:
        return Ending(off or "LOST", "Google took the machine", None, TAKEN_GRACE, TAKEN, is_loss)
    if SIGNALLED and facts and facts.maintained:
        reason = "Google shut the machine down to maintain its host"
        return Ending(off or "LOST", reason, None, TAKEN_GRACE, TAKEN, is_loss)
    if SIGNALLED:
        reason = "the machine was shut down"
        return Ending(off or "KILLED", reason, None, TAKEN_GRACE, TAKEN, is_loss)
    return None


def out_of_time(run: Run) -> Ending | None:
    reserve = min(SAVING, run.job.max_seconds / 5)
    if run.seconds > reserve + min(GRACE, run.job.max_seconds / 10):
        return None
    reason = "it reached its time limit (--max-hours)"
    if run.state.state in (STARTING, INSTALLING):
        reason += f" while it was {run.state.state}"
    state = STOPPED if run.job.is_devbox else "FAILED"
    return Ending(state, reason, seconds=reserve, is_firm=True)


def finish(run: Run, mirror: Mirror, ending: Ending) -> Ending:
    """Send the last results, and hear of the other machines; return the ending that is written."""
    machines.tell(run, "ended", **machines.outcome(ending))
    with contextlib.suppress(NotMine):
        run.write_state(UPLOADING)
    save_commits(run)
    number = machines.tick(run) if run.job.machines > 1 else 0
    most = max(run.seconds - 10, 10)
    missing = {
        path.replace("\n", "\\n"): reason
        for path, reason in mirror.finish(
            min(ending.seconds, SAVING, most), number, min(ending.seconds, most)
        ).items()
    }
    for path, reason in [*missing.items()][:20]:
        run.say(f"Not saved as it is: {path or 'the results'}: {reason}")
    run.state.missing = dict([*missing.items()][:100])
    for path, name in [*mirror.rank_names.items()][:20]:
        run.say(f"A lower rank has written {path}, too: this machine's is {name} in the results")
    if "" in missing and ending.state == "SUCCEEDED":
        reason = f"results are not in the bucket: {missing['']}"
        ending = replace(ending, state="FAILED", reason=reason)
    if run.seconds > SAVING and not ending.is_loss and not SIGNALLED:
        for folder, about in written_elsewhere(run, ELSEWHERE)[:10]:
            run.say(f"Not saved, as it is outside of the results: {folder}: {about}")
            run.state.missing[f"{folder}/"] = f"outside of the results, {about}"
    ending = machines.join(run, ending)
    if machines.goes_last(run):
        machines.delete_lost(run)
    for feature in reversed(run.features):
        ending = feature.ended(run, ending)
    run.say(f"Job {run.job.name} {ending.state} {ending.reason}".rstrip())
    return ending


def save_commits(run: Run) -> None:
    """Put the commits that the command made into its results."""
    name = code.SAVED if run.leads else f"{run.rank}-{code.SAVED}"
    if run.has_begun and (run.repo / ".git").exists():
        with contextlib.suppress(BergError):
            sent, target = str(run.job.code["commit"]), RESULTS / run.job.results / name
            if saved := code.save_commits(run.repo, sent, target):
                run.say(f"{saved} are saved in {name}. After berg fetch: git fetch {name} '*:*'")


def written_elsewhere(
    run: Run, places: Sequence[str], seconds: float = SEARCH
) -> list[tuple[str, str]]:
    """Folders with files that the command wrote and the bucket has not, and how much that is.

    They go with the machine, and the next attempt does not find them. The largest folders come
    first. The checkout and each of `places` are searched for some seconds.
    """
    found: dict[str, tuple[int, int]] = {}
    if not run.has_begun:
        return []
    since = BEGAN.stat().st_mtime
    # Saved, searched as a place of its own, or there already.
    skipped = {str(HOME), str(RESULTS), str(run.repo), run.variables.get("BERG_SCRATCH_DIR", "")}
    skipped.add(str(code.ROOT / "berg"))
    for top in [run.repo, *map(Path, places)]:
        end = time.monotonic() + seconds
        for folder, names, files in os.walk(top):
            names[:] = [n for n in names if n not in NO_WORK and f"{folder}/{n}" not in skipped]
            group = str(Path(top, *Path(folder).relative_to(top).parts[:1]))
            for name in files:
                with contextlib.suppress(OSError):
                    about = os.lstat(f"{folder}/{name}")
                    if about.st_ctime > since and stat.S_ISREG(about.st_mode):
                        count, size = found.get(group, (0, 0))
                        found[group] = count + 1, size + about.st_size
            if time.monotonic() > end:
                break
    return [
        (folder, f"{count} file{'s' * (count != 1)}, {max(size, 1e5) / 1e6:.1f} MB")
        for folder, (count, size) in sorted(found.items(), key=lambda item: -item[1][1])
        if size > SMALL or not folder.startswith("/tmp")
    ]


def conclude(run: Run, ending: Ending) -> None:
    """Write the last state, when all bytes are in the bucket: then nothing needs this machine."""
    attempt = run.state.attempt + (ending.state == SUBMITTED)
    changes = {"reason": ending.reason, "exit_code": ending.exit_code, "attempt": attempt}
    run.write_state(ending.state, **changes)
    if machines.goes_last(run) and not run.leads:
        jobs.conclude(run.bucket, run.job, ending.state, ending.reason, ending.exit_code)


def log_and_samples(run: Run) -> Callable[[], None]:
    """What sends the log of a job, and samples of how busy this machine is."""
    samples = run.log.with_suffix(usage.ENDING)
    sampler = usage.Sampler(samples, run.command.spared)
    senders = [Sender(run, run.log), Sender(run, samples)]

    def step() -> None:
        sampler.look()
        for sender in senders:
            sender.send()

    return step


class Sender:
    """Sends what is new of a file that grows, to the job's logs."""

    def __init__(self, run: Run, file: Path):
        self.run, self.file, self.name = run, file, f"{jobs.log_prefix(run.job.name)}{file.name}"
        self.sent = self.generation = 0

    def send(self) -> None:
        if not self.file.exists():
            return
        with self.file.open("rb") as file:
            while True:
                file.seek(self.sent)
                if not (piece := file.read(PIECE)):
                    return
                try:
                    made = self.append(piece)
                except Changed:  # an earlier try whose answer was lost, or a worker that died
                    present = self.run.bucket.get(self.name)
                    if not present or checksum(file, 0, present.size) != present.crc:
                        raise
                    made = present
                self.sent, self.generation = made.size, made.generation
                if len(piece) < PIECE:  # what a command prints meanwhile is for the next time
                    return

    def append(self, piece: bytes) -> Object:
        """Append a piece to the object; return what it is then."""
        bucket = self.run.bucket
        if not self.generation:
            return bucket.write(self.name, piece, 0)
        part = bucket.write(f"{jobs.parts_prefix(self.run.job.name)}log-{self.run.rank}", piece)
        return bucket.extend(self.name, self.generation, part, {})


@contextlib.contextmanager
def every(
    seconds: Callable[[], float], step: Callable[[], Any], last: bool = False
) -> Iterator[None]:
    """Call `step` again and again in a thread meanwhile, and with `last` once more. Errors are printed,
    and end nothing, but NotMine.
    """
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            began = time.process_time()
            try_it()
            # A step that takes much CPU, of a folder with many files, makes its pause longer.
            wait = seconds()
            over.wait(wait and max(wait, 2 * (time.process_time() - began)))
        if last:
            try_it()

    def try_it() -> None:
        try:
            step()
        except NotMine:
            over.set()
        except Exception:
            with contextlib.suppress(OSError):  # the disk may be full
                traceback.print_exc()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    main()

"""Machines that wait after their job, and jobs that run on a machine that is there: --on.

--keep-warm     after its job a machine waits this long for the next one, and again after each
--keep-failed   the same after a failure, for its user
--on NAME       a job on such a machine, or on a devbox: a guest, whose host leaves it alone

A guest is an ordinary job. Its name and the hashes of its record and of Berg go over ssh; boot.py gives
it a unit and folders of its own. It ends before its host does, and its host waits as long as it runs.
Not covered: hosts of several machines, --docker and --mount of guests.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from berg import BergError, boot, gce, google, terminal
from berg import job as records
from berg.bucket import Bucket, trouble
from berg.feature import Feature
from berg.job import FAILED, RUNNING, SUCCEEDED, Job, State
from berg.options import duration, option, set_by
from berg.place import Machine

if TYPE_CHECKING:
    from berg.config import Config
    from berg.run import Plan, Spec
    from berg.worker import Ending, Run

MOST = 7 * 86400  # seconds that a machine waits
LAST = 420  # seconds between the limit of a guest and that of its host, which saves its own results
LEAST = 60  # seconds that are worth a start
LOOK = 1  # seconds between two looks at what a machine waits for
NOTE = 60  # seconds between two notes in the state that the machine still waits, and until when
CONNECT = 30  # seconds for ssh to reach a machine
# Options of a machine that is to be created, and features that are for one or need it alone.
OF_MACHINES = {"gpus": "-g", "gpu_type": "-t", "cpus": "-c", "machine_type": "--machine-type"}
OF_MACHINES |= {"zones": "-z", "regions": "--region", "disk_gb": "--disk-gb", "image": "--image"}
NOT_ON = ("Keep", "Ssd", "Tpu", "Spot", "Gke", "Flex", "Roce", "Iap", "Docker")
NOT_TOLD = ("startup-script", "ssh-keys", "enable-guest-attributes")  # metadata of a machine


# --- machines that wait


@dataclass
class Keep(Feature):
    keep_warm: float = option(
        "--keep-warm", default=0.0, type=duration, metavar="DURATION",
        help="After its job the machine waits this long for the next: --on NAME.",
    )  # fmt: skip
    keep_failed: float = option(
        "--keep-failed", default=0.0, type=duration, metavar="DURATION",
        help="After a failure it waits this long, for berg ssh.",
    )  # fmt: skip

    def is_due(self, plan: Plan) -> bool:
        return plan.job.is_devbox  # which takes guests as long as it runs

    def change(self, plan: Plan) -> None:
        if plan.job.is_devbox:
            if "command line" in (set_by("keep_warm"), set_by("keep_failed")):
                raise BergError("a devbox waits anyway. Leave out --keep-warm and --keep-failed")
            self.keep_warm = self.keep_failed = 0
            return
        if plan.job.rows:
            raise BergError("machines of a sweep do not wait. Leave out --keep-warm, --keep-failed")
        if max(self.keep_warm, self.keep_failed) > MOST:
            raise BergError(
                f"a machine waits for at most {MOST // 86400}d. Give less: --keep-warm 1h"
            )
        times = [(self.keep_warm, "after the job"), (self.keep_failed, "after a failure")]
        told = [f"{terminal.duration(seconds)} {when}" for seconds, when in times if seconds]
        plan.rows["Waits"] = f"{', '.join(told)}, within the limit; that costs as much"

    @contextlib.contextmanager
    def around(self, run: Run) -> Iterator[None]:
        if run.job.is_devbox:
            boot.open_door()
        try:
            yield
        finally:
            if run.job.is_devbox:
                shut(run, run.ending)

    def ended(self, run: Run, ending: Ending) -> Ending:
        seconds = waits(run, ending)
        if not seconds:
            return ending
        until = records.now(run.bucket.time() + seconds)
        run.state = replace(run.state, kept_until=until)  # is written with the ending
        run.say(f"This machine waits until {until}. On it: berg ssh {run.job.name}")
        boot.open_door()
        return replace(ending, then=lambda run: wait(run, seconds, ending.then))


def waits(run: Run, ending: Ending) -> float:
    """Seconds for which the machine of a job that ends so waits, unless a guest comes."""
    for each in run.features:
        if isinstance(each, Keep) and ending.state in (SUCCEEDED, FAILED) and not ending.is_loss:
            is_failed = ending.state == FAILED and each.keep_failed
            seconds = min(each.keep_failed if is_failed else each.keep_warm, run.seconds - LEAST)
            return 0.0 if ending.is_firm else max(0.0, seconds)
    return 0.0


def wait(run: Run, seconds: float, then: Callable[[Run], None] | None) -> None:
    """Wait for guests, and while one runs, until a user or Google ends it; say so in the state. Then do
    what others want done at the end.
    """
    from berg import worker

    ending, end, noted = None, time.monotonic() + seconds, time.monotonic()
    while not (ending := worker.killed_or_taken(run)) and run.seconds > LEAST:
        if boot.guests():
            end = time.monotonic() + min(seconds, run.seconds - LEAST)
        elif time.monotonic() > end and boot.close(is_forced=False):
            break
        if time.monotonic() > noted + NOTE:
            noted = time.monotonic()
            note(run, end - noted)
        time.sleep(LOOK)
    shut(run, ending)
    note(run, 0)
    if then:
        then(run)


def note(run: Run, seconds: float) -> None:
    """Say in the state that this machine is here now, and waits for so long."""
    now = run.bucket.time()
    with contextlib.suppress(BergError, *trouble()):  # it may be deleted
        until = records.now(now + seconds)
        run.write_state(run.state.state, kept_until=until, synced_until=records.now(now))


def shut(run: Run, ending: Ending | None) -> None:
    """Take no more guests, and let those that are here end in the time that their host has."""
    from berg import worker

    boot.close(is_forced=True)
    boot.end_guests(max(5, min(ending.seconds if ending else worker.SAVING, run.seconds - LEAST)))


# --- jobs on them


@dataclass
class Host:
    """A machine that takes guests."""

    job: Job
    machine: Machine
    left: float  # seconds that a guest may run


@dataclass
class On(Feature):
    on: str = option(
        "--on", default="", metavar="NAME",
        help="Run on the machine of NAME: a devbox, or one that waits (--keep-warm, --keep-failed).",
    )  # fmt: skip
    share: bool = option(
        "--share", default=False, is_flag=True, help="With --on, also beside another job."
    )
    zone: str = ""
    machine_id: str = ""

    def __post_init__(self) -> None:
        self.host: Host | None = None

    def is_due(self, plan: Plan) -> bool:
        job = plan.job
        return not (plan.ended or job.is_devbox or job.rows) and job.machines == 1

    def record(self) -> dict[str, Any]:
        return super().record() if self.on else {}

    def choose(self, config: Config, spec: Spec) -> tuple[gce.Shape, list[str]] | None:
        """What the host is: its zone may have none of the machines that are the default."""
        if not self.on:
            return None
        self.host = find_host(config, self.on)
        job, machine = self.host.job, self.host.machine
        return gce.Shape(machine.machine_type, job.gpus, job.gpu_type), [machine.zone]

    def change(self, plan: Plan) -> None:
        if not self.on:
            if self.share:
                raise BergError("--share is for a job on a machine that is there. Add: --on NAME")
            suggest(plan)
            return
        job = plan.job
        self.check(plan)
        host = self.host or find_host(plan.config, self.on)
        if plan.ended and host.machine.id != self.machine_id:
            raise BergError(
                f"the machine that {job.name} ran on is gone. On another one: berg rerun {job.name} "
                "--on NAME, or --on ''"
            )
        self.on, self.zone, self.machine_id = host.job.name, host.machine.zone, host.machine.id
        seconds = int(min(job.max_seconds, host.left))
        if seconds < job.max_seconds:
            plan.limited_by = f"what {self.on} has left"
        if not plan.ended:
            job.gpus, job.gpu_type, job.image = host.job.gpus, host.job.gpu_type, host.job.image
            job.machine_type, job.max_seconds = host.machine.machine_type, seconds
            job.features["On"] = self.record()
        plan.request["scheduling"]["maxRunDuration"] = {"seconds": str(seconds)}
        plan.zones, plan.create, plan.usd_per_hour = [self.zone], self.start, 0.0
        kind = "a devbox" if host.job.is_devbox else "which waits"
        plan.rows["Machine"] = f"{self.on} ({describe(host.job)}), {kind}; no new one is created"
        plan.rows |= {"Zones": self.zone, "Image": job.image.rpartition("/")[2]}
        plan.end = "the job ends"

    def check(self, plan: Plan) -> None:
        """Raise BergError for what a machine that is there cannot have; drop what a new one would."""
        job = plan.job
        wrong = [flag for name, flag in OF_MACHINES.items() if set_by(name) == "command line"]
        wrong += [f"the options of {type(each).__name__}" for each in plan.features
                  if type(each).__name__ in NOT_ON and each.is_used]  # fmt: skip
        wrong += ["--mount"] * any(getattr(each, "mount", []) for each in plan.features)
        wrong += ["-m"] * (job.machines > 1) + ["rows"] * bool(job.rows)
        if job.is_devbox:
            raise BergError("a devbox has a machine of its own. Leave out --on")
        if wrong:
            raise BergError(
                f"--on runs one job on the machine of {self.on}, as it is. Leave out {', '.join(wrong)}"
            )
        due = [each for each in plan.features if type(each).__name__ in NOT_ON]
        for each in due:
            plan.drop(each)

    def start(
        self, config: Config, job: Job, request: dict[str, Any], zones: list[str],
        say: Callable[[str], None],
    ) -> str:  # fmt: skip
        """Let the machine begin the job, if it is still the one that was chosen; return its zone."""
        from berg import ssh
        from berg.run import NameTaken

        say(f"Starting {job.name} on {self.on}")
        host = find_host(config, self.on)  # as it is now: this computer may have slept
        if host.machine.id != self.machine_id:
            raise BergError(f"{self.on} has another machine by now. Try again")
        state, _ = records.read_state(Bucket(config), job.name)
        if state.is_final or state.id != job.id:
            raise NameTaken(f"{job.name} was ended meanwhile. See: berg show {job.name}")
        host.machine.tell(config, kill_word(job), "")  # of an earlier attempt
        facts = {row["key"]: row["value"] for row in request["metadata"]["items"]}
        told = {key: text for key, text in facts.items() if key not in NOT_TOLD}
        told |= {"berg-seconds": str(job.max_seconds), "berg-until": str(time.time() + host.left)}
        script = f"{boot.GUESTS}/{job.name}.py"
        words = ["python3", "-I", script, "accept", json.dumps(told), *["share"] * self.share]
        command = f"mkdir -p {boot.GUESTS}; cat >{script} && {shlex.join(words)}; code=$?; rm -f {script}; exit $code"
        *login, address = ssh.login(config, host.job, host.machine)
        done = subprocess.run(
            [*login, "-o", f"ConnectTimeout={CONNECT}", address, command],
            input=facts["startup-script"], capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            said = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
            raise BergError(f"{self.on} did not take {job.name}: {said}. See: berg show {self.on}")
        return host.machine.zone

    def forget(self, config: Config, job: Job) -> None:
        """Let the job end, if it runs on its host."""
        if self.on:
            machine = gce.machine(config, self.zone, self.machine_id)
            if machine and machine.job == self.on:
                machine.tell(config, kill_word(job), config.user)

    def ended(self, run: Run, ending: Ending) -> Ending:
        if run.state.missing and boot.IS_GUEST:
            (boot.BERG / "unsaved").touch()
            run.say(f"What was not saved stays on {self.on}: {boot.BERG.parent}")
        return ending


def kill_word(job: Job) -> str:
    """Of a guest: another one may have its name on the same host by the time it is said."""
    return f"berg-kill-{job.id}"


def find_host(config: Config, name: str) -> Host:
    """The machine of a devbox or of a job that has ended, as it is now; raise BergError if it takes no
    job.
    """
    from berg import jobs

    state = jobs.find(config, name)
    job, machines = records.read_job(Bucket(config), state.name), gce.machines(config, state.name)
    if reason := obstacle(config, state, job, machines):
        raise BergError(f"--on {name}: {reason}")
    machine = machines[0]
    row = google.find(config, machine.path, fields="resourceStatus(scheduling)") or {}
    ends = row.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp", "")
    left = -records.age(ends) if ends else job.max_seconds
    left -= min(LAST, job.max_seconds / 3)
    if left < LEAST:
        raise BergError(
            f"--on {name}: Google ends its machine too soon (--max-hours). Start another"
        )
    return Host(job, machine, left)


def obstacle(config: Config, state: State, job: Job, machines: Sequence[Machine]) -> str:
    """Why a machine takes no job; "" if it does."""
    name, start = state.name, "Start one: berg devbox, or --keep-warm 30m with a job"
    if job.user != config.user:
        return f"it is {job.user}'s. {start}"
    if job.machines > 1:
        return f"it has {job.machines} machines, not one. {start}"
    if job.is_devbox and state.state != RUNNING:
        return f"it is {state.state}. See: berg show {name}, berg start {name}"
    if not job.is_devbox and not state.is_final:
        return (
            f"it is {state.state}, and its machine is its own. Wait for its end: berg wait {name}"
        )
    if not machines or not (job.is_devbox or state.waits):
        return f"it is {state.state}, and has no machine that waits. {start}"
    if machines[0].status != "RUNNING":
        return f"its machine is {machines[0].status}. {start}"
    return ""


def describe(job: Job) -> str:
    return job.gpu_type or job.machine_type


def suggest(plan: Plan) -> None:
    """Say in the plan which machines of the user wait that are like the one that it would create."""
    job, found = plan.job, []
    with contextlib.suppress(BergError, google.GoogleError):  # a plan is good without
        for machine in gce.machines(plan.config):
            is_like = machine.machine_type == job.machine_type and machine.is_on
            if machine.user != plan.config.user or machine.is_devbox or not is_like:
                continue
            state, _ = records.read_state(Bucket(plan.config), machine.job)
            if state.waits and state.gpus == (f"{job.gpus} x {job.gpu_type}" if job.gpus else ""):
                left = terminal.duration(state.waits).replace("m", " min")
                found.append(
                    f"{state.name} is warm ({describe(job)}, {left} left): --on {state.name}"
                )
    if found:
        plan.rows["Warm"] = "\n".join(found)

"""One attempt at a job on this machine: its state, its log, its mirrors, and the process that runs.

Threads mirror the log and the results, and wait for word from outside: somebody kills the job, Google
preempts the machine, the time is up.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

from berg import BergError, boot, cluster, config, job
from berg.storage import Bucket, Changed
from berg.sync import Mirror

RESULTS = boot.ROOT / "berg_results"
COMMAND_FILE = boot.BERG / "command"  # process group of what runs, for a worker that comes after this one
GRACE = 30  # seconds that a command has between SIGTERM and SIGKILL
PREEMPTED = ("FAILED", "Google preempted the machine")
LOG_INTERVAL, RESULTS_INTERVAL, STATE_INTERVAL = 2, 10, 30  # seconds


class Stopped(Exception):
    """The job ends before its command does."""


class Ended(Exception):
    """Somebody else ended the job; its state is not ours to write."""


class Attempt:
    """One job on this machine: its state, its log, its mirrors, and the process that runs right now."""

    def __init__(self, name: str):
        self.name = name
        self.machine = boot.Machine()
        settings = config.load(
            project=self.machine.project, bucket=self.machine.bucket, endpoint=self.machine.endpoint or None
        )
        self.bucket = Bucket(settings)
        # Until the job has been read, one that says nothing but that its machine is to be deleted.
        self.job = job.Job(name, "", "", "", "", "", "")
        self.log = Mirror(self.machine.log.parent, self.bucket, job.log_prefix(name))
        self.results = Mirror(RESULTS, self.bucket, "berg_results/")
        self.process: subprocess.Popen | None = None
        self.nodes: list[cluster.Node] = []
        self.node = cluster.Node(self.machine.name, 0)
        self.summary: dict[str, str] = {"phase": "UP"}  # what the other machines see of this one
        # The machine that leads writes the job's state.
        self.leads = self.machine.name.removeprefix(name).strip("-0") == ""
        self.next_look = 0.0  # time.monotonic() from which a machine that does not lead looks who does
        self.outcome: tuple[str, str] | None = None  # final state and reason, once the job is to stop
        self.lock = threading.Lock()
        self.stopped = threading.Event()  # the outcome is known
        self.done = threading.Event()  # the mirrors are to end
        self.mirrors: list[threading.Thread] = []
        self.reachable = threading.Thread()
        self.state = self.read_state()

    def say(self, text: str) -> None:
        self.machine.say(text)

    def read_state(self) -> job.State:
        stored = self.bucket.get(job.state_path(self.name))
        if stored is None:
            raise BergError(f"there is no job {self.name!r} in gs://{self.bucket.name}")
        self.generation = stored.generation
        self.state = job.state_from_json(stored.metadata["state"])
        return self.state

    def write_state(self, **changes) -> None:
        """Record how the job goes; raises Ended if somebody else wrote that it is over."""
        if not self.leads:
            return
        with self.lock:
            for key, value in changes.items():
                setattr(self.state, key, value)
            text = self.state.to_json()
            try:
                path = job.state_path(self.name)
                self.generation = self.bucket.write(path, text, self.generation, metadata={"state": text})
            except Changed:
                raise Ended(f"the state of {self.name} was written by somebody else; leaving it to them") from None

    def start_thread(self, target, *arguments) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        return thread

    def mirror_log(self) -> None:
        self.mirrors.append(self.start_thread(self.log.run, LOG_INTERVAL, self.done))

    def mirror_results(self) -> None:
        self.mirrors.append(self.start_thread(self.keep_results))

    def stop_mirrors(self) -> None:
        self.done.set()
        for thread in self.mirrors:
            thread.join()

    def stop(self, state: str, reason: str) -> None:
        """End the job soon: SIGTERM to what runs, SIGKILL after the grace; the first reason stays."""
        if self.outcome is None:
            self.outcome = state, reason
            self.say(f"Stopping: {reason}")
            self.stopped.set()
            self.start_thread(self.end_process)

    def pause(self, seconds: float | None = None) -> None:
        """Wait, for ever without `seconds`; raises Stopped when the job is to end."""
        if self.stopped.wait(seconds):
            raise Stopped

    def end_process(self) -> None:
        process = self.process
        if process and process.poll() is None:
            end_group(process.pid, GRACE)

    def execute(self, command: list[str], **options) -> int:
        """Run a command in a process group of its own, its output in the log; returns its exit code."""
        if self.outcome:
            raise Stopped
        with self.machine.log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **options,
            )
        COMMAND_FILE.write_text(str(self.process.pid))
        if self.outcome:
            self.end_process()
        code = self.process.wait()
        end_group(self.process.pid, 5)  # what it left in the background would go on writing results
        COMMAND_FILE.unlink(missing_ok=True)
        return code

    def watch(self) -> None:
        """Wait for word from outside: it arrives through the machine's own metadata."""
        query = "instance/?recursive=true&wait_for_change=true&timeout_sec=50&last_etag="
        etag = "0"
        while not self.done.is_set():
            try:
                content, headers = boot.request(boot.METADATA + query + etag, headers=boot.FLAVOR, attempts=1)
                etag, values = headers.get("ETag", "0"), json.loads(content)
            except (OSError, ValueError):
                self.done.wait(1)
                continue
            if values.get("attributes", {}).get("berg-kill"):
                self.stop("KILLED", f"killed by {values['attributes']['berg-kill']}")
            elif values.get("preempted") == "TRUE":
                self.stop(*PREEMPTED)
            with contextlib.suppress(OSError):  # a full disk
                cluster.install_keys(values.get("attributes", {}).get("ssh-keys", ""))

    def limit_time(self) -> None:
        """Stop the job before Google deletes the machine at its limit: the results come first."""
        limit = self.job.max_run_seconds
        if limit and not self.done.wait(limit - min(300, limit / 5)):
            self.stop("FAILED", "it ran into its time limit (--max-hours)")

    def keep_results(self) -> None:
        last = time.monotonic()
        while not self.done.wait(RESULTS_INTERVAL):
            self.results.sync()
            if time.monotonic() - last >= STATE_INTERVAL and not self.results.failed:
                last = time.monotonic()
                try:
                    self.write_state(synced_until=self.results.synced_until)
                except Ended as error:
                    self.stop("KILLED", str(error))
                except Exception as error:  # the next pass tries again
                    self.say(f"The state could not be written: {error}")


def end_group(group: int, grace: float) -> None:
    """SIGTERM to a process group, SIGKILL to what is left of it after `grace` seconds."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
        end = time.monotonic() + grace
        while time.monotonic() < end:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


def judge(exit_code: int, where: str = "") -> tuple[str, str]:
    """Final state and reason for the exit code of a command that nobody stopped."""
    if exit_code == 0:
        return "SUCCEEDED", ""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number in signal.valid_signals():
        reason = f"the command was killed by {signal.Signals(number).name}"
        if number == signal.SIGKILL:
            reason += ", which is often the kernel when memory runs out"
    else:
        reason = f"the command failed with exit code {exit_code}"
    if where:
        reason += f" on {where}"
    return "FAILED", reason


def full_disk() -> str:
    """What the reason of a failure should add, if a disk of this machine is full."""
    for folder in (RESULTS, boot.ROOT, Path("/tmp")):
        if folder.exists() and shutil.disk_usage(folder).free < 1 << 20:
            return f"; the machine's disk is full ({folder}): ask for more with --disk-gb"
    return ""

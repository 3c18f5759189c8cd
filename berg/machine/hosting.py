"""The jobs that a devbox runs next to its people (berg run --on), each in a folder of its own.

As root a job has its own checkouts, environments, results and data sets in the usual places, by
mounts that only its processes see. Home, /tmp, the network, the GPUs and what pip installs into the
image's python are those of the devbox. A job ends with its devbox, and not with its laptop. What it
could not save by then, the next start of the devbox saves. Its folder stays until all is saved.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

from berg import job, states
from berg.google.storage import Bucket
from berg.machine import boot, hosted, keeper
from berg.machine.outcome import NOTICE
from berg.machine.process import COMMAND_FILE, command_mark, start_thread

FOLDER = boot.BERG / "jobs"
OWN = ("code", "berg_env", "berg_results", "data")  # in the folder of users, and below a job's
BIND = """
own=$1 root=$2
shift 2
for each in code berg_env berg_results data; do
    mkdir -p "$own/$each" "$root/$each"
    mount --bind "$own/$each" "$root/$each"
done
exec "$@"
"""
LAST = 5  # seconds for the rest of a job that ends with its devbox
BEGINS = 120  # seconds after its submit in which a job may begin; its laptop waits for 60
SILENT = 30  # seconds after the end of a killed job, in which its worker should have seen it


class Hosting:
    """The jobs on this devbox."""

    def __init__(self, bucket: Bucket, box: str):
        self.bucket, self.box = bucket, box
        self.known: dict[str, dict[str, str]] = {}  # job -> what the metadata say of it
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.begun: set[str] = set()  # since this machine's last boot
        self.threads: dict[str, threading.Thread] = {}  # job -> the one that keeps it
        self.lock = threading.Lock()
        self.is_ending = False

    def look(self, attributes: dict[str, str]) -> None:
        """Begin the jobs that a laptop requested in this machine's metadata since the last look,
        and end those that were killed and do not end.
        """
        for name, facts in job.hosted(attributes).items():
            if job.NAME.fullmatch(name) and self.known.get(name) != facts:
                self.known[name] = facts
                claim, before = facts.get(job.CLAIM, ""), self.threads.get(name)
                self.threads[name] = start_thread(self.keep, name, claim, before)
        for name in [*self.running]:
            if attributes.get(f"berg-kill-{name}"):
                start_thread(self.end_silent, name)

    def keep(self, name: str, claim: str, before: threading.Thread | None) -> None:
        """Run a job that no worker has begun, save what one left, and write how the job ended if
        its worker did not. `before` ends an earlier attempt at the job.
        """
        if before:
            before.join()
        stored, why = self.read(name), f"its devbox {self.box} went off"
        if stored and not stored.is_damaged and stored.state.state == "SUBMITTED":
            if claim not in ("", stored.state.claim):
                return  # of another submit, which is about to name it in the metadata
            is_late = job.clock() - stored.written_at > BEGINS
            why = f"its devbox {self.box} did not begin it in time" if is_late else self.run(name)
        elif name not in self.begun:  # after a boot this number is another process
            (FOLDER / name / "berg" / COMMAND_FILE.name).unlink(missing_ok=True)
        if is_left(name) and not is_over(self.read(name)):
            self.run(name, why)
            if self.is_ending:
                return  # the next start saves it
        self.conclude(name, why)

    def read(self, name: str) -> states.Stored | None:
        """Return the state of a job, once that is possible."""
        while True:
            with contextlib.suppress(Exception):  # the network
                return states.read(self.bucket, name)
            time.sleep(1)

    def run(self, name: str, ended: str = "") -> str:
        """Run a job, or save what is left of one that `ended` for this reason; return why that is
        over, if the job's state does not say it.
        """
        with self.lock:
            if self.is_ending:
                return f"its devbox {self.box} ended before it began"
            try:
                process = self.running[name] = begin(name, ended)
            except OSError as error:  # a full disk
                return f"its devbox {self.box} cannot begin it: {error}"
        self.begun.add(name)
        code = process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a worker whose boot was killed
        del self.running[name]
        if self.is_ending:
            return f"its devbox {self.box} was stopped or killed"
        return f"berg's boot of it on {self.box} ended with exit code {code}"

    def conclude(self, name: str, why: str) -> None:
        """Write that a job has failed unless it has ended; remove its folder if all is saved."""
        while not is_over(stored := self.read(name)):
            assert stored
            failed = replace(stored.state, state="FAILED", reason=why, finished_at=job.now())
            with contextlib.suppress(Exception):
                states.replaced(self.bucket, stored, failed)
        is_killed = stored is None or stored.state.state == "KILLED"
        if not (stored and stored.state.lost) and (is_killed or not is_left(name)):
            shutil.rmtree(FOLDER / name, ignore_errors=True)

    def end_silent(self, name: str) -> None:
        """Kill the processes of a job that a laptop has ended, if its worker did not see it."""
        process = self.running.get(name)
        with contextlib.suppress(Exception):  # the network; a later look tries again
            stored = states.read(self.bucket, name)
            ended = stored.state.finished_at if stored and is_over(stored) else ""
            if process and ended and job.age_seconds(ended) > SILENT:
                keeper.kill_below(process.pid)
                process.kill()

    def stop(self) -> None:
        """Let all jobs end, because the devbox does."""
        with self.lock:
            self.is_ending = True
        for each in list(self.running.values()):
            each.terminate()

    def wait(self) -> None:
        """Wait until the jobs have ended, and kill those that take longer than a notice."""
        end = time.monotonic() + NOTICE + LAST
        for thread in list(self.threads.values()):
            thread.join(max(end - time.monotonic(), 0))
        for each in list(self.running.values()):
            keeper.kill_below(each.pid)
            each.kill()

    def is_busy(self) -> bool:
        return bool(self.running)


def is_over(stored: states.Stored | None) -> bool:
    return stored is None or stored.is_damaged or stored.state.final


def is_left(name: str) -> bool:
    """Return whether the folder of a job may have what the bucket has not: its command began."""
    return (FOLDER / name / "berg" / command_mark(name).name).exists()


def begin(name: str, ended: str) -> "subprocess.Popen[bytes]":
    """Start the boot of a job in its folder; of one that `ended`, only to save what is left."""
    own = FOLDER / name
    own.mkdir(parents=True, exist_ok=True)
    folders = [path for path in sys.path if path.startswith(str(boot.BERG))]
    code = f"import sys; sys.path[:0] = {folders!r}; from berg.machine.hosted import main; main()"
    command = [sys.executable, "-I", "-S", "-c", code]
    variables = {**os.environ, hosted.NAME: name, hosted.ENDED: ended}
    if "BERG_ROOT" in os.environ:  # not root: its /root is a folder
        variables["BERG_ROOT"] = str(own)
    else:
        variables["BERG_FOLDER"] = str(own / "berg")
        command = [
            "unshare",
            "--mount",
            "sh",
            "-ec",
            BIND,
            "sh",
            str(own),
            str(boot.ROOT),
            *command,
        ]
    return subprocess.Popen(
        command, env=variables, stdin=subprocess.DEVNULL, start_new_session=True, cwd="/"
    )

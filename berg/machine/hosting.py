"""The jobs that a devbox runs next to its people (berg run --on), each in a folder of its own.

As root a job has its own checkouts, environments, results and data sets in the usual places, by
mounts that only its processes see. Home, /tmp, the network, the GPUs and what pip installs into the
image's python are those of the devbox. A job ends with its devbox, and not with its laptop.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace

from berg import job, states
from berg.google.storage import Bucket, Changed
from berg.machine import boot, hosted, keeper
from berg.machine.outcome import NOTICE
from berg.machine.process import start_thread

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


class Hosting:
    """The jobs on this devbox."""

    def __init__(self, bucket: Bucket, box: str):
        self.bucket, self.box = bucket, box
        self.known: dict[str, str] = {}  # job -> the hash of its record
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.threads: list[threading.Thread] = []
        self.lock = threading.Lock()
        self.is_ending = False

    def look(self, attributes: dict[str, str]) -> None:
        """Begin the jobs that a laptop requested in this machine's metadata since the last look."""
        for name, facts in job.hosted(attributes).items():
            record = facts.get("berg-job-sha256", "")
            if job.NAME.fullmatch(name) and self.known.get(name) != record:
                self.known[name] = record
                self.threads.append(start_thread(self.keep, name))

    def keep(self, name: str) -> None:
        """Run a job that no worker has begun; write how it ended if its worker did not."""
        why = ""
        while True:
            with contextlib.suppress(Exception):  # the network
                stored = states.read(self.bucket, name)
                is_new = stored and not stored.is_damaged and stored.state.state == "SUBMITTED"
                why = why or (self.run(name) if is_new else f"its devbox {self.box} went off")
                self.conclude(name, why)
                return
            time.sleep(1)

    def run(self, name: str) -> str:
        """Run a job; return why it has ended, if it does not say that itself."""
        with self.lock:
            if self.is_ending:
                return f"its devbox {self.box} ended before it began"
            self.running[name] = begin(name)
        code = self.running[name].wait()
        del self.running[name]
        if self.is_ending:
            return f"its devbox {self.box} was stopped or killed"
        return f"berg's boot of it on {self.box} ended with exit code {code}"

    def conclude(self, name: str, why: str) -> None:
        """Write that a job has failed unless it has ended; remove its folder if all is saved."""
        while True:
            stored = states.read(self.bucket, name)
            if stored is None or stored.is_damaged or stored.state.final:
                break
            failed = replace(stored.state, state="FAILED", reason=why, finished_at=job.now())
            with contextlib.suppress(Changed):
                states.replaced(self.bucket, stored, failed)
        if stored is None or not stored.state.lost:
            shutil.rmtree(FOLDER / name, ignore_errors=True)

    def stop(self) -> None:
        """Let all jobs end, because the devbox does."""
        with self.lock:
            self.is_ending = True
        for each in list(self.running.values()):
            each.terminate()

    def wait(self) -> None:
        """Wait until the jobs have ended, and kill those that take longer than a notice."""
        end = time.monotonic() + NOTICE + LAST
        for thread in self.threads:
            thread.join(max(end - time.monotonic(), 0))
        for each in list(self.running.values()):
            keeper.kill_below(each.pid)
            each.kill()

    def is_busy(self) -> bool:
        return bool(self.running)


def begin(name: str) -> "subprocess.Popen[bytes]":
    """Start the boot of a job in its folder."""
    own = FOLDER / name
    own.mkdir(parents=True, exist_ok=True)
    folders = [path for path in sys.path if path.startswith(str(boot.BERG))]
    code = f"import sys; sys.path[:0] = {folders!r}; from berg.machine.hosted import main; main()"
    command = [sys.executable, "-I", "-S", "-c", code]
    variables = {**os.environ, hosted.NAME: name}
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

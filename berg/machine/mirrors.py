"""The mirrors of an attempt's log and results, and the threads that keep them up to date."""

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from berg import job
from berg.google.mirror import Mirror
from berg.google.storage import Bucket
from berg.machine import boot
from berg.machine.process import RESULTS, start_thread


@dataclass
class Mirrors:
    log: Mirror
    results: Mirror
    restored: Path  # file that says what was restored to this disk
    done: threading.Event = field(default_factory=threading.Event)  # the mirrors are to end
    # The next pass over the results is not to wait.
    hurry: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)
    last_log_pass: threading.Thread = field(default_factory=threading.Thread)
    turn: threading.Lock = field(default_factory=threading.Lock)  # of who uses `results`
    trouble: str = ""  # why results are not in the bucket yet

    def start(self, target: Callable[..., None], *arguments: object) -> None:
        """Run a mirror in a thread until `done`."""
        self.threads.append(start_thread(target, *arguments))

    def stop(self) -> None:
        """End the mirrors, and wait for their threads."""
        self.done.set()
        self.hurry.set()
        for thread in self.threads:
            thread.join()


def mirrors_of(name: str, machine: boot.Machine, bucket: Bucket) -> Mirrors:
    """Return the mirrors of a job on this machine."""
    writer = f"{name}/{disk()}"
    restored = boot.BERG / f"restored-{name}"
    log = Mirror(machine.log.parent, bucket, job.log_prefix(name), writer)
    results = Mirror(
        RESULTS,
        bucket,
        "berg_results/",
        writer,
        records=job.folders_prefix(name),
        restored=restored,
    )
    return Mirrors(log, results, restored)


def disk() -> str:
    """Return what tells this machine's disk from others: objects say whose files they hold."""
    file = boot.BERG / "disk"
    if not file.exists():
        file.write_text(secrets.token_hex(8))
    return file.read_text()

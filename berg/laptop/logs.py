"""The logs of a job: read, and followed as they grow."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from berg import BergError, job
from berg.config import Config
from berg.google.storage import Bucket
from berg.laptop import jobs

INTERVAL = 1.0  # seconds between two looks at a job, at most
GROWTH = 1.2  # of the pause between two looks, while nothing changes
LISTING = 10.0  # seconds until a new log is noticed, at most
BLOCK = 8 << 20
HANDOVER = (b"[berg] Installing: ", b"[berg] Running: ")  # from here on only the log has every line


def chunks(config: Config, name: str, machine: str | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield the log of a job from the bucket, all its attempts as one, with the machine's name if
    there are several. Before there is a log, the serial console of its machine.
    """
    found, bucket = jobs.find(config, name), Bucket(config)
    logs = jobs.logs_of(bucket, found.name, machine)
    if not logs:
        yield "", console_of(config, found, machine)
    several, last = jobs.is_cluster(found), b"\n"
    for log in logs:
        if not several and not last.endswith(b"\n"):  # an attempt was cut off
            yield "", b"\n"
        source = jobs.machine_of(log) if several and not machine else ""
        for chunk in blocks_of(bucket, log):
            yield source, chunk
            last = chunk


def console_of(config: Config, found: jobs.Entry, name: str | None) -> bytes:
    """Return the serial console of a job's first machine, or of the one named."""
    for machine in [] if found.summary.on else found.machines:
        if not machine.is_crash_looping and name in (None, machine.name):
            return found.place.console(config, machine).encode()
    reason = found.state.reason if found.state else ""
    why = ": ".join(filter(None, [found.status, reason]))
    raise BergError(f"{name or found.name} left no log: it never reached its worker ({why})")


def blocks_of(bucket: Bucket, log: str) -> Iterator[bytes]:
    """Yield the bytes of a log; the next block is downloaded while one is printed."""
    start = 0
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(bucket.read_from, log, start, start + BLOCK)
        while block := coming.result():
            start += len(block)
            coming = pool.submit(bucket.read_from, log, start, start + BLOCK)
            yield block


def follow(
    config: Config,
    name: str,
    write: Callable[[str, bytes], None] | None,
    machine: str | None,
    on_change: Callable[[jobs.Entry], None],
) -> job.State | None:
    """Write the logs of a job as they grow until it ends; return its final state.

    `write` gets the machine's name, "" if the job has only one, and bytes: before there is a log,
    those of the serial console. None: no log is read. `on_change` gets the job of each look. A
    machine without a job is followed until it is gone, and the state is None. Raises BergError if
    the state is deleted meanwhile.
    """
    following = Following(Bucket(config), write, machine) if write else None
    found, before = None, None
    status, pause = "", INTERVAL
    while True:
        # The state before the log, which is complete once the state is final.
        if found and found.machine:
            found = jobs.look_again(config, found)
        else:
            found = jobs.find(config, name)
        on_change(found)
        before = found.state or before
        if following:
            following.look(config, found)
        if is_at_its_end(found):
            if before and not found.state:
                raise BergError(
                    f"the state of {found.name} is gone from the bucket, and its machine is gone. "
                    f"What it saved: berg fetch {before.job.results_dir or found.name}"
                )
            return found.state
        pause = min(pause * GROWTH, INTERVAL)
        if found.status != status:
            status, pause = found.status, pause_after_change(found, has_log=following is not None)
        time.sleep(pause)


def pause_after_change(found: jobs.Entry, has_log: bool) -> float:
    """Return the seconds until the next look. The next change may be near, as many jobs are short,
    but with a log each look is expensive.
    """
    is_ending = found.state and (found.state.final or found.state.state == "UPLOADING")
    return INTERVAL / 4 if is_ending or not has_log else INTERVAL


def is_at_its_end(found: jobs.Entry) -> bool:
    """Return whether nothing more comes: a job has ended, and its machines are off, going, kept, or
    left to a person; a machine without a job is gone.
    """
    if found.state is None:
        return found.machine is None
    if not found.state.final:
        return False
    if found.summary.kept or found.state.kept_seconds or found.state.state == "LOST":
        return True
    return all(machine.status in jobs.GOING for machine in found.machines)


@dataclass
class Following:
    """What was read of a job's logs so far, and where it is written to."""

    bucket: Bucket
    write: Callable[[str, bytes], None]
    machine: str | None  # None: the logs of all machines
    logs: list[str] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    last: bytes = b"\n"  # the end of what was written
    console: str = ""
    shown: list[bytes] = field(default_factory=list)  # lines of the console: the log repeats them
    # The last listing of logs: status and attempt of the job then, when the next is due, the pause.
    stage: tuple[str, int] = ("", 0)
    due: float = 0.0
    pause: float = 0.0

    def look(self, config: Config, found: jobs.Entry) -> None:
        """Write what came since the last look."""
        several = jobs.is_cluster(found) and not self.machine
        self.list_logs(found)
        for log in self.logs:
            self.read_log(log, several)
        if not self.offsets and found.machine and not (several or found.summary.on):
            output = found.place.console(config, found.machine)
            self.read_console(output, has_job=found.state is not None)

    def list_logs(self, found: jobs.Entry) -> None:
        """List the logs if that is due: rarely while nothing changes, as it costs twelve times as
        much as a look at one log.
        """
        stage = (found.status, found.state.attempt if found.state else 0)
        is_new = stage != self.stage
        if not is_new and time.monotonic() < self.due:
            return
        logs = jobs.logs_of(self.bucket, found.name, self.machine)
        self.pause = min(self.pause * 2, LISTING)
        if is_new or logs != self.logs:
            self.pause = INTERVAL
        self.logs, self.stage, self.due = logs, stage, time.monotonic() + self.pause

    def read_log(self, log: str, several: bool) -> None:
        """Write what a log has grown by."""
        if not several and log not in self.offsets and not self.last.endswith(b"\n"):
            self.write("", b"\n")  # an attempt was cut off
        start = self.offsets.setdefault(log, 0)
        while chunk := self.bucket.read_from(log, start, start + BLOCK):
            start += len(chunk)
            self.offsets[log], self.last = start, chunk
            self.write(jobs.machine_of(log) if several else "", self.without_shown(chunk))

    def without_shown(self, chunk: bytes) -> bytes:
        """Return a part of a log without its first lines that the console had."""
        while True:
            line = chunk[: chunk.find(b"\n") + 1]
            if line not in self.shown:
                return chunk
            del self.shown[: self.shown.index(line) + 1]
            chunk = chunk[len(line) :]

    def read_console(self, output: str, has_job: bool) -> None:
        """Write new lines of the console, as far as it has every line."""
        for text in jobs.STARTUP_LINE.findall(output.removeprefix(self.console)):
            if has_job and self.shown and self.shown[-1].startswith(HANDOVER):
                break
            self.shown.append(f"[berg] {text}\n".encode())
            self.write("", self.shown[-1])
        self.console = output

"""The logs of a job: read, and followed as they grow."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from berg import BergError, job
from berg.config import Config
from berg.google.storage import Bucket
from berg.job import Machine
from berg.laptop import jobs

LISTING = 10.0  # seconds, at most, after which a log is seen that began meanwhile
BLOCK = 8 << 20
GROWTH = 1.2  # of the pause between two looks, while nothing changes
HANDOVER = (b"[berg] Installing: ", b"[berg] Running: ")  # from here on only the log has every line


def chunks(config: Config, name: str, machine: str | None = None) -> Iterator[tuple[str, bytes]]:
    """Return the log of a job from the bucket, all its attempts as one, with the machine's name
    where there are several.

    Before it exists, the serial console of its machine.
    """
    found, bucket = jobs.find(config, name), Bucket(config)
    logs = jobs.logs_of(bucket, found.name, machine)
    if not logs:
        consoles = with_console(found, machine)
        if not consoles:
            raise without_log(found, machine or name)
        yield "", found.place.console(config, consoles[0]).encode()
    several, last = jobs.is_cluster(found), b"\n"
    for log in logs:
        if not several and not last.endswith(b"\n"):  # an attempt that was cut off
            yield "", b"\n"
        source = jobs.machine_of(log) if several and not machine else ""
        for chunk in blocks_of(bucket, log):
            yield source, chunk
            last = chunk


def with_console(found: jobs.Entry, name: str | None) -> list[Machine]:
    """Return the machines of a job, or the one of that name, that may have written something."""
    begun = [each for each in found.machines if not each.is_crash_looping]
    return [each for each in begun if name in (None, each.name)]


def without_log(found: jobs.Entry, name: str) -> BergError:
    """Return that a job left no log, and why, where that is known."""
    reason = found.state.reason if found.state else ""
    said = ": ".join(filter(None, [found.status, reason]))
    return BergError(f"{name} left no log: it never reached its worker ({said})")


def blocks_of(bucket: Bucket, log: str) -> Iterator[bytes]:
    """Yield the bytes of a log; the next block comes while one is printed."""
    start = 0
    with ThreadPoolExecutor(1) as beside:
        coming = beside.submit(bucket.read_from, log, start, start + BLOCK)
        while block := coming.result():
            start += len(block)
            coming = beside.submit(bucket.read_from, log, start, start + BLOCK)
            yield block


def follow(
    config: Config,
    name: str,
    write: Callable[[str, bytes], None] | None,
    machine: str | None = None,
    interval: float = 1.0,
    on_change: Callable[[jobs.Entry], None] = lambda found: None,
) -> job.State | None:
    """Write the logs of a job as they grow until the job is over; return its final state.

    `write` gets the machine's name, "" where the job has only one, and bytes; without it no log is
    read. Before there is a log it gets what the machine writes to its serial console. A machine
    without a job is followed until it is gone, and the state is None; a job whose state is deleted
    as well, which then is a BergError. `on_change` gets what is found with each look.
    """
    following = write and Following(Bucket(config), write, machine, interval)
    pace = Pace(interval, is_quick=write is None)
    found, had = None, None
    while True:  # the state before the log, which is complete once that is final
        if found and found.machine:
            found = jobs.look_again(config, found)
        else:
            found = jobs.find(config, name)
        on_change(found)
        had = found.state or had
        if following:
            following.look(config, found)
        if is_at_its_end(found):
            if had and not found.state:
                raise BergError(
                    f"the state of {found.name} is gone from the bucket, and its machine is gone. "
                    f"What it saved: berg fetch {had.job.results_dir or found.name}"
                )
            return found.state
        time.sleep(pace.after(found))


@dataclass
class Pace:
    """How long to wait between two looks at a job."""

    longest: float  # seconds
    is_quick: bool  # whether a look costs so little that each change may be followed closely
    status: str = ""
    pause: float = 0.0

    def after(self, found: jobs.Entry) -> float:
        """Return the seconds until the next look, fewer where the next change may be near: in a job
        that changed just now, since many are short, and near its end.
        """
        ends = found.state is not None and (found.state.final or found.state.state == "UPLOADING")
        self.pause = min(self.pause * GROWTH, self.longest)
        if found.status != self.status:
            self.pause = self.longest
            if ends or self.is_quick:
                self.pause = self.longest / 4
        self.status = found.status
        return self.pause


@dataclass
class Following:
    """What was read of a job's logs so far, and where it is written to."""

    bucket: Bucket
    write: Callable[[str, bytes], None]
    machine: str | None  # None: those of all its machines
    interval: float
    logs: list[str] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    last: bytes = b"\n"  # the end of what was written
    console: str = ""
    # Lines of the console that were written: the log begins with them.
    shown: list[bytes] = field(default_factory=list)
    # When the logs were listed: how the job went, and when and after which pause that is due again.
    stage: tuple[str, int] = ("", 0)
    due: float = 0.0
    pause: float = 0.0

    def look(self, config: Config, found: jobs.Entry) -> None:
        """Write what came since the last look."""
        several = jobs.is_cluster(found) and not self.machine
        self.list_logs(found)
        for log in self.logs:
            self.read_log(log, several)
        if not self.offsets and found.machine and not several:
            output = found.place.console(config, found.machine)
            self.read_console(output, has_job=found.state is not None)

    def list_logs(self, found: jobs.Entry) -> None:
        """List the logs if that is due: it costs twelve times as much as a look at one, so it is
        done rarely while nothing changes.
        """
        stage = (found.status, found.state.attempt if found.state else 0)
        is_new = stage != self.stage
        if not is_new and time.monotonic() < self.due:
            return
        logs = jobs.logs_of(self.bucket, found.name, self.machine)
        if is_new or logs != self.logs:
            self.pause = self.interval
        else:
            self.pause = min(self.pause * 2, LISTING)
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
        """Return a part of a log without its first lines that were on the console."""
        while True:
            line = chunk[: chunk.find(b"\n") + 1]
            if line not in self.shown:
                return chunk
            del self.shown[: self.shown.index(line) + 1]
            chunk = chunk[len(line) :]

    def read_console(self, output: str, has_job: bool) -> None:
        """Write the lines of the console that are new, up to the one from which on only the log has
        every line.
        """
        for text in jobs.STARTUP_LINE.findall(output.removeprefix(self.console)):
            if has_job and self.shown and self.shown[-1].startswith(HANDOVER):
                break
            self.shown.append(f"[berg] {text}\n".encode())
            self.write("", self.shown[-1])
        self.console = output


def is_at_its_end(found: jobs.Entry) -> bool:
    """Return whether nothing more comes of a job, or of a machine without one."""
    if found.state is None:
        return found.machine is None
    return found.state.final and leaves(found)


def leaves(found: jobs.Entry) -> bool:
    """Return whether the machines of a job that is over are on their way out or off, or were to be
    kept, or nobody deletes.
    """
    if found.summary.kept or (found.state and found.state.state == "LOST"):
        return True
    return all(machine.status in jobs.GOING for machine in found.machines)

"""The logs of a job: read, and followed as they grow."""

import time
from collections.abc import Callable, Iterator

from berg import BergError, job
from berg.config import Config
from berg.google.storage import Bucket
from berg.laptop import jobs

LISTING = 10.0  # seconds, at most, after which a log is seen that began meanwhile
BLOCK = 8 << 20
HANDOVER = (b"[berg] Installing: ", b"[berg] Running: ")  # from here on only the log has every line


def chunks(config: Config, name: str, machine: str | None = None) -> Iterator[tuple[str, bytes]]:
    """The log of a job from the bucket, all its attempts as one, with the machine's name where
    there are several.

    Before it exists, the serial console of its machine.
    """
    found = jobs.find(config, name)
    bucket = Bucket(config)
    logs, several, last = jobs.logs_of(bucket, found.name, machine), jobs.is_cluster(found), b"\n"
    for log in logs:
        start = 0
        if not several and not last.endswith(b"\n"):  # an attempt that was cut off
            yield "", b"\n"
        while chunk := bucket.read_from(log, start, start + BLOCK):
            yield jobs.machine_of(log) if several and not machine else "", chunk
            start, last = start + len(chunk), chunk
    if not logs:
        consoles = [each for each in found.machines if machine in (None, each.name)]
        if not consoles:
            raise BergError(
                f"{machine or name} left no log: it never reached its worker ({found.status})"
            )
        yield "", found.place.console(config, consoles[0]).encode()


def follow(
    config: Config,
    name: str,
    write: Callable[[str, bytes], None],
    machine: str | None = None,
    interval: float = 1.0,
    tell: Callable[[jobs.Entry], None] = lambda found: None,
) -> job.State | None:
    """Write the logs of a job as they grow until the job is over; returns its final state.

    `write` gets the machine's name, "" where the job has only one, and bytes. Before there is a log
    it gets what the machine writes to its serial console. A machine without a job is followed until
    it is gone, and the state is None; a job whose state is deleted as well, which then is a
    BergError. `tell` gets what is found with each look.
    """
    bucket = Bucket(config)
    offsets: dict[str, int] = {}
    console = ""
    logs: list[str] = []
    # what was found at the last list, and when the next one comes
    stage, pause, due = (
        ("", 0),
        interval,
        0.0,
    )
    shown: list[bytes] = []  # lines of the console, which the log begins with
    last = b"\n"
    found, had = None, None
    while True:  # the state before the log, which is complete once that is final
        found = (
            jobs.look_again(config, found) if found and found.machine else jobs.find(config, name)
        )
        tell(found)
        had = found.state or had
        several = jobs.is_cluster(found) and not machine
        # A list costs twelve times as much as a look at a log: rarely while nothing changes.
        now = (found.status, found.state.attempt if found.state else 0)
        if now != stage or time.monotonic() >= due:
            known, logs = logs, jobs.logs_of(bucket, found.name, machine)
            pause = interval if now != stage or logs != known else min(pause * 2, LISTING)
            stage, due = now, time.monotonic() + pause
        for log in logs:
            if not several and log not in offsets and not last.endswith(b"\n"):
                write("", b"\n")
            while chunk := bucket.read_from(log, offsets.setdefault(log, 0), offsets[log] + BLOCK):
                offsets[log], last = offsets[log] + len(chunk), chunk
                while (line := chunk[: chunk.find(b"\n") + 1]) in shown:
                    del shown[: shown.index(line) + 1]
                    chunk = chunk[len(line) :]
                write(jobs.machine_of(log) if several else "", chunk)
        if not offsets and found.machine and not several:
            output = found.place.console(config, found.machine)
            for text in jobs.STARTUP_LINE.findall(output.removeprefix(console)):
                if not (found.state and shown and shown[-1].startswith(HANDOVER)):
                    shown.append(f"[berg] {text}\n".encode())
                    write("", shown[-1])
            console = output
        if (found.state.final and leaves(found)) if found.state else not found.machine:
            if had and not found.state:
                saved = f"What it saved: berg fetch {had.job.results_dir or found.name}"
                raise BergError(
                    f"the state of {found.name} is gone from the bucket, and its machine is gone. {saved}"
                )
            return found.state
        time.sleep(interval)


def leaves(found: jobs.Entry) -> bool:
    """Whether the machines of a job that is over are on their way out or off, or were to be kept,
    or nobody deletes.
    """
    stays = found.state and (found.state.job.kept or found.state.state == "LOST")
    return bool(stays or all(machine.status in jobs.GOING for machine in found.machines))

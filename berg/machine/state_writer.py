"""The job's state in the bucket, as the machine that leads reads and writes it.

Cloud Storage takes one write of an object a second. What comes sooner is written a little later by
a timer, together with what comes meanwhile.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from berg import BergError, job, states
from berg.google.storage import Bucket, Changed
from berg.job import State
from berg.machine import boot
from berg.machine.outcome import Ending
from berg.machine.stopping import Stopping

WRITE_INTERVAL = 1.1  # seconds between two writes of the state
LATER = 0.05  # seconds after those, when what was left for later is written
# The same of what is to be written only soon: if the job ends before, its last state is the only
# write, and waits for none.
SOON = 1.0
STALLED = 180  # seconds after which the next write does not wait for one that hangs
STALLED_AT_THE_END = 2  # the same while Google takes the machine


class NoJob(BergError):
    """The job was taken back: its laptop gave up while Google was still making the machine."""


class Damaged(BergError):
    """Nobody can read the job's state any more."""


class Ended(Exception):
    """Somebody else ended the job; its state is not ours to write."""


class StateWriter:
    """Reads and writes the state of one job; any thread may call it."""

    def __init__(
        self,
        name: str,
        bucket: Bucket,
        machine: boot.Machine,
        stopping: Stopping,
        is_leader: Callable[[], bool],
        stop: Callable[[Ending], None],
    ):
        self.name, self.bucket, self.machine = name, bucket, machine
        self.stopping, self.is_leader, self.stop = stopping, is_leader, stop
        self.state = State()  # as it is to be in the bucket
        self.stored = states.Stored(name, State(), 0)  # as it was there when it was last seen
        self.began, self.ran_before = time.monotonic(), 0
        self.lock = threading.Lock()  # of `state` and `later`
        self.writing = threading.Lock()  # one thread at a time writes the object
        self.written: State | None = None  # the last one that this machine wrote
        self.next_write = -math.inf  # time.monotonic() from which the object may be written again
        self.later: threading.Timer | None = None

    def read(self) -> State:
        """Return the state as it is in the bucket; raises NoJob or Damaged if none can be read."""
        stored = states.read(self.bucket, self.name)
        if stored is None:
            raise NoJob(
                f"there is no job {self.name!r} in gs://{self.bucket.name}; deleting the machine"
            )
        self.stored = stored
        if stored.is_damaged:
            raise Damaged(f"{job.state_path(self.name)} was overwritten with what is no state")
        self.state = stored.state
        return self.state

    def read_first(self) -> State:
        """Read the state for the first time, with how long the job ran before."""
        state = self.read()
        self.ran_before = state.ran_seconds
        return state

    def write(self, soon: bool = False, **changes: Any) -> None:
        """Write changes to the state; raises Ended if somebody else wrote that the job is over.

        What is to be written only `soon` waits for nothing, and neither does what comes early. The
        last state of this machine waits until it is written.
        """
        if not self.is_leader():
            return
        with self.lock:
            for key, value in changes.items():
                setattr(self.state, key, value)
            self.note()
            is_early = time.monotonic() < self.next_write
            if (soon or is_early) and self.state.state in job.ACTIVE[1:]:
                self.schedule(SOON if soon else LATER)
                return
            self.unschedule()
        self.put_in_turn()

    def write_whole(self, state: State) -> None:
        """Write a state in place of the present one."""
        self.write(**vars(state))

    def flush(self) -> None:
        """Write now what was left for later."""
        if not self.is_leader():
            return
        with self.lock:
            if not self.later:
                return
            self.note()
            self.unschedule()
        self.put_in_turn()

    def write_quietly(self, **changes: Any) -> None:
        """Write changes from a thread beside the job: trouble waits for the next time."""
        self.quietly(lambda: self.write(**changes))

    def quietly(self, step: Callable[[], None]) -> None:
        """Do a step; stop the job if somebody else ended it, and only say what else fails."""
        try:
            step()
        except Ended as error:
            self.stop(Ending("KILLED", str(error)))
        except Exception as error:
            self.machine.say(f"The state could not be written: {error}")

    def note(self) -> None:
        """Bring the state's times up to date."""
        self.state.ran_seconds = self.ran_before + round(time.monotonic() - self.began)
        self.state.note()

    def schedule(self, pause: float) -> None:
        """Let a timer write the state after a pause; the caller has the lock."""
        if self.later:
            return
        wait = max(self.next_write - time.monotonic(), 0) + pause
        self.later = threading.Timer(wait, self.quietly, (self.flush,))
        self.later.daemon = True
        self.later.start()

    def unschedule(self) -> None:
        """Let no timer write the state; the caller has the lock."""
        if self.later:
            self.later.cancel()
            self.later = None

    def put_in_turn(self) -> None:
        """Write the object once no other thread does, or once one that does hangs."""
        patience = STALLED
        if self.stopping.machine_goes:
            patience = STALLED_AT_THE_END
        in_turn = self.writing.acquire(timeout=patience)
        try:
            time.sleep(max(self.next_write - time.monotonic(), 0))
            self.put()
            self.next_write = time.monotonic() + WRITE_INTERVAL
        finally:
            if in_turn:
                self.writing.release()

    def put(self) -> None:
        """Write the object until it holds the state as it is now."""
        while (state := replace(self.state)) != self.written:
            try:
                self.stored = states.replaced(self.bucket, self.stored, state)
                self.written = state
            except Changed:
                self.stored = self.own_write()

    def own_write(self) -> states.Stored:
        """Return what is in the bucket if this machine wrote it: a write that it had given up.

        Raises Ended if somebody else wrote it.
        """
        stored = states.read(self.bucket, self.name)
        if stored and not stored.is_damaged and not stored.state.final:
            writer = (stored.state.machine, stored.state.zone)
            if writer == (self.machine.name, self.machine.zone):
                return stored
        raise Ended(f"the state of {self.name} was written by somebody else; leaving it to them")

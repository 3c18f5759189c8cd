"""The request that a job ends: how, why, and by when."""

import math
import threading
import time

from berg.machine.outcome import TAKEN_AWAY, Ending

NOTICE = 28  # of the 30 seconds that Google gives


class Stopped(Exception):
    """The job ends before its command does."""


class Stopping:
    """Whether the job is to end, which any thread may request; the first request stays."""

    def __init__(self) -> None:
        self.ending: Ending | None = None
        self.event = threading.Event()
        self.deadline = math.inf  # time.monotonic() at which Google takes the machine

    def request(self, ending: Ending) -> bool:
        """Note that the job is to end; return whether this is the first request."""
        if self.ending:
            return False
        self.ending = ending
        if self.machine_goes:
            self.deadline = time.monotonic() + NOTICE
        self.event.set()
        return True

    @property
    def machine_goes(self) -> bool:
        """Whether Google takes the machine within seconds."""
        return self.ending in TAKEN_AWAY

    def pause(self, seconds: float | None = None) -> None:
        """Wait, for ever without `seconds`; raises Stopped when the job is to end."""
        if self.event.wait(seconds):
            raise Stopped

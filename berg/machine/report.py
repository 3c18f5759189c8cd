"""What a machine tells Cloud Monitoring of itself, once a minute, where `berg init --monitoring`
said so.

It never troubles the job: what cannot be written is said once in the log, and tried again with the
next minute.
"""

import time
from collections.abc import Callable
from typing import Any

from berg.config import Config
from berg.google import monitoring
from berg.machine import boot

EVERY = 60  # seconds; Google takes a point of a series each 5


class Reporter:
    """Samples go in; those that are due go out."""

    def __init__(self, config: Config, machine: boot.Machine, say: Callable[[str], None]):
        self.config, self.machine, self.say = config, machine, say
        self.due, self.instance, self.told = 0.0, "", False

    def send(self, sample: dict[str, Any]) -> None:
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + EVERY - 1  # samples come a little late, not a little early
        try:
            self.instance = self.instance or boot.metadata("instance/id")
            if series := monitoring.points(self.config, self.machine.zone, self.instance, sample):
                monitoring.write(self.config, series)
        except Exception as error:
            if not self.told:
                why = getattr(error, "message", error)
                self.say(f"Cloud Monitoring does not hear of this machine: {why}")
            self.told = True

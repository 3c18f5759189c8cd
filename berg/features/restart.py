"""A command that fails runs again on its machines, with its files as they are.

All machines of a job begin the next attempt together, as they do after a loss; losses do not count.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from berg import job as jobs
from berg.bucket import trouble
from berg.feature import Feature
from berg.options import option

if TYPE_CHECKING:
    from berg.run import Plan
    from berg.worker import Ending, Run

QUICK, SAME = 60, 3  # seconds of a failure that looks like a mistake; so many in a row end the job
POLL = 1  # seconds between two looks at what the first machine decides


@dataclass
class Restart(Feature):
    restart_on_failure: int = option(
        "--restart-on-failure",
        default=0,
        type=click.IntRange(0),
        metavar="N",
        help="Run CMD again when it fails, up to N times.",
    )

    def change(self, plan: Plan) -> None:
        plan.rows["Restart"] = (
            f"up to {self.restart_on_failure} time{'s' * (self.restart_on_failure > 1)} when the command fails"
        )

    def ended(self, run: Run, ending: Ending) -> Ending:
        if ending.is_firm or ending.is_loss or not run.has_begun:
            return ending
        if not run.leads:  # also one that succeeded: it will be needed if another one failed
            return self.decided(run, ending)
        if ending.state != jobs.FAILED:
            return ending
        from berg.worker import BEGAN

        path = f"{jobs.machines_prefix(run.job.name)}failures.json"
        failures = [
            *json.loads(run.bucket.find(path) or b"[]"),
            [ending.exit_code, time.time() - BEGAN.stat().st_mtime < QUICK],
        ]
        last = failures[-SAME:]
        if len(last) == SAME and last == [[ending.exit_code, True]] * SAME:
            reason = f"{ending.reason}, {SAME} times in a row within a minute"
            ending = replace(ending, reason=reason)
        elif len(failures) <= self.restart_on_failure:
            run.bucket.write(path, json.dumps(failures).encode())
            reason = f"{ending.reason}; restart {len(failures)} of {self.restart_on_failure}"
            return replace(ending, state=jobs.SUBMITTED, reason=reason, exit_code=None)
        run.bucket.delete(path)  # a job that is resumed has all its restarts
        return ending

    def decided(self, run: Run, ending: Ending) -> Ending:
        """What the first machine made of this ending."""
        while run.seconds > 0 and 0 not in run.peers.lost:
            with contextlib.suppress(*trouble()):
                state, _ = jobs.read_state(run.bucket, run.job.name)
                if state.attempt > run.state.attempt:
                    return replace(ending, state=jobs.SUBMITTED)
                if state.is_final:
                    break
            time.sleep(POLL)
        return ending

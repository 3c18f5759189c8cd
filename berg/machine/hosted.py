"""A job on a devbox of its user (berg run --on): its boot, and the machine as the job sees it.

The devbox's worker starts this program (hosting.py). The job has a Berg of its own, the one of the
laptop that sent it. Whatever happens to the job, the machine stays as it is.
"""

import os
from collections.abc import Callable
from typing import Any

from berg import job
from berg.machine import boot

NAME = "BERG_HOSTED"  # variable: the job
ENDED = "BERG_HOSTED_ENDED"  # variable: why a job ended whose results are to be saved, and no more
# Metadata of the devbox that are not the job's.
OF_BOX = ("berg-box", "berg-image", "berg-rescue", "berg-packages", "berg-packages-sha256")


class Hosted(boot.Machine):
    """A devbox, for a job that neither deletes it, nor turns it off, nor waits for its end."""

    def instance_now(self, attempts: int = 1) -> dict[str, Any]:
        """Return what the metadata server knows, with the job's facts in place of the devbox's."""
        found, name = super().instance_now(attempts), os.environ[NAME]
        there = found["attributes"]
        kept = {key: value for key, value in there.items() if key not in OF_BOX}
        # it has this machine as others have a warm one
        ours = {"berg-job": name, "berg-warm": name, **job.hosted(there).get(name, {})}
        return {**found, "attributes": kept | ours}

    def delete(self, alone: bool = False, forbidden_seconds: float = 0) -> None:
        """Do nothing."""

    def turn_off(self) -> bool:
        return False

    def hold(self, seconds: float = 0) -> None:
        """Do nothing."""

    def insist_on_deletion(
        self,
        tell: Callable[[str], None] | None = None,
        is_refused: bool = False,
        is_chosen: bool = False,
    ) -> None:
        """Do nothing."""


def this_machine() -> boot.Machine:
    """Return the machine that this process runs on."""
    return Hosted() if NAME in os.environ else boot.this_machine()


def main() -> None:
    """Run the worker of the job, or save what an earlier one left, and record how that ended."""
    boot.bypass_proxies()
    boot.BERG.mkdir(parents=True, exist_ok=True)
    machine = Hosted()
    try:
        python, wheel = boot.install(machine)
        if ended := os.environ.get(ENDED):
            boot.save(machine, python, ended)
        else:
            boot.outlive_worker(machine, python, wheel)
    except Exception as error:
        boot.give_up(machine, f"berg could not be started on {machine.name}: {error}")

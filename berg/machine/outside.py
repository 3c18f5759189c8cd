"""Word from outside, which threads beside an attempt wait for, and which mostly ends it.

Somebody kills the job, Google takes the machine, another machine of the job dies or fails, the time
is up. Somebody may also ask for a profile, or want to log in.
"""

import contextlib
import json
import os
from typing import Any

from berg.machine import boot, cluster, logins, profile
from berg.machine.attempt import Attempt
from berg.machine.outcome import MAINTAINED, PREEMPTED, SHUT_DOWN, Ending
from berg.machine.process import end_group, start_thread

MAINTENANCE = (
    "TERMINATE_ON_HOST_MAINTENANCE"  # told an hour before on most machines with GPUs, else a minute
)


def watch(attempt: Attempt) -> None:
    """Wait for word from outside: it arrives through the machine's own metadata, or a pod's
    annotations.
    """
    query = "instance/?recursive=true&wait_for_change=true&timeout_sec=50&last_etag="
    etag, warned, profiled = "0", False, set[str]()
    while not attempt.over.is_set():  # also while the last results are sent
        try:
            if boot.POD:
                attempt.over.wait(1)
                values = attempt.machine.instance()
            else:
                content, headers = boot.request(
                    boot.METADATA + query + etag, headers=boot.FLAVOR, attempts=1
                )
                etag, values = headers.get("ETag", "0"), json.loads(content)
        except (OSError, ValueError):
            attempt.over.wait(1)
            continue
        if ending := ending_in(attempt, values):
            attempt.stop(ending)
        asked = profile.asked(attempt.name, values.get("attributes", {}))
        # those of the first look were an earlier attempt's
        for when in asked.keys() - (profiled or asked.keys()):
            start_thread(profile.answer, attempt, when, asked[when])
        profiled = asked.keys() | {""}
        if values.get("maintenanceEvent") == MAINTENANCE and not warned:
            warned = True
            attempt.say(
                "Google is going to stop this machine, within the hour, to maintain its host"
            )
            with contextlib.suppress(Exception):  # the network; the others then know less
                if not attempt.member.is_alone:
                    cluster.announce(attempt.member, maintenance="soon")
        with contextlib.suppress(OSError):  # a full disk
            logins.install_keys(values.get("attributes", {}).get("ssh-keys", ""))


def ending_in(attempt: Attempt, values: dict[str, Any]) -> Ending | None:
    """How the job is to end, and why, if the metadata of this machine says so."""
    if killer := values.get("attributes", {}).get(f"berg-kill-{attempt.name}"):
        killer, _, now = killer.partition(" ")
        if now:
            abandon(attempt, killer)
        return Ending("KILLED", f"killed by {killer}")
    if values.get("preempted") == "TRUE":
        return PREEMPTED
    is_maintained = values.get("maintenanceEvent") == MAINTENANCE
    if attempt.stopping.ending == SHUT_DOWN and is_maintained:
        return MAINTAINED
    return None


def abandon(attempt: Attempt, killer: str) -> None:
    """End this process and the command at once: nothing of them is wanted any more."""
    attempt.say(f"Killed by {killer}, at once")
    if attempt.runner.process:
        end_group(attempt.runner.process.pid, 0)
    os._exit(0)


def watch_others(attempt: Attempt) -> None:
    """End the job when a machine of it dies or fails; end this machine's part when the job ends."""
    while not attempt.mirrors.done.wait(cluster.WATCH_INTERVAL):
        try:
            ending = cluster.ending_of_part(attempt.member, lambda: attempt.is_over(("UPLOADING",)))
        except Exception as error:  # the network may fail for a while; the next look tells
            attempt.say(f"Cannot see the other machines: {error}")
        else:
            if ending:
                attempt.stop(ending)


def limit_time(attempt: Attempt) -> None:
    """Stop the job before Google deletes the machine at its limit: the results come first."""
    limit = attempt.job.max_run_seconds
    if limit and not attempt.mirrors.done.wait(
        limit - min(300, limit / 5) - attempt.states.ran_before
    ):
        attempt.stop(Ending("FAILED", "it ran into its time limit (--max-hours)"))

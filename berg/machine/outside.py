"""What happens outside of an attempt, which threads beside it watch, and which mostly ends it.

Somebody kills the job, Google takes the machine, another machine of the job dies or fails, the time
is up. Somebody may also ask for a profile, or want to log in.
"""

import contextlib
import os
from typing import Any

from berg.job import STOPPED
from berg.machine import boot, cluster, profile
from berg.machine.attempt import Attempt
from berg.machine.command import Runs
from berg.machine.outcome import MAINTAINED, PREEMPTED, SHUT_DOWN, Ending
from berg.machine.process import end_group, start_thread

# Announced an hour before on most machines with GPUs, else a minute before.
MAINTENANCE = "TERMINATE_ON_HOST_MAINTENANCE"
Requests = dict[str, str]  # for profiles: when each was asked for, and how many seconds it takes


def watch(attempt: Attempt) -> None:
    """Act on what is written into this machine's metadata, until it has another job."""
    requests: Requests | None = None
    warned = False
    while not attempt.over.is_set():  # also while the last results are sent
        try:
            values = attempt.member.host.new_metadata(attempt.over)
        except (OSError, ValueError):
            attempt.over.wait(1)
            continue
        if ending := ending_in(attempt, values):
            attempt.stop(ending)
        attributes = values.get("attributes", {})
        requests = answer_requests(attempt, profile.asked(attempt.name, attributes), requests)
        if values.get("maintenanceEvent") == MAINTENANCE and not warned:
            warned = True
            warn_of_maintenance(attempt)
        with contextlib.suppress(OSError):  # a full disk
            boot.install_keys(attributes.get("ssh-keys", ""))


def answer_requests(attempt: Attempt, asked: Requests, before: Requests | None) -> Requests:
    """Take the profiles that were not asked for before, and return all requests.

    Those of the first look (`before` is None) were an earlier attempt's.
    """
    if before is None:
        return asked
    for when in asked.keys() - before.keys():
        start_thread(profile.answer, attempt, when, asked[when])
    return asked


def warn_of_maintenance(attempt: Attempt) -> None:
    """Say that Google is going to stop this machine, and tell the other machines."""
    attempt.say("Google is going to stop this machine, within the hour, to maintain its host")
    if attempt.member.is_alone:
        return
    with contextlib.suppress(Exception):  # the network; the others then know less
        cluster.announce(attempt.member, maintenance="soon")


def ending_in(attempt: Attempt, values: dict[str, Any]) -> Ending | None:
    """Return how the job is to end if the metadata of this machine says so."""
    if killer := values.get("attributes", {}).get(f"berg-kill-{attempt.name}"):
        killer, _, now = killer.partition(" ")
        if now:
            abandon(attempt, killer)
        return Ending("KILLED", f"killed by {killer}", is_chosen=True)
    if who := who_stops(attempt, values):
        return Ending(STOPPED, f"stopped by {who}")
    if values.get("preempted") == "TRUE":
        return PREEMPTED
    is_maintained = values.get("maintenanceEvent") == MAINTENANCE
    if attempt.stopping.ending == SHUT_DOWN and is_maintained:
        return MAINTAINED
    return None


def who_stops(attempt: Attempt, values: dict[str, Any]) -> str:
    """Return who stops this devbox, "" if nobody does. The request is that of one attempt: it is
    still there when the machine starts again.
    """
    asked: str = values.get("attributes", {}).get(f"berg-stop-{attempt.name}", "")
    who, _, number = asked.rpartition(" ")
    if number != str(attempt.state.attempt):
        return ""
    return who


def abandon(attempt: Attempt, killer: str) -> None:
    """End this process and the command at once: nothing of them is wanted any more."""
    attempt.say(f"Killed by {killer}, at once")
    if attempt.runner.process:
        end_group(attempt.runner.process.pid, 0)
    os._exit(0)


def watch_others(attempt: Attempt) -> None:
    """End the job when a machine of it dies or fails; end this machine's part when the job ends."""
    while not attempt.mirrors.done.wait(cluster.WATCH_INTERVAL):
        running = attempt.runner.command
        try:
            ending = cluster.ending_of_part(attempt.member, lambda: attempt.is_over(("UPLOADING",)))
            ending = ending or ending_by_failure(attempt, running)
        except Exception as error:  # the network may fail for a while; the next look tells
            attempt.say(f"Cannot see the other machines: {error}")
        else:
            if ending:
                attempt.stop(ending)


def ending_by_failure(attempt: Attempt, running: Runs) -> Ending | None:
    """Return how the job ends because a command failed; None if none did, or the job goes on.

    In a job whose command may run again, what runs here is ended when its attempt is over, and the
    rest is the worker's.
    """
    member = attempt.member
    if not attempt.leads:
        if attempt.is_behind:
            attempt.break_off(running)
        return None
    failure = cluster.lasting_failure(member, cluster.phases(member))
    if attempt.job.is_mended and not attempt.loss:
        attempt.loss = cluster.loss(member)
    if attempt.loss:
        attempt.break_off(running)
        return None
    if failure and attempt.job.restart_on_failure:
        attempt.break_off(running)
        return None
    return failure


def limit_time(attempt: Attempt) -> None:
    """Stop the job before Google ends the machine at its limit: the results come first."""
    limit = attempt.job.max_run_seconds
    if not limit:
        return
    left = limit - min(300, limit / 5) - attempt.counted_before
    state = STOPPED if attempt.job.keeps_disk else "FAILED"
    if not attempt.mirrors.done.wait(left):
        attempt.stop(Ending(state, "it ran into its time limit (--max-hours, --max-cost)"))

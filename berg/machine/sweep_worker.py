"""A machine of a sweep, which takes one job after another until none is left."""

import contextlib
from collections.abc import Callable

from berg import job
from berg.google.storage import Bucket
from berg.machine import boot, notify
from berg.machine.attempt import Attempt, Damaged, Ended, NoJob, settings_of


def run_sweep(name: str, run: Callable[[Attempt], None]) -> None:
    """Run the jobs of a sweep that are left, one after another; then delete this machine."""
    attempt, machine = None, boot.Machine()
    while attempt := take(machine, name, attempt):
        run(attempt)
        if attempt.machine_goes:
            # Google does it soon; this saves what is left of its notice
            with contextlib.suppress(Exception):
                machine.delete(alone=True)
            return
    machine.say(f"No job of {name} is left")
    states = stored_states(machine, name)
    has_secrets = any(state.job.secrets for state in states.values())
    if has_secrets and all(state.final for state in states.values()):
        notify.tell_of_sweep(settings_of(machine), name, states, machine.say)
    machine.insist_on_deletion()


def stored_states(machine: boot.Machine, sweep: str) -> dict[str, job.State]:
    """The states of a sweep's jobs by their names; another job's name may begin like them."""
    found = {}
    for blob in Bucket(settings_of(machine)).list(
        f".berg/jobs/{sweep}-", "name,metadata", "**_state.json"
    ):
        try:
            state = job.state_from_json(blob.metadata["state"])
        except (KeyError, ValueError, TypeError):  # damaged; it may be another's
            continue
        if state.job.sweep == sweep:
            found[job.name_of(blob.name)] = state
    return found


def take(machine: boot.Machine, sweep: str, before: Attempt | None) -> Attempt | None:
    """The next job of a sweep that no machine has; from now on this one has it. None if there is
    none left.
    """
    states = stored_states(machine, sweep)
    names = list(states)
    number = int(machine.name.rpartition("-")[2]) % max(len(names), 1)
    # each machine begins elsewhere, so that they rarely meet
    for name in names[number:] + names[:number]:
        if states[name].state != "SUBMITTED":
            continue
        attempt = Attempt(name, sweep)
        try:
            if attempt.learn().state == "SUBMITTED":
                attempt.claim()
                (boot.BERG / "job").write_text(name)  # for who comes after a worker that died
                if before:
                    attempt.results.manifest = before.results.manifest
                return attempt
        except (Ended, NoJob, Damaged):
            continue
    return None

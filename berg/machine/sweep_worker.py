"""A machine of a sweep, which takes one job after another until none is left."""

from collections.abc import Callable

from berg import states
from berg.google.storage import Bucket
from berg.job import State
from berg.machine import boot, watchdogs
from berg.machine.attempt import Attempt, Damaged, Ended, NoJob, settings_of
from berg.machine.process import delete_soon


def run_sweep(name: str, run: Callable[[Attempt], None]) -> None:
    """Run the jobs of a sweep that are left, one after another; then delete this machine."""
    attempt, machine = None, boot.this_machine()
    while attempt := take(machine, name, attempt):
        run(attempt)
        if attempt.machine_goes:
            delete_soon(machine)
            return
    machine.say(f"No job of {name} is left")
    known = stored_states(machine, name)
    has_secrets = any(state.job.secrets for state in known.values())
    if has_secrets and all(state.final for state in known.values()):
        watchdogs.of_sweep(settings_of(machine), name, known, machine.say)
    machine.insist_on_deletion()


def stored_states(machine: boot.Machine, sweep: str) -> dict[str, State]:
    """Return the states of a sweep's jobs by their names, without those that are damaged."""
    found = {}
    for stored in states.listed(Bucket(settings_of(machine)), f"{sweep}-"):
        # Another job's name may begin like those of the sweep's.
        if not stored.is_damaged and stored.state.job.sweep == sweep:
            found[stored.name] = stored.state
    return found


def take(machine: boot.Machine, sweep: str, before: Attempt | None) -> Attempt | None:
    """Claim the next job of a sweep that no machine has; None if there is none left."""
    known = stored_states(machine, sweep)
    names = list(known)
    number = int(machine.name.rpartition("-")[2]) % max(len(names), 1)
    # each machine begins elsewhere, so that they rarely meet
    for name in names[number:] + names[:number]:
        if known[name].state != "SUBMITTED":
            continue
        attempt = Attempt(name, sweep)
        if not claimed(attempt):
            continue
        (boot.BERG / "job").write_text(name)  # for who comes after a worker that died
        if before:
            attempt.mirrors.results.manifest = before.mirrors.results.manifest
        return attempt
    return None


def claimed(attempt: Attempt) -> bool:
    """Claim a job if it is still to be had; return whether this machine has it now."""
    try:
        attempt.read_first_state()
        if attempt.state.state != "SUBMITTED":
            return False
        attempt.claim()
    except (Ended, NoJob, Damaged):
        return False
    return True

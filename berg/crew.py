"""A machine of a sweep, which takes one job after another until none is left."""

from collections.abc import Callable

from berg import boot, job
from berg.attempt import Attempt, Ended, settings_of
from berg.storage import Bucket


def run_sweep(name: str, run: Callable[[Attempt], None]) -> None:
    """Run the jobs of a sweep that are left, one after another; then delete this machine."""
    attempt = None
    while attempt := take(name, attempt):
        run(attempt)
        if attempt.machine_goes:
            return
    machine = boot.Machine()
    machine.say(f"No job of {name} is left")
    machine.delete()


def take(sweep: str, before: Attempt | None) -> Attempt | None:
    """The next job of a sweep that no machine has; from now on this one has it. None if there is none left."""
    machine = boot.Machine()
    bucket = Bucket(settings_of(machine))
    blobs = list(bucket.list(f".berg/jobs/{sweep}-", "name,metadata", "**_state.json"))
    number = int(machine.name.rpartition("-")[2]) % max(len(blobs), 1)
    for blob in blobs[number:] + blobs[:number]:  # each machine begins elsewhere, so that they rarely meet
        if job.state_from_json(blob.metadata["state"]).state != "SUBMITTED":
            continue
        attempt = Attempt(blob.name.removeprefix(".berg/jobs/").removesuffix("_state.json"), sweep)
        try:
            if attempt.state.state == "SUBMITTED":
                attempt.claim()
                (boot.BERG / "job").write_text(attempt.name)  # for who comes after a worker that died
                if before:
                    attempt.results.sent = before.results.sent
                return attempt
        except Ended:
            continue
    return None

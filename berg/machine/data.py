"""The data sets of a job, brought to the machine before its command begins."""

import time
from typing import Any

from berg import BergError
from berg.google import data, http
from berg.google.fetch import fetch
from berg.google.storage import Bucket
from berg.machine.attempt import Attempt
from berg.machine.surroundings import place
from berg.words import plural


def bring(attempt: Attempt) -> None:
    """Bring what is missing of every data set; raises BergError if it cannot be whole, Stopped if
    the job ends.
    """
    for wish in attempt.job.data:
        name, began = wish["name"], time.monotonic()
        bucket, prefix = data.find(attempt.bucket.config, name)
        seen: list[Any] = []
        folder = place(wish["path"])

        def note(blob: Any, seen: list[Any] = seen) -> None:
            seen.append(blob)
            attempt.stopping.pause(0)  # a job that was killed need not wait for the rest

        attempt.say(
            f"Bringing data {name}: {plural(wish['files'], 'file')}, "
            f"{wish['bytes'] / 1e6:,.1f} MB, to {folder}"
        )
        try:
            new, _, left = fetch(bucket, prefix, folder, done=note, with_repos=True)
        except http.Forbidden as error:
            raise refused(bucket, name, error) from None
        except OSError as error:
            raise BergError(
                f"data {name} cannot be brought to {folder}: {error.strerror or error}"
            ) from None
        if left:
            path, why = next(iter(left.items()))
            if isinstance(why, http.Forbidden):
                raise refused(bucket, name, why)
            raise BergError(
                f"{plural(len(left), 'file')} of data {name} could not be brought to {folder}, "
                f"{path}: {why}"
            )
        if not seen:
            raise BergError(f"data {name} is not in gs://{bucket.name}/{prefix} any more")
        if data.checksum(seen) != wish["checksum"]:
            attempt.say(f"Data {name} changed since the job was submitted")
        attempt.say(
            f"Brought {new:,} of {plural(len(seen), 'file')} of data {name} "
            f"in {time.monotonic() - began:.1f} s"
        )


def refused(bucket: Bucket, name: str, error: Exception) -> BergError:
    """Return the error for data that the machines' account may not read, with what lets it."""
    account = getattr(bucket.config.credentials, "service_account_email", "ACCOUNT")
    mend = data.mend(bucket.name, f"serviceAccount:{account}")
    return BergError(f"data {name}: {http.words(error)}. {mend}")

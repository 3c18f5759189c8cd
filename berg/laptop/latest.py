"""`@` and `-`: the latest job of whoever asks.

Most names are neither, and so it imports no place for jobs.
"""

from berg import BergError, states
from berg.config import Config
from berg.google.storage import Bucket

LATEST = ("@", "-")


def resolve(config: Config, name: str) -> str:
    """Return a name as it is; for `@` or `-` that of my latest job, or its sweep's, and for `@/0`
    that of a job of that sweep.
    """
    latest, slash, index = name.partition("/")
    if latest not in LATEST:
        return name
    listed = states.listed(Bucket(config))
    mine = [each for each in listed if not each.is_damaged and each.state.job.user == config.user]
    if not mine:
        raise BergError(
            f"{name} is your latest job, and you have none yet. "
            'Start with: berg run "python train.py"'
        )
    last = max(mine, key=lambda each: each.state.job.created_at)
    return f"{last.state.job.sweep or last.name}{slash}{index}"

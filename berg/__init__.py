"""Berg runs experiments on Google Cloud machines and keeps the results in a bucket."""

from typing import Any

__version__ = "1.0.0"


class BergError(Exception):
    """What a user can understand and act on: one sentence that names the thing and the next step."""


def __getattr__(name: str) -> Any:
    """berg.run and berg.Job, for Python programs; nothing is imported until they are used."""
    if name in ("run", "Job"):
        from berg.clients import api

        return getattr(api, name)
    raise AttributeError(f"module 'berg' has no attribute {name!r}")

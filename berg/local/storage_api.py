"""Handlers of the Cloud Storage methods."""

from typing import Any


def handlers(cloud: Any) -> dict:
    """Return the handler of every method that is served, by method id."""
    return {}

"""All features, in the order in which the core calls them, and the commands that they bring.

Nothing is imported until it is used: `berg --help` reads these two tables.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from berg.feature import Feature
    from berg.job import Job

ALL = {  # class -> its module
    "Ssd": "ssd",
    "Hang": "hang",
    "Restart": "restart",
    "Spot": "spot",
    "Flex": "flex",
    "Iap": "iap",
    "Budget": "budget",  # the last one: it sees what the others asked for
}
COMMANDS: dict[str, str] = {}  # command -> its module


@functools.cache
def kinds() -> tuple[type[Feature], ...]:
    return tuple(getattr(import_module(f"berg.features.{ALL[name]}"), name) for name in ALL)


def of(job: Job) -> list[Feature]:
    """The features of a job, as its record has them."""
    known = {kind.__name__: kind for kind in kinds()}
    return [known[name](**values) for name, values in job.features.items()]

"""All features, in the order in which the core calls them, and the commands that they bring.

Nothing is imported until it is used: `berg --help` reads these two tables.
"""

from __future__ import annotations

import functools
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from berg.feature import Feature
    from berg.job import Job

ALL = {  # class -> its module
    "On": "keep",  # before those that would change a machine
    "Notify": "notify",
    "Secrets": "secrets",
    "Data": "data",
    "Ssd": "ssd",
    "Hang": "hang",
    "Keep": "keep",  # it hears what the others made of the end
    "Restart": "restart",
    "Tpu": "tpu",  # it makes slices, so that those below make no groups
    "Spot": "spot",  # `ended` is called in reverse: those above see what becomes of a loss
    "Gke": "gke",  # it takes out what no pod has
    "Flex": "flex",
    "Roce": "roce",  # its networks are those of the zone, whoever creates the machines
    "Iap": "iap",
    "Docker": "docker",  # around the command with all that those above gave it
    "MaxCost": "cost",  # it sees what those above asked for
    "Budget": "budget",
    "Price": "cost",  # and what became of it
}
PLACES = ("features.gke.pods",)  # modules that have machines elsewhere: berg/place.py
COMMANDS: dict[str, tuple[str, str]] = {  # command -> its module, and what it does
    "data": ("data", "Data sets in the bucket"),
    "cluster": ("gke.clusters", "Kubernetes clusters, whose pods run jobs"),
}


@functools.cache
def kinds() -> tuple[type[Feature], ...]:
    return tuple(getattr(import_module(f"berg.features.{ALL[name]}"), name) for name in ALL)


def of(job: Job) -> list[Feature]:
    """The features of a job, as its record has them; what is unknown of it is another version's."""
    found = []
    for kind in kinds():
        if kind.__name__ in job.features:
            names = {each.name for each in fields(kind)}
            record = job.features[kind.__name__].items()
            found.append(kind(**{name: value for name, value in record if name in names}))
    return found

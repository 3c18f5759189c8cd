"""Places that have machines: the core's only way to those that exist.

Compute Engine (gce.py) is one, and features may bring others. All are asked at the same time, as any
may have the machines of a job; a machine itself knows how it is told, reached and deleted there. A
machine that is to be made is described in Compute Engine's words, whoever makes it of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from berg import features, google

if TYPE_CHECKING:
    from berg.config import Config
    from berg.feature import Feature
    from berg.gce import Shape
    from berg.run import Spec

DEVBOX = "devbox"  # label berg-kind of one


@dataclass
class Machine(ABC):
    """A machine that belongs to a job."""

    name: str
    zone: str
    status: str
    job: str
    id: str = ""
    created_at: str = ""
    address: str = ""  # external
    inner_address: str = ""
    machine_type: str = ""
    user: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    note: str = ""  # what it waits for
    has_disk: bool = True  # that stays when it is switched off

    @property
    def is_devbox(self) -> bool:
        return self.labels.get("berg-kind") == DEVBOX

    @property
    def is_on(self) -> bool:
        return self.status not in ("TERMINATED", "SUSPENDED")

    @abstractmethod
    def tell(self, config: Config, key: str, value: str) -> None:
        """Give it a word such as berg-kill, for which its worker looks once a second. One that is gone
        needs none.
        """

    @abstractmethod
    def host_keys(self, config: Config) -> list[str]:
        """Its public ssh host keys, as only it can have written them; empty while it boots."""

    def let_in(self, config: Config, key: str) -> None:
        """Let an ssh key of this computer log in, where that of its job's submit alone may."""
        return

    def tunnel(self, config: Config) -> list[str]:
        """The program that connects ssh with it, where that is the only way."""
        return []

    @abstractmethod
    def delete(self, config: Config) -> None:
        """Delete this very machine, and wait; one that is gone is fine."""

    @abstractmethod
    def stop(self, config: Config) -> None:
        """Switch it off; its disk stays."""

    @abstractmethod
    def start(self, config: Config) -> None:
        """Switch it on; raises BergError if there is no room."""


class Place(Protocol):
    """A module with these functions."""

    def machines(
        self, config: Config, job: str, zone: str, made_for: Collection[str]
    ) -> list[Any]: ...

    def is_coming(self, config: Config, job: str) -> bool: ...


def places() -> list[Place]:
    return [import_module(f"berg.{name}") for name in ("gce", *features.PLACES)]


def machines(
    config: Config, job: str = "", zone: str = "", made_for: Collection[str] = ()
) -> list[Machine]:
    """The machines of a job, or of all jobs of the bucket, by name; with `made_for` only those of the
    jobs whose records have these hashes, not of others of the same names.
    """
    _ = config.credentials  # once, before several threads need it
    with google.together(4) as pool:
        found = pool.map(lambda place: place.machines(config, job, zone, made_for), places())
        return [machine for each in found for machine in each]


def choose(config: Config, used: list[Feature], spec: Spec) -> tuple[Shape, list[str]] | None:
    """Let features change what is asked for; the type of a machine and where it can be, if one knows."""
    return next(filter(None, [feature.choose(config, spec) for feature in used]), None)


def is_coming(config: Config, job: str) -> bool:
    """Whether a place makes a machine for a job, now or when it has room."""
    return any(place.is_coming(config, job) for place in places())


def delete(config: Config, machines: list[Machine]) -> None:
    """Delete these very machines at the same time, and wait."""
    with ThreadPoolExecutor(16) as pool:
        [*pool.map(lambda machine: machine.delete(config), machines)]

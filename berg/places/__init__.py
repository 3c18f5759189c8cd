"""The places that a job can run in, and what each of them can do: a module with these functions.

The job in the bucket, its worker, log, state and results are the same in all of them. What a
machine needs to know of its place it is told in machine/boot.py.
"""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from berg import BergError, gce
from berg.config import Config
from berg.gke import place as gke
from berg.google.shapes import parse_tpu
from berg.job import NO_GROUP, Group, Login, Machine, Resource
from berg.places import tpu
from berg.plan import Choice, Offer, Plan
from berg.spec import JobSpec


class Place(Protocol):
    """What the verbs ask of a place."""

    def warm_up(self) -> None:
        """Import what `create` needs, if that takes long: it is called while the code is sent."""

    def choose(self, config: Config, spec: JobSpec, is_sweep: bool) -> Choice:
        """Return the machines that a spec means; raise BergError where nobody has such ones."""

    def offer(self, config: Config, spec: JobSpec, choice: Choice, sweep: int) -> Offer:
        """Look up what there is for a choice; raise BergError where there is nothing.

        `sweep` is the number of a sweep's machines, 0 for a job on its own.
        """

    def longest_name(self, first: str, names: list[str]) -> str:
        """Return the longest name that a host gets of those machines, of which one is `first`."""

    def request(self, plan: Plan) -> dict[str, Any]:
        """Return what each machine of a plan is to be, as JSON that `create` takes."""

    def preview(self, config: Config, request: dict[str, Any], names: list[str], keep: bool) -> Any:
        """What `create` would send, for who wants to read it."""

    def create(
        self,
        config: Config,
        request: dict[str, Any],
        names: list[str],
        keep: bool,
        say: Callable[[str], None],
        still_trying: Callable[[], None],
    ) -> str:
        """Create machines, all or none; with `keep` the place makes them anew when they go, without
        this computer.

        `still_trying` is called again and again while there are none: before each further zone that
        is tried, and every minute in which machines are waited for. What it raises ends the
        attempt.

        Returns where they are, "" if the place makes them when it has room. Raises BergError with
        what was tried.
        """

    def machines(
        self,
        config: Config,
        jobs: Collection[str] = (),
        sweeps: Collection[str] = (),
        *,
        zone: str = "",
    ) -> list[Machine]:
        """The machines there are for the jobs of this bucket, by name; those of jobs and sweeps if
        any are given.

        In a zone that is known it may be asked often.
        """

    def waiting(self, config: Config, job: str | None = None) -> set[str]:
        """Names of the jobs and sweeps for which the place has a machine, or makes one when there
        is room.

        Groups by their `Job.group` of which that cannot be told now are among them.
        """

    def why_gone(self, config: Config, job: str, group: Group, zone: str) -> str:
        """Why a job that has a group has no machines any more, in words; "" if the place does not
        know.
        """

    def set_metadata(self, config: Config, machine: Machine, key: str, value: str) -> None:
        """Let a running machine know something, at once."""

    def let_in(self, config: Config, machine: Machine, line: str) -> bool | None:
        """Let in who has the key of a line USER:KEY; whether it was new there, None if the machine
        is gone.
        """

    def login(self, config: Config, machine: Machine) -> Login | None:
        """Return how to log in to a machine, as only the machine itself can have written it; None
        if it did not.
        """

    def proxy(self, config: Config, machine: Machine) -> list[str]:
        """The command that connects to the ssh server of a machine without an external address."""

    def shell(self, machine: Machine) -> list[str]:
        """The command that runs what follows it on a machine without an ssh server; [] if there is
        none.
        """

    def console(self, config: Config, machine: Machine) -> str:
        """What a machine wrote before and beside its log; "" if it is gone."""

    def delete(
        self, config: Config, job: str, machines: list[Machine], group: Group = NO_GROUP
    ) -> None:
        """Delete machines, or a job's group with them, and wait until they are gone."""

    def resources(self, config: Config) -> list[Resource]:
        """What there is for this bucket's jobs beside machines and may be left over."""

    def remove(self, config: Config, resource: Resource) -> None:
        """Delete such a resource."""


PLACES: dict[str, Place] = {"gce": gce, "tpu": tpu, "gke": gke}


def machines(
    config: Config, jobs: Collection[str] = (), sweeps: Collection[str] = ()
) -> list[Machine]:
    """The machines in all places, as `Place.machines` tells of one."""
    # Compute Engine lists those of two
    listings = dict.fromkeys(place.machines for place in PLACES.values())
    with ThreadPoolExecutor() as pool:
        return [
            each
            for found in pool.map(lambda find: find(config, jobs, sweeps), listings)
            for each in found
        ]


def name_for(spec: JobSpec) -> str:
    """Return the name of the place that a spec asks for."""
    if spec.cluster:
        return "gke"
    if spec.tpu is not None and parse_tpu(spec.tpu).hosts > 1:
        return "tpu"
    return "gce"


def of(name: str) -> Place:
    """The place of that name; raises BergError for one that only a newer berg knows."""
    if name not in PLACES:
        raise BergError(
            f"this berg knows no place {name!r} for jobs, only {', '.join(PLACES)}; "
            "a newer one wrote it"
        )
    return PLACES[name]

"""The places that a job can run in: modules with the functions of `Place`.

The job in the bucket, its worker, log, state and results are the same in all of them.
"""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from berg import BergError, gce
from berg.config import Config
from berg.gke import place as gke
from berg.google.shapes import parse_tpu
from berg.job import NO_GROUP, Group, Login, Machine, Resource
from berg.plan import Choice, Offer, Plan
from berg.spec import JobSpec


class Place(Protocol):
    """What the commands need from a place."""

    def warm_up(self) -> None:
        """Import what `create` needs, if that is slow: it is called while the code is sent."""

    def choose(self, config: Config, spec: JobSpec, is_sweep: bool) -> Choice:
        """Return the machines that a spec means; raise BergError if there are none like that."""

    def offer(self, config: Config, spec: JobSpec, choice: Choice, sweep: int) -> Offer:
        """Look up what there is for a choice; raise BergError where there is nothing.

        `sweep` is the number of a sweep's machines, 0 for a single job.
        """

    def longest_name(self, first: str, names: list[str]) -> str:
        """Return the longest host name of those machines, one of which is `first`."""

    def request(self, plan: Plan) -> dict[str, Any]:
        """Return the machines of a plan as JSON that `create` takes."""

    def preview(self, config: Config, request: dict[str, Any], names: list[str], keep: bool) -> Any:
        """Return what `create` would send."""

    def create(
        self,
        config: Config,
        request: dict[str, Any],
        names: list[str],
        keep: bool,
        say: Callable[[str], None],
        still_trying: Callable[[], None],
    ) -> str:
        """Create machines, all or none; with `keep` the place makes lost ones again by itself.

        `still_trying` is called while there are none, before each further zone and every minute.
        What it raises ends the attempt. Return where they are, "" if the place makes them when it
        has room. Raise BergError with what was tried.
        """

    def machines(
        self,
        config: Config,
        jobs: Collection[str] = (),
        sweeps: Collection[str] = (),
        *,
        zone: str = "",
    ) -> list[Machine]:
        """Return the machines of these jobs and sweeps, by default of all of this bucket, by name.

        With a zone it may be called often.
        """

    def waiting(self, config: Config, job: str | None = None) -> set[str]:
        """Return the jobs and sweeps that have a machine, or get one when there is room.

        A `Job.group` whose state is not known now is one of them.
        """

    def why_gone(self, config: Config, job: str, group: Group, zone: str) -> str:
        """Return why a job with a group has no machines any more; "" if the place does not know."""

    def set_metadata(self, config: Config, machine: Machine, key: str, value: str) -> None:
        """Send a running machine a message."""

    def let_in(self, config: Config, machine: Machine, line: str) -> bool | None:
        """Add the key of a line USER:KEY; return whether it was new, None without a machine."""

    def login(self, config: Config, machine: Machine) -> Login | None:
        """Return how to log in to a machine, if only the machine itself can have written it."""

    def proxy(self, config: Config, machine: Machine) -> list[str]:
        """Return the command that connects to ssh on a machine without an external address."""

    def shell(self, machine: Machine) -> list[str]:
        """Return the command that runs others on a machine without an ssh server; [] for none."""

    def console(self, config: Config, machine: Machine) -> str:
        """Return what a machine wrote outside of its log; "" if it is gone."""

    def delete(
        self, config: Config, job: str, machines: list[Machine], group: Group = NO_GROUP
    ) -> None:
        """Delete machines, or a job's group with them, and wait until they are gone."""

    def take_back(self, config: Config, name: str, sha256: str) -> None:
        """Delete the machines and groups that a submit made for a job or a sweep, by the hash that
        it gave them, and wait until they are gone; nothing else that has the name.
        """

    def resources(self, config: Config) -> list[Resource]:
        """Return what else exists for this bucket's jobs and may be left over."""

    def remove(self, config: Config, resource: Resource) -> None:
        """Delete such a resource."""


ALL: tuple[Place, ...] = (gce, gke)
BY_NAME: dict[str, Place] = {"gce": gce, "tpu": gce, "gke": gke}  # by Job.place


def machines(
    config: Config, jobs: Collection[str] = (), sweeps: Collection[str] = ()
) -> list[Machine]:
    """Return the machines in all places."""
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda place: place.machines(config, jobs, sweeps), ALL)
        return [each for machines in found for each in machines]


def name_for(spec: JobSpec) -> str:
    """Return the name of the place that a spec is for; `tpu`: a slice of TPUs."""
    if spec.cluster:
        return "gke"
    if spec.tpu is not None and parse_tpu(spec.tpu).hosts > 1:
        return "tpu"
    return "gce"


def of(name: str) -> Place:
    """Return the place of that name; raise BergError for one that only a newer berg knows."""
    if name not in BY_NAME:
        raise BergError(
            f"this berg knows no place {name!r} for jobs, only {', '.join(BY_NAME)}; "
            "a newer one wrote it"
        )
    return BY_NAME[name]

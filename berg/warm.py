"""A machine, or the machines of one job, that wait for another job of their user (--keep-warm).

The machine offers itself in an object of the bucket. A laptop claims it by replacing the offer. The
machine takes the claim by replacing it again, or deletes the object and ends, each at the
generation that was last seen: so one laptop has the machine, or it ends, and never both. Of several
machines the first one does that for all. Other jobs may write the object, too. What a machine is,
and what it runs, its instance says (laptop/warm.py, machine/warm.py).
"""

from dataclasses import dataclass

from berg import job, validation

PREFIX = ".berg/machines/.warm/"  # no job has such a name
UNANSWERED = 60  # seconds after which a claim does not count: its laptop died
FEW = 300  # seconds before Google's limit in which no machine waits, or begins another job


@dataclass
class Offer:
    """What a machine offers, and who claims it. Times are timestamps."""

    machine: str  # the first of several
    zone: str
    id: str  # of the instance
    job: str  # the last one that ran there
    since: str
    until: str  # when the machine ends
    num_machines: int = 1
    claimed_by: str = ""  # the next job
    is_taken: bool = False  # the machine begins that job
    is_withdrawn: bool = False  # its laptop gave it up: it is to end

    def validate(self) -> None:
        """Raise ValueError for what no machine or laptop writes."""
        validation.check_resource(self.machine)
        validation.check_resource(self.zone)
        for name in filter(None, (self.job, self.claimed_by)):
            validation.check_resource(name)
        for time in (self.since, self.until):
            validation.check_time(time)
        if self.num_machines not in range(1, 1001):
            raise ValueError(f"{self.num_machines} machines")

    @property
    def names(self) -> list[str]:
        """The names of the machines by rank."""
        return names(self.machine, self.num_machines)

    @property
    def title(self) -> str:
        more = self.num_machines - 1
        return f"{self.machine} and {more} more" if more else self.machine

    def is_for(self, job: str) -> bool:
        """Return whether a job's claim holds."""
        return job != "" and self.claimed_by == job and not self.is_withdrawn

    @property
    def path(self) -> str:
        """The name of its object, which has it as custom metadata: one list shows all offers."""
        return f"{PREFIX}{self.zone}/{self.machine}"


def names(machine: str, num_machines: int) -> list[str]:
    """Return the names of machines that were created together, by rank; `machine` is one of them.

    Jobs that take them later do not change their names.
    """
    first = machine.rpartition("-")[0] if num_machines > 1 else machine
    return job.machine_names(first, num_machines)


def read(text: str) -> Offer:
    """Return an offer; raise ValueError for what is none."""
    return validation.cleaned(validation.from_dict(Offer, validation.parse(text)))

"""A machine that waits for another job of its user (--keep-warm).

It offers itself in an object of the bucket. A laptop claims it by replacing the offer. The machine
takes the claim by replacing it again, or deletes the object and ends, each at the generation that
was last seen: so one laptop has the machine, or it ends, and never both. Other jobs may write the
object, too. What the machine is, and what it runs, its instance says (laptop/warm.py,
machine/warm.py).
"""

from dataclasses import dataclass

from berg import validation

PREFIX = ".berg/machines/.warm/"  # no job has such a name
UNANSWERED = 60  # seconds after which a claim does not count: its laptop died
FEW = 300  # seconds before Google's limit in which no machine waits, or begins another job


@dataclass
class Offer:
    """What a machine offers, and who claims it. Times are timestamps."""

    machine: str
    zone: str
    id: str  # of the instance
    job: str  # the last one that ran there
    since: str
    until: str  # when the machine ends
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

    def is_for(self, job: str) -> bool:
        """Return whether a job's claim holds."""
        return job != "" and self.claimed_by == job and not self.is_withdrawn

    @property
    def path(self) -> str:
        """The name of its object, which has it as custom metadata: one list shows all offers."""
        return f"{PREFIX}{self.zone}/{self.machine}"


def read(text: str) -> Offer:
    """Return an offer; raise ValueError for what is none."""
    return validation.cleaned(validation.from_dict(Offer, validation.parse(text)))

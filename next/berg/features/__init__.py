"""All features, in the order in which the core calls them."""

from berg.feature import Feature
from berg.features.spot import Spot
from berg.job import Job

ALL: tuple[type[Feature], ...] = (Spot,)


def of(job: Job) -> list[Feature]:
    """The features of a job, as its record has them."""
    kinds = {kind.__name__: kind for kind in ALL}
    return [kinds[name](**values) for name, values in job.features.items()]

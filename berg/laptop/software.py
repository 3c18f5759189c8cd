"""Which software the attempts of a job ran with, as machine/software.py left it in the bucket."""

from dataclasses import dataclass, field

from berg import gate, job
from berg.google.storage import Bucket

LARGEST = 1 << 20  # bytes of what a machine may say


@dataclass(frozen=True)
class Software:
    """What a job's last attempt ran with; what is not known is empty."""

    python: str = ""
    driver: str = ""  # of NVIDIA's GPUs
    packages: dict[str, str] = field(default_factory=dict)  # name -> version

    def facts(self) -> dict[str, str]:
        """Return it as texts by what people call them."""
        packages = {f"package {name}": self.packages[name] for name in sorted(self.packages)}
        return {"python": self.python, "driver": self.driver, **packages}


def read(bucket: Bucket, name: str) -> Software:
    """Return what the last attempt of a job said; what is damaged counts as nothing."""
    found = list(bucket.list(job.log_prefix(name), glob=f"**{job.SOFTWARE}"))
    if not found:
        return Software()
    last = max(found, key=lambda each: str(each.updated))
    data = bucket.read_from(last.name, 0, LARGEST) or b""
    try:
        return gate.cleaned(gate.build(Software, gate.values(data)))
    except ValueError:
        return Software()

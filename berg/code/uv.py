"""uv, with which machines install: one version, known by the hash of its wheel.

A laptop fetches the wheel from its package index and sends it to the bucket for a job that needs
it. A machine unpacks it when uv is called for the first time (berg/machine/uv.py).
"""

import hashlib
from dataclasses import dataclass

from berg import computer
from berg.code import dist
from berg.config import home

VERSION = "0.13.9"


@dataclass(frozen=True)
class Wheel:
    """A wheel of uv: static programs for Linux on one kind of processor."""

    name: str
    platform: str  # in pip's words
    sha256: str
    md5: str  # as Cloud Storage has it

    @property
    def path(self) -> str:
        """The object that it is in the bucket."""
        return f".berg/dist/{self.name}"


WHEELS = {
    "x86_64": Wheel(
        "uv-0.13.9-py3-none-musllinux_1_1_x86_64.whl",
        "musllinux_1_1_x86_64",
        "2c45530751517d6c3bbc69a19473f6effe47cce047bede01ffd8af7ea7b36b25",
        "5p54Ffmy/Jfms/CAE8IVDw==",
    ),
    "aarch64": Wheel(
        "uv-0.13.9-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl",
        "manylinux_2_17_aarch64",
        "5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe",
        "/yljuV74Nq7cFmBATCM+qw==",
    ),
}
OF_MACHINES = WHEELS["x86_64"]  # what a laptop sends


def fetch() -> tuple[str, bytes]:
    """Return name and content of the wheel for machines, which this laptop keeps from then on.

    Raise BergError if its package index does not have it.
    """
    kept = home() / "uv" / OF_MACHINES.name
    content = kept.read_bytes() if kept.exists() else b""
    if hashlib.sha256(content).hexdigest() != OF_MACHINES.sha256:
        content = download(OF_MACHINES, dist.pip())
        computer.write(kept, content)
    return OF_MACHINES.name, content


def download(wheel: Wheel, pip: list[str]) -> bytes:
    """Return a wheel from the package index that `pip` asks.

    Raise BergError if the index does not have it, or has another file of that name.
    """
    return dist.download(f"uv=={VERSION}", wheel.sha256, pip, "--platform", wheel.platform)

"""What each machine records of a job that hangs, and which of its processes is the odd one.

A machine writes it to the results, below FOLDER; laptops read it, so `read` checks it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from berg import validation

FOLDER = "autopsy"  # of a results folder
MOST = 4  # groups that are named


@dataclass
class Autopsy:
    """What one machine recorded. Texts are what programs printed that were asked."""

    machine: str
    time: str
    # of each Python process of the job: its rank, its pid, and what its main thread does
    processes: list[list[str]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)  # by part: stacks, nccl, nvidia-smi, …
    failed: dict[str, str] = field(default_factory=dict)  # part -> why it is missing

    def validate(self) -> None:
        """Raise ValueError for what no machine writes."""
        if any(len(each) != 3 for each in self.processes):
            raise ValueError("its processes are odd")


def folder(results_dir: str, at: str) -> str:
    """Return the folder below berg_results of what was recorded at a moment."""
    return f"{results_dir}/{FOLDER}/{at.replace(':', '').replace('-', '')}"


def read(data: bytes) -> Autopsy:
    """Return what a machine recorded; raise ValueError for what none writes."""
    found = validation.from_dict(Autopsy, validation.parse(data))
    return validation.cleaned(found, free=("texts", "failed"))


def odd(found: Iterable[Autopsy]) -> str:
    """Return what the ranks of a job do, the smallest group first; "" if no stack is known.

    `rank 1 (train-1) is in evaluate (train.py:214), the 3 others are in all_reduce (train.py:210)`
    """
    autopsies = list(found)
    groups: dict[str, list[str]] = {}
    for each in autopsies:
        for rank, _, place in each.processes:
            if place:
                groups.setdefault(place, []).append(f"rank {rank} ({each.machine})")
    ordered = sorted(groups.items(), key=lambda group: len(group[1]))
    if len(ordered) < 2:
        lines = [in_words(place, members, "all") for place, members in ordered]
        return "; ".join([*lines, *behind(autopsies)])
    shown, rest = ordered[:-1], ordered[-1:]
    if len(ordered) > MOST:
        shown, rest = ordered[: MOST - 1], ordered[MOST - 1 :]
    last = f"the others are in {len(rest)} other places"
    if len(rest) == 1:
        last = in_words(*rest[0], "the", " others")
    return ", ".join([*(in_words(*group, "") for group in shown), last])


def in_words(place: str, members: list[str], before: str, after: str = "") -> str:
    """Return who is in a place: one by its rank and machine, several by their number."""
    if len(members) == 1:
        return f"{members[0]} is in {place}"
    return f"{before} {len(members)}{after or ' ranks'} are in {place}".strip()


def behind(found: list[Autopsy]) -> list[str]:
    """Return what NCCL counts where ranks disagree; [] if it does not say so."""
    lines = [line.strip() for each in found for line in each.texts.get("nccl", "").splitlines()]
    counts = list(dict.fromkeys(line for line in lines if "launched up to operation" in line))
    return [f"NCCL: {', '.join(counts[:2])}"] if len(counts) > 1 else []

"""What `--stop-worst` spends of a whole grid's steps, and how often it finds the same best job.

Simulated: berg's own rule decides, learning curves come from a seed, and each step takes equally long.
"""

import heapq
import math
import random
from dataclasses import dataclass, field
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import common
from common import Result, Target

from berg import job, states
from berg.machine import watchdogs
from berg.machine.outcome import Ending
from berg.spec import JobSpec

JOBS, MACHINES, STEPS = 81, 9, 81
SWEEPS = 40  # played for each repeat
RULES = {
    "the whole grid": [],
    "`--rungs 3,9,27`": [3, 9, 27],
    "`--rungs 9,27`": [9, 27],
    "`--rungs 5,10,20,40`": [5, 10, 20, 40],
}
KINDS = {  # how fast jobs learn: all alike, so that the order at a rung is nearly the last one
    "curves that keep their order": (0.5, 0.5),
    "curves that cross": (0.2, 1.2),
}


def curve(dice: random.Random, rates: tuple[float, float]) -> list[float]:
    """Return the loss of a job at each of its steps."""
    floor, begin, rate = dice.lognormvariate(-1, 0.5), dice.uniform(1, 3), dice.uniform(*rates)
    return [floor + begin * step**-rate + dice.gauss(0, 0.01) for step in range(1, STEPS + 1)]


@dataclass
class Sweep:
    """A sweep that is played: the states of its jobs, and the steps that it took."""

    curves: list[list[float]]
    rungs: list[int]
    jobs: dict[str, job.State] = field(default_factory=dict)
    steps: int = 0
    ended: dict[int, float] = field(default_factory=dict)  # job -> its last loss, if it went on

    def play(self) -> None:
        """Let the machines take one job after the other, until none is left."""
        waiting = list(range(len(self.curves)))[::-1]
        running = [(0.0, number, waiting.pop(), 0) for number in range(MACHINES)]
        while running:
            now, machine, number, step = heapq.heappop(running)
            step, self.steps = step + 1, self.steps + 1
            is_stopped = step in self.rungs and self.stops(number, step)
            if step == STEPS and not is_stopped:
                self.ended[number] = self.curves[number][-1]
            if step < STEPS and not is_stopped:
                heapq.heappush(running, (now + 1, machine, number, step))
            elif waiting:
                heapq.heappush(running, (now + 1, machine, waiting.pop(), 0))

    def stops(self, number: int, step: int) -> bool:
        """Return whether berg ends a job at a rung."""
        name, endings = f"s-{number}", []
        found = self.jobs.setdefault(name, job.State("RUNNING", job=job.Summary(sweep="s")))
        attempt: Any = SimpleNamespace(
            name=name,
            sweep="s",
            bucket=None,
            state=found,
            states=SimpleNamespace(write=lambda rungs: setattr(found, "rungs", rungs), flush=list),
            job=SimpleNamespace(
                spec=JobSpec(rungs=",".join(map(str, self.rungs)), stop_worst="loss")
            ),
            say=lambda text: None,
            stop=endings.append,
        )
        watchdogs.judge_rung(attempt, step, self.curves[number][step - 1])
        return any(isinstance(each, Ending) for each in endings)

    def listed(self, bucket: object, prefix: str) -> list[states.Stored]:
        """Return the states, in place of those in a bucket."""
        return [states.Stored(name, state, 1) for name, state in self.jobs.items()]


def played(seed: int, rates: tuple[float, float], rungs: list[int]) -> tuple[float, float, float]:
    """Return the share of steps, whether the best was found, and the loss above the best's in %."""
    dice = random.Random(seed)
    sweep = Sweep([curve(dice, rates) for _ in range(JOBS)], rungs)
    with patch.object(watchdogs.states, "listed", sweep.listed):
        sweep.play()
    best = min(each[-1] for each in sweep.curves)
    found = min(sweep.ended.values(), default=math.inf)
    return sweep.steps / (JOBS * STEPS), float(found == best), 100 * (found / best - 1)


def measure(repeats: int) -> list[Result]:
    results = []
    for kind, rates in KINDS.items():
        rows, shares = [], {}
        for rule, rungs in RULES.items():
            sweeps = [played(seed, rates, rungs) for seed in range(repeats * SWEEPS)]
            share, found, above = (list(each) for each in zip(*sweeps, strict=True))
            shares[rule] = median(share)
            rows.append(
                [
                    rule,
                    f"{100 * median(share):.0f} %",
                    f"{100 * sum(found) / len(found):.0f} %",
                    f"{sum(above) / len(above):.1f} %",
                ]
            )
        note = (
            f"{JOBS} jobs of {STEPS} steps on {MACHINES} machines, {repeats * SWEEPS} sweeps. Excess loss: "
            "that of the best job found over that of the best there is, on average."
        )
        target = Target(
            "steps of `--rungs 3,9,27` over the whole grid's", shares[list(RULES)[1]], 0.5
        )
        header = ["", "steps", "same best", "excess loss"]
        results.append(Result(f"Halving: {kind}", note, header, rows, [target]))
    return results


if __name__ == "__main__":
    common.main(__doc__, measure)

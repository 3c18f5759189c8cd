"""What a user's jobs may cost in a day (UTC), in dollars: the setting `budget`, or BERG_BUDGET.

Each job has an object, .berg/budget/DAY/USER/JOB: before it has a machine, with the most that it may
cost, then with what it has cost. Each submit reads the sum after it has written its own; if that is too
much, the later one withdraws. All of a job counts on the day of its submit. A job that is lost keeps
what it might have cost. This is a guard against mistakes and loops, not against hostile code.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from berg import BergError, terminal
from berg import job as jobs
from berg.bucket import Bucket, Changed, trouble
from berg.feature import Feature
from berg.features import cost, keep

if TYPE_CHECKING:
    from berg.config import Config
    from berg.job import Job
    from berg.run import Plan
    from berg.worker import Ending, Run

BUDGETS = ".berg/budget/"
LEAVING = 60  # seconds from the end of a job to that of its machine
LOOK = 5  # seconds between two looks at what the job has cost


@dataclass
class Budget(Feature):
    user: str = ""
    usd_per_hour: float = 0  # of all machines

    def __post_init__(self) -> None:
        self.most, self.day, self.before = 0.0, "", 0.0
        self.next = 0.0

    def is_due(self, plan: Plan) -> bool:
        return plan.config.dollars("budget") > 0

    def change(self, plan: Plan) -> None:
        config, job = plan.config, plan.job
        name = os.environ.get("BERG_BUDGET_NAME") or config.user
        self.user = re.sub(r"[^a-z0-9-]+", "-", name.lower())[:40] or "unknown"
        self.day = time.strftime("%Y-%m-%d", time.gmtime())
        if plan.usd_per_hour is None:
            raise BergError(
                f"the price of {job.machine_type} is not known, so that no budget can count it. Choose "
                "another machine; or Google's list is off: gcloud services enable "
                "cloudbilling.googleapis.com"
            )
        self.usd_per_hour = plan.usd_per_hour
        own = f"{BUDGETS}{self.day}/{self.user}/{job.name}"
        spent = {path: usd for path, (usd, _) in sums(Bucket(config), self.prefix).items()}
        if plan.ended:
            spent.pop(own, None)
        total = config.dollars("budget") or math.inf  # a job is resumed where there is no budget
        left = max(0.0, total - sum(spent.values()))
        seconds = left / self.usd_per_hour * 3600 if self.usd_per_hour else math.inf
        if not cost.shorten(plan, seconds, "budget"):
            raise BergError(
                f"${left:.2f} are left of the ${total:g} that your jobs may cost today, and this one "
                f"costs ${self.usd_per_hour:.2f} an hour. Choose cheaper machines, or wait until "
                "midnight UTC. The limit: berg config get budget, or BERG_BUDGET"
            )
        self.most = self.usd_per_hour * plan.seconds / 3600
        if total < math.inf:
            plan.rows["Budget"] = (
                f"at most ${self.most:.2f} in {terminal.duration(plan.seconds)}, of ${left:.2f} that are "
                f"left of today's ${total:g}"
            )
        if not plan.ended:  # else its record is written, and `look` ends it in time
            job.features["Budget"] = self.record()

    @property
    def prefix(self) -> str:
        return f"{BUDGETS}{self.day}/{self.user}/"

    def send(self, plan: Plan) -> None:
        bucket, path = Bucket(plan.config), self.prefix + plan.job.name
        found = bucket.find_with_generation(path)  # of an earlier attempt, or job of this name
        costs = json.loads(found[0])["costs"] if found else {}
        most = self.most + sum(costs.values())
        try:
            generation = write(bucket, path, most, costs, most, found[1] if found else 0)
        except Changed:
            raise BergError(f"{path} was written by someone else meanwhile. Try again") from None
        listed = sums(bucket, self.prefix)
        earlier = sum(usd for usd, other in listed.values() if other <= generation)
        total = plan.config.dollars("budget")
        if total and earlier > total + 0.005:
            raise BergError(
                f"another job took what was left of the ${total:g} that your jobs may "
                "cost today. Try again: what is left then is in the plan"
            )

    def forget(self, config: Config, job: Job) -> None:
        """Give back what a job has not cost that never had a machine, or was killed on it."""
        bucket = Bucket(config)
        if (path := newest(bucket, self.user, job)) and (row := bucket.find(path)):
            costs, most = json.loads(row)["costs"], json.loads(row)["most"]
            with contextlib.suppress(BergError):
                state, _ = jobs.read_state(bucket, job.name)
                if state.id != job.id:  # another job has the name by now, and the object
                    return
                if state.machine and (state.machine_id not in costs or state.waits):
                    costs[state.machine_id] = self.cost(state.seconds - state.seconds_before)
            if costs:
                write(bucket, path, min(most, sum(costs.values())), costs, most)
            else:
                bucket.delete(path)

    def cost(self, seconds: float) -> float:
        return (seconds + LEAVING) / 3600 * self.usd_per_hour

    # --- on the machine

    @contextlib.contextmanager
    def around(self, run: Run) -> Iterator[None]:
        self.next, self.most = 0.0, 0.0
        if run.leads and "/" not in run.job.name:
            self.count(run, is_over=False)
        yield

    def look(self, run: Run) -> Ending | None:
        from berg.worker import SAVING, Ending

        if not self.most or time.monotonic() < self.next:
            return None
        self.next = time.monotonic() + LOOK
        seconds = run.job.max_seconds - run.seconds
        reserve = min(SAVING, run.job.max_seconds / 5)
        if self.before + self.cost(seconds + reserve) < self.most + self.cost(0):
            return None
        reason = f"it has cost what its budget allows (${self.most:.2f})"
        return Ending(jobs.FAILED, reason, seconds=reserve, is_firm=True)

    def ended(self, run: Run, ending: Ending) -> Ending:
        """Of a machine that waits its most counts until that is over: guests may hold it. So it does until it
        is known whether the job restarts.
        """
        if run.leads and "/" not in run.job.name:
            is_open = keep.waits(run, ending) > 0 or "Restart" in run.job.features
            self.count(run, is_over=not (is_open or (ending.is_loss and run.job.returns)))
            if is_open:
                return replace(ending, then=lambda run: self.count(run, run.state.is_final))
        return ending

    def count(self, run: Run, is_over: bool) -> None:
        """Note what the job has cost on this machine; until it is over, its most counts."""
        with contextlib.suppress(*trouble()):
            path = newest(run.bucket, self.user, run.job)
            if path and (found := run.bucket.find(path)):
                row = json.loads(found)
                self.most, costs = float(row["most"]), row["costs"]
                self.before = sum(usd for id, usd in costs.items() if id != run.facts.id)
                costs[run.facts.id] = self.cost(run.job.max_seconds - run.seconds)
                spent = sum(costs.values())
                write(run.bucket, path, spent if is_over else self.most, costs, self.most)


def sums(bucket: Bucket, prefix: str) -> dict[str, tuple[float, int]]:
    """Dollars and generation of each job; what is no number of dollars counts as nothing."""
    found = {}
    for item in bucket.list(prefix):
        with contextlib.suppress(ValueError, KeyError):
            found[item.name] = float(item.about["usd"]), item.generation
    return found


def newest(bucket: Bucket, user: str, job: Job) -> str:
    """The object of a job's last submit; "" without one."""
    start = BUDGETS + job.created_at[:10]
    names = [item.name for item in bucket.list(BUDGETS, start)]
    return max((name for name in names if name.endswith(f"/{user}/{job.name}")), default="")


def write(
    bucket: Bucket,
    path: str,
    usd: float,
    costs: dict[str, float],
    most: float,
    generation: int | None = None,
) -> int:
    content: dict[str, Any] = {"usd": usd, "most": most, "costs": costs}
    about = {"usd": f"{usd:.4f}"}
    return bucket.write(path, json.dumps(content).encode(), generation, about).generation

"""What a job may cost: --max-cost, the settings `max_cost` and `ask_above`, and the price in its plan.

A limit is a time of the machines, which Google enforces; where machines come back, they count what
earlier attempts cost. Only --max-cost raises the limit of the settings; nothing raises that of the
environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from berg import BergError, prices, terminal
from berg import job as jobs
from berg.config import dollars
from berg.feature import Feature
from berg.features import flex
from berg.options import option, set_by

if TYPE_CHECKING:
    from berg.config import Config
    from berg.run import Plan
    from berg.worker import Ending, Run

LEAST = 300  # seconds of a machine that are worth a start


@dataclass
class MaxCost(Feature):
    max_cost: float | None = option(
        "--max-cost", type=click.FloatRange(0), metavar="DOLLARS",
        help="The most that the job may cost, with all attempts and rows; 0 for any.",
    )  # fmt: skip

    def is_due(self, plan: Plan) -> bool:
        return plan.config.dollars("max_cost") > 0

    def change(self, plan: Plan) -> None:
        self.max_cost, source = limit(plan.config, self.max_cost)
        if not plan.ended:
            plan.job.features["MaxCost"] = self.record()
        if not self.max_cost or plan.usd_per_hour == 0:
            return
        if plan.usd_per_hour is None:
            raise BergError(
                f"the price of this is not known, so it cannot be kept below ${self.max_cost:g} "
                f"({source}). Choose another machine: berg gpus"
            )
        spent = (plan.ended.usd if plan.ended else 0) or 0
        seconds = (self.max_cost - spent) / plan.usd_per_hour * 3600
        if not shorten(plan, seconds, source):
            raise BergError(
                f"${self.max_cost:g} ({source}) are spent after {max(0, int(seconds))} seconds, at "
                f"${plan.usd_per_hour:,.2f} an hour. Give more, or choose cheaper machines: berg gpus"
            )

    def look(self, run: Run) -> Ending | None:
        from berg.worker import SAVING, Ending

        state = run.state
        if not (self.max_cost and state.usd_per_hour and state.seconds_before and run.leads):
            return None
        reserve = min(SAVING, run.job.max_seconds / 5)
        if state.usd_per_hour * (state.seconds + reserve) / 3600 < self.max_cost:
            return None
        reason = f"its attempts have cost what --max-cost allows (${self.max_cost:g})"
        return Ending(jobs.FAILED, reason, seconds=reserve, is_firm=True)


@dataclass
class Price(Feature):
    """What a plan costs, after all limits, and a question if that is much."""

    def is_due(self, plan: Plan) -> bool:
        return True

    def change(self, plan: Plan) -> None:
        usd, bound = plan.usd_at_most, ask_above(plan.config)
        if usd is None:
            plan.rows["Price"] = (
                "that of the reservation, which is paid for in any case" if "Reservation" in plan.rows
                else "unknown: Google's public list lacks a part of it"
            )  # fmt: skip
        else:
            most = plan.job.features.get("MaxCost", {}).get("max_cost")
            each = " for each attempt" if plan.job.returns else ""
            each += f", {terminal.dollars(most)} for all" if each and most else ""
            plan.rows["Price"] = (
                f"{terminal.dollars(plan.usd_per_hour)} an hour, at most {terminal.dollars(usd)} in "
                f"{terminal.duration(plan.seconds)}{each}"
            )
        if bound and (usd is None or usd > bound):
            what = "an unknown sum" if usd is None else f"${usd:,.0f}"
            plan.questions.append(f"This may cost {what}; berg asks above ${bound:g} (ask_above)")


def limit(config: Config, given: float | None) -> tuple[float, str]:
    """The most that a job may cost, and what says so; 0 for any."""
    own = config.dollars("max_cost")
    rows = [(given or 0, "--max-cost")]
    if given is None or set_by("max_cost") != "command line":
        source = set_by("max_cost") or "the job's record"
        rows = [(given or 0, f"max-cost of {source}"), (own, "max_cost of your settings")]
    if "BERG_MAX_COST" in os.environ:
        rows.append((own, "BERG_MAX_COST"))
    return min((row for row in rows if row[0]), default=(0, ""))


def ask_above(config: Config) -> float:
    """Dollars above which a plan is asked for; a repository may lower it. 0 for any."""
    defaults = click.get_current_context().default_map or {}
    lower = dollars("ask-above of pyproject.toml", str(defaults.get("ask_above", "")))
    bounds = [config.dollars("ask_above"), lower]
    return min(filter(None, bounds), default=0)


def shorten(plan: Plan, seconds: float, source: str) -> bool:
    """Let a plan's machines end after these seconds, if they would later; False if these are too few."""
    is_flex = plan.request["scheduling"].get("provisioningModel") == prices.FLEX
    if seconds < min(flex.LEAST if is_flex else LEAST, plan.job.max_seconds):
        return False
    if seconds < plan.seconds:
        plan.request["scheduling"]["maxRunDuration"] = {"seconds": str(int(seconds))}
        plan.limited_by = source
        if not plan.ended:
            plan.job.max_seconds = int(seconds)
    return True

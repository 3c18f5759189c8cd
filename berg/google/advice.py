"""What Google says of its own chances: how likely Spot machines are to be had in a zone, how long
one lasts, and how many were taken away.

Not covered: machines that are not Spot, TPUs. Google has no history of GPUs attached to N1.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from berg.config import Config
from berg.google import api, http
from berg.google.accelerators import TPU_FAMILIES, Shape


@dataclass(frozen=True)
class Odds:
    """What is to be expected of machines in a zone, or in the best of several."""

    zone: str
    obtainability: float  # 0 to 1; from 0.7 good, up to 0.3 poor
    uptime: float  # seconds that one lasts, about
    # share of those that ended in the last 30 days which Google took; None: not known
    preempted: float | None = None

    @property
    def hours(self) -> str:
        """About how many hours one lasts, as people write it."""
        return f"{self.uptime / 3600:.1f}".removesuffix(".0")

    @property
    def share(self) -> str:
        """How many were taken away, as people write it; "?" if that is not known."""
        return "?" if self.preempted is None else f"{self.preempted * 100:.0f} %"

    def __str__(self) -> str:
        text = f"{self.zone}: obtainability {self.obtainability:g}, uptime about {self.hours} h"
        if self.preempted is None:
            return text
        return f"{text}, {self.share} preempted"


def of_zones(config: Config, shape: Shape, zones: Iterable[str], size: int) -> list[Odds]:
    """Return the odds of so many Spot machines in each zone, the best first.

    A zone of which Google says nothing is not among them: who may not ask hears of none.
    """
    _ = config.session  # before threads want it
    with ThreadPoolExecutor() as pool:
        asked = list(pool.map(lambda zone: of_place(config, shape, [zone], size), zones))
    return sorted(filter(None, asked), key=lambda each: -each.obtainability)


def of_shapes(config: Config, wanted: Iterable[tuple[Shape, list[str]]]) -> dict[str, Odds]:
    """Return the odds of one Spot machine of each shape in the best of its zones, by machine type
    and GPU type; of a shape of which Google says nothing there are none.
    """
    _ = config.session
    asked = [(shape, zones) for shape, zones in wanted if zones]
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda each: of_place(config, each[0], each[1], 1), asked))
    return {shape.gpu_type: odds for (shape, _), odds in zip(asked, found, strict=True) if odds}


def of_place(config: Config, shape: Shape, zones: list[str], size: int) -> Odds | None:
    """Return the odds of machines in the best of some zones of a region; None if Google does not
    say.
    """
    if shape.machine_type.startswith(TPU_FAMILIES):
        return None
    answer = ask(config, zones[0], "capacity", question(config, shape, zones, size))
    for each in answer.get("recommendations", []):
        scores, shards = each.get("scores", {}), each.get("shards", [])
        uptime = float(scores.get("estimatedUptime", "0s").removesuffix("s"))
        best = next((api.last_part(shard["zone"]) for shard in shards), zones[0])
        odds = Odds(best, scores.get("obtainability", 0.0), uptime)
        return replace(odds, preempted=preempted(config, shape, best))
    return None


def preempted(config: Config, shape: Shape, zone: str) -> float | None:
    """Return the share of Spot machines that ended in the last 30 days which Google took away; None
    if it does not say.
    """
    if shape.accelerator:
        return None
    asked = {
        "types": ["PREEMPTION"],
        "locationPolicy": {"location": f"zones/{zone}"},
        "instanceProperties": {
            "machineType": shape.machine_type,
            "scheduling": {"provisioningModel": "SPOT"},
        },
    }
    days = ask(config, zone, "capacityHistory", asked).get("preemptionHistory", [])
    rates = [each["preemptionRate"] for each in days if "preemptionRate" in each]
    return sum(rates) / len(rates) if rates else None


def ask(config: Config, zone: str, what: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of Google's about the region of a zone; {} if it gives none."""
    region = zone.rpartition("-")[0]
    try:
        return api.call(config, "POST", f"/regions/{region}/advice/{what}", body)
    except http.GoogleError:
        return {}


def question(config: Config, shape: Shape, zones: list[str], size: int) -> dict[str, Any]:
    """Return the question how likely machines are in some zones of a region."""
    selection: dict[str, object] = {"machineTypes": [shape.machine_type]}
    if shape.accelerator:
        kind = f"projects/{config.project}/zones/{zones[0]}/acceleratorTypes/{shape.accelerator}"
        attached = {"acceleratorType": kind, "acceleratorCount": shape.num_gpus}
        selection["guestAccelerators"] = [attached]
    return {
        "size": size,
        "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
        "instanceFlexibilityPolicy": {"instanceSelections": {"asked": selection}},
        "distributionPolicy": {
            "zones": [{"zone": f"zones/{zone}"} for zone in zones],
            "targetShape": "ANY_SINGLE_ZONE",
        },
    }

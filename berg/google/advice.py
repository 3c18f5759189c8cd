"""What Google says of its own chances: how likely Spot machines are to be had in a zone.

Not covered: machines that are not Spot, TPUs, how often machines were taken away before.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from berg.config import Config
from berg.google import api
from berg.google.accelerators import TPU_FAMILIES, Shape


@dataclass(frozen=True)
class Odds:
    """What is to be expected of machines in a zone."""

    zone: str
    obtainability: float  # 0 to 1; from 0.7 good, up to 0.3 poor
    uptime: float  # seconds that one lasts, about

    def __str__(self) -> str:
        hours = f"{self.uptime / 3600:.1f}".removesuffix(".0")
        return f"{self.zone}: obtainability {self.obtainability:g}, uptime about {hours} h"


def of_zones(config: Config, shape: Shape, zones: Iterable[str], size: int) -> list[Odds]:
    """Return the odds of so many Spot machines in each zone, the best first.

    A zone of which Google says nothing is not among them: who may not ask hears of none.
    """
    if shape.machine_type.startswith(TPU_FAMILIES):
        return []
    _ = config.session  # before threads want it
    with ThreadPoolExecutor() as pool:
        asked = list(pool.map(lambda zone: of_zone(config, shape, zone, size), zones))
    found = [each for each in asked if each]
    return sorted(found, key=lambda each: -each.obtainability)


def of_zone(config: Config, shape: Shape, zone: str, size: int) -> Odds | None:
    """Return the odds of machines in a zone; None if Google does not say."""
    from google.api_core import exceptions

    region = zone.rpartition("-")[0]
    try:
        answer = api.call(
            config, "POST", f"/regions/{region}/advice/capacity", body(config, shape, zone, size)
        )
    except exceptions.GoogleAPICallError:
        return None
    for each in answer.get("recommendations", []):
        scores = each.get("scores", {})
        uptime = float(scores.get("estimatedUptime", "0s").removesuffix("s"))
        return Odds(zone, scores.get("obtainability", 0.0), uptime)
    return None


def body(config: Config, shape: Shape, zone: str, size: int) -> dict[str, object]:
    """Return the question about one zone."""
    selection: dict[str, object] = {"machineTypes": [shape.machine_type]}
    if shape.accelerator:
        kind = f"projects/{config.project}/zones/{zone}/acceleratorTypes/{shape.accelerator}"
        attached = {"acceleratorType": kind, "acceleratorCount": shape.num_gpus}
        selection["guestAccelerators"] = [attached]
    return {
        "size": size,
        "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
        "instanceFlexibilityPolicy": {"instanceSelections": {"asked": selection}},
        "distributionPolicy": {
            "zones": [{"zone": f"zones/{zone}"}],
            "targetShape": "ANY_SINGLE_ZONE",
        },
    }

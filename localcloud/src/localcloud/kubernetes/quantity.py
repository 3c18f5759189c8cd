"""Kubernetes' quantities: 500m, 20Gi, 2e3."""

import re

UNITS = {
    "": 1,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "n": 1e-9,
    "u": 1e-6,
}
UNITS |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)}


def amount(quantity: object) -> float:
    found = re.fullmatch(r"([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)([a-zA-Z]*)", str(quantity))
    return float(found[1]) * UNITS[found[2]] if found else 0.0

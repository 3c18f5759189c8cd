"""TOML, which Python reads by itself from 3.11 on."""

import sys
from typing import Any

from berg import BergError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse(text: str, name: str) -> dict[str, Any]:
    """Return what a file of TOML says; raise BergError with its name if it is not valid."""
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BergError(f"cannot read {name}: {error}") from None
    return found

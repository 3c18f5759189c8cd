"""Plotly's script, which draws the page's charts, from its Python package.

The extra `page` installs it; it is served and exported from where it is installed.
"""

import functools
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

SCRIPT = "plotly/package_data/plotly.min.js"


@dataclass(frozen=True)
class Library:
    """An installed script, and the name under which pages ask for it."""

    name: str
    file: Path


@functools.cache
def find() -> Library | None:
    """Return the installed library; None if there is none."""
    try:
        installed = distribution("plotly")
    except PackageNotFoundError:
        return None
    file = Path(str(installed.locate_file(SCRIPT)))
    if not file.is_file():
        return None
    return Library(f"plotly-{installed.version}.js", file)

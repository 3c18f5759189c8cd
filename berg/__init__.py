"""Run machine-learning experiments on Google Cloud accelerators and keep the results in a bucket."""

import warnings
from typing import TYPE_CHECKING, Any

import click

__version__ = "0.1.0"
# Google's libraries say with every command how long they will support this python.
warnings.filterwarnings("ignore", r"\s*You are using a (non-supported )?Python version", FutureWarning)


class BergError(click.ClickException):
    """What went wrong, for the person at the terminal: the thing by name, then the next step."""

    def show(self, file=None):
        click.secho(f"berg: {self.message}", fg="red", err=True)


if not TYPE_CHECKING:  # else any name would seem to be here

    def __getattr__(name: str) -> Any:
        """berg.run and berg.Job, whose modules take long to import, only for who uses them."""
        if name not in ("run", "Job"):
            raise AttributeError(f"module 'berg' has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module("berg.api"), name)

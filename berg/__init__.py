"""Run machine-learning experiments on Google Cloud accelerators and keep the results in a bucket."""

import warnings

import click

__version__ = "0.1.0"
# Google's libraries say with every command how long they will support this python.
warnings.filterwarnings("ignore", r"\s*You are using a (non-supported )?Python version", FutureWarning)


class BergError(click.ClickException):
    """What went wrong, for the person at the terminal: the thing by name, then the next step."""

    def show(self, file=None):
        click.secho(f"berg: {self.message}", fg="red", err=True)

"""The command line: what it is called with goes to a command, and an error ends in one sentence."""

import gc
import io
import os
import sys

import click

from berg import BergError, __version__
from berg.commands.register import Commands, Sections, drop_output


def main() -> None:
    """Run the command line; every error ends in one sentence, and in a traceback only with
    BERG_DEBUG=1.
    """
    gc.set_threshold(100_000)  # imports make many objects, none of which is garbage
    sys.setswitchinterval(0.001)  # who got an answer need not wait long for who imports
    fill_streams()
    try:
        sys.exit(
            cli.main(standalone_mode=False, color=False if os.environ.get("NO_COLOR") else None)
        )
    except (Exception, KeyboardInterrupt) as error:
        status = show(error)
        drop_output()
        sys.exit(status)
    finally:
        # At its end python looks at all objects for garbage, a third of a second after a submit.
        gc.freeze()


def fill_streams() -> None:
    """Open the null device for standard streams that are closed: the next file that is opened would
    have their number, and take what is printed.
    """
    sys.stdin = sys.stdin or os.fdopen(os.open(os.devnull, os.O_RDONLY))
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def show(error: Exception | KeyboardInterrupt) -> int:
    """Say what went wrong, and return the exit status that goes with it."""
    from berg.commands.terminal import describe, interrupted, is_unanswered, say, show_traceback

    if isinstance(error, click.UsageError):
        error.show(shown := io.StringIO())
        say(shown.getvalue().rstrip())
        return 2
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        say(interrupted(error))
        return 1 if is_unanswered(error) else 130
    show_traceback()
    if isinstance(error, click.ClickException):
        error.show()
    else:
        BergError(describe(error)).show()
    return 1


@click.group(
    cls=Sections,
    commands=Commands(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="berg")
def cli() -> None:
    """Run machine-learning experiments on Google Cloud accelerators; keep the results in a bucket.

    \b
    berg init --local                        # try it without Google
    berg run "python train.py --lr=0.1"      # from a git repo
    berg list

    Names complete in the shell after: eval "$(_BERG_COMPLETE=bash_source berg)"
    """

"""`berg page`: jobs, metrics, logs and results in a browser.

A static page (index.html, page.js) draws the JSON of `berg list`, `berg show` and `berg sweep`. It is
served on this computer alone, or written to a folder together with that JSON.
"""

from pathlib import Path

import click

from berg import BergError, terminal
from berg.config import Config
from berg.options import complete_names


@click.command()
@click.argument("names", metavar="[NAME…]", nargs=-1, shell_complete=complete_names)
@click.option("-a", "--all", "everyone", is_flag=True, help="Also other users' jobs.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Serve it at this port. [default: any]"
)
@click.option(
    "--export", "folder", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
    help="Write files instead.",
)  # fmt: skip
def page(names: tuple[str, ...], everyone: bool, port: int, folder: Path | None) -> None:
    """Show jobs, metrics, logs and results in a browser.

    The page is served on this computer only, until Ctrl-C. It follows jobs that run, and can end them
    after a question. --export writes the page of jobs and sweeps NAME… with their logs and results to a
    new folder, to open from disk or to send.

    \b
    berg page
    berg page --export ./for-ada sweep1
    """
    if folder and not names:
        raise click.UsageError("--export writes the page of jobs and sweeps: give their names")
    if names and not folder:
        raise click.UsageError("the page has all jobs; NAME is for --export FOLDER")
    config = Config.load()
    if folder:
        from berg.clients.page.export import export

        return terminal.show(str(export(config, names, folder)))
    from berg.clients.page.serve import Site

    try:
        site = Site(config, port, everyone)
    except OSError as error:
        raise BergError(
            f"port {port} is not available: {error.strerror}. For a free one leave --port out"
        ) from None
    terminal.show(site.address)
    terminal.say("Open it in a browser on this computer. Ctrl-C ends it.")
    with site:
        site.serve_forever()
    return None

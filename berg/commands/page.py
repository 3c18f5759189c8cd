"""The command that shows jobs in a browser: page."""

from pathlib import Path

import click

from berg import config, plain
from berg.commands.terminal import complete_names, say


@click.command()
@click.argument("names", metavar="[NAME…]", nargs=-1, shell_complete=complete_names)
@click.option("-a", "--all", "everybody", is_flag=True, help="Everybody's jobs, not only mine.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port on this computer.  [default: a free one]",
)
@click.option(
    "--export",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write files instead.",
)
def page(names: tuple[str, ...], everybody: bool, port: int, export: Path | None) -> None:
    """Show jobs, logs, charts and results in a browser.

    The page is served on this computer alone, until Ctrl-C, to who opens the whole address with its
    token. What lives is followed; jobs can be ended, after a question, and nothing else can be
    changed. With --export the pages of jobs and sweeps NAME… are written to a new folder instead,
    with their logs and results, to open from disk or to send.

    \b
    berg page
    berg page --export ./for-ada sweep1
    """
    if export and not names:
        raise click.UsageError("--export writes the pages of jobs and sweeps: give their names")
    if names and not export:
        raise click.UsageError("the page has all jobs; NAME is for --export FOLDER")
    settings = config.load_ready()
    if export:
        from berg.laptop import latest
        from berg.watch import export as exporting

        plain.echo(
            exporting.export(
                settings, [latest.resolve(settings, name) for name in names], export, say
            )
        )
        return
    from berg import BergError
    from berg.watch.serve import Server

    try:
        server = Server(settings, port, None if everybody else settings.user)
    except OSError as error:
        raise BergError(
            f"port {port} cannot be had: {error.strerror}. Take a free one: leave --port out"
        ) from None
    plain.echo(server.address)
    say("Open it in a browser on this computer. Ctrl-C ends it.")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("")
    finally:
        server.server_close()


COMMANDS = (page,)

"""The command that opens a machine in the browser or in an editor: open."""

import contextlib
import shlex

import click

from berg import plain
from berg.commands.terminal import name_argument, ready, say


@click.command(name="open")
@name_argument()
@click.option(
    "--jupyter", is_flag=True, help="Jupyter, in the browser of this computer: the default."
)
@click.option("--code", is_flag=True, help="Print the command that opens an editor there over ssh.")
@click.option("--no-browser", is_flag=True, help="Only say which file leads to Jupyter.")
def open_(name: str, jupyter: bool, code: bool, no_browser: bool) -> None:
    """Open Jupyter of a machine in the browser here, or an editor.

    Jupyter is started on the machine NAME if it does not run, and goes on when this command ends,
    at Ctrl-C. It listens on that machine alone, and is reached through ssh. Its token stands in no
    command line: the browser gets a file that only you may read. With --code the command for VS
    Code is printed, once ssh knows the machine by its name (berg ssh-config).

    \b
    berg open my-devbox
    berg open my-devbox --code
    """
    if code and (jupyter or no_browser):
        raise click.UsageError("--code opens no Jupyter: leave out the other options")
    settings, name = ready(name)
    if code:
        from berg.laptop import ssh_config as entries

        entries.write_config(settings, say)
        if not entries.is_included():
            say("So that ssh knows machines by name, run once: berg ssh-config --install")
        plain.echo(shlex.join(["code", "--remote", f"ssh-remote+{name}", "/root/code"]))
        return
    import webbrowser

    from berg.laptop import notebook

    with (
        contextlib.suppress(KeyboardInterrupt),
        notebook.opened(settings, name, say) as (page, tunnel),
    ):
        is_shown = not no_browser and webbrowser.open(page.as_uri())
        how = "Jupyter is in the browser" if is_shown else f"Open in a browser: {page.as_uri()}"
        say(f"{how}\nIt is reached as long as this runs; Ctrl-C ends the tunnel")
        tunnel.wait()
    say(f"The tunnel is closed. Jupyter goes on, on {name}")


COMMANDS = (open_,)

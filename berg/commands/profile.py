"""The command that profiles what runs: profile."""

import json
import sys
from pathlib import Path

import click

from berg import plain
from berg.commands.terminal import Duration, json_option, name_argument, ready, say

KINDS = {
    "jax": "the command's profiler server (JAX, torch_tpu)",
    "kineto": "PyTorch's profiler (Kineto)",
    "py-spy": "py-spy: python from outside",
}
PERFETTO = "https://ui.perfetto.dev (files stay in the browser)"
SPEEDSCOPE = "https://www.speedscope.app (files stay in the browser), or: npx speedscope FILE"


@click.command()
@name_argument()
@click.option(
    "-s",
    "--seconds",
    type=Duration("s"),
    default=10,
    show_default="10s",
    help="How long; 1s to 10m.",
)
@click.option("--machine", metavar="NAME", help="Only that machine of a cluster.")
@json_option
def profile(name: str, seconds: float, machine: str | None, as_json: bool) -> None:
    """Take a profile of a command that runs.

    All its machines take it at once, and the command runs on. It is JAX's if the command started
    the profiler server on the port BERG_PROFILER_PORT, PyTorch's if the job was started with
    --profile; else py-spy looks at its python processes from outside. Files are kept among the
    results, and brought to ~/berg_results.

    \b
    berg profile @
    berg profile digits-1121-0930-x7k -s 30 --machine digits-1121-0930-x7k-1
    """
    if not 1 <= seconds <= 600:
        raise click.UsageError(f"--seconds {seconds:g}: give 1s to 10m")
    settings, name = ready(name)
    from berg.watch import profile as profiles

    found, machines = profiles.find(settings, name, machine)
    say(f"Taking a profile of {found.name} for {seconds:g} s")
    answers = profiles.take(settings, found, machines, seconds)
    files = profiles.bring(settings, answers, Path.home() / "berg_results", say)
    kinds = set()
    for each in sorted(answers):
        kind = answers[each].get("kind", "")
        error = answers[each].get("error") or "odd answer"
        kinds.add(kind)
        say(f"{each}: {KINDS.get(kind, error)}")
    if as_json:
        paths = [str(file) for file in files]
        plain.echo(json.dumps({"machines": answers, "files": paths}, indent=2))
    else:
        plain.echo("\n".join(map(str, files)))
        for file in files:
            say_hottest(profiles.hottest(file))

        say_how_to_open(name, kinds)
    sys.exit(int(not files))


def say_hottest(lines: list[str]) -> None:
    """Say in which lines the time went, if that is known."""
    if lines:
        say("The time went here, without what these called:\n" + "\n".join(lines))


def say_how_to_open(name: str, kinds: set[str]) -> None:
    """Say which program shows profiles of each kind."""
    if "jax" in kinds:
        say(f"Open it:  berg tensorboard {name}    (its tab takes berg's extra, profile)")
    if "kineto" in kinds:
        say(f"Open it:  {PERFETTO}")
    if "py-spy" in kinds:
        say(f"Open it:  {SPEEDSCOPE}")


COMMANDS = (profile,)

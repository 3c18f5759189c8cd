"""What the command modules share: where messages go, options, the completion of names."""

import contextlib
import errno
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import click

from berg import columns, config, gate, plain, wrapped

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
# Commands whose NAME must have a machine.
NEED_A_MACHINE = ("ssh", "open", "sync", "ip", "kill", "stop", "start")
QUOTE = 'Quote the command, as in: berg run "python train.py --lr=3" (or put it last, after --)'


class Quoted(click.Command):
    """A command whose argument is a command for a shell: quoted, or word by word after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = with_one_command(args)
        given = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if stands_behind_a_word(error.option_name, given):
                raise click.UsageError(f"{error.format_message()} {QUOTE}", ctx) from None
            raise
        except click.UsageError as error:
            if "unexpected extra argument" in error.message:
                raise click.UsageError(f"{error.message}. {QUOTE}", ctx) from None
            raise


def with_one_command(args: list[str]) -> list[str]:
    """Return the arguments with the words behind `--` joined into one command."""
    if "--" not in args:
        return [*args]
    at = args.index("--")
    options, words = args[:at], args[at + 1 :]
    if not words:
        return options
    if len(words) == 1:
        return [*options, "--", words[0]]
    return [*options, "--", shlex.join(words)]


def stands_behind_a_word(option: str, args: list[str]) -> bool:
    """Return whether an unknown option comes behind a word: the command was not quoted."""
    names = [word.partition("=")[0] for word in args]
    if option not in names:
        return False
    at = names.index(option)
    before = args[max(0, at - 2) : at]
    return at > 0 and not any(word.startswith("-") for word in before)


def interrupted(error: BaseException) -> str:
    """Return what to say when somebody left or answered no, or when a question found the end of
    the input.
    """
    if not isinstance(error, click.Abort):
        return "berg: interrupted"
    if error.__context__ is None:
        return "berg: nothing was done"
    # the question's line goes on unless click itself ended it
    line = "\n" if error.__cause__ is None else ""
    if is_unanswered(error):
        return f"{line}berg: there is nobody to answer the question; do without it: -y"
    return f"{line}berg: interrupted"


def is_unanswered(error: BaseException) -> bool:
    """Return whether a question found the end of the input: there is no terminal."""
    return isinstance(error, click.Abort) and isinstance(error.__context__, EOFError)


def say(text: str) -> None:
    """Everything that is not data goes to standard error."""
    plain.echo(wrapped(text, sys.stderr), err=True)


def labelled(rows: Iterable[tuple[str, str]], stream: IO[str], width: int = 9) -> str:
    """Rows of a label and a text, which goes on below itself where the terminal ends."""
    lines = []
    for label, text in rows:
        text = text.replace("\n", f"\n{'':<{width}} ")
        first, *rest = wrapped(f"{label:<{width}} {text}", stream, width + 1).split("\n")
        lines += [click.style(first[:width], bold=True) + first[width:], *rest]
    return "\n".join(lines)


def table(rows: list[list[str]], stream: IO[str]) -> str:
    """Rows below a header; the last column goes on below itself where the terminal ends."""
    import textwrap

    rows = [list(map(plain.line, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    before = sum(widths) + 2 * len(widths)
    room = max(columns(stream) - before, 10) if columns(stream) else 10_000
    lines = []
    for row in rows:
        start = "".join(f"{text:<{width}}  " for text, width in zip(row, widths, strict=False))
        first, *rest = textwrap.wrap(
            row[-1], room, break_long_words=False, break_on_hyphens=False
        ) or [""]
        lines += [f"{start}{first}".rstrip(), *(" " * before + line for line in rest)]
    return "\n".join([click.style(lines[0], bold=True), *lines[1:]])


def remembered(file: str) -> list[str]:
    """Lines that an earlier command kept, so that completion need not wait for the network.

    A line that is no name goes to no shell: another berg may have written it.
    """
    try:
        lines = (config.home() / file).read_text().splitlines()
    except (OSError, ValueError):
        return []
    return [line for line in lines if gate.RESOURCE.fullmatch(line.partition(" ")[0])]


@dataclass
class KnownName:
    """A job or a sweep as an earlier command remembered it."""

    name: str
    is_live: bool
    num_jobs: int  # of a sweep; 0 for a job


def known_names() -> list[KnownName]:
    """Return the names in the file `names`.

    A line is a name, `live` for what has a machine, and `sweep` with the number of its jobs.
    """
    found = []
    for line in remembered("names"):
        name, *about = line.split() or [""]
        num_jobs = int(about[-1]) if "sweep" in about and about[-1].isdecimal() else 0
        if name:
            found.append(KnownName(name, "live" in about, num_jobs))
    return found


def complete_names(ctx: click.Context | None, _: click.Parameter, incomplete: str) -> list[str]:
    """Return names of jobs and sweeps, and behind SWEEP/ the numbers of its jobs; for ssh and the
    like only of those that have a machine.
    """
    known = known_names()
    if ctx and ctx.info_name in NEED_A_MACHINE:
        known = [each for each in known if each.is_live]
    names = [each.name for each in known]
    if "/" in incomplete:
        names = names_of_jobs(known, incomplete.partition("/")[0])
    return [name for name in names if name.startswith(incomplete)]


def names_of_jobs(known: list[KnownName], sweep: str) -> list[str]:
    """Return SWEEP/0, SWEEP/1, … for a sweep that is known."""
    for each in known:
        if each.name == sweep:
            return [f"{sweep}/{index}" for index in range(each.num_jobs)]
    return []


def remember_zones(zones: list[str]) -> None:
    """Keep zones for the shell's completion."""
    with contextlib.suppress(OSError):
        (config.home() / "zones").write_text("".join(f"{zone}\n" for zone in zones))


def complete_zones(_: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    known = set(remembered("zones"))
    with contextlib.suppress(Exception):
        known |= set(config.load().zones)
    return sorted(zone for zone in known if zone.startswith(incomplete))


def complete_types(_: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from berg.google import accelerators

    return [name for name in accelerators.TYPES if name.startswith(incomplete)]


def ready(name: str) -> tuple[config.Config, str]:
    """Return settings that are complete, and a name for which `@` or `-` may have stood: my latest
    job's.
    """
    settings = config.load_ready()
    from berg.laptop import latest

    return settings, latest.resolve(settings, name)


def name_argument(**options: Any) -> Callable[[AnyFunction], AnyFunction]:
    return click.argument("name", metavar="NAME", shell_complete=complete_names, **options)


def given(ctx: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    """Return those options that stand on the command line."""
    there = click.core.ParameterSource.COMMANDLINE
    return {key: value for key, value in options.items() if ctx.get_parameter_source(key) is there}


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
AGREED = "berg.agreed"
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def agree(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Remember whether a plan is agreed to before it is shown."""
    ctx.meta[AGREED] = value


INSTALL_OPTIONS = [
    click.option(
        "--extra",
        "extras",
        multiple=True,
        metavar="NAME",
        help="Install this extra of the repo's pyproject.toml as well; repeatable.",
    ),
    click.option(
        "--group",
        "groups",
        multiple=True,
        metavar="NAME",
        help="Install this dependency group as well; repeatable.",
    ),
    click.option(
        "--install",
        metavar="HOW",
        help="uv, pip, none, or a command that installs.  [default: as the repo's files say]",
    ),
]


def install_options(command: AnyFunction) -> AnyFunction:
    """What one may say of what is installed."""
    for each in reversed(INSTALL_OPTIONS):
        command = each(command)
    return command


def machine_options(command: AnyFunction) -> AnyFunction:
    """What `run` and `devbox` let one say of the machines."""
    options = [
        click.option(
            "-n", "--name", help="Name of the job and its machine.  [default: made from the repo]"
        ),
        click.option(
            "--note", default="", metavar="TEXT", help="A line that lists show beside the job."
        ),
        click.option(
            "-g", "--num-gpus", type=int, help="GPUs of each machine; 0 for none.  [default: 1]"
        ),
        click.option(
            "-t",
            "--gpu-type",
            shell_complete=complete_types,
            help="GPU type: l4, t4, v100, a100, h100, b200, …; several to try in turn (l4,a100), "
            "or cheapest.  [default: l4]",
        ),
        click.option(
            "--gpu-memory",
            type=int,
            default=0,
            metavar="GB",
            help="What -t cheapest may choose from: GPUs with so much memory.",
        ),
        click.option(
            "-c", "--num-cpus", type=int, help="vCPUs of each machine.  [default: the usual]"
        ),
        click.option("--machine-type", help="Machine type, where GPUs and CPUs do not say it."),
        click.option(
            "-m", "--machines", "num_machines", type=int, default=1, help="Machines.  [default: 1]"
        ),
        click.option(
            "--tpu",
            metavar="FAMILY-TOPOLOGY",
            help="TPUs instead: v6e-1, v6e-4x4, v5p-2x2x2, … (berg gpus --tpu)",
        ),
        click.option(
            "--cluster", metavar="NAME", help="In pods of this cluster instead (berg cluster list)."
        ),
        click.option(
            "--docker",
            metavar="IMAGE",
            help="Run it in a container of this image; of pods:  [default: of the config]",
        ),
        click.option(
            "--pod-patch",
            metavar="FILE",
            help="YAML or JSON merged into the pods: volumes, sidecars, …",
        ),
        click.option(
            "--queue",
            metavar="NAME",
            help="Wait for quota in this queue of Kueue's in the cluster.",
        ),
        click.option(
            "--wait-hours",
            type=float,
            default=0,
            help="Give up if not all pods, or machines by --flex, have come up by then.",
        ),
        click.option(
            "--image", help="Image or image family.  [default: default_image of the config]"
        ),
        click.option("--image-project", help="Project of the image."),
        click.option(
            "--disk-gb", type=int, default=200, show_default=True, help="Size of the boot disk."
        ),
        click.option(
            "--zone",
            "zones",
            multiple=True,
            shell_complete=complete_zones,
            help="Zone to try; repeatable.  [default: all of the region]",
        ),
        click.option(
            "--region",
            "regions",
            multiple=True,
            metavar="REGION",
            help="Try all zones of this region, or of any; repeatable, the cheapest comes first.",
        ),
        click.option(
            "--any-zone",
            is_flag=True,
            help="After the zones given, try the others of their region.",
        ),
        click.option("--spot", is_flag=True, help="Cheaper machines that Google may take away."),
        click.option(
            "--flex",
            is_flag=True,
            help="For a week at most, from Google's queue: one machine waits 2 hours or longer.",
        ),
        click.option(
            "--reservation",
            metavar="NAME",
            default="",
            help="Use what is reserved: NAME, or projects/OWNER/reservations/NAME.",
        ),
        click.option(
            "--no-external-ip",
            is_flag=True,
            help="Machines that only their network reaches, and IAP.",
        ),
        click.option(
            "--max-hours",
            type=float,
            default=168,
            show_default=True,
            help="Google deletes them then.",
        ),
        click.option(
            "--max-cost",
            type=float,
            metavar="DOLLARS",
            help="Shortens --max-hours so that it costs no more in all.  [default: of the config]",
        ),
        click.option(
            "--install-script",
            metavar="PATH",
            help="Script in the repo to run before anything else.",
        ),
        *INSTALL_OPTIONS,
        click.option(
            "--install-secret",
            "install_secrets",
            multiple=True,
            metavar="NAME[=FILE]",
            help="Variable that only the installation sees, such as an index's password.",
        ),
        click.option(
            "--branch", metavar="NAME", help="Take this branch's last commit as the code."
        ),
        click.option("--commit", metavar="ID", help="Take this commit, or tag, as the code."),
        click.option(
            "--env",
            multiple=True,
            metavar="K=V",
            help="Variable for commands and logins; repeatable.",
        ),
        click.option(
            "--secret",
            "secrets",
            multiple=True,
            metavar="NAME[=FILE]",
            help="Variable that only CMD sees, or who logs in to a devbox.",
        ),
        click.option(
            "--data",
            multiple=True,
            metavar="NAME[:PATH]",
            help="Data set, or gs://BUCKET/FOLDER, to bring there; repeatable.",
        ),
        click.option(
            "--mount",
            multiple=True,
            metavar="NAME[:PATH]",
            help="The same, read from the bucket as it is needed; repeatable.",
        ),
        click.option(
            "--sample-seconds",
            type=int,
            default=30,
            help="How often to look how busy they are.  [default: 30]",
        ),
        click.option("--dry-run", is_flag=True, help="Show the plan and the request, and stop."),
        click.option(
            "-y",
            "--yes",
            is_flag=True,
            expose_value=False,
            callback=agree,
            help="Do not ask, whatever it may cost (ask_above of the config).",
        ),
        json_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def job_options(command: AnyFunction) -> AnyFunction:
    """What `run` lets one say of a job."""
    options = [
        click.option(
            "-r",
            "--results-dir",
            help="Folder under berg_results.  [default: read off the command]",
        ),
        click.option(
            "--cwd",
            metavar="PATH",
            help="Folder of the repo to run CMD in.  [default: the one you are in]",
        ),
        click.option(
            "--each", is_flag=True, help="Run CMD on every machine at once, not only on the first."
        ),
        click.option(
            "--keep-going",
            is_flag=True,
            help="With --each: where CMD fails first, the others go on.",
        ),
        click.option(
            "--notify",
            metavar="URL",
            help="Webhook to tell of the end; or NAME[=FILE] that holds its URL.",
        ),
        click.option(
            "--profile", is_flag=True, help="Let berg profile take PyTorch's own profiles of CMD."
        ),
        click.option(
            "--stop-worst",
            metavar="METRIC",
            default="",
            help="In sweeps: end jobs that are among the worst at --rungs by this metric; "
            "max:METRIC where more is better.",
        ),
        click.option(
            "--rungs",
            metavar="N,N…",
            default="",
            help="Steps of metrics.jsonl at which --stop-worst looks: 3,9,27.",
        ),
        click.option(
            "--min-utilization",
            type=int,
            default=0,
            metavar="PERCENT",
            help="End it if no GPU or TPU is as busy --for so long.",
        ),
        click.option(
            "--for",
            "for_minutes",
            type=float,
            default=30,
            metavar="MINUTES",
            help="For --min-utilization.  [default: 30]",
        ),
        click.option(
            "--wait-for-capacity",
            is_flag=True,
            help="No room is no error: Google starts it when there is.",
        ),
        click.option(
            "--max-restarts",
            type=int,
            default=20,
            show_default=True,
            help="Restarts after lost machines, at most.",
        ),
        click.option(
            "--wait-minutes",
            type=float,
            default=15,
            help="Of several --spot machines, or pods: wait so long for all.  [default: 15]",
        ),
        click.option(
            "--restart-on-failure",
            type=int,
            default=0,
            metavar="N",
            help="Run CMD again when it fails, N times.",
        ),
        click.option(
            "--no-kill", is_flag=True, help="Keep the machine after the job (until --max-hours)."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def sweep_options(command: AnyFunction) -> AnyFunction:
    """What `run` takes to make many jobs of one command."""
    options = [
        click.option(
            "--grid",
            multiple=True,
            metavar="NAME=V,V…",
            help="Values for {NAME} in CMD: a job for each.",
        ),
        click.option(
            "--tasks",
            type=click.Path(dir_okay=False),
            help="CSV or JSONL file; a job for each row.",
        ),
        click.option(
            "--param",
            "params",
            multiple=True,
            metavar="NAME=…",
            help="With --samples, what to draw from: a|b|c, 0..1, log:1e-5..1e-1, int:1..9.",
        ),
        click.option(
            "--samples",
            type=click.IntRange(1),
            help="Jobs with values that are drawn from --param.",
        ),
        click.option(
            "--sampler",
            type=click.Choice(["sobol", "random"]),
            default="sobol",
            help="How to draw: evenly spread, or at random.  [default: sobol]",
        ),
        click.option("--seed", type=click.IntRange(0), help="To draw the same again."),
        click.option(
            "--parallel", type=click.IntRange(1), help="Machines for all jobs.  [default: one each]"
        ),
        click.option(
            "--resume",
            metavar="NAME",
            shell_complete=complete_names,
            help="Go on with a job that failed or was lost, or with such jobs of a sweep, "
            "or with one: SWEEP/3.",
        ),
        click.option(
            "--new-code",
            is_flag=True,
            help="With --resume: take the repo around you, not the sweep's code.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def show_traceback() -> None:
    if os.environ.get("BERG_DEBUG") == "1":
        import traceback

        traceback.print_exc()


# What to do about an error of files, by its number.
STEPS = {
    errno.ENOSPC: ". Make room where berg writes: standard output, /tmp, and the folder that "
    "BERG_HOME names (~/.berg); see: df -h",
    errno.ENAMETOOLONG: ". Give a shorter name",
    errno.EROFS: ". To keep what berg writes elsewhere, let BERG_HOME name another folder",
}


def describe(error: Exception) -> str:
    """Return an error as one sentence."""
    from berg.google.explain import explain

    if isinstance(error, click.ClickException):
        return error.message
    control = sys.modules.get("localcloud.control")
    if control and isinstance(error, control.LocalCloudError):
        return str(error)
    try:
        sentence = explain(error, config.load())
    except Exception:
        sentence = None
    if sentence:
        return sentence
    if isinstance(error, OSError):
        said = f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
        return f"{said}{STEPS.get(error.errno or 0, '')}"
    return f"{type(error).__name__}: {error} (an error of berg's; BERG_DEBUG=1 shows where)"

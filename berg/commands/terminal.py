"""What the command modules share: where messages go, options, the completion of names."""

import contextlib
import errno
import itertools
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeVar, get_args, get_origin

import click

from berg import BergError, columns, config, gate, plain, spec, wrapped
from berg.spec import shown

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
# Commands whose NAME must have a machine.
NEED_A_MACHINE = ("ssh", "open", "sync", "kill", "stop", "start")
QUOTE = 'Quote the command, as in: berg run "python train.py --lr=3" (or put it last, after --)'


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
    from berg.google import shapes

    return [name for name in shapes.TYPES if name.startswith(incomplete)]


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


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A duration such as 90s, 30m, 2h or 3d, in the unit of a field; see Option.unit."""

    name = "duration"

    def __init__(self, unit: str) -> None:
        self.unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            number = spec.in_unit(value, self.unit)
        except BergError as error:
            self.fail(error.message, param, ctx)
        return int(number) if number.is_integer() else number


class Row(click.Option):
    """An option that is made from a row."""

    row: spec.Option


def row_option(field: Any, row: spec.Option) -> Row:
    """Return click's option for a field of JobSpec or RunOptions."""
    kind = next(iter(get_args(field.type)), field.type)  # int of int | None
    more: dict[str, Any] = {"type": kind, "metavar": row.metavar}
    if kind is bool:
        more = {"is_flag": True}
    elif row.unit:
        more["type"] = Duration(row.unit)
    elif row.choices:
        more["type"] = click.Choice(row.choices)
    elif kind not in (int, float):
        more["type"] = str
    default = field.default if row.preset is None else row.preset
    usual = ""
    if default not in (None, False, "", 0, ()):
        value = shown(default)
        if row.unit:
            seconds = default * gate.UNITS[row.unit.strip("-") or "s"]
            unit = next(each for each in "dhms" if seconds % gate.UNITS[each] == 0)
            value = f"{seconds / gate.UNITS[unit]:g}{unit}"
        usual = f"  [default: {value}]"
    made = Row(
        [*row.flags, field.name],
        help=row.help + usual,
        default=default,
        multiple=get_origin(field.type) is tuple,
        shell_complete=COMPLETE.get(row.complete),
        **more,
    )
    made.row = row
    return made


COMPLETE = {"names": complete_names, "types": complete_types, "zones": complete_zones}


def start_options(command: AnyFunction) -> AnyFunction:
    """Add the options of the rows that a command of this name has."""
    found = [
        row_option(kind.__dataclass_fields__[name], row)
        for kind in (spec.JobSpec, spec.RunOptions)
        for name, row in spec.rows(kind).items()
        if command.__name__ in row.commands
    ]
    yes = Row(["-y", "--yes"], is_flag=True, expose_value=False, callback=agree)
    yes.help = "Do not ask, whatever it may cost (see ask_above)."
    yes.row = spec.Option(("-y",), "", group=spec.OTHER, usual=True)
    return with_options(command, [*found, yes])


def install_options(command: AnyFunction) -> AnyFunction:
    """Add the options for what is installed."""
    known, rows = spec.JobSpec.__dataclass_fields__, spec.rows(spec.JobSpec)
    names = ("extras", "groups", "install")
    return with_options(command, [row_option(known[name], rows[name]) for name in names])


def with_options(command: AnyFunction, options: Sequence[click.Option]) -> AnyFunction:
    """Add options to a function that becomes a command."""
    function: Any = command
    function.__click_params__ = [*getattr(command, "__click_params__", []), *reversed(options)]
    return command


SHOW_ALL = "berg.show_all"


def show_all(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Print the help with all options, and exit."""
    if value:
        ctx.meta[SHOW_ALL] = True
        plain.echo(ctx.get_help())
        ctx.exit()


class Grouped(click.Command):
    """A command whose options are in groups: --help shows the usual ones, --help-all all."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=show_all,
            help="Show all options, and exit.",
        )
        *own, help_option = super().get_params(ctx)
        return [*own, help_option, help_all]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {each: [] for each in spec.GROUPS}
        for each in self.get_params(ctx):
            group = each.row.group if isinstance(each, Row) else spec.OTHER
            is_shown = not isinstance(each, Row) or each.row.usual or ctx.meta.get(SHOW_ALL)
            if isinstance(each, click.Option) and is_shown:
                groups[group] += filter(None, [each.get_help_record(ctx)])
        width = max(len(flags) for flags, _ in itertools.chain(*groups.values()))
        for group, records in groups.items():
            rows = [(flags.ljust(width), text) for flags, text in records]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)


class Quoted(Grouped):
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
    from berg.google.api import explain

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

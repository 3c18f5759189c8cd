"""What the command modules share: tables, options, questions, completion, errors."""

import contextlib
import errno
import io
import itertools
import json
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import IO, TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import click

from berg import BergError, config, plain, spec, validation, wrapped

if TYPE_CHECKING:
    from berg.code.leaks import Leak
    from berg.code.snapshot import Snapshot

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
# Commands whose NAME must have a machine.
NEED_A_MACHINE = ("ssh", "open", "sync", "kill", "stop", "start")
QUOTE = 'Quote the command, as in: berg run "python train.py --lr=3" (or put it last, after --)'
WIDEST = 40  # characters of a table's inner cells that do not fit otherwise
NARROWEST = 10  # characters of a table's last column


def say(text: str) -> None:
    """Print a message to standard error; data alone goes to standard output."""
    plain.echo(wrapped(text, sys.stderr), err=True)


def print_json(data: Any) -> None:
    plain.echo(json.dumps(data, indent=2))


def print_data(data: Any, text: object, as_json: bool) -> None:
    """Print data as JSON if --json was given, else as text."""
    if as_json:
        print_json(data)
    else:
        plain.echo(text)


def confirm(question: str, yes: bool) -> None:
    """Ask a question unless -y was given; raise Abort if the answer is no."""
    if not yes:
        plain.confirm(question, abort=True)


def agree_to_send(
    taken: "Snapshot", bucket_name: str, found: "list[Leak]", send_secrets: bool
) -> None:
    """Ask before files that look like secrets are sent, unless --send-secrets was given; raise
    BergError if there is no terminal, or after -y.
    """
    from berg.code import leaks

    if found and not send_secrets:
        refusal = leaks.refusal(found)
        if click.get_current_context().meta.get(AGREED) or not plain.is_terminal(sys.stdin):
            raise refusal
        say(refusal.message)
        confirm(f"Send {plain.plural(len(found), 'file')} that may be secret?", yes=False)
    if found:
        leaks.accept(taken, bucket_name, found)


def labelled(rows: Iterable[tuple[str, ...]], stream: IO[str], width: int = 9) -> str:
    """Return rows of a label and lines, which wrap next to the label. Empty lines, and rows without
    lines, are left out.
    """
    shown = []
    for label, *lines in rows:
        text = "\n".join(line for line in lines if line)
        if text:
            text = text.replace("\n", f"\n{'':<{width}} ")
            first, *rest = wrapped(f"{label:<{width}} {text}", stream, width + 1).split("\n")
            shown += [click.style(first[:width], bold=True) + first[width:], *rest]
    return "\n".join(shown)


def table(
    rows: list[list[str]],
    stream: IO[str] | None = None,
    colors: Sequence[str | None] = (),
    notes: Sequence[list[str]] = (),
) -> str:
    """Return rows, the first of which is the header, as wide as the terminal.

    The last column wraps. If it has too little room, the first column, which is never cut, gets
    lines of its own. `colors` and `notes` (lines below a row) are those of the rows after the
    header. For a program the cells are separated by tabs, and notes are the last one.
    """
    stream = stream or sys.stdout
    rows = [list(map(one_line, row)) for row in rows]
    if plain.for_program():
        return separated(rows, notes)
    width = plain.columns(stream) or 10_000
    widths, is_apart = layout_of(rows, width)
    header, *others = (row_lines(row, widths, width, is_apart) for row in rows)
    lines = [click.style(each, bold=True) for each in header]
    for row, color, below in zip_longest(others, colors, notes):
        lines += [click.style(each, fg=color) for each in row] if color else row
        lines += [wrapped(f"    {one_line(each)}", stream) for each in below or ()]
    return "\n".join(lines)


def separated(rows: list[list[str]], notes: Sequence[list[str]]) -> str:
    """Return a table for a program: a line for each row, with tabs, and nothing cut."""
    if any(notes):
        last = ["NOTES", *("; ".join(map(one_line, each)) for each in notes)]
        rows = [[*row, note] for row, note in zip(rows, last, strict=True)]
    return "\n".join(map("\t".join, rows))


def one_line(text: str) -> str:
    """Return a text `clean` and as one line, with all its blanks."""
    return plain.clean(text).replace("\n", " ").replace("\t", " ")


def layout_of(rows: list[list[str]], width: int) -> tuple[list[int], bool]:
    """Return the widths of columns, and whether the first one gets lines of its own."""
    first, *between, last = (max(map(len, column)) for column in zip(*rows, strict=True))
    room = width - first - min(last, NARROWEST) - 2 * (len(between) + 1)
    if sum(between) > room:
        between = [min(each, WIDEST) for each in between]
    return [first, *between, last], sum(between) > room


def row_lines(row: list[str], widths: list[int], width: int, is_apart: bool) -> list[str]:
    """Return the lines of a table's row; `is_apart`: the first cell is a line of its own."""
    cells = [cut(*each) for each in zip(row[:-1], widths, strict=False)]
    first = [cells.pop(0)] if is_apart else []
    start = ("  " if is_apart else "") + "".join(f"{cell}  " for cell in cells)
    room = max(width - len(start), NARROWEST)
    ends = textwrap.wrap(row[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
    more = [" " * len(start) + cut(each, room) for each in ends[1:]]
    return [line.rstrip() for line in (*first, start + cut(ends[0], room), *more)]


def cut(text: str, width: int) -> str:
    """Return a text padded or cut to a number of characters."""
    return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}…"


def remembered(file: str) -> list[str]:
    """Return lines that an earlier command wrote for completion, which does not use the network.

    Lines that do not begin with a name are left out: a shell would read them.
    """
    try:
        lines = (config.home() / file).read_text().splitlines()
    except (OSError, ValueError):
        return []
    return [line for line in lines if validation.RESOURCE.fullmatch(line.partition(" ")[0])]


def complete_names(ctx: click.Context | None, _: click.Parameter, incomplete: str) -> list[str]:
    """Return names of jobs and sweeps, and after SWEEP/ the numbers of its jobs. Commands that need
    a machine get only names that have one.

    A line of the file `names` is: NAME [live] [sweep JOBS].
    """
    sweep, slash, _index = incomplete.partition("/")
    found = []
    for line in remembered("names"):
        name, *about = line.split()
        if ctx and ctx.info_name in NEED_A_MACHINE and "live" not in about:
            continue
        if not slash:
            found.append(name)
        elif name == sweep and "sweep" in about and about[-1].isdecimal():
            found += [f"{sweep}/{index}" for index in range(int(about[-1]))]
    return [name for name in found if name.startswith(incomplete)]


def remember_zones(zones: Iterable[str]) -> None:
    """Write zones for completion."""
    with contextlib.suppress(OSError):
        (config.home() / "zones").write_text("".join(f"{zone}\n" for zone in sorted(zones)))


def complete_zones(_: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    known = set(remembered("zones"))
    with contextlib.suppress(Exception):
        known |= set(config.load().zones)
    return sorted(zone for zone in known if zone.startswith(incomplete))


def complete_types(_: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from berg.google import shapes

    return [name for name in shapes.TYPES if name.startswith(incomplete)]


def ready(name: str) -> tuple[config.Config, str]:
    """Return complete settings, and a name, with the latest job for `@` or `-`."""
    settings = config.load_ready()
    from berg.laptop import lookup

    return settings, lookup.resolve(settings, name)


def name_argument(**options: Any) -> Callable[[AnyFunction], AnyFunction]:
    return click.argument("name", metavar="NAME", shell_complete=complete_names, **options)


names_argument = click.argument(
    "names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_names
)
all_option = click.option(
    "-a", "--all", "everyone", is_flag=True, help="Include other users' jobs and machines."
)
machine_option = click.option("--machine", metavar="NAME", help="Only this machine of several.")
port_option = click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port on this computer.  [default: a free one]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
ANSWER = "berg.answer"  # rows that --json prints of what a command changed


def answer(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Print what the command changed as JSON when it ends, also if it fails halfway."""
    if value:
        rows = ctx.meta[ANSWER] = []
        ctx.call_on_close(lambda: print_json(rows))


# The same option for commands that change something: see `done`.
answer_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=answer, help="Print JSON."
)


def done(text: str, **about: Any) -> None:
    """Print that something was changed: with --json as a row of data, else as a message."""
    rows = click.get_current_context().meta.get(ANSWER)
    if rows is None:
        say(text)
    else:
        rows.append(about)


def failed(name: str, error: Exception) -> int:
    """Print why one of several things was not changed, with --json also as a row; return the
    status.
    """
    rows = click.get_current_context().meta.get(ANSWER)
    if rows is not None:
        rows.append({"name": name, "error": describe(error)})
    return show_error(error)


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def given(ctx: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are on the command line."""
    there = click.core.ParameterSource.COMMANDLINE
    return {key: value for key, value in options.items() if ctx.get_parameter_source(key) is there}


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
    """Return click's option for a field with a row."""
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
    help = row.help
    if default not in (None, False, "", 0, ()):
        usual = spec.shown(default)
        if row.unit:
            usual = plain.span(default * validation.UNITS[row.unit.strip("-") or "s"])
        help += f"  [default: {usual}]"
    made = Row(
        [*row.flags, field.name],
        help=help,
        default=default,
        multiple=get_origin(field.type) is tuple,
        shell_complete=COMPLETE.get(row.complete),
        **more,
    )
    made.row = row
    return made


def options_of(kind: Any, *names: str) -> list[Row]:
    """Return click's options for the rows of a dataclass, or for some of them."""
    known = kind.__dataclass_fields__
    rows = {name: row for name, row in spec.rows(kind).items() if row.flags}
    return [row_option(known[name], rows[name]) for name in names or rows]


COMPLETE = {"names": complete_names, "types": complete_types, "zones": complete_zones}
AGREED = "berg.agreed"  # whether -y was given to a command that shows a plan


def start_options(command: AnyFunction) -> AnyFunction:
    """Add the options of the rows that a command of this name has."""
    there = options_of(spec.JobSpec) + options_of(spec.RunOptions)
    found = [each for each in there if command.__name__ in each.row.commands]

    def agree(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.meta[AGREED] = value

    text = "Do not ask, whatever the cost (see the setting ask_above)."
    yes = click.Option(["-y", "--yes"], is_flag=True, expose_value=False, callback=agree, help=text)
    help_all = click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show_all,
        help="Show all options, and exit.",
    )
    return with_options(command, [*found, yes, help_all])


def install_options(command: AnyFunction) -> AnyFunction:
    """Add the options for what is installed."""
    return with_options(command, options_of(spec.JobSpec, "extras", "groups", "install"))


def secrets_option(command: AnyFunction) -> AnyFunction:
    """Add --send-secrets."""
    return with_options(command, options_of(spec.RunOptions, "send_secrets"))


def pool_options(command: AnyFunction) -> AnyFunction:
    """Add the options for the nodes of a cluster."""
    return with_options(command, options_of(spec.PoolOptions))


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
    """A command whose argument is a shell command: quoted, or word by word after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--") + 1
            words = args[at:]
            args = [*args[:at], *([shlex.join(words)] if len(words) > 1 else words)]
        try:
            return super().parse_args(ctx, [*args])
        except click.NoSuchOption as error:
            if follows_a_word(error.option_name, args):
                raise click.UsageError(f"{error.format_message()} {QUOTE}", ctx) from None
            raise
        except click.UsageError as error:
            if "unexpected extra argument" in error.message:
                raise click.UsageError(f"{error.message}. {QUOTE}", ctx) from None
            raise


def follows_a_word(option: str, args: list[str]) -> bool:
    """Return whether an unknown option comes after a word: the command was not quoted."""
    names = [word.partition("=")[0] for word in args]
    at = names.index(option) if option in names else 0
    return at > 0 and not any(word.startswith("-") for word in args[max(0, at - 2) : at])


def show_error(error: BaseException) -> int:
    """Print an error in a sentence, with BERG_DEBUG=1 its traceback, too; return the status."""
    if isinstance(error, click.UsageError):
        if plain.is_json():
            return print_error(error.format_message(), 2)
        error.show(shown := io.StringIO())
        say(shown.getvalue().rstrip())
        return 2
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return show_interrupt(error)
    if os.environ.get("BERG_DEBUG") == "1":
        import traceback

        traceback.print_exc()
    return print_error(describe(error), 1)


def print_error(message: str, status: int) -> int:
    """Print an error, with --json as an object on a line of standard error; return the status."""
    if plain.is_json():
        plain.echo(json.dumps({"error": message, "exit_code": status}), err=True)
    else:
        BergError(message).show()
    return status


def show_interrupt(error: BaseException) -> int:
    """Print why a command was interrupted; return the exit status."""
    if not isinstance(error, click.Abort):
        say("berg: interrupted")
        return 130
    if error.__context__ is None:
        say("berg: nothing was done")
        return 130
    # click ends the question's line only in some cases
    line = "\n" if error.__cause__ is None else ""
    if isinstance(error.__context__, EOFError):
        say(f"{line}berg: there is no terminal to answer the question on; to skip it: -y")
        return 1
    say(f"{line}berg: interrupted")
    return 130


# What to do about an error of files, by its number.
STEPS = {
    errno.ENOSPC: ". Free some space where berg writes: standard output, /tmp, and the folder in "
    "BERG_HOME (~/.berg); see: df -h",
    errno.ENAMETOOLONG: ". Give a shorter name",
    errno.EROFS: ". To keep berg's files elsewhere, set BERG_HOME to another folder",
}


def describe(error: BaseException) -> str:
    """Return an error as one sentence."""
    from berg.google.api import explain

    if isinstance(error, click.ClickException):
        return error.message
    control = sys.modules.get("localcloud.control")
    if control and isinstance(error, control.LocalCloudError):
        return str(error)
    sentence = None
    with contextlib.suppress(Exception):
        sentence = explain(error, config.load())
    if sentence:
        return sentence
    if isinstance(error, OSError):
        message = f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
        return f"{message}{STEPS.get(error.errno or 0, '')}"
    return f"{type(error).__name__}: {error} (an error in berg; BERG_DEBUG=1 shows where)"

"""What Berg prints: text without control characters, which a terminal or browser would obey;
numbers, durations and sizes as text; and who reads it, a person or a program such as a coding
agent.

Text comes from the bucket, from machines and from Google. Everything that berg prints goes through
`echo` or `Log`, and what the page shows through `clean`. Not covered: letters that look alike.

Only presentation depends on the reader: a program gets no colors, no progress bars and nothing cut,
tables separated by tabs, and an error instead of a question. What is asked, spent or confirmed does
not.
"""

import codecs
import os
import re
import sys
from itertools import takewhile
from typing import IO

import click

MARK = "\N{REPLACEMENT CHARACTER}"
# Control characters: C0 except tab and newline, DEL, C1, other line ends, changes of the writing
# direction, and halves of surrogate pairs.
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Escape sequences: colors first, whose codes are group 1.
ESCAPES = re.compile(
    r"\x1b\[([0-9;:]{0,60})m"
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # cursors
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles and links
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
    r"|\x1b"
)
RESET = "\x1b[0m"
STYLES = 16  # color sequences that are kept, the last ones
LONGEST = 600  # characters, more than an unfinished sequence has
# A sequence at the end that what is read next may complete, or a return that a newline may follow.
UNFINISHED = re.compile(
    r"(?:\x1b(?:\[[0-?]{0,60}[ -/]{0,4}|\][^\x07\x1b\n]{0,500}|[PX^_][^\x1b\n]{0,500}|[ -/]{0,4})"
    r"|\r)\Z"
)
HUMAN, AGENT = "human", "agent"
# Variables that coding agents set for the commands they run. Left out are those that are also set
# for people, such as CURSOR_TRACE_ID, REPL_ID and COPILOT_MODEL.
AGENTS = (
    "AI_AGENT",
    "ANTIGRAVITY_AGENT",
    "AUGMENT_AGENT",
    "CLAUDECODE",
    "CLAUDE_CODE",
    "CLINE_ACTIVE",
    "CODEX_CI",
    "CODEX_SANDBOX",
    "CODEX_THREAD_ID",
    "COPILOT_CLI",
    "CURSOR_AGENT",
    "GEMINI_CLI",
    "GOOSE_TERMINAL",
    "OPENCODE",
    "QWEN_CODE",
)


def clean(text: str) -> str:
    """Return a text with a mark for each control character."""
    return CONTROLS.sub(MARK, text)


def printable(text: str, colors: bool = True) -> str:
    """Return a text `clean` and without escape sequences, except colors if they are wanted."""
    pieces, at = [], 0
    for found in ESCAPES.finditer(text):
        pieces.append(clean(text[at : found.start()]))
        if colors and found[1] is not None:
            pieces.append(found[0])
        at = found.end()
    return "".join([*pieces, clean(text[at:])])


def line(text: str) -> str:
    """Return a text `clean` and as one line, so that it cannot imitate another line of berg's."""
    return " ".join(clean(text).split())


def name(text: str) -> str:
    """Return the name of a file or object as one line; control characters are escaped."""
    text = text.encode(errors="backslashreplace").decode()
    return re.sub(f"{CONTROLS.pattern}|[\n\t]", lambda found: ascii(found[0])[1:-1], text)


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print a text; without a terminal it has no colors."""
    click.echo(printable(str(text)), err=err, nl=nl)


def redraw(text: str, is_last: bool) -> None:
    """Replace the last line of standard error."""
    click.echo(f"\r{printable(text)}", nl=is_last, err=True)


class Log:
    """Turns what programs print, in chunks of bytes, into text that a terminal may show.

    With `redraws` a return starts the line again, as progress bars do; else it ends the line.
    """

    def __init__(self, colors: bool, redraws: bool) -> None:
        self.colors, self.redraws = colors, redraws
        self.style: list[str] = []  # color sequences in force
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.rest = ""

    def read(self, chunk: bytes, is_last: bool = False) -> str:
        """Return the text of the next chunk; an unfinished sequence is kept for the next one."""
        text = self.rest + self.decoder.decode(chunk, is_last)
        begun = None if is_last else UNFINISHED.search(text, max(0, len(text) - LONGEST))
        end = begun.start() if begun else len(text)
        text, self.rest = text[:end], text[end:]
        lines = text.replace("\r\n", "\n").split("\r")
        between = "\r" if self.redraws else "\n"
        return between.join(printable(line, self.colors) for line in lines)

    def colored(self, text: str) -> str:
        """Return a part of what was read with the colors in force before it, and none after it."""
        begins = "".join(self.style)
        for found in ESCAPES.finditer(text):
            if found[1] is None:
                continue
            if found[1].strip("0") in ("", ";"):
                self.style = []
            else:
                self.style = [*self.style, found[0]][-STYLES:]
        is_colored = begins or "\x1b" in text
        return f"{begins}{text}{RESET}" if is_colored and text else text


def duration(seconds: float) -> str:
    """Return a duration in one unit, rounded: 90s, 15m, 3h, 2d."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def span(seconds: float) -> str:
    """Return a duration exactly to its second unit: 7d, 1h 30m, 45s."""
    parts, left = [], round(seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def dollars(amount: float | None) -> str:
    """Return an amount of USD; "?" if it is unknown."""
    return "?" if amount is None else f"${amount:,.2f}"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Return a number of bytes in a fitting unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


# --- who reads it


def for_program() -> bool:
    """Return whether a program reads the output, by BERG_FORMAT or an agent's variable."""
    wanted = os.environ.get("BERG_FORMAT")
    return wanted == AGENT if wanted else any(map(os.environ.get, AGENTS))


def is_json() -> bool:
    """Return whether the command line asks for JSON, even if it cannot be parsed."""
    return "--json" in takewhile(lambda word: word != "--", sys.argv[1:])


def is_terminal(stream: IO[str] | IO[bytes]) -> bool:
    """Return whether a person is at a stream's terminal."""
    return stream.isatty() and not for_program()


def color() -> bool | None:
    """Return click's setting for colors: never, or on terminals."""
    return False if os.environ.get("NO_COLOR") or for_program() else None


def columns(stream: IO[str]) -> int:
    """Return the width of a stream's terminal, or COLUMNS; 0 for a pipe or a program, which have no
    limit.
    """
    if for_program():
        return 0
    try:
        return int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0


def confirm(question: str, option: str = "-y", default: bool = False, abort: bool = False) -> bool:
    """Ask a person; raise ClickException that names the option with the answer for a program."""
    refuse_to_ask(question, option)
    return click.confirm(question, default=default, abort=abort, err=True)


def refuse_to_ask(question: str, option: str) -> None:
    """Raise ClickException if a program would have to answer a question."""
    if for_program():
        raise click.ClickException(
            f"a person must answer this: {question} To answer it beforehand: {option}"
        )

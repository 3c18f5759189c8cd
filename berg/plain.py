"""What a terminal or a browser shows as it is, and obeys in nothing: the one rule for both.

Texts come from the bucket, from machines and from Google. Everything that berg prints goes through
`echo` or `Log`, and what the page shows through `clean`. Not covered: letters that look alike.
"""

import codecs
import re

import click

MARK = "\N{REPLACEMENT CHARACTER}"
# Characters that a terminal or a browser obeys in place of showing them: C0 but for tab and
# newline, DEL, C1, other ends of lines, those that turn the direction of writing, and halves of
# surrogate pairs.
STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# What begins with ESC: colours first, whose codes are group 1.
ESCAPES = re.compile(
    r"\x1b\[([0-9;:]{0,60})m"
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # cursors
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles and links
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
    r"|\x1b"
)
# One of them that goes on in what is read next, and a return that a newline may follow.
RESET = "\x1b[0m"
STYLES = 16  # sequences of colours that are kept, the last ones
LONGEST = 600  # characters that an unfinished one has less than
UNFINISHED = re.compile(
    r"(?:\x1b(?:\[[0-?]{0,60}[ -/]{0,4}|\][^\x07\x1b\n]{0,500}|[PX^_][^\x1b\n]{0,500}|[ -/]{0,4})"
    r"|\r)\Z"
)


def clean(text: str) -> str:
    """Return a text with a mark for each character that would steer a terminal."""
    return STEERING.sub(MARK, text)


def printable(text: str, colors: bool = True) -> str:
    """Return a text without escape sequences, but for colours if they are wanted, and `clean`."""
    pieces, at = [], 0
    for found in ESCAPES.finditer(text):
        pieces.append(clean(text[at : found.start()]))
        if colors and found[1] is not None:
            pieces.append(found[0])
        at = found.end()
    return "".join([*pieces, clean(text[at:])])


def line(text: str) -> str:
    """Return a text `clean` and as one line: it cannot look like a row of berg's below its own."""
    return " ".join(clean(text).split())


def name(text: str) -> str:
    """Return a name of a file or object as one line, with an escape for what a line has not."""
    text = text.encode(errors="backslashreplace").decode()
    return re.sub(f"{STEERING.pattern}|[\n\t]", lambda found: ascii(found[0])[1:-1], text)


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print a text; what berg itself colours is colourless where there is no terminal."""
    click.echo(printable(str(text)), err=err, nl=nl)


def redraw(text: str, is_last: bool) -> None:
    """Print a line of standard error again, over what it was."""
    click.echo(f"\r{printable(text)}", nl=is_last, err=True)


class Log:
    """What programs print, read in pieces: bytes become text that a terminal may show.

    With `redraws` a line may begin again, as progress bars do; else each beginning is a line.
    """

    def __init__(self, colors: bool, redraws: bool) -> None:
        self.colors, self.redraws = colors, redraws
        self.style: list[str] = []  # colours that are in force, as they came
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.rest = ""

    def read(self, chunk: bytes, is_last: bool = False) -> str:
        """Return the text in the next piece; what is cut off in its midst comes with the next."""
        text = self.rest + self.decoder.decode(chunk, is_last)
        begun = None if is_last else UNFINISHED.search(text, max(0, len(text) - LONGEST))
        end = begun.start() if begun else len(text)
        text, self.rest = text[:end], text[end:]
        lines = text.replace("\r\n", "\n").split("\r")
        between = "\r" if self.redraws else "\n"
        return between.join(printable(line, self.colors) for line in lines)

    def colored(self, text: str) -> str:
        """Return a part of what was read with the colours that are in force before it, and none
        after it: whatever else is shown has its own.
        """
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

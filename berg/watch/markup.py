"""HTML that is safe by the way it is made: text is escaped, wherever it came from, also what a
terminal would show.

Not covered: what programs draw with cursors; of lines that are written over, the last writing
counts.
"""

import html
import re
from collections.abc import Iterable

from berg import plain as plain_text

MOST = 32  # numbers of one code; terminals count to 16 or 32
# The first of eight codes in a row -> the first of its colours, and what it colours.
COLOR_CODES = {30: (0, "38"), 40: (0, "48"), 90: (8, "38"), 100: (8, "48")}
PREFIXES = {"38": "f", "48": "b"}  # of classes: letters, and what is behind them
WORDS = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike"}
ENDS = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("inverse",), 29: ("strike",)}
STEPS = (0, 95, 135, 175, 215, 255)  # of the cube of 216 colours
# A terminal's 16 colours, as red, green, blue; the page's style says how they look in the light and
# in the dark.
SIXTEEN = [
    (0, 0, 0),
    (170, 0, 0),
    (0, 170, 0),
    (170, 85, 0),
    (0, 0, 170),
    (170, 0, 170),
    (0, 170, 170),
]
SIXTEEN += [
    (170, 170, 170),
    (85, 85, 85),
    (255, 85, 85),
    (85, 255, 85),
    (255, 255, 85),
    (85, 85, 255),
]
SIXTEEN += [(255, 85, 255), (85, 255, 255), (255, 255, 255)]
VOID = {"meta", "link", "img", "input"}


class Html(str):
    """Text that is HTML already."""


def text(*parts: object) -> Html:
    """Return parts in a row as HTML: escaped unless they are Html; None is nothing."""
    return Html("".join(escaped(part) for part in parts if part is not None))


def escaped(part: object) -> str:
    if isinstance(part, Html):
        return part
    return html.escape(plain_text.clean(str(part)))


def tag(name: str, /, *parts: object, **attributes: object) -> Html:
    """An element. `class_` is class, `data_x` data-x; an attribute that is True stands alone, None
    or False is none.
    """
    pairs = [(key.strip("_").replace("_", "-"), value) for key, value in attributes.items()]
    shown = (
        f" {key}" if value is True else f' {key}="{html.escape(plain_text.clean(str(value)))}"'
        for key, value in pairs
        if wanted(value)
    )
    opened = f"<{name}{''.join(shown)}>"
    return Html(opened if name in VOID else f"{opened}{text(*parts)}</{name}>")


def wanted(value: object) -> bool:
    return value is not None and value is not False


def join(separator: object, parts: Iterable[object]) -> Html:
    return Html(text(separator).join(text(part) for part in parts))


def of_terminal(printed: str) -> Html:
    """A line that was printed to a terminal: its colours as classes, everything else of its escape
    codes left out.
    """
    printed = printed.rstrip("\r").rpartition("\r")[2]
    found: list[Html] = []
    style: dict[str, str] = {}
    at = 0
    for match in plain_text.ESCAPES.finditer(printed):
        found.append(styled(printed[at : match.start()], style))
        if match[1] is not None:
            change(style, match[1])
        at = match.end()
    found.append(styled(printed[at:], style))
    return Html("".join(found))


def plain(printed: str) -> str:
    """A line of a terminal as text alone."""
    return plain_text.printable(printed.rstrip("\r").rpartition("\r")[2], colors=False)


def styled(piece: str, style: dict[str, str]) -> Html:
    return tag("span", piece, class_=" ".join(style.values())) if piece and style else text(piece)


def change(style: dict[str, str], codes: str) -> None:
    """What "select graphic rendition" does: numbers that begin and end colours and kinds of
    letters.
    """
    numbers = [int(code[:3] or 0) for code in re.split("[;:]", codes, maxsplit=MOST)[:MOST]]
    while numbers:
        number = numbers.pop(0)
        if number == 0:
            style.clear()
        elif number in WORDS:
            style[WORDS[number]] = WORDS[number]
        elif number in ENDS:
            for word in ENDS[number]:
                style.pop(word, None)
        elif number in (38, 48):
            color = longer(numbers)
            if color is not None:
                style[str(number)] = f"{PREFIXES[str(number)]}{color}"
        elif number in (39, 49):
            style.pop(str(number - 1), None)
        else:
            change_color(style, number)


def change_color(style: dict[str, str], number: int) -> None:
    """Take one of the 16 colours, if the number is one of theirs."""
    for first, (color, key) in COLOR_CODES.items():
        if first <= number < first + 8:
            style[key] = f"{PREFIXES[key]}{color + number - first}"


def longer(numbers: list[int]) -> int | None:
    """The nearest of the 16 colours to one of 256, or of all, which is taken off the numbers."""
    kind = numbers.pop(0) if numbers else 0
    count = {5: 1, 2: 3}.get(kind, 0)
    values, numbers[:count] = numbers[:count], []
    if not count or len(values) < count:
        return None
    if kind == 5 and values[0] < 16:
        return values[0]
    if kind == 5:
        values = of_256(values[0])
    distances = [sum((a - b) ** 2 for a, b in zip(values, color, strict=True)) for color in SIXTEEN]
    return distances.index(min(distances))


def of_256(number: int) -> list[int]:
    """Return red, green and blue of one of 256 colours: a grey, or one of a cube."""
    if number > 231:
        return [8 + 10 * (number - 232)] * 3
    return [STEPS[(number - 16) // part % 6] for part in (36, 6, 1)]

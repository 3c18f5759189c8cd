"""How easy berg is to read, in figures: complex functions, long files, wide lines.

    python tools/ease.py            the figures, and what is over a limit; exits 1 if anything is
    python tools/ease.py --all 8    also every function of complexity 8 or more

The limits are for `berg/`. They are met by fewer branches and by one idea a line, never by packing
lines or by cutting a function into pieces that have one caller each.
"""

import argparse
import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from radon.complexity import cc_visit

TOP = Path(__file__).parent.parent
COMPLEXITY = 12  # radon's, of one function
COMPLEXITY_OF_OPTIONS = 20  # of a function that only parses options: a command of click's
FILE_LINES = 900
COLUMNS = 100


@dataclass
class Function:
    place: str
    complexity: int
    limit: int


@dataclass
class Ease:
    """What was counted in a tree of files."""

    lines: int = 0  # of code: neither blank nor a comment alone
    statements: int = 0  # without docstrings
    wide: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--all", type=int, metavar="N", help="show functions from this complexity on"
    )
    shown_from = parser.parse_args().all
    paths = sorted((TOP / "berg").rglob("*.py"))
    ease = Ease()
    functions: list[Function] = []
    too_long = []
    for path in paths:
        text = path.read_text()
        count(text, ease)
        functions += functions_of(path)
        name, lines = str(path.relative_to(TOP)), text.count("\n")
        if lines > FILE_LINES:
            too_long.append(f"{name}: {lines} lines (at most {FILE_LINES})")
    functions.sort(key=lambda each: -each.complexity)
    too_hard = [each for each in functions if each.complexity > each.limit]
    for each in functions:
        if each in too_hard or (shown_from and each.complexity >= shown_from):
            print(f"{each.complexity:4} (at most {each.limit})  {each.place}")
    print("".join(f"{line}\n" for line in too_long), end="")
    print(
        f"berg/: {len(paths)} files, {ease.statements} statements, {ease.lines} lines of code, "
        f"{ease.wide} of them over {COLUMNS} columns; the highest complexity is "
        f"{functions[0].complexity}"
    )
    sys.exit(bool(too_hard or too_long or ease.wide))


def count(text: str, ease: Ease) -> None:
    """Add a file's figures to those of the tree."""
    code = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    ease.lines += len(code)
    ease.wide += sum(len(line) > COLUMNS for line in code)
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ease.statements += isinstance(node, ast.stmt) and not is_text


def functions_of(path: Path) -> list[Function]:
    """Every function and method of a file, those inside others counted with these."""
    text = path.read_text()
    options = options_functions(ast.parse(text))
    found = []
    for block in cc_visit(text):
        for each in getattr(block, "methods", [block]):
            limit = COMPLEXITY_OF_OPTIONS if each.lineno in options else COMPLEXITY
            place = f"{path.relative_to(TOP)}:{each.lineno} {each.name}"
            found.append(Function(place, each.complexity, limit))
    return list({each.place: each for each in found}.values())


def options_functions(tree: ast.Module) -> set[int]:
    """Lines of functions that are a command of click's, as their decorators say."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            decorators = [ast.unparse(each) for each in node.decorator_list]
            if any(re.search(r"\.(command|group)\b", each) for each in decorators):
                found |= {node.lineno, *(each.lineno for each in node.decorator_list)}
    return found


if __name__ == "__main__":
    main()

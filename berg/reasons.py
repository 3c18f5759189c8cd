"""What failed, in the words of the program itself: the line of its output that says so.

Tracebacks of Python, also those that launchers repeat with a prefix; errors of compilers, shells and
installers. Without any of these it is the last line.
"""

import re

MOST = 300  # characters
LAST = 80  # lines at the end of a command's output that are looked at
COLOR = re.compile(r"\x1b\[[0-9;:]*[A-Za-z]")
# Of torchrun, mpirun and Ray: [rank0]: …, [1,0]<stderr>: …, (main pid=12) …; of Python in a group of exceptions.
PREFIX = re.compile(r"(\[(rank|default)?\d+(,\d+)?\](<\w+>)?:? ?|\(\S+ pid=\d+[^)]*\) | +\| )")
TRACEBACK = "Traceback (most recent call last):"
ERROR = re.compile(
    r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)(:|$)"
    r"|(?i:error|fatal|panic)\b[: \[]"
    r"|.*(: (fatal )?error\b|No such file|not found$|Permission denied|No rule to make|"
    r"Segmentation fault|\bKilled\b|\bAborted\b|core dumped)"
)
# They only say that a process below them failed, which has said why.
WRAPPERS = re.compile(r"\S*(ChildFailedError|CalledProcessError|ProcessRaisedException)\b")
IGNORED = "Exception ignored in"  # at the end of a program, which has failed before
# First lines of what pip, uv, poetry and conda say, without the one that pip begins all failed builds with.
HEAD = re.compile(r"(?!error: subprocess-exited)(error|ERROR|fatal|× )")
CAUSE = re.compile(
    r"[A-Za-z_][\w.]*(Error|Exception): |.*fatal error: |error: (command|Multiple|option)|\w+: not found"
)
BRANCH = ("╰─▶", "├─▶", "Caused by:")  # with which uv goes on


def of_command(output: str) -> str:
    """The last error in the output of a command, otherwise its last line; "" for no output."""
    lines = [PREFIX.sub("", COLOR.sub("", line), count=1) for line in output.splitlines()]
    lines = [line for line in lines if line.strip() and not line.startswith("[berg]")][-LAST:]
    found = [number for number in range(len(lines)) if is_error(lines, number)]
    causes = [number for number in found if not WRAPPERS.match(lines[number])] or found
    if not causes:
        return lines[-1].strip()[:MOST] if lines else ""
    line = lines[causes[-1]].strip()
    if line.endswith(":"):  # its message begins on the next line
        line = " ".join([line, *(each.strip() for each in lines[causes[-1] + 1 :][:1])])
    return line[:MOST]


def is_error(lines: list[str], number: int) -> bool:
    """Whether a line says what failed: it ends a traceback, or looks like an error."""
    above = number - 1
    while above >= 0 and lines[above][0] in " \t+|":
        above -= 1
    begins = above >= 0 and lines[above].rstrip().endswith(TRACEBACK)
    if begins and above and lines[above - 1].startswith(IGNORED):
        return False
    if begins and above < number - 1 and lines[number][0] not in " \t+|":
        return True
    return bool(ERROR.match(lines[number].strip())) and not lines[number].startswith(IGNORED)


def of_installer(output: str) -> str:
    """The installer's own error, wherever it is in the output, and what caused it."""
    lines = [COLOR.sub("", line).strip() for line in output.splitlines()]
    first = next((number for number, line in enumerate(lines) if HEAD.match(line)), None)
    if first is None:
        return of_command(output)
    text = re.sub(r"^(× |ERROR: |error: )", "", lines[first])
    causes = [line for line in lines if CAUSE.match(line) and text not in line]
    if causes:
        return f"{text[: MOST // 2].rstrip('.:')}: {causes[-1]}"[:MOST]
    rest, chain = lines[first + 1 :], [text]
    for line in rest if rest and rest[0].startswith(BRANCH) else ():
        if not line or HEAD.match(line) or line.startswith("hint:"):
            break
        chain.append(line.removeprefix("╰─▶ ").removeprefix("├─▶ "))
    text, half = " ".join(chain), MOST // 2
    if len(text) > MOST:  # the last cause says most
        text = f"{text[:half]} … {chain[-1][-half:]}"
    return text

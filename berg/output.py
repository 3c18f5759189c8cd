"""How output is shown: to a person, or to a program such as a coding agent.

Only presentation depends on it: a program gets no colors, no progress bars and nothing cut, tables
separated by tabs, and an error instead of a question. What is asked, spent or confirmed does not.
"""

import os
import sys
from itertools import takewhile
from typing import IO

import click

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


def choose(wanted: str | None) -> None:
    """Keep the format of --format for this process and those that it starts."""
    if wanted:
        os.environ["BERG_FORMAT"] = wanted


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

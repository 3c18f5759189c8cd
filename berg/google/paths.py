"""Names of files: which Cloud Storage takes, which folders a mirror may follow, and how those left
out are told.
"""

import os
from pathlib import Path

from berg import plain

MAX_NAME = 1024  # bytes of an object's name


def is_below(path: str, folder: str) -> bool:
    return os.path.commonpath([folder, path]) == folder


def is_harmless(target: str, root: str) -> bool:
    """Whether what a job's folder is a link to can be mirrored: a folder of its own, and none of
    the system's.
    """
    system = ("/proc", "/sys", "/dev", "/etc", "/boot", "/run", "/root/berg")
    return (
        Path(target).is_dir()
        and not is_below(root, target)
        and not any(is_below(target, each) for each in system)
    )


def bad_name(name: str) -> str:
    """Why Cloud Storage cannot take a name; empty if it can."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if size > MAX_NAME:
        return f"its name is longer than {MAX_NAME} bytes"
    return "its name has a line break" if "\n" in name or "\r" in name else ""


def name_left(left: dict[str, str], yet: str = "", shown: int = 3) -> str:
    """How many files are not in the bucket, and the first of them with why, in so few words that a
    state holds them.
    """
    if not left:
        return ""
    count = "1 file is" if len(left) == 1 else f"{len(left)} files are"
    names = [
        f"{shorten(path, 80)} ({shorten(why, 120)})" for path, why in list(left.items())[:shown]
    ]
    more = [f"{len(left) - shown} more"] if len(left) > shown else []
    return f"{count} not in the bucket{yet}: " + ", ".join(names + more)


def shorten(text: str, length: int) -> str:
    """A text that may hold anything, printable and not longer than `length`."""
    text = plain.name(text)
    return text if len(text) <= length else f"{text[: length - 20]}…{text[-19:]}"

"""What comes out of the bucket is checked here before anything is done with it.

All that may write to the bucket may have written anything under any name. `parse` reads JSON,
`from_dict` makes a dataclass of it, `clean` marks what would steer a terminal. They raise
ValueError for what is invalid; callers name the object and leave it alone.
"""

import contextlib
import functools
import json
import math
import os
import posixpath
import re
import shlex
import sys
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import MISSING, fields, is_dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from berg import BergError, plain

Made = TypeVar("Made")

MOST_BYTES = 16 << 20  # of one object that is read as JSON
LARGEST = 2**63 - 1  # of integers; Python has larger ones, which no float holds
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}  # of durations, in seconds
PROJECT = re.compile(r"([a-z0-9][a-z0-9.-]*:)?[a-z0-9][a-z0-9-]*")
# A machine, a zone or a region, or LOCATION/NAME of a cluster: it becomes a part of a URL.
RESOURCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
COMMIT = re.compile(r"[0-9a-f]{1,64}")  # or its beginning; git would take others for options
# Bytes. Linux takes 128 KiB for one argument or variable.
MOST_COMMAND, MOST_VARIABLES = 64_000, 100_000


def parse(data: str | bytes) -> dict[str, Any]:
    """Return the JSON object in `data`; raise ValueError for anything else.

    Duplicate keys are refused, and so are NaN and numbers out of range: two readers could
    understand them in two ways, or fail.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has {len(data):,} bytes")
    try:
        found = DECODER.decode(data if isinstance(data, str) else data.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse_constant(word: str) -> None:
    raise ValueError(f"it has {word}")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"it has the number {digits[:20]}")
    return number


def _whole(digits: str) -> int:
    number = int(digits)
    if abs(number) > LARGEST:
        raise ValueError(f"it has the number {digits[:20]}")
    return number


DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_constant=_refuse_constant,
    parse_float=_finite,
    parse_int=_whole,
)


def from_dict(kind: type[Made], found: Any) -> Made:
    """Return the dataclass `kind` with the values of a JSON object; unknown keys are ignored.

    Raise ValueError if a value is not of its field's type, or one without a default is missing. The
    method `validate` of a dataclass checks the rest, and may raise BergError, too.
    """
    assert is_dataclass(kind)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    types = types_of(kind)
    values = {key: value for key, value in found.items() if key in types}
    for name in readers_of(kind).keys() & values.keys():
        try:
            values[name] = readers_of(kind)[name](values[name])
        except (ValueError, BergError) as error:
            raise ValueError(f"{name}: {error}") from None
    if missing := required_of(kind) - values.keys():
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    made = kind(**values)
    for name, of_field in types.items():
        if not fits(value := getattr(made, name), of_field):
            raise ValueError(f"{name} is {str(value)[:40]!r}")
    if hasattr(made, "validate"):
        made.validate()
    return made


@functools.cache
def types_of(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields by their names: a list asks thousands of times."""
    return {f.name: f.type for f in fields(kind)}


@functools.cache
def required_of(kind: Any) -> set[str]:
    """Return the fields that have no default."""
    return {
        each.name
        for each in fields(kind)
        if each.default is MISSING and each.default_factory is MISSING
    }


@functools.cache
def readers_of(kind: Any) -> dict[str, Callable[[Any], Any]]:
    """Return by field what makes its value from one of JSON, which has neither dataclasses nor
    tuples; a dataclass may have a `parse` of its own.
    """
    found: dict[str, Callable[[Any], Any]] = {}
    for name, each in types_of(kind).items():
        if isinstance(each, type) and is_dataclass(each):
            found[name] = getattr(each, "parse", functools.partial(from_dict, each))
        elif get_origin(each) is list and is_dataclass(get_args(each)[0]):
            found[name] = functools.partial(several, get_args(each)[0])
        elif get_origin(each) is tuple:
            found[name] = lambda value: tuple(value) if isinstance(value, list) else value
    return found


def several(kind: type[Made], found: Any) -> Any:
    """Return dataclasses for the JSON objects of a list; anything else as it is."""
    return [from_dict(kind, each) for each in found] if isinstance(found, list) else found


@functools.cache
def parts_of(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the parts of a type such as dict[str, str]."""
    return get_origin(kind), get_args(kind)


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of a type such as int, dict[str, str] or int | None."""
    if type(value) is kind:
        return True
    origin, parts = parts_of(kind)
    if origin is dict:
        return isinstance(value, dict) and all(fits(each, parts[1]) for each in value.values())
    if origin in (list, tuple):
        return type(value) is origin and all(fits(each, parts[0]) for each in value)
    if parts:
        return any(fits(value, part) for part in parts)
    numbers = {float: (int, float)}
    return kind is Any or type(value) in numbers.get(kind, (kind,))


def clean(found: Any, change: Callable[[str], str] = plain.clean) -> Any:
    """Return a value from JSON with changed texts, by default those that steer no terminal."""
    if isinstance(found, str):
        return change(found)
    if isinstance(found, list):
        return [clean(each, change) for each in found]
    if isinstance(found, dict):
        return {clean(key, change): clean(each, change) for key, each in found.items()}
    return found


def cleaned(made: Made, free: Collection[str] = ()) -> Made:
    """Return a dataclass with clean texts of one line each; fields in `free` may have several."""
    assert is_dataclass(made) and not isinstance(made, type)
    texts = {}
    for f in fields(made):
        change = plain.clean if f.name in free else plain.line
        texts[f.name] = clean(getattr(made, f.name), change)
    return replace(made, **texts)


def is_plain(data: str | bytes) -> bool:
    """Return whether all texts of this JSON are certainly clean and of one line.

    Most states have no escapes and no runs of spaces, and need no look at each text.
    """
    if not isinstance(data, str) or not data.isascii():
        return False
    return "\\" not in data and "    " not in data and not plain.CONTROLS.search(data)


def check_plain(made: Any, free: Collection[str]) -> None:
    """Raise ValueError with the first text of a dataclass that steers a terminal or has many lines.

    Fields in `free` may hold any text, which is only shown.
    """
    for f in fields(made):
        if f.type is not str or f.name in free:
            continue
        text = getattr(made, f.name)
        if plain.CONTROLS.search(text) or "\n" in text:
            raise ValueError(f"{f.name} is {text[:40]!r}")


def check_time(text: str) -> None:
    """Raise ValueError unless it is empty or a time with its zone in ISO 8601."""
    if text and datetime.fromisoformat(text.replace("Z", "+00:00")).tzinfo is None:
        raise ValueError(f"{text[:40]!r} is a time without a zone")


def check_project(name: str) -> None:
    """Raise ValueError unless it is empty or a project's id, with or without its domain."""
    if name and not PROJECT.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is no project")


def check_resource(name: str) -> None:
    """Raise ValueError unless it is empty or the name of a resource of Google's."""
    if name and not RESOURCE.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is no name of a resource")


def parse_duration(text: str, unit: str = "") -> float:
    """Return a duration such as 90s, 30m, 2h or 3d in seconds; a number alone counts `unit`.

    Raise BergError for anything else.
    """
    letter = text[-1:] if text[-1:] in UNITS else ""
    try:
        number = float(text.removesuffix(letter))
    except ValueError:
        number = math.nan
    if math.isnan(number) or not (letter or unit or number == 0):
        raise BergError(f"{text!r} is not a duration: give one such as 90s, 30m, 2h or 3d")
    return number * UNITS.get(letter or unit, 1)


def check_size(job: Any) -> Any:
    """Return a job; raise BergError if its command or its variables are too long or have a NUL, or
    a text of it is not UTF-8, as its record is.
    """
    if "\0" in "".join([job.cmd, *job.env.values()]):
        raise BergError("the command or a variable of --env has a NUL byte, which no program takes")
    try:
        job.to_json().encode()
    except UnicodeEncodeError as error:
        line = error.object[: error.end].rpartition("\n")[2].strip()
        shown = os.fsencode(line).decode(errors="backslashreplace")
        raise BergError(f"a job's record is UTF-8, and this is not: {shown} … Rename it") from None
    size = len(job.cmd.encode())
    if size > MOST_COMMAND:
        raise BergError(
            f"the command has {size:,} bytes, more than {MOST_COMMAND:,}: put it into a script of "
            'the repo, as in: berg run "bash job.sh"'
        )
    size = len(json.dumps(job.env).encode())
    if size > MOST_VARIABLES:
        raise BergError(
            f"the variables have {size:,} bytes, more than {MOST_VARIABLES:,}: "
            "put them into a file of the repo"
        )
    return job


def check_bounds(job: Any) -> None:
    """Raise ValueError or BergError for values that no machine can use."""
    check_results_dir(job.results_dir)
    counts = [(f.name, getattr(job, f.name)) for f in fields(job) if f.type is int]
    texts = [job.cmd, job.spec.install_script or "", *job.env.values()]
    wrong = {
        **{f"{name} is {value}": value < 0 for name, value in counts},
        "cmd is empty": job.kind == "job" and not job.cmd.strip(),
        f"kind is {job.kind!r}": job.kind not in ("job", "devbox"),
        f"run_on is {job.run_on!r}": job.run_on not in ("first", "each"),
        f"num_machines is {job.num_machines}": not 1 <= job.num_machines <= 1000,
        f"repo_name is {job.repo_name!r}": not re.fullmatch(
            r"[A-Za-z0-9_-][A-Za-z0-9._-]*", job.repo_name
        ),
        f"git_snapshot is {job.git_snapshot[:40]!r}": not COMMIT.fullmatch(job.git_snapshot),
        f"cwd is {job.spec.cwd!r}": leads_out(job.spec.cwd or ""),
        f"install_script is {job.spec.install_script!r}": leads_out(job.spec.install_script or ""),
        "a text has a NUL": any("\0" in text for text in texts),
        "env has a name that is none": any(
            not re.fullmatch(r"[A-Za-z_]\w*", key) for key in job.env
        ),
    }
    for what, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(what)


def leads_out(path: str) -> bool:
    """Return whether a path leads out of the folder that it begins in."""
    return posixpath.normpath(path).split("/")[0] in ("", "..")


def check_results_dir(results_dir: str) -> str:
    """Return a results dir; raise BergError if it cannot be a folder here and in the bucket."""
    if names_repo(results_dir):
        raise BergError(
            f"{results_dir!r} cannot be a results dir: .git, .hg and .svn hold settings of programs"
        )
    return check_folder(results_dir)


def names_repo(path: str) -> bool:
    """Return whether a part of a path is a folder with settings of git, Mercurial or Subversion.

    They can name programs. Disks of macOS fold case, and one kind ignores format characters.
    """
    plain = "".join(each for each in path if unicodedata.category(each) != "Cf")
    return not {".git", ".hg", ".svn"}.isdisjoint(plain.casefold().split("/"))


def check_folder(results_dir: str) -> str:
    """Return a relative path below berg_results; raise BergError for any other."""
    parts = results_dir.split("/")
    if any(part in ("", ".", "..") for part in parts) or re.search(
        r"[\x00-\x1f\\*?\[\]#]", results_dir
    ):
        raise BergError(
            f"{results_dir!r} cannot be a results dir: give a relative path, such as sweep1/bs_256"
        )
    return results_dir


# Options that name a file, and those that do if the value looks like a file, too: `--out x/model`,
# not `--out x/run1`.
FILE_OPTION = re.compile(r"-o|--?[\w-]*file(name)?")
OUTPUT_OPTION = re.compile(
    r"--?(out(put)?|save|model|weights|checkpoint|ckpt|log)([-_](to|as|path))?"
)
FILE_NAME = re.compile(
    r"(model|weights|checkpoint|ckpt|best|last|final|log|out(put)?|predictions|metrics|report)",
    re.I,
)
FILE = re.compile(
    r"\.(txt|log|out|jsonl?|[ct]sv|ya?ml|parquet|np[yz]|pth?|pkl|ckpt|h5|safetensors|png|jpg|t?gz)$"
)


def sketchy_guess_at_results_dir_from_cmd(cmd: str) -> str | None:
    """Return the folder below `berg_results/` in a command, such as sweep1/bs_256, or None."""
    words = shlex.shlex(cmd, posix=True, punctuation_chars=True)
    words.whitespace_split, words.commenters = True, ""
    before = ""
    with contextlib.suppress(ValueError):  # an open quote
        for word in words:
            # A word that is a path may have blanks; in one that is code the path ends with them.
            found = re.match(r"[^\s'\"(]*berg_results/([^'\"`;|&<>()=,]+)", word)
            found = found or re.search(r"berg_results/([^\s'\"`;|&<>()=,]+)", word)
            if found:
                known, unknown = re.split(r"(?=[$*?\\])|$", found[1].strip("/ "), maxsplit=1)
                if unknown or names_file(known, word, before):
                    known = known.rpartition("/")[0]
                return known or None
            before = word
    return None


def names_file(path: str, word: str, before: str) -> bool:
    """Return whether a path in a word of a command, after the word `before`, is a file's."""
    if before.endswith(">") or before in (">&", "tee", "-a") or FILE.search(path):
        return True
    option = word.partition("=")[0] if word.startswith("-") else before
    if FILE_OPTION.fullmatch(option):
        return True
    leaf = path.rpartition("/")[2]
    return bool(OUTPUT_OPTION.fullmatch(option) and FILE_NAME.fullmatch(leaf))


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Return the values of a TOML text; raise BergError with its name if it is invalid."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BergError(f"cannot read {name}: {error}") from None
    return found


def read_toml(file: Path) -> dict[str, Any]:
    """Return the values of a TOML file, {} if there is none; raise BergError if it is invalid."""
    try:
        return parse_toml(file.read_text(), str(file))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BergError(f"cannot read {file}: {error}") from None

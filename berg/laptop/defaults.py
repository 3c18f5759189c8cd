"""Defaults of a repo: `[tool.berg]` in its pyproject.toml, or berg.toml beside it.

They come after the BERG_ variables and before the user's settings, but for `max-cost`: a repo,
which may be another person's, lowers the user's own limit and never raises it. What is given on the
command line comes before them, and takes what would contradict it out: a repo's CPUs do not stay
where other GPUs are asked for. The plan says what came from where.
"""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin

from berg import BergError, config, toml
from berg.spec import JobSpec, in_unit, rows

ROWS = rows(JobSpec)
TYPES: dict[str, Any] = {each.name: each.type for each in fields(JobSpec)}
KEYS = {row.key: name for name, row in ROWS.items() if row.key}  # key -> field of JobSpec
VARIABLES = {
    "gpu-type": "BERG_GPU_TYPE",
    "num-gpus": "BERG_GPUS",
    "no-external-ip": "BERG_NO_EXTERNAL_IP",
    "zones": "BERG_ZONES",
    "image": "BERG_DEFAULT_IMAGE",
    "image-project": "BERG_DEFAULT_IMAGE_PROJECT",
    "docker": "BERG_DEFAULT_DOCKER_IMAGE",
}
GPUS = {"gpu-type", "num-gpus"}


def find(folder: Path) -> tuple[dict[str, Any], str]:
    """The defaults of the git repo around a folder, and the name of the file that has them; {}
    without any.
    """
    root = next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)
    if root is None:
        return {}, ""
    own, shared = (
        read(root / "berg.toml"),
        read(root / "pyproject.toml").get("tool", {}).get("berg"),
    )
    if own and shared:
        raise BergError(f"{root} has berg.toml and [tool.berg] in pyproject.toml. Keep one of them")
    name = "pyproject.toml" if shared is not None and not own else "berg.toml"
    values = own or shared or {}
    for key, value in (values if isinstance(values, dict) else {"tool.berg": values}).items():
        check(root / name, key, value)
    return values, name


def read(file: Path) -> dict[str, Any]:
    try:
        return toml.parse(file.read_text(), str(file))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BergError(f"cannot read {file}: {error}") from None


def check(file: Path, key: str, value: Any) -> None:
    if key not in KEYS:
        raise BergError(f"{file}: there is no key {key!r} for berg. There are: {', '.join(KEYS)}")
    if key == "env":
        what, is_right = "a table", is_table(value)
    elif get_origin(kind := TYPES[KEYS[key]]) is tuple:
        what = "a list of texts"
        is_right = isinstance(value, list) and all(isinstance(each, str) for each in value)
    else:
        kind = next(iter(get_args(kind)), kind)  # int of int | None
        what = {str: "text", bool: "true or false"}.get(kind, "a number")
        is_right = type(value) is kind or (kind is float and type(value) is int)
    if ROWS[KEYS[key]].unit and isinstance(value, str):
        what, is_right = "a duration, such as 90s, 30m, 2h or 3d", is_duration(KEYS[key], value)
    if not is_right:
        raise BergError(f"{file}: {key!r} must be {what}, not {value!r}. Mend it there")


def is_table(value: Any) -> bool:
    """Return whether a value is a table of single values."""
    return isinstance(value, dict) and all(
        isinstance(each, (str, int, float)) for each in value.values()
    )


def fill(options: dict[str, Any], given: set[str], folder: Path) -> dict[str, Any]:
    """Return options with the defaults of the repo around a folder in place of what was not given.

    The option `defaults` says what came from where, in lines for people.
    """
    values, file = find(folder)
    check_secrets(values.pop("install-secrets", []), options.get("install_secrets", ()), file)
    dropped = dropped_keys(given, options.get("install"))
    settings = of_settings(dropped | keys_of_others(options, given, values, dropped), values)
    dropped |= {key for key, variable in VARIABLES.items() if os.environ.get(variable)}
    used = {key: value for key, value in values.items() if key not in dropped}
    own = config.load()
    filled = {**options, **{KEYS[key]: option_of(KEYS[key], value) for key, value in used.items()}}
    if "gpu-type" in settings:
        filled["gpu_type"] = own.gpu_type
    if "num-gpus" in settings:
        filled["num_gpus"] = own.gpus
    # Variables of the command line come after the repo's: the last one of a name counts.
    variables = tuple(f"{name}={each}" for name, each in values.get("env", {}).items())
    if "env" in options or variables:
        filled["env"] = (*variables, *options.get("env", ()))
    return {**filled, "defaults": sources(values, used, file, settings)}


def of_installation(
    extras: tuple[str, ...], groups: tuple[str, ...], install: str | None, folder: Path
) -> dict[str, Any]:
    """Return what is chosen of an image's installation, with the repo's choices in place of what
    was not given.
    """
    given = {"extras": extras, "groups": groups, "install": install or ""}
    named = {key for key, value in given.items() if value}
    values, _ = find(folder)
    used = values.keys() & given.keys() - dropped_keys(named, install)
    return {**given, **{key: option_of(key, values[key]) for key in used}}


def check_secrets(names: list[str], given: tuple[str, ...], file: str) -> None:
    """Raise BergError for a secret that the repo says its installation needs and that is not given:
    no repo takes a variable of this computer by itself.
    """
    missing = {*names} - {text.partition("=")[0] for text in given}
    if missing:
        options = " ".join(f"--install-secret {name}" for name in sorted(missing))
        raise BergError(f"{file} says that the installation needs {options} (or NAME=FILE)")


def dropped_keys(given: set[str], install: str | None) -> set[str]:
    """Return the repo's keys that do not count beside the options that were given: one that says
    all that is installed has no extras and groups.
    """
    says_all = install not in (None, "uv", "pip")
    dropped = {"extras", "groups"} if says_all else set()
    said = {each for name in given & ROWS.keys() for each in ROWS[name].excludes}
    said |= {each for name in given & ROWS.keys() for each in ROWS[name].replaces}
    for key, name in KEYS.items():
        if name in given | said or given & {*ROWS[name].excludes}:
            dropped.add(key)
    if "image" in dropped:
        dropped.add("image-project")
    return dropped - {"env"}


def keys_of_others(
    options: dict[str, Any], given: set[str], values: dict[str, Any], dropped: set[str]
) -> set[str]:
    """Return the keys of settings that do not count: TPUs have images of their own, only pods have
    containers, and a person's own GPUs are for machines of which nothing is said.
    """
    found = set()
    of_repo = values.keys() - dropped
    if given & {"cluster", "tpu", "machine_type"} or of_repo & {"tpu", "machine-type"}:
        found |= GPUS
    if of_repo & GPUS:
        found |= {key for key in GPUS if not os.environ.get(VARIABLES[key])}
    if "tpu" in given or "tpu" in values.keys() - dropped:
        found |= {"image", "image-project"}
    if "docker" in given or not options.get("cluster"):
        found.add("docker")
    return found


def is_duration(name: str, text: str) -> bool:
    try:
        in_unit(text, ROWS[name].unit)
    except BergError:
        return False
    return True


def option_of(name: str, value: Any) -> Any:
    """Return a repo's value as the command line would have it."""
    if name in ROWS and ROWS[name].unit and isinstance(value, str):
        return in_unit(value, ROWS[name].unit)
    return tuple(value) if isinstance(value, list) else value


def sources(
    values: dict[str, Any],
    used: dict[str, Any],
    file: str,
    settings: dict[str, tuple[str, str]],
) -> tuple[str, ...]:
    """Return what came from where, in lines."""
    lines = [f"{listed(used)} (of {file})"] if used else []
    lines += [f"{key} = {text} (of {source})" for key, (text, source) in settings.items()]
    rest = {key: value for key, value in values.items() if key not in used}
    if rest:
        lines.append(f"not {listed(rest)} (of {file}): what is given comes first")
    return tuple(lines)


def of_settings(given: set[str], of_repo: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """What comes from variables and the user's file, by key: the value, and where it stands."""
    found, file, usual = {}, config.read_file(), config.Config()
    for key, variable in VARIABLES.items():
        setting = variable.removeprefix("BERG_").lower()
        value = file.get(setting)
        if key in given:
            continue
        if text := os.environ.get(variable):
            found[key] = (text, variable)
        elif key not in of_repo and value not in (None, getattr(usual, setting)):
            found[key] = (shown(value), str(config.path()))
    others = {setting: f"BERG_{setting.upper()}" for setting in config.HELP}
    return found | {
        setting: (text, variable)
        for setting, variable in others.items()
        if variable not in VARIABLES.values() and (text := os.environ.get(variable))
    }


def listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {shown(value)}" for key, value in values.items())


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return (
        ", ".join(value)
        if isinstance(value, list)
        else str(value).lower()
        if value in (True, False)
        else str(value)
    )

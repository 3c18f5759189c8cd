"""Defaults of a repo: `[tool.berg]` in its pyproject.toml, or berg.toml beside it.

They come after the BERG_ variables and before the user's settings, but for `max-cost`: a repo,
which may be another person's, lowers the user's own limit and never raises it. What is given on the
command line comes before them, and takes what would contradict it out: a repo's CPUs do not stay
where other GPUs are asked for. The plan says what came from where.
"""

import os
import sys
from pathlib import Path
from typing import Any

from berg import BergError, config

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXT, NUMBER, LIST, TABLE = "text", "a number", "a list of texts", "a table"
# Key -> field of JobSpec, and what it holds.
KEYS = {
    "gpu-type": ("gpu_type", TEXT),
    "num-gpus": ("num_gpus", NUMBER),
    "num-cpus": ("num_cpus", NUMBER),
    "machine-type": ("machine_type", TEXT),
    "tpu": ("tpu", TEXT),
    "disk-gb": ("disk_gb", NUMBER),
    "image": ("image", TEXT),
    "image-project": ("image_project", TEXT),
    "zones": ("zones", LIST),
    "regions": ("regions", LIST),
    "spot": ("spot", "true or false"),
    "flex": ("flex", "true or false"),
    "reservation": ("reservation", TEXT),
    "no-external-ip": ("no_external_ip", "true or false"),
    "max-hours": ("max_hours", NUMBER),
    "max-cost": ("lower_cost", NUMBER),
    "sample-seconds": ("sample_seconds", NUMBER),
    "install-script": ("install_script", TEXT),
    "install": ("install", TEXT),
    "extras": ("extras", LIST),
    "groups": ("groups", LIST),
    "install-secrets": ("install_secrets", LIST),
    "env": ("env", TABLE),
    "data": ("data", LIST),
    "mount": ("mount", LIST),
    "results-dir": ("results_parent", TEXT),
}
# Key -> option that takes its place, where that is no option of the same field.
INSTEAD = {"max-cost": "max_cost"}
FRACTIONAL = ("max-hours", "max-cost")  # need not be whole
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
# Option -> keys of a repo that would contradict it.
REPLACES = {
    "zones": {"regions"},
    "regions": {"zones"},
    "cluster": {
        "machine-type",
        "num-cpus",
        "tpu",
        "disk-gb",
        "image",
        "image-project",
        "zones",
        "regions",
        "no-external-ip",
    },
    "tpu": {"gpu-type", "num-gpus", "num-cpus", "machine-type"},
    "machine_type": {"gpu-type", "num-gpus", "num-cpus", "tpu"},
    "gpu_type": {"machine-type", "num-cpus", "tpu"},
    "num_gpus": {"machine-type", "num-cpus", "tpu"},
    "num_cpus": {"machine-type", "tpu"},
    "image": {"image-project"},
}


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
        table: dict[str, Any] = tomllib.loads(file.read_text())
        return table
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BergError(f"cannot read {file}: {error}. Mend it there") from None


def check(file: Path, key: str, value: Any) -> None:
    if key not in KEYS:
        raise BergError(f"{file}: there is no key {key!r} for berg. There are: {', '.join(KEYS)}")
    kind = KEYS[key][1]
    fits = {
        TEXT: isinstance(value, str),
        NUMBER: type(value) in (int, float) and (key in FRACTIONAL or type(value) is int),
        LIST: isinstance(value, list) and all(isinstance(each, str) for each in value),
        TABLE: isinstance(value, dict)
        and all(isinstance(each, (str, int, float)) for each in value.values()),
    }.get(kind, isinstance(value, bool))
    if not fits:
        raise BergError(f"{file}: {key!r} must be {kind}, not {value!r}. Mend it there")


def fill(options: dict[str, Any], given: set[str], folder: Path) -> dict[str, Any]:
    """Return options with the defaults of the repo around a folder in place of what was not given.

    The option `defaults` says what came from where, in lines for people.
    """
    values, file = find(folder)
    check_secrets(values.pop("install-secrets", []), options.get("install_secrets", ()), file)
    dropped = dropped_keys(given, options.get("install"))
    settings = of_settings(dropped | keys_of_others(options, given, values, dropped), values)
    dropped |= {key for key, variable in VARIABLES.items() if os.environ.get(variable)}
    if "image" in dropped:
        dropped.add("image-project")
    used = {key: value for key, value in values.items() if key not in dropped}
    own = config.load()
    filled = {**options, **{KEYS[key][0]: option_of(value) for key, value in used.items()}}
    if "gpu-type" in settings:
        filled["gpu_type"] = own.gpu_type
    if "num-gpus" in settings:
        filled["num_gpus"] = own.gpus
    # Variables of the command line come after the repo's: the last one of a name counts.
    variables = tuple(f"{name}={each}" for name, each in values.get("env", {}).items())
    if "env" in options or variables:
        filled["env"] = (*variables, *options.get("env", ()))
    return {**filled, "defaults": sources(values, used, file, settings)}


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
    dropped |= {key for option in given for key in REPLACES.get(option, ())}
    own = {key for key, (field, _) in KEYS.items() if INSTEAD.get(key, field) in given}
    return dropped | own - {"env"}


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


def option_of(value: Any) -> Any:
    """Return a value of the repo's as the command line would have it."""
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

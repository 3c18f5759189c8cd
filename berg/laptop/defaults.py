"""Defaults of a repo: `[tool.berg]` in its pyproject.toml, or berg.toml beside it.

They stand between the BERG_ variables and the user's settings. What is given on the command line
comes before them, and takes what would contradict it out: a repo's CPUs do not stay where other
GPUs are asked for. The plan says what came from where.
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
    "spot": ("spot", "true or false"),
    "no-external-ip": ("no_external_ip", "true or false"),
    "max-hours": ("max_hours", NUMBER),
    "sample-seconds": ("sample_seconds", NUMBER),
    "install-script": ("install_script", TEXT),
    "env": ("env", TABLE),
    "data": ("data", LIST),
    "results-dir": ("results_parent", TEXT),
}
VARIABLES = {
    "no-external-ip": "BERG_NO_EXTERNAL_IP",
    "zones": "BERG_ZONES",
    "image": "BERG_DEFAULT_IMAGE",
    "image-project": "BERG_DEFAULT_IMAGE_PROJECT",
    "docker": "BERG_DEFAULT_DOCKER_IMAGE",
}
# Option -> keys of a repo that would contradict it.
REPLACES = {
    "cluster": {
        "machine-type",
        "num-cpus",
        "tpu",
        "disk-gb",
        "image",
        "image-project",
        "zones",
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
        return tomllib.loads(file.read_text())
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
        NUMBER: type(value) in (int, float) and (key == "max-hours" or type(value) is int),
        LIST: isinstance(value, list) and all(isinstance(each, str) for each in value),
        TABLE: isinstance(value, dict)
        and all(isinstance(each, (str, int, float)) for each in value.values()),
    }.get(kind, isinstance(value, bool))
    if not fits:
        raise BergError(f"{file}: {key!r} must be {kind}, not {value!r}. Mend it there")


def fill(options: dict[str, Any], given: set[str], folder: Path) -> dict[str, Any]:
    """Options with those of the repo around a folder in place of what was not given, and what came
    from where.
    """
    values, file = find(folder)
    dropped = {key for option in given for key in REPLACES.get(option, ())}
    dropped |= {key for key, (field, _) in KEYS.items() if field in given and field != "env"}
    has_own_image = (
        {"image", "image-project"} if "tpu" in given or "tpu" in values.keys() - dropped else set()
    )
    has_no_pods = {"docker"} if "docker" in given or not options.get("cluster") else set()
    settings = of_settings(dropped | has_own_image | has_no_pods, values)
    dropped |= {key for key, variable in VARIABLES.items() if os.environ.get(variable)}
    dropped |= {"image-project"} if "image" in dropped else set()
    filled, used = dict(options), {}
    for key, value in values.items():
        field = KEYS[key][0]
        if field == "env":
            filled["env"] = (
                *(f"{name}={each}" for name, each in value.items()),
                *options.get("env", ()),
            )
        elif key not in dropped:
            filled[field] = tuple(value) if isinstance(value, list) else value
        if key not in dropped:
            used[key] = value
    rest = {key: value for key, value in values.items() if key not in used}
    lines = [f"{listed(used)} (of {file})"] if used else []
    lines += [f"{key} = {text} (of {source})" for key, (text, source) in settings.items()]
    lines += [f"not {listed(rest)} (of {file}): what is given comes first"] if rest else []
    return {**filled, "defaults": tuple(lines)}


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

"""A patch for the pods of jobs: `--pod-patch FILE`, of one's own volumes, tolerations, sidecars.

The file is a part of a pod, {metadata, spec}, in YAML or JSON, and is merged as Kubernetes merges a
strategic patch: what has names by these names, null removes, `$patch: delete` removes from a list.
Tolerations are added to berg's. The cluster checks what comes of it.

Not covered: `$patch: replace`, `$retainKeys` and other directives; they are refused.
"""

import copy
import json
from pathlib import Path
from typing import Any

from berg import BergError

# Lists whose items a strategic merge knows by a field, as Kubernetes' types say it.
KEYS = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
# Fields of a pod, and of its container `main`, without which no worker runs, or job ends.
OURS = {"restartPolicy", "serviceAccountName", "shareProcessNamespace"}
OURS_OF_MAIN = {"command", "args", "$patch"}


def read(file: str) -> dict[str, Any]:
    """Return the patch in a file; raise BergError for what is none."""
    try:
        text = Path(file).read_text()
    except (OSError, ValueError) as error:
        raise BergError(f"--pod-patch {file}: cannot read it ({error})") from None
    patch = parse(file, text)
    check(file, patch)
    return {key: patch[key] for key in ("metadata", "spec") if key in patch}


def check(file: str, patch: Any) -> None:
    """Raise BergError for what is no patch, or changes what is berg's."""
    try:
        taken = what_is_bergs(patch)
        unknown = sorted(patch.keys() - {"apiVersion", "kind", "metadata", "spec"})
    except (AttributeError, KeyError, TypeError):
        taken, unknown = [], ["what it holds"]
    if unknown:
        raise BergError(
            f"--pod-patch {file}: {unknown[0]} is no part of a pod, which has metadata and spec"
        )
    if taken:
        raise BergError(f"--pod-patch {file}: {taken[0]} is berg's, and stays as it is")


def parse(file: str, text: str) -> Any:
    """Return what a text in JSON or YAML says; raise BergError for neither."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        import yaml
    except ImportError:
        raise BergError(
            f"--pod-patch {file} is not JSON, and YAML takes a package: pip install pyyaml"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BergError(f"--pod-patch {file} is not valid YAML: {error}") from None


def what_is_bergs(patch: dict[str, Any]) -> list[str]:
    """Return what a patch changes of what berg needs as it is."""
    spec, about = patch.get("spec", {}), patch.get("metadata", {})
    names = [*about.get("labels", {}), *about.get("annotations", {})]
    taken = OURS & spec.keys()
    for container in spec.get("containers", []):
        if container["name"] == "main":
            names += [each["name"] for each in container.get("env", [])]
            taken |= OURS_OF_MAIN & container.keys()
    return sorted(taken) + [name for name in names if name.lower().startswith("berg")]


def merged(template: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Return a pod's template with a patch; raise BergError where that fits nowhere in it."""
    try:
        return merge(copy.deepcopy(template), patch)
    except (AttributeError, TypeError):
        raise BergError("--pod-patch: what it holds is no part of a pod") from None


def merge(old: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Merge a patch into an object, in place."""
    for key, value in patch.items():
        if key.startswith("$"):
            raise BergError(f"--pod-patch: {key}: {value} is not possible here")
        if value is None:
            old.pop(key, None)
        elif isinstance(value, dict):
            old[key] = merge(old.get(key) or {}, value)
        elif key == "tolerations":
            old[key] = [*old.get(key, []), *value]
        elif key in KEYS:
            old[key] = merge_list(old.get(key, []), value, KEYS[key])
        else:
            old[key] = value
    return old


def merge_list(
    old: list[dict[str, Any]], patch: list[dict[str, Any]], by: str
) -> list[dict[str, Any]]:
    """Return a list with a patch's items, those of the same name merged or taken out."""
    found = {each[by]: each for each in old}
    for item in patch:
        if by not in item:
            raise BergError(f"--pod-patch: {json.dumps(item)} has no {by}, by which it is known")
        if item.get("$patch") == "delete":
            found.pop(item[by], None)
        else:
            found[item[by]] = merge(found.get(item[by], {}), item)
    return list(found.values())


def in_words(patch: dict[str, Any]) -> str:
    """Return what a patch touches, for a plan."""
    return ", ".join(f"{part}.{key}" for part in patch for key in patch[part])

"""What a container is given: its environment and its volumes. Knows no HTTP.

Not covered: other sources of variables than fields of the pod; other volumes than config maps, secrets,
fields and empty folders; subPath; tokens of service accounts.
"""

import base64
import re
from pathlib import Path

from localcloud.kubernetes.plane import Plane


class Missing(Exception):
    """A container cannot be made: what it is to be given is not there."""


def expand(text: str, env: dict[str, str]) -> str:
    """`$(NAME)` in a command or a value."""
    return re.sub(
        r"\$\$|\$\(([-._a-zA-Z0-9]+)\)",
        lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]),
        text,
    )


def keyed(plane: Plane, namespace: str, plural: str, name: str) -> dict[str, bytes]:
    """What a secret or a config map holds."""
    row = plane.store.get(plural, namespace, name)
    if row is None:
        raise Missing(f'{plural[:-1]} "{name}" not found')
    texts = {key: text.encode() for key, text in (row.get("data") or {}).items()}
    if plural == "secrets":
        return {key: base64.b64decode(text) for key, text in texts.items()}
    return texts


def field(pod: dict, path: str) -> str:
    """What the downward API says of a field."""
    meta, spec, status = pod["metadata"], pod["spec"], pod["status"]
    if found := re.fullmatch(r"metadata\.(annotations|labels)\['(.+)'\]", path):
        return (meta.get(found[1]) or {}).get(found[2], "")
    if found := re.fullmatch(r"metadata\.(annotations|labels)", path):
        rows = sorted((meta.get(found[1]) or {}).items())
        special = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
        return "\n".join(f'{key}="{value.translate(special)}"' for key, value in rows)
    known = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": status.get("podIP", ""),
        "status.podIPs": ",".join(row["ip"] for row in status.get("podIPs", [])),
        "status.hostIP": status.get("hostIP", ""),
    }
    if path not in known:
        raise Missing(f"unsupported fieldPath: {path}")
    return known[path]


def environment(pod: dict, container: dict) -> dict[str, str]:
    env: dict[str, str] = {}
    if container.get("envFrom"):
        raise Missing("envFrom is not part of the embedded cloud")
    for item in container.get("env") or []:
        source = item.get("valueFrom")
        if source and not source.get("fieldRef"):
            raise Missing(f"{next(iter(source))} is not part of the embedded cloud")
        path = source and source["fieldRef"]["fieldPath"]
        env[item["name"]] = field(pod, path) if path else expand(item.get("value") or "", env)
    return env


def mounts(plane: Plane, pod: dict, container: dict, folder: Path) -> list[tuple[str, str, str]]:
    """Source, target and access of each volume that a container mounts; writes what they show."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
    found = []
    for mount in container.get("volumeMounts") or []:
        volume = volumes[mount["name"]]
        access = "ro" if mount.get("readOnly") else "rw"
        if (volume.get("emptyDir") or {}).get("medium") == "Memory":
            found.append(("tmpfs", mount["mountPath"], access))
            continue
        here = place_of(plane, pod, volume, folder)
        if "emptyDir" not in volume:
            access = "ro"
        if mount.get("subPath"):
            raise Missing("subPath is not part of the embedded cloud")
        found.append((str(here), mount["mountPath"], access))
    return found


def place_of(plane: Plane, pod: dict, volume: dict, folder: Path) -> Path:
    """The folder on this host that a volume is."""
    here = folder / "volumes" / volume["name"]
    here.mkdir(parents=True, exist_ok=True)
    for path in (here.parent, here):
        path.chmod(0o755)
    if "emptyDir" in volume:
        here.chmod(0o777)
    else:
        project(plane, pod, volume, here)
    return here


def project(plane: Plane, pod: dict, volume: dict, here: Path) -> None:
    """Write what a secret, a config map or the downward API shows now."""
    kind = next((key for key in ("secret", "configMap", "downwardAPI") if key in volume), None)
    if kind is None:
        raise Missing(
            f"volume {volume['name']}: {[key for key in volume if key != 'name']} is not in the embedded cloud"
        )
    source = volume[kind]
    if kind == "downwardAPI":
        shown = {
            item["path"]: field(pod, item["fieldRef"]["fieldPath"]).encode()
            for item in source.get("items") or []
        }
    else:
        name, plural = (
            (source["secretName"], "secrets")
            if kind == "secret"
            else (source["name"], "configmaps")
        )
        held = keyed(plane, pod["metadata"]["namespace"], plural, name)
        items = source.get("items") or [{"key": key, "path": key} for key in held]
        if missing := [item["key"] for item in items if item["key"] not in held]:
            raise Missing(f"references non-existent {kind} key: {missing[0]}")
        shown = {item["path"]: held[item["key"]] for item in items}
    for path, data in shown.items():
        write(here / path, data, source.get("defaultMode", 0o644))


def write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file in one step, if it differs."""
    if path.exists() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"..{path.name}.new")
    temporary.write_bytes(data)
    temporary.chmod(mode)
    temporary.replace(path)


def refresh(plane: Plane, pod: dict, folder: Path) -> None:
    """Show what changed since in the volumes of a pod that runs."""
    for volume in pod["spec"].get("volumes") or []:
        here = folder / "volumes" / volume["name"]
        if here.exists() and "emptyDir" not in volume:
            try:
                project(plane, pod, volume, here)
            except Missing:
                pass

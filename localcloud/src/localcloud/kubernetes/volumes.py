"""What a container is given: its environment and its volumes. Knows no HTTP.

Not covered: persistent volumes, CSI but for gcsfuse's driver, resourceFieldRef, updates of files that are mounted by subPath,
hostPath's types.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path

from localcloud.kubernetes.plane import Plane

DRIVER = "gcsfuse.csi.storage.gke.io"
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


class Missing(Exception):
    """A container cannot be made: what it is to be given is not there."""


def expand(text: str, env: dict[str, str]) -> str:
    """`$(NAME)` in a command or a value."""
    return re.sub(
        r"\$\$|\$\(([-._a-zA-Z0-9]+)\)",
        lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]),
        text,
    )


def keyed(
    plane: Plane, namespace: str, plural: str, name: str, optional: bool = False
) -> dict[str, bytes]:
    """What a secret or a config map holds."""
    row = plane.store.get(plural, namespace, name)
    if row is None:
        if optional:
            return {}
        raise Missing(f'{plural[:-1]} "{name}" not found')
    texts = {key: text.encode() for key, text in (row.get("data") or {}).items()}
    if plural == "secrets":
        return {key: base64.b64decode(text) for key, text in texts.items()}
    return {
        **texts,
        **{key: base64.b64decode(text) for key, text in (row.get("binaryData") or {}).items()},
    }


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


def environment(plane: Plane, pod: dict, container: dict) -> dict[str, str]:
    namespace = pod["metadata"]["namespace"]
    env: dict[str, str] = {}
    if pod["spec"].get("enableServiceLinks", True):
        env |= service_links(plane, namespace)
    for source in container.get("envFrom") or []:
        plural, ref = (
            ("secrets", source["secretRef"])
            if "secretRef" in source
            else ("configmaps", source["configMapRef"])
        )
        found = keyed(plane, namespace, plural, ref["name"], ref.get("optional", False))
        env |= {source.get("prefix", "") + key: text.decode() for key, text in found.items()}
    for item in container.get("env") or []:
        value = (
            value_from(plane, pod, item["valueFrom"])
            if item.get("valueFrom")
            else expand(item.get("value") or "", env)
        )
        if value is not None:
            env[item["name"]] = value
    return env


def value_from(plane: Plane, pod: dict, source: dict) -> str | None:
    if source.get("fieldRef"):
        return field(pod, source["fieldRef"]["fieldPath"])
    if not (source.get("secretKeyRef") or source.get("configMapKeyRef")):
        raise Missing(f"{next(iter(source))} is not part of the embedded cloud")
    secret = "secretKeyRef" in source
    ref = source["secretKeyRef"] if secret else source["configMapKeyRef"]
    optional = ref.get("optional", False)
    found = keyed(
        plane,
        pod["metadata"]["namespace"],
        "secrets" if secret else "configmaps",
        ref["name"],
        optional,
    )
    if ref["key"] in found:
        return found[ref["key"]].decode()
    if optional:
        return None
    kind = "Secret" if secret else "ConfigMap"
    raise Missing(
        f"couldn't find key {ref['key']} in {kind} {pod['metadata']['namespace']}/{ref['name']}"
    )


def service_links(plane: Plane, namespace: str) -> dict[str, str]:
    """The variables by which a pod knows the services that were there before it."""
    env: dict[str, str] = {}
    for (where, name), service in plane.store.rows["services"].items():
        ports = service["spec"].get("ports") or []
        if where == namespace and ports and service["spec"].get("clusterIP") not in (None, "None"):
            word = name.upper().replace("-", "_")
            env |= {
                f"{word}_SERVICE_HOST": service["spec"]["clusterIP"],
                f"{word}_SERVICE_PORT": str(ports[0]["port"]),
            }
    return env


def mounts(plane: Plane, pod: dict, container: dict, folder: Path) -> list[tuple[str, str, str]]:
    """Source, target and access of each volume that a container mounts; writes what they show."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
    found = []
    account = (
        plane.store.get(
            "serviceaccounts", pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]
        )
        or {}
    )
    wanted = pod["spec"].get(
        "automountServiceAccountToken", account.get("automountServiceAccountToken", True)
    )
    if wanted:
        found.append((str(write_token(plane, pod, folder)), TOKEN_FOLDER, "ro"))
    for mount in container.get("volumeMounts") or []:
        volume = volumes[mount["name"]]
        access = "ro" if mount.get("readOnly") else "rw"
        if (volume.get("emptyDir") or {}).get("medium") == "Memory":
            found.append(("tmpfs", mount["mountPath"], access))
            continue
        here = place_of(plane, pod, volume, folder)
        if "emptyDir" not in volume and "hostPath" not in volume:
            access = "ro"
        if mount.get("subPath"):
            here = here / mount["subPath"]
            if "emptyDir" in volume:
                here.mkdir(parents=True, exist_ok=True)
        found.append((str(here), mount["mountPath"], access))
    return found


def place_of(plane: Plane, pod: dict, volume: dict, folder: Path) -> Path:
    """The folder on this host that a volume is."""
    here = folder / "volumes" / volume["name"]
    if "hostPath" in volume:
        return Path(volume["hostPath"]["path"])
    here.mkdir(parents=True, exist_ok=True)
    for path in (here.parent, here):
        path.chmod(0o755)
    if "emptyDir" in volume:
        here.chmod(0o777)
    else:
        project(plane, pod, volume, here)
    return here


def project(plane: Plane, pod: dict, volume: dict, here: Path) -> None:
    """Write what a secret, a config map or the downward API shows now, or a bucket did first."""
    if "csi" in volume:
        show_bucket(plane, pod, volume["csi"], here)
        return
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
        held = keyed(
            plane, pod["metadata"]["namespace"], plural, name, source.get("optional", False)
        )
        items = source.get("items") or [{"key": key, "path": key} for key in held]
        missing = [item["key"] for item in items if item["key"] not in held]
        if missing and not source.get("optional"):
            raise Missing(f"references non-existent {kind} key: {missing[0]}")
        shown = {item["path"]: held[item["key"]] for item in items if item["key"] in held}
    for path, data in shown.items():
        write(here / path, data, source.get("defaultMode", 0o644))


def show_bucket(plane: Plane, pod: dict, source: dict, here: Path) -> None:
    """Write what a volume of gcsfuse's shows."""
    if source["driver"] != DRIVER or plane.bucket_files is None:
        message = "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: driver name "
        raise Missing(
            f"{message}{source['driver']} not found in the list of registered CSI drivers"
        )
    for path, content in plane.bucket_files(pod, source).items():
        write(here / path, content.read_bytes(), 0o644)


def write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file in one step, if it differs."""
    if path.exists() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"..{path.name}.new")
    temporary.write_bytes(data)
    temporary.chmod(mode)
    temporary.replace(path)


def write_token(plane: Plane, pod: dict, folder: Path) -> Path:
    here = folder / "volumes/kube-api-access"
    here.mkdir(parents=True, exist_ok=True)
    for path in (here.parent, here):
        path.chmod(0o755)
    namespace = pod["metadata"]["namespace"]
    texts = {
        "token": plane.mint(namespace, pod["spec"]["serviceAccountName"]),
        "namespace": namespace,
        "ca.crt": (plane.folder / "ca.pem").read_text(),
    }
    for name, text in texts.items():
        if name != "token" or not (here / name).exists():
            write(here / name, text.encode(), 0o644)
    return here


def refresh(plane: Plane, pod: dict, folder: Path) -> None:
    """Show what changed since in the volumes of a pod that runs."""
    for volume in pod["spec"].get("volumes") or []:
        here = folder / "volumes" / volume["name"]
        if here.exists() and not {"emptyDir", "hostPath", "csi"} & volume.keys():
            try:
                project(plane, pod, volume, here)
            except Missing:
                pass

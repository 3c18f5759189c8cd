"""Images of the registry as pods run them: found by name, unpacked once.

Not covered: images of other registries, which the kubelet takes for names of this host's programs.
"""

from __future__ import annotations

import asyncio
import json
import platform
import re
import shutil
import subprocess
import uuid
from pathlib import Path

from localcloud.artifacts.api import INDEXES
from localcloud.artifacts.registry import PULL, Refusal, locate
from localcloud.artifacts.store import NotPulled, Unpacked
from localcloud.call import Cloud

HERE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
NAMED = re.compile(r"([^/]+)/([^:@]+)(?::([^:@]+))?(?:@(sha256:[0-9a-f]{64}))?")
HIDDEN = ".wh."  # begins the name of what a layer takes away from those below it
OPAQUE = ".wh..wh..opq"


async def pull(cloud: Cloud, name: str, account: str) -> Unpacked | None:
    """Unpack an image, for nodes that act as an account; None for one that is none of this cloud's.

    Raises NotPulled in the words of containerd.
    """
    found = NAMED.fullmatch(name)
    if found is None or not is_ours(cloud, found[1], found[2]):
        return None
    unresolved = f'failed to resolve reference "{name}": '
    try:
        repository, image = locate(cloud, found[2], account, PULL)
    except Refusal as refusal:
        if refusal.status == 404:
            raise NotPulled(f"{unresolved}{name}: not found") from None
        where = f"https://{found[1]}/v2/token: 403 Forbidden"
        raise NotPulled(
            f"{unresolved}failed to authorize: failed to fetch oauth token: {where}"
        ) from None
    manifest = cloud.artifacts.manifest(repository, image, found[4] or found[3] or "latest")
    if manifest is None:
        raise NotPulled(f"{unresolved}{name}: not found")
    digest, kind, data = manifest
    if kind in INDEXES:
        rows = [
            row
            for row in json.loads(data)["manifests"]
            if row.get("platform", {}).get("architecture") == HERE
        ]
        if not rows:
            raise NotPulled("no match for platform in manifest: not found")
        digest = rows[0]["digest"]
        data = cloud.artifacts.blob(digest).read_bytes()
    body = json.loads(data)
    config = json.loads(cloud.artifacts.blob(body["config"]["digest"]).read_bytes())
    root = cloud.artifacts.folder / "roots" / digest.removeprefix("sha256:")
    if not root.exists():
        layers = [cloud.artifacts.blob(each["digest"]) for each in body["layers"]]
        await asyncio.to_thread(unpack, layers, root)
    return Unpacked(root, config.get("config") or {}, digest)


def is_ours(cloud: Cloud, host: str, path: str) -> bool:
    by_google = host.endswith("-docker.pkg.dev") and path.partition("/")[0] in cloud.projects
    return host == f"127.0.0.1:{cloud.port}" or by_google


def unpack(layers: list[Path], root: Path) -> None:
    """Make the file system of layers, in a folder that is there only when it is whole."""
    folder = root.with_name(f".{uuid.uuid4()}")
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)  # whatever the server's umask
    for layer in layers:
        listed = subprocess.run(
            ["tar", "-tf", layer, "--quoting-style=literal"], capture_output=True, check=True
        )
        for name in listed.stdout.decode(errors="surrogateescape").splitlines():
            hide(folder, Path(name))
        subprocess.run(
            ["tar", "-xf", layer, "-C", folder, "--numeric-owner", "-p", f"--exclude={HIDDEN}*"],
            check=True,
        )
    try:
        folder.rename(root)
    except OSError:  # another pod was first
        shutil.rmtree(folder)


def hide(folder: Path, name: Path) -> None:
    """Take away what a layer's entry of this name hides."""
    parent = (folder / name.parent).resolve()
    if not name.name.startswith(HIDDEN) or not parent.is_relative_to(folder.resolve()):
        return
    gone = (
        [*parent.iterdir()]
        if name.name == OPAQUE and parent.is_dir()
        else [parent / name.name[len(HIDDEN) :]]
    )
    for path in gone:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

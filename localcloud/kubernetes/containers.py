"""Containers of pods as sandboxes, as machines are: how one is started, found again and told to
end.

A container whose image is in the cloud's registry has the files of that image. Any other sees this
host's programs, as machines do: its image is a name, which may be one that cannot be pulled. Its
processes share the host's network; the pod has an address of its own, and the metadata server of
its node. A container without a command, of which the image names none either, sleeps.
"""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

from localcloud.compute.state import Instance
from localcloud.kubernetes import volumes
from localcloud.kubernetes.kinds import stamp
from localcloud.kubernetes.plane import Plane
from localcloud.kubernetes.running import Running, follow
from localcloud.machines import processes, sandbox

IMAGE = "image"  # how container.sh makes the root of a container whose image is there
SCRIPT = Path(__file__).with_name("container.sh")
# images with an empty /root
PLAIN = re.compile(r"(.*/)?(debian|ubuntu|python|busybox|alpine|nginx)([:@].*)?")
# What containerd lets a container's root do.
CAPABILITIES = "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw sys_chroot mknod "
CAPABILITIES += "audit_write setfcap"


def node_instance(plane: Plane, pod: dict) -> Instance | None:
    rows = plane.compute.instances.values()
    return next((each for each in rows if each.name == pod["spec"].get("nodeName")), None)


def adopted(
    pod: dict, container: dict, row: dict, folder: Path, env: dict[str, str]
) -> Running | None:
    """A container that outlived an earlier server, or ended after it."""
    if "running" not in row["state"] or not processes.is_up(folder):
        return None
    if processes.first_process(folder) is None and not (folder / "exit").exists():
        return None
    shared = bool(pod["spec"].get("shareProcessNamespace"))
    workdir = container.get("workingDir") or "/"
    return Running(
        folder,
        env,
        workdir,
        shared,
        capabilities(container),
        None,
        row["state"]["running"]["startedAt"],
    )


def capabilities(container: dict) -> str:
    """What a container's root may do, as setpriv takes it: the usual, and what its security context
    adds and drops.
    """
    context = container.get("securityContext") or {}
    if context.get("privileged"):
        return "+all"
    wishes = context.get("capabilities") or {}
    added = [each.lower().removeprefix("cap_") for each in wishes.get("add") or []]
    dropped = [each.lower().removeprefix("cap_") for each in wishes.get("drop") or []]
    held = {*([] if "all" in dropped else CAPABILITIES.split()), *added} - {*dropped}
    return "+all" if "all" in held else ",".join(["-all", *(f"+{each}" for each in sorted(held))])


async def start(
    plane: Plane,
    pod: dict,
    container: dict,
    folder: Path,
    env: dict[str, str],
    mounts: list[tuple[str, str, str]],
) -> Running:
    node, there = node_instance(plane, pod), plane.compute.sandbox
    image, unpacked = None, plane.unpacked.get(container["image"])
    if not unpacked and not PLAIN.fullmatch(container["image"]) and plane.compute.image is not None:
        image = await asyncio.shield(plane.compute.image)
    hostname = (pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]
    port = plane.compute.metadata_port
    machine = sandbox.Machine(
        folder,
        hostname,
        pod["status"]["podIP"],
        port,
        image,
        None,
        metadata_address=node.address if node else "",
    )
    usual = sandbox.environment(machine)
    base = {key: value for key, value in usual.items() if key not in ("TERM", "LANG")}
    if unpacked:  # which has none of this host's files
        base = {
            key: value for key, value in base.items() if key == "PATH" or not value.startswith("/")
        }
    base |= {"HOME": "/root", "HOSTNAME": hostname}
    base |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(plane.port)}
    base["KUBERNETES_SERVICE_PORT_HTTPS"] = str(plane.port)
    about = unpacked.config if unpacked else {}
    env = {**base, **dict(line.split("=", 1) for line in about.get("Env") or []), **env}
    words = [volumes.expand(word, env) for word in command_of(container, about)] or [
        "sleep",
        "infinity",
    ]
    ours, theirs = pty.openpty() if container.get("tty") else (None, None)
    workdir = container.get("workingDir") or about.get("WorkingDir") or "/"
    shared = bool(pod["spec"].get("shareProcessNamespace"))
    mode, below = (IMAGE, unpacked.root) if unpacked else (there.files, image or folder / "empty")
    command = [
        "bash",
        str(SCRIPT),
        mode,
        str(folder),
        str(below),
        hostname,
        workdir,
        "shared" if shared else "own",
    ]
    command += [capabilities(container), *(["--user"] if there.user else [])]
    command += [sys.executable] if unpacked else map(str, sandbox.python_folders())
    command += ["--", *words]

    def launch() -> subprocess.Popen:
        if (folder / "log").exists():
            (folder / "log").replace(folder / "log.previous")
        (folder / "exit").unlink(missing_ok=True)
        sandbox.remove(folder / "image")  # each container begins with its image
        sandbox.prepare_folder(machine, there)
        (folder / "mounts").write_text("".join(f"{' '.join(mount)}\n" for mount in mounts))
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=theirs or (subprocess.PIPE if container.get("stdin") else subprocess.DEVNULL),
                stdout=theirs or log,
                stderr=theirs or log,
                bufsize=0,
                env=env,
                cwd="/",
                umask=0o022,
                start_new_session=True,
            )

    process = await asyncio.to_thread(launch)
    follow(process, ours, theirs, folder / "log")
    while not processes.is_up(folder) and process.poll() is None:
        await asyncio.sleep(0.005)
    return Running(
        folder, env, workdir, shared, capabilities(container), process, stamp(), terminal=ours
    )


def command_of(container: dict, image: dict) -> list[str]:
    """What a container runs: its own words, or those of its image."""
    command = container.get("command") or image.get("Entrypoint") or []
    others = container.get("args") or (image.get("Cmd") if not container.get("command") else [])
    return [*command, *(others or [])]


def main_process(running: Running) -> int | None:
    """The process that is told to end: the container's command."""
    first = processes.first_process(running.folder)
    if not first or not running.shared:
        return first
    try:
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def stop_container(running: Running, number: signal.Signals) -> None:
    first = processes.first_process(running.folder)
    pid = first if number == signal.SIGKILL else main_process(running)
    if pid:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

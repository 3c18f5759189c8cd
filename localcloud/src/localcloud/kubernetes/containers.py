"""Containers of pods as sandboxes, as machines are: how one is started, found again and
ended.

Containers see this host's programs, as machines do: an image is a name, which may be one that cannot be
pulled. Their processes share the host's network; the pod has an address of its own, and the metadata server
of its node. A container without a command sleeps.
"""

import asyncio
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from localcloud.compute.state import Instance
from localcloud.kubernetes import volumes
from localcloud.kubernetes.kinds import stamp
from localcloud.kubernetes.plane import Plane
from localcloud.machines import processes, sandbox

SCRIPT = Path(__file__).with_name("container.sh")
# What containerd lets a container's root do.
CAPABILITIES = "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw sys_chroot mknod "
CAPABILITIES += "audit_write setfcap"


@dataclass
class Running:
    """A container that runs."""

    folder: Path
    env: dict[str, str]
    workdir: str
    capabilities: str
    process: subprocess.Popen
    started: str


def node_instance(plane: Plane, pod: dict) -> Instance | None:
    rows = plane.compute.instances.values()
    return next((each for each in rows if each.name == pod["spec"].get("nodeName")), None)


def capabilities(container: dict) -> str:
    """What a container's root may do, as setpriv takes it: the usual, and what its security context
    adds.
    """
    wishes = (container.get("securityContext") or {}).get("capabilities") or {}
    added = [each.lower().removeprefix("cap_") for each in wishes.get("add") or []]
    held = {*CAPABILITIES.split(), *added}
    return ",".join(["-all", *(f"+{each}" for each in sorted(held))])


def hostname_of(pod: dict) -> str:
    return (pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]


async def start(
    plane: Plane,
    pod: dict,
    container: dict,
    folder: Path,
    own: dict[str, str],
    mounts: list[tuple[str, str, str]],
) -> Running:
    """Start a container with variables of its own, by what every container here inherits and what its
    pod says.
    """
    node, there = node_instance(plane, pod), plane.compute.sandbox
    machine = sandbox.Machine(
        folder,
        hostname_of(pod),
        pod["status"]["podIP"],
        plane.compute.metadata_port,
        plane.compute.images / "prepared",
        None,
        metadata_address=node.address if node else "",
    )
    outer = sandbox.environment(machine)
    env = {
        **{key: value for key, value in outer.items() if key not in ("TERM", "LANG")},
        "HOME": "/root",
        "HOSTNAME": machine.name,
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(plane.port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(plane.port),
        **own,
    }
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    workdir, may = container.get("workingDir") or "/", capabilities(container)
    command = [
        *("bash", str(SCRIPT), str(folder), str(machine.image), machine.name, workdir, may),
        *(["--user"] if there.user else []),
        *map(str, sandbox.python_folders()),
        "--",
        *([volumes.expand(word, env) for word in words] or ["sleep", "infinity"]),
    ]
    (folder / "exit").unlink(missing_ok=True)
    await asyncio.to_thread(sandbox.prepare_folder, machine, there)
    (folder / "mounts").write_text("".join(f"{' '.join(mount)}\n" for mount in mounts))
    process = await asyncio.to_thread(spawn, command, env, folder)
    while not processes.is_up(folder) and process.poll() is None:
        await asyncio.sleep(0.005)
    return Running(folder, env, workdir, may, process, stamp())


def spawn(command: list[str], env: dict[str, str], folder: Path) -> subprocess.Popen:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            cwd="/",
            umask=0o022,
            start_new_session=True,
        )


def not_started(running: Running, code: int) -> str:
    """Why a container's command could not even be started; "" if it was. Then it has no log."""
    log = running.folder / "log"
    if code not in (126, 127) or log.stat().st_size > 1000:
        return ""
    printed = log.read_text(errors="replace").strip()
    if not printed.startswith('exec: "') or "\n" in printed:
        return ""
    log.write_bytes(b"")
    return printed


def main_process(running: Running) -> int | None:
    """The process that gets the signal to end: the container's command."""
    first = processes.first_process(running.folder)
    if not first:
        return None
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

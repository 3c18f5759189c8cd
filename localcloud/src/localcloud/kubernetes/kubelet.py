"""The kubelet of every node: how pods begin and end. Containers are in containers.py.

    pods/<uid>/volumes/       the pod's volumes
    pods/<uid>/<container>/   a container, as a machine's folder; log, mounts, exit

Not covered: restarts, probes, lifecycle hooks, init containers, users other than root, limits of memory and
processors, images of a registry.
"""

import asyncio
import re
import signal
import time
from pathlib import Path
from typing import Any

from localcloud.kubernetes import containers, volumes
from localcloud.kubernetes.containers import Running
from localcloud.kubernetes.kinds import condition, is_leaving, is_over, set_condition, stamp
from localcloud.kubernetes.plane import Plane
from localcloud.machines import sandbox

IMAGE_NAME = re.compile(r"[a-z0-9]+([._/:-]+[a-zA-Z0-9]+)*(@sha256:[0-9a-f]{64})?")
KILLED = 137
RUNC = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc "
    "create failed: unable to start container process: error during container init: "
)


def folder_of(plane: Plane, pod: dict) -> Path:
    return plane.folder / "pods" / pod["metadata"]["uid"]


def take_up(plane: Plane) -> None:
    """Run every pod that was given a node and has not begun; remove folders of pods that are gone."""
    for pod in plane.store.all("pods"):
        uid = pod["metadata"]["uid"]
        if (
            pod["spec"].get("nodeName")
            and uid not in plane.kept
            and not is_over(pod)
            and not plane.closing
        ):
            plane.kept[uid] = plane.in_background(keep(plane, pod))


async def keep(plane: Plane, pod: dict) -> None:
    """Run a pod to its end."""
    uid = pod["metadata"]["uid"]
    try:
        await live(plane, pod)
    finally:
        plane.kept.pop(uid, None)
    plane.finish_pod(pod)
    if plane.store.get("pods", pod["metadata"]["namespace"], pod["metadata"]["name"]) is not pod:
        await asyncio.to_thread(sandbox.remove, folder_of(plane, pod))
    plane.store.notify()


async def live(plane: Plane, pod: dict) -> None:
    spec, status = pod["spec"], pod["status"]
    address = plane.compute.new_address()
    node = containers.node_instance(plane, pod)
    host = node.address if node else ""
    status.update(
        podIP=address,
        podIPs=[{"ip": address}],
        hostIP=host,
        hostIPs=[{"ip": host}],
        startTime=stamp(),
        containerStatuses=[waiting(row, "ContainerCreating") for row in spec["containers"]],
    )
    set_condition(status, "PodReadyToStartContainers", "True")
    set_ready(status)
    plane.store.put("pods", pod)
    limit = plane.in_background(end_in_time(plane, pod))
    try:
        set_condition(status, "Initialized", "True")
        rows = zip(spec["containers"], status["containerStatuses"], strict=True)
        await asyncio.gather(*(run(plane, pod, container, row) for container, row in rows))
    finally:
        limit.cancel()
    if not plane.closing:
        close_status(pod)
        plane.store.put("pods", pod)


def waiting(container: dict, reason: str, message: str = "") -> dict:
    state = {"reason": reason, **({"message": message} if message else {})}
    return {
        **{
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "restartCount": 0,
        },
        **{"ready": False, "started": False, "lastState": {}, "state": {"waiting": state}},
    }


def is_ending(pod: dict) -> bool:
    """Whether a pod's containers are not to begin again."""
    return is_leaving(pod) or bool(pod["status"].get("reason"))


def set_ready(status: dict) -> None:
    rows = status.get("containerStatuses") or []
    ready = "True" if rows and all(row["ready"] for row in rows) else "False"
    for kind in ("ContainersReady", "Ready"):
        set_condition(status, kind, ready, *(() if ready == "True" else ("ContainersNotReady",)))


def close_status(pod: dict) -> None:
    """The last words of a pod whose containers have all ended."""
    status = pod["status"]
    codes = []
    for row in status["containerStatuses"]:
        if "terminated" not in row["state"]:  # it never began
            row["state"] = {"terminated": {"exitCode": KILLED, "reason": "ContainerStatusUnknown"}}
        codes.append(row["state"]["terminated"]["exitCode"])
        row.update(ready=False, started=False)
    failed = any(codes) or bool(status.get("reason"))
    status["phase"] = "Failed" if failed else "Succeeded"
    for kind in ("ContainersReady", "Ready"):
        set_condition(status, kind, "False", "PodFailed" if failed else "PodCompleted")


# --- containers


async def run(plane: Plane, pod: dict, container: dict, row: dict) -> None:
    """Run a container once."""
    if started := await begin(plane, pod, container, row):
        await ended(plane, pod, container, row, started)


async def pause(plane: Plane, pod: dict, seconds: float) -> bool:
    """Wait; False if the pod is to end meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not is_ending(pod) and not plane.closing:
        await asyncio.sleep(min(0.1, max(0.0, end - time.monotonic())))
    return not is_ending(pod) and not plane.closing


async def begin(plane: Plane, pod: dict, container: dict, row: dict) -> Running | None:
    """Start a container, as soon as it has all that it needs; None if its pod is to end before."""
    key = (pod["metadata"]["uid"], container["name"])
    folder = folder_of(plane, pod) / container["name"]
    delay = 1.0
    while not is_ending(pod) and not plane.closing:
        try:
            if plane.compute.sandbox.files == sandbox.PLAIN:
                raise volumes.Missing(
                    "pods of the embedded cloud take namespaces, which this host does not allow"
                )
            if not await pulled(plane, pod, container, row):
                return None
            env = volumes.environment(pod, container)
            mounts = volumes.mounts(plane, pod, container, folder_of(plane, pod))
        except volumes.Missing as missing:
            reason = "CreateContainerConfigError"
            row["state"] = {"waiting": {"reason": reason, "message": str(missing)}}
            plane.store.put("pods", pod)
            plane.event(pod, "Failed", f"Error: {missing}", "Warning", "kubelet")
            await pause(plane, pod, min(delay, 10.0))
            delay *= 2
            continue
        found = await containers.start(plane, pod, container, folder, env, mounts)
        plane.running[key] = found
        row.update(ready=True, started=True, containerID=f"containerd://{key[0].replace('-', '')}")
        row["state"] = {"running": {"startedAt": found.started}}
        pod["status"]["phase"] = "Running"
        set_ready(pod["status"])
        plane.event(pod, "Created", f"Created container: {container['name']}", by="kubelet")
        plane.event(pod, "Started", f"Started container {container['name']}", by="kubelet")
        plane.store.put("pods", pod)
        return found
    return None


async def pulled(plane: Plane, pod: dict, container: dict, row: dict) -> bool:
    """Pull a container's image; False if that cannot be, and the pod is to end."""
    image = container["image"]
    if not IMAGE_NAME.fullmatch(image):
        detail = f'couldn\'t parse image name "{image}": invalid reference format'
        message = f'Failed to apply default image tag "{image}": {detail}'
        row["state"] = {"waiting": {"reason": "InvalidImageName", "message": message}}
        plane.store.put("pods", pod)
        plane.event(pod, "InspectFailed", message, "Warning", "kubelet")
        while await pause(plane, pod, 1):
            pass
        return False
    plane.event(pod, "Pulling", f'Pulling image "{image}"', by="kubelet")
    while why := next((why for part, why in plane.images.items() if part in image), ""):
        message = f'failed to pull and unpack image "{image}": {why}'
        event = f'Failed to pull image "{image}": {message}'
        plane.event(pod, "Failed", event, "Warning", "kubelet")
        message = f'Back-off pulling image "{image}": {message}'
        row["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
        plane.store.put("pods", pod)
        if not await pause(plane, pod, 2):
            return False
    plane.event(pod, "Pulled", f'Successfully pulled image "{image}"', by="kubelet")
    return True


async def ended(plane: Plane, pod: dict, container: dict, row: dict, running: Running) -> int:
    """Wait until a container has ended, and note how."""
    exit_file = running.folder / "exit"
    while running.process.poll() is None:  # no thread waits: there are few, and many pods
        if plane.closing:
            containers.stop_container(running, signal.SIGKILL)
        await asyncio.sleep(0.05)
    code = int(exit_file.read_text()) if exit_file.exists() else KILLED
    plane.running.pop((pod["metadata"]["uid"], container["name"]), None)
    why = containers.not_started(running, code)
    code = 128 if why else code
    reason = "StartError" if why else "Error" if code else "Completed"
    state: dict[str, Any] = {"exitCode": code, "reason": reason}
    state |= {"message": f"{RUNC}{why}"} if why else {}
    state.update(
        startedAt=running.started, finishedAt=stamp(), containerID=row.get("containerID", "")
    )
    row.update(ready=False, started=False, state={"terminated": state})
    set_ready(pod["status"])
    plane.store.put("pods", pod)
    return code


# --- ending


async def end_pod(plane: Plane, pod: dict, grace: float) -> None:
    """SIGTERM to what a pod runs, SIGKILL after the grace; returns when all has ended."""
    uid = pod["metadata"]["uid"]
    until = time.monotonic() + grace
    message: set[int] = set()
    while uid in plane.kept:
        for key, running in list(plane.running.items()):
            if key[0] != uid:
                continue
            late = time.monotonic() >= until
            if id(running) not in message and not late:
                message.add(id(running))
                containers.stop_container(running, signal.SIGTERM)
                plane.event(pod, "Killing", f"Stopping container {key[1]}", by="kubelet")
            elif late:
                containers.stop_container(running, signal.SIGKILL)
        await asyncio.sleep(0.02)


async def end_in_time(plane: Plane, pod: dict) -> None:
    """End a pod whose activeDeadlineSeconds are over; they count from when the node took it."""
    seconds = pod["spec"].get("activeDeadlineSeconds")
    if seconds is None:
        return
    await asyncio.sleep(seconds)
    message = "Pod was active on the node longer than the specified deadline"
    fail(plane, pod, "DeadlineExceeded", message)
    plane.event(pod, "DeadlineExceeded", message, by="kubelet")
    plane.in_background(end_pod(plane, pod, pod["spec"]["terminationGracePeriodSeconds"]))


def fail(
    plane: Plane, pod: dict, reason: str, message: str, disruption: str = "", detail: str = ""
) -> None:
    """Say why a pod is going to fail; `disruption` is the reason of its condition DisruptionTarget."""
    pod["status"].update(reason=reason, message=message)
    if disruption and not condition(pod, "DisruptionTarget"):
        set_condition(pod["status"], "DisruptionTarget", "True", disruption, detail or message)
    plane.store.put("pods", pod)


def evict(plane: Plane, pod: dict, grace: float = 0) -> None:
    """What a node does to a pod when it runs out of something: on demand."""
    message = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 512Mi. "
    fail(plane, pod, "Evicted", message, "TerminationByKubelet")
    plane.event(pod, "Evicted", message, "Warning", "kubelet")
    plane.in_background(end_pod(plane, pod, grace))

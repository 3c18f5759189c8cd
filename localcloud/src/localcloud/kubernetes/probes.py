"""Readiness probes: whether a container that runs answers, so that services may send to its pod.

Not covered: liveness and startup probes, probes by exec and gRPC, ports by name, HTTPS, headers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from localcloud.kubernetes.plane import MINOR, Plane


async def watch(
    plane: Plane, pod: dict, row: dict, probe: dict, note: Callable[[dict], None]
) -> None:
    """Ask a container again and again until it ends, and note in its status whether it is ready."""
    began, good, bad = row["state"], 0, 0
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    while row["state"] is began and not plane.closing:
        trouble = await ask(pod["status"]["podIP"], probe)
        if row["state"] is not began:
            return
        good, bad = (0, bad + 1) if trouble else (good + 1, 0)
        if trouble:
            plane.event(
                pod, "Unhealthy", f"Readiness probe failed: {trouble}", "Warning", "kubelet"
            )
        ready = good >= probe["successThreshold"] or (
            row["ready"] and bad < probe["failureThreshold"]
        )
        if ready != row["ready"]:
            row["ready"] = ready
            note(pod["status"])
            plane.store.put("pods", pod)
        await asyncio.sleep(probe["periodSeconds"])


async def ask(address: str, probe: dict) -> str:
    """What is wrong with a container, in the kubelet's words; "" if it answers."""
    action = probe.get("httpGet") or probe.get("tcpSocket")
    if not action:
        return "the embedded cloud knows httpGet and tcpSocket alone"
    host, port = action.get("host") or address, action["port"]
    limit = probe["timeoutSeconds"]
    try:
        if "tcpSocket" in probe:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), limit)
            writer.close()
            return ""
        url = f"http://{host}:{port}{action.get('path', '/')}"
        headers = {"User-Agent": f"kube-probe/1.{MINOR}", "Connection": "close"}
        wait = aiohttp.ClientTimeout(total=limit)
        async with (
            aiohttp.ClientSession(timeout=wait) as session,
            session.get(url, headers=headers, allow_redirects=False) as answer,
        ):
            return (
                ""
                if 200 <= answer.status < 400
                else f"HTTP probe failed with statuscode: {answer.status}"
            )
    except asyncio.TimeoutError:
        return f'Get "http://{host}:{port}{action.get("path", "")}": context deadline exceeded'
    except (OSError, aiohttp.ClientError):
        return f"dial tcp {host}:{port}: connect: connection refused"

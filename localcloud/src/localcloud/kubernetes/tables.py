"""Objects as tables, which is how kubectl asks for what it prints."""

import calendar
import time
from collections.abc import Callable

from localcloud.kubernetes.kinds import condition, is_leaving

WIDE = (
    "IP",
    "Node",
    "Nominated Node",
    "Readiness Gates",
    "Containers",
    "Images",
    "Selector",
    "Internal-IP",
)


def age(text: str | None) -> str:
    if not text:
        return "<unknown>"
    seconds = int(time.time() - calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")))
    if seconds < 120:
        return f"{max(0, seconds)}s"
    return (
        f"{seconds // 60}m"
        if seconds < 7200
        else f"{seconds // 3600}h"
        if seconds < 172_800
        else f"{seconds // 86400}d"
    )


def born(thing: dict) -> str:
    return age(thing["metadata"]["creationTimestamp"])


def pod_status(pod: dict) -> str:
    """What kubectl says in the column STATUS."""
    status = pod["status"]
    shown = status.get("reason") or status.get("phase", "Pending")
    for row in status.get("containerStatuses") or []:
        state = row["state"]
        if state.get("waiting", {}).get("reason"):
            shown = state["waiting"]["reason"]
        elif "terminated" in state and not status.get("reason"):
            shown = (
                state["terminated"].get("reason") or f"ExitCode:{state['terminated']['exitCode']}"
            )
    return (
        "Terminating"
        if is_leaving(pod) and status.get("phase") not in ("Succeeded", "Failed")
        else shown
    )


def pod_cells(pod: dict) -> list:
    rows = pod["status"].get("containerStatuses") or []
    ready = f"{sum(row['ready'] for row in rows)}/{len(pod['spec']['containers'])}"
    restarts = sum(row["restartCount"] for row in rows)
    where = [
        pod["status"].get("podIP", "<none>"),
        pod["spec"].get("nodeName", "<none>"),
        "<none>",
        "<none>",
    ]
    return [ready, pod_status(pod), restarts, born(pod), *where]


def job_cells(job: dict) -> list:
    status = job["status"]
    state = next(
        (kind for kind in ("Complete", "Failed", "Suspended") if condition(job, kind)), "Running"
    )
    ended = status.get("completionTime")
    begin = status.get("startTime")
    duration = "" if not begin else age(begin)
    if begin and ended:
        form = "%Y-%m-%dT%H:%M:%SZ"
        duration = f"{calendar.timegm(time.strptime(ended, form)) - calendar.timegm(time.strptime(begin, form))}s"
    return [
        state,
        f"{status.get('succeeded', 0)}/{job['spec'].get('completions') or 1}",
        duration,
        born(job),
    ]


def node_cells(node: dict) -> list:
    state = "Ready" if condition(node, "Ready") else "NotReady"
    address = next(
        (
            row["address"]
            for row in node["status"].get("addresses", [])
            if row["type"] == "InternalIP"
        ),
        "",
    )
    return [state, "<none>", born(node), node["status"]["nodeInfo"]["kubeletVersion"], address]


def event_cells(event: dict) -> list:
    about = event["involvedObject"]
    return [
        event["type"],
        event["reason"],
        f"{about['kind'].lower()}/{about['name']}",
        event["message"],
    ]


COLUMNS: dict[str, tuple[str, Callable[[dict], list]]] = {
    "pods": ("Name|Ready|Status|Restarts|Age|IP|Node|Nominated Node|Readiness Gates", pod_cells),
    "jobs": ("Name|Status|Completions|Duration|Age", job_cells),
    "nodes": ("Name|Status|Roles|Age|Version|Internal-IP", node_cells),
    "events": ("Last Seen|Type|Reason|Object|Message", event_cells),
    "configmaps": ("Name|Data|Age", lambda o: [len(o.get("data") or {}), born(o)]),
    "secrets": ("Name|Type|Data|Age", lambda o: [o.get("type"), len(o.get("data") or {}), born(o)]),
}


def table(plural: str, things: list[dict], meta: dict) -> dict:
    """A table of objects, with the metadata of each in its row."""
    names, cells = COLUMNS.get(plural, ("Name|Age", lambda thing: [born(thing)]))
    columns = [
        {
            **{
                "name": name,
                "type": "integer" if name == "Restarts" else "string",
                "description": "",
            },
            **{"format": "name" if name == "Name" else "", "priority": int(name in WIDE)},
        }
        for name in names.split("|")
    ]
    rows = []
    about = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    for thing in things:
        first = age(thing["lastTimestamp"]) if plural == "events" else thing["metadata"]["name"]
        rows.append(
            {"cells": [first, *cells(thing)], "object": {**about, "metadata": thing["metadata"]}}
        )
    return {
        **{"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta},
        **{"columnDefinitions": columns, "rows": rows},
    }

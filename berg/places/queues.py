"""The queues of a cluster: what Kueue says of Jobs that wait for their turn.

A Job with a queue's name is suspended until Kueue has quota for all its pods; a Workload of Kueue's
says why. One that is evicted is suspended again, and its pods are ended. Berg only reads: it
installs and changes nothing of Kueue's.

Not covered: priorities, which the label of a pod patch cannot set, and queues of other schedulers.
"""

from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import http
from berg.google import kubernetes as k8s

GROUP = "kueue.x-k8s.io"
LABEL = f"{GROUP}/queue-name"
TIMEOUT = 10  # seconds for a cluster to answer
Thing = dict[str, Any]


def home(config: Config, server: k8s.Server) -> str:
    """Return the path of Kueue's API in the version that a cluster prefers; "" without Kueue."""
    there = k8s.find(config, server, f"/apis/{GROUP}", timeout=TIMEOUT)
    return f"/apis/{GROUP}/{there['preferredVersion']['version']}" if there else ""


def check(config: Config, server: k8s.Server, namespace: str, name: str) -> None:
    """Raise BergError unless a namespace has a queue of that name: Kueue would let a Job for one
    that is missing wait for ever, and say nothing.
    """
    cluster, kueue = server.place.rpartition("/")[2], home(config, server)
    if not kueue:
        raise BergError(
            f"--queue {name}: the cluster {cluster} has no Kueue, and so no queues. Leave out "
            "--queue; or who administers the cluster installs it: https://kueue.sigs.k8s.io"
        )
    there = k8s.items(config, server, f"{kueue}/namespaces/{namespace}/localqueues")
    found = {each["metadata"]["name"]: each for each in there}
    if name not in found:
        names = ", ".join(sorted(found)) or "none"
        raise BergError(
            f"the cluster {cluster} has no queue {name!r} in your namespace {namespace}; there: "
            f"{names}. Who administers the cluster makes a LocalQueue there"
        )
    active = conditions(found[name]).get("Active", {})
    if active.get("status") == "False":
        http.notify(f"The queue {name} admits nothing now: {active.get('message')}")


def conditions(thing: Thing) -> dict[str, Thing]:
    """Return what an object says of itself, by the types of its conditions."""
    return {each["type"]: each for each in thing.get("status", {}).get("conditions", [])}


def reasons(config: Config, server: k8s.Server, jobs: list[Thing]) -> dict[str, str]:
    """Return why those Jobs that are suspended wait, in words, by their uids."""
    suspended = [each for each in jobs if each["spec"].get("suspend")]
    queued = [each for each in suspended if LABEL in each["metadata"].get("labels", {})]
    found = {each["metadata"]["uid"]: "somebody suspended its Job" for each in suspended}
    if not queued:
        return found
    try:
        workloads, unseen = workloads_by_job(config, server), ""
    except BergError as error:
        workloads, unseen = {}, f"why cannot be seen: {error.message}"
    for job in queued:
        uid, queue = job["metadata"]["uid"], job["metadata"]["labels"][LABEL]
        why = unseen or in_words(workloads.get(uid, {}))
        found[uid] = f"it waits in the queue {queue}: {why}"
    return found


def workloads_by_job(config: Config, server: k8s.Server) -> dict[str, Thing]:
    """Return a cluster's Workloads by the uids of their Jobs."""
    where = "/workloads" if server.has_identity else f"/namespaces/{k8s.SHARED}/workloads"
    there = k8s.items(config, server, home(config, server) + where, timeout=TIMEOUT)
    return {
        owner["uid"]: each
        for each in there
        for owner in each["metadata"].get("ownerReferences", [])
    }


def in_words(workload: Thing) -> str:
    """Return what keeps a Workload from running: its eviction, its quota, its admission checks."""
    said, parts = conditions(workload), []
    evicted, reserved = said.get("Evicted", {}), said.get("QuotaReserved", {})
    if evicted.get("status") == "True":
        parts.append(f"evicted: {evicted.get('message')} ({evicted.get('reason')})")
    if reserved.get("status") == "False":
        parts.append(str(reserved.get("message")))
    if reserved.get("status") == "True":
        parts.append(str(reserved.get("message")))
        checks = workload["status"].get("admissionChecks", [])
        waiting = [each for each in checks if each.get("state") != "Ready"]
        parts += [f"{each['name']} is {each['state']} {each['message']}" for each in waiting]
    texts = [" ".join(each.split()) for each in parts]
    return "; ".join(dict.fromkeys(texts)) or "Kueue has not looked at it yet"

"""Pods of a cluster of Google Kubernetes Engine as a place for jobs.

A job is an Indexed Job of Kubernetes with a pod for each machine. boot.py comes as a ConfigMap,
everything else from the bucket, so that no image has to be built. Kubernetes makes pods again that
were taken away, Google the nodes of a TPU slice, and both wait for room without this computer.
Not covered: several clusters for one job, Autopilot.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from berg import BergError, computer
from berg.config import Config
from berg.gke import client, pods
from berg.gke.client import Server, called, connect, path_to
from berg.gke.status import (
    Thing,
    check_queue,
    conditions,
    ending,
    hindrance,
    how_ended,
    is_alive,
    is_of,
    is_short,
    machine_of,
    may_be_silent,
    never_began,
    one_line,
    pods_of,
    to_come,
    why_suspended,
)
from berg.google import api
from berg.google.shapes import parse_tpu
from berg.job import NO_GROUP, TOO_LATE, Group, Login, Machine, Resource
from berg.plain import plural
from berg.plan import Choice, Offer
from berg.spec import JobSpec

GONE = 180  # seconds for pods to go
# The server of one connection, whose standard input and output are the connection.
SSHD = (
    'exec /usr/sbin/sshd -i -e -f /dev/null -h "${BERG_ROOT:-/root}/berg/ssh_host_key" -o '
    "UsePAM=no -o StrictModes=no "
    "-o LogLevel=ERROR -o Subsystem='sftp internal-sftp'"
)
# Reads a public key; it is not pasted in.
ADMIT = (
    "umask 77; mkdir -p ~/.ssh; cd ~/.ssh || exit; touch authorized_keys; read -r key; "
    'grep -qxF "$key" authorized_keys || echo "$key" >> authorized_keys'
)
request = pods.request


def warm_up() -> None:
    """Do nothing: no request needs a library of Google's."""


def choose(config: Config, spec: JobSpec, is_sweep: bool) -> Choice:
    """Return the pods that a spec means; raise BergError if the cluster cannot hold them."""
    cluster = client.find_cluster(config, spec.cluster or "")
    where, accounts = client.where(cluster), pods.accounts(config, cluster)
    pods.check_mounts(cluster, spec)
    pods.check_patch("of the job", spec.pod_patch or {})
    if spec.queue:
        server = connect(config, where)
        check_queue(server, pods.namespace(config, server), spec.queue)
    wanted = parse_tpu(spec.tpu, in_cluster=True) if spec.tpu is not None else None
    hosts = wanted.hosts if wanted else spec.num_machines
    if wanted and hosts > 1 and is_sweep:
        raise BergError(
            f"--tpu {spec.tpu} is a slice of {hosts} pods: each job of a sweep runs on one machine"
        )
    shape = pods.choose_tpus(cluster, spec, wanted) if wanted else pods.choose(cluster, spec)
    return Choice(
        shape,
        hosts,
        config.default_docker_image,
        cluster=where,
        is_slice=wanted is not None and hosts > 1,
        accounts=accounts,
    )


def offer(config: Config, spec: JobSpec, choice: Choice, sweep: int) -> Offer:
    """Return what the cluster has; its nodes have their own disks and addresses."""
    shape = choice.shape
    gpus = f"{shape.num_gpus} x {shape.gpu_type}" if shape.num_gpus else "no GPU"
    priced = replace(shape, num_gpus=shape.node_gpus) if shape.node_gpus else None
    if spec.tpu is not None:
        gpus, priced = plural(parse_tpu(spec.tpu, in_cluster=True).chips_each, "TPU chip"), shape
    several = f"{choice.hosts} pods, each " if choice.hosts > 1 else ""
    spot = ", spot" if spec.spot else ""
    patch = [f"{part}.{key}" for part, keys in (spec.pod_patch or {}).items() for key in keys]
    patched = f", patched: {', '.join(patch)}" if patch else ""
    queue = f", in the queue {spec.queue}" if spec.queue else ""
    return Offer(
        shape=shape,
        hosts=choice.hosts,
        image=choice.image,
        zones=[choice.cluster.partition("/")[0]],
        rows=[
            ("Pod", f"{several}{gpus}{spot}{patched}"),
            ("Image", choice.image),
            ("Cluster", f"{choice.cluster}{queue}"),
        ],
        ender="Kubernetes ends the pod",
        group=Group(cluster=choice.cluster),
        heals="pods that were taken away" if spec.cmd is not None else "",
        priced=priced,
        is_shared=spec.tpu is None,
        accounts=choice.accounts,
    )


def longest_name(first: str, names: list[str]) -> str:
    """Return the longest host name of these pods: their Job's, with a number."""
    return f"{first}-{len(names) - 1}"


def preview(config: Config, request: Thing, names: list[str], keep: bool) -> Any:
    """Return the Job, as `kubectl create -f` takes it; raise BergError if the cluster refuses it.

    What it mounts is not part of it.
    """
    server = connect(config, request["cluster"])
    service = (request["name"] or names[0]) if request["is_slice"] else ""
    made = pods.body(request, names, client.SHARED, has_cache(server), service)
    strictly = {"dryRun": "All", "fieldManager": "berg", "fieldValidation": "Strict"}
    try:
        client.call(server, "POST", client.below(client.SHARED, "jobs"), made, **strictly)
    except client.Refused as error:
        if error.code in (400, 422):  # the others are not about the Job
            raise
    namespace = pods.namespace(config, server)
    job = pods.in_namespace(made, namespace)
    if not service:
        return job
    items = [pods.in_namespace(pods.slice_service(made, service), namespace), job]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def has_cache(server: Server) -> bool:
    """Return whether the cluster has a dataset cache."""
    path = f"{client.CORE}/services/{pods.CACHE}"
    return client.find(server, path, timeout=client.LISTING) is not None


def create(
    config: Config,
    request: Thing,
    names: list[str],
    keep: bool,
    say: Callable[[str], None],
    still_trying: Callable[[], None],
) -> str:
    """Create the Job; its pods come when the cluster has room."""
    server = connect(config, request["cluster"])
    namespace = pods.ensure_account(config, server)
    stamp = os.urandom(8).hex()
    service = f"berg-slice-{stamp}" if request.get("is_slice") else ""
    job = pods.body(request, names, namespace, has_cache(server), service)
    # tells ours, sent twice, from another one
    job["metadata"]["annotations"] = {"berg-request": stamp}
    owned = {}
    if key := request.get("cluster_key"):
        owned["secrets"] = pods.key_secret(job, f"berg-key-{stamp}", key)
    if service:
        owned["services"] = pods.slice_service(job, service)
    create_job(config, server, job)
    for kind, thing in owned.items():
        there = client.call(server, "GET", path_to("jobs", called(job)))["metadata"]
        uid = there["uid"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": there["name"], "uid": uid}
        thing["metadata"]["ownerReferences"] = [owner]
        client.create(server, client.below(namespace, kind), thing)
    count = "a pod" if len(names) == 1 else f"{len(names)} pods"
    say(f"Asked the cluster {server.place} for {count}")
    return ""


def create_job(config: Config, server: Server, job: Thing) -> None:
    """Create a Job in place of a finished one; raise BergError if another one has its name."""
    name, stamp = job["metadata"]["name"], job["metadata"]["annotations"]["berg-request"]
    path = path_to("jobs", called(job))
    while not client.create(server, path.rpartition("/")[0], job):
        there = client.find(server, path)
        if there is None:
            continue
        about = there["metadata"]
        if about.get("annotations", {}).get("berg-request") == stamp:
            break
        is_ours = about.get("labels", {}).get("berg-bucket") == pods.bucket_label(config)
        if not is_ours or not (ending(there) or there["spec"].get("suspend")):
            raise BergError(
                f"the cluster {server.place} has a job {name!r} already. Choose another name: -n "
                "NAME"
            )
        client.delete(server, path)  # of an earlier attempt
        if not api.wait_for(lambda: not client.find(server, path), 0.3, GONE):
            raise BergError(
                f"the job {name} of an earlier attempt is not deleted after {GONE} seconds. "
                f"See: kubectl describe job {name}"
            )


# --- what there is


def ours(
    config: Config, place: str, kind: str, labels: str = "", timeout: float = 0
) -> list[Thing]:
    """Return a cluster's objects of a kind such as pods; by default those of this bucket's jobs."""
    server = connect(config, place)
    labels = labels or f"berg=1,berg-bucket={pods.bucket_label(config)}"
    path = client.everywhere(server, kind)
    return client.items(server, path, labelSelector=labels, timeout=timeout)


def listed(
    config: Config, where: Iterable[str], kind: str, labels: str = ""
) -> dict[str, list[Thing]]:
    """Return what `ours` finds in several clusters, without those that do not answer."""

    def look(place: str) -> list[Thing] | None:
        try:
            return ours(config, place, kind, labels, client.LISTING)
        except BergError as error:
            api.notify(f"{error.message}; its pods are not among what follows")
            return None

    where = list(where)
    with ThreadPoolExecutor(8) as pool:
        found = zip(where, pool.map(look, where), strict=True)
        return {place: there for place, there in found if there is not None}


def machines(
    config: Config, jobs: Collection[str] = (), sweeps: Collection[str] = (), *, zone: str = ""
) -> list[Machine]:
    """Return the pods of this bucket's jobs that are alive or to come as machines, by name.

    A cluster is their zone.
    """

    def chosen(things: list[Thing]) -> list[Thing]:
        return [each for each in things if not (jobs or sweeps) or is_of(each, jobs, sweeps)]

    where = [zone] if zone else client.running_clusters(client.seen_clusters(config))
    of_jobs = listed(config, where, "jobs")
    found = []
    for place, there in listed(config, of_jobs, "pods").items():
        found += machines_in(connect(config, place), chosen(of_jobs[place]), chosen(there))
    return sorted(found, key=lambda machine: machine.name)


def machines_in(
    server: Server, jobs: list[Thing], there: list[Thing], otherwise: str = ""
) -> list[Machine]:
    """Return a cluster's living pods as machines; a Job without one has a machine in their place.

    They have a note on what they wait for, and on a node that does not answer. Where it is not
    known why a Job has no pod, `otherwise` is the note; "": it has no machine.
    """
    alive = [pod for pod in there if is_alive(pod)]
    short = [each for each in jobs if is_short(each, alive)]
    events = events_for(server, alive, bool(short))
    found = {pod["metadata"]["uid"]: machine_of(pod, server.place, events) for pod in alive}
    note_silent_nodes(server, alive, found)
    suspended = why_suspended(server, short)
    for job in short:
        why = suspended.get(job["metadata"]["uid"]) or hindrance(job, pods_of(job, there), events)
        note_short(server, job, there, why, otherwise, found)
    in_vain = [job for job in jobs if ending(job) and never_began(pods_of(job, there))]
    for job in in_vain:  # Kubernetes gave them up
        own = pods_of(job, there)
        machine = to_come(job, server.place, own, hindrance(job, own, []))
        found[job["metadata"]["uid"]] = replace(machine, is_crash_looping=True)
    return list(found.values())


def note_short(
    server: Server,
    job: Thing,
    there: list[Thing],
    why: str,
    otherwise: str,
    found: dict[str, Machine],
) -> None:
    """Note why a Job lacks pods: on its first pod, without one on a machine in their place."""
    own = pods_of(job, there)
    living = [found[pod["metadata"]["uid"]] for pod in own if is_alive(pod)]
    if living:
        living[0].note = living[0].note or why
    elif why or otherwise:
        found[job["metadata"]["uid"]] = to_come(job, server.place, own, why or otherwise)


def note_silent_nodes(server: Server, alive: list[Thing], found: dict[str, Machine]) -> None:
    """Note on machines, which are by the uids of their pods, that the node does not answer."""
    suspects = [pod for pod in alive if pod["spec"].get("nodeName") and may_be_silent(pod)]
    unready = unready_nodes(server) if suspects else {}
    for pod in suspects:
        node = pod["spec"]["nodeName"]
        ready = unready.get(node, {})
        if ready.get("status") == "Unknown":  # else it is only shutting down
            since = ready.get("lastTransitionTime", "")
            text = f"its node {node} does not answer since {since}"
            found[pod["metadata"]["uid"]].silence = text


def unready_nodes(server: Server) -> dict[str, Thing]:
    """Return the condition of nodes that are not ready, by name; none if the API is silent."""
    with contextlib.suppress(BergError):
        nodes = client.items(server, client.NODES, timeout=client.LISTING)
        ready = {node["metadata"]["name"]: conditions(node).get("Ready", {}) for node in nodes}
        return {name: each for name, each in ready.items() if each.get("status", "True") != "True"}
    return {}


def events_for(server: Server, alive: list[Thing], is_short: bool) -> list[Thing]:
    """Return the events that may explain why pods wait or are missing; [] if none does."""
    if is_short or any(pod["status"]["phase"] == "Pending" for pod in alive):
        with contextlib.suppress(BergError):
            return client.items(server, client.everywhere(server, "events"), timeout=client.LISTING)
    return []


def waiting(config: Config, job: str | None = None) -> set[str]:
    """Return the jobs and sweeps that Kubernetes makes pods for, and silent clusters' places."""
    where = client.running_clusters(client.clusters(config))
    there = listed(config, where, "jobs")
    found = set(where) - there.keys()
    for each in [each for jobs in there.values() for each in jobs if not ending(each)]:
        labels = each["metadata"]["labels"]
        found.add(labels.get("berg-job") or labels.get("berg-sweep", ""))
    return found


def why_gone(config: Config, job: str, group: Group, zone: str) -> str:
    """Return why a job's pods are gone, as far as Kubernetes knows; "" if it knows nothing."""
    named = {"fieldSelector": f"metadata.name={job}", "timeout": client.LISTING}
    try:
        server = connect(config, group.cluster)
        there = client.items(server, client.everywhere(server, "jobs"), **named)
    except BergError as error:  # the cluster is gone, too
        return error.message
    if not there:
        return f"the cluster {group.cluster} has no job {job} any more"
    end = ending(there[0]) or {}
    if end.get("reason") == "DeadlineExceeded":
        return f"{TOO_LATE} ({group.cluster})"
    found = listed(config, [group.cluster], "pods").get(group.cluster, [])
    ends = [text for pod in found if is_of(pod, [job], []) and (text := how_ended(pod))]
    return "; ".join(dict.fromkeys(ends)) or one_line(end)


# --- what is done to them


def set_metadata(config: Config, machine: Machine, key: str, value: str) -> None:
    """Annotate a pod; its kubelet passes that on within a minute."""
    if not machine.pod:  # it has yet to be created
        return
    name = key.replace("berg-kill-", "berg-kill/", 1)  # a name without a slash has 63 characters
    change = {"metadata": {"annotations": {name: value}}}
    server = connect(config, machine.zone)
    client.call(server, "PATCH", path_to("pods", machine.pod), change, kind=client.MERGE)


def let_in(config: Config, machine: Machine, line: str) -> bool | None:
    """Add the public key of a line USER:KEY to those of a pod; None if the pod is gone."""
    read, write = os.pipe()
    os.write(write, f"{line.partition(':')[2]}\n".encode())
    os.close(write)
    try:
        server = connect(config, machine.zone)
        code = client.run(server, machine.pod, ["sh", "-c", ADMIT], stdin=read)
    except client.Missing:
        return None
    finally:
        os.close(read)
    return None if code else False


def proxy(config: Config, machine: Machine) -> list[str]:
    """Return the command whose standard input and output reach an ssh server in the pod."""
    return [*shell(machine), "--", "sh", "-c", SSHD]


def login(config: Config, machine: Machine) -> Login | None:
    """Return None: only the bucket has a pod's host keys, and the cluster's API connects to it."""
    return None


def shell(machine: Machine) -> list[str]:
    """Return the command that runs others in the pod."""
    return computer.python("berg", "cluster", "exec", machine.zone, machine.pod)


def console(config: Config, machine: Machine) -> str:
    """Return what a pod wrote; "" with a notice if that cannot be read."""
    # a pod that has not started has no log, and a silent node sends none
    if machine.status in ("PROVISIONING", "STAGING") or machine.silence:
        return ""
    try:
        return client.log(connect(config, machine.zone), machine.pod)
    except BergError as error:
        api.notify(f"The log of the pod {machine.pod} cannot be read now: {error.message}")
        return ""


def delete(config: Config, job: str, machines: list[Machine], group: Group = NO_GROUP) -> None:
    """Delete a job's or a sweep's Jobs with their pods, and pods, and wait until they are gone."""
    where = {each.zone for each in machines}
    if group:
        where = {group.cluster}
    for place in where or client.running_clusters(client.seen_clusters(config)):
        named = {each.pod for each in machines if each.zone == place and each.pod}
        with contextlib.suppress(client.Gone):
            delete_in(config, place, job, named)


def take_back(config: Config, name: str, sha256: str) -> None:
    """Delete the Job that a submit made, with its pods, and wait until they are gone."""
    for place in client.running_clusters(client.seen_clusters(config)):
        with contextlib.suppress(client.Gone):
            made = [each for each in ours(config, place, "jobs") if is_of(each, [name], [name])]
            if any(pods.facts_of(each).get("job_sha256") == sha256 for each in made):
                delete_in(config, place, name, set())


def delete_in(config: Config, place: str, job: str, named: set[str]) -> None:
    """Delete a job's Jobs in a cluster and their pods, and pods by name; wait for their end."""
    server = connect(config, place)
    jobs = [each for each in ours(config, place, "jobs") if is_of(each, [job], [job])]
    for each in jobs:
        client.delete(server, path_to("jobs", called(each)))
    sweeps = [job] if jobs else []
    unready = unready_nodes(server)
    asked: set[str] = set()

    def living() -> dict[str, str]:  # pod -> node
        there = [pod for pod in ours(config, place, "pods") if is_alive(pod)]
        there = [pod for pod in there if called(pod) in named or is_of(pod, [job], sweeps)]
        return {called(pod): pod["spec"].get("nodeName", "") for pod in there}

    def are_gone() -> bool:
        left = living()
        for name in left.keys() - asked:
            # a silent node's kubelet cannot report that these have ended
            grace = 0 if left[name] in unready else 30
            client.delete(server, path_to("pods", name), gracePeriodSeconds=grace)
            asked.add(name)
        return not left

    if not api.wait_for(are_gone, 0.5, GONE):
        names = ", ".join(sorted(living()))
        raise BergError(
            f"the pods {names} are not gone after {GONE} seconds. See: kubectl describe pods"
        )


def resources(config: Config) -> list[Resource]:
    """Return unfinished Jobs, and ConfigMaps with a boot.py that no Job uses."""
    all_jobs = listed(
        config, client.running_clusters(client.seen_clusters(config)), "jobs", "berg=1"
    )
    scripts = listed(config, all_jobs, "configmaps", "berg=1")
    found = []
    for place, jobs in all_jobs.items():
        used = {pods.boot_map()["metadata"]["name"]}
        for each in [each for each in jobs if not ending(each)]:
            volumes = each["spec"]["template"]["spec"].get("volumes", [])
            used |= {volume.get("configMap", {}).get("name") for volume in volumes}
            about, labels = each["metadata"], each["metadata"]["labels"]
            if labels.get("berg-bucket") == pods.bucket_label(config):
                name = labels.get("berg-job") or labels.get("berg-sweep", about["name"])
                user, created_at = labels.get("berg-user", ""), about["creationTimestamp"]
                found.append(Resource("group", name, place, created_at, "", user, place="gke"))
        why = "it has a boot.py that no job of the cluster has"
        for each in scripts.get(place, []):
            if each["metadata"]["name"] not in used:
                born = each["metadata"]["creationTimestamp"]
                found.append(Resource("configmap", called(each), place, born, why, place="gke"))
    return found


def remove(config: Config, resource: Resource) -> None:
    """Delete a job's Jobs with their pods, or a ConfigMap."""
    if resource.kind == "configmap":
        client.delete(connect(config, resource.where), path_to("configmaps", resource.name))
    else:
        delete(config, resource.name, [], Group(cluster=resource.where))

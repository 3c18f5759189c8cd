"""Pods of a cluster of Google Kubernetes Engine as a place for jobs.

A job is an Indexed Job of Kubernetes' with a pod for each of its machines. boot.py comes as a
ConfigMap, everything else through the bucket, so that no image has to be built. One pod that is
taken away is made anew by Kubernetes, and of several the others wait for it; Google makes the nodes
of a slice of TPUs anew together. What waits for room waits in the cluster, without this computer.
The Job itself is made in manifest.py, and what is said of its pods is read in podstatus.py.

Not covered: several clusters for one job, Autopilot.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from berg import BergError, computer
from berg.config import Config
from berg.gke import client, container, manifest, podaccount, podstatus
from berg.gke import client as k8s
from berg.gke.podstatus import (
    ending,
    hindrance,
    how_ended,
    is_of,
    machine_of,
    may_be_silent,
    never_began,
    readiness,
    silence,
    to_come,
)
from berg.google import api
from berg.google.shapes import Shape, parse_tpu
from berg.job import NO_GROUP, TOO_LATE, Group, Login, Machine, Resource
from berg.plain import plural
from berg.plan import Choice, Offer
from berg.spec import JobSpec

GONE = 180  # seconds for pods to go
LISTING = 10  # seconds for a cluster to answer; Google upgrades the one API server that it has
# One connection's server, whose standard input and output are the connection.
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
request = manifest.request
servers: dict[str, k8s.Server] = {}  # by PROJECT/LOCATION/NAME, as this process found them


def warm_up() -> None:
    """Do nothing: its requests need no library of Google's."""


def choose(config: Config, spec: JobSpec, is_sweep: bool) -> Choice:
    """Return the pods that a spec means; raise BergError if the cluster cannot hold them."""
    cluster = container.find(config, spec.cluster or "")
    image = config.default_docker_image
    where, accounts = container.where(cluster), podaccount.accounts(config, cluster)
    manifest.check_volumes(cluster, spec)
    manifest.check("of the job", spec.pod_patch or {})
    if spec.queue:
        check_queue(config, where, spec.queue)
    if spec.tpu is None:
        shape = manifest.choose(cluster, spec)
        return Choice(shape, spec.num_machines, image, cluster=where, accounts=accounts)
    tpus = manifest.choose_tpus(cluster, spec, is_sweep)
    called = tpus.pool(spec.spot)
    (pool,) = [each for each in container.pools(cluster) if each["name"] == called]
    shape = replace(tpus.shape, node_disk=container.disk_of(pool))
    chosen = Choice(shape, tpus.hosts, image, cluster=where, accounts=accounts)
    return replace(chosen, is_slice=tpus.hosts > 1)


def check_queue(config: Config, place: str, name: str) -> None:
    """Raise BergError for a queue that the person's pods cannot be in."""
    server = connect(config, place)
    podstatus.check(config, server, podaccount.namespace(config, server), name)


def offer(config: Config, spec: JobSpec, choice: Choice, sweep: int) -> Offer:
    """Return what the cluster has; its nodes have their own disks and addresses."""
    shape = choice.shape
    return Offer(
        shape=shape,
        hosts=choice.hosts,
        image=choice.image,
        zones=[choice.cluster.partition("/")[0]],
        rows=rows(spec, choice),
        ender="Kubernetes ends the pod",
        group=Group(cluster=choice.cluster),
        heals="pods that were taken away" if spec.cmd is not None else "",
        priced=node_of(shape, spec),
        is_shared=spec.tpu is None,
        accounts=choice.accounts,
    )


def node_of(shape: Shape, spec: JobSpec) -> Shape | None:
    """Return the node that is paid for; None where it may be any."""
    if spec.tpu is not None:
        return shape
    return replace(shape, num_gpus=shape.node_gpus) if shape.node_gpus else None


def rows(spec: JobSpec, choice: Choice) -> list[tuple[str, str]]:
    """Return what a plan says of the pods."""
    shape = choice.shape
    several = f"{choice.hosts} pods, each " if choice.hosts > 1 else ""
    gpus = f"{shape.num_gpus} x {shape.gpu_type}" if shape.num_gpus else "no GPU"
    if spec.tpu is not None:
        gpus = plural(parse_tpu(spec.tpu, in_cluster=True).chips_each, "TPU chip")
    spot = ", spot" * spec.spot
    patched = f", patched: {manifest.in_words(spec.pod_patch)}" if spec.pod_patch else ""
    queue = f", in the queue {spec.queue}" if spec.queue else ""
    return [
        ("Pod", f"{several}{gpus}{spot}{patched}"),
        ("Image", choice.image),
        ("Cluster", f"{choice.cluster}{queue}"),
    ]


def longest_name(first: str, names: list[str]) -> str:
    """Return the longest name that a pod's host gets: its Job's, with a number."""
    return f"{first}-{len(names) - 1}"


def preview(config: Config, request: dict[str, Any], names: list[str], keep: bool) -> Any:
    """The Job, as `kubectl create -f` takes it; what it mounts is in the cluster already.

    Raise BergError for one that the cluster would refuse.
    """
    server = connect(config, request["cluster"])
    made = body(config, server, request, names)
    strictly = {"dryRun": "All", "fieldManager": "berg", "fieldValidation": "Strict"}
    try:
        k8s.call(config, server, "POST", k8s.below(k8s.SHARED, "jobs"), made, **strictly)
    except k8s.Refused as error:
        if error.code in (400, 422):  # else it is no matter of what the Job says
            raise
    namespace = podaccount.namespace(config, server)
    if not request["is_slice"]:
        return manifest.in_namespace(made, namespace)
    job = made["metadata"]["name"]
    service = manifest.in_namespace(manifest.slice_service(made, job), namespace)
    sliced = manifest.in_namespace(manifest.in_slice(made, job), namespace)
    return {"apiVersion": "v1", "kind": "List", "items": [service, sliced]}


def body(
    config: Config, server: k8s.Server, request: dict[str, Any], names: list[str]
) -> dict[str, Any]:
    """The Job; its pods know the cluster's dataset cache, if there is one now."""
    made = manifest.body(request, names)
    there = k8s.find(config, server, f"{k8s.CORE}/services/{manifest.CACHE}", timeout=LISTING)
    return manifest.with_cache(made) if there else made


def create(
    config: Config,
    request: dict[str, Any],
    names: list[str],
    keep: bool,
    say: Callable[[str], None],
    still_trying: Callable[[], None],
) -> str:
    """Make the Job; its pods come when the cluster has room."""
    server = connect(config, request["cluster"])
    home = podaccount.ensure(config, server)
    made = manifest.in_namespace(body(config, server, request, names), home.namespace)
    made["spec"]["template"]["spec"]["serviceAccountName"] = home.account
    stamp, key = os.urandom(8).hex(), request.get("cluster_key", "")
    # tells ours, sent twice, from another's
    made["metadata"]["annotations"] = {"berg-request": stamp}
    secret, service = f"berg-key-{stamp}", f"berg-slice-{stamp}"
    if key:
        manifest.with_key(made, secret)
    if request.get("is_slice"):
        manifest.in_slice(made, service)
    create_job(config, server, made)
    if key:
        add_to_job(config, server, made, "secrets", manifest.key_secret(made, secret, key))
    if request.get("is_slice"):
        add_to_job(config, server, made, "services", manifest.slice_service(made, service))
    count = "a pod" if len(names) == 1 else f"{len(names)} pods"
    say(f"Asked the cluster {server.place} for {count}")
    return ""


def add_to_job(
    config: Config, server: k8s.Server, made: dict[str, Any], kind: str, thing: dict[str, Any]
) -> None:
    """Create what a Job that was just made needs beside it, and what goes with it."""
    there = k8s.call(config, server, "GET", k8s.path_to("jobs", k8s.called(made)))
    path = k8s.below(there["metadata"]["namespace"], kind)
    k8s.create(config, server, path, manifest.owned(thing, there))


def create_job(config: Config, server: k8s.Server, made: dict[str, Any]) -> None:
    """Create a Job in place of one that is over; raise BergError if another one has its name."""
    name, stamp = made["metadata"]["name"], made["metadata"]["annotations"]["berg-request"]
    path = k8s.path_to("jobs", k8s.called(made))
    while not k8s.create(config, server, path.rpartition("/")[0], made):
        there = k8s.find(config, server, path)
        if there is None:
            continue
        about = there["metadata"]
        if about.get("annotations", {}).get("berg-request") == stamp:
            break
        is_ours = about.get("labels", {}).get("berg-bucket") == manifest.bucket_label(config)
        if is_ours and (ending(there) or there["spec"].get("suspend")):
            clear(config, server, path)  # of an earlier attempt
        else:
            raise BergError(
                f"the cluster {server.place} has a job {name!r} already. Choose another name: -n "
                "NAME"
            )


def clear(config: Config, server: k8s.Server, path: str) -> None:
    """Delete the Job at a path, which is over, and wait until it is gone."""
    name = path.rpartition("/")[2]
    k8s.delete(config, server, path)
    if not api.wait_for(lambda: not k8s.find(config, server, path), 0.3, GONE):
        raise BergError(
            f"the job {name} of an earlier attempt does not go. See: kubectl describe job {name}"
        )


# --- what there is


def connect(config: Config, place: str) -> k8s.Server:
    """The API of the cluster LOCATION/NAME; who asks often asks Google once."""
    key = f"{config.project}/{place}"
    if key not in servers:
        servers[key] = k8s.connect(config, place)
    return servers[key]


def running(config: Config) -> list[str]:
    """Berg's clusters that have an API, by LOCATION/NAME."""
    return [
        container.where(each)
        for each in container.clusters(config)
        if container.is_ours(each)
        and each.get("status") in ("RUNNING", "RECONCILING", "DEGRADED", "RUNNING_WITH_ERROR")
    ]


def places(config: Config) -> list[str]:
    """The same; none for who may not look, or has never let Google switch the API on."""
    return if_seen(lambda: running(config))


def accounts(config: Config) -> list[str]:
    """What the nodes of berg's clusters act as; none for who may not look."""
    ours = filter(container.is_ours, if_seen(lambda: container.clusters(config)))
    return list(itertools.chain.from_iterable(map(container.accounts, ours)))


def if_seen(look: Callable[[], list[Any]]) -> list[Any]:
    """Return what there is of clusters; nothing for who may not look, or with the API off."""
    try:
        return look()
    except (api.Denied, api.Forbidden, api.NotFound):
        return []


def ours(config: Config, place: str, plural: str) -> list[dict[str, Any]]:
    """What a cluster has of this bucket's jobs, of a kind such as pods."""
    server = connect(config, place)
    path = k8s.everywhere(server, plural)
    return k8s.items(config, server, path, labelSelector=selector(config))


def selector(config: Config) -> str:
    return f"berg=1,berg-bucket={manifest.bucket_label(config)}"


def listed(
    config: Config, where: Iterable[str], plural: str, chosen: str = ""
) -> dict[str, list[dict[str, Any]] | None]:
    """What the clusters have of this bucket's jobs, of a kind such as pods, by cluster; None for
    one that does not say it.
    """

    def look(place: str) -> list[dict[str, Any]] | None:
        labels = chosen or selector(config)
        try:
            server = connect(config, place)
            path = k8s.everywhere(server, plural)
            return k8s.items(config, server, path, labelSelector=labels, timeout=LISTING)
        except BergError as error:
            api.notify(f"{error.message}; its pods are not among what follows")
            return None

    where = list(where)
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(where, pool.map(look, where), strict=True))


def machines(
    config: Config, jobs: Collection[str] = (), sweeps: Collection[str] = (), *, zone: str = ""
) -> list[Machine]:
    """Return the pods of this bucket's jobs that live or are to come, as machines, by name.

    A cluster is their zone.
    """
    where = [zone] if zone else places(config)
    of_jobs = listed(config, where, "jobs")
    answering = [place for place, there in of_jobs.items() if there is not None]
    found = []
    for place, pods in listed(config, answering, "pods").items():
        owned = [each for each in of_jobs[place] or [] if is_one_of(each, jobs, sweeps)]
        mine = [pod for pod in pods or [] if is_one_of(pod, jobs, sweeps)]
        found += machines_in(config, place, owned, mine)
    return sorted(found, key=lambda machine: machine.name)


def machines_in(
    config: Config, place: str, jobs: list[dict[str, Any]], pods: list[dict[str, Any]]
) -> list[Machine]:
    """Return a cluster's living pods as machines, with what they wait for and whose node is silent;
    a Job whose pods do not come as one.
    """
    alive = [pod for pod in pods if is_alive(pod)]
    short = [each for each in jobs if is_short(each, alive)]
    events = events_for(config, place, alive, bool(short))
    found = {pod["metadata"]["uid"]: machine_of(pod, place, events) for pod in alive}
    name_silent_nodes(config, place, alive, found)
    queued = podstatus.reasons(config, connect(config, place), short)
    for each in short:
        own = [pod for pod in pods if is_owned(pod, each)]
        why = queued.get(each["metadata"]["uid"]) or hindrance(each, own, events)
        if why:
            note(each, place, own, why, found)
    return [*found.values(), *in_vain(jobs, place, pods)]


def in_vain(
    jobs: list[dict[str, Any]], place: str, pods: list[dict[str, Any]]
) -> Iterator[Machine]:
    """Yield what stands for the pods of Jobs that are given up because none of them could begin."""
    for each in filter(ending, jobs):
        own = [pod for pod in pods if is_owned(pod, each)]
        if never_began(own):
            waits = to_come(each, place, own, hindrance(each, own, []))
            yield replace(waits, is_crash_looping=True)


def note(
    job: dict[str, Any],
    place: str,
    pods: list[dict[str, Any]],
    why: str,
    found: dict[str, Machine],
) -> None:
    """Note on a Job's first pod why it has no more of them; without one that lives on a machine
    that stands for it.
    """
    living = [found[pod["metadata"]["uid"]] for pod in pods if is_alive(pod)]
    if not living:
        living = [to_come(job, place, pods, why)]
        found[job["metadata"]["uid"]] = living[0]
    living[0].note = living[0].note or why


def name_silent_nodes(
    config: Config, place: str, alive: list[dict[str, Any]], found: dict[str, Machine]
) -> None:
    """Note on pods that their node does not answer."""
    suspects = [pod for pod in alive if pod["spec"].get("nodeName") and may_be_silent(pod)]
    unready = unready_nodes(config, place) if suspects else {}
    for pod in suspects:
        node = pod["spec"]["nodeName"]
        found[pod["metadata"]["uid"]].silence = silence(node, unready.get(node, {}))


def unready_nodes(config: Config, place: str) -> dict[str, dict[str, Any]]:
    """Return what a cluster says of its nodes that are not ready, by name; none if it is silent."""
    with contextlib.suppress(BergError):
        return readiness(k8s.items(config, connect(config, place), k8s.NODES, timeout=LISTING))
    return {}


def is_one_of(thing: dict[str, Any], jobs: Collection[str], sweeps: Collection[str]) -> bool:
    """Return whether a pod or a Job is of those jobs and sweeps, or of any."""
    return is_of(thing, jobs, sweeps) or not (jobs or sweeps)


def is_alive(pod: dict[str, Any]) -> bool:
    """Return whether a pod lives or is to come."""
    return pod["status"].get("phase") in ("Pending", "Running")


def is_owned(pod: dict[str, Any], job: dict[str, Any]) -> bool:
    """Return whether a pod is one of a Job's."""
    owners = [each["uid"] for each in pod["metadata"].get("ownerReferences", [])]
    return job["metadata"]["uid"] in owners


def is_short(job: dict[str, Any], alive: list[dict[str, Any]]) -> bool:
    """Return whether a Job that goes on has fewer pods that live than it should."""
    spec, done = job["spec"], job["status"].get("succeeded", 0)
    wanted = min(spec.get("parallelism", 1), spec.get("completions", 1) - done)
    return not ending(job) and sum(is_owned(pod, job) for pod in alive) < wanted


def events_for(
    config: Config, place: str, pods: list[dict[str, Any]], is_short: bool
) -> list[dict[str, Any]]:
    """Return what tells why pods wait or do not come; nothing is asked for if none does."""
    if is_short or any(pod["status"]["phase"] == "Pending" for pod in pods):
        with contextlib.suppress(BergError):
            server = connect(config, place)
            path = k8s.everywhere(server, "events")
            return k8s.items(config, server, path, timeout=LISTING)
    return []


def waiting(config: Config, job: str | None = None) -> set[str]:
    """Names of the jobs and sweeps whose pods Kubernetes makes, and LOCATION/NAME of clusters that
    do not answer.
    """
    found: set[str] = set()
    for place, there in listed(config, running(config), "jobs").items():
        if there is None:
            found.add(place)
        for each in there or []:
            if not ending(each):
                labels = each["metadata"]["labels"]
                found.add(labels.get("berg-job") or labels.get("berg-sweep", ""))
    return found


def job_in(config: Config, place: str, name: str) -> dict[str, Any] | None:
    """Return the Job of that name in a cluster, whoever's it is; None if there is none."""
    server = connect(config, place)
    named = {"fieldSelector": f"metadata.name={name}", "timeout": LISTING}
    found = k8s.items(config, server, k8s.everywhere(server, "jobs"), **named)
    return next(iter(found), None)


def why_gone(config: Config, job: str, group: Group, zone: str) -> str:
    """Why the pods of a job are gone, as far as Kubernetes knows; "" if it knows nothing."""
    try:
        there = job_in(config, group.cluster, job)
    except BergError as error:  # the cluster is gone, too
        return error.message
    if there is None:
        return f"the cluster {group.cluster} has no job {job} any more"
    end = ending(there) or {}
    if end.get("reason") == "DeadlineExceeded":
        return f"{TOO_LATE} ({group.cluster})"
    pods = [
        pod
        for pod in (listed(config, [group.cluster], "pods")[group.cluster] or [])
        if is_of(pod, [job], [])
    ]
    ends = [text for pod in pods if (text := how_ended(pod))]
    return "; ".join(dict.fromkeys(ends)) or " ".join(end.get("message", "").split())


# --- what is done to them


def set_metadata(config: Config, machine: Machine, key: str, value: str) -> None:
    """Let a pod know something: an annotation, which its kubelet hands on within a minute."""
    # without a slash a name has 63 characters at most
    if not machine.pod:  # it has yet to be made
        return
    name = key.replace("berg-kill-", "berg-kill/", 1)
    change = {"metadata": {"annotations": {name: value}}}
    path = k8s.path_to("pods", machine.pod)
    k8s.call(config, connect(config, machine.zone), "PATCH", path, change, kind=k8s.MERGE)


def let_in(config: Config, machine: Machine, line: str) -> bool | None:
    """Add a public key to those that the pod knows, at once; None if the pod is gone."""
    read, write = os.pipe()
    os.write(write, f"{line.partition(':')[2]}\n".encode())
    os.close(write)
    try:
        server = connect(config, machine.zone)
        code = client.run(
            config, server, machine.pod, ["sh", "-c", ADMIT], streams=client.Streams(read)
        )
    except k8s.Refused as error:
        if error.code != 404:
            raise
        return None
    finally:
        os.close(read)
    return None if code else False


def proxy(config: Config, machine: Machine) -> list[str]:
    """The command whose standard input and output are a connection to an ssh server in the pod."""
    return [*shell(machine), "--", "sh", "-c", SSHD]


def login(config: Config, machine: Machine) -> Login | None:
    """Return None: only the bucket knows a pod's host keys, and the cluster's API leads to it."""
    return None


def shell(machine: Machine) -> list[str]:
    """The command that runs others in the pod."""
    return computer.python("berg", "cluster", "exec", machine.zone, machine.pod)


def console(config: Config, machine: Machine) -> str:
    """Return what a pod wrote; "" if that cannot be read, which is said and is no error."""
    # a pod that has not begun has no log, and a silent node hands none on
    if machine.status in ("PROVISIONING", "STAGING") or machine.silence:
        return ""
    try:
        return k8s.log(config, connect(config, machine.zone), machine.pod)
    except BergError as error:
        api.notify(f"The log of the pod {machine.pod} cannot be read now: {error.message}")
        return ""


def delete(config: Config, job: str, machines: list[Machine], group: Group = NO_GROUP) -> None:
    """Delete a job's or a sweep's Jobs with their pods, and pods, and wait until they are gone."""
    where = {each.zone for each in machines} or set(places(config))
    if group:
        where = {group.cluster}
    for place in where:
        pods = {each.pod for each in machines if each.zone == place and each.pod}
        with contextlib.suppress(container.Gone):
            delete_in(config, connect(config, place), place, job, pods)


def delete_in(config: Config, server: k8s.Server, place: str, job: str, pods: set[str]) -> None:
    """Delete a job's Jobs in a cluster and their pods, and pods by name; wait for their end."""
    jobs = [each for each in ours(config, place, "jobs") if is_of(each, [job], [job])]
    for each in jobs:
        k8s.delete(config, server, k8s.path_to("jobs", k8s.called(each)))
    sweeps = [job] if jobs else []
    end = time.monotonic() + GONE
    asked: set[str] = set()
    unready = unready_nodes(config, place)
    while left := living(config, place, job, sweeps, pods):
        for name in left.keys() - asked:
            # nobody but their kubelets could say that these have ended
            grace = 0 if left[name] in unready else 30
            k8s.delete(config, server, k8s.path_to("pods", name), gracePeriodSeconds=grace)
        asked |= left.keys()
        if time.monotonic() > end:
            raise BergError(
                f"the pods {', '.join(sorted(left))} do not go. See: kubectl describe pods"
            )
        time.sleep(0.5)


def living(
    config: Config, place: str, job: str, sweeps: list[str], pods: set[str]
) -> dict[str, str]:
    """Return the pods that live of a job, of sweeps, and among those named, with their nodes."""
    found = {}
    for pod in ours(config, place, "pods"):
        name = k8s.called(pod)
        is_meant = name in pods or is_of(pod, [job], sweeps)
        if is_meant and pod["status"].get("phase") in ("Pending", "Running"):
            found[name] = pod["spec"].get("nodeName", "")
    return found


def resources(config: Config) -> list[Resource]:
    """Return Kubernetes' Jobs that are not over, and ConfigMaps with a boot.py that no Job has."""
    everybodys = listed(config, places(config), "jobs", "berg=1")
    answering = [place for place, jobs in everybodys.items() if jobs is not None]
    scripts = listed(config, answering, "configmaps", "berg=1")
    found = []
    for place in answering:
        live = [each for each in everybodys[place] or [] if not ending(each)]
        found += own_jobs(config, place, live)
        found += unused_scripts(place, scripts[place] or [], live)
    return found


def own_jobs(config: Config, place: str, live: list[dict[str, Any]]) -> list[Resource]:
    """Return those of a cluster's Jobs that are this bucket's."""
    found = []
    for each in live:
        about, labels = each["metadata"], each["metadata"]["labels"]
        if labels.get("berg-bucket") != manifest.bucket_label(config):
            continue
        name = labels.get("berg-job") or labels.get("berg-sweep", about["name"])
        user, created_at = labels.get("berg-user", ""), about["creationTimestamp"]
        found.append(Resource("group", name, place, created_at, "", user, place="gke"))
    return found


def unused_scripts(
    place: str, scripts: list[dict[str, Any]], live: list[dict[str, Any]]
) -> list[Resource]:
    """Return the ConfigMaps with a boot.py of another version of berg, if no Job has them."""
    used = {manifest.boot_map()["metadata"]["name"]}
    for each in live:
        volumes = each["spec"]["template"]["spec"].get("volumes", [])
        used |= {volume.get("configMap", {}).get("name") for volume in volumes}
    why = "it has a boot.py that no job of the cluster has"
    unused = [each for each in scripts if each["metadata"]["name"] not in used]
    born = [each["metadata"]["creationTimestamp"] for each in unused]
    return [
        Resource("configmap", k8s.called(each), place, begun, why, place="gke")
        for each, begun in zip(unused, born, strict=True)
    ]


def remove(config: Config, resource: Resource) -> None:
    """Delete a job's Jobs with their pods, or a ConfigMap."""
    if resource.kind == "configmap":
        path = k8s.path_to("configmaps", resource.name)
        k8s.delete(config, connect(config, resource.where), path)
    else:
        delete(config, resource.name, [], Group(cluster=resource.where))

"""From a command to a machine that runs it: plan, check, send, create.

`prepare` refuses everything that can be refused before anything exists; `submit` leaves either a
job with its machine, or nothing.
"""

import contextlib
import hashlib
import math
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from berg import BergError, __version__, checks, job, places
from berg.code import dist, packages, snapshot
from berg.config import Config
from berg.google import accelerators, api, container, data, networks, offers, secret, tpus
from berg.google.storage import Bucket, Changed
from berg.laptop import ssh
from berg.places import manifest
from berg.plan import JobSpec, Plan, check_variable


def prepare(
    config: Config,
    spec: JobSpec,
    folder: Path,
    sweep: int = 0,
    code: snapshot.Snapshot | None = None,
    again: bool = False,
) -> Plan:
    """Check every wish and take the snapshot, unless there is one; raises BergError and leaves
    nothing behind.

    `sweep` is the number of a sweep's machines, 0 for a job on its own; `again` says that the
    name's job goes on.
    """
    spec.check()
    cmd = spec.cmd
    tpu = tpus.choose(spec.tpu, spec.spot) if spec.tpu is not None else None
    num_machines, is_slice = (tpu.hosts, tpu.hosts > 1) if tpu else (spec.num_machines, False)
    if is_slice and (sweep or spec.restart_on_failure):
        what = (
            "each job of a sweep runs on one machine"
            if sweep
            else "--restart-on-failure is for one machine"
        )
        raise BergError(f"--tpu {spec.tpu} is a slice of {num_machines} machines: {what}")
    image_name, image_project = config.default_image, config.default_image_project
    cluster = container.find(config, spec.cluster) if spec.cluster else None
    if cluster:
        shape = manifest.choose(cluster, spec)
    elif tpu:
        shape = tpu.shape
        if not spec.image:
            image_name, image_project = tpu.image, tpus.IMAGE_PROJECT
    else:
        shape = accelerators.choose(spec.num_gpus, spec.gpu_type, spec.num_cpus, spec.machine_type)
        accelerators.check(shape, image_name, spec.spot)
    if spec.min_utilization and not (shape.num_gpus or tpu):
        raise BergError("--min-utilization is for jobs with GPUs or TPUs: this one has none (-g 0)")
    variables = spec.variables()
    secret_values = dict(secret.read(text) for text in spec.secrets)
    for key in secret_values:
        check_variable("--secret", key)
        if key in variables:
            raise BergError(
                f"{key} is both a secret and a variable: give --secret {key} or --env {key}=…"
            )
    if spec.notify is not None:
        secret_values[secret.WEBHOOK] = secret.webhook(spec.notify)
    root = code.root if code else snapshot.find_root(folder)
    spec = replace(spec, cwd=spec.cwd or "") if code else in_folder(spec, folder, root)
    script = spec.install_script
    if script and not code and not (root / script).is_file():
        raise BergError(
            f"--install-script {script} is not a file in {root}: give its path from there"
        )
    name = job.check_name(spec.name or job.new_name(root.name))
    # Of a pod's name Kubernetes makes the host's, with its number.
    job.check_name(
        f"{name}-{num_machines - 1}" if cluster else job.machine_names(name, num_machines)[-1]
    )
    guessed = spec.results_dir or checks.sketchy_guess_at_results_dir_from_cmd(cmd or "")
    guessed = guessed or "/".join(filter(None, (spec.results_parent, name)))
    results = checks.check_results_dir(guessed.removeprefix("/root/berg_results/"))
    _ = config.session  # found or refused before the threads need it
    with ThreadPoolExecutor() as pool:
        needed = pool.submit(packages.build)
        if not cluster:
            image = pool.submit(offers.find_image, config, image_name, image_project)
            zones = pool.submit(offers.zones_with, config, shape, config.zones, spec.any_zone)
        bucket = Bucket(config)
        wanted = [pool.submit(data.measure, bucket, text) for text in spec.data]
        where = pool.submit(check_bucket, config)
        free = None if again else pool.submit(check_free, config, name)
        taken = code or snapshot.take(root)
        bucket_region, _ = where.result(), free and free.result()
        planned_zones = [cluster["location"]] if cluster else zones.result()
        image_path = config.default_docker_image if cluster else image.result()
        shortages, ways = [], []
        if not cluster:  # whose nodes have their own disks and addresses, and count by themselves
            check_room(config, [each.result() for each in wanted], image_path, spec.disk_gb)
            quotas = pool.submit(offers.quotas, config, planned_zones[0].rpartition("-")[0])
            regions = (
                dict.fromkeys(zone.rpartition("-")[0] for zone in planned_zones)
                if config.no_external_ip
                else ()
            )
            ways = [
                check_ways(config, pool.submit(networks.ways, config, region).result())
                for region in regions
            ]
            kind = (
                spec.disk_gb,
                spec.spot,
                not config.no_external_ip,
                spec.max_hours <= 7 * 24,
            )
            needs = accelerators.quota_needs(shape, sweep or num_machines, *kind)
            shortages = offers.shortages(quotas.result(), needs)
    # A group makes a machine that Google took away anew; people on a devbox would find another one.
    alone = cmd is not None and num_machines == 1 and not sweep and not tpu and not cluster
    grouped = alone and (spec.spot or spec.wait_for_capacity)
    region = planned_zones[0].rpartition("-")[0]
    if grouped:  # a group lies in one region
        planned_zones = [zone for zone in planned_zones if zone.startswith(f"{region}-")]
    this = job.Job(
        job_name=name,
        cmd=cmd or "",
        cwd=spec.cwd or "",
        results_dir=results,
        gcs_results_dir=f"gs://{config.bucket}/berg_results/{results}",
        repo_name=repo_name(root.name),
        **code_fields(taken),
        install_script=script or "",
        env=variables,
        secrets=sorted(secret_values.keys() - {secret.WEBHOOK}),
        notify=bool(spec.notify),
        data=[each.result() for each in wanted],
        kind="devbox" if cmd is None else "job",
        place="gke" if cluster else "tpu" if is_slice else "gce",
        num_machines=num_machines,
        run_on="each" if spec.each or is_slice else "first",
        keep_going=spec.keep_going,
        idle_seconds=math.ceil(spec.idle_hours * 3600),
        gpus_per_machine=shape.num_gpus,
        gpu_type=shape.gpu_type,
        tpu=spec.tpu.lower() if spec.tpu else "",
        machine_type=shape.machine_type,
        image=image_path,
        kill_instance_after_job=not spec.no_kill,
        max_run_seconds=round(spec.max_hours * 3600),
        sweep=name if sweep else "",
        group=container.where(cluster) if cluster else region if grouped else "",
        wait_seconds=round(spec.wait_hours * 3600),
        max_restarts=spec.max_restarts,
        sample_seconds=spec.sample_seconds,
        profile=spec.profile,
        monitoring=config.monitoring,
        min_utilization=spec.min_utilization,
        waste_seconds=round(spec.for_minutes * 60) if spec.min_utilization else 0,
        restart_on_failure=spec.restart_on_failure,
        spec=spec.to_dict(),
        created_at=job.now(),
        created_by=config.user,
        berg_version=__version__,
    )
    checks.check_size(this)
    ssh_key = ssh.public_key(create=False)
    line = ssh.metadata_line(config, ssh_key) if ssh_key else ""
    about = (
        spec.disk_gb,
        spec.spot,
        dist.build_wheel(),
        needed.result(),
        line,
        secret_values,
        shortages,
        ways,
    )
    return Plan(config, this, shape, planned_zones, bucket_region, taken, *about)


def check_ways(config: Config, ways: networks.Ways) -> networks.Ways:
    """Raise BergError for a region in which a machine without an external address would never hear
    of its job.
    """
    if ways.to_google is False:
        raise BergError(
            f"a machine without an external address reaches nothing of Google's from the subnetwork {ways.subnetwork} "
            f"in {ways.region}. Let it: {ways.mend(config.project, to_internet=False)}"
        )
    return ways


def code_fields(taken: snapshot.Snapshot) -> dict[str, Any]:
    """What a job says of its code."""
    commits = {"git_commit": taken.head, "git_snapshot": taken.commit}
    return {**commits, "git_dirty": taken.dirty, "git_changed_files": taken.all_changed()}


def in_folder(spec: JobSpec, folder: Path, root: Path) -> JobSpec:
    """The spec with the folder of the repo to run in: that of --cwd, else the one around."""
    root = root.resolve()
    wanted = (root if spec.cwd is not None else folder) / (spec.cwd or "")
    if not wanted.is_dir() or not wanted.resolve().is_relative_to(root):
        raise BergError(f"--cwd {spec.cwd} is no folder of {root}: give its path from there")
    path = wanted.resolve().relative_to(root)
    return replace(spec, cwd="" if spec.cmd is None or path == Path() else str(path))


def repo_name(folder_name: str) -> str:
    """The repo's name as a folder on the machine and in the bucket."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder_name).lstrip(".-") or "repo"


def check_bucket(config: Config) -> str:
    """Where the bucket lies; raises BergError unless it can be used and belongs to the project that
    pays.
    """
    from google.api_core import exceptions

    bucket, init = Bucket(config), f"berg init{' --local' if config.endpoint else ''}"
    found = bucket.client.get_bucket(config.bucket, timeout=(10, 60), retry=bucket.retry)
    try:
        project = api.call(config, "GET", "", fields="defaultServiceAccount")
    except (exceptions.NotFound, exceptions.Forbidden) as error:
        why = api.words(error)
        raise BergError(
            f"project {config.project!r} cannot be used: {why}. Choose one: {init}"
        ) from None
    number = project.get("defaultServiceAccount", "").partition("-")[0]
    if number.isdigit() and int(number) != found.project_number:
        raise BergError(
            f"bucket {config.bucket!r} belongs to another project (number {found.project_number}) than "
            f"{config.project!r} (number {number}). Choose a bucket of the project: {init}"
        )
    return found.location.lower()


def check_room(config: Config, wanted: list[dict[str, Any]], image: str, disk_gb: int) -> None:
    """Raise BergError unless the disk has room for the data beside the image."""
    paths = [each["path"] for each in wanted]
    if doubled := next((path for path in paths if paths.count(path) > 1), None):
        raise BergError(
            f"--data: two data sets would go to {doubled}. Give one of them another place: NAME:PATH"
        )
    gigabytes = round(sum(each["bytes"] for each in wanted) / 2**30)
    if gigabytes and disk_gb < (needed := gigabytes + offers.image_gb(config, image)):
        raise BergError(
            f"a disk of {disk_gb} GB cannot hold the image and {gigabytes} GB of data: --disk-gb {needed + 10}"
        )


def check_free(config: Config, name: str) -> None:
    if any(map(Bucket(config).exists, (job.state_path(name), job.sweep_path(name)))):
        raise BergError(
            f"there is a job {name!r} already. Choose another name: -n NAME (or leave -n out)"
        )


def submit(plan: Plan, say: Callable[[str], None], tell: Callable[[int, int], None]) -> str:
    """Send the code, write the job, create its machine; returns the machine's zone.

    `say` hears sentences, `tell` how many bytes of how many were sent of a part of the code.
    If that fails or is interrupted, what was created is deleted again.
    """
    this, bucket = plan.job, Bucket(plan.config)
    place = places.of(this.place)
    importing = import_ahead(place)
    send_code(plan, bucket, tell)
    state = job.State(job=this.summary()).to_json()
    try:  # claims the name
        generation = bucket.write(
            job.state_path(this.job_name), state, generation=0, metadata={"state": state}
        )
    except Changed:
        raise BergError(
            f"there is a job {this.job_name!r} already. Choose another name: -n NAME"
        ) from None
    try:
        bucket.write(job.metadata_path(this.job_name), this.to_json())
        if plan.secrets:
            secret.store(plan.config, this.job_name, plan.secrets, this.max_run_seconds)
        importing.join()
        tell_alive = alive(plan.config, this, state, generation, say)
        return place.create(
            plan.config, place.request(plan), plan.machines, bool(this.group), tell_alive
        )
    except BaseException:
        say("Taking back what was created")
        try:
            take_back(plan.config, this)
        except BaseException:
            say(
                f"That did not work. {this.job_name} may have a machine; delete it:  berg kill --now {this.job_name}"
            )
        raise


def alive(
    config: Config, this: job.Job, state: str, generation: int, say: Callable[[str], None]
) -> Callable[[str], None]:
    """`say`, which from its second sentence on also writes the state of a job without machines
    anew.

    One that is old is taken for LOST. Machines of a zone that was given up may have begun the job
    before they went; then it begins anew elsewhere, without what they said of their end. Where
    there is a machine nothing is written: its worker may be about to.
    """
    bucket, path, said = Bucket(config), job.state_path(this.job_name), 0

    def tell(text: str) -> None:
        nonlocal generation, said
        say(text)
        said += 1
        if said == 1 or places.of(this.place).machines(config, jobs=[this.job_name]):
            return
        forget_machines(bucket, this)
        for _ in range(2):
            try:
                generation = bucket.write(path, state, generation, metadata={"state": state})
                return
            except Changed:
                there = bucket.get(path)
            words = (there.metadata or {}).get("state", "") if there else ""
            if not there or not words or job.state_from_json(words).reason.startswith("killed by "):
                raise BergError(f"{this.job_name} was ended meanwhile")
            generation = there.generation

    return tell


def forget_machines(bucket: Bucket, this: job.Job) -> None:
    """Delete what the machines of a job wrote of themselves: they are gone, and nobody is to wait
    for them.
    """
    if this.num_machines > 1:
        bucket.delete(
            *[each.name for each in bucket.list(job.machines_prefix(this.job_name), "name")]
        )


def preview(plan: Plan) -> Any:
    """What the plan's place would be asked for."""
    place = places.of(plan.job.place)
    return without_script(
        place.preview(plan.config, place.request(plan), plan.machines, bool(plan.job.group))
    )


def without_script(value: Any) -> Any:
    """A request with the startup script, which is long and always the same, by its name."""
    if isinstance(value, list):
        return [without_script(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("key") == "startup-script":
        text = value["value"].encode()
        name = (
            f"<berg's boot.py, {len(text)} bytes, sha256 {hashlib.sha256(text).hexdigest()[:12]}…>"
        )
        return {**value, "value": name}
    return {key: without_script(each) for key, each in value.items()}


def import_ahead(place: places.Place) -> threading.Thread:
    """Import what a place needs to make machines, which may take most of a second, while the code
    is sent.
    """
    importing = threading.Thread(target=place.warm_up, daemon=True)
    importing.start()
    return importing


def send_code(plan: Plan, bucket: Bucket, tell: Callable[[int, int], None]) -> None:
    with ThreadPoolExecutor() as pool:
        archives = [
            pool.submit(send_archive, bucket, *each) for each in (plan.wheel, plan.packages)
        ]
        plan.job.snapshot = snapshot.send(plan.snapshot, bucket, tell)
        for each in archives:
            each.result()


def take_back(config: Config, this: job.Job) -> None:
    """Delete the machines of a job that could not be submitted, and only then what names it."""
    place = places.of(this.place)
    if this.group:
        place.delete(config, this.job_name, [], this.group)
    place.delete(config, this.job_name, place.machines(config, jobs=[this.job_name]), "")
    if this.secrets or this.notify:
        secret.delete(config, this.job_name)
    Bucket(config).delete(job.state_path(this.job_name), job.metadata_path(this.job_name))


def send_archive(bucket: Bucket, name: str, content: bytes) -> None:
    path = f".berg/dist/{name}"
    if name and not bucket.exists(path):
        with contextlib.suppress(Changed):
            bucket.write(path, content, generation=0)

"""From a command to a machine that runs it: plan, check, send, create.

`prepare` refuses everything that can be refused before anything exists; `submit` leaves either a
job with its machine, or nothing.

Which GPU type a job gets where several would do: the first of a list, or the cheapest, that has
room.

Not covered: sweeps, pods, TPUs, and waiting for several types at once.
"""

import base64
import contextlib
import functools
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from berg import BergError, __version__, gate, gce, job, places, states
from berg.code import commits as revision
from berg.code import dist, snapshot, uv
from berg.code.snapshot import Snapshot
from berg.config import Config
from berg.google import api, data, iam, media, offers, prices, registry, secret, shapes
from berg.google import data as mounts
from berg.google.storage import Bucket, Changed, Listed
from berg.job import Machine
from berg.laptop import index, installing, jobs, limits, power, spending, ssh
from berg.plan import Choice, Offer, Plan
from berg.spec import JobSpec, check_variable

LITTLE = 1 << 20  # bytes of code that are there soon after its job is


def prepare(
    config: Config,
    spec: JobSpec,
    folder: Path,
    sweep: int = 0,
    code: snapshot.Snapshot | None = None,
    again: bool = False,
    image_for: str | None = None,
) -> Plan:
    """Check a spec and take the snapshot, unless there is one; raise BergError for what is wrong.

    Nothing is left behind then. `sweep` is the number of a sweep's machines, 0 for a job on its
    own; `again` says that the name's job goes on. `image_for` says for which accelerators, gpu or
    tpu, a disk image is made.
    """
    spec.check()
    place_name = places.name_for(spec)
    place = places.of(place_name)
    choice = place.choose(config, spec, bool(sweep))
    check_accelerators(spec, choice)
    secret_values = read_secrets(spec)
    root = code.root if code else snapshot.find_root(folder)
    repo = None if code else root  # of code that runs again nothing is sent
    if code is None:
        spec, code = with_code(spec, folder, root)
    name = check_names(place, spec.name or job.new_name(root.name), choice.hosts)
    results_dir_of(spec, name)  # refused before anything is asked for
    _ = config.session  # found or refused before the threads need it
    with ThreadPoolExecutor() as pool:
        ahead = pool.submit(look_ahead, config, repo)
        offered = pool.submit(priced_offer, config, spec, choice, sweep)
        measured = pool.submit(sources, config, spec)
        within = pool.submit(limits.check_budget, config)
        region = pool.submit(check_bucket, config)
        free = pool.submit(check_free, config, name, again)
        left = pool.submit(machines_left, place, config, [] if sweep or again else [name])
        pinned = pool.submit(pin_image, config, spec, choice, place_name)
        taken = code or snapshot.take(root)
        code_bytes = snapshot.bytes_to_send(taken, config.bucket)
        installation = installing.decide(config, spec, choice, taken, folder, image_for)
        bucket_region, _, _ = region.result(), free.result(), within.result()
        (offer, rates), (data_sets, folders) = offered.result(), measured.result()
        wheel, needed, there = ahead.result()
        container = pinned.result()
    offer = with_image(offer, place_name, container)
    check_room(config, data_sets, offer.image, offer.disk_gb)
    gcsfuse = program_for(place_name, folders)
    this = replace(
        job_of(spec, config, name, taken, container.image),
        installation=installation,
        data=data_sets,
        mounts=folders,
        gcsfuse=gcsfuse[0],
        place=place_name,
        num_machines=choice.hosts,
        run_on="each" if spec.each or choice.is_slice else "first",
        gpus_per_machine=choice.shape.num_gpus,
        gpu_type=choice.shape.gpu_type,
        machine_type=choice.shape.machine_type,
        stops_when_idle=stops_when_idle(spec, place_name, choice),
        keeps_disk=keeps_disk(spec, place_name, choice),
        image=offer.image,
        sweep=name if sweep else "",
        group=offer.group,
        regions=offer.regions,
        rates=rates,
    )
    gate.check_size(this)
    cluster_key = add_cluster_key(secret_values, choice.hosts, has_own_account(config, place_name))
    this.sealed = secret.CLUSTER_KEY in secret_values
    made = Plan(
        config=config,
        job=this,
        offer=offer,
        bucket_region=bucket_region,
        snapshot=taken,
        spot=spec.spot,
        wheel=wheel,
        packages=needed,
        gcsfuse=gcsfuse,
        uv=uv_for(config, this),
        ssh_key=ssh_line(config),
        secrets=secret_values,
        cluster_key=cluster_key,
        there=there,
        code_bytes=code_bytes,
        container=container.lines,
        left=left.result(),
    )
    if sweep:
        return made  # whose limit depends on the number of its jobs
    return limits.limited(made)


def pin_image(config: Config, spec: JobSpec, choice: Choice, place_name: str) -> registry.Pinned:
    """Return the image of a job's containers by its digest, as far as its registry says it. One
    that a record names by its tag is not looked up: the record would name a host.
    """
    image = choice.image if place_name == "gke" else spec.container
    if not image or image == spec.recorded_image:
        return registry.Pinned(image, "its record names no digest" * ("@" not in image))
    return registry.pin(config, image)


def with_image(offer: Offer, place_name: str, pinned: registry.Pinned) -> Offer:
    """Return what a place has; the image of pods by digest."""
    if place_name != "gke":
        return offer
    rows = []
    for label, text in offer.rows:
        lines = pinned.lines if label == "Image" else [text]
        rows += [(label if number == 0 else "", line) for number, line in enumerate(lines)]
    return replace(offer, image=pinned.image, rows=rows)


def look_ahead(
    config: Config, repo: Path | None
) -> tuple[tuple[str, bytes], tuple[str, bytes], dict[str, Listed]]:
    """Return berg's wheel, the packages that it needs, and what the bucket has of both and of the
    code of a repo that was sent before, by the objects' names.

    A submit would ask for each of them, one after the other. Each is asked for on a connection of
    its own, which the submit then writes on: a new one would wait for two handshakes more.
    """
    bucket = Bucket(config)
    with ThreadPoolExecutor(3) as pool:
        code = pool.submit(base_there, bucket, repo)
        wheel, needed = pool.map(
            lambda build: archive_there(bucket, build()), (dist.build_wheel, dist.build)
        )
    found = [wheel[1], needed[1], code.result()]
    return wheel[0], needed[0], {each.name: each for each in found if each}


def base_there(bucket: Bucket, repo: Path | None) -> Listed | None:
    """Return what the bucket has of a repo's code that was sent before."""
    base = snapshot.base_pack(repo, bucket.name) if repo else ""
    return bucket.get(base) if base else None


def archive_there(
    bucket: Bucket, archive: tuple[str, bytes]
) -> tuple[tuple[str, bytes], Listed | None]:
    """Return an archive, and what the bucket has of it."""
    return archive, bucket.get(archive_path(archive[0])) if archive[0] else None


def machines_left(place: places.Place, config: Config, names: list[str]) -> list[Machine]:
    """Return the machines that earlier jobs of these names still have."""
    return place.machines(config, names) if names else []


def sources(config: Config, spec: JobSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what the job is to know of its data sets, and of its mounts."""
    with ThreadPoolExecutor() as pool:
        brought = pool.map(functools.partial(data.measure, config), spec.data)
        mounted = pool.map(functools.partial(mounts.measure_mount, config), spec.mount)
        data_sets, folders = list(brought), list(mounted)
    mounts.check_places(folders, data_sets)
    return data_sets, folders


def program_for(place_name: str, folders: list[dict[str, Any]]) -> tuple[str, bytes]:
    """Return the gcsfuse that machines bring for their mounts; pods have volumes instead."""
    if not folders or place_name == "gke":
        return "", b""
    return mounts.own_program()


def uv_for(config: Config, this: job.Job) -> tuple[str, bytes]:
    """Return uv's wheel if a job needs it, or its machines may not reach a package index, and the
    bucket does not have it; else ("", b"").

    Where this laptop cannot get it, machines ask their own package index.
    """
    if this.docker or not (this.installation.needs_uv or config.no_external_ip):
        return "", b""
    there = Bucket(config).get(uv.OF_MACHINES.path)
    if there and there.md5_hash == uv.OF_MACHINES.md5:
        return "", b""
    try:
        return uv.fetch()
    except BergError as error:
        api.notify(f"{error.message}. The machine will ask its own package index for it")
        return "", b""


def priced_offer(
    config: Config, spec: JobSpec, choice: Choice, sweep: int
) -> tuple[Offer, dict[str, float]]:
    """Return what the place has for a spec, and what an hour of it costs by region."""
    place = places.of(places.name_for(spec))
    found = place.offer(config, spec, choice, sweep)
    return found, spending.rates(config, found, spec.model)


def job_of(
    spec: JobSpec, config: Config, name: str, taken: snapshot.Snapshot, container: str = ""
) -> job.Job:
    """Return the job that a spec and the code say, without what its place adds; `container` is the
    image of its containers.
    """
    results_dir = results_dir_of(spec, name)
    return job.Job(
        job_name=name,
        cmd=spec.cmd or "",
        results_dir=results_dir,
        gcs_results_dir=f"gs://{config.bucket}/berg_results/{results_dir}",
        repo_name=repo_name(taken.root.name),
        **code_fields(taken),
        install_secrets=sorted(text.partition("=")[0] for text in spec.install_secrets),
        secrets=sorted(text.partition("=")[0] for text in spec.secrets),
        env=spec.variables(),
        notify=bool(spec.notify),
        kind="devbox" if spec.cmd is None else "job",
        tpu=(spec.tpu or "").lower(),
        docker=spec.container and (container or spec.container),
        max_run_seconds=round(spec.max_hours * 3600),
        monitoring=config.monitoring,
        spec=spec.recorded(),
        created_at=job.now(),
        created_by=config.user,
        berg_version=__version__,
    )


def stops_when_idle(spec: JobSpec, place: str, choice: Choice) -> bool:
    """Return whether an idle devbox stops, rather than deletes itself; raise BergError if it is
    asked to and cannot.

    Unasked it stops where it can, since people put work into its disk.
    """
    if spec.cmd is not None or spec.idle == "delete":
        return False
    why = why_not_kept(spec, place, choice)
    if spec.idle == "stop" and why:
        raise BergError(f"--idle stop is not possible: {why}")
    return not why


def keeps_disk(spec: JobSpec, place: str, choice: Choice) -> bool:
    """Return whether it is a devbox whose disk stays when its machine ends."""
    return spec.cmd is None and not why_not_kept(spec, place, choice)


def why_not_kept(spec: JobSpec, place: str, choice: Choice) -> str:
    """Return why the disk of a devbox cannot be kept when its machine ends; "" if it can."""
    kind = choice.shape.machine_type
    return power.why_never("devbox", place, choice.hosts, kind, spec.model)


def has_own_account(config: Config, place_name: str) -> bool:
    """Return whether the job's machines act as an account whose secrets no other person's jobs
    read. Pods take their secrets from Kubernetes.
    """
    return place_name != "gke" and iam.is_own(config)


def add_cluster_key(secret_values: dict[str, str], hosts: int, is_own: bool) -> str:
    """Make the key with which machines of a job sign what they tell each other.

    Add it to the secrets of a job that has some, or an account of its person's own: fewer may read
    those than the machines' metadata. Return "" then, else the key; "" for a job of one machine.
    """
    if hosts == 1:
        return ""
    key = secrets.token_hex(32)
    if not secret_values and not is_own:
        return key
    secret_values[secret.CLUSTER_KEY] = key
    return ""


def check_accelerators(spec: JobSpec, choice: Choice) -> None:
    """Raise BergError where a utilization is asked for and nothing can have one."""
    has_accelerators = choice.shape.num_gpus or spec.tpu is not None
    if spec.reservation and choice.is_slice:
        raise BergError("--reservation is for machines, not for slices of TPUs")
    if spec.min_utilization and not has_accelerators:
        raise BergError("--min-utilization is for jobs with GPUs or TPUs: this one has none (-g 0)")


def read_secrets(spec: JobSpec) -> dict[str, str]:
    """Return the values of a spec's secrets, and of its webhook; raise BergError without them."""
    variables = spec.variables()
    values: dict[str, str] = {}
    for option, texts in (("--secret", spec.secrets), ("--install-secret", spec.install_secrets)):
        for text in texts:
            key, value = secret.read(text, option)
            check_variable(option, key)
            if key in variables:
                raise BergError(
                    f"{key} is both a secret and a variable: give {option} {key} or --env {key}=…"
                )
            if values.setdefault(key, value) != value:
                raise BergError(f"{option} {key} has two values: give one of them")
    if spec.notify is not None:
        values[secret.WEBHOOK] = secret.webhook(spec.notify)
    return values


def check_names(place: places.Place, name: str, hosts: int) -> str:
    """Return a job's name; raise BergError if it or that of one of its machines cannot be one."""
    job.check_name(name)
    job.check_name(place.longest_name(name, job.machine_names(name, hosts)))
    return name


def results_dir_of(spec: JobSpec, name: str) -> str:
    """Return the folder of a job's results: as given, as its command names it, or after the job."""
    found = spec.results_dir or gate.sketchy_guess_at_results_dir_from_cmd(spec.cmd or "")
    if not found:
        found = f"{spec.results_parent}/{name}" if spec.results_parent else name
    return gate.check_results_dir(found.removeprefix("/root/berg_results/"))


def ssh_line(config: Config) -> str:
    """Return the line of metadata that lets in the person's key; "" if there is no key yet."""
    key = ssh.public_key(create=False)
    return ssh.metadata_line(config, key) if key else ""


def code_fields(taken: snapshot.Snapshot) -> dict[str, Any]:
    """What a job says of its code."""
    commits = {"git_commit": taken.head, "git_snapshot": taken.commit}
    return {**commits, "git_dirty": taken.dirty, "git_changed_files": taken.all_changed()}


def with_code(spec: JobSpec, folder: Path, root: Path) -> tuple[JobSpec, snapshot.Snapshot | None]:
    """Return the spec with the folder of the repo to run in, and the commit that it names, if any.

    Raise BergError if there is no such commit or folder, or the script to install is not in it.
    """
    if spec.branch or spec.commit:
        code = revision.revision(root, spec.branch, spec.commit)
        return in_commit(spec, folder, code), code
    return in_folder(spec, folder, root), None


def in_folder(spec: JobSpec, folder: Path, root: Path) -> JobSpec:
    """Return the spec with the folder of the repo to run in: that of --cwd, else the one around.

    Raise BergError if that is no folder of the repo, or the script to install is not in it.
    """
    script = spec.install_script
    root = root.resolve()
    wanted = (root if spec.cwd is not None else folder) / (spec.cwd or "")
    if not wanted.is_dir() or not wanted.resolve().is_relative_to(root):
        raise BergError(f"--cwd {spec.cwd} is no folder of {root}: give its path from there")
    if script and not (root / script).is_file():
        raise BergError(
            f"--install-script {script} is not a file in {root}: give its path from there"
        )
    path = wanted.resolve().relative_to(root)
    return replace(spec, cwd="" if spec.cmd is None or path == Path() else str(path))


def in_commit(spec: JobSpec, folder: Path, code: snapshot.Snapshot) -> JobSpec:
    """Return the spec with the folder of a commit to run in, as `in_folder` does it.

    Raise BergError if the commit has no such folder, or not the script to install.
    """
    root, script = code.root.resolve(), spec.install_script
    wanted = (root if spec.cwd is not None else folder.resolve()) / (spec.cwd or "")
    path = os.path.relpath(os.path.normpath(wanted), root)
    path = "" if path == "." or spec.cmd is None else path
    if path and revision.kind_of(code, path) != "tree":
        raise BergError(
            f"the commit {code.commit[:12]} has no folder {path} to run in: say another one, as "
            "in --cwd ."
        )
    if script and revision.kind_of(code, os.path.normpath(script)) != "blob":
        raise BergError(f"--install-script {script} is not a file of the commit {code.commit[:12]}")
    return replace(spec, cwd=path)


def repo_name(folder_name: str) -> str:
    """The repo's name as a folder on the machine and in the bucket."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder_name).lstrip(".-") or "repo"


def check_bucket(config: Config) -> str:
    """Where the bucket lies; raises BergError unless it can be used and belongs to the project that
    pays.
    """
    init = f"berg init{' --local' if config.endpoint else ''}"
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(api.call, config, "GET", "", fields="defaultServiceAccount")
        found = media.confirmed(config).result() or media.bucket_record(config)
    try:
        project = asked.result()
    except (api.NotFound, api.Forbidden) as error:
        why = api.words(error)
        raise BergError(
            f"project {config.project!r} cannot be used: {why}. Choose one: {init}"
        ) from None
    number = project.get("defaultServiceAccount", "").partition("-")[0]
    if number.isdigit() and number != found["projectNumber"]:
        raise BergError(
            f"bucket {config.bucket!r} belongs to another project (number {found['projectNumber']})"
            f" than {config.project!r} (number {number}). Choose a bucket of the project: {init}"
        )
    region: str = found["location"].lower()
    return region


def check_room(config: Config, wanted: list[dict[str, Any]], image: str, disk_gb: int) -> None:
    """Raise BergError unless a disk has room for the data beside the image; 0 GB is no disk."""
    if not disk_gb:
        return
    paths = [each["path"] for each in wanted]
    for path in paths:
        if paths.count(path) > 1:
            raise BergError(
                f"--data: two data sets would go to {path}. "
                "Give one of them another place: NAME:PATH"
            )
    gigabytes = round(sum(each["bytes"] for each in wanted) / 2**30)
    if gigabytes == 0:
        return
    needed = gigabytes + offers.image_gb(config, image)
    if disk_gb < needed:
        raise BergError(
            f"a disk of {disk_gb} GB cannot hold the image and {gigabytes} GB of data: "
            f"--disk-gb {needed + 10}, or read it from the bucket as it is needed: --mount"
        )


def check_free(config: Config, name: str, again: bool) -> None:
    """Raise BergError if a job or a sweep has the name, unless its job goes on."""
    if again:
        return
    paths = job.state_path(name), job.sweep_path(name)
    with ThreadPoolExecutor() as pool:
        if any(pool.map(Bucket(config).exists, paths)):
            raise taken(name)


class Taken(BergError):
    """Somebody else has the name."""


def taken(name: str, what: str = "job") -> Taken:
    """Return the error for a name that somebody else has."""
    return Taken(
        f"there is a {what} {name!r} already. Choose another name: -n NAME (or leave -n out)"
    )


def submit(plan: Plan, say: Callable[[str], None], on_progress: Callable[[int, int], None]) -> str:
    """Send the code, write the job, create its machine; return the machine's zone.

    `say` hears sentences, `on_progress` how many bytes of how many were sent of a part of the
    code. If that fails or is interrupted, what was created is deleted again.
    """
    this, bucket = plan.job, Bucket(plan.config)
    importing = import_ahead(places.of(this.place))
    if plan.left:
        wait_until_gone(plan.config, this, say)
    if bytes_to_send(plan) > LITTLE:  # else its job would be seen without a machine, as if lost
        send_code(plan, bucket, say, on_progress)
    claim = states.Stored(this.job_name, job.State(job=this.summary(), claim=states.new_claim()), 0)
    try:
        claimed = claim_and_send(plan, bucket, claim, say, on_progress)
        with ThreadPoolExecutor(1) as pool:
            noted = pool.submit(index.note, bucket, this.job_name, this.summary())
            states.write_job(bucket, this)
            if plan.secrets:
                seconds, accounts = this.max_run_seconds, plan.accounts
                secret.store(plan.config, this.job_name, plan.secrets, seconds, accounts)
            importing.join()
            zone = create(plan, claimed, say)
            noted.result()
        return zone
    except Taken:
        raise
    except BaseException:
        say("Taking back what was created")
        try:
            take_back(plan.config, this, claim)
        except BaseException:
            say(
                f"That did not work. {this.job_name} may have a machine; delete it:  "
                f"berg kill --now {this.job_name}"
            )
        raise


def bytes_to_send(plan: Plan) -> int:
    """Return about how many bytes `send_code` would upload."""
    missing = [data for name, data in plan.archives if archive_path(name) not in plan.there]
    return plan.code_bytes + sum(map(len, missing))


def claim_and_send(
    plan: Plan,
    bucket: Bucket,
    claim: states.Stored,
    say: Callable[[str], None],
    on_progress: Callable[[int, int], None],
) -> states.Stored:
    """Claim the name of a job, and send its code beside it unless it was sent; return the claim as
    it lies in the bucket. Raise Taken if somebody else has the name.

    What became of the claim is known when this is over, whatever else fails.
    """
    with ThreadPoolExecutor(1) as pool:
        token = claim.state.claim
        claiming = pool.submit(states.claim, bucket, claim.name, claim.state, token=token)
        if not plan.job.snapshot:
            send_code(plan, bucket, say, on_progress)
    try:
        return claiming.result()
    except Changed:
        raise taken(claim.name) from None


def create(plan: Plan, claimed: states.Stored, say: Callable[[str], None]) -> str:
    """Create the machines of a job whose name is claimed; return their zone."""
    place = places.of(plan.job.place)
    alive = Alive(plan.config, plan.job, claimed)
    keep = bool(plan.job.group)
    request = place.request(plan)
    zone = place.create(plan.config, request, plan.machines, keep, say, alive.write)
    is_queued = plan.model == prices.FLEX and alive.is_queued(zone)
    if plan.must_have_room and (is_queued or not zone):
        raise api.NoRoom(f"there is no room for {plan.offer.shape} now, but in a queue")
    if is_queued:
        alive.note_queue(zone, zone or ", ".join(plan.offer.zones), say)
    return zone


def wait_until_gone(config: Config, this: job.Job, say: Callable[[str], None]) -> list[str]:
    """Wait until the machines that an earlier job of this name had are gone.

    A machine goes some time after the state that ends its job; one that its cluster holds back is
    none yet, and is replaced. Returns the names of those that stay.
    """
    place = places.of(this.place)

    def there() -> list[str]:
        found = place.machines(config, jobs=[this.job_name])
        return [each.name for each in found if not each.is_queued]

    return jobs.wait_while(there, f"of an earlier job {this.job_name}", say)


@dataclass
class Alive:
    """The state of a job that has no machines yet: written anew while they are looked for.

    A state that is old is taken for LOST. Machines of a zone that was given up may have begun the
    job before they went; then it begins anew elsewhere, without what they said of their end.
    """

    config: Config
    this: job.Job
    stored: states.Stored

    def write(self) -> None:
        """Write the state anew, unless there is a machine: its worker may be about to."""
        bucket, name = Bucket(self.config), self.this.job_name
        if places.of(self.this.place).machines(self.config, jobs=[name]):
            return
        forget_machines(bucket, self.this)
        try:
            self.stored = states.replaced(bucket, self.stored, self.stored.state)
        except Changed:
            self.write_over(bucket, states.read(bucket, name))

    def is_queued(self, zone: str) -> bool:
        """Return whether its machine is in Google's queue, or the group that is to make a slice."""
        place, name = places.of(self.this.place), self.this.job_name
        machines = place.machines(self.config, jobs=[name], zone=zone)
        if not machines:
            return name in place.waiting(self.config, name)
        return any(machine.status == "PENDING" for machine in machines)

    def note_queue(self, zone: str, where: str, say: Callable[[str], None]) -> None:
        """Write into the state that its machines are in Google's queue, in words for where."""
        until = self.end_of_queue()
        reason = f"in Google's queue for {where} since {job.now()}, until {until}"
        waiting = replace(self.stored.state, zone=zone, reason=reason)
        say(f"{self.this.job_name} is {reason}. It goes on without this computer")
        with contextlib.suppress(Changed):  # its worker began
            self.stored = states.replaced(Bucket(self.config), self.stored, waiting)

    def end_of_queue(self) -> str:
        """Return when the wait in Google's queue ends: a group asks again and again."""
        seconds = gce.FLEX_SECONDS
        if self.this.place == "tpu" or self.this.group:
            seconds = round(self.this.spec.queue_timeout)
        if not seconds:
            return "there is room, or: berg kill " + self.this.job_name
        return job.timestamp(datetime.now(timezone.utc) + timedelta(seconds=seconds))

    def write_over(self, bucket: Bucket, there: states.Stored | None) -> None:
        """Write the state over what a machine wrote; raise BergError if the job was ended."""
        ended = BergError(f"{self.this.job_name} was ended meanwhile")
        if there is None or there.is_damaged or there.state.claim != self.stored.state.claim:
            raise ended
        if there.state.reason.startswith("killed by "):
            raise ended
        try:
            self.stored = states.replaced(bucket, there, self.stored.state)
        except Changed:
            raise ended from None


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
    """Import what a place needs to make machines beside what else there is to do: it may take most
    of a second. To ask for it again costs nothing.
    """
    importing = threading.Thread(target=place.warm_up, daemon=True)
    importing.start()
    return importing


def send_code(
    plan: Plan,
    bucket: Bucket,
    say: Callable[[str], None],
    on_progress: Callable[[int, int], None],
) -> None:
    """Send berg, the packages that it needs, and the code of the job, as far as they are not there.

    `say` hears what somebody had replaced.
    """
    with ThreadPoolExecutor() as pool:
        archives = [pool.submit(send_archive, bucket, *each, plan.there) for each in plan.archives]
        plan.job.snapshot = snapshot.send(plan.snapshot, bucket, on_progress, plan.there)
        for each in archives:
            if found := each.result():
                say(found)


def take_back(config: Config, this: job.Job, claimed: states.Stored) -> None:
    """Delete the machines of a job that could not be submitted, and only then what names it.

    Nothing is deleted once the name is another submit's.
    """
    bucket = Bucket(config)
    there = states.read(bucket, this.job_name)
    if there and not there.is_damaged and there.state.claim != claimed.state.claim:
        return
    place = places.of(this.place)
    if this.group:
        place.delete(config, this.job_name, [], this.group)
    place.delete(config, this.job_name, place.machines(config, jobs=[this.job_name]))
    if this.has_secret:
        secret.delete(config, this.job_name)
    states.withdraw(bucket, claimed)


def archive_path(name: str) -> str:
    """Return the object of an archive."""
    return f".berg/dist/{name}"


def send_archive(bucket: Bucket, name: str, content: bytes, known: dict[str, Listed]) -> str:
    """Send an archive unless the bucket has it; return a warning if something else had its name.

    `known` is what the bucket said of some objects before.
    """
    if not name:
        return ""
    path = archive_path(name)
    there = known.get(path) or bucket.get(path)
    if there is None:
        with contextlib.suppress(Changed):
            bucket.write(path, content, generation=0)
        return ""
    # Who made the archive has the hash that nobody can make another file for.
    if there.md5_hash == md5(content):
        return ""
    with contextlib.suppress(Changed):
        bucket.write(path, content, generation=there.generation)
    return (
        f"gs://{bucket.name}/{path} was not what berg sent: somebody replaced it. It is berg's "
        "again; no machine ran the other one"
    )


def md5(content: bytes) -> str:
    """Return the hash that Google keeps of an object that was written at once."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


Made = TypeVar("Made")

CHEAPEST = "cheapest"


def candidates(config: Config, spec: JobSpec) -> list[JobSpec]:
    """Return what was asked for with each of its GPU types alone, in the order to try them."""
    if spec.gpu_type == CHEAPEST:
        check_is_a_choice(spec)
        return one_each(spec, by_price(config, spec))
    if spec.gpu_memory:
        raise BergError("--gpu-memory says what -t cheapest may choose from: give -t cheapest")
    if "," not in (spec.gpu_type or ""):
        return [spec]
    check_is_a_choice(spec)
    return one_each(spec, named(spec.gpu_type or ""))


def named(types: str) -> list[str]:
    """Return the GPU types of a list with commas; raise BergError for one that is none."""
    found = types.split(",")
    if "" in found:
        raise BergError(f"-t {types} names no GPU type between two commas")
    return [shapes.name_of(each, None) for each in found]


def one_each(spec: JobSpec, types: list[str]) -> list[JobSpec]:
    return [replace(spec, gpu_type=each, gpu_memory=0) for each in types]


def check_is_a_choice(spec: JobSpec) -> None:
    """Raise BergError where the GPU type is not all that would differ."""
    if spec.cluster or spec.tpu is not None or spec.machine_type:
        raise BergError("-t with several types is for machines whose GPUs -g and -t say alone")


def by_price(config: Config, spec: JobSpec) -> list[str]:
    """Return the GPU types of the region that have the memory, the cheapest first.

    Raise BergError where none has, or has a price.
    """
    listed, why = prices.look_up(config, config.region)
    if listed is None:
        raise BergError(f"which GPU is the cheapest is unknown: {why}")
    zones = offers.gpu_zones(config)
    priced = {}
    for name in shapes.TYPES:
        is_here = any(zone.startswith(f"{config.region}-") for zone in zones[name])
        rate = rate_of(config, listed, spec, name)
        if is_here and rate is not None and shapes.GPU_MEMORY[name] >= spec.gpu_memory:
            priced[name] = rate
    if not priced:
        raise BergError(
            f"no GPU of at least {spec.gpu_memory} GB that {config.region} has can be had "
            f"{prices.MODELS[spec.model]} at a known price. See them: berg prices"
        )
    return sorted(priced, key=lambda name: priced[name])


def rate_of(config: Config, listed: prices.Prices, spec: JobSpec, name: str) -> float | None:
    """Return USD for an hour of the machine that a spec means with a GPU type; None without one."""
    try:
        shape = shapes.choose(spec.num_gpus, name, spec.num_cpus, None)
        shapes.check(shape, config.default_image, spec.spot or spec.flex)
        if spec.flex:
            shapes.check_flex(shape)
    except BergError:  # there is no such machine
        return None
    return listed.per_hour(shape, spec.model, spec.disk_gb)


def first(
    config: Config,
    spec: JobSpec,
    folder: Path,
    code: Snapshot | None,
    carry_out: Callable[[Plan], Made],
    say: Callable[[str], None],
) -> Made:
    """Carry out the plan with the first GPU type that there is room for; return what that makes.

    Raise what the last one raises where none has room.
    """
    *others, last = found = candidates(config, spec)
    if others:
        say(f"GPU types to try, in this order: {', '.join(str(each.gpu_type) for each in found)}\n")
    for each, following in pairwise(found):
        # One name for all: what could not be taken back keeps the next one from beginning.
        plan = prepare(config, replace(each, name=last.name, cwd=last.cwd), folder, code=code)
        code = plan.snapshot
        last = replace(last, name=plan.job.job_name, cwd=plan.job.spec.cwd)
        try:
            return carry_out(replace(plan, must_have_room=True))
        except api.NoRoom as error:
            say(f"{error.message}\nNo room for {each.gpu_type}: now {following.gpu_type}\n")
    return carry_out(prepare(config, last, folder, code=code))

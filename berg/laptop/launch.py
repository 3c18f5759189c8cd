"""From a command to a machine that runs it: plan, check, send, create.

`prepare` refuses everything that can be refused before anything exists; `submit` leaves either a
job with its machine, or nothing. `first` tries several GPU types in turn.
"""

import base64
import contextlib
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from berg import BergError, __version__, gce, job, places, states, validation
from berg.code import dist, leaks, snapshot
from berg.code.snapshot import Snapshot
from berg.config import Config
from berg.google import api, builds, data, groups, iam, offers, prices, secret, shapes, storage
from berg.google.storage import Bucket, Changed, Listed
from berg.laptop import index, installing, jobs, lookup, power, purse, reuse, spending, ssh
from berg.laptop.jobs import Progress, Say
from berg.plan import Choice, Offer, Plan, sha256
from berg.spec import JobSpec, check_variable

LITTLE = 1 << 20  # bytes; code of this size is sent soon enough after the job's state
CHEAPEST = "cheapest"
RECORD = "/berg_job_metadata.json"  # in the results of each job
Archive = tuple[str, bytes]  # name and content
Result = TypeVar("Result")


def prepare(
    config: Config,
    spec: JobSpec,
    folder: Path,
    sweep: int = 0,
    code: Snapshot | None = None,
    again: bool = False,
    for_image: bool = False,
) -> Plan:
    """Check a spec and take a snapshot unless `code` is one; raise BergError for what is wrong.

    Nothing is created. `sweep` is the number of a sweep's machines, 0 for a single job. `again`
    resumes the job of that name. `for_image` is for a disk image.
    """
    spec.check()
    place_name = places.name_for(spec)
    choice = choose(config, spec, bool(sweep))
    secret_values = read_secrets(spec)
    root = code.root if code else snapshot.find_root(folder)
    repo = None if code else root  # code that runs again is not sent again
    if code is None:
        spec, code = with_code(spec, folder, root)
    name = check_names(places.of(place_name), spec.name or job.new_name(root.name), choice.hosts)
    results_dir_of(spec, name)  # invalid ones are refused before any request

    def read_code() -> tuple[Snapshot, job.Installation]:
        taken = code or snapshot.take(root)
        return taken, installing.decide(config, spec, choice, taken, folder, for_image)

    plan = look_up(config, replace(spec, name=name), choice, sweep, again, repo, read_code)
    check_room(config, plan.job.data, plan.offer.image, plan.offer.disk_gb)
    plan.uv, plan.ssh_key = uv_for(config, plan.job), ssh_line(config)
    this = with_machines(plan, spec, choice, name if sweep else "")
    plan.cluster_key = add_cluster_key(config, place_name, choice.hosts, secret_values)
    this.sealed = secret.CLUSTER_KEY in secret_values
    plan.job, plan.secrets = validation.check_size(this), secret_values
    # A sweep's limit depends on its number of jobs.
    if choice.offer:
        return reuse.limited_by_box(plan)
    return plan if sweep else reuse.with_warm(purse.limited(spending.limited(plan)))


def look_up(
    config: Config,
    spec: JobSpec,
    choice: Choice,
    sweep: int,
    again: bool,
    repo: Path | None,
    read_code: Callable[[], tuple[Snapshot, job.Installation]],
) -> Plan:
    """Return a plan, asking Google and the bucket in parallel while `read_code` reads the code."""
    name, place_name = spec.name or "", places.name_for(spec)
    _ = config.credentials  # found or refused before the threads need it
    text = "Reading the code, and asking Google for prices and room"
    with api.waiting(text), ThreadPoolExecutor(16) as pool:  # as many as wait for Google
        archives = pool.submit(look_ahead, config, repo)
        offered = pool.submit(priced_offer, config, spec, choice, sweep)
        measured = pool.submit(sources, config, spec, place_name)
        region = pool.submit(check_bucket, config)
        earlier = pool.submit(check_free, config, place_name, name, again)
        pinned = pool.submit(pin_image, config, spec, choice, place_name)
        waiting = None if sweep or again else pool.submit(reuse.find_warm, config, spec)
        taken, installation = read_code()
        this = job_of(spec, config, name, taken)
        looked = pool.submit(look_in_folder, config, this, sweep)
        secret_files = pool.submit(leaks.find, taken, config.bucket)
        code_bytes = snapshot.bytes_to_send(taken, config.bucket)
        bucket_region, left = region.result(), earlier.result()
        (offer, rates), (fields, gcsfuse) = offered.result(), measured.result()
        (wheel, packages, there), container = archives.result(), pinned.result()
    if place_name == "gke":
        offer = with_image(offer, container)
    fields |= {"installation": installation, "docker": this.docker and container.image}
    this = replace(this, rates=rates, **fields)
    plan = Plan(config, this, offer, bucket_region, taken, wheel, packages, gcsfuse)
    plan.code_bytes, plan.container, plan.there = code_bytes, container.lines, there
    plan.leaks = secret_files.result()
    plan.left, plan.hidden = left, hidden_results(spec, taken)
    plan.waiting = waiting.result() if waiting else []
    plan.owners, this.begins_with, plan.files = looked.result()
    return plan


def look_in_folder(config: Config, this: job.Job, sweep: int) -> tuple[list[job.Owner], str, int]:
    """Return the owners to write of a job's results dir, the job whose files it begins with, and
    how many are there, a page of them at most. The jobs of a sweep are not known yet.
    """
    if sweep:
        return [], "", 0
    pages = Bucket(config).pages(f"berg_results/{this.results_dir}/", "name")
    with ThreadPoolExecutor(1) as pool:
        listed = pool.submit(next, pages)
        found, begins_with = lookup.owners_of(config, [this])
        files = [each for each in listed.result() if not each.name.endswith(RECORD)]
    return found, begins_with[this.results_dir] if files and not this.fresh else "", len(files)


def with_machines(plan: Plan, spec: JobSpec, choice: Choice, sweep: str) -> job.Job:
    """Return a plan's job with what its place and machines are."""
    place_name = places.name_for(spec)
    kept = spec.cmd is None and not why_not_kept(spec, place_name, choice)
    return replace(
        plan.job,
        place=place_name,
        num_machines=choice.hosts,
        run_on="each" if spec.each or choice.is_slice else "first",
        gpus_per_machine=choice.shape.num_gpus,
        gpu_type=choice.shape.gpu_type,
        machine_type=choice.shape.machine_type,
        stops_when_idle=stops_when_idle(spec, place_name, choice),
        keeps_disk=kept,
        image=plan.offer.image,
        on=spec.on or "",
        sweep=sweep,
        group=plan.offer.group,
        regions=plan.offer.regions,
    )


def pin_image(config: Config, spec: JobSpec, choice: Choice, place_name: str) -> builds.Pinned:
    """Return the image of a job's containers, by its digest if its registry says it.

    An image that a record names by its tag is not looked up: the record would choose a host.
    """
    image = choice.image if place_name == "gke" else spec.container
    if not image or image == spec.recorded_image:
        return builds.Pinned(image, "" if "@" in image else "its record names no digest")
    return builds.pin(config, image)


def with_image(offer: Offer, pinned: builds.Pinned) -> Offer:
    """Return an offer of pods with their image by its digest."""
    rows = []
    for label, text in offer.rows:
        lines = pinned.lines if label == "Image" else [text]
        rows += [(label if number == 0 else "", line) for number, line in enumerate(lines)]
    return replace(offer, image=pinned.image, rows=rows)


def look_ahead(config: Config, repo: Path | None) -> tuple[Archive, Archive, dict[str, Listed]]:
    """Return berg's wheel, its packages, and those of their objects and of the repo's last sent
    code that the bucket has, by name.

    Each is asked for on a connection of its own, which `submit` then writes on: a new one would
    cost two handshakes.
    """
    bucket = Bucket(config)

    def with_object(build: Callable[[], Archive]) -> tuple[Archive, Listed | None]:
        archive = build()
        return archive, bucket.get(archive_path(archive[0])) if archive[0] else None

    def last_code() -> Listed | None:
        base = snapshot.base_pack(repo, bucket.name) if repo else ""
        return bucket.get(base) if base else None

    with ThreadPoolExecutor(3) as pool:
        code = pool.submit(last_code)
        wheel, packages = pool.map(with_object, (dist.build_wheel, dist.build))
    found = [wheel[1], packages[1], code.result()]
    return wheel[0], packages[0], {each.name: each for each in found if each}


def sources(config: Config, spec: JobSpec, place_name: str) -> tuple[dict[str, Any], Archive]:
    """Return the fields of a job that describe its data sets and mounts, and the gcsfuse that its
    machines need; pods have volumes instead.
    """
    with ThreadPoolExecutor() as pool:
        measured = pool.map(lambda each: data.measure(config, each), spec.data)
        mounted = pool.map(lambda each: data.measure_mount(config, each), spec.mount)
        data_sets, mounts = list(measured), list(mounted)
    data.check_places(mounts, data_sets)
    gcsfuse = data.own_program() if mounts and place_name != "gke" else ("", b"")
    return {"data": data_sets, "mounts": mounts, "gcsfuse": gcsfuse[0]}, gcsfuse


def uv_for(config: Config, this: job.Job) -> Archive:
    """Return uv's wheel if the job's machines need it from the bucket, which lacks it; ("", b"")
    otherwise, and if it cannot be downloaded here: machines then ask their package index.
    """
    if this.docker or not (this.installation.needs_uv or config.no_external_ip):
        return "", b""
    there = Bucket(config).get(dist.OF_MACHINES.path)
    if there and there.md5_hash == dist.OF_MACHINES.md5:
        return "", b""
    try:
        return dist.fetch_uv()
    except BergError as error:
        api.notify(f"{error.message}. The machine will ask its own package index for it")
        return "", b""


def priced_offer(
    config: Config, spec: JobSpec, choice: Choice, sweep: int
) -> tuple[Offer, dict[str, float]]:
    """Return what the place has for a spec, and USD for an hour of it by region."""
    if choice.offer:
        return choice.offer, {prices.region_of(choice.offer.zones[0]): 0.0}
    offer = places.of(places.name_for(spec)).offer(config, spec, choice, sweep)
    return offer, spending.rates(config, offer, spec.model)


def job_of(spec: JobSpec, config: Config, name: str, taken: Snapshot) -> job.Job:
    """Return the job of a spec and its code, without what its place adds."""
    results_dir = results_dir_of(spec, name, hidden_results(spec, taken))
    return job.Job(
        job_name=name,
        cmd=spec.cmd or "",
        results_dir=results_dir,
        gcs_results_dir=f"gs://{config.bucket}/berg_results/{results_dir}",
        repo_name=taken.repo_name,
        **code_fields(taken),
        install_secrets=sorted(text.partition("=")[0] for text in spec.install_secrets),
        secrets=sorted(text.partition("=")[0] for text in spec.secrets),
        env=spec.variables(),
        notify=bool(spec.notify),
        kind="devbox" if spec.cmd is None else "job",
        tpu=(spec.tpu or "").lower(),
        docker=spec.container,
        max_run_seconds=round(spec.max_hours * 3600),
        monitoring=config.monitoring,
        spec=spec.recorded(),
        created_at=job.now(),
        created_by=config.user,
        berg_version=__version__,
    )


def stops_when_idle(spec: JobSpec, place: str, choice: Choice) -> bool:
    """Return whether an idle devbox stops instead of being deleted; raise BergError if it has to
    and cannot. By default it stops if it can, because people keep work on its disk.
    """
    if spec.cmd is not None or spec.idle == "delete":
        return False
    why = why_not_kept(spec, place, choice)
    if spec.idle == "stop" and why:
        raise BergError(f"--idle stop is not possible: {why}")
    return not why


def why_not_kept(spec: JobSpec, place: str, choice: Choice) -> str:
    """Return why the disk of a devbox cannot be kept when its machine ends; "" if it can."""
    return power.why_never("devbox", place, choice.hosts, choice.shape.machine_type, spec.model)


def add_cluster_key(config: Config, place: str, hosts: int, secret_values: dict[str, str]) -> str:
    """Create the key with which machines of a job sign their messages to each other.

    A job with secrets, or with an account of its user's own, gets it as a secret: fewer people can
    read those than the machines' metadata. Return "" then and for one machine, else the key.
    """
    if hosts == 1:
        return ""
    key = secrets.token_hex(32)
    is_own = place != "gke" and iam.is_own(config)  # pods' secrets are in Kubernetes
    if not secret_values and not is_own:
        return key
    secret_values[secret.CLUSTER_KEY] = key
    return ""


def choose(config: Config, spec: JobSpec, is_sweep: bool) -> Choice:
    """Return the machines that a spec means, or its devbox; raise BergError if there are none, or
    for options that they cannot have.
    """
    if spec.on:
        choice = reuse.choose_box(config, spec)
    else:
        choice = places.of(places.name_for(spec)).choose(config, spec, is_sweep)
    if spec.reservation and choice.is_slice:
        raise BergError("--reservation is for machines, not for slices of TPUs")
    if spec.min_utilization and not choice.shape.num_gpus and spec.tpu is None:
        raise BergError("--min-utilization is for jobs with GPUs or TPUs: this one has none (-g 0)")
    return choice


def read_secrets(spec: JobSpec) -> dict[str, str]:
    """Return the values of a spec's secrets and its webhook; raise BergError if one is missing."""
    variables = spec.variables()
    values: dict[str, str] = {}
    for option, texts in (("--secret", spec.secrets), ("--install-secret", spec.install_secrets)):
        for text in texts:
            key, value = secret.read(text, option)
            check_variable(option, key)
            if "\0" in value:
                raise BergError(f"{option} {key} has a NUL byte, which no variable can hold")
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
    """Return a job's name; raise BergError if it or a name of its machines is invalid."""
    job.check_name(name)
    job.check_name(place.longest_name(name, job.machine_names(name, hosts)))
    return name


def results_dir_of(spec: JobSpec, name: str, hidden: str = "") -> str:
    """Return the folder of a job's results: as given, from its command unless it is `hidden`, or
    named after the job.
    """
    found = spec.results_dir
    if not (found or hidden):
        found = validation.sketchy_guess_at_results_dir_from_cmd(spec.cmd or "")
    if not found:
        found = f"{spec.results_parent}/{name}" if spec.results_parent else name
    return validation.check_results_dir(found.removeprefix("/root/berg_results/"))


def with_new_results(spec: JobSpec, before: job.Job, results_dir: str | None) -> JobSpec:
    """Return the spec of a job that runs again with another name and results dir, also where its
    command names that; raise BergError if this cannot be distinguished from other words.
    """
    name, cmd = spec.name or job.new_name(before.repo_name), spec.cmd or ""
    folder = results_dir or "/".join(filter(None, (spec.results_parent, name)))
    folder = folder.removeprefix("/root/berg_results/")
    old = rf"berg_results/{re.escape(before.results_dir)}(?![\w.-])"
    cmd = re.sub(old, lambda found: f"berg_results/{folder}", cmd)
    if before.results_dir == validation.sketchy_guess_at_results_dir_from_cmd(cmd) != folder:
        raise BergError(
            f"the command of {before.job_name} writes to berg_results/{before.results_dir} itself. "
            "Run it with another folder: berg run"
        )
    return replace(spec, name=name, results_dir=folder, cmd=spec.cmd and cmd)


def hidden_results(spec: JobSpec, taken: Snapshot) -> str:
    """Return the results that a command names by a relative path, if that is a folder of the
    repository: it leads there, not to the results.
    """
    found = validation.sketchy_guess_at_results_dir_from_cmd(spec.cmd or "")
    is_relative = found and re.search(r"(?<![\w/~])(\./)?berg_results/", spec.cmd or "")
    own = f"{spec.cwd}/berg_results" if spec.cwd else "berg_results"
    is_hidden = is_relative and not taken.ran and snapshot.kind_of(taken, own)
    return f"berg_results/{found}" if is_hidden else ""


def ssh_line(config: Config) -> str:
    """Return the line of metadata with the user's ssh key; "" if there is no key yet."""
    key = ssh.public_key(create=False)
    return ssh.metadata_line(config, key) if key else ""


def code_fields(taken: Snapshot) -> dict[str, Any]:
    """Return the fields of a job that describe its code."""
    return {
        "git_commit": taken.head,
        "git_snapshot": taken.commit,
        "git_dirty": taken.dirty,
        "git_changed_files": taken.all_changed(),
    }


def with_code(spec: JobSpec, folder: Path, root: Path) -> tuple[JobSpec, Snapshot | None]:
    """Return the spec with the folder of the repo to run in, and the commit that it names, if any.

    Raise BergError if there is no such commit, folder or script to install.
    """
    if spec.branch or spec.commit:
        code = snapshot.revision(root, spec.branch, spec.commit)
        return in_commit(spec, folder, code), code
    return in_folder(spec, folder, root), None


def in_folder(spec: JobSpec, folder: Path, root: Path) -> JobSpec:
    """Return the spec with the folder of the working tree to run in: --cwd, or the current one."""
    script = spec.install_script
    root = root.resolve()
    wanted = (root if spec.cwd is not None else folder) / (spec.cwd or "")
    if not wanted.is_dir() or not wanted.resolve().is_relative_to(root):
        raise BergError(f"--cwd {spec.cwd} is no folder of {root}: give its path from there")
    if script and (validation.leads_out(script) or not (root / script).is_file()):
        raise BergError(
            f"--install-script {script} is not a file in {root}: give its path from there"
        )
    path = wanted.resolve().relative_to(root)
    return replace(spec, cwd="" if spec.cmd is None or path == Path() else str(path))


def in_commit(spec: JobSpec, folder: Path, code: Snapshot) -> JobSpec:
    """Return the spec with the folder of a commit to run in: --cwd, or the current one."""
    root, script = code.root.resolve(), spec.install_script
    wanted = (root if spec.cwd is not None else folder.resolve()) / (spec.cwd or "")
    path = os.path.relpath(os.path.normpath(wanted), root)
    path = "" if path == "." or spec.cmd is None else path
    if path and snapshot.kind_of(code, path) != "tree":
        raise BergError(
            f"the commit {code.commit[:12]} has no folder {path} to run in: give another one, "
            "such as --cwd ."
        )
    if script and snapshot.kind_of(code, os.path.normpath(script)) != "blob":
        raise BergError(f"--install-script {script} is not a file of the commit {code.commit[:12]}")
    return replace(spec, cwd=path)


def check_bucket(config: Config) -> str:
    """Return the bucket's location; raise BergError unless it is usable and of the project."""
    init = f"berg init{' --local' if config.endpoint else ''}"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(api.call, config, "GET", "", fields="defaultServiceAccount")
        found = storage.confirmed(config).result() or storage.bucket_record(config)
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
    """Raise BergError if a disk cannot hold the image and the data; 0 GB is no disk."""
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


def check_free(config: Config, place: str, name: str, again: bool) -> list[job.Machine]:
    """Return the machines that an earlier job of the name still has and that go by themselves, or
    are replaced; raise BergError if a job, a sweep, a machine or a group has the name. A job that
    resumes has it, and its machines.
    """
    if again:
        return []
    with ThreadPoolExecutor() as pool:
        left = pool.submit(places.of(place).machines, config, [name], [name])
        made = pool.submit(lambda: [] if place == "gke" else groups.find(config, name))
        if any(pool.map(Bucket(config).exists, [job.state_path(name), job.sweep_path(name)])):
            raise lookup.taken(name)
        lookup.refuse_machines(name, left.result())
        for group in [] if left.result() else filter(groups.is_waiting, made.result()):
            raise lookup.in_the_way("group", name, group.get("zone") or group["region"], "reap")
        return left.result()


def submit(plan: Plan, say: Say, on_progress: Progress) -> str:
    """Send the code, write the job, create its machines; return their zone.

    `on_progress` gets the bytes sent and their total, of each part of the code. If anything fails
    or is interrupted, what was created is deleted.
    """
    this, bucket = plan.job, Bucket(plan.config)
    check_embedded(plan)
    import_ahead(places.of(this.place))
    if plan.left and (left := wait_until_gone(plan.config, this, say)):
        raise lookup.in_the_way("machine", left[0], plan.left[0].zone, f"kill {this.job_name}")
    if bytes_to_send(plan) > LITTLE:  # after the claim its job would look lost meanwhile
        send_code(plan, bucket, say, on_progress)
    claim = states.Stored(this.job_name, job.State(job=this.summary(), claim=states.new_claim()), 0)
    try:
        claimed = claim_and_send(plan, bucket, claim, say, on_progress)
        return write_and_create(plan, claimed, say)
    except lookup.Taken:
        raise
    except BaseException:
        with cleaning_up(this.job_name, say):
            take_back(plan.config, this, claim)
        raise


def refuse_secrets(plan: Plan) -> None:
    """Raise BergError if files that look like secrets would be sent."""
    if plan.leaks:
        raise leaks.refusal(plan.leaks)


def check_embedded(plan: Plan) -> None:
    """Raise BergError for a program that the embedded cloud's machines lack, unless a script or the
    user's own image may have it.
    """
    this = plan.job
    has_own = this.spec.install_script or f"projects/{plan.config.project}/" in plan.offer.image
    if this.docker:
        option, program = "--docker", "docker"
    elif this.mounts and not this.gcsfuse:
        option, program = "--mount", "gcsfuse"
    else:
        return
    if plan.config.endpoint and this.place != "gke" and not has_own:
        raise BergError(
            f"{option}: machines of the embedded cloud have no {program}, which Google's have or "
            "install. Give a script that installs it there: --install-script PATH"
        )


@contextlib.contextmanager
def cleaning_up(name: str, say: Say) -> Iterator[None]:
    """Announce a clean-up after an error; if it fails, say how to do it by hand."""
    say("Deleting what was created")
    try:
        yield
    except BaseException:
        say(f"That failed. Machines may be left. Delete them:  berg kill --now {name}")


def bytes_to_send(plan: Plan) -> int:
    """Return about how many bytes `send_code` would upload."""
    missing = [data for name, data in plan.archives if archive_path(name) not in plan.there]
    return plan.code_bytes + sum(map(len, missing))


def claim_and_send(
    plan: Plan, bucket: Bucket, claim: states.Stored, say: Say, on_progress: Progress
) -> states.Stored:
    """Claim a job's name, in parallel send its code unless it was sent; return the stored claim.

    Raise Taken if another job has the name. The claim is settled when this returns or raises.
    """

    def claim_name() -> states.Stored:
        claim_folders(plan, bucket, claim.state)
        return states.claim(bucket, claim.name, claim.state, token=claim.state.claim)

    with ThreadPoolExecutor(1) as pool:
        claiming = pool.submit(claim_name)
        if not plan.job.snapshot:
            send_code(plan, bucket, say, on_progress)
    try:
        return claiming.result()
    except Changed:
        raise lookup.taken(claim.name) from None


def claim_folders(plan: Plan, bucket: Bucket, state: job.State) -> None:
    """Enter a job or a sweep in the index, and take its results folders; raise Taken."""
    with ThreadPoolExecutor(1) as pool:
        noted = pool.submit(index.note, bucket, plan.job.job_name, state.job)
        lookup.take_folders(bucket, plan.owners, state.claim)
        noted.result()


def write_and_create(plan: Plan, claimed: states.Stored, say: Say) -> str:
    """Write a claimed job and its secrets, create its machines and return their zone."""
    this, bucket = plan.job, Bucket(plan.config)
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(lookup.check_owners, plan.config, plan.owners, claimed.state.claim)
        states.write_job(bucket, this)  # its machines run what has this hash
        if plan.secrets:
            seconds, accounts = this.max_run_seconds, plan.accounts
            secret.store(plan.config, this.job_name, plan.secrets, seconds, accounts)
        places.of(this.place).warm_up()  # waits for `import_ahead`
        checked.result()
    return create(plan, claimed, say)


def create(plan: Plan, claimed: states.Stored, say: Say) -> str:
    """Create the machines of a job whose name is claimed; return their zone."""
    if plan.offer.box:
        return reuse.give_to_box(plan, claimed.state.claim)
    place = places.of(plan.job.place)
    heartbeat = Heartbeat(plan.config, plan.job, claimed)
    keep = bool(plan.job.group)
    try:
        reserved = purse.reserve(plan, claimed.state.claim)
    except BergError as error:
        if plan.warm is None:
            raise
        say(f"{plan.warm.offer.title} may run for longer than is paid for: {error.message}")
        plan.warm = None  # a new machine ends sooner
        reserved = purse.reserve(plan, claimed.state.claim)
    if plan.warm and (zone := reuse.take_warm(plan, say)):
        purse.note_begun(plan.config, reserved)
        return zone
    plan.warm = None
    request = reuse.with_shape(plan, place.request(plan))
    zone = place.create(plan.config, request, plan.machines, keep, say, heartbeat.write)
    is_queued = plan.model == prices.FLEX and heartbeat.is_queued(zone)
    if plan.must_have_room and (is_queued or not zone):
        raise api.NoRoom(f"there is no room for {plan.offer.shape} now, except in a queue")
    purse.note_begun(plan.config, reserved)
    if is_queued:
        heartbeat.note_queue(zone, zone or ", ".join(plan.offer.zones), say)
    return zone


def wait_until_gone(config: Config, this: job.Job, say: Say) -> list[str]:
    """Wait for an earlier job's machines of this name to go; return the names of those that stay.

    A queued pod is not waited for: it is replaced.
    """
    place = places.of(this.place)

    def there() -> list[str]:
        found = place.machines(config, jobs=[this.job_name])
        return [each.name for each in found if not each.is_queued]

    return jobs.wait_while(there, f"of an earlier job {this.job_name}", say)


@dataclass
class Heartbeat:
    """The state of a job without machines yet, rewritten while they are looked for: a reader takes
    an old one for LOST.

    Machines of a zone that was given up may have begun the job before they went.
    """

    config: Config
    this: job.Job
    stored: states.Stored

    def write(self) -> None:
        """Rewrite the state, unless there is a machine: its worker may be about to write it."""
        bucket, name = Bucket(self.config), self.this.job_name
        if places.of(self.this.place).machines(self.config, jobs=[name]):
            return
        forget_machines(bucket, self.this)
        try:
            self.stored = states.replaced(bucket, self.stored, self.stored.state)
        except Changed:
            self.replace_state(bucket, states.read(bucket, name))

    def is_queued(self, zone: str) -> bool:
        """Return whether its machine or its group is in Google's queue."""
        place, name = places.of(self.this.place), self.this.job_name
        machines = place.machines(self.config, jobs=[name], zone=zone)
        if not machines:
            return name in place.waiting(self.config, name)
        return any(machine.status == "PENDING" for machine in machines)

    def note_queue(self, zone: str, where: str, say: Say) -> None:
        """Write into the state that its machines are in Google's queue, where and until when."""
        seconds = gce.FLEX_SECONDS
        if self.this.place == "tpu" or self.this.group:  # they ask again and again
            seconds = round(self.this.spec.queue_timeout)
        until = f"there is room, or: berg kill {self.this.job_name}"
        if seconds:
            until = job.after(seconds)
        reason = f"in Google's queue for {where} since {job.now()}, until {until}"
        waiting = replace(self.stored.state, zone=zone, reason=reason)
        say(f"{self.this.job_name} is {reason}. It continues without this computer")
        with contextlib.suppress(Changed):  # its worker began
            self.stored = states.replaced(Bucket(self.config), self.stored, waiting)

    def replace_state(self, bucket: Bucket, there: states.Stored | None) -> None:
        """Replace the state that a machine wrote; raise BergError if the job was ended."""
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
    """Delete the records of a job's machines, which are gone: new ones would wait for them."""
    if this.num_machines > 1:
        listed = bucket.list(job.machines_prefix(this.job_name), "name")
        bucket.delete(*[each.name for each in listed])


def preview(plan: Plan, names: list[str] | None = None) -> Any:
    """Return the request that would create the plan's machines, or those of these names."""
    place = places.of(plan.job.place)
    request, keep = reuse.with_shape(plan, place.request(plan)), bool(plan.job.group)
    return without_script(place.preview(plan.config, request, names or plan.machines, keep))


def without_script(value: Any) -> Any:
    """Return a request with the size and hash of the startup script in its place."""
    if isinstance(value, list):
        return [without_script(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("key") == "startup-script":
        text = value["value"].encode()
        digest = hashlib.sha256(text).hexdigest()[:12]
        return {**value, "value": f"<berg's boot.py, {len(text)} bytes, sha256 {digest}…>"}
    return {key: without_script(each) for key, each in value.items()}


def import_ahead(place: places.Place) -> None:
    """Import in a thread what a place needs to create machines: it may take most of a second."""
    threading.Thread(target=place.warm_up, daemon=True).start()


def send_code(plan: Plan, bucket: Bucket, say: Say, on_progress: Progress) -> None:
    """Send berg, its packages and the job's code, unless the bucket has them."""
    with ThreadPoolExecutor() as pool:
        archives = [pool.submit(send_archive, bucket, *each, plan.there) for each in plan.archives]
        plan.job.snapshot = snapshot.send(plan.snapshot, bucket, on_progress, plan.there)
        for each in archives:
            if found := each.result():
                say(found)


def take_back(
    config: Config, this: job.Job, claimed: states.Stored, before: job.State | None = None
) -> None:
    """Delete the machines that a submit made before it failed, then its secret and its state; of
    one that could not resume restore the state `before`.

    Nothing is deleted if the name is another submit's by now.
    """
    bucket = Bucket(config)
    there = states.read(bucket, this.job_name)
    if there and not there.is_damaged and there.state.claim != claimed.state.claim:
        return
    places.of(this.place).take_back(config, this.job_name, sha256(this.to_json().encode()))
    if this.on:
        reuse.take_back_from_box(config, this.on, this.job_name, claimed.state.claim)
    if this.has_secret:
        secret.take_back(config, this.job_name)
    purse.release(config, claimed.state.claim)
    if before is None:
        states.withdraw(bucket, claimed)
    elif there := states.read(bucket, this.job_name):
        states.replaced(bucket, there, before)


def archive_path(name: str) -> str:
    return f".berg/dist/{name}"


def send_archive(bucket: Bucket, name: str, content: bytes, known: dict[str, Listed]) -> str:
    """Send an archive unless the bucket has it; return a warning if its object was another file.

    `known` are objects that were looked up before.
    """
    if not name:
        return ""
    path = archive_path(name)
    there = known.get(path) or bucket.get(path)
    # MD5 is enough: berg made the archive, and no second file with its hash can be made.
    if there and there.md5_hash == md5(content):
        return ""
    with contextlib.suppress(Changed):
        bucket.write(path, content, generation=there.generation if there else 0)
    if there is None:
        return ""
    return (
        f"gs://{bucket.name}/{path} was not the file that berg sent: another user replaced it. "
        "berg restored it; no machine ran the other file"
    )


def md5(content: bytes) -> str:
    """Return the hash that Google keeps of an object that was written at once."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def candidates(config: Config, spec: JobSpec) -> list[JobSpec]:
    """Return the spec with each of its GPU types alone, in the order to try them."""
    given = spec.gpu_type or ""
    if spec.gpu_memory and given != CHEAPEST:
        raise BergError("--gpu-memory says what -t cheapest may choose from: give -t cheapest")
    if given != CHEAPEST and "," not in given:
        return [spec]
    if any((spec.cluster, spec.tpu is not None, spec.machine_type)):
        raise BergError("-t with several types is for machines whose GPUs -g and -t say alone")
    if "" in given.split(","):
        raise BergError(f"-t {given} names no GPU type between two commas")
    if given == CHEAPEST:
        types = by_price(config, spec)
    else:
        types = [shapes.name_of(each, None) for each in given.split(",")]
    return [replace(spec, gpu_type=each, gpu_memory=0) for each in types]


def by_price(config: Config, spec: JobSpec) -> list[str]:
    """Return the region's GPU types that have the memory, the cheapest first."""
    listed, why = prices.look_up(config, config.region)
    if listed is None:
        raise BergError(f"which GPU is the cheapest is unknown: {why}")
    zones = offers.gpu_zones(config)
    priced: dict[str, float] = {}
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
    return sorted(priced, key=priced.__getitem__)


def rate_of(config: Config, listed: prices.Prices, spec: JobSpec, name: str) -> float | None:
    """Return USD for an hour of a spec's machine with a GPU type; None if there is none."""
    try:
        shape = shapes.choose(spec.num_gpus, name, spec.num_cpus, None)
        shapes.check(shape, config.image[0], spec.spot or spec.flex)
        if spec.flex:
            shapes.check_flex(shape)
        shape = shapes.with_ssds(shape, spec.local_ssd)
    except BergError:
        return None
    return listed.per_hour(shape, spec.model, spec.disk_gb)


def first(
    config: Config,
    spec: JobSpec,
    folder: Path,
    code: Snapshot | None,
    carry_out: Callable[[Plan], Result],
    say: Say,
) -> Result:
    """Carry out the plan with the first GPU type that has capacity; return the result of that.

    Raise the last type's error if none has any.
    """
    *others, last = found = candidates(config, spec)
    if others:
        say(f"GPU types to try, in this order: {', '.join(str(each.gpu_type) for each in found)}\n")
    for each, following in pairwise(found):
        # One name for all: machines that could not be deleted keep the next type from starting.
        plan = prepare(config, replace(each, name=last.name, cwd=last.cwd), folder, code=code)
        code = plan.snapshot
        last = replace(last, name=plan.job.job_name, cwd=plan.job.spec.cwd)
        try:
            return carry_out(replace(plan, must_have_room=True))
        except api.NoRoom as error:
            say(f"{error.message}\nNo room for {each.gpu_type}: now {following.gpu_type}\n")
    return carry_out(prepare(config, last, folder, code=code))

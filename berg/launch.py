"""From a command to a machine that runs it: plan, check, send, create.

`prepare` refuses everything that can be refused before anything exists; `submit` leaves either a job
with its machine, or nothing.
"""

import contextlib
import math
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from berg import BergError, __version__, gce, job, ssh
from berg.code import dist, snapshot
from berg.config import Config
from berg.credentials import SCOPES
from berg.google import accelerators, groups, offers, secret
from berg.google.storage import Bucket, Changed

STARTUP_SCRIPT = Path(__file__).with_name("machine") / "boot.py"
LIMITS = (30, 120 * 24 * 3600)  # seconds; what Google takes as maxRunDuration
RESERVED = ("BERG_", "PET_", "MASTER_")


@dataclass
class Plan:
    """Everything that is known before the first byte is sent."""

    config: Config
    job: job.Job
    shape: accelerators.Shape
    zones: list[str]
    snapshot: snapshot.Snapshot
    disk_gb: int
    spot: bool
    wheel: tuple[str, bytes]
    secrets: dict[str, str] = field(repr=False, default_factory=dict)
    rounds: int = 1  # jobs of a sweep that one machine may have to run, one after another

    @property
    def machine_seconds(self) -> int:
        """How long a machine may live."""
        return min(self.job.max_run_seconds * self.rounds, LIMITS[1])

    @property
    def machines(self) -> list[str]:
        return job.machine_names(self.job.job_name, self.job.num_machines)

    def requests(self) -> dict[str, Any]:
        """What Google is asked for: the body of the request, or those for the template and the group."""
        body = self.request(self.zones[0])
        if self.job.group:
            return groups.requests(self.config, self.zones, body, self.job.job_name)
        return gce.request_body(body, self.machines)

    def request(self, zone: str) -> dict[str, Any]:
        """What each machine is to be, in the API's words, without its name."""
        config, shape, name = self.config, self.shape, self.job.job_name
        scheduling: dict[str, Any] = {
            "maxRunDuration": {"seconds": str(self.machine_seconds)},
            "instanceTerminationAction": "DELETE",
            "automaticRestart": False,
        }
        if self.spot:
            scheduling["provisioningModel"] = "SPOT"
        if self.spot or shape.num_gpus:
            scheduling["onHostMaintenance"] = "TERMINATE"
        interface: dict[str, Any] = {"network": f"global/networks/{config.network}"}
        interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
        if config.subnetwork:
            interface["subnetwork"] = f"regions/{zone.rpartition('-')[0]}/subnetworks/{config.subnetwork}"
        owner = {"berg-sweep": name} if self.job.sweep else {"berg-job": name}
        metadata = {
            "berg-bucket": config.bucket,
            **owner,
            "berg-dist": f".berg/dist/{self.wheel[0]}",
            **({"berg-endpoint": config.endpoint} if config.endpoint else {}),
            "enable-oslogin": "FALSE",  # it would refuse the keys in the metadata
            **({"ssh-keys": ssh.metadata_line(config, key)} if (key := ssh.public_key(create=False)) else {}),
            "startup-script": STARTUP_SCRIPT.read_text(),
        }
        labels = {"berg": "1", **owner, "berg-kind": self.job.kind, "berg-user": config.user}
        labels["berg-bucket"] = gce.bucket_label(config)
        disk = {
            "sourceImage": self.job.image,
            "diskSizeGb": str(self.disk_gb),
            "diskType": f"zones/{zone}/diskTypes/{shape.disk_type}",
            "labels": labels,
        }
        body = {
            "machineType": f"zones/{zone}/machineTypes/{shape.machine_type}",
            "labels": labels,
            "scheduling": scheduling,
            "networkInterfaces": [interface],
            "serviceAccounts": [{"email": config.service_account or "default", "scopes": SCOPES}],
            "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        }
        if shape.accelerator:
            accelerator = f"zones/{zone}/acceleratorTypes/{shape.accelerator}"
            body["guestAccelerators"] = [{"acceleratorType": accelerator, "acceleratorCount": shape.num_gpus}]
        return body


def prepare(
    config: Config,
    cmd: str | None,
    *,
    folder: Path,
    name: str | None = None,
    results_dir: str | None = None,
    num_gpus: int | None = None,
    gpu_type: str | None = None,
    num_cpus: int | None = None,
    machine_type: str | None = None,
    disk_gb: int = 200,
    spot: bool = False,
    max_hours: float = 168,
    install_script: str | None = None,
    env: tuple[str, ...] = (),
    secrets: tuple[str, ...] = (),
    no_kill: bool = False,
    num_machines: int = 1,
    each: bool = False,
    idle_hours: float = 0,
    wait_for_capacity: bool = False,
    max_restarts: int = 0,
    restart_on_failure: int = 0,
    sweep: bool = False,
) -> Plan:
    """Check every wish and take the snapshot; raises BergError and leaves nothing behind.

    Without a command the machines are a devbox.
    """
    if cmd is not None and not cmd.strip():
        raise BergError('there is no command to run, as in: berg run "python train.py"')
    if not 1 <= num_machines <= 1000:
        raise BergError(f"--machines {num_machines} is not possible: give 1 to 1000")
    shape = accelerators.choose(num_gpus, gpu_type, num_cpus, machine_type)
    seconds = max_hours * 3600
    if not math.isfinite(seconds) or not LIMITS[0] <= seconds <= LIMITS[1]:
        raise BergError(f"--max-hours {max_hours:g} is not possible: Google takes 30 seconds to 120 days")
    if not 0 <= idle_hours <= 1e6:
        raise BergError(f"--idle-hours {idle_hours:g} is not possible: give hours, or 0 for never")
    if not 10 <= disk_gb <= 65536:
        raise BergError(f"--disk-gb {disk_gb} is not possible: a boot disk has 10 to 65536 GB")
    if max_restarts < 0 or restart_on_failure < 0:
        raise BergError("--max-restarts and --restart-on-failure count times: give 0 or more")
    if num_machines > 1 and (wait_for_capacity or restart_on_failure):
        option = "--wait-for-capacity" if wait_for_capacity else "--restart-on-failure"
        raise BergError(f"{option} is for jobs on one machine, not on {num_machines}")
    variables = dict(parse_env(text) for text in env)
    secret_values = dict(secret.read(text) for text in secrets)
    for key in secret_values:
        check_variable("--secret", key)
        if key in variables:
            raise BergError(f"{key} is both a secret and a variable: give --secret {key} or --env {key}=…")
    root = snapshot.find_root(folder)
    if install_script and not (root / install_script).is_file():
        raise BergError(f"--install-script {install_script} is not a file in {root}: give its path from there")
    name = job.check_name(name or job.new_name(root.name))
    job.check_name(job.machine_names(name, num_machines)[-1])
    results = job.check_results_dir(
        (results_dir or job.sketchy_guess_at_results_dir_from_cmd(cmd or "") or name).removeprefix(
            "/root/berg_results/"
        )
    )
    _ = config.session  # found or refused before the threads need it
    with ThreadPoolExecutor() as pool:
        image = pool.submit(offers.find_image, config, config.default_image, config.default_image_project)
        zones = pool.submit(offers.zones_with, config, shape, config.zones)
        checks = [pool.submit(check_bucket, config), pool.submit(check_free, config, name)]
        taken = snapshot.take(root)
        for check in checks:
            check.result()
        planned_zones = zones.result()
    # A group makes a machine that Google took away anew; people on a devbox would find another one.
    grouped = cmd is not None and num_machines == 1 and not sweep and (spot or wait_for_capacity)
    region = planned_zones[0].rpartition("-")[0]
    if grouped:  # a group lies in one region
        planned_zones = [zone for zone in planned_zones if zone.startswith(f"{region}-")]
    this = job.Job(
        job_name=name,
        cmd=cmd or "",
        results_dir=results,
        gcs_results_dir=f"gs://{config.bucket}/berg_results/{results}",
        repo_name=repo_name(root.name),
        git_commit=taken.head,
        git_snapshot=taken.commit,
        git_dirty=taken.dirty,
        git_changed_files=taken.all_changed(),
        install_script=install_script or "",
        env=variables,
        secrets=sorted(secret_values),
        kind="devbox" if cmd is None else "job",
        num_machines=num_machines,
        run_on="each" if each else "first",
        idle_seconds=math.ceil(idle_hours * 3600),
        gpus_per_machine=shape.num_gpus,
        gpu_type=shape.gpu_type,
        machine_type=shape.machine_type,
        image=image.result(),
        kill_instance_after_job=not no_kill,
        max_run_seconds=round(seconds),
        sweep=name if sweep else "",
        group=region if grouped else "",
        max_restarts=max_restarts,
        restart_on_failure=restart_on_failure,
        created_at=job.now(),
        created_by=config.user,
        berg_version=__version__,
    )
    return Plan(config, this, shape, planned_zones, taken, disk_gb, spot, dist.build_wheel(), secret_values)


def repo_name(folder_name: str) -> str:
    """The repo's name as a folder on the machine and in the bucket."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder_name).lstrip(".-") or "repo"


def parse_env(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BergError(f"--env {text!r} is not of the form NAME=VALUE")
    check_variable("--env", key)
    return key, value


def check_variable(option: str, key: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
        raise BergError(f"{option} {key!r} is not the name of a variable")
    if key.startswith(RESERVED):
        raise BergError(f"{option} {key}: names that begin with {', '.join(RESERVED)} are set by berg")


def check_bucket(config: Config) -> None:
    """Raise BergError unless the bucket can be used and belongs to the project that pays."""
    from google.api_core import exceptions

    bucket = Bucket(config)
    found = bucket.client.get_bucket(config.bucket, timeout=(10, 60), retry=bucket.retry)
    try:
        project = gce.call(config, "GET", "", fields="defaultServiceAccount")
    except (exceptions.NotFound, exceptions.Forbidden) as error:
        raise BergError(f"project {config.project!r} cannot be used: {error.message} Choose one: berg init") from None
    number = project.get("defaultServiceAccount", "").partition("-")[0]
    if number.isdigit() and int(number) != found.project_number:
        raise BergError(
            f"bucket {config.bucket!r} belongs to another project (number {found.project_number}) than "
            f"{config.project!r} (number {number}). Choose a bucket of the project: berg init"
        )


def check_free(config: Config, name: str) -> None:
    if any(map(Bucket(config).exists, (job.state_path(name), job.sweep_path(name)))):
        raise BergError(f"there is a job {name!r} already. Choose another name: -n NAME (or leave -n out)")


def submit(plan: Plan, say: Callable[[str], None], tell: Callable[[int, int], None]) -> str:
    """Send the code, write the job, create its machine; returns the machine's zone.

    `say` hears sentences, `tell` how many bytes of how many were sent of a part of the code.
    If that fails or is interrupted, what was created is deleted again.
    """
    this, bucket = plan.job, Bucket(plan.config)
    importing = import_compute()
    send_code(plan, bucket, tell)
    state = job.State(job=this.summary()).to_json()
    try:  # claims the name
        bucket.write(job.state_path(this.job_name), state, generation=0, metadata={"state": state})
    except Changed:
        raise BergError(f"there is a job {this.job_name!r} already. Choose another name: -n NAME") from None
    try:
        bucket.write(job.metadata_path(this.job_name), this.to_json())
        if plan.secrets:
            secret.store(plan.config, this.job_name, plan.secrets, this.max_run_seconds)
        if this.group:
            return groups.create(plan.config, plan.zones, plan.request(plan.zones[0]), this.job_name, say)
        importing.join()
        return gce.create(plan.config, plan.zones, plan.request, plan.machines, say)
    except BaseException:
        say("Taking back what was created")
        try:
            take_back(plan.config, this)
        except BaseException:
            say(f"That did not work. {this.job_name} may have a machine; delete it:  berg kill --now {this.job_name}")
        raise


def import_compute() -> threading.Thread:
    """Import google-cloud-compute, which takes most of a second; it passes while the code is sent."""
    importing = threading.Thread(target=gce.import_compute, daemon=True)
    importing.start()
    return importing


def send_code(plan: Plan, bucket: Bucket, tell: Callable[[int, int], None]) -> None:
    with ThreadPoolExecutor() as pool:
        wheel: Future[Any] = pool.submit(send_wheel, bucket, *plan.wheel)
        plan.job.snapshot = snapshot.send(plan.snapshot, bucket, tell)
        wheel.result()


def take_back(config: Config, this: job.Job) -> None:
    """Delete the machines of a job that could not be submitted, and only then what names it."""
    if this.group:
        gce.delete(config, groups.path_of(this.group, this.job_name), wait_for_it=True)
    for machine in gce.list_instances(config, gce.of_job(this.job_name)):
        gce.delete(config, gce.path_of(machine), wait_for_it=True)
    if this.secrets:
        secret.delete(config, this.job_name)
    Bucket(config).delete(job.state_path(this.job_name), job.metadata_path(this.job_name))


def send_wheel(bucket: Bucket, name: str, content: bytes) -> None:
    path = f".berg/dist/{name}"
    if not bucket.exists(path):
        with contextlib.suppress(Changed):
            bucket.write(path, content, generation=0)

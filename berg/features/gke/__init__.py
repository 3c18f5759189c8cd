"""Jobs in pods of a cluster of Google Kubernetes Engine: `berg run --cluster NAME`, `berg cluster`.

A pod is a machine like any other: the same worker, code, log, results and states. kube.py asks the
clusters, pods.py has what the core wants of a place, pod.py runs in a pod, clusters.py has the commands.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from berg import BergError
from berg import job as jobs
from berg.feature import Feature
from berg.features import docker, secrets
from berg.features.gke import kube, pods
from berg.google import GoogleError
from berg.options import option, set_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from berg.config import Config
    from berg.gce import Shape
    from berg.job import Job
    from berg.run import Plan, Spec
    from berg.worker import Ending, Run

NOT_IN_PODS = ("Ssd", "Flex", "Iap", "Docker")  # features: what a machine has, and a pod has not
# Options that say what a machine is; the cluster has its own.
OF_MACHINES = {"image": "--image", "zones": "--zone", "regions": "--region", "disk_gb": "--disk-gb"}


@dataclass
class Gke(Feature):
    cluster: str = option(
        "--cluster", default="", metavar="NAME", help="Run in pods of this cluster: berg cluster."
    )
    pod_patch: str = option(
        "--pod-patch", default="", metavar="FILE",
        help="JSON or YAML, a part of a pod that is merged into the job's.",
    )  # fmt: skip
    patch: dict[str, Any] = field(default_factory=dict)  # what the file has

    def __post_init__(self) -> None:
        self.row: dict[str, Any] = {}  # the cluster
        self.room = 0  # pods that its pool can have
        self.values: dict[str, str] = {}  # secrets

    def choose(self, config: Config, spec: Spec) -> tuple[Shape, list[str]]:
        if not self.cluster:
            raise BergError("--pod-patch is for pods. Name a cluster: --cluster NAME")
        self.row = kube.find(config, self.cluster)
        asked = (spec.gpus, spec.gpu_type, spec.cpus, spec.machine_type)
        shape, self.room = pods.choose(self.row, *asked)
        return shape, [self.row["location"]]

    def change(self, plan: Plan) -> None:
        job = plan.job
        for name, flag in OF_MACHINES.items():
            if set_by(name) == "command line":
                raise BergError(f"{flag} is not for pods: nodes are as they are. Leave it out")
        if (
            set_by("gpu_type") == "command line"
            and job.options.get("gpus") != 0
            and job.options["gpu_type"] != job.gpu_type
        ):
            raise BergError(
                f"the cluster {self.cluster} has no {job.options['gpu_type']}, but {job.gpu_type or 'no GPUs'}. "
                f"Add a pool: berg cluster create {self.cluster} -t {job.options['gpu_type']}"
            )
        if self.pod_patch and set_by("pod_patch") == "command line":
            self.patch = pods.read_patch(self.pod_patch)
        elif self.pod_patch and not plan.ended:
            raise BergError("the patch of the pod is needed again. Add: --pod-patch FILE")
        if not plan.ended:
            job.image = self.image(plan)
            job.returns = not job.is_devbox  # Kubernetes makes pods again that were taken away
            job.features["Gke"] = self.record()
        for each in [*plan.features]:
            name = type(each).__name__
            if isinstance(each, secrets.Secrets):
                self.values, each.is_mounted = each.values, True
            if getattr(each, "mount", []):
                raise BergError("--mount is not for pods. Copy the data: --data")
            if name in NOT_IN_PODS:
                if each.is_used and name != "Docker":
                    flags = [f"--{key.replace('_', '-')}" for key in each.record()]
                    raise BergError(f"not for pods: {', '.join(flags)}. Leave it out, or --cluster")
                plan.drop(each)
        if plan.request["scheduling"].get("provisioningModel") == "SPOT":
            asked = (job.gpus, job.gpu_type or pods.DEFAULT, job.options.get("cpus"), "")
            shape, self.room = pods.choose(self.row, *asked, is_spot=True)
            if not plan.ended:
                job.machine_type = plan.request["machineType"] = shape.machine_type
                job.gpu_type = shape.gpu_type
        if not job.rows and job.machines > self.room:
            raise BergError(
                f"the cluster {self.cluster} has room for {self.room} pods with {job.gpus} GPUs, not "
                f"for {job.machines}. Add a pool with more nodes: berg cluster create {self.cluster}"
            )
        number = f"{job.machines} pods, each " if job.machines > 1 else ""
        what = f"{job.gpus} x {job.gpu_type}, " if job.gpus else ""
        plan.rows["Machine"] = f"{number}{what}on a node of {job.machine_type}"
        plan.rows["Image"] = job.image
        plan.rows["Zones"] = f"the cluster {self.place}"
        plan.end = "Kubernetes ends the pod"
        if self.patch:
            parts = [f"{part}.{key}" for part, row in self.patch.items() for key in row]
            plan.rows["Patch"] = ", ".join(parts)
        plan.create = self.create
        plan.preview = lambda: self.preview(plan)

    @property
    def place(self) -> str:
        return kube.place(self.row)

    def image(self, plan: Plan) -> str:
        named = next((each for each in plan.features if isinstance(each, docker.Docker)), None)
        image = named.docker if named else plan.config.default_docker_image
        if not docker.IMAGE.fullmatch(image):
            raise BergError(f"--docker {image!r} is no image. Name one, such as python:3.12")
        if named and "@" not in image and set_by("docker") == "command line":
            image = docker.pinned(plan, image)  # no record chooses whom this computer asks
        return image

    def preview(self, plan: Plan) -> dict[str, Any]:
        """The Job that would be made; raises GoogleError if the cluster refuses it."""
        about = (plan.job, plan.request, self.place, self.patch, bool(self.values))
        made = pods.manifest(plan.config, *about)
        server = kube.server(plan.config, self.place)
        kube.ask(
            plan.config, server, "POST", kube.JOBS, made, dryRun="All", fieldValidation="Strict"
        )
        return made

    def create(
        self, config: Config, job: Job, request: dict[str, Any], zones: list[str],
        say: Callable[[str], None],
    ) -> str:  # fmt: skip
        """Make the Job; its pods come when the cluster has room for them."""
        server = kube.server(config, self.place)
        say(f"Asking the cluster {self.place} for {job.machines} pods")
        made = pods.manifest(config, job, request, self.place, self.patch, bool(self.values))
        make(config, server, f"{kube.CORE}/configmaps", pods.boot_map())
        before = kube.look(config, server, f"{kube.JOBS}/{job.name}")
        if before and pods.sha_of(before) == job.sha256 and pods.has_ended(before):
            pods.delete_job(config, server, job)  # of an attempt before
        if not make(config, server, kube.JOBS, made):
            now = kube.look(config, server, f"{kube.JOBS}/{job.name}")
            if now is None or pods.sha_of(now) != job.sha256:
                raise BergError(
                    f"the cluster {self.place} has a Job {job.name!r} already. Choose another name: "
                    "-n NAME"
                )
        if self.values:
            job_row = kube.ask(config, server, "GET", f"{kube.JOBS}/{job.name}")
            make(config, server, f"{kube.CORE}/secrets", pods.secret(job_row, self.values))
        return self.place

    def forget(self, config: Config, job: Job) -> None:
        for row in kube.clusters(config):
            if self.cluster in (row["name"], kube.place(row)):
                pods.delete_job(config, kube.connect(config, row), job)

    def ended(self, run: Run, ending: Ending) -> Ending:
        if ending.is_loss and run.job.returns and ending.state != jobs.SUBMITTED:
            reason = f"{ending.reason}; waiting for another pod"
            return replace(ending, state=jobs.SUBMITTED, reason=reason, exit_code=None)
        if ending.state == jobs.STOPPED:  # a pod has no disk that stays
            return replace(ending, state=jobs.KILLED)
        return ending


def make(config: Config, server: kube.Server, path: str, body: dict[str, Any]) -> bool:
    """Create an object; False if one has its name."""
    try:
        kube.ask(config, server, "POST", path, body, fieldManager="berg", fieldValidation="Strict")
    except GoogleError as error:
        if error.status != 409 or error.reason != "AlreadyExists":
            raise
        return False
    return True

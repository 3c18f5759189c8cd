"""What a machine's place means to its job: its identity, its peers, news of its metadata, its end.

A place has a class here, and who asks need not know which. boot.py, which is one file and has
nothing but the standard library, has those of before the worker runs.
"""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from berg import BergError, job
from berg.config import Config
from berg.google import api, groups, instances
from berg.job import Job
from berg.machine import boot, pods

ALIVE = ("PROVISIONING", "STAGING", "RUNNING", "REPAIRING")
COMING = 600  # seconds for all machines of a job to come up, at most
NODES_COMING = 1800  # the same for pods, whose nodes may be made one after another
NUMBERED = 300  # seconds for the metadata to say which worker of a slice a machine is
METADATA_QUERY = "instance/?recursive=true&wait_for_change=true&timeout_sec=50&last_etag="
POLL = 1  # seconds between two looks at what tells no news by itself


class Host:
    """An instance of Compute Engine."""

    is_pod = False

    def __init__(self, machine: boot.Machine, config: Config):
        self.machine, self.config = machine, config
        self.etag = "0"

    def identity(self, this: Job) -> tuple[dict[str, Any], int]:
        """Return what the metadata server knows of this machine, and its rank in the job."""
        names = job.machine_names(this.job_name, this.num_machines)
        rank = 0
        if self.machine.name in names:
            rank = names.index(self.machine.name)
        return self.machine.instance(), rank

    def new_metadata(self, over: threading.Event) -> dict[str, Any]:
        """Wait until this machine's metadata change, for a minute or until `over`; return them."""
        url = boot.METADATA + METADATA_QUERY + self.etag
        content, headers = boot.request(url, headers=boot.FLAVOR, attempts=1)
        values: dict[str, Any] = json.loads(content)
        self.etag = headers.get("ETag", "0")
        return values

    def coming_seconds(self, this: Job, came: float) -> float:
        """Return for how many seconds this machine, which came so many after the job was submitted
        (0: not known), waits for a first word of the others: all were made together.
        """
        if not came:
            return COMING
        return min(COMING, max(this.longest_silence, 2 * came))

    def peers(self, this: Job) -> dict[str, bool]:
        """Return the job's machines that are there, and whether each is on."""
        found = instances.find(self.config, jobs=[this.job_name], zone=self.machine.zone)
        return {machine.name: machine.status in ALIVE for machine in found}

    def is_on(self, this: Job, name: str, zone: str) -> bool:
        """Whether another machine that had the job is on; `zone` is where it was made."""
        found = instances.find(self.config, names=[name], zone=zone)
        return any(machine.status in ALIVE for machine in found)

    def variables(self, rank: int, addresses: list[str]) -> dict[str, str]:
        """Return what libraries of this place want to know of the job's machines, by rank."""
        return {}

    def delete_groups_elsewhere(self, this: Job) -> None:
        """Delete the groups of the job that wait for room in other regions than this machine's."""
        here = self.machine.zone.rpartition("-")[0]
        for region in set(this.regions) - {here}:
            api.delete(self.config, groups.path_of(region, this.job_name))

    def delete_peer(self, name: str) -> None:
        """Delete another machine of the job, which Google makes anew."""
        for each in instances.find(self.config, names=[name], zone=self.machine.zone):
            api.delete(self.config, instances.path_of(each))

    def delete_peers(self, this: Job) -> None:
        """Delete the other machines of the job."""
        found = instances.find(self.config, jobs=[this.job_name])
        paths = [instances.path_of(each) for each in found if each.name != self.machine.name]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda path: api.delete(self.config, path), paths))


class SliceWorker(Host):
    """A worker of a TPU slice, which is deleted with its group of instances."""

    def identity(self, this: Job) -> tuple[dict[str, Any], int]:
        """Return the metadata and the rank once Google has numbered the workers of the slice."""

        def numbered() -> tuple[dict[str, Any], int] | None:
            instance = self.machine.instance()
            number = worker_number(instance)
            return None if number is None else (instance, number)

        found = api.wait_for(numbered, POLL, NUMBERED)
        if found is None:
            raise BergError(
                f"Google did not say within {NUMBERED} s which worker of its slice "
                f"{self.machine.name} is"
            )
        return found

    def peers(self, this: Job) -> dict[str, bool]:
        """Return the job's machines that are there; of a slice that Google repairs all count as on,
        since those that are off come back.
        """
        found = super().peers(this)
        return {name: is_on or this.is_restarted for name, is_on in found.items()}

    def variables(self, rank: int, addresses: list[str]) -> dict[str, str]:
        """Return what libtpu, JAX and torch_tpu look for before they ask the metadata server."""
        return {"TPU_WORKER_ID": str(rank), "TPU_WORKER_HOSTNAMES": ",".join(addresses)}

    def delete_peers(self, this: Job) -> None:
        """Do nothing: a slice is deleted as a whole."""


class Pod(Host):
    """A pod of a cluster, whose peers Kubernetes ends."""

    is_pod = True

    def coming_seconds(self, this: Job, came: float) -> float:
        return NODES_COMING

    def new_metadata(self, over: threading.Event) -> dict[str, Any]:
        over.wait(POLL)
        return self.machine.instance()

    def peers(self, this: Job) -> dict[str, bool]:
        """Return the job's pods that are there; where lost ones are made anew, one that has not
        begun is in the place of one that was lost.
        """
        phases = pods.living(this.job_name, this.num_machines)
        return {name: phase == "Running" or not this.is_replaced for name, phase in phases.items()}

    def is_on(self, this: Job, name: str, zone: str) -> bool:
        return name in pods.living(this.job_name, this.num_machines, others=True)

    def delete_peer(self, name: str) -> None:
        """Do nothing: Kubernetes ends a pod whose node says nothing."""

    def delete_peers(self, this: Job) -> None:
        """Do nothing: Kubernetes ends the pods of a job together."""


def host_of(machine: boot.Machine, config: Config, this: Job) -> Host:
    """Return the host of a job's machine."""
    if isinstance(machine, boot.Pod):
        return Pod(machine, config)
    if this.place == "tpu":
        return SliceWorker(machine, config)
    return Host(machine, config)


def worker_number(instance: dict[str, Any]) -> int | None:
    """Return a worker's place in its slice, which is not the order of the names.

    None until Google has said it.
    """
    attributes = instance.get("attributes", {})
    in_lines = re.search(r"^TPU_WORKER_ID: '?(\d+)", attributes.get("tpu-env", ""), re.M)
    number = attributes.get("worker-id", attributes.get("agent-worker-number", ""))
    if not number and in_lines:
        number = in_lines[1]
    if not number.isdigit():
        return None
    return int(number)

"""List 50 machines and 1,000 jobs: `berg list` against `gcloud compute instances list`."""

from collections.abc import Iterable, Iterator
from typing import Any

import common
from common import FAR, Cloud, Result, Target, distance, median, ratio, rounds, table

from berg import job
from berg.google.storage import Bucket

ZONE = "us-central1-a"


def make_machines(cloud: Cloud, machines: Iterable[str], more: dict[str, str]) -> None:
    """Machines of these names that do nothing, with the labels of jobs of this bucket and `more`."""
    parent = f"/compute/v1/projects/{cloud.project}/zones/{ZONE}/instances"
    labels = {
        "berg": "1",
        "berg-kind": "job",
        "berg-user": cloud.config.user,
        "berg-bucket": cloud.bucket,
        **more,
    }
    image = "projects/debian-cloud/global/images/family/debian-12"
    properties = {
        "machineType": "n1-standard-1",
        "labels": labels,
        "networkInterfaces": [{"network": "global/networks/default"}],
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}}],
    }
    names: dict[str, dict] = {name: {} for name in machines}
    body = {
        "count": str(len(names)),
        "instanceProperties": properties,
        "perInstanceProperties": names,
    }
    operation = cloud.call("POST", f"{parent}/bulkInsert", body)
    while operation["status"] != "DONE":
        operation = cloud.call(
            "POST",
            f"/compute/v1/projects/{cloud.project}/zones/{ZONE}/operations/{operation['name']}/wait",
        )
    assert "error" not in operation, operation


def write_jobs(cloud: Cloud, first: int, end: int, running: int) -> None:
    """What jobs leave in the bucket: their metadata, and their states; those before `running` are
    not over.
    """
    this = job.Job(
        "job-0",
        "python train.py",
        "sweep/0",
        f"gs://{cloud.bucket}/berg_results/sweep/0",
        "repo",
        "0" * 40,
        "0" * 40,
    )
    this.created_at, this.created_by, this.snapshot = (
        job.now(),
        cloud.config.user,
        {"commit": "0" * 40},
    )
    state = job.State(
        "SUCCEEDED", 0, machine="job-0", zone=ZONE, started_at=job.now(), finished_at=job.now()
    )
    state.job = this.summary()
    if not first:
        Bucket(cloud.config).write(job.metadata_path("like"), this.to_json())
        Bucket(cloud.config).write(
            job.state_path("like"), state.to_json(), metadata={"state": state.to_json()}
        )

    def states() -> Iterator[tuple[str, dict[str, Any]]]:
        for number in range(first, end):
            each = (
                state
                if number >= running
                else job.State("RUNNING", machine=f"job-{number}", job=state.job)
            )
            text = each.to_json().replace("sweep/0", f"sweep/{number}")
            yield job.state_path(f"job-{number}"), {"metadata": {"state": text}}

    cloud.multiply(job.state_path("like"), states())
    cloud.multiply(
        job.metadata_path("like"), ((job.metadata_path(f"job-{n}"), {}) for n in range(first, end))
    )


def measure(repeats: int) -> list[Result]:
    with Cloud() as cloud:
        make_machines(cloud, [f"job-{number}" for number in range(50)], {})
        write_jobs(cloud, 0, 1000, 50)
        berg, gcloud = "`berg list`", "`gcloud compute instances list`"
        sides = {berg: lambda: cloud.counted(lambda: cloud.berg("list"))}
        if common.has("gcloud"):
            sides[gcloud] = lambda: cloud.counted(
                lambda: cloud.gcloud("compute", "instances", "list")
            )
        for side in sides.values():
            assert side().out.count("job-") >= 50
        found = []
        for latency, limit in ((0, 0.45), (FAR, 0.35)):
            with cloud.far(latency):
                costs = rounds(sides, repeats * 2)
            trips = median(costs[berg], "trips")
            targets = []
            if latency:  # without, who asks what at the same time is chance
                name = "sequential round trips"
                targets.append(Target(name, trips, 5, "round trips"))
            if gcloud in costs:
                own = median(costs[berg], "cpu") + trips * latency
                least = own / median(costs[gcloud])
                why = (
                    f"Berg takes {median(costs[berg], 'cpu'):.2f} s of CPU, most of it Python's start and imports, "
                    f"and waits {trips * latency:.2f} s for round trips: {least:.2f} x is the limit"
                )
                over = Target("wall over gcloud's", ratio(costs, berg, gcloud), limit, why=why)
                targets.insert(0, over)
            title = f"List, {distance(latency)}"
            found.append(table(title, "gcloud shows only the machines.", costs, targets, net=True))
    return found


if __name__ == "__main__":
    common.main(__doc__, measure)

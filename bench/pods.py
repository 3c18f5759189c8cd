"""A job in pods of a cluster with Workload Identity, against one without it."""

import time

import common
from common import SCRATCH, Cloud, Cost, Result, Target, ratio, rounds, table

from berg.gke import client

WITH, WITHOUT = "with Workload Identity", "without it"


def make_cluster(cloud: Cloud, name: str, has_identity: bool) -> None:
    """Make a cluster with nodes for jobs; an older berg made them without identity."""
    if not has_identity:
        body = client.cluster_body(cloud.config, name, "bench")
        del body["workloadIdentityConfig"], body["addonsConfig"]["gcsFuseCsiDriverConfig"]
        body["nodePools"][0]["config"].pop("workloadMetadataConfig", None)
        place = f"/container/v1/projects/{cloud.project}/locations/us-central1-a"
        made = cloud.call("POST", f"{place}/clusters", {"cluster": body})
        while cloud.call("GET", f"{place}/operations/{made['name']}")["status"] != "DONE":
            time.sleep(0.5)
    cloud.berg("cluster", "create", name, "-g", "0", "--machine-type", "n1-standard-4")


def measure(repeats: int) -> list[Result]:
    repo = SCRATCH / "repo"
    common.make_repo(repo, 10)
    numbers = iter(range(1_000_000))

    def job(cloud: Cloud, cluster: str) -> Cost:
        name = f"job-{next(numbers)}"
        words = ("run", "--cluster", cluster, "-g", "0", "-n", name, "--wait", "true")
        return cloud.berg(*words, cwd=repo)

    with Cloud() as cloud:
        make_cluster(cloud, "mine", has_identity=True)
        make_cluster(cloud, "shared", has_identity=False)
        for cluster in ("mine", "shared"):
            job(cloud, cluster)  # makes the namespace, and the node
        costs = rounds(
            {WITH: lambda: job(cloud, "mine"), WITHOUT: lambda: job(cloud, "shared")}, repeats
        )
    note = "`berg run --cluster NAME -g 0 --wait true` on a node that is there."
    slower = Target(f"{WITH} over {WITHOUT}", ratio(costs, WITH, WITHOUT), 1.05)
    return [table("Pods", note, costs, [slower])]


if __name__ == "__main__":
    common.main(__doc__, measure)

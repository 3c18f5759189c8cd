"""Several H200 machines have RoCE's networks, made once, and NCCL its variables; or TCP on all of them."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud, commit

from berg.job import FINAL

H200 = ["-m", "2", "-t", "h200", "-g", "8", "--each"]
ZONE = "us-central1-ai1a"
# What Google's drivers and package show: eight devices and gIB, on top of folders of the kernel.
DEVICES = """
mount -t tmpfs none /sys/class
for n in 0 1 2 3 4 5 6 7; do
    mkdir -p /sys/class/infiniband/mlx5_$n/ports/1
    echo "4: ACTIVE" >/sys/class/infiniband/mlx5_$n/ports/1/state
done
mkdir -p /usr/local/gib/lib64 /usr/local/gib/scripts
echo export NCCL_NET=gIB NCCL_IB_TC=52 OTHER=1 >/usr/local/gib/scripts/set_nccl_env.sh
"""
PROJECT = "/compute/v1/projects/berg-local"


def listed(cloud: Cloud, kind: str) -> list[dict[str, Any]]:
    """What there is of a kind, in all places."""
    if kind == "networks":
        return list(cloud.call("GET", f"{PROJECT}/global/networks")["items"])
    places = cloud.call("GET", f"{PROJECT}/aggregated/{kind}")["items"].values()
    return [row for place in places for row in place.get(kind, [])]


def ended(cloud: Cloud, job: str, seconds: float = 300) -> str:
    """The state in which a job has ended."""
    end, state = time.monotonic() + seconds, ""
    while state not in FINAL and time.monotonic() < end:
        time.sleep(0.5)
        state = json.loads(cloud.read(f".berg/jobs/{job}_state.json"))["state"]
    return state


@pytest.mark.slow
def test_spot_machines_get_networks_variables_and_go(cloud: Cloud, project: Path) -> None:
    (project / "setup.sh").write_text(DEVICES)
    commit(project)
    words = [*H200, "--spot", "--install", "bash setup.sh", "-n", "near"]
    done = cloud.run(
        "run", *words, "echo $NCCL_NET $NCCL_IB_TC${OTHER-} $LD_LIBRARY_PATH", cwd=project
    )
    assert done.code == 0 and ended(cloud, "near") == "SUCCEEDED", done.err + cloud.log("near")
    assert "8 x RoCE, 3,200 Gbps" in done.err and ZONE in done.err
    assert cloud.log("near").count("gIB 52 /usr/local/gib/lib64") == 2, cloud.log("near")
    assert {"berg-fast", f"berg-roce-{ZONE}"} <= {row["name"] for row in listed(cloud, "networks")}
    assert sum("berg-roce" in row["name"] for row in listed(cloud, "subnetworks")) == 8


@pytest.mark.slow
def test_the_policy_of_a_job_goes_with_it_and_networks_are_made_once(
    cloud: Cloud, project: Path
) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and any(
        "near-" in row["name"] for row in listed(cloud, "instances")
    ):
        time.sleep(1)  # the quota is of 16
    done = cloud.run("devbox", *H200[:-1], "--spot", "-n", "near-box", cwd=project)
    assert done.code == 0, done.err
    assert "near" not in [row["name"] for row in listed(cloud, "resourcePolicies")]  # it has ended
    machines = [row for row in listed(cloud, "instances") if row["name"].startswith("near-box-")]
    assert [len(row["networkInterfaces"]) for row in machines] == [10, 10]
    assert all(row["resourcePolicies"][0].endswith("/near-box") for row in machines)
    assert cloud.run("kill", "-y", "--now", "near-box").code == 0
    assert "near-box" not in [row["name"] for row in listed(cloud, "resourcePolicies")]
    assert [row["name"] for row in listed(cloud, "networks")].count("berg-fast") == 1


def test_where_there_is_no_roce_and_what_goes_over_tcp(cloud: Cloud, project: Path) -> None:
    dry = ["run", "--dry-run", *H200, "--spot"]
    done = cloud.run(*dry, "-z", "us-central1-a", "true", cwd=project)
    assert done.code == 1 and ZONE in done.err, done.err
    done = cloud.run(*dry, "--network", "tcp", "true", cwd=project)
    assert done.code == 0 and "about a tenth" in done.out, done.err

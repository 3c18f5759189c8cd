"""Local SSDs are one folder on the machine, and in the request as Google takes them."""

from pathlib import Path

import pytest
from conftest import Cloud


@pytest.mark.slow
def test_the_disks_are_one_folder(cloud: Cloud, project: Path) -> None:
    show = 'df --output=target "$BERG_SCRATCH_DIR" | tail -1; touch "$BERG_SCRATCH_DIR/x"; sleep 20'
    words = ["-g", "0", "-n", "fast", "--local-ssd", "2", show]
    done = cloud.run("run", *words, cwd=project)
    assert done.code == 0 and "750 GB of local SSD" in done.err, done.err
    project_url = "/compute/v1/projects/berg-local"
    machine = cloud.call(
        "GET", f"{project_url}/zones/{done.err.split(' in ')[-1].split()[0]}/instances/fast"
    )
    assert [disk["type"] for disk in machine["disks"]] == ["PERSISTENT", "SCRATCH", "SCRATCH"]
    assert machine["scheduling"]["localSsdRecoveryTimeout"] == {"seconds": "0"}
    assert cloud.run("wait", "fast").code == 0
    assert "[berg] /mnt/scratch has " in cloud.log("fast") and "\n/mnt/scratch\n" in cloud.log(
        "fast"
    )


def test_disks_that_come_with_a_machine_need_no_option(cloud: Cloud, project: Path) -> None:
    words = ["run", "--machine-type", "a2-ultragpu-1g", "--dry-run", "-z", "us-central1-a"]
    done = cloud.run(*words, "true", cwd=project)
    assert done.code == 0 and "375 GB of local SSD" in done.out, done.err
    done = cloud.run(*words, "--local-ssd", "2", "true", cwd=project)
    assert done.code == 1 and "comes with 1 local SSDs" in done.err

"""Spot machines: what their user hears."""

import time
from pathlib import Path

from conftest import Cloud


def test_files_that_a_restart_will_not_find_are_named_while_it_runs(
    cloud: Cloud, project: Path
) -> None:
    line = "mkdir outputs; echo 1 > outputs/last.ckpt; for i in $(seq 100); do sleep 1; done"
    words = ["-n", "spot-outputs", "--spot", line]
    assert cloud.run("run", "-g", "0", *words, cwd=project).code == 0
    end = time.monotonic() + 40
    while "a restart will not find it" not in cloud.log("spot-outputs"):
        assert time.monotonic() < end, cloud.log("spot-outputs")
        time.sleep(0.5)
    assert "/outputs: 1 files" in cloud.log("spot-outputs")
    assert cloud.run("kill", "spot-outputs", "--now").code == 0

"""What `berg run` would ask of Google: each option that a machine is made of, by a plan that is only shown."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud

T4 = ["-t", "t4", "-g", "2"]
ATTACHED = {"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 2}


def request(cloud: Cloud, project: Path, *words: str, **env: str) -> dict[str, Any]:
    words = words if words[:1] == ("devbox",) else ("run", *words, "true")
    done = cloud.run(*words, "--dry-run", "--json", cwd=project, **env)
    assert done.code == 0, done.err
    return dict(json.loads(done.out)["request"])


def part(whole: Any, path: str) -> Any:
    for key in path.split("."):
        whole = whole[int(key)] if key.isdigit() else whole.get(key)
    return whole


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        (["-g", "0"], "machineType", "n1-standard-8"),
        (["-g", "0", "-c", "16"], "machineType", "n1-standard-16"),
        (["--machine-type", "e2-standard-4"], "machineType", "e2-standard-4"),
        ([], "machineType", "g2-standard-12"),
        (["-g", "2"], "machineType", "g2-standard-24"),
        (T4, "guestAccelerators.0", ATTACHED),
        (["-t", "h100", "-g", "8"], "machineType", "a3-highgpu-8g"),
        (["-t", "h100", "-g", "8"], "networkInterfaces.0.nicType", "GVNIC"),
        (["--disk-gb", "300"], "disks.0.initializeParams.diskSizeGb", "300"),
        (["--disk-gb", "300"], "disks.0.autoDelete", True),
        (["--max-hours", "2"], "scheduling.maxRunDuration.seconds", "7200"),
        (["--max-hours", "2"], "scheduling.instanceTerminationAction", "DELETE"),
        (["devbox", "-g", "0"], "scheduling.instanceTerminationAction", "STOP"),
        ([], "scheduling.onHostMaintenance", "TERMINATE"),
        (["-g", "0"], "scheduling.onHostMaintenance", None),
    ],
)
def test_options_of_a_machine(
    cloud: Cloud, project: Path, words: list[str], path: str, value: Any
) -> None:
    assert part(request(cloud, project, *words), path) == value


@pytest.mark.parametrize(
    ("name", "text", "path", "value"),
    [
        ("SERVICE_ACCOUNT", "me@here.com", "serviceAccounts.0.email", "me@here.com"),
        ("NETWORK", "inner", "networkInterfaces.0.network", "global/networks/inner"),
        ("USER", "ada", "labels.berg-user", "ada"),
        ("GPUS", "0", "machineType", "n1-standard-8"),
    ],
)
def test_a_variable_is_stronger_than_the_file(
    cloud: Cloud, project: Path, name: str, text: str, path: str, value: str
) -> None:
    assert part(request(cloud, project, **{f"BERG_{name}": text}), path) == value

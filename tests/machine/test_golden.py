"""What a machine whose disk becomes an image installs, and in which order."""

from dataclasses import asdict
from pathlib import Path

import pytest

from berg.job import Installation
from berg.machine import installation


@pytest.mark.parametrize("horovod", [False, True])
@pytest.mark.parametrize("roce", [False, True])
def test_horovod_is_built_when_all_else_is_there(monkeypatch, tmp_path, horovod, roce):
    """It is built against the PyTorch that the repo asks for. gIB comes from Google's packages."""
    steps: list[list[str]] = []
    monkeypatch.setattr(installation.boot, "ROOT", tmp_path)
    monkeypatch.setattr(
        installation.boot, "apt_install", lambda machine, *names: steps.append([*names])
    )
    monkeypatch.setattr(installation.fabric, "add_source", lambda: steps.append(["source"]))
    monkeypatch.setattr(installation, "settings_of", lambda machine: None)
    monkeypatch.setattr(installation, "Bucket", lambda settings: None)
    monkeypatch.setattr(
        installation, "run_for_image", lambda step, variables: steps.append(step.words)
    )

    monkeypatch.setattr(installation, "fetch_code", lambda bucket, snapshot, folder: None)
    recipe = {"packages": ["cmake"], "repo": "proj", "snapshot": "s", "install_script": "setup.sh"}
    what = asdict(Installation("requirements.txt", steps=[["pip", "install", "-r", "r.txt"]]))
    recipe |= {"installation": what, "horovod": horovod, "roce": roce}
    installation.install_image(None, recipe)
    assert steps.pop(0) == ["cmake"]
    if roce:
        gib = ["nccl-gib", "libibverbs1", "ibverbs-providers"]
        assert [steps.pop(0), steps.pop(0)] == [["source"], gib]
    assert steps[0] == ["bash", "-e", "setup.sh"]
    assert "-r" in steps[1] and len(steps) == 2 + horovod
    if horovod:
        script = Path(steps[2][-1])
        assert script.name == "horovod.sh" and "horovodrun --check-build" in script.read_text()

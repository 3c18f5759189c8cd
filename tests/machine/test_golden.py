"""What a machine whose disk becomes an image installs, and in which order."""

from dataclasses import asdict
from pathlib import Path

import pytest

from berg.job import Installation
from berg.machine import installation


@pytest.mark.parametrize("horovod", [False, True])
def test_horovod_is_built_when_all_else_is_there(monkeypatch, tmp_path, horovod):
    """It is built against the PyTorch that the repo asks for."""
    steps: list[list[str]] = []
    monkeypatch.setattr(installation.boot, "ROOT", tmp_path)
    monkeypatch.setattr(
        installation.boot, "apt_install", lambda machine, *names: steps.append([*names])
    )
    monkeypatch.setattr(installation, "settings_of", lambda machine: None)
    monkeypatch.setattr(installation, "Bucket", lambda settings: None)
    monkeypatch.setattr(
        installation, "run_for_image", lambda step, variables: steps.append(step.words)
    )

    monkeypatch.setattr(installation.inputs, "fetch_code", lambda bucket, snapshot, folder: None)
    recipe = {"packages": ["cmake"], "repo": "proj", "snapshot": "s", "install_script": "setup.sh"}
    what = asdict(Installation("requirements.txt", steps=[["pip", "install", "-r", "r.txt"]]))
    installation.install_image(None, {**recipe, "installation": what, "horovod": horovod})
    assert steps[0] == ["cmake"] and steps[1] == ["bash", "-e", "setup.sh"]
    assert "-r" in steps[2] and len(steps) == 3 + horovod
    if horovod:
        script = Path(steps[3][-1])
        assert script.name == "horovod.sh" and "horovodrun --check-build" in script.read_text()

"""Real profiles of a program that runs, and sentences for what cannot be profiled."""

import json
from pathlib import Path

import pytest
from conftest import Cloud, commit, until

SPIN = """
def busy():
    while True:
        sum(range(1000))
busy()
"""


@pytest.mark.slow
def test_python_is_profiled_from_outside_and_runs_on(cloud: Cloud, project: Path) -> None:
    commit(project, {"spin.py": SPIN})
    cmd = "python3 spin.py & python3 spin.py"
    cloud.ok("run", "-g", "0", "-n", "spins", cmd, cwd=project)
    until(lambda: cloud.state("spins")["state"] == "RUNNING")
    done = cloud.ok("profile", "spins", "-s", "1")
    assert "busy (spin.py:4)" in done.err and "speedscope.app" in done.err
    file = Path(done.out.split()[0])
    assert file.parts[-5:-2] == ("berg_results", "spins", "profiles")
    assert "busy" in [frame["name"] for frame in json.loads(file.read_text())["shared"]["frames"]]
    stacks = cloud.run("profile", "spins", "--stacks")
    assert stacks.code == 0 and "busy (spin.py:" in stacks.out
    assert cloud.run("kill", "spins").code == 0
    assert len(cloud.names("berg_results/spins/profiles/")) == 4

"""A devbox is switched off and on with its disk, whatever ends it; only berg kill deletes it."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud, until

RESULTS = "/root/berg_results/owned"


def reached(cloud: Cloud, name: str, state: str) -> dict[str, Any]:
    """What is shown of a devbox, once it is in this state."""
    until(lambda: cloud.shown(name)["state"] == state)
    return cloud.shown(name)


@pytest.mark.slow
def test_a_file_outlives_a_stop_a_preemption_and_a_question_without_an_answer(
    cloud: Cloud, project: Path
) -> None:
    here = project.parent / "fetched"
    assert cloud.run("devbox", "-g", "0", "-n", "owned", cwd=project).code == 0
    first = reached(cloud, "owned", "RUNNING")["running"][0]["id"]
    assert (
        cloud.run("ssh", "owned", "cd /root/code/proj && echo mine > mine && rm train.py").code == 0
    )
    assert cloud.run("ssh", "owned", f"cd {RESULTS} && echo before > before").code == 0
    assert cloud.run("stop", "owned").code == 0
    shown = reached(cloud, "owned", "STOPPED")
    assert [row["status"] for row in shown["running"]] == ["TERMINATED"]
    for words in (["ssh", "owned", "ls"], ["sync", "owned", "--once"]):
        cloud.fails(*words, cwd=project, says="Switch it on: berg start owned")
    assert cloud.run("start", "owned").code == 0
    reached(cloud, "owned", "RUNNING")
    path = f"/compute/v1/projects/berg-local/zones/{shown['zone']}/instances/owned/stop"
    for trouble in ("/_berg/instances/owned/preempt", "/_berg/instances/owned/crash", path):
        cloud.call("POST", trouble, {})  # the last one as from the console
        until(lambda: cloud.shown("owned")["running"][0]["status"] == "TERMINATED")
        assert cloud.run("start", "owned").code == 0
        reached(cloud, "owned", "RUNNING")
    shown = reached(cloud, "owned", "RUNNING")
    assert shown["running"][0]["id"] == first and shown["reason"] == "", shown["reason"]
    assert cloud.run("ssh", "owned", f"cd {RESULTS} && ls before && touch after").code == 0
    until(lambda: cloud.run("fetch", "owned", str(here)).code == 0 and (here / "after").exists())
    assert (
        cloud.run("ssh", "owned", "cd /root/code/proj && cat mine && ! ls train.py").out == "mine\n"
    )
    asked = cloud.run("kill", "owned")
    assert asked.code == 1 and "its disk" in asked.err and reached(cloud, "owned", "RUNNING")
    assert cloud.run("kill", "-y", "owned").code == 0
    assert reached(cloud, "owned", "KILLED")["running"] == []


@pytest.mark.slow
def test_a_devbox_whose_process_somebody_ends_can_be_started_again(
    cloud: Cloud, project: Path
) -> None:
    assert cloud.run("devbox", "-g", "0", "-n", "ended", cwd=project).code == 0
    reached(cloud, "ended", "RUNNING")
    cloud.call("POST", "/_berg/faults", {"method": "compute.instances.stop", "delay": 5})
    kill = "until pkill -f '[s]leep infinity'; do sleep 0.1; done"  # it may be about to begin
    cloud.run("ssh", "ended", f"touch mine; {kill}")
    assert "sleep" in reached(cloud, "ended", "STOPPED")["reason"]
    assert cloud.run("start", "ended").code == 0  # its worker has ended, and it is on still
    cloud.call("DELETE", "/_berg/faults")
    reached(cloud, "ended", "RUNNING")
    assert cloud.run("ssh", "ended", "ls mine").out == "mine\n"
    assert cloud.run("ssh", "ended", "pkill -9 -f '[b]erg[.]worker'").code == 0
    until(lambda: cloud.run("ssh", "ended", "pgrep -f '[b]erg[.]worker' && ls mine").code == 0)
    reached(cloud, "ended", "RUNNING")
    assert cloud.run("kill", "-y", "ended").code == 0

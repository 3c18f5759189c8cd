"""A job that hangs is found, explained and ended; one that goes on is not."""

import json
import re
from pathlib import Path

import pytest
from conftest import Cloud, commit

HANGS = """
import os, time
def stuck():
    while True:
        time.sleep(0.1)
if int(os.environ["BERG_ATTEMPT"]) == 1:
    print("begun")
    stuck()
"""


@pytest.mark.slow
def test_a_hang_is_explained_and_begins_again(cloud: Cloud, project: Path) -> None:
    (project / "train.py").write_text(HANGS)
    commit(project)
    words = ["-g", "0", "-n", "hangs", "-m", "2", "--each", "--max-silence", "8s"]
    words += ["--on-hang", "restart", "--restart-on-failure", "1", "--wait", "python3 train.py"]
    done = cloud.run("run", *words, cwd=project)
    assert done.code == 0, cloud.log("hangs")
    log = cloud.log("hangs")
    assert re.search(r"no step for \d+s; 1 in stuck \(train.py:5\)", log), log
    written = {name.rpartition("/")[2]: name for name in cloud.names("berg_results/hangs/autopsy")}
    assert set(written) == {"hangs-0.txt", "hangs-1.txt"}
    assert all(b"stuck (train.py:5)" in cloud.read(name) for name in written.values())
    assert json.loads(cloud.read(".berg/jobs/hangs_state.json"))["attempt"] == 2


@pytest.mark.slow
def test_a_report_ends_nothing_and_what_makes_no_sense_is_refused(
    cloud: Cloud, project: Path
) -> None:
    words = ["-g", "0", "-n", "slow", "--max-silence", "4s", "--wait", "sleep 9; echo on; sleep 2"]
    done = cloud.run("run", *words, cwd=project)
    assert done.code == 0 and cloud.log("slow").count("it seems to hang") == 1
    for words, reason in [
        (["--on-hang", "fail"], "--max-silence 30m"),
        (["--max-silence", "1h", "--on-hang", "restart"], "--restart-on-failure N"),
        (["--max-silence", "soon"], "such as 90s"),
    ]:
        done = cloud.run("run", "-g", "0", "--dry-run", *words, "true", cwd=project)
        assert done.code and reason in done.err

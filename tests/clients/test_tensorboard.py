"""TensorBoard over what jobs write to the bucket."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import requests
from conftest import BERG, Cloud, commit
from records import put, put_row

from berg.clients import tensorboard

PROGRAM = """
import json, os, sys
with open(os.environ["BERG_RESULTS_DIR"] + "/metrics.jsonl", "w") as file:
    for step in (10, 20, 30):
        file.write(json.dumps({"step": step, "loss": float(sys.argv[1]) / step}) + "\\n")
"""


@pytest.mark.slow
def test_what_jobs_wrote_is_shown_and_what_is_new_of_it(cloud: Cloud, project: Path) -> None:
    (project / "train.py").write_text(PROGRAM)
    commit(project)
    words = ["run", "-g", "0", "-n", "boards", "python3 train.py 2"]
    assert cloud.run(*words, cwd=project).code == 0 and cloud.run("wait", "boards").code == 0
    bucket = cloud.bucket
    bucket.write("berg_results/older/events.out.tfevents.1", b"12345678", 0)
    bucket.write("berg_results/older/projector_config.pbtxt", b"/etc/passwd", 0)
    bucket.write("berg_results/older/.git/tfevents", b"x", 0)
    done = cloud.run("tensorboard", "boards", "older", "--once")
    assert done.code == 0, done.err
    folder = Path(done.out.strip())
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert "boards/metrics.jsonl" in files
    assert {file for file in files if file.startswith("older")} == {"older/events.out.tfevents.1"}
    # TensorBoard has a file open: one that grew is the same file with a new end.
    grown = folder / "older/events.out.tfevents.1"
    inode = grown.stat().st_ino
    for content in (b"1234567890", b"otherwise"):
        bucket.write("berg_results/older/events.out.tfevents.1", content)
        assert tensorboard.follow(cloud.config, ("older",), folder, {}) == 1
        assert grown.read_bytes() == content and grown.stat().st_ino == inode
    assert tensorboard.follow(cloud.config, ("boards", "older"), folder, {}) == 0
    missing = cloud.run("tensorboard", "no-such-job")
    assert missing.code == 1 and "berg list" in missing.err
    if not find_spec("tensorboard"):
        return
    process = subprocess.Popen(
        [*BERG, "tensorboard", "boards"],
        env=cloud.env, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout
        address = process.stdout.readline().strip()
        asked = {"tag": "loss", "run": "boards"}
        url = f"{address}data/plugin/scalars/scalars"
        points = []
        while not points:  # TensorBoard reads the folder a moment after it is up
            answer = requests.get(url, params=asked, timeout=30)
            points = answer.json() if answer.ok else []
        assert [(step, round(value, 3)) for _, step, value in points] == [
            (10, 0.2),
            (20, 0.1),
            (30, 0.067),
        ]
    finally:
        process.terminate()
        assert process.wait(30) == 143
    with pytest.raises(requests.ConnectionError):
        requests.get(address, timeout=5)


def test_without_tensorboard_the_command_that_installs_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    monkeypatch.setattr(sys, "executable", "/opt/my tools/bin/python")
    with pytest.raises(tensorboard.BergError) as told:
        tensorboard.program(tmp_path)
    assert "'/opt/my tools/bin/python' -m pip install 'tensorboard>=2.21'" in str(told.value)


def test_a_folder_has_each_row_and_what_there_is_of_others(cloud: Cloud) -> None:
    job = {"cmd": "t {x}", "rows": [{"x": "1"}, {"x": "2"}, {"x": "3"}]}
    sweep = put(cloud, "tb-sweep", "FAILED", job=job)
    for number in (0, 1):
        put_row(cloud, sweep, number, "FAILED", results=f"tb-rows/{number}")
        cloud.bucket.write(f"berg_results/tb-rows/{number}/a/tfevents.{number}", b"123")
    put(cloud, "tb-nothing", results={"out.txt": b"1"})
    done = cloud.run("tensorboard", "tb-sweep", "tb-nothing", "--once")
    assert done.code == 0 and "2 files new or changed in" in done.err, done.err
    folder = Path(done.out.strip())
    assert folder.parent == cloud.home / ".berg/tensorboard"
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert files == {"tb-sweep/0/a/tfevents.0", "tb-sweep/1/a/tfevents.1"}
    again = cloud.run("tensorboard", "tb-sweep", "tb-nothing", "--once")
    assert f"0 files new or changed in {folder}" in again.err, again.err
    done = cloud.run("tensorboard", "tb-sweep/1", "--once")
    assert (Path(done.out.strip()) / "tb-sweep/1/a/tfevents.1").read_bytes() == b"123"
    done = cloud.run("tensorboard", "tb-nothing", "--once")
    assert done.code == 1 and "tb-nothing has nothing to show yet" in done.err, done.err

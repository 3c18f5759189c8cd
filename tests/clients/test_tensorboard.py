"""TensorBoard over what jobs write to the bucket."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import requests
from conftest import BERG, Cloud
from records import put, put_row

from berg.clients import tensorboard

STEPS = ((10, 0.2), (20, 0.1), (30, 0.067))


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("tensorboard"), reason="TensorBoard is not installed")
def test_metrics_are_shown_until_the_command_ends(cloud: Cloud) -> None:
    lines = [f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in STEPS]
    put(cloud, "boards", results={"metrics.jsonl": "".join(lines).encode()})
    words = [*BERG, "tensorboard", "boards"]
    process = subprocess.Popen(words, env=cloud.env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        address = process.stdout.readline().strip()
        asked = {"tag": "loss", "run": "boards"}
        url = f"{address}data/plugin/scalars/scalars"
        points = []
        while not points:  # TensorBoard reads the folder a moment after it is up
            answer = requests.get(url, params=asked, timeout=30)
            points = answer.json() if answer.ok else []
        assert tuple((step, round(value, 3)) for _, step, value in points) == STEPS
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
    put(cloud, "tb-nothing", results={"projector_config.pbtxt": b"/etc/passwd"})
    done = cloud.run("tensorboard", "tb-sweep", "tb-nothing", "--once")
    assert done.code == 0 and "2 files new or changed in" in done.err, done.err
    folder = Path(done.out.strip())
    assert folder.parent == cloud.home / ".berg/tensorboard"
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert files == {"tb-sweep/0/a/tfevents.0", "tb-sweep/1/a/tfevents.1"}
    again = cloud.run("tensorboard", "tb-sweep", "tb-nothing", "--once")
    assert f"0 files new or changed in {folder}" in again.err, again.err
    # TensorBoard has a file open: one that grew is the same file with a new end.
    grown = folder / "tb-sweep/0/a/tfevents.0"
    inode = grown.stat().st_ino
    for content in (b"12345", b"otherwise"):
        cloud.bucket.write("berg_results/tb-rows/0/a/tfevents.0", content)
        assert tensorboard.follow(cloud.config, ("tb-sweep", "tb-nothing"), folder, {}) == 1
        assert grown.read_bytes() == content and grown.stat().st_ino == inode
    made: tensorboard.Made = {}
    for count in (1, 2):
        cloud.bucket.write(
            "berg_results/tb-rows/0/metrics.jsonl", b'{"step": 1, "loss": 2}\n' * count
        )
        tensorboard.follow(cloud.config, ("tb-sweep",), folder, made)
        assert made[folder / "tb-sweep/0/metrics.jsonl"][1] == {"loss": count}
    done = cloud.run("tensorboard", "tb-sweep/1", "--once")
    assert (Path(done.out.strip()) / "tb-sweep/1/a/tfevents.1").read_bytes() == b"123"
    cloud.fails("tensorboard", "tb-nothing", "--once", says="tb-nothing has nothing to show yet")
    cloud.fails("tensorboard", "no-such-job", says="berg list")

"""`berg sync`, `berg ssh` and `berg open` on a devbox."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Cloud, commit


@pytest.fixture
def box(cloud: Cloud, project: Path) -> Iterator[str]:
    (project / "old").mkdir()
    (project / "old/a.py").write_text("a\n")
    commit(project)
    name = "syncbox"
    done = cloud.run("devbox", "-g", "0", "-n", name, "--install", "none", "-y", cwd=project)
    assert done.code == 0, done.err
    end = time.monotonic() + 60
    while '"state": "RUNNING"' not in cloud.read(f".berg/jobs/{name}_state.json").decode():
        assert time.monotonic() < end, cloud.log(name)
        time.sleep(0.5)
    yield name
    cloud.run("kill", "-y", "--now", name)


def test_what_changes_is_sent_and_what_was_made_there_stays(
    cloud: Cloud, project: Path, box: str
) -> None:
    def there(command: str) -> str:
        return cloud.run("ssh", box, "--", command, cwd=project).out

    def sync(*options: str) -> str:
        done = cloud.run("sync", box, "--once", *options, cwd=project)
        assert done.code == 0, done.err
        return done.err

    assert there("pwd; echo $BERG_JOB; command -v tt").split()[1:] == [box, "/usr/local/bin/tt"]
    there("echo mine >own.txt; echo mine >old/own.txt; git add own.txt")
    (project / "train.py").write_text("print('second')\n")
    (project / "new file.py").write_text("print('new')\n")
    (project / ".env").write_text("TOKEN=x\n")
    assert ".env" in sync()
    assert there("python3 train.py; python3 'new file.py'; ls -A").split() == [
        "second", "new", ".git", "new", "file.py", "old", "own.txt", "train.py"
    ]  # fmt: skip
    (project / "new file.py").unlink()
    (project / "old/a.py").unlink()
    sync("--send-secrets")
    assert there("ls -A; ls old").split() == [
        ".env", ".git", "old", "own.txt", "train.py", "own.txt"
    ]  # fmt: skip
    there("cd /; timeout 40 python3 -m http.server 8766 >/dev/null 2>&1 &")
    words = [sys.executable, "-c", "from berg.cli import main; main()"]
    env = {**os.environ, "BERG_HOME": str(cloud.home / ".berg")}
    tunnel = subprocess.Popen(
        [*words, "open", box, "8766", "--no-browser"], env=env, stdout=subprocess.PIPE, text=True
    )
    assert tunnel.stdout
    url = tunnel.stdout.readline().strip()
    assert b"Directory listing" in urllib.request.urlopen(url, timeout=10).read()
    tunnel.send_signal(signal.SIGINT)
    assert tunnel.wait(10) == 130
    other = project.parent / "other"
    other.mkdir()
    (other / "x").write_text("")
    commit(other)
    done = cloud.run("sync", box, "--once", cwd=other)
    assert done.code == 1 and "proj" in done.err

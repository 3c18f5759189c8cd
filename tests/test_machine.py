"""What a machine does, without one: its startup script, its worker's decisions, and its command's processes."""

import fcntl
import hashlib
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import Cloud, until, write
from inside import fresh, mirrored, stand_ins
from records import CODE, machine

from berg import BergError, boot, gce, install, machines, rows, worker
from berg import job as jobs
from berg.bucket import Bucket, Changed
from berg.command import Command
from berg.config import Config
from berg.job import Job, State
from berg.worker import Ending, Facts, NotMine, Run

# --- the command's processes


COMMANDS = """
import json, os, subprocess, sys, time
from pathlib import Path
import berg.command
from berg.command import Command

folder, said = Path(sys.argv[1]), {}
command = Command(f"test-{os.getpid()}")
if sys.argv[2:] and command.group:  # as on an older kernel
    command.group.rmdir()
    command.group = None

def start(line, *ready):
    command.start(["bash", "-c", line], folder, {**os.environ, "OWN": "own"}, folder / "log")
    while not all((folder / name).exists() for name in ready):
        time.sleep(0.02)

def end():
    while (code := command.poll()) is None:
        command.kill_late()
        time.sleep(0.02)
    return code, command.end_leftovers(), command.members()

(folder / "read").touch()
own = subprocess.Popen(["sleep", "100"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
command.spared.add(own.pid)
start("cat; pwd; echo $OWN; echo wrong >&2; exit 7")
said["fails"] = end()
start("kill -9 $$")
said["is killed"] = end()
start("for n in 1 2; do setsid bash -c 'trap \\"echo late >late$0; exit\\" TERM; touch up$0; while :; do sleep 0.05; done' $n & "
      "done; until [ -e up1 -a -e up2 ]; do sleep 0.02; done", "up1", "up2")
said["leaves two"] = end()
berg.command.LEFTOVER_GRACE = 0.2
start("(trap '' TERM; touch stays; exec sleep 100) & until [ -e stays ]; do sleep 0.02; done; exit 4", "stays")
said["leaves one that stays"] = end()
(folder / "inner").write_text(
    "trap 'echo >>heard' TERM; exec 5>written 6<read; touch ready; until [ -e over ]; do sleep 0.05; done"
)
writes = "trap : TERM; bash inner & until [ -e over ]; do sleep 0.05; done; exit 3"
start(writes, "ready")
with command.frozen() as members:
    files = [Path(f"/proc/{pid}/stat") for pid in members]
    states = [file.read_text().rpartition(") ")[2][0] for file in files if file.exists()]
said["stopped"] = "T" in states and not {*states} - {*"TZ"} and os.getpid() not in members and own.pid not in members
command.ask_to_end(60)
while not (folder / "heard").exists():
    time.sleep(0.02)
command.ask_to_end(0)
time.sleep(0.1)
command.kill_late()
(folder / "over").touch()
said["asked"] = end()
said["heard"] = len((folder / "heard").read_text().split("\\n")) - 1
inodes = [(folder / name).stat().st_ino in command.cut for name in ("written", "read")]
start("trap '' TERM; touch deaf; while :; do sleep 0.05; done", "deaf")
said["cut"], said["cut of the next"] = inodes, len(command.cut)
command.ask_to_end(0.1)
said["deaf"] = end()
said["own"], _ = own.poll(), own.kill()
said["group"] = bool(command.group and command.group.exists())
print(json.dumps(said))
"""


@pytest.mark.parametrize("more", [[], ["without cgroups"]])
def test_processes_of_a_command_end_together_and_only_they(tmp_path: Path, more: list[str]) -> None:
    words = [sys.executable, "-c", COMMANDS, str(tmp_path), *more]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, input="typed\n")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    code, left, after = said.pop("leaves two")
    assert code == 0 and left >= 2 and after == [] and (tmp_path / "late1").exists()
    assert (tmp_path / "late2").read_text() == "late\n"
    (code, _, after), (deaf, *_) = said.pop("asked"), said.pop("deaf")
    assert (code, after, deaf) == (3, [], 137), said
    assert said == {
        "fails": [7, 0, []], "is killed": [137, 0, []], "stopped": True, "heard": 1,
        "cut": [True, False], "cut of the next": 0, "own": None, "group": False,
        "leaves one that stays": [4, 1, []],
    }  # fmt: skip
    assert (tmp_path / "log").read_text().startswith(f"{tmp_path}\nown\nwrong\n")


LATER = """
import os, subprocess, sys, time
from pathlib import Path
from berg.command import Command

folder = Path(sys.argv[1])
if sys.argv[2:] == ["first"]:
    command = Command("test-first")
    line = "setsid bash -c 'exec 5>open; touch up; sleep 100'"
    command.start(["bash", "-c", line], folder, {**os.environ}, folder / "log")
    while not (folder / "up").exists():
        time.sleep(0.02)
    os._exit(0)
if sys.argv[2:] == ["second"]:
    command = Command("test-second")
    command.kill_leftovers()
    left = [row for row in subprocess.run(["ps", "axo", "stat,args"], capture_output=True, text=True)
        .stdout.splitlines() if "exec 5>open" in row and row[0] != "Z" and "-c" in row and "setsid" not in row]
    print((folder / "open").stat().st_ino in command.cut, command.top == os.getpid(), len(left))
    sys.exit()
import ctypes
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
for which in ("first", "second"):
    subprocess.run([sys.executable, "-c", os.environ["CODE"], sys.argv[1], which], check=True)
"""


def test_a_new_worker_ends_what_the_command_of_a_dead_one_left(tmp_path: Path) -> None:
    words = [sys.executable, "-c", LATER, str(tmp_path)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=120, env={**os.environ, "CODE": LATER}
    )
    assert done.stdout == "True True 0\n", done.stdout + done.stderr


# --- the startup script


class Google(http.server.ThreadingHTTPServer):
    """The metadata of a machine, and what it asks of Google; `objects` are those of its bucket."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.instance: dict[str, Any] = {
            "id": 7, "name": "box", "zone": "projects/1/zones/us-central1-a", "attributes": {},
            "networkInterfaces": [{"ip": "10.0.0.5"}], "preempted": "FALSE",
            "maintenanceEvent": "NONE",
        }  # fmt: skip
        self.objects: dict[str, bytes] = {}
        self.asked: list[tuple[str, str, bytes]] = []
        self.refusals: list[int] = []  # codes of the next answers; 0: the right one

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Answers(http.server.BaseHTTPRequestHandler):
    def answer(self) -> None:
        google = self.server
        assert isinstance(google, Google)
        path, top = self.path, "/computeMetadata/v1/"
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        known = {
            f"{top}instance/?recursive=true": json.dumps(google.instance),
            f"{top}instance/attributes/?recursive=true": json.dumps(google.instance["attributes"]),
            f"{top}instance/name": google.instance["name"],
            f"{top}instance/zone": google.instance["zone"],
            f"{top}project/project-id": "proj-1",
            f"{top}instance/service-accounts/default/token": '{"access_token": "of-box"}',
        }
        is_metadata = path.startswith(top)
        is_known = self.headers.get("Metadata-Flavor") == "Google" if is_metadata else True
        if not is_metadata:
            google.asked.append((self.command, path, data))
            is_known = self.headers.get("Authorization") == "Bearer of-box"
        name = path.rpartition("/o/")[2].removesuffix("?alt=media")
        content = google.objects.get(name, known.get(path, b"" if self.command != "GET" else None))
        code = 200 if is_known and content is not None else 404 if is_known else 401
        if google.refusals:
            code = google.refusals.pop(0) or code
        body = content.encode() if isinstance(content, str) else content or b""
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    with Google() as server:
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        for module in (boot, machines):
            monkeypatch.setattr(module, "HOST", server.address)
        monkeypatch.setenv("no_proxy", "*")
        server.instance["attributes"] = {"berg-endpoint": f"http://{server.address}"}
        yield server
        server.shutdown()


def door(folder: Path) -> dict[str, Path]:
    """Where a machine takes guests."""
    names = {"GUESTS": "", "OPEN": "open", "DOOR": "door"}
    return {f"berg.boot.{name}": folder / path for name, path in names.items()}


GROUP = "regions/us-central1/instanceGroupManagers/j"
OWN = "zones/us-central1-a/instances/box"


@pytest.mark.parametrize(
    ("told", "ended", "method", "path"),
    [
        ({}, boot.OVER, "DELETE", OWN),
        ({}, boot.CONTINUES, "DELETE", OWN),
        ({}, boot.LEAVES, "DELETE", OWN),
        ({}, None, "DELETE", OWN),
        ({"created-by": f"projects/1/{GROUP}"}, boot.OVER, "DELETE", GROUP),
        ({"created-by": f"projects/1/{GROUP}"}, boot.CONTINUES, "DELETE", OWN),
        ({"created-by": f"projects/1/{GROUP}"}, boot.LEAVES, "POST", f"{GROUP}/deleteInstances"),
        ({"created-by": f"projects/1/{GROUP}"}, None, "DELETE", GROUP),
        ({"created-by": f"projects/1/{GROUP}", "berg-rows": "1"}, None, "POST",
         f"{GROUP}/deleteInstances"),
        ({"created-by": "projects/1/other/thing"}, boot.OVER, "DELETE", OWN),
        ({"berg-rows": "1"}, None, "DELETE", OWN),
        ({"berg-devbox": "1"}, None, "POST", f"{OWN}/stop?discardLocalSsd=true"),
        ({"berg-devbox": "1"}, boot.STOPS, "POST", f"{OWN}/stop?discardLocalSsd=true"),
        ({"berg-devbox": "1"}, boot.OVER, "DELETE", OWN),
    ],
)  # fmt: skip
def test_a_machine_ends_as_its_job_did(
    google: Google, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    told: dict[str, str], ended: int | None, method: str, path: str,
) -> None:  # fmt: skip
    slept: list[float] = []
    stand_ins(monkeypatch, {**door(tmp_path), "time.sleep": slept.append})
    boot.OPEN.touch()
    google.instance["attributes"] |= told
    google.refusals = [400]
    boot.delete_machine(ended)
    ((asked, where, body),) = google.asked
    assert (asked, where) == (method, f"/compute/v1/projects/proj-1/{path}")
    listed = {"instances": [OWN], "skipInstancesOnValidationError": True}
    assert not path.endswith("deleteInstances") or json.loads(body) == listed
    assert slept == [60] and not boot.OPEN.exists()


def test_what_is_not_what_was_submitted_is_not_run(google: Google) -> None:
    facts = {**google.instance["attributes"], "berg-bucket": "b"}
    google.objects["a%2Fb"] = b"content"
    google.refusals = [503, 0, 403]  # is asked again: new rights take minutes to count
    right = hashlib.sha256(b"content").hexdigest()
    assert boot.bring(facts, "a/b", right) == b"content"
    with pytest.raises(OSError, match="is not what was submitted"):
        boot.bring(facts, "a/b", right[::-1])
    before = len(google.asked)
    with pytest.raises(OSError, match="404"):
        boot.bring(facts, "no", right)
    assert len(google.asked) == before + 1


WORKER = """
import os, sys
from pathlib import Path
folder = Path(os.environ["BERG_ROOT"])

def main():
    codes = (folder / "codes").read_text().split()
    (folder / "codes").write_text(" ".join(codes[1:]))
    with (folder / "words").open("a") as file:
        print(*sys.argv[1:], "-", file=file)
    if codes[0] == "wait":
        import time
        (folder / "up").touch()  # the signal ends it, as before a worker listens
        time.sleep(100)
    if codes[0] == "raise":
        raise ValueError("oh no")
    if codes[0] == "killed":
        os.kill(os.getpid(), 9)
    sys.exit(int(codes[0]))

def give_up():
    (folder / "gave-up").write_text(sys.argv[1])
"""


def boots(google: Google, root: Path, codes: str) -> dict[str, Any]:
    """A startup script as a program: its words and environment."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("berg/__init__.py", "")
        archive.writestr("berg/worker.py", WORKER)
    google.objects["app.zip"] = packed.getvalue()
    sha256 = hashlib.sha256(packed.getvalue()).hexdigest()
    google.instance["attributes"] |= {
        "berg-bucket": "b", "berg-job": "box", "berg-dist": "app.zip", "berg-dist-sha256": sha256,
    }  # fmt: skip
    (root / "berg/venv/bin").mkdir(parents=True)
    (root / "berg/venv/bin/python").symlink_to(sys.executable)
    (root / "codes").write_text(codes)
    own = {"BERG_ROOT": str(root), "GCE_METADATA_HOST": google.address}
    return {"args": [sys.executable, boot.__file__, "work"], "env": {**os.environ, **own}}


@pytest.mark.parametrize(
    ("codes", "path", "says", "reports"),
    [
        ("0", GROUP, "", 0),
        ("75", OWN, "", 0),
        ("76", f"{GROUP}/deleteInstances", "", 0),
        ("77", f"{OWN}/stop?discardLocalSsd=true", "", 0),
        ("raise killed 0", GROUP, "", 2),
        ("1 1 78 1 1 75", OWN, "", 4),  # an attempt that begins has its tries
        ("1 1 raise", GROUP, "worker died 3 times: ValueError: oh no", 3),
        ("1 1 killed", GROUP, "worker died 3 times: it was killed", 3),
        ("78 1 1 raise", GROUP, "worker died 3 times: ValueError: oh no", 3),
    ],
)
def test_a_worker_that_dies_begins_again_and_its_end_is_that_of_the_machine(
    google: Google, tmp_path: Path, codes: str, path: str, says: str, reports: int
) -> None:
    script = boots(google, tmp_path, codes)
    google.instance["attributes"]["created-by"] = f"projects/1/{GROUP}"
    (tmp_path / "berg/jobs").mkdir()
    (tmp_path / "berg/jobs/open").touch()  # it was on before
    done = subprocess.run(**script, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    *before, (_, last, _) = google.asked
    assert last == f"/compute/v1/projects/proj-1/{path}"
    logs = [data for _, path, data in before if "/upload/" in path and "logs%2Fbox%2Fbox." in path]
    assert len(logs) == reports and all(b"[berg] the worker ended with" in data for data in logs)
    gave_up = tmp_path / "gave-up"
    assert says in gave_up.read_text() if says else not gave_up.exists()
    assert not (tmp_path / "berg/jobs/open").exists()
    assert (tmp_path / "berg/machine").read_text() == "7 box"


def test_a_worker_after_the_signal_of_a_shutdown_hears_of_it(
    google: Google, tmp_path: Path
) -> None:
    with subprocess.Popen(**boots(google, tmp_path, "wait 0"), stdout=subprocess.DEVNULL) as script:
        until((tmp_path / "up").exists)
        script.send_signal(signal.SIGTERM)
        assert script.wait(100) == 0
    assert (tmp_path / "words").read_text() == "-\nstopping -\n"
    assert not any("/upload/" in path for _, path, _ in google.asked)  # of a death in the log


def test_a_machine_without_what_was_submitted_ends_and_says_why(
    google: Google, tmp_path: Path
) -> None:
    script = boots(google, tmp_path, "0")
    google.objects["app.zip"] += b"more"
    done = subprocess.run(**script, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and not (tmp_path / "words").exists(), done.stderr
    *_, (_, log, data), (method, last, _) = google.asked
    assert "logs%2Fbox%2Fbox." in log and b"not what was submitted" in data
    assert (method, last) == ("DELETE", f"/compute/v1/projects/proj-1/{OWN}")


def test_systemd_starts_the_script_again_and_deletes_the_machine_of_one_that_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, script = tmp_path / "run/systemd/system", f"{sys.executable} {tmp_path}/boot.py"
    place.mkdir(parents=True)
    done, own = Mock(return_value=SimpleNamespace(returncode=0)), {"berg.boot.BERG": tmp_path}
    own |= {"berg.boot.Path": lambda name: Path(name.replace("/run/", f"{tmp_path}/run/"))}
    stand_ins(monkeypatch, {**own, "subprocess.run": done})
    assert boot.unit()
    start = ["systemctl", "start", "--no-block", "berg"]
    assert [each.args[0] for each in done.call_args_list] == [["systemctl", "daemon-reload"], start]
    lines = {f"ExecStart={script} work", "Restart=on-failure", "OnFailure=berg-delete.service",
             "KillMode=mixed", "TimeoutStopSec=600", "OOMPolicy=continue"}  # fmt: skip
    assert lines <= {*(place / "berg.service").read_text().splitlines()}
    assert f"\nExecStart={script} delete\n" in (place / "berg-delete.service").read_text()


def test_a_python_for_berg_is_made_whole_or_again(google: Google, tmp_path: Path) -> None:
    uv = b'#!/bin/sh\necho "$*" >>"$(dirname "$0")/asked"\n[ -e "$(dirname "$0")/works" ]\n'
    google.objects["uv"] = uv
    facts = {
        **google.instance["attributes"], "berg-bucket": "b", "berg-packages": "one==1 two==2",
        "berg-uv": "uv", "berg-uv-sha256": hashlib.sha256(uv).hexdigest(),
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boot, "BERG", tmp_path)
        with pytest.raises(subprocess.CalledProcessError):
            boot.python_for(facts)
        (tmp_path / "works").touch()
        (tmp_path / "venv/bin").mkdir(parents=True)
        (tmp_path / "venv/bin/python").touch()  # of the first try
        python = boot.python_for(facts)
        assert python == boot.python_for(facts) == str(tmp_path / "venv/bin/python")
    first, *made = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[:2] for line in (first, *made)] == [
        ["venv", "-q"], ["venv", "-q"], ["pip", "install"]
    ]  # fmt: skip
    assert made[-1].endswith(f"--python {python} one==1 two==2") and "--clear" in first


def test_a_disk_of_another_machine_has_what_was_installed_and_nothing_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins(monkeypatch, {"berg.boot.ROOT": tmp_path, "berg.boot.BERG": tmp_path / "berg"})
    for name in ("berg/venv", "berg/row-1", "code/proj", "berg_results/one"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("berg/began", "berg/env", "berg/uv", "berg/boot.py"):
        (tmp_path / name).write_text("x")
    boot.clear_others("1", "first")
    boot.clear_others("1", "first")  # it was on before
    assert (tmp_path / "berg/began").exists() and (tmp_path / "code/proj").exists()
    boot.clear_others("2", "second")
    here = {path.name for path in (tmp_path / "berg").iterdir()}
    assert here == {"venv", "env", "uv", "boot.py", "machine"}
    assert (tmp_path / "from-first/code/proj").is_dir() and not (tmp_path / "code").exists()
    assert (tmp_path / "from-first/berg_results/one").is_dir()
    assert (tmp_path / "berg/machine").read_text() == "2 second"


def test_a_machine_takes_guests_until_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins(monkeypatch, door(tmp_path))
    boot.open_door()
    assert boot.OPEN.exists() and boot.guests() == {}
    lines = f"trap 'touch {tmp_path}/told; exit' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    (tmp_path / "one").mkdir()
    words = ["flock", "--no-fork", str(tmp_path / "one/lock"), "bash", "-c", lines]
    with subprocess.Popen(words) as guest:
        until((tmp_path / "up").exists)
        (tmp_path / "one/lock").write_text(str(guest.pid))
        assert boot.guests() == {"one": guest.pid}
        assert not boot.close(is_forced=False) and boot.OPEN.exists()
        assert boot.close(is_forced=True) and not boot.OPEN.exists()
        boot.end_guests(100)
        assert guest.wait(10) == 0 and (tmp_path / "told").exists()
    assert boot.guests() == {} and boot.close(is_forced=False)
    with boot.locked(tmp_path / "one/lock") as held:
        how = fcntl.LOCK_EX | fcntl.LOCK_NB
        assert held and boot.locked(tmp_path / "one/lock", how) is None


def test_a_guest_is_told_by_its_laptop_and_leaves_nothing_that_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_host = {"berg-devbox": "1", "berg-job": "host", "berg-bucket": "b"}
    assert boot.told(of_host) == of_host
    own = {"berg.boot.IS_GUEST": True, "berg.boot.BERG": tmp_path / "guest/berg"}
    stand_ins(monkeypatch, own)
    for ended, is_unsaved, stays in [(None, 0, 1), (0, 1, 1), (boot.CONTINUES, 0, 0)]:
        boot.BERG.mkdir(parents=True, exist_ok=True)
        (tmp_path / "guest/facts.json").write_text('{"berg-job": "guest"}')
        assert boot.told(of_host) == {"berg-job": "guest", "berg-bucket": "b"}
        (boot.BERG / "unsaved").touch() if is_unsaved else None
        boot.delete_machine(ended)
        assert boot.BERG.exists() == bool(stays)
        (boot.BERG / "unsaved").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("before", "upper", "after"),
    [("", "", "H,127.0.0.1,localhost"), ("a,b", "c", "a,b,H,127.0.0.1,localhost"),
     ("", "c", "c,H,127.0.0.1,localhost"), ("*", "", "*")],
)  # fmt: skip
def test_the_metadata_are_reached_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, before: str, upper: str, after: str
) -> None:
    monkeypatch.setenv("NO_PROXY", upper)
    monkeypatch.setenv("no_proxy", before)
    boot.bypass_proxy()
    assert os.environ["no_proxy"] == after.replace("H", boot.HOST.partition(":")[0])
    assert os.environ["NO_PROXY"] == (os.environ["no_proxy"] if before != "*" else upper)


# --- the worker's decisions


def facts(**values: Any) -> Facts:
    plain = {"id": "7", "name": "box", "zone": "us-central1-a", "address": "10.0.0.5"}
    return Facts(**{**plain, "attributes": {}, "preempted": False, "maintained": False, **values})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes what a worker knows of a job, whose folders are here."""
    paths = {
        "worker.HOME": "berg", "worker.BEGAN": "began", "worker.ENDED": "ended", "code.ROOT": "",
        "worker.KILLS": "kills", "worker.RESULTS": "berg_results", "machines.SSH": "ssh",
        "machines.SSHD": "sshd", "machines.HOSTFILE": "hostfile", "machines.KEY": "ssh/key",
        "machines.MPI": "mpi", "machines.TT": "tt",
    }  # fmt: skip
    stand_ins(monkeypatch, {f"berg.{name}": tmp_path / path for name, path in paths.items()})
    monkeypatch.setattr(worker, "SIGNALLED", [])
    monkeypatch.setattr(jobs, "login_file", lambda *_: str(tmp_path / "login"))

    def make(bucket: Bucket | None = None, rank: int = 0, **values: Any) -> Run:
        about = {"cmd": "true", "repo": "proj", "code": CODE, "results": "j", "max_seconds": 3600}
        job = Job(**{"name": "j", **about, **values})
        state = State(job.name, results=job.results, id=job.id, machines=job.machines)
        state.created_at = state.times["SUBMITTED"] = jobs.now()
        state.is_devbox = job.is_devbox
        where = bucket or Bucket(Config(bucket="none"))
        log = tmp_path / "log"
        since = {"berg-since": str(time.clock_gettime(time.CLOCK_BOOTTIME))}
        mine = facts(attributes=since)
        return Run(where.config, where, mine, job, state, 0, [], log, Command(""), rank)

    yield make


@pytest.mark.parametrize(
    ("most", "passed", "state", "ends", "says"),
    [
        (3600, 3200, "RUNNING", False, ""),
        (3600, 3280, "RUNNING", True, "(--max-hours)"),  # 300 seconds for the results, 30 of grace
        (100, 60, "RUNNING", False, ""),
        (100, 75, "RUNNING", True, "(--max-hours)"),  # a fifth and a tenth
        (100, 99, "INSTALLING", True, "(--max-hours) while it was INSTALLING"),
        (100, 99, "STARTING", True, "(--max-hours) while it was STARTING"),
    ],
)
def test_time_is_kept_for_the_last_results(
    run: Any, most: int, passed: int, state: str, ends: bool, says: str
) -> None:
    for cmd, over in (("true", "FAILED"), ("", "STOPPED")):
        made = run(cmd=cmd, max_seconds=most)
        made.state.state = state
        began = time.clock_gettime(time.CLOCK_BOOTTIME) - passed
        made.facts.attributes["berg-since"] = str(began)
        ending = worker.out_of_time(made)
        assert bool(ending) == ends
        if ending:
            assert ending.state == over and ending.reason.endswith(says) and ending.is_firm
            assert ending.seconds == min(300, most / 5)


TAKEN = {"preempted": "TRUE"}
MAINTAINED = {"maintenanceEvent": "TERMINATE_ON_HOST_MAINTENANCE"}


@pytest.mark.parametrize(
    ("name", "cmd", "told", "attributes", "signalled", "state", "says"),
    [
        ("j", "true", {}, {}, False, "", ""),
        ("j", "true", {}, {"berg-kill-j": "ann"}, False, "KILLED", "killed by ann"),
        ("j", "true", {}, {"berg-kill-ID": "ann"}, False, "KILLED", "killed by ann"),
        ("j", "true", {}, {"berg-kill-other": "ann", "berg-kill-3": "ann"}, False, "", ""),
        ("j/3", "true", {}, {"berg-kill-3": "ann"}, False, "KILLED", "killed by ann"),
        ("j/3", "true", {}, {"berg-kill-j": "ann"}, False, "KILLED", "killed by ann"),
        ("j/3", "true", {}, {"berg-kill-4": "ann"}, False, "", ""),
        ("j", "", {}, {"berg-stop": "new"}, False, "STOPPED", "stopped by new"),
        ("j", "true", TAKEN, {"berg-stop": "new"}, False, "KILLED", "stopped by new"),
        ("j", "", {}, {"berg-stop": "old"}, False, "", ""),
        ("j", "", TAKEN, {"berg-kill-j": "ann"}, False, "KILLED", "killed by ann"),
        ("j", "true", TAKEN, {}, False, "LOST", "Google took the machine"),
        ("j", "", TAKEN, {}, False, "STOPPED", "Google took the machine"),
        ("j", "true", MAINTAINED, {}, False, "", ""),  # there is time until the signal
        ("j", "true", MAINTAINED, {}, True, "LOST", "to maintain its host"),
        ("j", "", MAINTAINED, {}, True, "STOPPED", "to maintain its host"),
        ("j", "true", {}, {}, True, "KILLED", "the machine was shut down"),
        ("j", "", {}, {}, True, "STOPPED", "the machine was shut down"),
    ],
)  # fmt: skip
def test_what_ends_a_job_from_outside(
    google: Google, run: Any, name: str, cmd: str, told: dict[str, str],
    attributes: dict[str, str], signalled: bool, state: str, says: str,
) -> None:  # fmt: skip
    returns = told is not TAKEN or bool(cmd)
    made = run(name=name, cmd=cmd, returns=returns)
    made.facts.attributes["berg-stop"] = "old"
    google.instance |= told
    google.instance["attributes"] = {
        key.replace("ID", made.job.id): text for key, text in attributes.items()
    }
    if signalled:
        worker.SIGNALLED.append(1.0)
    ending = worker.killed_or_taken(made)
    assert (ending.state if ending else "") == state and (ending is None) == (not state)
    if ending:
        assert says in ending.reason
        is_user = "by" in says
        assert (ending.is_firm, ending.is_loss) == (is_user, returns and not is_user)
        times = (worker.GRACE, worker.SAVING) if is_user else (worker.TAKEN_GRACE, worker.TAKEN)
        assert (ending.grace, ending.seconds) == times
    google.instance["attributes"] = {"berg-kill-j": "ann"}
    if not signalled:  # the metadata are read once a second
        assert worker.killed_or_taken(made) is None


def test_a_machine_knows_itself_and_lets_another_laptop_in(google: Google, run: Any) -> None:
    google.instance |= {"preempted": "TRUE"}
    google.instance["attributes"] = {"ssh-keys": "root:ssh-ed25519 AAA me\nother:ssh-rsa BBB"}
    found = Facts.read()
    assert (found.id, found.name, found.zone) == ("7", "box", "us-central1-a")
    assert (found.address, found.preempted, found.maintained) == ("10.0.0.5", True, False)
    google.instance |= {"preempted": "FALSE"}
    made = run()
    assert worker.killed_or_taken(made) is None
    keys = machines.SSH / "authorized_keys"
    assert keys.read_text() == "ssh-ed25519 AAA me\n" and keys.stat().st_mode & 0o777 == 0o600


ROWS = [{"x": "1"}, {"x": "2"}]


@pytest.mark.parametrize(
    ("about", "rank", "ending", "code"),
    [
        ({}, 0, Ending("SUCCEEDED"), boot.OVER),
        ({"machines": 2}, 1, Ending("SUCCEEDED"), boot.CONTINUES),  # the first one ends the group
        ({"machines": 2, "returns": True}, 1, Ending("FAILED"), boot.OVER),
        ({}, 0, Ending("SUBMITTED"), boot.AGAIN),
        ({"returns": True}, 0, Ending("SUBMITTED", is_loss=True), boot.CONTINUES),
        ({"cmd": ""}, 0, Ending("FAILED"), boot.STOPS),
        ({"cmd": ""}, 0, Ending("KILLED"), boot.CONTINUES),
        ({"rows": ROWS, "machines": 2}, 0, Ending("LEFT"), boot.LEAVES),
        ({}, 0, None, boot.OVER),  # the job is another machine's
        ({"cmd": ""}, 0, None, boot.STOPS),
    ],
)
def test_a_worker_says_what_becomes_of_its_machine(
    run: Any, monkeypatch: pytest.MonkeyPatch,
    about: dict[str, Any], rank: int, ending: Ending | None, code: int,
) -> None:  # fmt: skip
    made, done = run(rank=rank, **about), list[Run]()
    made.facts.attributes |= {"berg-devbox": "1"} if made.job.is_devbox else {}
    last = replace(ending, then=done.append) if ending else NotMine("it is over")
    work = Mock(side_effect=[last])
    own = {
        "know": lambda: (made.config, made.facts), "claim": lambda *_: made,
        "sweep" if made.job.rows else "attempt": work, "signal.signal": lambda *_: None,
        "machines.beating": lambda _: nullcontext(), "sys.argv": ["worker", "stopping"],
    }  # fmt: skip
    stand_ins(monkeypatch, {f"berg.worker.{name}": value for name, value in own.items()})
    with pytest.raises(SystemExit) as ended:
        worker.main()
    assert ended.value.code == code and done == [made] * bool(ending) and worker.SIGNALLED


def test_the_end_of_an_attempt_is_noted_for_a_worker_that_goes_on(run: Any) -> None:
    made = run()
    worker.note_ending(made, Ending("FAILED", "oh no", 3, is_loss=True))
    assert worker.noted_ending(made) == Ending("FAILED", "oh no", 3, is_loss=True)
    made.state.attempt = 2
    assert worker.noted_ending(made) is None


def test_the_reason_names_the_code_the_memory_or_the_last_words(run: Any) -> None:
    made = run()
    made.log.write_text("x" * 30_000 + "\nValueError: wrong\n")
    assert worker.reason_of(made, 3) == "exit code 3: ValueError: wrong"
    for more in (0, 1000):
        worker.KILLS.write_text(str(worker.memory_kills() + more))
        assert worker.out_of_memory() == ""
    worker.KILLS.write_text("-1")  # as if the kernel had killed one since
    gigabytes = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    assert f"the machine's {gigabytes} GB of memory" in worker.reason_of(made, 137)
    assert worker.reason_of(made, 137).startswith("exit code 137: the kernel ended")


def test_a_line_of_berg_begins_a_line(run: Any) -> None:
    made = run()
    made.say("first")
    with made.log.open("a") as file:
        file.write("10 %")
    made.say("second: \udcff")  # of a file whose name is not UTF-8
    assert made.log.read_text() == "[berg] first\n10 %\n[berg] second: ?\n"
    assert worker.log_file(made.log.parent, made.facts) != made.log
    named = worker.log_file(made.log.parent / "new", made.facts)
    assert named.name.startswith("box.")
    (before := named.with_name("box.20200101T000000.log")).touch()
    assert worker.log_file(named.parent, made.facts) == before


def test_files_that_a_command_left_elsewhere_are_named_by_their_folder(
    run: Any, tmp_path: Path
) -> None:
    made = run()
    (repo := tmp_path / "code/proj").mkdir(parents=True)
    data = tmp_path / "data"
    write(data, {"old/before": "x" * 1_200_000})
    assert worker.written_elsewhere(made, [str(data)]) == []  # no command ran
    worker.BEGAN.write_text(made.title)
    until(lambda: time.time() > worker.BEGAN.stat().st_mtime + 0.02)
    write(data, dict.fromkeys(["deep/er/one", "deep/two"], "x" * 1_100_000))
    write(data, {"little/in-tmp": "which nobody misses"})
    for name in ("outputs", "__pycache__", ".venv"):
        write(repo, {f"{name}/file": "x" * 1_200_000})
    (data / "link").symlink_to("old/before")
    made.variables["BERG_SCRATCH_DIR"] = str(data / "ssd")
    skipped = ("data/ssd", "berg", "berg_results")
    write(tmp_path, {f"{folder}/file": "x" * 1_200_000 for folder in skipped})
    assert worker.written_elsewhere(made, [str(data), str(tmp_path)]) == [
        (str(data), "3 files, 2.2 MB"), (f"{data}/deep", "2 files, 2.2 MB"),
        (f"{repo}/outputs", "1 file, 1.2 MB"),
    ]  # fmt: skip


def test_a_step_is_done_again_and_once_more_at_the_end() -> None:
    steps: list[int] = []

    def step() -> None:
        steps.append(1)
        if len(steps) == 1:
            raise ValueError("which ends nothing")

    with worker.every(lambda: 0.001, step):
        until(lambda: len(steps) > 2)
    before = len(steps)
    with worker.every(lambda: 1000, step, last=True):
        until(lambda: len(steps) > before)
    assert len(steps) == before + 2

    def over() -> None:
        steps.append(2)
        raise NotMine

    with worker.every(lambda: 0, over):
        until(lambda: 2 in steps)
        time.sleep(0.05)
    assert steps.count(2) == 1


# --- several machines


def heard(made: Run, rank: int, phase: str, state: str = "", **about: Any) -> None:
    """Let a machine have heard of another one."""
    outcome = {"state": state, "exit_code": None, "reason": "", "is_loss": False, **about}
    made.peers.records[rank] = {"phase": phase, **outcome}


@pytest.mark.parametrize(
    ("rank", "each", "of_others", "lost", "expected"),
    [
        (0, True, {1: ("running", "")}, {}, None),
        (0, True, {1: ("ended", "SUCCEEDED")}, {}, None),
        (1, True, {0: ("ended", "SUCCEEDED")}, {}, None),
        (1, False, {0: ("ended", "SUCCEEDED")}, {}, ("SUCCEEDED", "j-0 has ended", False)),
        (1, False, {0: ("saved", "SUCCEEDED")}, {}, ("SUCCEEDED", "j-0 has ended", False)),
        (0, True, {1: ("ended", "FAILED")}, {}, ("FAILED", "j-1: FAILED", False)),
        (0, True, {1: ("saved", "KILLED")}, {}, ("KILLED", "j-1: KILLED", False)),
        (1, True, {1: ("ended", "FAILED")}, {}, None),  # its own
        (0, True, {}, {1: "it was silent"}, ("FAILED", "j-1 was lost: it was silent", True)),
        (1, True, {}, {1: "it was silent"}, None),
    ],
)
def test_what_other_machines_do_ends_a_command(
    run: Any, rank: int, each: bool, of_others: dict[int, tuple[str, str]], lost: dict[int, str],
    expected: tuple[str, str, bool] | None,
) -> None:  # fmt: skip
    made = run(rank=rank, machines=3, each=each, returns=True)
    for other, (phase, state) in of_others.items():
        heard(made, other, phase, state)
    made.peers.lost |= lost
    ending = machines.look(made)
    assert bool(ending) == bool(expected)
    if ending and expected:
        state, says, is_loss = expected
        assert (ending.state, ending.is_loss) == (state, is_loss) and says in ending.reason
    box = run(rank=rank, machines=3, cmd="")
    box.peers = made.peers
    assert machines.look(box) is None


def test_of_several_reasons_the_loss_of_a_machine_counts(run: Any) -> None:
    made = run(machines=2, each=True)
    failed = Ending("FAILED", "exit code 1", 1)
    assert machines.in_view_of_others(made, failed) is failed
    heard(made, 1, "ended", "FAILED", exit_code=4, reason="exit code 4")
    assert machines.in_view_of_others(made, failed) is failed
    ending = machines.in_view_of_others(made, Ending("SUCCEEDED", "", 0))
    assert (ending.state, ending.reason, ending.exit_code) == ("FAILED", "j-1: exit code 4", 4)
    assert machines.outcome(ending) == {
        "state": "FAILED", "exit_code": 4, "reason": "j-1: exit code 4", "is_loss": False
    }  # fmt: skip
    heard(made, 1, "saved", "LOST", reason="Google took the machine", is_loss=True)
    ending = machines.in_view_of_others(made, failed)
    assert (ending.state, ending.is_loss) == ("LOST", True)
    assert ending.reason == "j-1: Google took the machine"
    for firm in (Ending("KILLED", is_firm=True), Ending("LOST", "here", is_loss=True)):
        assert machines.in_view_of_others(made, firm) is firm
    made.peers.lost[1] = "it was silent"
    ending = machines.in_view_of_others(made, failed)
    assert (ending.reason, ending.is_loss) == ("j-1 was lost: it was silent", False)


@pytest.mark.parametrize(
    ("rank", "lost", "about", "is_last"),
    [
        (0, [], {}, True),
        (1, [], {}, False),
        (1, [0], {}, True),
        (2, [0], {}, False),
        (2, [0, 1], {}, True),
        (1, [0], {"returns": True}, False),
        (1, [0], {"cmd": ""}, False),
    ],
)
def test_the_first_machine_that_is_left_goes_last(
    run: Any, rank: int, lost: list[int], about: dict[str, Any], is_last: bool
) -> None:
    made = run(rank=rank, machines=3, **about)
    made.peers.lost |= dict.fromkeys(lost, "it was silent")
    assert machines.goes_last(made) == is_last


def test_machines_with_slow_passes_take_every_second_or_fourth_tick(run: Any) -> None:
    made = run(machines=2)
    now = int(time.time() / machines.TICK)
    for seconds, step in ((0, 1), (machines.TICK, 1), (3, 2), (5, 4), (17, 16)):
        made.pass_seconds = seconds
        number = machines.tick(made)
        assert number % step == 0 and now < number <= now + 5 + step


@pytest.mark.parametrize(
    ("port", "known"),
    [
        (22, "j-0,10.0.0.0 ssh-ed25519 K0\nj-1,10.0.0.1 ssh-ed25519 K1\n"),  # Google's images
        (2222,
         "[j-0]:2222,[10.0.0.0]:2222 ssh-ed25519 K0\n[j-1]:2222,[10.0.0.1]:2222 ssh-ed25519 K1\n"),
    ],
)  # fmt: skip
def test_programs_find_the_machines(run: Any, port: int, known: str) -> None:
    made = run(rank=1, machines=2, gpus=4)
    for rank in (0, 1):
        about = {"port": port, "host_keys": [f"ssh-ed25519 K{rank}"], "key": f"of {rank}"}
        made.peers.records[rank] = {"address": f"10.0.0.{rank}", "slots": 4, "ssh": about}
    with pytest.MonkeyPatch.context() as patch:
        hosts = machines.SSH.parent / "hosts"
        hosts.write_text("127.0.0.1 localhost")
        patch.setattr(machines, "Path", lambda text: hosts if text == "/etc/hosts" else Path(text))
        machines.introduce(made)
        machines.introduce(made)
    assert hosts.read_text() == "127.0.0.1 localhost\n10.0.0.0 j-0\n10.0.0.1 j-1\n"
    assert machines.HOSTFILE.read_text() == "j-0 slots=4\nj-1 slots=4\n"
    assert (machines.SSH / "authorized_keys").read_text() == "of 0\n"
    assert (machines.SSH / "known_hosts").read_text() == known
    options = [f"Port {port}", f"IdentityFile {machines.KEY}", "StrictHostKeyChecking yes"]
    lines = ["Host j-0 j-1 10.0.0.0 10.0.0.1", *(f"  {text}" for text in ("User root", *options))]
    assert (machines.SSH / "config").read_text().splitlines() == lines
    assert machines.variables(made) == {
        "BERG_NODE_RANK": "1", "BERG_NUM_NODES": "2", "BERG_HOSTS": "10.0.0.0,10.0.0.1",
        "BERG_HOSTFILE": str(machines.HOSTFILE), "MASTER_ADDR": "10.0.0.0", "MASTER_PORT": "29500",
        "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "4",
        "PET_MASTER_ADDR": "10.0.0.0", "PET_MASTER_PORT": "29500",
    }  # fmt: skip
    alone = run(gpus=0)
    machines.introduce(alone)
    assert machines.HOSTFILE.read_text() == f"localhost slots={os.cpu_count()}\n"
    own = {"MASTER_ADDR": "127.0.0.1", "PET_NPROC_PER_NODE": "1"}
    assert own.items() <= machines.variables(alone).items()


# --- records in the bucket


def submitted(made: Run) -> Run:
    """The run of a job whose records are in the bucket, as its laptop wrote them."""
    made.bucket.write(jobs.job_path(made.job.name), made.job.content(), 0)
    made.generation = jobs.write_state(made.bucket, made.state, 0)
    return made


def kept(made: Run) -> State:
    return jobs.read_state(made.bucket, made.job.name)[0]


def claimed(made: Run, **about: Any) -> Run:
    own = {"berg-job": made.job.name, "berg-job-sha256": made.job.sha256}
    return worker.claim(made.config, facts(attributes=own, **about))


def test_a_state_is_written_as_often_as_a_bucket_takes_it(cloud: Cloud, run: Any) -> None:
    made = run(cloud.bucket, name="paced")
    cloud.call("DELETE", "/_berg/requests")
    for step in ("STARTING", "INSTALLING", "RUNNING"):
        made.write_state(step)
    asked = cloud.call("GET", "/_berg/requests")["requests"]
    statuses = [row["status"] for row in asked if row["method"] == "storage.objects.insert"]
    assert statuses == [200, 200, 200]


def test_a_job_is_taken_by_its_machine_and_by_no_other(
    cloud: Cloud, google: Google, run: Any
) -> None:
    made = submitted(run(cloud.bucket, name="claims"))
    first = claimed(made, id="1")
    state = kept(made)
    assert (state.state, state.machine, state.machine_id) == ("STARTING", "box", "1")
    assert (
        state.zone == "us-central1-a" and "Started on box in us-central1-a" in first.log.read_text()
    )
    assert claimed(made, id="1").state.attempt == 1  # its worker begins again
    with pytest.raises(NotMine, match="runs on box in us-central1-a"):
        claimed(made, id="2")
    worker.BEGAN.write_text(first.title)
    before = kept(made)
    claimed(made, id="1")
    assert kept(made) == before  # its command has begun
    jobs.conclude(cloud.bucket, made.job, "KILLED", "")
    with pytest.raises(NotMine, match="is KILLED already"):
        claimed(made, id="1")
    other, later = (run(cloud.bucket, name="claims-2") for _ in range(2))
    submitted(other)
    cloud.bucket.write(jobs.job_path("claims-2"), later.job.content())
    with pytest.raises(NotMine):
        claimed(later)  # the state is that of another job


@pytest.mark.parametrize(
    ("about", "machine", "holder", "state"),
    [
        ({}, "", "7", "FAILED"), ({}, "", "8", "RUNNING"),  # another machine has the job
        ({"cmd": ""}, "", "7", "RUNNING"), ({"rows": ROWS, "machines": 2}, "-0", "7", "RUNNING"),
        ({"machines": 2}, "-0", "7", "FAILED"), ({"machines": 2}, "-1", "7", "RUNNING"),
    ],
)  # fmt: skip
def test_a_worker_that_died_for_good_ends_its_own_job_alone(
    cloud: Cloud, run: Any, monkeypatch: pytest.MonkeyPatch,
    about: dict[str, Any], machine: str, holder: str, state: str,
) -> None:  # fmt: skip
    made = run(cloud.bucket, name=fresh("died"), **about)
    made.state = replace(made.state, state="RUNNING", machine_id=holder)
    made.state.times["RUNNING"] = jobs.now()
    own = {"berg-job": made.job.name, "berg-job-sha256": submitted(made).job.sha256}
    here = made.config, facts(attributes=own, name=made.job.name + machine)
    argv = ["worker", "it died 3 times"]
    stand_ins(monkeypatch, {"berg.worker.know": lambda: here, "sys.argv": argv})
    worker.give_up()
    reason = argv[1] * (state == "FAILED")
    assert (kept(made).state, kept(made).reason) == (state, reason)


def test_a_machine_that_google_made_again_begins_the_next_attempt(
    cloud: Cloud, google: Google, run: Any
) -> None:
    made = submitted(run(cloud.bucket, name="returns", returns=True))
    first = claimed(made, id="1")
    first.state.times["STARTING"] = jobs.now(time.time() - 600)
    first.write_state("RUNNING", synced_until=jobs.now(time.time() - 100))
    again = claimed(made, id="2")
    assert again.state == kept(made) and (kept(made).attempt, kept(made).machine_id) == (2, "2")
    assert kept(made).seconds_before == pytest.approx(500, abs=5)
    assert "box was lost; this is attempt 2" in again.log.read_text()
    assert {*kept(made).times} == {"SUBMITTED", "STARTING"}


def test_a_state_is_written_by_who_has_the_job(cloud: Cloud, google: Google, run: Any) -> None:
    made = submitted(run(cloud.bucket, name="states"))
    mine = claimed(made)
    mine.wrote_state, mine.generation = -1, 1  # as if an answer had been lost
    mine.write_state("RUNNING")
    assert kept(made).state == "RUNNING" and {*kept(made).times} >= {"STARTING", "RUNNING"}
    began = kept(made).times["RUNNING"]
    mine.write_state("RUNNING", reason="x")
    assert (kept(made).times["RUNNING"], kept(made).reason) == (began, "x")
    follower = run(cloud.bucket, rank=1, name="states", machines=2)
    follower.write_state("FAILED")
    assert kept(made).state == "RUNNING"
    jobs.conclude(cloud.bucket, made.job, "KILLED", "now")
    with pytest.raises(NotMine):
        mine.write_state("RUNNING")
    assert (kept(made).state, kept(made).reason) == ("KILLED", "now")
    mine.write_state("KILLED", reason="now")  # the answer to its own last write may be lost
    other = submitted(run(cloud.bucket, name="states-2"))
    taken = claimed(other, id="1")
    theirs, generation = jobs.read_state(cloud.bucket, "states-2")
    theirs.machine_id = "2"
    jobs.write_state(cloud.bucket, theirs, generation)
    with pytest.raises(NotMine):
        taken.write_state("RUNNING")
    assert kept(other).machine_id == "2"


def test_a_command_begins_while_its_machine_has_the_job(
    cloud: Cloud, google: Google, run: Any, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    made = submitted(run(cloud.bucket, name="begins", cmd=f"touch {ran}"))
    made.cwd.mkdir(parents=True)
    made.command.spared |= {*made.command.members()}
    mirror, _ = mirrored(cloud, tmp_path / "berg_results", "begins")
    made.write_state("STARTING", machine_id="7")
    ending = worker.run_command(made, mirror)
    assert ending.state == "SUCCEEDED" and ran.exists()
    assert ending.seconds > 3000, "as long as bytes arrive, its results are sent"
    assert kept(made).state == "RUNNING" and kept(made).times["RUNNING"]
    ran.unlink()
    made.asked_state -= 5  # so long ago that another machine may have the job: and one has
    jobs.write_state(cloud.bucket, replace(kept(made), machine_id="8"), made.generation)
    with pytest.raises(NotMine):
        worker.run_command(made, mirror)
    assert not ran.exists()


def test_an_installation_of_one_s_own_fails_with_any_part_of_it(
    google: Google, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "VENV", tmp_path)
    monkeypatch.setattr(install, "program", lambda: "")
    made = run(install="false | true")
    made.repo.mkdir(parents=True)
    made.state.state = "INSTALLING"
    with pytest.raises(install.Failed):
        install.run(made)


def test_a_lost_machine_is_deleted_if_it_is_still_that_of_the_job(cloud: Cloud, run: Any) -> None:
    made = run(cloud.bucket, name="loses", machines=2)
    lost = machine(cloud, "loses-1")
    made.peers.lost[1] = "it was silent"
    heard(made, 1, "running", id="another")
    machines.delete_lost(made)
    assert gce.machines(cloud.config, "loses-1") == [lost]
    heard(made, 1, "running", id=lost.id)
    machines.delete_lost(made)
    until(lambda: not gce.machines(cloud.config, "loses-1"))


def test_the_end_has_its_reason_code_and_attempt(cloud: Cloud, run: Any) -> None:
    made = submitted(run(cloud.bucket, name="ends"))
    worker.conclude(made, Ending("SUBMITTED", "again", 3))
    assert (kept(made).attempt, kept(made).reason, kept(made).exit_code) == (2, "again", 3)
    made.state.attempt = 2
    worker.conclude(made, Ending("FAILED", "for good", 4))
    assert (kept(made).state, kept(made).attempt, kept(made).exit_code) == ("FAILED", 2, 4)
    headless = submitted(run(cloud.bucket, name="ends-2", machines=2))
    headless.rank = 1
    worker.conclude(headless, Ending("FAILED", "no", 1))
    assert kept(headless).state == "SUBMITTED"  # its first machine says it
    headless.peers.lost[0] = "it was silent"
    worker.conclude(headless, Ending("FAILED", "ends-2-0 was lost", 1))
    assert (kept(headless).state, kept(headless).exit_code) == ("FAILED", 1)


def test_a_log_goes_on_where_the_bucket_has_it(
    cloud: Cloud, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run(cloud.bucket, name="sends")
    monkeypatch.setattr(worker, "PIECE", 10)
    sender = worker.Sender(made, made.log)
    sender.send()  # there is no file yet
    made.log.write_text("0123456789abcdefghijklmno")
    sender.send()
    name = f".berg/logs/sends/{made.log.name}"
    assert cloud.read(name) == made.log.read_bytes()
    with made.log.open("a") as file:
        file.write("more")
    worker.Sender(made, made.log).send()  # of a worker that began again
    assert cloud.read(name) == made.log.read_bytes()
    made.log.write_text("another log")
    with pytest.raises(Changed):
        worker.Sender(made, made.log).send()
    assert cloud.read(name) == b"0123456789abcdefghijklmnomore"


def test_what_could_not_be_saved_is_said_and_fails_a_job(
    cloud: Cloud, google: Google, run: Any, tmp_path: Path, faults: Any
) -> None:
    order: list[int] = []

    def finished(name: str, ending: Ending) -> tuple[Run, Ending]:
        made = submitted(run(cloud.bucket, name=name, results=name, max_seconds=20))
        mirror, own = mirrored(cloud, tmp_path / name, name)
        (own / "file").write_text(name)
        os.mkfifo(own / "pipe")
        heard = lambda number: lambda _, ending: order.append(number) or ending  # noqa: E731
        made.features = [SimpleNamespace(ended=heard(number)) for number in (1, 2)]
        return made, worker.finish(made, mirror, ending)

    done = Ending("SUCCEEDED", "", 0, seconds=1)
    made, ending = finished("saves", done)
    assert ending == done and made.state.missing == {"saves/pipe": "a pipe"}
    assert "Not saved as it is: saves/pipe: a pipe" in made.log.read_text()
    assert made.log.read_text().endswith("[berg] Job saves SUCCEEDED\n")
    assert kept(made).state == "UPLOADING" and cloud.read("berg_results/saves/file") == b"saves"
    faults("storage.objects.insert", match="berg_results", status=403, times=None)
    made, ending = finished("loses", done)
    _, failed = finished("loses-too", Ending("FAILED", "exit code 3", 3, seconds=1))
    assert ending.state == "FAILED" and "results are not in the bucket" in ending.reason
    assert {"", "loses/file", "loses/pipe"} == {*made.state.missing}
    assert failed.reason == "exit code 3"
    assert order == [2, 1] * 3  # one feature hears what those below it made of the end


def test_a_machine_hears_how_far_the_others_are(
    cloud: Cloud, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [run(cloud.bucket, rank=rank, name="hears", machines=3) for rank in range(3)]
    first, second, third = made
    second.job.gpus, second.told["worker"] = 3, 5  # of a feature
    machines.tell(second, "ended", **machines.outcome(Ending("FAILED", "oh no", 4)))
    machines.tell(third, "come")
    machines.tell(first, "running")
    about = first.peers.records[1]
    assert (about["phase"], about["state"], about["reason"], about["exit_code"]) == (
        "ended", "FAILED", "oh no", 4
    )  # fmt: skip
    assert first.peers.records[2]["phase"] == "come" and not first.peers.lost
    known = {"address": "10.0.0.5", "id": "7", "attempt": 1, "slots": 3, "worker": 5}
    assert known.items() <= about.items() and first.peers.records[2]["slots"] == os.cpu_count()
    monkeypatch.setattr(machines, "SILENCE", 2)
    machines.tell(second, "saved")
    machines.listen(first)
    machines.beat(first)
    assert first.peers.missed[0] == 0 and not first.peers.lost
    for _ in range(2):
        machines.listen(first)
    assert first.peers.lost == {2: "it was silent for 4 seconds"}  # one that has saved may be
    assert first.peers.records[1]["reason"] == "oh no"  # what it told before
    later = run(cloud.bucket, rank=1, name="hears", machines=3)
    later.state.attempt = 2
    machines.tell(later, "come")
    assert later.peers.records.keys() == {1}  # of this attempt
    fresh = run(cloud.bucket, rank=0, name="hears", machines=3)
    machines.listen(fresh)
    assert fresh.peers.lost == {1: "Google made it again"}
    machines.tell(later, "replaced")
    later.peers.records.clear()
    machines.listen(later)
    assert later.peers.lost == {1: "Google made it again"} and not later.peers.records


def test_machines_wait_for_each_other_and_name_who_does_not_come(
    cloud: Cloud, google: Google, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (run(cloud.bucket, rank=n, name="meets", machines=2) for n in (0, 1))
    monkeypatch.setattr(machines, "MEETING", 0.3)
    with pytest.raises(BergError, match=r"1 of 2 machines did not come .*: meets-1"):
        machines.gather(first, "come")
    assert first.peers.lost == {1: "it did not come"}
    first.peers = machines.Peers()
    machines.tell(second, "come")
    machines.gather(first, "come")
    with worker.every(lambda: 0.05, lambda: machines.beat(first)):
        gathering = threading.Thread(target=machines.gather, args=[first, "ready"])
        gathering.start()
        gathering.join(1)
        assert gathering.is_alive()  # the other one has only come
        machines.tell(second, "ready")
        gathering.join(30)
        assert not gathering.is_alive()
    google.instance["attributes"] = {"berg-kill-meets": "ann"}
    second.state.attempt = first.state.attempt = 2
    first.peers = machines.Peers()
    first.next_word = 0
    with pytest.raises(worker.EndEarly) as told:
        machines.gather(first, "come")
    assert told.value.ending.reason == "killed by ann"


def test_the_end_waits_for_machines_that_work_still(
    cloud: Cloud, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (run(cloud.bucket, rank=n, name="joins", machines=2, each=True) for n in (0, 1))
    monkeypatch.setattr(machines, "LATE", 0)
    machines.tell(second, "running")
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(machines.join, first, Ending("SUCCEEDED", "", 0))
        time.sleep(1)
        assert not joining.done()
        machines.tell(second, "saved", **machines.outcome(Ending("SUCCEEDED", "", 0)))
        machines.listen(first)
        assert joining.result(60).state == "SUCCEEDED"


# --- rows of a sweep


VALUES = [{"x": str(number)} for number in range(4)]
BOTH = {"cmd": "train {x}", "rows": VALUES, "machines": 2}


def test_a_machine_takes_rows_that_no_other_one_has(
    cloud: Cloud, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = submitted(run(cloud.bucket, name="takes", results="takes", **BOTH))
    made.facts.name, made.facts.id = "takes-0", "1"
    other = run(cloud.bucket, rank=1, name="takes", results="takes", **BOTH)
    other.job, other.state = made.job, made.state
    other.facts.name, other.facts.id = "takes-1", "2"
    rows.begin(made)
    rows.begin(other)
    assert kept(made).state == "RUNNING" and kept(made).zone == "us-central1-a"
    assert "RUNNING" in kept(made).times
    mine, theirs = rows.take(made), rows.take(other)
    assert mine and theirs
    assert (mine.job.name, mine.job.cmd, theirs.job.name) == ("takes/0", "train 0", "takes/1")
    state, _ = jobs.read_state(cloud.bucket, "takes/0")
    assert (state.state, state.machine, state.machine_id) == ("STARTING", "takes-0", "1")
    assert (state.results, state.machines, state.attempt) == ("takes/0", 1, 1)
    again = rows.take(made)  # its worker died in it
    assert again and again.job.name == "takes/0" and again.state.attempt == 1
    again.write_state("SUCCEEDED")
    third = rows.take(made)
    assert third and third.job.name == "takes/2"
    third.write_state("FAILED")
    other.peers.missed[0] = made.peers.missed[1] = machines.SILENCE + 1
    lost = rows.take(made)
    assert lost and (lost.job.name, lost.state.attempt) == ("takes/1", 2)
    with pytest.raises(NotMine):
        theirs.write_state("RUNNING")
    last = rows.take(other)
    assert last and last.job.name == "takes/1" and last.state.attempt == 3
    last.write_state("KILLED")
    fourth = rows.take(other)
    assert fourth and fourth.job.name == "takes/3"
    made.peers.missed.clear()
    assert rows.take(made) is None
    fourth.facts.id, other.facts.id = "2", "3"  # Google made it again
    fifth = rows.take(other)
    assert fifth and (fifth.job.name, fifth.state.attempt) == ("takes/3", 2)


@pytest.mark.parametrize(
    ("states", "saved", "stop", "expected"),
    [
        (["SUCCEEDED"] * 4, False, None, ("SUCCEEDED", "", 0)),
        (["SUCCEEDED", "KILLED"] * 2, False, None, ("SUCCEEDED", "2 of 4 rows killed", 0)),
        (["SUCCEEDED", "FAILED", "FAILED", "KILLED"], False, None,
         ("FAILED", "2 of 4 rows failed: 1, 2; the first: of 1", 11)),
        (["SUCCEEDED"] * 3 + ["RUNNING"], False, None, None),
        (["SUCCEEDED"] * 3 + [""], False, None, None),
        (["SUCCEEDED"] * 3 + ["RUNNING"], True, None,
         ("FAILED", "1 of 4 rows have not ended: machines were lost", None)),
        (["SUCCEEDED"] * 2 + ["", ""], True, Ending("FAILED", "it reached its limit"),
         ("FAILED", "2 of 4 rows have not ended: it reached its limit", None)),
        (["FAILED"] * 4, False, Ending("KILLED", "killed by ann"),
         ("KILLED", "killed by ann", None)),
    ],
)  # fmt: skip
def test_a_sweep_ends_as_its_rows_did(
    cloud: Cloud, run: Any, states: list[str], saved: bool, stop: Ending | None,
    expected: tuple[str, str, int | None] | None, request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    name = f"sweep-{request.node.callspec.indices['states']}"
    made = submitted(run(cloud.bucket, name=name, results=name, **BOTH))
    for number, state in enumerate(states):
        if state:
            row = State(f"{name}/{number}", state, results=f"{name}/{number}", id=made.job.id)
            row.created_at = row.times[state] = jobs.now()
            row.reason, row.exit_code = f"of {number}", 10 + number
            jobs.write_state(cloud.bucket, row, 0)
    if saved:
        made.peers.records[1] = {"phase": "saved"}
    ending = rows.end(made, stop)
    found = ending and (ending.state, ending.reason, ending.exit_code)
    assert found == expected
    if expected:
        last = kept(made)
        assert (last.state, last.reason, last.exit_code) == expected
        rows.resume(cloud.bucket, made.job)
        for number, state in enumerate(states):
            if state in ("FAILED", "KILLED"):
                row, _ = jobs.read_state(cloud.bucket, f"{name}/{number}")
                about = (row.state, row.attempt, row.reason, row.exit_code)
                assert about == ("SUBMITTED", 2, "", None)
            elif state:
                row, _ = jobs.read_state(cloud.bucket, f"{name}/{number}")
                assert (row.state, row.attempt) == (state, 1)
    else:
        assert kept(made).state == "SUBMITTED"

"""A command that is ended while it rewrites a file: the bucket keeps the version before."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import commit, wait_for

from berg.google import views
from berg.machine import keeper, process

# Writes a checkpoint whole, later half of the next one over it, as torch.save does.
PROGRAM = """\
import os, signal, sys
from pathlib import Path
folder = Path(os.environ["BERG_RESULTS_DIR"])
signal.signal(signal.SIGUSR1, lambda *_: None)
found = {path.name: path.read_bytes() for path in folder.glob("*.*")}
if found:
    heads = [found[name][:3].decode() for name in ("ckpt.pt", "best.pt")]
    sys.exit(f"found {sorted(found)}: {heads} {len(found['ckpt.pt'])}")
(folder / "ckpt.pt").write_bytes(b"one" * 10_000)
(folder / "best.pt").write_bytes(b"one" * 10_000)
quiet = (folder / "quiet.log").open("a", buffering=1)
quiet.write("begun\\n")
log = (folder / "train.log").open("a")
log.write("a line\\n")
log.flush()
signal.pause()
log.write("half a li")
log.flush()
new = (folder / "new.pt").open("wb")
new.write(b"new" * 10_000)
new.flush()
half = (folder / "ckpt.pt").open("wb", buffering=0)
half.write(b"two" * 8_000)
(folder / "best.pt").write_bytes(b"two" * 10_000)
print("halfway", flush=True)
signal.pause()
"""
# Ends its worker, in another session, as torchrun does.
LAUNCHER = """trap 'kill $worker; wait $worker; exit 143' TERM; setsid {} & worker=$!; wait"""
FOUND = "found ['best.pt', 'ckpt.pt', 'quiet.log', 'train.log']: ['one', 'one'] 30000"
HALFWAY = "was being written when its program was ended: the bucket has"


@pytest.fixture
def end_halfway(berg):
    """Return what runs a command, and ends it in its second save."""

    def end(command: str, how: str) -> None:
        (berg.repo / "save.py").write_text(PROGRAM)
        commit(berg.repo)
        program = f"save.py {berg.bucket_name}"
        command = command.format(f"python3 {program}")
        kinds = {
            "maintain": ["-g", "1", "-t", "t4"],
            "crash": ["-g", "0"],
            "last crash": ["-g", "0", "--max-restarts", "0"],
        }
        kind = kinds.get(how, ["-g", "0", "--spot"])
        done = berg("run", *kind, "-n", "saver", command)
        assert done.returncode == 0, done.stderr
        wait_for(lambda: berg.objects("berg_results/saver/ckpt.pt"), 60, "the first save")
        wait_for(lambda: "saver/train.log" in in_view(berg, "saver"), 60, "its view")
        subprocess.run(["pkill", "-USR1", "-f", f"^python3 {program}"], check=True)
        wait_for(lambda: "halfway" in berg.log("saver"), 60, "the second save")
        if how == "preempt":
            berg.cloud.call("POST", "/_berg/instances/saver/preempt", {"grace": 25})
        elif how == "maintain":
            berg.cloud.call("POST", "/_berg/instances/saver/maintain", {"notice": 3})
        elif how.endswith("crash"):
            berg.crash_and_start("saver")
        else:
            assert berg("kill", "saver").returncode == 0
        wait_for(lambda: berg.state("saver")["finished_at"], 90, "its end")

    return end


@pytest.mark.parametrize(
    ("command", "how"),
    [("{}", "preempt"), (LAUNCHER, "preempt"), ("{}", "maintain")],
    ids=["alone", "launched", "on the same disk"],
)
def test_the_next_attempt_finds_the_version_before(berg, end_halfway, command, how):
    end_halfway(command, how)
    log = berg.log("saver")
    assert FOUND in log, log
    assert f"saver/ckpt.pt {HALFWAY} the version before" in log
    assert f"saver/new.pt {HALFWAY} a partial copy, which is not restored" in log
    assert log.count(HALFWAY) == 2, log


def test_a_machine_that_lost_its_power_continues_as_a_new_one(berg, end_halfway):
    """Nothing could note what was being written. What the disk has stays there, next to it."""
    end_halfway("{}; find /root/berg/cut-off -name new.pt -size +29k; exit 1", "crash")
    log = berg.log("saver")
    assert FOUND in log and berg.state("saver")["attempt"] == 2, log
    left = re.findall("^/root/berg/cut-off/.*/saver/new.pt$", log, re.M)
    assert len(left) == 1, log


def test_what_a_machine_had_that_lost_its_power_is_not_sent(berg, end_halfway):
    """Though the job ends before the results are restored."""
    end_halfway("{}", "last crash")
    assert "went away or crashed 1 times (--max-restarts)" in berg.state("saver")["reason"]
    assert berg.objects("berg_results/saver/ckpt.pt").popitem()[1] == b"one" * 10_000
    assert in_view(berg, "saver").keys() >= {"saver/ckpt.pt", "saver/train.log"}


def test_a_fetch_brings_all_there_is_and_a_resume_one_moment(berg, end_halfway, tmp_path):
    """Of the half file the version before, and of new ones the beginning."""
    end_halfway("{}", "kill")
    assert json.loads(berg("show", "saver", "--json").stdout)["state"] == "KILLED"
    done = berg("fetch", "saver", str(tmp_path / "got"))
    assert done.returncode == 0, done.stderr
    found = {path.name: path.read_text() for path in (tmp_path / "got").rglob("*.*")}
    assert found["ckpt.pt"] == "one" * 10_000 and found["new.pt"] == "new" * 10_000
    assert found["train.log"] == "a line\nhalf a li", "of a file that grows the bucket has it all"
    assert found["best.pt"] == "two" * 10_000
    assert machines_in_views(berg, "saver") == {"0"}, "each attempt's may have another name"
    assert berg("run", "--resume", "saver").returncode == 0
    wait_for(lambda: FOUND in berg.log("saver"), 90, "what the resumed job found")


def in_view(berg, name: str) -> dict[str, views.Row]:
    found = views.at(views.of_job(berg.bucket, name))
    return found.rows if found else {}


def machines_in_views(berg, name: str) -> set[str]:
    histories = views.of_job(berg.bucket, name)
    return {view.head.machine for each in histories for view in each.views}


# Each rank writes its part of a checkpoint over the one before; the second is slower.
PARTS = """\
import os, signal, sys, time
from pathlib import Path
rank, folder = os.environ["BERG_NODE_RANK"], Path(os.environ["BERG_RESULTS_DIR"])
signal.signal(signal.SIGUSR1, lambda *_: None)
found = [path.read_text()[:3] for path in sorted(folder.glob("*.part"))]
if found:
    sys.exit(f"rank {rank} found {found}")
(folder / f"{rank}.part").write_text("one" * 10_000)
signal.pause()
part = (folder / f"{rank}.part").open("w", buffering=1)
part.write("two" * 10_000)
part.flush()
if rank == "0":
    part.close()
print(f"rank {rank} is halfway", flush=True)
signal.pause()
"""


def test_a_cluster_that_is_killed_in_a_save_continues_with_parts_of_one_save(berg, tmp_path):
    (berg.repo / "parts.py").write_text(PARTS)
    commit(berg.repo)
    program = f"parts.py {berg.bucket_name}"
    done = berg("run", "-g", "0", "-n", "ranks", "-m", "2", "--each", f"python3 {program}")
    assert done.returncode == 0, done.stderr

    def are_saved() -> bool:
        views = berg.objects(".berg/views/ranks/")
        return len({name.split("/")[-2] for name in views}) == 2 and len(parts()) == 2

    def parts() -> list[str]:
        return [name for name in berg.objects("berg_results/ranks/") if name.endswith(".part")]

    wait_for(are_saved, 90, "the first save")
    subprocess.run(["pkill", "-USR1", "-f", f"^python3 {program}"], check=True)
    wait_for(lambda: berg.log("ranks").count("halfway") == 2, 60, "the second save")
    assert machines_in_views(berg, "ranks") == {"0", "1"}
    assert berg("kill", "ranks").returncode == 0
    wait_for(lambda: berg.state("ranks")["finished_at"], 90, "its end")
    done = berg("fetch", "ranks", str(tmp_path / "got"))
    assert done.returncode == 0, done.stderr
    assert [path.read_text()[:3] for path in sorted((tmp_path / "got").rglob("*.part"))] == [
        "two",
        "one",
    ]
    assert berg("run", "--resume", "ranks").returncode == 0
    for rank in range(2):
        line = f"rank {rank} found ['one', 'one']"
        wait_for(lambda line=line: line in berg.log("ranks"), 90, line)


@pytest.fixture
def end_program(tmp_path, monkeypatch):
    """Return what ends a program that has said that it is ready; it returns its exit code and what
    was cut.
    """

    def end(script: str, grace: float) -> tuple[int, keeper.Cut]:
        cut = keeper.Cut(tmp_path / "cut", (f"{tmp_path}/",))
        monkeypatch.setattr(process, "new_cut", lambda: cut)
        program = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd=tmp_path,
        )
        assert program.stdout.readline() == b"ready\n"
        threading.Thread(target=program.wait).start()
        process.end_group(program.pid, grace)
        return program.wait(), cut

    return end


# What a program that writes `half` does at SIGTERM, and whether what it leaves is cut off.
PROGRAMS = {
    "dies": ("", True),
    "closes": ("signal.signal(15, lambda *_: (file.close(), sys.exit()))", False),
    "ignores": ("signal.signal(15, signal.SIG_IGN)", True),
    "blocks": ("signal.pthread_sigmask(signal.SIG_BLOCK, {15})", True),
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_what_a_program_has_open_for_writing_when_it_is_ended(tmp_path, end_program, kind):
    then, is_cut = PROGRAMS[kind]
    script = f"""
import signal, sys
{then}
open("whole", "w").close()
reading, other = open("whole"), open("/dev/null", "w")
file = open("half", "w")
print("ready", flush=True)
while True:
    signal.pause()
"""
    code, cut = end_program(script, 1 if is_cut else 30)
    assert code == {"dies": -signal.SIGTERM, "closes": 0}.get(kind, -signal.SIGKILL)
    assert set(cut.files()) == ({(tmp_path / "half").stat().st_ino} if is_cut else set())


def test_what_another_program_writes_is_not_cut(tmp_path, end_program):
    """Such as one of a login."""
    with (tmp_path / "other").open("w"):
        _, cut = end_program("import signal; print('ready', flush=True); signal.pause()", 30)
    assert cut.files() == {}


def test_a_program_that_is_ended_during_a_look_did_not_close_its_file(tmp_path, monkeypatch):
    cut, file = keeper.Cut(tmp_path / "cut", (f"{tmp_path}/",)), tmp_path / "half"
    with file.open("w") as half:
        program = subprocess.Popen(["sleep", "1000"], stdout=half)
    cut.look(program.pid)
    writers = cut.writers

    def after_its_end(ancestor: int) -> dict[int, set[int]]:
        program.kill()
        program.wait()
        return writers(ancestor)

    monkeypatch.setattr(cut, "writers", after_its_end)
    cut.look(program.pid)
    assert cut.has(file.stat())


def test_a_file_that_is_closed_after_all_is_whole(tmp_path):
    cut = keeper.Cut(tmp_path / "cut", (f"{tmp_path}/",))
    lines = f"exec 3>{tmp_path}/half; echo open; read; exec 3>&-; echo closed; read"
    program = subprocess.Popen(
        ["bash", "-c", lines], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout.readline() == "open\n"
    cut.look(program.pid)
    assert cut.has((tmp_path / "half").stat())
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "closed\n"
    cut.look(program.pid)
    assert cut.files() == {}
    program.communicate("\n")


def test_a_note_that_was_cut_off_hides_no_other(tmp_path):
    cut = keeper.Cut(tmp_path / "cut", (f"{tmp_path}/",))
    cut.note("+", [12])
    with cut.file.open("a") as file:
        file.write("-1x")
    cut.note("+", [34])
    assert set(cut.files()) == {12, 34}


def test_a_file_is_whole_that_its_program_closes_and_a_process_that_it_forked_inherited(
    tmp_path, end_program
):
    script = """
import os, signal
file = open("last", "w")
if os.fork():
    signal.signal(15, lambda *_: (file.write("whole"), file.close(), os._exit(0)))
    print("ready", flush=True)
while True:
    signal.pause()
"""
    _, cut = end_program(script, 30)
    assert (tmp_path / "last").read_text() == "whole" and cut.files() == {}


def test_what_a_later_command_writes_is_whole(tmp_path):
    cut, file = keeper.Cut(tmp_path / "cut", (f"{tmp_path}/",)), tmp_path / "half"
    with file.open("w") as half:
        half.write("half")
        half.flush()
        cut.note_all(os.getpid())
    cut.note("=", [time.time_ns()])
    assert cut.has(file.stat()), "the command has not written it yet"
    os.utime(file, ns=(0, time.time_ns() + 1))
    assert not cut.has(file.stat())
    with file.open("a"):
        cut.note_all(os.getpid())
    assert cut.has(file.stat())

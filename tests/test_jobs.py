"""What a user sees of jobs, and does with them, by the command line."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import BERG, Cloud, commit, until

from berg import gce, worker
from berg.command import Command
from berg.job import Job, State

PROGRAM = """
import json, os, sys
where = os.environ["BERG_RESULTS_DIR"]
open(where + "/metrics.jsonl", "w").write(json.dumps({"loss": float(sys.argv[1])}) + "\\n")
print("said", sys.argv[1:], os.environ.get("COLOUR"))
sys.exit(3 if sys.argv[1] == "2" else 0)
"""
CPU = ["run", "-g", "0"]


@pytest.mark.slow
def test_a_sweep_is_shown_and_fetched_with_its_table(
    cloud: Cloud, project: Path, tmp_path: Path
) -> None:
    (project / "train.py").write_text(PROGRAM)
    (project / "vars").write_text("# words\nexport COLOUR='dark blue'\n")
    commit(project)
    words = ["-n", "grid", "--grid", "lr=1,2", "--parallel", "1", "--env-file", "vars"]
    command = "python3 train.py {lr} 'x y' {{z}}"
    done = cloud.run(*CPU, *words, "--note", "a note", "--wait", command, cwd=project)
    assert done.code == 3, done.err
    shown = json.loads(cloud.run("show", "grid", "--json").out)
    assert [(row["state"], row["params"], row["metrics"]) for row in shown] == [
        ("SUCCEEDED", {"lr": "1"}, {"loss": 1.0}),
        ("FAILED", {"lr": "2"}, {"loss": 2.0}),
    ]
    assert "said ['1', 'x y', '{z}'] dark blue\n" in cloud.run("log", "grid/0").out
    one = json.loads(cloud.run("show", "grid/1", "--json").out)
    assert one["metrics"] == {"loss": 2.0} and one["log"] and one["exit_code"] == 3
    said = json.loads(cloud.run("fetch", "grid", str(tmp_path / "here"), "--json").out)
    assert said["table"] == str(tmp_path / "here/results.csv") and said["fetched"] == 4
    assert "param.lr" in Path(said["table"]).read_text()
    assert (tmp_path / "here/0/metrics.jsonl").exists()
    assert json.loads(cloud.run("list", "--json").out)[-1]["note"] == "a note"
    removed = json.loads(cloud.run("rm", "-y", "grid", "--json").out)[0]
    assert removed["objects"] > 4 and not [name for name in cloud.names() if "grid" in name]


def test_several_jobs_are_waited_for_and_deleted_by_a_pattern(cloud: Cloud, project: Path) -> None:
    for name, code in (("try-1", 0), ("try-2", 5)):
        assert cloud.run(*CPU, "-n", name, f"exit {code}", cwd=project).code == 0
    done = cloud.run("wait", "try-*", "--json")
    assert done.code == 5 and [row["exit_code"] for row in json.loads(done.out)] == [0, 5]
    assert cloud.run("tail", "try-2").code == 5
    refused = cloud.run("rm", "try-*")
    assert refused.code == 1 and "-y" in refused.err and cloud.read(".berg/jobs/try-1_state.json")
    until(lambda: not any(gce.machines(cloud.config, name) for name in ("try-1", "try-2")))
    assert cloud.run("rm", "-y", "try-*").code == 0
    assert "try-" not in cloud.run("list").out
    missing = cloud.run("kill", "none", "--json")
    assert missing.code == 1 and "berg list" in json.loads(missing.out)[0]["error"]


def test_a_list_on_a_terminal_has_a_line_for_each_job(cloud: Cloud, project: Path) -> None:
    name = "wide"
    assert cloud.run(*CPU, "-n", name, "--note", "many words " * 40, "true", cwd=project).code == 0
    cloud.run("wait", name)
    primary, secondary = pty.openpty()
    env = {**cloud.env, "COLUMNS": "70"}
    subprocess.run([*BERG, "list"], env=env, stdout=secondary, check=True)
    os.close(secondary)
    lines = os.read(primary, 1 << 16).decode().splitlines()
    assert max(map(len, lines)) == 70 and lines[-1].startswith(f"{name} ")
    assert lines[-1].endswith("…") and cloud.run("list").out.count("many words") == 40


def test_a_folder_of_results_is_fetched_by_its_name(cloud: Cloud, project: Path) -> None:
    line = "mkdir -p /root/berg_results/folder/one; echo 1 > /root/berg_results/folder/one/out"
    assert cloud.run(*CPU, "-n", "writes", "--wait", line, cwd=project).code == 0
    said = json.loads(cloud.run("fetch", "folder/one", "--json").out)
    assert Path(said["folder"]) == cloud.home / "berg_results/folder/one"
    assert Path(said["folder"], "out").read_text() == "1\n"
    again = json.loads(cloud.run("fetch", "folder", "--json").out)
    assert (again["files"], again["fetched"]) == (said["files"], 0)  # the same files
    shutil.rmtree(cloud.home / "berg_results/folder")
    assert cloud.run("fetch", "no/folder").code == 1


def test_wrong_words_have_an_answer(cloud: Cloud, project: Path) -> None:
    for word, right in {"cancel": "kill", "launch": "run", "status": "list", "logs": "log",
                        "exec": "ssh", "down": "kill", "shwo": "show"}.items():  # fmt: skip
        done = cloud.run(word)
        assert done.code == 2 and f"Did you mean: berg {right}" in done.err, done.err
    done = cloud.run("show", "none", "--json")
    assert json.loads(done.err.splitlines()[-1])["exit_code"] == done.code == 1
    for words, reason in [
        (["--env", "NOT_SET_HERE"], "NOT_SET_HERE=VALUE"),
        (["--env", "BERG_JOB=x"], "BERG_"),
        (["--env-file", "/no/file"], "/no/file"),
        (["--env-file", "train.py"], "line 1"),
    ]:
        done = cloud.run(*CPU, "--dry-run", *words, "true", cwd=project)
        assert done.code == 1 and reason in done.err, done.err
    plan = cloud.run(*CPU, "--dry-run", "train --lr={lr}", cwd=project)
    assert plan.code == 0 and "no --grid gives {lr} a value" in plan.err + plan.out


@pytest.mark.slow
def test_rerun_has_the_code_and_options_of_the_job(cloud: Cloud, project: Path) -> None:
    words = ["-n", "first", "--env", "A=1", "--env", "B=2", "cat train.py; echo $A $B"]
    assert cloud.run(*CPU, *words, cwd=project).code == 0
    (project / "train.py").write_text("changed")
    commit(project)
    again = ["rerun", "first", "-n", "second", "--env", "B=3", "--tail"]
    done = cloud.run(*again, cwd=project, HERE="x")
    assert "hello from train" in done.out and "1 3\n" in done.out, done.err
    plan = cloud.run("rerun", "second", "--new-code", "-n", "third", "--dry-run", cwd=project)
    assert plan.code == 0 and "l4" not in plan.err + plan.out  # -g 0 is handed on
    assert "Variables  A, B\n" in plan.out  # also what comes from a record is shown
    resumed = cloud.run("run", "--resume", "first", "-n", "other", "true", cwd=project)
    assert resumed.code == 1 and "berg rerun first" in resumed.err


def test_a_resume_without_room_leaves_the_job_as_it_was(cloud: Cloud, project: Path) -> None:
    words = ["-n", "no-room", "--disk-gb", "300", "--wait", "exit 3"]
    assert cloud.run(*CPU, *words, cwd=project).code == 3
    paths = [f".berg/jobs/no-room_{kind}.json" for kind in ("metadata", "state")]
    before, resume = [cloud.read(path) for path in paths], ["run", "--resume", "no-room"]
    plan = json.loads(cloud.run(*resume, "--dry-run", "--json", cwd=project).out)
    assert plan["request"]["disks"][0]["initializeParams"]["diskSizeGb"] == "300"
    cloud.call("POST", "/_berg/stockout", {"on": True})
    try:
        done = cloud.run(*resume, cwd=project)
    finally:
        cloud.call("POST", "/_berg/stockout", {"on": False})
    assert done.code == 1 and "out of stock" in done.err, done.err
    assert [cloud.read(path) for path in paths] == before


@pytest.mark.slow
def test_a_job_goes_on_with_new_code(cloud: Cloud, project: Path) -> None:
    (project / "sub").mkdir()
    (project / "sub/train.py").write_text("import os, sys; sys.exit(os.environ['BERG_ATTEMPT'])\n")
    commit(project)
    words = ["-g", "0", "-n", "mended", "--cwd", "sub", "--branch", "main", "--wait"]
    done = cloud.run("run", *words, "python3 train.py", cwd=project)
    assert done.code == 1 and "mended FAILED with exit code 1" in done.err, done.err
    (project / "sub/train.py").write_text(
        "import os; print('attempt', os.environ['BERG_ATTEMPT'])\n"
    )
    done = cloud.run("run", "--resume", "mended", "--new-code", "--wait", cwd=project)
    assert done.code == 0 and "attempt 2\n" in cloud.log("mended"), done.err
    done = cloud.run("run", "-g", "0", "--cwd", "nowhere", "true", cwd=project)
    assert done.code == 1 and "--cwd nowhere" in done.err


@pytest.mark.slow
def test_what_is_another_users_is_named_before_it_is_touched(cloud: Cloud, project: Path) -> None:
    bob = {"BERG_USER": "bob"}
    for name, cmd in (("bobs-done", "true"), ("bobs-long", "sleep 300")):
        assert cloud.run(*CPU, "-n", name, cmd, cwd=project, **bob).code == 0
    assert cloud.run("devbox", "-g", "0", "-n", "bobs-box", cwd=project, **bob).code == 0
    cloud.run("wait", "bobs-done")
    for words in (["rm", "bobs-done"], ["kill", "bobs-long"], ["stop", "bobs-box"]):
        refused, done = cloud.run(*words), cloud.run(*words, "-y", *["--now"] * (words[0] != "rm"))
        for said in (refused.err, done.err):
            assert "It is bob's, " in said and " old" in said, (words, said)
        assert refused.code == 1 and done.code == 0, (words, refused.err, done.err)
    for words in (["start", "bobs-box"], ["kill", "bobs-box"]):
        assert "It is bob's" in cloud.run(*words).err
        assert "It is bob's" in cloud.run(*words, "-y").err
    assert "matches none of your jobs" in cloud.run("kill", "bobs-*").err
    assert completed(cloud, "berg log bobs").strip() == ""
    assert "bobs-" in completed(cloud, "berg log bobs", **bob)


def completed(cloud: Cloud, words: str, **more: str) -> str:
    """What a shell offers after these words."""
    own = {"_BERG_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "2"}
    env = {**cloud.env, **own, **more}
    program = [str(Path(sys.executable).with_name("berg"))]
    return subprocess.run(program, env=env, capture_output=True, text=True).stdout


def test_what_a_command_writes_while_it_is_killed_is_kept(cloud: Cloud, project: Path) -> None:
    write = "sleep 1; cd $BERG_RESULTS_DIR; echo last >last; chmod +x last; exit 0"
    late = f"trap '{write}' TERM; echo up; while :; do sleep 0.1; done"
    assert cloud.run(*CPU, "-n", "writes-late", late, cwd=project).code == 0
    assert cloud.run(*CPU, "-n", "by-signal", "kill -9 $$", cwd=project).code == 0
    until(lambda: "\nup\n" in cloud.log("writes-late"))
    assert cloud.run("kill", "-y", "writes-late").code == 0
    assert cloud.run("wait", "writes-late").code == 1  # although the command ended with 0
    assert cloud.run("fetch", "writes-late", str(project.parent)).code == 0
    last = project.parent / "last"
    assert last.read_text() == "last\n" and os.access(last, os.X_OK)
    assert cloud.run("wait", "by-signal").code == 137


def test_a_worker_writes_its_state_as_often_as_a_bucket_takes_it(
    cloud: Cloud, tmp_path: Path
) -> None:
    job = Job("paced", "true", "proj", {}, "paced")
    facts = worker.Facts("1", "paced", "us-central1-a", "10.0.0.1", {}, False, False)
    state, log, command = State("paced", results="paced", id=job.id), tmp_path / "log", Command("")
    run = worker.Run(cloud.config, cloud.bucket, facts, job, state, 0, [], log, command)
    cloud.call("DELETE", "/_berg/requests")
    for step in ("STARTING", "INSTALLING", "RUNNING"):
        run.write_state(step)
    asked = cloud.call("GET", "/_berg/requests")["requests"]
    statuses = [row["status"] for row in asked if row["method"] == "storage.objects.insert"]
    assert statuses == [200, 200, 200]


def test_files_and_options_of_other_tools(cloud: Cloud, project: Path) -> None:
    (project / "env").write_bytes("\ufeffA=1#2\nB='x # y'  # don't\nexport C=3\n".encode())
    commit(project)
    words = ["-n", "has-env", "--env-file", "env", "--env", "C=4", "--env", "HERE", "--tail"]
    done = cloud.run(*CPU, *words, "echo $A $B $C; printf $HERE", cwd=project, HERE="no-end")
    assert done.code == 0 and "\n1#2 x # y 4\nno-end\n" in done.out, done.out + done.err
    for words, says in [
        (["--env", "PATH=/x", "true"], "a machine has its own"),
        (["-p", "8080", "true"], "berg open NAME 8080"),
        (["--nodes", "2", "true"], "-m 2 --each"),
        (["python", "train.py", "--lr", "1"], "Put CMD in quotes"),
        (["python", "train.py"], "Put CMD in quotes"),
    ]:
        done = cloud.run(*CPU, *words, cwd=project)
        assert done.code and says in done.err, (words, done.err)


def test_a_fetch_of_nothing_leaves_no_folder(cloud: Cloud, project: Path, tmp_path: Path) -> None:
    before = {*cloud.home.glob("berg_results/*")}
    assert cloud.run("fetch", "nosuch").code == 1
    assert cloud.run("fetch", "nosuch", str(tmp_path / "nosuch")).code == 1
    assert {*cloud.home.glob("berg_results/*")} == before and not (tmp_path / "nosuch").exists()


@pytest.mark.slow
def test_a_metric_of_a_parameters_name_is_no_second_column(cloud: Cloud, project: Path) -> None:
    line = """echo '{"lr": 0.5, "loss": 1}' > $BERG_RESULTS_DIR/metrics.jsonl; true {lr}"""
    words = ["-n", "same", "--grid", "lr=1,[2],'a b'", "--parallel", "1", "--wait", line]
    assert cloud.run(*CPU, *words, cwd=project).code == 0
    header, *lines = cloud.run("sweep", "same").out.splitlines()
    assert header.split() == ["NAME", "STATE", "EXIT", "lr", "loss", "REASON"]
    assert [line.split(maxsplit=3)[3].split("  ")[0] for line in lines] == ["1", "[2]", "a b"]
    for text in ("lr=1,", "lr=,1", "lr=[1", "lr='a", "lr=", "=1"):
        done = cloud.run(*CPU, "--grid", text, "true {lr}", cwd=project)
        assert done.code == 1 and "--grid" in done.err, text


def test_jobs_say_what_they_leave_behind(cloud: Cloud, project: Path) -> None:
    line = "for p in /root/ray_results/x /workspace/y /tmp/big; do mkdir -p ${p%/*}; head -c 2000000 /dev/zero > $p; done"
    words = [
        "-n",
        "leaves",
        "--wait",
        f"{line}; mkdir outputs; echo 1 > outputs/a; echo 1 > /tmp/little",
    ]
    assert cloud.run(*CPU, *words, cwd=project).code == 0
    missing = json.loads(cloud.run("show", "leaves", "--json").out)["missing"]
    assert {*missing} == {"/root/ray_results/", "/workspace/", "/tmp/", "/root/code/proj/outputs/"}
    assert "1 file, 2.0 MB" in missing["/root/ray_results/"]
    assert "/root/ray_results: 1 file, 2.0 MB" in cloud.log("leaves")


@pytest.mark.slow
def test_a_record_chooses_no_file_of_this_computer(cloud: Cloud, project: Path) -> None:
    (project / "all.csv").write_text("x\n1\n2\n")
    words = ["-n", "of-a-file", "--tasks", "all.csv", "--parallel", "1", "--wait", "true {x}"]
    assert cloud.run(*CPU, *words, cwd=project).code == 0
    (project / "all.csv").write_text("x\nprivate\n")
    plan = cloud.run("rerun", "of-a-file", "-n", "rows-again", "--dry-run", cwd=project)
    assert plan.code == 0 and "2: x=1" in plan.out, plan.out
    other = cloud.run("rerun", "of-a-file", "--grid", "x=7", "--dry-run", cwd=project)
    assert "1: x=7" in other.out, other.err + other.out


def test_ctrl_c_leaves_a_job_that_is_only_watched(cloud: Cloud, project: Path) -> None:
    words = [*BERG, *CPU, "-n", "watched", "--tail", "echo up; sleep 300"]
    with subprocess.Popen(
        words, cwd=project, env=cloud.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as laptop:
        assert laptop.stdout
        while laptop.stdout.readline().strip() != "up":
            assert laptop.poll() is None
        laptop.send_signal(signal.SIGINT)
        said = laptop.communicate(timeout=30)[1]
    assert laptop.returncode == 130 and "watched goes on. To end it: berg kill watched" in said
    assert json.loads(cloud.run("show", "watched", "--json").out)["state"] == "RUNNING"
    assert cloud.run("kill", "-y", "--now", "watched").code == 0


@pytest.mark.slow
def test_who_watches_sees_the_end(cloud: Cloud, project: Path, tmp_path: Path) -> None:
    """Of list and fetch with --watch; for no other user's jobs."""
    mine = {"BERG_USER": "watcher"}
    line = (
        "cd $BERG_RESULTS_DIR; echo 1 >first; while ! [ -e go ]; do sleep 0.2; done; echo 2 >last"
    )
    words = [*CPU, "-n", "seen", "--install", "none", line]
    assert cloud.run(*words, cwd=project, **mine).code == 0
    with ThreadPoolExecutor(2) as pool:
        listing = pool.submit(cloud.run, "list", "--watch", **mine)
        fetching = pool.submit(
            cloud.run, "fetch", "seen", str(tmp_path / "here"), "--watch", **mine
        )
        until((tmp_path / "here/first").exists)
        assert cloud.run("ssh", "seen", "touch /root/berg_results/seen/go").code == 0
    shown = [row.split()[1] for row in listing.result().out.splitlines() if row.startswith("seen")]
    assert "RUNNING" in shown and shown[-1] == "SUCCEEDED", shown
    assert (tmp_path / "here/last").exists() and fetching.result().code == 0, fetching.result().err

"""What a user sees of jobs, and does with them, by the command line."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import BERG, Cloud, commit, until
from records import machine, put, put_row

from berg import BergError, gce, logs
from berg import job as jobs
from berg.features import secrets
from berg.fetch import of_folder
from berg.job import Job, State

PROGRAM = """
import json, os, sys
where = os.environ["BERG_RESULTS_DIR"]
open(where + "/metrics.jsonl", "w").write(json.dumps({"loss": float(sys.argv[1])}) + "\\n")
print("said", sys.argv[1:], os.environ.get("COLOUR"), os.environ["BERG_JOB"])
sys.exit(3 if sys.argv[1] == "2" else 0)
"""
CPU = ["run", "-g", "0"]


@pytest.mark.slow
def test_rows_of_a_sweep_run_and_only_what_failed_runs_again(cloud: Cloud, project: Path) -> None:
    commit(project, {"train.py": PROGRAM, "vars": "# words\nexport COLOUR='dark blue'\n"})
    words = ["-n", "grid", "--grid", "lr=1,2", "--parallel", "1", "--env-file", "vars"]
    command = "python3 train.py {lr} 'x y' {{z}}"
    done = cloud.run(*CPU, *words, "--wait", "--json", command, cwd=project)
    assert done.code == 3, done.err
    rows = json.loads(done.out)["jobs"]
    assert [(row["state"], row["params"], row["metrics"]) for row in rows] == [
        ("SUCCEEDED", {"lr": "1"}, {"loss": 1.0}),
        ("FAILED", {"lr": "2"}, {"loss": 2.0}),
    ]
    assert "said ['1', 'x y', '{z}'] dark blue grid\n" in cloud.run("log", "grid/0").out
    done = cloud.run("run", "--resume", "grid", "--wait", cwd=project)
    said = [cloud.log("grid").count(f"\nsaid ['{lr}'") for lr in (1, 2)]
    assert done.code == 3 and said == [1, 2], "only what had failed runs again"
    removed = json.loads(cloud.run("rm", "-y", "grid", "--json").out)[0]
    assert removed["objects"] > 4 and not [name for name in cloud.names() if "grid" in name]


def test_a_list_on_a_terminal_has_a_line_for_each_job(cloud: Cloud) -> None:
    put(cloud, "wide", user="teller", note="many words " * 40)
    primary, secondary = pty.openpty()
    env = {**cloud.env, "COLUMNS": "70", "BERG_USER": "teller"}
    subprocess.run([*BERG, "list"], env=env, stdout=secondary, check=True)
    os.close(secondary)
    lines = os.read(primary, 1 << 16).decode().splitlines()
    assert max(map(len, lines)) == 70 and lines[-1].startswith("wide ")
    whole = cloud.run("list", BERG_USER="teller").out
    assert lines[-1].endswith("…") and whole.count("many words") == 40


def test_a_folder_of_results_is_fetched_by_its_name(cloud: Cloud) -> None:
    cloud.bucket.write("berg_results/folder/one/out", b"1\n")
    said = json.loads(cloud.run("fetch", "folder/one", "--json").out)
    assert Path(said["folder"]) == cloud.home / "berg_results/folder/one"
    assert Path(said["folder"], "out").read_text() == "1\n"
    again = json.loads(cloud.run("fetch", "folder", "--json").out)
    assert (again["files"], again["fetched"]) == (1, 0)  # the same file
    for name, ago in (("folder-old", 9000), ("folder-new", 3600)):
        put(cloud, name, ago=ago, folder="folder/one")
    (latest,), _ = of_folder(cloud.config, "folder/one", None)
    assert latest.job == "folder-new"


@pytest.mark.slow
def test_a_job_that_failed_says_why_and_goes_on_with_new_code(cloud: Cloud, project: Path) -> None:
    commit(project, {"sub/train.py": "print('begin')\n{}['lr']\n"})
    words = ["-n", "mended", "--cwd", "sub", "--branch", "main", "--wait", "python3 train.py"]
    says = "mended FAILED with exit code 1: KeyError: 'lr'"
    said = cloud.fails(*CPU, *words, cwd=project, says=says)
    assert said.rstrip().endswith("Its log: berg log mended")
    assert cloud.shown("mended")["reason"].endswith("KeyError: 'lr'")
    (project / "sub/train.py").write_text(
        "import os; print('attempt', os.environ['BERG_ATTEMPT'])\n"
    )
    cloud.ok("run", "--resume", "mended", "--new-code", "--wait", cwd=project)
    assert "attempt 2\n" in cloud.log("mended")


def test_what_is_another_users_is_named_before_it_is_touched(cloud: Cloud) -> None:
    put(cloud, "bobs-done", user="bob")
    put(cloud, "bobs-long", "RUNNING", ago=100, user="bob")
    box = put(cloud, "bobs-box", "RUNNING", ago=100, user="bob", job={"cmd": ""})
    machine(cloud, "bobs-box", box, user="bob", kind="devbox")
    for words in (["rm", "bobs-done"], ["kill", "bobs-long"], ["stop", "bobs-box"]):
        refused, done = cloud.run(*words), cloud.run(*words, "-y", *["--now"] * (words[0] != "rm"))
        for said in (refused.err, done.err):
            assert "It is bob's, " in said and " old" in said, (words, said)
        assert refused.code == 1 and done.code == 0, (words, refused.err, done.err)
    for words in (["start", "bobs-box"], ["kill", "--now", "bobs-box"]):
        assert "It is bob's" in cloud.run(*words).err
        assert "It is bob's" in cloud.run(*words, "-y").err
    assert "matches none of your jobs" in cloud.run("kill", "bobs-*").err


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
    until(lambda: "\nup\n" in cloud.log("writes-late"))
    assert cloud.run("kill", "-y", "writes-late").code == 0
    assert cloud.run("wait", "writes-late").code == 1  # although the command ended with 0
    assert cloud.run("fetch", "writes-late", str(project.parent)).code == 0
    last = project.parent / "last"
    assert last.read_text() == "last\n" and os.access(last, os.X_OK)


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


def test_ctrl_c_leaves_a_job_that_is_only_watched(cloud: Cloud, project: Path) -> None:
    submit = [*CPU, "-n", "watched", "--tail", "echo up; sleep 300"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for words in (submit, ["log", "-f", "watched"]):
        with subprocess.Popen([*BERG, *words], cwd=project, env=cloud.env, **pipes) as laptop:
            assert laptop.stdout
            while laptop.stdout.readline().strip() != "up":
                assert laptop.poll() is None
            laptop.send_signal(signal.SIGINT)
            said = laptop.communicate(timeout=30)[1]
        assert laptop.returncode == 130 and "watched goes on. To end it: berg kill watched" in said
    assert cloud.shown("watched")["state"] == "RUNNING"


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


# --- of records alone


def cells(text: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.rstrip()) for line in text.splitlines()]


@pytest.fixture
def lister(cloud: Cloud) -> dict[str, str]:
    """A user with jobs of each kind."""
    of = {"user": "lister", "zone": "us-central1-b"}
    put(cloud, "l-first", ago=80 * 3600, **of, rate=0.5, machines=2)
    put(cloud, "l-old", ago=100 * 3600, **of)
    failed = {"exit_code": 3, "reason": "exit code 3: KeyError: 'x'", "attempt": 2, "rate": 2.0}
    words = {"note": "a note", "folder": "l-shared/x", "gpus": "1 x l4"}
    put(cloud, "l-failed", "FAILED", ago=3 * 3600, **of, **failed, **words)
    lost = put(cloud, "l-lost", "RUNNING", ago=1000, **of, job={"rows": [{"x": "1"}, {"x": "2"}]})
    put_row(cloud, lost, 0, "SUCCEEDED", exit_code=0)
    young = {"rows": [{"x": "1"}, {"x": "2"}], "cmd": "train {x}"}
    sweep = put(cloud, "l-young", "RUNNING", ago=200, **of, job=young, rate=36.0)
    put_row(cloud, sweep, 0, "FAILED", exit_code=7, reason="exit code 7")
    put(cloud, "l-soon", "SUBMITTED", ago=250, **of)
    put(cloud, "l-never", "SUBMITTED", ago=500, **of)
    box = {"job": {"cmd": ""}, "seconds_before": 7200.0, "rate": 1.0}
    put(cloud, "l-box", "STOPPED", ago=190, took=10, **of, **box)
    put(cloud, "not-ls", ago=50, user="another")
    cloud.bucket.write(".berg/jobs/l-damaged_state.json", b"{}", about={"state": "{"})
    named = State("l-old", "FAILED", "lister", created_at=jobs.now(), times={"FAILED": jobs.now()})
    cloud.bucket.write(".berg/jobs/l-misnamed_state.json", named.content(), about=named.about())
    return {"BERG_USER": "lister"}


def test_the_list_has_what_there_is_to_say_of_each_job(
    cloud: Cloud, lister: dict[str, str]
) -> None:
    header, *lines = cells(cloud.run("list", **lister).out)
    assert header == ["NAME", "STATE", "AGE", "ZONE", "GPUS", "COST", "EXIT", "ABOUT"]
    zone, gone = "us-central1-b", "its machine vanished while it was"
    assert lines == [
        ["l-old", "SUCCEEDED", "4d", zone, "?"],
        ["l-first", "SUCCEEDED", "3d", zone, "$0.50"],
        ["l-failed", "FAILED (2)", "3h", zone, "1 x l4", "$1.00", "3",
         "a note; KeyError: 'x'; results in l-shared/x"],
        ["l-lost", "LOST", "16m", zone, "?", f"{gone} RUNNING. See: berg log l-lost"],
        ["l-never", "LOST", "8m", zone, "?", f"{gone} SUBMITTED. See: berg log l-never"],
        ["l-soon", "SUBMITTED", "4m", zone, "?"],
        ["l-young", "RUNNING", "3m", zone, lines[6][4], "1 FAILED"],
        ["l-box", "STOPPED", "3m", zone, "$2.00"],
    ]  # fmt: skip
    assert re.fullmatch(r"\$1\.[34]\d", lines[6][4])  # 140 seconds at $36 an hour

    def names(*words: str) -> list[str]:
        return [
            row["name"] for row in json.loads(cloud.run("list", "--json", *words, **lister).out)
        ]

    live = ["l-soon", "l-young", "l-box"]
    assert names("--limit", "2") == ["l-lost", "l-never", *live] and names("--limit", "0") == live
    assert names("--all-jobs", "--limit", "0") == names("--limit", "9") == [row[0] for row in lines]
    assert "not-ls" in names("-a") and "not-ls" not in names()
    header, *lines = cells(cloud.run("list", "-a", "-c", "-v", "--limit", "99", **lister).out)
    assert header[6] == "USER"
    about = {line[0]: line[1:] for line in lines}
    assert about["l-first"][-2:] == ["lister", "true"] and "another" in about["not-ls"]
    assert about["l-box"][-1] == "a devbox" and about["l-young"][-1] == "train {x}; 1 FAILED"
    assert about["l-young/0"][0] == "FAILED" and about["l-young/0"][-2:] == ["lister", "7"]
    assert about["l-lost/0"][0] == "SUCCEEDED" and "l-young/1" not in about


def test_json_of_a_list_has_times_costs_and_places(cloud: Cloud, lister: dict[str, str]) -> None:
    rows = {row["name"]: row for row in json.loads(cloud.run("list", "--json", **lister).out)}
    row, live, lost = rows["l-failed"], rows["l-young"], rows["l-lost"]
    assert row | {
        "results_url": f"gs://{cloud.config.bucket}/berg_results/l-shared/x/",
        "started_at": row["times"]["RUNNING"], "finished_at": row["times"]["FAILED"],
        "usd": 1.0, "usd_per_hour": 2.0, "instances": [],
    } == row  # fmt: skip
    assert live["started_at"] and live["finished_at"] == "" and live["usd_per_hour"] == 36.0
    assert rows["l-first"]["usd_per_hour"] == 1.0 and rows["l-old"]["usd"] is None
    assert lost["finished_at"] == lost["times"]["RUNNING"]


def test_names_mean_ones_own_jobs_and_rows(cloud: Cloud, lister: dict[str, str]) -> None:
    def shown(name: str) -> tuple[str, str]:
        row = json.loads(cloud.run("show", name, "--json", **lister).out)
        return row["name"], row["state"]

    def refused(*words: str, **env: str) -> str:
        done = cloud.run(*words, **(env or lister))
        assert done.code == 1, (words, done)
        return done.err

    assert shown("@") == ("l-box", "STOPPED")
    assert "you have no jobs yet" in refused("show", "@", BERG_USER="nobody-at-all")
    assert shown("l-young/0") == ("l-young/0", "FAILED") and shown("l-young/1")[1] == "SUBMITTED"
    assert shown("l-lost/0")[1] == "SUCCEEDED" and shown("l-lost/1")[1] == "LOST"
    assert "l-lost ended LOST before it" in cloud.run("show", "l-lost/1", **lister).out
    assert "l-young has 2 rows, from l-young/0 on" in refused("show", "l-young/2")
    assert "l-old has no rows" in refused("show", "l-old/0")
    assert "matches none of your jobs" in refused("wait", "not-l*")
    done = cloud.run("wait", "l-[of]*", "l-old", "l-never", "--json", **lister)
    assert [row["name"] for row in json.loads(done.out)] == [
        "l-old",
        "l-first",
        "l-failed",
        "l-never",
    ]
    assert done.code == 3 and "l-failed FAILED with exit code 3: KeyError: 'x'\n" in done.err
    assert "l-never LOST: its machine vanished" in done.err and "l-old SUCCEEDED\n" in done.err
    assert cloud.run("wait", "l-never", **lister).code == 1
    done = cloud.ok("wait", "--any", "l-young", "l-first", "--json", **lister)
    assert [row["name"] for row in json.loads(done.out)] == ["l-first"]


def fields(text: str) -> dict[str, str]:
    """What `berg show` prints, by the names in front."""
    found, name = dict[str, str](), ""
    for line in text.splitlines():
        key, _, rest = line.partition("  ")
        name = key or name
        found[name] = f"{found[name]}\n{line.strip()}" if not key else rest.strip()
    return found


def test_all_about_a_job_is_shown(cloud: Cloud) -> None:
    code = {"head": "0123456789abcdef", "commit": "", "changed": ["a.py", "b.py"]}
    job = {"cmd": "python3 train.py", "code": code, "env": {"A": "1"}}
    end = {
        "exit_code": 4,
        "reason": "exit code 4",
        "attempt": 3,
        "note": "why not",
        "rate": 3.0,
        "machines": 2,
    }
    results = {
        "metrics.jsonl": b'{"loss": 0.5}\n{"loss": 0.12345678, "acc": NaN}\n',
        "sub/model": b"123",
    }
    log = b"".join(b"line %d\n" % number for number in range(20))
    missing = {"/tmp/": "1 file, 2.0 MB", "/data/": "a link"}
    put(cloud, "told", "FAILED", job=job, log=log, results=results, missing=missing, **end)
    out = cloud.run("show", "told").out
    about, lines = out[: out.index("line 10\n")], out[out.index("line 10\n") :]
    assert lines == "".join(f"line {number}\n" for number in range(10, 20))
    shown, state = fields(about), json.loads(cloud.run("show", "told", "--json").out)
    assert {key: shown[key] for key in list(shown) if key != "Times"} == {
        "Job": "told",
        "Note": "why not",
        "State": "FAILED exit code 4",
        "Exit code": "4",
        "Attempt": "3",
        "Command": "python3 train.py",
        "Code": "r at 0123456789ab, 2 changed files",
        "Results": f"gs://{cloud.config.bucket}/berg_results/told/",
        "Cost": "$3.00, at $6.00 an hour",
        "Metrics": "loss 0.123457, acc nan",
        "Missing": "/tmp/: 1 file, 2.0 MB\n/data/: a link",
        "User": cloud.config.user,
    }
    assert shown["Times"].splitlines()[0] == f"{state['times']['SUBMITTED']} SUBMITTED"
    assert state["results"] == [
        {"path": "metrics.jsonl", "bytes": 47},
        {"path": "sub/model", "bytes": 3},
    ]
    assert state["metrics"] == {"loss": 0.12345678, "acc": None} and state["running"] == []
    assert state["metadata"]["env"] == {"A": "1"} and state["log"] == lines.splitlines()
    assert json.loads(cloud.run("show", "told", "--json", "--lines", "1").out)["log"] == ["line 19"]
    assert "line" not in cloud.run("show", "told", "--lines", "0").out
    assert "told is FAILED and has no machine" in cloud.run("show", "told", "--ip").err


def test_a_sweep_and_its_rows_are_shown(cloud: Cloud) -> None:
    job = {"cmd": "train {lr}", "rows": [{"lr": "1"}, {"lr": "a b"}]}
    sweep = put(cloud, "rowed", "FAILED", job=job)
    for number, outcome in enumerate(("SUCCEEDED", "FAILED")):
        put_row(cloud, sweep, number, outcome, exit_code=number)
        name = f"berg_results/rowed/{number}/metrics.jsonl"
        cloud.bucket.write(name, b'{"lr": 0.5, "loss": 2}\n{oops\n')
    done = cloud.run("show", "rowed")
    assert "1 line of rowed/1's metrics.jsonl cannot be read" in done.err
    assert done.err.endswith("2 rows: 1 SUCCEEDED, 1 FAILED\n"), done.err
    assert cells(done.out)[-3:] == [  # a metric of a parameter's name is no second column
        ["NAME", "STATE", "EXIT", "lr", "loss", "REASON"],
        ["rowed/0", "SUCCEEDED", "0", "1", "2"],
        ["rowed/1", "FAILED", "1", "a b", "2"],
    ]
    assert fields(cloud.run("show", "rowed/0").out)["Values"] == "lr=1"
    out = cloud.run("show", "rowed/1").out
    shown = fields(out)
    assert "NAME" not in out and "rowed/0" not in out
    assert (shown["Job"], shown["Values"], shown["Exit code"]) == ("rowed/1", "lr=a b", "1")
    assert (
        shown["Results"].endswith("/berg_results/rowed/1/") and shown["Metrics"] == "lr 0.5, loss 2"
    )
    for words in (["show", "rowed"], ["sweep", "rowed/1"]):
        (first, second) = json.loads(cloud.run(*words, "--json").out)
        assert (first["params"], second["params"]) == ({"lr": "1"}, {"lr": "a b"}), words


def test_logs_of_several_machines_and_attempts_are_read_by_their_time(cloud: Cloud) -> None:
    put(cloud, "logged", "KILLED", exit_code=9)
    for name, when, content in (
        ("logged-1", "20260101T000000", b"first\n"),
        ("logged-0", "20260102T000000", b"third\nno end"),
        ("logged-1", "20260101T120000", "zweite gr\u00f6\u00dfe \xff\n".encode()),
    ):
        cloud.bucket.write(f".berg/logs/logged/{name}.{when}.log", content)
    cloud.bucket.write(".berg/logs/logged/logged-0.20260101T000000.usage.jsonl", b"{}\n")
    lines = ["logged-1: first", "logged-1: zweite größe ÿ", "logged-0: third", "logged-0: no end"]
    for words in (["log"], ["log", "-f"], ["tail"]):
        done = cloud.run(*words, "logged")
        assert done.out.splitlines() == lines, words
        assert done.code == (0 if words == ["log"] else 9), words
    assert "logged KILLED 20" in done.err  # when and why, of tail
    of_one = cloud.run("log", "logged", "--machine", "logged-0").out
    assert of_one == "third\nno end\n" == cloud.run("tail", "logged", "--machine", "logged-0").out
    assert json.loads(cloud.run("show", "logged", "--json").out)["log"] == lines
    said = cloud.run("log", "logged", "--machine", "logged-7")
    assert "logged is KILLED, and has printed nothing yet on logged-7" in said.err and not said.out
    cloud.bucket.write(".berg/logs/unrecorded/m.20260101T000000.log", b"still here\n")
    assert cloud.run("log", "unrecorded").out == "still here\n"
    assert "there is no job 'nothing'" in cloud.run("log", "nothing").err


def test_what_a_job_prints_steers_no_terminal(cloud: Cloud) -> None:
    log = "begin \x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2Jup \x9b31m\u202e\u200b\U000e0041 end\n"
    put(cloud, "steers", "FAILED", log=log.encode(), results={"file \u200b x\x1b[2J": b"x"})
    for words in ("log", "tail", "show", "fetch"):
        done = cloud.run(words, "steers")
        assert not re.search("[\x1b\x07\x9b\u202e\u200b\U000e0041]", done.out + done.err), done
        assert words == "fetch" or ("begin" in done.out and "end" in done.out), done
    assert "\x1b[31mred" in cloud.run("log", "steers", "--color").out
    primary, secondary = pty.openpty()
    env = {**cloud.env, "BERG_FORMAT": "human", "TERM": "xterm-256color"}
    subprocess.run([*BERG, "log", "steers"], env=env, stdout=secondary, check=True)
    os.close(secondary)
    shown = os.read(primary, 1 << 16).decode()
    assert "\x1b[31m" in shown and not re.search("\x1b[^[]|\x1b\\[2J|[\x07\x9b\u202e\u200b]", shown)


def spoiled(cloud: Cloud, path: str, how: str) -> None:
    """Damage a record, delete it, or let a later Berg have written it."""
    content = cloud.read(path)
    cloud.bucket.delete(path)
    if how != "missing":
        later = {**json.loads(content), "format": 99, "features": {"unheard": {}}, "unknown": 1}
        cloud.bucket.write(path, json.dumps(later).encode() if how == "later" else b"{]")


@pytest.mark.parametrize("how", ["later", "damaged", "missing"])
def test_a_job_works_by_its_name_whatever_its_records(
    cloud: Cloud, tmp_path: Path, how: str
) -> None:
    name = f"record-{how}"
    job = put(cloud, name, "RUNNING", ago=100, log=b"hello\n", results={"out": b"x"})
    machine(cloud, name, job)
    spoiled(cloud, jobs.state_path(name), how)
    spoiled(cloud, jobs.job_path(name), how)
    listed, log = cloud.run("list", "-a", "--json"), cloud.run("log", name)
    fetched, killed = (
        cloud.run("fetch", name, str(tmp_path)),
        cloud.run("kill", "-y", "--now", name),
    )
    assert name in listed.out and log.out == "hello\n", listed.err + log.err
    assert (tmp_path / "out").read_bytes() == b"x", fetched.err
    assert not gce.machines(cloud.config, name), killed.err


def test_a_line_is_said_when_it_is_whole(cloud: Cloud) -> None:
    log, read = ".berg/logs/halves/m.20260101T000000.log", dict[str, int]()
    seen = []
    for content, is_whole in (("one\nzü", False), ("one\nzürich\nüb\nend", True)):
        cloud.bucket.write(log, content.encode())
        seen.append([*logs.lines(cloud.bucket, "halves", read, is_whole)])
    assert seen == [["one"], ["zürich", "üb", "end"]]
    long = b"".join(b"%09d\n" % number for number in range(20_000))
    cloud.bucket.write(".berg/logs/long/m.20260101T000000.log", long)
    assert logs.last_lines(cloud.bucket, "long", 2) == ["000019998", "000019999"]
    assert len(logs.last_lines(cloud.bucket, "long", 10**6)) < 7000  # of its end alone


def test_kill_ends_what_is_meant_and_says_what_became_of_it(cloud: Cloud) -> None:
    def kill(*words: str, **env: str) -> list[dict[str, Any]]:
        done = cloud.run("kill", *words, "--json", **env)
        rows = list(json.loads(done.out))
        assert done.code == any("error" in row for row in rows), done
        return rows

    mine = {"BERG_USER": "killer"}
    assert "give the name of a job, or --all" in cloud.run("kill").err
    assert cloud.run("kill", "k-x", "--all").code == 2
    assert "There is nothing to end" in cloud.run("kill", "--all", **mine).err
    kept = {"kept_until": jobs.now(time.time() + 900)}
    one, waits, box = (
        put(cloud, "k-one", "SUBMITTED", ago=200, user="killer", job={"features": {"Secrets": {}}}),
        put(cloud, "k-waits", user="killer", **kept),
        put(cloud, "k-box", "RUNNING", ago=100, user="killer", job={"cmd": ""}),
    )
    secrets.store(cloud.config, one, secrets.secret_id(one), {"A": "b"})
    put(cloud, "k-over", user="killer")
    put(cloud, "k-other", "RUNNING", ago=100)
    for name, job in (("k-one", one), ("k-waits", waits), ("k-box", box), ("k-bare", None)):
        machine(cloud, name, job, user="killer", kind="job" if job else "devbox")
    rows = cells(cloud.run("list", "--limit", "0", **mine).out)  # what waits is always there
    listed = {row[0]: row[-1] for row in rows}
    assert [row[1] for row in rows if row[0] == "k-bare"] == ["RUNNING"] and "k-over" not in listed
    told = json.loads(cloud.run("list", "--json", **mine).out)
    assert [row["instances"] for row in told if row["name"] in ("k-one", "k-over")] == [
        [], ["k-one"],
    ]  # fmt: skip
    assert re.fullmatch(
        "waits for 1[45]m: berg run --on k-waits, berg kill k-waits", listed["k-waits"]
    )
    assert listed["k-bare"] == "k-bare has no job that can be read. Delete it: berg kill k-bare"
    assert "the machine of k-waits still waits" in cloud.run("rm", "-y", "k-waits", **mine).err
    cloud.fails("kill", "--all", "--now", **mine, says="End k-one, k-box, k-bare, k-waits?")
    assert (
        "Delete the devbox k-box and what is on its disk?"
        in kill("k-box", "--now", **mine)[0]["error"]
    )
    assert "Delete k-bare in us-central1-a with its disk?" in kill("k-bare", **mine)[0]["error"]
    assert len(gce.machines(cloud.config)) >= 4
    assert "berg kill k-one" in cloud.run("stop", "k-one", **mine).err  # it has no disk to keep
    rows = kill("-y", "k-one", "k-over", "k-nothing", **mine)
    assert [row.get("became") for row in rows] == ["KILLED", "SUCCEEDED", None]
    assert "there is no job 'k-nothing'" in rows[2]["error"]
    assert "k-over was SUCCEEDED" in cloud.run("kill", "k-over", **mine).err
    state = cloud.state("k-one")
    assert (state["state"], state["reason"], state["exit_code"]) == (
        "KILLED",
        "killed by killer",
        None,
    )
    assert list(state["times"]) == ["SUBMITTED", "KILLED"] and not cloud.secrets("k-one")
    ours, theirs = pty.openpty()
    os.write(ours, b"y\n")  # one answer for all that a pattern means
    env = {**cloud.env, **mine, "BERG_FORMAT": "human"}
    words = [*BERG, "kill", "k-*", "--now", "--json"]
    done = subprocess.run(words, env=env, stdin=theirs, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert {row["name"]: row["became"] for row in json.loads(done.stdout)} == {
        "k-box": "KILLED", "k-waits": "SUCCEEDED", "k-bare": "machine deleted"
    }  # fmt: skip
    assert cloud.state("k-waits")["kept_until"] <= jobs.now(time.time() + 1)
    assert cloud.state("k-other")["state"] == "RUNNING"
    assert not [each for each in gce.machines(cloud.config) if each.name.startswith("k-")]


def test_a_row_that_nobody_has_is_killed_alone(cloud: Cloud) -> None:
    job = {"cmd": "t {x}", "rows": [{"x": str(number)} for number in range(3)]}
    owner = cloud.config.user
    sweep = put(cloud, "krows", "RUNNING", ago=100, job=job)
    put_row(cloud, sweep, 0, "FAILED")
    put_row(cloud, sweep, 1, "SUBMITTED", times={"SUBMITTED": sweep.created_at})
    done = cloud.run("kill", "krows/0", "krows/1", "krows/2", "krows/3", "--json")
    rows = {row["name"]: row.get("became") for row in json.loads(done.out)}
    assert rows == {"krows/0": "FAILED", "krows/1": "KILLED", "krows/2": "KILLED", "krows/3": None}
    assert "krows has 3 rows, from krows/0 on" in done.err and done.code == 1
    row = json.loads(cloud.read(".berg/rows/krows/2.json"))
    assert (row["reason"], row["results"]) == (f"killed by {owner}", "krows/2")
    assert cloud.state("krows")["state"] == "RUNNING"
    cloud.fails("kill", "krows/2", BERG_USER="x", says=f"End krows/2? It is {owner}'s, 10")


def test_rm_takes_all_of_a_job_and_nothing_of_others(cloud: Cloud) -> None:
    sweep = put(
        cloud, "gone", job={"cmd": "t {x}", "rows": [{"x": "1"}]}, log=b"a\n", results={"f": b"1"}
    )
    put_row(cloud, sweep, 0, "SUCCEEDED", results="gone-row")
    for name in ("gone-row/f", "gone2/f"):
        cloud.bucket.write(f"berg_results/{name}", b"2" * 1_500_000)
    others = [f".berg/{kind}/gone-not/x" for kind in ("logs", "machines", "moments", "rows")]
    for name in [*others, *(other.replace("gone-not", "gone") for other in others)]:
        cloud.bucket.write(name, b"x")
    put(cloud, "gone-not", results={"f": b"1"})
    put(cloud, "too-live", "RUNNING", ago=100)
    assert (
        "too-live is RUNNING. End it first: berg kill too-live"
        in cloud.run("rm", "-y", "too-live").err
    )
    assert "Delete the whole sweep: berg rm gone" in cloud.run("rm", "-y", "gone/0").err
    asked = cloud.run("rm", "gone")
    assert asked.code == 1 and "Delete gone forever?" in asked.err
    assert "gone: 10 objects, 1.5 MB.\n" in asked.err, asked.err
    kept = [name for name in cloud.names() if "gone-not" in name or "gone2" in name]
    put(cloud, "too-gone", log=b"a\n")
    done = cloud.run("rm", "-y", "gone", "too-*", "--json")
    assert json.loads(done.out) == [
        {"name": "gone", "done": "deleted", "objects": 10},
        {"name": "too-gone", "done": "deleted", "objects": 3},
    ]
    assert [name for name in cloud.names() if "gone" in name] == kept and len(kept) == 8
    assert "There is nothing to delete" in cloud.run("rm", "*", BERG_USER="nobody-at-all").err


def test_a_devbox_is_switched_off_and_on_by_its_machine(cloud: Cloud) -> None:
    on = machine(cloud, "switched", kind="devbox")
    box = {"job": {"cmd": ""}, "ago": 1000, "took": 600}
    put(cloud, "switched", "RUNNING", **box, machine_id=on.id)
    assert cloud.run("show", "switched", "--ip").out.strip() == on.inner_address
    guest = {"zone": on.zone, "user": "guested", "machine_id": on.id}
    put(cloud, "guest", "RUNNING", ago=1000, **guest)
    ((_, *row),) = cells(cloud.run("list", BERG_USER="guested").out)[1:]
    assert (row[0], row[-1]) == ("RUNNING", "on switched")
    shown = json.loads(cloud.run("show", "guest", "--json").out)
    assert (shown["state"], shown["instances"]) == ("RUNNING", ["switched"])
    assert fields(cloud.run("show", "guest").out)["Waiting"] == "on switched"
    cloud.fails("local", "stop", says="machines with it? Without a terminal")
    assert "guest is KILLED" in cloud.run("kill", "-y", "guest", "--now").err
    assert "there is no devbox 'nosuch'" in cloud.run("start", "nosuch").err
    assert "switched is off. Its disk costs money" in cloud.ok("stop", "switched", "--now").err
    shown = json.loads(cloud.run("show", "switched", "--json").out)
    assert shown["state"] == "STOPPED" and shown["running"][0]["status"] == "TERMINATED"
    about = fields(cloud.run("show", "switched").out)
    assert about["Command"] == "none: a devbox" and about["Code"].startswith("r at no commit, 0")
    assert about["Machines"] == "switched TERMINATED e2-medium in us-central1-a" and not (
        {"Waiting", "Attempt", "Exit code", "Note"} & about.keys()
    )
    assert "switched is on. Log in: berg ssh switched" in cloud.run("start", "switched").err
    assert cloud.state("switched")["state"] == "RUNNING"
    assert gce.machines(cloud.config, "switched")[0].is_on
    other = machine(cloud, "switched-2", kind="devbox")
    put(cloud, "switched-2", "STOPPED", **box, machine_id=on.id)
    put(cloud, "switched", "STOPPED", **box, machine_id=on.id)
    on.stop(cloud.config)
    assert cloud.run("start", "switched", "switched-2").code == 0
    state = cloud.state("switched")
    assert (state["state"], [*state["times"]]) == ("SUBMITTED", ["SUBMITTED"])
    assert round(state["seconds_before"]) == 600
    assert cloud.state("switched-2")["state"] == "STOPPED"  # it is of another machine
    for each in (on, other):
        each.delete(cloud.config)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["cancel"], 2, "Did you mean: berg kill"), (["launch"], 2, "Did you mean: berg run"),
        (["status"], 2, "Did you mean: berg list"), (["logs"], 2, "Did you mean: berg log"),
        (["exec"], 2, "Did you mean: berg ssh"), (["down"], 2, "Did you mean: berg kill"),
        (["shwo"], 2, "Did you mean: berg show"),
        (["terminate"], 2, "mean: berg kill"), (["delete"], 2, "mean: berg kill"),
        (["submit"], 2, "mean: berg run"), (["ls"], 2, "mean: berg list"),
        (["ps"], 2, "mean: berg list"), (["jobs"], 2, "mean: berg list"),
        (["queue"], 2, "mean: berg list"), (["describe"], 2, "mean: berg show"),
        (["attach"], 2, "mean: berg ssh"), (["download"], 2, "mean: berg fetch"),
        (["pull"], 2, "mean: berg fetch"),
        (["run", "-v", "a:/b", "true"], 2, "For data: --data NAME or --mount NAME"),
        (["run", "--volume", "a", "true"], 2, "For data: --data NAME or --mount NAME"),
        (["run", "-d", "true"], 2, "It returns at once anyway; to wait: --wait or --tail"),
        (["run", "--detach", "true"], 2, "It returns at once anyway"),
        (["run", "-i", "true"], 2, "For a shell: berg devbox, then berg ssh NAME"),
        (["run", "--interactive", "true"], 2, "For a shell: berg devbox"),
        (["run", "-w", "/x", "true"], 2, "CMD runs in the folder where you are"),
        (["run", "--workdir", "/x", "true"], 2, "CMD runs in the folder where you are"),
        (["run", "--rm", "true"], 2, "A job's machine is deleted at its end"),
        (["run", "--partition", "a", "true"], 2, "For a kind of GPU: -t TYPE"),
        (["run", "--memory", "8", "true"], 2, "For more memory: --machine-type n2-highmem-8"),
        (["run", "--port", "8", "true"], 2, "For a port of a job's machine: berg open NAME 8080"),
        (["run", "--ports", "8", "true"], 2, "For a port of a job's machine"),
        (["run", "--publish", "8", "true"], 2, "For a port of a job's machine"),
        (["run", "--accelerators", "T4:1", "true"], 2, "Say how many and which: -g 1 -t l4"),
        (["run", "--gres", "gpu:1", "true"], 2, "Say how many and which: -g 1 -t l4"),
        (["run", "--num-nodes", "2", "true"], 2, "For several machines: -m 2 --each"),
        (["run", "--num_nodes", "2", "true"], 2, "For several machines: -m 2 --each"),
        (["run", "--cloud", "gcp", "true"], 2, "It is Google's"),
        (["run", "--use-spot", "true"], 2, "For Spot machines: --spot"),
        (["run", "--preemptible", "true"], 2, "For Spot machines: --spot"),
        (["run", "torchrun", "a.py"], 2, "Put CMD in quotes"),
        (["qqqq"], 2, "No such command 'qqqq'. See them: berg --help"),
        (["run", "-e", "A=1", "true"], 2, "For a variable: --env NAME=VALUE"),
        (["run", "--gpu", "l4", "true"], 2, "Say how many and which: -g 1 -t l4"),
        (["run", "--time", "1h", "true"], 2, "For a limit: --max-hours 2"),
        (["run", "--mem", "8", "true"], 2, "For more memory: --machine-type"),
        (["run", "-p", "8080", "true"], 2, "berg open NAME 8080"),
        (["run", "--nodes", "2", "true"], 2, "-m 2 --each"),
        (["run", "python", "train.py", "--lr", "1"], 2, "Put CMD in quotes"),
        (["run", "python", "train.py"], 2, "Put CMD in quotes"),
        (["show", "--nosuch"], 2, "No such option"),
        (["show", "a", "python"], 2, "unexpected extra argument (python)\n"),
        (["show", "no-such-job"], 1, "Error: there is no job 'no-such-job'"),
        (["ssh", "no-such-job", "--", "--json"], 1, "Error: "),  # an option of its command
    ],
)  # fmt: skip
def test_wrong_words_have_an_answer(cloud: Cloud, words: list[str], code: int, says: str) -> None:
    said = cloud.fails(*words, says=says, code=code)
    assert said.startswith("Usage: " if code == 2 else "Error: "), said


def test_an_error_is_an_object_for_programs(cloud: Cloud) -> None:
    for words, code, says in [
        (["run", "--jsn", "--json"], 2, "No such option"),
        (["show", "no-such-job", "--json"], 1, "there is no job 'no-such-job'"),
        (["list", "--limit", "-1", "--json"], 2, "--limit"),
    ]:
        done = cloud.run(*words)
        told = json.loads(done.err)
        assert done.code == told["exit_code"] == code and says in told["error"] and not done.out


def test_names_that_cannot_be_are_refused(cloud: Cloud) -> None:
    commands = ["log", "fetch", "kill", "kill -y --now", "ssh", "rm", "wait", "rerun", "tail", "stop",
                "start", "sync", "run --resume", "rerun --new-code"]  # fmt: skip
    for name in ("no-such-job", "../../x", "x\x1b]0;evil\x07", "a\nforged"):
        for words in commands:
            said = cloud.fails(*words.split(), "--", name, says="Error: ")
            assert "\x1b" not in said and "\nforged" not in said, (words, said)


def test_help_has_the_commands_by_what_they_are_for(cloud: Cloud) -> None:
    help_, version = cloud.run("-h"), cloud.run("--version")
    assert (help_.code, version.code) == (0, 0) and re.match(
        r"berg, version 1\.\S+\+g[0-9a-f]{7}", version.out
    )
    titles = re.findall(r"^(\w[\w ]*):$", help_.out, re.M)
    assert titles == ["Options", "Run", "Jobs", "Machines", "Look", "Prepare", "Set up"]


def test_a_shell_completes_ones_own_jobs_and_commands(cloud: Cloud) -> None:
    for name, ago, user in (
        ("comp-a", 100, "typist"),
        ("comp-b", 50, "typist"),
        ("of-a-typist", 40, "typist"),
        ("comp-c", 10, "x"),
    ):
        put(cloud, name, ago=ago, took=1, user=user)
    found = completed(cloud, "berg show comp", BERG_USER="typist")
    assert found.split() == ["plain,comp-b", "plain,comp-a"]
    assert "plain,--spot" in completed(cloud, "berg run --sp")
    words = completed(cloud, "berg lo", COMP_CWORD="1").split()
    assert words == ["plain,log", "plain,local"]


def test_a_machine_that_cannot_be_logged_in_to_is_named(cloud: Cloud, project: Path) -> None:
    put(cloud, "no-machine", "FAILED")
    for words in (["ssh"], ["open"], ["profile"]):
        done = cloud.run(*words, "no-machine")
        says = "no-machine is FAILED and has no machine. See: berg show no-machine"
        assert done.code == 1 and says in done.err, done.err
    job = put(cloud, "switched-off", "STOPPED", job={"cmd": "", "repo": "other"})
    made = machine(cloud, "switched-off", job, kind="devbox")
    assert "switched-off has no machine 1" in cloud.run("ssh", "switched-off/1").err
    assert "Only a command that runs can be profiled" in cloud.run("profile", "switched-off").err
    done = cloud.run("sync", "switched-off", "--once", cwd=project)
    assert "switched-off is of the repository 'other', and this is 'proj'" in done.err
    made.stop(cloud.config)
    assert "switched-off is off. Switch it on: berg start" in cloud.run("ssh", "switched-off").err
    made.delete(cloud.config)


def test_an_end_is_written_once_and_for_the_job_that_was_meant(cloud: Cloud) -> None:
    job = put(cloud, "concluded", "RUNNING", ago=100)
    other = Job(**{**vars(job), "id": "another"})
    assert jobs.conclude(cloud.bucket, other, "LOST", "x").state == "RUNNING"
    assert jobs.read_job(cloud.bucket, "concluded", job.sha256) == job
    with pytest.raises(BergError, match="is not what was submitted: nothing of it was run"):
        jobs.read_job(cloud.bucket, "concluded", other.sha256)
    ended = jobs.conclude(cloud.bucket, job, "FAILED", "broke", 3)
    assert (ended.state, ended.reason, ended.exit_code) == ("FAILED", "broke", 3)
    assert jobs.conclude(cloud.bucket, job, "KILLED", "y").state == "FAILED"
    state = cloud.state("concluded")
    assert (state["state"], state["exit_code"]) == ("FAILED", 3) and "FAILED" in state["times"]

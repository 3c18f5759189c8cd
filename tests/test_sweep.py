"""Sweeps through the command line: many jobs of one command, on machines that take one after
another.
"""

import csv
import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Berg, commit, git, wait_for
from test_run import check_ended

from berg import BergError, job
from berg import states as states_door
from berg.laptop import ending, jobs, sweep

TRAIN = """
import json, os, sys, time
lr, out = sys.argv[1], os.environ["BERG_RESULTS_DIR"]
os.makedirs(out, exist_ok=True)
print(len(os.environ.get("TOKEN", "")), "letters")
print("lr", lr, "attempt", os.environ["BERG_ATTEMPT"], "left", os.path.exists("left"), flush=True)
open("left", "w").close()
with open(out + "/metrics.jsonl", "w") as file:
    for step in range(3):
        print(json.dumps({"step": step, "loss": float(lr) * step}), file=file)
time.sleep(float(sys.argv[2]))
sys.exit(4 if lr == "0.01" and os.environ["BERG_ATTEMPT"] == "1" else 0)
"""


def states(berg: Berg, name: str) -> dict[str, str]:
    listed = json.loads(berg("list", "--json").stdout)
    return {each["name"]: each["state"] for each in listed if each.get("sweep") == name}


def machines(berg: Berg, name: str) -> list[str]:
    return sorted(each for each in berg.machines() if each.startswith(f"{name}-machine-"))


def over(berg: Berg, name: str) -> None:
    wait_for(lambda: not machines(berg, name), 60, "the end of the machines")


def test_from_a_grid_to_a_table(berg, tmp_path):
    (berg.repo / "train.py").write_text(TRAIN)
    command = "python train.py {lr} {pause} --logdir=/root/berg_results/sweep1/{lr}_{pause}"
    grid = ["--grid", "lr=0.1,0.01", "--grid", "pause=0.1,0.2"]
    ran = berg(
        "run",
        "-g",
        "0",
        "-n",
        "lr",
        *grid,
        "--parallel",
        "2",
        "--max-hours",
        "3",
        "--wait",
        command,
    )
    assert ran.returncode == 4, ran.stderr
    assert "4 jobs on 2 machines, at most 12 machine-hours" in ran.stderr
    assert re.search(r"^lr-1  0.1 +0.2 +sweep1/0.1_0.2$", ran.stderr, re.M)
    assert ran.stdout == "lr\n" and "lr: 2 SUCCEEDED, 2 FAILED" in ran.stderr
    over(berg, "lr")
    lines = [
        line
        for line in "".join(berg.log(f"lr-{n}") for n in range(4)).splitlines()
        if line.startswith("lr ")
    ]
    assert len(lines) == 4, "each job ran once"
    assert all("left False" in line for line in lines), "and found the code as it was submitted"
    assert re.search(r"^lr +2 SUCCEEDED, 2 FAILED .* sweep1/… *$", berg("list").stdout, re.M)
    assert re.search(r"^lr-2 +FAILED .* 4 +sweep1/", berg("list", "-v").stdout, re.M)
    assert "lr 0.01 attempt 1" in berg("log", "lr/2").stdout
    asked = berg("log", "lr")
    assert (
        asked.returncode == 1
        and "lr is a sweep; name one of its jobs, such as lr/0" in asked.stderr
    )

    again = berg("run", "--resume", "lr", "--wait", "--parallel", "1")
    assert again.returncode == 0 and "2 jobs of lr run again" in again.stderr, again.stderr
    assert "the code that they ran before, " in again.stderr
    assert berg("run", "--resume", "lr").stderr.startswith("No job of lr failed or was lost")
    fetched = berg("fetch", "lr", str(tmp_path / "here"))
    assert fetched.stdout == f"{tmp_path}/here/results.csv\n", fetched.stderr
    assert "as code" not in fetched.stderr
    inside = berg("fetch", "lr", "results")
    assert f"in the repo {berg.repo.resolve()}, and its next job gets it as code" in inside.stderr
    rows = list(csv.DictReader((tmp_path / "here/results.csv").open()))
    assert [row["name"] for row in rows] == ["lr-0", "lr-1", "lr-2", "lr-3"]
    third = {
        "state": "SUCCEEDED",
        "exit_code": "0",
        "param.lr": "0.01",
        "param.pause": "0.1",
        "metric.loss": "0.02",
    }
    assert rows[2] | third == rows[2]
    assert (tmp_path / "here/sweep1/0.1_0.2/metrics.jsonl").exists()
    check_ended(berg, "lr-2", "SUCCEEDED", 0)
    assert berg.state("lr-2")["attempt"] == 2 and "lr 0.01 attempt 1" in berg("log", "lr/2").stdout


@pytest.mark.slow
def test_what_failed_runs_again_with_the_code_as_it_is_now(berg, tmp_path):
    (berg.repo / "train.py").write_text("import sys\nsys.exit(int(sys.argv[1]))\n")
    grid = ["-g", "0", "-n", "fix", "--parallel", "1", "--grid", "code=0,3"]
    assert berg("run", *grid, "--wait", "python train.py {code}").returncode == 3
    over(berg, "fix")
    before = [json.loads(berg.bucket.read(job.metadata_path(f"fix-{n}"))) for n in range(2)]
    (berg.repo / "train.py").write_text("print('mended')\n")
    (tmp_path / "another").mkdir()
    git(tmp_path / "another", "init", "-q")
    (tmp_path / "another/a").touch()
    commit(tmp_path / "another")
    refused = berg("run", "--new-code", "true")
    assert refused.returncode == 2 and "--resume" in refused.stderr, refused.stderr
    elsewhere = berg("run", "--resume", "fix", "--new-code", cwd=tmp_path / "another")
    assert (
        elsewhere.returncode == 1
        and "fix runs the repo proj, and this is another" in elsewhere.stderr
    )
    again = berg("run", "--resume", "fix", "--new-code", "--wait")
    assert again.returncode == 0 and "mended" in berg.log("fix-1"), again.stderr
    after = [json.loads(berg.bucket.read(job.metadata_path(f"fix-{n}"))) for n in range(2)]
    old, new = before[1]["git_snapshot"], after[1]["git_snapshot"]
    assert after[0] == before[0], "the job that succeeded stays as it was"
    assert new != old and after[1]["git_changed_files"] == ["M train.py"]
    assert (
        f"the code as it is now, {new[:12]}, HEAD " in again.stderr
        and f"before it was {old[:12]}" in again.stderr
    )
    assert berg.state("fix-1")["job"]["commit"] == new[:12]
    assert f"Checked out {new[:12]}" in berg.log("fix-1")
    over(berg, "fix")


@pytest.mark.slow
def test_what_would_run_again_is_shown_and_nothing_is_created(berg):
    options = [
        "-g",
        "0",
        "-n",
        "dry",
        "--grid",
        "code=0,3,4",
        "--max-hours",
        "2",
        "--secret",
        "TOKEN",
        "--wait",
    ]
    assert berg("run", *options, "exit {code}", TOKEN="sesame").returncode == 3
    over(berg, "dry")
    (berg.repo / "train.py").write_text("print('mended')\n")
    before = berg.objects(".berg/")
    again = ["--resume", "dry", "--dry-run", "--json", "--secret", "TOKEN"]
    for more, code in ((), "that they ran before, "), (["--new-code"], "as it is now, "):
        shown = berg("run", *again, "--parallel", "1", *more, TOKEN="sesame")
        assert shown.returncode == 0, shown.stderr
        lines = [" ".join(line.split()) for line in shown.stderr.splitlines()]
        assert lines[:3] == [
            "JOB STATE code RESULTS",
            "dry-1 FAILED 3 dry/1",
            "dry-2 FAILED 4 dry/2",
        ]
        assert f"Code      the code {code}" in shown.stderr
        assert "Machines  1 new" in shown.stderr and "n1-standard-8" in shown.stderr
        assert "Secrets   TOKEN" in shown.stderr and "Otherwise" not in shown.stderr
        assert json.loads(shown.stdout)["name"] == "dry"
    assert "there is no such variable" in berg("run", *again).stderr, (
        "what it would fail for it fails for now"
    )
    without = berg("run", "--resume", "dry", "--dry-run", "--json", TOKEN="sesame")
    assert "dry had secrets. Give them again: --secret TOKEN" in without.stderr
    one = berg("run", "--resume", "dry/0", *again[2:], TOKEN="sesame")
    assert "dry-0  SUCCEEDED" in one.stderr and "dry-1" not in one.stderr
    assert berg.objects(".berg/") == before and machines(berg, "dry") == []


@pytest.mark.slow
def test_a_machine_that_goes_leaves_its_job_to_another(berg):
    (berg.repo / "train.py").write_text(TRAIN)
    wishes = [
        "-g",
        "0",
        "-n",
        "spot",
        "--spot",
        "--parallel",
        "2",
        "--grid",
        "n=1,2,3",
        "--secret",
        "TOKEN",
    ]
    ran = berg("run", *wishes, "python train.py {n} 2", TOKEN="sesame")
    assert ran.returncode == 0, ran.stderr
    running = wait_for(
        lambda: berg.state("spot-0")["state"] == "RUNNING" and berg.state("spot-0")["machine"], 60
    )
    berg.cloud.call("POST", f"/_berg/instances/{running}/preempt", {"grace": 20})
    wait_for(lambda: set(states(berg, "spot").values()) == {"SUCCEEDED"}, 60, "the end of all jobs")
    state = berg.state("spot-0")
    assert state["attempt"] == 2 and state["machine"] != running
    over(berg, "spot")
    assert "\n6 letters\n" in berg.log("spot-2")
    secrets = berg.cloud.call("GET", "/secretmanager/v1/projects/berg-local/secrets").get(
        "secrets", []
    )
    assert not [each for each in secrets if each["name"].endswith("/berg-spot")], (
        "it goes with the sweep"
    )


@pytest.mark.slow
def test_names_that_begin_alike_are_left_alone(berg):
    """A sweep takes no other job, and a job whose submit fails, or that ends, deletes no machine of
    a sweep.
    """
    ran = berg("run", "-g", "0", "-n", "lr", "--parallel", "1", "--grid", "s=600,601", "sleep {s}")
    assert ran.returncode == 0 and "\n2 jobs on 1 machine, " in ran.stderr, ran.stderr
    wait_for(lambda: "RUNNING" in states(berg, "lr").values(), 60)
    berg.cloud.call("POST", "/_berg/stockout", {})
    try:
        failed = berg("run", "-g", "0", "-n", "lr-none", "true")
    finally:
        berg.cloud.call("POST", "/_berg/stockout", {"on": False})
    assert (
        failed.returncode == 1
        and "Deleting what was created" in failed.stderr
        and machines(berg, "lr")
    ), failed.stderr
    ended = berg("run", "-g", "0", "-m", "2", "-n", "lr-two", "--wait", "true")
    assert ended.returncode == 0 and machines(berg, "lr"), ended.stderr
    text = job.State(job=job.Summary("tester", job.now())).to_json()
    berg.bucket.write(job.state_path("lr-other"), text, metadata={"state": text})
    assert berg("kill", "lr").returncode == 0
    over(berg, "lr")
    assert berg.state("lr-other")["state"] == "SUBMITTED"


@pytest.mark.slow
def test_a_job_that_has_the_name_of_one_of_a_sweep_goes_on(berg):
    assert berg("run", "-g", "0", "-n", "lr-1", "sleep 600").returncode == 0
    wait_for(lambda: berg.state("lr-1")["state"] == "RUNNING", 60)
    metadata = berg.objects(".berg/jobs/lr-1_metadata")
    refused = berg("run", "-g", "0", "-n", "lr", "--grid", "s=1,2,3", "sleep {s}")
    assert (
        refused.returncode == 1
        and "there is a job 'lr-1' already. Choose another" in refused.stderr
    ), refused.stderr
    assert list(berg.objects(".berg/jobs/")) == [job.metadata_path("lr-1"), job.state_path("lr-1")]
    assert berg.objects(".berg/jobs/lr-1_metadata") == metadata and not berg.objects(
        ".berg/sweeps/"
    )
    assert berg.state("lr-1")["state"] == "RUNNING" and list(berg.machines()) == ["lr-1"]
    assert berg("kill", "--now", "lr-1").returncode == 0


@pytest.mark.slow
def test_a_sweep_that_is_killed_at_once_leaves_no_secret(berg):
    options = ["--parallel", "1", "--grid", "s=50,51", "--secret", "TOKEN"]
    assert berg("run", "-g", "0", "-n", "hush", *options, "sleep {s}", TOKEN="x").returncode == 0

    def left() -> list[str]:
        listed = berg.cloud.call("GET", "/secretmanager/v1/projects/berg-local/secrets").get(
            "secrets", []
        )
        return [each["name"] for each in listed if each["name"].endswith("/berg-hush")]

    assert left() and berg("kill", "--now", "hush/0").returncode == 0 and left()
    assert berg("kill", "--now", "hush").returncode == 0 and left() == []
    over(berg, "hush")


@pytest.mark.slow
def test_a_worker_that_dies_loses_only_its_job(berg):
    ran = berg(
        "run",
        "-g",
        "0",
        "-n",
        "dies",
        "--parallel",
        "1",
        "--grid",
        "s=30,0.1,0.2",
        "echo begun; sleep {s}",
    )
    assert ran.returncode == 0, ran.stderr
    wait_for(lambda: "\nbegun\n" in berg.log("dies-0"), 60)
    os.kill(worker_of_sweep("dies"), signal.SIGKILL)
    expected = {"dies-0": "FAILED", "dies-1": "SUCCEEDED", "dies-2": "SUCCEEDED"}
    wait_for(lambda: states(berg, "dies") == expected, 90, "the end of the others")
    assert "berg's worker was killed by signal 9" in berg.state("dies-0")["reason"]
    over(berg, "dies")


@pytest.mark.slow
def test_what_one_job_could_not_save_is_no_matter_of_the_next(berg, tmp_path):
    out, elsewhere = "$BERG_RESULTS_DIR", "/root/disk-of-$BERG_JOB"
    command = f"[ {{n}} != 0 ] || ln -s /etc/hostname {out}/link; "
    command += f"[ {{n}} != 1 ] || {{ rm -r {out}; mkdir {elsewhere}; ln -s {elsewhere} {out}; }}; "
    command += f"echo {{n}} >{out}/n; echo has $(ls $(dirname {out}))"
    ran = berg(
        "run", "-g", "0", "-n", "odd", "--parallel", "1", "--grid", "n=0,1,2", "--wait", command
    )
    over(berg, "odd")
    assert ran.returncode == 0, ran.stderr
    fetched = berg("fetch", "odd", str(tmp_path / "here"))
    for said in (ran.stderr, fetched.stderr):
        assert "\nodd-0 SUCCEEDED: 1 file is not in the bucket: odd/0/link (" in said, said
    reasons = [berg.state(f"odd-{n}")["reason"] for n in range(3)]
    assert reasons == [
        "1 file is not in the bucket: odd/0/link (a link to outside of the results)",
        "",
        "",
    ]
    assert "\nhas 2\n" in berg.log("odd-2") and berg.objects("berg_results/odd/1/n") == {
        "berg_results/odd/1/n": b"1\n"
    }


def worker_of_sweep(name: str) -> int:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[-3:] == [b"sweep", name.encode(), b""]:
            return int(path.parent.name)
    raise AssertionError("no worker")


@pytest.mark.parametrize("machines", [1, 2])
def test_kill_of_a_sweep_lists_all_machines_once_however_many_jobs_it_has(berg, cloud, machines):
    """Of such lists a project has 750 a minute, and each has all machines."""
    cloud.call("POST", "/_berg/settings", {"boot": 0})
    options = ["--parallel", str(machines), "--grid", "s=1,2,3,4,5,6"]
    assert berg("run", "-g", "0", "-n", "lot", *options, "true {s}").returncode == 0
    bucket = berg.bucket
    for number, machine in enumerate(sorted(berg.machines())):
        stored = states_door.read(bucket, f"lot-{number}")
        zone = berg.machines()[machine]["zone"].rpartition("/")[2]
        running = replace(stored.state, state="RUNNING", machine=machine, zone=zone)
        states_door.replaced(bucket, stored, running)
    cloud.call("DELETE", "/_berg/requests")
    ended = berg("kill", "--now", "lot")
    assert ended.returncode == 0, ended.stderr
    asked = cloud.call("GET", "/_berg/requests")["counts"]
    assert asked["compute.instances.aggregatedList"] <= 2
    assert set(states(berg, "lot").values()) == {"KILLED"} and not berg.machines()


def test_a_waiting_job_that_a_machine_took_since_the_list_is_told_to_end(berg, cloud):
    cloud.call("POST", "/_berg/settings", {"boot": 0})
    options = ["--parallel", "1", "--grid", "s=1,2"]
    assert berg("run", "-g", "0", "-n", "lot", *options, "true {s}").returncode == 0
    bucket = berg.bucket
    seen = ending.parts(bucket.config, "lot")["lot-1"]
    (machine,) = berg.machines()
    began = replace(seen.stored.state, state="RUNNING", machine=machine, zone="us-central1-a")
    states_door.replaced(bucket, seen.stored, began)
    cloud.call("DELETE", "/_berg/requests")
    assert ending.kill(bucket.config, "lot-1", True, print, seen) == "KILLED"
    asked = cloud.call("GET", "/_berg/requests")["counts"]
    assert asked["compute.instances.setMetadata"] == 1, "its worker hears of it"
    assert not berg.machines()


@pytest.mark.slow
def test_kill_takes_all_jobs(berg):
    ran = berg(
        "run", "-g", "0", "-n", "many", "--parallel", "2", "--grid", "s=50,51,52,53,54", "sleep {s}"
    )
    assert ran.returncode == 0, ran.stderr
    wait_for(lambda: list(states(berg, "many").values()).count("RUNNING") == 2, 60)
    one = berg("kill", "many/1")
    assert one.returncode == 0 and states(berg, "many")["many-1"] == "KILLED", one.stderr
    wait_for(
        lambda: list(states(berg, "many").values()).count("RUNNING") == 2,
        60,
        "the machine with its next job",
    )
    assert berg("kill", "many").returncode == 0
    assert set(states(berg, "many").values()) == {"KILLED"}
    over(berg, "many")
    assert berg("kill", "many", "-y").stderr == "There is nothing to kill.\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--grid", "lr=1,2", "x {lr} {bs}"], "row 0 (lr=1) has no value for {bs} of the command"),
        (
            ["--grid", "lr=1,2", "x"],
            "row 0 (lr=1) has a value for 'lr', but the command has no {lr}",
        ),
        (
            ["--grid", "lr=1,2", "x {lr} /root/berg_results/a"],
            "row 1 (lr=2) has the same results dir as row 0: a",
        ),
        (["--grid", "lr", "x {lr}"], "--grid 'lr' is not of the form NAME=VALUE,VALUE…"),
        (["--grid", "lr=1,1", "x {lr}"], "names a value twice"),
        (["--grid", "lr=1,2", "-m", "2", "x {lr}"], "each job of a sweep runs on one machine"),
        (["--tasks", "empty.csv", "x {lr}"], "empty.csv has no tasks"),
        (
            ["--tasks", "nowhere.csv", "x {lr}"],
            "cannot read nowhere.csv: No such file or directory",
        ),
        (["--tasks", "ragged.csv", "x {lr}"], "ragged.csv, row 3: 2 values for 1 columns"),
        (["--tasks", "bad.jsonl", "x {lr}"], "bad.jsonl, line 2: "),
        (["--resume", "nothing"], "there is no job or machine 'nothing'"),
    ],
)
def test_bad_input_is_refused_with_its_row(berg, options, says):
    files = {"empty.csv": "lr\n", "ragged.csv": "lr\n1\n2,3\n", "bad.jsonl": '{"lr": 1}\n[1]\n'}
    for name, text in files.items():
        (berg.repo / name).write_text(text)
    ran = berg("run", *([] if "--resume" in options else ["-g", "0"]), *options)
    assert ran.returncode == 1 and says in ran.stderr, ran.stderr
    assert berg.objects() == {} and berg.machines() == {}


def test_more_than_the_quota_leaves_nothing(berg):
    quota = {"metric": "CPUS", "region": "us-central1"}
    berg.cloud.call("POST", "/_berg/quotas", {**quota, "limit": 10})
    try:
        ran = berg(
            "run", "-g", "0", "-c", "2", "-n", "much", "--grid", "n=1,2,3,4,5,6,7,8", "echo {n}"
        )
    finally:
        berg.cloud.call("POST", "/_berg/quotas", {**quota, "limit": 10_000})
    assert ran.returncode == 1 and "Quota 'CPUS' exceeded.  Limit: 10.0" in ran.stderr, ran.stderr
    assert (
        berg.machines() == {}
        and not berg.objects(".berg/jobs/")
        and not berg.objects(".berg/sweeps/")
    )


def test_only_placeholders_are_filled_and_values_are_words():
    command = "for i in {1..3} {a..c} {a,b}; do echo ${HOME} {x} '$y'; done"
    values = {"x": "two words; rm -rf $HOME"}
    assert sweep.fill(command, values) == command.replace("{x}", "'two words; rm -rf $HOME'")


def test_names_with_dots_are_filled_and_doubled_braces_are_braces(tmp_path):
    (tmp_path / "t.csv").write_text("model.lr,data/set,n-layers\n0.1,a b,3\n")
    (values,) = sweep.tasks(tmp_path / "t.csv")
    command = """x model.lr={model.lr} {data/set} '{"n": {n-layers}}' | awk '{{print}}' {{x-y.z}}"""
    sweep.check_row(command, values, "row 0")
    filled = """x model.lr=0.1 'a b' '{"n": 3}' | awk '{print}' {x-y.z}"""
    assert sweep.fill(command, values) == filled
    assert sweep.grid(("model.lr=1,2",)) == [{"model.lr": "1"}, {"model.lr": "2"}]
    with pytest.raises(BergError, match=r"has no value for \{x\.y\} of the command"):
        sweep.check_row(command + "{x.y}", values, "row 0")


@pytest.mark.slow
def test_braces_without_a_grid_are_left_alone(berg):
    ran = berg("run", "-g", "0", "-n", "braces", "--wait", "echo {lr} {1..3}")
    assert ran.returncode == 0 and "\n{lr} 1 2 3\n" in berg.log("braces"), ran.stderr


def test_tasks_from_files(tmp_path):
    (tmp_path / "t.csv").write_text('lr,text\n0.1,"a, b"\n\n0.2,c\n')
    (tmp_path / "t.jsonl").write_text('{"lr": 0.1, "flag": true}\n\n{"lr": 1, "flag": "x"}\n')
    assert sweep.tasks(tmp_path / "t.csv") == [
        {"lr": "0.1", "text": "a, b"},
        {"lr": "0.2", "text": "c"},
    ]
    assert sweep.tasks(tmp_path / "t.jsonl") == [
        {"lr": "0.1", "flag": "true"},
        {"lr": "1", "flag": "x"},
    ]
    with pytest.raises(BergError, match="is given twice"):
        sweep.grid(("a=1", "a=2"))
    assert sweep.grid(("a=1,2", "b=x")) == [{"a": "1", "b": "x"}, {"a": "2", "b": "x"}]


@pytest.mark.slow
def test_a_job_of_a_sweep_that_was_killed_runs_again_when_it_is_named(berg):
    command = "[ {x} = 1 ] || [ $BERG_ATTEMPT -gt 1 ] || sleep 100"
    assert berg("run", "-g", "0", "-n", "part", "--grid", "x=0,1", command).returncode == 0
    wait_for(lambda: berg.state("part-0")["state"] == "RUNNING", 60)
    refused = berg("run", "--resume", "part/0")
    assert refused.returncode == 1 and "part-0 has not ended" in refused.stderr
    assert berg("kill", "part/0").returncode == 0
    wait_for(lambda: berg.state("part-0")["state"] == "KILLED", 60)
    assert "To run a killed one: berg run --resume part/0" in berg("run", "--resume", "part").stderr
    again = berg("run", "--resume", "part/0", "--wait")
    assert again.returncode == 0 and "1 job of part runs again" in again.stderr, again.stderr
    assert berg.state("part-0")["state"] == "SUCCEEDED"


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "＝1"])
def test_a_spreadsheet_takes_no_cell_of_a_table_for_a_formula(text, tmp_path):
    summary = job.Summary(results_dir="lr/0", params={text: text})
    entry = jobs.Entry("lr-0", job.State("FAILED", 1, text, job=summary), [])
    (tmp_path / "lr/0").mkdir(parents=True)
    metrics = {text: text, "loss": -1.5, "text": "-1.5", "word": "a=b"}
    (tmp_path / "lr/0/metrics.jsonl").write_text(json.dumps(metrics))
    sweep.write_results([entry], tmp_path, tmp_path / "results.csv")
    (row,) = csv.DictReader((tmp_path / "results.csv").open(newline=""))
    cells = [*row, *row.values()]
    assert not [cell for cell in cells if cell.startswith(sweep.FORMULA) and cell != "-1.5"], cells
    assert row[f"param.{text}"] == row["reason"] == row[f"metric.{text}"] == f"'{text}"
    assert (row["metric.loss"], row["metric.text"], row["metric.word"]) == ("-1.5", "-1.5", "a=b")


@pytest.mark.slow
def test_the_json_of_a_sweep_is_json_whatever_its_metrics_are(berg):
    """Python writes NaN and Infinity, which JSON has not."""
    states_door.write_sweep(berg.bucket, "lr", states_door.Sweep(["lr-0", "lr-1"]))
    for number in (0, 1):
        summary = job.Summary("tester", job.now(), results_dir=f"lr/{number}", sweep="lr")
        states_door.claim(berg.bucket, f"lr-{number}", job.State("SUCCEEDED", job=summary))
    deep = "[" * 900 + "]" * 900
    odd = f'{{"loss": NaN, "top": Infinity, "low": -1e999, "deep": {deep}, "good": 0.5}}\n[1]\n'
    berg.bucket.write("berg_results/lr/0/metrics.jsonl", odd)
    shown = berg("show", "lr", "--json")
    assert shown.returncode == 0, shown.stderr
    rows = json.loads(shown.stdout, parse_constant=pytest.fail)
    assert rows[0]["metrics"] == {"loss": None, "top": None, "low": None, "good": 0.5}

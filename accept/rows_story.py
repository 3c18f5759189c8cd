"""The story of a job as the README, docs/seeds.md, docs/json.md and docs/repositories.md tell it."""

import csv
import io
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

from accept.suite import all_hold, check, row
from accept.world import Trial

NUMBER = (int, float)
NONE = type(None)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|")


def plan(t: Trial, *words: str, **options: Any) -> Any:
    """The plan of a run or devbox as JSON; no machine may come of it."""
    return t.ok(*words, "--dry-run", "--json", **options).json


def is_there(t: Trial, job: str, path: str, seconds: float = 90) -> None:
    t.until(lambda: path in t.results(job), f"{path} in the results of {job}", seconds, 0.5)


def fetched(t: Trial, name: str, *words: str) -> tuple[Path, Any]:
    """Fetch to the default folder, which goes with the row."""
    said = t.ok("fetch", name, *words, "--json").json
    t.ending.callback(shutil.rmtree, said["folder"], ignore_errors=True)
    return Path(said["folder"]), said


# --- README: quick start


@row(
    "story",
    "a job's results, log and exit code are in the bucket, and its machine is gone",
    is_real=True,
    usd=0.02,
    is_sample=True,
)
def first_job(t: Trial) -> None:
    job = t.ran("echo said it; echo wrote it > $BERG_RESULTS_DIR/out; exit 3", ends="FAILED")
    all_hold(
        {
            f"exit code {t.state(job)['exit_code']}": t.state(job)["exit_code"] == 3,
            "the result is not in the bucket": t.results(job).get("out") == b"wrote it\n",
            "berg log lacks the output": "said it" in t.ok("log", job).out,
        }
    )
    t.gone()


@row("story", "the quick start of the README: run --tail, list, fetch of the folder of results")
def quick_start(t: Trial) -> None:
    t.files({"train.py": "import sys\nopen(sys.argv[1][9:] + '/loss', 'w').write('0.5')\nprint(1)"})
    first = t.name("first")
    command = (
        f"mkdir -p /root/berg_results/{first}; python3 train.py --logdir=/root/berg_results/{first}"
    )
    done = t.ok("run", "-g", "0", "--tail", "-n", t.name(), command)
    folder, _ = fetched(t, first)
    all_hold(
        {
            f"--tail prints {done.out!r}": "1" in done.out.splitlines(),
            "berg list lacks the job": t.name() in t.ok("list").out,
            "berg fetch lacks the result": (folder / "loss").read_text() == "0.5",
            f"fetched to {folder}": folder == t.laptop.home / "berg_results" / first,
        }
    )
    t.gone()


@row("story", "a plan names the command, code, machine, price, results and limit", is_sample=True)
def the_plan(t: Trial) -> None:
    (t.repo / "new.py").write_text("untracked")
    done = t.ok("run", "-g", "8", "-t", "a100", "-n", t.name(), "--dry-run", "python train.py")
    words = ["python train.py", "proj", "a2-highgpu-8g", r"\$\d", t.name(), "us-central1-", "7d"]
    missing = [word for word in words if not re.search(word, done.out + done.err)]
    check(not missing, f"the plan lacks {missing}")


# --- README: watch, fetch, end


@row(
    "story",
    "list, show, log and wait know a job that failed, and its exit code",
    is_real=True,
    usd=0.04,
)
def watching(t: Trial) -> None:
    job = t.name()
    words = ["run", "-g", "0", "-n", job, "--note", "a note"]
    tailed = t.berg(*words, "--tail", "echo said it; exit 7")
    codes = {
        "run --tail": tailed.code,
        "wait": t.berg("wait", job).code,
        "tail": t.berg("tail", job).code,
        "run --wait": t.berg("run", "-g", "0", "-n", t.name("b"), "--wait", "exit 7").code,
    }
    check({*codes.values()} == {7}, f"exit codes {codes}, not 7")
    shown, listed = t.ok("show", job).out, t.ok("list").out
    absent = [what for what in (job, "FAILED", "7", "a note", "said it") if what not in shown]
    all_hold(
        {
            f"berg show lacks {absent}": not absent,
            "run --tail does not print the output": "said it" in tailed.out,
            "berg log lacks the output": "said it" in t.ok("log", job).out,
            "@ is not the latest job": t.name("b") in t.ok("show", "@").out,
            f"berg list lacks it: {listed}": re.search(rf"{job} .*FAILED", listed),
        }
    )
    t.gone()


@row("story", "a second fetch downloads only what changed, while the job runs")
def second_fetch(t: Trial) -> None:
    job = t.run(
        "cd $BERG_RESULTS_DIR; echo 1 > one; until [ -e /root/go ]; do sleep 0.2; done; echo 2 > two"
    )
    is_there(t, job, "one")
    folder, _ = fetched(t, job)
    before = (folder / "one").stat()
    t.ok("ssh", job, "--", "touch /root/go")
    t.ended(job, "SUCCEEDED")
    _, second = fetched(t, job)
    after = (folder / "one").stat()
    all_hold(
        {
            "one came again": (before.st_ino, before.st_mtime) == (after.st_ino, after.st_mtime),
            "the second fetch lacks what is new": (folder / "two").read_text() == "2\n",
            f"fetched {second['fetched']}": 1 <= second["fetched"] < second["files"],
            "a third fetch downloads files": fetched(t, job)[1]["fetched"] == 0,
        }
    )
    t.ok("fetch", job, str(t.folder / t.prefix / "here"))
    check((t.folder / t.prefix / "here/one").exists(), "fetch NAME FOLDER is not in FOLDER")


@row("story", "rerun is a new job with the same code and options, except those given")
def rerun(t: Trial) -> None:
    job = t.ran(
        "cat train.py; echo $A $B; pwd > $BERG_RESULTS_DIR/out", "--env", "A=1", "--env", "B=2"
    )
    t.files({"train.py": "changed"})
    words = ["-n", t.name("again"), "--env", "B=3", "--max-hours", "2"]
    said = t.ok("rerun", job, *words, "--wait", "--json").json
    again = t.name("again")
    log = t.ok("log", again).out
    all_hold(
        {
            f"its name is {said['name']}": said["name"] == again,
            f"its limit is {said['max_run_seconds']} s": said["max_run_seconds"] == 7200,
            "rerun did not run the code of the job": "hello from train" in log,
            "rerun: the variables are not those of the job with --env's": "1 3" in log,
            "the new job has no results of its own": "out" in t.results(again),
        }
    )
    words = ["-n", t.name("new"), "--new-code", "--tail"]
    check("changed" in t.ok("rerun", job, *words).out, "--new-code ran the old code")


@row("story", "run --resume continues a failed job, under its name and with its results")
def resume(t: Trial) -> None:
    job = t.ran(
        "cd $BERG_RESULTS_DIR; [ -e saved ] && exit 0; echo saved > saved; exit 3", ends="FAILED"
    )
    t.gone()
    t.ok("run", "--resume", job, "--wait")
    state = t.state(job)
    all_hold(
        {
            f"{job} is {state['state']} after --resume": state["state"] == "SUCCEEDED",
            f"attempt {state['attempt']}": state["attempt"] == 2,
            "berg log has nothing of it": re.search("saved|Running", t.ok("log", job).out),
        }
    )
    t.refused("run", "--resume", job, says=f"SUCCEEDED|finished|succeeded|{job}")
    t.gone()


@row("story", "kill takes patterns and asks; it ends with SIGTERM, and saves the last results")
def kill(t: Trial) -> None:
    trap = "trap 'echo bye > $BERG_RESULTS_DIR/bye; exit 1' TERM; echo up; sleep 600 & wait"
    jobs = [t.run(trap, name=word) for word in ("x-1", "x-2", "other")]
    for job in jobs:
        t.until_log(job, "up")
    t.refused("kill", t.name("x-*"), says="-y")
    t.berg("rm", "-y", jobs[0])
    check(all(t.state(job)["state"] == "RUNNING" for job in jobs), "kill did not ask, or rm")
    t.ok("kill", "-y", "--now", t.name("x-*"))
    t.until(lambda: not t.machines(t.name("x-")), "the end of the machines", 20)
    states = {each["name"]: each["state"] for each in t.ok("list", "--json").json}
    got = [states[job] for job in jobs]
    check(got == ["KILLED", "KILLED", "RUNNING"], f"after kill --now of the first two: {got}")
    t.ok("kill", "-y", jobs[2])
    t.ended(jobs[2], "KILLED")
    check(
        t.results(jobs[2]).get("bye") == b"bye\n", "what it saved at SIGTERM is not in the bucket"
    )
    t.gone()


@row(
    "story", "rm deletes what a job left in the bucket, and frees its name", is_real=True, usd=0.04
)
def rm(t: Trial) -> None:
    job = t.ran("echo x > $BERG_RESULTS_DIR/x")
    t.refused("run", "-g", "0", "-n", job, "true", says=job)
    said = t.ok("rm", "-y", job, "--json").json[0]
    left = [
        name for name in t.cloud.objects("") if job in name and not name.startswith(".berg/bud")
    ]
    all_hold(
        {
            f"berg rm says {said}": said["name"] == job and said["objects"] > 0,
            f"berg rm left {', '.join(left[:3])}": not left,
            "berg list still has the job": job not in t.ok("list").out,
        }
    )
    t.ran("true")


@row("story", "ssh runs a command in the repository's folder, with its input and exit code")
def ssh(t: Trial) -> None:
    job = t.run("sleep 600")
    t.until_state(job, "RUNNING")
    done = t.berg("ssh", job, "--", "cat train.py; cat; exit 4", stdin="from here\n")
    all_hold(
        {
            f"exit {done.code}, not 4: {done.last}": done.code == 4,
            "the command did not run in the repository's folder": "hello from train" in done.out,
            "the command had no standard input": "from here" in done.out,
            "berg ssh NAME CMD without -- fails": "sleep 600" in t.ok("ssh", job, "ps ax").out,
        }
    )
    t.ok("kill", "-y", "--now", job)


# --- README: variables, data, sweeps, machines, devboxes


@row("story", "--env, --env-file and --secret reach the command, a secret nothing else")
def variables(t: Trial) -> None:
    (t.folder / t.prefix / "vars").write_text("# words\nFROM_FILE='two words'\n")
    secret = f"hunter2-{t.prefix}"
    script = '[ "$TOKEN" = "$EXPECTED-$PART" ] && echo "<$A><$HERE><$FROM_FILE>"'
    options = ["--env", "A=1=2", "--env", "HERE", "--env-file", str(t.folder / t.prefix / "vars")]
    options += ["--env", "EXPECTED=hunter2", "--env", f"PART={t.prefix}", "--secret", "TOKEN"]
    words = ["run", "-g", "0", "-n", t.name(), *options, "--wait", script]
    t.ok(*words, HERE="from here", TOKEN=secret)
    log = t.log(t.name())
    check("<1=2><from here><two words>" in log, f"the variables: {log[-300:]!r}")
    mine = [name for name in t.cloud.objects("") if t.name() in name]
    has = [name for name in mine if secret.encode() in (t.cloud.read(name) or b"")]
    check(not has, f"the secret is in {', '.join(has)}")


@row("story", "data push, ls, pull and rm; a job with --data has the files")
def data(t: Trial) -> None:
    name, folder = t.name("mnist"), t.folder / t.prefix / "mnist"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/a.txt").write_text("aaa")
    (folder / "b.txt").write_text("b")
    first = t.ok("data", "push", str(folder), name, "--json").json
    (folder / "b.txt").write_text("changed")
    second = t.ok("data", "push", str(folder), name, "--json").json
    mine = next(each for each in t.ok("data", "ls", "--json").json if each["name"] == name)
    paths = {each["path"] for each in t.ok("data", "ls", name, "--json").json}
    all_hold(
        {
            f"the first push: {first}": (first["files"], first["sent"]) == (2, 2),
            f"the second push sent {second['sent']} files, not 1": second["sent"] == 1,
            "data sets are not plain files": t.cloud.read(f"data/{name}/sub/a.txt") == b"aaa",
            f"data ls: {mine}": (mine["files"], mine["bytes"]) == (2, 10),
            f"data ls NAME: {paths}": paths == {"sub/a.txt", "b.txt"},
        }
    )
    keys("data push", second, data=str, files=int, sent=int, bytes_sent=int, left_out=object)
    keys("data ls", mine, name=str, files=int, bytes=int, updated_at=str)
    plan(t, "run", "--mount", name, "python train.py --data=/root/data/" + name)
    job = t.ran(f"cat /root/data/{name}/*.txt $BERG_DATA_DIR/{name}/sub/a.txt", "--data", name)
    check("changedaaa" in t.log(job), "the job has other data")
    there = t.folder / t.prefix / "pulled"
    said = t.ok("data", "pull", name, str(there), "--json").json
    all_hold(
        {
            f"pull: {said}": said["fetched"] == 2 and (there / "b.txt").read_text() == "changed",
            "pulled twice": t.ok("data", "pull", name, str(there), "--json").json["fetched"] == 0,
        }
    )
    t.ok("data", "rm", name, "-y")
    check(not t.cloud.objects(f"data/{name}/"), "data rm left objects")


@row("story", "a sweep runs each combination, fetch has a table, --resume runs what failed")
def sweep(t: Trial) -> None:
    code = (
        "import json, os, sys\n"
        "where, lr, bs = os.environ['BERG_RESULTS_DIR'], sys.argv[1], sys.argv[2]\n"
        "open(f'{where}/metrics.jsonl', 'a').write(json.dumps({'step': 1, 'loss': float(lr)}) + '\\n')\n"
        "marked = os.path.exists(f'{where}/mark')\n"
        "open(f'{where}/mark', 'w').write('x')\n"
        "sys.exit(3 if (lr, bs) == ('0.1', '64') and not marked else 0)\n"
    )
    t.files({"train.py": code})
    name = t.name("sweep")
    words = ["--grid", "lr=0.1,0.01", "--grid", "bs=32,64", "--parallel", "2", "-n", name, "--wait"]
    done = t.berg("run", "-g", "0", "python3 train.py {lr} {bs}", *words)
    check(done.code == 3, f"the sweep with a failed job: exit {done.code}, not 3: {done.last}")
    rows = t.ok("show", name, "--json").json
    states = {(each["params"]["lr"], each["params"]["bs"]): each["state"] for each in rows}
    failed = [params for params, state in states.items() if state != "SUCCEEDED"]
    all_hold(
        {
            f"{len(rows)} jobs of {len(states)} combinations": len(rows) == len(states) == 4,
            f"failed: {failed}": failed == [("0.1", "64")],
        }
    )
    t.ok("run", "--resume", name, "--wait")
    _, said = fetched(t, name)
    table = list(csv.DictReader(io.StringIO(Path(said["table"]).read_text())))
    losses = sorted((each["param.lr"], float(each["metric.loss"])) for each in table)
    all_hold(
        {
            "not all succeeded": {each["state"] for each in table} == {"SUCCEEDED"},
            f"results.csv: {losses}": losses[0] == ("0.01", 0.01) and len(losses) == 4,
            f"the table is {said['table']}": Path(said["table"]).parts[-2:]
            == (name, "results.csv"),
        }
    )
    t.gone()


@row("story", "--tasks runs a job for each row of a CSV or JSONL file", is_real=True, usd=0.05)
def tasks(t: Trial) -> None:
    (t.repo / "runs.csv").write_text('lr,word\n0.1,"a b"\n0.2,c\n')
    command = "echo lr={lr} word={word}; test {lr} = 0.1 -o {lr} = 0.2"
    name = t.name("csv")
    t.ok("run", "-g", "0", command, "--tasks", "runs.csv", "-n", name, "--wait")
    rows = t.ok("show", name, "--json").json
    got = sorted((each["params"]["lr"], each["params"]["word"]) for each in rows)
    check(got == [("0.1", "a b"), ("0.2", "c")], f"the rows: {got}")
    (t.repo / "runs.jsonl").write_text('{"lr": 0.1, "word": "x"}\n{"lr": 0.2, "word": "y"}\n')
    said = plan(t, "run", "-g", "0", command, "--tasks", "runs.jsonl", "-n", t.name("jsonl"))
    check(said.get("num_jobs", 2) == 2, f"{said.get('num_jobs')} jobs of two lines")


RANKS = """
import os, socket, subprocess, time
get = os.environ.get
rank, size = int(get("BERG_NODE_RANK")), int(get("BERG_NUM_NODES"))
where = (get("MASTER_ADDR"), int(get("MASTER_PORT")))
if rank == 0:
    peer = socket.create_server(where).accept()[0]
else:
    for _ in range(300):
        try:
            peer = socket.create_connection(where)
            break
        except OSError:
            time.sleep(0.2)
peer.sendall(b"from %d" % rank)
print(f"rank {rank} of {size}", get("PET_NNODES"), get("PET_NODE_RANK"), end=" ")
print((get("PET_MASTER_ADDR"), int(get("PET_MASTER_PORT"))) == where, peer.recv(99).decode())
if rank == 0:
    other = get("BERG_HOSTS").split(",")[1]
    subprocess.run(["ssh", "-o", "BatchMode=yes", other, "echo logged in to $(hostname)"])
with open(get("BERG_RESULTS_DIR") + f"/rank{rank}", "w") as file:
    file.write("x")
"""


@row("story", "-m 2 --each: both machines have torchrun's variables and reach each other")
def two_machines(t: Trial) -> None:
    t.files({"train.py": RANKS})
    job = t.ran("python3 train.py", "-m", "2", "--each")
    log = t.ok("log", job).out
    for rank in (0, 1):
        want = f"rank {rank} of 2 2 {rank} True from {1 - rank}"
        check(want in log, f"not {want!r}: {re.findall(f'rank {rank} of.*', log)}")
    all_hold(
        {
            "the first machine cannot ssh to the second": re.search(r"logged in to \S*1\b", log),
            "the results of a rank are missing": {"rank0", "rank1"} <= {*t.results(job)},
        }
    )
    t.gone()


@row("story", "without --each the command runs on the first machine, and mpi on both")
def mpi(t: Trial) -> None:
    job = t.ran("echo once $BERG_NODE_RANK; mpi sh -c 'echo \"process of $(hostname)\"'", "-m", "2")
    log = t.log(job)
    check(log.count("once 0\n") == 1 and "once 1\n" not in log, "the command did not run once")
    hosts = {*re.findall(r"process of (\S+)", log)} - {"$(hostname)\"'"}
    check(len(hosts) == 2, f"mpi ran on {hosts}")


@row("story", "a devbox: ssh, sync, stop, start and kill, as the README says", minutes=8)
def devbox(t: Trial) -> None:
    box = t.devbox()
    check(
        "hello" in t.ok("ssh", box, "--", "python3 train.py; touch /root/kept").out, "no repository"
    )
    (t.repo / "new.py").write_text("print('synced')")
    t.ok("sync", box, "--once")
    check("synced" in t.ok("ssh", box, "--", "python3 new.py").out, "sync did not push new.py")
    (t.repo / "new.py").unlink()
    t.ok("sync", box, "--once")
    gone = t.ok("ssh", box, "--", "test -e new.py || echo gone").out
    check("gone" in gone, "sync kept what is deleted here")
    t.ok("stop", "-y", box)
    all_hold(
        {
            "berg stop did not turn it off": t.machines(box)[0]["status"] == "TERMINATED",
            "list does not say it is off": re.search(
                rf"{box}.*(TERMINATED|STOPPED)", t.ok("list").out
            ),
        }
    )
    t.ok("start", box)
    check("kept" in t.ok("ssh", box, "--", "ls /root").out, "its disk has lost a file")
    t.ok("kill", "-y", box)
    t.gone()


@row("story", "doctor finds no fault, reap nothing of a finished job, costs knows what it cost")
def afterwards(t: Trial) -> None:
    t.ran("echo x; sleep 1")
    t.gone()
    bad = [each for each in t.ok("doctor", "--json").json if each["status"] == "failed"]
    left = [each for each in t.ok("reap", "--json").json if t.prefix in each["name"]]
    weeks = t.ok("costs", "--json").json["weeks"]
    rows = t.ok("gpus", "--json").json
    types = {each["type"] for each in rows}
    priced = {each["type"] for each in rows if each["usd_per_hour"]}
    all_hold(
        {
            f"berg doctor: {bad}": not bad,
            f"berg reap found {left}": not left,
            f"berg gpus: {sorted(types)}": {"l4", "a100", "h100"} <= types,
            f"berg gpus has prices of {priced}": {"l4", "t4"} <= priced,
            "berg costs lacks the job": sum(week["jobs"] for week in weeks) >= 1,
            "berg costs: nothing cost anything": sum(week["usd"] for week in weeks) > 0,
        }
    )


@row(
    "story",
    "config show, get, set, unset and path; a variable comes before the file; plans heed both",
)
def settings(t: Trial) -> None:
    home, zones = t.colleague().home / ".berg", "us-central1-a,us-central1-b"
    mine = {"BERG_HOME": str(home)}

    def got(key: str, **env: str) -> str:
        return t.ok("config", "get", key, **mine, **env).out.strip()

    t.ok("config", "set", "zones", zones, **mine)
    shown = t.ok("config", "show", "--json", **mine).json
    all_hold(
        {
            "config path": t.ok("config", "path", **mine).out.strip() == str(home / "berg.json"),
            "config get bucket": got("bucket") == t.cloud.bucket,
            f"config get zones: {got('zones')}": got("zones") == zones,
            f"config show: {shown['zones']}": shown["zones"] == zones.split(","),
            "BERG_ZONES does not come first": got("zones", BERG_ZONES="us-west1-a") == "us-west1-a",
        }
    )
    t.ok("config", "unset", "zones", **mine)
    check(not got("zones"), "config unset zones")
    image = "common-cu124-v20250325-debian-11-py310"  # of docs/seeds.md
    for key, value in {"gpu_type": "p100", "gpus": "4", "default_image": image}.items():
        t.ok("config", "set", key, value, **mine)
    said = json.dumps(plan(t, "devbox", "-n", t.name("box"), **mine))
    check("p100" in said and image in said, "a devbox has not the GPUs or image of the settings")
    (t.repo / "pyproject.toml").write_text("[tool.berg]\nnum-gpus = 0\nnum-cpus = 4\n")
    said = json.dumps(plan(t, "run", "--install", "none", "true"))
    check("-4" in said and "accelerator" not in said, "the plan ignores [tool.berg]")


# --- docs/seeds.md


def plans(t: Trial, commands: list[str], **env: str) -> list[Any]:
    """Each command as a plan, or as its help; no machine and no record may come of it."""
    said = []
    for number, command in enumerate(commands):
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", command)]
        if words[0] in ("run", "devbox"):
            name = [] if "-n" in words else ["-n", t.name(f"p{number}")]
            said.append(plan(t, *words[:1], *name, *words[1:], **env))
        else:
            t.ok(*words)
    check(not t.machines() and not t.cloud.objects(f".berg/jobs/{t.prefix}"), "a plan made things")
    return said


def documented(t: Trial, commands: list[str], has_price: bool = True, **env: str) -> None:
    t.git("tag", "v1")
    for said in plans(t, commands, WANDB_API_KEY="x", **env):
        name, seconds = said["name"], said["max_run_seconds"]
        all_hold(
            {
                f"{name}: no price": said["usd_at_most"] or not has_price,
                f"{name}: no limit": seconds > 0,
                f"{name}: --max-hours 24 is {seconds} s": name != "big" or seconds == 86400,
            }
        )


README = """\
run 'python train.py --bs=256 --logdir=/root/berg_results/sweep1/bs_256'
run -g 8 -t a100 --max-hours 24 -n big 'python train.py'
run -g 0 -c 16 'make test'
run --env LR=0.1 --secret WANDB_API_KEY 'python train.py'
run --spot 'python train.py'
run --wait-for-capacity -g 8 -t a100 'python train.py'
run 'python train.py --lr={lr} --bs={bs}' --grid lr=0.1,0.01,0.001 --grid bs=32,64 --parallel 3
run -m 4 --each 'torchrun train.py'
run -m 4 'mpi python train.py'
run --docker ubuntu:24.04 'python train.py'
run --keep-failed 30m 'python train.py'
run --keep-warm 15m 'python train.py'
run --commit v1 'python train.py'
run --branch main 'python train.py'
devbox
open --help"""
SEEDS = """\
run 'python train.py --bs=256 --logdir=/root/berg_results/sweep1/bs_256'
run 'python train.py --bs={bs}' --grid bs=128,256
run --cwd . 'python train.py'
devbox -t p100 -g 4 --image common-cu124-v20250325-debian-11-py310
devbox -m 4 -t a100 -g 4
run -m 4 -t a100 -g 4 'mpi python train.py'
ssh --help
kill --help
sync --help
tail --help
log --help
list --help
image create --help"""
SEEDS_GCP = """\
run --branch main 'python train.py'
run --commit v1 'python train.py'
run -m 2 -g 2 -t t4 --each --secret WANDB_API_KEY 'torchrun train.py'
devbox -m 2 -g 2 -t t4 --secret WANDB_API_KEY
run --machine-type n1-standard-4 --disk-gb 100 -t t4 -g 2 'python train.py'"""
SEEDS_TPU = """\
run --tpu v6e-4x4 'python train.py'
run --tpu v6e-1 --env NUM_EPOCHS=3 'python train.py'
gpus --tpu
ssh --help
tensorboard --help
profile --help"""
for name, (promise, commands, more) in {
    "examples of the readme": ("the README's commands are plans that create nothing", README, {}),
    "seeds cloud berg": (
        "each command that docs/seeds.md has for Cloud Berg is a plan",
        SEEDS,
        {"BERG_ZONES": ""},
    ),
    "seeds gcp": ("each option that docs/seeds.md has for gcp.py's runs is a plan", SEEDS_GCP, {}),
    "seeds tpu": (
        "each command that docs/seeds.md has for TPU Pods is a plan",
        SEEDS_TPU,
        {"BERG_REGION": "us-central1", "has_price": False},
    ),
}.items():
    row(
        "story",
        promise,
        name=name,
        is_real=True,
        minutes=8,
        commands=commands.splitlines(),
        **more,
    )(documented)


@row("story", "a cluster as in docs/seeds.md: create, plan jobs, status, delete", minutes=8)
def seeds_cluster(t: Trial) -> None:
    name = t.name("dist")
    t.ending.callback(t.berg, "cluster", "delete", "-y", name)
    words = f"cluster create {name} -t t4 -g 2 --num-nodes 2 --machine-type n1-standard-4"
    t.ok(*words.split(), "--disk-gb", "100", "--disk-type", "pd-ssd", "-y")
    (t.repo / "pod.yaml").write_text("spec: {volumes: [{name: extra, emptyDir: {}}]}\n")
    plans(
        t,
        [
            f"run --cluster {name} 'python train.py'",
            f"run --cluster {name} -m 2 -g 2 --each --secret WANDB_API_KEY 'torchrun train.py'",
            f"devbox --cluster {name} -m 2 -g 2 --secret WANDB_API_KEY",
            f"run --cluster {name} -g 1 -t t4 --docker ubuntu 'python train.py --devices 1'",
            f"run --cluster {name} --restart-on-failure 4 'python train.py'",
        ],
        WANDB_API_KEY="x",
    )
    (said,) = plans(t, [f"run --cluster {name} --pod-patch pod.yaml 'python train.py'"])
    check("emptyDir" in json.dumps(said), "--pod-patch is not in the request of the plan")
    status = t.ok("cluster", "status", name, "--json").json
    check(status["name"] == name and status["pools"], f"cluster status: {status}")
    t.ok("cluster", "delete", "-y", name)
    rows = t.ok("cluster", "list", "--json").json
    check(name not in {each["name"] for each in rows}, "the cluster is still listed")


# --- docs/json.md


def keys(what: str, thing: Any, **types: Any) -> None:
    """The object has these keys with values of these types; keys that end with _at are times."""
    for key, kinds in types.items():
        value = thing.get(key, KeyError)
        all_hold(
            {
                f"{what}: no {key}": value is not KeyError,
                f"{what}: {key} is {value!r:.60}": isinstance(value, kinds),
            }
        )
        is_time = not key.endswith("_at") or TIME.fullmatch(str(value))
        check(is_time, f"{what}: {key} is {value!r}, not a time in UTC")


PRICES = {"usd_per_hour": (*NUMBER, NONE), "usd_at_most": (*NUMBER, NONE)}
PLAN = {**PRICES, "name": str, "results": str, "max_run_seconds": int, "install": dict}
LISTED = {"name": str, "state": str, "exit_code": (int, NONE), "reason": str, "created_at": str}
LISTED |= {"started_at": str, "finished_at": str, "user": str, "zone": str, "attempt": int}
LISTED |= {"instances": list, "usd": (*NUMBER, NONE), "note": str}


def answers(t: Trial, table: list[tuple[str, dict[str, Any]]], **env: str) -> None:
    """Each command's --json (the last row of it) has keys of these types."""
    for words, types in table:
        said = t.ok(*words.split(), "--json", **env).json
        keys(words, said[-1] if isinstance(said, list) else said, **types)


@row("story", "--json of run, list, show, wait, fetch, rerun, kill and rm has the promised keys")
def json_of_jobs(t: Trial) -> None:
    job, again = t.name(), t.name("again")
    keys("run --dry-run", plan(t, "run", "-g", "0", "-n", job, "true"), **PLAN, request=object)
    script = "echo '{\"loss\": 1}' > $BERG_RESULTS_DIR/metrics.jsonl; exit 3"
    said = t.ok("run", "-g", "0", "-n", job, "--json", script).json
    keys("run", said, **PLAN, zone=str)
    done = t.berg("wait", job, "--json")
    keys("wait", done.json[0], **LISTED)
    listed = next(each for each in t.ok("list", "--json").json if each["name"] == job)
    keys("list", listed, **LISTED)
    shown = t.shown(job)
    keys("show", shown, **LISTED, metadata=dict, log=list, results=list, metrics=dict)
    all_hold(
        {
            f"wait: exit {done.code}": done.code == done.json[0]["exit_code"] == 3,
            f"list: the state {listed['state']}": listed["state"] == "FAILED",
            f"show: the metrics {shown['metrics']}": shown["metrics"].get("loss") == 1,
        }
    )
    keys("fetch", fetched(t, job)[1], folder=str, files=int, fetched=int)
    answers(
        t,
        [
            (f"rerun {job} -n {again}", {**PRICES, "name": str, "zone": str, "install": dict}),
            (f"kill -y --now {again}", {"name": str, "done": str}),
            (f"rm -y {job}", {"name": str, "done": str, "objects": int}),
        ],
    )


@row("story", "--json of commands about money, machines and settings has the promised keys")
def json_of_others(t: Trial) -> None:
    price, named = (*NUMBER, NONE), {"name": str, "done": str, "value": object}
    rates = {"usd_per_hour": price, "spot_usd_per_hour": price, "flex_usd_per_hour": price}
    place = {"project": str, "region": str, "bucket": str, "zones": list}
    answers(
        t,
        [
            ("gpus", {**rates, "type": str, "per_machine": list, "zones": list}),
            ("gpus", {"machine_type": str, "quota_left": price}),
            ("gpus --tpu", {"tpu": str, "family": str, "hosts": int, "chips": int}),
            ("costs", {"weeks": list, "now": list}),
            ("doctor", {"check": str, "status": str, "found": str, "fix": str}),
            ("config show", place),
            ("config get region", {"name": str, "value": str}),
            ("config path", {"name": str}),
            ("config set region europe-west4", named),
            ("config unset region", named),
            ("skill", {"name": str, "version": str, "text": str}),
        ],
        BERG_HOME=str(t.colleague().home / ".berg"),
    )
    answers(t, [("local status", {"running": bool, "machines": object})])
    for words in ("reap", "image list", "cluster list"):
        check(isinstance(t.ok(*words.split(), "--json").json, list), f"{words}: no rows")


@row("story", "--json of a sweep has the promised keys")
def json_of_sweeps(t: Trial) -> None:
    name, words = t.name("sweep"), ["--parallel", "1", "--json", "--wait"]
    said = t.ok("run", "-g", "0", "echo {x}", "--grid", "x=1,2", "-n", name, *words).json
    keys("run --grid", said, **PRICES, name=str, num_jobs=int, max_run_seconds=int, jobs=list)
    of_job = {"name": str, "state": str, "exit_code": int, "reason": str, "params": dict}
    for each in [*t.ok("show", name, "--json").json, *said["jobs"]]:
        keys("show SWEEP", each, **of_job, metrics=dict)
    keys("fetch SWEEP", fetched(t, name)[1], folder=str, files=int, fetched=int, table=str)


@row("story", "with --json an error is an object on the last line of standard error")
def json_of_errors(t: Trial) -> None:
    for words, code in ((f"show {t.name()}", 1), ("list --no-such", 2), ("log", 2)):
        done = t.berg(*words.split(), "--json")
        said = json.loads(done.err.strip().splitlines()[-1])
        all_hold(
            {
                f"{words}: {said}": said["error"] and said["exit_code"] == done.code == code,
                f"{words}: {done.out[:80]!r} on standard output": not done.out.strip(),
            }
        )


# --- docs/repositories.md


LOCK = """version = 1
requires-python = ">=3.10"

[[package]]
name = "proj"
version = "0.1.0"
source = { virtual = "." }
"""
PROJECT = '[project]\nname = "proj"\nversion = "0.1.0"\nrequires-python = ">=3.10"\n'
SETUP = "from setuptools import setup\nsetup(name='proj', version='1', py_modules=['train'])\n"
CONDA = "name: x\ndependencies: [numpy]\n"
BUILD = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'


@row("story", "a plan names the file that packages are installed from", is_real=True, minutes=6)
def repositories(t: Trial) -> None:
    kinds: list[tuple[dict[str, str], list[str], str]] = [
        ({}, [], "nothing"),
        ({"pyproject.toml": PROJECT, "uv.lock": LOCK}, [], r"uv\.lock"),
        ({"requirements.txt": "six\n"}, [], r"requirements\.txt"),
        ({"pyproject.toml": PROJECT + BUILD}, [], r"-e \.|pyproject"),
        ({"setup.py": SETUP}, [], r"-e \.|setup\.py"),
        ({"setup.py": SETUP, "requirements.txt": "six\n"}, [], r"requirements\.txt|-e \."),
        ({"requirements.txt": "six\n", "environment.yml": CONDA}, [], r"environment\.yml"),
        ({"environment.yml": CONDA}, ["--install", "pip install numpy"], "pip install numpy"),
        ({"requirements.txt": "six\n"}, ["--install", "none"], "nothing|none"),
    ]
    for number, (files, options, says) in enumerate(kinds):
        t.repo = t.repo.parent / f"kind{number}"
        t.repo.mkdir()
        t.git("init", "-q", "-b", "main")
        t.files({"train.py": "print(1)\n", **files})
        done = t.ok("run", "-n", t.name(), *options, "--dry-run", "--json", "python train.py")
        for where in (json.dumps(done.json["install"]), done.err):
            check(re.search(says, where), f"{[*files]} {options}: no {says} in {where[:200]}")
    (t.repo / "requirements.txt").unlink()
    t.files({"environment.yml": CONDA})
    t.refused("run", "-n", t.name(), "--dry-run", "python train.py", says="environment.yml")


@row("story", "what a requirements.txt and a setup.py name is installed on the machine", minutes=8)
def installs(t: Trial) -> None:
    t.files({"requirements.txt": "iniconfig==2.0.0\n"})
    job = t.ran(
        "python -c 'import iniconfig; print(\"it is\", iniconfig.__name__)'",
        name="pip",
        seconds=200,
    )
    check("it is iniconfig" in t.log(job), "requirements.txt is not installed")
    (t.repo / "requirements.txt").unlink()
    t.files({"setup.py": SETUP})
    job = t.ran("cd /; python -c 'import train'", name="setup", seconds=200)
    check("hello from train" in t.log(job), "the repository's own package is not installed")


# --- conventions


@row("story", "a coding agent gets lines of cells between tabs, whole times, and no question")
def agents(t: Trial) -> None:
    job = t.ran("echo " + "x" * 200)
    for words, env in ((["--format", "agent"], {}), ([], {"CLAUDECODE": "1"})):
        out = t.ok(*words, "list", "-c", **env).out
        line = next((line for line in out.splitlines() if line.startswith(f"{job}\t")), "")
        all_hold(
            {
                f"{words or env}: a line of cells between tabs, nothing cut: {line!r}": "x" * 200
                in line,
                f"{words or env}: control characters": "\x1b" not in out,
            }
        )
        done = t.berg(*words, "rm", job, **env)
        check(done.code == 1 and "-y" in done.err, f"{words or env}: rm asked: {done.last}")
    human = t.ok("--format", "human", "list", CLAUDECODE="1").out
    check("\t" not in human, "--format human does not override the guess")


@row("story", "the shell completes commands, options and names of jobs", is_sample=True)
def completion(t: Trial) -> None:
    def completed(words: str, mode: str = "bash_complete") -> str:
        env = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
        process = t.laptop.start(cwd=t.repo, env={"_BERG_COMPLETE": mode, **env})
        return process.communicate(timeout=60)[0]

    job = t.run("true")
    t.ok("list")
    check("complete" in completed("berg", "bash_source"), "no script for bash")
    for words, want in {
        "berg fe": "fetch",
        "berg run --sp": "--spot",
        "berg log ": job,
        "berg fetch ": job,
    }.items():
        check(want in completed(words), f"{words!r} is not completed to {want}")
    t.ended(job, "SUCCEEDED")


@row("story", "every command has a --help with an example, and it comes at once", is_sample=True)
def help_of_each(t: Trial) -> None:
    names = re.compile(r"^  ([a-z][\w-]+) {2,}[A-Z]", re.M)
    commands: list[tuple[str, ...]] = [(name,) for name in names.findall(t.ok("--help").out)]
    check(len(commands) > 20, f"berg --help names {len(commands)} commands")
    bare, times = [], []
    for command in commands:
        began, out = time.monotonic(), t.ok(*command, "--help").out
        times.append(time.monotonic() - began)
        if "COMMAND [ARGS]" in out:
            commands += [(*command, name) for name in names.findall(out)]
        elif not re.search(rf"\n +(.*[ |(])?berg {' '.join(command)}\b", out):
            bare.append(" ".join(command))
    check(not bare, f"no example: {', '.join(bare)}")
    check(min(times) < 1, f"--help takes {min(times):.1f} s")

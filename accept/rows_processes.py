"""Processes: whatever started a trainer, it is told once that the end is near, and has time to save;
what is left behind keeps no machine; exit codes, output, and what a command finds around it.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor

from accept.suite import Red, check, row
from accept.world import Trial

TRAINER = """
import os, signal, time

told = 0

def on_term(*_):
    global told
    told += 1

def train(rank=0):
    signal.signal(signal.SIGTERM, on_term)
    attempt = os.environ.get("BERG_ATTEMPT", "1")
    where = os.environ["BERG_RESULTS_DIR"]
    os.write(1, f"training {rank}\\n".encode())
    while not told:
        time.sleep(0.05)
    for _ in range(80):
        time.sleep(0.1)
    with open(f"{where}/saved-{attempt}-{rank}", "w") as file:
        file.write(str(told))

if __name__ == "__main__":
    train(int(os.environ.get("RANK", "0")))
"""
WORKERS = """
import multiprocessing
from trainer import train

if __name__ == "__main__":
    workers = [multiprocessing.Process(target=train, args=[rank]) for rank in range(2)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
"""
LAUNCHER = """
import os, subprocess, sys

children = [
    subprocess.Popen(
        [sys.executable, "trainer.py"],
        env={**os.environ, "RANK": str(rank)},
        start_new_session="sessions" in sys.argv,
    )
    for rank in range(2)
]
[child.wait() for child in children]
"""
STUBBORN = """
import os, signal, time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(os.environ["BERG_RESULTS_DIR"] + "/before", "w").write("before")
print("training 0", flush=True)
time.sleep(1000)
"""
LEAVES = """
import os, sys, time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(os.environ["BERG_RESULTS_DIR"] + "/left", "w").write("left")
        time.sleep(1000)
    os._exit(0)
time.sleep(2)
sys.exit(5)
"""
FILES = {
    "trainer.py": TRAINER,
    "workers.py": WORKERS,
    "launcher.py": LAUNCHER,
    "train.sh": "python3 trainer.py\n",
    "sub/start.sh": "cd ..\npython3 trainer.py\n",
    "Makefile": "train:\n\tpython3 trainer.py\n",
}
WAYS = {  # how a trainer starts; and how many trainers those are
    "plain": ("python3 trainer.py", 1),
    "exec": ("exec python3 trainer.py", 1),
    "tee": ("python3 trainer.py | tee log.txt", 1),
    "script": ("bash train.sh", 1),
    "shell": ("sh -c 'python3 trainer.py; true'", 1),
    "folder": ("cd sub && bash start.sh && true", 1),
    "background": ("nohup python3 trainer.py & wait", 1),
    "session": ("setsid --wait python3 trainer.py", 1),
    "daemon": ("(setsid -f python3 trainer.py); sleep 1000", 1),
    "xargs": ("echo 0 | xargs -I{} env RANK={} python3 trainer.py", 1),
    "workers": ("python3 workers.py", 2),
    "children": ("python3 launcher.py", 2),
    "torchrun": ("python3 launcher.py sessions", 2),
    # These two send what they get to their children, too: those hear it more than once.
    "timeout": ("timeout 1000 python3 trainer.py", 1),
    "make": ("make train", 1),
}
FORWARDS = {"timeout", "make"}
SHELLS = ["plain", "exec", "tee", "script", "folder", "timeout"]
BESIDE = ["shell", "background", "session", "daemon", "torchrun"]
BELOW = ["xargs", "make", "workers", "children"]


def submitted(t: Trial, commands: dict[str, str], *options: str) -> dict[str, str]:
    """Submit jobs side by side; their names by the keys of the commands."""
    with ThreadPoolExecutor(3) as pool:
        names = pool.map(lambda key: t.run(commands[key], *options, name=key), commands)
        return dict(zip(commands, names, strict=True))


def trained(t: Trial, ways: list[str], *options: str) -> dict[str, str]:
    """Start a job for each of these ways, and wait until all trainers run."""
    t.files(FILES)
    jobs = submitted(t, {way: WAYS[way][0] for way in ways}, *options)
    for way, job in jobs.items():
        for rank in range(WAYS[way][1]):
            t.until_log(job, f"training {rank}", 120)
    return jobs


def saved(t: Trial, jobs: dict[str, str], seconds: float = 0) -> None:
    """Every trainer has saved, and was told once; there are so many seconds until then."""
    found: dict[str, list[str]] = {}

    def all_saved() -> bool:
        for way, job in jobs.items():
            if len(found.get(way, [])) < WAYS[way][1]:
                prefix = f"berg_results/{job}/saved-1-"
                files = [t.cloud.read(name) for name in t.cloud.objects(prefix)]
                found[way] = [data.decode() for data in files if data]
        return all(len(found[way]) == WAYS[way][1] for way in jobs)

    with contextlib.suppress(Red):
        t.until(all_saved, "what trainers save", seconds, 0.5)
    wrong = []
    for way in jobs:
        times = "/".join(found[way])
        if len(found[way]) < WAYS[way][1] or (way not in FORWARDS and set(found[way]) != {"1"}):
            wrong.append(f"{way}: told {times} times" if times else f"{way}: nothing saved")
    check(not wrong, "; ".join(wrong))


KILL = "`berg kill` tells every process of a command once, and leaves it time to save: "


@row(
    "processes",
    KILL + "scripts, pipes",
    name="kill, shells",
    ways=SHELLS,
    minutes=8,
    is_real=True,
    usd=0.2,
)
@row("processes", KILL + "sessions, daemons", name="kill, sessions", ways=BESIDE, minutes=8)
@row("processes", KILL + "workers, make", name="kill, workers", ways=BELOW, minutes=8)
def kill(t: Trial, ways: list[str]) -> None:
    jobs = trained(t, ways)
    t.ok("kill", "-y", *jobs.values())
    for job in jobs.values():
        t.ended(job, "KILLED")
    saved(t, jobs)


NOTICE = "a preemption tells every process of a command once, and leaves it time to save: "


@row("processes", NOTICE + "scripts, pipes", name="preemption, shells", ways=SHELLS, minutes=8)
@row("processes", NOTICE + "sessions, daemons", name="preemption, sessions", ways=BESIDE, minutes=8)
@row("processes", NOTICE + "workers, make", name="preemption, workers", ways=BELOW, minutes=8)
def preemption(t: Trial, ways: list[str]) -> None:
    jobs = trained(t, ways, "--spot")
    machines = [machine["name"] for machine in t.machines()]
    check(len(machines) == len(jobs), f"{len(machines)} machines of {len(jobs)} jobs")
    t.cloud.control("POST", "stockout", {"on": True})  # the next attempt has to wait
    with ThreadPoolExecutor(len(machines)) as pool:
        list(pool.map(lambda name: t.power(name, "preempt", grace=30), machines))
    saved(t, jobs, 45)
    t.berg("kill", "-y", "--now", *jobs.values())


LIMIT = "before its time limit every process of a command is told once, and has time to save: "


@row("processes", LIMIT + "scripts, pipes", name="limit, shells", ways=SHELLS, minutes=8)
@row("processes", LIMIT + "sessions, daemons", name="limit, sessions", ways=BESIDE, minutes=8)
@row("processes", LIMIT + "workers, make", name="limit, workers", ways=BELOW, minutes=8)
def limit(t: Trial, ways: list[str]) -> None:
    jobs = trained(t, ways, "--max-hours", "0.04")
    for way, job in jobs.items():
        state = t.ended(job, seconds=240)
        check(state["state"] == "FAILED", f"{way}: {state['state']} ({state.get('reason')})")
    saved(t, jobs)


@row(
    "processes", "a command that ignores SIGTERM is killed after half a minute; its files are kept"
)
def ignores(t: Trial) -> None:
    t.files({"stubborn.py": STUBBORN})
    job = t.run("python3 stubborn.py | cat")
    t.until_log(job, "training 0")
    t.ok("kill", "-y", job)
    t.ended(job, "KILLED", seconds=75)
    check(t.results(job).get("before") == b"before", "what it wrote before is not there")
    t.gone()


@row("processes", "processes that a command leaves behind do not keep the machine")
def leftovers(t: Trial) -> None:
    t.files({"leaves.py": LEAVES})
    commands = {
        "daemon": "python3 leaves.py",
        "shell": "(echo left > $BERG_RESULTS_DIR/left; exec sleep 1000) & sleep 2; exit 5",
    }
    jobs = submitted(t, commands)
    for job in jobs.values():
        state = t.ended(job, "FAILED", seconds=75)
        check(state["exit_code"] == 5, f"{job}: exit code {state['exit_code']}, not the command's")
        check(t.results(job).get("left", b"")[:4] == b"left", f"{job}: a result is missing")
    t.gone()


def coded(t: Trial, commands: dict[str, str], codes: dict[str, int]) -> None:
    """Each of the commands ends with its code."""
    jobs = submitted(t, commands)
    found = {}
    for key, job in jobs.items():
        state = t.ended(job, "FAILED" if codes[key] else "SUCCEEDED")
        found[key] = state["exit_code"]
    wrong = [f"{key}: {found[key]}, not {codes[key]}" for key in codes if found[key] != codes[key]]
    check(not wrong, "; ".join(wrong))


@row("processes", "the exit code of a job is that of its command")
def exit_codes(t: Trial) -> None:
    codes = {f"c{code}": code for code in (0, 1, 3, 77, 126, 127, 128, 130, 137, 143, 255)}
    coded(t, {key: f"exit {code}" for key, code in codes.items()}, codes)


@row("processes", "a command that a signal ends has 128 and its number as exit code")
def signals(t: Trial) -> None:
    codes = {f"s{number}": 128 + number for number in (9, 11, 15)}
    commands = {
        "s9": "exec python3 -c 'import os; os.kill(os.getpid(), 9)'",
        "s11": "kill -11 $$",
        "s15": "sh -c 'kill -15 $$'",
    }
    coded(t, commands, codes)


@row("processes", "a pipe fails with the command in it that fails", is_real=True, usd=0.05)
def pipes(t: Trial) -> None:
    codes = {"first": 3, "last": 4, "none": 0}
    commands = {"first": "exit 3 | cat", "last": "true | exit 4", "none": "false | true; true"}
    coded(t, commands, codes)


@row(
    "processes", "a log has all that a command prints, in order: quick, long, odd, unfinished lines"
)
def output(t: Trial) -> None:
    huge = "python3 -c 'import sys; sys.stdout.write(\"x\" * 3_000_000 + chr(10))'"
    odd = "head -c 100000 /dev/urandom; echo; echo after the odd"
    job = t.run(f"seq 100000; {huge}; {odd}; echo to stderr >&2; printf unfinished")
    t.ended(job, "SUCCEEDED")
    lines = t.ok("log", job).out.splitlines()
    check("1" in lines, "the first line is not in the log")
    start = lines.index("1")
    seen = lines[start : start + 100_000]
    check(seen == [str(n) for n in range(1, 100_001)], "lines are missing, or not in order")
    longest = max(map(len, lines))
    check("x" * 3_000_000 in lines, f"the longest line has {longest:,} characters, not 3,000,000")
    text = "\n".join(lines[start:])
    words = ["after the odd", "to stderr", "unfinished"]
    places = [text.rfind(word) for word in words]
    check(-1 not in places, f"missing: {[word for word in words if word not in text]}")
    check(places == sorted(places), "not in order")


@row("processes", "the input of a command is empty", is_sample=True)
def no_input(t: Trial) -> None:
    asks = "python3 -c 'input()' 2>$BERG_RESULTS_DIR/asked"
    job = t.run(f"wc -c | tr -d ' ' >$BERG_RESULTS_DIR/bytes; {asks} || true")
    t.ended(job, "SUCCEEDED")
    results = t.results(job)
    check(results["bytes"] == b"0\n", f"{results['bytes']!r} bytes of input")
    check(b"EOFError" in results["asked"], "input() finds something")


@row("processes", "a command finds the variables that are promised, and the folders of them")
def variables(t: Trial) -> None:
    folders = 'for d in "$BERG_RESULTS_DIR" "$BERG_REPO_DIR" "$BERG_SCRATCH_DIR" "$BERG_HOSTFILE"'
    job = t.run(f'env -0 >$BERG_RESULTS_DIR/env; {folders}; do test -e "$d" || echo "no $d"; done')
    t.ended(job, "SUCCEEDED")
    pairs = t.results(job)["env"].decode().split("\0")
    found = dict(pair.split("=", 1) for pair in pairs if pair)
    exact = {
        "BERG_JOB": job,
        "BERG_NUM_GPUS": "0",
        "BERG_ATTEMPT": "1",
        "BERG_NODE_RANK": "0",
        "BERG_NUM_NODES": "1",
        "PET_NNODES": "1",
        "PET_NODE_RANK": "0",
        "BERG_REPO_DIR": "/root/code/proj",
        "USER": "root",
        "LOGNAME": "root",
    }
    some = "BERG_RESULTS_DIR BERG_BUCKET BERG_DATA_DIR BERG_SCRATCH_DIR BERG_HOSTS BERG_HOSTFILE"
    some += " MASTER_ADDR MASTER_PORT PET_MASTER_ADDR PET_MASTER_PORT"
    wrong = [f"{key} is {found.get(key)!r}" for key in exact if found.get(key) != exact[key]]
    wrong += [f"{key} is not set" for key in some.split() if not found.get(key)]
    check(not wrong, "; ".join(wrong))
    check(t.cloud.bucket in found["BERG_BUCKET"], f"BERG_BUCKET is {found['BERG_BUCKET']}")
    log = t.ok("log", job).out
    missing = [line for line in log.splitlines() if line.startswith("no ")]
    check(not missing, f"not there: {missing}")


@row("processes", "a command runs in the folder where berg was started")
def working_folder(t: Trial) -> None:
    t.files({"some/where/file": "x\n"})
    job = t.name("job")
    words = "pwd >$BERG_RESULTS_DIR/where; cat file"
    t.ok("run", "-g", "0", "-n", job, words, cwd=t.repo / "some/where")
    t.ended(job, "SUCCEEDED")
    where = t.results(job)["where"].decode().strip()
    check(where == "/root/code/proj/some/where", f"it ran in {where}")

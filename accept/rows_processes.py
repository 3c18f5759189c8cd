"""Processes: whatever started a trainer, it is told once that the end is near, and has time to save;
what is left behind keeps no machine; exit codes, output, and what a command finds around it.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor

from accept.suite import Red, all_hold, check, row
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
ASK = """
pwd >$BERG_RESULTS_DIR/where
wc -c | tr -d ' ' >$BERG_RESULTS_DIR/bytes
python3 -c 'input()' 2>$BERG_RESULTS_DIR/asked || true
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

    def wrong() -> list[str]:
        found = []
        for way, job in jobs.items():
            names = t.cloud.objects(f"berg_results/{job}/saved-1-")
            told = [(t.cloud.read(name) or b"").decode() for name in names]
            if len(told) < WAYS[way][1] or (way not in FORWARDS and {*told} != {"1"}):
                found.append(f"{way}: {len(told)} saved, told {'/'.join(told) or 0} times")
        return found

    with contextlib.suppress(Red):
        t.until(lambda: not wrong(), "what trainers save", seconds, 0.5)
    check(not (bad := wrong()), "; ".join(bad))


def kill(t: Trial, ways: list[str]) -> None:
    jobs = trained(t, ways)
    t.ok("kill", "-y", *jobs.values())
    for job in jobs.values():
        t.ended(job, "KILLED")
    saved(t, jobs)


def preemption(t: Trial, ways: list[str]) -> None:
    jobs = trained(t, ways, "--spot")
    machines = [machine["name"] for machine in t.machines()]
    check(len(machines) == len(jobs), f"{len(machines)} machines of {len(jobs)} jobs")
    t.cloud.control("POST", "stockout", {"on": True})  # the next attempt has to wait
    with ThreadPoolExecutor(len(machines)) as pool:
        list(pool.map(lambda name: t.power(name, "preempt", grace=30), machines))
    saved(t, jobs, 45)
    t.berg("kill", "-y", "--now", *jobs.values())


def limit(t: Trial, ways: list[str]) -> None:
    jobs = trained(t, ways, "--max-hours", "0.04")
    for job in jobs.values():
        t.ended(job, "FAILED", seconds=240)
    saved(t, jobs)


GROUPS = {
    "shells": ["plain", "exec", "tee", "script", "folder", "timeout"],
    "sessions": ["shell", "background", "session", "daemon", "torchrun"],
    "workers": ["xargs", "make", "workers", "children"],
}
for function, when in {
    kill: "`berg kill`",
    preemption: "a preemption",
    limit: "a time limit",
}.items():
    for group, ways in GROUPS.items():
        name = f"{function.__name__}, {group}"
        is_dear = name == "kill, shells"
        row(
            "processes",
            f"{when} tells every process of a command once, and leaves it time to save: {', '.join(ways)}",
            name=name,
            ways=ways,
            minutes=8,
            is_real=is_dear,
            usd=0.2 * is_dear,
        )(function)


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


def coded(t: Trial, commands: dict[str, tuple[str, int]]) -> None:
    """Each command ends with its code, and what it wrote before is there."""
    mark = "echo x >$BERG_RESULTS_DIR/mark; "
    jobs = submitted(t, {key: mark + command for key, (command, _) in commands.items()})
    wrong = []
    for key, job in jobs.items():
        code, state = commands[key][1], t.ended(job)
        if (state["exit_code"], state["state"]) != (code, "FAILED" if code else "SUCCEEDED"):
            wrong.append(f"{key}: {state['state']} with {state['exit_code']}, not {code}")
        if t.results(job).get("mark") != b"x\n":
            wrong.append(f"{key}: its result is missing")
    check(not wrong, "; ".join(wrong))


CODES = (0, 1, 3, 77, 126, 127, 128, 130, 137, 143, 255)
row(
    "processes",
    "the exit code of a job is that of its command",
    name="exit codes",
    commands={f"c{code}": (f"exit {code}", code) for code in CODES},
)(coded)
row(
    "processes",
    "a command that a signal ends has 128 and its number as exit code, and its results",
    name="signals",
    is_sample=True,
    commands={
        "s9": ("exec python3 -c 'import os; os.kill(os.getpid(), 9)'", 137),
        "s9-own": ("kill -9 $$", 137),
        "s11": ("kill -11 $$", 139),
        "s15": ("sh -c 'kill -15 $$'", 143),
    },
)(coded)
row(
    "processes",
    "a pipe fails with the command in it that fails",
    name="pipes",
    is_real=True,
    usd=0.05,
    commands={
        "first": ("exit 3 | cat", 3),
        "last": ("true | exit 4", 4),
        "none": ("false | true; true", 0),
    },
)(coded)


@row(
    "processes", "a log has all that a command prints, in order: quick, long, odd, unfinished lines"
)
def output(t: Trial) -> None:
    huge = "python3 -c 'import sys; sys.stdout.write(\"x\" * 3_000_000 + chr(10))'"
    odd = "head -c 100000 /dev/urandom; echo; echo after the odd"
    job = t.ran(f"seq 100000; {huge}; {odd}; echo to stderr >&2; printf unfinished")
    lines = t.ok("log", job).out.splitlines()
    check("1" in lines, "the first line is not in the log")
    start, longest = lines.index("1"), max(map(len, lines))
    text = "\n".join(lines[start:])
    places = [text.rfind(word) for word in ("after the odd", "to stderr", "unfinished")]
    numbers = [str(number) for number in range(1, 100_001)]
    all_hold(
        {
            "lines are missing, or not in order": lines[start : start + 100_000] == numbers,
            f"the longest line has {longest:,} characters": "x" * 3_000_000 in lines,
            f"words are at {places}": -1 not in places and places == sorted(places),
        }
    )


@row("processes", "a command finds the variables that are promised, and the folders of them")
def variables(t: Trial) -> None:
    folders = 'for d in "$BERG_RESULTS_DIR" "$BERG_REPO_DIR" "$BERG_SCRATCH_DIR" "$BERG_HOSTFILE"'
    job = t.ran(f'env -0 >$BERG_RESULTS_DIR/env; {folders}; do test -e "$d" || echo "no $d"; done')
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
    wrong += [line for line in t.ok("log", job).out.splitlines() if line.startswith("no ")]
    check(not wrong, "; ".join(wrong))
    check(t.cloud.bucket in found["BERG_BUCKET"], f"BERG_BUCKET is {found['BERG_BUCKET']}")


@row(
    "processes",
    "a command runs in the folder where berg was started, and its input is empty",
    is_sample=True,
)
def working_folder(t: Trial) -> None:
    t.files({"some/where/ask.sh": ASK})
    t.repo = t.repo / "some/where"
    results = t.results(t.ran("sh ask.sh"))
    found = [results[name].decode().strip() for name in ("where", "bytes", "asked")]
    check(found[0] == "/root/code/proj/some/where", f"it ran in {found[0]}")
    check(found[1] == "0" and "EOFError" in found[2], f"its input has {found[1:]}")

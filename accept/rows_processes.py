"""Processes: whatever started a trainer, it is told once that the end is near, and has time to save;
what is left behind keeps no machine; exit codes and output; and whatever the bucket, the rights or a token do meanwhile, results are kept and no machine is left.
"""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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

    def wrong(way: str) -> str:
        told = [
            t.cloud.read(name) for name in t.cloud.objects(f"berg_results/{jobs[way]}/saved-1-")
        ]
        is_right = len(told) == WAYS[way][1] and (way in FORWARDS or {*told} == {b"1"})
        return "" if is_right else f"{way}: {len(told)} saved, told {told} times"

    with contextlib.suppress(Red):
        t.until(lambda: not any(map(wrong, jobs)), "what trainers save", seconds, 0.5)
    found = [*filter(None, map(wrong, jobs))]
    check(not found, "; ".join(found))


def told(t: Trial, how: str, ways: list[str]) -> None:
    """Every trainer hears once of the end, and has the time to save."""
    options = {"preemption": ["--spot"], "limit": ["--max-hours", "0.04"]}.get(how, [])
    jobs = trained(t, ways, *options)
    if how == "kill":
        t.ok("kill", "-y", *jobs.values())
    if how == "preemption":
        t.cloud.control("POST", "stockout", {"on": True})  # the next attempt has to wait
        machines = [machine["name"] for machine in t.machines()]
        check(len(machines) == len(jobs), f"{len(machines)} machines of {len(jobs)} jobs")
        with ThreadPoolExecutor(len(machines)) as pool:
            list(pool.map(lambda name: t.power(name, "preempt", grace=30), machines))
    else:
        for job in jobs.values():
            t.reached(job, "KILLED" if how == "kill" else "FAILED", seconds=240)
    saved(t, jobs, 45 if how == "preemption" else 0)


GROUPS = {
    "shells": ["plain", "exec", "tee", "script", "folder", "timeout"],
    "sessions": ["shell", "background", "session", "daemon", "torchrun"],
    "workers": ["xargs", "make", "workers", "children"],
}
for how, when in {
    "kill": "`berg kill`",
    "preemption": "a preemption",
    "limit": "a time limit",
}.items():
    for group, ways in GROUPS.items():
        is_dear = f"{how}, {group}" == "kill, shells"
        row(
            "processes",
            f"{when} tells every process of a command once, and leaves it time to save: {', '.join(ways)}",
            name=f"{how}, {group}",
            how=how,
            ways=ways,
            minutes=8,
            is_real=is_dear,
            usd=0.2 * is_dear,
        )(told)


def coded(t: Trial, commands: dict[str, tuple[str, int]]) -> None:
    """Each command ends with its code, what it wrote before is there, and nothing keeps its machine."""
    mark = "echo x >$BERG_RESULTS_DIR/mark; "
    jobs = submitted(t, {key: mark + command for key, (command, _) in commands.items()})
    wrong = []
    for key, job in jobs.items():
        code, state = commands[key][1], t.reached(job)
        if (state["exit_code"], state["state"]) != (code, "FAILED" if code else "SUCCEEDED"):
            wrong.append(f"{key}: {state['state']} with {state['exit_code']}, not {code}")
        if not t.results(job).get("mark"):
            wrong.append(f"{key}: its result is missing")
    check(not wrong, "; ".join(wrong))
    t.gone()


LEFT = "echo left >$BERG_RESULTS_DIR/mark; exec sleep 1000"
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
row(
    "processes",
    "processes that a command leaves behind do not keep the machine",
    name="leftovers",
    is_sample=True,
    commands={
        "daemon": (f"setsid -f sh -c '{LEFT}'; sleep 2; exit 5", 5),
        "shell": (f"({LEFT}) & sleep 2; exit 5", 5),
    },
)(coded)


@row(
    "processes", "a log has all that a command prints, in order: quick, long, odd, unfinished lines"
)
def output(t: Trial) -> None:
    huge = "python3 -c 'import sys; sys.stdout.write(\"x\" * 3_000_000 + chr(10))'"
    odd = "head -c 100000 /dev/urandom; echo; echo after the odd"
    job = t.ran(f"seq 100000; {huge}; {odd}; echo to stderr >&2; printf unfinished")
    text = t.ok("log", job).out
    numbers = "".join(f"{number}\n" for number in range(1, 100_001))
    words = (f"\n{numbers}", "x" * 3_000_000, "after the odd", "to stderr", "unfinished")
    places = [text.rfind(word) for word in words]
    check(-1 not in places and places == sorted(places), f"what it printed is at {places}")


# --- the bucket, rights and tokens meanwhile


def gone_for_a_while(t: Trial) -> None:
    t.cloud.fault("storage.*", status=503, times=None)
    time.sleep(40)
    t.cloud.control("DELETE", "faults")


def tokens_expire(t: Trial) -> None:
    t.cloud.control("POST", "tokens/expire", {})


def late_rights(t: Trial) -> None:
    t.cloud.fault("storage.objects.*", status=403, reason="forbidden", match="%2Fdist%2F", times=5)


def counts(t: Trial, act: Callable[[Trial], Any], seconds: int, **settings: float) -> None:
    """A job prints and writes a line each second, and something happens after the third or before."""
    t.cloud.settings(**settings)
    line = "echo $i >>$BERG_RESULTS_DIR/train.log; echo line $i; sleep 1"
    job = t.run(f"for i in $(seq {seconds}); do {line}; done")
    if not settings:
        t.until_log(job, "line 3")
    act(t)
    t.reached(job, "SUCCEEDED", seconds=300)
    lines = t.results(job)["train.log"].decode().split()
    check(lines == [str(n) for n in range(1, seconds + 1)], f"train.log has {len(lines)} lines")
    log = t.log(job)
    check(all(f"line {n}\n" in log for n in range(1, seconds + 1)), "the log lacks lines")
    t.gone()


for name, promise, act, seconds, settings in [
    ("bucket away", "a bucket that refuses everything for 40 seconds loses nothing", gone_for_a_while, 60, {}),
    ("tokens expire", "tokens that expire in the middle of a job are renewed", tokens_expire, 20, {}),
    (
        "rights late",
        "rights that Google grants late delay a job, on an image that is bare and slow",
        late_rights,
        2,
        {"metadata_delay": 3, "first_boot": 8, "prepared": 0},
    ),
]:  # fmt: skip
    row("processes", promise, name, act=act, seconds=seconds, minutes=8, **settings)(counts)


@row("processes", "a bucket that is gone for good keeps no machine", minutes=15)
def bucket_gone(t: Trial) -> None:
    job = t.run("echo ready; sleep 20", "--max-hours", "0.1")
    t.until_log(job, "ready")
    t.cloud.fault("storage.*", status=404, reason="notFound", times=None)
    t.gone(500)


@row(
    "processes",
    "a disk of the results that is full ends no job of Berg's: what fits is kept",
    minutes=6,
)
def results_full(t: Trial) -> None:
    job = t.run(
        "mkdir $BERG_RESULTS_DIR/small && mount -t tmpfs -o size=1m none $BERG_RESULTS_DIR/small && "
        "echo kept > $BERG_RESULTS_DIR/small/kept; "
        "head -c 3000000 /dev/zero > $BERG_RESULTS_DIR/small/big; sync; sleep 3; exit 7"
    )
    state = t.reached(job, "FAILED")
    check(state["exit_code"] == 7, f"exit code {state['exit_code']}: {state['reason']}")
    files = t.results(job)
    check(files.get("small/kept") == b"kept\n", f"what fitted is not in the bucket: {[*files]}")
    t.gone()

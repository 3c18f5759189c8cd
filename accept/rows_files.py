"""Files that need care, each in a row: odd kinds, odd times, other people's objects, large ones."""

import re
import subprocess
import sys
import time

from accept.suite import all_hold, check, row
from accept.world import Trial


@row("data", "pipes, sockets, and links to them and to devices are no results, and hang nothing")
def no_regular_files(t: Trial) -> None:
    python = "import socket; socket.socket(socket.AF_UNIX).bind('socket')"
    lines = [
        f'python3 -c "{python}"',
        "mkfifo pipe",
        "ln -s pipe link",
        "ln -s /dev/zero zero",
        "ln -s /dev/tty tty",
        "ln -s /etc/hostname outside",
        "ln -s loop loop",
        "echo a > whole",
        "sleep 3",
    ]
    t.files({"odd.sh": "cd $BERG_RESULTS_DIR\n" + "\n".join(lines)})
    job = t.ran("bash odd.sh", seconds=50)
    names = {name for name in t.results(job) if not name.startswith("berg_")}
    is_right = "whole" in names and not names & {"pipe", "socket", "zero", "tty"}
    check(is_right, f"the bucket has {names}")


@row("data", "times of 1970 and 2300, executable bits and empty files come back")
def times_and_modes(t: Trial) -> None:
    t.files(
        {
            "times.sh": """cd $BERG_RESULTS_DIR
if [ "$BERG_ATTEMPT" = 1 ]; then
    for year in 1970 2300; do echo $year > $year; touch -d "$year-02-03 04:05:06.5 UTC" $year; done
    touch empty; echo run > run; chmod 755 run; sleep 2; exit 1
fi
stat -c '%n %.1Y %A %s' 1970 2300 empty run | sed 's/^/has /'
"""
        }
    )
    job = t.ran("bash times.sh", ends="FAILED")
    t.ok("run", "--resume", job)
    t.ended(job, "SUCCEEDED")
    log = t.log(job)
    folder = t.repo.parent / "fetched"
    t.ok("fetch", job, str(folder))
    old, runs = (folder / "1970").stat().st_mtime, (folder / "run").stat().st_mode & 0o100
    all_hold(
        {
            "the time of 1970 is lost": "has 1970 2865906.5 " in log,
            "the time of 2300 is lost": "has 2300 10416657906.5 " in log,
            "the executable bit is lost": "has run" in log and "-rwxr-xr-x" in log,
            "the empty file is lost": "has empty" in log,
            "fetch: the executable bit is lost": runs,
            "fetch: the time of 1970 is lost": abs(old - 2865906.5) < 1,
        }
    )


LOGS = """
import os, time
os.chdir(os.environ["BERG_RESULTS_DIR"])
if os.environ["BERG_ATTEMPT"] != "1":
    for name in ("held.log.1", "again.log", "cut.log"):
        print("last of", name, open(name).read().split("\\n")[-2], flush=True)
    raise SystemExit
held, again, cut = (open(f"{name}.log", "w", buffering=1) for name in ("held", "again", "cut"))
for number in range(100_000):
    if number == 60:
        os.rename("held.log", "held.log.1")   # and goes on in the file that it has open
        cut.close(); cut = open("cut.log", "w", buffering=1)
    if number % 50 == 49:
        again.close(); again = open("again.log", "a", buffering=1)
    now = f"{number} {time.time()}\\n"
    held.write(now); again.write(now); cut.write(now)
    time.sleep(0.1)
"""


@row(
    "data",
    "a log that is reopened, cut or rotated while it is held open is at most 30 s behind",
    minutes=6,
)
def logs_held_open(t: Trial) -> str:
    t.files({"logs.py": LOGS})
    job = t.run("python logs.py", "--spot")
    t.until_state(job, "RUNNING")
    time.sleep(45)
    at = time.time()
    t.power(t.machines(job)[0]["name"], "crash")
    t.ended(job, "SUCCEEDED", seconds=150)
    lines = [line.split() for line in t.log(job).splitlines() if line.startswith("last of ")]
    ages = {words[2]: round(at - float(words[-1]), 1) for words in lines}
    check(len(ages) == 3 and max(ages.values()) <= 30, f"seconds behind: {ages}")
    return f"behind by {max(ages.values()):.1f} s"


@row("data", "an object that somebody deletes meanwhile is there at the end, or is named")
def deleted_by_others(t: Trial) -> None:
    job = t.run("echo a > $BERG_RESULTS_DIR/a; sleep 25; echo b > $BERG_RESULTS_DIR/b")
    t.until(lambda: "a" in t.results(job), "the first result", 60)
    t.cloud.remove(f"berg_results/{job}/a")
    state = t.ended(job)
    is_named = re.search(r"[ ']a\b", f"{state.get('reason')} {state.get('lost')}")
    is_well = "a" in t.results(job) or state["state"] != "SUCCEEDED" or is_named
    check(is_well, f"{state['state']} without the file, and without a word")


@row("data", "an object that the job neither wrote nor restored is never replaced or deleted")
def objects_of_others(t: Trial) -> None:
    job = t.run(
        "sleep 12; echo mine > $BERG_RESULTS_DIR/theirs; echo x > $BERG_RESULTS_DIR/x; rm $BERG_RESULTS_DIR/theirs2 || true"
    )
    t.until_state(job, "RUNNING")
    for name in ("theirs", "theirs2"):
        t.cloud.write(f"berg_results/{job}/{name}", b"theirs\n")
    t.ended(job)
    results = t.results(job)
    all_hold(
        {
            "another writer's object was replaced": results.get("theirs") == b"theirs\n",
            "another writer's object was deleted": results.get("theirs2") == b"theirs\n",
            "the job's own file is missing": results.get("x") == b"x\n",
        }
    )


@row("data", "what a job deletes comes back neither by fetch nor by resume")
def deleted_by_the_job(t: Trial) -> None:
    t.files(
        {
            "job.sh": """cd $BERG_RESULTS_DIR
[ "$BERG_ATTEMPT" = 1 ] || { echo finds $(ls | grep -v berg_ | tr '\\n' ' '); exit 0; }
echo a > a; mkdir d; echo b > d/b; sleep 15; rm -r d; echo c > c; sleep 15; exit 1
"""
        }
    )
    job = t.ran("bash job.sh", ends="FAILED")
    folder = t.repo.parent / "fetched"
    t.ok("fetch", job, str(folder))
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    check({"a", "c"} <= names and "d/b" not in names, f"fetch brings {sorted(names)}")
    t.ok("run", "--resume", job)
    t.ended(job, "SUCCEEDED")
    check("finds a c\n" in t.log(job), "resume: " + t.log(job)[-200:])


BIG = """
import hashlib, os, sys
os.chdir(sys.argv[1])
is_first = os.environ.get("BERG_ATTEMPT") == "1"
if is_first:
    with open("big", "wb") as file:
        for _ in range(300): file.write(os.urandom(1 << 20))
    os.mkdir("many")
    for number in range(3000):
        open(f"many/{number}", "w").write(f"{number} " * 40)
digest = hashlib.sha256()
for name in ["big", *sorted(f"many/{name}" for name in os.listdir("many"))]:
    digest.update(open(name, "rb").read())
print("digest", digest.hexdigest(), flush=True)
sys.exit(is_first)
"""


@row("data", "a file of 300 MB and 3,000 small files arrive and come back exactly", minutes=8)
def large_and_many(t: Trial) -> str:
    """The program sums up what it finds: on its machines, and here what a fetch brought."""
    t.files({"big.py": BIG})
    job, folder = t.ran("python big.py $BERG_RESULTS_DIR", ends="FAILED", seconds=150), "../fetched"
    began = time.monotonic()
    t.ok("fetch", job, folder)
    seconds = time.monotonic() - began
    t.ok("run", "--resume", job)
    t.ended(job, "SUCCEEDED", seconds=150)
    words = [sys.executable, "big.py", folder]
    fetched = subprocess.run(words, cwd=t.repo, capture_output=True, text=True, check=True).stdout
    first, *others = re.findall("(?m)^digest .*", f"{t.log(job)}\n{fetched}")
    check(others == [first] * 2, f"resume or fetch bring other bytes: {first}, {others}")
    return f"fetched in {seconds:.0f} s"

"""Machines whose processes die or that are lost, submits that meet, and sweeps: a job runs once, and
nothing of it stays.
"""

import re
import time

from accept.suite import all_hold, check, row
from accept.world import WORKER, Trial

RAN = 'echo x > "$BERG_RESULTS_DIR/ran-$(date +%s%N)"'  # a file for each time that it runs


def runs(t: Trial, job: str) -> int:
    """How often a command with RAN has run, by the bucket."""
    return sum("ran-" in path for path in t.results(job))


# --- the ends of Berg's processes on a machine

STEPS = {"STARTING": (), "INSTALLING": ("--install", "sleep 8"), "RUNNING": (), "UPLOADING": ()}
ENDS = {(WORKER, "UPLOADING"): "SUCCEEDED", (WORKER, "RUNNING"): "FAILED"}


def killed(t: Trial, pattern: str, step: str) -> None:
    is_late = step == "UPLOADING"
    if is_late:
        t.cloud.fault("storage.objects.insert", match=f"{t.name()}/last", delay=8)
    wait = "" if is_late else "; echo ready; sleep 30"
    job = t.run(f'{RAN}; echo last > "$BERG_RESULTS_DIR/last"{wait}', *STEPS[step])
    if step == "RUNNING":
        t.until_log(job, "ready")
    elif step != "STARTING":
        t.reached(job, step)
    t.kill_worker(job, pattern=pattern)
    state = t.reached(job, *ENDS.get((pattern, step), "SUCCEEDED FAILED").split(), seconds=400)
    t.gone(90)
    has_run = step in ("RUNNING", "UPLOADING") or state["state"] == "SUCCEEDED"
    has_last = t.results(job).get("last") == b"last\n"
    all_hold(
        {
            "FAILED without a reason": state["state"] == "SUCCEEDED" or state["reason"],
            f"the command ran {runs(t, job)} times": not has_run or runs(t, job) == 1,
            "the last result is not in the bucket": not has_run or has_last,
        }
    )


for step in STEPS:
    for name, pattern in {"worker": WORKER, "startup script": r"startup-script|boot\.py"}.items():
        row(
            "machines",
            "a job whose worker or startup script is killed ends with its results, and its machine goes",
            name=f"{name} killed while {step}",
            pattern=pattern,
            step=step,
            minutes=8,
            is_sample=(name, step) == ("worker", "UPLOADING"),
        )(killed)


@row("machines", "of two machines one is lost: the job fails, names it, and all go", minutes=9)
def rank_lost(t: Trial) -> None:
    job = t.run("echo ready; sleep 600", "-m", "2")
    t.until_log(job, "ready")
    victim = t.machines(job)[-1]["name"]
    t.power(victim, "crash")
    state = t.reached(job, "FAILED", seconds=300)
    check(re.search(rf"{victim}|rank|machine", state["reason"]), f"names none: {state['reason']}")
    t.gone(120)


# --- once, or never


@row("machines", "two submits and berg rm of one name at one moment leave one job or none")
def two_submits_and_rm(t: Trial) -> None:
    job = t.ran("exit 3", ends="FAILED")
    t.gone()
    words = ["run", "-g", "0", "-n", job, f"{RAN}; sleep 2"]
    laptops = [t.laptop.start(*each, cwd=t.repo) for each in (["rm", "-y", job], words, words)]
    submits = [laptop.wait(240) for laptop in laptops][1:]
    check(submits.count(0) <= 1, f"exit codes {submits}")
    if 0 in submits:
        t.reached(job, "SUCCEEDED")
    t.gone()
    check(runs(t, job) == submits.count(0), f"it ran {runs(t, job)} times: exit codes {submits}")


# --- sweeps

# A row of a sweep works for some seconds, the first ones longer, and goes on where its files say.
ROW = """
import os, sys, time
where, number, attempt = os.environ["BERG_RESULTS_DIR"], sys.argv[1], os.environ["BERG_ATTEMPT"]
done = int(open(f"{where}/done").read()) if os.path.exists(f"{where}/done") else 0
open(f"{where}/began-{number}-{attempt}", "w").write(str(done))
while done < (25 if int(number) < 3 else 5):
    time.sleep(1)
    done += 1
    open(f"{where}/part", "w").write(str(done))
    os.replace(f"{where}/part", f"{where}/done")
open(f"{where}/ended-{number}-{attempt}", "w").write(str(done))
"""
ROWS, KILLED = 12, 10  # rows, and the number of one that is killed


@row(
    "machines",
    "each row of a sweep on Spot machines ends once, with its files; one is killed alone",
    minutes=8,
    is_sample=True,
)
def sweep(t: Trial) -> None:
    t.files({"row.py": ROW})
    grid = "n=" + ",".join(map(str, range(ROWS)))
    name = t.run("python3 row.py {n}", "--spot", "--parallel", "3", "--grid", grid, name="sweep")
    t.ok("kill", "-y", f"{name}/{KILLED}")
    t.until(lambda: "began-" in "".join(t.results(name)), "the first rows", 90)
    time.sleep(4)
    t.power(t.machines(name)[0]["name"], "preempt", grace=20)
    t.berg("wait", name, timeout=400)
    found = t.results(name)
    ends = sorted(int(path.split("-")[-2]) for path in found if "/ended-" in path)
    again = {path: data for path, data in found.items() if re.search(r"/began-\d+-2$", path)}
    all_hold(
        {
            f"the rows that ended: {ends}": ends == [n for n in range(ROWS) if n != KILLED],
            "no row began again": again,
            f"a row began again without its files: {again}": all(map(int, again.values())),
        }
    )
    t.gone()

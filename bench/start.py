"""What Berg adds between a machine's startup script and the command's first line, step by step."""

import time
from collections.abc import Iterator
from pathlib import Path

from common import Cost, Side, Table, sides

# On the machine: when each step ended, as its files say. %W of stat is when a file was made.
STEPS = {
    "Berg is downloaded": "%.Y /root/berg/app.zip",
    "Berg's packages are there, the worker begins": "%.W /root/berg/worker.err",
    "the worker has the job": "%.W /root/berg/*.log",
    "the code is checked out": "%.Y /root/code/*/.git/HEAD",
    "results are restored, packages installed, the command begins": "%.W /root/berg/began",
}
FORMATS = " ; ".join(f"stat -c '{step.split()[0]}' {step.split()[1]}" for step in STEPS.values())
COMMAND = f"now=$(date +%s.%N); (stat -c %.W /root/berg/machine; {FORMATS}; echo $now) > $BERG_RESULTS_DIR/steps"


def measure(bergs: dict[str, str], repeats: int, scratch: Path) -> Iterator[Table]:
    with sides(dict([next(iter(bergs.items()))]), scratch) as made:
        [side] = made.values()
        trial = side.trial
        trial.repo = scratch / "start"
        trial.repo.mkdir()
        (trial.repo / "README").write_text("nothing to install\n")
        trial.git("init", "-q", "-b", "main")
        trial.git("add", "-A")
        trial.git("commit", "-q", "-m", "first")
        for prepared, what in ((0, "a new machine"), (1, "a machine of a golden image")):
            trial.cloud.settings(prepared=prepared)
            table = Table(
                f"Start: {what}",
                "From the startup script on, without anything of the job to install: each step, and all.",
            )
            for number in range(repeats):
                start(side, f"start{prepared}{number}", table)
            yield table
        yield next_job(side, repeats)


def start(side: Side, name: str, table: Table) -> None:
    side.berg("run", "-g", "0", "-n", name, "--wait", COMMAND, cwd=side.trial.repo)
    times = [float(line) for line in side.trial.results(name)["steps"].split()]
    table.costs.setdefault("all", []).append(Cost(times[-1] - times[0], 0))
    for step, before, after in zip([*STEPS, "the command's first line"], times, times[1:]):
        table.costs.setdefault(step, []).append(Cost(after - before, 0))


def next_job(side: Side, repeats: int) -> Table:
    note = "`berg run --on`: from its end on this computer to the command's first line."
    table = Table("Start: a job on a machine that waits", note)
    side.berg("devbox", "-g", "0", "-n", "host", cwd=side.trial.repo)
    while side.trial.state("host").get("state") != "RUNNING":
        time.sleep(0.2)
    for name in (f"next{number}" for number in range(repeats)):
        first = "date +%s.%N > $BERG_RESULTS_DIR/first"
        side.berg("run", "--on", "host", "-n", name, first, cwd=side.trial.repo)
        ended = time.time()
        side.berg("wait", name)
        began = float(side.trial.results(name)["first"])
        table.costs.setdefault("all", []).append(Cost(began - ended, 0))
    return table

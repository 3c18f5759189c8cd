"""How soon a command begins: on a new machine, and on one that an earlier job kept warm."""

import time

import common
from common import SCRATCH, Cloud, Cost, Result, Target, median, table

COLD, WARM = "a new machine", "a warm one"
COMMAND = "date +%s.%N >$BERG_RESULTS_DIR/began"


def measure(repeats: int) -> list[Result]:
    repo = SCRATCH / "repo"
    repo.mkdir()
    (repo / "train.py").write_text("")
    common.git(repo, "init", "-q", "-b", "main")
    common.commit(repo)
    costs: dict[str, list[Cost]] = {COLD: [], WARM: []}
    with Cloud() as cloud:

        def begins(name: str, *options: str) -> Cost:
            began = time.time()
            cloud.berg("run", "-g", "0", "-n", name, *options, "--wait", COMMAND, cwd=repo)
            cloud.berg("fetch", name, SCRATCH / name)
            return Cost(float((SCRATCH / name / "began").read_text()) - began, 0)

        for number in range(repeats):
            costs[COLD].append(begins(f"cold-{number}", "--keep-warm", "10m"))
            costs[WARM].append(begins(f"warm-{number}"))
    note = (
        "From `berg run` to the first line of its command. A new machine of the embedded cloud boots "
        "within a second; Google's takes most of a minute, which a warm one saves."
    )
    target = Target("`berg run` to the command, on a warm machine", median(costs[WARM]), 5, "s")
    return [table("Warm machines", note, costs, [target])]


if __name__ == "__main__":
    common.main(__doc__, measure)

"""How soon a command begins: on a new machine, and on one that an earlier job kept warm."""

import time

import common
from common import SCRATCH, Cloud, Cost, Result, Target, median, table

COLD, SLOW, WARM = "a new machine", "a new machine that boots like Google's", "a warm one"
BOOT = 15  # seconds more that such a one takes, at least: Google's images boot in half a minute
COMMAND = "date +%s.%N >$BERG_RESULTS_DIR/began"


def measure(repeats: int) -> list[Result]:
    repo = SCRATCH / "repo"
    repo.mkdir()
    (repo / "train.py").write_text("")
    common.git(repo, "init", "-q", "-b", "main")
    common.commit(repo)
    costs: dict[str, list[Cost]] = {COLD: [], SLOW: [], WARM: []}
    with Cloud() as cloud:

        def begins(name: str, *options: str) -> Cost:
            began = time.time()
            cloud.berg("run", "-g", "0", "-n", name, *options, "--wait", COMMAND, cwd=repo)
            cloud.berg("fetch", name, SCRATCH / name)
            return Cost(float((SCRATCH / name / "began").read_text()) - began, 0)

        for number in range(repeats):
            cloud.call("POST", "/_berg/settings", {"delay": BOOT})
            costs[SLOW].append(begins(f"slow-{number}"))
            cloud.call("POST", "/_berg/settings", {"delay": 0})
            costs[COLD].append(begins(f"cold-{number}", "--keep-warm", "10m"))
            costs[WARM].append(begins(f"warm-{number}"))
    note = (
        "From `berg run` to the first line of its command. A new machine of the embedded cloud boots "
        f"within a second; with a setting it takes {BOOT} s more, and Google's takes longer still."
    )
    warm, slow = median(costs[WARM]), median(costs[SLOW])
    targets = [
        Target("`berg run` to the command, on a warm machine", warm, 5, "s"),
        Target("a warm machine over one that boots like Google's", warm / slow, 0.25),
    ]
    return [table("Warm machines", note, costs, targets)]


if __name__ == "__main__":
    common.main(__doc__, measure)

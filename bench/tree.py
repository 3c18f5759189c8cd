"""How long it takes to make a commit of a working tree of 100,000 files, against `git status`.

Without imports, requests and the rest of a submit.
"""

import json
import subprocess

import common
from common import BIN, CLEAN, SCRATCH, Cost, Result, Target, ratio, rounds, table, timed
from growth import TOUCHED

# Takes a snapshot for each line that it reads.
TAKE = """
import json, sys, time
from pathlib import Path
from berg.code import snapshot

for line in sys.stdin:
    wall = time.perf_counter()
    snapshot.take(Path(sys.argv[1]))
    print(json.dumps({"wall": time.perf_counter() - wall, "cpu": 0}), flush=True)
"""
FILES = 100_000
BERG, STATUS = "berg's snapshot", "`git status`"


def measure(repeats: int) -> list[Result]:
    repo, numbers = SCRATCH / "repo", iter(range(1_000))
    common.make_repo(repo, FILES)
    common.git(repo, "gc", "-q")
    process = subprocess.Popen(
        [BIN / "python", "-c", TAKE, repo],
        env=CLEAN,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def take() -> Cost:
        assert process.stdin and process.stdout
        print(file=process.stdin, flush=True)
        return Cost(**json.loads(process.stdout.readline()))

    def edit() -> None:
        (repo / TOUCHED).write_text(f"edit = {next(numbers)}\n")

    take()  # imports
    sides = {BERG: take, STATUS: lambda: timed("git", "status", "--porcelain", cwd=repo)}
    costs = rounds(sides, repeats, edit)
    process.communicate()
    why = "git's own walk takes 0.32 of Berg's 0.42 s of CPU, the list of Git LFS files 0.04 s, ten git processes 0.06 s"
    target = Target(f"wall over {STATUS}", ratio(costs, BERG, STATUS), 1.3, why=why)
    title = "Tree: one edited file"
    return [table(title, "No untracked cache.", costs, [target])]


if __name__ == "__main__":
    common.main(__doc__, measure)

"""What an earlier commit of berg's took, against this one: start, list, submit, and the worker's.

python bench/earlier.py [--repeats 5] COMMIT [start list submit worker]

Both sides talk to one embedded cloud, this one's, in turn, each with a BERG_HOME of its own and one
bucket. CPU is what counts on a computer with other work.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import common
from common import SCRATCH, TOP, Cloud, Cost, Result, ratio, rounds, table, timed
from list import write_jobs
from worker import COMMAND, GOLDEN

JOBS = 1000
# What the command line is, for a copy of berg that is nowhere installed.
PROGRAM = "from berg.cli import main; main()"


@dataclass
class Side:
    """A copy of berg with a home of its own."""

    cloud: Cloud
    source: Path
    home: Path

    def berg(self, *words: str | Path, cwd: Path | None = None) -> Cost:
        env = {**self.cloud.env, "BERG_HOME": str(self.home), "PYTHONPATH": str(self.source)}
        return timed(sys.executable, "-c", PROGRAM, *words, env=env, cwd=cwd or self.home)


def side_of(cloud: Cloud, source: Path, name: str) -> Side:
    home = SCRATCH / f"home-{name}"
    home.mkdir()
    shutil.copy(cloud.home / "berg.json", home)
    return Side(cloud, source, home)


def sides_of(cloud: Cloud, commit: str, tree: Path) -> dict[str, Side]:
    now, before = "this one", f"`{commit}`"
    return {now: side_of(cloud, TOP, "now"), before: side_of(cloud, tree, "before")}


def compare(
    title: str, repeats: int, note: str, sides: dict[str, Side], work: Callable[[Side], Cost]
) -> Result:
    """Run the work of all sides in turn; the first time, which fills caches, does not count."""
    for side in sides.values():
        work(side)
    costs = rounds({name: lambda side=side: work(side) for name, side in sides.items()}, repeats)
    (now, before), found = costs, table(title, note, costs, [])
    if common.median(costs[before], "cpu"):
        cpu, wall = ratio(costs, now, before, "cpu"), ratio(costs, now, before)
        found.note += f" This one over the earlier: CPU {cpu:.3f}, wall {wall:.3f}."
    else:
        found.note += f" This one over the earlier: {ratio(costs, now, before):.3f}."
    return found


def start(cloud: Cloud, sides: dict[str, Side], repeats: int) -> Result:
    return compare("`berg --help`", repeats, "", sides, lambda side: side.berg("--help"))


def list_(cloud: Cloud, sides: dict[str, Side], repeats: int) -> Result:
    write_jobs(cloud, 0, JOBS, 0)
    note = f"{JOBS:,} jobs, no machines."
    return compare("`berg list -a`", repeats, note, sides, lambda side: side.berg("list", "-a"))


def submit(cloud: Cloud, sides: dict[str, Side], repeats: int) -> Result:
    """Machines that run nothing: what is measured is the laptop's."""
    cloud.call("POST", "/_berg/settings", {"boot": 0})
    repo = SCRATCH / "repo"
    common.make_repo(repo, 100)
    numbers = iter(range(1_000_000))

    def once(side: Side) -> Cost:
        return side.berg("run", "-g", "0", "-n", f"submit-{next(numbers)}", "true", cwd=repo)

    try:
        return compare("`berg run`", repeats, "A repo of 100 files.", sides, once)
    finally:
        cloud.call("POST", "/_berg/settings", {"boot": 1})


def worker(cloud: Cloud, sides: dict[str, Side], repeats: int) -> Result:
    """From the boot of a machine to the command's first line, as bench/worker.py has it."""
    repo = SCRATCH / "first"
    common.make_repo(repo, 10)
    (repo / "first.py").write_text(COMMAND)
    common.commit(repo)
    numbers = iter(range(1_000_000))

    def once(side: Side) -> Cost:
        name = f"first-{next(numbers)}"
        wanted = ("-g", "0", "-n", name, *GOLDEN, "--wait", "python3 first.py")
        side.berg("run", *wanted, cwd=repo)
        side.berg("fetch", name, SCRATCH / name)
        return Cost(json.loads((SCRATCH / name / "seconds.json").read_text()), 0)

    note = "From the boot of a machine with a golden image to the command's first line."
    return compare("Worker", repeats, note, sides, once)


PARTS = {"start": start, "list": list_, "submit": submit, "worker": worker}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    tree = SCRATCH / "earlier"
    git = ["git", "-C", str(TOP), "worktree"]
    subprocess.run([*git, "add", "-q", "--detach", str(tree), asked.commit], check=True)
    try:
        with Cloud() as cloud:
            sides = sides_of(cloud, asked.commit[:7], tree)
            parts = [PARTS[name] for name in asked.parts or PARTS]
            print(common.markdown([part(cloud, sides, asked.repeats) for part in parts]))
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)
        shutil.rmtree(SCRATCH, ignore_errors=True)


if __name__ == "__main__":
    main()

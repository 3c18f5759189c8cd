"""`python -m accept`: try the rows on a berg, print the table, and write a file of it."""

import argparse
import importlib
import shutil
import signal
import sys
import time
from pathlib import Path

from accept import suite, world

HERE = Path(__file__).parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="accept", description=__doc__)
    parser.add_argument("--berg", default="berg", help="the program to try; the one on the PATH")
    parser.add_argument("--cloud", choices=["local", "real"], default="local")
    parser.add_argument("--only", default="", help="regular expressions of row names")
    parser.add_argument("--project", default="", help="with --cloud real")
    parser.add_argument("--bucket", default="", help="with --cloud real")
    parser.add_argument(
        "--jobs", type=int, default=3, help="rows side by side, each on a cloud of its own"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--rounds", type=int, default=1, help="further rounds draw seeds of their own"
    )
    parser.add_argument("--sample", action="store_true", help="the rows of continuous integration")
    parser.add_argument(
        "--other", default="", help="another berg, for the ratios of the area speed"
    )
    parser.add_argument("--out", type=Path, help="write the table as JSON")
    parser.add_argument("--list", action="store_true", help="print the rows, and try none")
    parser.add_argument("--compare", nargs=2, type=Path, metavar="FILE", help="compare two tables")
    return parser.parse_args()


def main() -> int:
    # Started in the background it may ignore Ctrl-C, and then so would each berg.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    given = arguments()
    if given.compare:
        print("\n".join(suite.compare(*given.compare)))
        return 0
    for path in sorted(HERE.glob("rows_*.py")):
        importlib.import_module(f"accept.{path.stem}")
    is_real = given.cloud == "real"
    rows = suite.chosen(given.only, is_real, given.sample)
    if given.list or not rows:
        print("\n".join(f"{row.key:<60} {row.promise}" for row in rows) or "no row has such a name")
        return 0 if rows else 2
    berg = shutil.which(given.berg)
    if berg is None:
        print(f"There is no program {given.berg}: name it with --berg", file=sys.stderr)
        return 2
    berg = str(Path(berg).absolute())
    if is_real and not (given.project and given.bucket):
        print("--cloud real needs --project and --bucket", file=sys.stderr)
        return 2
    if is_real:
        usd = sum(row.usd for row in rows)
        print(f"{len(rows)} rows in project {given.project}, at most ${usd:.2f}. Ctrl-C ends it.")
        time.sleep(5)
    began = time.monotonic()
    about = {"berg": berg, "cloud": given.cloud, "seed": given.seed}
    verdicts: list[suite.Verdict] = []
    jobs = max(1, min(given.jobs, len(rows) * given.rounds))
    with world.trials(berg, jobs, given) as trials:
        try:
            for verdict in suite.run(rows, trials, given.seed, given.rounds):
                print(suite.line(verdict), flush=True)
                verdicts.append(verdict)
                if given.out:
                    suite.save(given.out, about, verdicts)
        except KeyboardInterrupt:
            print("Interrupted; cleaning up")
    reds = [verdict for verdict in verdicts if verdict.status == "red"]
    print("\n".join(["", *suite.summary(verdicts), f"{time.monotonic() - began:.0f} s"]))
    # The closing line that continuous integration reads.
    print(f"{len(verdicts) - len(reds)} passed, {len(reds)} failed")
    return 1 if reds else 0


if __name__ == "__main__":
    sys.exit(main())

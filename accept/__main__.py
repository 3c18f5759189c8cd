"""`python -m accept`: try the rows on a berg, print the table, and write a file of it."""

import argparse
import importlib
import json
import re
import shutil
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from accept import suite, world


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
    parser.add_argument("--sample", action="store_true", help="the rows of continuous integration")
    parser.add_argument("--out", type=Path, help="write the table as JSON")
    parser.add_argument("--list", action="store_true", help="print the rows, and try none")
    return parser.parse_args()


def main() -> int:
    # Started in the background it may ignore Ctrl-C, and then so would each berg.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    given = arguments()
    for path in sorted(Path(__file__).parent.glob("rows_*.py")):
        importlib.import_module(f"accept.{path.stem}")
    for word in given.only.split():
        if not any(re.search(word, row.key) for row in suite.ROWS):
            sys.exit(f"No row matches {word!r}. See them: python -m accept --list")
    rows = suite.chosen(given.only, given.cloud == "real", given.sample)
    if given.list or not rows:
        print(
            "\n".join(f"{row.key:<60} {row.promise}" for row in rows) or "none of these is for this"
        )
        return 0 if rows else 2
    berg = shutil.which(given.berg)
    if berg is None:
        sys.exit(f"There is no program {given.berg}: name it with --berg")
    if given.cloud == "real":
        if not (given.project and given.bucket):
            sys.exit("--cloud real needs --project and --bucket")
        usd = sum(row.usd for row in rows)
        print(f"{len(rows)} rows in project {given.project}, at most ${usd:.2f}. Ctrl-C ends it.")
        time.sleep(5)
    berg = str(Path(berg).absolute())
    verdicts: list[suite.Verdict] = []
    with world.trials(berg, max(1, min(given.jobs, len(rows))), given) as trials:
        try:
            for verdict in suite.run(rows, trials, given.seed):
                print(verdict, flush=True)
                verdicts.append(verdict)
                if given.out:
                    table = {"berg": berg, "seed": given.seed, "rows": [*map(asdict, verdicts)]}
                    given.out.write_text(json.dumps(table, indent=1))
        except KeyboardInterrupt:
            print("Interrupted; cleaning up")
    many = Counter(verdict.status for verdict in verdicts)
    # The closing line that continuous integration reads.
    print(f"{many['green']} passed, {many['red']} failed, {many['missing']} missing")
    return 1 if many["red"] else 0


if __name__ == "__main__":
    sys.exit(main())

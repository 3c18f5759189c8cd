"""Run the benchmarks and write docs/benchmarks.md, or print the tables of those that are named.

    python bench/run.py [--repeats 3] [--berg NAME=PATH …] [start] [laptop] [machine]

Without --berg it is the one of this environment. With several, the first is what the others are compared with.
"""

import argparse
import importlib
import os
import platform
import shutil
import sys
import tempfile
from datetime import date
from pathlib import Path

from common import TOP

SCRIPTS = ["start", "laptop", "machine"]
PAGE = """# Benchmarks

`make bench` measures Berg against rclone and gcloud, each side in turn in one run, on the embedded cloud: its own CPU is on the
same cores. Medians; × is the wall over that of the first row. CPU is that of the program and its children.

{about}

## Slower than we want, and why

- **A submit**, 1.0 s wall and 1.2 s of CPU wanted 30 ms away: half of the CPU imports GitPython, requests and google-cloud-storage
  (of google-cloud-compute only what is sent), a quarter is git's, which reads 20,000 files. Requests go one after the other where
  an object is claimed before the next one is written.
- **A list of 5,000 jobs**, 0.5 s of CPU wanted: half is imports; the bucket's list has all states, each of which is checked. An
  index would be a second truth.
- **Many small files**, no slower than rclone wanted: 30 ms away they take as long; next to the bucket 1.4 to 1.5 times as long, as
  each file is noted, checked and moved to its place in Python.
- **A start on a new machine**, 2.0 s wanted: uv installs what Berg's worker needs, and Python compiles that at its first import.
  A [golden image](image.md) has both.

{tables}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--berg", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("scripts", nargs="*")
    given = parser.parse_args()
    bergs = dict(each.split("=", 1) for each in given.berg) or {
        "Berg": str(Path(sys.executable).parent / "berg")
    }
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's Python keeps what it has compiled
    scratch = Path(tempfile.mkdtemp(prefix="berg-bench-"))
    tables, load = [], os.getloadavg()[0]  # the benchmarks' own one comes on top
    try:
        for script in given.scripts or SCRIPTS:
            for table in importlib.import_module(script).measure(bergs, given.repeats, scratch):
                tables.append(table.markdown())
                print(tables[-1], flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if not given.scripts and not given.berg:
        python = platform.python_version()
        about = f"{date.today()}, {os.cpu_count()} cores, Python {python}, load {load:.1f} before."
        (TOP / "docs/benchmarks.md").write_text(PAGE.format(about=about, tables="\n".join(tables)))


if __name__ == "__main__":
    main()

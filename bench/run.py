"""Run the benchmarks and write docs/benchmarks.md, or only the sections of the scripts that are
named.

With --check the page stays as it is, and the exit code is 1 if a result is worse, beyond noise.

python bench/run.py [--repeats 5] [--check] [startup list …]
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import check
import common

# Each is a script in this folder, in the order of the page.
SCRIPTS = [
    "startup",
    "size",
    "list",
    "page",
    "submit",
    "tree",
    "sync_edit",
    "worker",
    "warm",
    "install",
    "overhead",
    "operations",
    "usage",
    "pods",
    "cluster_start",
    "cache",
    "results",
    "restore",
    "growing",
    "passes",
    "fetch",
    "follow",
    "growth",
    "sweep",
    "scale",
    "halving",
]
ABSENT = "not installed"
PAGE = common.TOP / "docs/benchmarks.md"
# the sentence of a section; in older ones it names no cores
MEASURED = re.compile(
    r"^(?P<day>[\d-]+)( at \w+)?, \d+ repeats"
    r"(, (?P<cores>\d+) cores( \(.*\))?, other load (?P<busy>[\d.]+))?\.$",
    re.M,
)
HEAD = """# Benchmarks

```bash
make bench                              # run all of them and write this page
make bench SCRIPTS="startup list"       # run some and write their sections
make bench CHECK=1                      # compare with this page; fails if ratios or counts are worse, beyond noise
.venv/bin/python bench/startup.py       # run one and print its tables
```

{measured}

Compared programs run in turn against the [embedded cloud](embedded-cloud.md), which shares the computer's cores.
With "30 ms away", each of the laptop's requests takes that time, and the first on a connection three times that,
for its handshakes. Wall is the median in seconds. CPU is user and system time of a program and its children; next to
both walls, CPU and requests are those of 30 ms away. Round trips are those in the longest chain of sequential requests.
Below each table are its targets: what was measured, and the limit. {missed}

{versions}
"""


def version(*command: str) -> str:
    """The first line of a program's version."""
    if not shutil.which(command[0]):
        return ABSENT
    done = subprocess.run(command, capture_output=True, text=True)
    return (
        (done.stdout or done.stderr)
        .splitlines()[0]
        .removeprefix(f"{command[0]} ")
        .removeprefix("version ")
        .strip()
    )


def versions() -> dict[str, str]:
    found = {"berg": f"{importlib.metadata.version('berg')} at {commit()}"}
    found["Python"] = platform.python_version()
    for package in (
        "click",
        "urllib3",
        "google-cloud-compute",
        "google-auth",
        "requests",
        "aiohttp",
    ):
        found[package] = importlib.metadata.version(package)
    for package in ("dsub", "skypilot"):
        packages = [str(path) for path in common.PEERS.glob(f"{package}/lib/python*/site-packages")]
        names = [
            each.version for each in importlib.metadata.distributions(name=package, path=packages)
        ]
        found[package] = names[0] if names else ABSENT
    found["gcloud"] = version("gcloud", "--version")
    found["rclone"] = version("rclone", "version")
    found["git"], found["rsync"] = version("git", "--version"), version("rsync", "--version")
    found["NGINX"] = version("nginx", "-v").rpartition("/")[2]
    found["Open MPI"] = version("mpirun", "--version")
    return found


def version_line(old: str) -> str:
    """Return the version of each program; for a program that is missing, that of the old page."""
    before = re.search(r"^Versions: (.*)\.$", old, re.M)
    parts = before[1].split(", ") if before else []
    found = []
    for name, text in versions().items():
        was = next((part for part in parts if part.startswith(f"{name} ")), "")
        found.append(was if was and text == ABSENT else f"{name} {text}")
    return f"Versions: {', '.join(found)}."


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=common.TOP, capture_output=True, text=True
    )
    return done.stdout.strip()


def write(sections: dict[str, str]) -> None:
    """Write the page; what was not measured this time stays."""
    old = PAGE.read_text() if PAGE.exists() else ""
    for script in SCRIPTS:
        if script not in sections and (begin := title(script)) in old:
            sections[script] = old.partition(begin)[2].partition("\n## ")[0]
    there = [script for script in SCRIPTS if script in sections]
    text = HEAD.format(
        measured=told_by(sections[script] for script in there),
        missed=missed_in(sections),
        versions=version_line(old),
    )
    PAGE.write_text(
        text + "".join(f"\n{title(script)}{sections[script].rstrip()}\n" for script in there)
    )


def missed_in(sections: dict[str, str]) -> str:
    """Return how many targets are missed, and of which scripts."""
    targets = sum(section.count(", limit ") for section in sections.values())
    missed = {name: text.count(" **Missed**") for name, text in sections.items()}
    where = ", ".join(script for script in SCRIPTS if missed.get(script))
    return f"{sum(missed.values())} of {targets} are missed{f' ({where})' if where else ''}."


def told_by(sections: Iterable[str]) -> str:
    """Return when, on how many cores and under how much other load sections were measured."""
    found = [MEASURED.search(section) for section in sections]
    days = sorted({each["day"] for each in found if each})
    cores = sorted({int(each["cores"]) for each in found if each and each["cores"]})
    busy = sorted({float(each["busy"]) for each in found if each and each["busy"]})
    words = [f"Measured {between(days)}"]
    if cores:
        words.append(f"on {' and '.join(map(str, cores))} cores")
    if busy:
        words.append(f"other load {between(busy)}")
    unknown = sum(not each or not each["cores"] for each in found)
    rest = f" (unknown for {unknown} older sections)" if unknown else ""
    return f"{', '.join(words)}{rest}."


def between(values: Sequence[object]) -> str:
    """Return the first and the last of some values, as text."""
    if not values:
        return "never"
    first, last = values[0], values[-1]
    return f"{first}" if first == last else f"{first} to {last}"


def circumstances() -> str:
    """Return this computer, and how many of its cores have other work now."""
    before = cpu_seconds()
    time.sleep(1)
    busy = cpu_seconds() - before
    return f"{os.cpu_count()} cores ({platform.machine()}), other load {busy:.1f}"


def cpu_seconds() -> float:
    """Return how many seconds the computer's cores have worked since it was started."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def title(script: str) -> str:
    return f"## `bench/{script}.py`\n\n"


def measure(script: str, repeats: int) -> str | None:
    """Run a script; return its section, None if it fails."""
    path = Path(__file__).with_name(f"{script}.py")
    command: list[str | Path] = [sys.executable, path, "--json", "--repeats", str(repeats)]
    computer = circumstances()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return None
    answer = json.loads(done.stdout)
    results = []
    for each in answer["results"]:
        targets = [common.Target(**target) for target in each.pop("targets")]
        results.append(common.Result(**each, targets=targets))
    note = f"{time.strftime('%Y-%m-%d')} at {commit()}, {repeats} repeats, {computer}."
    return f"{answer['about']}\n\n{note}\n\n{common.markdown(results)}"


def worse_than_before(script: str, repeats: int, section: str) -> list[str]:
    """Return what is worse than in the page, in both of two measurements."""
    before = check.measured_in(PAGE.read_text())
    first = check.regressions(before, check.measured_in(title(script) + section))
    if not first:
        return []
    print(f"{script} seems worse, once more: {'; '.join(first.values())}", file=sys.stderr)
    again = measure(script, repeats)
    if again is None:
        return [f"{script} failed the second time"]
    second = check.regressions(before, check.measured_in(title(script) + again))
    return [said for name, said in second.items() if name in first]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--check", action="store_true", help="compare with the page, and leave it as it is"
    )
    parser.add_argument("scripts", nargs="*", help="only these")
    arguments = parser.parse_args()
    began = time.monotonic()
    failed: list[str] = []
    worse: list[str] = []
    sections: dict[str, str] = {}
    for script in arguments.scripts or SCRIPTS:
        print(f"== {script}, after {time.monotonic() - began:.0f} s", file=sys.stderr)
        found = measure(script, arguments.repeats)
        if found is None:
            failed.append(script)
        elif arguments.check:
            worse += worse_than_before(script, arguments.repeats, found)
        else:
            sections[script] = found
            # what was measured outlives a run that is cut short
            write(sections.copy())
    for said in worse:
        print(f"worse than in the page: {said}", file=sys.stderr)
    if failed:
        sys.exit(f"these failed: {', '.join(failed)}")
    if worse:
        sys.exit(1)


if __name__ == "__main__":
    main()

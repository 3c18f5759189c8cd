"""Run the benchmarks and write docs/benchmarks.md.

python bench/run.py [--repeats 5] [startup list …]
"""

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import common

# Each is a script beside this one; a new one gets its place in the page here.
SCRIPTS = [
    "startup",
    "size",
    "list",
    "submit",
    "sync_edit",
    "worker",
    "cluster_start",
    "results",
    "fetch",
    "growth",
    "sweep",
]
PAGE = common.TOP / "docs/benchmarks.md"
HEAD = """# Benchmarks

```bash
make bench              # all of them; writes this page
make bench REPEATS=1    # a quick look
.venv/bin/python bench/startup.py --repeats 5       # one, which prints its tables
```

`make bench REPEATS={repeats}` wrote this page on {date}, in {minutes:.0f} minutes, on {machine}.

Programs that are compared run in turn, in one run. On the other end of all of them is the
[embedded cloud](embedded-cloud.md) of this repository, a fresh one for each side where a note says so, on the same
computer: there is no network between, and its CPU time comes out of the same {cpus} cores. CPU is user and system time
of a program and its children. Ratios are of medians. Peers stand in environments of their own under `.venv/peers`,
which the scripts make.

{versions}
"""


def version(*command: str) -> str:
    """The first line that a program says of itself."""
    if not shutil.which(command[0]):
        return "not installed"
    done = subprocess.run(command, capture_output=True, text=True)
    return (done.stdout or done.stderr).splitlines()[0].removeprefix(f"{command[0]} ").removeprefix("version ").strip()


def versions() -> dict[str, str]:
    sources = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=common.TOP, capture_output=True, text=True)
    found = {"berg": f"{importlib.metadata.version('berg')} at {sources.stdout.strip()}"}
    found["Python"] = platform.python_version()
    for package in ("click", "google-cloud-storage", "google-cloud-compute", "google-auth", "requests", "aiohttp"):
        found[package] = importlib.metadata.version(package)
    for package in ("dsub", "skypilot"):
        packages = [str(path) for path in common.PEERS.glob(f"{package}/lib/python*/site-packages")]
        names = [each.version for each in importlib.metadata.distributions(name=package, path=packages)]
        found[package] = names[0] if names else "not installed"
    found["gcloud"] = version("gcloud", "--version")
    found["rclone"] = version("rclone", "version")
    found["git"], found["rsync"] = version("git", "--version"), version("rsync", "--version")
    found["Open MPI"] = version("mpirun", "--version")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("scripts", nargs="*", help="only these, and print instead of writing the page")
    arguments = parser.parse_args()
    began, sections, failed = time.monotonic(), [], []
    for script in arguments.scripts or SCRIPTS:
        print(f"== {script}, after {time.monotonic() - began:.0f} s", file=sys.stderr)
        command: list[str | Path] = [
            sys.executable,
            Path(__file__).with_name(f"{script}.py"),
            "--json",
            "--repeats",
            str(arguments.repeats),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            failed.append(script)
            continue
        answer = json.loads(done.stdout)
        results = []
        for each in answer["results"]:
            targets = [common.Target(**target) for target in each.pop("targets")]
            results.append(common.Result(**each, targets=targets))
        sections.append((script, answer["about"], results))
    page = HEAD.format(
        date=time.strftime("%Y-%m-%d"),
        minutes=(time.monotonic() - began) / 60,
        repeats=arguments.repeats,
        machine=f"{os.cpu_count()} cores ({platform.machine()}, {platform.system()} {platform.release()})",
        cpus=os.cpu_count(),
        versions="| | version |\n|---|---|\n" + "\n".join(f"| {name} | {text} |" for name, text in versions().items()),
    )
    page += "\n## Targets\n\n| | measured | target: at most | |\n|---|---:|---:|---|\n"
    for result in (result for _, _, results in sections for result in results):
        for each in result.targets:
            cells = [f"{result.title}: {each.text}", each.show(each.measured), each.show(each.limit)]
            page += f"| {' | '.join(cells)} | {'met' if each.met else '**missed**'} |\n"
    for script, about, results in sections:
        page += f"\n## `bench/{script}.py`\n\n{about}\n\n{common.markdown(results)}"
    if arguments.scripts:
        print(page)
    else:
        PAGE.write_text(page)
    if failed:
        sys.exit(f"these failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

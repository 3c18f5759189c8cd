"""`berg profile`: where the Python processes of a job spend their time, by py-spy, through ssh.

All machines take theirs at the same time, and the command goes on. The files are among the results,
and here. Not covered: GPUs and native code, which a program's own profiler sees.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from berg import BergError, install, ssh, terminal
from berg.bucket import THREADS
from berg.config import Config
from berg.fetch import here
from berg.job import RUNNING, Job, now
from berg.options import complete_names
from berg.place import Machine

# What runs on a machine: `take`, in the Berg that its job brought.
THERE = "import sys; sys.path.insert(0, '/root/berg/app'); from berg.clients import profile; profile.take()"
RATE, PROCESSES = 100, 8  # samples a second; processes of a machine, those that used the most CPU
SLACK = 180  # seconds after those of the profile: the first one installs py-spy
LINES = 10  # of code that are named
FILE = re.compile(r"[\w-]+(\.[\w-]+)+")


# --- on a machine


def take() -> None:
    """Profile the Python processes of a job's command; print the files, or what went wrong, as JSON."""
    job, when, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    found = pythons(job)
    if not found:
        return print(json.dumps({"error": "no Python process of the command runs"}))
    folder = Path(next(iter(found.values())), "profiles", when)
    name, suffix = os.uname().nodename.split(".")[0], "speedscope.json" if seconds else "txt"
    with ThreadPoolExecutor(PROCESSES) as pool:
        done = [*pool.map(lambda pid: py_spy(pid, seconds), found)]
    files = {f"{name}.{pid}.{suffix}": text for pid, (text, _) in zip(found, done) if text}
    if not files:
        return print(json.dumps({"error": done[0][1] or "it ended before its profile was taken"}))
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text)
    return print(json.dumps({"files": files}))


def pythons(job: str) -> dict[int, str]:
    """The Python processes of a command, those that used the most CPU first, and its results folder."""
    used, results = Counter[int](), {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            rows = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            variables = dict(row.partition("=")[::2] for row in rows)
            program = os.readlink(folder / "exe").rpartition("/")[2]
            if program.startswith("python") and variables.get("BERG_JOB") == job:
                ticks = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
                used[int(folder.name)] = sum(map(int, ticks))
                results[int(folder.name)] = variables["BERG_RESULTS_DIR"]
        except (OSError, KeyError):  # it has ended, or belongs to another machine
            continue
    return {pid: results[pid] for pid, _ in used.most_common(PROCESSES)}


def py_spy(pid: int, seconds: float) -> tuple[str, str]:
    """What py-spy, which uv installs when it is first needed, has of a process; or its error."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "profile")
        words = [install.program() or "uv", "tool", "run", "-q", "py-spy"]
        words += ["record" if seconds else "dump", "--nonblocking", "--pid", str(pid)]
        if seconds:
            words += ["--format", "speedscope", "--output", str(file), "--rate", str(RATE)]
            words += ["--duration", str(round(seconds))]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=seconds + SLACK)
        except (OSError, subprocess.TimeoutExpired) as error:
            return "", str(error)
        text = file.read_text() if file.exists() else "" if seconds else done.stdout
        return text, done.stderr.strip().rpartition("\n")[2]


# --- here


def ask(config: Config, job: Job | None, machine: Machine, when: str, seconds: float) -> Any:
    """The files that a machine took, by name, or its `error`."""
    *words, address = ssh.login(config, job, machine)
    command = ["/root/berg/venv/bin/python", "-c", THERE, machine.job, when, str(seconds)]
    try:
        done = subprocess.run(
            [*words, address, shlex.join(command)], stdin=subprocess.DEVNULL,
            capture_output=True, timeout=seconds + SLACK + 30,
        )  # fmt: skip
        answer = json.loads(done.stdout)
        files = answer.get("files", {})
        if all(FILE.fullmatch(name) and isinstance(text, str) for name, text in files.items()):
            return answer
    except (OSError, ValueError, AttributeError, subprocess.TimeoutExpired):
        pass
    reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return {"error": reason or "its answer cannot be read"}


def hottest(text: str) -> list[str]:
    """The lines of code in which a profile of py-spy's spent the most time; none of another file."""
    try:
        found = json.loads(text)
        frames, spent = found["shared"]["frames"], Counter[int]()
        for part in found["profiles"]:
            for stack, weight in zip(part["samples"], part["weights"]):
                spent[stack[-1] if stack else -1] += weight
        total = sum(spent.values()) or 1
        spent.pop(-1, None)  # nothing ran
        return [
            f"{100 * weight / total:5.1f} %  {frames[number]['name']} "
            f"({Path(frames[number]['file']).name}:{frames[number]['line']})"
            for number, weight in spent.most_common(LINES)
        ]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


@click.command()
@click.argument("name", default="@", shell_complete=complete_names)
@click.option(
    "-s", "--seconds", type=click.IntRange(1, 600), default=10, show_default=True, help="How long."
)
@click.option("--stacks", is_flag=True, help="What it does just now instead: all its stacks.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def profile(name: str, seconds: int, stacks: bool, as_json: bool) -> None:
    """Profile the Python processes of a job while they run; big/1 is only its second machine.

    The files are kept with the results, and downloaded to ~/berg_results.

    \b
    berg profile @
    berg profile big/1 -s 30
    berg profile @ --stacks
    """
    config = Config.load()
    state, machines = ssh.machines_of(config, name)
    if state.state != RUNNING:
        raise BergError(f"{state.name} is {state.state}. Only a command that runs can be profiled")
    job, when = ssh.read_job(config, state.name), now().replace("-", "").replace(":", "")
    long = 0 if stacks else seconds
    terminal.say(f"Profiling {state.name}" + f" for {terminal.duration(long)}" * (not stacks))
    with ThreadPoolExecutor(THREADS) as pool:
        answers = [*pool.map(lambda machine: ask(config, job, machine, when, long), machines)]
    paths, about, folder = [], {}, here() / state.results / "profiles" / when
    for machine, answer in zip(machines, answers):
        if "files" not in answer:
            terminal.warn(f"{machine.name}: {answer.get('error')}")
        about[machine.name] = answer | {"files": [*answer.get("files", {})]}
        for file, text in answer.get("files", {}).items():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
            paths.append(str(folder / file))
            if as_json:
                continue
            terminal.show(paths[-1] if long else f"{file}\n{text}")
            for line in hottest(text):
                terminal.say(line)
    if as_json:
        terminal.show_json({"files": paths, "machines": about})
    if paths and long:
        terminal.say("Open them: https://www.speedscope.app, which keeps them in the browser")
    sys.exit(not paths)

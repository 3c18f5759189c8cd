"""Jobs under random faults: each ends truthfully, has the results that it had, and leaves nothing.

    python tests/storm.py MINUTES [SEED]      a round for each seed from SEED on; at least one

A program writes files, and says in its log when one is whole. Meanwhile workers and commands are
killed, machines are preempted or lose their power, the bucket fails, and laptops are killed. Then
every file that was whole is compared with what `berg fetch` brings.
"""

import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from conftest import Cloud, commit, embedded

from berg import BergError, gce, google, jobs
from berg import job as records
from berg.job import FAILED, KILLED, LOST, SUCCEEDED, State

PATIENCE = 300  # seconds in which a job is over, and nothing of it is left
SILENT = 20  # seconds instead of five minutes, after which a job without a machine is LOST
LATE = 35  # seconds of results that go with a machine that is lost
PROGRAM = f"import berg.job; berg.job.SILENT = {SILENT}; from berg.cli import main; main()"
WRITER = r"""
import hashlib, os, random, signal, sys, time

seed, count, pause, row = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
rank, attempt, where = (os.environ["BERG_" + key] for key in ("NODE_RANK", "ATTEMPT", "RESULTS_DIR"))

def write(name, data):
    path = f"{where}/{name}"
    if not os.path.exists(path) or open(path, "rb").read() != data:
        with open(f"{path}.part", "wb") as file:
            file.write(data)
        os.replace(f"{path}.part", path)
    said = ("whole", row, name, hashlib.sha256(data).hexdigest(), time.time())
    os.write(1, (" ".join(map(str, said)) + "\n").encode())

def last(*_):
    write(f"last-{rank}-{attempt}", os.urandom(100_000))
    os._exit(9)

signal.signal(signal.SIGTERM, last)
for number in range(count):
    dice = random.Random(f"{seed} {row} {rank} {number}")
    write(f"{rank}-{number:03}", dice.randbytes(int(10 ** dice.uniform(0, 6.5))))
    time.sleep(pause)
"""
WHOLE = re.compile(r"^whole (\w+) (\S+) (\w{64}) ([\d.]+)$", re.M)
KINDS: dict[str, list[str]] = {
    "job": [],
    "restarts": ["--restart-on-failure", "9"],
    "spot": ["--spot"],
    "two": ["-m", "2", "--each"],
    "two on spot": ["-m", "2", "--each", "--spot"],
    "sweep": ["--grid", "n=0,1,2", "--parallel", "2"],
    "sweep on spot": ["--grid", "n=0,1,2", "--parallel", "2", "--spot"],
}


@dataclass
class Round:
    """One job and what happens to it."""

    cloud: Cloud
    seed: int
    kind: str
    dice: random.Random
    folder: Path
    hits: list[str] = field(default_factory=list)
    excused: float = float("inf")  # what was whole from then on may be lost

    @property
    def name(self) -> str:
        return f"storm-{self.seed}"

    def start(self, *words: str) -> "subprocess.Popen[str]":
        env = {**self.cloud.env, "TOKEN": "hush"}
        command, pipe = [sys.executable, "-c", PROGRAM, *words], subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.folder / "proj", env=env, stdin=subprocess.DEVNULL, stdout=pipe,
            stderr=pipe, text=True,
        )  # fmt: skip

    def berg(self, *words: str) -> tuple[int, str]:
        """Run a command, whose errors are sentences."""
        process = self.start(*words)
        _, said = process.communicate(timeout=PATIENCE)
        assert "Traceback" not in said, said
        return process.returncode, said

    def machine(self) -> gce.Instance:
        return self.dice.choice(gce.machines(self.cloud.config, self.name))

    def state(self) -> State | None:
        """As it is in truth; None without a job."""
        try:
            return jobs.find(self.cloud.config, self.name)
        except BergError:
            return None


# --- what goes wrong


def requests(method: str, **what: Any) -> Callable[[Round], None]:
    def do(this: Round) -> None:
        chance = {"probability": this.dice.uniform(0.02, 0.2), "seed": this.dice.randint(0, 9999)}
        body = {"method": method, "times": this.dice.randint(5, 60), **chance, **what}
        this.cloud.call("POST", "/_berg/faults", body)

    return do


def settings(**values: float) -> Callable[[Round], None]:
    return lambda this: this.cloud.call("POST", "/_berg/settings", values) and None


def power(what: str) -> Callable[[Round], None]:
    def do(this: Round) -> None:
        machine, state = this.machine(), this.state()
        if what == "crash":
            until = state.synced_until if state else ""
            synced = (
                datetime.fromisoformat(until.replace("Z", "+00:00")).timestamp() if until else 0
            )
            this.excused = min(this.excused, time.time() - LATE, synced)
        body = {"grace": 20} if what == "preempt" else {}
        this.cloud.call("POST", f"/_berg/instances/{machine.name}/{what}", body)

    return do


def processes(pattern: str) -> Callable[[Round], None]:
    """Kill one of the machine's processes whose command line matches."""

    def do(this: Round) -> None:
        mark, found = f"GCE_METADATA_HOST={this.machine().inner_address}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                if re.search(pattern, words) and mark in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
        os.kill(this.dice.choice(found), signal.SIGKILL)

    return do


def cut(this: Round) -> None:
    path = f"/_berg/instances/{this.machine().name}/cut"
    this.cloud.call("POST", path, {})
    time.sleep(this.dice.uniform(2, 8))
    this.cloud.call("POST", path, {"cut": False})


def kill(this: Round) -> None:
    code, said = this.berg("kill", "-y", this.name)
    assert code in (0, 1), said


def laptop(*words: str) -> Callable[[Round], None]:
    """Kill a command of a laptop in the middle."""

    def do(this: Round) -> None:
        process = this.start(*[word.replace("NAME", this.name) for word in words])
        time.sleep(this.dice.uniform(0.3, 3))
        process.kill()
        process.communicate()

    return do


def submit_again(this: Round) -> None:
    code, said = this.berg("run", "-g", "0", "-n", this.name, "true")
    assert code == 1 or not this.state(), f"the name was given twice: {said}"


GENTLE = {  # what ends no job
    "storage refuses": requests("storage.objects.*", status=503),
    "storage is busy": requests("storage.objects.*", status=429),
    "connections break": requests("storage.objects.*", reset=True),
    "answers are lost": requests("storage.objects.*", reset=True, after_handler=True),
    "storage stalls": requests("storage.objects.*", delay=5),
    "Compute Engine refuses": requests("compute.*", status=503),
    "its answers are lost": requests("compute.*", reset=True, after_handler=True),
    "tokens expire": lambda this: this.cloud.call("POST", "/_berg/tokens/expire", {}) and None,
    "the cloud is far away": settings(latency=0.1),
    "metadata is slow": settings(metadata_delay=0.5),
    "a machine is cut off": cut,
    "a fetch is killed": laptop("fetch", "NAME", "../cut-off"),
    "a list is killed": laptop("list", "-a"),
    "its name is submitted again": submit_again,
}
PREEMPTED, CRASH = "a machine is preempted", "a machine loses its power"
WORKER, COMMAND, KILL = "a worker is killed", "a command is killed", "somebody kills it"
HARD = {
    PREEMPTED: power("preempt"),
    CRASH: power("crash"),
    WORKER: processes(r"berg\.worker"),
    COMMAND: processes(r"^python3 writer\.py"),
    KILL: kill,
    "a kill is killed": laptop("kill", "-y", "NAME"),
}
OUTLIVED = {"spot": {PREEMPTED, CRASH}, "two on spot": {PREEMPTED, CRASH}, "restarts": {COMMAND}}
OUTLIVED["sweep on spot"] = {PREEMPTED, CRASH}


# --- a round, and what must hold after it


def run(cloud: Cloud, seed: int, folder: Path) -> str:
    dice = random.Random(seed)
    this = Round(cloud, seed, dice.choice([*KINDS]), dice, folder)
    before = everything(cloud)
    row, count = "{n}" if "sweep" in this.kind else "0", dice.randint(5, 25)
    command = f"python3 writer.py {seed} {count} {dice.uniform(0.05, 0.8):.2f} {row}"
    secret = ["--secret", "TOKEN"] if dice.random() < 0.4 else []
    words = ["run", "-g", "0", "-n", this.name, *KINDS[this.kind], *secret, "--max-hours", "0.3"]
    if dice.random() < 0.15:
        this.hits.append("the laptop is killed")
        laptop(*words, command)(this)
    else:
        code, said = this.berg(*words, command)
        assert code == 0, said
    print(f"seed {seed}: {this.kind}{', a secret' * bool(secret)}", end="", flush=True)
    for _ in range(dice.randint(1, 4)):
        time.sleep(dice.uniform(0, 7))
        what = dice.choice([*GENTLE, *HARD])
        if what == PREEMPTED and "spot" not in this.kind:
            continue
        try:
            {**GENTLE, **HARD}[what](this)
            this.hits.append(what)
            print(f", {what}", end="", flush=True)
        except (IndexError, ProcessLookupError, google.GoogleError):  # it is gone already
            print(f", ({what})", end="", flush=True)
    state = ended(this)
    cloud.call("DELETE", "/_berg/faults")
    cloud.call("POST", "/_berg/settings", {"latency": 0, "metadata_delay": 0})
    if state:
        check_truth(this, state)
        files = compare(this, state, count)
    check_nothing_is_left(this, before)
    return f"{state.state if state else 'no job'}, {files if state else 0} files"


def ended(this: Round) -> State | None:
    """The final state; None if a laptop that was killed left no job."""
    end = time.monotonic() + PATIENCE
    while True:
        state = this.state()
        if state is None and "the laptop is killed" in this.hits:
            return None
        if state and state.is_final:
            return state
        assert time.monotonic() < end, f"it does not end: {state}"
        time.sleep(1)


def check_truth(this: Round, state: State) -> None:
    """It has ended as what happened to it allows."""
    hits = {*this.hits} - OUTLIVED.get(this.kind, set())
    may = {SUCCEEDED}
    may |= {KILLED} if hits & {KILL, "a kill is killed"} else set()
    may |= {FAILED, LOST} if hits & {CRASH, "the laptop is killed"} else set()
    may |= {FAILED} if {*this.hits} & {WORKER, COMMAND} else set()
    assert state.state in may, f"{state.state} ({state.reason}) after {this.hits}"
    assert state.state == SUCCEEDED or state.reason, f"{state.state} without a reason"


def compare(this: Round, state: State, count: int) -> int:
    """Every file that was whole is what a fetch brings, or excused; how many those are."""
    target = this.folder / this.name
    this.berg("fetch", this.name, str(target))
    found: dict[tuple[str, str], tuple[str, float]] = {}
    for row, name, sha256, at in WHOLE.findall(this.cloud.log(this.name)):
        found[row, name] = sha256, float(at)
    rows = records.row_states(this.cloud.bucket, this.name).values()
    missing = {path for each in [state, *(row for row, _ in rows)] for path in each.missing}
    for (row, name), (sha256, at) in found.items():
        file = target / row / name if "sweep" in this.kind else target / name
        has = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "nothing"
        is_excused = at >= this.excused or any(path.endswith(name) for path in missing)
        assert has == sha256 or is_excused, f"{row}/{name} is {has}, whole at {at}: {this.hits}"
    if state.state == SUCCEEDED:
        regular = [name for _, name in found if not name.startswith("last-")]
        many = 3 if "sweep" in this.kind else 2 if "two" in this.kind else 1
        assert len(regular) == count * many, (
            f"SUCCEEDED with {len(regular)} files of {count * many}"
        )
    return len(found)


def everything(cloud: Cloud) -> dict[str, set[str]]:
    """What costs money in the project."""
    found = {
        kind: {row["name"] for row in google.items(cloud.config, f"/aggregated/{kind}")}
        for kind in ("instances", "disks", "instanceGroupManagers")
    }
    secrets = cloud.call("GET", "/secretmanager/v1/projects/berg-local/secrets").get("secrets", [])
    return {**found, "secrets": {row["name"] for row in secrets}}


def check_nothing_is_left(this: Round, before: dict[str, set[str]]) -> None:
    """All goes by itself; only what a killed laptop or a lost machine left takes `berg reap`."""
    is_abrupt = {*this.hits} & {CRASH, "the laptop is killed", "a kill is killed"}
    end = time.monotonic() + PATIENCE
    while left := {kind: now - before[kind] for kind, now in everything(this.cloud).items()
                   if now - before[kind]}:  # fmt: skip
        assert time.monotonic() < end, f"left: {left} after {this.hits}"
        if is_abrupt:
            this.berg("kill", "-y", this.name)
            this.berg("reap", "-y")
        time.sleep(2)
    if this.state():
        code, said = this.berg("rm", "-y", this.name)
        assert code == 0, said
    names = [name for name in this.cloud.names(".berg/") if this.name in name.split("/")]
    assert not names, f"berg rm left {names}"


def main() -> None:
    minutes, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    records.SILENT = SILENT
    end, first = time.monotonic() + minutes * 60, seed
    with tempfile.TemporaryDirectory(prefix="storm-") as scratch, embedded() as cloud:
        (project := Path(scratch, "proj")).mkdir()
        (project / "writer.py").write_text(WRITER)
        commit(project)
        while seed == first or time.monotonic() < end:
            print(f": {run(cloud, seed, Path(scratch))}", flush=True)
            seed += 1
    print(f"{seed - first} rounds from seed {first} on, nothing wrong")


if __name__ == "__main__":
    main()

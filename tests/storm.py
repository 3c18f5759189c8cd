"""Whole jobs, clusters and sweeps under random faults: `make storm [SEED=] [MINUTES=]`.

A round is one seed: it says what runs, which files it writes, and what goes wrong when. Each file that a command
recorded as finished is compared by its hash with what `berg fetch` brings (before `synced_until` where a machine went
without a warning, and but for what the state says was lost); then every machine, disk, group, template and secret is
counted, and the bucket's policy compared. A round that fails names its seed: `make storm SEED=17 MINUTES=0` repeats
what is asked for, though not to the millisecond what happens.
"""

import hashlib
import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import click
from conftest import Berg, commit

from berg import jobs, reap
from berg.local import control

SEED = int(os.environ.get("SEED") or 1)
MINUTES = float(os.environ.get("MINUTES") or 2)
PATIENCE = 300  # seconds in which all must be over: a cluster's silence takes 180 of them

WRITER = """
import hashlib, os, random, sys, time
seed, count, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
rank = os.environ["BERG_NODE_RANK"]
out = os.environ["BERG_RESULTS_DIR"] + "/" + rank
os.makedirs(out, exist_ok=True)
for i in range(count):
    dice = random.Random(f"{seed} {rank} {i}")
    path, data = f"{out}/{i:03}.bin", dice.randbytes(int(10 ** dice.uniform(0, 7.3)))
    if not (os.path.exists(path) and open(path, "rb").read() == data):
        how, half = dice.choice(["at once", "renamed", "grown", "rewritten"]), len(data) // 2
        with open(path + ".part" if how == "renamed" else path, "wb") as file:
            for part in (data[:half], data[half:]):
                file.write(part if how != "rewritten" else bytes(len(part)))
                if how == "grown":
                    file.flush()
                    time.sleep(pause)
            if how == "rewritten":
                file.flush()
                time.sleep(pause)
                file.seek(0)
                file.write(data)
        if how == "renamed":
            os.rename(path + ".part", path)
    print("finished", f"{rank}/{i:03}.bin", hashlib.sha256(data).hexdigest(), time.time(), flush=True)
    time.sleep(pause)
print("all finished", flush=True)
"""
KINDS = {  # kind -> options, and how many machines it has
    "job": ([], 1),
    "spot": (["--spot"], 1),
    "cluster": (["-m", "3", "--each"], 3),
    "sweep": (["--grid", "n=0,1,2", "--parallel", "2"], 2),
}


def test_storm(berg, monkeypatch):
    monkeypatch.setattr(jobs, "LOST_AFTER", 5)
    monkeypatch.setattr(reap, "SETTLED", -1)
    berg.allowed += [500, 503]
    (berg.repo / "writer.py").write_text(WRITER)
    commit(berg.repo)
    end, seed, checked = time.monotonic() + MINUTES * 60, SEED, 0
    while seed == SEED or time.monotonic() < end:
        checked += run_round(berg, seed)
        seed += 1
    click.echo(f"storm: {seed - SEED} rounds from seed {SEED} on, {checked} files compared, none lost, nothing left")


def run_round(berg: Berg, seed: int) -> int:
    """One job, cluster or sweep from its submit to the count of what is left; how many files were compared."""
    dice = random.Random(seed)
    name, kind = f"storm-{seed}-{os.urandom(2).hex()}", dice.choice([*KINDS])
    options, machines = KINDS[kind]
    policy = berg.bucket.bucket.get_iam_policy().bindings
    command = f"python writer.py {seed} {dice.randint(5, 25)} {dice.uniform(0.05, 0.6):.2f}"
    secret = ["--secret", f"KEY={berg.home}/berg.json"] if dice.random() < 0.4 else []
    command += "; true {n}" if kind == "sweep" else ""
    ran = berg("run", "-g", "0", "-n", name, *options, *secret, "--max-hours", "0.2", command)
    click.echo(f"storm: seed {seed}: {name}, {kind}{' with a secret' if secret else ''}", nl=False)
    assert ran.returncode == 0, ran.stderr
    abrupt, began = False, time.monotonic()
    for _ in range(dice.randint(1, 4)):
        time.sleep(dice.uniform(0, 6))
        what = dice.choice([*TROUBLE])
        click.echo(f", {what}", nl=False)
        try:
            TROUBLE[what](berg, dice, name, machines)
        except (AssertionError, IndexError):  # what was to be hit is gone already
            click.echo(" (missed)", nl=False)
        abrupt |= what in ABRUPT
    while True:
        there = entries(berg, name)
        if all(each.state and each.state.final for each in there):
            break
        assert time.monotonic() - began < PATIENCE, f"seed {seed}: it does not end: {[each.state for each in there]}"
        time.sleep(1)
    berg.cloud.call("DELETE", "/_berg/faults")
    click.echo(": " + ", ".join(sorted({each.state.state for each in there})))
    checked = sum(compare(berg, each, abrupt, seed) for each in there)
    count_what_is_left(berg, name, seed)
    assert berg.bucket.bucket.get_iam_policy().bindings == policy, f"seed {seed}: the bucket's policy changed"
    return checked


def entries(berg: Berg, name: str) -> list[jobs.Entry]:
    """The job of that name, or the jobs of the sweep."""
    found = jobs.overview(berg.bucket.config, None, name)
    assert found, f"{name} is not there"
    return [each for each in found if name in (each.name, each.sweep)]


def compare(berg: Berg, entry: jobs.Entry, abrupt: bool, seed: int) -> int:
    """Fetch a job's results and compare them with what its log says was finished; how many files that were."""
    state = entry.state
    assert state
    log = berg("log", entry.name).stdout
    finished = re.findall(r"finished (\S+) (\w{64}) ([\d.]+)$", log, re.M)
    until = datetime.fromisoformat(state.synced_until).timestamp() if abrupt and state.synced_until else 0.0
    if state.state != "SUCCEEDED" and abrupt:
        finished = [each for each in finished if float(each[2]) < until]
    folder = berg.home / entry.name
    fetched = berg("fetch", entry.name, str(folder))
    assert fetched.returncode == 0 or not finished, fetched.stderr
    wrong = [path for path, checksum, _ in finished if hash_of(folder / path) != checksum]
    said = [path for path in wrong if state.lost]
    assert wrong == said, f"seed {seed}: {entry.name} lost {wrong}: {state}\n{log}"
    assert state.state != "SUCCEEDED" or "all finished" in log or said, f"seed {seed}: the log's end is missing"
    return len(finished)


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "missing"


def count_what_is_left(berg: Berg, name: str, seed: int) -> None:
    """After `reap` there is nothing; machines of jobs that are over go without it, save those that were cut off."""
    config, began = berg.bucket.config, time.monotonic()
    while any(each["status"] != "TERMINATED" for each in berg.machines().values()):
        assert time.monotonic() - began < 120, f"seed {seed}: machines that do not end: {list(berg.machines())}"
        time.sleep(0.5)
    reap.delete(config, reap.find(config, None))
    left = {"machines": list(berg.machines())}
    for kind, path in (
        ("disks", "aggregated/disks"),
        ("groups", "aggregated/instanceGroupManagers"),
        ("templates", "global/instanceTemplates"),
    ):
        left[kind] = re.findall(rf'"name": "({name}[^"]*)"', json.dumps(berg.cloud.call("GET", f"{COMPUTE}/{path}")))
    listed = berg.cloud.call("GET", "/secretmanager/v1/projects/berg-local/secrets").get("secrets", [])
    left["secrets"] = [each["name"] for each in listed if name in each["name"]]
    left["leftovers"] = [f"{each.kind} {each.name}" for each in reap.find(config, None)]
    assert not any(left.values()), f"seed {seed}: {left}"


COMPUTE = "/compute/v1/projects/berg-local"


def machine_of(berg: Berg, dice: random.Random, name: str) -> str:
    return dice.choice(sorted(each for each in berg.machines() if each.startswith(name)))


def power(what: str, **body) -> Callable:
    def do(berg: Berg, dice: random.Random, name: str, machines: int) -> None:
        berg.cloud.call("POST", f"/_berg/instances/{machine_of(berg, dice, name)}/{what}", body)

    return do


def cut_off(berg: Berg, dice: random.Random, name: str, machines: int) -> None:
    path = f"/_berg/instances/{machine_of(berg, dice, name)}/cut"
    berg.cloud.call("POST", path, {})
    time.sleep(dice.uniform(2, 10))
    berg.cloud.call("POST", path, {"cut": False})


def kill_worker(berg: Berg, dice: random.Random, name: str, machines: int) -> None:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[-3:-1] in (["run", name], ["sweep", name]) and "berg.worker" in " ".join(words):
            found.append(int(path.parent.name))
    os.kill(dice.choice(sorted(found)), signal.SIGKILL)


def kill_server(berg: Berg, dice: random.Random, name: str, machines: int) -> None:
    folder = berg.cloud.folder
    server = json.loads((folder / "server.json").read_text())
    os.kill(server["pid"], signal.SIGKILL)
    time.sleep(dice.uniform(0.2, 3))
    control.start(folder, server["port"])


def storage(**what) -> Callable:
    def do(berg: Berg, dice: random.Random, name: str, machines: int) -> None:
        chance = {"probability": dice.uniform(0.02, 0.2), "seed": dice.randint(0, 9999)}
        berg.cloud.fault("storage.objects.*", times=dice.randint(5, 60), **chance, **what)

    return do


TROUBLE: dict[str, Callable] = {
    "storage refuses": storage(status=503),
    "storage is busy": storage(status=429),
    "connections break": storage(reset=True),
    "answers are lost": storage(reset=True, after_handler=True),
    "storage stalls": storage(delay=5),
    "a worker dies": kill_worker,
    "the cloud dies": kill_server,
    "a machine is preempted": power("preempt", grace=30),
    "a machine crashes": power("crash"),
    "a machine is cut off": cut_off,
}
ABRUPT = ("a machine crashes",)

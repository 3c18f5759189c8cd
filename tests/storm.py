"""Whole jobs, clusters, sweeps and devboxes under random faults: `make storm [SEED=] [MINUTES=]`.

A round is one seed: it says what runs, which files it writes, and what goes wrong when. Each file
that a command recorded as finished is compared by its hash with what `berg fetch` brings, and so is
what an attempt finds of the one before it. Excused is what berg itself says by name that it could
not keep, and what a machine wrote that went without a warning: after `synced_until`, or in its last
minute where it was not the one that writes that. The log has no gap. If nothing happened that ends
a job, it succeeds. At the end machines, groups, disks and secrets are gone by themselves, save
those of machines that went without a word, and after `berg reap` all that is in the project is as
it was before, and so are the policies. A round that fails names its seed: `make storm SEED=17
MINUTES=0` repeats what is asked for, though not to the millisecond what happens.
"""

import hashlib
import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import click
import pytest
from conftest import POLICY_3, Berg, commit, wait_for
from requests import ConnectionError

from berg import job
from berg.google import walk
from berg.laptop import ending, jobs
from localcloud import control

SEED = int(os.environ.get("SEED") or 1)
MINUTES = float(os.environ.get("MINUTES") or 2)
PATIENCE = 300  # seconds in which all must be over
ROUND = 30  # seconds that most rounds take
SILENCE = 40  # seconds in place of 180, after which a cluster gives up a machine
GLOBAL = ("firewalls", "snapshots")
COMPUTE = "/compute/v1/projects/berg-local"

WRITER = r"""
import hashlib, os, random, signal, subprocess, sys, time
from urllib.parse import quote
seed, count, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
rank, attempt, own = (os.environ["BERG_" + key] for key in ("NODE_RANK", "ATTEMPT", "RESULTS_DIR"))
root = own.partition("berg_results/")[0] + "berg_results"
beside = "beside-" + os.path.relpath(own, root).replace("/", "-")
folders = f"{own}/{rank}", f"{own}/{rank}/deep/er", f"{root}/{beside}/{rank}"
names = ["%s.bin", "x" * 244 + "%s", "x" * 100 + "%s" + "x" * 140, "-%s '\u00e4%%2F#?\u2603", ".%s.berg-part"]
hows = ["at once", "renamed", "grown", "rewritten", "renamed over", "cut", "lengthened"]
done = []

def write(path, data, mode="wb"):
    with open(path, mode) as file:
        file.write(data)

def make(path, data, how):
    half = len(data) // 2
    if how == "grown":
        write(path, b"")
        for part in (data[:half], data[half:]):
            time.sleep(pause)
            write(path, part, "ab")
    elif how == "renamed":
        write(path[:-4], data)
        os.rename(path[:-4], path)
    elif how == "at once":
        write(path, data)
    else:
        before = {"rewritten": bytes(len(data)), "cut": data + data, "lengthened": data[:half]}.get(how, b"before")
        write(path, before)
        time.sleep(pause)
        if how == "renamed over":
            write(path[:-4], data)
            os.rename(path[:-4], path)
        elif how == "cut":
            os.truncate(path, len(data))
        else:
            write(path, data, "r+b")

def tell(path, data, how):
    name = quote(os.path.relpath(os.fsencode(path), os.fsencode(root)))
    print("finished", attempt, rank, len(done), how, name, hashlib.sha256(data).hexdigest(), time.time(), flush=True)
    done.append(path)

def last_words(*_):
    data = os.urandom(3_000_000)
    path = f"{folders[0]}/last words {attempt}"
    write(path, data)
    tell(path, data, "wrote")
    os._exit(9)

signal.signal(signal.SIGTERM, last_words)
for folder in folders:
    os.makedirs(folder, exist_ok=True)
lines, grown = b"", f"{folders[0]}/lines {attempt}"
for i in range(count):
    dice = random.Random(f"{seed} {rank} {i}")
    path = f"{dice.choice(folders)}/{dice.choice(names) % f'{i:03}'}"
    data, how = dice.randbytes(int(10 ** dice.uniform(0, 7.3))), dice.choice(hows)
    there = os.path.exists(path) and open(path, "rb").read() == data
    if not there:
        make(path, data, how)
    tell(path, data, "found" if there else "wrote")
    more = os.urandom(dice.choice([10, 1000, 2_000_000]))
    write(grown, more, "ab")
    lines += more
    time.sleep(pause)
tell(grown, lines, "wrote")
if "many" in sys.argv:  # more than a pass sends at once, and the newest go first
    for i in range(600):
        path, data = f"{folders[0]}/many {i:03}", os.urandom(50)
        if not os.path.exists(path):
            write(path, data)
            tell(path, data, "wrote")
if "left" in sys.argv:  # behind, in a session of its own, and never at rest
    goes_on = f"while :; do date +%N >'{folders[0]}/left behind {attempt}'; sleep 0.1; done"
    subprocess.Popen(["sh", "-c", goes_on], start_new_session=True, stdout=subprocess.DEVNULL)
if seed.endswith("7"):
    for path in (f"{folders[0]}/caf".encode() + b"\xe9", f"{folders[0]}/two\nlines".encode()):
        write(path, b"refused")
        tell(path, b"refused", "wrote")
print("all finished", attempt, rank, flush=True)
"""
KINDS = {  # kind -> its options
    "job": [],
    "job that runs again": ["--restart-on-failure", "9"],
    "spot": ["--spot"],
    "spot, too": ["--spot"],
    "cluster": ["-m", "3", "--each"],
    "cluster whose member fails": ["-m", "3", "--each"],
    "cluster that goes on": ["-m", "3", "--each", "--keep-going"],
    "cluster that runs again": ["-m", "3", "--each", "--restart-on-failure", "9"],
    "cluster on Spot": ["-m", "3", "--each", "--spot"],
    "cluster on Spot, too": ["-m", "3", "--each", "--spot", "--restart-on-failure", "9"],
    "sweep": ["--grid", "n=0,1,2", "--parallel", "2"],
    "devbox": [],  # which stops and starts
}
PARTS = re.compile(r"finished (\d+) (\d+) (\d+) (\w+) (\S+) (\w{64}) ([\d.]+)$", re.M)


@dataclass
class Round:
    """One job, cluster, sweep or devbox."""

    berg: Berg
    seed: int
    kind: str
    name: str
    dice: random.Random
    options: list[str] = field(default_factory=list)  # of berg run
    hits: list[str] = field(default_factory=list)  # what went wrong
    # job, rank, from when on what it wrote may miss
    ends: list[tuple[str, str, float]] = field(default_factory=list)
    unheard: list[str] = field(default_factory=list)  # machines that went without a word
    tries: int = 0  # of commands that were refused
    behind: float = 0  # seconds for which results may have been missing from the bucket


@pytest.mark.timeout(0)
def test_storm(berg, monkeypatch):
    monkeypatch.setattr(jobs, "LOST_AFTER", 5)
    monkeypatch.setattr(ending, "SETTLED", -1)
    berg.allowed += [400, 500, 503]
    (berg.repo / "writer.py").write_text(WRITER)
    commit(berg.repo)
    end, seed, checked, missed = time.monotonic() + MINUTES * 60, SEED, 0, 0
    while seed == SEED or time.monotonic() < end - ROUND:
        files, named = run_round(berg, seed)
        checked, missed, seed = checked + files, missed + named, seed + 1
    text = f"{checked} files compared, {missed} of them named as not kept, none lost, nothing left"
    click.echo(f"storm: {seed - SEED} rounds from seed {SEED} on, {text}")


def run_round(berg: Berg, seed: int) -> tuple[int, int]:
    """One round from its submit to the count of what is left: files compared, and those that berg
    said it lost.
    """
    dice = random.Random(seed)
    kind = dice.choice([*KINDS])
    this = Round(berg, seed, kind, f"storm-{seed}-{os.urandom(2).hex()}", dice)
    before = everything(berg)
    command = f"python writer.py {seed} {dice.randint(5, 25)} {dice.uniform(0.05, 0.6):.2f}"
    more = dice.random()
    command += " many" * (more < 0.3)
    if kind != "devbox":  # there ssh would wait for what is left
        command += " left" * (0.2 < more < 0.5)
    secret = ["--secret", f"KEY={berg.home}/berg.json"] if dice.random() < 0.4 else []
    command += " && true {n}" if kind == "sweep" else ""
    command += " && [ $BERG_NODE_RANK != 1 ]" if kind == "cluster whose member fails" else ""
    click.echo(
        f"storm: seed {seed}: {this.name}, {kind}{' with a secret' if secret else ''}", nl=False
    )
    this.options = [
        "-g",
        "0",
        "-n",
        this.name,
        *KINDS[kind],
        *secret,
        "--max-hours",
        "0.2",
        command,
    ]
    if kind == "devbox":
        files, named = run_box(this, command, ["--max-hours", "0.2", *secret])
        count_what_is_left(this, before)
        return files, named
    submit(this, this.options, twice=dice.random() < 0.25)
    began = time.monotonic()
    for _ in range(dice.randint(1, 5)):
        time.sleep(dice.uniform(0, 6))
        measure(this)
        what = dice.choice([each for each in TROUBLE if "cluster" in kind or each != FOR_GOOD])
        click.echo(f", {what}", nl=False)
        try:
            TROUBLE[what](this)
            this.hits.append(what)
        except (
            AssertionError,
            IndexError,
            ProcessLookupError,
            ConnectionError,
        ):  # what was to be hit is gone already
            click.echo(" (missed)", nl=False)
    there = ended_entries(this, began)
    berg.cloud.call("DELETE", "/_berg/faults")
    if may_go_on(this, there):
        click.echo(", it goes on at once", nl=False)
        submit(this, ["--resume", this.name, *secret])
        there = ended_entries(this, time.monotonic())
    berg.cloud.call("POST", "/_berg/settings", {"metadata_delay": 0, "latency": 0})
    ended = sorted({f"{each.state.state} {each.state.reason[:80]}".strip() for each in there})
    took = f"{time.monotonic() - began:.0f} s, up to {this.behind:.0f} s behind"
    click.echo(f": {', '.join(ended)} ({took})")
    compared = [compare(this, each) for each in there]
    count_what_is_left(this, before)
    remove_while_fetched(this, len(there))
    return sum(files for files, _ in compared), sum(named for _, named in compared)


def run_box(this: Round, command: str, options: list[str]) -> tuple[int, int]:
    """Let a devbox write, stop and start some times, and once it is killed compare what it wrote.

    What it is told over ssh ends with its machine; its disk has what was finished.
    """
    berg, dice, name, began = this.berg, this.dice, this.name, time.monotonic()
    insist(this, "devbox", "-g", "0", "-n", name, *options)
    said, last = "", dice.randint(1, 3)
    for number in range(last + 1):
        session = berg.start("ssh", name, "--", command)
        time.sleep(dice.uniform(1, 8))
        what = dice.choice(BOX_TROUBLE)
        click.echo(f", {what}", nl=False)
        TROUBLE[what](this)
        this.hits.append(what)
        if number == last:
            said += session.communicate(timeout=PATIENCE)[0]
            break
        turn_off(this)
        session.terminate()
        said += session.communicate(timeout=PATIENCE)[0]
        turn_on(this)
        wait_for(lambda: berg.state(name)["state"] == "RUNNING", PATIENCE)
    berg.cloud.call("DELETE", "/_berg/faults")
    berg.cloud.call("POST", "/_berg/settings", {"metadata_delay": 0, "latency": 0})
    insist(this, "kill", "-y", name)
    (there,) = entries(this)
    click.echo(f": {there.status} ({time.monotonic() - began:.0f} s)")
    return compare(this, there, said)


def insist(this: Round, *words: str) -> None:
    """Run a command that trouble may refuse, until it is done; it never breaks off unexplained."""
    while (ran := this.berg(*words)).returncode:
        assert "Traceback" not in ran.stderr, f"seed {this.seed}: {words}: {ran.stderr}"
        click.echo(f" (refused: {ran.stderr.splitlines()[-1][:100]})", nl=False)
        this.berg.cloud.call("DELETE", "/_berg/faults")
        this.tries += 1
        assert this.tries < 10, f"seed {this.seed}: {words}: {ran.stderr}"


def turn_off(this: Round) -> None:
    """Stop the box, in one of the ways that there are."""
    berg, name = this.berg, this.name
    how = this.dice.choice(["stop", "stop", "stop --now", "the console"])
    click.echo(f", {how}", nl=False)
    if how == "the console":
        path = berg.machines()[name]["selfLink"].partition("/compute/")[2]
        berg.cloud.call("POST", f"/compute/{path}/stop")
        wait_for(lambda: berg.machines()[name]["status"] == "TERMINATED", 120)
    else:
        insist(this, *how.split(), name)
    assert berg.machines()[name]["status"] == "TERMINATED"


def turn_on(this: Round) -> None:
    """Start the box, at times in another zone, by a laptop that is killed meanwhile."""
    berg, name, zone = this.berg, this.name, ""
    if this.dice.random() < 0.4:
        zone = berg.machines()[name]["zone"].rpartition("/")[2]
        berg.cloud.call("POST", "/_berg/stockout", {"zone": zone})
        if this.dice.random() < 0.6:
            click.echo(", a move is killed", nl=False)
            laptop = berg.start("start", "--move", name)
            time.sleep(this.dice.uniform(0.5, 5))
            laptop.kill()
            laptop.communicate()
    click.echo(f", start{' --move' if zone else ''}", nl=False)
    insist(this, "start", "--move", name)
    berg.cloud.call("POST", "/_berg/stockout", {"on": False})
    moved = berg.machines()[name]["zone"].rpartition("/")[2]
    assert bool(zone) == (moved != zone) or not zone, f"seed {this.seed}: {name} stays in {zone}"


def remove_while_fetched(this: Round, num_jobs: int) -> None:
    """Delete what ran while somebody fetches it: he has all of it, or hears that he has not."""
    berg, folder = this.berg, this.berg.home / f"{this.name}-last"
    berg("wait", this.name)  # commands call a job lost later than this process does
    berg("fetch", this.name, str(folder))
    whole = {path for path in folder.rglob("*") if path.is_file()}
    again = berg.home / f"{this.name}-again"
    fetching = berg.start("fetch", this.name, str(again))
    removing = berg.start("rm", "-y", this.name)
    said, removed = fetching.communicate(timeout=120)[1], removing.communicate(timeout=120)[1]
    assert removing.returncode == 0, f"seed {this.seed}: {removed}"
    there = {folder / path.relative_to(again) for path in again.rglob("*") if path.is_file()}
    missing = {path for path in whole - there if path.name != "results.csv"}
    assert fetching.returncode or not missing, f"seed {this.seed}: {missing} are missing: {said}"
    assert "Traceback" not in said + removed, f"seed {this.seed}: {said}{removed}"
    left = [path for path in berg.objects(".berg/") if this.name in path]
    assert not [path for path in left if "/index" not in path], f"seed {this.seed}: {left}"


def measure(this: Round) -> None:
    """Note for how many seconds results may be missing from the bucket, by what its states say."""
    for each in entries(this):
        if each.state and each.state.state == "RUNNING":
            until = each.state.synced_until or each.state.history[-1][1]
            this.behind = max(this.behind, time.time() - job.time_of(until).timestamp())


def ended_entries(this: Round, began: float) -> list[jobs.Entry]:
    """Wait until the jobs of the round are over; return them."""
    while True:
        there = entries(this)
        measure(this)
        if all(each.state and each.state.final for each in there):
            return there
        assert time.monotonic() - began < PATIENCE, (
            f"seed {this.seed}: it does not end: {[each.state for each in there]}"
        )
        time.sleep(1)


def may_go_on(this: Round, there: list[jobs.Entry]) -> bool:
    """Return whether the job failed, had a last word, and the dice want it to go on."""
    (first, *others) = there
    is_alone = not others and "cluster" not in this.kind and "sweep" not in this.kind
    has_failed = first.state is not None and first.state.state in ("FAILED", "KILLED")
    return is_alone and has_failed and not this.unheard and this.dice.random() < 0.6


def submit(this: Round, options: list[str], twice: bool = False) -> None:
    """Start the job, or let two start it at once, of which one has it; machines of a cluster are
    less patient than they usually are.
    """
    berg = this.berg
    berg.cloud.call("POST", "/_berg/settings", {"delay": 2 if "cluster" in this.kind else 0})
    fields = {"silence_seconds": SILENCE} if "cluster" in this.kind else {}
    both = [berg.start("run", *options, **fields) for _ in range(1 + twice)]
    said = [each.communicate(timeout=120)[1] for each in both]
    codes = sorted(each.returncode for each in both)
    assert codes == [0, 1][: len(both)], f"seed {this.seed}: {codes}: {said}"
    berg.cloud.call("POST", "/_berg/settings", {"delay": 0, "grace": 30})


def entries(this: Round) -> list[jobs.Entry]:
    """The job of that name, or the jobs of the sweep."""
    found = jobs.overview(this.berg.bucket.config, None, this.name)
    assert found, f"{this.name} is not there"
    return [each for each in found if this.name in (each.name, each.sweep)]


def compare(this: Round, entry: jobs.Entry, said_elsewhere: str = "") -> tuple[int, int]:
    """Fetch a job's results and compare them with what its log says, and what it said elsewhere;
    how many files, and how many named as lost.
    """
    state, name, berg = entry.state, entry.name, this.berg
    assert state
    log = berg("log", name).stdout + said_elsewhere
    folder = berg.home / name
    fetched = berg("fetch", name, str(folder))
    lines = PARTS.findall(log)
    about = f"seed {this.seed}: {name} ({this.hits}): {state}\n{log}"
    said = "".join([state.reason, state.lost, *re.findall(r"^.*Not in the bucket: .*$", log, re.M)])

    def is_named(path: bytes) -> bool:
        return any(walk.shorten(os.fsdecode(path), length) in said for length in (80, 2000))

    def is_excused(path: bytes, rank: str, at: float) -> bool:
        return is_named(path) or any(
            (name, rank) == (whose, of) and at >= since for whose, of, since in this.ends
        )

    counts: dict[tuple[str, str], int] = {}
    for attempt, rank, number, *_ in lines:
        assert int(number) == counts.get((attempt, rank), 0), (
            f"the log has a gap before {attempt, rank, number}: {about}"
        )
        counts[attempt, rank] = int(number) + 1
    finished: dict[bytes, tuple[str, str, float]] = {}
    anew = set()
    for _, rank, _, how, quoted, checksum, at in lines:
        path = unquote_to_bytes(quoted)
        if how == "wrote" and path in finished and not is_excused(path, *finished[path][1:]):
            anew.add(path)
        finished[path] = checksum, rank, float(at)
    assert not anew, f"finished, and not there for the next attempt: {anew} of {about}"
    own = f"{state.job.results_dir}/".encode()
    wrong = [
        path
        for path, (checksum, *_) in finished.items()
        if hash_of(folder, path.removeprefix(own)) != checksum
    ]
    assert fetched.returncode == 0 or len(wrong) == len(finished), f"{fetched.stderr}: {about}"
    lost = [path for path in wrong if not is_excused(path, *finished[path][1:])]
    assert not lost, f"lost: {lost} of {about}"
    refused = [path for path in wrong if is_named(path)]
    ended, machines = (
        len(set(re.findall(r"all finished \d+ (\d+)", log))),
        3 if "cluster" in this.kind else 1,
    )
    assert state.state != "SUCCEEDED" or ended == machines, f"the log's end is missing: {about}"
    if set(this.hits) <= {*GENTLE, *OUTLIVED.get(this.kind, ())} and this.kind != "devbox":
        wanted = "FAILED" if this.kind == "cluster whose member fails" else "SUCCEEDED"
        assert state.state == wanted, f"it should have {wanted}: {about}"
    return len(finished), len(refused)


def hash_of(folder: Path, path: bytes) -> str:
    file = Path(os.fsdecode(os.fsencode(folder) + b"/" + path))
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "missing"


def everything(berg: Berg) -> dict[str, Any]:
    """All that costs money or gives rights in the project."""
    call, found = berg.cloud.call, {}
    for kind in (
        "instances",
        "disks",
        "instanceGroupManagers",
        "instanceTemplates",
        "resourcePolicies",
        *GLOBAL,
    ):
        scopes = call("GET", f"{COMPUTE}/{'global' if kind in GLOBAL else 'aggregated'}/{kind}")
        listed = scopes.get("items", {})
        items = (
            listed
            if kind in GLOBAL
            else [each for scope in listed.values() for each in scope.get(kind, [])]
        )
        found[kind] = sorted(each["selfLink"] for each in items)
    secrets = call("GET", "/secretmanager/v1/projects/berg-local/secrets").get("secrets", [])
    found["secrets"] = sorted(each["name"] for each in secrets)
    found["policy of the bucket"] = berg.bucket.ask("GET", "/iam")["bindings"]
    policy = call("POST", "/cloudresourcemanager/v1/projects/berg-local:getIamPolicy", POLICY_3)
    found["policy of the project"] = policy.get("bindings", [])
    return found


def count_what_is_left(this: Round, before: dict[str, Any]) -> None:
    """What goes by itself is gone soon; after `reap` all is as it was."""
    config, berg = this.berg.bucket.config, this.berg

    def left() -> dict[str, Any]:
        now = everything(berg)
        return {
            kind: each
            for kind in now
            if (each := [one for one in now[kind] if one not in before[kind]])
        }

    def is_over() -> bool:
        # A template is for later jobs, too, until it is reaped.
        return all(kind == "instanceTemplates" for kind in left())

    patience = 5 if this.unheard else 150
    try:
        wait_for(is_over, patience, every=1)  # it asks much, and Google allows so much a minute
    except AssertionError:
        assert this.unheard, f"seed {this.seed}: {this.hits}: it does not go by itself: {left()}"
    wait_for(
        lambda: all(each["status"] == "TERMINATED" for each in berg.machines().values()),
        150,
        "machines' end",
        every=1,
    )
    ending.delete_leftovers(config, ending.leftovers(config, None))
    assert not left(), f"seed {this.seed}: {this.hits}: {left()}"
    assert not ending.leftovers(config, None), f"seed {this.seed}: {ending.leftovers(config, None)}"
    now = everything(berg)
    assert now == before, f"seed {this.seed}: {now} instead of {before}"


def machine_of(this: Round) -> str:
    return this.dice.choice(
        sorted(each for each in this.berg.machines() if each.startswith(this.name))
    )


def let_them_meet(this: Round) -> None:
    """Wait until machines of a cluster run: for one that went before the others saw it they wait
    for ten minutes.
    """
    if "cluster" in this.kind:
        wait_for(
            lambda: all(each.state and each.state.state == "RUNNING" for each in entries(this)), 20
        )


def power(what: str, **body) -> Callable[[Round], None]:
    def do(this: Round) -> None:
        let_them_meet(this)
        this.berg.cloud.call("POST", f"/_berg/instances/{machine_of(this)}/{what}", body)

    return do


def from_outside(verb: str, action: str) -> Callable[[Round], None]:
    def do(this: Round) -> None:
        let_them_meet(this)
        name = machine_of(this)
        if all(not each.state or each.state.state == "SUBMITTED" for each in entries(this)):
            this.unheard.append(name)  # no worker hears it yet, which could delete what there is
        path = this.berg.machines()[name]["selfLink"].partition("/compute/")[2]
        this.berg.cloud.call(verb, f"/compute/{path}{action}")

    return do


def without_a_word(what: str) -> Callable[[Round], None]:
    """Let a machine crash, or never be heard of again; what it has not sent may go with it."""

    def do(this: Round) -> None:
        let_them_meet(this)
        machine, now = machine_of(this), time.time()
        this.berg.cloud.call("POST", f"/_berg/instances/{machine}/{what}", {})
        this.unheard.append(machine)
        for entry in entries(this):
            if "cluster" in this.kind and machine != f"{entry.name}-0":
                this.ends.append((entry.name, machine[-1], now - 60))
            elif entry.state and (entry.state.machine == machine or this.kind.startswith("spot")):
                until = entry.state.synced_until
                this.ends.append(
                    (entry.name, "0", datetime.fromisoformat(until).timestamp() if until else 0.0)
                )

    return do


def cut_off(this: Round) -> None:
    path = f"/_berg/instances/{machine_of(this)}/cut"
    this.berg.cloud.call("POST", path, {})
    time.sleep(this.dice.uniform(2, 10))
    this.berg.cloud.call("POST", path, {"cut": False})


def kill_process(which: Callable[[list[str], str], bool]) -> Callable[[Round], None]:
    def do(this: Round) -> None:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if which(words, this.name):
                found.append(int(path.parent.name))
        os.kill(this.dice.choice(sorted(found)), signal.SIGKILL)

    return do


def is_worker(words: list[str], name: str) -> bool:
    return words[-3:-1] in (["run", name], ["sweep", name]) and "berg.worker" in " ".join(words)


def is_command(words: list[str], name: str) -> bool:
    return words[:3] == ["python", "writer.py", name.split("-")[1]]


def kill_server(this: Round) -> None:
    folder = this.berg.cloud.folder
    server = json.loads((folder / "server.json").read_text())
    os.kill(server["pid"], signal.SIGKILL)
    time.sleep(this.dice.uniform(0.5, 3))
    control.start(folder, server["port"])


def submit_twice(this: Round) -> None:
    """Submit the name again, which must be refused and touch nothing."""
    again = this.berg("run", *this.options)
    if again.returncode == 0 or "Traceback" in again.stderr:
        raise RuntimeError(f"seed {this.seed}: a second submit of {this.name}: {again.stderr}")


def fetch_twice(this: Round) -> None:
    """Two fetches into one folder while the job writes."""
    both = [this.berg.start("fetch", this.name, str(this.berg.home / "both")) for _ in range(2)]
    said = [each.communicate(timeout=120)[1] for each in both]
    if any("Traceback" in text for text in said):
        raise RuntimeError(f"seed {this.seed}: two fetches of {this.name}: {said}")


def push_what_changes(this: Round) -> None:
    """Push a folder whose files are written anew meanwhile: each object is one writing of its file.

    A push may give up what never rests, by name and with exit code 1.
    """
    name, folder = f"{this.name}-data", this.berg.home / f"{this.name}-data"
    folder.mkdir(exist_ok=True)
    file, size = folder / "moving", 3_000_000
    file.write_bytes(b"a" * size)
    pushed = this.berg.start("data", "push", str(folder), name)
    for letter in b"bcdefgh":
        time.sleep(this.dice.uniform(0, 0.4))
        file.write_bytes(bytes([letter]) * size)
    said = pushed.communicate(timeout=120)[1]
    if "Traceback" in said or (pushed.returncode and "moving" not in said):
        raise RuntimeError(f"seed {this.seed}: a push of what changes: {said}")
    found = this.berg.objects(f"data/{name}/")
    for path, content in found.items():
        if len(set(content)) != 1 or len(content) != size:
            raise RuntimeError(f"seed {this.seed}: {path} is a mixture of {set(content)}: {said}")


def kill_job(this: Round) -> None:
    name = this.dice.choice(sorted(each.name for each in entries(this)))
    ran = this.berg("kill", "-y", name)
    assert "Traceback" not in ran.stderr, ran.stderr


def requests(method: str, **what) -> Callable[[Round], None]:
    def do(this: Round) -> None:
        chance = {"probability": this.dice.uniform(0.02, 0.2), "seed": this.dice.randint(0, 9999)}
        this.berg.cloud.fault(method, times=this.dice.randint(5, 60), **chance, **what)

    return do


def control_plane(path: str, body: dict[str, Any]) -> Callable[[Round], None]:
    return lambda this: this.berg.cloud.call("POST", f"/_berg/{path}", body)


PREEMPTED, FOR_GOOD = "a machine is preempted", "a machine is cut off for good"
COMMAND_DIES = "a command dies"
TROUBLE: dict[str, Callable[[Round], None]] = {
    "somebody submits the name, too": submit_twice,
    "two fetches at once": fetch_twice,
    "data is pushed while it changes": push_what_changes,
    "storage refuses": requests("storage.objects.*", status=503),
    "storage is busy": requests("storage.objects.*", status=429),
    "connections break": requests("storage.objects.*", reset=True),
    "answers are lost": requests("storage.objects.*", reset=True, after_handler=True),
    "storage stalls": requests("storage.objects.*", delay=5),
    "Compute Engine refuses": requests("compute.*", status=503),
    "Compute Engine's answers are lost": requests("compute.*", reset=True, after_handler=True),
    "Secret Manager refuses": requests("secretmanager.*", status=503),
    "tokens expire": control_plane("tokens/expire", {}),
    "the cloud is far away": control_plane("settings", {"latency": 0.1}),
    "metadata is slow": control_plane("settings", {"metadata_delay": 0.5}),
    "the cloud dies": kill_server,
    "a machine is cut off": cut_off,
    PREEMPTED: power("preempt", grace=30),
    "a worker dies": kill_process(is_worker),
    COMMAND_DIES: kill_process(is_command),
    "somebody kills it": kill_job,
    "a machine is stopped": from_outside("POST", "/stop"),
    "a machine is deleted": from_outside("DELETE", ""),
    "a machine crashes": without_a_word("crash"),
    FOR_GOOD: without_a_word("cut"),
}
GENTLE = {*list(TROUBLE)[: list(TROUBLE).index(PREEMPTED)]}  # what ends no job
OUTLIVED = {  # what else does not end jobs of a kind
    "spot": [PREEMPTED],
    "spot, too": [PREEMPTED],
    "cluster on Spot": [PREEMPTED],
    "cluster on Spot, too": [PREEMPTED, COMMAND_DIES],
    "job that runs again": [COMMAND_DIES],
    "cluster that runs again": [COMMAND_DIES],
}
BOX_TROUBLE = [  # what a box is to survive with all that it wrote
    "two fetches at once",
    "storage refuses",
    "connections break",
    "answers are lost",
    "Compute Engine refuses",
    "tokens expire",
    "the cloud is far away",
    "metadata is slow",
    "the cloud dies",
]

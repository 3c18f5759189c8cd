"""Lives of results: a random program writes beside a mirror, both end in some way, and what the next
machine restores is judged by the program's own history.

    python tests/lives.py COUNT [SEED]      prints a line for each, and how old what came back was

The program and the judge are those of the acceptance suite. A life takes some ten seconds. Then as many
lives of ranks.py follow, with several machines.
"""

import contextlib
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ranks
from conftest import Cloud, embedded

from berg.bucket import Changed
from berg.command import open_for_writing, stop
from berg.results import Mirror

sys.path.append(str(Path(__file__).parents[1]))

from accept import judge, writer

CUTS = ["power", "power", "notice", "notice", "worker"]


@dataclass
class Life:
    """What became of one program on its machines."""

    wrong: str
    age: float  # seconds that what came back is older than the end
    ages: list[float]  # the same of restores in the middle of it: as if the power was cut then
    text: str


def mirrored(cloud: Cloud, folder: Path, job: str, **given: Any) -> Mirror:
    about = {"own": job, "job": job, "disk": "0", "notes": f"{folder}.notes", **given}
    return Mirror(str(folder), cloud.bucket, "berg_results/", **about)


def serve(home: str, where: str, job: str, *start: str) -> None:
    """Start a program and mirror its folder until SIGTERM: then end the program and save the last
    results, as a worker does. A file `program` beside the folder has its pid.
    """
    cloud, folder = Cloud(Path(home)), Path(where)
    is_over: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: is_over.append(1))
    pid = 0

    @contextlib.contextmanager
    def stopped() -> Any:
        stop([pid])
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    mirror = mirrored(cloud, folder, job, stopped=stopped)
    mirror.restore()
    (folder / job).mkdir(parents=True, exist_ok=True)
    own = {"BERG_RESULTS_DIR": str(folder / job), "BERG_NODE_RANK": "0"}
    env = {**os.environ, **own, "BERG_JOB": job, "BERG_ATTEMPT": "1"}
    pid = subprocess.Popen(start, env=env).pid
    (folder.parent / "pid").write_text(str(pid))
    (folder.parent / "pid").replace(folder.parent / "program")
    while not is_over:
        mirror.sync()
        end = time.monotonic() + (1 if mirror.waiting_since else 3)
        while time.monotonic() < end and not is_over:
            time.sleep(0.05)
    stop([pid])
    mirror.cut |= dict.fromkeys(open_for_writing([pid]), time.time())
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.1)
    print("left", mirror.finish(60), flush=True)


def live(cloud: Cloud, seed: int) -> Life:
    """Let a program write for some seconds, end it, restore, and judge."""
    dice = random.Random(seed)
    cut = dice.choice(CUTS)
    job = f"life-{seed}-{os.getpid() % 1000}"
    rate, pace = dice.choice([1, 5, 20, 50]), dice.choice([0, 2, 4])
    heard = judge.Collector({"seconds": 1000, "code": 0, "pace": pace})
    history = heard.histories[job, 1]
    with tempfile.TemporaryDirectory(prefix="life-") as scratch:
        start = [sys.executable, writer.__file__, str(heard.port), str(seed), str(rate)]
        words = [str(cloud.home), f"{scratch}/0", job, *start]
        # In a process of its own: obstore's threads do not survive a fork.
        mirror = subprocess.Popen([sys.executable, __file__, "serve", *words])
        pid = Path(scratch, "program")
        while not (pid.exists() and history.found):
            time.sleep(0.05)
        program = int(pid.read_text())
        ages, torn = peek(cloud, Path(scratch), job, heard, dice.uniform(6, 16))
        at = time.time()
        if cut == "notice":
            mirror.terminate()
        else:
            mirror.kill()
            stop([program])
            cut_off = dict.fromkeys(open_for_writing([program]), time.time())
            os.kill(program, signal.SIGKILL)
        mirror.wait()
        if cut == "worker":  # another one saves what the disk has
            again = mirrored(cloud, Path(scratch, "0"), job)
            again.take_over()
            again.cut = cut_off
            print("again left", again.finish(60), again.trouble, flush=True)
        settled = -1
        while settled != (settled := len(history.changes)):
            time.sleep(0.3)
        folder = Path(scratch, "next")
        mirrored(cloud, folder, job, attempt=2).restore()
        found = writer.listing(str(folder / job))
        heard.close()
        said = judge.judge(history, found, {})
        end = at if cut == "power" else history.last
        age = 0.0 if said.is_last or said.wrong else max(0.0, end - said.at)
        wrong = torn or said.wrong
        if cut != "power" and not said.is_last and not wrong:
            wrong = f"rolled back {age:.1f} s: {said.late}"
        about = f"seed {seed} {cut}, {rate} a second, pace {pace}"
        return Life(
            wrong,
            age,
            ages,
            f"{about}, {len(history.changes)} changes: {age:.1f} s old {wrong}",
        )


def peek(
    cloud: Cloud, scratch: Path, job: str, heard: judge.Collector, seconds: float
) -> tuple[list[float], str]:
    """Restore again and again while the program lives; how old each was, and what was wrong."""
    ages: list[float] = []
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        time.sleep(0.5)
        folder, at = scratch / f"peek-{number}", time.time()
        number += 1
        try:
            mirrored(cloud, folder, job, attempt=2).restore()
        except Changed:  # a copy was deleted meanwhile, of a moment that is past
            continue
        found = writer.listing(str(folder / job)) if (folder / job).exists() else {}
        with heard.lock:
            now = heard.histories[job, 1]
            history = judge.History(now.found, [*now.changes], {**now.texts})
        said = judge.judge(history, found, {})
        if said.wrong:
            return ages, f"in the middle: {said.wrong}"
        ages.append(0.0 if said.is_last else max(0.0, at - said.at))
        shutil.rmtree(folder)
    return ages, ""


def main() -> None:
    if sys.argv[1] == "serve":
        return serve(*sys.argv[2:])
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with embedded() as cloud:
        lives = []
        for seed in range(first, first + count):
            lives.append(life := live(cloud, seed))
            print(("WRONG " if life.wrong else "ok    ") + life.text, flush=True)
        ages = [age for life in lives for age in [life.age, *life.ages]]
        wrong = sum(bool(life.wrong) for life in lives)
        print(f"{count} lives, {len(ages)} restores, {wrong} wrong")
        print(f"median {statistics.median(ages):.1f} s, worst {max(ages):.1f} s old")
        for seed in range(first, first + count):
            with tempfile.TemporaryDirectory() as base:
                said = ranks.life(cloud, seed, Path(base))
            wrong += bool(said)
            print(f"seed {seed} on several machines: {said or 'right'}", flush=True)
        sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

"""Checkpoints of the packages that people use, cut off in the middle of a save: each resumes from
one that is whole, and no older than what the bucket had.

A program of accept/savers saves on and on. Its machine is killed while it saves, without notice or
with some seconds; then the next one restores what the bucket has, and the program looks at it.
"""

import importlib.util
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import commit, wait_for
from machine.test_cluster import BORROW_TORCH
from whole_disk import Disk

from berg.machine import keeper, process

MB = 1 << 20
KEEPER = keeper.__file__
SAVERS = Path(__file__).parent.parent / "accept/savers"

# No saver needs another computer, or an accelerator.
ALONE = {"GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


@dataclass
class Saver:
    package: str
    machines: int = 1
    is_durable: bool = True  # what it says it has saved is on the disk
    is_database: bool = False  # which is always open: the bucket has a copy of some moment
    options: tuple[str, ...] = ()


ALL = {
    "torch_one_file": Saver("torch"),
    "latest": Saver("torch", machines=2),
    "torch_dcp": Saver("torch", machines=2),
    "hf_trainer": Saver("transformers"),
    "orbax_manager": Saver("orbax.checkpoint"),
    "lightning_last": Saver("lightning"),
    "sqlite_transactions": Saver("sqlite3", is_database=True),
    "sqlite_transactions wal": Saver("sqlite3", is_database=True, options=("wal",)),
    "optuna_study": Saver("optuna", is_database=True),
    "wandb_offline": Saver("wandb", is_durable=False),
}


class Attempt:
    """A saver on its machines, from a restore to their end."""

    def __init__(self, bucket, top: Path, job: str, number: int, name: str) -> None:
        self.saver, self.top = ALL[name], top / str(number)
        names = [f"{number:04x}{rank:012x}" for rank in range(self.saver.machines)]
        self.disks = [
            Disk(self.top / each, bucket, job, each, rank, self.saver.machines)
            for rank, each in enumerate(names)
        ]
        for disk in self.disks:
            disk.restore()
        self.programs = []
        for rank, disk in enumerate(self.disks):
            disk.restored()
            folder = disk.folder / job
            folder.mkdir(exist_ok=True)
            script = SAVERS / f"{name.partition(' ')[0]}.py"
            given = [folder, str(rank), str(len(self.disks)), *self.saver.options]
            places = [*(disk.top / each for each in ("left", "ending", "cut")), f"{disk.folder}/"]
            with (disk.top / "said").open("w") as said:
                self.programs.append(
                    subprocess.Popen(
                        [sys.executable, KEEPER, "keep", *places, sys.executable, script, *given],
                        env={**os.environ, **ALONE, "SAVERS_STORE": str(self.top / "store")},
                        stdout=said,
                        stderr=subprocess.STDOUT,
                        cwd=self.top,
                        start_new_session=True,
                    )
                )

    def said(self, rank: int = 0) -> str:
        return (self.disks[rank].top / "said").read_text()

    def steps(self, what: str, until: float = float("inf")) -> list[int]:
        """Return the steps that were begun, or saved, until a moment."""
        lines = [line.split() for line in self.said().splitlines(keepends=True) if "\n" in line]
        lines = [line for line in lines if len(line) == 3 and line[0] == what]
        return [int(step) for _, step, at in lines if float(at) < until]

    def wait_for(self, what: str, count: int) -> list[int]:
        end = time.monotonic() + 120
        while len(steps := self.steps(what)) < count:
            running = all(each.poll() is None for each in self.programs)
            everything = "\n".join(self.said(rank) for rank in range(len(self.disks)))
            assert running and time.monotonic() < end, everything
            time.sleep(0.01)
        return steps

    def end_programs(self) -> None:
        for program in self.programs:
            if program.poll() is None:
                keeper.kill_below(program.pid)
                program.wait()

    def end_with_notice(self) -> None:
        """End the programs as a worker does."""
        for disk, program in zip(self.disks, self.programs, strict=True):
            cut = keeper.Cut(disk.top / "cut", (f"{disk.folder}/",))
            threading.Thread(target=program.wait).start()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(process, "new_cut", lambda cut=cut: cut)
                process.end_group(program.pid, 5)

    def cut(self, notice: float) -> None:
        if notice:
            self.end_with_notice()
            for disk in self.disks:
                disk.finish(notice)
            end = time.monotonic() + notice
            for disk in self.disks:
                disk.finished(end)
        for disk in self.disks:
            disk.kill()
        if not notice:
            self.end_programs()

    @property
    def sure(self) -> int:
        """Return the step that the bucket had, as the mirrors reported."""
        until = max(disk.synced for disk in self.disks)
        if self.saver.is_database:
            until = float("inf") if self.disks[0].left == {} else 0
        saved = self.steps("saved", until) if self.saver.is_durable else []
        return max([*self.steps("resumed"), *saved])


@pytest.mark.slow
@pytest.mark.parametrize("bandwidth", [3 * MB, 20 * MB])
@pytest.mark.parametrize("name", ALL)
def test_a_saver_resumes_from_what_was_whole(cloud, bucket, tmp_path, name, bandwidth, request):
    package = ALL[name].package
    if importlib.util.find_spec(package.partition(".")[0]) is None:
        pytest.skip(f"{package} is not installed")
    dice, job = random.Random(name), f"j{uuid.uuid4().hex[:10]}"
    cloud.call("POST", "/_berg/settings", {"bandwidth": bandwidth})
    sure, last, cuts = 0, 0, request.config.getoption("--rounds") or 4
    for number in itertools.count(1):
        attempt = Attempt(bucket, tmp_path, job, number, name)
        try:
            (resumed,) = attempt.wait_for("resumed", 1)
            assert sure <= resumed <= last, f"{name} resumed from {resumed}, not {sure} to {last}"
            sys.stdout.write(f"resumed from {resumed} of {last}, sure of {sure}\n")
            if number > cuts:
                break
            for disk in attempt.disks:
                disk.make_passes()
            saves = 2 + dice.randrange(8 if bandwidth > 3 * MB else 20)
            attempt.wait_for("saving", saves)
            time.sleep(dice.uniform(0, 0.05))
            attempt.cut(dice.choice([0, 0, 3, 30]))
            sure, last = attempt.sure, max(attempt.steps("saving"))
        finally:
            attempt.end_programs()
            for disk in attempt.disks:
                disk.kill()
        shutil.rmtree(attempt.top)
    assert resumed > 0, f"{name} never got further than its first attempt"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch_one_file", "sqlite_transactions", "optuna_study"])
def test_a_preempted_job_resumes_from_what_was_whole(berg, cloud, name):
    """The same from the command line, on Spot machines that Google takes while they save."""
    package = pytest.importorskip(ALL[name].package)
    site = Path(package.__file__).parent.parent
    (berg.repo / "borrow.sh").write_text(BORROW_TORCH.format(borrowed=site))
    for script in ("common.py", f"{name}.py"):
        shutil.copy(SAVERS / script, berg.repo)
    commit(berg.repo)
    cloud.call("POST", "/_berg/settings", {"bandwidth": 4 * MB})
    command = f"SAVERS_STEPS=100000 python {name}.py $BERG_RESULTS_DIR 0 1"
    options = ["-g", "0", "--spot", "-n", "saver", "--install-script", "borrow.sh"]
    done = berg("run", *options, command)
    assert done.returncode == 0, done.stderr

    def steps(what: str) -> list[int]:
        return [
            int(step) for step in re.findall(rf"^{what} (\d+) [\d.]+$", berg.log("saver"), re.M)
        ]

    for attempt in range(1, 4):
        wait_for(lambda n=attempt: len(steps("resumed")) == n, 120, f"attempt {attempt}")
        begun = max(steps("saving"), default=0)
        wait_for(lambda n=begun: max(steps("saving"), default=0) > n + 2, 60, "a save")
        notice = 0 if attempt == 2 else 20
        cloud.call("POST", "/_berg/instances/saver/preempt", {"grace": notice})
    wait_for(lambda: len(steps("resumed")) == 4, 120, "the last attempt")
    assert berg("kill", "saver").returncode == 0
    resumed = steps("resumed")
    assert resumed[1] > 2 and resumed == sorted(resumed), berg.log("saver")

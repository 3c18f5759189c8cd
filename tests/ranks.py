"""Random machines of one job write files with the same paths; lives.py runs many of them.

They change, delete and append, lose their power or their workers, and end, each at any time. After each
attempt `berg fetch` must bring what each machine wrote, under the path or under the machine's own name
for it, and a restore must give each machine its own files again.
"""

import os
import random
from pathlib import Path

from conftest import Cloud

from berg import results
from berg.fetch import Fetch
from berg.moments import rank_name
from berg.results import Mirror

NAMES = ["a.bin", "b.log", "c.bin", "d.log"]
ALIKE = "alike\n"  # what several machines may write
Files = dict[str, str]


class Machine:
    """One of them: its folder, and which files it has written itself."""

    def __init__(self, cloud: Cloud, base: Path, job: str, rank: int, machines: int, attempt: int):
        self.made = cloud, base, job, rank, machines, attempt
        self.rank, self.attempt, self.folder = rank, attempt, base / f"{attempt}-{rank}" / job
        self.mirror = self.new_mirror()
        self.mirror.restore()
        self.restored = self.files()
        own = {path.rpartition("/")[2] for path in self.mirror.rank_names}
        self.own = own & self.restored.keys()
        self.always_own = {*self.own}
        self.deleted: set[str] = (
            set()
        )  # of what was restored: that may come back from others or not
        self.end: Files | None = None
        self.at: dict[int, Files] = {}  # by tick: its own files

    def new_mirror(self) -> Mirror:
        cloud, base, job, rank, machines, attempt = self.made
        where = str(self.folder.parent), cloud.bucket, "berg_results/", job, job, str(rank)
        notes = str(base / f"notes-{attempt}-{rank}")
        more = {"attempt": attempt, "machines": machines, "notes": notes}
        return Mirror(*where, **more)  # type: ignore[arg-type]

    def files(self) -> Files:
        return {name: self.path(name).read_text() for name in NAMES if self.path(name).exists()}

    def path(self, name: str) -> Path:
        return self.folder / name

    def own_files(self) -> Files:
        return {name: text for name, text in self.files().items() if name in self.own}

    def write(self, chance: random.Random) -> None:
        name, what = chance.choice(NAMES), chance.random()
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if what < 0.15 and path.exists():
            path.unlink()
            self.own.discard(name)
            self.deleted |= {name} & self.restored.keys()
            return
        text = chance.choice([ALIKE, ALIKE, f"{self.attempt} {self.rank} {chance.random()}\n"])
        if name.endswith(".log") and path.exists() and what < 0.7:
            text = path.read_text() + text
            with path.open("a") as file:
                file.write(text[path.stat().st_size :])
        else:
            path.with_name(".new").write_text(text)
            os.replace(path.with_name(".new"), path)
        is_as_restored = text == self.restored.get(name) and name not in self.always_own
        (self.own.discard if is_as_restored else self.own.add)(name)

    def tick(self, number: int, chance: random.Random) -> None:
        if self.end is not None:
            return
        self.at[number], what = self.own_files(), chance.random()
        if what < 0.1:  # its power is lost before the moment is written, if the job ends here
            self.mirror.publish = lambda *about: None  # type: ignore[method-assign]
            self.mirror.sync(number)
            del self.mirror.publish
        elif what < 0.25 and number > 1:
            self.finish(number)
        else:
            self.mirror.sync(number)
            if what > 0.85:  # its worker dies
                self.mirror = self.new_mirror()
                self.mirror.take_over()

    def finish(self, number: int) -> None:
        if self.end is None:
            self.end = self.own_files()
            missing = self.mirror.finish(60, number)
            assert not missing, missing


def is_same(name: str, text: str, found: str | None) -> bool:
    return found is not None and (
        found == text or (name.endswith(".log") and found.startswith(text))
    )


def life(cloud: Cloud, seed: int, base: Path) -> str:
    """Three attempts of a job; what is wrong, or ""."""
    chance, job = random.Random(seed), f"ranks-{seed}"
    count = chance.choice([2, 3])
    expected: list[Files] = [{} for _ in range(count)]
    for attempt in range(1, 4):
        machines = [Machine(cloud, base, job, rank, count, attempt) for rank in range(count)]
        for each, before in zip(machines, expected, strict=True):
            for name, text in before.items():
                if not is_same(name, text, each.restored.get(name)):
                    found = each.restored.get(name)
                    return f"rank {each.rank} has {name} with {found!r} again, which was {text!r}"
        ticks = chance.randint(2, 7)
        for tick in range(1, ticks + 1):
            for each in machines:
                for _ in range(0 if each.end is not None else chance.randint(0, 2)):
                    each.write(chance)
            for each in chance.sample(machines, count):
                each.tick(tick, chance)
        if chance.random() < 0.4:
            for each in machines:
                each.finish(ticks + 1)
        listed = cloud.bucket.list(f".berg/moments/{job}/at/{attempt:04}/")
        number, chosen = results.common([each.name for each in listed], count)
        if not number:  # what was before the attempt counts
            continue
        gone = {name for each in machines for name in each.deleted}
        for each in machines:
            is_final = chosen[str(each.rank)].endswith(results.FINAL)
            own = each.end if is_final else each.at[number]
            assert own is not None
            expected[each.rank] = {name: text for name, text in own.items() if name not in gone}
        to = base / f"fetched{attempt}"
        done = Fetch(cloud.bucket, "berg_results/", job, to, job, count).run()
        found = {path.name: path.read_text() for path in to.glob("[abcd]*")}
        for rank, files in enumerate(expected):
            for name, text in files.items():
                names = [name] if rank == 0 else [name, rank_name(name, rank)]
                if done.left or not any(is_same(name, text, found.get(each)) for each in names):
                    return (
                        f"{name} of rank {rank}, {text!r}, is not in {found}, without {done.left}"
                    )
    return ""

"""A program that writes results at random, and tells its history to a collector outside of its machine.

    python writer.py PORT SEED RATE          on a machine of a job; standard library alone

Every change is told before it begins and after it ended, with what the paths then are. What was
told arrives even if the machine loses its power at the next instruction. When it starts, it tells
what it finds, which is what the machine before it left.
"""

import hashlib
import json
import mmap
import os
import random
import socket
import sqlite3
import sys
import threading
import time

LOGS = ("train.log", "out", "metrics.jsonl", "events.out.tfevents.1")
PARTS = ("-wal", "-shm", "-journal")


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def whole(data):
    """What is told of a file with these bytes."""
    return ["f", digest(data), len(data)]


def make_folder(path):
    """The folder that this path is in."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


def database(path):
    """What a database has: the number of its last transaction, or what is wrong with it."""
    if not os.path.getsize(path):
        return 0
    try:
        connection = sqlite3.connect(path, timeout=20)
        (ok,) = connection.execute("PRAGMA integrity_check").fetchone()
        if ok != "ok":
            return ok[:80]
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return 0
        last, count, low, high = connection.execute(
            "SELECT max(k), count(*), min(v), max(v) FROM t"
        ).fetchone()
        connection.close()
        is_whole = (last or 0) == count == (low or 0) == (high or 0)
        return count if is_whole else f"half a transaction: {last} {count} {low} {high}"
    except sqlite3.DatabaseError as error:
        return f"{type(error).__name__}: {error}"


def listing(folder):
    """Path -> ["f", digest, size], ["l", target] or ["db", transaction] of all that a folder has."""
    found = {}
    for top, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            full = os.path.join(top, name)
            path = os.path.relpath(full, folder)
            if os.path.islink(full):
                found[path] = ["l", os.readlink(full)]
            elif name.endswith(".db"):
                found[path] = ["db", database(full)]
            elif os.path.isfile(full) and not name.endswith(PARTS):
                found[path] = whole(read(full))
    own = ("berg_job_metadata.json", ".berg-")  # of Berg's: the job's record, notes of a fetch
    return {path: what for path, what in found.items() if not path.startswith(own)}


class Writer:
    def __init__(self, port, seed, rate):
        self.rank, self.attempt = int(os.environ["BERG_NODE_RANK"]), int(os.environ["BERG_ATTEMPT"])
        self.mine = f"r{self.rank}/" if self.rank else ""  # each rank has a folder, but the first
        self.dice = random.Random(f"{seed} {self.attempt} {self.rank}")
        self.rate = rate
        self.line = socket.create_connection(("127.0.0.1", port))
        self.lock, self.saving = threading.Lock(), threading.Lock()
        self.number = self.made = 0
        self.files = set()  # whole files of the main thread
        self.logs = {}  # path -> [file, incarnation, length]
        self.connection = None
        # Each program is of a kind: some of its steps are much more frequent.
        steps = [
            self.swap,
            self.rewrite,
            self.create,
            self.append,
            self.delete,
            self.rename,
            self.rename_folder,
            self.link,
            self.hard_link,
            self.patch,
            self.checkpoint,
        ]
        self.steps = {step: self.dice.choice([0, 1, 1, 4]) for step in steps}
        self.steps[self.create] = self.steps[self.swap] = 2
        self.steps[self.write_log] = self.dice.choice([2, 6])
        self.steps[self.transact] = self.dice.choice([0, 2])
        self.steps[self.pipe] = 0.2
        self.journal = self.dice.choice(["WAL", "WAL", "DELETE", "TRUNCATE", "PERSIST", "MEMORY"])

    def tell(self, **what):
        with self.lock:
            self.line.sendall((json.dumps({"t": time.time(), **what}) + "\n").encode())

    def begin(self, sets, **more):
        with self.lock:
            self.number += 1
            number = self.number
        self.tell(begin=number, sets=sets, **more)
        return number

    def change(self, sets, act, **more):
        """Tell a change, do it, and tell that it is done."""
        number = self.begin(sets, **more)
        act()
        self.tell(done=number)

    # --- names and bytes

    def new(self):
        self.made += 1
        folder = self.dice.choice(["", "", "a/", "a/b/", f"step-{self.made}/", "c d/"])
        name = self.dice.choice(["w", "ü", "m%41", "x.pt", "-o", "#?"])
        return f"{self.mine}{folder}{name}{self.attempt}-{self.made}"

    def old(self):
        return self.dice.choice(sorted(self.files)) if self.files else None

    def content(self):
        self.made += 1
        size = self.dice.choice([0, 10, 1000, 30_000, 200_000])
        return f"{self.rank} {self.attempt} {self.made} ".encode() + self.dice.randbytes(size)

    def same(self, path):
        """All names of a file: hard links share its content."""
        inode = os.stat(path).st_ino
        return [other for other in self.files if os.stat(other).st_ino == inode]

    # --- steps

    def put(self, path, data, seconds=0.0):
        """Write a file in place, in four pieces: it is whole once this is done."""
        make_folder(path)
        names = self.same(path) if path in self.files else [path]

        def write():
            with open(path, "wb", buffering=0) as file:
                piece = len(data) // 4 + 1
                for start in range(0, max(1, len(data)), piece):
                    file.write(data[start : start + piece])
                    time.sleep(seconds / 4)

        self.change(dict.fromkeys(names, whole(data)), write, slow=True)
        self.files.add(path)

    def move(self, path, target):
        make_folder(target)
        sets = {path: None, target: whole(read(path))}
        self.change(sets, lambda: os.replace(path, target))
        self.files = self.files - {path} | {target}

    def create(self):
        self.put(self.new(), self.content(), self.dice.choice([0, 0, 0.1]))

    def swap(self):
        path = self.old() if self.files and self.dice.random() < 0.7 else self.new()
        self.put(f"{path}.tmp", self.content(), self.dice.choice([0, 0.02]))
        self.move(f"{path}.tmp", path)

    def rewrite(self):
        if path := self.old():
            self.put(path, self.content(), self.dice.choice([0.05, 0.3]))

    def append(self):
        if path := self.old():
            more = self.dice.randbytes(100)

            def write():
                with open(path, "ab", buffering=0) as file:
                    file.write(more)

            # Slow: it may be stopped while the file is open, which then counts as one that is being saved.
            sets = dict.fromkeys(self.same(path), whole(read(path) + more))
            self.change(sets, write, slow=True)

    def delete(self):
        if path := self.old():
            self.files.discard(path)
            self.change({path: None}, lambda: os.unlink(path))

    def rename(self):
        if path := self.old():
            self.move(path, f"{self.new()}.moved")

    def rename_folder(self):
        start = len(self.mine)
        tops = {path[start:].split("/")[0] for path in self.files if "/" in path[start:]}
        if not tops:
            return
        top, self.made = f"{self.mine}{self.dice.choice(sorted(tops))}", self.made + 1
        target = f"{self.mine}dir-{self.attempt}-{self.made}"
        moved = {p: target + p[len(top) :] for p in self.files if p.startswith(f"{top}/")}
        sets = {new: whole(read(path)) for path, new in moved.items()}
        self.change({**dict.fromkeys(moved), **sets}, lambda: os.rename(top, target))
        self.files = self.files - {*moved} | {*moved.values()}

    def link(self):
        """A link that is replaced, as `latest` is."""
        here = [path for path in self.files if os.path.dirname(path) == self.mine[:-1]]
        if not here:
            return
        target, link = os.path.basename(self.dice.choice(sorted(here))), f"{self.mine}latest"
        if os.path.lexists(f"{link}.new"):
            os.unlink(f"{link}.new")
        self.change({f"{link}.new": ["l", target]}, lambda: os.symlink(target, f"{link}.new"))
        sets = {f"{link}.new": None, link: ["l", target]}
        self.change(sets, lambda: os.replace(f"{link}.new", link))

    def hard_link(self):
        if path := self.old():
            other = f"{self.new()}.hard"
            make_folder(other)
            self.change({other: whole(read(path))}, lambda: os.link(path, other))
            self.files.add(other)

    def patch(self):
        """Some bytes in the middle, by a write or a memory map."""
        path = self.old()
        if not path or os.path.getsize(path) < 100:
            return
        data = bytearray(read(path))
        at = self.dice.randrange(len(data) - 20)
        data[at : at + 8] = self.dice.randbytes(8)

        def write():
            with open(path, "r+b", buffering=0) as file:
                if self.dice.random() < 0.5:
                    file.seek(at)
                    file.write(data[at : at + 8])
                else:
                    with mmap.mmap(file.fileno(), 0) as memory:
                        memory[at : at + 8] = bytes(data[at : at + 8])
                        memory.flush()

        self.change(dict.fromkeys(self.same(path), whole(data)), write, slow=True)

    def checkpoint(self):
        """A folder of shards, a small file that names it, and the older ones deleted."""
        self.made += 1
        last, name = f"{self.mine}last", f"{self.mine}ckpt-{self.attempt}-{self.made:06}"
        for shard in range(3):
            self.put(f"{name}/shard-{shard}.bin", self.content(), 0.05)
        self.put(f"{last}.tmp", name.encode())
        self.move(f"{last}.tmp", last)
        all_of = sorted({os.path.dirname(path) for path in self.files if "ckpt-" in path})
        for folder in all_of[:-2]:
            for path in sorted(path for path in self.files if path.startswith(f"{folder}/")):
                self.files.discard(path)
                self.change({path: None}, lambda path=path: os.unlink(path))

    def write_log(self):
        """A line of a log; at times the log is begun again, rotated, or rotated and held open."""
        path = self.mine + self.dice.choice(LOGS)
        how = self.dice.random()
        log = self.logs.get(path)
        if log and how < 0.03:
            self.begin_log(path, "wb")
        elif log and how < 0.06 and "events" not in path:
            file, incarnation, length = log
            sets = {path: None, f"{path}.1": ["log", incarnation, length]}
            self.change(sets, lambda: os.replace(path, f"{path}.1"))
            self.logs[f"{path}.1"] = log
            del self.logs[path]
            if how < 0.05:  # no one told the program: it goes on in the renamed file
                path = f"{path}.1"
            else:
                file.close()
                self.begin_log(path, "ab")
        elif not log:
            self.begin_log(path, "ab")
        self.made += 1
        text = f"{self.rank} {self.attempt} {self.made} {self.dice.randrange(10**9)} {'x' * self.dice.randrange(200)}\n"
        log = self.logs[path]
        log[2] += len(text)
        sets = {path: ["log", log[1], log[2]]}
        self.change(sets, lambda: log[0].write(text.encode()), text=[log[1], text])

    def begin_log(self, path, mode):
        make_folder(path)
        self.made += 1
        before = read(path) if mode == "ab" and os.path.exists(path) else b""
        log = [None, f"{self.rank} {self.attempt} {self.made}", len(before)]

        def act():
            log[0] = open(path, mode, buffering=0)

        text = [log[1], before.decode()]
        self.change({path: ["log", log[1], log[2]]}, act, text=text)
        self.logs[path] = log

    def transact(self):
        path = f"{self.mine}study.db"
        if self.connection is None:
            make_folder(path)
            number = self.begin({path: ["db", database(path) if os.path.exists(path) else 0]})
            self.connection = sqlite3.connect(path, isolation_level=None, timeout=20)
            self.connection.execute(f"PRAGMA journal_mode={self.journal}")
            self.connection.execute(
                "CREATE TABLE IF NOT EXISTS t (k INTEGER PRIMARY KEY, v INTEGER, x BLOB)"
            )
            self.tell(done=number)
        last = (self.connection.execute("SELECT max(k) FROM t").fetchone()[0] or 0) + 1

        def act():
            self.connection.execute("BEGIN IMMEDIATE")
            blob = self.dice.randbytes(self.dice.choice([10, 3000]))
            self.connection.execute("INSERT INTO t VALUES (?, ?, ?)", (last, last, blob))
            self.connection.execute("UPDATE t SET v = ?", (last,))
            self.connection.execute("COMMIT")

        self.change({path: ["db", last]}, act)

    def pipe(self):
        """A pipe is no result, and nobody may open it."""
        if not os.path.lexists("pipe"):
            os.mkfifo("pipe")

    def save_in_place(self, pace):
        """A saver beside the rest: one large file over itself, for some seconds each time."""
        path, dice = f"{self.mine}model.pt", random.Random(f"{pace} {self.attempt} {self.rank}")
        make_folder(path)
        while True:
            data = f"{self.rank} {self.attempt} ".encode() + dice.randbytes(400_000)
            with self.saving:
                number = self.begin({path: whole(data)}, slow=True)
                with open(path, "wb", buffering=0) as file:
                    for start in range(0, len(data), 50_000):
                        file.write(data[start : start + 50_000])
                        time.sleep(pace * 0.75 / 8)
                self.tell(done=number)
            time.sleep(dice.uniform(0.1, 0.5) * pace)

    def run(self):
        os.makedirs(os.environ["BERG_RESULTS_DIR"], exist_ok=True)
        os.chdir(os.environ["BERG_RESULTS_DIR"])
        self.tell(
            hello=os.environ["BERG_JOB"], attempt=self.attempt, rank=self.rank, found=listing(".")
        )
        answer = json.loads(self.line.makefile().readline())
        for path, what in listing(".").items():
            is_mine = path.startswith(self.mine) if self.rank else not path.startswith("r")
            is_free = not os.path.basename(path).startswith((*LOGS, "model.pt"))
            if what[0] == "f" and is_mine and is_free:
                self.files.add(path)
        if answer["pace"]:
            threading.Thread(target=self.save_in_place, args=[answer["pace"]], daemon=True).start()
        end = time.time() + answer["seconds"]
        while time.time() < end:
            self.dice.choices(list(self.steps), list(self.steps.values()))[0]()
            time.sleep(min(self.dice.expovariate(self.rate), 1))
        self.saving.acquire()  # it ends in no save
        os._exit(answer["code"])


if __name__ == "__main__":
    Writer(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])).run()

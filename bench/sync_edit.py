"""How long an edit of one file takes to reach two machines: `berg sync` against rsync of the
whole tree.

The machines are two checkouts behind an ssh server on loopback. rsync runs to both machines at once, without
.git, over ssh connections that are already open. It needs openssh-server, rsync and git.
"""

import getpass
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import common
from common import SCRATCH, Cost, Result, Target, ratio, table

# behind berg's own: tests/ has a folder localcloud, too
sys.path.append(str(common.TOP / "tests"))
from ssh_server import Server

from berg.laptop import sync
from berg.laptop.sync import multiplex

WHOLE_TREE = ["-a", "--delete", "--exclude=/.git"]
WHY = (
    f"berg waits {sync.STEP} ms for more saves, then asks the machine whether its checkout is the one that it knows, by a "
    "round trip of ssh of 15 ms, before rsync begins; rsync alone takes 0.13 s, which is the limit"
)
EDITED = Path("package7/module3/file11.py")


def checkout_ons(root: Path, server: Server, folder: Path) -> list[sync.Checkout]:
    checkouts = []
    for number in range(2):
        sockets = folder / str(number)
        sockets.mkdir()
        checkout = folder / f"machine{number}"
        subprocess.run(["git", "clone", "-q", str(root), str(checkout)], check=True)
        ssh, destination = (
            multiplex(server.options(), sockets),
            f"{getpass.getuser()}@{server.address}",
        )
        where = ssh, destination
        checkouts.append(sync.Checkout(checkout.name, str(checkout), lambda where=where: where))  # type: ignore[misc]
    return checkouts


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def time_sync(root: Path, checkouts: list[sync.Checkout], edits: int) -> list[float]:
    running = sync.Push(root, checkouts, lambda line: print(line, file=sys.stderr))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    wait_for(lambda: all(checkout.has is not None for checkout in checkouts))
    time_edits(root, checkouts, 1)  # once this one has arrived, the first pass is over on both
    times = time_edits(root, checkouts, edits)
    running.over.set()
    running.changed.set()
    thread.join()
    return times


def time_edits(root: Path, checkouts: list[sync.Checkout], edits: int) -> list[float]:
    """Seconds from the save of a file to its arrival on every machine."""
    times = []
    for number in range(edits):
        text = f"edit = {number}, at {time.time()}\n"
        began = time.perf_counter()
        (root / EDITED).write_text(text)
        wait_for(
            lambda text=text: all(Path(p.folder, EDITED).read_text() == text for p in checkouts)
        )  # type: ignore[misc]
        times.append(time.perf_counter() - began)
        time.sleep(0.5)  # a person's next save is no part of this burst
    return times


def rsync(root: Path, checkout: sync.Checkout, options: list[str], stdin: str = "") -> int:
    """Run rsync to a machine; returns how many bytes it sent."""
    target = f"{checkout.destination}:{checkout.folder}/"
    command = ["rsync", *options, "--stats", "-e", shlex.join(checkout.ssh), "./", target]
    done = subprocess.run(
        command, cwd=root, check=True, input=stdin, stdout=subprocess.PIPE, text=True
    )
    found = re.search(r"Total bytes sent: ([\d,]+)", done.stdout)
    assert found
    return int(found[1].replace(",", ""))


def bytes_of_edit(root: Path, checkout: sync.Checkout, options: list[str], stdin: str = "") -> int:
    """Bytes that travel to one machine for one edit."""
    (root / EDITED).write_text(f"edit = {time.time()}\n")
    return rsync(root, checkout, options, stdin)


def time_rsync(root: Path, checkouts: list[sync.Checkout], edits: int) -> list[float]:
    def whole_tree(checkout: sync.Checkout) -> None:
        rsync(root, checkout, WHOLE_TREE)

    times = []
    with ThreadPoolExecutor() as pool:
        list(pool.map(whole_tree, checkouts))
        for number in range(edits):
            (root / EDITED).write_text(f"edit = {number} of rsync\n")
            began = time.perf_counter()
            list(pool.map(whole_tree, checkouts))
            times.append(time.perf_counter() - began)
    return times


def measure(repeats: int) -> list[Result]:
    root, files, edits = SCRATCH / "repo", 20_000, 3
    common.make_repo(root, files)
    server = Server(SCRATCH / "server")
    try:
        berg, rsync = (
            "`berg sync`, from the save of the file",
            "`rsync -a --delete` of the whole tree",
        )
        times: dict[str, list[float]] = {berg: [], rsync: []}
        for number in range(repeats):
            folder = SCRATCH / f"round{number}"
            folder.mkdir()
            checkouts = checkout_ons(root, server, folder)
            times[berg] += time_sync(root, checkouts, edits)
            times[rsync] += time_rsync(root, checkouts, edits)
        sent = (
            bytes_of_edit(root, checkouts[0], sync.RSYNC[1:], f"./{EDITED}"),
            bytes_of_edit(root, checkouts[0], WHOLE_TREE),
        )
    finally:
        server.stop()
    costs = {name: [Cost(seconds, 0) for seconds in each] for name, each in times.items()}
    note = f"A repo of {files:,} files. Bytes to each machine: {sent[0]:,}; rsync {sent[1]:,}."
    target = Target("wall over rsync's", ratio(costs, berg, rsync), 1, why=WHY)
    return [table("Edit: one file to two machines", note, costs, [target])]


if __name__ == "__main__":
    common.main(__doc__, measure)

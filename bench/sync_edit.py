"""How long an edit of one file takes to reach two machines: `berg sync` against rsync of the whole tree.

    python bench/sync_edit.py [--files 20000] [--edits 15]

The machines are two checkouts behind an ssh server on loopback, so that the figures hold no network. It needs
openssh-server, rsync and git. "rsync -a" is what a script that watches for changes would run: the whole tree to
both machines at once, .git left out, over ssh connections that are open as well.
"""

import argparse
import getpass
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from ssh_server import Server

from berg import push

WHOLE_TREE = ["-a", "--delete", "--exclude=/.git"]
EDITED = Path("package7/module3/file11.py")


def make_repo(root: Path, files: int) -> None:
    """A repo of small files, 40 in a folder."""
    for number in range(files):
        path = root / f"package{number // 1600}/module{number // 40 % 40}/file{number % 40}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# file {number}\n" + "print('hello')\n" * 60)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "start"]):
        identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
        subprocess.run(["git", *identity, *command], cwd=root, check=True)


def make_places(root: Path, server: Server, folder: Path) -> list[push.Place]:
    places = []
    for number in range(2):
        sockets = folder / str(number)
        sockets.mkdir()
        checkout = folder / f"machine{number}"
        subprocess.run(["git", "clone", "-q", str(root), str(checkout)], check=True)
        ssh, destination = push.multiplex(server.options(), sockets), f"{getpass.getuser()}@{server.address}"
        where = ssh, destination
        places.append(push.Place(checkout.name, str(checkout), lambda where=where: where))  # type: ignore[misc]
    return places


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def time_sync(root: Path, places: list[push.Place], edits: int) -> list[float]:
    running = push.Push(root, places, lambda line: print(line, file=sys.stderr))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    wait_for(lambda: all(place.has is not None for place in places))
    time_edits(root, places, 1)  # once this one has arrived, the first pass is over on both
    times = time_edits(root, places, edits)
    running.over.set()
    running.changed.set()
    thread.join()
    return times


def time_edits(root: Path, places: list[push.Place], edits: int) -> list[float]:
    """Seconds from the save of a file to its arrival on every machine."""
    times = []
    for number in range(edits):
        text = f"edit = {number}, at {time.time()}\n"
        began = time.perf_counter()
        (root / EDITED).write_text(text)
        wait_for(lambda text=text: all(Path(p.folder, EDITED).read_text() == text for p in places))  # type: ignore[misc]
        times.append(time.perf_counter() - began)
        time.sleep(0.5)  # a person's next save is no part of this burst
    return times


def rsync(root: Path, place: push.Place, options: list[str], stdin: str = "") -> int:
    """Run rsync to a machine; returns how many bytes it sent."""
    target = f"{place.destination}:{place.folder}/"
    command = ["rsync", *options, "--stats", "-e", shlex.join(place.ssh), "./", target]
    done = subprocess.run(command, cwd=root, check=True, input=stdin, stdout=subprocess.PIPE, text=True)
    found = re.search(r"Total bytes sent: ([\d,]+)", done.stdout)
    assert found
    return int(found[1].replace(",", ""))


def bytes_of_edit(root: Path, place: push.Place, options: list[str], stdin: str = "") -> int:
    """Bytes that travel to one machine for one edit."""
    (root / EDITED).write_text(f"edit = {time.time()}\n")
    return rsync(root, place, options, stdin)


def time_rsync(root: Path, places: list[push.Place], edits: int) -> list[float]:
    def whole_tree(place: push.Place) -> None:
        rsync(root, place, WHOLE_TREE)

    times = []
    with ThreadPoolExecutor() as pool:
        list(pool.map(whole_tree, places))
        for number in range(edits):
            (root / EDITED).write_text(f"edit = {number} of rsync\n")
            began = time.perf_counter()
            list(pool.map(whole_tree, places))
            times.append(time.perf_counter() - began)
    return times


def row(name: str, times: list[float], size: int) -> str:
    return f"| {name} | {statistics.median(times):.2f} s | {min(times):.2f} s | {max(times):.2f} s | {size:,} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--edits", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="berg-") as name:
        folder = Path(name)
        root = folder / "repo"
        make_repo(root, arguments.files)
        server = Server(folder / "server")
        try:
            places = make_places(root, server, folder)
            edits = time_sync(root, places, arguments.edits)
            whole = time_rsync(root, places, arguments.edits)
            one_file = bytes_of_edit(root, places[0], push.RSYNC[1:], f"./{EDITED}")
            whole_tree = bytes_of_edit(root, places[0], WHOLE_TREE)
        finally:
            server.stop()
    print(f"One edit in a repo of {arguments.files:,} files to two machines, median of {arguments.edits}:\n")
    print("| | median | fastest | slowest | bytes sent to each |")
    print("|---|---|---|---|---|")
    print(row("`berg sync`, from the save of the file to its arrival on both", edits, one_file))
    print(row("`rsync -a --delete` of the whole tree, to both at once", whole, whole_tree))


if __name__ == "__main__":
    main()

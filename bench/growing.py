"""Mirror one file that grows all the time: how soon it is complete, and at what cost."""

import json
import os
import subprocess
import sys
import time
from statistics import median

import common
from common import BIN, SCRATCH, Cloud, Result, Target

SIZE, RATE = 4 << 30, 50 << 20  # bytes, and bytes a second
MIRROR = """
import json, resource, sys, threading, time
from pathlib import Path
from berg import config
from berg.google.mirror import Mirror
from berg.google.storage import Bucket

folder, stop = Path(sys.argv[1]), threading.Event()
views = ".berg/views/job/disk/"
mirror = Mirror(folder, Bucket(config.load()), "berg_results/", "job/disk", views=views)
threading.Thread(target=lambda: (sys.stdin.read(), stop.set())).start()
while not stop.wait(10):
    mirror.sync(30, stop.is_set)
began = time.perf_counter()
left = mirror.finish(lambda text: print(text, file=sys.stderr))
took = time.perf_counter() - began
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
print(json.dumps({"left": left, "took": took, "sent": mirror.bytes_sent, "memory": memory, "cpu": time.process_time()}))
"""


def measure(repeats: int) -> list[Result]:
    found = []
    for _ in range(repeats):
        with Cloud() as cloud:
            folder = SCRATCH / "growing"
            folder.mkdir(exist_ok=True)
            pipe = subprocess.PIPE
            mirror = subprocess.Popen(
                [BIN / "python", "-c", MIRROR, folder], env=cloud.env, stdin=pipe, stdout=pipe
            )
            block, began = os.urandom(1 << 20), time.monotonic()
            with (folder / "checkpoint").open("wb") as file:
                for number in range(SIZE >> 20):
                    file.write(block)
                    time.sleep(max(0, began + (number << 20) / RATE - time.monotonic()))
            wrote = time.monotonic() - began
            out, _ = mirror.communicate(b"")
            told = json.loads(out)
            assert told["left"] == {}, told
            (folder / "checkpoint").unlink()
        found.append({**told, "wrote": wrote})
        print(found[-1], file=sys.stderr)
    worst = {key: max(run[key] for run in found) for key in ("took", "sent", "memory")}
    middle = {key: median(run[key] for run in found) for key in (*worst, "cpu", "wrote")}
    row = [
        f"{middle['wrote']:.0f} s",
        f"{middle['took']:.1f} s",
        f"{middle['sent'] / SIZE:.2f}",
        f"{middle['memory']:.0f} MB",
        f"{middle['cpu']:.1f} s",
    ]
    targets = [
        Target("from the file's end to the last byte's crc32c compared", worst["took"], 60, "s"),
        Target("bytes sent over bytes of the file", worst["sent"] / SIZE, 1.1),
        Target("memory of the mirror", worst["memory"], 150, "MB"),
    ]
    header = [
        "written in",
        "all there after",
        "bytes sent, file = 1",
        "memory",
        "CPU of the mirror",
    ]
    note = (
        "A file of 4 GB that grows by 50 MB a second, with a pass every ten seconds. "
        f"Medians of {repeats}; the targets are of the worst run."
    )
    return [Result("Growing file", note, header, [row], targets)]


if __name__ == "__main__":
    common.main(__doc__, measure)

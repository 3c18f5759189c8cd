"""A program on several machines that meet through a socket, for tests of attempts."""

import re

from conftest import Berg, wait_for

# Every rank adds one to what the checkpoint has, through a socket of the first one, and dies where
# its plan says so, after which the others wait for it for ever. Ranks but the first only read.
TRAINING = """
import json, os, signal, socket, sys, time

rank, attempt = int(os.environ["BERG_NODE_RANK"]), int(os.environ["BERG_ATTEMPT"])
out, hosts = os.environ["BERG_RESULTS_DIR"], int(os.environ["BERG_NUM_NODES"])
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
dies = json.loads(os.environ.get("DIES", '{"1": 1, "2": 0}')).get(str(attempt))
checkpoint = f"{out}/checkpoint.json"


def end(*_):
    with open(f"{out}/ended-{rank}-{attempt}", "w") as file:
        file.write("by SIGTERM")
    sys.exit(1)


def meet():
    if rank == 0:
        server = socket.create_server(where)
        return [server.accept()[0] for _ in range(hosts - 1)]
    while True:
        try:
            return [socket.create_connection(where)]
        except OSError:
            time.sleep(0.1)


def agree(value):
    total = value + sum(int(each.recv(9)) for each in others) if rank == 0 else value
    for each in others:
        each.sendall(b"%9d" % total)
    return total if rank == 0 else int(others[0].recv(9))


signal.signal(signal.SIGTERM, end)
done = json.load(open(checkpoint))["done"] if os.path.exists(checkpoint) else 0
others = meet()
print(f"rank {rank} in attempt {attempt} on port {where[1]} begins at {done}", flush=True)
total = agree(done)
print("agreed on", total, flush=True)
if rank == 0:
    with open(checkpoint, "w") as file:
        json.dump({"done": total // hosts + 1}, file)
if dies == rank:
    time.sleep(4)  # what was written less than 2 s before is not restored: clocks differ
    sys.exit(5 + rank)
if dies is not None:
    signal.pause()
"""


def check_attempts(berg: Berg, name: str) -> None:
    """The program ran three times on all of the job's three machines, and succeeded at last."""
    wait_for(lambda: berg.state(name)["finished_at"], 180, "the end")
    state, log = berg.state(name), berg.log(name)
    assert (state["state"], state["reason"]) == ("SUCCEEDED", ""), (state, log)
    assert (state["attempt"], state["failures"], state["restarts"]) == (3, 2, 0)
    begins = re.findall(r"^rank (\d) in attempt (\d) on port (\d+) begins at (\d)$", log, re.M)
    # All of them read in each attempt what the first one wrote in the last, on its disk.
    assert sorted((attempt, rank, done) for rank, attempt, _, done in begins) == [
        (str(attempt), str(rank), str(attempt - 1)) for attempt in (1, 2, 3) for rank in (0, 1, 2)
    ]
    assert len({port for _, _, port, _ in begins}) == 3
    results = berg.objects(f"berg_results/{name}/")
    ended = {name.rpartition("/")[2] for name in results if "/ended-" in name}
    # Who waited was told to end, with time for its last words, and these are in the bucket.
    assert ended == {"ended-0-1", "ended-2-1", "ended-1-2", "ended-2-2"}
    assert results[f"berg_results/{name}/checkpoint.json"] == b'{"done": 3}'
    assert "failed with exit code 6" in log and "failed with exit code 5" in log

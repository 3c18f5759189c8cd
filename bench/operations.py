"""What a job's requests to Cloud Storage cost: operations by class, for a job that does nothing
and for one that writes all the time.
"""

import common
from common import SCRATCH, Cloud, Result, Target

# https://cloud.google.com/storage/pricing of 2026-11: dollars for 1,000 operations of a bucket in
# one region.
CLASS_A, CLASS_B = 0.005, 0.0004
# class A; deleting is free
WRITES = (
    "insert",
    "compose",
    "copy",
    "rewrite",
    "move",
    "patch",
    "update",
    "list",
)
SECONDS, FILES = 120, 20
CHATTY = f"""
import os, pathlib, time
folder = pathlib.Path(os.environ["BERG_RESULTS_DIR"])
end = time.monotonic() + {SECONDS}
while time.monotonic() < end:
    print("a line of the log" * 10, flush=True)
    for number in range({FILES}):
        (folder / f"{{number}}.txt").write_text(str(time.time()))
    time.sleep(0.1)
"""


def operations(cloud: Cloud, name: str, command: str) -> tuple[int, int]:
    """Operations of class A and of class B from `berg run --wait` to the end of the job."""
    cloud.call("DELETE", "/_berg/requests")
    cloud.berg("run", "-g", "0", "-n", name, "--wait", command, cwd=SCRATCH / "repo")
    log = cloud.call("GET", "/_berg/requests")["requests"]
    # The requests of an upload in pieces are one operation, that of its session. What is refused
    # costs nothing.
    made = [
        each
        for each in log
        if each["method"].startswith("storage.") and "upload_id=" not in each["path"]
    ]
    made = [each for each in made if each["status"] < 400]
    verbs = [each["method"].rpartition(".")[2] for each in made]
    return sum(verb in WRITES for verb in verbs), sum(verb.startswith("get") for verb in verbs)


def measure(repeats: int) -> list[Result]:
    common.make_repo(SCRATCH / "repo", 100)
    (SCRATCH / "repo/chatty.py").write_text(CHATTY)
    common.commit(SCRATCH / "repo")
    with Cloud() as cloud:
        operations(cloud, "first", "true")  # sends the code, and berg itself
        quiet, chatty = (
            operations(cloud, "quiet", "true"),
            operations(cloud, "chatty", "python3 chatty.py"),
        )
    hour = [
        round((much - little) * 3600 / SECONDS) for much, little in zip(chatty, quiet, strict=True)
    ]
    rows = []
    for what, (first, second) in (
        ("a job that does nothing", quiet),
        ("an hour of the busy job, in addition", hour),
    ):
        dollars = (first * CLASS_A + second * CLASS_B) / 1000
        rows.append([what, str(first), str(second), f"${dollars:.4f}"])
    note = (
        f"The second job writes a line of its log and each of its {FILES} results ten times a second. The worker "
        "sends the log every 2 seconds, changed results every 10, the state every 20. The laptop waits "
        f"(`--wait`) and reads the state once a second: most of class B. Extrapolated from {SECONDS} seconds."
    )
    most = 1800 + 360 * FILES + 120 + 360 + 300  # log, results, state, laptop, and what is retried
    targets = [
        Target("class A, a job that does nothing", quiet[0], 30, "requests"),
        Target("class A, an hour of the busy job", hour[0], most, "requests"),
    ]
    return [Result("Operations", note, ["", "class A", "class B", "cost"], rows, targets)]


if __name__ == "__main__":
    common.main(__doc__, measure)

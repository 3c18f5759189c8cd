"""How soon three machines compute together: from boot to the first allreduce, and `mpi` against
bare mpirun.

The machines share the computer's CPUs, so that most of this time is importing Python packages. It needs root,
openssh-server and openmpi-bin.
"""

import importlib.util
import json
import sys
from pathlib import Path

import common
from common import SCRATCH, Cloud, Cost, Result, Target, median, table
from worker import GOLDEN

ALLREDUCE = """
import time
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank)
if MPI.COMM_WORLD.rank == 0:
    print("\\nallreduce", total, len(set(MPI.COMM_WORLD.gather(MPI.Get_processor_name()))), time.time())
else:
    MPI.COMM_WORLD.gather(MPI.Get_processor_name())
"""

# Runs on the first machine.
MEASURE = """
import json, os, subprocess, time

began = time.time()
BOOT = '''
import time
started = int(open("/proc/1/stat").read().rpartition(")")[2].split()[19]) / 100
print(time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - started))
'''
BARE = ["mpirun", "--allow-run-as-root", "--hostfile", os.environ["BERG_HOSTFILE"], "-np", "6", "--map-by",
        "ppr:2:node", "--oversubscribe", "--mca", "btl", "tcp,self,vader", "--mca", "btl_tcp_if_include", "lo",
        "--mca", "oob_tcp_if_include", "lo", "-x", "PYTHONPATH", "-x", "PATH"]
MPI = ["mpi", "--mpi-procs-per-machine", "2"]

def allreduce(launcher):
    "When it was started, and when the first process had the sum."
    started = time.time()
    lines = subprocess.run([*launcher, "python", "allreduce.py"], stdout=subprocess.PIPE, text=True, check=True).stdout
    word, total, hosts, ended = next(line for line in lines.splitlines() if line.startswith("allreduce")).split()
    assert (total, hosts) == ("15", "3"), lines
    return started, float(ended)

first = allreduce(MPI)[1]
hosts = os.environ["BERG_HOSTS"].split(",")
boots = [float(subprocess.run(["ssh", host, "python3 -"], input=BOOT, capture_output=True, text=True).stdout)
         for host in hosts]
found = {"command": began - max(boots), "first": first - max(boots)}
for name, launcher in (("bare", BARE), ("mpi", MPI)):
    started, ended = allreduce(launcher)
    found[name] = ended - started
with open(os.environ["BERG_RESULTS_DIR"] + "/times.json", "w") as file:
    json.dump(found, file)
"""

ROWS = {
    "bare": "bare `mpirun` to its allreduce",
    "mpi": "`mpi` to its allreduce",
    "command": "last boot to the start of the command",
    "first": "last boot to the first allreduce",
}
UNPACKING = "last boot to the first allreduce, on the default image"


def measure(repeats: int) -> list[Result]:
    found = importlib.util.find_spec("mpi4py")
    if not found or not found.origin:
        sys.exit("mpi4py is missing: pip install mpi4py")
    packages = Path(found.origin).parent.parent
    repo = SCRATCH / "repo"
    repo.mkdir()
    (repo / "allreduce.py").write_text(ALLREDUCE)
    (repo / "measure.py").write_text(MEASURE)
    common.git(repo, "init", "-q", "-b", "main")
    common.commit(repo)
    costs: dict[str, list[Cost]] = {text: [] for text in ROWS.values()}
    costs[UNPACKING] = []
    with Cloud() as cloud:

        def times(job: str, *image: str) -> dict[str, float]:
            wishes = ["-m", "3", "-g", "0", "-n", job, "--env", f"PYTHONPATH={packages}", *image]
            cloud.berg("run", *wishes, "--wait", "python measure.py", cwd=repo)
            cloud.berg("fetch", job, SCRATCH / job)
            found: dict[str, float] = json.loads((SCRATCH / job / "times.json").read_text())
            return found

        for number in range(repeats):
            for key, seconds in times(f"golden-{number}", *GOLDEN).items():
                costs[ROWS[key]].append(Cost(seconds, 0))
            costs[UNPACKING].append(Cost(times(f"plain-{number}")["first"], 0))
    extra = median(costs[ROWS["first"]]) - median(costs[ROWS["bare"]])
    why = (
        "three workers start at once on two cores; each takes 0.4 s of CPU for imports and as much to "
        "unpack, check out and meet the others: 1.2 s is the limit here, 0.8 s on machines of their own"
    )
    target = Target("last boot to the first allreduce, beyond bare `mpirun`", extra, 1, "s", why)
    note = (
        "Bare `mpirun` runs on the same machines, afterwards. A golden image has Berg's dependencies; on "
        "the default one each machine unpacks and compiles them first."
    )
    return [table("Cluster", note, costs, [target])]


if __name__ == "__main__":
    common.main(__doc__, measure)

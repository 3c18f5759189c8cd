"""How soon three machines compute together: from their boot to the first allreduce, and `mpi` against bare mpirun.

    pip install mpi4py
    python bench/cluster_start.py [--rounds 5]

The machines are those of the embedded cloud, with real ssh servers and Open MPI; that needs root, openssh-server and
openmpi-bin. They boot at once and share the computer's CPUs, so that the time to meet is mostly the time to import
python packages. What a user would type without berg is the recipe below, on machines that trust each other already.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

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
    lines = subprocess.run([*launcher, "python", "allreduce.py"], capture_output=True, text=True, check=True).stdout
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
    "command": "last boot to the start of the command",
    "first": "last boot to the first allreduce",
    "mpi": "`mpi` to its allreduce",
    "bare": "bare `mpirun` to its allreduce",
}


def berg(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "BERG_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "berg", *arguments]
    done = subprocess.run(command, cwd=folder / "repo", env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def make_repo(repo: Path) -> None:
    repo.mkdir()
    (repo / "allreduce.py").write_text(ALLREDUCE)
    (repo / "measure.py").write_text(MEASURE)
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "start"]):
        subprocess.run(["git", *identity, *command], cwd=repo, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    found = importlib.util.find_spec("mpi4py")
    if not found or not found.origin:
        sys.exit("mpi4py is missing: pip install mpi4py")
    packages = Path(found.origin).parent.parent
    rounds = []
    with tempfile.TemporaryDirectory(prefix="berg-") as name:
        folder = Path(name)
        make_repo(folder / "repo")
        berg(folder, "init", "--local")
        try:
            for number in range(arguments.rounds):
                job = f"round-{number}"
                wishes = ["-m", "3", "-g", "0", "-n", job, "--env", f"PYTHONPATH={packages}", "--wait"]
                berg(folder, "run", *wishes, "python measure.py")
                berg(folder, "fetch", job, str(folder / job))
                rounds.append(json.loads((folder / job / "times.json").read_text()))
                print(json.dumps(rounds[-1]), file=sys.stderr)
        finally:
            berg(folder, "local", "reset", "-y")
    print(f"Three machines, median of {len(rounds)}:\n\n| | median | fastest | slowest |\n|---|---|---|---|")
    for key, text in ROWS.items():
        times = [each[key] for each in rounds]
        print(f"| {text} | {statistics.median(times):.2f} s | {min(times):.2f} s | {max(times):.2f} s |")


if __name__ == "__main__":
    main()

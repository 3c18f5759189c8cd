"""The machines of one job: their ranks, how they meet, and what each hears of the others.

Each writes a small record, .berg/machines/<job>/<rank>.json, every two seconds: how far it is in
which attempt. Rank 0 leads: it alone writes the job's state. There is no takeover: if a machine is
lost, all others end, and where Google makes it again all begin the next attempt together. If rank 0
itself is lost for good, the next one says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests

from berg import BergError, google, moments
from berg import job as jobs
from berg.boot import BERG, HOST, IS_GUEST
from berg.bucket import Changed, trouble

if TYPE_CHECKING:
    from berg.worker import Ending, Run

PORT = 29500
HOSTFILE = BERG / "hostfile"
SSH, SSHD = Path("/root/.ssh"), Path("/etc/ssh")
KEY = SSH / "berg_machines"  # with which the first machine logs in to the others
MPI, TT = Path("/usr/local/bin/mpi"), Path("/usr/local/bin/tt")
PANES = """#!/bin/sh
# tmux with a shell, the log, and the monitors that this machine has.
command -v tmux >/dev/null || { echo "there is no tmux here: apt-get install tmux"; exit 1; }
tmux has-session -t berg 2>/dev/null && exec tmux attach -t berg
tmux new-session -d -s berg || exit
tmux split-window -h -t berg "tail -n +1 -F /root/berg/*.log"
if command -v nvtop >/dev/null; then tmux split-window -v -t berg nvtop
elif command -v nvidia-smi >/dev/null; then tmux split-window -v -t berg "watch -n 1 nvidia-smi"; fi
if command -v htop >/dev/null; then tmux split-window -v -t berg htop
elif command -v top >/dev/null; then tmux split-window -v -t berg top; fi
tmux select-layout -t berg tiled
tmux select-pane -t berg:0.0
exec tmux attach -t berg
"""
# Open MPI: no tree of logins, as only rank 0 has the key; TCP on the machines' own interface, not
# docker's; no binding to cores, so that threads may use all.
MPIRUN = """\
#!/bin/sh
# Runs a program on all machines of the job, one process for each slot: mpi python train.py
exec mpirun --allow-run-as-root --hostfile {hostfile} --map-by slot --bind-to none --oversubscribe \\
    --mca plm_rsh_no_tree_spawn 1 --mca pml ob1 --mca btl self,vader,tcp \\
    --mca btl_tcp_if_include {interface} --mca oob_tcp_if_include {interface} {exports} "$@"
"""
MEETING = 600  # seconds in which all machines must have come
POLL = 2  # seconds between two records, and two looks at those of the others
SILENCE = 60  # looks without a new record, after which a machine counts as lost: two minutes
LATE = 360  # seconds that rank 0 waits for the others' last results: their grace, and then some
TICK = 2  # seconds between two ticks: all machines take moments of their results at the same ones
SKEW = 0.02  # seconds by which the others look later than rank 0, whose files name theirs
# How far a machine is. One that replaces a lost machine is `replaced` until the next attempt.
PHASES = ["replaced", "come", "ready", "running", "ended", "saved"]
Record = dict[str, Any]


@dataclass
class Peers:
    """What a machine tells the others, and heard of them."""

    records: dict[int, Record] = field(default_factory=dict)  # of this attempt, by rank
    missed: dict[int, int] = field(default_factory=dict)  # looks since the last new record
    lost: dict[int, str] = field(default_factory=dict)  # how that is known
    gone: set[int] = field(default_factory=set)  # of a devbox: lost, and Google has no such machine
    next_look: float = 0  # time.monotonic() at which Google is asked for those that are lost
    phase: str = "come"
    outcome: Record = field(default_factory=dict)
    writing: threading.Lock = field(default_factory=threading.Lock)


def tick(run: Run) -> int:
    """The number of the next tick at which this machine takes a moment.

    A machine with slow passes takes every second, fourth, eighth … tick: as powers of two the ticks of
    slow machines still meet, and most of the time is the command's.
    """
    step = 1
    while step * TICK < run.pass_seconds:
        step *= 2
    return (int(run.bucket.time() / TICK) // step + 1) * step


def path(run: Run, rank: int) -> str:
    return f"{jobs.machines_prefix(run.job.name)}{rank}.json"


def beat(run: Run) -> None:
    """Write this machine's record, and read those of all."""
    with run.peers.writing:
        record = {
            "rank": run.rank,
            "phase": run.peers.phase,
            "attempt": run.state.attempt,
            "address": run.facts.address,
            "id": run.facts.id,
            "slots": run.job.gpus or os.cpu_count(),
            "ssh": login(),
            "at": time.time(),
            **run.told,
            **run.peers.outcome,
        }
        text = json.dumps(record)
        run.bucket.write(path(run, run.rank), text.encode(), about={"record": text})
    listen(run)


def beating(run: Run) -> contextlib.AbstractContextManager[None]:
    """Beat meanwhile, where there are several machines."""
    from berg.worker import every

    several = run.job.machines > 1
    return every(lambda: POLL, lambda: beat(run)) if several else contextlib.nullcontext()


def listen(run: Run) -> None:
    peers = run.peers
    for item in run.bucket.list(jobs.machines_prefix(run.job.name)):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # it is no record
            record = json.loads(item.about["record"])
            rank, attempt = int(record["rank"]), int(record["attempt"])
            if attempt > run.state.attempt or (
                attempt == run.state.attempt and record["phase"] == "replaced"
            ):
                peers.lost.setdefault(rank, "Google made it again")
            elif attempt == run.state.attempt and PHASES.index(record["phase"]):
                is_new = record != peers.records.get(rank)
                peers.records[rank] = record
                peers.missed[rank] = 0 if is_new else peers.missed[rank] + 1
                if peers.missed[rank] > SILENCE and record["phase"] != "saved":
                    peers.lost.setdefault(rank, f"it was silent for {SILENCE * POLL} seconds")


def tell(run: Run, phase: str, **outcome: Any) -> None:
    """Tell the others how far this machine is; what fails now is told with the next beat."""
    run.peers.phase, run.peers.outcome = phase, run.peers.outcome | outcome
    if run.job.machines > 1:
        with contextlib.suppress(*trouble()):
            beat(run)


def enter(run: Run) -> None:
    """Wait, if another machine had this rank in the current attempt, for the next one."""
    from berg.worker import NotMine

    while True:
        record = json.loads(run.bucket.find(path(run, run.rank)) or b"{}")
        is_past = record.get("attempt") != run.state.attempt
        if is_past or (record["id"] == run.facts.id and record["phase"] != "replaced"):
            run.peers = Peers()
            return
        if record["phase"] != "saved":
            tell(run, "replaced")
        time.sleep(POLL)
        run.state, run.generation = jobs.read_state(run.bucket, run.job.name)
        if run.state.is_final:
            raise NotMine(f"the job {run.job.name} is {run.state.state}")


def gather(run: Run, phase: str) -> None:
    """Wait until all machines have reached this phase of this attempt; raise EndEarly if the job is
    to end.

    Once all have `come`, no machine of the attempt before writes results any more.
    """
    tell(run, phase)
    end, names = time.monotonic() + MEETING, run.job.machine_names
    while run.job.machines > 1:
        phases = {rank: PHASES.index(row["phase"]) for rank, row in {**run.peers.records}.items()}
        missing = [name for rank, name in enumerate(names) if rank not in phases]
        if not missing and min(phases.values()) >= PHASES.index(phase):
            return
        run.look()
        if missing and time.monotonic() > end:
            run.peers.lost |= {names.index(name): "it did not come" for name in missing}
            raise BergError(
                f"{len(missing)} of {run.job.machines} machines did not come within "
                f"{MEETING // 60} minutes: {', '.join(missing)}"
            )
        time.sleep(POLL / 10)


def open_to_ssh(run: Run) -> None:
    """Authorize the ssh keys of the metadata, and publish this machine's host keys where no other one
    can.
    """
    let_in(run.facts.attributes)
    with contextlib.suppress(OSError):  # Google's images forbid root
        (SSHD / "sshd_config.d/00-berg.conf").write_text("PermitRootLogin prohibit-password\n")
        subprocess.run(["systemctl", "reload", "ssh"], capture_output=True)
    for kind, key in (line.split() for line in host_keys()):
        url = f"http://{HOST}/computeMetadata/v1/instance/guest-attributes/hostkeys/{kind}"
        with contextlib.suppress(requests.RequestException):
            requests.put(url, key, headers={"Metadata-Flavor": "Google"}, timeout=10)
    if run.leads and run.job.machines > 1 and not KEY.exists():
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(KEY)]
        with contextlib.suppress(OSError):
            subprocess.run(words, capture_output=True)


def let_in(attributes: dict[str, str]) -> None:
    """Authorize root's ssh keys of the metadata, as Google's agent does unless OS Login is on."""
    for line in attributes.get("ssh-keys", "").splitlines():
        if line.startswith("root:"):
            add_lines(SSH / "authorized_keys", [line.partition(":")[2]])


def host_keys() -> list[str]:
    files = sorted(SSHD.glob("ssh_host_*_key.pub"))
    return [" ".join(file.read_text().split()[:2]) for file in files]


def login() -> Record:
    """What another machine needs for a login here, or to let this one in."""
    known = (SSHD / "sshd_config").read_text() if (SSHD / "sshd_config").exists() else ""
    port = re.search(r"^Port\s+(\d+)", known, re.M)
    public = KEY.with_suffix(".pub")
    key = public.read_text().strip() if public.exists() else ""
    return {"port": int(port[1]) if port else 22, "host_keys": host_keys(), "key": key}


def introduce(run: Run) -> None:
    """Once all have come: let programs here know the machines by name, address and ssh key."""
    if run.job.machines == 1:
        HOSTFILE.write_text(f"localhost slots={run.job.gpus or os.cpu_count()}\n")
        return
    rows = [run.peers.records[rank] for rank in range(run.job.machines)]
    names = run.job.machine_names
    run.addresses = [str(row["address"]) for row in rows]
    HOSTFILE.write_text(
        "".join(f"{name} slots={row['slots']}\n" for name, row in zip(names, rows, strict=True))
    )
    pairs = [*zip(run.addresses, names, strict=True)]
    add_lines(Path("/etc/hosts"), [f"{address} {name}" for address, name in pairs])
    add_lines(SSH / "authorized_keys", [rows[0]["ssh"]["key"]])
    port = rows[0]["ssh"]["port"]  # they are of one image
    form = "{0},{1}" if port == 22 else f"[{{0}}]:{port},[{{1}}]:{port}"
    known = [
        f"{form.format(name, address)} {key}"
        for (address, name), row in zip(pairs, rows, strict=True)
        for key in row["ssh"]["host_keys"]
    ]
    add_lines(SSH / "known_hosts", known)
    options = ["User root", f"Port {port}", f"IdentityFile {KEY}", "StrictHostKeyChecking yes"]
    add_lines(
        SSH / "config",
        [f"Host {' '.join([*names, *run.addresses])}", *(f"  {text}" for text in options)],
    )


def meet_again(run: Run) -> None:
    """Know the machines of a devbox that is on again by their last records: some may be off."""
    listen(run)
    if run.job.machines == 1 or len(run.peers.records) == run.job.machines:
        introduce(run)


def write_mpi(run: Run) -> None:
    """Write the program `mpi`, which gives the command's variables to all processes."""
    if IS_GUEST:  # its host's is there
        return
    own = {"BERG_NODE_RANK", "PET_NODE_RANK", "USER", "LOGNAME"}
    exports = " ".join(f"-x {name}" for name in sorted({*run.variables, "PATH"} - own))
    MPI.write_text(MPIRUN.format(hostfile=HOSTFILE, interface=interface(run), exports=exports))
    MPI.chmod(0o755)


def interface(run: Run) -> str:
    """The name of the network interface by which the machines know each other."""
    if not shutil.which("ip"):  # small images lack it
        return "lo"
    words = ["ip", "-o", "-4", "address"]
    listed = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    address = f" {run.facts.address}/"
    return next((line.split()[1] for line in listed if address in line), "lo")


def write_login(run: Run) -> None:
    """Write the program `tt`, and the command's variables for logins through berg ssh."""
    TT.write_text(PANES)
    TT.chmod(0o755)
    lines = [f"export {name}={shlex.quote(text)}\n" for name, text in run.variables.items()]
    file = Path(jobs.login_file(run.job.name, run.facts.id))
    file.touch(0o600)
    file.write_text("".join(lines))


def add_lines(file: Path, lines: list[str]) -> None:
    """Append lines to a file, unless it has just this block already."""
    text = "".join(f"{line}\n" for line in lines if line)
    known = file.read_text() if file.exists() else ""
    if text and text not in known:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(f"{known.rstrip()}\n{text}" if known else text)
        file.chmod(0o644 if file.parent == Path("/etc") else 0o600)


def variables(run: Run) -> dict[str, str]:
    """What torchrun, mpirun and JAX read to find each other."""
    addresses = run.addresses or ["127.0.0.1"]
    rank, number = str(run.rank), str(run.job.machines)
    return {
        "BERG_NODE_RANK": rank,
        "BERG_NUM_NODES": number,
        "BERG_HOSTS": ",".join(addresses),
        "BERG_HOSTFILE": str(HOSTFILE),
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": str(PORT),
        "PET_NNODES": number,
        "PET_NODE_RANK": rank,
        "PET_NPROC_PER_NODE": str(max(run.job.gpus, 1)),
        "PET_MASTER_ADDR": addresses[0],
        "PET_MASTER_PORT": str(PORT),
    }


def loss(run: Run) -> Ending | None:
    """The ending if a machine is lost: where Google makes it again, all begin the next attempt."""
    from berg.worker import Ending

    names = run.job.machine_names
    for rank, reason in {**run.peers.lost}.items():
        if rank != run.rank:
            reason = f"{names[rank]} was lost: {reason}"
            return Ending("FAILED", reason, is_loss=run.job.returns)
    for rank, record in sorted(run.peers.records.items()):
        if rank != run.rank and record.get("is_loss"):
            return Ending("LOST", f"{names[rank]}: {record['reason']}", is_loss=True)
    return None


def look(run: Run) -> Ending | None:
    """Why the command here is to end: a machine is lost, or the command on another one has ended."""
    from berg.worker import Ending

    if run.job.machines == 1 or run.job.is_devbox:
        return None
    for rank, record in sorted(run.peers.records.items()):
        if rank == run.rank or record["phase"] not in ("ended", "saved") or record["is_loss"]:
            continue
        state, name = record["state"], run.job.machine_names[rank]
        if state != "SUCCEEDED":
            return Ending(state, f"{name}: {record['reason'] or state}", record["exit_code"])
        if rank == 0 and not run.job.each:
            return Ending("SUCCEEDED", f"the command on {name} has ended")
    return loss(run)


def join(run: Run, ending: Ending) -> Ending:
    """The ending of all machines, when each that is not lost has saved its results.

    A command fails soon after another machine is lost, which is known later: then it is the loss that
    counts. A machine of a group that has nothing to do any more waits here for the others: without
    it Google would make another one.
    """
    from berg.worker import SIGNALLED

    if run.job.machines == 1 or run.job.is_devbox:
        return ending
    tell(run, "saved", **outcome(ending))
    is_last = goes_last(run)
    is_long = ending.state == "SUCCEEDED" or not is_last
    end = time.monotonic() + (run.seconds - 30 if is_long else LATE)
    is_over = not is_last and not run.job.returns
    while not is_over and time.monotonic() < end and not SIGNALLED:
        before, ending = ending, in_view_of_others(run, ending)
        if is_last:
            saved = {rank for rank, row in run.peers.records.items() if row["phase"] == "saved"}
            is_over = len({run.rank} | saved | run.peers.lost.keys()) == run.job.machines
            end = end if ending == before else time.monotonic() + LATE
        else:
            with contextlib.suppress(*trouble()):
                state, _ = jobs.read_state(run.bucket, run.job.name)
                is_over = state.is_final or state.attempt > run.state.attempt
            is_over |= ending.is_loss
        time.sleep(POLL / 10)
    return in_view_of_others(run, ending)


def goes_last(run: Run) -> bool:
    """Whether this machine goes last, and says how the job ended: the first one, or, where that is lost and
    not made again, the first of those that are left.
    """
    left = {*range(run.job.machines)} - run.peers.lost.keys()
    is_first = not run.job.returns and not run.job.is_devbox and run.rank == min(left, default=0)
    return run.leads or is_first


def in_view_of_others(run: Run, ending: Ending) -> Ending:
    """The ending, or why it is another one: the loss of a machine, the failure on one."""
    if ending.is_firm or ending.is_loss:
        return ending
    other = loss(run) or (look(run) if ending.state == "SUCCEEDED" else None)
    return other if other and other.state != "SUCCEEDED" else ending


def outcome(ending: Ending) -> Record:
    return {
        "state": ending.state,
        "exit_code": ending.exit_code,
        "reason": ending.reason,
        "is_loss": ending.is_loss,
    }


def end_of_lost(run: Run) -> None:
    """On a devbox, whose other machines go on: let what a machine that is gone saved count as its end. Else
    the newest moment that all machines have would stay the one before that.
    """
    is_due = run.leads and run.job.is_devbox and time.monotonic() > run.peers.next_look
    if not is_due or "/" in run.facts.zone:  # a pod has no zone
        return
    run.peers.next_look = time.monotonic() + SILENCE
    for rank in run.peers.lost.keys() - run.peers.gone:
        place = f"/zones/{run.facts.zone}/instances/{run.job.machine_names[rank]}"
        with contextlib.suppress(Changed, *trouble()):
            if google.find(run.config, place, fields="id") is None:
                moments.end_for(run.bucket, run.job.name, run.state.attempt, rank)
                run.peers.gone.add(rank)


def delete_lost(run: Run) -> None:
    """Delete the machines that cannot do it themselves, if they are still those of this job."""
    for rank in [*run.peers.lost] if run.job.machines > 1 else ():
        name, known = run.job.machine_names[rank], run.peers.records.get(rank, {}).get("id")
        place = f"/zones/{run.facts.zone}/instances/{name}"
        try:
            if (found := google.find(run.config, place, fields="id")) and found["id"] == known:
                google.call(run.config, "DELETE", place)
        except Exception as error:  # Google's limit ends it otherwise
            run.say(f"{name} could not be deleted: {error}")

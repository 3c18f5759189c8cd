"""The machines of one job: their ranks, how they meet, and what each hears of the others.

Each writes a small record, .berg/machines/<job>/<rank>.json, again and again; its time says that the
machine is alive. Rank 0 leads: it alone writes the job's state. There is no takeover: if a machine
is gone or silent, all others end.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from berg.code import ROOT
from berg.job import machines_prefix

if TYPE_CHECKING:
    from berg.worker import Ending, Run

PORT = 29500
HOSTFILE = ROOT / "berg/hostfile"
MEETING = 600  # seconds in which all machines must be ready
SILENCE = 120  # seconds without a new record, after which a machine counts as lost
LATE = 180  # seconds that rank 0 waits for the others' last results
POLL = 2  # seconds between two records, and two looks at those of the others
TICK = 2  # seconds between two moments that all machines take
SKEW = 0.02  # seconds by which the others look later than rank 0, whose files name theirs
# Phases in which a machine's command has ended.
OVER = ("ended", "saved")


@dataclass
class Peers:
    """What a machine tells the others, and heard of them."""

    records: dict[int, dict[str, Any]] = field(default_factory=dict)  # of this attempt, by rank
    heard: dict[int, float] = field(default_factory=dict)  # time.monotonic() of their last change
    next_look: float = 0  # time.monotonic() of the next one at the others
    next_word: float = 0  # and at the metadata
    phase: str = "preparing"
    about: dict[str, Any] = field(default_factory=dict)


def tell(run: Run, phase: str, **about: Any) -> None:
    """Tell the others how far this machine is."""
    run.peers.phase, run.peers.about = phase, {**run.peers.about, **about}
    if run.job.machines > 1:
        record = {
            "phase": phase,
            "attempt": run.state.attempt,
            "address": run.facts.address,
            "id": run.facts.id,
            "at": time.time(),
            **run.peers.about,
        }
        path = f"{machines_prefix(run.job.name)}{run.rank}.json"
        run.bucket.write(path, json.dumps(record).encode())


def listen(run: Run) -> None:
    """Read the records of all machines; what is none, or of another attempt, is left out."""
    for rank in range(run.job.machines):
        try:
            content = run.bucket.find(f"{machines_prefix(run.job.name)}{rank}.json")
            record = json.loads(content or b"{}")
            if record["attempt"] == run.state.attempt and record != run.peers.records.get(rank):
                run.peers.records[rank], run.peers.heard[rank] = record, time.monotonic()
        except (ValueError, KeyError, TypeError):
            continue


def meet(run: Run) -> None:
    """Wait until all machines of the job are ready; then they know each other's addresses."""
    if run.job.machines == 1:
        return
    tell(run, "ready")
    end = time.monotonic() + MEETING
    while True:
        listen(run)
        missing = sorted({*range(run.job.machines)} - run.peers.records.keys())
        waiting = [r for r, record in run.peers.records.items() if record["phase"] == "preparing"]
        if not missing and not waiting:
            break
        run.look()
        if time.monotonic() > end:
            names = ", ".join(run.job.machine_names[rank] for rank in [*missing, *waiting])
            raise TimeoutError(f"{names} did not come within {MEETING // 60} minutes")
        time.sleep(POLL / 2)
    now = time.monotonic()
    run.peers.heard = dict.fromkeys(run.peers.records, now)
    addresses = [str(run.peers.records[rank]["address"]) for rank in range(run.job.machines)]
    run.addresses = addresses
    slots = max(run.job.gpus, 1)
    HOSTFILE.write_text("".join(f"{address} slots={slots}\n" for address in addresses))
    pairs = zip(addresses, run.job.machine_names, strict=True)
    lines = "".join(f"{address} {name}\n" for address, name in pairs)
    hosts = Path("/etc/hosts")
    if lines not in (known := hosts.read_text()):
        hosts.write_text(f"{known.rstrip()}\n{lines}")


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


def look(run: Run) -> Ending | None:
    """Why the command here is to end: another machine's has, or a machine is lost."""
    from berg.worker import Ending

    if run.job.machines == 1 or not run.addresses or time.monotonic() < run.peers.next_look:
        return None
    run.peers.next_look = time.monotonic() + POLL
    tell(run, run.peers.phase)
    listen(run)
    for rank, record in run.peers.records.items():
        name = run.job.machine_names[rank]
        if rank == run.rank or record["phase"] not in OVER:
            continue
        if record.get("is_loss"):
            return Ending("LOST", f"{name}: {record.get('reason')}", is_loss=True)
        if record.get("exit_code") or record.get("state") not in ("SUCCEEDED", None):
            code = record.get("exit_code")
            why = f"{name}: {record.get('reason') or record.get('state')}"
            return Ending(str(record.get("state")), why, code)
        if rank == 0 and not run.job.each:
            return Ending("SUCCEEDED")
    return lost(run)


def lost(run: Run) -> Ending | None:
    """The ending if a machine is silent: the job begins again where Google makes that machine again."""
    from berg.worker import Ending

    for rank in range(run.job.machines):
        record = run.peers.records.get(rank, {})
        silent = time.monotonic() - run.peers.heard.get(rank, 0) > SILENCE
        if rank != run.rank and record.get("phase") != "saved" and silent:
            name = run.job.machine_names[rank]
            return Ending(
                "FAILED", f"{name} is lost: silent for {SILENCE} s", is_loss=run.job.returns
            )
    return None


def join(run: Run, ending: Ending) -> Ending:
    """The ending of all machines: rank 0 waits until the others have saved their results too."""
    if run.job.machines == 1:
        return ending
    about = {"exit_code": ending.exit_code, "reason": ending.reason, "state": ending.state}
    tell(run, "saved", **about, is_loss=ending.is_loss)
    if not run.leads:
        return ending
    end = time.monotonic() + (LATE if ending.state != "SUCCEEDED" else run.seconds)
    while time.monotonic() < end:
        listen(run)
        others = {rank: row for rank, row in run.peers.records.items() if rank != run.rank}
        failed = [
            rank for rank, row in others.items() if row["phase"] in OVER and row.get("exit_code")
        ]
        if failed and ending.state == "SUCCEEDED":
            code = int(others[failed[0]]["exit_code"])
            ending.state, ending.exit_code = "FAILED", code
            ending.reason = f"exit code {code} on {run.job.machine_names[failed[0]]}"
            end = min(end, time.monotonic() + LATE)
        saved = [rank for rank, row in others.items() if row["phase"] == "saved"]
        if len(saved) == run.job.machines - 1:
            break
        if (loss := lost(run)) and ending.state == "SUCCEEDED":
            return loss
        time.sleep(POLL / 2)
    return ending

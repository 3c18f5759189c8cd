"""The machines of one job: their ranks, how they meet, and what each hears of the others.

Each writes a small record, .berg/machines/<job>/<rank>.json, every two seconds: how far it is in
which attempt. Rank 0 leads: it alone writes the job's state. There is no takeover: if a machine is
lost, all others end, and where Google makes it again all begin the next attempt together.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from berg import google
from berg import job as jobs
from berg.bucket import trouble
from berg.code import ROOT

if TYPE_CHECKING:
    from berg.worker import Ending, Run

PORT = 29500
HOSTFILE = ROOT / "berg/hostfile"
MEETING = 600  # seconds in which all machines must have come
POLL = 2  # seconds between two records, and two looks at those of the others
SILENCE = 60  # looks without a new record, after which a machine counts as lost: two minutes
LATE = 180  # seconds that rank 0 waits for the others' last results
TICK = 2  # seconds between two moments that all machines take
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
    phase: str = "come"
    outcome: Record = field(default_factory=dict)
    writing: threading.Lock = field(default_factory=threading.Lock)
    next_word: float = 0  # time.monotonic() of the next look at the metadata


def tick(run: Run) -> int:
    """The number of the next moment that all machines take."""
    return int(run.bucket.time() / TICK) + 1


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
            "at": time.time(),
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
    """Wait until all machines of this attempt are as far; raise Over if the job is to end.

    Once all have `come`, no machine of the attempt before writes results any more.
    """
    tell(run, phase)
    end = time.monotonic() + MEETING
    while run.job.machines > 1:
        phases = {rank: PHASES.index(row["phase"]) for rank, row in run.peers.records.items()}
        missing = [name for rank, name in enumerate(run.job.machine_names) if rank not in phases]
        if not missing and min(phases.values()) >= PHASES.index(phase):
            return
        run.look()
        if missing and time.monotonic() > end:
            raise TimeoutError(
                f"{len(missing)} of {run.job.machines} machines did not come within "
                f"{MEETING // 60} minutes: {', '.join(missing)}"
            )
        time.sleep(POLL / 10)


def introduce(run: Run) -> None:
    """Once all have come: their addresses, for the command and its launchers."""
    if run.job.machines == 1:
        return
    run.addresses = [str(run.peers.records[rank]["address"]) for rank in range(run.job.machines)]
    slots = max(run.job.gpus, 1)
    HOSTFILE.write_text("".join(f"{address} slots={slots}\n" for address in run.addresses))
    pairs = zip(run.addresses, run.job.machine_names, strict=True)
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

    if run.job.machines == 1:
        return None
    for rank, record in sorted(run.peers.records.items()):
        if rank == run.rank or record["phase"] not in ("ended", "saved"):
            continue
        state, code, reason = record["state"], record["exit_code"], record["reason"]
        reason = f"{run.job.machine_names[rank]}: {reason or state}"
        if record["is_loss"]:
            return Ending("LOST", reason, is_loss=True)
        if state != "SUCCEEDED":
            return Ending(state, reason, code)
        if rank == 0 and not run.job.each:
            return Ending("SUCCEEDED")
    for rank, reason in run.peers.lost.items():
        if rank != run.rank:
            reason = f"{run.job.machine_names[rank]} was lost: {reason}"
            return Ending("FAILED", reason, is_loss=run.job.returns)
    return None


def join(run: Run, ending: Ending) -> Ending:
    """The ending of all machines, when each that is not lost has saved its results.

    A machine of a group that has nothing to do any more waits here for the others: without it Google
    would make another one.
    """
    if run.job.machines == 1:
        return ending
    tell(run, "saved", **outcome(ending))
    end = time.monotonic() + (run.seconds if ending.state == "SUCCEEDED" else LATE)
    is_over = False
    while (run.leads or (run.job.returns and not ending.is_loss)) and not is_over:
        if ending.state == "SUCCEEDED" and (other := look(run)) and other.state != "SUCCEEDED":
            ending, end = other, time.monotonic() + LATE
        if run.leads:
            saved = {rank for rank, row in run.peers.records.items() if row["phase"] == "saved"}
            is_over = len({run.rank} | saved | run.peers.lost.keys()) == run.job.machines
        else:
            with contextlib.suppress(*trouble()):
                is_over = jobs.read_state(run.bucket, run.job.name)[0].is_final
        if time.monotonic() > end:
            break
        time.sleep(POLL / 10)
    return ending


def outcome(ending: Ending) -> Record:
    return {
        "state": ending.state,
        "exit_code": ending.exit_code,
        "reason": ending.reason,
        "is_loss": ending.is_loss,
    }


def delete_lost(run: Run) -> None:
    """Delete the machines that cannot do it themselves, if they are still those of this job."""
    for rank in run.peers.lost if run.job.machines > 1 else ():
        place = f"/zones/{run.facts.zone}/instances/{run.job.machine_names[rank]}"
        known = run.peers.records.get(rank, {}).get("id")
        with contextlib.suppress(Exception):  # Google's limit ends it otherwise
            if (found := google.find(run.config, place, fields="id")) and found["id"] == known:
                google.call(run.config, "DELETE", place)

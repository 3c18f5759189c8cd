"""End jobs: which ones are meant, the word to their machines, and what is deleted with them.

Not covered: what nobody needs any more; that is reap.py.
"""

import contextlib
import fnmatch
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from berg import BergError, job, places
from berg.config import Config
from berg.google import secret
from berg.google.storage import Bucket, Changed
from berg.inventory import Machine
from berg.laptop.jobs import OFF, Entry, find, is_glob, logs_of, look_again, overview

KILL_PATIENCE = 60  # seconds for a worker to stop its command, which has 30 of them
LEFT_STILL = (
    120  # seconds without progress of an upload, after which `kill` says what would be lost
)


def match(config: Config, patterns: tuple[str, ...], everything: bool) -> list[str]:
    """Names of what can be killed: as given, by globs over what is mine and lives, or all of that."""
    if not everything and not any(is_glob(pattern) for pattern in patterns):
        return list(dict.fromkeys(name for pattern in patterns for name in parts(config, pattern)))
    living = [e.name for e in overview(config, config.user) if e.can_end]
    found: list[str] = []
    for pattern in ("*",) if everything else patterns:
        hits = fnmatch.filter(living, pattern) if is_glob(pattern) else [pattern]
        if not hits and not everything:
            raise BergError(
                f"{pattern!r} matches none of your jobs and machines. See them: berg list"
            )
        found += hits
    return list(dict.fromkeys(found))


def parts(config: Config, name: str) -> list[str]:
    """The jobs of a sweep that are to be ended, those that no machine has first; of anything else
    its name.
    """
    if not job.NAME.fullmatch(name) or not Bucket(config).exists(job.sweep_path(name)):
        return [name]
    live = [e for e in overview(config, None, f"{name}-") if e.sweep == name and e.can_end]
    return [e.name for e in sorted(live, key=lambda e: (bool(e.machines), e.name))]


def kill(config: Config, name: str, now: bool, say: Callable[[str], None]) -> str:
    """End a job and delete its machines; returns the state that the job ended in ("" for a mere
    machine).

    A worker gets the time to stop its command and to upload what is left, unless `now`.
    """
    found = find(config, name)
    name = found.name
    begun = found.state and not found.state.final and found.state.state != "SUBMITTED"
    if begun and any(machine.status not in OFF for machine in found.machines):
        tell_of_end(config, found, now)
        asked = moved = time.monotonic()
        left, told, spoke = "", "", -math.inf
        while not now and found.machine and found.state and not found.state.final:
            if found.state.state == "UPLOADING":
                moment, before = time.monotonic(), left
                left = (
                    f"{found.state.left_files:,} files, {found.state.left_bytes:,} bytes are left"
                )
                moved = moment if left != before else moved
                if moment - moved > LEFT_STILL:
                    raise BergError(
                        f"{name} uploads its results since {found.state.uploading_since}, but nothing has moved for "
                        f"{moment - moved:.0f} s: {left}. {found.state.reason}\nIt goes on trying alone. To end it "
                        f"without them: berg kill --now {name}"
                    )
                is_counted = found.state.left_files > 0  # which takes its worker some seconds
                if is_counted and moment - asked > 3 and moment - spoke > 30 and left != told:
                    spoke, told = moment, left
                    say(
                        f"{name} uploads its results since {found.state.uploading_since}: {left} (Ctrl-C leaves it)"
                    )
            elif time.monotonic() > asked + KILL_PATIENCE:
                say(f"{name} did not answer; deleting its machine")
                break
            time.sleep(0.5)
            found = look_again(config, found)
    is_lost = bool(found.state and found.state.state == "LOST")
    # none of those takes another job
    gone = found.workers if is_lost and found.sweep else found.machines
    for machine in gone:
        save_console(config, name, machine)
    if not found.sweep or now or is_lost:  # else its machine takes the next job
        found.place.delete(config, name, gone, found.group)
    forget_secrets(config, found)
    while found.state and not found.state.final:
        ended = replace(
            found.state, state="KILLED", reason=f"killed by {config.user}", finished_at=job.now()
        )
        text = ended.to_json()
        try:
            Bucket(config).write(
                job.state_path(name), text, found.generation, metadata={"state": text}
            )
            forget_secrets(config, replace(found, state=ended))
            return "KILLED"
        except Changed:  # its worker wrote a last word meanwhile
            found = find(config, name)
    return found.state.state if found.state else ""


def tell_of_end(config: Config, found: Entry, now: bool) -> None:
    """Tell the machine that leads who ends the job; with `now` all machines, which then save
    nothing more.
    """
    said = f"{config.user} now" if now else config.user
    told = sorted(found.machines, key=lambda machine: machine.name)[: None if now else 1]
    with ThreadPoolExecutor(16) as pool:
        telling = [
            pool.submit(found.place.tell, config, each, f"berg-kill-{found.name}", said)
            for each in told
        ]
    for each in telling:
        if each.exception() and not now:  # else it merely takes its time to go
            each.result()


def forget_secrets(config: Config, found: Entry) -> None:
    """Delete the secrets of a job that is killed, or of its sweep with the last of its jobs."""
    if not found.state or not found.state.job.secrets:
        return
    if not found.sweep:
        secret.delete(config, found.name)
    elif found.state.final:
        entries = [
            each for each in overview(config, None, f"{found.sweep}-") if each.sweep == found.sweep
        ]
        if all(each.name == found.name or (each.state and each.state.final) for each in entries):
            secret.delete(config, found.sweep)


def save_console(config: Config, name: str, machine: Machine) -> None:
    """Keep what a machine wrote to its serial console, which goes with it, if its worker wrote no
    log.
    """
    from google.api_core import exceptions

    bucket = Bucket(config)
    with contextlib.suppress(exceptions.NotFound, Changed):  # NotFound: no bucket to keep it in
        if not logs_of(bucket, name, machine.name) and (
            output := places.of(machine.place).console(config, machine)
        ):
            bucket.write(f"{job.log_prefix(name)}{machine.name}.log", output, generation=0)

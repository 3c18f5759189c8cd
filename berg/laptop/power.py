"""Stop devboxes and start them again: the machine goes off, and its disk stays.

The worker uploads the last results and turns the machine off, so this computer need not stay on.
Only a person's choice deletes a box's disk. A move deletes the disk that it copied only when the
machine with the copy has answered, and the old machine has not run since.

One command at a time changes a box: it holds a claim, an object where machines may not write. The
command renews it; one that is not renewed is taken over. Times are Cloud Storage's.
"""

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from berg import BergError, gce, job, states, validation
from berg.config import Config
from berg.google import api, iam, instances, prices, shapes
from berg.google.api import OperationFailed
from berg.google.storage import Bucket, Changed, Listed
from berg.job import STOPPED, Machine
from berg.laptop import spending, ssh
from berg.laptop.jobs import OFF, Entry, Say, find, look_again

# Seconds
ANSWER = 60  # for a worker to begin what it was asked for
BOOTED = 600  # for a started box to answer
LOST_WORKER = 60  # of those, in which its console may still be that of the boot before
GOING = 60  # for a machine to go off after its worker turned it off
DOWN = 300  # for a machine that Google takes down; programs on it may have 120 of them
PAUSE = 0.5  # between two looks
AGED = 90  # after which a claim that was not renewed is taken over
CLAIM_PAUSE = 1  # between two looks at another command's claim

COMING = ("PENDING", "PROVISIONING", "STAGING")  # statuses of a machine that may never run


def why_never(kind: str, place: str, num_machines: int, machine_type: str, model: str) -> str:
    """Return why machines like these are never stopped; "" if they can be.

    `model` is how they are paid for, in the API's words.
    """
    if kind != "devbox":
        return "it is not a devbox"
    if place != "gce":
        return "Google cannot stop pods and TPU slices"
    if num_machines > 1:
        return "berg stops devboxes of one machine"
    if model == prices.FLEX:
        return "Google does not stop machines of flex-start"
    if machine_type in shapes.TPU_TYPES:
        return "Google does not document that machines with TPUs can be stopped"
    return ""


# --- stop


def question(config: Config, name: str) -> str:
    """Return what to ask before a devbox is stopped; "" if nothing is lost."""
    machine = find(config, name).machine
    if machine is None or machine.status in OFF or not instances.loses_scratch(machine):
        return ""
    return f"Stop {name}? What is on its local SSDs (/mnt/scratch) is lost; its disk is kept"


def stop(config: Config, name: str, now: bool, say: Say) -> str:
    """Stop a devbox; return a message for the user.

    With `now` Google turns the machine off at once, and its worker has seconds for the last
    results. Raises BergError for what cannot be stopped, or does not answer.
    """
    what = "" if now else ", after the upload of its last results"
    text = f"Waiting for {name} to go off{what} (Ctrl-C stops waiting)"
    with claimed(config, name, "stopped", say, is_forced=now), api.waiting(text, say):
        found = find(config, name)
        machine = check_stop(found, now)
        if machine.status in OFF:
            return f"is stopped already; start it: berg start {name}"
        request = f"{config.user} {found.job_state.attempt}"
        found.place.set_metadata(config, machine, f"berg-stop-{found.name}", request)
        if now:
            instances.stop(config, machine)
        found = wait_until_off(config, found)
        if now:
            write_stopped(config, found)
    return f"stopped. {cost_of(config, machine)}. Start it: berg start {name}"


def check_stop(found: Entry, now: bool) -> Machine:
    """Return the machine of a devbox; raise BergError if it cannot be stopped.

    If its worker has not begun since the last start, it can only be stopped `now`.
    """
    state, machine, summary = found.state, found.machine, found.summary
    if state is None or machine is None:
        raise BergError(f"{found.name} is not a devbox with a machine. See them: berg list")
    if state.final and not (now and state.state == "LOST"):
        raise BergError(f"{found.name} is {found.status}: there is nothing to stop")
    shape = (machine.machine_type, machine.model)
    if why := why_never(summary.kind, summary.place, summary.machines, *shape):
        raise BergError(f"{found.name} cannot be stopped: {why}. End it: berg kill {found.name}")
    if state.state == STOPPED and machine.status not in OFF and not now:
        raise BergError(
            f"{found.name} is being started or stopped. Try again in a minute, or turn it "
            f"off at once: berg stop --now {found.name}"
        )
    return machine


def wait_until_off(config: Config, found: Entry) -> Entry:
    """Wait until a devbox is off; raise BergError if it ended meanwhile, or does not answer."""
    began = time.monotonic()
    stopped_at = None
    while found.machine and found.machine.status not in OFF:
        now = time.monotonic()
        check_answer(found, now - began)
        if found.state and found.state.state == STOPPED:
            stopped_at = stopped_at or now
            if now > stopped_at + GOING:
                instances.stop(config, found.machine)
                stopped_at = now  # it takes its time, too
        time.sleep(PAUSE)
        found = look_again(config, found)
    if not found.machine:
        raise BergError(f"the machine of {found.name} is gone: {found.status}")
    return found


def check_answer(found: Entry, waited: float) -> None:
    """Raise BergError if a devbox ended, or its worker did not stop it in `waited` seconds."""
    state = found.state
    if state is None or state.final:
        raise BergError(f"{found.name} ended meanwhile: it is {found.status}")
    if waited > ANSWER and state.state not in ("UPLOADING", STOPPED):
        raise BergError(
            f"{found.name} does not answer. It may stop later. As it is, without its last results: "
            f"berg stop --now {found.name}"
        )


def write_stopped(config: Config, found: Entry) -> None:
    """Write that a devbox is stopped if its worker had no time to."""
    while (stored := found.stored) and not stored.state.final and stored.state.state != STOPPED:
        reason = f"stopped by {config.user}, at once"
        stopped = replace(stored.state, state=STOPPED, reason=reason, ending="")
        # If no worker began, this attempt counts too: the request to stop is not for the next one.
        stopped.started_at = stopped.started_at or job.now()
        try:
            states.replaced(Bucket(config), stored, stopped)
            return
        except Changed:  # its worker wrote a last state meanwhile
            found = find(config, found.name)


# --- start


def start(config: Config, name: str, move: bool, rescue: bool, say: Say) -> str:
    """Start a stopped devbox, and wait until it answers; return a message for the user.

    If its zone has no room and `move` is given, its disk goes to another zone of the region. With
    `rescue` it boots without installation and worker. Raises BergError if there is no room, in
    Google's words, and if it does not answer: it keeps its disk then.
    """
    config.refuse_in_purse("start a devbox again")
    with claimed(config, name, "moved" if move else "started", say) as claim:
        found = wait_while_stopping(config, find(config, name), say)
        state, machine = found.state, found.machine
        if state is None or machine is None or state.job.kind != "devbox":
            raise BergError(f"{found.name} is not a devbox with a machine. See them: berg list")
        if machine.status not in OFF:
            if machine.status == "RUNNING":
                finish_move(config, claim, found, say)
            return f"is {machine.status} already. Log in: berg ssh {name}"
        found = reopen(config, found, machine)
        note_rescue(config, machine, config.user if rescue else "")
        attempt = found.stored.state.attempt if found.stored else 0
        wait_for_copies(config, name, say)
        if not turn_on(config, machine, move, say):
            move_disk(config, claim, machine, say)
            found = find(config, name)
        with api.waiting(f"{name} boots in {found.zone} (Ctrl-C stops waiting)", say):
            found = wait_until_it_answers(config, claim, found, attempt)
        if not rescue:
            finish_move(config, claim, found, say)
        if found.machine:
            with contextlib.suppress(BergError, api.GoogleError):
                ssh.refresh_entry(config, name, found.machine)
    return f"started in {found.zone}. Log in: berg ssh {name}"


def wait_while_stopping(config: Config, found: Entry, say: Say) -> Entry:
    """Wait while a machine goes down: Google refuses to start it before it is off."""
    began = time.monotonic()
    if found.machine and found.machine.status == "STOPPING":
        say(f"{found.name} is still stopping; it will start when it is off (Ctrl-C stops waiting)")
    while found.machine and found.machine.status == "STOPPING":
        if time.monotonic() > began + DOWN:
            raise BergError(f"{found.name} is still stopping. Try again: berg start {found.name}")
        time.sleep(PAUSE)
        found = look_again(config, found)
    return found


def reopen(config: Config, found: Entry, machine: Machine) -> Entry:
    """Write that a box that is off is stopped, if its state is final; return the box.

    Raises BergError if a person killed it.
    """
    if not (found.stored and found.stored.state.final):
        return found
    metadata = instances.metadata(config, machine) or {}
    if metadata.get(f"berg-kill-{found.name}"):
        raise BergError(f"{found.name} was killed. Delete what is left: berg kill {found.name}")
    before = found.stored.state
    reason = f"it was {before.state}: {before.reason}"
    stopped = replace(before, state=STOPPED, finished_at="", exit_code=None, reason=reason)
    states.replaced(Bucket(config), found.stored, stopped)
    return find(config, found.name)


def wait_for_copies(config: Config, name: str, say: Say) -> None:
    """Wait while Google copies the disk of a box, for a move that broke off.

    Meanwhile it refuses to start the machine, and to delete it.
    """
    for each in instances.snapshots(config, name):
        if each["status"] in instances.UNDER_WAY:
            say(
                f"Waiting: Google is still copying the disk of {name} to the snapshot "
                f"{each['name']}: that takes minutes (Ctrl-C stops waiting)"
            )
            instances.wait_until_made(config, each["name"])


def note_rescue(config: Config, machine: Machine, rescuer: str) -> None:
    """Tell a machine that is off whether to boot without installation and worker."""
    metadata = instances.metadata(config, machine) or {}
    if metadata.get("berg-rescue", "") != rescuer:
        instances.set_metadata(config, machine, "berg-rescue", rescuer)


def turn_on(config: Config, machine: Machine, may_move: bool, say: Say) -> bool:
    """Turn on a machine; return False if its zone has no room and it may move.

    Raises BergError in Google's words if it may not, or if the zone is not the reason.
    """
    try:
        with api.waiting(f"Turning {machine.name} on in {machine.zone}", say):
            instances.start(config, machine)
    except OperationFailed as error:
        why = f"{machine.name} cannot be started in {machine.zone}: {error}"
        if may_move and error.blocks == "zone":
            say(why)
            return False
        raise BergError(
            f"{why}\nIts disk is unchanged. Try again later: berg start {machine.name}\n"
            f"Or move its disk to another zone: berg start --move {machine.name}"
        ) from None
    return True


def wait_until_it_answers(config: Config, claim: "Claim", found: Entry, attempt: int) -> Entry:
    """Wait until a started box runs, in a later attempt than the one before; return it.

    Raises BergError if it goes off again or does not answer, with how to get in.
    """
    began = time.monotonic()
    while True:
        claim.check_held()
        found = look_again(config, found)
        waited = time.monotonic() - began
        if found.machine is None:
            raise BergError(f"the machine of {found.name} is gone: {found.status}")
        if runs_again(found, attempt, waited > BOOTED):
            return found
        check_start(found, waited)
        time.sleep(PAUSE)


def runs_again(found: Entry, attempt: int, installs_long: bool) -> bool:
    """Return whether a box is in a later attempt, and runs or has been installing for long."""
    if not (found.stored and found.machine and found.machine.status == "RUNNING"):
        return False
    state = found.stored.state
    running = ("RUNNING", "INSTALLING") if installs_long else ("RUNNING",)
    return state.attempt > attempt and state.state in running


def check_start(found: Entry, waited: float) -> None:
    """Raise BergError if a box that was started `waited` seconds ago will not run."""
    assert found.machine
    state = found.state or job.State(reason="its state is gone")
    is_off = found.machine.status in OFF
    if is_off or (state.final and (state.state != "LOST" or waited > LOST_WORKER)):
        message = f"{found.name} was started, and does not run: {state.reason}"
    elif waited > BOOTED:
        message = (
            f"{found.name} is on, but it does not answer after {BOOTED} s; its log: "
            f"berg log {found.name}"
        )
    else:
        return
    if "--rescue" not in message:
        off = "" if is_off else f"berg stop --now {found.name} && "
        rescue = f"{off}berg start --rescue {found.name}"
        message += f"\nIts disk is kept. Get in without worker: {rescue}"
    raise BergError(message)


# --- move


def move_disk(config: Config, claim: "Claim", machine: Machine, say: Say) -> None:
    """Create a machine like one that is off in another zone, with a copy of its disk.

    The old machine and disk stay until finish_move. If no zone has room, this raises BergError and
    leaves everything as before.
    """
    instance = instances.describe(config, machine)
    zones = instances.other_zones(config, instance)
    if not zones:
        raise BergError(f"no other zone of the region has machines like {machine.name}")
    try:
        snapshot = copy_of(config, machine, instance, say)
        copied_at = instances.copied_at(config, snapshot)

        def create(zone: str) -> None:
            check_not_run(config, machine, copied_at)
            claim.check()
            say(f"Creating the machine in {zone}")
            body = instances.moved(instance, zone, snapshot, copied_at)
            iam.once_known(config, lambda: instances.insert(config, zone, body, [machine.name]))

        gce.in_turn(zones, create, "Its disk is unchanged", say, lambda: None)
    except BaseException:
        forget_snapshots(config, machine.name, say)
        raise


def check_not_run(config: Config, machine: Machine, copied_at: str) -> None:
    """Raise BergError unless a machine is off, and has been since its disk was copied."""
    instance = instances.describe(config, machine)
    on = instance.get("lastStartTimestamp") or instance["creationTimestamp"]
    if instance["status"] in OFF and copied_at and job.time_of(on) < job.time_of(copied_at):
        return
    raise BergError(
        f"{machine.name} was started in {machine.zone} since its disk was copied "
        f"({copied_at or 'at an unknown time'}): nothing is deleted. See its machines: "
        f"berg list. Delete the one that is not wanted in the console"
    )


def copy_of(config: Config, machine: Machine, instance: dict[str, Any], say: Say) -> str:
    """Return a snapshot of a machine's disk as it is: an earlier attempt's, or a new one."""
    for left in instances.snapshots(config, machine.name):
        if instances.is_current(left, instance):
            say(f"Using the snapshot {left['name']} of an earlier attempt")
            return str(left["name"])
    snapshot = f"{machine.name[:40].rstrip('-')}-move-{secrets.token_hex(4)}"
    say(f"Copying the disk of {machine.name} to the snapshot {snapshot}: that takes minutes")
    try:
        instances.take_snapshot(config, instance, snapshot)
    except OperationFailed as error:
        raise BergError(
            f"the disk of {machine.name} could not be copied: {error}\nIt is unchanged. Try again: "
            f"berg start --move {machine.name}"
        ) from None
    return snapshot


def forget_snapshots(config: Config, name: str, say: Say) -> None:
    """Delete the snapshots of a box's moves, and name those that cannot be deleted yet."""
    for each in instances.delete_snapshots(config, name):
        say(
            f"Google is still creating the snapshot {each}. Continue from it: "
            f"berg start --move {name}\nOr delete it in some minutes: berg reap"
        )


def left_by_move(found: Entry) -> list[Machine]:
    """Return the machines of a box whose disk was moved to another zone: they are off, and the box
    has begun there.
    """
    box = found.machine
    if box is None or found.state is None or found.summary.kind != "devbox":
        return []
    if found.state.zone != box.zone or box.status in COMING:
        return []
    return [each for each in found.machines[1:] if each.name == box.name and each.status in OFF]


def finish_move(config: Config, claim: "Claim", found: Entry, say: Say) -> None:
    """Delete what moves left of a box that runs: its machine and disk elsewhere, and snapshots.

    Raises BergError if the old machine was turned on since, which berg does not do.
    """
    found = find(config, found.name)
    box, state = found.machine, found.state
    if box is None or state is None or state.zone != box.zone:
        return
    left = [each for each in found.machines[1:] if each.name == box.name]
    copied_at = ""
    if left:
        copied_at = (instances.metadata(config, box) or {}).get(instances.COPIED_AT, "")
    for each in left:
        check_not_run(config, each, copied_at)
        claim.check()
        with api.waiting(f"Deleting its machine in {each.zone}", say):
            gce.delete(config, found.name, [each])
        say(f"{found.name} moved to {found.zone}: its machine and disk in {each.zone} are deleted")
    forget_snapshots(config, found.name, say)


# --- what stopped boxes cost


def cost_of(config: Config, machine: Machine) -> str:
    """Return what a stopped machine costs, and until when."""
    prices.latest(config, [prices.region_of(machine.zone)])
    hourly = spending.machine_rate(config, replace(machine, status="TERMINATED"))
    days = config.max_stopped_days
    offered = f"; berg reap offers to delete it after {days} days" if days else ""
    return f"Its disk of {machine.disk_gb} GB costs {a_day(hourly)} until it is deleted{offered}"


def a_day(hourly: float | None) -> str:
    return "an unknown amount" if hourly is None else f"about ${hourly * 24:.2f} a day"


def note_stopped(config: Config, entries: list[Entry]) -> None:
    """Add to each stopped devbox what its disk costs, as far as prices are known, and how to
    continue a move that broke off.
    """
    moved: set[str] = set()
    orphans: list[dict[str, Any]] = []
    if any(each.is_stopped for each in entries):
        moved = {each["labels"]["berg-job"] for each in instances.snapshots(config)}
    if any(map(is_without_machine, entries)):
        orphans = instances.unused_disks(config)
    for each in entries:
        machine = each.machine
        if is_without_machine(each):
            each.about = about_disks(config, each.name, orphans)
        elif left := left_by_move(each):
            zones = ", ".join(old.zone for old in left)
            each.about = (
                f"its old disk in {zones} costs money, too. Delete it: berg start {each.name}"
            )
        elif each.is_stopped and machine and machine.status in OFF:
            each.about = about_stopped(config, each, machine, each.name in moved)


def about_stopped(config: Config, entry: Entry, machine: Machine, is_moved: bool) -> str:
    hourly = spending.machine_rate(config, machine)
    price = "" if hourly is None else f", {a_day(hourly)}"
    about = f"off since {since(entry.state)}; its disk: {machine.disk_gb} GB{price}"
    if is_moved:
        about += f"; its move broke off. Continue: berg start --move {entry.name}"
    return about


def is_without_machine(entry: Entry) -> bool:
    """Return whether a devbox lost its machine, so that its disk may still be there."""
    is_lost = entry.state is not None and entry.state.state == "LOST"
    return is_lost and entry.summary.kind == "devbox" and not entry.machines


def about_disks(config: Config, name: str, unused: list[dict[str, Any]]) -> str:
    """Return what the disks of a box without a machine cost; "" if it has none."""
    rows = [
        spending.disk(config, gce.unused_disk(disk))
        for disk in unused
        if disk.get("labels", {}).get("berg-job") == name
    ]
    texts = [
        f"its disk {row.name} ({row.about}) is still in {row.where} and costs "
        f"{a_day(row.usd_per_hour)}"
        for row in rows
    ]
    return "; ".join([*texts, f"delete it: berg kill {name}"]) if texts else ""


def since(state: job.State | None) -> str:
    """Return when a state began; "" if that is unknown."""
    return state.history[-1][1] if state and state.history else ""


# --- the claim


class Claim:
    """The right to change the power of one machine: of a devbox, or of one for an image."""

    def __init__(self, config: Config, name: str, verb: str):
        self.config, self.name = config, name
        self.bucket = Bucket(config)
        self.path = claim_path(name)
        words = {"verb": verb, "user": config.user, "since": job.now()}
        self.text = json.dumps({**words, "nonce": secrets.token_hex(8)})
        self.generation = 0
        self.is_lost = False
        self.is_over = threading.Event()
        self.writing = threading.Lock()

    def take(self, is_forced: bool, say: Say) -> None:
        """Write the claim when no other command has one; `is_forced` takes it over at once."""
        is_said = False
        while True:
            there = self.bucket.get(self.path)
            if there is None or is_forced or age_of(there) > AGED:
                with contextlib.suppress(Changed):
                    self.write(there.generation if there else 0)
                    return
            elif not is_said:
                is_said = True
                holder = holder_of(there.metadata or {})
                say(f"Waiting: {self.name} is being {holder} (Ctrl-C stops waiting)")
            time.sleep(CLAIM_PAUSE)

    def write(self, generation: int) -> None:
        metadata = {"claim": self.text, "renewed": str(time.time())}
        self.generation = self.bucket.write(self.path, self.text, generation, metadata)

    def renew(self) -> None:
        """Write the claim again, or note that another command took it over."""
        with self.writing:
            try:
                self.write(self.generation)
            except Changed:
                self.is_lost = True

    def keep(self) -> None:
        """Renew the claim until the command ends; an error is left to the next time."""
        while not self.is_over.wait(AGED / 6):
            with contextlib.suppress(Exception):
                self.renew()

    def check(self) -> None:
        """Raise BergError if the claim is lost; called before what cannot be undone."""
        self.renew()
        self.check_held()

    def check_held(self) -> None:
        """Raise BergError if another command is known to have taken the claim over."""
        if self.is_lost:
            raise BergError(
                f"another berg stopped, started or killed {self.name} in the meantime. This "
                "command ends here. See it: berg list"
            )

    def release(self) -> None:
        with self.writing, contextlib.suppress(Changed):
            if not self.is_lost:
                self.bucket.delete_at(self.path, self.generation)


def claim_path(name: str) -> str:
    return f".berg/jobs/{name}_power.json"


def age_of(claim: Listed) -> float:
    """Return for how many seconds a claim was not renewed."""
    return job.clock() - claim.updated.timestamp() if claim.updated else 0


def is_claimed(config: Config, name: str) -> bool:
    """Return whether a command that is alive holds the claim of a machine."""
    there = Bucket(config).get(claim_path(name))
    return there is not None and age_of(there) <= AGED


def holder_of(metadata: dict[str, str]) -> str:
    """Return which command holds a claim, in words."""
    try:
        words = validation.parse(metadata.get("claim", "").encode())
        verb, user, began = (validation.clean(str(words[key])) for key in ("verb", "user", "since"))
    except (ValueError, KeyError):
        return "changed by another berg"
    return f"{verb} by {user} since {began}"


@contextlib.contextmanager
def claimed(
    config: Config, name: str, verb: str, say: Say, is_forced: bool = False
) -> Iterator[Claim]:
    """Hold the claim of a devbox's power while a command runs; `verb` is a participle."""
    claim = Claim(config, name, verb)
    claim.take(is_forced, say)
    threading.Thread(target=claim.keep, daemon=True).start()
    try:
        yield claim
    finally:
        claim.is_over.set()
        claim.release()

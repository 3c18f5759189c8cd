"""Stop devboxes and start them again: the machine goes off, and its disk stays.

The worker on it brings the last results to the bucket and turns the machine off itself, so that
this computer need not stay. A machine that is off has no time limit: it costs its disk until a
person deletes it. From each start Google counts --max-hours anew.

Not covered: boxes of several machines, which know each other by addresses that would change.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from berg import BergError, gce, job, states
from berg.config import Config
from berg.google import accelerators, api, grants, instances, moving, prices, tpus
from berg.google.api import OperationFailed
from berg.google.storage import Bucket, Changed
from berg.inventory import Machine
from berg.job import STOPPED
from berg.laptop import spending, standing
from berg.laptop.jobs import OFF, Entry, find, look_again

ANSWER = 60  # seconds for a worker to begin what it was asked for
GOING = 60  # seconds for a machine to go off once its worker has turned it off
DOWN = 300  # seconds for a machine that Google takes down; programs on it may have 120 of them
SLOW = 5  # seconds after which it is said what is waited for
PAUSE = 0.5  # seconds between two looks
COMING = ("PENDING", "PROVISIONING", "STAGING")  # statuses of a machine that may not come about
Say = Callable[[str], None]


def why_never(kind: str, place: str, num_machines: int, machine_type: str, model: str) -> str:
    """Return why machines like these are not stopped; "" for those that can be.

    `model` is how they are paid for, in the API's words.
    """
    if kind != "devbox":
        return "it is no devbox"
    if place != "gce":
        return "Google knows no stop of pods and of TPU slices"
    if num_machines > 1:
        return "berg stops devboxes of one machine"
    if model == prices.FLEX:
        return "Google does not stop machines of flex-start"
    if machine_type in tpus.MACHINE_TYPES:
        return "Google does not say that machines with TPUs can be stopped"
    if accelerators.has_local_disks(machine_type):
        return f"{machine_type} has local disks, which would be lost"
    return ""


def stop(config: Config, name: str, now: bool, say: Say) -> str:
    """Stop a devbox; return what a person should know then.

    With `now` the machine goes off at once, as Google does it, and its worker has seconds for the
    last results. Raise BergError for what cannot be stopped, or does not answer.
    """
    found = find(config, name)
    machine = check_stop(found, now)
    if machine.status in OFF:
        return f"is stopped already; start it: berg start {name}"
    assert found.state
    asked = f"{config.user} {found.state.attempt}"
    found.place.set_metadata(config, machine, f"berg-stop-{found.name}", asked)
    if now:
        instances.stop(config, machine)
    found = wait_until_off(config, found, say)
    if now:
        write_stopped(config, found)
    return f"stopped. {cost_of(config, machine)}. Start it: berg start {name}"


def check_stop(found: Entry, now: bool) -> Machine:
    """Return the machine of a devbox; raise BergError if it is not to be stopped.

    One whose worker has not begun since the last start can only be stopped `now`.
    """
    state, machine = found.state, found.machine
    if state is None or machine is None:
        raise BergError(f"{found.name} is no devbox with a machine. See them: berg list")
    if state.final:
        raise BergError(f"{found.name} is {found.status}: there is nothing to stop")
    summary = found.summary
    why = why_never(
        summary.kind, summary.place, summary.machines, machine.machine_type, machine.model
    )
    if why:
        raise BergError(f"{found.name} cannot be stopped: {why}. End it: berg kill {found.name}")
    if not summary.max_run_seconds:
        raise BergError(
            f"{found.name} cannot be stopped: an earlier berg started it, whose devboxes end for "
            f"good when they go off, with their disk. End it: berg kill {found.name}"
        )
    if state.state == STOPPED and machine.status not in OFF and not now:
        raise BergError(
            f"{found.name} is just being started or stopped. Try again in a minute, or turn it "
            f"off as it is: berg stop --now {found.name}"
        )
    return machine


def wait_until_off(config: Config, found: Entry, say: Say) -> Entry:
    """Wait until a devbox is off; raise BergError if it ended meanwhile, or does not answer."""
    began = time.monotonic()
    is_slow = False
    stopped_at = None
    while found.machine and found.machine.status not in OFF:
        now = time.monotonic()
        check_answer(found, now - began)
        if now > began + SLOW and not is_slow:
            is_slow = True
            say(f"{found.name} brings its last results to the bucket (Ctrl-C leaves it)")
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
    """Raise BergError if a devbox ended meanwhile, or its worker does not do what it was asked for.

    `waited` is in seconds.
    """
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
    while found.stored and not found.stored.state.final:
        if found.stored.state.state == STOPPED:
            return
        reason = f"stopped by {config.user}, at once"
        stopped = replace(found.stored.state, state=STOPPED, reason=reason, ending="")
        # One that no worker began has had its attempt, too: the next one is not the one stopped.
        stopped.started_at = stopped.started_at or job.now()
        try:
            states.replaced(Bucket(config), found.stored, stopped)
        except Changed:  # its worker wrote a last word meanwhile
            found = find(config, found.name)
            continue
        return


def start(config: Config, name: str, move: bool, say: Say) -> str:
    """Start a devbox that is stopped; return what a person should know then.

    Where its zone has no room and `move` is given, its disk goes to another zone of the region.
    Raise BergError where Google has no room for it, in Google's words; it stays as it is then.
    """
    found = finish_move(config, wait_while_stopping(config, find(config, name), say), say)
    state, machine = found.state, found.machine
    if state is None or machine is None or state.job.kind != "devbox":
        raise BergError(f"{found.name} is no devbox with a machine. See them: berg list")
    if machine.status not in OFF:
        return f"is {machine.status} already. Log in: berg ssh {name}"
    if state.final and state.state != "LOST":
        raise BergError(f"{found.name} is {found.status}: it cannot go on. Another: berg devbox")
    try:
        instances.start(config, machine)
    except OperationFailed as error:
        if not (move and error.blocks == "zone"):
            raise BergError(
                f"{found.name} cannot be started in {machine.zone}: {error}\nIts disk stays as it "
                f"is. Try again later: berg start {name}\nOr bring its disk to another zone: "
                f"berg start --move {name}"
            ) from None
        say(f"{found.name} cannot be started in {machine.zone}: {error}")
        return f"started in {move_disk(config, machine, say)}. Log in: berg ssh {name}"
    return f"started in {machine.zone}. Log in: berg ssh {name}"


def wait_while_stopping(config: Config, found: Entry, say: Say) -> Entry:
    """Wait until a machine that goes down is off or gone, and return what is there then.

    Google refuses to start it before. Raise BergError if it does not go off.
    """
    began = time.monotonic()
    if found.machine and found.machine.status == "STOPPING":
        say(f"{found.name} is just being stopped; it starts when it is off (Ctrl-C leaves it)")
    while found.machine and found.machine.status == "STOPPING":
        if time.monotonic() > began + DOWN:
            raise BergError(f"{found.name} does not go off. Try again: berg start {found.name}")
        time.sleep(PAUSE)
        found = look_again(config, found)
    return found


def move_disk(config: Config, machine: Machine, say: Say) -> str:
    """Make a machine like one that is off in another zone, with its disk, and delete the one here;
    return the zone.

    Raise BergError where no zone has room: all is as before then.
    """
    instance = moving.read(config, machine)
    zones = moving.zones(config, instance)
    if not zones:
        raise BergError(f"no other zone of the region has machines like {machine.name}")
    try:
        snapshot = copy_of(config, machine, instance, say)

        def make(zone: str) -> None:
            say(f"Creating the machine in {zone}")
            body = moving.body(instance, zone, snapshot)
            grants.once_known(config, lambda: instances.insert(config, zone, body, [machine.name]))

        zone = gce.in_turn(zones, make, "Its disk stays as it is", say, lambda: None)
        api.delete(config, instances.path_of(machine), wait_for_it=True)
    finally:
        forget_snapshots(config, machine.name, say)
    return zone


def copy_of(config: Config, machine: Machine, instance: dict[str, Any], say: Say) -> str:
    """Return a snapshot of a machine's disk as it is: what an earlier try left, or a new one."""
    for left in moving.snapshots(config, machine.name):
        if moving.is_current(left, instance):
            say(f"Going on with the snapshot {left['name']} that an earlier try left")
            moving.wait_until_ready(config, left["name"])
            return str(left["name"])
    snapshot = f"{machine.name[:40].rstrip('-')}-move-{secrets.token_hex(4)}"
    say(f"Copying the disk of {machine.name} to the snapshot {snapshot}: that takes minutes")
    moving.take_snapshot(config, instance, snapshot)
    return snapshot


def forget_snapshots(config: Config, name: str, say: Say) -> None:
    """Delete the snapshots of a box's moves, and name what cannot be deleted yet."""
    for each in moving.delete_snapshots(config, name):
        say(
            f"Google still makes the snapshot {each}. Go on from it: berg start --move {name}\n"
            "Or delete it in some minutes: berg reap"
        )


def left_by_move(found: Entry) -> list[Machine]:
    """Return the machines of a box whose disk was brought to another zone: they are off, and their
    deletion did not come about.
    """
    if found.machine is None or found.summary.kind != "devbox":
        return []
    box = found.machine
    if box.status in COMING:  # it may still fail, and its disk with it
        return []
    here = [each for each in found.machines[1:] if each.name == box.name]
    return [each for each in here if each.status in OFF]


def finish_move(config: Config, found: Entry, say: Say) -> Entry:
    """Delete what an earlier `start --move` left that had made the machine elsewhere; return what
    is there then.

    Raise BergError if the machine here was turned on since, which berg does not do.
    """
    end = time.monotonic() + DOWN
    while len(found.machines) > 1 and found.machine and found.machine.status in COMING:
        if time.monotonic() > end:
            raise BergError(f"{found.name} does not come in {found.machine.zone}. Try again later")
        time.sleep(PAUSE)
        found = find(config, found.name)
    for left in left_by_move(found):
        assert found.machine
        on = moving.read(config, left).get("lastStartTimestamp") or left.created_at
        if api.time_of(on) > api.time_of(found.machine.created_at):
            raise BergError(
                f"{found.name} has machines in {left.zone} and {found.machine.zone}, and both have "
                "run on their own. Delete one of them in the console"
            )
        api.delete(config, instances.path_of(left), wait_for_it=True)
        say(f"{found.name} has gone to {found.machine.zone}: what it had in {left.zone} is deleted")
        forget_snapshots(config, found.name, say)
        found = find(config, found.name)
    return found


def cost_of(config: Config, machine: Machine) -> str:
    """Return what a stopped machine costs, and until when, in words."""
    region = spending.region_of(machine.zone)
    prices.latest(config, [region])
    hourly = standing.machine_rate(config, replace(machine, status="TERMINATED"))
    amount = "money, nobody knows how much,"
    if hourly is not None:
        amount = f"about ${hourly * 24:.2f} a day"
    days = config.max_stopped_days
    offered = f", which berg reap offers after {days} days" * bool(days)
    return f"Its disk of {machine.disk_gb} GB costs {amount} until it is deleted{offered}"


def note_stopped(config: Config, entries: list[Entry]) -> None:
    """Say of each stopped devbox what its disk costs, as far as prices were looked up lately, and
    of each whose move to another zone broke off how it goes on.
    """
    moved: set[str] = set()
    if any(each.is_stopped for each in entries):
        moved = {each["labels"]["berg-job"] for each in moving.snapshots(config)}
    for each in entries:
        if left := left_by_move(each):
            zones = ", ".join(machine.zone for machine in left)
            each.about = (
                f"its old disk in {zones} costs money, too. Delete it: berg start {each.name}"
            )
            continue
        machine = each.machine
        if not each.is_stopped or machine is None or machine.status not in OFF:
            continue
        hourly = standing.machine_rate(config, machine)
        price = ""
        if hourly is not None:
            price = f", about ${hourly * 24:.2f} a day"
        each.about = f"off since {since(each.state)}; its disk: {machine.disk_gb} GB{price}"
        if each.name in moved:
            each.about += f"; its move broke off. Go on: berg start --move {each.name}"


def since(state: job.State | None) -> str:
    """Return when a state began, "" if it does not say."""
    if state is None or not state.history:
        return ""
    return state.history[-1][1]

"""A machine that waits for another job (--keep-warm), and what is removed before it does.

Of several machines of one job the first offers all once each has removed what the job left, and
tells them in its record (peers.py) which job they have next. They end when it ends.

What it installed in the system stays, and so do named caches, data sets and container images.
Everything else of the job before goes, and homes are as they were; where that fails, the machine
ends. The job before was root here: this is no wall against its user, who alone may take it.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from berg import BergError, job, states
from berg.google.storage import Changed
from berg.machine import boot, environment, installation, keeper, peers, profile, usage
from berg.machine.attempt import Attempt, Ended

ORIGINAL = boot.BERG / "original"
COPIES, KNOWN = ORIGINAL / "copies", ORIGINAL / "files.json"
LARGE_COPY, MOST_COPIES = 1 << 20, 64 << 20  # bytes of a file, and of all, that are copied
DATA_SETS = boot.ROOT / "data"
CACHES = [".cache/pip", ".cache/uv", ".cache/torch", ".nv", ".triton", ".local/share/uv/python"]
CACHES += [f".cache/huggingface/{name}" for name in ("hub", "datasets", "xet")]
KEPT_FOLDERS = {boot.BERG, DATA_SETS, boot.ROOT / "anaconda3", boot.ROOT / "berg_cache"}
KEPT_FOLDERS |= {installation.ENVIRONMENTS, *(boot.ROOT / name for name in CACHES)}
# Of Berg's own folder: what its next boot needs, or would download again.
OWN = [*installation.KEPT, ORIGINAL.name, "boot.py", "worker.lock", "disk", "app"]
OWN += ["packages", "bin", "tools", "warm-since", "berg-before.json"]
ARCHIVES = (".whl", ".zip")
# Without namespaces, as in some embedded clouds, folders are also the host's.
IS_SHARED = "BERG_ROOT" in os.environ
OF_ALL = ["/home", "/var/spool/cron", "/var/spool/at", "/var/lib/systemd/linger", "/etc/crontab"]
OF_ALL += [f"/etc/cron.{often}" for often in ("d", "hourly", "daily", "weekly", "monthly")]
OF_ALL += [f"/etc/{name}" for name in ("profile.d", "profile", "bash.bashrc", "environment")]
OF_ALL += [f"/etc/{name}" for name in ("hosts", "ld.so.preload", "sudoers.d", "sysctl.d", "ssh")]
OF_ALL += ["/etc/gitconfig", "/etc/pip.conf", "/etc/systemd/user"]
TREES = [boot.ROOT, *map(Path, [] if IS_SHARED else OF_ALL)]
SINCE = boot.BERG / "warm-since"  # for the log of the next job
BEFORE = (boot.BERG if IS_SHARED else Path("/run")) / "berg-before.json"  # gone after a reboot
# systemd-run makes the first
UNITS = ["/run/systemd/transient", "/run/systemd/system", "/etc/systemd/system"]
FOLDERS = ["/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/", "/mnt", "/media", "/srv", *UNITS]
SYSCTL = Path("/proc/sys")
FIREWALLS = ("iptables", "ip6tables")
OF_IPTABLES = ("filter", "nat", "mangle", "raw", "security")
MOST_MB = 1000  # of a GPU's memory that its driver may use
GPU_SECONDS = 20  # for killed processes to leave the GPUs
LOOK = 0.2  # seconds between two looks at the metadata
# The same at the bucket, usually, and while a laptop takes this machine or its time ends.
LOOK_AT_OFFER, LOOK_AGAIN = 10, 1
CLEARED, NEXT = "cleared", "next"  # in a machine's record: it has done so; the job that begins
CLEARING = 180  # seconds for the other machines to do so


def seconds_left(attempt: Attempt) -> float:
    """Return for how long this machine may wait for a job."""
    ran = time.monotonic() - attempt.states.began
    wanted: float = attempt.job.spec.keep_warm
    left = attempt.job.max_run_seconds + wanted - ran - states.LAST_SECONDS
    return max(min(wanted, left), 0)


def has_next(attempt: Attempt) -> bool:
    """Wait for another job until the time in the state; return whether there is one.

    The metadata say then what it is, and the worker that begins next reads them.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    began = time.monotonic()
    try:
        clear(attempt)
        SINCE.write_text(job.now())
        is_taken = Waiting(attempt).ends_with_job() if attempt.leads else follow(attempt)
    except Exception as error:
        boot.console(f"This machine takes no other job: {getattr(error, 'message', error)}")
        is_taken = False
    if not attempt.leads:
        return is_taken
    attempt.states.began += time.monotonic() - began  # the job did not run meanwhile
    with contextlib.suppress(Ended):  # a laptop that ended the waiting wrote the same
        attempt.insist(lambda: attempt.states.write(kept_until=job.now()), 5)
    return is_taken


class Waiting:
    """An offer in the bucket, until a job takes it or its time ends."""

    def __init__(self, attempt: Attempt):
        self.machine, self.bucket, self.member = attempt.machine, attempt.bucket, attempt.member
        if not self.member.is_alone:
            wait_for_others(self.member)
        machine, number = self.machine, str(self.machine.instance()["id"])
        about = machine.name, machine.zone, number, attempt.name
        times = job.now(), attempt.state.kept_until
        self.offer = states.Offer(*about, *times, self.member.job.num_machines)
        there = self.bucket.get(self.offer.path)
        generation = there.generation if there else 0
        self.generation = states.write_offer(self.bucket, self.offer, generation)
        self.claimed_at = 0.0  # by time.monotonic()

    def ends_with_job(self) -> bool:
        """Wait; return whether a job took this machine, which has to end otherwise."""
        known, looked_at = "", time.monotonic()
        while True:
            wanted, is_over = wanted_by(self.machine), job.age_seconds(self.offer.until) > 0
            pause = LOOK_AGAIN if wanted or is_over else LOOK_AT_OFFER
            if wanted != known or time.monotonic() > looked_at + pause:
                known, looked_at = wanted, time.monotonic()
                self.look()
                is_for_it = self.offer.is_for(wanted)
                if self.begins() if is_for_it else (self.may_end(is_over) and self.end()):
                    return is_for_it
            time.sleep(LOOK)

    def may_end(self, is_over: bool) -> bool:
        return self.offer.is_withdrawn or (is_over and not self.offer.claimed_by)

    def look(self) -> None:
        """Read the offer. One whose laptop claimed it and fell silent is made again."""
        if not self.member.is_alone:
            check_others(self.member, peers.phases(self.member))
        there = self.bucket.get(self.offer.path)
        if there is None:
            raise BergError("its offer was deleted")
        if there.generation != self.generation:
            self.generation, self.claimed_at = there.generation, time.monotonic()
        found = states.read_offer(there)
        self.offer = replace(
            self.offer,
            claimed_by=found.claimed_by,
            is_taken=found.is_taken,
            is_withdrawn=found.is_withdrawn,
        )
        if found.claimed_by and time.monotonic() > self.claimed_at + states.CLAIM_SECONDS:
            again = replace(self.offer, claimed_by="")
            with contextlib.suppress(Changed):
                self.generation = states.write_offer(self.bucket, again, self.generation)
                self.offer = again

    def begins(self) -> bool:
        """Tell the laptop that its job begins; return False if it changed the claim meanwhile."""
        taken = replace(self.offer, is_taken=True)
        try:
            states.write_offer(self.bucket, taken, self.generation)
        except Changed:
            return False
        if not self.member.is_alone:
            with contextlib.suppress(Exception):  # the job has begun, and fails without the others
                peers.announce(self.member, **{NEXT: taken.claimed_by})
        return True

    def end(self) -> bool:
        """Delete the offer as it was seen; return whether no laptop changed it meanwhile."""
        try:
            self.bucket.delete_at(self.offer.path, self.generation)
        except Changed:
            return False
        return True


def wanted_by(machine: boot.Machine) -> str:
    """Return the job that a machine's metadata name; "" for the one before."""
    attributes = machine.instance()["attributes"]
    if attributes.get("berg-kill-" + machine.job):
        raise BergError("it was killed")
    found = str(attributes.get("berg-job", ""))
    return "" if found == machine.job else found


def follow(attempt: Attempt) -> bool:
    """Wait on a machine that does not lead; return whether the first one took a job for all, False
    once that is gone.
    """
    member = attempt.member
    attempt.insist(lambda: peers.announce(member, **{CLEARED: "yes"}), CLEARING)
    first, known, looked_at = peers.first_machine(member), "", time.monotonic()
    while True:
        wanted = wanted_by(attempt.machine)
        pause = LOOK_AGAIN if wanted else LOOK_AT_OFFER
        if wanted != known or time.monotonic() > looked_at + pause:
            known, looked_at = wanted, time.monotonic()
            blobs = peers.phases(member)
            if wanted and first in blobs and blobs[first].metadata.get(NEXT) == wanted:
                return True
            living = [each for each in peers.living(member) if each not in member.silent]
            if first not in living:
                peers.lead_if_first(member, living)  # and delete the others
                return False
        time.sleep(LOOK)


def wait_for_others(member: peers.Member) -> None:
    """Wait until the other machines of the job are ready for another one; raise BergError if one is
    gone, or takes too long.
    """
    end = time.monotonic() + CLEARING
    while True:
        blobs = peers.phases(member)
        check_others(member, blobs)
        others = {*peers.names_of(member.machine, member.job)} - {member.machine.name}
        if all(CLEARED in blobs[each].metadata for each in others):
            return
        if time.monotonic() > end:
            raise BergError("another machine of its job did not get ready for one")
        time.sleep(LOOK_AGAIN)


def check_others(member: peers.Member, blobs: dict[str, Any]) -> None:
    """Raise BergError if a machine of the job is gone."""
    living = peers.living(member)
    for name in peers.names_of(member.machine, member.job):
        if name not in living or name not in blobs or name in member.silent:
            raise BergError(peers.absence(member, name))


# --- what is removed


def begin(attempt: Attempt) -> None:
    """Say that a job is on a warm machine. Note what there is before the first job of one, but not
    after a reboot, when its files are there.
    """
    if attempt.machine.warm == attempt.name and SINCE.exists():
        attempt.say(f"This machine has been warm since {SINCE.read_text()}")
    if attempt.job.spec.keep_warm and not ORIGINAL.exists():
        processes = [process for process, _, _ in keeper.living()]
        files = [str(each) for name in FOLDERS for each in Path(name).glob("*")]
        found = {"mounts": mounts(), "processes": processes, "files": files}
        found |= {"rules": rules(), "nft": nft(), "settings": settings()}
        BEFORE.write_text(json.dumps(found))
        note_files(mounts())


def clear(attempt: Attempt) -> None:
    """Remove what a job and people left on this machine; raise an error if something stays."""
    if not BEFORE.exists():
        raise BergError("it was restarted, so that what the job left is not known")
    before: dict[str, Any] = json.loads(BEFORE.read_text())
    if shutil.which("docker"):
        clear_docker()
    if boot.SYSTEMD.is_dir() and (units := new_units(before["files"])):
        printed("systemctl", "stop", *units)  # else their processes count as the system's
    end_processes(before["processes"])
    if attempt.job.gpus_per_machine:
        check_gpus(are_there=not attempt.machine.endpoint)
    environment.empty_scratch()
    for point in reversed(mounts()):
        if point not in before["mounts"]:
            printed("umount", "-l", point)
    restore_rules(before["rules"], before["nft"])
    restore_settings(before["settings"])
    delete_files(attempt, before)


def clear_docker() -> None:
    """Remove containers and volumes; images stay."""
    for what, kind in ((["ps", "-aq"], []), (["volume", "ls", "-q"], ["volume"])):
        if there := printed("docker", *what).split():
            printed("docker", *kind, "rm", "-f", *there)


def delete_files(attempt: Attempt, before: dict[str, Any]) -> None:
    """Delete the checkout, results, secrets, keys and all else that is not to stay; raise an error
    if it stays.
    """
    marker = attempt.marker  # made before anything of the job ran
    forget_changed_data(marker.stat().st_mtime_ns if marker.exists() else 0)
    attempt.clear()
    restore_files(before["mounts"])
    if not IS_SHARED:
        empty_folders(before["files"])
        if shutil.which("ipcrm"):
            printed("ipcrm", "--all")  # shared memory without a file


def printed(*words: str, given: str = "") -> str:
    """Return what a program prints; raise BergError if it fails."""
    pipe, seconds = subprocess.PIPE, 120
    done = subprocess.run(
        words, input=given, stdout=pipe, stderr=subprocess.STDOUT, text=True, timeout=seconds
    )
    if done.returncode:
        raise BergError(f"{words[0]} failed: {done.stdout.strip()[:200]}")
    return done.stdout


def mounts() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4].replace("\\040", " ") for line in lines]


def rules() -> dict[str, dict[str, str]]:
    """Return the firewall rules by program and table, without empty tables; none without systemd,
    where they are the host's.
    """
    there = [each for each in FIREWALLS if shutil.which(f"{each}-save")]
    found = {each: tables(printed(f"{each}-save")) for each in there if boot.SYSTEMD.is_dir()}
    return {each: found[each] for each in found if found[each]}


def tables(text: str) -> dict[str, str]:
    """Return the tables of `iptables-save` as `iptables-restore` takes them, without counts."""
    found = {}
    for part in re.findall(r"^\*.*?^COMMIT\n", text, re.M | re.S):
        lines = re.sub(r" \[\d+:\d+\]$", "", part, flags=re.M)
        if part != emptied(part) or re.search("^:.* DROP", lines, re.M):
            found[lines.partition("\n")[0]] = lines
    return found


def emptied(table: str) -> str:
    """Return a table without rules, and without chains of its own, which have no policy."""
    lines = [each for each in table.splitlines() if each[0] in "*:C" and " - " not in f"{each} "]
    return "\n".join(lines) + "\n"


def nft() -> str:
    """Return the rules of nftables, which iptables does not show all; "" without its program."""
    is_there = boot.SYSTEMD.is_dir() and shutil.which("nft")
    return printed("nft", "--stateless", "list", "ruleset") if is_there else ""


def restore_rules(before: dict[str, dict[str, str]], ruleset: str) -> None:
    """Restore the firewall's rules; raise BergError if others stay, as those of nftables do."""
    for program, now in rules().items():
        gone = {each: emptied(now[each]).replace(" DROP", " ACCEPT") for each in now}
        printed(f"{program}-restore", given="".join((gone | before.get(program, {})).values()))
    for program in {*before} - {*rules()}:
        printed(f"{program}-restore", given="".join(before[program].values()))
    if rules() != before or nft_tables(nft()) != nft_tables(ruleset):
        raise BergError("firewall rules stay that the job made")


def nft_tables(ruleset: str) -> list[str]:
    """Return the tables that have rules of their own: iptables' are compared by its programs."""
    found = re.split(r"^(?=table )", ruleset, flags=re.M)
    named = [(each, each.split(maxsplit=4)) for each in found if each.startswith("table ")]
    return [
        text
        for text, words in named
        if words[1] not in ("ip", "ip6") or words[2] not in OF_IPTABLES
    ]


def settings() -> dict[str, str]:
    """Return the kernel's settings that can be written; none without systemd, as above."""
    found = {}
    for each in SYSCTL.rglob("*") if boot.SYSTEMD.is_dir() else ():
        with contextlib.suppress(OSError, ValueError):
            mode = each.stat().st_mode
            if each.is_file() and mode & 0o600 == 0o600 and "binfmt_misc" not in each.parts:
                found[str(each)] = each.read_text()
    return found


def restore_settings(before: dict[str, str]) -> None:
    now = settings()
    for name in now:
        if name in before and now[name] != before[name]:
            Path(name).write_text(before[name])


def empty_folders(before: list[str]) -> None:
    """Empty the folders that all programs share, but for what there was before, and is of services
    that have begun since.
    """
    for each in [path for name in FOLDERS for path in Path(name).glob("*")]:
        if str(each) not in before and not each.name.startswith("systemd-private-"):
            delete(each)


def delete(path: Path) -> None:
    """Delete a file, link or folder if that is possible; leave what is mounted."""
    if path.is_dir() and not (path.is_symlink() or path.is_mount()):
        shutil.rmtree(path, ignore_errors=True)
    elif not path.is_mount():
        with contextlib.suppress(OSError):
            path.unlink()


def new_units(before: list[str]) -> list[str]:
    """Return the services, timers and logins that began since. No name is spared: a job chooses
    those of its own.
    """
    found = [each for folder in UNITS for each in Path(folder).glob("*.*") if each.is_file()]
    return [each.name for each in found if str(each) not in before]


def end_processes(before: list[int]) -> None:
    """Kill what jobs and people left; raise BergError if some of it stays."""
    end = time.monotonic() + keeper.KILL_SECONDS
    while there := strangers(before):
        if time.monotonic() > end:
            raise BergError(f"process {there[0]} does not end")
        for process in there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(keeper.POLL)


def strangers(before: list[int]) -> list[int]:
    """Return the processes of jobs and people: all but this worker, what it is below, what there
    was `before`, the kernel's and the system's services.
    """
    parents = {process: parent for process, parent, _ in keeper.living()}
    ours, process = {*before}, os.getpid()
    while process:
        ours.add(process)
        process = parents.get(process, 0)
    return [each for each in parents if each not in ours and is_strange(each)]


def is_strange(process: int) -> bool:
    folder = Path(f"/proc/{process}")
    try:
        (folder / "exe").readlink()  # the kernel's threads have none
        if IS_SHARED:
            mine = f"BERG_ROOT={boot.ROOT}".encode()
            return mine in (folder / "environ").read_bytes().split(b"\0")
        group = (folder / "cgroup").read_text().rpartition(":")[2].strip()
    except OSError:
        return False
    is_service = group.startswith(("/system.slice/", "/init.scope"))
    return "/berg.service" in group or not is_service


def check_gpus(are_there: bool) -> None:
    """Wait until no GPU is used; raise BergError if one still is, failed, or does not answer though
    they `are_there`: the embedded cloud's machines have none.
    """
    if shutil.which("dmesg") and (errors := profile.errors_in(printed("dmesg"))):
        raise BergError(f"a GPU failed: {errors.splitlines()[-1]}")
    end = time.monotonic() + GPU_SECONDS
    while used := gpus_in_use(are_there):
        if time.monotonic() > end:
            raise BergError(f"{used[0]} still in use")
        time.sleep(1)


def gpus_in_use(are_there: bool) -> list[str]:
    """Return what is in use of which GPU, in words that lack the end of their sentence."""
    found = {each["index"]: each["memory_mb"] or 0 for each in usage.gpus()}
    if usage.stuck or (are_there and not found):
        return ["nvidia-smi does not answer, and the GPUs may be"]
    return [f"{found[each]} MB of GPU {each} are" for each in found if found[each] > MOST_MB]


# --- the folders in which jobs and people leave files, as they were before a machine's first job
#
# What is new there goes; what was changed or deleted is put back from a copy. Named caches stay as
# they are: they make the next job quick. Data sets keep the files that were only read.


def note_files(mounted: list[str]) -> None:
    """Copy small files, and note of all when they changed; leave what is mounted, and caches."""
    shutil.rmtree(ORIGINAL, ignore_errors=True)
    COPIES.mkdir(parents=True)
    known, room = {}, MOST_COPIES
    for path in sorted(all_files(mounted), key=lambda path: len(path.parts)):
        known[str(path)] = stamp = stamp_of(path)
        size = path.lstat().st_size
        if is_copied(stamp[0]) and size <= min(LARGE_COPY, room):
            room -= size
            copy = COPIES / path.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy, follow_symlinks=False)
    KNOWN.write_text(json.dumps(known))


def restore_files(mounted: list[str]) -> None:
    """Make all as it was noted; raise BergError or OSError if that cannot be done."""
    known: dict[str, list[int]] = json.loads(KNOWN.read_text())
    for path in all_files(mounted):
        if known.get(str(path)) != stamp_of(path):
            remove(path)
    for name, stamp in sorted(known.items()):  # a folder before what is in it
        path = Path(name)
        if not os.path.lexists(path):
            put_back(path, stamp[0])
        if stamp_of(path) != stamp and not path.is_symlink():
            os.chown(path, *stamp[1:3])
            path.chmod(stat.S_IMODE(stamp[0]))
    for path in boot.BERG.iterdir():
        if not (path.name in OWN or path.name.startswith("uv") or path.suffix in ARCHIVES):
            for each in below(path, set()):
                remove(each)
    note_files(mounted)


def all_files(mounted: list[str]) -> Iterator[Path]:
    """Yield all files and folders, what is in a folder before the folder."""
    spared = KEPT_FOLDERS | {*map(Path, mounted)} - {*TREES}
    for tree in filter(os.path.lexists, TREES):
        yield from below(tree, spared)


def below(path: Path, spared: set[Path]) -> Iterator[Path]:
    if path in spared:
        return
    if path.is_dir() and not path.is_symlink():
        for each in [*path.iterdir()]:
            yield from below(each, spared)
    yield path


def stamp_of(path: Path) -> list[int]:
    """Return what changes with a file; no program can set the last of it back."""
    seen = path.lstat()
    times = [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns]
    return [seen.st_mode, seen.st_uid, seen.st_gid, *([] if path.is_dir() else times)]


def is_copied(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def remove(path: Path) -> None:
    """Delete a file, a link, or a folder in which nothing stays."""
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(OSError):  # a cache or a mount is in it
            path.rmdir()
    else:
        path.unlink(missing_ok=True)


def put_back(path: Path, mode: int) -> None:
    copy = COPIES / path.relative_to("/")
    if stat.S_ISDIR(mode):
        path.mkdir()
    elif os.path.lexists(copy):
        shutil.copy2(copy, path, follow_symlinks=False)
    elif is_copied(mode):
        raise BergError(f"{path} was changed or deleted, and there is no copy")


def forget_changed_data(since_ns: int) -> None:
    """Delete from the data sets what was changed or added since then, in ns since 1970."""
    for path in below(DATA_SETS, set()) if os.path.lexists(DATA_SETS) else ():
        if path.is_dir() or path.lstat().st_ctime_ns > since_ns:
            remove(path)

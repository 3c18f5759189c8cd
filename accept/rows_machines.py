"""Rows about what costs money or holds somebody's work: machines, disks of devboxes, budgets.

Faults hold a request of a laptop, so that it is killed, stopped or overtaken in the middle of a
command: `held` is the way to all of these rows.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import requests

from accept.suite import Missing, all_hold, check, row
from accept.world import FINAL, Laptop, Trial

RAN = 'echo x > "$BERG_RESULTS_DIR/ran-$(date +%s%N)"'  # a file for each time that it runs
NO_ANSWER = {1, 130}  # exit codes of a question that nobody has answered with yes
OURS = r"/root/berg|berg[./-](worker|boot)"  # command lines of Berg's processes on a machine


def runs(t: Trial, job: str) -> int:
    """How often a command with RAN has run, by the bucket."""
    return sum("ran-" in path for path in t.results(job))


def check_ran_once(t: Trial, job: str) -> None:
    t.ended(job, "SUCCEEDED")
    check(runs(t, job) == 1, f"{job} ran {runs(t, job)} times")
    t.gone()


# --- laptops that are held, sleep, or are two


def held(t: Trial, words: list[str], method: str, **fault: Any) -> subprocess.Popen[str]:
    """A berg that waits for the answer to a request of this kind, or has ended without one."""
    t.cloud.control("DELETE", "faults")
    t.cloud.fault(method, **{"delay": 3, "after_handler": True, **fault})
    process = t.laptop.start(*words, cwd=t.repo)

    def is_held() -> bool:
        hits = sum(each["hits"] for each in t.cloud.control("GET", "faults")["faults"])
        return hits > 0 or process.poll() is not None

    t.until(is_held, f"a request {method}", 60, every=0.02)
    return process


def asleep(
    t: Trial, words: list[str], method: str, skip: int = 0, **fault: Any
) -> subprocess.Popen[str]:
    """A laptop that was closed in the middle of a command, after this request."""
    process = held(t, words, method, skip=skip, **fault)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGSTOP)
    t.ending.callback(end, t, process, 1)
    return process


def end(t: Trial, process: subprocess.Popen[str], seconds: float = 240) -> int:
    """Wake a berg and wait for its end; its exit code."""
    if process.stdout and process.stdout.closed:
        return process.returncode
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGCONT)
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        err += "\nthe suite ended it"
    t.told.append((out[-700:] + err[-1500:]).strip())
    check("Traceback (most recent call last)" not in err, "a traceback")
    return process.returncode


def wake(t: Trial, sleepers: Iterable[subprocess.Popen[str]], since: float) -> None:
    """Open laptops again, 75 s after this time, and wait for the ends of their commands."""
    time.sleep(max(0, since + 75 - time.monotonic()))
    for sleeper in sleepers:
        end(t, sleeper)


def together(
    t: Trial, *commands: list[str], match: str = "", laptop: Laptop | None = None
) -> list[int]:
    """Exit codes of commands that start at once; two that write such an object meet there."""
    if match:
        t.cloud.fault("storage.objects.insert", match=match, together=2, times=2)
    started = [(laptop or t.laptop).start(*words, cwd=t.repo) for words in commands]
    return [end(t, process) for process in started]


# --- disks


def machine(t: Trial, name: str) -> dict[str, Any]:
    """The instance of exactly this name; {} if there is none."""
    return next((each for each in t.named("instances") if each["name"] == name), {})


@contextlib.contextmanager
def unharmed(t: Trial, *boxes: str) -> Iterator[None]:
    """Machines and disks of these devboxes are the same ones afterwards."""

    def ids(kind: str) -> dict[str, str]:
        return {each["selfLink"]: each["id"] for each in t.cloud.listed(kind)}

    before = {link: found for link, found in ids("instances").items() if link.endswith(boxes)}
    sources = [disk["source"] for box in boxes for disk in machine(t, box)["disks"]]
    disks = ids("disks")
    before.update({link: disks[link] for link in sources if link in disks})
    check(len(before) >= 2 * len(boxes), f"a devbox without machine or disk: {before}")
    yield
    after = {**ids("instances"), **ids("disks")}
    lost = [link.split("/zones/")[-1] for link in before if after.get(link) != before[link]]
    check(not lost, f"gone: {', '.join(lost)}")


DAMAGE = [b"garbage {", b'{"format": 999}', b'{"format": 1, "name": 7, "feature": {"new": []}}']


def damage(t: Trial, names: list[str], content: bytes | None) -> None:
    """Replace or delete objects; one may be written once a second."""

    def is_done(name: str) -> bool:
        with contextlib.suppress(requests.HTTPError):
            t.cloud.remove(name) if content is None else t.cloud.write(name, content)
            return True
        return False

    for name in names:
        t.until(lambda name=name: is_done(name), "a write", 20)


def taken_name(t: Trial, words: list[str], contents: list[bytes | None]) -> None:
    box = t.devbox()
    records = [*t.cloud.objects(f".berg/jobs/{box}_")]
    check(records, f"{box} has no records")
    with unharmed(t, box):
        for content in contents:
            damage(t, records, content)
            began = time.monotonic()
            t.refused(*words, "-g", "0", "-n", box, timeout=300)
            took = time.monotonic() - began
            check(took < 30, f"refused only after {took:.0f} s")


for verb in (["run", "true"], ["devbox"]):
    for how, contents in {"gone": [None], "damaged": DAMAGE}.items():
        row(
            "disks",
            "a submit of a devbox's name is refused at once and takes nothing, whatever its records",
            name=f"{verb[0]} over a devbox whose records are {how}",
            words=verb,
            contents=contents,
        )(taken_name)


@row("disks", "killing and removing a job touches no devbox of a similar name")
def similar_names(t: Trial) -> None:
    job = t.run("sleep 300", "-m", "2", name="a-1")
    boxes = t.devbox("a"), t.devbox("a-1-2")
    t.until_state(job, "RUNNING")
    with unharmed(t, *boxes):
        t.ok("kill", "-y", job)
        t.ok("rm", "-y", job)
    check({machine(t, box)["status"] for box in boxes} == {"RUNNING"}, "a devbox went off")


def is_off(t: Trial, box: str) -> None:
    t.until(lambda: machine(t, box)["status"] == "TERMINATED", f"{box} off", 120)


def console_stop(t: Trial, box: str) -> None:
    t.cloud.compute(f"{t.cloud.path(machine(t, box))}/stop", "POST")


def boot_fails(t: Trial, box: str) -> None:
    """Whatever Berg starts on the machine is killed for a while, and then the power is cut."""
    t.ok("stop", box)
    starting = t.laptop.start("start", box, cwd=t.repo)
    t.until(lambda: machine(t, box)["status"] == "RUNNING", "a start", 60)
    for _ in range(40):
        t.kill_processes(machine(t, box), OURS)
        time.sleep(0.1)
    t.power(box, "crash")
    end(t, starting, 60)


# What happens to a devbox, and whether it is off then.
TROUBLE: dict[str, tuple[Callable[[Trial, str], Any], bool]] = {
    "rm": (lambda t, box: t.berg("rm", "-y", box), False),
    "stop": (lambda t, box: t.ok("stop", box), True),
    "stop now": (lambda t, box: t.ok("stop", "--now", box), True),
    "console": (console_stop, True),
    "power": (lambda t, box: t.power(box, "crash"), True),
    "preemption": (lambda t, box: t.power(box, "preempt"), True),
    "worker": (lambda t, box: t.kill_worker(box) or time.sleep(10), False),
    "boot": (boot_fails, True),
    "limit": (lambda t, box: None, True),
}


def file_stays(t: Trial, how: list[str], more: tuple[str, ...]) -> None:
    box = t.devbox("box", *more)
    t.ok("ssh", box, "--", "echo mine > /root/mine; sync")
    for what in how:
        with unharmed(t, box):
            act, goes_off = TROUBLE[what]
            act(t, box)
            if goes_off:
                is_off(t, box)

            def reads() -> bool:
                """The file is there; the devbox is started if it is off."""
                if machine(t, box)["status"] not in ("RUNNING", "TERMINATED"):
                    return False
                if machine(t, box)["status"] == "TERMINATED":
                    t.ok("start", box)
                return t.berg("ssh", box, "--", "cat /root/mine").out == "mine\n"

            t.until(reads, f"the file after {what}", 90, every=2)


for name, (how, more) in {
    "a file outlives stops": (["rm", "stop", "console"], ()),
    "a file outlives a stop at once and rm": (["stop now", "rm"], ()),
    "a file outlives a power loss": (["power"], ()),
    "a file outlives a dead worker": (["worker"], ()),
    "a file outlives a boot that fails": (["boot"], ()),
    "a file outlives a preemption": (["preemption"], ("--spot",)),
    "a file outlives the time limit": (["limit"], ("--max-hours", "0.02")),
}.items():
    row("disks", "a file on a devbox is there after trouble", name=name, how=how, more=more)(
        file_stays
    )


@row(
    "disks",
    "no command deletes a devbox whose records are damaged or missing without naming it and asking",
)
def reap_without_records(t: Trial) -> None:
    box = t.devbox()
    t.ok("stop", box)
    names = [*t.cloud.objects(f".berg/jobs/{box}_")]
    for content in (DAMAGE[0], None):
        damage(t, names, content)
        with unharmed(t, box):
            for command in ("list", "doctor", "reap"):
                t.berg(command)
            t.berg("reap", stdin="n\n")
    done = t.berg("reap", "-y")
    check(machine(t, box) or box in done.out + done.err, f"{box} went unnamed")


@row("disks", "berg kill of a devbox asks, and without an answer nothing goes")
def kill_asks(t: Trial) -> None:
    box = t.devbox()
    with unharmed(t, box):
        codes = [t.berg("kill", box).code, t.berg("kill", "--now", box, stdin="n\n").code]
    check(0 not in codes, f"exit codes {codes}")
    t.ok("kill", "-y", box)
    t.gone()


@row("disks", "killing another user's job or devbox asks, names the owner, and takes no silence")
def kill_of_a_colleagues(t: Trial) -> None:
    other = t.colleague("grace")
    box, job = t.name("box"), t.name("job")
    for words in (["devbox", "-g", "0", "-n", box], ["run", "-g", "0", "-n", job, "sleep 200"]):
        check(other(*words, cwd=t.repo).code == 0, f"a colleague cannot {words}")
    with unharmed(t, box):
        for words in (["kill"], ["kill", "--now"]):
            for name in (box, job):
                t.refused(*words, name, codes=NO_ANSWER, says="grace")
    check(t.state(job)["state"] not in FINAL and t.machines(job), "the job ended")


def slept_over_a_new_box(t: Trial, words: list[str], steps: list[tuple[str, int]]) -> None:
    """The machine is known to the sleeper, so that its id tells it from the new one."""
    box, other, verb = t.name("box"), t.colleague(""), words[0]
    if verb == "reap":  # it is to delete what a power loss left, and the new one has that name
        t.until_state(t.run("sleep 600", name="box"), "RUNNING")
        t.power(box, "crash")
    elif verb != "devbox":
        t.devbox()
    if verb == "start":
        t.ok("stop", box)
    sleepers = [asleep(t, words + [box] * (verb != "reap"), *step) for step in steps]
    since = time.monotonic()
    t.cloud.control("DELETE", "faults")
    for word in ("kill", "rm"):
        other(word, "-y", box, cwd=t.repo)
    t.gone()
    done = other("devbox", "-g", "0", "-n", box, cwd=t.repo)
    check(done.code == 0, f"no second devbox of the name: {done.last}")
    t.until_state(box, "RUNNING")
    if verb == "start":
        t.ok("stop", box)
    before = machine(t, box)["status"]
    with unharmed(t, box):
        wake(t, sleepers, since)
        time.sleep(3)
    found = [each["status"] for each in t.machines()]
    check(verb == "stop" or found == [before], f"the new one, {before} before, is {found}")


STEPS = [("compute.instances.*", skip) for skip in range(3)]
SUBMIT = ["devbox", "-g", "0", "-n"]
for name, (words, steps) in {
    "kill": (["kill", "-y"], STEPS),
    "kill now": (["kill", "-y", "--now"], STEPS),
    "stop": (["stop"], STEPS[:2]),
    "stop now": (["stop", "--now"], STEPS[:2]),
    "start": (["start"], STEPS),
    "reap": (["reap", "-y"], [*STEPS, ("compute.disks.*", 0), ("storage.*", 0)]),
    "submit before its machine": (SUBMIT, [("compute.*", 3)]),
    "submit with its machine": (SUBMIT, [("compute.zoneOperations.*", 0)]),
}.items():
    row(
        "disks",
        "a laptop that slept in a command takes nothing of a devbox that was made meanwhile",
        name=f"a {name} that slept",
        words=words,
        steps=steps,
        minutes=7,
    )(slept_over_a_new_box)


# --- machines: their ends


def worker_killed(t: Trial, phase: str) -> None:
    is_late = phase == "UPLOADING"
    ends = {"UPLOADING": ["SUCCEEDED"], "RUNNING": ["FAILED"]}.get(phase, ["FAILED", "SUCCEEDED"])
    if is_late:
        t.cloud.fault("storage.objects.insert", match=f"{t.name()}/last", delay=8)
    wait = "" if is_late else "; echo ready; sleep 30"
    options = ["--install", "sleep 8"] * (phase == "INSTALLING")
    job = t.run(f'{RAN}; echo last > "$BERG_RESULTS_DIR/last"{wait}', *options)
    if phase == "RUNNING":
        t.until_log(job, "ready")
    elif phase != "STARTING":
        t.until_state(job, phase)
    t.kill_worker(job)
    state = t.ended(job, *ends, seconds=180)
    t.gone()
    if phase in ("RUNNING", "UPLOADING") or state["state"] == "SUCCEEDED":
        check(runs(t, job) == 1, f"the command ran {runs(t, job)} times")
        check(t.results(job).get("last") == b"last\n", "the last result is not in the bucket")
    check(not is_late or state["exit_code"] == 0, f"exit code {state['exit_code']}")


for phase in ("STARTING", "INSTALLING", "RUNNING", "UPLOADING"):
    row(
        "machines",
        "a job whose worker dies ends, with the results so far, and its machine goes",
        name=f"worker killed while {phase}",
        phase=phase,
    )(worker_killed)


@row(
    "machines",
    "a job whose machine lost its power is found lost, and nothing of it is left",
    minutes=9,
)
def power_loss(t: Trial) -> None:
    job = t.run(f"{RAN}; echo ready; sleep 600")
    t.until_log(job, "ready")
    t.until(lambda: runs(t, job), "the first result", 60)
    t.power(job, "crash")
    done = t.berg("wait", job, timeout=480)
    rows = {each["name"]: each["state"] for each in t.ok("list", "--json").json}
    states = {t.shown(job)["state"], rows.get(job)}
    all_hold(
        {
            "berg wait says that it succeeded": done.code != 0,
            f"its state is {states}": states <= {"LOST", "FAILED"},
            "its result is missing": runs(t, job) == 1,
        }
    )
    t.berg("reap", "-y")
    t.gone()


@row(
    "machines",
    "a Spot job goes on with its results after a preemption and a power loss, without the laptop",
)
def spot(t: Trial) -> None:
    count = "cd $BERG_RESULTS_DIR; echo x >> n; test $BERG_ATTEMPT = 3 && exit 0"
    job = t.run(f"{count}; sleep 25; echo try $BERG_ATTEMPT; sleep 600", "--spot")
    for attempt, what in ((1, "preempt"), (2, "crash")):
        t.until_log(job, f"try {attempt}")
        check(len(t.machines(job)) == 1, "more than one machine")
        t.power(t.machines(job)[0]["name"], what, **({"grace": 15} if what == "preempt" else {}))
    state = t.ended(job, "SUCCEEDED", seconds=240)
    check(state["attempt"] == 3, f"attempt {state['attempt']}")
    lines = t.results(job)["n"]
    check(lines == b"x\n" * 3, f"three attempts have written {lines!r}")
    t.gone()


@row("machines", "of two machines one is lost: the job fails, names it, and all go", minutes=9)
def rank_lost(t: Trial) -> None:
    job = t.run("echo ready; sleep 600", "-m", "2")
    t.until_log(job, "ready")
    victim = t.machines(job)[-1]["name"]
    t.power(victim, "crash")
    state = t.ended(job, "FAILED", seconds=300)
    check(re.search(rf"{victim}|rank|machine", state["reason"]), f"names none: {state['reason']}")
    t.gone(120)


@row("machines", "no machine outlives --max-hours, whatever still works on it", minutes=7)
def limit(t: Trial) -> None:
    t.cloud.settings(grace=20)  # Google's two minutes are long
    jobs = [t.name(word) for word in ("plain", "cut", "frozen")]
    for job in jobs:
        t.run(f"{RAN}; sleep 600", "--max-hours", "0.025", name=job)
    for job in jobs:
        t.until(lambda job=job: runs(t, job), "the first result", 60)
    t.power(jobs[1], "cut")
    t.kill_processes(machine(t, jobs[2]), OURS, signal.SIGSTOP)
    t.until(lambda: not t.machines(), "the end of the machines", 150, every=1)
    t.ended(jobs[0], "FAILED", seconds=5)


@row("machines", "Google ends each machine that Berg makes: maxRunDuration is in the request")
def limit_in_the_request(t: Trial) -> None:
    hours = ("--max-hours", "2")
    for word, options in {"one": [], "two": ["-m", "2"], "spot": ["--spot"]}.items():
        t.run("sleep 600", *hours, *options, name=word)
    t.devbox("box", *hours)
    t.until(lambda: len(t.machines()) >= 5, "five machines", 60)
    for each in t.machines():
        schedule = each["scheduling"]
        seconds = int(schedule.get("maxRunDuration", {}).get("seconds", 0))
        has_time = "terminationTime" in schedule or 0 < seconds <= 2.25 * 3600
        check(has_time, f"{each['name']}: {json.dumps(schedule)}")


# --- machines: once, or never


@row("machines", "of two submits of one name at one moment one job runs, once")
def two_submits(t: Trial) -> None:
    job = t.name()
    words = ["run", "-g", "0", "-n", job, f"{RAN}; sleep 2"]
    codes = together(t, words, words, match=f".berg/jobs/{job}_state")
    check(sorted(codes) == [0, 1], f"exit codes {codes}")
    check_ran_once(t, job)


@row("machines", "two submits and berg rm of one name at one moment leave one job or none")
def two_submits_and_rm(t: Trial) -> None:
    job = t.ran("exit 3", ends="FAILED")
    t.gone()
    words = ["run", "-g", "0", "-n", job, f"{RAN}; sleep 2"]
    codes = together(t, ["rm", "-y", job], words, words)
    check(codes[1:].count(0) <= 1, f"exit codes {codes}")
    if 0 in codes[1:]:
        check_ran_once(t, job)
    t.gone()
    check(runs(t, job) == codes[1:].count(0), "it ran without having been started")


@row("machines", "a job killed while it waits for capacity does not run when there is room")
def killed_in_a_stockout(t: Trial) -> None:
    t.cloud.control("POST", "stockout", {})
    job = t.run(RAN, "--wait-for-capacity")
    t.ok("kill", "-y", job)
    t.cloud.control("POST", "stockout", {"on": False})
    time.sleep(10)
    state = t.state(job)["state"]
    check(state == "KILLED" and not runs(t, job), f"it is {state}, or ran")
    t.gone()


LIVES = {"code": "RESOURCE_NOT_FOUND", "message": "not found", "instance_lives": True}
LOST = {"reset": True, "after_handler": True}
GROUP = "compute.regionInstanceGroupManagers.insert"


def ran_once(t: Trial, method: str, fault: dict[str, Any], more: tuple[str, ...] = ()) -> None:
    t.cloud.settings(**fault) if method == "settings" else t.cloud.fault(method, **fault)
    check_ran_once(t, t.run(f"{RAN}; sleep 2", *more))


row(
    "machines",
    "a job runs on a machine whose first boot is slow and whose image is bare",
    name="slow first boot",
    method="settings",
    fault={"first_boot": 8, "prepared": 0},
)(ran_once)
for name, (method, fault, more) in {
    "a create that fails although the machine lives": (
        "compute.instances.insert",
        {"operation_error": LIVES},
        (),
    ),
    "the answer to a create is lost": ("compute.instances.insert", LOST, ()),
    "the answer to a group's create is lost": (GROUP, LOST, ("--spot",)),
}.items():
    row(
        "machines",
        "whatever Google's answer to a create, a job runs once, and no second machine is left",
        name=name,
        method=method,
        fault=fault,
        more=more,
    )(ran_once)


# Where a submit is held: the request, how many before it, and options of the job.
Point = tuple[str, int, list[str]]
NONE = ["-g", "0"]
POINTS: list[Point] = [
    *[("storage.objects.insert", skip, NONE) for skip in range(3)],
    *[("compute.*", skip, NONE) for skip in range(3)],
    ("storage.objects.*", 0, NONE),
    ("compute.instances.insert", 0, NONE),
    ("compute.zoneOperations.*", 0, NONE),
    (GROUP, 0, [*NONE, "--spot"]),
]
ON_A_BOX: list[Point] = [
    ("compute.*", 1, ["-y", "--on"]),
    ("storage.objects.insert", 0, ["-y", "--on"]),
    ("storage.objects.insert", 2, ["-y", "--on"]),
    ("compute.instances.setMetadata", 0, ["-y", "--on"]),
]


def point(t: Trial, at: Point, word: str, command: str) -> tuple[str, list[str], dict[str, Any]]:
    """A job that is to be held at a point: its name, words, and the fault."""
    method, skip, options = at
    job, box = t.name(word), [t.name("box")] * ("--on" in options)
    fault = {"method": method, "skip": skip, **({"match": job} if "storage" in method else {})}
    return job, ["run", "-n", job, *options, *box, command], fault


def laptop_ends(t: Trial, number: int) -> None:
    jobs = []
    for each, at in enumerate(POINTS):
        job, words, fault = point(t, at, f"p{each}", f"{RAN}; sleep 1")
        process = held(t, words, **fault)
        time.sleep(t.dice.uniform(0, 0.5))
        is_held = process.poll() is None
        process.send_signal(number)
        jobs.append((job, end(t, process, 60) if is_held else 1))
    t.until(lambda: not t.machines(), "the end of the machines", 90)
    for job, code in jobs:
        state = t.state(job).get("state")
        check(runs(t, job) == (state == "SUCCEEDED"), f"{job} is {state}: {runs(t, job)} runs")
        check(number != signal.SIGINT or code, f"{job}: exit 0 after Ctrl-C")

    def is_reaped() -> bool:
        t.berg("reap", "-y")
        return not (t.named("instanceGroupManagers") or t.named("disks"))

    t.until(is_reaped, "berg reap finds what is left", 330, every=10)
    for job, _ in jobs:
        if not t.state(job):
            t.ran("true", name=job)


for name, number in {"a laptop dies": signal.SIGKILL, "Ctrl-C": signal.SIGINT}.items():
    row(
        "machines",
        "at each step of a submit, either the job runs to its end or nothing is left, its name neither",
        name=f"{name} in a submit",
        number=number,
        minutes=10,
    )(laptop_ends)


def killed_while_submits_sleep(t: Trial, points: list[Point], victim: str) -> None:
    other, box = t.colleague(""), t.devbox() if points is ON_A_BOX else ""
    sleepers, kills = {}, {}
    for number, at in enumerate(points):
        job, words, fault = point(t, at, f"p{number}", f"sleep 20; {RAN}")
        sleepers[job] = asleep(t, words, **fault)
        if victim == "job":
            kills[job] = other.start("kill", "-y", job, cwd=t.repo)
    since = time.monotonic()
    t.cloud.control("DELETE", "faults")
    if victim == "box":
        kills[box] = other.start("kill", "-y", box, cwd=t.repo)
    killed = [
        name
        for name, kill in kills.items()
        if end(t, kill, 120) == 0 and t.state(name)["state"] != "SUCCEEDED"  # it was over before
    ]
    check(killed, "nothing could be killed")
    wake(t, sleepers.values(), since)
    if box and victim == "job":
        time.sleep(25)  # for the command
        t.ok("kill", "-y", box)
    t.gone(120)
    ran = [job for job in (killed if victim == "job" else sleepers) if runs(t, job)]
    check(not ran, f"ran although killed: {ran}")


for name, (points, victim) in {
    "killed while the submit sleeps": (POINTS, "job"),
    "killed while a run on a devbox sleeps": (ON_A_BOX, "job"),
    "devbox killed while runs on it sleep": (ON_A_BOX, "box"),
}.items():
    row(
        "machines",
        "a submit that slept for a minute starts no job that was killed meanwhile, or on a devbox that was",
        name=name,
        points=points,
        victim=victim,
        minutes=8,
    )(killed_while_submits_sleep)


@row(
    "machines",
    "a removal that slept for a minute deletes nothing of a new job of the name",
    minutes=8,
)
def a_removal_that_slept(t: Trial) -> None:
    jobs = {t.ran("true", name=f"r{skip}"): skip for skip in (0, 8, 11, 14)}
    other, taken = t.colleague(""), []
    sleepers = [
        asleep(t, ["rm", "-y", job], "storage.objects.*", skip, match=job)
        for job, skip in jobs.items()
    ]
    since = time.monotonic()
    t.cloud.control("DELETE", "faults")
    for job, seconds in zip(jobs, (0, 0, 90, 90), strict=True):  # it is over, or runs
        other("rm", "-y", job, cwd=t.repo)
        words = ["run", "-g", "0", "-n", job, f"sleep {seconds}; {RAN}"]
        if other(*words, cwd=t.repo).code == 0:
            taken.append(job)
    check(taken, "no name could be taken again")
    wake(t, sleepers, since)
    for job in taken:
        check_ran_once(t, job)


# --- money

BIG = ("run", "-g", "0", "-c", "96")  # $4.59 an hour
LIMIT = 1.02  # dollars: a budget of one, and seconds that are rounded


def worst(t: Trial, usd_per_hour: float) -> float:
    """What the row's machines cost at most until Google ends them, in dollars."""
    limits = [each["scheduling"]["maxRunDuration"] for each in t.machines()]
    return sum(int(limit["seconds"]) for limit in limits) / 3600 * usd_per_hour


def rate(t: Trial) -> float:
    """Dollars an hour of the big machine."""
    return float(t.ok(*BIG, "--dry-run", "--json", "true").json["usd_per_hour"])


def with_budget(t: Trial, source: str) -> str | None:
    """A user who has a dollar a day never has machines that may cost more."""
    if time.gmtime()[3:5] >= (23, 30):
        return "not tried just before midnight, when the budget of another day begins"
    usd, user = rate(t), t.colleague(t.prefix)
    env = {"BERG_BUDGET": "1"} if source == "variable" else {}
    if source == "setting":
        user("config", "set", "budget", "1")
    tries = ["-y", "--max-hours 0.1", "--max-cost 50 --max-hours 0.15", "-y"]
    for number, words in enumerate(tries):
        user(*BIG, "-n", t.name(f"b{number}"), *words.split(), "sleep 600", cwd=t.repo, **env)
        cost = worst(t, usd)
        check(cost <= LIMIT, f"{words}: machines that may cost ${cost:.2f} of $1")
    check(t.machines(), "nothing fits")
    return None


for source in ("variable", "setting"):
    row(
        "money",
        "jobs that may cost more than is left of the day's budget are refused or end sooner",
        name=f"budget by a {source}",
        source=source,
    )(with_budget)


@row("money", "two laptops of a user at one moment do not both pass the budget")
def two_budgets(t: Trial) -> None:
    usd, user = rate(t), t.colleague(t.prefix)
    user("config", "set", "budget", "1")
    words = [[*BIG, "-n", t.name(word), "--max-hours", "0.2", "sleep 600"] for word in "ab"]
    codes = together(t, *words, match=".berg/jobs/", laptop=user)
    cost = worst(t, usd)
    check(cost <= LIMIT, f"both passed: ${cost:.2f} of $1, exit codes {codes}")


def is_limited(t: Trial, *options: str, **env: str) -> None:
    """The plan of a job may cost at most a dollar, or is refused."""
    done = t.berg(*BIG, *options, "--dry-run", "--json", "true", **env)
    check(done.code in (0, 1), f"exit {done.code}: {done.last}")
    usd = done.json["usd_at_most"] if done.code == 0 else 0
    check(usd <= LIMIT, f"{options} {env}: a plan of ${usd:.2f}")


@row("money", "a plan shows its price, and --max-cost and max_cost limit it", is_sample=True)
def price(t: Trial) -> None:
    done = t.ok(*BIG, "--max-hours", "2", "--dry-run", "--json", "true")
    hourly, most = done.json["usd_per_hour"], done.json["usd_at_most"]
    all_hold(
        {
            "the plan has no prices": len(re.findall(r"\$\d", done.err)) >= 2,
            f"2 h of ${hourly}: ${most}": 4 < hourly < 6 and abs(most - 2 * hourly) < 0.3,
        }
    )
    t.ok(*BIG, "--max-cost", "1", "--dry-run", "true")
    is_limited(t, "--max-cost", "1", "--max-hours", "100")
    is_limited(t, BERG_MAX_COST="1")
    t.files({"pyproject.toml": "[tool.berg]\nmax-cost = 500\n"})
    is_limited(t, BERG_MAX_COST="1")
    t.run("sleep 600", "--max-cost", "1", "-c", "96")
    cost = worst(t, hourly)
    check(0.5 <= cost <= LIMIT, f"the job may cost ${cost:.2f}")


@row("money", "no option lifts the max_cost that the environment sets")
def option_against_environment(t: Trial) -> None:
    is_limited(t, "--max-cost", "50", BERG_MAX_COST="1")
    is_limited(t, "--max-cost", "0", BERG_MAX_COST="1")


@row("money", "a dear plan asks; without a yes nothing is made; -y is one", is_sample=True)
def ask_above(t: Trial) -> None:
    words = [*BIG, "-n", t.name(), "sleep 600"]
    for answer in (None, "n\n"):
        t.refused(*words, codes=NO_ANSWER, stdin=answer, says=r"\$", BERG_ASK_ABOVE="5")
    t.gone(1)
    check(not t.cloud.objects(f".berg/jobs/{t.name()}"), "a record is left")
    t.ok(*words, "-y", BERG_ASK_ABOVE="5")
    check(t.machines(), "-y starts nothing")


@row("money", "list and costs count a machine that runs and the disk of a devbox that is off")
def costs(t: Trial) -> None:
    box, job = t.devbox(), t.run("sleep 600", "-c", "96")
    t.until_state(job, "RUNNING")
    t.ok("stop", box)
    told = {each["name"]: each["usd_per_hour"] for each in t.ok("costs", "--json").json["now"]}
    disk = sum(usd or 0 for name, usd in told.items() if name.startswith(box))
    time.sleep(5)
    usd = {each["name"]: each["usd"] for each in t.ok("list", "--json").json}
    all_hold(
        {
            f"the job costs {told.get(job)} an hour": (told.get(job) or 0) > 4,
            f"a disk of a devbox that is off costs {disk} an hour": 0 < disk < 0.1,
            f"the job has cost {usd[job]}": usd[job] > 0,
        }
    )


@row(
    "machines",
    "a wait in Google's queue that ran out breaks no command, whatever Google says of it",
)
def ended_wait(t: Trial) -> None:
    t.cloud.control("POST", "stockout", {})
    t.cloud.settings(hurry=3600)  # the wait is over in two seconds
    job = t.name("queued")
    t.ok("run", "-t", "l4", "--flex", "-n", job, "true")
    t.until(lambda: not t.machines(), "the end of the wait", 30)
    time.sleep(65)  # commands ask why there is no machine
    for words in ("list --json", f"show {job} --json", "reap --json", f"kill -y {job}"):
        t.ok(*words.split())


# A row of a sweep works for some seconds, the first ones longer, and goes on where its files say.
ROW = """
import os, sys, time
where, number, attempt = os.environ["BERG_RESULTS_DIR"], sys.argv[1], os.environ["BERG_ATTEMPT"]
done = int(open(f"{where}/done").read()) if os.path.exists(f"{where}/done") else 0
open(f"{where}/began-{number}-{attempt}", "w").write(str(done))
while done < (25 if int(number) < 3 else 5):
    time.sleep(1)
    done += 1
    open(f"{where}/part", "w").write(str(done))
    os.replace(f"{where}/part", f"{where}/done")
open(f"{where}/ended-{number}-{attempt}", "w").write(str(done))
"""
ROWS, KILLED = 12, 10  # rows, and the number of one that is killed


@row(
    "machines",
    "each row of a sweep on Spot machines ends once, with its files; one is killed alone",
    minutes=8,
)
def sweep(t: Trial) -> None:
    t.files({"row.py": ROW})
    name, grid = t.name("sweep"), "n=" + ",".join(map(str, range(ROWS)))
    words = ["--spot", "--parallel", "3", "--grid", grid, "-n", name, "python3 row.py {n}"]
    t.ok("run", "-g", "0", *words)
    killed = t.berg("kill", "-y", f"{name}/{KILLED}")
    if killed.code:
        raise Missing("a row cannot be killed alone")
    t.until(lambda: t.files_named(name, "began-"), "the first rows", 90)
    time.sleep(4)
    t.power(t.machines(name)[0]["name"], "preempt", grace=20)
    t.berg("wait", name, timeout=400)
    found = t.files_named(name, "(began|ended)-")
    ends = sorted(int(path.split("-")[-2]) for path in found if "/ended-" in path)
    again = {path: data for path, data in found.items() if re.search(r"began-\d+-2$", path)}
    all_hold(
        {
            f"the rows that ended: {ends}": ends == [n for n in range(ROWS) if n != KILLED],
            "no row began again": again,
            f"a row began again without its files: {again}": all(map(int, again.values())),
        }
    )
    t.gone()

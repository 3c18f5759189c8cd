"""Rows about machines that wait after their job, and jobs that run on a machine that is there."""

import time

from accept.rows_machines import machine, unharmed
from accept.suite import all_hold, check, row
from accept.world import Trial


def on(t: Trial, host: str, word: str, command: str, *options: str) -> str:
    """Submit a job for the machine of another one, or of a devbox; its name."""
    t.ok("run", "--on", host, "-n", t.name(word), *options, command)
    return t.name(word)


def writes(word: str) -> str:
    return f'echo {word} > "$BERG_RESULTS_DIR/{word}"; touch {word}'


@row("story", "with --keep-warm a machine waits, --on runs the next job there, kill ends the wait")
def warm_machine(t: Trial) -> None:
    first = t.ran("touch /root/left; python3 train.py", "--keep-warm", "15m", name="a1")
    before = machine(t, first)
    check(before and first in t.ok("list").out, "the machine does not wait")
    plan = t.ok("run", "-g", "0", "--dry-run", "true")
    second = on(t, first, "a2", f"ls /root/left && {writes('second')}", "--wait")
    again = t.ok("rerun", second, "-n", t.name("a3"), "--wait")
    all_hold(
        {
            "the plan of a like job does not name it": f"--on {first}" in plan.out + plan.err,
            "the second job has not its results": t.results(second).get("second") == b"second\n",
            "the second job costs, too": not t.shown(second)["usd"],
            "rerun ran elsewhere": again.code == 0 and len(t.machines()) == 1,
            "it is another machine": machine(t, first).get("id") == before["id"],
        }
    )
    t.ok("kill", first)
    t.gone()
    t.refused("run", "--on", first, "true", says="waits")


@row("story", "with --keep-failed the machine of a failed job waits for berg ssh, and then goes")
def kept_machine(t: Trial) -> None:
    job = t.ran("echo mine > /root/mine; exit 3", "--keep-failed", "20s", ends="FAILED")
    done = t.ok("ssh", job, "--", "cat /root/mine")
    check(done.out == "mine\n", f"the machine has {done.out!r}")
    t.gone(90)
    t.ran("true", "--keep-failed", "20m", name="good")
    t.gone()


@row("machines", "jobs side by side on a devbox: each its own files, log and end; the devbox stays")
def guests(t: Trial) -> None:
    box = t.devbox()
    with unharmed(t, box):
        one = on(t, box, "one", f"{writes('one')}; until [ -e /root/go ]; do sleep 1; done")
        t.until_state(one, "RUNNING")
        t.refused("run", "--on", box, "-n", t.name("three"), "true", says="--share")
        two = on(t, box, "two", f"ls; {writes('two')}; exit 4", "--share")
        check(t.ended(two, "FAILED")["exit_code"] == 4, "its exit code is another one")
        check(t.state(one)["state"] == "RUNNING", f"the other one is {t.state(one)['state']}")
        t.ok("ssh", box, "--", "touch /root/go")  # its home is shared
        t.ended(one, "SUCCEEDED")
    t.ok("fetch", two, str(t.repo.parent / "here"))
    files = {name for name in ("one", "two") if (t.repo.parent / "here" / name).exists()}
    seen = t.ok("ssh", box, "--", "ls /root/code/proj; ls /root/berg_results").out.split()
    last = on(
        t, box, "last", "trap 'echo x > $BERG_RESULTS_DIR/saved; exit' TERM; sleep 900 & wait"
    )
    t.until_state(last, "RUNNING")
    time.sleep(1)  # for its trap
    t.ok("kill", "-y", box)
    all_hold(
        {
            f"results of the two: {[*t.results(one)]}, {[*t.results(two)]}": (
                "one" in t.results(one) and "two" in t.results(two)
                and not {"two"} & {*t.results(one)} and not {"one"} & {*t.results(two)}
            ),
            f"a fetch brings {files}": files == {"two"},
            f"the devbox has {seen}": not {"one", "two"} & {*seen},
            "one saw the files of the other": "\none\n" not in t.log(two),
            "a name that was refused is taken": not t.state(t.name("three")),
            "the last one was not saved": "saved" in t.results(last),
            f"and is {t.state(last)['state']}": t.state(last)["state"] == "KILLED",
        }
    )  # fmt: skip
    t.gone()


WRONG = {  # options that a machine as it is cannot have -> what the refusal names
    "-t t4 -g 1": "-t",
    "-g 2": "-g",
    "--image debian-cloud/debian-12": "--image",
    "-c 32": "-c",
    "--disk-gb 500": "--disk-gb",
    "-m 2": "-m",
    "--spot": "Spot",
    "--mount data": "--mount",
}


@row("machines", "--on refuses other GPUs, images and machines by name, and makes nothing")
def wrong_machines(t: Trial) -> None:
    box, job, name = t.devbox(), t.run("sleep 300"), t.name("guest")
    t.until_state(job, "RUNNING")
    words = ["run", "-n", name, "true", "--on"]
    with unharmed(t, box):
        for options, says in WRONG.items():
            t.refused(*words, box, *options.split(), says=says)
        t.refused(*words, job, says="RUNNING")
        t.refused(*words, t.name("none"), says=t.name("none"))
        done = t.colleague("grace")(*words, box, cwd=t.repo)
        check(done.code == 1 and box in done.err, f"a colleague: exit {done.code}: {done.last}")
        t.ok("kill", "-y", job)
        t.refused(*words, job, says="KILLED")
        t.ok("stop", box)
        t.refused(*words, box, says=f"berg start {box}")
    check(not t.cloud.objects(f".berg/jobs/{name}"), "a record is left")

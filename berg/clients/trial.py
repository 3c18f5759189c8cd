"""`berg try`: a first run on Google Cloud, in steps that each prove something, and leave nothing.

A step types Berg's own commands, as a user would; some run at once. What went otherwise than promised is written
to one file, without names and addresses, that can be sent to Berg's authors.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from berg import BergError, __version__, code, gce, google, terminal
from berg import job as records
from berg.config import Config

AT_ONCE = 4  # steps; a new project has few addresses and vCPUs
SMALL = ["-g", "0", "--machine-type", "e2-medium"]
LIMIT = ["--max-hours", "0.5"]  # whatever happens, Google deletes the machines then
PATIENCE = 900  # seconds for what a step waits for
SHOWN = 4000  # characters of an answer that the file keeps
ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")


@dataclass
class Step:
    """What a step proves, the options of its machines, and for how long they run."""

    run: Callable[["Trial", str, list[str]], str]  # returns what was seen; raises Unexpected
    proves: str
    options: list[str] = field(default_factory=lambda: SMALL)
    minutes: float = 3
    machines: int = 1

    @property
    def name(self) -> str:
        return self.run.__name__


@dataclass
class Result:
    """How a step went."""

    step: str
    proves: str
    seconds: float
    saw: str
    is_good: bool


class Unexpected(BergError):
    """A step saw something else than what is promised."""


@dataclass
class Trial:
    """The repository that the steps run, what their jobs are called, and what was unexpected."""

    config: Config
    folder: Path
    prefix: str
    answers: list[dict[str, Any]] = field(default_factory=list)
    is_over: bool = False

    def berg(self, *words: str, code: int = 0, **env: Any) -> str:
        """Type a command; return what it prints as data."""
        if self.is_over:
            raise Unexpected("interrupted")
        ran = subprocess.run(
            [sys.executable, "-c", "from berg.cli import main; main()", *words],
            cwd=self.folder / "repo", env={**os.environ, **env}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace",
        )  # fmt: skip
        if ran.returncode != code:
            said = {"out": ran.stdout[-SHOWN:], "err": ran.stderr[-SHOWN:]}
            self.answers.append({"command": ["berg", *words], "code": ran.returncode, **said})
            lines = ran.stderr.strip().splitlines()
            errors = [at for at, line in enumerate(lines) if line.startswith("Error: ")]
            why = " ".join(lines[max(errors, default=-1) :]) or "no words"
            raise Unexpected(f"berg {words[0]} exits with {ran.returncode}, not {code}: {why}")
        return ran.stdout

    def submit(self, name: str, *words: str, **env: Any) -> None:
        self.berg("run", "-y", "-n", name, *LIMIT, *words, **env)

    def state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.berg("show", name, "--json"))
        return found

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait until something is so."""
        end = time.monotonic() + PATIENCE
        while not is_so():
            if time.monotonic() > end:
                raise Unexpected(f"not within {PATIENCE // 60} minutes: {what}")
            time.sleep(3)

    def is_running(self, name: str) -> bool:
        """Whether a job's command runs; raises Unexpected if it has ended."""
        state = self.state(name)
        if state["state"] in records.FINAL:
            raise Unexpected(f"{state['state']} too early: {state['reason']}")
        return bool(state["state"] == records.RUNNING)

    def file(self, name: str, path: str) -> str:
        """A result of a job, as `berg fetch` brings it; "" without it."""
        folder = self.folder / f"results-{name}"
        self.berg("fetch", name, str(folder))
        file = folder / path
        return file.read_text() if file.exists() else ""


def expect(seen: Any, wanted: Any, what: str) -> None:
    if seen != wanted:
        raise Unexpected(f"{what} is {seen!r}, not {wanted!r}")


def check(is_there: bool, what: str) -> None:
    if not is_there:
        raise Unexpected(f"not seen: {what}")


# --- the steps


def job(trial: Trial, name: str, options: list[str]) -> str:
    began = time.time()
    command = "date -u +%FT%TZ; echo kept >$BERG_RESULTS_DIR/file"
    trial.submit(name, *options, command)
    created = time.time() - began
    trial.berg("wait", name)
    ended = time.time()
    trial.until("its machine is gone", lambda: not trial.state(name)["running"])
    gone = time.time() - ended
    expect(trial.file(name, "file"), "kept\n", "the result")
    times = trial.state(name)["times"]
    first = re.search(r"^20\S+Z$", trial.berg("log", name), re.M)
    check(bool(first), "a line of the command in berg log")
    ages = {key: records.age(text) for key, text in times.items()}
    boot = ages[records.SUBMITTED] - ages[records.STARTING] - created
    prepared = ages[records.STARTING] - ages[records.RUNNING]
    line = ages[records.RUNNING] - records.age(first[0] if first else "")
    return (
        f"create {created:.0f} s, boot {max(0, boot):.0f} s, prepare {max(0, prepared):.0f} s, "
        f"first line {max(0, line):.0f} s, delete {gone:.0f} s"
    )


def failing(trial: Trial, name: str, options: list[str]) -> str:
    trial.submit(name, *options, "echo it broke >&2; exit 7")
    trial.berg("wait", name, code=7)
    state = trial.state(name)
    expect((state["state"], state["exit_code"]), ("FAILED", 7), "the end")
    return str(state["reason"])


def killed(trial: Trial, name: str, options: list[str]) -> str:
    trial.submit(
        name, *options, "for i in $(seq 900); do date >$BERG_RESULTS_DIR/$i; sleep 1; done"
    )
    trial.until("it runs", lambda: trial.is_running(name))
    time.sleep(10)
    trial.berg("kill", "-y", name)
    expect(trial.state(name)["state"], "KILLED", "the state")
    check(trial.file(name, "5") != "", "a result from before the kill")
    return "KILLED, with the results of its seconds"


def two(trial: Trial, name: str, options: list[str]) -> str:
    trial.submit(name, *options, "-m", "2", "--each", "echo rank $BERG_NODE_RANK of $BERG_HOSTS")
    trial.berg("wait", name)
    ranks = sorted(set(re.findall(r"rank (\d) of \S+,\S+", trial.berg("log", name))))
    expect(ranks, ["0", "1"], "the ranks that know both addresses")
    return "both know each other's address"


def spot(trial: Trial, name: str, options: list[str]) -> str:
    folder = "$BERG_RESULTS_DIR"
    command = f"echo $BERG_ATTEMPT >>{folder}/attempts; [ $BERG_ATTEMPT -gt 1 ] || sleep 900"
    trial.submit(name, *options, command)
    trial.until("it runs", lambda: trial.is_running(name))
    time.sleep(45)  # so that a moment is in the bucket, whatever the notice is worth
    for machine in gce.machines(trial.config, name):
        google.do(trial.config, "POST", f"{machine.path}/simulateMaintenanceEvent")
    trial.berg("wait", name)
    expect(trial.file(name, "attempts"), "1\n2\n", "the file that both attempts wrote")
    return "Google took its machine, and it went on from its results"


def devbox(trial: Trial, name: str, options: list[str]) -> str:
    trial.berg("devbox", "-y", "-n", name, *options, *LIMIT)
    trial.until("its machine is up", lambda: trial.is_running(name))
    trial.berg("ssh", name, "--", "touch /opt/mine")
    (trial.folder / "repo" / "new.py").write_text("new\n")
    trial.berg("sync", name, "--once")
    expect(trial.berg("ssh", name, "--", "cat new.py"), "new\n", "the file that was synced")
    trial.berg("stop", "-y", name)
    trial.berg("start", "-y", name)
    expect(trial.berg("ssh", name, "--", "ls /opt/mine"), "/opt/mine\n", "the file on its disk")
    trial.berg("kill", "-y", name)
    return "its disk survived stop and start"


def data(trial: Trial, name: str, options: list[str]) -> str:
    folder = trial.folder / "data"
    folder.mkdir()
    (folder / "row.csv").write_text("1,2\n")
    trial.berg("data", "push", str(folder), name)
    trial.submit(name, *options, "--data", name, f"cat $BERG_DATA_DIR/{name}/row.csv")
    trial.berg("wait", name)
    check("1,2" in trial.berg("log", name), "the data set on the machine")
    trial.berg("data", "rm", "-y", name)
    return "the command read the data set"


def secret(trial: Trial, name: str, options: list[str]) -> str:
    word = secrets.token_hex(8)
    command = 'printf %s "$TRIED" | sha256sum'
    trial.submit(name, *options, "--secret", "TRIED", command, TRIED=word)
    trial.berg("wait", name)
    hashed = hashlib.sha256(word.encode()).hexdigest()
    check(hashed in trial.berg("log", name), "the hash of the secret in the log")
    return "the command had it"


def gpu(trial: Trial, name: str, options: list[str]) -> str:
    trial.submit(name, *options, "nvidia-smi -L")
    trial.berg("wait", name)
    lines = re.findall(r"^GPU \d.*", trial.berg("log", name), re.M)
    expect(len(lines), 1, "the number of GPUs")
    return str(lines[0].partition(" (UUID")[0])


def pod(trial: Trial, name: str, options: list[str]) -> str:
    trial.submit(name, *options, "echo in a pod")
    trial.berg("wait", name)
    return "a pod ran it"


def tpu(trial: Trial, name: str, options: list[str]) -> str:
    trial.submit(name, *options, "ls -d /dev/* /dev/vfio/* | grep -E 'accel|vfio/'")
    trial.berg("wait", name)
    return " ".join(re.findall(r"^/dev/\S+", trial.berg("log", name), re.M))


BASIC = [
    Step(job, "a job's result and log are in the bucket, and its machine goes"),
    Step(failing, "a command that fails has its exit code and the reason"),
    Step(killed, "berg kill keeps the results of the last seconds"),
    Step(two, "two machines find each other", machines=2),
    Step(spot, "a Spot job that Google interrupts goes on by itself", [*SMALL, "--spot"], 8),
    Step(devbox, "a devbox: ssh, sync, stop, start", minutes=8),
    Step(data, "--data brings a data set"),
    Step(secret, "--secret reaches the command"),
]


def chosen(gpu_type: str, cluster: str, slice_: str) -> list[Step]:
    """The steps, with those that cost more where they were asked for."""
    more = [
        (gpu_type, gpu, "the image's driver sees the GPU", ["-g", "1", "-t", gpu_type]),
        (cluster, pod, "a pod of the cluster runs a job", ["-g", "0", "--cluster", cluster]),
        (slice_, tpu, "the machine has its TPU", ["--tpu", slice_]),
    ]
    return BASIC + [Step(run, why, options, 6) for given, run, why, options in more if given]


def price(trial: Trial, steps: list[Step]) -> dict[str, float | None]:
    """Dollars of each step, at least a cent, by the plans of its machines; None where Google's list
    lacks a part.
    """
    found: dict[str, float | None] = {}
    rates: dict[str, float | None] = {}
    for step in steps:
        kind = " ".join(step.options)
        if kind not in rates:
            plan = json.loads(
                trial.berg("run", "--dry-run", "--json", *LIMIT, *step.options, "true")
            )
            rates[kind] = plan["usd_per_hour"]
        rate = rates[kind]
        found[step.name] = (
            None if rate is None else max(0.01, rate * step.machines * step.minutes / 60)
        )
    return found


# --- all of them


def take(trial: Trial, step: Step) -> Result:
    """Run a step; whatever happens is a result of it."""
    began, name = time.monotonic(), f"{trial.prefix}-{step.name}"
    try:
        saw, is_good = step.run(trial, name, step.options), True
    except Exception as error:  # a defect is what these steps look for
        saw, is_good = str(error) or repr(error), False
        if not isinstance(error, Unexpected):
            trial.answers.append({"step": step.name, "error": repr(error)})
        if not trial.is_over:
            with contextlib.suppress(Unexpected):
                trial.answers.append({"step": step.name, "state": trial.state(name)})
                trial.answers.append({"step": step.name, "log": trial.berg("log", name)[-SHOWN:]})
    return Result(step.name, step.proves, time.monotonic() - began, saw, is_good)


def reap(trial: Trial, name: str, options: list[str]) -> str:
    """Delete all that the steps made, and look whether that is all."""
    known, mine = len(trial.answers), f"{trial.prefix}-*"
    for words in (["kill", "--now"], ["rm"], ["data", "rm"]):
        with contextlib.suppress(Unexpected):  # there is none, or the looks below name it
            trial.berg(*words, "-y", f"{trial.prefix}-data" if words[0] == "data" else mine)
    del trial.answers[known:]
    found = [machine.name for machine in gce.machines(trial.config)]
    for words in (["reap", "--json"], ["list", "--all-jobs", "--json"]):
        found += [row["name"] for row in json.loads(trial.berg(*words))]
    expect([each for each in found if each.startswith(trial.prefix)], [], "what is left")
    return "nothing is left"


def anonymous(trial: Trial, text: str) -> str:
    """A text without the names of the project, the bucket and the user, and without addresses."""
    for word in ("bucket", "project", "user"):
        if name := str(getattr(trial.config, word)):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", word.upper(), text)
    return ADDRESS.sub("ADDRESS", text)


def write_answers(trial: Trial, results: list[Result]) -> str:
    """Write what was unexpected to a file; its name."""
    file = Path(f"{trial.prefix}.json").absolute()
    about = {"berg": __version__, "results": [asdict(row) for row in results]}
    text = json.dumps({**about, "answers": trial.answers}, indent=2)
    file.write_text(anonymous(trial, text))
    return str(file)


@contextlib.contextmanager
def repository() -> Iterator[Path]:
    """A folder with a small git repository `repo`."""
    with tempfile.TemporaryDirectory(prefix="berg-try-") as folder:
        repo = Path(folder, "repo")
        repo.mkdir()
        code.git(repo, "init", "-q")
        (repo / "README").write_text("What berg try runs.\n")
        code.git(repo, "add", "-A")
        who = {
            f"GIT_{role}_{what}": "berg"
            for role in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        code.git(repo, "commit", "-q", "--no-gpg-sign", "-m", "berg try", **who)
        yield Path(folder)


@click.command()
@click.option("--gpu", "gpu_type", default="", metavar="TYPE", help="Also a job with this GPU: l4.")
@click.option("--cluster", default="", metavar="NAME", help="Also a pod of this cluster.")
@click.option("--tpu", "slice_", default="", metavar="FAMILY-TOPOLOGY", help="Also TPUs: v6e-1.")
@click.option("--only", multiple=True, metavar="STEP", help="Only this step; repeatable.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def try_(
    gpu_type: str, cluster: str, slice_: str, only: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    """Try all that Berg does on Google Cloud, with your settings, in some minutes; nothing is left.

    Says first what each step costs and proves. What is unexpected goes to a file in this folder,
    without your names, for a report.

    \b
    berg try
    berg try --gpu l4
    """
    config, steps = Config.load(), chosen(gpu_type, cluster, slice_)
    known = [step.name for step in steps]
    if unknown := sorted({*only} - {*known}):
        raise BergError(f"there is no step {unknown[0]!r}. There are: {', '.join(known)}")
    steps = [step for step in steps if step.name in only or not only]
    with repository() as folder:
        trial = Trial(config, folder, f"try-{secrets.token_hex(2)}")
        with terminal.waiting("Asking Google for prices"):
            prices = price(trial, steps)
        rows = [[step.name, terminal.dollars(prices[step.name]), step.proves] for step in steps]
        if not as_json:
            terminal.show_table(["STEP", "COSTS", "PROVES"], rows)
        sum_known = terminal.dollars(sum(usd or 0 for usd in prices.values()))
        more = " and what has no known price" if None in prices.values() else ""
        if not terminal.confirm(f"Run them, for about {sum_known}{more}?", yes, "-y"):
            raise BergError("nothing was run")
        results = run_all(trial, steps)
        file = "" if all(row.is_good for row in results) else write_answers(trial, results)
    if as_json:
        terminal.show_json({"results": [asdict(row) for row in results], "file": file})
    if file:
        raise BergError(f"not all is as promised. What was said, for a report: {file}")


def run_all(trial: Trial, steps: list[Step]) -> list[Result]:
    """Run the steps and clean up, also after Ctrl-C; each result is printed when it is known."""
    results: list[Result] = []
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        for done in as_completed([pool.submit(take, trial, step) for step in steps]):
            results.append(done.result())
            tell(results[-1])
    except KeyboardInterrupt:
        terminal.say(f"Ending what runs, and cleaning up; by hand: berg kill -y '{trial.prefix}-*'")
        raise
    finally:
        trial.is_over = True
        pool.shutdown(cancel_futures=True)
        trial.is_over = False
        results.append(take(trial, Step(reap, "no machine, disk, group or job stays")))
        tell(results[-1])
    return results


def tell(result: Result) -> None:
    sign = "ok" if result.is_good else "NO"
    terminal.say(f"{sign}  {result.step:8}  {terminal.duration(result.seconds):>4}  {result.saw}")

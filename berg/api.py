"""Berg from Python: what the commands do, by the same functions, without a terminal.

    job = berg.run("python train.py", gpu_type="t4")
    job.wait()

What happens meanwhile is logged to the logger `berg`. Not covered: sweeps, devboxes, ssh and sync;
they have commands.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from berg import BergError, config
from berg import plan as defaults
from berg.config import Config
from berg.google.api import explain
from berg.google.fetch import RepoFile, fetch
from berg.google.storage import Bucket
from berg.job import State
from berg.laptop import ending, jobs, latest, launch, logs, results
from berg.plan import Plan
from berg.spec import SWEEP, JobSpec, rows

log = logging.getLogger("berg")
POLL = 2  # seconds
OPTIONS = {
    name for name, row in rows(JobSpec).items() if "run" in row.commands and row.group != SWEEP
}


def run(cmd: str, folder: str | Path = ".", **options: Any) -> "Job":
    """Run a command on a machine of its own, with the repo around `folder`; returns when the
    machine was created.

    Options are those of `berg run`, with underscores: gpu_type="t4", num_gpus=0, spot=True,
    zones=["us-central1-a"], env={"LR": "0.1"}, name="lr-01". Defaults of the repo hold for what is
    not given. Raises BergError, and leaves nothing behind then.
    """
    if unknown := sorted(options.keys() - OPTIONS):
        raise TypeError(
            f"berg.run() has no option {unknown[0]!r}. It has: {', '.join(sorted(OPTIONS))}"
        )
    if isinstance(options.get("env"), dict):
        options["env"] = tuple(f"{key}={value}" for key, value in options["env"].items())
    options = {key: defaults.option_of(key, value) for key, value in options.items()}
    place = Path(folder).expanduser().resolve()
    spec = JobSpec(cmd=cmd, **defaults.fill(options, set(options), place))
    settings = config.load_ready(**spec.settings)
    with explained(settings):
        name = launch.first(settings, spec, place, None, submit, log.info)
    return Job(name, settings)


def submit(plan: Plan) -> str:
    """Carry out a plan, and return the name of its job."""
    launch.submit(plan, log.info, lambda done, size: None)
    return plan.job.job_name


@dataclass
class Job:
    """A job that was submitted, here or elsewhere: Job("digits-1121-0930-x7k"), or Job("@") for my
    latest one.
    """

    name: str
    config: Config = field(default_factory=config.load_ready, repr=False)

    def __post_init__(self) -> None:
        with explained(self.config):
            self.name = latest.resolve(self.config, self.name)

    @property
    def state(self) -> State:
        """How it goes right now: state.state is RUNNING, SUCCEEDED, …; state.exit_code,
        state.reason.
        """
        with explained(self.config):
            found = jobs.find(self.config, self.name)
        if found.state is None:
            raise BergError(f"{self.name} is a machine without a job")
        return found.state

    def wait(self, seconds: float | None = None) -> State:
        """Wait until the job is over and return its final state; raises TimeoutError after
        `seconds`.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while not (state := self.state).final:
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"{self.name} is {state.state} after {seconds:g} s")
            time.sleep(POLL)
        return state

    def logs(self) -> str:
        """What its machines printed so far; those of a cluster one after another."""
        with explained(self.config):
            return b"".join(chunk for _, chunk in logs.chunks(self.config, self.name)).decode(
                errors="replace"
            )

    def fetch(self, folder: str | Path | None = None) -> Path:
        """Bring its results, those that are new or changed, to a folder (~/berg_results/…) and
        return that.
        """
        with explained(self.config):
            prefix, _ = results.find(self.config, self.name)
            target = Path(folder).expanduser() if folder else Path.home() / prefix
            _, files, found = fetch(Bucket(self.config), prefix, target)
        left = {name: error for name, error in found.items() if not isinstance(error, RepoFile)}
        for name in found.keys() - left.keys():
            log.warning("%s was left out: it could configure programs on this computer", name)
        if left or not files:
            why = (
                "; ".join(f"{name}: {error}" for name, error in left.items())
                or "there are none yet"
            )
            raise BergError(f"results of {self.name} could not be brought: {why}")
        return target

    def kill(self, now: bool = False) -> State:
        """End it, with the last results unless `now`, and return its final state."""
        with explained(self.config):
            ending.kill(self.config, self.name, now, log.info)
        return self.state


@contextlib.contextmanager
def explained(settings: Config) -> Iterator[None]:
    """Raise errors of Google's as BergError, with a sentence and the next step."""
    try:
        yield
    except BergError:
        raise
    except Exception as error:
        if sentence := explain(error, settings):
            raise BergError(sentence) from error
        raise

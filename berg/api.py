"""Berg from Python: the functions of the commands without a terminal.

    job = berg.run("python train.py", gpu_type="t4")
    job.wait()

Progress is logged to the logger `berg`. Sweeps, devboxes, ssh and sync have commands only.
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
from berg.google.fetch import LeftOut, fetch
from berg.google.storage import Bucket
from berg.job import State
from berg.laptop import ending, jobs, launch, logs, lookup, records
from berg.plan import Plan
from berg.spec import SWEEP, JobSpec, rows

log = logging.getLogger("berg")
OPTIONS = {
    name for name, row in rows(JobSpec).items() if "run" in row.commands and row.group != SWEEP
}


def run(cmd: str, folder: str | Path = ".", send_secrets: bool = False, **options: Any) -> "Job":
    """Run a command on its own machine, with the repo around `folder`; return when the machine is
    created.

    Options are those of `berg run`, with underscores: gpu_type="t4", num_gpus=0, spot=True,
    zones=["us-central1-a"], env={"LR": "0.1"}, name="lr-01". The repo's defaults apply to the
    others. Raise BergError, and leave nothing behind then, also if a file looks like a secret,
    unless `send_secrets`.
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

    def submit(plan: Plan) -> str:
        if not send_secrets:
            launch.refuse_secrets(plan)
        launch.submit(plan, log.info, lambda done, size: None)
        return plan.job.job_name

    with explained(settings):
        name = launch.first(settings, spec, place, None, submit, log.info)
    return Job(name, settings)


@dataclass
class Job:
    """A job submitted from any computer: Job("digits-1121-0930-x7k"), or Job("@") for the user's
    latest one.
    """

    name: str
    config: Config = field(default_factory=config.load_ready, repr=False)

    def __post_init__(self) -> None:
        with explained(self.config):
            self.name = lookup.resolve(self.config, self.name)

    @property
    def state(self) -> State:
        """The state now: state.state is RUNNING, SUCCEEDED, …; state.exit_code, state.reason."""
        with explained(self.config):
            return jobs.find(self.config, self.name).job_state

    def wait(self, seconds: float | None = None) -> State:
        """Wait until the job has ended and return its final state; raise TimeoutError after
        `seconds`.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while not (state := self.state).final:
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"{self.name} is {state.state} after {seconds:g} s")
            time.sleep(2)
        return state

    def data(self, lines: int = 10) -> dict[str, Any]:
        """All about it, as `berg show --json` prints it: state, usd, metrics, results, log, …"""
        with explained(self.config):
            return records.read(self.config, self.name, lines).to_dict()

    def logs(self) -> str:
        """The output so far; of several machines one after another."""
        with explained(self.config):
            return b"".join(chunk for _, chunk in logs.chunks(self.config, self.name)).decode(
                errors="replace"
            )

    def fetch(self, folder: str | Path | None = None) -> Path:
        """Download new and changed results to a folder (~/berg_results/…) and return it."""
        with explained(self.config):
            prefix, stored = lookup.results_of(self.config, self.name)
            target = Path(folder).expanduser() if folder else Path.home() / prefix
            bucket = Bucket(self.config)
            listed = lookup.results(bucket, stored).files if stored else None
            _, files, found = fetch(bucket, prefix, target, listed=listed)
        left = {name: error for name, error in found.items() if not isinstance(error, LeftOut)}
        for name in found.keys() - left.keys():
            log.warning("%s was left out: %s", name, found[name])
        if left or not files:
            why = "; ".join(f"{name}: {error}" for name, error in left.items())
            why = why or "there are none yet"
            raise BergError(f"results of {self.name} could not be downloaded: {why}")
        return target

    def kill(self, now: bool = False) -> State:
        """End it, after uploading the last results unless `now`; return its final state."""
        with explained(self.config):
            ending.kill(self.config, self.name, now, log.info)
        return self.state


@contextlib.contextmanager
def explained(settings: Config) -> Iterator[None]:
    """Raise Google's errors as BergError, with the next step."""
    try:
        yield
    except BergError:
        raise
    except Exception as error:
        if sentence := explain(error, settings):
            raise BergError(sentence) from error
        raise

"""Berg from Python: the functions of the commands, without a terminal.

    job = berg.run("python train.py", gpu_type="t4")
    job.wait()

Progress is logged to the logger `berg`. Devboxes, ssh and sync have commands only.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

import berg
import berg.run as submission
from berg import BergError, features, fetch, google, jobs, logs
from berg.bucket import Bucket
from berg.config import Config
from berg.end import kill_one
from berg.job import State
from berg.options import as_field, option_fields, repo_defaults
from berg.run import Spec

log = logging.getLogger("berg")


def run(cmd: str, folder: str | Path = ".", yes: bool = False, **options: Any) -> "Job":
    """Run a command on its own machine, with the repository around `folder`; return when the machine
    is created, or asked for.

    Options are those of `berg run`, with underscores: gpu_type="t4", gpus=0, spot=True,
    zones=["us-central1-a"], env={"LR": "0.1"}, name="lr-01"; the repository's defaults apply to the
    others. Raises BergError and leaves nothing behind; also for what `berg run` asks, unless `yes`.
    """
    kinds: tuple[Any, ...] = (Spec, *features.kinds())
    flags = {  # the longest of each field, as Python writes it
        max(row.metadata["flags"], key=len).lstrip("-").replace("-", "_"): row.name
        for kind in kinds
        for row in option_fields(kind)
    }
    options = {flags.get(name, name): value for name, value in options.items()}
    known = [row.name for kind in kinds for row in option_fields(kind)]
    if unknown := sorted(options.keys() - {*known}):
        raise TypeError(f"berg.run() has no option {unknown[0]!r}. It has: {', '.join(known)}")
    if not cmd.strip():
        raise BergError("the command is empty. Give one: berg.run('python train.py')")
    place = Path(folder).expanduser()
    with explained() as config:
        words = [*words_of(submission.run, options), "--", cmd]
        defaults = repo_defaults(place.resolve(), submission.run)
        with submission.run.make_context("run", words, default_map=defaults) as context:
            spec, *used = [
                kind(
                    **{row.name: as_field(context.params[row.name]) for row in option_fields(kind)}
                )
                for kind in kinds
            ]
            used = [feature for feature in used if feature.is_used]
            plan = submission.make_plan(config, cmd, place, spec, used)
        if plan.questions and not yes:
            raise BergError(f"{plan.questions[0]}. If that is right: berg.run(…, yes=True)")
        submission.submit(plan, log.info)
    return Job(plan.job.name, config)


# The import of the module berg.run above put it where the function belongs.
berg.run = run  # type: ignore[assignment]


def words_of(command: click.Command, options: dict[str, Any]) -> list[str]:
    """Options as a command line has them, so that click checks them."""
    found = []
    flags = {row.name: row for row in command.params if isinstance(row, click.Option)}
    for name, value in options.items():
        option = flags[name]
        values = (
            [f"{key}={text}" for key, text in value.items()] if isinstance(value, dict) else value
        )
        for text in values if isinstance(values, (list, tuple)) else [values]:
            if option.is_flag:
                found += [option.opts[-1]] * bool(text)
            elif text is not None:
                found += [option.opts[-1], str(text)]
    return found


@dataclass
class Job:
    """A job that was submitted from any computer: Job("digits-1121-0930-x7k"), or Job("@") for the
    user's latest one.
    """

    name: str
    config: Config = field(default_factory=Config.load, repr=False)

    def __post_init__(self) -> None:
        with explained(self.config):
            self.name = jobs.find(self.config, self.name).name

    @property
    def state(self) -> State:
        """The state now: state.state is RUNNING, SUCCEEDED, …; state.exit_code, state.reason."""
        with explained(self.config):
            return jobs.find(self.config, self.name)

    def wait(self, seconds: float | None = None) -> State:
        """Wait for the final state; raise TimeoutError after `seconds`."""
        end = None if seconds is None else time.monotonic() + seconds
        while not (state := self.state).is_final:
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"{self.name} is {state.state} after {seconds:g} s")
            time.sleep(jobs.POLL)
        return state

    def data(self) -> dict[str, Any]:
        """All about it, as `berg show --json` prints it."""
        with explained(self.config) as config:
            return jobs.all_about(config, self.name)

    def logs(self) -> str:
        """The output so far; of several machines one after the other."""
        with explained(self.config) as config:
            pieces = logs.pieces(Bucket(config), self.name, {})
            return b"".join(content for _, content in pieces).decode(errors="replace")

    def fetch(self, folder: str | Path | None = None) -> Path:
        """Download new and changed results to a folder (~/berg_results/…), and return it."""
        with explained(self.config) as config:
            own = Path(folder).expanduser() if folder else None
            parts, target, _ = fetch.of_job(config, self.name, own)
            files, _ = fetch.download_all(parts, 0)
            if not files:
                raise BergError(f"{self.name} has no results yet. Its log: berg log {self.name}")
        return target

    def kill(self, now: bool = False) -> State:
        """End it, after the last results unless `now`; return its final state."""
        with explained(self.config) as config:
            kill_one(config, self.name, now)
        return self.state


@contextlib.contextmanager
def explained(config: Config | None = None) -> Iterator[Config]:
    """The settings; errors of Google's and of options are raised as BergError, with the next step."""
    config = config or Config.load()
    try:
        yield config
    except click.ClickException as error:
        raise BergError(error.format_message()) from None
    except Exception as error:
        if not isinstance(error, BergError) and (text := google.sentence(error, config)):
            raise BergError(text) from error
        raise
